//! Products of matrices, one element of the result per thread.

use super::emit;
use super::{Register, Scalar, Source, Value, Writer};
use crate::abi::{Domain, Element, Triangle};

/// What decides the text of a product's kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectProduct {
    pub(crate) a: Element,
    pub(crate) b: Element,
    pub(crate) c: Element,
    /// The type of `alpha` and `beta`.
    pub(crate) scalar: Element,
    pub(crate) domain: Domain,
    pub(crate) conjugate_a: bool,
    pub(crate) conjugate_b: bool,
    /// Whether neighbours in a column of `op(A)` and in one of C are neighbours in memory.
    pub(crate) unit_a: bool,
    pub(crate) unit_c: bool,
    /// Whether matrices are given by arrays of pointers.
    pub(crate) by_pointers: bool,
    /// The only part of C that is read and written.
    pub(crate) triangle: Option<Triangle>,
    /// Whether the diagonal of C is real although C is complex.
    pub(crate) is_hermitian: bool,
}

/// The arguments of the kernel, in this order. Distances count elements.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DirectArguments {
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) c: u64,
    pub(crate) alpha: [u64; 3],
    pub(crate) beta: [u64; 3],
    /// Rows and columns of C, and the length of the sums.
    pub(crate) m: i64,
    pub(crate) n: i64,
    pub(crate) k: i64,
    pub(crate) a_steps: [i64; 2],
    pub(crate) b_steps: [i64; 2],
    pub(crate) c_steps: [i64; 2],
    /// The number of products, and the distance from one to the next of A, B and C.
    pub(crate) batch: i64,
    pub(crate) batch_steps: [i64; 3],
}

impl DirectArguments {
    pub(crate) fn words(&self) -> Vec<u64> {
        let mut words = vec![self.a, self.b, self.c];
        words.extend(self.alpha);
        words.extend(self.beta);
        let mut numbers = vec![self.m, self.n, self.k];
        numbers.extend(self.a_steps.into_iter().chain(self.b_steps).chain(self.c_steps));
        numbers.push(self.batch);
        numbers.extend(self.batch_steps);
        words.extend(numbers.into_iter().map(|number| number as u64));
        words
    }
}

impl DirectProduct {
    pub(crate) fn name(&self) -> String {
        let flag = |letter: &str, is_set: bool| if is_set { letter.to_owned() } else { String::new() };
        format!(
            "sluice_product_{}_{}_{}_{}_{}_{}{}{}{}{}{}{}",
            self.a.name(),
            self.b.name(),
            self.c.name(),
            self.scalar.name(),
            self.domain.element().name(),
            flag("a", self.conjugate_a),
            flag("b", self.conjugate_b),
            flag("u", self.unit_a),
            flag("v", self.unit_c),
            flag("p", self.by_pointers),
            flag("h", self.is_hermitian),
            match self.triangle {
                None => "",
                Some(Triangle::Lower) => "l",
                Some(Triangle::Upper) => "r",
            }
        )
    }

    /// Blocks are of any shape; x counts rows of C, y columns and z products.
    pub(crate) fn source(&self, name: &str) -> Source {
        let mut writer = Writer::new(name);
        let w = &mut writer;
        let [a, b, c] = w.params();
        let (alpha, beta) = (Scalar::param(w), Scalar::param(w));
        let [m, n, k] = w.params();
        let [a_row, a_sum, b_sum, b_column, c_row, c_column] = w.params();
        let [batch, a_batch, b_batch, c_batch] = w.params();
        let alpha = alpha.value(w, self.scalar, self.domain);
        let beta = beta.value(w, self.scalar, self.domain);
        let has_alpha = self.domain.is_non_zero(w, alpha);
        let has_beta = self.domain.is_non_zero(w, beta);
        // Without alpha neither A nor B is read (BLAS: GEMM).
        let zero = w.integer(0);
        let length = w.select(has_alpha, k, zero);
        let bases =
            [(a, a_batch, self.a.bytes()), (b, b_batch, self.b.bytes()), (c, c_batch, self.c.bytes())];
        w.each_of_thread('z', batch, |w, item| {
            let [a, b, c] = bases.map(|(base, step, bytes)| self.base(w, base, item, step, bytes));
            w.each_of_thread('y', n, |w, j| {
                w.each_of_thread('x', m, |w, i| {
                    let element = |w: &mut Writer| {
                        let a = step(w, a, i, a_row, self.unit_a, self.a.bytes());
                        let b = step(w, b, j, b_column, false, self.b.bytes());
                        let sum = self.sum(w, [a, b], [a_sum, b_sum], length);
                        let row = step(w, c, i, c_row, self.unit_c, self.c.bytes());
                        let place = step(w, row, j, c_column, false, self.c.bytes());
                        let result = self.domain.multiply(w, alpha, sum);
                        let result = self.domain.variable(w, result);
                        w.when(has_beta, |w| {
                            let old = self.domain.load(w, self.c, place);
                            let new = self.domain.fma(w, beta, old, result);
                            self.domain.assign(w, result, new);
                        });
                        self.make_diagonal_real(w, [i, j], result);
                        self.domain.store(w, self.c, place, result);
                    };
                    match self.triangle {
                        None => element(w),
                        Some(Triangle::Lower) => {
                            let is_inside = w.compare("ge.s64", i, j);
                            w.when(is_inside, element);
                        }
                        Some(Triangle::Upper) => {
                            let is_inside = w.compare("le.s64", i, j);
                            w.when(is_inside, element);
                        }
                    }
                });
            });
        });
        writer.finish()
    }

    fn make_diagonal_real(&self, w: &mut Writer, [i, j]: [Register; 2], result: Value) {
        if let (true, Value::Complex(_, im)) = (self.is_hermitian, result) {
            let is_diagonal = w.compare("eq.s64", i, j);
            let zero = self.domain.real.constant(w, 0);
            let part = w.select(is_diagonal, zero, im);
            w.assign(im, part);
        }
    }

    /// Where a matrix of a batch begins.
    fn base(&self, w: &mut Writer, base: Register, item: Register, step: Register, bytes: u64) -> Register {
        if !self.by_pointers {
            let elements = w.binary("mul.lo.s64", item, step);
            return w.address(base, elements, bytes);
        }
        let (place, pointer) = (w.address(base, item, 8), w.integer(0));
        emit!(w, "ld.global.u64 {pointer}, [{place}]");
        pointer
    }

    fn sum(&self, w: &mut Writer, starts: [Register; 2], steps: [Register; 2], length: Register) -> Value {
        let domain = self.domain;
        let zero = domain.zero(w);
        let sum = domain.variable(w, zero);
        let [a, b] = starts.map(|start| w.variable(start));
        let a_bytes = w.binary("mul.lo.s64", steps[0], self.a.bytes());
        let b_bytes = w.binary("mul.lo.s64", steps[1], self.b.bytes());
        let first = w.integer(0);
        w.each(first, length, 1, |w, _| {
            let mut left = domain.load(w, self.a, a);
            let mut right = domain.load(w, self.b, b);
            if self.conjugate_a {
                left = domain.conjugate(w, left);
            }
            if self.conjugate_b {
                right = domain.conjugate(w, right);
            }
            let new = domain.fma(w, left, right, sum);
            domain.assign(w, sum, new);
            emit!(w, "add.s64 {a}, {a}, {a_bytes}");
            emit!(w, "add.s64 {b}, {b}, {b_bytes}");
        });
        sum
    }
}

/// `base + index * step` elements; `is_unit` says that the step is 1.
fn step(
    w: &mut Writer,
    base: Register,
    index: Register,
    step: Register,
    is_unit: bool,
    bytes: u64,
) -> Register {
    if is_unit {
        return w.address(base, index, bytes);
    }
    let elements = w.binary("mul.lo.s64", index, step);
    w.address(base, elements, bytes)
}
