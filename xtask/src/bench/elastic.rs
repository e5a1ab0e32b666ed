//! Memory that leaves a GPU and returns, and programs that share a GPU whose memory does not
//! suffice.

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Figures, between, machine, ratios, show, values};
use crate::node::{self, Node};
use crate::process;

pub(super) const NAME: &str = "elastic";

const RUNS: usize = 5;
const MIB: u64 = 1 << 20;
/// What each of the two programs holds whose memory is moved.
pub(super) const MOVED: u64 = 512 * MIB;
/// The GPU that is overcommitted, and what each of its three programs holds of it.
const GPU: u64 = 512 * MIB;
const HELD: u64 = GPU * 7 / 10 / (2 * MIB) * (2 * MIB);
const PROGRAMS: usize = 3;
/// What each of them computes alone, in seconds, so that it has several time slices beside others.
const ALONE_S: f64 = 20.0;

/// Measures, and returns the tables.
pub(super) fn run() -> Result<String> {
    let moves = (0..RUNS).map(|_| moves()).collect::<Result<Vec<_>>>()?;
    let filed = (0..RUNS).map(|_| by_way_of_a_file()).collect::<Result<Vec<_>>>()?;
    let migrations = (0..RUNS).map(|_| migration()).collect::<Result<Vec<_>>>()?;
    let over =
        |rate: &str, bits: f64| (0..RUNS).map(|_| between::migration(rate, bits)).collect::<Result<Vec<_>>>();
    let (over_1, over_10) = (over("1gbit", 1e9)?, over("10gbit", 1e10)?);
    let shared = shared()?;
    let ratio = |name: &str, baseline: &str| show(ratios(&moves, name, baseline));
    let ms = |name: &str| show(values(&moves, name));
    Ok(format!(
        "A software GPU on {}. A plain copy is `memcpy`\n\
         of as many bytes, into memory that was written before, in the same run; of both ways at once\n\
         two threads copy at once. Measured by `cargo xtask bench {NAME}`; median of {RUNS} runs, lowest and highest in brackets.\n\n\
         | {} MiB leave or return | rate, as a part of a plain copy's | ms |\n|---|---|---|\n\
         | to host memory | {} | {} |\n| back | {} | {} |\n| to host memory, while another program's return | {} | {} |\n\
         | back, while another program's leave | {} | {} |\n\
         | to a swap file | {} | {} |\n| back from there | {} | {} |\n| `sluice suspend`, from its start to its end | - | {} |\n\
         | `sluice resume`, and the first kernels over all of the memory | - | {} |\n\
         | `sluice migrate`: the program stands still | {} | {} |\n\
         | `sluice migrate`, and the first kernels over all of the memory | - | {} |\n\n\
         | {} MiB move to another node over a link of | the program stands still, ms | of that, bytes on the link |\n|---|---|---|\n\
         | 1 Gb/s | {} | {} |\n| 10 Gb/s | {} | {} |\n\n\
         {PROGRAMS} programs that each hold 0.7 of a GPU of {} MiB and compute, one run:\n\n\
         | what | figure |\n|---|---|\n\
         | all at once, overcommitted, against one after the other | {:.2} |\n\
         | part of that time in which memory was moved | {:.1} % |\n\
         | moves out of the GPU | {:.0} |\n",
        machine(),
        MOVED / MIB,
        ratio("copy_ms", "out_ms"),
        ms("out_ms"),
        ratio("copy_ms", "in_ms"),
        ms("in_ms"),
        ratio("copies_ms", "both_out_ms"),
        ms("both_out_ms"),
        ratio("copies_ms", "both_in_ms"),
        ms("both_in_ms"),
        show(ratios(&filed, "copy_ms", "out_ms")),
        show(values(&filed, "out_ms")),
        show(ratios(&filed, "copy_ms", "in_ms")),
        show(values(&filed, "in_ms")),
        ms("suspend_ms"),
        ms("resume_ms"),
        show(ratios(&migrations, "copy_ms", "stall_ms")),
        show(values(&migrations, "stall_ms")),
        show(values(&migrations, "migrate_ms")),
        MOVED / MIB,
        show(values(&over_1, "stall_ms")),
        show(ratios(&over_1, "link_ms", "stall_ms")),
        show(values(&over_10, "stall_ms")),
        show(ratios(&over_10, "link_ms", "stall_ms")),
        GPU / MIB,
        shared["at_once_s"] / shared["one_by_one_s"],
        100.0 * shared["moving_s"] / shared["at_once_s"],
        shared["moves"],
    ))
}

/// Two programs that fit together are suspended and resumed.
fn moves() -> Result<Figures> {
    let node = Node::start(&["--listen", "127.0.0.1:0", "--gpus", "software:1,2GiB"])?;
    let mut programs = [1, 2].map(|seed| Program::start(&node, MOVED, seed));
    for program in &mut programs {
        program.as_mut().map_err(|error| anyhow::anyhow!("{error:#}"))?.hears("ready")?;
    }
    let [one, two] = programs;
    let (mut one, two) = (one?, two?);
    let (lease, other) = (lease_of(&node, 0)?, lease_of(&node, 1)?);
    let mut found = Figures::from([
        ("copy_ms".into(), copy_ms(&mut buffers())),
        ("copies_ms".into(), copies_at_once_ms()),
    ]);
    let begin = Instant::now();
    ask(&node, "suspend", &lease)?.wait()?;
    found.insert("suspend_ms".into(), ms_since(begin));
    found.insert("out_ms".into(), moving_ms(&node, 0)?);
    let begin = Instant::now();
    ask(&node, "resume", &lease)?.wait()?;
    one.says("compute")?;
    one.hears("computed")?;
    found.insert("resume_ms".into(), ms_since(begin));
    found.insert("in_ms".into(), moving_ms(&node, 0)? - found["out_ms"]);

    ask(&node, "suspend", &other)?.wait()?;
    let before = [moving_ms(&node, 0)?, moving_ms(&node, 1)?];
    let mut both = [ask(&node, "suspend", &lease)?, ask(&node, "resume", &other)?];
    both.iter_mut().try_for_each(|child| child.wait().map(drop))?;
    found.insert("both_out_ms".into(), moving_ms(&node, 0)? - before[0]);
    found.insert("both_in_ms".into(), moving_ms(&node, 1)? - before[1]);
    ask(&node, "resume", &lease)?.wait()?;
    one.ends()?;
    two.ends()?;
    Ok(found)
}

/// A program is suspended and resumed whose memory goes to a file in the folder of the build.
fn by_way_of_a_file() -> Result<Figures> {
    let file = format!("{}:2GiB", crate::target_folder().display());
    let options = ["--listen", "127.0.0.1:0", "--gpus", "software:1,1GiB", "--swap-memory", "1MiB"];
    let node = Node::start(&[&options[..], &["--swap-file", &file]].concat())?;
    let mut program = Program::start(&node, MOVED, 1)?;
    program.hears("ready")?;
    let lease = lease_of(&node, 0)?;
    let copy_ms = copy_ms(&mut buffers());
    ask(&node, "suspend", &lease)?.wait()?;
    let out_ms = moving_ms(&node, 0)?;
    let in_file = sessions(&node)?.first().and_then(|session| session["memory_in_file"].as_u64());
    ensure!(in_file >= Some(MOVED), "{in_file:?} bytes are in the file");
    ask(&node, "resume", &lease)?.wait()?;
    let in_ms = moving_ms(&node, 0)? - out_ms;
    program.says("check")?;
    program.hears("right")?;
    program.ends()?;
    let figures = [("copy_ms", copy_ms), ("out_ms", out_ms), ("in_ms", in_ms)];
    Ok(figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// A program moves to another GPU.
fn migration() -> Result<Figures> {
    let node = Node::start(&["--listen", "127.0.0.1:0", "--gpus", "software:2,1GiB"])?;
    let mut program = Program::start(&node, MOVED, 1)?;
    program.hears("ready")?;
    program.says("compute")?;
    program.hears("computed")?;
    let from = sessions(&node)?.first().context("a session has ended")?["gpu"].as_u64().unwrap_or_default();
    let copy_ms = copy_ms(&mut buffers());
    let begin = Instant::now();
    let mut command = Command::new(node::sluice());
    command.args(["migrate", &lease_of(&node, 0)?, &(1 - from).to_string(), "--node", &node.address]);
    let moved = command.output()?;
    let text = String::from_utf8_lossy(&moved.stderr).into_owned();
    ensure!(moved.status.success(), "{text}");
    let stall_ms = stall_ms(&text)?;
    program.says("compute")?;
    program.hears("computed")?;
    let migrate_ms = ms_since(begin);
    program.says("check")?;
    program.hears("right")?;
    program.ends()?;
    let figures = [("copy_ms", copy_ms), ("stall_ms", stall_ms), ("migrate_ms", migrate_ms)];
    Ok(figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// What `sluice migrate` says.
pub(super) fn stall_ms(text: &str) -> Result<f64> {
    let stall = text.split("stood still for ").nth(1).and_then(|rest| rest.split(' ').next());
    Ok(1e3 * stall.context("no stall is named")?.parse::<f64>()?)
}

/// Three programs on a GPU that has memory for one.
fn shared() -> Result<Figures> {
    let gpus = format!("software:1,{}MiB", GPU / MIB);
    let node = Node::start(&["--listen", "127.0.0.1:0", "--gpus", &gpus, "--overcommit", "2.5"])?;
    let mut probe = Program::start(&node, HELD, 0)?;
    probe.hears("ready")?;
    probe.says("compute")?;
    probe.hears("computed")?;
    let begin = Instant::now();
    probe.says("compute")?;
    probe.hears("computed")?;
    let rounds = (ALONE_S / begin.elapsed().as_secs_f64()).ceil() as u32;
    probe.ends()?;

    let begin = Instant::now();
    for seed in 0..PROGRAMS {
        computes(vec![Program::start(&node, HELD, seed)?], rounds)?;
    }
    let one_by_one_s = begin.elapsed().as_secs_f64();
    let begin = Instant::now();
    let programs = (0..PROGRAMS).map(|seed| Program::start(&node, HELD, seed)).collect::<Result<Vec<_>>>()?;
    let programs = has_computed(programs, rounds)?;
    let at_once_s = begin.elapsed().as_secs_f64();
    let sum = |name: &str| -> Result<f64> {
        Ok(sessions(&node)?.iter().filter_map(|session| session[name].as_f64()).sum())
    };
    let (moving_s, moves) = (sum("memory_moving_us")? / 1e6, sum("memory_moves")?);
    programs.into_iter().try_for_each(Program::ends)?;
    let names = ["one_by_one_s", "at_once_s", "moving_s", "moves"].map(String::from);
    Ok(names.into_iter().zip([one_by_one_s, at_once_s, moving_s, moves]).collect())
}

fn computes(programs: Vec<Program>, rounds: u32) -> Result<()> {
    has_computed(programs, rounds)?.into_iter().try_for_each(Program::ends)
}

/// Has all programs compute at once, and see that the results are right.
fn has_computed(mut programs: Vec<Program>, rounds: u32) -> Result<Vec<Program>> {
    for program in &mut programs {
        for _ in 0..rounds {
            program.says("compute")?;
        }
        program.says("check")?;
    }
    for program in &mut programs {
        program.hears("ready")?;
        for _ in 0..rounds {
            program.hears("computed")?;
        }
        program.hears("right")?;
    }
    Ok(programs)
}

/// `tests/programs/moved.py` on the node.
pub(super) struct Program {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Program {
    fn start(node: &Node, bytes: u64, seed: usize) -> Result<Program> {
        let memory = format!("{}MiB", bytes / MIB + 16);
        let mut command = Command::new(node::sluice());
        command.args(["run", "-q", "-p", "0.3", "--memory", &memory, "--node", &node.address, "--"]);
        Program::of(&mut command, bytes, seed)
    }

    /// Under `sluice run OPTIONS --`.
    pub(super) fn of(command: &mut Command, bytes: u64, seed: usize) -> Result<Program> {
        command.arg("python3").arg(crate::root().join("tests/programs/moved.py"));
        command.args([bytes.to_string(), seed.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let lines = BufReader::new(child.stdout.take().context("piped above")?);
        Ok(Program { child, lines })
    }

    pub(super) fn says(&mut self, line: &str) -> Result<()> {
        Ok(writeln!(self.child.stdin.as_mut().context("piped above")?, "{line}")?)
    }

    pub(super) fn hears(&mut self, expect: &str) -> Result<()> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        ensure!(line.trim() == expect, "the program said {line:?}, not {expect:?}");
        Ok(())
    }

    /// It ends with its input.
    pub(super) fn ends(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        ensure!(self.child.wait()?.success(), "the program failed");
        Ok(())
    }
}

fn sessions(node: &Node) -> Result<Vec<Value>> {
    Ok(serde_json::from_str(&node.query("sessions")?)?)
}

fn lease_of(node: &Node, place: usize) -> Result<String> {
    Ok(sessions(node)?.get(place).context("a session has ended")?["lease"].to_string())
}

/// For how long a session's memory has been moved so far.
fn moving_ms(node: &Node, place: usize) -> Result<f64> {
    let all = sessions(node)?;
    let us = all.get(place).and_then(|session| session["memory_moving_us"].as_f64());
    Ok(us.context("a session has ended")? / 1e3)
}

fn ask(node: &Node, verb: &str, lease: &str) -> Result<Child> {
    let mut command = Command::new(node::sluice());
    command.args([verb, lease, "--node", &node.address]).stdout(Stdio::null());
    command.spawn().with_context(|| process::show(&command))
}

fn ms_since(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e3
}

/// Memory that was written before, to copy from and to.
fn buffers() -> (Vec<u8>, Vec<u8>) {
    (vec![1; MOVED as usize], vec![2; MOVED as usize])
}

fn copy_ms((from, to): &mut (Vec<u8>, Vec<u8>)) -> f64 {
    let begin = Instant::now();
    to.copy_from_slice(std::hint::black_box(from));
    std::hint::black_box(to);
    ms_since(begin)
}

/// The longer of two copies at once.
fn copies_at_once_ms() -> f64 {
    let mut all = [buffers(), buffers()];
    std::thread::scope(|scope| {
        let copies: Vec<_> = all.iter_mut().map(|pair| scope.spawn(|| copy_ms(pair))).collect();
        copies.into_iter().filter_map(|copy| copy.join().ok()).fold(0.0, f64::max)
    })
}
