//! Functions of the C library that would make the binary need a newer glibc than the documents
//! state.
//!
//! glibc 2.35 gave `hypotf` a new version, so a binary that is linked there and refers to it does
//! not start with glibc 2.34, which RHEL 9 has. A font library that documents are set with refers
//! to it.

/// `hypotf` of C: the length of (x, y), which F64 holds without overflow.
#[unsafe(no_mangle)]
extern "C" fn hypotf(x: f32, y: f32) -> f32 {
    if x.is_infinite() || y.is_infinite() {
        return f32::INFINITY;
    }
    let (x, y) = (f64::from(x), f64::from(y));
    (x * x + y * y).sqrt() as f32
}

#[cfg(test)]
mod tests {
    use super::hypotf;

    #[test]
    fn lengths_are_those_of_c() {
        for (x, y, length) in [
            (3.0, 4.0, 5.0),
            (-3.0, 4.0, 5.0),
            (0.0, -0.0, 0.0),
            (f32::MIN_POSITIVE, 0.0, f32::MIN_POSITIVE),
            (f32::MAX, f32::MAX, f32::INFINITY),
            (2e38, 2e38, 2.828_427e38),
            (f32::INFINITY, f32::NAN, f32::INFINITY),
            (f32::NAN, f32::NEG_INFINITY, f32::INFINITY),
        ] {
            assert_eq!(hypotf(x, y), length, "{x} {y}");
        }
        assert!(hypotf(f32::NAN, 1.0).is_nan());
    }
}
