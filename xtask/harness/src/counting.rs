//! A program that counts until something ends it.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::expect::{expect_pass, logs, program_file, tail};
use crate::node::{self, Node};

/// Nothing takes longer, unless it hangs.
const LIMIT: Duration = Duration::from_secs(300);

/// Starts the counting program and waits until it computes.
pub fn start_counting(address: &str) -> Result<std::process::Child> {
    use std::io::BufRead;
    let mut command = Command::new(node::sluice());
    command.args(["run", "--node", address, "--", "python3"]).arg(program_file("counts.py"));
    let log = std::fs::File::create(logs().join("counting.log"))?;
    let mut child = command.env("ROUNDS", "1000000").stdout(Stdio::piped()).stderr(log).spawn()?;
    let Some(stdout) = child.stdout.take() else { bail!("no output") };
    let mut line = String::new();
    std::io::BufReader::new(stdout).read_line(&mut line)?;
    ensure!(line.trim() == "ready", "the program said {line:?}");
    Ok(child)
}

/// The program ends with an error, and stderr says all of `parts`.
pub fn expect_error(mut child: std::process::Child, parts: &[&str]) -> Result<()> {
    let (sender, ended) = std::sync::mpsc::channel();
    let pid = child.id();
    std::thread::spawn(move || sender.send(child.wait()));
    let Ok(status) = ended.recv_timeout(Duration::from_secs(60)) else {
        // SAFETY: the child has not been waited for, or the channel would have said so.
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        bail!("it hangs")
    };
    ensure!(!status?.success(), "it ended well");
    let said = std::fs::read_to_string(logs().join("counting.log"))?;
    for part in parts {
        ensure!(said.contains(part), "no {part:?} in {}", tail(&said));
    }
    Ok(())
}

/// Ends a node while a program computes, and starts another one in its place: the program gets an
/// error that stays and says why, and the next one is right.
pub fn start_anew(
    node: &mut Node,
    signal: i32,
    start: impl std::ops::Fn(&str) -> Result<Node>,
) -> Result<()> {
    let child = start_counting(&node.address)?;
    node.end(signal);
    let place = node.address.split('/').next().context("an address")?;
    *node = start(place)?;
    expect_error(child, &["DEVICE_UNAVAILABLE"])?;
    let said = std::fs::read_to_string(logs().join("counting.log"))?;
    // One that is stopped ends its sessions itself, so no client waits for it.
    match signal {
        libc::SIGKILL => ensure!(said.contains("has the node been started anew?"), "{}", tail(&said)),
        _ => {
            ensure!(said.contains("the node has been stopped") && !said.contains("is cut"), "{}", tail(&said))
        }
    }
    node.wait_until_free()?;
    let mut command = Command::new(node::sluice());
    command.args(["run", "--node", &node.address, "--", "python3"]).arg(program_file("counts.py"));
    expect_pass(command.env("ROUNDS", "3"), "after a new start", LIMIT)?;
    node.wait_until_free()
}
