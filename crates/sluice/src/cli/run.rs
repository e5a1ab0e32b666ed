//! `sluice run`: how much of which GPUs, and the program.

use std::path::PathBuf;

use clap::Args;
use sluice_api::lease::{LeaseId, Level, Link, TASKS_MAX};
use sluice_api::pool::Tier;

use super::teams::label;
use super::{Cap, CiArgs, GpuChoice, Output, TrainingArgs};
use crate::quantity::{Memory, Period, Share, Units};

#[derive(Debug, Args)]
#[command(after_help = "\
The program's output, exit code and signals pass through untouched. Sluice's own messages go to stderr, \
and its own failures have exit code 125; a program that cannot be started gives 126, one that does not \
exist 127. With --require-gpu, 123 means that the program succeeded without a kernel; with --sanitize, \
122 that it succeeded and its kernels have errors.

A node beyond this machine is known by the fingerprint behind its address, or by an authority named in \
SLUICE_TLS_CA (a PEM file); a node with --tls-client-ca knows its users by SLUICE_TLS_CERT and \
SLUICE_TLS_KEY, one with --token-file by SLUICE_NODE_TOKEN. plain-text:HOST:PORT speaks plain text.")]
pub(crate) struct RunArgs {
    /// How many GPUs
    #[arg(short = 'n', long = "gpu-count", value_name = "GPUS", default_value_t = 1)]
    pub(crate) gpu_count: u32,

    /// Share of each GPU's compute time: above 0, up to 1 (0.25 and 25% are the same)
    /// [default: what `sluice iq --apply` has set for the program, else 1]
    #[arg(id = "share", short = 'p', long = "share", value_name = "SHARE")]
    pub(crate) stated_share: Option<Share>,

    /// With a server, instead of a share: UNITS of each GPU's compute, on any GPU that has them. A
    /// unit is a TFLOPS (32 bits)
    #[arg(long, value_name = "UNITS", conflicts_with = "share")]
    pub(crate) units: Option<Units>,

    /// Memory on each GPU, such as 8GiB or 512MiB [default: SHARE x the GPU's memory]
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Memory>,

    /// "hard": never more than the share, even while no other lease computes
    #[arg(long, value_name = "KIND", default_value = "none")]
    pub(crate) cap: Cap,

    /// Never more than this of each GPU's compute time, even while no other lease computes: not
    /// below the share
    #[arg(long, value_name = "SHARE", conflicts_with_all = ["cap", "units"])]
    pub(crate) limit: Option<Share>,

    /// End a kernel that runs longer than this, such as 10s or 500ms
    #[arg(long, value_name = "TIME")]
    pub(crate) kernel_timeout: Option<Period>,

    /// The node to run on, as `sluice node` prints it [default: $SLUICE_NODE, else a private node
    /// on this machine]. Several with commas between give their GPUs as one list, each the same
    /// number, or the number behind it: A=2,B=1
    #[arg(long, value_name = "HOST:PORT[/FINGERPRINT]")]
    pub(crate) node: Option<String>,

    /// With a server: split the GPUs evenly over N places, on different nodes where none has
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

    /// With a server: run N of the program side by side, each with GPUs of its own, all or
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

    /// With a server: premium (never preempted, within the guaranteed quota), standard, basic
    /// (preempted for the others), or a kind of one that a pool declares, such as premium-gold
    /// [default: standard]
    #[arg(long, value_name = "TIER")]
    pub(crate) tier: Option<Tier>,

    /// With a server: only nodes of this pool
    #[arg(long, value_name = "NAME")]
    pub(crate) pool: Option<String>,

    /// With a server: only GPUs whose model's name contains this, such as h100. May be repeated:
    /// any of them
    #[arg(long = "gpu-model", value_name = "NAME")]
    pub(crate) models: Vec<String>,

    /// With a server: only GPUs of at least this many TFLOPS (32 bits)
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

    /// With a server: how long it will take, such as 20min, so that others see when they will
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

    #[command(flatten)]
    pub(crate) training: TrainingArgs,

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

pub(super) fn run_name(text: &str) -> Result<String, String> {
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
