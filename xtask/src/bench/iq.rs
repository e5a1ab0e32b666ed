//! Right-sizing, estimates and the value of shares, on made-up histories and jobs. All of it is
//! simulated, so the figures are the same on every machine.

use std::process::Command;

use anyhow::Result;

use crate::process;

pub(super) const NAME: &str = "iq";
pub(super) const ESTIMATES: &str = "iq-estimates";
pub(super) const VALUE: &str = "iq-value";
pub(super) const PARTS: [&str; 3] = [NAME, ESTIMATES, VALUE];

/// GPUs and sessions of the made-up cluster.
const CLUSTER: [&str; 2] = ["512", "8000"];

pub(super) fn held_out() -> Result<String> {
    example("sluice-iq", "held_out", &[])
}

pub(super) fn estimates() -> Result<String> {
    example("sluice-simulate", "estimates", &["made-up", CLUSTER[0], CLUSTER[1]])
}

pub(super) fn value() -> Result<String> {
    example("sluice-simulate", "value", &["made-up", CLUSTER[0], CLUSTER[1]])
}

/// Returns what an example prints.
fn example(package: &str, name: &str, arguments: &[&str]) -> Result<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["run", "--quiet", "--release", "-p", package, "--example", name, "--"]).args(arguments);
    process::output_of(cargo.current_dir(crate::root()))
}
