//! The README's second command: every test there is, and one line of counts at the end.

use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::{book, e2e, evidence, process, prose, web};

/// What came out, added up over all steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) passed: u32,
    pub(crate) failed: Vec<String>,
    /// Name and reason.
    pub(crate) skipped: Vec<(String, String)>,
    /// Name and seconds of each step.
    times: Vec<(String, f64)>,
    /// When the step before this one ended.
    last: Option<Instant>,
}

/// Why a test could say nothing.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Skipped(pub(crate) String);

impl Tally {
    /// What came out of the step that began when the one before it was recorded.
    pub(crate) fn record(&mut self, name: &str, outcome: Result<()>) {
        let seconds = self.lap();
        self.record_timed(name, outcome, seconds);
    }

    /// Counts the time since the last step to `name`, which is none that can fail by itself.
    pub(crate) fn spent(&mut self, name: &str) {
        let seconds = self.lap();
        self.times.push((name.into(), seconds));
    }

    /// Seconds since the last step.
    pub(crate) fn lap(&mut self) -> f64 {
        self.last.replace(Instant::now()).map_or(0.0, |last| last.elapsed().as_secs_f64())
    }

    /// What came out of a step that ran beside others.
    pub(crate) fn record_timed(&mut self, name: &str, outcome: Result<()>, seconds: f64) {
        self.times.push((name.into(), seconds));
        match outcome {
            Ok(()) => self.passed += 1,
            Err(error) => match error.downcast_ref::<Skipped>() {
                Some(skipped) => self.skip(name, &skipped.0),
                None => {
                    eprintln!("FAILED {name}: {error:#}");
                    self.failed.push(name.into());
                }
            },
        }
    }

    /// Where the time went: the steps of more than five seconds, the longest first.
    fn show_slowest(&mut self) {
        self.times.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (name, seconds) in self.times.iter().take_while(|(_, seconds)| *seconds > 5.0) {
            eprintln!("{seconds:6.0} s {name}");
        }
    }

    pub(crate) fn skip(&mut self, name: &str, reason: &str) {
        eprintln!("skipped {name}: {reason}");
        self.skipped.push((name.into(), reason.into()));
    }
}

pub(crate) fn run(options: &[&str]) -> Result<ExitCode> {
    let all = options.contains(&"--all");
    let names: Vec<&str> = options.iter().copied().filter(|option| !option.starts_with("--")).collect();
    if !all {
        choose_seeds();
    }
    let begin = Instant::now();
    let mut tally = Tally { last: Some(begin), ..Tally::default() };
    if names.is_empty() {
        house(&mut tally);
        unit_tests(all, &mut tally)?;
    }
    e2e::run(&names, all, &mut tally)?;
    if options.contains(&"--record") {
        evidence::record()?;
    }

    tally.show_slowest();
    eprintln!("\nAll of it took {} s.", begin.elapsed().as_secs());
    for (name, reason) in &tally.skipped {
        println!("skipped: {name} ({reason})");
    }
    for name in &tally.failed {
        println!("failed: {name}");
    }
    let skipped = match tally.skipped.len() {
        0 => String::new(),
        count => format!(", {count} skipped"),
    };
    println!("{} passed, {} failed{skipped}", tally.passed, tally.failed.len());
    Ok(if tally.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether a change passes must not depend on luck, so its tests see the same random data each
/// time, unless the environment names a seed. `--all` leaves it to them: each run looks at
/// something else.
fn choose_seeds() {
    for name in ["SEED", "PROPTEST_RNG_SEED"] {
        if std::env::var_os(name).is_none() {
            // SAFETY: called from `main` before any thread was started.
            unsafe { std::env::set_var(name, "1") };
        }
    }
}

/// Format, lints, licences and generated files.
fn house(tally: &mut Tally) {
    let mut step = |name: &str, arguments: &[&str]| {
        tally.record(name, process::run(process::cargo().args(arguments)));
    };
    step("cargo fmt", &["fmt", "--all", "--check"]);
    step("cargo clippy", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]);
    // What the first command of the README builds.
    let lean = ["clippy", "-p", "sluice", "--no-default-features", "--", "-D", "warnings"];
    step("sluice as the demo builds it", &lean);
    step("generated files are current", &["xtask", "codegen", "--check"]);
    tally.record("comments and documents are within the prose budget", prose::check_repository());
    tally.record("links in documents", book::check_links());
    tally.record("the book builds", book::check_build());
    tally.record("the web view is current", web::check());
    tally.record("cargo deny", deny());
}

const CARGO_DENY: &str = "0.20.2";

/// `cargo deny`, installed into the cache if this machine has none (its compilation takes minutes,
/// once).
fn deny() -> Result<()> {
    let installed = Command::new("cargo-deny").arg("--version").stdout(Stdio::null()).status();
    let mut command = match installed {
        Ok(status) if status.success() => Command::new("cargo-deny"),
        _ => {
            let tools = crate::cache_folder().join(format!("cargo-deny-{CARGO_DENY}"));
            let program = tools.join("bin/cargo-deny");
            if !program.is_file() {
                let mut install = process::cargo();
                install.args([
                    "install",
                    "cargo-deny",
                    "--locked",
                    "--version",
                    CARGO_DENY,
                    "--no-default-features",
                    // Its compilation is what takes long here.
                    "--debug",
                ]);
                process::run(install.arg("--root").arg(&tools))?;
            }
            Command::new(program)
        }
    };
    process::run(command.current_dir(crate::root()).args(["check", "bans", "licenses", "sources"]))
}

/// `cargo test`, its counts added to ours.
fn unit_tests(all: bool, tally: &mut Tally) -> Result<()> {
    let mut command = process::cargo();
    command.args(["test", "--workspace", "--no-fail-fast"]);
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        // Most of the longest ones wait for a server of their own.
        command.env("RUST_TEST_THREADS", "8");
    }
    if all {
        command.env("SLUICE_TEST_ALL", "1");
    } else {
        tally.skip("the server's tests on PostgreSQL without a follower", "only with --all");
    }
    eprintln!("$ {}", process::show(&command));
    let output = command.stderr(Stdio::inherit()).output().context("cargo test")?;
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    let (passed, failed) = counts(&text);
    tally.passed += passed;
    tally.spent("cargo test");
    if !output.status.success() && failed.is_empty() {
        tally.failed.push("cargo test (see above)".into());
    }
    tally.failed.extend(failed);
    Ok(())
}

/// How many tests passed and which failed, from the text of Rust's test harness, and of those test
/// programs of ours that print as it does and add the time.
fn counts(text: &str) -> (u32, Vec<String>) {
    let of = |line: &str, what: &str| -> u32 {
        let before = line.split(what).next().unwrap_or("");
        before.split_whitespace().last().and_then(|count| count.parse().ok()).unwrap_or(0)
    };
    let passed =
        text.lines().filter(|line| line.starts_with("test result:")).map(|line| of(line, " passed")).sum();
    let failed =
        text.lines().filter_map(|line| Some(line.strip_prefix("test ")?.split_once(" ... FAILED")?.0));
    (passed, failed.map(String::from).collect())
}

#[cfg(test)]
mod tests {
    #[test]
    fn counts_are_read_from_the_harness() {
        let text = "test a ... ok\ntest b::c ... FAILED\ntest d ... FAILED (3.5ms)\ntest result: FAILED. 1 passed; 1 failed; 0 ignored\n\
                    test result: ok. 12 passed; 0 failed; 0 ignored\n";
        assert_eq!(super::counts(text), (13, vec!["b::c".to_string(), "d".to_string()]));
    }
}
