//! Replaying a workload in virtual time: jobs come, wait in queues, run, give way and end, as the
//! scheduler's cycles decide.
//!
//! ```text
//! arrival ──▶ waiting ──bind──▶ running ──end──▶ finished
//!                ▲                 │
//!                └──── evicted ────┘   (what it had computed is kept, or lost)
//! ```
//!
//! Arrivals and ends happen at their own times; decisions at the scheduler's cycles, a fixed period
//! apart and only where something has changed. Nothing depends on how fast this machine is.

mod engine;
mod estimates;
mod ledger;
mod report;

pub use engine::ReplayError;
pub use estimates::EstimateReport;
pub use report::{PolicyReplay, QueueReplay, ReplayReport, Wait, Waiting};
use serde::Serialize;
use sluice_sched::Request;

use crate::parallel;
use crate::policy::{History, PolicyName, prepare};
use crate::site::Site;
use crate::trace::{Jobs, Queues};

/// What to compare, and how the cluster behaves.
#[derive(Clone, Debug)]
pub struct ReplayPlan {
    pub policies: Vec<PolicyName>,
    /// Of the order of the nodes, which decides between equally good ones.
    pub seed: u64,
    /// From one decision of the scheduler to the next, at the least; above 0.
    pub cycle_ms: u64,
    pub eviction: Eviction,
    /// Whether running work is moved to make room.
    pub migrate: bool,
    /// Ends the replay early where it only matters whether few jobs wait long.
    pub late: Option<Late>,
}

/// A number of jobs that have waited longer than a limit, after which a replay ends.
#[derive(Clone, Copy, Debug)]
pub struct Late {
    pub wait_ms: u64,
    pub jobs_max: usize,
}

/// What becomes of the work that an evicted job has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Eviction {
    /// The job continues where it was: it was suspended, or had written a checkpoint.
    Resume,
    /// The job begins again.
    Restart,
}

/// Replays the timed jobs once for each policy. The jobs are in queues that exist
/// ([`Queues::check`]).
pub fn replay(
    site: &Site,
    jobs: &Jobs,
    queues: &Queues,
    plan: &ReplayPlan,
) -> Result<ReplayReport, ReplayError> {
    let requests: Vec<Request> = jobs.jobs.iter().map(|job| site.request(job)).collect();
    let (history, _) = History::Draws.divide(&requests);
    let prepared = prepare(&plan.policies, site, &requests, &history)?;
    let runs = parallel::map(&prepared, |prepared| engine::run(site, jobs, queues, plan, prepared));
    let runs = runs.into_iter().collect::<Result<Vec<PolicyReplay>, ReplayError>>()?;
    Ok(ReplayReport::new(site, jobs, plan, runs))
}

/// Replays the timed jobs under one policy, and estimates when those start that have to wait and
/// how long all run, each from the jobs before it alone.
pub fn replay_with_estimates(
    site: &Site,
    jobs: &Jobs,
    queues: &Queues,
    plan: &ReplayPlan,
) -> Result<Vec<(PolicyReplay, EstimateReport)>, ReplayError> {
    let requests: Vec<Request> = jobs.jobs.iter().map(|job| site.request(job)).collect();
    let (history, _) = History::Draws.divide(&requests);
    let prepared = prepare(&plan.policies, site, &requests, &history)?;
    let runs =
        parallel::map(&prepared, |prepared| engine::run_with_estimates(site, jobs, queues, plan, prepared));
    runs.into_iter().collect()
}

#[cfg(test)]
mod tests;
