//! Leases and sessions as they live: the books, the workers, the turns and what was used, kept in
//! step.
//!
//! A lease lives as long as its holder, who comes back after a cut ([`cuts`]); a session as long as
//! its worker. Ending a lease kills its workers and waits for their end, so that what is reported
//! as free afterwards is free.

mod churn;
pub(crate) mod cuts;
pub(crate) mod joined;
mod openings;
mod overcommit;
mod peers;
mod processes;
pub(crate) mod readings;
pub(crate) mod residence;
pub(crate) mod resize;
mod shared;
pub(crate) mod suspend;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Child;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_api::health::Clearing;
use sluice_cuda::CUdevice_attribute;
use sluice_transport::process::ProcessWatch;
use sluice_transport::tls::Keys;
use sluice_transport::token::NodeToken;
use sluice_wire::control::{DeviceSnapshot, GpuFree, GpuStatus, SessionStatus, Status, Usage};
use sluice_wire::handshake::{LeaseToken, Once, Peer, PeerToken, SessionSecret};
use sluice_worker::counters::{CounterPage, Counts};
use sluice_worker::link::{Driver, GpuPart, Link, Packet, ResumeStart, Start};

use crate::arbiter::{PPM, Pace};
use crate::clock::Clock;
use crate::config::NodeConfig;
use crate::exports::Exports;
use crate::health::Faults;
use crate::inventory::Inventory;
use crate::join::{Membership, Metered};
use crate::lease::{Ask, Books, Card, Lease, Overcommit};
use crate::output;
use crate::peering::Peering;
use crate::registry::cuts::{Ended, Hold, Holder, Holding, Process};
use crate::registry::joined::NoLease;
use crate::registry::openings::{Opening, Openings};
use crate::registry::peers::{Connecting, PeerTokens};
use crate::registry::processes::PastProcesses;
use crate::registry::readings::PastLeases;
use crate::registry::residence::Residence;
use crate::residency::{Planner, SlicePolicy};
use crate::spawn::{Inheritance, Spawner};
use crate::strangers::Strangers;
use crate::turns::Turns;

/// A lease as its owner learns of it.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub lease: u64,
    pub token: LeaseToken,
    /// Its devices in the client's order, with the lease's part of their memory.
    pub devices: Vec<DeviceSnapshot>,
}

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

const METER_EVERY: Duration = Duration::from_secs(1);
/// Readings of the meters from one usage record of a lease to the next.
const RECORD_EVERY: u64 = 10;

/// What workers get for their last words to clients, who have three seconds for taking what was
/// said before, and one for hanging up.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Most processes under one lease at a time.
const SESSIONS_PER_LEASE_MAX: usize = 256;

/// Everything alive on a node.
#[derive(Debug)]
pub(crate) struct Registry {
    inventory: Inventory,
    spawner: Spawner,
    /// Folder of the module cache, which all workers share.
    cache: Option<PathBuf>,
    pub(crate) turns: Turns,
    ledger: Mutex<Ledger>,
    session_ended: Condvar,
    /// Memory of a session has been moved, or cannot be.
    memory_moved: Condvar,
    /// A session waits for memory of an overcommitted GPU.
    plan_changed: Condvar,
    pub(crate) faults: Faults,
    past_leases: Mutex<PastLeases>,
    /// How long a lease and its sessions outlive a cut.
    pub(crate) linger: Duration,
    /// Where this node's process numbers mean what they say.
    pub(crate) process_space: u64,
    /// Where sessions of this machine's programs may begin without the network, as `unix:` has it.
    pub(crate) nearby: Option<String>,
    /// Of the server that this node lends through.
    membership: Option<Arc<Membership>>,
    /// Of those whom this node lends to.
    pub(crate) token: Option<NodeToken>,
    pub(crate) strangers: Strangers,
    clock: Arc<dyn Clock>,
    /// See [`crate::NodeConfig`].
    pub(crate) driver_patience: Duration,
    host_memory: u64,
    /// Most bytes of this machine's memory that hold memory of sessions.
    swap_memory: u64,
    /// See [`crate::NodeConfig`].
    pub(crate) churn: Option<u64>,
    /// Memory of the GPUs is leased beyond what they have.
    pub(crate) overcommits: bool,
    peering: Arc<Peering>,
}

#[derive(Debug)]
struct Ledger {
    books: Books,
    leases: BTreeMap<u64, LeaseRecord>,
    sessions: BTreeMap<u64, SessionRecord>,
    last_id: u64,
    /// One per GPU.
    meters: Vec<Meter>,
    /// For clients that come back too late.
    ended: Ended,
    openings: Openings,
    /// One per GPU where memory is overcommitted, else none.
    planners: Vec<Planner>,
    /// When each planner has to decide again at the latest.
    plan_at_ns: Vec<Option<u64>>,
}

/// How busy a GPU was in the last second.
#[derive(Clone, Copy, Debug, Default)]
struct Meter {
    /// GPU time of sessions that have ended.
    past_ns: u64,
    /// GPU time of all sessions at the last reading.
    read_ns: u64,
    busy_ppm: u32,
}

#[derive(Debug)]
struct LeaseRecord {
    token: LeaseToken,
    /// How it was asked for.
    once: Once,
    /// The program that it is for, for people to read.
    name: String,
    kernel_timeout_ms: u64,
    /// When, by the clock that is never set.
    started: Duration,
    /// No more sessions: the lease is about to end.
    closing: bool,
    /// Of the sessions that have ended.
    past: Counts,
    sessions_total: u64,
    /// Sessions whose worker crashed or whose driver hung.
    failures: u64,
    memory_peak: u64,
    /// What each of its processes used.
    processes: PastProcesses,
    /// Of all its GPUs together, in millionths of one.
    share_ppm: u64,
    /// For metrics.
    pace: readings::Pace,
    /// Of a lease that a server granted: what is recorded of it.
    metered: Option<Metered>,
    /// The connection that holds it, or held it last.
    holder: Option<Holder>,
    exports: Exports,
}

/// The client program of a session, as far as is known.
#[derive(Clone, Debug)]
pub(crate) struct ClientOf {
    pub(crate) process: Process,
    /// Where its connection comes from.
    pub(crate) peer: String,
    /// Whether it may come back after a cut.
    pub(crate) resumes: bool,
}

#[derive(Debug)]
struct SessionRecord {
    lease: u64,
    /// How it was asked for.
    once: Once,
    client: ClientOf,
    started: Instant,
    worker: Child,
    link: Arc<Link>,
    counters: Arc<CounterPage>,
    secret: SessionSecret,
    resumes: bool,
    /// The worker serves it, and has read all that it is told before.
    is_up: bool,
    /// It gets no GPU time, whatever becomes of its lease.
    suspended: bool,
    /// Where its memory is.
    residence: Residence,
    /// Its memory is to leave once and come back at once.
    churns: bool,
    /// The GPU whose planner moves its memory, if one does.
    planned_on: Option<usize>,
    /// Its counters when the planner last looked.
    activity: overcommit::Activity,
    /// How often its memory has left its GPUs, and how long that and the ways back have taken, in
    /// microseconds.
    moves: u64,
    moving_us: u64,
    /// The client's connection is gone.
    parted: bool,
    peer_tokens: PeerTokens,
}

impl Registry {
    pub(crate) fn new(
        config: &NodeConfig,
        inventory: Inventory,
        spawner: Spawner,
        membership: Option<Arc<Membership>>,
        clock: Arc<dyn Clock>,
    ) -> Registry {
        let turns = Turns::new(inventory.cards.len(), Pace::default());
        let swap_memory = config.swap_memory.unwrap_or_else(residence::half_of_host_memory);
        let mut books = Books::new(inventory.cards.clone());
        let mut planners = Vec::new();
        if config.memory_overcommit_ppm > PPM {
            let memory_ppm = config.memory_overcommit_ppm;
            books = books.with_overcommit(Overcommit { memory_ppm, swap_memory });
            let policy = SlicePolicy { max_wait_ns: nanos(config.max_wait), ..SlicePolicy::default() };
            let planner =
                |card: &Card| Planner::new(policy, card.memory, context_bytes(&inventory.driver, card));
            planners = inventory.cards.iter().map(planner).collect();
        }
        let meters = vec![Meter::default(); inventory.cards.len()];
        let ledger = Ledger {
            books,
            leases: BTreeMap::new(),
            sessions: BTreeMap::new(),
            last_id: 0,
            meters,
            ended: Ended::default(),
            openings: Openings::default(),
            plan_at_ns: vec![None; planners.len()],
            planners,
        };
        Registry {
            inventory,
            spawner,
            cache: config.cache.clone(),
            turns,
            ledger: Mutex::new(ledger),
            session_ended: Condvar::new(),
            memory_moved: Condvar::new(),
            plan_changed: Condvar::new(),
            faults: Faults::default(),
            past_leases: Mutex::default(),
            linger: config.linger,
            process_space: sluice_transport::process::space(),
            nearby: None,
            membership,
            token: config.token.clone(),
            strangers: Strangers::default(),
            clock,
            driver_patience: config.driver_patience,
            host_memory: config.host_memory,
            swap_memory,
            churn: config.churn,
            overcommits: config.memory_overcommit_ppm > PPM,
            peering: Arc::new(config.peers.clone()),
        }
    }

    pub(crate) fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// Enters a lease, unless it was entered for an earlier attempt, and has a connection hold it
    /// from its first moment on: which attempt was the last and which connection holds it goes
    /// together.
    pub(crate) fn grant(
        &self,
        once: Once,
        ask: Ask,
        kernel_timeout_ms: u64,
        name: String,
        holding: Option<Holding>,
    ) -> Result<(Granted, Option<Hold>), NoLease> {
        let mut ledger = self.lock();
        if let Some(lease) = ledger.opened_lease(once)? {
            return self.granted(&mut ledger, lease, holding);
        }
        let lease = ledger.next_id();
        let share_ppm = ask.share_ppm_in_all();
        ledger.books.grant(lease, ask)?;
        let started = self.clock.running();
        let record = LeaseRecord::new(once, name, kernel_timeout_ms, share_ppm, started, None);
        ledger.leases.insert(lease, record);
        self.granted(&mut ledger, lease, holding)
    }

    /// What the owner of a lease learns of it, and its hold from now on.
    fn granted(
        &self,
        ledger: &mut Ledger,
        lease: u64,
        holding: Option<Holding>,
    ) -> Result<(Granted, Option<Hold>), NoLease> {
        let entered = ledger.leases.get(&lease).zip(ledger.books.lease(lease));
        let (record, entry) = entered.ok_or(NoLease::Over)?;
        let device =
            |&gpu: &usize| DeviceSnapshot { memory: entry.memory, ..self.inventory.snapshots[gpu].clone() };
        let granted =
            Granted { lease, token: record.token, devices: entry.gpus.iter().map(device).collect() };
        Ok((granted, holding.and_then(|holding| ledger.hold(lease, holding))))
    }

    /// Kills the lease's workers, waits until they are gone, and strikes it out.
    pub(crate) fn end_lease(&self, lease: u64) -> Option<()> {
        let mut ledger = self.lock();
        ledger.leases.get_mut(&lease)?.closing = true;
        for session in ledger.sessions.values_mut().filter(|s| s.lease == lease) {
            // An error means that it has ended by itself.
            let _ = session.worker.kill();
        }
        while ledger.sessions.values().any(|s| s.lease == lease) {
            ledger = self.session_ended.wait(ledger).unwrap_or_else(PoisonError::into_inner);
        }
        let mut record = ledger.leases.remove(&lease)?;
        // What its sessions shared is counted under its own number.
        self.leave_planners(&mut ledger, lease, lease);
        let entry = ledger.books.end(lease)?;
        drop(ledger);
        let waited_ns = self.turns.waited_ns(&[lease]).get(&lease).copied().unwrap_or(0);
        self.turns.forget(lease, &entry.gpus);
        self.record_end(&mut record);
        self.keep_last(lease, &record, record.share_ppm, waited_ns);
        Some(())
    }

    /// Ends every lease. The programs are told: they would wait for a node that was only cut off.
    pub(crate) fn end_all(&self) {
        let mut ledger = self.lock();
        for session in ledger.sessions.values() {
            // A worker that hears nothing is killed with the others.
            let _ = session.link.send_now(&Packet::NodeEnds);
        }
        let deadline = Instant::now() + LAST_WORDS;
        while !ledger.sessions.is_empty() && Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            ledger = self.session_ended.wait_timeout(ledger, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(ledger);
        let leases: Vec<u64> = self.lock().leases.keys().copied().collect();
        for lease in leases {
            self.end_lease(lease);
        }
    }

    /// What is free of each GPU.
    pub(crate) fn free(&self) -> Vec<GpuFree> {
        let ledger = self.lock();
        let free = |(gpu, card): (usize, &Card)| GpuFree {
            name: card.name.clone(),
            share_ppm: PPM.saturating_sub(ledger.books.leased_ppm(gpu)) as u32,
            memory: ledger.books.free_memory(gpu),
        };
        ledger.books.cards().iter().enumerate().map(free).collect()
    }

    /// What a lease has used so far.
    pub(crate) fn usage(&self, lease: u64) -> Option<Usage> {
        let ledger = self.lock();
        let record = ledger.leases.get(&lease)?;
        let counts = ledger.counts(lease);
        Some(Usage {
            age_ms: self.since_ms(record.started),
            sessions: record.sessions_total,
            kernels: counts.kernels,
            bytes_in: counts.bytes_in,
            bytes_out: counts.bytes_out,
            busy_us: counts.used_ns / 1000,
            memory_peak: record.memory_peak,
        })
    }

    /// The lease that a token stands for.
    pub(crate) fn lease_of(&self, token: &LeaseToken) -> Option<u64> {
        self.lock().lease_of(token)
    }

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

    /// Answers a worker until it is gone, or its client is. The answer is why, where that is known.
    fn serve_worker(&self, lease: u64, session: u64, link: &Arc<Link>) -> Option<String> {
        let (mut why, connecting) = (None, Connecting::default());
        // Since when the client is away, and how its end is seen.
        let mut away: Option<(Instant, Option<Arc<ProcessWatch>>)> = None;
        loop {
            if let Some((since, watch)) = &away
                && !self.await_client(link, *since, watch.as_deref())
            {
                let linger = self.linger.as_secs();
                return Some(format!(
                    "its connection was cut, and its client did not come back within {linger} s"
                ));
            }
            let (packet, file) = match link.receive_fd::<Packet>() {
                Ok(Some(received)) => received,
                Ok(None) => return why,
                Err(error) => {
                    eprintln!("sluice node: session {session} ended: its worker sent nonsense: {error}");
                    return why;
                }
            };
            let answered = match packet {
                Packet::Want { gpu } => {
                    self.turns.want(session, gpu);
                    Ok(())
                }
                Packet::Done { gpu, used_ns, more } => {
                    self.turns.done(session, gpu, used_ns, more);
                    Ok(())
                }
                Packet::Take { gpu, bytes, .. } if self.overcommits => {
                    self.take_planned(lease, session, gpu, bytes);
                    Ok(())
                }
                Packet::TakeAtOnce { gpu, bytes } => {
                    let taken = self.take_at_once(lease, session, gpu, bytes);
                    link.send_now(&Packet::TakenAtOnce(taken))
                }
                Packet::Take { gpu, bytes, reserve } => {
                    let taken =
                        self.account(lease, |books| books.take(lease, session, gpu as usize, bytes, reserve));
                    // Before the answer, so that the client hears of it first.
                    let filled =
                        if taken.is_some() { self.fill_reserve(lease, session, gpu, link) } else { Ok(()) };
                    filled.and_then(|()| link.send_now(&Packet::Taken(taken)))
                }
                Packet::Spend { gpu, bytes } => {
                    self.account(lease, |books| books.spend(lease, session, gpu as usize, bytes));
                    self.fill_reserve(lease, session, gpu, link)
                }
                Packet::GiveBack { gpu, bytes } => {
                    self.give_back(lease, session, gpu, bytes);
                    Ok(())
                }
                Packet::CardFull { gpu, free } => {
                    self.card_is_full(lease, session, gpu, free);
                    Ok(())
                }
                Packet::QueryUsed { gpu } => link.send_now(&Packet::Used(self.used(lease, gpu))),
                Packet::Export(export) => {
                    link.send_now(&Packet::Exported(self.export(lease, session, export, file)))
                }
                Packet::Import(token) => self.import(lease, session, token, link),
                Packet::DropExport(token) => {
                    self.drop_export(lease, session, token);
                    Ok(())
                }
                Packet::PeerOffer => link.send_now(&self.offer_peer(session)),
                Packet::PeerConnect { number, node, session: other, token } => {
                    let peer = Peer { session: other, token: PeerToken(token) };
                    connecting.connect(&self.peering, link, number, &node, peer);
                    Ok(())
                }
                Packet::Failed(text) => {
                    let text = one_line(&text);
                    eprintln!("sluice node: session {session} ended: {text}");
                    why = Some(text);
                    Ok(())
                }
                Packet::Hangs(text) => {
                    let text = one_line(&text);
                    eprintln!("sluice node: session {session} ended: {text}");
                    self.driver_hangs(lease, &text);
                    // It may not get to its end by itself, and so say nothing more.
                    return Some(text);
                }
                Packet::Parted => {
                    away = Some((Instant::now(), self.client_parted(session)));
                    Ok(())
                }
                Packet::Resumed => {
                    away = None;
                    self.client_resumed(session);
                    Ok(())
                }
                Packet::Ready => {
                    self.session_is_up(session);
                    Ok(())
                }
                moved @ (Packet::MovedOut { .. }
                | Packet::NotMovedOut { .. }
                | Packet::MovedIn { .. }
                | Packet::NotMovedIn { .. }
                | Packet::Wanted) => {
                    self.memory_of(session, moved);
                    Ok(())
                }
                Packet::Taken(_)
                | Packet::TakenAtOnce(_)
                | Packet::Notice(_)
                | Packet::Reserved { .. }
                | Packet::Resized { .. }
                | Packet::Used(_)
                | Packet::Exported(_)
                | Packet::Imported(_)
                | Packet::PeerOffered { .. }
                | Packet::PeerConnected { .. }
                | Packet::Peer { .. }
                | Packet::Grant { .. }
                | Packet::Press { .. }
                | Packet::Recall { .. }
                | Packet::MoveOut { .. }
                | Packet::MoveIn { .. }
                | Packet::NodeEnds
                | Packet::Resume { .. } => Ok(()),
            };
            if answered.is_err() {
                return why;
            }
        }
    }

    /// Changes the books, after which more of a lease's memory may be used.
    fn account<R>(&self, lease: u64, change: impl FnOnce(&mut Books) -> R) -> R {
        let mut ledger = self.lock();
        let changed = change(&mut ledger.books);
        ledger.note_peak(lease);
        changed
    }

    /// Keeps more for a session, if there is more, and tells its worker.
    fn fill_reserve(&self, lease: u64, session: u64, gpu: u32, link: &Link) -> io::Result<()> {
        let bytes = self.lock().books.fill_reserve(lease, session, gpu as usize);
        if bytes == 0 { Ok(()) } else { link.send_now(&Packet::Reserved { gpu, bytes }) }
    }

    fn used(&self, lease: u64, gpu: u32) -> u64 {
        self.lock().books.lease(lease).map_or(0, |l| l.used(gpu as usize))
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

    /// Reads the meters once a second, for ever.
    pub(crate) fn meter(&self) {
        let mut last = Instant::now();
        for reading in 1_u64.. {
            std::thread::sleep(METER_EVERY);
            if reading.is_multiple_of(RECORD_EVERY) {
                self.record_usage();
            }
            let elapsed_ns = last.elapsed().as_nanos().max(1);
            last = Instant::now();
            let mut ledger = self.lock();
            for gpu in 0..ledger.meters.len() {
                let live_ns: u64 = ledger.gpu_ns_of_sessions(gpu);
                let meter = &mut ledger.meters[gpu];
                let total_ns = meter.past_ns + live_ns;
                let used_ns = u128::from(total_ns.saturating_sub(meter.read_ns));
                meter.busy_ppm = (used_ns * u128::from(PPM) / elapsed_ns).min(u128::from(PPM)) as u32;
                meter.read_ns = total_ns;
            }
            ledger.follow_pace(elapsed_ns);
            self.retry_moves(&mut ledger);
        }
    }

    /// What this node does now.
    pub(crate) fn status(&self) -> Status {
        let ledger = self.lock();
        let gpus = (0..self.inventory.cards.len()).map(|gpu| self.gpu_status(&ledger, gpu)).collect();
        Status { gpus, sessions: ledger.session_status(|_| true) }
    }

    /// The devices of a lease and what runs on them.
    pub(crate) fn lease_status(&self, lease: u64) -> Option<(Vec<DeviceSnapshot>, Vec<SessionStatus>)> {
        let ledger = self.lock();
        let entry = ledger.books.lease(lease)?;
        let device =
            |&gpu: &usize| DeviceSnapshot { memory: entry.memory, ..self.inventory.snapshots[gpu].clone() };
        let sessions = ledger.session_status(|of| of == lease);
        let each = sessions.iter().flat_map(|session| ledger.session_on_each(entry, session));
        Some((entry.gpus.iter().map(device).collect(), each.collect()))
    }

    fn gpu_status(&self, ledger: &Ledger, gpu: usize) -> GpuStatus {
        let snapshot = &self.inventory.snapshots[gpu];
        let on = |lease: u64| ledger.books.lease(lease).is_some_and(|l| l.gpus.contains(&gpu));
        let attribute = |attribute| snapshot.attribute(attribute).unwrap_or(0);
        GpuStatus {
            index: gpu as u32,
            name: snapshot.name.clone(),
            uuid: snapshot.uuid,
            memory: snapshot.memory,
            memory_leased: ledger.books.leased_memory(gpu),
            memory_used: ledger.books.used_memory(gpu),
            share_leased_ppm: ledger.books.leased_ppm(gpu) as u32,
            sessions: ledger.sessions.values().filter(|s| on(s.lease)).count() as u32,
            is_software: matches!(self.inventory.driver, Driver::Software { .. }),
            driver_version: snapshot.driver_version,
            compute_capability: (
                attribute(CUdevice_attribute::COMPUTE_CAPABILITY_MAJOR),
                attribute(CUdevice_attribute::COMPUTE_CAPABILITY_MINOR),
            ),
            busy_ppm: ledger.meters[gpu].busy_ppm,
        }
    }

    /// How long it is since then, in milliseconds.
    fn since_ms(&self, started: Duration) -> u64 {
        self.clock.running().saturating_sub(started).as_millis() as u64
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LeaseRecord {
    fn new(
        once: Once,
        name: String,
        kernel_timeout_ms: u64,
        share_ppm: u64,
        started: Duration,
        metered: Option<Metered>,
    ) -> LeaseRecord {
        LeaseRecord {
            token: LeaseToken(random()),
            once,
            name,
            kernel_timeout_ms,
            started,
            closing: false,
            past: Counts::default(),
            sessions_total: 0,
            failures: 0,
            memory_peak: 0,
            processes: PastProcesses::default(),
            share_ppm,
            pace: readings::Pace::default(),
            metered,
            holder: None,
            exports: Exports::default(),
        }
    }
}

impl Ledger {
    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn lease_of(&self, token: &LeaseToken) -> Option<u64> {
        // Every token is compared, and compared whole: the time says nothing about how much was
        // right.
        let mut found = None;
        for (&id, record) in &self.leases {
            if same(&record.token.0, &token.0) {
                found = Some(id);
            }
        }
        found
    }

    /// The lease under which this token may start sessions.
    fn open_lease_of(&self, token: &LeaseToken) -> Result<u64, SessionRefusal> {
        let lease = self.lease_of(token).ok_or(SessionRefusal::Lease)?;
        match self.leases.get(&lease).is_none_or(|record| record.closing) {
            true => Err(SessionRefusal::Lease),
            false => Ok(lease),
        }
    }

    /// Whether the lease may have one more session.
    fn has_room(&self, lease: u64) -> Result<(), SessionRefusal> {
        let sessions = self.sessions.values().filter(|s| s.lease == lease).count();
        if sessions >= SESSIONS_PER_LEASE_MAX {
            return Err(SessionRefusal::TooMany(sessions));
        }
        Ok(())
    }

    /// The sessions of the leases that are `wanted`.
    fn session_status(&self, wanted: impl Fn(u64) -> bool) -> Vec<SessionStatus> {
        let status = |(&session, record): (&u64, &SessionRecord)| {
            let (lease, entry) = (self.leases.get(&record.lease)?, self.books.lease(record.lease)?);
            let counts = record.counters.read();
            let memory_used = entry.used_by(session) + lease.exports.bytes_of(session);
            Some(SessionStatus {
                session,
                lease: record.lease,
                name: lease.name.clone(),
                process: record.client.process.number,
                peer: record.client.peer.clone(),
                gpu: entry.gpus.first().map_or(0, |&gpu| gpu as u32),
                share_ppm: entry.ask.share_ppm,
                limit_ppm: entry.ask.limit_ppm,
                memory: entry.memory,
                memory_used,
                memory_swapped: entry.swapped_by(session),
                memory_pinned: memory_used.saturating_sub(counts.movable),
                memory_state: self.memory_state(session, record),
                memory_moves: record.moves,
                memory_moving_us: record.moving_us,
                kernels: counts.kernels,
                bytes_in: counts.bytes_in,
                bytes_out: counts.bytes_out,
                busy_us: counts.used_ns / 1000,
                age_ms: record.started.elapsed().as_millis() as u64,
                parted: record.parted,
                suspended: self.session_is_suspended(record),
            })
        };
        self.sessions.iter().filter(|(_, record)| wanted(record.lease)).filter_map(status).collect()
    }

    /// What is to be said of where a session's memory is.
    fn memory_state(&self, session: u64, record: &SessionRecord) -> String {
        let state = record.residence.describe();
        match state.is_empty() && !self.session_is_suspended(record) && self.awaits_memory(session) {
            true => "waits for memory on the GPU".to_owned(),
            false => state,
        }
    }

    /// What all sessions of a lease have done, those that have ended included.
    fn counts(&self, lease: u64) -> Counts {
        let past = self.leases.get(&lease).map_or(Counts::default(), |record| record.past);
        let live = self.sessions.values().filter(|s| s.lease == lease).map(|s| s.counters.read());
        live.fold(past, sum)
    }

    /// What a session does on each GPU of its lease that it uses, counted within the lease; one
    /// that uses none yet is on the first.
    fn session_on_each(&self, entry: &Lease, session: &SessionStatus) -> Vec<SessionStatus> {
        let exported = |gpu| {
            self.leases.get(&session.lease).map_or(0, |lease| lease.exports.bytes_of_on(session.session, gpu))
        };
        let busy_ns =
            |gpu| self.sessions.get(&session.session).map_or(0, |record| record.counters.gpu_ns_on(gpu));
        let on = |gpu: usize| SessionStatus {
            gpu: gpu as u32,
            memory_used: entry.used_by_on(session.session, gpu) + exported(gpu),
            memory_swapped: entry.swapped_by_on(session.session, gpu),
            busy_us: busy_ns(gpu) / 1000,
            ..session.clone()
        };
        let mut each: Vec<_> = (0..entry.gpus.len()).map(on).collect();
        each.retain(|on| on.memory_used > 0 || on.busy_us > 0);
        if each.is_empty() {
            each.push(on(0));
        }
        each
    }

    /// The node's GPU for each GPU of the lease.
    fn gpus(&self, lease: u64) -> Vec<usize> {
        self.books.lease(lease).map_or(Vec::new(), |lease| lease.gpus.clone())
    }

    fn gpu_ns_of_sessions(&self, gpu: usize) -> u64 {
        let used = |session: &SessionRecord| {
            let place = self.gpus(session.lease).into_iter().position(|of_lease| of_lease == gpu)?;
            Some(session.counters.gpu_ns_on(place))
        };
        self.sessions.values().filter_map(used).sum()
    }

    fn memory_used(&self, lease: u64) -> u64 {
        self.books.lease(lease).map_or(0, |l| (0..l.gpus.len()).map(|gpu| l.used(gpu)).sum())
    }

    /// Notes how much memory a lease uses, if it was never more.
    fn note_peak(&mut self, lease: u64) {
        let used = self.memory_used(lease);
        if let Some(record) = self.leases.get_mut(&lease) {
            record.memory_peak = record.memory_peak.max(used);
        }
    }
}

/// Blocks until the child has ended, and leaves its number taken.
fn wait_without_reaping(pid: u32) {
    // SAFETY: an all-zero `siginfo_t` is a valid place for the answer.
    let mut answer: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `answer` outlives the call, which writes to nothing else.
    unsafe { libc::waitid(libc::P_PID, pid, &mut answer, libc::WEXITED | libc::WNOWAIT) };
}

fn sum(a: Counts, b: Counts) -> Counts {
    Counts {
        kernels: a.kernels + b.kernels,
        bytes_in: a.bytes_in + b.bytes_in,
        bytes_out: a.bytes_out + b.bytes_out,
        gpu_ns: a.gpu_ns + b.gpu_ns,
        used_ns: a.used_ns + b.used_ns,
        movable: a.movable + b.movable,
        commands: a.commands + b.commands,
    }
}

/// Bytes that a session's context takes of its GPU, generously: what a loaded driver takes is not
/// known before there is one. NVIDIA's takes half a GiB of an H200.
fn context_bytes(driver: &Driver, card: &Card) -> u64 {
    match driver {
        Driver::Library { .. } => (card.memory / 32).min(640 << 20),
        Driver::Software { .. } | Driver::Recording { .. } => 0,
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Compares secrets without telling by the duration how much was right.
fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.iter().zip(b).fold(0, |different, (x, y)| different | (x ^ y)) == 0
}

/// A secret nobody can guess.
pub(crate) fn random() -> [u8; 32] {
    let mut secret = [0_u8; 32];
    loop {
        // SAFETY: the pointer and length describe `secret`.
        let got = unsafe { libc::getrandom(secret.as_mut_ptr().cast(), secret.len(), 0) };
        // Requests of up to 256 bytes are never cut short once the pool is ready; EINTR can come
        // before.
        if got == secret.len() as isize {
            return secret;
        }
    }
}

/// Text from elsewhere, safe for a log: one line, bounded, no control characters.
pub(crate) fn one_line(text: &str) -> String {
    sluice_wire::text::printable(text, 400)
}
