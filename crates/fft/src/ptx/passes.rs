//! Kernels that transform lines of the work area: Stockham passes, and products with a table.
//!
//! The work area has complex numbers in three dimensions: `outer`, the line, and `inner`, so that
//! lines of any dimension of a transform are reached.

use sluice_library_base::writer::{Source, Writer};

use super::{butterfly, split};
use crate::abi::{Direction, Precision};

/// A pass of the Stockham algorithm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pass {
    pub(crate) precision: Precision,
    pub(crate) direction: Direction,
    pub(crate) radix: u32,
    /// Whether no pass has been before, so that all twiddles are 1.
    pub(crate) is_first: bool,
}

impl Pass {
    pub(crate) fn name(&self) -> String {
        let Pass { precision, direction, radix, is_first } = self;
        let first = if *is_first { "_first" } else { "" };
        format!("sluice_pass_{radix}_{direction:?}_{}{first}", precision.ty()).to_lowercase()
    }

    /// Parameters: source, destination, butterflies in all, butterflies of a line, `inner`, the
    /// length that earlier passes have made, the twiddles, and their distance in this pass.
    pub(crate) fn source(&self, name: &str) -> Source {
        let mut writer = Writer::new(name);
        let w = &mut writer;
        let (precision, radix) = (self.precision, u64::from(self.radix));
        let bytes = 2 * precision.bytes();
        let [from, to, count, of_line, inner, made, twiddles, distance] = w.params();
        w.each_of_thread('x', count, |w, number| {
            let [place, rest] = split(w, number, inner);
            let [butterfly, outer] = split(w, rest, of_line);
            // Elements of earlier lines.
            let before = w.binary("mul.lo.s64", outer, of_line);
            let before = w.binary("mul.lo.s64", before, radix);

            let first = w.add(before, butterfly);
            let first = w.multiply_add(first, inner, place);
            let step = w.binary("mul.lo.s64", of_line, inner);
            let mut numbers = Vec::new();
            for at in 0..radix {
                let index = w.multiply_add(step, at, first);
                let address = w.address(from, index, bytes);
                numbers.push(precision.load(w, address));
            }

            let mut first = w.binary("mul.lo.s64", butterfly, radix);
            if !self.is_first {
                let [within, _] = split(w, butterfly, made);
                let entry = w.binary("mul.lo.s64", within, distance);
                for (at, number) in numbers.iter_mut().enumerate().skip(1) {
                    let index = w.binary("mul.lo.s64", entry, at);
                    let address = w.address(twiddles, index, bytes);
                    let twiddle = precision.load_table(w, self.direction, address);
                    *number = precision.multiply(w, *number, twiddle);
                }
                let others = w.binary("mul.lo.s64", within, radix - 1);
                first = w.binary("sub.s64", first, others);
            }
            let results = butterfly::transform(w, precision, self.direction, &numbers);

            let first = w.add(before, first);
            let first = w.multiply_add(first, inner, place);
            let step = w.binary("mul.lo.s64", made, inner);
            for (at, result) in results.into_iter().enumerate() {
                let index = w.multiply_add(step, at, first);
                let address = w.address(to, index, bytes);
                precision.store(w, address, result);
            }
        });
        writer.finish()
    }
}

/// The product of each line with a table, cut or filled with zeros to another length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableProduct {
    pub(crate) precision: Precision,
    pub(crate) direction: Direction,
}

impl TableProduct {
    pub(crate) fn name(&self) -> String {
        let TableProduct { precision, direction } = self;
        format!("sluice_table_product_{direction:?}_{}", precision.ty()).to_lowercase()
    }

    /// Parameters: source, destination, results in all, `inner`, the lengths of the destination's
    /// and the source's lines, the table.
    pub(crate) fn source(&self, name: &str) -> Source {
        let mut writer = Writer::new(name);
        let w = &mut writer;
        let precision = self.precision;
        let bytes = 2 * precision.bytes();
        let [from, to, count, inner, new_length, length, table] = w.params();
        w.each_of_thread('x', count, |w, number| {
            let [place, rest] = split(w, number, inner);
            let [element, outer] = split(w, rest, new_length);
            let destination = w.address(to, number, bytes);
            let is_there = w.compare("lt.s64", element, length);
            w.either(
                is_there,
                |w| {
                    let index = w.multiply_add(outer, length, element);
                    let index = w.multiply_add(index, inner, place);
                    let address = w.address(from, index, bytes);
                    let value = precision.load(w, address);
                    let address = w.address(table, element, bytes);
                    let factor = precision.load_table(w, self.direction, address);
                    let product = precision.multiply(w, value, factor);
                    precision.store(w, destination, product);
                },
                |w| {
                    let zero = precision.constant(w, 0.0);
                    precision.store(w, destination, super::number::Complex(zero, zero));
                },
            );
        });
        writer.finish()
    }
}
