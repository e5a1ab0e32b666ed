//! The figures of a replay.

use std::collections::BTreeMap;

use serde::Serialize;

use super::engine::{Engine, Session};
use super::{Eviction, ReplayPlan};
use crate::policy::PolicyName;
use crate::site::Site;
use crate::summary::{jain, mean_and_deviation, percentile};
use crate::trace::{Jobs, Queues};

#[derive(Clone, Debug, Serialize)]
pub struct ReplayReport {
    pub nodes: usize,
    pub gpus: u32,
    pub jobs: usize,
    /// GPU time of all jobs.
    pub demand_gpu_hours: f64,
    /// From the first arrival to the last.
    pub arrivals_hours: f64,
    pub cycle_s: f64,
    pub eviction: Eviction,
    pub migrate: bool,
    pub seed: u64,
    pub policies: Vec<PolicyReplay>,
}

/// What came of one policy.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyReplay {
    pub policy: PolicyName,
    /// Mean of the GPU compute allocated from the first arrival to the last, in percent of the
    /// cluster's.
    pub allocated_percent: f64,
    /// Mean part of the free GPU compute, in percent, that a job drawn from the list could not use
    /// where it was.
    pub stranded_percent: f64,
    /// From the first arrival to the last end.
    pub makespan_hours: f64,
    pub finished_jobs: usize,
    pub wait_s: Wait,
    /// Evictions for queues below their fair share.
    pub reclaimed: u64,
    /// Evictions for higher priorities of the same queue.
    pub preempted: u64,
    /// Gangs ended because members were missing.
    pub stale: u64,
    /// Running tasks moved to make room.
    pub moves: u64,
    /// GPU time that evicted jobs had to spend again.
    pub lost_gpu_hours: f64,
    /// Jain's index of the queues' use in relation to their fair shares: 1 is perfectly even.
    pub fairness: f64,
    pub queues: Vec<QueueReplay>,
    /// Jobs that never ran, by the reason.
    pub never_ran: Vec<Waiting>,
    /// Decisions of the scheduler.
    pub cycles: u64,
    /// Waits of all jobs that ran, ascending, in seconds.
    #[serde(skip)]
    pub(crate) waits_s: Vec<f64>,
    /// For each queue below the cluster its name and its part of the GPUs in percent, by hours.
    #[serde(skip)]
    pub(crate) over_time: Vec<(String, Vec<(f64, f64)>)>,
}

/// Seconds from a job's arrival to its first start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Wait {
    pub mean: f64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

/// What one queue got; jobs wait in it.
#[derive(Clone, Debug, Serialize)]
pub struct QueueReplay {
    pub queue: String,
    pub jobs: usize,
    pub finished_jobs: usize,
    /// What its jobs are to pay for.
    pub gpu_hours: f64,
    pub fair_share_gpu_hours: f64,
    /// The use in percent of the fair share.
    pub of_fair_share_percent: f64,
    pub wait_s: Wait,
    pub evictions: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Waiting {
    pub reason: String,
    pub jobs: usize,
}

/// Points of a chart over time.
const SLOTS: usize = 240;
const MILLI_MS_PER_GPU_HOUR: f64 = 1000.0 * 3.6e6;

impl ReplayReport {
    pub(super) fn new(
        site: &Site,
        jobs: &Jobs,
        plan: &ReplayPlan,
        policies: Vec<PolicyReplay>,
    ) -> ReplayReport {
        let timings = || jobs.jobs.iter().filter_map(|job| Some((job, job.timing?)));
        let arrivals = || timings().map(|(_, timing)| timing.arrival_ms);
        let (first, last) = (arrivals().min().unwrap_or_default(), arrivals().max().unwrap_or_default());
        let demand = timings().map(|(job, timing)| job.gpu_milli() as f64 * timing.duration_ms as f64);
        ReplayReport {
            nodes: site.nodes(),
            gpus: site.gpus(),
            jobs: jobs.jobs.len(),
            demand_gpu_hours: demand.sum::<f64>() / MILLI_MS_PER_GPU_HOUR,
            arrivals_hours: (last - first) as f64 / 3.6e6,
            cycle_s: plan.cycle_ms as f64 / 1000.0,
            eviction: plan.eviction,
            migrate: plan.migrate,
            seed: plan.seed,
            policies,
        }
    }
}

impl Engine<'_> {
    pub(super) fn report(&self, policy: PolicyName) -> PolicyReplay {
        let ledger = &self.ledger;
        let arrivals = self.sessions.iter().filter_map(|session| session.job.timing);
        let last_arrival_ms = arrivals.map(|timing| timing.arrival_ms).max().unwrap_or_default();
        let waits_s = waits(self.sessions.iter());
        let queues = self.queue_reports();
        let ratios: Vec<f64> = queues
            .iter()
            .filter(|queue| queue.fair_share_gpu_hours > 0.0)
            .map(|queue| queue.of_fair_share_percent)
            .collect();
        let names = ledger.tree().roots().iter().map(|&root| ledger.tree().queue(root).name.clone());
        PolicyReplay {
            policy,
            allocated_percent: ledger.allocated_percent(last_arrival_ms),
            stranded_percent: ledger.stranded_percent(last_arrival_ms),
            makespan_hours: ledger.last_end_ms.saturating_sub(ledger.start_ms()) as f64 / 3.6e6,
            finished_jobs: self.sessions.iter().filter(|session| session.finished).count(),
            wait_s: Wait::of(&waits_s),
            reclaimed: ledger.totals.reclaimed,
            preempted: ledger.totals.preempted,
            stale: ledger.totals.stale,
            moves: ledger.totals.moves,
            lost_gpu_hours: ledger.totals.lost_milli_ms as f64 / MILLI_MS_PER_GPU_HOUR,
            fairness: jain(&ratios),
            queues,
            never_ran: self.never_ran(),
            cycles: ledger.totals.cycles,
            waits_s,
            over_time: names.zip(ledger.over_time(SLOTS)).collect(),
        }
    }

    fn queue_reports(&self) -> Vec<QueueReplay> {
        let tree = self.ledger.tree();
        let mut sessions: BTreeMap<&str, Vec<&Session<'_>>> = BTreeMap::new();
        for session in &self.sessions {
            sessions.entry(Queues::name_for(session.job)).or_default().push(session);
        }
        let leaves = tree.top_down().filter(|&queue| tree.queue(queue).children.is_empty());
        leaves
            .map(|queue| {
                let name = &tree.queue(queue).name;
                let sessions = sessions.get(name.as_str()).map_or(&[][..], Vec::as_slice);
                let used = self.ledger.use_of(queue);
                let [gpu_hours, fair_share_gpu_hours] =
                    [used.used, used.fair_share].map(|amount| amount as f64 / MILLI_MS_PER_GPU_HOUR);
                let ratio =
                    if fair_share_gpu_hours > 0.0 { gpu_hours * 100.0 / fair_share_gpu_hours } else { 0.0 };
                QueueReplay {
                    queue: name.clone(),
                    jobs: sessions.len(),
                    finished_jobs: sessions.iter().filter(|session| session.finished).count(),
                    gpu_hours,
                    fair_share_gpu_hours,
                    of_fair_share_percent: ratio,
                    wait_s: Wait::of(&waits(sessions.iter().copied())),
                    evictions: sessions.iter().map(|session| u64::from(session.interrupted)).sum(),
                }
            })
            .collect()
    }

    fn never_ran(&self) -> Vec<Waiting> {
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        for session in self.sessions.iter().filter(|session| !session.finished) {
            let why = session.id.and_then(|id| self.scheduler.why(id));
            let reason =
                why.map_or_else(|| "it was interrupted and never resumed".into(), ToString::to_string);
            *reasons.entry(reason).or_default() += 1;
        }
        reasons.into_iter().map(|(reason, jobs)| Waiting { reason, jobs }).collect()
    }
}

/// Ascending, in seconds.
fn waits<'a>(sessions: impl Iterator<Item = &'a Session<'a>>) -> Vec<f64> {
    let wait = |session: &Session<'_>| {
        let arrival = session.job.timing?.arrival_ms;
        Some(session.first_start_ms?.saturating_sub(arrival) as f64 / 1000.0)
    };
    let mut waits: Vec<f64> = sessions.filter_map(wait).collect();
    waits.sort_by(f64::total_cmp);
    waits
}

impl Wait {
    fn of(ascending_s: &[f64]) -> Wait {
        let [p50, p95, p99, max] = [50.0, 95.0, 99.0, 100.0].map(|percent| percentile(ascending_s, percent));
        Wait { mean: mean_and_deviation(ascending_s).0, p50, p95, p99, max }
    }
}
