//! Nodes, and what they do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluice_cuda::{CUgraph, CUgraphNodeType, CUlaunchAttributeValue};

use super::{GRAPHS, Graph};
use crate::base::ids::NodeId;
use crate::base::status::Result;
use crate::work::conditional::{Choice, Variable};
use crate::work::op::Op;

pub(crate) struct Node {
    pub(crate) kind: CUgraphNodeType,
    pub(crate) work: Work,
    pub(crate) dependencies: Vec<NodeId>,
    /// Attributes that a program has set, by their numbers: they are kept and have no effect here.
    pub(crate) attributes: BTreeMap<u32, CUlaunchAttributeValue>,
}

/// What a node does.
pub(crate) enum Work {
    One(Op),
    /// A graph within the graph.
    Child(Inner),
    /// Several, of which a variable chooses.
    Conditional(Conditional),
}

pub(crate) struct Conditional {
    pub(crate) variable: Arc<Variable>,
    pub(crate) choice: Choice,
    pub(crate) bodies: Vec<Inner>,
    /// Of the bodies, for the program, which looks here for as long as there is the node.
    pub(crate) handles: Box<[CUgraph]>,
}

/// A graph inside a node: it has a handle, which goes with the node.
pub(crate) struct Inner(pub(crate) Arc<Graph>);

impl Inner {
    pub(super) fn new(graph: Arc<Graph>) -> Inner {
        graph.is_inner.store(true, Ordering::Relaxed);
        Inner(graph)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        GRAPHS.remove(self.0.handle);
    }
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
            Op::Branch(_) => CUgraphNodeType::CONDITIONAL,
            // No capture takes the last.
            Op::Empty | Op::Assign(_) | Op::MapTiles(_) | Op::LetGo(_) => CUgraphNodeType::EMPTY,
        };
        Self::with(kind, Work::One(op), dependencies)
    }

    pub(crate) fn child(graph: &Graph, dependencies: Vec<NodeId>) -> Result<Self> {
        let work = Work::Child(Inner::new(graph.duplicate()?));
        Ok(Self::with(CUgraphNodeType::GRAPH, work, dependencies))
    }

    /// A node with this number of empty graphs inside.
    pub(crate) fn conditional(
        variable: Arc<Variable>,
        choice: Choice,
        bodies: u32,
        dependencies: Vec<NodeId>,
    ) -> Self {
        let bodies: Vec<Inner> = (0..bodies).map(|_| Inner::new(Graph::create())).collect();
        let handles = bodies.iter().map(|body| CUgraph(body.0.handle)).collect();
        let work = Work::Conditional(Conditional { variable, choice, bodies, handles });
        Self::with(CUgraphNodeType::CONDITIONAL, work, dependencies)
    }

    pub(super) fn with(kind: CUgraphNodeType, work: Work, dependencies: Vec<NodeId>) -> Self {
        Self { kind, work, dependencies, attributes: BTreeMap::new() }
    }
}
