//! Pure instructions on vectors, and which those are.

use cranelift_codegen::ir::{InstBuilder, Value as Clif, types};
use sluice_ir::{BinaryOp, ConvertOp, FloatOp, Inst, InstId, IntCond, Kernel, Rounding, Type, UnaryOp};

use super::values::vector_type;
use super::{Chunk, Vector};
use crate::codegen::emitter::Emitter;
use crate::codegen::rounding::is_directed;

impl Emitter<'_> {
    pub(super) fn vector_inst(&mut self, inst: &Inst, quad: usize, chunk: &mut Chunk) -> Vector {
        if let Inst::Convert { op, from, to, arg } = *inst {
            let arg = self.vector(arg, quad, chunk);
            return self.convert_vector(op, from, to, arg);
        }
        if let Inst::Binary { op, ty, args: [value, amount] } = *inst
            && op.is_shift()
        {
            let amount = self.uniform(amount);
            let vector = self.vector(value, quad, chunk);
            return match self.extended(vector, ty, op == BinaryOp::ShrS) {
                Vector::Words(words) => Vector::Words(self.scalar(inst, &[words, amount])),
                Vector::Wides(halves) => Vector::Wides(halves.map(|half| self.scalar(inst, &[half, amount]))),
            };
        }
        if let Inst::Permute { args: [low, high, picks] } = *inst {
            let [low, high] = [low, high].map(|value| self.vector(value, quad, chunk));
            let picks = self.kernel.constant(picks).expect("vectors take bytes from known places");
            return self.permute_vector(low, high, picks as u32);
        }
        let mut args = Vec::with_capacity(3);
        inst.for_each_arg(|value| args.push(self.vector(value, quad, chunk)));
        match *inst {
            Inst::Select { ty, .. } if ty.bits() == 64 => {
                // Beside a predicate, wide lanes need a wide predicate.
                let words = self.half(args[0], 0);
                let halves = [self.b.ins().swiden_low(words), self.b.ins().swiden_high(words)];
                args[0] = Vector::Wides(halves);
            }
            Inst::Compare { ty, cond, .. } => {
                let is_signed = matches!(cond, IntCond::LtS | IntCond::LeS | IntCond::GtS | IntCond::GeS);
                args.iter_mut().for_each(|arg| *arg = self.extended(*arg, ty, is_signed));
            }
            Inst::Binary { op, ty, .. } if has_order(op) => {
                let is_signed = matches!(op, BinaryOp::MinS | BinaryOp::MaxS);
                args.iter_mut().for_each(|arg| *arg = self.extended(*arg, ty, is_signed));
            }
            _ => {}
        }
        let is_wide = args.iter().any(|arg| matches!(arg, Vector::Wides(_)));
        if !is_wide {
            let args: Vec<Clif> = args.into_iter().map(|arg| self.half(arg, 0)).collect();
            return Vector::Words(self.scalar(inst, &args));
        }
        let halves = [0, 1].map(|number| {
            let args: Vec<Clif> = args.iter().map(|&arg| self.half(arg, number)).collect();
            self.scalar(inst, &args)
        });
        match inst {
            Inst::Compare { .. } | Inst::FloatCompare { .. } => Vector::Words(self.narrow_halves(halves)),
            _ => Vector::Wides(halves),
        }
    }

    /// An integer of 8 or 16 bits with all bits of its lanes; any other vector as it is.
    fn extended(&mut self, vector: Vector, ty: Type, is_signed: bool) -> Vector {
        let (Vector::Words(words), Type::I8 | Type::I16) = (vector, ty) else { return vector };
        if !is_signed {
            let mask = self.constant_like(words, Type::I32, ty.mask());
            return Vector::Words(self.b.ins().band(words, mask));
        }
        let above = i64::from(32 - ty.bits());
        let top = self.b.ins().ishl_imm_u(words, above);
        Vector::Words(self.b.ins().sshr_imm_u(top, above))
    }

    /// `prmt` with a known selector that replicates no sign.
    fn permute_vector(&mut self, low: Vector, high: Vector, selector: u32) -> Vector {
        let [low, high] = [low, high].map(|vector| {
            let words = self.half(vector, 0);
            self.bits(types::I8X16, words)
        });
        let picks: Vec<u8> = (0..16u8)
            .map(|byte| {
                let nibble = (selector >> (4 * (byte % 4)) & 7) as u8;
                nibble / 4 * 16 + byte / 4 * 4 + nibble % 4
            })
            .collect();
        let picks = self.b.func.dfg.immediates.push(picks.into());
        let bytes = self.b.ins().shuffle(low, high, picks);
        Vector::Words(self.bits(types::I32X4, bytes))
    }

    /// Half of a wide vector.
    pub(super) fn half(&mut self, vector: Vector, number: usize) -> Clif {
        match vector {
            Vector::Wides(halves) => halves[number],
            Vector::Words(words) => words,
        }
    }

    /// The low 32 bits of each of four wide lanes.
    pub(in crate::codegen) fn narrow_halves(&mut self, halves: [Clif; 2]) -> Clif {
        self.words_of_halves(halves, [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27])
    }

    /// The high 32 bits of each of four wide lanes.
    pub(in crate::codegen) fn upper_halves(&mut self, halves: [Clif; 2]) -> Clif {
        self.words_of_halves(halves, [4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31])
    }

    fn words_of_halves(&mut self, [low, high]: [Clif; 2], picks: [u8; 16]) -> Clif {
        let low = self.bits(types::I8X16, low);
        let high = self.bits(types::I8X16, high);
        let picks = self.b.func.dfg.immediates.push(picks.to_vec().into());
        let words = self.b.ins().shuffle(low, high, picks);
        self.bits(types::I32X4, words)
    }

    /// Four F32 as F64.
    pub(in crate::codegen) fn promote_vector(&mut self, words: Clif) -> [Clif; 2] {
        let low = self.b.ins().fvpromote_low(words);
        let bytes = self.bits(types::I8X16, words);
        let picks: Vec<u8> = (8..16).chain(8..16).collect();
        let picks = self.b.func.dfg.immediates.push(picks.into());
        let upper = self.b.ins().shuffle(bytes, bytes, picks);
        let upper = self.bits(types::F32X4, upper);
        [low, self.b.ins().fvpromote_low(upper)]
    }

    /// Four F64 rounded to F32.
    pub(in crate::codegen) fn demote_vector(&mut self, halves: [Clif; 2]) -> Clif {
        let [low, high] = halves.map(|half| {
            let narrow = self.b.ins().fvdemote(half);
            self.bits(types::I8X16, narrow)
        });
        let picks: Vec<u8> = (0..8).chain(16..24).collect();
        let picks = self.b.func.dfg.immediates.push(picks.into());
        let words = self.b.ins().shuffle(low, high, picks);
        self.bits(types::F32X4, words)
    }

    pub(super) fn convert_vector(&mut self, op: ConvertOp, from: Type, to: Type, arg: Vector) -> Vector {
        match (op, arg) {
            (ConvertOp::Truncate, Vector::Wides(halves)) => Vector::Words(self.narrow_halves(halves)),
            (ConvertOp::Truncate, words) => words,
            (ConvertOp::HalfToFloat | ConvertOp::BfloatToFloat, Vector::Words(words)) => {
                let single = match op {
                    ConvertOp::HalfToFloat => self.single_of_half(words),
                    _ => self.single_of_bfloat(words),
                };
                if to == Type::F32 {
                    return Vector::Words(single);
                }
                Vector::Wides(self.promote_vector(single))
            }
            (ConvertOp::FloatToHalf(_) | ConvertOp::FloatToBfloat(_), arg) => {
                let single = match arg {
                    Vector::Words(words) => words,
                    Vector::Wides(halves) => self.single_rounded_to_odd(&halves),
                };
                Vector::Words(match op {
                    ConvertOp::FloatToHalf(_) => self.half_of_single(single),
                    _ => self.bfloat_of_single(single),
                })
            }
            (ConvertOp::ZeroExtend | ConvertOp::SignExtend, Vector::Words(words)) => {
                let is_signed = op == ConvertOp::SignExtend;
                let words =
                    if from == Type::I1 && !is_signed { self.b.ins().ushr_imm_u(words, 31) } else { words };
                let extended = self.extended(Vector::Words(words), from, is_signed);
                let words = self.half(extended, 0);
                if to.bits() <= 32 {
                    return Vector::Words(words);
                }
                Vector::Wides(if is_signed {
                    [self.b.ins().swiden_low(words), self.b.ins().swiden_high(words)]
                } else {
                    [self.b.ins().uwiden_low(words), self.b.ins().uwiden_high(words)]
                })
            }
            (ConvertOp::Bitcast, Vector::Words(words)) => Vector::Words(self.bits(vector_type(to), words)),
            (ConvertOp::Bitcast, Vector::Wides(halves)) => {
                Vector::Wides(halves.map(|half| self.bits(vector_type(to), half)))
            }
            (ConvertOp::FloatToFloat(_), Vector::Words(words)) => Vector::Wides(self.promote_vector(words)),
            (ConvertOp::FloatToFloat(_), Vector::Wides(halves)) => Vector::Words(self.demote_vector(halves)),
            (ConvertOp::SignedToFloat(_) | ConvertOp::UnsignedToFloat(_), arg) => {
                let is_signed = matches!(op, ConvertOp::SignedToFloat(_));
                let extended = self.extended(arg, from, is_signed);
                let words = self.half(extended, 0);
                Vector::Words(match is_signed || from != Type::I32 {
                    true => self.b.ins().fcvt_from_sint(types::F32X4, words),
                    false => self.b.ins().fcvt_from_uint(types::F32X4, words),
                })
            }
            (
                ConvertOp::FloatToSigned(rounding) | ConvertOp::FloatToUnsigned(rounding),
                Vector::Words(words),
            ) => {
                let integral = match rounding {
                    Rounding::Zero => words,
                    _ => self.round_to_integral(rounding, from, words),
                };
                Vector::Words(match op {
                    ConvertOp::FloatToSigned(_) => self.b.ins().fcvt_to_sint_sat(types::I32X4, integral),
                    _ => self.b.ins().fcvt_to_uint_sat(types::I32X4, integral),
                })
            }
            (ConvertOp::RoundToIntegral(rounding), Vector::Words(words)) => {
                Vector::Words(self.round_to_integral(rounding, from, words))
            }
            (ConvertOp::RoundToIntegral(rounding), Vector::Wides(halves)) => {
                Vector::Wides(halves.map(|half| self.round_to_integral(rounding, from, half)))
            }
            _ => unreachable!("not a conversion of vectors: {op:?} from {from} to {to}"),
        }
    }
}

/// Whether an operation looks at the upper bits of its operands.
fn has_order(op: BinaryOp) -> bool {
    matches!(op, BinaryOp::MinS | BinaryOp::MaxS | BinaryOp::MinU | BinaryOp::MaxU)
}

/// Whether an instruction has a form on vectors.
pub(super) fn is_vector_inst(kernel: &Kernel, id: InstId) -> bool {
    let is_float = |ty: Type| ty.is_float();
    let is_int = |ty: Type| matches!(ty, Type::I8 | Type::I16 | Type::I32 | Type::I64);
    match &kernel.inst(id).inst {
        Inst::Unary { op, ty, .. } => match op {
            UnaryOp::Not => is_int(*ty) || *ty == Type::I1,
            UnaryOp::Neg => is_int(*ty),
            UnaryOp::Abs => matches!(ty, Type::I32 | Type::I64),
            UnaryOp::Ex2 | UnaryOp::Lg2 | UnaryOp::Sin | UnaryOp::Cos | UnaryOp::Tanh => *ty == Type::F32,
            UnaryOp::FNeg | UnaryOp::FAbs | UnaryOp::FlushSubnormal | UnaryOp::Rcp | UnaryOp::Rsqrt => true,
            _ => false,
        },
        Inst::Binary { op, ty, args } => match op {
            BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => is_int(*ty) || *ty == Type::I1,
            BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul => is_int(*ty),
            BinaryOp::MinS | BinaryOp::MaxS | BinaryOp::MinU | BinaryOp::MaxU => is_int(*ty),
            BinaryOp::Shl | BinaryOp::ShrS | BinaryOp::ShrU => {
                is_int(*ty) && kernel.constant(args[1]).is_some_and(|amount| amount < u64::from(ty.bits()))
            }
            BinaryOp::FMin | BinaryOp::FMax | BinaryOp::FMinNan | BinaryOp::FMaxNan => true,
            _ => false,
        },
        Inst::Float { op, rounding, ty, .. } => {
            *rounding == Rounding::Near || (is_directed(*rounding, *ty) && *op != FloatOp::Div)
        }
        Inst::Fma { rounding, ty, .. } => *rounding == Rounding::Near || is_directed(*rounding, *ty),
        Inst::Sqrt { rounding, .. } => *rounding == Rounding::Near,
        Inst::Permute { args } => kernel.constant(args[2]).is_some_and(|picks| picks & 0x8888 == 0),
        Inst::Compare { ty, .. } => is_int(*ty),
        Inst::FloatCompare { .. } => true,
        Inst::Select { .. } => true,
        Inst::Convert { op, from, to, .. } => match op {
            ConvertOp::Truncate => *to != Type::I1,
            ConvertOp::SignExtend | ConvertOp::ZeroExtend => *from != Type::I64 && is_int(*to),
            ConvertOp::Bitcast => true,
            ConvertOp::HalfToFloat | ConvertOp::BfloatToFloat => true,
            ConvertOp::FloatToHalf(rounding) | ConvertOp::FloatToBfloat(rounding) => {
                *rounding == Rounding::Near
            }
            ConvertOp::FloatToFloat(rounding) => from != to && *rounding == Rounding::Near,
            ConvertOp::SignedToFloat(rounding) | ConvertOp::UnsignedToFloat(rounding) => {
                matches!(from, Type::I8 | Type::I16 | Type::I32)
                    && (*to, *rounding) == (Type::F32, Rounding::Near)
            }
            ConvertOp::FloatToSigned(rounding) | ConvertOp::FloatToUnsigned(rounding) => {
                (*from, *to) == (Type::F32, Type::I32) && *rounding != Rounding::NearAway
            }
            ConvertOp::RoundToIntegral(rounding) => is_float(*to) && *rounding != Rounding::NearAway,
            _ => false,
        },
        _ => false,
    }
}
