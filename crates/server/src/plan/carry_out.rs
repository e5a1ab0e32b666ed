//! From the scheduler to the fleet: what it decided is carried out, as far as the places are clear.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use sluice_api::GPU_PPM;
use sluice_api::lease::{LeaseId, LeaseState};
use sluice_sched::queues::{Action, Evicted, JobId};
use sluice_sched::{GpuSet, Placement, Request};

use super::clearance::Clearance;
use super::live::Due;
use super::{Clock, Plan, keeps_its_place};
use crate::fleet::{Fleet, Seat, top};

/// What of a lease has to make room.
pub(super) struct Leaving {
    /// By the lease's numbers.
    pub(super) tasks: Vec<u32>,
    pub(super) reason: String,
    /// Who gets it.
    pub(super) taker: Option<LeaseId>,
}

/// The job for which another is evicted.
fn taker(because: Evicted) -> Option<JobId> {
    match because {
        Evicted::Reclaimed { by, .. } | Evicted::Preempted { by } => Some(by),
        Evicted::Drained | Evicted::Stale { .. } => None,
    }
}

impl Plan {
    pub(super) fn carry_out(&mut self, fleet: &mut Fleet, actions: Vec<Action>, clock: Clock) {
        let lease_of = |plan: &Plan, job| plan.leases.get(&job).copied();
        // One notice says all of it.
        let mut leaving: BTreeMap<LeaseId, Leaving> = BTreeMap::new();
        for action in actions {
            let (job, task) = match action {
                Action::Bind { job, .. } => {
                    self.bound.extend(lease_of(self, job));
                    continue;
                }
                Action::Evict { job, task, .. } | Action::Move { job, task, .. } => (job, task),
            };
            let Some(lease) = lease_of(self, job) else { continue };
            let seat = self.work.get(&lease).and_then(|work| work.seated.get(&task).copied());
            let left = match action {
                Action::Move { from, to, for_job, .. } => {
                    // One that was bound and not granted yet just continues waiting.
                    let Some(seat) = seat else {
                        self.bound.insert(lease);
                        continue;
                    };
                    let other = self.named(fleet, job, for_job);
                    let due = Due::new(task, seat, other, lease_of(self, for_job));
                    match self.is_due(fleet, lease, (&from, &to), due) {
                        Ok(()) => continue,
                        Err((due, why)) => {
                            self.bound.insert(lease);
                            due.restart_because(&why)
                        }
                    }
                }
                Action::Evict { because, .. } => {
                    let Some(seat) = seat else { continue };
                    let taker = taker(because).and_then(|job| lease_of(self, job));
                    Leaving { tasks: vec![seat], reason: self.notice(fleet, job, because), taker }
                }
                Action::Bind { .. } => continue,
            };
            self.work.get_mut(&lease).into_iter().for_each(|work| _ = work.seated.remove(&task));
            match leaving.entry(lease) {
                Entry::Vacant(first) => _ = first.insert(left),
                Entry::Occupied(mut known) => known.get_mut().tasks.extend(left.tasks),
            }
        }
        for (lease, leaving) in leaving {
            self.give_notice(fleet, lease, leaving, clock);
        }
        // What has no place any more is not granted one.
        let has_place = |plan: &Plan, id| !plan.unseated(id).is_empty();
        let without: Vec<LeaseId> = self.bound.iter().copied().filter(|&id| !has_place(self, id)).collect();
        without.iter().for_each(|id| _ = self.bound.remove(id));
    }

    /// Tells a lease that holds its place to make room: these tasks of it, if the others are enough
    /// to continue.
    pub(super) fn give_notice(&mut self, fleet: &mut Fleet, id: LeaseId, leaving: Leaving, clock: Clock) {
        self.due.remove(&id);
        let Leaving { tasks, reason, taker } = leaving;
        let (Some(work), Some(lease)) = (self.work.get_mut(&id), fleet.lease(id)) else { return };
        let at_ms = clock.now_ms + clock.grace_ms;
        if lease.state == LeaseState::Running && work.seated.len() as u32 >= lease.tasks().0 {
            return fleet.ask_back_for(taker, id, &tasks, reason, at_ms);
        }
        work.granted = None;
        work.seated.clear();
        if keeps_its_place(lease) {
            // Its program may have claimed it though no report of that has come: its nodes'
            // next reports say so.
            fleet.preempt_for(taker, id, reason, at_ms);
        }
        // It starts anew, with all of its tasks; those that the scheduler left where they were have
        // their places already.
        if let Some(lease) = fleet.lease(id) {
            self.resize(fleet, lease);
        }
        if !self.unseated(id).is_empty() {
            self.bound.insert(id);
        }
    }

    /// The notice to a program that is preempted.
    fn notice(&self, fleet: &Fleet, job: JobId, because: Evicted) -> String {
        let name = |by: JobId| self.named(fleet, job, by);
        match because {
            Evicted::Reclaimed { by, in_quota: false } => {
                format!("its tenant has more than its fair share, and {} is due to get it", name(by))
            }
            Evicted::Reclaimed { by, in_quota: true } => {
                format!(
                    "its tenant has more than it is guaranteed, and {} is within its own guarantee",
                    name(by)
                )
            }
            Evicted::Drained => "its node is being cleared".into(),
            Evicted::Preempted { by } => format!("{} has a higher priority", name(by)),
            Evicted::Stale { running, tasks_min } => {
                format!("only {running} of its {tasks_min} tasks have run for too long")
            }
        }
    }

    /// Names a lease in a notice for another one, unless they are of different top-level tenants.
    fn named(&self, fleet: &Fleet, job: JobId, other: JobId) -> String {
        let lease = |job| self.leases.get(&job).and_then(|&id| fleet.lease(id));
        match (lease(job), lease(other)) {
            (Some(told), Some(other)) if top(&told.tenant) == top(&other.tenant) => {
                format!("lease {} of {}", other.id, other.tenant)
            }
            (_, Some(_)) => "a lease of another tenant".into(),
            _ => "another lease".into(),
        }
    }

    /// Grants what is bound and whose place is clear.
    pub(super) fn grant(&mut self, fleet: &mut Fleet, clock: Clock) {
        self.start_due(fleet, clock);
        for id in self.bound.iter().copied().collect::<Vec<_>>() {
            let Some(lease) = fleet.lease(id) else { continue };
            let places = self.unseated(id);
            let count = places.len();
            let min = match lease.state {
                LeaseState::Queued => self.tasks(fleet, lease).0 as usize,
                LeaseState::Running => 1,
                // It has to start, or to make room, before.
                _ => continue,
            };
            let clear = Clearance::of(fleet, lease, places);
            if count < min {
                self.bound.remove(&id);
            } else if clear.places.len() >= min {
                if clear.places.len() == count {
                    self.bound.remove(&id);
                }
                self.seat(fleet, id, clear.places, clock);
            }
        }
    }

    /// Grants places to a lease: its first ones, or further ones while it runs.
    fn seat(&mut self, fleet: &mut Fleet, id: LeaseId, places: Vec<(u32, Seat)>, clock: Clock) {
        let (Some(work), Some(lease)) = (self.work.get_mut(&id), fleet.lease(id)) else { return };
        let numbers = lease.seats.len() as u32..;
        let (tasks, seats): (Vec<u32>, Vec<Seat>) = places.into_iter().unzip();
        work.seated.extend(tasks.into_iter().zip(numbers));
        work.granted = Some(lease.attempt);
        if lease.waits() {
            fleet.grant(id, seats, clock.now_ms);
        } else {
            fleet.grow(id, seats, clock.now_ms);
        }
    }

    /// Tasks that the scheduler has bound, by its numbers, and that have not been granted: those of
    /// a lease that waits, or further ones of a lease that runs.
    pub(super) fn unseated(&self, id: LeaseId) -> Vec<(u32, Seat)> {
        let Some((work, job)) =
            self.work.get(&id).and_then(|work| Some((work, self.scheduler.job(work.job)?)))
        else {
            return Vec::new();
        };
        let seat = |(task, placement): (u32, &Placement)| Some((task, self.seat_of(placement, work.memory)?));
        job.tasks().filter(|(task, _)| !work.seated.contains_key(task)).filter_map(seat).collect()
    }

    /// Translates a placement of the scheduler. A lease that does not ask for `memory` gets what
    /// its share is of that GPU's.
    pub(super) fn seat_of(&self, placement: &Placement, memory: u64) -> Option<Seat> {
        let site = self.sites.get(placement.node.index())?;
        let gpus = placement.gpus.iter().filter_map(|gpu| site.gpus.get(gpu).copied()).collect();
        let units_milli = self.scheduler.cluster().node(placement.node).spec().gpu_units_milli;
        let share_ppm = placement.request.by_units.then(|| {
            let units = u64::from(placement.request.gpu_units_milli) * u64::from(GPU_PPM);
            units.div_ceil(u64::from(units_milli.max(1))) as u32
        });
        let memory = match memory {
            0 => u64::from(placement.request.gpu_memory_mib) << 20,
            bytes => bytes,
        };
        Some(Seat { share_ppm, ..Seat::new(site.node, gpus, memory) })
    }

    /// Where the scheduler counts a seat, with these bytes of each GPU: where it moves, if it does.
    pub(super) fn placement(&self, seat: &Seat, request: Request, memory: u64) -> Option<Placement> {
        let seat = &seat.at_target();
        let sites = self.on_node.get(&seat.node)?;
        sites.iter().find_map(|&node| {
            let here = &self.sites.get(node.index())?.gpus;
            let at = |gpu: &u32| here.iter().position(|other| other == gpu);
            let gpus = seat.gpus.iter().map(at).collect::<Option<Vec<usize>>>()?;
            let request = request.on(self.scheduler.cluster().node(node).spec());
            // What it has, which need not be what it would get now.
            let gpu_memory_mib = u32::try_from(memory.div_ceil(1 << 20)).unwrap_or(u32::MAX);
            let request = Request { gpu_memory_mib, ..request };
            Some(Placement { request, node, gpus: gpus.into_iter().fold(GpuSet::EMPTY, GpuSet::with) })
        })
    }
}
