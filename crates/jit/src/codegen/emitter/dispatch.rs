//! The way into a warp's nodes: the entry, the dispatcher, and the next warp of the block.

use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{BlockArg, InstBuilder, JumpTableData, MemFlagsData, Value as Clif, types};
use sluice_ir::{BarrierKind, Inst, InstId};

use super::{Emitter, frame_flags};
use crate::context::{FUEL, WarpContext, status};
use crate::runtime;

impl Emitter<'_> {
    pub(super) fn enter(&mut self) {
        self.b.ins().jump(self.enter, &[]);
        self.switch_to(self.enter);
        self.resume();
        if !self.plan.rotates {
            self.b.ins().jump(self.dispatch, &[]);
            return;
        }
        // Groups of lanes take turns: the runtime picks.
        let rotation = self.field(types::I32, offset_of!(WarpContext, rotation));
        let pick = self.b.create_block();
        self.b.ins().brif(rotation, pick, &[], self.dispatch, &[]);
        self.b.switch_to_block(pick);
        let blocks = self.b.ins().iconst(types::I32, i64::from(self.plan.frame.blocks));
        let node = self.call(runtime::rotate as *const (), &[self.ctx, blocks], Some(types::I32));
        self.enter_pending(node);
    }

    /// A warp that comes back whole from a barrier continues where the barrier says.
    pub(super) fn resume(&mut self) {
        let plan = self.plan;
        let behind: Vec<usize> =
            (0..plan.nodes.len()).filter(|&node| plan.nodes[node].behind.is_some()).collect();
        let (Some(&first), Some(&last)) = (behind.first(), behind.last()) else { return };
        let resume_node = self.field(types::I32, offset_of!(WarpContext, resume_node));
        let (whole, other) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(resume_node, whole, &[], other, &[]);
        self.b.switch_to_block(whole);
        let none = self.b.ins().iconst(types::I32, 0);
        self.set_field(none, offset_of!(WarpContext, resume_node));
        let live = self.field(types::I32, offset_of!(WarpContext, live));
        let live = [BlockArg::Value(live)];
        if first == last {
            self.b.ins().jump(self.nodes[first], &live);
        } else {
            let calls: Vec<_> =
                (first..=last).map(|node| self.b.func.dfg.block_call(self.nodes[node], &live)).collect();
            // Arguments are added to each call when blocks are sealed, so no two are the same.
            let default = self.b.func.dfg.block_call(self.nodes[first], &live);
            let table = self.b.create_jump_table(JumpTableData::new(default, &calls));
            let index = self.b.ins().iadd_imm_s(resume_node, -(first as i64));
            self.b.ins().br_table(index, table);
        }
        self.b.switch_to_block(other);
    }

    /// At a barrier of all threads: if all live lanes are here, the warp leaves as a whole.
    pub(super) fn park_all(&mut self, barrier: InstId, node: u32) {
        let Inst::Barrier { kind: BarrierKind::Sync, id, count: None, .. } = self.kernel.inst(barrier).inst
        else {
            return;
        };
        // What watches an instrumented kernel sees each warp come to the barrier.
        if self.plan.is_varying(id) || self.kernel.is_instrumented {
            return;
        }
        let id = self.uniform(id);
        let live = self.field(types::I32, offset_of!(WarpContext, live));
        let is_whole = self.b.ins().icmp(IntCC::Equal, self.mask, live);
        let (whole, part) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(is_whole, whole, &[], part, &[]);
        self.b.switch_to_block(whole);
        let node = self.b.ins().iconst(types::I32, i64::from(node));
        self.set_field(node, offset_of!(WarpContext, resume_node));
        self.set_field(id, offset_of!(WarpContext, resume_barrier));
        self.stop();
        self.b.switch_to_block(part);
    }

    pub(super) fn dispatcher(&mut self) {
        self.switch_to(self.dispatch);
        let ready = self.field(types::I64, offset_of!(WarpContext, ready));
        let stop = self.b.create_block();
        let pick = self.b.create_block();
        self.b.ins().brif(ready, pick, &[], stop, &[]);
        self.b.switch_to_block(stop);
        self.stop();

        self.b.switch_to_block(pick);
        let plan = self.plan;
        let mut node = self.b.ins().ctz(ready);
        for &level in plan.frame.levels().iter().rev() {
            let place = self.b.ins().ishl_imm_u(node, 3);
            let words = self.b.ins().iadd(self.ctx, place);
            let word = self.b.ins().load(types::I64, frame_flags(), words, level as i32);
            let bit = self.b.ins().ctz(word);
            let base = self.b.ins().ishl_imm_u(node, 6);
            node = self.b.ins().iadd(base, bit);
        }
        let node = self.b.ins().ireduce(types::I32, node);
        self.enter_pending(node);
    }

    /// The warp is at its end, or waits at barriers: the next one's turn, if it has one.
    pub(super) fn stop(&mut self) {
        if self.plan.goes_on() {
            let left = self.field(types::I32, offset_of!(WarpContext, threads_left));
            let (next, none) = (self.b.create_block(), self.b.create_block());
            self.b.ins().brif(left, next, &[], none, &[]);
            self.b.switch_to_block(next);
            self.next_warp(left);
            self.b.switch_to_block(none);
            self.next_block();
        }
        if self.plan.has_sync {
            self.next_of_phase();
        }
        self.return_status(status::STOPPED);
    }

    /// Enters the warp behind this one, if the runtime has linked one for this phase.
    fn next_of_phase(&mut self) {
        let next = self.field(types::I64, offset_of!(WarpContext, next));
        let (some, none) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(next, some, &[], none, &[]);
        self.b.switch_to_block(some);
        let fuel = self.b.ins().iconst(types::I32, i64::from(FUEL));
        self.b.ins().store(frame_flags(), fuel, next, offset_of!(WarpContext, fuel) as i32);
        self.warp.set(&mut self.b, next);
        self.b.ins().jump(self.enter, &[]);
        self.b.switch_to_block(none);
    }

    /// Continues with the first warp of the next block, if there is one and the launch is not asked
    /// to stop.
    fn next_block(&mut self) {
        let left = self.field(types::I32, offset_of!(WarpContext, blocks_left));
        let [some, go, none] = [(); 3].map(|()| self.b.create_block());
        self.b.ins().brif(left, some, &[], none, &[]);
        self.b.switch_to_block(some);
        let control = self.fixed_field(types::I64, offset_of!(WarpContext, control));
        let word = self.b.ins().atomic_load(types::I32, MemFlagsData::trusted(), control);
        self.b.ins().brif(word, none, &[], go, &[]);

        self.b.switch_to_block(go);
        let left = self.b.ins().iadd_imm_s(left, -1);
        self.set_field(left, offset_of!(WarpContext, blocks_left));
        let threads = self.fixed_field(types::I32, offset_of!(WarpContext, first_threads_left));
        self.set_field(threads, offset_of!(WarpContext, threads_left));
        let zero = self.b.ins().iconst(types::I32, 0);
        self.set_field(zero, offset_of!(WarpContext, warp_index));
        (0..3).for_each(|axis| self.set_field(zero, offset_of!(WarpContext, tid0) + 4 * axis));
        if self.plan.rotates {
            self.set_field(zero, offset_of!(WarpContext, rotation));
        }
        if self.kernel.has_local_memory() {
            let local = self.fixed_field(types::I64, offset_of!(WarpContext, local_start));
            self.set_field(local, offset_of!(WarpContext, local_base));
        }
        let members = self.fixed_field(types::I32, offset_of!(WarpContext, first_members));
        self.set_field(members, offset_of!(WarpContext, live));
        // The next in x, or the start of the next row, or of the next plane.
        let start = self.b.create_block();
        let (ctaid, nctaid) = (offset_of!(WarpContext, ctaid), offset_of!(WarpContext, nctaid));
        for axis in [0, 4, 8] {
            let index = self.field(types::I32, ctaid + axis);
            let index = self.b.ins().iadd_imm_u(index, 1);
            self.set_field(index, ctaid + axis);
            let count = self.fixed_field(types::I32, nctaid + axis);
            let is_inside = self.b.ins().icmp(IntCC::UnsignedLessThan, index, count);
            let wrap = self.b.create_block();
            self.b.ins().brif(is_inside, start, &[], wrap, &[]);
            self.b.switch_to_block(wrap);
            self.set_field(zero, ctaid + axis);
        }
        self.b.ins().jump(start, &[]);
        self.b.switch_to_block(start);
        self.b.ins().jump(self.nodes[0], &[BlockArg::Value(members)]);
        self.b.switch_to_block(none);
    }

    /// Continues with the block's next warp in the same memory: what `BlockRun::start` does, in
    /// steps.
    fn next_warp(&mut self, left: Clif) {
        let warp = self.plan.lanes as i64;
        let is_whole = self.b.ins().icmp_imm_u(IntCC::UnsignedGreaterThanOrEqual, left, warp);
        let whole = self.b.ins().iconst(types::I32, warp);
        let lanes = self.b.ins().select(is_whole, whole, left);
        let left = self.b.ins().isub(left, lanes);
        self.set_field(left, offset_of!(WarpContext, threads_left));
        if self.plan.rotates {
            let none = self.b.ins().iconst(types::I32, 0);
            self.set_field(none, offset_of!(WarpContext, rotation));
        }
        let lanes = self.b.ins().uextend(types::I64, lanes);
        let one = self.b.ins().iconst(types::I64, 1);
        let power = self.b.ins().ishl(one, lanes);
        let members = self.b.ins().iadd_imm_s(power, -1);
        let members = self.b.ins().ireduce(types::I32, members);
        self.set_field(members, offset_of!(WarpContext, live));
        let index = self.field(types::I32, offset_of!(WarpContext, warp_index));
        let index = self.b.ins().iadd_imm_u(index, 1);
        self.set_field(index, offset_of!(WarpContext, warp_index));
        if self.kernel.has_local_memory() {
            let local = self.field(types::I64, offset_of!(WarpContext, local_base));
            let lanes = self.b.ins().iconst(types::I64, warp);
            let place = self.local_place(lanes);
            let local = self.b.ins().iadd(local, place);
            self.set_field(local, offset_of!(WarpContext, local_base));
        }
        // The next 32 of the row, or the start of the next row.
        let (tid0, ntid) = (offset_of!(WarpContext, tid0), offset_of!(WarpContext, ntid));
        let x = self.field(types::I32, tid0);
        let x = self.b.ins().iadd_imm_u(x, warp);
        let width = self.fixed_field(types::I32, ntid);
        let (row, go) = (self.b.create_block(), self.b.create_block());
        self.set_field(x, tid0);
        let is_inside = self.b.ins().icmp(IntCC::UnsignedLessThan, x, width);
        self.b.ins().brif(is_inside, go, &[], row, &[]);
        self.b.switch_to_block(row);
        let [y, z] = [4, 8].map(|axis| self.field(types::I32, tid0 + axis));
        let height = self.fixed_field(types::I32, ntid + 4);
        let zero = self.b.ins().iconst(types::I32, 0);
        self.set_field(zero, tid0);
        let y = self.b.ins().iadd_imm_u(y, 1);
        let is_last = self.b.ins().icmp(IntCC::UnsignedGreaterThanOrEqual, y, height);
        let y = self.b.ins().select(is_last, zero, y);
        self.set_field(y, tid0 + 4);
        let step = self.b.ins().uextend(types::I32, is_last);
        let z = self.b.ins().iadd(z, step);
        self.set_field(z, tid0 + 8);
        self.b.ins().jump(go, &[]);
        self.b.switch_to_block(go);
        self.b.ins().jump(self.nodes[0], &[BlockArg::Value(members)]);
    }

    /// Takes the pending lanes of a ready node and jumps there.
    pub(super) fn enter_pending(&mut self, node: Clif) {
        let wide = self.b.ins().uextend(types::I64, node);
        let place = self.b.ins().ishl_imm_u(wide, 2);
        let address = self.b.ins().iadd(self.ctx, place);
        let pending = self.plan.frame.pending as i32;
        let lanes = self.b.ins().load(types::I32, frame_flags(), address, pending);
        let none = self.b.ins().iconst(types::I32, 0);
        self.b.ins().store(frame_flags(), none, address, pending);
        self.clear_ready(wide);
        let default = self.nodes[0];
        let lanes_arg = [BlockArg::Value(lanes)];
        let default = self.b.func.dfg.block_call(default, &lanes_arg);
        let table: Vec<_> = (0..self.nodes.len())
            .map(|index| self.b.func.dfg.block_call(self.nodes[index], &lanes_arg))
            .collect();
        let table = self.b.create_jump_table(JumpTableData::new(default, &table));
        self.b.ins().br_table(node, table);
    }

    pub(super) fn clear_ready(&mut self, node: Clif) {
        let plan = self.plan;
        let one = self.b.ins().iconst(types::I64, 1);
        let mut index = node;
        let mut bit = self.b.ins().ishl(one, index);
        for &level in plan.frame.levels() {
            let word_index = self.b.ins().ushr_imm_u(index, 6);
            let place = self.b.ins().ishl_imm_u(word_index, 3);
            let address = self.b.ins().iadd(self.ctx, place);
            let word = self.b.ins().load(types::I64, frame_flags(), address, level as i32);
            let rest = self.b.ins().band_not(word, bit);
            self.b.ins().store(frame_flags(), rest, address, level as i32);
            // The word's own bit goes when the word is empty.
            let is_empty = self.b.ins().icmp_imm_u(IntCC::Equal, rest, 0);
            let is_empty = self.b.ins().uextend(types::I64, is_empty);
            index = word_index;
            bit = self.b.ins().ishl(is_empty, index);
        }
        let offset = offset_of!(WarpContext, ready) as i32;
        let ready = self.b.ins().load(types::I64, frame_flags(), self.ctx, offset);
        let rest = self.b.ins().band_not(ready, bit);
        self.b.ins().store(frame_flags(), rest, self.ctx, offset);
    }

    /// Adds lanes to those that wait at a node.
    pub(super) fn make_pending(&mut self, node: u32, lanes: Clif) {
        let place = (self.plan.frame.pending + 4 * node) as i32;
        let pending = self.b.ins().load(types::I32, frame_flags(), self.ctx, place);
        let pending = self.b.ins().bor(pending, lanes);
        self.b.ins().store(frame_flags(), pending, self.ctx, place);
        let plan = self.plan;
        let mut index = node;
        for &level in plan.frame.levels() {
            self.set_bit((level + index / 64 * 8) as i32, index % 64);
            index /= 64;
        }
        self.set_bit(offset_of!(WarpContext, ready) as i32, index);
    }

    pub(super) fn set_bit(&mut self, offset: i32, bit: u32) {
        let word = self.b.ins().load(types::I64, frame_flags(), self.ctx, offset);
        let bit = self.b.ins().iconst(types::I64, 1i64 << bit);
        let word = self.b.ins().bor(word, bit);
        self.b.ins().store(frame_flags(), word, self.ctx, offset);
    }
}
