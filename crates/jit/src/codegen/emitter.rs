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
    AbiParam, Block as ClifBlock, BlockArg, InstBuilder, MemFlagsData, Signature, TrapCode, Type as ClifType,
    Value as Clif, types,
};
use cranelift_frontend::{FunctionBuilder, Variable};
use sluice_ir::{Inst, Kernel, Type, Value};

use super::machine::Machine;
use super::memory::Extent;
use super::plan::{Plan, Step};
use crate::math::Tiles;
use crate::runtime;

pub(super) struct Emitter<'a> {
    pub b: FunctionBuilder<'a>,
    pub kernel: &'a Kernel,
    pub plan: &'a Plan,
    pub machine: &'a Machine,
    /// The memory of the current node's warp, from the variable.
    pub ctx: Clif,
    warp: Variable,
    /// The lanes that run the current node.
    pub mask: Clif,
    /// By node; each takes its lanes.
    nodes: Vec<ClifBlock>,
    enter: ClifBlock,
    dispatch: ClifBlock,
    fault: ClifBlock,
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
    /// Tiles of multiply-adds whose addresses the code has.
    pub(super) tiles: Tiles,
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
        let warp = b.declare_var(types::I64);
        b.def_var(warp, ctx);
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
        b.append_block_param(fault, types::I32);
        b.append_block_param(fault, types::I64);
        b.set_cold_block(fault);
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
            current: 0,
            checked: Vec::new(),
            uniform: HashMap::new(),
            assumed: HashMap::new(),
            predicates: HashMap::new(),
            signatures: HashMap::new(),
            tiles: Tiles::new(),
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
        self.ctx = self.b.use_var(self.warp);
    }

    fn fault_block(&mut self) {
        self.switch_to(self.fault);
        let [kind, address, ..] = *self.b.block_params(self.fault) else { unreachable!("two parameters") };
        self.call(runtime::fault as *const (), &[self.ctx, kind, address], None);
        // It has not come back.
        self.b.ins().trap(TrapCode::unwrap_user(1));
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
