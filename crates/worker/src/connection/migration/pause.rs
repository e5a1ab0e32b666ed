//! The reader stops between two frames, so that what has arrived is either executed or held as
//! bytes.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::connection::client::Connection;

/// What the reader holds while it stands still.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The beginning of a frame.
    pub(crate) partial: Vec<u8>,
    /// The state of delta decoding, where that is in use.
    pub(crate) expander: Option<Vec<u8>>,
    /// Bytes of commands that came compressed.
    pub(crate) unpacked: u64,
}

/// Where the reader and the thread that stops it meet.
#[derive(Default)]
pub(crate) struct Pause {
    is_wanted: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    standing: Option<Standing>,
    /// The connection from which the reader waits for the beginning of a frame, or for more of one.
    waits_on: Option<Connection>,
}

impl Pause {
    /// Whether the reader is to stop.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted.load(SeqCst)
    }

    /// The reader stands still here until it may continue.
    pub(crate) fn stand(&self, standing: impl FnOnce() -> Standing) {
        let mut state = self.lock();
        if !self.is_wanted() {
            return;
        }
        state.standing = Some(standing());
        self.changed.notify_all();
        while self.is_wanted() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.standing = None;
    }

    /// The reader is about to wait for bytes of this connection; false if it is to stop instead.
    pub(crate) fn waits(&self, connection: &Connection) -> bool {
        let mut state = self.lock();
        state.waits_on = (!self.is_wanted()).then(|| connection.clone());
        state.waits_on.is_some()
    }

    /// It waits no more.
    pub(crate) fn has_waited(&self) {
        self.lock().waits_on = None;
    }

    /// Stops the reader, and returns what it holds; `None` if it does not stop in time, and
    /// continues. A reader that waits for its client loses the connection; one that waits for its
    /// client to come back is woken by `wake`.
    pub(super) fn begin(&self, until: Instant, wake: impl Fn()) -> Option<Standing> {
        self.is_wanted.store(true, SeqCst);
        wake();
        let mut state = self.lock();
        loop {
            if let Some(standing) = &state.standing {
                return Some(standing.clone());
            }
            if let Some(connection) = state.waits_on.take() {
                connection.stream.shut_down();
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(state);
                self.end();
                return None;
            }
            let left = left.min(Duration::from_secs(1));
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Lets the reader continue.
    pub(super) fn end(&self) {
        let _state = self.lock();
        self.is_wanted.store(false, SeqCst);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
