//! The arguments of `sluice webhook` and `sluice report`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use sluice_api::report::ReportKind;
use sluice_api::tenant::TenantPath;
use sluice_api::webhook::{EventKind, WebhookFormat};

use super::{AtServer, ListArgs, Output};
use crate::moment::{Moment, Month};

#[derive(Debug, Subcommand)]
pub(crate) enum WebhookCommand {
    /// Add a webhook and print its secret, which is shown this once
    Add {
        #[command(flatten)]
        at: AtServer,
        /// The URL that events are sent to, or mailto:ADDRESS where the server sends mail
        url: String,
        /// Send events of this tenant and of those below it [default: the token's tenant]. Events
        /// of GPUs and nodes are sent to webhooks of / only
        #[arg(long, value_name = "PATH")]
        tenant: Option<TenantPath>,
        /// Send this event, such as budget.passed or lease.started; may be repeated [default: all
        /// events]
        #[arg(long = "event", value_name = "EVENT")]
        events: Vec<EventKind>,
        /// Format of messages: json, slack for a sentence in a chat, or mail [default: mail for
        /// mailto: URLs, json for others]
        #[arg(long, value_name = "FORMAT")]
        format: Option<WebhookFormat>,
        /// A name for people to read
        #[arg(long, value_name = "TEXT", default_value = "")]
        name: String,
    },
    /// List webhooks, without their secrets
    List(ListArgs),
    /// Remove a webhook with its deliveries
    Remove {
        #[command(flatten)]
        at: AtServer,
        /// As `sluice webhook list` shows it
        id: String,
    },
    /// Send a test event and wait for what becomes of it
    Test {
        #[command(flatten)]
        at: AtServer,
        /// As `sluice webhook list` shows it
        id: String,
    },
    /// Enable a webhook that was disabled because nothing could be delivered
    Enable {
        #[command(flatten)]
        at: AtServer,
        /// As `sluice webhook list` shows it
        id: String,
    },
    /// List the deliveries of a webhook, the latest first
    Deliveries {
        #[command(flatten)]
        at: AtServer,
        /// As `sluice webhook list` shows it
        id: String,
        /// How to print
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    pub(crate) at: AtServer,

    /// Kind of report: usage, cost, chargeback, or compliance (who could do what, and who did)
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: ReportKind,

    /// About this tenant and all below it [default: the token's tenant]
    #[arg(long, value_name = "PATH")]
    pub(crate) tenant: Option<TenantPath>,

    /// A month, such as 2026-11
    #[arg(long, value_name = "MONTH", required_unless_present = "from")]
    pub(crate) period: Option<Month>,

    /// Another period: from this day or time
    #[arg(long, value_name = "MOMENT", conflicts_with = "period")]
    pub(crate) from: Option<Moment>,

    /// Until before this day or time [default: now]
    #[arg(long, value_name = "MOMENT", requires = "from")]
    pub(crate) until: Option<Moment>,

    /// Format of the report: html, pdf or csv
    #[arg(long, value_name = "FORMAT", default_value = "html")]
    pub(crate) format: ReportFormat,

    /// Write it to this file instead of to standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    Html,
    Pdf,
    Csv,
}
