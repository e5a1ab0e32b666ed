//! How many nodes a session's graphs have, and what these hold. A graph inside a graph is a copy,
//! so that a client could double a graph with each command until the node is out of memory, or nest
//! graphs until a stack is; CUDA knows no limit here.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{MutexGuard, PoisonError};

use sluice_cuda::{
    CUDA_KERNEL_NODE_PARAMS, CUgraph, CUgraphExec, CUgraphNode, CUgraphNodeType, CUresult, CUstream,
    CUstreamBatchMemOpParams, Fn,
};
use sluice_wire::{Command, Op, Target, commands, decode};

use super::records::Graphs;
use super::structure::{driver_nodes, inner_graph};
use super::weights::{NODES_MAX, Weight, Weights};
use super::work::OPERATIONS_MAX;
use crate::session::Session;
use crate::session::checks::PARAMETER_BYTES_MAX;
use crate::session::execute::Execute;

/// How deep graphs lie inside each other at most.
const DEPTH_MAX: u32 = 64;
/// Bytes of as many memory operations as a node may have.
pub(super) const OPERATIONS_BYTES: u64 = (OPERATIONS_MAX * size_of::<CUstreamBatchMemOpParams>()) as u64;

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
        self.weights().has_room(weight)
    }

    /// A graph or executable graph has got these nodes.
    pub(super) fn add_weight(&self, home: usize, weight: Weight) {
        self.weights().add(home, weight);
    }

    pub(super) fn take_weight(&self, home: usize, weight: Weight) {
        self.weights().take(home, weight);
    }

    /// A node of a graph holds this number of bytes, and held others before; `change` makes it so.
    pub(super) fn replace_bytes(
        &self,
        home: CUgraph,
        (before, after): (u64, u64),
        change: impl FnOnce() -> Result<(), CUresult>,
    ) -> Result<(), CUresult> {
        let more = Weight::bytes(after.saturating_sub(before));
        self.check_room(None, more)?;
        change()?;
        self.add_weight(home.0, more);
        self.take_weight(home.0, Weight::bytes(before.saturating_sub(after)));
        Ok(())
    }

    /// Replaces the bytes of a node of an executable graph, of which the driver does not say what
    /// it held.
    pub(super) fn change_bytes(
        &self,
        (executable, node): (CUgraphExec, CUgraphNode),
        bytes: u64,
        change: impl FnOnce() -> Result<(), CUresult>,
    ) -> Result<(), CUresult> {
        let growth = self.weights().growth(executable.0, node.0, bytes);
        self.check_room(None, Weight::bytes(growth))?;
        change()?;
        let mut weights = self.weights();
        weights.add(executable.0, Weight::bytes(growth));
        let known = weights.changed.entry(executable.0).or_default().entry(node.0).or_default();
        *known = bytes.max(*known);
        Ok(())
    }

    /// An executable graph comes to be as this one by `change`.
    pub(super) fn replace_all(
        &self,
        executable: CUgraphExec,
        graph: CUgraph,
        change: impl FnOnce() -> Result<(), CUresult>,
    ) -> Result<(), CUresult> {
        let after = self.weight(graph).bytes;
        let before = self.weights().of.get(&executable.0).map_or(0, |weight| weight.bytes);
        let more = Weight::bytes(after.saturating_sub(before));
        self.check_room(None, more)?;
        change()?;
        self.add_weight(executable.0, more);
        Ok(())
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
        inner.into_iter().map(|inner| self.weight(inner)).fold(own, Weight::around)
    }

    pub(crate) fn capture_begins(&self, stream: CUstream) {
        self.lock().captures.remove(&stream.0);
        let mut weights = self.weights();
        weights.captures.insert(stream.0);
        self.is_capturing.store(true, Relaxed);
    }

    /// The capture that began in this stream has ended. What it has filled has been weighed if it
    /// is still there.
    pub(crate) fn capture_ends(&self, stream: CUstream) {
        self.lock().captures.remove(&stream.0);
        let mut weights = self.weights();
        weights.captures.remove(&stream.0);
        if weights.captures.is_empty() {
            let captured = std::mem::take(&mut weights.captured);
            weights.memory.give_back(captured.bytes);
            self.is_capturing.store(false, Relaxed);
            drop(weights);
            self.lock().refused.clear();
        }
    }

    /// The streams in which captures began that have not ended.
    pub(super) fn capturing(&self) -> Vec<CUstream> {
        self.weights().captures.iter().map(|&stream| CUstream(stream)).collect()
    }

    /// Notes the nodes of a graph that a capture has just filled.
    pub(super) fn weigh_captured(&self, session: &Session, graph: CUgraph) {
        // The nodes are there: one that cannot be weighed counts for all.
        let full = Weight::of(NODES_MAX, DEPTH_MAX);
        let weight = weigh(session, graph).unwrap_or(full);
        let mut weights = self.weights();
        weights.forget(graph.0);
        weights.add(graph.0, weight);
    }

    /// Counts what a command may add to a capture while one is open. Which stream it is for does
    /// not matter: the account is a limit, and one for all.
    pub(crate) fn note_captured(&self, op: Op, payload: &[u8], session: &Session) -> Result<(), CUresult> {
        if !self.is_capturing.load(Relaxed) {
            return Ok(());
        }
        let launch = (op == commands::cuGraphLaunch::OP)
            .then(|| decode::<commands::cuGraphLaunch>(payload).ok())
            .flatten();
        let executable = launch.and_then(|launch| session.find(launch.hGraphExec).ok());
        let mut weights = self.weights();
        let launched = executable.and_then(|executable| weights.of.get(&executable.0)).copied();
        let parameters = if is_launch(op) { payload.len() as u64 } else { 0 };
        let weight = launched.unwrap_or(Weight::holding(parameters));
        weights.has_room(weight)?;
        weights.memory.add(weight.bytes);
        weights.captured = weights.captured.and(weight);
        Ok(())
    }
}

/// Whether a command's payload is parameters of a kernel, most of it.
fn is_launch(op: Op) -> bool {
    matches!(
        op.target(),
        Some(Target::Driver(Fn::cuLaunchKernel | Fn::cuLaunchKernelEx | Fn::cuLaunchCooperativeKernel))
    )
}

/// The weight of a graph as the driver knows it, such as one that was captured.
fn weigh(session: &Session, graph: CUgraph) -> Result<Weight, CUresult> {
    weigh_within(session, graph, DEPTH_MAX)
}

fn weigh_within(session: &Session, graph: CUgraph, depth_left: u32) -> Result<Weight, CUresult> {
    let nodes = driver_nodes(&session.table, graph)?;
    nodes
        .into_iter()
        .try_fold(Weight::default(), |sum, node| Ok(sum.and(weigh_node_within(session, node, depth_left)?)))
}

/// The weight of one node of a graph, with what is inside.
pub(super) fn weigh_node(session: &Session, node: CUgraphNode) -> Result<Weight, CUresult> {
    weigh_node_within(session, node, DEPTH_MAX)
}

fn weigh_node_within(session: &Session, node: CUgraphNode, depth_left: u32) -> Result<Weight, CUresult> {
    let table = &session.table;
    let kind_of = table.cuGraphNodeGetType.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut kind = CUgraphNodeType::EMPTY;
    // SAFETY: the node is live, and the driver writes to a local.
    unsafe { kind_of(node, &mut kind) }.ok()?;
    Ok(match kind {
        CUgraphNodeType::GRAPH => {
            let depth_left = depth_left.checked_sub(1).ok_or(CUresult::OUT_OF_MEMORY)?;
            let inner = inner_graph(table, node)?;
            Weight::of(1, 0).around(weigh_within(session, inner, depth_left)?)
        }
        CUgraphNodeType::KERNEL => Weight::holding(parameters(session, node)),
        CUgraphNodeType::BATCH_MEM_OP => Weight::holding(OPERATIONS_BYTES),
        _ => Weight::of(1, 0),
    })
}

/// Bytes of the parameters of a kernel in a graph. A driver that does not tell may have as many as
/// there can be.
fn parameters(session: &Session, node: CUgraphNode) -> u64 {
    let mut of = std::mem::MaybeUninit::<CUDA_KERNEL_NODE_PARAMS>::zeroed();
    // SAFETY: the node is live, and the driver fills a local, for which zeros are valid too.
    let function = session
        .table
        .cuGraphKernelNodeGetParams_v2
        .and_then(|get| unsafe { get(node, of.as_mut_ptr()).is_success().then(|| of.assume_init().func) });
    function.map_or(PARAMETER_BYTES_MAX, |function| session.modules.parameter_bytes(function)) as u64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::weights::NODE_BYTES;
    use super::*;
    use crate::memory::host_memory::tests::of;

    #[test]
    fn what_graphs_weigh_is_limited_together_and_given_back() {
        let graphs = Graphs::new(of(u64::MAX));
        let nodes = |nodes| Weight::of(nodes, 0);
        graphs.add_weight(1, nodes(NODES_MAX / 2));
        graphs.add_weight(2, nodes(NODES_MAX / 2));
        assert_eq!(graphs.check_room(None, nodes(1)), Err(CUresult::OUT_OF_MEMORY));
        graphs.take_weight(1, nodes(1));
        assert_eq!(graphs.check_room(None, nodes(1)), Ok(()));
        graphs.forget_weight(2);
        assert_eq!(graphs.check_room(None, nodes(NODES_MAX / 2 + 1)), Ok(()));
        assert_eq!(graphs.check_room(None, nodes(u64::MAX)), Err(CUresult::OUT_OF_MEMORY));
    }

    #[test]
    fn a_graph_weighs_with_what_is_inside_and_lies_only_so_deep() {
        let graphs = Graphs::new(of(u64::MAX));
        let (outer, inner) = (CUgraph(1), CUgraph(2));
        graphs.add_weight(outer.0, Weight::of(3, 1));
        graphs.note_inner(outer, inner);
        graphs.add_weight(inner.0, Weight::of(4, 2));
        assert_eq!(graphs.weight(outer), Weight::of(7, 3));
        let deep = |depth| Weight::of(1, depth);
        assert_eq!(graphs.check_room(Some(inner), deep(DEPTH_MAX - 1)), Ok(()));
        assert_eq!(graphs.check_room(Some(inner), deep(DEPTH_MAX)), Err(CUresult::OUT_OF_MEMORY));
    }

    #[test]
    fn what_nodes_hold_is_limited_with_all_else_and_given_back() {
        let memory = of(100 * NODE_BYTES);
        let graphs = Graphs::new(Arc::clone(&memory));
        let (graph, executable, node) = (CUgraph(1), CUgraphExec(2), CUgraphNode(3));
        let left = |bytes| memory.check_room(bytes) == Ok(()) && memory.check_room(bytes + 1).is_err();
        let no = || Err(CUresult::INVALID_VALUE);
        graphs.add_weight(graph.0, Weight::holding(9 * NODE_BYTES));
        assert!(left(90 * NODE_BYTES));
        // A node of a graph is known by what it held before,
        graphs.replace_bytes(graph, (NODE_BYTES, 11 * NODE_BYTES), || Ok(())).unwrap();
        assert!(left(80 * NODE_BYTES));
        assert_eq!(graphs.replace_bytes(graph, (0, NODE_BYTES), no), no());
        assert_eq!(
            graphs.replace_bytes(graph, (0, 81 * NODE_BYTES), || unreachable!("there is no room")),
            Err(CUresult::OUT_OF_MEMORY)
        );
        graphs.replace_bytes(graph, (11 * NODE_BYTES, NODE_BYTES), || Ok(())).unwrap();
        assert!(left(90 * NODE_BYTES));
        // and one of an executable graph by the most that it was given there.
        for (bytes, rest) in [(9, 80), (9, 80), (4, 80), (19, 70), (1, 70)] {
            graphs.change_bytes((executable, node), bytes * NODE_BYTES, || Ok(())).unwrap();
            assert!(left(rest * NODE_BYTES), "{bytes}");
        }
        graphs.replace_all(executable, graph, || Ok(())).unwrap();
        assert!(left(70 * NODE_BYTES), "it has room for what the graph holds");
        graphs.add_weight(graph.0, Weight::bytes(50 * NODE_BYTES));
        assert_eq!(graphs.replace_all(executable, graph, || Ok(())), Err(CUresult::OUT_OF_MEMORY));
        graphs.forget_weight(executable.0);
        assert!(left(40 * NODE_BYTES));
        drop(graphs);
        assert!(left(100 * NODE_BYTES));
    }
}
