//! Functions and kernels: attributes and parameters.

use std::ffi::c_char;
use std::sync::Arc;

use sluice_cuda::{
    CUdevice, CUfunc_cache, CUfunction, CUfunction_attribute, CUfunctionLoadingState, CUkernel, CUlibrary,
    CUmodule, CUresult,
};

use crate::base::status::{Result, Status, call, put, put_optional};
use crate::context;
use crate::context::current;
use crate::device::{device, driver};
use crate::module::function::Function;
use crate::module::library::function;
use crate::module::library::{Kernel, LIBRARIES};

pub(crate) unsafe extern "C" fn cuKernelGetFunction(place: *mut CUfunction, kernel: CUkernel) -> CUresult {
    call(|| {
        let function = Kernel::get(kernel)?.function(&*current()?)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUfunction(function.handle)) }
    })
}

pub(crate) unsafe extern "C" fn cuKernelGetLibrary(place: *mut CUlibrary, kernel: CUkernel) -> CUresult {
    call(|| {
        driver()?;
        let library = Arc::clone(&Kernel::get(kernel)?.library);
        LIBRARIES.get(library.handle).ok_or(Status::INVALID_HANDLE)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUlibrary(library.handle)) }
    })
}

pub(crate) unsafe extern "C" fn cuKernelGetName(place: *mut *const c_char, kernel: CUkernel) -> CUresult {
    call(|| {
        driver()?;
        require_handle(kernel.0)?;
        // The name lives as long as the kernel, as CUDA says it does.
        // SAFETY: an output argument by contract.
        unsafe { put(place, Kernel::get(kernel)?.c_name.as_ptr()) }
    })
}

/// Refuses null where CUDA's documentation asks for the name of nothing (`cuFuncGetName`,
/// `cuKernelGetName`).
fn require_handle(handle: usize) -> Result<()> {
    if handle == 0 { Err(Status::INVALID_VALUE) } else { Ok(()) }
}

/// The kernel as a function of a device's primary context, or of the current context where that is
/// on the device.
fn function_on(kernel: CUkernel, dev: CUdevice) -> Result<Arc<Function>> {
    let (kernel, device) = (Kernel::get(kernel)?, device(dev)?);
    let current = context::current_or_none()?.filter(|context| context.device.ordinal == device.ordinal);
    let primary = || context::primary(device).context.clone();
    let context = current.or_else(primary).ok_or(Status::INVALID_CONTEXT)?;
    kernel.function(&context)
}

pub(crate) unsafe extern "C" fn cuKernelGetAttribute(
    place: *mut i32,
    attribute: CUfunction_attribute,
    kernel: CUkernel,
    dev: CUdevice,
) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, function_on(kernel, dev)?.attribute(attribute)?) })
}

pub(crate) unsafe extern "C" fn cuKernelSetAttribute(
    attribute: CUfunction_attribute,
    value: i32,
    kernel: CUkernel,
    dev: CUdevice,
) -> CUresult {
    call(|| function_on(kernel, dev)?.set_attribute(attribute, value))
}

pub(crate) unsafe extern "C" fn cuKernelSetCacheConfig(
    kernel: CUkernel,
    config: CUfunc_cache,
    dev: CUdevice,
) -> CUresult {
    call(|| {
        Kernel::get(kernel)?;
        device(dev)?;
        check_cache_config(config)
    })
}

/// A preference between caches that this device does not have.
fn check_cache_config(config: CUfunc_cache) -> Result<()> {
    if config <= CUfunc_cache::EQUAL { Ok(()) } else { Err(Status::INVALID_VALUE) }
}

/// # Safety
/// `offset` and `size` are output arguments.
unsafe fn put_param(params: &[(u64, u64)], index: usize, offset: *mut usize, size: *mut usize) -> Result<()> {
    let &(at, bytes) = params.get(index).ok_or(Status::INVALID_VALUE)?;
    // SAFETY: by this function's contract.
    unsafe {
        put(offset, at as usize)?;
        put_optional(size, bytes as usize);
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn cuKernelGetParamInfo(
    kernel: CUkernel,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> CUresult {
    call(|| {
        driver()?;
        // SAFETY: output arguments by contract.
        unsafe { put_param(&Kernel::get(kernel)?.params()?, index, offset, size) }
    })
}

pub(crate) unsafe extern "C" fn cuKernelGetParamCount(kernel: CUkernel, place: *mut usize) -> CUresult {
    call(|| {
        driver()?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, Kernel::get(kernel)?.params()?.len()) }
    })
}

pub(crate) unsafe extern "C" fn cuFuncGetParamInfo(
    handle: CUfunction,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> CUresult {
    call(|| {
        driver()?;
        // SAFETY: output arguments by contract.
        unsafe { put_param(&function(handle)?.signature.params, index, offset, size) }
    })
}

pub(crate) unsafe extern "C" fn cuFuncGetParamCount(handle: CUfunction, place: *mut usize) -> CUresult {
    call(|| {
        driver()?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, function(handle)?.signature.params.len()) }
    })
}

pub(crate) unsafe extern "C" fn cuFuncGetAttribute(
    place: *mut i32,
    attribute: CUfunction_attribute,
    handle: CUfunction,
) -> CUresult {
    call(|| {
        driver()?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, function(handle)?.attribute(attribute)?) }
    })
}

pub(crate) unsafe extern "C" fn cuFuncSetAttribute(
    handle: CUfunction,
    attribute: CUfunction_attribute,
    value: i32,
) -> CUresult {
    call(|| {
        driver()?;
        function(handle)?.set_attribute(attribute, value)
    })
}

pub(crate) unsafe extern "C" fn cuFuncSetCacheConfig(handle: CUfunction, config: CUfunc_cache) -> CUresult {
    call(|| {
        driver()?;
        function(handle)?;
        check_cache_config(config)
    })
}

pub(crate) unsafe extern "C" fn cuFuncSetSharedMemConfig(
    handle: CUfunction,
    config: sluice_cuda::CUsharedconfig,
) -> CUresult {
    call(|| {
        driver()?;
        function(handle)?;
        if config.name().is_some() { Ok(()) } else { Err(Status::INVALID_VALUE) }
    })
}

pub(crate) unsafe extern "C" fn cuFuncGetModule(place: *mut CUmodule, handle: CUfunction) -> CUresult {
    call(|| {
        driver()?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUmodule(function(handle)?.module.handle)) }
    })
}

pub(crate) unsafe extern "C" fn cuFuncGetName(place: *mut *const c_char, handle: CUfunction) -> CUresult {
    call(|| {
        driver()?;
        require_handle(handle.0)?;
        // The name lives as long as the function, as CUDA says it does.
        // SAFETY: an output argument by contract.
        unsafe { put(place, function(handle)?.c_name.as_ptr()) }
    })
}

pub(crate) unsafe extern "C" fn cuFuncIsLoaded(
    place: *mut CUfunctionLoadingState,
    handle: CUfunction,
) -> CUresult {
    call(|| {
        driver()?;
        let loaded = function(handle)?.is_loaded();
        let state = if loaded { CUfunctionLoadingState::LOADED } else { CUfunctionLoadingState::UNLOADED };
        // SAFETY: an output argument by contract.
        unsafe { put(place, state) }
    })
}

pub(crate) unsafe extern "C" fn cuFuncLoad(handle: CUfunction) -> CUresult {
    call(|| {
        driver()?;
        function(handle)?.compiled()?.code.load([32, 1, 1])
    })
}
