//! A gate before all that changes the state of a node: closed, the state stands still between two
//! steps, and can be handed over.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Lets steps in while it is open.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_closed: bool,
    /// What is inside, and how often.
    inside: BTreeMap<&'static str, usize>,
}

/// One step: inside until this is dropped.
#[derive(Debug)]
pub(crate) struct Pass {
    gate: Arc<Gate>,
    what: &'static str,
}

/// A gate that nothing passes until this is dropped.
#[derive(Debug)]
pub(crate) struct Closed(Arc<Gate>);

impl Gate {
    /// Enters; waits while the gate is closed. `what` is for people to read. A step that is inside
    /// must not enter again.
    pub(crate) fn enter(self: &Arc<Gate>, what: &'static str) -> Pass {
        let mut state = self.lock();
        while state.is_closed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Gate::count(state, what);
        Pass { gate: Arc::clone(self), what }
    }

    /// Enters also while the gate is closed: for what follows from a step that is inside another
    /// one.
    pub(crate) fn enter_late(self: &Arc<Gate>, what: &'static str) -> Pass {
        Gate::count(self.lock(), what);
        Pass { gate: Arc::clone(self), what }
    }

    fn count(mut state: MutexGuard<'_, State>, what: &'static str) {
        *state.inside.entry(what).or_default() += 1;
    }

    /// Closes the gate and waits until nothing is inside. After too long it is open again, and the
    /// error says what was still inside.
    pub(crate) fn close(self: &Arc<Gate>, patience: Duration) -> Result<Closed, String> {
        self.lock().is_closed = true;
        let closed = Closed(Arc::clone(self));
        closed.wait(patience)?;
        Ok(closed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Closed {
    /// Waits until nothing is inside, for this time at most.
    pub(crate) fn wait(&self, patience: Duration) -> Result<(), String> {
        let deadline = Instant::now() + patience;
        let mut state = self.0.lock();
        while !state.inside.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let inside: Vec<&str> = state.inside.keys().copied().collect();
                return Err(inside.join(", "));
            }
            let waited = self.0.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.lock().is_closed = false;
        self.0.changed.notify_all();
    }
}

impl Pass {
    /// The step has turned into another one.
    pub(crate) fn is_now(&mut self, what: &'static str) {
        let mut state = self.gate.lock();
        state.leave(self.what);
        Gate::count(state, what);
        self.what = what;
    }
}

impl State {
    fn leave(&mut self, what: &'static str) {
        if let Some(count) = self.inside.get_mut(what) {
            *count -= 1;
            if *count == 0 {
                self.inside.remove(what);
            }
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut state = self.gate.lock();
        state.leave(self.what);
        let is_empty = state.inside.is_empty();
        drop(state);
        if is_empty {
            self.gate.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_closed_gate_lets_nothing_in_until_it_opens() {
        let gate = Arc::new(Gate::default());
        let inside = gate.enter("a step");
        let (ended, end) = channel::<()>();
        let step = std::thread::spawn(move || {
            end.recv().unwrap();
            drop(inside);
        });
        ended.send(()).unwrap();
        let closed = gate.close(LONG).unwrap();
        step.join().unwrap();
        let (entered, enters) = channel();
        let late = Arc::clone(&gate);
        let waiting = std::thread::spawn(move || {
            let pass = late.enter("a later step");
            entered.send(()).unwrap();
            drop(pass);
        });
        assert!(enters.try_recv().is_err());
        assert!(closed.wait(Duration::ZERO).is_ok(), "who waits is not inside");
        drop(closed);
        enters.recv().unwrap();
        waiting.join().unwrap();
    }

    #[test]
    fn what_does_not_end_keeps_a_gate_open_and_is_named() {
        let gate = Arc::new(Gate::default());
        let (one, two) = (gate.enter("a move"), gate.enter("a move"));
        let late = gate.enter_late("a connection");
        assert_eq!(gate.close(Duration::ZERO).unwrap_err(), "a connection, a move");
        drop((one, late));
        assert_eq!(gate.close(Duration::ZERO).unwrap_err(), "a move");
        drop(two);
        drop(gate.enter("it is open"));
        let closed = gate.close(Duration::ZERO).unwrap();
        let late = gate.enter_late("a connection");
        assert_eq!(closed.wait(Duration::ZERO).unwrap_err(), "a connection");
        drop(late);
        assert!(closed.wait(LONG).is_ok());
    }
}
