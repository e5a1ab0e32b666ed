//! Puts a check in front of each access to memory.
//!
//! The check is a call of [`RuntimeFunction::CheckAccess`], whose result becomes the guard of the
//! access: an access that the check refuses does nothing, and a load then gives 0. The pass runs
//! behind the optimizations, which do not look through the call, and before the scheduling passes,
//! which keep its place.
//!
//! Parameters are not checked: only the lowering names their addresses.

use crate::builder::Builder;
use crate::inst::{BinaryOp, Inst, MemoryOperand, Ordering, RuntimeFunction, Space};
use crate::kernel::{Access, AccessKind, Kernel};
use crate::types::{InstId, Type, Value};

pub fn run(kernel: &mut Kernel) {
    kernel.is_instrumented = true;
    for block in kernel.block_ids() {
        let insts = std::mem::take(&mut kernel.block_mut(block).insts);
        for id in insts {
            if let Some(access) = access(kernel, id) {
                let line = kernel.inst(id).line;
                let mut builder = Builder::new(kernel, block);
                builder.line = line;
                let may = check(&mut builder, id, access);
                if let Inst::Load { guard, .. } | Inst::Store { guard, .. } | Inst::Atomic { guard, .. } =
                    &mut kernel.insts[id.index()].inst
                {
                    *guard = Some(may);
                }
            }
            kernel.block_mut(block).insts.push(id);
        }
    }
}

/// What an instruction does to memory, if it has to be checked.
fn access(kernel: &Kernel, id: InstId) -> Option<Access> {
    let data = kernel.inst(id);
    let (place, bytes, kind, order) = match &data.inst {
        Inst::Load { place, ty, count, order, .. } => {
            (place, ty.bytes() * u32::from(*count), AccessKind::Read, order)
        }
        Inst::Store { place, ty, values, order, .. } => {
            (place, ty.bytes() * values.len() as u32, AccessKind::Write, order)
        }
        Inst::Atomic { place, ty, order, .. } => (place, ty.bytes(), AccessKind::Atomic, order),
        _ => return None,
    };
    let is_weak = matches!(order.ordering, Ordering::Weak | Ordering::Invariant);
    let has_value = matches!(&data.inst, Inst::Store { values, .. } if values.len() == 1);
    let is_strong = kind == AccessKind::Atomic || !is_weak;
    (place.space != Space::Param).then_some(Access {
        space: place.space,
        bytes,
        kind,
        is_strong,
        has_value,
        line: data.line,
    })
}

/// The call in front of an access; its result.
fn check(builder: &mut Builder<'_>, id: InstId, access: Access) -> Value {
    let (place, guard, stored) = match &builder.kernel.inst(id).inst {
        Inst::Load { place, guard, .. } | Inst::Atomic { place, guard, .. } => (*place, *guard, None),
        Inst::Store { place, guard, values, .. } => (*place, *guard, Some(values[0])),
        _ => unreachable!("an access to memory"),
    };
    let site = builder.kernel.accesses.len() as u32;
    builder.kernel.accesses.push(access);
    let address = address(builder, &place);
    let guard = match guard {
        Some(guard) => builder.resize(Type::I32, false, guard),
        None => builder.i32(1),
    };
    let site = builder.i32(site);
    let value = match stored.filter(|_| access.has_value) {
        Some(value) => {
            let ty = builder.ty(value).as_int();
            let bits = builder.bitcast(ty, value);
            builder.resize(Type::I64, false, bits)
        }
        None => builder.i64(0),
    };
    let args = Box::new([address, guard, site, value]);
    builder.value(Inst::CallRuntime { function: RuntimeFunction::CheckAccess, args })
}

/// The whole address of a place; in a window, the offset from its start.
fn address(builder: &mut Builder<'_>, place: &MemoryOperand) -> Value {
    let ty = place.space.address_type();
    let address = match place.offset {
        0 => place.addr,
        offset => {
            let offset = builder.constant(ty, offset as i64 as u64);
            builder.binary(BinaryOp::Add, place.addr, offset)
        }
    };
    builder.resize(Type::I64, false, address)
}

#[cfg(test)]
mod tests {
    use crate::inst::MemoryOrder;
    use crate::{SpecialRegister, Terminator, passes, verify};

    use super::*;

    /// `out[tid] = in[tid + 1]` with a parameter and a shared store besides.
    fn kernel() -> Kernel {
        let mut kernel = Kernel::default();
        let entry = kernel.add_block();
        let mut b = Builder::new(&mut kernel, entry);
        let base = b.i32(0);
        let out = b.load(Space::Param, Type::I64, base, 0);
        let tid = b.special(SpecialRegister::TidX);
        let at = b.binary_imm(BinaryOp::Shl, tid, 2);
        let wide = b.resize(Type::I64, false, at);
        let address = b.binary(BinaryOp::Add, out, wide);
        b.line = 7;
        let loaded = b.load(Space::Global, Type::F32, address, 4);
        b.line = 8;
        b.store(Space::Shared, at, 0, loaded);
        b.store(Space::Global, address, 0, loaded);
        kernel.block_mut(entry).terminator = Terminator::Exit;
        kernel.params.bytes = 8;
        kernel.shared.static_bytes = 128;
        (kernel.shared.align, kernel.local_align) = (16, 1);
        kernel
    }

    #[test]
    fn each_access_but_those_of_parameters_gets_a_guard() {
        let mut kernel = kernel();
        passes::pipeline_with_checks(&mut kernel);
        verify::verify_scheduled(&kernel).unwrap();
        let sites: Vec<_> = kernel.accesses.iter().map(|a| (a.space, a.kind, a.bytes, a.line)).collect();
        let write = AccessKind::Write;
        let want = [
            (Space::Global, AccessKind::Read, 4, 7),
            (Space::Shared, write, 4, 8),
            (Space::Global, write, 4, 8),
        ];
        assert_eq!(sites, want);
        let guarded = kernel.insts.iter().filter(|data| {
            matches!(&data.inst, Inst::Load { guard: Some(_), .. } | Inst::Store { guard: Some(_), .. })
        });
        assert_eq!(guarded.count(), 3);
    }

    #[test]
    fn an_access_that_the_memory_model_orders_is_strong() {
        let mut kernel = kernel();
        let relaxed = MemoryOrder { ordering: Ordering::Relaxed, ..MemoryOrder::WEAK };
        for data in &mut kernel.insts {
            if let Inst::Store { order, .. } = &mut data.inst {
                *order = relaxed;
            }
        }
        run(&mut kernel);
        let strong: Vec<bool> = kernel.accesses.iter().map(|access| access.is_strong).collect();
        assert_eq!(strong, [false, true, true]);
    }
}
