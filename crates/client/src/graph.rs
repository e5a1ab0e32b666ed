//! Graphs: how they are made, cloned and instantiated, and how their nodes hang together. What
//! nodes do is in [`node`](crate::graph::node). What needs no more than ids is in the
//! generated stubs.
//!
//! # In this folder
//!
//! Graphs: their nodes ([`node`]), edges in arguments ([`edges`]), copies between the program and
//! the device ([`host_copy`]), memory that graphs allocate ([`allocation`]), and conditional nodes
//! ([`conditional`]).

pub(crate) mod allocation;
pub(crate) mod conditional;
pub(crate) mod dot;
pub(crate) mod edges;
pub(crate) mod host_copy;
pub(crate) mod node;

use std::ffi::c_char;

use sluice_cuda::*;
use sluice_wire::{GraphNodeId, Id, commands};

use crate::abi::out;
use crate::graph::edges::{check_all, edges_from_words};
use crate::session::issue::{Issue, wanted};
use crate::session::{self, Session};

fn handle(id: &GraphNodeId) -> CUgraphNode {
    GraphNodeId::handle_from(session::of_worker(id.0) as usize)
}

/// A graph is of no more use.
pub(crate) fn forget(session: &Session, graph: CUgraph) {
    allocation::let_go(graph.0 as u64);
    session.forget(graph);
}

/// Writes a list as CUDA wants it: how many there are where there is no place for them; else as
/// many as the place has, null behind the last, and how many were written. A place for no items is
/// an error.
///
/// # Safety
/// `count` is null or valid; `places` is null or has room for `*count` items.
unsafe fn put_list<T: Copy>(
    items: &[T],
    empty: T,
    places: *mut T,
    count: *mut usize,
) -> Result<(), CUresult> {
    wanted(count)?;
    if places.is_null() {
        // SAFETY: not null, and the caller vouches for the rest.
        return unsafe { out::write(count, items.len()) };
    }
    // SAFETY: by this function's contract.
    let room = unsafe { count.read_unaligned() };
    if room == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    for at in 0..room {
        // SAFETY: as above.
        unsafe { out::write(places.add(at), items.get(at).copied().unwrap_or(empty))? };
    }
    // SAFETY: as above.
    unsafe { out::write(count, room.min(items.len())) }
}

/// As [`put_list`], with the edges beside the nodes. Edges that matter and are not asked for are an
/// error.
///
/// # Safety
/// As for [`put_list`]; `data` is null or as long as `places`.
unsafe fn put_neighbours(
    nodes: &[GraphNodeId],
    edges: &[u64],
    places: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Result<(), CUresult> {
    let edges = edges_from_words(edges);
    if !places.is_null() && data.is_null() && edges.iter().any(|edge| *edge != CUgraphEdgeData::default()) {
        return Err(CUresult::LOSSY_QUERY);
    }
    let nodes: Vec<_> = nodes.iter().map(handle).collect();
    wanted(count)?;
    // SAFETY: by this function's contract.
    unsafe {
        let mut room = count.read_unaligned();
        if !data.is_null() && !places.is_null() {
            put_list(&edges, CUgraphEdgeData::default(), data, &mut room)?;
        }
        put_list(&nodes, CUgraphNode::NULL, places, count)
    }
}

// The entry points. CUDA Driver API, section "Graph Management".

pub(crate) unsafe fn cuGraphGetNodes(
    hGraph: CUgraph,
    nodes: *mut CUgraphNode,
    numNodes: *mut usize,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(numNodes)?;
    let command = commands::cuGraphGetNodes { hGraph: session.find(hGraph)? };
    let found = session.call(&command, |answer| answer.nodes)?;
    // SAFETY: the program passes a place for the number, and null or room for that many.
    unsafe { put_list(&found.iter().map(handle).collect::<Vec<_>>(), CUgraphNode::NULL, nodes, numNodes) }
}

pub(crate) unsafe fn cuGraphGetRootNodes(
    hGraph: CUgraph,
    rootNodes: *mut CUgraphNode,
    numRootNodes: *mut usize,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(numRootNodes)?;
    let command = commands::cuGraphGetRootNodes { hGraph: session.find(hGraph)? };
    let found = session.call(&command, |answer| answer.nodes)?;
    // SAFETY: as for all nodes.
    unsafe {
        put_list(&found.iter().map(handle).collect::<Vec<_>>(), CUgraphNode::NULL, rootNodes, numRootNodes)
    }
}

pub(crate) unsafe fn cuGraphGetEdges_v2(
    hGraph: CUgraph,
    from_: *mut CUgraphNode,
    to_: *mut CUgraphNode,
    edgeData: *mut CUgraphEdgeData,
    numEdges: *mut usize,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(numEdges)?;
    if from_.is_null() != to_.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let command = commands::cuGraphGetEdges_v2 { hGraph: session.find(hGraph)? };
    let edges = session.call(&command, |answer| answer)?;
    // SAFETY: the program passes a place for the number, and null or room for that many.
    unsafe {
        let mut room = numEdges.read_unaligned();
        if !to_.is_null() {
            let to: Vec<_> = edges.to_.iter().map(handle).collect();
            put_list(&to, CUgraphNode::NULL, to_, &mut room)?;
        }
        put_neighbours(&edges.from_, &edges.edges, from_, edgeData, numEdges)
    }
}

pub(crate) unsafe fn cuGraphGetEdges(
    hGraph: CUgraph,
    from_: *mut CUgraphNode,
    to_: *mut CUgraphNode,
    numEdges: *mut usize,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuGraphGetEdges_v2(hGraph, from_, to_, std::ptr::null_mut(), numEdges) }
}

pub(crate) unsafe fn cuGraphNodeGetDependencies_v2(
    hNode: CUgraphNode,
    dependencies: *mut CUgraphNode,
    edgeData: *mut CUgraphEdgeData,
    numDependencies: *mut usize,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let command = commands::cuGraphNodeGetDependencies_v2 { hNode: session.find(hNode)? };
    let found = session.call(&command, |answer| answer)?;
    // SAFETY: the program passes a place for the number, and null or room for that many.
    unsafe { put_neighbours(&found.nodes, &found.edges, dependencies, edgeData, numDependencies) }
}

pub(crate) unsafe fn cuGraphNodeGetDependencies(
    hNode: CUgraphNode,
    dependencies: *mut CUgraphNode,
    numDependencies: *mut usize,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuGraphNodeGetDependencies_v2(hNode, dependencies, std::ptr::null_mut(), numDependencies) }
}

pub(crate) unsafe fn cuGraphNodeGetDependentNodes_v2(
    hNode: CUgraphNode,
    dependentNodes: *mut CUgraphNode,
    edgeData: *mut CUgraphEdgeData,
    numDependentNodes: *mut usize,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let command = commands::cuGraphNodeGetDependentNodes_v2 { hNode: session.find(hNode)? };
    let found = session.call(&command, |answer| answer)?;
    // SAFETY: as for dependencies.
    unsafe { put_neighbours(&found.nodes, &found.edges, dependentNodes, edgeData, numDependentNodes) }
}

pub(crate) unsafe fn cuGraphNodeGetDependentNodes(
    hNode: CUgraphNode,
    dependentNodes: *mut CUgraphNode,
    numDependentNodes: *mut usize,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuGraphNodeGetDependentNodes_v2(hNode, dependentNodes, std::ptr::null_mut(), numDependentNodes) }
}

pub(crate) unsafe fn cuGraphNodeFindInClone(
    phNode: *mut CUgraphNode,
    hOriginalNode: CUgraphNode,
    hClonedGraph: CUgraph,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let command = commands::cuGraphNodeFindInClone {
        hOriginalNode: session.find(hOriginalNode)?,
        hClonedGraph: session.find(hClonedGraph)?,
    };
    let node = session.call(&command, |answer| answer.node)?;
    // SAFETY: the program passes a place for the node.
    unsafe { out::write(phNode, handle(&node)) }
}

pub(crate) unsafe fn cuGraphChildGraphNodeGetGraph(
    hNode: CUgraphNode,
    phGraph: *mut CUgraph,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(phGraph)?;
    let minted = session.mint::<CUgraph>()?;
    let command = commands::cuGraphChildGraphNodeGetGraph {
        hNode: session.find(hNode)?,
        phGraph: session.find(minted)?,
    };
    let known = session.call(&command, |answer| answer.graph).inspect_err(|_| session.forget(minted))?;
    let graph = CUgraph(known.0 as usize);
    if graph != minted {
        session.forget(minted);
    }
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(phGraph, graph) }
}

pub(crate) unsafe fn cuGraphNodeGetContainingGraph(
    hNode: CUgraphNode,
    phGraph: *mut CUgraph,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(phGraph)?;
    if hNode.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let command = commands::cuGraphNodeGetContainingGraph { hNode: session.find(hNode)? };
    let graph = session.call(&command, |answer| answer.graph)?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(phGraph, CUgraph(graph.0 as usize)) }
}

pub(crate) unsafe fn cuGraphClone(
    phGraphClone: *mut CUgraph,
    originalGraph: CUgraph,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(phGraphClone)?;
    let clone = session.mint::<CUgraph>()?;
    let command = commands::cuGraphClone {
        phGraphClone: session.find(clone)?,
        originalGraph: session.find(originalGraph)?,
    };
    session.call(&command, |()| ()).inspect_err(|_| session.forget(clone))?;
    allocation::inherit(originalGraph.0 as u64, clone.0 as u64, 0);
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(phGraphClone, clone) }
}

pub(crate) unsafe fn cuGraphDestroy(hGraph: CUgraph) -> Result<(), CUresult> {
    let session = session::enter()?;
    // It may be inside another one, or a stream may capture into it: that is for the worker to
    // know.
    session.call(&commands::cuGraphDestroy { hGraph: session.find(hGraph)? }, |()| ())?;
    forget(session, hGraph);
    Ok(())
}

pub(crate) unsafe fn cuGraphDestroyNode(hNode: CUgraphNode) -> Result<(), CUresult> {
    let session = session::enter()?;
    session.call(&commands::cuGraphDestroyNode { hNode: session.find(hNode)? }, |()| ())
}

pub(crate) unsafe fn cuGraphInstantiateWithFlags(
    phGraphExec: *mut CUgraphExec,
    hGraph: CUgraph,
    flags: u64,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(phGraphExec)?;
    let executable = session.mint::<CUgraphExec>()?;
    let command = commands::cuGraphInstantiateWithFlags {
        phGraphExec: session.find(executable)?,
        hGraph: session.find(hGraph)?,
        flags,
    };
    session.call(&command, |()| ()).inspect_err(|_| session.forget(executable))?;
    allocation::inherit(hGraph.0 as u64, executable.0 as u64, flags);
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(phGraphExec, executable) }
}

pub(crate) unsafe fn cuGraphExecDestroy(hGraphExec: CUgraphExec) -> Result<(), CUresult> {
    let session = session::enter()?;
    session.queue(&commands::cuGraphExecDestroy { hGraphExec: session.find(hGraphExec)? })?;
    allocation::let_go(hGraphExec.0 as u64);
    session.forget(hGraphExec);
    Ok(())
}

/// The log stays empty: what went wrong is in the result.
pub(crate) unsafe fn cuGraphInstantiate_v2(
    phGraphExec: *mut CUgraphExec,
    hGraph: CUgraph,
    phErrorNode: *mut CUgraphNode,
    logBuffer: *mut c_char,
    bufferSize: usize,
) -> Result<(), CUresult> {
    // SAFETY: the program's places; a log has at least the byte for its end.
    unsafe {
        out::write_if_wanted(phErrorNode, CUgraphNode::NULL);
        if bufferSize > 0 {
            out::write_if_wanted(logBuffer, 0);
        }
        cuGraphInstantiateWithFlags(phGraphExec, hGraph, 0)
    }
}

pub(crate) unsafe fn cuGraphInstantiate(
    phGraphExec: *mut CUgraphExec,
    hGraph: CUgraph,
    phErrorNode: *mut CUgraphNode,
    logBuffer: *mut c_char,
    bufferSize: usize,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize) }
}

/// `stream` is what a null upload stream means.
pub(crate) unsafe fn cuGraphInstantiateWithParams(
    phGraphExec: *mut CUgraphExec,
    hGraph: CUgraph,
    instantiateParams: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    stream: CUstream,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    if instantiateParams.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the program passes parameters.
    let mut params = unsafe { instantiateParams.read_unaligned() };
    let upload = params.flags & CU_GRAPH_INSTANTIATE_FLAG_UPLOAD != 0;
    let flags = params.flags & !CU_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    params.hErrNode_out = CUgraphNode::NULL;
    // SAFETY: the program's places.
    unsafe {
        let made = cuGraphInstantiateWithFlags(phGraphExec, hGraph, flags);
        params.result_out = u32::from(made.is_err());
        instantiateParams.write_unaligned(params);
        made?;
        if upload {
            let stream = if params.hUploadStream.is_null() { stream } else { params.hUploadStream };
            crate::generated::stubs::cuGraphUpload(session, phGraphExec.read_unaligned(), stream)?;
        }
    }
    Ok(())
}

pub(crate) unsafe fn cuGraphExecUpdate_v2(
    hGraphExec: CUgraphExec,
    hGraph: CUgraph,
    resultInfo: *mut CUgraphExecUpdateResultInfo,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let command = commands::cuGraphExecUpdate_v2 {
        hGraphExec: session.find(hGraphExec)?,
        hGraph: session.find(hGraph)?,
    };
    let updated = session.call(&command, |()| ());
    let result = match updated {
        Ok(()) => CUgraphExecUpdateResult::SUCCESS,
        Err(_) => CUgraphExecUpdateResult::ERROR,
    };
    let info = CUgraphExecUpdateResultInfo { result, ..Default::default() };
    // SAFETY: the program passes null or a place for what went wrong.
    unsafe { out::write_if_wanted(resultInfo, info) };
    updated
}

/// The result without its details, as before CUDA 12.
pub(crate) unsafe fn cuGraphExecUpdate(
    hGraphExec: CUgraphExec,
    hGraph: CUgraph,
    hErrorNode_out: *mut CUgraphNode,
    updateResult_out: *mut CUgraphExecUpdateResult,
) -> Result<(), CUresult> {
    let mut info = CUgraphExecUpdateResultInfo::default();
    // SAFETY: the program's graphs, and places of its own.
    unsafe {
        let updated = cuGraphExecUpdate_v2(hGraphExec, hGraph, &mut info);
        out::write_if_wanted(hErrorNode_out, info.errorNode);
        out::write_if_wanted(updateResult_out, info.result);
        updated
    }
}

pub(crate) unsafe fn cuGraphAddDependencies_v2(
    hGraph: CUgraph,
    from_: *const CUgraphNode,
    to_: *const CUgraphNode,
    edgeData: *const CUgraphEdgeData,
    numDependencies: usize,
) -> Result<(), CUresult> {
    // SAFETY: the program passes that many nodes and edges.
    unsafe {
        check_all(edgeData, numDependencies)?;
        crate::generated::stubs::cuGraphAddDependencies(
            session::enter()?,
            hGraph,
            from_,
            to_,
            numDependencies,
        )
    }
}

pub(crate) unsafe fn cuGraphRemoveDependencies_v2(
    hGraph: CUgraph,
    from_: *const CUgraphNode,
    to_: *const CUgraphNode,
    edgeData: *const CUgraphEdgeData,
    numDependencies: usize,
) -> Result<(), CUresult> {
    // SAFETY: the program passes that many nodes and edges.
    unsafe {
        check_all(edgeData, numDependencies)?;
        crate::generated::stubs::cuGraphRemoveDependencies(
            session::enter()?,
            hGraph,
            from_,
            to_,
            numDependencies,
        )
    }
}
