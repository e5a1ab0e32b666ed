//! The command line: what can be said, and what `--help` tells a newcomer. No behaviour.

#[cfg(not(feature = "full"))]
mod absent;
mod bench;
mod checkpoint;
mod ci;
mod elastic;
mod fit;
mod hold;
mod look;
#[cfg(feature = "full")]
mod mail;
mod node;
mod plan;
mod record;
mod run;
mod teams;
mod training;
mod webhooks;

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

#[cfg(feature = "full")]
use crate::simulate::SimulateArgs;

#[cfg(not(feature = "full"))]
pub(crate) use absent::*;
pub(crate) use bench::*;
pub(crate) use checkpoint::*;
pub(crate) use ci::*;
pub(crate) use elastic::*;
pub(crate) use fit::*;
pub(crate) use hold::*;
#[cfg(feature = "full")]
pub(crate) use look::TopArgs;
pub(crate) use look::{Output, PlaceArgs, QueryArgs, SmiArgs, SmiCommand, SmiPart};
#[cfg(feature = "full")]
pub(crate) use node::LogArgs;
pub(crate) use node::{GpuChoice, MetricsArgs, NodeArgs, TlsArgs};
pub(crate) use plan::*;
pub(crate) use record::*;
pub(crate) use run::RunArgs;
pub(crate) use teams::*;
pub(crate) use training::*;
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
    /// List the GPUs of a node or a server, and what is free on them
    Gpus(QueryArgs),
    /// List the programs that use the GPUs of a node or a server now
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
    /// Look for trouble in the metrics of training runs, and act on it
    Watch(WatchArgs),
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
    /// Copy a server's database into a folder, while it runs
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
    /// List the servers of a control plane: which one leads, and since when
    Servers(ListArgs),
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
    /// List leases and show what became of one; end one, or have it make room for others
    #[command(subcommand)]
    Lease(LeaseCommand),
    /// Take GPUs out of use, and back; show what is known of them
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

/// Whether a session may use more than its share while the GPU would idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cap {
    /// Compute that no other lease wants is free to use
    None,
    /// Never more than the share
    Hard,
}

#[cfg(test)]
mod tests;
