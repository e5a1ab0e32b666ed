//! When waiting leases start: the scheduler's own forecast, with run times as leases said or as
//! their like took before; and for those that are kept from the scheduler what the calendar says.

use std::collections::HashMap;

use sluice_api::lease::{LeaseId, StartEstimate};
use sluice_iq::duration::Errors;
use sluice_sched::queues::{Blocked, JobId};

use super::{Clock, Plan, keeps_its_place, queues};
use crate::fleet::{Fleet, LeaseRecord};
use crate::history::History;

/// Estimates are made anew after this.
const ESTIMATE_EVERY_MS: u64 = 2_000;
/// Ends of leases that a forecast looks at.
pub(super) const ENDS_MAX: u32 = 1_000;
/// Leases x estimates of one time: a forecast copies the scheduler's state.
pub(super) const EFFORT_MAX: usize = 20_000;
/// Estimates of one time.
const ESTIMATES_MAX: usize = 50;

#[derive(Debug, Default)]
pub(super) struct Estimates {
    made_at_ms: u64,
    by_lease: HashMap<LeaseId, StartEstimate>,
}

impl Plan {
    /// When a waiting lease is expected to start, as of a moment ago.
    pub(crate) fn estimate(&self, id: LeaseId) -> Option<&StartEstimate> {
        self.estimates.by_lease.get(&id)
    }

    /// Makes the estimates of the first in each line anew, if it is time to.
    pub(crate) fn estimate_all(&mut self, fleet: &Fleet, history: &mut History, clock: Clock) {
        if clock.now_ms.abs_diff(self.estimates.made_at_ms) < ESTIMATE_EVERY_MS {
            return;
        }
        let count = (EFFORT_MAX / self.work.len().max(1)).min(ESTIMATES_MAX);
        let first: Vec<LeaseId> = fleet.queue().take(count).map(|lease| lease.id).collect();
        self.estimates.by_lease.clear();
        for lease in first {
            let is_forecast = self.work.contains_key(&lease);
            let estimate = match is_forecast {
                true => self.forecast(fleet, history, lease, clock),
                false => self.by_calendar(fleet, lease, clock),
            };
            // A moment of the calendar is not guessed, and says nothing of how good guesses are.
            if let Some(at_ms) = estimate.as_ref().and_then(|estimate| estimate.at_ms).filter(|_| is_forecast)
            {
                history.expect(lease, at_ms);
            }
            if let Some(estimate) = estimate {
                self.estimates.by_lease.insert(lease, estimate);
            }
        }
        self.estimates.made_at_ms = clock.now_ms;
    }

    fn forecast(&self, fleet: &Fleet, history: &History, id: LeaseId, clock: Clock) -> Option<StartEstimate> {
        if self.bound.contains(&id) {
            let errors = history.errors(&fleet.lease(id)?.tenant);
            let noticed = fleet.leases().flat_map(LeaseRecord::notices).max();
            let at_ms = noticed.unwrap_or(clock.now_ms).max(clock.now_ms);
            let because = "its place is being cleared".into();
            return Some(expected(at_ms, errors, because));
        }
        let work = self.work.get(&id)?;
        let runtime = |job: JobId| history.runtime_ms(fleet.lease(*self.leases.get(&job)?)?, clock.now_ms);
        let forecast = self.scheduler.clone().forecast(clock.now_ms, work.job, runtime, ENDS_MAX);
        if let Some((at_ms, _)) = forecast.start {
            let because = format!("if the {} leases before it end as expected", forecast.ends);
            return Some(expected(at_ms, history.errors(&work.tenant), because));
        }
        // Behind a limit others' leases are not in the way.
        let blocked = self.scheduler.why(work.job).and_then(|why| why.blocked.as_ref());
        let (behind, of_guarantee) = match blocked {
            Some(Blocked::Limit { queue, .. }) => (queues::tenant_of(queue), false),
            Some(Blocked::Quota { queue, .. }) => (queues::tenant_of(queue), true),
            _ => (None, false),
        };
        // What can be preempted does not count towards a guarantee.
        let is_in_the_way = |lease: &&LeaseRecord| {
            behind.as_ref().is_none_or(|tenant| tenant.contains(&lease.tenant))
                && !(of_guarantee && lease.ask.preemptible)
        };
        let endless = fleet
            .leases()
            .filter(|lease| keeps_its_place(lease) && history.runtime_ms(lease, clock.now_ms).is_none())
            .find(is_in_the_way)
            .map(|lease| lease.id);
        Some(unknown(match endless {
            Some(other) => {
                format!("lease {other} did not say how long it takes, and nothing like it ran before")
            }
            None => format!("not after the next {} ends of leases that are expected", forecast.ends),
        }))
    }

    /// For a lease that is kept from the scheduler.
    fn by_calendar(&mut self, fleet: &Fleet, id: LeaseId, clock: Clock) -> Option<StartEstimate> {
        let lease = fleet.lease(id)?;
        let known = if self.broken.is_some() {
            None
        } else if fleet.budgets().spent(&lease.tenant).is_some() {
            let until_ms = fleet.budgets().spent_until_ms(&lease.tenant, clock.now_ms);
            until_ms.map(|at_ms| (at_ms, "if there is room when the budget's next period begins"))
        } else if self.over_count(fleet, lease).is_some() {
            None
        } else {
            let at_ms = self.served_from_ms(fleet, lease);
            at_ms.map(|at_ms| (at_ms, "if there is room when a pool begins to serve it"))
        };
        match known {
            Some((at_ms, because)) => Some(expected(at_ms, None, because.into())),
            None => Some(unknown(self.why(fleet, id)?)),
        }
    }
}

/// Makes an estimate with the errors of earlier ones.
pub(super) fn expected(at_ms: u64, errors: Option<Errors>, because: String) -> StartEstimate {
    StartEstimate {
        at_ms: Some(at_ms),
        error_ms: errors.map(|errors| errors.median_ms),
        error_p90_ms: errors.map(|errors| errors.p90_ms),
        because,
    }
}

pub(super) fn unknown(because: String) -> StartEstimate {
    StartEstimate { at_ms: None, error_ms: None, error_p90_ms: None, because }
}
