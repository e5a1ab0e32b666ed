//! Modules, libraries, functions and the linker (CUDA Driver API: Module, Library and Execution
//! Management).

mod function;
mod library;
mod linker;

use std::ffi::{CStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use sluice_cuda::{CUdeviceptr, CUfunction, CUjit_option, CUmodule, CUmoduleLoadingMode, CUresult};

use crate::base::status::{Result, Status, call, put, put_optional, require, require_one};
use crate::compiler::jit_options::Logs;
use crate::compiler::load;
use crate::context::{current, owning};
use crate::device::driver;
use crate::device::machine::Code;
use crate::module::Module;

pub(crate) use function::{
    cuFuncGetAttribute, cuFuncGetModule, cuFuncGetName, cuFuncGetParamCount, cuFuncGetParamInfo,
    cuFuncIsLoaded, cuFuncLoad, cuFuncSetAttribute, cuFuncSetCacheConfig, cuFuncSetSharedMemConfig,
    cuKernelGetAttribute, cuKernelGetFunction, cuKernelGetLibrary, cuKernelGetName, cuKernelGetParamCount,
    cuKernelGetParamInfo, cuKernelSetAttribute, cuKernelSetCacheConfig,
};
pub(crate) use library::{
    cuLibraryEnumerateKernels, cuLibraryGetGlobal, cuLibraryGetKernel, cuLibraryGetKernelCount,
    cuLibraryGetManaged, cuLibraryGetModule, cuLibraryLoadData, cuLibraryLoadFromFile, cuLibraryUnload,
};
pub(crate) use linker::{cuLinkAddData_v2, cuLinkAddFile_v2, cuLinkComplete, cuLinkCreate_v2, cuLinkDestroy};

const NO_OPTIONS: (u32, *mut CUjit_option, *mut *mut c_void) =
    (0, std::ptr::null_mut(), std::ptr::null_mut());

pub(crate) unsafe extern "C" fn cuModuleGetLoadingMode(place: *mut CUmoduleLoadingMode) -> CUresult {
    call(|| {
        driver()?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUmoduleLoadingMode::LAZY_LOADING) }
    })
}

pub(crate) unsafe extern "C" fn cuModuleLoadDataEx(
    place: *mut CUmodule,
    image: *const c_void,
    count: u32,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
) -> CUresult {
    call(|| {
        let context = current()?;
        require(place)?;
        // SAFETY: arrays and image by contract.
        let code = unsafe { load::code_at(image, &Logs::find(count, options, values)) }?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUmodule(Module::create(&context, code).handle)) }
    })
}

pub(crate) unsafe extern "C" fn cuModuleLoadData(place: *mut CUmodule, image: *const c_void) -> CUresult {
    let (count, options, values) = NO_OPTIONS;
    // SAFETY: passed on.
    unsafe { cuModuleLoadDataEx(place, image, count, options, values) }
}

pub(crate) unsafe extern "C" fn cuModuleLoadFatBinary(
    place: *mut CUmodule,
    image: *const c_void,
) -> CUresult {
    // SAFETY: passed on; a fat binary is one of the images that are distinguished.
    unsafe { cuModuleLoadData(place, image) }
}

pub(crate) unsafe extern "C" fn cuModuleLoad(place: *mut CUmodule, name: *const c_char) -> CUresult {
    call(|| {
        let context = current()?;
        require(place)?;
        let (count, options, values) = NO_OPTIONS;
        // SAFETY: a C string by contract, and no options.
        let code = unsafe { code_in_file(name, &Logs::find(count, options, values)) }?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUmodule(Module::create(&context, code).handle)) }
    })
}

/// # Safety
/// `name` is null or a C string.
unsafe fn code_in_file(name: *const c_char, logs: &Logs) -> Result<Arc<dyn Code>> {
    let image = {
        require(name)?;
        // SAFETY: by this function's contract.
        let path = Path::new(std::ffi::OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes()));
        std::fs::read(path).map_err(|_| Status::FILE_NOT_FOUND)?
    };
    let code = load::code(&[&image], logs.tuning).map_err(|failure| load::report(failure, logs))?;
    logs.finish("");
    Ok(code)
}

pub(crate) unsafe extern "C" fn cuModuleUnload(module: CUmodule) -> CUresult {
    call(|| {
        let module = Module::get(module)?;
        owning(module.context)?;
        module.unload();
        Ok(())
    })
}

/// # Safety
/// `name` is null or a C string, which stays for `'a`.
pub(super) unsafe fn name_at<'a>(name: *const c_char) -> Result<&'a str> {
    require(name)?;
    // SAFETY: by this function's contract.
    let name = unsafe { CStr::from_ptr(name) };
    // PTX names are ASCII: no other name can be found.
    name.to_str().map_err(|_| Status::NOT_FOUND)
}

pub(crate) unsafe extern "C" fn cuModuleGetFunction(
    place: *mut CUfunction,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    call(|| {
        require(place)?;
        let module = Module::get(module)?;
        owning(module.context)?;
        // SAFETY: a C string by contract.
        let function = module.function(unsafe { name_at(name) }?, &Arc::default())?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUfunction(function.handle)) }
    })
}

pub(crate) unsafe extern "C" fn cuModuleGetFunctionCount(place: *mut u32, module: CUmodule) -> CUresult {
    call(|| {
        driver()?;
        let count = Module::get(module)?.code.entry_names().len();
        // SAFETY: an output argument by contract.
        unsafe { put(place, count as u32) }
    })
}

pub(crate) unsafe extern "C" fn cuModuleEnumerateFunctions(
    places: *mut CUfunction,
    count: u32,
    module: CUmodule,
) -> CUresult {
    call(|| {
        driver()?;
        require(places)?;
        let module = Module::get(module)?;
        for (index, name) in module.code.entry_names().into_iter().take(count as usize).enumerate() {
            let function = module.function(name, &Arc::default())?;
            // SAFETY: an array of `count` elements by contract.
            unsafe { put(places.add(index), CUfunction(function.handle)) }?;
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuModuleGetGlobal_v2(
    place: *mut CUdeviceptr,
    size: *mut usize,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    call(|| {
        require_one(place, size)?;
        let module = Module::get(module)?;
        owning(module.context)?;
        // SAFETY: a C string by contract.
        let placed = module.variable(unsafe { name_at(name) }?)?;
        // SAFETY: output arguments by contract.
        unsafe { put_optional(place, placed.address) };
        // SAFETY: as above.
        unsafe { put_optional(size, placed.bytes as usize) };
        Ok(())
    })
}
