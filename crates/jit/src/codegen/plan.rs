//! What is decided about a kernel before code is written: nodes, steps, and where values live.
//!
//! A *node* is what the dispatcher can jump to: an IR block, or the part of one behind a barrier,
//! where parked lanes come back. Nodes are numbered in block order, and the ready node of the
//! lowest number runs first.
//!
//! A node's instructions are cut into *steps*: what is done once for the warp, and runs of
//! instructions that are done lane by lane (or chunk by chunk). Within such a run values stay in
//! registers. What is used beyond it has a slot in the frame: one element for a uniform or affine
//! value (that of lane 0), a mask for a predicate, else 32.

use std::collections::HashSet;

use sluice_ir::analysis::Shape;
use sluice_ir::{
    BarrierKind, BlockId, Definition, Effect, Inst, InstData, InstId, IntCond, Kernel, Ordering,
    RuntimeFunction, Space, Type, Value,
};

use super::Tids;
use super::chains::{self, Chain};
use super::chunks;
use super::shapes::shapes;
use crate::compile::CompileError;
use crate::context::{FrameLayout, LANES};
use crate::math;
use crate::object::CodeTraits;

pub(super) struct Plan {
    pub nodes: Vec<Node>,
    /// By block, the node that its predecessors jump to.
    pub entry: Vec<u32>,
    shapes: Vec<Shape>,
    /// By value, the distance between neighbouring lanes of a quad where it is always the same.
    quad_strides: Vec<Option<i64>>,
    slots: Vec<Option<u32>>,
    /// Whether a value is used outside of the step that defines it.
    escapes: Vec<bool>,
    pub frame: FrameLayout,
    /// Lanes of a warp, a multiple of 8 up to 32.
    pub lanes: usize,
    pub lane_tids: bool,
    pub rotates: bool,
    /// Whether exits matter to other threads: barriers, or lanes that wait for each other.
    pub has_sync: bool,
    /// Whether lanes of a warp can ever be at different nodes.
    pub can_split: bool,
    /// Arrays of 32 words for operands and results of collective instructions.
    pub scratch: u32,
    /// How many arrays the scratch has, a multiple of four.
    pub scratch_arrays: u32,
}

pub(super) struct Node {
    pub block: BlockId,
    pub steps: Vec<Step>,
    /// Parks its lanes at this barrier instead of running steps; they come back at the next node.
    pub barrier: Option<InstId>,
    /// The barrier behind which this node starts.
    pub behind: Option<InstId>,
    /// Whether the block's terminator is this node's.
    pub is_last: bool,
    /// Whether quads of which some lanes are active are done on vectors.
    pub blends: bool,
}

#[derive(Debug)]
pub(super) enum Step {
    /// Done once for the warp.
    Once(InstId),
    /// Looks across lanes.
    Collective(InstId),
    /// A texture instruction: one call for all lanes.
    Sample(InstId),
    /// Done for each active lane.
    Lanes(Vec<InstId>),
    /// Multiply-adds that are one call for a whole warp.
    Chain(Box<Chain>),
}

impl Plan {
    pub(super) fn new(kernel: &Kernel, tids: Tids, lanes: usize) -> Result<Plan, CompileError> {
        let rotates = has_spin_loop(kernel);
        let (shapes, quad_strides) = shapes(kernel, tids, rotates);
        let (mut nodes, entry) = nodes(kernel, &shapes);
        if nodes.len() > FrameLayout::BLOCKS_MAX as usize {
            let (kernel, blocks, max) = (kernel.name.clone(), nodes.len(), FrameLayout::BLOCKS_MAX);
            return Err(CompileError::TooManyBlocks { kernel, blocks, max });
        }
        if math::fma_tile(Type::F32, lanes).is_some() {
            let uses = chains::count_uses(kernel);
            for node in &mut nodes {
                node.steps = chains::split_off(kernel, &shapes, &uses, std::mem::take(&mut node.steps));
            }
        }
        find_blending(kernel, &mut nodes, &entry);
        let has_sync = kernel.insts.iter().any(|data| data.inst.is_collective());
        let can_split = has_sync
            || kernel.blocks.iter().any(|block| {
                block.terminator.condition().is_some_and(|value| shapes[value.index()] != Shape::Uniform)
            });
        let frame = FrameLayout::new(nodes.len() as u32);
        let mut plan = Plan {
            nodes,
            entry,
            shapes,
            quad_strides,
            slots: vec![None; kernel.values.len()],
            escapes: vec![false; kernel.values.len()],
            scratch: frame.slots,
            scratch_arrays: scratch_arrays(kernel),
            frame,
            lanes,
            lane_tids: tids == Tids::Any,
            rotates,
            has_sync,
            can_split,
        };
        // Behind the arrays, the place of each register of a product of matrices.
        plan.frame.size += plan.scratch_arrays * (4 * LANES as u32) + 4 * plan.scratch_arrays;
        plan.place_values(kernel)?;
        Ok(plan)
    }

    pub(super) fn traits(&self) -> CodeTraits {
        let Plan { frame, lane_tids, rotates, has_sync, .. } = *self;
        CodeTraits { frame, lane_tids, rotates, has_sync, goes_on: self.goes_on(), lanes: self.lanes as u32 }
    }

    /// Warps that do not wait for each other and whose indices are easily stepped run in one loop,
    /// over all blocks.
    pub(super) fn goes_on(&self) -> bool {
        !self.has_sync && !self.lane_tids
    }

    pub(super) fn lane_compare(&self, kernel: &Kernel, id: InstId) -> Option<(IntCond, Value, Value)> {
        lane_compare(kernel, &self.shapes, id)
    }

    pub(super) fn shape(&self, value: Value) -> Shape {
        self.shapes[value.index()]
    }

    /// The distance between neighbouring lanes of a quad, where it is always the same.
    pub(super) fn quad_stride(&self, value: Value) -> Option<i64> {
        self.quad_strides[value.index()]
    }

    pub(super) fn is_varying(&self, value: Value) -> bool {
        self.shape(value) == Shape::Varying
    }

    /// Offset of a value's slot from the start of the warp's memory.
    pub(super) fn slot(&self, value: Value) -> Option<u32> {
        self.slots[value.index()]
    }

    /// Whether the value is used outside of the step that defines it.
    pub(super) fn escapes(&self, value: Value) -> bool {
        self.escapes[value.index()]
    }

    /// Gives slots to all values that are used in another step or node than they are defined in.
    fn place_values(&mut self, kernel: &Kernel) -> Result<(), CompileError> {
        const NOWHERE: (u32, u32) = (u32::MAX, 0);
        let mut home = vec![NOWHERE; kernel.values.len()];
        for (number, node) in self.nodes.iter().enumerate() {
            for (place, step) in node.steps.iter().enumerate() {
                for &inst in step.insts() {
                    for value in kernel.inst(inst).results() {
                        home[value.index()] = (number as u32, place as u32);
                    }
                }
            }
        }
        let mut crosses_nodes = vec![false; kernel.values.len()];
        let mut note = |value: Value, node: usize, place: usize, escapes: &mut [bool]| {
            let (home_node, home_place) = home[value.index()];
            crosses_nodes[value.index()] |= home_node != node as u32;
            escapes[value.index()] |= home_node != node as u32 || home_place != place as u32;
        };
        for (number, node) in self.nodes.iter().enumerate() {
            for (place, step) in node.steps.iter().enumerate() {
                for &inst in step.insts() {
                    kernel
                        .inst(inst)
                        .inst
                        .for_each_arg(|value| note(value, number, place, &mut self.escapes));
                }
            }
            if let Some(barrier) = node.barrier {
                kernel
                    .inst(barrier)
                    .inst
                    .for_each_arg(|value| note(value, number, usize::MAX, &mut self.escapes));
            }
            if node.is_last {
                let terminator = &kernel.block(node.block).terminator;
                terminator.for_each_arg(|value| note(value, number, usize::MAX, &mut self.escapes));
            }
        }
        let shared = self.loop_carried(kernel, &home);
        let shared_args: HashSet<Value> = shared.iter().map(|&(arg, _)| arg).collect();
        for (index, data) in kernel.values.iter().enumerate() {
            let value = Value::new(index);
            let is_param = matches!(data.definition, Definition::Param { .. });
            let is_const = kernel.constant(value).is_some();
            // Inside a node uniform values and predicates are in registers.
            let needs_slot = match self.is_varying(value) && data.ty != Type::I1 {
                true => self.escapes[index],
                false => crosses_nodes[index],
            };
            if is_param || (needs_slot && !is_const && !shared_args.contains(&value)) {
                self.slots[index] = Some(self.allocate(data.ty, self.is_varying(value)));
            }
        }
        for (arg, param) in shared {
            self.slots[arg.index()] = self.slots[param.index()];
            self.escapes[arg.index()] = true;
        }
        self.frame.size = self.frame.size.next_multiple_of(64);
        match self.frame.size < 1 << 24 {
            true => Ok(()),
            false => Err(CompileError::Unsupported {
                kernel: kernel.name.clone(),
                what: format!("{} bytes of state per warp", self.frame.size),
            }),
        }
    }

    /// Pairs of a value that a back edge passes and the parameter that it is passed for, which can
    /// live in one place: the parameter is not used once the value is there.
    ///
    /// That holds when every use of the parameter is before the value's definition, in the same
    /// node or in one before it, and no inner loop around the definition comes back to such a use.
    fn loop_carried(&self, kernel: &Kernel, home: &[(u32, u32)]) -> Vec<(Value, Value)> {
        let mut back_edges = Vec::new();
        for (number, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.is_last) {
            for target in kernel.block(node.block).terminator.targets() {
                let to = self.entry[target.block.index()];
                if to <= number as u32 {
                    back_edges.push((number as u32, to, target));
                }
            }
        }
        if back_edges.is_empty() {
            return Vec::new();
        }
        let places = Places::new(kernel, &self.nodes);
        let mut pairs: Vec<(Value, Value)> = Vec::new();
        let (mut args, mut params) = (HashSet::new(), HashSet::new());
        for &(_, header, target) in &back_edges {
            for (&param, &arg) in kernel.block(target.block).params.iter().zip(&target.args) {
                let (node, _) = home[arg.index()];
                let fits = kernel.ty(arg) != Type::I1
                    && self.is_varying(arg) == self.is_varying(param)
                    && node != u32::MAX
                    && kernel.constant(arg).is_none()
                    && places.is_used_before(param, arg)
                    && !args.contains(&arg)
                    && !params.contains(&param)
                    && !back_edges.iter().any(|&(from, to, _)| header < to && to <= node && node <= from);
                if fits {
                    args.insert(arg);
                    params.insert(param);
                    pairs.push((arg, param));
                }
            }
        }
        pairs
    }

    fn allocate(&mut self, ty: Type, is_varying: bool) -> u32 {
        let (bytes, align) = match (is_varying, ty) {
            (false, _) => (8, 8),
            (true, Type::I1) => (4, 4),
            (true, ty) => (ty.bytes() * self.lanes as u32, 16),
        };
        let slot = self.frame.size.next_multiple_of(align);
        self.frame.size = slot + bytes;
        slot
    }
}

/// Where values are defined and last used: the node, and a number that grows within it.
struct Places {
    definition: Vec<(u32, u32)>,
    last_use: Vec<(u32, u32)>,
}

impl Places {
    fn new(kernel: &Kernel, nodes: &[Node]) -> Places {
        let start = vec![(0, 0); kernel.values.len()];
        let mut places = Places { definition: start.clone(), last_use: start };
        for (number, node) in (0..).zip(nodes) {
            let insts = node.steps.iter().flat_map(Step::insts);
            for (place, &id) in (1..).zip(insts) {
                let data = kernel.inst(id);
                data.inst.for_each_arg(|value| places.last_use[value.index()] = (number, place));
                for value in data.results() {
                    places.definition[value.index()] = (number, place);
                }
            }
            let mut at_end = |value: Value| places.last_use[value.index()] = (number, u32::MAX);
            if let Some(barrier) = node.barrier {
                kernel.inst(barrier).inst.for_each_arg(&mut at_end);
            }
            if node.is_last {
                kernel.block(node.block).terminator.for_each_arg(&mut at_end);
            }
        }
        places
    }

    /// Whether all uses of `param` are before the definition of `arg`, or what defines it.
    fn is_used_before(&self, param: Value, arg: Value) -> bool {
        self.last_use[param.index()] <= self.definition[arg.index()]
    }
}

impl Step {
    pub(super) fn insts(&self) -> &[InstId] {
        match self {
            Step::Once(inst) | Step::Collective(inst) | Step::Sample(inst) => std::slice::from_ref(inst),
            Step::Lanes(insts) => insts,
            Step::Chain(chain) => &chain.insts,
        }
    }
}

fn nodes(kernel: &Kernel, shapes: &[Shape]) -> (Vec<Node>, Vec<u32>) {
    let mut nodes = Vec::with_capacity(kernel.blocks.len());
    let mut entry = Vec::with_capacity(kernel.blocks.len());
    for id in kernel.block_ids() {
        entry.push(nodes.len() as u32);
        let block = kernel.block(id);
        let mut insts = &block.insts[..];
        let mut behind = None;
        if let Some((&first, rest)) = insts.split_first()
            && stops(&kernel.inst(first).inst)
        {
            nodes.push(Node {
                block: id,
                steps: vec![],
                barrier: Some(first),
                behind: None,
                is_last: false,
                blends: false,
            });
            insts = rest;
            behind = Some(first);
        }
        let steps = steps(kernel, shapes, insts);
        nodes.push(Node { block: id, steps, barrier: None, behind, is_last: true, blends: false });
    }
    (nodes, entry)
}

/// Finds the innermost loops in which all instructions are free on vectors. Elsewhere lanes take
/// turns in quads that are not whole: a vector that is read where single lanes were just written
/// would wait for them to come to memory.
fn find_blending(kernel: &Kernel, nodes: &mut [Node], entry: &[u32]) {
    let is_free = |node: &Node| {
        node.barrier.is_none()
            && node.steps.iter().all(|step| match step {
                Step::Once(_) => true,
                Step::Lanes(insts) => insts.iter().all(|&id| chunks::is_free(kernel, id)),
                Step::Collective(_) | Step::Sample(_) | Step::Chain(_) => false,
            })
    };
    let mut loops = Vec::new();
    for (number, node) in nodes.iter().enumerate().filter(|(_, node)| node.is_last) {
        let targets = kernel.block(node.block).terminator.targets();
        let headers = targets.map(|target| entry[target.block.index()] as usize);
        loops.extend(headers.filter(|&header| header <= number).map(|header| header..=number));
    }
    for number in 0..nodes.len() {
        let around = loops.iter().filter(|nodes| nodes.contains(&number));
        let innermost = around.min_by_key(|nodes| nodes.end() - nodes.start());
        nodes[number].blends = innermost.is_some_and(|around| nodes[around.clone()].iter().all(is_free));
    }
}

/// How many arrays of 32 words instructions need at most for operands and results without a slot.
fn scratch_arrays(kernel: &Kernel) -> u32 {
    let registers = kernel.insts.iter().map(|data| match &data.inst {
        Inst::MatrixMultiply { form, args, .. } => args.len() + form.sums(),
        _ => 0,
    });
    // Even, so that what follows is aligned to two words.
    (registers.max().unwrap_or(0) as u32).max(4).next_multiple_of(4)
}

/// Whether an instruction is a barrier at which lanes wait.
fn stops(inst: &Inst) -> bool {
    match inst {
        Inst::Barrier { kind, .. } => *kind != BarrierKind::Arrive,
        Inst::ClusterBarrier { waits } => *waits,
        _ => false,
    }
}

fn steps(kernel: &Kernel, shapes: &[Shape], insts: &[InstId]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lanes = Vec::new();
    // Whether `lanes` writes, and whether it has an ordered access.
    let (mut writes, mut ordered, mut accesses) = (false, false, false);
    for &id in insts {
        let inst = &kernel.inst(id).inst;
        if inst.is_collective() && !matches!(inst, Inst::Barrier { .. } | Inst::ClusterBarrier { .. }) {
            flush(&mut steps, &mut lanes);
            steps.push(Step::Collective(id));
            continue;
        }
        if matches!(inst, Inst::Sample { .. }) {
            flush(&mut steps, &mut lanes);
            (writes, ordered, accesses) = (false, false, false);
            steps.push(Step::Sample(id));
            continue;
        }
        if is_once(kernel, shapes, id) {
            let stays_behind = match inst.effect() {
                Effect::Pure => false,
                Effect::Reads => writes,
                Effect::Writes => true,
            };
            if stays_behind {
                flush(&mut steps, &mut lanes);
                (writes, ordered, accesses) = (false, false, false);
            }
            steps.push(Step::Once(id));
            continue;
        }
        // Lanes take ordered accesses in step, as programs from before independent thread
        // scheduling expect.
        let is_ordered = is_ordered_access(inst);
        let is_access = inst.effect() != Effect::Pure;
        if (is_ordered && accesses) || (is_access && ordered) {
            flush(&mut steps, &mut lanes);
            (writes, ordered, accesses) = (false, false, false);
        }
        writes |= inst.effect() == Effect::Writes;
        ordered |= is_ordered;
        accesses |= is_access;
        lanes.push(id);
    }
    flush(&mut steps, &mut lanes);
    steps
}

fn flush(steps: &mut Vec<Step>, lanes: &mut Vec<InstId>) {
    if !lanes.is_empty() {
        steps.push(Step::Lanes(std::mem::take(lanes)));
    }
}

/// Whether one execution stands for all lanes.
fn is_once(kernel: &Kernel, shapes: &[Shape], id: InstId) -> bool {
    let data = kernel.inst(id);
    let are_results_known = data.results().all(|value| shapes[value.index()] != Shape::Varying);
    let mut are_args_uniform = true;
    data.inst.for_each_arg(|value| are_args_uniform &= shapes[value.index()] == Shape::Uniform);
    match data.inst {
        Inst::Fence { .. }
        | Inst::Nanosleep { .. }
        | Inst::Barrier { .. }
        | Inst::ClusterBarrier { .. }
        | Inst::CallRuntime { function: RuntimeFunction::CountThreads, .. } => true,
        // Each lane has local memory of its own.
        Inst::Store { place, .. } | Inst::Load { place, .. } if place.space == Space::Local => false,
        Inst::Store { .. } | Inst::Load { .. } => are_results_known && are_args_uniform,
        Inst::Atomic { .. } | Inst::CallRuntime { .. } => false,
        _ => are_results_known || lane_compare(kernel, shapes, id).is_some(),
    }
}

/// A comparison of consecutive numbers in the lanes with one that is the same in all: what it asks
/// of the lanes, their numbers and the other one. Bits for all lanes come out at once.
pub(super) fn lane_compare(kernel: &Kernel, shapes: &[Shape], id: InstId) -> Option<(IntCond, Value, Value)> {
    let Inst::Compare { cond, ty: Type::I32 | Type::I64, args: [a, b] } = kernel.inst(id).inst else {
        return None;
    };
    match (shapes[a.index()], shapes[b.index()]) {
        (Shape::Affine { stride: 1 }, Shape::Uniform) => Some((cond, a, b)),
        (Shape::Uniform, Shape::Affine { stride: 1 }) => Some((swapped(cond), b, a)),
        _ => None,
    }
}

fn swapped(cond: IntCond) -> IntCond {
    match cond {
        IntCond::Eq | IntCond::Ne => cond,
        IntCond::LtS => IntCond::GtS,
        IntCond::LeS => IntCond::GeS,
        IntCond::GtS => IntCond::LtS,
        IntCond::GeS => IntCond::LeS,
        IntCond::LtU => IntCond::GtU,
        IntCond::LeU => IntCond::GeU,
        IntCond::GtU => IntCond::LtU,
        IntCond::GeU => IntCond::LeU,
    }
}

fn is_ordered_access(inst: &Inst) -> bool {
    match inst {
        Inst::Load { order, .. } | Inst::Store { order, .. } => {
            !matches!(order.ordering, Ordering::Weak | Ordering::Invariant)
        }
        _ => false,
    }
}

/// Whether lanes may wait in a loop for something that another lane of their warp does: a loop with
/// an ordered load or an atomic in it that gives what it found. Their groups must take turns then.
pub(crate) fn has_spin_loop(kernel: &Kernel) -> bool {
    let is_waited_for = |block: usize| {
        kernel.blocks[block].insts.iter().any(|&id| {
            let InstData { inst, result_count, .. } = kernel.inst(id);
            (matches!(inst, Inst::Atomic { .. }) && *result_count > 0)
                || (matches!(inst, Inst::Load { .. }) && is_ordered_access(inst))
        })
    };
    kernel.blocks.iter().enumerate().any(|(from, block)| {
        block.terminator.targets().any(|target| {
            // A back edge; the loop's blocks are consecutive.
            target.block.index() <= from && (target.block.index()..=from).any(is_waited_for)
        })
    })
}
