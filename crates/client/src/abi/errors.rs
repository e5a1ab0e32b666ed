//! Names of errors, and what this library says on stderr: little, once, and where the way out is.

use std::ffi::c_char;

use sluice_cuda::*;

use crate::abi::out;

/// Says one line on stderr, the first time that this place is reached.
#[macro_export]
macro_rules! say_once {
    ($($text:tt)*) => {{
        static SAID: std::sync::Once = std::sync::Once::new();
        SAID.call_once(|| $crate::abi::errors::say(format_args!($($text)*)));
    }};
}

/// Says one line on stderr and to the program's log callbacks. A program may have closed stderr;
/// then the line is lost.
pub(crate) fn say(text: std::fmt::Arguments<'_>) {
    use std::io::Write as _;
    let text = text.to_string();
    let _ = writeln!(std::io::stderr(), "sluice: {text}");
    crate::abi::logs::message(&text);
}

// The entry points. CUDA Driver API, section "Error Handling". They work before cuInit.

pub(crate) unsafe fn cuGetErrorName(error: CUresult, pStr: *mut *const c_char) -> Result<(), CUresult> {
    let name = error.name();
    // SAFETY: the program passes a place for the text.
    unsafe { out::write(pStr, name.map_or(std::ptr::null(), |name| name.as_ptr()))? };
    name.map(drop).ok_or(CUresult::INVALID_VALUE)
}

pub(crate) unsafe fn cuGetErrorString(error: CUresult, pStr: *mut *const c_char) -> Result<(), CUresult> {
    let text = error.description();
    // SAFETY: the program passes a place for the text.
    unsafe { out::write(pStr, text.map_or(std::ptr::null(), |text| text.as_ptr()))? };
    text.map(drop).ok_or(CUresult::INVALID_VALUE)
}
