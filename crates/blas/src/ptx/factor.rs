//! LU factors of batches of small matrices, and the exchanges of rows that belong to them.

use super::emit;
use super::{Class, Register, Source, Value, Writer};
use crate::abi::{Element, Real};

/// The threads of a block, which has one matrix.
pub(crate) const THREADS: u32 = 32;

/// Factors matrices in place: `P A = L U` with partial pivoting, or `A = L U` (LAPACK: GETRF).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Factor {
    pub(crate) element: Element,
    pub(crate) has_pivots: bool,
}

impl Factor {
    pub(crate) fn name(&self) -> String {
        format!("sluice_getrf_{}_{}", self.element.name(), u8::from(self.has_pivots))
    }

    /// Parameters: the order, the array of pointers to matrices, their leading dimension, the
    /// pivots (32 bits, `order` for each matrix), the place of an `info` for each matrix.
    pub(crate) fn source(&self, name: &str) -> Source {
        let mut writer = Writer::new(name);
        let w = &mut writer;
        let (element, domain) = (self.element, self.element.domain());
        let [order, matrices, leading, pivots, infos] = w.params();
        let (lane, item) = (w.special("tid.x"), w.special("ctaid.x"));
        let a = pointer(w, matrices, item);
        let at = |w: &mut Writer, row: Register, column: Register| {
            let index = w.multiply_add(column, leading, row);
            w.address(a, index, element.bytes())
        };
        let size_bytes = u64::from(domain.real == Real::F64) * 4 + 4;
        let sizes = w.shared("sizes", THREADS * size_bytes as u32);
        let places = w.shared("places", THREADS * 8);
        let zero = w.integer(0);
        let info = w.variable(zero);
        let first_pivot = w.binary("mul.lo.s64", item, order);
        w.each(zero, order, 1, |w, k| {
            let best = w.variable(k);
            if self.has_pivots {
                self.largest(w, [k, order, lane], at, [sizes, places, best]);
                self.exchange(w, [k, order, lane, best], at);
                let is_first = w.compare("eq.s64", lane, 0);
                w.when(is_first, |w| {
                    let (index, number) = (w.add(first_pivot, k), w.add(best, 1));
                    let place = w.address(pivots, index, 4);
                    store_integer(w, place, number);
                });
                w.barrier();
            }
            let diagonal = at(w, k, k);
            let pivot = domain.load(w, element, diagonal);
            let is_regular = domain.is_non_zero(w, pivot);
            let next = w.add(k, 1);
            let first_row = w.add(next, lane);
            w.either(
                is_regular,
                |w| {
                    w.each(first_row, order, THREADS, |w, i| {
                        let place = at(w, i, k);
                        let value = domain.load(w, element, place);
                        let factor = domain.divide(w, value, pivot);
                        domain.store(w, element, place, factor);
                    });
                },
                |w| {
                    let is_first = w.compare("eq.s64", info, 0);
                    let new = w.select(is_first, next, info);
                    w.assign(info, new);
                },
            );
            w.barrier();
            w.each(next, order, 1, |w, j| {
                let place = at(w, k, j);
                let right = domain.load(w, element, place);
                w.each(first_row, order, THREADS, |w, i| {
                    let (left, place) = (at(w, i, k), at(w, i, j));
                    let left = domain.load(w, element, left);
                    let old = domain.load(w, element, place);
                    let product = domain.multiply(w, left, right);
                    let new = domain.subtract(w, old, product);
                    domain.store(w, element, place, new);
                });
            });
            w.barrier();
        });
        let is_first = w.compare("eq.s64", lane, 0);
        w.when(is_first, |w| {
            let place = w.address(infos, item, 4);
            store_integer(w, place, info);
        });
        writer.finish()
    }

    /// Finds the row with the largest element of column `k` from row `k` on: into `best`.
    fn largest(
        &self,
        w: &mut Writer,
        [k, order, lane]: [Register; 3],
        at: impl Fn(&mut Writer, Register, Register) -> Register,
        [sizes, places, best]: [Register; 3],
    ) {
        let (element, domain) = (self.element, self.element.domain());
        let (real, ty) = (domain.real, domain.real.ty());
        let bytes = if real == Real::F64 { 8 } else { 4 };
        let none = real.constant(w, -1);
        let (size, place) = (w.variable(none), w.variable(k));
        let first = w.add(k, lane);
        let take = |w: &mut Writer, other: Register, row: Register, size: Register, place: Register| {
            let is_larger = w.compare(&format!("gt.{ty}"), other, size);
            let (new_size, new_place) = (w.select(is_larger, other, size), w.select(is_larger, row, place));
            w.assign(size, new_size);
            w.assign(place, new_place);
        };
        w.each(first, order, THREADS, |w, i| {
            let value = at(w, i, k);
            let value = domain.load(w, element, value);
            let parts: Vec<Register> =
                value.parts().into_iter().map(|part| real.unary(w, "abs", part)).collect();
            let own = match parts[..] {
                [re, im] => real.binary(w, "add", re, im),
                _ => parts[0],
            };
            take(w, own, i, size, place);
        });
        let own_size = w.address(sizes, lane, bytes);
        let own_place = w.address(places, lane, 8);
        emit!(w, "st.shared.{ty} [{own_size}], {size}");
        emit!(w, "st.shared.u64 [{own_place}], {place}");
        w.barrier();
        // All threads find the same one, the first of equals.
        w.assign(size, none);
        for number in 0..u64::from(THREADS) {
            let (other, row) = (w.register(real.class()), w.register(Class::B64));
            emit!(w, "ld.shared.{ty} {other}, [{sizes}+{}]", number * bytes);
            emit!(w, "ld.shared.u64 {row}, [{places}+{}]", number * 8);
            let is_equal = w.compare(&format!("eq.{ty}"), other, size);
            let is_before = w.compare("lt.s64", row, best);
            let wins = w.both(is_equal, is_before);
            let chosen = w.select(wins, row, best);
            w.assign(best, chosen);
            take(w, other, row, size, best);
        }
        w.barrier();
    }

    fn exchange(
        &self,
        w: &mut Writer,
        [k, order, lane, best]: [Register; 4],
        at: impl Fn(&mut Writer, Register, Register) -> Register,
    ) {
        let is_other = w.compare("ne.s64", best, k);
        w.when(is_other, |w| {
            w.each(lane, order, THREADS, |w, j| {
                let places = [at(w, k, j), at(w, best, j)];
                exchange(w, self.element, places);
            });
        });
        w.barrier();
    }
}

/// Exchanges rows as the pivots say (LAPACK: LASWP), of `B` or of an identity that `B` becomes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange {
    pub(crate) element: Element,
    pub(crate) has_pivots: bool,
    /// Whether from the last pivot to the first.
    pub(crate) backward: bool,
    pub(crate) of_identity: bool,
}

impl Exchange {
    pub(crate) fn name(&self) -> String {
        format!(
            "sluice_laswp_{}_{}{}{}",
            self.element.name(),
            u8::from(self.has_pivots),
            u8::from(self.backward),
            u8::from(self.of_identity)
        )
    }

    /// Parameters: the order, the columns of `B`, the array of pointers to matrices, their leading
    /// dimension, the pivots. A thread has a column; blocks in y have a matrix.
    pub(crate) fn source(&self, name: &str) -> Source {
        let mut writer = Writer::new(name);
        let w = &mut writer;
        let (element, domain) = (self.element, self.element.domain());
        let [order, columns, matrices, leading, pivots] = w.params();
        let item = w.special("ctaid.y");
        let b = pointer(w, matrices, item);
        let zero = w.integer(0);
        let first_pivot = w.binary("mul.lo.s64", item, order);
        w.each_of_thread('x', columns, |w, j| {
            let column = w.binary("mul.lo.s64", j, leading);
            let column = w.address(b, column, element.bytes());
            if self.of_identity {
                let (nothing, one) = (domain.zero(w), domain.constant(w, 1));
                w.each(zero, order, 1, |w, i| {
                    let is_diagonal = w.compare("eq.s64", i, j);
                    let real = w.select(is_diagonal, one.real(), nothing.real());
                    let value = match nothing {
                        Value::Complex(_, im) => Value::Complex(real, im),
                        Value::Real(_) => Value::Real(real),
                    };
                    let place = w.address(column, i, element.bytes());
                    domain.store(w, element, place, value);
                });
            }
            if !self.has_pivots {
                return;
            }
            w.each(zero, order, 1, |w, number| {
                let k = match self.backward {
                    false => number,
                    true => {
                        let last = w.add(order, -1);
                        w.binary("sub.s64", last, number)
                    }
                };
                let index = w.add(first_pivot, k);
                let place = w.address(pivots, index, 4);
                let (pivot, row) = (w.register(Class::B32), w.register(Class::B64));
                emit!(w, "ld.global.s32 {pivot}, [{place}]");
                emit!(w, "cvt.s64.s32 {row}, {pivot}");
                let row = w.add(row, -1);
                let places = [k, row].map(|row| w.address(column, row, element.bytes()));
                exchange(w, element, places);
            });
        });
        writer.finish()
    }
}

/// Says of factors which diagonal element of `U` is the first that is 0, counted from 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Singular {
    pub(crate) element: Element,
}

impl Singular {
    pub(crate) fn name(&self) -> String {
        format!("sluice_singular_{}", self.element.name())
    }

    /// Parameters: the order, the array of pointers to factors, their leading dimension, the place
    /// of an `info` for each, the number of matrices. A thread has a matrix.
    pub(crate) fn source(&self, name: &str) -> Source {
        let mut writer = Writer::new(name);
        let w = &mut writer;
        let (element, domain) = (self.element, self.element.domain());
        let [order, matrices, leading, infos, batch] = w.params();
        let zero = w.integer(0);
        w.each_of_thread('x', batch, |w, item| {
            let a = pointer(w, matrices, item);
            let info = w.variable(zero);
            w.each(zero, order, 1, |w, i| {
                let index = w.multiply_add(i, leading, i);
                let place = w.address(a, index, element.bytes());
                let pivot = domain.load(w, element, place);
                let is_regular = domain.is_non_zero(w, pivot);
                let is_known = w.compare("ne.s64", info, 0);
                let stays = w.binary("or.pred", is_regular, is_known);
                let number = w.add(i, 1);
                let new = w.select(stays, info, number);
                w.assign(info, new);
            });
            let place = w.address(infos, item, 4);
            store_integer(w, place, info);
        });
        writer.finish()
    }
}

fn exchange(w: &mut Writer, element: Element, [a, b]: [Register; 2]) {
    let domain = element.domain();
    let (first, second) = (domain.load(w, element, a), domain.load(w, element, b));
    domain.store(w, element, a, second);
    domain.store(w, element, b, first);
}

/// An element of an array of pointers.
fn pointer(w: &mut Writer, array: Register, index: Register) -> Register {
    let (place, pointer) = (w.address(array, index, 8), w.register(Class::B64));
    emit!(w, "ld.global.u64 {pointer}, [{place}]");
    pointer
}

fn store_integer(w: &mut Writer, place: Register, value: Register) {
    let narrow = w.register(Class::B32);
    emit!(w, "cvt.u32.u64 {narrow}, {value}");
    emit!(w, "st.global.u32 [{place}], {narrow}");
}
