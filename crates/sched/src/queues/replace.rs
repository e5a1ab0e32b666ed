//! Other queues while jobs wait and run: quotas change, tenants come and go.

use std::collections::BTreeMap;

use super::amounts::Amounts;
use super::books::Accounts;
use super::job::JobId;
use super::pending::Pending;
use super::scheduler::{Scheduler, victim_order};
use super::tree::{QueueError, QueueId, QueueSpec, QueueTree};

/// Work of a queue has no place in the new tree; nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "queue \"{queue}\" has {jobs} jobs, and the new tree has no queue without children for them; keep it until they have ended"
)]
pub struct HomelessWork {
    pub queue: String,
    pub jobs: usize,
}

/// A queue cannot be added; nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddQueueError {
    #[error(transparent)]
    Queue(#[from] QueueError),
    #[error("queue \"{queue}\" has work, which waits in queues without children only")]
    ParentHasWork { queue: String },
}

impl Scheduler {
    /// Adds a queue, which does not depend on how many queues there are. The queues above it keep
    /// their figures.
    pub fn add_queue(&mut self, spec: &QueueSpec) -> Result<QueueId, AddQueueError> {
        let parent = spec.parent.as_ref().and_then(|parent| self.tree.find(parent));
        if let Some(parent) = parent.filter(|parent| self.tree.queue(*parent).children.is_empty())
            && self.jobs.values().any(|job| job.spec.queue == parent)
        {
            return Err(AddQueueError::ParentHasWork { queue: self.tree.queue(parent).name.clone() });
        }
        let queue = self.tree.push(spec)?;
        self.books.add_account(self.config.half_life.map(|half_life| (self.now, half_life)));
        self.pending.push(Pending::default());
        self.evictable.push(Default::default());
        self.changed_from_outside();
        Ok(queue)
    }

    /// Whether a queue has used anything of late that still counts.
    pub fn has_history(&self, queue: QueueId) -> bool {
        self.config.half_life.is_some() && self.books.account(queue).has_history()
    }

    /// Puts another tree in the place of the queues. `home` names, for each queue that has jobs, by
    /// its old name, the leaf to which they go; with [`QueueTree::find`] that is the queue of the
    /// same name. Queues of the same name keep their history of use.
    ///
    /// Nothing is evicted by this: where a queue now has more than its limit, or fixed work above
    /// its quota, it gets nothing more, and the next cycles reclaim what shares allow. Every
    /// [`QueueId`] from before means nothing any more.
    pub fn set_queues(
        &mut self,
        tree: QueueTree,
        home: impl Fn(&QueueTree, &str) -> Option<QueueId>,
    ) -> Result<(), HomelessWork> {
        let homes = self.homes(&tree, home)?;
        let mut books = Accounts::new(&tree);
        if let Some(half_life) = self.config.half_life {
            books.begin_history(self.now, half_life);
        }
        for queue in self.tree.top_down() {
            if let Some(same) = tree.find(&self.tree.queue(queue).name) {
                books.keep_history(same, self.books.account(queue), self.now);
            }
        }
        (self.tree, self.books) = (tree, books);
        self.pending = std::iter::repeat_with(Pending::default).take(self.tree.len()).collect();
        self.evictable = vec![Default::default(); self.tree.len()];
        let mut jobs: Vec<JobId> = self.jobs.keys().copied().collect();
        jobs.sort_unstable();
        for id in jobs {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            job.spec.queue = homes[&job.spec.queue];
            job.waiting = None;
            let (spec, running, used) = (job.spec, job.running, job.used());
            if spec.preemptible && running > 0 {
                self.evictable[spec.queue.index()].insert(victim_order(job));
            }
            self.books.demand(spec.queue, Amounts::of(&spec.request, spec.tasks_max), spec.preemptible, true);
            self.books.allocate(&self.tree, spec.queue, used, spec.preemptible);
            self.line_up(id);
        }
        self.changed_from_outside();
        Ok(())
    }

    /// Where the jobs of each queue that has some go.
    fn homes(
        &self,
        tree: &QueueTree,
        home: impl Fn(&QueueTree, &str) -> Option<QueueId>,
    ) -> Result<BTreeMap<QueueId, QueueId>, HomelessWork> {
        let mut jobs: BTreeMap<QueueId, usize> = BTreeMap::new();
        for job in self.jobs.values() {
            *jobs.entry(job.spec.queue).or_default() += 1;
        }
        let home_of = |(old, jobs)| {
            let name = &self.tree.queue(old).name;
            let leaf = home(tree, name).filter(|&new| tree.queue(new).children.is_empty());
            leaf.map(|new| (old, new)).ok_or_else(|| HomelessWork { queue: name.clone(), jobs })
        };
        jobs.into_iter().map(home_of).collect()
    }
}
