//! Operations on the elements of vectors.

use super::{Register, Scalar, Source, Value, Writer};
use crate::abi::{Domain, Element};

/// What happens to elements `x` and `y`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VectorOperation {
    /// `y = alpha x + y`
    Axpy,
    /// `x = alpha x`
    Scale,
    /// `y = x`
    Copy,
    /// `x, y = y, x`
    Swap,
    /// `x, y = c x + s y, c y - conj(s) x`, where `alpha` is `c` and `beta` is `s`
    Rotate,
}

/// What decides the text of a kernel on vectors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VectorKernel {
    pub(crate) operation: VectorOperation,
    pub(crate) x: Element,
    pub(crate) y: Element,
    /// The types of `alpha` and `beta`, which may be real where the elements are complex.
    pub(crate) scalars: [Element; 2],
    pub(crate) domain: Domain,
    /// Whether the elements of both vectors are neighbours in memory.
    pub(crate) is_unit: bool,
}

impl VectorKernel {
    pub(crate) fn name(&self) -> String {
        format!(
            "sluice_{}_{}_{}_{}_{}{}",
            match self.operation {
                VectorOperation::Axpy => "axpy",
                VectorOperation::Scale => "scale",
                VectorOperation::Copy => "copy",
                VectorOperation::Swap => "swap",
                VectorOperation::Rotate => "rotate",
            },
            self.x.name(),
            self.y.name(),
            self.scalars[0].name(),
            self.scalars[1].name(),
            if self.is_unit { "_u" } else { "" }
        )
    }

    /// Parameters: the number of elements, `x` and its step, `y` and its step, `alpha`, `beta`.
    pub(crate) fn source(&self, name: &str) -> Source {
        let mut writer = Writer::new(name);
        let w = &mut writer;
        let [count, x, x_step, y, y_step] = w.params();
        let scalars = [Scalar::param(w), Scalar::param(w)];
        let [alpha, beta] = [0, 1].map(|at| scalars[at].value(w, self.scalars[at], self.domain));
        w.each_of_thread('x', count, |w, i| {
            let place = |w: &mut Writer, base: Register, step: Register, element: Element| {
                let index = if self.is_unit { i } else { w.binary("mul.lo.s64", i, step) };
                w.address(base, index, element.bytes())
            };
            let x = place(w, x, x_step, self.x);
            let y = place(w, y, y_step, self.y);
            self.element(w, x, y, [alpha, beta]);
        });
        writer.finish()
    }

    fn element(&self, w: &mut Writer, x: Register, y: Register, [alpha, beta]: [Value; 2]) {
        let domain = self.domain;
        let old_x = domain.load(w, self.x, x);
        match self.operation {
            VectorOperation::Axpy => {
                let old_y = domain.load(w, self.y, y);
                let new = domain.fma(w, alpha, old_x, old_y);
                domain.store(w, self.y, y, new);
            }
            VectorOperation::Scale => {
                let new = domain.multiply(w, alpha, old_x);
                domain.store(w, self.x, x, new);
            }
            VectorOperation::Copy => domain.store(w, self.y, y, old_x),
            VectorOperation::Swap => {
                let old_y = domain.load(w, self.y, y);
                domain.store(w, self.x, x, old_y);
                domain.store(w, self.y, y, old_x);
            }
            VectorOperation::Rotate => {
                let old_y = domain.load(w, self.y, y);
                let product = domain.multiply(w, beta, old_y);
                let new_x = domain.fma(w, alpha, old_x, product);
                let conjugate = domain.conjugate(w, beta);
                let product = domain.multiply(w, conjugate, old_x);
                let rotated = domain.multiply(w, alpha, old_y);
                let new_y = domain.subtract(w, rotated, product);
                domain.store(w, self.x, x, new_x);
                domain.store(w, self.y, y, new_y);
            }
        }
    }
}
