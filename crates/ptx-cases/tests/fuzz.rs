//! Random kernels: the interpreter and compiled code must leave the same bits.
//!
//! `SLUICE_FUZZ_SEEDS=FROM..TO` runs other seeds than those of every run. A failure prints its seed
//! and kernel; shrink it by hand into a file of `cases/kernels/`.

use std::ops::Range;

use libtest_mimic::{Arguments, Failed, Trial};
use sluice_ptx_cases::fuzz;

const SEEDS: Range<u64> = 0..100;
/// Seeds that make one test.
const BATCH: u64 = 10;

fn main() {
    let seeds =
        std::env::var("SLUICE_FUZZ_SEEDS").ok().map(|text| parse(&text).expect("FROM..TO")).unwrap_or(SEEDS);
    let batches = (seeds.start..seeds.end).step_by(BATCH as usize);
    let trials = batches.map(|start| {
        let batch = start..(start + BATCH).min(seeds.end);
        Trial::test(format!("seeds {batch:?}"), move || {
            let failures: Vec<String> = batch.filter_map(|seed| fuzz::check(seed).err()).collect();
            if failures.is_empty() { Ok(()) } else { Err(Failed::from(failures.join("\n"))) }
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}

fn parse(text: &str) -> Option<Range<u64>> {
    let (from, to) = text.split_once("..")?;
    Some(from.parse().ok()?..to.parse().ok()?)
}
