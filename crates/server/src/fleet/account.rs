//! Sums over leases, kept up to date with every transition: what tenants hold, what is taken of
//! GPUs, who waits in which line, which leases are on a node.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sluice_api::GPU_PPM;
use sluice_api::lease::LeaseId;
use sluice_api::node::NodeId;
use sluice_api::tenant::TenantPath;

use super::lease::{LeaseRecord, LinePlace, Seat};

/// What a tenant holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) ppm: u64,
    pub(crate) memory: u64,
    pub(crate) leases: u32,
    pub(crate) queued: u32,
}

/// What leases hold of one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Millionths of its compute.
    pub(crate) ppm: u64,
    pub(crate) memory: u64,
    /// The part of it that never leaves the GPU, however far its memory is overcommitted.
    pub(crate) fixed_memory: u64,
    pub(crate) leases: u32,
    /// Of these, those that hold the whole of it: one at most.
    pub(crate) whole: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    /// Of each tenant with all below it.
    holdings: BTreeMap<TenantPath, Holding>,
    taken: HashMap<(NodeId, u32), Taken>,
    lines: BTreeMap<TenantPath, BTreeSet<LinePlace>>,
    on_node: HashMap<NodeId, BTreeSet<LeaseId>>,
    /// Leases that move to a node.
    moving_to: HashMap<NodeId, BTreeSet<LeaseId>>,
}

impl Account {
    pub(super) fn add(&mut self, lease: &LeaseRecord) {
        if lease.waits() {
            self.lines.entry(lease.tenant.clone()).or_default().insert(lease.line_place());
        }
        self.tenants(lease, |sum, by| *sum += by, |sum, by| *sum += by);
        for (_, seat) in lease.held().filter(|_| lease.holds()) {
            self.on_node.entry(seat.node).or_default().insert(lease.id);
            self.gpus(lease, seat, |sum, by| *sum += by, |sum, by| *sum += by);
            if let Some((node, _)) = seat.target() {
                self.moving_to.entry(node).or_default().insert(lease.id);
                self.gpus(lease, &seat.at_target(), |sum, by| *sum += by, |sum, by| *sum += by);
            }
        }
    }

    /// The exact inverse of [`Account::add`].
    pub(super) fn remove(&mut self, lease: &LeaseRecord) {
        if lease.waits()
            && let Some(line) = self.lines.get_mut(&lease.tenant)
        {
            line.remove(&lease.line_place());
            if line.is_empty() {
                self.lines.remove(&lease.tenant);
            }
        }
        self.tenants(lease, |sum, by| *sum -= by, |sum, by| *sum -= by);
        for (_, seat) in lease.held().filter(|_| lease.holds()) {
            if let Some(leases) = self.on_node.get_mut(&seat.node) {
                leases.remove(&lease.id);
            }
            self.gpus(lease, seat, |sum, by| *sum -= by, |sum, by| *sum -= by);
            if let Some((node, _)) = seat.target() {
                if let Some(leases) = self.moving_to.get_mut(&node) {
                    leases.remove(&lease.id);
                }
                self.gpus(lease, &seat.at_target(), |sum, by| *sum -= by, |sum, by| *sum -= by);
            }
        }
    }

    fn tenants(&mut self, lease: &LeaseRecord, amount: fn(&mut u64, u64), count: fn(&mut u32, u32)) {
        let memory: u64 = lease.held().map(|(_, seat)| seat.held_memory() * seat.gpus.len() as u64).sum();
        for tenant in lease.tenant.lineage() {
            let holding = self.holdings.entry(tenant).or_default();
            if lease.waits() {
                count(&mut holding.queued, 1);
            } else if lease.holds() {
                amount(&mut holding.ppm, lease.ppm());
                amount(&mut holding.memory, memory);
                count(&mut holding.leases, 1);
            }
        }
    }

    fn gpus(
        &mut self,
        lease: &LeaseRecord,
        seat: &Seat,
        amount: fn(&mut u64, u64),
        count: fn(&mut u32, u32),
    ) {
        let share_ppm = lease.share_ppm(seat);
        let memory = seat.held_memory();
        let fixed_memory = if lease.is_fixed_at(seat) { memory } else { 0 };
        for &gpu in &seat.gpus {
            let taken = self.taken.entry((seat.node, gpu)).or_default();
            amount(&mut taken.ppm, u64::from(share_ppm));
            amount(&mut taken.memory, memory);
            amount(&mut taken.fixed_memory, fixed_memory);
            count(&mut taken.leases, 1);
            count(&mut taken.whole, u32::from(share_ppm == GPU_PPM));
        }
    }

    /// Whether both say the same. Sums of nothing are there or not, as things went.
    pub(super) fn says_the_same(&self, other: &Account) -> bool {
        self.without_nothing() == other.without_nothing()
    }

    fn without_nothing(&self) -> Account {
        let mut account = self.clone();
        account.holdings.retain(|_, holding| *holding != Holding::default());
        account.taken.retain(|_, taken| *taken != Taken::default());
        account.on_node.retain(|_, leases| !leases.is_empty());
        account.moving_to.retain(|_, leases| !leases.is_empty());
        account
    }

    pub(super) fn holding(&self, tenant: &TenantPath) -> Holding {
        self.holdings.get(tenant).copied().unwrap_or_default()
    }

    pub(super) fn taken(&self, node: NodeId, gpu: u32) -> Taken {
        self.taken.get(&(node, gpu)).copied().unwrap_or_default()
    }

    pub(super) fn on_node(&self, node: NodeId) -> Vec<LeaseId> {
        self.on_node.get(&node).into_iter().flatten().copied().collect()
    }

    pub(super) fn moving_to(&self, node: NodeId) -> Vec<LeaseId> {
        self.moving_to.get(&node).into_iter().flatten().copied().collect()
    }

    /// Leases that move to whichever node.
    pub(super) fn moving(&self) -> Vec<LeaseId> {
        self.moving_to.values().flatten().copied().collect()
    }

    /// From 1.
    pub(super) fn position(&self, lease: &LeaseRecord) -> Option<u32> {
        let line = self.lines.get(&lease.tenant).filter(|_| lease.waits())?;
        Some(line.range(..=lease.line_place()).count() as u32)
    }

    /// All lines, each in its order.
    pub(super) fn lines(&self) -> impl Iterator<Item = LeaseId> + '_ {
        self.lines.values().flatten().map(|&(_, _, id)| id)
    }
}
