//! Arguments of the commands that change what a running program has.

use clap::{ArgGroup, Args};

use super::Cap;
use crate::quantity::{Memory, Share};

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("size").multiple(true)))]
#[command(after_help = "\
Examples:
  sluice resize 7 -p 0.5 --memory 16GiB     half of each GPU and 16 GiB of its memory, for lease 7
  sluice resize 7 --limit 75%               its share stays, and it gets three quarters at most
  sluice run -- sh -c 'train; sluice resize -p 0.1; serve'
                                            a program that gives back what it needs no more")]
pub(crate) struct ResizeArgs {
    /// The lease, or on a node without a server one of its sessions, by its number [default: the
    /// lease that this program runs under]
    #[arg(value_name = "LEASE")]
    pub(crate) number: Option<u64>,

    /// The new share of each GPU's compute time
    #[arg(short = 'p', long, value_name = "SHARE", group = "size")]
    pub(crate) share: Option<Share>,

    /// The new amount of memory on each GPU: not less than its programs hold
    #[arg(long, value_name = "SIZE", group = "size")]
    pub(crate) memory: Option<Memory>,

    /// Never more than this of each GPU's compute time; 1 for no limit
    #[arg(long, value_name = "SHARE", group = "size", conflicts_with = "cap")]
    pub(crate) limit: Option<Share>,

    /// "hard": the limit is the share from now on, also when that changes. "none": no limit
    #[arg(long, value_name = "KIND", group = "size")]
    pub(crate) cap: Option<Cap>,

    /// With a server: where there is no room or quota for it, wait until there is
    #[arg(long)]
    pub(crate) wait: bool,

    /// The node that has the lease, as `sluice node` prints it [default: $SLUICE_NODE]
    #[arg(long, value_name = "HOST:PORT[/FINGERPRINT]")]
    pub(crate) node: Option<String>,

    /// The server that has the lease [default: $SLUICE_SERVER, else that of `sluice login`]
    #[arg(long, value_name = "URL", conflicts_with = "node")]
    pub(crate) server: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SuspendArgs {
    /// The lease, or on a node without a server one of its sessions, by its number
    #[arg(value_name = "LEASE")]
    pub(crate) number: u64,

    /// With a server: where there is no room or quota for it, wait until there is
    #[arg(long)]
    pub(crate) wait: bool,

    /// The node that has the lease, as `sluice node` prints it [default: $SLUICE_NODE]
    #[arg(long, value_name = "HOST:PORT[/FINGERPRINT]")]
    pub(crate) node: Option<String>,

    /// The server that has the lease [default: $SLUICE_SERVER, else that of `sluice login`]
    #[arg(long, value_name = "URL", conflicts_with = "node")]
    pub(crate) server: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A session of an NVIDIA GPU, one of a program on the node's own machine, and one that holds graphs, \
arrays or shared memory cannot move yet; the refusal says what keeps it. The program continues either way.")]
pub(crate) struct MigrateArgs {
    /// The lease, or one of its sessions, by its number (`sluice sessions`)
    #[arg(value_name = "LEASE", required_unless_present = "all")]
    pub(crate) number: Option<u64>,

    /// The GPU that it is to run on, by its number on that node (`sluice gpus`) [default: one with
    /// room]
    #[arg(value_name = "GPU")]
    pub(crate) gpu: Option<u32>,

    /// Another node, at an address by which the program's machine reaches it; with a server the
    /// node's name (`sluice node list`) [default with a server: one with room]
    #[arg(long, value_name = "NODE")]
    pub(crate) to: Option<String>,

    /// All programs of the node, one after the other, as before its maintenance
    #[arg(long, requires = "to", conflicts_with_all = ["number", "gpu"])]
    pub(crate) all: bool,

    /// Move nothing: say how much would be copied, and what would refuse
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// The node that has the lease, as `sluice node` prints it [default: $SLUICE_NODE]
    #[arg(long, value_name = "HOST:PORT[/FINGERPRINT]")]
    pub(crate) node: Option<String>,

    /// The server that has the lease [default: $SLUICE_SERVER, else that of `sluice login`]
    #[arg(long, value_name = "URL", conflicts_with = "node")]
    pub(crate) server: Option<String>,
}

impl ResizeArgs {
    /// As nodes and servers are asked for it: 0 for a limit that is the share.
    pub(crate) fn limit_ppm(&self) -> Option<u32> {
        let of_cap = self.cap.map(|cap| match cap {
            Cap::Hard => 0,
            Cap::None => WHOLE_PPM,
        });
        self.limit.map(Share::ppm).or(of_cap)
    }
}

const WHOLE_PPM: u32 = 1_000_000;
