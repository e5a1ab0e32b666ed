//! Finding places for all the tasks that a job needs at once, or none.

use super::domains::{Apart, fit_apart};
use super::job::{Class, JobId, Topology};
use super::scheduler::Scheduler;
use super::why::Blocked;
use crate::{Cluster, NodeId, Placement, Unplaced};

/// Tasks that were put on nodes for a job, by their numbers.
pub(super) type Placed = Vec<(u32, Placement)>;

impl Scheduler {
    /// Puts all tasks on nodes that the class needs at once, or says what keeps it from that and
    /// changes nothing.
    pub(super) fn place(&mut self, id: JobId, class: &Class) -> Result<Placed, Blocked> {
        if class.avoids.is_some() {
            return self.place_elsewhere(id, class);
        }
        let gathered = class.topology.required.is_some() || class.topology.preferred.is_some();
        let spread = class.topology.apart.is_some();
        if (gathered || spread) && (class.needs > 1 || class.joins.is_some()) {
            return self.place_in_domains(id, class);
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

    /// Places tasks that stand near each other, or apart: from the preferred level to the required
    /// one, in the domain with the least free room that suffices.
    fn place_in_domains(&mut self, id: JobId, class: &Class) -> Result<Placed, Blocked> {
        let (required, preferred) = (class.topology.required, class.topology.preferred);
        let spread = class.topology.apart;
        let apart = self.apart(id, class.topology);
        let blocked = |fit| Blocked::Topology { within: required, apart: spread, needs: class.needs, fit };
        if let Some(nodes) = self.joined_domain(id, class) {
            let nodes = nodes.to_vec();
            return self.place_inside(id, class, &nodes).ok_or_else(|| {
                let slots = self.slots.of(&self.cluster, &class.request);
                blocked(fit_apart(slots, &self.cluster, &nodes, class.needs, apart.as_ref()))
            });
        }
        let mut most = 0;
        let levels = preferred.or(required).map(|narrowest| required.unwrap_or(0)..=narrowest);
        for level in levels.into_iter().flatten().rev() {
            let slots = self.slots.of(&self.cluster, &class.request);
            let mut best: Option<(u64, Vec<NodeId>)> = None;
            for (_, nodes) in self.domains.of_level(level) {
                let fit = fit_apart(slots, &self.cluster, nodes, class.needs, apart.as_ref());
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
        if required.is_some() {
            return Err(blocked(most));
        }
        let slots = self.slots.of(&self.cluster, &class.request);
        let fit = fit_apart(slots, &self.cluster, self.domains.all(), class.needs, apart.as_ref());
        let everywhere = (fit == class.needs).then(|| self.domains.all().to_vec());
        let inside = everywhere.and_then(|nodes| self.place_inside(id, class, &nodes));
        let is_apart = apart.is_some_and(|_| fit > 0 || class.joins.is_some());
        inside.ok_or_else(|| if is_apart { blocked(fit) } else { self.no_room(class, fit) })
    }

    /// What keeps the tasks of a job apart: those that have a place have taken its domain.
    pub(super) fn apart(&self, id: JobId, topology: Topology) -> Option<Apart> {
        let mut apart = Apart::new(topology.apart?);
        for (_, placement) in self.jobs.get(&id)?.tasks() {
            apart.take(self.cluster.node(placement.node).spec());
        }
        Some(apart)
    }

    /// Places the job on nodes that it does not avoid; it avoids few, and for a short time.
    fn place_elsewhere(&mut self, id: JobId, class: &Class) -> Result<Placed, Blocked> {
        let avoided = self.jobs.get(&id).map_or(Vec::new(), |job| job.avoids.clone());
        // Nodes that take no work are not looked at.
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
        let placed = self.place(id, &class);
        open(self, true);
        placed
    }

    /// On as few of these nodes as possible: those with room for the most tasks first.
    fn place_inside(&mut self, id: JobId, class: &Class, nodes: &[NodeId]) -> Option<Placed> {
        if let Some(apart) = self.apart(id, class.topology) {
            return self.place_apart(id, class, nodes, apart);
        }
        let slots = self.slots.of(&self.cluster, &class.request);
        let with_room = nodes.iter().map(|&node| (slots.on(node).min(class.needs), node));
        let mut slots: Vec<(u32, NodeId)> = with_room.filter(|&(fit, _)| fit > 0).collect();
        // The last node takes what the others leave: the one with the least room that suffices
        // would do.
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

    /// Each in a domain of its own, where it serves the policy best.
    fn place_apart(
        &mut self,
        id: JobId,
        class: &Class,
        nodes: &[NodeId],
        mut apart: Apart,
    ) -> Option<Placed> {
        let mut placed = Placed::new();
        while (placed.len() as u32) < class.needs {
            let cluster = &self.cluster;
            let open = nodes.iter().copied().filter(|&node| apart.is_open(cluster.node(node).spec()));
            let Ok(placement) = self.placer.place_among(cluster, &class.request, open) else {
                self.undo(id, placed);
                return None;
            };
            apart.take(self.cluster.node(placement.node).spec());
            self.put_next(id, placement, &mut placed);
        }
        Some(placed)
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
