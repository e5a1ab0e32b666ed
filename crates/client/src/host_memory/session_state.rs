//! What each session keeps about host memory that its devices see.

use std::sync::atomic::Ordering::{self, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Which of a session's commands are over, with all that they have written fetched.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(super) sent: AtomicU64,
    pub(super) fetched: AtomicU64,
}

impl Progress {
    /// After a command has been sent that may write.
    pub(crate) fn sent(&self) {
        self.sent.fetch_add(1, Ordering::AcqRel);
    }
}

/// What a session's threads share.
#[derive(Default)]
pub(crate) struct Live {
    /// There are threads.
    pub(super) is_started: AtomicBool,
    /// Commands sent since then, and whether the thread that asks sleeps until there are more.
    pub(super) sent: AtomicU64,
    pub(super) sleeps: AtomicBool,
    /// For that thread's sleep alone: who sends may hold other locks.
    pub(super) sleep: Mutex<()>,
    pub(super) woken: Condvar,
    /// The program has changed something while work ran.
    pub(super) has_pushed: AtomicBool,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    /// The last answer that was taken.
    pub(super) taken: u64,
    /// The node has said that something runs.
    pub(super) runs: bool,
    /// An answer is lost, and so is the session.
    pub(super) is_lost: bool,
}

impl Live {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a command was sent that may be work.
    pub(crate) fn work_sent(&self) {
        if !self.is_started.load(SeqCst) {
            return;
        }
        self.sent.fetch_add(1, SeqCst);
        if self.sleeps.load(SeqCst) {
            // Under the lock, so that it sleeps or has seen the count.
            let _sleep = self.sleep.lock();
            self.woken.notify_all();
        }
    }
}
