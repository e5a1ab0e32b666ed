//! Arguments of `sluice plan`.

use clap::Args;

use super::{AtServer, Output};
use crate::moment::Moment;
use crate::quantity::Period;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sluice plan                            when each pool is full, and what would be missing in 90 days
  sluice plan --pool a100 --horizon 4320h -o json
  sluice plan --at 2026-11-01            what the plan was then, with today's GPUs")]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) at_server: AtServer,

    /// This pool alone
    #[arg(long, value_name = "NAME")]
    pub(crate) pool: Option<String>,

    /// The history that the plan is drawn from
    #[arg(long, value_name = "TIME", default_value = "2160h")]
    pub(crate) since: Period,

    /// How far to look ahead
    #[arg(long, value_name = "TIME", default_value = "2160h")]
    pub(crate) horizon: Period,

    /// As of this moment, such as 2026-11-01 [default: now]
    #[arg(long, value_name = "MOMENT")]
    pub(crate) at: Option<Moment>,

    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Output,
}
