//! Synthetic histories of programs, for measuring rules of right-sizing without a ledger.
//!
//! The same seed gives the same histories. The kinds of programs and their parameters are chosen
//! so that each known trap of right-sizing is in the mix: services with a daily rhythm, notebooks
//! with rare bursts, training that is bound by its input, training that needs all of what it has,
//! peaks at the start of a run, rare large batches, programs that grow from week to week, and
//! allocators that keep what they have freed.

use crate::{Interval, MIB, Run};

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;
const GIB: f64 = 1024.0 * MIB as f64;

/// The runs of one program with their starts, in the order of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    pub kind: Kind,
    /// Milliseconds since the first day, and the run.
    pub runs: Vec<(u64, Run)>,
}

/// What a program is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Answers requests; its load follows the time of day.
    Service,
    /// Waits for a person most of the time, then uses all of a GPU for minutes.
    Notebook,
    /// Trains, and waits for its input in between.
    InputBound,
    /// Trains on all of its GPU.
    ComputeBound,
    /// Is short; one run in forty has a large batch with twice the memory.
    Batch,
    /// Uses 3 % more from week to week.
    Growing,
}

impl Kind {
    pub const ALL: [Kind; 6] =
        [Kind::Service, Kind::Notebook, Kind::InputBound, Kind::ComputeBound, Kind::Batch, Kind::Growing];
}

/// Makes a number of programs, all kinds alike, with their runs of some weeks.
pub fn programs(count: usize, weeks: u64, seed: u64) -> Vec<Program> {
    let mut random = Random(seed);
    (0..count).map(|index| program(Kind::ALL[index % Kind::ALL.len()], weeks, &mut random)).collect()
}

/// What stays the same in all runs of a program.
struct Habit {
    /// Usual use of a GPU while the program computes, from 0 to 1.
    level: f64,
    /// How far runs differ from each other, as a part of their level.
    spread: f64,
    /// Bytes at the peak, and what was asked for.
    memory: f64,
    asked_memory: f64,
    /// From one start to the next and from start to end, in milliseconds.
    pause_ms: f64,
    length_ms: f64,
}

fn program(kind: Kind, weeks: u64, random: &mut Random) -> Program {
    let habit = habit(kind, random);
    let mut runs = Vec::new();
    let mut at_ms = random.between(0.0, habit.pause_ms);
    while at_ms < (weeks * 7 * DAY_MS) as f64 {
        runs.push((at_ms as u64, run(kind, &habit, at_ms as u64, random)));
        at_ms += habit.pause_ms * random.between(0.5, 1.5);
    }
    Program { kind, runs }
}

fn habit(kind: Kind, random: &mut Random) -> Habit {
    let (level, runs_a_week, hours) = match kind {
        Kind::Service => (random.between(0.05, 0.35), random.between(5.0, 14.0), random.between(6.0, 20.0)),
        Kind::Notebook => (random.between(0.5, 1.0), random.between(3.0, 10.0), random.between(1.0, 8.0)),
        Kind::InputBound => (random.between(0.2, 0.7), random.between(2.0, 10.0), random.between(2.0, 12.0)),
        Kind::ComputeBound => (random.between(0.9, 1.0), random.between(2.0, 8.0), random.between(2.0, 12.0)),
        Kind::Batch => (random.between(0.1, 0.5), random.between(10.0, 40.0), random.between(0.2, 1.5)),
        Kind::Growing => (random.between(0.1, 0.4), random.between(5.0, 15.0), random.between(1.0, 6.0)),
    };
    let asked_memory = [16.0, 24.0, 40.0, 80.0][random.below(4)] * GIB;
    Habit {
        level,
        spread: random.between(0.01, 0.08),
        memory: asked_memory * random.between(0.15, 0.45),
        asked_memory,
        pause_ms: (7 * DAY_MS) as f64 / runs_a_week,
        length_ms: hours * HOUR_MS as f64,
    }
}

fn run(kind: Kind, habit: &Habit, at_ms: u64, random: &mut Random) -> Run {
    let large = kind == Kind::Batch && random.below(40) == 0;
    let grown = if kind == Kind::Growing { 1.03_f64.powf(at_ms as f64 / (7 * DAY_MS) as f64) } else { 1.0 };
    let of_run = habit.level * grown * (1.0 + habit.spread * random.normal());
    let count = (habit.length_ms * random.between(0.7, 1.3) / (5 * MINUTE_MS) as f64).ceil().max(4.0) as u64;
    let mut burst_left = 0_u32;
    let interval = |index: u64| {
        let hour = (at_ms + index * 5 * MINUTE_MS) % DAY_MS / HOUR_MS;
        let use_of_gpu = match kind {
            Kind::Service => of_run * if (8..20).contains(&hour) { 2.0 } else { 0.6 },
            Kind::Notebook => {
                if burst_left == 0 && random.below(20) == 0 {
                    burst_left = 1 + random.below(4) as u32;
                }
                let computes = burst_left > 0;
                burst_left = burst_left.saturating_sub(1);
                if computes { of_run } else { 0.01 }
            }
            // Kernels are compiled and data is read before the first step.
            Kind::InputBound | Kind::ComputeBound if index == 0 => 0.15,
            Kind::InputBound if index == 1 => 1.0,
            Kind::Batch if large => 2.0 * of_run,
            _ => of_run,
        };
        let noisy = (use_of_gpu * (1.0 + 0.05 * random.normal())).clamp(0.0, 1.0);
        let held_ms = 5 * MINUTE_MS;
        Interval { held_ms, used_ppm_ms: (noisy * 1e6) as u64 * held_ms }
    };
    let intervals = (0..count).map(interval).collect();
    let memory_of_run = habit.memory * grown * (1.0 + 0.01 * random.normal()) * if large { 2.0 } else { 1.0 };
    Run {
        gpus: 1,
        share_ppm: 1_000_000,
        memory: habit.asked_memory as u64,
        memory_peak: memory_of_run.clamp(0.0, habit.asked_memory) as u64,
        intervals,
    }
}

/// SplitMix64 (Steele et al. 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> usize {
        (self.next() % end) as usize
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// About normal, with mean 0 and deviation 1: the sum of twelve uniform numbers.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.between(0.0, 1.0)).sum::<f64>() - 6.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histories_follow_from_their_seed_and_have_every_kind() {
        let made = programs(12, 2, 7);
        assert_eq!(made, programs(12, 2, 7));
        assert_ne!(made, programs(12, 2, 8));
        for kind in Kind::ALL {
            assert_eq!(made.iter().filter(|program| program.kind == kind).count(), 2, "{kind:?}");
        }
        let runs = made.iter().flat_map(|program| &program.runs);
        assert!(runs.clone().count() > 50);
        for (_, run) in runs {
            assert!(run.memory_peak <= run.memory && run.intervals.len() >= 4);
        }
    }
}
