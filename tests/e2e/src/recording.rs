//! The recording driver: programs' calls on cards that are not here.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::node::{self, Node};
use crate::{Test, bare_program, expect_pass, logs, program_file, sluice_run};

pub(crate) const TESTS: &[Test] = &[
    ("recording driver", every_model),
    ("recorded launches", launches),
    ("sharing between processes, recorded", || on_h200("sharing between processes, recorded", "sharing.py")),
    ("driver attributes, recorded", || on_h200("driver attributes, recorded", "driver_attributes.py")),
    ("arrays, recorded", || on_h200("arrays, recorded", "arrays.py")),
    ("two devices, recorded", two_devices),
    ("copies hold nobody up, recorded", || on_h200("copies hold nobody up, recorded", "held_copies.py")),
    ("sparse arrays, recorded", || on_h200("sparse arrays, recorded", "sparse_arrays.py")),
];

const LIMIT: Duration = Duration::from_secs(60);

fn every_model() -> Result<()> {
    for (model, capability, count) in [("h200", "9.0", "1"), ("a100", "8.0", "2"), ("rtx5090", "12.0", "1")] {
        let node =
            Node::start(&["--listen", "127.0.0.1:0", "--gpus", &format!("recording:{model},{count}")])?;
        let mut command = sluice_run(&node, &["-n", count]);
        command.arg("python3").arg(program_file("recording.py")).args([model, capability, count]);
        expect_pass(&mut command, "recording driver", LIMIT).with_context(|| model.to_string())?;
        node.wait_until_free()?;
    }
    Ok(())
}

/// A program whose results do not depend on what kernels compute.
fn on_h200(name: &str, file: &str) -> Result<()> {
    let node = Node::start(&["--listen", "127.0.0.1:0", "--gpus", "recording:h200"])?;
    expect_pass(&mut bare_program(&node, &["-p", "0.5", "--memory", "2GiB"], file), name, LIMIT)?;
    node.wait_until_free()
}

/// Neither can reach the other's memory, as on NVIDIA's driver.
fn two_devices() -> Result<()> {
    let node = Node::start(&["--listen", "127.0.0.1:0", "--gpus", "recording:h200,2"])?;
    let mut command = bare_program(&node, &["-n", "2", "-p", "0.5", "--memory", "2GiB"], "two_gpus.py");
    expect_pass(command.env("COMPUTES", ""), "two devices, recorded", LIMIT)?;
    node.wait_until_free()
}

/// Every launch that passed its checks is one line with its parameters, byte by byte.
fn launches() -> Result<()> {
    let file = logs().join("recorded-launches.tsv");
    // It may not be there.
    let _ = std::fs::remove_file(&file);
    let mut command = Command::new(node::sluice());
    command.args(["run", "--gpus", "recording:h200", "--", "python3"]).arg(program_file("recording.py"));
    command.args(["h200", "9.0", "1"]).env("SLUICE_RECORDING", &file);
    expect_pass(&mut command, "recorded launches", LIMIT)?;
    let recorded = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let lines: Vec<&str> = recorded.lines().collect();
    // Two more take page-locked memory.
    ensure!(lines.len() == 3, "{} launches recorded, 3 made", lines.len());
    let fields: Vec<&str> = lines[0].split('\t').collect();
    ensure!(fields[..5] == ["add", "2,3,1", "256,1,1", "1,1,1", "0"], "{fields:?}");
    // An address, the count and its padding, then the bytes 0 to 23.
    let rest: String = (0..24).map(|byte| format!("{byte:02x}")).collect();
    ensure!(fields[5][16..] == format!("0400000000000000{rest}"), "{fields:?}");
    Ok(())
}
