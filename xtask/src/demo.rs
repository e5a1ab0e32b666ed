//! The README's first command: everything from a fresh clone to two CUDA programs that share a GPU,
//! over TCP.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Sender, channel};

use anyhow::{Context, Result, bail};

use crate::node::{self, Node};
use crate::{process, python};

/// Two users: name, share of the GPU, and memory of their leases.
const USERS: [(&str, &str, &str); 2] = [("alice", "0.5", "2GiB"), ("bob", "0.25", "1GiB")];

/// The line of the program at which both are seen at work.
const AT_WORK: &str = "step  10";

pub(crate) fn run() -> Result<ExitCode> {
    say(1, "Building Sluice: the command, a node, and the client libraries (release)");
    node::build_for_demo()?;
    say(2, "Installing an ordinary CUDA program's library, tinygrad, from PyPI");
    let python = python::TINYGRAD.ready()?;

    say(3, "Starting a node: the machine that has the GPU, here another process");
    let node = Node::start(&["--listen", "127.0.0.1:0"])?;
    show(&["gpus", "--node", &node.address])?;

    say(4, "Two users train a network each on that GPU at the same time");
    train(&node, &python)?;
    println!(
        "\nBoth programs ran unmodified on one GPU that their processes do not have. To go on:\n\n\
         {0} run -- python3 PROGRAM.py      your own program, on this machine's GPU or a software GPU\n\
         {0} node --listen 0.0.0.0:7583     lend this machine's GPUs to others\n\
         {0} doctor                         what works here, and what to do about the rest\n\n\
         README.md goes on from here.",
        node::sluice().strip_prefix(crate::root()).unwrap_or(&node::sluice()).display()
    );
    Ok(ExitCode::SUCCESS)
}

/// Runs the users' programs side by side, and shows the node's sessions once all are at work.
fn train(node: &Node, python: &Path) -> Result<()> {
    let (lines, heard) = channel();
    let mut programs = Vec::new();
    for (user, share, memory) in USERS {
        let mut command = Command::new(node::sluice());
        command.args(["run", "-p", share, "--memory", memory, "--node", &node.address, "--"]);
        // The program reads no arguments; this one tells the sessions apart in their list.
        command.arg(python).args(["tests/programs/tinygrad_train.py", user]).current_dir(crate::root());
        eprintln!("$ {}", process::show(&command));
        let mut program =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("sluice run")?;
        forward(user, &mut program, &lines)?;
        programs.push(program);
    }
    drop(lines);
    let mut at_work = Vec::new();
    for (user, line) in heard {
        println!("{user:>5} | {line}");
        if line.starts_with(AT_WORK) && !at_work.contains(&user) {
            at_work.push(user);
            if at_work.len() == USERS.len() {
                show(&["sessions", "--node", &node.address])?;
            }
        }
    }
    for program in &mut programs {
        let status = program.wait()?;
        if !status.success() {
            bail!("a program has failed ({status}); what it said is above");
        }
    }
    Ok(())
}

/// Sends what a program prints, line by line, with its user's name.
fn forward(user: &'static str, program: &mut Child, lines: &Sender<(&'static str, String)>) -> Result<()> {
    let stdout = program.stdout.take().context("piped by the caller")?;
    let stderr = program.stderr.take().context("piped by the caller")?;
    let to_outputs = [lines.clone(), lines.clone()];
    let sources: [Box<dyn BufRead + Send>; 2] =
        [Box::new(BufReader::new(stdout)), Box::new(BufReader::new(stderr))];
    for (source, to) in sources.into_iter().zip(to_outputs) {
        std::thread::spawn(move || {
            for line in source.lines().map_while(Result::ok) {
                if to.send((user, line)).is_err() {
                    return;
                }
            }
        });
    }
    Ok(())
}

/// Runs a command of `sluice` and shows it.
fn show(words: &[&str]) -> Result<()> {
    process::run(Command::new(node::sluice()).args(words))
}

fn say(step: u32, what: &str) {
    eprintln!("\n== {step} of 4: {what}");
}
