//! Requests that waiting would not help: no quota, or no node that is known, is large enough.

use std::collections::{BTreeMap, BTreeSet};

use sluice_api::GPU_PPM;
use sluice_api::lease::{Level, NewLease};
use sluice_api::tenant::TenantPath;
use sluice_sched::{DomainId, ModelSet, NodeSpec, Request};

use super::enter::level;
use super::{Plan, pools};
use crate::fleet::Fleet;

impl Plan {
    /// Why all nodes together, if they were empty, would not be enough. While no node has joined,
    /// anything may still come.
    pub(crate) fn over_capacity(&self, fleet: &Fleet, tenant: &TenantPath, ask: &NewLease) -> Option<String> {
        if self.sites.is_empty() {
            return None;
        }
        // Pools that do not serve it now may do so later.
        let models = self.atlas.accepted(ask, |pool| pools::ever_serves(fleet, pool, tenant, ask));
        let request = match models {
            ModelSet::NONE => Err(self.no_kind(fleet, tenant, ask)),
            models => self.request_of(ask, models),
        };
        let request = match request {
            Ok(request) => request,
            Err(reason) => return Some(reason),
        };
        let nodes = || self.on_node.values().flatten().map(|&site| self.scheduler.cluster().node(site));
        let specs = || nodes().filter(|node| node.has_linked(&request)).map(|node| node.spec());
        let slots = |spec: &NodeSpec| u64::from(slots(spec, &request));
        let wanted = u64::from(ask.tasks);
        let (all, best) = (specs().map(slots).sum::<u64>(), specs().map(slots).max().unwrap_or(0));
        if all == 0 {
            let fits = nodes().any(|node| crate::plan::never::slots(node.spec(), &request) > 0);
            let link = ask.linked.filter(|_| fits).map(|link| {
                format!(
                    "{} GPUs with {} between them: no node says that it has that number",
                    ask.gpus,
                    link.name()
                )
            });
            return Some(link.unwrap_or_else(|| self.largest(ask, &request)));
        }
        if all < wanted {
            return Some(format!("{wanted} tasks at once: all nodes together, empty, have room for {all}"));
        }
        if ask.same == Some(Level::Node) && best < wanted {
            return Some(format!("{wanted} tasks on one node: the largest, empty, has room for {best}"));
        }
        ask.spread.and_then(|spread| {
            let places = self.places(ask.same, spread, specs().filter(|spec| slots(spec) > 0));
            let within = ask.same.map_or_else(String::new, |same| format!(" of one {}", same.name()));
            let spread = spread.name();
            (places < wanted).then(|| {
                format!(
                    "{wanted} tasks in different {spread}s{within}: nodes that could take one, if they were empty, stand \
                     in {places}"
                )
            })
        })
    }

    /// How many domains of the level `apart` these nodes are in, in the domain of the level `same`
    /// with the most if there is to be one.
    fn places<'a>(
        &self,
        same: Option<Level>,
        apart: Level,
        specs: impl Iterator<Item = &'a NodeSpec>,
    ) -> u64 {
        let mut places: BTreeMap<Option<DomainId>, BTreeSet<DomainId>> = BTreeMap::new();
        let domain = |spec: &NodeSpec, of: Level| spec.domains.get(usize::from(level(of))).copied();
        for spec in specs {
            let within = same.and_then(|same| domain(spec, same));
            places.entry(within).or_default().extend(domain(spec, apart));
        }
        places.values().map(|places| places.len() as u64).max().unwrap_or(0)
    }

    fn largest(&self, ask: &NewLease, request: &Request) -> String {
        let specs =
            || self.on_node.values().flatten().map(|&site| self.scheduler.cluster().node(site).spec());
        let gpus = specs().map(|spec| spec.gpus).max().unwrap_or(0);
        let memory = specs().map(|spec| spec.gpu_memory_mib).max().unwrap_or(0);
        if request.gpus > gpus {
            return format!("{} GPUs on one node: no node has more than {gpus} of one kind", ask.gpus);
        }
        if request.gpu_memory_mib > memory {
            let overcommitted = specs().any(|spec| spec.gpu_memory_leasable_mib > spec.gpu_memory_mib);
            let each = if overcommitted { ", and each lease has to fit on its GPU" } else { "" };
            return format!(
                "{} MiB of memory on a GPU: no GPU has more than {memory} MiB{each}",
                request.gpu_memory_mib
            );
        }
        "no node has that number of such GPUs with that amount of memory and these labels".into()
    }
}

/// Tasks that the empty node has room for.
fn slots(spec: &NodeSpec, request: &Request) -> u32 {
    if !request.models.contains(spec.model) || !spec.labels.contains_all(request.labels) || request.gpus == 0
    {
        return 0;
    }
    let request = &request.on(spec);
    let by_compute = u32::from(spec.gpu_milli / spec.takes_milli(request.gpu_milli).max(1));
    let per_gpu = spec.parts_of_empty_gpu(request, by_compute);
    // A task's GPUs are different ones.
    let gpus = u32::from(spec.gpus);
    if gpus < u32::from(request.gpus) { 0 } else { gpus * per_gpu / u32::from(request.gpus) }
}

/// Whether it may not be preempted, and so gets what is guaranteed only.
pub(super) fn is_fixed(ask: &NewLease) -> bool {
    !ask.preemptible || ask.tier.is_premium()
}

/// The first quota, from the tenant upwards, that the request alone would pass.
pub(crate) fn over_quota(fleet: &Fleet, tenant: &TenantPath, ask: &NewLease) -> Option<String> {
    // Of units the share on the fastest GPU that there is, and of a share the units on the slowest.
    let gpus_here = || fleet.nodes().values().flat_map(|node| &node.gpus).map(|gpu| gpu.gflops);
    let share = match ask.units_milli {
        Some(_) => gpus_here().max().map_or(0, |gflops| ask.share_of(gflops).min(GPU_PPM.into())),
        None => u64::from(ask.share_ppm),
    };
    let units = ask.units_milli.unwrap_or_else(|| {
        gpus_here().min().map_or(0, |gflops| u64::from(ask.share_ppm) * gflops / u64::from(GPU_PPM))
    });
    let units_milli = units * u64::from(ask.gpus) * u64::from(ask.tasks);
    let ppm = share * u64::from(ask.gpus) * u64::from(ask.tasks);
    let [_, units_count, _] = fleet.tenants().guarantees();
    let gpus = |ppm: u64| ppm as f64 / f64::from(GPU_PPM);
    tenant.lineage().find_map(|tenant| {
        let quota = fleet.tenants().get(&tenant)?;
        let over = |milli: u32| ppm > u64::from(milli) * 1000;
        if let Some(limit) = quota.limit_milli.filter(|&limit| over(limit)) {
            let limit = gpus(u64::from(limit) * 1000);
            return Some(format!("it asks for {} GPUs, and {tenant} may hold {limit} at most", gpus(ppm)));
        }
        if let Some(limit) = quota.units_limit_milli.filter(|&limit| units_milli > limit) {
            let [asked, limit] = [units_milli, limit].map(|milli| milli as f64 / 1000.0);
            return Some(format!("it asks for {asked} units, and {tenant} may hold {limit} at most"));
        }
        if is_fixed(ask) && over(quota.guaranteed_milli) {
            let guaranteed = gpus(u64::from(quota.guaranteed_milli) * 1000);
            return Some(format!(
                "what may not be preempted gets guaranteed GPUs only: it asks for {}, and {tenant} is guaranteed \
                 {guaranteed}",
                gpus(ppm)
            ));
        }
        if is_fixed(ask) && units_count && units_milli > quota.guaranteed_units_milli {
            let [asked, guaranteed] =
                [units_milli, quota.guaranteed_units_milli].map(|milli| milli as f64 / 1000.0);
            return Some(format!(
                "what may not be preempted gets guaranteed units only: it asks for {asked}, and {tenant} is guaranteed \
                 {guaranteed}"
            ));
        }
        let mib = (ask.memory >> 20) * u64::from(ask.gpus) * u64::from(ask.tasks);
        if let Some(limit) = quota.memory_limit_mib.filter(|&limit| mib > limit) {
            return Some(format!("it asks for {mib} MiB, and {tenant} may hold {limit} MiB at most"));
        }
        let none = quota.leases_limit == Some(0);
        none.then(|| format!("{tenant} may have no leases"))
    })
}
