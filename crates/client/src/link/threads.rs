//! Threads of this library in a program of someone else.

use std::io;
use std::thread::{Scope, ScopedJoinHandle};

/// A lost connection may be made again here, with a TLS handshake.
const STACK_BYTES: usize = 1 << 20;

/// Starts a detached thread; false if the process may have no more.
pub(crate) fn start(run: impl FnOnce() + Send + 'static) -> bool {
    without_signals(|| {
        let thread = std::thread::Builder::new().name("sluice".into()).stack_size(STACK_BYTES);
        thread.spawn(run).is_ok()
    })
}

/// Starts a thread that the caller waits for.
pub(crate) fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    let thread = std::thread::Builder::new().name("sluice".into()).stack_size(STACK_BYTES);
    without_signals(|| thread.spawn_scoped(scope, run))
}

/// A thread inherits which signals it gets: those of the program are for its own threads.
fn without_signals<T>(spawn: impl FnOnce() -> T) -> T {
    // SAFETY: an all-zero set is a valid one, and the calls read and write locals.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let spawned = spawn();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        spawned
    }
}

/// Cores that this process may run on.
pub(crate) fn cores() -> usize {
    // SAFETY: an all-zero set is a valid, empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most the set's own size.
    let status = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
    // SAFETY: counts the bits of a local.
    if status == 0 { unsafe { libc::CPU_COUNT(&set) as usize } } else { 1 }
}
