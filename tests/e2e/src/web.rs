//! The web view in a browser: a real server, two nodes with software GPUs, and Chromium, driven by
//! `tests/web`.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use harness::browser::{chromium, runs, scripts};

use crate::Skipped;
use crate::node::sluice;
use crate::{Test, finish, tail};

pub(crate) const TESTS: &[Test] = &[("web: the web view in a browser", in_a_browser)];

/// Catches a hang.
const LIMIT: Duration = Duration::from_secs(1500);
/// The scripts print it before the reasons why they have failed.
const FAILURES: &str = "\nFAILURES\n";
/// The most lines of such reasons that are shown; the log of the test has all of them.
const SHOWN_MAX: usize = 120;

/// Skipped, visibly, where there is no browser or no Node.js. With `SCREENSHOTS` in the environment
/// it writes those of the documents.
fn in_a_browser() -> Result<()> {
    let Some(chromium) = chromium() else { bail!(Skipped("no Chromium is installed".into())) };
    ensure!(runs("node"), Skipped("no Node.js is installed".into()));
    check(&chromium)
}

fn check(chromium: &str) -> Result<()> {
    let scripts = scripts()?;
    let folder = tempfile::tempdir()?;
    let mut command = Command::new("node");
    command.arg("web.mjs").current_dir(&scripts).env("SLUICE", sluice()).env("CHROMIUM", chromium);
    command.env("FOLDER", folder.path()).env("PROGRAMS", crate::root().join("tests/programs"));
    command.env("REFERENCE", crate::root().join("docs/reference/cli.md"));
    let nvml = crate::target_folder().join("release/libfake_nvml.so");
    ensure!(nvml.is_file(), "{} is not built", nvml.display());
    command.env("NVML", nvml);
    if std::env::var_os("SCREENSHOTS").is_some() {
        command.env("SCREENSHOTS", crate::root().join("docs/screenshots"));
    }
    let ended = finish(&mut command, "web", LIMIT)?;
    ensure!(ended.code == Some(0), "{:?}: {}", ended.code, reasons(&ended.output));
    Ok(())
}

/// What the scripts say about the steps that have failed, or the end of what they have printed.
fn reasons(output: &str) -> String {
    let Some((_, reasons)) = output.split_once(FAILURES) else { return tail(output) };
    reasons.lines().take(SHOWN_MAX).collect::<Vec<_>>().join("\n    ")
}
