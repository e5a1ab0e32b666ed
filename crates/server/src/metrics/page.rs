//! The families of a server's page that are made from a [`Picture`].

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use sluice_metrics::{Metric, Page};

use super::picture::{FleetPicture, NodePicture, Picture, PoolPicture, TenantPicture};

const BUILD: Metric = Metric::gauge("sluice_build_info", "The release that serves this page: 1");
const LEADER: Metric = Metric::gauge("sluice_leader", "1 on the server that leads, 0 on the others");
const DISK_FULL: Metric =
    Metric::gauge("sluice_database_full", "1 while the database finds no room for what is written");
const CERTIFICATE: Metric = Metric::gauge(
    "sluice_certificate_expiry_timestamp",
    "When the certificate that is shown to clients ends, since 1970",
)
.of("seconds");
const QUEUE: Metric =
    Metric::gauge("sluice_queue_depth", "Leases that wait, by what keeps them from starting");
const OLDEST: Metric =
    Metric::gauge("sluice_queue_oldest_wait", "For how long the lease waits that has waited for the longest")
        .of("seconds");
const LEASES: Metric = Metric::gauge("sluice_leases", "Leases that have not ended, by state");
const NODE_ONLINE: Metric = Metric::gauge("sluice_node_online", "1 while the node's reports come in time");
const NODE_DRAINED: Metric = Metric::gauge("sluice_node_drained", "1 while an operator wants the node empty");
const HEARTBEAT: Metric =
    Metric::gauge("sluice_node_heartbeat_age", "Time since the node's last report").of("seconds");
const LEDGER_LAG: Metric = Metric::gauge(
    "sluice_ledger_lag",
    "Time since the end of the newest usage record of a node that has leases",
)
.of("seconds");
const NODE_GPUS: Metric = Metric::gauge("sluice_node_gpus", "GPUs of the node");
const NODE_FENCED: Metric = Metric::gauge("sluice_node_gpus_fenced", "GPUs of the node that are fenced");
const POOL_GPUS: Metric = Metric::gauge("sluice_pool_gpus", "GPUs of the pool");
const POOL_USABLE: Metric = Metric::gauge(
    "sluice_pool_gpus_usable",
    "GPUs of the pool that take new leases: on nodes that report, not fenced, not drained",
);
const POOL_LEASED: Metric =
    Metric::gauge("sluice_pool_gpus_leased", "Sum of the shares of the pool's GPUs that are leased");
const POOL_MEMORY: Metric = Metric::gauge("sluice_pool_memory", "Memory of the pool's GPUs").of("bytes");
const POOL_MEMORY_LEASED: Metric =
    Metric::gauge("sluice_pool_memory_leased", "Memory of the pool's GPUs that is leased").of("bytes");
const GUARANTEED: Metric =
    Metric::gauge("sluice_tenant_gpus_guaranteed", "GPUs that the tenant is guaranteed");
const LIMIT: Metric =
    Metric::gauge("sluice_tenant_gpus_limit", "GPUs that the tenant may hold at most, where that is limited");
const HELD: Metric = Metric::gauge("sluice_tenant_gpus_held", "GPUs that the tenant and those below it hold");
const TENANT_MEMORY: Metric =
    Metric::gauge("sluice_tenant_memory_held", "Memory of GPUs that the tenant and those below it hold")
        .of("bytes");
const TENANT_LEASES: Metric =
    Metric::gauge("sluice_tenant_leases", "Leases that the tenant and those below it hold");
const TENANT_QUEUED: Metric =
    Metric::gauge("sluice_tenant_leases_queued", "Leases of the tenant and those below it that wait");
const BUDGET: Metric =
    Metric::gauge("sluice_budget_ratio", "Part of the tenant's budget that is spent in its present period");
const BUDGET_SPENT: Metric =
    Metric::gauge("sluice_budget_spent", "What is spent of it, in units of the installation's currency");
const BUDGET_LIMIT: Metric =
    Metric::gauge("sluice_budget_limit", "What may be spent of it, in units of the installation's currency");
const OMITTED: Metric = Metric::gauge(
    "sluice_tenants_omitted",
    "Tenants without series on this page, because there are too many for one scrape",
);

impl Collector for Picture {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page::new(encoder);
        page.family(&BUILD, [([("version", env!("CARGO_PKG_VERSION"))], 1.0)])?;
        page.single(&LEADER, flag(self.leads))?;
        page.single(&DISK_FULL, flag(self.disk_full))?;
        page.single(&CERTIFICATE, self.certificate_ends_s.map(|ends_s| ends_s as f64))?;
        let Some(fleet) = &self.fleet else { return Ok(()) };
        queue(&mut page, fleet)?;
        nodes(&mut page, &fleet.nodes)?;
        pools(&mut page, fleet)?;
        tenants(&mut page, fleet)
    }
}

fn queue(page: &mut Page<'_>, fleet: &FleetPicture) -> fmt::Result {
    page.family(&QUEUE, fleet.queue.iter().map(|(reason, count)| ([("reason", *reason)], *count as f64)))?;
    page.single(&OLDEST, seconds(fleet.oldest_wait_ms))?;
    page.family(&LEASES, fleet.leases.iter().map(|(state, count)| ([("state", *state)], *count as f64)))
}

fn nodes(page: &mut Page<'_>, nodes: &[NodePicture]) -> fmt::Result {
    let mut family = |metric: &Metric, value: &dyn Fn(&NodePicture) -> Option<f64>| {
        page.family(
            metric,
            nodes.iter().filter_map(|node| Some(([("node", node.name.as_str())], value(node)?))),
        )
    };
    family(&NODE_ONLINE, &|node| Some(flag(node.online)))?;
    family(&NODE_DRAINED, &|node| Some(flag(node.drained)))?;
    family(&HEARTBEAT, &|node| node.heartbeat_age_ms.map(seconds))?;
    family(&LEDGER_LAG, &|node| node.ledger_lag_ms.map(seconds))?;
    family(&NODE_GPUS, &|node| Some(node.gpus as f64))?;
    family(&NODE_FENCED, &|node| Some(node.fenced as f64))
}

fn pools(page: &mut Page<'_>, fleet: &FleetPicture) -> fmt::Result {
    let mut family = |metric: &Metric, value: &dyn Fn(&PoolPicture) -> f64| {
        page.family(metric, fleet.pools.iter().map(|(name, pool)| ([("pool", name.as_str())], value(pool))))
    };
    family(&POOL_GPUS, &|pool| pool.gpus as f64)?;
    family(&POOL_USABLE, &|pool| pool.usable as f64)?;
    family(&POOL_LEASED, &|pool| pool.leased_ppm as f64 / 1e6)?;
    family(&POOL_MEMORY, &|pool| pool.memory as f64)?;
    family(&POOL_MEMORY_LEASED, &|pool| pool.memory_leased as f64)
}

fn tenants(page: &mut Page<'_>, fleet: &FleetPicture) -> fmt::Result {
    let mut family = |metric: &Metric, value: &dyn Fn(&TenantPicture) -> Option<f64>| {
        let tenants = fleet.tenants.iter();
        page.family(
            metric,
            tenants.filter_map(|tenant| Some(([("tenant", tenant.path.as_str())], value(tenant)?))),
        )
    };
    family(&GUARANTEED, &|tenant| Some(tenant.guaranteed_milli as f64 / 1e3))?;
    family(&LIMIT, &|tenant| tenant.limit_milli.map(|milli| milli as f64 / 1e3))?;
    family(&HELD, &|tenant| Some(tenant.held_ppm as f64 / 1e6))?;
    family(&TENANT_MEMORY, &|tenant| Some(tenant.memory as f64))?;
    family(&TENANT_LEASES, &|tenant| Some(tenant.leases.into()))?;
    family(&TENANT_QUEUED, &|tenant| Some(tenant.queued.into()))?;
    family(&BUDGET, &|tenant| tenant.budget.map(|(spent, limit)| spent as f64 / limit.max(1) as f64))?;
    family(&BUDGET_SPENT, &|tenant| tenant.budget.map(|(spent, _)| spent as f64 / 1e6))?;
    family(&BUDGET_LIMIT, &|tenant| tenant.budget.map(|(_, limit)| limit as f64 / 1e6))?;
    page.single(&OMITTED, fleet.tenants_omitted as f64)
}

fn flag(is_so: bool) -> f64 {
    f64::from(u8::from(is_so))
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}
