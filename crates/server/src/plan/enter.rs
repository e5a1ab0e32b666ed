//! From the fleet to the scheduler: leases that wait, or have their place, and what they ask for.

use std::collections::BTreeMap;

use sluice_api::GPU_PPM;
use sluice_api::lease::{LeaseId, Level, Link, NewLease};
use sluice_api::tenant::{Quota, TenantPath};
use sluice_sched::queues::{JobId, JobSpec, Mobility, QueueId, Topology};
use sluice_sched::{ModelId, ModelSet, Request, WHOLE_GPU_MILLI};

use super::never::is_fixed;
use super::{Plan, Work};
use crate::fleet::{Fleet, LeaseRecord, Seat, memory_is_fixed};

impl Plan {
    pub(super) fn submit(&mut self, fleet: &Fleet, lease: &LeaseRecord) {
        self.fresh.push(lease.id);
        if let Some(reason) = self.kept_out(fleet, lease) {
            self.held_back.insert(lease.id, reason);
            return;
        }
        self.held_back.remove(&lease.id);
        let (min, max) = lease.tasks();
        let request = self.request(fleet, &lease.tenant, &lease.ask);
        match request.and_then(|request| self.enter(fleet, lease, request, min, max)) {
            Ok(_) => self.avoid_refusers(fleet, lease.id),
            Err(reason) => drop(self.held_back.insert(lease.id, reason)),
        }
    }

    /// Takes over a lease that has its place.
    pub(super) fn adopt(&mut self, fleet: &Fleet, lease: &LeaseRecord) {
        // It is where it is, whatever it would accept today; should it have to leave, it goes where
        // it would accept.
        let memory = lease.seats.iter().find(|seat| seat.stays()).map_or(0, |seat| seat.memory);
        let (ask, holds) = (counted(lease), holds_less(lease));
        let ask = match holds {
            Some(_) => lease.ask.clone(),
            None => ask,
        };
        let bare = bare_request(&ask, memory);
        let full = self.request(fleet, &lease.tenant, &ask);
        let request = full.map_or(bare, |full| match full.memory_by_share {
            true => full,
            false => full.with_gpu_memory(bare.gpu_memory_mib),
        });
        let (min, max) = self.tasks(fleet, lease);
        let Ok(job) = self.enter(fleet, lease, request, min, max) else { return };
        if let Some((share_ppm, held)) = holds {
            // It has no task there yet that could be in the way.
            let _ = self.count_as(lease.id, share_ppm, held, memory);
        }
        let request = self.scheduler.job(job).map_or(request, |job| job.spec().request);
        // Those that have notice make room, as far as the scheduler goes.
        let staying = (0..).zip(&lease.seats).filter(|(_, seat)| seat.stays());
        let seated: BTreeMap<u32, u32> = (0..).zip(staying.clone().map(|(number, _)| number)).collect();
        let placement = |seat: &Seat| {
            let held = holds.map_or(seat.memory, |(_, held)| held);
            self.placement(seat, request, held)
        };
        let placements = (0..).zip(staying).map(|(task, (_, seat))| Some((task, placement(seat)?)));
        let adopted = placements.collect::<Option<Vec<_>>>().is_some_and(|placements| {
            let started = lease.granted_at_ms.unwrap_or(0);
            self.scheduler.adopt(started, job, &placements, started).is_ok()
        });
        match self.work.get_mut(&lease.id) {
            Some(work) if adopted => {
                (work.granted, work.seated) = (Some(lease.attempt), seated);
                self.follow_mobility(fleet, lease.id);
            }
            // A node came back with other GPUs than it had: the lease ends there by itself.
            _ => self.forget(lease.id),
        }
    }

    fn enter(
        &mut self,
        fleet: &Fleet,
        lease: &LeaseRecord,
        request: Request,
        min: u32,
        max: u32,
    ) -> Result<JobId, String> {
        let queue = self.queue_for(fleet, &lease.tenant)?;
        let queue = queue.ok_or_else(|| format!("there is no tenant {} any more", lease.tenant))?;
        let spec = spec(lease, queue, request, (min, max));
        let job = self.scheduler.submit(spec).map_err(|error| error.to_string())?;
        self.leases.insert(job, lease.id);
        for tenant in lease.tenant.lineage() {
            *self.counts.entry(tenant).or_default() += 1;
        }
        let (memory, tenant, queued_at_ms) = (lease.ask.memory, lease.tenant.clone(), lease.queued_at_ms);
        let (asked, seated) = ((lease.ask.share_ppm, memory), BTreeMap::new());
        self.work.insert(lease.id, Work { job, tenant, memory, asked, queued_at_ms, granted: None, seated });
        Ok(job)
    }

    /// What the scheduler is asked for; the error says why no GPU that is known would do.
    pub(super) fn request(
        &self,
        fleet: &Fleet,
        tenant: &TenantPath,
        ask: &NewLease,
    ) -> Result<Request, String> {
        if self.sites.is_empty() {
            // Nothing is known; with the first node the plan is made anew.
            return Ok(bare_request(ask, ask.memory));
        }
        let models = self.atlas.accepted(ask, |pool| self.pools.serve(fleet, pool, tenant, ask));
        if models == ModelSet::NONE {
            return Err(self.no_kind(fleet, tenant, ask));
        }
        self.request_of(ask, self.within_limits(fleet, tenant, ask, models))
    }

    /// Those of these kinds on which it alone is within the limits of its tenants, and what may not
    /// be preempted within their guarantees, if there are any: units are more of one GPU than of
    /// another, and a share is more units and memory of one than of another.
    fn within_limits(
        &self,
        fleet: &Fleet,
        tenant: &TenantPath,
        ask: &NewLease,
        models: ModelSet,
    ) -> ModelSet {
        let count = u64::from(ask.gpus) * u64::from(ask.tasks);
        let [_, units_count, memory_counts] = fleet.tenants().guarantees();
        let is_within = |model: &ModelId| {
            let (gpus, units) = self.atlas.compute(*model, ask);
            let memory_mib = self.atlas.memory_mib(*model, ask);
            let within = |quota: &Quota| {
                quota.limit_milli.is_none_or(|limit| gpus * count <= u64::from(limit))
                    && quota.units_limit_milli.is_none_or(|limit| units * count <= limit)
                    && quota.memory_limit_mib.is_none_or(|limit| memory_mib * count <= limit)
                    && (!is_fixed(ask)
                        || gpus * count <= u64::from(quota.guaranteed_milli)
                            && (!units_count || units * count <= quota.guaranteed_units_milli)
                            && (!memory_counts || memory_mib * count <= quota.guaranteed_memory_mib))
            };
            tenant.lineage().filter_map(|tenant| fleet.tenants().get(&tenant)).all(within)
        };
        let accepted = ModelId::all().filter(|&model| models.contains(model));
        let within: ModelSet = accepted.filter(is_within).collect();
        if within == ModelSet::NONE { models } else { within }
    }

    pub(super) fn request_of(&self, ask: &NewLease, models: ModelSet) -> Result<Request, String> {
        let request = bare_request(ask, self.memory_of(ask, models));
        // What it may be at most, until there is a place.
        let (slowest, fastest) = self.atlas.gflops(models);
        let request = if request.by_units {
            Request { gpu_milli: milli(ask.share_of(slowest)), ..request }
        } else {
            let units = u64::from(request.gpu_milli) * fastest / 1000;
            Request { gpu_units_milli: u32::try_from(units).unwrap_or(u32::MAX), ..request }
        };
        Ok(request.with_models(models).with_labels(self.atlas.labels_of(ask)?))
    }

    /// The memory that it asks for on each GPU, in bytes: the most of what that is on any GPU that
    /// it accepts.
    fn memory_of(&self, ask: &NewLease, models: ModelSet) -> u64 {
        if ask.memory > 0 {
            return ask.memory;
        }
        let accepted = ModelId::all().filter(|&model| models.contains(model));
        accepted.map(|model| self.atlas.memory_mib(model, ask)).max().unwrap_or(0) << 20
    }

    /// What keeps a lease from the scheduler, which knows no such limits.
    pub(super) fn kept_out(&self, fleet: &Fleet, lease: &LeaseRecord) -> Option<String> {
        let budget = fleet.budgets().spent(&lease.tenant);
        let budget =
            budget.map(|(tenant, _)| format!("budget: {tenant} has spent what it may in this period"));
        budget.or_else(|| self.over_count(fleet, lease))
    }

    /// The first limit on the number of leases, from the tenant upwards, that is reached.
    pub(super) fn over_count(&self, fleet: &Fleet, lease: &LeaseRecord) -> Option<String> {
        lease.tenant.lineage().find_map(|tenant| {
            let limit = fleet.tenants().get(&tenant)?.leases_limit?;
            let count = self.counts.get(&tenant).copied().unwrap_or(0);
            (count >= limit).then(|| format!("limit: {tenant} has {count} leases, and may have {limit}"))
        })
    }

    /// Lets those in that a limit on the number of leases kept out, as far as there is room now.
    pub(super) fn let_go(&mut self, fleet: &Fleet) {
        let held_back: Vec<LeaseId> = self.held_back.keys().copied().collect();
        for id in held_back {
            if let Some(lease) = fleet.lease(id).filter(|lease| self.kept_out(fleet, lease).is_none()) {
                self.submit(fleet, lease);
            }
        }
    }
}

/// Describes a lease to the scheduler, with the fewest and the most tasks that it runs.
pub(super) fn spec(lease: &LeaseRecord, queue: QueueId, request: Request, (min, max): (u32, u32)) -> JobSpec {
    JobSpec {
        queue,
        request,
        tasks_min: min,
        tasks_max: max,
        priority: lease.priority(),
        preemptible: lease.is_preemptible(),
        // Until it runs.
        mobility: Mobility::Restarts,
        topology: Topology {
            required: lease.ask.same.map(level),
            preferred: lease.ask.near.map(level),
            apart: lease.ask.spread.map(level),
        },
    }
}

/// What a lease asks for, with the share that it counts as while that changes.
fn counted(lease: &LeaseRecord) -> NewLease {
    let seat = lease.seats.iter().find(|seat| seat.stays()).filter(|_| lease.ask.units_milli.is_none());
    let share_ppm = seat.map_or(lease.ask.share_ppm, |seat| lease.share_ppm(seat));
    NewLease { share_ppm, ..lease.ask.clone() }
}

/// The share and the bytes of each GPU that a lease keeps from others, where that is less than it
/// asks for: it is suspended.
fn holds_less(lease: &LeaseRecord) -> Option<(u32, u64)> {
    let staying = || lease.seats.iter().filter(|seat| seat.stays());
    let seat = staying().next().filter(|_| staying().any(|seat| seat.suspended))?;
    Some((lease.share_ppm(seat), staying().map(Seat::held_memory).max()?))
}

/// Shares are rounded up to thousandths and memory to MiB: nothing is promised twice.
pub(super) fn bare_request(ask: &NewLease, memory: u64) -> Request {
    let gpus = u8::try_from(ask.gpus).unwrap_or(u8::MAX);
    let memory_mib = u32::try_from(memory.div_ceil(1 << 20)).unwrap_or(u32::MAX);
    let linked = ask.linked.map(|link| match link {
        Link::Nvlink => sluice_sched::Link::Nvlink,
        Link::Numa => sluice_sched::Link::Numa,
    });
    // Unless said it is the share's part of the memory of the GPU on which the lease is placed.
    let memory_by_share = ask.memory == 0 && ask.gpus > 0;
    let fixed = memory_is_fixed(ask.tier, ask.gpus as usize);
    let bare = Request::cpu(0, 0).with_gpu_memory(memory_mib);
    let request = Request { linked, memory_by_share, fixed, ..bare };
    match ask.units_milli {
        Some(units) => {
            request.with_gpu_units(gpus, u32::try_from(units).unwrap_or(u32::MAX), WHOLE_GPU_MILLI)
        }
        None => request.with_gpus(gpus, milli(ask.share_ppm.into())),
    }
}

/// Millionths of a GPU in thousandths.
pub(super) fn milli(ppm: u64) -> u16 {
    u16::try_from(ppm.div_ceil(u64::from(GPU_PPM / 1000))).unwrap_or(u16::MAX)
}

/// By its place in [`Level::ALL`], as the scheduler counts levels.
pub(super) fn level(level: Level) -> u8 {
    level as u8
}
