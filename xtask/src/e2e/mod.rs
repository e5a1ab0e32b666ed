//! End-to-end tests: whole programs, a node in another process, and everything between them as
//! users have it.

pub(crate) mod alone;
mod api;
mod bad_input;
mod bench;
mod bounds;
mod checkpoint;
mod ci;
mod coverage;
pub(crate) mod cuts;
mod dist;
mod elastic;
mod evasion;
mod exchange;
mod forks;
mod handover;
mod hangs;
mod https;
mod identity;
pub(crate) mod kubernetes;
mod limits;
mod links;
mod migrate;
pub(crate) mod namespaces;
mod node_log;
mod nodes;
mod openings;
mod outcomes;
mod overcommit;
pub(crate) mod programs;
mod record;
mod recording;
mod sanitize;
mod sequences;
mod shares;
mod silence;
mod simulate;
mod surroundings;
pub(crate) mod teams;
mod tls;
mod top;
mod training;
pub(crate) mod web;

use std::path::PathBuf;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::evidence;
use crate::node::{self, Node};
use crate::process::{self, Ended};
use crate::test::{Skipped, Tally};

/// The software GPU of all end-to-end tests; two of them, so that a test sees which one it gets.
const NODE_GPUS: &str = "software:2,4GiB";

/// What tests need beside what users build.
pub(crate) const PARTS: [&str; 6] =
    ["sluice-softgpu-lib", "sluice-kubernetes", "cudarc-program", "exchange", "exchange-driver", "fake-nvml"];

/// Runs the tests whose name contains one of `names` (all, if there are none).
pub(crate) fn run(names: &[&str], all: bool, tally: &mut Tally) -> Result<()> {
    let wanted = |name: &str| names.is_empty() || names.iter().any(|part| name.contains(part));
    node::build_also(&PARTS)?;
    tally.spent("cargo build --release");
    std::fs::create_dir_all(logs())?;
    let of = |groups: &[&'static [Test]]| -> Vec<&'static Test> {
        groups.iter().copied().flatten().filter(|(name, _)| wanted(name)).collect()
    };
    // Most tests wait for something most of the time, so groups run beside each other. Each group
    // runs in order.
    let patient = beside(of(&[silence::TESTS, hangs::TESTS, cuts::PATIENT_TESTS, teams::PATIENT_TESTS]));
    let links = beside(of(&[
        limits::TESTS,
        evasion::TESTS,
        bad_input::TESTS,
        alone::TESTS,
        api::TESTS,
        recording::TESTS,
        record::TESTS,
        cuts::TESTS,
        openings::TESTS,
        bounds::TESTS,
        exchange::TESTS,
        handover::TESTS,
        links::TESTS,
        node_log::TESTS,
        nodes::TESTS,
    ]));
    programs::run(&wanted, all, tally);
    sequences::run(&wanted, all, tally);
    let own = of(&[
        bench::TESTS,
        overcommit::TESTS,
        migrate::TESTS,
        checkpoint::TESTS,
        forks::TESTS,
        sanitize::TESTS,
        coverage::TESTS,
        // The patient group waits for minutes yet.
        identity::TESTS,
        web::TESTS,
    ]);
    let mut failed = record(own.into_iter().map(run_one), tally);
    failed.extend(finish_group(links, tally));
    failed.extend(finish_group(patient, tally));
    // Here other work would count.
    in_turn(&failed, tally);
    in_turn(&of(&[shares::TESTS]), tally);
    let around = beside(of(&[
        simulate::TESTS,
        surroundings::TESTS,
        tls::TESTS,
        https::TESTS,
        top::TESTS,
        training::TESTS,
        dist::TESTS,
        kubernetes::TESTS,
    ]));
    let mut failed = record(of(&[teams::TESTS]).into_iter().map(run_one), tally);
    failed.extend(finish_group(around, tally));
    in_turn(&failed, tally);
    let long = cuts::LONG_TESTS.iter().chain(silence::LONG_TESTS).chain(openings::LONG_TESTS);
    let long =
        long.chain(api::LONG_TESTS).chain(dist::LONG_TESTS).chain(elastic::LONG_TESTS).chain(ci::LONG_TESTS);
    let long = long.chain(migrate::LONG_TESTS);
    let long = long.chain(kubernetes::LONG_TESTS);
    for (name, test) in long {
        match all {
            _ if !wanted(name) => {}
            false => tally.skip(name, "only with --all"),
            true => {
                eprintln!("-- {name}");
                tally.record(name, test());
            }
        }
    }
    if wanted("simulate: openb as published") {
        simulate::openb(tally);
    }
    Ok(())
}

fn in_turn(tests: &[&Test], tally: &mut Tally) {
    for (name, test) in tests {
        eprintln!("-- {name}");
        tally.record(name, test());
    }
}

/// Waits for a group that runs beside the others; returns the tests that have failed.
fn finish_group(group: JoinHandle<Vec<Finished>>, tally: &mut Tally) -> Vec<&'static Test> {
    let finished = group.join().expect("a test panicked");
    tally.spent("waiting for tests that run beside the others");
    record(finished, tally)
}

/// Counts the tests that have passed beside others, and returns those that have failed. These run
/// again by themselves, and that counts: several groups of tests may keep a machine so busy that a
/// timeout of the product, which a user would have seen as well, ends what is tested.
fn record(finished: impl IntoIterator<Item = Finished>, tally: &mut Tally) -> Vec<&'static Test> {
    let mut failed = Vec::new();
    for (test, outcome, seconds) in finished {
        match outcome {
            Err(error) if !error.is::<Skipped>() => {
                eprintln!("FAILED beside others, runs again by itself: {}: {error:#}", test.0);
                failed.push(test);
            }
            outcome => tally.record_timed(test.0, outcome, seconds),
        }
    }
    // Each has counted its own time.
    tally.lap();
    failed
}

/// Runs a group beside the others.
fn beside(tests: Vec<&'static Test>) -> JoinHandle<Vec<Finished>> {
    std::thread::spawn(move || tests.into_iter().map(run_one).collect())
}

fn run_one(test: &'static Test) -> Finished {
    eprintln!("-- {}, beside others", test.0);
    let begin = Instant::now();
    (test, test.1(), begin.elapsed().as_secs_f64())
}

/// A test, its outcome and seconds.
type Finished = (&'static Test, Result<()>, f64);

/// A test that is a function and not a program.
type Test = (&'static str, fn() -> Result<()>);

/// Where the output of each program is kept.
pub(crate) fn logs() -> PathBuf {
    crate::target_folder().join("e2e-logs")
}

fn program_file(name: &str) -> PathBuf {
    crate::root().join("tests/programs").join(name)
}

/// A node on loopback, as most tests need it.
fn start_node() -> Result<Node> {
    Node::start(&["--listen", "127.0.0.1:0", "--gpus", NODE_GPUS])
}

/// `sluice run OPTIONS --node NODE --`, to be completed by the program.
fn sluice_run(node: &Node, options: &[&str]) -> Command {
    let mut command = Command::new(node::sluice());
    command.arg("run").args(options).args(["--node", &node.address, "--"]);
    command
}

/// `python3 tests/programs/NAME` under `sluice run`: the programs that need nothing but the driver.
fn bare_program(node: &Node, options: &[&str], name: &str) -> Command {
    let mut command = sluice_run(node, options);
    command.arg("python3").arg(program_file(name));
    command
}

/// Runs a program whose last word is PASS.
fn expect_pass(command: &mut Command, name: &str, limit: Duration) -> Result<Ended> {
    command.env("SLUICE_EVIDENCE", evidence::folder(name)?);
    let outcome = finish(command, name, limit).and_then(|ended| passed(ended, limit));
    if outcome.is_err() {
        evidence::forget(name);
    }
    outcome
}

fn passed(ended: Ended, limit: Duration) -> Result<Ended> {
    match ended.code {
        Some(0) if ended.output.contains("PASS") => Ok(ended),
        Some(code) => bail!("exit code {code}: {}", tail(&ended.output)),
        None => bail!("did not end within {limit:?}: {}", tail(&ended.output)),
    }
}

/// Runs a program to its end, whatever that is.
fn finish(command: &mut Command, name: &str, limit: Duration) -> Result<Ended> {
    let log = logs().join(format!("{}.log", name.replace([' ', '/'], "-")));
    process::run_limited(command, limit, &log).with_context(|| process::show(command))
}

/// Runs a command that is to fail with this code and to say all of `parts`.
fn expect_failure(command: &mut Command, name: &str, code: i32, parts: &[&str]) -> Result<()> {
    let ended = finish(command, name, Duration::from_secs(30))?;
    match ended.code {
        Some(got) if got == code => {}
        Some(got) => bail!("exit code {got}, expected {code}: {}", tail(&ended.output)),
        None => bail!("hangs: {}", tail(&ended.output)),
    }
    for part in parts {
        ensure!(ended.output.contains(part), "no {part:?} in {:?}", tail(&ended.output));
    }
    Ok(())
}

/// The last lines of an output, for a message.
fn tail(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n    ")
}
