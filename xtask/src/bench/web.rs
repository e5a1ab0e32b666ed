//! What the web view of a large fleet costs: the browser, and the server with many open pages.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use flate2::Compression;
use flate2::write::GzEncoder;
use harness::browser;
use serde_json::Value;

use super::machine;
use crate::process;

pub(super) const NAME: &str = "web";

const NODES: u32 = 1250;
const GPUS_OF_NODE: u32 = 8;
const LEASES: u32 = 50_000;

/// Measures, and returns the table.
pub(super) fn run() -> Result<String> {
    if std::env::var_os("XTASK_BUILT").is_none() {
        let mut build = process::cargo();
        build.args(["build", "--release", "-p", "sluice-server", "--bins", "--example", "load"]);
        process::run(&mut build)?;
    }
    let chromium = browser::chromium().context("no Chromium is installed")?;
    let scripts = browser::scripts()?;
    let fleet = Fleet::start()?;
    let mut command = Command::new("node");
    command.arg("large.mjs").current_dir(scripts).env("FLEET", &fleet.line).env("CHROMIUM", chromium);
    command.env("SCREENSHOTS", crate::root().join("docs/screenshots"));
    let said = process::output_of(&mut command)?;
    let figures: Value = serde_json::from_str(said.lines().last().context("no figures")?)?;
    table(&figures)
}

/// A server with nodes and leases; dropping it ends it.
struct Fleet {
    child: Child,
    /// Where it is, in JSON.
    line: String,
}

impl Fleet {
    fn start() -> Result<Fleet> {
        let mut command = Command::new(crate::target_folder().join("release/examples/load"));
        command.args([
            "--fleet",
            "--sqlite",
            "--nodes",
            &NODES.to_string(),
            "--gpus",
            &GPUS_OF_NODE.to_string(),
        ]);
        command.args(["--requests", &LEASES.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("examples/load")?;
        let mut line = String::new();
        let read = BufReader::new(child.stdout.take().context("piped")?).read_line(&mut line);
        let fleet = Fleet { child, line };
        ensure!(read? > 0, "the fleet did not start");
        fleet.use_for_weeks()?;
        Ok(fleet)
    }
}

impl Fleet {
    /// Gives each tenant a record for each hour of the last weeks, so that bills have something to
    /// add up.
    fn use_for_weeks(&self) -> Result<()> {
        let place: Value = serde_json::from_str(&self.line)?;
        let database = place["database"].as_str().context("the fleet names its database")?;
        let mut command = Command::new("python3");
        command.arg(crate::root().join("tests/web/history.py")).arg(database);
        process::output_of(command.arg(place["tenants"].to_string()))?;
        Ok(())
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn table(figures: &Value) -> Result<String> {
    let spread = |name: &str, unit: &str| {
        let [median, least, most] = [0, 1, 2].map(|index| figures[name][index].as_u64().unwrap_or(0));
        format!("{median} {unit} [{least}, {most}]")
    };
    let of = |list: &str, name: &str| figures[list][name].as_u64().unwrap_or(0);
    let number = |name: &str| figures[name].as_f64().unwrap_or(f64::NAN);
    let mut text = format!(
        "{} GPUs on {NODES} scripted nodes, {LEASES} running leases of 50 tenants, in SQLite;\n\
         Chromium without a window. Measured by `cargo xtask bench {NAME}` on {}.\n\n| what | figure | goal |\n|---|---|---|\n",
        NODES * GPUS_OF_NODE,
        machine()
    );
    let mut row = |what: &str, figure: String, goal: &str| {
        text += &format!("| {what} | {figure} | {goal} |\n");
    };
    row("JavaScript, gzip", format!("{} kB", javascript_bytes()? / 1000), "250 kB");
    for (page, title) in [("overview", "overview"), ("gpus", "all GPUs"), ("leases", "leases")] {
        row(&format!("{title}: first paint"), spread(&format!("{page}_first_paint_ms"), "ms"), "2 s");
        row(&format!("{title}: figures are there"), spread(&format!("{page}_content_ms"), "ms"), "-");
        row(&format!("{title}: heap"), spread(&format!("{page}_heap_mb"), "MB"), "200 MB");
    }
    for (list, title) in [("scroll_gpus", "list of GPUs"), ("scroll_leases", "list of leases")] {
        row(
            &format!("{title}, scrolled to its end: rows in the document"),
            of(list, "rows").to_string(),
            "-",
        );
        row(
            &format!("{title}: longest task of the page"),
            format!("{} ms", of(list, "longest_task_ms")),
            "-",
        );
        row(&format!("{title}: heap then"), format!("{} MB", of(list, "heap_mb")), "200 MB");
    }
    let bytes = figures["metrics_bytes"].as_u64().unwrap_or(0);
    row(&format!("`/metrics` of the server, {} kB", bytes / 1000), spread("metrics_ms", "ms"), "1 s");
    row(
        &format!(
            "{} open overviews, {}/s requests: server",
            number("open_pages"),
            number("open_pages_requests_per_s")
        ),
        format!(
            "{} % of a core beyond {} %",
            round(number("server_percent_with") - number("server_percent_without")),
            number("server_percent_without")
        ),
        "10 %",
    );
    Ok(text)
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// The size of all scripts of the page as they are sent.
fn javascript_bytes() -> Result<usize> {
    let mut sum = 0;
    for entry in std::fs::read_dir(crate::root().join("web/dist/assets"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "js") {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            encoder.write_all(&std::fs::read(path)?)?;
            sum += encoder.finish()?.len();
        }
    }
    Ok(sum)
}
