//! Requests that are too large are found in the ledger, with what following the advice saves.

use super::*;

const TENANTS: &str = "
currency: EUR
tenants: [{path: red}, {path: blue}]
prices: [{meter: reserved, price: 2}]
";

pub(super) fn large_requests_are_found() -> Result<()> {
    let installation = Installation::start("iq", TENANTS, &[], &[])?;
    let red = &installation.red;
    // It computes for a part of the time that it holds a whole GPU.
    for run in 1..=3 {
        ensure!(red.json(&["iq"])? == serde_json::json!([]), "advice after {} runs", run - 1);
        let mut program = red.program(&format!("too large {run}"), &["-p", "1"])?;
        program.expect_line("ready")?;
        program.go_on_to_its_end()?;
        installation.wait_for_records(run)?;
    }
    let found = red.json(&["iq", "compute.py"])?;
    let advice = &found[0]["recommendation"];
    ensure!(found[0]["program"] == "python3 compute.py" && advice["runs"] == 3, "{found}");
    let share_ppm = advice["share_ppm"].as_u64().context("a share")?;
    ensure!(share_ppm < 1_000_000 && advice["replay"]["slowed"] == 0, "{found}");
    let micro = 2 * (1_000_000 - share_ppm);
    // The price is a mean of costs that were rounded.
    let saves = &found[0]["saves"];
    let is_near = saves["micro_per_hour"].as_u64().is_some_and(|saved| saved.abs_diff(micro) <= micro / 1000);
    ensure!(is_near && saves["currency"] == "EUR", "{found}");
    let text = red.text(&["iq"])?;
    ensure!(text.contains("100% -> ") && text.contains("EUR/h"), "{text}");
    ensure!(installation.blue.json(&["iq"])? == serde_json::json!([]), "another tenant's runs");
    // As of a moment before the runs there is nothing.
    ensure!(red.json(&["iq", "--at", "2026-01-01"])? == serde_json::json!([]), "advice before the first run");
    // Minutes of use are no plan, and say so.
    let plan = red.json(&["plan", "--pool", "default"])?;
    ensure!(plan[0]["gpus"].as_u64() > Some(0) && plan[0]["plan"].is_null(), "{plan}");
    let text = red.text(&["plan"])?;
    ensure!(text.contains("fewer than 14 whole days of use"), "{text}");
    ensure!(text.contains("default: not enough history: 0 whole days of 14"), "{text}");
    by_consent(&installation, share_ppm)
}

/// With its tenant's consent the next run gets what fits, until that is undone.
fn by_consent(installation: &Installation, share_ppm: u64) -> Result<()> {
    let red = &installation.red;
    let own = installation.admin.make("red", "tenant-admin")?;
    own.text(&["iq", "--consent", "next-run", "--floor", "5%"])?;
    let found = red.wait_for(&["iq", "--autonomy"], |found| found["programs"][0].is_object())?;
    ensure!(found["programs"][0]["share_ppm"].as_u64() == Some(share_ppm), "{found}");
    let run = |options: &[&str]| -> Result<Value> {
        let mut command = red.command(&["run"]);
        command.args(options).args(["--", "python3"]).arg(program_file("compute.py"));
        let mut program = Process::start("sized", command.env("START", "input").env("SECONDS", "0.1"))?;
        program.expect_line("ready")?;
        let leases = red.wait_for(&["lease", "list"], |leases| leases[0]["state"] == "running")?;
        program.go_on_to_its_end()?;
        Ok(leases[0].clone())
    };
    let lease = run(&[])?;
    ensure!(lease["share_ppm"].as_u64() == Some(share_ppm), "{lease}");
    ensure!(lease["automatic"]["kind"] == "next-run", "{lease}");
    for stated in [&["-p", "1"][..], &["--as-asked"]] {
        let lease = run(stated)?;
        ensure!(lease["share_ppm"] == 1_000_000 && lease["automatic"].is_null(), "{stated:?}: {lease}");
    }
    red.text(&["iq", "compute.py", "--undo"])?;
    let lease = run(&[])?;
    ensure!(lease["share_ppm"] == 1_000_000, "{lease}");
    Ok(())
}
