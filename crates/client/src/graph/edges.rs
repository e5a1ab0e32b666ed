//! Nodes and edges of graphs in the arguments of calls.

use sluice_cuda::*;
use sluice_wire::GraphNodeId;

use crate::session::Session;
use crate::session::issue::{Issue, list};

/// # Safety
/// `nodes` is null or points to `count` handles.
pub(crate) unsafe fn node_ids(
    session: &Session,
    nodes: *const CUgraphNode,
    count: usize,
) -> Result<Vec<GraphNodeId>, CUresult> {
    // SAFETY: the same contract.
    let nodes = unsafe { list(nodes, count as u64)? };
    nodes.iter().map(|node| session.find(*node)).collect()
}

/// Edges as they travel, one word each.
pub(crate) fn edges_from_words(words: &[u64]) -> Vec<CUgraphEdgeData> {
    let edge = |word: &u64| {
        let [from_port, to_port, kind, ..] = word.to_le_bytes();
        CUgraphEdgeData { from_port, to_port, kind, reserved: [0; 5] }
    };
    words.iter().map(edge).collect()
}

/// Refuses edges that are more than a full dependency: their ports come with programmatic launches,
/// which graphs that are made by hand do not have here.
///
/// # Safety
/// `data` is null or points to `count` edges.
pub(crate) unsafe fn check_plain(data: *const CUgraphEdgeData, count: usize) -> Result<(), CUresult> {
    if data.is_null() {
        return Ok(());
    }
    // SAFETY: the same contract.
    let data = unsafe { list(data, count as u64)? };
    let plain = data.iter().all(|edge| *edge == CUgraphEdgeData::default());
    if plain { Ok(()) } else { Err(CUresult::NOT_SUPPORTED) }
}
