//! The REST API of a real server, held against its own OpenAPI document by schemathesis: every
//! endpoint is asked what its schema allows and what it forbids, and answers as documented, without
//! one failure of its own.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use sluice_api::client::Client;
use sluice_api::node::Joined;

use super::teams::{Account, Installation};
use super::token_in;
use super::{Test, finish, tail};
use crate::python::SCHEMATHESIS;

pub(crate) const TESTS: &[Test] = &[("api: as its document says", || check(10))];

pub(crate) const LONG_TESTS: &[Test] = &[("api: as its document says, at length", || check(300))];

/// The tenant of the document's examples is there, so that leases are granted.
const TENANTS: &str = "
tenants:
  - path: red
  - path: blue
  - path: acme
    budget: {micro: 1000000000, per: month}
  - path: acme/research
    quota: {guaranteed_milli: 1000, limit_milli: 2000}
prices:
  - {meter: reserved, micro: 2000000}
";

/// Catches a hang.
const LIMIT: Duration = Duration::from_secs(3600);

fn check(examples: u32) -> Result<()> {
    let without_limits = ["--requests-per-second", "0", "--failures-per-second", "0"];
    let installation = Installation::start("api", TENANTS, &[], &without_limits)?;
    let admin = installation.administrator();
    let node = token_in(&installation.data().join("node.json"))?;
    let tokens = admin.json(&["token", "list"])?;
    let ids: Vec<&str> =
        tokens.as_array().into_iter().flatten().filter_map(|token| token["id"].as_str()).collect();
    let kept = ids.join(",");
    let asked = |name: &str, token: &str| -> Result<Command> {
        let mut command = Command::new(SCHEMATHESIS.program("st")?);
        command.current_dir(crate::root().join("tests/api"));
        command.args(["--config-file", "schemathesis.toml", "run"]);
        command.arg(format!("{}/api/v1/openapi.json", admin.server()));
        command.args(["--max-examples", &examples.to_string(), "--report", "json", "--report-json-path"]);
        command.arg(installation.data().with_file_name(format!("{name}.json")));
        if let Ok(seed) = std::env::var("SEED") {
            command.args(["--seed", &seed]);
        }
        command.env("SLUICE_TOKEN", token).env("SLUICE_KEPT_TOKENS", &kept);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        Ok(command)
    };
    let is_conformant = |name: &str, command: &mut Command| -> Result<()> {
        let ended = finish(command, &format!("api {name}"), LIMIT)?;
        let report = installation.data().with_file_name(format!("{name}.json"));
        let report = std::fs::read_to_string(&report).with_context(|| tail(&ended.output))?;
        judge(&serde_json::from_str(&report)?, &ended.output)
    };
    is_conformant("administrator", &mut asked("administrator", admin.token())?)?;

    // A node's reports are taken under its own token only.
    let joined = join(admin, &node)?;
    let mut reports = asked("node", &joined.token)?;
    reports.args(["--include-path", "/api/v1/nodes/{id}/reports"]);
    is_conformant("node", reports.env("SLUICE_NODE_ID", joined.node.to_string()))?;

    let said = installation.said();
    ensure!(!said.contains("panicked"), "{said}");
    admin.text(&["audit", "verify"])?;
    Ok(())
}

/// The report names every disagreement; the output shows how to repeat it.
fn judge(report: &Value, output: &str) -> Result<()> {
    let tested = report["operations"]["tested"].as_u64().unwrap_or_default();
    let generated = report["test_cases"]["generated"].as_u64().unwrap_or_default();
    ensure!(tested > 0 && generated >= tested, "nothing was asked: {}", tail(output));
    eprintln!("{generated} requests to {tested} operations");
    let none = |list: &Value| list.as_array().is_some_and(Vec::is_empty);
    if none(&report["failures"]) && none(&report["errors"]) && report["exit_code"] == 0 {
        return Ok(());
    }
    let found = output.find("= FAILURES").or(output.find("= ERRORS")).unwrap_or(0);
    bail!(
        "{}{}: {}",
        report["failures"],
        report["errors"],
        output[found..].chars().take(4000).collect::<String>()
    )
}

/// A node that is there to report whatever comes.
fn join(admin: &Account, token: &str) -> Result<Joined> {
    let gpu = json!({
        "name": "scripted", "uuid": "GPU-0", "memory": 1_u64 << 34, "software": true, "compute_capability": "12.0",
        "driver_version": 13000,
    });
    let join = json!({
        "name": "scripted", "address": "127.0.0.1:9", "gpus": [gpu], "release": env!("CARGO_PKG_VERSION"),
    });
    Ok(Client::new(admin.server(), token).post("/nodes", &join)?)
}
