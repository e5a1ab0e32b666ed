//! The commands that are executed by hand.
//!
//! Each method of [`Custom`] calls the module that does the work. Most of these are modules of the
//! crate; those in this folder hold what only these commands need.

#![allow(non_snake_case)] // CUDA's names

mod device_memory;
mod launches;
mod loading;
mod streams;

use sluice_cuda::*;
use sluice_wire::{BULK_SIZE_MAX, DevicePtr, Encode, PeerToken, commands};

use crate::arrays;
use crate::arrays::texture_references;
use crate::arrays::textures;
use crate::arrays::tiles;
use crate::copies;
use crate::copies::mirror;
use crate::generated::dispatch::Custom;
use crate::graphs;
use crate::green;
use crate::memory::budget::Claim;
use crate::memory::virtual_memory;
use crate::modules;
use crate::session::Session;
use crate::session::attributes;
use crate::session::execute::Execute;
use crate::sharing;
use crate::sharing::peers;

pub(crate) use self::device_memory::described;
pub(crate) use self::launches::packed;

impl Custom for Session {
    fn cuCtxSynchronize(&self, _command: commands::cuCtxSynchronize) -> Result<(), CUresult> {
        self.synchronize()
    }

    fn cuStreamWaitEvent(&self, command: commands::cuStreamWaitEvent) -> Result<(), CUresult> {
        self.stream_wait_event(command)
    }

    fn cuCtxSetLimit(&self, command: commands::cuCtxSetLimit) -> Result<(), CUresult> {
        self.set_limit(command)
    }

    fn cuModuleLoadDataEx(
        &self,
        command: commands::cuModuleLoadDataEx,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let commands::cuModuleLoadDataEx { module, image, options } = command;
        self.load(module, image, &options, reply).map(drop)
    }

    /// What builds on it gets the reason why it is not there.
    fn ModuleLoadAhead(
        &self,
        command: commands::ModuleLoadAhead,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        self.load_ahead(command, reply)
    }

    fn cuModuleUnload(&self, command: commands::cuModuleUnload) -> Result<(), CUresult> {
        self.unload_module(command)
    }

    fn cuModuleGetFunction(
        &self,
        command: commands::cuModuleGetFunction<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let info = self.take_function(command.hfunc, command.hmod, command.name)?;
        commands::cuModuleGetFunctionReply { info }.encode(reply);
        Ok(())
    }

    fn FunctionNamed(&self, command: commands::FunctionNamed<'_>) -> Result<(), CUresult> {
        self.take_function(command.hfunc, command.hmod, command.name).map(drop)
    }

    fn cuModuleGetGlobal_v2(
        &self,
        command: commands::cuModuleGetGlobal_v2<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        self.global(command, reply)
    }

    fn cuFuncSetAttribute(&self, command: commands::cuFuncSetAttribute) -> Result<(), CUresult> {
        self.set_function_attribute(command)
    }

    fn cuMemGetInfo_v2(
        &self,
        _command: commands::cuMemGetInfo_v2,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        self.memory_info(reply)
    }

    fn cuMemAlloc_v2(&self, command: commands::cuMemAlloc_v2, reply: &mut Vec<u8>) -> Result<(), CUresult> {
        let (gpu, _) = self.device()?;
        let address = self.memory.allocate(&self.table, &self.budget, gpu, command.bytesize)?;
        commands::cuMemAlloc_v2Reply { dptr: DevicePtr(address) }.encode(reply);
        Ok(())
    }

    fn cuMemFree_v2(&self, command: commands::cuMemFree_v2) -> Result<(), CUresult> {
        self.memory.free(&self.table, &self.budget, command.dptr.0)
    }

    fn MemoryCommit(&self, command: commands::MemoryCommit) -> Result<(), CUresult> {
        self.commit_memory(command)
    }

    fn MemoryCommitAllowed(&self, command: commands::MemoryCommitAllowed) -> Result<(), CUresult> {
        self.commit((command.address.0, command.bytes), Claim::Allowed)
    }

    fn MemoryDecommit(&self, command: commands::MemoryDecommit) -> Result<(), CUresult> {
        let (address, bytes) = (command.address.0, command.bytes);
        let leave = || self.live.leave(address, bytes);
        self.memory.decommit(&self.table, &self.budget, (address, bytes), leave)
    }

    fn cuMemGetAllocationGranularity(
        &self,
        command: commands::cuMemGetAllocationGranularity,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let granularity = virtual_memory::granularity(self, &command.prop, command.option)?;
        commands::cuMemGetAllocationGranularityReply { granularity }.encode(reply);
        Ok(())
    }

    fn cuMemCreate(&self, command: commands::cuMemCreate) -> Result<(), CUresult> {
        virtual_memory::create(self, command, Claim::Asked)
    }

    fn PhysicalCreateAllowed(&self, command: commands::PhysicalCreateAllowed) -> Result<(), CUresult> {
        let commands::PhysicalCreateAllowed { handle, size, prop } = command;
        let command = commands::cuMemCreate { handle, size, prop, flags: 0 };
        virtual_memory::create(self, command, Claim::Allowed)
    }

    fn cuMemRelease(&self, command: commands::cuMemRelease) -> Result<(), CUresult> {
        virtual_memory::release(self, command.handle)
    }

    fn cuMemMap(&self, command: commands::cuMemMap) -> Result<(), CUresult> {
        virtual_memory::map(self, command)
    }

    fn cuMemUnmap(&self, command: commands::cuMemUnmap) -> Result<(), CUresult> {
        virtual_memory::unmap(self, command.ptr, command.size)
    }

    fn cuMemSetAccess(&self, command: commands::cuMemSetAccess) -> Result<(), CUresult> {
        virtual_memory::set_access(self, command)
    }

    fn cuMemcpyHtoDAsync_v2(&self, command: commands::cuMemcpyHtoDAsync_v2<'_>) -> Result<(), CUresult> {
        copies::to_device(self, &command)
    }

    fn cuMemcpyDtoH_v2(
        &self,
        command: commands::cuMemcpyDtoH_v2,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        copies::to_host_now(self, &command, reply)
    }

    fn cuMemcpyDtoHAsync_v2(&self, command: commands::cuMemcpyDtoHAsync_v2) -> Result<(), CUresult> {
        copies::to_host(self, &command)
    }

    fn cuMemcpyDtoDAsync_v2(&self, command: commands::cuMemcpyDtoDAsync_v2) -> Result<(), CUresult> {
        self.copy_between(command)
    }

    fn cuMemcpy3DAsync_v2(&self, command: commands::cuMemcpy3DAsync_v2) -> Result<(), CUresult> {
        self.copy_box(command)
    }

    fn cuArray3DCreate_v2(&self, command: commands::cuArray3DCreate_v2) -> Result<(), CUresult> {
        arrays::create(self, command.pHandle, &command.shape, Claim::Asked)
    }

    fn ArrayCreateAllowed(&self, command: commands::ArrayCreateAllowed) -> Result<(), CUresult> {
        arrays::create(self, command.pHandle, &command.shape, Claim::Allowed)
    }

    fn cuArrayDestroy(&self, command: commands::cuArrayDestroy) -> Result<(), CUresult> {
        arrays::destroy(self, command.hArray)
    }

    fn cuMipmappedArrayCreate(&self, command: commands::cuMipmappedArrayCreate) -> Result<(), CUresult> {
        arrays::create_mipmapped(self, &command)
    }

    fn cuMipmappedArrayDestroy(&self, command: commands::cuMipmappedArrayDestroy) -> Result<(), CUresult> {
        arrays::destroy_mipmapped(self, command.hMipmappedArray)
    }

    fn cuMipmappedArrayGetLevel(&self, command: commands::cuMipmappedArrayGetLevel) -> Result<(), CUresult> {
        arrays::level(self, &command)
    }

    fn cuMemMapArrayAsync(&self, command: commands::cuMemMapArrayAsync) -> Result<(), CUresult> {
        tiles::map(self, &command)
    }

    fn cuArrayGetSparseProperties(
        &self,
        command: commands::cuArrayGetSparseProperties,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let properties = tiles::properties(self, tiles::Handle::Array(self.find(command.array)?))?;
        commands::cuArrayGetSparsePropertiesReply { properties }.encode(reply);
        Ok(())
    }

    fn cuMipmappedArrayGetSparseProperties(
        &self,
        command: commands::cuMipmappedArrayGetSparseProperties,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let properties = tiles::properties(self, tiles::Handle::Mipmapped(self.find(command.mipmap)?))?;
        commands::cuMipmappedArrayGetSparsePropertiesReply { properties }.encode(reply);
        Ok(())
    }

    fn cuArrayGetMemoryRequirements(
        &self,
        command: commands::cuArrayGetMemoryRequirements,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let array = tiles::Handle::Array(self.find(command.array)?);
        let (size, alignment) = tiles::requirements(self, array, command.device)?;
        commands::cuArrayGetMemoryRequirementsReply { size, alignment }.encode(reply);
        Ok(())
    }

    fn cuMipmappedArrayGetMemoryRequirements(
        &self,
        command: commands::cuMipmappedArrayGetMemoryRequirements,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let array = tiles::Handle::Mipmapped(self.find(command.mipmap)?);
        let (size, alignment) = tiles::requirements(self, array, command.device)?;
        commands::cuMipmappedArrayGetMemoryRequirementsReply { size, alignment }.encode(reply);
        Ok(())
    }

    fn cuMemcpyAtoA_v2(&self, command: commands::cuMemcpyAtoA_v2) -> Result<(), CUresult> {
        arrays::copy(self, &command.copy, command.hStream)
    }

    fn cuMemcpyHtoAAsync_v2(&self, command: commands::cuMemcpyHtoAAsync_v2<'_>) -> Result<(), CUresult> {
        arrays::fill(self, command)
    }

    fn cuMemcpyAtoHAsync_v2(&self, command: commands::cuMemcpyAtoHAsync_v2) -> Result<(), CUresult> {
        self.copy_from_array(command)
    }

    fn cuTexObjectCreate(
        &self,
        command: commands::cuTexObjectCreate,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let object = textures::create_texture(self, &command)?;
        commands::cuTexObjectCreateReply { object }.encode(reply);
        Ok(())
    }

    fn cuTexObjectDestroy(&self, command: commands::cuTexObjectDestroy) -> Result<(), CUresult> {
        textures::destroy_texture(self, command.object)
    }

    fn cuSurfObjectCreate(
        &self,
        command: commands::cuSurfObjectCreate,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let object = textures::create_surface(self, &command)?;
        commands::cuSurfObjectCreateReply { object }.encode(reply);
        Ok(())
    }

    fn cuSurfObjectDestroy(&self, command: commands::cuSurfObjectDestroy) -> Result<(), CUresult> {
        textures::destroy_surface(self, command.object)
    }

    fn cuModuleGetTexRef(&self, command: commands::cuModuleGetTexRef<'_>) -> Result<(), CUresult> {
        texture_references::texture_of(self, &command)
    }

    fn cuModuleGetSurfRef(&self, command: commands::cuModuleGetSurfRef<'_>) -> Result<(), CUresult> {
        texture_references::surface_of(self, &command)
    }

    fn cuTexRefDestroy(&self, command: commands::cuTexRefDestroy) -> Result<(), CUresult> {
        texture_references::destroy(self, command.hTexRef)
    }

    fn cuTexRefSetAddress2D_v3(&self, command: commands::cuTexRefSetAddress2D_v3) -> Result<(), CUresult> {
        texture_references::bind_rows(self, &command)
    }

    fn cuTexRefGetArray(
        &self,
        command: commands::cuTexRefGetArray,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let array = texture_references::array(self, command.hTexRef)?;
        commands::cuTexRefGetArrayReply { array }.encode(reply);
        Ok(())
    }

    fn cuTexRefGetMipmappedArray(
        &self,
        command: commands::cuTexRefGetMipmappedArray,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let array = texture_references::mipmapped_array(self, command.hTexRef)?;
        commands::cuTexRefGetMipmappedArrayReply { array }.encode(reply);
        Ok(())
    }

    fn cuTexRefGetBorderColor(
        &self,
        command: commands::cuTexRefGetBorderColor,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let [red, green, blue, alpha] = texture_references::border_color(self, command.hTexRef)?;
        commands::cuTexRefGetBorderColorReply { red, green, blue, alpha }.encode(reply);
        Ok(())
    }

    fn cuSurfRefGetArray(
        &self,
        command: commands::cuSurfRefGetArray,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let array = texture_references::surface_array(self, command.hSurfRef)?;
        commands::cuSurfRefGetArrayReply { array }.encode(reply);
        Ok(())
    }

    fn cuStreamCreateWithPriority(
        &self,
        command: commands::cuStreamCreateWithPriority,
    ) -> Result<(), CUresult> {
        self.create_stream(command)
    }

    fn cuStreamDestroy_v2(&self, command: commands::cuStreamDestroy_v2) -> Result<(), CUresult> {
        graphs::destroy_stream(self, command.hStream)
    }

    fn cuStreamBeginCapture_v2(&self, command: commands::cuStreamBeginCapture_v2) -> Result<(), CUresult> {
        self.begin_capture(command)
    }

    fn cuStreamEndCapture(&self, command: commands::cuStreamEndCapture) -> Result<(), CUresult> {
        graphs::end_capture(self, &command)
    }

    fn cuStreamBeginCaptureToGraph(
        &self,
        command: commands::cuStreamBeginCaptureToGraph,
    ) -> Result<(), CUresult> {
        graphs::capture_into(self, command)
    }

    fn cuStreamUpdateCaptureDependencies(
        &self,
        command: commands::cuStreamUpdateCaptureDependencies,
    ) -> Result<(), CUresult> {
        graphs::capture_behind(self, command)
    }

    fn cuStreamGetCaptureInfo_v3(
        &self,
        command: commands::cuStreamGetCaptureInfo_v3,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let (nodes, edges) = graphs::capture_nodes(self, command.hStream)?;
        commands::cuStreamGetCaptureInfo_v3Reply { nodes, edges }.encode(reply);
        Ok(())
    }

    fn cuEventCreate(&self, command: commands::cuEventCreate) -> Result<(), CUresult> {
        self.create_event(command)
    }

    fn cuEventDestroy_v2(&self, command: commands::cuEventDestroy_v2) -> Result<(), CUresult> {
        self.destroy_event(command)
    }

    fn cuCtxRecordEvent(&self, command: commands::cuCtxRecordEvent) -> Result<(), CUresult> {
        self.record_context(command)
    }

    fn cuCtxWaitEvent(&self, command: commands::cuCtxWaitEvent) -> Result<(), CUresult> {
        self.wait_context(command)
    }

    fn cuStreamGetAttribute(
        &self,
        command: commands::cuStreamGetAttribute,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let words = attributes::of_stream(self, &command)?;
        commands::cuStreamGetAttributeReply { words }.encode(reply);
        Ok(())
    }

    fn cuStreamSetAttribute(&self, command: commands::cuStreamSetAttribute) -> Result<(), CUresult> {
        attributes::set_of_stream(self, &command)
    }

    fn cuLaunchKernel(&self, command: commands::cuLaunchKernel<'_>) -> Result<(), CUresult> {
        self.launch_kernel(command)
    }

    fn cuLaunchKernelEx(&self, command: commands::cuLaunchKernelEx<'_>) -> Result<(), CUresult> {
        self.launch_kernel_with(command)
    }

    fn cuOccupancyMaxActiveClusters(
        &self,
        command: commands::cuOccupancyMaxActiveClusters,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        self.active_clusters(command, reply)
    }

    fn cuOccupancyMaxPotentialClusterSize(
        &self,
        command: commands::cuOccupancyMaxPotentialClusterSize,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        self.cluster_size(command, reply)
    }

    fn cuGraphInstantiateWithFlags(
        &self,
        command: commands::cuGraphInstantiateWithFlags,
    ) -> Result<(), CUresult> {
        graphs::instantiate(self, &command)
    }

    fn cuGraphExecDestroy(&self, command: commands::cuGraphExecDestroy) -> Result<(), CUresult> {
        graphs::destroy_executable(self, &command)
    }

    fn cuGraphDestroy(&self, command: commands::cuGraphDestroy) -> Result<(), CUresult> {
        graphs::destroy(self, command.hGraph)
    }

    fn cuGraphDestroyNode(&self, command: commands::cuGraphDestroyNode) -> Result<(), CUresult> {
        graphs::destroy_node(self, command.hNode)
    }

    fn cuGraphClone(&self, command: commands::cuGraphClone) -> Result<(), CUresult> {
        graphs::clone(self, &command)
    }

    fn cuGraphAddNode_v2(&self, command: commands::cuGraphAddNode_v2) -> Result<(), CUresult> {
        graphs::add(self, command)
    }

    fn cuGraphNodeSetParams(&self, command: commands::cuGraphNodeSetParams) -> Result<(), CUresult> {
        graphs::set(self, &command)
    }

    fn cuGraphExecNodeSetParams(&self, command: commands::cuGraphExecNodeSetParams) -> Result<(), CUresult> {
        graphs::set_in_executable(self, &command)
    }

    fn cuGraphNodeGetParams(
        &self,
        command: commands::cuGraphNodeGetParams,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let work = graphs::get(self, command.hNode)?;
        commands::cuGraphNodeGetParamsReply { work }.encode(reply);
        Ok(())
    }

    fn cuGraphGetNodes(
        &self,
        command: commands::cuGraphGetNodes,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let nodes = graphs::nodes(self, command.hGraph)?;
        commands::cuGraphGetNodesReply { nodes }.encode(reply);
        Ok(())
    }

    fn cuGraphGetRootNodes(
        &self,
        command: commands::cuGraphGetRootNodes,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let nodes = graphs::roots(self, command.hGraph)?;
        commands::cuGraphGetRootNodesReply { nodes }.encode(reply);
        Ok(())
    }

    fn cuGraphGetEdges_v2(
        &self,
        command: commands::cuGraphGetEdges_v2,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        graphs::edges(self, command.hGraph, reply)
    }

    fn cuGraphNodeGetDependencies_v2(
        &self,
        command: commands::cuGraphNodeGetDependencies_v2,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let functions = (self.table.cuGraphNodeGetDependencies_v2, self.table.cuGraphNodeGetDependencies);
        let (nodes, edges) = graphs::neighbours(self, command.hNode, functions)?;
        commands::cuGraphNodeGetDependencies_v2Reply { nodes, edges }.encode(reply);
        Ok(())
    }

    fn cuGraphNodeGetDependentNodes_v2(
        &self,
        command: commands::cuGraphNodeGetDependentNodes_v2,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let functions = (self.table.cuGraphNodeGetDependentNodes_v2, self.table.cuGraphNodeGetDependentNodes);
        let (nodes, edges) = graphs::neighbours(self, command.hNode, functions)?;
        commands::cuGraphNodeGetDependentNodes_v2Reply { nodes, edges }.encode(reply);
        Ok(())
    }

    fn cuGraphNodeFindInClone(
        &self,
        command: commands::cuGraphNodeFindInClone,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let node = graphs::find_in_clone(self, command.hOriginalNode, command.hClonedGraph)?;
        commands::cuGraphNodeFindInCloneReply { node }.encode(reply);
        Ok(())
    }

    fn cuGraphChildGraphNodeGetGraph(
        &self,
        command: commands::cuGraphChildGraphNodeGetGraph,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let graph = graphs::child(self, command.hNode, command.phGraph)?;
        commands::cuGraphChildGraphNodeGetGraphReply { graph }.encode(reply);
        Ok(())
    }

    fn cuGraphNodeGetContainingGraph(
        &self,
        command: commands::cuGraphNodeGetContainingGraph,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let graph = graphs::containing(self, command.hNode)?;
        commands::cuGraphNodeGetContainingGraphReply { graph }.encode(reply);
        Ok(())
    }

    fn cuGraphKernelNodeGetAttribute(
        &self,
        command: commands::cuGraphKernelNodeGetAttribute,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let words = graphs::kernel_attribute(self, command.hNode, command.attr)?;
        commands::cuGraphKernelNodeGetAttributeReply { words }.encode(reply);
        Ok(())
    }

    fn cuGraphKernelNodeSetAttribute(
        &self,
        command: commands::cuGraphKernelNodeSetAttribute,
    ) -> Result<(), CUresult> {
        graphs::set_kernel_attribute(self, &command)
    }

    fn cuGraphExecUpdate_v2(&self, command: commands::cuGraphExecUpdate_v2) -> Result<(), CUresult> {
        graphs::update(self, command)
    }

    fn cuUserObjectCreate(&self, command: commands::cuUserObjectCreate) -> Result<(), CUresult> {
        self.vacant(command.object)?;
        graphs::check_count(command.initialRefcount)?;
        let object = graphs::user_object(self, command.object.0, command.initialRefcount)?;
        self.graphs.references.enter(command.object, command.initialRefcount);
        self.insert(command.object, object)
    }

    fn cuUserObjectRetain(&self, command: commands::cuUserObjectRetain) -> Result<(), CUresult> {
        graphs::retain(self, &command)
    }

    fn cuUserObjectRelease(&self, command: commands::cuUserObjectRelease) -> Result<(), CUresult> {
        graphs::release(self, &command)
    }

    fn cuGraphRetainUserObject(&self, command: commands::cuGraphRetainUserObject) -> Result<(), CUresult> {
        graphs::graph_retain(self, &command)
    }

    fn cuGraphReleaseUserObject(&self, command: commands::cuGraphReleaseUserObject) -> Result<(), CUresult> {
        graphs::graph_release(self, &command)
    }

    fn FillCaptured(&self, command: commands::FillCaptured) -> Result<(), CUresult> {
        crate::graphs::fill_captured(self, &command)
    }

    fn NodeDataPut(&self, command: commands::NodeDataPut<'_>) -> Result<(), CUresult> {
        self.graphs.data.put(command.ticket, command.offset, command.bytes)
    }

    fn NodeDataGet(&self, command: commands::NodeDataGet, reply: &mut Vec<u8>) -> Result<(), CUresult> {
        if command.count > BULK_SIZE_MAX as u64 {
            return Err(CUresult::INVALID_VALUE);
        }
        let bytes = self.graphs.data.get(command.ticket, command.offset, command.count)?;
        commands::NodeDataGetReply { bytes: &bytes }.encode(reply);
        Ok(())
    }

    fn cuLaunchHostFunc(&self, command: commands::cuLaunchHostFunc) -> Result<(), CUresult> {
        self.launch_host_function(command)
    }

    fn cuDeviceGetDevResource(
        &self,
        command: commands::cuDeviceGetDevResource,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let resource = green::of_device(self, command)?;
        commands::cuDeviceGetDevResourceReply { resource }.encode(reply);
        Ok(())
    }

    fn cuGraphConditionalHandleCreate(
        &self,
        command: commands::cuGraphConditionalHandleCreate,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let handle = graphs::create_handle(self, &command)?;
        commands::cuGraphConditionalHandleCreateReply { handle }.encode(reply);
        Ok(())
    }

    fn cuGreenCtxGetDevResource(
        &self,
        command: commands::cuGreenCtxGetDevResource,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let resource = green::of_context(self, command)?;
        commands::cuGreenCtxGetDevResourceReply { resource }.encode(reply);
        Ok(())
    }

    fn cuDevSmResourceSplitByCount(
        &self,
        command: commands::cuDevSmResourceSplitByCount,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        green::split_by_count(self, command)?.encode(reply);
        Ok(())
    }

    fn cuDevSmResourceSplit(
        &self,
        command: commands::cuDevSmResourceSplit,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        green::split(self, &command)?.encode(reply);
        Ok(())
    }

    fn cuDevResourceGenerateDesc(
        &self,
        command: commands::cuDevResourceGenerateDesc,
    ) -> Result<(), CUresult> {
        green::describe(self, &command)
    }

    fn cuGreenCtxCreate(&self, command: commands::cuGreenCtxCreate) -> Result<(), CUresult> {
        green::create(self, &command)
    }

    fn cuGreenCtxDestroy(&self, command: commands::cuGreenCtxDestroy) -> Result<(), CUresult> {
        green::destroy(self, command.hCtx)
    }

    fn cuGreenCtxStreamCreate(&self, command: commands::cuGreenCtxStreamCreate) -> Result<(), CUresult> {
        green::create_stream(self, command)
    }

    fn cuMemExportToShareableHandle(
        &self,
        command: commands::cuMemExportToShareableHandle,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let token = sharing::export_physical(self, &command)?;
        commands::cuMemExportToShareableHandleReply { token }.encode(reply);
        Ok(())
    }

    fn cuMemImportFromShareableHandle(
        &self,
        command: commands::cuMemImportFromShareableHandle,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        sharing::import_memory(self, &command)?.encode(reply);
        Ok(())
    }

    fn AllocationExport(
        &self,
        command: commands::AllocationExport,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let (token, start) = sharing::export_allocation(self, command.address)?;
        commands::AllocationExportReply { token, start }.encode(reply);
        Ok(())
    }

    fn EventExport(&self, command: commands::EventExport, reply: &mut Vec<u8>) -> Result<(), CUresult> {
        let token = sharing::export_event(self, command.event)?;
        commands::EventExportReply { token }.encode(reply);
        Ok(())
    }

    fn EventImport(&self, command: commands::EventImport) -> Result<(), CUresult> {
        sharing::import_event(self, &command)
    }

    fn PeerOffer(&self, _command: commands::PeerOffer, reply: &mut Vec<u8>) -> Result<(), CUresult> {
        let (session, token) = self.budget.offer_peer()?;
        commands::PeerOfferReply { session, token: PeerToken(token) }.encode(reply);
        Ok(())
    }

    fn PeerConnect(&self, command: commands::PeerConnect<'_>, reply: &mut Vec<u8>) -> Result<(), CUresult> {
        let refusal = peers::connect(self, &command)?;
        commands::PeerConnectReply { refusal }.encode(reply);
        Ok(())
    }

    fn PeerCopy(&self, command: commands::PeerCopy, reply: &mut Vec<u8>) -> Result<(), CUresult> {
        let lost = peers::copy(self, &command)?;
        commands::PeerCopyReply { lost }.encode(reply);
        Ok(())
    }

    /// Answered once the event is done.
    fn EventWatch(&self, command: commands::EventWatch) -> Result<(), CUresult> {
        let (event, (_, device)) = (self.find(command.event)?, self.device()?);
        self.watches.watch(crate::session::current::current(), command.event, (event, device.context));
        Ok(())
    }

    /// Being executed is the answer: so is everything before it.
    fn Submitted(&self, _command: commands::Submitted) -> Result<(), CUresult> {
        Ok(())
    }

    fn LiveMap(&self, command: commands::LiveMap) -> Result<(), CUresult> {
        self.live.map(self, &command)
    }

    fn LivePush(&self, command: commands::LivePush<'_>) -> Result<(), CUresult> {
        self.live.push(self, &command).map_err(|_| CUresult::INVALID_VALUE)
    }

    fn MirrorPush(&self, command: commands::MirrorPush<'_>) -> Result<(), CUresult> {
        mirror::push(self, command.address, command.bytes)
    }

    fn MirrorFetch(&self, command: commands::MirrorFetch, reply: &mut Vec<u8>) -> Result<(), CUresult> {
        mirror::fetch(self, &command, reply)
    }

    fn cuModuleEnumerateFunctions(
        &self,
        command: commands::cuModuleEnumerateFunctions,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let names = modules::names(&self.table, self.find(command.hmod)?)?;
        commands::cuModuleEnumerateFunctionsReply { names }.encode(reply);
        Ok(())
    }

    fn HostCallDone(&self, command: commands::HostCallDone) -> Result<(), CUresult> {
        self.end_host_call(command)
    }

    fn ImagesQuery(&self, command: commands::ImagesQuery, reply: &mut Vec<u8>) -> Result<(), CUresult> {
        // More than any honest client asks about at a time.
        if command.images.len() > 1024 {
            return Err(CUresult::INVALID_VALUE);
        }
        let known = command.images.iter().map(|&image| self.images.promise(image)).collect();
        commands::ImagesQueryReply { known }.encode(reply);
        Ok(())
    }

    fn ImageData(&self, command: commands::ImageData<'_>) -> Result<(), CUresult> {
        self.images.receive(command.image, command.offset, command.total, command.bytes)
    }
}
