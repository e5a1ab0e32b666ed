//! Leases and sessions as they live: the accounts, the workers, the turns and what was used, kept
//! in step.
//!
//! A lease lives as long as its holder, who comes back after a cut ([`cuts`]); a session as long as
//! its worker. Ending a lease kills its workers and waits for their end, so that what is reported
//! as free afterwards is free.

mod churn;
pub(crate) mod cuts;
mod idle;
pub(crate) mod joined;
mod leases;
pub(crate) mod migrate;
mod openings;
mod overcommit;
mod peers;
mod processes;
pub(crate) mod readings;
mod requests;
pub(crate) mod residence;
pub(crate) mod resize;
pub(crate) mod saved;
mod secrets;
mod shared;
mod status;
pub(crate) mod suspend;
mod workers;

use std::collections::BTreeMap;
use std::path::PathBuf;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_transport::token::NodeToken;
use sluice_wire::control::DeviceSnapshot;
use sluice_wire::handshake::{LeaseToken, Once, SessionSecret};
use sluice_worker_link::counters::{CounterPage, Counts};
use sluice_worker_link::link::{Driver, PacketSocket};

use crate::arbiter::{PPM, Pace, Waits};
use crate::clock::Clock;
use crate::config::NodeConfig;
use crate::exports::Exports;
use crate::health::Faults;
use crate::inventory::Inventory;
use crate::join::{Membership, Metered};
use crate::lease::{Books, Card, Overcommit};
use crate::peering::Peering;
use crate::registry::cuts::{Awaited, Ended, Holder, Process};
use crate::registry::migrate::{Migration, MovedLeases, Orders};
use crate::registry::openings::Openings;
use crate::registry::peers::PeerTokens;
use crate::registry::processes::PastProcesses;
use crate::registry::readings::PastLeases;
use crate::registry::residence::Residence;
use crate::registry::secrets::same;
use crate::registry::status::Meter;
use crate::residency::{Planner, SlicePolicy};
use crate::spawn::{Spawner, WorkerProcess};
use crate::strangers::Strangers;
use crate::swap_space::SwapSpace;
use crate::turns::Turns;
use crate::upgrade::Gates;

pub(crate) use self::leases::Granted;
pub(crate) use self::secrets::random;
#[cfg(test)]
pub(crate) use self::workers::MayHang;
pub(crate) use self::workers::SessionRefusal;

/// Everything alive on a node.
#[derive(Debug)]
pub(crate) struct Registry {
    inventory: Inventory,
    spawner: Spawner,
    /// Folder of the module cache, which all workers share.
    cache: Option<PathBuf>,
    /// Whether the cache has machine code too.
    stores_code: bool,
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
    /// Where memory of sessions goes that leaves GPUs.
    swap: SwapSpace,
    /// See [`crate::NodeConfig`].
    pub(crate) churn: Option<u64>,
    /// Leases that do nothing for this time are suspended, on a node without a server.
    idle_after: Option<Duration>,
    /// Memory of the GPUs is leased beyond what they have.
    pub(crate) overcommits: bool,
    peering: Arc<Peering>,
    /// Moves that the server wants.
    orders: Orders,
    /// Before what changes any of this.
    pub(crate) gates: Gates,
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
    /// For clients and holders of what is elsewhere now.
    moved: MovedLeases,
    openings: Openings,
    /// One per GPU where memory is overcommitted, else none.
    planners: Vec<Planner>,
    /// When each planner has to decide again at the latest.
    plan_at_ns: Vec<Option<u64>>,
    /// When the workers were last asked what keeps their sessions from moving, for a report.
    asked_movable_at: Option<Duration>,
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
    /// Whether it does something.
    idle: idle::Idle,
    /// No more sessions: the lease is about to end.
    closing: bool,
    /// Its session comes from another node, and is not here yet.
    arrives: bool,
    /// It is another node's now, which counts what it has used.
    has_moved: bool,
    /// When that was decided: it is not counted here from then on.
    left_at: Option<Duration>,
    /// Of the sessions that have ended.
    past: Counts,
    /// For GPUs of this node that it no longer has.
    past_waits: Waits,
    sessions_total: u64,
    /// Sessions whose worker crashed or whose driver hung.
    failures: u64,
    memory_peak: u64,
    /// How often memory of its sessions has left the GPUs, those that have ended included.
    memory_moves: u64,
    /// How long that and the ways back have taken, in microseconds.
    memory_moving_us: u64,
    /// What each of its processes used.
    processes: PastProcesses,
    /// Of all its GPUs together, in millionths of one.
    share_ppm: u64,
    /// For metrics.
    pace: readings::Pace,
    /// Of a lease that a server granted: what is recorded of it.
    metered: Option<Metered>,
    /// What is known of a lease that comes from another node, until it is certain that it is here.
    arriving: Option<Metered>,
    /// The connection that holds it, or held it last.
    holder: Option<Holder>,
    /// Who held it before this program ran, until that is waited for.
    awaited: Option<Awaited>,
    exports: Exports,
    /// The GPUs that its programs take theirs for, where they have moved since.
    shown: Option<Vec<DeviceSnapshot>>,
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
    worker: WorkerProcess,
    link: Arc<PacketSocket>,
    counters: Arc<CounterPage>,
    secret: SessionSecret,
    resumes: bool,
    /// The worker serves it, and has read all that was sent to it before.
    is_up: bool,
    /// It gets no GPU time, whatever becomes of its lease.
    suspended: bool,
    /// A call of its program waits for its memory.
    wants: bool,
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
    /// It was gone before this program ran, and the client is not waited for yet.
    is_awaited: bool,
    /// A clone for which no client has come yet.
    is_unclaimed: bool,
    peer_tokens: PeerTokens,
    migration: Migration,
}

impl Registry {
    pub(crate) fn new(
        config: &NodeConfig,
        inventory: Inventory,
        (spawner, swap): (Spawner, SwapSpace),
        membership: Option<Arc<Membership>>,
        clock: Arc<dyn Clock>,
    ) -> Registry {
        let turns = Turns::new(inventory.cards.len(), Pace::default());
        let mut books = Books::new(inventory.cards.clone());
        let mut planners = Vec::new();
        if let Some(overcommit) = overcommit_of(config, &swap) {
            books = books.with_overcommit(overcommit);
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
            moved: MovedLeases::default(),
            openings: Openings::default(),
            plan_at_ns: vec![None; planners.len()],
            planners,
            asked_movable_at: None,
        };
        Registry {
            inventory,
            spawner,
            cache: config.cache.clone(),
            stores_code: config.stores_code,
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
            swap,
            churn: config.churn,
            idle_after: config.idle_after.filter(|_| config.join.is_none()),
            overcommits: config.memory_overcommit_ppm > PPM,
            peering: Arc::new(config.peers.clone()),
            orders: Orders::default(),
            gates: Gates::default(),
        }
    }

    pub(crate) fn swap_file_bytes(&self) -> Option<u64> {
        self.swap.file_bytes()
    }

    pub(crate) fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// How long a lease has been held, as far as it is counted here, in milliseconds.
    fn held_ms(&self, record: &LeaseRecord) -> u64 {
        let until = record.left_at.unwrap_or_else(|| self.clock.running());
        until.saturating_sub(record.started).as_millis() as u64
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
    /// The server's number of it, and its tenant, if a server granted it.
    fn of_server(&self) -> (Option<u64>, Option<String>) {
        self.metered
            .as_ref()
            .map(Metered::name)
            .map_or((None, None), |name| (Some(name.lease), Some(name.tenant)))
    }

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
            idle: idle::Idle::new(started),
            closing: false,
            arrives: false,
            has_moved: false,
            left_at: None,
            past: Counts::default(),
            past_waits: Waits::default(),
            sessions_total: 0,
            failures: 0,
            memory_peak: 0,
            memory_moves: 0,
            memory_moving_us: 0,
            processes: PastProcesses::default(),
            share_ppm,
            pace: readings::Pace::default(),
            metered,
            arriving: None,
            holder: None,
            awaited: None,
            exports: Exports::default(),
            shown: None,
        }
    }
}

impl Ledger {
    /// The server's number of a lease, and its tenant, of one that a server granted.
    fn of_server(&self, lease: u64) -> (Option<u64>, Option<String>) {
        self.leases.get(&lease).map_or((None, None), LeaseRecord::of_server)
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// What all sessions of a lease have done, those that have ended included.
    fn counts(&self, lease: u64) -> Counts {
        let past = self.leases.get(&lease).map_or(Counts::default(), |record| record.past);
        let live = self.sessions.values().filter(|s| s.lease == lease).map(|s| s.counters.read());
        live.fold(past, sum)
    }

    /// The node's GPU for each GPU of the lease.
    fn gpus(&self, lease: u64) -> Vec<usize> {
        self.books.lease(lease).map_or(Vec::new(), |lease| lease.gpus.clone())
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

fn sum(a: Counts, b: Counts) -> Counts {
    Counts {
        kernels: a.kernels.saturating_add(b.kernels),
        bytes_in: a.bytes_in.saturating_add(b.bytes_in),
        bytes_out: a.bytes_out.saturating_add(b.bytes_out),
        gpu_ns: a.gpu_ns.saturating_add(b.gpu_ns),
        used_ns: a.used_ns.saturating_add(b.used_ns),
        movable: a.movable.saturating_add(b.movable),
        commands: a.commands.saturating_add(b.commands),
    }
}

/// Most bytes of host memory that hold memory of sessions.
pub(crate) fn swap_memory(config: &NodeConfig) -> u64 {
    config.swap_memory.unwrap_or_else(residence::half_of_host_memory)
}

/// How far a node leases memory beyond what its GPUs have, if it does.
pub(crate) fn overcommit_of(config: &NodeConfig, swap: &SwapSpace) -> Option<Overcommit> {
    let memory_ppm = config.memory_overcommit_ppm;
    (memory_ppm > PPM).then(|| Overcommit { memory_ppm, swap_memory: swap.capacity() })
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

/// Text from elsewhere, safe for a log: one line, bounded, no control characters.
pub(crate) fn one_line(text: &str) -> String {
    sluice_wire::text::printable(text, 400)
}
