//! How a server starts, is joined and is saved.

use std::path::PathBuf;

use clap::Args;
#[cfg(feature = "full")]
use sluice_node::Peering;

#[cfg(feature = "full")]
use crate::cli::mail::MailArgs;
#[cfg(feature = "full")]
use crate::cli::{GpuChoice, LogArgs, MetricsArgs, TlsArgs};
use crate::quantity::Units;
#[cfg(feature = "full")]
use crate::quantity::{Memory, Overcommit, Period, SwapFile};

#[cfg(feature = "full")]
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// Where to listen: HOST:PORT (port 0 takes a free one). Beyond this machine the server speaks
    /// TLS
    #[arg(long, value_name = "ADDR", default_value = DEFAULT_SERVER_LISTEN)]
    pub(crate) listen: String,

    /// The folder that holds the database, the key and the first tokens [default:
    /// ~/.local/share/sluice]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) data: Option<PathBuf>,

    /// Where everything is kept: postgres://USER@HOST/NAME (also in SLUICE_DATABASE). A file of
    /// SQLite in the data folder unless said
    #[arg(long, value_name = "URL")]
    pub(crate) database: Option<String>,

    /// Seconds that a preempted program may continue
    #[arg(long, value_name = "SECONDS", default_value_t = sluice_server::GRACE_S)]
    pub(crate) grace: u32,

    /// Requests that one token may make in a second, five times as many at once; 0 for any number
    #[arg(long, value_name = "COUNT", default_value_t = 500)]
    pub(crate) requests_per_second: u32,

    /// Requests without a valid token that one address may make in a second, five times as many at
    /// once; 0 for any number
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    pub(crate) failures_per_second: u32,

    /// Seconds for which a GPU that was too hot has to be well before it is used again
    #[arg(long, value_name = "SECONDS", default_value_t = sluice_server::GPU_QUIET_S)]
    pub(crate) gpu_quiet: u32,

    /// Send the event node.idle for a node that has had no lease for this time, such as 30min, so
    /// that it can be ended [default: none is sent]
    #[arg(long, value_name = "TIME")]
    pub(crate) node_idle_after: Option<Period>,

    /// Tenants that have used much of late get less of what others leave; use TIME ago, such as
    /// 168h, counts half [default: none of it counts]
    #[arg(long, value_name = "TIME")]
    pub(crate) use_half_life: Option<Period>,

    /// A network, such as 10.0.0.0/8, to which webhooks may connect though it is not on the public
    /// Internet, also in plain text; may be repeated
    #[arg(long, value_name = "NETWORK")]
    pub(crate) webhook_allow: Vec<sluice_server::IpNet>,

    #[command(flatten)]
    pub(crate) mail: MailArgs,

    /// Send traces of leases, from the request to the first kernel, to this collector: OTLP over
    /// HTTP in JSON, such as http://127.0.0.1:4318
    #[arg(long, value_name = "URL")]
    pub(crate) otlp: Option<String>,

    #[command(flatten)]
    pub(crate) metrics: MetricsArgs,
}

#[cfg(feature = "full")]
/// `sluice server`.
#[derive(Debug, Args)]
pub(crate) struct ServerCommandArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,

    /// Speak TLS on loopback too; beyond it the server does so unasked
    #[arg(long)]
    pub(crate) tls: bool,

    /// The server's certificate and what leads from it to its authority, a PEM file [default: one
    /// that it makes and signs itself; clients know it by the fingerprint at the end of its URL]
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The key of --tls-cert, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Speak plain text, also beyond loopback: tokens can be read on the network
    #[arg(long, conflicts_with_all = ["tls", "tls_cert"])]
    pub(crate) plain_text: bool,

    /// URL at which other servers of the same database reach this one, where that is not the
    /// address it listens on
    #[arg(long, value_name = "URL")]
    pub(crate) advertise: Option<String>,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[cfg(feature = "full")]
impl ServerCommandArgs {
    pub(crate) fn tls_args(&self) -> TlsArgs {
        TlsArgs {
            tls: self.tls,
            tls_cert: self.tls_cert.clone(),
            tls_key: self.tls_key.clone(),
            tls_client_ca: None,
            plain_text: self.plain_text,
        }
    }
}

/// Where a server keeps its state.
#[derive(Debug, Args)]
#[cfg_attr(not(feature = "full"), allow(dead_code, reason = "only a control plane has state"))]
pub(crate) struct BooksArgs {
    /// The server's data folder [default: ~/.local/share/sluice]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) data: Option<PathBuf>,

    /// Its database, if that is not a file in the data folder: postgres://USER@HOST/NAME (also in
    /// SLUICE_DATABASE)
    #[arg(long, value_name = "URL")]
    pub(crate) database: Option<String>,
}

#[cfg(feature = "full")]
#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    #[command(flatten)]
    pub(crate) books: BooksArgs,

    /// A folder that is not there yet. It becomes a data folder, which a server can be started on
    #[arg(value_name = "FOLDER")]
    pub(crate) to: PathBuf,
}

#[derive(Debug, Args)]
#[cfg_attr(not(feature = "full"), allow(dead_code, reason = "only a control plane has state"))]
#[command(after_help = "\
Examples:
  sluice restore saved                          a program that `sluice checkpoint --stop` has stopped, \
on the node that it was on
  sluice restore saved --node gpu2:7583/4be1…   on another one, also where the former is gone
  sluice restore saved --key-file ~/saved.key   one that is encrypted
  sluice restore backup --data /var/lib/sluice  the data of a server

A program that is restored must still be there, and wait: one that has gone on since its checkpoint is \
refused, or finds its session lost where its node had ended. Where its former node does not answer, run \
this on the program's machine, as its user.")]
pub(crate) struct RestoreArgs {
    #[command(flatten)]
    pub(crate) books: BooksArgs,

    /// What `sluice checkpoint --stop` or `sluice backup` made
    #[arg(value_name = "FOLDER")]
    pub(crate) from: PathBuf,

    /// For a program: the GPU that it is to run on, by its number on that node (`sluice gpus`)
    /// [default: one with room]
    #[arg(long, value_name = "GPU", conflicts_with_all = ["data", "database"])]
    pub(crate) gpu: Option<u32>,

    /// For a program: the node that it is to run on, at an address by which the program's machine
    /// reaches it [default: $SLUICE_NODE, else the one that it was on]
    #[arg(long, value_name = "HOST:PORT[/FINGERPRINT]", conflicts_with_all = ["data", "database"])]
    pub(crate) node: Option<String>,

    /// For a program: the file of the key that its checkpoint is encrypted with
    #[arg(long, value_name = "FILE", conflicts_with_all = ["data", "database"])]
    pub(crate) key_file: Option<PathBuf>,

    /// For a program: restore it although nodes that had it do not answer, which never will. If it
    /// continues on one of them, it is lost. One that was not stopped with its checkpoint continues
    /// if it has made no CUDA call since
    #[arg(long, conflicts_with_all = ["data", "database"])]
    pub(crate) former_node_is_gone: bool,
}

#[cfg(feature = "full")]
pub(crate) const DEFAULT_SERVER_LISTEN: &str = "127.0.0.1:7580";

#[cfg(feature = "full")]
#[derive(Debug, Args)]
#[command(after_help = "\
Then, on this machine: export SLUICE_SERVER=http://127.0.0.1:7580. The administrator's token is in the data \
folder, in a file that only this user can read; `sluice` takes it from there.")]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,

    /// Where the node listens [default: the host of --listen, port 7583]
    #[arg(long, value_name = "ADDR")]
    pub(crate) node_listen: Option<String>,

    /// Serve the node's metrics at HOST:PORT/metrics; --metrics serves the control plane's
    #[arg(long, value_name = "ADDR")]
    pub(crate) node_metrics: Option<String>,

    /// GPUs to lend: auto (NVIDIA GPUs, else one software GPU), nvidia, or
    /// software[:COUNT[,MEMORY]]
    #[arg(long, value_name = "GPUS", default_value = "auto")]
    pub(crate) gpus: GpuChoice,

    /// The libnvidia-ml.so.1 to watch the GPUs' health through [default: NVIDIA's, beside its
    /// driver]
    #[arg(long, value_name = "PATH")]
    pub(crate) nvml: Option<PathBuf>,

    /// A driver hangs if NVML does not answer for this time, or a call does not return, or a killed
    /// worker does not end for twice that: its GPUs are fenced
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) driver_patience: Period,

    /// Most memory of this machine that one session may make its worker keep beside device memory:
    /// code, what nodes of graphs hold, buffers of copies in graphs, memory that kernels share with
    /// the program. Calls that need more fail with CUDA_ERROR_OUT_OF_MEMORY
    #[arg(long, value_name = "SIZE", default_value = "8GiB")]
    pub(crate) host_memory: Memory,

    /// Most memory of this machine that holds GPU memory of programs that are suspended, or that
    /// wait for others with --overcommit [default: half of the machine's]
    #[arg(long, value_name = "SIZE")]
    pub(crate) swap_memory: Option<Memory>,

    /// Where GPU memory goes for which --swap-memory has no room: files without names in this
    /// folder of a local disk (not tmpfs), sealed with keys that are in memory alone; turn off or
    /// encrypt the system's own swap. All of them have SIZE at most [default: half of what the disk
    /// has left]
    #[arg(long, value_name = "FOLDER[:SIZE]")]
    pub(crate) swap_file: Option<SwapFile>,

    /// Lease up to this many times the memory of each GPU. Programs that do not fit there together
    /// run in time slices, and the memory of those that wait is in --swap-memory and --swap-file.
    /// 1.0 leases what the GPU has; a pool that is declared says how much of it counts there
    #[arg(long, value_name = "FACTOR", default_value = "1.0")]
    pub(crate) overcommit: Overcommit,

    /// With --overcommit: the longest that a program waits for others to leave a GPU, beside the
    /// time that moving their memory takes
    #[arg(long, value_name = "TIME", default_value = "30s", requires = "overcommit")]
    pub(crate) max_wait: Period,

    /// For tests: move the memory of programs off their GPUs and back at random moments, which
    /// follow from this number
    #[arg(long, value_name = "SEED", hide = true)]
    pub(crate) churn: Option<u64>,

    /// Which other nodes this one connects to, for copies between nodes that a program has leases
    /// on: any, none, or hosts and networks such as gpu2,10.0.0.0/8. Other copies between nodes go
    /// through the program's machine
    #[arg(long, value_name = "NODES", default_value = "any")]
    pub(crate) peers: Peering,

    #[command(flatten)]
    pub(crate) tls: TlsArgs,

    #[command(flatten)]
    pub(crate) membership: MembershipArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// How a node appears to its server.
#[derive(Debug, Args)]
pub(crate) struct MembershipArgs {
    /// By which the server knows this node again [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Where programs reach this node [default: the address that it listens on]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) advertise: Option<String>,

    /// The TFLOPS (32 bits) of each GPU of this node, which are its units. Software
    /// GPUs have none unless this says so [default: from the driver's figures]
    #[arg(long, value_name = "TFLOPS")]
    pub(crate) tflops: Option<Units>,

    /// What requests select nodes by; labels named zone, rack and switch also say which nodes are
    /// near each other. May be repeated
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,

    /// Where the usage journal lies [default: node/NAME in ~/.local/share/sluice]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) journal: Option<PathBuf>,
}

pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(name, value)| !name.is_empty() && !value.is_empty());
    let (name, value) = parts.ok_or_else(|| format!("{text:?} is no label such as zone=a"))?;
    Ok((name.to_owned(), value.to_owned()))
}
