//! What can be said to `sluice record` and `sluice replay`.

use std::path::PathBuf;

use clap::Args;

use super::{Output, PlaceArgs, RunArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
The file holds all that the program sent to its GPU, its data and kernels among them, and hashes of what \
came back. Each further process that uses the GPU has a file of its own beside it: FILE.2, FILE.3.")]
pub(crate) struct RecordArgs {
    /// The file; it must not be there yet
    #[arg(short = 'o', long = "output", value_name = "FILE", default_value = "recording.sluice")]
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The exit code is 0 if all answers and data are as recorded, and 1 if not. What differs by nature (times, \
what was done, free memory, whether a node knows an image) is counted, and is no difference. A recording \
GPU computes nothing: there, data that kernels were to write differ, and all else should not.")]
pub(crate) struct ReplayArgs {
    /// What `sluice record` wrote
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,

    /// How to print; json is one object with how long calls took, for benchmarks
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Output,
}
