//! `cargo xtask chaos`: programs over a link that is cut, late, away and started anew at random, in
//! plain text and with TLS, for as long as one likes; now and then the node itself is started anew.
//!
//! Every program checks its own results, and none passes that was not cut. What happens follows
//! from the seed, which is printed; when the bytes meet their fate does not, since programs and
//! node run as fast as they do.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use harness::counting;
use harness::expect::logs;
use harness::random::{Random, random_fate};
use harness::relay::{Fate, Purpose, Relay};

use crate::node::{self, Node};
use crate::{process, python};

/// Some connections end because the relay is started anew, which takes up to ten seconds.
fn chaotic_fate(random: &mut Random, purpose: Purpose, number: u32) -> Fate {
    let fate = random_fate(random, purpose);
    let bytes = match number {
        // The lease's. Where that is not known, it opens something too.
        1 => fate.bytes,
        // The session's: its opening, and less than any program sends after it. So every program is
        // cut.
        2 => Some(20_000 + random.below(20_000)),
        _ => fate.bytes,
    };
    match random.below(12) {
        0 => Fate { bytes, refuses: true, away: Duration::from_millis(random.below(10_000)), ..fate },
        _ => Fate { bytes, ..fate },
    }
}

/// A node on the address, in plain text or with TLS. One software GPU each, so that programs are
/// fast.
const STARTS: [fn(&str) -> Result<Node>; 2] = [
    |listen| Node::start(&["--listen", listen, "--gpus", GPUS]),
    |listen| {
        let mut command = Command::new(node::sluice());
        command.args(["node", "--listen", listen, "--gpus", GPUS, "--tls"]);
        Node::start_command(command.env("XDG_DATA_HOME", crate::target_folder().join("tls-node")))
    },
];
const GPUS: &str = "software:1,4GiB";

/// What has happened so far.
#[derive(Default)]
struct Tally {
    passed: u32,
    /// Of them over TLS.
    sealed: u32,
    cuts: u32,
    /// Starts of the relay under a program, and of a node.
    relays: u32,
    nodes: u32,
}

pub fn run(options: &[&str]) -> Result<ExitCode> {
    let mut minutes = 10.0;
    let mut random = None;
    let mut rest = options.iter();
    while let Some(option) = rest.next() {
        let value = rest.next().with_context(|| format!("{option} needs a value"))?;
        match *option {
            "--minutes" => minutes = value.parse().context("--minutes")?,
            "--seed" => random = Some(Random::new(value.parse().context("--seed")?)),
            _ => bail!("chaos knows --minutes and --seed, not {option}"),
        }
    }
    let mut random = match random {
        Some(random) => random,
        None => Random::seeded()?,
    };
    node::build()?;
    std::fs::create_dir_all(logs())?;
    let programs = [
        (python::TINYGRAD.ready()?, "tinygrad_train.py"),
        ("python3".into(), "counts.py"),
        (python::CUDA_13.ready()?, "cupy_kernels.py"),
    ];
    let [plain, sealed] = STARTS;
    let mut nodes = [plain("127.0.0.1:0")?, sealed("127.0.0.1:0")?];
    let end = Instant::now() + Duration::from_secs_f64(60.0 * minutes);
    let mut tally = Tally::default();
    while Instant::now() < end {
        for (python, file) in &programs {
            let side = random.below(2) as usize;
            let mut command = Command::new(python);
            command.arg(crate::root().join("tests/programs").join(file));
            one_program(&nodes[side], &command, file, &mut random, &mut tally)?;
            tally.sealed += side as u32;
            if random.below(6) == 0 {
                let signal = if random.below(2) == 0 { libc::SIGTERM } else { libc::SIGKILL };
                counting::start_anew(&mut nodes[side], signal, STARTS[side])?;
                tally.nodes += 1;
                eprintln!("a node was started anew under a program, which noticed it");
            }
        }
    }
    let Tally { passed, sealed, cuts, relays, nodes } = tally;
    println!(
        "{passed} programs, {sealed} of them over TLS, all right, through {cuts} cuts and {relays} new starts of the relay, \
         {nodes} of a node, in {minutes} minutes"
    );
    Ok(ExitCode::SUCCESS)
}

/// Runs a program through a relay of its own.
fn one_program(
    node: &Node,
    program: &Command,
    name: &str,
    random: &mut Random,
    tally: &mut Tally,
) -> Result<()> {
    let (place, fingerprint) = node.address.split_once('/').unwrap_or((&node.address, ""));
    let mut fates = Random::new(random.below(u64::MAX));
    let relay = Relay::start(place, move |purpose, number| chaotic_fate(&mut fates, purpose, number))?;
    let through = match fingerprint {
        "" => relay.address.clone(),
        fingerprint => format!("{}/{fingerprint}", relay.address),
    };
    let mut command = Command::new(node::sluice());
    command.args(["run", "-q", "-p", "0.5", "--memory", "2GiB", "--node", &through, "--"]);
    command.arg(program.get_program()).args(program.get_args());
    // As if the link were far: several connections, of which any may be cut.
    if random.below(2) == 0 {
        command.env("SLUICE_STRIPES", "4");
    }
    let log = crate::target_folder().join("chaos.log");
    let ended = process::run_limited(&mut command, Duration::from_secs(1200), &log)?;
    let cuts = relay.cuts();
    ensure!(
        ended.code == Some(0) && ended.output.contains("PASS"),
        "{name} after {cuts} cuts: {:?}, see {}",
        ended.code,
        log.display()
    );
    ensure!(cuts > 0, "{name} was not cut");
    node.wait_until_free()?;
    let link = if fingerprint.is_empty() { "plain" } else { "TLS" };
    eprintln!("{name}: right, over {link}, after {cuts} cuts, {} starts of the relay", relay.starts_anew());
    (tally.passed, tally.cuts, tally.relays) =
        (tally.passed + 1, tally.cuts + cuts, tally.relays + relay.starts_anew());
    Ok(())
}
