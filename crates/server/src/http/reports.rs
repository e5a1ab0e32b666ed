//! The REST API of reports.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use sluice_api::problem::{Kind, Problem};
use sluice_api::report::ReportKind;

use super::answer::Refusal;
use super::extract::{Name, Options};
use super::ledger::BillOptions;
use crate::auth::Principal;
use crate::billing;
use crate::policy::Action;
use crate::printed;
use crate::reports;
use crate::server::Server;

/// The format of a report.
#[derive(Clone, Copy, Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ReportFormat {
    #[default]
    Html,
    Pdf,
    Csv,
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Rendering {
    /// HTML unless said.
    #[serde(default)]
    #[param(inline)]
    format: ReportFormat,
}

/// A report about a tenant and all below it
///
/// `usage`, `cost` and `chargeback` are made from the bill of the same period and add up to it.
/// `compliance` is for tokens that may read the audit log.
#[utoipa::path(get, path = "/reports/{kind}", tag = "ledger",
    params(("kind" = ReportKind, Path), BillOptions, Rendering),
    responses((status = 200, content(
        (Vec<u8> = "text/html"),
        (Vec<u8> = "application/pdf"),
        (Vec<u8> = "text/csv"),
    ))))]
pub(super) async fn tenant_report(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(kind): Name<ReportKind>,
    Options(options): Options<BillOptions>,
    Options(Rendering { format }): Options<Rendering>,
) -> Result<Response, Refusal> {
    let (tenant, period) = options.read(&server, &principal).await?;
    let file = format!("{}-{}", kind.name(), tenant.as_str().replace('/', "-").trim_matches('-'));
    let report = match kind {
        ReportKind::Compliance => {
            principal.need(Action::SeeAudit, &tenant)?;
            reports::compliance(&server, &principal, &tenant, period).await?
        }
        ReportKind::Usage | ReportKind::Cost | ReportKind::Chargeback => {
            let bill = billing::bill_of(&server.store, tenant, period).await?;
            reports::of_bill(kind, &bill, server.now_ms())
        }
    };
    render(report.clean(), format, file.trim_end_matches('-')).await
}

/// Renders a report, in a thread of its own since a PDF takes long.
async fn render(report: printed::Report, format: ReportFormat, file: &str) -> Result<Response, Refusal> {
    let (kind, extension, disposition) = match format {
        ReportFormat::Html => ("text/html; charset=utf-8", "html", "inline"),
        ReportFormat::Pdf => ("application/pdf", "pdf", "inline"),
        ReportFormat::Csv => ("text/csv; charset=utf-8", "csv", "attachment"),
    };
    let made = tokio::task::spawn_blocking(move || match format {
        ReportFormat::Html => Ok(printed::report_html(&report).into_bytes()),
        ReportFormat::Pdf => printed::report_pdf(&report),
        ReportFormat::Csv => printed::csv(&report),
    });
    let failed = |cause: String| Problem::new(Kind::Internal, format!("the report cannot be made: {cause}"));
    let bytes = made.await.map_err(|error| failed(error.to_string()))?.map_err(failed)?;
    let headers = [
        (header::CONTENT_TYPE, kind.to_owned()),
        (header::CONTENT_DISPOSITION, format!("{disposition}; filename=\"{file}.{extension}\"")),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; style-src 'unsafe-inline'".to_owned()),
    ];
    Ok((headers, bytes).into_response())
}
