//! What is true now: nodes, tenants, and leases that have not ended. Pure state; the time is an
//! argument.
//!
//! Every transition of a lease is a method here, and goes through [`Fleet::change`]: the sums of
//! the [`account`] follow, and the lease is marked, for the database (what changed is written
//! before anybody learns of it, see [`crate::server`]) and for the plan ([`crate::plan`]).

mod account;
mod automatic;
mod budgets;
mod drains;
mod events;
mod health;
mod lease;
mod moves;
mod refusals;
mod resize;
mod silence;
mod tenants;
mod times;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use sluice_api::GPU_PPM;
use sluice_api::bill::Budget;
use sluice_api::grant::Grant;
use sluice_api::invoice::BillTo;
use sluice_api::lease::{Lease, LeaseId, LeaseState, NewLease, Place};
use sluice_api::node::{Attempt, Drain, Gpu, Join, NodeId, Report};
use sluice_api::pool::{DEFAULT_POOL, Pool};
use sluice_api::tenant::{Quota, Tenant, TenantPath};
use sluice_api::usage::UsageRecord;

pub(crate) use account::{Holding, Taken};
pub(crate) use budgets::{Passed, Spent};
pub(crate) use events::Event;
pub(crate) use health::{CardId, CardRecord, Patience, WHY_MAX, printable};
pub(crate) use lease::{LeaseRecord, LinePlace, Seat, SeatMove, Size};
pub(crate) use moves::OrderToMove;
pub(crate) use resize::NoResize;
pub(crate) use silence::Incident;
pub(crate) use tenants::{Guarantee, Tenants, top};

use account::Account;
use budgets::Budgets;
use health::Health;
use silence::Silence;

/// A queued lease whose program has not asked for it for this long ends: its `sluice run` is gone.
const PATIENCE_MS: u64 = 20_000;

#[derive(Debug)]
pub(crate) struct Fleet {
    tenants: Tenants,
    budgets: Budgets,
    /// Of tenants that say whom their invoices are for.
    bill_to: BTreeMap<TenantPath, BillTo>,
    pools: BTreeMap<String, Pool>,
    nodes: BTreeMap<NodeId, Node>,
    /// The names of nodes that are gone for good.
    forgotten: BTreeMap<NodeId, String>,
    leases: BTreeMap<LeaseId, LeaseRecord>,
    /// Leases that a node has refused, as their programs say, and that are not placed there before
    /// it reports again; not stored.
    refusals: BTreeMap<NodeId, BTreeSet<LeaseId>>,
    account: Account,
    silence: Silence,
    health: Health,
    /// Of the server that this is in the memory of; nodes say in which they were answered last.
    pub(crate) leadership: u64,
    last_lease: LeaseId,
    last_node: NodeId,
    /// Counts changes of leases.
    revision: u64,
    /// Not in the database yet.
    changed: BTreeSet<LeaseId>,
    news: News,
    /// Not in the audit log yet.
    events: Vec<Event>,
}

/// What is new to the plan.
#[derive(Debug, Default)]
pub(crate) struct News {
    pub(crate) leases: BTreeSet<LeaseId>,
    /// Those whose reports began or ended, that have a GPU fenced or unfenced, or reported after
    /// they had refused a lease.
    pub(crate) nodes: BTreeSet<NodeId>,
    /// Tenants or their quotas have changed.
    pub(crate) quotas: bool,
    /// Budgets have changed or been spent.
    pub(crate) budgets: bool,
    /// A pool, or what a known node has is another thing now: the plan begins anew.
    pub(crate) all: bool,
}

/// A node and what it last said.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) gpus: Vec<Gpu>,
    /// `zone=a`, `rack=7`, ...: what requests select nodes by.
    pub(crate) labels: BTreeMap<String, String>,
    /// An operator wants it empty.
    pub(crate) drain: Option<Drain>,
    /// When it joined this process; not stored.
    joined_at_ms: u64,
    /// `None` until it has reported to this process.
    pub(crate) heard_at_ms: Option<u64>,
    pub(crate) report: Report,
    /// Until when its usage records go that were heard of; not stored.
    pub(crate) used_until_ms: Option<u64>,
    /// Milliseconds since then in which this server did not listen.
    deaf_ms: u64,
    /// As of the last look of [`Fleet::look_at_nodes`].
    online: bool,
    /// It is silent and did not say that it would be; not stored.
    missed: bool,
}

impl Node {
    pub(crate) fn new(id: NodeId, name: String, address: String, gpus: Vec<Gpu>) -> Node {
        Node {
            id,
            name,
            address,
            gpus,
            labels: BTreeMap::new(),
            drain: None,
            joined_at_ms: 0,
            heard_at_ms: None,
            report: Report::default(),
            used_until_ms: None,
            deaf_ms: 0,
            online: false,
            missed: false,
        }
    }

    /// Whether new leases may be placed here.
    pub(crate) fn takes_work(&self) -> bool {
        self.online && !self.report.closed && self.drain.is_none()
    }

    /// Whether it is there and takes none.
    pub(crate) fn is_closed(&self) -> bool {
        self.online && self.report.closed
    }
}

impl Fleet {
    pub(crate) fn new(
        tenants: Vec<Tenant>,
        pools: Vec<Pool>,
        nodes: Vec<Node>,
        leases: Vec<LeaseRecord>,
        last_lease: LeaseId,
        revision: u64,
        now_ms: u64,
    ) -> Fleet {
        let mut account = Account::default();
        leases.iter().for_each(|lease| account.add(lease));
        let heard = |lease: LeaseRecord| (lease.id, LeaseRecord { heard_at_ms: now_ms, ..lease });
        Fleet {
            budgets: Budgets::new(&tenants),
            bill_to: tenants
                .iter()
                .filter_map(|tenant| Some((tenant.path.clone(), tenant.bill_to.clone()?)))
                .collect(),
            tenants: tenants.into_iter().map(|tenant| (tenant.path, tenant.quota)).collect(),
            pools: pools.into_iter().map(|pool| (pool.name.clone(), pool)).collect(),
            last_node: nodes.iter().map(|node| node.id).max().unwrap_or(0),
            nodes: nodes.into_iter().map(|node| (node.id, node)).collect(),
            forgotten: BTreeMap::new(),
            leases: leases.into_iter().map(heard).collect(),
            refusals: BTreeMap::new(),
            account,
            silence: Silence::new(now_ms),
            health: Health::default(),
            leadership: 0,
            last_lease,
            revision,
            changed: BTreeSet::new(),
            news: News { all: true, ..News::default() },
            events: Vec::new(),
        }
    }

    /// Of the last change of a lease.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Takes over a change that another server has written.
    pub(crate) fn learn(&mut self, lease: LeaseRecord) {
        self.revision = self.revision.max(lease.revision);
        if let Some(before) = self.leases.remove(&lease.id) {
            self.account.remove(&before);
        }
        self.news.leases.insert(lease.id);
        if lease.state != LeaseState::Ended {
            self.account.add(&lease);
            self.leases.insert(lease.id, lease);
        }
    }

    /// What an earlier fleet knew of nodes and programs, which is not stored.
    pub(crate) fn hear_as(&mut self, earlier: &mut Fleet) {
        for (id, node) in &mut self.nodes {
            if let Some(known) = earlier.nodes.get_mut(id) {
                (node.heard_at_ms, node.deaf_ms) = (known.heard_at_ms, known.deaf_ms);
                (node.online, node.missed) = (known.online, known.missed);
                node.used_until_ms = known.used_until_ms;
                node.report = std::mem::take(&mut known.report);
            }
        }
        for (id, lease) in &mut self.leases {
            if let Some(known) = earlier.leases.get(id) {
                lease.heard_at_ms = known.heard_at_ms;
            }
        }
        self.refusals = std::mem::take(&mut earlier.refusals);
        self.silence.hear_as(&mut earlier.silence);
    }

    /// What was known to be spent: until that is added up anew it holds, whichever server leads.
    pub(crate) fn spend_as(&mut self, earlier: &Fleet) {
        self.budgets.hear_as(&earlier.budgets);
    }

    /// The leases that have changed since this was asked last; those that have ended leave the
    /// fleet.
    pub(crate) fn take_changed(&mut self) -> Vec<LeaseRecord> {
        let changed = std::mem::take(&mut self.changed);
        let records: Vec<LeaseRecord> =
            changed.iter().filter_map(|id| self.leases.get(id).cloned()).collect();
        for lease in records.iter().filter(|lease| lease.state == LeaseState::Ended) {
            self.leases.remove(&lease.id);
        }
        records
    }

    /// Whether there is something that [`Fleet::take_changed`] or [`Fleet::take_changed_cards`]
    /// would give.
    pub(crate) fn has_changed(&self) -> bool {
        !self.changed.is_empty() || self.has_changed_cards()
    }

    pub(crate) fn take_news(&mut self) -> News {
        std::mem::take(&mut self.news)
    }

    /// The one way in which a lease changes.
    fn change(&mut self, id: LeaseId, change: impl FnOnce(&mut LeaseRecord)) {
        let Some(lease) = self.leases.get_mut(&id) else { return };
        self.account.remove(lease);
        change(lease);
        if lease.state == LeaseState::Running && lease.notices().next().is_none() {
            // None of its tasks has to make room any more.
            lease.reason = None;
        }
        self.account.add(lease);
        self.revision += 1;
        lease.revision = self.revision;
        self.changed.insert(id);
        self.news.leases.insert(id);
    }

    // Tenants.

    pub(crate) fn tenants(&self) -> &Tenants {
        &self.tenants
    }

    /// The quota that it had before.
    pub(crate) fn set_quota(&mut self, tenant: TenantPath, quota: Quota) -> Option<Quota> {
        self.news.quotas = true;
        self.tenants.set(tenant, quota)
    }

    /// Looks at the tenants as they would be with these quotas; nothing is changed.
    pub(crate) fn trying_quotas<T>(
        &mut self,
        quotas: impl IntoIterator<Item = (TenantPath, Quota)>,
        look: impl FnOnce(&Tenants) -> T,
    ) -> T {
        self.tenants.trying(quotas, look)
    }

    /// It has no leases, and none are below it.
    pub(crate) fn remove_tenant(&mut self, tenant: &TenantPath) {
        self.news.quotas = true;
        self.set_budget(tenant.clone(), None);
        self.bill_to.remove(tenant);
        self.tenants.remove(tenant);
    }

    pub(crate) fn bill_to(&self, tenant: &TenantPath) -> Option<&BillTo> {
        self.bill_to.get(tenant)
    }

    pub(crate) fn set_bill_to(&mut self, tenant: TenantPath, bill_to: Option<BillTo>) {
        match bill_to {
            Some(bill_to) => drop(self.bill_to.insert(tenant, bill_to)),
            None => drop(self.bill_to.remove(&tenant)),
        }
    }

    pub(crate) fn budgets(&self) -> &Budgets {
        &self.budgets
    }

    /// The budget that it had before.
    pub(crate) fn set_budget(&mut self, tenant: TenantPath, budget: Option<Budget>) -> Option<Budget> {
        self.news.budgets = true;
        self.budgets.set(tenant, budget)
    }

    /// Takes over what has been spent, and says which budgets have passed one of their marks by
    /// that.
    pub(crate) fn set_spent(&mut self, spent: Vec<(TenantPath, Spent)>) -> Vec<Passed> {
        let passed = self.budgets.set_spent(spent);
        self.news.budgets |= !passed.is_empty();
        passed
    }

    // Pools.

    pub(crate) fn pools(&self) -> &BTreeMap<String, Pool> {
        &self.pools
    }

    /// The pool as it was declared before.
    pub(crate) fn set_pool(&mut self, pool: Pool) -> Option<Pool> {
        self.news.all = true;
        self.pools.insert(pool.name.clone(), pool)
    }

    /// Its GPUs are in other pools from now on, or in that of all others.
    pub(crate) fn remove_pool(&mut self, name: &str) {
        self.news.all |= self.pools.remove(name).is_some();
    }

    /// The name of a GPU's pool.
    pub(crate) fn pool_of(&self, node: &Node, gpu: u32) -> &str {
        self.declared_pool_of(node, gpu).map_or(DEFAULT_POOL, |pool| &pool.name)
    }

    fn declared_pool_of(&self, node: &Node, gpu: u32) -> Option<&Pool> {
        let model = node.gpus.get(gpu as usize).map_or("", |gpu| &gpu.name);
        let named = self.pools.values().find(|pool| pool.names(&node.name, gpu));
        named.or_else(|| self.pools.values().find(|pool| pool.claims(&node.name, &node.labels, model)))
    }

    /// The pools of a seat's GPUs: one, unless pools have been declared anew since.
    pub(crate) fn pools_of(&self, seat: &Seat) -> impl Iterator<Item = &str> {
        let node = self.nodes.get(&seat.node);
        seat.gpus.iter().map(move |&gpu| node.map_or(DEFAULT_POOL, |node| self.pool_of(node, gpu)))
    }

    /// Millionths of a GPU that may be leased in parts.
    pub(crate) fn promised_ppm(&self, node: &Node, gpu: u32) -> u32 {
        self.declared_pool_of(node, gpu).map_or(GPU_PPM, Pool::promised_ppm)
    }

    /// What a tenant and all below it hold.
    pub(crate) fn holding(&self, tenant: &TenantPath) -> Holding {
        self.account.holding(tenant)
    }

    // Nodes.

    pub(crate) fn nodes(&self) -> &BTreeMap<NodeId, Node> {
        &self.nodes
    }

    /// A node joins, or comes back: a name is a node.
    pub(crate) fn join(&mut self, join: Join, now_ms: u64) -> Node {
        let known = self.node_named(&join.name).map(|node| node.id);
        let forgotten = self.forgotten.iter().find(|(_, name)| **name == join.name).map(|(id, _)| *id);
        let id = known.or(forgotten).unwrap_or_else(|| {
            self.last_node += 1;
            self.last_node
        });
        let mut node = Node::new(id, join.name, join.address, join.gpus);
        node.labels = join.labels;
        node.joined_at_ms = now_ms;
        let before = self.nodes.get(&id);
        node.drain = before.and_then(|before| before.drain.clone());
        node.missed = before.is_some_and(|before| before.missed);
        self.forgotten.remove(&id);
        let before = self.nodes.insert(id, node.clone());
        let other = |before: &Node| before.gpus != node.gpus || before.labels != node.labels;
        self.news.all |= before.as_ref().is_some_and(other);
        self.news.nodes.insert(id);
        node
    }

    /// Takes what a node says and answers with the attempts that it should not have.
    pub(crate) fn report(&mut self, node: NodeId, report: Report, now_ms: u64) -> Option<Vec<Attempt>> {
        let held: BTreeSet<Attempt> = report.leases.iter().copied().collect();
        // Perhaps nothing else was ever heard of them.
        let last = report.usage.iter().filter(|record| record.last);
        let ended: BTreeSet<Attempt> = last.map(UsageRecord::attempt_of).collect();
        let entry = self.nodes.get_mut(&node)?;
        if entry.heard_at_ms.is_some() && report.sequence <= entry.report.sequence {
            return Some(Vec::new());
        }
        (entry.heard_at_ms, entry.deaf_ms) = (Some(now_ms), 0);
        let used_until_ms = report.usage.iter().map(|record| record.until_ms).max();
        entry.used_until_ms = entry.used_until_ms.max(used_until_ms);
        // An older one may have been in flight for long, from before what an earlier leader has
        // heard since.
        let is_current = report.leadership.is_none_or(|leadership| leadership == self.leadership);
        let comes_back = !entry.online;
        let forgives = self.refusals.remove(&node).is_some();
        let turns = entry.report.closed != report.closed;
        if comes_back || forgives || turns {
            entry.online = true;
            self.news.nodes.insert(node);
        }
        if std::mem::take(&mut entry.missed) {
            self.silence.reports_again(&entry.name);
        }
        let resized = report.resized.clone();
        let (moved, arriving) = (report.moved.clone(), report.arriving.iter().copied().collect());
        let mut idle = report.idle;
        // They are looked up by their attempts.
        idle.sort_by_key(|idle| idle.attempt);
        entry.report = Report {
            idle,
            usage: Vec::new(),
            faults: Vec::new(),
            resized: Vec::new(),
            arriving: Vec::new(),
            moved: Vec::new(),
            ..report
        };
        self.settle_resizes(node, &resized);
        self.settle_moves(node, &moved);
        if is_current {
            self.compare_moving(node, &held, &arriving, now_ms);
        }
        for id in self.account.on_node(node) {
            self.compare(id, node, (&held, &arriving, &ended), is_current, now_ms);
        }
        let has = held.iter().chain(&arriving);
        let end: Vec<Attempt> =
            has.filter(|attempt| !self.may_stay(attempt, node, now_ms)).copied().collect();
        if comes_back {
            self.count_ended(end.len());
        }
        Some(end)
    }

    /// Takes over what a node says about the tasks of one lease that are there.
    fn compare(
        &mut self,
        id: LeaseId,
        node: NodeId,
        (held, arriving, ended): (&BTreeSet<Attempt>, &BTreeSet<Attempt>, &BTreeSet<Attempt>),
        is_current: bool,
        now_ms: u64,
    ) {
        let Some(lease) = self.leases.get(&id) else { return };
        let mut seats = lease.seats.clone();
        for (task, seat) in seats.iter_mut().enumerate().filter(|(_, seat)| seat.node == node) {
            if let Some(SeatMove::Sent { has_left, .. }) = &mut seat.moving {
                // It may be on the other node, which says so.
                *has_left |= is_current && !held.contains(&lease.attempt_of(task));
                continue;
            }
            let has = held.contains(&lease.attempt_of(task));
            let is_arriving = arriving.contains(&lease.attempt_of(task));
            if is_current && seat.moving.as_mut().is_some_and(|moving| moving.is_awaited(has, is_arriving)) {
                continue;
            }
            seat.claimed |= !seat.over && (has || ended.contains(&lease.attempt_of(task)));
            let has_notice = lease.state == LeaseState::Preempting || seat.leave_at_ms.is_some();
            seat.over |= is_current && !has && (seat.claimed || has_notice);
        }
        if seats != lease.seats {
            self.change(id, |lease| lease.seats = seats);
        }
        self.follow_seats(id, now_ms);
    }

    /// What its tasks make of a lease.
    fn follow_seats(&mut self, id: LeaseId, now_ms: u64) {
        let Some(lease) = self.leases.get(&id) else { return };
        let claimed = lease.seats.iter().all(|seat| seat.claimed || seat.over);
        let over = lease.seats.iter().all(|seat| seat.over);
        match lease.state {
            LeaseState::Preempting if over => self.requeue(id, now_ms),
            LeaseState::Granted | LeaseState::Running if over => self.end(id, "its program ended", now_ms),
            LeaseState::Granted if claimed => self.change(id, |lease| lease.state = LeaseState::Running),
            _ => {}
        }
    }

    fn may_stay(&self, attempt: &Attempt, node: NodeId, now_ms: u64) -> bool {
        let is_there = |seat: &Seat| {
            let is_its_node = seat.node == node || seat.target().is_some_and(|(target, _)| target == node);
            // The GPUs of one that is over may be another's already.
            is_its_node && !seat.over && seat.leave_at_ms.is_none_or(|at| now_ms < at)
        };
        self.leases.get(&attempt.lease).is_some_and(|lease| {
            lease.attempt == attempt.attempt
                && lease.seats.get(attempt.task as usize).is_some_and(is_there)
                && lease.holds()
                && lease.preempt_at_ms.is_none_or(|at| now_ms < at)
        })
    }

    /// Leases that hold parts of its GPUs.
    pub(crate) fn on_node(&self, node: NodeId) -> Vec<LeaseId> {
        self.account.on_node(node)
    }

    /// What leases hold of one GPU.
    pub(crate) fn taken(&self, node: NodeId, gpu: u32) -> Taken {
        self.account.taken(node, gpu)
    }

    // Leases.

    pub(crate) fn lease(&self, id: LeaseId) -> Option<&LeaseRecord> {
        self.leases.get(&id)
    }

    /// Those that a token has asked for, and that have not ended.
    pub(crate) fn leases_of_token(&self, token: &str) -> Vec<(LeaseId, TenantPath)> {
        let of =
            self.leases.values().filter(|lease| lease.token == token && lease.state != LeaseState::Ended);
        of.map(|lease| (lease.id, lease.tenant.clone())).collect()
    }

    /// In the order of their ids.
    pub(crate) fn leases(&self) -> impl Iterator<Item = &LeaseRecord> {
        self.leases.values()
    }

    pub(crate) fn request(
        &mut self,
        tenant: TenantPath,
        ask: NewLease,
        token: String,
        now_ms: u64,
    ) -> LeaseId {
        self.last_lease += 1;
        let id = self.last_lease;
        let lease = LeaseRecord::requested(id, tenant, ask, token, now_ms);
        self.account.add(&lease);
        self.leases.insert(id, lease);
        self.change(id, |_| {});
        id
    }

    /// Says who asked for a lease, as people know them.
    pub(crate) fn set_person(&mut self, id: LeaseId, person: String) {
        self.change(id, |lease| lease.person = person);
    }

    /// Its program asked for it.
    pub(crate) fn hear(&mut self, id: LeaseId, now_ms: u64) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.heard_at_ms = now_ms;
        }
    }

    /// A node says something that is not taken: it is there as it was before.
    pub(crate) fn hear_of_node(&mut self, node: NodeId, now_ms: u64) {
        if let Some(node) = self.nodes.get_mut(&node).filter(|node| node.heard_at_ms.is_some()) {
            (node.heard_at_ms, node.deaf_ms) = (Some(now_ms), 0);
        }
    }

    /// Says why a queued lease waits. What is known already is no change, which would have the plan
    /// look at it again.
    pub(crate) fn wait_because(&mut self, id: LeaseId, reason: String) {
        let waits = |lease: &LeaseRecord| lease.waits() && lease.reason.as_ref() != Some(&reason);
        if self.leases.get(&id).is_some_and(waits) {
            self.change(id, |lease| lease.reason = Some(reason));
        }
    }

    pub(crate) fn grant(&mut self, id: LeaseId, seats: Vec<Seat>, now_ms: u64) {
        self.tell(id, "lease.granted", json!({ "places": self.places(0, &seats) }));
        self.change(id, |lease| {
            lease.state = LeaseState::Granted;
            lease.seats = seats;
            lease.granted_at_ms = Some(now_ms);
            lease.reason = None;
        });
    }

    /// Gives it notice: it ends at that moment, or before.
    pub(crate) fn preempt(&mut self, id: LeaseId, reason: String, at_ms: u64) {
        self.preempt_for(None, id, reason, at_ms);
    }

    /// The same for the sake of another lease.
    pub(crate) fn preempt_for(&mut self, taker: Option<LeaseId>, id: LeaseId, reason: String, at_ms: u64) {
        self.tell(id, "lease.preempted", events::notice(&reason, at_ms, taker));
        self.change(id, |lease| {
            lease.state = LeaseState::Preempting;
            lease.reason = Some(reason);
            lease.preempt_at_ms = Some(at_ms);
        });
    }

    /// Gives it further tasks, while it runs.
    pub(crate) fn grow(&mut self, id: LeaseId, seats: Vec<Seat>, now_ms: u64) {
        let first = self.leases.get(&id).map_or(0, |lease| lease.seats.len());
        self.tell(id, "lease.grown", json!({ "places": self.places(first, &seats) }));
        let granted = seats.into_iter().map(|seat| Seat { granted_at_ms: Some(now_ms), ..seat });
        self.change(id, |lease| lease.seats.extend(granted));
    }

    /// Gives some of its tasks notice, while the others continue: they end at that moment, or
    /// before.
    pub(crate) fn ask_back(&mut self, id: LeaseId, tasks: &[u32], reason: String, at_ms: u64) {
        self.ask_back_for(None, id, tasks, reason, at_ms);
    }

    /// The same for the sake of another lease.
    pub(crate) fn ask_back_for(
        &mut self,
        taker: Option<LeaseId>,
        id: LeaseId,
        tasks: &[u32],
        reason: String,
        at_ms: u64,
    ) {
        let mut detail = events::notice(&reason, at_ms, taker);
        detail["tasks"] = tasks.into();
        self.tell(id, "lease.preempted", detail);
        self.change(id, |lease| {
            lease.reason = Some(reason);
            for &task in tasks {
                if let Some(seat) = lease.seats.get_mut(task as usize).filter(|seat| !seat.over) {
                    seat.leave_at_ms = Some(seat.leave_at_ms.map_or(at_ms, |before| before.min(at_ms)));
                }
            }
        });
    }

    /// Gives notice to those of its tasks that `leave`, where the others are enough to continue,
    /// and else to the whole; true if to the whole.
    fn clear_of(&mut self, id: LeaseId, leave: impl Fn(&Seat) -> bool, reason: String, at_ms: u64) -> bool {
        let Some(lease) = self.leases.get(&id) else { return false };
        let tasks = lease.held_tasks(leave);
        if tasks.is_empty() {
            return false;
        }
        let whole = !lease.does_without(&tasks);
        if whole {
            self.preempt(id, reason, at_ms);
        } else {
            self.ask_back(id, &tasks, reason, at_ms);
        }
        whole
    }

    /// Back into the queue at its old place, as a new attempt.
    pub(crate) fn requeue(&mut self, id: LeaseId, now_ms: u64) {
        self.change(id, |lease| {
            lease.state = LeaseState::Queued;
            lease.attempt += 1;
            lease.seats = Vec::new();
            lease.preempt_at_ms = None;
            lease.granted_at_ms = None;
            lease.heard_at_ms = now_ms;
        });
        let is_undone = |lease: &LeaseRecord| lease.automatic.as_ref().is_some_and(|it| it.undone);
        if self.leases.get(&id).is_some_and(is_undone) {
            self.ask_as_asked(id);
        }
        let reason = self.leases.get(&id).and_then(|lease| lease.reason.clone());
        self.tell(id, "lease.requeued", json!({ "reason": reason }));
    }

    /// Gives up its place in line for one at the end.
    pub(crate) fn go_last(&mut self, id: LeaseId, now_ms: u64) {
        self.change(id, |lease| lease.queued_at_ms = now_ms);
    }

    pub(crate) fn end(&mut self, id: LeaseId, reason: &str, now_ms: u64) {
        self.end_with(id, reason, json!({ "reason": reason }), now_ms);
    }

    /// Ends a lease that nobody asked to end.
    fn end_expired(&mut self, id: LeaseId, reason: &str, now_ms: u64) {
        self.end_with(id, reason, json!({ "reason": reason, "expired": true }), now_ms);
    }

    fn end_with(&mut self, id: LeaseId, reason: &str, detail: serde_json::Value, now_ms: u64) {
        self.tell(id, "lease.ended", detail);
        self.change(id, |lease| {
            lease.state = LeaseState::Ended;
            lease.reason = Some(reason.into());
            lease.preempt_at_ms = None;
            lease.ended_at_ms = Some(now_ms);
        });
    }

    /// Ends what nobody waits for or claims any more, and queues again what nobody has any more.
    pub(crate) fn expire(&mut self, now_ms: u64) {
        let given_up = |lease: &&LeaseRecord| {
            lease.state == LeaseState::Preempting
                && lease.seats.iter().all(|seat| seat.over)
                && lease.preempt_at_ms.is_some_and(|at_ms| at_ms <= now_ms)
        };
        let given_up: Vec<_> = self.leases.values().filter(given_up).map(|lease| lease.id).collect();
        given_up.into_iter().for_each(|id| self.requeue(id, now_ms));
        let expired = |lease: &LeaseRecord| match lease.state {
            LeaseState::Queued if now_ms.saturating_sub(self.heard_ms(lease)) > PATIENCE_MS => {
                Some("its program no longer asked for it")
            }
            LeaseState::Queued if lease.ask.start_until_ms().is_some_and(|until| now_ms > until) => {
                Some("it can no longer end by its deadline")
            }
            LeaseState::Granted if self.is_unclaimed(lease, now_ms) => Some("no program claimed it in time"),
            _ => None,
        };
        let ending: Vec<_> =
            self.leases.values().filter_map(|lease| Some((lease.id, expired(lease)?))).collect();
        for (id, reason) in ending {
            self.end_expired(id, reason, now_ms);
        }
        self.expire_tasks(now_ms);
        self.give_up_moves(now_ms);
    }

    /// Takes tasks back that nobody has claimed, though their lease has others: they came while it
    /// ran, or ended before anything was heard of them.
    fn expire_tasks(&mut self, now_ms: u64) {
        let has_others = |lease: &&LeaseRecord| {
            matches!(lease.state, LeaseState::Granted | LeaseState::Running)
                && lease.seats.iter().any(|seat| seat.claimed)
        };
        let running = self.leases.values().filter(has_others);
        let unclaimed = |lease: &LeaseRecord| {
            let tasks = lease.held().filter(|(_, seat)| self.is_seat_unclaimed(lease, seat, now_ms));
            let tasks: Vec<u32> = tasks.map(|(task, _)| task).collect();
            (!tasks.is_empty()).then_some((lease.id, tasks))
        };
        let expired: Vec<_> = running.filter_map(unclaimed).collect();
        expired.into_iter().for_each(|(id, tasks)| self.forgo(id, &tasks, now_ms));
    }

    /// These tasks, which nobody has claimed, will not be; the lease continues without them, if it
    /// has others.
    pub(super) fn forgo(&mut self, id: LeaseId, tasks: &[u32], now_ms: u64) {
        self.change(id, |lease| {
            let seats = tasks.iter().map(|&task| task as usize);
            seats.for_each(|task| lease.seats.get_mut(task).into_iter().for_each(|seat| seat.over = true));
            if lease.seats.iter().all(|seat| seat.claimed || seat.over) {
                lease.state = LeaseState::Running;
            }
        });
        self.end_without_tasks(id, now_ms);
    }

    /// A lease that continues, and none of whose tasks is there any more, has ended.
    fn end_without_tasks(&mut self, id: LeaseId, now_ms: u64) {
        let goes_on = |lease: &LeaseRecord| matches!(lease.state, LeaseState::Granted | LeaseState::Running);
        if self.leases.get(&id).is_some_and(|lease| goes_on(lease) && lease.held().next().is_none()) {
            self.end(id, "its program ended", now_ms);
        }
    }

    /// When its program last asked for it, or could have.
    fn heard_ms(&self, lease: &LeaseRecord) -> u64 {
        lease.heard_at_ms.max(self.silence.since_ms())
    }

    /// By then it is claimed or not at all. What another server granted, perhaps by another clock,
    /// has the whole time from the moment at which this one listens.
    fn claim_until(&self, lease: &LeaseRecord, seat: &Seat) -> u64 {
        let granted_at_ms = seat.granted_at_ms.or(lease.granted_at_ms).unwrap_or(0);
        granted_at_ms.max(self.silence.since_ms()).saturating_add(lease.ask.hold_ms())
    }

    /// Whether nobody can claim it any more, and nobody has claimed any of its tasks: its nodes
    /// have reported since, so it is not that nothing has been heard of a program that runs. A node
    /// that is silent is not waited for if the program is as well: one that claimed it in the last
    /// moment before both fell silent has to end.
    fn is_unclaimed(&self, lease: &LeaseRecord, now_ms: u64) -> bool {
        lease.seats.iter().all(|seat| self.is_seat_unclaimed(lease, seat, now_ms))
    }

    fn is_seat_unclaimed(&self, lease: &LeaseRecord, seat: &Seat, now_ms: u64) -> bool {
        let until_ms = self.claim_until(lease, seat);
        let given_up = now_ms.saturating_sub(self.heard_ms(lease)) > PATIENCE_MS;
        let heard_ms = self.nodes.get(&seat.node).and_then(|node| node.heard_at_ms);
        !seat.claimed && now_ms > until_ms && (given_up || heard_ms.is_some_and(|at_ms| at_ms > until_ms))
    }

    /// Waiting leases, line by line.
    pub(crate) fn queue(&self) -> impl Iterator<Item = &LeaseRecord> {
        self.account.lines().filter_map(|id| self.leases.get(&id))
    }

    /// Thousandths of units that each tenant and those below it hold.
    pub(crate) fn held_units_milli(&self) -> BTreeMap<TenantPath, u64> {
        let mut held: BTreeMap<TenantPath, u64> = BTreeMap::new();
        for lease in self.leases().filter(|lease| lease.holds()) {
            let of_seat = |seat: &Seat| {
                let gpus = self.nodes.get(&seat.node).map_or(&[][..], |node| &node.gpus);
                let gflops = seat.gpus.iter().filter_map(|&gpu| gpus.get(gpu as usize)).map(|gpu| gpu.gflops);
                u64::from(lease.share_ppm(seat)) * gflops.sum::<u64>() / u64::from(GPU_PPM)
            };
            let units: u64 = lease.held().map(|(_, seat)| of_seat(seat)).sum();
            lease.tenant.lineage().for_each(|tenant| *held.entry(tenant).or_default() += units);
        }
        held
    }

    /// Millionths that may be leased of the GPUs of a seat: what its pool says, and what is leased
    /// though that was said to be less since.
    fn promised_of(&self, seat: &Seat) -> u32 {
        let of_gpu = |gpu| self.nodes.get(&seat.node).map_or(GPU_PPM, |node| self.promised_ppm(node, gpu));
        let of_pool = seat.gpus.iter().map(|&gpu| of_gpu(gpu)).min().unwrap_or(GPU_PPM);
        let leased = seat.gpus.iter().map(|&gpu| self.taken(seat.node, gpu).ppm).max().unwrap_or(0);
        of_pool.max(u32::try_from(leased).unwrap_or(u32::MAX))
    }

    /// The grants of the tasks that wait to be claimed.
    pub(crate) fn grants_of(&self, lease: &LeaseRecord) -> Vec<Grant> {
        let may_be_claimed = match lease.state {
            // All start together or none does.
            LeaseState::Granted => lease.seats.iter().all(|seat| !seat.over),
            state => state == LeaseState::Running,
        };
        let waits = |(_, seat): &(u32, &Seat)| may_be_claimed && seat.stays() && !seat.claimed;
        let grant = |(task, seat): (u32, &Seat)| self.grant_of(lease, task, seat);
        lease.held().filter(waits).map(grant).collect()
    }

    /// A grant of what a task has now, good as long as it can be claimed.
    fn grant_of(&self, lease: &LeaseRecord, task: u32, seat: &Seat) -> Grant {
        let grant = Grant {
            lease: lease.id,
            attempt: lease.attempt,
            task,
            node: seat.node,
            tenant: lease.tenant.clone(),
            tier: lease.ask.tier,
            pool: self.pools_of(seat).next().unwrap_or(DEFAULT_POOL).into(),
            gpus: seat.gpus.clone(),
            share_ppm: 0,
            promised_ppm: self.promised_of(seat),
            memory: 0,
            hard_cap: false,
            limit_ppm: None,
            suspended: false,
            version: seat.version,
            moves: 0,
            expires_at_ms: self.claim_until(lease, seat),
        };
        resize::sized(grant, lease.size(seat))
    }

    /// As users see it, without grants and what the plan knows.
    pub(crate) fn view(&self, lease: &LeaseRecord) -> Lease {
        let place = |(task, seat): (u32, &Seat)| {
            let node = self.nodes.get(&seat.node);
            Place {
                task,
                node: self.name_of(seat.node).to_owned(),
                address: node.map_or_else(String::new, |node| node.address.clone()),
                gpus: seat.gpus.clone(),
                grant: None,
                resize: None,
                leave_at_ms: seat.leave_at_ms,
            }
        };
        let waits = |seat: &&Seat| lease.state == LeaseState::Granted && !seat.claimed && !seat.over;
        let claim_until_ms = lease.seats.iter().filter(waits).map(|seat| self.claim_until(lease, seat)).min();
        let is_over = lease.state == LeaseState::Ended;
        let has_place = |seat: &Seat| if is_over { seat.leave_at_ms.is_none() } else { !seat.over };
        let seats = (0..).zip(&lease.seats).filter(|(_, seat)| has_place(seat));
        let places: Vec<Place> = seats.map(place).collect();
        Lease {
            id: lease.id,
            tenant: lease.tenant.clone(),
            name: lease.ask.name.clone(),
            user: lease.person.clone(),
            gpus: lease.ask.gpus,
            tasks: if places.is_empty() { lease.ask.tasks } else { places.len() as u32 },
            share_ppm: match (lease.seats.first(), lease.ask.units_milli) {
                (Some(seat), _) => lease.size(seat).share_ppm,
                (None, Some(_)) => 0,
                (None, None) => lease.ask.share_ppm,
            },
            units_milli: lease.ask.units_milli,
            limit_ppm: lease.seats.first().map_or(lease.ask.limit_ppm(), |seat| lease.size(seat).limit_ppm),
            memory: lease.seats.first().map_or(lease.ask.memory, |seat| lease.size(seat).memory),
            suspended: lease.held().any(|(_, seat)| lease.size(seat).suspended),
            resizing: resize::view(lease),
            moving: self.moving(lease),
            automatic: lease.automatic.as_ref().and_then(|automatic| automatic.size.clone()),
            idle: lease.shown_idle(),
            priority: lease.ask.priority,
            tier: lease.ask.tier,
            preemptible: lease.is_preemptible(),
            state: lease.state,
            attempt: lease.attempt,
            position: self.account.position(lease),
            reason: lease.reason.clone(),
            reason_brief: None,
            start: None,
            tightest_budget: None,
            places,
            preempt_at_ms: lease.preempt_at_ms,
            created_at_ms: lease.created_at_ms,
            granted_at_ms: lease.granted_at_ms,
            claim_until_ms,
            ended_at_ms: lease.ended_at_ms,
            revision: lease.revision,
            key: None,
        }
    }
}
