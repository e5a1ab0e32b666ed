//! Executable graphs: the nodes in the order in which they are launched.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::CUgraphExec;

use super::{Conditional, EXECS, Graph};
use crate::base::ids::NodeId;
use crate::base::status::{Result, Status};
use crate::work::op::Op;
use crate::work::steps::{Branches, Step, Steps, same_kind};

/// An executable graph: its nodes' work in an order in which they can be submitted.
pub(crate) struct Exec {
    pub(crate) handle: usize,
    /// Handle of the context that it was instantiated in.
    pub(super) context: usize,
    pub(crate) flags: u64,
    pub(super) steps: Mutex<Steps>,
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

    pub(crate) fn steps(&self) -> MutexGuard<'_, Steps> {
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
