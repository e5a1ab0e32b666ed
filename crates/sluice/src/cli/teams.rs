//! What can be said to and about a server.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use sluice_api::autonomy::Mode;
use sluice_api::health::{Clearing, GpuName};
use sluice_api::invoice::InvoiceState;
use sluice_api::lease::StateFilter;
use sluice_api::tenant::TenantPath;
use sluice_api::token::Role;
#[cfg(feature = "control-plane")]
use sluice_node::Peering;

use super::Output;
#[cfg(feature = "control-plane")]
use super::mail::MailArgs;
#[cfg(feature = "control-plane")]
use super::{GpuChoice, MetricsArgs, TlsArgs};
use crate::moment::{Moment, Month};
#[cfg(feature = "control-plane")]
use crate::quantity::Memory;
use crate::quantity::{Period, Share, Units};

/// Which server.
#[derive(Debug, Args)]
pub(crate) struct AtServer {
    /// The server [default: $SLUICE_SERVER, else that of `sluice login`]
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,
}

#[cfg(feature = "control-plane")]
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

    /// Whoever has used much of late gets less of what others leave; use of so long ago, such as
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

#[cfg(feature = "control-plane")]
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

    /// Speak plain text, also beyond loopback: whoever sees the network sees tokens
    #[arg(long, conflicts_with_all = ["tls", "tls_cert"])]
    pub(crate) plain_text: bool,

    /// URL at which other servers of the same database reach this one, where that is not the
    /// address it listens on
    #[arg(long, value_name = "URL")]
    pub(crate) advertise: Option<String>,
}

#[cfg(feature = "control-plane")]
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

/// Where a server keeps its books.
#[derive(Debug, Args)]
#[cfg_attr(not(feature = "control-plane"), allow(dead_code, reason = "only a control plane has books"))]
pub(crate) struct BooksArgs {
    /// The server's data folder [default: ~/.local/share/sluice]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) data: Option<PathBuf>,

    /// Its database, if that is not a file in the data folder: postgres://USER@HOST/NAME (also in
    /// SLUICE_DATABASE)
    #[arg(long, value_name = "URL")]
    pub(crate) database: Option<String>,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct UsageArgs {
    #[command(subcommand)]
    pub(crate) command: Option<UsageCommand>,

    #[command(flatten)]
    pub(crate) at: AtServer,

    /// Of this tenant and those below it [default: all that the token may see]
    #[arg(long, value_name = "PATH")]
    pub(crate) tenant: Option<TenantPath>,

    /// Records that begin within this time before now, such as 15min or 24h
    #[arg(long, value_name = "TIME", default_value = "1h")]
    pub(crate) since: Period,

    /// Go on with the records that arrive, until interrupted
    #[arg(short, long)]
    pub(crate) follow: bool,

    /// How to print; as JSON a record is a line
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Output,
}

/// Usage records that cannot be true by the grant of their lease, the GPUs of their node or the
/// clock.
#[derive(Debug, Subcommand)]
pub(crate) enum UsageCommand {
    /// List usage records that were set aside because they cannot be true; they are on no bill
    Aside(ListArgs),
    /// Count records that were set aside from now on
    Accept(AsideArgs),
    /// Discard records that were set aside
    Discard(AsideArgs),
}

#[derive(Debug, Args)]
pub(crate) struct AsideArgs {
    #[command(flatten)]
    pub(crate) at: AtServer,

    /// As `sluice usage aside` shows them
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct IqArgs {
    #[command(flatten)]
    pub(crate) at_server: AtServer,

    /// Programs whose name contains this [default: all]
    #[arg(value_name = "PROGRAM")]
    pub(crate) program: Option<String>,

    /// Of this tenant and those below it [default: all that the token may see]
    #[arg(long, value_name = "PATH")]
    pub(crate) tenant: Option<TenantPath>,

    /// Runs of this time, such as 24h or 336h
    #[arg(long, value_name = "TIME", default_value = "336h")]
    pub(crate) since: Period,

    /// As of this moment, such as 2026-11-01 [default: now]
    #[arg(long, value_name = "MOMENT")]
    pub(crate) at: Option<Moment>,

    /// Also programs for which nothing is recommended, and why
    #[arg(long)]
    pub(crate) all: bool,

    /// Make the recommendation for PROGRAM the default of its next runs; those with -p, --units or
    /// --memory keep what they say
    #[arg(long, requires = "program", conflicts_with = "all")]
    pub(crate) apply: bool,

    /// Remove the default of PROGRAM, and undo what the server has changed about it by itself: its
    /// running leases get back what they asked for, and it is left alone from then on
    #[arg(long, requires = "program", conflicts_with_all = ["all", "apply"])]
    pub(crate) undo: bool,

    /// Let the server change PROGRAM again, which is left alone since --undo
    #[arg(long, requires = "program", conflicts_with_all = ["all", "apply", "undo"])]
    pub(crate) allow: bool,

    /// Print who lets the server change what by itself, and what it has changed
    #[arg(long, conflicts_with_all = ["program", "all"])]
    pub(crate) autonomy: bool,

    /// Say what the server may change by itself about programs of --tenant [default: the token's
    /// tenant]: off, recommend, next-run (runs that state no size get one that fits) or live
    /// (running leases are resized, too). More is for an administrator of that tenant to say
    #[arg(long, value_name = "MODE", conflicts_with_all = ["program", "all", "autonomy"])]
    pub(crate) consent: Option<Mode>,

    /// The part of the share that was asked for which leases keep in any case, such as 50% [default
    /// at first: 25%]
    #[arg(long, value_name = "SHARE", conflicts_with_all = ["program", "all", "autonomy"])]
    pub(crate) floor: Option<Share>,

    /// Suspend programs of --tenant that are idle for this time, such as 30min, or never. They come
    /// back at their next CUDA call
    #[arg(long, value_name = "TIME", conflicts_with_all = ["program", "all", "autonomy"])]
    pub(crate) idle_after: Option<IdleAfter>,

    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Output,
}

/// When idle programs are suspended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum IdleAfter {
    Never,
    Time(Period),
}

impl IdleAfter {
    /// In milliseconds; 0 for never.
    pub(crate) fn ms(self) -> u64 {
        match self {
            IdleAfter::Never => 0,
            IdleAfter::Time(time) => time.duration().as_millis() as u64,
        }
    }
}

impl std::str::FromStr for IdleAfter {
    type Err = String;

    fn from_str(text: &str) -> Result<IdleAfter, String> {
        if text == "never" { Ok(IdleAfter::Never) } else { text.parse().map(IdleAfter::Time) }
    }
}

#[cfg(feature = "control-plane")]
#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    #[command(flatten)]
    pub(crate) books: BooksArgs,

    /// A folder that is not there yet. It becomes a data folder, which a server can be started on
    #[arg(value_name = "FOLDER")]
    pub(crate) to: PathBuf,
}

#[derive(Debug, Args)]
#[cfg_attr(not(feature = "control-plane"), allow(dead_code, reason = "only a control plane has books"))]
#[command(after_help = "\
Examples:
  sluice restore saved                          a program that `sluice checkpoint --stop` has stopped, \
on the node that it was on
  sluice restore saved --node gpu2:7583/4be1…   on another one, also where the former is gone
  sluice restore backup --data /var/lib/sluice  the data of a server

A program that is restored must still be there, and wait: one that has gone on since its checkpoint is \
refused. Where its former node does not answer, run this on the program's machine, as its user.")]
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

    /// For a program: restore it although nodes that had it do not answer, which never will. If it
    /// continues on one of them, it is lost
    #[arg(long, conflicts_with_all = ["data", "database"])]
    pub(crate) former_node_is_gone: bool,
}

#[cfg(feature = "control-plane")]
pub(crate) const DEFAULT_SERVER_LISTEN: &str = "127.0.0.1:7580";

#[cfg(feature = "control-plane")]
#[derive(Debug, Args)]
#[command(after_help = "\
Then, on this machine: export SLUICE_SERVER=http://127.0.0.1:7580. The administrator's token is in the data folder, in a
file that only this user can read; `sluice` takes it from there.")]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,

    /// Where the node listens [default: the host of --listen, port 7583]
    #[arg(long, value_name = "ADDR")]
    pub(crate) node_listen: Option<String>,

    /// Serve the node's metrics at HOST:PORT/metrics; --metrics serves the control plane's
    #[arg(long, value_name = "ADDR")]
    pub(crate) node_metrics: Option<String>,

    /// auto (NVIDIA GPUs, else one software GPU), nvidia, or software[:COUNT[,MEMORY]]
    #[arg(long, value_name = "GPUS", default_value = "auto")]
    pub(crate) gpus: GpuChoice,

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

    /// Most memory of this machine that holds GPU memory of suspended programs [default: half of
    /// the machine's]
    #[arg(long, value_name = "SIZE")]
    pub(crate) swap_memory: Option<Memory>,

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

    /// What each GPU of this node computes: so many TFLOPS (32 bits), which are its units. Software
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

/// `sluice web`.
#[derive(Debug, Args)]
pub(crate) struct WebArgs {
    #[command(flatten)]
    pub(crate) at: AtServer,

    /// Open it in the browser ($BROWSER, else xdg-open)
    #[arg(long)]
    pub(crate) open: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LoginArgs {
    /// https://HOST:PORT[/FINGERPRINT] or http://HOST:PORT, as the server prints it
    #[arg(value_name = "URL")]
    pub(crate) server: String,

    /// Keep a token of the server's own, from standard input, though it has an identity provider
    #[arg(long)]
    pub(crate) token: bool,

    /// The same from this file
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// Sign in with a code on another machine: this one has no browser
    #[arg(long, conflicts_with_all = ["token", "token_file"])]
    pub(crate) device: bool,

    /// Port of this machine to which the browser comes back, where the provider wants to know it;
    /// any that is free unless said
    #[arg(long, value_name = "PORT", default_value_t = 0, conflicts_with = "device")]
    pub(crate) port: u16,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) at: AtServer,

    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    pub(crate) at: AtServer,

    /// The file, in YAML; - for standard input
    #[arg(short, long, value_name = "FILE", required_unless_present = "show")]
    pub(crate) file: Option<PathBuf>,

    /// Print all that is declared, as such a file
    #[arg(long, conflicts_with = "file")]
    pub(crate) show: bool,

    /// Change nothing: print what would change, and what new prices would change in money
    #[arg(long, conflicts_with = "show")]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BillArgs {
    #[command(flatten)]
    pub(crate) at: AtServer,

    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: BillFormat,

    /// Whose: this tenant and all below it [default: the token's tenant]
    #[arg(long, value_name = "PATH")]
    pub(crate) tenant: Option<TenantPath>,

    /// Only what began within this time, such as 24h
    #[arg(long, value_name = "TIME")]
    pub(crate) last: Option<Period>,

    /// Only what began in this month, such as 2026-11
    #[arg(long, value_name = "MONTH", conflicts_with = "last")]
    pub(crate) month: Option<Month>,

    /// Only what began then or later: a day such as 2026-11-01, or a time such as
    /// 2026-11-01T08:30:00Z
    #[arg(long, value_name = "TIME", conflicts_with_all = ["last", "month"])]
    pub(crate) from: Option<Moment>,

    /// Only what began before [default: now]
    #[arg(long, value_name = "TIME", conflicts_with_all = ["last", "month"])]
    pub(crate) until: Option<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BillFormat {
    Table,
    Json,
    Csv,
    /// FOCUS 1.3, the FinOps Open Cost and Usage Specification, as CSV: a row for each lease, meter
    /// and day, of this month unless said
    Focus,
}

#[derive(Debug, Args)]
pub(crate) struct CorrectArgs {
    #[command(flatten)]
    pub(crate) at: AtServer,

    /// Whose bill
    #[arg(long, value_name = "PATH")]
    pub(crate) tenant: TenantPath,

    /// What is added, in the currency's units; negative for a credit
    #[arg(long, value_name = "AMOUNT", allow_hyphen_values = true)]
    pub(crate) amount: Micro,

    /// On the bill of the period that this moment is in, such as 2026-11-01; where that is
    /// invoiced, on the next invoice [default: now]
    #[arg(long = "at", value_name = "TIME")]
    pub(crate) moment: Option<Moment>,

    /// For who reads the bill
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
}

/// An amount of money in millionths, from a decimal number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Micro(pub(crate) i64);

impl std::str::FromStr for Micro {
    type Err = String;

    fn from_str(text: &str) -> Result<Micro, String> {
        let wrong = || format!("{text:?} is no amount such as -12.50");
        let (sign, digits) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
        let micro = sluice_api::written::decimal(digits, 6).map_err(|_| wrong())?;
        i64::try_from(micro).map(|micro| Micro(sign * micro)).map_err(|_| wrong())
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum InvoiceCommand {
    /// Issue an invoice for a period that is over
    Issue {
        #[command(flatten)]
        at: AtServer,
        #[arg(long, value_name = "PATH")]
        tenant: TenantPath,
        /// Its beginning, such as 2026-11-01 or 2026-11-01T08:30:00Z
        #[arg(long, value_name = "TIME")]
        from: Moment,
        /// Its end; what begins then is on the next one
        #[arg(long, value_name = "TIME")]
        until: Moment,
        /// Make a draft, without a number
        #[arg(long)]
        draft: bool,
    },
    /// Invoice all top-level tenants for a month; tenants that have an invoice for it are skipped
    Run {
        #[command(flatten)]
        at: AtServer,
        /// Such as 2026-11
        #[arg(long, value_name = "MONTH")]
        month: Month,
        /// Make drafts, without numbers
        #[arg(long)]
        draft: bool,
    },
    /// List invoices and credit notes
    List {
        #[command(flatten)]
        list: ListArgs,
        /// Only those that are issued, paid or credited
        #[arg(long, value_name = "STATE", value_parser = invoice_state)]
        state: Option<InvoiceState>,
    },
    /// List drafts
    Drafts(ListArgs),
    /// Print an invoice as it was issued, or make a document of it
    Show {
        #[command(flatten)]
        at: AtServer,
        number: u64,
        /// The draft of this number
        #[arg(long)]
        draft: bool,
        /// How to print
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: InvoiceFormat,
        /// Where the document goes [default: standard output]
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Issue a draft as it is
    IssueDraft {
        #[command(flatten)]
        at: AtServer,
        number: u64,
    },
    /// Discard a draft
    Discard {
        #[command(flatten)]
        at: AtServer,
        number: u64,
    },
    /// Record the payment of an invoice
    Paid {
        #[command(flatten)]
        at: AtServer,
        number: u64,
        /// When, such as 2026-11-14 [default: now]
        #[arg(long, value_name = "TIME")]
        on: Option<Moment>,
    },
    /// Cancel an invoice with a credit note
    Credit {
        #[command(flatten)]
        at: AtServer,
        number: u64,
        /// The reason, which is printed on the credit note
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum InvoiceFormat {
    Table,
    Json,
    Csv,
    Focus,
    Pdf,
    Html,
}

fn invoice_state(text: &str) -> Result<InvoiceState, String> {
    let found = InvoiceState::ALL.into_iter().find(|state| state.name() == text);
    found.filter(|state| *state != InvoiceState::Draft).ok_or_else(|| {
        format!("{text:?} is none of issued, paid and credited (`sluice invoice drafts` lists drafts)")
    })
}

#[derive(Debug, Args)]
pub(crate) struct ReconcileArgs {
    #[command(flatten)]
    pub(crate) at: AtServer,

    /// The folder of a node's usage journal. May be repeated
    #[arg(long = "journal", value_name = "FOLDER")]
    pub(crate) journals: Vec<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token and print it; it is shown this once
    Create {
        #[command(flatten)]
        at: AtServer,
        /// For this tenant and all below it; / for the whole installation
        #[arg(long, value_name = "PATH")]
        tenant: TenantPath,
        /// platform, provider, tenant-admin, member, viewer, auditor or node
        #[arg(long, value_name = "ROLE", default_value = "member")]
        role: Role,
        /// How long it is valid, such as 12h or 720h
        #[arg(long, value_name = "TIME", default_value = "720h")]
        lifetime: Period,
        /// What it is for
        #[arg(long, value_name = "TEXT", default_value = "")]
        name: String,
        /// With --role node: only the node of this name may join with it, and that node with no
        /// other token than one that names it
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
    },
    /// List tokens, without their secrets
    List(ListArgs),
    /// Revoke a token by its id, and say which leases were asked for with it: they continue, with
    /// keys of their own
    Revoke {
        #[command(flatten)]
        at: AtServer,
        /// As `sluice token list` shows it
        id: String,
        /// End these leases and their programs as well
        #[arg(long)]
        end_leases: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum IdentityCommand {
    /// Print it with its rules, as `sluice apply` takes it
    Show {
        #[command(flatten)]
        at: AtServer,
    },
    /// Take its tokens no more; `sluice apply` declares another
    Remove {
        #[command(flatten)]
        at: AtServer,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum LeaseCommand {
    /// List leases, the latest first: those that have not ended, unless said
    List(LeaseListArgs),
    /// Print what a lease asked for, where it is, why it waits, what it has used, and what became
    /// of it
    Show {
        #[command(flatten)]
        at: AtServer,
        id: u64,
        /// How to print
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: Output,
    },
    /// End a lease, and its program if it runs
    End {
        #[command(flatten)]
        at: AtServer,
        id: u64,
    },
    /// Tell its program to end within the grace time, and queue it again
    Preempt {
        #[command(flatten)]
        at: AtServer,
        id: u64,
        /// One task of an elastic lease only, by its number; the others continue
        #[arg(long, value_name = "K")]
        task: Option<u32>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct LeaseListArgs {
    #[command(flatten)]
    pub(crate) list: ListArgs,

    /// Those that have ended as well
    #[arg(long)]
    pub(crate) all: bool,

    /// Only those in this state: open (all but ended), queued, granted, running, preempting or
    /// ended
    #[arg(long, value_name = "STATE", default_value = "open", conflicts_with = "all")]
    pub(crate) state: StateFilter,

    /// Only those of this tenant and all below it
    #[arg(long, value_name = "PATH")]
    pub(crate) tenant: Option<TenantPath>,

    /// Only those of this user, as the column USER names them
    #[arg(long, value_name = "NAME", conflicts_with = "watch")]
    pub(crate) user: Option<String>,

    /// Then what becomes of them, and of those that are asked for, as it happens; with -o json a
    /// line for each
    #[arg(short, long, conflicts_with_all = ["all", "state"])]
    pub(crate) watch: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TenantCommand {
    /// Take a tenant away that has no tenants below it and no leases; its bill stays, its tokens
    /// hold no more
    Delete {
        #[command(flatten)]
        at: AtServer,
        path: TenantPath,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// Take a pool away that no lease asks for; its nodes serve everybody then, unless another pool
    /// has them
    Delete {
        #[command(flatten)]
        at: AtServer,
        name: String,
    },
}

/// What is done to the nodes of a server.
#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// List a server's nodes: whether they report, whether they are drained, what is on them
    List(ListArgs),
    /// Place nothing new on a node, and move what runs there to other nodes, as far as it can
    Drain {
        #[command(flatten)]
        at: AtServer,
        /// As `sluice node list` shows it
        name: String,
        /// What cannot move has this time to end, such as 30s or 10min, and then waits in the queue
        /// again [default: it continues to its own end]
        #[arg(long, value_name = "TIME")]
        grace: Option<Period>,
        /// Move nothing
        #[arg(long)]
        no_move: bool,
        /// For whoever finds it drained
        #[arg(long, value_name = "TEXT", default_value = "")]
        why: String,
        /// Use it again
        #[arg(long, conflicts_with_all = ["grace", "why", "no_move"])]
        undo: bool,
    },
    /// Forget a node that is silent and gone for good
    Forget {
        #[command(flatten)]
        at: AtServer,
        /// As `sluice node list` shows it
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum GpuCommand {
    /// List where GPUs stand and what they can do: vendor, speed, PCI address, NUMA node, PCIe and
    /// NVLink, health
    Facts(ListArgs),
    /// Take GPUs out of use: they are lent to nobody, and their programs leave them
    Fence {
        #[command(flatten)]
        at: AtServer,
        /// As `sluice gpus` shows them, such as gpu1/0
        #[arg(required = true, value_name = "NODE/GPU")]
        gpus: Vec<GpuName>,
        /// For whoever finds them fenced
        #[arg(long, value_name = "TEXT")]
        why: String,
        /// What becomes of the programs on them: finish, preempt (the grace time, then they wait in
        /// the queue again), or end (the same within seconds)
        #[arg(long, value_name = "HOW", default_value = "preempt")]
        sessions: Clearing,
    },
    /// Use fenced or suspected GPUs again
    Unfence {
        #[command(flatten)]
        at: AtServer,
        #[arg(required = true, value_name = "NODE/GPU")]
        gpus: Vec<GpuName>,
        /// For the audit log
        #[arg(long, value_name = "TEXT", default_value = "")]
        why: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Print the log, one JSON object per line
    Log {
        #[command(flatten)]
        at: AtServer,
    },
    /// Follow the chain of the log from its beginning
    Verify {
        #[command(flatten)]
        at: AtServer,
        /// A file kept elsewhere that says where the log stood; it is checked, and then brought up
        /// to date
        #[arg(long, value_name = "FILE")]
        anchor: Option<PathBuf>,
        /// Make such a file, which is not there yet
        #[arg(long, value_name = "FILE", conflicts_with = "anchor")]
        new_anchor: Option<PathBuf>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_exactly() {
        for (text, micro) in [("1", 1_000_000), ("-12.50", -12_500_000), ("0.000001", 1), ("-0.5", -500_000)]
        {
            assert_eq!(text.parse(), Ok(Micro(micro)), "{text}");
        }
        for text in ["", "-", ".5", "1.", "1.0000001", "1e3", "--1", "99999999999999"] {
            assert!(text.parse::<Micro>().is_err(), "{text}");
        }
    }
}
