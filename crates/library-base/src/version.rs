//! Which of NVIDIA's releases a library stands for.

use std::ffi::{CStr, c_void};

/// The part of the file name by which the program knows the library that `address` is in, such as
/// `libcublas.so.12`; empty if the system does not say.
pub fn loaded_as(address: usize) -> String {
    // SAFETY: all zeros is a value of this structure of pointers.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked about, and the place for the answer is on the stack.
    let is_found = unsafe { libc::dladdr(address as *const c_void, &mut info) } != 0;
    if !is_found || info.dli_fname.is_null() {
        return String::new();
    }
    // SAFETY: the loader's name of a library that is loaded.
    let path = unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy();
    path.rsplit('/').next().unwrap_or_default().to_owned()
}
