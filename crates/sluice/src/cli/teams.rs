//! What can be said to and about a server.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use sluice_api::tenant::TenantPath;
use sluice_api::token::Role;

use super::{GpuChoice, Output};
use crate::quantity::Period;

/// Which server.
#[derive(Debug, Args)]
pub(crate) struct AtServer {
    /// The server [default: $SLUICE_SERVER, else that of `sluice login`]
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// Where to listen: HOST:PORT (port 0 takes a free one). There is no encryption yet: beyond this machine, listen only
    /// on networks you trust
    #[arg(long, value_name = "ADDR", default_value = DEFAULT_SERVER_LISTEN)]
    pub(crate) listen: String,

    /// The folder that holds the database, the key and the first tokens [default: ~/.local/share/sluice]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) data: Option<PathBuf>,

    /// Where everything is kept: postgres://USER@HOST/NAME (also in SLUICE_DATABASE). A file of SQLite in the data folder
    /// unless said
    #[arg(long, value_name = "URL")]
    pub(crate) database: Option<String>,

    /// Seconds that a preempted program may go on
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) grace: u32,
}

pub(crate) const DEFAULT_SERVER_LISTEN: &str = "127.0.0.1:7580";

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

    /// auto (NVIDIA GPUs, else one software GPU), nvidia, or software[:COUNT[,MEMORY]]
    #[arg(long, value_name = "GPUS", default_value = "auto")]
    pub(crate) gpus: GpuChoice,

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

    /// What requests select nodes by; labels named zone and rack also say which nodes are near each other. May be repeated
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

#[derive(Debug, Args)]
pub(crate) struct LoginArgs {
    /// http://HOST:PORT
    #[arg(value_name = "URL")]
    pub(crate) server: String,

    /// A file that holds the token; standard input unless named
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
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
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct BillArgs {
    #[command(flatten)]
    pub(crate) list: ListArgs,

    /// Whose: this tenant and all below it [default: the token's tenant]
    #[arg(long, value_name = "PATH")]
    pub(crate) tenant: Option<TenantPath>,

    /// Only what began within this time, such as 24h
    #[arg(long, value_name = "TIME")]
    pub(crate) last: Option<Period>,
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
    },
    /// List tokens, without their secrets
    List(ListArgs),
    /// Revoke a token by its id
    Revoke {
        #[command(flatten)]
        at: AtServer,
        /// As `sluice token list` shows it
        id: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum LeaseCommand {
    /// List leases, the latest first
    List(ListArgs),
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
        /// A file kept elsewhere that says where the log stood; it is checked, and then brought up to date
        #[arg(long, value_name = "FILE")]
        anchor: Option<PathBuf>,
    },
}
