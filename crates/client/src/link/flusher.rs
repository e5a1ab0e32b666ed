//! The thread that sends what the program has queued and then left alone.
//!
//! A burst of launches goes out in few pieces, and the last of it would wait for the next call. A program that computes
//! on its own cores meanwhile expects its kernels to run. So somebody looks [`LOOK`] after something was left, and again
//! while there is more; then it sleeps, and a program that is idle or waits wakes nobody.

use std::io;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use super::Link;
use crate::outbox::FLUSH_AFTER;

const LOOK: Duration = Duration::from_micros(500);
/// A lost connection may be made again here, with a TLS handshake.
const STACK_BYTES: usize = 1 << 20;

/// Starts a thread that nobody waits for; false if the process may have no more.
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

impl Link {
    /// Starts the thread. Without it, what is left goes out with the next call.
    pub(crate) fn start_flusher(&'static self) {
        start(|| {
            while !self.lost.load(Ordering::Acquire) {
                self.send_what_is_left();
                std::thread::sleep(LOOK);
            }
        });
    }

    /// One look; where nothing is left, it lasts until something is.
    fn send_what_is_left(&self) {
        let mut outbox = self.outbox();
        if outbox.unsent() == 0 {
            outbox.is_watched = false;
            while !outbox.is_watched {
                outbox = self.left.wait(outbox).unwrap_or_else(PoisonError::into_inner);
            }
        } else if outbox.flushed_at.elapsed() >= FLUSH_AFTER {
            // The session's error is for the program's own calls.
            let _ = self.send(outbox);
        } else {
            drop(outbox);
            self.acknowledge();
        }
    }
}
