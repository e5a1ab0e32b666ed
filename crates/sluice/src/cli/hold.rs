//! Arguments of `sluice hold`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Example, as the sidecar of a pod runs it:
  sluice hold --from /sluice/lease --session-file /sluice/session/session --install /sluice/software")]
pub(crate) struct HoldArgs {
    /// The folder that describes the lease, in the files `server` (its URL), `lease` (its number)
    /// and `key` (what opens it)
    #[arg(long, value_name = "FOLDER", required_unless_present = "is_ready")]
    pub(crate) from: Option<PathBuf>,

    /// Write what programs attach with into this file once the lease is claimed; they find it by
    /// SLUICE_SESSION=@FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) session_file: PathBuf,

    /// Copy the client libraries into this folder first
    #[arg(long, value_name = "FOLDER")]
    pub(crate) install: Option<PathBuf>,

    /// Only say by the exit code whether the lease is claimed
    #[arg(long, conflicts_with_all = ["from", "install"])]
    pub(crate) is_ready: bool,
}
