//! Graphs that are nothing but handles: what their nodes do is recorded when it is said, and drawn
//! when it is asked for.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;

use crate::answer::{Answer, Drawn};
use crate::by_hand::{parameters, sides};
use crate::call::{Call, handle_of, handles_of};
use crate::table;

/// The nodes that live, in the order in which they were made, with their kinds.
static NODES: Mutex<Vec<(usize, CUgraphNodeType)>> = Mutex::new(Vec::new());

pub(crate) fn nodes() -> MutexGuard<'static, Vec<(usize, CUgraphNodeType)>> {
    NODES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers a call that adds a node.
///
/// # Safety
/// `to` is a place for a handle.
unsafe fn added(call: Call, kind: CUgraphNodeType, to: *mut CUgraphNode) -> CUresult {
    let mut answer = call.answer(true);
    // SAFETY: by this function's contract.
    unsafe { answer.mint("GraphNode", to.cast()) };
    if answer.result().is_success() {
        // SAFETY: written just now.
        nodes().push((unsafe { to.read() }.0, kind));
    }
    answer.result()
}

/// Where a node is added.
///
/// # Safety
/// `dependencies` has `count` handles.
unsafe fn place(name: &'static str, graph: CUgraph, dependencies: *const CUgraphNode, count: usize) -> Call {
    let mut call = Call::new(name);
    call.handle("Graph", graph.0);
    call.value(count);
    // SAFETY: by this function's contract.
    unsafe { call.handles("GraphNode", dependencies.cast(), count as u64) };
    call
}

fn changed(name: &'static str, node: CUgraphNode) -> Call {
    let mut call = Call::new(name);
    call.handle("GraphNode", node.0);
    call
}

fn changed_in(name: &'static str, executable: CUgraphExec, node: CUgraphNode) -> Call {
    let mut call = Call::new(name);
    call.handle("GraphExec", executable.0);
    call.handle("GraphNode", node.0);
    call
}

// What nodes do.

/// # Safety
/// `params` is a description whose parameters are in one buffer.
unsafe fn kernel(call: &mut Call, params: *const CUDA_KERNEL_NODE_PARAMS) {
    // SAFETY: by this function's contract.
    let it = unsafe { params.read() };
    call.handle("Function", it.func.0);
    call.values_of(&[it.gridDimX, it.gridDimY, it.gridDimZ, it.blockDimX, it.blockDimY, it.blockDimZ]);
    call.value(it.sharedMemBytes);
    // SAFETY: by this function's contract.
    unsafe { parameters(call, it.extra) };
}

/// # Safety
/// `params` is a description.
unsafe fn fill(call: &mut Call, params: *const CUDA_MEMSET_NODE_PARAMS) {
    // SAFETY: by this function's contract.
    call.value(unsafe { params.read() });
}

/// # Safety
/// `params` is a description.
unsafe fn copy(call: &mut Call, params: *const CUDA_MEMCPY3D) {
    // SAFETY: by this function's contract.
    let it = unsafe { params.read() };
    sides(call, &it);
    call.values_of(&[it.WidthInBytes, it.Height, it.Depth]);
}

/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`.
#[repr(C)]
struct Operations {
    ctx: CUcontext,
    count: u32,
    list: *mut CUstreamBatchMemOpParams,
    flags: u32,
}

/// # Safety
/// `params` is a description.
unsafe fn operations(call: &mut Call, params: *const c_void) {
    // SAFETY: by this function's contract.
    unsafe {
        let it = params.cast::<Operations>().read();
        call.value(it.count);
        call.value(it.flags);
        call.values(it.list, it.count.into());
    }
}

/// Functions that add a node of a kind and change it, in a graph and in an executable one.
macro_rules! kind {
    ($kind:ident, $params:ty, $say:ident: $add:ident($($add_context:ident)?), $set:ident, $exec:ident($($exec_context:ident)?)) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $add(
            phGraphNode: *mut CUgraphNode,
            hGraph: CUgraph,
            dependencies: *const CUgraphNode,
            numDependencies: usize,
            params: *const $params,
            $($add_context: CUcontext)?
        ) -> CUresult {
            $(let _ = $add_context;)?
            // SAFETY: the caller's arguments.
            unsafe {
                let mut call = place(stringify!($add), hGraph, dependencies, numDependencies);
                $say(&mut call, params);
                added(call, CUgraphNodeType::$kind, phGraphNode)
            }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $set(hNode: CUgraphNode, params: *const $params) -> CUresult {
            let mut call = changed(stringify!($set), hNode);
            // SAFETY: the caller's arguments.
            unsafe { $say(&mut call, params) };
            call.answer(true).result()
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $exec(
            hGraphExec: CUgraphExec,
            hNode: CUgraphNode,
            params: *const $params,
            $($exec_context: CUcontext)?
        ) -> CUresult {
            $(let _ = $exec_context;)?
            let mut call = changed_in(stringify!($exec), hGraphExec, hNode);
            // SAFETY: the caller's arguments.
            unsafe { $say(&mut call, params) };
            call.answer(true).result()
        }
    };
}

kind!(KERNEL, CUDA_KERNEL_NODE_PARAMS, kernel: cuGraphAddKernelNode_v2(), cuGraphKernelNodeSetParams_v2, cuGraphExecKernelNodeSetParams_v2());
kind!(MEMSET, CUDA_MEMSET_NODE_PARAMS, fill: cuGraphAddMemsetNode(context), cuGraphMemsetNodeSetParams, cuGraphExecMemsetNodeSetParams(context));
kind!(MEMCPY, CUDA_MEMCPY3D, copy: cuGraphAddMemcpyNode(context), cuGraphMemcpyNodeSetParams, cuGraphExecMemcpyNodeSetParams(context));
kind!(BATCH_MEM_OP, c_void, operations: cuGraphAddBatchMemOpNode(), cuGraphBatchMemOpNodeSetParams, cuGraphExecBatchMemOpNodeSetParams());

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphAddEmptyNode(
    phGraphNode: *mut CUgraphNode,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    numDependencies: usize,
) -> CUresult {
    // SAFETY: the caller's arguments.
    unsafe {
        let call = place("cuGraphAddEmptyNode", hGraph, dependencies, numDependencies);
        added(call, CUgraphNodeType::EMPTY, phGraphNode)
    }
}

/// Functions that add a node for an event, and that ask for it.
macro_rules! event {
    ($kind:ident: $add:ident, $get:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $add(
            phGraphNode: *mut CUgraphNode,
            hGraph: CUgraph,
            dependencies: *const CUgraphNode,
            numDependencies: usize,
            event: CUevent,
        ) -> CUresult {
            // SAFETY: the caller's arguments.
            unsafe {
                let mut call = place(stringify!($add), hGraph, dependencies, numDependencies);
                call.handle("Event", event.0);
                added(call, CUgraphNodeType::$kind, phGraphNode)
            }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $get(hNode: CUgraphNode, event_out: *mut CUevent) -> CUresult {
            let mut answer = changed(stringify!($get), hNode).answer(true);
            if answer.result().is_success() {
                let number = answer.below(handles_of("Event"));
                // SAFETY: the caller's place.
                unsafe { event_out.write(CUevent(handle_of("Event", number))) };
            }
            answer.result()
        }
    };
}

event!(EVENT_RECORD: cuGraphAddEventRecordNode, cuGraphEventRecordNodeGetEvent);
event!(WAIT_EVENT: cuGraphAddEventWaitNode, cuGraphEventWaitNodeGetEvent);

// What is asked about nodes.

/// Not compared: workers ask by themselves.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphNodeGetType(hNode: CUgraphNode, kind: *mut CUgraphNodeType) -> CUresult {
    match nodes().iter().find(|(node, _)| *node == hNode.0) {
        Some((_, known)) => {
            // SAFETY: the caller's place.
            unsafe { kind.write(*known) };
            CUresult::SUCCESS
        }
        None => CUresult::INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphMemsetNodeGetParams(
    hNode: CUgraphNode,
    nodeParams: *mut CUDA_MEMSET_NODE_PARAMS,
) -> CUresult {
    let mut answer = changed("cuGraphMemsetNodeGetParams", hNode).answer(true);
    // SAFETY: the caller's place.
    unsafe { answer.write(nodeParams) };
    answer.result()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphMemcpyNodeGetParams(
    hNode: CUgraphNode,
    nodeParams: *mut CUDA_MEMCPY3D,
) -> CUresult {
    let mut answer = changed("cuGraphMemcpyNodeGetParams", hNode).answer(true);
    if answer.result().is_success() {
        // SAFETY: the caller's place.
        unsafe { nodeParams.write(answer.copy()) };
    }
    answer.result()
}

/// The values of a kernel node's parameters, and where each is.
type Values = (Vec<Vec<u8>>, Vec<usize>);

/// What was answered last about kernel nodes.
static VALUES: Mutex<BTreeMap<usize, Values>> = Mutex::new(BTreeMap::new());

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphKernelNodeGetParams_v2(
    hNode: CUgraphNode,
    nodeParams: *mut CUDA_KERNEL_NODE_PARAMS,
) -> CUresult {
    let mut answer = changed("cuGraphKernelNodeGetParams_v2", hNode).answer(true);
    if !answer.result().is_success() {
        return answer.result();
    }
    let func = CUfunction(handle_of("Function", answer.below(handles_of("Function"))));
    let [x, y, z, bx, by, bz, shared] = answer.numbers();
    let info = table().cuFuncGetParamInfo.expect("the recording driver has it");
    let mut values = Vec::new();
    let (mut offset, mut size) = (0, 0);
    // SAFETY: a live function, and two places.
    while unsafe { info(func, values.len(), &mut offset, &mut size) }.is_success() {
        values.push(answer.bytes(size));
    }
    let mut places: Vec<usize> = values.iter().map(|value| value.as_ptr() as usize).collect();
    // A kernel without parameters has a list, too.
    places.push(0);
    let kernelParams = places.as_mut_ptr().cast();
    VALUES.lock().unwrap_or_else(PoisonError::into_inner).insert(hNode.0, (values, places));
    let params = CUDA_KERNEL_NODE_PARAMS {
        func,
        gridDimX: x,
        gridDimY: y,
        gridDimZ: z,
        blockDimX: bx,
        blockDimY: by,
        blockDimZ: bz,
        sharedMemBytes: shared,
        kernelParams,
        extra: std::ptr::null_mut(),
        kern: CUkernel::NULL,
        ctx: CUcontext::NULL,
    };
    // SAFETY: the caller's place.
    unsafe { nodeParams.write(params) };
    CUresult::SUCCESS
}

/// What was answered last about the operations of a node.
static OPERATIONS: Mutex<BTreeMap<usize, Vec<CUstreamBatchMemOpParams>>> = Mutex::new(BTreeMap::new());

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphBatchMemOpNodeGetParams(
    hNode: CUgraphNode,
    nodeParams_out: *mut c_void,
) -> CUresult {
    let mut answer = changed("cuGraphBatchMemOpNodeGetParams", hNode).answer(true);
    if !answer.result().is_success() {
        return answer.result();
    }
    let Drawn { flags, words } = answer.operations();
    let mut list: Vec<_> = words.into_iter().map(|words| CUstreamBatchMemOpParams { words }).collect();
    let params =
        Operations { ctx: CUcontext::NULL, count: list.len() as u32, list: list.as_mut_ptr(), flags };
    OPERATIONS.lock().unwrap_or_else(PoisonError::into_inner).insert(hNode.0, list);
    // SAFETY: the caller's place.
    unsafe { nodeParams_out.cast::<Operations>().write(params) };
    CUresult::SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphKernelNodeGetAttribute(
    hNode: CUgraphNode,
    attr: u32,
    value_out: *mut c_void,
) -> CUresult {
    let mut call = changed("cuGraphKernelNodeGetAttribute", hNode);
    call.value(attr);
    let mut answer = call.answer(true);
    // SAFETY: the caller's place.
    unsafe { answer.write(value_out.cast::<CUlaunchAttributeValue>()) };
    answer.result()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphKernelNodeSetAttribute(
    hNode: CUgraphNode,
    attr: u32,
    value: *const c_void,
) -> CUresult {
    let mut call = changed("cuGraphKernelNodeSetAttribute", hNode);
    call.value(attr);
    // SAFETY: the caller's value.
    call.value(unsafe { value.cast::<CUlaunchAttributeValue>().read() });
    call.answer(true).result()
}

// Structure.

/// Answers with some of the nodes that live, and edges if there are places for them. Recorded is
/// the call that asks how many.
///
/// # Safety
/// `count` is a place, and the lists are null or have room for as many.
unsafe fn list(
    call: Call,
    lists: [*mut CUgraphNode; 2],
    edges: *mut CUgraphEdgeData,
    count: *mut usize,
) -> CUresult {
    // Workers ask for all nodes by themselves, to count them. Those with graphs inside would be
    // counted again and again.
    let counts = call.name() == "cuGraphGetNodes";
    let asks_how_many = lists[0].is_null();
    let mut answer = if asks_how_many { call.answer(!counts) } else { call.answer_again(!counts) };
    if !answer.result().is_success() {
        return answer.result();
    }
    let is_listed = |kind: CUgraphNodeType| !counts || kind != CUgraphNodeType::GRAPH;
    let live: Vec<usize> =
        nodes().iter().filter(|(_, kind)| is_listed(*kind)).map(|(node, _)| *node).collect();
    let items = answer.items(live.len());
    // SAFETY: by this function's contract.
    unsafe {
        if !asks_how_many {
            for (index, item) in items.iter().enumerate() {
                let places = lists.iter().filter(|list| !list.is_null());
                places
                    .zip(item.nodes)
                    .for_each(|(list, node)| list.add(index).write(CUgraphNode(live[node])));
                if !edges.is_null() {
                    edges.add(index).write(item.edge);
                }
            }
        }
        count.write(items.len());
    }
    CUresult::SUCCESS
}

fn of_graph(name: &'static str, graph: CUgraph) -> Call {
    let mut call = Call::new(name);
    call.handle("Graph", graph.0);
    call
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphGetNodes(
    hGraph: CUgraph,
    nodes: *mut CUgraphNode,
    numNodes: *mut usize,
) -> CUresult {
    let none = std::ptr::null_mut();
    // SAFETY: the caller's lists.
    unsafe { list(of_graph("cuGraphGetNodes", hGraph), [nodes, none], none.cast(), numNodes) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphGetRootNodes(
    hGraph: CUgraph,
    rootNodes: *mut CUgraphNode,
    numRootNodes: *mut usize,
) -> CUresult {
    let none = std::ptr::null_mut();
    // SAFETY: the caller's lists.
    unsafe { list(of_graph("cuGraphGetRootNodes", hGraph), [rootNodes, none], none.cast(), numRootNodes) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphGetEdges_v2(
    hGraph: CUgraph,
    from_: *mut CUgraphNode,
    to_: *mut CUgraphNode,
    edgeData: *mut CUgraphEdgeData,
    numEdges: *mut usize,
) -> CUresult {
    // SAFETY: the caller's lists.
    unsafe { list(of_graph("cuGraphGetEdges_v2", hGraph), [from_, to_], edgeData, numEdges) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphNodeGetDependencies_v2(
    hNode: CUgraphNode,
    dependencies: *mut CUgraphNode,
    edgeData: *mut CUgraphEdgeData,
    numDependencies: *mut usize,
) -> CUresult {
    let call = changed("cuGraphNodeGetDependencies_v2", hNode);
    // SAFETY: the caller's lists.
    unsafe { list(call, [dependencies, std::ptr::null_mut()], edgeData, numDependencies) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphNodeGetDependentNodes_v2(
    hNode: CUgraphNode,
    dependentNodes: *mut CUgraphNode,
    edgeData: *mut CUgraphEdgeData,
    numDependentNodes: *mut usize,
) -> CUresult {
    let call = changed("cuGraphNodeGetDependentNodes_v2", hNode);
    // SAFETY: the caller's lists.
    unsafe { list(call, [dependentNodes, std::ptr::null_mut()], edgeData, numDependentNodes) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphDestroyNode(hNode: CUgraphNode) -> CUresult {
    let result = changed("cuGraphDestroyNode", hNode).answer(true).result();
    if result.is_success() {
        nodes().retain(|(node, _)| *node != hNode.0);
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphInstantiateWithFlags(
    phGraphExec: *mut CUgraphExec,
    hGraph: CUgraph,
    flags: u64,
) -> CUresult {
    let mut call = of_graph("cuGraphInstantiateWithFlags", hGraph);
    call.value(flags);
    let mut answer = call.answer(true);
    // SAFETY: the caller's place.
    unsafe { answer.mint("GraphExec", phGraphExec.cast()) };
    answer.result()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphExecDestroy(hGraphExec: CUgraphExec) -> CUresult {
    let mut call = Call::new("cuGraphExecDestroy");
    call.handle("GraphExec", hGraphExec.0);
    call.answer(false).result()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphExecUpdate_v2(
    hGraphExec: CUgraphExec,
    hGraph: CUgraph,
    resultInfo: *mut CUgraphExecUpdateResultInfo,
) -> CUresult {
    let mut call = Call::new("cuGraphExecUpdate_v2");
    call.handle("GraphExec", hGraphExec.0);
    call.handle("Graph", hGraph.0);
    // SAFETY: the caller's place.
    unsafe { resultInfo.write(CUgraphExecUpdateResultInfo::default()) };
    call.answer(true).result()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphClone(phGraphClone: *mut CUgraph, originalGraph: CUgraph) -> CUresult {
    let mut answer = of_graph("cuGraphClone", originalGraph).answer(true);
    // SAFETY: the caller's place.
    unsafe { answer.mint("Graph", phGraphClone.cast()) };
    answer.result()
}

/// Nobody asks for a graph that is gone, so that its number stays its own.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphDestroy(hGraph: CUgraph) -> CUresult {
    of_graph("cuGraphDestroy", hGraph).answer(false).result()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphNodeFindInClone(
    phNode: *mut CUgraphNode,
    hOriginalNode: CUgraphNode,
    hClonedGraph: CUgraph,
) -> CUresult {
    let mut call = changed("cuGraphNodeFindInClone", hOriginalNode);
    call.handle("Graph", hClonedGraph.0);
    let mut answer = call.answer(true);
    if answer.result().is_success() {
        let nodes = nodes();
        // SAFETY: the caller's place.
        unsafe { phNode.write(CUgraphNode(nodes[answer.below(nodes.len())].0)) };
    }
    answer.result()
}

// Graphs inside nodes: each node gets one of its own.

/// By the node.
static INNER: Mutex<BTreeMap<usize, CUgraph>> = Mutex::new(BTreeMap::new());

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphAddChildGraphNode(
    phGraphNode: *mut CUgraphNode,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    numDependencies: usize,
    childGraph: CUgraph,
) -> CUresult {
    // SAFETY: the caller's arguments.
    let result = unsafe {
        let mut call = place("cuGraphAddChildGraphNode", hGraph, dependencies, numDependencies);
        call.handle("Graph", childGraph.0);
        added(call, CUgraphNodeType::GRAPH, phGraphNode)
    };
    if result.is_success() {
        let mut inner = CUgraph::NULL;
        // SAFETY: written just now; and a place for a handle.
        unsafe {
            Answer::to("", &[], false).mint("Graph", (&raw mut inner).cast());
            INNER.lock().unwrap_or_else(PoisonError::into_inner).insert(phGraphNode.read().0, inner);
        }
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphExecChildGraphNodeSetParams(
    hGraphExec: CUgraphExec,
    hNode: CUgraphNode,
    childGraph: CUgraph,
) -> CUresult {
    let mut call = changed_in("cuGraphExecChildGraphNodeSetParams", hGraphExec, hNode);
    call.handle("Graph", childGraph.0);
    call.answer(true).result()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphChildGraphNodeGetGraph(hNode: CUgraphNode, phGraph: *mut CUgraph) -> CUresult {
    let inner = INNER.lock().unwrap_or_else(PoisonError::into_inner).get(&hNode.0).copied();
    let Some(inner) = inner else { return CUresult::INVALID_VALUE };
    // SAFETY: the caller's place.
    unsafe { phGraph.write(inner) };
    changed("cuGraphChildGraphNodeGetGraph", hNode).answer(false).result()
}
