//! What the nodes of graphs do: from CUDA's structures to the wire and back.
//!
//! Functions and memory of this process do not travel: a node that has a part here carries a
//! ticket, under which [`host_function`](crate::stream::host_function) keeps the function or the
//! copy for as long as a graph has the node.

mod answers;
mod parameters;

use std::ffi::c_void;

use sluice_cuda::*;
use sluice_wire::{GraphPlace, NodePlace, NodeWork, commands};

use crate::abi::out;
use crate::graph::edges::{check_all, node_ids};
use crate::graph::{allocation, conditional};
use crate::session::Session;
use crate::session::issue::{Issue, wanted};
use crate::{context, session};

pub(crate) use answers::{
    cuGraphBatchMemOpNodeGetParams, cuGraphEventRecordNodeGetEvent, cuGraphEventWaitNodeGetEvent,
    cuGraphHostNodeGetParams, cuGraphKernelNodeGetAttribute, cuGraphKernelNodeGetParams,
    cuGraphKernelNodeGetParams_v2, cuGraphKernelNodeSetAttribute, cuGraphMemAllocNodeGetParams,
    cuGraphMemFreeNodeGetParams, cuGraphMemcpyNodeGetParams, cuGraphMemsetNodeGetParams,
    cuGraphNodeGetParams, cuGraphNodeGetType,
};

use parameters::{
    allocation, any, batch, copy, fill, free, give_up, host, kernel, read, record_event, upgraded,
};

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
