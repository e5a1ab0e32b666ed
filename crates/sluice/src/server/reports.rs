//! `sluice report`: what was used, what it cost, and who did what, as a document.

use std::fs;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};

use super::client;
use crate::cli::{ReportArgs, ReportFormat};
use crate::moment::Moment;
use crate::output::Stdout;

pub(crate) fn report(arguments: &ReportArgs) -> Result<ExitCode> {
    let bytes = client(&arguments.at)?.get_bytes(&path(arguments))?;
    match &arguments.file {
        Some(file) => fs::write(file, bytes).with_context(|| file.display().to_string())?,
        None => Stdout.write_all(&bytes)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn path(arguments: &ReportArgs) -> String {
    let ReportArgs { kind, tenant, period, from, until, format, .. } = arguments;
    let format = match format {
        ReportFormat::Html => "html",
        ReportFormat::Pdf => "pdf",
        ReportFormat::Csv => "csv",
    };
    let from = from.or(period.map(|month| month.from)).map(Moment::ms);
    let until = until.or(period.map(|month| month.until)).map(Moment::ms);
    let options = [
        Some(format!("format={format}")),
        tenant.as_ref().map(|tenant| format!("tenant={tenant}")),
        from.map(|ms| format!("from_ms={ms}")),
        until.map(|ms| format!("until_ms={ms}")),
    ];
    format!("/reports/{}?{}", kind.name(), options.into_iter().flatten().collect::<Vec<_>>().join("&"))
}
