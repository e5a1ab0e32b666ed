//! What can be said to and about a server.

mod bill;
mod declared;
mod iq;
mod start;

use std::path::PathBuf;

use clap::Args;

use super::Output;

#[cfg(test)]
pub(crate) use bill::Micro;
pub(crate) use bill::{
    AsideArgs, BillArgs, BillFormat, CorrectArgs, InvoiceCommand, InvoiceFormat, ReconcileArgs, UsageArgs,
    UsageCommand,
};
pub(crate) use declared::{
    AuditCommand, GpuCommand, IdentityCommand, LeaseCommand, LeaseListArgs, NodeCommand, PoolCommand,
    TenantCommand, TokenCommand,
};
pub(crate) use iq::{IdleAfter, IqArgs};
#[cfg(feature = "full")]
pub(crate) use start::{BackupArgs, BooksArgs, ServerArgs, ServerCommandArgs, UpArgs};
pub(crate) use start::{MembershipArgs, RestoreArgs, label};

/// Which server.
#[derive(Debug, Args)]
pub(crate) struct AtServer {
    /// The server [default: $SLUICE_SERVER, else that of `sluice login`]
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,
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
    /// The server: https://HOST:PORT[/FINGERPRINT] or http://HOST:PORT, as the server prints it
    #[arg(value_name = "URL")]
    pub(crate) server: String,

    /// Keep a token of the server's own, from standard input, though it has an identity provider
    #[arg(long)]
    pub(crate) token: bool,

    /// Keep a token of the server's own, from this file
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

#[cfg(test)]
mod tests;
