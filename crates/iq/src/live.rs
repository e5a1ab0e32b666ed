//! Requests that follow the use of a program, within what was asked for.
//!
//! ```text
//!            use fits in less                    a run was short
//!   asked ───────────────────▶ recommended ────────────────────────▶ asked, floor raised
//!     ▲                             │                                     │
//!     └─────────── undo ────────────┘◀────────── two weeks later ─────────┘
//! ```
//!
//! A smaller share makes a program use less, which could ask for a smaller share again. Two rules
//! stop that. A run that used all of its share for a while is no evidence for less than that. And
//! a share at which more than one run in a hundred was short for over 5 % of its time is too
//! small for good: the floor rises above it, and only [`Live::new`] lowers a floor. Floors are
//! multiples of 5 % of a GPU and never fall, so constant demand reaches a fixed point.

use serde::{Deserialize, Serialize};

use crate::Run;
use crate::rightsize::{MEMORY_STEP, SHARE_STEP_PPM, SLOWED_ONE_IN, rightsize};

/// A run that was short for a greater part of its time was held back, in per cent.
const SHORT_PERCENT: u64 = 5;
/// A run that had this much of its memory may have wanted more, in per cent.
const FULL_PERCENT: u64 = 98;

/// The request of a program while it is resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Live {
    /// What the program asked for, of each GPU; it never gets more.
    pub asked_share_ppm: u32,
    pub asked_memory: u64,
    /// What it has now, of each GPU.
    pub share_ppm: u32,
    pub memory: u64,
    /// The share that it never gets less than.
    pub floor_ppm: u32,
}

/// What a step changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// The request stays.
    Kept,
    /// The runs need less.
    Lowered,
    /// The runs were short of what they had, so they get back what was asked for.
    GivenBack,
}

impl Live {
    /// Begins with what a program asks for. `floor_ppm` is what its owner guarantees it.
    pub fn new(share_ppm: u32, memory: u64, floor_ppm: u32) -> Live {
        Live {
            asked_share_ppm: share_ppm,
            asked_memory: memory,
            share_ppm,
            memory,
            floor_ppm: floor_ppm.min(share_ppm),
        }
    }

    /// Takes the runs since the last step into account, all with the present request, the earliest
    /// first. `live_memory` is what the program holds now of each GPU; it keeps that in any case.
    pub fn step(&mut self, runs: &[Run], live_memory: u64) -> Step {
        let before = *self;
        let short = runs.iter().filter(|run| self.is_held_back(run)).count();
        if short > runs.len() / SLOWED_ONE_IN {
            self.floor_ppm = (self.share_ppm + SHARE_STEP_PPM).min(self.asked_share_ppm);
            self.share_ppm = self.asked_share_ppm;
        } else if let Ok(found) = rightsize(runs) {
            self.share_ppm = found.share_ppm.max(self.floor_ppm).min(self.share_ppm);
            self.memory = found.memory.min(self.memory);
        }
        if runs.iter().any(|run| self.is_full(before.memory, run)) {
            self.memory = self.asked_memory;
        }
        let held = live_memory.max(1).next_multiple_of(MEMORY_STEP).min(self.asked_memory);
        self.memory = self.memory.max(held);
        match (before.share_ppm, before.memory) {
            (share_ppm, memory) if share_ppm < self.share_ppm || memory < self.memory => Step::GivenBack,
            (share_ppm, memory) if share_ppm > self.share_ppm || memory > self.memory => Step::Lowered,
            _ => Step::Kept,
        }
    }

    fn is_held_back(&self, run: &Run) -> bool {
        self.share_ppm < self.asked_share_ppm && run.short_ms() > run.held_ms() / 100 * SHORT_PERCENT
    }

    fn is_full(&self, memory: u64, run: &Run) -> bool {
        let all = memory.saturating_mul(u64::from(run.gpus));
        memory < self.asked_memory && run.memory_peak >= all / 100 * FULL_PERCENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backtest::squeezed;
    use crate::synthetic::{Kind, programs};
    use crate::{Interval, MIB};

    const GIB: u64 = 1024 * MIB;

    fn run(share_ppm: u32, used_percents: &[u64], memory: u64, memory_peak: u64) -> Run {
        let interval = |&percent: &u64| Interval { held_ms: 10_000, used_ppm_ms: percent * 10_000 * 10_000 };
        let intervals = used_percents.iter().map(interval).collect();
        Run { gpus: 1, share_ppm, memory, memory_peak, intervals }
    }

    #[test]
    fn a_smaller_share_never_leads_to_a_smaller_share() {
        // The trap of the feedback loop: throttled programs look small.
        for program in programs(2 * Kind::ALL.len(), 2, 5) {
            let wanted: Vec<Run> = program.runs.into_iter().map(|(_, run)| run).collect();
            let mut live = Live::new(1_000_000, wanted[0].memory, 0);
            let mut changed_last = 0;
            for week in 0..200 {
                let runs: Vec<Run> =
                    wanted.iter().map(|run| squeezed(run, live.share_ppm, live.memory)).collect();
                if live.step(&runs, 0) != Step::Kept {
                    changed_last = week;
                }
            }
            assert!(changed_last < 100, "{:?} changes in week {changed_last}", program.kind);
        }
    }

    #[test]
    fn throttled_demand_is_not_small_demand() {
        let mut live = Live::new(1_000_000, 8 * GIB, 0);
        live.share_ppm = 300_000;
        // It uses all of 30 %: what it wants is not known.
        let throttled = vec![run(300_000, &[30; 10], 8 * GIB, GIB); 5];
        assert_eq!(live.step(&throttled, 0), Step::GivenBack);
        assert_eq!((live.share_ppm, live.floor_ppm), (1_000_000, 350_000));
        // Later runs seem to fit in what was too little: the floor holds.
        live.step(&vec![run(1_000_000, &[20; 10], 8 * GIB, GIB); 5], 0);
        assert_eq!(live.share_ppm, 350_000);
    }

    #[test]
    fn memory_is_never_below_what_is_held_now() {
        let mut live = Live::new(1_000_000, 40 * GIB, 0);
        let runs = vec![run(1_000_000, &[20; 10], 40 * GIB, 4 * GIB); 30];
        assert_eq!(live.step(&runs, 9 * GIB), Step::Lowered);
        assert_eq!(live.memory, 9 * GIB);
    }

    #[test]
    fn memory_that_was_full_is_given_back() {
        let mut live = Live::new(1_000_000, 40 * GIB, 0);
        live.memory = 10 * GIB;
        let full = vec![run(1_000_000, &[20; 10], 10 * GIB, 10 * GIB); 3];
        assert_eq!(live.step(&full, 0), Step::GivenBack);
        assert_eq!(live.memory, 40 * GIB);
    }

    #[test]
    fn a_guaranteed_floor_holds() {
        let mut live = Live::new(1_000_000, GIB, 600_000);
        live.step(&vec![run(1_000_000, &[5; 10], GIB, GIB); 5], 0);
        assert_eq!(live.share_ppm, 600_000);
    }
}
