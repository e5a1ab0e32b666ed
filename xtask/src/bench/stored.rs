//! What a program waits for at its first launch: where nothing is stored, and where an earlier
//! process has compiled the kernel.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::node;

use super::{machine, show};

pub(super) const NAME: &str = "stored";

const RUNS: usize = 5;
/// Shapes and sizes of `tests/programs/first_launch.py`, as readers know them.
const KERNELS: [(&str, &str, &str); 4] = [
    ("1,000 multiply-adds", "straight", "1000"),
    ("10,000 multiply-adds", "straight", "10000"),
    ("100 branches", "branches", "100"),
    ("1,000 branches", "branches", "1000"),
];

/// Measures, and returns the table.
pub(super) fn run() -> Result<String> {
    let cache = crate::target_folder().join("bench/stored");
    let mut text = String::from(
        "| kernel | first process | next process | launch of a loaded kernel | next to first |\n|---|---|---|---|---|\n",
    );
    for (name, shape, count) in KERNELS {
        let [mut firsts, mut nexts, mut launches] = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..RUNS {
            let _ = std::fs::remove_dir_all(&cache);
            firsts.push(life(&cache, shape, count)?.0);
            let (next, launch) = life(&cache, shape, count)?;
            nexts.push(next);
            launches.push(launch);
        }
        let ratios = nexts.iter().zip(&firsts).map(|(next, first)| next / first).collect();
        let columns = [firsts, nexts, launches].map(|times| format!("{} ms", show(times)));
        text += &format!("| {name} | {} | {} |\n", columns.join(" | "), show(ratios));
        eprintln!("   {name}");
    }
    Ok(format!(
        "The time from loading a module to the end of its kernel's first launch, in a process of `sluice\n\
         run` with nothing stored and in the next one (`tests/programs/first_launch.py`). Measured by\n\
         `cargo xtask bench {NAME}` on {}; median of {RUNS} runs, lowest and highest in\n\
         brackets.\n\n{text}",
        machine()
    ))
}

/// Milliseconds of the first launch, with the module's load, and of the second.
fn life(cache: &Path, shape: &str, count: &str) -> Result<(f64, f64)> {
    let mut command = Command::new(node::sluice());
    command.args(["run", "-q", "--gpus", "software", "--", "python3"]);
    command.arg(crate::root().join("tests/programs/first_launch.py")).args([shape, count]);
    let ended = command.env("XDG_CACHE_HOME", cache).output()?;
    let said = String::from_utf8_lossy(&ended.stdout);
    ensure!(ended.status.success(), "first_launch.py: {}, {said}", ended.status);
    let mut lines = said.lines().map(str::parse);
    let mut next = || lines.next().context("a time")?.context("a number");
    Ok((next()?, next()?))
}
