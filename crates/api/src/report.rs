//! Reports about a tenant and a period.

use serde::{Deserialize, Serialize};

/// The kinds of reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ReportKind {
    /// What was held and used, without money.
    Usage,
    /// What it cost, line by line.
    Cost,
    /// What each tenant cost.
    Chargeback,
    /// Who could do what (roles, tokens and their expiry), and who did (audit log).
    Compliance,
}

impl ReportKind {
    pub const ALL: [ReportKind; 4] =
        [ReportKind::Usage, ReportKind::Cost, ReportKind::Chargeback, ReportKind::Compliance];

    /// Returns the name as it is written in URLs.
    pub fn name(self) -> &'static str {
        match self {
            ReportKind::Usage => "usage",
            ReportKind::Cost => "cost",
            ReportKind::Chargeback => "chargeback",
            ReportKind::Compliance => "compliance",
        }
    }
}

impl std::str::FromStr for ReportKind {
    type Err = String;

    fn from_str(text: &str) -> Result<ReportKind, String> {
        ReportKind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            let names = ReportKind::ALL.map(ReportKind::name).join(", ");
            format!("{text:?} is not a report; the reports are {names}")
        })
    }
}
