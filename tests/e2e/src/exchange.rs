//! Every byte of what driver functions send and get back: a program calls them with random
//! arguments, and a driver behind a worker answers from what reached it. Over TCP, and through the
//! shared memory of the same host.

use std::collections::HashMap;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use xtask::codegen::coverage;

use crate::evidence;
use crate::node::{self, Node};
use crate::{Test, expect_pass, logs, sluice_run};

pub(crate) const TESTS: &[Test] =
    &[("byte exchange", over_tcp), ("byte exchange, same host", on_the_same_host)];

/// How often each function is called.
const ROUNDS: &str = "50";
/// On a machine that is busy with other work it takes more than a minute.
const LIMIT: Duration = Duration::from_secs(300);

fn over_tcp() -> Result<()> {
    exchange("byte exchange", "127.0.0.1:0")
}

fn on_the_same_host() -> Result<()> {
    let folder = crate::target_folder().join("unix-node");
    std::fs::create_dir_all(&folder)?;
    exchange("byte exchange, same host", &format!("unix:{}", folder.join("exchange.sock").display()))
}

fn exchange(name: &str, listen: &str) -> Result<()> {
    let seed = match std::env::var("SEED") {
        Ok(seed) => seed,
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_nanos().to_string(),
    };
    eprintln!("   SEED={seed}");
    let release = crate::target_folder().join("release");
    let (sent, arrived) = (logs().join("exchange-sent.txt"), logs().join("exchange-arrived.txt"));
    // It may not be there.
    let _ = std::fs::remove_file(&arrived);
    let driver = format!("library:{}", release.join("libexchange_driver.so").display());
    // What an earlier run has stored of its random images and functions would not be asked for.
    let cache = crate::target_folder().join("exchange-cache");
    let _ = std::fs::remove_dir_all(&cache);
    let mut command = Command::new(node::sluice());
    command.args(["node", "--listen", listen, "--gpus", &driver]).env("EXCHANGE_LOG", &arrived);
    command.env("XDG_CACHE_HOME", &cache);
    let node = Node::start_command(&mut command)?;
    let mut command = sluice_run(&node, &[]);
    command.arg(release.join("exchange")).args([ROUNDS, &seed]).arg(&sent);
    command.env("XDG_CACHE_HOME", &cache);
    expect_pass(&mut command, name, LIMIT)?;
    node.wait_until_free()?;
    calls_what_is_said(name)?;

    // Calls that nobody waits for are known by what arrived.
    let read = |path| std::fs::read_to_string(path).with_context(|| format!("{path:?}"));
    let mut counts: HashMap<&str, usize> = HashMap::new();
    let arrived = read(&arrived)?;
    arrived.lines().for_each(|line| *counts.entry(line).or_default() += 1);
    for line in read(&sent)?.lines() {
        // The worker waits by these itself, so the driver does not tell whose they are.
        if line.starts_with("cuCtxSynchronize") || line.starts_with("cuStreamSynchronize") {
            continue;
        }
        let count = counts.get_mut(line).filter(|count| **count > 0);
        let count = count.with_context(|| format!("did not arrive as sent (SEED={seed}): {line}"))?;
        *count -= 1;
    }
    ensure!(!arrived.is_empty(), "nothing arrived");
    Ok(())
}

/// The list of what is covered says no more and no less than what was called with success.
fn calls_what_is_said(name: &str) -> Result<()> {
    let (said, called) = (coverage::exchanged()?, evidence::called(name)?);
    let missing: Vec<&String> = said.iter().filter(|function| !called.contains(*function)).collect();
    ensure!(missing.is_empty(), "the list of the byte exchange has what it does not call: {missing:?}");
    let program = crate::target_folder().join("release/exchange");
    let list = Command::new(&program).arg("list").output().context("exchange list")?;
    let list = String::from_utf8(list.stdout)?;
    let unsaid: Vec<&str> =
        list.lines().filter(|line| !said.iter().any(|function| function == line)).collect();
    ensure!(unsaid.is_empty(), "the byte exchange calls what its list does not have: {unsaid:?}");
    Ok(())
}
