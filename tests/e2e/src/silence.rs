//! Links that end without a word, and clients that are stopped: both sides notice, and the session
//! continues.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::Skipped;
use crate::namespaces::Separation;
use crate::node::{self, Node};
use crate::relay::{End, Fate, Relay};
use crate::{NODE_GPUS, Test, logs, program_file, start_node, tail};

pub(crate) const TESTS: &[Test] = &[
    ("an idle session that a NAT forgets", forgotten),
    ("a stopped client", stopped_client),
    ("a stopped worker is told from a node that is away", stopped_worker),
    ("a stopped worker on the same host", stopped_beside),
    ("a long kernel on the same host is not silence", long_kernel),
    ("a dead link under an idle session and under answers", dead_link),
];

/// What waits for longer than anybody likes to.
pub(crate) const LONG_TESTS: &[Test] = &[("a worker on the same host that stays stopped", given_up)];

/// What a program's user hears while a worker on the same host is silent, and of its end.
const SILENT: &str = "has not answered for 9 s";
const GIVEN_UP: &str = "is lost (nothing has come for 90 s)";

/// Nothing takes longer, unless it hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// A program that does what it is told, `told.py`.
pub(super) struct Told {
    child: Child,
    words: Option<ChildStdin>,
    lines: Receiver<String>,
    log: PathBuf,
    /// The program itself, not `sluice run`.
    pid: i32,
}

impl Told {
    /// Runs it under `command`, which lacks the program, and waits until its session is there.
    pub(super) fn start(command: &mut Command, name: &str) -> Result<Told> {
        Told::start_program(command, "told.py", name)
    }

    /// Another program that is told what to do.
    pub(super) fn start_program(command: &mut Command, program: &str, name: &str) -> Result<Told> {
        let log = logs().join(format!("{}.log", name.replace(' ', "-")));
        command.arg("python3").arg(program_file(program));
        let said = std::fs::File::create(&log)?;
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(said).spawn()?;
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().context("piped above")?);
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let words = child.stdin.take();
        let mut told = Told { child, words, lines, log, pid: 0 };
        let ready = told.next()?;
        told.pid = ready.strip_prefix("ready ").with_context(|| format!("it said {ready:?}"))?.parse()?;
        Ok(told)
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    pub(super) fn has_said_something(&mut self) -> bool {
        self.lines.try_recv().is_ok()
    }

    pub(super) fn next(&mut self) -> Result<String> {
        self.lines.recv_timeout(LIMIT).map_err(|error| {
            let said = std::fs::read_to_string(&self.log).unwrap_or_default();
            anyhow::anyhow!("the program says nothing ({error}): {}", tail(&said))
        })
    }

    pub(super) fn tell(&mut self, word: &str) -> Result<()> {
        writeln!(self.words.as_mut().context("it has ended")?, "{word}")?;
        Ok(())
    }

    /// Device code may print before.
    pub(super) fn expect_behind_text(&mut self, word: &str) -> Result<()> {
        while !self.next()?.ends_with(word) {}
        Ok(())
    }

    pub(super) fn expect_done(&mut self) -> Result<()> {
        let line = self.next()?;
        ensure!(line == "done", "it said {line:?}");
        Ok(())
    }

    pub(super) fn does(&mut self, word: &str) -> Result<()> {
        self.tell(word)?;
        self.expect_done()
    }

    /// What it has said on stderr, once that has this in it so often, or long after it should have.
    fn hears(&self, part: &str, times: usize) -> Result<String> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let said = std::fs::read_to_string(&self.log)?;
            if said.matches(part).count() >= times || Instant::now() > deadline {
                return Ok(said);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal(&self, signal: i32) {
        // SAFETY: kill has no memory effects; the program has not said its last word, so the number
        // is its own.
        unsafe { libc::kill(self.pid, signal) };
    }

    /// Told this, it ends with an error, and stderr says so.
    pub(super) fn ends_badly(mut self, word: &str, part: &str) -> Result<String> {
        // It may have ended by now.
        let _ = self.tell(word);
        self.words = None;
        // Until the end of its output.
        while self.lines.recv_timeout(LIMIT).is_ok() {}
        let status = self.child.wait()?;
        let said = std::fs::read_to_string(&self.log)?;
        ensure!(!status.success(), "it ended well");
        ensure!(said.contains(part), "no {part:?} in {}", tail(&said));
        Ok(said)
    }

    pub(super) fn ends_well(mut self) -> Result<()> {
        self.words = None;
        let line = self.next()?;
        ensure!(line.starts_with("PASS"), "it said {line:?}");
        let status = self.child.wait()?;
        ensure!(status.success(), "it passed and ended with {status}");
        Ok(())
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        // No test leaves one behind, stopped or not.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(libc::SIGCONT);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

pub(super) fn run(address: &str) -> Command {
    let mut command = Command::new(node::sluice());
    command.args(["run", "-p", "0.5", "--memory", "512MiB", "--node", address, "--"]);
    command
}

/// Nobody asks for anything, and the way for packets of this connection is gone in both directions;
/// another connection finds one.
fn forgotten() -> Result<()> {
    let node = start_node()?;
    let relay = Relay::start(&node.address, |_, _| Fate { end: End::Silence, ..Fate::GOOD })?;
    let mut told = Told::start(&mut run(&relay.address), "an idle session that a NAT forgets")?;
    told.does("count")?;
    relay.forget_sessions();
    told.does("count")?;
    ensure!(relay.cuts() == 1, "{} cuts", relay.cuts());
    told.does("read")?;
    told.ends_well()?;
    node.wait_until_free()
}

/// A client that is stopped, as a debugger does it, takes nothing. To its worker that is a dead
/// peer, and the client comes back. Its kernel continues to receive into a buffer that grows to the
/// size of a whole answer, of which nothing is under way then; so that buffer is kept small.
fn stopped_client() -> Result<()> {
    let separation = Separation::new().map_err(|error| Skipped(format!("{error:#}")))?;
    separation.bound_receive_buffers(64 << 10)?;
    let node = separation.start_node()?;
    let mut command = separation.client(&node, &["-p", "0.5", "--memory", "512MiB"]);
    let mut told = Told::start(&mut command, "a stopped client")?;
    told.does("reads")?;
    let mut rounds = 0;
    loop {
        rounds += 1;
        ensure!(rounds <= 8, "a worker does not give up a client that takes nothing");
        told.signal(libc::SIGSTOP);
        let parted = node.wait_until_parted(Duration::from_secs(30))?;
        told.signal(libc::SIGCONT);
        if let Some(after) = parted {
            eprintln!("   the worker gave the stopped client up after {:.1} s", after.as_secs_f64());
            break;
        }
        // It was stopped right between two copies, when nothing was under way to it. It has to run
        // before it is stopped again.
        told.does("count")?;
    }
    told.does("enough")?;
    told.does("count")?;
    told.ends_well()?;
    node.wait_until_free()
}

/// The daemon answers and the worker does not, which is what the program's user hears; then it goes
/// on.
fn stopped_worker() -> Result<()> {
    let node = start_node()?;
    let mut told = Told::start(&mut run(&node.address), "a stopped worker")?;
    told.does("count")?;
    let [worker] = node.workers()[..] else { bail!("one session has the workers {:?}", node.workers()) };
    signal(worker, libc::SIGSTOP);
    told.tell("count")?;
    let said = told.hears("is cut: ", 1)?;
    signal(worker, libc::SIGCONT);
    ensure!(said.contains("it answers, but the worker of this session does not"), "{}", tail(&said));
    told.expect_done()?;
    told.ends_well()?;
    node.wait_until_free()
}

/// A node whose sessions go through shared memory.
fn start_beside(name: &str) -> Result<Node> {
    let folder = crate::target_folder().join("unix-node");
    std::fs::create_dir_all(&folder)?;
    let listen = format!("unix:{}", folder.join(name).display());
    Node::start(&["--listen", &listen, "--gpus", NODE_GPUS])
}

/// Nothing connects such a session anew: its user hears that the worker is silent, and it continues
/// once the worker does.
fn stopped_beside() -> Result<()> {
    let node = start_beside("stopped.sock")?;
    let mut told = Told::start(&mut run(&node.address), "a stopped worker on the same host")?;
    told.does("count")?;
    let [worker] = node.workers()[..] else { bail!("one session has the workers {:?}", node.workers()) };
    for (word, times) in [("count", 1), ("read", 2)] {
        signal(worker, libc::SIGSTOP);
        told.tell(word)?;
        let said = told.hears(SILENT, times)?;
        signal(worker, libc::SIGCONT);
        ensure!(said.matches(SILENT).count() == times, "it is to be said once: {}", tail(&said));
        told.expect_done()?;
    }
    told.does("count")?;
    told.ends_well()?;
    node.wait_until_free()
}

/// A worker whose driver is busy shows that it is there, also where it takes no more commands.
fn long_kernel() -> Result<()> {
    let node = start_beside("long.sock")?;
    let mut told = Told::start(&mut run(&node.address), "a long kernel on the same host")?;
    told.does("queue")?;
    let said = std::fs::read_to_string(&told.log)?;
    ensure!(!said.contains("has not answered"), "{}", tail(&said));
    told.ends_well()?;
    node.wait_until_free()
}

/// In the end the call that waits fails, and so does every later one.
fn given_up() -> Result<()> {
    let node = start_beside("given-up.sock")?;
    let mut told = Told::start(&mut run(&node.address), "a worker that stays stopped")?;
    told.does("count")?;
    let [worker] = node.workers()[..] else { bail!("one session has the workers {:?}", node.workers()) };
    signal(worker, libc::SIGSTOP);
    let ended = told.ends_badly("count", GIVEN_UP);
    signal(worker, libc::SIGCONT);
    let said = ended?;
    ensure!(said.contains(SILENT) && said.contains("CUDA_ERROR_DEVICE_UNAVAILABLE"), "{}", tail(&said));
    node.wait_until_free()
}

/// Packets reach nobody, and no side hears of it.
fn dead_link() -> Result<()> {
    let separation = Separation::new().map_err(|error| Skipped(format!("{error:#}")))?;
    let node = separation.start_node()?;
    let mut command = separation.client(&node, &["-p", "0.5", "--memory", "512MiB"]);
    let mut told = Told::start(&mut command, "a dead link")?;
    told.does("count")?;

    separation.cut_cable()?;
    expect_parting(&node, "nothing under way")?;
    separation.mend_cable()?;
    told.does("count")?;

    // What fits into the socket, which only the limit on what is unacknowledged notices, and what
    // does not.
    for word in ["count", "read"] {
        let [worker] = node.workers()[..] else { bail!("one session has the workers {:?}", node.workers()) };
        signal(worker, libc::SIGSTOP);
        told.tell(word)?;
        wait_until_asked(&node)?;
        separation.cut_cable()?;
        signal(worker, libc::SIGCONT);
        expect_parting(&node, &format!("the answers to {word:?} under way"))?;
        separation.mend_cable()?;
        told.expect_done()?;
    }
    told.does("count")?;
    told.ends_well()?;
    node.wait_until_free()
}

fn expect_parting(node: &Node, what: &str) -> Result<()> {
    let after = node.wait_until_parted(LIMIT)?;
    let after = after.with_context(|| format!("with {what} the node does not notice a dead link"))?;
    eprintln!("   with {what} the node noticed after {:.1} s", after.as_secs_f64());
    Ok(())
}

fn signal(worker: u32, signal: i32) {
    // SAFETY: kill has no memory effects; the worker lives as long as its session.
    unsafe { libc::kill(worker as i32, signal) };
}

/// Waits until something has come for a worker that is stopped, as `/proc/PID/net/tcp` shows it
/// (proc_net_tcp in the kernel's documentation). A worker is in a network namespace of its own, and
/// its socket in that of the node.
fn wait_until_asked(node: &Node) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    let has_unread = |line: &str| {
        let queues = line.split_whitespace().nth(4)?;
        Some(queues.split_once(':')?.1.bytes().any(|digit| digit != b'0'))
    };
    while Instant::now() < deadline {
        let table = std::fs::read_to_string(format!("/proc/{}/net/tcp", node.pid()))?;
        if table.lines().skip(1).any(|line| has_unread(line) == Some(true)) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    bail!("nothing comes for the worker")
}
