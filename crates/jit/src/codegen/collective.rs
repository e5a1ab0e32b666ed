//! Instructions that look across the lanes of a warp, and barriers.
//!
//! A node that starts with a collective instruction first makes sure that all members have come:
//! lanes that are early stay pending there without being ready, and the next to come makes the node
//! ready again.

use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{BlockArg, InstBuilder, Value as Clif, types};
use sluice_ir::{
    BarrierKind, Inst, InstId, MatchKind, MatrixForm, ReduxOp, ShuffleMode, Type, Value, VoteKind,
};

use super::emitter::{Emitter, frame_flags};
use super::lanes::Lane;
use super::scalar::clif_type;
use crate::context::{LANES, WarpContext};
use crate::runtime::{self, lanes};

impl Emitter<'_> {
    pub(super) fn collective(&mut self, id: InstId, node: u32, is_first: bool) {
        let kernel = self.kernel;
        let data = kernel.inst(id);
        let (Inst::Shuffle { mask, .. }
        | Inst::Vote { mask, .. }
        | Inst::Match { mask, .. }
        | Inst::Redux { mask, .. }
        | Inst::MatrixMultiply { mask, .. }
        | Inst::WarpSync { mask }) = data.inst
        else {
            unreachable!("not a warp's collective instruction")
        };
        data.inst.for_each_arg(|value| self.prepare(value));
        // Others of the node have the same members, who are here already.
        if is_first {
            self.watch_arrival(data.line);
            self.gather(mask, node);
        }
        self.watch_collective(id, mask);
        match data.inst {
            Inst::MatrixMultiply { form, ref args, .. } => self.matrix_multiply(form, args, id),
            Inst::WarpSync { .. } => {}
            Inst::Vote { kind, predicate, .. } => self.vote(kind, predicate, mask, data.result(0)),
            Inst::Shuffle { mode, value, lane, clamp, .. } => {
                self.shuffle(mode, [value, lane, clamp], data.result(0), data.result(1));
            }
            Inst::Match { kind, ty, value, .. } => self.matching(kind, ty, value, mask, id),
            Inst::Redux { op, ty, value, .. } => self.redux(op, ty, value, mask, data.result(0)),
            _ => unreachable!("matched above"),
        }
    }

    /// Tells what watches an instrumented kernel where lanes may have to wait.
    fn watch_arrival(&mut self, line: u32) {
        if self.kernel.is_instrumented {
            let line = self.b.ins().iconst(types::I32, i64::from(line));
            self.call(runtime::watch_arrival as *const (), &[self.ctx, line], None);
        }
    }

    /// Tells it which lanes execute a collective instruction with which masks.
    fn watch_collective(&mut self, id: InstId, mask: Value) {
        if !self.kernel.is_instrumented {
            return;
        }
        let data = self.kernel.inst(id);
        let is_sync = matches!(data.inst, Inst::WarpSync { .. });
        let masks = self.words(mask, 3);
        let [line, is_sync] =
            [data.line, is_sync.into()].map(|number| self.b.ins().iconst(types::I32, i64::from(number)));
        self.call(runtime::watch_collective as *const (), &[self.ctx, self.mask, masks, line, is_sync], None);
    }

    /// Waits until all members that have not exited are at this node.
    fn gather(&mut self, members: Value, node: u32) {
        let live = self.field(types::I32, offset_of!(WarpContext, live));
        let all = self.b.create_block();
        let complete = self.b.create_block();
        let is_everybody = self.b.ins().icmp(IntCC::Equal, self.mask, live);
        self.b.ins().brif(is_everybody, all, &[], complete, &[]);
        // Not all live lanes are here: one that is not may be a member.
        self.b.switch_to_block(complete);
        let members = if self.plan.is_varying(members) {
            let words = self.words(members, 3);
            self.call(runtime::union as *const (), &[words, self.mask], Some(types::I32))
        } else {
            self.uniform_after_split(members)
        };
        let node = self.b.ins().iconst(types::I32, i64::from(node));
        let goes_on =
            self.call(runtime::gather as *const (), &[self.ctx, node, self.mask, members], Some(types::I32));
        let early = self.b.create_block();
        self.b.ins().brif(goes_on, all, &[], early, &[]);
        self.b.switch_to_block(early);
        self.redispatch();
        self.b.switch_to_block(all);
    }

    /// `prepare` has made it available before the split.
    fn uniform_after_split(&mut self, value: Value) -> Clif {
        self.uniform(value)
    }

    fn vote(&mut self, kind: VoteKind, predicate: Value, members: Value, result: Value) {
        let predicate = self.predicate_of(predicate);
        if self.plan.is_varying(members) {
            // Groups with different member masks vote at the same time.
            let words = self.words(members, 0);
            let kind_code = self.b.ins().iconst(types::I32, kind as i64);
            let out = self.result_words(result, 1);
            self.call(runtime::vote as *const (), &[words, predicate, self.mask, kind_code, out], None);
            return self.define_from_words(result, 1);
        }
        let members = self.uniform(members);
        let members = self.b.ins().band(members, self.mask);
        let votes = self.b.ins().band(predicate, members);
        let value = match kind {
            VoteKind::Ballot => votes,
            VoteKind::All => self.b.ins().icmp(IntCC::Equal, votes, members),
            VoteKind::Any => self.b.ins().icmp_imm_u(IntCC::NotEqual, votes, 0),
            VoteKind::Uniform => {
                let all = self.b.ins().icmp(IntCC::Equal, votes, members);
                let none = self.b.ins().icmp_imm_u(IntCC::Equal, votes, 0);
                self.b.ins().bor(all, none)
            }
        };
        self.define_everywhere(result, value);
    }

    /// Gives a result that is the same in all lanes, whatever shape was proved for it.
    fn define_everywhere(&mut self, result: Value, value: Clif) {
        if !self.plan.is_varying(result) {
            return self.define_uniform(result, value);
        }
        if self.kernel.ty(result) == Type::I1 {
            let wide = self.b.ins().uextend(types::I32, value);
            let bits = self.b.ins().ineg(wide);
            self.predicates.insert(result, bits);
            return self.store_predicate(result, bits, self.mask);
        }
        self.for_active_lanes(|emitter, lane| emitter.define(result, value, lane));
    }

    /// Takes a result of all active lanes from an array of the scratch: words, or for predicates
    /// the bits in the array's first word.
    fn define_from_words(&mut self, result: Value, array: u32) {
        let base = (self.plan.scratch + array * 128) as i32;
        let ty = self.kernel.ty(result);
        if ty == Type::I1 {
            let bits = self.b.ins().load(types::I32, frame_flags(), self.ctx, base);
            if !self.plan.is_varying(result) {
                let first = self.b.ins().band(bits, self.mask);
                let one = self.b.ins().icmp_imm_u(IntCC::NotEqual, first, 0);
                return self.define_uniform(result, one);
            }
            self.predicates.insert(result, bits);
            return self.store_predicate(result, bits, self.mask);
        }
        if !self.plan.is_varying(result) {
            let first = self.b.ins().ctz(self.mask);
            let first = self.b.ins().uextend(types::I64, first);
            let place = self.b.ins().ishl_imm_u(first, 2);
            let address = self.b.ins().iadd(self.ctx, place);
            let word = self.b.ins().load(clif_type(ty), frame_flags(), address, base);
            self.define_uniform(result, word);
        }
        // One that varies has been written to its slot.
    }

    /// Where a collective instruction writes the words of a result: its slot, or an array of the
    /// scratch.
    pub(super) fn result_words(&mut self, result: Value, array: u32) -> Clif {
        let place = self.result_place(result, array);
        self.b.ins().iadd_imm_u(self.ctx, i64::from(place))
    }

    /// The place of a result's words from the start of the warp's memory.
    pub(super) fn result_place(&self, result: Value, array: u32) -> u32 {
        let is_words = self.plan.is_varying(result) && self.kernel.ty(result) != Type::I1;
        let slot = self.plan.slot(result).filter(|_| is_words);
        slot.unwrap_or(self.plan.scratch + array * 128)
    }

    fn shuffle(&mut self, mode: ShuffleMode, [value, lane, clamp]: [Value; 3], result: Value, inside: Value) {
        let constants = (self.kernel.constant(lane), self.kernel.constant(clamp));
        let (Some(by), Some(limit)) = constants else {
            let bits = self.shuffle_call(mode, [value, lane, clamp], result);
            self.define_from_words(result, 1);
            return self.define_bits(inside, bits);
        };
        let (all, some, done) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        self.b.append_block_param(done, types::I32);
        let is_full = self.is_full(self.mask);
        self.b.ins().brif(is_full, all, &[], some, &[]);

        self.b.switch_to_block(all);
        let sources: [(u32, bool); LANES] = std::array::from_fn(|own| {
            lanes::shuffle_source(mode as u32, own as u32, by as u32, limit as u32)
        });
        let from = self.words(value, 0);
        let to = self.result_words(result, 1);
        self.permute_words(from, to, &sources.map(|(source, _)| source));
        let bits = (0..LANES).fold(0u32, |bits, lane| bits | u32::from(sources[lane].1) << lane);
        let bits = self.b.ins().iconst(types::I32, i64::from(bits));
        self.b.ins().jump(done, &[BlockArg::Value(bits)]);

        self.b.switch_to_block(some);
        let bits = self.shuffle_call(mode, [value, lane, clamp], result);
        self.b.ins().jump(done, &[BlockArg::Value(bits)]);

        self.b.switch_to_block(done);
        let bits = self.b.block_params(done)[0];
        self.define_from_words(result, 1);
        self.define_bits(inside, bits);
    }

    /// Any shuffle, by the runtime.
    fn shuffle_call(&mut self, mode: ShuffleMode, [value, lane, clamp]: [Value; 3], result: Value) -> Clif {
        let values = self.words(value, 0);
        let lanes = self.words(lane, 2);
        let clamps = self.words(clamp, 3);
        let out = self.result_words(result, 1);
        let mode = self.b.ins().iconst(types::I32, mode as i64);
        let args = [values, lanes, clamps, self.mask, mode, out];
        self.call(runtime::shuffle as *const (), &args, Some(types::I32))
    }

    /// A predicate given by the bits of the active lanes.
    fn define_bits(&mut self, result: Value, bits: Clif) {
        if self.plan.is_varying(result) {
            self.predicates.insert(result, bits);
            return self.store_predicate(result, bits, self.mask);
        }
        let any = self.b.ins().band(bits, self.mask);
        let one = self.b.ins().icmp_imm_u(IntCC::NotEqual, any, 0);
        self.define_uniform(result, one);
    }

    fn matching(&mut self, kind: MatchKind, ty: Type, value: Value, members: Value, id: InstId) {
        let kernel = self.kernel;
        let data = kernel.inst(id);
        let members = self.words(members, 0);
        let wide = self.b.ins().iadd_imm_u(self.ctx, i64::from(self.plan.scratch + 256));
        let base = (self.plan.scratch + 256) as i32;
        self.for_active_lanes(|emitter, lane| {
            let value = emitter.value(value, Some(lane));
            let value = if ty == Type::I64 { value } else { emitter.b.ins().uextend(types::I64, value) };
            let place = emitter.b.ins().ishl_imm_u(lane.index, 3);
            let address = emitter.b.ins().iadd(emitter.ctx, place);
            emitter.b.ins().store(frame_flags(), value, address, base);
        });
        let out = self.result_words(data.result(0), 1);
        let is_all = self.b.ins().iconst(types::I32, i64::from(kind == MatchKind::All));
        let bits = self.call(
            runtime::matching as *const (),
            &[members, wide, self.mask, is_all, out],
            Some(types::I32),
        );
        self.define_from_words(data.result(0), 1);
        if kind == MatchKind::All {
            self.define_bits(data.result(1), bits);
        }
    }

    fn redux(&mut self, op: ReduxOp, _ty: Type, value: Value, members: Value, result: Value) {
        let values = self.words(value, 0);
        let members = self.words(members, 2);
        let out = self.result_words(result, 1);
        let op = self.b.ins().iconst(types::I32, op as i64);
        self.call(runtime::redux as *const (), &[values, members, self.mask, op, out], None);
        self.define_from_words(result, 1);
    }

    /// A product of matrices, by the runtime. The scratch has an array for each register without a
    /// slot, and behind these the list of all places.
    fn matrix_multiply(&mut self, form: MatrixForm, args: &[Value], id: InstId) {
        let kernel = self.kernel;
        let mut places = Vec::with_capacity(args.len() + form.sums());
        for (array, arg) in args.iter().enumerate() {
            places.push(self.words_place(*arg, array as u32));
        }
        for result in kernel.inst(id).results() {
            places.push(self.result_place(result, places.len() as u32));
        }
        let list = self.plan.scratch + self.plan.scratch_arrays * 128;
        for (at, pair) in places.chunks(2).enumerate() {
            let high = pair.get(1).copied().unwrap_or(0);
            let word = self.b.ins().iconst(types::I64, (u64::from(high) << 32 | u64::from(pair[0])) as i64);
            self.b.ins().store(frame_flags(), word, self.ctx, (list + 8 * at as u32) as i32);
        }
        let list = self.b.ins().iadd_imm_u(self.ctx, i64::from(list));
        let form = self.b.ins().iconst(types::I32, i64::from(form.to_bits()));
        self.call(runtime::matrix_multiply as *const (), &[self.ctx, list, form, self.mask], None);
    }

    /// Lanes come to a barrier and are parked; they continue at `node`.
    pub(super) fn park(&mut self, id: InstId, node: u32) {
        let node = self.b.ins().iconst(types::I32, i64::from(node));
        self.arrive_with(id, node);
    }

    /// Lanes come to a barrier and continue.
    pub(super) fn arrive(&mut self, id: InstId) {
        let nowhere = self.b.ins().iconst(types::I32, -1);
        self.arrive_with(id, nowhere);
    }

    fn arrive_with(&mut self, id: InstId, node: Clif) {
        self.watch_arrival(self.kernel.inst(id).line);
        if let Inst::ClusterBarrier { .. } = self.kernel.inst(id).inst {
            self.call(runtime::cluster_barrier as *const (), &[self.ctx, node, self.mask], None);
            return;
        }
        let Inst::Barrier { id: barrier, count, predicate, .. } = self.kernel.inst(id).inst else {
            unreachable!("not a barrier")
        };
        self.kernel.inst(id).inst.for_each_arg(|value| self.prepare(value));
        let votes = match predicate {
            Some(predicate) => self.predicate_of(predicate),
            None => self.b.ins().iconst(types::I32, 0),
        };
        let is_varying = |value: Value| self.plan.is_varying(value);
        if is_varying(barrier) || count.is_some_and(is_varying) {
            // Each lane names its own barrier.
            self.for_active_lanes(|emitter, lane| {
                let barrier = emitter.value(barrier, Some(lane));
                let count = match count {
                    Some(count) => emitter.value(count, Some(lane)),
                    None => emitter.b.ins().iconst(types::I32, 0),
                };
                let one = emitter.b.ins().iconst(types::I32, 1);
                let index = emitter.b.ins().ireduce(types::I32, lane.index);
                let bit = emitter.b.ins().ishl(one, index);
                let args = [emitter.ctx, barrier, count, node, bit, votes];
                emitter.call(runtime::barrier as *const (), &args, None);
            });
            return;
        }
        let barrier = self.uniform(barrier);
        let count = match count {
            Some(count) => self.uniform(count),
            None => self.b.ins().iconst(types::I32, 0),
        };
        self.call(runtime::barrier as *const (), &[self.ctx, barrier, count, node, self.mask, votes], None);
    }

    /// What a reduction barrier gives, for lanes that come back from it.
    pub(super) fn barrier_result(&mut self, id: InstId) {
        let kernel = self.kernel;
        let data = kernel.inst(id);
        if data.result_count == 0 {
            return;
        }
        let Inst::Barrier { kind, id: barrier, .. } = data.inst else { unreachable!("not a barrier") };
        if self.plan.is_varying(barrier) {
            return self.barrier_results(kind, barrier, data.result(0));
        }
        let barrier = self.uniform(barrier);
        let barrier = self.b.ins().band_imm_u(barrier, 15);
        let barrier = self.b.ins().uextend(types::I64, barrier);
        let place = self.b.ins().ishl_imm_u(barrier, 2);
        let address = self.b.ins().iadd(self.ctx, place);
        let (votes, arrived) =
            (offset_of!(WarpContext, barrier_votes) as i32, offset_of!(WarpContext, barrier_arrived) as i32);
        let votes = self.b.ins().load(types::I32, frame_flags(), address, votes);
        let value = match kind {
            BarrierKind::ReducePopc => votes,
            BarrierKind::ReduceAnd => {
                let arrived = self.b.ins().load(types::I32, frame_flags(), address, arrived);
                self.b.ins().icmp(IntCC::Equal, votes, arrived)
            }
            _ => self.b.ins().icmp_imm_u(IntCC::NotEqual, votes, 0),
        };
        self.define_everywhere(data.result(0), value);
    }

    /// Defines what reduction barriers give, for lanes that may come from different ones.
    fn barrier_results(&mut self, kind: BarrierKind, barrier: Value, result: Value) {
        let barriers = self.words(barrier, 0);
        let out = self.result_words(result, 1);
        let (and, or) = (kind == BarrierKind::ReduceAnd, kind == BarrierKind::ReduceOr);
        let args =
            [u32::from(and), u32::from(or)].map(|flag| self.b.ins().iconst(types::I32, i64::from(flag)));
        let args = [self.ctx, barriers, self.mask, args[0], args[1], out];
        let bits = self.call(runtime::barrier_results as *const (), &args, Some(types::I32));
        match and || or {
            true => self.define_bits(result, bits),
            false => self.define_from_words(result, 1),
        }
    }

    pub(super) fn for_active_lanes(&mut self, mut body: impl FnMut(&mut Self, &mut Lane)) {
        self.each_lane(self.mask, 0, |emitter, lane| {
            body(emitter, lane);
            Vec::new()
        });
    }
}
