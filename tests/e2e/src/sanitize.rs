//! `sluice run --sanitize`: what it reports of programs that succeed with wrong kernels.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::node;
use crate::{Test, expect_failure, expect_pass, logs, program_file, tail};

pub(crate) const TESTS: &[Test] = &[
    ("sanitize: a correct program", clean),
    ("sanitize: findings", findings),
    ("sanitize: suppressions and leaks", options),
    ("sanitize: another GPU", elsewhere),
    ("sanitize: programs without a fault", without_a_fault),
];

/// Programs whose kernels are right, between them with conditional nodes, captures, arrays, green
/// contexts, prints and pauses.
const RIGHT: [&str; 10] = [
    "arrays.py",
    "block_order.py",
    "compute.py",
    "conditionals.py",
    "graphs.py",
    "green_contexts.py",
    "images.py",
    "packs.py",
    "sparse_arrays.py",
    "stream_order.py",
];

const LIMIT: Duration = Duration::from_secs(60);

fn clean() -> Result<()> {
    let ended = expect_pass(program(&["--sanitize"]).arg("nothing"), "sanitize clean", LIMIT)?;
    ensure!(ended.output.contains("no errors found"), "{}", tail(&ended.output));
    let plain = expect_pass(program(&[]).arg("bounds"), "sanitize off", LIMIT)?;
    ensure!(!plain.output.contains("sanitizer"), "{}", tail(&plain.output));
    Ok(())
}

fn findings() -> Result<()> {
    let report = file("findings.json")?;
    let options = ["--sanitize", "--sanitize-report", &report.display().to_string()];
    let parts = [
        "PASS",
        "out-of-bounds: read of 4 bytes in global memory",
        "scale(float*, int)",
        "scale.cu:11 (PTX line 20)",
        "(64, 0, 0) of block (0, 0, 0)",
        "0 bytes after 256 bytes of device memory",
    ];
    expect_failure(program(&options).arg("bounds"), "sanitize bounds", 122, &parts)?;
    let json: Value = serde_json::from_str(&std::fs::read_to_string(&report)?)?;
    ensure!(json["failed"] == true, "{json}");
    let findings = json["findings"].as_array().context("a list")?;
    let lines = findings.iter().map(|finding| finding["source"]["line"].as_u64());
    ensure!(lines.eq([Some(11), Some(12)]), "a read and a write: {json}");
    ensure!(findings[1]["thread"][0] == 64 && findings[1]["kernel_name"] == "scale(float*, int)", "{json}");

    let read = ["uninitialized-read: read of 4 bytes in global memory, 64 times"];
    expect_failure(program(&["--sanitize"]).arg("uninitialized"), "sanitize fresh", 122, &read)?;
    let race = ["race: read of 4 bytes in shared memory", "against", "write by thread"];
    expect_failure(program(&["--sanitize"]).arg("race"), "sanitize race", 122, &race)?;
    let others = ["--sanitize=memcheck,synccheck"];
    expect_pass(program(&others).arg("race"), "sanitize without racecheck", LIMIT)?;
    Ok(())
}

fn options() -> Result<()> {
    let known = file("suppressions")?;
    std::fs::write(&known, "# The guard is off by one.\nout-of-bounds scale(*  @ scale.cu:*\n")?;
    let suppressed = ["--sanitize", "--suppressions", &known.display().to_string()];
    let ended = expect_pass(program(&suppressed).arg("bounds"), "sanitize suppressed", LIMIT)?;
    ensure!(ended.output.contains("no errors found, 2 suppressed"), "{}", tail(&ended.output));

    let leak = ["leak", "256 bytes, allocation"];
    expect_failure(program(&["--sanitize=leakcheck"]).arg("leak"), "sanitize leak", 122, &leak)?;
    expect_pass(program(&["--sanitize=leakcheck"]).arg("nothing"), "sanitize no leak", LIMIT)?;
    Ok(())
}

fn without_a_fault() -> Result<()> {
    for name in RIGHT {
        let mut command = Command::new(node::sluice());
        command.args(["run", "--gpus", "software:1,2GiB", "--sanitize", "--", "python3"]);
        let ended = expect_pass(command.arg(program_file(name)), &format!("sanitize {name}"), LIMIT)?;
        ensure!(ended.output.contains("no errors found"), "{name}: {}", tail(&ended.output));
    }
    Ok(())
}

fn elsewhere() -> Result<()> {
    let unknown = ["--sanitize=races"];
    expect_failure(program(&unknown).arg("nothing"), "sanitize unknown", 2, &["no tool of the sanitizer"])?;
    let mut recording = Command::new(node::sluice());
    recording.args(["run", "--sanitize", "--gpus", "recording", "--", "true"]);
    expect_failure(&mut recording, "sanitize recording", 125, &["cannot be watched", "--gpus software"])
}

/// `sluice run --gpus software OPTIONS -- python3 sanitized.py`, to be completed by what is wrong.
fn program(options: &[&str]) -> Command {
    let mut command = Command::new(node::sluice());
    command.args(["run", "--gpus", "software"]).args(options);
    command.args(["--", "python3"]).arg(program_file("sanitized.py"));
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

fn file(name: &str) -> Result<PathBuf> {
    std::fs::create_dir_all(logs())?;
    Ok(logs().join(format!("sanitize-{name}")))
}
