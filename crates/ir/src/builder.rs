//! Writes instructions at the end of a block, one method per kind.

use crate::inst::*;
use crate::kernel::{Kernel, Target, Terminator};
use crate::types::{BlockId, GlobalId, InstId, Type, Value};

/// A kernel under construction with the block that instructions go to.
///
/// Operand types are the caller's business; [`crate::verify`](crate) checks them afterwards.
pub struct Builder<'k> {
    pub kernel: &'k mut Kernel,
    pub block: BlockId,
    /// PTX line of the instructions to come.
    pub line: u32,
}

impl<'k> Builder<'k> {
    pub fn new(kernel: &'k mut Kernel, block: BlockId) -> Self {
        Builder { kernel, block, line: 0 }
    }

    pub fn switch_to(&mut self, block: BlockId) {
        self.block = block;
    }

    pub fn push(&mut self, inst: Inst) -> InstId {
        self.kernel.push(self.block, inst, self.line)
    }

    /// The only result of an instruction that has one.
    pub fn value(&mut self, inst: Inst) -> Value {
        let id = self.push(inst);
        self.kernel.insts[id.index()].result(0)
    }

    pub fn ty(&self, value: Value) -> Type {
        self.kernel.ty(value)
    }

    pub fn constant(&mut self, ty: Type, bits: u64) -> Value {
        self.value(Inst::Const { ty, bits: bits & ty.mask() })
    }

    pub fn i32(&mut self, value: u32) -> Value {
        self.constant(Type::I32, u64::from(value))
    }

    pub fn i64(&mut self, value: u64) -> Value {
        self.constant(Type::I64, value)
    }

    pub fn f32(&mut self, value: f32) -> Value {
        self.constant(Type::F32, u64::from(value.to_bits()))
    }

    pub fn f64(&mut self, value: f64) -> Value {
        self.constant(Type::F64, value.to_bits())
    }

    pub fn unary(&mut self, op: UnaryOp, arg: Value) -> Value {
        let ty = self.ty(arg);
        self.value(Inst::Unary { op, ty, arg })
    }

    pub fn binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Value {
        let ty = self.ty(a);
        self.value(Inst::Binary { op, ty, args: [a, b] })
    }

    /// A binary operation with a constant on the right (an I32 amount for shifts).
    pub fn binary_imm(&mut self, op: BinaryOp, a: Value, b: u64) -> Value {
        let ty = if op.is_shift() { Type::I32 } else { self.ty(a) };
        let b = self.constant(ty, b);
        self.binary(op, a, b)
    }

    pub fn float(&mut self, op: FloatOp, rounding: Rounding, a: Value, b: Value) -> Value {
        let ty = self.ty(a);
        self.value(Inst::Float { op, rounding, ty, args: [a, b] })
    }

    pub fn fma(&mut self, rounding: Rounding, a: Value, b: Value, c: Value) -> Value {
        let ty = self.ty(a);
        self.value(Inst::Fma { rounding, ty, args: [a, b, c] })
    }

    pub fn compare(&mut self, cond: IntCond, a: Value, b: Value) -> Value {
        let ty = self.ty(a);
        self.value(Inst::Compare { cond, ty, args: [a, b] })
    }

    pub fn float_compare(&mut self, cond: FloatCond, a: Value, b: Value) -> Value {
        let ty = self.ty(a);
        self.value(Inst::FloatCompare { cond, ty, args: [a, b] })
    }

    pub fn select(&mut self, cond: Value, then: Value, otherwise: Value) -> Value {
        let ty = self.ty(then);
        self.value(Inst::Select { ty, cond, args: [then, otherwise] })
    }

    pub fn convert(&mut self, op: ConvertOp, to: Type, arg: Value) -> Value {
        let from = self.ty(arg);
        self.value(Inst::Convert { op, from, to, arg })
    }

    /// Gives the bits of `arg` the type `to`, which has the same width.
    pub fn bitcast(&mut self, to: Type, arg: Value) -> Value {
        if self.ty(arg) == to { arg } else { self.convert(ConvertOp::Bitcast, to, arg) }
    }

    /// An integer widened (by sign or with zeros) or cut to the width of `to`.
    pub fn resize(&mut self, to: Type, signed: bool, arg: Value) -> Value {
        let from = self.ty(arg);
        if from == to {
            arg
        } else if from.bits() > to.bits() {
            self.convert(ConvertOp::Truncate, to, arg)
        } else if signed {
            self.convert(ConvertOp::SignExtend, to, arg)
        } else {
            self.convert(ConvertOp::ZeroExtend, to, arg)
        }
    }

    pub fn special(&mut self, register: SpecialRegister) -> Value {
        self.value(Inst::Special { register })
    }

    pub fn global_address(&mut self, global: GlobalId) -> Value {
        self.value(Inst::GlobalAddress { global })
    }

    /// One element.
    pub fn load(&mut self, space: Space, ty: Type, addr: Value, offset: i32) -> Value {
        let order = if matches!(space, Space::Param | Space::Const) {
            MemoryOrder::INVARIANT
        } else {
            MemoryOrder::WEAK
        };
        self.value(Inst::Load {
            place: MemoryOperand { space, addr, offset },
            ty,
            count: 1,
            order,
            guard: None,
        })
    }

    /// One element.
    pub fn store(&mut self, space: Space, addr: Value, offset: i32, value: Value) {
        let ty = self.ty(value);
        self.push(Inst::Store {
            place: MemoryOperand { space, addr, offset },
            ty,
            values: Box::new([value]),
            order: MemoryOrder::WEAK,
            guard: None,
        });
    }

    pub fn terminate(&mut self, terminator: Terminator) {
        self.kernel.block_mut(self.block).terminator = terminator;
    }

    pub fn jump(&mut self, block: BlockId) {
        self.terminate(Terminator::Jump(Target::new(block)));
    }

    pub fn branch(&mut self, cond: Value, then: BlockId, otherwise: BlockId) {
        self.terminate(Terminator::Branch {
            cond,
            then: Target::new(then),
            otherwise: Target::new(otherwise),
        });
    }
}
