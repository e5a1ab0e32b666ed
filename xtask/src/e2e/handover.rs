//! Kernels and host threads that hand data to each other through mapped memory while the kernels run.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::e2e::{NODE_GPUS, Test, expect_pass, logs, program_file, sluice_run, start_node};
use crate::node::{self, Node};
use crate::python;

pub(crate) const TESTS: &[Test] = &[
    ("mapped memory while kernels run, through shared memory", through_shared_memory),
    ("mapped memory while kernels run on two nodes", on_two_nodes),
];

/// It catches a hang: nothing here waits for time to pass.
const LIMIT: Duration = Duration::from_secs(600);

fn program() -> Result<PathBuf> {
    let program = logs().join("handover");
    python::nvcc(&program_file("handover.cu"), &program)?;
    Ok(program)
}

fn through_shared_memory() -> Result<()> {
    let socket = std::env::temp_dir().join(format!("sluice-handover-{}", std::process::id()));
    let node = Node::start(&["--listen", &format!("unix:{}", socket.display()), "--gpus", NODE_GPUS])?;
    let mut command = sluice_run(&node, &["-n", "2"]);
    expect_pass(command.arg(program()?), "mapped memory through shared memory", LIMIT)?;
    node.wait_until_free()
}

/// Over TCP. The two ranks of the program are on two nodes, and every other part of it runs on each.
fn on_two_nodes() -> Result<()> {
    let (a, b) = (start_node()?, start_node()?);
    let mut command = Command::new(node::sluice());
    command.args(["run", "-n", "2", "--node", &format!("{},{}", a.address, b.address), "--"]);
    let ended = expect_pass(command.arg(program()?), "mapped memory on two nodes", LIMIT)?;
    ensure!(ended.output.contains("two ranks on devices 0 and 1"), "{}", ended.output);
    a.wait_until_free()?;
    b.wait_until_free()
}
