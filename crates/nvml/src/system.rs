//! Start, end, versions, and the texts of result codes.

use std::ffi::{c_char, c_int, c_uint};

use crate::abi::Return;
use crate::lease;

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> Return {
    guard(lease::attach)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> Return {
    nvmlInit_v2()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> Return {
    nvmlInit_v2()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> Return {
    guard(lease::detach)
}

/// The text of a result code; it lives for ever.
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: Return) -> *const c_char {
    let text = match result.0 {
        0 => c"success",
        1 => c"NVML is not initialised",
        2 => c"an argument is invalid",
        3 => c"not supported on a leased GPU",
        4 => c"permission denied",
        6 => c"not found",
        7 => c"the buffer is too small",
        9 => c"no lease: start the program with `sluice run`",
        13 => c"no such function",
        15 => c"the node of the lease does not answer",
        25 => c"unknown version of a structure",
        _ => c"unknown error",
    };
    text.as_ptr()
}

/// The driver version of a node, as NVIDIA writes them: the first that supports the CUDA version.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> Return {
    // SAFETY: the caller passes a buffer of `length` bytes.
    guard(|| unsafe { write_text(version, length, &lease::snapshot()?.driver_version) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) -> Return {
    let text = concat!("13.", env!("CARGO_PKG_VERSION"));
    // SAFETY: the caller passes a buffer of `length` bytes.
    guard(|| unsafe { write_text(version, length, text) })
}

/// As `cuDriverGetVersion`: 1000 x major + 10 x minor.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> Return {
    // SAFETY: the caller passes a valid pointer or null.
    guard(|| unsafe { write(version, lease::snapshot()?.cuda_version as c_int) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetCudaDriverVersion(version: *mut c_int) -> Return {
    // SAFETY: the caller's promise is the same.
    unsafe { nvmlSystemGetCudaDriverVersion_v2(version) }
}

/// Runs the body of an exported function; a panic becomes an error code.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Return>) -> Return {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
        Ok(Ok(())) => Return::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => Return::UNKNOWN,
    }
}

/// Writes through an out parameter that may be null.
///
/// # Safety
/// `target` is null or valid for a write.
pub(crate) unsafe fn write<T>(target: *mut T, value: T) -> Result<(), Return> {
    if target.is_null() {
        return Err(Return::INVALID_ARGUMENT);
    }
    // SAFETY: the caller's promise, and it is not null.
    unsafe { target.write(value) };
    Ok(())
}

/// Writes a text with its end mark into a caller's buffer.
///
/// # Safety
/// `target` is null or valid for `length` bytes.
pub(crate) unsafe fn write_text(target: *mut c_char, length: c_uint, text: &str) -> Result<(), Return> {
    if target.is_null() {
        return Err(Return::INVALID_ARGUMENT);
    }
    if text.len() >= length as usize {
        return Err(Return::INSUFFICIENT_SIZE);
    }
    // SAFETY: the buffer holds the text and the mark, as checked; it cannot overlap our own string.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), target, text.len());
        target.add(text.len()).write(0);
    }
    Ok(())
}
