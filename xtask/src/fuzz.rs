//! `cargo xtask fuzz`: the programs of `fuzz/targets`, each for a given time.
//! What they did is added up in `docs/benchmarks/robustness.md`.
//!
//! Coverage is LLVM's own pass, which a stable compiler has as well; what is missing without a
//! nightly one is the address sanitizer, which `cargo fuzz run NAME` adds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::gpu_check::files_in;
use crate::{bench, process};

/// As `cargo fuzz` has them.
const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";
/// With a target named, build scripts are compiled without the flags.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// The table in `docs/benchmarks`.
pub(crate) const SECTION: &str = "fuzz";

/// A process plays for this time, and the next continues with what it has found. What a worker
/// keeps to its end of sessions whose context has failed comes to an end with that.
const ROUND: Duration = Duration::from_secs(60);

/// Texts of up to this number of bytes are what programs that read PTX begin with.
const SEED_SIZE_MAX: u64 = 8 << 10;

/// What all runs of a program have done.
#[derive(Clone, Debug, Default, PartialEq)]
struct Done {
    minutes: f64,
    inputs: u64,
    /// Places in the code, in the last run.
    covered: u64,
    /// The day of the last run.
    last: String,
}

pub(crate) fn run(options: &[&str]) -> Result<ExitCode> {
    let mut minutes = 1.0;
    let mut names = Vec::new();
    let mut rest = options.iter();
    while let Some(option) = rest.next() {
        match *option {
            "--minutes" => minutes = rest.next().context("--minutes needs a value")?.parse()?,
            name if !name.starts_with('-') => names.push(name.to_owned()),
            other => bail!("fuzz knows --minutes and names of programs in fuzz/Cargo.toml, not {other}"),
        }
    }
    ensure!(minutes > 0.0, "--minutes is more than 0");
    let folder = build()?;
    let known = programs(&folder)?;
    if let Some(unknown) = names.iter().find(|name| !known.contains(name)) {
        bail!("no program is called {unknown}; there are {}", known.join(", "));
    }
    let path = bench::page_of(SECTION)?;
    for name in if names.is_empty() { known } else { names } {
        let now = fuzz(&folder, &name, Duration::from_secs_f64(minutes * 60.0))?;
        let text = std::fs::read_to_string(&path)?;
        let mut all = read(bench::section(&text, SECTION)?);
        let sum = all.entry(name).or_default();
        *sum = Done { minutes: sum.minutes + now.minutes, inputs: sum.inputs + now.inputs, ..now };
        std::fs::write(&path, bench::replace_section(&text, SECTION, &table(&all))?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The folder of the programs.
fn build() -> Result<PathBuf> {
    let target = crate::target_folder().join("fuzz");
    let mut command = process::cargo();
    command.args(["build", "--release", "--manifest-path", "fuzz/Cargo.toml", "--target", TARGET]);
    command.arg("--target-dir").arg(&target).env("RUSTFLAGS", COVERAGE);
    process::run(&mut command)?;
    Ok(target.join(TARGET).join("release"))
}

/// What `fuzz/Cargo.toml` names and was built.
fn programs(folder: &Path) -> Result<Vec<String>> {
    let manifest = std::fs::read_to_string(crate::root().join("fuzz/Cargo.toml"))?;
    let named = manifest.split("[[bin]]").skip(1).filter_map(|part| part.split('"').nth(1));
    let names: Vec<String> = named.map(String::from).collect();
    for name in &names {
        ensure!(folder.join(name).is_file(), "{name} was not built in {}", folder.display());
    }
    Ok(names)
}

/// The folder of what a program begins with, if it has to: a random text rarely means something.
/// Parts that are to be linked are two texts with a zero between them.
fn seeds(name: &str) -> Result<Option<PathBuf>> {
    if !["kernels", "ptx"].contains(&name) {
        return Ok(None);
    }
    let mut texts = Vec::new();
    for path in files_below(&crate::root().join("crates"))? {
        if path.extension().is_some_and(|extension| extension == "ptx")
            && path.metadata()?.len() <= SEED_SIZE_MAX
        {
            texts.push(std::fs::read(path)?);
        }
    }
    ensure!(!texts.is_empty(), "there is no PTX below crates");
    if name == "ptx" {
        let pairs: Vec<Vec<u8>> = texts.windows(2).map(|pair| pair.join(&0)).collect();
        texts.extend(pairs);
    }
    let folder = crate::target_folder().join("fuzz-seeds").join(name);
    std::fs::create_dir_all(&folder)?;
    for (number, text) in texts.iter().enumerate() {
        std::fs::write(folder.join(number.to_string()), text)?;
    }
    Ok(Some(folder))
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in files_in(folder)? {
        match path.is_dir() {
            true => files.extend(files_below(&path)?),
            false => files.push(path),
        }
    }
    Ok(files)
}

/// Runs one program, in as many processes as that takes. What it finds ends it, and is left as a
/// file beside its corpus.
fn fuzz(folder: &Path, name: &str, time: Duration) -> Result<Done> {
    let begin = Instant::now();
    let (mut inputs, mut covered) = (0, 0);
    while begin.elapsed() < time {
        let (more, now) = round(folder, name, ROUND.min(time.saturating_sub(begin.elapsed())))?;
        inputs += more;
        covered = now;
    }
    eprintln!("{name}: {inputs} inputs, {covered} places covered, nothing found");
    let last = jiff::Timestamp::now().strftime("%F").to_string();
    Ok(Done { minutes: begin.elapsed().as_secs_f64() / 60.0, inputs, covered, last })
}

/// One process; the answer is its inputs, and the places that they and the corpus cover.
fn round(folder: &Path, name: &str, time: Duration) -> Result<(u64, u64)> {
    let corpus = crate::target_folder().join("fuzz-corpus").join(name);
    let found = crate::target_folder().join("fuzz-found");
    std::fs::create_dir_all(&corpus)?;
    std::fs::create_dir_all(&found)?;
    let mut command = Command::new(folder.join(name));
    command
        .arg(&corpus)
        .args(seeds(name)?)
        .arg("-print_final_stats=1")
        .arg("-rss_limit_mb=4096")
        .arg("-timeout=60");
    // None would be for ever.
    command.arg(format!("-max_total_time={}", time.as_secs().max(1)));
    command.arg(format!("-artifact_prefix={}/{name}-", found.display()));
    eprintln!("$ {}", process::show(&command));
    let output = command.output().with_context(|| process::show(&command))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last: Vec<&str> = said.lines().rev().take(30).collect();
    ensure!(
        output.status.success(),
        "{name} found something, see {}:\n{}",
        found.display(),
        last.iter().rev().copied().collect::<Vec<_>>().join("\n")
    );
    let number = |after: &str| -> Option<u64> {
        let (_, rest) = said.rsplit_once(after)?;
        rest.split_whitespace().next()?.parse().ok()
    };
    let inputs = number("stat::number_of_executed_units:").context("libFuzzer said no count")?;
    Ok((inputs, number(" cov: ").unwrap_or(0)))
}

fn table(all: &BTreeMap<String, Done>) -> String {
    let mut text =
        String::from("| program | minutes | inputs | places covered | last run |\n|---|---|---|---|---|\n");
    for (name, Done { minutes, inputs, covered, last }) in all {
        text += &format!("| `{name}` | {minutes:.1} | {inputs} | {covered} | {last} |\n");
    }
    let minutes: f64 = all.values().map(|done| done.minutes).sum();
    let inputs: u64 = all.values().map(|done| done.inputs).sum();
    text += &format!("| all, {:.1} hours | {minutes:.1} | {inputs} | | |\n", minutes / 60.0);
    text
}

/// The reverse of [`table`].
fn read(table: &str) -> BTreeMap<String, Done> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, minutes, inputs, covered, last] = cells[..] else { return None };
        let done = Done {
            minutes: minutes.parse().ok()?,
            inputs: inputs.parse().ok()?,
            covered: covered.parse().ok()?,
            last: last.to_owned(),
        };
        Some((name.trim_matches('`').to_owned(), done))
    };
    table.lines().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use sluice_wire::Kind;

    use super::*;

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let done = Done { minutes: 12.5, inputs: 1 << 40, covered: 77, last: "2026-01-31".into() };
        let all = BTreeMap::from([("host-call".to_owned(), done), ("image".to_owned(), Done::default())]);
        assert_eq!(read(&table(&all)), all);
    }

    /// The programs that read what a frame of this kind carries.
    fn programs_of(kind: Kind) -> &'static [&'static str] {
        match kind {
            Kind::Command => &["command"],
            Kind::Commands => &["commands"],
            Kind::Reply => &["reply", "answer"],
            Kind::HostWrite => &["host-write"],
            Kind::HostCall => &["host-call"],
            Kind::Sticky => &["sticky"],
            Kind::Control => &["control"],
            Kind::Received => &["received"],
            Kind::Packed => &["packed"],
            Kind::Allowance => &["allowance"],
            Kind::CommandRefused => &["command-refused"],
            // Text as it is: all there is to read is the frame.
            Kind::Output | Kind::Notice => &["frames"],
        }
    }

    #[test]
    fn every_kind_of_message_has_a_program() {
        let manifest = include_str!("../../fuzz/Cargo.toml");
        for kind in Kind::ALL {
            for name in programs_of(kind) {
                assert!(manifest.contains(&format!("name = \"{name}\"\n")), "{kind:?}: {name}");
            }
        }
    }
}
