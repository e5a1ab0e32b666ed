//! The commands that load and unload modules and look up functions and global variables in them.

use std::ffi::CStr;

use sluice_cuda::*;
use sluice_wire::{
    DevicePtr, Encode, FunctionId, FunctionInfo, ImageHash, JitOption, ModuleId, NamedFunction, commands,
};

use crate::arrays::texture_references;
use crate::modules;
use crate::session::Session;
use crate::session::checks;
use crate::session::execute::Execute;

impl Session {
    /// Commands that build on a module that could not be loaded get the reason why.
    pub(crate) fn load_ahead(
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

    pub(crate) fn unload_module(&self, command: commands::cuModuleUnload) -> Result<(), CUresult> {
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

    pub(crate) fn global(
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

    pub(crate) fn set_function_attribute(
        &self,
        command: commands::cuFuncSetAttribute,
    ) -> Result<(), CUresult> {
        let set = self.table.cuFuncSetAttribute.ok_or(CUresult::NOT_SUPPORTED)?;
        checks::settable(command.attrib)?;
        // SAFETY: the function is live; the rest are numbers.
        unsafe { set(self.find(command.hfunc)?, command.attrib, command.value) }.ok()
    }

    /// Loads an image and says what is in it, as the client reads the answer of either command;
    /// false if it is not here.
    pub(super) fn load(
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

    /// Enters a function under the id that the client has given it.
    pub(crate) fn take_function(
        &self,
        id: FunctionId,
        module: ModuleId,
        name: &CStr,
    ) -> Result<FunctionInfo, CUresult> {
        self.vacant(id)?;
        let handle = self.find(module).map_err(|error| self.modules.failure(module).unwrap_or(error))?;
        let (function, info) = modules::function(&self.table, handle, name)?;
        self.insert(id, function)?;
        self.modules.add(module, (id, function), &info);
        Ok(info)
    }
}
