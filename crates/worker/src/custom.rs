//! The commands that are executed by hand.
//!
//! Most commands that no generated call executes have a delegate in `driver.api`, which the
//! generated dispatch calls. The methods of [`Custom`] here execute the others; the modules of this
//! folder hold what only these commands need.

#![allow(non_snake_case)] // CUDA's names

mod device_memory;
mod launches;
mod loading;
mod streams;

use sluice_cuda::*;
use sluice_wire::{BULK_SIZE_MAX, DevicePtr, Encode, PeerToken, commands};

use crate::arrays::texture_references;
use crate::arrays::tiles;
use crate::generated::dispatch::Custom;
use crate::graphs;
use crate::green;
use crate::memory::budget::Claim;
use crate::memory::virtual_memory;
use crate::modules;
use crate::session::Session;
use crate::session::execute::Execute;
use crate::sharing;

pub(crate) use self::device_memory::described;
pub(crate) use self::launches::packed;

impl Custom for Session {
    fn cuModuleLoadDataEx(
        &self,
        command: commands::cuModuleLoadDataEx,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let commands::cuModuleLoadDataEx { module, image, options } = command;
        self.load(module, image, &options, reply).map(drop)
    }

    fn FunctionNamed(&self, command: commands::FunctionNamed<'_>) -> Result<(), CUresult> {
        self.take_function(command.hfunc, command.hmod, command.name).map(drop)
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

    fn MemoryCommitAllowed(&self, command: commands::MemoryCommitAllowed) -> Result<(), CUresult> {
        self.commit((command.address.0, command.bytes), Claim::Allowed)
    }

    fn MemoryDecommit(&self, command: commands::MemoryDecommit) -> Result<(), CUresult> {
        let (address, bytes) = (command.address.0, command.bytes);
        let leave = || self.live.leave(address, bytes);
        self.memory.decommit(&self.table, &self.budget, (address, bytes), leave)
    }

    fn PhysicalCreateAllowed(&self, command: commands::PhysicalCreateAllowed) -> Result<(), CUresult> {
        let commands::PhysicalCreateAllowed { handle, size, prop } = command;
        let command = commands::cuMemCreate { handle, size, prop, flags: 0 };
        virtual_memory::create(self, command, Claim::Allowed)
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

    fn cuTexRefGetBorderColor(
        &self,
        command: commands::cuTexRefGetBorderColor,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let [red, green, blue, alpha] = texture_references::border_color(self, command.hTexRef)?;
        commands::cuTexRefGetBorderColorReply { red, green, blue, alpha }.encode(reply);
        Ok(())
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

    fn cuUserObjectCreate(&self, command: commands::cuUserObjectCreate) -> Result<(), CUresult> {
        self.vacant(command.object)?;
        graphs::check_count(command.initialRefcount)?;
        let object = graphs::user_object(self, command.object.0, command.initialRefcount)?;
        self.graphs.references.enter(command.object, command.initialRefcount);
        self.insert(command.object, object)
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

    fn cuMemImportFromShareableHandle(
        &self,
        command: commands::cuMemImportFromShareableHandle,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        sharing::import_memory(self, &command)?.encode(reply);
        Ok(())
    }

    fn PeerOffer(&self, _command: commands::PeerOffer, reply: &mut Vec<u8>) -> Result<(), CUresult> {
        let (session, token) = self.budget.offer_peer()?;
        commands::PeerOfferReply { session, token: PeerToken(token) }.encode(reply);
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

    fn cuModuleEnumerateFunctions(
        &self,
        command: commands::cuModuleEnumerateFunctions,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let names = modules::names(&self.table, self.find(command.hmod)?)?;
        commands::cuModuleEnumerateFunctionsReply { names }.encode(reply);
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

    /// The reading thread answers it; no command that is executed in order may ask for it.
    fn LiveAwait(&self, _command: commands::LiveAwait, _reply: &mut Vec<u8>) -> Result<(), CUresult> {
        Err(CUresult::NOT_SUPPORTED)
    }
}
