//! Host functions: they run in the client, in the order of their stream.
//!
//! When the stream gets there, the driver's callback tells the client and waits until the client
//! says that the function has returned. A function in a graph is called at each launch, perhaps of
//! several graphs at a time: the client runs the calls in their order, so that the n-th return ends
//! the n-th call.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The host functions that streams wait for.
#[derive(Debug, Default)]
pub(crate) struct HostCalls {
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct State {
    calls: HashMap<u64, Calls>,
    /// Of these, the ones that streams were given, and no graph.
    expected: usize,
    /// How many functions there have been.
    entered: u64,
}

/// How often a function was called, and how often it has returned.
#[derive(Clone, Copy, Debug)]
struct Calls {
    /// Tells it from another one that the client gave the same number, before or after.
    entry: u64,
    is_expected: bool,
    begun: u64,
    returned: u64,
}

/// One call of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostCall {
    entry: u64,
    number: u64,
}

impl State {
    fn enter(&mut self, ticket: u64) -> &mut Calls {
        let entered = &mut self.entered;
        self.calls.entry(ticket).or_insert_with(|| {
            *entered += 1;
            Calls { entry: *entered, is_expected: false, begun: 0, returned: 0 }
        })
    }
}

impl HostCalls {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream will come to this function; false if the client used the number already.
    pub(crate) fn expect(&self, ticket: u64) -> bool {
        let mut state = self.lock();
        let is_new = !state.calls.contains_key(&ticket);
        let calls = state.enter(ticket);
        if is_new {
            calls.is_expected = true;
            state.expected += 1;
        }
        is_new
    }

    /// Some graph calls this function whenever it runs.
    pub(crate) fn keep(&self, ticket: u64) {
        self.lock().enter(ticket);
    }

    /// Whether no function is expected, running, or in a graph.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().calls.is_empty()
    }

    /// Whether no stream was given a function that has not returned.
    pub(crate) fn hold_nothing(&self) -> bool {
        self.lock().expected == 0
    }

    /// A stream has come to it; answers for which return it waits.
    pub(crate) fn begin(&self, ticket: u64) -> HostCall {
        let mut state = self.lock();
        let calls = state.enter(ticket);
        calls.begun += 1;
        HostCall { entry: calls.entry, number: calls.begun }
    }

    /// The client says that the function has returned; a number that no thread waits for is
    /// ignored.
    pub(crate) fn done(&self, ticket: u64) {
        if let Some(calls) = self.lock().calls.get_mut(&ticket) {
            calls.returned += 1;
        }
        self.returned.notify_all();
    }

    /// Waits until it has returned from this call, or the client can no longer say that it has.
    pub(crate) fn wait_turn(&self, ticket: u64, turn: HostCall) {
        let waits = |calls: &Calls| calls.entry == turn.entry && calls.returned < turn.number;
        let mut state = self.lock();
        while state.calls.get(&ticket).is_some_and(waits) {
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// It will not be called again.
    pub(crate) fn forget(&self, ticket: u64) {
        let mut state = self.lock();
        let gone = state.calls.remove(&ticket);
        state.expected -= usize::from(gone.is_some_and(|calls| calls.is_expected));
        drop(state);
        self.returned.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_waits_for_its_own_return() {
        let calls = HostCalls::default();
        assert!(calls.expect(7) && !calls.expect(7) && !calls.hold_nothing());
        calls.keep(8);
        let (first, second) = (calls.begin(7), calls.begin(7));
        calls.done(7);
        calls.wait_turn(7, first);
        calls.done(7);
        calls.wait_turn(7, second);
        calls.forget(7);
        assert!(calls.hold_nothing() && !calls.is_empty(), "a graph has one");
        calls.forget(8);
        calls.done(7);
        calls.wait_turn(7, second);
    }

    /// Honest clients use a number once.
    #[test]
    fn a_number_that_is_used_twice_holds_nobody_up() {
        let calls = HostCalls::default();
        assert!(calls.expect(7));
        let first = calls.begin(7);
        calls.done(7);
        assert!(!calls.expect(7), "it is in use, and the first call has returned all the same");
        calls.wait_turn(7, first);
        let _returned_by_nobody = calls.begin(7);
        let second = calls.begin(7);
        std::thread::scope(|scope| {
            scope.spawn(|| calls.wait_turn(7, second));
            calls.forget(7);
            calls.begin(7);
        });
    }
}
