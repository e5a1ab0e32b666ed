//! Executable graphs: the nodes in the order in which they are launched.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::CUgraphExec;

use super::{Conditional, EXECS, Graph, Kept, NodeId, UserObject, await_event};
use crate::base::status::{Result, Status};
use crate::context::stream::Target;
use crate::work::conditional::{Branches, Variable};
use crate::work::op::Op;

/// An executable graph: its nodes' work in an order in which they can be submitted.
pub(crate) struct Exec {
    pub(crate) handle: usize,
    /// Handle of the context that it was instantiated in.
    pub(super) context: usize,
    pub(crate) flags: u64,
    pub(super) steps: Mutex<Steps>,
}

/// What a launch does.
#[derive(Default)]
pub(crate) struct Steps {
    pub(super) steps: Vec<Step>,
    /// What the conditional nodes among them decide by.
    pub(super) variables: Vec<Arc<Variable>>,
    /// What has to live as long: the graph's objects and those of the graphs inside it.
    pub(super) objects: Vec<Arc<UserObject>>,
}

pub(super) struct Step {
    pub(super) node: NodeId,
    pub(super) op: Op,
    /// A node that is switched off does nothing (`cuGraphNodeSetEnabled`).
    pub(super) is_enabled: bool,
    /// The child nodes that it is inside of, outermost first.
    pub(super) inside: Vec<NodeId>,
}

impl Exec {
    pub(crate) fn instantiate(graph: &Graph, context: usize, flags: u64) -> Result<Arc<Self>> {
        let mut steps = Steps::default();
        graph.body().flatten(&[], &mut steps)?;
        let mut last = graph.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_there = last.upgrade().is_some_and(|exec| EXECS.get(exec.handle).is_some());
        if steps.has_branches() && is_there {
            return Err(Status::NOT_SUPPORTED);
        }
        let exec = EXECS.insert(|handle| Self { handle, context, flags, steps: Mutex::new(steps) });
        *last = Arc::downgrade(&exec);
        Ok(exec)
    }

    pub(crate) fn get(handle: CUgraphExec) -> Result<Arc<Self>> {
        EXECS.get(handle.0).ok_or(Status::INVALID_VALUE)
    }

    pub(super) fn steps(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the work of one node, for launches from now on; it must stay of the same kind.
    pub(crate) fn replace(&self, node: NodeId, op: Op) -> Result<()> {
        let replaced = self.steps().with(node, &mut |step| {
            if std::mem::discriminant(&step.op) != std::mem::discriminant(&op) {
                return Err(Status::INVALID_VALUE);
            }
            step.op = op.clone();
            Ok(())
        });
        replaced.unwrap_or(Err(Status::INVALID_VALUE))
    }

    /// Replaces what a child node does by a graph of the same shape.
    pub(crate) fn replace_child(&self, node: NodeId, graph: &Graph) -> Result<()> {
        let mut new = Steps::default();
        graph.body().flatten(&[], &mut new)?;
        let mut steps = self.steps();
        let inside: Vec<usize> =
            (0..steps.steps.len()).filter(|&at| steps.steps[at].inside.contains(&node)).collect();
        if inside.is_empty() || inside.len() != new.steps.len() {
            return Err(Status::INVALID_VALUE);
        }
        let same = |(&at, new): (&usize, &Step)| same_kind(&steps.steps[at].op, &new.op);
        if !inside.iter().zip(&new.steps).all(same) {
            return Err(Status::INVALID_VALUE);
        }
        for (at, new) in inside.into_iter().zip(new.steps) {
            steps.steps[at].op = new.op;
        }
        steps.objects.extend(new.objects);
        Ok(())
    }

    /// Switches a node on or off, for launches from now on.
    pub(crate) fn enable(&self, node: NodeId, is_enabled: bool) -> Result<()> {
        self.steps().with(node, &mut |step| step.is_enabled = is_enabled).ok_or(Status::INVALID_VALUE)
    }

    pub(crate) fn is_enabled(&self, node: NodeId) -> Result<bool> {
        self.steps().with(node, &mut |step| step.is_enabled).ok_or(Status::INVALID_VALUE)
    }

    /// Takes over the work of a graph with the same nodes in the same order (`cuGraphExecUpdate`),
    /// and what that one keeps alive.
    pub(crate) fn update(&self, graph: &Graph) -> Result<()> {
        let mut new = Steps::default();
        graph.body().flatten(&[], &mut new)?;
        let mut steps = self.steps();
        if !steps.is_like(&new) {
            return Err(Status::GRAPH_EXEC_UPDATE_FAILURE);
        }
        for (old, new) in steps.steps.iter_mut().zip(new.steps) {
            old.op = new.op;
        }
        steps.variables = new.variables;
        let before = std::mem::replace(&mut steps.objects, new.objects);
        drop(steps);
        drop(before);
        Ok(())
    }

    /// Submits all nodes. A stream that captures gets them as they are: what they do at a launch
    /// they do at that of the graph that comes of it.
    pub(crate) fn launch(&self, target: &Target) -> Result<()> {
        let is_captured = target.stream.capture().is_some();
        let steps = self.steps();
        if is_captured && steps.has_branches() {
            return Err(Status::STREAM_CAPTURE_UNSUPPORTED);
        }
        for variable in &steps.variables {
            target.submit(Op::Assign(Arc::clone(variable)))?;
        }
        for op in steps.enabled() {
            target.submit(if is_captured { op.clone() } else { at_launch(op)? })?;
        }
        if !is_captured && !steps.objects.is_empty() {
            target.submit(Op::LetGo(Arc::new(Kept(Mutex::new(steps.objects.clone())))))?;
        }
        Ok(())
    }
}

impl Conditional {
    /// As it is in an executable graph, whose `around` gets what it has to keep.
    pub(super) fn flatten(&self, around: &mut Steps) -> Result<Branches> {
        let mut bodies = Vec::with_capacity(self.bodies.len());
        for body in &self.bodies {
            let mut steps = Steps::default();
            body.0.body().flatten(&[], &mut steps)?;
            if !steps.steps.iter().all(|step| may_be_conditional(&step.op)) {
                return Err(Status::NOT_SUPPORTED);
            }
            around.objects.append(&mut steps.objects);
            around.variables.append(&mut steps.variables);
            bodies.push(steps);
        }
        Ok(Branches::new(Arc::clone(&self.variable), self.choice, bodies))
    }
}

/// Kernels, copies, fills, empty nodes and conditional ones (CUDA Driver API,
/// `CUDA_CONDITIONAL_NODE_PARAMS`).
fn may_be_conditional(op: &Op) -> bool {
    matches!(op, Op::Empty | Op::Launch(_) | Op::Copy(_) | Op::Fill(_) | Op::Branch(_))
}

impl Steps {
    /// What is not switched off, in its order.
    pub(crate) fn enabled(&self) -> impl Iterator<Item = &Op> {
        self.steps.iter().filter(|step| step.is_enabled).map(|step| &step.op)
    }

    fn has_branches(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.op, Op::Branch(_)))
    }

    /// Whether other work could take its place.
    pub(crate) fn is_like(&self, other: &Steps) -> bool {
        let alike = |old: &Step, new: &Step| match (&old.op, &new.op) {
            (Op::Branch(old), Op::Branch(new)) => old.is_like(new),
            (old, new) => same_kind(old, new),
        };
        self.steps.len() == other.steps.len()
            && self.steps.iter().zip(&other.steps).all(|(old, new)| alike(old, new))
    }

    /// Has `look` see the step of a node, also inside conditional ones; `None` where there is none.
    pub(super) fn with<R>(&mut self, node: NodeId, look: &mut dyn FnMut(&mut Step) -> R) -> Option<R> {
        if let Some(step) = self.steps.iter_mut().find(|step| step.node == node) {
            return Some(look(step));
        }
        self.steps.iter().find_map(|step| match &step.op {
            Op::Branch(branches) => branches.bodies().find_map(|mut body| body.with(node, look)),
            _ => None,
        })
    }
}

fn same_kind(old: &Op, new: &Op) -> bool {
    std::mem::discriminant(old) == std::mem::discriminant(new)
}

/// What a node's work is in one launch of its graph.
fn at_launch(op: &Op) -> Result<Op> {
    Ok(match op {
        Op::RecordEvent(event) => Op::Record(event.issue_ticket()),
        Op::AwaitEvent(event) => await_event(event)?,
        op => op.clone(),
    })
}
