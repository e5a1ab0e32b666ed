//! `sluice run --sanitize` over the programs of `tests/programs`: its cost and its findings.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::programs;
use serde_json::Value;

use super::{folder, machine, median, show};
use crate::node;
use crate::process;

pub(super) const NAME: &str = "sanitizer";

/// Runs of each program at most, plain and sanitized by turns.
const PAIRS: usize = 3;
/// A program whose pairs have taken this time is not run again.
const ENOUGH: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(600);
/// A sanitized run that takes more than a minute and this multiple of a plain run's time hangs:
/// processes of a program may wait for each other when a call has failed.
const HANGS: f64 = 50.0;

/// What `sluice run` returns for a program that has succeeded, and whose kernels have faults.
const FAULTS: i32 = 122;

/// Programs that launch wrong kernels on purpose, to see what becomes of them.
const WRONG_ON_PURPOSE: [&str; 2] = ["driver answers", "callbacks of failed streams"];

struct Measured {
    name: &'static str,
    plain: Vec<f64>,
    sanitized: Vec<f64>,
    findings: usize,
}

/// Measures, and returns the table.
pub(super) fn run() -> Result<String> {
    let (programs, rest) = programs::installed()?;
    let mut rows = Vec::new();
    for (name, words) in programs {
        if WRONG_ON_PURPOSE.contains(&name) {
            continue;
        }
        eprintln!("-- {name}");
        let row = measure(name, &words)?;
        eprintln!("{:?} s plain, {:?} s sanitized, {} findings", row.plain, row.sanitized, row.findings);
        rows.push(row);
    }
    let mutants = mutants()?;
    let ratios: Vec<f64> = rows.iter().filter_map(Measured::ratio).collect();
    let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
    // A program that fails may do so since a call has failed that its kernels rely on.
    let findings: usize = rows.iter().filter(|row| row.ratio().is_some()).map(|row| row.findings).sum();
    let left_out = if rest.is_empty() { "none".to_owned() } else { rest.join(", ") };
    let mut table = format!(
        "Measured by `cargo xtask bench {NAME}` on {}. Mutants found: **{mutants}**. Findings in the {} \
         programs that run to their end, which have no known fault: **{findings}**. Geometric mean of their \
         ratios: **{mean:.2}**.\n\n\
         Whole programs from their start to their end, with a private node: median of up to {PAIRS} pairs of runs by \
         turns, lowest and highest in brackets. Not run, since their packages are not installed: {left_out}.\n\n\
         | program | plain, s | sanitized, s | ratio | findings |\n|---|---|---|---|---|\n",
        machine(),
        ratios.len(),
    );
    rows.sort_by(|a, b| b.ratio().unwrap_or(0.0).total_cmp(&a.ratio().unwrap_or(0.0)));
    for row in rows {
        let ratio = row.ratio().map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        let sanitized = match row.sanitized.is_empty() {
            true => "ends with an error".to_owned(),
            false => show(row.sanitized),
        };
        table +=
            &format!("| {} | {} | {sanitized} | {ratio} | {} |\n", row.name, show(row.plain), row.findings);
    }
    Ok(table)
}

/// How many of the mutants in the tests of the software GPU are found.
fn mutants() -> Result<String> {
    let mut test = process::cargo();
    test.args(["test", "--quiet", "--package", "sluice-softgpu", "--test", "sanitize"]);
    let output = process::output_of(test.args(["--", "--nocapture", "every_mutant"]))?;
    let found = output.lines().find_map(|line| line.split_once("mutants found: ")?.1.split(',').next());
    Ok(found.context("the test does not say how many mutants were found")?.to_owned())
}

impl Measured {
    /// `None` where the sanitized program has failed.
    fn ratio(&self) -> Option<f64> {
        (!self.sanitized.is_empty()).then(|| median(self.sanitized.clone()) / median(self.plain.clone()))
    }
}

fn measure(name: &'static str, words: &[PathBuf]) -> Result<Measured> {
    let report = folder().join("sanitizer.json");
    let mut measured = Measured { name, plain: Vec::new(), sanitized: Vec::new(), findings: 0 };
    let begin = Instant::now();
    for _ in 0..PAIRS {
        let (plain, code) = time(name, &[], words, LIMIT)?;
        ensure!(code == Some(0), "{name}: exit code {code:?}, see {}", log().display());
        measured.plain.push(plain);
        let options = ["--sanitize", "--sanitize-report", &report.display().to_string()];
        let (seconds, code) = time(name, &options, words, Duration::from_secs_f64(60.0 + HANGS * plain))?;
        let found = findings(&report)?;
        measured.findings = measured.findings.max(found.unwrap_or(0));
        match (code, found) {
            (Some(0), Some(0)) => measured.sanitized.push(seconds),
            (Some(FAULTS), Some(1..)) => measured.sanitized.push(seconds),
            _ => {
                eprintln!("{name}: exit code {code:?} under the sanitizer, see {}", log().display());
                measured.sanitized.clear();
                break;
            }
        }
        if begin.elapsed() > ENOUGH {
            break;
        }
    }
    Ok(measured)
}

/// Seconds and exit code of a run.
fn time(name: &str, options: &[&str], words: &[PathBuf], limit: Duration) -> Result<(f64, Option<i32>)> {
    let mut command = Command::new(node::sluice());
    command.args(["run", "-q", "--gpus", "software:1,4GiB", "-p", "0.5", "--memory", "2GiB"]).args(options);
    command.arg("--").args(words).env_remove("SLUICE_NODE").env("PYTHONDONTWRITEBYTECODE", "1");
    let begin = Instant::now();
    let ended = process::run_limited(&mut command, limit, &log()).with_context(|| name.to_owned())?;
    Ok((begin.elapsed().as_secs_f64(), ended.code))
}

/// What the program that ran last has printed.
fn log() -> PathBuf {
    folder().join("sanitizer.log")
}

/// How many findings are in the report; `None` without one.
fn findings(report: &Path) -> Result<Option<usize>> {
    let Ok(text) = std::fs::read_to_string(report) else { return Ok(None) };
    std::fs::remove_file(report)?;
    let report: Value = serde_json::from_str(&text)?;
    Ok(Some(report["findings"].as_array().context("the report has no findings")?.len()))
}
