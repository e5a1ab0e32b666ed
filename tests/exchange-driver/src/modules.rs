//! Modules are the driver's behind; what images, names and numbers reach it is recorded, and
//! attributes of functions that describe code are drawn.

use std::ffi::{CStr, c_char, c_void};

use sluice_cuda::*;

use crate::answer::{Answer, digest};
use crate::by_hand::forward;
use crate::call::{Call, forget, log, note};
use crate::table;

const LOGS: [CUjit_option; 4] = [
    CUjit_option::INFO_LOG_BUFFER,
    CUjit_option::INFO_LOG_BUFFER_SIZE_BYTES,
    CUjit_option::ERROR_LOG_BUFFER,
    CUjit_option::ERROR_LOG_BUFFER_SIZE_BYTES,
];

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut CUmodule,
    image: *const c_void,
    numOptions: u32,
    options: *mut CUjit_option,
    optionValues: *mut *mut c_void,
) -> CUresult {
    // SAFETY: an image of the exchange is text.
    let text = unsafe { CStr::from_ptr(image.cast()) }.to_bytes();
    let mut call = Call::new("cuModuleLoadDataEx");
    call.value(text.len());
    call.value(digest(text));
    for i in 0..numOptions as usize {
        // SAFETY: both arrays have that many.
        let (option, value) = unsafe { (options.add(i).read(), optionValues.add(i).read()) };
        // The buffers for logs are the worker's own.
        if !LOGS.contains(&option) {
            call.value(option);
            call.value(value.addr() as u32);
        }
    }
    call.answer(false);
    let result = forward!(cuModuleLoadDataEx(module, image, numOptions, options, optionValues));
    if result.is_success() {
        // SAFETY: written just now.
        note("Module", unsafe { module.read() }.0);
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleUnload(hmod: CUmodule) -> CUresult {
    let mut call = Call::new("cuModuleUnload");
    call.handle("Module", hmod.0);
    call.answer(false);
    forget("Module", hmod.0);
    forward!(cuModuleUnload(hmod))
}

/// A question about what has a name in a module.
///
/// # Safety
/// `text` ends with NUL.
unsafe fn named(function: &'static str, module: CUmodule, text: *const c_char) {
    let mut call = Call::new(function);
    call.handle("Module", module.0);
    // SAFETY: by this function's contract.
    call.values_of(unsafe { CStr::from_ptr(text) }.to_bytes());
    call.answer(false);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunction(
    hfunc: *mut CUfunction,
    hmod: CUmodule,
    name: *const c_char,
) -> CUresult {
    // SAFETY: the caller's name.
    unsafe { named("cuModuleGetFunction", hmod, name) };
    forward!(cuModuleGetFunction(hfunc, hmod, name))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetGlobal_v2(
    dptr: *mut CUdeviceptr,
    bytes: *mut usize,
    hmod: CUmodule,
    name: *const c_char,
) -> CUresult {
    // SAFETY: the caller's name.
    unsafe { named("cuModuleGetGlobal_v2", hmod, name) };
    let result = forward!(cuModuleGetGlobal_v2(dptr, bytes, hmod, name));
    if result.is_success() {
        // SAFETY: the caller's places, written just now.
        let (address, bytes) = unsafe { (dptr.read(), bytes.read()) };
        log(format!("global {address:x} {bytes:x}"));
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFuncGetAttribute(
    pi: *mut i32,
    attrib: CUfunction_attribute,
    hfunc: CUfunction,
) -> CUresult {
    let mut name = std::ptr::null();
    let found = forward!(cuFuncGetName(&mut name, hfunc));
    if !(CUfunction_attribute::CONST_SIZE_BYTES..=CUfunction_attribute::BINARY_VERSION).contains(&attrib)
        || !found.is_success()
    {
        return forward!(cuFuncGetAttribute(pi, attrib, hfunc));
    }
    // SAFETY: the driver's text, and the caller's place.
    unsafe {
        let text = CStr::from_ptr(name).to_bytes();
        pi.write(Answer::attribute(text, attrib.0));
    }
    CUresult::SUCCESS
}
