//! Each mistake gets one clear message with the way out; nothing hangs.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::node::{self, Node};
use crate::{
    NODE_GPUS, Test, bare_program, expect_failure, expect_pass, program_file, sluice_run, start_node,
};

pub(crate) const TESTS: &[Test] = &[
    ("unknown host", unknown_host),
    ("refused connection", refused_connection),
    ("a server that is no node", no_node),
    ("shares and sizes", shares_and_sizes),
    ("programs that cannot be started", programs_that_cannot_be_started),
    ("exit codes and streams", exit_codes_and_streams),
    ("a node that dies", a_node_that_dies),
    ("garbage", garbage),
    ("private node", private_node),
];

fn run_on(address: &str) -> Command {
    let mut command = Command::new(node::sluice());
    command.args(["run", "--node", address, "--", "true"]);
    command
}

fn unknown_host() -> Result<()> {
    let host = "no-such-host.invalid:7583";
    expect_failure(&mut run_on(host), "unknown host", 125, &["no-such-host.invalid"])?;
    expect_failure(&mut run_on("no-port"), "no port", 125, &["no-port", "HOST:PORT"])
}

fn refused_connection() -> Result<()> {
    // Below the ports that a system gives out, so nobody takes it meanwhile.
    let free = "127.0.0.1:1";
    expect_failure(&mut run_on(free), "refused connection", 125, &[free, "sluice node"])
}

/// A server that accepts and then says nothing, or something else, is not waited for.
fn no_node() -> Result<()> {
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let address = silent.local_addr()?.to_string();
    expect_failure(&mut run_on(&address), "silent server", 125, &[&address])?;
    let talkative = TcpListener::bind("127.0.0.1:0")?;
    let address = talkative.local_addr()?.to_string();
    std::thread::spawn(move || {
        use std::io::Write;
        for connection in talkative.incoming().flatten() {
            let _ = (&connection).write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    expect_failure(&mut run_on(&address), "http server", 125, &[&address])
}

fn shares_and_sizes() -> Result<()> {
    let node = start_node()?;
    let run = |options: &[&str]| {
        let mut command = sluice_run(&node, options);
        command.arg("true");
        command
    };
    for share in ["0", "1.5", "-1", "half"] {
        expect_failure(&mut run(&[&format!("--share={share}")]), "share", 2, &["above 0 and at most 1"])?;
    }
    expect_failure(&mut run(&["--memory", "lots"]), "memory", 2, &["lots"])?;
    expect_failure(&mut run(&["--memory", "1TiB"]), "memory", 125, &["TiB", "GiB"])?;
    expect_failure(&mut run(&["-n", "3"]), "GPUs", 125, &["2"])?;
    expect_failure(&mut run(&["-n", "0"]), "GPUs", 125, &["1 to 2 GPUs"])?;
    node.wait_until_free()
}

fn programs_that_cannot_be_started() -> Result<()> {
    let node = start_node()?;
    let text = program_file("kernels.cu");
    expect_failure(sluice_run(&node, &[]).arg("no-such-program"), "no program", 127, &["no-such-program"])?;
    expect_failure(sluice_run(&node, &[]).arg(text), "not executable", 126, &["not executable"])?;
    node.wait_until_free()
}

fn exit_codes_and_streams() -> Result<()> {
    let node = start_node()?;
    let output = sluice_run(&node, &[])
        .args(["sh", "-c", "cat; echo out; echo err >&2; exit 42"])
        .stdin(Stdio::null())
        .output()?;
    ensure!(output.status.code() == Some(42), "exit code {:?}", output.status.code());
    ensure!(output.stdout == b"out\n", "stdout is {:?}", String::from_utf8_lossy(&output.stdout));
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(stderr.lines().any(|line| line == "err"), "stderr is {stderr:?}");
    expect_failure(sluice_run(&node, &[]).args(["sh", "-c", "kill -TERM $$"]), "signal", 128 + 15, &[])?;
    let quiet = sluice_run(&node, &["-q"]).args(["sh", "-c", "echo err >&2"]).output()?;
    ensure!(quiet.stderr == b"err\n", "stderr of -q is {:?}", String::from_utf8_lossy(&quiet.stderr));
    node.wait_until_free()
}

/// The program gets a CUDA error and ends; it does not hang.
fn a_node_that_dies() -> Result<()> {
    use std::io::{BufRead, BufReader};
    // As long as it would have waited for the program, the program waits for it.
    let node = Node::start(&["--listen", "127.0.0.1:0", "--gpus", NODE_GPUS, "--linger", "3s"])?;
    let mut client =
        bare_program(&node, &[], "endless.py").stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut line = String::new();
    BufReader::new(client.stdout.take().context("piped above")?).read_line(&mut line)?;
    ensure!(line.trim() == "launched", "the program said {line:?}");
    // SAFETY: the node is our child and has not been waited for.
    unsafe { libc::kill(node.pid() as i32, libc::SIGKILL) };
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while client.try_wait()?.is_none() {
        if std::time::Instant::now() > deadline {
            client.kill()?;
            client.wait()?;
            anyhow::bail!("the program still waits 30 s after its node died");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn garbage() -> Result<()> {
    let node = start_node()?;
    let (host, port) = node.address.rsplit_once(':').context("HOST:PORT")?;
    let mut command = Command::new("python3");
    command.arg(program_file("garbage.py")).args([host, port]);
    expect_pass(&mut command, "garbage", Duration::from_secs(120))?;
    let mut command = bare_program(&node, &["--memory", "256MiB"], "memory_limit.py");
    expect_pass(command.env("MEMORY", (256u64 << 20).to_string()), "after garbage", Duration::from_secs(60))?;
    node.wait_until_free()
}

/// Without --node: a node of its own, gone with the program.
fn private_node() -> Result<()> {
    let mut command = Command::new(node::sluice());
    command.args(["run", "--gpus", "software:1,1GiB", "--", "python3"]).arg(program_file("memory_limit.py"));
    command.env_remove("SLUICE_NODE").env("MEMORY", (1u64 << 30).to_string());
    expect_pass(&mut command, "private node", Duration::from_secs(60))?;
    Ok(())
}
