//! Loads and stores of one lane (or of all, where they are the same), and where atomics go, each
//! behind its range check.

use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{BlockArg, InstBuilder, MemFlagsData, Value as Clif, types};
use sluice_ir::{Inst, MemoryOperand, MemoryOrder, Ordering, Scope, Space, Type, Value};

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

/// A host address, whether what is accessed there is out of range or not aligned, and how that
/// ends the grid.
pub(super) struct Checked {
    pub address: Clif,
    pub is_bad: Clif,
    fault: u32,
    fault_address: Clif,
}

impl Extent {
    /// What `count` lanes, one behind the other, access with `bytes` each. Each access is aligned
    /// as a whole.
    pub(super) fn new(place: &MemoryOperand, bytes: u32, count: u32) -> Extent {
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
        let checked = self.extent_place(extent);
        self.fault_unless_in_range(checked)
    }

    /// The host address of an extent's first byte (in lane 0), with the outcome of the check.
    pub(super) fn extent_place(&mut self, extent: &Extent) -> Checked {
        let bytes = (extent.end - i64::from(extent.start)) as u32;
        let address = self.uniform(extent.addr);
        let address = match extent.start {
            0 => address,
            start => self.b.ins().iadd_imm_s(address, i64::from(start)),
        };
        self.checked_place(extent.space, address, bytes, extent.align)
    }

    /// The host address of `bytes` at an address of a space that all lanes share, a multiple of
    /// `align`.
    pub(super) fn checked_address(&mut self, space: Space, address: Clif, bytes: u32, align: u32) -> Clif {
        let checked = self.checked_place(space, address, bytes, align);
        self.fault_unless_in_range(checked)
    }

    fn fault_unless_in_range(&mut self, checked: Checked) -> Clif {
        self.fault_if(checked.is_bad, checked.fault, checked.fault_address);
        checked.address
    }

    fn checked_place(&mut self, space: Space, address: Clif, bytes: u32, align: u32) -> Checked {
        let (base, size) = match space {
            Space::Shared => (offset_of!(WarpContext, shared_base), offset_of!(WarpContext, shared_size)),
            Space::Param => (offset_of!(WarpContext, params), offset_of!(WarpContext, params_size)),
            Space::Local => unreachable!("local memory is each lane's own"),
            Space::Generic | Space::Global | Space::Const => {
                return self.range_place(address, bytes, align);
            }
        };
        self.window_place(address, bytes, align, base, size)
    }

    /// Where an access of the node's straight line goes that is done once: a host address and a
    /// displacement. Accesses at constant distances are checked together, at the first.
    pub(super) fn once_address(&mut self, place: &MemoryOperand, bytes: u32) -> (Clif, i32) {
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
                let old = self.atomic((*op, *ty, place.space), address, arg, compare);
                if results == 0 { Vec::new() } else { vec![old] }
            }
            _ => unreachable!("not an access"),
        }
    }

    fn access_address(
        &mut self,
        inst: &Inst,
        place: &MemoryOperand,
        bytes: u32,
        lane: Option<&Lane>,
    ) -> (Clif, i32) {
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
    pub(super) fn host_address(&mut self, place: &MemoryOperand, bytes: u32, lane: Option<&Lane>) -> Clif {
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
        let in_lane0 = self.window_place(address, bytes, bytes, base, size);
        let in_lane0 = self.fault_unless_in_range(in_lane0);
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
    fn constant_window_address(&mut self, place: &MemoryOperand, addr: u32, bytes: u32) -> Option<Clif> {
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

    /// Whether `[address, address + bytes)` is inside the device address range and the address a
    /// multiple of `align`.
    fn range_place(&mut self, address: Clif, bytes: u32, align: u32) -> Checked {
        let base = self.fixed_field(types::I64, offset_of!(WarpContext, memory_base));
        let size = self.fixed_field(types::I64, offset_of!(WarpContext, memory_size));
        let offset = self.b.ins().isub(address, base);
        // The range is larger than any access, see `Executor::launch`.
        let last = self.b.ins().iadd_imm_s(size, -i64::from(bytes));
        let offset = self.far_if_misaligned(offset, offset, align);
        let is_bad = self.b.ins().icmp(IntCC::UnsignedGreaterThan, offset, last);
        let fault = fault_code::of_access(fault_code::ILLEGAL_ADDRESS, align);
        Checked { address, is_bad, fault, fault_address: address }
    }

    fn window_place(&mut self, offset: Clif, bytes: u32, align: u32, base: usize, size: usize) -> Checked {
        let offset = self.b.ins().uextend(types::I64, offset);
        let size = self.fixed_field(types::I64, size);
        let end = self.b.ins().iadd_imm_u(offset, i64::from(bytes));
        let end = self.far_if_misaligned(end, offset, align);
        let is_bad = self.b.ins().icmp(IntCC::UnsignedGreaterThan, end, size);
        let base = self.fixed_field(types::I64, base);
        let address = self.b.ins().iadd(base, offset);
        let fault = fault_code::of_access(fault_code::OUT_OF_WINDOW, align);
        Checked { address, is_bad, fault, fault_address: offset }
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

    /// The address of an operand's 32 words: its slot, or an array of the scratch that it is
    /// written to. Words of lanes that are not active mean nothing.
    pub(super) fn words(&mut self, value: Value, array: u32) -> Clif {
        let place = self.words_place(value, array);
        self.b.ins().iadd_imm_u(self.ctx, i64::from(place))
    }

    /// The place of an operand's words from the start of the warp's memory, as
    /// [`Emitter::words`] has it. A value of 64 bits must have a slot.
    pub(super) fn words_place(&mut self, value: Value, array: u32) -> u32 {
        let is_in_lanes = self.plan.is_varying(value) && self.kernel.ty(value) != Type::I1;
        let slot = self.plan.slot(value).filter(|_| is_in_lanes && self.kernel.ty(value).bits() >= 32);
        let place = slot.unwrap_or(self.plan.scratch + array * 128);
        if slot.is_none() {
            self.write_words(value, place);
        }
        place
    }
}
