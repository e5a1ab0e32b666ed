//! Measures right-sizing on held-out weeks of synthetic histories, and prints the tables of
//! `docs/benchmarks/iq.md`: `cargo run --release -p sluice-iq --example held_out`.

use sluice_iq::Run;
use sluice_iq::backtest::{HISTORY_WEEKS, Outcome, Rule, Settled, backtest, settle};
use sluice_iq::synthetic::{Kind, Program, programs};

const SEEDS: std::ops::RangeInclusive<u64> = 1..=3;
const PROGRAMS: usize = 300;
const WEEKS: u64 = 16;
/// Live resizing is simulated for fewer programs, and for many more weeks.
const LIVE_PROGRAMS: usize = 60;
const LIVE_WEEKS: u64 = 1000;

const KINDS: [(Kind, &str); 6] = [
    (Kind::Service, "services"),
    (Kind::Notebook, "notebooks"),
    (Kind::InputBound, "training, input-bound"),
    (Kind::ComputeBound, "training, compute-bound"),
    (Kind::Growing, "growing 3 % a week"),
    (Kind::Batch, "batches, one in 40 twice as large"),
];

fn main() {
    let made: Vec<Program> = SEEDS.flat_map(|seed| programs(PROGRAMS, WEEKS, seed)).collect();
    let (count, first, last) = (made.len(), SEEDS.start(), SEEDS.end());
    println!("{count} programs of the seeds {first} to {last}, {WEEKS} weeks each.\n");
    println!("| programs | runs | saved | slowed | out of memory | p95: saved | slowed | out of memory |");
    println!("|---|---|---|---|---|---|---|---|");
    for (kind, name) in KINDS {
        compare(&made, name, |other| other == kind, HISTORY_WEEKS);
    }
    compare(&made, "**all**", |_| true, HISTORY_WEEKS);
    for weeks in [4, 8, 12] {
        compare(&made, &format!("all, from {weeks} weeks"), |_| true, weeks);
    }
    let weekly: Vec<Vec<Run>> = programs(LIVE_PROGRAMS, 2, *first)
        .into_iter()
        .map(|program| program.runs.into_iter().map(|(_, run)| run).collect())
        .collect();
    println!("\n{}", settled(&settle(weekly.iter().map(|runs| &runs[..]), LIVE_WEEKS)));
}

/// Prints a row with both rules.
fn compare(made: &[Program], name: &str, wanted: impl Fn(Kind) -> bool, history_weeks: u64) {
    let [ours, p95] = [Rule::Replayed, Rule::Percentile95].map(|rule| {
        let wanted = made.iter().filter(|program| wanted(program.kind));
        backtest(wanted.map(|program| &program.runs[..]), rule, history_weeks)
    });
    println!("| {name} | {} | {} | {} |", ours.runs, cells(&ours), cells(&p95));
}

fn cells(outcome: &Outcome) -> String {
    format!(
        "{:.1} % | {:.2} %, the worst by {:.0} % | {}",
        outcome.saved_percent(),
        outcome.slowed_percent(),
        outcome.worst_percent,
        outcome.out_of_memory
    )
}

fn settled(settled: &Settled) -> String {
    let held = 100.0 * settled.held_gpu_hours / settled.asked_gpu_hours;
    format!(
        "Live resizing of {} programs through {} weeks of the same demand: the last change is in week {}, a\n\
         program changes {} times at the most. In the end they hold {held:.1} % of the GPU-hours that they asked\n\
         for, and {} of {} runs are slowed by more than 5 %.",
        settled.programs,
        settled.weeks,
        settled.last_change,
        settled.changes_max,
        settled.slowed,
        settled.runs
    )
}
