//! What a node does, as programs ask for it.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use sluice_cuda::*;
use sluice_wire::{FillNode, KernelNode, MemoryOp, MemoryOpsNode, NodeWork, commands};

use super::get;
use super::parameters::{BatchParams, read};
use crate::abi::out;
use crate::copy::boxes::BoxCopy;
use crate::graph::allocation::GraphAllocation;
use crate::graph::{allocation, conditional};
use crate::session::issue::{Issue, wanted};
use crate::stream::host_function;
use crate::{context, launch, module, session};

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
