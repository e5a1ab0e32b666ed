//! Values of PTX types: read, written and compared.

use rustc_apfloat::ieee::{BFloat, Double, Half, Single};
use rustc_apfloat::{Float, FloatConvert, Round};
use sluice_ptx::Type;

use crate::expression::Value;

/// The bits of a value written in a case.
pub fn parse(ty: Type, text: &str) -> Result<u64, String> {
    let wrong = || format!("{text} is no {ty}");
    if let Some(element) = element_of_pair(ty)
        && let Some((low, high)) = text.split_once(':')
    {
        return Ok(parse(element, low)? | parse(element, high)? << element.bits());
    }
    if let Some(digits) = text.strip_prefix("0x").filter(|digits| !digits.contains('p')) {
        let bits = u64::from_str_radix(&digits.replace('_', ""), 16).map_err(|_| wrong())?;
        return if bits & !mask(ty) == 0 { Ok(bits) } else { Err(wrong()) };
    }
    if ty.is_float() {
        return float(ty, text).ok_or_else(wrong);
    }
    let bits = ty.bits();
    let value = match text {
        "min" if ty.is_signed() => -(1i128 << (bits - 1)),
        "min" => 0,
        "max" if ty.is_signed() => (1i128 << (bits - 1)) - 1,
        "max" => (1i128 << bits) - 1,
        decimal => decimal.replace('_', "").parse().map_err(|_| wrong())?,
    };
    let fits = value >= -(1i128 << (bits - 1)) && value < 1i128 << bits;
    if fits { Ok(value as u64 & mask(ty)) } else { Err(wrong()) }
}

fn float(ty: Type, text: &str) -> Option<u64> {
    fn read<F: Float>(text: &str) -> Option<u64> {
        let value = match text {
            "nan" => F::NAN,
            "inf" => F::INFINITY,
            "-inf" => -F::INFINITY,
            "max" => F::largest(),
            "tiny" => F::SMALLEST,
            "min_normal" => F::smallest_normalized(),
            number => F::from_str_r(number, Round::NearestTiesToEven).ok()?.value,
        };
        Some(value.to_bits() as u64)
    }
    match ty {
        Type::F16 => read::<Half>(text),
        Type::Bf16 => read::<BFloat>(text),
        Type::F32 => read::<Single>(text),
        Type::F64 => read::<Double>(text),
        _ => None,
    }
}

/// The bits of what an expression gave: integers wrap to the type's width, floats round to nearest.
pub fn from_value(ty: Type, value: Value) -> u64 {
    fn narrow<F: Float>(value: f64) -> u64
    where
        Double: FloatConvert<F>,
    {
        let value: F = Double::from_bits(value.to_bits().into()).convert(&mut false).value;
        value.to_bits() as u64
    }
    let number = match value {
        Value::Int(int) if !ty.is_float() => return int as u64 & mask(ty),
        Value::Float(float) if !ty.is_float() => return float as i128 as u64 & mask(ty),
        Value::Int(int) => int as f64,
        Value::Float(float) => float,
    };
    match ty {
        Type::F16 => narrow::<Half>(number),
        Type::Bf16 => narrow::<BFloat>(number),
        Type::F32 => narrow::<Single>(number),
        _ => number.to_bits(),
    }
}

/// What an expression sees of these bits: a float as F64, exactly, and an integer with the sign of
/// its type.
pub fn to_value(ty: Type, bits: u64) -> Value {
    if let Some(number) = number(ty, bits) {
        return Value::Float(number);
    }
    let unused = 128 - ty.bits();
    let int = i128::from(bits) << unused;
    Value::Int(if ty.is_signed() { int >> unused } else { (int as u128 >> unused) as i128 })
}

/// The value of a float's bits; None for integers and pairs.
fn number(ty: Type, bits: u64) -> Option<f64> {
    fn widen<F: Float + FloatConvert<Double>>(bits: u64) -> f64 {
        let value: Double = F::from_bits(bits.into()).convert(&mut false).value;
        f64::from_bits(value.to_bits() as u64)
    }
    Some(match ty {
        Type::F16 => widen::<Half>(bits & 0xffff),
        Type::Bf16 => widen::<BFloat>(bits & 0xffff),
        Type::F32 => f64::from(f32::from_bits(bits as u32)),
        Type::F64 => f64::from_bits(bits),
        _ => return None,
    })
}

/// How far a result may be from what is expected.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Tolerance {
    /// The result has equal bits; any NaN will do for a NaN.
    #[default]
    Exact,
    /// Representable numbers apart.
    Ulp(u64),
    Absolute(f64),
}

impl Tolerance {
    pub fn parse(text: &str) -> Result<Tolerance, String> {
        let text = text.trim();
        let wrong = |_| format!("within {text}: not a tolerance");
        match text.strip_suffix("ulp") {
            Some(count) => count.trim().parse().map(Tolerance::Ulp).map_err(|_| wrong(())),
            None => text.parse().map(Tolerance::Absolute).map_err(|_| wrong(())),
        }
    }
}

/// Whether a result is as expected.
pub fn matches(ty: Type, found: u64, expected: u64, tolerance: Tolerance) -> bool {
    if let Some(element) = element_of_pair(ty) {
        let split = |bits: u64| [bits & mask(element), bits >> element.bits()];
        return split(found).into_iter().zip(split(expected)).all(|(f, e)| matches(element, f, e, tolerance));
    }
    let (Some(f), Some(e)) = (number(ty, found), number(ty, expected)) else { return found == expected };
    if f.is_nan() || e.is_nan() {
        return f.is_nan() && e.is_nan();
    }
    match tolerance {
        Tolerance::Exact => found == expected,
        Tolerance::Ulp(limit) => rank(ty, found).abs_diff(rank(ty, expected)) <= limit,
        Tolerance::Absolute(limit) => f == e || (f - e).abs() <= limit,
    }
}

/// A number's place among all numbers of its type; both zeros have the same.
fn rank(ty: Type, bits: u64) -> i64 {
    let magnitude = (bits & (mask(ty) >> 1)) as i64;
    if bits >> (ty.bits() - 1) & 1 == 1 { -magnitude } else { magnitude }
}

pub fn show(ty: Type, bits: u64) -> String {
    let hex = format!("{bits:#0width$x}", width = ty.bits() as usize / 4 + 2);
    match number(ty, bits) {
        Some(number) => format!("{number} ({hex})"),
        None => hex,
    }
}

/// The type of each half of a packed pair of floats.
fn element_of_pair(ty: Type) -> Option<Type> {
    match ty {
        Type::F16x2 => Some(Type::F16),
        Type::Bf16x2 => Some(Type::Bf16),
        Type::U16x2 => Some(Type::U16),
        Type::S16x2 => Some(Type::S16),
        _ => None,
    }
}

pub fn mask(ty: Type) -> u64 {
    if ty.bits() == 64 { u64::MAX } else { (1 << ty.bits()) - 1 }
}
