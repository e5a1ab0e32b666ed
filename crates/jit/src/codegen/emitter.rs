//! Writes the function of one kernel: entry, dispatcher, and the nodes with the jumps between them.
//!
//! ```text
//!   enter -> dispatch -> pick the lowest ready node, take its pending lanes
//!               ^                 |
//!               |                 v
//!   ready more?-+--------------- node(lanes): steps, then jump / split / exit
//!        no: the next warp of the phase enters, or the function returns
//! ```

mod dispatch;
mod flow;

use std::collections::HashMap;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    AbiParam, Block as ClifBlock, InstBuilder, MemFlagsData, Signature, StackSlot, StackSlotData,
    StackSlotKind, TrapCode, Type as ClifType, Value as Clif, types,
};
use cranelift_frontend::{FunctionBuilder, Variable};
use sluice_ir::{Inst, Kernel, Type, Value};

use super::machine::Target;
use super::memory::Extent;
use super::plan::{Plan, Step};
use super::symbols::Symbols;
use crate::runtime;

/// Where the code keeps the memory of the warp that it runs.
#[derive(Clone, Copy)]
enum Warp {
    /// One value in all nodes.
    Variable(Variable),
    /// A place on the stack, which each node reads anew. The register allocator looks at all uses
    /// of a value each time it splits it, so one that all of many nodes use takes it a time that
    /// grows with their square.
    Slot(StackSlot),
}

/// Nodes from which on the warp's memory is kept on the stack.
const NODES_WITH_SLOT: usize = 256;

impl Warp {
    fn new(b: &mut FunctionBuilder<'_>, nodes: usize) -> Warp {
        if nodes < NODES_WITH_SLOT {
            return Warp::Variable(b.declare_var(types::I64));
        }
        Warp::Slot(slot(b, types::I64))
    }

    fn set(self, b: &mut FunctionBuilder<'_>, warp: Clif) {
        match self {
            Warp::Variable(variable) => b.def_var(variable, warp),
            Warp::Slot(slot) => {
                b.ins().stack_store(types::I64, warp, slot, 0);
            }
        }
    }

    fn get(self, b: &mut FunctionBuilder<'_>) -> Clif {
        match self {
            Warp::Variable(variable) => b.use_var(variable),
            Warp::Slot(slot) => b.ins().stack_load(types::I64, types::I64, slot, 0),
        }
    }
}

/// A place on the stack for one value.
fn slot(b: &mut FunctionBuilder<'_>, ty: ClifType) -> StackSlot {
    let align_shift = ty.bytes().ilog2() as u8;
    b.create_sized_stack_slot(StackSlotData::new(StackSlotKind::ExplicitSlot, ty.bytes(), align_shift))
}

pub(super) struct Emitter<'a> {
    pub b: FunctionBuilder<'a>,
    pub kernel: &'a Kernel,
    pub plan: &'a Plan,
    pub machine: &'a Target,
    /// The memory of the current node's warp, from the variable.
    pub ctx: Clif,
    warp: Warp,
    /// The lanes that run the current node.
    pub mask: Clif,
    /// By node; each takes its lanes.
    nodes: Vec<ClifBlock>,
    enter: ClifBlock,
    dispatch: ClifBlock,
    fault: ClifBlock,
    /// The fault's kind and address on the way there. As parameters of the block, the values of all
    /// accesses would be one to the register allocator, whose time grows with their square.
    fault_slots: [StackSlot; 2],
    pub current: u32,
    /// Extents that the current node has checked, with the host address of their first byte.
    pub(super) checked: Vec<(Extent, Clif)>,
    /// Uniform values, and affine ones at lane 0, in the current node.
    pub(super) uniform: HashMap<Value, Clif>,
    /// Values of the current step that count as affine in chunks, with their strides.
    pub(super) assumed: HashMap<Value, i64>,
    /// Predicates of the current node, a bit per lane.
    pub(super) predicates: HashMap<Value, Clif>,
    signatures: HashMap<(Vec<ClifType>, Option<ClifType>), cranelift_codegen::ir::SigRef>,
    /// What the code refers to.
    pub(super) symbols: Symbols,
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
        machine: &'a Target,
    ) -> Emitter<'a> {
        let entry = b.create_block();
        b.append_block_params_for_function_params(entry);
        b.switch_to_block(entry);
        let ctx = b.block_params(entry)[0];
        let warp = Warp::new(&mut b, plan.nodes.len());
        warp.set(&mut b, ctx);
        let nodes: Vec<ClifBlock> = plan
            .nodes
            .iter()
            .map(|_| {
                let block = b.create_block();
                b.append_block_param(block, types::I32);
                block
            })
            .collect();
        let (enter, dispatch) = (b.create_block(), b.create_block());
        let fault = b.create_block();
        b.set_cold_block(fault);
        let fault_slots = [types::I32, types::I64].map(|ty| slot(&mut b, ty));
        Emitter {
            b,
            kernel,
            plan,
            machine,
            ctx,
            warp,
            mask: ctx,
            nodes,
            enter,
            dispatch,
            fault,
            fault_slots,
            current: 0,
            checked: Vec::new(),
            uniform: HashMap::new(),
            assumed: HashMap::new(),
            predicates: HashMap::new(),
            signatures: HashMap::new(),
            symbols: Symbols::default(),
            unsupported: None,
        }
    }

    /// Writes everything. The builder is ready to be finalised afterwards.
    pub(super) fn function(&mut self) {
        self.enter();
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

    fn node(&mut self, number: u32) {
        let block = self.nodes[number as usize];
        self.switch_to(block);
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
            return self.redispatch();
        }
        if let Some(barrier) = node.behind {
            self.barrier_result(barrier);
        }
        for (place, step) in node.steps.iter().enumerate() {
            match step {
                Step::Once(inst) => self.once(*inst),
                Step::Collective(inst) => self.collective(*inst, number, place == 0),
                Step::Sample(inst) => self.sample(*inst),
                Step::Lanes(insts) => self.lanes(insts),
                Step::Chain(chain) => self.chain(chain),
            }
        }
        self.terminator(node.block);
    }

    fn return_status(&mut self, status: u32) {
        let status = self.b.ins().iadd_imm_u(self.ctx, i64::from(status));
        self.b.ins().return_(&[status]);
    }

    /// Starts a block that warps come to from many places.
    fn switch_to(&mut self, block: ClifBlock) {
        self.b.switch_to_block(block);
        self.ctx = self.warp.get(&mut self.b);
    }

    fn fault_block(&mut self) {
        self.switch_to(self.fault);
        let [kind, address] = self.fault_slots;
        let kind = self.b.ins().stack_load(types::I64, types::I32, kind, 0);
        let address = self.b.ins().stack_load(types::I64, types::I64, address, 0);
        self.call(runtime::fault as *const (), &[self.ctx, kind, address], None);
        // It has not come back.
        self.b.ins().trap(TrapCode::unwrap_user(1));
    }

    /// Ends the grid if `is_bad`.
    pub(super) fn fault_if(&mut self, is_bad: Clif, kind: u32, address: Clif) {
        let (bad, go_on) = (self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(bad);
        self.b.ins().brif(is_bad, bad, &[], go_on, &[]);
        self.b.switch_to_block(bad);
        self.fault(kind, address);
        self.b.switch_to_block(go_on);
    }

    /// Ends the grid.
    pub(super) fn fault(&mut self, kind: u32, address: Clif) {
        let kind = self.b.ins().iconst(types::I32, i64::from(kind));
        for (value, slot) in [kind, address].into_iter().zip(self.fault_slots) {
            self.b.ins().stack_store(types::I64, value, slot, 0);
        }
        self.b.ins().jump(self.fault, &[]);
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

    /// Calls a runtime function; without a result the value means nothing.
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
        let function = self.symbols.function(self.b.func, function, signature);
        let call = self.b.ins().call(function, args);
        match result {
            Some(_) => self.b.inst_results(call)[0],
            None => self.ctx,
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
