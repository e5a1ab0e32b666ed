//! GPUs of several nodes as one list of one program.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::node::{self, Node};
use crate::teams::Installation;
use crate::{NODE_GPUS, Test, expect_failure, expect_pass, program_file, start_node};

pub(crate) const TESTS: &[Test] = &[
    ("GPUs of two nodes", one_list),
    ("GPUs of two nodes, some of them visible", visible),
    ("GPUs of two nodes, one of which ends", a_node_ends),
    ("GPUs of two nodes, one of which ends in a copy", a_node_ends_in_a_copy),
    ("GPUs of two nodes, which copy to each other", copies_go_between_nodes),
    ("GPUs of two nodes, one of which connects to the other", one_connects),
    ("GPUs of two nodes that do not connect to each other", copies_go_through_the_client),
    ("GPUs of two nodes whose operators say where they connect to", operators_say_where),
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
    two_nodes_with(&[])
}

/// The second with these options. Of one that is killed nobody knows whether it is only cut off,
/// and so it is waited for.
fn two_nodes_with(options: &[&str]) -> Result<(Node, Node, String)> {
    let all = ["--listen", "127.0.0.1:0", "--gpus", NODE_GPUS].iter().chain(options).copied();
    let (a, b) = (start_node()?, Node::start(&all.collect::<Vec<&str>>())?);
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
    let (a, b, both) = two_nodes_with(&["--linger", "5s"])?;
    let mut command = program(&both, &["-n", "4", "-p", "0.5"]);
    let ended = expect_pass(command.env("KILL", b.pid().to_string()), "two nodes, one of which ends", LIMIT)?;
    let said = format!("the connection to the GPUs of {} is lost", b.address);
    ensure!(ended.output.contains(&said), "no {said:?} in {:?}", ended.output);
    a.wait_until_free()
}

fn a_node_ends_in_a_copy() -> Result<()> {
    let (a, b, both) = two_nodes_with(&["--linger", "5s"])?;
    let mut command = program(&both, &["-n", "2", "-p", "0.5"]);
    command.env("GPUS", "2").env("KILL_IN_COPY", b.pid().to_string());
    let ended = expect_pass(&mut command, "two nodes, one of which ends in a copy", LIMIT)?;
    let said = format!("the connection to the GPUs of {} is lost", b.address);
    ensure!(ended.output.contains(&said), "no {said:?} in {:?}", ended.output);
    a.wait_until_free()
}

/// Bytes that `nodes.py` copies between nodes with TRAFFIC=1, but for odd ones; and most that its
/// sessions may exchange with it all the same.
const COPIED: f64 = 256e6;
const SEEN: f64 = 64e6;

/// What is said where copies go through the client.
const THROUGH: &str = "go through this machine";

/// Copies much between two nodes: what is said, and how many bytes the nodes have exchanged with
/// the program. They are as many as were copied also where the machine is so busy that its own link
/// seems far and slow.
fn traffic(nodes: &str, name: &str) -> Result<(String, f64)> {
    let mut command = program(nodes, &["-n", "2", "-p", "0.5"]);
    command.env("GPUS", "2").env("TRAFFIC", "1").env("SLUICE_PACK", "off");
    let output = expect_pass(&mut command, name, LIMIT)?.output;
    let usage = output.lines().filter_map(|line| line.strip_suffix(" out")?.rsplit_once(" at most, "));
    let counts: Vec<f64> =
        usage.flat_map(|(_, counts)| counts.split(" in, ")).map(bytes).collect::<Result<_>>()?;
    ensure!(counts.len() == 4, "not two usage lines in {output:?}");
    let sum = counts.iter().sum();
    Ok((output, sum))
}

/// `1.5 MiB` as a number.
fn bytes(text: &str) -> Result<f64> {
    let (number, unit) = text.split_once(' ').with_context(|| format!("{text:?} is no size"))?;
    let exponent = ["B", "KiB", "MiB", "GiB"].iter().position(|&known| known == unit);
    Ok(number.parse::<f64>()? * 1024_f64.powi(exponent.with_context(|| text.to_owned())? as i32))
}

/// In plain text and with TLS: the nodes' own account of what went to and from the program is far
/// below what was copied.
fn copies_go_between_nodes() -> Result<()> {
    for options in [&[][..], &["--tls"]] {
        let (a, b) = (start_with("a", options)?, start_with("b", options)?);
        let (said, seen) = traffic(&format!("{},{}", a.address, b.address), "copies between two nodes")?;
        ensure!(!said.contains(THROUGH), "{said}");
        ensure!(seen < SEEN, "{seen} bytes went through the program with {options:?}: {said}");
        a.wait_until_free()?;
        b.wait_until_free()?;
    }
    Ok(())
}

/// A node that is known by a socket file cannot be connected to from elsewhere; it connects to the
/// other then, both ways.
fn one_connects() -> Result<()> {
    let (a, b) = (start_node()?, start_with("b", &["--listen", &socket("b")])?);
    for nodes in [format!("{},{}", a.address, b.address), format!("{},{}", b.address, a.address)] {
        let (said, seen) = traffic(&nodes, "copies between two nodes, one of which connects")?;
        ensure!(!said.contains(THROUGH), "{said}");
        ensure!(seen < SEEN, "{seen} bytes went through the program: {said}");
    }
    a.wait_until_free()?;
    b.wait_until_free()
}

fn copies_go_through_the_client() -> Result<()> {
    let start = |name: &str| start_with(name, &["--listen", &socket(name)]);
    let (a, b) = (start("a")?, start("b")?);
    let (said, seen) = traffic(&format!("{},{}", a.address, b.address), "copies through the client")?;
    ensure!(said.matches(THROUGH).count() == 2, "not said once each way: {said}");
    ensure!(seen > 2.0 * COPIED, "only {seen} bytes went through the program: {said}");
    a.wait_until_free()?;
    b.wait_until_free()
}

/// `--peers`: one of two may be enough, a network that is another one is not, and who forbids it is
/// named.
fn operators_say_where() -> Result<()> {
    let pair = |a: &str, b: &str| -> Result<(Node, Node, String)> {
        let (a, b) = (start_with("a", &["--peers", a])?, start_with("b", &["--peers", b])?);
        let both = format!("{},{}", a.address, b.address);
        Ok((a, b, both))
    };
    for (a, b) in [("none", "127.0.0.0/8"), ("localhost", "none")] {
        let (a, b, both) = pair(a, b)?;
        let (said, seen) = traffic(&both, "copies between two nodes, one of which may connect")?;
        ensure!(!said.contains(THROUGH), "{said}");
        ensure!(seen < SEEN, "{seen} bytes went through the program: {said}");
        a.wait_until_free()?;
        b.wait_until_free()?;
    }
    let (a, b, both) = pair("none", "10.0.0.0/8,198.51.100.7")?;
    let (said, seen) = traffic(&both, "copies between two nodes that may not connect")?;
    let (one, two) = (&a.address, &b.address);
    for part in [
        format!("{one} to {two}: its operator lets it connect to no other node (--peers none)"),
        format!("{two} to {one}: its operator does not let it connect there (--peers)"),
    ] {
        ensure!(said.contains(&part), "no {part:?} in {said}");
    }
    ensure!(said.matches(THROUGH).count() == 2, "not said once each way: {said}");
    ensure!(seen > 2.0 * COPIED, "only {seen} bytes went through the program: {said}");
    a.wait_until_free()?;
    b.wait_until_free()?;

    let mut wrong = Command::new(node::sluice());
    wrong.args(["node", "--listen", "127.0.0.1:0", "--peers", "gpu2:7583"]);
    expect_failure(&mut wrong, "nodes: no place", 2, &["--peers", "gpu2:7583", "10.0.0.0/8"])
}

fn socket(name: &str) -> String {
    format!(
        "unix:{}",
        std::env::temp_dir().join(format!("sluice-nodes-{}-{name}", std::process::id())).display()
    )
}

/// A node with a certificate of its own.
fn start_with(name: &str, options: &[&str]) -> Result<Node> {
    let mut command = Command::new(node::sluice());
    command.args(["node", "--gpus", NODE_GPUS]).args(options);
    if !options.contains(&"--listen") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    Node::start_command(command.env("XDG_DATA_HOME", crate::target_folder().join("nodes").join(name)))
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
