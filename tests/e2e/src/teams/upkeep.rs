//! Nodes that are emptied and go, and tenants and pools that are not needed any more.

use super::*;

const TENANTS: &str = "
tenants: [{path: red}, {path: blue}, {path: aa}]
pools: [{name: big, nodes: [nowhere]}]
";

/// A program leaves a node that is drained and runs elsewhere; the node gets nothing until it is
/// used again, and is forgotten once it is gone.
pub(super) fn a_node_is_drained_and_forgotten() -> Result<()> {
    let mut installation = Installation::start("upkeep", TENANTS, &["two"], &[])?;
    let (admin, red) = (installation.admin.clone(), installation.red.clone());
    let mut program = red.program("leaves", &[])?;
    program.expect_line("ready")?;
    let place = |lease: &Value| lease["places"][0]["node"].as_str().unwrap_or_default().to_owned();
    let lease = red.json(&["lease", "list"])?[0].clone();
    let (id, from) = (lease["id"].to_string(), place(&lease));
    admin.text(&["node", "drain", &from, "--no-move", "--grace", "20s", "--why", "new fans"])?;
    program.expect_message(&format!("preempted: its node {from} is being drained"))?;
    program.expect_line("ready").context("it does not run elsewhere")?;
    let now = red.json(&["lease", "show", &id])?;
    ensure!(place(&now["lease"]) != from && now["lease"]["attempt"] == 2, "{now}");
    let mut waits = red.program("waits", &["-v"])?;
    waits.expect_message(&format!("fenced: {from} (drained)"))?;
    let nodes = admin.text(&["node", "list"])?;
    ensure!(nodes.contains(": new fans"), "{nodes}");
    admin.text(&["node", "drain", &from, "--undo"])?;
    waits.expect_line("ready")?;
    for program in [&mut waits, &mut program] {
        program.go_on_to_its_end()?;
    }
    let shown = red.text(&["lease", "show", &id])?;
    for words in ["ended, attempt 2", "preempted", "requeued", "GPU-hours reserved"] {
        ensure!(shown.contains(words), "{words}: {shown}");
    }
    ensure!(red.text(&["lease", "list"])?.is_empty(), "they have ended");
    ensure!(red.text(&["lease", "list", "--all"])?.lines().count() == 3, "a line for each");

    // Taken away while something needs it, and then for good.
    let mut refused = admin.command(&["node", "forget", "two"]);
    expect_failure(&mut refused, "a node that is there", 1, &["node two reports"])?;
    drop(installation.others.remove(0));
    let deadline = Instant::now() + PATIENCE;
    while admin.text(&["node", "forget", "two"]).is_err() {
        ensure!(Instant::now() < deadline, "node two cannot be forgotten");
        std::thread::sleep(Duration::from_millis(200));
    }
    let nodes = admin.json(&["node", "list"])?;
    ensure!(nodes.as_array().is_some_and(|nodes| nodes.len() == 1), "{nodes}");
    admin.text(&["tenant", "delete", "aa"])?;
    admin.text(&["pool", "delete", "big"])?;
    ensure!(!admin.text(&["tenants"])?.contains("aa"), "tenant aa is there");
    ensure!(admin.json(&["pools"])?.as_array().is_some_and(Vec::is_empty), "pool big is there");
    let mut used = installation.blue.program("blue runs", &[])?;
    used.expect_line("ready")?;
    let mut refused = admin.command(&["tenant", "delete", "blue"]);
    expect_failure(&mut refused, "a tenant with leases", 1, &["blue has leases, "])?;
    used.go_on_to_its_end()
}
