//! Arithmetic of 32-bit floats that rounds down, up or towards zero, without the processor's
//! rounding control: the result to nearest is corrected by one unit where 64-bit arithmetic shows
//! that it lies on the wrong side of the exact one.
//!
//! The exact result is `near + lost`, both F64: a product of two F32 is exact in F64, and Knuth's
//! TwoSum gives what a sum loses. Exponents of F64 are wide enough that nothing overflows or
//! underflows on the way.

use cranelift_codegen::ir::condcodes::FloatCC;
use cranelift_codegen::ir::{InstBuilder, Value as Clif, types};
use sluice_ir::{FloatOp, Rounding, Type};

use super::emitter::Emitter;

/// Whether [`Emitter::directed`] computes with this direction.
pub(super) fn is_directed(rounding: Rounding, ty: Type) -> bool {
    ty == Type::F32 && matches!(rounding, Rounding::Zero | Rounding::Down | Rounding::Up)
}

/// A result in F64, of one lane or of two: to nearest, what that lost, and the addends.
struct Exact {
    near: Clif,
    lost: Option<Clif>,
    addends: Option<[Clif; 2]>,
}

impl Emitter<'_> {
    /// A sum, a difference or a product of F32, of one lane or of four.
    pub(super) fn directed_float(&mut self, op: FloatOp, rounding: Rounding, a: Clif, b: Clif) -> Clif {
        let (a, b) = (self.wide_parts(a), self.wide_parts(b));
        let exact = a.into_iter().zip(b).map(|(a, b)| match op {
            FloatOp::Mul => Exact { near: self.b.ins().fmul(a, b), lost: None, addends: None },
            FloatOp::Sub => {
                let b = self.b.ins().fneg(b);
                self.exact_sum(a, b)
            }
            _ => self.exact_sum(a, b),
        });
        let exact = exact.collect();
        self.directed(rounding, exact)
    }

    /// `a * b + c` of F32.
    pub(super) fn directed_fma(&mut self, rounding: Rounding, [a, b, c]: [Clif; 3]) -> Clif {
        let [a, b, c] = [a, b, c].map(|arg| self.wide_parts(arg));
        let exact = (0..a.len()).map(|part| {
            let product = self.b.ins().fmul(a[part], b[part]);
            self.exact_sum(product, c[part])
        });
        let exact = exact.collect();
        self.directed(rounding, exact)
    }

    fn exact_sum(&mut self, a: Clif, b: Clif) -> Exact {
        let near = self.b.ins().fadd(a, b);
        let from_b = self.b.ins().fsub(near, a);
        let from_a = self.b.ins().fsub(near, from_b);
        let lost_a = self.b.ins().fsub(a, from_a);
        let lost_b = self.b.ins().fsub(b, from_b);
        Exact { near, lost: Some(self.b.ins().fadd(lost_a, lost_b)), addends: Some([a, b]) }
    }

    fn directed(&mut self, rounding: Rounding, exact: Vec<Exact>) -> Clif {
        let near: Vec<Clif> = exact
            .iter()
            .map(|exact| match exact.addends {
                Some(addends) if rounding == Rounding::Down => self.zero_rounded_down(exact.near, addends),
                _ => exact.near,
            })
            .collect();
        let single = self.single_of_parts(&near);
        let back = self.wide_parts(single);
        // How far the exact result is above; 0 and NaN need no correction.
        let corrected: Vec<Clif> = (0..exact.len())
            .map(|part| {
                let above = self.b.ins().fsub(near[part], back[part]);
                let above = match exact[part].lost {
                    Some(lost) => self.b.ins().fadd(above, lost),
                    None => above,
                };
                self.is_on_wrong_side(rounding, above, back[part])
            })
            .collect();
        let corrected = self.mask_of_parts(&corrected);
        let float = self.b.func.dfg.value_type(single);
        let bits = self.bits(float.as_int(), single);
        let stepped = if rounding == Rounding::Zero {
            let less = self.constant_like(bits, Type::I32, u64::MAX);
            self.b.ins().iadd(bits, less)
        } else {
            // Up is one more in magnitude for positive numbers and one less for negative ones.
            let sign = self.b.ins().sshr_imm_u(bits, 31);
            let one = self.constant_like(bits, Type::I32, 1);
            let up = self.b.ins().bor(sign, one);
            if rounding == Rounding::Up { self.b.ins().iadd(bits, up) } else { self.b.ins().isub(bits, up) }
        };
        let bits = self.choose(corrected, stepped, bits);
        self.bits(float, bits)
    }

    /// Where the exact result lies `above` the one to nearest, `back`, so that this must change.
    fn is_on_wrong_side(&mut self, rounding: Rounding, above: Clif, back: Clif) -> Clif {
        let zero = self.constant_like(above, Type::F64, 0);
        match rounding {
            Rounding::Up => self.b.ins().fcmp(FloatCC::GreaterThan, above, zero),
            Rounding::Down => self.b.ins().fcmp(FloatCC::LessThan, above, zero),
            _ => {
                // Below in magnitude.
                let float = self.b.func.dfg.value_type(above);
                let [above, back] = [above, back].map(|value| self.bits(float.as_int(), value));
                let sign = self.constant_like(back, Type::I64, 1 << 63);
                let sign = self.b.ins().band(back, sign);
                let outward = self.b.ins().bxor(above, sign);
                let outward = self.bits(float, outward);
                self.b.ins().fcmp(FloatCC::LessThan, outward, zero)
            }
        }
    }

    /// A sum that is exactly zero is -0 when it is rounded down, unless both addends are +0 (IEEE
    /// 754-2019, section 6.3).
    fn zero_rounded_down(&mut self, sum: Clif, addends: [Clif; 2]) -> Clif {
        let float = self.b.func.dfg.value_type(sum);
        let zero = self.constant_like(sum, Type::F64, 0);
        let is_zero = self.b.ins().fcmp(FloatCC::Equal, sum, zero);
        let [a, b] = addends.map(|addend| self.bits(float.as_int(), addend));
        let signs = self.b.ins().bor(a, b);
        let sign = self.constant_like(signs, Type::I64, 1 << 63);
        let signed_zero = self.b.ins().band(signs, sign);
        let signed_zero = self.bits(float, signed_zero);
        self.choose(is_zero, signed_zero, sum)
    }

    /// F32 as F64: one value for one lane, two for four.
    pub(super) fn wide_parts(&mut self, single: Clif) -> Vec<Clif> {
        if !self.b.func.dfg.value_type(single).is_vector() {
            return vec![self.b.ins().fpromote(types::F64, single)];
        }
        self.promote_vector(single).to_vec()
    }

    /// F64 rounded to F32, the other way.
    pub(super) fn single_of_parts(&mut self, parts: &[Clif]) -> Clif {
        match *parts {
            [low, high] => self.demote_vector([low, high]),
            _ => self.b.ins().fdemote(types::F32, parts[0]),
        }
    }

    /// Conditions on F64 as conditions on F32.
    pub(super) fn mask_of_parts(&mut self, parts: &[Clif]) -> Clif {
        match *parts {
            [low, high] => self.narrow_halves([low, high]),
            _ => parts[0],
        }
    }
}
