//! Work that takes the place of other work: of other queues (reclaim), or of its own queue
//! (preemption).

use super::job::{JobId, Losses};
use super::pending::ClassId;
use super::rights::{Right, Taker};
use super::scheduler::Scheduler;
use super::tree::QueueId;
use super::why::{Action, Bound, Evicted, No};

/// In this order: a queue above its share gives first, and gives no more than that if possible;
/// what is deserved comes last, since it may take from queues within their share. Who gives is the
/// same for both rights of a row.
const RECLAIMS: [[Right; 2]; 2] = [
    [Right::Share { keep: true }, Right::Share { keep: false }],
    [Right::Quota { keep: true }, Right::Quota { keep: false }],
];

/// No work is there to be taken.
const NOTHING: No = No::NoVictims { protected: 0, until: None };

impl Scheduler {
    pub(super) fn try_reclaim(&mut self, queue: QueueId, id: ClassId) -> bool {
        if let Some(waiting) = self.pending[queue.index()].get_mut(id) {
            (waiting.retry_at, waiting.not_taken_at) = (None, None);
        }
        if !self.config.reclaim {
            return self.not_reclaimed(queue, id, No::Disabled);
        }
        let mut no = None;
        for rights in RECLAIMS {
            let in_quota = matches!(rights[0], Right::Quota { .. });
            let because = |job| Evicted::Reclaimed { by: job, in_quota };
            match self.try_take(queue, id, &rights, because, Bound::Reclaimed) {
                Ok(()) => return true,
                Err(reason) => {
                    // A search that failed says more than a right that is missing.
                    if no.is_none()
                        || !matches!(
                            reason,
                            No::OverShare { .. } | No::NotShared | No::NoVictims { protected: 0, .. }
                        )
                    {
                        no = Some(reason);
                    }
                }
            }
        }
        no.is_some_and(|no| self.not_reclaimed(queue, id, no))
    }

    pub(super) fn try_preempt(&mut self, queue: QueueId, id: ClassId) -> bool {
        let result = if self.config.preempt {
            self.try_take(queue, id, &[Right::Priority], |by| Evicted::Preempted { by }, Bound::Preempted)
        } else {
            Err(No::Disabled)
        };
        if let (Err(no), Some(waiting)) = (&result, self.pending[queue.index()].get_mut(id)) {
            waiting.why.preemption = Some(no.clone());
            let deferred = *no == No::Deferred || waiting.why.reclaim == Some(No::Deferred);
            // Others may have had their turn between the two searches: what one of them freed is
            // reclaimed in the next cycle.
            waiting.not_taken_at = waiting.not_reclaimed_at.filter(|_| !deferred);
        }
        result.is_ok()
    }

    /// Searches by these rights, one after another, of which all see the same candidates.
    fn try_take(
        &mut self,
        queue: QueueId,
        id: ClassId,
        rights: &[Right],
        because: impl Fn(JobId) -> Evicted,
        bound: Bound,
    ) -> Result<(), No> {
        let Some(waiting) = self.pending[queue.index()].get(id) else { return Err(NOTHING) };
        let (class, Some(&job)) = (waiting.class, waiting.jobs.first()) else { return Err(NOTHING) };
        let Some(&right) = rights.first() else { return Err(NOTHING) };
        if !class.preemptible && self.books.over_quota(&self.tree, queue, class.amounts()).is_some() {
            return Err(No::OverQuota);
        }
        if let Some(no) = self.no_right(queue, &class, right) {
            return Err(no);
        }
        let lost = self.jobs.get(&job).map_or(0, |job| job.losses.count(self.changes));
        if lost >= Losses::MAX {
            return Err(No::LostAgain { times: lost });
        }
        let candidates = self.candidates(&Taker { job, queue, class, right });
        let mut no = NOTHING;
        for &right in rights {
            if !candidates.in_order.is_empty() {
                self.count_search()?;
            }
            let before = self.actions.len();
            match self.take(&Taker { job, queue, class, right }, &candidates, because(job)) {
                Ok(placed) => {
                    let has_taken =
                        self.actions[before..].iter().any(|it| matches!(it, Action::Evict { .. }));
                    // What an earlier search freed may be enough for this one.
                    let bound = match (has_taken, self.actions.len() > before) {
                        (true, _) => bound,
                        (false, true) => Bound::Consolidated,
                        (false, false) => Bound::Free,
                    };
                    if let (Some(job), true) = (self.jobs.get_mut(&job), has_taken) {
                        job.losses.took(self.changes);
                    }
                    self.bind(job, placed, bound);
                    return Ok(());
                }
                Err(reason) => no = reason,
            }
        }
        if let Some(waiting) = self.pending[queue.index()].get_mut(id) {
            waiting.retry_at = waiting.retry_at.into_iter().chain(candidates.until).min();
        }
        Err(no)
    }

    /// Counts one search against what a cycle may do.
    pub(super) fn count_search(&mut self) -> Result<(), No> {
        self.deferred = self.searches_left == 0;
        self.searches_left = self.searches_left.saturating_sub(1);
        if self.deferred { Err(No::Deferred) } else { Ok(()) }
    }

    fn not_reclaimed(&mut self, queue: QueueId, id: ClassId, no: No) -> bool {
        let version = self.version;
        if let Some(waiting) = self.pending[queue.index()].get_mut(id) {
            waiting.why.reclaim = Some(no);
            waiting.not_reclaimed_at = Some(version);
        }
        false
    }
}
