//! Floating-point arithmetic (PTX ISA, "Floating Point Instructions", "Half Precision Floating
//! Point Instructions").
//!
//! 16-bit formats compute in F32, whose 24 bits make one further rounding to 11 or 8 bits harmless
//! for everything but fused multiply-add, which rounds to odd (in F64 for `bf16`, whose exponents
//! reach further). Packed formats do each half by itself.

use sluice_ptx::ast::Instruction;
use sluice_ptx::{Modifier, Opcode, Type as PtxType};

use super::half::Half;
use super::operand::register_type;
use super::{Lowered, Lowering, choose, operand, ptx_type, unsupported};
use crate::inst::{BinaryOp, FloatCond, FloatOp, Inst, IntCond, Rounding, UnaryOp};
use crate::types::{Type, Value};

/// What a float instruction does to each element.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Arithmetic(FloatOp, Rounding),
    Fma(Rounding),
    Sqrt(Rounding),
    Reciprocal(Rounding),
    Approximate(UnaryOp),
    MinMax(BinaryOp),
    /// Sign of the first operand, rest of the second.
    CopySign,
    Abs,
    Neg,
}

impl<'m> Lowering<'m> {
    pub(super) fn float(&mut self, i: &Instruction) -> Lowered {
        let ptx = ptx_type(i)?;
        let operation = operation(i)?;
        let ty = register_type(ptx);
        let mut args = Vec::with_capacity(3);
        for operand in &i.operands[1..] {
            args.push(self.read(operand, ty)?);
        }
        let needed = match operation {
            Operation::Fma(_) => 3,
            Operation::Arithmetic(..) | Operation::MinMax(_) | Operation::CopySign => 2,
            _ => 1,
        };
        if args.len() < needed {
            return Err(super::malformed(i));
        }
        let result = match ptx {
            PtxType::F32 | PtxType::F64 => self.element_result(i, operation, &args),
            PtxType::F16 => self.half_result(i, operation, Half::Ieee, &args),
            PtxType::Bf16 => self.half_result(i, operation, Half::Bfloat, &args),
            PtxType::F16x2 | PtxType::Bf16x2 => {
                let half = if ptx == PtxType::F16x2 { Half::Ieee } else { Half::Bfloat };
                let parts: Vec<[Value; 2]> = args.iter().map(|arg| self.halves(*arg)).collect();
                let results = [0, 1].map(|at| {
                    let args: Vec<Value> = parts.iter().map(|part| part[at]).collect();
                    self.half_result(i, operation, half, &args)
                });
                self.join_halves(results)
            }
            PtxType::F32x2 => self.pair_result(i, operation, &args),
            _ => return Err(unsupported(i)),
        };
        self.write(operand(i, 0)?, result)
    }

    /// An operation on F32 or F64 values, with `.ftz` and `.sat`.
    fn element_result(&mut self, i: &Instruction, operation: Operation, args: &[Value]) -> Value {
        let flushes = i.has(Modifier::Ftz) && self.kernel.ty(args[0]) == Type::F32;
        let args: Vec<Value> = args.iter().map(|arg| if flushes { self.flush(*arg) } else { *arg }).collect();
        let mut result = self.compute(i, operation, &args);
        if flushes {
            result = self.flush(result);
        }
        self.clamp(i, result)
    }

    fn flush(&mut self, value: Value) -> Value {
        self.build().unary(UnaryOp::FlushSubnormal, value)
    }

    /// `.sat` and `.relu`.
    fn clamp(&mut self, i: &Instruction, value: Value) -> Value {
        let ty = self.kernel.ty(value);
        let mut build = self.build();
        let mut value = value;
        if i.has(Modifier::Sat) {
            // A NaN loses against 0.
            let (zero, one) = if ty == Type::F32 {
                (build.f32(0.0), build.f32(1.0))
            } else {
                (build.f64(0.0), build.f64(1.0))
            };
            let above = build.binary(BinaryOp::FMax, value, zero);
            value = build.binary(BinaryOp::FMin, above, one);
        }
        if i.has(Modifier::Relu) {
            let zero = if ty == Type::F32 { build.f32(0.0) } else { build.f64(0.0) };
            value = build.binary(BinaryOp::FMaxNan, value, zero);
        }
        value
    }

    fn compute(&mut self, i: &Instruction, operation: Operation, args: &[Value]) -> Value {
        let ty = self.kernel.ty(args[0]);
        let mut build = self.build();
        match operation {
            Operation::Arithmetic(op, rounding) => build.float(op, rounding, args[0], args[1]),
            Operation::Fma(rounding) => build.fma(rounding, args[0], args[1], args[2]),
            Operation::Sqrt(rounding) => build.value(Inst::Sqrt { rounding, ty, arg: args[0] }),
            Operation::Reciprocal(rounding) => {
                let one = if ty == Type::F32 { build.f32(1.0) } else { build.f64(1.0) };
                build.float(FloatOp::Div, rounding, one, args[0])
            }
            Operation::Approximate(op) => build.unary(op, args[0]),
            Operation::Abs => build.unary(UnaryOp::FAbs, args[0]),
            Operation::Neg => build.unary(UnaryOp::FNeg, args[0]),
            Operation::CopySign => self.copy_sign(args[0], args[1]),
            Operation::MinMax(op) => {
                let signs = i.has(Modifier::Xorsign).then(|| self.xor_signs(args));
                let mut build = self.build();
                let args: Vec<Value> = match signs {
                    Some(_) => args.iter().map(|arg| build.unary(UnaryOp::FAbs, *arg)).collect(),
                    None => args.to_vec(),
                };
                // Two operands, or three on newer targets.
                let result = args[1..].iter().fold(args[0], |so_far, arg| build.binary(op, so_far, *arg));
                match signs {
                    Some(signs) => self.copy_sign(signs, result),
                    None => result,
                }
            }
        }
    }

    /// A float whose sign is that of `sign` and whose rest is that of `magnitude`.
    fn copy_sign(&mut self, sign: Value, magnitude: Value) -> Value {
        let ty = self.kernel.ty(magnitude);
        let int = ty.as_int();
        let top = 1 << (int.bits() - 1);
        let mut build = self.build();
        let sign = build.bitcast(int, sign);
        let magnitude = build.bitcast(int, magnitude);
        let sign = build.binary_imm(BinaryOp::And, sign, top);
        let magnitude = build.binary_imm(BinaryOp::And, magnitude, top - 1);
        let result = build.binary(BinaryOp::Or, sign, magnitude);
        build.bitcast(ty, result)
    }

    fn xor_signs(&mut self, args: &[Value]) -> Value {
        let ty = self.kernel.ty(args[0]);
        let mut build = self.build();
        let [a, b] = [args[0], args[1]].map(|arg| build.bitcast(ty.as_int(), arg));
        let signs = build.binary(BinaryOp::Xor, a, b);
        build.bitcast(ty, signs)
    }

    /// An operation on 16-bit floats.
    fn half_result(&mut self, i: &Instruction, operation: Operation, half: Half, args: &[Value]) -> Value {
        // Sign operations are exact on the bits, NaNs included.
        let sign = 0x8000;
        match operation {
            Operation::Abs => return self.build().binary_imm(BinaryOp::And, args[0], sign - 1),
            Operation::Neg => return self.build().binary_imm(BinaryOp::Xor, args[0], sign),
            _ => {}
        }
        let (wide, rounding) = match operation {
            // A product of halves is exact in F32.
            Operation::Fma(Rounding::Near) if half == Half::Ieee => (Type::F32, Rounding::Near),
            Operation::Fma(rounding) => (Type::F64, rounding),
            Operation::Arithmetic(_, rounding) => (Type::F32, rounding),
            _ => (Type::F32, Rounding::Near),
        };
        // Subnormals of bf16 are those of f32; `.ftz` is for f16 only.
        let flushes = i.has(Modifier::Ftz) && half == Half::Ieee;
        let mut wides = Vec::with_capacity(args.len());
        for &arg in args {
            let arg = if flushes { self.flush_half(arg) } else { arg };
            wides.push(self.build().convert(half.widen(), wide, arg));
        }
        let result = match operation {
            Operation::Fma(Rounding::Near) => self.fma_to_odd(wide, &wides),
            _ => self.compute(i, operation, &wides),
        };
        let result = self.clamp(i, result);
        let result = self.build().convert(half.narrow(rounding), Type::I16, result);
        if flushes { self.flush_half(result) } else { result }
    }

    /// A subnormal `f16` becomes a zero of its sign.
    fn flush_half(&mut self, value: Value) -> Value {
        let mut build = self.build();
        let magnitude = build.binary_imm(BinaryOp::And, value, 0x7fff);
        let zero = build.binary_imm(BinaryOp::And, value, 0x8000);
        let smallest_normal = build.constant(Type::I16, 0x0400);
        let is_subnormal = build.compare(IntCond::LtU, magnitude, smallest_normal);
        build.select(is_subnormal, zero, value)
    }

    /// `a * b + c` of 16-bit floats in F32 or F64, rounded to odd: an addend too small for that to
    /// hold must still decide a tie of the rounding to fewer bits that follows. The product is
    /// exact.
    fn fma_to_odd(&mut self, ty: Type, args: &[Value]) -> Value {
        let near = Rounding::Near;
        let mut build = self.build();
        let product = build.float(FloatOp::Mul, near, args[0], args[1]);
        let sum = build.float(FloatOp::Add, near, product, args[2]);
        // What the sum lost (Knuth's TwoSum).
        let from_addend = build.float(FloatOp::Sub, near, sum, product);
        let from_product = build.float(FloatOp::Sub, near, sum, from_addend);
        let lost_product = build.float(FloatOp::Sub, near, product, from_product);
        let lost_addend = build.float(FloatOp::Sub, near, args[2], from_addend);
        let lost = build.float(FloatOp::Add, near, lost_product, lost_addend);
        // An even sum that lost something gives way to its neighbour on that side: one step up or
        // down in magnitude.
        let zero = build.constant(ty, 0);
        let is_inexact = build.float_compare(FloatCond::Ne, lost, zero);
        let [sum_bits, lost_bits] = [sum, lost].map(|value| build.bitcast(ty.as_int(), value));
        let signs = build.binary(BinaryOp::Xor, sum_bits, lost_bits);
        let direction = build.binary_imm(BinaryOp::ShrS, signs, u64::from(ty.bits() - 1));
        let step = build.binary_imm(BinaryOp::Or, direction, 1);
        let neighbour = build.binary(BinaryOp::Add, sum_bits, step);
        let lowest = build.binary_imm(BinaryOp::And, sum_bits, 1);
        let one = build.constant(ty.as_int(), 1);
        let is_even = build.compare(IntCond::Ne, lowest, one);
        let steps = build.binary(BinaryOp::And, is_inexact, is_even);
        let bits = build.select(steps, neighbour, sum_bits);
        build.bitcast(ty, bits)
    }

    /// Two F32 in an I64.
    fn pair_result(&mut self, i: &Instruction, operation: Operation, args: &[Value]) -> Value {
        let mut result = None;
        for shift in [0, 32] {
            let mut build = self.build();
            let parts: Vec<Value> = args
                .iter()
                .map(|arg| {
                    let part = build.binary_imm(BinaryOp::ShrU, *arg, shift);
                    let part = build.resize(Type::I32, false, part);
                    build.bitcast(Type::F32, part)
                })
                .collect();
            let part = self.element_result(i, operation, &parts);
            let mut build = self.build();
            let part = build.bitcast(Type::I32, part);
            let part = build.resize(Type::I64, false, part);
            let part = build.binary_imm(BinaryOp::Shl, part, shift);
            result = Some(match result {
                None => part,
                Some(low) => build.binary(BinaryOp::Or, low, part),
            });
        }
        result.expect("two rounds of the loop")
    }
}

pub(super) fn rounding(i: &Instruction) -> Option<Rounding> {
    choose(
        i,
        &[
            (Modifier::Rn, Rounding::Near),
            (Modifier::Rz, Rounding::Zero),
            (Modifier::Rm, Rounding::Down),
            (Modifier::Rp, Rounding::Up),
            (Modifier::Rna, Rounding::NearAway),
        ],
    )
}

fn operation(i: &Instruction) -> Lowered<Operation> {
    let is_approximate = i.has(Modifier::Approx);
    let rounding = rounding(i).unwrap_or(Rounding::Near);
    let propagates_nan = i.has(Modifier::PropagateNan);
    Ok(match i.opcode {
        Opcode::Add => Operation::Arithmetic(FloatOp::Add, rounding),
        Opcode::Sub => Operation::Arithmetic(FloatOp::Sub, rounding),
        Opcode::Mul => Operation::Arithmetic(FloatOp::Mul, rounding),
        // `.approx` and `.full` allow errors of a few ulp; the exact quotient is within them.
        Opcode::Div => Operation::Arithmetic(FloatOp::Div, rounding),
        Opcode::Fma | Opcode::Mad => Operation::Fma(rounding),
        Opcode::Sqrt => Operation::Sqrt(rounding),
        Opcode::Rcp if is_approximate => Operation::Approximate(UnaryOp::Rcp),
        Opcode::Rcp => Operation::Reciprocal(rounding),
        Opcode::Rsqrt => Operation::Approximate(UnaryOp::Rsqrt),
        Opcode::Sin => Operation::Approximate(UnaryOp::Sin),
        Opcode::Cos => Operation::Approximate(UnaryOp::Cos),
        Opcode::Lg2 => Operation::Approximate(UnaryOp::Lg2),
        Opcode::Ex2 => Operation::Approximate(UnaryOp::Ex2),
        Opcode::Tanh => Operation::Approximate(UnaryOp::Tanh),
        Opcode::Min if propagates_nan => Operation::MinMax(BinaryOp::FMinNan),
        Opcode::Min => Operation::MinMax(BinaryOp::FMin),
        Opcode::Max if propagates_nan => Operation::MinMax(BinaryOp::FMaxNan),
        Opcode::Max => Operation::MinMax(BinaryOp::FMax),
        Opcode::Copysign => Operation::CopySign,
        Opcode::Abs => Operation::Abs,
        Opcode::Neg => Operation::Neg,
        _ => return Err(unsupported(i)),
    })
}
