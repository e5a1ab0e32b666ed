//! Comparison and selection (PTX ISA, "Comparison and Selection Instructions"; `testp`).

use sluice_ptx::ast::{Instruction, Operand};
use sluice_ptx::{Modifier, Type as PtxType};

use super::half::Half;
use super::operand::{int_type, register_type};
use super::{Lowered, Lowering, choose, malformed, operand, ptx_type, unsupported};
use crate::inst::{BinaryOp, FloatCond, IntCond, UnaryOp};
use crate::types::{Type, Value};

impl<'m> Lowering<'m> {
    /// `setp.cmp[.bool].type p[|q], a, b[, c]`: p = (a cmp b) bool c, q = !(a cmp b) bool c; on
    /// packed halves p and q are the results of the low and the high half.
    pub(super) fn setp(&mut self, i: &Instruction) -> Lowered {
        let ptx = ptx_type(i)?;
        let (first, second) = match operand(i, 0)? {
            Operand::Pair(pair) => (&pair[0], Some(&pair[1])),
            one => (one, None),
        };
        if matches!(ptx, PtxType::F16x2 | PtxType::Bf16x2) {
            let [low, high] = self.compare_halves(i, ptx)?;
            let low = self.combine(i, low)?;
            let high = self.combine(i, high)?;
            self.write(first, low)?;
            return second.map_or(Ok(()), |second| self.write(second, high));
        }
        let result = self.comparison(i, ptx)?;
        let both = self.combine(i, result)?;
        let inverse = match second {
            Some(Operand::Sink) | None => None,
            Some(second) => {
                let not = self.build().unary(UnaryOp::Not, result);
                Some((second, self.combine(i, not)?))
            }
        };
        self.write(first, both)?;
        inverse.map_or(Ok(()), |(second, value)| self.write(second, value))
    }

    /// `set.cmp[.bool].dtype.stype d, a, b[, c]`: all ones or 1.0 where the comparison holds.
    pub(super) fn set(&mut self, i: &Instruction) -> Lowered {
        let mut types = i.types();
        let (Some(to), Some(from)) = (types.next(), types.next()) else { return Err(malformed(i)) };
        if matches!(from, PtxType::F16x2 | PtxType::Bf16x2) {
            let [low, high] = self.compare_halves(i, from)?;
            let element = match to {
                PtxType::F16x2 => 0x3c00,
                PtxType::Bf16x2 => 0x3f80,
                _ => 0xffff,
            };
            let mut results = [low, high];
            for result in &mut results {
                let holds = self.combine(i, *result)?;
                let mut build = self.build();
                let yes = build.constant(Type::I16, element);
                let no = build.constant(Type::I16, 0);
                *result = build.select(holds, yes, no);
            }
            let result = self.join_halves(results);
            return self.write(operand(i, 0)?, result);
        }
        let result = self.comparison(i, from)?;
        let holds = self.combine(i, result)?;
        let bits = match to {
            PtxType::F32 => u64::from(1.0f32.to_bits()),
            PtxType::F16 => 0x3c00,
            PtxType::Bf16 => 0x3f80,
            _ => u64::MAX,
        };
        let ty = register_type(to);
        let mut build = self.build();
        let yes = build.constant(ty, bits);
        let no = build.constant(ty, 0);
        let result = build.select(holds, yes, no);
        self.write(operand(i, 0)?, result)
    }

    /// A comparison's result combined with the third operand, if there is one.
    fn combine(&mut self, i: &Instruction, result: Value) -> Lowered<Value> {
        let Some(third) = i.operands.get(3) else { return Ok(result) };
        let third = self.read(third, Type::I1)?;
        let op = choose(
            i,
            &[(Modifier::And, BinaryOp::And), (Modifier::Or, BinaryOp::Or), (Modifier::Xor, BinaryOp::Xor)],
        );
        let op = op.ok_or_else(|| malformed(i))?;
        Ok(self.build().binary(op, result, third))
    }

    fn comparison(&mut self, i: &Instruction, ptx: PtxType) -> Lowered<Value> {
        let ty = register_type(ptx);
        let a = self.read(operand(i, 1)?, ty)?;
        let b = self.read(operand(i, 2)?, ty)?;
        if !ptx.is_float() {
            let cond = int_condition(i, ptx.is_signed())?;
            return Ok(self.build().compare(cond, a, b));
        }
        let cond = float_condition(i)?;
        let [a, b] = match ptx {
            PtxType::F16 => [a, b].map(|value| self.build().convert(Half::Ieee.widen(), Type::F32, value)),
            PtxType::Bf16 => [a, b].map(|value| self.build().convert(Half::Bfloat.widen(), Type::F32, value)),
            PtxType::F32 if i.has(Modifier::Ftz) => {
                [a, b].map(|value| self.build().unary(UnaryOp::FlushSubnormal, value))
            }
            PtxType::F32 | PtxType::F64 => [a, b],
            _ => return Err(unsupported(i)),
        };
        Ok(self.build().float_compare(cond, a, b))
    }

    fn compare_halves(&mut self, i: &Instruction, ptx: PtxType) -> Lowered<[Value; 2]> {
        let half = if ptx == PtxType::F16x2 { Half::Ieee } else { Half::Bfloat };
        let cond = float_condition(i)?;
        let a = self.read(operand(i, 1)?, Type::I32)?;
        let b = self.read(operand(i, 2)?, Type::I32)?;
        let (a, b) = (self.halves(a), self.halves(b));
        Ok([0, 1].map(|at| {
            let mut build = self.build();
            let a = build.convert(half.widen(), Type::F32, a[at]);
            let b = build.convert(half.widen(), Type::F32, b[at]);
            build.float_compare(cond, a, b)
        }))
    }

    pub(super) fn selp(&mut self, i: &Instruction) -> Lowered {
        let ty = register_type(ptx_type(i)?);
        let a = self.read(operand(i, 1)?, ty)?;
        let b = self.read(operand(i, 2)?, ty)?;
        let cond = self.read(operand(i, 3)?, Type::I1)?;
        let result = self.build().select(cond, a, b);
        self.write(operand(i, 0)?, result)
    }

    /// `slct.dtype.ctype d, a, b, c`: a where c >= 0, else b.
    pub(super) fn slct(&mut self, i: &Instruction) -> Lowered {
        let mut types = i.types();
        let (Some(ptx), Some(decider)) = (types.next(), types.next()) else { return Err(malformed(i)) };
        let ty = register_type(ptx);
        let a = self.read(operand(i, 1)?, ty)?;
        let b = self.read(operand(i, 2)?, ty)?;
        let c = self.read(operand(i, 3)?, register_type(decider))?;
        let mut build = self.build();
        let cond = if decider == PtxType::F32 {
            // A NaN selects b, -0 selects a.
            let zero = build.f32(0.0);
            let c = if i.has(Modifier::Ftz) { build.unary(UnaryOp::FlushSubnormal, c) } else { c };
            build.float_compare(FloatCond::Ge, c, zero)
        } else {
            let zero = build.i32(0);
            build.compare(IntCond::GeS, c, zero)
        };
        let result = build.select(cond, a, b);
        self.write(operand(i, 0)?, result)
    }

    /// `testp`: classes of floats, which follow from the bits without the sign.
    pub(super) fn testp(&mut self, i: &Instruction) -> Lowered {
        let ptx = ptx_type(i)?;
        let (infinity, smallest_normal): (u64, u64) = match ptx {
            PtxType::F32 => (0x7f80_0000, 0x0080_0000),
            PtxType::F64 => (0x7ff0_0000_0000_0000, 0x0010_0000_0000_0000),
            _ => return Err(unsupported(i)),
        };
        let ty = int_type(ptx);
        let value = self.read(operand(i, 1)?, ty)?;
        let mut build = self.build();
        let magnitude = build.binary_imm(BinaryOp::And, value, ty.mask() >> 1);
        let mut against = |cond, limit| {
            let limit = build.constant(ty, limit);
            build.compare(cond, magnitude, limit)
        };
        let result = match () {
            _ if i.has(Modifier::Finite) => against(IntCond::LtU, infinity),
            _ if i.has(Modifier::Infinite) => against(IntCond::Eq, infinity),
            _ if i.has(Modifier::Number) => against(IntCond::LeU, infinity),
            _ if i.has(Modifier::Notanumber) => against(IntCond::GtU, infinity),
            _ if i.has(Modifier::Normal) => {
                let low = against(IntCond::GeU, smallest_normal);
                let high = against(IntCond::LtU, infinity);
                build.binary(BinaryOp::And, low, high)
            }
            _ if i.has(Modifier::Subnormal) => {
                let low = against(IntCond::GtU, 0);
                let high = against(IntCond::LtU, smallest_normal);
                build.binary(BinaryOp::And, low, high)
            }
            _ => return Err(malformed(i)),
        };
        self.write(operand(i, 0)?, result)
    }
}

fn int_condition(i: &Instruction, signed: bool) -> Lowered<IntCond> {
    use IntCond::*;
    let cond = choose(
        i,
        &[
            (Modifier::Eq, Eq),
            (Modifier::Ne, Ne),
            (Modifier::Lt, if signed { LtS } else { LtU }),
            (Modifier::Le, if signed { LeS } else { LeU }),
            (Modifier::Gt, if signed { GtS } else { GtU }),
            (Modifier::Ge, if signed { GeS } else { GeU }),
            (Modifier::Lo, LtU),
            (Modifier::Ls, LeU),
            (Modifier::Hi, GtU),
            (Modifier::Hs, GeU),
        ],
    );
    cond.ok_or_else(|| malformed(i))
}

fn float_condition(i: &Instruction) -> Lowered<FloatCond> {
    use FloatCond::*;
    let cond = choose(
        i,
        &[
            (Modifier::Eq, Eq),
            (Modifier::Ne, Ne),
            (Modifier::Lt, Lt),
            (Modifier::Le, Le),
            (Modifier::Gt, Gt),
            (Modifier::Ge, Ge),
            (Modifier::Equ, EqU),
            (Modifier::Neu, NeU),
            (Modifier::Ltu, LtU),
            (Modifier::Leu, LeU),
            (Modifier::Gtu, GtU),
            (Modifier::Geu, GeU),
            (Modifier::Num, Num),
            (Modifier::Nan, Nan),
        ],
    );
    cond.ok_or_else(|| malformed(i))
}
