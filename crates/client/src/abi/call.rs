//! What surrounds each call of the program.
//!
//! A signal may interrupt a call anywhere, also where it holds a lock or reads for all others. What
//! its handler calls then would wait for itself; so a call inside a call is refused, as a driver
//! refuses calls that come when it is gone: a handler that calls `exit` gets through what the CUDA
//! runtime does there. Nor may a function call CUDA that a stream calls. A thread may be cancelled
//! (`pthread_cancel`) only outside: its stack is not unwound through Rust.

use std::cell::Cell;

use sluice_cuda::{CUresult, Fn, guard};

use crate::abi::fork_gate;

thread_local! {
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    static IS_CALLED_BACK: Cell<bool> = const { Cell::new(false) };
}

/// Runs the body of an exported function.
pub(crate) fn entered(body: impl FnOnce() -> CUresult) -> CUresult {
    if IS_INSIDE.replace(true) {
        return CUresult::DEINITIALIZED;
    }
    let passed = fork_gate::pass();
    let result = guard(body);
    drop(passed);
    IS_INSIDE.set(false);
    result
}

/// Runs the body of a function of the hidden tables, which may be called inside a call too: then
/// it is a part of that.
pub(crate) fn entered_or_inside(body: impl FnOnce() -> CUresult) -> CUresult {
    if IS_INSIDE.get() { guard(body) } else { entered(body) }
}

/// What this library does around a fork, on the thread that forks: a call inside of it is refused.
#[derive(Debug)]
pub(crate) struct Forking(());

/// Begins that. `None` amid a call, which continues after the fork, and in a function that a stream
/// calls.
pub(crate) fn begin_fork() -> Option<Forking> {
    (!IS_CALLED_BACK.get() && !IS_INSIDE.replace(true)).then(|| Forking(()))
}

impl Drop for Forking {
    fn drop(&mut self) {
        IS_INSIDE.set(false);
    }
}

/// Runs a function of the program's amid a call; it may call CUDA.
pub(crate) fn outside<R>(body: impl FnOnce() -> R) -> R {
    let was_inside = IS_INSIDE.replace(false);
    let result = body();
    IS_INSIDE.set(was_inside);
    result
}

/// Runs a function of the program's that a stream has called, or a graph at its end.
pub(crate) fn called_back(body: impl FnOnce()) {
    IS_CALLED_BACK.set(true);
    body();
    IS_CALLED_BACK.set(false);
}

/// Refuses what functions that streams call may not do: all but asking what an error means, and
/// what there is.
pub(crate) fn check_permitted(function: Fn) -> Result<(), CUresult> {
    let is_harmless = || {
        matches!(
            function,
            Fn::cuGetErrorName
                | Fn::cuGetErrorString
                | Fn::cuGetProcAddress
                | Fn::cuGetProcAddress_v2
                | Fn::cuDriverGetVersion
        )
    };
    if IS_CALLED_BACK.get() && !is_harmless() { Err(CUresult::NOT_PERMITTED) } else { Ok(()) }
}

/// Runs what the C library ends a cancelled thread in: waiting for a socket.
pub(crate) fn uncancelled<R>(body: impl FnOnce() -> R) -> R {
    let mut before = 0;
    // SAFETY: writes the state so far to a local.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before) };
    let result = body();
    // SAFETY: restores the previous state, which cancels no thread: that happens at the program's
    // next cancellation point.
    unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
    result
}

const PTHREAD_CANCEL_DISABLE: i32 = 1;

unsafe extern "C" {
    /// `pthread_setcancelstate(3)`; the `libc` crate has it for other systems only.
    fn pthread_setcancelstate(state: i32, before: *mut i32) -> i32;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_streams_call_may_not_call_cuda() {
        called_back(|| {
            assert_eq!(check_permitted(Fn::cuMemAlloc_v2), Err(CUresult::NOT_PERMITTED));
            assert_eq!(check_permitted(Fn::cuGetErrorName), Ok(()));
        });
        assert_eq!(check_permitted(Fn::cuMemAlloc_v2), Ok(()));
    }

    #[test]
    fn a_fork_amid_a_call_leaves_the_call_under_way() {
        let inner = || entered(|| CUresult::SUCCESS);
        let outer = || {
            assert!(begin_fork().is_none(), "as in a handler of a signal");
            inner()
        };
        assert_eq!(entered(outer), CUresult::DEINITIALIZED, "the call has not returned");
        let forking = begin_fork().expect("no call is under way");
        assert_eq!(inner(), CUresult::DEINITIALIZED);
        drop(forking);
        assert_eq!(inner(), CUresult::SUCCESS);
        called_back(|| assert!(begin_fork().is_none()));
    }

    #[test]
    fn a_call_inside_a_call_is_refused_unless_the_program_was_asked() {
        let inner = || entered(|| CUresult::SUCCESS);
        assert_eq!(entered(inner), CUresult::DEINITIALIZED);
        assert_eq!(entered(|| outside(inner)), CUresult::SUCCESS);
        assert_eq!(entered(|| entered_or_inside(inner)), CUresult::DEINITIALIZED);
        assert_eq!(entered(|| entered_or_inside(|| CUresult::SUCCESS)), CUresult::SUCCESS);
        assert_eq!(entered_or_inside(inner), CUresult::DEINITIALIZED, "it is a call itself");
        assert_eq!(entered(|| panic!("on purpose")), CUresult::UNKNOWN);
        assert_eq!(inner(), CUresult::SUCCESS);
    }
}
