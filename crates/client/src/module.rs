//! Modules and libraries, and the functions and kernels in them.
//!
//! A library is its module, loaded at once ([`load`](crate::module::load)), and both have one
//! handle. A kernel is its function, and its handle says that it was had as a kernel
//! ([`ids::kernel_of`]).
//!
//! # In this folder
//!
//! From an image to a function: images ([`image`]), linking ([`linker`]), loading ([`load`]),
//! functions that the node has yet to describe ([`pending`]) and listing them ([`enumeration`]).

pub(crate) mod enumeration;
mod function;
mod function_calls;
pub(crate) mod image;
pub(crate) mod linker;
pub(crate) mod load;
mod module_calls;
pub(crate) mod pending;
#[cfg(test)]
mod tests;
pub(crate) mod texture_reference;

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;
use sluice_wire::{FunctionId, FunctionInfo, ImageHash, JitOption, ModuleId, commands};

use crate::abi::ids;
use crate::abi::ids::{Kind, Table};
use crate::host_memory::{mirror, variables};
use crate::launch::parameters::Layout;
use crate::link::command_id::CommandId;
use crate::session::facts::{Facts, Subject};
use crate::session::issue::Issue;
use crate::session::{Session, facts};
use crate::{context, session};

pub(crate) use function::{Function, function, in_graph, learn, owner_of_function};
pub(crate) use function_calls::{
    cuFuncGetAttribute, cuFuncGetModule, cuFuncGetName, cuFuncGetParamCount, cuFuncGetParamInfo,
    cuFuncIsLoaded, cuFuncLoad, cuFuncSetAttribute, cuFuncSetCacheConfig, cuFuncSetSharedMemConfig,
    cuKernelGetAttribute, cuKernelGetFunction, cuKernelGetLibrary, cuKernelGetName, cuKernelGetParamCount,
    cuKernelGetParamInfo, cuKernelSetAttribute, cuKernelSetCacheConfig,
};
pub(crate) use module_calls::{
    cuLibraryGetGlobal, cuLibraryGetKernel, cuLibraryGetManaged, cuLibraryGetModule, cuLibraryLoadData,
    cuLibraryLoadFromFile, cuLibraryUnload, cuModuleGetFunction, cuModuleGetGlobal_v2,
    cuModuleGetLoadingMode, cuModuleLoad, cuModuleLoadData, cuModuleLoadDataEx, cuModuleLoadFatBinary,
    cuModuleUnload, text,
};

use function::FUNCTIONS;

#[derive(Debug)]
pub(crate) struct Module {
    context: CUcontext,
    /// What is known of its image.
    facts: (Arc<Facts>, Subject),
    /// Where the answer to its load comes, unless it has been waited for.
    due: Mutex<Option<CommandId>>,
    /// The functions that programs asked for, by name.
    functions: Mutex<HashMap<CString, u64>>,
    /// Addresses and sizes of the globals that they asked for, by name.
    globals: Mutex<HashMap<CString, (u64, u64)>>,
    /// Of a library: what it takes to have it on other devices, too.
    pub(crate) library: Option<Library>,
}

/// The home of a library whose session was lost: it is to be loaded anew wherever it is used.
const NOWHERE: CUdevice = -1;

/// A library is loaded on the device of its first use, and on others when they first use it.
#[derive(Debug)]
pub(crate) struct Library {
    /// The device that has it under the library's own handle, or [`NOWHERE`].
    home: AtomicI32,
    /// For the devices of each session, by its index; nothing where the library has no code for
    /// them.
    pub(crate) images: Vec<Option<ImageHash>>,
    pub(crate) options: Vec<JitOption>,
    pub(crate) elsewhere: Mutex<HashMap<CUdevice, u64>>,
}

static MODULES: Table<Module> = Table::new();

pub(crate) fn exists(number: u64) -> bool {
    MODULES.contains(number)
}

/// Forgets the modules of a context that has ended, with their functions.
pub(crate) fn context_ended(context: CUcontext) {
    for module in of_context(context) {
        forget(module);
    }
}

/// The context that a module was loaded in; none for a library.
pub(crate) fn owner(handle: u64) -> Option<CUcontext> {
    MODULES.get(handle).map(|module| module.context)
}

/// The handles of a context's modules.
pub(crate) fn of_context(context: CUcontext) -> Vec<u64> {
    MODULES.find(|module| module.context == context)
}

/// Enters a function as the node has described it.
pub(crate) fn enter(
    handle: u64,
    module: u64,
    name: CString,
    home: Option<CUdevice>,
    info: FunctionInfo,
) -> Result<(), CUresult> {
    let places = info.parameters.iter().map(|parameter| (parameter.offset, parameter.size)).collect();
    let layout = Layout::new(places).ok_or(CUresult::INVALID_IMAGE)?;
    let attributes = info.attributes.into_iter().collect();
    FUNCTIONS.insert(handle, Function::new(FunctionId(handle), module, name, layout, attributes, home));
    Ok(())
}

/// Enters a library's function that the node had not described when the session was lost, as it is
/// on the calling thread's device now.
pub(crate) fn enter_again(handle: u64, module: u64, name: CString) -> Result<(), CUresult> {
    let session = session::get()?;
    let other = session.get_function(session.present(module)?, &name)?;
    let described = function(other as usize)?;
    let (layout, attributes) = (described.layout.clone(), locked(&described.attributes).clone());
    let again = Function::new(FunctionId(handle), module, name, layout, attributes, Some(NOWHERE));
    locked(&again.elsewhere).insert(context::device(), other);
    FUNCTIONS.insert(handle, again);
    Ok(())
}

/// Libraries and their kernels are nowhere now: the session is lost that had them.
pub(crate) fn leave_libraries() {
    for module in MODULES.find(|module| module.library.is_some()).into_iter().filter_map(|it| MODULES.get(it))
    {
        *locked(&module.due) = None;
        locked(&module.globals).clear();
        if let Some(library) = &module.library {
            library.home.store(NOWHERE, Ordering::Release);
            locked(&library.elsewhere).clear();
        }
    }
    for function in FUNCTIONS.find(|_| true).into_iter().filter_map(|it| FUNCTIONS.get(it)) {
        if let Some(home) = &function.home {
            home.store(NOWHERE, Ordering::Release);
        }
        locked(&function.elsewhere).clear();
        function.answers.change();
        function.trials.forget();
    }
}

impl Library {
    /// On a device, whose images are those of its session's place in the list.
    pub(crate) fn new(home: CUdevice, images: Vec<Option<ImageHash>>, options: Vec<JitOption>) -> Library {
        Library { home: AtomicI32::new(home), images, options, elsewhere: Mutex::new(HashMap::new()) }
    }

    pub(crate) fn home(&self) -> CUdevice {
        self.home.load(Ordering::Acquire)
    }
}

fn forget(module: u64) {
    MODULES.remove(module);
    FUNCTIONS.remove_where(|function| function.module == module);
    texture_reference::module_unloaded(module);
}

impl Session {
    /// Forgets the global variables of a module, and what the program has at their addresses.
    pub(crate) fn forget_globals(&self, module: u64) {
        for address in self.take_globals(module) {
            mirror::forget_variable(self, address);
        }
    }
}

/// Enters a module that is being loaded.
pub(crate) fn insert(handle: u64, module: Module) {
    MODULES.insert(handle, module);
}

pub(crate) fn get(handle: u64) -> Result<Arc<Module>, CUresult> {
    MODULES.get(handle).ok_or(CUresult::INVALID_HANDLE)
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Module {
    pub(crate) fn new(
        context: CUcontext,
        facts: (Arc<Facts>, Subject),
        due: Option<CommandId>,
        library: Option<Library>,
    ) -> Module {
        Module {
            context,
            facts,
            due: Mutex::new(due),
            functions: Mutex::new(HashMap::new()),
            globals: Mutex::new(HashMap::new()),
            library,
        }
    }

    /// What is known of its image.
    pub(crate) fn facts(&self) -> (&Facts, &Subject) {
        (&self.facts.0, &self.facts.1)
    }

    /// What is known of a function, if need be by the answer to the load.
    fn describe(&self, session: &Session, name: &CStr) -> Result<Option<facts::Function>, CUresult> {
        let (facts, of) = self.facts();
        let known = facts.function(of, name);
        let due = if known.is_none() { locked(&self.due).take() } else { None };
        let Some(place) = due else { return Ok(known) };
        session.settle_load(self, place)?;
        Ok(facts.function(of, name))
    }
}

impl Session {
    /// The session of a module or function; what a library has loaded is not always in that of the
    /// calling thread.
    fn of_object(&self, handle: u64) -> &Session {
        let home = || ids::device(handle).and_then(|device| session::of(device).ok());
        if self.owns(handle) { self } else { home().unwrap_or(self) }
    }

    /// The module itself; of a library that was lost with its session, the one on the calling
    /// thread's device.
    pub(crate) fn present(&self, module: u64) -> Result<u64, CUresult> {
        match &get(module)?.library {
            Some(library) if library.home() == NOWHERE => self.library_on(module, context::device()),
            _ => Ok(module),
        }
    }

    /// The handle of a module's function, asking the node the first time. Whether there is such a
    /// function is known when this returns.
    pub(crate) fn get_function(&self, module: u64, name: &CStr) -> Result<u64, CUresult> {
        if let Some(&known) = locked(&get(module)?.functions).get(name) {
            return Ok(known);
        }
        let module = self.present(module)?;
        let object = get(module)?;
        if let Some(&known) = locked(&object.functions).get(name) {
            return Ok(known);
        }
        let handle = ids::mint_on(ids::device(module).unwrap_or_default(), Kind::Function);
        let (hfunc, hmod, session) = (FunctionId(handle), ModuleId(module), self.of_object(module));
        let home = object.library.as_ref().map(Library::home);
        match object.describe(session, name)? {
            Some(facts::Function::Described(info)) => {
                session.queue_quietly(&commands::FunctionNamed { hfunc, hmod, name })?;
                enter(handle, module, name.to_owned(), home, info)?;
            }
            Some(facts::Function::Named) => {
                session.ask_for_function((handle, module), name.to_owned(), home)?
            }
            None => {
                let command = commands::cuModuleGetFunction { hfunc, hmod, name };
                let info = session.call(&command, |answer| answer.info)?;
                learn(module, name, &info);
                enter(handle, module, name.to_owned(), home, info)?;
            }
        }
        locked(&object.functions).insert(name.to_owned(), handle);
        Ok(handle)
    }

    fn get_global(&self, module: u64, name: &CStr) -> Result<(u64, u64), CUresult> {
        let module = self.present(module)?;
        let object = get(module)?;
        if let Some(&known) = locked(&object.globals).get(name) {
            return Ok(known);
        }
        let command = commands::cuModuleGetGlobal_v2 { hmod: ModuleId(module), name };
        let (address, bytes, is_managed) =
            self.call(&command, |answer| (answer.dptr.0, answer.bytes, answer.is_managed))?;
        self.know_global(module, address, bytes);
        if is_managed {
            let device = ids::device(module).unwrap_or_default();
            variables::map(self.of_object(module), device, address, bytes)?;
        }
        locked(&object.globals).insert(name.to_owned(), (address, bytes));
        Ok((address, bytes))
    }

    fn unload(&self, module: u64) -> Result<(), CUresult> {
        let object = get(module)?;
        if let Some(library) = &object.library {
            for (_, other) in std::mem::take(&mut *locked(&library.elsewhere)) {
                self.unload(other)?;
            }
        }
        pending::settle_all(module);
        forget(module);
        if object.library.as_ref().is_some_and(|library| library.home() == NOWHERE) {
            return Ok(());
        }
        let session = self.of_object(module);
        if let Some(place) = locked(&object.due).take() {
            session.forgo_load(&object, place);
        }
        session.forget_globals(module);
        session.queue(&commands::cuModuleUnload { hmod: ModuleId(module) })
    }
}
