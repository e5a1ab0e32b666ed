//! Sessions through cuts: every side effect once, data intact, and a clear end where a session
//! cannot go on.

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use harness::counting::{expect_error, start_anew, start_counting};
use harness::random::{Random, random_fate};
use xtask::chaos;

use crate::node::{self, Node};
use crate::python;
use crate::relay::{End, Fate, Purpose, Relay};
use crate::silence::{self, Told};
use crate::{NODE_GPUS, Test, expect_pass, finish, program_file, start_node, tail};

/// Only with `--all`.
pub(crate) const LONG_TESTS: &[Test] = &[
    ("a cut of a minute", of_a_minute),
    ("a stopped node always says why", || stopped_node(20)),
    ("chaos for two minutes", || chaos::run(&["--minutes", "2"]).map(drop)),
];

/// What mostly waits.
pub(crate) const PATIENT_TESTS: &[Test] =
    &[("cuts that nobody sees", that_nobody_sees), ("a cut while the port refuses", while_refused)];

pub(crate) const TESTS: &[Test] = &[
    ("cuts at chosen bytes", at_chosen_bytes),
    ("a cut of seconds", of_seconds),
    ("a changed client address", changed_address),
    ("cuts at random under tinygrad", under_tinygrad),
    ("recognised sequences through cuts", recognised_sequences),
    ("packed copies through cuts", packed_copies),
    ("several connections on a far link", several_connections),
    ("several connections through cuts", several_connections_cut),
    ("a killed worker is an error", killed_worker),
    ("a restarted node is an error", restarted_node),
    ("a stopped node says why", || stopped_node(3)),
    ("a dead node is an error after a while", dead_node),
    ("a killed client behind a cut", killed_client),
];

const LIMIT: Duration = Duration::from_secs(300);

/// `sluice run` through the relay, which counts bytes: so they are not packed, however far and slow
/// a busy machine's own link seems.
pub(super) fn run_through(relay: &Relay, words: &[&std::path::Path]) -> Command {
    let mut command = Command::new(node::sluice());
    command.args(["run", "-p", "0.5", "--memory", "512MiB", "--node", &relay.address, "--"]).args(words);
    command.env("SLUICE_PACK", "off");
    command
}

fn counts(relay: &Relay, rounds: u32) -> Command {
    let mut command = run_through(relay, &["python3".as_ref(), &program_file("counts.py")]);
    command.env("ROUNDS", rounds.to_string());
    command
}

/// The first connections of lease and session live long enough to be opened; each later one carries
/// what the list says.
fn at_chosen_bytes() -> Result<()> {
    // The last of a `Hello`, of a `Welcome`, of what follows; bytes of frames' headers; middles of
    // data.
    const BYTES: &[u64] = &[
        28, 50, 107, 108, 115, 121, 122, 140, 141, 150, 151, 152, 160, 161, 170, 180, 200, 333, 1000, 1024,
        4096, 65_536, 65_537, 262_144, 1_000_000, 1_048_576, 3_145_728, 4_000_000, 9_000_000,
    ];
    let node = start_node()?;
    let mut next = BYTES.iter().cycle();
    let relay = Relay::start(&node.address, move |purpose, number| {
        let bytes = match purpose {
            Purpose::Session => Some(70_000),
            Purpose::Resume => next.next().copied(),
            Purpose::Control | Purpose::Sealed => None,
        };
        let end = if number % 2 == 0 { End::Reset } else { End::Close };
        Fate { bytes, end, ..Fate::GOOD }
    })?;
    expect_pass(&mut counts(&relay, 60), "cuts at chosen bytes", LIMIT)?;
    eprintln!("   {} cuts", relay.cuts());
    ensure!(relay.cuts() > BYTES.len() as u32, "only {} cuts", relay.cuts());
    node.wait_until_free()
}

/// Half-dead connections, as a NAT leaves them: whoever waits notices.
fn that_nobody_sees() -> Result<()> {
    let node = start_node()?;
    let relay = Relay::start(&node.address, |purpose, _| {
        let bytes = match purpose {
            Purpose::Session => Some(100_000),
            Purpose::Resume => Some(30_000_000),
            Purpose::Control | Purpose::Sealed => None,
        };
        Fate { bytes, end: End::Silence, ..Fate::GOOD }
    })?;
    let mut command = counts(&relay, 20);
    // Over eight, which a busy machine may take the link to be far enough for, none would carry so
    // much.
    expect_pass(command.env("SLUICE_STRIPES", "1"), "cuts that nobody sees", LIMIT)?;
    ensure!(relay.cuts() >= 2, "only {} cuts", relay.cuts());
    node.wait_until_free()
}

/// The session is cut, and so are its first attempts to continue.
fn of_seconds() -> Result<()> {
    let node = start_node()?;
    let relay = Relay::start(&node.address, |purpose, _| match purpose {
        Purpose::Session => Fate { bytes: Some(1_000_000), attempts: 8, ..Fate::GOOD },
        _ => Fate::GOOD,
    })?;
    let mut command = counts(&relay, 20);
    // On a busy machine the link may seem far, and eight connections at once would be all attempts.
    let ended = expect_pass(command.env("SLUICE_STRIPES", "1"), "a cut of seconds", LIMIT)?;
    for part in ["is cut", "is back"] {
        ensure!(ended.output.contains(part), "no {part:?} in {}", tail(&ended.output));
    }
    node.wait_until_free()
}

/// A forwarder is started anew.
fn while_refused() -> Result<()> {
    away("a cut while the port refuses", Duration::from_secs(7))
}

/// What a session has to outlast.
fn of_a_minute() -> Result<()> {
    away("a cut of a minute", Duration::from_secs(60))
}

/// The session and its lease lose their connections, and for so long there are no others.
fn away(name: &str, away: Duration) -> Result<()> {
    let node = start_node()?;
    let relay = Relay::start(&node.address, move |purpose, _| match purpose {
        Purpose::Session => Fate { bytes: Some(1_000_000), away, refuses: true, ..Fate::GOOD },
        _ => Fate::GOOD,
    })?;
    let ended = expect_pass(counts(&relay, 20).env("SLUICE_STRIPES", "1"), name, LIMIT)?;
    // The lease, which was held again, says what it has used.
    for part in ["is cut", "the program waits for up to 90 s", "is back", " kernels, "] {
        ensure!(ended.output.contains(part), "no {part:?} in {}", tail(&ended.output));
    }
    ensure!(relay.cuts() >= 2 && relay.starts_anew() == 1, "{} cuts", relay.cuts());
    node.wait_until_free()
}

fn changed_address() -> Result<()> {
    let node = start_node()?;
    let relay = Relay::start(&node.address, |_, number| {
        let from = Ipv4Addr::new(127, 0, 0, 1 + (number % 100) as u8);
        Fate { bytes: Some(500_000), end: End::Reset, from, ..Fate::GOOD }
    })?;
    expect_pass(&mut counts(&relay, 30), "a changed client address", LIMIT)?;
    ensure!(relay.cuts() >= 2, "only {} cuts", relay.cuts());
    node.wait_until_free()
}

fn under_tinygrad() -> Result<()> {
    let python = python::TINYGRAD.ready()?;
    let node = start_node()?;
    let mut random = Random::seeded()?;
    // tinygrad sends little, so a connection carries little.
    let relay = Relay::start(&node.address, move |purpose, _| {
        let fate = random_fate(&mut random, purpose);
        let bytes = match purpose {
            Purpose::Session => Some(70_000),
            Purpose::Resume => fate.bytes.map(|bytes| bytes % 50_000),
            Purpose::Control | Purpose::Sealed => fate.bytes,
        };
        Fate { bytes, ..fate }
    })?;
    let mut command = run_through(&relay, &[&python, &program_file("tinygrad_train.py")]);
    // Told as what changed, the commands are so few bytes that hardly any is cut.
    command.env("SLUICE_RECOGNISE", "off");
    expect_pass(&mut command, "cuts at random under tinygrad", LIMIT)?;
    eprintln!("   {} cuts", relay.cuts());
    ensure!(relay.cuts() > 0, "nothing was cut");
    node.wait_until_free()
}

/// Steps that repeat take few bytes, and none of them is lost or changed wherever these are cut.
fn recognised_sequences() -> Result<()> {
    let node = start_node()?;
    let repeat = |relay: &Relay, switch: &str| -> Result<u64> {
        let mut command = run_through(relay, &["python3".as_ref(), &program_file("repeats.py")]);
        command.env("SLUICE_RECOGNISE", switch);
        expect_pass(&mut command, "recognised sequences", LIMIT)?;
        Ok(relay.to_node())
    };
    let through_a_good_link = |switch| repeat(&Relay::start(&node.address, |_, _| Fate::GOOD)?, switch);
    let (plain, told) = (through_a_good_link("off")?, through_a_good_link("on")?);
    eprintln!("   {plain} bytes without, {told} with recognition");
    ensure!(5 * told < plain, "{told} bytes are too many for what {plain} say");

    // A connection that continues takes some 160 bytes for saying so.
    const BYTES: &[u64] = &[161, 170, 200, 333, 1000, 180, 250, 2500, 165, 400, 4000];
    let mut next = BYTES.iter().cycle();
    let relay = Relay::start(&node.address, move |purpose, number| {
        let bytes = match purpose {
            Purpose::Session => Some(10_000),
            Purpose::Resume => next.next().copied(),
            Purpose::Control | Purpose::Sealed => None,
        };
        let end = if number % 2 == 0 { End::Reset } else { End::Close };
        Fate { bytes, end, ..Fate::GOOD }
    })?;
    repeat(&relay, "on")?;
    eprintln!("   {} cuts", relay.cuts());
    ensure!(relay.cuts() > 5, "only {} cuts", relay.cuts());
    node.wait_until_free()
}

/// Copies over a slow link take fewer bytes than the data have, and come right wherever these are
/// cut.
fn packed_copies() -> Result<()> {
    let node = start_node()?;
    let slow = Fate { bytes_per_s: Some(40e6), delay: Duration::from_millis(1), ..Fate::GOOD };
    let copy = |relay: &Relay, switch: &str| -> Result<u64> {
        let mut command = run_through(relay, &["python3".as_ref(), &program_file("packs.py")]);
        command.env("SLUICE_PACK", switch).env("SLUICE_STRIPES", "1");
        expect_pass(&mut command, "packed copies", LIMIT)?;
        Ok(relay.to_node())
    };
    let through_a_good_link = |switch| copy(&Relay::start(&node.address, move |_, _| slow)?, switch);
    let (plain, packed) = (through_a_good_link("off")?, through_a_good_link("on")?);
    eprintln!("   {plain} bytes as they are, {packed} packed");
    ensure!(packed < plain / 4 * 3, "{packed} bytes are too many for what takes {plain}");

    // A connection finds out how fast it is by some 8 MB.
    const BYTES: &[u64] = &[13_000_001, 12_345_678, 300_000, 15_000_161, 11_111_111, 70_000];
    let mut next = BYTES.iter().cycle();
    let relay = Relay::start(&node.address, move |purpose, number| {
        let bytes = match purpose {
            Purpose::Session => Some(12_000_000),
            Purpose::Resume => next.next().copied(),
            Purpose::Control | Purpose::Sealed => None,
        };
        let end = if number % 2 == 0 { End::Reset } else { End::Close };
        Fate { bytes, end, ..slow }
    })?;
    let cut = copy(&relay, "on")?;
    eprintln!("   {} cuts, {cut} bytes", relay.cuts());
    ensure!(relay.cuts() > 3, "only {} cuts", relay.cuts());
    // As they are they take more than without cuts: what was under way is sent again.
    ensure!(cut < plain, "{cut} bytes through cuts are too many for what takes {plain}");
    node.wait_until_free()
}

/// A session that copies much over a link with a round trip of 12 ms continues over eight
/// connections.
fn several_connections() -> Result<()> {
    let node = start_node()?;
    let resumed = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&resumed);
    let relay = Relay::start(&node.address, move |purpose, _| {
        counted.fetch_add(u32::from(purpose == Purpose::Resume), Ordering::SeqCst);
        Fate { delay: Duration::from_millis(6), ..Fate::GOOD }
    })?;
    expect_pass(&mut counts(&relay, 15), "several connections", LIMIT)?;
    let resumed = resumed.load(Ordering::SeqCst);
    // More if the machine is so busy that a connection is taken for cut.
    ensure!(resumed >= 8, "it went on over {resumed} connections");
    node.wait_until_free()
}

/// The end of one of several connections is that of all, and the session continues over as many
/// again, or over one.
fn several_connections_cut() -> Result<()> {
    const BYTES: &[u64] =
        &[3_000_000, 20_000_000, 700_000, 9_000_000, 150, 70_000, 2_000_000, 1_000_000, 400_000, 5_000_000];
    let node = start_node()?;
    let mut next = BYTES.iter().cycle();
    let relay = Relay::start(&node.address, move |purpose, number| {
        let bytes = match purpose {
            Purpose::Resume => next.next().copied(),
            Purpose::Session | Purpose::Control | Purpose::Sealed => None,
        };
        let end = if number % 2 == 0 { End::Reset } else { End::Close };
        Fate { bytes, end, ..Fate::GOOD }
    })?;
    let mut command = counts(&relay, 60);
    expect_pass(command.env("SLUICE_STRIPES", "4"), "several connections through cuts", LIMIT)?;
    eprintln!("   {} cuts", relay.cuts());
    ensure!(relay.cuts() > 8, "only {} cuts", relay.cuts());
    node.wait_until_free()
}

fn killed_worker() -> Result<()> {
    let node = start_node()?;
    let child = start_counting(&node.address)?;
    let workers = node.workers();
    let [worker] = workers[..] else { bail!("one session has the workers {workers:?}") };
    // SAFETY: kill has no memory effects; the worker lives, or its session would have ended.
    unsafe { libc::kill(worker as i32, libc::SIGKILL) };
    expect_error(child, &["the session has ended: its worker has ended (signal: 9", "DEVICE_UNAVAILABLE"])?;
    node.wait_until_free()
}

fn restarted_node() -> Result<()> {
    let mut node = start_node()?;
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        start_anew(&mut node, signal, |address| Node::start(&["--listen", address, "--gpus", NODE_GPUS]))?;
    }
    Ok(())
}

/// Whatever is under way in a session, its program hears that the node was stopped: while it rests,
/// and while it copies without a pause.
fn stopped_node(rounds: u32) -> Result<()> {
    let mut lost = 0;
    for _ in 0..rounds {
        for (before, after) in [("count", "count"), ("reads", "enough")] {
            let is_told = stopped_once(before, after).with_context(|| format!("after {before:?}"))?;
            lost += u32::from(!is_told);
        }
    }
    // On a machine so busy that a client does not read within the time that it has, the reason may
    // be lost.
    ensure!(lost <= rounds / 3, "{lost} of {} reasons were lost", 2 * rounds);
    Ok(())
}

/// Whether the program says why its node has ended. If not, the worker has waited for it.
fn stopped_once(before: &str, after: &str) -> Result<bool> {
    /// A worker waits at least so long for its client to read why its session ends (`HEARD` in
    /// `crates/worker/src/process/ending.rs`).
    const HEARD: Duration = Duration::from_secs(3);
    const WHY: &str = "the node has been stopped, and the session has ended with it";
    let mut node = start_node()?;
    let mut told = Told::start(&mut silence::run(&node.address), "a stopped node")?;
    told.does(before)?;
    let begin = Instant::now();
    node.end(libc::SIGTERM);
    let took = begin.elapsed();
    let said = told.ends_badly(after, "")?;
    if said.contains(WHY) && !said.contains("is cut") {
        return Ok(true);
    }
    ensure!(took >= HEARD, "it took {took:?}: {}", tail(&said));
    eprintln!("   the end took {took:?}, and the reason was lost");
    Ok(false)
}

/// Nobody says why no node is there: the program waits as long as the node would have waited for
/// it, and not longer.
fn dead_node() -> Result<()> {
    let mut node = Node::start(&["--listen", "127.0.0.1:0", "--gpus", NODE_GPUS, "--linger", "3s"])?;
    let child = start_counting(&node.address)?;
    node.end(libc::SIGKILL);
    expect_error(child, &["the program waits for up to 3 s", "cannot be reached", "DEVICE_UNAVAILABLE"])
}

/// A program that is killed while its link is cut leaves nothing behind, long before the node would
/// stop waiting.
fn killed_client() -> Result<()> {
    let node = start_node()?;
    let relay = Relay::start(&node.address, |purpose, _| match purpose {
        Purpose::Session => Fate { bytes: Some(1_000_000), attempts: u32::MAX, ..Fate::GOOD },
        _ => Fate::GOOD,
    })?;
    let mut child = start_counting(&relay.address)?;
    relay.wait_for_cuts(1);
    ensure!(node.workers().len() == 1, "the session did not outlive the cut");
    child.kill()?;
    child.wait()?;
    node.wait_until_free()?;
    // And the node still works.
    let mut command = Command::new(node::sluice());
    command.args(["run", "--node", &node.address, "--", "python3"]).arg(program_file("counts.py"));
    let ended = finish(command.env("ROUNDS", "3"), "after a cut", LIMIT)?;
    ensure!(ended.code == Some(0), "{}", tail(&ended.output));
    node.wait_until_free()
}
