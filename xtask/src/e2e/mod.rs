//! End-to-end tests: whole programs, a node in another process, and everything between them as
//! users have it.

pub(crate) mod alone;
mod api;
mod bad_input;
mod bench;
mod bounds;
mod ci;
mod coverage;
pub(crate) mod cuts;
mod dist;
mod elastic;
mod exchange;
mod handover;
mod hangs;
mod https;
mod identity;
mod kubernetes;
mod limits;
mod links;
pub(crate) mod namespaces;
mod nodes;
mod openings;
mod outcomes;
mod overcommit;
mod programs;
mod record;
mod recording;
mod sanitize;
mod sequences;
mod shares;
mod silence;
mod simulate;
mod surroundings;
mod teams;
mod tls;
mod top;
mod web;

use std::path::PathBuf;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::evidence;
use crate::node::{self, Node};
use crate::process::{self, Ended};
use crate::test::Tally;

/// The software GPU of all end-to-end tests; two of them, so that a test sees which one it gets.
const NODE_GPUS: &str = "software:2,4GiB";

/// What tests need beside what users build.
const PARTS: [&str; 6] =
    ["sluice-softgpu-lib", "sluice-kubernetes", "cudarc-program", "exchange", "exchange-driver", "fake-nvml"];

/// Runs the tests whose name contains one of `names` (all, if there are none).
pub(crate) fn run(names: &[&str], all: bool, tally: &mut Tally) -> Result<()> {
    let wanted = |name: &str| names.is_empty() || names.iter().any(|part| name.contains(part));
    node::build_also(&PARTS)?;
    tally.spent("cargo build --release");
    std::fs::create_dir_all(logs())?;
    let patient = [silence::TESTS, hangs::TESTS, cuts::PATIENT_TESTS, teams::PATIENT_TESTS];
    let patient = beside(patient.into_iter().flatten().filter(|(name, _)| wanted(name)).collect());
    programs::run(&wanted, all, tally);
    sequences::run(&wanted, all, tally);
    let tests = limits::TESTS.iter().chain(bad_input::TESTS).chain(alone::TESTS).chain(api::TESTS);
    for (name, test) in tests
        .chain(recording::TESTS)
        .chain(record::TESTS)
        .chain(cuts::TESTS)
        .chain(openings::TESTS)
        .chain(bounds::TESTS)
        .chain(exchange::TESTS)
        .chain(handover::TESTS)
        .chain(bench::TESTS)
        .chain(links::TESTS)
        .chain(nodes::TESTS)
        .chain(overcommit::TESTS)
        .chain(sanitize::TESTS)
        .chain(coverage::TESTS)
    {
        if wanted(name) {
            eprintln!("-- {name}");
            tally.record(name, test());
        }
    }
    let patient = patient.join().expect("a test panicked");
    tally.spent("waiting for tests that wait");
    for (name, outcome, seconds) in patient {
        tally.record_timed(name, outcome, seconds);
    }
    for (name, test) in shares::TESTS
        .iter()
        .chain(simulate::TESTS)
        .chain(surroundings::TESTS)
        .chain(teams::TESTS)
        .chain(tls::TESTS)
        .chain(https::TESTS)
        .chain(top::TESTS)
        .chain(dist::TESTS)
        .chain(kubernetes::TESTS)
    {
        if wanted(name) {
            eprintln!("-- {name}");
            tally.record(name, test());
        }
    }
    let long = cuts::LONG_TESTS.iter().chain(silence::LONG_TESTS).chain(openings::LONG_TESTS);
    let long =
        long.chain(api::LONG_TESTS).chain(dist::LONG_TESTS).chain(elastic::LONG_TESTS).chain(ci::LONG_TESTS);
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
    identity::run(&wanted, tally);
    web::run(&wanted, tally);
    if wanted("simulate: openb as published") {
        simulate::openb(tally);
    }
    Ok(())
}

/// Runs the tests that mostly wait for something not to happen, beside the others and one after the
/// other.
fn beside(tests: Vec<&'static Test>) -> JoinHandle<Vec<Finished>> {
    std::thread::spawn(move || {
        let run = |(name, test): &Test| {
            eprintln!("-- {name}, beside the others");
            let begin = Instant::now();
            (*name, test(), begin.elapsed().as_secs_f64())
        };
        tests.into_iter().map(run).collect()
    })
}

/// Name, outcome and seconds.
type Finished = (&'static str, Result<()>, f64);

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
