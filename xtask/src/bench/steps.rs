//! A training-like loop over slow links, with and without recognised sequences.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use harness::relay::{Fate, Relay};
use harness::software_gpu;
use sluice_simulate::plot::Axis;

use crate::node::{self, Node};
use crate::process;

use super::plots::{Curve, draw};
use super::{Figures, figures, folder, machine, median, show, source, values};

pub(super) const NAME: &str = "steps";

const RUNS: usize = 3;
const STEPS: u32 = 40;
/// A link's delay, both ways together, and its rate.
#[derive(Clone, Copy)]
struct DelayAndRate {
    delay_ms: f64,
    /// In MB/s.
    rate: f64,
}

/// 1 Mb/s, 10 Mb/s, 100 Mb/s, 1 Gb/s at the same delay, and other delays at one rate.
const LINKS: [DelayAndRate; 7] = [
    DelayAndRate { delay_ms: 10.0, rate: 0.125 },
    DelayAndRate { delay_ms: 10.0, rate: 1.25 },
    DelayAndRate { delay_ms: 10.0, rate: 12.5 },
    DelayAndRate { delay_ms: 10.0, rate: 125.0 },
    DelayAndRate { delay_ms: 2.0, rate: 12.5 },
    DelayAndRate { delay_ms: 30.0, rate: 12.5 },
    DelayAndRate { delay_ms: 150.0, rate: 12.5 },
];
/// Of the curve over delays.
const RATE_OF_CURVE: f64 = 12.5;
const DELAYS_OF_CURVE: [f64; 4] = [2.0, 10.0, 30.0, 150.0];
/// What switches recognition, and how that is called here.
const SWITCH: &str = "SLUICE_RECOGNISE";
const MODES: [(&str, &str); 2] = [("off", "whole commands"), ("on", "recognised")];

/// Measures, draws, and returns the table.
pub(super) fn run() -> Result<String> {
    let program = folder().join("steps");
    let mut gcc = Command::new("gcc");
    process::run(gcc.args(["-O2", "-std=gnu11"]).arg(source("steps.c")).arg("-o").arg(&program).arg("-ldl"))?;
    let node = Node::start(&["--listen", "127.0.0.1:0", "--gpus", "software:1,1GiB"])?;
    let native: Vec<Figures> = (0..RUNS).map(|_| run_natively(&program)).collect::<Result<_>>()?;
    let native_ms = median(values(&native, "step_ms"));
    let mut text = format!(
        "Steps of 300 launches, 10 fills, 5 event records, 3 copies of 64 bytes and one wait (`tests/bench/steps.c`) through a relay. \
         Beyond the step's own time and one round trip, of the delay alone, is what the link and Sluice add. Measured by `cargo xtask bench {NAME}` on {}; \
         median of {RUNS} runs of {STEPS} steps, lowest and highest in brackets.\n\n\
         | link | commands are sent | bytes a step, to the node | time of a step | beyond its own and a round trip | CPU of the client, a step |\n\
         |---|---|---|---|---|---|\n\
         | none: software GPU in the process | - | - | {} ms | - | {} us |\n",
        machine(),
        show(values(&native, "step_ms")),
        show(values(&native, "step_cpu_us"))
    );
    let own = |delay_ms: f64| native_ms + delay_ms;
    let mut curves: Vec<Curve> = MODES.iter().map(|(_, mode)| (*mode, Vec::new())).collect();
    for link in LINKS {
        let DelayAndRate { delay_ms, rate } = link;
        for (curve, (switch, mode)) in curves.iter_mut().zip(MODES) {
            let runs: Vec<Figures> =
                (0..RUNS).map(|_| measure(&node, &program, link, switch)).collect::<Result<_>>()?;
            let step_ms = median(values(&runs, "step_ms"));
            text += &format!(
                "| {delay_ms} ms, {rate} MB/s | {mode} | {} | {} ms | {:.2} ms | {} us |\n",
                show(values(&runs, "step_bytes")),
                show(values(&runs, "step_ms")),
                step_ms - own(delay_ms),
                show(values(&runs, "step_cpu_us"))
            );
            if rate == RATE_OF_CURVE {
                curve.1.push((delay_ms, step_ms));
            }
        }
        eprintln!("   {delay_ms} ms, {rate} MB/s");
    }
    curves.push(("its own time and a round trip", DELAYS_OF_CURVE.map(|delay| (delay, own(delay))).into()));
    let delays = Axis::powers("round trip", DELAYS_OF_CURVE[0], DELAYS_OF_CURVE[3], " ms");
    let title = format!("Steps over links of {RATE_OF_CURVE} MB/s");
    draw("steps-delay", &title, delays, "ms a step", in_order(curves))?;
    Ok(format!("{text}\n![{title}](plots/steps-delay.svg)\n"))
}

/// Points from left to right.
fn in_order(mut curves: Vec<Curve>) -> Vec<Curve> {
    curves.iter_mut().for_each(|(_, points)| points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    curves
}

fn run_natively(program: &Path) -> Result<Figures> {
    let mut command = Command::new(program);
    command.arg(STEPS.to_string()).env("LD_LIBRARY_PATH", software_gpu::driver_folder()?);
    figures("", &process::output_of(&mut command)?)
}

fn measure(node: &Node, program: &Path, link: DelayAndRate, switch: &str) -> Result<Figures> {
    // What does not repeat is in both runs.
    let (_, start) = run_steps(node, program, link, switch, 1)?;
    let (mut found, all) = run_steps(node, program, link, switch, STEPS)?;
    let bytes = all.saturating_sub(start) as f64 / f64::from(STEPS - 1);
    found.insert("step_bytes".into(), bytes);
    Ok(found)
}

/// The program's figures, and how many bytes it has sent.
fn run_steps(
    node: &Node,
    program: &Path,
    link: DelayAndRate,
    switch: &str,
    steps: u32,
) -> Result<(Figures, u64)> {
    let delay = Duration::from_secs_f64(link.delay_ms / 2e3);
    let fate = Fate { delay, bytes_per_s: Some(link.rate * 1e6), ..Fate::GOOD };
    let relay = Relay::start(&node.address, move |_, _| fate)?;
    let mut command = Command::new(node::sluice());
    command.args(["run", "-q", "--node", &relay.address, "--"]).arg(program).arg(steps.to_string());
    let output = process::output_of(command.env(SWITCH, switch))?;
    Ok((figures("", &output)?, relay.to_node()))
}
