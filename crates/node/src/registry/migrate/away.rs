//! The session goes to another node.
//!
//! ```text
//! old worker -- state, memory --> this daemon -- MovePiece --> the other daemon --> new worker
//! ```
//!
//! This node alone decides, in one step and with its table locked. From then on it sends the client
//! and the holder of the lease to the other node. Until then the other node has a worker that has
//! nothing to do and that no client knows of.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use sluice_api::moving::MoveOrder;
use sluice_control::{Cause, Departure};
use sluice_wire::address::{Endpoint, is_loopback};
use sluice_wire::control::{Migrated, MoveOffer, MovedLease, MovedSession, Usage};
use sluice_wire::handshake::{LeaseToken, Resume, SessionSecret};
use sluice_worker_link::link::{PacketSocket, Receiver};

use super::moved::{Moved, Whereabouts};
use super::{NotMigrated, depart_within};
use crate::lease::Refusal;
use crate::registry::{Ledger, Registry};

/// A session for which another node holds room.
pub(super) struct Leaving {
    pub(super) session: u64,
    pub(super) lease: u64,
    pub(super) from: usize,
    token: LeaseToken,
    secret: SessionSecret,
    pub(super) link: Arc<PacketSocket>,
    /// Bytes of the GPU that it has.
    pub(super) bytes: u64,
    /// Its number on the other node, and its GPU there.
    there: u64,
    gpu: u32,
    /// The server's order to move it.
    order: Option<MoveOrder>,
}

impl Registry {
    /// Moves the one session of a lease of one GPU to another node, with the lease.
    pub(crate) fn migrate_to(
        &self,
        lease: u64,
        node: &str,
        gpu: Option<u32>,
    ) -> Result<Migrated, NotMigrated> {
        self.move_away(lease, node, gpu, None)
    }

    /// Moves a lease to another node, by an order of the server if that has granted it there.
    pub(super) fn move_away(
        &self,
        lease: u64,
        node: &str,
        gpu: Option<u32>,
        order: Option<MoveOrder>,
    ) -> Result<Migrated, NotMigrated> {
        let node = self.reachable(lease, node)?;
        let grant = order.as_ref().map(|order| order.grant.clone());
        let offer = MoveOffer { grant, ..self.offer_of(lease, gpu)? };
        let (mut departure, accepted) = self.offer_to(&node, &offer)?;
        let leaving = self.begin_leaving(lease, &offer.lease);
        let Ok(mut leaving) = leaving else {
            let _ = departure.stays();
            return Err(leaving.err().unwrap_or(NotMigrated::Changed(lease)));
        };
        (leaving.there, leaving.gpu, leaving.order) = (accepted.session, accepted.gpu, order);
        let sent = self.send_away(&leaving, &mut departure);
        self.end_leaving(leaving, departure, sent)
    }

    /// The other node, unless its address means nothing to the program's machine.
    pub(super) fn reachable(&self, lease: u64, node: &str) -> Result<Endpoint, NotMigrated> {
        let node: Endpoint = node.parse().map_err(|error| NotMigrated::Node(format!("{error}")))?;
        let ledger = self.lock();
        let (session, _) = ledger.movable(lease)?;
        let space = ledger.sessions.get(&session).map_or(0, |record| record.client.process.space);
        let is_here = space != 0 && space == self.process_space;
        match &node {
            Endpoint::Unix(_) => Err(NotMigrated::Node(format!("{node} is not reached over a network"))),
            Endpoint::Tcp(address) | Endpoint::Tls { address, .. } if !is_here && is_loopback(address) => {
                Err(NotMigrated::Node(format!(
                    "{address} is this machine's own, and the program is on another one: name the node as that one reaches it"
                )))
            }
            Endpoint::Tcp(_) | Endpoint::Tls { .. } => Ok(node),
        }
    }

    /// What the other node has to know before it accepts the session.
    pub(super) fn offer_of(&self, lease: u64, gpu: Option<u32>) -> Result<MoveOffer, NotMigrated> {
        if self.overcommits {
            return Err(NotMigrated::Overcommitted);
        }
        let used = self.usage(lease).ok_or(Refusal::Gone)?;
        let ledger = self.lock();
        let (session, _) = ledger.movable(lease)?;
        let gone = || NotMigrated::NoSession(lease);
        let (record, entry) = ledger.leases.get(&lease).zip(ledger.books.lease(lease)).ok_or_else(gone)?;
        let of_session = ledger.sessions.get(&session).ok_or_else(gone)?;
        let process = &of_session.client.process;
        Ok(MoveOffer {
            gpu,
            lease: Box::new(MovedLease {
                token: record.token,
                once: record.once,
                share_ppm: entry.ask.share_ppm,
                limit_ppm: entry.ask.limit_ppm,
                memory: entry.memory,
                kernel_timeout_ms: record.kernel_timeout_ms,
                name: record.name.clone(),
                shown: self.shown(&ledger, lease),
                used: Usage { memory_peak: record.memory_peak, ..used },
            }),
            session: MovedSession {
                secret: of_session.secret,
                once: of_session.once,
                process: process.number,
                process_space: process.space,
                peer: of_session.client.peer.clone(),
            },
            linger_ms: u64::try_from(self.linger.as_millis()).unwrap_or(u64::MAX),
            grant: None,
        })
    }

    /// Offers it at the first of the addresses that the operator allows and that answers.
    pub(super) fn offer_to(
        &self,
        node: &Endpoint,
        offer: &MoveOffer,
    ) -> Result<(Departure, sluice_wire::control::MoveAccepted), NotMigrated> {
        let refused = |refusal| NotMigrated::Node(format!("{}: {refusal}", node.place()));
        let mut failure = None;
        for node in self.peering.allowed(node).map_err(refused)? {
            match Departure::offer(&node, self.token.as_ref(), offer.clone()) {
                Ok(accepted) => return Ok(accepted),
                Err(refused) if matches!(refused.cause, Cause::Refused(_)) => {
                    return Err(NotMigrated::Node(refused.to_string()));
                }
                Err(error) => failure = Some(error),
            }
        }
        Err(NotMigrated::Node(failure.map_or_else(String::new, |failure| failure.to_string())))
    }

    /// From here on a client that comes back waits. The lease has to be what was offered.
    pub(super) fn begin_leaving(&self, lease: u64, offered: &MovedLease) -> Result<Leaving, NotMigrated> {
        let mut ledger = self.lock();
        let (session, from) = ledger.movable(lease)?;
        let entry = ledger.books.lease(lease).ok_or(Refusal::Gone)?;
        let now = (entry.ask.share_ppm, entry.ask.limit_ppm, entry.memory);
        if now != (offered.share_ppm, offered.limit_ppm, offered.memory) {
            return Err(NotMigrated::Changed(lease));
        }
        let bytes = entry.used(0);
        let token = ledger.leases.get(&lease).ok_or(Refusal::Gone)?.token;
        let record = ledger.sessions.get_mut(&session).ok_or(NotMigrated::NoSession(lease))?;
        record.migration.begin();
        let (secret, link) = (record.secret, Arc::clone(&record.link));
        Ok(Leaving { session, lease, from, token, secret, link, bytes, there: 0, gpu: 0, order: None })
    }

    /// Has the worker send everything to the other node; both have the session when this returns.
    fn send_away(&self, leaving: &Leaving, departure: &mut Departure) -> Result<u64, String> {
        let failed = |error: std::io::Error| error.to_string();
        let (here, there) = UnixStream::pair().map_err(failed)?;
        let limit = self.move_limit(leaving.bytes);
        leaving.link.send_fd(&depart_within(limit, Receiver::Worker), there.as_fd()).map_err(failed)?;
        // The worker alone has it, so its end is seen here.
        drop(there);
        departure.send(File::from(OwnedFd::from(here)), limit).map_err(|failure| failure.to_string())
    }

    /// Gives the session to the other node, or leaves it here.
    fn end_leaving(
        &self,
        leaving: Leaving,
        departure: Departure,
        sent: Result<u64, String>,
    ) -> Result<Migrated, NotMigrated> {
        let &Leaving { session, lease, from, there, gpu, .. } = &leaving;
        // It stands still by now.
        let used = self.usage(lease);
        let mut ledger = self.lock();
        let reason = match sent {
            Ok(bytes) if ledger.goes_on(lease, session) => {
                let to = Whereabouts::Node { node: departure.node().clone(), session: there };
                let stall = self.decide(&mut ledger, &leaving, to);
                let moved = Migrated { session: there, gpu, bytes, stall_us: stall.as_micros() as u64 };
                // The report that does not list the lease any more has the result.
                leaving.order.iter().for_each(|order| self.orders.succeed(order, &moved));
                let recorded_until_ms = self.recorded_until_ms(&ledger, lease);
                drop(ledger);
                tracing::info!(session, lease, "session {session} has moved to {}", departure.node().place());
                self.memory_moved.notify_all();
                // The other node takes the end of the connection for the same, if this is lost.
                let _ = departure.moves(used, recorded_until_ms);
                self.end_lease(lease);
                self.tell_server();
                return Ok(moved);
            }
            Ok(_) => "it has ended meanwhile".to_owned(),
            Err(reason) => reason,
        };
        let reason = self.keep(ledger, session, reason);
        let _ = departure.stays();
        Err(NotMigrated::Stays { session, gpu: from, reason })
    }

    /// From here on the session is not here any more. The answer is for how long it has stood
    /// still.
    pub(super) fn decide(&self, ledger: &mut Ledger, leaving: &Leaving, to: Whereabouts) -> Duration {
        let &Leaving { session, lease, token, secret, .. } = leaving;
        let formers = ledger.sessions.get(&session).map(|record| record.migration.formers.clone());
        let formers = formers.unwrap_or_default();
        let is_restorable = matches!(to, Whereabouts::Checkpoint);
        ledger.moved.note(Moved { token, session, formers, secret, to, is_restorable });
        let mut since = None;
        if let Some(record) = ledger.sessions.get_mut(&session) {
            record.migration.is_moving = false;
            record.migration.is_over();
            since = record.migration.stands_since;
        }
        if let Some(record) = ledger.leases.get_mut(&lease) {
            record.closing = true;
            record.has_moved = true;
            record.left_at = Some(self.clock.running());
            // Its holder comes back, and is sent on.
            record.holder.iter().for_each(crate::registry::cuts::Holder::hang_up);
        }
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// The end of the last usage record of a lease that has moved, if a server granted it.
    fn recorded_until_ms(&self, ledger: &Ledger, lease: u64) -> Option<u64> {
        let record = ledger.leases.get(&lease)?;
        record.metered.as_ref().map(|metered| metered.at_ms(self.held_ms(record)))
    }

    /// Where a lease is now that was here before, once that is decided.
    pub(crate) fn moved_lease(&self, token: &LeaseToken) -> Option<Moved> {
        let mut ledger = self.lock();
        if ledger.moved.of_token(token).is_some()
            && let Some(lease) = ledger.lease_of(token)
        {
            ledger = self.when_it_stays(ledger, lease);
        }
        let is_here = ledger.lease_of(token).is_some_and(|lease| !ledger.leases[&lease].closing);
        if is_here { None } else { ledger.moved.of_token(token).cloned() }
    }

    /// Where the session of a client that comes back is now, once that is decided.
    pub(crate) fn moved_session(&self, resume: &Resume) -> Option<Moved> {
        let mut ledger = self.lock();
        if let Some(session) = ledger.session_of(resume.session, &resume.secret) {
            ledger = self.when_it_stays(ledger, session);
        }
        let is_over = |session| ledger.sessions.get(&session).is_none_or(|it| it.migration.is_over);
        let is_here =
            ledger.session_of(resume.session, &resume.secret).is_some_and(|session| !is_over(session));
        if is_here { None } else { ledger.moved.of_session(resume).cloned() }
    }
}
