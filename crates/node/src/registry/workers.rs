//! The worker of each session: its start, what it is given to serve, and its end, after which what
//! the session had is free again.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;

use std::sync::Arc;
use std::time::Instant;

use sluice_api::health::Clearing;
use sluice_transport::tls::Keys;
use sluice_wire::handshake::{Once, SessionSecret};
use sluice_worker_link::counters::CounterPage;
use sluice_worker_link::link::{GpuPart, PacketSocket, ResumeStart, Start};

use super::migrate::Migration;
use super::openings::Opening;
use super::peers::PeerTokens;
use super::residence::Residence;
use super::secrets::random;
use super::{ClientOf, Ledger, Registry, SessionRecord, cuts, overcommit, sum};
use crate::output;
use crate::spawn::{Inheritance, WorkerProcess};
use crate::upgrade::Pass;

/// Why a session is refused; the text goes to the client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionRefusal {
    #[error("the lease is no more: the `sluice run` that holds it may have ended")]
    Lease,
    #[error("the lease has {0} sessions already, the most that one lease may have")]
    TooMany(usize),
    #[error("the node cannot start a worker: {0}")]
    Worker(#[source] io::Error),
    #[error("what an earlier attempt has begun does not come to an end")]
    Stuck,
    #[error("the client has asked for it again on another connection meanwhile")]
    Stale,
}

/// A session whose worker runs; [`Registry::serve_session`] takes it to its end.
#[derive(Debug)]
pub(crate) struct RunningSession<'a> {
    /// Over once the worker knows what it serves.
    opening: Opening<'a>,
    lease: u64,
    session: u64,
    link: Arc<PacketSocket>,
    /// What protects the client's connection.
    keys: Option<Keys>,
}

/// What a worker hangs in that was killed and does not end.
#[derive(Debug)]
pub(crate) enum MayHang {
    /// The driver of these GPUs.
    Driver(Vec<usize>),
    /// The disk of the swap file, which has bytes of the session: the GPUs need not have failed.
    Disk,
}

/// Most processes under one lease at a time.
const SESSIONS_PER_LEASE_MAX: usize = 256;

impl Registry {
    /// Starts a worker for a client, and hands it the client's socket.
    pub(crate) fn start_session<'a>(
        &'a self,
        opening: Opening<'a>,
        client_of: ClientOf,
        client: OwnedFd,
        keys: Option<Keys>,
    ) -> Result<RunningSession<'a>, SessionRefusal> {
        let lease = opening.lease;
        let counters = Arc::new(CounterPage::create().map_err(SessionRefusal::Worker)?);
        let page = counters.file().try_clone().map_err(SessionRefusal::Worker)?;
        let (worker, link) = self.spawn_worker(client, page).map_err(SessionRefusal::Worker)?;
        let served = (worker, Arc::clone(&link), counters);
        let record = SessionRecord::new(lease, opening.once, client_of, SessionSecret(random()), served);
        let session = self.enter_session(record)?;
        Ok(RunningSession { opening, lease, session, link, keys })
    }

    /// Starts a worker process, whose lines on stderr become ours.
    pub(super) fn spawn_worker(
        &self,
        client: OwnedFd,
        counters: OwnedFd,
    ) -> io::Result<(WorkerProcess, Arc<PacketSocket>)> {
        let (link, worker_link) = PacketSocket::pair()?;
        let mut worker = self.spawner.spawn(Inheritance { client, link: worker_link.into_fd(), counters })?;
        if let Err(error) = follow_output(&worker) {
            let _ = worker.kill();
            let _ = worker.wait();
            return Err(error);
        }
        Ok((worker, Arc::new(link)))
    }

    /// Serves a session to its end, on the calling thread: its worker, and those that take it over.
    /// `step` lasts until the worker knows what it serves.
    pub(crate) fn serve_session(&self, running: RunningSession<'_>, step: Pass) {
        let RunningSession { opening, lease, session, link, keys } = running;
        let started = self.start_worker(lease, session, &link, keys);
        drop(opening);
        drop(step);
        match started {
            Some(()) => self.serve_to_end(lease, session, link),
            None => self.leave_session(session, None),
        }
    }

    /// Serves the worker of a session, and those that take it over.
    pub(crate) fn serve_to_end(&self, lease: u64, session: u64, mut link: Arc<PacketSocket>) {
        let mut why = self.serve_worker(lease, session, &link);
        while let Some(next) = self.link_after(session, &link) {
            link = next;
            why = self.serve_worker(lease, session, &link);
        }
        self.leave_session(session, why);
    }

    /// The sessions that began before this program ran: the lease, the number and the worker's
    /// link.
    pub(crate) fn sessions_from_before(&self) -> Vec<(u64, u64, Arc<PacketSocket>)> {
        let ledger = self.lock();
        let session = |(&id, record): (&u64, &SessionRecord)| (record.lease, id, Arc::clone(&record.link));
        ledger.sessions.iter().map(session).collect()
    }

    /// Has lines of a session's worker go to the log.
    pub(crate) fn follow_output_of(&self, session: u64) -> io::Result<()> {
        self.lock().sessions.get(&session).map_or(Ok(()), |record| follow_output(&record.worker))
    }

    /// The link to the worker that has taken the session over from another one.
    fn link_after(&self, session: u64, before: &Arc<PacketSocket>) -> Option<Arc<PacketSocket>> {
        let link = Arc::clone(&self.lock().sessions.get(&session)?.link);
        (!Arc::ptr_eq(&link, before)).then_some(link)
    }

    /// Enters the session into the accounts.
    fn enter_session(&self, mut record: SessionRecord) -> Result<u64, SessionRefusal> {
        // While a lease moves, it is not known yet on which GPU this session would be.
        let mut ledger = self.when_it_stays(self.lock(), record.lease);
        if ledger.leases.get(&record.lease).is_none_or(|lease| lease.closing) {
            // The lease ended while the worker started.
            drop(ledger);
            let _ = record.worker.kill();
            let _ = record.worker.wait();
            return Err(SessionRefusal::Lease);
        }
        let session = ledger.next_id();
        let (lease, peer, pid) = (record.lease, record.client.peer.clone(), record.worker.id());
        ledger.books.open_session(lease, session);
        ledger.sessions.insert(session, record);
        let (server_lease, tenant) = ledger.of_server(lease);
        drop(ledger);
        tracing::info!(
            session,
            lease,
            server_lease,
            tenant,
            peer,
            worker = pid,
            "session {session} has begun"
        );
        Ok(session)
    }

    /// Tells a worker what it serves and lets it compete for the GPUs.
    fn start_worker(
        &self,
        lease: u64,
        session: u64,
        link: &Arc<PacketSocket>,
        tls: Option<Keys>,
    ) -> Option<()> {
        let start = Start { tls, ..self.start_of(lease, session, link)? };
        link.send(&start).ok()
    }

    fn start_of(&self, lease: u64, session: u64, link: &Arc<PacketSocket>) -> Option<Start> {
        let mut ledger = self.lock();
        ledger.leases.get_mut(&lease)?.sessions_total += 1;
        let gpus = ledger.books.lease(lease)?.gpus.clone();
        let reserves: Vec<u64> =
            (0..gpus.len()).map(|gpu| ledger.books.fill_reserve(lease, session, gpu)).collect();
        let start = self.start_on(&ledger, session, gpus.into_iter().zip(reserves))?;
        let entry = ledger.books.lease(lease)?;
        let suspended = entry.suspended;
        // With the table locked: the lease cannot be resized between.
        self.turns.join(session, lease, &entry.gpus, entry.weight(), Arc::clone(link));
        ledger.join_planners(lease, session, self.now_ns());
        if suspended {
            self.turns.set_suspended(session, true);
            ledger.sessions.get_mut(&session)?.residence = Residence::away();
            ledger.vacate(lease);
        }
        Some(start)
    }

    /// The first packet for a worker that is to serve a session on these GPUs, each with the bytes
    /// of it that are kept for the session.
    pub(super) fn start_on(
        &self,
        ledger: &Ledger,
        session: u64,
        gpus: impl Iterator<Item = (usize, u64)>,
    ) -> Option<Start> {
        let record = ledger.sessions.get(&session)?;
        let entry = ledger.books.lease(record.lease)?;
        let part = |(gpu, reserve): (usize, u64)| GpuPart {
            ordinal: gpu as u32,
            share_ppm: entry.ask.share_ppm,
            memory: entry.memory,
            reserve,
        };
        let linger_ms = u32::try_from(self.linger.as_millis()).unwrap_or(u32::MAX);
        let (secret, attempt) = (record.secret.0, record.once.attempt);
        let resume = record.resumes.then_some(ResumeStart { secret, linger_ms, attempt });
        Some(Start {
            session,
            driver: self.inventory.driver.clone(),
            gpus: gpus.map(part).collect(),
            kernel_timeout_ms: ledger.leases.get(&record.lease)?.kernel_timeout_ms,
            cache: self.cache.clone(),
            stores_code: self.stores_code,
            resume,
            tls: None,
            host_memory: self.host_memory,
            suspended: entry.suspended,
            overcommits: self.overcommits,
            keeps_host_memory: self.overcommits && !self.swap.has_file(),
            arrives: false,
            driver_patience_ms: u64::try_from(self.driver_patience.as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// Makes sure that the worker is gone and frees what it had.
    pub(super) fn leave_session(&self, session: u64, why: Option<String>) {
        let mut ledger = self.lock();
        let Some(record) = ledger.sessions.get_mut(&session) else { return };
        // From here on nothing takes the session over.
        record.migration.is_over();
        let _ = record.worker.kill();
        let (pid, lease) = (record.worker.id(), record.lease);
        let may_hang = match ledger.bytes_on_disk(session) {
            0 => MayHang::Driver(ledger.gpus(lease)),
            _ => MayHang::Disk,
        };
        drop(ledger);
        // Gigabytes take the kernel a while to tear down; no other thread waits for that. The
        // accounts say free when the memory is. One that never ends must not keep the turn.
        self.await_end(pid, &may_hang, || self.turns.leave(session));
        let mut ledger = self.lock();
        let (mut crashed, mut end) = (false, why.clone().unwrap_or_default());
        let because = why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        if let Some(record) = ledger.sessions.get_mut(&session) {
            let status = record.worker.wait();
            // Its client learns of a crash only if it comes back, and the operator of the node
            // would not at all.
            if let Ok(status) = &status
                && status.signal().is_some_and(|signal| signal != libc::SIGKILL)
            {
                crashed = true;
                tracing::error!(session, lease, "the worker of session {session} has ended ({status})");
            }
            let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
            if crashed {
                end = format!("its worker has ended ({status})");
            }
            let why = why.unwrap_or_else(|| format!("its worker has ended ({status})"));
            let secret = record.secret;
            ledger.ended.note(session, secret, why);
        }
        let Some(record) = ledger.sessions.remove(&session) else { return };
        for (place, gpu) in ledger.gpus(record.lease).into_iter().enumerate() {
            ledger.meters[gpu].past_ns += record.gpu_ns_on(place);
        }
        ledger.books.close_session(record.lease, session);
        self.leave_planners(&mut ledger, record.lease, session);
        if let Some(lease) = ledger.leases.get_mut(&record.lease) {
            lease.past = sum(lease.past, record.counters.read());
            lease.failures += u64::from(crashed);
            // A clone without a child was no process.
            if !record.is_unclaimed {
                lease.processes.add(record.used(session, end));
            }
            let unused = lease.exports.leave(session);
            unused.iter().for_each(|export| ledger.unshare(record.lease, export));
        }
        ledger.vacate(record.lease);
        let (server_lease, tenant) = ledger.of_server(lease);
        drop(ledger);
        tracing::info!(session, lease, server_lease, tenant, "session {session} has ended{because}");
        self.turns.leave(session);
        self.session_ended.notify_all();
        self.memory_moved.notify_all();
    }

    /// A worker of this lease does not come back from its driver: the driver of the lease's GPUs
    /// hangs.
    pub(crate) fn driver_hangs(&self, lease: u64, what: &str) {
        let mut ledger = self.lock();
        let gpus = ledger.gpus(lease);
        if let Some(record) = ledger.leases.get_mut(&lease) {
            record.failures += 1;
        }
        drop(ledger);
        for gpu in gpus {
            self.faults.add(gpu as u32, what, Clearing::End);
        }
        self.tell_server();
    }

    /// Waits for the end of a worker that was killed; one that takes too long hangs in what it may
    /// be using.
    pub(crate) fn await_end(&self, pid: u32, may_hang: &MayHang, hangs: impl FnOnce()) {
        let patience = 2 * self.driver_patience;
        if !cuts::ends_within(pid, patience) {
            let what = format!("a worker was killed and did not end for {} s", patience.as_secs());
            match may_hang {
                MayHang::Driver(gpus) => {
                    let what = format!("its driver hangs: {what}");
                    gpus.iter().for_each(|&gpu| self.faults.add(gpu as u32, &what, Clearing::End));
                }
                MayHang::Disk => {
                    tracing::warn!(worker = pid, "the disk of the swap file does not answer: {what}");
                }
            }
            hangs();
            self.tell_server();
        }
        wait_without_reaping(pid);
    }
}

impl SessionRecord {
    /// A session whose worker, by this link, does not know yet what it serves.
    pub(super) fn new(
        lease: u64,
        once: Once,
        client: ClientOf,
        secret: SessionSecret,
        (worker, link, counters): (WorkerProcess, Arc<PacketSocket>, Arc<CounterPage>),
    ) -> SessionRecord {
        SessionRecord {
            lease,
            once,
            resumes: client.resumes,
            client,
            started: Instant::now(),
            worker,
            link,
            counters,
            secret,
            is_up: false,
            suspended: false,
            wants: false,
            residence: Residence::default(),
            churns: false,
            planned_on: None,
            activity: overcommit::Activity::default(),
            moves: 0,
            moving_us: 0,
            parted: false,
            is_awaited: false,
            is_unclaimed: false,
            peer_tokens: PeerTokens::default(),
            migration: Migration::default(),
        }
    }
}

#[cfg(test)]
impl Registry {
    /// A session with a worker that a test plays, which has this amount of memory.
    pub(crate) fn enter_for_test(
        &self,
        lease: u64,
        once: Once,
        (worker, link): (WorkerProcess, PacketSocket),
        memory: u64,
    ) -> u64 {
        let process = super::cuts::Process { number: 7, space: 1, watch: None };
        let client = ClientOf { process, peer: "a test".into(), resumes: true };
        let (link, counters) = (Arc::new(link), Arc::new(CounterPage::create().unwrap()));
        let served = (worker, Arc::clone(&link), counters);
        let record = SessionRecord::new(lease, once, client, SessionSecret(once.nonce.0), served);
        let session = self.enter_session(record).unwrap();
        self.start_of(lease, session, &link).unwrap();
        self.lock().books.take(lease, session, 0, memory, 0).unwrap();
        session
    }
}

impl Ledger {
    /// Whether the lease may have one more session.
    pub(super) fn has_room(&self, lease: u64) -> Result<(), SessionRefusal> {
        let sessions = self.sessions.values().filter(|s| s.lease == lease).count();
        if sessions >= SESSIONS_PER_LEASE_MAX {
            return Err(SessionRefusal::TooMany(sessions));
        }
        Ok(())
    }
}

/// Has what a worker writes to standard error become lines of the log, in a thread of its own.
pub(super) fn follow_output(worker: &WorkerProcess) -> io::Result<()> {
    let Some(errors) = worker.reader()? else { return Ok(()) };
    let pid = worker.id();
    let follow = move || output::follow(errors, |line| output::log(pid, line));
    std::thread::Builder::new().name("worker output".into()).spawn(follow).map(drop)
}

/// Blocks until the child has ended, and leaves its number taken.
fn wait_without_reaping(pid: u32) {
    // SAFETY: an all-zero `siginfo_t` is a valid place for the answer.
    let mut answer: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `answer` outlives the call, which writes to nothing else.
    unsafe { libc::waitid(libc::P_PID, pid, &mut answer, libc::WEXITED | libc::WNOWAIT) };
}
