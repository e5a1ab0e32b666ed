//! The settings with which a node starts.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use sluice_metrics::ExporterConfig;
use sluice_transport::tls::ServerIdentity;
use sluice_transport::token::NodeToken;

pub use crate::join::JoinConfig;
use crate::peering::Peering;
pub use crate::spawn::WorkerCommand;
pub use crate::swap_space::SwapFileConfig;

/// Everything that [`crate::Node::bind`] needs.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Where to accept connections; at least one.
    pub listen: Vec<Listen>,
    /// What is shown at addresses for TLS.
    pub tls: Option<ServerIdentity>,
    /// Which GPUs to lend.
    pub gpus: GpuSelection,
    /// How workers are started.
    pub worker: WorkerCommand,
    /// Folder of the cache of module images, by default the user's; `None` keeps none on disk.
    pub cache: Option<PathBuf>,
    /// Whether kernels that were compiled for software GPUs are stored there as well. The workers
    /// of all leases write and execute them, so their users have to trust each other.
    pub stores_code: bool,
    /// The server to lend through; without one the node lends by itself.
    pub join: Option<JoinConfig>,
    /// The token by which a node without a server knows whom it lends to; without one it lends to
    /// any client that reaches it.
    pub token: Option<NodeToken>,
    /// The NVML to watch the GPUs' health through; NVIDIA's, where the GPUs are, unless said.
    pub nvml: Option<PathBuf>,
    /// A driver hangs of which NVML says nothing for this time, or a call in a worker does nothing,
    /// or in which a worker that was killed stays for twice that.
    pub driver_patience: Duration,
    /// Most bytes of this machine's memory that one session may make its worker keep, beside device
    /// memory: images and modules, what the nodes of graphs hold, and the buffers of copies in
    /// graphs.
    pub host_memory: u64,
    /// Most bytes of this machine's memory that hold memory which has left GPUs; half of the
    /// machine's unless said.
    pub swap_memory: Option<u64>,
    /// A file for what that has no room for; none unless said.
    pub swap_file: Option<SwapFileConfig>,
    /// All leases of a GPU together may have this number of millionths of its memory; beyond a
    /// million memory of some of them is in host memory.
    pub memory_overcommit_ppm: u64,
    /// The longest that a session waits for others to leave an overcommitted GPU, beside the time
    /// that their moves take.
    pub max_wait: Duration,
    /// Leases whose programs do nothing for this time are suspended until their next CUDA call;
    /// none unless said, nor on a node that has joined a server, which decides that.
    pub idle_after: Option<Duration>,
    /// For tests: the memory of sessions leaves their GPUs and comes back at random moments, which
    /// follow from this seed.
    pub churn: Option<u64>,
    /// Most connections of leases and sessions at a time. Those that have not proved anything have
    /// other places.
    pub connections_max: usize,
    /// How long a lease and its sessions outlive a cut connection.
    pub linger: Duration,
    /// Which nodes this one connects to for copies between nodes.
    pub peers: Peering,
    /// Where to serve metrics; nowhere unless said.
    pub metrics: Option<ExporterConfig>,
    /// What the daemon runs in its place when it is upgraded; without one it is not.
    pub next_program: Option<NextProgram>,
}

/// The program of a node's daemon, as it is on the disk when the node is upgraded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextProgram {
    pub program: PathBuf,
    /// All of them, the program's name first. With [`CHECK_STATE`] or [`TAKE_OVER`] and the number
    /// of a descriptor behind them the program checks a state of the daemon, or continues from it.
    pub arguments: Vec<OsString>,
}

/// The argument with which a program looks whether it can continue from a state, and ends.
pub const CHECK_STATE: &str = "--check-state";
/// The argument with which a program continues from a state.
pub const TAKE_OVER: &str = "--take-over";

impl Default for NodeConfig {
    fn default() -> NodeConfig {
        NodeConfig {
            listen: vec![Listen::Tcp("127.0.0.1:7583".into())],
            tls: None,
            gpus: GpuSelection::Auto,
            worker: WorkerCommand::default(),
            cache: user_cache("images"),
            stores_code: false,
            join: None,
            token: None,
            nvml: None,
            // It may take its time to start.
            driver_patience: Duration::from_secs(30),
            // An image has 2 GiB at most, and what is loaded of it counts beside it.
            host_memory: 8 << 30,
            swap_memory: None,
            swap_file: None,
            memory_overcommit_ppm: 1_000_000,
            max_wait: Duration::from_secs(30),
            idle_after: None,
            churn: None,
            connections_max: 1024,
            // A cut of a minute, and time to notice it and to try again.
            linger: Duration::from_secs(90),
            peers: Peering::Any,
            metrics: None,
            next_program: None,
        }
    }
}

/// A folder below `$XDG_CACHE_HOME/sluice`, or below `.cache/sluice` in the home directory. One
/// whose name is no text is passed over: workers get it as text.
pub fn user_cache(name: &str) -> Option<PathBuf> {
    let set = |variable| std::env::var_os(variable)?.into_string().ok().filter(|value| !value.is_empty());
    let set = |variable| set(variable).map(PathBuf::from);
    let folder = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    folder.is_absolute().then(|| folder.join("sluice").join(name))
}

/// An address to accept connections at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// `HOST:PORT`; port 0 takes a free one. Plain text.
    Tcp(String),
    /// `HOST:PORT` with TLS; port 0 takes a free one.
    Tls(String),
    /// A socket file, which is replaced if no node listens there.
    Unix(PathBuf),
}

/// Which GPUs a node lends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuSelection {
    /// NVIDIA's if there are any, else one software GPU.
    Auto,
    /// NVIDIA's, by the system's own `libcuda.so.1`.
    Nvidia,
    /// Software GPUs that compute on this machine's CPUs; without `memory` (bytes each) they share
    /// half of the machine's.
    Software { count: u32, memory: Option<u64> },
    /// GPUs that record what they are asked and compute nothing: `model` is h200, a100 or rtx5090.
    Recording { model: String, count: u32 },
    /// The devices of any other CUDA driver: an absolute path of a `libcuda.so.1`.
    Library(PathBuf),
}
