//! Video instructions (PTX ISA, "Scalar Video Instructions", "SIMD Video Instructions"): integers
//! in parts of registers, with a second operation on the result.

use sluice_ptx::ast::{Instruction, Operand, RegisterId};
use sluice_ptx::{Modifier, Opcode, Type as PtxType};

use super::{Lowered, Lowering, choose, malformed, operand, unsupported};
use crate::inst::{BinaryOp, ConvertOp, IntCond, UnaryOp};
use crate::types::{Type, Value};

/// Part of a 32-bit register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// Width in bits: 8, 16 or 32.
    bits: u32,
    index: u32,
}

const WHOLE: Part = Part { bits: 32, index: 0 };

impl<'m> Lowering<'m> {
    pub(super) fn video(&mut self, i: &Instruction) -> Lowered {
        use Opcode::*;
        match i.opcode {
            Vadd2 | Vsub2 | Vavrg2 | Vabsdiff2 | Vmin2 | Vmax2 | Vset2 => self.video_simd(i, 16),
            Vadd4 | Vsub4 | Vavrg4 | Vabsdiff4 | Vmin4 | Vmax4 | Vset4 => self.video_simd(i, 8),
            Vmad => self.video_multiply_add(i),
            _ => self.video_scalar(i),
        }
    }

    // ---- One element
    // --------------------------------------------------------------------------------------

    fn video_scalar(&mut self, i: &Instruction) -> Lowered {
        let [to, a_type, b_type] = video_types(i)?;
        let a = self.video_source(operand(i, 1)?, a_type)?;
        let b = self.video_source(operand(i, 2)?, b_type)?;
        let result = match i.opcode {
            Opcode::Vshl | Opcode::Vshr => self.video_shift(i, a_type, a, b)?,
            _ => self.video_operation(i, a, b)?,
        };
        let (target, part) = destination(i)?;
        let result =
            if i.has(Modifier::Sat) { self.saturate(result, part.bits, to.is_signed()) } else { result };
        let result = match i.operands.get(3) {
            None => result,
            Some(c) if part != WHOLE => {
                let c = self.read(c, Type::I32)?;
                let low = self.build().convert(ConvertOp::Truncate, Type::I32, result);
                let merged = self.insert_part(c, low, part);
                return self.write(&target, merged);
            }
            Some(c) => {
                let c = self.video_source(c, to)?;
                let op = match (i.has(Modifier::Add), i.has(Modifier::Min), i.has(Modifier::Max)) {
                    (true, _, _) => BinaryOp::Add,
                    (_, true, _) => BinaryOp::MinS,
                    (_, _, true) => BinaryOp::MaxS,
                    _ => return Err(malformed(i)),
                };
                self.build().binary(op, result, c)
            }
        };
        let result = self.build().convert(ConvertOp::Truncate, Type::I32, result);
        self.write(&target, result)
    }

    /// `vadd` and its like on values that are wide enough for every result.
    fn video_operation(&mut self, i: &Instruction, a: Value, b: Value) -> Lowered<Value> {
        use Opcode::*;
        let ty = self.kernel.ty(a);
        let mut build = self.build();
        Ok(match i.opcode {
            Vadd | Vadd2 | Vadd4 => build.binary(BinaryOp::Add, a, b),
            Vsub | Vsub2 | Vsub4 => build.binary(BinaryOp::Sub, a, b),
            Vabsdiff | Vabsdiff2 | Vabsdiff4 => {
                let difference = build.binary(BinaryOp::Sub, a, b);
                build.unary(UnaryOp::Abs, difference)
            }
            Vmin | Vmin2 | Vmin4 => build.binary(BinaryOp::MinS, a, b),
            Vmax | Vmax2 | Vmax4 => build.binary(BinaryOp::MaxS, a, b),
            Vavrg2 | Vavrg4 => {
                // Halves are rounded away from zero.
                let sum = build.binary(BinaryOp::Add, a, b);
                let zero = build.constant(ty, 0);
                let is_positive = build.compare(IntCond::GeS, sum, zero);
                let one = build.convert(ConvertOp::ZeroExtend, ty, is_positive);
                let sum = build.binary(BinaryOp::Add, sum, one);
                build.binary_imm(BinaryOp::ShrS, sum, 1)
            }
            Vset | Vset2 | Vset4 => {
                let conditions = [
                    (Modifier::Eq, IntCond::Eq),
                    (Modifier::Ne, IntCond::Ne),
                    (Modifier::Lt, IntCond::LtS),
                    (Modifier::Le, IntCond::LeS),
                    (Modifier::Gt, IntCond::GtS),
                    (Modifier::Ge, IntCond::GeS),
                ];
                let cond = choose(i, &conditions).ok_or_else(|| malformed(i))?;
                let holds = build.compare(cond, a, b);
                build.convert(ConvertOp::ZeroExtend, ty, holds)
            }
            _ => return Err(unsupported(i)),
        })
    }

    /// `vshl`, `vshr`: of 64 bits, so that what is shifted out to the left is there for the
    /// saturation.
    fn video_shift(&mut self, i: &Instruction, a_type: PtxType, a: Value, b: Value) -> Lowered<Value> {
        let mut build = self.build();
        let amount = build.convert(ConvertOp::Truncate, Type::I32, b);
        let amount = match (i.has(Modifier::Clamp), i.has(Modifier::Wrap)) {
            (true, _) => build.binary_imm(BinaryOp::MinU, amount, 32),
            (_, true) => build.binary_imm(BinaryOp::And, amount, 31),
            _ => return Err(malformed(i)),
        };
        let op = match (i.opcode == Opcode::Vshl, a_type.is_signed()) {
            (true, _) => BinaryOp::Shl,
            (false, true) => BinaryOp::ShrS,
            (false, false) => BinaryOp::ShrU,
        };
        Ok(build.binary(op, a, amount))
    }

    /// `vmad`, whose product is taken with all its bits.
    fn video_multiply_add(&mut self, i: &Instruction) -> Lowered {
        let [_, a_type, b_type] = video_types(i)?;
        let signed = a_type.is_signed() || b_type.is_signed();
        let a = self.video_source(operand(i, 1)?, a_type)?;
        let b = self.video_source(operand(i, 2)?, b_type)?;
        let c = self.video_source(operand(i, 3)?, if signed { PtxType::S32 } else { PtxType::U32 })?;
        let has_word = |word: &str| i.modifiers.iter().any(|modifier| modifier.to_string() == word);
        let mut build = self.build();
        let product = build.binary(BinaryOp::Mul, a, b);
        let mut result = build.binary(BinaryOp::Add, product, c);
        if has_word("po") {
            result = build.binary_imm(BinaryOp::Add, result, 1);
        }
        let shift = [("shr7", 7), ("shr15", 15)].into_iter().find(|(word, _)| has_word(word));
        if let Some((_, amount)) = shift {
            result = build.binary_imm(if signed { BinaryOp::ShrS } else { BinaryOp::ShrU }, result, amount);
        }
        if i.has(Modifier::Sat) {
            result = match signed {
                true => self.saturate(result, 32, true),
                false => self.build().binary_imm(BinaryOp::MinU, result, u64::from(u32::MAX)),
            };
        }
        let result = self.build().convert(ConvertOp::Truncate, Type::I32, result);
        self.write(operand(i, 0)?, result)
    }

    // ---- Two or four elements
    // -----------------------------------------------------------------------------

    fn video_simd(&mut self, i: &Instruction, bits: u32) -> Lowered {
        let [to, a_type, b_type] = video_types(i)?;
        let count = 32 / bits;
        let (a, a_from) = self.video_register(i, 1, bits, 0)?;
        let (b, b_from) = self.video_register(i, 2, bits, count)?;
        let c = self.read(operand(i, 3)?, Type::I32)?;
        let (target, mask) = match operand(i, 0)? {
            Operand::Part(register, name) => {
                let mask = digits(name, bits).ok_or_else(|| malformed(i))?;
                (Operand::Register(*register), mask)
            }
            whole => (whole.clone(), (0..count).collect()),
        };
        let mut result = c;
        for index in 0..count {
            if !mask.contains(&index) {
                continue;
            }
            let mut element = |from: &[u32], ty: PtxType| {
                let from = from[index as usize];
                let register = if from < count { a } else { b };
                self.element(register, from % count, bits, ty.is_signed())
            };
            let (x, y) = (element(&a_from, a_type), element(&b_from, b_type));
            let mut value = self.video_operation(i, x, y)?;
            if i.has(Modifier::Sat) {
                value = self.saturate(value, bits, to.is_signed());
            }
            result = match i.has(Modifier::Add) {
                true => self.build().binary(BinaryOp::Add, result, value),
                false => self.insert_part(result, value, Part { bits, index }),
            };
        }
        self.write(&target, result)
    }

    /// The register of a source, and for each element of it where that is among those of both
    /// sources; those from `first` on unless the operand says otherwise.
    fn video_register(
        &mut self,
        i: &Instruction,
        place: usize,
        bits: u32,
        first: u32,
    ) -> Lowered<(Value, Vec<u32>)> {
        let count = 32 / bits;
        match operand(i, place)? {
            Operand::Part(register, name) => {
                let mut from = digits(name, bits).ok_or_else(|| malformed(i))?;
                from.reverse();
                if from.len() != count as usize || from.iter().any(|&from| from >= 2 * count) {
                    return Err(malformed(i));
                }
                let value = self.register(*register);
                Ok((self.coerce(value, Type::I32, false), from))
            }
            whole => Ok((self.read(whole, Type::I32)?, (first..first + count).collect())),
        }
    }

    // ---- Parts
    // --------------------------------------------------------------------------------------------

    /// An operand or a part of a register, as an I64 of its value.
    fn video_source(&mut self, operand: &Operand, ty: PtxType) -> Lowered<Value> {
        let (value, part) = match operand {
            Operand::Part(register, name) => {
                let part =
                    part(name).ok_or_else(|| super::LowerErrorKind::Malformed(format!("a part {name}")))?;
                (self.part_of(*register), part)
            }
            whole => (self.read(whole, Type::I32)?, WHOLE),
        };
        let element = self.element(value, part.index, part.bits, ty.is_signed());
        Ok(self.build().resize(Type::I64, ty.is_signed(), element))
    }

    fn part_of(&mut self, register: RegisterId) -> Value {
        let value = self.register(register);
        self.coerce(value, Type::I32, false)
    }

    /// `into` with a part replaced by the low bits of a value.
    fn insert_part(&mut self, into: Value, value: Value, part: Part) -> Value {
        let mask = ((1_u64 << part.bits) - 1) as u32;
        let shift = part.bits * part.index;
        let mut build = self.build();
        let rest = build.binary_imm(BinaryOp::And, into, u64::from(!(mask << shift)));
        let low = build.binary_imm(BinaryOp::And, value, u64::from(mask));
        let placed = build.binary_imm(BinaryOp::Shl, low, u64::from(shift));
        build.binary(BinaryOp::Or, rest, placed)
    }

    /// A signed value clamped to what this many bits hold.
    pub(super) fn saturate(&mut self, value: Value, bits: u32, signed: bool) -> Value {
        let (low, high): (i64, i64) = match signed {
            true => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
            false => (0, (1 << bits) - 1),
        };
        // The bounds of 32 bits do not fit the 32 bits that smaller elements are computed in.
        let mut build = self.build();
        let value = build.binary_imm(BinaryOp::MaxS, value, low as u64);
        build.binary_imm(BinaryOp::MinS, value, high as u64)
    }

    /// `cvt.pack`: two integers, clamped, in the low bits, and what `c` has above them.
    pub(super) fn pack_integers(&mut self, i: &Instruction) -> Lowered {
        let word = i.modifiers.iter().map(ToString::to_string).find(|word| {
            word.strip_prefix(['u', 's']).is_some_and(|bits| ["2", "4", "8", "16"].contains(&bits))
        });
        let word = word.ok_or_else(|| malformed(i))?;
        let bits: u32 = word[1..].parse().map_err(|_| malformed(i))?;
        let [a, b] = [1, 2].map(|place| operand(i, place).and_then(|operand| self.read(operand, Type::I32)));
        let [a, b] = [a?, b?].map(|value| self.saturate(value, bits, word.starts_with('s')));
        let above = match i.operands.get(3) {
            Some(c) => self.read(c, Type::I32)?,
            None => self.build().i32(0),
        };
        // A shift by 32 leaves nothing of it.
        let above = self.build().binary_imm(BinaryOp::Shl, above, u64::from(2 * bits));
        let result = self.insert_part(above, b, Part { bits, index: 0 });
        let result = self.insert_part(result, a, Part { bits, index: 1 });
        self.write(operand(i, 0)?, result)
    }
}

/// Destination, first and second source type. `vset` has no destination type: its results are 0 and
/// 1.
fn video_types(i: &Instruction) -> Lowered<[PtxType; 3]> {
    let types: Vec<PtxType> = i.types().collect();
    match types[..] {
        [to, a, b] => Ok([to, a, b]),
        [a, b] if matches!(i.opcode, Opcode::Vset | Opcode::Vset2 | Opcode::Vset4) => {
            Ok([PtxType::U32, a, b])
        }
        _ => Err(malformed(i)),
    }
}

/// The register that the first operand names, and the part of it.
fn destination(i: &Instruction) -> Lowered<(Operand, Part)> {
    match operand(i, 0)? {
        Operand::Part(register, name) => {
            Ok((Operand::Register(*register), part(name).ok_or_else(|| malformed(i))?))
        }
        whole => Ok((whole.clone(), WHOLE)),
    }
}

/// `b0` to `b3`, `h0`, `h1`.
fn part(name: &str) -> Option<Part> {
    let bits = if name.starts_with('b') { 8 } else { 16 };
    match digits(name, bits)?[..] {
        [index] if index < 32 / bits => Some(Part { bits, index }),
        _ => None,
    }
}

/// The digits of `b3210` or `h10`, in the order of the text.
fn digits(name: &str, bits: u32) -> Option<Vec<u32>> {
    let digits = name.strip_prefix(if bits == 8 { 'b' } else { 'h' })?;
    digits.chars().map(|digit| digit.to_digit(8)).collect()
}
