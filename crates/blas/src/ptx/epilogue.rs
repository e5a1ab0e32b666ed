//! The kernel that converts a matrix, adds a vector to its columns and applies a function.

use super::{Domain, Register, Source, Value, Writer, emit};
use crate::abi::{Element, Real};

/// The function that is applied to each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    None,
    /// The larger of the element and 0.
    Relu,
    /// The Gaussian error linear unit, by the approximation with a hyperbolic tangent (D.
    /// Hendrycks, K. Gimpel, 2016). For floats alone.
    Gelu,
}

/// What decides the text of the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epilogue {
    pub(crate) source: Element,
    pub(crate) destination: Element,
    pub(crate) domain: Domain,
    pub(crate) bias: Option<Element>,
    pub(crate) activation: Activation,
}

impl Epilogue {
    pub(crate) fn name(&self) -> String {
        format!(
            "sluice_epilogue_{}_{}_{}_{}_{}",
            self.source.name(),
            self.destination.name(),
            self.domain.element().name(),
            self.bias.map_or("none", Element::name),
            match self.activation {
                Activation::None => "none",
                Activation::Relu => "relu",
                Activation::Gelu => "gelu",
            }
        )
    }

    /// Parameters: the addresses of the source, the destination and the bias; rows, columns and
    /// matrices; elements from one column and one matrix to the next, of the source and of the
    /// destination; elements of the bias from one row, one column and one matrix to the next.
    pub(crate) fn source(&self, name: &str) -> Source {
        let mut writer = Writer::new(name);
        let w = &mut writer;
        let domain = self.domain;
        let [source, destination, bias] = w.params();
        let [rows, columns, batch] = w.params();
        let steps: [[Register; 2]; 2] = std::array::from_fn(|_| w.params());
        let bias_steps: [Register; 3] = w.params();
        w.each_of_thread('z', batch, |w, item| {
            w.each_of_thread('y', columns, |w, j| {
                w.each_of_thread('x', rows, |w, i| {
                    let at = |w: &mut Writer, base, [column, matrix]: [Register; 2], element: Element| {
                        let index = w.multiply_add(j, column, i);
                        let index = w.multiply_add(item, matrix, index);
                        w.address(base, index, element.bytes())
                    };
                    let from = at(w, source, steps[0], self.source);
                    let mut value = domain.load(w, self.source, from);
                    if let Some(element) = self.bias {
                        let index = w.binary("mul.lo.s64", i, bias_steps[0]);
                        let index = w.multiply_add(j, bias_steps[1], index);
                        let index = w.multiply_add(item, bias_steps[2], index);
                        let place = w.address(bias, index, element.bytes());
                        let added = domain.load(w, element, place);
                        let one = domain.constant(w, 1);
                        value = domain.fma(w, one, value, added);
                    }
                    let value = self.activated(w, value);
                    let to = at(w, destination, steps[1], self.destination);
                    domain.store(w, self.destination, to, value);
                });
            });
        });
        writer.finish()
    }

    fn activated(&self, w: &mut Writer, value: Value) -> Value {
        match (self.activation, value) {
            (Activation::Relu, Value::Real(x)) => {
                let zero = self.domain.real.constant(w, 0);
                Value::Real(self.domain.real.binary(w, "max", x, zero))
            }
            (Activation::Gelu, Value::Real(x)) if self.domain.real == Real::F32 => Value::Real(gelu(w, x)),
            _ => value,
        }
    }
}

/// `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
fn gelu(w: &mut Writer, x: Register) -> Register {
    let float = |value: f32| format!("0f{:08x}", value.to_bits());
    let square = w.binary("mul.rn.f32", x, x);
    let cube = w.binary("mul.rn.f32", square, x);
    let part = w.binary("mul.rn.f32", cube, float(0.044_715));
    let sum = w.binary("add.rn.f32", part, x);
    let argument = w.binary("mul.rn.f32", sum, float((2.0 / std::f32::consts::PI).sqrt()));
    let tangent = w.register(x.class);
    emit!(w, "tanh.approx.f32 {tangent}, {argument}");
    let factor = w.binary("add.rn.f32", tangent, float(1.0));
    let half = w.binary("mul.rn.f32", x, float(0.5));
    w.binary("mul.rn.f32", half, factor)
}
