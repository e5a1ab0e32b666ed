//! Writes the function of one kernel for one warp after the other.
//!
//! ```text
//!   enter -> start -> block 0 -> ... the blocks, lowest pending one first ... -> done
//!              ^                                                                  |
//!              +---------------- the next warp, or the next block's --------------+
//! ```
//!
//! Where a value is used in another block than its own, it is in a variable, which LLVM makes a
//! register of. So is the mask of each block's pending lanes.

mod values;

use std::collections::HashMap;
use std::fmt;
use std::mem::offset_of;

use sluice_ir::analysis::Shape;
use sluice_ir::{BlockId, Inst, InstId, Kernel, RuntimeFunction, Scope, Type, Value};

use super::flow::Flow;
use super::writer::{Val, Writer, constant, type_name};
use crate::codegen::Tids;
use crate::context::{WarpContext, status};
use crate::object::CodeTraits;
use crate::runtime;

/// Why a kernel stays with Cranelift's code.
#[derive(Debug)]
pub(crate) struct NotCovered(pub String);

impl fmt::Display for NotCovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Marks of accesses, by what can be at the same place: see [`TAIL`].
pub(super) mod alias {
    pub(crate) const FRAME: &str = "!tbaa !3";
    pub(crate) const DEVICE: &str = "!tbaa !5";
    pub(crate) const SHARED: &str = "!tbaa !7";
    pub(crate) const GLOBAL: &str = "!tbaa !9";
    pub(crate) const FIXED: &str = "!invariant.load !0";
}

/// What the text ends with. Generic accesses can be to shared and to global memory, and these two
/// are apart, as PTX promises; the warp's own memory is apart from both.
const TAIL: &str =
    "attributes #0 = { nounwind \"probe-stack\"=\"inline-asm\" \"min-legal-vector-width\"=\"512\" \"prefer-vector-width\"=\"512\" }
!0 = !{}
!1 = !{!\"sluice\"}
!2 = !{!\"frame\", !1, i64 0}
!3 = !{!2, !2, i64 0}
!4 = !{!\"device\", !1, i64 0}
!5 = !{!4, !4, i64 0}
!6 = !{!\"shared\", !4, i64 0}
!7 = !{!6, !6, i64 0}
!8 = !{!\"global\", !4, i64 0}
!9 = !{!8, !8, i64 0}
!10 = !{!\"branch_weights\", i32 1, i32 1000000}
";

/// The function's name in the text.
pub(super) const ENTRY: &str = "warp";

pub(super) struct Emitter<'a> {
    pub kernel: &'a Kernel,
    pub shapes: &'a [Shape],
    pub flow: &'a Flow,
    pub lanes: usize,
    pub tids: Tids,
    pub traits: CodeTraits,
    pub w: Writer,
    /// The lanes that run the current block.
    pub mask: Val,
    pub block: BlockId,
    /// Variables by value, and by block the one of its pending lanes.
    variables: HashMap<Value, String>,
    pub pending: Vec<String>,
    /// Variables for the warp and for the lanes that it starts with.
    current: String,
    members: String,
    /// Values of the current block. Scalars are the same in all lanes, or the first lane's of
    /// values that are affine.
    known: Known,
    /// How many barriers have been written, whose nodes are 1 and up.
    pub barriers: u32,
    /// Places of values in the warp's frame, by value.
    slots: HashMap<Value, u32>,
    /// Where in the warp's memory operands of the runtime are put.
    pub scratch: u32,
}

/// What has been computed or loaded so far, by value.
#[derive(Clone, Default)]
struct Known {
    scalars: HashMap<Value, Val>,
    vectors: HashMap<Value, Val>,
}

impl<'a> Emitter<'a> {
    pub(super) fn new(
        kernel: &'a Kernel,
        shapes: &'a [Shape],
        flow: &'a Flow,
        (tids, lanes): (Tids, usize),
        traits: CodeTraits,
        scratch: u32,
    ) -> Emitter<'a> {
        Emitter {
            kernel,
            shapes,
            flow,
            lanes,
            tids,
            traits,
            w: Writer::default(),
            mask: constant(Type::I1, lanes, 0),
            block: BlockId(0),
            variables: HashMap::new(),
            pending: Vec::new(),
            current: String::new(),
            members: String::new(),
            known: Known::default(),
            barriers: 0,
            slots: HashMap::new(),
            scratch,
        }
    }

    /// The text of the whole.
    pub(super) fn module(&mut self) -> Result<String, NotCovered> {
        let mask = type_name(Type::I1, self.lanes);
        self.pending = self.kernel.block_ids().map(|_| self.w.variable(&mask)).collect();
        self.enter();
        for block in self.kernel.block_ids() {
            self.block(block)?;
        }
        self.done();
        Ok(self.w.module(&format!("define i64 @{ENTRY}(ptr noundef %first) #0 {{"), TAIL))
    }

    fn enter(&mut self) {
        let current = self.w.variable("ptr");
        self.w.variables.push_str(&format!("  store ptr %first, ptr {current}\n"));
        self.current = current.clone();
        self.w.label("enter");
        self.w.line(&format!("%ctx = load ptr, ptr {current}"));
        for (name, ty, offset) in [
            ("%memory_base", "i64", offset_of!(WarpContext, memory_base)),
            ("%memory_size", "i64", offset_of!(WarpContext, memory_size)),
            ("%shared_base", "ptr", offset_of!(WarpContext, shared_base)),
            ("%shared_size", "i32", offset_of!(WarpContext, shared_size)),
            ("%params", "ptr", offset_of!(WarpContext, params)),
            ("%params_size", "i32", offset_of!(WarpContext, params_size)),
            ("%local_stride", "i64", offset_of!(WarpContext, local_stride)),
            ("%globals", "ptr", offset_of!(WarpContext, globals)),
            ("%control", "ptr", offset_of!(WarpContext, control)),
        ] {
            self.w.line(&format!("{name}_at = getelementptr i8, ptr %ctx, i64 {offset}"));
            self.w.line(&format!("{name} = load {ty}, ptr {name}_at, {}", alias::FIXED));
        }
        let none = constant(Type::I1, self.lanes, 0);
        for place in self.pending.clone() {
            self.w.store(&none, &place);
        }
        self.members = self.w.variable("i32");
        let members = self.members.clone();
        if self.traits.has_sync {
            self.dispatch();
        } else {
            let place = self.traits.frame.pending as usize;
            let first = self.field("i32", place);
            self.w.line(&format!("store i32 {first}, ptr {members}"));
            self.set_field("i32 0", place);
            self.set_field("i64 0", offset_of!(WarpContext, ready));
            self.w.line("br label %start");
        }
        self.w.label("start");
        let bits = self.w.load(Type::I32, 1, &members);
        let mask = self.mask_of(&bits);
        let first = self.pending[0].clone();
        self.w.store(&mask, &first);
        self.w.line("br label %b0");
    }

    /// A warp comes to its first instruction, behind a barrier as a whole, or behind one that has
    /// made it ready; or it waits, or is at its end, and it is the next one's turn.
    fn dispatch(&mut self) {
        let nodes: Vec<u32> = (1..self.traits.frame.blocks).collect();
        let cases: Vec<String> = nodes.iter().map(|node| format!("i32 {node}, label %n{node}")).collect();
        let cases = cases.join(" ");
        let resume = self.field("i32", offset_of!(WarpContext, resume_node));
        let is_whole = self.w.raw(&format!("icmp ne i32 {resume}, 0"));
        self.w.line(&format!("br i1 {is_whole}, label %whole, label %dispatch"));
        self.w.label("whole");
        self.set_field("i32 0", offset_of!(WarpContext, resume_node));
        self.w.line(&format!("switch i32 {resume}, label %stopped [ {cases} ]"));

        self.w.label("dispatch");
        let ready = Val::new(Type::I64, 1, self.field("i64", offset_of!(WarpContext, ready)));
        let is_none = self.w.icmp_const("eq", &ready, 0);
        self.w.line(&format!("br i1 {}, label %stopped, label %pick", is_none.name));
        self.w.label("pick");
        let node = self.w.intrinsic("llvm.cttz", &[&ready], &["true"]);
        let less = self.w.binary_const("add", &ready, u64::MAX);
        let less = self.w.binary("and", &ready, &less);
        self.set_field(&less.arg(), offset_of!(WarpContext, ready));
        let pending = self.field_place(self.traits.frame.pending as usize);
        let at = self.w.raw(&format!("getelementptr i32, ptr {pending}, {}", node.arg()));
        let lanes = self.w.raw(&format!("load i32, ptr {at}, {}", alias::FRAME));
        self.w.line(&format!("store i32 0, ptr {at}, {}", alias::FRAME));
        self.w.line(&format!("store i32 {lanes}, ptr {}", self.members));
        let node = self.w.resize(&node, Type::I32);
        self.w.line(&format!("switch {}, label %stopped [ i32 0, label %start {cases} ]", node.arg()));

        self.w.label("stopped");
        let next = self.field("ptr", offset_of!(WarpContext, next));
        let is_last = self.w.raw(&format!("icmp eq ptr {next}, null"));
        self.w.line(&format!("br i1 {is_last}, label %last, label %behind"));
        self.w.label("behind");
        self.w.line(&format!("store ptr {next}, ptr {}", self.current));
        self.w.line("br label %enter");
        self.w.label("last");
        self.leave_function();
    }

    /// Lanes have exited, for the barriers that count them.
    pub(super) fn exit(&mut self) {
        if !self.traits.has_sync {
            return;
        }
        let bits = self.bits_of(&self.mask.clone());
        let live = Val::new(Type::I32, 1, self.field("i32", offset_of!(WarpContext, live)));
        let others = self.w.binary_const("xor", &bits, u64::MAX);
        let live = self.w.binary("and", &live, &others);
        self.set_field(&live.arg(), offset_of!(WarpContext, live));
        let args = ["ptr %ctx".into(), bits.arg()];
        self.w.call_runtime(("exited", runtime::exited as *const ()), &args, None, "");
    }

    /// The warp has ended: the next one, as the runtime finds it unless it follows in the row.
    fn done(&mut self) {
        self.w.label("done");
        if self.traits.has_sync {
            return self.w.line("br label %stopped");
        }
        if !self.traits.goes_on {
            return self.stop();
        }
        let lanes = self.lanes as u32;
        let left = self.field("i32", offset_of!(WarpContext, threads_left));
        let tid_offset = offset_of!(WarpContext, tid0);
        let x = self.field("i32", tid_offset);
        let width = self.field("i32", offset_of!(WarpContext, ntid));
        let next = self.w.raw(&format!("add i32 {x}, {lanes}"));
        let is_whole = self.w.raw(&format!("icmp uge i32 {left}, {lanes}"));
        let is_inside = self.w.raw(&format!("icmp ult i32 {next}, {width}"));
        let is_plain = self.w.raw(&format!("and i1 {is_whole}, {is_inside}"));
        let [plain, other, go, end] = ["plain", "other", "go", "end"].map(|name| self.w.fresh(name));
        self.w.line(&format!("br i1 {is_plain}, label %{plain}, label %{other}"));

        self.w.label(&plain);
        let left = self.w.raw(&format!("sub i32 {left}, {lanes}"));
        self.set_field(&format!("i32 {left}"), offset_of!(WarpContext, threads_left));
        self.set_field(&format!("i32 {next}"), tid_offset);
        let index = self.field("i32", offset_of!(WarpContext, warp_index));
        let index = self.w.raw(&format!("add i32 {index}, 1"));
        self.set_field(&format!("i32 {index}"), offset_of!(WarpContext, warp_index));
        let local = self.field("i64", offset_of!(WarpContext, local_base));
        let step = self.w.raw(&format!("mul i64 %local_stride, {lanes}"));
        let local = self.w.raw(&format!("add i64 {local}, {step}"));
        self.set_field(&format!("i64 {local}"), offset_of!(WarpContext, local_base));
        let all = u32::MAX >> (u32::BITS - lanes);
        let members = self.members.clone();
        self.w.line(&format!("store i32 {all}, ptr {members}"));
        self.w.line("br label %start");

        self.w.label(&other);
        let args = ["ptr %ctx".to_owned(), format!("i32 {lanes}")];
        let function = ("next_warp", runtime::next_warp as *const ());
        let found = self.w.call_runtime(function, &args, Some(Type::I32), "").expect("a result");
        let is_end = self.w.icmp_const("eq", &found, 0);
        self.w.line(&format!("br i1 {}, label %{end}, label %{go}", is_end.name));
        self.w.label(&go);
        self.w.store(&found, &members);
        self.w.line("br label %start");
        self.w.label(&end);
        self.stop();
    }

    /// All lanes have ended.
    fn stop(&mut self) {
        self.set_field("i32 0", offset_of!(WarpContext, live));
        self.leave_function();
    }

    fn leave_function(&mut self) {
        let address = self.w.raw("ptrtoint ptr %ctx to i64");
        let result = self.w.raw(&format!("add i64 {address}, {}", status::STOPPED));
        self.w.line(&format!("ret i64 {result}"));
    }

    fn block(&mut self, id: BlockId) -> Result<(), NotCovered> {
        let kernel = self.kernel;
        self.block = id;
        self.forget();
        self.w.label(&format!("b{}", id.0));
        let place = self.pending[id.index()].clone();
        self.mask = self.w.load(Type::I1, self.lanes, &place);
        let none = constant(Type::I1, self.lanes, 0);
        self.w.store(&none, &place);
        for &inst in &kernel.block(id).insts {
            self.inst(inst)?;
        }
        self.terminator(id)
    }

    fn inst(&mut self, id: InstId) -> Result<(), NotCovered> {
        let kernel = self.kernel;
        let data = kernel.inst(id);
        match &data.inst {
            Inst::Const { .. } => {}
            Inst::Special { register } => {
                let value = self.special(*register, data.result(0))?;
                self.define(data.result(0), value);
            }
            Inst::GlobalAddress { global } => {
                let at = self.w.raw(&format!("getelementptr i8, ptr %globals, i64 {}", global.0 * 8));
                let load = format!("load i64, ptr {at}, {}", alias::FIXED);
                let value = self.w.op(Type::I64, 1, &load);
                self.define(data.result(0), value);
            }
            Inst::WindowBase { window } => {
                let value = self.window_base(*window);
                self.define(data.result(0), value);
            }
            Inst::Load { .. } => self.load(id)?,
            Inst::Store { .. } => self.store(id)?,
            Inst::Atomic { .. } => self.atomic(id)?,
            Inst::Fence { scope } => match scope {
                Scope::System => return Err(NotCovered("a fence for others than the device".into())),
                // One thread runs all of a block.
                Scope::Block => self.w.line("fence syncscope(\"singlethread\") seq_cst"),
                Scope::Cluster | Scope::Device => self.w.line("fence seq_cst"),
            },
            Inst::CallRuntime { function: RuntimeFunction::CountThreads, args } => {
                self.count_threads(args[0])
            }
            Inst::CallRuntime { .. } => self.runtime_function(id)?,
            Inst::Barrier { .. } | Inst::ClusterBarrier { .. } => {
                if kernel.block(self.block).insts.first() != Some(&id) {
                    return Err(NotCovered("a barrier in the middle of a block".into()));
                }
                self.barrier(id)?;
            }
            inst if inst.is_collective() => self.collective(id)?,
            Inst::ActiveMask => {
                let bits = self.bits_of(&self.mask.clone());
                self.define(data.result(0), bits);
            }
            Inst::Nanosleep { .. } => {}
            inst if inst.effect() == sluice_ir::Effect::Pure => {
                let result = self.pure_inst(id)?;
                self.define(data.result(0), result);
            }
            inst => return Err(NotCovered(format!("{inst:?}"))),
        }
        Ok(())
    }

    fn pure_inst(&mut self, id: InstId) -> Result<Val, NotCovered> {
        let kernel = self.kernel;
        let data = kernel.inst(id);
        let mut args = Vec::with_capacity(3);
        data.inst.for_each_arg(|value| args.push(value));
        let are_uniform = args.iter().all(|&arg| self.shape(arg) == Shape::Uniform);
        let is_known = self.shape(data.result(0)) != Shape::Varying;
        if are_uniform || is_known {
            let args: Vec<Val> = args.into_iter().map(|arg| self.scalar(arg)).collect();
            return self.pure(&data.inst, &args);
        }
        let is_condition = |place: usize| place == 0 && matches!(data.inst, Inst::Select { .. });
        let args: Vec<Val> = args
            .into_iter()
            .enumerate()
            .map(|(place, arg)| match self.shape(arg) {
                Shape::Uniform if is_condition(place) => self.scalar(arg),
                _ => self.vector(arg),
            })
            .collect();
        self.pure(&data.inst, &args)
    }

    /// The values of the current block are to be loaded anew.
    pub(super) fn forget(&mut self) {
        self.known = Known::default();
    }

    /// Writes what runs in some cases only. What it computes is not known behind it.
    pub(super) fn aside(&mut self, write: impl FnOnce(&mut Self)) {
        let known = self.known.clone();
        write(self);
        self.known = known;
    }

    /// Whether a mask has any lane.
    pub(super) fn any(&mut self, mask: &Val) -> Val {
        let lanes = self.lanes;
        let bits = self.w.raw(&format!("bitcast {} to i{lanes}", mask.arg()));
        self.w.op(Type::I1, 1, &format!("icmp ne i{lanes} {bits}, 0"))
    }

    /// The lanes of a mask in which a predicate holds; of others it may be poison.
    pub(super) fn within(&mut self, mask: &Val, predicate: &Val) -> Val {
        let none = constant(Type::I1, self.lanes, 0);
        self.w.select(mask, predicate, &none)
    }

    /// Runs `body` for each lane of a mask with its elements of `args`. The results are collected;
    /// those of other lanes are zero.
    pub(super) fn lane_loop(
        &mut self,
        mask: &Val,
        args: &[&Val],
        results: &[Type],
        body: impl FnOnce(&mut Self, &str, &[Val]) -> Vec<Val>,
    ) -> Vec<Val> {
        let lanes = self.lanes;
        let array = |emitter: &mut Self, ty: Type| emitter.w.array(ty, lanes);
        let inputs: Vec<String> = args.iter().map(|arg| array(self, arg.ty)).collect();
        let outputs: Vec<String> = results.iter().map(|&ty| array(self, ty)).collect();
        for (arg, place) in args.iter().zip(&inputs) {
            self.w.store(arg, place);
        }
        for (&ty, place) in results.iter().zip(&outputs) {
            self.w.store(&constant(ty, lanes, 0), place);
        }
        let rest = self.w.variable("i32");
        let bits = self.bits_of(mask);
        self.w.store(&bits, &rest);
        let [head, go, end] = ["head", "go", "end"].map(|name| self.w.fresh(name));
        self.w.line(&format!("br label %{head}"));
        self.w.label(&head);
        let bits = self.w.load(Type::I32, 1, &rest);
        let is_end = self.w.icmp_const("eq", &bits, 0);
        self.w.line(&format!("br i1 {}, label %{end}, label %{go}", is_end.name));
        self.w.label(&go);
        let lane = self.w.intrinsic("llvm.cttz", &[&bits], &["true"]);
        let less = self.w.binary_const("add", &bits, u64::MAX);
        let less = self.w.binary("and", &bits, &less);
        self.w.store(&less, &rest);
        let lane = self.w.resize(&lane, Type::I64).name;
        let elements: Vec<Val> = args
            .iter()
            .zip(&inputs)
            .map(|(arg, place)| {
                let ty = type_name(arg.ty, 1);
                let at = self.w.raw(&format!("getelementptr {ty}, ptr {place}, i64 {lane}"));
                self.w.load(arg.ty, 1, &at)
            })
            .collect();
        let done = body(self, &lane, &elements);
        for (value, place) in done.iter().zip(&outputs) {
            let at = self.w.raw(&format!("getelementptr {}, ptr {place}, i64 {lane}", value.t()));
            self.w.store(value, &at);
        }
        self.w.line(&format!("br label %{head}"));
        self.w.label(&end);
        results.iter().zip(&outputs).map(|(&ty, place)| self.w.load(ty, lanes, place)).collect()
    }
}
