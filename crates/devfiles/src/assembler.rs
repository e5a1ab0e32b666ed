//! Starts Sluice's `ptxas` where a program starts NVIDIA's, if the GPU is a software one.
//!
//! Triton, XLA and `nvcc --cubin` start `ptxas` to turn PTX into machine code, which a software GPU
//! does not run. For such a GPU `sluice run` names, in `SLUICE_PTXAS`, a program that leaves the
//! PTX as it is. It is started with the path of NVIDIA's program as its name, since it has
//! NVIDIA's do what only that can.
//!
//! A child process between `fork` and `exec` may only call async-signal-safe functions, so nothing
//! here allocates or takes a lock after the start of the process. Functions that take their
//! arguments one by one (`execl`), and those that take an open file, start NVIDIA's program.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute_copy;
use std::os::unix::ffi::OsStringExt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

const VARIABLE: &str = "SLUICE_PTXAS";

/// Names of NVIDIA's program; Triton brings the second one for newer GPUs.
const NAMES: [&[u8]; 2] = [b"ptxas", b"ptxas-blackwell"];

/// A call with more arguments than this starts NVIDIA's program.
const ARGUMENTS_MAX: usize = 256;

/// The program to start in place of NVIDIA's, NUL-terminated for the life of the process, or null.
static OURS: AtomicPtr<c_char> = AtomicPtr::new(null_mut());

/// The dynamic linker calls this before the program's own code, on glibc with the arguments of
/// `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: unsafe extern "C" fn(c_int, *const *const c_char) = prepare;

/// # Safety
/// `arguments` is what `main` gets.
unsafe extern "C" fn prepare(count: c_int, arguments: *const *const c_char) {
    // SAFETY: `main` has at least one argument or a null pointer in its place.
    let name = if count > 0 { unsafe { *arguments } } else { return };
    // The program that stands for NVIDIA's, under its name, starts NVIDIA's itself.
    // SAFETY: arguments are NUL-terminated.
    if unsafe { is_assembler(name) } {
        return;
    }
    look_up();
    // Empty in a run on another GPU inside of one on a software GPU.
    let Some(ours) = std::env::var_os(VARIABLE).filter(|ours| !ours.is_empty()) else { return };
    if let Ok(ours) = CString::new(ours.into_vec()) {
        OURS.store(ours.into_raw(), Ordering::Relaxed);
    }
}

/// # Safety
/// `path` is null or NUL-terminated.
unsafe fn is_assembler(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: not null, and then NUL-terminated as this function demands.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    path.rsplit(|&byte| byte == b'/').next().is_some_and(|name| NAMES.contains(&name))
}

/// What to start: a program, and its arguments with a null pointer behind the last one.
struct Call {
    program: *const c_char,
    arguments: [*const c_char; ARGUMENTS_MAX + 1],
}

impl Call {
    /// The call to make instead of one of NVIDIA's program.
    ///
    /// # Safety
    /// As for `execve`.
    unsafe fn instead_of(program: *const c_char, arguments: *const *const c_char) -> Option<Call> {
        let ours = OURS.load(Ordering::Relaxed);
        // SAFETY: the caller's program is NUL-terminated.
        if ours.is_null() || arguments.is_null() || !unsafe { is_assembler(program) } {
            return None;
        }
        let mut call = Call { program: ours, arguments: [std::ptr::null(); ARGUMENTS_MAX + 1] };
        call.arguments[0] = program;
        let mut count = 1;
        // SAFETY: the list ends with a null pointer, and the loop ends there. A list without even a
        // name has nothing behind that.
        while !unsafe { (*arguments).is_null() || (*arguments.add(count)).is_null() } {
            if count == ARGUMENTS_MAX {
                return None;
            }
            // SAFETY: before the end of the list.
            call.arguments[count] = unsafe { *arguments.add(count) };
            count += 1;
        }
        Some(call)
    }
}

/// Defines functions that differ from those of the same name that come next only in the program
/// they start.
macro_rules! start_ours {
    ($($name:ident(
        [$($before:ident: $before_type:ty),*] program, [$($between:ident: $between_type:ty),*] arguments,
        [$($after:ident: $after_type:ty),*]
    );)+) => {
        /// The functions that come next.
        #[expect(non_upper_case_globals, reason = "each has the name of its function")]
        mod functions {
            use super::*;
            $(pub(super) static $name: AtomicPtr<c_void> = AtomicPtr::new(null_mut());)+
        }

        fn look_up() {
            $(crate::next(&functions::$name, concat!(stringify!($name), "\0"));)+
        }

        $(
        /// # Safety
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(
            $($before: $before_type,)* program: *const c_char, $($between: $between_type,)*
            arguments: *const *const c_char, $($after: $after_type,)*
        ) -> c_int {
            type Function = unsafe extern "C" fn(
                $($before_type,)* *const c_char, $($between_type,)* *const *const c_char, $($after_type,)*
            ) -> c_int;
            let next = crate::next(&functions::$name, concat!(stringify!($name), "\0"));
            if next.is_null() {
                return crate::absent();
            }
            // SAFETY: the dynamic linker found a function of this name, which has this signature
            // in every C library on Linux; a function and a pointer to it are of one size.
            let next: Function = unsafe { transmute_copy(&next) };
            // SAFETY: the caller's arguments.
            match unsafe { Call::instead_of(program, arguments) } {
                // SAFETY: the caller's arguments, but for another program and list, which live
                // until the call returns, if it does.
                Some(call) => unsafe {
                    next($($before,)* call.program, $($between,)* call.arguments.as_ptr(), $($after,)*)
                },
                // SAFETY: the caller's arguments.
                None => unsafe { next($($before,)* program, $($between,)* arguments, $($after,)*) },
            }
        }
        )+
    };
}

start_ours! {
    execv([] program, [] arguments, []);
    execve([] program, [] arguments, [environment: *const *const c_char]);
    execvp([] program, [] arguments, []);
    execvpe([] program, [] arguments, [environment: *const *const c_char]);
    posix_spawn(
        [pid: *mut c_int] program, [actions: *const c_void, attributes: *const c_void] arguments,
        [environment: *const *const c_char]
    );
    posix_spawnp(
        [pid: *mut c_int] program, [actions: *const c_void, attributes: *const c_void] arguments,
        [environment: *const *const c_char]
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assembler_is_known_by_the_last_part_of_its_path() {
        let is_assembler = |path: &CStr| {
            // SAFETY: NUL-terminated.
            unsafe { super::is_assembler(path.as_ptr()) }
        };
        assert!(is_assembler(c"ptxas") && is_assembler(c"/opt/bin/ptxas-blackwell"));
        assert!(!is_assembler(c"/ptxas/sh") && !is_assembler(c"ptxas2") && !is_assembler(c""));
    }

    #[test]
    fn its_arguments_stay_behind_its_path() {
        let call = |arguments: &[*const c_char]| {
            // SAFETY: the list ends with a null pointer.
            unsafe { Call::instead_of(c"/opt/ptxas".as_ptr(), arguments.as_ptr()) }
        };
        let (name, option) = (c"ptxas".as_ptr(), c"-v".as_ptr());
        let ends = [name, option, std::ptr::null()];
        assert!(call(&ends).is_none(), "nothing stands for it");
        OURS.store(c"/sluice".as_ptr().cast_mut(), Ordering::Relaxed);
        let instead = call(&ends).expect("ours");
        // SAFETY: the first arguments are NUL-terminated.
        let texts = [instead.program, instead.arguments[0]].map(|text| unsafe { CStr::from_ptr(text) });
        assert_eq!(texts, [c"/sluice", c"/opt/ptxas"]);
        assert!(instead.arguments[1] == option && instead.arguments[2].is_null());
        assert!(call(&[std::ptr::null()]).expect("ours").arguments[1].is_null());
        let mut many = vec![option; ARGUMENTS_MAX + 1];
        many.push(std::ptr::null());
        assert!(call(&many).is_none(), "too many");
        OURS.store(null_mut(), Ordering::Relaxed);
    }
}
