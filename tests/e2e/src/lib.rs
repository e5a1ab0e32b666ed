//! End-to-end tests: whole programs, a node in another process, and everything between them as
//! users have it.
//!
//! `cargo xtask test` runs them after all others. `cargo test` runs them only by their name:
//! `cargo test --workspace --test e2e -- NAME`, with the options of Rust's test harness (`--list`,
//! `--exact`, `--skip`, `--test-threads`), and `--all` for what downloads or computes much. They
//! run on release builds, which are made first (`XTASK_BUILT=1` takes them as they are).
//!
//! A test is a function with a name ([`Test`]). [`plan`] says in which order tests run and which
//! run beside each other, [`schedule`] has each wait until it may run, and [`report`] is what came
//! out.

mod plan;
mod report;
mod schedule;

mod alone;
mod api;
mod bad_input;
mod bench;
mod bounds;
mod checkpoint;
mod ci;
mod coverage;
mod cuts;
mod dist;
mod elastic;
mod evasion;
mod exchange;
mod forks;
mod handover;
mod hangs;
mod https;
mod identity;
mod kubernetes;
mod limits;
mod links;
mod migrate;
mod node_log;
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
mod training;
mod upgrade;
mod web;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use harness::expect::{
    NODE_GPUS, PARTS, bare_program, expect_failure, expect_pass, finish, logs, program_file, sluice_run,
    start_node, tail,
};
use harness::node::token_in;
use harness::{
    SHARED_MEMORY_VARIABLE, Skipped, cache_folder, evidence, namespaces, node, packets, process, python,
    relay, root, target_folder,
};
use libtest_mimic::Arguments;

/// A test that is a function and not a program.
type Test = (&'static str, fn() -> Result<()>);

/// What was asked for on the command line.
struct Options {
    /// Also what downloads or computes much.
    all: bool,
    /// Runs the tests whose name contains one of them; all, if there are none.
    names: Vec<String>,
    /// Where the outcomes are written as JSON.
    report: Option<String>,
    /// What is left, for the test harness.
    harness: Arguments,
}

/// The option that prints the tables of `cargo xtask bench kubernetes` in place of testing.
const KUBERNETES_TABLES: &str = "--kubernetes-tables";

/// Does what the command line says.
pub fn main() -> ExitCode {
    // What is tested over the network is to stay there on one machine, too; what is about shared
    // memory says so. SAFETY: no other thread runs yet.
    unsafe { std::env::set_var(SHARED_MEMORY_VARIABLE, "off") };
    let words: Vec<String> = std::env::args().skip(1).collect();
    // Cargo starts test programs in the folder of their package.
    let entered = std::env::set_current_dir(root()).context("entering the repository");
    let result = match words.as_slice() {
        [word] if word == KUBERNETES_TABLES => kubernetes::tables().map(|tables| {
            println!("{tables}");
            ExitCode::SUCCESS
        }),
        _ => entered.and_then(|()| options(words)).and_then(run),
    };
    result.unwrap_or_else(|error| {
        eprintln!("sluice-e2e: {error:#}");
        ExitCode::FAILURE
    })
}

fn options(words: Vec<String>) -> Result<Options> {
    let (mut all, mut names, mut report, mut rest) =
        (false, Vec::new(), None, vec!["sluice-e2e".to_string()]);
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--all" => all = true,
            "--report" => report = Some(words.next().context("--report needs a file")?),
            "--test-threads" | "--skip" | "--logfile" | "--color" | "--format" => {
                let value = words.next().with_context(|| format!("{word} needs a value"))?;
                rest.extend([word, value]);
            }
            option if option.starts_with('-') => rest.push(word),
            _ => names.push(word),
        }
    }
    let harness = Arguments::from_iter(rest);
    if harness.bench || harness.ignored {
        bail!("there are no measurements and no ignored tests here; --all adds what takes long");
    }
    Ok(Options { all, names, report, harness })
}

fn run(options: Options) -> Result<ExitCode> {
    let list = options.harness.list;
    if !options.all {
        // SAFETY: no other thread runs yet.
        unsafe { harness::choose_seeds() };
    }
    let mut report = report::Report::default();
    if !list {
        report.time("cargo build --release", || node::build_also(&PARTS))?;
        std::fs::create_dir_all(logs())?;
    }
    let report = schedule::run(plan::stages(options.all), &options, report);
    if let Some(file) = options.report.filter(|_| !list) {
        std::fs::write(&file, report.to_json()).with_context(|| file.clone())?;
    }
    Ok(report.code())
}
