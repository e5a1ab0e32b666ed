//! Steps: the work of a graph in an order in which it can be done, and conditional nodes, which
//! have steps inside.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::base::ids::NodeId;
use crate::base::status::Result;
use crate::context::Context;
use crate::device::driver;
use crate::work::conditional::{Choice, Variable};
use crate::work::op::Op;
use crate::work::user_object::UserObject;

/// What a launch does.
#[derive(Default)]
pub(crate) struct Steps {
    pub(crate) steps: Vec<Step>,
    /// What the conditional nodes among them decide by.
    pub(crate) variables: Vec<Arc<Variable>>,
    /// What has to live as long: the graph's objects and those of the graphs inside it.
    pub(crate) objects: Vec<Arc<UserObject>>,
}

pub(crate) struct Step {
    pub(crate) node: NodeId,
    pub(crate) op: Op,
    /// A node that is switched off does nothing (`cuGraphNodeSetEnabled`).
    pub(crate) is_enabled: bool,
    /// The child nodes that it is inside of, outermost first.
    pub(crate) inside: Vec<NodeId>,
}

impl Steps {
    /// What is not switched off, in its order.
    pub(crate) fn enabled(&self) -> impl Iterator<Item = &Op> {
        self.steps.iter().filter(|step| step.is_enabled).map(|step| &step.op)
    }

    pub(crate) fn has_branches(&self) -> bool {
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
    pub(crate) fn with<R>(&mut self, node: NodeId, look: &mut dyn FnMut(&mut Step) -> R) -> Option<R> {
        if let Some(step) = self.steps.iter_mut().find(|step| step.node == node) {
            return Some(look(step));
        }
        self.steps.iter().find_map(|step| match &step.op {
            Op::Branch(branches) => branches.bodies().find_map(|mut body| body.with(node, look)),
            _ => None,
        })
    }
}

pub(crate) fn same_kind(old: &Op, new: &Op) -> bool {
    std::mem::discriminant(old) == std::mem::discriminant(new)
}

/// A conditional node of an executable graph.
pub(crate) struct Branches {
    variable: Arc<Variable>,
    choice: Choice,
    bodies: Vec<Mutex<Steps>>,
}

impl Branches {
    pub(crate) fn new(variable: Arc<Variable>, choice: Choice, bodies: Vec<Steps>) -> Branches {
        Branches { variable, choice, bodies: bodies.into_iter().map(Mutex::new).collect() }
    }

    pub(crate) fn bodies(&self) -> impl Iterator<Item = MutexGuard<'_, Steps>> {
        self.bodies.iter().map(|body| body.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether another node could take its place (`cuGraphExecUpdate`).
    pub(crate) fn is_like(&self, other: &Branches) -> bool {
        let alike = || self.bodies().zip(other.bodies()).all(|(own, other)| own.is_like(&other));
        self.choice == other.choice && self.bodies.len() == other.bodies.len() && alike()
    }

    /// Runs what the value chooses. A loop ends with its value, and with the context's failure.
    pub(crate) fn run(&self, context: &Context) -> Result<()> {
        let runs_code = driver()?.machine.runs_code();
        while let Some(body) = self.choice.body(self.variable.value()).and_then(|at| self.bodies.get(at)) {
            let ops: Vec<Op> =
                body.lock().unwrap_or_else(PoisonError::into_inner).enabled().cloned().collect();
            context.device.control.wait_resumed();
            ops.iter().try_for_each(|op| op.run(context))?;
            // Where no kernel runs, none ends a loop.
            if self.choice != Choice::While || !runs_code {
                break;
            }
        }
        Ok(())
    }
}
