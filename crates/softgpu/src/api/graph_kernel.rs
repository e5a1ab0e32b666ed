//! Kernel nodes of graphs (CUDA Driver API: Graph Management).

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use sluice_cuda::*;

use super::graph::{add, replace};
use super::graph_node::{op_of, set_op, with_node};
use super::launch::gather;
use crate::base::ids::NodeId;
use crate::base::status::{Result, Status, call, put, require};
use crate::device::driver;
use crate::device::machine::Shape;
use crate::graph::{Node, graph_of};
use crate::module::launch::prepare;
use crate::module::library::function;
use crate::work::op::Op;

pub(crate) unsafe extern "C" fn cuGraphAddKernelNode(
    place: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    params: *const CUDA_KERNEL_NODE_PARAMS_v1,
) -> CUresult {
    // SAFETY: passed on.
    call(|| unsafe {
        add(place, graph, dependencies, count, |before| {
            Ok(Node::new(kernel_v1(params, Set::default())?, before))
        })
    })
}

pub(crate) unsafe extern "C" fn cuGraphAddKernelNode_v2(
    place: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    params: *const CUDA_KERNEL_NODE_PARAMS,
) -> CUresult {
    // SAFETY: passed on.
    call(|| unsafe {
        add(place, graph, dependencies, count, |before| {
            Ok(Node::new(kernel(params, Set::default())?, before))
        })
    })
}

pub(crate) unsafe extern "C" fn cuGraphExecKernelNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_KERNEL_NODE_PARAMS_v1,
) -> CUresult {
    // SAFETY: an input structure by contract.
    call(|| replace(exec, node, unsafe { kernel_v1(params, Set::of(node)?) }?))
}

pub(crate) unsafe extern "C" fn cuGraphExecKernelNodeSetParams_v2(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_KERNEL_NODE_PARAMS,
) -> CUresult {
    // SAFETY: an input structure by contract.
    call(|| replace(exec, node, unsafe { kernel(params, Set::of(node)?) }?))
}

/// Pointers to parameter values as last asked for, by node; CUDA keeps them until the node changes.
static VALUES: Mutex<BTreeMap<usize, Box<[usize]>>> = Mutex::new(BTreeMap::new());

pub(crate) unsafe extern "C" fn cuGraphKernelNodeGetParams_v2(
    node: CUgraphNode,
    place: *mut CUDA_KERNEL_NODE_PARAMS,
) -> CUresult {
    call(|| {
        let Op::Launch(launch) = op_of(node)? else { return Err(Status::INVALID_VALUE) };
        let pointers: Box<[usize]> = launch.values().into_iter().map(|value| value as usize).collect();
        let mut all = VALUES.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = all.entry(node.0).insert_entry(pointers).into_mut();
        let shape = launch.shape();
        let ([gridDimX, gridDimY, gridDimZ], [blockDimX, blockDimY, blockDimZ]) = (shape.grid, shape.block);
        let (func, kern) = launch.given();
        let params = CUDA_KERNEL_NODE_PARAMS {
            func,
            gridDimX,
            gridDimY,
            gridDimZ,
            blockDimX,
            blockDimY,
            blockDimZ,
            sharedMemBytes: shape.dynamic_shared,
            kernelParams: kept.as_mut_ptr().cast(),
            extra: std::ptr::null_mut(),
            kern,
            ctx: CUcontext::NULL,
        };
        // SAFETY: an output argument by contract.
        unsafe { put(place, params) }
    })
}

pub(crate) unsafe extern "C" fn cuGraphKernelNodeSetParams_v2(
    node: CUgraphNode,
    params: *const CUDA_KERNEL_NODE_PARAMS,
) -> CUresult {
    // SAFETY: an input structure by contract.
    call(|| set_op(node, unsafe { kernel(params, Set::of(node)?) }?))
}

pub(crate) unsafe extern "C" fn cuGraphKernelNodeGetAttribute(
    node: CUgraphNode,
    attribute: u32,
    place: *mut c_void,
) -> CUresult {
    call(|| {
        let value = match CUlaunchAttributeID(attribute) {
            CUlaunchAttributeID::CLUSTER_DIMENSION => dimension(Set::of(node)?.cluster.unwrap_or_default()),
            CUlaunchAttributeID::COOPERATIVE => dimension([Set::of(node)?.cooperative.into(), 0, 0]),
            _ => with_node(node, |node| {
                let is_kernel = node.kind == CUgraphNodeType::KERNEL;
                let set = node.attributes.get(&attribute).copied().unwrap_or_default();
                if is_kernel { Ok(set) } else { Err(Status::INVALID_VALUE) }
            })?,
        };
        // SAFETY: an output argument by contract.
        unsafe { put(place.cast(), value) }
    })
}

fn dimension([x, y, z]: [u32; 3]) -> CUlaunchAttributeValue {
    let mut value = CUlaunchAttributeValue::default();
    value.words[..3].copy_from_slice(&[x, y, z]);
    value
}

pub(crate) unsafe extern "C" fn cuGraphKernelNodeSetAttribute(
    node: CUgraphNode,
    attribute: u32,
    value: *const c_void,
) -> CUresult {
    call(|| {
        require(value)?;
        // SAFETY: an input value by contract.
        let value = unsafe { value.cast::<CUlaunchAttributeValue>().read_unaligned() };
        let set = Set::of(node)?;
        match CUlaunchAttributeID(attribute) {
            CUlaunchAttributeID::CLUSTER_DIMENSION => {
                let cluster = Some(value.dimension().map(|blocks| blocks.max(1)));
                Set { cluster, ..set }.apply(node)
            }
            CUlaunchAttributeID::COOPERATIVE => Set { cooperative: value.number() != 0, ..set }.apply(node),
            _ => with_kernel_node(node, |node| {
                node.attributes.insert(attribute, value);
            }),
        }
    })
}

fn with_kernel_node(node: CUgraphNode, change: impl FnOnce(&mut Node)) -> Result<()> {
    driver()?;
    let id = NodeId(node.0);
    let graph = graph_of(id)?;
    let mut body = graph.body();
    let node = body.nodes.get_mut(&id).filter(|node| node.kind == CUgraphNodeType::KERNEL);
    change(node.ok_or(Status::INVALID_VALUE)?);
    Ok(())
}

pub(crate) unsafe extern "C" fn cuGraphKernelNodeCopyAttributes(
    to: CUgraphNode,
    from: CUgraphNode,
) -> CUresult {
    call(|| {
        Set::of(from)?.apply(to)?;
        let attributes = with_node(from, |node| Ok(node.attributes.clone()))?;
        with_kernel_node(to, |node| node.attributes = attributes)
    })
}

/// Attributes of a kernel node that decide how its grid runs.
#[derive(Clone, Copy, Default)]
struct Set {
    cluster: Option<[u32; 3]>,
    cooperative: bool,
}

impl Set {
    fn of(node: CUgraphNode) -> Result<Set> {
        let Op::Launch(launch) = op_of(node)? else { return Err(Status::INVALID_VALUE) };
        let Shape { cluster, cooperative, .. } = launch.shape();
        Ok(Set { cluster, cooperative })
    }

    /// Gives them to a node, if they suit its launch.
    fn apply(self, node: CUgraphNode) -> Result<()> {
        let Op::Launch(launch) = op_of(node)? else { return Err(Status::INVALID_VALUE) };
        let shape = Shape { cluster: self.cluster, cooperative: self.cooperative, ..launch.shape() };
        if shape == launch.shape() { Ok(()) } else { set_op(node, Op::Launch(launch.reshaped(shape)?)) }
    }
}

/// The launch that a kernel node's parameters describe.
///
/// # Safety
/// `params` is null or an input structure.
unsafe fn kernel(params: *const CUDA_KERNEL_NODE_PARAMS, set: Set) -> Result<Op> {
    require(params)?;
    // SAFETY: by this function's contract.
    let params = unsafe { params.read_unaligned() };
    let handle = if params.func.is_null() { CUfunction(params.kern.0) } else { params.func };
    let function = function(handle)?;
    let shape = Shape {
        grid: [params.gridDimX, params.gridDimY, params.gridDimZ],
        block: [params.blockDimX, params.blockDimY, params.blockDimZ],
        cluster: set.cluster,
        dynamic_shared: params.sharedMemBytes,
        cooperative: set.cooperative,
    };
    // SAFETY: by this function's contract.
    let arguments = unsafe { gather(&function, params.kernelParams, params.extra) }?;
    let multiprocessors = function.limits().multiprocessors;
    prepare((handle, &function), shape, arguments, multiprocessors).map(Op::Launch)
}

/// The launch that a structure without the kernel and its context describes.
///
/// # Safety
/// `params` is null or an input structure.
unsafe fn kernel_v1(params: *const CUDA_KERNEL_NODE_PARAMS_v1, set: Set) -> Result<Op> {
    require(params)?;
    // SAFETY: by this function's contract.
    let old = unsafe { params.read_unaligned() };
    let new = CUDA_KERNEL_NODE_PARAMS {
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
        kern: Default::default(),
        ctx: CUcontext::NULL,
    };
    // SAFETY: the structure stands above; its pointers are the caller's.
    unsafe { kernel(&new, set) }
}
