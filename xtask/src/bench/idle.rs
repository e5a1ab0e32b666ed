//! What a session costs that has done something and does nothing now: CPU time, and how often a
//! thread is woken.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::node::{self, Node};
use crate::process;

use super::{folder, machine, source};

pub(super) const NAME: &str = "idle";

/// How long nothing is asked for.
const IDLE: Duration = Duration::from_secs(10);
/// Until what continues after the last answer is over, such as a turn that is given back.
const SETTLES: Duration = Duration::from_secs(3);

/// Measures, and returns the table.
pub(super) fn run() -> Result<String> {
    let socket = format!("unix:{}", folder().join("idle.sock").display());
    let mut text = String::from("| process | CPU of 10 s | woken |\n|---|---|---|\n");
    for (link, listen) in [("TCP", "127.0.0.1:0"), ("same host", &socket)] {
        let node = Node::start(&["--listen", listen, "--gpus", "software:1,1GiB"])?;
        for (process, Spent { cpu_ns, wakes }) in measure(&node)? {
            let (cpu_ms, wakes) = (cpu_ns as f64 / 1e6, wakes as f64 / IDLE.as_secs_f64());
            text += &format!("| {link}: {process} | {cpu_ms:.2} ms | {wakes:.1}/s |\n");
        }
    }
    Ok(format!(
        "CPU time of all threads (`/proc/PID/task/*/schedstat`) and how often they were woken (`voluntary_ctxt_switches`), of a session that has \
         copied and launched, from 3 s to 13 s after that. Measured by `cargo xtask bench {NAME}` on {}.\n\n{text}",
        machine()
    ))
}

#[derive(Clone, Copy, Default)]
struct Spent {
    cpu_ns: u64,
    wakes: u64,
}

fn measure(node: &Node) -> Result<Vec<(&'static str, Spent)>> {
    let mut command = Command::new(node::sluice());
    command.args(["run", "-q", "--node", &node.address, "--", "python3"]).arg(source("idle.py"));
    let mut run = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(run.stdout.take().context("piped above")?).read_line(&mut line)?;
    ensure!(line.trim() == "ready", "the program said {line:?}");
    let client = *process::children(run.id()).first().context("`sluice run` has no program")?;
    let worker = *node.workers().first().context("the node has no worker")?;
    let processes =
        [("worker", worker), ("program", client), ("node", node.pid()), ("`sluice run`", run.id())];
    std::thread::sleep(SETTLES);
    let before = spent_by(&processes)?;
    std::thread::sleep(IDLE);
    let after = spent_by(&processes)?;
    // The program ends with its input.
    drop(run.stdin.take());
    ensure!(run.wait()?.success(), "the program failed");
    let between = |(before, after): (Spent, Spent)| Spent {
        cpu_ns: after.cpu_ns - before.cpu_ns,
        wakes: after.wakes - before.wakes,
    };
    let each = before.into_iter().zip(after).map(between);
    Ok(processes.iter().map(|(name, _)| *name).zip(each).collect())
}

fn spent_by(processes: &[(&str, u32)]) -> Result<Vec<Spent>> {
    processes.iter().map(|(_, pid)| spent(*pid)).collect()
}

/// By all threads of a process so far; none of these ends or begins in an idle session.
fn spent(pid: u32) -> Result<Spent> {
    let mut all = Spent::default();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?.path();
        let (schedstat, status) =
            (std::fs::read_to_string(task.join("schedstat"))?, std::fs::read_to_string(task.join("status"))?);
        let switches = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        all.cpu_ns += schedstat.split_whitespace().next().context("schedstat is empty")?.parse::<u64>()?;
        all.wakes += switches.context("status has no voluntary_ctxt_switches")?.trim().parse::<u64>()?;
    }
    Ok(all)
}
