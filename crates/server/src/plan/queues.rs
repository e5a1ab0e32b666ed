//! Tenants as queues of the scheduler.
//!
//! Work goes to leaves only, so a tenant with others below it has one more queue there, for what it
//! asks for itself.
//!
//! The scheduler looks at all its queues in each cycle, so it has those of tenants with work and of
//! the ones above them: a queue without work gets no share, and what it is guaranteed is counted in
//! the queues above it.

use std::collections::BTreeSet;

use sluice_api::tenant::TenantPath;
use sluice_sched::queues::{Figures, QueueError, QueueId, QueueSpec, QueueTree, Resource};

use crate::fleet::{Guarantee, Tenants};

/// The scheduler's queues for these tenants and those above them; the error names what is wrong.
pub(super) fn tree<'a>(
    tenants: &Tenants,
    active: impl IntoIterator<Item = &'a TenantPath>,
) -> Result<QueueTree, QueueError> {
    let active: BTreeSet<TenantPath> = active.into_iter().flat_map(TenantPath::lineage).collect();
    let specs: Vec<QueueSpec> = active.iter().flat_map(|path| specs(tenants, path)).collect();
    let shared =
        [Resource::Gpu, Resource::GpuUnits, Resource::GpuMemory].into_iter().zip(tenants.guarantees());
    let shared = shared.filter(|(_, is_guaranteed)| *is_guaranteed).map(|(resource, _)| resource);
    Ok(QueueTree::new(&specs)?.sharing(shared))
}

/// Checks that the quotas of a tenant, and of those above it, do not contradict each other.
pub(crate) fn check(tenants: &Tenants, path: &TenantPath) -> Result<(), QueueError> {
    for tenant in path.lineage() {
        let alone = specs(tenants, &tenant).map(|spec| QueueSpec { parent: None, ..spec });
        QueueTree::new(&alone.collect::<Vec<_>>())?;
    }
    Ok(())
}

/// The queue that a tenant's own work waits in.
pub(super) fn queue_of(tree: &QueueTree, tenant: &TenantPath) -> Option<QueueId> {
    tree.find(&own_queue(tenant)).or_else(|| tree.find(tenant.as_str()))
}

/// Whose work waits in a queue of this name.
pub(super) fn tenant_of(queue: &str) -> Option<TenantPath> {
    queue.strip_suffix(ITSELF).unwrap_or(queue).parse().ok()
}

fn own_queue(tenant: &TenantPath) -> String {
    format!("{tenant}{ITSELF}")
}

/// No part of a tenant's path.
const ITSELF: &str = " itself";

/// A tenant's queue and, where it has tenants below it, the one of its own work.
pub(super) fn specs(tenants: &Tenants, path: &TenantPath) -> impl Iterator<Item = QueueSpec> + use<> {
    let quota = tenants.get(path).cloned().unwrap_or_default();
    let (all, below) = (tenants.all_of(path), tenants.below_of(path));
    let mut spec = QueueSpec::new(path.as_str());
    spec.parent = path.parent().filter(|parent| !parent.is_root()).map(String::from);
    spec.weight = i64::from(quota.over_quota_weight);
    spec.limit.gpus = quota.limit_milli.map(|milli| thousandths(milli.into()));
    spec.limit.gpu_units = quota.units_limit_milli.map(thousandths);
    spec.limit.gpu_memory_gib = quota.memory_limit_mib.map(|mib| mib as f64 / 1024.0);
    spec.deserved = figures(all);
    let own = below.map(|below| QueueSpec {
        deserved: figures(all.with(below, u64::saturating_sub)),
        ..QueueSpec::new(&own_queue(path)).below(path.as_str())
    });
    std::iter::once(spec).chain(own)
}

fn figures(guarantee: Guarantee) -> Figures {
    let [gpus, units, memory_mib] = guarantee.0;
    Figures {
        gpus: Some(thousandths(gpus)),
        gpu_units: Some(thousandths(units)),
        gpu_memory_gib: Some(memory_mib as f64 / 1024.0),
        ..Figures::default()
    }
}

fn thousandths(milli: u64) -> f64 {
    milli as f64 / 1000.0
}
