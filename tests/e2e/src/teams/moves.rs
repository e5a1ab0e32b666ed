//! Running leases that a server moves from node to node: the program continues, and each second of
//! it is on the bill once.

use super::*;
use crate::SHARED_MEMORY_VARIABLE;
use crate::relay::{Fate, Relay};

const TENANTS: &str = "
tenants: [{path: red, quota: {limit: 1}}, {path: blue}]
prices:
  - {meter: reserved, price: 3600}
";
pub(super) const MIB: u64 = 1 << 20;
/// A node whose GPU is of another kind than those of the other nodes, and too small for programs
/// that ask for more.
const SMALL: &[&str] = &["--gpus", "software:1,1GiB"];
const LARGE: &str = "2GiB";

/// A program that holds so much memory.
fn start(account: &Account, name: &str, held: u64, options: &[&str], more: &[&str]) -> Result<Process> {
    start_on_share(account, name, held, &[&["-p", "0.3"], options].concat(), more)
}

/// A program on a share that the options name.
pub(super) fn start_on_share(
    account: &Account,
    name: &str,
    held: u64,
    options: &[&str],
    more: &[&str],
) -> Result<Process> {
    let mut command = account.command(&["run"]);
    command.args(options).args(["--", "python3"]).arg(program_file("moved.py"));
    command.args([&held.to_string(), "7"]).args(more).env(SHARED_MEMORY_VARIABLE, "off");
    let mut program = Process::start(name, &mut command)?;
    program.expect_line("ready")?;
    Ok(program)
}

/// What a command says beside its output, which has to succeed.
fn messages_of(command: &mut Command) -> Result<String> {
    let done = command.output()?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    ensure!(done.status.success(), "{} failed: {said}", process::show(command));
    Ok(said)
}

/// Whether a lease would move, and what is said of it, once its node has said what keeps it.
fn planned(account: &Account, id: &str) -> Result<(bool, String)> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let done = account.command(&["migrate", id, "--dry-run"]).output()?;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        let yet =
            ["has not said yet", "no program of it has used its GPU yet", "ask again", "its client is away"];
        if !yet.iter().any(|yet| said.contains(yet)) {
            return Ok((done.status.success(), said));
        }
        ensure!(Instant::now() < deadline, "{said}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

pub(super) fn does(program: &mut Process, lines: &[(&str, &str)]) -> Result<()> {
    lines.iter().try_for_each(|(line, answer)| {
        program.tell(line)?;
        program.expect_line(answer)
    })
}

pub(super) fn computes(program: &mut Process) -> Result<()> {
    does(program, &[("compute", "computed"), ("check", "right")])
}

/// The lease that was asked for last.
pub(super) fn last_lease(account: &Account) -> Result<(String, String)> {
    let running = |leases: &Value| leases[0]["state"] == "running";
    let lease = account.wait_for(&["lease", "list"], running)?[0].clone();
    Ok((lease["id"].to_string(), place(&lease)))
}

fn place(lease: &Value) -> String {
    lease["places"][0]["node"].as_str().unwrap_or_default().to_owned()
}

pub(super) fn place_of(account: &Account, id: &str) -> Result<String> {
    Ok(place(&account.json(&["lease", "show", id])?["lease"]))
}

/// Millionths of the GPU of a node that are leased.
pub(super) fn leased(account: &Account, node: &str) -> Result<u64> {
    let gpus = account.json(&["gpus"])?;
    let gpu = gpus.as_array().into_iter().flatten().find(|gpu| gpu["node"] == node);
    gpu.and_then(|gpu| gpu["share_leased_ppm"].as_u64()).with_context(|| gpus.to_string())
}

/// The records of a lease's one attempt, wherever it was, follow one another without a gap.
pub(super) fn records_tile(records: &[Value], lease: &str, nodes: usize) -> Result<()> {
    let number = |record: &Value, name: &str| record[name].as_u64().unwrap_or_default();
    let lease: u64 = lease.parse()?;
    let mut of: Vec<&Value> = records.iter().filter(|record| number(record, "lease") == lease).collect();
    of.sort_by_key(|record| (number(record, "from_ms"), number(record, "until_ms")));
    let gap = of.windows(2).find(|pair| number(pair[0], "until_ms") != number(pair[1], "from_ms"));
    ensure!(gap.is_none(), "{gap:?}");
    let on: std::collections::BTreeSet<u64> = of.iter().map(|record| number(record, "node")).collect();
    ensure!(on.len() == nodes && of.iter().filter(|record| record["last"] == true).count() == 1, "{of:?}");
    Ok(())
}

/// There and back, with kernels under way. What cannot move stays as it was.
/// Moves a lease, again and again while its new node has not reported it since the last move.
fn migrated(admin: &Account, id: &str, more: &[&str]) -> Result<String> {
    loop {
        let mut command = admin.command(&["migrate", id]);
        match messages_of(command.args(more)) {
            Err(error) if format!("{error:#}").contains("has only just moved: ask again") => {}
            said => return said,
        }
    }
}

pub(super) fn a_lease_moves() -> Result<()> {
    let installation = Installation::start("moves", TENANTS, &["two"], &[])?;
    let (admin, red) = (&installation.admin, &installation.red);
    let mut program = start(red, "moves", 200 * MIB, &["--memory", "320MiB"], &[])?;
    computes(&mut program)?;
    let (id, first) = last_lease(red)?;
    let other = if first == "one" { "two" } else { "one" };
    let mut refused = red.command(&["migrate", &id]);
    expect_failure(&mut refused, "a member", 1, &["does not allow that"])?;
    let (would_move, said) = planned(admin, &id)?;
    let text = format!("lease {id} would move to GPU 0 of {other}, and stand still while 20");
    ensure!(would_move && said.contains(&text), "{said}");
    for (from, to, more) in [(&*first, other, &["--to", other][..]), (other, &*first, &[])] {
        program.tell("compute")?;
        let said = migrated(admin, &id, more)?;
        ensure!(said.contains(&format!("lease {id} is on GPU 0 of {to}; 20")), "{said}");
        program.expect_line("computed")?;
        does(&mut program, &[("check", "right")])?;
        ensure!(place_of(red, &id)? == to, "it is on {to}");
        ensure!((leased(admin, from)?, leased(admin, to)?) == (0, 300_000), "what {from} had is free");
        let sessions = red.wait_for(&["sessions"], |all| all[0]["node"] == to)?;
        ensure!(sessions.as_array().is_some_and(|all| all.len() == 1), "{sessions}");
    }
    let (would_move, said) = planned(admin, &id)?;
    ensure!(would_move && said.contains(", and stand still for about "), "{said}");
    // A process that begins now has the address of the first node from its parent.
    does(&mut program, &[("child", "child right")])?;
    computes(&mut program)?;
    let mut here = admin.command(&["migrate", &id, "--to", &first]);
    expect_failure(&mut here, "where it is", 1, &["on that node already"])?;
    let shown = red.text(&["lease", "show", &id])?;
    for words in ["running, attempt 1", "moving", "moved"] {
        ensure!(shown.contains(words), "{words}: {shown}");
    }
    program.end_its_input()?;

    let mut stays = start(red, "stays", 8 * MIB, &["--memory", "64MiB"], &["graph"])?;
    let (with_graph, node) = last_lease(red)?;
    let mut refused = admin.command(&["migrate", &with_graph]);
    expect_failure(&mut refused, "a graph", 1, &["it holds graphs"])?;
    let (would_move, said) = planned(admin, &with_graph)?;
    ensure!(
        !would_move && said.contains(&format!("lease {with_graph} would stay: it holds graphs")),
        "{said}"
    );
    ensure!(place_of(red, &with_graph)? == node && leased(admin, &node)? == 300_000, "it stays on {node}");
    let gpus = admin.json(&["gpus"])?;
    let sum: u64 =
        gpus.as_array().into_iter().flatten().filter_map(|gpu| gpu["share_leased_ppm"].as_u64()).sum();
    ensure!(sum == 300_000, "nothing is held for it elsewhere: {gpus}");
    computes(&mut stays)?;
    stays.end_its_input()?;

    let records = installation.wait_for_records(2)?;
    records_tile(&records, &id, 2)?;
    records_tile(&records, &with_graph, 1)?;
    installation.check_bill(&records)?;
    let log = admin.text(&["audit", "log"])?;
    for action in ["lease.moving", "lease.moved", "lease.move_refused"] {
        ensure!(log.contains(action), "{action}: {log}");
    }
    admin.text(&["audit", "verify"]).map(drop)
}

/// Two programs leave a node that is drained; a third one cannot, and is named.
pub(super) fn a_node_is_emptied() -> Result<()> {
    let installation = Installation::start("emptied", TENANTS, &["two", "three"], &[])?;
    let (admin, blue) = (&installation.admin, &installation.blue);
    let mut programs = Vec::new();
    let mut leases = Vec::new();
    for (name, more) in [("leaves 1", &[][..]), ("leaves 2", &[]), ("stays", &["graph"])] {
        programs.push(start(blue, name, 64 * MIB, &["--memory", "96MiB"], more)?);
        leases.push(last_lease(blue)?);
    }
    let node = leases[0].1.clone();
    ensure!(leases.iter().all(|(_, place)| *place == node), "they are together: {leases:?}");
    let said = messages_of(&mut admin.command(&["node", "drain", &node, "--why", "new fans"]))?;
    for words in [
        &format!("lease {} is on GPU 0 of ", leases[0].0),
        &format!("lease {} is on GPU 0 of ", leases[1].0),
        &format!("lease {} stays: ", leases[2].0),
        "it holds graphs",
        &format!("node {node} is drained; leases that stay there: 1"),
    ] {
        ensure!(said.contains(words), "{words}: {said}");
    }
    programs.iter_mut().try_for_each(computes)?;
    for (id, was_on) in &leases[..2] {
        ensure!(place_of(blue, id)? != *was_on, "lease {id} has left");
    }
    ensure!(place_of(blue, &leases[2].0)? == node, "the third one stays");
    let listed = admin.json(&["node", "list"])?;
    let drained = listed.as_array().into_iter().flatten().find(|listed| listed["name"] == node.as_str());
    ensure!(
        drained.is_some_and(|node| node["leases"] == 1 && node["moving"][0]["state"] == "refused"),
        "{listed}"
    );
    programs.iter_mut().try_for_each(Process::end_its_input)?;
    let records = installation.wait_for_records(3)?;
    records_tile(&records, &leases[0].0, 2)?;
    installation.check_bill(&records)
}

/// Starts the server and its node again, on what they have on disk.
fn start_up_again(installation: &mut Installation) -> Result<()> {
    let server = &installation.admin.server;
    let listen = server.trim_start_matches("http://").trim_end_matches('/');
    let mut command = Command::new(sluice());
    command.args([
        "up",
        "--listen",
        listen,
        "--node-listen",
        "127.0.0.1:0",
        "--grace",
        "30",
        "--name",
        "one",
    ]);
    command.args(SMALL).arg("--journal").arg(installation.folder.join("one"));
    installation.up = Process::start("up again", command.arg("--data").arg(installation.data()))?;
    installation.up.listening()?;
    Ok(())
}

/// A node that others reach by a slow link.
fn join_by_slow_link(installation: &mut Installation, name: &str) -> Result<Relay> {
    const SLOW: Fate = Fate { bytes_per_s: Some(4e6), ..Fate::GOOD };
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    drop(listener);
    let relay = Relay::start(&address, |_, _| SLOW)?;
    let mut command = Command::new(sluice());
    command.args(["node", "--listen", &address, "--advertise", &relay.address]);
    command.args(["--join", &installation.admin.server.clone()]);
    installation.join(name, &mut command)?;
    Ok(relay)
}

/// A program on node two that is on its way to node three, by a slow link.
fn on_its_way(installation: &mut Installation, relay: &Relay) -> Result<(Process, String, Child)> {
    installation.wait_for_gpus(3)?;
    let (admin, red) = (installation.admin.clone(), installation.red.clone());
    admin.text(&["node", "drain", "three", "--no-move"])?;
    let mut program = start(&red, "on its way", 8 * MIB, &["--memory", LARGE], &[])?;
    computes(&mut program)?;
    let (id, from) = last_lease(&red)?;
    ensure!(from == "two", "it is on {from}");
    admin.text(&["node", "drain", "three", "--undo"])?;
    let mut command = admin.command(&["migrate", &id, "--to", "three"]);
    let mut moving = command.stderr(Stdio::piped()).spawn()?;
    while relay.to_node() < 2 * MIB {
        ensure!(moving.try_wait()?.is_none(), "it did not take as long as the link");
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok((program, id, moving))
}

/// The move continues while the server is away, and the server learns of it when it is back.
pub(super) fn the_server_dies_meanwhile() -> Result<()> {
    let mut installation = Installation::start("server-dies", TENANTS, &["two"], SMALL)?;
    let relay = join_by_slow_link(&mut installation, "three")?;
    let (mut program, id, moving) = on_its_way(&mut installation, &relay)?;
    installation.up.signal(libc::SIGKILL);
    installation.up.end()?;
    computes(&mut program)?;
    start_up_again(&mut installation)?;
    let moved = moving.wait_with_output()?;
    let said = String::from_utf8_lossy(&moved.stderr);
    ensure!(moved.status.success() && said.contains(&format!("lease {id} is on GPU 0 of three")), "{said}");
    ensure!(place_of(&installation.red, &id)? == "three", "{said}");
    ensure!(leased(&installation.admin, "two")? == 0, "what it had on two is free");
    computes(&mut program)?;
    program.end_its_input()?;
    let records = installation.wait_for_records(1)?;
    records_tile(&records, &id, 2)?;
    installation.check_bill(&records)
}

/// The program is lost with its node and starts again on another one. Nothing of the move is left,
/// and what was used is billed once.
pub(super) fn the_old_node_dies_meanwhile() -> Result<()> {
    let mut installation = Installation::start("node-dies", TENANTS, &["two"], SMALL)?;
    let relay = join_by_slow_link(&mut installation, "three")?;
    let (mut program, id, mut moving) = on_its_way(&mut installation, &relay)?;
    installation.others[0].signal(libc::SIGKILL);
    installation.others[0].end()?;
    program.expect_message("its node two does not report any more")?;
    program.expect_line("ready")?;
    ensure!(!moving.wait()?.success(), "it has not moved");
    let shown = installation.red.json(&["lease", "show", &id])?;
    ensure!(shown["lease"]["attempt"] == 2 && place(&shown["lease"]) == "three", "{shown}");
    ensure!(leased(&installation.admin, "three")? == 300_000, "nothing is held for the move");
    computes(&mut program)?;
    program.end_its_input()?;
    // What the node has written down before is delivered when it is there again.
    let mut command = Command::new(sluice());
    command.args(["node", "--listen", "127.0.0.1:0", "--join", &installation.admin.server.clone()]);
    installation.join("two", &mut command)?;
    let records = installation.wait_for_records(1)?;
    let attempts = |attempt: u64| records.iter().filter(move |record| record["attempt"] == attempt).count();
    ensure!(attempts(1) + attempts(2) == records.len() && attempts(2) > 0, "{records:?}");
    installation.check_bill(&records)
}
