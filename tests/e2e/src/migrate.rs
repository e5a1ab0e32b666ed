//! Programs that move to another GPU while they run.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::elastic::{number, sessions_of};
use super::teams::Process;
use super::{Test, bare_program, expect_failure, expect_pass, program_file, sluice_run};
use crate::node::{self, Node};
use crate::relay::{End, Fate, Relay};
use crate::{SHARED_MEMORY_VARIABLE, process};

pub(crate) const TESTS: &[Test] = &[
    ("migrate: a program continues on another GPU", goes_on),
    ("migrate: a program that cannot move stays", stays),
    ("migrate: a program that does nothing meanwhile", does_nothing),
    ("migrate: a program continues on another node", to_another_node),
    ("migrate: a node that does not take a program", not_taken),
    ("migrate: all programs of a node", all_of_a_node),
    ("migrate: nodes with TLS and a token", protected),
    ("migrate: a cut at any byte between the nodes", cut_anywhere),
    ("migrate: the other node's worker or daemon dies", other_dies),
];
pub(crate) const LONG_TESTS: &[Test] = &[("migrate: programs move again and again", move_again_and_again)];

pub(super) const MIB: u64 = 1 << 20;
/// What the program has of a GPU of 1 GiB.
const HELD: u64 = 300 * MIB;
const LIMIT: Duration = Duration::from_secs(300);
/// Programs that run for some seconds and hold nothing that keeps them from moving.
const MOVED: [&str; 3] = ["compute.py", "freed_copies.py", "repeats.py"];

pub(super) fn start_node() -> Result<Node> {
    Node::start(&["--listen", "127.0.0.1:0", "--gpus", "software:2,1GiB"])
}

fn start(command: &mut Command, more: &[&str]) -> Result<Process> {
    start_holding(HELD, command, more)
}

pub(super) fn start_holding(bytes: u64, command: &mut Command, more: &[&str]) -> Result<Process> {
    command.arg("python3").arg(program_file("moved.py")).args([&bytes.to_string(), "7"]).args(more);
    let mut program = Process::start("migrated", command)?;
    program.expect_line("ready")?;
    Ok(program)
}

pub(super) fn run(node: &Node) -> Command {
    sluice_run(node, &["-p", "0.5", "--memory", "512MiB"])
}

fn migrate(node: &Node, lease: &str, gpu: u64) -> Command {
    let mut command = Command::new(node::sluice());
    command.args(["migrate", lease, &gpu.to_string(), "--node", &node.address]);
    command
}

pub(super) fn does(program: &mut Process, lines: &[(&str, &str)]) -> Result<()> {
    lines.iter().try_for_each(|(line, answer)| {
        program.tell(line)?;
        program.expect_line(answer)
    })
}

fn goes_on() -> Result<()> {
    let node = start_node()?;
    let mut program = start(&mut run(&node), &[])?;
    does(&mut program, &[("compute", "computed"), ("check", "right")])?;
    let before = sessions_of(&node)?[0].clone();
    let lease = before["lease"].to_string();
    let mut gpu = number(&before, "gpu");
    for round in 0..4 {
        gpu = 1 - gpu;
        // The kernels may run now, or be on their way.
        program.tell("compute")?;
        process::run(&mut migrate(&node, &lease, gpu))?;
        let after = &sessions_of(&node)?[0];
        ensure!(number(after, "gpu") == gpu, "round {round}: {after}");
        program.expect_line("computed")?;
        does(&mut program, &[("check", "right")])?;
        let after = &sessions_of(&node)?[0];
        ensure!(after["memory_used"] == before["memory_used"], "round {round}: {after}, {before} before");
    }
    let gpus: serde_json::Value = serde_json::from_str(&node.query("gpus")?)?;
    let leased = |gpu: u64| number(&gpus[gpu as usize], "share_leased_ppm");
    ensure!(leased(gpu) == 500_000 && leased(1 - gpu) == 0, "{gpus}");
    expect_failure(&mut migrate(&node, &lease, gpu), "the same GPU", 1, &["already"])?;
    expect_failure(&mut migrate(&node, &lease, 2), "no such GPU", 1, &["no GPU 2", "sluice gpus"])?;
    // A whole GPU is another's.
    let mut other = start(&mut sluice_run(&node, &["-p", "1", "--memory", "512MiB"]), &[])?;
    expect_failure(&mut migrate(&node, &lease, 1 - gpu), "a full GPU", 1, &["free now"])?;
    other.end_its_input()?;
    does(&mut program, &[("check", "right"), ("compute", "computed"), ("check", "right")])?;
    program.end_its_input()?;
    node.wait_until_free()
}

fn migrate_to(from: &Node, lease: &str, to: &str) -> Command {
    let mut command = Command::new(node::sluice());
    command.args(["migrate", lease, "--to", to, "--node", &from.address]);
    command
}

/// There and back, and there again, with kernels under way; the lease goes along with its holder.
fn to_another_node() -> Result<()> {
    let nodes = [start_node()?, start_node()?];
    let mut program = start(&mut run(&nodes[0]), &[])?;
    does(&mut program, &[("compute", "computed"), ("check", "right")])?;
    let before = sessions_of(&nodes[0])?[0].clone();
    for round in 0..3 {
        let (from, to) = (&nodes[round % 2], &nodes[(round + 1) % 2]);
        let lease = sessions_of(from)?[0]["lease"].to_string();
        program.tell("compute")?;
        process::run(&mut migrate_to(from, &lease, &to.address))?;
        from.wait_until_free()?;
        program.expect_line("computed")?;
        does(&mut program, &[("check", "right")])?;
        let after = &sessions_of(to)?[0];
        for same in ["memory_used", "share_ppm", "memory", "name", "process"] {
            ensure!(after[same] == before[same], "round {round}: {same} in {after}, {before} before");
        }
    }
    // There and back with nothing under way: its client asks where it was last.
    for (from, to) in [(1, 0), (0, 1), (1, 0), (0, 1)] {
        let (from, to) = (&nodes[from], &nodes[to]);
        let lease = sessions_of(from)?[0]["lease"].to_string();
        process::run(migrate_to(from, &lease, &to.address).arg("--dry-run"))?;
        process::run(&mut migrate_to(from, &lease, &to.address))?;
        // A way back that is asked for and refused changes nothing.
        let lease = sessions_of(to)?[0]["lease"].to_string();
        expect_failure(&mut migrate_to(to, &lease, &from.address), "its client is away", 1, &["is away"])?;
        does(&mut program, &[("check", "right")])?;
    }
    // A process that begins now has the address of the first node from its parent.
    does(&mut program, &[("child", "child right"), ("compute", "computed"), ("check", "right")])?;
    program.end_its_input()?;
    nodes.iter().try_for_each(Node::wait_until_free)
}

/// One holds a graph, and stays; a dry run has said so before.
fn all_of_a_node() -> Result<()> {
    let nodes = [start_node()?, start_node()?];
    let mut programs = Vec::new();
    for more in [&[][..], &["graph"], &[]] {
        let mut command = sluice_run(&nodes[0], &["-p", "0.3", "--memory", "320MiB"]);
        programs.push(start(&mut command, more)?);
    }
    let stays = "it holds graphs";
    let all = |more: &[&str]| {
        let mut command = Command::new(node::sluice());
        command.args(["migrate", "--all", "--to", &nodes[1].address, "--node", &nodes[0].address]).args(more);
        command
    };
    expect_failure(&mut all(&["--dry-run"]), "a dry run", 1, &[stays, "2 of 3 leases would move"])?;
    ensure!(sessions_of(&nodes[1])?.as_array().is_some_and(Vec::is_empty), "a dry run moves nothing");
    nodes[1].wait_until_free()?;
    expect_failure(&mut all(&[]), "all", 1, &[stays, "2 of 3 leases moved"])?;
    for program in &mut programs {
        does(program, &[("compute", "computed"), ("check", "right")])?;
    }
    let count = |node: &Node| -> Result<usize> { Ok(sessions_of(node)?.as_array().map_or(0, Vec::len)) };
    ensure!((count(&nodes[0])?, count(&nodes[1])?) == (1, 2), "one stays, two are there");
    programs.into_iter().try_for_each(|mut program| program.end_its_input())?;
    nodes.iter().try_for_each(Node::wait_until_free)
}

/// A small program, so that cuts near both ends of a move are most of them.
fn start_small(node: &Node) -> Result<Process> {
    let mut command = sluice_run(node, &["-p", "0.5", "--memory", "64MiB"]);
    command.arg("python3").arg(program_file("moved.py")).args([&(8 * MIB).to_string(), "7"]);
    let mut program = Process::start("migrated", &mut command)?;
    program.expect_line("ready")?;
    Ok(program)
}

/// Wherever the connection between the nodes ends, the program is at one place and continues there.
fn cut_anywhere() -> Result<()> {
    // A node that does not hear what was decided keeps what it has for this time.
    let options = ["--listen", "127.0.0.1:0", "--gpus", "software:1,1GiB", "--linger", "8s"];
    let node = Node::start(&options)?;
    let move_over = |bytes: Option<u64>, end: End| -> Result<(bool, u64)> {
        let other = Node::start(&options)?;
        let relay = Relay::start(&other.address, move |_, number| Fate {
            bytes: bytes.filter(|_| number == 1),
            end,
            ..Fate::GOOD
        })?;
        let mut program = start_small(&node)?;
        let lease = sessions_of(&node)?[0]["lease"].to_string();
        let moved = migrate_to(&node, &lease, &relay.address).output()?.status.success();
        let sent = relay.to_node();
        does(&mut program, &[("compute", "computed"), ("check", "right")])?;
        let here = sessions_of(if moved { &other } else { &node })?;
        ensure!(here.as_array().is_some_and(|all| all.len() == 1), "moved: {moved}; there: {here}");
        program.end_its_input()?;
        node.wait_until_free()?;
        other.wait_until_free()?;
        Ok((moved, sent))
    };
    let (moved, all) = move_over(None, End::Close)?;
    ensure!(moved, "without a cut it moves");
    let ends = all - 40..all + 168;
    let cuts = [0, 60, 2_000, 4 << 20].into_iter().chain(ends.step_by(16));
    let mut outcomes = [0, 0];
    for bytes in cuts {
        let end = if bytes % 32 < 16 { End::Reset } else { End::Close };
        let (moved, _) = move_over(Some(bytes), end).with_context(|| format!("a cut after {bytes} bytes"))?;
        outcomes[usize::from(moved)] += 1;
    }
    eprintln!("   it stayed {} times and moved {} times", outcomes[0], outcomes[1]);
    ensure!(outcomes[0] > 0, "no cut has kept it");
    Ok(())
}

fn other_dies() -> Result<()> {
    const SLOW: Fate = Fate { bytes_per_s: Some(4e6), ..Fate::GOOD };
    let node = start_node()?;
    let mut program = start_small(&node)?;
    let lease = sessions_of(&node)?[0]["lease"].to_string();
    for dies in ["worker", "daemon"] {
        let other = start_node()?;
        let relay = Relay::start(&other.address, |_, _| SLOW)?;
        let mut moving = migrate_to(&node, &lease, &relay.address).stderr(Stdio::piped()).spawn()?;
        while relay.to_node() < 2 << 20 {
            ensure!(moving.try_wait()?.is_none(), "it did not take as long as the link");
        }
        let victim = match dies {
            "worker" => *other.workers().first().context("no worker")?,
            _ => other.pid(),
        };
        // SAFETY: kill touches no memory.
        ensure!(unsafe { libc::kill(victim as libc::pid_t, libc::SIGKILL) } == 0, "{dies}");
        let ended = moving.wait_with_output()?;
        let said = String::from_utf8_lossy(&ended.stderr);
        ensure!(!ended.status.success() && said.contains("stays on GPU"), "{dies}: {said}");
        does(&mut program, &[("compute", "computed"), ("check", "right")])?;
    }
    program.end_its_input()?;
    node.wait_until_free()
}

/// The nodes know each other by fingerprint and by a token that they share; another token is not
/// enough.
fn protected() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let start_protected = |name: &str, token: &str| -> Result<Node> {
        let file = folder.path().join(name);
        std::fs::write(&file, token)?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600))?;
        let mut command = Command::new(node::sluice());
        command.args([
            "node",
            "--listen",
            "127.0.0.1:0",
            "--gpus",
            "software:1,1GiB",
            "--tls",
            "--token-file",
        ]);
        Node::start_command(
            command.arg(file).env("XDG_DATA_HOME", folder.path().join(name.to_owned() + "-data")),
        )
    };
    const TOKEN: &str = "a token of sixteen bytes and more";
    let nodes = [start_protected("one", TOKEN)?, start_protected("two", TOKEN)?];
    let stranger = start_protected("three", "another token of sixteen bytes and more")?;
    let mut command = sluice_run(&nodes[0], &["-p", "0.5", "--memory", "64MiB"]);
    command.env("SLUICE_NODE_TOKEN", TOKEN);
    command.arg("python3").arg(program_file("moved.py")).args([&(8 * MIB).to_string(), "7"]);
    let mut program = Process::start("migrated", &mut command)?;
    program.expect_line("ready")?;
    let mut refused = migrate_to(&nodes[0], "1", &stranger.address);
    expect_failure(refused.env("SLUICE_NODE_TOKEN", TOKEN), "another token", 1, &["another token"])?;
    process::run(migrate_to(&nodes[0], "1", &nodes[1].address).env("SLUICE_NODE_TOKEN", TOKEN))?;
    does(&mut program, &[("compute", "computed"), ("check", "right"), ("child", "child right")])?;
    program.end_its_input()
}

fn not_taken() -> Result<()> {
    let node = start_node()?;
    let small = Node::start(&["--listen", "127.0.0.1:0", "--gpus", "software:1,256MiB"])?;
    let shut = Node::start(&["--listen", "127.0.0.1:0", "--gpus", "software:1,1GiB", "--overcommit", "2"])?;
    let mut program = start(&mut run(&node), &[])?;
    let lease = sessions_of(&node)?[0]["lease"].to_string();
    let cases = [
        (small.address.as_str(), "256.0 MiB"),
        (&shut.address, "overcommits"),
        (&node.address, "already"),
        ("127.0.0.1:1", "connection refused"),
    ];
    for (to, reason) in cases {
        expect_failure(&mut migrate_to(&node, &lease, to), reason, 1, &[reason])?;
        does(&mut program, &[("compute", "computed"), ("check", "right")])?;
    }
    small.wait_until_free()?;
    program.end_its_input()?;
    node.wait_until_free()
}

/// It notices late that its connection is gone: the node waits longer than for other cuts.
fn does_nothing() -> Result<()> {
    let options = ["--listen", "127.0.0.1:0", "--gpus", "software:2,1GiB", "--linger", "10s"];
    let node = Node::start(&options)?;
    // Little memory: a move has to end within the linger time, on a busy machine too.
    let mut program = start_holding(MIB, &mut run(&node), &[])?;
    let session = sessions_of(&node)?[0].clone();
    process::run(&mut migrate(&node, &session["lease"].to_string(), 1 - number(&session, "gpu")))?;
    let moved_at = number(&sessions_of(&node)?[0], "age_ms");
    // Longer than the linger time, as the node counts.
    while let Some(session) = sessions_of(&node)?.get(0)
        && number(session, "age_ms") < moved_at + 12_000
    {
        std::thread::sleep(Duration::from_millis(200));
    }
    does(&mut program, &[("check", "right")])?;
    program.end_its_input()?;
    node.wait_until_free()
}

fn stays() -> Result<()> {
    let node = start_node()?;
    let mut near = run(&node);
    near.env_remove(SHARED_MEMORY_VARIABLE);
    let cases = [(run(&node), &["graph"][..], "it holds graphs"), (near, &[], "on the node's own machine")];
    for (mut command, more, reason) in cases {
        let mut program = start(&mut command, more)?;
        let session = &sessions_of(&node)?[0];
        let (lease, gpu) = (session["lease"].to_string(), number(session, "gpu"));
        let named = session["unmovable"].as_array().map_or(&[][..], Vec::as_slice);
        ensure!(named.iter().any(|named| named.as_str().is_some_and(|it| it.contains(reason))), "{session}");
        expect_failure(&mut migrate(&node, &lease, 1 - gpu), reason, 1, &["stays on GPU", reason])?;
        ensure!(number(&sessions_of(&node)?[0], "gpu") == gpu, "it has moved");
        does(&mut program, &[("compute", "computed"), ("check", "right")])?;
        program.end_its_input()?;
    }
    node.wait_until_free()
}

/// Each program ends as if it had stayed where it was.
fn move_again_and_again() -> Result<()> {
    for name in MOVED {
        let node = start_node()?;
        let mut command = bare_program(&node, &["-p", "0.5", "--memory", "900MiB"], name);
        let (mut moves, mut reasons) = (0, Vec::new());
        std::thread::scope(|scope| -> Result<()> {
            let program = scope.spawn(move || expect_pass(&mut command, name, LIMIT));
            while !program.is_finished() {
                let Some(session) = sessions_of(&node)?.get(0).cloned() else { continue };
                let lease = session["lease"].to_string();
                let moved = migrate(&node, &lease, 1 - number(&session, "gpu")).output()?;
                moves += u32::from(moved.status.success());
                reasons.push(String::from_utf8_lossy(&moved.stderr).into_owned());
            }
            program.join().expect("a test panicked").map(drop).with_context(|| name.to_owned())
        })?;
        eprintln!("   {name}: {moves} moves");
        ensure!(moves > 0, "{name} has never moved: {reasons:?}");
        node.wait_until_free()?;
    }
    Ok(())
}
