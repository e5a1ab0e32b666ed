//! Pure instructions on the bits of one lane.
//!
//! Written for obviousness: integers in 128 bits, floats through LLVM's software arithmetic
//! (`rustc_apfloat`) wherever a rounding direction or a half is involved, so that nothing is shared
//! with the code generator it is an oracle for.

use rustc_apfloat::ieee::{BFloat, Double, Half, Single};
use rustc_apfloat::{Float, FloatConvert, Round, Status, StatusAnd};

use crate::{AtomicOp, BinaryOp, ConvertOp, FloatCond, FloatOp, IntCond, ReduxOp, Rounding, Type, UnaryOp};

/// What PTX calls the canonical NaN of a width.
fn canonical_nan(ty: Type) -> u64 {
    if ty == Type::F32 { 0x7fff_ffff } else { 0x7fff_ffff_ffff_ffff }
}

fn signed(ty: Type, bits: u64) -> i128 {
    let shift = 128 - ty.bits();
    (i128::from(bits) << shift) >> shift
}

fn unsigned(ty: Type, bits: u64) -> u128 {
    u128::from(bits & ty.mask())
}

fn truncate(ty: Type, value: i128) -> u64 {
    value as u64 & ty.mask()
}

fn f32_of(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn is_nan(ty: Type, bits: u64) -> bool {
    if ty == Type::F32 { f32_of(bits).is_nan() } else { f64::from_bits(bits).is_nan() }
}

/// F32 widened, so that both widths compare and approximate through one piece of code.
fn widen(ty: Type, bits: u64) -> f64 {
    if ty == Type::F32 { f64::from(f32_of(bits)) } else { f64::from_bits(bits) }
}

fn narrow(ty: Type, value: f64) -> u64 {
    if ty == Type::F32 { u64::from((value as f32).to_bits()) } else { value.to_bits() }
}

fn direction(rounding: Rounding) -> Round {
    match rounding {
        Rounding::Near => Round::NearestTiesToEven,
        Rounding::Zero => Round::TowardZero,
        Rounding::Down => Round::TowardNegative,
        Rounding::Up => Round::TowardPositive,
        Rounding::NearAway => Round::NearestTiesToAway,
    }
}

/// NaN results are canonical: PTX leaves their payload open, and comparing needs one answer.
fn canonical(ty: Type, bits: u64) -> u64 {
    if is_nan(ty, bits) { canonical_nan(ty) } else { bits }
}

pub(super) fn unary(op: UnaryOp, ty: Type, arg: u64) -> u64 {
    let sign = 1 << (ty.bits() - 1);
    let x = || widen(ty, arg);
    match op {
        UnaryOp::Neg => truncate(ty, -signed(ty, arg)),
        UnaryOp::Not => !arg & ty.mask(),
        UnaryOp::Abs => truncate(ty, signed(ty, arg).abs()),
        UnaryOp::Clz => u64::from(unsigned(ty, arg).leading_zeros() - (128 - ty.bits())),
        UnaryOp::Popc => u64::from(unsigned(ty, arg).count_ones()),
        UnaryOp::Brev => (arg & ty.mask()).reverse_bits() >> (64 - ty.bits()),
        UnaryOp::FNeg => arg ^ sign,
        UnaryOp::FAbs => arg & !sign,
        UnaryOp::FlushSubnormal => {
            let value = f32_of(arg);
            if value.is_subnormal() { u64::from((0.0f32).copysign(value).to_bits()) } else { arg }
        }
        UnaryOp::Rcp => canonical(ty, narrow(ty, 1.0 / x())),
        UnaryOp::Rsqrt => canonical(ty, narrow(ty, 1.0 / x().sqrt())),
        UnaryOp::Ex2 => canonical(ty, narrow(ty, x().exp2())),
        UnaryOp::Lg2 => canonical(ty, narrow(ty, x().log2())),
        UnaryOp::Sin => canonical(ty, narrow(ty, x().sin())),
        UnaryOp::Cos => canonical(ty, narrow(ty, x().cos())),
        UnaryOp::Tanh => canonical(ty, narrow(ty, x().tanh())),
    }
}

pub(super) fn binary(op: BinaryOp, ty: Type, a: u64, b: u64) -> u64 {
    let (sa, sb) = (signed(ty, a), signed(ty, b));
    let (ua, ub) = (unsigned(ty, a), unsigned(ty, b));
    let width = ty.bits();
    // The amount is an I32 whatever `ty` is.
    let amount = (b as u32).min(width);
    match op {
        BinaryOp::Add => truncate(ty, sa + sb),
        BinaryOp::Sub => truncate(ty, sa - sb),
        BinaryOp::Mul => (ua.wrapping_mul(ub)) as u64 & ty.mask(),
        BinaryOp::MulHiS => truncate(ty, (sa * sb) >> width),
        BinaryOp::MulHiU => ((ua * ub) >> width) as u64 & ty.mask(),
        BinaryOp::DivS => {
            if sb == 0 {
                ty.mask()
            } else {
                truncate(ty, sa / sb)
            }
        }
        BinaryOp::DivU => ua.checked_div(ub).map_or(ty.mask(), |quotient| quotient as u64),
        BinaryOp::RemS => {
            if sb == 0 {
                a & ty.mask()
            } else {
                truncate(ty, sa % sb)
            }
        }
        BinaryOp::RemU => ua.checked_rem(ub).unwrap_or(ua) as u64,
        BinaryOp::And => a & b,
        BinaryOp::Or => a | b,
        BinaryOp::Xor => a ^ b,
        BinaryOp::Shl => (ua << amount) as u64 & ty.mask(),
        BinaryOp::ShrS => truncate(ty, sa >> amount),
        BinaryOp::ShrU => (ua >> amount) as u64,
        BinaryOp::MinS => truncate(ty, sa.min(sb)),
        BinaryOp::MaxS => truncate(ty, sa.max(sb)),
        BinaryOp::MinU => ua.min(ub) as u64,
        BinaryOp::MaxU => ua.max(ub) as u64,
        BinaryOp::FMin | BinaryOp::FMax | BinaryOp::FMinNan | BinaryOp::FMaxNan => {
            float_extreme(op, ty, a, b)
        }
    }
}

fn float_extreme(op: BinaryOp, ty: Type, a: u64, b: u64) -> u64 {
    let nan_wins = matches!(op, BinaryOp::FMinNan | BinaryOp::FMaxNan);
    match (is_nan(ty, a), is_nan(ty, b)) {
        (true, true) => return canonical_nan(ty),
        (true, false) | (false, true) if nan_wins => return canonical_nan(ty),
        (true, false) => return b,
        (false, true) => return a,
        (false, false) => {}
    }
    let (x, y) = (widen(ty, a), widen(ty, b));
    // Equal values differ at most in the sign of zero.
    let a_is_less = if x == y { x.is_sign_negative() } else { x < y };
    let want_less = matches!(op, BinaryOp::FMin | BinaryOp::FMinNan);
    if a_is_less == want_less { a } else { b }
}

fn apfloat<F: Float>(op: FloatOp, round: Round, a: u64, b: u64) -> u64 {
    let (a, b) = (F::from_bits(a.into()), F::from_bits(b.into()));
    let StatusAnd { value, .. } = match op {
        FloatOp::Add => a.add_r(b, round),
        FloatOp::Sub => a.sub_r(b, round),
        FloatOp::Mul => a.mul_r(b, round),
        FloatOp::Div => a.div_r(b, round),
    };
    value.to_bits() as u64
}

pub(super) fn float(op: FloatOp, rounding: Rounding, ty: Type, a: u64, b: u64) -> u64 {
    let round = direction(rounding);
    let bits =
        if ty == Type::F32 { apfloat::<Single>(op, round, a, b) } else { apfloat::<Double>(op, round, a, b) };
    canonical(ty, bits)
}

pub(super) fn fma(rounding: Rounding, ty: Type, [a, b, c]: [u64; 3]) -> u64 {
    fn exact<F: Float>(round: Round, a: u64, b: u64, c: u64) -> u64 {
        F::from_bits(a.into())
            .mul_add_r(F::from_bits(b.into()), F::from_bits(c.into()), round)
            .value
            .to_bits() as u64
    }
    let round = direction(rounding);
    canonical(
        ty,
        if ty == Type::F32 { exact::<Single>(round, a, b, c) } else { exact::<Double>(round, a, b, c) },
    )
}

/// The nearest root, stepped to the wanted side by the sign of the exact remainder.
pub(super) fn sqrt(rounding: Rounding, ty: Type, arg: u64) -> u64 {
    let (root, remainder_sign) = if ty == Type::F32 {
        let x = f32_of(arg);
        let root = x.sqrt();
        // Exact: the square of 24 bits fits 53.
        let remainder = f64::from(x) - f64::from(root) * f64::from(root);
        (u64::from(root.to_bits()), remainder)
    } else {
        let x = f64::from_bits(arg);
        let root = x.sqrt();
        // Scaled up where the remainder would be too small for a float.
        let (up, up_squared) =
            if x < 2f64.powi(-500) { (2f64.powi(300), 2f64.powi(600)) } else { (1.0, 1.0) };
        (root.to_bits(), (-root * up).mul_add(root * up, x * up_squared))
    };
    if is_nan(ty, root) {
        return canonical_nan(ty);
    }
    match rounding {
        Rounding::Up if remainder_sign > 0.0 => root + 1,
        Rounding::Down | Rounding::Zero if remainder_sign < 0.0 => root - 1,
        _ => root,
    }
}

pub(super) fn permute([low, high, selector]: [u64; 3]) -> u64 {
    let bytes = (low & 0xffff_ffff) | high << 32;
    let pick = |index: u32| {
        let nibble = selector >> (4 * index) & 0xf;
        let byte = bytes >> (8 * (nibble & 7)) & 0xff;
        let byte = if nibble & 8 == 0 {
            byte
        } else if byte & 0x80 != 0 {
            0xff
        } else {
            0
        };
        byte << (8 * index)
    };
    (0..4).map(pick).sum()
}

pub(super) fn compare(cond: IntCond, ty: Type, a: u64, b: u64) -> bool {
    let (sa, sb, ua, ub) = (signed(ty, a), signed(ty, b), unsigned(ty, a), unsigned(ty, b));
    match cond {
        IntCond::Eq => ua == ub,
        IntCond::Ne => ua != ub,
        IntCond::LtS => sa < sb,
        IntCond::LeS => sa <= sb,
        IntCond::GtS => sa > sb,
        IntCond::GeS => sa >= sb,
        IntCond::LtU => ua < ub,
        IntCond::LeU => ua <= ub,
        IntCond::GtU => ua > ub,
        IntCond::GeU => ua >= ub,
    }
}

pub(super) fn float_compare(cond: FloatCond, ty: Type, a: u64, b: u64) -> bool {
    let (x, y) = (widen(ty, a), widen(ty, b));
    let unordered = x.is_nan() || y.is_nan();
    match cond {
        FloatCond::Eq => x == y,
        FloatCond::Ne => !unordered && x != y,
        FloatCond::Lt => x < y,
        FloatCond::Le => x <= y,
        FloatCond::Gt => x > y,
        FloatCond::Ge => x >= y,
        FloatCond::EqU => unordered || x == y,
        FloatCond::NeU => unordered || x != y,
        FloatCond::LtU => unordered || x < y,
        FloatCond::LeU => unordered || x <= y,
        FloatCond::GtU => unordered || x > y,
        FloatCond::GeU => unordered || x >= y,
        FloatCond::Num => !unordered,
        FloatCond::Nan => unordered,
    }
}

pub(super) fn convert(op: ConvertOp, from: Type, to: Type, arg: u64) -> u64 {
    match op {
        ConvertOp::Truncate | ConvertOp::Bitcast | ConvertOp::ZeroExtend => arg & to.mask(),
        ConvertOp::SignExtend => truncate(to, signed(from, arg)),
        ConvertOp::FloatToFloat(rounding) => float_to_float(from, to, direction(rounding), arg),
        ConvertOp::HalfToFloat => half_to_float::<Half>(to, arg),
        ConvertOp::BfloatToFloat => half_to_float::<BFloat>(to, arg),
        ConvertOp::FloatToHalf(rounding) => float_to_half::<Half>(from, direction(rounding), arg),
        ConvertOp::FloatToBfloat(rounding) => float_to_half::<BFloat>(from, direction(rounding), arg),
        ConvertOp::SignedToFloat(rounding) => int_to_float(to, direction(rounding), signed(from, arg)),
        ConvertOp::UnsignedToFloat(rounding) => {
            int_to_float(to, direction(rounding), unsigned(from, arg) as i128)
        }
        ConvertOp::FloatToSigned(rounding) => float_to_int(from, to, rounding, arg, true),
        ConvertOp::FloatToUnsigned(rounding) => float_to_int(from, to, rounding, arg, false),
        ConvertOp::RoundToIntegral(rounding) => {
            canonical(to, round_to_integral(to, direction(rounding), arg))
        }
        ConvertOp::FloatToTf32(rounding) => float_to_tf32(rounding, arg),
    }
}

fn float_to_float(from: Type, to: Type, round: Round, arg: u64) -> u64 {
    let mut loses = false;
    let bits = match (from, to) {
        (Type::F32, Type::F64) => {
            let wide: StatusAnd<Double> = Single::from_bits(arg.into()).convert_r(round, &mut loses);
            wide.value.to_bits()
        }
        (Type::F64, Type::F32) => {
            let single: StatusAnd<Single> = Double::from_bits(arg.into()).convert_r(round, &mut loses);
            single.value.to_bits()
        }
        _ => arg.into(),
    };
    canonical(to, bits as u64)
}

fn half_to_float<H>(to: Type, arg: u64) -> u64
where
    H: Float + FloatConvert<Single> + FloatConvert<Double>,
{
    let (half, mut loses) = (H::from_bits(u128::from(arg & 0xffff)), false);
    let bits = if to == Type::F32 {
        let wide: StatusAnd<Single> = half.convert(&mut loses);
        wide.value.to_bits()
    } else {
        let wide: StatusAnd<Double> = half.convert(&mut loses);
        wide.value.to_bits()
    };
    canonical(to, bits as u64)
}

fn float_to_half<H: Float>(from: Type, round: Round, arg: u64) -> u64
where
    Single: FloatConvert<H>,
    Double: FloatConvert<H>,
{
    if is_nan(from, arg) {
        return 0x7fff;
    }
    let mut loses = false;
    let half: StatusAnd<H> = if from == Type::F32 {
        Single::from_bits(arg.into()).convert_r(round, &mut loses)
    } else {
        Double::from_bits(arg.into()).convert_r(round, &mut loses)
    };
    half.value.to_bits() as u64
}

fn int_to_float(to: Type, round: Round, value: i128) -> u64 {
    let bits = if to == Type::F32 {
        Single::from_i128_r(value, round).value.to_bits()
    } else {
        Double::from_i128_r(value, round).value.to_bits()
    };
    bits as u64
}

fn round_to_integral(ty: Type, round: Round, arg: u64) -> u64 {
    let bits = if ty == Type::F32 {
        Single::from_bits(arg.into()).round_to_integral(round).value.to_bits()
    } else {
        Double::from_bits(arg.into()).round_to_integral(round).value.to_bits()
    };
    bits as u64
}

fn float_to_int(from: Type, to: Type, rounding: Rounding, arg: u64, is_signed: bool) -> u64 {
    if is_nan(from, arg) {
        return if from == Type::F32 && to.bits() <= 32 { 0 } else { 1 << (to.bits() - 1) };
    }
    // Integral floats of either width convert to f64 exactly, and `as` saturates at 128 bits.
    let integral = widen(from, round_to_integral(from, direction(rounding), arg)) as i128;
    let (low, high) = if is_signed {
        (-(1i128 << (to.bits() - 1)), (1i128 << (to.bits() - 1)) - 1)
    } else {
        (0, (1i128 << to.bits()) - 1)
    };
    truncate(to, integral.clamp(low, high))
}

fn float_to_tf32(rounding: Rounding, arg: u64) -> u64 {
    let bits = arg as u32;
    if f32::from_bits(bits).is_nan() {
        return canonical_nan(Type::F32);
    }
    if f32::from_bits(bits).is_infinite() {
        return arg;
    }
    let round_up = match rounding {
        Rounding::Near => (bits & 0x1fff) + (bits >> 13 & 1) > 0x1000,
        Rounding::NearAway => bits & 0x1000 != 0,
        Rounding::Zero => false,
        Rounding::Down => bits >> 31 == 1 && bits & 0x1fff != 0,
        Rounding::Up => bits >> 31 == 0 && bits & 0x1fff != 0,
    };
    u64::from((bits & !0x1fff) + if round_up { 0x2000 } else { 0 })
}

/// The new value of a memory cell that holds `old`; `compare` as in [`crate::Inst::Atomic`].
pub(super) fn atomic(op: AtomicOp, ty: Type, old: u64, arg: u64, compare: Option<u64>) -> u64 {
    let (o, a) = (unsigned(ty, old), unsigned(ty, arg));
    match op {
        AtomicOp::Add => binary(BinaryOp::Add, ty.as_int(), old, arg),
        AtomicOp::And => old & arg,
        AtomicOp::Or => old | arg,
        AtomicOp::Xor => old ^ arg,
        AtomicOp::Inc => {
            if o >= a {
                0
            } else {
                old + 1
            }
        }
        AtomicOp::Dec => {
            if o == 0 || o > a {
                arg
            } else {
                old - 1
            }
        }
        AtomicOp::MinS => binary(BinaryOp::MinS, ty, old, arg),
        AtomicOp::MaxS => binary(BinaryOp::MaxS, ty, old, arg),
        AtomicOp::MinU => binary(BinaryOp::MinU, ty, old, arg),
        AtomicOp::MaxU => binary(BinaryOp::MaxU, ty, old, arg),
        AtomicOp::Exchange => match compare {
            Some(expected) if expected & ty.mask() != old & ty.mask() => old,
            _ => arg,
        },
        AtomicOp::FAdd => float(FloatOp::Add, Rounding::Near, ty, old, arg),
        AtomicOp::HalfAdd => halves(ty, old, arg, half_add::<Half>),
        AtomicOp::BfloatAdd => halves(ty, old, arg, half_add::<BFloat>),
    }
}

fn halves(ty: Type, a: u64, b: u64, f: impl Fn(u64, u64) -> u64) -> u64 {
    (0..ty.bits() / 16).map(|i| f(a >> (16 * i) & 0xffff, b >> (16 * i) & 0xffff) << (16 * i)).sum()
}

fn half_add<H: Float>(a: u64, b: u64) -> u64 {
    let StatusAnd { value, status } =
        H::from_bits(a.into()).add_r(H::from_bits(b.into()), Round::NearestTiesToEven);
    let nan = value.is_nan() || status.contains(Status::INVALID_OP);
    if nan { 0x7fff } else { value.to_bits() as u64 }
}

pub(super) fn redux(op: ReduxOp, ty: Type, a: u64, b: u64) -> u64 {
    let op = match op {
        ReduxOp::Add => BinaryOp::Add,
        ReduxOp::And => BinaryOp::And,
        ReduxOp::Or => BinaryOp::Or,
        ReduxOp::Xor => BinaryOp::Xor,
        ReduxOp::MinS => BinaryOp::MinS,
        ReduxOp::MaxS => BinaryOp::MaxS,
        ReduxOp::MinU => BinaryOp::MinU,
        ReduxOp::MaxU => BinaryOp::MaxU,
        ReduxOp::FMin => BinaryOp::FMin,
        ReduxOp::FMax => BinaryOp::FMax,
        ReduxOp::FMinNan => BinaryOp::FMinNan,
        ReduxOp::FMaxNan => BinaryOp::FMaxNan,
    };
    binary(op, ty, a, b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_wrap_shift_and_divide_as_ptx_says() {
        assert_eq!(binary(BinaryOp::Add, Type::I8, 0xff, 1), 0);
        assert_eq!(binary(BinaryOp::Shl, Type::I32, 1, 32), 0);
        assert_eq!(binary(BinaryOp::ShrS, Type::I32, 0x8000_0000, 99), 0xffff_ffff);
        assert_eq!(binary(BinaryOp::DivU, Type::I32, 7, 0), 0xffff_ffff);
        assert_eq!(binary(BinaryOp::RemS, Type::I32, 7, 0), 7);
        assert_eq!(binary(BinaryOp::DivS, Type::I32, 0x8000_0000, 0xffff_ffff), 0x8000_0000);
        assert_eq!(binary(BinaryOp::MulHiS, Type::I64, u64::MAX, u64::MAX), 0);
        assert_eq!(binary(BinaryOp::MulHiU, Type::I64, u64::MAX, u64::MAX), u64::MAX - 1);
    }

    #[test]
    fn floats_round_in_each_direction() {
        let (one, tiny) = (u64::from(1f32.to_bits()), u64::from(1e-20f32.to_bits()));
        let add = |rounding| float(FloatOp::Add, rounding, Type::F32, one, tiny);
        assert_eq!(add(Rounding::Near), one);
        assert_eq!(add(Rounding::Up), one + 1);
        assert_eq!(
            sqrt(Rounding::Down, Type::F32, u64::from(2f32.to_bits())),
            u64::from(2f32.sqrt().to_bits())
        );
        assert_eq!(
            sqrt(Rounding::Up, Type::F32, u64::from(2f32.to_bits())),
            u64::from(2f32.sqrt().to_bits()) + 1
        );
    }

    #[test]
    fn conversions_clamp_and_nan_depends_on_the_widths() {
        let to = |value: f32, to| {
            convert(ConvertOp::FloatToSigned(Rounding::Zero), Type::F32, to, value.to_bits().into())
        };
        assert_eq!(to(1e20, Type::I32), 0x7fff_ffff);
        assert_eq!(to(-1e20, Type::I8), 0x80);
        assert_eq!(to(f32::NAN, Type::I32), 0);
        assert_eq!(to(f32::NAN, Type::I64), 1 << 63);
        assert_eq!(
            convert(ConvertOp::FloatToHalf(Rounding::Near), Type::F32, Type::I16, 65_520f32.to_bits().into()),
            0x7c00
        );
        assert_eq!(
            convert(ConvertOp::FloatToHalf(Rounding::Zero), Type::F32, Type::I16, 65_520f32.to_bits().into()),
            0x7bff
        );
    }

    #[test]
    fn permute_replicates_signs() {
        assert_eq!(permute([0x8040_2010, 0x0102_0304, 0x4bf0]), 0x04ff_0010);
    }
}
