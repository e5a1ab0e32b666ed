//! `sluice bench remoting`: a client process on a private node over each of its links, and on a
//! named node.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::Skipped;
use crate::{Test, start_node};
use crate::{node, process};

pub(crate) const TESTS: &[Test] = &[
    ("bench remoting", bench_remoting),
    ("bench remoting of a node", bench_remoting_of_a_node),
    ("a benchmark that is ended gives its lease back", ended),
];

/// Nothing takes longer, unless it hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// What has to be there, above zero, for each link.
const FIGURES: &[&str] = &[
    "round_trip_us",
    "waiting_call_us",
    "queued_call_client_cpu_us",
    "queued_calls_per_s",
    "queued_calls_threads_per_s",
    "waiting_calls_threads_per_s",
    "small_htod_us",
    "htod_bytes_per_s",
    "dtoh_bytes_per_s",
    "baseline_bytes_per_s",
];

fn measure(options: &[&str]) -> Result<Value> {
    let mut command = Command::new(node::sluice());
    command.args(["bench", "remoting", "--runs", "1", "-o", "json"]).args(options);
    Ok(serde_json::from_str(&process::output_of(command.env_remove("SLUICE_NODE"))?)?)
}

fn expect_figures(of: &Value, names: &[&str]) -> Result<()> {
    for name in names {
        let value = of[name].as_f64().with_context(|| format!("no {name} in {of}"))?;
        ensure!(value > 0.0, "{name} is {value}");
    }
    Ok(())
}

fn bench_remoting() -> Result<()> {
    let report = measure(&["--gpus", "software:1,1GiB"])?;
    expect_figures(&report, &["round_trip_us", "waiting_call_us", "queued_call_client_cpu_us"])?;
    expect_figures(&report["tcp"], FIGURES)?;
    expect_figures(&report["tls"], FIGURES)?;
    expect_figures(&report["shm"], FIGURES)?;
    for program in report["programs"].as_array().context("programs")? {
        let slowdown = program["tcp_slowdown"].as_f64().context("a slowdown")?;
        ensure!(slowdown > 1.0, "{program} is faster than at the GPU");
    }
    Ok(())
}

fn bench_remoting_of_a_node() -> Result<()> {
    let node = start_node()?;
    let report = measure(&["--node", &node.address])?;
    expect_figures(&report["tcp"], FIGURES)?;
    ensure!(report["shm"].is_null(), "a node on TCP has no shared memory");
    node.wait_until_free()
}

/// Nobody there sees the process end, as from another machine; the node would wait for it longer
/// than this test does.
fn ended() -> Result<()> {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return Err(Skipped("needs root".into()).into());
    }
    let node = start_node()?;
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).arg(node::sluice()).args([
        "bench",
        "remoting",
        "--node",
        &node.address,
    ]);
    let mut unshare =
        command.env_remove("SLUICE_NODE").stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let deadline = Instant::now() + LIMIT;
    while node.workers().is_empty() {
        ensure!(Instant::now() < deadline, "no session begins");
        std::thread::sleep(Duration::from_millis(20));
    }
    let benchmark = *process::children(unshare.id()).first().context("unshare has started nothing")?;
    // SAFETY: kill has no memory effects; its parent has not waited for it.
    unsafe { libc::kill(benchmark as i32, libc::SIGTERM) };
    let status = unshare.wait()?;
    ensure!(status.code() == Some(128 + libc::SIGTERM), "it ended with {status}");
    node.wait_until_free()
}
