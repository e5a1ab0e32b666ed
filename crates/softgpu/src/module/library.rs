//! Libraries: code without a context. Its kernels become functions in whatever context uses them
//! (CUDA Driver API, Library Management).

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::{CUfunction, CUkernel, CUlibrary};

use crate::base::status::{Result, Status};
use crate::base::table::Table;
use crate::context::{self, Context};
use crate::device::machine::Code;
use crate::module::Module;
use crate::module::function::{FUNCTIONS, Function, Settings};

pub(crate) static LIBRARIES: Table<Library> = Table::new(10);
pub(crate) static KERNELS: Table<Kernel> = Table::new(11);

pub(crate) struct Library {
    pub(crate) handle: usize,
    pub(crate) code: Arc<dyn Code>,
    /// Its module in each context that has used it, by the context's handle.
    modules: Mutex<BTreeMap<usize, Arc<Module>>>,
    /// Handles of the kernels asked for so far, by name.
    kernels: Mutex<BTreeMap<String, usize>>,
}

pub(crate) struct Kernel {
    pub(crate) handle: usize,
    pub(crate) name: String,
    /// The name as a C string.
    pub(crate) c_name: CString,
    pub(crate) library: Arc<Library>,
    pub(crate) settings: Arc<Settings>,
}

impl Library {
    pub(crate) fn create(code: Arc<dyn Code>) -> Arc<Self> {
        LIBRARIES.insert(|handle| Self { handle, code, modules: Mutex::default(), kernels: Mutex::default() })
    }

    pub(crate) fn get(handle: CUlibrary) -> Result<Arc<Self>> {
        LIBRARIES.get(handle.0).ok_or(Status::INVALID_HANDLE)
    }

    fn modules(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<Module>>> {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The library's module in a context, made on the first call.
    pub(crate) fn module(&self, context: &Context) -> Arc<Module> {
        let mut modules = self.modules();
        let new = || Module::create(context, Arc::clone(&self.code));
        Arc::clone(modules.entry(context.owner()).or_insert_with(new))
    }

    /// The kernel of this name, always with the same handle.
    pub(crate) fn kernel(self: &Arc<Self>, name: &str) -> Result<Arc<Kernel>> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(name).and_then(|&handle| KERNELS.get(handle)) {
            return Ok(kernel);
        }
        self.code.signature(name)?;
        let c_name = CString::new(name).map_err(|_| Status::INVALID_VALUE)?;
        let (library, settings) = (Arc::clone(self), Arc::default());
        let kernel =
            KERNELS.insert(|handle| Kernel { handle, name: name.to_owned(), c_name, library, settings });
        kernels.insert(name.to_owned(), kernel.handle);
        Ok(kernel)
    }

    pub(crate) fn unload(&self) {
        LIBRARIES.remove(self.handle);
        for &kernel in self.kernels.lock().unwrap_or_else(PoisonError::into_inner).values() {
            KERNELS.remove(kernel);
        }
        for module in std::mem::take(&mut *self.modules()).into_values() {
            module.unload();
        }
    }
}

impl Kernel {
    pub(crate) fn get(handle: CUkernel) -> Result<Arc<Self>> {
        Self::from_handle(handle.0)
    }

    /// By the bare number: programs pass kernels where functions are asked for.
    pub(crate) fn from_handle(handle: usize) -> Result<Arc<Self>> {
        KERNELS.get(handle).ok_or(Status::INVALID_HANDLE)
    }

    /// Offset and size in bytes of each parameter in the parameter buffer.
    pub(crate) fn params(&self) -> Result<Vec<(u64, u64)>> {
        Ok(self.library.code.signature(&self.name)?.params)
    }

    /// The kernel as a function of a context.
    pub(crate) fn function(&self, context: &Context) -> Result<Arc<Function>> {
        self.library.module(context).function(&self.name, &self.settings)
    }
}

/// Looks up a function by handle; a kernel's handle stands for its function in the current context.
pub(crate) fn function(handle: CUfunction) -> Result<Arc<Function>> {
    match FUNCTIONS.get(handle.0) {
        Some(function) => Ok(function),
        None => Kernel::from_handle(handle.0)?.function(&*context::current()?),
    }
}

/// As [`function`], with a kernel's function in the context of the stream that it is launched in
/// (CUDA Driver API, `cuLaunchKernel`).
pub(crate) fn function_in(handle: CUfunction, context: &Context) -> Result<Arc<Function>> {
    match FUNCTIONS.get(handle.0) {
        Some(function) => Ok(function),
        None => Kernel::from_handle(handle.0)?.function(context),
    }
}

/// Forgets the modules that libraries have in a context that is gone.
pub(crate) fn context_destroyed(context: usize) {
    for library in LIBRARIES.all() {
        library.modules().remove(&context);
    }
}
