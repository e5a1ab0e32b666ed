//! What is opened once, however often its client asks for it: an earlier attempt may have got
//! through though its answer did not.
//!
//! ```text
//! asked for -- by no earlier attempt --> being opened (`Openings`)
//!     |                                      ^ later attempts wait
//!     |                                      | its worker knows what it serves
//!     |                                      v
//!     +-- a later attempt gives its ---> there (`SessionRecord::once`)
//!         socket to the worker
//! ```
//!
//! A session that does not outlive its connection ends with that of the earlier attempt, and is
//! made anew.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use sluice_transport::Stream;
use sluice_wire::handshake::{LeaseToken, Once, OpeningNonce};
use sluice_worker_link::link::Packet;

use super::joined::NoLease;
use super::{ClientOf, LeaseRecord, Ledger, Registry, SessionRefusal, same};

/// A worker is started, or a dead one struck out, within this time.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sessions that are being opened.
#[derive(Debug, Default)]
pub(super) struct Openings(Vec<OpeningNonce>);

/// A session that the calling thread opens, and no other thread meanwhile.
#[derive(Debug)]
pub(crate) struct Opening<'a> {
    registry: &'a Registry,
    pub(super) lease: u64,
    pub(super) once: Once,
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.registry.lock().openings.0.retain(|other| *other != self.once.nonce);
        self.registry.session_ended.notify_all();
    }
}

impl Registry {
    /// The session that a client with this token asks for is to be made, or was made for an earlier
    /// attempt of the same client, and then its worker has got this socket: `None`.
    pub(crate) fn open_session<'a>(
        &'a self,
        token: &LeaseToken,
        once: Once,
        client: &ClientOf,
        stream: &Stream,
    ) -> Result<Option<Opening<'a>>, SessionRefusal> {
        let deadline = Instant::now() + PATIENCE;
        let mut ledger = self.lock();
        loop {
            let lease = ledger.open_lease_of(token)?;
            ledger = self.when_it_stays(ledger, lease);
            // It may have gone to another node, or have come back from one.
            if ledger.open_lease_of(token)? != lease {
                continue;
            }
            if !ledger.openings.0.iter().any(|other| same(&other.0, &once.nonce.0)) {
                let Some(session) = ledger.opened_session(lease, once) else {
                    ledger.has_room(lease)?;
                    ledger.openings.0.push(once.nonce);
                    return Ok(Some(Opening { registry: self, lease, once }));
                };
                if ledger.hand_over(session, once, client, stream)? {
                    return Ok(None);
                }
            }
            // Another thread makes it, or strikes it out.
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(SessionRefusal::Stuck);
            }
            ledger = self.session_ended.wait_timeout(ledger, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Ledger {
    fn opened_session(&self, lease: u64, once: Once) -> Option<u64> {
        let is_it = |record: &super::SessionRecord| {
            record.lease == lease && same(&record.once.nonce.0, &once.nonce.0)
        };
        self.sessions.iter().find(|(_, record)| is_it(record)).map(|(&session, _)| session)
    }

    /// False if the session is about to end.
    fn hand_over(
        &mut self,
        session: u64,
        once: Once,
        client: &ClientOf,
        stream: &Stream,
    ) -> Result<bool, SessionRefusal> {
        let Some(record) = self.sessions.get_mut(&session) else { return Ok(false) };
        if once.attempt <= record.once.attempt {
            return Err(SessionRefusal::Stale);
        }
        record.once = once;
        if !(record.resumes && client.resumes) {
            // An error means that it has ended by itself.
            let _ = record.worker.kill();
            return Ok(false);
        }
        let tls = stream.keys().map_err(SessionRefusal::Worker)?;
        // Nothing that the worker has sent counts as received: the client begins anew with it.
        let packet = Packet::Resume { attempt: once.attempt, received: 0, stripe: (0, 1), tls };
        let is_alive = record.link.send_fd(&packet, std::os::fd::AsFd::as_fd(stream)).is_ok();
        if is_alive {
            record.client.peer.clone_from(&client.peer);
        }
        Ok(is_alive)
    }

    /// The lease that an earlier attempt has got, whatever this one may do with it.
    pub(super) fn opened(&mut self, once: Once) -> Option<(u64, &mut LeaseRecord)> {
        let is_it = |record: &LeaseRecord| same(&record.once.nonce.0, &once.nonce.0);
        self.leases.iter_mut().find(|(_, record)| is_it(record)).map(|(&lease, record)| (lease, record))
    }

    /// The lease that an earlier attempt has got and this one takes over.
    pub(super) fn opened_lease(&mut self, once: Once) -> Result<Option<u64>, NoLease> {
        match self.opened(once) {
            Some((_, record)) if record.once.attempt >= once.attempt => Err(NoLease::Stale),
            Some((_, record)) if record.closing => Err(NoLease::Ending),
            Some((lease, record)) => {
                record.once = once;
                Ok(Some(lease))
            }
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::SystemClock;
    use crate::config::NodeConfig;
    use crate::inventory::Inventory;
    use crate::spawn::{Spawner, WorkerCommand};

    #[test]
    fn a_later_attempt_takes_a_lease_over_unless_that_ends() {
        let inventory = Inventory {
            driver: sluice_worker_link::link::Driver::Software { memory: Vec::new() },
            cards: Vec::new(),
            snapshots: Vec::new(),
        };
        let spawner = Spawner::start(WorkerCommand::default(), true).unwrap();
        let clock = Arc::new(SystemClock::new());
        let registry = Registry::new(
            &NodeConfig::default(),
            inventory,
            (spawner, crate::swap_space::SwapSpace::open(0, None).unwrap()),
            None,
            clock,
        );
        let once = |nonce, attempt| Once { nonce: OpeningNonce([nonce; 32]), attempt };
        let record = LeaseRecord::new(once(1, 0), String::new(), 0, 0, Duration::ZERO, None);
        let mut ledger = registry.lock();
        ledger.leases.insert(7, record);
        assert!(matches!(ledger.opened_lease(once(1, 0)), Err(NoLease::Stale)));
        assert!(matches!(ledger.opened_lease(once(2, 1)), Ok(None)));
        assert!(matches!(ledger.opened_lease(once(1, 2)), Ok(Some(7))));
        assert!(matches!(ledger.opened_lease(once(1, 1)), Err(NoLease::Stale)), "another was later");
        ledger.leases.get_mut(&7).unwrap().closing = true;
        // There may be no room for another before it has ended.
        assert!(matches!(ledger.opened_lease(once(1, 3)), Err(NoLease::Ending)));
        ledger.leases.clear();
        assert!(matches!(ledger.opened_lease(once(1, 4)), Ok(None)));
    }
}
