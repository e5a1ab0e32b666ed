//! GPUs of several nodes as one list of one program.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::e2e::teams::Installation;
use crate::e2e::{Test, expect_failure, expect_pass, program_file, start_node};
use crate::node::{self, Node};

pub(crate) const TESTS: &[Test] = &[
    ("GPUs of two nodes", one_list),
    ("GPUs of two nodes, some of them visible", visible),
    ("GPUs of two nodes, one of which ends", a_node_ends),
    ("GPUs of two nodes, or of none", all_or_none),
    ("GPUs of two nodes through a server", through_a_server),
];

const LIMIT: Duration = Duration::from_secs(300);

/// `sluice run OPTIONS --node A,B --`, to be completed by the program.
fn sluice_run(nodes: &str, options: &[&str]) -> Command {
    let mut command = Command::new(node::sluice());
    command.arg("run").args(options).args(["--node", nodes, "--"]);
    command
}

fn program(nodes: &str, options: &[&str]) -> Command {
    let mut command = sluice_run(nodes, options);
    command.arg("python3").arg(program_file("nodes.py"));
    command
}

fn two_nodes() -> Result<(Node, Node, String)> {
    let (a, b) = (start_node()?, start_node()?);
    let both = format!("{},{}", a.address, b.address);
    Ok((a, b, both))
}

fn one_list() -> Result<()> {
    let (a, b, both) = two_nodes()?;
    expect_pass(&mut program(&both, &["-n", "4", "-p", "0.5"]), "GPUs of two nodes", LIMIT)?;
    let uneven = format!("{}=2,{}=1", a.address, b.address);
    let mut command = program(&uneven, &["-p", "0.5", "--memory", "1GiB"]);
    expect_pass(command.env("GPUS", "3"), "three GPUs of two nodes", LIMIT)?;
    let smi = &["GPU 0", "GPU 1", "GPU 2", "GPU 3"];
    expect_failure(sluice_run(&both, &["-q", "-n", "4"]).args(["nvidia-smi", "-L"]), "nodes: smi", 0, smi)?;
    a.wait_until_free()?;
    b.wait_until_free()
}

/// The variable chooses from the whole list: one of each node, the second node's first.
fn visible() -> Result<()> {
    let (a, b, both) = two_nodes()?;
    let code = "import driver, ctypes; driver.call('cuInit', 0); n = ctypes.c_int(); \
                driver.call('cuDeviceGetCount', ctypes.byref(n)); bus = ctypes.create_string_buffer(20); \
                buses = [driver.call('cuDeviceGetPCIBusId', bus, 20, i) or bus.value.decode() for i in range(n.value)]; \
                print('buses', *buses)";
    for (chosen, expect) in [
        ("3,0", "buses 0000:04:00.0 0000:01:00.0\n"),
        ("2", "buses 0000:03:00.0\n"),
        ("1,2,9,0", "buses 0000:02:00.0 0000:03:00.0\n"),
    ] {
        let mut command = sluice_run(&both, &["-q", "-n", "4"]);
        command.args(["python3", "-c", code]).env("PYTHONPATH", program_file(""));
        expect_failure(command.env("CUDA_VISIBLE_DEVICES", chosen), "nodes: visible", 0, &[expect])?;
    }
    let mut command = sluice_run(&both, &["-q", "-n", "4"]);
    command.args(["python3", "-c", code]).env("PYTHONPATH", program_file(""));
    let said = &["CUDA_VISIBLE_DEVICES names no GPU of this lease", "CUDA_ERROR_NO_DEVICE"];
    expect_failure(command.env("CUDA_VISIBLE_DEVICES", "4"), "nodes: none visible", 1, said)?;
    a.wait_until_free()?;
    b.wait_until_free()
}

fn a_node_ends() -> Result<()> {
    let (a, b, both) = two_nodes()?;
    let mut command = program(&both, &["-n", "4", "-p", "0.5"]);
    let ended = expect_pass(command.env("KILL", b.pid().to_string()), "two nodes, one of which ends", LIMIT)?;
    let said = format!("the connection to the GPUs of {} is lost", b.address);
    ensure!(ended.output.contains(&said), "no {said:?} in {:?}", ended.output);
    a.wait_until_free()
}

/// What one node has granted is given back when the other refuses, and the message names that one.
fn all_or_none() -> Result<()> {
    let (a, b, both) = two_nodes()?;
    let uneven = format!("{}=2,{}=3", a.address, b.address);
    let named = format!("node {}", b.address);
    let said = &[named.as_str(), "what the other nodes had granted is given back"];
    expect_failure(sluice_run(&uneven, &[]).arg("true"), "nodes: refused", 125, said)?;
    a.wait_until_free()?;
    let nobody = format!("{},127.0.0.1:1", a.address);
    let said = &["127.0.0.1:1", "connection refused"];
    expect_failure(sluice_run(&nobody, &["-n", "2"]).arg("true"), "nodes: nobody", 125, said)?;
    let said = &["3 GPUs cannot be split evenly over 2 nodes", "-n 4"];
    expect_failure(sluice_run(&both, &["-n", "3"]).arg("true"), "nodes: uneven", 125, said)?;
    a.wait_until_free()?;
    b.wait_until_free()
}

/// A server that has one GPU on each of two nodes grants both at once.
fn through_a_server() -> Result<()> {
    let installation = Installation::start("nodes", "tenants: [{path: red}, {path: blue}]", &["two"], &[])?;
    let words = ["run", "-n", "2", "--nodes", "2", "--memory", "1GiB", "--", "python3"];
    let mut command = installation.red.command(&words);
    command.arg(program_file("nodes.py")).env("GPUS", "2");
    let ended = expect_pass(&mut command, "GPUs of two nodes through a server", LIMIT)?;
    for place in ["on node one", "on node two"] {
        ensure!(ended.output.contains(place), "no {place:?} in {:?}", ended.output);
    }
    let mut uneven = installation.red.command(&["run", "-n", "3", "--nodes", "2", "--", "true"]);
    expect_failure(&mut uneven, "nodes: uneven, with a server", 125, &["-n 3 GPUs cannot be split evenly"])
}
