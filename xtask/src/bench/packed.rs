//! Large copies of several kinds of data over slow links, packed and as they are.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use harness::relay::{Fate, Relay};
use sluice_simulate::plot::Axis;

use crate::node::{self, Node};
use crate::process;

use super::plots::{Curve, draw};
use super::{Figures, figures, folder, machine, median, show, source, values};

pub(super) const NAME: &str = "packed";

const RUNS: usize = 3;
/// In MB/s: 20 Mb/s, 100 Mb/s, 500 Mb/s, 1 Gb/s.
const RATES: [f64; 4] = [2.5, 12.5, 62.5, 125.0];
/// What a link carries in this time is copied.
const COPY_S: f64 = 1.0;
const DELAY_MS: f64 = 10.0;
const SWITCH: &str = "SLUICE_PACK";
const KINDS: [(&str, &str); 6] = [
    ("noise", "random bytes"),
    ("weights", "random weights, `float`"),
    ("activations", "activations, half of them zero"),
    ("tokens", "token ids, 64 bits"),
    ("pixels", "a picture"),
    ("zeroes", "zeroes"),
];

/// Measures, draws, and returns the table.
pub(super) fn run() -> Result<String> {
    let program = folder().join("kinds");
    let mut gcc = Command::new("gcc");
    process::run(
        gcc.args(["-O2", "-std=gnu11"]).arg(source("kinds.c")).arg("-o").arg(&program).args(["-ldl", "-lm"]),
    )?;
    let node = Node::start(&["--listen", "127.0.0.1:0", "--gpus", "software:1,1GiB"])?;
    let mut text = format!(
        "Copies that take a second as they are (`tests/bench/kinds.c`, which compares what came back), through a relay with a round trip of \
         {DELAY_MS} ms, in MB/s of the program's bytes. \"As they are\" is with `{SWITCH}=off`. Measured by `cargo xtask bench {NAME}` on {}; median of \
         {RUNS} runs, lowest and highest in brackets.\n\n| link | data | to the device, as they are | packed | ratio | from the device, as they are | packed | ratio |\n\
         |---|---|---|---|---|---|---|---|\n",
        machine()
    );
    let mut curves: Vec<Curve> = KINDS.iter().map(|(_, name)| (*name, Vec::new())).collect();
    for rate in RATES {
        let mut runs = Vec::new();
        for _ in 0..RUNS {
            let mut run = copies(&node, &program, rate, "off", "plain_")?;
            run.extend(copies(&node, &program, rate, "on", "packed_")?);
            runs.push(run);
        }
        for ((kind, name), curve) in KINDS.into_iter().zip(&mut curves) {
            curve.1.push((rate, median(gains(&runs, kind, "htod"))));
            let cells = ["htod", "dtoh"].map(|way| row(&runs, kind, way));
            text += &format!("| {rate} MB/s | {name} | {} | {} |\n", cells[0], cells[1]);
        }
        eprintln!("   {rate} MB/s");
    }
    let title = "How many times as fast copies to the device are, packed";
    let rates = Axis::powers("rate of the link", RATES[0], RATES[RATES.len() - 1], " MB/s");
    draw("packed-rate", title, rates, "times", curves)?;
    Ok(format!("{text}\n![{title}](plots/packed-rate.svg)\n"))
}

/// The cells of one kind and one way.
fn row(runs: &[Figures], kind: &str, way: &str) -> String {
    let in_mb = |mode: &str| {
        show(values(runs, &format!("{mode}_{kind}_{way}")).into_iter().map(|value| value / 1e6).collect())
    };
    format!("{} | {} | {}", in_mb("plain"), in_mb("packed"), show(gains(runs, kind, way)))
}

/// How many times as fast packed copies are, run by run.
fn gains(runs: &[Figures], kind: &str, way: &str) -> Vec<f64> {
    let all = |mode: &str| values(runs, &format!("{mode}_{kind}_{way}"));
    all("packed").iter().zip(all("plain")).map(|(packed, plain)| packed / plain).collect()
}

fn copies(node: &Node, program: &Path, rate: f64, switch: &str, prefix: &str) -> Result<Figures> {
    let fate =
        Fate { delay: Duration::from_secs_f64(DELAY_MS / 2e3), bytes_per_s: Some(rate * 1e6), ..Fate::GOOD };
    let relay = Relay::start(&node.address, move |_, _| fate)?;
    let bytes = (rate * 1e6 * COPY_S) as u64 / 4096 * 4096;
    let mut command = Command::new(node::sluice());
    command.args(["run", "-q", "--node", &relay.address, "--"]).arg(program).arg(bytes.to_string());
    // The link is what limits, not how much one connection holds.
    let output = process::output_of(command.env(SWITCH, switch).env("SLUICE_STRIPES", "1"))?;
    figures(prefix, &output)
}
