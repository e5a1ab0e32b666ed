//! Graphs: which of the driver's nodes the client knows by which number, and how nodes hang
//! together.
//!
//! A node that the client adds has the client's number. The driver makes nodes by itself too, in
//! captures and clones: these are named here when the client first gets to see them. What the
//! driver cannot say of a node, because it runs in the client, is kept beside it
//! ([`Graphs::works`]); what such nodes do when they run is in [`across`].

mod across;
mod captures;
mod conditional;
mod conditions;
mod limits;
mod node_data;
pub(crate) mod records;
mod references;
mod structure;
mod user_objects;
mod weights;
mod work;

use sluice_cuda::*;
use sluice_wire::{GraphId, GraphNodeId, Id, NodePlace, NodeWork, StreamId, WORKER_NODES};

pub(crate) use across::user_object;
pub(crate) use conditional::create_handle;
pub(crate) use structure::*;
pub(crate) use user_objects::{check_count, graph_release, graph_retain, release, retain};
pub(crate) use work::{add, copy_ranges, get, set, set_in_executable};

use crate::schedule::streams;
use crate::session::Session;
use crate::session::execute::Execute;

impl Session {
    /// Whether a stream captures into this graph or one inside it, which has to stay for that.
    fn is_growing(&self, graph: CUgraph) -> bool {
        let growing: Vec<GraphId> = self.graphs.lock().growing.values().copied().collect();
        let growing: Vec<CUgraph> = growing.into_iter().filter_map(|graph| self.find(graph).ok()).collect();
        let state = self.graphs.lock();
        let around =
            |inner| std::iter::successors(Some(inner), |inner: &CUgraph| state.outer.get(&inner.0).copied());
        growing.into_iter().any(|grown| around(grown).any(|outer| outer == graph))
    }

    /// Enters a node of a graph under the client's number, with what it does if the client has a
    /// part in that.
    fn enter_node(
        &self,
        graph: CUgraph,
        node: CUgraphNode,
        number: GraphNodeId,
        work: Option<NodeWork>,
    ) -> Result<(), CUresult> {
        self.insert(number, node)?;
        let mut state = self.graphs.lock();
        state.numbers.insert(node.0, number);
        state.homes.insert(node.0, graph);
        state.families.entry(graph.0).or_default().nodes.push(node);
        if let Some(work) = work {
            state.works.insert(node.0, work);
        }
        Ok(())
    }

    /// The number of a node of a graph, which it gets now if it has none.
    fn name(&self, graph: CUgraph, node: CUgraphNode) -> Result<GraphNodeId, CUresult> {
        let number = {
            let mut state = self.graphs.lock();
            if let Some(number) = state.numbers.get(&node.0) {
                return Ok(*number);
            }
            state.named += 1;
            GraphNodeId::new(WORKER_NODES + state.named * 16)
        };
        self.enter_node(graph, node, number, None)?;
        Ok(number)
    }

    fn names(&self, graph: CUgraph, nodes: &[CUgraphNode]) -> Result<Vec<GraphNodeId>, CUresult> {
        nodes.iter().map(|node| self.name(graph, *node)).collect()
    }

    /// Forgets everything about a graph that is about to go or has gone, and about the graphs
    /// inside it.
    pub(crate) fn forget_graph(&self, graph: CUgraph) {
        let family = {
            let mut state = self.graphs.lock();
            state.outer.remove(&graph.0);
            state.conditions.forget_graph(graph.0);
            state.families.remove(&graph.0).unwrap_or_default()
        };
        self.graphs.forget_weight(graph.0);
        for node in family.nodes {
            self.forget_node(node);
        }
        for (inner, number) in family.inner {
            self.forget_inner(inner, number);
        }
    }

    fn forget_inner(&self, inner: CUgraph, number: Option<GraphId>) {
        if let Some(number) = number {
            self.graphs.references.forget_graph(number);
            let _ = self.remove(number);
        }
        self.forget_graph(inner);
    }

    fn forget_node(&self, node: CUgraphNode) {
        let number = {
            let mut state = self.graphs.lock();
            state.homes.remove(&node.0);
            state.works.remove(&node.0);
            state.numbers.remove(&node.0)
        };
        if let Some(number) = number {
            let _ = self.remove(number);
        }
    }

    /// Graph and nodes that a place stands for.
    fn place(&self, place: &NodePlace) -> Result<Insertion, CUresult> {
        match place {
            NodePlace::Graph(place) => {
                let dependencies =
                    place.dependencies.iter().map(|id| self.find(*id)).collect::<Result<_, _>>()?;
                Ok(Insertion { graph: self.find(place.graph)?, dependencies, stream: None })
            }
            NodePlace::Capture(stream) => {
                let (graph, dependencies, _) = self.captured(*stream)?.ok_or(CUresult::ILLEGAL_STATE)?;
                Ok(Insertion { graph, dependencies, stream: Some(self.find(*stream)?) })
            }
        }
    }

    /// The calling thread's command was refused: true if it was for a capture, which it spoils. One
    /// that was refused before its stream was looked up may have been for any.
    pub(crate) fn refuse_captured(&self, result: CUresult) -> bool {
        if !self.graphs.is_capturing() {
            return false;
        }
        let named = streams::named_now();
        let streams = if named.is_empty() { self.graphs.capturing() } else { named.clone() };
        // Where the driver has given the capture up, its end says so.
        let spoiled = streams.iter().any(|&stream| self.is_spoiled(stream));
        let captured = |stream| self.captured_by(stream).ok().flatten();
        let graphs: Vec<CUgraph> =
            streams.into_iter().filter_map(captured).map(|(graph, ..)| graph).collect();
        let mut state = self.graphs.lock();
        graphs.iter().for_each(|graph| _ = state.refused.entry(graph.0).or_insert(result));
        !named.is_empty() && (spoiled || !graphs.is_empty())
    }

    /// Whether the stream is in a capture that has failed.
    fn is_spoiled(&self, stream: CUstream) -> bool {
        let mut status = CUstreamCaptureStatus::NONE;
        // SAFETY: the stream is live, and the driver writes to a local.
        let known = self.table.cuStreamIsCapturing.map(|get| unsafe { get(stream, &mut status) });
        known.is_some_and(|known| known.is_success()) && status == CUstreamCaptureStatus::INVALIDATED
    }

    /// Graph, last nodes and their edges of the capture that a stream is in.
    fn captured(&self, stream: StreamId) -> Result<Option<Captured>, CUresult> {
        self.captured_by(self.find(stream)?)
    }

    fn captured_by(&self, stream: CUstream) -> Result<Option<Captured>, CUresult> {
        let (mut status, mut id, mut graph) = (CUstreamCaptureStatus::NONE, 0, CUgraph::NULL);
        let (mut nodes, mut edges, mut count) = (std::ptr::null(), std::ptr::null(), 0);
        // SAFETY: the stream is live, and the driver writes to locals.
        unsafe {
            match (self.table.cuStreamGetCaptureInfo_v3, self.table.cuStreamGetCaptureInfo_v2) {
                (Some(get), _) => {
                    get(stream, &mut status, &mut id, &mut graph, &mut nodes, &mut edges, &mut count)
                }
                (None, Some(get)) => get(stream, &mut status, &mut id, &mut graph, &mut nodes, &mut count),
                (None, None) => CUresult::NOT_SUPPORTED,
            }
        }
        .ok()?;
        if status != CUstreamCaptureStatus::ACTIVE {
            return Ok(None);
        }
        self.graphs.lock().captures.insert(stream.0, graph);
        // SAFETY: the driver's lists stay until the next call about this capture, and have `count`
        // items where they are not null.
        unsafe { Ok(Some((graph, driver_list(nodes, count).to_vec(), edge_words(edges, count)))) }
    }
}

/// Graph, last nodes, and the words of the edges that lead on from them.
type Captured = (CUgraph, Vec<CUgraphNode>, Vec<u64>);

/// Where a node is added.
struct Insertion {
    graph: CUgraph,
    dependencies: Vec<CUgraphNode>,
    /// The capturing stream that continues behind it.
    stream: Option<CUstream>,
}

impl Insertion {
    /// Makes what the stream records next come behind a new node.
    fn go_on(&self, table: &DriverTable, mut node: CUgraphNode) -> Result<(), CUresult> {
        /// `CU_STREAM_SET_CAPTURE_DEPENDENCIES`.
        const SET: u32 = 1;
        let Some(stream) = self.stream else { return Ok(()) };
        // SAFETY: the stream captures, and the node is one of the capture's graph.
        unsafe {
            match (table.cuStreamUpdateCaptureDependencies_v2, table.cuStreamUpdateCaptureDependencies) {
                (Some(update), _) => update(stream, &mut node, std::ptr::null(), 1, SET),
                (None, Some(update)) => update(stream, &mut node, 1, SET),
                (None, None) => CUresult::NOT_SUPPORTED,
            }
        }
        .ok()
    }
}

/// A list that the driver owns.
///
/// # Safety
/// `start` is null or has `count` items while the slice lives.
unsafe fn driver_list<'a, T>(start: *const T, count: usize) -> &'a [T] {
    if start.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: by this function's contract.
    unsafe { std::slice::from_raw_parts(start, count) }
}

/// Edges as they travel, one word each; plain ones where the driver says nothing.
///
/// # Safety
/// `edges` is null or has `count` items.
unsafe fn edge_words(edges: *const CUgraphEdgeData, count: usize) -> Vec<u64> {
    // SAFETY: by this function's contract.
    let said = unsafe { driver_list(edges, count) };
    (0..count).map(|i| said.get(i).map_or(0, edge_word)).collect()
}

fn edge_word(edge: &CUgraphEdgeData) -> u64 {
    u64::from_le_bytes([edge.from_port, edge.to_port, edge.kind, 0, 0, 0, 0, 0])
}
