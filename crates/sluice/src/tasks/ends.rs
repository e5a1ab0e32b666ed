//! How the tasks of a run ended, by their ranks.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use crate::child::EXIT_SLUICE_FAILED;

#[derive(Default)]
pub(super) struct Ends {
    /// Ranks that are done with.
    done: BTreeMap<usize, ExitStatus>,
    /// Ranks of tasks that had to make room with no other there to continue with their work, and
    /// that were not taken since.
    left: BTreeMap<usize, ExitStatus>,
    /// Of the task that failed by itself, after which the others were asked to end.
    first_failed: Option<ExitStatus>,
}

impl Ends {
    /// A task of this rank has started.
    pub(super) fn begin(&mut self, rank: usize) {
        self.left.remove(&rank);
    }

    /// It has ended by itself, or with the whole run.
    pub(super) fn finish(&mut self, rank: usize, status: ExitStatus) {
        self.done.insert(rank, status);
    }

    /// One has failed by itself: the others fail because of it.
    pub(super) fn fail_first(&mut self, status: ExitStatus) {
        self.first_failed.get_or_insert(status);
    }

    /// It had to make room: its work is for the others, or the next one of its rank.
    pub(super) fn leave(&mut self, rank: usize, status: ExitStatus, others_run: bool) {
        if !others_run {
            self.left.insert(rank, status);
        }
    }

    /// The ranks that are not given again.
    pub(super) fn done(&self) -> impl Iterator<Item = usize> + '_ {
        self.done.keys().copied()
    }

    /// Of the one that failed first, of those that are done in the order of their ranks, then of
    /// those that were not finished.
    pub(super) fn statuses(self) -> Vec<ExitStatus> {
        let ranks = self.done.into_values().chain(self.left.into_values());
        self.first_failed.into_iter().chain(ranks).collect()
    }
}

/// Of a task of which the kernel does not say how it ended: that is no success.
pub(super) fn unknown_status() -> ExitStatus {
    ExitStatus::from_raw(EXIT_SLUICE_FAILED << 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED: i32 = libc::SIGKILL;

    fn codes(ends: Ends) -> Vec<i32> {
        ends.statuses().into_iter().map(ExitStatus::into_raw).collect()
    }

    #[test]
    fn a_rank_that_nobody_finished_is_not_forgotten() {
        let mut ends = Ends::default();
        ends.leave(0, ExitStatus::from_raw(KILLED), false);
        ends.finish(2, ExitStatus::from_raw(0));
        assert_eq!(ends.done().collect::<Vec<_>>(), [2], "0 is free");
        assert_eq!(codes(ends), [0, KILLED]);
    }

    #[test]
    fn the_first_failure_counts_before_those_that_follow_from_it() {
        let mut ends = Ends::default();
        ends.finish(1, unknown_status());
        ends.fail_first(unknown_status());
        ends.finish(0, ExitStatus::from_raw(KILLED));
        ends.fail_first(ExitStatus::from_raw(KILLED));
        let first = ends.statuses().remove(0);
        assert_eq!(first.code(), Some(EXIT_SLUICE_FAILED));
    }

    #[test]
    fn one_that_saved_its_work_and_left_has_not_failed() {
        let mut ends = Ends::default();
        ends.leave(2, ExitStatus::from_raw(0), false);
        assert_eq!(ends.done().count(), 0, "its rank is free");
        assert_eq!(codes(ends), [0]);
    }

    #[test]
    fn others_go_on_with_the_work_of_one_that_left() {
        let mut ends = Ends::default();
        ends.leave(1, ExitStatus::from_raw(KILLED), true);
        ends.finish(0, ExitStatus::from_raw(0));
        assert_eq!(codes(ends), [0]);
    }

    #[test]
    fn a_rank_that_started_again_is_judged_by_its_last_end() {
        let mut ends = Ends::default();
        ends.finish(0, ExitStatus::from_raw(0));
        ends.leave(1, ExitStatus::from_raw(KILLED), false);
        ends.begin(1);
        ends.finish(1, ExitStatus::from_raw(0));
        assert_eq!(codes(ends), [0, 0]);
    }
}
