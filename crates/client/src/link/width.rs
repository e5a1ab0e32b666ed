//! How many connections a session goes over.
//!
//! It begins with one. On a far link one connection may hold less than the link does, so once a session copies much it goes
//! on over several (`sluice_transport`'s stripes). They are made beside the one in use, and once all are there that one is
//! given up: the session goes on as after any cut, with what was under way. Where several do not come through, or do not
//! last, one has to do.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::resume::{ATTEMPT, Resumption};
use super::{Link, flusher};
use crate::attach::{self, AttachError, Connected};
use crate::say_once;

/// Copies of less than this do not count,
const LARGE: u64 = 64 << 10;
/// and so many bytes of large ones are worth the round trips.
const WORTH: u64 = 4 << 20;

/// For sessions that live long on links that are cut often,
const BUDGET: u8 = 24;
/// and where several connections do not come through.
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
    /// Somebody is to make several connections beside the one in use.
    is_wanted: bool,
    /// Several that have come through, and have said nothing yet.
    ready: Option<Connected>,
    /// The next attempt is to go over several.
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
        let state = State {
            copied: 0,
            is_wanted: false,
            ready: None,
            is_next: false,
            is_wide: false,
            budget: BUDGET,
            failure: None,
        };
        Width { most, state: Mutex::new(state) }
    }

    /// Counts a copy; true if the session is to go on over several connections because of it.
    fn counts(&self, bytes: u64) -> bool {
        if self.most == 1 || bytes < LARGE {
            return false;
        }
        let mut state = self.state();
        let before = state.copied;
        state.copied = before.saturating_add(bytes);
        let is_wanted = before < WORTH && state.copied >= WORTH && !state.is_wide && state.budget > 0;
        state.is_wanted |= is_wanted;
        is_wanted
    }

    /// Whether several connections are to be made now, for whoever asks first.
    pub(super) fn take_wanted(&self) -> bool {
        std::mem::take(&mut self.state().is_wanted)
    }

    /// How many connections the next attempt goes over, and these if they are there already.
    pub(super) fn next(&self) -> (u8, Option<Connected>) {
        let mut state = self.state();
        let ready = state.ready.take();
        (if state.is_next { self.most } else { 1 }, ready.filter(|_| state.is_next))
    }

    /// An attempt over so many has ended. One after a failure does with one.
    pub(super) fn attempted(&self, count: u8, error: Option<&AttachError>) {
        let mut state = self.state();
        state.copied = 0;
        state.is_wide = count > 1 && error.is_none();
        match error {
            None if count > 1 => state.pay(1),
            None => {
                let failure = state.failure.take();
                drop(state);
                failure.iter().for_each(|failure| self.stays_narrow(failure));
            }
            Some(error) if count > 1 => {
                state.pay(COST_OF_FAILURE);
                (state.is_next, state.failure) = (false, Some(error.to_string()));
            }
            Some(_) => {}
        }
    }

    fn stays_narrow(&self, failure: &dyn std::fmt::Display) {
        say_once!(
            "the session goes over one connection, and large copies as fast as one carries them: {} at once did not come through: {failure}",
            self.most
        );
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    /// A copy of so many bytes is about to begin.
    pub(super) fn widen_for(&self, bytes: u64) {
        let width = self.resumption.as_ref().map(Resumption::width);
        if width.is_some_and(|width| width.counts(bytes)) {
            self.outbox().is_watched = true;
            self.left.notify_one();
        }
    }

    /// Has a thread of its own make several connections, if that is wanted.
    pub(super) fn look_at_width(&'static self) {
        if let Some(resumption) =
            self.resumption.as_ref().filter(|resumption| resumption.width().take_wanted())
        {
            flusher::start(move || self.widen(resumption));
        }
    }

    /// Makes several connections while the session goes on over its one, and then has it go on over these.
    pub(super) fn widen(&self, resumption: &Resumption) {
        let width = resumption.width();
        match attach::connect(resumption.node(), width.most, Instant::now() + ATTEMPT) {
            Ok(connected) => {
                let mut state = width.state();
                (state.ready, state.is_next) = (Some(connected), true);
            }
            Err(error) => {
                width.state().pay(COST_OF_FAILURE);
                return width.stays_narrow(&error);
            }
        }
        let outbox = self.outbox();
        // An error is the session's, and the copy will meet it.
        if !self.is_cut() && !self.is_lost() && self.check().is_ok() {
            self.part(&outbox.stream, &"several connections take its place");
        }
        drop(outbox);
        // What is under way goes on at once, also where the program makes no call that would see to it.
        let _ = self.flush_now();
    }
}
