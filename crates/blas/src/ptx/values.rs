//! Real and complex numbers in registers, and their forms in memory.

use super::emit;
use super::{Class, Register, Writer};
use crate::abi::{Domain, Element, Real};

/// A number in one or two registers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Real(Register),
    Complex(Register, Register),
}

/// A scalar argument: its value, or the address of its value in device memory if that is not 0.
pub(super) struct Scalar {
    address: Register,
    words: [Register; 2],
}

impl Real {
    pub(super) fn class(self) -> Class {
        match self {
            Real::F32 => Class::F32,
            Real::F64 => Class::F64,
            Real::I32 => Class::B32,
        }
    }

    /// The type in the names of arithmetic instructions.
    pub(super) fn ty(self) -> &'static str {
        match self {
            Real::F32 => "f32",
            Real::F64 => "f64",
            Real::I32 => "s32",
        }
    }

    /// A small integer as PTX's literal of this type.
    fn literal(self, value: i32) -> String {
        match self {
            Real::F32 => format!("0f{:08x}", (value as f32).to_bits()),
            Real::F64 => format!("0d{:016x}", f64::from(value).to_bits()),
            Real::I32 => value.to_string(),
        }
    }

    pub(super) fn constant(self, w: &mut Writer, value: i32) -> Register {
        let register = w.register(self.class());
        emit!(w, "mov.{} {register}, {}", self.ty(), self.literal(value));
        register
    }

    fn instruction(self, operation: &str) -> String {
        match (self, operation) {
            (Real::I32, "fma") => "mad.lo.s32".to_owned(),
            (Real::I32, "mul") => "mul.lo.s32".to_owned(),
            (Real::I32, _) => format!("{operation}.s32"),
            (real, "abs" | "neg" | "max" | "min") => format!("{operation}.{}", real.ty()),
            (real, _) => format!("{operation}.rn.{}", real.ty()),
        }
    }

    pub(super) fn binary(self, w: &mut Writer, operation: &str, a: Register, b: Register) -> Register {
        w.binary(&self.instruction(operation), a, b)
    }

    pub(super) fn unary(self, w: &mut Writer, operation: &str, a: Register) -> Register {
        let (result, instruction) = (w.register(a.class), self.instruction(operation));
        emit!(w, "{instruction} {result}, {a}");
        result
    }

    pub(super) fn fma(self, w: &mut Writer, a: Register, b: Register, c: Register) -> Register {
        let (result, instruction) = (w.register(a.class), self.instruction("fma"));
        emit!(w, "{instruction} {result}, {a}, {b}, {c}");
        result
    }
}

impl Domain {
    pub(super) fn constant(self, w: &mut Writer, value: i32) -> Value {
        let real = self.real.constant(w, value);
        if self.is_complex { Value::Complex(real, self.real.constant(w, 0)) } else { Value::Real(real) }
    }

    /// A variable with the value 0.
    pub(super) fn zero(self, w: &mut Writer) -> Value {
        self.constant(w, 0)
    }

    pub(super) fn assign(self, w: &mut Writer, to: Value, value: Value) {
        for (to, value) in to.parts().into_iter().zip(value.parts()) {
            w.assign(to, value);
        }
    }

    pub(super) fn variable(self, w: &mut Writer, value: Value) -> Value {
        value.map(|part| w.variable(part))
    }

    pub(super) fn subtract(self, w: &mut Writer, a: Value, b: Value) -> Value {
        match (a, b) {
            (Value::Complex(a0, a1), Value::Complex(b0, b1)) => {
                Value::Complex(self.real.binary(w, "sub", a0, b0), self.real.binary(w, "sub", a1, b1))
            }
            _ => Value::Real(self.real.binary(w, "sub", a.real(), b.real())),
        }
    }

    /// `a * b + c`. A real factor with a complex one multiplies both parts.
    pub(super) fn fma(self, w: &mut Writer, a: Value, b: Value, c: Value) -> Value {
        let real = self.real;
        match (a, b, c) {
            (Value::Complex(a0, a1), Value::Complex(b0, b1), Value::Complex(c0, c1)) => {
                let first = real.fma(w, a0, b0, c0);
                let negative = real.unary(w, "neg", a1);
                let re = real.fma(w, negative, b1, first);
                let first = real.fma(w, a0, b1, c1);
                Value::Complex(re, real.fma(w, a1, b0, first))
            }
            (Value::Real(a), Value::Complex(b0, b1), Value::Complex(c0, c1)) => {
                Value::Complex(real.fma(w, a, b0, c0), real.fma(w, a, b1, c1))
            }
            _ => Value::Real(real.fma(w, a.real(), b.real(), c.real())),
        }
    }

    pub(super) fn multiply(self, w: &mut Writer, a: Value, b: Value) -> Value {
        let real = self.real;
        match (a, b) {
            (Value::Complex(a0, a1), Value::Complex(b0, b1)) => {
                let product = real.binary(w, "mul", a1, b1);
                let negative = real.unary(w, "neg", product);
                let re = real.fma(w, a0, b0, negative);
                let product = real.binary(w, "mul", a1, b0);
                Value::Complex(re, real.fma(w, a0, b1, product))
            }
            (Value::Real(a), Value::Complex(b0, b1)) => {
                Value::Complex(real.binary(w, "mul", a, b0), real.binary(w, "mul", a, b1))
            }
            _ => Value::Real(real.binary(w, "mul", a.real(), b.real())),
        }
    }

    /// `a / b` of numbers that are not integers. The complex quotient scales the divisor by its
    /// larger part, so that no intermediate result overflows where the quotient does not.
    pub(super) fn divide(self, w: &mut Writer, a: Value, b: Value) -> Value {
        let real = self.real;
        let (Value::Complex(a0, a1), Value::Complex(b0, b1)) = (a, b) else {
            return Value::Real(real.binary(w, "div", a.real(), b.real()));
        };
        let (abs0, abs1) = (real.unary(w, "abs", b0), real.unary(w, "abs", b1));
        let scale = real.binary(w, "max", abs0, abs1);
        let [s0, s1] = [b0, b1].map(|part| real.binary(w, "div", part, scale));
        let product = real.binary(w, "mul", s1, b1);
        let norm = real.fma(w, s0, b0, product);
        let negative = real.unary(w, "neg", s1);
        let conjugate = Value::Complex(s0, negative);
        let numerator = self.multiply(w, Value::Complex(a0, a1), conjugate);
        numerator.map(|part| real.binary(w, "div", part, norm))
    }

    pub(super) fn conjugate(self, w: &mut Writer, value: Value) -> Value {
        match value {
            Value::Complex(re, im) => Value::Complex(re, self.real.unary(w, "neg", im)),
            real => real,
        }
    }

    /// Whether a number is not 0, which a NaN is not either.
    pub(super) fn is_non_zero(self, w: &mut Writer, value: Value) -> Register {
        let zero = self.real.constant(w, 0);
        let comparison = match self.real {
            Real::I32 => "ne.s32".to_owned(),
            real => format!("neu.{}", real.ty()),
        };
        let parts: Vec<Register> =
            value.parts().into_iter().map(|part| w.compare(&comparison, part, zero)).collect();
        match parts[..] {
            [re, im] => w.binary("or.pred", re, im),
            _ => parts[0],
        }
    }

    /// Loads an element from global memory and converts it to this arithmetic. A real element stays
    /// real in complex arithmetic.
    pub(super) fn load(self, w: &mut Writer, element: Element, address: Register) -> Value {
        self.load_from(w, "global", element, address)
    }

    pub(super) fn load_from(self, w: &mut Writer, space: &str, element: Element, address: Register) -> Value {
        let component = element.component();
        let bytes = component.bytes();
        let part = |w: &mut Writer, offset: u64| {
            let loaded = load_component(w, space, component, address, offset);
            convert(w, component, loaded, self.real)
        };
        let re = part(w, 0);
        if element.is_complex() { Value::Complex(re, part(w, bytes)) } else { Value::Real(re) }
    }

    /// Converts a number to an element and stores it in global memory.
    pub(super) fn store(self, w: &mut Writer, element: Element, address: Register, value: Value) {
        let component = element.component();
        for (place, part) in value.parts().into_iter().enumerate() {
            let offset = component.bytes() * place as u64;
            store_component(w, component, self.real, address, offset, part);
        }
    }
}

impl Value {
    pub(super) fn real(self) -> Register {
        match self {
            Value::Real(re) | Value::Complex(re, _) => re,
        }
    }

    pub(super) fn parts(self) -> Vec<Register> {
        match self {
            Value::Real(re) => vec![re],
            Value::Complex(re, im) => vec![re, im],
        }
    }

    pub(super) fn map(self, mut change: impl FnMut(Register) -> Register) -> Value {
        match self {
            Value::Real(re) => Value::Real(change(re)),
            Value::Complex(re, im) => Value::Complex(change(re), change(im)),
        }
    }
}

impl Scalar {
    /// Declares the three parameters of a scalar.
    pub(super) fn param(w: &mut Writer) -> Scalar {
        Scalar { address: w.param(), words: w.params() }
    }

    /// The scalar's value, of the element type that the caller passed it as.
    pub(super) fn value(&self, w: &mut Writer, element: Element, domain: Domain) -> Value {
        let is_in_memory = w.compare("ne.s64", self.address, 0);
        let part = |w: &mut Writer, word: Register| {
            let component = element.component();
            let bits = match component {
                Element::F16 | Element::Bf16 => {
                    let bits = w.register(Class::B16);
                    emit!(w, "cvt.u16.u64 {bits}, {word}");
                    bits
                }
                Element::F64 => {
                    let bits = w.register(Class::F64);
                    emit!(w, "mov.b64 {bits}, {word}");
                    bits
                }
                _ => {
                    let low = w.register(Class::B32);
                    emit!(w, "cvt.u32.u64 {low}, {word}");
                    if component == Element::F32 {
                        let bits = w.register(Class::F32);
                        emit!(w, "mov.b32 {bits}, {low}");
                        bits
                    } else {
                        low
                    }
                }
            };
            convert(w, component, bits, domain.real)
        };
        let re = part(w, self.words[0]);
        let value =
            if element.is_complex() { Value::Complex(re, part(w, self.words[1])) } else { Value::Real(re) };
        let value = domain.variable(w, value);
        w.when(is_in_memory, |w| {
            let loaded = domain.load(w, element, self.address);
            domain.assign(w, value, loaded);
        });
        value
    }
}

fn load_component(
    w: &mut Writer,
    space: &str,
    component: Element,
    address: Register,
    offset: u64,
) -> Register {
    let (class, ty) = match component {
        Element::I8 => (Class::B32, "s8"),
        Element::F16 | Element::Bf16 => (Class::B16, "b16"),
        Element::F64 => (Class::F64, "f64"),
        Element::I32 => (Class::B32, "s32"),
        _ => (Class::F32, "f32"),
    };
    let loaded = w.register(class);
    emit!(w, "ld.{space}.{ty} {loaded}, [{address}+{offset}]");
    loaded
}

/// A real element as it was loaded, in the arithmetic's type.
fn convert(w: &mut Writer, component: Element, loaded: Register, to: Real) -> Register {
    let from = match component {
        Element::F16 => {
            let float = w.register(Class::F32);
            emit!(w, "cvt.f32.f16 {float}, {loaded}");
            float
        }
        Element::Bf16 => {
            let (float, zero, bits) =
                (w.register(Class::F32), w.register(Class::B16), w.register(Class::B32));
            emit!(w, "mov.u16 {zero}, 0");
            emit!(w, "mov.b32 {bits}, {{{zero}, {loaded}}}");
            emit!(w, "mov.b32 {float}, {bits}");
            float
        }
        _ => loaded,
    };
    if from.class == to.class() {
        return from;
    }
    let result = w.register(to.class());
    match (from.class, to) {
        (Class::F32, Real::F64) => emit!(w, "cvt.f64.f32 {result}, {from}"),
        (Class::F64, Real::F32) => emit!(w, "cvt.rn.f32.f64 {result}, {from}"),
        (_, Real::F32) => emit!(w, "cvt.rn.f32.s32 {result}, {from}"),
        (_, Real::F64) => emit!(w, "cvt.rn.f64.s32 {result}, {from}"),
        (Class::F32, Real::I32) => emit!(w, "cvt.rni.s32.f32 {result}, {from}"),
        (_, Real::I32) => emit!(w, "cvt.rni.s32.f64 {result}, {from}"),
    }
    result
}

fn store_component(
    w: &mut Writer,
    component: Element,
    real: Real,
    address: Register,
    offset: u64,
    value: Register,
) {
    let narrowed = |w: &mut Writer, class: Class, conversion: &str| {
        let result = w.register(class);
        emit!(w, "{conversion} {result}, {value}");
        result
    };
    let (ty, value) = match (component, real) {
        (Element::F16, Real::F32) => ("b16", narrowed(w, Class::B16, "cvt.rn.f16.f32")),
        (Element::Bf16, Real::F32) => ("b16", narrowed(w, Class::B16, "cvt.rn.bf16.f32")),
        (Element::F32, Real::F64) => ("f32", narrowed(w, Class::F32, "cvt.rn.f32.f64")),
        (Element::F32, Real::I32) => ("f32", narrowed(w, Class::F32, "cvt.rn.f32.s32")),
        (Element::F64, _) => ("f64", value),
        (Element::I32, _) => ("s32", value),
        (Element::I8, _) => ("s8", value),
        _ => ("f32", value),
    };
    emit!(w, "st.global.{ty} [{address}+{offset}], {value}");
}
