//! Writes the kernels' PTX. All parameters have 64 bits, and all counts and distances are signed.
//!
//! [`number`] has complex arithmetic, [`butterfly`] the transforms of a radix; [`passes`] and
//! [`layout`] write the kernels.

mod butterfly;
mod number;

pub(crate) mod layout;
pub(crate) mod passes;

use sluice_library_base::writer::{Register, Writer};

/// Splits the number of an element into its place within `size` and the rest.
fn split(w: &mut Writer, index: Register, size: Register) -> [Register; 2] {
    let quotient = w.binary("div.u64", index, size);
    let product = w.binary("mul.lo.s64", quotient, size);
    [w.binary("sub.s64", index, product), quotient]
}

#[cfg(test)]
mod tests {
    use sluice_library_base::writer::Source;

    use super::layout::{Copy, CopyForm};
    use super::passes::{Pass, TableProduct};
    use crate::abi::{Direction, Precision};

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
        for precision in [Precision::Float, Precision::Double] {
            for direction in [Direction::Forward, Direction::Inverse] {
                for radix in [2, 3, 4, 5, 7, 8, 11, 13] {
                    for is_first in [false, true] {
                        let kernel = Pass { precision, direction, radix, is_first };
                        check(&kernel.name(), &kernel.source(&kernel.name()));
                    }
                }
                let kernel = TableProduct { precision, direction };
                check(&kernel.name(), &kernel.source(&kernel.name()));
            }
            for form in [CopyForm::Complex, CopyForm::FromReal, CopyForm::FromHalf, CopyForm::ToReal] {
                let kernel = Copy { precision, form };
                check(&kernel.name(), &kernel.source(&kernel.name()));
            }
        }
    }
}
