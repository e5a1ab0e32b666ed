//! A training-like loop over slow links, with and without recognised sequences.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::e2e::alone;
use crate::node::{self, Node};
use crate::process;
use crate::relay::{Fate, Relay};

use super::{Figures, figures, folder, machine, source, spread};

pub(super) const NAME: &str = "steps";

const RUNS: usize = 3;
const STEPS: u32 = 40;
/// In MB/s: 1 Mb/s, 10 Mb/s, 100 Mb/s, 1 Gb/s.
const RATES: [f64; 4] = [0.125, 1.25, 12.5, 125.0];
/// Both ways together.
const DELAY_MS: f64 = 10.0;
/// What switches recognition, and how that is called here.
const SWITCH: &str = "SLUICE_RECOGNISE";
const MODES: [(&str, &str); 2] = [("off", "whole commands"), ("on", "recognised")];

/// Measures, and returns the table.
pub(super) fn run() -> Result<String> {
    let program = folder().join("steps");
    let mut gcc = Command::new("gcc");
    process::run(gcc.args(["-O2", "-std=gnu11"]).arg(source("steps.c")).arg("-o").arg(&program).arg("-ldl"))?;
    let node = Node::start(&["--listen", "127.0.0.1:0", "--gpus", "software:1,1GiB"])?;
    let mut text = format!(
        "Steps of 300 launches, 10 fills, 5 event records, 3 copies of 64 bytes and one wait (`tests/bench/steps.c`) through a relay with \
         a round trip of {DELAY_MS} ms. Measured by `cargo xtask bench {NAME}` on {}; median of {RUNS} runs of {STEPS} steps, lowest and \
         highest in brackets.\n\n| link | commands are sent | bytes a step, to the node | time of a step | CPU of the client, a step |\n\
         |---|---|---|---|---|\n",
        machine()
    );
    let native: Vec<Figures> = (0..RUNS).map(|_| run_natively(&program)).collect::<Result<_>>()?;
    let of_native = |name: &str| {
        let values = native.iter().filter_map(|run| run.get(name).copied()).collect();
        spread(values).unwrap_or_else(|| "not measured".into())
    };
    text += &format!(
        "| none: software GPU in the process | - | - | {} ms | {} us |\n",
        of_native("step_ms"),
        of_native("step_cpu_us")
    );
    for rate in RATES {
        for (switch, mode) in MODES {
            let runs: Vec<Figures> =
                (0..RUNS).map(|_| measure(&node, &program, rate, switch)).collect::<Result<_>>()?;
            let show = |name: &str| {
                let values = runs.iter().filter_map(|run| run.get(name).copied()).collect();
                spread(values).unwrap_or_else(|| "not measured".into())
            };
            text += &format!(
                "| {rate} MB/s | {mode} | {} | {} ms | {} us |\n",
                show("step_bytes"),
                show("step_ms"),
                show("step_cpu_us")
            );
        }
        eprintln!("   {rate} MB/s");
    }
    Ok(text)
}

fn run_natively(program: &Path) -> Result<Figures> {
    let mut command = Command::new(program);
    command.arg(STEPS.to_string()).env("LD_LIBRARY_PATH", alone::driver_folder()?);
    figures("", &process::output_of(&mut command)?)
}

fn measure(node: &Node, program: &Path, rate: f64, switch: &str) -> Result<Figures> {
    // What does not repeat is in both runs.
    let (_, start) = run_steps(node, program, rate, switch, 1)?;
    let (mut found, all) = run_steps(node, program, rate, switch, STEPS)?;
    let bytes = all.saturating_sub(start) as f64 / f64::from(STEPS - 1);
    found.insert("step_bytes".into(), bytes);
    Ok(found)
}

/// The program's figures, and how many bytes it has sent.
fn run_steps(node: &Node, program: &Path, rate: f64, switch: &str, steps: u32) -> Result<(Figures, u64)> {
    let fate =
        Fate { delay: Duration::from_secs_f64(DELAY_MS / 2e3), bytes_per_s: Some(rate * 1e6), ..Fate::GOOD };
    let relay = Relay::start(&node.address, move |_, _| fate)?;
    let mut command = Command::new(node::sluice());
    command.args(["run", "-q", "--node", &relay.address, "--"]).arg(program).arg(steps.to_string());
    let output = process::output_of(command.env(SWITCH, switch))?;
    Ok((figures("", &output)?, relay.to_node()))
}
