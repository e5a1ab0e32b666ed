//! A pool of which more is leased than its GPUs have.

use anyhow::{Result, ensure};

use super::Installation;
use crate::e2e::expect_failure;

const POOL: &str = "
tenants: [{path: red}, {path: blue}]
pools: [{name: shared, nodes: [one], overcommit_percent: 150}]
";

/// Two leases of 75 % run on one GPU, the third waits and learns why; a whole GPU is not shared;
/// and a pool that promises less takes nobody's lease away.
pub(super) fn an_overcommitted_pool() -> Result<()> {
    let installation = Installation::start("overcommit", POOL, &[], &[])?;
    let (admin, red, blue) = (&installation.admin, &installation.red, &installation.blue);
    ensure!(admin.text(&["pools"])?.contains("150 %"), "{}", admin.text(&["pools"])?);
    let mut first = red.program("first", &["-p", "0.75"])?;
    let mut second = blue.program("second", &["-p", "0.75"])?;
    first.expect_line("ready")?;
    second.expect_line("ready")?;
    let gpus = admin.json(&["gpus"])?;
    ensure!(gpus[0]["share_leased_ppm"] == 1_500_000 && gpus[0]["leases"] == 2, "{gpus}");

    let why = "pool shared is overcommitted: 150 % of each GPU may be leased";
    let mut third = red.program("third", &["-v", "-p", "0.75"])?;
    let waits = red.wait_for(&["queue"], |queue| queue[0]["reason"].is_string())?;
    ensure!(waits[0]["reason"].as_str().is_some_and(|reason| reason.contains(why)), "{waits}");
    third.expect_message("pool shared is overcommitted")?;
    first.go_on_to_its_end()?;
    third.expect_line("ready")?;

    let file = installation.folder.join("less.yaml");
    std::fs::write(&file, POOL.replace("150", "100"))?;
    let less = file.display().to_string();
    ensure!(admin.text(&["apply", "-f", &less])?.contains("pool shared changed"), "it changes");
    let mut small = blue.program("small", &["-p", "0.25"])?;
    let waits = blue.wait_for(&["queue"], |queue| queue[0]["reason"].is_string())?;
    ensure!(!waits[0]["reason"].as_str().is_some_and(|reason| reason.contains("overcommitted")), "{waits}");
    second.go_on_to_its_end()?;
    small.expect_line("ready")?;
    third.go_on_to_its_end()?;
    small.go_on_to_its_end()?;

    std::fs::write(&file, POOL.replace("150", "2000"))?;
    let mut too_much = admin.command(&["apply", "-f", &less]);
    expect_failure(&mut too_much, "too much", 1, &["overcommit_percent", "to 1000, not 2000"])?;
    std::fs::write(&file, POOL)?;
    admin.text(&["apply", "-f", &less])?;
    let mut whole = red.program("whole", &[])?;
    whole.expect_line("ready")?;
    let mut beside = blue.program("beside", &["-p", "0.01"])?;
    blue.wait_for(&["queue"], |queue| queue[0]["reason"].is_string())?;
    whole.go_on_to_its_end()?;
    beside.expect_line("ready")?;
    beside.go_on_to_its_end()
}
