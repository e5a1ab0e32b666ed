//! What users of other ways to share GPUs complain of: limits that a program can put off, and
//! programs that hold up others when they start.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::teams::Process;
use super::{Test, bare_program, expect_failure, expect_pass, program_file, sluice_run};
use crate::node::Node;
use crate::process;

pub(crate) const TESTS: &[Test] = &[
    ("a program that unsets its variables has no GPU", variables_unset),
    ("programs that stand still hold up no start", starts_beside_stopped_programs),
];

const LIMIT: Duration = Duration::from_secs(120);
const STOPPED: usize = 4;
const STARTED: usize = 8;

fn one_gpu() -> Result<Node> {
    Node::start(&["--listen", "127.0.0.1:0", "--gpus", "software:1,1GiB"])
}

/// The whole GPU is not what is left when the limits are taken off (HAMi #1607: unset the variable,
/// have the card).
fn variables_unset() -> Result<()> {
    let node = one_gpu()?;
    let lease = ["-q", "-p", "0.25", "--memory", "64MiB"];
    let program = program_file("driver.py");
    let folder = program.parent().context("a folder")?;
    let attach = "import sys; sys.path.insert(0, sys.argv[1]); import driver; driver.attach()";
    let unset =
        "for name in $(env | grep -o '^SLUICE_[A-Z_]*'); do unset $name; done; exec python3 -c \"$0\" \"$1\"";
    let mut command = sluice_run(&node, &lease);
    command.args(["sh", "-c", unset, attach]).arg(folder);
    expect_failure(&mut command, "without its variables", 1, &["SLUICE_SESSION is not set"])?;
    let mut command = sluice_run(&node, &lease);
    command.args(["env", "-i", "/usr/bin/env", "python3", "-c", attach]).arg(folder);
    expect_failure(&mut command, "without any variable", 1, &["libcuda.so.1"])?;
    node.wait_until_free()
}

/// Starting is not one after the other under a lock that a program holds (HAMi #1662, HAMi-core
/// #252, #259): these programs are stopped where they would go on, and the others start and end.
fn starts_beside_stopped_programs() -> Result<()> {
    let node = one_gpu()?;
    let stops = "import os, signal, sys; sys.path.insert(0, sys.argv[1]); import driver; driver.attach(); \
                 driver.allocate(1); print('ready', flush=True); os.kill(os.getpid(), signal.SIGSTOP)";
    let program = program_file("driver.py");
    let folder = program.parent().context("a folder")?;
    let mut stopped = Vec::new();
    for number in 0..STOPPED {
        let mut command = sluice_run(&node, &["-q", "-p", "0.1", "--memory", "64MiB"]);
        command.args(["python3", "-c", stops]).arg(folder);
        let mut process = Process::start(&format!("stopped {number}"), &mut command)?;
        process.expect_line("ready")?;
        stopped.push(process);
    }
    for number in 0..STARTED {
        let mut command = bare_program(&node, &["-q", "-p", "0.1", "--memory", "64MiB"], "compute.py");
        expect_pass(command.env("SECONDS", "0.1"), &format!("start {number}"), LIMIT)?;
    }
    let sessions: Value = serde_json::from_str(&node.query("sessions")?)?;
    let sessions = sessions.as_array().context("sessions")?;
    ensure!(sessions.len() == STOPPED, "{sessions:?}");
    for (process, session) in stopped.iter_mut().zip(sessions) {
        let mut kill = Command::new("kill");
        process::run(kill.args(["-KILL", &session["process"].to_string()]))?;
        ensure!(!process.end()?.success(), "a killed program succeeded");
    }
    node.wait_until_free()
}
