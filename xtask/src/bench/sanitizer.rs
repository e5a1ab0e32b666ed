//! `sluice run --sanitize` over the programs of `tests/programs`: its cost and its findings.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;

use super::{folder, machine, median, show};
use crate::e2e::programs;
use crate::node;
use crate::process;

pub(super) const NAME: &str = "sanitizer";

/// Runs of each program, plain and sanitized by turns.
const PAIRS: usize = 3;
const LIMIT: Duration = Duration::from_secs(600);

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
    let mut rows = Vec::new();
    for (name, words) in programs::light()? {
        if WRONG_ON_PURPOSE.contains(&name) {
            continue;
        }
        eprintln!("-- {name}");
        rows.push(measure(name, &words)?);
    }
    let ratios: Vec<f64> = rows.iter().map(Measured::ratio).collect();
    let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
    let findings: usize = rows.iter().map(|row| row.findings).sum();
    let mut table = format!(
        "Whole programs from their start to their end, with a private node. Measured by `cargo xtask bench {NAME}` on {}; \
         median of {PAIRS} pairs of runs by turns, lowest and highest in brackets. Geometric mean of the ratios of \
         {} programs: **{mean:.2}**; findings in all of them, which have no known fault: {findings}.\n\n\
         | program | plain, s | sanitized, s | ratio | findings |\n|---|---|---|---|---|\n",
        machine(),
        rows.len()
    );
    rows.sort_by(|a, b| b.ratio().total_cmp(&a.ratio()));
    for row in rows {
        let ratio = row.ratio();
        let (plain, sanitized) = (show(row.plain), show(row.sanitized));
        table += &format!("| {} | {plain} | {sanitized} | {ratio:.2} | {} |\n", row.name, row.findings);
    }
    Ok(table)
}

impl Measured {
    fn ratio(&self) -> f64 {
        median(self.sanitized.clone()) / median(self.plain.clone())
    }
}

fn measure(name: &'static str, words: &[PathBuf]) -> Result<Measured> {
    let report = folder().join("sanitizer.json");
    let mut measured = Measured { name, plain: Vec::new(), sanitized: Vec::new(), findings: 0 };
    for _ in 0..PAIRS {
        measured.plain.push(time(name, &[], words)?.0);
        let options = ["--sanitize", "--sanitize-report", &report.display().to_string()];
        let (seconds, code) = time(name, &options, words)?;
        measured.sanitized.push(seconds);
        let found = findings(&report)?;
        ensure!((code == FAULTS) == (found > 0), "{name}: exit code {code} with {found} findings");
        measured.findings = measured.findings.max(found);
    }
    Ok(measured)
}

/// Seconds and exit code of a run that succeeds but for what the sanitizer finds.
fn time(name: &str, options: &[&str], words: &[PathBuf]) -> Result<(f64, i32)> {
    let mut command = Command::new(node::sluice());
    command.args(["run", "-q", "--gpus", "software:1,4GiB", "-p", "0.5", "--memory", "2GiB"]).args(options);
    command.arg("--").args(words).env_remove("SLUICE_NODE").env("PYTHONDONTWRITEBYTECODE", "1");
    let log = folder().join("sanitizer.log");
    let begin = Instant::now();
    let ended = process::run_limited(&mut command, LIMIT, &log)?;
    let seconds = begin.elapsed().as_secs_f64();
    match ended.code {
        Some(code) if code == 0 || (code == FAULTS && !options.is_empty()) => Ok((seconds, code)),
        code => anyhow::bail!("{name} {options:?}: {code:?}, see {}", log.display()),
    }
}

fn findings(report: &Path) -> Result<usize> {
    let report: Value = serde_json::from_str(&std::fs::read_to_string(report)?)?;
    let found = report["findings"].as_array().map_or(0, Vec::len);
    std::fs::remove_file(folder().join("sanitizer.json"))?;
    Ok(found)
}
