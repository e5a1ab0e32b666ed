//! Nodes whose daemon runs another program in its place, while programs compute.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::elastic::{number, sessions_of};
use super::migrate::{MIB, does, start_holding};
use super::teams::Process;
use super::{Test, shares, sluice_run};
use crate::node::{self, Node};
use crate::{SHARED_MEMORY_VARIABLE, process};

pub(crate) const TESTS: &[Test] = &[
    ("upgrade: programs continue through several upgrades", programs_go_on),
    ("upgrade: a program that cannot take over is refused", refused),
    ("upgrade: a lease that is held by a socket file", by_a_socket_file),
    ("upgrade: what leaves the GPU comes back", suspended),
    ("upgrade: shares are kept", shares_are_kept),
];

const HELD: u64 = 20 * MIB;
const PATIENCE: Duration = Duration::from_secs(60);
const DONE: &str = "the node is upgraded from release";
const REFUSED: &str = "the node is not upgraded";

/// A node whose program is a link, which may lead to another one.
struct Upgradable {
    node: Node,
    folder: tempfile::TempDir,
}

impl Upgradable {
    fn start(options: &[&str]) -> Result<Upgradable> {
        let folder = tempfile::tempdir()?;
        let program = folder.path().join("sluice");
        symlink(node::sluice(), &program)?;
        let node = Node::start_command(Command::new(&program).arg("node").args(options))?;
        Ok(Upgradable { node, folder })
    }

    fn on_loopback() -> Result<Upgradable> {
        Upgradable::start(&["--listen", "127.0.0.1:0", "--gpus", "software:1,2GiB"])
    }

    /// What it runs from the next upgrade on.
    fn becomes(&self, program: &Path) -> Result<()> {
        let link = self.folder.path().join("new");
        symlink(program, &link)?;
        Ok(std::fs::rename(link, self.folder.path().join("sluice"))?)
    }

    fn ask(&self) {
        // SAFETY: the node has not been waited for, so its process id is still its own.
        unsafe { libc::kill(self.node.pid() as i32, libc::SIGUSR2) };
    }

    /// Has it upgraded; the answer is for how long its daemon did nothing, in milliseconds.
    fn upgrade(&self) -> Result<u64> {
        let before = said()?;
        self.ask();
        self.outcome(&before)
    }

    fn outcome(&self, before: &str) -> Result<u64> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let all = said()?;
            let news = all.get(before.len()..).unwrap_or_default();
            if let Some((_, done)) = news.split_once(DONE) {
                let took = done.lines().next().and_then(|line| line.split_once("after "));
                let took = took.and_then(|(_, took)| took.split_once(" ms"));
                return Ok(took.context("the time that it took")?.0.parse()?);
            }
            if let Some((_, refused)) = news.split_once(REFUSED) {
                bail!("{REFUSED}{}", refused.lines().next().unwrap_or_default());
            }
            ensure!(Instant::now() < deadline, "it was not upgraded within {PATIENCE:?}: {news}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// What nodes have said so far.
fn said() -> Result<String> {
    Ok(std::fs::read_to_string(node::log()).unwrap_or_default())
}

fn over_tcp(node: &Node, share: &str) -> Command {
    let mut command = sluice_run(node, &["-p", share, "--memory", "512MiB"]);
    command.env(SHARED_MEMORY_VARIABLE, "off");
    command
}

fn computes(program: &mut Process) -> Result<()> {
    does(program, &[("compute", "computed"), ("check", "right")])
}

/// What must not change.
fn identity(node: &Node) -> Result<Vec<serde_json::Value>> {
    let sessions = sessions_of(node)?;
    let sessions = sessions.as_array().context("a list of sessions")?;
    let same = ["session", "lease", "process", "gpu", "share_ppm", "memory", "memory_used"];
    Ok(sessions.iter().map(|of| same.iter().map(|name| of[*name].clone()).collect()).collect())
}

fn programs_go_on() -> Result<()> {
    let upgradable = Upgradable::on_loopback()?;
    let node = &upgradable.node;
    let mut programs = [start_holding(HELD, &mut over_tcp(node, "0.5"), &[])?, {
        start_holding(HELD, &mut over_tcp(node, "0.25"), &[])?
    }];
    programs.iter_mut().try_for_each(computes)?;
    let (before, workers) = (identity(node)?, node.workers());
    let mut stood_ms = Vec::new();
    for round in 0..5 {
        // Kernels may run now, or be under way.
        programs.iter_mut().try_for_each(|program| program.tell("compute"))?;
        stood_ms.push(upgradable.upgrade()?);
        for program in &mut programs {
            program.expect_line("computed")?;
            does(program, &[("check", "right")])?;
        }
        let after = identity(node)?;
        ensure!(after == before, "round {round}: {after:?}, {before:?} before");
        ensure!(node.workers() == workers, "round {round}: other workers");
    }
    let (without, with) = (longest_call(&mut programs[0], || ())?, {
        let before = said()?;
        let longest = longest_call(&mut programs[0], || upgradable.ask())?;
        stood_ms.push(upgradable.outcome(&before)?);
        longest
    });
    eprintln!(
        "   the daemon did nothing for {stood_ms:?} ms; the longest of {CALLS} calls took {with:?} with an upgrade, {without:?} \
         without"
    );
    // All that a lease can do.
    let lease = sessions_of(node)?[0]["lease"].to_string();
    let mut resize = Command::new(node::sluice());
    process::run(resize.args(["resize", &lease, "-p", "0.6", "--node", &node.address]))?;
    ensure!(number(&sessions_of(node)?[0], "share_ppm") == 600_000, "{}", sessions_of(node)?);
    programs.iter_mut().try_for_each(computes)?;
    programs.iter_mut().try_for_each(Process::end_its_input)?;
    node.wait_until_free()?;
    let mut later = start_holding(HELD, &mut over_tcp(node, "1"), &[])?;
    computes(&mut later)?;
    later.end_its_input()?;
    node.wait_until_free()
}

/// By a daemon that was upgraded before and continues from what that one has counted.
fn shares_are_kept() -> Result<()> {
    let upgradable = Upgradable::on_loopback()?;
    let mut program = start_holding(HELD, &mut over_tcp(&upgradable.node, "0.5"), &[])?;
    computes(&mut program)?;
    upgradable.upgrade()?;
    program.end_its_input()?;
    upgradable.upgrade()?;
    upgradable.node.wait_until_free()?;
    shares::pair_on(&upgradable.node, ("0.75", "even"), ("0.25", "even"))
}

const CALLS: u32 = 100;

/// The longest of many rounds of a program; something is done in the middle.
fn longest_call(program: &mut Process, in_the_middle: impl Fn()) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    for call in 0..CALLS {
        if call == CALLS / 2 {
            in_the_middle();
        }
        let begin = Instant::now();
        does(program, &[("compute", "computed")])?;
        longest = longest.max(begin.elapsed());
    }
    does(program, &[("check", "right")])?;
    Ok(longest)
}

fn refused() -> Result<()> {
    let upgradable = Upgradable::on_loopback()?;
    let node = &upgradable.node;
    let mut program = start_holding(HELD, &mut over_tcp(node, "0.5"), &[])?;
    computes(&mut program)?;
    let before = identity(node)?;
    let script = upgradable.folder.path().join("script");
    std::fs::write(&script, "#!/bin/sh\necho it has format 9 >&2\nexit 1\n")?;
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let nothing = upgradable.folder.path().join("nothing");
    let bad: [(PathBuf, &str); 4] = [
        ("/bin/true".into(), "it is no `sluice` that can read a state"),
        ("/bin/false".into(), "it failed without a word"),
        (script, "it has format 9"),
        (nothing, "No such file"),
    ];
    for (bad, words) in bad {
        upgradable.becomes(&bad)?;
        program.tell("compute")?;
        let refusal = upgradable.upgrade().err().context("it was upgraded")?;
        ensure!(format!("{refusal:#}").contains(words), "{}: {refusal:#}", bad.display());
        program.expect_line("computed")?;
        does(&mut program, &[("check", "right")])?;
        ensure!(identity(node)? == before, "{}", bad.display());
    }
    upgradable.becomes(&node::sluice())?;
    upgradable.upgrade()?;
    computes(&mut program)?;
    program.end_its_input()?;
    node.wait_until_free()
}

/// Neither the program nor its holder can come back: both connections are handed over.
fn by_a_socket_file() -> Result<()> {
    let socket = tempfile::tempdir()?;
    let listen = format!("unix:{}", socket.path().join("node").display());
    let upgradable = Upgradable::start(&["--listen", &listen, "--gpus", "software:1,2GiB"])?;
    let node = &upgradable.node;
    let run = || sluice_run(node, &["-p", "0.5", "--memory", "512MiB"]);
    let mut programs = [start_holding(HELD, &mut run(), &[])?, start_holding(HELD, &mut run(), &[])?];
    programs.iter_mut().try_for_each(computes)?;
    for _ in 0..3 {
        programs.iter_mut().try_for_each(|program| program.tell("compute"))?;
        upgradable.upgrade()?;
        for program in &mut programs {
            program.expect_line("computed")?;
            does(program, &[("check", "right")])?;
        }
    }
    let [mut ends, killed] = programs;
    ends.end_its_input()?;
    // The lease ends with the connection that holds it.
    killed.signal(libc::SIGKILL);
    node.wait_until_free()
}

fn suspended() -> Result<()> {
    let upgradable = Upgradable::on_loopback()?;
    let node = &upgradable.node;
    let mut program = start_holding(HELD, &mut over_tcp(node, "0.5"), &[])?;
    computes(&mut program)?;
    let lease = sessions_of(node)?[0]["lease"].to_string();
    let change = |what: &str| {
        let mut command = Command::new(node::sluice());
        process::run(command.args([what, &lease, "--node", &node.address]))
    };
    change("suspend")?;
    let away = number(&sessions_of(node)?[0], "memory_swapped");
    ensure!(away >= HELD, "{}", sessions_of(node)?);
    program.tell("compute")?;
    upgradable.upgrade()?;
    ensure!(number(&sessions_of(node)?[0], "memory_swapped") == away, "{}", sessions_of(node)?);
    change("resume")?;
    program.expect_line("computed")?;
    does(&mut program, &[("check", "right")])?;
    upgradable.upgrade()?;
    computes(&mut program)?;
    program.end_its_input()?;
    node.wait_until_free()
}
