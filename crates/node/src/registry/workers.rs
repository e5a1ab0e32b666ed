//! The worker of each session: its start, what it is given to serve, and its end, after which what
//! the session had is free again.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::Arc;
use std::time::Instant;

use sluice_api::health::Clearing;
use sluice_transport::tls::Keys;
use sluice_wire::handshake::SessionSecret;
use sluice_worker::counters::CounterPage;
use sluice_worker::link::{GpuPart, Link, ResumeStart, Start};

use super::openings::Opening;
use super::peers::PeerTokens;
use super::residence::Residence;
use super::secrets::random;
use super::{ClientOf, Ledger, Registry, SessionRecord, cuts, overcommit, sum};
use crate::output;
use crate::spawn::Inheritance;

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
    link: Arc<Link>,
    /// What protects the client's connection.
    keys: Option<Keys>,
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
        let (link, worker_link) = Link::pair().map_err(SessionRefusal::Worker)?;
        let counters = Arc::new(CounterPage::create().map_err(SessionRefusal::Worker)?);
        let inheritance = Inheritance {
            client,
            link: worker_link.into_fd(),
            counters: counters.file().try_clone().map_err(SessionRefusal::Worker)?,
        };
        let mut worker = self.spawner.spawn(inheritance).map_err(SessionRefusal::Worker)?;
        if let Some(stderr) = worker.stderr.take() {
            let follow = move || output::follow(stderr, |line| eprintln!("{line}"));
            if let Err(error) = std::thread::Builder::new().name("worker output".into()).spawn(follow) {
                let _ = worker.kill();
                let _ = worker.wait();
                return Err(SessionRefusal::Worker(error));
            }
        }
        let link = Arc::new(link);
        let record = SessionRecord {
            lease,
            once: opening.once,
            resumes: client_of.resumes,
            client: client_of,
            started: Instant::now(),
            worker,
            link: Arc::clone(&link),
            counters,
            secret: SessionSecret(random()),
            is_up: false,
            suspended: false,
            residence: Residence::default(),
            churns: false,
            planned_on: None,
            activity: overcommit::Activity::default(),
            moves: 0,
            moving_us: 0,
            parted: false,
            peer_tokens: PeerTokens::default(),
        };
        let session = self.enter_session(record)?;
        Ok(RunningSession { opening, lease, session, link, keys })
    }

    /// Serves a worker to its end, on the calling thread.
    pub(crate) fn serve_session(&self, running: RunningSession<'_>) {
        let RunningSession { opening, lease, session, link, keys } = running;
        let mut why = None;
        let started = self.start_worker(lease, session, &link, keys);
        drop(opening);
        if started.is_some() {
            why = self.serve_worker(lease, session, &link);
        }
        self.leave_session(session, why);
    }

    /// Books the session.
    fn enter_session(&self, mut record: SessionRecord) -> Result<u64, SessionRefusal> {
        let mut ledger = self.lock();
        if ledger.leases.get(&record.lease).is_none_or(|lease| lease.closing) {
            // The lease ended while the worker started.
            drop(ledger);
            let _ = record.worker.kill();
            let _ = record.worker.wait();
            return Err(SessionRefusal::Lease);
        }
        let session = ledger.next_id();
        ledger.books.open_session(record.lease, session);
        ledger.sessions.insert(session, record);
        Ok(session)
    }

    /// Tells a worker what it serves and lets it compete for the GPUs.
    fn start_worker(&self, lease: u64, session: u64, link: &Arc<Link>, tls: Option<Keys>) -> Option<()> {
        let start = Start { tls, ..self.start_of(lease, session, link)? };
        link.send(&start).ok()
    }

    fn start_of(&self, lease: u64, session: u64, link: &Arc<Link>) -> Option<Start> {
        let mut ledger = self.lock();
        let record = ledger.leases.get_mut(&lease)?;
        record.sessions_total += 1;
        let kernel_timeout_ms = record.kernel_timeout_ms;
        let linger_ms = u32::try_from(self.linger.as_millis()).unwrap_or(u32::MAX);
        let count = ledger.books.lease(lease)?.gpus.len();
        let reserves: Vec<u64> =
            (0..count).map(|gpu| ledger.books.fill_reserve(lease, session, gpu)).collect();
        let record = ledger.sessions.get(&session)?;
        let entry = ledger.books.lease(lease)?;
        let part = |(&gpu, reserve): (&usize, u64)| GpuPart {
            ordinal: gpu as u32,
            share_ppm: entry.ask.share_ppm,
            memory: entry.memory,
            reserve,
        };
        let (secret, attempt) = (record.secret.0, record.once.attempt);
        let resume = record.resumes.then_some(ResumeStart { secret, linger_ms, attempt });
        let start = Start {
            session,
            driver: self.inventory.driver.clone(),
            gpus: entry.gpus.iter().zip(reserves).map(part).collect(),
            kernel_timeout_ms,
            cache: self.cache.clone(),
            resume,
            tls: None,
            host_memory: self.host_memory,
            suspended: entry.suspended,
            overcommits: self.overcommits,
            driver_patience_ms: u64::try_from(self.driver_patience.as_millis()).unwrap_or(u64::MAX),
        };
        let suspended = entry.suspended;
        // With the table locked: the lease cannot be resized between.
        self.turns.join(session, lease, &entry.gpus, entry.weight(), Arc::clone(link));
        ledger.join_planners(lease, session, self.now_ns());
        if suspended {
            self.turns.set_suspended(session, true);
            ledger.sessions.get_mut(&session)?.residence = Residence::away();
        }
        Some(start)
    }

    /// Makes sure that the worker is gone and frees what it had.
    fn leave_session(&self, session: u64, why: Option<String>) {
        let mut ledger = self.lock();
        let Some(record) = ledger.sessions.get_mut(&session) else { return };
        let _ = record.worker.kill();
        let (pid, lease) = (record.worker.id(), record.lease);
        let gpus = ledger.gpus(lease);
        drop(ledger);
        // Gigabytes take the kernel a while to tear down; nobody else waits for that. The books say
        // free when the memory is. One that never ends must not keep the turn.
        self.await_end(pid, &gpus, || self.turns.leave(session));
        let mut ledger = self.lock();
        let (mut crashed, mut end) = (false, why.clone().unwrap_or_default());
        if let Some(record) = ledger.sessions.get_mut(&session) {
            let status = record.worker.wait();
            // Its client hears of a crash only if it comes back, and whoever runs the node would
            // not at all.
            if let Ok(status) = &status
                && status.signal().is_some_and(|signal| signal != libc::SIGKILL)
            {
                crashed = true;
                eprintln!("sluice node: the worker of session {session} has ended ({status})");
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
            ledger.meters[gpu].past_ns += record.counters.gpu_ns_on(place);
        }
        ledger.books.close_session(record.lease, session);
        self.leave_planners(&mut ledger, record.lease, session);
        if let Some(lease) = ledger.leases.get_mut(&record.lease) {
            lease.past = sum(lease.past, record.counters.read());
            lease.failures += u64::from(crashed);
            lease.processes.add(record.used(session, end));
            let unused = lease.exports.leave(session);
            unused.iter().for_each(|export| ledger.unshare(record.lease, export));
        }
        ledger.vacate(record.lease);
        drop(ledger);
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

    /// Waits for the end of a worker that was killed; one that takes too long hangs in its driver,
    /// with these GPUs.
    pub(crate) fn await_end(&self, pid: u32, gpus: &[usize], hangs: impl FnOnce()) {
        let patience = 2 * self.driver_patience;
        if !cuts::ends_within(pid, patience) {
            for &gpu in gpus {
                let what = format!(
                    "its driver hangs: a worker was killed and did not end for {} s",
                    patience.as_secs()
                );
                self.faults.add(gpu as u32, &what, Clearing::End);
            }
            hangs();
            self.tell_server();
        }
        wait_without_reaping(pid);
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

/// Blocks until the child has ended, and leaves its number taken.
fn wait_without_reaping(pid: u32) {
    // SAFETY: an all-zero `siginfo_t` is a valid place for the answer.
    let mut answer: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `answer` outlives the call, which writes to nothing else.
    unsafe { libc::waitid(libc::P_PID, pid, &mut answer, libc::WEXITED | libc::WNOWAIT) };
}
