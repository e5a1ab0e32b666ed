//! What may be taken for a job, and what room on each node would cost.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::amounts::Amounts;
use super::books::Saturation;
use super::decay::Millis;
use super::job::JobId;
use super::rights::{Right, Taker};
use super::room::Room;
use super::scheduler::Scheduler;
use super::tree::QueueId;
use crate::{Node, NodeId, Placement, Request};

/// Jobs whose tasks may go, the least worthy first, and what was seen on the way.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    pub(super) in_order: Vec<JobId>,
    by_job: HashMap<JobId, Candidate>,
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

/// What room for one more task on a node costs: how worthy the worthiest queue is that has to give, the highest priority of work that
/// has to go, how much goes, for how long it has run, and how early it was submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Price {
    rank: u32,
    priority: i32,
    milli: u64,
    tasks: u32,
    started: Reverse<Millis>,
    job: Reverse<JobId>,
}

impl Price {
    const NOTHING: Price = Price {
        rank: 0,
        priority: i32::MIN,
        milli: 0,
        tasks: 0,
        started: Reverse(Millis::MAX),
        job: Reverse(JobId(u64::MAX)),
    };

    fn and(self, other: Price) -> Price {
        Price {
            rank: self.rank.max(other.rank),
            priority: self.priority.max(other.priority),
            milli: self.milli + other.milli,
            tasks: self.tasks + other.tasks,
            started: self.started.max(other.started),
            job: self.job.max(other.job),
        }
    }
}

/// Tasks on one node that go together, and what that costs everywhere.
pub(super) struct Unit {
    pub(super) job: JobId,
    /// One task above the job's minimum; none for all tasks of the job.
    pub(super) task: Option<u32>,
    pub(super) here: Vec<Placement>,
    price: Price,
}

impl Candidates {
    pub(super) fn contains(&self, job: JobId) -> bool {
        self.by_job.contains_key(&job)
    }
}

impl Scheduler {
    /// Looks at the running work that the taker may take, queue by queue.
    pub(super) fn candidates(&self, taker: &Taker) -> Candidates {
        let mut found = Candidates::default();
        for (rank, queue) in (0..).zip(self.giving_queues(taker)) {
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
                let until = self.protected_until(taker, job);
                let whole = until <= self.now;
                if !whole {
                    found.protected += job.running.min(job.spec.tasks_min);
                    found.until = Some(found.until.map_or(until, |first| first.min(until)));
                }
                if whole || job.running > job.spec.tasks_min {
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

    /// Candidates on a node as they would go, the least worthy first; tasks above a job's minimum before all of it.
    pub(super) fn units(&self, node: NodeId, candidates: &Candidates) -> Vec<Unit> {
        let mut units: Vec<Unit> = Vec::new();
        let mut by_job: Vec<(JobId, Vec<u32>)> = Vec::new();
        for &(id, number) in self.on_node[node.index()].iter().filter(|(id, _)| candidates.contains(*id)) {
            match by_job.iter_mut().find(|(job, _)| *job == id) {
                Some((_, numbers)) => numbers.push(number),
                None => by_job.push((id, vec![number])),
            }
        }
        for (id, mut numbers) in by_job {
            let (Some(job), Some(candidate)) = (self.jobs.get(&id), candidates.by_job.get(&id)) else {
                continue;
            };
            let price = |tasks: u32| Price {
                rank: candidate.rank,
                priority: job.spec.priority,
                milli: weight(&job.spec.request) * u64::from(tasks),
                tasks,
                started: Reverse(job.started),
                job: Reverse(id),
            };
            let placement = |number: u32| job.tasks[number as usize];
            // The first tasks of a gang often lead it, so the last ones go first.
            numbers.sort_unstable();
            let spare = job.running.saturating_sub(job.spec.tasks_min) as usize;
            for &number in numbers.iter().rev().take(spare) {
                let here = placement(number).into_iter().collect();
                units.push(Unit { job: id, task: Some(number), here, price: price(1) });
            }
            numbers.truncate(numbers.len().saturating_sub(spare));
            if candidate.whole && !numbers.is_empty() {
                let here = numbers.iter().filter_map(|&number| placement(number)).collect();
                units.push(Unit { job: id, task: None, here, price: price(job.running) });
            }
        }
        units.sort_by_key(|unit| {
            let Price { rank, priority, started, job, .. } = unit.price;
            (rank, priority, unit.task.is_none(), started, job, Reverse(unit.task))
        });
        units
    }

    /// The price of room for one more task on the node; none if all candidates on it make none.
    pub(super) fn price(&self, taker: &Taker, node: NodeId, candidates: &Candidates) -> Option<Price> {
        let request = &taker.class.request;
        let room = Room::of(self.cluster.node(node));
        if !could_fit(self.cluster.node(node), request) {
            return None;
        }
        let units = self.units(node, candidates);
        let before = room.slots(request, u32::MAX >> 1);
        let gains = |without: Option<usize>, upto: usize| {
            let mut room = room;
            let goes = units[..upto].iter().enumerate().filter(|(index, _)| Some(*index) != without);
            goes.flat_map(|(_, unit)| &unit.here).for_each(|placement| room.give_back(placement));
            room.slots(request, before + 1) > before
        };
        let last = (1..=units.len()).find(|&upto| gains(None, upto))?;
        // What came first need not all be part of it: a small task may have gone before a large one that suffices.
        let needed = (0..last).filter(|&index| index + 1 == last || !gains(Some(index), last));
        Some(needed.map(|index| units[index].price).fold(Price::NOTHING, Price::and))
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

/// Whether the node, if it were empty, could be asked at all.
pub(super) fn could_fit(node: &Node, request: &Request) -> bool {
    let spec = node.spec();
    node.is_schedulable()
        && spec.labels.contains_all(request.labels)
        && (request.gpus == 0 || (spec.gpus >= request.gpus && request.models.contains(spec.model)))
}
