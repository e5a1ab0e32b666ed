//! Tenants as queues of the scheduler.
//!
//! Work goes to leaves only, so a tenant with others below it has one more queue there, for what it asks for itself.

use std::collections::BTreeMap;

use sluice_api::tenant::{Quota, TenantPath};
use sluice_sched::queues::{QueueError, QueueId, QueueSpec, QueueTree};

/// What the scheduler makes of these tenants and quotas; the error names what is wrong.
pub(crate) fn tree(tenants: &BTreeMap<TenantPath, Quota>) -> Result<QueueTree, QueueError> {
    QueueTree::new(&specs(tenants))
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

fn specs(tenants: &BTreeMap<TenantPath, Quota>) -> Vec<QueueSpec> {
    let mut specs = Vec::new();
    for (path, quota) in tenants {
        let mut spec = QueueSpec::new(path.as_str());
        spec.parent = path.parent().filter(|parent| !parent.is_root()).map(String::from);
        spec.weight = i64::from(quota.over_quota_weight);
        spec.limit.gpus = quota.limit_milli.map(gpus);
        spec.limit.gpu_memory_gib = quota.memory_limit_mib.map(|mib| mib as f64 / 1024.0);
        let below = guaranteed_below(tenants, path);
        spec.deserved.gpus = Some(gpus(quota.guaranteed_milli.max(below.unwrap_or(0))));
        if let Some(below) = below {
            let own = quota.guaranteed_milli.saturating_sub(below);
            specs.push(QueueSpec::new(&own_queue(path)).below(path.as_str()).deserving_gpus(gpus(own)));
        }
        specs.push(spec);
    }
    specs
}

fn gpus(milli: u32) -> f64 {
    f64::from(milli) / 1000.0
}

/// What is guaranteed to the tenants right below this one; none where there are none.
fn guaranteed_below(tenants: &BTreeMap<TenantPath, Quota>, path: &TenantPath) -> Option<u32> {
    let mut children = tenants.iter().filter(|(other, _)| other.parent().as_ref() == Some(path)).peekable();
    children.peek()?;
    // A child's guarantee covers what is guaranteed below it.
    let of = |(child, quota): (&TenantPath, &Quota)| {
        quota.guaranteed_milli.max(guaranteed_below(tenants, child).unwrap_or(0))
    };
    Some(children.map(of).fold(0, u32::saturating_add))
}
