//! `sluice node`: which GPUs are lent, to whom, and how connections are protected.

use std::path::PathBuf;

use clap::Args;
use sluice_node::Peering;

use super::{MembershipArgs, NodeCommand};
use crate::quantity::{Memory, Overcommit, Period, SwapFile};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct NodeArgs {
    #[command(subcommand)]
    pub(crate) command: Option<NodeCommand>,

    /// Where to listen: HOST:PORT (port 0 takes a free one) or unix:PATH. Beyond loopback the node
    /// speaks TLS; every client that reaches it may ask for leases unless --token-file,
    /// --tls-client-ca or --join is given
    #[arg(long, value_name = "ADDR", default_value = DEFAULT_LISTEN)]
    pub(crate) listen: String,

    #[command(flatten)]
    pub(crate) tls: TlsArgs,

    /// GPUs to lend: auto (NVIDIA GPUs, else one software GPU), nvidia, software[:COUNT[,MEMORY]],
    /// or recording[:MODEL[,COUNT]]
    #[arg(long, value_name = "GPUS", default_value = "auto")]
    pub(crate) gpus: GpuChoice,

    /// Lend through this server only, at the URL that it prints. The token (role `node`) is
    /// $SLUICE_TOKEN unless --token-file
    #[arg(long, value_name = "URL")]
    pub(crate) join: Option<String>,

    /// With --join: a file that holds the token to join with. Without: lend only to those who have
    /// the token in this file as $SLUICE_NODE_TOKEN; where there is no such file a token is made,
    /// kept in it and printed
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// How long a lease and its sessions outlive a cut connection, such as 90s or 5min
    #[arg(long, value_name = "TIME", default_value = "90s")]
    pub(crate) linger: Period,

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
    /// 1.0 leases what the GPU has. With --join the server leases this much where the GPU's pool
    /// allows it
    #[arg(long, value_name = "FACTOR", default_value = "1.0")]
    pub(crate) overcommit: Overcommit,

    /// With --overcommit: the longest that a program waits for others to leave a GPU, beside the
    /// time that moving their memory takes
    #[arg(long, value_name = "TIME", default_value = "30s", requires = "overcommit")]
    pub(crate) max_wait: Period,

    /// Suspend leases whose programs do nothing for this time, such as 30min. They come back at
    /// their next CUDA call, once their share and memory are free again. With --join the server's
    /// tenants and pools say so
    #[arg(long, value_name = "TIME", conflicts_with = "join")]
    pub(crate) idle_after: Option<Period>,

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
    pub(crate) metrics: MetricsArgs,

    #[command(flatten)]
    pub(crate) membership: MembershipArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,

    #[command(flatten)]
    pub(crate) state: StateArgs,
}

/// The state of a node whose daemon is upgraded: it names itself so.
#[derive(Debug, Args)]
pub(crate) struct StateArgs {
    /// Say whether this program can continue from the state in this descriptor, and end
    #[arg(long, value_name = "FD", hide = true)]
    pub(crate) check_state: Option<i32>,

    /// Continue from the state in this descriptor
    #[arg(long, value_name = "FD", hide = true, conflicts_with = "check_state")]
    pub(crate) take_over: Option<i32>,
}

/// What the log looks like.
#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// Lines of the log on standard error: text, or json for programs that collect logs. SLUICE_LOG
    /// says which events are logged
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: sluice_log::Format,
}

/// Where metrics are served, and to whom.
#[derive(Debug, Args)]
pub(crate) struct MetricsArgs {
    /// Serve metrics for Prometheus at HOST:PORT/metrics (port 0 takes a free one). Beyond loopback
    /// it needs --metrics-token-file, and speaks TLS as --listen does
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,

    /// Serve metrics only to those who send the token in this file as Authorization: Bearer; where
    /// there is no such file a token is made and kept in it
    #[arg(long, value_name = "FILE")]
    pub(crate) metrics_token_file: Option<PathBuf>,
}

/// How a node's connections are protected.
#[derive(Debug, Args)]
pub(crate) struct TlsArgs {
    /// Speak TLS on loopback too; beyond it the node does so unasked
    #[arg(long)]
    pub(crate) tls: bool,

    /// The node's certificate and what leads from it to its authority, a PEM file [default: one
    /// that the node makes and signs itself; programs know it by its fingerprint]
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The key of --tls-cert, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Lend only to holders of certificates from the authorities in this PEM file
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_client_ca: Option<PathBuf>,

    /// Speak plain text, also beyond loopback: tokens and data can be read on the network
    #[arg(long, conflicts_with_all = ["tls", "tls_cert", "tls_client_ca"])]
    pub(crate) plain_text: bool,
}

/// Loopback only, until a person says otherwise.
const DEFAULT_LISTEN: &str = "127.0.0.1:7583";

/// Which GPUs a node lends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GpuChoice {
    /// NVIDIA's if there are any, else one software GPU.
    Auto,
    Nvidia,
    Software {
        count: u32,
        memory: Option<Memory>,
    },
    /// GPUs of this model that record what they are asked and compute nothing.
    Recording {
        model: String,
        count: u32,
    },
    /// The devices of any other CUDA driver, by the absolute path of its library.
    Library(PathBuf),
}

impl std::str::FromStr for GpuChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<GpuChoice, String> {
        let (kind, detail) = match text.split_once(':') {
            Some((kind, detail)) => (kind, Some(detail)),
            None => (text, None),
        };
        match (kind, detail) {
            ("auto", None) => Ok(GpuChoice::Auto),
            ("nvidia", None) => Ok(GpuChoice::Nvidia),
            ("software", None) => Ok(GpuChoice::Software { count: 1, memory: None }),
            ("software", Some(detail)) => {
                let (count, memory) = match detail.split_once(',') {
                    Some((count, memory)) => (count, Some(memory.parse()?)),
                    None => (detail, None),
                };
                match count.parse() {
                    Ok(count @ 1..=GPUS_MAX) => Ok(GpuChoice::Software { count, memory }),
                    _ => Err(format!("the number of software GPUs is 1 to {GPUS_MAX}, not {count:?}")),
                }
            }
            ("recording", None) => Ok(GpuChoice::Recording { model: RECORDED[0].into(), count: 1 }),
            ("recording", Some(detail)) => {
                let (model, count) = detail.split_once(',').unwrap_or((detail, "1"));
                if !RECORDED.contains(&model) {
                    return Err(format!("the recorded GPUs are {}, not {model:?}", RECORDED.join(", ")));
                }
                match count.parse() {
                    Ok(count @ 1..=GPUS_MAX) => Ok(GpuChoice::Recording { model: model.into(), count }),
                    _ => Err(format!("the number of recorded GPUs is 1 to {GPUS_MAX}, not {count:?}")),
                }
            }
            ("library", Some(path)) if path.starts_with('/') => Ok(GpuChoice::Library(path.into())),
            ("library", _) => Err("library: needs the absolute path of a CUDA driver after it".into()),
            _ => Err(
                "expected auto, nvidia, software[:COUNT[,MEMORY]] such as software:2,4GiB, recording[:MODEL[,COUNT]] \
                 such as recording:h200,2, or library:/PATH"
                    .into(),
            ),
        }
    }
}

/// The GPUs that the recording driver models.
const RECORDED: [&str; 3] = ["h200", "a100", "rtx5090"];

/// More than any server holds; a bound against slips of the keyboard.
const GPUS_MAX: u32 = 64;
