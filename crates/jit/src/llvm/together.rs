//! Instructions of a warp's lanes together, and barriers.
//!
//! A kernel is covered where all lanes of a warp that have not exited come to such an instruction
//! together, whatever the data: no other block can have pending lanes then.
//!
//! At a barrier the function leaves the warp, with what is used behind it in the warp's frame, and
//! continues with the next warp. It comes back at the barrier's *node*.

use std::mem::offset_of;

use sluice_ir::analysis::Shape;
use sluice_ir::{BarrierKind, Inst, InstId, MatrixForm, ReduxOp, ShuffleMode, Type, Value, VoteKind};

use super::emitter::{Emitter, NotCovered, alias};
use super::writer::{Val, constant, type_name};
use crate::context::{BARRIERS, LANES, WarpContext};
use crate::runtime::{self, lanes};

impl Emitter<'_> {
    /// Refuses the kernel unless all lanes that have not exited are in the current block.
    fn expect_all_here(&self, what: &str) -> Result<(), NotCovered> {
        match self.flow.others[self.block.index()].is_empty() {
            true => Ok(()),
            false => Err(NotCovered(format!("{what} where some lanes may be elsewhere"))),
        }
    }

    pub(super) fn collective(&mut self, id: InstId) -> Result<(), NotCovered> {
        let kernel = self.kernel;
        let data = kernel.inst(id);
        self.expect_all_here("an instruction of all lanes")?;
        match data.inst {
            Inst::WarpSync { .. } => Ok(()),
            Inst::Vote { kind, predicate, mask } => self.vote(kind, predicate, mask, data.result(0)),
            Inst::Shuffle { mode, value, lane, clamp, .. } => {
                self.lane_shuffle(mode, [value, lane, clamp], [data.result(0), data.result(1)]);
                Ok(())
            }
            Inst::Redux { op, value, mask, .. } => {
                self.redux(op, value, mask, data.result(0));
                Ok(())
            }
            Inst::MatrixMultiply { form, ref args, .. } => {
                self.matrix_multiply(form, args, id);
                Ok(())
            }
            ref inst => Err(NotCovered(format!("{inst:?}"))),
        }
    }

    /// A result that all lanes computed, in the shape that was proved for it.
    fn define_vector(&mut self, value: Value, result: Val) {
        if self.is_varying(value) {
            return self.define(value, result);
        }
        let mask = self.mask.clone();
        let bits = self.bits_of(&mask);
        let lane = self.w.intrinsic("llvm.cttz", &[&bits], &["true"]);
        let first = format!("extractelement {}, i32 {}", result.arg(), lane.name);
        let first = self.w.op(result.ty, 1, &first);
        self.define(value, first);
    }

    fn vote(
        &mut self,
        kind: VoteKind,
        predicate: Value,
        mask: Value,
        result: Value,
    ) -> Result<(), NotCovered> {
        if self.shape(mask) != Shape::Uniform {
            return Err(NotCovered("a vote of several groups".into()));
        }
        let members = self.scalar(mask);
        let active = self.mask.clone();
        let active_bits = self.bits_of(&active);
        let members = self.w.binary("and", &members, &active_bits);
        let predicate = self.vector(predicate);
        let votes = self.within(&active, &predicate);
        let votes = self.bits_of(&votes);
        let votes = self.w.binary("and", &votes, &members);
        let value = match kind {
            VoteKind::Ballot => votes,
            VoteKind::All => self.w.icmp("eq", &votes, &members),
            VoteKind::Any => self.w.icmp_const("ne", &votes, 0),
            VoteKind::Uniform => {
                let all = self.w.icmp("eq", &votes, &members);
                let none = self.w.icmp_const("eq", &votes, 0);
                self.w.binary("or", &all, &none)
            }
        };
        self.define(result, value);
        Ok(())
    }

    fn lane_shuffle(&mut self, mode: ShuffleMode, [value, lane, clamp]: [Value; 3], results: [Value; 2]) {
        let constants = (self.kernel.constant(lane), self.kernel.constant(clamp));
        let vector = self.vector(value);
        if let (Some(by), Some(limit), LANES) = (constants.0, constants.1, self.lanes) {
            let source = |own: usize| lanes::shuffle_source(mode as u32, own as u32, by as u32, limit as u32);
            let sources: Vec<(u32, bool)> = (0..LANES).map(source).collect();
            let places: Vec<usize> = sources.iter().map(|&(place, _)| place as usize % LANES).collect();
            let moved = self.shuffle(&vector, &vector, &places);
            let inside: Vec<String> = sources.iter().map(|(_, inside)| format!("i1 {inside}")).collect();
            let inside = Val::new(Type::I1, LANES, format!("<{}>", inside.join(", ")));
            self.define_vector(results[0], moved);
            self.define_vector(results[1], inside);
            return;
        }
        let args: Vec<String> = [value, lane, clamp].into_iter().map(|arg| self.words(arg)).collect();
        let out = self.w.array(Type::I32, LANES);
        let active = self.active_bits();
        let args = [
            format!("ptr {}", args[0]),
            format!("ptr {}", args[1]),
            format!("ptr {}", args[2]),
            active.arg(),
            format!("i32 {}", mode as u32),
            format!("ptr {out}"),
        ];
        let function = ("shuffle", runtime::shuffle as *const ());
        let attributes = "memory(argmem: readwrite)";
        let inside = self.w.call_runtime(function, &args, Some(Type::I32), attributes).expect("a result");
        let moved = self.w.load(Type::I32, self.lanes, &out);
        let inside = self.mask_of(&inside);
        self.define_vector(results[0], moved);
        self.define_vector(results[1], inside);
    }

    fn redux(&mut self, op: ReduxOp, value: Value, mask: Value, result: Value) {
        let (values, members) = (self.words(value), self.words(mask));
        let out = self.w.array(Type::I32, LANES);
        let active = self.active_bits();
        let args = [
            format!("ptr {values}"),
            format!("ptr {members}"),
            active.arg(),
            format!("i32 {}", op as u32),
            format!("ptr {out}"),
        ];
        let function = ("redux", runtime::redux as *const ());
        self.w.call_runtime(function, &args, None, "memory(argmem: readwrite)");
        let reduced = self.w.load(self.kernel.ty(result), self.lanes, &out);
        self.define_vector(result, reduced);
    }

    fn active_bits(&mut self) -> Val {
        let mask = self.mask.clone();
        self.bits_of(&mask)
    }

    /// An array with a value of 32 bits in all lanes.
    fn words(&mut self, value: Value) -> String {
        let vector = self.vector(value);
        let place = self.w.array(Type::I32, LANES);
        self.w.store(&vector, &place);
        place
    }

    /// A product of matrices, by the runtime, which finds the registers by their places in the
    /// warp's memory.
    fn matrix_multiply(&mut self, form: MatrixForm, args: &[Value], id: InstId) {
        let kernel = self.kernel;
        let base = self.scratch as usize;
        for (array, &arg) in args.iter().enumerate() {
            let vector = self.vector(arg);
            let at = self.field_place(base + 128 * array);
            self.w.line(&format!("store {}, ptr {at}, align 64, {}", vector.arg(), alias::FRAME));
        }
        let count = args.len() + form.sums();
        let list = base + 128 * count;
        for array in 0..count {
            self.set_field(&format!("i32 {}", base + 128 * array), list + 4 * array);
        }
        let list = self.field_place(list);
        let active = self.active_bits();
        let args_text =
            ["ptr %ctx".into(), format!("ptr {list}"), format!("i32 {}", form.to_bits()), active.arg()];
        let function = ("matrix_multiply", runtime::matrix_multiply as *const ());
        self.w.call_runtime(function, &args_text, None, "");
        for (array, result) in kernel.inst(id).results().enumerate() {
            let at = self.field_place(base + 128 * (args.len() + array));
            let (ty, lanes) = (form.sum_type(), self.lanes);
            let load = format!("load {}, ptr {at}, align 64, {}", type_name(ty, lanes), alias::FRAME);
            let sums = self.w.op(ty, lanes, &load);
            self.define_vector(result, sums);
        }
    }

    // ---- Barriers

    /// Leaves the warp at a barrier, and continues behind it.
    pub(super) fn barrier(&mut self, id: InstId) -> Result<(), NotCovered> {
        let kernel = self.kernel;
        let data = kernel.inst(id);
        let Inst::Barrier { kind, id: barrier, count, predicate } = data.inst else {
            return Err(NotCovered(format!("{:?}", data.inst)));
        };
        let differs = |value: Value| self.shape(value) != Shape::Uniform;
        if kind == BarrierKind::Arrive || differs(barrier) || count.is_some_and(differs) {
            return Err(NotCovered("a barrier of a kind that is rare".into()));
        }
        self.expect_all_here("a barrier")?;
        self.barriers += 1;
        let node = self.barriers;
        let number = self.scalar(barrier);
        let is_plain = kind == BarrierKind::Sync && count.is_none();
        let votes = predicate.map(|predicate| self.vector(predicate));
        let count = count.map(|count| self.scalar(count));
        let kept = self.keep();
        if is_plain {
            self.set_field(&format!("i32 {node}"), offset_of!(WarpContext, resume_node));
            self.set_field(&number.arg(), offset_of!(WarpContext, resume_barrier));
            self.w.line("br label %stopped");
        } else {
            let votes = match votes {
                Some(votes) => {
                    let mask = self.mask.clone();
                    let votes = self.within(&mask, &votes);
                    self.bits_of(&votes)
                }
                None => constant(Type::I32, 1, 0),
            };
            let active = self.active_bits();
            let count = count.unwrap_or(constant(Type::I32, 1, 0));
            let args = [
                "ptr %ctx".into(),
                number.arg(),
                count.arg(),
                format!("i32 {node}"),
                active.arg(),
                votes.arg(),
            ];
            self.w.call_runtime(("barrier", runtime::barrier as *const ()), &args, None, "");
            self.w.line("br label %dispatch");
        }
        self.w.label(&format!("n{node}"));
        self.forget();
        self.take_back(&kept);
        let live = self.field("i32", offset_of!(WarpContext, live));
        self.mask = self.mask_of(&Val::new(Type::I32, 1, live));
        if data.result_count > 0 {
            self.barrier_result(kind, barrier, data.result(0));
        }
        Ok(())
    }

    fn barrier_result(&mut self, kind: BarrierKind, barrier: Value, result: Value) {
        let number = self.scalar(barrier);
        let number = self.w.binary_const("and", &number, BARRIERS as u64 - 1);
        let number = self.w.resize(&number, Type::I64);
        let entry = |emitter: &mut Self, offset: usize| {
            let array = emitter.field_place(offset);
            let at = emitter.w.raw(&format!("getelementptr i32, ptr {array}, {}", number.arg()));
            emitter.w.op(Type::I32, 1, &format!("load i32, ptr {at}, {}", alias::FRAME))
        };
        let votes = entry(self, offset_of!(WarpContext, barrier_votes));
        let value = match kind {
            BarrierKind::ReducePopc => votes,
            BarrierKind::ReduceAnd => {
                let arrived = entry(self, offset_of!(WarpContext, barrier_arrived));
                self.w.icmp("eq", &votes, &arrived)
            }
            _ => self.w.icmp_const("ne", &votes, 0),
        };
        self.define(result, value);
    }

    /// Writes what is used from the start of the current block on to the frame.
    fn keep(&mut self) -> Vec<Value> {
        let block = self.block;
        let mut values: Vec<Value> = self.flow.live_at(block).collect();
        values.extend(&self.kernel.block(block).params);
        for &value in &values {
            let kept = self.in_shape_of(value, value);
            let at = self.slot(value);
            let at = self.field_place(at);
            self.w.line(&format!("store {}, ptr {at}, align 8, {}", kept.arg(), alias::FRAME));
        }
        values
    }

    fn take_back(&mut self, values: &[Value]) {
        for &value in values {
            let at = self.slot(value);
            let at = self.field_place(at);
            let lanes = if self.is_varying(value) { self.lanes } else { 1 };
            let ty = self.kernel.ty(value);
            let load = format!("load {}, ptr {at}, align 8, {}", type_name(ty, lanes), alias::FRAME);
            let kept = self.w.op(ty, lanes, &load);
            self.assign(value, &kept, None);
        }
    }
}
