//! The command line: what can be said, and what `--help` tells a newcomer. No behaviour.

#[cfg(not(feature = "control-plane"))]
mod absent;
mod bench;
mod checkpoint;
mod ci;
mod elastic;
mod fit;
mod hold;
#[cfg(feature = "control-plane")]
mod mail;
mod plan;
mod record;
mod teams;
mod webhooks;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use sluice_api::lease::{LeaseId, Level, Link, TASKS_MAX};
use sluice_api::pool::Tier;
use sluice_node::Peering;

use crate::quantity::{Memory, Overcommit, Period, Share, Units};
use crate::simulate::SimulateArgs;

#[cfg(not(feature = "control-plane"))]
pub(crate) use absent::*;
pub(crate) use bench::*;
pub(crate) use checkpoint::*;
pub(crate) use ci::*;
pub(crate) use elastic::*;
pub(crate) use fit::*;
pub(crate) use hold::*;
pub(crate) use plan::*;
pub(crate) use record::*;
pub(crate) use teams::*;
pub(crate) use webhooks::*;

/// Run CUDA programs on a share of a GPU that this machine does not have.
#[derive(Debug, Parser)]
#[command(name = "sluice", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  sluice run -- python train.py                       on this machine's GPU, or a software GPU
  sluice node --listen 0.0.0.0:7583                   lend this machine's GPUs to others; says its fingerprint
  sluice run -p 0.25 --memory 8GiB --node gpu1:7583/FINGERPRINT -- python train.py
                                                      on a quarter of a GPU of the machine gpu1
  sluice sessions --node gpu1:7583/FINGERPRINT        who uses them now
  sluice up                                           share this machine's GPUs among teams
  sluice doctor                                       what is wrong, and what to do about it";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program on a share of a GPU
    Run(RunArgs),
    /// Lend this machine's GPUs (or a software GPU) to programs on other machines
    Node(NodeArgs),
    /// List the GPUs of a node and what is free on them
    Gpus(QueryArgs),
    /// List the programs that use a node's GPUs now
    Sessions(QueryArgs),
    /// Watch GPUs and sessions on this terminal: sort, filter, end
    Top(TopArgs),
    /// Give a lease more or less of its GPUs while its programs run
    Resize(ResizeArgs),
    /// Take a program off its GPUs until it is resumed: its memory moves to the node's, and its
    /// calls wait
    Suspend(SuspendArgs),
    /// Let a suspended program continue
    Resume(SuspendArgs),
    /// Move a running program to another GPU, of its node or of another
    Migrate(MigrateArgs),
    /// Copy what a running program has on its GPU into a folder, and stop it there if wanted
    Checkpoint(CheckpointArgs),
    /// Hold a lease for programs that other processes start, as in the containers of a pod
    Hold(HoldArgs),
    /// Check this machine and a node, and say what to do about what is found
    Doctor(QueryArgs),
    /// Show the GPU of the lease this program runs under, as nvidia-smi does
    Smi(SmiArgs),
    /// Start a control plane and a node on this machine, for teams to share its GPUs
    Up(UpArgs),
    /// Start a control plane; nodes join it with `sluice node --join`
    Server(ServerCommandArgs),
    /// Copy a server's books into a folder, while it runs
    Backup(BackupArgs),
    /// Let a program continue that was stopped with a checkpoint; or copy a backup into an empty
    /// data folder and database
    Restore(RestoreArgs),
    /// Sign in to a server, or keep a token for it
    Login(LoginArgs),
    /// Remove the token that `sluice login` keeps
    Logout,
    /// Show whose token is used, what it may do, and when it expires
    Whoami(ListArgs),
    /// Print a link that signs you in to the server's web view, once
    Web(WebArgs),
    /// List the queue: who waits, at which place, and why
    Queue(ListArgs),
    /// List tenants with their quotas and what they hold
    Tenants(ListArgs),
    /// Take a tenant away
    #[command(subcommand)]
    Tenant(TenantCommand),
    /// List a server's nodes, as `sluice node list` does
    Nodes(ListArgs),
    /// List pools: whom each serves now, and until when
    Pools(ListArgs),
    /// Take a pool away
    #[command(subcommand)]
    Pool(PoolCommand),
    /// The identity provider whose people may sign in
    #[command(subcommand)]
    Identity(IdentityCommand),
    /// Create or change tenants, quotas, pools, prices and the identity provider from a file
    Apply(ApplyArgs),
    /// Show what was used and what it costs
    Bill(BillArgs),
    /// List usage records, or show them as they arrive
    Usage(UsageArgs),
    /// Recommend shares and memory that fit, from what earlier runs used
    Iq(IqArgs),
    /// Calculate the memory that a model needs, and the GPUs that have it
    Fit(FitArgs),
    /// Say when the GPUs of each pool will be full, and what would be missing
    Plan(PlanArgs),
    /// Issue, list and print invoices
    #[command(subcommand)]
    Invoice(InvoiceCommand),
    /// Make a report about a tenant and a period: usage, cost, chargeback or compliance
    Report(ReportArgs),
    /// Add to a tenant's bill, or take off it
    Correct(CorrectArgs),
    /// Compare node journals, the ledger and the invoices
    Reconcile(ReconcileArgs),
    /// Send events to other systems
    #[command(subcommand)]
    Webhook(WebhookCommand),
    /// Make, list and revoke tokens
    #[command(subcommand)]
    Token(TokenCommand),
    /// End a lease, or have it make room for others
    #[command(subcommand)]
    Lease(LeaseCommand),
    /// Take GPUs out of use, and back
    #[command(subcommand)]
    Gpu(GpuCommand),
    /// Check the log of all changes
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Run a program and keep what it asked of its GPU, and what it was answered, in a file
    Record(RecordArgs),
    /// Ask another GPU what a recorded program asked, and compare the answers
    Replay(ReplayArgs),
    /// Measure this machine's link to a GPU
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Simulate a cluster: what would become of a workload under each placement policy
    Simulate(SimulateArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell to complete for
        shell: clap_complete::Shell,
    },
    /// Write manual pages, one for each command
    Man {
        /// The folder to write them into
        #[arg(required_unless_present = "markdown")]
        folder: Option<PathBuf>,
        /// Print all commands and options as one page of Markdown instead
        #[arg(long, conflicts_with = "folder")]
        markdown: bool,
    },
    /// Measure as a client process (started by `sluice bench`)
    #[command(hide = true)]
    BenchClient(BenchClientArgs),
    /// Serve one client process (started by a node)
    #[command(hide = true)]
    Worker {
        /// What the node hands over
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "\
The program's output, exit code and signals pass through untouched. Sluice's own messages go to stderr, and its own
failures have exit code 125; a program that cannot be started gives 126, one that does not exist 127. With --require-gpu,
123 means that the program succeeded without a kernel; with --sanitize, 122 that it succeeded and its kernels have errors.

A node beyond this machine is known by the fingerprint behind its address, or by an authority named in SLUICE_TLS_CA (a PEM
file); a node with --tls-client-ca knows its users by SLUICE_TLS_CERT and SLUICE_TLS_KEY, one with --token-file by
SLUICE_NODE_TOKEN. plain-text:HOST:PORT speaks plain text.")]
pub(crate) struct RunArgs {
    /// How many GPUs
    #[arg(short = 'n', long = "gpu-count", value_name = "GPUS", default_value_t = 1)]
    pub(crate) gpu_count: u32,

    /// Share of each GPU's compute time: above 0, up to 1 (0.25 and 25% are the same)
    /// [default: what `sluice iq --apply` has set for the program, else 1]
    #[arg(id = "share", short = 'p', long = "share", value_name = "SHARE")]
    pub(crate) stated_share: Option<Share>,

    /// With a server, instead of a share: so many units of each GPU's compute, on whichever GPU has
    /// them. A unit is a TFLOPS (32 bits)
    #[arg(long, value_name = "UNITS", conflicts_with = "share")]
    pub(crate) units: Option<Units>,

    /// Memory on each GPU, such as 8GiB or 512MiB [default: SHARE x the GPU's memory]
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Memory>,

    /// "hard": never more than the share, even while nobody else computes
    #[arg(long, value_name = "KIND", default_value = "none")]
    pub(crate) cap: Cap,

    /// Never more than this of each GPU's compute time, even while nobody else computes: not below
    /// the share
    #[arg(long, value_name = "SHARE", conflicts_with_all = ["cap", "units"])]
    pub(crate) limit: Option<Share>,

    /// End a kernel that runs longer than this, such as 10s or 500ms
    #[arg(long, value_name = "TIME")]
    pub(crate) kernel_timeout: Option<Period>,

    /// The node to run on, as `sluice node` prints it [default: $SLUICE_NODE, else a private node
    /// on this machine]. Several with commas between give their GPUs as one list, each as many as
    /// the others, or so many as stand behind it: A=2,B=1
    #[arg(long, value_name = "HOST:PORT[/FINGERPRINT]")]
    pub(crate) node: Option<String>,

    /// With a server: split the GPUs evenly over so many places, on different nodes where none has
    /// room for all; the program sees one list
    #[arg(long, value_name = "N", group = "parts", conflicts_with_all = ["node", "gpus"])]
    pub(crate) nodes: Option<u32>,

    /// The server to ask for a lease [default: $SLUICE_SERVER, else that of `sluice login`]
    #[arg(long, value_name = "URL", conflicts_with_all = ["node", "gpus"])]
    pub(crate) server: Option<String>,

    /// With a server: run under this lease, which was asked for in the web view or through the API,
    /// instead of asking for one
    #[arg(long, value_name = "ID", conflicts_with_all = [
        "gpu_count", "share", "units", "memory", "cap", "node", "gpus", "nodes", "tenant", "priority", "tasks", "linked", "tier", "pool",
        "models", "min_tflops", "min_gpu_memory", "labels", "deadline", "duration", "hold", "no_preempt", "as_asked", "name",
    ])]
    pub(crate) lease: Option<LeaseId>,

    /// For whom, with a server [default: the token's tenant]
    #[arg(long, value_name = "PATH")]
    pub(crate) tenant: Option<String>,

    /// With a server: 1 to 300, higher goes first among the leases of a tenant [default: 100]
    #[arg(long, value_name = "N")]
    pub(crate) priority: Option<i32>,

    /// With a server: run so many of the program side by side, each with GPUs of its own, all or
    /// none; 2..4 starts with two or more, and more start while there is room. Each finds its
    /// number in $RANK and how many they are with it in $WORLD_SIZE
    #[arg(long, value_name = "N[..MAX]", group = "parts")]
    pub(crate) tasks: Option<Tasks>,

    /// With --tasks or --nodes: all on one node, on one switch, in one rack or in one zone, or wait
    #[arg(long, value_name = "LEVEL", requires = "parts")]
    pub(crate) same: Option<Level>,

    /// With --tasks or --nodes: on one node, on one switch, in one rack or in one zone if that can
    /// be had
    #[arg(long, value_name = "LEVEL", requires = "parts")]
    pub(crate) near: Option<Level>,

    /// With a server and several GPUs: take GPUs that have NVLinks to each other (nvlink), or are
    /// near one NUMA node (numa), or wait. Without this those are taken that are linked best
    #[arg(long, value_name = "LINK")]
    pub(crate) linked: Option<Link>,

    /// With --tasks or --nodes: each on another node, switch, rack or zone than the others, or wait
    #[arg(long, value_name = "LEVEL", requires = "parts")]
    pub(crate) spread: Option<Level>,

    /// With a server: premium (never preempted, within the guaranteed quota), standard, or basic
    /// (makes room for the others) [default: standard]
    #[arg(long, value_name = "TIER")]
    pub(crate) tier: Option<Tier>,

    /// With a server: only nodes of this pool
    #[arg(long, value_name = "NAME")]
    pub(crate) pool: Option<String>,

    /// With a server: only GPUs whose model's name contains this, such as h100. May be repeated:
    /// any of them
    #[arg(long = "gpu-model", value_name = "NAME")]
    pub(crate) models: Vec<String>,

    /// With a server: only GPUs of at least so many TFLOPS (32 bits)
    #[arg(long, value_name = "TFLOPS")]
    pub(crate) min_tflops: Option<f64>,

    /// With a server: only GPUs that have at least this much memory in all
    #[arg(long, value_name = "SIZE")]
    pub(crate) min_gpu_memory: Option<Memory>,

    /// With a server: only nodes with this label, such as zone=a. May be repeated: all of them
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,

    /// With a server: leave the queue once it can no longer end within this time, such as 2h
    #[arg(long, value_name = "TIME")]
    pub(crate) deadline: Option<Period>,

    /// With a server: how long it will take, such as 20min, so that others can be told when they
    /// start
    #[arg(long, value_name = "TIME")]
    pub(crate) duration: Option<Period>,

    /// With a server: how long what it is granted waits to be claimed before it is given back, 1s
    /// to 1h [default: 60s]
    #[arg(long, value_name = "TIME")]
    pub(crate) hold: Option<Period>,

    /// With a server: never end the program to make room for others (granted within the guaranteed
    /// quota only)
    #[arg(long)]
    pub(crate) no_preempt: bool,

    /// With a server: its size is not changed by the server, nor is it suspended while it is idle,
    /// whatever the tenant has consented to
    #[arg(long)]
    pub(crate) as_asked: bool,

    /// GPUs of the private node: auto, nvidia, software[:COUNT[,MEMORY]], or
    /// recording[:MODEL[,COUNT]]
    #[arg(long, value_name = "GPUS", conflicts_with = "node")]
    pub(crate) gpus: Option<GpuChoice>,

    /// With a server: run nothing; print where the program would run, when it would start, what
    /// that costs and which GPUs it accepts, as a table or as json
    #[arg(
        long,
        value_name = "FORMAT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "table",
        conflicts_with = "lease"
    )]
    pub(crate) dry_run: Option<Output>,

    /// The name that lists and bills show for the program [default: the program's file name and its
    /// first argument]
    #[arg(long, value_name = "NAME", value_parser = run_name)]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) ci: CiArgs,

    /// Do not say which GPU the program got, nor what it used
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// While the program waits, print all that the scheduler says about why
    #[arg(short, long, conflicts_with = "quiet")]
    pub(crate) verbose: bool,

    /// The program and its arguments. Options of `sluice run` go before it
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) program: Vec<std::ffi::OsString>,

    /// The file to record in, which `sluice record` names.
    #[arg(skip)]
    pub(crate) record: Option<PathBuf>,
}

impl RunArgs {
    /// Returns the share of each GPU, which is all of it unless stated.
    pub(crate) fn share(&self) -> Share {
        self.stated_share.unwrap_or(Share::WHOLE)
    }

    /// Names an option that was given and that only a control plane can honour, and says why.
    pub(crate) fn server_option(&self) -> Option<(&'static str, &'static str)> {
        const CHOOSES: &str = "which chooses the GPU";
        const QUEUES: &str = "which has a queue";
        let options = [
            (self.nodes.is_some(), "--nodes", "which chooses them; or name them: --node A,B"),
            (self.tasks.is_some(), "--tasks", "which places the tasks"),
            (self.units.is_some(), "--units", "which knows the speed of GPUs; or take a share: -p"),
            (self.lease.is_some(), "--lease", "which has the lease"),
            (self.dry_run.is_some(), "--dry-run", "which knows prices and the queue"),
            (self.tenant.is_some(), "--tenant", "which has tenants"),
            (self.priority.is_some(), "--priority", QUEUES),
            (self.linked.is_some(), "--linked", CHOOSES),
            (self.tier.is_some(), "--tier", "which has tiers"),
            (self.pool.is_some(), "--pool", "which has pools"),
            (!self.models.is_empty(), "--gpu-model", CHOOSES),
            (self.min_tflops.is_some(), "--min-tflops", CHOOSES),
            (self.min_gpu_memory.is_some(), "--min-gpu-memory", CHOOSES),
            (!self.labels.is_empty(), "--label", CHOOSES),
            (self.deadline.is_some(), "--deadline", QUEUES),
            (self.duration.is_some(), "--duration", QUEUES),
            (self.hold.is_some(), "--hold", QUEUES),
            (self.no_preempt, "--no-preempt", "which preempts leases"),
            (self.as_asked, "--as-asked", "which changes leases"),
        ];
        options.into_iter().find(|(is_given, ..)| *is_given).map(|(_, option, why)| (option, why))
    }
}

fn run_name(text: &str) -> Result<String, String> {
    const CHARACTERS_MAX: usize = 60;
    let is_plain = !text.trim().is_empty() && !text.chars().any(sluice_api::text::is_deceptive);
    match is_plain && text.chars().count() <= CHARACTERS_MAX {
        true => Ok(text.to_owned()),
        false => Err(format!("a name has 1 to {CHARACTERS_MAX} visible characters")),
    }
}

/// `3`, or `2..4`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tasks {
    pub(crate) min: u32,
    pub(crate) max: Option<u32>,
}

impl std::str::FromStr for Tasks {
    type Err = String;

    fn from_str(text: &str) -> Result<Tasks, String> {
        let number = |text: &str| {
            let number = text.parse().ok().filter(|number| (1..=TASKS_MAX).contains(number));
            number.ok_or_else(|| format!("{text:?} is no number from 1 to {TASKS_MAX}"))
        };
        match text.split_once("..") {
            None => Ok(Tasks { min: number(text)?, max: None }),
            Some((min, max)) => Ok(Tasks { min: number(min)?, max: Some(number(max)?) }),
        }
    }
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct NodeArgs {
    #[command(subcommand)]
    pub(crate) command: Option<NodeCommand>,

    /// Where to listen: HOST:PORT (port 0 takes a free one) or unix:PATH. Beyond loopback the node
    /// speaks TLS; whoever reaches it may ask for leases unless --token-file, --tls-client-ca or
    /// --join is given
    #[arg(long, value_name = "ADDR", default_value = DEFAULT_LISTEN)]
    pub(crate) listen: String,

    #[command(flatten)]
    pub(crate) tls: TlsArgs,

    /// auto (NVIDIA GPUs, else one software GPU), nvidia, software[:COUNT[,MEMORY]], or
    /// recording[:MODEL[,COUNT]]
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

    /// A driver hangs of which NVML says nothing for so long, or a call does not return, or in
    /// which a worker that was killed stays for twice that: its GPUs are fenced
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

    /// Lease up to this many times the memory of each GPU. Programs that do not fit there together
    /// run in time slices, and the memory of those that wait is in --swap-memory. 1.0 leases what
    /// the GPU has, and so does a server: this is not for --join
    #[arg(long, value_name = "FACTOR", default_value = "1.0", conflicts_with = "join")]
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

    /// Speak plain text, also beyond loopback: whoever sees the network sees tokens and data
    #[arg(long, conflicts_with_all = ["tls", "tls_cert", "tls_client_ca"])]
    pub(crate) plain_text: bool,
}

/// Loopback only, until a person says otherwise.
const DEFAULT_LISTEN: &str = "127.0.0.1:7583";

#[derive(Debug, Args)]
pub(crate) struct QueryArgs {
    /// The node to ask, as `sluice node` prints it [default: $SLUICE_NODE]
    #[arg(long, value_name = "HOST:PORT[/FINGERPRINT]")]
    pub(crate) node: Option<String>,

    /// The server to ask [default: $SLUICE_SERVER, else that of `sluice login`]
    #[arg(long, value_name = "URL", conflicts_with = "node")]
    pub(crate) server: Option<String>,

    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// The node to watch, as `sluice node` prints it [default: $SLUICE_NODE]
    #[arg(long, value_name = "HOST:PORT[/FINGERPRINT]")]
    pub(crate) node: Option<String>,

    /// The server to watch [default: $SLUICE_SERVER, else that of `sluice login`]
    #[arg(long, value_name = "URL", conflicts_with = "node")]
    pub(crate) server: Option<String>,

    /// How often to ask, such as 1s or 500ms
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(crate) interval: Period,
}

/// Where a command that uses a GPU by itself gets one.
#[derive(Debug, Args)]
pub(crate) struct PlaceArgs {
    /// The node to use, as `sluice node` prints it [default: $SLUICE_NODE, else a private node on
    /// this machine]
    #[arg(long, value_name = "HOST:PORT[/FINGERPRINT]")]
    pub(crate) node: Option<String>,

    /// GPUs of the private node, as for `sluice run`
    #[arg(long, value_name = "GPUS", conflicts_with = "node")]
    pub(crate) gpus: Option<GpuChoice>,

    /// The server to ask for a lease [default: $SLUICE_SERVER, else that of `sluice login`]
    #[arg(long, value_name = "URL", conflicts_with_all = ["node", "gpus"])]
    pub(crate) server: Option<String>,

    /// For whom, with a server [default: the token's tenant]
    #[arg(long, value_name = "PATH", conflicts_with_all = ["node", "gpus"])]
    pub(crate) tenant: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SmiArgs {
    /// One line for each GPU
    #[arg(short = 'L', long = "list-gpus")]
    pub(crate) list_gpus: bool,

    /// All that is known of each GPU
    #[arg(short = 'q', long = "query")]
    pub(crate) query: bool,

    /// Only these parts of it, such as MEMORY,UTILIZATION
    #[arg(
        short = 'd',
        long,
        value_name = "PARTS",
        requires = "query",
        value_enum,
        value_delimiter = ',',
        ignore_case = true
    )]
    pub(crate) display: Vec<SmiPart>,

    /// The same as XML
    #[arg(short = 'x', long = "xml-format", requires = "query")]
    pub(crate) xml: bool,

    /// Comma-separated properties of GPUs, such as name,memory.total,utilization.gpu
    #[arg(long, value_name = "PROPERTIES", group = "properties")]
    pub(crate) query_gpu: Option<String>,

    /// Comma-separated properties of processes, such as pid,process_name,used_memory
    #[arg(long, value_name = "PROPERTIES", group = "properties")]
    pub(crate) query_compute_apps: Option<String>,

    /// csv, optionally with noheader and nounits
    #[arg(long, value_name = "FORMAT", requires = "properties")]
    pub(crate) format: Option<String>,

    /// List the properties of GPUs
    #[arg(long)]
    pub(crate) help_query_gpu: bool,

    /// List the properties of processes
    #[arg(long)]
    pub(crate) help_query_compute_apps: bool,

    /// Only these GPUs: indices, UUIDs or PCI bus ids, separated by commas
    #[arg(short = 'i', long = "id", value_name = "IDS")]
    pub(crate) id: Option<String>,

    /// Ask again so many seconds after each answer, until interrupted
    #[arg(short = 'l', long = "loop", value_name = "SECONDS", num_args = 0..=1, default_missing_value = "5",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) repeat: Option<u64>,

    #[command(subcommand)]
    pub(crate) command: Option<SmiCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SmiCommand {
    /// How the GPUs are connected
    Topo {
        /// As a matrix
        #[arg(short = 'm', long, required = true)]
        matrix: bool,
    },
}

/// A part of what `nvidia-smi -q` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SmiPart {
    Memory,
    Utilization,
    Compute,
    Pids,
    Temperature,
}

/// Whether a session may use more than its share while the GPU would idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cap {
    /// What nobody else wants is free to use
    None,
    /// Never more than the share
    Hard,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Table,
    Json,
}

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
    /// Cards of this model that record what they are asked and compute nothing.
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

/// The cards that the recording driver models.
const RECORDED: [&str; 3] = ["h200", "a100", "rtx5090"];

/// More than any server holds; a bound against slips of the keyboard.
const GPUS_MAX: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// Collects the examples in the help of a command and of those below it.
    fn examples(command: &clap::Command, found: &mut Vec<String>) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let lines = help.lines().filter_map(|line| line.trim().strip_prefix("sluice "));
        // Two blanks begin the explanation.
        let commands = lines.filter_map(|line| line.split("  ").next());
        let is_plain = |line: &&str| !line.contains(['\\', '\'', '"', '|', ';', '$', '<', '>', '[']);
        found.extend(commands.filter(is_plain).map(|line| format!("sluice {line}")));
        command.get_subcommands().for_each(|command| examples(command, found));
    }

    #[test]
    fn what_help_shows_can_be_typed() {
        use clap::CommandFactory;
        let mut found = Vec::new();
        examples(&Cli::command(), &mut found);
        assert!(found.len() > 10, "{found:?}");
        let wrong = |example: &String| {
            let line = example.replace("FINGERPRINT", &"0".repeat(64));
            Some(format!("{example}: {}", Cli::try_parse_from(line.split_whitespace()).err()?))
        };
        let wrong: Vec<String> = found.iter().filter_map(wrong).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn a_tenant_is_of_a_server_only() {
        for (other, value) in [("--node", "localhost:7583"), ("--gpus", "software")] {
            let refused =
                Cli::try_parse_from(["sluice", "bench", "remoting", other, value, "--tenant", "acme"]).err();
            let kind = refused.map(|error| error.kind());
            assert_eq!(kind, Some(clap::error::ErrorKind::ArgumentConflict), "{other}");
        }
    }

    #[test]
    fn gpu_choices() {
        let check = |text: &str, expect: Result<GpuChoice, &str>| match (text.parse::<GpuChoice>(), expect) {
            (Ok(got), Ok(expect)) => assert_eq!(got, expect, "{text}"),
            (Err(got), Err(part)) => assert!(got.contains(part), "{text}: {got}"),
            (got, expect) => panic!("{text}: {got:?}, expected {expect:?}"),
        };
        let software = |count, memory_mib: Option<u64>| {
            Ok(GpuChoice::Software { count, memory: memory_mib.map(|mib| Memory::from_bytes(mib << 20)) })
        };
        check("auto", Ok(GpuChoice::Auto));
        check("nvidia", Ok(GpuChoice::Nvidia));
        check("software", software(1, None));
        check("software:3", software(3, None));
        check("software:2,4GiB", software(2, Some(4096)));
        check("software:0", Err("1 to 64"));
        check("software:2,lots", Err("lots"));
        let recording = |model: &str, count| Ok(GpuChoice::Recording { model: model.into(), count });
        check("recording", recording("h200", 1));
        check("recording:a100", recording("a100", 1));
        check("recording:rtx5090,2", recording("rtx5090", 2));
        check("recording:h100", Err("h200, a100, rtx5090"));
        check("recording:h200,0", Err("1 to 64"));
        check("library:/opt/x.so", Ok(GpuChoice::Library("/opt/x.so".into())));
        check("library:x.so", Err("absolute"));
        check("amd", Err("expected auto"));
        check("auto:2", Err("expected auto"));
    }

    #[test]
    fn the_program_keeps_its_own_options() {
        let cli = Cli::parse_from(["sluice", "run", "-p", "25%", "--", "prog", "-p", "--memory", "--", "x"]);
        let Command::Run(run) = cli.command else { panic!("not a run") };
        assert_eq!(run.share().ppm(), 250_000);
        assert_eq!(run.program, ["prog", "-p", "--memory", "--", "x"]);
    }

    #[test]
    fn a_program_needs_no_dashes_before_it() {
        let cli = Cli::parse_from(["sluice", "run", "-p", "25%", "python", "-p", "x.py", "--", "--memory"]);
        let Command::Run(run) = cli.command else { panic!("not a run") };
        assert_eq!(run.share().ppm(), 250_000);
        assert_eq!(run.program, ["python", "-p", "x.py", "--", "--memory"]);
        assert!(Cli::try_parse_from(["sluice", "run", "-p", "25%"]).is_err());
        // A mistyped option is not the program.
        assert!(Cli::try_parse_from(["sluice", "run", "--memroy", "8GiB", "python"]).is_err());
    }

    /// Each option of `sluice run` that its help calls one for servers, with a value.
    #[test]
    fn options_for_servers_are_known_as_such() {
        let values = [
            ("units", "5"),
            ("nodes", "2"),
            ("lease", "7"),
            ("tenant", "acme"),
            ("priority", "100"),
            ("tasks", "2"),
            ("linked", "nvlink"),
            ("tier", "standard"),
            ("pool", "x"),
            ("gpu-model", "h100"),
            ("min-tflops", "20"),
            ("min-gpu-memory", "8GiB"),
            ("label", "zone=a"),
            ("deadline", "2h"),
            ("duration", "20min"),
            ("hold", "5min"),
            ("no-preempt", ""),
            ("as-asked", ""),
            ("dry-run", ""),
        ];
        let command = <Cli as clap::CommandFactory>::command();
        let run = command.find_subcommand("run").expect("a subcommand");
        let is_for_servers = |argument: &&clap::Arg| {
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            help.contains("With a server") || help.contains("with a server")
        };
        let mut named: Vec<&str> =
            run.get_arguments().filter(is_for_servers).filter_map(clap::Arg::get_long).collect();
        named.sort_unstable();
        let mut known = values.map(|(option, _)| option);
        known.sort_unstable();
        assert_eq!(named, known);
        for (option, value) in values {
            let word = if value.is_empty() { format!("--{option}") } else { format!("--{option}={value}") };
            let cli = Cli::parse_from(["sluice", "run", &word, "--", "prog"]);
            let Command::Run(run) = cli.command else { panic!("not a run") };
            assert_eq!(run.server_option().map(|(name, _)| name), Some(&*format!("--{option}")));
        }
        let Command::Run(bare) = Cli::parse_from(["sluice", "run", "prog"]).command else { panic!() };
        assert_eq!(bare.server_option(), None);
    }

    #[test]
    fn names_are_short_and_visible() {
        assert_eq!(run_name("nightly training"), Ok("nightly training".into()));
        for wrong in ["", "  ", "a\u{202e}b", "a\nb", &"x".repeat(61)] {
            assert!(run_name(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn shares_outside_the_range_are_refused() {
        for share in ["0", "1.01", "-1", "101%", "nan", "inf", "", "half"] {
            let refused = Cli::try_parse_from(["sluice", "run", &format!("--share={share}"), "--", "x"]);
            assert!(refused.is_err(), "{share}");
        }
    }
}
