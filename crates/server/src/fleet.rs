//! What is true now: nodes, tenants, and leases that have not ended. Pure state; the time is an
//! argument.
//!
//! Every transition of a lease is a method here, and goes through [`Fleet::change`]: the sums of
//! the [`account`] follow, and the lease is marked, for the database (what changed is written
//! before any request learns of it, see [`crate::server`]) and for the plan ([`crate::plan`]).

mod account;
mod automatic;
mod backoff;
mod budgets;
mod drains;
mod events;
mod expiry;
mod health;
mod lease;
mod live;
mod moves;
mod nodes;
mod overcommit;
mod pools;
mod refusals;
mod resize;
mod silence;
mod tenants;
mod times;
mod transitions;
mod view;

use std::collections::{BTreeMap, BTreeSet};

use sluice_api::bill::Budget;
use sluice_api::invoice::BillTo;
use sluice_api::lease::{LeaseId, LeaseState};
use sluice_api::node::NodeId;
use sluice_api::pool::Pool;
use sluice_api::tenant::{Quota, Tenant, TenantPath};

pub(crate) use account::{Holding, Taken};
pub(crate) use budgets::{Passed, Spent};
pub(crate) use events::{Event, FOR_OTHERS};
pub(crate) use health::{CardId, CardRecord, Patience, WHY_MAX, card_of, cards_of, printable};
#[cfg(test)]
pub(crate) use lease::SeatMove;
pub(crate) use lease::{LeaseRecord, LinePlace, MoveCause, Seat, Size};
pub(crate) use live::{MOVE_MS_MAX, Stays};
pub(crate) use moves::OrderToMove;
pub(crate) use nodes::Node;
pub(crate) use overcommit::is_fixed as memory_is_fixed;
pub(crate) use resize::NoResize;
pub(crate) use silence::Incident;
pub(crate) use tenants::{Guarantee, Tenants, top};

use account::Account;
use backoff::Backoff;
use budgets::Budgets;
use health::Health;
use live::MoveRate;
use silence::Silence;

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
    backoff: Backoff,
    /// Of the last move that says so; not stored.
    move_rate: Option<MoveRate>,
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
            backoff: Backoff::default(),
            move_rate: None,
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
        self.backoff = std::mem::take(&mut earlier.backoff);
        self.move_rate = earlier.move_rate;
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

    /// What a tenant and all below it hold.
    pub(crate) fn holding(&self, tenant: &TenantPath) -> Holding {
        self.account.holding(tenant)
    }
}
