//! Conversions of floats of 8, 6 and 4 bits (PTX ISA, "Alternate Floating-Point Data Formats" and
//! "cvt").
//!
//! All are IEEE-like: a sign, an exponent, a mantissa, subnormals below the smallest exponent. They
//! are computed as F32, which holds every value of each exactly.

use sluice_ptx::ast::Instruction;
use sluice_ptx::{Modifier, Type as PtxType};

use super::half::Half;
use super::{Lowered, Lowering, operand, unsupported};
use crate::inst::{BinaryOp, ConvertOp, FloatCond, FloatOp, IntCond, Rounding, UnaryOp};
use crate::types::{Type, Value};

/// A format with a sign bit.
#[derive(Clone, Copy, Debug)]
struct Format {
    /// Width in bits, and those of the mantissa.
    bits: u32,
    mantissa: u32,
    /// Exponent of the smallest normal number.
    exponent_min: i32,
    /// The bits of the largest number.
    largest: u32,
    /// The bits of infinity, and those of NaN.
    infinity: Option<u32>,
    nan: Option<u32>,
}

const E4M3: Format =
    Format { bits: 8, mantissa: 3, exponent_min: -6, largest: 0x7e, infinity: None, nan: Some(0x7f) };
const E5M2: Format =
    Format { bits: 8, mantissa: 2, exponent_min: -14, largest: 0x7b, infinity: Some(0x7c), nan: Some(0x7f) };
const E2M3: Format =
    Format { bits: 6, mantissa: 3, exponent_min: 0, largest: 0x1f, infinity: None, nan: None };
const E3M2: Format =
    Format { bits: 6, mantissa: 2, exponent_min: -2, largest: 0x1f, infinity: None, nan: None };
const E2M1: Format =
    Format { bits: 4, mantissa: 1, exponent_min: 0, largest: 0x7, infinity: None, nan: None };

impl Format {
    /// The format of the elements of a pair.
    fn of_pair(ty: PtxType) -> Option<Format> {
        match ty {
            PtxType::E4m3x2 => Some(E4M3),
            PtxType::E5m2x2 => Some(E5M2),
            PtxType::E2m3x2 => Some(E2M3),
            PtxType::E3m2x2 => Some(E3M2),
            PtxType::E2m1x2 => Some(E2M1),
            _ => None,
        }
    }

    /// Bits from one element of a pair to the next: those of 6 bits are bytes with two bits unused.
    fn stride(self) -> u32 {
        if self.bits == 4 { 4 } else { 8 }
    }

    fn largest_value(self) -> f32 {
        let exponent = (self.largest >> self.mantissa) as i32 - 1 + self.exponent_min;
        let steps = (self.largest & ((1 << self.mantissa) - 1)) + (1 << self.mantissa);
        steps as f32 * ((exponent - self.mantissa as i32) as f32).exp2()
    }
}

/// Whether a conversion has pairs of such floats on one side.
pub(super) fn is_narrow(to: PtxType, from: PtxType) -> bool {
    let is_exponent = |ty| ty == PtxType::Ue8m0x2;
    Format::of_pair(to).is_some() || Format::of_pair(from).is_some() || is_exponent(to) || is_exponent(from)
}

/// Bits of an exponent alone (`.ue8m0`): a power of two with F32's bias, without zero and infinity.
const EXPONENT_LARGEST: u64 = 0xfe;
const EXPONENT_NAN: u32 = 0xff;
/// 2 to the power of -127, which the exponent 0 means, as bits of F32 and of bfloat16: a subnormal
/// number of both.
const EXPONENT_LEAST_F32: u32 = 0x40_0000;
const EXPONENT_LEAST_BF16: u32 = 0x40;

impl Lowering<'_> {
    /// `cvt.rn.satfinite{.relu}.e4m3x2.f32 d, a, b` (a in the upper half), `.e4m3x2.f16x2 d, a`,
    /// `.f16x2.e4m3x2 d, a`.
    pub(super) fn convert_narrow(&mut self, i: &Instruction, to: PtxType, from: PtxType) -> Lowered {
        match (Format::of_pair(to), Format::of_pair(from), from, to) {
            (_, _, PtxType::F32, PtxType::Ue8m0x2) if i.operands.len() == 3 => {
                let [high, low] =
                    [1, 2].map(|place| operand(i, place).and_then(|of| self.read(of, Type::F32)));
                self.exponent_pair(i, [low?, high?])
            }
            (_, _, PtxType::Bf16x2, PtxType::Ue8m0x2) if i.operands.len() == 2 => {
                let pair = self.read(operand(i, 1)?, Type::I32)?;
                let halves = self.halves(pair);
                let values = halves.map(|bits| self.build().convert(Half::Bfloat.widen(), Type::F32, bits));
                self.exponent_pair(i, values)
            }
            (_, _, PtxType::Ue8m0x2, PtxType::Bf16x2) => {
                let pair = self.read(operand(i, 1)?, Type::I32)?;
                let halves = [0, 1].map(|index| {
                    let exponent = self.element(pair, index, 8, false);
                    self.power_of_two(exponent)
                });
                let result = self.join_halves(halves);
                self.write(operand(i, 0)?, result)
            }
            (Some(format), None, PtxType::F32, _) if i.operands.len() == 3 => {
                let [high, low] =
                    [1, 2].map(|place| operand(i, place).and_then(|of| self.read(of, Type::F32)));
                self.narrow_pair(i, format, [low?, high?])
            }
            (Some(format), None, PtxType::F16x2 | PtxType::Bf16x2, _) if i.operands.len() == 2 => {
                let half = if from == PtxType::F16x2 { Half::Ieee } else { Half::Bfloat };
                let pair = self.read(operand(i, 1)?, Type::I32)?;
                let halves = self.halves(pair);
                let values = halves.map(|bits| self.build().convert(half.widen(), Type::F32, bits));
                self.narrow_pair(i, format, values)
            }
            (None, Some(format), _, PtxType::F16x2 | PtxType::Bf16x2) => {
                let half = if to == PtxType::F16x2 { Half::Ieee } else { Half::Bfloat };
                let pair = self.read(operand(i, 1)?, Type::I32)?;
                let halves = [0, 1].map(|index| {
                    let bits = self.element(pair, index, format.stride(), false);
                    let value = self.widen_narrow(format, bits);
                    let value = self.clamp_float(i, value);
                    self.build().convert(half.narrow(Rounding::Near), Type::I16, value)
                });
                let result = self.join_halves(halves);
                self.write(operand(i, 0)?, result)
            }
            _ => Err(unsupported(i)),
        }
    }

    fn narrow_pair(&mut self, i: &Instruction, format: Format, values: [Value; 2]) -> Lowered {
        if !i.has(Modifier::Rn) || !i.has(Modifier::Satfinite) {
            return Err(unsupported(i));
        }
        let [low, high] = values.map(|value| {
            let value = self.clamp_float(i, value);
            self.narrow_to(format, value)
        });
        let mut build = self.build();
        let high = build.binary_imm(BinaryOp::Shl, high, u64::from(format.stride()));
        let pair = build.binary(BinaryOp::Or, low, high);
        let pair =
            build.convert(ConvertOp::Truncate, if format.bits == 4 { Type::I8 } else { Type::I16 }, pair);
        self.write(operand(i, 0)?, pair)
    }

    /// Exponents of the magnitudes of two F32, rounded down (`.rz`) or up (`.rp`); the second is
    /// the upper byte. `.satfinite` is optional here.
    fn exponent_pair(&mut self, i: &Instruction, values: [Value; 2]) -> Lowered {
        let rounds_up = i.has(Modifier::Rp);
        if !(rounds_up || i.has(Modifier::Rz)) {
            return Err(unsupported(i));
        }
        let saturates = i.has(Modifier::Satfinite);
        let [low, high] = values.map(|value| self.exponent_of(value, rounds_up, saturates));
        let mut build = self.build();
        let high = build.binary_imm(BinaryOp::Shl, high, 8);
        let pair = build.binary(BinaryOp::Or, low, high);
        let pair = build.convert(ConvertOp::Truncate, Type::I16, pair);
        self.write(operand(i, 0)?, pair)
    }

    /// Without `saturates`, what is too large becomes the exponent of infinity, which means NaN.
    fn exponent_of(&mut self, value: Value, rounds_up: bool, saturates: bool) -> Value {
        let mut build = self.build();
        let magnitude = build.unary(UnaryOp::FAbs, value);
        let bits = build.bitcast(Type::I32, magnitude);
        let mut exponent = build.binary_imm(BinaryOp::ShrU, bits, 23);
        if rounds_up {
            // Among subnormal numbers the half of the smallest normal one is the exponent 0, above
            // it begins the 1.
            let zero = build.i32(0);
            let least = build.i32(EXPONENT_LEAST_F32);
            let is_subnormal = build.compare(IntCond::Eq, exponent, zero);
            let exact = build.select(is_subnormal, least, zero);
            let mantissa = build.binary_imm(BinaryOp::And, bits, 0x7f_ffff);
            let is_between = build.compare(IntCond::GtU, mantissa, exact);
            let more = build.convert(ConvertOp::ZeroExtend, Type::I32, is_between);
            exponent = build.binary(BinaryOp::Add, exponent, more);
        }
        if saturates {
            exponent = build.binary_imm(BinaryOp::MinU, exponent, EXPONENT_LARGEST);
        }
        let nan = build.i32(EXPONENT_NAN);
        let is_nan = build.float_compare(FloatCond::Nan, value, value);
        build.select(is_nan, nan, exponent)
    }

    /// The bfloat16 of an exponent, I16.
    fn power_of_two(&mut self, exponent: Value) -> Value {
        let mut build = self.build();
        let bits = build.binary_imm(BinaryOp::Shl, exponent, 7);
        let [zero, least, all, nan] =
            [0, EXPONENT_LEAST_BF16, EXPONENT_NAN, 0x7fff].map(|bits| build.i32(bits));
        let is_least = build.compare(IntCond::Eq, exponent, zero);
        let bits = build.select(is_least, least, bits);
        let is_nan = build.compare(IntCond::Eq, exponent, all);
        let bits = build.select(is_nan, nan, bits);
        build.convert(ConvertOp::Truncate, Type::I16, bits)
    }

    /// The bits of an F32 rounded to a format, to nearest even; what is too large becomes the
    /// largest.
    ///
    /// A power of two is added whose last place is one step of the result at the value's exponent,
    /// so that the addition rounds; the low bits of the sum then count the steps.
    fn narrow_to(&mut self, format: Format, value: Value) -> Value {
        const MANTISSA: u32 = 23;
        let mantissa = format.mantissa;
        let mut build = self.build();
        let bits = build.bitcast(Type::I32, value);
        let sign = build.binary_imm(BinaryOp::ShrU, bits, 31);
        let sign = build.binary_imm(BinaryOp::Shl, sign, u64::from(format.bits - 1));
        let magnitude = build.unary(UnaryOp::FAbs, value);
        let largest = build.f32(format.largest_value());
        let bounded = build.binary(BinaryOp::FMin, magnitude, largest);
        let exponent = build.bitcast(Type::I32, bounded);
        let exponent = build.binary_imm(BinaryOp::ShrU, exponent, u64::from(MANTISSA));
        let lowest = (127 + format.exponent_min) as u64;
        let exponent = build.binary_imm(BinaryOp::MaxU, exponent, lowest);
        let power = build.binary_imm(BinaryOp::Add, exponent, u64::from(MANTISSA - mantissa));
        let power_bits = build.binary_imm(BinaryOp::Shl, power, u64::from(MANTISSA));
        let power = build.bitcast(Type::F32, power_bits);
        let sum = build.float(FloatOp::Add, Rounding::Near, bounded, power);
        let sum = build.bitcast(Type::I32, sum);
        let steps = build.binary(BinaryOp::Sub, sum, power_bits);
        let above = build.binary_imm(BinaryOp::Sub, exponent, lowest);
        let above = build.binary_imm(BinaryOp::Shl, above, u64::from(mantissa));
        let code = build.binary(BinaryOp::Add, above, steps);
        let code = build.binary(BinaryOp::Or, code, sign);
        // Formats without NaN have their largest number instead.
        let nan = build.i32(format.nan.unwrap_or(format.largest));
        let is_nan = build.float_compare(FloatCond::Nan, value, value);
        build.select(is_nan, nan, code)
    }

    /// The value of a format's bits as F32.
    fn widen_narrow(&mut self, format: Format, bits: Value) -> Value {
        const MANTISSA: u32 = 23;
        let mut build = self.build();
        let sign = build.binary_imm(BinaryOp::ShrU, bits, u64::from(format.bits - 1));
        let sign = build.binary_imm(BinaryOp::Shl, sign, 31);
        let code = build.binary_imm(BinaryOp::And, bits, (1 << (format.bits - 1)) - 1);
        // With the exponents of F32 it is a number too small by a power of two, subnormals
        // included.
        let small = build.binary_imm(BinaryOp::Shl, code, u64::from(MANTISSA - format.mantissa));
        let small = build.bitcast(Type::F32, small);
        let scale = build.f32(f32::from_bits(((254 + format.exponent_min - 1) as u32) << MANTISSA));
        let mut value = build.float(FloatOp::Mul, Rounding::Near, small, scale);
        let nan = build.f32(f32::NAN);
        if let Some(infinity) = format.infinity {
            let infinity = build.i32(infinity);
            let is_infinite = build.compare(IntCond::Eq, code, infinity);
            let is_nan = build.compare(IntCond::GtU, code, infinity);
            let infinity = build.f32(f32::INFINITY);
            value = build.select(is_infinite, infinity, value);
            value = build.select(is_nan, nan, value);
        } else if let Some(code_of_nan) = format.nan {
            let code_of_nan = build.i32(code_of_nan);
            let is_nan = build.compare(IntCond::Eq, code, code_of_nan);
            value = build.select(is_nan, nan, value);
        }
        let bits = build.bitcast(Type::I32, value);
        let bits = build.binary(BinaryOp::Or, bits, sign);
        build.bitcast(Type::F32, bits)
    }
}
