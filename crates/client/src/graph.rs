//! Graphs that a program builds node by node. What needs no more than ids is in the generated stubs.

use std::ffi::c_char;

use sluice_cuda::*;
use sluice_wire::{DevicePtr, FunctionId, GraphNodeId, commands, rows};

use crate::generated::stubs;
use crate::issue::{Issue, list, wanted};
use crate::launch::{self, Geometry};
use crate::out;
use crate::session::{self, Session};

/// Makes the handle of a node, has the node made, and writes the handle.
///
/// # Safety
/// `to` is valid for writing a handle.
unsafe fn add(
    session: &Session,
    to: *mut CUgraphNode,
    make: impl FnOnce(GraphNodeId) -> Result<(), CUresult>,
) -> Result<(), CUresult> {
    wanted(to)?;
    let node = session.mint::<CUgraphNode>()?;
    make(session.find(node)?).inspect_err(|_| session.forget(node))?;
    // SAFETY: not null, and the caller vouches for the rest.
    unsafe { out::write(to, node) }
}

/// # Safety
/// `nodes` is null or points to `count` handles.
unsafe fn ids(
    session: &Session,
    nodes: *const CUgraphNode,
    count: usize,
) -> Result<Vec<GraphNodeId>, CUresult> {
    // SAFETY: the same contract.
    let nodes = unsafe { list(nodes, count as u64)? };
    nodes.iter().map(|node| session.find(*node)).collect()
}

/// A kernel node's parameters as they travel.
struct Kernel {
    f: FunctionId,
    geometry: Geometry,
    params: Vec<u8>,
}

/// # Safety
/// `node` is null or a kernel node's parameters, with values as for a launch.
unsafe fn kernel(node: *const CUDA_KERNEL_NODE_PARAMS) -> Result<Kernel, CUresult> {
    if node.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller vouches for the rest.
    let node = unsafe { node.read_unaligned() };
    // A kernel's handle is that of its function.
    let function = if node.func.is_null() { CUfunction(node.kern.0) } else { node.func };
    let geometry = Geometry {
        grid: [node.gridDimX, node.gridDimY, node.gridDimZ],
        block: [node.blockDimX, node.blockDimY, node.blockDimZ],
        shared_bytes: node.sharedMemBytes,
    };
    // SAFETY: the caller vouches for the values.
    let (f, params) = unsafe { launch::for_node(function, &geometry, node.kernelParams, node.extra)? };
    Ok(Kernel { f, geometry, params })
}

/// The parameters of CUDA 11, as CUDA 12 has them.
///
/// # Safety
/// `node` is null or a kernel node's parameters.
unsafe fn upgraded(node: *const CUDA_KERNEL_NODE_PARAMS_v1) -> Result<CUDA_KERNEL_NODE_PARAMS, CUresult> {
    if node.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller vouches for the rest.
    let old = unsafe { node.read_unaligned() };
    Ok(CUDA_KERNEL_NODE_PARAMS {
        func: old.func,
        gridDimX: old.gridDimX,
        gridDimY: old.gridDimY,
        gridDimZ: old.gridDimZ,
        blockDimX: old.blockDimX,
        blockDimY: old.blockDimY,
        blockDimZ: old.blockDimZ,
        sharedMemBytes: old.sharedMemBytes,
        kernelParams: old.kernelParams,
        extra: old.extra,
        kern: CUkernel::NULL,
        ctx: CUcontext::NULL,
    })
}

// The entry points. CUDA Driver API, section "Graph Management".

pub(crate) unsafe fn cuGraphAddKernelNode_v2(
    phGraphNode: *mut CUgraphNode,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    numDependencies: usize,
    nodeParams: *const CUDA_KERNEL_NODE_PARAMS,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let hGraph = session.find(hGraph)?;
    // SAFETY: the program's arguments.
    let (dependencies, kernel) =
        unsafe { (ids(session, dependencies, numDependencies)?, kernel(nodeParams)?) };
    let command = |phGraphNode| commands::cuGraphAddKernelNode_v2 {
        phGraphNode,
        hGraph,
        dependencies,
        f: kernel.f,
        grid: kernel.geometry.grid,
        block: kernel.geometry.block,
        sharedMemBytes: kernel.geometry.shared_bytes,
        params: &kernel.params,
    };
    // SAFETY: the program passes a place for the handle.
    unsafe { add(session, phGraphNode, |id| session.call(&command(id), |()| ())) }
}

pub(crate) unsafe fn cuGraphAddKernelNode(
    phGraphNode: *mut CUgraphNode,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    numDependencies: usize,
    nodeParams: *const CUDA_KERNEL_NODE_PARAMS_v1,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe {
        let node = upgraded(nodeParams)?;
        cuGraphAddKernelNode_v2(phGraphNode, hGraph, dependencies, numDependencies, &node)
    }
}

pub(crate) unsafe fn cuGraphExecKernelNodeSetParams_v2(
    hGraphExec: CUgraphExec,
    hNode: CUgraphNode,
    nodeParams: *const CUDA_KERNEL_NODE_PARAMS,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    // SAFETY: the program's parameters.
    let kernel = unsafe { kernel(nodeParams)? };
    let command = commands::cuGraphExecKernelNodeSetParams_v2 {
        hGraphExec: session.find(hGraphExec)?,
        hNode: session.find(hNode)?,
        f: kernel.f,
        grid: kernel.geometry.grid,
        block: kernel.geometry.block,
        sharedMemBytes: kernel.geometry.shared_bytes,
        params: &kernel.params,
    };
    session.call(&command, |()| ())
}

pub(crate) unsafe fn cuGraphExecKernelNodeSetParams(
    hGraphExec: CUgraphExec,
    hNode: CUgraphNode,
    nodeParams: *const CUDA_KERNEL_NODE_PARAMS_v1,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuGraphExecKernelNodeSetParams_v2(hGraphExec, hNode, &upgraded(nodeParams)?) }
}

pub(crate) unsafe fn cuGraphAddMemsetNode(
    phGraphNode: *mut CUgraphNode,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    numDependencies: usize,
    memsetParams: *const CUDA_MEMSET_NODE_PARAMS,
    _: CUcontext,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    if memsetParams.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let hGraph = session.find(hGraph)?;
    // SAFETY: not null, and the program passes a memset and so many dependencies.
    let (memset, dependencies) =
        unsafe { (memsetParams.read_unaligned(), ids(session, dependencies, numDependencies)?) };
    let (width, height, pitch) = (memset.width as u64, memset.height as u64, memset.pitch as u64);
    let row = width.saturating_mul(memset.elementSize.into());
    session.range(memset.dst, rows(height, row, pitch))?;
    let command = |phGraphNode| commands::cuGraphAddMemsetNode {
        phGraphNode,
        hGraph,
        dependencies,
        dst: DevicePtr(memset.dst),
        pitch,
        value: memset.value,
        elementSize: memset.elementSize,
        width,
        height,
    };
    // SAFETY: the program passes a place for the handle.
    unsafe { add(session, phGraphNode, |id| session.call(&command(id), |()| ())) }
}

/// Answers how many nodes there are. The nodes themselves have no handles here unless they were made here.
pub(crate) unsafe fn cuGraphGetNodes(
    hGraph: CUgraph,
    nodes: *mut CUgraphNode,
    numNodes: *mut usize,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(numNodes)?;
    if !nodes.is_null() {
        return Err(CUresult::NOT_SUPPORTED);
    }
    let command = commands::cuGraphGetNodes { hGraph: session.find(hGraph)? };
    let count = session.call(&command, |answer| answer.numNodes)?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(numNodes, count as usize) }
}

/// The log stays empty: an error has no node that this process could name.
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
        stubs::cuGraphInstantiateWithFlags(session::enter()?, phGraphExec, hGraph, 0)
    }
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
        let made = stubs::cuGraphInstantiateWithFlags(session, phGraphExec, hGraph, flags);
        params.result_out = u32::from(made.is_err());
        instantiateParams.write_unaligned(params);
        made?;
        if upload {
            let stream = if params.hUploadStream.is_null() { stream } else { params.hUploadStream };
            stubs::cuGraphUpload(session, phGraphExec.read_unaligned(), stream)?;
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

/// Refuses edges that are more than a full dependency: their nodes and ports come with programmatic launches, which
/// graphs here do not have.
///
/// # Safety
/// `data` is null or points to `count` edges.
unsafe fn check_plain(data: *const CUgraphEdgeData, count: usize) -> Result<(), CUresult> {
    if data.is_null() {
        return Ok(());
    }
    // SAFETY: the same contract.
    let data = unsafe { list(data, count as u64)? };
    let plain = data.iter().all(|edge| *edge == CUgraphEdgeData::default());
    if plain { Ok(()) } else { Err(CUresult::NOT_SUPPORTED) }
}

pub(crate) unsafe fn cuGraphAddDependencies_v2(
    hGraph: CUgraph,
    from_: *const CUgraphNode,
    to_: *const CUgraphNode,
    edgeData: *const CUgraphEdgeData,
    numDependencies: usize,
) -> Result<(), CUresult> {
    // SAFETY: the program passes so many nodes and edges.
    unsafe {
        check_plain(edgeData, numDependencies)?;
        stubs::cuGraphAddDependencies(session::enter()?, hGraph, from_, to_, numDependencies)
    }
}

pub(crate) unsafe fn cuGraphRemoveDependencies_v2(
    hGraph: CUgraph,
    from_: *const CUgraphNode,
    to_: *const CUgraphNode,
    edgeData: *const CUgraphEdgeData,
    numDependencies: usize,
) -> Result<(), CUresult> {
    // SAFETY: the program passes so many nodes and edges.
    unsafe {
        check_plain(edgeData, numDependencies)?;
        stubs::cuGraphRemoveDependencies(session::enter()?, hGraph, from_, to_, numDependencies)
    }
}
