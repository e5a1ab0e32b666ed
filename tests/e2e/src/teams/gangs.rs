//! An elastic gang: its tasks come and go one by one, while the others continue.

use anyhow::{Result, ensure};
use serde_json::Value;

use super::{Account, Installation, Process};
use crate::program_file;

const TENANTS: &str = "
tenants:
  - path: red
  - path: blue
    quota: {guaranteed_milli: 1000}
prices:
  - {meter: reserved, micro: 3600000000}
";

pub(super) fn a_gang_grows_and_makes_room() -> Result<()> {
    let installation = Installation::start("elastic", TENANTS, &["two", "three"], &[])?;
    let (red, blue) = (&installation.red, &installation.blue);
    let mut single = red.program("elastic single", &[])?;
    single.expect_line("ready")?;
    let mut gang = start(red)?;
    expect_ranks(&mut gang, &["0 of 2", "1 of 2"])?;

    // There is room, and it grows.
    single.go_on_to_its_end()?;
    expect_ranks(&mut gang, &["2 of 3"])?;
    let grown = wait_for(red, &[0, 1, 2])?;
    ensure!(grown["state"] == "running" && grown["attempt"] == 1, "{grown}");

    // Blue is guaranteed one GPU: the last task has to make room, and comes again.
    let mut rightful = blue.program("elastic rightful", &[])?;
    gang.expect_message("task 2 is preempted: its tenant has more than")?;
    rightful.expect_line("ready")?;
    let shrunk = wait_for(red, &[0, 1])?;
    ensure!(shrunk["state"] == "running" && shrunk["attempt"] == 1 && shrunk["tasks"] == 2, "{shrunk}");
    rightful.go_on_to_its_end()?;
    expect_ranks(&mut gang, &["2 of 3"])?;
    wait_for(red, &[0, 1, 3])?;

    // One of them ends, and gives its GPU back at once: nobody has to make room for the next.
    gang.tell("end")?;
    let fewer = wait(red, |lease| lease["places"].as_array().is_some_and(|places| places.len() == 2))?;
    let mut next = blue.program("elastic next", &[])?;
    next.expect_line("ready")?;
    next.go_on_to_its_end()?;
    let same = lease(&red.json(&["lease", "list"])?);
    ensure!(same["places"] == fewer["places"] && same["attempt"] == 1, "{fewer}, then {same}");
    gang.end_its_input()?;
    let said = gang.said();
    ensure!(said.matches("is preempted").count() == 1, "{said}");

    // Each of the four tasks has its own records, to its own end, beside those of three programs.
    let records = installation.wait_for_records(4 + 3)?;
    let of_gang = records.iter().filter(|record| record["lease"] == same["id"] && record["last"] == true);
    let mut tasks: Vec<&Value> = of_gang.map(|record| &record["task"]).collect();
    tasks.sort_by_key(|task| task.as_u64());
    ensure!(tasks == [0, 1, 2, 3], "{tasks:?}");
    installation.check_bill(&records)
}

/// A gang of one to three, whose tasks say which they are.
fn start(account: &Account) -> Result<Process> {
    let mut command = account.command(&["run", "--tasks", "1..3", "--duration", "10min"]);
    command.args(["--memory", "64MiB", "--", "python3"]).arg(program_file("task.py"));
    Process::start("elastic gang", command.env("SAY_RANK", "1"))
}

/// Tasks that start together say so in any order.
fn expect_ranks(gang: &mut Process, expect: &[&str]) -> Result<()> {
    let mut said = expect.iter().map(|_| gang.line()).collect::<Result<Vec<String>>>()?;
    said.sort();
    let expect: Vec<String> = expect.iter().map(|rank| format!("ready {rank}")).collect();
    ensure!(said == expect, "{said:?}: {}", gang.said());
    Ok(())
}

/// The gang's lease once these are its tasks.
fn wait_for(account: &Account, tasks: &[u64]) -> Result<Value> {
    wait(account, |lease| {
        let places = lease["places"].as_array().into_iter().flatten();
        places.map(|place| place["task"].as_u64()).eq(tasks.iter().map(|&task| Some(task)))
    })
}

fn wait(account: &Account, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    Ok(lease(&account.wait_for(&["lease", "list"], |leases| wanted(&lease(leases)))?))
}

/// The latest of its tenant.
fn lease(leases: &Value) -> Value {
    leases[0].clone()
}
