//! Modules, libraries, functions and the linker (CUDA Driver API: Module, Library and Execution
//! Management).

use std::ffi::{CStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use sluice_cuda::{
    CUdevice, CUdeviceptr, CUfunc_cache, CUfunction, CUfunction_attribute, CUfunctionLoadingState,
    CUjit_option, CUjitInputType, CUkernel, CUlibrary, CUlibraryOption, CUlinkState, CUmodule,
    CUmoduleLoadingMode, CUresult,
};

use crate::context::{self, current, owning};
use crate::device::{device, driver};
use crate::function::Function;
use crate::jit_options::Logs;
use crate::library::{Kernel, LIBRARIES, Library};
use crate::link::{LINKS, Link};
use crate::load;
use crate::machine::Code;
use crate::module::{Module, function};
use crate::status::{Result, Status, call, put, put_optional, require, require_one};

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
    // SAFETY: passed on; a fat binary is one of the images that are told apart.
    unsafe { cuModuleLoadData(place, image) }
}

pub(crate) unsafe extern "C" fn cuModuleLoad(place: *mut CUmodule, name: *const c_char) -> CUresult {
    call(|| {
        let context = current()?;
        require(place)?;
        // SAFETY: a C string by contract.
        let code = unsafe { code_in_file(name) }?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUmodule(Module::create(&context, code).handle)) }
    })
}

/// # Safety
/// `name` is null or a C string.
unsafe fn code_in_file(name: *const c_char) -> Result<Arc<dyn Code>> {
    let image = {
        require(name)?;
        // SAFETY: by this function's contract.
        let path = Path::new(std::ffi::OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes()));
        std::fs::read(path).map_err(|_| Status::FILE_NOT_FOUND)?
    };
    let (count, options, values) = NO_OPTIONS;
    // SAFETY: no options.
    let logs = unsafe { Logs::find(count, options, values) };
    load::code(&[&image]).map_err(|failure| load::report(failure, &logs))
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

pub(crate) unsafe extern "C" fn cuLibraryLoadData(
    place: *mut CUlibrary,
    image: *const c_void,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
    count: u32,
    _library_options: *mut CUlibraryOption,
    _library_values: *mut *mut c_void,
    _library_count: u32,
) -> CUresult {
    call(|| {
        driver()?;
        require(place)?;
        // SAFETY: arrays and image by contract.
        let code = unsafe { load::code_at(image, &Logs::find(count, options, values)) }?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUlibrary(Library::create(code).handle)) }
    })
}

pub(crate) unsafe extern "C" fn cuLibraryLoadFromFile(
    place: *mut CUlibrary,
    name: *const c_char,
    _options: *mut CUjit_option,
    _values: *mut *mut c_void,
    _count: u32,
    _library_options: *mut CUlibraryOption,
    _library_values: *mut *mut c_void,
    _library_count: u32,
) -> CUresult {
    call(|| {
        driver()?;
        require(place)?;
        // SAFETY: a C string by contract.
        let code = unsafe { code_in_file(name) }?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUlibrary(Library::create(code).handle)) }
    })
}

pub(crate) unsafe extern "C" fn cuLibraryUnload(library: CUlibrary) -> CUresult {
    call(|| {
        driver()?;
        Library::get(library)?.unload();
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuLibraryGetKernel(
    place: *mut CUkernel,
    library: CUlibrary,
    name: *const c_char,
) -> CUresult {
    call(|| {
        driver()?;
        require(place)?;
        // SAFETY: a C string by contract.
        let kernel = Library::get(library)?.kernel(unsafe { name_at(name) }?)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUkernel(kernel.handle)) }
    })
}

pub(crate) unsafe extern "C" fn cuLibraryGetKernelCount(place: *mut u32, library: CUlibrary) -> CUresult {
    call(|| {
        driver()?;
        let count = Library::get(library)?.code.entry_names().len();
        // SAFETY: an output argument by contract.
        unsafe { put(place, count as u32) }
    })
}

pub(crate) unsafe extern "C" fn cuLibraryEnumerateKernels(
    places: *mut CUkernel,
    count: u32,
    library: CUlibrary,
) -> CUresult {
    call(|| {
        driver()?;
        require(places)?;
        let library = Library::get(library)?;
        for (index, name) in library.code.entry_names().into_iter().take(count as usize).enumerate() {
            // SAFETY: an array of `count` elements by contract.
            unsafe { put(places.add(index), CUkernel(library.kernel(name)?.handle)) }?;
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuLibraryGetModule(place: *mut CUmodule, library: CUlibrary) -> CUresult {
    call(|| {
        let context = current()?;
        let module = Library::get(library)?.module(&context);
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUmodule(module.handle)) }
    })
}

pub(crate) unsafe extern "C" fn cuLibraryGetGlobal(
    place: *mut CUdeviceptr,
    size: *mut usize,
    library: CUlibrary,
    name: *const c_char,
) -> CUresult {
    call(|| {
        require_one(place, size)?;
        let context = current()?;
        // SAFETY: a C string by contract.
        let placed = Library::get(library)?.module(&context).variable(unsafe { name_at(name) }?)?;
        // SAFETY: output arguments by contract.
        unsafe { put_optional(place, placed.address) };
        // SAFETY: as above.
        unsafe { put_optional(size, placed.bytes as usize) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuLibraryGetManaged(
    place: *mut CUdeviceptr,
    size: *mut usize,
    library: CUlibrary,
    name: *const c_char,
) -> CUresult {
    call(|| {
        require_one(place, size)?;
        let context = current()?;
        // SAFETY: a C string by contract.
        let placed = Library::get(library)?.module(&context).variable(unsafe { name_at(name) }?)?;
        if !placed.is_managed {
            return Err(Status::NOT_FOUND);
        }
        // SAFETY: output arguments by contract.
        unsafe { put_optional(place, placed.address) };
        // SAFETY: as above.
        unsafe { put_optional(size, placed.bytes as usize) };
        Ok(())
    })
}

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
    let primary = || device.lock_primary().context.clone();
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

pub(crate) unsafe extern "C" fn cuLinkCreate_v2(
    count: u32,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
    place: *mut CUlinkState,
) -> CUresult {
    call(|| {
        current()?;
        require(place)?;
        // SAFETY: arrays by contract, which says that the logs stay until the link is destroyed.
        let link = Link::create(unsafe { Logs::find(count, options, values) });
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUlinkState(link.handle)) }
    })
}

/// PTX can be linked, alone or in a fat binary; machine code and LTO-IR cannot. Libraries hold
/// machine code, which is passed over: what programs need of the device runtime is there without
/// it.
fn check_input(kind: CUjitInputType) -> Result<()> {
    match kind {
        CUjitInputType::INPUT_PTX | CUjitInputType::INPUT_FATBINARY | CUjitInputType::INPUT_LIBRARY => Ok(()),
        _ => {
            eprintln!(
                "sluice: cuLink: input of kind {kind:?} cannot be linked for a software GPU, only PTX can"
            );
            Err(Status::NO_BINARY_FOR_GPU)
        }
    }
}

pub(crate) unsafe extern "C" fn cuLinkAddData_v2(
    state: CUlinkState,
    kind: CUjitInputType,
    data: *mut c_void,
    size: usize,
    name: *const c_char,
    _count: u32,
    _options: *mut CUjit_option,
    _values: *mut *mut c_void,
) -> CUresult {
    call(|| {
        driver()?;
        let link = Link::get(state)?;
        require(data)?;
        check_input(kind)?;
        // SAFETY: null or a C string by contract.
        let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
        // SAFETY: `size` bytes by contract.
        link.add(name, unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) })
    })
}

pub(crate) unsafe extern "C" fn cuLinkAddFile_v2(
    state: CUlinkState,
    kind: CUjitInputType,
    path: *const c_char,
    _count: u32,
    _options: *mut CUjit_option,
    _values: *mut *mut c_void,
) -> CUresult {
    call(|| {
        driver()?;
        let link = Link::get(state)?;
        require(path)?;
        check_input(kind)?;
        // SAFETY: a C string by contract.
        let path = Path::new(std::ffi::OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
        let name = path.display().to_string();
        link.add(Some(name), &std::fs::read(path).map_err(|_| Status::FILE_NOT_FOUND)?)
    })
}

pub(crate) unsafe extern "C" fn cuLinkComplete(
    state: CUlinkState,
    place: *mut *mut c_void,
    size: *mut usize,
) -> CUresult {
    call(|| {
        driver()?;
        let (image, bytes) = Link::get(state)?.complete()?;
        // SAFETY: output arguments by contract.
        unsafe {
            put(place, image.cast_mut().cast())?;
            put_optional(size, bytes);
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuLinkDestroy(state: CUlinkState) -> CUresult {
    call(|| {
        driver()?;
        LINKS.remove(state.0).map(drop).ok_or(Status::INVALID_HANDLE)
    })
}
