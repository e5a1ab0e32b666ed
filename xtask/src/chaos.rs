//! `cargo xtask chaos`: programs over a link that is cut, late and away at random, for as long as one likes.
//!
//! Every program checks its own results. What happens follows from the seed, which is printed; when the bytes meet their
//! fate does not, since programs and node run as fast as they do.

use std::net::Ipv4Addr;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::node::{self, Node};
use crate::process;
use crate::python;
use crate::relay::{End, Fate, Purpose, Relay};

/// A pseudo-random sequence (Steele, Lea, Flood: SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// From `SEED`, or from the process; said, so that it can be repeated.
    pub(crate) fn seeded() -> Result<Random> {
        let seed = match std::env::var("SEED") {
            Ok(seed) => seed.parse().context("SEED is not a number")?,
            Err(_) => u64::from(std::process::id()),
        };
        eprintln!("   SEED={seed}");
        Ok(Random(seed))
    }

    /// Below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// Sizes of all orders of magnitude; connections that open something live long enough for that.
pub(crate) fn random_fate(random: &mut Random, purpose: Purpose) -> Fate {
    let bytes = (1 << (5 + random.below(20))) + random.below(1 << 12);
    let opening = match purpose {
        Purpose::Control => 20_000,
        Purpose::Session | Purpose::Sealed => 70_000,
        Purpose::Resume => 0,
    };
    let end = match random.below(20) {
        0 => End::Silence,
        1..10 => End::Reset,
        _ => End::Close,
    };
    let delay = match random.below(4) {
        0 => Duration::from_micros(random.below(3000)),
        _ => Duration::ZERO,
    };
    Fate {
        bytes: Some(opening + bytes),
        end,
        delay,
        bytes_per_s: None,
        from: Ipv4Addr::new(127, 0, 0, 1 + random.below(100) as u8),
        attempts: if random.below(8) == 0 { random.below(8) as u32 } else { 0 },
        away: Duration::ZERO,
        refuses: false,
    }
}

pub(crate) fn run(options: &[&str]) -> Result<ExitCode> {
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
    let programs = [
        (python::TINYGRAD.ready()?, "tinygrad_train.py"),
        ("python3".into(), "counts.py"),
        (python::CUDA_13.ready()?, "cupy_kernels.py"),
    ];
    let node = Node::start(&["--listen", "127.0.0.1:0", "--gpus", "software:1,4GiB"])?;
    let end = Instant::now() + Duration::from_secs_f64(60.0 * minutes);
    let (mut cuts, mut passed) = (0, 0);
    while Instant::now() < end {
        for (python, file) in &programs {
            let mut fates = Random::new(random.below(u64::MAX));
            let relay = Relay::start(&node.address, move |purpose, _| random_fate(&mut fates, purpose))?;
            let mut command = Command::new(node::sluice());
            command.args(["run", "-q", "-p", "0.5", "--memory", "2GiB", "--node", &relay.address, "--"]);
            // As if the link were far: several connections, of which any may be cut.
            if random.below(2) == 0 {
                command.env("SLUICE_STRIPES", "4");
            }
            command.arg(python).arg(crate::root().join("tests/programs").join(file));
            let log = crate::target_folder().join("chaos.log");
            let ended = process::run_limited(&mut command, Duration::from_secs(1200), &log)?;
            ensure!(
                ended.code == Some(0) && ended.output.contains("PASS"),
                "{file} after {} cuts: {:?}, see {}",
                relay.cuts(),
                ended.code,
                log.display()
            );
            (cuts, passed) = (cuts + relay.cuts(), passed + 1);
            eprintln!("{file}: right, after {} cuts", relay.cuts());
            node.wait_until_free()?;
        }
    }
    println!("{passed} programs, all right, through {cuts} cuts in {minutes} minutes");
    Ok(ExitCode::SUCCESS)
}
