//! What happens to the queue: the scheduler library's state beside the fleet, kept up to date
//! change by change.
//!
//! ```text
//!            Fleet::take_news                     Scheduler::cycle
//!  Fleet ───────────────────────▶ follow ──▶ jobs ────────────────▶ bind, evict, move
//!    ▲                                                                    │
//!    └── grant once the place is clear ◀── bound ◀── preempt, or move ◀───┘
//! ```
//! The scheduler counts what it decides as done. Here it takes time: a lease that has to make room
//! has a grace time, and its node says when it is over. What was bound to that room waits for it in
//! `bound`, and is granted when the fleet's state, which counts what is really there, says that its
//! place is clear. Nothing is taken twice for the same purpose meanwhile.
//!
//! An elastic lease starts once its minimum of tasks has a clear place; further ones are granted to
//! it while it runs. The scheduler uses its numbers of a job's tasks again and again, a lease has a
//! new one for each task of an attempt ([`Work::seated`] says which is which).
//!
//! The plan is never stored: it follows from the fleet, and is made anew from it at the start and
//! when tenants or nodes change in a way that the scheduler's state does not follow.

mod brief;
mod carry_out;
mod clearance;
mod enter;
mod estimate;
mod fenced;
mod follow;
mod live;
mod moves;
pub(crate) mod never;
mod pools;
mod queues;
mod resize;
mod sites;
mod trial;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sluice_api::lease::{LeaseId, LeaseState, Level};
use sluice_api::node::NodeId;
use sluice_api::tenant::TenantPath;
use sluice_sched::queues::{Blocked, Config, JobId, QueueError, Resource, Scheduler};
use sluice_sched::{Fragmentation, Placer, Policy, Request};

use crate::fleet::{Fleet, LeaseRecord};
use clearance::Clearance;
use enter::bare_request;
use estimate::Estimates;
use live::Due;
use pools::{PoolChanges, Pools};
use sites::{Atlas, Site};

pub(crate) use queues::check as check_quotas;
pub(crate) use trial::{Offered, Trial};

/// Rounds of the scheduler in one decision; what is left comes with the next one.
const ROUNDS_MAX: usize = 32;
/// Shares of GPUs are divided in steps of this number of thousandths.
const DIVISION_MILLI: u64 = 50;
/// How much use of late takes of a tenant's part of what others leave: who has had twice its part
/// gets nothing of it for a while.
const USAGE_PERCENT: u32 = 100;

/// Fewer queues than this are not worth giving up.
const IDLE_QUEUES_MIN: usize = 256;

#[derive(Debug)]
pub(crate) struct Plan {
    scheduler: Scheduler,
    atlas: Atlas,
    /// By the scheduler's numbers of nodes.
    sites: Vec<Site>,
    on_node: HashMap<NodeId, Vec<sluice_sched::NodeId>>,
    work: BTreeMap<LeaseId, Work>,
    leases: HashMap<JobId, LeaseId>,
    /// Have a place that they have not been granted yet.
    bound: BTreeSet<LeaseId>,
    /// Move to another place while they run, as soon as that is clear.
    due: BTreeMap<LeaseId, Due>,
    /// Are kept from the scheduler, and why.
    held_back: BTreeMap<LeaseId, String>,
    /// Leases that have not been notified why they wait.
    fresh: Vec<LeaseId>,
    /// Leases of each tenant and those below it that the scheduler knows.
    counts: HashMap<TenantPath, u32>,
    /// Queues without work are given up when there are this many queues.
    idle_queues_max: usize,
    /// Some tenant's limit is one of units, by which it may be kept off some GPUs.
    has_unit_limits: bool,
    /// Nothing is planned: the tenants' quotas contradict each other.
    broken: Option<QueueError>,
    estimates: Estimates,
    /// Of the last decision.
    now_ms: u64,
    /// What the pools are until one of them turns into something else.
    pools: Pools,
    /// What the pools turn into after that.
    pool_changes: PoolChanges,
    /// Of what tenants have used; none of it counts without.
    half_life_ms: Option<u64>,
}

/// A lease as the scheduler has it.
#[derive(Debug)]
struct Work {
    job: JobId,
    tenant: TenantPath,
    /// Bytes on each GPU; 0 for the share's part of the GPU on which it is placed.
    memory: u64,
    /// The share and the memory that its lease asked for when it was submitted.
    asked: (u32, u64),
    /// The order in which it was submitted.
    queued_at_ms: u64,
    /// The attempt for which its place was granted.
    granted: Option<u32>,
    /// The lease's numbers of its tasks that the scheduler's tasks were granted as. Those that are
    /// missing have no seat yet.
    seated: BTreeMap<u32, u32>,
}

/// The moment, and how long a program that has to make room may continue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) now_ms: u64,
    pub(crate) grace_ms: u64,
}

impl Plan {
    /// From the fleet alone. With a half-life what tenants have used of late counts, and use of so
    /// long ago half as much.
    pub(crate) fn new(fleet: &Fleet, now_ms: u64, half_life_ms: Option<u64>) -> Plan {
        let active =
            fleet.leases().map(|lease| &lease.tenant).filter(|tenant| fleet.tenants().contains(tenant));
        let (tree, broken) = match queues::tree(fleet.tenants(), active) {
            Ok(tree) => (tree, None),
            Err(error) => (Default::default(), Some(error)),
        };
        let usage_percent = if half_life_ms.is_some() { USAGE_PERCENT } else { 0 };
        let config = Config {
            gpu_unit_milli: DIVISION_MILLI,
            half_life: half_life_ms,
            usage_percent,
            ..Config::default()
        };
        let mut plan = Plan {
            scheduler: Scheduler::new(tree, Placer::new(policy(fleet)), config),
            atlas: Atlas::default(),
            sites: Vec::new(),
            on_node: HashMap::new(),
            work: BTreeMap::new(),
            leases: HashMap::new(),
            bound: BTreeSet::new(),
            due: BTreeMap::new(),
            held_back: BTreeMap::new(),
            fresh: Vec::new(),
            counts: HashMap::new(),
            has_unit_limits: fleet.tenants().have_units_limits(),
            idle_queues_max: IDLE_QUEUES_MIN,
            broken,
            estimates: Estimates::default(),
            now_ms,
            pools: Pools::at(fleet, now_ms),
            pool_changes: PoolChanges::default(),
            half_life_ms,
        };
        plan.scheduler.recall_use(now_ms, []);
        fleet.nodes().keys().for_each(|&node| plan.follow_node(fleet, node));
        for lease in fleet.leases().filter(|lease| keeps_its_place(lease)) {
            plan.adopt(fleet, lease);
        }
        // What has ended is in the fleet until it is written down.
        let waits = |lease: &&LeaseRecord| matches!(lease.state, LeaseState::Queued | LeaseState::Preempting);
        let mut waiting: Vec<&LeaseRecord> = fleet.leases().filter(waits).collect();
        waiting.sort_by_key(|lease| (lease.queued_at_ms, lease.id));
        waiting.into_iter().for_each(|lease| plan.submit(fleet, lease));
        plan
    }

    /// Decides what can be decided now and enters it in the fleet; true if there may be more to
    /// decide.
    pub(crate) fn decide(&mut self, fleet: &mut Fleet, clock: Clock) -> bool {
        let news = fleet.take_news();
        self.now_ms = clock.now_ms;
        let turned = self.pools.have_turned(clock.now_ms);
        if news.all || turned || self.broken.is_some() || self.meets_new_kinds(fleet, &news) {
            Pools::at(fleet, clock.now_ms).clear(fleet, clock);
            self.begin_anew(fleet);
        } else {
            if news.quotas || self.scheduler.queues().len() > self.idle_queues_max {
                self.follow_quotas(fleet);
                self.idle_queues_max = IDLE_QUEUES_MIN.max(2 * self.scheduler.queues().len());
            }
            if news.budgets {
                self.follow_budgets(fleet, clock);
                let running = fleet.leases().filter(|lease| keeps_its_place(lease));
                running.for_each(|lease| self.follow_tasks(fleet, lease));
            }
            news.nodes.iter().for_each(|&node| self.follow_node(fleet, node));
            news.leases.iter().for_each(|&lease| self.follow(fleet, lease));
            self.let_go(fleet);
            self.leave_fenced(fleet);
        }
        self.notice_overdue(fleet, clock);
        self.leave_faulty(fleet, clock);
        self.resize_waiting(fleet, clock);
        let mut more = true;
        for _ in 0..ROUNDS_MAX {
            let actions = self.scheduler.cycle(clock.now_ms);
            more = !actions.is_empty() || self.scheduler.has_deferred();
            self.carry_out(fleet, actions, clock);
            if !more {
                break;
            }
        }
        self.grant(fleet, clock);
        for lease in std::mem::take(&mut self.fresh) {
            if let Some(reason) = self.why(fleet, lease) {
                fleet.wait_because(lease, reason);
            }
        }
        more
    }

    /// What [`Plan::why`] says, in one word: one of a few.
    pub(crate) fn why_kind(&self, fleet: &Fleet, lease: &LeaseRecord) -> &'static str {
        if self.broken.is_some() {
            return "quotas";
        }
        if self.held_back.contains_key(&lease.id) {
            return match fleet.budgets().spent(&lease.tenant) {
                Some(_) => "budget",
                None if self.over_count(fleet, lease).is_some() => "limit",
                None => "no_gpu",
            };
        }
        if self.bound.contains(&lease.id) {
            return "clearing";
        }
        let blocked =
            self.work.get(&lease.id).and_then(|work| self.scheduler.why(work.job)?.blocked.as_ref());
        match blocked {
            Some(Blocked::Limit { .. }) => "limit",
            Some(Blocked::Quota { .. }) => "guarantee",
            Some(Blocked::Room { .. }) => "room",
            Some(Blocked::Topology { .. }) => "topology",
            None => "undecided",
        }
    }

    /// What a tenant, with those below it, may hold of what it asks for, as of the last decision,
    /// in thousandths of a GPU: its guarantee first, then its part of the rest by weight and use of
    /// late. None where nothing of it runs or waits.
    pub(crate) fn fair_share_milli(&self, tenant: &TenantPath) -> Option<u64> {
        let queue = self.scheduler.queues().find(tenant.as_str()).filter(|_| self.broken.is_none())?;
        self.counts.get(tenant).filter(|&&leases| leases > 0)?;
        Some(self.scheduler.fair_share(queue)[Resource::Gpu])
    }

    /// Why it waits, as of the last decision.
    pub(crate) fn why(&self, fleet: &Fleet, id: LeaseId) -> Option<String> {
        let lease = fleet.lease(id).filter(|lease| lease.waits())?;
        if let Some(error) = &self.broken {
            return Some(format!("nothing is planned: the tenants' quotas contradict each other: {error}"));
        }
        if let Some(reason) = self.held_back.get(&id) {
            return Some(reason.clone());
        }
        if self.bound.contains(&id)
            && let Some(other) = Clearance::of(fleet, lease, self.unseated(id)).in_the_way
        {
            return Some(other);
        }
        if !fleet.nodes().values().any(|node| node.takes_work()) {
            let mut nodes = fleet.nodes().values();
            let closed = nodes.find(|node| node.is_closed());
            let drained = fleet.nodes().values().find(|node| node.drain.is_some());
            return Some(match (closed, drained) {
                (Some(node), _) => format!("node {} takes no new leases: make room on its disk", node.name),
                (None, Some(node)) => format!("node {} is drained, and no other takes new leases", node.name),
                (None, None) => "no node is there; `sluice node --join` lends one".into(),
            });
        }
        let work = self.work.get(&id)?;
        let why = self.scheduler.why(work.job)?;
        let lacks_room = matches!(why.blocked, Some(Blocked::Room { .. } | Blocked::Topology { .. }));
        let fenced = if lacks_room { self.fenced(fleet, &lease.tenant, &lease.ask) } else { None };
        let overcommitted =
            if lacks_room { self.overcommitted(fleet, &lease.tenant, &lease.ask) } else { None };
        let all = [Some(why.describe(domain_name)), overcommitted, fenced];
        Some(all.into_iter().flatten().collect::<Vec<_>>().join("; "))
    }
}

/// What the scheduler's levels are called here.
fn domain_name(level: u8) -> String {
    Level::ALL.get(usize::from(level)).map_or("place", |level| level.name()).into()
}

/// Whether the scheduler counts it as running.
fn keeps_its_place(lease: &LeaseRecord) -> bool {
    matches!(lease.state, LeaseState::Granted | LeaseState::Running)
}

/// Placement that keeps room useful to what is usually asked for here; to a mix of sizes until that
/// is known.
fn policy(fleet: &Fleet) -> Policy {
    let asked = |lease: &LeaseRecord| bare_request(&lease.ask, 0);
    let usual = [(1, 1000), (1, 1000), (1, 500), (1, 250), (2, 1000), (4, 1000), (8, 1000)];
    let usual = usual.map(|(gpus, milli)| Request::cpu(0, 0).with_gpus(gpus, milli));
    // The share of what is asked for in units depends on the GPU.
    let asked = fleet.leases().map(asked).filter(|request| !request.by_units);
    let recent: Vec<Request> = usual.into_iter().chain(asked).collect();
    Policy::Fgd(Fragmentation::from_requests(&recent))
}

#[cfg(test)]
mod tests;
