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

/// Refuses edges that cannot be full dependencies. A programmatic edge lets a kernel begin before
/// the one it depends on has ended, and promises nothing; here it waits for the end.
///
/// # Safety
/// `data` is null or points to `count` edges.
pub(crate) unsafe fn check_all(data: *const CUgraphEdgeData, count: usize) -> Result<(), CUresult> {
    if data.is_null() {
        return Ok(());
    }
    // SAFETY: the same contract.
    let data = unsafe { list(data, count as u64)? };
    data.iter().try_for_each(check)
}

fn check(edge: &CUgraphEdgeData) -> Result<(), CUresult> {
    if edge.to_port != 0 || edge.reserved != [0; 5] {
        return Err(CUresult::INVALID_VALUE);
    }
    match (edge.kind, edge.from_port) {
        (TYPE_DEFAULT, 0) | (TYPE_PROGRAMMATIC, PORT_PROGRAMMATIC | PORT_LAUNCH_ORDER) => Ok(()),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

/// `CU_GRAPH_DEPENDENCY_TYPE_DEFAULT` and `CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC`.
const TYPE_DEFAULT: u8 = 0;
const TYPE_PROGRAMMATIC: u8 = 1;

/// `CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC` and `CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER`, the ports
/// of a kernel that its programmatic edges leave from.
const PORT_PROGRAMMATIC: u8 = 1;
const PORT_LAUNCH_ORDER: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programmatic_edges_pass_and_unknown_ones_do_not() {
        let check = |kind: u8, from_port: u8, to_port: u8| {
            let edge = [CUgraphEdgeData { from_port, to_port, kind, ..Default::default() }];
            // SAFETY: one edge.
            unsafe { super::check_all(edge.as_ptr(), 1) }
        };
        for (kind, from_port) in [(0, 0), (1, 1), (1, 2)] {
            assert_eq!(check(kind, from_port, 0), Ok(()));
        }
        for (kind, from_port, to_port) in [(0, 1, 0), (1, 0, 0), (1, 3, 0), (2, 0, 0), (0, 0, 1)] {
            assert_eq!(check(kind, from_port, to_port), Err(CUresult::INVALID_VALUE));
        }
    }
}
