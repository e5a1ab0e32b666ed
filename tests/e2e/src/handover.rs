//! Kernels and host threads that hand data to each other through mapped memory while the kernels
//! run: on the software GPU that nodes have built in, which stops at fences, and on the same as a
//! driver that they load, which nothing stops.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::software_gpu;

use crate::node::{self, Node};
use crate::python;
use crate::relay::{End, Fate, Purpose, Relay};
use crate::{NODE_GPUS, Test, expect_pass, logs, program_file, sluice_run};

pub(crate) const TESTS: &[Test] = &[
    ("mapped memory while kernels run, through shared memory", || through_shared_memory(Lent::BuiltIn)),
    ("mapped memory while kernels run on two nodes", || on_two_nodes(Lent::BuiltIn)),
    ("mapped memory while kernels run on a loaded driver", || through_shared_memory(Lent::Loaded)),
    ("mapped memory while kernels run on two nodes with loaded drivers", || on_two_nodes(Lent::Loaded)),
    ("mapped memory through cuts", || through_cuts(Lent::BuiltIn)),
    ("mapped memory through cuts on a loaded driver", || through_cuts(Lent::Loaded)),
    ("a kernel that nobody answers", || unanswered(Lent::BuiltIn)),
    ("a kernel that nobody answers on a loaded driver", || unanswered(Lent::Loaded)),
    ("mapped memory of two sessions in turns on a loaded driver", in_turns),
];

/// It catches a hang: nothing here waits for time to pass.
const LIMIT: Duration = Duration::from_secs(600);

/// What nodes lend: two software GPUs.
#[derive(Clone, Copy)]
enum Lent {
    BuiltIn,
    Loaded,
}

fn start(lent: Lent, listen: &str) -> Result<Node> {
    let mut command = Command::new(node::sluice());
    command.args(["node", "--listen", listen, "--gpus"]);
    match lent {
        Lent::BuiltIn => command.arg(NODE_GPUS),
        Lent::Loaded => command.env("SLUICE_SOFTGPU", "2,4GiB").arg(software_gpu::by_path()),
    };
    Node::start_command(&mut command)
}

fn start_on_loopback(lent: Lent) -> Result<Node> {
    start(lent, "127.0.0.1:0")
}

fn program() -> Result<PathBuf> {
    let program = logs().join("handover");
    python::nvcc(&program_file("handover.cu"), &program)?;
    Ok(program)
}

fn through_shared_memory(lent: Lent) -> Result<()> {
    let socket = std::env::temp_dir().join(format!("sluice-handover-{}", std::process::id()));
    let node = start(lent, &format!("unix:{}", socket.display()))?;
    let mut command = sluice_run(&node, &["-n", "2"]);
    expect_pass(command.arg(program()?), "mapped memory through shared memory", LIMIT)?;
    node.wait_until_free()
}

/// Over TCP. The two ranks of the program are on two nodes, and every other part of it runs on
/// each.
fn on_two_nodes(lent: Lent) -> Result<()> {
    let (a, b) = (start_on_loopback(lent)?, start_on_loopback(lent)?);
    let mut command = Command::new(node::sluice());
    command.args(["run", "-n", "2", "--node", &format!("{},{}", a.address, b.address), "--"]);
    let ended = expect_pass(command.arg(program()?), "mapped memory on two nodes", LIMIT)?;
    ensure!(ended.output.contains("two ranks on devices 0 and 1"), "{}", ended.output);
    a.wait_until_free()?;
    b.wait_until_free()
}

/// What is handed over is there once and in its order, wherever the messages that tell of it are
/// cut.
fn through_cuts(lent: Lent) -> Result<()> {
    const BYTES: &[u64] = &[20_000, 161, 3_000, 333, 50_000, 1_000, 200_000, 180, 7_000];
    let node = start_on_loopback(lent)?;
    let mut next = BYTES.iter().cycle();
    let relay = Relay::start(&node.address, move |purpose, number| {
        let bytes = match purpose {
            Purpose::Session => Some(300_000),
            Purpose::Resume => next.next().copied(),
            Purpose::Control | Purpose::Sealed => None,
        };
        let end = if number % 2 == 0 { End::Reset } else { End::Close };
        Fate { bytes, end, ..Fate::GOOD }
    })?;
    let mut command = Command::new(node::sluice());
    command.args(["run", "-n", "2", "--node", &relay.address, "--"]).arg(program()?);
    command.env("SLUICE_PACK", "off").env("SLUICE_STRIPES", "1");
    expect_pass(&mut command, "mapped memory through cuts", LIMIT)?;
    eprintln!("   {} cuts", relay.cuts());
    ensure!(relay.cuts() > BYTES.len() as u32, "only {} cuts", relay.cuts());
    node.wait_until_free()
}

/// In the middle of handing over the kernel's time is up, and then the program is killed.
fn unanswered(lent: Lent) -> Result<()> {
    let (node, program) = (start_on_loopback(lent)?, program()?);
    let mut command = sluice_run(&node, &["--kernel-timeout", "5s"]);
    expect_pass(command.arg(&program).arg("unanswered"), "a kernel that nobody answers", LIMIT)?;
    node.wait_until_free()?;
    let mut command = sluice_run(&node, &[]);
    command.arg(&program).arg("unanswered").stdout(Stdio::piped()).stderr(Stdio::null());
    let mut client = command.spawn()?;
    let mut line = String::new();
    BufReader::new(client.stdout.take().context("piped above")?).read_line(&mut line)?;
    client.kill()?;
    client.wait()?;
    ensure!(line.trim() == "served", "the program said {line:?}");
    node.wait_until_free()
}

/// A kernel that is served ends, and then the other session has its turn.
fn in_turns() -> Result<()> {
    let (node, program) = (start_on_loopback(Lent::Loaded)?, program()?);
    std::thread::scope(|scope| {
        let sessions = ["one", "another"].map(|name| {
            let mut command = sluice_run(&node, &["-p", "0.5"]);
            command.arg(&program);
            scope.spawn(move || expect_pass(&mut command, &format!("mapped memory in turns, {name}"), LIMIT))
        });
        sessions.into_iter().try_for_each(|session| session.join().expect("a test panicked").map(drop))
    })?;
    node.wait_until_free()
}
