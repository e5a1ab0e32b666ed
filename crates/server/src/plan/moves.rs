//! Places for leases that move while their programs run: the scheduler counts them at their new
//! place from the beginning, and the fleet at both.

use sluice_api::lease::LeaseId;
use sluice_api::node::NodeId;
use sluice_sched::queues::JobId;
use sluice_sched::{GpuSet, Placement};

use super::clearance::Clearance;
use super::{Plan, sites};
use crate::fleet::{Fleet, Seat};

impl Plan {
    /// Finds a place for a task of a lease as [`Plan::find_elsewhere`] does. The scheduler counts
    /// the task there when this returns.
    pub(crate) fn place_elsewhere(
        &mut self,
        fleet: &Fleet,
        id: LeaseId,
        task: u32,
        to: (Option<NodeId>, Option<u32>),
    ) -> Result<(NodeId, Vec<u32>), String> {
        self.look_elsewhere(fleet, id, task, to, |plan, job, number, to| {
            plan.scheduler.relocate(plan.now_ms, job, number, to).is_ok()
        })
    }

    /// Finds a place for a task of a lease on another node: on this one, and on this GPU of it, if
    /// one is named. Its GPU is of the same kind, so prices and quotas stay as they are.
    pub(crate) fn find_elsewhere(
        &mut self,
        fleet: &Fleet,
        id: LeaseId,
        task: u32,
        to: (Option<NodeId>, Option<u32>),
    ) -> Result<(NodeId, Vec<u32>), String> {
        self.look_elsewhere(fleet, id, task, to, |_, _, _, _| true)
    }

    /// The first good place that the caller can take.
    fn look_elsewhere(
        &mut self,
        fleet: &Fleet,
        id: LeaseId,
        task: u32,
        (node, gpu): (Option<NodeId>, Option<u32>),
        take: impl Fn(&mut Plan, JobId, u32, Placement) -> bool,
    ) -> Result<(NodeId, Vec<u32>), String> {
        let again = || "the scheduler does not know the lease yet: ask again".to_owned();
        let (lease, work) = fleet.lease(id).zip(self.work.get(&id)).ok_or_else(again)?;
        let job = work.job;
        let number = work.seated.iter().find(|(_, seat)| **seat == task).map(|(&number, _)| number);
        let number = number.ok_or_else(again)?;
        let seat = lease.seats.get(task as usize).ok_or_else(again)?;
        if node == Some(seat.node) {
            return Err(format!("lease {id} is on that node already"));
        }
        let mut sites = self.sites_like(seat, node)?;
        let has_gpu =
            |site: &sluice_sched::NodeId| gpu.is_none_or(|gpu| self.sites[site.index()].gpus.contains(&gpu));
        sites.retain(has_gpu);
        // A program that would end otherwise is tried anywhere: its own refusal counts by itself.
        let must_leave = seat.gpus.iter().any(|&gpu| fleet.is_fenced(seat.node, gpu));
        let mut rests = None;
        while let Some(to) = self.place_on(job, number, &sites, gpu) {
            let place = self.seat_of(&to, seat.memory).map(|to| Seat {
                node: to.node,
                gpus: to.gpus,
                ..seat.clone()
            });
            let Some(place) = place else { break };
            // A lease that has to leave the place may still be there.
            let is_clear = Clearance::of(fleet, lease, vec![(0, place.clone())]).in_the_way.is_none();
            let takes_work = fleet.nodes().get(&place.node).is_some_and(|node| node.takes_work());
            let is_fenced = place.gpus.iter().any(|&gpu| fleet.is_fenced(place.node, gpu));
            // One that was named says itself why not.
            let rest = fleet
                .rest_between(seat.node, place.node, self.now_ms)
                .filter(|_| node.is_none() && !must_leave);
            let may_take = node.is_some() || (rest.is_none() && fleet.exchanges(place.node).is_ok());
            rests = rests.or(rest);
            let is_open = takes_work && !is_fenced && is_clear && may_take;
            if is_open && take(self, job, number, to) {
                return Ok((place.node, place.gpus));
            }
            sites.retain(|&site| site != to.node);
        }
        Err(match (node.and_then(|node| fleet.nodes().get(&node)), gpu) {
            (Some(node), Some(gpu)) => format!("GPU {gpu} of node {} has no room for it now", node.name),
            (Some(node), None) => format!("node {} has no room for it now", node.name),
            (None, _) => {
                rests.unwrap_or_else(|| "no GPU of the same kind on another node has room for it now".into())
            }
        })
    }

    /// The sites of other nodes whose GPUs are of the same kind as that of a seat.
    fn sites_like(&self, seat: &Seat, node: Option<NodeId>) -> Result<Vec<sluice_sched::NodeId>, String> {
        let gpu = seat.gpus.first().copied().unwrap_or(0);
        let own = self.on_node.get(&seat.node).into_iter().flatten();
        let own = own.copied().find(|site| self.sites[site.index()].gpus.contains(&gpu));
        let own = own.ok_or("its node is not known to the scheduler")?;
        let model = |site: sluice_sched::NodeId| self.scheduler.cluster().node(site).spec().model;
        let all = self.on_node.iter().filter(|(other, _)| **other != seat.node);
        let named = all.filter(|(other, _)| node.is_none_or(|node| node == **other));
        let mut sites: Vec<_> = named.flat_map(|(_, sites)| sites.iter().copied()).collect();
        sites.retain(|&site| model(site) == model(own));
        sites.sort_unstable();
        if sites.is_empty() {
            let kind = self.atlas.kind_of(model(own)).map_or_else(String::new, sites::Kind::describe);
            return Err(format!("no other node that it may move to has a GPU of the same kind ({kind})"));
        }
        Ok(sites)
    }

    /// The best place on these sites, or on this GPU of theirs.
    fn place_on(
        &mut self,
        job: JobId,
        number: u32,
        sites: &[sluice_sched::NodeId],
        gpu: Option<u32>,
    ) -> Option<Placement> {
        let best = self.scheduler.place_for(job, number, sites)?;
        let Some(gpu) = gpu else { return Some(best) };
        let index = self.sites[best.node.index()].gpus.iter().position(|&other| other == gpu)?;
        Some(Placement { gpus: GpuSet::EMPTY.with(index), ..best })
    }
}
