//! What client and worker keep for each other while one of them does not read: so much and no more,
//! whatever the program does.
//!
//! Either side is stopped while the other is given far more than it may keep. Once that one has
//! come to rest, its peak of resident memory (`VmHWM`, proc_pid_status(5), begun anew before) has
//! grown by its bound at most. A side without a bound does not come to rest before it has taken
//! everything: then the program continues though nobody hears it, or the peak says so.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::node::{self, Node};
use crate::silence::Told;
use crate::{Test, start_node};

pub(crate) const TESTS: &[Test] = &[
    ("bounds of a client whose worker does not read", of_a_client),
    ("bounds of a worker whose client does not read", of_a_worker),
];

const LIMIT: Duration = Duration::from_secs(120);
const MIB: u64 = 1 << 20;
/// More than anybody may keep.
const VOLUME_MIB: u64 = 256;

/// The window of commands that are kept for a worker, whatever the link is taken for
/// (`WINDOW_MAX`), with a last command beyond it, of 4 MiB at most (`FRAME_SIZE_MAX`); 4 MiB of
/// buffers to be used again (`SPARE_BYTES_MAX`); and 24 MiB for what the heap does not give back.
/// On a link as near as this one it is some 10 MiB.
const CLIENT_BYTES: u64 = (128 + 4 + 4 + 24) * MIB;

/// 64 MiB of pieces in which data are staged (`PIECES_MAX`), 8 MiB of small frames that are kept
/// (`WINDOW`), all the text that the program prints, which is 20 MiB; and 96 MiB for stacks and
/// heaps of the threads that copy and print, of which some 40 were seen.
const WORKER_BYTES: u64 = (64 + 8 + 20 + 96) * MIB;

/// A program that floods, its session on the node, and its worker.
fn start(node: &Node, name: &str) -> Result<(Told, i32)> {
    let mut command = Command::new(node::sluice());
    command.args(["run", "-p", "0.5", "--memory", "512MiB", "--node", &node.address, "--"]);
    // Nothing is told in few bytes, or over several connections, because the machine is busy and
    // its own link seems far.
    command.env("SLUICE_RECOGNISE", "off").env("SLUICE_PACK", "off").env("SLUICE_STRIPES", "1");
    let told = Told::start_program(&mut command, "floods.py", name)?;
    let workers = node.workers();
    let [worker] = workers[..] else { bail!("one session has the workers {workers:?}") };
    Ok((told, worker as i32))
}

fn of_a_client() -> Result<()> {
    for word in ["launches", "copies"] {
        let node = start_node()?;
        let (mut told, worker) = start(&node, &format!("a client that floods with {word}"))?;
        let client = told.pid();
        let stopped = Stopped::stop(worker);
        let before = begin_peak(client)?;
        told.tell(&format!("{word} {VOLUME_MIB}"))?;
        wait_until_at_rest(client)?;
        let grown = peak(client)?.saturating_sub(before);
        eprintln!("   with {word} the client grows by {:.1} MiB", grown as f64 / MIB as f64);
        ensure!(grown <= CLIENT_BYTES, "{word}: a client that is not read grows by {grown} bytes");
        ensure!(
            !told.has_said_something(),
            "{VOLUME_MIB} MiB of {word} were queued with nobody who reads them"
        );
        drop(stopped);
        told.expect_done()?;
        let grown = peak(client)?.saturating_sub(before);
        ensure!(grown <= CLIENT_BYTES, "{word}: a client grows by {grown} bytes");
        told.ends_well()?;
        node.wait_until_free()?;
    }
    Ok(())
}

fn of_a_worker() -> Result<()> {
    let node = start_node()?;
    let (mut told, worker) = start(&node, "a client that takes no answers")?;
    let client = told.pid();
    let before = begin_peak(worker)?;
    // It answers nothing before the client is stopped, however late that is.
    let answers = Stopped::stop(worker);
    told.tell(&format!("answers {VOLUME_MIB}"))?;
    told.expect_behind_text("queued")?;
    let stopped = Stopped::stop(client);
    drop(answers);
    wait_until_at_rest(worker)?;
    let grown = peak(worker)?.saturating_sub(before);
    eprintln!("   the worker grows by {:.1} MiB", grown as f64 / MIB as f64);
    ensure!(grown <= WORKER_BYTES, "a worker that nobody hears grows by {grown} bytes");
    drop(stopped);
    told.expect_behind_text("done")?;
    let grown = peak(worker)?.saturating_sub(before);
    ensure!(grown <= WORKER_BYTES, "a worker grows by {grown} bytes");
    told.ends_well()?;
    node.wait_until_free()
}

/// A process that is stopped, and continues when this is dropped.
pub(super) struct Stopped(i32);

impl Stopped {
    pub(super) fn stop(process: i32) -> Stopped {
        signal(process, libc::SIGSTOP);
        Stopped(process)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, libc::SIGCONT);
    }
}

fn signal(process: i32, signal: i32) {
    // SAFETY: kill has no memory effects; program and worker live as long as their session.
    unsafe { libc::kill(process, signal) };
}

/// Bytes that are resident now. The peak counts from here on.
fn begin_peak(process: i32) -> Result<u64> {
    // 5: the peak is what is resident (proc_pid_clear_refs(5)).
    std::fs::write(format!("/proc/{process}/clear_refs"), "5")?;
    of_status(process, "VmRSS:")
}

fn peak(process: i32) -> Result<u64> {
    of_status(process, "VmHWM:")
}

fn of_status(process: i32, name: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.with_context(|| format!("no {name} of {process}"))?.parse::<u64>()? * 1024)
}

/// Waits until a process has used no CPU for a while: it waits for the other one.
fn wait_until_at_rest(process: i32) -> Result<()> {
    const LOOK: Duration = Duration::from_millis(50);
    const LOOKS: u32 = 10;
    let (mut used, mut still) = (ticks(process)?, 0);
    let deadline = Instant::now() + LIMIT;
    while still < LOOKS {
        ensure!(Instant::now() < deadline, "{process} does not come to rest");
        std::thread::sleep(LOOK);
        let now = ticks(process)?;
        // Nobody may have given it a core.
        still = if now == used && !is_running(process)? { still + 1 } else { 0 };
        used = now;
    }
    Ok(())
}

/// Fields of `stat` behind the name, by their numbers in proc_pid_stat(5).
fn field(folder: &str, number: usize) -> Result<String> {
    let stat = std::fs::read_to_string(format!("{folder}/stat"))?;
    let (_, behind) = stat.rsplit_once(')').context("no name")?;
    Ok(behind.split_whitespace().nth(number - 3).context("too short")?.to_owned())
}

/// CPU time so far.
fn ticks(process: i32) -> Result<u64> {
    let folder = format!("/proc/{process}");
    Ok(field(&folder, 14)?.parse::<u64>()? + field(&folder, 15)?.parse::<u64>()?)
}

/// Whether any thread would go on if it had a core.
fn is_running(process: i32) -> Result<bool> {
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        // It may have ended meanwhile.
        let state = field(&thread?.path().to_string_lossy(), 3).unwrap_or_default();
        if state == "R" || state == "D" {
            return Ok(true);
        }
    }
    Ok(false)
}
