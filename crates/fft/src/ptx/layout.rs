//! The kernel that copies between the caller's layouts and the work area.

use sluice_library_base::writer::{Register, Source, Writer};

use super::number::Complex;
use super::split;
use crate::abi::Precision;

/// What the source and the destination hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyForm {
    Complex,
    /// Real numbers become complex ones.
    FromReal,
    /// The first half of the complex numbers of a real transform become all of them.
    FromHalf,
    /// The real parts of complex numbers.
    ToReal,
}

/// What decides the text of the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub(crate) precision: Precision,
    pub(crate) form: CopyForm,
}

impl Copy {
    pub(crate) fn name(&self) -> String {
        format!("sluice_copy_{:?}_{}", self.form, self.precision.ty()).to_lowercase()
    }

    /// Parameters: source, destination, elements in all, the three dimensions, and the elements
    /// from one to the next in each dimension and from one transform to the next, of the source and
    /// of the destination.
    pub(crate) fn source(&self, name: &str) -> Source {
        let mut writer = Writer::new(name);
        let w = &mut writer;
        let precision = self.precision;
        let [from, to, count] = w.params();
        let dimensions: [Register; 3] = w.params();
        let steps: [[Register; 4]; 2] = std::array::from_fn(|_| w.params());
        let real = precision.bytes();
        let [source_bytes, destination_bytes] = match self.form {
            CopyForm::Complex | CopyForm::FromHalf => [2 * real, 2 * real],
            CopyForm::FromReal => [real, 2 * real],
            CopyForm::ToReal => [2 * real, real],
        };
        w.each_of_thread('x', count, |w, number| {
            let [z, rest] = split(w, number, dimensions[2]);
            let [y, rest] = split(w, rest, dimensions[1]);
            let [x, transform] = split(w, rest, dimensions[0]);
            let place = [x, y, z, transform];
            let source = match self.form {
                CopyForm::FromHalf => half(w, place, dimensions),
                _ => (place, None),
            };
            let address = at(w, from, source.0, steps[0], source_bytes);
            let destination = at(w, to, place, steps[1], destination_bytes);
            match self.form {
                CopyForm::Complex => {
                    let value = precision.load(w, address);
                    precision.store(w, destination, value);
                }
                CopyForm::FromReal => {
                    let value = precision.load_real(w, address, 0);
                    let zero = precision.constant(w, 0.0);
                    precision.store(w, destination, Complex(value, zero));
                }
                CopyForm::FromHalf => {
                    let value = precision.load(w, address);
                    let conjugate = precision.conjugate(w, value);
                    let im = match source.1 {
                        Some(is_stored) => w.select(is_stored, value.1, conjugate.1),
                        None => value.1,
                    };
                    precision.store(w, destination, Complex(value.0, im));
                }
                CopyForm::ToReal => {
                    let value = precision.load_real(w, address, 0);
                    precision.store_real(w, destination, 0, value);
                }
            }
        });
        writer.finish()
    }
}

/// The address of an element.
fn at(w: &mut Writer, base: Register, place: [Register; 4], steps: [Register; 4], bytes: u64) -> Register {
    let mut index = w.binary("mul.lo.s64", place[0], steps[0]);
    for dimension in 1..4 {
        index = w.multiply_add(place[dimension], steps[dimension], index);
    }
    w.address(base, index, bytes)
}

/// The place at which an element or its conjugate is stored, and whether it is the element: those
/// behind the middle of the last dimension are the conjugates of those at the negative place.
fn half(
    w: &mut Writer,
    [x, y, z, transform]: [Register; 4],
    dimensions: [Register; 3],
) -> ([Register; 4], Option<Register>) {
    let middle = w.binary("shr.s64", dimensions[2], 1);
    let is_stored = w.compare("le.s64", z, middle);
    let mirrored = [(x, dimensions[0]), (y, dimensions[1]), (z, dimensions[2])].map(|(at, size)| {
        let negative = w.binary("sub.s64", size, at);
        let is_zero = w.compare("eq.s64", at, 0);
        let negative = w.select(is_zero, at, negative);
        w.select(is_stored, at, negative)
    });
    ([mirrored[0], mirrored[1], mirrored[2], transform], Some(is_stored))
}
