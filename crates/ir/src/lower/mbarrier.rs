//! `mbarrier` objects and the copies that complete on them (PTX ISA, "mbarrier", "Asynchronous
//! copy").
//!
//! An object is a word of 64 bits in shared memory whose content is opaque to programs. Here it has
//!
//! ```text
//!   63              41    40      39             20 19              0
//!   transaction count  phase   expected arrivals   pending arrivals
//! ```
//!
//! Every operation is one step on the whole word: a loop around a compare-and-swap. Asynchronous
//! copies are done where they are issued, so what is left of them is their part in the transaction
//! count.

use sluice_ptx::ast::Instruction;
use sluice_ptx::{Modifier, Space as PtxSpace};

use super::cluster::{self, address};
use super::memory::atomic_op;
use super::operand::register_type;
use super::{Lowered, Lowering, operand, ptx_type, unsupported};
use crate::inst::{
    AtomicOp, BinaryOp, ConvertOp, Inst, IntCond, MemoryOperand, MemoryOrder, Ordering, Scope, Space, UnaryOp,
};
use crate::kernel::{Target, Terminator};
use crate::types::{Type, Value};

const COUNT_BITS: u64 = 20;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
const PHASE_BIT: u64 = 2 * COUNT_BITS;
const TRANSACTIONS_BIT: u64 = PHASE_BIT + 1;

/// Blocks that a cluster may have.
pub(super) const CLUSTER_BLOCKS_MAX: u64 = 16;

const ORDER: MemoryOrder = MemoryOrder { ordering: Ordering::AcquireRelease, scope: Scope::Cluster };

/// What an operation does to an object; counts are I32.
#[derive(Clone, Copy, Default)]
struct Change {
    arrivals: Option<Value>,
    /// The arrivals are not expected again in later phases.
    drops: bool,
    /// Bytes that are expected, and bytes that have come.
    expected_bytes: Option<Value>,
    completed_bytes: Option<Value>,
}

impl<'m> Lowering<'m> {
    pub(super) fn mbarrier(&mut self, i: &Instruction) -> Lowered {
        let is = |modifier: Modifier| i.has(modifier);
        if is(Modifier::PendingCount) {
            let state = self.read(operand(i, 1)?, Type::I64)?;
            let pending = self.build().binary_imm(BinaryOp::And, state, COUNT_MASK);
            return self.write(operand(i, 0)?, pending);
        }
        if is(Modifier::Init) {
            let place = self.object(i, 0)?;
            let count = self.read(operand(i, 1)?, Type::I32)?;
            let mut build = self.build();
            let count = build.convert(ConvertOp::ZeroExtend, Type::I64, count);
            let expected = build.binary_imm(BinaryOp::Shl, count, COUNT_BITS);
            let word = build.binary(BinaryOp::Or, expected, count);
            return self.store_object(place, word);
        }
        if is(Modifier::Inval) {
            let place = self.object(i, 0)?;
            let word = self.build().i64(0);
            return self.store_object(place, word);
        }
        if is(Modifier::TestWait) || is(Modifier::TryWait) {
            return self.wait_for_phase(i);
        }
        let drops = is(Modifier::ArriveDrop);
        let mut change = Change { drops, ..Change::default() };
        if is(Modifier::Arrive) || drops {
            let place = self.object(i, 1)?;
            let last = i.operands.get(2).map(|count| self.read(count, Type::I32)).transpose()?;
            let one = self.build().i32(1);
            (change.arrivals, change.expected_bytes) =
                if is(Modifier::ExpectTx) { (Some(one), last) } else { (last.or(Some(one)), None) };
            let state = self.change_object(place, change);
            return self.write(operand(i, 0)?, state);
        }
        let place = self.object(i, 0)?;
        let bytes = Some(self.read(operand(i, 1)?, Type::I32)?);
        match (is(Modifier::ExpectTx), is(Modifier::CompleteTx)) {
            (true, _) => change.expected_bytes = bytes,
            (_, true) => change.completed_bytes = bytes,
            _ => return Err(unsupported(i)),
        }
        self.change_object(place, change);
        Ok(())
    }

    /// `cp.async.mbarrier.arrive.noinc`: the copies before it are done, so the thread arrives.
    /// Without `.noinc` the arrival is one more that is expected, and nothing changes.
    pub(super) fn arrive_behind_copies(&mut self, i: &Instruction) -> Lowered {
        if !i.modifiers.iter().any(|modifier| modifier.to_string() == "noinc") {
            return Ok(());
        }
        let place = self.object(i, 0)?;
        let arrivals = Some(self.build().i32(1));
        self.change_object(place, Change { arrivals, ..Change::default() });
        Ok(())
    }

    /// `cp.async.bulk` between global and shared memory.
    pub(super) fn copy_bulk(&mut self, i: &Instruction) -> Lowered {
        let waits = [Modifier::CommitGroup, Modifier::WaitGroup];
        if waits.into_iter().any(|modifier| i.has(modifier)) {
            return Ok(());
        }
        if i.has(Modifier::Prefetch) {
            return Ok(());
        }
        if i.has(Modifier::Tensor) {
            return self.copy_tensor(i);
        }
        let spaces: Vec<PtxSpace> = i
            .modifiers
            .iter()
            .filter_map(|modifier| if let Modifier::Space(space) = modifier { Some(*space) } else { None })
            .collect();
        let [to_space, from_space] = spaces[..] else { return Err(unsupported(i)) };
        if i.has(Modifier::CpMask) {
            return Err(unsupported(i));
        }
        let bytes = self.read(operand(i, 2)?, Type::I32)?;
        if i.has(Modifier::MulticastCluster) && !i.has(Modifier::Reduce) {
            let from = self.place_in(address(i, 1)?, Some(from_space))?;
            return self.copy_to_many(i, from, bytes);
        }
        let to = self.place_in(address(i, 0)?, Some(to_space))?;
        let from = self.place_in(address(i, 1)?, Some(from_space))?;
        match i.has(Modifier::Reduce) {
            true => self.reduce_in_loop(i, to, from, bytes)?,
            false => self.copy_in_loop(to, from, bytes)?,
        }
        if i.has(Modifier::MbarrierCompleteTxBytes) {
            let place = self.place_in(address(i, 3)?, Some(to_space))?;
            self.complete(place, bytes);
        }
        Ok(())
    }

    /// Counts bytes of a copy that have come.
    pub(super) fn complete(&mut self, object: MemoryOperand, bytes: Value) {
        self.change_object(object, Change { completed_bytes: Some(bytes), ..Change::default() });
    }

    /// `.multicast::cluster`: the copy and its completion in each block whose rank is set in a
    /// mask, at the same offsets.
    fn copy_to_many(&mut self, i: &Instruction, from: MemoryOperand, bytes: Value) -> Lowered {
        let mask = self.read(operand(i, 4)?, Type::I32)?;
        let mask = self.build().binary_imm(BinaryOp::And, mask, (1 << CLUSTER_BLOCKS_MAX) - 1);
        let [to, object] = [0, 3].map(|at| self.offset_in_block(i, at));
        let (to, object) = (to?, object?);
        for rank in 0..CLUSTER_BLOCKS_MAX {
            let mut build = self.build();
            let bit = build.binary_imm(BinaryOp::ShrU, mask, rank);
            let is_meant = build.convert(ConvertOp::Truncate, Type::I1, bit);
            self.branch_around(Some(is_meant), |lowering| {
                let rank = lowering.build().i32(rank as u32);
                let base = lowering.shared_base_of(rank);
                let [to, object] = [to, object].map(|offset| {
                    let addr = lowering.build().binary(BinaryOp::Add, base, offset);
                    MemoryOperand { space: Space::Generic, addr, offset: 0 }
                });
                lowering.copy_in_loop(to, from, bytes)?;
                lowering.complete(object, bytes);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The offset in the shared memory of its block of an address in `.shared::cluster`, I64.
    pub(super) fn offset_in_block(&mut self, i: &Instruction, at: usize) -> Lowered<Value> {
        let place = self.place(address(i, at)?, Some(Space::Shared))?;
        let mut build = self.build();
        let offset = build.binary_imm(BinaryOp::Add, place.addr, u64::from(place.offset as u32));
        let offset = build.binary_imm(BinaryOp::And, offset, cluster::OFFSET_MASK);
        Ok(build.convert(ConvertOp::ZeroExtend, Type::I64, offset))
    }

    /// Ends an asynchronous store or reduction of `bytes`: they count on the object
    /// that is operand `at`. Nothing for others.
    pub(super) fn complete_async(&mut self, i: &Instruction, at: usize, bytes: u32) -> Lowered {
        if !i.has(Modifier::Async) {
            return Ok(());
        }
        if !i.has(Modifier::MbarrierCompleteTxBytes) {
            return Err(unsupported(i));
        }
        let place = self.place_in(address(i, at)?, i.space())?;
        let completed_bytes = Some(self.build().i32(bytes));
        self.change_object(place, Change { completed_bytes, ..Change::default() });
        Ok(())
    }

    /// Copies a multiple of 16 bytes between addresses that are multiples of 16.
    pub(super) fn copy_in_loop(&mut self, to: MemoryOperand, from: MemoryOperand, bytes: Value) -> Lowered {
        self.in_steps([to, from], bytes, 16, |lowering, [to, from]| lowering.copy_piece(to, from))
    }

    /// Copies 16 bytes between addresses that are multiples of 16.
    pub(super) fn copy_piece(&mut self, to: MemoryOperand, from: MemoryOperand) {
        let mut build = self.build();
        let order = MemoryOrder::WEAK;
        let load = build.push(Inst::Load { place: from, ty: Type::I64, count: 2, order, guard: None });
        let values: Vec<Value> = build.kernel.inst(load).results().collect();
        build.push(Inst::Store { place: to, ty: Type::I64, values: values.into(), order, guard: None });
    }

    /// `cp.reduce.async.bulk`: combines elements with those that are there, one by one.
    fn reduce_in_loop(
        &mut self,
        i: &Instruction,
        to: MemoryOperand,
        from: MemoryOperand,
        bytes: Value,
    ) -> Lowered {
        let ptx = ptx_type(i)?;
        let (op, ty) = (atomic_op(i, ptx)?, register_type(ptx));
        self.in_steps([to, from], bytes, ty.bytes().into(), |lowering, [to, from]| {
            let order = MemoryOrder::WEAK;
            let load = Inst::Load { place: from, ty, count: 1, order, guard: None };
            let arg = lowering.build().value(load);
            let order = MemoryOrder { ordering: Ordering::Relaxed, scope: Scope::Device };
            let atomic = Inst::Atomic { op, place: to, ty, arg, compare: None, order, guard: None };
            let (block, line) = (lowering.here(), lowering.line);
            lowering.kernel.push_without_result(block, atomic, line);
        })
    }

    /// Does something at two places, then one step behind them, and so on up to a number of
    /// bytes.
    fn in_steps(
        &mut self,
        places: [MemoryOperand; 2],
        bytes: Value,
        step: u64,
        body: impl FnOnce(&mut Self, [MemoryOperand; 2]),
    ) -> Lowered {
        let in_places = |lowering: &mut Self, offset| {
            let places = places.map(|place| {
                let mut build = lowering.build();
                let offset = build.resize(place.space.address_type(), false, offset);
                MemoryOperand { addr: build.binary(BinaryOp::Add, place.addr, offset), ..place }
            });
            body(lowering, places);
            Ok(())
        };
        self.count_up(bytes, step, in_places)
    }

    /// A loop: does something with each number from 0 to below a limit, by steps; numbers are I32.
    pub(super) fn count_up(
        &mut self,
        limit: Value,
        step: u64,
        body: impl FnOnce(&mut Self, Value) -> Lowered,
    ) -> Lowered {
        let done = self.variables.declare(Type::I32);
        self.frames[self.activation].activation.own(self.variables.len() - 1..self.variables.len());
        let zero = self.build().i32(0);
        self.variables.write(done, zero);
        let [head, inside, end] = [(); 3].map(|()| self.kernel.add_block());
        self.end_block(Terminator::Jump(Target::new(head)));
        self.start_block(head);
        let at = self.variables.read(&mut self.kernel, done);
        let is_left = self.build().compare(IntCond::LtU, at, limit);
        self.end_block(Terminator::Branch {
            cond: is_left,
            then: Target::new(inside),
            otherwise: Target::new(end),
        });
        self.start_block(inside);
        body(self, at)?;
        let next = self.build().binary_imm(BinaryOp::Add, at, step);
        self.variables.write(done, next);
        self.end_block(Terminator::Jump(Target::new(head)));
        self.start_block(end);
        Ok(())
    }

    /// `test_wait`, `try_wait`: whether the phase of a state, or that of a parity, is complete.
    fn wait_for_phase(&mut self, i: &Instruction) -> Lowered {
        let place = self.object(i, 1)?;
        let order = MemoryOrder { ordering: Ordering::Acquire, scope: Scope::Cluster };
        let phase = if i.has(Modifier::Parity) {
            let parity = self.read(operand(i, 2)?, Type::I32)?;
            let mut build = self.build();
            let parity = build.convert(ConvertOp::ZeroExtend, Type::I64, parity);
            build.binary_imm(BinaryOp::And, parity, 1)
        } else {
            let state = self.read(operand(i, 2)?, Type::I64)?;
            self.phase_of(state)
        };
        let word = self.build().value(Inst::Load { place, ty: Type::I64, count: 1, order, guard: None });
        let current = self.phase_of(word);
        let is_complete = self.build().compare(IntCond::Ne, current, phase);
        self.write(operand(i, 0)?, is_complete)?;
        if i.has(Modifier::TryWait) {
            // What the thread waits for may be another warp's to do.
            let waits = self.build().unary(UnaryOp::Not, is_complete);
            self.branch_around(Some(waits), |lowering| {
                let nanoseconds = lowering.build().i32(0);
                lowering.build().push(Inst::Nanosleep { nanoseconds });
                Ok(())
            })?;
        }
        Ok(())
    }

    fn phase_of(&mut self, word: Value) -> Value {
        let mut build = self.build();
        let phase = build.binary_imm(BinaryOp::ShrU, word, PHASE_BIT);
        build.binary_imm(BinaryOp::And, phase, 1)
    }

    /// Where an object is.
    fn object(&mut self, i: &Instruction, at: usize) -> Lowered<MemoryOperand> {
        self.place_in(address(i, at)?, i.space())
    }

    fn store_object(&mut self, place: MemoryOperand, word: Value) -> Lowered {
        let (ty, values, order) = (Type::I64, Box::new([word]), MemoryOrder::WEAK);
        self.build().push(Inst::Store { place, ty, values, order, guard: None });
        Ok(())
    }

    /// Changes an object in one step. The result is its state before.
    fn change_object(&mut self, place: MemoryOperand, change: Change) -> Value {
        let [head, end] = [(); 2].map(|()| self.kernel.add_block());
        self.end_block(Terminator::Jump(Target::new(head)));
        self.start_block(head);
        let order = MemoryOrder { ordering: Ordering::Relaxed, ..ORDER };
        let load = Inst::Load { place, ty: Type::I64, count: 1, order, guard: None };
        let old = self.build().value(load);
        let new = self.changed(old, change);
        let exchange = AtomicOp::Exchange;
        let found = self.build().value(Inst::Atomic {
            op: exchange,
            place,
            ty: Type::I64,
            arg: new,
            compare: Some(old),
            order: ORDER,
            guard: None,
        });
        let is_done = self.build().compare(IntCond::Eq, found, old);
        self.end_block(Terminator::Branch {
            cond: is_done,
            then: Target::new(end),
            otherwise: Target::new(head),
        });
        self.start_block(end);
        old
    }

    /// An object's word after a change. A phase that nothing is missing in ends, and the next one
    /// begins.
    fn changed(&mut self, old: Value, change: Change) -> Value {
        let mut build = self.build();
        let mut word = old;
        if let Some(arrivals) = change.arrivals {
            let arrivals = build.convert(ConvertOp::ZeroExtend, Type::I64, arrivals);
            word = build.binary(BinaryOp::Sub, word, arrivals);
            if change.drops {
                let expected = build.binary_imm(BinaryOp::Shl, arrivals, COUNT_BITS);
                word = build.binary(BinaryOp::Sub, word, expected);
            }
        }
        for (bytes, op) in [(change.expected_bytes, BinaryOp::Add), (change.completed_bytes, BinaryOp::Sub)] {
            if let Some(bytes) = bytes {
                let bytes = build.convert(ConvertOp::ZeroExtend, Type::I64, bytes);
                let bytes = build.binary_imm(BinaryOp::Shl, bytes, TRANSACTIONS_BIT);
                word = build.binary(op, word, bytes);
            }
        }
        let missing = build.binary_imm(BinaryOp::And, word, COUNT_MASK | u64::MAX << TRANSACTIONS_BIT);
        let zero = build.i64(0);
        let is_complete = build.compare(IntCond::Eq, missing, zero);
        let next = build.binary_imm(BinaryOp::Xor, word, 1 << PHASE_BIT);
        let expected = build.binary_imm(BinaryOp::ShrU, word, COUNT_BITS);
        let expected = build.binary_imm(BinaryOp::And, expected, COUNT_MASK);
        let next = build.binary(BinaryOp::Or, next, expected);
        build.select(is_complete, next, word)
    }
}
