//! What the nodes of graphs do: from CUDA's structures to the wire and back.
//!
//! Functions and memory of this process do not travel: a node that has a part here carries a
//! ticket, under which [`host_function`](crate::stream::host_function) keeps the function or the
//! copy for as long as a graph has the node.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use sluice_cuda::*;
use sluice_wire::{
    DevicePtr, FillNode, GraphPlace, KernelNode, MemoryOp, MemoryOpsNode, NodePlace, NodeWork, commands, rows,
};

use crate::abi::out;
use crate::copy::boxes::{self, BoxCopy};
use crate::graph::allocation::{self, GraphAllocation};
use crate::graph::conditional;
use crate::graph::edges::{check_all, node_ids};
use crate::launch::limits::Geometry;
use crate::session::issue::{Issue, list, wanted};
use crate::session::{self, Session};
use crate::stream::event;
use crate::stream::host_function::{self, Pending};
use crate::{context, launch, module};

/// Reads a structure that the program must pass.
///
/// # Safety
/// `from` is null or points to a `T`.
unsafe fn read<T>(from: *const T) -> Result<T, CUresult> {
    if from.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller vouches for the rest.
    Ok(unsafe { from.read_unaligned() })
}

/// The node was not made, or not changed: nothing will use its ticket.
fn give_up(graph: CUgraph, work: &NodeWork) {
    match work {
        NodeWork::HostCall(ticket) => host_function::forget(*ticket),
        NodeWork::Copy(copy) if copy.is_across() => host_function::forget(copy.ticket),
        NodeWork::Allocation(ticket) => allocation::undo(graph, *ticket),
        NodeWork::Conditional(node) => conditional::give_up(node),
        _ => {}
    }
}

/// Adds a node and writes its handle.
///
/// # Safety
/// `to` is null or a place for a handle; `dependencies` is null or points to `count` handles.
unsafe fn add(
    to: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    work: impl FnOnce(&'static Session) -> Result<NodeWork, CUresult>,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(to)?;
    // SAFETY: the same contract.
    let dependencies = unsafe { node_ids(session, dependencies, count)? };
    let place = NodePlace::Graph(GraphPlace { graph: session.find(graph)?, dependencies });
    let node = session.mint::<CUgraphNode>()?;
    let work = work(session)?;
    let command = commands::cuGraphAddNode_v2 { phGraphNode: session.find(node)?, place, work };
    session.call(&command, |()| ()).inspect_err(|_| give_up(graph, &command.work))?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(to, node) }
}

fn set(
    node: CUgraphNode,
    work: impl FnOnce(&'static Session) -> Result<NodeWork, CUresult>,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let command = commands::cuGraphNodeSetParams { hNode: session.find(node)?, work: work(session)? };
    session.call(&command, |()| ()).inspect_err(|_| give_up(CUgraph::NULL, &command.work))
}

fn set_in_executable(
    graph: CUgraphExec,
    node: CUgraphNode,
    work: impl FnOnce(&'static Session) -> Result<NodeWork, CUresult>,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let command = commands::cuGraphExecNodeSetParams {
        hGraphExec: session.find(graph)?,
        hNode: session.find(node)?,
        work: work(session)?,
    };
    session.call(&command, |()| ()).inspect_err(|_| give_up(CUgraph::NULL, &command.work))
}

fn get(node: CUgraphNode) -> Result<NodeWork, CUresult> {
    let session = session::enter()?;
    let command = commands::cuGraphNodeGetParams { hNode: session.find(node)? };
    session.call(&command, |answer| answer.work)
}

/// # Safety
/// `params` is null or a kernel node's parameters, with values as for a launch.
unsafe fn kernel(params: *const CUDA_KERNEL_NODE_PARAMS) -> Result<NodeWork, CUresult> {
    // SAFETY: the same contract.
    let node = unsafe { read(params)? };
    let function = if node.func.is_null() { CUfunction(node.kern.0) } else { node.func };
    let geometry = Geometry {
        grid: [node.gridDimX, node.gridDimY, node.gridDimZ],
        block: [node.blockDimX, node.blockDimY, node.blockDimZ],
        shared_bytes: node.sharedMemBytes,
    };
    // SAFETY: the caller vouches for the values.
    let (f, params) = unsafe { launch::for_node(function, &geometry, node.kernelParams, node.extra)? };
    let Geometry { grid, block, shared_bytes } = geometry;
    Ok(NodeWork::Kernel(KernelNode { f, grid, block, shared_bytes, params }))
}

/// The parameters of CUDA 11, as CUDA 12 has them.
///
/// # Safety
/// `params` is null or a kernel node's parameters.
unsafe fn upgraded(params: *const CUDA_KERNEL_NODE_PARAMS_v1) -> Result<CUDA_KERNEL_NODE_PARAMS, CUresult> {
    // SAFETY: the same contract.
    let old = unsafe { read(params)? };
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

fn fill(session: &Session, memset: &CUDA_MEMSET_NODE_PARAMS) -> Result<NodeWork, CUresult> {
    let (width, height, pitch) = (memset.width as u64, memset.height as u64, memset.pitch as u64);
    let row = width.saturating_mul(memset.elementSize.into());
    let dst = session.range(memset.dst, rows(height, row, pitch))?;
    let (value, element_bytes) = (memset.value, memset.elementSize);
    Ok(NodeWork::Fill(FillNode { dst, pitch, value, element_bytes, width, height }))
}

fn copy(session: &'static Session, copy: &CUDA_MEMCPY3D) -> Result<NodeWork, CUresult> {
    boxes::of_3d(copy, session)?.for_graph(session)
}

fn host(session: &'static Session, params: &CUDA_HOST_NODE_PARAMS) -> Result<NodeWork, CUresult> {
    let function = params.fn_.ok_or(CUresult::INVALID_VALUE)?;
    Ok(NodeWork::HostCall(host_function::keep(session, Pending::host(function, params.userData))?))
}

/// Memory operations as CUDA lists them (`CUDA_BATCH_MEM_OP_NODE_PARAMS`).
#[derive(Clone, Copy)]
#[repr(C)]
struct BatchParams {
    ctx: CUcontext,
    count: u32,
    paramArray: *mut CUstreamBatchMemOpParams,
    flags: u32,
}

/// # Safety
/// `params` lists as many operations as it says.
unsafe fn batch(session: &Session, params: BatchParams) -> Result<NodeWork, CUresult> {
    // SAFETY: by this function's contract.
    let listed = unsafe { list(params.paramArray.cast_const(), params.count.into())? };
    let op = |params: &CUstreamBatchMemOpParams| {
        let [kind, address, value, flags, ..] = params.words;
        let kind = CUstreamBatchMemOpType(kind as u32);
        let op = MemoryOp { kind, address: DevicePtr(address), value, flags: flags as u32 };
        session.range(address, op.width())?;
        Ok(op)
    };
    let ops = listed.iter().map(op).collect::<Result<_, CUresult>>()?;
    Ok(NodeWork::MemoryOps(MemoryOpsNode { ops, flags: params.flags }))
}

fn allocation(
    session: &Session,
    graph: CUgraph,
    params: &mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> Result<NodeWork, CUresult> {
    let location = params.poolProps.location;
    if location.kind != CUmemLocationType::DEVICE {
        return Err(CUresult::NOT_SUPPORTED);
    }
    session.device(location.id)?;
    let context = context::current()?;
    if context.device != location.id {
        return Err(CUresult::NOT_SUPPORTED);
    }
    let made = allocation::allocate(session, &context, graph, params.bytesize as u64)?;
    params.dptr = made.address;
    Ok(NodeWork::Allocation(made.ticket))
}

fn record_event(session: &Session, event: CUevent) -> Result<NodeWork, CUresult> {
    event::recorded_by_graph();
    Ok(NodeWork::RecordEvent(session.find(event)?))
}

fn free(address: CUdeviceptr) -> Result<NodeWork, CUresult> {
    let allocation = allocation::by_address(address).ok_or(CUresult::INVALID_VALUE)?;
    allocation::freed_inside(&allocation)?;
    Ok(NodeWork::Free(allocation.ticket))
}

/// What parameters of any kind say. An allocation's address is written into them.
///
/// # Safety
/// `params` is null or parameters of the kind that they name.
unsafe fn any(
    session: &'static Session,
    graph: CUgraph,
    params: *mut CUgraphNodeParams,
) -> Result<NodeWork, CUresult> {
    // SAFETY: the same contract.
    let copy_of = unsafe { read(params)? };
    let words: *const c_void = copy_of.words.as_ptr().cast();
    // SAFETY (all): the words hold the structure that the kind names, and are as many as the
    // largest has.
    use CUgraphNodeType as Kind;
    match copy_of.kind {
        Kind::EMPTY => Ok(NodeWork::Empty(())),
        // SAFETY: as above.
        Kind::KERNEL => unsafe { kernel(words.cast()) },
        Kind::MEMCPY => {
            // Flags and context stand before the copy: sixteen bytes.
            // SAFETY: as above.
            copy(session, &unsafe { read(copy_of.words[2..].as_ptr().cast::<CUDA_MEMCPY3D>())? })
        }
        // SAFETY: as above.
        Kind::MEMSET => fill(session, &unsafe { read(words.cast())? }),
        // SAFETY: as above.
        Kind::HOST => host(session, &unsafe { read(words.cast())? }),
        Kind::GRAPH => Ok(NodeWork::Child(session.find(CUgraph(copy_of.words[0] as usize))?)),
        Kind::EVENT_RECORD => record_event(session, CUevent(copy_of.words[0] as usize)),
        Kind::WAIT_EVENT => Ok(NodeWork::AwaitEvent(session.find(CUevent(copy_of.words[0] as usize))?)),
        // SAFETY: as above.
        Kind::BATCH_MEM_OP => unsafe { batch(session, read(words.cast())?) },
        Kind::MEM_FREE => free(copy_of.words[0]),
        Kind::MEM_ALLOC => {
            // SAFETY: as above; the parameters are the program's to be written.
            unsafe {
                let mut wanted: CUDA_MEM_ALLOC_NODE_PARAMS = read(words.cast())?;
                let work = allocation(session, graph, &mut wanted)?;
                let place = (&raw mut (*params).words).cast::<CUDA_MEM_ALLOC_NODE_PARAMS>();
                place.write_unaligned(wanted);
                Ok(work)
            }
        }
        // Nothing about one that is there can be changed.
        Kind::CONDITIONAL if !graph.is_null() => conditional::described(session, &copy_of),
        _ => Err(CUresult::NOT_SUPPORTED),
    }
}

/// A kernel node's parameters as they were last asked for; CUDA keeps them until the node changes.
struct KernelAnswer {
    _values: Vec<u8>,
    pointers: Vec<*mut c_void>,
}

// SAFETY: the pointers lead into the vector beside them, which is not changed any more.
unsafe impl Send for KernelAnswer {}

static KERNEL_ANSWERS: Mutex<Option<HashMap<usize, KernelAnswer>>> = Mutex::new(None);

fn kernel_params(node: CUgraphNode, kernel: KernelNode) -> Result<CUDA_KERNEL_NODE_PARAMS, CUresult> {
    let offsets = launch::parameter_offsets(CUfunction(kernel.f.0 as usize))?;
    let (func, kern) = module::in_graph(kernel.f)?;
    let mut values = kernel.params;
    let start = values.as_mut_ptr();
    let pointers = offsets.into_iter().filter(|offset| *offset < values.len());
    let pointers = pointers.map(|offset| start.wrapping_add(offset).cast()).collect();
    let mut answers = KERNEL_ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    let answer = KernelAnswer { _values: values, pointers };
    let answer = answers.get_or_insert_default().entry(node.0).insert_entry(answer).into_mut();
    let ([gridDimX, gridDimY, gridDimZ], [blockDimX, blockDimY, blockDimZ]) = (kernel.grid, kernel.block);
    Ok(CUDA_KERNEL_NODE_PARAMS {
        func,
        gridDimX,
        gridDimY,
        gridDimZ,
        blockDimX,
        blockDimY,
        blockDimZ,
        sharedMemBytes: kernel.shared_bytes,
        kernelParams: answer.pointers.as_mut_ptr(),
        extra: std::ptr::null_mut(),
        kern,
        ctx: context::current()?.handle,
    })
}

fn memset_params(fill: &FillNode) -> CUDA_MEMSET_NODE_PARAMS {
    CUDA_MEMSET_NODE_PARAMS {
        dst: fill.dst.0,
        pitch: fill.pitch as usize,
        value: fill.value,
        elementSize: fill.element_bytes,
        width: fill.width as usize,
        height: fill.height as usize,
    }
}

fn allocation_params(allocation: &GraphAllocation) -> CUDA_MEM_ALLOC_NODE_PARAMS {
    let poolProps = CUmemPoolProps {
        allocType: CUmemAllocationType::PINNED,
        handleTypes: CUmemAllocationHandleType::NONE,
        location: CUmemLocation { kind: CUmemLocationType::DEVICE, id: allocation.device() },
        win32SecurityAttributes: std::ptr::null_mut(),
        maxSize: 0,
        usage: 0,
        gpuDirectRDMACapable: 0,
        reserved: [0; 53],
    };
    CUDA_MEM_ALLOC_NODE_PARAMS {
        poolProps,
        accessDescs: std::ptr::null(),
        accessDescCount: 0,
        bytesize: allocation.bytes as usize,
        dptr: allocation.address,
    }
}

// The entry points. CUDA Driver API, section "Graph Management".

/// Entry points that add, change and change in an executable graph the nodes of one kind.
macro_rules! kinds {
    ($(
        $params:ident: $of:ty $(, $context:ident)? =>
        $add:ident, $set:ident, $exec:ident, |$session:ident| $work:expr;
    )*) => {$(
        pub(crate) unsafe fn $add(
            phGraphNode: *mut CUgraphNode,
            hGraph: CUgraph,
            dependencies: *const CUgraphNode,
            numDependencies: usize,
            $params: *const $of
            $(, $context: CUcontext)?
        ) -> Result<(), CUresult> {
            $(context::named_or_current($context)?;)?
            // SAFETY: the program's arguments.
            unsafe { add(phGraphNode, hGraph, dependencies, numDependencies, |$session| $work) }
        }

        pub(crate) unsafe fn $set(hNode: CUgraphNode, $params: *const $of) -> Result<(), CUresult> {
            // SAFETY: the program's parameters.
            set(hNode, |$session| unsafe { $work })
        }

        pub(crate) unsafe fn $exec(
            hGraphExec: CUgraphExec,
            hNode: CUgraphNode,
            $params: *const $of
            $(, $context: CUcontext)?
        ) -> Result<(), CUresult> {
            $(context::named_or_current($context)?;)?
            // SAFETY: the program's parameters.
            set_in_executable(hGraphExec, hNode, |$session| unsafe { $work })
        }
    )*};
}

kinds! {
    nodeParams: CUDA_KERNEL_NODE_PARAMS => cuGraphAddKernelNode_v2, cuGraphKernelNodeSetParams_v2,
        cuGraphExecKernelNodeSetParams_v2, |_session| kernel(nodeParams);
    nodeParams: CUDA_KERNEL_NODE_PARAMS_v1 => cuGraphAddKernelNode, cuGraphKernelNodeSetParams,
        cuGraphExecKernelNodeSetParams, |_session| kernel(&upgraded(nodeParams)?);
    copyParams: CUDA_MEMCPY3D, ctx => cuGraphAddMemcpyNode, cuGraphMemcpyNodeSetParams,
        cuGraphExecMemcpyNodeSetParams, |session| copy(session, &read(copyParams)?);
    memsetParams: CUDA_MEMSET_NODE_PARAMS, ctx => cuGraphAddMemsetNode, cuGraphMemsetNodeSetParams,
        cuGraphExecMemsetNodeSetParams, |session| fill(session, &read(memsetParams)?);
    nodeParams: CUDA_HOST_NODE_PARAMS => cuGraphAddHostNode, cuGraphHostNodeSetParams,
        cuGraphExecHostNodeSetParams, |session| host(session, &read(nodeParams)?);
    nodeParams: c_void => cuGraphAddBatchMemOpNode, cuGraphBatchMemOpNodeSetParams,
        cuGraphExecBatchMemOpNodeSetParams, |session| batch(session, read(nodeParams.cast())?);
}

pub(crate) unsafe fn cuGraphAddEmptyNode(
    phGraphNode: *mut CUgraphNode,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    numDependencies: usize,
) -> Result<(), CUresult> {
    // SAFETY: the program's arguments.
    unsafe { add(phGraphNode, hGraph, dependencies, numDependencies, |_| Ok(NodeWork::Empty(()))) }
}

pub(crate) unsafe fn cuGraphAddChildGraphNode(
    phGraphNode: *mut CUgraphNode,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    numDependencies: usize,
    childGraph: CUgraph,
) -> Result<(), CUresult> {
    // SAFETY: the program's arguments.
    unsafe {
        add(phGraphNode, hGraph, dependencies, numDependencies, |session| {
            Ok(NodeWork::Child(session.find(childGraph)?))
        })?;
    }
    allocation::inherit(childGraph.0 as u64, hGraph.0 as u64, 0);
    Ok(())
}

pub(crate) unsafe fn cuGraphExecChildGraphNodeSetParams(
    hGraphExec: CUgraphExec,
    hNode: CUgraphNode,
    childGraph: CUgraph,
) -> Result<(), CUresult> {
    set_in_executable(hGraphExec, hNode, |session| Ok(NodeWork::Child(session.find(childGraph)?)))
}

pub(crate) unsafe fn cuGraphAddEventRecordNode(
    phGraphNode: *mut CUgraphNode,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    numDependencies: usize,
    event: CUevent,
) -> Result<(), CUresult> {
    // SAFETY: the program's arguments.
    unsafe { add(phGraphNode, hGraph, dependencies, numDependencies, |session| record_event(session, event)) }
}

pub(crate) unsafe fn cuGraphAddEventWaitNode(
    phGraphNode: *mut CUgraphNode,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    numDependencies: usize,
    event: CUevent,
) -> Result<(), CUresult> {
    // SAFETY: the program's arguments.
    unsafe {
        add(phGraphNode, hGraph, dependencies, numDependencies, |session| {
            Ok(NodeWork::AwaitEvent(session.find(event)?))
        })
    }
}

pub(crate) unsafe fn cuGraphAddMemAllocNode(
    phGraphNode: *mut CUgraphNode,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    numDependencies: usize,
    nodeParams: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> Result<(), CUresult> {
    // SAFETY: the program's arguments.
    unsafe {
        let mut params = read(nodeParams)?;
        add(phGraphNode, hGraph, dependencies, numDependencies, |session| {
            allocation(session, hGraph, &mut params)
        })?;
        out::write(nodeParams, params)
    }
}

pub(crate) unsafe fn cuGraphAddMemFreeNode(
    phGraphNode: *mut CUgraphNode,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    numDependencies: usize,
    dptr: CUdeviceptr,
) -> Result<(), CUresult> {
    // SAFETY: the program's arguments.
    unsafe { add(phGraphNode, hGraph, dependencies, numDependencies, |_| free(dptr)) }
}

pub(crate) unsafe fn cuGraphAddNode(
    phGraphNode: *mut CUgraphNode,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    numDependencies: usize,
    nodeParams: *mut CUgraphNodeParams,
) -> Result<(), CUresult> {
    // SAFETY: the program's arguments.
    unsafe {
        add(phGraphNode, hGraph, dependencies, numDependencies, |session| any(session, hGraph, nodeParams))?;
        conditional::added(phGraphNode.read_unaligned(), nodeParams)
    }
}

pub(crate) unsafe fn cuGraphAddNode_v2(
    phGraphNode: *mut CUgraphNode,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    dependencyData: *const CUgraphEdgeData,
    numDependencies: usize,
    nodeParams: *mut CUgraphNodeParams,
) -> Result<(), CUresult> {
    // SAFETY: the program's arguments.
    unsafe {
        check_all(dependencyData, numDependencies)?;
        cuGraphAddNode(phGraphNode, hGraph, dependencies, numDependencies, nodeParams)
    }
}

/// The newest structure differs in what its reserved words may say.
pub(crate) unsafe fn cuGraphAddNode_v3(
    phGraphNode: *mut CUgraphNode,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    dependencyData: *const CUgraphEdgeData,
    numDependencies: usize,
    nodeParams: *mut CUgraphNodeParams,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe {
        cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, dependencyData, numDependencies, nodeParams)
    }
}

pub(crate) unsafe fn cuGraphNodeSetParams(
    hNode: CUgraphNode,
    nodeParams: *mut CUgraphNodeParams,
) -> Result<(), CUresult> {
    // SAFETY: the program's parameters.
    set(hNode, |session| unsafe { any(session, CUgraph::NULL, nodeParams) })
}

pub(crate) unsafe fn cuGraphNodeSetParams_v2(
    hNode: CUgraphNode,
    nodeParams: *mut CUgraphNodeParams,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuGraphNodeSetParams(hNode, nodeParams) }
}

pub(crate) unsafe fn cuGraphExecNodeSetParams(
    hGraphExec: CUgraphExec,
    hNode: CUgraphNode,
    nodeParams: *mut CUgraphNodeParams,
) -> Result<(), CUresult> {
    // SAFETY: the program's parameters.
    set_in_executable(hGraphExec, hNode, |session| unsafe { any(session, CUgraph::NULL, nodeParams) })
}

pub(crate) unsafe fn cuGraphNodeGetType(
    hNode: CUgraphNode,
    kind: *mut CUgraphNodeType,
) -> Result<(), CUresult> {
    // SAFETY: the program passes a place for the kind.
    unsafe { out::write(kind, get(hNode)?.kind()) }
}

pub(crate) unsafe fn cuGraphKernelNodeGetParams_v2(
    hNode: CUgraphNode,
    nodeParams: *mut CUDA_KERNEL_NODE_PARAMS,
) -> Result<(), CUresult> {
    let NodeWork::Kernel(kernel) = get(hNode)? else { return Err(CUresult::INVALID_VALUE) };
    // SAFETY: the program passes a place for the parameters.
    unsafe { out::write(nodeParams, kernel_params(hNode, kernel)?) }
}

pub(crate) unsafe fn cuGraphKernelNodeGetParams(
    hNode: CUgraphNode,
    nodeParams: *mut CUDA_KERNEL_NODE_PARAMS_v1,
) -> Result<(), CUresult> {
    let NodeWork::Kernel(kernel) = get(hNode)? else { return Err(CUresult::INVALID_VALUE) };
    let new = kernel_params(hNode, kernel)?;
    let old = CUDA_KERNEL_NODE_PARAMS_v1 {
        // This form has one place for both.
        func: if new.func.is_null() { CUfunction(new.kern.0) } else { new.func },
        gridDimX: new.gridDimX,
        gridDimY: new.gridDimY,
        gridDimZ: new.gridDimZ,
        blockDimX: new.blockDimX,
        blockDimY: new.blockDimY,
        blockDimZ: new.blockDimZ,
        sharedMemBytes: new.sharedMemBytes,
        kernelParams: new.kernelParams,
        extra: new.extra,
    };
    // SAFETY: the program passes a place for the parameters.
    unsafe { out::write(nodeParams, old) }
}

pub(crate) unsafe fn cuGraphMemsetNodeGetParams(
    hNode: CUgraphNode,
    nodeParams: *mut CUDA_MEMSET_NODE_PARAMS,
) -> Result<(), CUresult> {
    let NodeWork::Fill(fill) = get(hNode)? else { return Err(CUresult::INVALID_VALUE) };
    // SAFETY: the program passes a place for the parameters.
    unsafe { out::write(nodeParams, memset_params(&fill)) }
}

pub(crate) unsafe fn cuGraphMemcpyNodeGetParams(
    hNode: CUgraphNode,
    nodeParams: *mut CUDA_MEMCPY3D,
) -> Result<(), CUresult> {
    let NodeWork::Copy(copy) = get(hNode)? else { return Err(CUresult::INVALID_VALUE) };
    let known = host_function::kept(copy.ticket).and_then(|pending| pending.copy());
    let params = known.map_or_else(|| BoxCopy::described_node(&copy), |copy| Ok(copy.described()))?;
    // SAFETY: the program passes a place for the parameters.
    unsafe { out::write(nodeParams, params) }
}

pub(crate) unsafe fn cuGraphHostNodeGetParams(
    hNode: CUgraphNode,
    nodeParams: *mut CUDA_HOST_NODE_PARAMS,
) -> Result<(), CUresult> {
    let NodeWork::HostCall(ticket) = get(hNode)? else { return Err(CUresult::INVALID_VALUE) };
    let params = host_function::kept(ticket).and_then(|pending| pending.params());
    // SAFETY: the program passes a place for the parameters.
    unsafe { out::write(nodeParams, params.ok_or(CUresult::INVALID_VALUE)?) }
}

pub(crate) unsafe fn cuGraphEventRecordNodeGetEvent(
    hNode: CUgraphNode,
    event_out: *mut CUevent,
) -> Result<(), CUresult> {
    let NodeWork::RecordEvent(event) = get(hNode)? else { return Err(CUresult::INVALID_VALUE) };
    // SAFETY: the program passes a place for the event.
    unsafe { out::write(event_out, CUevent(event.0 as usize)) }
}

pub(crate) unsafe fn cuGraphEventWaitNodeGetEvent(
    hNode: CUgraphNode,
    event_out: *mut CUevent,
) -> Result<(), CUresult> {
    let NodeWork::AwaitEvent(event) = get(hNode)? else { return Err(CUresult::INVALID_VALUE) };
    // SAFETY: the program passes a place for the event.
    unsafe { out::write(event_out, CUevent(event.0 as usize)) }
}

/// Operations of nodes as they were last asked for; CUDA keeps them until the node changes.
static BATCH_ANSWERS: Mutex<Option<HashMap<usize, Vec<CUstreamBatchMemOpParams>>>> = Mutex::new(None);

fn batch_params(node: CUgraphNode, ops: &MemoryOpsNode) -> Result<BatchParams, CUresult> {
    let words = |op: &MemoryOp| CUstreamBatchMemOpParams {
        words: [op.kind.0.into(), op.address.0, op.value, op.flags.into(), 0, 0],
    };
    let mut answers = BATCH_ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    let answer: Vec<_> = ops.ops.iter().map(words).collect();
    let answer = answers.get_or_insert_default().entry(node.0).insert_entry(answer).into_mut();
    Ok(BatchParams {
        ctx: context::current()?.handle,
        count: answer.len() as u32,
        paramArray: answer.as_mut_ptr(),
        flags: ops.flags,
    })
}

pub(crate) unsafe fn cuGraphBatchMemOpNodeGetParams(
    hNode: CUgraphNode,
    nodeParams_out: *mut c_void,
) -> Result<(), CUresult> {
    let NodeWork::MemoryOps(ops) = get(hNode)? else { return Err(CUresult::INVALID_VALUE) };
    // SAFETY: the program passes a place for the parameters.
    unsafe { out::write(nodeParams_out.cast(), batch_params(hNode, &ops)?) }
}

pub(crate) unsafe fn cuGraphMemAllocNodeGetParams(
    hNode: CUgraphNode,
    params_out: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> Result<(), CUresult> {
    let NodeWork::Allocation(ticket) = get(hNode)? else { return Err(CUresult::INVALID_VALUE) };
    let allocation = allocation::by_ticket(ticket).ok_or(CUresult::INVALID_VALUE)?;
    // SAFETY: the program passes a place for the parameters.
    unsafe { out::write(params_out, allocation_params(&allocation)) }
}

pub(crate) unsafe fn cuGraphMemFreeNodeGetParams(
    hNode: CUgraphNode,
    dptr_out: *mut CUdeviceptr,
) -> Result<(), CUresult> {
    let NodeWork::Free(ticket) = get(hNode)? else { return Err(CUresult::INVALID_VALUE) };
    let allocation = allocation::by_ticket(ticket).ok_or(CUresult::INVALID_VALUE)?;
    // SAFETY: the program passes a place for the address.
    unsafe { out::write(dptr_out, allocation.address) }
}

/// The parameters of a node of any kind, in the structure of its kind.
pub(crate) unsafe fn cuGraphNodeGetParams(
    hNode: CUgraphNode,
    nodeParams: *mut CUgraphNodeParams,
) -> Result<(), CUresult> {
    wanted(nodeParams)?;
    let work = get(hNode)?;
    let mut params = CUgraphNodeParams { kind: work.kind(), reserved0: [0; 3], words: [0; 29], reserved2: 0 };
    let to: *mut c_void = params.words.as_mut_ptr().cast();
    // SAFETY: the words have room for the largest of these structures, and the program passes a
    // place for them.
    unsafe {
        match work {
            NodeWork::Empty(()) => {}
            NodeWork::Kernel(_) => cuGraphKernelNodeGetParams_v2(hNode, to.cast())?,
            NodeWork::Fill(_) => cuGraphMemsetNodeGetParams(hNode, to.cast())?,
            NodeWork::Copy(_) => cuGraphMemcpyNodeGetParams(hNode, params.words[2..].as_mut_ptr().cast())?,
            NodeWork::HostCall(_) => cuGraphHostNodeGetParams(hNode, to.cast())?,
            NodeWork::Child(_) => crate::graph::cuGraphChildGraphNodeGetGraph(hNode, to.cast())?,
            NodeWork::RecordEvent(event) | NodeWork::AwaitEvent(event) => params.words[0] = event.0,
            NodeWork::MemoryOps(_) => cuGraphBatchMemOpNodeGetParams(hNode, to)?,
            NodeWork::Allocation(_) => cuGraphMemAllocNodeGetParams(hNode, to.cast())?,
            NodeWork::Free(_) => cuGraphMemFreeNodeGetParams(hNode, to.cast())?,
            NodeWork::Conditional(node) => conditional::write(hNode, &node, &mut params.words)?,
        }
        out::write(nodeParams, params)
    }
}

pub(crate) unsafe fn cuGraphKernelNodeGetAttribute(
    hNode: CUgraphNode,
    attr: u32,
    value_out: *mut c_void,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let command = commands::cuGraphKernelNodeGetAttribute { hNode: session.find(hNode)?, attr };
    let words = session.call(&command, |answer| answer.words)?;
    let words = words.try_into().map_err(|_| CUresult::UNKNOWN)?;
    // SAFETY: the program passes a place for the value.
    unsafe { out::write(value_out.cast(), CUlaunchAttributeValue { words }) }
}

pub(crate) unsafe fn cuGraphKernelNodeSetAttribute(
    hNode: CUgraphNode,
    attr: u32,
    value: *const c_void,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    // SAFETY: the program passes a value.
    let words = unsafe { read(value.cast::<CUlaunchAttributeValue>())?.words.to_vec() };
    let command = commands::cuGraphKernelNodeSetAttribute { hNode: session.find(hNode)?, attr, words };
    session.call(&command, |()| ())
}
