//! Two programs on one software GPU finish work in proportion to their shares.
//!
//! Each program is measured alone first. What each finished beside the other, divided by its rate
//! alone, is the part of the GPU that it got.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use harness::load::Load;
use serde_json::Value;

use crate::Skipped;
use crate::node::Node;
use crate::{Test, bare_program};

pub(crate) const TESTS: &[Test] = &[
    ("shares 75/25", || pair(("0.75", "even"), ("0.25", "even"))),
    ("shares 75/25, on a driver that cannot be stopped", || {
        let node = loaded_gpu()?;
        attempts(|| pair_once(&node, ("0.75", "deep", &[]), ("0.25", "deep", &[]), 75.0))
    }),
    ("shares 90/10", || pair(("0.9", "even"), ("0.1", "even"))),
    ("shares 75/25, long against tiny", || pair(("0.75", "long"), ("0.25", "tiny"))),
    ("shares 25/75, long against tiny", || pair(("0.25", "long"), ("0.75", "tiny"))),
    ("shares 90/10, tiny against long", || pair(("0.9", "tiny"), ("0.1", "long"))),
    ("hard cap", || attempts(hard_cap)),
    ("hard cap beside another", || {
        let node = one_gpu()?;
        attempts(|| pair_once(&node, ("0.25", "even", &["--cap", "hard"]), ("0.25", "even", &[]), 25.0))
    }),
];

const SECONDS: f64 = 7.0;
/// The programs continue for this long after the time that counts.
const TAIL_SECONDS: f64 = 3.0;
const ALONE_SECONDS: f64 = 2.0;
/// Points of 100. A scheduler without shares is off by 25 to 40, one that starves a session by 75.
const ERROR_MAX: f64 = 5.0;
/// Points by which a program alone on the GPU may pass its hard cap.
const CAP_EXCESS_MAX: f64 = 2.0;
/// Points that it may stay below its cap: the start and end of each time slice are charged to the
/// cap, and are not busy time of the GPU. They take longer where threads are woken late.
const CAP_LOSS_MAX: f64 = 5.0;
/// Per cent of the uncapped work that a program capped to 25 % of the time does at least. Each time
/// slice begins with cold caches and sleeping threads, which costs more of a short slice the busier
/// the machine's other guests are.
const CAPPED_WORK_MIN: f64 = 15.0;
const CAPPED_SECONDS: f64 = 6.0;
/// Attempts, since a burst of other work on the machine can spoil one.
const ATTEMPTS: u32 = 3;
/// An attempt during which others take more of the machine's processors than this says nothing
/// about shares: who computes on processors is then the system's decision.
const OTHERS_MAX: f64 = 0.1;

/// A program that computes without pause: its share, its kind, further options of its lease.
type Competitor<'a> = (&'a str, &'a str, &'a [&'a str]);

fn pair(left: (&str, &str), right: (&str, &str)) -> Result<()> {
    pair_on(&one_gpu()?, left, right)
}

/// On the one GPU of a node.
pub(super) fn pair_on(node: &Node, left: (&str, &str), right: (&str, &str)) -> Result<()> {
    let expected = 100.0 * left.0.parse::<f64>()?;
    attempts(|| pair_once(node, (left.0, left.1, &[]), (right.0, right.1, &[]), expected))
}

/// The first success; otherwise the last failure of a machine that was ours, or why there was none.
fn attempts(once: impl Fn() -> Result<()>) -> Result<()> {
    let mut failure = None;
    let mut others = Vec::new();
    for _ in 0..ATTEMPTS {
        let before = Load::now()?;
        let Err(error) = once() else { return Ok(()) };
        others.push(100.0 * before.others_since()?);
        eprintln!("   {error:#}; others took {:.0} % of the machine", others[others.len() - 1]);
        if others[others.len() - 1] <= 100.0 * OTHERS_MAX {
            failure = Some(error);
        }
    }
    let busy = || Skipped(format!("the machine was busy: others took {others:.0?} % of its processors"));
    Err(failure.unwrap_or_else(|| busy().into()))
}

/// The left one gets `expected` per cent of what both get.
fn pair_once(node: &Node, left: Competitor<'_>, right: Competitor<'_>, expected: f64) -> Result<()> {
    let alone = rates_alone(node, [left.1, right.1])?;
    let start = |(share, kind, more): Competitor<'_>| {
        let options = [&["-q", "-p", share, "--memory", "64MiB"], more].concat();
        Program::start(node, &options, kind, SECONDS, TAIL_SECONDS)
    };
    let mut programs = [start(left)?, start(right)?];
    // Both are ready: however long that took, they begin together.
    let begin = now() + 0.5;
    for program in &mut programs {
        program.begin(begin)?;
    }
    let mut parts = [0.0; 2];
    for ((program, part), alone) in programs.into_iter().zip(&mut parts).zip(alone) {
        *part = program.finished()? / SECONDS / alone;
    }
    let got = 100.0 * parts[0] / (parts[0] + parts[1]);
    eprintln!("   {got:.1} : {:.1}, both together {:.2} of the GPU", 100.0 - got, parts[0] + parts[1]);
    ensure!((got - expected).abs() <= ERROR_MAX, "got {got:.1} %, expected {expected} %");
    node.wait_until_free()
}

/// A capped session gets its share and no more, though nobody else computes: of the GPU's time as
/// the node measures it, and of the work that it finishes without a cap.
fn hard_cap() -> Result<()> {
    let node = one_gpu()?;
    let (free, capped) = (&["-q", "-p", "0.25"][..], &["-q", "-p", "0.25", "--cap", "hard"][..]);
    // The machine may change its pace between two runs: compare with those right before and after.
    let before = rate(&node, free, "even")?;
    let (capped, time) = rate_and_time(&node, capped)?;
    let after = rate(&node, free, "even")?;
    let work = 100.0 * capped / (0.5 * (before + after));
    eprintln!("   {time:.1} % of the GPU's time, {work:.1} % of the work without a cap");
    ensure!(
        (25.0 - CAP_LOSS_MAX..=25.0 + CAP_EXCESS_MAX).contains(&time),
        "got {time:.1} % of the GPU's time under a hard cap of 25 %"
    );
    ensure!(work <= 25.0 + CAP_EXCESS_MAX, "did {work:.1} % of the work under a hard cap of 25 %");
    ensure!(work >= CAPPED_WORK_MIN, "did only {work:.1} % of the work under a hard cap of 25 %");
    node.wait_until_free()
}

/// Units of work per second of a program alone on the GPU, and the percentage of the GPU's time
/// that it got, by the node's measurement.
fn rate_and_time(node: &Node, options: &[&str]) -> Result<(f64, f64)> {
    let mut program = Program::start(node, options, "even", CAPPED_SECONDS, 0.0)?;
    let idle = gpu_time(node)?;
    program.begin(0.0)?;
    let mut first = gpu_time(node)?;
    while first.1 == idle.1 {
        first = gpu_time(node)?;
    }
    std::thread::sleep(Duration::from_secs_f64(CAPPED_SECONDS - 1.0));
    let last = gpu_time(node)?;
    let units = program.finished()?;
    Ok((units / CAPPED_SECONDS, 100.0 * (last.1 - first.1) / (last.0 - first.0)))
}

/// The age of the only session and the GPU time that it has used, in seconds.
fn gpu_time(node: &Node) -> Result<(f64, f64)> {
    let sessions: Value = serde_json::from_str(&node.query("sessions")?)?;
    let session = sessions.get(0).context("no session")?;
    let number = |name: &str| session[name].as_f64().with_context(|| format!("no {name} in {session}"));
    Ok((number("age_ms")? / 1e3, number("busy_us")? / 1e6))
}

fn one_gpu() -> Result<Node> {
    Node::start(&["--listen", "127.0.0.1:0", "--gpus", "software:1,1GiB"])
}

/// What holds for NVIDIA's driver: what it was given runs to its end.
fn loaded_gpu() -> Result<Node> {
    Node::start(&["--listen", "127.0.0.1:0", "--gpus", &harness::software_gpu::by_path()])
}

/// The rates of two programs that have the GPU to themselves: the best of three each, since other
/// work on the machine only slows them, and by turns, since it comes and goes.
fn rates_alone(node: &Node, kinds: [&str; 2]) -> Result<[f64; 2]> {
    // The same program has the same rate.
    let different = if kinds[0] == kinds[1] { 1 } else { 2 };
    let mut best = [0.0f64; 2];
    for _ in 0..3 {
        for (best, kind) in best.iter_mut().zip(kinds).take(different) {
            *best = best.max(rate(node, &["-q"], kind)?);
        }
    }
    Ok(if different == 1 { [best[0]; 2] } else { best })
}

/// Units of work per second.
fn rate(node: &Node, options: &[&str], kind: &str) -> Result<f64> {
    let mut program = Program::start(node, options, kind, ALONE_SECONDS, 0.0)?;
    program.begin(0.0)?;
    Ok(program.finished()? / ALONE_SECONDS)
}

/// A running `compute.py`.
struct Program {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Starts it and waits until it is ready to compute.
    fn start(node: &Node, options: &[&str], kind: &str, seconds: f64, tail_seconds: f64) -> Result<Program> {
        let mut command = bare_program(node, options, "compute.py");
        command.env("KIND", kind).env("SECONDS", seconds.to_string()).env("TAIL", tail_seconds.to_string());
        command.env("START", "input");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().context("compute.py")?;
        let mut output = BufReader::new(child.stdout.take().context("piped above")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        ensure!(line.trim() == "ready", "the program said {line:?}");
        Ok(Program { child, output })
    }

    /// Lets it compute from this moment on: Unix time, 0 for now.
    fn begin(&mut self, at: f64) -> Result<()> {
        writeln!(self.child.stdin.take().context("piped above")?, "{at}").context("compute.py")
    }

    /// The number of units in its line "finished N units".
    fn finished(mut self) -> Result<f64> {
        let mut text = String::new();
        self.output.read_to_string(&mut text)?;
        ensure!(self.child.wait()?.success() && text.contains("PASS"), "the program failed: {text}");
        let units = text.lines().find_map(|line| line.strip_prefix("finished ")?.split_whitespace().next());
        Ok(units.context("no \"finished\" line")?.parse()?)
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64()
}
