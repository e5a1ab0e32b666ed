//! Jobs: one task or a gang of equal tasks, in a queue.

use std::fmt;

use super::amounts::Amounts;
use super::decay::Millis;
use super::tree::QueueId;
use crate::{NodeId, Placement, Request};

/// A job by the order of its submission; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {}", self.0)
    }
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct JobSpec {
    /// A leaf of the tree.
    pub queue: QueueId,
    /// What each task needs.
    pub request: Request,
    /// The job runs with at least this number of tasks or not at all; at least 1.
    pub tasks_min: u32,
    /// It takes up to this number where there is room; not below `tasks_min`.
    pub tasks_max: u32,
    /// Within its queue, higher ones come first.
    pub priority: i32,
    /// Whether it may be evicted or moved for the sake of others. Work that may not gets only what
    /// its queue deserves.
    pub preemptible: bool,
    pub mobility: Mobility,
    pub topology: Topology,
}

/// What it means for a job's tasks to be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mobility {
    /// They stop, and start again elsewhere.
    #[default]
    Restarts,
    /// They continue elsewhere, after a pause: they move before others have to restart, and rather
    /// than being evicted.
    Live,
    /// They are moved already, or are about to be changed, and stay until that is over.
    Held,
}

impl JobSpec {
    /// One preemptible task of priority 0.
    pub const fn new(queue: QueueId, request: Request) -> JobSpec {
        JobSpec {
            queue,
            request,
            tasks_min: 1,
            tasks_max: 1,
            priority: 0,
            preemptible: true,
            mobility: Mobility::Restarts,
            topology: Topology::ANY,
        }
    }
}

/// Where the tasks of a job stand towards each other, as levels of [`crate::NodeSpec::domains`]: 0
/// is the widest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Topology {
    /// All tasks in one domain of this level, or the job waits.
    pub required: Option<u8>,
    /// All tasks in one domain of this level if that can be had; else of the next wider one, up to
    /// the required level.
    pub preferred: Option<u8>,
    /// Each task in a domain of this level that no other task of the job is in, or the job waits;
    /// narrower than the other two.
    pub apart: Option<u8>,
}

impl Topology {
    /// Anywhere.
    pub const ANY: Topology = Topology { required: None, preferred: None, apart: None };
}

/// A job and the tasks of it that run.
#[derive(Debug, Clone)]
pub struct Job {
    pub(super) id: JobId,
    pub(super) spec: JobSpec,
    /// By the number of the task.
    pub(super) tasks: Vec<Option<Placement>>,
    pub(super) running: u32,
    /// When it last got its minimum of tasks.
    pub(super) started: Millis,
    /// Since when it has run with fewer tasks than its minimum.
    pub(super) stale_since: Option<Millis>,
    /// What it waits for.
    pub(super) waiting: Option<Class>,
    pub(super) losses: Losses,
    /// Are not to be tried for it, until they are forgiven.
    pub(super) avoids: Vec<NodeId>,
}

/// How often a job took the place of others and lost it to others again, while nothing changed from
/// outside. Bounding this is what proves that evictions end: a job that takes for ever loses for
/// ever.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Losses {
    /// [`Scheduler::changes`](super::Scheduler) when it was last counted.
    at: u64,
    count: u32,
    has_taken: bool,
}

impl Losses {
    /// As many as that, and a job gets free room only.
    pub(super) const MAX: u32 = 3;

    pub(super) fn count(&self, changes: u64) -> u32 {
        if self.at == changes { self.count } else { 0 }
    }

    pub(super) fn took(&mut self, changes: u64) {
        *self = Losses { at: changes, count: self.count(changes), has_taken: true };
    }

    pub(super) fn lost(&mut self, changes: u64) {
        let again = self.at == changes && self.has_taken;
        *self = Losses { at: changes, count: self.count(changes) + u32::from(again), has_taken: false };
    }
}

impl Job {
    pub(super) fn new(id: JobId, spec: JobSpec) -> Job {
        let tasks = vec![None; spec.tasks_max as usize];
        Job {
            id,
            spec,
            tasks,
            running: 0,
            started: 0,
            stale_since: None,
            waiting: None,
            losses: Losses::default(),
            avoids: Vec::new(),
        }
    }

    pub fn id(&self) -> JobId {
        self.id
    }

    pub fn spec(&self) -> &JobSpec {
        &self.spec
    }

    /// Tasks that run, and where.
    pub fn tasks(&self) -> impl Iterator<Item = (u32, &Placement)> {
        (0..).zip(&self.tasks).filter_map(|(number, placement)| Some((number, placement.as_ref()?)))
    }

    pub fn running(&self) -> u32 {
        self.running
    }

    /// When it last got its minimum of tasks; meaningful while it runs.
    pub fn started(&self) -> Millis {
        self.started
    }

    /// Tasks that it takes next, all or none: the missing ones up to its minimum, then one at a
    /// time.
    pub(super) fn needs(&self) -> u32 {
        let JobSpec { tasks_min, tasks_max, .. } = self.spec;
        if self.running < tasks_min {
            tasks_min - self.running
        } else {
            tasks_max.min(self.running + 1) - self.running
        }
    }

    /// What waits in the queue of it, if anything.
    pub(super) fn class(&self) -> Option<Class> {
        let needs = self.needs();
        let spec = self.spec;
        (needs > 0).then_some(Class {
            request: spec.request,
            needs,
            priority: spec.priority,
            preemptible: spec.preemptible,
            topology: spec.topology,
            // Tasks that join others in one domain, or shun theirs, depend on where those are: such
            // a job is a class of its own.
            joins: (self.running > 0 && (spec.topology.required.is_some() || spec.topology.apart.is_some()))
                .then_some(self.id),
            surplus: self.running >= spec.tasks_min,
            avoids: (!self.avoids.is_empty()).then_some(self.id),
        })
    }

    /// The most that this number of its tasks take, wherever they are.
    pub(super) fn amounts(&self, tasks: u32) -> Amounts {
        Amounts::of(&self.spec.request, tasks)
    }

    /// What its tasks take where they are.
    pub(super) fn used(&self) -> Amounts {
        let mut used = Amounts::ZERO;
        self.tasks().for_each(|(_, placement)| used += Amounts::of(&placement.request, 1));
        used
    }
}

/// Waiting work of one queue that is equal in all that a decision looks at: what holds for the
/// first holds for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Class {
    pub(super) request: Request,
    pub(super) needs: u32,
    pub(super) priority: i32,
    pub(super) preemptible: bool,
    pub(super) topology: Topology,
    pub(super) joins: Option<JobId>,
    /// Beyond the minimum of an elastic job.
    pub(super) surplus: bool,
    /// There are nodes that would not take it: such a job is a class of its own, too.
    pub(super) avoids: Option<JobId>,
}

impl Class {
    pub(super) fn amounts(&self) -> Amounts {
        Amounts::of(&self.request, self.needs)
    }
}

/// A job that is refused at once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    #[error(transparent)]
    Request(#[from] crate::InvalidRequest),
    #[error("queue \"{queue}\" has queues below it; submit to one of those")]
    NotALeaf { queue: String },
    #[error(
        "tasks: at least {min} and at most {max} asked for; ask for 1 or more, the minimum not above the maximum, at most {}",
        TASKS_MAX
    )]
    Tasks { min: u32, max: u32 },
    #[error("topology level {level} asked for; the cluster has {levels} levels, the widest is 0")]
    Level { level: u8, levels: usize },
    #[error(
        "topology: the preferred level {preferred} is wider than the required level {required}; prefer a narrower one"
    )]
    Preferred { preferred: u8, required: u8 },
    #[error(
        "topology: tasks apart by level {apart} cannot be together in one domain of level {together}; ask for a narrower level"
    )]
    Apart { apart: u8, together: u8 },
}

/// Tasks of one job.
pub const TASKS_MAX: u32 = 100_000;
