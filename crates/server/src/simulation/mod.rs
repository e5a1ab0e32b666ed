//! Servers, nodes and programs under faults, in virtual time, as a seed says.
//!
//! ```text
//!  programs ──┐                       ┌── server s0 ─┐
//!  (scripted) ├── network: late, ─────┼── server s1 ─┼── one SQLite file, whose commits
//!  nodes ─────┘   twice, never, cut   └── server s2 ─┘   fail, hang, or are not reported
//! ```
//! Real are: the server from its router to its database, every task of it ([`replica`]); the node's
//! state, grants, metering, journal and reports ([`node`], [`sluice_node::unplugged`]). Simulated
//! are the network, all clocks, and its users: programs that do as `sluice run` does. After every
//! step and at the end it is checked what has to be true ([`checks`], [`truth`]).
//!
//! Tokio draws the order in which tasks that wait for one thing continue, so a few seeds have more
//! than one history.
//!
//! `SEED` is the first seed, `SEEDS` how many; `TRACE=1` prints what happens. Tokens are random
//! here too, and nothing depends on them.

mod checks;
mod network;
mod node;
mod post;
mod program;
mod replica;
mod truth;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use world::{Figures, World};

const SERVERS: usize = 3;
const NODES: usize = 3;
const PROGRAMS: usize = 6;

/// Seeds of an ordinary test run.
const SEEDS: u64 = 4;
/// For how long things go wrong, in milliseconds.
const FOUL_MS: u64 = 150_000;
const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;
/// The time within which everything has to be idle after that.
const REST_MS: u64 = 400_000;

fn number(variable: &str, otherwise: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")),
        Err(_) => otherwise,
    }
}

/// Runs a world of each seed, and says how to see again what went wrong.
fn for_seeds(test: &str, seeds: u64, run: impl Fn(&mut World) -> Result<(), String>) {
    let first = number("SEED", 1);
    let mut all = Figures::default();
    for seed in first..first + number("SEEDS", seeds) {
        let mut world = World::new(seed);
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&mut world)));
        let lines = world.post.lines();
        let again = format!("again: SEED={seed} SEEDS=1 TRACE=1 cargo test -p sluice-server --lib {test}");
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(what)) => panic!("{lines}\n\nseed {seed}: {what}\n{again}"),
            Err(panic) => {
                eprintln!("{lines}\n\nseed {seed}\n{again}");
                std::panic::resume_unwind(panic);
            }
        }
        let figures = world.figures();
        all.virtual_ms += figures.virtual_ms;
        all.faults += figures.faults;
        all.runs += figures.runs;
        all.records += figures.records;
    }
    eprintln!("{test}: {all:?}");
}

/// Faults for a while, then none, until everything is idle.
fn foul_and_fair(world: &mut World) -> Result<(), String> {
    let begun_ms = world.post.now_ms;
    while world.post.now_ms < begun_ms + FOUL_MS {
        if world.post.now_ms.is_multiple_of(1000) {
            world.disturb();
        }
        world.step()?;
    }
    world.heal();
    come_to_rest(world)
}

fn come_to_rest(world: &mut World) -> Result<(), String> {
    let healed_ms = world.post.now_ms;
    world.programs.iter_mut().for_each(|program| program.retired = true);
    while !world.post.now_ms.is_multiple_of(1000) || !world.rests() {
        if world.post.now_ms > healed_ms + REST_MS {
            return Err(format!("it does not come to rest: {}", world.unrest()));
        }
        world.step()?;
    }
    world.check_end()
}

#[test]
fn whatever_fails_nothing_is_lent_or_counted_twice_and_nothing_is_lost() {
    for_seeds("whatever_fails", SEEDS, foul_and_fair);
}

/// All servers are away from the moment when the last of many programs has begun, of which they
/// have received nothing yet.
fn day_without_servers(world: &mut World) -> Result<(), String> {
    for program in &mut world.programs {
        (program.lasts_ms, program.modest) = (2 * DAY_MS, true);
    }
    world.programs[0].retired = true;
    while world.truth.open().count() < PROGRAMS - 1 {
        world.step()?;
    }
    world.programs[0].retired = false;
    while world.truth.open().count() < PROGRAMS {
        world.step()?;
    }
    let before: Vec<_> = world.truth.open().map(|held| held.attempt).collect();
    world.crash_servers(world.post.now_ms + DAY_MS);
    let until_ms = world.post.now_ms + DAY_MS + HOUR_MS / 12;
    while world.post.now_ms < until_ms {
        world.step()?;
    }
    let after: Vec<_> = world.truth.open().map(|held| held.attempt).collect();
    if let Some(lost) = before.iter().find(|attempt| !after.contains(attempt)) {
        return Err(format!("{lost:?} did not outlive a day without servers"));
    }
    let now_ms = world.post.now_ms;
    world.programs.iter_mut().for_each(|program| program.hurry(now_ms + 60_000));
    come_to_rest(world)
}

#[test]
fn programs_outlive_a_day_without_servers_and_all_they_used_arrives() {
    for_seeds("programs_outlive", 1, day_without_servers);
}
