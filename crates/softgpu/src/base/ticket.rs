//! Tickets: whether a place in a stream has been reached.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::base::shared_event::SharedEvent;

/// One record of an event. A later record of the same event does not change what earlier waits wait
/// for.
#[derive(Default)]
pub(crate) struct Ticket {
    pub(crate) done_at: OnceLock<Instant>,
    /// The number of the work that completes it, from its submission on.
    pub(crate) work: OnceLock<u64>,
    /// The record's number where other processes wait for it, or one of them makes it.
    pub(crate) shared: Option<(Arc<SharedEvent>, u64)>,
}

impl Ticket {
    /// A ticket for something that is done.
    pub(crate) fn completed() -> Arc<Self> {
        let ticket = Self::default();
        ticket.complete();
        Arc::new(ticket)
    }

    pub(crate) fn is_done(&self) -> bool {
        match &self.shared {
            Some((event, number)) => event.is_done(*number),
            None => self.done_at.get().is_some(),
        }
    }

    /// Whether another process may complete it, without a word to this one.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    pub(crate) fn complete(&self) {
        self.done_at.get_or_init(Instant::now);
        if let Some((event, number)) = &self.shared {
            event.complete(*number);
        }
    }
}
