//! What connections that prove nothing keep from the holder of a lease
//! (`crates/node/tests/node/attacks.rs`).

use anyhow::{Result, ensure};

use crate::process;

use super::machine;

pub(super) const NAME: &str = "attacks";

/// Measures, and returns the table.
pub(super) fn run() -> Result<String> {
    let mut command = process::cargo();
    command.args(["test", "--release", "--quiet", "-p", "sluice-node", "--test", "node", "--", "--attacks"]);
    let output = process::output_of(&mut command)?;
    let table: String =
        output.lines().filter(|line| line.starts_with('|')).map(|line| format!("{line}\n")).collect();
    ensure!(table.lines().count() > 2, "there is no table in {output:?}");
    Ok(format!(
        "A node, its attackers (four threads, from the same address as everyone) and its users on one machine, ten seconds each; the number of \
         tries is in brackets. Measured by `cargo xtask bench {NAME}` on {}.\n\n{table}",
        machine()
    ))
}
