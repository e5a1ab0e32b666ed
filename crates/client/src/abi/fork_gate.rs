//! Keeps all threads of the program out of this library while another one forks.
//!
//! A forked child has the thread alone that forks. What others are amid of would stay unfinished in
//! the child: locks, and entries in tables of which the session knows nothing. Where a child is to
//! continue with a clone of the session, each call passes this gate; elsewhere that is one load.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

static IS_USED: AtomicBool = AtomicBool::new(false);
static IS_CLOSED: AtomicBool = AtomicBool::new(false);
/// Threads that have passed and not returned.
static INSIDE: AtomicUsize = AtomicUsize::new(0);
/// Held by the thread that forks, from closing the gate on.
static CLOSING: Mutex<()> = Mutex::new(());
static CHANGED: Condvar = Condvar::new();

/// The gate is used from now on.
pub(crate) fn begin() {
    IS_USED.store(true, SeqCst);
}

/// A call that is under way.
pub(super) struct Passed {
    counts: bool,
}

/// Counts a call; while the gate is closed it waits.
pub(super) fn pass() -> Passed {
    let counts = IS_USED.load(Relaxed);
    if counts {
        come_in();
    }
    Passed { counts }
}

fn come_in() {
    loop {
        INSIDE.fetch_add(1, SeqCst);
        if !IS_CLOSED.load(SeqCst) {
            return;
        }
        leave();
        let closing = CLOSING.lock().unwrap_or_else(PoisonError::into_inner);
        drop(CHANGED.wait_while(closing, |()| IS_CLOSED.load(SeqCst)));
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        if self.counts {
            leave();
        }
    }
}

fn leave() {
    if INSIDE.fetch_sub(1, SeqCst) == 1 && IS_CLOSED.load(SeqCst) {
        // With the lock, so that who waits for this has looked before or waits by now.
        let _closing = CLOSING.lock().unwrap_or_else(PoisonError::into_inner);
        CHANGED.notify_all();
    }
}

/// The gate is closed, and no call is under way.
pub(crate) struct Closed {
    _closing: MutexGuard<'static, ()>,
}

/// Closes the gate, and waits until calls that are under way have returned; `None` if they do not
/// by `deadline`, and continue.
pub(crate) fn close(deadline: Instant) -> Option<Closed> {
    let closing = CLOSING.lock().unwrap_or_else(PoisonError::into_inner);
    IS_CLOSED.store(true, SeqCst);
    let limit = deadline.saturating_duration_since(Instant::now());
    let waited = CHANGED.wait_timeout_while(closing, limit, |()| INSIDE.load(SeqCst) > 0);
    let (closing, waited) = waited.unwrap_or_else(PoisonError::into_inner);
    let closed = Closed { _closing: closing };
    (!waited.timed_out()).then_some(closed)
}

impl Drop for Closed {
    fn drop(&mut self) {
        IS_CLOSED.store(false, SeqCst);
        CHANGED.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_gate_closes_when_the_last_call_has_returned_and_keeps_others_out() {
        begin();
        let (inside, is_inside) = mpsc::channel();
        let (end, ends) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let _passed = pass();
                inside.send(()).unwrap();
                ends.recv().unwrap();
            });
            is_inside.recv().unwrap();
            assert!(close(Instant::now()).is_none(), "a call is under way");
            // The gate is open again.
            drop(pass());
            end.send(()).unwrap();
            let closed = close(Instant::now() + LONG).expect("the call has returned");
            let (passed, has_passed) = mpsc::channel();
            scope.spawn(move || {
                let _passed = pass();
                passed.send(()).unwrap();
            });
            assert!(has_passed.recv_timeout(Duration::from_millis(50)).is_err(), "it waits");
            drop(closed);
            has_passed.recv_timeout(LONG).unwrap();
        });
    }
}
