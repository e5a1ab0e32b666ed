//! Programs whose memory leaves their GPU while they run.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::software_gpu;
use serde_json::Value;

use super::teams::Process;
use super::{Test, bare_program, expect_failure, expect_pass, program_file, sluice_run};
use crate::node::{self, Node};
use crate::process;

pub(crate) const LONG_TESTS: &[Test] = &[
    ("suspended programs leave their GPU", || programs_leave("software:1,1GiB")),
    ("suspended programs leave a loaded driver's GPU", || programs_leave(&software_gpu::by_path())),
    ("programs whose memory moves at random moments", churn),
];

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(300);
/// What each of the two programs has of a GPU of 1 GiB.
const HELD: u64 = 600 * MIB;

/// Programs that use memory in different ways, and need nothing but the driver. Where a stream
/// waits for a value, as in `held_copies.py`, each attempt to move waits 10 s for it.
const CHURNED: [&str; 10] = [
    "driver_functions.py",
    "graphs.py",
    "stream_order.py",
    "arrays.py",
    "conditionals.py",
    "freed_copies.py",
    "green_contexts.py",
    "sharing.py",
    "sparse_arrays.py",
    "refused.py",
];
const SEEDS: std::ops::Range<u64> = 1..4;

/// Two programs that do not fit on a GPU together take turns there: one is suspended meanwhile, and
/// finds its memory as it was.
fn programs_leave(gpus: &str) -> Result<()> {
    let mut command = Command::new(node::sluice());
    command.args(["node", "--listen", "127.0.0.1:0", "--gpus", gpus]).env("SLUICE_SOFTGPU", "1,1GiB");
    let node = Node::start_command(&mut command)?;
    let mut one = start(&node, "one", 1)?;
    let sessions = sessions_of(&node)?;
    let (lease, session) = (sessions[0]["lease"].to_string(), &sessions[0]);
    ensure!(session["memory_swapped"] == 0 && number(session, "memory_resident") >= HELD, "{session}");
    let on_gpu = number(session, "memory_resident");
    ensure!(number(session, "memory_pinned") < 64 * MIB, "{session}");
    let mut other = sluice_run(&node, &["-p", "0.5", "--memory", "700MiB"]);
    expect_failure(other.args(["true"]), "no room for both", 125, &["of memory free"])?;

    text(&node, &["suspend", &lease])?;
    let session = &sessions_of(&node)?[0];
    ensure!(session["suspended"] == true && number(session, "memory_swapped") >= HELD, "{session}");
    ensure!(number(session, "memory_resident") + number(session, "memory_swapped") == on_gpu, "{session}");
    let gpus: Value = serde_json::from_str(&node.query("gpus")?)?;
    ensure!(number(&gpus[0], "memory_used") < 64 * MIB, "its memory is still there: {gpus}");
    // Its calls wait.
    one.tell("compute")?;
    let mut two = start(&node, "two", 2)?;
    let mut resume = control(&node, &["resume", &lease]);
    expect_failure(&mut resume, "no room to come back", 1, &["of the memory of GPU 0 are free now"])?;
    for line in ["compute", "check"] {
        two.tell(line)?;
        two.line()?;
    }
    two.end_its_input()?;
    text(&node, &["resume", &lease])?;
    one.expect_line("computed")?;
    one.tell("check")?;
    one.expect_line("right")?;
    let session = &sessions_of(&node)?[0];
    ensure!(session["suspended"] == false && number(session, "memory_resident") == on_gpu, "{session}");
    one.end_its_input()?;
    node.wait_until_free()
}

fn churn() -> Result<()> {
    SEEDS.into_iter().try_for_each(|seed| churned(seed, &CHURNED))
}

/// Runs programs, one after the other, on a node that moves their memory, and sees that it has.
fn churned(seed: u64, programs: &[&str]) -> Result<()> {
    let seed = seed.to_string();
    let node = Node::start(&["--listen", "127.0.0.1:0", "--gpus", super::NODE_GPUS, "--churn", &seed])?;
    let options = ["-p", "0.5", "--memory", "2GiB"];
    for program in programs {
        let name = format!("{program} with churn {seed}");
        expect_pass(&mut bare_program(&node, &options, program), &name, LIMIT)
            .with_context(|| name.clone())?;
    }
    let mut checked = start(&node, "churned", 3)?;
    let mut moves = 0;
    // Each round makes some moves likelier; the count says when there were enough.
    while moves < 10 {
        for (line, expect) in [("compute", "computed"), ("check", "right")] {
            checked.tell(line)?;
            checked.expect_line(expect)?;
        }
        moves = number(&sessions_of(&node)?[0], "memory_moves");
    }
    checked.end_its_input()?;
    node.wait_until_free()
}

fn start(node: &Node, name: &str, seed: u64) -> Result<Process> {
    let mut command = sluice_run(node, &["-p", "0.5", "--memory", "700MiB"]);
    command.arg("python3").arg(program_file("moved.py")).args([HELD.to_string(), seed.to_string()]);
    let mut program = Process::start(name, &mut command)?;
    program.expect_line("ready")?;
    Ok(program)
}

fn control(node: &Node, words: &[&str]) -> Command {
    let mut command = Command::new(node::sluice());
    command.args(words).args(["--node", &node.address]);
    command
}

pub(super) fn text(node: &Node, words: &[&str]) -> Result<String> {
    process::output_of(&mut control(node, words))
}

pub(super) fn sessions_of(node: &Node) -> Result<Value> {
    Ok(serde_json::from_str(&node.query("sessions")?)?)
}

pub(super) fn number(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or_default()
}
