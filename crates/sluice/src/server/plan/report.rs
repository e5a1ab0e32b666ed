//! `sluice plan --report`: what dividing GPUs is worth on a list of jobs.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use sluice_simulate::trace::{read_jobs, read_nodes};
use sluice_simulate::{PolicyName, ValuePlan, ValueReport, value, value_page};

use crate::cli::{Output, PlanArgs};
use crate::simulate::{simulating, source};
use crate::table::Align::{Left, Right};
use crate::table::render;

const SEED: u64 = 42;
const CYCLE_MS: u64 = 1000;

/// Compares the ways to divide GPUs, prints them, and writes the report.
pub(super) fn report(arguments: &PlanArgs, file: &Path) -> Result<ExitCode> {
    let (Some(nodes), Some(jobs)) = (&arguments.nodes, &arguments.jobs) else {
        bail!("--report needs --nodes and --jobs, lists as `sluice simulate` takes them");
    };
    let plan = ValuePlan {
        wait_s: arguments.wait.duration().as_secs_f64(),
        policy: PolicyName::BestFit,
        seed: SEED,
        cycle_ms: CYCLE_MS,
        faster: arguments.faster,
        price: arguments.price,
    };
    let list = read_jobs(jobs)?.at_recorded_times();
    let waiting = simulating(&list);
    let found = value(&read_nodes(nodes)?, &list, &plan)?;
    drop(waiting);
    match arguments.output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&found)?),
        Output::Table => print!("{}", table(&found)),
    }
    let page = value_page(&found, &source(nodes, jobs));
    std::fs::write(file, page).with_context(|| format!("cannot write {}", file.display()))?;
    eprintln!("sluice: the report is {}", file.display());
    Ok(ExitCode::SUCCESS)
}

fn table(report: &ValueReport) -> String {
    let columns = [
        ("ALLOCATION", Left),
        ("GPUS", Right),
        ("CAPACITY", Right),
        ("GPUS ALONE", Right),
        ("WAIT P95", Right),
        ("COST", Right),
        ("PER GPU-HOUR", Right),
        ("SAVED", Right),
    ];
    let cells = |row: &sluice_simulate::Carried| {
        vec![
            row.allocation.name(),
            row.gpus.to_string(),
            format!("{:.2}", row.capacity),
            format!("{:.2}", row.capacity_of_gpus_alone),
            format!("{:.0} s", row.wait_p95_s),
            format!("{:.0}", row.cost),
            format!("{:.2}", row.cost_per_gpu_hour),
            format!("{:.0}", row.saved),
        ]
    };
    let rows: Vec<Vec<String>> = report.rows.iter().map(cells).collect();
    format!(
        "{} jobs, {:.0} GPU-hours in {:.1} days; {:.0} % of them by jobs with whole GPUs\n{}",
        report.jobs,
        report.work_gpu_hours,
        report.hours / 24.0,
        report.whole_percent,
        render(&columns, &rows)
    )
}
