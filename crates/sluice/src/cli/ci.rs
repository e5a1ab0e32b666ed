//! Options of `sluice run` for continuous integration.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use sluice_sanitize::Tools;

#[derive(Debug, Args)]
pub(crate) struct CiArgs {
    /// Fail with exit code 123 if the program succeeds and launched no kernel
    #[arg(long)]
    pub(crate) require_gpu: bool,

    /// Write a report into this file, in the XML format of JUnit: for each process that used a GPU
    /// its kernels, GPU time, bytes sent, and faults
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    /// On this machine's software GPU: run the blocks of a kernel one at a time, by their indices
    /// (fixed) or in an order that follows from SEED (random[:SEED]; without one a seed is printed)
    #[arg(long, value_name = "ORDER", conflicts_with_all = ["node", "server", "lease", "nodes", "tasks"])]
    pub(crate) block_order: Option<BlockOrder>,

    /// On this machine's software GPU: look for errors in kernels, report them when the program has
    /// ended, and fail with exit code 122 if it succeeded. TOOLS are memcheck, initcheck,
    /// racecheck, synccheck, leakcheck, or all; without them, all but leakcheck
    #[arg(
        long, value_name = "TOOLS", num_args = 0..=1, require_equals = true,
        default_missing_value = "memcheck,initcheck,racecheck,synccheck",
        conflicts_with_all = ["node", "server", "lease", "nodes", "tasks"]
    )]
    pub(crate) sanitize: Option<Tools>,

    /// On this machine's software GPU: write into this file how many threads have executed each
    /// line of the kernels, as an lcov tracefile. Counts are added to those that the file has
    #[arg(long, value_name = "FILE", conflicts_with_all = ["node", "server", "lease", "nodes", "tasks"])]
    pub(crate) coverage: Option<PathBuf>,

    /// Write what --sanitize has found into this file as well, as JSON
    #[arg(long, value_name = "FILE", requires = "sanitize")]
    pub(crate) sanitize_report: Option<PathBuf>,

    /// Leave out findings that this file names, one a line: KIND KERNEL [@ SOURCE:LINE], with `*`
    /// for any text
    #[arg(long, value_name = "FILE", requires = "sanitize")]
    pub(crate) suppressions: Option<PathBuf>,
}

impl CiArgs {
    /// An option that is there and needs a software GPU of this machine.
    pub(crate) fn software_gpu_option(&self) -> Option<&'static str> {
        let options = [
            (self.block_order.is_some(), "--block-order"),
            (self.sanitize.is_some(), "--sanitize"),
            (self.coverage.is_some(), "--coverage"),
        ];
        options.into_iter().find(|(is_there, _)| *is_there).map(|(_, option)| option)
    }
}

/// `fixed`, `random`, or `random:SEED`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockOrder {
    Fixed,
    /// With no seed, one is made.
    Random(Option<u64>),
}

impl FromStr for BlockOrder {
    type Err = String;

    fn from_str(text: &str) -> Result<BlockOrder, String> {
        match text.split_once(':') {
            None if text == "fixed" => Ok(BlockOrder::Fixed),
            None if text == "random" => Ok(BlockOrder::Random(None)),
            Some(("random", seed)) => match seed.parse() {
                Ok(seed) => Ok(BlockOrder::Random(Some(seed))),
                Err(_) => Err(format!("{seed:?} is no seed, a number from 0 to {}", u64::MAX)),
            },
            _ => Err(format!("{text:?} is no order: fixed, random, or random:SEED")),
        }
    }
}

impl fmt::Display for BlockOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlockOrder::Fixed => write!(f, "fixed"),
            BlockOrder::Random(None) => write!(f, "random"),
            BlockOrder::Random(Some(seed)) => write!(f, "random:{seed}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_of_blocks_are_read_as_they_are_written() {
        for text in ["fixed", "random", "random:0", "random:18446744073709551615"] {
            assert_eq!(text.parse::<BlockOrder>().unwrap().to_string(), text);
        }
        for wrong in ["", "sorted", "random:", "random:-1", "fixed:1"] {
            wrong.parse::<BlockOrder>().expect_err(wrong);
        }
    }
}
