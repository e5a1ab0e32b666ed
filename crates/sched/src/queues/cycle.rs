//! One cycle: allocate, consolidate, reclaim, preempt, end stale gangs.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::books::Saturation;
use super::decay::Millis;
use super::gang::Placed;
use super::job::{Class, JobId};
use super::pending::{ClassId, Pending, Precedence, Waiting};
use super::releases::Releases;
use super::scheduler::Scheduler;
use super::tree::QueueId;
use super::why::{Action, Blocked, Bound, Evicted};
use crate::{Cluster, fit};

impl Scheduler {
    /// Decides what happens now, and counts it as done. Cycles at the same moment end in one
    /// without actions; a caller that wants everything that can be had now calls until then (and
    /// on, while [`Scheduler::has_deferred`]).
    pub fn cycle(&mut self, now: Millis) -> Vec<Action> {
        self.now = self.now.max(now);
        (self.searches_left, self.deferred) = (self.config.searches_max, false);
        if let Some(half_life) = self.config.half_life {
            self.books.advance(self.now, half_life);
        }
        if self.books.is_stale() {
            let capacity = self.capacity();
            let (unit, usage) = (self.config.gpu_unit_milli, self.config.usage_percent);
            // Other shares give other rights. Without a history of use they differ because of what
            // came from outside, which has been counted, or of what was decided here, which must
            // not count.
            let differ = u64::from(self.books.divide(&self.tree, capacity, unit, usage));
            self.version += differ;
            self.changes += if self.config.half_life.is_some() { differ } else { 0 };
        }
        self.note_releases();
        self.take_turns(Scheduler::may_fit, Scheduler::try_allocate);
        self.take_turns(Scheduler::may_gather, Scheduler::try_consolidate);
        self.take_turns(Scheduler::may_search, Scheduler::try_reclaim);
        self.take_turns(Scheduler::may_search, Scheduler::try_preempt);
        self.end_stale();
        std::mem::take(&mut self.actions)
    }

    /// Tries the classes of waiting work that are `worth` it in the order of fairness, until each
    /// has failed once.
    fn take_turns(
        &mut self,
        worth: fn(&Scheduler, &Waiting) -> bool,
        attempt: fn(&mut Scheduler, QueueId, ClassId) -> bool,
    ) {
        let mut order = QueueOrder::new(self, worth);
        while let Some((queue, (_, _, job, class))) = order.next(self) {
            if attempt(self, queue, class) {
                order.reopen(self, queue, class, worth);
                // A job that got its minimum may continue to wait for more.
                let next = self.jobs.get(&job).and_then(|job| job.waiting.as_ref());
                if let Some(next) = next.and_then(|class| self.pending[queue.index()].id_of(class)) {
                    order.reopen(self, queue, next, worth);
                }
            }
        }
    }

    /// Whether room came to be that the work might fit.
    fn may_fit(&self, waiting: &Waiting) -> bool {
        waiting.no_room_at.is_none_or(|at| room_since(&self.releases, &self.cluster, at, &waiting.class))
    }

    /// Looks at each release once for each class: where it made no room, the class need not look at
    /// it again.
    fn note_releases(&mut self) {
        let Scheduler { pending, releases, cluster, .. } = self;
        for waiting in pending.iter_mut().flat_map(Pending::waiting_mut) {
            if let Some(at) = &mut waiting.no_room_at
                && !room_since(releases, cluster, *at, &waiting.class)
            {
                *at = releases.end();
            }
        }
    }

    /// Whether moving others might make room where nothing but room is missing.
    fn may_gather(&self, waiting: &Waiting) -> bool {
        waiting.class.avoids.is_none()
            && matches!(waiting.why.blocked, Some(Blocked::Room { .. } | Blocked::Topology { .. }))
            && (waiting.not_consolidated_at != Some(self.releases.end())
                || waiting.gather_at.is_some_and(|at| at <= self.now))
    }

    /// Whether taking work of others might help, and this was not found out before as things are
    /// now.
    fn may_search(&self, waiting: &Waiting) -> bool {
        waiting.class.avoids.is_none()
            && !matches!(waiting.why.blocked, Some(Blocked::Quota { .. }) | None)
            && (waiting.not_taken_at != Some(self.version)
                || waiting.retry_at.is_some_and(|at| at <= self.now))
    }

    fn try_allocate(&mut self, queue: QueueId, id: ClassId) -> bool {
        let Some(waiting) = self.pending[queue.index()].get(id) else { return false };
        let class = waiting.class;
        let Some(&job) = waiting.jobs.first() else { return false };
        if let Err(blocked) = self.may_use(queue, &class) {
            // Limits and quotas change without any release of room, so it is asked again in each
            // cycle.
            self.blocked(queue, id, blocked, None);
            return false;
        }
        match self.place(job, &class) {
            Ok(placed) => {
                self.bind(job, placed, Bound::Free);
                true
            }
            Err(blocked) => {
                self.blocked(queue, id, blocked, Some(self.releases.end()));
                false
            }
        }
    }

    /// Limits, and for work that may not be evicted quotas.
    pub(super) fn may_use(&self, queue: QueueId, class: &Class) -> Result<(), Blocked> {
        let amounts = class.amounts();
        if let Some((over, resource)) = self.books.over_limit(&self.tree, queue, amounts) {
            let queue = self.tree.queue(over);
            return Err(Blocked::Limit {
                queue: queue.name.clone(),
                limit: resource.describe(queue.limit[resource]),
                used: resource.describe(self.allocated(over)[resource]),
            });
        }
        if class.preemptible {
            return Ok(());
        }
        match self.books.over_quota(&self.tree, queue, amounts) {
            None => Ok(()),
            Some((over, resource)) => {
                let queue = self.tree.queue(over);
                Err(Blocked::Quota {
                    queue: queue.name.clone(),
                    deserved: resource.describe(queue.deserved[resource]),
                    used: resource.describe(self.allocated_fixed(over)[resource]),
                })
            }
        }
    }

    fn blocked(&mut self, queue: QueueId, id: ClassId, blocked: Blocked, no_room_at: Option<u64>) {
        if let Some(waiting) = self.pending[queue.index()].get_mut(id) {
            waiting.why.blocked = Some(blocked);
            waiting.no_room_at = no_room_at;
        }
    }

    /// Makes it known that tasks were put on nodes.
    pub(super) fn bind(&mut self, id: JobId, placed: Placed, because: Bound) {
        let bound = |(task, placement)| Action::Bind { job: id, task, placement, because };
        self.actions.extend(placed.into_iter().map(bound));
        self.version += 1;
        self.books.mark_stale();
        self.check_stale(id);
        self.line_up(id);
    }

    /// Ends gangs that have run with fewer tasks than their minimum for too long.
    fn end_stale(&mut self) {
        while let Some(&(since, id)) = self.stale.first() {
            if since.saturating_add(self.config.stale_grace) > self.now {
                return;
            }
            self.stale.pop_first();
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            job.stale_since = None;
            let because = Evicted::Stale { running: job.running, tasks_min: job.spec.tasks_min };
            let tasks: Vec<u32> = job.tasks().map(|(number, _)| number).collect();
            for task in tasks {
                if let Some(placement) = self.stop(id, task) {
                    self.actions.push(Action::Evict { job: id, task, placement, because });
                }
            }
            self.line_up(id);
        }
    }
}

/// Whether a task of the class, which fitted nowhere when the log of releases ended `at`, fits a
/// node released since.
fn room_since(releases: &Releases, cluster: &Cluster, at: u64, class: &Class) -> bool {
    let fits = |node| fit(cluster.node(node), &class.request).is_ok();
    // A gang fitted in part, so any node with room for one of its tasks may complete it.
    releases.since(at).is_none_or(|mut nodes| nodes.any(fits))
}

/// Who is next: from the cluster down, the queue that is furthest below its share and has something
/// to try.
struct QueueOrder {
    open: Vec<BTreeSet<Precedence>>,
    /// Classes to try in each queue and those below it.
    count: Vec<u32>,
}

impl QueueOrder {
    fn new(scheduler: &Scheduler, worth: fn(&Scheduler, &Waiting) -> bool) -> QueueOrder {
        let queues = scheduler.tree.len();
        let mut order = QueueOrder { open: vec![BTreeSet::new(); queues], count: vec![0; queues] };
        for queue in scheduler.tree.top_down() {
            let pending = &scheduler.pending[queue.index()];
            let worth = pending.classes().filter(|(_, waiting)| worth(scheduler, waiting));
            order.open[queue.index()] = worth.filter_map(|(id, _)| pending.precedence(id)).collect();
            let open = order.open[queue.index()].len() as u32;
            scheduler.tree.path(queue).for_each(|above| order.count[above.index()] += open);
        }
        order
    }

    fn next(&mut self, scheduler: &Scheduler) -> Option<(QueueId, Precedence)> {
        let mut among = scheduler.tree.roots();
        loop {
            let open = among.iter().copied().filter(|queue| self.count[queue.index()] > 0);
            let queue = open.min_by_key(|&queue| precedence(scheduler, queue))?;
            let children = &scheduler.tree.queue(queue).children;
            if children.is_empty() {
                let next = self.open[queue.index()].pop_first()?;
                scheduler.tree.path(queue).for_each(|above| self.count[above.index()] -= 1);
                return Some((queue, next));
            }
            among = children;
        }
    }

    /// Opens the class again, if anything of it waits and is worth it.
    fn reopen(
        &mut self,
        scheduler: &Scheduler,
        queue: QueueId,
        class: ClassId,
        worth: fn(&Scheduler, &Waiting) -> bool,
    ) {
        let pending = &scheduler.pending[queue.index()];
        let Some(precedence) = pending.precedence(class) else { return };
        if pending.get(class).is_some_and(|waiting| worth(scheduler, waiting))
            && self.open[queue.index()].insert(precedence)
        {
            scheduler.tree.path(queue).for_each(|above| self.count[above.index()] += 1);
        }
    }
}

/// Queues below their share first, of those the ones with less than they deserve, then by priority,
/// then the least saturated; ties to the one stated first.
fn precedence(scheduler: &Scheduler, queue: QueueId) -> (bool, bool, Reverse<i32>, Saturation, QueueId) {
    let (tree, books) = (&scheduler.tree, &scheduler.books);
    let account = books.account(queue);
    let reached = |bound: u64, used: u64| used >= bound;
    let all = |bound: &super::Amounts| tree.shared().iter().any(|&r| reached(bound[r], account.allocated[r]));
    let (share, deserved) = (all(&account.share), all(&tree.queue(queue).deserved));
    (share, deserved, Reverse(tree.queue(queue).priority), books.saturation(tree, queue), queue)
}
