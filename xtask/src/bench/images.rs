//! What a program waits for that loads images beyond a slow link: as the first on its machine, and
//! as the next.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::relay::{Fate, Relay};

use crate::node::{self, Node};

use super::{machine, show};

pub(super) const NAME: &str = "images";

const RUNS: usize = 3;
/// Both ways together, in ms; the relay itself adds some.
const DELAYS_MS: [u64; 5] = [0, 10, 30, 100, 150];

/// Measures, and returns the table.
pub(super) fn run() -> Result<String> {
    let node = Node::start(&["--listen", "127.0.0.1:0", "--gpus", "software:1,1GiB"])?;
    let cache = crate::target_folder().join("bench/facts");
    // The node has the images from here on.
    life(&node.address, &cache)?;
    let mut text = String::from("| round trip | the first program | the next | saved |\n|---|---|---|---|\n");
    for delay_ms in DELAYS_MS {
        let delay = Duration::from_micros(delay_ms * 500);
        let relay = Relay::start(&node.address, move |_, _| Fate { delay, ..Fate::GOOD })?;
        let (mut firsts, mut nexts) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            let _ = std::fs::remove_dir_all(&cache);
            firsts.push(life(&relay.address, &cache)?);
            nexts.push(life(&relay.address, &cache)?);
        }
        let saved = firsts.iter().zip(&nexts).map(|(first, next)| first - next).collect();
        text += &format!("| {delay_ms} ms | {} s | {} s | {} s |\n", show(firsts), show(nexts), show(saved));
        eprintln!("   {delay_ms} ms");
    }
    Ok(format!(
        "The whole life of a program that loads seven images, takes eight functions of them and asks twice about the occupancy of each \
         (`tests/programs/images.py`), through a relay. Measured by `cargo xtask bench {NAME}` on {}; median of {RUNS} runs, lowest and highest in \
         brackets.\n\n{text}",
        machine()
    ))
}

/// Seconds from its start to its end.
fn life(address: &str, cache: &Path) -> Result<f64> {
    let begin = Instant::now();
    let mut command = Command::new(node::sluice());
    command.args(["run", "-q", "--node", address, "--", "python3"]);
    command.arg(crate::root().join("tests/programs/images.py"));
    command.env("XDG_CACHE_HOME", cache).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    child.stdin.take().context("piped above")?.write_all(b"begin\nuse\ncheck\n")?;
    let ended = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&ended.stdout);
    ensure!(
        ended.status.success() && said.trim_end().ends_with("PASS"),
        "images.py: {}, {said}",
        ended.status
    );
    Ok(begin.elapsed().as_secs_f64())
}
