//! What can be said to `sluice bench`.

use clap::{Args, Subcommand, ValueEnum};

use super::{Output, PlaceArgs};

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure calls and copies over the link to a node, and estimate what programs lose by it
    Remoting(RemotingArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RemotingArgs {
    #[command(flatten)]
    pub(crate) place: PlaceArgs,

    /// Client processes, one after the other, whose medians are shown with the lowest and the
    /// highest
    #[arg(long, value_name = "RUNS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,

    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct BenchClientArgs {
    #[arg(value_name = "BASELINE")]
    pub(crate) baseline: Baseline,
}

/// What bulk copies are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Baseline {
    /// As many bytes through a plain socket, between this process and the node.
    Socket,
    /// As many bytes from one buffer of this process to another.
    Memory,
}

impl Baseline {
    /// The word for it on a command line.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Baseline::Socket => "socket",
            Baseline::Memory => "memory",
        }
    }
}
