//! Sums and extrema of vectors, in two kernels: one writes a partial result for each block, and one
//! thread of the other combines these.

use super::emit;
use super::{Class, Register, Source, Value, Writer};
use crate::abi::{Domain, Element, Real};

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduced {
    /// `sum x y`
    Dot,
    /// `sum conj(x) y`
    ConjugateDot,
    /// `sum |Re x| + |Im x|`
    AbsoluteSum,
    /// `sqrt(sum |x|^2)` without overflow
    Norm,
    /// The 1-based index of the first element with the largest `|Re x| + |Im x|`.
    LargestIndex,
    /// The 1-based index of the first element with the smallest one.
    SmallestIndex,
}

/// The threads of a block of the first kernel.
pub(crate) const THREADS: u32 = 128;

/// What decides the text of both kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reduction {
    pub(crate) reduced: Reduced,
    pub(crate) element: Element,
    pub(crate) result: Element,
    pub(crate) is_unit: bool,
}

/// Thresholds and scales of a sum of squares of 64-bit floats that neither overflows nor
/// underflows: Blue's algorithm (ACM TOMS 4, 1978) with the constants of Anderson (ACM TOMS 44,
/// 2017). Powers of two.
const SMALL_BELOW: i32 = -511;
const BIG_ABOVE: i32 = 486;
const SMALL_SCALE: i32 = 537;
const BIG_SCALE: i32 = -538;

/// The values that are carried from element to element.
type State = Vec<Register>;

impl Reduction {
    pub(crate) fn name(&self, part: &str) -> String {
        format!(
            "sluice_{}_{part}_{}_{}{}",
            match self.reduced {
                Reduced::Dot => "dot",
                Reduced::ConjugateDot => "dotc",
                Reduced::AbsoluteSum => "asum",
                Reduced::Norm => "nrm2",
                Reduced::LargestIndex => "iamax",
                Reduced::SmallestIndex => "iamin",
            },
            self.element.name(),
            self.result.name(),
            if self.is_unit { "_u" } else { "" }
        )
    }

    /// The bytes of a partial result.
    pub(crate) fn partial_bytes(&self) -> u64 {
        8 * self.classes().len() as u64
    }

    /// Parameters: the number of elements, `x` and its step, `y` and its step, the partial results.
    pub(crate) fn first_source(&self, name: &str) -> Source {
        let mut writer = Writer::new(name);
        let w = &mut writer;
        let [count, x, x_step, y, y_step, partials] = w.params();
        let state = self.start(w);
        w.each_of_thread('x', count, |w, i| {
            let place = |w: &mut Writer, base: Register, step: Register| {
                let index = if self.is_unit { i } else { w.binary("mul.lo.s64", i, step) };
                w.address(base, index, self.element.bytes())
            };
            let (x, y) = (place(w, x, x_step), place(w, y, y_step));
            self.take(w, &state, i, x, y);
        });
        self.combine_block(w, &state, partials);
        writer.finish()
    }

    /// Parameters: the number of partial results, they, and where the result goes.
    pub(crate) fn last_source(&self, name: &str) -> Source {
        let mut writer = Writer::new(name);
        let w = &mut writer;
        let [count, partials, result] = w.params();
        let thread = w.special("tid.x");
        let is_first = w.compare("eq.s64", thread, 0);
        w.when(is_first, |w| {
            let state = self.start(w);
            let zero = w.integer(0);
            w.each(zero, count, 1, |w, i| {
                let place = w.address(partials, i, self.partial_bytes());
                let other = self.load_state(w, "global", place);
                self.merge(w, &state, &other);
            });
            self.finish(w, &state, result);
        });
        writer.finish()
    }

    fn is_index(&self) -> bool {
        matches!(self.reduced, Reduced::LargestIndex | Reduced::SmallestIndex)
    }

    /// Norms of 32-bit floats are summed with 64 bits, where squares do not overflow.
    fn domain(&self) -> Domain {
        match self.reduced {
            Reduced::Norm => Domain { real: Real::F64, is_complex: self.element.is_complex() },
            _ => self.element.domain(),
        }
    }

    /// The classes of the values of a state.
    fn classes(&self) -> Vec<Class> {
        let real = self.domain().real.class();
        match self.reduced {
            Reduced::Dot | Reduced::ConjugateDot if self.element.is_complex() => vec![real; 2],
            Reduced::Dot | Reduced::ConjugateDot | Reduced::AbsoluteSum => vec![real],
            // Sums of big, of ordinary and of small numbers.
            Reduced::Norm => vec![real; 3],
            Reduced::LargestIndex | Reduced::SmallestIndex => vec![real, Class::B64],
        }
    }

    /// A state without elements. An index is 0 then.
    fn start(&self, w: &mut Writer) -> State {
        let zero = self.domain().real.constant(w, 0);
        let classes = self.classes();
        let value = |w: &mut Writer, class: Class| match class {
            Class::B64 => w.integer(0),
            _ => w.variable(zero),
        };
        classes.into_iter().map(|class| value(w, class)).collect()
    }

    fn value(&self, state: &State) -> Value {
        match state[..] {
            [re, im] => Value::Complex(re, im),
            _ => Value::Real(state[0]),
        }
    }

    /// Takes the element with index `i` into a state.
    fn take(&self, w: &mut Writer, state: &State, i: Register, x: Register, y: Register) {
        let domain = self.domain();
        let value = domain.load(w, self.element, x);
        match self.reduced {
            Reduced::Dot | Reduced::ConjugateDot => {
                let other = domain.load(w, self.element, y);
                let value = match self.reduced {
                    Reduced::ConjugateDot => domain.conjugate(w, value),
                    _ => value,
                };
                let sum = domain.fma(w, value, other, self.value(state));
                domain.assign(w, self.value(state), sum);
            }
            Reduced::AbsoluteSum => {
                let size = self.size(w, value);
                let sum = domain.real.binary(w, "add", state[0], size);
                w.assign(state[0], sum);
            }
            Reduced::Norm => value.parts().into_iter().for_each(|part| self.square(w, state, part)),
            Reduced::LargestIndex | Reduced::SmallestIndex => {
                let size = self.size(w, value);
                let place = w.add(i, 1);
                self.merge(w, state, &vec![size, place]);
            }
        }
    }

    /// `|Re x| + |Im x|`
    fn size(&self, w: &mut Writer, value: Value) -> Register {
        let real = self.domain().real;
        let sizes: Vec<Register> = value.parts().into_iter().map(|part| real.unary(w, "abs", part)).collect();
        match sizes[..] {
            [re, im] => real.binary(w, "add", re, im),
            _ => sizes[0],
        }
    }

    /// Adds a square to the sum of its size. Ordinary is also what compares with nothing, a NaN.
    fn square(&self, w: &mut Writer, state: &State, part: Register) {
        let real = Real::F64;
        if self.element.component() != Element::F64 {
            let sum = real.fma(w, part, part, state[1]);
            w.assign(state[1], sum);
            return;
        }
        let size = real.unary(w, "abs", part);
        let is_big = w.compare("gt.f64", size, power_of_two(BIG_ABOVE));
        let is_small = w.compare("lt.f64", size, power_of_two(SMALL_BELOW));
        let add = |w: &mut Writer, place: usize, scale: i32| {
            let scaled = w.binary("mul.rn.f64", size, power_of_two(scale));
            let sum = real.fma(w, scaled, scaled, state[place]);
            w.assign(state[place], sum);
        };
        w.either(
            is_big,
            |w| add(w, 0, BIG_SCALE),
            |w| w.either(is_small, |w| add(w, 2, SMALL_SCALE), |w| add(w, 1, 0)),
        );
    }

    /// Takes another state into a state.
    fn merge(&self, w: &mut Writer, state: &State, other: &State) {
        if !self.is_index() {
            for (&own, &other) in state.iter().zip(other) {
                let sum = self.domain().real.binary(w, "add", own, other);
                w.assign(own, sum);
            }
            return;
        }
        let ty = self.domain().real.ty();
        let order = if self.reduced == Reduced::LargestIndex { "gt" } else { "lt" };
        let is_better = w.compare(&format!("{order}.{ty}"), other[0], state[0]);
        let is_equal = w.compare(&format!("eq.{ty}"), other[0], state[0]);
        let is_before = w.compare("lt.s64", other[1], state[1]);
        let is_first = w.both(is_equal, is_before);
        let is_empty = w.compare("eq.s64", state[1], 0);
        let has_other = w.compare("ne.s64", other[1], 0);
        let wins = w.binary("or.pred", is_better, is_first);
        let wins = w.binary("or.pred", wins, is_empty);
        let wins = w.both(wins, has_other);
        for (&own, &other) in state.iter().zip(other) {
            let kept = w.select(wins, other, own);
            w.assign(own, kept);
        }
    }

    /// Combines the states of a block's threads and writes the result to the block's place.
    fn combine_block(&self, w: &mut Writer, state: &State, partials: Register) {
        let bytes = self.partial_bytes();
        let array = w.shared("states", bytes as u32 * THREADS);
        let thread = w.special("tid.x");
        let own = w.address(array, thread, bytes);
        self.store_state(w, "shared", own, state);
        w.barrier();
        let mut distance = THREADS / 2;
        while distance > 0 {
            let takes_part = w.compare("lt.s64", thread, distance);
            w.when(takes_part, |w| {
                let place = w.add(own, u64::from(distance) * bytes);
                let other = self.load_state(w, "shared", place);
                self.merge(w, state, &other);
                self.store_state(w, "shared", own, state);
            });
            w.barrier();
            distance /= 2;
        }
        let is_first = w.compare("eq.s64", thread, 0);
        w.when(is_first, |w| {
            let block = w.special("ctaid.x");
            let place = w.address(partials, block, bytes);
            self.store_state(w, "global", place, state);
        });
    }

    fn load_state(&self, w: &mut Writer, space: &str, place: Register) -> State {
        let load = |w: &mut Writer, (number, class): (usize, Class)| {
            let value = w.register(class);
            emit!(w, "ld.{space}.{} {value}, [{place}+{}]", memory_type(class), 8 * number);
            value
        };
        self.classes().into_iter().enumerate().map(|part| load(w, part)).collect()
    }

    fn store_state(&self, w: &mut Writer, space: &str, place: Register, state: &State) {
        for (number, &value) in state.iter().enumerate() {
            emit!(w, "st.{space}.{} [{place}+{}], {value}", memory_type(value.class), 8 * number);
        }
    }

    fn finish(&self, w: &mut Writer, state: &State, result: Register) {
        match self.reduced {
            Reduced::LargestIndex | Reduced::SmallestIndex => {
                if self.result == Element::I64 {
                    emit!(w, "st.global.u64 [{result}], {}", state[1]);
                } else {
                    let narrow = w.register(Class::B32);
                    emit!(w, "cvt.u32.u64 {narrow}, {}", state[1]);
                    emit!(w, "st.global.u32 [{result}], {narrow}");
                }
            }
            Reduced::Norm => {
                let norm = self.norm(w, state);
                self.domain().store(w, self.result, result, Value::Real(norm));
            }
            _ => self.domain().store(w, self.result, result, self.value(state)),
        }
    }

    /// The root of the three sums of squares, which have different scales.
    fn norm(&self, w: &mut Writer, state: &State) -> Register {
        let real = Real::F64;
        let root = |w: &mut Writer, square: Register| {
            let root = w.register(Class::F64);
            emit!(w, "sqrt.rn.f64 {root}, {square}");
            root
        };
        let [big, ordinary, small] = [state[0], state[1], state[2]];
        let zero = real.constant(w, 0);
        let result = w.variable(zero);
        let is_big = w.compare("gt.f64", big, zero);
        let is_ordinary = w.compare("neu.f64", ordinary, zero);
        w.either(
            is_big,
            |w| {
                // Small numbers are too small to count.
                let scaled = w.binary("mul.rn.f64", ordinary, power_of_two(BIG_SCALE));
                let scaled = w.binary("mul.rn.f64", scaled, power_of_two(BIG_SCALE));
                let sum = real.binary(w, "add", big, scaled);
                let root = root(w, sum);
                let norm = w.binary("mul.rn.f64", root, power_of_two(-BIG_SCALE));
                w.assign(result, norm);
            },
            |w| {
                let root_of_small = root(w, small);
                let small = w.binary("mul.rn.f64", root_of_small, power_of_two(-SMALL_SCALE));
                w.assign(result, small);
                w.when(is_ordinary, |w| {
                    let sum = real.fma(w, small, small, ordinary);
                    let norm = root(w, sum);
                    w.assign(result, norm);
                });
            },
        );
        result
    }
}

fn memory_type(class: Class) -> &'static str {
    match class {
        Class::F32 => "f32",
        Class::F64 => "f64",
        Class::B32 => "u32",
        _ => "u64",
    }
}

fn power_of_two(exponent: i32) -> String {
    format!("0d{:016x}", 2f64.powi(exponent).to_bits())
}
