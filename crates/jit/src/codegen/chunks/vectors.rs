//! Pure instructions on vectors, and which those are.

use cranelift_codegen::ir::{InstBuilder, Value as Clif, types};
use sluice_ir::{BinaryOp, ConvertOp, Inst, InstId, Kernel, Rounding, Type, UnaryOp};

use super::values::{is_vector_type, vector_type};
use super::{Chunk, Vector};
use crate::codegen::emitter::Emitter;

impl Emitter<'_> {
    pub(super) fn vector_inst(&mut self, inst: &Inst, quad: usize, chunk: &mut Chunk) -> Vector {
        if let Inst::Convert { op, from, to, arg } = *inst {
            let arg = self.vector(arg, quad, chunk);
            return self.convert_vector(op, from, to, arg);
        }
        if let Inst::Binary { op, args: [value, amount], .. } = *inst
            && op.is_shift()
        {
            let amount = self.uniform(amount);
            return match self.vector(value, quad, chunk) {
                Vector::Words(words) => Vector::Words(self.scalar(inst, &[words, amount])),
                Vector::Wides(halves) => Vector::Wides(halves.map(|half| self.scalar(inst, &[half, amount]))),
            };
        }
        let mut args = Vec::with_capacity(3);
        inst.for_each_arg(|value| args.push(self.vector(value, quad, chunk)));
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

    /// Half of a wide vector; of a predicate beside wide ones, its lanes made as wide.
    pub(super) fn half(&mut self, vector: Vector, number: usize) -> Clif {
        match vector {
            Vector::Wides(halves) => halves[number],
            Vector::Words(words) => words,
        }
    }

    /// The low 32 bits of each of four wide lanes.
    pub(super) fn narrow_halves(&mut self, [low, high]: [Clif; 2]) -> Clif {
        let low = self.bits(types::I8X16, low);
        let high = self.bits(types::I8X16, high);
        let picks = [0u8, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27];
        let picks = self.b.func.dfg.immediates.push(picks.to_vec().into());
        let words = self.b.ins().shuffle(low, high, picks);
        self.bits(types::I32X4, words)
    }

    pub(super) fn convert_vector(&mut self, op: ConvertOp, from: Type, to: Type, arg: Vector) -> Vector {
        match (op, arg) {
            (ConvertOp::Truncate, Vector::Wides(halves)) => Vector::Words(self.narrow_halves(halves)),
            (ConvertOp::ZeroExtend | ConvertOp::SignExtend, Vector::Words(words)) => {
                let is_signed = op == ConvertOp::SignExtend;
                let words =
                    if from == Type::I1 && !is_signed { self.b.ins().ushr_imm_u(words, 31) } else { words };
                if to.bits() == 32 {
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
            (ConvertOp::FloatToFloat(_), Vector::Words(words)) => {
                let low = self.b.ins().fvpromote_low(words);
                let bytes = self.bits(types::I8X16, words);
                let picks: Vec<u8> = (8..16).chain(8..16).collect();
                let picks = self.b.func.dfg.immediates.push(picks.into());
                let upper = self.b.ins().shuffle(bytes, bytes, picks);
                let upper = self.bits(types::F32X4, upper);
                Vector::Wides([low, self.b.ins().fvpromote_low(upper)])
            }
            (ConvertOp::FloatToFloat(_), Vector::Wides(halves)) => {
                let [low, high] = halves.map(|half| {
                    let narrow = self.b.ins().fvdemote(half);
                    self.bits(types::I8X16, narrow)
                });
                let picks: Vec<u8> = (0..8).chain(16..24).collect();
                let picks = self.b.func.dfg.immediates.push(picks.into());
                let words = self.b.ins().shuffle(low, high, picks);
                Vector::Words(self.bits(types::F32X4, words))
            }
            (ConvertOp::SignedToFloat(_), Vector::Words(words)) => {
                Vector::Words(self.b.ins().fcvt_from_sint(types::F32X4, words))
            }
            (ConvertOp::UnsignedToFloat(_), Vector::Words(words)) => {
                Vector::Words(self.b.ins().fcvt_from_uint(types::F32X4, words))
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

/// Whether an instruction has a form on vectors.
pub(super) fn is_vector_inst(kernel: &Kernel, id: InstId) -> bool {
    let is_float = |ty: Type| ty.is_float();
    let is_int = |ty: Type| matches!(ty, Type::I32 | Type::I64);
    match &kernel.inst(id).inst {
        Inst::Unary { op, ty, .. } => match op {
            UnaryOp::Not => is_int(*ty) || *ty == Type::I1,
            UnaryOp::Neg | UnaryOp::Abs => is_int(*ty),
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
        Inst::Float { rounding, .. } | Inst::Fma { rounding, .. } | Inst::Sqrt { rounding, .. } => {
            *rounding == Rounding::Near
        }
        Inst::Compare { ty, .. } => is_int(*ty),
        Inst::FloatCompare { .. } => true,
        // Beside a predicate, wide lanes would need a wide predicate.
        Inst::Select { ty, .. } => matches!(ty, Type::I1 | Type::I32 | Type::F32),
        Inst::Convert { op, from, to, .. } => match op {
            ConvertOp::Truncate => *from == Type::I64 && *to == Type::I32,
            ConvertOp::SignExtend | ConvertOp::ZeroExtend => {
                matches!(from, Type::I1 | Type::I32) && is_int(*to)
            }
            ConvertOp::Bitcast => is_vector_type(*to),
            ConvertOp::FloatToFloat(rounding) => from != to && *rounding == Rounding::Near,
            ConvertOp::SignedToFloat(rounding) | ConvertOp::UnsignedToFloat(rounding) => {
                (*from, *to, *rounding) == (Type::I32, Type::F32, Rounding::Near)
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
