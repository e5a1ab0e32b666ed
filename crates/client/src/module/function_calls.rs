//! The entry points of kernels and functions. CUDA Driver API, sections "Library Management" and
//! "Execution Control".

use std::ffi::c_char;
use std::sync::Arc;

use sluice_cuda::*;

use super::{Function, function};
use crate::abi::out;
use crate::session;

/// The function of a handle in a question about it: null is an invalid value there, and any other
/// wrong handle an invalid handle.
fn asked_of(handle: usize) -> Result<Arc<Function>, CUresult> {
    if handle == 0 { Err(CUresult::INVALID_VALUE) } else { function(handle) }
}

/// A preference, which devices with a unified cache ignore.
fn check_cache_config(config: CUfunc_cache) -> Result<(), CUresult> {
    if config.name().is_some() { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
}

pub(crate) unsafe fn cuKernelGetFunction(pFunc: *mut CUfunction, kernel: CUkernel) -> Result<(), CUresult> {
    session::enter()?;
    let function = function(kernel.0)?.here()?;
    // SAFETY: the program passes a place for the function.
    unsafe { out::write(pFunc, CUfunction(function.id.0 as usize)) }
}

pub(crate) unsafe fn cuKernelGetLibrary(pLib: *mut CUlibrary, kernel: CUkernel) -> Result<(), CUresult> {
    session::get()?;
    let library = CUlibrary(function(kernel.0)?.module as usize);
    // SAFETY: the program passes a place for the library.
    unsafe { out::write(pLib, library) }
}

pub(crate) unsafe fn cuKernelGetName(name: *mut *const c_char, hfunc: CUkernel) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuFuncGetName(name, CUfunction(hfunc.0)) }
}

/// Devices of a lease share one function's attributes: what is set for one is seen for all.
pub(crate) unsafe fn cuKernelGetAttribute(
    pi: *mut i32,
    attrib: CUfunction_attribute,
    kernel: CUkernel,
    dev: CUdevice,
) -> Result<(), CUresult> {
    session::device(dev)?;
    // SAFETY: the program passes a place for the value.
    unsafe { out::write(pi, function(kernel.0)?.attribute(attrib)?) }
}

pub(crate) unsafe fn cuKernelSetAttribute(
    attrib: CUfunction_attribute,
    val: i32,
    kernel: CUkernel,
    dev: CUdevice,
) -> Result<(), CUresult> {
    let session = session::get()?;
    session::device(dev)?;
    function(kernel.0)?.set_attribute(session, attrib, val)
}

pub(crate) unsafe fn cuKernelSetCacheConfig(
    kernel: CUkernel,
    config: CUfunc_cache,
    dev: CUdevice,
) -> Result<(), CUresult> {
    session::device(dev)?;
    function(kernel.0)?;
    check_cache_config(config)
}

pub(crate) unsafe fn cuKernelGetParamInfo(
    kernel: CUkernel,
    paramIndex: usize,
    paramOffset: *mut usize,
    paramSize: *mut usize,
) -> Result<(), CUresult> {
    session::get()?;
    asked_of(kernel.0)?.parameter(paramIndex, paramOffset, paramSize)
}

pub(crate) unsafe fn cuKernelGetParamCount(kernel: CUkernel, paramCount: *mut usize) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuFuncGetParamCount(CUfunction(kernel.0), paramCount) }
}

pub(crate) unsafe fn cuFuncGetAttribute(
    pi: *mut i32,
    attrib: CUfunction_attribute,
    hfunc: CUfunction,
) -> Result<(), CUresult> {
    session::get()?;
    // SAFETY: the program passes a place for the value.
    unsafe { out::write(pi, asked_of(hfunc.0)?.attribute(attrib)?) }
}

pub(crate) unsafe fn cuFuncSetAttribute(
    hfunc: CUfunction,
    attrib: CUfunction_attribute,
    value: i32,
) -> Result<(), CUresult> {
    let session = session::get()?;
    function(hfunc.0)?.set_attribute(session, attrib, value)
}

pub(crate) unsafe fn cuFuncSetCacheConfig(hfunc: CUfunction, config: CUfunc_cache) -> Result<(), CUresult> {
    session::get()?;
    function(hfunc.0)?;
    check_cache_config(config)
}

/// Devices since compute capability 5.0 ignore it.
pub(crate) unsafe fn cuFuncSetSharedMemConfig(
    hfunc: CUfunction,
    config: CUsharedconfig,
) -> Result<(), CUresult> {
    session::get()?;
    function(hfunc.0)?;
    if config.name().is_some() { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
}

pub(crate) unsafe fn cuFuncGetModule(hmod: *mut CUmodule, hfunc: CUfunction) -> Result<(), CUresult> {
    session::get()?;
    let module = CUmodule(asked_of(hfunc.0)?.module as usize);
    // SAFETY: the program passes a place for the module.
    unsafe { out::write(hmod, module) }
}

/// The text lives as long as its module is loaded.
pub(crate) unsafe fn cuFuncGetName(name: *mut *const c_char, hfunc: CUfunction) -> Result<(), CUresult> {
    session::get()?;
    let text = asked_of(hfunc.0)?.name.as_ptr();
    // SAFETY: the program passes a place for the address.
    unsafe { out::write(name, text) }
}

pub(crate) unsafe fn cuFuncGetParamInfo(
    func: CUfunction,
    paramIndex: usize,
    paramOffset: *mut usize,
    paramSize: *mut usize,
) -> Result<(), CUresult> {
    session::get()?;
    asked_of(func.0)?.parameter(paramIndex, paramOffset, paramSize)
}

pub(crate) unsafe fn cuFuncGetParamCount(func: CUfunction, paramCount: *mut usize) -> Result<(), CUresult> {
    session::get()?;
    let count = asked_of(func.0)?.layout.places.len();
    // SAFETY: the program passes a place for the count.
    unsafe { out::write(paramCount, count) }
}

pub(crate) unsafe fn cuFuncIsLoaded(
    state: *mut CUfunctionLoadingState,
    function: CUfunction,
) -> Result<(), CUresult> {
    session::get()?;
    crate::module::function(function.0)?;
    // SAFETY: the program passes a place for the state.
    unsafe { out::write(state, CUfunctionLoadingState::LOADED) }
}

/// A function is loaded with its handle.
pub(crate) unsafe fn cuFuncLoad(function: CUfunction) -> Result<(), CUresult> {
    session::get()?;
    crate::module::function(function.0).map(drop)
}
