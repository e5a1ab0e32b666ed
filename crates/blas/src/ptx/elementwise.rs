//! Operations on the elements of matrices: sums, scaled rows or columns, packed triangles.

use super::emit;
use super::{Register, Scalar, Source, Value, Writer};
use crate::abi::{Element, Side, Triangle};

/// What happens to each element of `C`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixOperation {
    /// `C = alpha op(A) + beta op(B)`, which of both is conjugated
    Sum { conjugates: [bool; 2] },
    /// `C = diag(B) A`, or `A diag(B)`
    Scale(Side),
    /// A triangle of `C` from a vector, column by column
    Unpack(Triangle),
    /// A vector from a triangle of `A`
    Pack(Triangle),
    /// The whole `C` from a triangle of `A`
    Expand(Triangle, Shape),
}

/// What a matrix is of which a triangle is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Symmetric,
    Hermitian,
    Triangular,
    /// Triangular with ones on the diagonal.
    UnitTriangular,
}

/// What decides the text of the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatrixKernel {
    pub(crate) operation: MatrixOperation,
    pub(crate) element: Element,
}

/// A matrix as a kernel takes it: its address, and the elements from one row and one column to the
/// next.
pub(crate) type MatrixOperand = [u64; 3];

impl MatrixKernel {
    pub(crate) fn name(&self) -> String {
        let operation = match self.operation {
            MatrixOperation::Sum { conjugates: [a, b] } => {
                format!("geam{}{}", u8::from(a), u8::from(b))
            }
            MatrixOperation::Scale(Side::Left) => "dgmm_left".to_owned(),
            MatrixOperation::Scale(Side::Right) => "dgmm_right".to_owned(),
            MatrixOperation::Unpack(triangle) => format!("tpttr_{}", triangle as u8),
            MatrixOperation::Pack(triangle) => format!("trttp_{}", triangle as u8),
            MatrixOperation::Expand(triangle, shape) => {
                format!("expand_{}_{}", triangle as u8, shape as u8)
            }
        };
        format!("sluice_{operation}_{}", self.element.name())
    }

    /// Parameters: rows, columns, the places of A, B and C, `alpha`, `beta`.
    pub(crate) fn source(&self, name: &str) -> Source {
        let mut writer = Writer::new(name);
        let w = &mut writer;
        let (element, domain) = (self.element, self.element.domain());
        let [rows, columns] = w.params();
        let places: [[Register; 3]; 3] = std::array::from_fn(|_| w.params());
        let scalars = [Scalar::param(w), Scalar::param(w)];
        let scalars = scalars.map(|scalar| scalar.value(w, element, domain));
        let is_used = scalars.map(|scalar| domain.is_non_zero(w, scalar));
        w.each_of_thread('y', columns, |w, j| {
            w.each_of_thread('x', rows, |w, i| {
                let [a, b, c] = places.map(|[base, row, column]| {
                    let across = w.binary("mul.lo.s64", j, column);
                    let index = w.multiply_add(i, row, across);
                    w.address(base, index, element.bytes())
                });
                match self.operation {
                    MatrixOperation::Sum { conjugates } => {
                        let zero = domain.zero(w);
                        let sum = domain.variable(w, zero);
                        for (at, place) in [a, b].into_iter().enumerate() {
                            w.when(is_used[at], |w| {
                                let value = domain.load(w, element, place);
                                let value = match conjugates[at] {
                                    true => domain.conjugate(w, value),
                                    false => value,
                                };
                                let new = domain.fma(w, scalars[at], value, sum);
                                domain.assign(w, sum, new);
                            });
                        }
                        domain.store(w, element, c, sum);
                    }
                    MatrixOperation::Scale(side) => {
                        // The vector's step is in the place of B, in the dimension of its side.
                        let [base, step, _] = places[1];
                        let number = if side == Side::Left { i } else { j };
                        let index = w.binary("mul.lo.s64", number, step);
                        let factor = w.address(base, index, element.bytes());
                        let factor = domain.load(w, element, factor);
                        let value = domain.load(w, element, a);
                        let product = domain.multiply(w, factor, value);
                        domain.store(w, element, c, product);
                    }
                    MatrixOperation::Unpack(triangle) => {
                        self.packed(w, triangle, [i, j, rows], places[0][0], |w, packed| {
                            let value = domain.load(w, element, packed);
                            domain.store(w, element, c, value);
                        });
                    }
                    MatrixOperation::Expand(triangle, shape) => {
                        let value = self.expanded(w, triangle, shape, [i, j], places[0]);
                        domain.store(w, element, c, value);
                    }
                    MatrixOperation::Pack(triangle) => {
                        self.packed(w, triangle, [i, j, rows], places[2][0], |w, packed| {
                            let value: Value = domain.load(w, element, a);
                            domain.store(w, element, packed, value);
                        });
                    }
                }
            });
        });
        writer.finish()
    }

    /// The element of a whole matrix of which a triangle is stored.
    fn expanded(
        &self,
        w: &mut Writer,
        triangle: Triangle,
        shape: Shape,
        [i, j]: [Register; 2],
        [base, row, column]: [Register; 3],
    ) -> Value {
        let (element, domain) = (self.element, self.element.domain());
        let (larger, smaller) = (w.binary("max.s64", i, j), w.binary("min.s64", i, j));
        let (stored_row, stored_column) = match triangle {
            Triangle::Lower => (larger, smaller),
            Triangle::Upper => (smaller, larger),
        };
        let across = w.binary("mul.lo.s64", stored_column, column);
        let index = w.multiply_add(stored_row, row, across);
        let place = w.address(base, index, element.bytes());
        let value = domain.load(w, element, place);
        let is_stored = w.compare("eq.s64", stored_row, i);
        let is_diagonal = w.compare("eq.s64", i, j);
        let choose = |w: &mut Writer, condition: Register, a: Value, b: Value| match (a, b) {
            (Value::Complex(a0, a1), Value::Complex(b0, b1)) => {
                Value::Complex(w.select(condition, a0, b0), w.select(condition, a1, b1))
            }
            _ => Value::Real(w.select(condition, a.real(), b.real())),
        };
        let zero = domain.zero(w);
        match (shape, value) {
            (Shape::Hermitian, Value::Complex(re, _)) => {
                let conjugate = domain.conjugate(w, value);
                let chosen = choose(w, is_stored, value, conjugate);
                let real = Value::Complex(re, zero.real());
                choose(w, is_diagonal, real, chosen)
            }
            (Shape::Symmetric | Shape::Hermitian, value) => value,
            (Shape::Triangular, value) => choose(w, is_stored, value, zero),
            (Shape::UnitTriangular, value) => {
                let one = domain.constant(w, 1);
                let chosen = choose(w, is_stored, value, zero);
                choose(w, is_diagonal, one, chosen)
            }
        }
    }

    /// Writes code for elements inside a triangle, with their places in packed storage (BLAS,
    /// "TP"): `i + j (2 n - j - 1) / 2` in the lower one, `i + j (j + 1) / 2` in the upper one.
    fn packed(
        &self,
        w: &mut Writer,
        triangle: Triangle,
        [i, j, n]: [Register; 3],
        base: Register,
        body: impl FnOnce(&mut Writer, Register),
    ) {
        let is_lower = triangle == Triangle::Lower;
        let is_inside = w.compare(if is_lower { "ge.s64" } else { "le.s64" }, i, j);
        w.when(is_inside, |w| {
            let factor = if is_lower {
                let twice = w.add(n, n);
                let less = w.binary("sub.s64", twice, j);
                w.add(less, -1)
            } else {
                w.add(j, 1)
            };
            let product = w.binary("mul.lo.s64", j, factor);
            let half = w.integer(0);
            emit!(w, "shr.s64 {half}, {product}, 1");
            let index = w.add(i, half);
            let place = w.address(base, index, self.element.bytes());
            body(w, place);
        });
    }
}
