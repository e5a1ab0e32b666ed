//! Calls and copies over links of other lengths and widths, as a relay between program and node
//! emulates them.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use harness::relay::{Fate, Relay};
use sluice_simulate::plot::Axis;

use crate::node::{self, Node};
use crate::process;

use super::plots::{Curve, draw};
use super::{figures_of, machine, median, ratios, show, values};

pub(super) const NAME: &str = "links";

const RUNS: usize = 3;
/// Both ways together, in ms; the relay itself adds some.
const DELAYS_MS: [f64; 6] = [0.0, 0.5, 2.0, 10.0, 30.0, 150.0];
/// In MB/s: 100 Mb/s, 1 Gb/s, 2.5 Gb/s, 10 Gb/s, at this delay.
const RATES: [f64; 4] = [12.5, 125.0, 312.5, 1250.0];
const DELAY_OF_RATES_MS: f64 = 2.0;

/// Curves of what is copied, in GB/s: name, figure, factor.
const COPIES: [(&str, &str, f64); 4] = [
    ("to the device", "htod_bytes_per_s", 1.0),
    ("plain socket", "htod_baseline_bytes_per_s", 1.0),
    ("from it", "dtoh_bytes_per_s", 1.0),
    ("plain socket", "dtoh_baseline_bytes_per_s", 1.0),
];
/// Curves of how long a program waits, in ms.
const WAITS: [(&str, &str, f64); 3] = [
    ("waiting call", "waiting_call_us", 1e-3),
    ("plain socket, 16 bytes there and back", "round_trip_us", 1e-3),
    ("64 bytes to the device", "small_htod_us", 1e-3),
];

/// What was found on one link, in the order of runs.
struct Found {
    link: String,
    runs: Vec<super::Figures>,
}

impl Found {
    fn all(&self, name: &str) -> Vec<f64> {
        values(&self.runs, &format!("link_{name}"))
    }

    fn median(&self, name: &str) -> f64 {
        median(self.all(name))
    }

    /// As [`ratios`].
    fn ratios(&self, name: &str, baseline: &str) -> Vec<f64> {
        ratios(&self.runs, &format!("link_{name}"), &format!("link_{baseline}"))
    }
}

/// Measures, draws, and returns the tables.
pub(super) fn run() -> Result<String> {
    let node = Node::start(&["--listen", "127.0.0.1:0", "--gpus", "software:1,1GiB"])?;
    let by_delay = DELAYS_MS.map(|delay| (format!("{delay} ms"), delay, None));
    let by_rate =
        RATES.map(|rate| (format!("{rate} MB/s, {DELAY_OF_RATES_MS} ms"), DELAY_OF_RATES_MS, Some(rate)));
    let by_delay = measure_all(&node, by_delay.as_slice())?;
    let by_rate = measure_all(&node, by_rate.as_slice())?;
    let axis =
        || Axis::powers("round trip of 16 bytes, plain socket", 0.1, DELAYS_MS[DELAYS_MS.len() - 1], " ms");
    let round_trip = |found: &Found| found.median("round_trip_us") / 1e3;
    let copies = curves(&by_delay, &COPIES, round_trip);
    draw("links-delay", "Large copies over links with delay", axis(), "GB/s", copies)?;
    let waits = curves(&by_delay, &WAITS, round_trip);
    draw("links-calls", "Calls over links with delay", axis(), "ms", waits)?;
    let rates = Axis::powers("rate of the link", RATES[0], RATES[RATES.len() - 1], " MB/s");
    let rate_of =
        |found: &Found| found.link.split(' ').next().and_then(|rate| rate.parse().ok()).unwrap_or_default();
    let copies = curves(&by_rate, &COPIES, rate_of);
    draw("links-rate", "Large copies over links with a rate", rates, "GB/s", copies)?;
    Ok(format!(
        "Calls and copies through a relay that holds every byte for half the delay in each direction, and passes a number of bytes a \
         second. Measured by `cargo xtask bench {NAME}` on {}; median of {RUNS} runs, lowest and highest in brackets.\n\n{}\n\
         ![Large copies over links with delay](plots/links-delay.svg)\n\
         ![Calls over links with delay](plots/links-calls.svg)\n\n{}\n\
         ![Large copies over links with a rate](plots/links-rate.svg)\n",
        machine(),
        table("delay", &by_delay),
        table("rate, delay", &by_rate),
    ))
}

fn measure_all(node: &Node, links: &[(String, f64, Option<f64>)]) -> Result<Vec<Found>> {
    let measure = |(name, delay_ms, rate): &(String, f64, Option<f64>)| {
        let delay = Duration::from_secs_f64(delay_ms / 2e3);
        let bytes_per_s = rate.map(|rate| rate * 1e6);
        let relay = Relay::start(&node.address, move |_, _| Fate { delay, bytes_per_s, ..Fate::GOOD })?;
        let runs = (0..RUNS).map(|_| measure(&relay)).collect::<Result<Vec<_>>>()?;
        eprintln!("   {name}");
        Ok(Found { link: name.clone(), runs })
    };
    links.iter().map(measure).collect()
}

fn measure(relay: &Relay) -> Result<super::Figures> {
    let mut command = Command::new(node::sluice());
    command.args(["bench", "remoting", "--runs", "1", "-o", "json", "--node", &relay.address]);
    let report: serde_json::Value = serde_json::from_str(&process::output_of(&mut command)?)?;
    Ok(figures_of("link", &report["tcp"]))
}

fn table(of: &str, found: &[Found]) -> String {
    let mut text = format!(
        "| {of} | round trip, plain socket | waiting call | queued calls | 64 bytes to the device, until it returns | large copy to \
         the device | of the plain socket | from the device | of the plain socket |\n|---|---|---|---|---|---|---|---|---|\n"
    );
    for found in found {
        let ms = |name: &str| show(found.all(name).iter().map(|us| us / 1e3).collect());
        text += &format!(
            "| {} | {} ms | {} ms | {:.0}/s | {} us | {} GB/s | {} | {} GB/s | {} |\n",
            found.link,
            ms("round_trip_us"),
            ms("waiting_call_us"),
            found.median("queued_calls_per_s"),
            show(found.all("small_htod_us")),
            show(found.all("htod_bytes_per_s")),
            show(found.ratios("htod_bytes_per_s", "htod_baseline_bytes_per_s")),
            show(found.all("dtoh_bytes_per_s")),
            show(found.ratios("dtoh_bytes_per_s", "dtoh_baseline_bytes_per_s")),
        );
    }
    text
}

/// Figures of `found`, times `scale`, as curves over what `at` says of each link.
fn curves(found: &[Found], figures: &[(&'static str, &str, f64)], at: impl Fn(&Found) -> f64) -> Vec<Curve> {
    let curve = |&(name, figure, scale): &(&'static str, &str, f64)| {
        (name, found.iter().map(|found| (at(found), found.median(figure) * scale)).collect())
    };
    figures.iter().map(curve).collect()
}
