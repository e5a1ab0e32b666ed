//! The log of a node as JSON, for programs that collect logs.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::node::sluice;
use crate::teams::Process;
use crate::{Test, expect_pass, program_file};

pub(crate) const TESTS: &[Test] = &[("a node that logs JSON", sessions_are_logged)];

const LIMIT: Duration = Duration::from_secs(120);

/// A lease and its session are logged from begin to end, and every line is an object.
fn sessions_are_logged() -> Result<()> {
    let mut command = Command::new(sluice());
    command.args(["node", "--listen", "127.0.0.1:0", "--gpus", "software", "--log-format", "json"]);
    let mut node = Process::start("node that logs JSON", &mut command)?;
    let address = node.listening()?;
    let mut program = Command::new(sluice());
    program.args(["run", "--node", &address, "--", "python3"]).arg(program_file("prints.py"));
    expect_pass(&mut program, "a node that logs JSON", LIMIT)?;
    node.expect_message("\"lease 1 has ended\"")?;
    let said = node.said();
    let parse = |line| serde_json::from_str(line).with_context(|| format!("not JSON: {line}"));
    let events: Vec<Value> = said.lines().map(parse).collect::<Result<_>>()?;
    // The end of a session may have its reason behind it.
    let find = |start: &str| {
        let is_it = |event: &&Value| event["message"].as_str().is_some_and(|text| text.starts_with(start));
        events.iter().find(is_it).with_context(|| format!("no event {start:?}: {said}"))
    };
    let lease = &find("lease 1 is granted")?["lease"];
    let begun =
        events.iter().find(|event| event["message"].as_str().is_some_and(|m| m.ends_with("has begun")));
    let session = &begun.with_context(|| format!("no session began: {said}"))?["session"];
    let ended = find(&format!("session {session} has ended"))?;
    ensure!(*lease == 1 && ended["lease"] == *lease && ended["session"] == *session, "{said}");
    ensure!(ended["level"] == "INFO" && ended["timestamp"].is_string(), "{ended}");
    Ok(())
}
