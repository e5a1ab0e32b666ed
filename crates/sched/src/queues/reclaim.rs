//! Work that takes the place of other work: of other queues (reclaim), or of its own queue (preemption).

use super::pending::ClassId;
use super::rights::{Right, Taker};
use super::scheduler::Scheduler;
use super::tree::QueueId;
use super::why::{Bound, Evicted, No};

/// In this order: a queue above its share gives first, and gives no more than that if possible; what is deserved comes last, since it
/// may take from queues within their share.
const RECLAIMS: [Right; 4] = [
    Right::Share { keep: true },
    Right::Share { keep: false },
    Right::Quota { keep: true },
    Right::Quota { keep: false },
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
        for right in RECLAIMS {
            let by = |job, in_quota| Evicted::Reclaimed { by: job, in_quota };
            let in_quota = matches!(right, Right::Quota { .. });
            match self.try_take(queue, id, right, |job| by(job, in_quota), Bound::Reclaimed) {
                Ok(()) => return true,
                Err(reason) => {
                    // A search that failed says more than a right that is missing.
                    if no.is_none()
                        || !matches!(reason, No::OverShare { .. } | No::NoVictims { protected: 0, .. })
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
            self.try_take(queue, id, Right::Priority, |by| Evicted::Preempted { by }, Bound::Preempted)
        } else {
            Err(No::Disabled)
        };
        let version = self.version;
        if let (Err(no), Some(waiting)) = (&result, self.pending[queue.index()].get_mut(id)) {
            waiting.why.preemption = Some(no.clone());
            let deferred = *no == No::Deferred || waiting.why.reclaim == Some(No::Deferred);
            waiting.not_taken_at = (!deferred).then_some(version);
        }
        result.is_ok()
    }

    /// One search by one right.
    fn try_take(
        &mut self,
        queue: QueueId,
        id: ClassId,
        right: Right,
        because: impl Fn(super::JobId) -> Evicted,
        bound: Bound,
    ) -> Result<(), No> {
        let Some(waiting) = self.pending[queue.index()].get(id) else { return Err(NOTHING) };
        let (class, Some(&job)) = (waiting.class, waiting.jobs.first()) else { return Err(NOTHING) };
        if !class.preemptible && self.books.over_quota(&self.tree, queue, class.amounts()).is_some() {
            return Err(No::OverQuota);
        }
        if let Some(no) = self.no_right(queue, &class, right) {
            return Err(no);
        }
        let taker = Taker { job, queue, class, right };
        let candidates = self.candidates(&taker);
        let until = candidates.until;
        if !candidates.in_order.is_empty() {
            self.count_search()?;
        }
        let before = self.actions.len();
        match self.take(&taker, &candidates, because(job)) {
            Ok(placed) => {
                // What an earlier search freed may be enough for this one.
                let bound = if self.actions.len() > before { bound } else { Bound::Free };
                self.bind(job, placed, bound);
                Ok(())
            }
            Err(no) => {
                if let Some(waiting) = self.pending[queue.index()].get_mut(id) {
                    waiting.retry_at = waiting.retry_at.into_iter().chain(until).min();
                }
                Err(no)
            }
        }
    }

    /// Counts one search against what a cycle may do.
    pub(super) fn count_search(&mut self) -> Result<(), No> {
        self.deferred = self.searches_left == 0;
        self.searches_left = self.searches_left.saturating_sub(1);
        if self.deferred { Err(No::Deferred) } else { Ok(()) }
    }

    fn not_reclaimed(&mut self, queue: QueueId, id: ClassId, no: No) -> bool {
        if let Some(waiting) = self.pending[queue.index()].get_mut(id) {
            waiting.why.reclaim = Some(no);
        }
        false
    }
}
