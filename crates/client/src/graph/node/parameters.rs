//! From the structures of CUDA to what travels.

use std::ffi::c_void;

use sluice_cuda::*;
use sluice_wire::{DevicePtr, FillNode, KernelNode, MemoryOp, MemoryOpsNode, NodeWork, rows};

use crate::copy::boxes;
use crate::entry::guards::check_aligned;
use crate::graph::{allocation, conditional};
use crate::launch::limits::Geometry;
use crate::session::Session;
use crate::session::issue::{Issue, list};
use crate::stream::host_function::Pending;
use crate::stream::{event, host_function};
use crate::{context, launch};

/// Reads a structure that the program must pass.
///
/// # Safety
/// `from` is null or points to a `T`.
pub(super) unsafe fn read<T>(from: *const T) -> Result<T, CUresult> {
    if from.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller vouches for the rest.
    Ok(unsafe { from.read_unaligned() })
}

/// The node was not made, or not changed: nothing will use its ticket.
pub(super) fn give_up(graph: CUgraph, work: &NodeWork) {
    match work {
        NodeWork::HostCall(ticket) => host_function::forget(*ticket),
        NodeWork::Copy(copy) if copy.is_across() => host_function::forget(copy.ticket),
        NodeWork::Allocation(ticket) => allocation::undo(graph, *ticket),
        NodeWork::Conditional(node) => conditional::give_up(node),
        _ => {}
    }
}

/// # Safety
/// `params` is null or a kernel node's parameters, with values as for a launch.
pub(super) unsafe fn kernel(params: *const CUDA_KERNEL_NODE_PARAMS) -> Result<NodeWork, CUresult> {
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
pub(super) unsafe fn upgraded(
    params: *const CUDA_KERNEL_NODE_PARAMS_v1,
) -> Result<CUDA_KERNEL_NODE_PARAMS, CUresult> {
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

pub(super) fn fill(session: &Session, memset: &CUDA_MEMSET_NODE_PARAMS) -> Result<NodeWork, CUresult> {
    let (width, height, pitch) = (memset.width as u64, memset.height as u64, memset.pitch as u64);
    if !matches!(memset.elementSize, 1 | 2 | 4) {
        return Err(CUresult::INVALID_VALUE);
    }
    check_aligned(memset.dst, memset.pitch, memset.height, memset.elementSize as usize)?;
    let row = width.saturating_mul(memset.elementSize.into());
    let dst = session.range(memset.dst, rows(height, row, pitch))?;
    let (value, element_bytes) = (memset.value, memset.elementSize);
    Ok(NodeWork::Fill(FillNode { dst, pitch, value, element_bytes, width, height }))
}

pub(super) fn copy(session: &'static Session, copy: &CUDA_MEMCPY3D) -> Result<NodeWork, CUresult> {
    boxes::of_3d(copy, session)?.for_graph(session)
}

pub(super) fn host(session: &'static Session, params: &CUDA_HOST_NODE_PARAMS) -> Result<NodeWork, CUresult> {
    let function = params.fn_.ok_or(CUresult::INVALID_VALUE)?;
    Ok(NodeWork::HostCall(host_function::keep(session, Pending::host(function, params.userData))?))
}

/// Memory operations as CUDA lists them (`CUDA_BATCH_MEM_OP_NODE_PARAMS`).
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct BatchParams {
    pub(super) ctx: CUcontext,
    pub(super) count: u32,
    pub(super) paramArray: *mut CUstreamBatchMemOpParams,
    pub(super) flags: u32,
}

/// # Safety
/// `params` lists as many operations as it says.
pub(super) unsafe fn batch(session: &Session, params: BatchParams) -> Result<NodeWork, CUresult> {
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

pub(super) fn allocation(
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

pub(super) fn record_event(session: &Session, event: CUevent) -> Result<NodeWork, CUresult> {
    event::recorded_by_graph();
    Ok(NodeWork::RecordEvent(session.find(event)?))
}

pub(super) fn free(address: CUdeviceptr) -> Result<NodeWork, CUresult> {
    let allocation = allocation::by_address(address).ok_or(CUresult::INVALID_VALUE)?;
    allocation::freed_inside(&allocation)?;
    Ok(NodeWork::Free(allocation.ticket))
}

/// What parameters of any kind say. An allocation's address is written into them.
///
/// # Safety
/// `params` is null or parameters of the kind that they name.
pub(super) unsafe fn any(
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
