//! The linker.

use std::ffi::{CStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sluice_cuda::{CUjit_option, CUjitInputType, CUlinkState, CUresult};

use crate::base::status::{Result, Status, call, put, put_optional, require};
use crate::compiler::jit_options::Logs;
use crate::compiler::link::{LINKS, PendingLink};
use crate::context::current;
use crate::device::driver;

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
        let link = PendingLink::create(unsafe { Logs::find(count, options, values) });
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
    count: u32,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
) -> CUresult {
    call(|| {
        driver()?;
        let link = PendingLink::get(state)?;
        require(data)?;
        check_input(kind)?;
        // SAFETY: null or a C string by contract.
        let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
        // SAFETY: arrays by contract.
        let tuning = unsafe { Logs::find(count, options, values) }.tuning;
        // SAFETY: `size` bytes by contract.
        link.add(name, unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) }, tuning)
    })
}

pub(crate) unsafe extern "C" fn cuLinkAddFile_v2(
    state: CUlinkState,
    kind: CUjitInputType,
    path: *const c_char,
    count: u32,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
) -> CUresult {
    call(|| {
        driver()?;
        let link = PendingLink::get(state)?;
        require(path)?;
        check_input(kind)?;
        // SAFETY: a C string by contract.
        let path = Path::new(std::ffi::OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
        let name = path.display().to_string();
        // SAFETY: arrays by contract.
        let tuning = unsafe { Logs::find(count, options, values) }.tuning;
        link.add(Some(name), &std::fs::read(path).map_err(|_| Status::FILE_NOT_FOUND)?, tuning)
    })
}

pub(crate) unsafe extern "C" fn cuLinkComplete(
    state: CUlinkState,
    place: *mut *mut c_void,
    size: *mut usize,
) -> CUresult {
    call(|| {
        driver()?;
        let (image, bytes) = PendingLink::get(state)?.complete()?;
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
