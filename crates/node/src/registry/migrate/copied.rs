//! A copy of a session goes into a checkpoint, on the machine of the one who asks for it.
//!
//! ```text
//!   worker <-- Depart --- daemon
//!      `-- state, memory --> daemon -- MovePiece --> sluice checkpoint
//!   worker <-- Stay ------ daemon <-- CheckpointDecided: it continues
//!   worker  x  killed ---- daemon <-- CheckpointDecided: it has been stored, and is to stop
//! ```
//!
//! The daemon decides in one step, with its table locked, that a session has stopped. From then on
//! its client and its holder wait for the restore.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use sluice_wire::address::Endpoint;
use sluice_wire::control::{CheckpointBegun, Checkpointed, LeaseRestored, MoveOffer};
use sluice_wire::handshake::LeaseToken;
use sluice_worker_link::link::Receiver;

use super::away::Leaving;
use super::moved::{Moved, Whereabouts};
use super::{NotMigrated, depart_within};
use crate::lease::Refusal;
use crate::registry::{Registry, one_line, same};

/// A worker that ends a copy says why within this time.
const REASON_LIMIT: Duration = Duration::from_secs(5);

/// A client does not miss more restores than this.
const FORMERS_MAX: usize = 64;

/// A session that is being copied; it stands still.
pub(crate) struct Copied {
    leaving: Leaving,
    offer: MoveOffer,
    /// How long the copy may take.
    pub(crate) limit: Duration,
    /// The worker's end of this has the session.
    pub(crate) worker: UnixStream,
}

impl Copied {
    /// The first message to the side that keeps the copy.
    pub(crate) fn begun(&self) -> CheckpointBegun {
        let Leaving { session, bytes, .. } = self.leaving;
        CheckpointBegun { session, offer: self.offer.clone(), bytes }
    }

    pub(crate) fn session(&self) -> u64 {
        self.leaving.session
    }
}

impl Registry {
    /// Has the worker of the one session of a lease send a copy of it.
    pub(crate) fn begin_copy(&self, lease: u64) -> Result<Copied, NotMigrated> {
        let offer = self.offer_of(lease, None)?;
        let pair = UnixStream::pair().map_err(|error| NotMigrated::Node(error.to_string()));
        let (worker, there) = pair?;
        let leaving = self.begin_leaving(lease, &offer.lease)?;
        let limit = self.move_limit(leaving.bytes);
        let told = leaving.link.send_fd(&depart_within(limit, Receiver::Keeper), there.as_fd());
        let copied = Copied { leaving, offer, limit, worker };
        match told {
            Ok(()) => Ok(copied),
            Err(error) => Err(self.keep_copied(copied, error.to_string())),
        }
    }

    /// Why the worker has ended the copy.
    pub(crate) fn why_copy_ends(&self, session: u64) -> String {
        let until = Instant::now() + REASON_LIMIT;
        let mut ledger = self.lock();
        loop {
            let refusal = ledger.sessions.get(&session).map(|record| record.migration.refusal.clone());
            let left = until.saturating_duration_since(Instant::now());
            match refusal {
                Some(Some(reason)) => return reason,
                None => return "it has ended meanwhile".to_owned(),
                Some(None) if left.is_zero() => return "its worker has ended the copy".to_owned(),
                Some(None) => {
                    let waited = self.memory_moved.wait_timeout(ledger, left);
                    ledger = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
                }
            }
        }
    }

    /// The session continues: the copy is whole, or has failed for this reason.
    pub(crate) fn end_copy(
        &self,
        copied: Copied,
        failed: Option<String>,
    ) -> Result<Checkpointed, NotMigrated> {
        let &Leaving { session, lease, .. } = &copied.leaving;
        if let Some(reason) = failed {
            return Err(self.keep_copied(copied, reason));
        }
        let since = self.lock().sessions.get(&session).and_then(|it| it.migration.stands_since);
        drop(self.keep_copied(copied, String::new()));
        let stall_us = since.map_or(0, |since| since.elapsed().as_micros() as u64);
        let used = self.usage(lease).ok_or(Refusal::Gone)?;
        Ok(Checkpointed { stopped: false, used, stall_us })
    }

    /// The copy is stored, and the session leaves this node, with its lease.
    pub(crate) fn stop_copied(&self, copied: Copied) -> Result<Checkpointed, NotMigrated> {
        let &Leaving { session, lease, .. } = &copied.leaving;
        // It stands still by now.
        let used = self.usage(lease).ok_or(Refusal::Gone)?;
        let mut ledger = self.lock();
        if !ledger.goes_on(lease, session) {
            drop(ledger);
            return Err(self.keep_copied(copied, "it has ended meanwhile".to_owned()));
        }
        let stall = self.decide(&mut ledger, &copied.leaving, Whereabouts::Checkpoint);
        drop(ledger);
        tracing::info!(session, lease, "session {session} is in a checkpoint, and has left");
        self.memory_moved.notify_all();
        self.tell_server();
        self.end_lease(lease);
        Ok(Checkpointed { stopped: true, used, stall_us: stall.as_micros() as u64 })
    }

    fn keep_copied(&self, copied: Copied, reason: String) -> NotMigrated {
        let Copied { leaving: Leaving { session, from, .. }, worker, .. } = copied;
        // A worker that is sending finds the end.
        drop(worker);
        let reason = one_line(&self.keep(self.lock(), session, reason));
        NotMigrated::Stays { session, gpu: from, reason }
    }

    /// Whether a lease is here, with nothing that takes it away under way.
    pub(crate) fn has_lease(&self, token: &LeaseToken) -> bool {
        let mut ledger = self.lock();
        let Some(lease) = ledger.lease_of(token) else { return false };
        ledger = self.when_it_stays(ledger, lease);
        ledger.lease_of(token).is_some_and(|lease| !ledger.leases[&lease].closing)
    }

    /// A lease that was here once is restored elsewhere: its client and its holder are sent there.
    /// Where it is restored here, its client may know it by the number that it had.
    pub(crate) fn note_restored(&self, restored: &LeaseRestored) -> Result<(), String> {
        if let Some(server) = self.server() {
            return Err(format!("this node lends through {server}, and has no lease in a checkpoint"));
        }
        let &LeaseRestored { token, secret, session, ref node, there } = restored;
        let node: Endpoint = node.parse().map_err(|error| format!("{error}"))?;
        let mut ledger = self.lock();
        let here = ledger.lease_of(&token).filter(|lease| !ledger.leases[lease].closing);
        let Some(lease) = here else {
            let to = Whereabouts::Node { node, session: there };
            let moved = Moved { token, session, formers: Vec::new(), secret, to, is_restorable: true };
            let is_noted = ledger.moved.note_restored(moved);
            return if is_noted { Ok(()) } else { Err("the lease is in no checkpoint".to_owned()) };
        };
        let record =
            ledger.sessions.get_mut(&there).filter(|it| it.lease == lease && same(&it.secret.0, &secret.0));
        let Some(record) = record else { return Err("the lease is here".to_owned()) };
        if !record.migration.was(session) {
            let formers = &mut record.migration.formers;
            formers.drain(..formers.len().saturating_sub(FORMERS_MAX - 1));
            formers.push(session);
        }
        Ok(())
    }
}
