//! The README's first command: everything from a fresh clone to two CUDA programs that share a GPU,
//! over TCP.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Sender, channel};

use anyhow::{Context, Result, bail};

use harness::node::Node;
use harness::python::TINYGRAD;
use harness::{SHARED_MEMORY_VARIABLE, process, root, target_folder};

/// Two users: name, share of the GPU, and memory of their leases.
const USERS: [(&str, &str, &str); 2] = [("alice", "0.5", "2GiB"), ("bob", "0.25", "1GiB")];

/// The line of the program at which both are seen at work.
const AT_WORK: &str = "step  10";

fn main() -> ExitCode {
    // The programs reach their node as from another machine. SAFETY: no other thread runs yet.
    unsafe { std::env::set_var(SHARED_MEMORY_VARIABLE, "off") };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    say(1, "Building Sluice, and installing an ordinary CUDA program's library, tinygrad, from PyPI");
    let python = std::thread::spawn(|| TINYGRAD.ready());
    build()?;
    let python = python.join().expect("an installation returns its errors")?;

    say(2, "Starting a node: the machine that has the GPU, here another process");
    let node = Node::start_command(Command::new(sluice()).args(["node", "--listen", "127.0.0.1:0"]))?;
    show(&["gpus", "--node", &node.address])?;

    say(3, "Two users train a network each on that GPU at the same time");
    train(&node, &python)?;
    println!(
        "\nBoth programs ran unmodified on one GPU that their processes do not have. To continue:\n\n\
         {0} run -- python3 PROGRAM.py      your own program, on this machine's GPU or a software GPU\n\
         {0} node --listen 0.0.0.0:7583     lend this machine's GPUs to others\n\
         {0} doctor                         what works here, and what to do about the rest\n\n\
         This build was made quickly. `cargo build --release` makes the whole product, fully optimised.\n\
         README.md continues from here.",
        sluice().strip_prefix(root()).unwrap_or(&sluice()).display()
    );
    Ok(())
}

/// Builds what runs programs and lends GPUs, in less time than the whole product takes.
fn build() -> Result<()> {
    if std::env::var_os("XTASK_BUILT").is_some() {
        return Ok(());
    }
    let packages = ["sluice", "sluice-client", "sluice-nvml", "sluice-nojitlink", "sluice-devfiles"];
    let mut command = process::cargo();
    command.args(["build", "--profile", "demo", "--no-default-features"]);
    process::run(command.args(packages.iter().flat_map(|package| ["--package", package])))
}

/// The binary that [`build`] makes, beside the client libraries.
fn sluice() -> PathBuf {
    target_folder().join("demo/sluice")
}

/// Runs the users' programs side by side, and shows the node's sessions once all are at work.
fn train(node: &Node, python: &Path) -> Result<()> {
    let (lines, heard) = channel();
    let mut programs = Vec::new();
    for (user, share, memory) in USERS {
        let mut command = Command::new(sluice());
        command.args(["run", "-p", share, "--memory", memory, "--node", &node.address, "--"]);
        // The program reads no arguments; this one tells the sessions apart in their list.
        command.arg(python).args(["tests/programs/tinygrad_train.py", user]).current_dir(root());
        // With some random data forty steps are too few for what the program asks of itself.
        command.env("SEED", "1");
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
    process::run(Command::new(sluice()).args(words))
}

fn say(step: u32, what: &str) {
    eprintln!("\n== {step} of 3: {what}");
}
