//! The thread that sends what the program has queued and then left alone.
//!
//! A burst of launches goes out in few pieces, and the last of it would wait for the next call. A program that computes
//! on its own cores meanwhile expects its kernels to run. So while commands are queued somebody looks every [`LOOK`]; once
//! nothing has been queued for [`QUIET_LOOKS`] of them, it sleeps until the next, and an idle program wakes nobody.

use std::io;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use super::Link;
use crate::outbox::FLUSH_AFTER;

const LOOK: Duration = Duration::from_micros(500);
const QUIET_LOOKS: u32 = 20;
/// A lost connection may be made again here, with a TLS handshake.
const STACK_BYTES: usize = 1 << 20;

/// Starts it. A process that may have no more threads does without: then what is left goes out with the next call.
pub(crate) fn start(link: &'static Link) {
    let run = move || link.send_what_is_left();
    without_signals(|| {
        let thread = std::thread::Builder::new().name("sluice".into()).stack_size(STACK_BYTES);
        let _ = thread.spawn(run);
    });
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
    /// Returns when the connection is lost.
    fn send_what_is_left(&self) {
        let mut quiet = 0;
        while !self.lost.load(Ordering::Acquire) {
            let mut outbox = self.outbox();
            if outbox.unsent() == 0 {
                quiet += 1;
            } else if outbox.flushed_at.elapsed() >= FLUSH_AFTER {
                quiet = 0;
                // The session's error is for the program's own calls.
                let _ = self.send(outbox);
                outbox = self.outbox();
            }
            if quiet > QUIET_LOOKS {
                outbox.is_watched = false;
                while !outbox.is_watched {
                    outbox = self.left.wait(outbox).unwrap_or_else(PoisonError::into_inner);
                }
                quiet = 0;
            }
            drop(outbox);
            std::thread::sleep(LOOK);
        }
    }
}
