//! Loads, stores and atomics of one lane (or of all, where they are the same), each behind its
//! range check.

use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{AtomicRmwOp, BlockArg, InstBuilder, MemFlagsData, Value as Clif, types};
use sluice_ir::{AtomicOp, Inst, MemoryOrder, Ordering, Place, Scope, Space, Type, Value};

use super::emitter::Emitter;
use super::lanes::Lane;
use super::plan::Step;
use super::scalar::clif_type;
use crate::context::WarpContext;
use crate::runtime::{self, fault_code};

/// Device memory. A fault there is a signal that never comes back, so Cranelift need not know of
/// it.
pub(super) fn memory_flags() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

/// The bytes that accesses at constant distances from one address touch together.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    space: Space,
    addr: Value,
    /// From `addr`, in bytes. The address there is a multiple of `align`.
    pub start: i32,
    end: i64,
    align: u32,
}

impl Extent {
    /// What `count` lanes, one behind the other, access with `bytes` each. Each access is aligned
    /// as a whole.
    pub(super) fn new(place: &Place, bytes: u32, count: u32) -> Extent {
        let end = i64::from(place.offset) + i64::from(bytes * count);
        Extent { space: place.space, addr: place.addr, start: place.offset, end, align: bytes }
    }

    pub(super) fn can_join(&self, other: &Extent) -> bool {
        // A gap that is not accessed may be as large as a structure.
        let (start, end) = (self.start.min(other.start), self.end.max(other.end));
        (self.space, self.addr) == (other.space, other.addr)
            && end - i64::from(start) < 1 << 16
            && self.is_in_step(other, self.align.min(other.align))
    }

    fn covers(&self, other: &Extent) -> bool {
        (self.space, self.addr) == (other.space, other.addr)
            && self.start <= other.start
            && other.end <= self.end
            && other.align <= self.align
            && self.is_in_step(other, other.align)
    }

    pub(super) fn join(&mut self, other: &Extent) {
        let (reference, align) =
            if self.align >= other.align { (self.start, self.align) } else { (other.start, other.align) };
        let start = self.start.min(other.start);
        // The range of device addresses and the windows start at multiples of more than that.
        self.start = start - (start - reference).rem_euclid(align as i32);
        (self.end, self.align) = (self.end.max(other.end), align);
    }

    /// Whether the starts are a multiple of `align` apart.
    fn is_in_step(&self, other: &Extent, align: u32) -> bool {
        (i64::from(self.start) - i64::from(other.start)) % i64::from(align) == 0
    }
}

impl Emitter<'_> {
    /// The host address of an extent's first byte (in lane 0), after a check of all of it. The
    /// address is uniform or affine.
    pub(super) fn extent_address(&mut self, extent: &Extent) -> Clif {
        let bytes = (extent.end - i64::from(extent.start)) as u32;
        let address = self.uniform(extent.addr);
        let address = match extent.start {
            0 => address,
            start => self.b.ins().iadd_imm_s(address, i64::from(start)),
        };
        self.checked_address(extent.space, address, bytes, extent.align)
    }

    /// The host address of `bytes` at an address of a space that all lanes share, a multiple of
    /// `align`.
    fn checked_address(&mut self, space: Space, address: Clif, bytes: u32, align: u32) -> Clif {
        let (base, size) = match space {
            Space::Shared => (offset_of!(WarpContext, shared_base), offset_of!(WarpContext, shared_size)),
            Space::Param => (offset_of!(WarpContext, params), offset_of!(WarpContext, params_size)),
            Space::Local => unreachable!("local memory is each lane's own"),
            Space::Generic | Space::Global | Space::Const => {
                self.check_range(address, bytes, align);
                return address;
            }
        };
        self.window_address(address, bytes, align, base, size)
    }

    /// Where an access of the node's straight line goes that is done once: a host address and a
    /// displacement. Accesses at constant distances are checked together, at the first.
    pub(super) fn once_address(&mut self, place: &Place, bytes: u32) -> (Clif, i32) {
        if let Some(constant) = self.kernel.constant(place.addr)
            && let Some(address) = self.constant_window_address(place, constant as u32, bytes)
        {
            return (address, 0);
        }
        let own = Extent::new(place, bytes, 1);
        if let Some((extent, address)) = self.checked.iter().find(|(extent, _)| extent.covers(&own)) {
            return (*address, place.offset - extent.start);
        }
        let extent = self.once_extent(own);
        let address = self.extent_address(&extent);
        self.checked.push((extent, address));
        (address, place.offset - extent.start)
    }

    /// The extent of all plain accesses of the node that are done once and are near this one.
    fn once_extent(&self, own: Extent) -> Extent {
        let mut extent = own;
        for step in &self.plan.nodes[self.current as usize].steps {
            let Step::Once(id) = step else { continue };
            let (place, bytes) = match &self.kernel.inst(*id).inst {
                Inst::Load { place, ty, count, guard: None, .. } => (place, ty.bytes() * u32::from(*count)),
                Inst::Store { place, ty, values, guard: None, .. } => {
                    (place, ty.bytes() * values.len() as u32)
                }
                _ => continue,
            };
            let other = Extent::new(place, bytes, 1);
            if extent.can_join(&other) {
                extent.join(&other);
            }
        }
        extent
    }

    /// A load, store or atomic; its results.
    pub(super) fn access(&mut self, inst: &Inst, results: u8, lane: Option<&Lane>) -> Vec<Clif> {
        let guard = match inst {
            Inst::Load { guard, .. } | Inst::Store { guard, .. } | Inst::Atomic { guard, .. } => *guard,
            _ => None,
        };
        let Some(guard) = guard else { return self.unguarded_access(inst, results, lane) };
        let (Inst::Load { ty, .. } | Inst::Store { ty, .. } | Inst::Atomic { ty, .. }) = inst else {
            return vec![];
        };
        let guard = self.value(guard, lane);
        let (go, next) = (self.b.create_block(), self.b.create_block());
        let skipped: Vec<BlockArg> = (0..results).map(|_| BlockArg::Value(self.constant(*ty, 0))).collect();
        for _ in 0..results {
            self.b.append_block_param(next, clif_type(*ty));
        }
        self.b.ins().brif(guard, go, &[], next, &skipped);
        self.b.switch_to_block(go);
        let done = self.unguarded_access(inst, results, lane);
        let done: Vec<BlockArg> = done.into_iter().map(BlockArg::Value).collect();
        self.b.ins().jump(next, &done);
        self.b.switch_to_block(next);
        self.b.block_params(next).to_vec()
    }

    fn unguarded_access(&mut self, inst: &Inst, results: u8, lane: Option<&Lane>) -> Vec<Clif> {
        let (Inst::Load { order, .. } | Inst::Store { order, .. } | Inst::Atomic { order, .. }) = inst else {
            unreachable!("not an access")
        };
        let is_for_system = order.scope == Scope::System;
        if is_for_system && matches!(order.ordering, Ordering::Release | Ordering::AcquireRelease) {
            self.call(runtime::system_release as *const (), &[self.ctx], None);
        }
        let done = self.access_now(inst, results, lane);
        if is_for_system && matches!(order.ordering, Ordering::Acquire | Ordering::AcquireRelease) {
            self.call(runtime::system_acquire as *const (), &[], None);
        }
        done
    }

    fn access_now(&mut self, inst: &Inst, results: u8, lane: Option<&Lane>) -> Vec<Clif> {
        match inst {
            Inst::Load { place, ty, count, order, .. } => {
                let (address, offset) =
                    self.access_address(inst, place, ty.bytes() * u32::from(*count), lane);
                (0..i32::from(*count))
                    .map(|index| self.load_element(*ty, address, offset + ty.bytes() as i32 * index, *order))
                    .collect()
            }
            Inst::Store { place, ty, values, order, .. } => {
                let bytes = ty.bytes() * values.len() as u32;
                let values: Vec<Clif> = values.iter().map(|&value| self.value(value, lane)).collect();
                let (address, offset) = self.access_address(inst, place, bytes, lane);
                for (index, value) in values.into_iter().enumerate() {
                    self.store_element(value, address, offset + (ty.bytes() as usize * index) as i32, *order);
                }
                Vec::new()
            }
            Inst::Atomic { op, place, ty, arg, compare, .. } => {
                let arg = self.value(*arg, lane);
                let compare = compare.map(|compare| self.value(compare, lane));
                let address = self.host_address(place, ty.bytes(), lane);
                let old = self.atomic(*op, *ty, address, arg, compare);
                if results == 0 { Vec::new() } else { vec![old] }
            }
            _ => unreachable!("not an access"),
        }
    }

    fn access_address(&mut self, inst: &Inst, place: &Place, bytes: u32, lane: Option<&Lane>) -> (Clif, i32) {
        let is_guarded =
            matches!(inst, Inst::Load { guard: Some(_), .. } | Inst::Store { guard: Some(_), .. });
        match lane {
            None if !is_guarded => self.once_address(place, bytes),
            _ => (self.host_address(place, bytes, lane), 0),
        }
    }

    fn load_element(&mut self, ty: Type, address: Clif, offset: i32, order: MemoryOrder) -> Clif {
        match order.ordering {
            Ordering::Weak | Ordering::Invariant => {
                self.b.ins().load(clif_type(ty), memory_flags(), address, offset)
            }
            _ => {
                let address = self.b.ins().iadd_imm_s(address, i64::from(offset));
                let bits = self.b.ins().atomic_load(clif_type(ty.as_int()), memory_flags(), address);
                self.bits(clif_type(ty), bits)
            }
        }
    }

    fn store_element(&mut self, value: Clif, address: Clif, offset: i32, order: MemoryOrder) {
        // On x86 a plain store is a release, and Cranelift keeps every store in its place.
        let is_plain = matches!(order.ordering, Ordering::Weak | Ordering::Invariant)
            || cfg!(target_arch = "x86_64")
            || order.ordering == Ordering::Volatile;
        if is_plain {
            self.b.ins().store(memory_flags(), value, address, offset);
            return;
        }
        let ty = self.b.func.dfg.value_type(value);
        let bits = self.bits(ty.as_int(), value);
        let address = self.b.ins().iadd_imm_s(address, i64::from(offset));
        self.b.ins().atomic_store(memory_flags(), bits, address);
    }

    /// The host address of an access of `bytes`, checked.
    pub(super) fn host_address(&mut self, place: &Place, bytes: u32, lane: Option<&Lane>) -> Clif {
        let constant = self.kernel.constant(place.addr);
        if let Some(constant) = constant
            && let Some(address) = self.constant_window_address(place, constant as u32, bytes)
        {
            return address;
        }
        let address = self.value(place.addr, lane);
        let address = match place.offset {
            0 => address,
            offset => self.b.ins().iadd_imm_s(address, i64::from(offset)),
        };
        if place.space != Space::Local {
            return self.checked_address(place.space, address, bytes, bytes);
        }
        let (base, size) = (offset_of!(WarpContext, local_base), offset_of!(WarpContext, local_stride));
        let in_lane0 = self.window_address(address, bytes, bytes, base, size);
        let index = lane.expect("local memory is each lane's own").index;
        let place = self.local_place(index);
        self.b.ins().iadd(in_lane0, place)
    }

    /// Where a lane's local memory starts, from that of lane 0. How large a stack is only the
    /// launch knows.
    pub(super) fn local_place(&mut self, lane: Clif) -> Clif {
        match self.kernel.needs_stack {
            false => self.b.ins().imul_imm_u(lane, i64::from(self.kernel.local_bytes)),
            true => {
                let stride = self.fixed_field(types::I64, offset_of!(WarpContext, local_stride));
                self.b.ins().imul(lane, stride)
            }
        }
    }

    /// An access at a constant place that is known to be aligned and inside its window needs no
    /// check.
    fn constant_window_address(&mut self, place: &Place, addr: u32, bytes: u32) -> Option<Clif> {
        let offset = addr.wrapping_add_signed(place.offset);
        let (window, size) = match place.space {
            Space::Shared => (offset_of!(WarpContext, shared_base), self.kernel.shared.static_bytes),
            Space::Param => (offset_of!(WarpContext, params), self.kernel.params.bytes),
            _ => return None,
        };
        if u64::from(offset) + u64::from(bytes) > u64::from(size) || !offset.is_multiple_of(bytes) {
            return None;
        }
        let base = self.fixed_field(types::I64, window);
        Some(self.b.ins().iadd_imm_u(base, i64::from(offset)))
    }

    /// Faults unless `[address, address + bytes)` is inside the device address range and the
    /// address a multiple of `align`.
    fn check_range(&mut self, address: Clif, bytes: u32, align: u32) {
        let base = self.fixed_field(types::I64, offset_of!(WarpContext, memory_base));
        let size = self.fixed_field(types::I64, offset_of!(WarpContext, memory_size));
        let offset = self.b.ins().isub(address, base);
        // The range is larger than any access, see `Executor::launch`.
        let last = self.b.ins().iadd_imm_s(size, -i64::from(bytes));
        let offset = self.far_if_misaligned(offset, offset, align);
        let is_bad = self.b.ins().icmp(IntCC::UnsignedGreaterThan, offset, last);
        self.fault_if(is_bad, fault_code::of_access(fault_code::ILLEGAL_ADDRESS, align), address);
    }

    fn window_address(&mut self, offset: Clif, bytes: u32, align: u32, base: usize, size: usize) -> Clif {
        let offset = self.b.ins().uextend(types::I64, offset);
        let size = self.fixed_field(types::I64, size);
        let end = self.b.ins().iadd_imm_u(offset, i64::from(bytes));
        let end = self.far_if_misaligned(end, offset, align);
        let is_bad = self.b.ins().icmp(IntCC::UnsignedGreaterThan, end, size);
        self.fault_if(is_bad, fault_code::of_access(fault_code::OUT_OF_WINDOW, align), offset);
        let base = self.fixed_field(types::I64, base);
        self.b.ins().iadd(base, offset)
    }

    /// `place`, or one beyond any range if `offset` is not a multiple of `align`: its low bits
    /// become the highest. So one comparison checks both.
    fn far_if_misaligned(&mut self, place: Clif, offset: Clif, align: u32) -> Clif {
        match align.trailing_zeros() {
            0 => place,
            bits => {
                let low = self.b.ins().ishl_imm_u(offset, i64::from(64 - bits));
                self.b.ins().bor(place, low)
            }
        }
    }

    fn atomic(&mut self, op: AtomicOp, ty: Type, address: Clif, arg: Clif, compare: Option<Clif>) -> Clif {
        let int = clif_type(ty.as_int());
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

    /// The address of an operand's 32 words: its slot, or an array of the scratch that it is
    /// written to. Words of lanes that are not active mean nothing.
    pub(super) fn words(&mut self, value: Value, array: u32) -> Clif {
        let ty = self.kernel.ty(value);
        let slot = self.plan.slot(value).filter(|_| self.plan.is_varying(value) && ty.bits() == 32);
        let place = slot.unwrap_or(self.plan.scratch + array * 128);
        if slot.is_none() {
            self.write_words(value, place);
        }
        self.b.ins().iadd_imm_u(self.ctx, i64::from(place))
    }
}
