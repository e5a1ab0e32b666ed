//! Complex numbers in registers, and their form in memory.

use sluice_library_base::writer::{Class, Register, Writer, emit};

use crate::abi::{Direction, Precision};

/// A complex number: its real and its imaginary part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Complex(pub(super) Register, pub(super) Register);

impl Precision {
    fn class(self) -> Class {
        match self {
            Precision::Float => Class::F32,
            Precision::Double => Class::F64,
        }
    }

    /// The type in instructions and in the names of kernels.
    pub(super) fn ty(self) -> &'static str {
        match self {
            Precision::Float => "f32",
            Precision::Double => "f64",
        }
    }

    pub(super) fn constant(self, w: &mut Writer, value: f64) -> Register {
        let register = w.register(self.class());
        match self {
            Precision::Float => {
                emit!(w, "mov.f32 {register}, 0f{:08x}", (value as f32).to_bits());
            }
            Precision::Double => emit!(w, "mov.f64 {register}, 0d{:016x}", value.to_bits()),
        }
        register
    }

    fn binary(self, w: &mut Writer, operation: &str, a: Register, b: Register) -> Register {
        w.binary(&format!("{operation}.rn.{}", self.ty()), a, b)
    }

    fn negative(self, w: &mut Writer, a: Register) -> Register {
        let result = w.register(self.class());
        emit!(w, "neg.{} {result}, {a}", self.ty());
        result
    }

    fn fma(self, w: &mut Writer, a: Register, b: Register, c: Register) -> Register {
        let result = w.register(self.class());
        emit!(w, "fma.rn.{} {result}, {a}, {b}, {c}", self.ty());
        result
    }

    pub(super) fn add(self, w: &mut Writer, a: Complex, b: Complex) -> Complex {
        Complex(self.binary(w, "add", a.0, b.0), self.binary(w, "add", a.1, b.1))
    }

    pub(super) fn subtract(self, w: &mut Writer, a: Complex, b: Complex) -> Complex {
        Complex(self.binary(w, "sub", a.0, b.0), self.binary(w, "sub", a.1, b.1))
    }

    pub(super) fn multiply(self, w: &mut Writer, a: Complex, b: Complex) -> Complex {
        let product = self.binary(w, "mul", a.1, b.1);
        let product = self.negative(w, product);
        let re = self.fma(w, a.0, b.0, product);
        let product = self.binary(w, "mul", a.1, b.0);
        Complex(re, self.fma(w, a.0, b.1, product))
    }

    /// `a * factor + b` for a real factor.
    pub(super) fn scaled_sum(self, w: &mut Writer, a: Complex, factor: Register, b: Complex) -> Complex {
        Complex(self.fma(w, a.0, factor, b.0), self.fma(w, a.1, factor, b.1))
    }

    pub(super) fn scale(self, w: &mut Writer, a: Complex, factor: Register) -> Complex {
        Complex(self.binary(w, "mul", a.0, factor), self.binary(w, "mul", a.1, factor))
    }

    pub(super) fn conjugate(self, w: &mut Writer, a: Complex) -> Complex {
        Complex(a.0, self.negative(w, a.1))
    }

    /// A number turned by a quarter: times `-i` forward, and `i` in the inverse transform.
    pub(super) fn quarter(self, w: &mut Writer, direction: Direction, a: Complex) -> Complex {
        match direction {
            Direction::Forward => Complex(a.1, self.negative(w, a.0)),
            Direction::Inverse => Complex(self.negative(w, a.1), a.0),
        }
    }

    pub(super) fn load_real(self, w: &mut Writer, address: Register, offset: u64) -> Register {
        let value = w.register(self.class());
        emit!(w, "ld.global.{} {value}, [{address}+{offset}]", self.ty());
        value
    }

    pub(super) fn store_real(self, w: &mut Writer, address: Register, offset: u64, value: Register) {
        emit!(w, "st.global.{} [{address}+{offset}], {value}", self.ty());
    }

    pub(super) fn load(self, w: &mut Writer, address: Register) -> Complex {
        Complex(self.load_real(w, address, 0), self.load_real(w, address, self.bytes()))
    }

    pub(super) fn store(self, w: &mut Writer, address: Register, value: Complex) {
        self.store_real(w, address, 0, value.0);
        self.store_real(w, address, self.bytes(), value.1);
    }

    /// An entry of a table, which has the forward transform's numbers.
    pub(super) fn load_table(self, w: &mut Writer, direction: Direction, address: Register) -> Complex {
        let value = self.load(w, address);
        match direction {
            Direction::Forward => value,
            Direction::Inverse => self.conjugate(w, value),
        }
    }
}
