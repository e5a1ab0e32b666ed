//! Nodes of graphs that a client builds by hand: kernels, memsets, and what is asked about a graph.

use sluice_cuda::*;
use sluice_wire::{Dim, FunctionId, GraphId, GraphNodeId, commands, product, rows};

use crate::custom::packed;
use crate::execute::Execute;
use crate::session::Session;

pub(crate) fn add_kernel_node(
    session: &Session,
    command: commands::cuGraphAddKernelNode_v2<'_>,
) -> Result<(), CUresult> {
    let add = session.table().cuGraphAddKernelNode_v2.ok_or(CUresult::NOT_SUPPORTED)?;
    session.vacant(command.phGraphNode)?;
    let graph = session.find(command.hGraph)?;
    let dependencies = nodes(session, &command.dependencies)?;
    let mut node = CUgraphNode::NULL;
    let shape = (command.grid, command.block, command.sharedMemBytes);
    with_kernel(session, command.f, shape, command.params, |kernel| {
        // SAFETY: graph, nodes and function are live; the driver copies the parameters before it returns.
        unsafe { add(&mut node, graph, dependencies.as_ptr(), dependencies.len(), kernel) }
    })?;
    session.insert(command.phGraphNode, node)
}

pub(crate) fn set_kernel(
    session: &Session,
    command: commands::cuGraphExecKernelNodeSetParams_v2<'_>,
) -> Result<(), CUresult> {
    let set = session.table().cuGraphExecKernelNodeSetParams_v2.ok_or(CUresult::NOT_SUPPORTED)?;
    let (graph, node) = (session.find(command.hGraphExec)?, session.find(command.hNode)?);
    let shape = (command.grid, command.block, command.sharedMemBytes);
    with_kernel(session, command.f, shape, command.params, |kernel| {
        // SAFETY: as for a new node.
        unsafe { set(graph, node, kernel) }
    })
}

pub(crate) fn add_memset_node(
    session: &Session,
    command: commands::cuGraphAddMemsetNode,
) -> Result<(), CUresult> {
    let add = session.table().cuGraphAddMemsetNode.ok_or(CUresult::NOT_SUPPORTED)?;
    let current = session.table().cuCtxGetCurrent.ok_or(CUresult::NOT_SUPPORTED)?;
    session.vacant(command.phGraphNode)?;
    let graph = session.find(command.hGraph)?;
    let dependencies = nodes(session, &command.dependencies)?;
    let row = product(&[command.width, command.elementSize.into()]);
    let memset = CUDA_MEMSET_NODE_PARAMS {
        dst: session.range(command.dst, rows(command.height, row, command.pitch))?,
        pitch: command.pitch as usize,
        value: command.value,
        elementSize: command.elementSize,
        width: command.width as usize,
        height: command.height as usize,
    };
    let mut context = CUcontext::NULL;
    let mut node = CUgraphNode::NULL;
    // SAFETY: graph and nodes are live, the memory is the session's, and the driver writes to two locals.
    unsafe {
        current(&mut context).ok()?;
        add(&mut node, graph, dependencies.as_ptr(), dependencies.len(), &memset, context).ok()?;
    }
    session.insert(command.phGraphNode, node)
}

pub(crate) fn count_nodes(session: &Session, graph: GraphId) -> Result<u64, CUresult> {
    let get = session.table().cuGraphGetNodes.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut count = 0;
    // SAFETY: the graph is live; without a place for nodes the driver writes their number to a local.
    unsafe { get(session.find(graph)?, std::ptr::null_mut(), &mut count) }.ok()?;
    Ok(count as u64)
}

pub(crate) fn update(session: &Session, command: commands::cuGraphExecUpdate_v2) -> Result<(), CUresult> {
    let update = session.table().cuGraphExecUpdate_v2.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut info = CUgraphExecUpdateResultInfo::default();
    // SAFETY: both graphs are live, and the driver writes to a local.
    unsafe { update(session.find(command.hGraphExec)?, session.find(command.hGraph)?, &mut info) }.ok()
}

fn nodes(session: &Session, ids: &[GraphNodeId]) -> Result<Vec<CUgraphNode>, CUresult> {
    ids.iter().map(|id| session.find(*id)).collect()
}

/// Describes a kernel to `call`: grid, block and dynamic shared memory in bytes, and the parameters in one buffer.
fn with_kernel(
    session: &Session,
    function: FunctionId,
    (grid, block, shared_bytes): (Dim, Dim, u32),
    params: &[u8],
    call: impl FnOnce(*const CUDA_KERNEL_NODE_PARAMS) -> CUresult,
) -> Result<(), CUresult> {
    session.modules.check_parameters(function, params.len())?;
    let size = params.len();
    let mut extra = packed(params, &size);
    call(&CUDA_KERNEL_NODE_PARAMS {
        func: session.find(function)?,
        gridDimX: grid[0],
        gridDimY: grid[1],
        gridDimZ: grid[2],
        blockDimX: block[0],
        blockDimY: block[1],
        blockDimZ: block[2],
        sharedMemBytes: shared_bytes,
        kernelParams: std::ptr::null_mut(),
        extra: extra.as_mut_ptr(),
        kern: CUkernel::NULL,
        ctx: CUcontext::NULL,
    })
    .ok()
}
