//! The way out of a node: jumps, splits of the lanes, safepoints and exits.

use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    Block as ClifBlock, BlockArg, InstBuilder, JumpTableData, MemFlagsData, Value as Clif, types,
};
use sluice_ir::analysis::Shape;
use sluice_ir::{BlockId, Target, Terminator, Value};

use super::{Emitter, constant_flags, frame_flags};
use crate::context::{WarpContext, status};
use crate::runtime::{self, fault_code};

impl Emitter<'_> {
    pub(super) fn terminator(&mut self, block: BlockId) {
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
                let address = self.b.ins().iconst(types::I64, 0);
                self.fault(fault_code::TRAP, address);
            }
        }
    }

    /// All lanes of the node go the same way.
    pub(super) fn branch(&mut self, cond: Clif, then: &Target, otherwise: &Target) {
        let (yes, no) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(cond, yes, &[], no, &[]);
        self.b.switch_to_block(yes);
        self.take(then, self.mask);
        self.b.switch_to_block(no);
        self.take(otherwise, self.mask);
    }

    /// Lanes may go different ways.
    pub(super) fn split(&mut self, cond: Value, then: &Target, otherwise: &Target) {
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
        self.redispatch();
    }

    /// Whether all that the target does is to end its threads.
    pub(super) fn ends_threads(&self, target: &Target) -> bool {
        let block = self.kernel.block(target.block);
        block.insts.is_empty() && block.terminator == Terminator::Exit
    }

    pub(super) fn switch(&mut self, index: Value, targets: &[Target], default: &Target) {
        if self.plan.shape(index) == Shape::Uniform {
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
        self.redispatch();
    }

    pub(super) fn pend_if_any(&mut self, target: &Target, lanes: Clif) {
        let (some, next) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(lanes, some, &[], next, &[]);
        self.b.switch_to_block(some);
        self.assign(target, lanes);
        self.make_pending(self.plan.entry[target.block.index()], lanes);
        self.b.ins().jump(next, &[]);
        self.b.switch_to_block(next);
    }

    /// `lanes` leave the node for this target: its parameters, then the jump.
    pub(super) fn take(&mut self, target: &Target, lanes: Clif) {
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
        self.redispatch();
    }

    /// On a back edge: leave when asked to, or when it is another warp's turn.
    pub(super) fn safepoint(&mut self, node: u32, lanes: Clif) {
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

    /// `lanes` end, and the rest of the warp continues.
    pub(super) fn exit(&mut self, lanes: Clif) {
        self.retire(lanes);
        if self.plan.can_split {
            self.redispatch();
        } else {
            self.stop();
        }
    }

    pub(super) fn retire(&mut self, lanes: Clif) {
        let live = self.field(types::I32, offset_of!(WarpContext, live));
        let live = self.b.ins().band_not(live, lanes);
        self.b.ins().store(frame_flags(), live, self.ctx, offset_of!(WarpContext, live) as i32);
        if self.plan.has_sync {
            self.call(runtime::exited as *const (), &[self.ctx, lanes], None);
        }
    }
}
