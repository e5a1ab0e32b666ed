//! Graphs (CUDA Driver API: Graph Management).

use std::collections::BTreeMap;
use std::ffi::c_char;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sluice_cuda::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext,
    CUevent, CUgraph, CUgraphEdgeData, CUgraphExec, CUgraphExecUpdateResult, CUgraphExecUpdateResultInfo,
    CUgraphNode, CUgraphNodeParams, CUgraphNodeType, CUresult, CUstream,
};

use super::copy::places_3d;
use crate::base::ids::NodeId;
use crate::base::status::{Result, Status, call, put, put_optional, require};
use crate::context::{current, named};
use crate::device::driver;
use crate::graph::{EXECS, Exec, GRAPHS, Graph, Node, Work, graph_of};
use crate::memory::copy::Fill;
use crate::submit::copies::{check_fill_reach, for_graph};
use crate::submit::target;
use crate::work::conditional::{Choice, Variable};
use crate::work::event::event;
use crate::work::op::{HostCall, Op};

pub(crate) unsafe extern "C" fn cuGraphCreate(place: *mut CUgraph, flags: u32) -> CUresult {
    call(|| {
        driver()?;
        require(place)?;
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUgraph(Graph::create().handle)) }
    })
}

pub(crate) unsafe extern "C" fn cuGraphDestroy(graph: CUgraph) -> CUresult {
    call(|| {
        driver()?;
        if Graph::get(graph)?.is_inner.load(Ordering::Relaxed) {
            return Err(Status::INVALID_VALUE);
        }
        GRAPHS.remove(graph.0).map(drop).ok_or(Status::INVALID_VALUE)
    })
}

pub(crate) unsafe extern "C" fn cuGraphClone(place: *mut CUgraph, graph: CUgraph) -> CUresult {
    call(|| {
        driver()?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUgraph(Graph::get(graph)?.duplicate()?.handle)) }
    })
}

fn instantiate(graph: CUgraph, flags: u64) -> Result<CUgraphExec> {
    let context = current()?;
    Ok(CUgraphExec(Exec::instantiate(&*Graph::get(graph)?, context.owner(), flags)?.handle))
}

pub(crate) unsafe extern "C" fn cuGraphInstantiateWithFlags(
    place: *mut CUgraphExec,
    graph: CUgraph,
    flags: u64,
) -> CUresult {
    call(|| {
        require(place)?;
        // Launches from device code do not exist here; the other flags are about when and how fast.
        if flags & !15 != 0 {
            return Err(Status::INVALID_VALUE);
        }
        if flags & sluice_cuda::CU_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH != 0 {
            return Err(Status::NOT_SUPPORTED);
        }
        // SAFETY: an output argument by contract.
        unsafe { put(place, instantiate(graph, flags)?) }
    })
}

pub(crate) unsafe extern "C" fn cuGraphInstantiateWithParams(
    place: *mut CUgraphExec,
    graph: CUgraph,
    params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
) -> CUresult {
    if params.is_null() {
        return Status::INVALID_VALUE;
    }
    // SAFETY: a structure read and written by contract.
    let mut filled = unsafe { params.read_unaligned() };
    // SAFETY: passed on.
    let result = unsafe { cuGraphInstantiateWithFlags(place, graph, filled.flags) };
    filled.hErrNode_out = CUgraphNode::NULL;
    // `CUgraphInstantiateResult`: success, or an error that is none of those with a number of their
    // own.
    filled.result_out = u32::from(!result.is_success());
    // SAFETY: as above.
    unsafe { params.write_unaligned(filled) };
    result
}

pub(crate) unsafe extern "C" fn cuGraphInstantiate_v2(
    place: *mut CUgraphExec,
    graph: CUgraph,
    error_node: *mut CUgraphNode,
    log: *mut c_char,
    log_size: usize,
) -> CUresult {
    call(|| {
        require(place)?;
        // SAFETY: output arguments by contract.
        unsafe {
            put_optional(error_node, CUgraphNode::NULL);
            if log_size > 0 {
                put_optional(log, 0);
            }
        }
        // SAFETY: an output argument by contract.
        unsafe { put(place, instantiate(graph, 0)?) }
    })
}

pub(crate) unsafe extern "C" fn cuGraphExecDestroy(exec: CUgraphExec) -> CUresult {
    call(|| {
        driver()?;
        EXECS.remove(exec.0).map(drop).ok_or(Status::INVALID_VALUE)
    })
}

pub(crate) unsafe extern "C" fn cuGraphLaunch(exec: CUgraphExec, s: CUstream) -> CUresult {
    call(|| {
        let target = target(s)?;
        Exec::get(exec)?.launch(&target)
    })
}

pub(crate) unsafe extern "C" fn cuGraphExecUpdate_v2(
    exec: CUgraphExec,
    graph: CUgraph,
    info: *mut CUgraphExecUpdateResultInfo,
) -> CUresult {
    call(|| {
        driver()?;
        let outcome = Exec::get(exec)?.update(&*Graph::get(graph)?);
        let ok = outcome.is_ok();
        let result = if ok {
            CUgraphExecUpdateResult::SUCCESS
        } else {
            CUgraphExecUpdateResult::ERROR_TOPOLOGY_CHANGED
        };
        // SAFETY: an output argument by contract.
        unsafe { put_optional(info, CUgraphExecUpdateResultInfo { result, ..Default::default() }) };
        outcome
    })
}

/// The nodes of an argument list.
///
/// # Safety
/// `nodes` is null or has `count` elements.
pub(super) unsafe fn node_list(nodes: *const CUgraphNode, count: usize) -> Result<Vec<NodeId>> {
    if count > 0 {
        require(nodes)?;
    }
    // SAFETY: by this function's contract.
    Ok((0..count).map(|index| NodeId(unsafe { nodes.add(index).read_unaligned() }.0)).collect())
}

/// Adds a node that depends on `count` others.
///
/// # Safety
/// `place` is an output argument; `dependencies` is null or has `count` elements.
pub(super) unsafe fn add(
    place: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    make: impl FnOnce(Vec<NodeId>) -> Result<Node>,
) -> Result<()> {
    driver()?;
    require(place)?;
    let graph = Graph::get(graph)?;
    // SAFETY: by this function's contract.
    let dependencies = unsafe { node_list(dependencies, count) }?;
    if !dependencies.iter().all(|node| graph.body().nodes.contains_key(node)) {
        return Err(Status::INVALID_VALUE);
    }
    let node = make(dependencies)?;
    let id = graph.body().add(node);
    // SAFETY: by this function's contract.
    unsafe { put(place, CUgraphNode(id.0)) }
}

/// # Safety
/// `params` is null or an input structure.
pub(super) unsafe fn copy(params: *const CUDA_MEMCPY3D, device: Option<usize>) -> Result<Op> {
    require(params)?;
    // SAFETY: by this function's contract.
    let (to, from, extent) = places_3d(&unsafe { params.read_unaligned() })?;
    for_graph(to, from, extent, device)
}

/// The device that does what a node with this context says.
fn device_of(ctx: CUcontext) -> Result<Option<usize>> {
    Ok(Some(named(ctx)?.device.ordinal))
}

/// # Safety
/// `params` is null or an input structure.
pub(super) unsafe fn fill(params: *const CUDA_MEMSET_NODE_PARAMS, device: Option<usize>) -> Result<Op> {
    require(params)?;
    // SAFETY: by this function's contract.
    let params = unsafe { params.read_unaligned() };
    let fill = Fill {
        address: params.dst,
        pitch: params.pitch as u64,
        value: params.value,
        element: params.elementSize,
        width: params.width as u64,
        height: params.height as u64,
    };
    fill.check()?;
    check_fill_reach(&fill, device.as_slice())?;
    Ok(Op::Fill(fill))
}

/// # Safety
/// `params` is null or an input structure.
pub(super) unsafe fn host(params: *const CUDA_HOST_NODE_PARAMS) -> Result<Op> {
    require(params)?;
    // SAFETY: by this function's contract.
    let params = unsafe { params.read_unaligned() };
    if params.fn_.is_none() {
        return Err(Status::INVALID_VALUE);
    }
    Ok(Op::HostCall(HostCall { function: params.fn_, data: params.userData }))
}

pub(crate) unsafe extern "C" fn cuGraphAddEmptyNode(
    place: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
) -> CUresult {
    // SAFETY: passed on.
    call(|| unsafe { add(place, graph, dependencies, count, |before| Ok(Node::new(Op::Empty, before))) })
}

pub(crate) unsafe extern "C" fn cuGraphAddMemcpyNode(
    place: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    params: *const CUDA_MEMCPY3D,
    ctx: CUcontext,
) -> CUresult {
    // SAFETY: passed on.
    call(|| unsafe {
        let device = device_of(ctx)?;
        add(place, graph, dependencies, count, |before| Ok(Node::new(copy(params, device)?, before)))
    })
}

pub(crate) unsafe extern "C" fn cuGraphAddMemsetNode(
    place: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    params: *const CUDA_MEMSET_NODE_PARAMS,
    ctx: CUcontext,
) -> CUresult {
    // SAFETY: passed on.
    call(|| unsafe {
        let device = device_of(ctx)?;
        add(place, graph, dependencies, count, |before| Ok(Node::new(fill(params, device)?, before)))
    })
}

pub(crate) unsafe extern "C" fn cuGraphAddHostNode(
    place: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    params: *const CUDA_HOST_NODE_PARAMS,
) -> CUresult {
    // SAFETY: passed on.
    call(|| unsafe { add(place, graph, dependencies, count, |before| Ok(Node::new(host(params)?, before))) })
}

pub(crate) unsafe extern "C" fn cuGraphAddEventRecordNode(
    place: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    recorded: CUevent,
) -> CUresult {
    let make = |before| Ok(Node::new(Op::RecordEvent(event(recorded)?), before));
    // SAFETY: passed on.
    call(|| unsafe { add(place, graph, dependencies, count, make) })
}

pub(crate) unsafe extern "C" fn cuGraphAddEventWaitNode(
    place: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    awaited: CUevent,
) -> CUresult {
    let make = |before| Ok(Node::new(Op::AwaitEvent(event(awaited)?), before));
    // SAFETY: passed on.
    call(|| unsafe { add(place, graph, dependencies, count, make) })
}

pub(crate) unsafe extern "C" fn cuGraphAddChildGraphNode(
    place: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    child: CUgraph,
) -> CUresult {
    let make = |before| Node::child(&*Graph::get(child)?, before);
    // SAFETY: passed on.
    call(|| unsafe { add(place, graph, dependencies, count, make) })
}

/// Of the nodes that parameters of any kind describe the conditional ones; the others have
/// functions of their own.
pub(crate) unsafe extern "C" fn cuGraphAddNode_v2(
    place: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
    params: *mut CUgraphNodeParams,
) -> CUresult {
    call(|| {
        require(params)?;
        // SAFETY: an argument read and written by contract.
        let mut filled = unsafe { params.read_unaligned() };
        if filled.kind != CUgraphNodeType::CONDITIONAL {
            return Err(Status::NOT_SUPPORTED);
        }
        if !data.is_null() {
            // SAFETY: as long as the dependencies by contract.
            let edges = (0..count).map(|at| unsafe { data.add(at).read_unaligned() });
            if edges.into_iter().any(|edge| edge != CUgraphEdgeData::default()) {
                return Err(Status::NOT_SUPPORTED);
            }
        }
        // Handle, kind and number of bodies, and a place for these.
        let [handle, kind_and_size, ..] = filled.words;
        let (kind, size) = (kind_and_size as u32, (kind_and_size >> 32) as u32);
        let choice = Choice::new(kind, size)?;
        if size > BODIES_MAX {
            return Err(Status::INVALID_VALUE);
        }
        let mut bodies = std::ptr::null();
        let make = |before| {
            let node = Node::conditional(variable(handle)?, choice, size, before);
            if let Work::Conditional(conditional) = &node.work {
                bodies = conditional.handles.as_ptr();
            }
            Ok(node)
        };
        // SAFETY: passed on.
        unsafe { add(place, graph, dependencies, count, make)? };
        filled.words[2] = bodies as u64;
        // SAFETY: as above.
        unsafe { params.write_unaligned(filled) };
        Ok(())
    })
}

/// Bodies of a conditional node at most.
const BODIES_MAX: u32 = 1 << 12;

fn variable(handle: u64) -> Result<Arc<Variable>> {
    let all = VARIABLES.lock().unwrap_or_else(PoisonError::into_inner);
    all.get(&handle).and_then(Weak::upgrade).ok_or(Status::INVALID_VALUE)
}

/// The variables of all graphs, by handle.
static VARIABLES: Mutex<BTreeMap<u64, Weak<Variable>>> = Mutex::new(BTreeMap::new());

pub(crate) unsafe extern "C" fn cuGraphConditionalHandleCreate(
    place: *mut u64,
    graph: CUgraph,
    ctx: CUcontext,
    value: u32,
    flags: u32,
) -> CUresult {
    /// `CU_GRAPH_COND_ASSIGN_DEFAULT`.
    const ASSIGN_DEFAULT: u32 = 1;
    call(|| {
        require(place)?;
        named(ctx)?;
        let graph = Graph::get(graph)?;
        if flags & !ASSIGN_DEFAULT != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let variable = Variable::new(value, flags & ASSIGN_DEFAULT != 0)?;
        let mut all = VARIABLES.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, variable| variable.strong_count() > 0);
        all.insert(variable.address, Arc::downgrade(&variable));
        let handle = variable.address;
        graph.body().variables.push(variable);
        // SAFETY: an output argument by contract.
        unsafe { put(place, handle) }
    })
}

pub(crate) unsafe extern "C" fn cuGraphAddDependencies(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> CUresult {
    call(|| {
        driver()?;
        let graph = Graph::get(graph)?;
        // SAFETY: arrays of `count` elements by contract.
        let (from, to) = unsafe { (node_list(from, count)?, node_list(to, count)?) };
        let mut body = graph.body();
        from.into_iter().zip(to).try_for_each(|(from, to)| body.connect(from, to))
    })
}

pub(crate) unsafe extern "C" fn cuGraphNodeGetType(
    node: CUgraphNode,
    place: *mut CUgraphNodeType,
) -> CUresult {
    call(|| {
        driver()?;
        let node = NodeId(node.0);
        let kind =
            graph_of(node)?.body().nodes.get(&node).map(|node| node.kind).ok_or(Status::INVALID_VALUE)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, kind) }
    })
}

/// Writes node handles, as many as fit in `*count`, and sets that to how many were written; without
/// a place for them to how many there are.
///
/// # Safety
/// `count` is an argument read and written; `places` is null or has `*count` elements.
pub(super) unsafe fn put_nodes(nodes: &[NodeId], places: *mut CUgraphNode, count: *mut usize) -> Result<()> {
    require(count)?;
    if places.is_null() {
        // SAFETY: by this function's contract.
        return unsafe { put(count, nodes.len()) };
    }
    // SAFETY: by this function's contract.
    let room = unsafe { count.read_unaligned() };
    if room == 0 {
        return Err(Status::INVALID_VALUE);
    }
    for index in 0..room {
        let node = nodes.get(index).map_or(CUgraphNode::NULL, |node| CUgraphNode(node.0));
        // SAFETY: by this function's contract.
        unsafe { put(places.add(index), node) }?;
    }
    // SAFETY: by this function's contract.
    unsafe { put(count, room.min(nodes.len())) }
}

pub(crate) unsafe extern "C" fn cuGraphGetNodes(
    graph: CUgraph,
    places: *mut CUgraphNode,
    count: *mut usize,
) -> CUresult {
    call(|| {
        driver()?;
        let nodes: Vec<NodeId> = Graph::get(graph)?.body().nodes.keys().copied().collect();
        // SAFETY: output arguments by contract.
        unsafe { put_nodes(&nodes, places, count) }
    })
}

pub(crate) unsafe extern "C" fn cuGraphGetRootNodes(
    graph: CUgraph,
    places: *mut CUgraphNode,
    count: *mut usize,
) -> CUresult {
    call(|| {
        driver()?;
        let graph = Graph::get(graph)?;
        let body = graph.body();
        let roots = body.nodes.iter().filter(|(_, node)| node.dependencies.is_empty());
        let roots: Vec<NodeId> = roots.map(|(&id, _)| id).collect();
        // SAFETY: output arguments by contract.
        unsafe { put_nodes(&roots, places, count) }
    })
}

pub(crate) unsafe extern "C" fn cuGraphNodeGetDependencies(
    node: CUgraphNode,
    places: *mut CUgraphNode,
    count: *mut usize,
) -> CUresult {
    call(|| {
        driver()?;
        let node = NodeId(node.0);
        let graph = graph_of(node)?;
        let before = graph.body().nodes.get(&node).map(|node| node.dependencies.clone()).unwrap_or_default();
        // SAFETY: output arguments by contract.
        unsafe { put_nodes(&before, places, count) }
    })
}

pub(super) fn replace(exec: CUgraphExec, node: CUgraphNode, op: Op) -> Result<()> {
    Exec::get(exec)?.replace(NodeId(node.0), op)
}

pub(crate) unsafe extern "C" fn cuGraphExecMemcpyNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_MEMCPY3D,
    ctx: CUcontext,
) -> CUresult {
    // SAFETY: an input structure by contract.
    call(|| replace(exec, node, unsafe { copy(params, device_of(ctx)?) }?))
}

pub(crate) unsafe extern "C" fn cuGraphExecMemsetNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_MEMSET_NODE_PARAMS,
    ctx: CUcontext,
) -> CUresult {
    // SAFETY: an input structure by contract.
    call(|| replace(exec, node, unsafe { fill(params, device_of(ctx)?) }?))
}

pub(crate) unsafe extern "C" fn cuGraphExecHostNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_HOST_NODE_PARAMS,
) -> CUresult {
    // SAFETY: an input structure by contract.
    call(|| replace(exec, node, unsafe { host(params) }?))
}
