//! Writes the kernels' PTX. All parameters have 64 bits.
//!
//! [`words`], [`mersenne`] and [`sobol`] continue a generator's sequence; [`distribution`] makes
//! numbers of its words in place, with the functions of [`math`].

mod math;

pub(crate) mod distribution;
pub(crate) mod mersenne;
pub(crate) mod sobol;
pub(crate) mod words;

use sluice_library_base::writer::{Class, Register, Writer, emit};

/// The lower half of a number of 64 bits.
fn low(w: &mut Writer, wide: Register) -> Register {
    let narrow = w.register(Class::B32);
    emit!(w, "cvt.u32.u64 {narrow}, {wide}");
    narrow
}

/// A number of 32 bits, without its sign, as one of 64.
fn wide(w: &mut Writer, narrow: Register) -> Register {
    let wide = w.register(Class::B64);
    emit!(w, "cvt.u64.u32 {wide}, {narrow}");
    wide
}

#[cfg(test)]
mod tests {
    use sluice_library_base::writer::Source;

    use super::distribution::{Distribution, Shape};
    use crate::abi::{Kind, Precision};

    /// Lowers a kernel to the software GPU's intermediate form, whose verifier checks the type of
    /// every value.
    fn check(name: &str, source: &Source) {
        let text = &source.text;
        let module = sluice_ptx::parse(text).unwrap_or_else(|error| panic!("{name}: {error:?}\n{text}"));
        let kernel = sluice_ir::lower::lower_kernel(&module, name)
            .unwrap_or_else(|error| panic!("{name}: {error:?}\n{text}"));
        sluice_ir::verify::verify(&kernel).unwrap_or_else(|error| panic!("{name}: {error:?}\n{text}"));
    }

    #[test]
    fn all_kernels_compile() {
        check("a", &super::words::philox("a"));
        check("a", &super::words::xorwow("a"));
        check("a", &super::words::mrg("a"));
        check("a", &super::mersenne::source("a"));
        check("a", &super::sobol::source("a"));
        for kind in [Kind::Xorwow, Kind::Mrg32k3a, Kind::Mt19937, Kind::Philox4x32, Kind::Sobol32] {
            for precision in [Precision::Float, Precision::Double] {
                for shape in [Shape::Uniform, Shape::Normal, Shape::LogNormal, Shape::Poisson] {
                    let kernel = Distribution { kind, precision, shape };
                    check(&kernel.name(), &kernel.source(&kernel.name()));
                }
            }
        }
    }
}
