//! The README's first command: everything from a fresh clone to a CUDA program on a quarter of a
//! GPU, over TCP.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};

use crate::node::{self, Node};
use crate::{process, python};

pub(crate) fn run() -> Result<ExitCode> {
    say("Building Sluice (release)");
    node::build()?;
    say("Installing an ordinary CUDA program's library, tinygrad, from PyPI");
    let python = python::TINYGRAD.ready()?;

    say("Starting a node: the machine that has the GPU, here another process");
    let node = Node::start(&["--listen", "127.0.0.1:0"])?;
    process::run(Command::new(node::sluice()).args(["gpus", "--node", &node.address]))?;

    say("Training a network on a quarter of that GPU, with 1 GiB of its memory");
    let mut command = Command::new(node::sluice());
    command.args(["run", "-p", "0.25", "--memory", "1GiB", "--node", &node.address, "--"]);
    command.arg(&python).arg("tests/programs/tinygrad_train.py").current_dir(crate::root());
    eprintln!("$ {}", process::show(&command));
    let mut program = command.stdout(Stdio::piped()).spawn().context("sluice run")?;
    let stdout = BufReader::new(program.stdout.take().context("piped above")?);
    let mut shown = false;
    for line in stdout.lines() {
        let line = line?;
        println!("{line}");
        if line.starts_with("step  10") && !shown {
            shown = true;
            process::run(Command::new(node::sluice()).args(["sessions", "--node", &node.address]))?;
        }
    }
    let status = program.wait()?;
    Ok(ExitCode::from(status.code().unwrap_or(1) as u8))
}

fn say(what: &str) {
    eprintln!("\n== {what}");
}
