//! Two programs on one software GPU finish work in proportion to their shares.
//!
//! Each program is measured alone first. What each finished beside the other, divided by its rate alone, is the
//! part of the GPU that it got.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};

use crate::e2e::{Test, bare_program, expect_clean};
use crate::node::Node;

pub(crate) const TESTS: &[Test] = &[
    ("shares 75/25", || pair(("0.75", "even"), ("0.25", "even"))),
    ("shares 90/10", || pair(("0.9", "even"), ("0.1", "even"))),
    ("shares 75/25, long against tiny", || pair(("0.75", "long"), ("0.25", "tiny"))),
    ("shares 25/75, long against tiny", || pair(("0.25", "long"), ("0.75", "tiny"))),
    ("shares 90/10, tiny against long", || pair(("0.9", "tiny"), ("0.1", "long"))),
    ("hard cap", hard_cap),
];

const SECONDS: f64 = 10.0;
/// The programs go on for this long after the time that counts.
const TAIL_SECONDS: &str = "4";
const ALONE_SECONDS: f64 = 2.0;
/// Points of 100.
const ERROR_MAX: f64 = 5.0;

/// A program that computes without pause, and its share.
type Competitor<'a> = (&'a str, &'a str);

fn pair(left: Competitor<'_>, right: Competitor<'_>) -> Result<()> {
    let node = one_gpu()?;
    let left_alone = rate_alone(&node, left.1)?;
    // The same program has the same rate.
    let right_alone = if left.1 == right.1 { left_alone } else { rate_alone(&node, right.1)? };
    let start_at = now() + 3.0;
    let programs = [left, right].map(|(share, kind)| {
        compute(&node, &["-q", "-p", share, "--memory", "64MiB"], kind, SECONDS, start_at)
    });
    let mut parts = [0.0; 2];
    for ((program, part), alone) in programs.into_iter().zip(&mut parts).zip([left_alone, right_alone]) {
        *part = finished(program?)? / SECONDS / alone;
    }
    let got = 100.0 * parts[0] / (parts[0] + parts[1]);
    let expected: f64 = 100.0 * left.0.parse::<f64>()?;
    eprintln!("   {got:.1} : {:.1}, both together {:.2} of the GPU", 100.0 - got, parts[0] + parts[1]);
    ensure!((got - expected).abs() <= ERROR_MAX, "got {got:.1} %, expected {expected} %");
    expect_clean(&node)
}

/// A capped session gets its share and no more, though nobody else computes.
fn hard_cap() -> Result<()> {
    let node = one_gpu()?;
    let free = rate(&node, &["-q", "-p", "0.25"], "even")?;
    let capped = rate(&node, &["-q", "-p", "0.25", "--cap", "hard"], "even")?;
    let got = 100.0 * capped / free;
    eprintln!("   {got:.1} % of the rate without a cap");
    ensure!((got - 25.0).abs() <= ERROR_MAX, "got {got:.1} % of the GPU under a hard cap of 25 %");
    expect_clean(&node)
}

fn one_gpu() -> Result<Node> {
    Node::start(&["--listen", "127.0.0.1:0", "--gpus", "software:1,1GiB"])
}

/// The rate of a program that has the GPU to itself: the best of three, since other work on the machine only slows it.
fn rate_alone(node: &Node, kind: &str) -> Result<f64> {
    let mut best = 0.0f64;
    for _ in 0..3 {
        best = best.max(rate(node, &["-q"], kind)?);
    }
    Ok(best)
}

/// Units of work per second.
fn rate(node: &Node, options: &[&str], kind: &str) -> Result<f64> {
    Ok(finished(compute(node, options, kind, ALONE_SECONDS, 0.0)?)? / ALONE_SECONDS)
}

fn compute(node: &Node, options: &[&str], kind: &str, seconds: f64, start_at: f64) -> Result<Child> {
    let mut command = bare_program(node, options, "compute.py");
    command.env("KIND", kind).env("SECONDS", seconds.to_string()).env("START_AT", start_at.to_string());
    command.env("TAIL", if start_at > 0.0 { TAIL_SECONDS } else { "0" });
    command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().context("compute.py")
}

/// The number of units in the program's line "finished N units".
fn finished(mut program: Child) -> Result<f64> {
    let mut lines = BufReader::new(program.stdout.take().context("piped above")?);
    let mut text = String::new();
    lines.read_line(&mut text)?;
    ensure!(text.trim() == "ready", "the program said {text:?}");
    lines.read_to_string(&mut text)?;
    ensure!(program.wait()?.success() && text.contains("PASS"), "the program failed: {text}");
    let units = text.lines().find_map(|line| line.strip_prefix("finished ")?.split_whitespace().next());
    Ok(units.context("no \"finished\" line")?.parse()?)
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64()
}
