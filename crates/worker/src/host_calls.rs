//! Host functions: they run in the client, in the order of their stream.
//!
//! When the stream gets there, the driver's callback tells the client and waits until the client says that the
//! function has returned.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, PoisonError};

/// The host functions that streams wait for.
#[derive(Debug, Default)]
pub(crate) struct HostCalls {
    waited_for: Mutex<HashSet<u64>>,
    returned: Condvar,
}

impl HostCalls {
    /// A stream will come to this function; false if the client used the number already.
    pub(crate) fn expect(&self, ticket: u64) -> bool {
        self.waited_for.lock().unwrap_or_else(PoisonError::into_inner).insert(ticket)
    }

    /// The client says that the function has returned; a number that nobody waits for is ignored.
    pub(crate) fn done(&self, ticket: u64) {
        self.waited_for.lock().unwrap_or_else(PoisonError::into_inner).remove(&ticket);
        self.returned.notify_all();
    }

    /// Waits until it has.
    pub(crate) fn wait(&self, ticket: u64) {
        let mut waited_for = self.waited_for.lock().unwrap_or_else(PoisonError::into_inner);
        while waited_for.contains(&ticket) {
            waited_for = self.returned.wait(waited_for).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
