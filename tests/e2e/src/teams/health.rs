//! A GPU becomes faulty under a program: the fake NVML says so, and the program runs again
//! elsewhere.

use std::fs::File;
use std::io::Write;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Installation, Process};
use crate::hangs::HangingDriver;
use crate::program_file;

/// Two nodes of a GPU each; NVML watches that of node one.
pub(super) fn a_gpu_becomes_faulty() -> Result<()> {
    let library = crate::target_folder().join("release/libfake_nvml.so");
    let library = library.display().to_string();
    let file = crate::target_folder().join("gpu-facts");
    let mut facts = File::create(&file)?;
    let installation = Installation::start_with(
        "health",
        "tenants: [{path: red}, {path: blue}]",
        &["two"],
        &["--nvml", &library, "--gpu-quiet", "1"],
        &[("FAKE_NVML", &file.display().to_string())],
    )?;
    let (admin, red) = (&installation.admin, &installation.red);
    let uuid = gpu(&admin.json(&["gpus"])?, "one")?["uuid"].as_str().context("a UUID")?.to_owned();

    // Node two is not to be used for a while, so the program runs on node one.
    admin.text(&["gpu", "fence", "two/0", "--why", "its fan rattles"])?;
    let mut moves = red.program("moves", &[])?;
    moves.expect_line("ready")?;
    let waits = admin.json(&["gpus"])?;
    ensure!(gpu(&waits, "two")?["fence"]["why"] == "its fan rattles", "{waits}");
    admin.text(&["gpu", "unfence", "two/0", "--why", "a new fan"])?;

    // The card falls off the bus.
    writeln!(facts, "xid {uuid} 79")?;
    moves.expect_message("preempted: its GPU one/0 is fenced: Xid 79: the GPU has fallen off the bus")?;
    moves.expect_line("ready").context("the program did not run again")?;
    let leases = red.json(&["lease", "list"])?;
    ensure!(leases[0]["attempt"] == 2 && leases[0]["places"][0]["node"] == "two", "{leases}");
    let fence = gpu(&admin.json(&["gpus"])?, "one")?["fence"].clone();
    ensure!(fence["state"] == "fenced" && fence["by"] == "its node" && fence["lasting"] == true, "{fence}");

    // What comes next waits, knows why, and runs once somebody has looked.
    let mut next = red.program("next", &[])?;
    let names_it =
        |queue: &Value| queue[0]["reason"].as_str().is_some_and(|why| why.contains("fenced: one/0 (Xid 79"));
    red.wait_for(&["queue"], names_it)?;
    admin.text(&["gpu", "unfence", "one/0", "--why", "seated again"])?;
    next.expect_line("ready")?;

    // A program's own fault is not the card's; heat is, lets programs finish, and passes.
    writeln!(facts, "xid {uuid} 13\ntemperature {uuid} 95")?;
    let hot = |gpus: &Value| {
        fence_of(gpus, "one")
            .is_some_and(|fence| fence["why"].as_str().is_some_and(|why| why.starts_with("95 C")))
    };
    let gpus = admin.wait_for(&["gpus"], hot)?;
    ensure!(
        fence_of(&gpus, "one")
            .is_some_and(|fence| fence["sessions"] == "finish" && fence["lasting"] == false),
        "{gpus}"
    );
    let condition = &gpu(&gpus, "one")?["condition"];
    ensure!(
        condition["temperature_c"] == 95
            && condition["slowdown_at_c"] == 90
            && condition["power_mw"] == 123_400,
        "{condition}"
    );
    ensure!(gpu(&gpus, "two")?["condition"].is_null(), "node two has no NVML: {gpus}");
    ensure!(admin.text(&["gpus"])?.contains("95 C  123 W"), "{}", admin.text(&["gpus"])?);
    next.go_on_to_its_end()?;
    writeln!(facts, "temperature {uuid} 60")?;
    admin.wait_for(&["gpus"], |gpus| fence_of(gpus, "one").is_none())?;
    moves.go_on_to_its_end()?;

    let log = admin.text(&["audit", "log"])?;
    let count = |action: &str| log.lines().filter(|line| line.contains(action)).count();
    ensure!((count("gpu.fenced"), count("gpu.unfenced")) == (3, 3), "{log}");
    Ok(())
}

/// What NVML says of where GPUs stand is told to the server when the node joins; what it does not
/// say is not there.
pub(super) fn where_gpus_stand() -> Result<()> {
    let library = crate::target_folder().join("release/libfake_nvml.so").display().to_string();
    let file = crate::target_folder().join("standing-gpu-facts");
    std::fs::write(
        &file,
        "pci #0 0000:3b:00.0\npci #1 0000:5e:00.0\nnuma #0 0\nnuma #1 65\npcie #0 5x16\n\
         nvlink #0 0000:5e:00.0\nnvlink #0 0000:5e:00.0\nnvlink #1 0000:3b:00.0\nnvlink #1 0000:3b:00.0\n",
    )?;
    let installation = Installation::start_with(
        "standing",
        "tenants: [{path: red}, {path: blue}]\n",
        &[],
        &["--gpus", "software:3,128MiB", "--nvml", &library],
        &[("FAKE_NVML", &file.display().to_string())],
    )?;
    let gpus = installation.admin.json(&["gpus"])?;
    let known = |index: usize| {
        let gpu = &gpus[index];
        let names = ["vendor", "pci", "numa_node", "pcie", "nvlinks"];
        names.map(|name| gpu[name].clone())
    };
    let nvlinks = |gpu: u32| json!([{ "gpu": gpu, "links": 2 }]);
    let pcie = json!({ "generation": 5, "lanes": 16 });
    ensure!(known(0) == [json!("sluice"), json!("0000:3b:00.0"), json!(0), pcie, nvlinks(1)], "{gpus}");
    let second = [json!("sluice"), json!("0000:5e:00.0"), json!(65), Value::Null, nvlinks(0)];
    ensure!(known(1) == second, "{gpus}");
    // NVML says nothing of the third one.
    let nothing = [json!("sluice"), Value::Null, Value::Null, Value::Null, Value::Null];
    ensure!(known(2) == nothing, "{gpus}");
    let table = installation.admin.text(&["gpu", "facts"])?;
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    let says = |line: usize, words: &[&str]| {
        lines.get(line).is_some_and(|line| line.windows(words.len()).any(|part| part == words))
    };
    ensure!(says(1, &["0000:3b:00.0", "0", "gen", "5", "x16", "1", "(2)", "online"]), "{table}");
    ensure!(says(3, &["GB/s", "-", "-", "-", "-", "online"]), "{table}");
    // All three were measured, which gives them no units, and the node kept what it found.
    for gpu in gpus.as_array().into_iter().flatten() {
        let measured = &gpu["measured"];
        let is_measured = measured["gflops"].as_u64() > Some(0)
            && measured["memory_bytes_per_s"].as_u64() > Some(1_000_000);
        ensure!(is_measured && gpu["gflops"] == 0 && gpu["figures"].is_null(), "{gpu}");
    }
    ensure!(says(3, &["sluice", "128", "MiB", "-"]), "{table}");
    let kept: Value = serde_json::from_slice(&std::fs::read(installation.folder.join("one/measured.json"))?)?;
    let rates: Vec<&Value> = kept.as_object().into_iter().flat_map(|kept| kept.values()).collect();
    ensure!(rates.len() == 3 && rates.contains(&&gpus[0]["measured"]), "{kept}");
    Ok(())
}

/// NVML never answers again: the driver hangs, its GPU is fenced, and what ran there runs
/// elsewhere.
pub(super) fn a_driver_hangs() -> Result<()> {
    let library = crate::target_folder().join("release/libfake_nvml.so").display().to_string();
    let file = crate::target_folder().join("hanging-gpu-facts");
    let mut facts = File::create(&file)?;
    let installation = Installation::start_with(
        "hang",
        "tenants: [{path: red}, {path: blue}]\n",
        &["two"],
        &["--nvml", &library, "--driver-patience", "8s"],
        &[("FAKE_NVML", &file.display().to_string())],
    )?;
    let (admin, red) = (&installation.admin, &installation.red);
    admin.text(&["gpu", "fence", "two/0", "--why", "not yet"])?;
    let mut moves = red.program("hangs", &[])?;
    moves.expect_line("ready")?;
    admin.text(&["gpu", "unfence", "two/0", "--why", "now"])?;

    writeln!(facts, "hang")?;
    moves
        .expect_message("preempted: its GPU one/0 is fenced: its driver hangs: NVML says nothing for 8 s")?;
    moves.expect_line("ready").context("the program did not run again")?;
    let leases = red.json(&["lease", "list"])?;
    ensure!(leases[0]["attempt"] == 2 && leases[0]["places"][0]["node"] == "two", "{leases}");
    let fence = gpu(&admin.json(&["gpus"])?, "one")?["fence"].clone();
    ensure!(fence["sessions"] == "end" && fence["lasting"] == true && fence["by"] == "its node", "{fence}");
    moves.go_on_to_its_end()
}

/// A call in a worker never returns: the program gets an error, its GPU is fenced, and it runs
/// again once somebody has looked.
pub(super) fn a_call_never_returns() -> Result<()> {
    let driver = HangingDriver::build("teams")?;
    let installation = Installation::start_with(
        "hanging-call",
        "tenants: [{path: red}, {path: blue}]\n",
        &[],
        &["--gpus", &driver.gpus(), "--driver-patience", "3s"],
        &[("HANG_FILE", &driver.file.display().to_string())],
    )?;
    let (admin, red) = (&installation.admin, &installation.red);
    driver.hang("cuLaunchKernel")?;
    let mut command = red.command(&["run", "--", "python3"]);
    command.arg(program_file("hang.py")).env("HANGS", "1").env("STAYS", "1");
    let mut program = Process::start("hanging call", &mut command)?;
    program.expect_line("cuCtxSynchronize: 46 CUDA_ERROR_DEVICE_UNAVAILABLE")?;
    let hangs = "the node's driver hangs: cuLaunchKernel did not return for 3 s";
    program.expect_message(&format!("{hangs}, so the session has ended"))?;
    program.expect_message(&format!("preempted: its GPU one/0 is fenced: {hangs}"))?;

    let fence = gpu(&admin.json(&["gpus"])?, "one")?["fence"].clone();
    ensure!(fence["state"] == "fenced" && fence["lasting"] == true && fence["by"] == "its node", "{fence}");
    let names_it = |queue: &Value| {
        queue[0]["reason"].as_str().is_some_and(|why| why.contains(&format!("fenced: one/0 ({hangs})")))
    };
    red.wait_for(&["queue"], names_it)?;
    driver.go_on()?;
    admin.text(&["gpu", "unfence", "one/0", "--why", "the driver was loaded anew"])?;
    program.expect_line("PASS")?;
    program.expect_success()
}

/// The GPU of a node.
fn gpu<'a>(gpus: &'a Value, node: &str) -> Result<&'a Value> {
    let mut gpus = gpus.as_array().into_iter().flatten();
    gpus.find(|gpu| gpu["node"] == node).with_context(|| format!("a GPU of node {node}"))
}

fn fence_of<'a>(gpus: &'a Value, node: &str) -> Option<&'a Value> {
    gpu(gpus, node).ok()?.get("fence")
}
