//! Random data that follow from a seed, and what becomes of connections by them.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::relay::{End, Fate, Purpose};

/// A pseudo-random sequence (Steele, Lea, Flood: SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// From `SEED`, or from the process; said, so that it can be repeated.
    pub fn seeded() -> Result<Random> {
        let seed = match std::env::var("SEED") {
            Ok(seed) => seed.parse().context("SEED is not a number")?,
            Err(_) => u64::from(std::process::id()),
        };
        eprintln!("   SEED={seed}");
        Ok(Random(seed))
    }

    /// Below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// Sizes of all orders of magnitude; connections that open something live long enough for that.
pub fn random_fate(random: &mut Random, purpose: Purpose) -> Fate {
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
