//! Sessions that get no GPU time for a while, and whose memory leaves their GPUs
//! ([`residence`](super::residence)).
//!
//! A session is suspended by itself, or with its lease. A suspended lease gives its share back, so
//! that others can be granted it, and has to find it free again when it is resumed; that of a
//! session that is suspended by itself goes to the other sessions of its lease. The same goes for
//! the memory that has left the GPUs.
//!
//! A session first finishes the work that it has given its GPUs: it competes for them until its
//! memory has left, or stays for good.

use super::{Ledger, Registry, SessionRecord};
use crate::lease::Refusal;

/// Why something is not suspended or resumed; the text is what the user reads.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotChanged {
    #[error(transparent)]
    Books(#[from] Refusal),
    #[error("lease {0} is suspended as a whole: resume that")]
    WithLease(u64),
    #[error("session {0} is moving to another GPU: try again once it has")]
    Moving(u64),
}

impl Registry {
    /// Suspends or resumes a lease, or the session of this number alone; the answer is the sessions
    /// that this is about.
    pub(crate) fn set_suspended(&self, number: u64, suspended: bool) -> Result<Vec<u64>, NotChanged> {
        let mut ledger = self.lock();
        if let Some(moving) = ledger.moving(number) {
            return Err(NotChanged::Moving(moving));
        }
        let Some(session) = ledger.sessions.get_mut(&number) else {
            self.set_lease_suspended(&mut ledger, number, suspended)?;
            let now = self.clock.running();
            ledger.leases.entry(number).and_modify(|lease| lease.idle.changed_by_hand(now));
            return Ok(ledger.sessions_of(number));
        };
        let lease = session.lease;
        if !suspended && ledger.books.lease(lease).is_some_and(|lease| lease.suspended) {
            return Err(NotChanged::WithLease(lease));
        }
        if let Some(session) = ledger.sessions.get_mut(&number) {
            session.suspended = suspended;
        }
        let suspended = suspended || ledger.is_suspended(lease);
        self.change_turns(&mut ledger, number, suspended);
        Ok(vec![number])
    }

    pub(super) fn set_lease_suspended(
        &self,
        ledger: &mut Ledger,
        lease: u64,
        suspended: bool,
    ) -> Result<(), Refusal> {
        if suspended {
            ledger.books.suspend(lease)?;
        } else {
            ledger.books.resume(lease)?;
        }
        for number in ledger.sessions_of(lease) {
            if let Some(session) = ledger.sessions.get_mut(&number) {
                // What was suspended by itself is resumed with the whole.
                session.suspended &= suspended;
            }
            self.change_turns(ledger, number, suspended);
        }
        ledger.vacate(lease);
        Ok(())
    }

    /// Has a session's memory go where it is to be, and gives or takes GPU time where nothing has
    /// to be moved before.
    fn change_turns(&self, ledger: &mut Ledger, session: u64, suspended: bool) {
        self.settle(ledger, session);
        if !suspended || !ledger.is_leaving(session) {
            self.turns.set_suspended(session, suspended);
        }
    }
}

impl Ledger {
    fn is_suspended(&self, lease: u64) -> bool {
        self.books.lease(lease).is_some_and(|lease| lease.suspended)
    }

    /// Whether a session gets no GPU time.
    pub(super) fn session_is_suspended(&self, session: &SessionRecord) -> bool {
        session.suspended || self.is_suspended(session.lease)
    }

    pub(super) fn sessions_of(&self, lease: u64) -> Vec<u64> {
        let of = self.sessions.iter().filter(|(_, session)| session.lease == lease);
        of.map(|(&number, _)| number).collect()
    }
}
