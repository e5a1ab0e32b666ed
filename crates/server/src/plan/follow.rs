//! From the fleet to the scheduler: what has changed there.

use std::collections::BTreeSet;

use sluice_api::bill::BudgetEnd;
use sluice_api::lease::{LeaseId, LeaseState};
use sluice_api::node::NodeId;
use sluice_api::tenant::TenantPath;
use sluice_sched::queues::{Amounts, QueueId, QueueTree, Scheduler};

use super::enter::{bare_request, milli};
use super::sites::{Site, TooMany};
use super::{Clock, Plan, keeps_its_place, queues};
use crate::fleet::{Fleet, LeaseRecord, News, Seat};

impl Plan {
    pub(super) fn follow_quotas(&mut self, fleet: &Fleet) {
        // The GPUs within a limit may be others now.
        let of_units = self.has_unit_limits || fleet.tenants().have_units_limits();
        if of_units || fleet.leases().any(|lease| lease.ask.units_milli.is_some()) {
            return self.begin_anew(fleet);
        }
        // Leases of a tenant that has got others below it go to the queue for what it asks for
        // itself.
        let home = |tree: &QueueTree, queue: &str| queues::queue_of(tree, &queues::tenant_of(queue)?);
        let mut active = self.tenants_with_history(fleet);
        active.extend(self.work.values().map(|work| work.tenant.clone()));
        let followed =
            queues::tree(fleet.tenants(), &active).map(|tree| self.scheduler.set_queues(tree, home));
        if !matches!(followed, Ok(Ok(()))) {
            self.begin_anew(fleet);
        }
    }

    /// The tenants whose use of late still counts.
    fn tenants_with_history(&self, fleet: &Fleet) -> BTreeSet<TenantPath> {
        let tree = self.scheduler.queues();
        let used = tree.top_down().filter(|queue| self.scheduler.has_history(*queue));
        let tenants = used.filter_map(|queue| queues::tenant_of(&tree.queue(queue).name));
        tenants.filter(|tenant| fleet.tenants().contains(tenant)).collect()
    }

    /// The queue that a tenant's own work waits in, added where it is not there; none where there
    /// is no such tenant. The error says why it cannot be added.
    pub(super) fn queue_for(
        &mut self,
        fleet: &Fleet,
        tenant: &TenantPath,
    ) -> Result<Option<QueueId>, String> {
        if !fleet.tenants().contains(tenant) {
            return Ok(None);
        }
        add_queue(&mut self.scheduler, fleet, tenant)
    }

    /// Made anew, it knows what tenants have used of late.
    pub(super) fn begin_anew(&mut self, fleet: &Fleet) {
        let mut plan = Plan::new(fleet, self.now_ms, self.half_life_ms);
        for tenant in self.tenants_with_history(fleet) {
            // Where quotas contradict each other nothing is planned.
            let _ = plan.queue_for(fleet, &tenant);
        }
        plan.scheduler.keep_use_of(&self.scheduler);
        *self = plan;
    }

    /// Counts what these leases have held, and those that are in the fleet.
    pub(crate) fn recall_use(&mut self, fleet: &Fleet, past: &[LeaseRecord]) {
        if self.half_life_ms.is_some() {
            for lease in past {
                // Where quotas contradict each other nothing is planned.
                let _ = self.queue_for(fleet, &lease.tenant);
            }
        }
        let tree = self.scheduler.queues();
        // When a single task ended is not in the state: of a lease that continues what it holds
        // counts, of another the last it had.
        let held = |lease: &LeaseRecord| {
            let queue = queues::queue_of(tree, &lease.tenant);
            let until_ms = lease.ended_at_ms.unwrap_or(self.now_ms);
            let goes_on = lease.ended_at_ms.is_none();
            let seats = lease.seats.iter().rev().filter(|seat| !goes_on || !seat.over);
            let most = lease.ask.tasks_max.unwrap_or(lease.ask.tasks) as usize;
            let held = seats.take(most).filter_map(|seat| {
                let from_ms = seat.granted_at_ms.or(lease.granted_at_ms)?;
                let request = bare_request(&lease.ask, seat.held_memory());
                let request = request.with_gpus(request.gpus, milli(lease.share_ppm(seat).into()));
                Some((queue?, Amounts::of(&request, 1), (from_ms, until_ms)))
            });
            held.collect::<Vec<_>>()
        };
        let ended = past.iter().filter(|lease| lease.state == LeaseState::Ended);
        let past: Vec<_> = ended.chain(fleet.leases()).flat_map(held).collect();
        self.scheduler.recall_use(self.now_ms, past);
    }

    /// Keeps what waits under a spent budget from the scheduler, and preempts what runs if the
    /// budget says so.
    pub(super) fn follow_budgets(&mut self, fleet: &mut Fleet, clock: Clock) {
        let spent = |lease: &&LeaseRecord| fleet.budgets().spent(&lease.tenant);
        let stopped = fleet.leases().filter(|lease| spent(lease).is_some());
        let stopped: Vec<LeaseId> = stopped.map(|lease| lease.id).collect();
        for id in stopped {
            let Some(lease) = fleet.lease(id) else { continue };
            let ends =
                fleet.budgets().spent(&lease.tenant).is_some_and(|(_, then)| then == BudgetEnd::Preempt);
            if lease.waits() {
                self.forget(id);
                self.submit(fleet, lease);
            } else if ends && keeps_its_place(lease) {
                fleet.preempt(id, "the budget is spent".into(), clock.now_ms + clock.grace_ms);
                // It waits from now on, as far as the scheduler goes.
                self.forget(id);
            }
        }
    }

    pub(super) fn meets_new_kinds(&self, fleet: &Fleet, news: &News) -> bool {
        let mut nodes = news.nodes.iter().filter_map(|id| fleet.nodes().get(id));
        nodes.any(|node| !self.atlas.knows(fleet, node))
    }

    pub(super) fn follow_node(&mut self, fleet: &Fleet, id: NodeId) {
        let Some(node) = fleet.nodes().get(&id) else { return };
        if !self.on_node.contains_key(&id) {
            match self.atlas.sites(fleet, node) {
                Ok(sites) => self.add_sites(id, sites),
                Err(TooMany) => {
                    tracing::warn!(
                        node = node.name,
                        "{}: more than 64 kinds of GPUs or labels are here; it is not used",
                        node.name
                    );
                    return;
                }
            }
        }
        for &site in self.on_node.get(&id).into_iter().flatten() {
            // The scheduler knows all its sites, and their GPUs.
            let _ = self.scheduler.set_schedulable(site, node.takes_work());
            let _ = self.scheduler.set_links(site, super::sites::links(node, &self.sites[site.index()].gpus));
            for (place, &gpu) in self.sites[site.index()].gpus.iter().enumerate() {
                let _ = self.scheduler.set_fenced(site, place, fleet.is_fenced(id, gpu));
            }
            self.scheduler.forgive(site);
        }
        fleet.refused_by(id).for_each(|lease| self.avoid_refusers(fleet, lease));
    }

    /// Has a lease look elsewhere than on nodes that have just refused it.
    pub(super) fn avoid_refusers(&mut self, fleet: &Fleet, id: LeaseId) {
        let Some(job) = self.work.get(&id).map(|work| work.job) else { return };
        for node in fleet.refusers_of(id) {
            for &site in self.on_node.get(&node).into_iter().flatten() {
                self.scheduler.avoid(job, site);
            }
        }
    }

    fn add_sites(&mut self, node: NodeId, sites: Vec<(Site, sluice_sched::NodeSpec)>) {
        for (site, spec) in sites {
            if let Ok(id) = self.scheduler.add_node(spec) {
                self.on_node.entry(node).or_default().push(id);
                self.sites.push(site);
            }
        }
    }

    pub(super) fn follow(&mut self, fleet: &Fleet, id: LeaseId) {
        let Some(lease) = fleet.lease(id).filter(|lease| lease.state != LeaseState::Ended) else {
            return self.forget(id);
        };
        let Some(work) = self.work.get_mut(&id) else {
            return if keeps_its_place(lease) { self.adopt(fleet, lease) } else { self.submit(fleet, lease) };
        };
        let asks_anew = || work.asked != (lease.ask.share_ppm, lease.ask.memory);
        if work.queued_at_ms != lease.queued_at_ms
            || lease.waits() && work.granted != Some(lease.attempt) && asks_anew()
        {
            // It gave up its place in line, or asks for another size.
            self.forget(id);
            self.submit(fleet, lease);
        } else if lease.waits() && work.granted.is_some_and(|attempt| attempt != lease.attempt) {
            // Its node refused it, or it was lost there.
            work.granted = None;
            work.seated.clear();
            self.avoid_refusers(fleet, id);
            self.lose_unseated(id);
            self.resize(fleet, lease);
        } else if keeps_its_place(lease) {
            self.follow_size(lease);
            self.follow_tasks(fleet, lease);
            self.follow_mobility(fleet, id);
        }
    }

    /// Tells the scheduler which tasks of a lease that continues have ended, and how many it is
    /// still to have.
    pub(super) fn follow_tasks(&mut self, fleet: &Fleet, lease: &LeaseRecord) {
        let Some(work) = self.work.get_mut(&lease.id).filter(|work| work.granted.is_some()) else { return };
        let goes_on = |seat: &u32| lease.seats.get(*seat as usize).is_some_and(Seat::stays);
        let over: Vec<u32> =
            work.seated.iter().filter(|(_, seat)| !goes_on(seat)).map(|(&task, _)| task).collect();
        let job = work.job;
        for task in over {
            work.seated.remove(&task);
            self.scheduler.task_lost(self.now_ms, job, task);
        }
        self.avoid_refusers(fleet, lease.id);
        self.resize(fleet, lease);
    }

    /// Has the scheduler know how many tasks the lease is to have.
    pub(super) fn resize(&mut self, fleet: &Fleet, lease: &LeaseRecord) {
        let Some(job) = self.work.get(&lease.id).map(|work| work.job) else { return };
        let (min, max) = self.tasks(fleet, lease);
        if self.scheduler.job(job).is_some_and(|job| job.running() > max) {
            // Some have a place that they do not get any more.
            self.lose_unseated(lease.id);
            self.bound.remove(&lease.id);
        }
        // What still runs was counted, so there is nothing to refuse.
        let _ = self.scheduler.resize(self.now_ms, job, min, max);
    }

    /// The fewest and the most tasks that a lease is to have now. One that runs gets no further
    /// ones while it is suspended or its tenant's budget is spent, or where no pool serves it any
    /// more.
    pub(super) fn tasks(&self, fleet: &Fleet, lease: &LeaseRecord) -> (u32, u32) {
        let (min, max) = lease.tasks();
        let has = lease.seats.iter().filter(|seat| seat.stays()).count() as u32;
        let may_grow = || {
            !lease.held().any(|(_, seat)| seat.suspended)
                && fleet.budgets().spent(&lease.tenant).is_none()
                && self.request(fleet, &lease.tenant, &lease.ask).is_ok()
        };
        if keeps_its_place(lease) && max > has && !may_grow() { (min, has.max(min)) } else { (min, max) }
    }

    /// Tasks that have a place and no seat wait again, at the old place in line.
    pub(super) fn lose_unseated(&mut self, id: LeaseId) {
        let Some(job) = self.work.get(&id).map(|work| work.job) else { return };
        for (task, _) in self.unseated(id) {
            self.scheduler.task_lost(self.now_ms, job, task);
        }
    }

    pub(super) fn forget(&mut self, id: LeaseId) {
        self.held_back.remove(&id);
        self.bound.remove(&id);
        self.due.remove(&id);
        if let Some(work) = self.work.remove(&id) {
            self.scheduler.finish(work.job);
            self.leases.remove(&work.job);
            for tenant in work.tenant.lineage() {
                self.counts.entry(tenant).and_modify(|count| *count = count.saturating_sub(1));
            }
        }
    }
}

/// Finds the queue that a tenant's own work waits in, or adds it. The error says why it cannot be
/// added.
pub(super) fn add_queue(
    scheduler: &mut Scheduler,
    fleet: &Fleet,
    tenant: &TenantPath,
) -> Result<Option<QueueId>, String> {
    if let Some(queue) = queues::queue_of(scheduler.queues(), tenant) {
        return Ok(Some(queue));
    }
    let mut lineage: Vec<TenantPath> = tenant.lineage().collect();
    lineage.reverse();
    for spec in lineage.iter().flat_map(|path| queues::specs(fleet.tenants(), path)) {
        if scheduler.queues().find(&spec.name).is_none() {
            scheduler.add_queue(&spec).map_err(|error| error.to_string())?;
        }
    }
    Ok(queues::queue_of(scheduler.queues(), tenant))
}
