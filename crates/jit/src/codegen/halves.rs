//! 16-bit floats to 32 and 64 bits and back, on single lanes and on vectors, without branches.
//!
//! A 16-bit float is in the low half of an I32 here.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstBuilder, Value as Clif, types};
use sluice_ir::Type;

use super::emitter::Emitter;

const SIGN: u64 = 1 << 31;
const INFINITY: u64 = 0x7f80_0000;

impl Emitter<'_> {
    /// The F32 of a half; what is above the low 16 bits does not count.
    pub(super) fn single_of_half(&mut self, bits: Clif) -> Clif {
        let mask = self.constant_like(bits, Type::I32, 0x7fff);
        let rest = self.b.ins().band(bits, mask);
        // As a float of the same fields the value is 2^-112 times what it should be, subnormals
        // included.
        let int = self.b.func.dfg.value_type(bits);
        let float = if int.is_vector() { types::F32X4 } else { types::F32 };
        let fields = self.b.ins().ishl_imm_u(rest, 13);
        let fields = self.bits(float, fields);
        let scale = self.constant_like(fields, Type::F32, 0x7780_0000);
        let magnitude = self.b.ins().fmul(fields, scale);
        let magnitude = self.bits(int, magnitude);
        let last = self.constant_like(bits, Type::I32, 0x7bff);
        let is_special = self.b.ins().icmp(IntCC::SignedGreaterThan, rest, last);
        let infinity = self.constant_like(bits, Type::I32, INFINITY);
        let special = self.b.ins().bor(magnitude, infinity);
        let magnitude = self.choose(is_special, special, magnitude);
        let sign = self.b.ins().ishl_imm_u(bits, 16);
        let mask = self.constant_like(bits, Type::I32, SIGN);
        let sign = self.b.ins().band(sign, mask);
        let result = self.b.ins().bor(magnitude, sign);
        self.bits(float, result)
    }

    /// The F32 of a bfloat16; what is above the low 16 bits does not count.
    pub(super) fn single_of_bfloat(&mut self, bits: Clif) -> Clif {
        let is_vector = self.b.func.dfg.value_type(bits).is_vector();
        let bits = self.b.ins().ishl_imm_u(bits, 16);
        self.bits(if is_vector { types::F32X4 } else { types::F32 }, bits)
    }

    /// The half nearest to an F32.
    pub(super) fn half_of_single(&mut self, single: Clif) -> Clif {
        let (bits, magnitude) = self.bits_and_magnitude(single);
        let float = self.b.func.dfg.value_type(single);
        let int = self.b.func.dfg.value_type(bits);
        // A normal half: the exponent moves, and the upper of 13 bits that go rounds.
        let odd = self.b.ins().ushr_imm_u(magnitude, 13);
        let one = self.constant_like(bits, Type::I32, 1);
        let odd = self.b.ins().band(odd, one);
        let moved = self.constant_like(bits, Type::I32, 0xc800_0fff);
        let normal = self.b.ins().iadd(magnitude, moved);
        let normal = self.b.ins().iadd(normal, odd);
        let normal = self.b.ins().ushr_imm_u(normal, 13);
        // A subnormal one: adding 1/2 leaves its bits in the lowest places, rounded.
        let half = self.constant_like(single, Type::F32, u64::from(0.5f32.to_bits()));
        let value = self.bits(float, magnitude);
        let sum = self.b.ins().fadd(value, half);
        let (sum, half) = (self.bits(int, sum), self.bits(int, half));
        let subnormal = self.b.ins().isub(sum, half);
        let smallest = self.constant_like(bits, Type::I32, 0x3880_0000);
        let is_small = self.b.ins().icmp(IntCC::SignedLessThan, magnitude, smallest);
        let result = self.choose(is_small, subnormal, normal);
        let largest = self.constant_like(bits, Type::I32, 0x477f_ffff);
        let is_large = self.b.ins().icmp(IntCC::SignedGreaterThan, magnitude, largest);
        let infinity = self.constant_like(bits, Type::I32, 0x7c00);
        let result = self.choose(is_large, infinity, result);
        let sign = self.b.ins().ushr_imm_u(bits, 16);
        let mask = self.constant_like(bits, Type::I32, 0x8000);
        let sign = self.b.ins().band(sign, mask);
        let result = self.b.ins().bor(result, sign);
        self.unless_nan(magnitude, result)
    }

    /// The bfloat16 nearest to an F32.
    pub(super) fn bfloat_of_single(&mut self, single: Clif) -> Clif {
        let (bits, magnitude) = self.bits_and_magnitude(single);
        let odd = self.b.ins().ushr_imm_u(bits, 16);
        let one = self.constant_like(bits, Type::I32, 1);
        let odd = self.b.ins().band(odd, one);
        let almost_half = self.constant_like(bits, Type::I32, 0x7fff);
        let rounded = self.b.ins().iadd(bits, almost_half);
        let rounded = self.b.ins().iadd(rounded, odd);
        let result = self.b.ins().ushr_imm_u(rounded, 16);
        self.unless_nan(magnitude, result)
    }

    /// F64 to F32 such that another rounding to fewer bits is as if it were the only one: what is
    /// not exact becomes odd.
    pub(super) fn single_rounded_to_odd(&mut self, wides: &[Clif]) -> Clif {
        let single = self.single_of_parts(wides);
        let back = self.wide_parts(single);
        let (mut inexact, mut signs) = (Vec::new(), Vec::new());
        for (&wide, back) in wides.iter().zip(back) {
            let lost = self.b.ins().fsub(wide, back);
            let zero = self.constant_like(lost, Type::F64, 0);
            let above = self.b.ins().fcmp(FloatCC::GreaterThan, lost, zero);
            let below = self.b.ins().fcmp(FloatCC::LessThan, lost, zero);
            inexact.push(self.b.ins().bor(above, below));
            let int = self.b.func.dfg.value_type(wide).as_int();
            let [wide, lost] = [wide, lost].map(|value| self.bits(int, value));
            signs.push(self.b.ins().bxor(wide, lost));
        }
        // One step up in magnitude where the lost part has the sign of the whole, else down.
        let signs = match signs[..] {
            [low, high] => self.upper_halves([low, high]),
            _ => {
                let upper = self.b.ins().ushr_imm_u(signs[0], 32);
                self.b.ins().ireduce(types::I32, upper)
            }
        };
        let one = self.constant_like(signs, Type::I32, 1);
        let direction = self.b.ins().sshr_imm_u(signs, 31);
        let step = self.b.ins().bor(direction, one);
        let float = self.b.func.dfg.value_type(single);
        let bits = self.bits(float.as_int(), single);
        let stepped = self.b.ins().iadd(bits, step);
        let lowest = self.b.ins().band(bits, one);
        let is_odd = self.b.ins().icmp(IntCC::Equal, lowest, one);
        let odd = self.choose(is_odd, bits, stepped);
        let inexact = self.mask_of_parts(&inexact);
        let bits = self.choose(inexact, odd, bits);
        self.bits(float, bits)
    }

    fn bits_and_magnitude(&mut self, single: Clif) -> (Clif, Clif) {
        let int = self.b.func.dfg.value_type(single).as_int();
        let bits = self.bits(int, single);
        let mask = self.constant_like(bits, Type::I32, SIGN - 1);
        (bits, self.b.ins().band(bits, mask))
    }

    /// The canonical NaN of 16 bits where an F32 of this magnitude is one.
    fn unless_nan(&mut self, magnitude: Clif, result: Clif) -> Clif {
        let infinity = self.constant_like(magnitude, Type::I32, INFINITY);
        let is_nan = self.b.ins().icmp(IntCC::SignedGreaterThan, magnitude, infinity);
        let nan = self.constant_like(magnitude, Type::I32, 0x7fff);
        self.choose(is_nan, nan, result)
    }
}
