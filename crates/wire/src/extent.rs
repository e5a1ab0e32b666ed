//! How much memory the arguments of a call stand for. The numbers come from programs and peers:
//! what overflows is more than any machine has.

/// A length in several factors, such as elements and their size.
pub fn product(factors: &[u64]) -> u64 {
    factors.iter().fold(1, |product: u64, factor| product.saturating_mul(*factor))
}

/// From the first byte of the first row to the last of the last: `count` rows of `length` bytes,
/// `pitch` bytes apart. Rows that overlap count as more than any machine has: some drivers take a
/// pitch that is too small for a dense one.
pub fn rows(count: u64, length: u64, pitch: u64) -> u64 {
    match count.checked_sub(1) {
        Some(1..) if length > pitch => u64::MAX,
        Some(before) if length > 0 => before.saturating_mul(pitch).saturating_add(length),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_overlap_are_nobodys() {
        assert_eq!(rows(2, 10, 9), u64::MAX);
        assert_eq!(rows(1, 10, 0), 10);
    }

    #[test]
    fn a_pitch_ends_with_the_last_row() {
        assert_eq!(rows(3, 10, 16), 42);
        assert_eq!(rows(0, 10, 16), 0);
        assert_eq!(rows(7, 0, 16), 0);
    }

    #[test]
    fn overflow_is_as_large_as_it_gets() {
        assert_eq!(product(&[u64::MAX, 4]), u64::MAX);
        assert_eq!(rows(u64::MAX, 8, u64::MAX), u64::MAX);
    }
}
