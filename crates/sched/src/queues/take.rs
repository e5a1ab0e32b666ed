//! The search for work that gives way to a job.
//!
//! 1. Look at the work that may be taken, the least worthy first, up to a bound ([`Candidates`]).
//! 2. Price each node: what has to go there before one more task of the job fits?
//! 3. Take from the cheapest nodes until all tasks fit, asking before each step whether shares
//!    still allow it; then, if a limit stands in the way, from the queues below that limit.
//! 4. Put the job in its place, and put back whatever need not have gone: where it was, or, if it
//!    moves while it runs, elsewhere.
//!
//! All of it happens in the scheduler's own state and is taken back unless it succeeds.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::amounts::Amounts;
use super::candidates::{Candidates, Price, Unit, could_fit, missing_milli};
use super::consolidate::Moved;
use super::domains::{Apart, fit_apart};
use super::gang::Placed;
use super::job::{Class, JobId};
use super::rights::{Right, Taker};
use super::room::Room;
use super::scheduler::Scheduler;
use super::slots::slots_on;
use super::tree::QueueId;
use super::why::{Action, Evicted, No};
use crate::NodeId;

/// Tasks that went together: one above the minimum of its job, or all that the job had.
#[derive(Debug)]
struct Taken {
    job: JobId,
    tasks: Placed,
}

impl Taken {
    fn amounts(&self) -> Amounts {
        let mut amounts = Amounts::ZERO;
        self.tasks.iter().for_each(|(_, placement)| amounts += Amounts::of(&placement.request, 1));
        amounts
    }
}

impl Scheduler {
    /// Frees room for the taker's job and puts it there, or changes nothing and says why not.
    /// Candidates found before serve any scope.
    pub(super) fn take(
        &mut self,
        taker: &Taker,
        candidates: &Candidates,
        because: Evicted,
    ) -> Result<Placed, No> {
        if candidates.in_order.is_empty() {
            let &Candidates { protected, until, looked_at, bounded, .. } = candidates;
            return Err(if bounded {
                No::SearchBound { looked_at }
            } else {
                No::NoVictims { protected, until }
            });
        }
        let mut fit = 0;
        let bounds = self.bounds(taker);
        for scope in self.scopes(taker) {
            let mut taken = Vec::new();
            match self.make_room(taker, candidates, &scope, &bounds, &mut taken) {
                Ok(placed) => {
                    self.put_back_unneeded(&bounds, &mut taken);
                    let mut moved = self.move_unneeded(&bounds, &mut taken);
                    // Where all of it has moved, nothing comes back.
                    let all_moved = taken.is_empty() && !moved.is_empty();
                    if all_moved || self.may_stay(taker, &taken) {
                        self.evict(taken, because);
                        self.tell_moves(taker.job, moved);
                        return Ok(placed);
                    }
                    self.undo(taker.job, placed);
                    self.move_back(&mut moved, 0);
                }
                Err(most) => fit = fit.max(most),
            }
            self.put_back(&mut taken, 0);
        }
        if candidates.bounded {
            return Err(No::SearchBound { looked_at: candidates.looked_at });
        }
        Err(No::TooLittle { needs: taker.class.needs, fit })
    }

    /// What the taker's queues may have afterwards: their limits, and by preemption no more than
    /// their share (or what they have already). Else work that grew by preemption would be
    /// reclaimed, and what it had taken the place of would return: for ever.
    fn bounds(&self, taker: &Taker) -> Vec<(QueueId, Amounts)> {
        let bound = |queue: QueueId| {
            let (mut bound, account) = (self.tree.queue(queue).limit, self.books.account(queue));
            for &resource in self.tree.shared().iter().filter(|_| taker.right == Right::Priority) {
                bound[resource] =
                    bound[resource].min(account.allocated[resource].max(account.share[resource]));
            }
            (queue, bound)
        };
        self.tree.path(taker.queue).map(bound).collect()
    }

    /// The first queue that would have more than its bound with `more`.
    fn over_bounds(&self, bounds: &[(QueueId, Amounts)], more: Amounts) -> Option<QueueId> {
        bounds.iter().find_map(|(queue, bound)| {
            let mut after = self.allocated(*queue);
            after += more;
            after.exceeds(bound).map(|_| *queue)
        })
    }

    /// The sets of nodes, each of which has to hold all tasks: the domains of the required level,
    /// the freest first, or everything.
    pub(super) fn scopes(&mut self, taker: &Taker) -> Vec<Vec<NodeId>> {
        let class = &taker.class;
        if let Some(nodes) = self.joined_domain(taker.job, class) {
            return vec![nodes.to_vec()];
        }
        let Some(level) = class.topology.required.filter(|_| class.needs > 1) else {
            return vec![self.domains.all().to_vec()];
        };
        let apart = self.apart(taker.job, class.topology);
        let slots = self.slots.of(&self.cluster, &class.request);
        let mut scopes: Vec<(Reverse<u64>, Vec<NodeId>)> = Vec::new();
        for (_, nodes) in self.domains.of_level(level) {
            let fit = match &apart {
                None => nodes.iter().map(|&node| u64::from(slots.on(node).min(class.needs))).sum(),
                apart => fit_apart(slots, &self.cluster, nodes, class.needs, apart.as_ref()).into(),
            };
            scopes.push((Reverse(fit), nodes.to_vec()));
        }
        scopes.sort_by_key(|(fit, _)| *fit);
        scopes.into_iter().map(|(_, nodes)| nodes).collect()
    }

    /// Takes work until the job fits and is in its place. What was taken is in `taken`, also in
    /// failure, when the number of tasks that would fit is returned.
    fn make_room(
        &mut self,
        taker: &Taker,
        candidates: &Candidates,
        scope: &[NodeId],
        bounds: &[(QueueId, Amounts)],
        taken: &mut Vec<Taken>,
    ) -> Result<Placed, u32> {
        let total = match self.apart(taker.job, taker.class.topology) {
            Some(apart) => self.take_apart(taker, candidates, scope, &apart, taken)?,
            None => {
                let slots = self.slots.of(&self.cluster, &taker.class.request);
                let fit = scope.iter().map(|&node| slots.on(node).min(taker.class.needs)).collect();
                self.take_cheapest(taker, candidates, scope, fit, taken)?
            }
        };
        if !self.take_below_bounds(taker, candidates, bounds, taken) {
            return Err(total);
        }
        self.place(taker.job, &taker.class).map_err(|_| total)
    }

    /// Takes from the cheapest nodes of the scope until all tasks fit there; `fit` is what its
    /// nodes have room for now. Returns how many fit afterwards, as an error if these are too few.
    fn take_cheapest(
        &mut self,
        taker: &Taker,
        candidates: &Candidates,
        scope: &[NodeId],
        mut fit: Vec<u32>,
        taken: &mut Vec<Taken>,
    ) -> Result<u32, u32> {
        let Class { request, needs, .. } = taker.class;
        let mut total: u64 = fit.iter().map(|&fit| u64::from(fit)).sum();
        if total >= needs.into() {
            return Ok(needs);
        }
        let mut takeable = self.takeable_milli(taker, candidates);
        let most = self.most_that_fit(taker, scope, &fit, takeable);
        if most < needs {
            return Err(most);
        }
        let mut prices = self.prices(taker, candidates, scope, &fit, takeable);
        while total < needs.into() {
            let Some(Reverse((price, node))) = prices.pop() else { return Err(total as u32) };
            let Ok(index) = scope.binary_search(&node) else { continue };
            if missing_milli(self.cluster.node(node), &request, fit[index] + 1) > takeable {
                continue;
            }
            match self.price(taker, node, candidates) {
                // What went elsewhere changed the price: the node waits for its turn at the new
                // one.
                Some(now) if now > price => prices.push(Reverse((now, node))),
                Some(_) => {
                    let before = taken.len();
                    if self.take_on(taker, candidates, node, taken) {
                        let changed = taken[before..].iter().flat_map(|taken| &taken.tasks);
                        for node in changed.map(|(_, placement)| placement.node).collect::<BTreeSet<_>>() {
                            let Ok(index) = scope.binary_search(&node) else { continue };
                            let slots = slots_on(&self.cluster, &request, node).min(needs);
                            total = total - u64::from(fit[index]) + u64::from(slots);
                            fit[index] = slots;
                        }
                        takeable = self.takeable_milli(taker, candidates);
                        prices
                            .extend(self.price(taker, node, candidates).map(|price| Reverse((price, node))));
                    }
                }
                None => {}
            }
        }
        Ok(needs)
    }

    /// Takes for tasks that are kept apart: as long as too few domains have room for one, it clears
    /// the node of the other domains from which the least has to go.
    fn take_apart(
        &mut self,
        taker: &Taker,
        candidates: &Candidates,
        scope: &[NodeId],
        apart: &Apart,
        taken: &mut Vec<Taken>,
    ) -> Result<u32, u32> {
        let Class { request, needs, .. } = taker.class;
        loop {
            let mut apart = apart.clone();
            let slots = self.slots.of(&self.cluster, &request);
            let with_room = scope.iter().filter(|&&node| slots.on(node) > 0);
            let fit = with_room.filter(|&&node| apart.take(self.cluster.node(node).spec())).count() as u32;
            if fit >= needs {
                return Ok(needs);
            }
            let open = |&&node: &&NodeId| apart.is_open(self.cluster.node(node).spec());
            let open: Vec<NodeId> = scope.iter().filter(open).copied().collect();
            let takeable = self.takeable_milli(taker, candidates);
            let mut prices = self.prices(taker, candidates, &open, &vec![0; open.len()], takeable);
            let mut cleared = false;
            while let Some(Reverse((_, node))) = prices.pop().filter(|_| !cleared) {
                cleared = self.take_on(taker, candidates, node, taken);
            }
            if !cleared {
                return Err(fit);
            }
        }
    }

    /// How many tasks could fit at most if `takeable` compute were taken, wherever it is best: most
    /// searches in vain end here, where nothing was priced yet. `fit` is what the nodes of the
    /// scope have room for now.
    fn most_that_fit(&self, taker: &Taker, scope: &[NodeId], fit: &[u32], takeable: u64) -> u32 {
        let class = &taker.class;
        let mut costs: Vec<u64> = Vec::new();
        for (&node, &fit) in scope.iter().zip(fit) {
            let node = self.cluster.node(node);
            if could_fit(node, &class.request) {
                let most = Room::when_empty(node).slots(&class.request.on(node.spec()), class.needs);
                let mut before = 0;
                for slots in fit + 1..=most {
                    let cost = missing_milli(node, &class.request, slots);
                    costs.push(cost.saturating_sub(before));
                    before = before.max(cost);
                }
            }
        }
        costs.sort_unstable();
        let mut left = takeable;
        let affordable = costs.iter().take_while(|&&cost| {
            let affordable = cost <= left;
            left = left.saturating_sub(cost);
            affordable
        });
        let total = fit.iter().map(|&fit| u64::from(fit)).sum::<u64>() + affordable.count() as u64;
        total.min(u64::from(u32::MAX)) as u32
    }

    /// The nodes of the scope on which something can be gained, by price.
    fn prices(
        &self,
        taker: &Taker,
        candidates: &Candidates,
        scope: &[NodeId],
        fit: &[u32],
        takeable: u64,
    ) -> BinaryHeap<Reverse<(Price, NodeId)>> {
        let affordable = |&(&node, &fit): &(&NodeId, &u32)| {
            missing_milli(self.cluster.node(node), &taker.class.request, fit + 1) <= takeable
        };
        let priced = |(&node, _)| Some(Reverse((self.price(taker, node, candidates)?, node)));
        scope.iter().zip(fit).filter(affordable).filter_map(priced).collect()
    }

    /// Takes candidates of one node until one more task fits there; if shares do not allow as much,
    /// takes nothing.
    fn take_on(
        &mut self,
        taker: &Taker,
        candidates: &Candidates,
        node: NodeId,
        taken: &mut Vec<Taken>,
    ) -> bool {
        let (start, request) = (taken.len(), &taker.class.request);
        let before = slots_on(&self.cluster, request, node);
        for unit in self.units(node, candidates).in_order {
            self.take_unit(taker, &unit, taken);
            if slots_on(&self.cluster, request, node) > before {
                return true;
            }
        }
        self.put_back(taken, start);
        false
    }

    /// While the job would pass a bound: takes the least worthy work below that queue.
    fn take_below_bounds(
        &mut self,
        taker: &Taker,
        candidates: &Candidates,
        bounds: &[(QueueId, Amounts)],
        taken: &mut Vec<Taken>,
    ) -> bool {
        let needed = taker.class.amounts();
        let mut rest = candidates.in_order.iter();
        while let Some(over) = self.over_bounds(bounds, needed) {
            let Some(&id) = rest.next() else { return false };
            let Some(job) = self.jobs.get(&id) else { continue };
            let nodes: BTreeSet<NodeId> = job.tasks().map(|(_, placement)| placement.node).collect();
            if !self.tree.path(job.spec.queue).any(|queue| queue == over) {
                continue;
            }
            for node in nodes {
                for unit in self.units(node, candidates).in_order.into_iter().filter(|unit| unit.job == id) {
                    if self.over_bounds(bounds, needed).is_some() {
                        self.take_unit(taker, &unit, taken);
                    }
                }
            }
        }
        true
    }

    /// Takes the unit if that is allowed as things stand now.
    fn take_unit(&mut self, taker: &Taker, unit: &Unit, taken: &mut Vec<Taken>) {
        let Some(job) = self.jobs.get(&unit.job) else { return };
        let numbers: Vec<u32> = match unit.task {
            Some(number) => vec![number],
            None => job.tasks().map(|(number, _)| number).collect(),
        };
        let mut amounts = Amounts::ZERO;
        let placements = numbers.iter().filter_map(|&number| job.tasks.get(number as usize)?.as_ref());
        placements.for_each(|placement| amounts += Amounts::of(&placement.request, 1));
        if !self.may_take(taker, job.spec.queue, amounts) {
            return;
        }
        let off = |&number: &u32| Some((number, self.take_off(unit.job, number)?));
        let tasks = numbers.iter().filter_map(off).collect();
        taken.push(Taken { job: unit.job, tasks });
    }

    /// Takes back what was taken after the first `keep`.
    fn put_back(&mut self, taken: &mut Vec<Taken>, keep: usize) {
        for Taken { job, tasks } in taken.drain(keep..).rev() {
            for (number, placement) in tasks {
                let put = self.put_back_on(job, number, placement);
                debug_assert_eq!(put, Ok(()), "what was taken fits where it was");
            }
        }
    }

    /// Whether it may stay so: all that was taken from other queues is due, and in its own queue
    /// the job is not a larger target.
    fn may_stay(&self, taker: &Taker, taken: &[Taken]) -> bool {
        match taker.right {
            Right::Priority => self.within_share(taker.queue) || self.is_no_larger(taker, taken),
            _ => taken.iter().all(|taken| self.is_due(taker, taken)),
        }
    }

    fn within_share(&self, queue: QueueId) -> bool {
        let above = |queue| self.books.above(&self.tree, queue, Amounts::ZERO, &self.fair_share(queue));
        self.tree.path(queue).all(|queue| above(queue).is_none())
    }

    /// Whether something that was taken is as large as the job. Above its share a queue is open to
    /// reclaim: a gang that took the place of smaller work would be reclaimed as one, the smaller
    /// work would return within the share, and be taken again.
    fn is_no_larger(&self, taker: &Taker, taken: &[Taken]) -> bool {
        let needed = taker.class.amounts();
        taken.iter().any(|gone| needed.exceeds(&gone.amounts()).is_none())
    }

    /// Whether work that was taken is beyond what its queue may have, also after all else that was
    /// taken: if it could return within that, it would take its place back, and be taken again.
    fn is_due(&self, taker: &Taker, taken: &Taken) -> bool {
        let Some(job) = self.jobs.get(&taken.job) else { return true };
        let Some((_, theirs)) = self.tree.part_ways(taker.queue, job.spec.queue) else { return true };
        let bound = match taker.right {
            Right::Priority => return true,
            Right::Share { .. } => self.fair_share(theirs),
            Right::Quota { .. } => self.tree.queue(theirs).deserved,
        };
        self.books.above(&self.tree, theirs, taken.amounts(), &bound).is_some()
    }

    /// Lets work stay that fits beside the job, the worthiest first.
    fn put_back_unneeded(&mut self, bounds: &[(QueueId, Amounts)], taken: &mut Vec<Taken>) {
        let mut index = taken.len();
        while index > 0 {
            index -= 1;
            if self.put_back_one(bounds, &taken[index]) {
                taken.remove(index);
            }
        }
    }

    fn put_back_one(&mut self, bounds: &[(QueueId, Amounts)], Taken { job: id, tasks }: &Taken) -> bool {
        let mut done = 0;
        for &(number, placement) in tasks {
            if self.put_on(*id, number, placement).is_err() {
                break;
            }
            done += 1;
        }
        if done == tasks.len() && self.goes_on_within(bounds, *id) {
            return true;
        }
        tasks[..done].iter().for_each(|&(number, _)| {
            self.take_off(*id, number);
        });
        false
    }

    /// Lets work that moves while it runs continue elsewhere, if there is a place for it that is as
    /// good: the worthiest first. What waits is not passed over by that: it would have
    /// got the place before.
    fn move_unneeded(&mut self, bounds: &[(QueueId, Amounts)], taken: &mut Vec<Taken>) -> Vec<Moved> {
        let mut moved = Vec::new();
        let mut index = taken.len();
        while index > 0 {
            index -= 1;
            if self.moves_live(taken[index].job) && self.move_one(bounds, &taken[index], &mut moved) {
                taken.remove(index);
            }
        }
        moved
    }

    /// Puts all these tasks elsewhere, or none.
    fn move_one(
        &mut self,
        bounds: &[(QueueId, Amounts)],
        Taken { job: id, tasks }: &Taken,
        moved: &mut Vec<Moved>,
    ) -> bool {
        let keep = moved.len();
        for &(task, from) in tasks {
            let to = self.elsewhere(*id, &from).filter(|&to| self.put_on(*id, task, to).is_ok());
            let Some(to) = to else { break };
            moved.push(Moved { job: *id, task, from, to });
        }
        let all_moved = moved.len() - keep == tasks.len();
        if all_moved && self.goes_on_within(bounds, *id) {
            return true;
        }
        for Moved { job, task, .. } in moved.drain(keep..) {
            self.take_off(job, task);
        }
        false
    }

    /// Whether a job has its minimum of tasks, and no queue more than it may have.
    fn goes_on_within(&self, bounds: &[(QueueId, Amounts)], id: JobId) -> bool {
        let Some(job) = self.jobs.get(&id) else { return false };
        // A task above the minimum is of no use when the rest of its job has gone.
        job.running >= job.spec.tasks_min
            && self.books.over_limit(&self.tree, job.spec.queue, Amounts::ZERO).is_none()
            && self.over_bounds(bounds, Amounts::ZERO).is_none()
    }

    /// Makes it known that work was taken.
    fn evict(&mut self, taken: Vec<Taken>, because: Evicted) {
        for Taken { job, tasks } in taken {
            for (task, placement) in tasks {
                self.actions.push(Action::Evict { job, task, placement, because });
                self.room_came_to_be(placement.node);
            }
            self.check_stale(job);
            self.line_up(job);
            if let Some(job) = self.jobs.get_mut(&job) {
                job.losses.lost(self.changes);
            }
        }
    }
}
