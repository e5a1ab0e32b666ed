//! `sluice usage aside`, `accept` and `discard`: usage records that cannot be true as nodes
//! reported them.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use sluice_api::usage::{AsideDecided, AsideDecision, AsideRecord, GPU_HOUR_PPM_MS};

use super::client;
use super::lists::show;
use crate::cli::{AsideArgs, UsageCommand};
use crate::moment::Moment;
use crate::table::Align::{Left, Right};

pub(crate) fn run(command: &UsageCommand) -> Result<ExitCode> {
    match command {
        UsageCommand::Aside(list) => {
            let records: Vec<AsideRecord> = client(&list.at)?.list("/usage/aside")?;
            let columns = &[
                ("ID", Left),
                ("NODE", Right),
                ("LEASE", Right),
                ("TENANT", Left),
                ("FROM", Left),
                ("GPU-HOURS", Right),
                ("REASON", Left),
            ];
            show(&records, list.output, "no usage record is set aside", columns, cells)?;
        }
        UsageCommand::Accept(arguments) => decide(arguments, true)?,
        UsageCommand::Discard(arguments) => decide(arguments, false)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn cells(AsideRecord { record, reason, .. }: &AsideRecord) -> Vec<String> {
    let gpu_hours = record.reserved_ppm_ms() as f64 / GPU_HOUR_PPM_MS as f64;
    vec![
        record.id.clone(),
        record.node.to_string(),
        record.lease.to_string(),
        record.tenant.to_string(),
        Moment::from_ms(record.from_ms).to_string(),
        format!("{gpu_hours:.3}"),
        reason.clone(),
    ]
}

fn decide(arguments: &AsideArgs, accept: bool) -> Result<()> {
    let decision = AsideDecision { ids: arguments.ids.clone(), accept };
    let AsideDecided { records } = client(&arguments.at)?.post("/usage/aside", &decision)?;
    ensure!(records > 0, "none of these records is set aside; `sluice usage aside` lists those that are");
    let what = if accept { "accepted" } else { "discarded" };
    eprintln!("sluice: {records} usage records are {what}");
    Ok(())
}
