//! Finding places for all the tasks that a job needs at once, or none.

use super::job::{Class, JobId};
use super::scheduler::Scheduler;
use super::why::Blocked;
use crate::{Cluster, NodeId, Placement, Unplaced};

/// Tasks that were put on nodes for a job, by their numbers.
pub(super) type Placed = Vec<(u32, Placement)>;

impl Scheduler {
    /// Puts all tasks on nodes that the class needs at once, or says what keeps it from that and changes nothing.
    pub(super) fn place(&mut self, id: JobId, class: &Class) -> Result<Placed, Blocked> {
        let gathered = class.topology.required.is_some() || class.topology.preferred.is_some();
        let gathered = gathered && (class.needs > 1 || class.joins.is_some());
        if class.avoids.is_some() {
            return self.place_elsewhere(id, class, gathered);
        }
        if gathered {
            return self.place_gathered(id, class);
        }
        if class.needs > 1 {
            let fit = self.slots.of(&self.cluster, &class.request).fit(self.domains.all(), class.needs);
            if fit < class.needs {
                return Err(self.no_room(class, fit));
            }
        }
        let mut placed = Placed::new();
        for _ in 0..class.needs {
            match self.placer.place(&self.cluster, &class.request) {
                Ok(placement) => self.put_next(id, placement, &mut placed),
                Err(nodes) => {
                    let fit = placed.len() as u32;
                    self.undo(id, placed);
                    return Err(Blocked::Room { needs: class.needs, fit, nodes });
                }
            }
        }
        Ok(placed)
    }

    /// The same for tasks that stand near each other: from the preferred level to the required one, in the domain with the
    /// least free room that suffices.
    fn place_gathered(&mut self, id: JobId, class: &Class) -> Result<Placed, Blocked> {
        if let Some(nodes) = self.joined_domain(id, class) {
            let nodes = nodes.to_vec();
            return self.place_inside(id, class, &nodes).ok_or_else(|| {
                let fit = self.slots.of(&self.cluster, &class.request).fit(&nodes, class.needs);
                Blocked::Topology {
                    level: class.topology.required.unwrap_or_default(),
                    needs: class.needs,
                    fit,
                }
            });
        }
        let (required, preferred) = (class.topology.required, class.topology.preferred);
        let narrowest = preferred.or(required).unwrap_or_default();
        let mut most = 0;
        for level in (required.unwrap_or(0)..=narrowest).rev() {
            let slots = self.slots.of(&self.cluster, &class.request);
            let mut best: Option<(u64, Vec<NodeId>)> = None;
            for (_, nodes) in self.domains.of_level(level) {
                let fit = slots.fit(nodes, class.needs);
                most = most.max(fit);
                if fit == class.needs {
                    let free = free_room(&self.cluster, nodes);
                    if best.as_ref().is_none_or(|(least, _)| free < *least) {
                        best = Some((free, nodes.to_vec()));
                    }
                }
            }
            let inside = best.and_then(|(_, nodes)| self.place_inside(id, class, &nodes));
            if let Some(placed) = inside {
                return Ok(placed);
            }
        }
        if let Some(level) = required {
            return Err(Blocked::Topology { level, needs: class.needs, fit: most });
        }
        let fit = self.slots.of(&self.cluster, &class.request).fit(self.domains.all(), class.needs);
        let everywhere = (fit == class.needs).then(|| self.domains.all().to_vec());
        let inside = everywhere.and_then(|nodes| self.place_inside(id, class, &nodes));
        inside.ok_or_else(|| self.no_room(class, fit))
    }

    /// The same on nodes that the job does not avoid, of which there are few, for a moment.
    fn place_elsewhere(&mut self, id: JobId, class: &Class, gathered: bool) -> Result<Placed, Blocked> {
        let avoided = self.jobs.get(&id).map_or(Vec::new(), |job| job.avoids.clone());
        // What takes no work is looked at by nobody.
        let closed: Vec<NodeId> =
            avoided.into_iter().filter(|&node| self.cluster.node(node).is_schedulable()).collect();
        let open = |this: &mut Scheduler, open: bool| {
            for &node in &closed {
                // They are known nodes of the cluster.
                let _ = this.cluster.set_schedulable(node, open);
            }
        };
        open(self, false);
        let class = Class { avoids: None, ..*class };
        let placed = if gathered { self.place_gathered(id, &class) } else { self.place(id, &class) };
        open(self, true);
        placed
    }

    /// On as few of these nodes as possible: those with room for the most tasks first.
    fn place_inside(&mut self, id: JobId, class: &Class, nodes: &[NodeId]) -> Option<Placed> {
        let slots = self.slots.of(&self.cluster, &class.request);
        let with_room = nodes.iter().map(|&node| (slots.on(node).min(class.needs), node));
        let mut slots: Vec<(u32, NodeId)> = with_room.filter(|&(fit, _)| fit > 0).collect();
        // The last node takes what the others leave: the one with the least room that suffices would do.
        slots.sort_by_key(|&(fit, node)| (std::cmp::Reverse(fit), node));
        let mut placed = Placed::new();
        for (fit, node) in slots {
            for _ in 0..fit.min(class.needs - placed.len() as u32) {
                if let Ok(placement) = self.placer.place_among(&self.cluster, &class.request, [node]) {
                    self.put_next(id, placement, &mut placed);
                }
            }
        }
        if placed.len() as u32 == class.needs {
            return Some(placed);
        }
        self.undo(id, placed);
        None
    }

    /// The nodes among which a task that joins others has to stay.
    pub(super) fn joined_domain(&self, id: JobId, class: &Class) -> Option<&[NodeId]> {
        class.joins?;
        let (_, other) = self.jobs.get(&id)?.tasks().next()?;
        let spec = self.cluster.node(other.node).spec();
        Some(self.domains.around(class.topology.required?, spec))
    }

    /// Puts the job's next task on its place.
    pub(super) fn put_next(&mut self, id: JobId, placement: Placement, placed: &mut Placed) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(number) = job.tasks.iter().position(Option::is_none) else { return };
        if job.running == 0 {
            job.started = self.now;
        }
        let put = self.put_on(id, number as u32, placement);
        debug_assert_eq!(put, Ok(()), "the placer names places that the cluster accepts");
        if put.is_ok() {
            placed.push((number as u32, placement));
        }
    }

    pub(super) fn undo(&mut self, id: JobId, placed: Placed) {
        for (number, _) in placed.into_iter().rev() {
            self.take_off(id, number);
        }
    }

    fn no_room(&self, class: &Class, fit: u32) -> Blocked {
        Blocked::Room { needs: class.needs, fit, nodes: Unplaced::explain(&self.cluster, &class.request) }
    }
}

/// Free compute of GPUs, and where there are none of CPUs.
fn free_room(cluster: &Cluster, nodes: &[NodeId]) -> u64 {
    let nodes = nodes.iter().map(|&node| cluster.node(node));
    nodes.map(|node| u64::from(node.free_gpu_milli()) << 16 | u64::from(node.free_cpu_milli() >> 12)).sum()
}
