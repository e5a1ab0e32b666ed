//! A preloaded library (`man 8 ld.so`) under which NVIDIA's device files seem to be there.
//!
//! Some programs ask whether a GPU is there by asking for a device file: JAX falls back to the CPU
//! when there is neither `/dev/nvidia0` nor `/dev/nvidiactl`, before it looks for a driver.
//! `sluice run` names this library in `LD_PRELOAD`; a check whether one of these files exists is
//! answered for `/dev/null`, which is a character device too. Opening them fails as it did before:
//! the device is not on this machine, and a program that wants to use it directly must learn that.
//!
//! NVIDIA's libraries are there, too, where the program's library path does not lead to them
//! ([`libraries`]), and for software GPUs another program stands for `ptxas` ([`assembler`]).

mod assembler;
mod libraries;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::transmute_copy;
use std::sync::atomic::{AtomicPtr, Ordering};

const SHOWN: [&CStr; 2] = [c"/dev/nvidiactl", c"/dev/nvidia0"];

/// The path to ask for in place of `path`.
///
/// # Safety
/// `path` is null or NUL-terminated.
unsafe fn shown(path: *const c_char) -> *const c_char {
    if path.is_null() {
        return path;
    }
    // SAFETY: not null, and then NUL-terminated as this function demands.
    let text = unsafe { CStr::from_ptr(path) };
    if SHOWN.contains(&text) { c"/dev/null".as_ptr() } else { path }
}

/// The function of this name, which ends with NUL, that the program would call without this
/// library, or null. It is looked up once.
fn next(known: &AtomicPtr<c_void>, name: &'static str) -> *mut c_void {
    let mut next = known.load(Ordering::Relaxed);
    if next.is_null() {
        // SAFETY: the name is NUL-terminated.
        next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) };
        known.store(next, Ordering::Relaxed);
    }
    next
}

/// The answer of a function that the C library does not have. Only a program built for one that
/// has it calls it.
fn absent() -> c_int {
    // SAFETY: the C library's own place of this thread's error number.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    -1
}

/// Defines functions that differ from those of the same name that come next only in the path they
/// ask for.
macro_rules! ask_for_shown {
    ($($name:ident([$($before:ident: $before_type:ty)*] path, $($after:ident: $after_type:ty),*);)+) => {$(
        /// # Safety
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($before: $before_type,)* path: *const c_char, $($after: $after_type),*
        ) -> c_int {
            type Function = unsafe extern "C" fn($($before_type,)* *const c_char, $($after_type),*) -> c_int;
            static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            let next = $crate::next(&NEXT, concat!(stringify!($name), "\0"));
            if next.is_null() {
                return $crate::absent();
            }
            // SAFETY: the dynamic linker found a function of this name, which has this signature in
            // every C library on Linux; a function and a pointer to it are of one size.
            let next: Function = unsafe { transmute_copy(&next) };
            // SAFETY: the caller's arguments, but for a path that is NUL-terminated as well.
            unsafe { next($($before,)* shown(path), $($after),*) }
        }
    )+};
}

ask_for_shown! {
    stat([] path, status: *mut c_void);
    stat64([] path, status: *mut c_void);
    lstat([] path, status: *mut c_void);
    lstat64([] path, status: *mut c_void);
    fstatat([folder: c_int] path, status: *mut c_void, flags: c_int);
    fstatat64([folder: c_int] path, status: *mut c_void, flags: c_int);
    statx([folder: c_int] path, flags: c_int, mask: c_uint, status: *mut c_void);
    access([] path, mode: c_int);
    faccessat([folder: c_int] path, mode: c_int, flags: c_int);
    // What programs built before glibc 2.33 call for `stat` and its kin.
    __xstat([version: c_int] path, status: *mut c_void);
    __xstat64([version: c_int] path, status: *mut c_void);
    __lxstat([version: c_int] path, status: *mut c_void);
    __lxstat64([version: c_int] path, status: *mut c_void);
    __fxstatat([version: c_int folder: c_int] path, status: *mut c_void, flags: c_int);
    __fxstatat64([version: c_int folder: c_int] path, status: *mut c_void, flags: c_int);
}
