//! What a server keeps: tokens, identity providers, leases, tenants, pools, nodes, GPUs, the audit
//! log.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use sluice_api::health::{Clearing, GpuName};
use sluice_api::lease::StateFilter;
use sluice_api::tenant::TenantPath;
use sluice_api::token::Role;

use super::{AtServer, ListArgs};
use crate::cli::Output;
use crate::quantity::Period;

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token and print it; it is shown this once
    Create {
        #[command(flatten)]
        at: AtServer,
        /// For this tenant and all below it; / for the whole installation
        #[arg(long, value_name = "PATH")]
        tenant: TenantPath,
        /// Role: platform, provider, tenant-admin, member, viewer, auditor or node
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
    /// List its people who have been here: their role, and when they were here last
    People(ListArgs),
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
    /// Take a pool away that no lease asks for; its nodes serve all tenants then, unless another
    /// pool has them
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
        /// The reason, for other operators
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
    /// Take GPUs out of use: they are not leased any more, and their programs leave them
    Fence {
        #[command(flatten)]
        at: AtServer,
        /// As `sluice gpus` shows them, such as gpu1/0
        #[arg(required = true, value_name = "NODE/GPU")]
        gpus: Vec<GpuName>,
        /// The reason, for other operators
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
    /// Print the log, one JSON object per line, from its beginning
    Log {
        #[command(flatten)]
        at: AtServer,
        /// Only what concerns this tenant and all below it, the latest entry first: what an
        /// administrator of the tenant may see
        #[arg(long, value_name = "PATH")]
        tenant: Option<TenantPath>,
        /// Only what was done by these: the id of a token, or a part of a name; the latest entry
        /// first
        #[arg(long, value_name = "TEXT")]
        actor: Option<String>,
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
