//! Programs that are copied into folders while they run, stopped there, and restored.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::elastic::sessions_of;
use super::migrate::{MIB, does, run, start_holding, start_node};
use super::teams::Process;
use super::{Test, expect_failure, sluice_run};
use crate::node::{self, Node};
use crate::process;
use crate::relay::{End, Fate, Relay};

pub(crate) const TESTS: &[Test] = &[
    ("checkpoint: a program continues, and only what has changed is copied again", goes_on),
    ("checkpoint: one after the other, until the program ends", one_after_the_other),
    ("checkpoint: a stopped program continues on another node", to_another_node),
    ("checkpoint: a stopped program continues on its own node", on_its_node),
    ("checkpoint: the daemon is killed after a stop", daemon_is_gone),
    ("checkpoint: the node of an idle program is killed", idle_on_a_lost_node),
    ("checkpoint: the node of an idle program is started anew", idle_on_a_node_that_is_new),
    ("checkpoint: an encrypted one is restored with its key alone", encrypted),
    ("checkpoint: a program that is elsewhere than its checkpoint is refused", refusals),
    ("checkpoint: a cut at any byte leaves the program and the former checkpoint", cut_anywhere),
];

/// What the programs have of a GPU: several chunks.
const HELD: u64 = 20 * MIB;

fn start(command: &mut Command) -> Result<Process> {
    start_holding(HELD, command, &[])
}

/// A folder for a checkpoint, which is not there yet.
struct Saved(tempfile::TempDir);

impl Saved {
    fn new() -> Result<Saved> {
        Ok(Saved(tempfile::tempdir()?))
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("saved")
    }
}

fn checkpoint(node: &str, lease: &str, folder: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(node::sluice());
    command.args(["checkpoint", lease]).arg(folder).args(["--node", node]).args(more);
    command
}

fn restore(node: &str, folder: &Path) -> Command {
    let mut command = Command::new(node::sluice());
    command.arg("restore").arg(folder).args(["--node", node]);
    command
}

fn lease_of(node: &Node) -> Result<String> {
    Ok(sessions_of(node)?[0]["lease"].to_string())
}

/// What a command that succeeds has said.
fn said(command: &mut Command) -> Result<String> {
    eprintln!("$ {}", process::show(command));
    let ended = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    ensure!(ended.status.success(), "{} ended with {}: {said}", process::show(command), ended.status);
    Ok(said)
}

fn count(node: &Node) -> Result<usize> {
    Ok(sessions_of(node)?.as_array().map_or(0, Vec::len))
}

/// Stops the only program of a node.
fn stop(node: &Node, folder: &Path) -> Result<()> {
    let said = said(&mut checkpoint(&node.address, &lease_of(node)?, folder, &["--stop"]))?;
    ensure!(said.contains("has left its node"), "{said}");
    node.wait_until_free()
}

/// Each is said, and the last one is whole. A node that refuses one gets the next one all the same.
fn one_after_the_other() -> Result<()> {
    let (node, saved) = (start_node()?, Saved::new()?);
    let mut program = start(&mut run(&node))?;
    let lease = lease_of(&node)?;
    let mut command = checkpoint(&node.address, &lease, &saved.path(), &["--every", "1s"]);
    let mut saving = Process::start("checkpoints", &mut command)?;
    for count in 1..4 {
        does(&mut program, &[("compute", "computed"), ("check", "right")])?;
        saving.expect_messages(" it stood still for ", count)?;
    }
    does(&mut program, &[("check", "right")])?;
    program.end_its_input()?;
    saving.expect_message("any more; ")?;
    saving.expect_success()?;
    let mut again = checkpoint(&node.address, &lease, &saved.path(), &["--every", "1s"]);
    expect_failure(&mut again, "a lease that has ended", 1, &["sluice: "])?;
    Ok(())
}

fn goes_on() -> Result<()> {
    let (node, saved) = (start_node()?, Saved::new()?);
    let mut program = start(&mut run(&node))?;
    does(&mut program, &[("compute", "computed"), ("check", "right")])?;
    let (before, lease) = (sessions_of(&node)?[0].clone(), lease_of(&node)?);
    let save = || said(&mut checkpoint(&node.address, &lease, &saved.path(), &[]));
    for round in 0..3 {
        // The kernels may run now, or be in flight.
        program.tell("compute")?;
        let first = save()?;
        ensure!(first.contains(" it stood still for "), "round {round}: {first}");
        program.expect_line("computed")?;
        does(&mut program, &[("check", "right")])?;
        save()?;
        // Twice while nothing happens: the client has not noticed the first one.
        for _ in 0..2 {
            let again = save()?;
            ensure!(again.contains(" 0 B were copied "), "round {round}: {again}");
        }
        does(&mut program, &[("check", "right")])?;
    }
    let after = &sessions_of(&node)?[0];
    for same in ["session", "gpu", "memory_used"] {
        ensure!(after[same] == before[same], "{same} in {after}, {before} before");
    }
    // Its program is beyond it.
    expect_failure(&mut restore(&node.address, &saved.path()), "gone on", 1, &["has gone on since"])?;
    program.end_its_input()?;
    node.wait_until_free()
}

fn to_another_node() -> Result<()> {
    let (nodes, saved) = ([start_node()?, start_node()?], Saved::new()?);
    let mut program = start(&mut run(&nodes[0]))?;
    does(&mut program, &[("compute", "computed"), ("check", "right")])?;
    let before = sessions_of(&nodes[0])?[0].clone();
    for round in 0..3 {
        let (from, to) = (&nodes[round % 2], &nodes[(round + 1) % 2]);
        // Its call waits for as long as it takes.
        program.tell("compute")?;
        stop(from, &saved.path())?;
        process::run(&mut restore(&to.address, &saved.path()))?;
        program.expect_line("computed")?;
        does(&mut program, &[("check", "right")])?;
        let after = &sessions_of(to)?[0];
        for same in ["memory_used", "share_ppm", "memory", "name", "process"] {
            ensure!(after[same] == before[same], "round {round}: {same} in {after}, {before} before");
        }
        let again = restore(&from.address, &saved.path());
        expect_failure(&mut { again }, "restored twice", 1, &["was restored on", "gone on since"])?;
    }
    // A process that begins now has the address of the first node from its parent.
    does(&mut program, &[("child", "child right"), ("compute", "computed"), ("check", "right")])?;
    program.end_its_input()?;
    nodes.iter().try_for_each(Node::wait_until_free)
}

fn on_its_node() -> Result<()> {
    let (node, saved) = (start_node()?, Saved::new()?);
    let mut program = start(&mut run(&node))?;
    for _ in 0..2 {
        program.tell("compute")?;
        stop(&node, &saved.path())?;
        // Its room is free for others meanwhile.
        let mut other = start_holding(HELD, &mut sluice_run(&node, &["-p", "1", "--memory", "1GiB"]), &[])?;
        other.end_its_input()?;
        node.wait_until_free()?;
        // Without a name it is the node that it was on.
        let mut command = Command::new(node::sluice());
        process::run(command.arg("restore").arg(saved.path()).env_remove("SLUICE_NODE"))?;
        program.expect_line("computed")?;
        does(&mut program, &[("check", "right")])?;
    }
    does(&mut program, &[("child", "child right")])?;
    program.end_its_input()?;
    node.wait_until_free()
}

/// The note on this machine leads the program to its new node.
fn daemon_is_gone() -> Result<()> {
    let (mut node, other, saved) = (start_node()?, start_node()?, Saved::new()?);
    let mut program = start(&mut run(&node))?;
    does(&mut program, &[("compute", "computed")])?;
    program.tell("compute")?;
    stop(&node, &saved.path())?;
    node.end(libc::SIGKILL);
    process::run(&mut restore(&other.address, &saved.path()))?;
    program.expect_line("computed")?;
    does(&mut program, &[("check", "right"), ("compute", "computed"), ("check", "right")])?;
    program.end_its_input()?;
    other.wait_until_free()
}

/// It has done nothing since its checkpoint, so it continues from there: restored by hand, and by
/// the command that makes the checkpoints. The next call of one that has gone on
/// fails.
fn idle_on_a_lost_node() -> Result<()> {
    // What has gone on looks for its session for the linger time.
    let linger = ["--listen", "127.0.0.1:0", "--gpus", "software:2,1GiB", "--linger", "30s"];
    let start_node = || Node::start(&linger);
    let (mut first, mut second, mut third, last) =
        (start_node()?, start_node()?, start_node()?, start_node()?);
    let saved = Saved::new()?;
    let mut program = start(&mut run(&first))?;
    does(&mut program, &[("compute", "computed"), ("check", "right")])?;
    said(&mut checkpoint(&first.address, &lease_of(&first)?, &saved.path(), &[]))?;
    first.end(libc::SIGKILL);
    let mut by_default = restore(&second.address, &saved.path());
    expect_failure(&mut by_default, "not stopped", 1, &["--former-node-is-gone"])?;
    let by_hand = said(restore(&second.address, &saved.path()).arg("--former-node-is-gone"))?;
    ensure!(by_hand.contains("if it has made no CUDA call since"), "{by_hand}");
    does(&mut program, &[("check", "right"), ("compute", "computed"), ("check", "right")])?;
    let again = ["--every", "1h", "--if-lost", &third.address];
    let lease = lease_of(&second)?;
    let mut saving = checkpoint(&second.address, &lease, &saved.path(), &again);
    let mut saving = Process::start("checkpoints", &mut saving)?;
    saving.expect_message(" it stood still for ")?;
    second.end(libc::SIGKILL);
    saving.expect_message("nothing listens at ")?;
    saving.expect_success()?;
    does(&mut program, &[("check", "right"), ("compute", "computed"), ("check", "right")])?;
    said(&mut checkpoint(&third.address, &lease_of(&third)?, &saved.path(), &[]))?;
    does(&mut program, &[("compute", "computed")])?;
    third.end(libc::SIGKILL);
    said(restore(&last.address, &saved.path()).arg("--former-node-is-gone"))?;
    program.tell("check")?;
    ensure!(!program.end()?.success(), "it has gone on from an earlier moment");
    last.wait_until_free()
}

/// The number of its lease is another program's before the command looks again, or soon after: that
/// program stays out of the folder, and the first one continues elsewhere.
fn idle_on_a_node_that_is_new() -> Result<()> {
    let listen =
        |address: &str| Node::start(&["--listen", address, "--gpus", "software:2,1GiB", "--linger", "30s"]);
    let (mut node, spare, saved) = (listen("127.0.0.1:0")?, start_node()?, Saved::new()?);
    let mut program = start(&mut run(&node))?;
    does(&mut program, &[("compute", "computed"), ("check", "right")])?;
    let (address, lease) = (node.address.clone(), lease_of(&node)?);
    let again = ["--every", "1s", "--if-lost", &spare.address];
    let mut saving = Process::start("checkpoints", &mut checkpoint(&address, &lease, &saved.path(), &again))?;
    saving.expect_message(" it stood still for ")?;
    node.end(libc::SIGKILL);
    let node = listen(&address)?;
    let mut other = start_small(&node)?;
    ensure!(lease_of(&node)? == lease, "the numbers begin again");
    saving.expect_message("its program continues there if it has made no CUDA call since")?;
    saving.expect_success()?;
    does(&mut program, &[("check", "right"), ("compute", "computed"), ("check", "right")])?;
    // Its lease may stay on the spare node for the linger time: docs/limitations.md.
    program.end_its_input()?;
    other.end_its_input()?;
    node.wait_until_free()
}

/// The first checkpoint makes the key; what has not changed is found again under its other name.
fn encrypted() -> Result<()> {
    let (nodes, saved) = ([start_node()?, start_node()?], Saved::new()?);
    let (key, other) = (saved.0.path().join("key"), saved.0.path().join("other"));
    let [key_file, other_file] = [&key, &other].map(|path| path.to_string_lossy().into_owned());
    let mut program = start(&mut run(&nodes[0]))?;
    does(&mut program, &[("compute", "computed"), ("check", "right")])?;
    let lease = lease_of(&nodes[0])?;
    let save = |more: &[&str]| checkpoint(&nodes[0].address, &lease, &saved.path(), more);
    let first = said(&mut save(&["--key-file", &key_file]))?;
    ensure!(first.contains("made a key"), "{first}");
    let again = said(&mut save(&["--key-file", &key_file]))?;
    ensure!(again.contains(" 0 B were copied ") && !again.contains("made a key"), "{again}");
    std::fs::write(&other, "1".repeat(64))?;
    std::fs::set_permissions(&other, std::fs::metadata(&key)?.permissions())?;
    expect_failure(&mut save(&["--stop"]), "without its key", 1, &["is encrypted", "--key-file"])?;
    let wrong = ["--stop", "--key-file", &other_file];
    expect_failure(&mut save(&wrong), "with another key", 1, &["another key"])?;
    does(&mut program, &[("check", "right")])?;
    program.tell("compute")?;
    said(&mut save(&["--stop", "--key-file", &key_file]))?;
    nodes[0].wait_until_free()?;
    let restore = || restore(&nodes[1].address, &saved.path());
    expect_failure(&mut restore(), "without its key", 1, &["is encrypted", "--key-file"])?;
    let mut wrong = restore();
    expect_failure(wrong.args(["--key-file", &other_file]), "with another key", 1, &["another key"])?;
    process::run(restore().args(["--key-file", &key_file]))?;
    program.expect_line("computed")?;
    does(&mut program, &[("check", "right"), ("compute", "computed"), ("check", "right")])?;
    program.end_its_input()?;
    nodes[1].wait_until_free()
}

fn refusals() -> Result<()> {
    let (node, saved) = (start_node()?, Saved::new()?);
    let mut held =
        start_holding(MIB, &mut sluice_run(&node, &["-p", "0.2", "--memory", "64MiB"]), &["graph"])?;
    let lease = lease_of(&node)?;
    let mut stays = checkpoint(&node.address, &lease, &saved.path(), &["--stop"]);
    expect_failure(&mut stays, "a graph", 1, &["cannot be copied", "it holds graphs"])?;
    does(&mut held, &[("compute", "computed"), ("check", "right")])?;
    held.end_its_input()?;
    node.wait_until_free()?;
    expect_failure(&mut restore(&node.address, &saved.path()), "no checkpoint", 1, &["holds no checkpoint"])?;
    let mut no_lease = checkpoint(&node.address, "99", &saved.path(), &[]);
    expect_failure(&mut no_lease, "no lease", 1, &["no lease or session 99"])?;
    // The only copy of a program is not overwritten.
    let mut program = start_small(&node)?;
    stop(&node, &saved.path())?;
    let mut other = start_small(&node)?;
    let mut over = checkpoint(&node.address, &lease_of(&node)?, &saved.path(), &[]);
    expect_failure(&mut over, "not restored yet", 1, &["not restored yet"])?;
    other.end_its_input()?;
    node.wait_until_free()?;
    // A damaged chunk is named, and the program waits on.
    let chunk = a_chunk(&saved.path())?;
    let whole = std::fs::read(&chunk)?;
    std::fs::write(&chunk, &whole[..whole.len() / 2])?;
    let name = chunk.to_string_lossy().into_owned();
    expect_failure(&mut restore(&node.address, &saved.path()), "a damaged chunk", 1, &[&name, "is damaged"])?;
    node.wait_until_free()?;
    std::fs::write(&chunk, whole)?;
    process::run(&mut restore(&node.address, &saved.path()))?;
    does(&mut program, &[("check", "right"), ("compute", "computed"), ("check", "right")])?;
    program.end_its_input()?;
    node.wait_until_free()
}

fn a_chunk(folder: &Path) -> Result<std::path::PathBuf> {
    let first = |folder: &Path| -> Result<std::path::PathBuf> {
        Ok(std::fs::read_dir(folder)?.next().context("an empty folder")??.path())
    };
    first(&first(&folder.join("chunks"))?)
}

/// A small program, so that cuts near both ends of a checkpoint are most of them.
fn start_small(node: &Node) -> Result<Process> {
    start_holding(8 * MIB, &mut sluice_run(node, &["-p", "0.2", "--memory", "64MiB"]), &[])
}

/// Wherever the connection to the node ends, the program continues where it was, and the former
/// checkpoint is whole.
fn cut_anywhere() -> Result<()> {
    let (node, saved) = (start_node()?, Saved::new()?);
    let mut program = start_small(&node)?;
    let lease = lease_of(&node)?;
    process::run(&mut checkpoint(&node.address, &lease, &saved.path(), &[]))?;
    let manifest = || std::fs::read(saved.path().join("manifest"));
    let former = manifest()?;
    let mut failed = 0;
    for bytes in [0, 60, 400, 5_000, 300_000, 5 << 20, 7 << 20] {
        does(&mut program, &[("compute", "computed")])?;
        let end = if bytes % 16 < 8 { End::Reset } else { End::Close };
        let relay = Relay::start(&node.address, move |_, _| Fate { bytes: Some(bytes), end, ..Fate::GOOD })?;
        let ended = checkpoint(&relay.address, &lease, &saved.path(), &["--stop"]).output()?;
        ensure!(!ended.status.success(), "a cut after {bytes} bytes");
        ensure!(manifest()? == former, "a cut after {bytes} bytes has changed the checkpoint");
        failed += 1;
        does(&mut program, &[("check", "right")])?;
        ensure!(count(&node)? == 1, "a cut after {bytes} bytes");
    }
    eprintln!("   {failed} cuts");
    program.tell("compute")?;
    stop(&node, &saved.path())?;
    process::run(&mut restore(&node.address, &saved.path()))?;
    program.expect_line("computed")?;
    does(&mut program, &[("check", "right")])?;
    program.end_its_input()?;
    node.wait_until_free()
}
