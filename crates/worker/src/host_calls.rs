//! Host functions: they run in the client, in the order of their stream.
//!
//! When the stream gets there, the driver's callback tells the client and waits until the client says that the
//! function has returned. A function in a graph is called at each launch, perhaps of several graphs at a time: the
//! client runs the calls in their order, so that the n-th return ends the n-th call.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The host functions that streams wait for.
#[derive(Debug, Default)]
pub(crate) struct HostCalls {
    calls: Mutex<HashMap<u64, Calls>>,
    returned: Condvar,
}

/// How often a function was called, and how often it has returned.
#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    begun: u64,
    returned: u64,
}

impl HostCalls {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Calls>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream will come to this function; false if the client used the number already.
    pub(crate) fn expect(&self, ticket: u64) -> bool {
        self.lock().insert(ticket, Calls::default()).is_none()
    }

    /// A stream has come to it; answers for which return it waits.
    pub(crate) fn begin(&self, ticket: u64) -> u64 {
        let mut calls = self.lock();
        let calls = calls.entry(ticket).or_default();
        calls.begun += 1;
        calls.begun
    }

    /// The client says that the function has returned; a number that nobody waits for is ignored.
    pub(crate) fn done(&self, ticket: u64) {
        if let Some(calls) = self.lock().get_mut(&ticket) {
            calls.returned += 1;
        }
        self.returned.notify_all();
    }

    /// Waits until it has returned so often.
    pub(crate) fn wait_turn(&self, ticket: u64, turn: u64) {
        let mut calls = self.lock();
        while calls.get(&ticket).is_some_and(|calls| calls.returned < turn) {
            calls = self.returned.wait(calls).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Nobody will call it again.
    pub(crate) fn forget(&self, ticket: u64) {
        self.lock().remove(&ticket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_waits_for_its_own_return() {
        let calls = HostCalls::default();
        assert!(calls.expect(7) && !calls.expect(7));
        let (first, second) = (calls.begin(7), calls.begin(7));
        calls.done(7);
        calls.wait_turn(7, first);
        calls.done(7);
        calls.wait_turn(7, second);
        calls.forget(7);
        calls.done(7);
        calls.wait_turn(7, second);
    }
}
