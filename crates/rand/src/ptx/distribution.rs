//! Kernels that make numbers of a distribution out of a generator's words, in place.

use sluice_library_base::writer::{Class, Register, Source, Writer, emit};

use super::math;
use super::wide;
use crate::abi::{Kind, Precision};
use crate::engine::mrg;

/// The distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Shape {
    Uniform,
    Normal,
    LogNormal,
    Poisson,
}

/// What decides the text of the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Distribution {
    pub(crate) kind: Kind,
    pub(crate) precision: Precision,
    pub(crate) shape: Shape,
}

impl Distribution {
    pub(crate) fn name(&self) -> String {
        let Distribution { kind, precision, shape } = self;
        format!("sluice_{shape:?}_{precision:?}_{kind:?}").to_lowercase()
    }

    /// The results of a thread at a time. Pseudorandom normal numbers come in pairs, of the
    /// Box-Muller transform; quasirandom ones singly, by the inverse of the distribution, which
    /// keeps their order.
    pub(crate) fn results_of_item(&self) -> u64 {
        match self.shape {
            Shape::Normal | Shape::LogNormal if !self.kind.is_quasi() => 2,
            _ => 1,
        }
    }

    /// Parameters: the results' address, the items, and two numbers: mean and standard deviation as
    /// the bits of doubles, or for Poisson distributions the table's address and its entries.
    pub(crate) fn source(&self, name: &str) -> Source {
        let mut writer = Writer::new(name);
        let w = &mut writer;
        let [results, items, first, second] = w.params();
        let parameters = [first, second].map(|bits| {
            let value = w.register(Class::F64);
            emit!(w, "mov.b64 {value}, {bits}");
            value
        });
        let item_bytes = self.results_of_item() * self.precision.bytes();
        w.each_of_thread('x', items, |w, item| {
            let place = w.address(results, item, item_bytes);
            match self.shape {
                Shape::Uniform => {
                    let value = self.uniform(w, place);
                    self.store(w, place, 0, value);
                }
                Shape::Poisson => poisson(w, self.kind, place, [first, second]),
                Shape::Normal | Shape::LogNormal => {
                    let normal = if self.kind.is_quasi() {
                        let p = word_as_double(w, self.kind, place, 0);
                        vec![math::normal_quantile(w, p)]
                    } else {
                        self.box_muller(w, place)
                    };
                    for (number, value) in normal.into_iter().enumerate() {
                        let mut value = self.in_double(w, value);
                        value = math::fma(w, value, parameters[1], parameters[0]);
                        if self.shape == Shape::LogNormal {
                            value = math::exponential(w, value);
                        }
                        self.store(w, place, number, value);
                    }
                }
            }
        });
        writer.finish()
    }

    fn store(&self, w: &mut Writer, place: Register, number: usize, value: Register) {
        let offset = number as u64 * self.precision.bytes();
        match (self.precision, value.class) {
            (Precision::Float, Class::F64) => {
                let narrow = w.register(Class::F32);
                emit!(w, "cvt.rn.f32.f64 {narrow}, {value}");
                emit!(w, "st.global.f32 [{place}+{offset}], {narrow}");
            }
            (Precision::Float, _) => emit!(w, "st.global.f32 [{place}+{offset}], {value}"),
            (Precision::Double, _) => emit!(w, "st.global.f64 [{place}+{offset}], {value}"),
        }
    }

    fn in_double(&self, w: &mut Writer, value: Register) -> Register {
        if value.class == Class::F64 {
            return value;
        }
        let wide = w.register(Class::F64);
        emit!(w, "cvt.f64.f32 {wide}, {value}");
        wide
    }

    /// A number above 0 and up to 1.
    fn uniform(&self, w: &mut Writer, place: Register) -> Register {
        match self.precision {
            Precision::Float => word_as_double(w, self.kind, place, 0),
            Precision::Double => self.uniform_double(w, place, 0),
        }
    }

    /// A number above 0 and up to 1, from as many words as a double has.
    fn uniform_double(&self, w: &mut Writer, place: Register, number: u64) -> Register {
        if self.kind.words_of_double() == 1 {
            return word_as_double(w, self.kind, place, number * 8);
        }
        let [low, high] = [0, 4].map(|offset| {
            let word = load(w, place, number * 8 + offset);
            wide(w, word)
        });
        // 53 bits: all of the first word, and 21 of the second.
        let high = w.binary("shr.u64", high, 11);
        let high = w.binary("shl.b64", high, 32);
        let bits = w.binary("or.b64", high, low);
        let value = w.register(Class::F64);
        emit!(w, "cvt.rn.f64.u64 {value}, {bits}");
        let (step, half) = (math::constant(w, 2.0_f64.powi(-53)), math::constant(w, 2.0_f64.powi(-54)));
        math::fma(w, value, step, half)
    }

    /// Two independent normal numbers from two uniform ones.
    fn box_muller(&self, w: &mut Writer, place: Register) -> Vec<Register> {
        match self.precision {
            Precision::Double => {
                let [u, v] = [0, 1].map(|number| self.uniform_double(w, place, number));
                let log = math::logarithm(w, u);
                let square = math::scale(w, log, -2.0);
                let radius = math::square_root(w, square);
                let parts = math::sine_and_cosine_of_turns(w, v);
                parts.map(|part| math::multiply(w, part, radius)).to_vec()
            }
            Precision::Float => {
                let [u, v] = [0, 4].map(|offset| {
                    let exact = word_as_double(w, self.kind, place, offset);
                    let float = w.register(Class::F32);
                    emit!(w, "cvt.rn.f32.f64 {float}, {exact}");
                    float
                });
                let log = w.register(Class::F32);
                emit!(w, "lg2.approx.f32 {log}, {u}");
                let square = w.binary("mul.rn.f32", log, float(-2.0 * std::f32::consts::LN_2));
                let radius = w.register(Class::F32);
                emit!(w, "sqrt.rn.f32 {radius}, {square}");
                let angle = w.binary("mul.rn.f32", v, float(std::f32::consts::TAU));
                let parts = ["sin", "cos"].map(|function| {
                    let part = w.register(Class::F32);
                    emit!(w, "{function}.approx.f32 {part}, {angle}");
                    w.binary("mul.rn.f32", part, radius)
                });
                parts.to_vec()
            }
        }
    }
}

/// A float as PTX's literal.
fn float(value: f32) -> String {
    format!("0f{:08x}", value.to_bits())
}

fn load(w: &mut Writer, place: Register, offset: u64) -> Register {
    let word = w.register(Class::B32);
    emit!(w, "ld.global.u32 {word}, [{place}+{offset}]");
    word
}

/// A word as a number above 0 and up to 1. Words of MRG32k3a are from 1 to its first modulus, and
/// are scaled as its author does.
fn word_as_double(w: &mut Writer, kind: Kind, place: Register, offset: u64) -> Register {
    let word = load(w, place, offset);
    let value = w.register(Class::F64);
    emit!(w, "cvt.rn.f64.u32 {value}, {word}");
    if kind == Kind::Mrg32k3a {
        return math::scale(w, value, 1.0 / (mrg::M1 + 1) as f64);
    }
    let (step, half) = (math::constant(w, 2.0_f64.powi(-32)), math::constant(w, 2.0_f64.powi(-33)));
    math::fma(w, value, step, half)
}

/// Writes the number of the first entry of a cumulative distribution that is not below a uniform
/// number; the table begins with the value that its first entry stands for.
fn poisson(w: &mut Writer, kind: Kind, place: Register, [table, entries]: [Register; 2]) {
    /// Halvings after which the largest table, of fewer than `2^16` entries, is searched.
    const HALVINGS: i64 = 16;
    let u = word_as_double(w, kind, place, 0);
    let zero = w.integer(0);
    let low = w.variable(zero);
    let last = w.add(entries, -1);
    let high = w.variable(last);
    let end = w.integer(HALVINGS);
    w.each(zero, end, 1, |w, _| {
        let sum = w.add(low, high);
        let middle = w.binary("shr.s64", sum, 1);
        let entry = w.address(table, middle, 8);
        let cumulative = w.register(Class::F64);
        emit!(w, "ld.global.f64 {cumulative}, [{entry}+8]");
        let is_below = w.compare("lt.f64", cumulative, u);
        let behind = w.add(middle, 1);
        let behind = w.binary("min.s64", behind, high);
        let new_low = w.select(is_below, behind, low);
        let new_high = w.select(is_below, high, middle);
        w.assign(low, new_low);
        w.assign(high, new_high);
    });
    let first = w.register(Class::B64);
    emit!(w, "ld.global.u64 {first}, [{table}]");
    let value = w.add(first, low);
    let value = super::low(w, value);
    emit!(w, "st.global.u32 [{place}], {value}");
}
