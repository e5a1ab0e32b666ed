//! How many connections a session goes over.
//!
//! It begins with one. On a far link one connection may hold less than the link does, so once a
//! session copies much it continues over several (`sluice_transport`'s stripes). A thread makes
//! them beside the one in use, and once all are there that one is given up, by that thread or by
//! the next copy: the session resumes as after any disconnect, with what was in flight. Where
//! several do not come through, or do not last, one has to do.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Link;
use super::resume::{ATTEMPT, Resumption};
use crate::link::greeting::{self, AttachError, Connected};
use crate::link::threads;
use crate::say_once;

/// Copies of less than this many bytes do not count.
const LARGE: u64 = 64 << 10;
/// Bytes of large copies from which on several connections are worth their round trips.
const WORTH: u64 = 4 << 20;

/// Connections that have said nothing for longer are not used: the node has closed them, or is
/// about to.
const READY_FOR: Duration = Duration::from_secs(3);

/// Attempts at several connections, for long sessions on links that disconnect often.
const BUDGET: u8 = 24;
/// Attempts where several connections cannot be made.
const COST_OF_FAILURE: u8 = 8;

#[derive(Debug)]
pub(super) struct Width {
    /// Connections that large copies are worth.
    most: u8,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Bytes of large copies since the session was cut last.
    copied: u64,
    /// Several that came through then, and have said nothing yet.
    ready: Option<(Connected, Instant)>,
    /// After a disconnect the session uses several connections again.
    is_next: bool,
    /// The session goes over several.
    is_wide: bool,
    /// What may still be spent on attempts: those that fail cost more than those that do not.
    budget: u8,
    /// Why the last attempt over several has failed.
    failure: Option<String>,
}

impl State {
    fn pay(&mut self, cost: u8) {
        self.budget = self.budget.saturating_sub(cost);
        self.is_next &= self.budget > 0;
    }
}

impl Width {
    pub(super) fn new(most: u8) -> Width {
        let state =
            State { copied: 0, ready: None, is_next: false, is_wide: false, budget: BUDGET, failure: None };
        Width { most, state: Mutex::new(state) }
    }

    /// Counts a copy; true if the session is to use several connections from now on.
    pub(super) fn counts(&self, bytes: u64) -> bool {
        if self.most == 1 || bytes < LARGE {
            return false;
        }
        let mut state = self.state();
        let before = state.copied;
        state.copied = before.saturating_add(bytes);
        before < WORTH && state.copied >= WORTH && !state.is_wide && state.budget > 0
    }

    /// Several connections were not made: as much has to be copied again before they are worth
    /// another attempt.
    fn forgets_copies(&self, cost: u8) {
        let mut state = self.state();
        state.pay(cost);
        state.copied = 0;
    }

    fn has_ready(&self) -> bool {
        self.state().ready.is_some()
    }

    /// Whether the connection in use is to make way for several that are ready. If it may not, or
    /// has already, they go.
    fn makes_way(&self, may: bool) -> bool {
        let mut state = self.state();
        let ready = state.ready.take().filter(|_| may && !state.is_wide);
        state.ready = ready;
        state.ready.is_some()
    }

    /// How many connections the next attempt goes over, and these if they are there already.
    pub(super) fn next(&self) -> (u8, Option<Connected>) {
        let mut state = self.state();
        let ready = state.ready.take().filter(|(_, since)| since.elapsed() < READY_FOR);
        let count = if ready.is_some() || state.is_next { self.most } else { 1 };
        (count, ready.map(|(connected, _)| connected))
    }

    /// Notes that an attempt with this many connections has ended. After a failure the next one
    /// uses one.
    pub(super) fn attempted(&self, count: u8, error: Option<&AttachError>) {
        let mut state = self.state();
        state.copied = 0;
        state.is_wide = count > 1 && error.is_none();
        match error {
            None if count > 1 => {
                state.is_next = true;
                state.pay(1);
            }
            None => {
                let failure = state.failure.take();
                drop(state);
                failure.iter().for_each(|failure| self.stays_narrow(failure));
            }
            Some(error) if count > 1 => {
                state.pay(COST_OF_FAILURE);
                (state.is_next, state.failure) = (false, Some(reason(error)));
            }
            Some(_) => {}
        }
    }

    fn stays_narrow(&self, failure: &str) {
        say_once!(
            "large copies use one connection, at its rate: {} at once could not be made ({failure})",
            self.most
        );
    }

    /// In a forked child: its session begins with one connection.
    pub(super) fn is_one(&self) {
        let mut state = self.state();
        (state.copied, state.is_next, state.is_wide) = (0, false, false);
        // The parent's own.
        std::mem::forget(state.ready.take());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why connections did not come through, to one of which the session clings: the node is there.
fn reason(error: &AttachError) -> String {
    match error {
        AttachError::Connect { error, .. } => error.to_string(),
        other => other.to_string(),
    }
}

impl Link {
    /// Notes that a copy of this many bytes is about to begin.
    pub(super) fn widen_for(&'static self, bytes: u64) {
        let Some(resumption) = self.resumption() else { return };
        let width = resumption.width();
        if width.counts(bytes) && !threads::start(move || self.widen(resumption)) {
            width.forgets_copies(0);
        }
        // The thread may wait long for the outbox of a thread that copies continuously.
        if width.has_ready() {
            self.make_way(width);
        }
    }

    /// Makes several connections while the session still uses its one, and then moves it to them.
    pub(super) fn widen(&self, resumption: &Resumption) {
        let width = resumption.width();
        match greeting::connect(&resumption.node(), width.most, Instant::now() + ATTEMPT) {
            Ok(connected) => {
                width.state().ready = Some((connected, Instant::now()));
                self.make_way(width);
            }
            Err(error) => {
                width.forgets_copies(COST_OF_FAILURE);
                width.stays_narrow(&reason(&error));
            }
        }
    }

    /// Moves the session to the connections that are ready.
    fn make_way(&self, width: &Width) {
        let outbox = self.outbox();
        // An error is the session's, and the copy will meet it.
        let may = !self.is_cut() && !self.is_lost() && self.check().is_ok();
        if width.makes_way(may) {
            self.part(&outbox.stream, &"several connections take its place");
            drop(outbox);
            // What is in flight is sent again at once, also where the program makes no further
            // call.
            let _ = self.flush_now();
        }
    }
}
