//! The web view in a browser: a real server, two nodes with software GPUs, and Chromium, driven by
//! `tests/web`.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::e2e::{Test, finish, tail};
use crate::node::sluice;
use crate::process;
use crate::test::Skipped;

pub(crate) const TESTS: &[Test] = &[("web: the web view in a browser", in_a_browser)];

/// Catches a hang.
const LIMIT: Duration = Duration::from_secs(1500);
/// The scripts, besides the list of their packages.
const SCRIPTS: [&str; 8] = [
    "web.mjs",
    "pages.mjs",
    "programs.mjs",
    "administration.mjs",
    "installation.mjs",
    "large.mjs",
    "provider.mjs",
    "history.py",
];
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

/// The path of the browser, if one is installed.
pub(crate) fn chromium() -> Option<String> {
    let name = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| runs(name))?;
    Some(process::output_of(Command::new("which").arg(name)).ok()?.trim().to_owned())
}

fn runs(program: &str) -> bool {
    let mut command = Command::new(program);
    let status = command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
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

/// The scripts with their packages, installed once.
pub(crate) fn scripts() -> Result<PathBuf> {
    let (source, folder) = (crate::root().join("tests/web"), crate::target_folder().join("web-test"));
    std::fs::create_dir_all(&folder)?;
    // Another test may install them at this moment.
    let lock = std::fs::File::create(folder.join("lock"))?;
    lock.lock()?;
    for name in SCRIPTS {
        std::fs::copy(source.join(name), folder.join(name))?;
    }
    let wanted = std::fs::read_to_string(source.join("package.json"))?;
    let stamp = folder.join("package.json");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(folder);
    }
    let mut install = Command::new("npm");
    install.args(["install", "--no-audit", "--no-fund", "--no-save", "--prefix"]).arg(&folder);
    let packages = serde_json::from_str::<Value>(&wanted)?;
    for (name, version) in packages["dependencies"].as_object().context("packages")? {
        install.arg(format!("{name}@{}", version.as_str().context("a version")?));
    }
    process::run(&mut install)?;
    std::fs::write(stamp, wanted)?;
    Ok(folder)
}
