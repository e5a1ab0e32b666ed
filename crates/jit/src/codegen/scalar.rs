//! Pure instructions, on one lane or on a vector of lanes: Cranelift's instructions take both.
//!
//! A lane's predicate is 0 or 1 in an i8, and every other type is Cranelift's of the same name. In
//! vectors a predicate is a lane of all ones or zeros. [`super::chunks`] says what may be asked of
//! vectors.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{
    Endianness, InstBuilder, InstructionData, MemFlagsData, Opcode, Type as ClifType, Value as Clif, types,
};
use sluice_ir::{BinaryOp, ConvertOp, FloatCond, FloatOp, Inst, IntCond, Rounding, Type, UnaryOp};

use super::emitter::Emitter;
use super::rounding::is_directed;
use crate::{math, round};

/// Cranelift's type for a value of one lane.
pub(super) fn clif_type(ty: Type) -> ClifType {
    match ty {
        Type::I1 | Type::I8 => types::I8,
        Type::I16 => types::I16,
        Type::I32 => types::I32,
        Type::I64 => types::I64,
        Type::F32 => types::F32,
        Type::F64 => types::F64,
    }
}

impl Emitter<'_> {
    pub(super) fn constant(&mut self, ty: Type, bits: u64) -> Clif {
        match ty {
            Type::F32 => self.b.ins().f32const(f32::from_bits(bits as u32)),
            Type::F64 => self.b.ins().f64const(f64::from_bits(bits)),
            // Cranelift wants constants of narrow types without bits beyond the type.
            int => self.b.ins().iconst(clif_type(int), (bits & int.mask()) as i64),
        }
    }

    /// A constant in the form of `like`: a number, or a vector of them.
    pub(super) fn constant_like(&mut self, like: Clif, ty: Type, bits: u64) -> Clif {
        let like = self.b.func.dfg.value_type(like);
        if !like.is_vector() {
            return self.constant(ty, bits);
        }
        let element = &bits.to_le_bytes()[..ty.bytes() as usize];
        self.vector_constant(ty, element.repeat(16 / element.len()))
    }

    /// `a` where the condition holds, else `b`.
    pub(super) fn choose(&mut self, condition: Clif, a: Clif, b: Clif) -> Clif {
        let ty = self.b.func.dfg.value_type(a);
        if !ty.is_vector() {
            return self.b.ins().select(condition, a, b);
        }
        let condition = self.bits(ty, condition);
        self.b.ins().bitselect(condition, a, b)
    }

    /// The result of a pure instruction for one lane's operands, in the order of
    /// [`Inst::for_each_arg`].
    pub(super) fn scalar(&mut self, inst: &Inst, args: &[Clif]) -> Clif {
        match *inst {
            Inst::Const { ty, bits } => self.constant(ty, bits),
            Inst::Unary { op, ty, .. } => self.unary(op, ty, args[0]),
            Inst::Binary { op, ty, .. } => self.binary(op, ty, args[0], args[1]),
            Inst::Float { op, rounding, ty, .. } => self.float(op, rounding, ty, args[0], args[1]),
            Inst::Fma { rounding, ty, .. } => self.fma(rounding, ty, [args[0], args[1], args[2]]),
            Inst::Sqrt { rounding: Rounding::Near, .. } => self.b.ins().sqrt(args[0]),
            Inst::Sqrt { rounding, ty, .. } => {
                let mode = self.rounding_mode(rounding);
                let function =
                    if ty == Type::F32 { round::sqrt32 as *const () } else { round::sqrt64 as *const () };
                self.call(function, &[args[0], mode], Some(clif_type(ty)))
            }
            Inst::Permute { .. } => self.call(math::permute as *const (), args, Some(types::I32)),
            Inst::Compare { cond, ty, .. } => self.compare(int_condition(cond), ty, args[0], args[1]),
            Inst::FloatCompare { cond, .. } => self.float_compare(float_condition(cond), args[0], args[1]),
            Inst::Select { .. } => self.choose(args[0], args[1], args[2]),
            Inst::Convert { op, from, to, .. } => self.convert(op, from, to, args[0]),
            _ => unreachable!("not a pure instruction on values: {inst:?}"),
        }
    }

    /// Vectors of I64 compare with a sign only.
    fn compare(&mut self, condition: IntCC, ty: Type, a: Clif, b: Clif) -> Clif {
        let is_vector = self.b.func.dfg.value_type(a).is_vector();
        if !is_vector || ty != Type::I64 || condition.unsigned() != condition {
            return self.b.ins().icmp(condition, a, b);
        }
        let signed = match condition {
            IntCC::UnsignedLessThan => IntCC::SignedLessThan,
            IntCC::UnsignedLessThanOrEqual => IntCC::SignedLessThanOrEqual,
            IntCC::UnsignedGreaterThan => IntCC::SignedGreaterThan,
            IntCC::UnsignedGreaterThanOrEqual => IntCC::SignedGreaterThanOrEqual,
            equality => return self.b.ins().icmp(equality, a, b),
        };
        let top = self.constant_like(a, ty, 1 << 63);
        let (a, b) = (self.b.ins().bxor(a, top), self.b.ins().bxor(b, top));
        self.b.ins().icmp(signed, a, b)
    }

    /// Vectors lack two of the conditions.
    fn float_compare(&mut self, condition: FloatCC, a: Clif, b: Clif) -> Clif {
        let is_vector = self.b.func.dfg.value_type(a).is_vector();
        match condition {
            FloatCC::OrderedNotEqual if is_vector => {
                let ordered = self.b.ins().fcmp(FloatCC::Ordered, a, b);
                let different = self.b.ins().fcmp(FloatCC::NotEqual, a, b);
                self.b.ins().band(ordered, different)
            }
            FloatCC::UnorderedOrEqual if is_vector => {
                let unordered = self.b.ins().fcmp(FloatCC::Unordered, a, b);
                let equal = self.b.ins().fcmp(FloatCC::Equal, a, b);
                self.b.ins().bor(unordered, equal)
            }
            _ => self.b.ins().fcmp(condition, a, b),
        }
    }

    fn unary(&mut self, op: UnaryOp, ty: Type, arg: Clif) -> Clif {
        let is_single = ty == Type::F32;
        match op {
            UnaryOp::Neg => self.b.ins().ineg(arg),
            UnaryOp::Not if ty == Type::I1 && !self.b.func.dfg.value_type(arg).is_vector() => {
                self.b.ins().bxor_imm_u(arg, 1)
            }
            UnaryOp::Not => self.b.ins().bnot(arg),
            UnaryOp::Abs => {
                let negated = self.b.ins().ineg(arg);
                let zero = self.constant_like(arg, ty, 0);
                let negative = self.b.ins().icmp(IntCC::SignedLessThan, arg, zero);
                self.choose(negative, negated, arg)
            }
            UnaryOp::Clz => self.b.ins().clz(arg),
            UnaryOp::Popc => self.b.ins().popcnt(arg),
            UnaryOp::Brev => self.b.ins().bitrev(arg),
            UnaryOp::FNeg => self.b.ins().fneg(arg),
            UnaryOp::FAbs => self.b.ins().fabs(arg),
            UnaryOp::FlushSubnormal => {
                let magnitude = self.b.ins().fabs(arg);
                let smallest = self.constant_like(arg, ty, u64::from(f32::MIN_POSITIVE.to_bits()));
                let subnormal = self.b.ins().fcmp(FloatCC::LessThan, magnitude, smallest);
                let int = self.b.func.dfg.value_type(subnormal);
                // The sign is all that is left of one.
                let zero = if int.is_vector() {
                    let bits = self.bits(int, arg);
                    let sign = self.constant_like(bits, Type::I32, 1 << 31);
                    let sign = self.b.ins().band(bits, sign);
                    self.bits(types::F32X4, sign)
                } else {
                    let zero = self.b.ins().f32const(0.0);
                    self.b.ins().fcopysign(zero, arg)
                };
                self.choose(subnormal, zero, arg)
            }
            UnaryOp::Rcp => {
                let one = self.one(ty, arg);
                self.b.ins().fdiv(one, arg)
            }
            UnaryOp::Rsqrt => {
                let one = self.one(ty, arg);
                let root = self.b.ins().sqrt(arg);
                self.b.ins().fdiv(one, root)
            }
            UnaryOp::Ex2 if is_single => self.call(math::ex2 as *const (), &[arg], Some(types::F32)),
            UnaryOp::Lg2 if is_single => self.call(math::lg2 as *const (), &[arg], Some(types::F32)),
            UnaryOp::Sin if is_single => self.call(math::sin as *const (), &[arg], Some(types::F32)),
            UnaryOp::Cos if is_single => self.call(math::cos as *const (), &[arg], Some(types::F32)),
            UnaryOp::Tanh if is_single => self.call(math::tanh as *const (), &[arg], Some(types::F32)),
            UnaryOp::Ex2 | UnaryOp::Lg2 | UnaryOp::Sin | UnaryOp::Cos | UnaryOp::Tanh => {
                self.unsupported(format!("{op:?} of {ty}"));
                arg
            }
        }
    }

    fn one(&mut self, ty: Type, like: Clif) -> Clif {
        let bits = if ty == Type::F32 { u64::from(1f32.to_bits()) } else { 1f64.to_bits() };
        self.constant_like(like, ty, bits)
    }

    pub(super) fn binary(&mut self, op: BinaryOp, ty: Type, a: Clif, b: Clif) -> Clif {
        match op {
            BinaryOp::Add if ty == Type::I1 => self.b.ins().bxor(a, b),
            BinaryOp::Add => self.b.ins().iadd(a, b),
            BinaryOp::Sub => self.b.ins().isub(a, b),
            BinaryOp::Mul => self.b.ins().imul(a, b),
            BinaryOp::MulHiS => self.b.ins().smulhi(a, b),
            BinaryOp::MulHiU => self.b.ins().umulhi(a, b),
            BinaryOp::DivS | BinaryOp::DivU | BinaryOp::RemS | BinaryOp::RemU => self.divide(op, ty, a, b),
            BinaryOp::And => self.b.ins().band(a, b),
            BinaryOp::Or => self.b.ins().bor(a, b),
            BinaryOp::Xor => self.b.ins().bxor(a, b),
            BinaryOp::Shl | BinaryOp::ShrS | BinaryOp::ShrU => self.shift(op, ty, a, b),
            BinaryOp::MinS => self.pick(IntCC::SignedLessThan, ty, a, b),
            BinaryOp::MaxS => self.pick(IntCC::SignedGreaterThan, ty, a, b),
            BinaryOp::MinU => self.pick(IntCC::UnsignedLessThan, ty, a, b),
            BinaryOp::MaxU => self.pick(IntCC::UnsignedGreaterThan, ty, a, b),
            BinaryOp::FMin | BinaryOp::FMax | BinaryOp::FMinNan | BinaryOp::FMaxNan => {
                self.float_extreme(op, ty, a, b)
            }
        }
    }

    /// `a` where the comparison holds, else `b`.
    fn pick(&mut self, condition: IntCC, ty: Type, a: Clif, b: Clif) -> Clif {
        let first = self.compare(condition, ty, a, b);
        self.choose(first, a, b)
    }

    /// Total division: all ones by zero (the dividend as remainder), and `MIN / -1` wraps.
    fn divide(&mut self, op: BinaryOp, ty: Type, a: Clif, b: Clif) -> Clif {
        if let Some(divisor) = self.known_constant(b)
            && divisor != 0
            && divisor as u64 & ty.mask() != ty.mask()
        {
            return match op {
                BinaryOp::DivU => self.b.ins().udiv(a, b),
                BinaryOp::RemU => self.b.ins().urem(a, b),
                BinaryOp::DivS => self.b.ins().sdiv(a, b),
                _ => self.b.ins().srem(a, b),
            };
        }
        let clif = clif_type(ty);
        let one = self.b.ins().iconst(clif, 1);
        let by_zero = self.b.ins().icmp_imm_u(IntCC::Equal, b, 0);
        let mut unsafe_divisor = by_zero;
        if matches!(op, BinaryOp::DivS | BinaryOp::RemS) {
            // `a / -1` is a negation, which does not trap.
            let by_minus_one = self.b.ins().icmp_imm_s(IntCC::Equal, b, -1);
            unsafe_divisor = self.b.ins().bor(by_zero, by_minus_one);
        }
        let divisor = self.choose(unsafe_divisor, one, b);
        match op {
            BinaryOp::DivU => {
                let quotient = self.b.ins().udiv(a, divisor);
                let ones = self.constant(ty, u64::MAX);
                self.choose(by_zero, ones, quotient)
            }
            BinaryOp::RemU => {
                let remainder = self.b.ins().urem(a, divisor);
                self.choose(by_zero, a, remainder)
            }
            BinaryOp::DivS => {
                let quotient = self.b.ins().sdiv(a, divisor);
                let negated = self.b.ins().ineg(a);
                let ones = self.constant(ty, u64::MAX);
                let special = self.choose(by_zero, ones, negated);
                self.choose(unsafe_divisor, special, quotient)
            }
            _ => {
                let remainder = self.b.ins().srem(a, divisor);
                self.choose(by_zero, a, remainder)
            }
        }
    }

    /// The number that an operand is known to be.
    fn known_constant(&self, value: Clif) -> Option<i64> {
        let inst = self.b.func.dfg.value_def(value).inst()?;
        match self.b.func.dfg.insts[inst] {
            InstructionData::UnaryImm { opcode: Opcode::Iconst, imm } => Some(imm.bits()),
            _ => None,
        }
    }

    /// Shifts by an I32 amount; amounts beyond the width shift everything out.
    fn shift(&mut self, op: BinaryOp, ty: Type, a: Clif, amount: Clif) -> Clif {
        let bits = i64::from(ty.bits());
        if self.known_constant(amount).is_some_and(|amount| (0..bits).contains(&amount)) {
            return match op {
                BinaryOp::Shl => self.b.ins().ishl(a, amount),
                BinaryOp::ShrU => self.b.ins().ushr(a, amount),
                _ => self.b.ins().sshr(a, amount),
            };
        }
        if op == BinaryOp::ShrS {
            let last = self.b.ins().iconst(types::I32, bits - 1);
            let amount = self.pick(IntCC::UnsignedLessThan, Type::I32, amount, last);
            return self.b.ins().sshr(a, amount);
        }
        let inside = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, amount, bits);
        let shifted =
            if op == BinaryOp::Shl { self.b.ins().ishl(a, amount) } else { self.b.ins().ushr(a, amount) };
        let zero = self.constant(ty, 0);
        self.choose(inside, shifted, zero)
    }

    /// Minimum and maximum with the zeros ordered; `a` and `b` are never both needed when one is
    /// NaN.
    fn float_extreme(&mut self, op: BinaryOp, ty: Type, a: Clif, b: Clif) -> Clif {
        let is_min = matches!(op, BinaryOp::FMin | BinaryOp::FMinNan);
        let condition = if is_min { FloatCC::LessThan } else { FloatCC::GreaterThan };
        let first = self.b.ins().fcmp(condition, a, b);
        let equal = self.b.ins().fcmp(FloatCC::Equal, a, b);
        // Equal operands differ at most in the sign of zero.
        let float = self.b.func.dfg.value_type(a);
        let int = float.as_int();
        let (a_bits, b_bits) = (self.bits(int, a), self.bits(int, b));
        let both = if is_min { self.b.ins().bor(a_bits, b_bits) } else { self.b.ins().band(a_bits, b_bits) };
        let both = self.bits(float, both);
        let second = self.choose(equal, both, b);
        let result = self.choose(first, a, second);
        let nan = match ty {
            Type::F32 => self.constant_like(a, ty, 0x7fff_ffff),
            _ => self.constant_like(a, ty, 0x7fff_ffff_ffff_ffff),
        };
        if matches!(op, BinaryOp::FMinNan | BinaryOp::FMaxNan) {
            let unordered = self.b.ins().fcmp(FloatCC::Unordered, a, b);
            return self.choose(unordered, nan, result);
        }
        let b_is_nan = self.b.ins().fcmp(FloatCC::Unordered, b, b);
        let result = self.choose(b_is_nan, a, result);
        let is_nan = self.b.ins().fcmp(FloatCC::Unordered, result, result);
        self.choose(is_nan, nan, result)
    }

    pub(super) fn bits(&mut self, to: ClifType, value: Clif) -> Clif {
        let from = self.b.func.dfg.value_type(value);
        if from == to {
            return value;
        }
        let flags = MemFlagsData::new();
        // Between vectors the order of bytes counts.
        let flags = if from.is_vector() { flags.with_endianness(Endianness::Little) } else { flags };
        self.b.ins().bitcast(to, flags, value)
    }

    fn float(&mut self, op: FloatOp, rounding: Rounding, ty: Type, a: Clif, b: Clif) -> Clif {
        if is_directed(rounding, ty) && op != FloatOp::Div {
            return self.directed_float(op, rounding, a, b);
        }
        if rounding != Rounding::Near {
            let function = match (op, ty) {
                (FloatOp::Add, Type::F32) => round::add32 as *const (),
                (FloatOp::Sub, Type::F32) => round::sub32 as *const (),
                (FloatOp::Mul, Type::F32) => round::mul32 as *const (),
                (FloatOp::Div, Type::F32) => round::div32 as *const (),
                (FloatOp::Add, _) => round::add64 as *const (),
                (FloatOp::Sub, _) => round::sub64 as *const (),
                (FloatOp::Mul, _) => round::mul64 as *const (),
                (FloatOp::Div, _) => round::div64 as *const (),
            };
            let mode = self.rounding_mode(rounding);
            return self.call(function, &[a, b, mode], Some(clif_type(ty)));
        }
        match op {
            FloatOp::Add => self.b.ins().fadd(a, b),
            FloatOp::Sub => self.b.ins().fsub(a, b),
            FloatOp::Mul => self.b.ins().fmul(a, b),
            FloatOp::Div => self.b.ins().fdiv(a, b),
        }
    }

    fn fma(&mut self, rounding: Rounding, ty: Type, [a, b, c]: [Clif; 3]) -> Clif {
        if rounding == Rounding::Near && self.machine.has_fma {
            return self.b.ins().fma(a, b, c);
        }
        if is_directed(rounding, ty) {
            return self.directed_fma(rounding, [a, b, c]);
        }
        let mode = self.rounding_mode(rounding);
        let function = if ty == Type::F32 { round::fma32 as *const () } else { round::fma64 as *const () };
        self.call(function, &[a, b, c, mode], Some(clif_type(ty)))
    }

    fn rounding_mode(&mut self, rounding: Rounding) -> Clif {
        self.b.ins().iconst(types::I32, i64::from(round::mode(rounding)))
    }

    fn convert(&mut self, op: ConvertOp, from: Type, to: Type, arg: Clif) -> Clif {
        let clif = clif_type(to);
        match op {
            ConvertOp::Truncate => {
                let low = if clif_type(from) == clif { arg } else { self.b.ins().ireduce(clif, arg) };
                if to == Type::I1 { self.b.ins().band_imm_u(low, 1) } else { low }
            }
            ConvertOp::SignExtend if from == Type::I1 => {
                let wide = if clif == types::I8 { arg } else { self.b.ins().uextend(clif, arg) };
                self.b.ins().ineg(wide)
            }
            ConvertOp::ZeroExtend | ConvertOp::SignExtend if clif_type(from) == clif => arg,
            ConvertOp::SignExtend => self.b.ins().sextend(clif, arg),
            ConvertOp::ZeroExtend => self.b.ins().uextend(clif, arg),
            ConvertOp::Bitcast => self.bits(clif, arg),
            ConvertOp::FloatToFloat(_) if from == to => arg,
            ConvertOp::FloatToFloat(_) if to == Type::F64 => self.b.ins().fpromote(clif, arg),
            ConvertOp::FloatToFloat(Rounding::Near) => self.b.ins().fdemote(clif, arg),
            ConvertOp::FloatToFloat(rounding) => {
                let mode = self.rounding_mode(rounding);
                self.call(round::demote as *const (), &[arg, mode], Some(clif))
            }
            ConvertOp::HalfToFloat => {
                let bits = self.b.ins().uextend(types::I32, arg);
                let single = self.single_of_half(bits);
                if to == Type::F64 { self.b.ins().fpromote(clif, single) } else { single }
            }
            ConvertOp::BfloatToFloat => {
                let bits = self.b.ins().uextend(types::I32, arg);
                let single = self.single_of_bfloat(bits);
                if to == Type::F64 { self.b.ins().fpromote(clif, single) } else { single }
            }
            ConvertOp::FloatToHalf(Rounding::Near) | ConvertOp::FloatToBfloat(Rounding::Near) => {
                let single = if from == Type::F64 { self.single_rounded_to_odd(&[arg]) } else { arg };
                let bits = match op {
                    ConvertOp::FloatToHalf(_) => self.half_of_single(single),
                    _ => self.bfloat_of_single(single),
                };
                self.b.ins().ireduce(types::I16, bits)
            }
            ConvertOp::FloatToHalf(rounding) | ConvertOp::FloatToBfloat(rounding) => {
                let is_half = matches!(op, ConvertOp::FloatToHalf(_));
                let wide = if from == Type::F32 { self.b.ins().fpromote(types::F64, arg) } else { arg };
                let mode = self.rounding_mode(rounding);
                let function =
                    if is_half { math::to_half as *const () } else { math::to_bfloat as *const () };
                let bits = self.call(function, &[wide, mode], Some(types::I32));
                self.b.ins().ireduce(types::I16, bits)
            }
            ConvertOp::SignedToFloat(rounding) | ConvertOp::UnsignedToFloat(rounding) => {
                let is_signed = matches!(op, ConvertOp::SignedToFloat(_));
                self.int_to_float(rounding, is_signed, from, to, arg)
            }
            ConvertOp::FloatToSigned(rounding) => self.float_to_int(rounding, true, from, to, arg),
            ConvertOp::FloatToUnsigned(rounding) => self.float_to_int(rounding, false, from, to, arg),
            ConvertOp::RoundToIntegral(rounding) => self.round_to_integral(rounding, from, arg),
            ConvertOp::FloatToTf32(rounding) => {
                let mode = self.rounding_mode(rounding);
                self.call(math::to_tf32 as *const (), &[arg, mode], Some(types::F32))
            }
        }
    }

    fn int_to_float(&mut self, rounding: Rounding, is_signed: bool, from: Type, to: Type, arg: Clif) -> Clif {
        let wide = match from.bits() {
            64 => arg,
            32 if rounding == Rounding::Near => arg,
            bits => {
                let wide = if rounding == Rounding::Near { types::I32 } else { types::I64 };
                debug_assert!(bits < wide.bits());
                if is_signed { self.b.ins().sextend(wide, arg) } else { self.b.ins().uextend(wide, arg) }
            }
        };
        if rounding == Rounding::Near {
            return match is_signed {
                true => self.b.ins().fcvt_from_sint(clif_type(to), wide),
                false => self.b.ins().fcvt_from_uint(clif_type(to), wide),
            };
        }
        let mode = self.rounding_mode(rounding);
        let function = match (is_signed, to) {
            (true, Type::F32) => round::signed_to_float32 as *const (),
            (true, _) => round::signed_to_float64 as *const (),
            (false, Type::F32) => round::unsigned_to_float32 as *const (),
            (false, _) => round::unsigned_to_float64 as *const (),
        };
        self.call(function, &[wide, mode], Some(clif_type(to)))
    }

    fn float_to_int(&mut self, rounding: Rounding, is_signed: bool, from: Type, to: Type, arg: Clif) -> Clif {
        let integral = match rounding {
            // The conversion truncates.
            Rounding::Zero => arg,
            _ => self.round_to_integral(rounding, from, arg),
        };
        let wide = if to.bits() < 32 { types::I32 } else { clif_type(to) };
        let mut result = if is_signed {
            self.b.ins().fcvt_to_sint_sat(wide, integral)
        } else {
            self.b.ins().fcvt_to_uint_sat(wide, integral)
        };
        if to.bits() < 32 {
            result = self.clamp_to(to, is_signed, result);
        }
        // NaN: 0 from F32 to at most 32 bits, as the conversion gives, and only the top bit set
        // otherwise.
        if from == Type::F64 || to == Type::I64 {
            let is_nan = self.b.ins().fcmp(FloatCC::Unordered, arg, arg);
            let top = self.constant(to, 1 << (to.bits() - 1));
            result = self.choose(is_nan, top, result);
        }
        result
    }

    /// An i32 clamped to the range of a narrower type.
    fn clamp_to(&mut self, to: Type, is_signed: bool, value: Clif) -> Clif {
        let clamped = if is_signed {
            let max = self.b.ins().iconst(types::I32, (1i64 << (to.bits() - 1)) - 1);
            let min = self.constant(Type::I32, (-(1i64 << (to.bits() - 1))) as u64);
            let low = self.pick(IntCC::SignedLessThan, Type::I32, value, max);
            self.pick(IntCC::SignedGreaterThan, Type::I32, low, min)
        } else {
            let max = self.b.ins().iconst(types::I32, (1i64 << to.bits()) - 1);
            self.pick(IntCC::UnsignedLessThan, Type::I32, value, max)
        };
        self.b.ins().ireduce(clif_type(to), clamped)
    }

    pub(super) fn round_to_integral(&mut self, rounding: Rounding, ty: Type, arg: Clif) -> Clif {
        match rounding {
            Rounding::Near => self.b.ins().nearest(arg),
            Rounding::Zero => self.b.ins().trunc(arg),
            Rounding::Down => self.b.ins().floor(arg),
            Rounding::Up => self.b.ins().ceil(arg),
            Rounding::NearAway => {
                let is_single = ty == Type::F32;
                let function =
                    if is_single { math::round_away32 as *const () } else { math::round_away64 as *const () };
                self.call(function, &[arg], Some(clif_type(ty)))
            }
        }
    }
}

pub(super) fn int_condition(condition: IntCond) -> IntCC {
    match condition {
        IntCond::Eq => IntCC::Equal,
        IntCond::Ne => IntCC::NotEqual,
        IntCond::LtS => IntCC::SignedLessThan,
        IntCond::LeS => IntCC::SignedLessThanOrEqual,
        IntCond::GtS => IntCC::SignedGreaterThan,
        IntCond::GeS => IntCC::SignedGreaterThanOrEqual,
        IntCond::LtU => IntCC::UnsignedLessThan,
        IntCond::LeU => IntCC::UnsignedLessThanOrEqual,
        IntCond::GtU => IntCC::UnsignedGreaterThan,
        IntCond::GeU => IntCC::UnsignedGreaterThanOrEqual,
    }
}

pub(super) fn float_condition(condition: FloatCond) -> FloatCC {
    match condition {
        FloatCond::Eq => FloatCC::Equal,
        FloatCond::Ne => FloatCC::OrderedNotEqual,
        FloatCond::Lt => FloatCC::LessThan,
        FloatCond::Le => FloatCC::LessThanOrEqual,
        FloatCond::Gt => FloatCC::GreaterThan,
        FloatCond::Ge => FloatCC::GreaterThanOrEqual,
        FloatCond::EqU => FloatCC::UnorderedOrEqual,
        FloatCond::NeU => FloatCC::NotEqual,
        FloatCond::LtU => FloatCC::UnorderedOrLessThan,
        FloatCond::LeU => FloatCC::UnorderedOrLessThanOrEqual,
        FloatCond::GtU => FloatCC::UnorderedOrGreaterThan,
        FloatCond::GeU => FloatCC::UnorderedOrGreaterThanOrEqual,
        FloatCond::Num => FloatCC::Ordered,
        FloatCond::Nan => FloatCC::Unordered,
    }
}
