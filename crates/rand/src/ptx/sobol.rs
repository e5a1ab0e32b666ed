//! The kernel of Sobol' sequences.

use sluice_library_base::writer::{Class, Source, Writer, emit};

use super::low;
use crate::engine::sobol::BITS;

/// Parameters: the results' address, the bytes from one to the next, the points, the dimensions,
/// the number of the first point, the address of the direction numbers. The first coordinates of
/// all points come first.
pub(crate) fn source(name: &str) -> Source {
    let mut writer = Writer::new(name);
    let w = &mut writer;
    let [results, distance, points, dimensions, position, directions] = w.params();
    w.each_of_thread('y', dimensions, |w, dimension| {
        let numbers = w.address(directions, dimension, BITS as u64 * 4);
        w.each_of_thread('x', points, |w, point| {
            let number = w.add(position, point);
            let number = low(w, number);
            let half = w.binary("shr.u32", number, 1);
            // The Gray code, whose order the sequence has.
            let code = w.binary("xor.b32", number, half);
            let mut x = w.register(Class::B32);
            emit!(w, "mov.u32 {x}, 0");
            for bit in 0..BITS {
                let direction = w.register(Class::B32);
                emit!(w, "ld.global.u32 {direction}, [{numbers}+{}]", bit * 4);
                let shifted = w.binary("shl.b32", code, BITS - 1 - bit);
                let mask = w.binary("shr.s32", shifted, 31);
                let taken = w.binary("and.b32", direction, mask);
                x = w.binary("xor.b32", x, taken);
            }
            let index = w.multiply_add(dimension, points, point);
            let at = w.multiply_add(index, distance, results);
            emit!(w, "st.global.u32 [{at}], {x}");
        });
    });
    writer.finish()
}
