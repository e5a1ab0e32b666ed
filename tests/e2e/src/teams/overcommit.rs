//! A pool of which more is leased than its GPUs have.

use anyhow::{Result, ensure};
use serde_json::Value;

use super::{Account, Installation, Process};
use crate::{expect_failure, program_file};

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

const MIB: u64 = 1 << 20;
const CARD: u64 = 256 * MIB;
/// 0.7 of the GPU, and what each program holds of it.
const LEASED_MIB: u64 = 179;
const HELD: u64 = 160 * MIB;

const PRICED: &str = "
tenants: [{path: red}, {path: blue}]
prices: [{meter: reserved, price: 3600}, {meter: memory, price: 3600}]
";

/// Three leases of 0.7 of a GPU's memory each through a server: their programs compute by turns and
/// find their memory as it was, a fourth one waits and learns why, a pool that allows less takes
/// nothing away, and the bill is of what was leased.
pub(super) fn overcommitted_memory() -> Result<()> {
    let options = ["--gpus", "software:1,256MiB", "--overcommit", "2.5"];
    let installation = Installation::start("memory-overcommit", PRICED, &[], &options)?;
    let (admin, red, blue) = (&installation.admin, &installation.red, &installation.blue);
    let gpus = admin.json(&["gpus"])?;
    ensure!(gpus[0]["memory_leasable"] == CARD / 2 * 5, "{gpus}");
    ensure!(admin.text(&["gpus"])?.contains("LEASABLE"), "{}", admin.text(&["gpus"])?);
    let mut too_large = red.command(&["run", "-p", "0.1", "--memory", "257MiB", "--", "true"]);
    let whole = "no GPU has more than 256 MiB, and each lease has to fit on its GPU";
    expect_failure(&mut too_large, "more than a GPU", 125, &[whole])?;

    let start = |account: &Account, seed: &str, share: &str| {
        let mut command = account.command(&["run", "-v", "-p", share, "--memory"]);
        command.arg(format!("{LEASED_MIB}MiB")).args(["--", "python3"]).arg(program_file("moved.py"));
        Process::start(&format!("overcommitted memory {seed}"), command.args([&HELD.to_string(), seed]))
    };
    let mut programs = vec![start(red, "1", "0.3")?, start(red, "2", "0.3")?, start(blue, "3", "0.3")?];
    programs.iter_mut().try_for_each(|program| program.expect_line("ready"))?;
    let mut fourth = start(blue, "4", "0.1")?;
    let waits = blue.wait_for(&["queue"], |queue| queue[0]["reason"].is_string())?;
    let why = "in pool default is overcommitted: 640 MiB of each GPU may be leased, 256 MiB to one lease";
    ensure!(waits[0]["reason"].as_str().is_some_and(|reason| reason.contains(why)), "{waits}");
    all(&mut programs, &[("compute", "computed"), ("check", "right")])?;

    let swapped = |sessions: &Value| {
        let sessions = sessions.as_array().into_iter().flatten();
        sessions.filter(|session| session["memory_swapped"].as_u64() >= Some(HELD)).count() >= 2
    };
    admin.wait_for(&["sessions"], swapped)?;
    let gpus = admin.json(&["gpus"])?;
    let leased = gpus[0]["memory_leased"].as_u64();
    ensure!(leased == Some(3 * LEASED_MIB * MIB) && gpus[0]["memory_used"].as_u64() <= Some(CARD), "{gpus}");

    let file = installation.folder.join("pool.yaml");
    let pool = |percent: u32| -> Result<()> {
        let pool = format!("pools: [{{name: small, nodes: [one], memory_overcommit_percent: {percent}}}]");
        std::fs::write(&file, format!("{PRICED}{pool}\n"))?;
        admin.text(&["apply", "-f", &file.display().to_string()]).map(drop)
    };
    pool(100)?;
    let gpus = admin.json(&["gpus"])?;
    ensure!(gpus[0].get("memory_leasable").is_none() && gpus[0]["leases"] == 3, "{gpus}");
    all(&mut programs, &[("compute", "computed"), ("check", "right")])?;
    programs.remove(0).end_its_input()?;
    programs.remove(0).end_its_input()?;
    // One of 0.7 of the memory is left, and the pool leases what the GPU has.
    admin.wait_for(&["gpus"], |gpus| gpus[0]["leases"] == 1)?;
    ensure!(blue.json(&["queue"])?[0]["reason"].is_string(), "the fourth one waits");
    pool(200)?;
    fourth.expect_line("ready")?;
    ensure!(admin.text(&["pools"])?.contains("200 %"), "{}", admin.text(&["pools"])?);
    programs.push(fourth);
    all(&mut programs, &[("compute", "computed"), ("check", "right")])?;
    programs.iter_mut().try_for_each(Process::end_its_input)?;

    let records = installation.wait_for_records(4)?;
    ensure!(records.iter().all(|record| record["memory_mib"] == LEASED_MIB), "{records:?}");
    installation.check_bill(&records)?;
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let held_ms = |record: &Value| number(&record["until_ms"]) - number(&record["from_ms"]);
    let memory: u64 = records.iter().map(|record| LEASED_MIB * held_ms(record)).sum();
    let bill = admin.json(&["bill"])?;
    let lines = bill["lines"].as_array().into_iter().flatten().filter(|line| line["meter"] == "memory");
    ensure!(lines.map(|line| number(&line["amount"])).sum::<u64>() == memory, "{memory}: {bill}");
    Ok(())
}

/// Tells all programs the same, and waits for all, so that they run at once.
fn all(programs: &mut [Process], lines: &[(&str, &str)]) -> Result<()> {
    for (line, expect) in lines {
        programs.iter_mut().try_for_each(|program| program.tell(line))?;
        programs.iter_mut().try_for_each(|program| program.expect_line(expect))?;
    }
    Ok(())
}
