//! Writes the function of one kernel: entry, dispatcher, and the nodes with the jumps between them.
//!
//! ```text
//!   entry -> dispatch -> pick the lowest ready node, take its pending lanes
//!               ^                 |
//!               |                 v
//!   ready more?-+--------------- node(lanes): steps, then jump / split / exit
//! ```

use std::collections::HashMap;
use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    AbiParam, Block as ClifBlock, BlockArg, InstBuilder, JumpTableData, MemFlagsData, Signature,
    Type as ClifType, Value as Clif, types,
};
use cranelift_frontend::FunctionBuilder;
use sluice_ir::{BarrierKind, BlockId, Inst, InstId, Kernel, Target, Terminator, Type, Value};

use super::machine::Machine;
use super::memory::Extent;
use super::plan::{Plan, Step};
use crate::context::{WarpContext, status};
use crate::runtime::{self, fault_code};

pub(super) struct Emitter<'a> {
    pub b: FunctionBuilder<'a>,
    pub kernel: &'a Kernel,
    pub plan: &'a Plan,
    pub machine: &'a Machine,
    /// The warp's memory.
    pub ctx: Clif,
    /// The lanes that run the current node.
    pub mask: Clif,
    /// By node; each takes its lanes.
    nodes: Vec<ClifBlock>,
    dispatch: ClifBlock,
    fault: ClifBlock,
    pub current: u32,
    /// Extents that the current node has checked, with the host address of their first byte.
    pub(super) checked: Vec<(Extent, Clif)>,
    /// Uniform values, and affine ones at lane 0, in the current node.
    uniform: HashMap<Value, Clif>,
    /// Predicates of the current node, a bit per lane.
    pub(super) predicates: HashMap<Value, Clif>,
    signatures: HashMap<(Vec<ClifType>, Option<ClifType>), cranelift_codegen::ir::SigRef>,
    /// The first thing that cannot be compiled.
    pub unsupported: Option<String>,
}

/// Warp memory: always there, never a trap.
pub(super) fn frame_flags() -> MemFlagsData {
    MemFlagsData::trusted()
}

/// Warp memory that does not change while the function runs.
pub(super) fn constant_flags() -> MemFlagsData {
    MemFlagsData::trusted().with_readonly().with_can_move()
}

impl<'a> Emitter<'a> {
    pub(super) fn new(
        mut b: FunctionBuilder<'a>,
        kernel: &'a Kernel,
        plan: &'a Plan,
        machine: &'a Machine,
    ) -> Emitter<'a> {
        let entry = b.create_block();
        b.append_block_params_for_function_params(entry);
        b.switch_to_block(entry);
        let ctx = b.block_params(entry)[0];
        let nodes: Vec<ClifBlock> = plan
            .nodes
            .iter()
            .map(|_| {
                let block = b.create_block();
                b.append_block_param(block, types::I32);
                block
            })
            .collect();
        let dispatch = b.create_block();
        let fault = b.create_block();
        b.append_block_param(fault, types::I32);
        b.append_block_param(fault, types::I64);
        b.set_cold_block(fault);
        Emitter {
            b,
            kernel,
            plan,
            machine,
            ctx,
            mask: ctx,
            nodes,
            dispatch,
            fault,
            current: 0,
            checked: Vec::new(),
            uniform: HashMap::new(),
            predicates: HashMap::new(),
            signatures: HashMap::new(),
            unsupported: None,
        }
    }

    /// Writes everything. The builder is ready to be finalised afterwards.
    pub(super) fn function(&mut self) {
        self.entry();
        self.dispatcher();
        for number in 0..self.plan.nodes.len() as u32 {
            self.node(number);
        }
        self.fault_block();
        self.b.seal_all_blocks();
    }

    pub(super) fn unsupported(&mut self, what: String) {
        self.unsupported.get_or_insert(what);
    }

    fn entry(&mut self) {
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

    /// A warp that comes back whole from a barrier goes on where the barrier says.
    fn resume(&mut self) {
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
            let table = self.b.create_jump_table(JumpTableData::new(calls[0], &calls));
            let index = self.b.ins().iadd_imm_s(resume_node, -(first as i64));
            self.b.ins().br_table(index, table);
        }
        self.b.switch_to_block(other);
    }

    /// At a barrier of all threads: if all live lanes are here, the warp leaves as a whole.
    fn park_all(&mut self, barrier: InstId, node: u32) {
        let Inst::Barrier { kind: BarrierKind::Sync, id, count: None, .. } = self.kernel.inst(barrier).inst
        else {
            return;
        };
        if self.plan.is_varying(id) {
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
        self.return_status(status::AT_BARRIER);
        self.b.switch_to_block(part);
    }

    fn dispatcher(&mut self) {
        self.b.switch_to_block(self.dispatch);
        let ready = self.field(types::I64, offset_of!(WarpContext, ready));
        let stop = self.b.create_block();
        let pick = self.b.create_block();
        self.b.ins().brif(ready, pick, &[], stop, &[]);
        self.b.switch_to_block(stop);
        self.stop();

        self.b.switch_to_block(pick);
        let first = self.b.ins().ctz(ready);
        let node = if self.plan.nodes.len() <= 64 {
            first
        } else {
            let place = self.b.ins().ishl_imm_u(first, 3);
            let words = self.b.ins().iadd(self.ctx, place);
            let offset = self.plan.frame.group_words as i32;
            let word = self.b.ins().load(types::I64, frame_flags(), words, offset);
            let bit = self.b.ins().ctz(word);
            let base = self.b.ins().ishl_imm_u(first, 6);
            self.b.ins().iadd(base, bit)
        };
        let node = self.b.ins().ireduce(types::I32, node);
        self.enter_pending(node);
    }

    /// No lane is ready: the warp is at its end, or waits at barriers.
    fn stop(&mut self) {
        if self.plan.takes_next_warp() {
            let left = self.field(types::I32, offset_of!(WarpContext, threads_left));
            let (next, none) = (self.b.create_block(), self.b.create_block());
            self.b.ins().brif(left, next, &[], none, &[]);
            self.b.switch_to_block(next);
            self.next_warp(left);
            self.b.switch_to_block(none);
        }
        self.return_status(status::STOPPED);
    }

    /// Goes on with the block's next warp in the same memory: what `BlockRun::start` does, in steps.
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
        if self.kernel.local_bytes > 0 {
            let local = self.field(types::I64, offset_of!(WarpContext, local_base));
            let local = self.b.ins().iadd_imm_u(local, warp * i64::from(self.kernel.local_bytes));
            self.set_field(local, offset_of!(WarpContext, local_base));
        }
        // The next 32 of the row, or the start of the next row.
        let (tid0, ntid) = (offset_of!(WarpContext, tid0), offset_of!(WarpContext, ntid));
        let [x, y, z] = [0, 4, 8].map(|axis| self.field(types::I32, tid0 + axis));
        let x = self.b.ins().iadd_imm_u(x, warp);
        let [width, height] = [0, 4].map(|axis| self.field(types::I32, ntid + axis));
        let (row, go) = (self.b.create_block(), self.b.create_block());
        self.set_field(x, tid0);
        let is_inside = self.b.ins().icmp(IntCC::UnsignedLessThan, x, width);
        self.b.ins().brif(is_inside, go, &[], row, &[]);
        self.b.switch_to_block(row);
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
    fn enter_pending(&mut self, node: Clif) {
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

    fn clear_ready(&mut self, node: Clif) {
        let ready_offset = offset_of!(WarpContext, ready) as i32;
        let one = self.b.ins().iconst(types::I64, 1);
        let bit = self.b.ins().ishl(one, node);
        if self.plan.nodes.len() <= 64 {
            let ready = self.b.ins().load(types::I64, frame_flags(), self.ctx, ready_offset);
            let rest = self.b.ins().band_not(ready, bit);
            self.b.ins().store(frame_flags(), rest, self.ctx, ready_offset);
            return;
        }
        let word_index = self.b.ins().ushr_imm_u(node, 6);
        let place = self.b.ins().ishl_imm_u(word_index, 3);
        let address = self.b.ins().iadd(self.ctx, place);
        let offset = self.plan.frame.group_words as i32;
        let word = self.b.ins().load(types::I64, frame_flags(), address, offset);
        let rest = self.b.ins().band_not(word, bit);
        self.b.ins().store(frame_flags(), rest, address, offset);
        // The word's own bit goes when the word is empty.
        let is_empty = self.b.ins().icmp_imm_u(IntCC::Equal, rest, 0);
        let is_empty = self.b.ins().uextend(types::I64, is_empty);
        let word_bit = self.b.ins().ishl(is_empty, word_index);
        let ready = self.b.ins().load(types::I64, frame_flags(), self.ctx, ready_offset);
        let ready = self.b.ins().band_not(ready, word_bit);
        self.b.ins().store(frame_flags(), ready, self.ctx, ready_offset);
    }

    /// Adds lanes to those that wait at a node.
    fn make_pending(&mut self, node: u32, lanes: Clif) {
        let place = (self.plan.frame.pending + 4 * node) as i32;
        let pending = self.b.ins().load(types::I32, frame_flags(), self.ctx, place);
        let pending = self.b.ins().bor(pending, lanes);
        self.b.ins().store(frame_flags(), pending, self.ctx, place);
        let ready = offset_of!(WarpContext, ready) as i32;
        if self.plan.nodes.len() <= 64 {
            self.set_bit(ready, node);
        } else {
            self.set_bit((self.plan.frame.group_words + node / 64 * 8) as i32, node % 64);
            self.set_bit(ready, node / 64);
        }
    }

    fn set_bit(&mut self, offset: i32, bit: u32) {
        let word = self.b.ins().load(types::I64, frame_flags(), self.ctx, offset);
        let bit = self.b.ins().iconst(types::I64, 1i64 << bit);
        let word = self.b.ins().bor(word, bit);
        self.b.ins().store(frame_flags(), word, self.ctx, offset);
    }

    fn node(&mut self, number: u32) {
        let block = self.nodes[number as usize];
        self.b.switch_to_block(block);
        self.mask = self.b.block_params(block)[0];
        self.current = number;
        self.uniform.clear();
        self.checked.clear();
        self.predicates.clear();
        let plan = self.plan;
        let node = &plan.nodes[number as usize];
        if let Some(barrier) = node.barrier {
            self.park_all(barrier, number + 1);
            self.park(barrier, number + 1);
            self.b.ins().jump(self.dispatch, &[]);
            return;
        }
        if let Some(barrier) = node.behind {
            self.barrier_result(barrier);
        }
        for (place, step) in node.steps.iter().enumerate() {
            match step {
                Step::Once(inst) => self.once(*inst),
                Step::Collective(inst) => self.collective(*inst, number, place == 0),
                Step::Lanes(insts) => self.lanes(insts),
            }
        }
        self.terminator(node.block);
    }

    fn terminator(&mut self, block: BlockId) {
        let kernel = self.kernel;
        let terminator = &kernel.block(block).terminator;
        // What the edges use is loaded where it dominates them all.
        terminator.for_each_arg(|value| self.prepare(value));
        match terminator {
            Terminator::Jump(target) => self.take(target, self.mask),
            Terminator::Branch { cond, then, otherwise } => {
                if self.plan.is_varying(*cond) {
                    self.split(*cond, then, otherwise);
                } else {
                    let cond = self.uniform(*cond);
                    self.branch(cond, then, otherwise);
                }
            }
            Terminator::Switch { index, targets, default } => self.switch(*index, targets, default),
            Terminator::Exit => self.exit(self.mask),
            Terminator::Trap => {
                let kind = self.b.ins().iconst(types::I32, i64::from(fault_code::TRAP));
                let address = self.b.ins().iconst(types::I64, 0);
                self.b.ins().jump(self.fault, &[BlockArg::Value(kind), BlockArg::Value(address)]);
            }
        }
    }

    /// All lanes of the node go the same way.
    fn branch(&mut self, cond: Clif, then: &Target, otherwise: &Target) {
        let (yes, no) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(cond, yes, &[], no, &[]);
        self.b.switch_to_block(yes);
        self.take(then, self.mask);
        self.b.switch_to_block(no);
        self.take(otherwise, self.mask);
    }

    /// Lanes may go different ways.
    fn split(&mut self, cond: Value, then: &Target, otherwise: &Target) {
        let mask = self.mask;
        let predicate = self.predicate(cond);
        let yes_lanes = self.b.ins().band(predicate, mask);
        let no_lanes = self.b.ins().band_not(mask, predicate);
        let [all_yes, some_no, all_no, both] = [(); 4].map(|()| self.b.create_block());
        self.b.ins().brif(no_lanes, some_no, &[], all_yes, &[]);
        self.b.switch_to_block(all_yes);
        self.take(then, mask);
        self.b.switch_to_block(some_no);
        self.b.ins().brif(yes_lanes, both, &[], all_no, &[]);
        self.b.switch_to_block(all_no);
        self.take(otherwise, mask);

        self.b.switch_to_block(both);
        if self.ends_threads(then) {
            self.retire(yes_lanes);
            return self.take(otherwise, no_lanes);
        }
        if self.ends_threads(otherwise) {
            self.retire(no_lanes);
            return self.take(then, yes_lanes);
        }
        self.assign(then, yes_lanes);
        self.make_pending(self.plan.entry[then.block.index()], yes_lanes);
        self.assign(otherwise, no_lanes);
        self.make_pending(self.plan.entry[otherwise.block.index()], no_lanes);
        self.b.ins().jump(self.dispatch, &[]);
    }

    /// Whether all that the target does is to end its threads.
    fn ends_threads(&self, target: &Target) -> bool {
        let block = self.kernel.block(target.block);
        block.insts.is_empty() && block.terminator == Terminator::Exit
    }

    fn switch(&mut self, index: Value, targets: &[Target], default: &Target) {
        if !self.plan.is_varying(index) {
            let index = self.uniform(index);
            let blocks: Vec<ClifBlock> = (0..=targets.len()).map(|_| self.b.create_block()).collect();
            let calls: Vec<_> = blocks.iter().map(|&block| self.b.func.dfg.block_call(block, &[])).collect();
            let (last, first) = calls.split_last().expect("there is a default");
            let table = self.b.create_jump_table(JumpTableData::new(*last, first));
            self.b.ins().br_table(index, table);
            for (block, target) in blocks.into_iter().zip(targets.iter().chain([default])) {
                self.b.switch_to_block(block);
                self.take(target, self.mask);
            }
            return;
        }
        // One comparison of all lanes per target; what is left goes to the default.
        let mut rest = self.mask;
        for (number, target) in targets.iter().enumerate() {
            let matches = self.lanes_equal(index, number as u64, rest);
            rest = self.b.ins().band_not(rest, matches);
            self.pend_if_any(target, matches);
        }
        self.pend_if_any(default, rest);
        self.b.ins().jump(self.dispatch, &[]);
    }

    fn pend_if_any(&mut self, target: &Target, lanes: Clif) {
        let (some, next) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(lanes, some, &[], next, &[]);
        self.b.switch_to_block(some);
        self.assign(target, lanes);
        self.make_pending(self.plan.entry[target.block.index()], lanes);
        self.b.ins().jump(next, &[]);
        self.b.switch_to_block(next);
    }

    /// `lanes` leave the node for this target: its parameters, then the jump.
    fn take(&mut self, target: &Target, lanes: Clif) {
        if self.ends_threads(target) {
            return self.exit(lanes);
        }
        self.assign(target, lanes);
        let node = self.plan.entry[target.block.index()];
        if node <= self.current {
            self.safepoint(node, lanes);
        }
        let direct = self.nodes[node as usize];
        if !self.plan.can_split {
            self.b.ins().jump(direct, &[BlockArg::Value(lanes)]);
            return;
        }
        // Other lanes that are ready may be due first.
        let mut others = self.field(types::I64, offset_of!(WarpContext, ready));
        if self.plan.rotates {
            let rotation = self.field(types::I32, offset_of!(WarpContext, rotation));
            let zero = self.b.ins().iconst(types::I64, 0);
            others = self.b.ins().select(rotation, zero, others);
        }
        let wait = self.b.create_block();
        self.b.ins().brif(others, wait, &[], direct, &[BlockArg::Value(lanes)]);
        self.b.switch_to_block(wait);
        self.make_pending(node, lanes);
        self.b.ins().jump(self.dispatch, &[]);
    }

    /// On a back edge: leave when asked to, or when it is another warp's turn.
    fn safepoint(&mut self, node: u32, lanes: Clif) {
        let control = self.b.ins().load(
            types::I64,
            constant_flags(),
            self.ctx,
            offset_of!(WarpContext, control) as i32,
        );
        let word = self.b.ins().atomic_load(types::I32, MemFlagsData::trusted(), control);
        let fuel = self.field(types::I32, offset_of!(WarpContext, fuel));
        let fuel = self.b.ins().iadd_imm_s(fuel, -1);
        self.b.ins().store(frame_flags(), fuel, self.ctx, offset_of!(WarpContext, fuel) as i32);
        let is_empty = self.b.ins().icmp_imm_s(IntCC::SignedLessThan, fuel, 0);
        let is_asked = self.b.ins().icmp_imm_u(IntCC::NotEqual, word, 0);
        let leaves = self.b.ins().bor(is_empty, is_asked);
        let (leave, go_on) = (self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(leave);
        self.b.ins().brif(leaves, leave, &[], go_on, &[]);
        self.b.switch_to_block(leave);
        self.make_pending(node, lanes);
        self.return_status(status::YIELDED);
        self.b.switch_to_block(go_on);
    }

    /// `lanes` end, and the rest of the warp goes on.
    fn exit(&mut self, lanes: Clif) {
        self.retire(lanes);
        if self.plan.can_split {
            self.b.ins().jump(self.dispatch, &[]);
        } else {
            self.stop();
        }
    }

    fn retire(&mut self, lanes: Clif) {
        let live = self.field(types::I32, offset_of!(WarpContext, live));
        let live = self.b.ins().band_not(live, lanes);
        self.b.ins().store(frame_flags(), live, self.ctx, offset_of!(WarpContext, live) as i32);
        if self.plan.has_sync {
            self.call(runtime::exited as *const (), &[self.ctx, lanes], None);
        }
    }

    fn return_status(&mut self, status: u32) {
        let status = self.b.ins().iconst(types::I32, i64::from(status));
        self.b.ins().return_(&[status]);
    }

    fn fault_block(&mut self) {
        self.b.switch_to_block(self.fault);
        let [kind, address] = *self.b.block_params(self.fault) else { unreachable!("two parameters") };
        self.call(runtime::fault as *const (), &[self.ctx, kind, address], None);
        self.return_status(status::FAULTED);
    }

    /// Ends the grid if `is_bad`.
    pub(super) fn fault_if(&mut self, is_bad: Clif, kind: u32, address: Clif) {
        let go_on = self.b.create_block();
        let kind = self.b.ins().iconst(types::I32, i64::from(kind));
        self.b.ins().brif(is_bad, self.fault, &[BlockArg::Value(kind), BlockArg::Value(address)], go_on, &[]);
        self.b.switch_to_block(go_on);
    }

    /// Whether a mask has all lanes of a warp.
    pub(super) fn is_full(&mut self, lanes: Clif) -> Clif {
        let all = u32::MAX >> (u32::BITS - self.plan.lanes as u32);
        let all = self.constant(Type::I32, u64::from(all));
        self.b.ins().icmp(IntCC::Equal, lanes, all)
    }

    /// Jumps to the dispatcher with nothing taken along.
    pub(super) fn redispatch(&mut self) {
        self.b.ins().jump(self.dispatch, &[]);
    }

    /// A field of the header that may change.
    pub(super) fn field(&mut self, ty: ClifType, offset: usize) -> Clif {
        self.b.ins().load(ty, frame_flags(), self.ctx, offset as i32)
    }

    fn set_field(&mut self, value: Clif, offset: usize) {
        self.b.ins().store(frame_flags(), value, self.ctx, offset as i32);
    }

    /// A field of the header that stays.
    pub(super) fn fixed_field(&mut self, ty: ClifType, offset: usize) -> Clif {
        self.b.ins().load(ty, constant_flags(), self.ctx, offset as i32)
    }

    /// Calls a runtime function.
    pub(super) fn call(&mut self, function: *const (), args: &[Clif], result: Option<ClifType>) -> Clif {
        let params: Vec<ClifType> = args.iter().map(|&arg| self.b.func.dfg.value_type(arg)).collect();
        let key = (params, result);
        let signature = match self.signatures.get(&key) {
            Some(&signature) => signature,
            None => {
                let mut signature = Signature::new(self.machine.isa.default_call_conv());
                signature.params.extend(key.0.iter().map(|&ty| AbiParam::new(ty)));
                signature.returns.extend(result.map(AbiParam::new));
                let reference = self.b.import_signature(signature);
                self.signatures.insert(key, reference);
                reference
            }
        };
        let address = self.b.ins().iconst(types::I64, function as i64);
        let call = self.b.ins().call_indirect(signature, address, args);
        match result {
            Some(_) => self.b.inst_results(call)[0],
            None => address,
        }
    }

    /// A uniform value, or an affine one at lane 0.
    pub(super) fn uniform(&mut self, value: Value) -> Clif {
        if let Some(Inst::Const { ty, bits }) = self.kernel.definition(value).map(|data| &data.inst) {
            return self.constant(*ty, *bits);
        }
        if let Some(&known) = self.uniform.get(&value) {
            return known;
        }
        let ty = super::scalar::clif_type(self.kernel.ty(value));
        let slot = self.plan.slot(value).expect("a value from another node has a slot");
        let loaded = self.b.ins().load(ty, frame_flags(), self.ctx, slot as i32);
        self.uniform.insert(value, loaded);
        loaded
    }

    pub(super) fn define_uniform(&mut self, value: Value, result: Clif) {
        self.uniform.insert(value, result);
        if let Some(slot) = self.plan.slot(value) {
            self.b.ins().store(frame_flags(), result, self.ctx, slot as i32);
        }
    }

    /// A predicate that varies, a bit per lane. Bits of lanes that are not active mean nothing.
    pub(super) fn predicate(&mut self, value: Value) -> Clif {
        if let Some(&known) = self.predicates.get(&value) {
            return known;
        }
        let slot = self.plan.slot(value).expect("a predicate from another node has a slot");
        let loaded = self.b.ins().load(types::I32, frame_flags(), self.ctx, slot as i32);
        self.predicates.insert(value, loaded);
        loaded
    }

    /// Stores the bits of `lanes` of a predicate and leaves those of others.
    pub(super) fn store_predicate(&mut self, value: Value, bits: Clif, lanes: Clif) {
        let Some(slot) = self.plan.slot(value) else { return };
        let before = self.b.ins().load(types::I32, frame_flags(), self.ctx, slot as i32);
        let merged = self.b.ins().bitselect(lanes, bits, before);
        self.b.ins().store(frame_flags(), merged, self.ctx, slot as i32);
    }

    /// Loads what is the same for all lanes, so that it dominates what follows.
    pub(super) fn prepare(&mut self, value: Value) {
        if self.kernel.constant(value).is_some() {
            return;
        }
        if !self.plan.is_varying(value) {
            self.uniform(value);
        } else if self.kernel.ty(value) == Type::I1 && !self.predicates.contains_key(&value) {
            // One defined in the lanes step to come has neither.
            if self.plan.slot(value).is_some() {
                self.predicate(value);
            }
        }
    }
}
