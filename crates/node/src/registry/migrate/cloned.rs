//! A session of a program that forks is copied into another one, for the child.
//!
//! ```text
//!   parent -- Clone ------> daemon -- Depart --------> its worker
//!                              |                           | state, memory
//!                              `-- Start, Arrive --> new worker <-'
//!   parent <- SessionCloned -- daemon <-- Arrived -- new worker
//!   child --- Resume --------> daemon -------------> new worker
//! ```
//!
//! The parent says nothing to its session meanwhile, so that nothing has to be stopped: the copy is
//! of what it has said before. Its worker continues as soon as the copy is made. Until the child
//! comes, the connection on which the clone was asked for stands for it.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use std::sync::Arc;

use sluice_wire::control::SessionCloned;
use sluice_wire::handshake::{CloneOf, LeaseToken, Once, OpeningNonce, SessionSecret};
use sluice_worker_link::counters::CounterPage;
use sluice_worker_link::link::{Driver, Packet, PacketSocket, Receiver, Start};

use super::{Has, await_arrival, depart_within};
use crate::admission::Full;
use crate::lease::Refusal;
use crate::registry::cuts::Process;
use crate::registry::{ClientOf, Ledger, Registry, SessionRecord, SessionRefusal, random};
use crate::spawn::WorkerProcess;

/// Why there is no clone; the text is what the user reads.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotCloned {
    #[error("no session goes by that number and secret here")]
    Unknown,
    #[error("only sessions on software GPUs are cloned")]
    NotSoftware,
    #[error("its node overcommits memory, and clones no sessions")]
    Overcommitted,
    #[error("the session of its parent has several GPUs, and only one with one GPU is cloned")]
    SeveralGpus,
    #[error("its lease is suspended: resume it first")]
    Suspended,
    #[error("it is moving, or is being copied: try again")]
    Moving,
    #[error(transparent)]
    Full(#[from] Full),
    #[error(transparent)]
    Session(#[from] SessionRefusal),
    #[error(transparent)]
    Books(#[from] Refusal),
    #[error("the session of its parent is not cloned: {0}")]
    Stays(String),
}

impl NotCloned {
    /// Whether it is for lack of memory.
    pub(crate) fn needs_memory(&self) -> bool {
        matches!(self, NotCloned::Books(Refusal::NoMemoryForClone { .. }))
    }
}

/// A session that is like another one, and whose client has yet to come.
#[derive(Debug)]
pub(crate) struct Twin {
    pub(crate) lease: u64,
    pub(crate) session: u64,
    secret: SessionSecret,
    link: Arc<PacketSocket>,
}

/// Both sessions while the copy is made.
struct Cloning {
    twin: Twin,
    of: u64,
    /// To the worker that has the session.
    from: Arc<PacketSocket>,
    start: Start,
    bytes: u64,
}

impl Registry {
    /// Makes a session that is like the one of a client which asks for that. `is_proved` is called
    /// once the client has shown that the session is its own, before anything is waited for.
    pub(crate) fn clone_session(
        &self,
        of: &CloneOf,
        client: &Process,
        is_proved: impl FnOnce() -> Result<(), Full>,
    ) -> Result<Twin, NotCloned> {
        let original = self.lock().original(of, client).ok_or(NotCloned::Unknown)?;
        is_proved()?;
        // No process is started for what the daemon knows to be refused.
        self.cloneable(&self.when_it_stays(self.lock(), original), of, client)?;
        let failed = |error: io::Error| NotCloned::Session(SessionRefusal::Worker(error));
        let (unconnected, _) = UnixStream::pair().map_err(failed)?;
        let counters = Arc::new(CounterPage::create().map_err(failed)?);
        let page = counters.file().try_clone().map_err(failed)?;
        let (worker, link) = self.spawn_worker(unconnected.into(), page).map_err(failed)?;
        let cloning = self.begin_clone(of, client, (worker, link, counters))?;
        let arrived = self.copy_session(&cloning);
        self.end_clone(cloning, arrived)
    }

    /// Enters the clone, with what it takes of the lease.
    fn begin_clone(
        &self,
        of: &CloneOf,
        client: &Process,
        (mut worker, link, counters): (WorkerProcess, Arc<PacketSocket>, Arc<CounterPage>),
    ) -> Result<Cloning, NotCloned> {
        let mut ledger = self.lock();
        if let Some(original) = ledger.original(of, client) {
            ledger = self.when_it_stays(ledger, original);
        }
        let begun = self.cloneable(&ledger, of, client).and_then(|(original, lease)| {
            let session = ledger.next_id();
            ledger.books.open_clone(lease, original, session)?;
            Ok((original, lease, session))
        });
        let (original, lease, session) = match begun {
            Ok(begun) => begun,
            Err(refusal) => {
                drop(ledger);
                let _ = worker.kill();
                let _ = worker.wait();
                return Err(refusal);
            }
        };
        // Not the parent's process: its end is not the child's.
        let process = Process { number: 0, space: 0, watch: None };
        let parent = ledger.sessions.get_mut(&original);
        let peer = parent.map_or_else(String::new, |parent| {
            parent.migration.is_moving = true;
            parent.migration.refusal = None;
            parent.client.peer.clone()
        });
        let client = ClientOf { process, peer, resumes: true };
        let once = Once { nonce: OpeningNonce(random()), attempt: 0 };
        let secret = SessionSecret(random());
        let served = (worker, Arc::clone(&link), counters);
        let mut record = SessionRecord::new(lease, once, client, secret, served);
        record.migration.is_moving = true;
        record.parted = true;
        record.is_unclaimed = true;
        ledger.sessions.insert(session, record);
        let gpus = ledger.gpus(lease);
        let start = self.start_on(&ledger, session, gpus.iter().map(|&gpu| (gpu, 0)));
        let from = ledger.sessions.get(&original).map(|parent| Arc::clone(&parent.link));
        let bytes = ledger.books.lease(lease).map_or(0, |entry| entry.used_by(original));
        drop(ledger);
        let twin = Twin { lease, session, secret, link };
        match start.zip(from) {
            Some((start, from)) => Ok(Cloning { twin, of: original, from, start, bytes }),
            None => {
                self.end_twin(&twin);
                Err(NotCloned::Unknown)
            }
        }
    }

    /// Has the new worker take a copy; both have the session when this returns.
    fn copy_session(&self, Cloning { twin, from, start, bytes, .. }: &Cloning) -> Result<Has, String> {
        let failed = |error: io::Error| format!("the node cannot start a worker: {error}");
        let (here, there) = UnixStream::pair().map_err(failed)?;
        let limit = self.move_limit(*bytes);
        let told = || {
            twin.link.send(&Start { arrives: true, ..start.clone() })?;
            twin.link.send_fd(&Packet::Arrive { is_clone: true }, there.as_fd())?;
            from.send_fd(&depart_within(limit, Receiver::Clone), here.as_fd())
        };
        let told: io::Result<()> = told();
        // Either worker sees the other's end.
        drop((here, there));
        told.map_err(failed).and_then(|()| await_arrival(&twin.link, limit))
    }

    /// Has the first session continue, and enters what the clone has.
    fn end_clone(&self, cloning: Cloning, arrived: Result<Has, String>) -> Result<Twin, NotCloned> {
        let Cloning { twin, of, .. } = cloning;
        let said = arrived.as_ref().err().cloned().unwrap_or_default();
        let reason = self.keep(self.lock(), of, said);
        let settled = arrived.map_err(|_| NotCloned::Stays(reason)).and_then(|has| {
            let mut ledger = self.lock();
            let closing = ledger.leases.get(&twin.lease).is_none_or(|lease| lease.closing);
            if closing {
                return Err(NotCloned::Session(SessionRefusal::Lease));
            }
            ledger.books.settle_clone(twin.lease, twin.session, &has.taken)?;
            ledger.note_peak(twin.lease);
            let entry = ledger.books.lease(twin.lease).ok_or(Refusal::Gone)?;
            self.turns.join(twin.session, twin.lease, &entry.gpus, entry.weight(), Arc::clone(&twin.link));
            let record = ledger.sessions.get_mut(&twin.session);
            record.into_iter().for_each(|record| record.migration.is_moving = false);
            Ok(())
        });
        match settled {
            Ok(()) => {
                let &Twin { session, lease, .. } = &twin;
                tracing::info!(session, lease, "session {session} is a clone of session {of}");
                self.memory_moved.notify_all();
                Ok(twin)
            }
            Err(refusal) => {
                self.end_twin(&twin);
                Err(refusal)
            }
        }
    }

    /// The answer to the parent.
    pub(crate) fn cloned(&self, twin: &Twin) -> SessionCloned {
        let linger_ms = u32::try_from(self.linger.as_millis()).unwrap_or(u32::MAX);
        SessionCloned { session: twin.session, secret: twin.secret, linger_ms }
    }

    /// Serves a clone to its end.
    pub(crate) fn serve_twin(&self, Twin { lease, session, link, .. }: Twin) {
        self.serve_to_end(lease, session, link);
    }

    /// Ends a clone that no client has, and that is not served yet.
    pub(crate) fn end_twin(&self, twin: &Twin) {
        if let Some(record) = self.lock().sessions.get_mut(&twin.session) {
            record.migration.is_moving = false;
        }
        self.memory_moved.notify_all();
        self.leave_session(twin.session, Some("its program has no child that has it".into()));
    }

    /// Neither parent nor child holds the connection on which a clone was asked for: if no client
    /// has come by now, none will.
    pub(crate) fn end_unclaimed(&self, session: u64) {
        if let Some(record) = self.lock().sessions.get_mut(&session).filter(|record| record.is_unclaimed) {
            // An error means that it has ended by itself.
            let _ = record.worker.kill();
        }
    }

    /// Whether a session is a clone for which no client has come yet.
    pub(in crate::registry) fn is_unclaimed(&self, session: u64) -> bool {
        self.lock().sessions.get(&session).is_some_and(|record| record.is_unclaimed)
    }
}

impl SessionRecord {
    /// A client has come back: of a clone that has had none before, which answers true, this is the
    /// child.
    pub(in crate::registry) fn is_claimed_by(&mut self, process: &Process) -> bool {
        let is_first = std::mem::take(&mut self.is_unclaimed);
        if is_first {
            self.client.process = process.clone();
        }
        is_first
    }
}

impl Ledger {
    /// The session that is to be cloned, if this client has shown that it is its own. One that was
    /// restored here may have another number than its client knows.
    fn original(&self, of: &CloneOf, client: &Process) -> Option<u64> {
        let resumes = |session: &u64| self.sessions.get(session).is_some_and(|record| record.resumes);
        let with_secret = self.session_of(of.session, &SessionSecret(of.proof.0)).filter(resumes);
        let with_token = || {
            let record = self.sessions.get(&of.session).filter(|record| !record.resumes)?;
            let own = &record.client.process;
            let is_its_client = (own.number, own.space) == (client.number, client.space);
            let lease = self.open_lease_of(&LeaseToken(of.proof.0)).ok()?;
            (is_its_client && lease == record.lease).then_some(of.session)
        };
        with_secret.or_else(with_token)
    }
}

impl Registry {
    /// The session that is to be cloned, and its lease, if that can be done as far as the daemon
    /// knows.
    fn cloneable(&self, ledger: &Ledger, of: &CloneOf, client: &Process) -> Result<(u64, u64), NotCloned> {
        let original = ledger.original(of, client).ok_or(NotCloned::Unknown)?;
        let record = ledger.sessions.get(&original).ok_or(NotCloned::Unknown)?;
        let lease = record.lease;
        if !matches!(self.inventory.driver, Driver::Software { .. }) {
            return Err(NotCloned::NotSoftware);
        }
        if self.overcommits {
            return Err(NotCloned::Overcommitted);
        }
        if ledger.leases.get(&lease).is_none_or(|lease| lease.closing) {
            return Err(SessionRefusal::Lease.into());
        }
        if ledger.gpus(lease).len() != 1 {
            return Err(NotCloned::SeveralGpus);
        }
        if ledger.session_is_suspended(record) {
            return Err(NotCloned::Suspended);
        }
        if record.migration.is_moving || !record.is_up {
            return Err(NotCloned::Moving);
        }
        ledger.has_room(lease)?;
        Ok((original, lease))
    }
}

#[cfg(test)]
mod tests {
    use sluice_wire::handshake::CloneProof;

    use super::*;
    use crate::clock::SystemClock;
    use crate::config::NodeConfig;
    use crate::inventory::Inventory;
    use crate::spawn::{Spawner, WorkerCommand};
    use crate::swap_space::SwapSpace;

    #[test]
    fn what_is_not_proved_starts_no_process_and_gets_no_place() {
        let inventory = Inventory {
            driver: Driver::Software { memory: Vec::new() },
            cards: Vec::new(),
            snapshots: Vec::new(),
        };
        let nothing = WorkerCommand { program: "/nonexistent".into(), ..WorkerCommand::default() };
        let spawner = Spawner::start(nothing, true).unwrap();
        let swap = SwapSpace::open(0, None).unwrap();
        let clock = Arc::new(SystemClock::new());
        let registry = Registry::new(&NodeConfig::default(), inventory, (spawner, swap), None, clock);
        let of = CloneOf { session: 1, proof: CloneProof([7; 32]) };
        let client = Process { number: 1, space: 1, watch: None };
        let asked = registry.clone_session(&of, &client, || panic!("it got a place"));
        // A start would be the error.
        assert!(matches!(asked, Err(NotCloned::Unknown)), "{asked:?}");
        let (client, _) = UnixStream::pair().unwrap();
        let counters = CounterPage::create().unwrap().file().try_clone().unwrap();
        assert!(registry.spawn_worker(client.into(), counters).is_err());
    }
}
