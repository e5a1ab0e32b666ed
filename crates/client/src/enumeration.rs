//! The functions of a module and the kernels of a library, all of them: the node says their names, and each then gets its
//! handle as if the program had asked for it.

use std::ffi::CString;

use sluice_cuda::*;
use sluice_wire::{ModuleId, commands};

use crate::generated::stubs;
use crate::issue::{Issue, wanted};
use crate::{module, session};

/// Writes the handles of the first `room` functions.
///
/// # Safety
/// `to` is null or has room for so many handles.
unsafe fn enumerate(to: *mut CUfunction, room: u32, module: u64) -> Result<(), CUresult> {
    let session = session::get()?;
    if !module::exists(module) {
        return Err(CUresult::INVALID_HANDLE);
    }
    if room == 0 {
        return Ok(());
    }
    wanted(to)?;
    let command = commands::cuModuleEnumerateFunctions { hmod: ModuleId(module) };
    let names = session.call(&command, |answer| answer.names)?;
    for (i, name) in names.into_iter().take(room as usize).enumerate() {
        let name = CString::new(name).map_err(|_| CUresult::UNKNOWN)?;
        let handle = session.get_function(module, &name)?;
        // SAFETY: within the room that the caller vouches for.
        unsafe { to.add(i).write_unaligned(CUfunction(handle as usize)) };
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
    unsafe { enumerate(functions, numFunctions, hmod.0 as u64) }
}

pub(crate) unsafe fn cuLibraryGetKernelCount(count: *mut u32, lib: CUlibrary) -> Result<(), CUresult> {
    // SAFETY: the same contract; a library's handle is that of its module.
    unsafe { stubs::cuModuleGetFunctionCount(session::get()?, count, CUmodule(lib.0)) }
}

pub(crate) unsafe fn cuLibraryEnumerateKernels(
    kernels: *mut CUkernel,
    numKernels: u32,
    lib: CUlibrary,
) -> Result<(), CUresult> {
    // SAFETY: the same contract; a kernel's handle is that of its function.
    unsafe { enumerate(kernels.cast(), numKernels, lib.0 as u64) }
}
