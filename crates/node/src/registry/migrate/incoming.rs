//! A session comes from another node.

use std::fmt::Display;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use sluice_api::grant::Grant;
use sluice_transport::process::ProcessWatch;
use sluice_wire::control::{MoveDecided, MoveOffer, MovedLease, MovedSession, SHARE_WHOLE_PPM, Usage};
use sluice_worker_link::counters::{CounterPage, Counts};
use sluice_worker_link::link::{Packet, PacketSocket, Start};

use super::{Has, await_arrival};
use crate::connection::short_name;
use crate::join::Metered;
use crate::lease::Ask;
use crate::registry::cuts::{Hold, Holding, Process, descriptor_of};
use crate::registry::joined::wait_ns;
use crate::registry::{ClientOf, LeaseRecord, Ledger, Registry, SessionRecord};
use crate::upgrade::Pass;

/// How long the other node may take from its offer until everything is here.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(1800);
/// A worker that takes nothing for this time hangs.
const PUSH_LIMIT: Duration = Duration::from_secs(120);
/// Clocks of two nodes that differ by more than this are not compared.
const CLOCKS_MS: u64 = 60_000;

/// A session for which there is room and a worker.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) lease: u64,
    pub(crate) session: u64,
    pub(crate) gpu: usize,
    link: Arc<PacketSocket>,
    /// What comes of the session goes in here.
    into: UnixStream,
}

impl Incoming {
    /// The worker's next bytes of the session. After a failure it takes no more, and says why.
    pub(crate) fn push(&mut self, piece: &[u8]) -> io::Result<()> {
        self.into.write_all(piece)
    }

    /// No more comes.
    pub(crate) fn end(&self) {
        let _ = self.into.shutdown(std::net::Shutdown::Both);
    }

    /// What is needed to wait for the worker.
    pub(crate) fn link(&self) -> Arc<PacketSocket> {
        Arc::clone(&self.link)
    }
}

/// Waits until the worker has the session.
pub(crate) fn arrival(link: &PacketSocket) -> Result<Has, String> {
    await_arrival(link, ARRIVAL_LIMIT)
}

impl Registry {
    /// Enters the lease, held by the other node's connection until the lease's own holder comes,
    /// and starts a worker for the session.
    pub(crate) fn expect(&self, offer: MoveOffer, holding: Holding) -> Result<(Incoming, Hold), String> {
        let grant = self.grant_of_offer(&offer)?;
        if self.overcommits {
            return Err("it overcommits memory, and takes no session from elsewhere".into());
        }
        let linger = Duration::from_millis(offer.linger_ms);
        if self.linger < linger {
            return Err(format!(
                "its --linger is {:?}, and the program's client tries to come back for {linger:?}",
                self.linger
            ));
        }
        let MoveOffer { gpu, lease: moved, session: of_session, .. } = offer;
        let (lease, hold) = self.enter_moved(gpu, &moved, grant, holding)?;
        let incoming = self.expect_session(lease, of_session);
        if incoming.is_err() {
            self.end_held(&hold);
        }
        incoming.map(|incoming| (incoming, hold))
    }

    /// The server's grant of an offered lease, where this node lends through a server: nothing
    /// comes to it without one.
    pub(crate) fn grant_of_offer(&self, offer: &MoveOffer) -> Result<Option<Grant>, String> {
        let (membership, text) = match (&self.membership, &offer.grant) {
            (None, None) => return Ok(None),
            (Some(membership), Some(text)) => (membership, text),
            (Some(membership), None) => {
                return Err(format!(
                    "it lends through {}, which alone says what runs on it",
                    membership.server
                ));
            }
            (None, Some(_)) => return Err("it has not joined the server that has the lease".into()),
        };
        let grant = membership.check(text, self.clock.wall_ms()).map_err(|refusal| refusal.to_string())?;
        let MovedLease { share_ppm, limit_ppm, memory, .. } = *offer.lease;
        let is_it = (grant.share_ppm, grant.limit_ppm(), grant.memory) == (share_ppm, limit_ppm, memory);
        if grant.moves == 0 || grant.gpus.len() != 1 || !is_it {
            return Err("the server has granted something else than this lease".into());
        }
        Ok(Some(grant))
    }

    fn enter_moved(
        &self,
        gpu: Option<u32>,
        moved: &MovedLease,
        grant: Option<Grant>,
        holding: Holding,
    ) -> Result<(u64, Hold), String> {
        let MovedLease { token, once, share_ppm, limit_ppm, memory, kernel_timeout_ms, .. } = *moved;
        let ask = Ask {
            gpus: 1,
            share_ppm,
            memory,
            limit_ppm,
            promised_ppm: grant.as_ref().map_or(SHARE_WHOLE_PPM, |grant| grant.promised_ppm),
            premium: grant.as_ref().is_some_and(|grant| grant.tier.is_premium()),
            wait_ns: grant.as_ref().map_or(0, wait_ns),
        };
        let gpu = grant.as_ref().map_or(gpu, |grant| grant.gpus.first().copied());
        let mut ledger = self.lock();
        if ledger.lease_of(&token).is_some() {
            return Err("it has this lease already".into());
        }
        let arriving = grant.map(|grant| self.claim_moved(grant)).transpose()?;
        let lease = ledger.next_id();
        let granted = match gpu {
            Some(gpu) => ledger.books.grant_on(lease, ask, &[gpu as usize]),
            None => ledger.books.grant(lease, ask),
        };
        let on = granted.map_err(|refusal| refusal.to_string())?.gpus[0];
        let here = &self.inventory.snapshots[on].name;
        match &*moved.shown {
            [there] if there.name == *here => {}
            _ => {
                ledger.books.end(lease);
                return Err(format!("its GPU {on}, a {here}, is of another model"));
            }
        }
        let name = short_name(&moved.name);
        let started = self.clock.running().saturating_sub(Duration::from_millis(moved.used.age_ms));
        let record = LeaseRecord::new(once, name, kernel_timeout_ms, u64::from(share_ppm), started, None);
        let shown = Some(moved.shown.clone());
        let mut record = LeaseRecord { token, arrives: true, arriving, shown, ..record };
        record.used_before(&moved.used);
        ledger.leases.insert(lease, record);
        let hold = ledger.hold(lease, holding).ok_or("the lease is gone")?;
        Ok((lease, hold))
    }

    /// Takes the server's grant of a lease that comes from another node.
    fn claim_moved(&self, grant: Grant) -> Result<Metered, String> {
        let membership = self.membership.as_ref().ok_or("it has not joined a server")?;
        let now_ms = self.clock.wall_ms();
        membership.claim(&grant, now_ms).map_err(|refusal| refusal.to_string())?;
        let model = membership.model(grant.gpus.first().map_or(0, |&gpu| gpu as usize));
        let recorded = membership.recorded(&grant);
        Ok(Metered::new(grant.node, grant, model, now_ms, recorded))
    }

    fn expect_session(&self, lease: u64, moved: MovedSession) -> Result<Incoming, String> {
        fn failed(error: impl Display) -> String {
            format!("it cannot start a worker: {error}")
        }
        let (into, from) = UnixStream::pair().map_err(failed)?;
        into.set_write_timeout(Some(PUSH_LIMIT)).map_err(failed)?;
        // The client comes later, on a connection of its own.
        let (unconnected, _) = UnixStream::pair().map_err(failed)?;
        let counters = Arc::new(CounterPage::create().map_err(failed)?);
        let page = counters.file().try_clone().map_err(failed)?;
        let (worker, link) = self.spawn_worker(unconnected.into(), page).map_err(failed)?;
        let client = self.client_of(&moved);
        let served = (worker, Arc::clone(&link), counters);
        let mut record = SessionRecord::new(lease, moved.once, client, moved.secret, served);
        record.migration.begin();
        record.parted = true;
        let mut ledger = self.lock();
        record.migration.formers = ledger.moved.formers(&moved.secret);
        let session = ledger.next_id();
        ledger.books.open_session(lease, session);
        ledger.sessions.insert(session, record);
        let gpus = ledger.gpus(lease);
        let start = self.start_on(&ledger, session, gpus.iter().map(|&gpu| (gpu, 0)));
        drop(ledger);
        let incoming = Incoming { lease, session, gpu: gpus.first().copied().unwrap_or(0), link, into };
        let told = start.ok_or_else(|| failed("the lease is gone")).and_then(|start| {
            incoming.link.send(&Start { arrives: true, ..start }).map_err(failed)?;
            incoming.link.send_fd(&Packet::Arrive { is_clone: false }, from.as_fd()).map_err(failed)
        });
        match told {
            Ok(()) => Ok(incoming),
            Err(reason) => {
                self.turn_away(&incoming);
                Err(reason)
            }
        }
    }

    fn client_of(&self, moved: &MovedSession) -> ClientOf {
        let &MovedSession { process: number, process_space: space, ref peer, .. } = moved;
        let is_here = space != 0 && space == self.process_space;
        // One that cannot be watched, or has ended, is waited for.
        let watch = is_here.then(|| ProcessWatch::new(number).ok().flatten()).flatten();
        let watch = watch.and_then(|watch| descriptor_of(&watch).ok());
        let process = Process { number, space, watch };
        ClientOf { process, peer: short_name(peer), resumes: true }
    }

    /// Whether what has arrived fits into the lease.
    pub(crate) fn fits(&self, lease: u64, has: Has) -> Result<Has, String> {
        let memory = self.lock().books.lease(lease).map_or(0, |entry| entry.memory);
        let each = has.taken.iter().zip(&has.reserved);
        match each.map(|(taken, reserved)| taken.saturating_add(*reserved)).max() {
            Some(most) if most > memory => Err("it has more memory than its lease".into()),
            _ => Ok(has),
        }
    }

    /// Ends the worker of a session that stays where it was, whatever it does.
    pub(crate) fn stop_arriving(&self, incoming: &Incoming) {
        if let Some(record) = self.lock().sessions.get_mut(&incoming.session) {
            // An error means that it has ended by itself.
            let _ = record.worker.kill();
        }
    }

    /// The session is this node's from now on, unless the other node's decision was lost: then it
    /// is if its client or the holder of its lease comes. Serves it to its end.
    pub(crate) fn serve_arrived(
        &self,
        incoming: Incoming,
        has: &Has,
        decided: Option<&MoveDecided>,
        step: Option<Pass>,
    ) {
        let Incoming { lease, session, link, into, .. } = incoming;
        drop(into);
        let mut ledger = self.lock();
        if let Some(record) = ledger.leases.get_mut(&lease) {
            record.arrives = false;
            decided.and_then(|decided| decided.used.as_ref()).inspect(|used| record.used_before(used));
            let token = record.token;
            ledger.moved.forget(&token);
        }
        self.count_arrived(&mut ledger, lease, decided.and_then(|decided| decided.recorded_until_ms));
        if decided.is_some() {
            ledger.is_certain(lease);
        }
        ledger.books.adopt(lease, session, &has.taken, &has.reserved);
        ledger.note_peak(lease);
        let weight = ledger.books.lease(lease).map(|entry| (entry.weight(), entry.gpus.clone()));
        if let Some(record) = ledger.sessions.get_mut(&session) {
            record.migration.is_moving = false;
        }
        if let Some((weight, gpus)) = weight {
            self.turns.join(session, lease, &gpus, weight, Arc::clone(&link));
        }
        let peer = ledger.sessions.get(&session).map_or_else(String::new, |it| it.client.peer.clone());
        drop(ledger);
        tracing::info!(session, lease, peer, "session {session} of {peer} has come from another node");
        self.memory_moved.notify_all();
        self.tell_server();
        drop(step);
        self.serve_to_end(lease, session, link);
    }

    /// The records of a lease of a server begin where those of the other node end.
    fn count_arrived(&self, ledger: &mut Ledger, lease: u64, recorded_until_ms: Option<u64>) {
        let counts = ledger.counts(lease);
        let now_ms = self.clock.wall_ms();
        let is_near = |at_ms: &u64| at_ms.abs_diff(now_ms) <= CLOCKS_MS;
        let at_ms = recorded_until_ms.filter(is_near).unwrap_or(now_ms);
        let Some(record) = ledger.leases.get_mut(&lease) else { return };
        let held_ms = self.held_ms(record);
        record.arriving.iter_mut().for_each(|metered| metered.begin(held_ms, counts, at_ms));
    }

    /// The session stays where it was.
    pub(crate) fn turn_away(&self, incoming: &Incoming) {
        if let Some(record) = self.lock().sessions.get_mut(&incoming.session) {
            record.migration.is_moving = false;
        }
        self.memory_moved.notify_all();
        self.leave_session(incoming.session, Some("it has stayed on its node".into()));
    }
}

impl Ledger {
    /// The lease is here: the other node has said so, or has sent its client or holder here. It is
    /// counted as of its arrival.
    pub(in crate::registry) fn is_certain(&mut self, lease: u64) {
        if let Some(record) = self.leases.get_mut(&lease).filter(|record| !record.arrives)
            && let Some(metered) = record.arriving.take()
        {
            record.metered = Some(metered);
        }
    }
}

impl LeaseRecord {
    /// Counts what the lease has used on other nodes.
    fn used_before(&mut self, used: &Usage) {
        self.past = Counts {
            kernels: used.kernels,
            bytes_in: used.bytes_in,
            bytes_out: used.bytes_out,
            used_ns: used.busy_us.saturating_mul(1000),
            ..Counts::default()
        };
        self.sessions_total = used.sessions;
        self.memory_peak = self.memory_peak.max(used.memory_peak);
    }
}
