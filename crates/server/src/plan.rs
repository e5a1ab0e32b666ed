//! What happens to the queue: the scheduler library's state beside the fleet, kept up to date change by change.
//!
//! ```text
//!            Fleet::take_news                     Scheduler::cycle
//!  Fleet ───────────────────────▶ follow ──▶ jobs ────────────────▶ bind, evict, move
//!    ▲                                                                    │
//!    └────── grant once the place is clear ◀── bound ◀── preempt ◀────────┘
//! ```
//! The scheduler counts what it decides as done. Here it takes time: a lease that has to make room has a grace time, and its node
//! says when it is over. What was bound to that room waits for it in `bound`, and is granted when the fleet's books, which count
//! what is really there, say that its place is clear. Nothing is taken twice for the same purpose meanwhile.
//!
//! An elastic lease starts once its minimum of tasks has a clear place; further ones are granted to it while it runs. The scheduler uses
//! its numbers of a job's tasks again and again, a lease has a new one for each task of an attempt ([`Work::seated`] says which is which).
//!
//! The plan is never stored: it follows from the fleet, and is made anew from it at the start and when tenants or nodes change in a
//! way that the scheduler's state does not follow.

mod estimate;
mod fenced;
pub(crate) mod never;
mod pools;
mod queues;
mod sites;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sluice_api::GPU_PPM;
use sluice_api::bill::BudgetEnd;
use sluice_api::lease::{LeaseId, LeaseState, Level, NewLease};
use sluice_api::node::NodeId;
use sluice_api::tenant::TenantPath;
use sluice_sched::queues::{
    Action, Amounts, Blocked, Config, Evicted, JobId, JobSpec, QueueError, QueueTree, Scheduler, Topology,
};
use sluice_sched::{Fragmentation, GpuSet, ModelSet, Placement, Placer, Policy, Request};

use crate::fleet::{Fleet, LeaseRecord, News, Seat};
use estimate::Estimates;
use pools::{Pools, Turns};
use sites::{Atlas, Site, TooMany};

pub(crate) use queues::tree;

/// Rounds of the scheduler in one decision; what is left comes with the next one.
const ROUNDS_MAX: usize = 32;
/// Shares of GPUs are divided in steps of so many thousandths.
const DIVISION_MILLI: u64 = 50;
/// How much use of late takes of a tenant's part of what others leave: who has had twice its part gets nothing of it for a while.
const USAGE_PERCENT: u32 = 100;

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
    /// Are kept from the scheduler, and why.
    held_back: BTreeMap<LeaseId, String>,
    /// Have not been told why they wait.
    fresh: Vec<LeaseId>,
    /// Leases of each tenant and those below it that the scheduler knows.
    counts: HashMap<TenantPath, u32>,
    /// Nothing is planned: the tenants' quotas contradict each other.
    broken: Option<QueueError>,
    estimates: Estimates,
    /// Of the last decision.
    now_ms: u64,
    /// What the pools are until one of them turns into something else.
    pools: Pools,
    /// And after that.
    turns: Turns,
    /// Of what tenants have used; none of it counts without.
    half_life_ms: Option<u64>,
}

/// A lease as the scheduler has it.
#[derive(Debug)]
struct Work {
    job: JobId,
    tenant: TenantPath,
    /// Bytes on each GPU.
    memory: u64,
    /// The order in which it was submitted.
    queued_at_ms: u64,
    /// The attempt for which its place was granted.
    granted: Option<u32>,
    /// The lease's numbers of its tasks that the scheduler's tasks were granted as. Those that are missing have no seat yet.
    seated: BTreeMap<u32, u32>,
}

/// The moment, and how long a program that has to make room may go on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) now_ms: u64,
    pub(crate) grace_ms: u64,
}

impl Plan {
    /// From the fleet alone. With a half-life what tenants have used of late counts, and use of so long ago half as much.
    pub(crate) fn new(fleet: &Fleet, now_ms: u64, half_life_ms: Option<u64>) -> Plan {
        let (tree, broken) = match queues::tree(fleet.tenants()) {
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
            held_back: BTreeMap::new(),
            fresh: Vec::new(),
            counts: HashMap::new(),
            broken,
            estimates: Estimates::default(),
            now_ms,
            pools: Pools::at(fleet, now_ms),
            turns: Turns::default(),
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

    /// Decides what can be decided now and enters it in the fleet; true if there may be more to decide.
    pub(crate) fn decide(&mut self, fleet: &mut Fleet, clock: Clock) -> bool {
        let news = fleet.take_news();
        self.now_ms = clock.now_ms;
        let turned = self.pools.have_turned(clock.now_ms);
        if news.all || turned || self.broken.is_some() || self.meets_new_kinds(fleet, &news) {
            Pools::at(fleet, clock.now_ms).clear(fleet, clock);
            self.begin_anew(fleet);
        } else {
            if news.quotas {
                self.follow_quotas(fleet);
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

    // From the fleet to the scheduler.

    fn follow_quotas(&mut self, fleet: &Fleet) {
        // Leases of a tenant that has got others below it go to the queue for what it asks for itself.
        let home = |tree: &QueueTree, queue: &str| queues::queue_of(tree, &queues::tenant_of(queue)?);
        let followed = queues::tree(fleet.tenants()).map(|tree| self.scheduler.set_queues(tree, home));
        if !matches!(followed, Ok(Ok(()))) {
            self.begin_anew(fleet);
        }
    }

    /// Made anew, it knows what tenants have used of late.
    fn begin_anew(&mut self, fleet: &Fleet) {
        let mut plan = Plan::new(fleet, self.now_ms, self.half_life_ms);
        plan.scheduler.keep_use_of(&self.scheduler);
        *self = plan;
    }

    /// Counts what these leases have held, and those that are in the fleet.
    pub(crate) fn recall_use(&mut self, fleet: &Fleet, past: &[LeaseRecord]) {
        let tree = self.scheduler.queues();
        // When a single task ended is not in the books: of a lease that goes on what it holds counts, of another the last it had.
        let held = |lease: &LeaseRecord| {
            let queue = queues::queue_of(tree, &lease.tenant);
            let until_ms = lease.ended_at_ms.unwrap_or(self.now_ms);
            let goes_on = lease.ended_at_ms.is_none();
            let seats = lease.seats.iter().rev().filter(|seat| !goes_on || !seat.over);
            let most = lease.ask.tasks_max.unwrap_or(lease.ask.tasks) as usize;
            let held = seats.take(most).filter_map(|seat| {
                let from_ms = seat.granted_at_ms.or(lease.granted_at_ms)?;
                Some((queue?, Amounts::of(&bare_request(&lease.ask, seat.memory), 1), (from_ms, until_ms)))
            });
            held.collect::<Vec<_>>()
        };
        let ended = past.iter().filter(|lease| lease.state == LeaseState::Ended);
        let past: Vec<_> = ended.chain(fleet.leases()).flat_map(held).collect();
        self.scheduler.recall_use(self.now_ms, past);
    }

    /// Keeps what waits under a spent budget from the scheduler, and preempts what runs if the budget says so.
    fn follow_budgets(&mut self, fleet: &mut Fleet, clock: Clock) {
        let spent = |lease: &&LeaseRecord| fleet.budgets().spent(&lease.tenant);
        let stopped = fleet.leases().filter(|lease| spent(lease).is_some());
        let stopped: Vec<LeaseId> = stopped.map(|lease| lease.id).collect();
        for id in stopped {
            let Some(lease) = fleet.lease(id) else { continue };
            let ends =
                fleet.budgets().spent(&lease.tenant).is_some_and(|(_, then)| then == BudgetEnd::Preempt);
            if lease.waits() {
                self.forget(id);
                self.submit(fleet, lease);
            } else if ends && keeps_its_place(lease) {
                fleet.preempt(id, "the budget is spent".into(), clock.now_ms + clock.grace_ms);
                // It waits from now on, as far as the scheduler goes.
                self.forget(id);
            }
        }
    }

    fn meets_new_kinds(&self, fleet: &Fleet, news: &News) -> bool {
        let mut nodes = news.nodes.iter().filter_map(|id| fleet.nodes().get(id));
        nodes.any(|node| !self.atlas.knows(fleet.pool_of(node), node))
    }

    fn follow_node(&mut self, fleet: &Fleet, id: NodeId) {
        let Some(node) = fleet.nodes().get(&id) else { return };
        if !self.on_node.contains_key(&id) {
            match self.atlas.sites(fleet.pool_of(node), node) {
                Ok(sites) => self.add_sites(id, sites),
                Err(TooMany) => {
                    eprintln!(
                        "sluice-server: {}: more than 64 kinds of GPUs or labels are here; it is not used",
                        node.name
                    );
                    return;
                }
            }
        }
        for &site in self.on_node.get(&id).into_iter().flatten() {
            // The scheduler knows all its sites, and their GPUs.
            let _ = self.scheduler.set_schedulable(site, node.takes_work());
            for (place, &gpu) in self.sites[site.index()].gpus.iter().enumerate() {
                let _ = self.scheduler.set_fenced(site, place, fleet.is_fenced(id, gpu));
            }
            self.scheduler.forgive(site);
        }
        fleet.refused_by(id).for_each(|lease| self.avoid_refusers(fleet, lease));
    }

    /// Has a lease look elsewhere than on nodes that have just refused it.
    fn avoid_refusers(&mut self, fleet: &Fleet, id: LeaseId) {
        let Some(job) = self.work.get(&id).map(|work| work.job) else { return };
        for node in fleet.refusers_of(id) {
            for &site in self.on_node.get(&node).into_iter().flatten() {
                self.scheduler.avoid(job, site);
            }
        }
    }

    fn add_sites(&mut self, node: NodeId, sites: Vec<(Site, sluice_sched::NodeSpec)>) {
        for (site, spec) in sites {
            if let Ok(id) = self.scheduler.add_node(spec) {
                self.on_node.entry(node).or_default().push(id);
                self.sites.push(site);
            }
        }
    }

    fn follow(&mut self, fleet: &Fleet, id: LeaseId) {
        let Some(lease) = fleet.lease(id).filter(|lease| lease.state != LeaseState::Ended) else {
            return self.forget(id);
        };
        let Some(work) = self.work.get_mut(&id) else {
            return if keeps_its_place(lease) { self.adopt(fleet, lease) } else { self.submit(fleet, lease) };
        };
        if work.queued_at_ms != lease.queued_at_ms {
            // It gave up its place in line.
            self.forget(id);
            self.submit(fleet, lease);
        } else if lease.waits() && work.granted.is_some_and(|attempt| attempt != lease.attempt) {
            // Its node refused it, or it was lost there.
            work.granted = None;
            work.seated.clear();
            self.avoid_refusers(fleet, id);
            self.lose_unseated(id);
            self.resize(fleet, lease);
        } else if keeps_its_place(lease) {
            self.follow_tasks(fleet, lease);
        }
    }

    /// Tells the scheduler which tasks of a lease that goes on have ended, and how many it is still to have.
    fn follow_tasks(&mut self, fleet: &Fleet, lease: &LeaseRecord) {
        let Some(work) = self.work.get_mut(&lease.id).filter(|work| work.granted.is_some()) else { return };
        let goes_on = |seat: &u32| lease.seats.get(*seat as usize).is_some_and(Seat::stays);
        let over: Vec<u32> =
            work.seated.iter().filter(|(_, seat)| !goes_on(seat)).map(|(&task, _)| task).collect();
        let job = work.job;
        for task in over {
            work.seated.remove(&task);
            self.scheduler.task_lost(self.now_ms, job, task);
        }
        self.avoid_refusers(fleet, lease.id);
        self.resize(fleet, lease);
    }

    /// Has the scheduler know how many tasks the lease is to have.
    fn resize(&mut self, fleet: &Fleet, lease: &LeaseRecord) {
        let Some(job) = self.work.get(&lease.id).map(|work| work.job) else { return };
        let (min, max) = self.tasks(fleet, lease);
        if self.scheduler.job(job).is_some_and(|job| job.running() > max) {
            // Some have a place that they do not get any more.
            self.lose_unseated(lease.id);
            self.bound.remove(&lease.id);
        }
        // What still runs was counted, so there is nothing to refuse.
        let _ = self.scheduler.resize(self.now_ms, job, min, max);
    }

    /// The fewest and the most tasks that a lease is to have now. One that runs gets no further ones while its tenant's budget is
    /// spent, or where no pool serves it any more.
    fn tasks(&self, fleet: &Fleet, lease: &LeaseRecord) -> (u32, u32) {
        let (min, max) = lease.tasks();
        let has = lease.seats.iter().filter(|seat| seat.stays()).count() as u32;
        let may_grow = || {
            fleet.budgets().spent(&lease.tenant).is_none()
                && self.request(fleet, &lease.tenant, &lease.ask).is_ok()
        };
        if keeps_its_place(lease) && max > has && !may_grow() { (min, has.max(min)) } else { (min, max) }
    }

    /// Tasks that have a place and no seat wait again, at the old place in line.
    fn lose_unseated(&mut self, id: LeaseId) {
        let Some(job) = self.work.get(&id).map(|work| work.job) else { return };
        for (task, _) in self.unseated(id) {
            self.scheduler.task_lost(self.now_ms, job, task);
        }
    }

    fn forget(&mut self, id: LeaseId) {
        self.held_back.remove(&id);
        self.bound.remove(&id);
        if let Some(work) = self.work.remove(&id) {
            self.scheduler.finish(work.job);
            self.leases.remove(&work.job);
            for tenant in work.tenant.lineage() {
                self.counts.entry(tenant).and_modify(|count| *count = count.saturating_sub(1));
            }
        }
    }

    fn submit(&mut self, fleet: &Fleet, lease: &LeaseRecord) {
        self.fresh.push(lease.id);
        if let Some(reason) = self.kept_out(fleet, lease) {
            self.held_back.insert(lease.id, reason);
            return;
        }
        self.held_back.remove(&lease.id);
        let (min, max) = lease.tasks();
        let request = self.request(fleet, &lease.tenant, &lease.ask);
        match request.and_then(|request| self.enter(lease, request, min, max)) {
            Ok(_) => self.avoid_refusers(fleet, lease.id),
            Err(reason) => drop(self.held_back.insert(lease.id, reason)),
        }
    }

    /// Takes over a lease that has its place.
    fn adopt(&mut self, fleet: &Fleet, lease: &LeaseRecord) {
        let memory = lease.seats.first().map_or(0, |seat| seat.memory);
        // It is where it is, whatever it would accept today; should it have to leave, it goes where it would accept.
        let bare = bare_request(&lease.ask, memory);
        let full = self.request(fleet, &lease.tenant, &lease.ask);
        let request = full.map_or(bare, |full| full.with_gpu_memory(bare.gpu_memory_mib));
        let (min, max) = self.tasks(fleet, lease);
        let Ok(job) = self.enter(lease, request, min, max) else { return };
        // Those that have notice make room, as far as the scheduler goes.
        let staying = (0..).zip(&lease.seats).filter(|(_, seat)| seat.stays());
        let seated: BTreeMap<u32, u32> = (0..).zip(staying.clone().map(|(number, _)| number)).collect();
        let placements =
            (0..).zip(staying).map(|(task, (_, seat))| Some((task, self.placement(seat, request)?)));
        let adopted = placements.collect::<Option<Vec<_>>>().is_some_and(|placements| {
            let started = lease.granted_at_ms.unwrap_or(0);
            self.scheduler.adopt(started, job, &placements, started).is_ok()
        });
        match self.work.get_mut(&lease.id) {
            Some(work) if adopted => (work.granted, work.seated) = (Some(lease.attempt), seated),
            // A node came back with other GPUs than it had: the lease ends there by itself.
            _ => self.forget(lease.id),
        }
    }

    fn enter(&mut self, lease: &LeaseRecord, request: Request, min: u32, max: u32) -> Result<JobId, String> {
        let tree = self.scheduler.queues();
        let queue = queues::queue_of(tree, &lease.tenant)
            .ok_or_else(|| format!("there is no tenant {} any more", lease.tenant))?;
        let spec = JobSpec {
            queue,
            request,
            tasks_min: min,
            tasks_max: max,
            priority: lease.priority(),
            preemptible: lease.is_preemptible(),
            topology: Topology { required: lease.ask.same.map(level), preferred: lease.ask.near.map(level) },
        };
        let job = self.scheduler.submit(spec).map_err(|error| error.to_string())?;
        self.leases.insert(job, lease.id);
        for tenant in lease.tenant.lineage() {
            *self.counts.entry(tenant).or_default() += 1;
        }
        let memory = match lease.ask.memory {
            0 => u64::from(request.gpu_memory_mib) << 20,
            bytes => bytes,
        };
        let (tenant, queued_at_ms) = (lease.tenant.clone(), lease.queued_at_ms);
        let seated = BTreeMap::new();
        self.work.insert(lease.id, Work { job, tenant, memory, queued_at_ms, granted: None, seated });
        Ok(job)
    }

    /// What the scheduler is asked for; the error says why no GPU that is known would do.
    fn request(&self, fleet: &Fleet, tenant: &TenantPath, ask: &NewLease) -> Result<Request, String> {
        if self.sites.is_empty() {
            // Nothing is known; with the first node the plan is made anew.
            return Ok(bare_request(ask, ask.memory));
        }
        let models = self.atlas.accepted(ask, |pool| self.pools.serve(fleet, pool, tenant, ask));
        if models == ModelSet::NONE {
            return Err(self.no_kind(fleet, tenant, ask));
        }
        self.request_of(ask, models)
    }

    fn request_of(&self, ask: &NewLease, models: ModelSet) -> Result<Request, String> {
        let request = bare_request(ask, self.memory_of(ask, models));
        Ok(request.with_models(models).with_labels(self.atlas.labels_of(ask)?))
    }

    /// Unless said, the same part of the memory of the smallest GPU that it accepts as of its compute: so much is free wherever the
    /// share is.
    fn memory_of(&self, ask: &NewLease, models: ModelSet) -> u64 {
        if ask.memory > 0 {
            return ask.memory;
        }
        let smallest = u128::from(self.atlas.smallest_memory(models));
        let part = smallest * u128::from(ask.share_ppm) / u128::from(GPU_PPM);
        (part as u64) & !((1 << 20) - 1)
    }

    /// What keeps a lease from the scheduler, which knows no such limits.
    fn kept_out(&self, fleet: &Fleet, lease: &LeaseRecord) -> Option<String> {
        let budget = fleet.budgets().spent(&lease.tenant);
        let budget =
            budget.map(|(tenant, _)| format!("budget: {tenant} has spent what it may in this period"));
        budget.or_else(|| self.over_count(fleet, lease))
    }

    /// The first limit on the number of leases, from the tenant upwards, that is reached.
    fn over_count(&self, fleet: &Fleet, lease: &LeaseRecord) -> Option<String> {
        lease.tenant.lineage().find_map(|tenant| {
            let limit = fleet.tenants().get(&tenant)?.leases_limit?;
            let count = self.counts.get(&tenant).copied().unwrap_or(0);
            (count >= limit).then(|| format!("limit: {tenant} has {count} leases, and may have {limit}"))
        })
    }

    /// Lets those in that a limit on the number of leases kept out, as far as there is room now.
    fn let_go(&mut self, fleet: &Fleet) {
        let held_back: Vec<LeaseId> = self.held_back.keys().copied().collect();
        for id in held_back {
            if let Some(lease) = fleet.lease(id).filter(|lease| self.kept_out(fleet, lease).is_none()) {
                self.submit(fleet, lease);
            }
        }
    }

    // From the scheduler to the fleet.

    fn carry_out(&mut self, fleet: &mut Fleet, actions: Vec<Action>, clock: Clock) {
        let lease_of = |plan: &Plan, job| plan.leases.get(&job).copied();
        // The tasks of each lease that have to leave, by the lease's numbers, and why. One notice says all of it.
        let mut leaving: BTreeMap<LeaseId, (Vec<u32>, String)> = BTreeMap::new();
        for action in actions {
            let (job, task, reason) = match action {
                Action::Bind { job, .. } => {
                    self.bound.extend(lease_of(self, job));
                    continue;
                }
                Action::Evict { job, task, because, .. } => (job, task, self.notice(fleet, because)),
                Action::Move { job, task, for_job, .. } => {
                    self.bound.extend(lease_of(self, job));
                    let other = lease_of(self, for_job).unwrap_or(0);
                    (job, task, format!("it goes on elsewhere, so that lease {other} fits in its place"))
                }
            };
            let Some(lease) = lease_of(self, job) else { continue };
            // One that was bound and not granted yet just goes on waiting.
            if let Some(seat) = self.work.get_mut(&lease).and_then(|work| work.seated.remove(&task)) {
                leaving.entry(lease).or_insert_with(|| (Vec::new(), reason)).0.push(seat);
            }
        }
        for (lease, (tasks, reason)) in leaving {
            self.give_notice(fleet, lease, &tasks, reason, clock);
        }
        // What has no place any more is not granted one.
        let has_place = |plan: &Plan, id| !plan.unseated(id).is_empty();
        let without: Vec<LeaseId> = self.bound.iter().copied().filter(|&id| !has_place(self, id)).collect();
        without.iter().for_each(|id| _ = self.bound.remove(id));
    }

    /// Tells a lease that holds its place to make room: these tasks of it, if the others are enough to go on.
    fn give_notice(&mut self, fleet: &mut Fleet, id: LeaseId, tasks: &[u32], reason: String, clock: Clock) {
        let (Some(work), Some(lease)) = (self.work.get_mut(&id), fleet.lease(id)) else { return };
        let at_ms = clock.now_ms + clock.grace_ms;
        if lease.state == LeaseState::Running && work.seated.len() as u32 >= lease.tasks().0 {
            return fleet.ask_back(id, tasks, reason, at_ms);
        }
        work.granted = None;
        work.seated.clear();
        if keeps_its_place(lease) {
            // Its program may have claimed it though nothing has been heard of that: its nodes' next reports say so.
            fleet.preempt(id, reason, at_ms);
        }
        // It starts anew, with all of its tasks; those that the scheduler left where they were have their places already.
        if let Some(lease) = fleet.lease(id) {
            self.resize(fleet, lease);
        }
        if !self.unseated(id).is_empty() {
            self.bound.insert(id);
        }
    }

    /// What a program that has to make room is told.
    fn notice(&self, fleet: &Fleet, because: Evicted) -> String {
        let name = |job: JobId| {
            let lease = self.leases.get(&job).and_then(|&id| fleet.lease(id));
            lease.map_or_else(
                || "another lease".into(),
                |lease| format!("lease {} of {}", lease.id, lease.tenant),
            )
        };
        match because {
            Evicted::Reclaimed { by, in_quota: false } => {
                format!("its tenant has more than its fair share, and {} is due to get it", name(by))
            }
            Evicted::Reclaimed { by, in_quota: true } => {
                format!(
                    "its tenant has more than it is guaranteed, and {} is within its own guarantee",
                    name(by)
                )
            }
            Evicted::Drained => "its node is being cleared".into(),
            Evicted::Preempted { by } => format!("{} has a higher priority", name(by)),
            Evicted::Stale { running, tasks_min } => {
                format!("only {running} of its {tasks_min} tasks have run for too long")
            }
        }
    }

    /// Grants what is bound and whose place is clear.
    fn grant(&mut self, fleet: &mut Fleet, clock: Clock) {
        for id in self.bound.iter().copied().collect::<Vec<_>>() {
            let Some(lease) = fleet.lease(id) else { continue };
            let places = self.unseated(id);
            let count = places.len();
            let min = match lease.state {
                LeaseState::Queued => self.tasks(fleet, lease).0 as usize,
                LeaseState::Running => 1,
                // It has to start, or to make room, before.
                _ => continue,
            };
            let clear = Clearance::of(fleet, lease, places);
            if count < min {
                self.bound.remove(&id);
            } else if clear.places.len() >= min {
                if clear.places.len() == count {
                    self.bound.remove(&id);
                }
                self.seat(fleet, id, clear.places, clock);
            }
        }
    }

    /// Grants places to a lease: its first ones, or further ones while it runs.
    fn seat(&mut self, fleet: &mut Fleet, id: LeaseId, places: Vec<(u32, Seat)>, clock: Clock) {
        let (Some(work), Some(lease)) = (self.work.get_mut(&id), fleet.lease(id)) else { return };
        let numbers = lease.seats.len() as u32..;
        let (tasks, seats): (Vec<u32>, Vec<Seat>) = places.into_iter().unzip();
        work.seated.extend(tasks.into_iter().zip(numbers));
        work.granted = Some(lease.attempt);
        if lease.waits() {
            fleet.grant(id, seats, clock.now_ms);
        } else {
            fleet.grow(id, seats, clock.now_ms);
        }
    }

    /// Tasks that the scheduler has bound, by its numbers, and that have not been granted: those of a lease that waits, or further
    /// ones of a lease that runs.
    fn unseated(&self, id: LeaseId) -> Vec<(u32, Seat)> {
        let Some((work, job)) =
            self.work.get(&id).and_then(|work| Some((work, self.scheduler.job(work.job)?)))
        else {
            return Vec::new();
        };
        let seat = |(task, placement): (u32, &Placement)| {
            let site = self.sites.get(placement.node.index())?;
            let gpus = placement.gpus.iter().filter_map(|gpu| site.gpus.get(gpu).copied()).collect();
            Some((task, Seat::new(site.node, gpus, work.memory)))
        };
        job.tasks().filter(|(task, _)| !work.seated.contains_key(task)).filter_map(seat).collect()
    }

    fn placement(&self, seat: &Seat, request: Request) -> Option<Placement> {
        let sites = self.on_node.get(&seat.node)?;
        sites.iter().find_map(|&node| {
            let here = &self.sites.get(node.index())?.gpus;
            let at = |gpu: &u32| here.iter().position(|other| other == gpu);
            let gpus = seat.gpus.iter().map(at).collect::<Option<Vec<usize>>>()?;
            Some(Placement { request, node, gpus: gpus.into_iter().fold(GpuSet::EMPTY, GpuSet::with) })
        })
    }

    // What is known about a lease that waits.

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
            let closed = fleet.nodes().values().find(|node| node.is_closed());
            return Some(closed.map_or_else(
                || "no node is there; `sluice node --join` lends one".into(),
                |node| format!("node {} takes no new leases: make room on its disk", node.name),
            ));
        }
        let work = self.work.get(&id)?;
        let why = self.scheduler.why(work.job)?;
        let lacks_room = matches!(why.blocked, Some(Blocked::Room { .. } | Blocked::Topology { .. }));
        let fenced = if lacks_room { self.fenced(fleet, &lease.tenant, &lease.ask) } else { None };
        Some(fenced.map_or_else(|| why.to_string(), |fenced| format!("{why}; {fenced}")))
    }
}

/// Whether the scheduler counts it as running.
fn keeps_its_place(lease: &LeaseRecord) -> bool {
    matches!(lease.state, LeaseState::Granted | LeaseState::Running)
}

/// Shares are rounded up to thousandths and memory to MiB: nothing is promised twice.
fn bare_request(ask: &NewLease, memory: u64) -> Request {
    let milli = ask.share_ppm.div_ceil(GPU_PPM / 1000);
    let gpus = u8::try_from(ask.gpus).unwrap_or(u8::MAX);
    let memory_mib = u32::try_from(memory.div_ceil(1 << 20)).unwrap_or(u32::MAX);
    Request::cpu(0, 0).with_gpus(gpus, milli as u16).with_gpu_memory(memory_mib)
}

fn level(level: Level) -> u8 {
    level as u8
}

/// Which places of a lease can be taken now.
struct Clearance {
    /// With the scheduler's numbers of their tasks.
    places: Vec<(u32, Seat)>,
    /// Why the first of the others cannot be taken yet.
    in_the_way: Option<String>,
}

impl Clearance {
    fn of(fleet: &Fleet, lease: &LeaseRecord, places: Vec<(u32, Seat)>) -> Clearance {
        // What the places before it take of each GPU.
        let mut wanted: HashMap<(NodeId, u32), (u64, u64)> = HashMap::new();
        let mut clearance = Clearance { places: Vec::new(), in_the_way: None };
        for (task, seat) in places {
            let sums = seat.gpus.iter().map(|&gpu| {
                let (ppm, memory) = wanted.get(&(seat.node, gpu)).copied().unwrap_or_default();
                (gpu, (ppm + u64::from(lease.ask.share_ppm), memory + seat.memory))
            });
            let sums: Vec<(u32, (u64, u64))> = sums.collect();
            let other = sums.iter().find_map(|&(gpu, more)| in_the_way(fleet, seat.node, gpu, more));
            if let Some(other) = other {
                clearance.in_the_way.get_or_insert(other);
                continue;
            }
            wanted.extend(sums.into_iter().map(|(gpu, sum)| ((seat.node, gpu), sum)));
            clearance.places.push((task, seat));
        }
        clearance
    }
}

/// Why so much compute and memory of a GPU cannot be taken yet, if so.
fn in_the_way(fleet: &Fleet, id: NodeId, gpu: u32, (ppm, memory): (u64, u64)) -> Option<String> {
    let Some(node) = fleet.nodes().get(&id) else { return Some("its node is gone".into()) };
    let taken = fleet.taken(id, gpu);
    let has = node.gpus.get(gpu as usize).map_or(0, |gpu| gpu.memory);
    if taken.ppm + ppm <= u64::from(GPU_PPM) && taken.memory + memory <= has {
        return None;
    }
    let is_noticed = |lease: &LeaseRecord| {
        let leaves = |seat: &Seat| lease.preempt_at_ms.is_some() || seat.leave_at_ms.is_some();
        lease.held().any(|(_, seat)| seat.node == id && seat.gpus.contains(&gpu) && leaves(seat))
    };
    let noticed = fleet.on_node(id).into_iter().find(|&other| fleet.lease(other).is_some_and(is_noticed));
    Some(match noticed {
        Some(other) => {
            format!("its place on {} is being cleared: lease {other} has been given notice", node.name)
        }
        None => format!("its place on {} is being cleared", node.name),
    })
}

/// Placement that keeps room useful to what is usually asked for here; to a mix of sizes until that is known.
fn policy(fleet: &Fleet) -> Policy {
    let asked = |lease: &LeaseRecord| bare_request(&lease.ask, 0);
    let usual = [(1, 1000), (1, 1000), (1, 500), (1, 250), (2, 1000), (4, 1000), (8, 1000)];
    let usual = usual.map(|(gpus, milli)| Request::cpu(0, 0).with_gpus(gpus, milli));
    let recent: Vec<Request> = usual.into_iter().chain(fleet.leases().map(asked)).collect();
    Policy::Fgd(Fragmentation::from_requests(&recent))
}

#[cfg(test)]
mod tests;
