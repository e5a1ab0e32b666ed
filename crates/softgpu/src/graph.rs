//! Graphs: work recorded once and submitted many times (CUDA Driver API, Graph Management).
//!
//! A launch submits the nodes one after the other, in an order that respects their dependencies, to
//! the stream of the launch: no node runs beside another, as no two kernels of a device do here
//! anyway.

mod body;
pub(crate) mod capture;
mod exec;
mod node;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sluice_cuda::CUgraph;

use crate::base::ids::NodeId;
use crate::base::status::{Result, Status};
use crate::base::table::Table;
use crate::work::event::{Event, Recorded};
use crate::work::op::Op;

pub(crate) use body::Body;
pub(crate) use exec::Exec;
pub(crate) use node::{Conditional, Inner, Node, Work};

use body::HOMES;

pub(crate) static GRAPHS: Table<Graph> = Table::new(5);
pub(crate) static EXECS: Table<Exec> = Table::new(6);

pub(crate) struct Graph {
    pub(crate) handle: usize,
    body: Mutex<Body>,
    /// Whether it lies in a node, and goes with that alone.
    pub(crate) is_inner: AtomicBool,
    /// The executable graph that was made of it last.
    last: Mutex<Weak<Exec>>,
}

impl Graph {
    /// A new empty graph with a handle.
    pub(crate) fn create() -> Arc<Self> {
        Self::with_body(Body::default())
    }

    pub(crate) fn with_body(mut body: Body) -> Arc<Self> {
        GRAPHS.insert(|handle| {
            body.move_in(handle);
            Self { handle, body: Mutex::new(body), is_inner: AtomicBool::new(false), last: Mutex::default() }
        })
    }

    /// A copy with nodes of its own.
    pub(crate) fn duplicate(&self) -> Result<Arc<Self>> {
        let copy = self.body().duplicate()?;
        Ok(Self::with_body(copy))
    }

    pub(crate) fn get(handle: CUgraph) -> Result<Arc<Self>> {
        GRAPHS.get(handle.0).ok_or(Status::INVALID_VALUE)
    }

    pub(crate) fn body(&self) -> MutexGuard<'_, Body> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The graph that has this node.
pub(crate) fn graph_of(node: NodeId) -> Result<Arc<Graph>> {
    let home = HOMES.read().unwrap_or_else(PoisonError::into_inner).get(&node).copied();
    home.and_then(|home| GRAPHS.get(home)).ok_or(Status::INVALID_VALUE)
}

/// The wait for what an event stands for now.
pub(crate) fn await_event(event: &Event) -> Result<Op> {
    match event.recorded() {
        Recorded::Never => Ok(Op::Empty),
        Recorded::Ticket(ticket) => Ok(Op::Await(ticket)),
        Recorded::Captured(..) => Err(Status::STREAM_CAPTURE_ISOLATION),
    }
}

/// Forgets the executable graphs of a context that is gone.
pub(crate) fn context_destroyed(context: usize) {
    EXECS.remove_all(|exec| exec.context == context);
}

#[cfg(test)]
mod tests;
