//! Shares and memory that fit.
//!
//! The share is the smallest one at which no more than one run in a hundred would have been slowed
//! by more than 5 %. The replay stretches each interval in which a run used more GPU time than the
//! smaller share guarantees: it assumes that the GPU is full and gives the run its guarantee and
//! nothing beyond, which is the worst that the scheduler does. Use is taken as a tenth more than
//! was measured, so that the next run has room to differ.
//!
//! What a run used says nothing about what it would have used with more. A run that at some time
//! used all of a share that was less than the GPU is therefore never given less. Without that rule
//! a program that follows each recommendation would be slowed by up to 5 % again and again.

use serde::Serialize;

/// One MiB in bytes.
pub const MIB: u64 = 1 << 20;

/// A whole GPU, in parts in a million.
const WHOLE_PPM: u32 = 1_000_000;
/// Recommended shares are multiples of it: 5 % of a GPU.
pub(crate) const SHARE_STEP_PPM: u32 = 50_000;
/// Recommended memory is a multiple of it.
pub(crate) const MEMORY_STEP: u64 = 256 * MIB;
/// Use is taken as this much more than was measured, in per cent of it.
const MARGIN_PERCENT: u64 = 10;
/// At least this much more memory than the largest run had is recommended, in per cent of it.
const MEMORY_MARGIN_PERCENT: f64 = 5.0;
/// Where peaks differ more, this many of their standard deviations are the margin instead.
const MEMORY_DEVIATIONS: f64 = 6.0;
/// Fewer runs say too little about the largest one to come: none of them may be the rare one that
/// needs more.
const MEMORY_RUNS_MIN: usize = 10;
/// A run that takes this much longer counts as slowed, in per cent.
pub(crate) const SLOWED_PERCENT: f64 = 5.0;
/// Of this number of runs, one may be slowed.
pub(crate) const SLOWED_ONE_IN: usize = 100;
/// A run that uses this part of its share, in per cent, may have wanted more.
const SATURATED_PERCENT: u64 = 95;
/// Fewer runs say too little about the next one.
const RUNS_MIN: usize = 3;

/// GPU time that a run used between two moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// How long it lasted, in milliseconds.
    pub held_ms: u64,
    /// Parts in a million of a GPU times milliseconds, on all GPUs of the run together.
    pub used_ppm_ms: u64,
}

/// One run of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Number of GPUs.
    pub gpus: u32,
    /// The share of each GPU that it had asked for, in parts in a million.
    pub share_ppm: u32,
    /// Bytes that it had asked for, on all GPUs together.
    pub memory: u64,
    /// The most bytes that it had taken at any time, on all GPUs together.
    pub memory_peak: u64,
    /// In the order of time; none in which the run was suspended.
    pub intervals: Vec<Interval>,
}

/// What runs would have been like with another request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Replay {
    /// Runs that would have been slowed by more than 5 %.
    pub slowed: usize,
    /// By how much the run that suffers most would have been slowed, in per cent of its time.
    pub worst_percent: f64,
}

/// What to ask for instead.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recommendation {
    /// How many runs it is drawn from.
    pub runs: usize,
    /// Their time together, in milliseconds.
    pub held_ms: u64,
    /// What the latest run asked for of each GPU, in parts in a million.
    pub asked_share_ppm: u32,
    /// What to ask for of each GPU, in parts in a million; never more than was asked.
    pub share_ppm: u32,
    /// What the latest run asked for, in bytes on each GPU.
    pub asked_memory: u64,
    /// What to ask for, in bytes on each GPU; never more than was asked.
    pub memory: u64,
    /// The most bytes that any run had on one GPU, if all of a run's GPUs had the same.
    pub memory_peak: u64,
    /// The runs with the recommended share. None of them would have been without memory.
    pub replay: Replay,
}

/// Why there is nothing to recommend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unchanged {
    /// There are fewer than three runs with the latest number of GPUs.
    FewRuns,
    /// The runs need what they ask for.
    Fits,
}

/// What to ask for instead of what the latest run asked for. Runs are in the order of time; those
/// with another number of GPUs than the latest one are left out.
pub fn rightsize(runs: &[Run]) -> Result<Recommendation, Unchanged> {
    let latest = runs.last().ok_or(Unchanged::FewRuns)?;
    let is_alike = |run: &&Run| run.gpus == latest.gpus && run.gpus > 0 && run.held_ms() > 0;
    let alike: Vec<&Run> = runs.iter().filter(is_alike).collect();
    if alike.len() < RUNS_MIN {
        return Err(Unchanged::FewRuns);
    }
    let gpus = u64::from(latest.gpus);
    let steps = (1..).map(|step| step * SHARE_STEP_PPM).take_while(|&share| share < latest.share_ppm);
    let allowed = alike.len() / SLOWED_ONE_IN;
    let share_ppm = steps
        .into_iter()
        .find(|&share_ppm| replay(&alike, share_ppm).slowed <= allowed)
        .unwrap_or(latest.share_ppm);
    let asked_memory = latest.memory / gpus;
    let memory_peak = alike.iter().map(|run| run.memory_peak.div_ceil(gpus)).max().unwrap_or(0);
    let memory = memory_for(&alike).unwrap_or(asked_memory).min(asked_memory);
    if share_ppm == latest.share_ppm && memory == asked_memory {
        return Err(Unchanged::Fits);
    }
    Ok(Recommendation {
        runs: alike.len(),
        held_ms: alike.iter().map(|run| run.held_ms()).sum(),
        asked_share_ppm: latest.share_ppm,
        share_ppm,
        asked_memory,
        memory,
        memory_peak,
        replay: replay(&alike, share_ppm),
    })
}

/// Bytes on each GPU that suffice for runs like these; none where too few are known.
fn memory_for(runs: &[&Run]) -> Option<u64> {
    if runs.len() < MEMORY_RUNS_MIN {
        return None;
    }
    let peaks = || runs.iter().map(|run| run.memory_peak as f64 / f64::from(run.gpus));
    let mean = peaks().sum::<f64>() / runs.len() as f64;
    let variance = peaks().map(|peak| (peak - mean).powi(2)).sum::<f64>() / (runs.len() - 1) as f64;
    let largest = peaks().fold(0.0, f64::max);
    let margin = (largest * MEMORY_MARGIN_PERCENT / 100.0).max(MEMORY_DEVIATIONS * variance.sqrt());
    Some(((largest + margin) as u64).max(1).next_multiple_of(MEMORY_STEP))
}

fn replay(runs: &[&Run], share_ppm: u32) -> Replay {
    let slowed = runs.iter().map(|run| run.slowed_percent(share_ppm));
    slowed.fold(Replay::default(), |replay, percent| Replay {
        slowed: replay.slowed + usize::from(percent > SLOWED_PERCENT),
        worst_percent: replay.worst_percent.max(percent),
    })
}

impl Run {
    pub(crate) fn held_ms(&self) -> u64 {
        self.intervals.iter().map(|interval| interval.held_ms).sum()
    }

    /// Whether it had less than a whole GPU and used all of that for a while.
    fn was_short(&self) -> bool {
        self.short_ms() > 0
    }

    /// For how many milliseconds it had less than a whole GPU and used all of that.
    pub(crate) fn short_ms(&self) -> u64 {
        if self.share_ppm >= WHOLE_PPM {
            return 0;
        }
        let share = u128::from(self.share_ppm) * u128::from(self.gpus);
        let used_all = |interval: &&Interval| {
            let all = share * u128::from(interval.held_ms) * u128::from(SATURATED_PERCENT) / 100;
            u128::from(interval.used_ppm_ms) >= all
        };
        self.intervals.iter().filter(used_all).map(|interval| interval.held_ms).sum()
    }

    /// How much longer it would have taken with this share of each GPU, in per cent; without bound
    /// for one that may have wanted more than it had. With the share that it had it took as long as
    /// it did.
    fn slowed_percent(&self, share_ppm: u32) -> f64 {
        if share_ppm >= self.share_ppm {
            return 0.0;
        }
        if self.was_short() {
            return f64::INFINITY;
        }
        self.stretched_percent(share_ppm, MARGIN_PERCENT)
    }

    /// How much longer it would have taken with this share of each GPU, in per cent, if it had used
    /// a part more than was measured.
    pub(crate) fn stretched_percent(&self, share_ppm: u32, margin_percent: u64) -> f64 {
        let rate_ppm = f64::from(share_ppm.max(1)) * f64::from(self.gpus);
        let longer_ms = |interval: &Interval| {
            let used = interval.used_ppm_ms as f64 * (100 + margin_percent) as f64 / 100.0;
            (used / rate_ppm - interval.held_ms as f64).max(0.0)
        };
        100.0 * self.intervals.iter().map(longer_ms).sum::<f64>() / self.held_ms().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1024 * MIB;

    /// A run that used these parts of a GPU, in per cent, for ten seconds each.
    fn run(share_percent: u32, used_percents: &[u64], memory: u64, memory_peak: u64) -> Run {
        let interval = |&percent: &u64| Interval { held_ms: 10_000, used_ppm_ms: percent * 10_000 * 10_000 };
        let intervals = used_percents.iter().map(interval).collect();
        Run { gpus: 1, share_ppm: share_percent * 10_000, memory, memory_peak, intervals }
    }

    #[test]
    fn a_third_of_a_gpu_is_recommended_to_one_that_uses_a_third() {
        let runs = vec![run(100, &[20, 31, 31, 5], 40 * GIB, 10 * GIB); 23];
        let found = rightsize(&runs).unwrap();
        // 31 % and a tenth more are 34.1 %.
        assert_eq!((found.runs, found.asked_share_ppm, found.share_ppm), (23, 1_000_000, 350_000));
        assert_eq!((found.asked_memory, found.memory), (40 * GIB, 10 * GIB + 512 * MIB));
        assert_eq!(found.replay, Replay::default());
    }

    #[test]
    fn a_short_peak_may_become_slower_but_no_run_by_more_than_a_twentieth() {
        // A tenth of the time at 60 %: 1.1 x 60 / 55 - 1 = 20 % of a tenth.
        let peak = [20, 20, 20, 20, 60, 20, 20, 20, 20, 20];
        let found = rightsize(&vec![run(100, &peak, GIB, GIB); 5]).unwrap();
        assert_eq!((found.share_ppm, found.replay.slowed), (450_000, 0));
        assert!((found.replay.worst_percent - 4.67).abs() < 0.01, "{found:?}");
        // One run in two hundred that needs all of it does not keep the others large.
        let mut runs = vec![run(100, &[20; 10], GIB, GIB); 199];
        runs.insert(50, run(100, &[100; 10], GIB, GIB));
        let found = rightsize(&runs).unwrap();
        assert_eq!((found.share_ppm, found.replay.slowed), (250_000, 1));
    }

    #[test]
    fn nothing_is_recommended_without_evidence_or_reason() {
        let idle = run(100, &[10], GIB, GIB);
        for runs in [&[][..], std::slice::from_ref(&idle), &[idle.clone(), idle.clone()]] {
            assert_eq!(rightsize(runs), Err(Unchanged::FewRuns));
        }
        let busy = vec![run(50, &[50, 48, 100], GIB, GIB); 5];
        assert_eq!(rightsize(&busy), Err(Unchanged::Fits));
        // Runs with another number of GPUs, and runs of no time, are no evidence.
        let other = Run { gpus: 2, ..idle.clone() };
        let none = Run { intervals: Vec::new(), ..idle.clone() };
        assert_eq!(rightsize(&[other, none, idle.clone(), idle]), Err(Unchanged::FewRuns));
    }

    #[test]
    fn memory_needs_more_evidence_than_compute_and_more_room_where_runs_differ() {
        let few = vec![run(100, &[20], 40 * GIB, 10 * GIB); 9];
        assert_eq!(rightsize(&few).unwrap().memory, 40 * GIB);
        let peaks = [8, 12].map(|gib| run(100, &[20], 40 * GIB, gib * GIB));
        let differ: Vec<Run> = peaks.iter().cycle().take(10).cloned().collect();
        // Their standard deviation is 2.1 GiB: 12 GiB and six times that.
        assert_eq!(rightsize(&differ).unwrap().memory, 24 * GIB + 768 * MIB);
    }

    #[test]
    fn amounts_are_of_each_gpu() {
        let two = |run: Run| Run { gpus: 2, ..run };
        // 60 % of a GPU on two together.
        let runs = vec![two(run(100, &[60], 80 * GIB, 20 * GIB)); 10];
        let found = rightsize(&runs).unwrap();
        assert_eq!(
            (found.share_ppm, found.asked_memory, found.memory),
            (350_000, 40 * GIB, 10 * GIB + 512 * MIB)
        );
    }

    /// What a program does that wants these parts of a GPU, when it has a share: work that does not
    /// fit into an interval is done in the next ones.
    fn with_share(share_ppm: u32, wanted_ppm: &[u64], memory: u64, peak: u64) -> Run {
        let (mut intervals, mut left) = (Vec::new(), 0);
        let mut wanted = wanted_ppm.iter();
        loop {
            let next = wanted.next();
            left += next.map_or(0, |ppm| ppm * 10_000);
            let used_ppm_ms = left.min(u64::from(share_ppm) * 10_000);
            left -= used_ppm_ms;
            intervals.push(Interval { held_ms: 10_000, used_ppm_ms });
            if next.is_none() && left == 0 {
                return Run { gpus: 1, share_ppm, memory, memory_peak: peak, intervals };
            }
        }
    }

    proptest! {
        #[test]
        fn recommendations_are_smaller_requests_that_all_runs_fit_in(
            runs in prop::collection::vec(
                (prop::collection::vec(0_u64..=100, 1..30), 1_u64..(40 * GIB)), 3..40),
            share_percent in 1_u32..=100,
        ) {
            let runs: Vec<Run> = runs
                .iter()
                .map(|(used, peak)| run(share_percent, used, 40 * GIB, *peak))
                .collect();
            if let Ok(found) = rightsize(&runs) {
                prop_assert!(found.share_ppm <= found.asked_share_ppm && found.memory <= found.asked_memory);
                prop_assert!(runs.iter().all(|run| run.memory_peak <= found.memory));
                prop_assert!(found.replay.slowed <= runs.len() / SLOWED_ONE_IN);
            }
        }

        #[test]
        fn a_program_that_follows_each_recommendation_is_not_shrunk_for_ever(
            wanted in prop::collection::vec(0_u64..=1_000_000, 1..20),
            peak in 1_u64..(40 * GIB),
        ) {
            let (mut share_ppm, mut memory) = (1_000_000, 40 * GIB);
            let (mut first, mut changes) = (None, 0);
            for _week in 0..1_000 {
                let run = with_share(share_ppm, &wanted, memory, peak);
                let Ok(found) = rightsize(&vec![run; 5]) else { break };
                (share_ppm, memory) = (found.share_ppm, found.memory);
                first.get_or_insert(share_ppm);
                changes += 1;
            }
            // The first one may leave room that the stretched work shows; then it stands.
            prop_assert!(changes <= 3, "{changes} changes, {first:?} to {share_ppm}");
            prop_assert!(memory >= peak);
        }
    }
}
