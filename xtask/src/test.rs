//! The README's second command: every test there is, and one line of counts at the end.

use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use harness::Skipped;
use serde_json::Value;

use crate::{book, evidence, process, prose, web};

/// What came out, added up over all steps.
#[derive(Clone, Debug, Default)]
struct Tally {
    passed: u32,
    failed: Vec<String>,
    /// Name and reason.
    skipped: Vec<(String, String)>,
    /// Name and seconds of each step.
    times: Vec<(String, f64)>,
    /// When the step before this one ended.
    last: Option<Instant>,
}

impl Tally {
    /// What came out of the step that began when the one before it was recorded.
    fn record(&mut self, name: &str, outcome: Result<()>) {
        let seconds = self.lap();
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

    /// Counts the time since the last step to `name`, which is none that can fail by itself.
    fn spent(&mut self, name: &str) {
        let seconds = self.lap();
        self.times.push((name.into(), seconds));
    }

    /// Seconds since the last step.
    fn lap(&mut self) -> f64 {
        self.last.replace(Instant::now()).map_or(0.0, |last| last.elapsed().as_secs_f64())
    }

    /// What the end-to-end tests report (`tests/e2e/src/report.rs`).
    fn add(&mut self, report: &Value) -> Result<()> {
        let name = |step: &Value| step["name"].as_str().map(String::from).context("a name");
        let seconds = |step: &Value| step["seconds"].as_f64().context("seconds");
        for step in report["steps"].as_array().context("steps")? {
            self.times.push((name(step)?, seconds(step)?));
        }
        for test in report["tests"].as_array().context("tests")? {
            self.times.push((name(test)?, seconds(test)?));
            match test["outcome"].as_str() {
                Some("passed") => self.passed += 1,
                Some("failed") => self.failed.push(name(test)?),
                Some("skipped") => {
                    self.skipped.push((name(test)?, test["reason"].as_str().context("a reason")?.into()));
                }
                outcome => bail!("{} has the outcome {outcome:?}", name(test)?),
            }
        }
        Ok(())
    }

    /// Where the time went: the steps of more than five seconds, the longest first.
    fn show_slowest(&mut self) {
        self.times.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (name, seconds) in self.times.iter().take_while(|(_, seconds)| *seconds > 5.0) {
            eprintln!("{seconds:6.0} s {name}");
        }
    }

    fn skip(&mut self, name: &str, reason: &str) {
        eprintln!("skipped {name}: {reason}");
        self.skipped.push((name.into(), reason.into()));
    }
}

pub(crate) fn run(options: &[&str]) -> Result<ExitCode> {
    let all = options.contains(&"--all");
    let names: Vec<&str> = options.iter().copied().filter(|option| !option.starts_with("--")).collect();
    if !all {
        // SAFETY: called from `main` before any thread was started.
        unsafe { harness::choose_seeds() };
    }
    let begin = Instant::now();
    let mut tally = Tally { last: Some(begin), ..Tally::default() };
    if names.is_empty() {
        house(&mut tally);
        unit_tests(all, &mut tally)?;
    }
    end_to_end(&names, all, &mut tally)?;
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

/// The end-to-end tests so named, which are a program of their own.
fn end_to_end(names: &[&str], all: bool, tally: &mut Tally) -> Result<()> {
    // With the features that the other tests were built with: only the last of it is new.
    let build = ["test", "--workspace", "--test", "e2e"];
    process::run(process::cargo().args(build).arg("--no-run"))?;
    tally.spent("cargo build of the end-to-end tests");
    let report = crate::target_folder().join("e2e-report.json");
    // That of an earlier run would speak for this one.
    let _ = std::fs::remove_file(&report);
    let mut command = process::cargo();
    command.args(build).args(["--", "--report"]).arg(&report).args(names);
    if all {
        command.arg("--all");
    }
    eprintln!("$ {}", process::show(&command));
    let status = command.status().context("sluice-e2e")?;
    let text = std::fs::read_to_string(&report)
        .with_context(|| format!("the end-to-end tests ended with {status} and without a report"))?;
    tally.lap();
    tally.add(&serde_json::from_str(&text)?).with_context(|| report.display().to_string())
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

    #[test]
    fn the_report_of_end_to_end_tests_is_counted() {
        let report = serde_json::json!({
            "steps": [{ "name": "build", "seconds": 7.5 }],
            "tests": [
                { "name": "a", "outcome": "passed", "reason": null, "seconds": 1.0 },
                { "name": "b", "outcome": "failed", "reason": null, "seconds": 1.0 },
                { "name": "c", "outcome": "skipped", "reason": "no root", "seconds": 0.0 },
            ],
        });
        let mut tally = super::Tally::default();
        tally.add(&report).unwrap();
        assert_eq!((tally.passed, tally.failed.as_slice()), (1, &["b".to_string()][..]));
        assert_eq!(tally.skipped, [("c".to_string(), "no root".to_string())]);
        assert_eq!(tally.times.len(), 4);
        assert!(
            tally
                .add(&serde_json::json!({ "steps": [], "tests": [{ "name": "d", "seconds": 0.0 }] }))
                .is_err()
        );
    }
}
