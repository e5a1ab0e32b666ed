//! `sluice iq`: what runs got and what they need.

use clap::Args;
use sluice_api::autonomy::Mode;
use sluice_api::tenant::TenantPath;

use super::AtServer;
use crate::cli::Output;
use crate::moment::Moment;
use crate::quantity::{Period, Share};

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
