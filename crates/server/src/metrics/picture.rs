//! The fleet at the moment of a scrape: sums that are small however many leases there are, so that
//! the lock is held for milliseconds.

use std::collections::BTreeMap;

use sluice_api::lease::LeaseState;
use sluice_api::tenant::TenantPath;

use crate::fleet::{Fleet, LeaseRecord, Node};
use crate::server::Books;

/// Tenants on one page.
pub(super) const TENANTS_MAX: usize = 2_000;

/// What is true now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Picture {
    pub(crate) leads: bool,
    pub(crate) disk_full: bool,
    pub(crate) certificate_ends_s: Option<i64>,
    /// `None` on a server that does not lead, or whose lock was not free in time.
    pub(crate) fleet: Option<FleetPicture>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FleetPicture {
    /// Leases that wait, by what keeps them from starting.
    pub(super) queue: BTreeMap<&'static str, u64>,
    /// Milliseconds for which the lease waits that has waited for the longest; 0 if none waits.
    pub(super) oldest_wait_ms: u64,
    pub(super) leases: BTreeMap<&'static str, u64>,
    pub(super) nodes: Vec<NodePicture>,
    pub(super) pools: BTreeMap<String, PoolPicture>,
    pub(super) tenants: Vec<TenantPicture>,
    pub(super) tenants_omitted: usize,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NodePicture {
    pub(super) name: String,
    pub(super) online: bool,
    pub(super) drained: bool,
    /// Since its last report; `None` until it has reported to this server.
    pub(super) heartbeat_age_ms: Option<u64>,
    /// How far its usage records are behind; `None` while no lease is there, or no record has come.
    pub(super) ledger_lag_ms: Option<u64>,
    pub(super) gpus: usize,
    pub(super) fenced: usize,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PoolPicture {
    pub(super) gpus: u64,
    /// Of these, on nodes that take new leases and not fenced.
    pub(super) usable: u64,
    pub(super) leased_ppm: u64,
    pub(super) memory: u64,
    pub(super) memory_leased: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct TenantPicture {
    pub(super) path: TenantPath,
    pub(super) guaranteed_milli: u64,
    pub(super) limit_milli: Option<u64>,
    pub(super) held_ppm: u64,
    pub(super) memory: u64,
    pub(super) leases: u32,
    pub(super) queued: u32,
    /// Spent, and what may be spent, in millionths of the currency's unit.
    pub(super) budget: Option<(u64, u64)>,
}

impl FleetPicture {
    pub(crate) fn of(books: &Books, now_ms: u64) -> FleetPicture {
        FleetPicture::of_fleet(&books.fleet, |lease| books.why_kind(lease), now_ms)
    }

    /// `why` says what keeps a waiting lease from starting, in one of a few words.
    pub(super) fn of_fleet(
        fleet: &Fleet,
        why: impl Fn(&LeaseRecord) -> &'static str,
        now_ms: u64,
    ) -> FleetPicture {
        let mut picture = FleetPicture::default();
        for lease in fleet.leases() {
            *picture.leases.entry(lease.state.name()).or_default() += 1;
            if lease.state == LeaseState::Queued {
                *picture.queue.entry(why(lease)).or_default() += 1;
                let waits_ms = now_ms.saturating_sub(lease.created_at_ms);
                picture.oldest_wait_ms = picture.oldest_wait_ms.max(waits_ms);
            }
        }
        for node in fleet.nodes().values() {
            picture.nodes.push(node_picture(fleet, node, now_ms));
            add_to_pools(&mut picture.pools, fleet, node);
        }
        picture.tenants_omitted = fleet.tenants().len().saturating_sub(TENANTS_MAX);
        let all = TenantPath::root();
        let shown = fleet.tenants().within(&all, None).take(TENANTS_MAX);
        picture.tenants = shown.map(|(tenant, _)| tenant_picture(fleet, tenant)).collect();
        picture
    }
}

fn node_picture(fleet: &Fleet, node: &Node, now_ms: u64) -> NodePicture {
    let has_leases = !node.report.leases.is_empty();
    NodePicture {
        name: node.name.clone(),
        online: fleet.is_online(node, now_ms),
        drained: node.drain.is_some(),
        heartbeat_age_ms: node.heard_at_ms.map(|heard_ms| now_ms.saturating_sub(heard_ms)),
        ledger_lag_ms: node
            .used_until_ms
            .filter(|_| has_leases)
            .map(|until_ms| now_ms.saturating_sub(until_ms)),
        gpus: node.gpus.len(),
        fenced: (0..node.gpus.len() as u32).filter(|&gpu| fleet.is_fenced(node.id, gpu)).count(),
    }
}

fn add_to_pools(pools: &mut BTreeMap<String, PoolPicture>, fleet: &Fleet, node: &Node) {
    for (gpu, of) in (0..).zip(&node.gpus) {
        let name = fleet.pool_of(node, gpu);
        if !pools.contains_key(name) {
            pools.insert(name.to_owned(), PoolPicture::default());
        }
        let Some(pool) = pools.get_mut(name) else { continue };
        let taken = fleet.taken(node.id, gpu);
        pool.gpus += 1;
        pool.usable += u64::from(node.takes_work() && !fleet.is_fenced(node.id, gpu));
        pool.leased_ppm += taken.ppm;
        pool.memory += of.memory;
        pool.memory_leased += taken.memory;
    }
}

fn tenant_picture(fleet: &Fleet, path: &TenantPath) -> TenantPicture {
    let quota = fleet.tenants().get(path).cloned().unwrap_or_default();
    let holding = fleet.holding(path);
    let budget = fleet.budgets().status(path).map(|status| (status.spent_micro, status.budget.micro));
    TenantPicture {
        path: path.clone(),
        guaranteed_milli: quota.guaranteed_milli.into(),
        limit_milli: quota.limit_milli.map(u64::from),
        held_ppm: holding.ppm,
        memory: holding.memory,
        leases: holding.leases,
        queued: holding.queued,
        budget,
    }
}
