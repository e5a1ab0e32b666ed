//! What may be taken for a job, and what room on each node would cost.

use std::cmp::Reverse;
use std::ops::Range;

use rustc_hash::FxHashMap;

use super::amounts::{Amounts, Resource};
use super::books::Saturation;
use super::decay::Millis;
use super::job::{Job, JobId};
use super::rights::{Right, Taker};
use super::room::Room;
use super::scheduler::Scheduler;
use super::tree::QueueId;
use crate::{GPUS_PER_NODE_MAX, Node, NodeId, Placement, Request, WHOLE_GPU_MILLI};

/// Jobs whose tasks may go, the least worthy first, and what was seen on the way.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    pub(super) in_order: Vec<JobId>,
    by_job: FxHashMap<JobId, Candidate>,
    /// Each queue that gives, as seen from where it parts from the taker's, with the most GPU
    /// compute that goes together there.
    givers: Vec<(QueueId, u64)>,
    /// Tasks within their minimum run time, and when the first of them leaves it.
    pub(super) protected: u32,
    pub(super) until: Option<Millis>,
    pub(super) looked_at: u32,
    /// The search ended at its bound.
    pub(super) bounded: bool,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    /// How worthy its queue is.
    rank: u32,
    /// All of it may go, not just tasks above its minimum.
    whole: bool,
}

/// What room for one more task on a node costs: how worthy the worthiest queue is that has to give,
/// the highest priority of work that has to go, how much goes, for how long it has run, how early
/// it was submitted, and among tasks of one job which it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Price {
    rank: u32,
    priority: i32,
    milli: u64,
    tasks: u32,
    started: Reverse<Millis>,
    job: Reverse<JobId>,
    /// Of one task above a minimum: the first ones of a gang often lead it.
    task: Reverse<u32>,
}

impl Price {
    const NOTHING: Price = Price {
        rank: 0,
        priority: i32::MIN,
        milli: 0,
        tasks: 0,
        started: Reverse(Millis::MAX),
        job: Reverse(JobId(u64::MAX)),
        task: Reverse(u32::MAX),
    };

    fn and(self, other: Price) -> Price {
        Price {
            rank: self.rank.max(other.rank),
            priority: self.priority.max(other.priority),
            milli: self.milli + other.milli,
            tasks: self.tasks + other.tasks,
            started: self.started.max(other.started),
            job: self.job.max(other.job),
            task: self.task.max(other.task),
        }
    }
}

/// Tasks on one node that go together, and what that costs everywhere.
pub(super) struct Unit {
    pub(super) job: JobId,
    /// One task above the job's minimum; none for all tasks of the job.
    pub(super) task: Option<u32>,
    /// Where its placements on this node are in [`Units::here`].
    here: Range<usize>,
    price: Price,
}

/// The units of one node.
#[derive(Default)]
pub(super) struct Units {
    pub(super) in_order: Vec<Unit>,
    placements: Vec<Placement>,
}

impl Units {
    fn push(&mut self, job: &Job, task: Option<u32>, tasks: &[(JobId, u32)], price: Price) {
        let from = self.placements.len();
        self.placements.extend(tasks.iter().filter_map(|&(_, number)| job.tasks[number as usize]));
        self.in_order.push(Unit { job: job.id, task, here: from..self.placements.len(), price });
    }

    fn here(&self, unit: &Unit) -> &[Placement] {
        &self.placements[unit.here.clone()]
    }
}

impl Candidates {
    fn note_giver(&mut self, giver: QueueId, together: Amounts) {
        let together = together[Resource::Gpu];
        match self.givers.iter_mut().find(|(queue, _)| *queue == giver) {
            Some((_, most)) => *most = together.max(*most),
            None => self.givers.push((giver, together)),
        }
    }
}

impl Scheduler {
    /// Looks at the running work that the taker may take, queue by queue.
    pub(super) fn candidates(&self, taker: &Taker) -> Candidates {
        let mut found = Candidates::default();
        for (rank, queue) in (0..).zip(self.giving_queues(taker)) {
            let runtime = self.protection(taker, queue);
            let giver = self.tree.part_ways(taker.queue, queue).map_or(queue, |(_, theirs)| theirs);
            for &(priority, _, Reverse(id)) in &self.evictable[queue.index()] {
                if taker.right == Right::Priority && priority >= taker.class.priority {
                    break;
                }
                if found.looked_at >= self.config.search_tasks_max {
                    found.bounded = true;
                    return found;
                }
                let Some(job) = self.jobs.get(&id).filter(|_| id != taker.job) else { continue };
                found.looked_at += job.running;
                if !self.reaches(taker.right, giver, job.amounts(1)) {
                    continue;
                }
                let until = job.started.saturating_add(runtime);
                let whole = until <= self.now;
                if !whole {
                    found.protected += job.running.min(job.spec.tasks_min);
                    found.until = Some(found.until.map_or(until, |first| first.min(until)));
                }
                if whole || job.running > job.spec.tasks_min {
                    found.note_giver(giver, job.amounts(if whole { job.running } else { 1 }));
                    found.by_job.insert(id, Candidate { rank, whole });
                    found.in_order.push(id);
                }
            }
        }
        found
    }

    /// Queues with work that may be taken, the most saturated first.
    fn giving_queues(&self, taker: &Taker) -> Vec<QueueId> {
        if taker.right == Right::Priority {
            return vec![taker.queue];
        }
        let gives = |&queue: &QueueId| {
            !self.evictable[queue.index()].is_empty()
                && queue != taker.queue
                && self.may_take(&Taker { right: without_keep(taker.right), ..*taker }, queue, Amounts::ZERO)
        };
        let mut queues: Vec<(Vec<Saturation>, i32, QueueId)> = Vec::new();
        for queue in self.tree.top_down().filter(gives) {
            let Some((_, theirs)) = self.tree.part_ways(taker.queue, queue) else { continue };
            let up_to =
                self.tree.path(queue).take_while(|&above| Some(above) != self.tree.queue(theirs).parent);
            let mut path: Vec<Saturation> =
                up_to.map(|queue| self.books.saturation(&self.tree, queue)).collect();
            path.reverse();
            queues.push((path, self.tree.queue(theirs).priority, queue));
        }
        queues.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)).then(b.2.cmp(&a.2)));
        queues.into_iter().map(|(_, _, queue)| queue).collect()
    }

    /// No more GPU compute than this can be taken from the candidates by the taker's right, in
    /// thousandths.
    pub(super) fn takeable_milli(&self, taker: &Taker, candidates: &Candidates) -> u64 {
        let from = |&(queue, together): &(QueueId, u64)| self.takeable_from(taker, queue, together);
        candidates.givers.iter().map(from).fold(0, u64::saturating_add)
    }

    /// Returns how much can be taken from one queue, in thousandths: while it is above its bound,
    /// something more may go.
    fn takeable_from(&self, taker: &Taker, queue: QueueId, together: u64) -> u64 {
        let Some(bound) = self.bound_of(taker.right, queue) else { return u64::MAX };
        let allocated = self.allocated(queue);
        let above = |&&resource: &&Resource| allocated[resource] > bound[resource];
        if self.tree.shared().iter().filter(above).any(|&resource| resource != Resource::Gpu) {
            return u64::MAX; // What is above in memory may have any number of GPUs.
        }
        let surplus = allocated[Resource::Gpu].saturating_sub(bound[Resource::Gpu]);
        if surplus == 0 || taker.keeps() { surplus } else { surplus + together }
    }

    /// Candidates on a node as they would go, the least worthy first; tasks above a job's minimum
    /// before all of it.
    pub(super) fn units(&self, node: NodeId, candidates: &Candidates) -> Units {
        let mut tasks: Vec<(JobId, u32)> = self.on_node[node.index()].clone();
        // The first tasks of a gang often lead it, so the last ones go first.
        tasks.sort_unstable_by_key(|&(id, number)| (id, Reverse(number)));
        let mut units = Units::default();
        for tasks in tasks.chunk_by(|a, b| a.0 == b.0) {
            let id = tasks[0].0;
            let (Some(job), Some(candidate)) = (self.jobs.get(&id), candidates.by_job.get(&id)) else {
                continue;
            };
            let price = |tasks: u32, first: u32| Price {
                rank: candidate.rank,
                priority: job.spec.priority,
                milli: weight(&job.spec.request) * u64::from(tasks),
                tasks,
                started: Reverse(job.started),
                job: Reverse(id),
                task: Reverse(first),
            };
            let spare = job.running.saturating_sub(job.spec.tasks_min) as usize;
            let (alone, together) = tasks.split_at(spare.min(tasks.len()));
            for &(_, number) in alone {
                units.push(job, Some(number), &[(id, number)], price(1, number));
            }
            if candidate.whole && !together.is_empty() {
                units.push(job, None, together, price(job.running, 0));
            }
        }
        units.in_order.sort_by_key(|unit| {
            let Price { rank, priority, started, job, .. } = unit.price;
            (rank, priority, unit.task.is_none(), started, job, Reverse(unit.task))
        });
        units
    }

    /// The price of room for one more task on the node; none if all candidates on it make none.
    pub(super) fn price(&self, taker: &Taker, node: NodeId, candidates: &Candidates) -> Option<Price> {
        let request = &taker.class.request.on(self.cluster.node(node).spec());
        let room = Room::of(self.cluster.node(node));
        if !could_fit(self.cluster.node(node), request) {
            return None;
        }
        let units = self.units(node, candidates);
        let before = room.slots(request, u32::MAX >> 1);
        let gains = |without: Option<usize>, upto: usize| {
            let mut room = room;
            let goes = units.in_order[..upto].iter().enumerate().filter(|(index, _)| Some(*index) != without);
            goes.flat_map(|(_, unit)| units.here(unit)).for_each(|placement| room.give_back(placement));
            room.slots(request, before + 1) > before
        };
        let last = (1..=units.in_order.len()).find(|&upto| gains(None, upto))?;
        // What came first need not all be part of it: a small task may have gone before a large one
        // that suffices.
        let needed = (0..last).filter(|&index| index + 1 == last || !gains(Some(index), last));
        Some(needed.map(|index| units.in_order[index].price).fold(Price::NOTHING, Price::and))
    }
}

fn without_keep(right: Right) -> Right {
    match right {
        Right::Share { .. } => Right::Share { keep: false },
        Right::Quota { .. } => Right::Quota { keep: false },
        Right::Priority => Right::Priority,
    }
}

/// What a task takes, for comparing: GPUs, or CPU where it takes none.
pub(super) fn weight(request: &Request) -> u64 {
    request.total_gpu_milli() << 16 | u64::from(request.cpu_milli >> 8)
}

/// At least this amount of compute has to go from the node before it has room for `slots` tasks,
/// more than it has now.
pub(super) fn missing_milli(node: &Node, request: &Request, slots: u32) -> u64 {
    let request = request.on(node.spec());
    let in_all = request.total_gpu_milli() * u64::from(slots);
    let in_all = in_all.saturating_sub(node.free_gpu_milli().into());
    // A whole GPU that goes leaves as much as may be promised of it.
    let in_all = in_all * u64::from(WHOLE_GPU_MILLI) / u64::from(node.spec().gpu_milli.max(WHOLE_GPU_MILLI));
    // Each task needs as many GPUs with its share free: on those with the most free the least is
    // missing.
    let mut missing = [0; GPUS_PER_NODE_MAX];
    let gpus = node.gpus().len();
    for (missing, gpu) in missing.iter_mut().zip(node.gpus()) {
        *missing = u64::from(request.gpu_milli.saturating_sub(gpu.milli));
    }
    missing[..gpus].sort_unstable();
    let for_one: u64 = missing[..gpus.min(request.gpus.into())].iter().sum();
    in_all.max(for_one)
}

/// Whether the node, if it were empty, could be asked at all.
pub(super) fn could_fit(node: &Node, request: &Request) -> bool {
    let spec = node.spec();
    node.is_schedulable()
        && spec.labels.contains_all(request.labels)
        && (request.gpus == 0
            || (node.usable_gpus() >= request.gpus.into() && request.models.contains(spec.model)))
}
