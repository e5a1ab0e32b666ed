//! Graphs: work recorded once and submitted many times (CUDA Driver API, Graph Management).
//!
//! A launch submits the nodes one after the other, in an order that respects their dependencies, to the stream of
//! the launch: no node runs beside another, as no two kernels of a device do here anyway.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::{CUgraph, CUgraphExec, CUgraphNodeType};

use crate::event::{Event, Recorded};
use crate::op::Op;
use crate::status::{Result, Status};
use crate::stream::Target;
use crate::table::Table;

pub(crate) static GRAPHS: Table<Graph> = Table::new(5);
pub(crate) static EXECS: Table<Exec> = Table::new(6);

/// A node's handle; unique in the process and never used again, so a node is known in clones and executable graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId(pub(crate) usize);

pub(crate) struct Graph {
    pub(crate) handle: usize,
    body: Mutex<Body>,
}

/// The nodes of a graph, by id: a captured node comes after those it depends on.
#[derive(Clone, Default)]
pub(crate) struct Body {
    pub(crate) nodes: BTreeMap<NodeId, Node>,
}

#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) kind: CUgraphNodeType,
    pub(crate) work: Work,
    pub(crate) dependencies: Vec<NodeId>,
}

/// What a node does.
#[derive(Clone)]
pub(crate) enum Work {
    One(Op),
    /// A graph within the graph.
    Child(Body),
}

/// An executable graph: its nodes' work in an order in which they can be submitted.
pub(crate) struct Exec {
    pub(crate) handle: usize,
    /// Handle of the context that it was instantiated in.
    context: usize,
    steps: Mutex<Vec<(NodeId, Op)>>,
}

impl Node {
    pub(crate) fn new(op: Op, dependencies: Vec<NodeId>) -> Self {
        let kind = match &op {
            Op::Launch(_) => CUgraphNodeType::KERNEL,
            Op::Copy(_) => CUgraphNodeType::MEMCPY,
            Op::Fill(_) => CUgraphNodeType::MEMSET,
            Op::HostCall(_) | Op::Callback(_) => CUgraphNodeType::HOST,
            Op::Record(_) | Op::RecordEvent(_) => CUgraphNodeType::EVENT_RECORD,
            Op::Await(_) | Op::AwaitEvent(_) => CUgraphNodeType::WAIT_EVENT,
            Op::Free(_) => CUgraphNodeType::MEM_FREE,
            Op::WriteValue(_) | Op::AwaitValue(..) => CUgraphNodeType::BATCH_MEM_OP,
            Op::Empty => CUgraphNodeType::EMPTY,
        };
        Self { kind, work: Work::One(op), dependencies }
    }

    pub(crate) fn child(body: Body, dependencies: Vec<NodeId>) -> Self {
        Self { kind: CUgraphNodeType::GRAPH, work: Work::Child(body), dependencies }
    }
}

impl Body {
    pub(crate) fn add(&mut self, node: Node) -> NodeId {
        static MINTED: AtomicUsize = AtomicUsize::new(1);
        // Handles of their own kind, beside those of the tables.
        let id = NodeId(7 << 32 | MINTED.fetch_add(1, Ordering::Relaxed) << 4);
        self.nodes.insert(id, node);
        id
    }

    /// `last` and everything before it.
    pub(crate) fn ancestors(&self, last: &[NodeId]) -> BTreeSet<NodeId> {
        let mut found = BTreeSet::new();
        let mut open = last.to_vec();
        while let Some(id) = open.pop() {
            if found.insert(id)
                && let Some(node) = self.nodes.get(&id)
            {
                open.extend(&node.dependencies);
            }
        }
        found
    }

    /// Adds dependencies between nodes that exist; a pair that closes a circle is found at instantiation.
    pub(crate) fn connect(&mut self, from: NodeId, to: NodeId) -> Result<()> {
        if from == to || !self.nodes.contains_key(&from) {
            return Err(Status::INVALID_VALUE);
        }
        let node = self.nodes.get_mut(&to).ok_or(Status::INVALID_VALUE)?;
        if node.dependencies.contains(&from) {
            return Err(Status::INVALID_VALUE);
        }
        node.dependencies.push(from);
        Ok(())
    }

    /// Appends the work of all nodes to `steps`, dependencies first. A circle has no such order.
    fn flatten(&self, steps: &mut Vec<(NodeId, Op)>) -> Result<()> {
        let mut waits: BTreeMap<NodeId, usize> =
            self.nodes.iter().map(|(&id, n)| (id, n.dependencies.len())).collect();
        let mut ready: BTreeSet<NodeId> =
            waits.iter().filter(|&(_, &count)| count == 0).map(|(&id, _)| id).collect();
        let mut followers: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
        for (&id, node) in &self.nodes {
            for &dependency in &node.dependencies {
                followers.entry(dependency).or_default().push(id);
            }
        }
        let mut done = 0;
        while let Some(id) = ready.pop_first() {
            done += 1;
            match &self.nodes[&id].work {
                Work::One(op) => steps.push((id, op.clone())),
                Work::Child(body) => body.flatten(steps)?,
            }
            for follower in followers.remove(&id).into_iter().flatten() {
                let count = waits.get_mut(&follower).ok_or(Status::INVALID_VALUE)?;
                *count -= 1;
                if *count == 0 {
                    ready.insert(follower);
                }
            }
        }
        if done == self.nodes.len() { Ok(()) } else { Err(Status::INVALID_VALUE) }
    }
}

impl Graph {
    /// A new empty graph with a handle.
    pub(crate) fn create() -> Arc<Self> {
        Self::with_body(Body::default())
    }

    pub(crate) fn with_body(body: Body) -> Arc<Self> {
        GRAPHS.insert(|handle| Self { handle, body: Mutex::new(body) })
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
    let graphs = GRAPHS.all();
    graphs.into_iter().find(|graph| graph.body().nodes.contains_key(&node)).ok_or(Status::INVALID_VALUE)
}

impl Exec {
    pub(crate) fn instantiate(graph: &Graph, context: usize) -> Result<Arc<Self>> {
        let mut steps = Vec::new();
        graph.body().flatten(&mut steps)?;
        Ok(EXECS.insert(|handle| Self { handle, context, steps: Mutex::new(steps) }))
    }

    pub(crate) fn get(handle: CUgraphExec) -> Result<Arc<Self>> {
        EXECS.get(handle.0).ok_or(Status::INVALID_VALUE)
    }

    fn steps(&self) -> MutexGuard<'_, Vec<(NodeId, Op)>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the work of one node, for launches from now on; it must stay of the same kind.
    pub(crate) fn replace(&self, node: NodeId, op: Op) -> Result<()> {
        let mut steps = self.steps();
        let (_, old) = steps.iter_mut().find(|(id, _)| *id == node).ok_or(Status::INVALID_VALUE)?;
        if std::mem::discriminant(old) != std::mem::discriminant(&op) {
            return Err(Status::INVALID_VALUE);
        }
        *old = op;
        Ok(())
    }

    /// Takes over the work of a graph with the same nodes in the same order (`cuGraphExecUpdate`).
    pub(crate) fn update(&self, graph: &Graph) -> Result<()> {
        let mut new = Vec::new();
        graph.body().flatten(&mut new)?;
        let mut steps = self.steps();
        let kinds_match = |((_, old), (_, new)): (&(NodeId, Op), &(NodeId, Op))| {
            std::mem::discriminant(old) == std::mem::discriminant(new)
        };
        if steps.len() != new.len() || !steps.iter().zip(&new).all(kinds_match) {
            return Err(Status::GRAPH_EXEC_UPDATE_FAILURE);
        }
        for ((_, old), (_, new)) in steps.iter_mut().zip(new) {
            *old = new;
        }
        Ok(())
    }

    /// Submits all nodes.
    pub(crate) fn launch(&self, target: &Target) -> Result<()> {
        for (_, op) in self.steps().iter() {
            target.submit(at_launch(op)?)?;
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
mod tests {
    use super::*;

    #[test]
    fn nodes_come_after_those_they_depend_on() {
        let mut body = Body::default();
        let a = body.add(Node::new(Op::Empty, vec![]));
        let b = body.add(Node::new(Op::Empty, vec![]));
        let c = body.add(Node::new(Op::Empty, vec![a]));
        body.connect(c, b).expect("both exist");
        let mut steps = Vec::new();
        body.flatten(&mut steps).expect("no circle");
        assert_eq!(steps.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [a, c, b]);
    }

    #[test]
    fn a_circle_is_refused() {
        let mut body = Body::default();
        let a = body.add(Node::new(Op::Empty, vec![]));
        let b = body.add(Node::new(Op::Empty, vec![a]));
        body.connect(b, a).expect("both exist");
        assert_eq!(body.flatten(&mut Vec::new()), Err(Status::INVALID_VALUE));
    }
}
