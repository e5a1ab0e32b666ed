//! By what right work of others is taken.

use super::amounts::{Amounts, Resource};
use super::decay::Millis;
use super::job::{Class, JobId};
use super::scheduler::Scheduler;
use super::tree::QueueId;
use super::why::No;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Right {
    /// Work of another queue that has more than its fair share.
    Share {
        /// Without pushing that queue below its share.
        keep: bool,
    },
    /// Work of another queue that has more than it deserves, for a queue that stays within what it
    /// deserves and within its share: where queues together deserve more than there is, no queue
    /// can have all of it.
    Quota { keep: bool },
    /// Work of the same queue with a lower priority.
    Priority,
}

/// Who asks for room, and by what right.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taker {
    pub(super) job: JobId,
    pub(super) queue: QueueId,
    pub(super) class: Class,
    pub(super) right: Right,
}

impl Taker {
    /// Whether those who give keep what is theirs: always for tasks that are welcome but not
    /// necessary.
    pub(super) fn keeps(&self) -> bool {
        match self.right {
            Right::Share { keep } | Right::Quota { keep } => keep || self.class.surplus,
            Right::Priority => false,
        }
    }
}

impl Scheduler {
    /// What a queue has above this may be taken by the right; none where the right does not depend
    /// on it.
    pub(super) fn bound_of(&self, right: Right, queue: QueueId) -> Option<Amounts> {
        match right {
            Right::Share { .. } => Some(self.fair_share(queue)),
            Right::Quota { .. } => Some(self.tree.queue(queue).deserved),
            Right::Priority => None,
        }
    }

    /// Whether the right reaches this work of a queue: it has some of what the queue has more of
    /// than its bound. To take anything else would leave the queue as far above, and it would get
    /// its work back for what it has too much of: for ever.
    pub(super) fn reaches(&self, right: Right, theirs: QueueId, amounts: Amounts) -> bool {
        let Some(bound) = self.bound_of(right, theirs) else { return true };
        let allocated = self.allocated(theirs);
        self.tree.shared().iter().any(|&r| amounts[r] > 0 && allocated[r] > bound[r])
    }

    /// Whether `amounts` of a queue's work may be taken as things stand now; with none, whether any
    /// might.
    pub(super) fn may_take(&self, taker: &Taker, from: QueueId, amounts: Amounts) -> bool {
        let in_quota = match taker.right {
            Right::Priority => return from == taker.queue,
            Right::Share { .. } => false,
            Right::Quota { .. } => true,
        };
        // Fairness is between the two queues below the common ancestor; the taker's queues up to
        // there stay within bounds.
        let Some((ours, theirs)) = self.tree.part_ways(taker.queue, from) else { return false };
        let needed = taker.class.amounts();
        let bound = |queue| if in_quota { self.tree.queue(queue).deserved } else { self.fair_share(queue) };
        for queue in self.tree.path(taker.queue) {
            if self.over_right(queue, needed, in_quota).is_some() {
                return false;
            }
            if queue == ours {
                break;
            }
        }
        let is_reached = match amounts {
            Amounts::ZERO => self.books.above(&self.tree, theirs, Amounts::ZERO, &bound(theirs)).is_some(),
            _ => self.reaches(taker.right, theirs, amounts),
        };
        if !is_reached {
            return false;
        }
        let within_deserved =
            self.books.above(&self.tree, ours, needed, &self.tree.queue(ours).deserved).is_none();
        let order_kept = || {
            let after = self.books.saturation_with(&self.tree, ours, needed);
            after.is_below(self.config.reclaim_percent.max(100), self.books.saturation(&self.tree, theirs))
        };
        (in_quota || within_deserved || order_kept())
            && (!taker.keeps() || self.keeps(theirs, amounts, &bound(theirs)))
    }

    /// The first resource of which a queue with `needed` would have more than its share or, where
    /// that is asked, than it deserves.
    fn over_right(&self, queue: QueueId, needed: Amounts, in_quota: bool) -> Option<Resource> {
        let deserved = in_quota.then_some(&self.tree.queue(queue).deserved);
        let over = deserved.and_then(|deserved| self.books.above(&self.tree, queue, needed, deserved));
        over.or_else(|| self.books.above(&self.tree, queue, needed, &self.fair_share(queue)))
    }

    /// Whether a queue without `amounts` still has `bound` of all that it has more of now.
    fn keeps(&self, queue: QueueId, amounts: Amounts, bound: &Amounts) -> bool {
        let allocated = self.allocated(queue);
        let mut over = self.tree.shared().iter().filter(|&&resource| allocated[resource] > bound[resource]);
        over.all(|&resource| allocated[resource] - amounts[resource] >= bound[resource])
    }

    /// Why a queue has no right to take work of others for the class, whatever others have.
    pub(super) fn no_right(&self, queue: QueueId, class: &Class, right: Right) -> Option<No> {
        let in_quota = match right {
            Right::Priority => return None,
            Right::Share { .. } => false,
            Right::Quota { .. } => true,
        };
        let amounts = class.amounts();
        if self.tree.shared().iter().all(|&resource| amounts[resource] == 0) {
            return Some(No::NotShared);
        }
        let over = self.over_right(queue, amounts, in_quota)?;
        Some(No::OverShare {
            queue: self.tree.queue(queue).name.clone(),
            share: over.describe(self.fair_share(queue)[over]),
            used: over.describe(self.allocated(queue)[over]),
        })
    }

    /// How long jobs of a queue are protected from the taker once they have started. Tasks above a
    /// job's minimum never are.
    pub(super) fn protection(&self, taker: &Taker, queue: QueueId) -> Millis {
        match taker.right {
            Right::Priority => self.tree.preempt_min_runtime(queue),
            _ => self.tree.reclaim_min_runtime(taker.queue, queue),
        }
    }
}
