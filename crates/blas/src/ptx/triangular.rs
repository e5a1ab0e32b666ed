//! Triangular systems, and products with symmetric matrices of which a triangle is stored.

use super::{Register, Scalar, Source, Value, Writer};
use crate::abi::{Diagonal, Element, Triangle};

/// Solves `M X = alpha B` in place, one system per thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Solve {
    pub(crate) element: Element,
    /// Which triangle of `M` is not zero; `M` is what the caller's matrix becomes.
    pub(crate) triangle: Triangle,
    pub(crate) diagonal: Diagonal,
    pub(crate) conjugates: bool,
    /// Whether neighbouring systems are neighbours in memory.
    pub(crate) is_unit: bool,
    /// Whether matrices are given by arrays of pointers.
    pub(crate) by_pointers: bool,
}

impl Solve {
    pub(crate) fn name(&self) -> String {
        format!(
            "sluice_trsm_{}_{}{}{}{}{}",
            self.element.name(),
            self.triangle as u8,
            self.diagonal as u8,
            u8::from(self.conjugates),
            u8::from(self.is_unit),
            u8::from(self.by_pointers)
        )
    }

    /// Parameters: the order of `M`, the number of systems, `M` and its distances between rows and
    /// columns, `X` and its distances between elements and systems, the batch, `alpha`.
    pub(crate) fn source(&self, name: &str) -> Source {
        let mut writer = Writer::new(name);
        let w = &mut writer;
        let (element, domain) = (self.element, self.element.domain());
        let [order, systems] = w.params();
        let [m, m_row, m_column] = w.params();
        let [x, x_step, x_system] = w.params();
        let [batch] = w.params();
        let alpha = Scalar::param(w).value(w, element, domain);
        let has_alpha = domain.is_non_zero(w, alpha);
        let zero = w.integer(0);
        w.each_of_thread('z', batch, |w, item| {
            let [m, x] = [m, x].map(|base| {
                if !self.by_pointers {
                    return base;
                }
                let place = w.address(base, item, 8);
                let pointer = w.integer(0);
                super::emit!(w, "ld.global.u64 {pointer}, [{place}]");
                pointer
            });
            w.each_of_thread('x', systems, |w, system| {
                let start = match self.is_unit {
                    true => w.address(x, system, element.bytes()),
                    false => offset(w, x, system, x_system, element),
                };
                w.each(zero, order, 1, |w, number| {
                    // The upper triangle is solved from its end.
                    let row = |w: &mut Writer, number: Register| match self.triangle {
                        Triangle::Lower => number,
                        Triangle::Upper => {
                            let last = w.add(order, -1);
                            w.binary("sub.s64", last, number)
                        }
                    };
                    let i = row(w, number);
                    let own = offset(w, start, i, x_step, element);
                    w.either(
                        has_alpha,
                        |w| {
                            let right = domain.load(w, element, own);
                            let right = domain.multiply(w, alpha, right);
                            let rest = domain.variable(w, right);
                            let line = offset(w, m, i, m_row, element);
                            let factor = |w: &mut Writer, k: Register| {
                                let place = offset(w, line, k, m_column, element);
                                let factor = domain.load(w, element, place);
                                if self.conjugates { domain.conjugate(w, factor) } else { factor }
                            };
                            w.each(zero, number, 1, |w, known| {
                                let k = row(w, known);
                                let factor = factor(w, k);
                                let place = offset(w, start, k, x_step, element);
                                let value = domain.load(w, element, place);
                                let product = domain.multiply(w, factor, value);
                                let new = domain.subtract(w, rest, product);
                                domain.assign(w, rest, new);
                            });
                            if self.diagonal == Diagonal::NonUnit {
                                let divisor = factor(w, i);
                                let quotient = domain.divide(w, rest, divisor);
                                domain.assign(w, rest, quotient);
                            }
                            domain.store(w, element, own, rest);
                        },
                        |w| {
                            let nothing = domain.zero(w);
                            domain.store(w, element, own, nothing);
                        },
                    );
                });
            });
        });
        writer.finish()
    }
}

/// `y = alpha A x + beta y` for a symmetric or Hermitian matrix, one row per thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SymmetricVector {
    pub(crate) element: Element,
    pub(crate) triangle: Triangle,
    pub(crate) is_hermitian: bool,
    /// Whether diagonals are stored as rows (BLAS, "SB").
    pub(crate) is_band: bool,
}

impl SymmetricVector {
    pub(crate) fn name(&self) -> String {
        format!(
            "sluice_{}{}_{}_{}",
            if self.is_hermitian { "he" } else { "sy" },
            if self.is_band { "bmv" } else { "mv" },
            self.element.name(),
            self.triangle as u8
        )
    }

    /// Parameters: the order, the number of diagonals on a side, A and its leading dimension, `x`
    /// and its step, `y` and its step, `alpha`, `beta`.
    pub(crate) fn source(&self, name: &str) -> Source {
        let mut writer = Writer::new(name);
        let w = &mut writer;
        let (element, domain) = (self.element, self.element.domain());
        let [order, diagonals] = w.params();
        let [a, leading, x, x_step, y, y_step] = w.params();
        let scalars = [Scalar::param(w), Scalar::param(w)];
        let [alpha, beta] = scalars.map(|scalar| scalar.value(w, element, domain));
        let has_alpha = domain.is_non_zero(w, alpha);
        let has_beta = domain.is_non_zero(w, beta);
        let zero = w.integer(0);
        w.each_of_thread('x', order, |w, i| {
            let nothing = domain.zero(w);
            let sum = domain.variable(w, nothing);
            w.when(has_alpha, |w| {
                let low = w.binary("sub.s64", i, diagonals);
                let low = w.binary("max.s64", low, zero);
                let high = w.add(i, diagonals);
                let high = w.add(high, 1);
                let high = w.binary("min.s64", high, order);
                w.each(low, high, 1, |w, j| {
                    let place = offset(w, x, j, x_step, element);
                    let factor = domain.load(w, element, place);
                    let value = self.load(w, [a, leading, diagonals], i, j);
                    let new = domain.fma(w, value, factor, sum);
                    domain.assign(w, sum, new);
                });
            });
            let place = offset(w, y, i, y_step, element);
            let result = domain.multiply(w, alpha, sum);
            let result = domain.variable(w, result);
            w.when(has_beta, |w| {
                let old = domain.load(w, element, place);
                let new = domain.fma(w, beta, old, result);
                domain.assign(w, result, new);
            });
            domain.store(w, element, place, result);
        });
        writer.finish()
    }

    /// The element of row `i` and column `j`, from the triangle that is stored.
    fn load(
        &self,
        w: &mut Writer,
        [a, leading, diagonals]: [Register; 3],
        i: Register,
        j: Register,
    ) -> Value {
        let (element, domain) = (self.element, self.element.domain());
        let (larger, smaller) = (w.binary("max.s64", i, j), w.binary("min.s64", i, j));
        let (row, column) = match self.triangle {
            Triangle::Lower => (larger, smaller),
            Triangle::Upper => (smaller, larger),
        };
        let row = match (self.is_band, self.triangle) {
            (false, _) => row,
            (true, Triangle::Lower) => w.binary("sub.s64", row, column),
            (true, Triangle::Upper) => {
                let above = w.binary("sub.s64", row, column);
                w.add(above, diagonals)
            }
        };
        let index = w.multiply_add(column, leading, row);
        let place = w.address(a, index, element.bytes());
        let value = domain.load(w, element, place);
        let (true, Value::Complex(re, im)) = (self.is_hermitian, value) else { return value };
        // The other triangle is the conjugate, and the diagonal is real.
        let real = domain.real;
        let (negative, nothing) = (real.unary(w, "neg", im), real.constant(w, 0));
        let comparison = match self.triangle {
            Triangle::Lower => "gt.s64",
            Triangle::Upper => "lt.s64",
        };
        let is_stored = w.compare(comparison, i, j);
        let im = w.select(is_stored, im, negative);
        let is_diagonal = w.compare("eq.s64", i, j);
        Value::Complex(re, w.select(is_diagonal, nothing, im))
    }
}

/// `base + index * step` elements.
fn offset(w: &mut Writer, base: Register, index: Register, step: Register, element: Element) -> Register {
    let elements = w.binary("mul.lo.s64", index, step);
    w.address(base, elements, element.bytes())
}
