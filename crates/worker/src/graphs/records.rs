//! What a session knows of its graphs.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::{CUgraph, CUgraphNode, CUresult, CUstream};
use sluice_wire::{GraphId, GraphNodeId, NodeWork};

use super::conditions::Conditions;
use super::node_data::NodeData;
use super::references::References;
use super::weights::Weights;
use crate::memory::host_memory::HostMemory;

/// What the session knows of its graphs beyond the driver's handles.
pub(crate) struct Graphs {
    pub(super) state: Mutex<State>,
    pub(super) weights: Mutex<Weights>,
    /// Whether a stream captures.
    pub(super) is_capturing: AtomicBool,
    pub(crate) data: Arc<NodeData>,
    pub(crate) references: References,
}

#[derive(Default)]
pub(super) struct State {
    /// The client's numbers of nodes, by the driver's handle.
    pub(super) numbers: HashMap<usize, GraphNodeId>,
    /// The graph that a node is in.
    pub(super) homes: HashMap<usize, CUgraph>,
    /// Nodes and inner graphs that go with a graph, by the graph's handle.
    pub(super) families: HashMap<usize, Family>,
    /// The graph in one of whose nodes a graph is, by the inner one's handle.
    pub(super) outer: HashMap<usize, CUgraph>,
    /// What nodes do that the client has a part in.
    pub(super) works: HashMap<usize, NodeWork>,
    /// The program's graphs that streams capture into, by the driver's handles of these: each
    /// client thread has a stream of its own that all of them call the same.
    pub(super) growing: HashMap<usize, GraphId>,
    /// The driver's graphs of captures in which nodes have been named, by the stream's handle: of
    /// one that has failed the driver says no more.
    pub(super) captures: HashMap<usize, CUgraph>,
    /// Why captures whose graphs these are lack a command that was refused.
    pub(super) refused: HashMap<usize, CUresult>,
    pub(super) conditions: Conditions,
    pub(super) named: u64,
}

#[derive(Default)]
pub(super) struct Family {
    pub(super) nodes: Vec<CUgraphNode>,
    /// Graphs inside nodes, with their numbers if the client has asked for them.
    pub(super) inner: Vec<(CUgraph, Option<GraphId>)>,
}

impl Graphs {
    /// What they hold is of this account.
    pub(crate) fn new(memory: Arc<HostMemory>) -> Graphs {
        Graphs {
            state: Mutex::default(),
            weights: Mutex::new(Weights::new(Arc::clone(&memory))),
            is_capturing: AtomicBool::new(false),
            data: Arc::new(NodeData::new(memory)),
            references: References::default(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a node does, if the client has a part in it.
    pub(super) fn work(&self, node: CUgraphNode) -> Option<NodeWork> {
        self.lock().works.get(&node.0).cloned()
    }

    pub(super) fn home(&self, node: CUgraphNode) -> Option<CUgraph> {
        self.lock().homes.get(&node.0).copied()
    }

    /// Why the capture that had this graph, and has ended, is worth nothing though the driver does
    /// not say so.
    pub(super) fn take_refused(&self, graph: CUgraph) -> Result<(), CUresult> {
        self.lock().refused.remove(&graph.0).map_or(Ok(()), Err)
    }

    /// Whether any stream captures.
    pub(crate) fn is_capturing(&self) -> bool {
        self.is_capturing.load(Relaxed)
    }

    /// The graph of the capture in this stream, even if that has failed.
    pub(super) fn capture_of(&self, stream: CUstream) -> Option<CUgraph> {
        self.lock().captures.get(&stream.0).copied()
    }

    /// Whether a node of the graph, or of a graph inside it, is conditional: such a graph cannot be
    /// copied.
    pub(super) fn is_conditional(&self, graph: CUgraph) -> bool {
        let inner: Vec<CUgraph> = {
            let state = self.lock();
            let family = state.families.get(&graph.0);
            family.into_iter().flat_map(|family| family.inner.iter().map(|(inner, _)| *inner)).collect()
        };
        inner.into_iter().any(|inner| self.is_body(inner) || self.is_conditional(inner))
    }

    pub(super) fn is_body(&self, graph: CUgraph) -> bool {
        self.lock().conditions.is_body(graph)
    }

    pub(super) fn is_inner(&self, graph: CUgraph) -> bool {
        self.lock().outer.contains_key(&graph.0)
    }

    /// Notes a graph inside a node of another one, which will go with it.
    pub(super) fn note_inner(&self, home: CUgraph, inner: CUgraph) {
        let mut state = self.lock();
        if state.outer.insert(inner.0, home).is_none() {
            state.families.entry(home.0).or_default().inner.push((inner, None));
        }
    }
}
