//! A link auditor (`man 7 rtld-audit`) that decides which file a library's name stands for where
//! the GPU is a software one. `sluice run` names it in `LD_AUDIT` then.
//!
//! - **nvJitLink is hidden from Python.** numba-cuda hands LTO code to nvJitLink, which makes
//!   machine code of it, wherever it finds that library. Where it does not, it hands PTX to the
//!   driver, and PTX is what a software GPU runs. Only loads by Python itself (by `ctypes`) get
//!   this library, which has no function of nvJitLink's, in its place; cuSPARSE and others that are
//!   linked with nvJitLink still get it. (A load that fails would not do: the file is there, so
//!   cuda-bindings takes that for a broken installation.)
//! - **Libraries in `SLUICE_SOFTWARE_LIBRARIES` stand for NVIDIA's of the same name,** such as
//!   cuBLAS, also where a program loads NVIDIA's by a path or finds it by its run path.
//!
//! An auditor lives in a link namespace of its own, so nothing of the program is interposed on, and
//! calls through symbols cost what they always cost.

use std::ffi::{CStr, CString, OsStr, c_char, c_uint};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The newest version of the interface that this auditor knows (`LAV_CURRENT` of glibc 2.35 and
/// later is 2).
const INTERFACE_VERSION: c_uint = 1;

/// The object through which Python's `ctypes` loads libraries; 0 until it is loaded.
static CTYPES: AtomicUsize = AtomicUsize::new(0);

/// What the names of libraries begin with that the folder may have. Other names are not looked up
/// there, so no file in it can stand for a library that has nothing to do with CUDA.
const REPLACED: [&[u8]; 4] = [b"libcublas.so", b"libcublasLt.so", b"libcurand.so", b"libcufft.so"];

#[unsafe(no_mangle)]
pub extern "C" fn la_version(offered: c_uint) -> c_uint {
    offered.min(INTERFACE_VERSION)
}

/// Called for every name that the dynamic linker is about to try; the answer is the name that it
/// tries. A name without a folder stays, since what is loaded has to be known by it; the dynamic
/// linker calls again for each path that it makes of it.
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
    let file = file_name(text);
    if file.starts_with(b"libnvJitLink.so") && cookie as usize == CTYPES.load(Ordering::Relaxed) {
        return own_path();
    }
    if let Some(folder) = std::env::var_os("SLUICE_SOFTWARE_LIBRARIES")
        && let Some(path) = replacement(text, Path::new(&folder))
        && let Ok(path) = CString::new(path.as_os_str().as_bytes())
    {
        // The dynamic linker keeps no copy that it would free. A process loads few such libraries.
        return path.into_raw();
    }
    name
}

/// The file in `folder` that stands for the one at a path, if there is one and it is not at that
/// path already.
fn replacement(wanted: &[u8], folder: &Path) -> Option<PathBuf> {
    let file = file_name(wanted);
    if file.len() == wanted.len() || !REPLACED.iter().any(|prefix| file.starts_with(prefix)) {
        return None;
    }
    let path = folder.join(OsStr::from_bytes(file));
    (path.as_os_str().as_bytes() != wanted && path.is_file()).then_some(path)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_libraries_of_the_folder_stand_for_others() {
        let folder = std::env::temp_dir().join(format!("sluice-auditor-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        for name in ["libcublas.so.13", "libc.so.6"] {
            std::fs::write(folder.join(name), "").expect("a file");
        }
        let own = folder.join("libcublas.so.13");
        let wanted = b"/usr/local/cuda/lib64/libcublas.so.13";
        assert_eq!(replacement(wanted, &folder), Some(own.clone()));
        let itself = own.to_string_lossy();
        let others = ["libcublas.so.13", "/lib/libcublas.so.11", "/lib/libc.so.6", "/lib/libcublasLt.so.13"];
        for wanted in others.into_iter().chain([&*itself]) {
            assert_eq!(replacement(wanted.as_bytes(), &folder), None, "{wanted}");
        }
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
