//! Moving work together so that a job fits: nothing is evicted that is not placed again at once.

use super::amounts::Amounts;
use super::candidates::{could_fit, weight};
use super::decay::Millis;
use super::gang::Placed;
use super::job::{JobId, Mobility};
use super::pending::ClassId;
use super::rights::{Right, Taker};
use super::room::Room;
use super::scheduler::Scheduler;
use super::tree::QueueId;
use super::why::{Action, Bound, No};
use crate::{NodeId, Placement, fit};

/// A task that left its place, and where it is now.
pub(super) struct Moved {
    pub(super) job: JobId,
    pub(super) task: u32,
    pub(super) from: Placement,
    pub(super) to: Placement,
}

impl Scheduler {
    /// Changes what a move means for a job's tasks.
    pub fn set_mobility(&mut self, id: JobId, mobility: Mobility) {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.spec.mobility != mobility) else { return };
        let was_held = job.spec.mobility == Mobility::Held;
        job.spec.mobility = mobility;
        // Searches may find a job that is not held any more. Work that lost its place is not
        // tried again for that: the scheduler's own decisions make jobs move.
        if was_held {
            self.version += 1;
            let nodes = job.tasks().map(|(_, placement)| placement.node);
            nodes.for_each(|node| self.releases.push(node));
        }
    }

    pub(super) fn try_consolidate(&mut self, queue: QueueId, id: ClassId) -> bool {
        let Some(waiting) = self.pending[queue.index()].get(id) else { return false };
        let (class, Some(&job)) = (waiting.class, waiting.jobs.first()) else { return false };
        // Work that was bound since it was tried may have used up what its queue may use.
        if self.may_use(queue, &class).is_err() {
            return false;
        }
        let releases = self.releases.end();
        let taker = Taker { job, queue, class, right: Right::Priority };
        let result = if self.config.consolidate { self.consolidate(&taker) } else { Err(No::Disabled) };
        match result {
            Ok(placed) => {
                self.bind(job, placed, Bound::Consolidated);
                true
            }
            Err(no) => {
                let gather_at = if no == No::NowhereElse { self.next_movable() } else { None };
                if let Some(waiting) = self.pending[queue.index()].get_mut(id) {
                    waiting.not_consolidated_at = (no != No::Deferred).then_some(releases);
                    waiting.gather_at = gather_at;
                    waiting.why.consolidation = Some(no);
                }
                false
            }
        }
    }

    /// When the next running job leaves the minimum run time of its queue.
    fn next_movable(&self) -> Option<Millis> {
        let protected = |queue: &QueueId| self.tree.preempt_min_runtime(*queue) > 0;
        let queues = self.tree.top_down().filter(protected);
        let until = |queue: QueueId| {
            let runtime = self.tree.preempt_min_runtime(queue);
            self.evictable[queue.index()].iter().map(move |(_, started, _)| started.0.saturating_add(runtime))
        };
        queues.flat_map(until).filter(|&until| until > self.now).min()
    }

    fn consolidate(&mut self, taker: &Taker) -> Result<Placed, No> {
        let (needs, fit) = (taker.class.needs, self.fit_if_gathered(taker));
        if fit < needs {
            return Err(No::FreeTooLittle { needs, fit });
        }
        self.count_search()?;
        let mut tries = self.config.search_nodes_max;
        for scope in self.scopes(taker) {
            let (mut moved, mut placed) = (Vec::new(), Placed::new());
            if self.move_together(taker, &scope, &mut tries, &mut moved, &mut placed) {
                self.tell_moves(taker.job, moved);
                return Ok(placed);
            }
            self.undo(taker.job, placed);
            self.move_back(&mut moved, 0);
        }
        let tried = self.config.search_nodes_max;
        Err(if tries == 0 { No::NodesBound { tried } } else { No::NowhereElse })
    }

    /// How many tasks would fit if all that is free were in one place, at most: moving work makes
    /// no more.
    fn fit_if_gathered(&self, taker: &Taker) -> u32 {
        let (usage, request) = (self.cluster.usage(), &taker.class.request);
        let fit = [
            // The share of what is asked for in units depends on the GPU.
            (usage.gpu_milli - usage.gpu_milli_used).checked_div(if request.by_units {
                0
            } else {
                request.total_gpu_milli()
            }),
            (usage.cpu_milli - usage.cpu_milli_used).checked_div(request.cpu_milli.into()),
            (usage.memory_mib - usage.memory_mib_used).checked_div(request.memory_mib.into()),
        ];
        let fit = fit.into_iter().flatten().min().unwrap_or(u64::MAX);
        fit.min(taker.class.needs.into()) as u32
    }

    /// Puts the job's tasks one after another, each where there is room or where moving others
    /// makes some.
    fn move_together(
        &mut self,
        taker: &Taker,
        scope: &[NodeId],
        tries: &mut u32,
        moved: &mut Vec<Moved>,
        placed: &mut Placed,
    ) -> bool {
        let request = taker.class.request;
        while (placed.len() as u32) < taker.class.needs {
            let apart = self.apart(taker.job, taker.class.topology);
            let open = |&node: &NodeId| {
                apart.as_ref().is_none_or(|apart| apart.is_open(self.cluster.node(node).spec()))
            };
            let scope: Vec<NodeId> = scope.iter().copied().filter(open).collect();
            if let Ok(placement) = self.placer.place_among(&self.cluster, &request, scope.iter().copied()) {
                self.put_next(taker.job, placement, placed);
                continue;
            }
            let mut nodes = self.cheapest_to_clear(taker, &scope);
            let cleared = loop {
                if nodes.is_empty() || *tries == 0 {
                    break false;
                }
                *tries -= 1;
                if self.clear(taker, nodes.remove(0), moved, placed) {
                    break true;
                }
            };
            if !cleared {
                return false;
            }
        }
        true
    }

    /// Nodes on which movable work stands in the way of one task, the least to move first.
    fn cheapest_to_clear(&self, taker: &Taker, scope: &[NodeId]) -> Vec<NodeId> {
        let mut nodes: Vec<((u64, u64), NodeId)> = Vec::new();
        for &node in scope.iter().filter(|&&node| could_fit(self.cluster.node(node), &taker.class.request)) {
            let mut room = Room::of(self.cluster.node(node));
            let request = taker.class.request.on(self.cluster.node(node).spec());
            // What restarts loses more than what does not.
            let (mut restarts, mut all) = (0, 0);
            for (job, _, placement) in self.movable(taker, node) {
                room.give_back(&placement);
                all += weight(&placement.request);
                restarts += if self.moves_live(job) { 0 } else { weight(&placement.request) };
                if room.slots(&request, 1) == 1 {
                    nodes.push(((restarts, all), node));
                    break;
                }
            }
        }
        nodes.sort_unstable();
        nodes.into_iter().map(|(_, node)| node).collect()
    }

    pub(super) fn moves_live(&self, id: JobId) -> bool {
        self.jobs.get(&id).is_some_and(|job| job.spec.mobility == Mobility::Live)
    }

    /// Tasks on a node that may be moved, those first that need not restart for it, then the
    /// smallest: preemptible, beyond their minimum run time, and of whole gangs.
    fn movable(&self, taker: &Taker, node: NodeId) -> Vec<(JobId, u32, Placement)> {
        let mut movable: Vec<(bool, u64, JobId, u32, Placement)> = Vec::new();
        for &(id, number) in self.on_node[node.index()].iter().filter(|(id, _)| *id != taker.job) {
            let Some(job) = self.jobs.get(&id) else { continue };
            let free = job.started.saturating_add(self.tree.preempt_min_runtime(job.spec.queue)) <= self.now;
            if let Some(placement) = job.tasks[number as usize]
                && job.spec.preemptible
                && job.spec.mobility != Mobility::Held
                && free
                && job.stale_since.is_none()
            {
                let restarts = job.spec.mobility == Mobility::Restarts;
                movable.push((restarts, weight(&placement.request), id, number, placement));
            }
        }
        movable.sort_unstable_by_key(|&(restarts, weight, id, number, _)| (restarts, weight, id, number));
        movable.into_iter().map(|(_, _, id, number, placement)| (id, number, placement)).collect()
    }

    /// Takes movable work off the node until the job's next task fits, puts that there, and the
    /// rest elsewhere; or changes nothing.
    fn clear(&mut self, taker: &Taker, node: NodeId, moved: &mut Vec<Moved>, placed: &mut Placed) -> bool {
        let (start, request) = (moved.len(), taker.class.request);
        let mut off = Vec::new();
        for (job, task, from) in self.movable(taker, node) {
            self.take_off(job, task);
            off.push((job, task, from));
            if fit(self.cluster.node(node), &request).is_ok() {
                break;
            }
        }
        let there = self.placer.place_among(&self.cluster, &request, [node]);
        if let Ok(placement) = there {
            self.put_next(taker.job, placement, placed);
            // The largest first: the small ones find room in between.
            while let Some((job, task, from)) = off.pop() {
                match self.elsewhere(job, &from) {
                    Some(to) if self.put_on(job, task, to).is_ok() => {
                        moved.push(Moved { job, task, from, to })
                    }
                    _ => {
                        off.push((job, task, from));
                        break;
                    }
                }
            }
            if off.is_empty() {
                return true;
            }
            if let Some((number, _)) = placed.pop() {
                self.take_off(taker.job, number);
            }
        }
        self.move_back(moved, start);
        for (job, task, from) in off {
            let put = self.put_back_on(job, task, from);
            debug_assert_eq!(put, Ok(()), "what was taken off fits where it was");
        }
        false
    }

    /// A place for a task that has to leave its own, in the same domain as others of its job or in
    /// another one if that is asked for.
    ///
    /// On another model a share may be more units, and units a larger share: what would take more
    /// of anything there stays, since its queue has a limit of that.
    pub(super) fn elsewhere(&mut self, id: JobId, from: &Placement) -> Option<Placement> {
        let takes = |placement: &Placement| Amounts::of(&placement.request, 1);
        self.other_place(id, from).filter(|to| takes(to).exceeds(&takes(from)).is_none())
    }

    fn other_place(&mut self, id: JobId, from: &Placement) -> Option<Placement> {
        let job = self.jobs.get(&id)?;
        let topology = job.spec.topology;
        if job.spec.tasks_max == 1 || topology.required.is_none() && topology.apart.is_none() {
            return self.placer.place(&self.cluster, &from.request).ok();
        }
        let around = |level| self.domains.around(level, self.cluster.node(from.node).spec());
        let around = topology.required.map_or(self.domains.all(), around);
        let apart = self.apart(id, topology);
        let open =
            |&node: &NodeId| apart.as_ref().is_none_or(|apart| apart.is_open(self.cluster.node(node).spec()));
        let open = around.iter().copied().filter(open);
        self.placer.place_among(&self.cluster, &from.request, open).ok()
    }

    /// Takes back all moves after the first `keep`.
    pub(super) fn move_back(&mut self, moved: &mut Vec<Moved>, keep: usize) {
        // All leave before any returns, since they may have traded places; a task that moved twice
        // returns to the first.
        let mut back: Vec<Moved> = Vec::new();
        for next in moved.drain(keep..) {
            self.take_off(next.job, next.task);
            if !back.iter().any(|first| (first.job, first.task) == (next.job, next.task)) {
                back.push(next);
            }
        }
        for Moved { job, task, from, .. } in back {
            let put = self.put_back_on(job, task, from);
            debug_assert_eq!(put, Ok(()), "what was moved fits where it was");
        }
    }

    /// Makes moves known, each task once from where it really is.
    pub(super) fn tell_moves(&mut self, for_job: JobId, moved: Vec<Moved>) {
        let mut told: Vec<Moved> = Vec::new();
        for next in moved {
            match told.iter_mut().find(|first| (first.job, first.task) == (next.job, next.task)) {
                Some(first) => first.to = next.to,
                None => told.push(next),
            }
        }
        for Moved { job, task, from, to } in told.into_iter().filter(|moved| moved.from != moved.to) {
            self.actions.push(Action::Move { job, task, from, to, for_job });
            self.room_came_to_be(from.node);
            if self.jobs.get(&job).is_some_and(|job| job.spec.topology.apart.is_some()) {
                // The domain that it left is open to the job's other tasks, wherever in it there is
                // room.
                self.line_up(job);
            }
        }
    }
}
