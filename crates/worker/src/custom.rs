//! The commands that are executed by hand.

#![allow(non_snake_case)] // CUDA's names

use std::ffi::{CStr, c_void};
use std::sync::atomic::Ordering::Relaxed;

use sluice_cuda::*;
use sluice_wire::{
    BULK_SIZE_MAX, CopyNode, CopySide, DevicePtr, Dim, Encode, FunctionId, FunctionInfo, ImageHash,
    JitOption, ModuleId, NamedFunction, PeerToken, Pitched, UserObjectId, commands,
};

use crate::arrays;
use crate::attributes;
use crate::budget::Claim;
use crate::checks::{self, bits, plain, span};
use crate::copies;
use crate::execute::Execute;
use crate::generated::dispatch::Custom;
use crate::graphs;
use crate::green;
use crate::memory;
use crate::mirror;
use crate::modules;
use crate::outbox::{Outbox, Push};
use crate::peers;
use crate::session::{self, Session};
use crate::sharing;
use crate::staging::PIECE;
use crate::texture_references;
use crate::textures;
use crate::tiles;
use crate::virtual_memory;

impl Custom for Session {
    fn cuCtxSynchronize(&self, _command: commands::cuCtxSynchronize) -> Result<(), CUresult> {
        self.synchronize()
    }

    fn cuStreamWaitEvent(&self, command: commands::cuStreamWaitEvent) -> Result<(), CUresult> {
        let wait = self.table.cuStreamWaitEvent.ok_or(CUresult::NOT_SUPPORTED)?;
        let (stream, event) = (self.find(command.hStream)?, self.find(command.hEvent)?);
        // SAFETY: stream and event are live.
        let wait = || unsafe { wait(stream, event, command.Flags) };
        match self.graphs.is_capturing() {
            // It may join the capture.
            true => self.device()?.1.streams.capture(wait).ok(),
            false => wait().ok(),
        }
    }

    fn cuCtxSetLimit(&self, command: commands::cuCtxSetLimit) -> Result<(), CUresult> {
        let set = self.table.cuCtxSetLimit.ok_or(CUresult::NOT_SUPPORTED)?;
        let (_, device) = self.device()?;
        checks::limit(command.limit)?;
        // Heap and buffers of device code come out of the card, not out of the lease's books.
        if command.value > device.memory.load(Relaxed) {
            return Err(CUresult::INVALID_VALUE);
        }
        // SAFETY: two numbers.
        unsafe { set(command.limit, command.value as usize) }.ok()
    }

    fn cuModuleLoadDataEx(
        &self,
        command: commands::cuModuleLoadDataEx,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let commands::cuModuleLoadDataEx { module, image, options } = command;
        self.load(module, image, &options, reply).map(drop)
    }

    /// What builds on it is told why it is not there.
    fn ModuleLoadAhead(
        &self,
        command: commands::ModuleLoadAhead,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let commands::ModuleLoadAhead { module, image, options } = command;
        let loaded = self.load(module, image, &options, reply);
        match loaded {
            Ok(true) => {}
            Ok(false) => self.modules.failed(module, CUresult::INVALID_IMAGE),
            Err(error) => self.modules.failed(module, error),
        }
        loaded.map(drop)
    }

    fn cuModuleUnload(&self, command: commands::cuModuleUnload) -> Result<(), CUresult> {
        let unload = self.table.cuModuleUnload.ok_or(CUresult::NOT_SUPPORTED)?;
        let module = self.remove(command.hmod)?;
        for function in self.modules.remove(command.hmod) {
            self.remove(function)?;
        }
        texture_references::forget(self, command.hmod)?;
        self.memory.remove_globals(command.hmod.0);
        // SAFETY: the module was live until now, and nothing in our tables names it any more.
        unsafe { unload(module) }.ok()?;
        self.modules.unload(command.hmod);
        Ok(())
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
        let get = self.table.cuModuleGetGlobal_v2.ok_or(CUresult::NOT_SUPPORTED)?;
        let module = self.find(command.hmod)?;
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: the module is live, the name is NUL-terminated, and the driver writes to two
        // locals.
        unsafe { get(&mut address, &mut bytes, module, command.name.as_ptr()) }.ok()?;
        self.memory.add_global(command.hmod.0, address, bytes as u64);
        let is_managed = modules::is_managed(&self.table, address);
        let (dptr, bytes) = (DevicePtr(address), bytes as u64);
        commands::cuModuleGetGlobal_v2Reply { dptr, bytes, is_managed }.encode(reply);
        Ok(())
    }

    fn cuFuncSetAttribute(&self, command: commands::cuFuncSetAttribute) -> Result<(), CUresult> {
        let set = self.table.cuFuncSetAttribute.ok_or(CUresult::NOT_SUPPORTED)?;
        checks::settable(command.attrib)?;
        // SAFETY: the function is live; the rest are numbers.
        unsafe { set(self.find(command.hfunc)?, command.attrib, command.value) }.ok()
    }

    fn cuMemGetInfo_v2(
        &self,
        _command: commands::cuMemGetInfo_v2,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let (gpu, device) = self.device()?;
        let used = self.budget.used(gpu)?;
        let total = device.memory.load(Relaxed);
        let mut free = total.saturating_sub(used);
        if self.is_loaded && !self.overcommits {
            // Contexts and other users of the card take what no lease knows of.
            free = free.min(self.card_free()?.saturating_add(self.budget.held(gpu)));
        }
        commands::cuMemGetInfo_v2Reply { free, total }.encode(reply);
        Ok(())
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
        tiles::reap(self);
        let (address, bytes) = (command.address.0, command.bytes);
        if command.on_host && self.live.commit(self, address, bytes)? {
            return Ok(());
        }
        match command.by_all && self.devices.len() > 1 {
            true => memory::commit_for_all(self, (address, bytes)),
            false => self.commit((address, bytes), Claim::Asked),
        }
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
        let bytes = command.ByteCount;
        let (to, from) = (self.range(command.dstDevice, bytes)?, self.range(command.srcDevice, bytes)?);
        // SAFETY: both were looked up.
        unsafe { self.copy_on_device(to, from, bytes, self.find(command.hStream)?) }
    }

    fn cuMemcpy3DAsync_v2(&self, command: commands::cuMemcpy3DAsync_v2) -> Result<(), CUresult> {
        let extent = [command.width, command.height, command.depth];
        if extent.contains(&0) {
            return Ok(());
        }
        let (from, to) = (&command.src, &command.dst);
        let range = |side: &Pitched| {
            let bytes = span(side, extent)?;
            Ok::<_, CUresult>((self.range(side.start, bytes)?, bytes))
        };
        let (copy, stream) = (described(to, from, extent), self.find(command.hStream)?);
        // SAFETY: both boxes lie in the session's memory.
        unsafe { self.copy_box_on_device(&copy, range(to)?, range(from)?, stream) }
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
        let submit = self.table.cuMemcpy3DAsync_v2.ok_or(CUresult::NOT_SUPPORTED)?;
        let copy = CopyNode {
            dst: CopySide::Host(()),
            src: CopySide::Array(command.src),
            width: command.width,
            height: command.height,
            depth: command.depth,
            ticket: 0,
        };
        let length = copy.bytes().filter(|bytes| *bytes <= PIECE as u64).ok_or(CUresult::INVALID_VALUE)?;
        // Checked before a piece is taken.
        self.describe_copy(&copy, std::ptr::null_mut())?;
        let stream = self.find(command.hStream)?;
        let _copy = self.host_copy(stream)?;
        self.outbox.wait_room_for_small(length as usize);
        let mut bytes = self.staging.take(&self.table, length as usize)?;
        let described = self.describe_copy(&copy, bytes.address())?;
        // SAFETY: the box lies in the array, and the piece, which has as many bytes, stays taken
        // until its push has been sent, which the stream triggers after the copy.
        unsafe { submit(&described, stream) }.ok()?;
        self.call_in_order(stream, Call::Push(Push::Data { ticket: command.ticket, offset: 0, bytes }))
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
        self.vacant(command.phStream)?;
        let create = self.table.cuStreamCreateWithPriority.ok_or(CUresult::NOT_SUPPORTED)?;
        bits(command.flags.into(), CU_STREAM_NON_BLOCKING.into())?;
        let mut stream = CUstream::NULL;
        // SAFETY: the driver writes one handle to a local.
        unsafe { create(&mut stream, command.flags, command.priority) }.ok()?;
        self.insert(command.phStream, stream)?;
        if let Some(green) = self.green()? {
            self.green.note_stream(self, command.phStream, green.id);
        }
        Ok(())
    }

    fn cuStreamDestroy_v2(&self, command: commands::cuStreamDestroy_v2) -> Result<(), CUresult> {
        graphs::destroy_stream(self, command.hStream)
    }

    fn cuStreamBeginCapture_v2(&self, command: commands::cuStreamBeginCapture_v2) -> Result<(), CUresult> {
        let begin = self.table.cuStreamBeginCapture_v2.ok_or(CUresult::NOT_SUPPORTED)?;
        // The client has applied its mode to its own calls; ours on other threads must not break
        // the capture.
        let mode = CUstreamCaptureMode::RELAXED;
        let stream = self.find(command.hStream)?;
        // SAFETY: the stream is live.
        self.capture(stream, || unsafe { begin(stream, mode) })
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
        self.vacant(command.phEvent)?;
        let create = self.table.cuEventCreate.ok_or(CUresult::NOT_SUPPORTED)?;
        let flags = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
        bits(command.Flags.into(), flags.into())?;
        // What several processes record has no times.
        if command.Flags & (CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING) == CU_EVENT_INTERPROCESS {
            return Err(CUresult::INVALID_VALUE);
        }
        let mut event = CUevent::NULL;
        // SAFETY: the driver writes one handle to a local.
        unsafe { create(&mut event, command.Flags) }.ok()?;
        self.insert(command.phEvent, event)
    }

    fn cuEventDestroy_v2(&self, command: commands::cuEventDestroy_v2) -> Result<(), CUresult> {
        let destroy = self.table.cuEventDestroy_v2.ok_or(CUresult::NOT_SUPPORTED)?;
        sharing::forget_event(self, command.hEvent);
        self.watches.forget(command.hEvent);
        // SAFETY: the event was live until now, and our table names it no more.
        unsafe { destroy(self.remove(command.hEvent)?) }.ok()
    }

    fn cuCtxRecordEvent(&self, command: commands::cuCtxRecordEvent) -> Result<(), CUresult> {
        let record = self.table.cuCtxRecordEvent.ok_or(CUresult::NOT_SUPPORTED)?;
        let device = self.devices.get(command.device as usize).ok_or(CUresult::INVALID_DEVICE)?;
        // SAFETY: the context is retained until this process ends, and the event is live.
        unsafe { record(device.context, self.find(command.hEvent)?) }.ok()
    }

    fn cuCtxWaitEvent(&self, command: commands::cuCtxWaitEvent) -> Result<(), CUresult> {
        let wait = self.table.cuCtxWaitEvent.ok_or(CUresult::NOT_SUPPORTED)?;
        let device = self.devices.get(command.device as usize).ok_or(CUresult::INVALID_DEVICE)?;
        // SAFETY: as for the record.
        unsafe { wait(device.context, self.find(command.hEvent)?) }.ok()
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
        let launch = self.table.cuLaunchKernel.ok_or(CUresult::NOT_SUPPORTED)?;
        let function = self.find(command.f)?;
        self.modules.check_parameters(command.f, command.params.len())?;
        checks::shape(command.grid, command.block)?;
        let (stream, [gx, gy, gz], [bx, by, bz]) = (self.find(command.hStream)?, command.grid, command.block);
        let size = command.params.len();
        let mut extra = packed(command.params, &size);
        // SAFETY: function and stream are live; the buffer holds every byte of the parameters and
        // is read before the call returns. What the kernel does with them is confined to this
        // process's context.
        unsafe {
            launch(
                function,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                command.sharedMemBytes,
                stream,
                std::ptr::null_mut(),
                extra.as_mut_ptr(),
            )
        }
        .ok()?;
        self.count_kernel();
        Ok(())
    }

    fn cuLaunchKernelEx(&self, command: commands::cuLaunchKernelEx<'_>) -> Result<(), CUresult> {
        let launch = self.table.cuLaunchKernelEx.ok_or(CUresult::NOT_SUPPORTED)?;
        let function = self.find(command.f)?;
        self.modules.check_parameters(command.f, command.params.len())?;
        checks::shape(command.grid, command.block)?;
        let mut attributes = plain(command.attrs)?;
        let mut config = config(command.grid, command.block, command.sharedMemBytes, &mut attributes);
        config.hStream = self.find(command.hStream)?;
        let size = command.params.len();
        let mut extra = packed(command.params, &size);
        // SAFETY: as for `cuLaunchKernel`; the attributes are plain numbers and outlive the call.
        unsafe { launch(&config, function, std::ptr::null_mut(), extra.as_mut_ptr()) }.ok()?;
        self.count_kernel();
        Ok(())
    }

    fn cuOccupancyMaxActiveClusters(
        &self,
        command: commands::cuOccupancyMaxActiveClusters,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let ask = self.table.cuOccupancyMaxActiveClusters.ok_or(CUresult::NOT_SUPPORTED)?;
        let function = self.find(command.func)?;
        checks::shape(command.grid, command.block)?;
        let mut attributes = plain(command.attrs)?;
        let config = config(command.grid, command.block, command.sharedMemBytes, &mut attributes);
        let mut numClusters = 0;
        // SAFETY: the function is live, the attributes outlive the call, and the driver writes to a
        // local.
        unsafe { ask(&mut numClusters, function, &config) }.ok()?;
        commands::cuOccupancyMaxActiveClustersReply { numClusters }.encode(reply);
        Ok(())
    }

    fn cuOccupancyMaxPotentialClusterSize(
        &self,
        command: commands::cuOccupancyMaxPotentialClusterSize,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let ask = self.table.cuOccupancyMaxPotentialClusterSize.ok_or(CUresult::NOT_SUPPORTED)?;
        let function = self.find(command.func)?;
        checks::shape(command.grid, command.block)?;
        let mut attributes = plain(command.attrs)?;
        let config = config(command.grid, command.block, command.sharedMemBytes, &mut attributes);
        let mut clusterSize = 0;
        // SAFETY: as for the number of clusters.
        unsafe { ask(&mut clusterSize, function, &config) }.ok()?;
        commands::cuOccupancyMaxPotentialClusterSizeReply { clusterSize }.encode(reply);
        Ok(())
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
        let stream = self.find(command.hStream)?;
        if !self.host_calls.expect(command.ticket) {
            return Err(CUresult::INVALID_VALUE);
        }
        let (ticket, is_callback) = (command.ticket, command.is_callback);
        self.call_in_order(stream, Call::Client { ticket, is_callback })
            .inspect_err(|_| self.host_calls.forget(ticket))
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
        self.watches.watch(session::current(), command.event, (event, device.context));
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
        self.host_calls.done(command.ticket);
        // Of a user object the destructor has run, so that nothing can use it any more; other
        // tickets name none.
        if self.remove(UserObjectId(command.ticket)).is_ok() {
            self.graphs.references.forget(UserObjectId(command.ticket));
        }
        Ok(())
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

/// What happens when a stream gets to a place.
pub(crate) enum Call {
    Push(Push),
    /// Also once the stream has failed, if it is a callback.
    Client {
        ticket: u64,
        is_callback: bool,
    },
}

/// What the driver's callback gets.
struct Callback {
    call: Call,
    outbox: std::sync::Arc<Outbox>,
    host_calls: std::sync::Arc<crate::host_calls::HostCalls>,
}

impl Session {
    /// Backs addresses of the current device.
    fn commit(&self, range: (u64, u64), claim: Claim) -> Result<(), CUresult> {
        let (gpu, device) = self.device()?;
        let device = (gpu, device, std::slice::from_ref(device));
        self.memory.commit(&self.table, &self.budget, device, range, claim)
    }

    /// Bytes of the current device that nobody has.
    fn card_free(&self) -> Result<u64, CUresult> {
        let get = self.table.cuMemGetInfo_v2.ok_or(CUresult::NOT_SUPPORTED)?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is current, and the driver writes two sizes to locals.
        unsafe { get(&mut free, &mut total) }.ok()?;
        Ok(free as u64)
    }

    /// Enters a function under the id that the client has given it. Loads an image and says what is
    /// in it, as the client reads the answer of either command; false if it is not here.
    fn load(
        &self,
        module: ModuleId,
        image: ImageHash,
        options: &[JitOption],
        reply: &mut Vec<u8>,
    ) -> Result<bool, CUresult> {
        self.vacant(module)?;
        let mut say = |known, (functions, names): (Vec<NamedFunction>, Vec<String>), log: &[u8]| {
            commands::cuModuleLoadDataExReply { known, functions, names, log }.encode(reply);
        };
        let Some(found) = self.images.find(image)? else {
            say(false, Default::default(), &[]);
            return Ok(false);
        };
        let held = self.images.take(found.bytes.len() as u64)?;
        let (loaded, log) = modules::load(&self.table, &found.bytes, options);
        let Ok(handle) = loaded else {
            say(true, Default::default(), &log);
            return loaded.map(|_| true);
        };
        self.insert(module, handle)?;
        self.modules.keep(module, held);
        say(true, modules::told(&self.table, handle), &log);
        Ok(true)
    }

    fn take_function(&self, id: FunctionId, module: ModuleId, name: &CStr) -> Result<FunctionInfo, CUresult> {
        self.vacant(id)?;
        let handle = self.find(module).map_err(|error| self.modules.failure(module).unwrap_or(error))?;
        let (function, info) = modules::function(&self.table, handle, name)?;
        self.insert(id, function)?;
        self.modules.add(module, (id, function), &info);
        Ok(info)
    }

    /// Has something done when the stream gets there.
    pub(crate) fn call_in_order(&self, stream: CUstream, call: Call) -> Result<(), CUresult> {
        let launch = self.table.cuLaunchHostFunc.ok_or(CUresult::NOT_SUPPORTED)?;
        self.refuse_capture(stream)?;
        let callback =
            Box::new(Callback { call, outbox: self.outbox.clone(), host_calls: self.host_calls.clone() });
        let add = self
            .table
            .cuStreamAddCallback
            .filter(|_| matches!(callback.call, Call::Client { is_callback: true, .. }));
        let data: *mut c_void = Box::into_raw(callback).cast();
        // SAFETY: the stream is live, and what is called takes the box over then.
        let result = unsafe {
            match add {
                Some(add) => add(stream, Some(run_stream_callback), data, 0),
                None => launch(stream, Some(run_callback), data),
            }
        }
        .ok();
        if result.is_err() {
            // SAFETY: the driver refused it, so nobody else will ever use the box.
            drop(unsafe { Box::from_raw(data.cast::<Callback>()) });
        }
        result
    }

    fn count_kernel(&self) {
        self.counters.kernels.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Runs on a thread of the driver. Nothing in it can panic, and nothing in it calls the driver.
unsafe extern "C" fn run_callback(data: *mut c_void) {
    // SAFETY: as this function's.
    unsafe { run_stream_callback(CUstream::NULL, CUresult::SUCCESS, data) }
}

/// As [`run_callback`]; the stream may have failed.
unsafe extern "C" fn run_stream_callback(_: CUstream, status: CUresult, data: *mut c_void) {
    // SAFETY: `call_in_order` made this box, and the driver calls once.
    let callback = unsafe { Box::from_raw(data.cast::<Callback>()) };
    match callback.call {
        Call::Push(push) => callback.outbox.push(push),
        Call::Client { ticket, .. } => {
            let turn = callback.host_calls.begin(ticket);
            callback.outbox.push(Push::Call { ticket, status: status.0 });
            if status.is_success() {
                callback.host_calls.wait_turn(ticket, turn);
            }
            callback.host_calls.forget(ticket);
        }
    }
}

/// The `extra` argument of a launch: one buffer with all parameters.
pub(crate) fn packed(parameters: &[u8], size: &usize) -> [*mut c_void; 5] {
    let tag = |number: usize| number as *mut c_void;
    [
        tag(CU_LAUNCH_PARAM_BUFFER_POINTER),
        parameters.as_ptr().cast_mut().cast(),
        tag(CU_LAUNCH_PARAM_BUFFER_SIZE),
        std::ptr::from_ref(size).cast_mut().cast(),
        tag(CU_LAUNCH_PARAM_END),
    ]
}

/// A launch as the driver wants it described, in the default stream.
fn config(
    grid: Dim,
    block: Dim,
    sharedMemBytes: u32,
    attributes: &mut [CUlaunchAttribute],
) -> CUlaunchConfig {
    let ([gridDimX, gridDimY, gridDimZ], [blockDimX, blockDimY, blockDimZ]) = (grid, block);
    CUlaunchConfig {
        gridDimX,
        gridDimY,
        gridDimZ,
        blockDimX,
        blockDimY,
        blockDimZ,
        sharedMemBytes,
        hStream: CUstream::NULL,
        attrs: attributes.as_mut_ptr(),
        numAttrs: attributes.len() as u32,
    }
}

/// A copy between two places in device memory, as the driver wants it described: the pitch of a
/// single row is nobody's concern, and is one that every driver takes.
pub(crate) fn described(to: &Pitched, from: &Pitched, [width, height, depth]: [u64; 3]) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: CUmemorytype::DEVICE,
        srcHost: std::ptr::null(),
        srcDevice: from.start.0,
        srcArray: CUarray::NULL,
        reserved0: std::ptr::null_mut(),
        srcPitch: from.pitch.max(width) as usize,
        srcHeight: from.height.max(height) as usize,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: CUmemorytype::DEVICE,
        dstHost: std::ptr::null_mut(),
        dstDevice: to.start.0,
        dstArray: CUarray::NULL,
        reserved1: std::ptr::null_mut(),
        dstPitch: to.pitch.max(width) as usize,
        dstHeight: to.height.max(height) as usize,
        WidthInBytes: width as usize,
        Height: height as usize,
        Depth: depth as usize,
    }
}
