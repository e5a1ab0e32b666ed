//! Launches of graphs.

use std::sync::{Arc, Mutex};

use crate::base::status::{Result, Status};
use crate::graph::{Exec, await_event};
use crate::submit::Target;
use crate::work::op::Op;
use crate::work::user_object::Kept;

impl Exec {
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

/// What a node's work is in one launch of its graph.
fn at_launch(op: &Op) -> Result<Op> {
    Ok(match op {
        Op::RecordEvent(event) => Op::Record(event.issue_ticket()),
        Op::AwaitEvent(event) => await_event(event)?,
        op => op.clone(),
    })
}
