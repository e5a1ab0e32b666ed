//! What carries a session: over a Unix socket, shared memory; over TCP, the socket.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::SHARED_MEMORY_VARIABLE;
use crate::Skipped;
use crate::bounds::Stopped;
use crate::cuts::run_through;
use crate::limits::launched;
use crate::namespaces::Separation;
use crate::node::{self, Node};
use crate::packets::Shape;
use crate::relay::{Fate, Relay};
use crate::silence::Told;
use crate::target_folder;
use crate::{NODE_GPUS, Test, bare_program, expect_pass, program_file, sluice_run, start_node};

pub(crate) const TESTS: &[Test] = &[
    ("shared memory on the same host", shared_memory),
    ("shared memory of a node on the network", nearby),
    ("a far and lossy link", far_and_lossy),
    ("what is known costs no message", known),
    ("a polled event costs no round trip", polled),
    ("what is allowed costs no round trip", unasked),
    ("what is known of images costs no round trip", images),
];

/// The memory file that a worker shares with its client, as `/proc/PID/maps` shows it.
const RINGS: &str = "/memfd:sluice-rings";
const LIMIT: Duration = Duration::from_secs(120);

fn shared_memory() -> Result<()> {
    let folder = crate::target_folder().join("unix-node");
    std::fs::create_dir_all(&folder)?;
    let listen = format!("unix:{}", folder.join("node.sock").display());
    let node = Node::start(&["--listen", &listen, "--gpus", NODE_GPUS])?;
    ensure!(worker_maps(&node)?.contains(RINGS), "a session over a Unix socket shares no memory");
    node.wait_until_free()?;
    for program in ["driver_functions.py", "counts.py"] {
        expect_pass(&mut bare_program(&node, &["-p", "0.5"], program), "shared memory", LIMIT)?;
    }
    node.wait_until_free()
}

/// A node that listens on TCP has a socket for programs of its machine. Who is in another network,
/// or wants it so, goes over TCP.
fn nearby() -> Result<()> {
    let node = start_node()?;
    ensure!(!worker_maps(&node)?.contains(RINGS), "a session over TCP shares memory");
    node.wait_until_free()?;
    let run = |options: &[&str], program| {
        let mut command = bare_program(&node, options, program);
        command.env_remove(SHARED_MEMORY_VARIABLE);
        command
    };
    ensure!(
        worker_maps_of(&node, run(&[], "endless.py"))?.contains(RINGS),
        "a session on the same machine shares no memory"
    );
    node.wait_until_free()?;
    expect_pass(&mut run(&["-p", "0.5"], "counts.py"), "shared memory of a node on the network", LIMIT)?;
    node.wait_until_free()?;
    // Its address alone is nobody's way to a GPU.
    let sockets = std::fs::read_to_string("/proc/net/unix")?;
    let named = sockets.lines().filter_map(|line| line.split_whitespace().last());
    let names: Vec<&str> = named.filter(|name| name.starts_with("@sluice-node-")).collect();
    // Other tests' nodes come and go.
    let refuses = |name: &&str| -> Result<bool> {
        let socket = format!("unix:{name}");
        let asked = Command::new(node::sluice()).args(["run", "--node", &socket, "--", "true"]).output()?;
        let said = String::from_utf8_lossy(&asked.stderr);
        Ok(!asked.status.success() && said.contains("for sessions of leases"))
    };
    for name in &names {
        if refuses(name)? {
            return Ok(());
        }
    }
    bail!("none of the sockets {names:?} refused to lend")
}

/// Beyond a slow link a program hears when the event that it polls is done, and its questions until
/// then need nobody to answer them.
fn polled() -> Result<()> {
    let node = start_node()?;
    let relay = Relay::start(&node.address, |_, _| Fate { delay: Duration::from_millis(10), ..Fate::GOOD })?;
    let mut command = run_through(&relay, &[]);
    let mut told = Told::start_program(&mut command, "polled.py", "a polled event")?;
    let workers = node.workers();
    let [worker] = workers[..] else { bail!("one session has the workers {workers:?}") };
    // The second time the node was asked to tell when the event was recorded.
    for _ in 0..2 {
        told.does("hold")?;
        let stopped = Stopped::stop(worker as i32);
        told.does("poll")?;
        drop(stopped);
        told.does("open")?;
        let _stopped = Stopped::stop(worker as i32);
        told.does("ended")?;
    }
    told.does("follows")?;
    told.ends_well()?;
    node.wait_until_free()
}

/// Many questions about what is done leave the program as few bytes: one that travels takes more
/// than ten.
fn known() -> Result<()> {
    /// Questions of each of nine kinds; each that travels takes at least eight bytes.
    const COUNT: u64 = 2000;
    for delay in [Duration::ZERO, Duration::from_millis(5)] {
        let [few, many] = [bytes_of_questions(delay, 0)?, bytes_of_questions(delay, COUNT)?];
        ensure!(many.saturating_sub(few) < COUNT * 8, "{few} bytes without questions, {many} with them");
    }
    Ok(())
}

/// Bytes that go to the node while a program asks `count` questions of each kind.
fn bytes_of_questions(delay: Duration, count: u64) -> Result<u64> {
    let node = start_node()?;
    let relay = Relay::start(&node.address, move |_, _| Fate { delay, ..Fate::GOOD })?;
    let mut command = run_through(&relay, &["python3".as_ref(), &program_file("known.py")]);
    expect_pass(command.env("COUNT", count.to_string()), "what is known", LIMIT)?;
    node.wait_until_free()?;
    Ok(relay.to_node())
}

/// A worker that is stopped answers nothing, and the program continues: it makes all that it may
/// make unasked.
fn unasked() -> Result<()> {
    /// A sixty-fourth of the lease's memory.
    const ALLOWED: u64 = 16 << 20;
    let node = start_node()?;
    let mut command = Command::new(node::sluice());
    command.args(["run", "-p", "0.5", "--memory", "1GiB", "--node", &node.address, "--"]);
    command.env("ALLOWED", ALLOWED.to_string());
    let mut told = Told::start_program(&mut command, "unasked.py", "what is allowed costs no round trip")?;
    let workers = node.workers();
    let [worker] = workers[..] else { bail!("one session has the workers {workers:?}") };
    // Also after the program has had all of its lease, what was kept for it included.
    for word in ["check", "fill", "check"] {
        if word == "check" {
            let _stopped = Stopped::stop(worker as i32);
            told.does("use")?;
        }
        told.does(word)?;
    }
    told.ends_well()?;
    node.wait_until_free()
}

/// Those that are whole: one that is being written has an extension.
fn images_in(folder: &Path) -> Result<usize> {
    let files = std::fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    Ok(files.iter().filter(|file| file.path().extension().is_none()).count())
}

/// What one process was told of images the next one knows, whether the node still has the images or
/// not.
fn images() -> Result<()> {
    let caches = target_folder().join("facts");
    let _ = std::fs::remove_dir_all(&caches);
    for (node_has, is_known) in [("some", false), ("some", true), ("none", true)] {
        let mut command = Command::new(node::sluice());
        command.args(["node", "--listen", "127.0.0.1:0", "--gpus", NODE_GPUS]);
        let node = Node::start_command(command.env("XDG_CACHE_HOME", caches.join(node_has)))?;
        let mut command = sluice_run(&node, &["-p", "0.5"]);
        command.env("XDG_CACHE_HOME", caches.join("client"));
        let mut told =
            Told::start_program(&mut command, "images.py", "what is known of images costs no round trip")?;
        let workers = node.workers();
        let [worker] = workers[..] else { bail!("one session has the workers {workers:?}") };
        // The node is asked once which images it has.
        told.does("begin")?;
        {
            // What the node does not have is sent; only what is large is asked about first.
            let _stopped = (is_known && node_has == "some").then(|| Stopped::stop(worker as i32));
            told.does("use")?;
        }
        told.does("check")?;
        // Nobody waits for the node's disk.
        let deadline = Instant::now() + LIMIT;
        while images_in(&caches.join(node_has).join("sluice/images"))? < 6 {
            ensure!(Instant::now() < deadline, "the node has not kept all images");
            std::thread::sleep(Duration::from_millis(10));
        }
        told.ends_well()?;
        node.wait_until_free()?;
    }
    Ok(())
}

/// What the worker of a session in progress has mapped. The client is killed then.
fn worker_maps(node: &Node) -> Result<String> {
    worker_maps_of(node, bare_program(node, &[], "endless.py"))
}

fn worker_maps_of(node: &Node, command: Command) -> Result<String> {
    let mut client = launched(command)?;
    let maps = match node.workers()[..] {
        [worker] => std::fs::read_to_string(format!("/proc/{worker}/maps")),
        ref workers => bail!("one session has the workers {workers:?}"),
    };
    client.kill()?;
    client.wait()?;
    Ok(maps?)
}

/// Several connections with TLS over the kernel's own TCP, which loses packets and sends them
/// again.
fn far_and_lossy() -> Result<()> {
    let shape = Shape { round_trip: Duration::from_millis(20), bytes_per_s: 50e6, loses_one_of: 300 };
    let separation = Separation::far(shape).map_err(|error| Skipped(format!("{error:#}")))?;
    let node = separation.start_node()?;
    let mut command = separation.client(&node, &["-p", "0.5"]);
    command.arg("python3").arg(program_file("counts.py")).env("ROUNDS", "10");
    expect_pass(&mut command, "a far and lossy link", LIMIT)?;
    node.wait_until_free()
}
