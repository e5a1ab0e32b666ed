//! "Where would it go, who would give way, when would it start?": asked of a copy, so nothing is
//! decided by it.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::decay::Millis;
use super::job::JobId;
use super::scheduler::Scheduler;
use super::why::{Action, Why};
use crate::Placement;

/// What would become of a waiting job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forecast {
    /// When it would have its minimum of tasks, and where these would be; none if not within what
    /// was looked at.
    pub start: Option<(Millis, Vec<Placement>)>,
    /// Jobs that would be evicted or lose tasks now so that it could start; none where it would not
    /// start now.
    pub evicted: Vec<JobId>,
    /// Why it would not start now.
    pub why: Option<Why>,
    /// Ends of jobs that were looked at.
    pub ends: u32,
}

/// Cycles at one moment: demand is constant meanwhile, so it comes to rest long before.
const CYCLES_MAX: u32 = 1_000;

impl Scheduler {
    /// What becomes of a waiting job if nothing else is submitted: the same decisions on a copy,
    /// `scheduler.clone().forecast(...)`, into which a job that is not submitted yet can be put
    /// before. `runtime` says how long a job runs from its start; one without never ends, and one
    /// that has run longer ends now. No more than `ends_max` ends are looked at.
    ///
    /// The forecast is of the scheduler's own state: work that is stopped elsewhere, or comes
    /// later, makes it wrong.
    pub fn forecast(
        mut self,
        now: Millis,
        job: JobId,
        runtime: impl Fn(JobId) -> Option<Millis>,
        ends_max: u32,
    ) -> Forecast {
        let mut forecast = Forecast { start: None, evicted: Vec::new(), why: None, ends: 0 };
        let mut ends = BinaryHeap::new();
        let end = |scheduler: &Scheduler, id: JobId| {
            let job = scheduler.jobs.get(&id).filter(|job| job.running >= job.spec.tasks_min)?;
            Some(Reverse((job.started.saturating_add(runtime(id)?).max(scheduler.now), id, job.started)))
        };
        self.now = self.now.max(now);
        ends.extend(self.jobs.keys().filter_map(|&id| end(&self, id)));
        let mut first = true;
        loop {
            let actions = self.rest();
            if std::mem::take(&mut first) {
                forecast.why = self.why(job).cloned().filter(|_| !self.has_minimum(job));
                forecast.evicted = evicted(&actions, job);
            }
            if self.has_minimum(job) {
                let placements = self.jobs[&job].tasks().map(|(_, placement)| *placement).collect();
                forecast.start = Some((self.jobs[&job].started.max(now), placements));
                return forecast;
            }
            let touched = actions.iter().map(|action| match *action {
                Action::Bind { job, .. } | Action::Evict { job, .. } | Action::Move { job, .. } => job,
            });
            ends.extend(touched.collect::<BTreeSet<_>>().into_iter().filter_map(|id| end(&self, id)));
            if !self.end_next(&mut ends, ends_max - forecast.ends) {
                return forecast;
            }
            forecast.ends += 1;
        }
    }

    /// Lets the job end that ends first; says whether one did.
    fn end_next(&mut self, ends: &mut BinaryHeap<Reverse<(Millis, JobId, Millis)>>, left: u32) -> bool {
        while let Some(Reverse((at, id, started))) = ends.pop().filter(|_| left > 0) {
            // It may have been evicted since, and started again.
            if self.jobs.get(&id).is_some_and(|job| job.running > 0 && job.started == started) {
                self.now = self.now.max(at);
                self.finish(id);
                return true;
            }
        }
        false
    }

    /// Cycles until there is nothing more to do now.
    fn rest(&mut self) -> Vec<Action> {
        let mut all = Vec::new();
        for _ in 0..CYCLES_MAX {
            let actions = self.cycle(self.now);
            if actions.is_empty() && !self.has_deferred() {
                break;
            }
            all.extend(actions);
        }
        all
    }

    fn has_minimum(&self, id: JobId) -> bool {
        self.jobs.get(&id).is_some_and(|job| job.running >= job.spec.tasks_min)
    }
}

/// Jobs that gave way to the job.
fn evicted(actions: &[Action], for_job: JobId) -> Vec<JobId> {
    use super::why::Evicted::{Preempted, Reclaimed};
    let gave_way = |action: &Action| match *action {
        Action::Evict { job, because: Reclaimed { by, .. } | Preempted { by }, .. } if by == for_job => {
            Some(job)
        }
        _ => None,
    };
    actions.iter().filter_map(gave_way).collect::<BTreeSet<_>>().into_iter().collect()
}
