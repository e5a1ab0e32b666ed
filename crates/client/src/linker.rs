//! `cuLink*`: programs that compile PTX at run time join it here before they load it. The result of joining PTX is PTX:
//! whatever device runs it compiles it when it is loaded.

use std::ffi::{CStr, c_char, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use sluice_cuda::*;
use sluice_image::Image;

use crate::ids::{self, Kind, Table};
use crate::{out, session};

/// A link in progress. The result lives as long as its state does.
#[derive(Debug, Default)]
struct Link {
    inputs: Mutex<Vec<Vec<u8>>>,
    output: Mutex<Option<Box<[u8]>>>,
}

static LINKS: Table<Link> = Table::new();

fn find(state: CUlinkState) -> Result<Arc<Link>, CUresult> {
    session::get()?;
    LINKS.get(state.0 as u64).ok_or(CUresult::INVALID_HANDLE)
}

fn add(state: CUlinkState, bytes: &[u8]) -> Result<(), CUresult> {
    let link = find(state)?;
    match Image::parse(bytes) {
        Ok(Image::Ptx(text)) => {
            link.inputs.lock().unwrap_or_else(PoisonError::into_inner).push(text.to_vec());
            Ok(())
        }
        Ok(_) => {
            crate::say_once!("linking machine code is not supported: hand PTX to cuLinkAddData");
            Err(CUresult::NO_BINARY_FOR_GPU)
        }
        Err(_) => Err(CUresult::INVALID_IMAGE),
    }
}

// The entry points. CUDA Driver API, section "Module Management".

pub(crate) unsafe fn cuLinkCreate_v2(
    _: u32,
    _: *mut CUjit_option,
    _: *mut *mut c_void,
    stateOut: *mut CUlinkState,
) -> Result<(), CUresult> {
    session::get()?;
    let handle = ids::mint(Kind::LinkState);
    // SAFETY: the program passes a place for the state.
    unsafe { out::write(stateOut, CUlinkState(handle as usize))? };
    LINKS.insert(handle, Link::default());
    Ok(())
}

pub(crate) unsafe fn cuLinkAddData_v2(
    state: CUlinkState,
    _: CUjitInputType,
    data: *mut c_void,
    size: usize,
    _: *const c_char,
    _: u32,
    _: *mut CUjit_option,
    _: *mut *mut c_void,
) -> Result<(), CUresult> {
    if data.is_null() || isize::try_from(size).is_err() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the program passes `size` bytes.
    add(state, unsafe { std::slice::from_raw_parts(data.cast(), size) })
}

pub(crate) unsafe fn cuLinkAddFile_v2(
    state: CUlinkState,
    _: CUjitInputType,
    path: *const c_char,
    _: u32,
    _: *mut CUjit_option,
    _: *mut *mut c_void,
) -> Result<(), CUresult> {
    if path.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the program passes a string.
    let path = unsafe { CStr::from_ptr(path) }.to_string_lossy().into_owned();
    add(state, &std::fs::read(path).map_err(|_| CUresult::FILE_NOT_FOUND)?)
}

pub(crate) unsafe fn cuLinkComplete(
    state: CUlinkState,
    cubinOut: *mut *mut c_void,
    sizeOut: *mut usize,
) -> Result<(), CUresult> {
    let link = find(state)?;
    let inputs = std::mem::take(&mut *link.inputs.lock().unwrap_or_else(PoisonError::into_inner));
    let [text] = <[Vec<u8>; 1]>::try_from(inputs).map_err(|inputs| {
        if inputs.is_empty() {
            return CUresult::INVALID_VALUE;
        }
        crate::say_once!("linking several PTX modules is not supported yet");
        CUresult::NOT_SUPPORTED
    })?;
    // Loading finds the end of a text by its NUL, so the result has one.
    let mut output = text;
    output.push(0);
    let mut place = link.output.lock().unwrap_or_else(PoisonError::into_inner);
    let output = place.insert(output.into_boxed_slice());
    // SAFETY: the program passes two places.
    unsafe {
        out::write(cubinOut, output.as_mut_ptr().cast())?;
        out::write_if_wanted(sizeOut, output.len());
    }
    Ok(())
}

pub(crate) unsafe fn cuLinkDestroy(state: CUlinkState) -> Result<(), CUresult> {
    find(state)?;
    LINKS.remove(state.0 as u64);
    Ok(())
}
