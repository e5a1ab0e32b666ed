//! Arithmetic of F32 that rounds down, up or towards zero: the result to nearest is corrected by
//! one unit where F64 shows that it lies on the wrong side of the exact one. The formulas are those
//! of Cranelift's code (`codegen/rounding.rs`), where the reasons are.

use sluice_ir::{FloatOp, Rounding, Type};

use super::emitter::Emitter;
use super::writer::{Val, constant};

/// A result in F64: to nearest, what that lost, and the addends.
struct Exact {
    near: Val,
    lost: Option<Val>,
    addends: Option<[Val; 2]>,
}

impl Emitter<'_> {
    pub(super) fn directed_float(&mut self, op: FloatOp, rounding: Rounding, a: &Val, b: &Val) -> Val {
        let [a, b] = [a, b].map(|arg| self.w.cast("fpext", arg, Type::F64));
        let exact = match op {
            FloatOp::Mul => Exact { near: self.w.binary("fmul", &a, &b), lost: None, addends: None },
            FloatOp::Sub => {
                let b = self.w.op(Type::F64, b.lanes, &format!("fneg {}", b.arg()));
                self.exact_sum(a, b)
            }
            _ => self.exact_sum(a, b),
        };
        self.directed(rounding, exact)
    }

    pub(super) fn directed_fma(&mut self, rounding: Rounding, args: [&Val; 3]) -> Val {
        let [a, b, c] = args.map(|arg| self.w.cast("fpext", arg, Type::F64));
        let product = self.w.binary("fmul", &a, &b);
        let exact = self.exact_sum(product, c);
        self.directed(rounding, exact)
    }

    fn exact_sum(&mut self, a: Val, b: Val) -> Exact {
        let near = self.w.binary("fadd", &a, &b);
        let from_b = self.w.binary("fsub", &near, &a);
        let from_a = self.w.binary("fsub", &near, &from_b);
        let lost_a = self.w.binary("fsub", &a, &from_a);
        let lost_b = self.w.binary("fsub", &b, &from_b);
        let lost = self.w.binary("fadd", &lost_a, &lost_b);
        Exact { near, lost: Some(lost), addends: Some([a, b]) }
    }

    fn directed(&mut self, rounding: Rounding, exact: Exact) -> Val {
        let near = match exact.addends {
            Some(addends) if rounding == Rounding::Down => self.zero_rounded_down(exact.near, addends),
            _ => exact.near,
        };
        let single = self.w.cast("fptrunc", &near, Type::F32);
        let back = self.w.cast("fpext", &single, Type::F64);
        let mut above = self.w.binary("fsub", &near, &back);
        if let Some(lost) = exact.lost {
            above = self.w.binary("fadd", &above, &lost);
        }
        let is_wrong = self.is_on_wrong_side(rounding, &above, &back);
        let bits = self.w.bits(&single, Type::I32);
        let stepped = if rounding == Rounding::Zero {
            self.w.binary_const("add", &bits, u64::MAX)
        } else {
            let sign = self.w.binary_const("ashr", &bits, 31);
            let up = self.w.binary_const("or", &sign, 1);
            self.w.binary(if rounding == Rounding::Up { "add" } else { "sub" }, &bits, &up)
        };
        let bits = self.w.select(&is_wrong, &stepped, &bits);
        self.w.bits(&bits, Type::F32)
    }

    fn is_on_wrong_side(&mut self, rounding: Rounding, above: &Val, back: &Val) -> Val {
        let zero = constant(Type::F64, above.lanes, 0);
        match rounding {
            Rounding::Up => self.w.fcmp("ogt", above, &zero),
            Rounding::Down => self.w.fcmp("olt", above, &zero),
            _ => {
                let [above, back] = [above, back].map(|value| self.w.bits(value, Type::I64));
                let sign = self.w.binary_const("and", &back, 1 << 63);
                let outward = self.w.binary("xor", &above, &sign);
                let outward = self.w.bits(&outward, Type::F64);
                self.w.fcmp("olt", &outward, &zero)
            }
        }
    }

    fn zero_rounded_down(&mut self, sum: Val, addends: [Val; 2]) -> Val {
        let zero = constant(Type::F64, sum.lanes, 0);
        let is_zero = self.w.fcmp("oeq", &sum, &zero);
        let [a, b] = addends.map(|addend| self.w.bits(&addend, Type::I64));
        let signs = self.w.binary("or", &a, &b);
        let sign = self.w.binary_const("and", &signs, 1 << 63);
        let signed_zero = self.w.bits(&sign, Type::F64);
        self.w.select(&is_zero, &signed_zero, &sum)
    }
}
