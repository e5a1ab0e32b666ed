//! Steps that are done lane by lane, and those done once.

use std::collections::HashMap;
use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{AtomicRmwOp, BlockArg, InstBuilder, Value as Clif, types};
use sluice_ir::analysis::Shape;
use sluice_ir::{
    Inst, InstId, IntCond, RuntimeFunction, Scope, SpecialRegister, Target, Type, Value, Window,
};

use super::emitter::{Emitter, constant_flags, frame_flags};
use super::scalar::{clif_type, int_condition};
use crate::context::WarpContext;
use crate::runtime;

/// One pass of a loop over lanes.
pub(super) struct Lane {
    /// Number of the lane, i64.
    pub index: Clif,
    /// Values that this step has defined for it.
    pub values: HashMap<Value, Clif>,
}

impl Emitter<'_> {
    /// An instruction whose one execution stands for all lanes.
    pub(super) fn once(&mut self, id: InstId) {
        let kernel = self.kernel;
        let data = kernel.inst(id);
        match &data.inst {
            Inst::Const { .. } => {}
            Inst::Special { register } => {
                let value = self.special(*register, None);
                self.define_uniform(data.result(0), value);
            }
            Inst::GlobalAddress { global } => {
                let table = self.fixed_field(types::I64, offset_of!(WarpContext, globals));
                let address = self.b.ins().load(types::I64, constant_flags(), table, (global.0 * 8) as i32);
                self.define_uniform(data.result(0), address);
            }
            Inst::WindowBase { window } => {
                let address = self.window_base(*window);
                self.define_uniform(data.result(0), address);
            }
            Inst::Load { .. } | Inst::Store { .. } => {
                for (value, result) in data.results().zip(self.access(&data.inst, data.result_count, None)) {
                    self.define_uniform(value, result);
                }
            }
            Inst::Fence { scope } => {
                self.b.ins().fence();
                if kernel.is_instrumented {
                    let is_wide = self.b.ins().iconst(types::I32, i64::from(*scope != Scope::Block));
                    self.call(runtime::watch_fence as *const (), &[self.ctx, self.mask, is_wide], None);
                }
                if *scope == Scope::System {
                    self.call(runtime::system_release as *const (), &[self.ctx], None);
                    self.call(runtime::system_acquire as *const (), &[], None);
                }
            }
            Inst::ActiveMask => self.define_uniform(data.result(0), self.mask),
            Inst::Nanosleep { .. } => {
                // The next back edge lets other warps run.
                let none = self.b.ins().iconst(types::I32, 0);
                self.b.ins().store(frame_flags(), none, self.ctx, offset_of!(WarpContext, fuel) as i32);
            }
            Inst::Barrier { .. } | Inst::ClusterBarrier { .. } => self.arrive(id),
            Inst::CallRuntime { function: RuntimeFunction::CountThreads, args } => {
                self.count_threads(args[0]);
            }
            Inst::Compare { .. } if self.plan.is_varying(data.result(0)) => {
                let bits = self.lane_compare(id);
                self.predicates.insert(data.result(0), bits);
                self.store_predicate(data.result(0), bits, self.mask);
            }
            inst => {
                let mut args = Vec::with_capacity(3);
                inst.for_each_arg(|value| args.push(self.uniform(value)));
                let result = self.scalar(inst, &args);
                self.define_uniform(data.result(0), result);
            }
        }
    }

    /// The lanes in which a comparison of consecutive numbers with a uniform one holds.
    fn lane_compare(&mut self, id: InstId) -> Clif {
        let kernel = self.kernel;
        let (cond, first, other) = self.plan.lane_compare(kernel, id).expect("a comparison of this kind");
        let ty = kernel.ty(first);
        let (first_value, other_value) = (self.uniform(first), self.uniform(other));
        let distance = self.b.ins().isub(other_value, first_value);
        let one = self.b.ins().iconst(types::I64, 1);
        if matches!(cond, IntCond::Eq | IntCond::Ne) {
            let is_near = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, distance, self.plan.lanes as i64);
            let is_near = self.b.ins().uextend(types::I64, is_near);
            let bit = self.b.ins().ishl(is_near, distance);
            let bit = self.b.ins().ireduce(types::I32, bit);
            return if cond == IntCond::Eq { bit } else { self.b.ins().bnot(bit) };
        }
        // Numbers that wrap within the warp are compared one by one.
        let is_signed = matches!(cond, IntCond::LtS | IntCond::LeS | IntCond::GtS | IntCond::GeS);
        let top = if is_signed { ty.mask() >> 1 } else { ty.mask() };
        let top = self.constant(ty, top - (self.plan.lanes as u64 - 1));
        let above = if is_signed { IntCC::SignedGreaterThan } else { IntCC::UnsignedGreaterThan };
        let wraps = self.b.ins().icmp(above, first_value, top);
        let (slow, fast, done) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(slow);
        self.b.append_block_param(done, types::I32);
        self.b.ins().brif(wraps, slow, &[], fast, &[]);

        self.b.switch_to_block(slow);
        let bits = self.each_lane(self.mask, 1, |emitter, lane| {
            let (a, b) = (emitter.value(first, Some(lane)), emitter.value(other, Some(lane)));
            vec![emitter.b.ins().icmp(int_condition(cond), a, b)]
        });
        self.b.ins().jump(done, &[BlockArg::Value(bits[0])]);

        self.b.switch_to_block(fast);
        // `<` holds in the lanes below the distance, `<=` also in the next; the others are their
        // negations.
        let is_strict = matches!(cond, IntCond::LtS | IntCond::LtU | IntCond::GeS | IntCond::GeU);
        let below = match (is_strict, is_signed) {
            (true, true) => IntCC::SignedLessThan,
            (true, false) => IntCC::UnsignedLessThan,
            (false, true) => IntCC::SignedLessThanOrEqual,
            (false, false) => IntCC::UnsignedLessThanOrEqual,
        };
        let any = self.b.ins().icmp(below, first_value, other_value);
        let limit = self.constant(ty, self.plan.lanes as u64 - u64::from(!is_strict));
        let is_far = self.b.ins().icmp(IntCC::UnsignedGreaterThan, distance, limit);
        let count = self.b.ins().select(is_far, limit, distance);
        let count = if is_strict { count } else { self.b.ins().iadd_imm_u(count, 1) };
        let power = self.b.ins().ishl(one, count);
        let bits = self.b.ins().iadd_imm_s(power, -1);
        let bits = self.b.ins().ireduce(types::I32, bits);
        let none = self.b.ins().iconst(types::I32, 0);
        let bits = self.b.ins().select(any, bits, none);
        let is_negated = matches!(cond, IntCond::GtS | IntCond::GeS | IntCond::GtU | IntCond::GeU);
        let bits = if is_negated { self.b.ins().bnot(bits) } else { bits };
        self.b.ins().jump(done, &[BlockArg::Value(bits)]);
        self.b.switch_to_block(done);
        self.b.block_params(done)[0]
    }

    /// A run of instructions, all of them for one active lane after the other.
    pub(super) fn lanes(&mut self, insts: &[InstId]) {
        let kernel = self.kernel;
        for &id in insts {
            kernel.inst(id).inst.for_each_arg(|value| self.prepare(value));
        }
        let predicates: Vec<Value> = insts
            .iter()
            .flat_map(|&id| kernel.inst(id).results())
            .filter(|&value| kernel.ty(value) == Type::I1 && self.plan.escapes(value))
            .collect();
        let mask = self.mask;
        let assumption = self.assume_no_wrap(insts);
        if !self.gains_from_chunks(insts) {
            self.drop_assumptions();
            let bits = self.lane_loop(insts, &predicates);
            return self.define_predicates(&predicates, &bits);
        }
        let (all, some, done) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        for _ in &predicates {
            self.b.append_block_param(done, types::I32);
        }
        let mut fits = self.is_full(mask);
        if let Some(holds) = assumption {
            fits = self.b.ins().band(fits, holds);
        }
        self.b.ins().brif(fits, all, &[], some, &[]);

        self.b.switch_to_block(all);
        let bits: Vec<BlockArg> = self.chunks(insts, &predicates).into_iter().map(BlockArg::Value).collect();
        self.b.ins().jump(done, &bits);

        self.b.switch_to_block(some);
        // Where a chunk is no more than a quad, a quad is little better than its lanes one by one.
        let bits = match self.quads_per_chunk(insts) {
            1 => self.lane_loop(insts, &predicates),
            _ => self.partial_chunks(insts, &predicates, assumption),
        };
        let bits: Vec<BlockArg> = bits.into_iter().map(BlockArg::Value).collect();
        self.drop_assumptions();
        self.b.ins().jump(done, &bits);

        self.b.switch_to_block(done);
        let bits = self.b.block_params(done).to_vec();
        self.define_predicates(&predicates, &bits);
    }

    /// All instructions for one active lane after the other. Returns the bits of `predicates`.
    pub(super) fn lane_loop(&mut self, insts: &[InstId], predicates: &[Value]) -> Vec<Clif> {
        self.each_lane(self.mask, predicates.len(), |emitter, lane| {
            for &id in insts {
                emitter.lane_inst(id, lane);
            }
            predicates.iter().map(|value| lane.values[value]).collect()
        })
    }

    fn define_predicates(&mut self, predicates: &[Value], bits: &[Clif]) {
        for (&value, &bits) in predicates.iter().zip(bits) {
            self.predicates.insert(value, bits);
            self.store_predicate(value, bits, self.mask);
        }
    }

    /// Runs `body` for each lane of `mask`, which is not zero. Its results, `count` predicates,
    /// come back as bits.
    pub(super) fn each_lane(
        &mut self,
        mask: Clif,
        count: usize,
        mut body: impl FnMut(&mut Self, &mut Lane) -> Vec<Clif>,
    ) -> Vec<Clif> {
        let (head, done) = (self.b.create_block(), self.b.create_block());
        let zero = self.b.ins().iconst(types::I32, 0);
        let mut entry = vec![BlockArg::Value(mask)];
        entry.extend((0..count).map(|_| BlockArg::Value(zero)));
        self.b.ins().jump(head, &entry);
        for _ in 0..=count {
            self.b.append_block_param(head, types::I32);
        }
        for _ in 0..count {
            self.b.append_block_param(done, types::I32);
        }
        self.b.switch_to_block(head);
        let params = self.b.block_params(head).to_vec();
        let lane_index = self.b.ins().ctz(params[0]);
        let index = self.b.ins().uextend(types::I64, lane_index);
        let mut lane = Lane { index, values: HashMap::new() };
        let results = body(self, &mut lane);
        let bits: Vec<BlockArg> = results
            .into_iter()
            .zip(&params[1..])
            .map(|(result, &before)| {
                let bit = self.b.ins().uextend(types::I32, result);
                let bit = self.b.ins().ishl(bit, lane_index);
                BlockArg::Value(self.b.ins().bor(before, bit))
            })
            .collect();
        let less = self.b.ins().iadd_imm_s(params[0], -1);
        let rest = self.b.ins().band(params[0], less);
        let mut again = vec![BlockArg::Value(rest)];
        again.extend(bits.iter().copied());
        self.b.ins().brif(rest, head, &again, done, &bits);
        self.b.switch_to_block(done);
        self.b.block_params(done).to_vec()
    }

    pub(super) fn lane_inst(&mut self, id: InstId, lane: &mut Lane) {
        let results = self.lane_results(id, lane);
        for (value, result) in self.kernel.inst(id).results().zip(results) {
            self.define(value, result, lane);
        }
    }

    /// What an instruction gives in one lane.
    pub(super) fn lane_results(&mut self, id: InstId, lane: &Lane) -> Vec<Clif> {
        let kernel = self.kernel;
        let data = kernel.inst(id);
        match &data.inst {
            Inst::Const { ty, bits } => vec![self.constant(*ty, *bits)],
            Inst::Special { register } => vec![self.special(*register, Some(lane))],
            Inst::ActiveMask => vec![self.mask],
            Inst::Load { .. } | Inst::Store { .. } | Inst::Atomic { .. } => {
                self.access(&data.inst, data.result_count, Some(lane))
            }
            Inst::CallRuntime { function, args } => {
                let mut args: Vec<Clif> = args.iter().map(|&arg| self.value(arg, Some(lane))).collect();
                if *function == RuntimeFunction::CheckAccess {
                    args.insert(0, lane.index);
                }
                let result = self.call_runtime(*function, &args);
                if data.result_count == 0 { Vec::new() } else { vec![result] }
            }
            Inst::WindowBase { .. } => {
                let base = self.field(types::I64, offset_of!(WarpContext, local_base));
                let place = self.local_place(lane.index);
                vec![self.b.ins().iadd(base, place)]
            }
            inst => {
                let mut args = Vec::with_capacity(3);
                inst.for_each_arg(|value| args.push(self.value(value, Some(lane))));
                vec![self.scalar(inst, &args)]
            }
        }
    }

    pub(super) fn define(&mut self, value: Value, result: Clif, lane: &mut Lane) {
        lane.values.insert(value, result);
        if self.kernel.ty(value) != Type::I1 && self.plan.escapes(value) {
            self.store_lane(value, result, lane);
        }
    }

    /// One lane's element of a varying value's slot.
    fn store_lane(&mut self, value: Value, result: Clif, lane: &Lane) {
        let slot = self.plan.slot(value).expect("an escaping value has a slot");
        let address = self.lane_address(self.kernel.ty(value), lane);
        self.b.ins().store(frame_flags(), result, address, slot as i32);
    }

    fn lane_address(&mut self, ty: Type, lane: &Lane) -> Clif {
        let place = match ty.bytes() {
            1 => lane.index,
            bytes => self.b.ins().ishl_imm_u(lane.index, i64::from(bytes.trailing_zeros())),
        };
        self.b.ins().iadd(self.ctx, place)
    }

    /// A value in one lane, or (without) a uniform one.
    pub(super) fn value(&mut self, value: Value, lane: Option<&Lane>) -> Clif {
        let Some(lane) = lane else { return self.uniform(value) };
        let ty = self.kernel.ty(value);
        match self.plan.shape(value) {
            Shape::Uniform => self.uniform(value),
            Shape::Affine { stride } => {
                let base = self.uniform(value);
                self.affine_at(base, ty, stride, lane.index)
            }
            Shape::Varying => {
                if let Some(&known) = lane.values.get(&value) {
                    return known;
                }
                if ty == Type::I1 {
                    let bits = self.predicate(value);
                    let index = self.b.ins().ireduce(types::I32, lane.index);
                    let bit = self.b.ins().ushr(bits, index);
                    let bit = self.b.ins().band_imm_u(bit, 1);
                    return self.b.ins().ireduce(types::I8, bit);
                }
                let slot = self.plan.slot(value).expect("a value from another step has a slot");
                let address = self.lane_address(ty, lane);
                self.b.ins().load(clif_type(ty), frame_flags(), address, slot as i32)
            }
        }
    }

    /// `base + lane * stride` in the value's own type.
    pub(super) fn affine_at(&mut self, base: Clif, ty: Type, stride: i64, lane: Clif) -> Clif {
        let clif = clif_type(ty);
        let lane = if ty == Type::I64 { lane } else { self.b.ins().ireduce(clif, lane) };
        let offset = if stride == 1 {
            lane
        } else {
            let stride = self.constant(ty, stride as u64);
            self.b.ins().imul(lane, stride)
        };
        self.b.ins().iadd(base, offset)
    }

    /// Gives the parameters of a target the values of its arguments, in `lanes`, all at the same
    /// time.
    pub(super) fn assign(&mut self, target: &Target, lanes: Clif) {
        let kernel = self.kernel;
        let pairs = || kernel.block(target.block).params.iter().copied().zip(target.args.iter().copied());
        pairs().for_each(|(_, arg)| self.prepare(arg));
        let is_predicate = |value: Value| kernel.ty(value) == Type::I1;

        // Read everything that a parameter may overwrite, then write.
        let mut uniform = Vec::new();
        let mut predicates = Vec::new();
        let mut varying = Vec::new();
        let is_move = |&(param, arg): &(Value, Value)| {
            param != arg && (self.plan.slot(param) != self.plan.slot(arg) || self.plan.slot(arg).is_none())
        };
        for (param, arg) in pairs().filter(is_move).collect::<Vec<_>>() {
            if !self.plan.is_varying(param) {
                uniform.push((param, self.uniform(arg)));
            } else if is_predicate(param) {
                predicates.push((param, self.predicate_of(arg)));
            } else {
                varying.push((param, arg));
            }
        }
        if !varying.is_empty() {
            let (all, some, done) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
            let is_full = self.is_full(lanes);
            self.b.ins().brif(is_full, all, &[], some, &[]);
            self.b.switch_to_block(all);
            self.assign_chunks(&varying);
            self.b.ins().jump(done, &[]);
            self.b.switch_to_block(some);
            self.assign_partly(&varying, lanes);
            self.b.ins().jump(done, &[]);
            self.b.switch_to_block(done);
        }
        for (param, value) in uniform {
            let slot = self.plan.slot(param).expect("parameters have slots");
            self.b.ins().store(frame_flags(), value, self.ctx, slot as i32);
        }
        for (param, bits) in predicates {
            self.store_predicate(param, bits, lanes);
        }
    }

    pub(super) fn assign_lane(&mut self, pairs: &[(Value, Value)], lane: &Lane) {
        let values: Vec<Clif> = pairs.iter().map(|&(_, arg)| self.value(arg, Some(lane))).collect();
        for (&(param, _), value) in pairs.iter().zip(values) {
            self.store_lane(param, value, lane);
        }
    }

    /// Any predicate as bits.
    pub(super) fn predicate_of(&mut self, value: Value) -> Clif {
        if self.plan.is_varying(value) {
            return self.predicate(value);
        }
        let one = self.uniform(value);
        let one = self.b.ins().uextend(types::I32, one);
        self.b.ins().ineg(one)
    }

    /// The lanes of `mask` in which an I32 value equals a constant.
    pub(super) fn lanes_equal(&mut self, value: Value, constant: u64, mask: Clif) -> Clif {
        let (some, next) = (self.b.create_block(), self.b.create_block());
        self.b.append_block_param(next, types::I32);
        let none = self.b.ins().iconst(types::I32, 0);
        self.b.ins().brif(mask, some, &[], next, &[BlockArg::Value(none)]);
        self.b.switch_to_block(some);
        let bits = self.each_lane(mask, 1, |emitter, lane| {
            let value = emitter.value(value, Some(lane));
            vec![emitter.b.ins().icmp_imm_u(IntCC::Equal, value, constant as i64)]
        });
        self.b.ins().jump(next, &[BlockArg::Value(bits[0])]);
        self.b.switch_to_block(next);
        self.b.block_params(next)[0]
    }

    fn special(&mut self, register: SpecialRegister, lane: Option<&Lane>) -> Clif {
        let axis = |base: usize, axis: usize| base + 4 * axis;
        let (tid0, tid) = (offset_of!(WarpContext, tid0), offset_of!(WarpContext, tid));
        let (ntid, ctaid) = (offset_of!(WarpContext, ntid), offset_of!(WarpContext, ctaid));
        let (nctaid, cluster) = (offset_of!(WarpContext, nctaid), offset_of!(WarpContext, cluster_nctaid));
        let offset = match register {
            SpecialRegister::TidX | SpecialRegister::TidY | SpecialRegister::TidZ => {
                let number = match register {
                    SpecialRegister::TidX => 0,
                    SpecialRegister::TidY => 1,
                    _ => 2,
                };
                if let Some(lane) = lane {
                    let address = self.lane_address(Type::I32, lane);
                    let offset = (tid + 128 * number) as i32;
                    return self.b.ins().load(types::I32, frame_flags(), address, offset);
                }
                axis(tid0, number)
            }
            SpecialRegister::NtidX => axis(ntid, 0),
            SpecialRegister::NtidY => axis(ntid, 1),
            SpecialRegister::NtidZ => axis(ntid, 2),
            SpecialRegister::CtaidX => axis(ctaid, 0),
            SpecialRegister::CtaidY => axis(ctaid, 1),
            SpecialRegister::CtaidZ => axis(ctaid, 2),
            SpecialRegister::NctaidX => axis(nctaid, 0),
            SpecialRegister::NctaidY => axis(nctaid, 1),
            SpecialRegister::NctaidZ => axis(nctaid, 2),
            SpecialRegister::ClusterNctaidX => axis(cluster, 0),
            SpecialRegister::ClusterNctaidY => axis(cluster, 1),
            SpecialRegister::ClusterNctaidZ => axis(cluster, 2),
            SpecialRegister::IsExplicitCluster => offset_of!(WarpContext, is_explicit_cluster),
            SpecialRegister::ClusterSharedStride => {
                return self.fixed_field(types::I64, offset_of!(WarpContext, cluster_shared_stride));
            }
            SpecialRegister::LaneId => {
                return match lane {
                    Some(lane) => self.b.ins().ireduce(types::I32, lane.index),
                    None => self.b.ins().iconst(types::I32, 0),
                };
            }
            SpecialRegister::WarpId => offset_of!(WarpContext, warp_index),
            SpecialRegister::Nwarpid => offset_of!(WarpContext, warps),
            SpecialRegister::SmId => offset_of!(WarpContext, sm_id),
            SpecialRegister::Nsmid => offset_of!(WarpContext, sms),
            SpecialRegister::DynamicSharedBytes => offset_of!(WarpContext, dynamic_shared_bytes),
            SpecialRegister::TotalSharedBytes => offset_of!(WarpContext, shared_size),
            SpecialRegister::LocalBytes => offset_of!(WarpContext, local_stride),
            SpecialRegister::GridId => return self.fixed_field(types::I64, offset_of!(WarpContext, grid_id)),
            SpecialRegister::Clock => {
                let clock = self.call(runtime::clock as *const (), &[], Some(types::I64));
                return self.b.ins().ireduce(types::I32, clock);
            }
            SpecialRegister::Clock64 => return self.call(runtime::clock as *const (), &[], Some(types::I64)),
            SpecialRegister::GlobalTimer => {
                return self.call(runtime::global_timer as *const (), &[], Some(types::I64));
            }
            // Where cooperative groups look for the grid's workspace: the high and the low half of
            // its address.
            SpecialRegister::EnvReg(1) => offset_of!(WarpContext, grid_workspace) + 4,
            SpecialRegister::EnvReg(2) => offset_of!(WarpContext, grid_workspace),
            SpecialRegister::EnvReg(_) => return self.b.ins().iconst(types::I32, 0),
        };
        self.field(types::I32, offset)
    }

    fn window_base(&mut self, window: Window) -> Clif {
        let offset = match window {
            Window::Shared => offset_of!(WarpContext, shared_base),
            Window::Local => offset_of!(WarpContext, local_base),
            Window::Param => offset_of!(WarpContext, params),
        };
        self.field(types::I64, offset)
    }

    /// Adds the lanes of the node to a counter.
    fn count_threads(&mut self, counter: Value) {
        let counter = self.kernel.constant(counter).expect("a counter's number is a constant");
        let counters = self.fixed_field(types::I64, offset_of!(WarpContext, counters));
        let address = self.b.ins().iadd_imm_u(counters, 8 * counter as i64);
        let threads = self.b.ins().popcnt(self.mask);
        let threads = self.b.ins().uextend(types::I64, threads);
        self.b.ins().atomic_rmw(types::I64, frame_flags(), AtomicRmwOp::Add, address, threads);
    }

    fn call_runtime(&mut self, function: RuntimeFunction, args: &[Clif]) -> Clif {
        let address = match function {
            RuntimeFunction::Vprintf => runtime::vprintf as *const (),
            RuntimeFunction::AssertFail => runtime::assert_fail as *const (),
            RuntimeFunction::Malloc => runtime::malloc as *const (),
            RuntimeFunction::Free => runtime::free as *const (),
            RuntimeFunction::SurfaceLoad => runtime::surface_load as *const (),
            RuntimeFunction::SurfaceStore => runtime::surface_store as *const (),
            RuntimeFunction::Missing => runtime::missing as *const (),
            RuntimeFunction::StackOverflow => runtime::stack_overflow as *const (),
            RuntimeFunction::CheckAccess => runtime::check_access as *const (),
            RuntimeFunction::CountThreads => unreachable!("done once for the warp"),
        };
        let mut all = vec![self.ctx];
        all.extend_from_slice(args);
        self.call(address, &all, function.result().map(clif_type))
    }
}
