//! A link auditor (`man 7 rtld-audit`) that hides nvJitLink from Python.
//!
//! numba-cuda hands LTO code to nvJitLink, which makes machine code of it, wherever it finds that
//! library. Where it does not, it hands PTX to the driver, and PTX is what a software GPU runs.
//! `sluice run` names this library in `LD_AUDIT` when the leased GPU is a software one. Only loads
//! by Python itself (through `ctypes`) get this library, which has no function of nvJitLink's, in
//! its place; cuSPARSE and others that are linked with nvJitLink still get it. (A load that fails
//! would not do: the file is there, so cuda-bindings takes that for a broken installation.)
//!
//! An auditor lives in a link namespace of its own, so nothing of the program is interposed on, and
//! calls through symbols cost what they always cost.

use std::ffi::{CStr, c_char, c_uint};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The newest version of the interface that this auditor knows (`LAV_CURRENT` of glibc 2.35 and
/// later is 2).
const INTERFACE_VERSION: c_uint = 1;

/// The object through which Python's `ctypes` loads libraries; 0 until it is loaded.
static CTYPES: AtomicUsize = AtomicUsize::new(0);

#[unsafe(no_mangle)]
pub extern "C" fn la_version(offered: c_uint) -> c_uint {
    offered.min(INTERFACE_VERSION)
}

/// Called for every name that the dynamic linker is about to try; the answer is the name that it
/// tries.
///
/// # Safety
/// The dynamic linker calls it with a NUL-terminated name and with the cookie of the object that
/// asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_objsearch(
    name: *const c_char,
    cookie: *const usize,
    _flag: c_uint,
) -> *const c_char {
    // SAFETY: the dynamic linker passes a NUL-terminated string that outlives the call.
    let text = unsafe { CStr::from_ptr(name) }.to_bytes();
    if file_name(text).starts_with(b"libnvJitLink.so") && cookie as usize == CTYPES.load(Ordering::Relaxed) {
        return own_path();
    }
    name
}

/// Where this library was loaded from; null, which says "not there", if the system does not know.
fn own_path() -> *const c_char {
    // SAFETY: all zeros is a value of this structure of pointers.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is one of this library, and the place for the answer is on the stack.
    let found = unsafe { libc::dladdr(la_version as *const libc::c_void, &mut info) };
    if found == 0 { std::ptr::null() } else { info.dli_fname }
}

/// Called for every object that has been loaded; the answer asks for no symbol-binding callbacks.
///
/// # Safety
/// The dynamic linker calls it with the link map of the object and with its cookie.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_objopen(
    map: *const LinkMap,
    _namespace: libc::c_long,
    cookie: *const usize,
) -> c_uint {
    // SAFETY: the dynamic linker passes the object's link map, whose name is a NUL-terminated
    // string.
    let path = unsafe { CStr::from_ptr((*map).name) }.to_bytes();
    if file_name(path).starts_with(b"_ctypes.") {
        CTYPES.store(cookie as usize, Ordering::Relaxed);
    }
    0
}

/// The public head of `struct link_map` (`<link.h>`).
#[repr(C)]
pub struct LinkMap {
    address: usize,
    name: *const c_char,
}

fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}
