//! Atomics of one lane: the processor's where there is one, the runtime's for others, and plain
//! reads and writes in shared memory.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{AtomicRmwOp, InstBuilder, Value as Clif};
use sluice_ir::{AtomicOp, BinaryOp, Space, Type};

use super::emitter::Emitter;
use super::memory::memory_flags;
use super::scalar::clif_type;
use crate::runtime;

impl Emitter<'_> {
    /// The old value at a host address.
    pub(super) fn atomic(
        &mut self,
        (op, ty, space): (AtomicOp, Type, Space),
        address: Clif,
        arg: Clif,
        compare: Option<Clif>,
    ) -> Clif {
        let int = clif_type(ty.as_int());
        if space == Space::Shared
            && let Some(old) = self.shared_atomic(op, ty, address, arg, compare)
        {
            return old;
        }
        if let Some(compare) = compare {
            let (compare, arg) = (self.bits(int, compare), self.bits(int, arg));
            let old = self.b.ins().atomic_cas(memory_flags(), address, compare, arg);
            return self.bits(clif_type(ty), old);
        }
        let rmw = match op {
            AtomicOp::Add => AtomicRmwOp::Add,
            AtomicOp::And => AtomicRmwOp::And,
            AtomicOp::Or => AtomicRmwOp::Or,
            AtomicOp::Xor => AtomicRmwOp::Xor,
            AtomicOp::MinS => AtomicRmwOp::Smin,
            AtomicOp::MaxS => AtomicRmwOp::Smax,
            AtomicOp::MinU => AtomicRmwOp::Umin,
            AtomicOp::MaxU => AtomicRmwOp::Umax,
            AtomicOp::Exchange => AtomicRmwOp::Xchg,
            _ => return self.atomic_call(op, ty, address, arg),
        };
        let arg = self.bits(int, arg);
        let old = self.b.ins().atomic_rmw(int, memory_flags(), rmw, address, arg);
        self.bits(clif_type(ty), old)
    }

    /// One thread runs all blocks that can reach a block's shared memory (those of its cluster),
    /// and a warp leaves it at safepoints only. So nothing comes between a read and the write after
    /// it, and no lock is needed. None for what the runtime computes.
    fn shared_atomic(
        &mut self,
        op: AtomicOp,
        ty: Type,
        address: Clif,
        arg: Clif,
        compare: Option<Clif>,
    ) -> Option<Clif> {
        let binary = match op {
            AtomicOp::Add => Some(BinaryOp::Add),
            AtomicOp::And => Some(BinaryOp::And),
            AtomicOp::Or => Some(BinaryOp::Or),
            AtomicOp::Xor => Some(BinaryOp::Xor),
            AtomicOp::MinS => Some(BinaryOp::MinS),
            AtomicOp::MaxS => Some(BinaryOp::MaxS),
            AtomicOp::MinU => Some(BinaryOp::MinU),
            AtomicOp::MaxU => Some(BinaryOp::MaxU),
            AtomicOp::Exchange | AtomicOp::FAdd => None,
            _ => return None,
        };
        let old = self.b.ins().load(clif_type(ty), memory_flags(), address, 0);
        let new = match (binary, compare) {
            (Some(op), _) => self.binary(op, ty, old, arg),
            (None, Some(compare)) => {
                let int = clif_type(ty.as_int());
                let (bits, compare) = (self.bits(int, old), self.bits(int, compare));
                let is_equal = self.b.ins().icmp(IntCC::Equal, bits, compare);
                self.choose(is_equal, arg, old)
            }
            (None, None) if op == AtomicOp::FAdd => self.b.ins().fadd(old, arg),
            (None, None) => arg,
        };
        self.b.ins().store(memory_flags(), new, address, 0);
        Some(old)
    }

    /// Atomics that the processor does not have.
    fn atomic_call(&mut self, op: AtomicOp, ty: Type, address: Clif, arg: Clif) -> Clif {
        let function = match (op, ty) {
            (AtomicOp::FAdd, Type::F32) => runtime::atomic_add_f32 as *const (),
            (AtomicOp::FAdd, Type::F64) => runtime::atomic_add_f64 as *const (),
            (AtomicOp::Inc, Type::I32) => runtime::atomic_inc as *const (),
            (AtomicOp::Dec, Type::I32) => runtime::atomic_dec as *const (),
            (AtomicOp::HalfAdd, Type::I16) => runtime::atomic_add_half as *const (),
            (AtomicOp::HalfAdd, Type::I32) => runtime::atomic_add_half2 as *const (),
            (AtomicOp::BfloatAdd, Type::I16) => runtime::atomic_add_bfloat as *const (),
            (AtomicOp::BfloatAdd, Type::I32) => runtime::atomic_add_bfloat2 as *const (),
            _ => {
                self.unsupported(format!("atomic {op:?} of {ty}"));
                return self.constant(ty, 0);
            }
        };
        self.call(function, &[address, arg], Some(clif_type(ty)))
    }
}
