//! What `sluice bench remoting` says of this machine: loopback TCP, the same with TLS, and shared
//! memory.

use std::process::Command;

use anyhow::Result;

use crate::{node, process};

use super::{Figures, RUNS, figures_of, machine, ratios, show, values};

pub(super) const NAME: &str = "remoting";

const LINKS: [&str; 3] = ["tcp", "tls", "shm"];
/// What, the figure, and its unit.
const ROWS: [(&str, &str, &str); 8] = [
    ("round trip of 16 bytes, plain socket (TCP, TLS, Unix)", "round_trip_us", "us"),
    ("waiting call (`cuCtxSynchronize`, nothing queued)", "waiting_call_us", "us"),
    ("queued call (launch of an empty kernel), CPU of the client", "queued_call_client_cpu_us", "us"),
    ("queued calls until all are done, each run by the software GPU", "queued_calls_per_s", "/s"),
    ("the same from four threads at once", "queued_calls_threads_per_s", "/s"),
    ("copy of 64 bytes to the device, until it returns", "small_htod_us", "us"),
    ("large copy to the device, random bytes", "htod_bytes_per_s", "GB/s"),
    ("large copy from the device", "dtoh_bytes_per_s", "GB/s"),
];
/// What carries the same bytes without CUDA stands below the rows of large copies.
const BASELINES: [(&str, &str); 2] =
    [("htod_bytes_per_s", "htod_baseline_bytes_per_s"), ("dtoh_bytes_per_s", "dtoh_baseline_bytes_per_s")];

/// Measures, and returns the table.
pub(super) fn run() -> Result<String> {
    let runs = (0..RUNS).map(|_| measure()).collect::<Result<Vec<_>>>()?;
    let mut text =
        String::from("| what | loopback TCP | loopback TCP with TLS | shared memory |\n|---|---|---|---|\n");
    let row =
        |what: &str, cell: &dyn Fn(&str) -> String| format!("| {what} | {} |\n", LINKS.map(cell).join(" | "));
    for (what, name, unit) in ROWS {
        text += &row(what, &|link| format!("{} {unit}", show(values(&runs, &format!("{link}_{name}")))));
        let Some((_, baseline)) = BASELINES.iter().find(|(of, _)| *of == name) else { continue };
        text += &row("the same bytes without CUDA (plain socket; `memcpy`)", &|link| {
            format!("{} {unit}", show(values(&runs, &format!("{link}_{baseline}"))))
        });
        text += &row("of that", &|link| {
            show(ratios(&runs, &format!("{link}_{name}"), &format!("{link}_{baseline}")))
        });
    }
    Ok(format!(
        "A private node with a software GPU. Measured by `cargo xtask bench {NAME}`, which asks `sluice bench remoting`, on {}; median of \
         {RUNS} runs, lowest and highest in brackets.\n\n{text}",
        machine()
    ))
}

/// All links in one process after the other.
fn measure() -> Result<Figures> {
    let mut command = Command::new(node::sluice());
    command.args(["bench", "remoting", "--runs", "1", "-o", "json", "--gpus", "software:1,1GiB"]);
    let report: serde_json::Value =
        serde_json::from_str(&process::output_of(command.env_remove("SLUICE_NODE"))?)?;
    Ok(LINKS.into_iter().flat_map(|link| figures_of(link, &report[link])).collect())
}
