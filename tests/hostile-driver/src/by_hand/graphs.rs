//! Graphs.

#![allow(non_snake_case)] // CUDA's names
#![allow(unused_variables)] // prototypes are those of the list

use std::ffi::c_void;

use sluice_cuda::*;

use super::ByHand;
use crate::call::{Call, Violation};
use crate::generated::Graphs;
use crate::objects;
use crate::structures::*;

impl Graphs for ByHand {
    fn cuGraphInstantiateWithFlags(
        call: &Call,
        phGraphExec: *mut CUgraphExec,
        hGraph: CUgraph,
        flags: u64,
    ) -> Result<(), Violation> {
        call.bits(flags, 15)
    }

    fn cuGraphAddEmptyNode(
        call: &Call,
        phGraphNode: *mut CUgraphNode,
        hGraph: CUgraph,
        dependencies: *const CUgraphNode,
        numDependencies: usize,
    ) -> Result<(), Violation> {
        call.out(phGraphNode)?;
        call.nodes(dependencies, numDependencies)?;
        Ok(())
    }

    fn cuGraphConditionalHandleCreate(
        call: &Call,
        pHandle_out: *mut u64,
        hGraph: CUgraph,
        ctx: CUcontext,
        defaultLaunchValue: u32,
        flags: u32,
    ) -> Result<(), Violation> {
        call.out(pHandle_out)?;
        call.bits(flags.into(), 1)
    }

    fn cuGraphAddNode_v2(
        call: &Call,
        phGraphNode: *mut CUgraphNode,
        hGraph: CUgraph,
        dependencies: *const CUgraphNode,
        dependencyData: *const CUgraphEdgeData,
        numDependencies: usize,
        nodeParams: *mut CUgraphNodeParams,
    ) -> Result<(), Violation> {
        call.out(phGraphNode)?;
        call.nodes(dependencies, numDependencies)?;
        let params = call.read(nodeParams)?;
        call.one_of(params.kind, &[CUgraphNodeType::CONDITIONAL])?;
        call.live(CUcontext(params.words[3] as usize))?;
        match (params.words[1] as u32, params.words[1] >> 32) {
            (0, 1 | 2) | (1, 1) | (2, 1..=4096) => Ok(()),
            (kind, bodies) => Err(format!("a conditional node of kind {kind} with {bodies} bodies")),
        }
    }

    fn cuGraphAddChildGraphNode(
        call: &Call,
        phGraphNode: *mut CUgraphNode,
        hGraph: CUgraph,
        dependencies: *const CUgraphNode,
        numDependencies: usize,
        childGraph: CUgraph,
    ) -> Result<(), Violation> {
        call.out(phGraphNode)?;
        call.nodes(dependencies, numDependencies)?;
        Ok(())
    }

    fn cuGraphAddEventRecordNode(
        call: &Call,
        phGraphNode: *mut CUgraphNode,
        hGraph: CUgraph,
        dependencies: *const CUgraphNode,
        numDependencies: usize,
        event: CUevent,
    ) -> Result<(), Violation> {
        call.out(phGraphNode)?;
        call.nodes(dependencies, numDependencies)?;
        Ok(())
    }

    fn cuGraphAddEventWaitNode(
        call: &Call,
        phGraphNode: *mut CUgraphNode,
        hGraph: CUgraph,
        dependencies: *const CUgraphNode,
        numDependencies: usize,
        event: CUevent,
    ) -> Result<(), Violation> {
        call.out(phGraphNode)?;
        call.nodes(dependencies, numDependencies)?;
        Ok(())
    }

    fn cuGraphAddKernelNode_v2(
        call: &Call,
        phGraphNode: *mut CUgraphNode,
        hGraph: CUgraph,
        dependencies: *const CUgraphNode,
        numDependencies: usize,
        nodeParams: *const CUDA_KERNEL_NODE_PARAMS,
    ) -> Result<(), Violation> {
        call.out(phGraphNode)?;
        call.nodes(dependencies, numDependencies)?;
        call.kernel(&call.read(nodeParams)?)
    }

    fn cuGraphAddMemcpyNode(
        call: &Call,
        phGraphNode: *mut CUgraphNode,
        hGraph: CUgraph,
        dependencies: *const CUgraphNode,
        numDependencies: usize,
        copyParams: *const CUDA_MEMCPY3D,
        ctx: CUcontext,
    ) -> Result<(), Violation> {
        call.out(phGraphNode)?;
        call.nodes(dependencies, numDependencies)?;
        call.copy(&call.read(copyParams)?)
    }

    fn cuGraphAddMemsetNode(
        call: &Call,
        phGraphNode: *mut CUgraphNode,
        hGraph: CUgraph,
        dependencies: *const CUgraphNode,
        numDependencies: usize,
        memsetParams: *const CUDA_MEMSET_NODE_PARAMS,
        ctx: CUcontext,
    ) -> Result<(), Violation> {
        call.out(phGraphNode)?;
        call.nodes(dependencies, numDependencies)?;
        call.fill(&call.read(memsetParams)?)
    }

    fn cuGraphAddHostNode(
        call: &Call,
        phGraphNode: *mut CUgraphNode,
        hGraph: CUgraph,
        dependencies: *const CUgraphNode,
        numDependencies: usize,
        nodeParams: *const CUDA_HOST_NODE_PARAMS,
    ) -> Result<(), Violation> {
        call.out(phGraphNode)?;
        call.nodes(dependencies, numDependencies)?;
        call.host_node(&call.read(nodeParams)?)
    }

    fn cuGraphAddBatchMemOpNode(
        call: &Call,
        phGraphNode: *mut CUgraphNode,
        hGraph: CUgraph,
        dependencies: *const CUgraphNode,
        numDependencies: usize,
        nodeParams: *const c_void,
    ) -> Result<(), Violation> {
        call.out(phGraphNode)?;
        call.nodes(dependencies, numDependencies)?;
        call.memory_ops(nodeParams)
    }

    fn cuGraphKernelNodeSetParams_v2(
        call: &Call,
        hNode: CUgraphNode,
        nodeParams: *const CUDA_KERNEL_NODE_PARAMS,
    ) -> Result<(), Violation> {
        call.kernel(&call.read(nodeParams)?)
    }

    fn cuGraphMemcpyNodeSetParams(
        call: &Call,
        hNode: CUgraphNode,
        nodeParams: *const CUDA_MEMCPY3D,
    ) -> Result<(), Violation> {
        call.copy(&call.read(nodeParams)?)
    }

    fn cuGraphMemsetNodeSetParams(
        call: &Call,
        hNode: CUgraphNode,
        nodeParams: *const CUDA_MEMSET_NODE_PARAMS,
    ) -> Result<(), Violation> {
        call.fill(&call.read(nodeParams)?)
    }

    fn cuGraphHostNodeSetParams(
        call: &Call,
        hNode: CUgraphNode,
        nodeParams: *const CUDA_HOST_NODE_PARAMS,
    ) -> Result<(), Violation> {
        call.host_node(&call.read(nodeParams)?)
    }

    fn cuGraphBatchMemOpNodeSetParams(
        call: &Call,
        hNode: CUgraphNode,
        nodeParams: *const c_void,
    ) -> Result<(), Violation> {
        call.memory_ops(nodeParams)
    }

    fn cuGraphExecKernelNodeSetParams_v2(
        call: &Call,
        hGraphExec: CUgraphExec,
        hNode: CUgraphNode,
        nodeParams: *const CUDA_KERNEL_NODE_PARAMS,
    ) -> Result<(), Violation> {
        call.kernel(&call.read(nodeParams)?)
    }

    fn cuGraphExecMemcpyNodeSetParams(
        call: &Call,
        hGraphExec: CUgraphExec,
        hNode: CUgraphNode,
        copyParams: *const CUDA_MEMCPY3D,
        ctx: CUcontext,
    ) -> Result<(), Violation> {
        call.copy(&call.read(copyParams)?)
    }

    fn cuGraphExecMemsetNodeSetParams(
        call: &Call,
        hGraphExec: CUgraphExec,
        hNode: CUgraphNode,
        memsetParams: *const CUDA_MEMSET_NODE_PARAMS,
        ctx: CUcontext,
    ) -> Result<(), Violation> {
        call.fill(&call.read(memsetParams)?)
    }

    fn cuGraphExecHostNodeSetParams(
        call: &Call,
        hGraphExec: CUgraphExec,
        hNode: CUgraphNode,
        nodeParams: *const CUDA_HOST_NODE_PARAMS,
    ) -> Result<(), Violation> {
        call.host_node(&call.read(nodeParams)?)
    }

    fn cuGraphExecBatchMemOpNodeSetParams(
        call: &Call,
        hGraphExec: CUgraphExec,
        hNode: CUgraphNode,
        nodeParams: *const c_void,
    ) -> Result<(), Violation> {
        call.memory_ops(nodeParams)
    }

    fn cuGraphBatchMemOpNodeGetParams(
        call: &Call,
        hNode: CUgraphNode,
        nodeParams_out: *mut c_void,
    ) -> Result<(), Violation> {
        call.out(nodeParams_out.cast::<BatchParams>())
    }

    fn cuGraphKernelNodeGetParams_v2(
        call: &Call,
        hNode: CUgraphNode,
        nodeParams: *mut CUDA_KERNEL_NODE_PARAMS,
    ) -> Result<(), Violation> {
        call.out(nodeParams)
    }

    fn cuGraphMemcpyNodeGetParams(
        call: &Call,
        hNode: CUgraphNode,
        nodeParams: *mut CUDA_MEMCPY3D,
    ) -> Result<(), Violation> {
        call.out(nodeParams)
    }

    fn cuGraphMemsetNodeGetParams(
        call: &Call,
        hNode: CUgraphNode,
        nodeParams: *mut CUDA_MEMSET_NODE_PARAMS,
    ) -> Result<(), Violation> {
        call.out(nodeParams)
    }

    fn cuGraphHostNodeGetParams(
        call: &Call,
        hNode: CUgraphNode,
        nodeParams: *mut CUDA_HOST_NODE_PARAMS,
    ) -> Result<(), Violation> {
        call.out(nodeParams)
    }

    fn cuGraphEventRecordNodeGetEvent(
        call: &Call,
        hNode: CUgraphNode,
        event_out: *mut CUevent,
    ) -> Result<(), Violation> {
        call.out(event_out)
    }

    fn cuGraphEventWaitNodeGetEvent(
        call: &Call,
        hNode: CUgraphNode,
        event_out: *mut CUevent,
    ) -> Result<(), Violation> {
        call.out(event_out)
    }

    fn cuGraphChildGraphNodeGetGraph(
        call: &Call,
        hNode: CUgraphNode,
        phGraph: *mut CUgraph,
    ) -> Result<(), Violation> {
        call.out(phGraph)
    }

    fn cuGraphNodeFindInClone(
        call: &Call,
        phNode: *mut CUgraphNode,
        hOriginalNode: CUgraphNode,
        hClonedGraph: CUgraph,
    ) -> Result<(), Violation> {
        call.out(phNode)
    }

    fn cuGraphNodeGetContainingGraph(
        call: &Call,
        hNode: CUgraphNode,
        phGraph: *mut CUgraph,
    ) -> Result<(), Violation> {
        call.out(phGraph)
    }

    fn cuGraphExecUpdate_v2(
        call: &Call,
        hGraphExec: CUgraphExec,
        hGraph: CUgraph,
        resultInfo: *mut CUgraphExecUpdateResultInfo,
    ) -> Result<(), Violation> {
        call.out(resultInfo)
    }

    fn cuGraphKernelNodeGetAttribute(
        call: &Call,
        hNode: CUgraphNode,
        attr: u32,
        value_out: *mut c_void,
    ) -> Result<(), Violation> {
        call.within(attr.into(), 0..=ATTRIBUTE_LAST)?;
        call.out(value_out.cast::<CUlaunchAttributeValue>())
    }

    fn cuGraphKernelNodeSetAttribute(
        call: &Call,
        hNode: CUgraphNode,
        attr: u32,
        value: *const c_void,
    ) -> Result<(), Violation> {
        call.attribute(attr, &call.read(value.cast::<CUlaunchAttributeValue>())?)
    }

    fn cuGraphGetNodes(
        call: &Call,
        hGraph: CUgraph,
        nodes: *mut CUgraphNode,
        numNodes: *mut usize,
    ) -> Result<(), Violation> {
        let count = call.read(numNodes.cast_const())?;
        call.room(nodes, count)?;
        Ok(())
    }

    fn cuGraphGetRootNodes(
        call: &Call,
        hGraph: CUgraph,
        rootNodes: *mut CUgraphNode,
        numRootNodes: *mut usize,
    ) -> Result<(), Violation> {
        let count = call.read(numRootNodes.cast_const())?;
        call.room(rootNodes, count)?;
        Ok(())
    }

    fn cuGraphGetEdges(
        call: &Call,
        hGraph: CUgraph,
        from_: *mut CUgraphNode,
        to_: *mut CUgraphNode,
        numEdges: *mut usize,
    ) -> Result<(), Violation> {
        let count = call.read(numEdges.cast_const())?;
        call.room(from_, count)?;
        call.room(to_, count)?;
        Ok(())
    }

    fn cuGraphGetEdges_v2(
        call: &Call,
        hGraph: CUgraph,
        from_: *mut CUgraphNode,
        to_: *mut CUgraphNode,
        edgeData: *mut CUgraphEdgeData,
        numEdges: *mut usize,
    ) -> Result<(), Violation> {
        let count = call.read(numEdges.cast_const())?;
        call.room(from_, count)?;
        call.room(to_, count)?;
        call.room(edgeData, count)?;
        Ok(())
    }

    fn cuGraphNodeGetDependencies(
        call: &Call,
        hNode: CUgraphNode,
        dependencies: *mut CUgraphNode,
        numDependencies: *mut usize,
    ) -> Result<(), Violation> {
        let count = call.read(numDependencies.cast_const())?;
        call.room(dependencies, count)?;
        Ok(())
    }

    fn cuGraphNodeGetDependencies_v2(
        call: &Call,
        hNode: CUgraphNode,
        dependencies: *mut CUgraphNode,
        edgeData: *mut CUgraphEdgeData,
        numDependencies: *mut usize,
    ) -> Result<(), Violation> {
        let count = call.read(numDependencies.cast_const())?;
        call.room(dependencies, count)?;
        call.room(edgeData, count)?;
        Ok(())
    }

    fn cuGraphNodeGetDependentNodes(
        call: &Call,
        hNode: CUgraphNode,
        dependentNodes: *mut CUgraphNode,
        numDependentNodes: *mut usize,
    ) -> Result<(), Violation> {
        let count = call.read(numDependentNodes.cast_const())?;
        call.room(dependentNodes, count)?;
        Ok(())
    }

    fn cuGraphNodeGetDependentNodes_v2(
        call: &Call,
        hNode: CUgraphNode,
        dependentNodes: *mut CUgraphNode,
        edgeData: *mut CUgraphEdgeData,
        numDependentNodes: *mut usize,
    ) -> Result<(), Violation> {
        let count = call.read(numDependentNodes.cast_const())?;
        call.room(dependentNodes, count)?;
        call.room(edgeData, count)?;
        Ok(())
    }

    fn cuUserObjectRetain(call: &Call, object: CUuserObject, count: u32) -> Result<(), Violation> {
        objects::retain(object, count);
        Ok(())
    }

    fn cuUserObjectRelease(call: &Call, object: CUuserObject, count: u32) -> Result<(), Violation> {
        objects::release(object, count)
    }

    fn cuGraphRetainUserObject(
        call: &Call,
        graph: CUgraph,
        object: CUuserObject,
        count: u32,
        flags: u32,
    ) -> Result<(), Violation> {
        objects::graph_retains(graph, object, count, flags)
    }

    fn cuGraphReleaseUserObject(
        call: &Call,
        graph: CUgraph,
        object: CUuserObject,
        count: u32,
    ) -> Result<(), Violation> {
        objects::graph_releases(graph, object, count)
    }
}
