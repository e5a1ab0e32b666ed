//! What a session may not do, and what it leaves behind: memory, time, addresses, killed clients.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use harness::software_gpu;

use crate::node::{self, Node};
use crate::{NODE_GPUS, Test, bare_program, expect_pass, start_node, tail};

pub(crate) const TESTS: &[Test] = &[
    ("memory limit", memory_limit),
    ("host memory limit", host_memory_limit),
    ("kernels run in the worker", kernels_run_in_the_worker),
    ("illegal address", illegal_address),
    ("kernels that cannot run", kernels_that_cannot_run),
    ("refused calls", refused_calls),
    ("kernel timeout", kernel_timeout),
    ("endless kernel dies with its client", endless_kernel_dies_with_its_client),
    ("a worker is confined", worker_is_confined),
    ("machine code only", machine_code_only),
    ("two devices", two_devices),
    ("copies hold nobody up", copies_hold_nobody_up),
    ("100 kills", hundred_kills),
];

const LIMIT: Duration = Duration::from_secs(120);

fn memory_limit() -> Result<()> {
    let node = start_node()?;
    let mut command = bare_program(&node, &["-p", "0.25", "--memory", "256MiB"], "memory_limit.py");
    expect_pass(command.env("MEMORY", (256u64 << 20).to_string()), "memory limit", LIMIT)?;
    node.wait_until_free()?;
    // Without --memory: the share's part of the card, here a quarter of 4 GiB.
    let mut command = bare_program(&node, &["-p", "0.25"], "memory_limit.py");
    expect_pass(command.env("MEMORY", (1u64 << 30).to_string()), "memory of a share", LIMIT)?;
    node.wait_until_free()
}

/// Of the node's own memory. The program's user is told which limit it is.
fn host_memory_limit() -> Result<()> {
    let mut node = Command::new(node::sluice());
    node.args(["node", "--listen", "127.0.0.1:0", "--gpus", NODE_GPUS, "--host-memory", "64MiB"]);
    // An image stays in memory while it is being written to a cache on disk, and there is none
    // without these.
    let node = Node::start_command(node.env("HOME", "").env("XDG_CACHE_HOME", ""))?;
    let mut command = bare_program(&node, &["-p", "0.25"], "host_memory.py");
    let ended = expect_pass(command.env("LIMIT", (64u64 << 20).to_string()), "host memory limit", LIMIT)?;
    let said = ended.output.lines().filter(|line| line.contains("--host-memory")).count();
    ensure!(said == 1, "the limit is said {said} times: {}", tail(&ended.output));
    node.wait_until_free()
}

/// The CPU time of the kernels is the worker's, not the client's.
fn kernels_run_in_the_worker() -> Result<()> {
    // CPU of client and worker.
    let computes = |seconds: &str| -> Result<[Duration; 2]> {
        let node = start_node()?;
        let mut command = bare_program(&node, &[], "compute.py");
        command.env("SECONDS", seconds).env("KIND", "long");
        let ended = expect_pass(&mut command, "kernels run in the worker", LIMIT)?;
        node.wait_until_free()?;
        Ok([ended.cpu, node.ended_workers_cpu()?])
    };
    // The start of Python costs as much however much is computed, and is no small part of what a
    // busy machine lets the worker have.
    let ([start, _], [client, worker]) = (computes("0.1")?, computes("3")?);
    let client = client.saturating_sub(start);
    eprintln!("   worker {:.2} s of CPU, client {:.2} s", worker.as_secs_f64(), client.as_secs_f64());
    ensure!(client < worker / 4, "the client used {client:?} of CPU, the worker {worker:?}");
    Ok(())
}

fn two_devices() -> Result<()> {
    let node = start_node()?;
    let options = ["-n", "2", "-p", "0.25"];
    expect_pass(&mut bare_program(&node, &options, "driver_functions.py"), "two devices", LIMIT)?;
    node.wait_until_free()?;
    expect_pass(&mut bare_program(&node, &options, "two_gpus.py"), "two devices", LIMIT)?;
    node.wait_until_free()
}

fn copies_hold_nobody_up() -> Result<()> {
    let node = start_node()?;
    let mut command = bare_program(&node, &["-p", "0.25"], "held_copies.py");
    expect_pass(&mut command, "copies hold nobody up", LIMIT)?;
    node.wait_until_free()
}

fn illegal_address() -> Result<()> {
    let node = start_node()?;
    expect_pass(&mut bare_program(&node, &["-p", "0.5"], "illegal_address.py"), "illegal address", LIMIT)?;
    node.wait_until_free()
}

/// The program's user reads which kernel it is, and where and why it cannot run.
fn kernels_that_cannot_run() -> Result<()> {
    let node = start_node()?;
    let ended =
        expect_pass(&mut bare_program(&node, &[], "unfit_kernels.py"), "kernels that cannot run", LIMIT)?;
    for said in [
        "kernel large: uses too much local memory: 1048576 bytes a thread",
        "kernel unknown: illegal instruction in block (0, 0, 0): PTX line 7: wgmma.fence.sync.aligned",
    ] {
        ensure!(ended.output.contains(said), "not said: {said}: {}", tail(&ended.output));
    }
    node.wait_until_free()
}

/// On a driver that computes, on one that is loaded, and on one that does not compute.
fn refused_calls() -> Result<()> {
    for (name, gpus, computes) in [
        ("refused calls", NODE_GPUS, "1"),
        ("refused calls of a driver by its path", &software_gpu::by_path(), "1"),
        ("refused calls on recording", "recording:h200", ""),
    ] {
        let node = Node::start(&["--listen", "127.0.0.1:0", "--gpus", gpus])?;
        let mut command = bare_program(&node, &[], "refused.py");
        let ended = expect_pass(command.env("COMPUTES", computes), name, LIMIT).context(name)?;
        let said = "cuLaunchKernel was refused after it had returned, and a later call returns why: CUDA_ERROR_INVALID_VALUE";
        ensure!(ended.output.matches(said).count() == 1, "{}", tail(&ended.output));
        node.wait_until_free()?;
    }
    Ok(())
}

fn kernel_timeout() -> Result<()> {
    let node = start_node()?;
    let mut command = bare_program(&node, &["--kernel-timeout", "500ms"], "endless.py");
    expect_pass(command.env("EXPECT", "timeout"), "kernel timeout", LIMIT)?;
    node.wait_until_free()
}

fn endless_kernel_dies_with_its_client() -> Result<()> {
    let node = start_node()?;
    let mut client = start_endless(&node)?;
    client.kill()?;
    client.wait()?;
    node.wait_until_free()
}

/// Every thread of a worker in the middle of its session has the filters, and nothing is open that
/// is not the session's. What the filters refuse is tested in `crates/worker/tests/sandbox.rs`.
fn worker_is_confined() -> Result<()> {
    let node = start_node()?;
    let mut client = start_endless(&node)?;
    let workers = node.workers();
    let [worker] = workers[..] else { bail!("one session has the workers {workers:?}") };
    let confined = confined(worker);
    client.kill()?;
    client.wait()?;
    confined?;
    node.wait_until_free()
}

fn confined(worker: u32) -> Result<()> {
    for thread in std::fs::read_dir(format!("/proc/{worker}/task"))? {
        let Some(status) = lasting(std::fs::read_to_string(thread?.path().join("status")))? else { continue };
        for line in ["NoNewPrivs:\t1", "Seccomp:\t2"] {
            ensure!(status.lines().any(|l| l == line), "no {line:?} in {status}");
        }
    }
    for descriptor in std::fs::read_dir(format!("/proc/{worker}/fd"))? {
        let path = descriptor?.path();
        let Some(target) = lasting(std::fs::read_link(&path))? else { continue };
        let target = target.display().to_string();
        // The folder of images, and those that the session may count on; with a mount namespace of
        // the worker's the folder is `/cache`.
        if target.contains("/sluice/images") || target.starts_with("/cache") {
            continue;
        }
        let number: u32 = path.file_name().and_then(|n| n.to_str()).context("a number")?.parse()?;
        // Standard streams, and what the daemon hands down; the client's socket is there twice.
        ensure!(number <= 7, "descriptor {number} is {target}");
        ensure!(number <= 2 || target.starts_with("socket:") || target.starts_with("/memfd:"), "{target}");
    }
    Ok(())
}

/// What was read, unless the thread or the descriptor that was listed is gone by now.
fn lasting<T>(read: std::io::Result<T>) -> Result<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A client whose kernel runs without end.
pub(crate) fn start_endless(node: &Node) -> Result<Child> {
    launched(bare_program(node, &[], "endless.py"))
}

/// Starts a client by the caller's command, and waits for its kernel.
pub(crate) fn launched(mut command: Command) -> Result<Child> {
    let mut client = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut line = String::new();
    BufReader::new(client.stdout.take().context("piped above")?).read_line(&mut line)?;
    ensure!(line.trim() == "launched", "the program said {line:?}");
    Ok(client)
}

fn machine_code_only() -> Result<()> {
    let node = start_node()?;
    let ended =
        expect_pass(&mut bare_program(&node, &[], "machine_code_only.py"), "machine code only", LIMIT)?;
    ensure!(ended.output.contains("PTX"), "no line says that PTX is needed: {}", tail(&ended.output));
    Ok(())
}

/// SIGKILL at random points, the program itself or `sluice run`, leaves nothing behind.
fn hundred_kills() -> Result<()> {
    const KILLS: u32 = 100;
    const LATEST_MS: u64 = 300;
    let node = start_node()?;
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let mut random = seed.unwrap_or_else(|| u64::from(std::process::id()) << 20 | 1);
    eprintln!("   seed {random}");
    for kill in 0..KILLS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let delay = Duration::from_millis((random >> 33) % LATEST_MS);
        let mut command = bare_program(&node, &["-q", "-p", "0.25", "--memory", "128MiB"], "victim.py");
        let mut client = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        std::thread::sleep(delay); // the random point itself, not a wait for something
        let target = match kill % 2 {
            0 => client.id(),
            _ => child_of(client.id()).unwrap_or(client.id()),
        };
        // SAFETY: kill has no memory effects; the target is our child, or a child of it that it
        // still waits for.
        unsafe { libc::kill(target as i32, libc::SIGKILL) };
        client.wait()?;
    }
    node.wait_until_free()?;
    // And the node still works.
    let mut command = bare_program(&node, &["-p", "0.25", "--memory", "256MiB"], "memory_limit.py");
    expect_pass(command.env("MEMORY", (256u64 << 20).to_string()), "after 100 kills", LIMIT)?;
    node.wait_until_free()
}

fn child_of(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}
