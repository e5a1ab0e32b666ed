//! Programs whose forked children continue with clones of their sessions (`SLUICE_FORK=clone`).

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::elastic::sessions_of;
use super::migrate::{MIB, start_node};
use super::teams::Process;
use super::{Test, expect_pass, finish, program_file, sluice_run};
use crate::SHARED_MEMORY_VARIABLE;
use crate::node::{self, Node};

pub(crate) const TESTS: &[Test] = &[
    ("forks: children compute with what their parent has loaded, and write their own", workers),
    ("forks: other threads, and the processes of a pool", threads_and_pools),
    ("forks: children outlive their parent", orphans),
    ("forks: a parent is killed while it forks", killed),
    ("forks: a child without a session has an error and its reason", refused),
    ("forks: a program forks while its GPU waits for it", held),
];

/// What the programs hold: several commitments.
const HELD: u64 = 100 * MIB;
const LIMIT: Duration = Duration::from_secs(300);

fn forks(node: &Node, memory: &str, kind: &str) -> Command {
    let mut command = sluice_run(node, &["-p", "0.5", "--memory", memory]);
    command.arg("python3").arg(program_file("forks.py")).args([kind, &HELD.to_string()]);
    command.env("SLUICE_FORK", "clone");
    command
}

fn passes(node: &Node, kind: &str, change: impl FnOnce(&mut Command)) -> Result<()> {
    let mut command = forks(node, "700MiB", kind);
    change(&mut command);
    let ended = expect_pass(&mut command, &format!("forks {kind}"), LIMIT)?;
    ensure!(!ended.output.contains("has no GPU"), "{}", ended.output);
    node.wait_until_free()
}

/// Over a connection that can be taken up again, over one that cannot, and with TLS.
fn workers() -> Result<()> {
    let node = start_node()?;
    passes(&node, "workers", |_| ())?;
    passes(&node, "workers", |command| _ = command.env_remove(SHARED_MEMORY_VARIABLE))?;
    drop(node);
    let data = tempfile::tempdir()?;
    let mut command = Command::new(node::sluice());
    command.args(["node", "--listen", "127.0.0.1:0", "--gpus", "software:1,1GiB", "--tls"]);
    let node = Node::start_command(command.env("XDG_DATA_HOME", data.path()))?;
    passes(&node, "workers", |_| ())
}

fn threads_and_pools() -> Result<()> {
    let node = start_node()?;
    passes(&node, "threads", |_| ())?;
    passes(&node, "pool", |_| ())
}

fn orphans() -> Result<()> {
    let node = start_node()?;
    passes(&node, "orphans", |_| ())
}

/// No session of a killed program or of the clones that it has asked for is left, while its lease
/// continues.
fn killed() -> Result<()> {
    let node = start_node()?;
    let mut command = forks(&node, "700MiB", "killed");
    let mut program = Process::start("killed", &mut command)?;
    program.expect_line("killed")?;
    let deadline = std::time::Instant::now() + LIMIT;
    loop {
        let sessions = sessions_of(&node)?;
        if sessions.as_array().is_some_and(Vec::is_empty) {
            break;
        }
        ensure!(std::time::Instant::now() < deadline, "left: {sessions}");
        std::thread::sleep(Duration::from_millis(10));
    }
    program.end_its_input()?;
    node.wait_until_free()
}

fn refused() -> Result<()> {
    let node = start_node()?;
    let says = |command: &mut Command, name: &str, parts: &[&str]| -> Result<()> {
        let ended = finish(command, name, LIMIT)?;
        ensure!(ended.code == Some(0) && ended.output.contains("PASS"), "{}", ended.output);
        parts.iter().try_for_each(|part| {
            ensure!(ended.output.contains(part), "no {part:?} in {}", ended.output);
            Ok(())
        })?;
        node.wait_until_free()
    };
    // CUDA_ERROR_OUT_OF_MEMORY.
    let mut full = forks(&node, "160MiB", "refused");
    let parts = ["a clone needs 10", " of the 160.0 MiB of lease", "sluice resize"];
    says(full.env("CODE", "2"), "forks without memory", &parts)?;
    // CUDA_ERROR_NOT_SUPPORTED.
    let mut graph = forks(&node, "700MiB", "refused");
    says(graph.env("CODE", "801").env("GRAPH", "1"), "forks with a graph", &["it holds graphs"])?;
    let mut shared = forks(&node, "700MiB", "refused");
    let parts = ["host memory of cuMemCreate"];
    says(shared.env("CODE", "801").env("HOST_MEMORY", "1"), "forks with host memory", &parts)?;
    // CUDA_ERROR_NOT_INITIALIZED, as on any driver.
    let mut plain = forks(&node, "700MiB", "refused");
    says(plain.env("CODE", "3").env_remove("SLUICE_FORK"), "forks without clones", &[])?;
    let mut wrong = forks(&node, "700MiB", "refused");
    says(
        wrong.env("CODE", "3").env("SLUICE_FORK", "copy"),
        "forks in another way",
        &["SLUICE_FORK is \"copy\""],
    )
}

/// The fork does not wait for ever for a function that cannot return meanwhile.
fn held() -> Result<()> {
    let node = start_node()?;
    // CUDA_ERROR_NOT_READY.
    let mut command = forks(&node, "700MiB", "held");
    let ended = expect_pass(command.env("CODE", "600"), "forks held", LIMIT)?;
    ensure!(ended.output.contains("has not ended for 20 s"), "{}", ended.output);
    node.wait_until_free()
}
