//! How long a program runs, from how long its earlier runs did.
//!
//! The estimate is the median of the runs of the same program, of the last ones: a mean follows
//! the few runs that are far longer than the others. For one that runs already, only earlier runs
//! that lasted longer count, so that the estimate never lies in the past; one that outlasts all of
//! them is taken to last half as long again. Where few are known, the runs of the wider group
//! decide, such as all programs of a tenant.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use serde::Serialize;

/// Runs of one group that are kept.
const RUNS_MAX: usize = 100;
/// Groups that are kept.
const GROUPS_MAX: usize = 10_000;
/// Fewer runs of a group leave the estimate to the wider one.
const RUNS_MIN: usize = 3;

/// Finished runs by group, such as a program or a tenant.
#[derive(Clone, Debug)]
pub struct Durations<Group> {
    runs: HashMap<Group, VecDeque<u64>>,
}

impl<Group> Default for Durations<Group> {
    fn default() -> Self {
        Durations { runs: HashMap::new() }
    }
}

impl<Group: Clone + Eq + Hash> Durations<Group> {
    /// Counts a run in each of its groups.
    pub fn add(&mut self, groups: &[Group], duration_ms: u64) {
        for group in groups {
            if self.runs.len() >= GROUPS_MAX && !self.runs.contains_key(group) {
                continue;
            }
            let runs = self.runs.entry(group.clone()).or_default();
            if runs.len() == RUNS_MAX {
                runs.pop_front();
            }
            runs.push_back(duration_ms);
        }
    }

    /// Estimates the whole duration of a run that has lasted for a time. Groups are named from the
    /// narrowest to the widest.
    pub fn estimate_ms(&self, groups: &[Group], elapsed_ms: u64) -> Option<u64> {
        let mut longer = self.longer(groups, elapsed_ms)?;
        longer.sort_unstable();
        Some(longer.get(longer.len() / 2).copied().unwrap_or(outlasts_ms(elapsed_ms)))
    }

    /// Draws the duration of a run that has lasted for a time from the earlier ones; the same
    /// `draw` has the same answer. A queue waits for the first of many runs to end, which is long
    /// before the usual run does: with one estimate for all of them it would seem to wait too long.
    pub fn drawn_ms(&self, groups: &[Group], elapsed_ms: u64, draw: u64) -> Option<u64> {
        let longer = self.longer(groups, elapsed_ms)?;
        let place = (mixed(draw) % longer.len().max(1) as u64) as usize;
        Some(longer.get(place).copied().unwrap_or(outlasts_ms(elapsed_ms)))
    }

    /// The runs that lasted longer, of the narrowest group that has a few of them, or else of the
    /// narrowest that has any. Empty if all were shorter; none if no group is known.
    fn longer(&self, groups: &[Group], elapsed_ms: u64) -> Option<Vec<u64>> {
        let mut known = groups.iter().filter_map(|group| self.runs.get(group)).peekable();
        known.peek()?;
        let longer = known.map(|runs| runs.iter().copied().filter(|&ms| ms > elapsed_ms).collect());
        let mut few = None;
        for runs in longer.filter(|runs: &Vec<u64>| !runs.is_empty()) {
            if runs.len() >= RUNS_MIN {
                return Some(runs);
            }
            few = few.or(Some(runs));
        }
        Some(few.unwrap_or_default())
    }

    /// The mean of the narrowest group that is known: what estimates are compared with.
    pub fn mean_ms(&self, groups: &[Group]) -> Option<u64> {
        let runs = groups.iter().find_map(|group| self.runs.get(group))?;
        runs.iter().sum::<u64>().checked_div(runs.len() as u64)
    }
}

/// The whole duration of a run that has outlasted all that are known.
fn outlasts_ms(elapsed_ms: u64) -> u64 {
    elapsed_ms.saturating_add(elapsed_ms / 2)
}

/// Spreads neighbouring numbers over all 64 bits: the last steps of SplitMix64.
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// How far off estimates were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Errors {
    pub count: usize,
    pub median_ms: u64,
    pub p90_ms: u64,
}

impl Errors {
    /// Sums up absolute errors in milliseconds.
    pub fn of(errors_ms: impl IntoIterator<Item = u64>) -> Errors {
        let mut sorted: Vec<u64> = errors_ms.into_iter().collect();
        sorted.sort_unstable();
        let at = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100).max(1);
            sorted.get(rank - 1).copied().unwrap_or(0)
        };
        Errors { count: sorted.len(), median_ms: at(50), p90_ms: at(90) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(runs: &[u64]) -> Durations<&'static str> {
        let mut durations = Durations::default();
        runs.iter().for_each(|&ms| durations.add(&["program", "tenant"], ms));
        durations
    }

    #[test]
    fn one_long_run_does_not_move_the_estimate() {
        let durations = known(&[100, 110, 120, 130, 100_000]);
        assert_eq!(durations.estimate_ms(&["program"], 0), Some(120));
        assert_eq!(durations.mean_ms(&["program"]), Some(20_092));
    }

    #[test]
    fn a_run_that_outlasts_the_others_is_estimated_by_the_longer_ones() {
        let durations = known(&[100, 110, 120, 500, 600, 700]);
        assert_eq!(durations.estimate_ms(&["program"], 200), Some(600));
        let drawn: Vec<u64> =
            (0..50).filter_map(|draw| durations.drawn_ms(&["program"], 550, draw)).collect();
        assert!(drawn.contains(&600) && drawn.contains(&700) && drawn.len() == 50, "{drawn:?}");
        assert_eq!(durations.estimate_ms(&["program"], 800), Some(1200));
    }

    #[test]
    fn a_new_program_is_estimated_by_its_tenant() {
        let mut durations = known(&[100, 200, 300]);
        durations.add(&["new", "tenant"], 5);
        assert_eq!(durations.estimate_ms(&["new", "tenant"], 0), Some(200));
        assert_eq!(durations.estimate_ms(&["new"], 0), Some(5));
        assert_eq!(durations.estimate_ms(&["unknown"], 0), None);
    }

    #[test]
    fn only_the_last_runs_count() {
        let mut durations = known(&[1_000_000; 2 * RUNS_MAX]);
        (0..RUNS_MAX).for_each(|_| durations.add(&["program"], 10));
        assert_eq!(durations.estimate_ms(&["program"], 0), Some(10));
    }

    #[test]
    fn errors_are_values_that_occurred() {
        let errors = Errors::of((1..=10).map(|ms| ms * 10));
        assert_eq!(errors, Errors { count: 10, median_ms: 50, p90_ms: 90 });
        assert_eq!(Errors::of([]), Errors::default());
    }
}
