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
    Ok(())
}
