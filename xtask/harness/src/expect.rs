//! Programs under `sluice run`, and what they are expected to do.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::evidence;
use crate::node::{self, Node};
use crate::process::{self, Ended};

/// The software GPU of all end-to-end tests; two of them, so that a test sees which one it gets.
pub const NODE_GPUS: &str = "software:2,4GiB";

/// What tests need beside what users build.
pub const PARTS: [&str; 6] =
    ["sluice-softgpu-lib", "sluice-kubernetes", "cudarc-program", "exchange", "exchange-driver", "fake-nvml"];

/// Where the output of each program is kept.
pub fn logs() -> PathBuf {
    crate::target_folder().join("e2e-logs")
}

pub fn program_file(name: &str) -> PathBuf {
    crate::root().join("tests/programs").join(name)
}

/// A node on loopback, as most tests need it.
pub fn start_node() -> Result<Node> {
    Node::start(&["--listen", "127.0.0.1:0", "--gpus", NODE_GPUS])
}

/// `sluice run OPTIONS --node NODE --`, to be completed by the program.
pub fn sluice_run(node: &Node, options: &[&str]) -> Command {
    let mut command = Command::new(node::sluice());
    command.arg("run").args(options).args(["--node", &node.address, "--"]);
    command
}

/// `python3 tests/programs/NAME` under `sluice run`: the programs that need nothing but the driver.
pub fn bare_program(node: &Node, options: &[&str], name: &str) -> Command {
    let mut command = sluice_run(node, options);
    command.arg("python3").arg(program_file(name));
    command
}

/// Runs a program whose last word is PASS.
pub fn expect_pass(command: &mut Command, name: &str, limit: Duration) -> Result<Ended> {
    command.env("SLUICE_EVIDENCE", evidence::folder(name)?);
    let outcome = finish(command, name, limit).and_then(|ended| passed(ended, limit));
    if outcome.is_err() {
        evidence::forget(name);
    }
    outcome
}

fn passed(ended: Ended, limit: Duration) -> Result<Ended> {
    match ended.code {
        Some(0) if ended.output.contains("PASS") => Ok(ended),
        Some(code) => bail!("exit code {code}: {}", tail(&ended.output)),
        None => bail!("did not end within {limit:?}: {}", tail(&ended.output)),
    }
}

/// Runs a program to its end, whatever that is.
pub fn finish(command: &mut Command, name: &str, limit: Duration) -> Result<Ended> {
    let log = logs().join(format!("{}.log", name.replace([' ', '/'], "-")));
    process::run_limited(command, limit, &log).with_context(|| process::show(command))
}

/// Runs a command that is to fail with this code and to say all of `parts`.
pub fn expect_failure(command: &mut Command, name: &str, code: i32, parts: &[&str]) -> Result<()> {
    let ended = finish(command, name, Duration::from_secs(30))?;
    match ended.code {
        Some(got) if got == code => {}
        Some(got) => bail!("exit code {got}, expected {code}: {}", tail(&ended.output)),
        None => bail!("hangs: {}", tail(&ended.output)),
    }
    for part in parts {
        ensure!(ended.output.contains(part), "no {part:?} in {:?}", tail(&ended.output));
    }
    Ok(())
}

/// The last lines of an output, for a message.
pub fn tail(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n    ")
}
