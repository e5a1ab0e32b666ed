//! How many nodes a session's graphs have. A graph inside a graph is a copy, so that a client could double a graph with
//! each command until the node is out of memory, or nest graphs until a stack is; CUDA knows no limit here.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{MutexGuard, PoisonError};

use sluice_cuda::{CUgraph, CUgraphNodeType, CUresult, CUstream, DriverTable};
use sluice_wire::{Command, Op, commands, decode};

use super::Graphs;
use super::structure::{driver_nodes, inner_graph};
use crate::execute::Execute;
use crate::session::Session;

/// Most nodes of all graphs and executable graphs of a session, those of graphs inside nodes among them.
const NODES_MAX: u64 = 1 << 20;
/// How deep graphs lie inside each other at most.
const DEPTH_MAX: u32 = 64;

/// A number of nodes, and how many graphs lie inside each other there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Weight {
    pub(super) nodes: u64,
    pub(super) depth: u32,
}

/// The account. An open capture is in no graph's weight before it ends.
#[derive(Debug, Default)]
pub(super) struct Weights {
    /// By the driver's handle of a graph or executable graph. Of a graph inside a node: what came to it since.
    of: HashMap<usize, Weight>,
    sum: u64,
    /// Streams in which captures have begun that have not ended.
    captures: HashSet<usize>,
    /// What commands may have added to graphs since there were none.
    captured: u64,
}

impl Weights {
    /// Whether so many nodes more are not too many.
    fn has_room(&self, nodes: u64) -> Result<(), CUresult> {
        let sum = self.sum.saturating_add(self.captured).saturating_add(nodes);
        if sum <= NODES_MAX { Ok(()) } else { Err(CUresult::OUT_OF_MEMORY) }
    }

    fn add(&mut self, home: usize, weight: Weight) {
        self.sum += weight.nodes;
        let of = self.of.entry(home).or_default();
        of.nodes += weight.nodes;
        of.depth = of.depth.max(weight.depth);
    }

    fn take(&mut self, home: usize, nodes: u64) {
        if let Some(of) = self.of.get_mut(&home) {
            let nodes = nodes.min(of.nodes);
            of.nodes -= nodes;
            self.sum -= nodes;
        }
    }

    fn forget(&mut self, home: usize) {
        self.sum -= self.of.remove(&home).unwrap_or_default().nodes;
    }
}

impl Graphs {
    fn weights(&self) -> MutexGuard<'_, Weights> {
        self.weights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses nodes that would be too many, or too deep inside each other when they lie in `home`.
    pub(super) fn check_room(&self, home: Option<CUgraph>, weight: Weight) -> Result<(), CUresult> {
        let level = home.map_or(0, |home| self.level(home));
        if level + weight.depth > DEPTH_MAX {
            return Err(CUresult::OUT_OF_MEMORY);
        }
        self.weights().has_room(weight.nodes)
    }

    /// A graph or executable graph has got these nodes.
    pub(super) fn add_weight(&self, home: usize, weight: Weight) {
        self.weights().add(home, weight);
    }

    pub(super) fn take_weight(&self, home: usize, nodes: u64) {
        self.weights().take(home, nodes);
    }

    /// A graph or executable graph has gone.
    pub(super) fn forget_weight(&self, home: usize) {
        self.weights().forget(home);
    }

    /// How many graphs a graph lies inside of.
    fn level(&self, graph: CUgraph) -> u32 {
        let state = self.lock();
        std::iter::successors(state.outer.get(&graph.0), |outer| state.outer.get(&outer.0)).count() as u32
    }

    /// Nodes of a graph, with those of the graphs inside it.
    pub(super) fn weight(&self, graph: CUgraph) -> Weight {
        let own = self.weights().of.get(&graph.0).copied().unwrap_or_default();
        let inner: Vec<CUgraph> = {
            let state = self.lock();
            let family = state.families.get(&graph.0);
            family.map(|family| family.inner.iter().map(|(inner, _)| *inner).collect()).unwrap_or_default()
        };
        inner.into_iter().map(|inner| self.weight(inner)).fold(own, |sum, inner| Weight {
            nodes: sum.nodes.saturating_add(inner.nodes),
            depth: sum.depth.max(inner.depth + 1),
        })
    }

    pub(crate) fn capture_begins(&self, stream: CUstream) {
        self.lock().captures.remove(&stream.0);
        let mut weights = self.weights();
        weights.captures.insert(stream.0);
        self.is_capturing.store(true, Relaxed);
    }

    /// The capture that began in this stream has ended. What it has filled has been weighed if it is still there.
    pub(crate) fn capture_ends(&self, stream: CUstream) {
        self.lock().captures.remove(&stream.0);
        let mut weights = self.weights();
        weights.captures.remove(&stream.0);
        if weights.captures.is_empty() {
            weights.captured = 0;
            self.is_capturing.store(false, Relaxed);
        }
    }

    /// Notes the nodes of a graph that a capture has just filled.
    pub(super) fn weigh_captured(&self, session: &Session, graph: CUgraph) {
        // The nodes are there: one that cannot be weighed counts for all.
        let full = Weight { nodes: NODES_MAX, depth: DEPTH_MAX };
        let weight = weigh(&session.table, graph).unwrap_or(full);
        let mut weights = self.weights();
        weights.forget(graph.0);
        weights.add(graph.0, weight);
    }

    /// Counts what a command may add to a capture while one is open. Which stream it is for does not matter: the account
    /// is a limit, and one for all.
    pub(crate) fn note_captured(&self, op: Op, payload: &[u8], session: &Session) -> Result<(), CUresult> {
        if !self.is_capturing.load(Relaxed) {
            return Ok(());
        }
        let launch = (op == commands::cuGraphLaunch::OP)
            .then(|| decode::<commands::cuGraphLaunch>(payload).ok())
            .flatten();
        let executable = launch.and_then(|launch| session.find(launch.hGraphExec).ok());
        let mut weights = self.weights();
        let nodes = executable.and_then(|executable| weights.of.get(&executable.0)).map_or(1, |w| w.nodes);
        weights.has_room(nodes)?;
        weights.captured += nodes;
        Ok(())
    }
}

/// The weight of a graph as the driver knows it, such as one that was captured.
pub(super) fn weigh(table: &DriverTable, graph: CUgraph) -> Result<Weight, CUresult> {
    weigh_within(table, graph, DEPTH_MAX)
}

fn weigh_within(table: &DriverTable, graph: CUgraph, depth_left: u32) -> Result<Weight, CUresult> {
    let kind_of = table.cuGraphNodeGetType.ok_or(CUresult::NOT_SUPPORTED)?;
    let nodes = driver_nodes(table, graph)?;
    let mut weight = Weight { nodes: nodes.len() as u64, depth: 0 };
    for node in nodes {
        let mut kind = CUgraphNodeType::EMPTY;
        // SAFETY: the node is live, and the driver writes to a local.
        unsafe { kind_of(node, &mut kind) }.ok()?;
        if kind == CUgraphNodeType::GRAPH {
            let depth_left = depth_left.checked_sub(1).ok_or(CUresult::OUT_OF_MEMORY)?;
            let inner = weigh_within(table, inner_graph(table, node)?, depth_left)?;
            weight.nodes = weight.nodes.saturating_add(inner.nodes);
            weight.depth = weight.depth.max(inner.depth + 1);
        }
    }
    Ok(weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_graphs_weigh_is_limited_together_and_given_back() {
        let graphs = Graphs::default();
        let nodes = |nodes| Weight { nodes, depth: 0 };
        graphs.add_weight(1, nodes(NODES_MAX / 2));
        graphs.add_weight(2, nodes(NODES_MAX / 2));
        assert_eq!(graphs.check_room(None, nodes(1)), Err(CUresult::OUT_OF_MEMORY));
        graphs.take_weight(1, 1);
        assert_eq!(graphs.check_room(None, nodes(1)), Ok(()));
        graphs.forget_weight(2);
        assert_eq!(graphs.check_room(None, nodes(NODES_MAX / 2 + 1)), Ok(()));
        assert_eq!(graphs.check_room(None, nodes(u64::MAX)), Err(CUresult::OUT_OF_MEMORY));
    }

    #[test]
    fn a_graph_weighs_with_what_is_inside_and_lies_only_so_deep() {
        let graphs = Graphs::default();
        let (outer, inner) = (CUgraph(1), CUgraph(2));
        graphs.add_weight(outer.0, Weight { nodes: 3, depth: 1 });
        graphs.note_inner(outer, inner);
        graphs.add_weight(inner.0, Weight { nodes: 4, depth: 2 });
        assert_eq!(graphs.weight(outer), Weight { nodes: 7, depth: 3 });
        let deep = |depth| Weight { nodes: 1, depth };
        assert_eq!(graphs.check_room(Some(inner), deep(DEPTH_MAX - 1)), Ok(()));
        assert_eq!(graphs.check_room(Some(inner), deep(DEPTH_MAX)), Err(CUresult::OUT_OF_MEMORY));
    }
}
