//! The functions of a module and the kernels of a library, all of them: the node says their names,
//! and each then gets its handle as if the program had asked for it.

use std::ffi::CString;

use sluice_cuda::*;
use sluice_wire::{ModuleId, commands};

use crate::abi::ids;
use crate::generated::stubs;
use crate::session::issue::{Issue, wanted};
use crate::{module, session};

/// The first `room` functions of a module.
pub(crate) fn functions(module: u64, room: usize) -> Result<Vec<CUfunction>, CUresult> {
    let session = ids::device(module as usize as u64).map_or_else(session::get, session::of)?;
    if !module::exists(module) {
        return Err(CUresult::INVALID_HANDLE);
    }
    let module = session.present(module)?;
    let command = commands::cuModuleEnumerateFunctions { hmod: ModuleId(module) };
    let names = session.call(&command, |answer| answer.names)?;
    let function = |name| {
        let name = CString::new(name).map_err(|_| CUresult::UNKNOWN)?;
        session.get_function(module, &name).map(|handle| CUfunction(handle as usize))
    };
    names.into_iter().take(room).map(function).collect()
}

/// Writes the handles of the first `room` functions.
///
/// # Safety
/// `to` is null or has room for that many handles.
unsafe fn enumerate<H>(
    to: *mut H,
    room: u32,
    module: u64,
    as_handle: impl std::ops::Fn(CUfunction) -> H,
) -> Result<(), CUresult> {
    if room > 0 {
        wanted(to)?;
    }
    for (i, handle) in functions(module, room as usize)?.into_iter().enumerate() {
        // SAFETY: within the room that the caller vouches for.
        unsafe { to.add(i).write_unaligned(as_handle(handle)) };
    }
    Ok(())
}

// The entry points. CUDA Driver API, sections "Module Management" and "Library Management".

pub(crate) unsafe fn cuModuleEnumerateFunctions(
    functions: *mut CUfunction,
    numFunctions: u32,
    hmod: CUmodule,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { enumerate(functions, numFunctions, hmod.0 as u64, |function| function) }
}

pub(crate) unsafe fn cuLibraryGetKernelCount(count: *mut u32, lib: CUlibrary) -> Result<(), CUresult> {
    let session = ids::device(lib.0 as u64).map_or_else(session::get, session::of)?;
    // SAFETY: the same contract; a library's handle is that of its module.
    unsafe {
        let module = CUmodule(session.present(lib.0 as u64)? as usize);
        stubs::cuModuleGetFunctionCount(session, count, module)
    }
}

pub(crate) unsafe fn cuLibraryEnumerateKernels(
    kernels: *mut CUkernel,
    numKernels: u32,
    lib: CUlibrary,
) -> Result<(), CUresult> {
    let kernel = |function: CUfunction| CUkernel(ids::kernel_of(function.0 as u64) as usize);
    // SAFETY: the same contract.
    unsafe { enumerate(kernels, numKernels, lib.0 as u64, kernel) }
}
