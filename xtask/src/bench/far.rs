//! Large copies over links that are far and lossy, in the kernel's own TCP: one connection and
//! several.

use std::time::Duration;

use anyhow::{Context, Result};
use harness::namespaces::Separation;
use harness::packets::Shape;
use sluice_simulate::plot::Axis;

use crate::node::Node;
use crate::process;

use super::plots::{Curve, draw};
use super::{Figures, figures_of, machine, median, ratios, show, values};

pub(super) const NAME: &str = "far";

const RUNS: usize = 3;
/// Round trip in ms, MB/s, and of how many packets one is lost; 125 MB/s are 1 Gb/s.
const LINKS: [(u64, f64, u64); 5] =
    [(10, 125.0, 0), (30, 125.0, 0), (30, 125.0, 10_000), (30, 125.0, 1000), (150, 125.0, 0)];
/// What `SLUICE_STRIPES` says, and what that means.
const MODES: [(&str, &str); 2] = [("1", "one"), ("8", "8")];
/// Curves of copies over links that lose nothing: the name, the figure, and over how many
/// connections.
const CURVES: [(&str, &str, &str); 6] = [
    ("to the device, 8 connections", "far_htod_bytes_per_s", "8"),
    ("to it, one", "far_htod_bytes_per_s", "1"),
    ("plain socket", "far_htod_baseline_bytes_per_s", "1"),
    ("from the device, 8", "far_dtoh_bytes_per_s", "8"),
    ("from it, one", "far_dtoh_bytes_per_s", "1"),
    ("plain socket", "far_dtoh_baseline_bytes_per_s", "1"),
];

/// Measures, and returns the table.
pub(super) fn run() -> Result<String> {
    let mut control = String::new();
    let mut curves: Vec<Curve> = CURVES.map(|(name, ..)| (name, Vec::new())).to_vec();
    let mut text = String::from(
        "| link, packets lost | connections | to the device | plain socket | of it | from the device | plain socket | of it |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for (round_trip_ms, rate, loses_one_of) in LINKS {
        let shape =
            Shape { round_trip: Duration::from_millis(round_trip_ms), bytes_per_s: rate * 1e6, loses_one_of };
        let separation = Separation::far(shape)?;
        control = separation.congestion_control()?;
        let node = separation.start_node_with("software:1,1GiB")?;
        for (stripes, connections) in MODES {
            let runs =
                (0..RUNS).map(|_| measure(&separation, &node, stripes)).collect::<Result<Vec<Figures>>>()?;
            let all = |name: &str| values(&runs, name);
            if loses_one_of == 0 {
                let of_mode = CURVES.iter().zip(&mut curves).filter(|((.., over), _)| *over == stripes);
                of_mode.for_each(|((_, figure, _), (_, points))| {
                    points.push((round_trip_ms as f64, median(all(figure)) * 1e3));
                });
            }
            let scaled = |name: &str, scale: f64| show(all(name).iter().map(|value| value * scale).collect());
            let ratio = |name: &str, of: &str| show(ratios(&runs, name, of));
            let lost = match loses_one_of {
                0 => "none".to_owned(),
                of => format!("{} %", 100.0 / of as f64),
            };
            text += &format!(
                "| {round_trip_ms} ms, {rate} MB/s, {lost} | {connections} | {} MB/s | {} MB/s | {} | {} MB/s | {} MB/s | {} |\n",
                scaled("far_htod_bytes_per_s", 1e3),
                scaled("far_htod_baseline_bytes_per_s", 1e3),
                ratio("far_htod_bytes_per_s", "far_htod_baseline_bytes_per_s"),
                scaled("far_dtoh_bytes_per_s", 1e3),
                scaled("far_dtoh_baseline_bytes_per_s", 1e3),
                ratio("far_dtoh_bytes_per_s", "far_dtoh_baseline_bytes_per_s"),
            );
            eprintln!(
                "   {round_trip_ms} ms, {lost} lost, {connections}: {} MB/s",
                scaled("far_htod_bytes_per_s", 1e3)
            );
        }
    }
    let (nearest, farthest) = (LINKS[0].0 as f64, LINKS[LINKS.len() - 1].0 as f64);
    let axis = Axis::powers("round trip", nearest, farthest, " ms");
    draw("far-delay", "Large copies over links of 125 MB/s that lose nothing", axis, "MB/s", curves)?;
    Ok(format!(
        "Large copies over links of packets between two network namespaces (`xtask/harness/src/packets.rs`), with the kernel's TCP ({control}, buffers \
         as the system sets them) and TLS; the plain socket has TLS too. Measured by `cargo xtask bench {NAME}`, as root, on {}; median of \
         {RUNS} runs, lowest and highest in brackets.\n\n{text}\n\
         ![Large copies over links of 125 MB/s that lose nothing](plots/far-delay.svg)\n",
        machine()
    ))
}

fn measure(separation: &Separation, node: &Node, stripes: &str) -> Result<Figures> {
    let mut command = separation.sluice();
    command.args(["bench", "remoting", "--runs", "1", "-o", "json", "--node", &node.address]);
    command.env("SLUICE_STRIPES", stripes);
    let report: serde_json::Value = serde_json::from_str(&process::output_of(&mut command)?)?;
    // Beyond loopback it is TLS.
    let link = ["tls", "tcp"].iter().map(|link| &report[*link]).find(|link| link.is_object());
    Ok(figures_of("far", link.context("the report has no link")?))
}
