//! Integer, logic, shift and bit-field instructions (PTX ISA, "Integer Arithmetic Instructions",
//! "Logic and Shift Instructions").

use sluice_ptx::ast::Instruction;
use sluice_ptx::{Modifier, Opcode, Type as PtxType};

use super::operand::int_type;
use super::{Lowered, Lowering, malformed, operand, ptx_type, unsupported};
use crate::inst::{BinaryOp, ConvertOp, Inst, IntCond, UnaryOp};
use crate::types::{Type, Value};

impl<'m> Lowering<'m> {
    pub(super) fn integer(&mut self, i: &Instruction) -> Lowered {
        use Opcode::*;
        match i.opcode {
            // `.hi`, `.wide`, 24 bits, carries and packed forms change the shape of the operation.
            Mul | Mad | Mul24 | Mad24 => self.multiply(i),
            Addc | Subc | Madc => self.with_carry(i),
            Add | Sub if i.has(Modifier::Cc) => self.with_carry(i),
            Add | Sub | Min | Max if matches!(i.ty(), Some(PtxType::U16x2 | PtxType::S16x2)) => {
                self.packed(i)
            }
            Add | Sub if i.has(Modifier::Sat) => self.saturated(i),
            Add | Sub | Div | Rem | And | Or | Xor | Min | Max => self.binary(i),
            Shl | Shr => self.shift(i),
            Shf => self.funnel_shift(i),
            Abs | Neg | Not | Cnot | Brev => self.unary(i),
            Clz | Popc | Bfind => self.count_bits(i),
            Bfe => self.extract(i),
            Bfi => self.insert(i),
            Bmsk => self.bit_mask(i),
            Szext => self.sign_or_zero_extend(i),
            Sad => self.absolute_difference(i),
            Lop3 => self.lop3(i),
            Prmt => self.permute(i),
            Dp4a | Dp2a => self.dot_product(i),
            _ => Err(unsupported(i)),
        }
    }

    /// The operands at these places as integers of the instruction's type.
    fn ints<const N: usize>(&mut self, i: &Instruction, places: [usize; N]) -> Lowered<[Value; N]> {
        let ty = int_type(ptx_type(i)?);
        let mut values = [Value(0); N];
        for (value, place) in values.iter_mut().zip(places) {
            *value = self.read(operand(i, place)?, ty)?;
        }
        Ok(values)
    }

    fn binary(&mut self, i: &Instruction) -> Lowered {
        let signed = ptx_type(i)?.is_signed();
        let op = match i.opcode {
            Opcode::Add => BinaryOp::Add,
            Opcode::Sub => BinaryOp::Sub,
            Opcode::Div if signed => BinaryOp::DivS,
            Opcode::Div => BinaryOp::DivU,
            Opcode::Rem if signed => BinaryOp::RemS,
            Opcode::Rem => BinaryOp::RemU,
            Opcode::And => BinaryOp::And,
            Opcode::Or => BinaryOp::Or,
            Opcode::Xor => BinaryOp::Xor,
            Opcode::Min if signed => BinaryOp::MinS,
            Opcode::Min => BinaryOp::MinU,
            Opcode::Max if signed => BinaryOp::MaxS,
            _ => BinaryOp::MaxU,
        };
        let [a, b] = self.ints(i, [1, 2])?;
        let mut result = self.build().binary(op, a, b);
        if i.has(Modifier::Relu) {
            result = self.build().binary_imm(BinaryOp::MaxS, result, 0);
        }
        self.write(operand(i, 0)?, result)
    }

    fn unary(&mut self, i: &Instruction) -> Lowered {
        let [a] = self.ints(i, [1])?;
        let mut build = self.build();
        let result = match i.opcode {
            Opcode::Abs => build.unary(UnaryOp::Abs, a),
            Opcode::Neg => build.unary(UnaryOp::Neg, a),
            Opcode::Not => build.unary(UnaryOp::Not, a),
            Opcode::Brev => build.unary(UnaryOp::Brev, a),
            _ => {
                let ty = build.ty(a);
                let zero = build.constant(ty, 0);
                let is_zero = build.compare(IntCond::Eq, a, zero);
                build.convert(ConvertOp::ZeroExtend, ty, is_zero)
            }
        };
        self.write(operand(i, 0)?, result)
    }

    /// `mul`, `mad` and their 24-bit forms.
    fn multiply(&mut self, i: &Instruction) -> Lowered {
        let ptx = ptx_type(i)?;
        let signed = ptx.is_signed();
        let [mut a, mut b] = self.ints(i, [1, 2])?;
        let is_24_bits = matches!(i.opcode, Opcode::Mul24 | Opcode::Mad24);
        let ty = int_type(ptx);
        let mut build = self.build();
        let product = if is_24_bits {
            let shr = if signed { BinaryOp::ShrS } else { BinaryOp::ShrU };
            for value in [&mut a, &mut b] {
                let high = build.binary_imm(BinaryOp::Shl, *value, 8);
                *value = build.binary_imm(shr, high, 8);
            }
            if i.has(Modifier::Hi) {
                // Bits 47 to 16 of the 48-bit product.
                let [a, b] = [a, b].map(|value| build.resize(Type::I64, signed, value));
                let wide = build.binary(BinaryOp::Mul, a, b);
                let high = build.binary_imm(shr, wide, 16);
                build.convert(ConvertOp::Truncate, ty, high)
            } else {
                build.binary(BinaryOp::Mul, a, b)
            }
        } else if i.has(Modifier::Wide) {
            let wide = Type::int_of_bits(ty.bits() * 2).ok_or_else(|| malformed(i))?;
            let [a, b] = [a, b].map(|value| build.resize(wide, signed, value));
            build.binary(BinaryOp::Mul, a, b)
        } else if i.has(Modifier::Hi) {
            build.binary(if signed { BinaryOp::MulHiS } else { BinaryOp::MulHiU }, a, b)
        } else {
            build.binary(BinaryOp::Mul, a, b)
        };
        let result = if matches!(i.opcode, Opcode::Mad | Opcode::Mad24) {
            let wide = self.kernel.ty(product);
            let c = self.read(operand(i, 3)?, wide)?;
            if i.has(Modifier::Cc) {
                return self.finish_carry(i, product, c, None);
            }
            if i.has(Modifier::Sat) {
                self.add_saturated(BinaryOp::Add, product, c)
            } else {
                self.build().binary(BinaryOp::Add, product, c)
            }
        } else {
            product
        };
        self.write(operand(i, 0)?, result)
    }

    // ---- Carries, saturation, packed halves
    // ---------------------------------------------------------------

    /// `add.cc`, `addc`, `sub.cc`, `subc`, `madc`. The carry flag is a variable of the frame. A
    /// subtraction adds the complement: its flag is the carry of `a + ~b + 1`, so it is 1 where
    /// nothing was borrowed, which is visible where an `addc` follows a `sub.cc` or a `subc` an
    /// `add.cc`.
    fn with_carry(&mut self, i: &Instruction) -> Lowered {
        let carry = self.frame.carry;
        let has_carry_in = matches!(i.opcode, Opcode::Addc | Opcode::Subc | Opcode::Madc);
        let carry_in = has_carry_in.then(|| self.variables.read(&mut self.kernel, carry));
        if i.opcode == Opcode::Subc {
            let [a, b] = self.ints(i, [1, 2])?;
            let complement = self.build().unary(UnaryOp::Not, b);
            return self.finish_carry(i, a, complement, carry_in);
        }
        if i.opcode == Opcode::Sub {
            let [a, b] = self.ints(i, [1, 2])?;
            let mut build = self.build();
            let result = build.binary(BinaryOp::Sub, a, b);
            let carry_out = build.compare(IntCond::GeU, a, b);
            self.assign(carry, carry_out);
            return self.write(operand(i, 0)?, result);
        }
        let [a, b] = self.ints(i, [1, 2])?;
        if i.opcode != Opcode::Madc {
            return self.finish_carry(i, a, b, carry_in);
        }
        let op = match (i.has(Modifier::Hi), ptx_type(i)?.is_signed()) {
            (false, _) => BinaryOp::Mul,
            (true, true) => BinaryOp::MulHiS,
            (true, false) => BinaryOp::MulHiU,
        };
        let product = self.build().binary(op, a, b);
        let [c] = self.ints(i, [3])?;
        self.finish_carry(i, product, c, carry_in)
    }

    /// Destination = a + b + carry, and the carry out of it where `.cc` asks.
    fn finish_carry(&mut self, i: &Instruction, a: Value, b: Value, carry_in: Option<Value>) -> Lowered {
        let mut build = self.build();
        let mut result = build.binary(BinaryOp::Add, a, b);
        let mut carry_out = build.compare(IntCond::LtU, result, a);
        if let Some(carry_in) = carry_in {
            let ty = build.ty(a);
            let one = build.convert(ConvertOp::ZeroExtend, ty, carry_in);
            result = build.binary(BinaryOp::Add, result, one);
            let second = build.compare(IntCond::LtU, result, one);
            carry_out = build.binary(BinaryOp::Or, carry_out, second);
        }
        if i.has(Modifier::Cc) {
            self.assign(self.frame.carry, carry_out);
        }
        self.write(operand(i, 0)?, result)
    }

    fn saturated(&mut self, i: &Instruction) -> Lowered {
        let [a, b] = self.ints(i, [1, 2])?;
        let op = if i.opcode == Opcode::Add { BinaryOp::Add } else { BinaryOp::Sub };
        let result = self.add_saturated(op, a, b);
        self.write(operand(i, 0)?, result)
    }

    /// Signed 32-bit addition or subtraction, clamped to the range.
    fn add_saturated(&mut self, op: BinaryOp, a: Value, b: Value) -> Value {
        let mut build = self.build();
        let [a, b] = [a, b].map(|value| build.convert(ConvertOp::SignExtend, Type::I64, value));
        let wide = build.binary(op, a, b);
        let low = build.binary_imm(BinaryOp::MaxS, wide, i64::from(i32::MIN) as u64);
        let clamped = build.binary_imm(BinaryOp::MinS, low, i64::from(i32::MAX) as u64);
        build.convert(ConvertOp::Truncate, Type::I32, clamped)
    }

    /// Two 16-bit operations in one register.
    fn packed(&mut self, i: &Instruction) -> Lowered {
        let signed = ptx_type(i)?.is_signed();
        let op = match i.opcode {
            Opcode::Add => BinaryOp::Add,
            Opcode::Sub => BinaryOp::Sub,
            Opcode::Min if signed => BinaryOp::MinS,
            Opcode::Min => BinaryOp::MinU,
            _ if signed => BinaryOp::MaxS,
            _ => BinaryOp::MaxU,
        };
        let [a, b] = self.ints(i, [1, 2])?;
        let a = self.halves(a);
        let b = self.halves(b);
        let results = [0, 1].map(|half| self.build().binary(op, a[half], b[half]));
        let result = self.join_halves(results);
        self.write(operand(i, 0)?, result)
    }

    // ---- Shifts
    // -------------------------------------------------------------------------------------------

    fn shift(&mut self, i: &Instruction) -> Lowered {
        let op = match i.opcode {
            Opcode::Shl => BinaryOp::Shl,
            _ if ptx_type(i)?.is_signed() => BinaryOp::ShrS,
            _ => BinaryOp::ShrU,
        };
        let [a] = self.ints(i, [1])?;
        let amount = self.read(operand(i, 2)?, Type::I32)?;
        let result = self.build().binary(op, a, amount);
        self.write(operand(i, 0)?, result)
    }

    /// `shf`: a shift of the 64 bits `b:a`, of which one half remains.
    fn funnel_shift(&mut self, i: &Instruction) -> Lowered {
        let [a, b, amount] = self.ints(i, [1, 2, 3])?;
        let mut build = self.build();
        let amount = match i.has(Modifier::Wrap) {
            true => build.binary_imm(BinaryOp::And, amount, 31),
            false => build.binary_imm(BinaryOp::MinU, amount, 32),
        };
        let width = build.i32(32);
        let rest = build.binary(BinaryOp::Sub, width, amount);
        // Shifts by 32 give 0, so both ends of the range come out right.
        let (high, low) = if i.has(Modifier::Left) { (amount, rest) } else { (rest, amount) };
        let high = build.binary(BinaryOp::Shl, b, high);
        let low = build.binary(BinaryOp::ShrU, a, low);
        let result = build.binary(BinaryOp::Or, high, low);
        self.write(operand(i, 0)?, result)
    }

    // ---- Bits
    // ---------------------------------------------------------------------------------------------

    /// `clz`, `popc`, `bfind`: the result has 32 bits whatever the operand.
    fn count_bits(&mut self, i: &Instruction) -> Lowered {
        let ptx = ptx_type(i)?;
        let [a] = self.ints(i, [1])?;
        let mut build = self.build();
        let ty = build.ty(a);
        let result = match i.opcode {
            Opcode::Clz => build.unary(UnaryOp::Clz, a),
            Opcode::Popc => build.unary(UnaryOp::Popc, a),
            _ => {
                // The highest bit that differs from the sign: of a negative number, the highest 0.
                let a = match ptx.is_signed() {
                    true => {
                        let sign = build.binary_imm(BinaryOp::ShrS, a, u64::from(ty.bits()) - 1);
                        build.binary(BinaryOp::Xor, a, sign)
                    }
                    false => a,
                };
                let zeros = build.unary(UnaryOp::Clz, a);
                let top = build.constant(ty, u64::from(ty.bits()) - 1);
                let position = match i.has(Modifier::Shiftamt) {
                    true => zeros,
                    false => build.binary(BinaryOp::Sub, top, zeros),
                };
                let none = build.constant(ty, u64::MAX);
                let zero = build.constant(ty, 0);
                let found = build.compare(IntCond::Ne, a, zero);
                build.select(found, position, none)
            }
        };
        let result = self.build().resize(Type::I32, false, result);
        self.write(operand(i, 0)?, result)
    }

    /// `count` low bits set: PTX's shifts give all ones for the width and more.
    fn low_bits(&mut self, ty: Type, count: Value) -> Value {
        let mut build = self.build();
        let ones = build.constant(ty, u64::MAX);
        let above = build.binary(BinaryOp::Shl, ones, count);
        build.unary(UnaryOp::Not, above)
    }

    /// Position and length of a bit field: the low 8 bits of 32-bit operands.
    fn field(&mut self, i: &Instruction, at: usize) -> Lowered<(Value, Value)> {
        let position = self.read(operand(i, at)?, Type::I32)?;
        let length = self.read(operand(i, at + 1)?, Type::I32)?;
        let mut build = self.build();
        Ok((build.binary_imm(BinaryOp::And, position, 0xff), build.binary_imm(BinaryOp::And, length, 0xff)))
    }

    fn extract(&mut self, i: &Instruction) -> Lowered {
        let ptx = ptx_type(i)?;
        let [a] = self.ints(i, [1])?;
        let (position, length) = self.field(i, 2)?;
        let ty = self.kernel.ty(a);
        let result = if ptx.is_signed() {
            // Field to the top, back with its sign. A field of no bits is 0; bits beyond the top
            // are copies of the sign.
            let mut build = self.build();
            let shifted = build.binary(BinaryOp::ShrS, a, position);
            let width = build.i32(ty.bits());
            let length = build.binary(BinaryOp::MinU, length, width);
            let rest = build.binary(BinaryOp::Sub, width, length);
            let top = build.binary(BinaryOp::Shl, shifted, rest);
            build.binary(BinaryOp::ShrS, top, rest)
        } else {
            let mask = self.low_bits(ty, length);
            let mut build = self.build();
            let shifted = build.binary(BinaryOp::ShrU, a, position);
            build.binary(BinaryOp::And, shifted, mask)
        };
        self.write(operand(i, 0)?, result)
    }

    fn insert(&mut self, i: &Instruction) -> Lowered {
        let [field, whole] = self.ints(i, [1, 2])?;
        let (position, length) = self.field(i, 3)?;
        let ty = self.kernel.ty(whole);
        let mask = self.low_bits(ty, length);
        let mut build = self.build();
        let mask = build.binary(BinaryOp::Shl, mask, position);
        let field = build.binary(BinaryOp::Shl, field, position);
        let field = build.binary(BinaryOp::And, field, mask);
        let outside = build.unary(UnaryOp::Not, mask);
        let rest = build.binary(BinaryOp::And, whole, outside);
        let result = build.binary(BinaryOp::Or, field, rest);
        self.write(operand(i, 0)?, result)
    }

    fn bit_mask(&mut self, i: &Instruction) -> Lowered {
        let [mut position, mut length] = self.ints(i, [1, 2])?;
        if i.has(Modifier::Wrap) {
            position = self.build().binary_imm(BinaryOp::And, position, 31);
            length = self.build().binary_imm(BinaryOp::And, length, 31);
        }
        let ones = self.low_bits(Type::I32, length);
        let result = self.build().binary(BinaryOp::Shl, ones, position);
        self.write(operand(i, 0)?, result)
    }

    /// `szext`: the low b bits of a with their sign or zeros above; no bits give 0.
    fn sign_or_zero_extend(&mut self, i: &Instruction) -> Lowered {
        let signed = ptx_type(i)?.is_signed();
        let [a, bits] = self.ints(i, [1, 2])?;
        let mut build = self.build();
        let bits = match i.has(Modifier::Wrap) {
            true => build.binary_imm(BinaryOp::And, bits, 31),
            false => build.binary_imm(BinaryOp::MinU, bits, 32),
        };
        let width = build.i32(32);
        let above = build.binary(BinaryOp::Sub, width, bits);
        let top = build.binary(BinaryOp::Shl, a, above);
        let result = build.binary(if signed { BinaryOp::ShrS } else { BinaryOp::ShrU }, top, above);
        self.write(operand(i, 0)?, result)
    }

    fn absolute_difference(&mut self, i: &Instruction) -> Lowered {
        let signed = ptx_type(i)?.is_signed();
        let [a, b, c] = self.ints(i, [1, 2, 3])?;
        let difference = self.difference(signed, a, b);
        let result = self.build().binary(BinaryOp::Add, difference, c);
        self.write(operand(i, 0)?, result)
    }

    /// |a - b| without overflow, as an unsigned number.
    fn difference(&mut self, signed: bool, a: Value, b: Value) -> Value {
        let (min, max) =
            if signed { (BinaryOp::MinS, BinaryOp::MaxS) } else { (BinaryOp::MinU, BinaryOp::MaxU) };
        let mut build = self.build();
        let low = build.binary(min, a, b);
        let high = build.binary(max, a, b);
        build.binary(BinaryOp::Sub, high, low)
    }

    /// Any function of three bits, by its truth table: bit `4a + 2b + c` of the table is the
    /// result.
    fn lop3(&mut self, i: &Instruction) -> Lowered {
        let [a, b, c] = self.ints(i, [1, 2, 3])?;
        let sluice_ptx::ast::Operand::Integer(table) = operand(i, 4)? else { return Err(malformed(i)) };
        let table = *table as u8;
        let (with_a, without_a) = (table >> 4, table & 15);
        let result = if with_a == without_a {
            self.two_input(with_a, b, c)
        } else if with_a == !without_a & 15 {
            let f = self.two_input(without_a, b, c);
            self.build().binary(BinaryOp::Xor, a, f)
        } else {
            let f = self.two_input(with_a, b, c);
            let g = self.two_input(without_a, b, c);
            let mut build = self.build();
            let not_a = build.unary(UnaryOp::Not, a);
            let f = build.binary(BinaryOp::And, a, f);
            let g = build.binary(BinaryOp::And, not_a, g);
            build.binary(BinaryOp::Or, f, g)
        };
        let Some(third) = i.operands.get(5) else { return self.write(operand(i, 0)?, result) };
        // `lop3.or` and `lop3.and` give a predicate too: whether any bit is set, combined with
        // another.
        let third = self.read(third, Type::I1)?;
        let mut build = self.build();
        let zero = build.i32(0);
        let any = build.compare(IntCond::Ne, result, zero);
        let op = if i.has(Modifier::Or) { BinaryOp::Or } else { BinaryOp::And };
        let holds = build.binary(op, any, third);
        self.write_pair(operand(i, 0)?, result, holds)
    }

    /// The function of two bits with this truth table: bit `2b + c`.
    fn two_input(&mut self, table: u8, b: Value, c: Value) -> Value {
        use BinaryOp::{And, Or, Xor};
        let mut build = self.build();
        let (op, b, c, inverted) = match table {
            0 => return build.i32(0),
            15 => return build.i32(u32::MAX),
            0b1100 => return b,
            0b1010 => return c,
            0b0011 => return build.unary(UnaryOp::Not, b),
            0b0101 => return build.unary(UnaryOp::Not, c),
            0b1000 => (And, b, c, false),
            0b0111 => (And, b, c, true),
            0b1110 => (Or, b, c, false),
            0b0001 => (Or, b, c, true),
            0b0110 => (Xor, b, c, false),
            0b1001 => (Xor, b, c, true),
            0b0100 => (And, b, build.unary(UnaryOp::Not, c), false),
            0b1011 => (And, b, build.unary(UnaryOp::Not, c), true),
            0b0010 => (And, build.unary(UnaryOp::Not, b), c, false),
            _ => (And, build.unary(UnaryOp::Not, b), c, true),
        };
        let result = build.binary(op, b, c);
        if inverted { build.unary(UnaryOp::Not, result) } else { result }
    }

    /// `prmt`: the special modes are turned into a selector of the default mode.
    fn permute(&mut self, i: &Instruction) -> Lowered {
        let [a, b, c] = self.ints(i, [1, 2, 3])?;
        let c = match &i.modifiers[..] {
            [Modifier::Type(_)] => c,
            [Modifier::Type(_), mode] => self.selector(i, mode, c)?,
            _ => return Err(malformed(i)),
        };
        let result = self.build().value(Inst::Permute { args: [a, b, c] });
        self.write(operand(i, 0)?, result)
    }

    /// The selector of the default mode that does what `mode` does with the low bits of `c`.
    fn selector(&mut self, i: &Instruction, mode: &Modifier, c: Value) -> Lowered<Value> {
        // PTX ISA, table of "prmt" modes, by the low two bits of c.
        let table: [u32; 4] = match mode {
            Modifier::F4e => [0x3210, 0x4321, 0x5432, 0x6543],
            Modifier::B4e => [0x5670, 0x6701, 0x7012, 0x0123],
            Modifier::Rc8 => [0x0000, 0x1111, 0x2222, 0x3333],
            Modifier::Ecl => [0x3210, 0x3211, 0x3222, 0x3333],
            Modifier::Ecr => [0x0000, 0x1110, 0x2210, 0x3210],
            Modifier::Rc16 => [0x1010, 0x3232, 0x1010, 0x3232],
            _ => return Err(unsupported(i)),
        };
        let mut build = self.build();
        let index = build.binary_imm(BinaryOp::And, c, 3);
        let mut selector = build.i32(table[0]);
        for (value, entry) in table.into_iter().enumerate().skip(1) {
            let this = build.i32(value as u32);
            let hit = build.compare(IntCond::Eq, index, this);
            let entry = build.i32(entry);
            selector = build.select(hit, entry, selector);
        }
        Ok(selector)
    }

    // ---- Parts of registers
    // -------------------------------------------------------------------------------

    /// Element `index` of a register divided into elements of `bits`, as an I32.
    pub(super) fn element(&mut self, value: Value, index: u32, bits: u32, signed: bool) -> Value {
        let mut build = self.build();
        let top = build.binary_imm(BinaryOp::Shl, value, u64::from(32 - bits * (index + 1)));
        build.binary_imm(if signed { BinaryOp::ShrS } else { BinaryOp::ShrU }, top, u64::from(32 - bits))
    }

    /// `dp4a`, `dp2a`: sums of products of bytes (with bytes or halves), added to c.
    fn dot_product(&mut self, i: &Instruction) -> Lowered {
        let mut types = i.types();
        let (Some(a_type), Some(b_type)) = (types.next(), types.next()) else { return Err(malformed(i)) };
        let [a, b, c] = self.ints(i, [1, 2, 3])?;
        let mut sum = c;
        let (count, a_bits) = if i.opcode == Opcode::Dp4a { (4, 8) } else { (2, 16) };
        let first = if i.opcode == Opcode::Dp2a && i.has(Modifier::Hi) { 2 } else { 0 };
        for index in 0..count {
            let x = self.element(a, index, a_bits, a_type.is_signed());
            let y = self.element(b, first + index, 8, b_type.is_signed());
            let mut build = self.build();
            let product = build.binary(BinaryOp::Mul, x, y);
            sum = build.binary(BinaryOp::Add, sum, product);
        }
        self.write(operand(i, 0)?, sum)
    }
}
