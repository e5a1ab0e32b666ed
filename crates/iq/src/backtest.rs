//! Rules of right-sizing on held-out weeks: each week is run with what the weeks before it
//! recommend.
//!
//! The runs of a week take no part in the recommendation that they are run with. A run that has
//! less than it uses is stretched, as on a full GPU that gives it its guarantee and nothing
//! beyond; one whose memory does not suffice is out of memory, whatever else the GPU has free. So
//! both counts are upper bounds.

use serde::Serialize;

use crate::live::{Live, Step};
use crate::rightsize::{MEMORY_STEP, SHARE_STEP_PPM, SLOWED_PERCENT, rightsize};
use crate::{Interval, Run};

const WEEK_MS: u64 = 7 * 24 * 3_600_000;
/// Weeks before the held-out one that `sluice iq` recommends from by default.
pub const HISTORY_WEEKS: u64 = 2;
const GPU_HOUR_PPM_MS: f64 = 3.6e12;
/// Of the p95 rule: samples count half after a day, and 15 % are added, as the Vertical Pod
/// Autoscaler's recommender does by default.
const HALF_LIFE_MS: f64 = 24.0 * 3.6e6;
const PERCENTILE: f64 = 0.95;
const ADDED: f64 = 1.15;

/// How a request is found from earlier runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// What [`rightsize`] recommends.
    Replayed,
    /// The 95th percentile of use, weighted by age, and 15 % more; the same of the runs' peaks of
    /// memory.
    Percentile95,
}

/// What became of the held-out runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    pub runs: usize,
    /// Runs with a recommendation that asks for less.
    pub changed: usize,
    /// Runs that took over 5 % longer.
    pub slowed: usize,
    /// The slowdown of the run that suffered most, in per cent of its time.
    pub worst_percent: f64,
    pub out_of_memory: usize,
    /// GPU-hours that the runs asked for, and that they held with what was recommended, longer
    /// runs included.
    pub asked_gpu_hours: f64,
    pub held_gpu_hours: f64,
}

impl Outcome {
    /// GPU-hours saved, in per cent of those asked for.
    pub fn saved_percent(&self) -> f64 {
        100.0 * (1.0 - self.held_gpu_hours / self.asked_gpu_hours.max(f64::MIN_POSITIVE))
    }

    /// Runs slowed by more than 5 %, in per cent of all.
    pub fn slowed_percent(&self) -> f64 {
        100.0 * self.slowed as f64 / self.runs.max(1) as f64
    }

    fn add(&mut self, run: &Run, given: Option<(u32, u64)>) {
        let (share_ppm, memory) = given.unwrap_or((run.share_ppm, run.memory / u64::from(run.gpus.max(1))));
        let (share_ppm, memory) = (share_ppm.min(run.share_ppm), memory * u64::from(run.gpus));
        let slowed_percent = run.stretched_percent(share_ppm, 0);
        let hours = |share_ppm: u32, longer: f64| {
            f64::from(share_ppm) * f64::from(run.gpus) * run.held_ms() as f64 * longer / GPU_HOUR_PPM_MS
        };
        self.runs += 1;
        self.changed += usize::from(share_ppm < run.share_ppm || memory < run.memory);
        self.slowed += usize::from(slowed_percent > SLOWED_PERCENT);
        self.worst_percent = self.worst_percent.max(slowed_percent);
        self.out_of_memory += usize::from(memory < run.memory_peak.min(run.memory));
        self.asked_gpu_hours += hours(run.share_ppm, 1.0);
        self.held_gpu_hours += hours(share_ppm, 1.0 + slowed_percent / 100.0);
    }
}

/// Runs every week of each program with what the rule makes of a number of weeks before it. The
/// programs' runs have their starts in milliseconds and are in the order of time.
pub fn backtest<'a>(
    programs: impl IntoIterator<Item = &'a [(u64, Run)]>,
    rule: Rule,
    history_weeks: u64,
) -> Outcome {
    let mut outcome = Outcome::default();
    for runs in programs {
        let Some((last_ms, _)) = runs.last() else { continue };
        for week in history_weeks..=last_ms / WEEK_MS {
            let between = |from: u64, until: u64| {
                let at = |ms: u64| runs.partition_point(|(start_ms, _)| *start_ms < ms);
                &runs[at(from * WEEK_MS)..at(until * WEEK_MS)]
            };
            let given = recommended(between(week - history_weeks, week), week * WEEK_MS, rule);
            between(week, week + 1).iter().for_each(|(_, run)| outcome.add(run, given));
        }
    }
    outcome
}

/// A run with a share and an amount of memory of each GPU, on a full GPU: work that does not fit
/// into an interval is done in those after it.
pub fn squeezed(run: &Run, share_ppm: u32, memory: u64) -> Run {
    let share_ppm = share_ppm.min(run.share_ppm).max(1);
    let rate_ppm = u64::from(share_ppm) * u64::from(run.gpus);
    let (mut intervals, mut left) = (Vec::with_capacity(run.intervals.len()), 0);
    for interval in &run.intervals {
        left += interval.used_ppm_ms;
        let used_ppm_ms = left.min(rate_ppm.saturating_mul(interval.held_ms));
        left -= used_ppm_ms;
        intervals.push(Interval { held_ms: interval.held_ms, used_ppm_ms });
    }
    if left > 0 && rate_ppm > 0 {
        intervals.push(Interval { held_ms: left.div_ceil(rate_ppm), used_ppm_ms: left });
    }
    let memory = memory.saturating_mul(u64::from(run.gpus)).min(run.memory);
    Run { share_ppm, memory, memory_peak: run.memory_peak.min(memory), intervals, ..run.clone() }
}

/// Where live resizing leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Settled {
    pub programs: usize,
    pub weeks: u64,
    /// The last week in which the request of any program changed.
    pub last_change: u64,
    /// The most changes of one program.
    pub changes_max: u64,
    /// GPU-hours of a week, as asked for and after the last week, longer runs included.
    pub asked_gpu_hours: f64,
    pub held_gpu_hours: f64,
    /// Runs of the last week that took over 5 % longer than with what was asked for, of all.
    pub slowed: usize,
    pub runs: usize,
}

/// Resizes every program once a week, for a number of weeks that are all like the given runs.
pub fn settle<'a>(programs: impl IntoIterator<Item = &'a [Run]>, weeks: u64) -> Settled {
    let mut settled = Settled { weeks, ..Settled::default() };
    for wanted in programs {
        let Some(latest) = wanted.last() else { continue };
        let mut live = Live::new(latest.share_ppm, latest.memory / u64::from(latest.gpus.max(1)), 0);
        let mut changes = 0;
        for week in 1..=weeks {
            let runs: Vec<Run> =
                wanted.iter().map(|run| squeezed(run, live.share_ppm, live.memory)).collect();
            if live.step(&runs, 0) != Step::Kept {
                changes += 1;
                settled.last_change = settled.last_change.max(week);
            }
        }
        settled.programs += 1;
        settled.changes_max = settled.changes_max.max(changes);
        let mut end = Outcome::default();
        wanted.iter().for_each(|run| end.add(run, Some((live.share_ppm, live.memory))));
        settled.asked_gpu_hours += end.asked_gpu_hours;
        settled.held_gpu_hours += end.held_gpu_hours;
        settled.slowed += end.slowed;
        settled.runs += end.runs;
    }
    settled
}

/// The share and the memory of each GPU; none without a recommendation.
fn recommended(runs: &[(u64, Run)], now_ms: u64, rule: Rule) -> Option<(u32, u64)> {
    match rule {
        Rule::Replayed => {
            let runs: Vec<Run> = runs.iter().map(|(_, run)| run.clone()).collect();
            rightsize(&runs).ok().map(|found| (found.share_ppm, found.memory))
        }
        Rule::Percentile95 => percentile95(runs, now_ms),
    }
}

fn percentile95(runs: &[(u64, Run)], now_ms: u64) -> Option<(u32, u64)> {
    let weight = |at_ms: u64| 0.5_f64.powf(now_ms.saturating_sub(at_ms) as f64 / HALF_LIFE_MS);
    let (mut uses, mut peaks) = (Vec::new(), Vec::new());
    for (start_ms, run) in runs {
        let (gpus, mut at_ms) = (f64::from(run.gpus.max(1)), *start_ms);
        for interval in run.intervals.iter().filter(|interval| interval.held_ms > 0) {
            at_ms += interval.held_ms;
            let held_ms = interval.held_ms as f64;
            uses.push((interval.used_ppm_ms as f64 / held_ms / gpus, held_ms * weight(at_ms)));
        }
        peaks.push((run.memory_peak as f64 / gpus, weight(at_ms)));
    }
    let share_ppm = (weighted_percentile(uses)? * ADDED) as u32;
    let memory = (weighted_percentile(peaks)? * ADDED) as u64;
    let share_ppm = share_ppm.max(1).next_multiple_of(SHARE_STEP_PPM);
    Some((share_ppm, memory.max(1).next_multiple_of(MEMORY_STEP)))
}

fn weighted_percentile(mut values: Vec<(f64, f64)>) -> Option<f64> {
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all: f64 = values.iter().map(|(_, weight)| weight).sum();
    let mut below = 0.0;
    let found = values.iter().find(|(_, weight)| {
        below += weight;
        below >= PERCENTILE * all
    });
    found.or(values.last()).map(|(value, _)| *value)
}
