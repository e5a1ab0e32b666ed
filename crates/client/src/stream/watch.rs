//! Events that the node was asked to report, so that a program which polls one beyond a slow link
//! does not wait for a round trip each time.
//!
//! "Not yet" stays the answer for as long as nothing has come from any node: a process learns of
//! its GPU's progress in no other way, except from another process of the lease, which may have
//! seen it in memory that they share (`cuIpc*`) and say so through a pipe. "Not yet" is then the
//! answer until the node has reported the event, or [`PATIENCE`] is over: late, though the program
//! knows better. After anything else has come the event's node is asked again, since that may have
//! been the end of what is behind the event.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_wire::{Command, Encode, EventId, commands};

use crate::link::command_id::CommandId;
use crate::link::{Link, inbox};
use crate::session::{self, Session};

/// Duration of a query from which on the node is asked to report the event.
pub(crate) const SLOW: Duration = Duration::from_micros(500);
/// Interval in which a polling program asks nevertheless: only a waiting call detects a lost link.
const PATIENCE: Duration = Duration::from_secs(3);

/// One record of an event.
pub(crate) struct Watch {
    link: &'static Link,
    /// Of the answer, which comes once the event is done.
    place: CommandId,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When it was last certain that the event was not done.
    at: Instant,
    /// The count of what had come by then ([`inbox::news`]).
    news: u64,
    /// The node does not tell.
    is_void: bool,
    /// The program has polled.
    was_of_use: bool,
}

/// What is known of a watched event without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventStatus {
    Done,
    NotYet,
    Nothing,
}

impl Watch {
    /// Asks the node to report an event whose record has been sent. It was not done at this count
    /// ([`inbox::news`]). `None` where that is no use.
    pub(crate) fn begin(session: &'static Session, event: EventId, news: u64) -> Option<Watch> {
        // Several nodes have links of their own. Answers that come when they like would be in no
        // recording's order.
        if session::are_many() || session.link.is_recorded() {
            return None;
        }
        let (op, command) = (commands::EventWatch::OP, commands::EventWatch { event });
        let place = session.link.ask(session.place(), op, |out| command.encode(out)).ok()?;
        let state = State { at: Instant::now(), news, is_void: false, was_of_use: false };
        Some(Watch { link: &session.link, place, state: Mutex::new(state) })
    }

    /// Takes what has come, and waits for nothing.
    pub(crate) fn look(&self) -> EventStatus {
        self.link.look();
        let mut state = self.lock();
        state.was_of_use = true;
        match self.link.come(self.place) {
            Some(answer) if answer.result.is_success() => return EventStatus::Done,
            Some(_) => state.is_void = true,
            None => {}
        }
        let holds = !state.is_void && state.news == inbox::news() && state.at.elapsed() < PATIENCE;
        if holds && self.link.is_open() { EventStatus::NotYet } else { EventStatus::Nothing }
    }

    /// The node has just said that it is not done, to a question that was asked at this count.
    pub(crate) fn not_yet(&self, news: u64) {
        let mut state = self.lock();
        // The answer is one more, and if others came as well, it may have been before them.
        (state.at, state.news) = (Instant::now(), news + 1);
    }

    pub(crate) fn was_of_use(&self) -> bool {
        self.lock().was_of_use
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("place", &self.place)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.link.forgo(self.place);
    }
}
