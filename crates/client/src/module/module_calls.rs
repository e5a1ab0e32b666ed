//! The entry points of modules and libraries. CUDA Driver API, sections "Module Management" and
//! "Library Management".

use std::ffi::{CStr, c_char, c_void};
use std::time::Instant;

use sluice_cuda::*;
use sluice_image::pointer::Located;

use super::image;
use super::image::Jit;
use super::load::Owner;
use crate::abi::{ids, out};
use crate::host_memory::mirror;
use crate::session::issue::wanted;
use crate::{context, session};

/// JIT options as functions take them: how many, their names, and their values.
type Options = (u32, *mut CUjit_option, *mut *mut c_void);

const NO_OPTIONS: Options = (0, std::ptr::null_mut(), std::ptr::null_mut());

/// # Safety
/// `module` is null or valid for writing a handle, `fname` is null or a string, and there are as
/// many options as said.
unsafe fn load_file(
    owner: Owner,
    module: *mut CUmodule,
    fname: *const c_char,
    options: Options,
) -> Result<(), CUresult> {
    session::get()?;
    // SAFETY: the caller passes a string.
    let image = image::read_file(unsafe { text(fname)? })?;
    // SAFETY: the same contract.
    unsafe { load_located(owner, module, &Located { image: &image, parts: Vec::new() }, options) }
}

/// # Safety
/// `module` is null or valid for writing a handle, `image` is null or an image, and there are as
/// many options as said.
unsafe fn load_data(
    owner: Owner,
    module: *mut CUmodule,
    image: *const c_void,
    options: Options,
) -> Result<(), CUresult> {
    session::get()?;
    // SAFETY: the same contract.
    unsafe { load_located(owner, module, &image::at(image)?, options) }
}

/// # Safety
/// `module` is null or valid for writing a handle, and there are as many options as said.
unsafe fn load_located(
    owner: Owner,
    module: *mut CUmodule,
    image: &Located<'_>,
    (count, names, values): Options,
) -> Result<(), CUresult> {
    let session = session::get()?;
    wanted(module)?;
    let begun = Instant::now();
    // SAFETY: the caller passes arrays of `count` options.
    let mut jit = unsafe { Jit::from_options(count, names, values) };
    let loaded = session.load(owner, image, &mut jit);
    jit.took(begun.elapsed());
    // SAFETY: not null, and the caller's to be written.
    unsafe { out::write(module, CUmodule(loaded? as usize)) }
}

/// A name that a program passed.
///
/// # Safety
/// `name` is null or a string.
pub(crate) unsafe fn text<'a>(name: *const c_char) -> Result<&'a CStr, CUresult> {
    if name.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller vouches for the rest.
    Ok(unsafe { CStr::from_ptr(name) })
}

pub(crate) unsafe fn cuModuleGetLoadingMode(mode: *mut CUmoduleLoadingMode) -> Result<(), CUresult> {
    session::get()?;
    // SAFETY: the program passes a place for the mode.
    unsafe { out::write(mode, CUmoduleLoadingMode::LAZY_LOADING) }
}

pub(crate) unsafe fn cuModuleLoad(module: *mut CUmodule, fname: *const c_char) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { load_file(Owner::Context, module, fname, NO_OPTIONS) }
}

pub(crate) unsafe fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuModuleLoadDataEx(module, image, 0, std::ptr::null_mut(), std::ptr::null_mut()) }
}

pub(crate) unsafe fn cuModuleLoadFatBinary(
    module: *mut CUmodule,
    fatCubin: *const c_void,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuModuleLoadData(module, fatCubin) }
}

pub(crate) unsafe fn cuModuleLoadDataEx(
    module: *mut CUmodule,
    image: *const c_void,
    numOptions: u32,
    options: *mut CUjit_option,
    optionValues: *mut *mut c_void,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { load_data(Owner::Context, module, image, (numOptions, options, optionValues)) }
}

pub(crate) unsafe fn cuModuleUnload(hmod: CUmodule) -> Result<(), CUresult> {
    session::enter()?.unload(hmod.0 as u64)
}

pub(crate) unsafe fn cuModuleGetFunction(
    hfunc: *mut CUfunction,
    hmod: CUmodule,
    name: *const c_char,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(hfunc)?;
    // SAFETY: the program passes a string.
    let handle = session.get_function(hmod.0 as u64, unsafe { text(name)? })?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(hfunc, CUfunction(handle as usize)) }
}

pub(crate) unsafe fn cuModuleGetGlobal_v2(
    dptr: *mut CUdeviceptr,
    bytes: *mut usize,
    hmod: CUmodule,
    name: *const c_char,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    // SAFETY: the program passes a string, and null or places for address and size.
    unsafe {
        out::one_wanted(dptr, bytes)?;
        let (address, size) = session.get_global(hmod.0 as u64, text(name)?)?;
        out::write_if_wanted(dptr, address);
        out::write_if_wanted(bytes, size as usize);
    }
    Ok(())
}

pub(crate) unsafe fn cuLibraryLoadData(
    library: *mut CUlibrary,
    code: *const c_void,
    jitOptions: *mut CUjit_option,
    jitOptionsValues: *mut *mut c_void,
    numJitOptions: u32,
    _: *mut CUlibraryOption,
    _: *mut *mut c_void,
    _: u32,
) -> Result<(), CUresult> {
    // SAFETY: the same contract; both handles are transparent numbers.
    unsafe {
        let options = (numJitOptions, jitOptions, jitOptionsValues);
        load_data(Owner::Process, library.cast(), code, options)
    }
}

pub(crate) unsafe fn cuLibraryLoadFromFile(
    library: *mut CUlibrary,
    fileName: *const c_char,
    jitOptions: *mut CUjit_option,
    jitOptionsValues: *mut *mut c_void,
    numJitOptions: u32,
    _: *mut CUlibraryOption,
    _: *mut *mut c_void,
    _: u32,
) -> Result<(), CUresult> {
    // SAFETY: the same contract; both handles are transparent numbers.
    unsafe {
        let options = (numJitOptions, jitOptions, jitOptionsValues);
        load_file(Owner::Process, library.cast(), fileName, options)
    }
}

pub(crate) unsafe fn cuLibraryUnload(library: CUlibrary) -> Result<(), CUresult> {
    session::get()?.unload(library.0 as u64)
}

pub(crate) unsafe fn cuLibraryGetKernel(
    pKernel: *mut CUkernel,
    library: CUlibrary,
    name: *const c_char,
) -> Result<(), CUresult> {
    let session = session::get()?;
    wanted(pKernel)?;
    // SAFETY: the program passes a string.
    let handle = session.get_function(library.0 as u64, unsafe { text(name)? })?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(pKernel, CUkernel(ids::kernel_of(handle) as usize)) }
}

pub(crate) unsafe fn cuLibraryGetModule(pMod: *mut CUmodule, library: CUlibrary) -> Result<(), CUresult> {
    let module = session::enter()?.library_on(library.0 as u64, context::device())?;
    // SAFETY: the program passes a place for the module.
    unsafe { out::write(pMod, CUmodule(module as usize)) }
}

pub(crate) unsafe fn cuLibraryGetGlobal(
    dptr: *mut CUdeviceptr,
    bytes: *mut usize,
    library: CUlibrary,
    name: *const c_char,
) -> Result<(), CUresult> {
    let module = session::enter()?.library_on(library.0 as u64, context::device())?;
    // SAFETY: the same contract.
    unsafe { cuModuleGetGlobal_v2(dptr, bytes, CUmodule(module as usize), name) }
}

/// The variable is that of the device on which it is asked for first.
pub(crate) unsafe fn cuLibraryGetManaged(
    dptr: *mut CUdeviceptr,
    bytes: *mut usize,
    library: CUlibrary,
    name: *const c_char,
) -> Result<(), CUresult> {
    let session = session::get()?;
    out::one_wanted(dptr, bytes)?;
    // SAFETY: the program passes a string.
    let (address, size) = session.get_global(library.0 as u64, unsafe { text(name)? })?;
    if mirror::with_device_address(address, |it| it.is_managed) != Some(true) {
        return Err(CUresult::NOT_FOUND);
    }
    // SAFETY: the program passes null or places for address and size.
    unsafe {
        out::write_if_wanted(dptr, address);
        out::write_if_wanted(bytes, size as usize);
    }
    Ok(())
}
