//! Tenants as queues of the scheduler.
//!
//! Work goes to leaves only, so a tenant with others below it has one more queue there, for what it asks for itself.

use std::collections::BTreeMap;

use sluice_api::tenant::{Quota, TenantPath};
use sluice_sched::queues::{Figures, QueueError, QueueId, QueueSpec, QueueTree};

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
        spec.limit.gpus = quota.limit_milli.map(|milli| thousandths(milli.into()));
        spec.limit.gpu_units = quota.units_limit_milli.map(thousandths);
        spec.limit.gpu_memory_gib = quota.memory_limit_mib.map(|mib| mib as f64 / 1024.0);
        let below = guaranteed_below(tenants, path);
        let all = Guarantee::of(quota).with(below.unwrap_or_default(), u64::max);
        spec.deserved = all.figures();
        if let Some(below) = below {
            let deserved = all.with(below, u64::saturating_sub).figures();
            let own = QueueSpec::new(&own_queue(path)).below(path.as_str());
            specs.push(QueueSpec { deserved, ..own });
        }
        specs.push(spec);
    }
    specs
}

/// Thousandths of GPUs and of units, and MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Guarantee([u64; 3]);

impl Guarantee {
    fn of(quota: &Quota) -> Guarantee {
        Guarantee([quota.guaranteed_milli.into(), quota.guaranteed_units_milli, quota.guaranteed_memory_mib])
    }

    fn with(self, other: Guarantee, combine: fn(u64, u64) -> u64) -> Guarantee {
        Guarantee(std::array::from_fn(|i| combine(self.0[i], other.0[i])))
    }

    fn figures(self) -> Figures {
        let [gpus, units, memory_mib] = self.0;
        Figures {
            gpus: Some(thousandths(gpus)),
            gpu_units: Some(thousandths(units)),
            gpu_memory_gib: Some(memory_mib as f64 / 1024.0),
            ..Figures::default()
        }
    }
}

fn thousandths(milli: u64) -> f64 {
    milli as f64 / 1000.0
}

/// The first tenant, by its path, that is guaranteed something, but nothing of what another is guaranteed: so its guarantee would be of
/// nothing, since one is within all that is guaranteed to anybody.
pub(crate) fn incomplete(tenants: &BTreeMap<TenantPath, Quota>) -> Option<(&TenantPath, &'static str)> {
    const FIELDS: [&str; 3] = ["guaranteed_milli", "guaranteed_units_milli", "guaranteed_memory_mib"];
    let guarantees = || tenants.iter().map(|(path, quota)| (path, Guarantee::of(quota).0));
    // GPUs always count.
    let counts: [bool; 3] = std::array::from_fn(|i| i == 0 || guarantees().any(|(_, of)| of[i] > 0));
    let lacks = |of: [u64; 3]| (0..3).find(|&i| counts[i] && of[i] == 0).map(|i| FIELDS[i]);
    guarantees()
        .filter(|(_, of)| of.iter().any(|&amount| amount > 0))
        .find_map(|(path, of)| Some((path, lacks(of)?)))
}

/// What is guaranteed to the tenants right below this one; none where there are none.
fn guaranteed_below(tenants: &BTreeMap<TenantPath, Quota>, path: &TenantPath) -> Option<Guarantee> {
    let mut children = tenants.iter().filter(|(other, _)| other.parent().as_ref() == Some(path)).peekable();
    children.peek()?;
    // A child's guarantee covers what is guaranteed below it.
    let of = |(child, quota): (&TenantPath, &Quota)| {
        Guarantee::of(quota).with(guaranteed_below(tenants, child).unwrap_or_default(), u64::max)
    };
    Some(children.map(of).fold(Guarantee::default(), |sum, of| sum.with(of, u64::saturating_add)))
}
