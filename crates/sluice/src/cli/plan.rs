//! Arguments of `sluice plan`.

use std::path::PathBuf;

use clap::Args;

use super::{AtServer, Output};
use crate::moment::Moment;
use crate::quantity::Period;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sluice plan                            when each pool is full, and what would be missing in 90 days
  sluice plan --pool a100 --horizon 4320h -o json
  sluice plan --at 2026-11-01            what the plan was then, with today's GPUs
  sluice plan --report value.html --nodes nodes.csv --jobs jobs.csv
                                         the GPUs that the same jobs take as whole GPUs, MIG, time
                                         slices and shares, with waits, cost and energy")]
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

    /// Write a report of what dividing GPUs is worth, one HTML file, from --nodes and --jobs
    #[arg(long, value_name = "FILE", requires_all = ["nodes", "jobs"])]
    pub(crate) report: Option<PathBuf>,

    /// The cluster of the report: a CSV list of nodes, as `sluice simulate` takes it
    #[arg(long, value_name = "FILE", requires = "report")]
    pub(crate) nodes: Option<PathBuf>,

    /// The jobs of the report, with their times: a CSV list as `sluice simulate` takes it
    #[arg(long, value_name = "FILE", visible_alias = "pods", requires = "report")]
    pub(crate) jobs: Option<PathBuf>,

    /// 95 of 100 jobs of the report wait no longer
    #[arg(long, value_name = "TIME", default_value = "60s", requires = "report")]
    pub(crate) wait: Period,

    /// Jobs of the report arrive this number of times as fast as in the list, and run as long
    #[arg(long, value_name = "TIMES", default_value_t = 1.0, value_parser = times, requires = "report")]
    pub(crate) faster: f64,

    /// The price of a GPU for an hour in the report, used or not
    #[arg(long, value_name = "PRICE", default_value_t = 2.0, value_parser = times, requires = "report")]
    pub(crate) price: f64,

    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Output,
}

/// Reads a number above 0.
fn times(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number <= 1e6 => Ok(number),
        _ => Err(format!("{text:?} is not a number above 0, up to a million")),
    }
}
