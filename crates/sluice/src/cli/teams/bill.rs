//! Usage, bills, invoices and corrections.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use sluice_api::invoice::InvoiceState;
use sluice_api::tenant::TenantPath;

use super::{AtServer, ListArgs};
use crate::cli::Output;
use crate::moment::{Moment, Month};
use crate::quantity::Period;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct UsageArgs {
    #[command(subcommand)]
    pub(crate) command: Option<UsageCommand>,

    #[command(flatten)]
    pub(crate) at: AtServer,

    /// Of this tenant and those below it [default: all that the token may see]
    #[arg(long, value_name = "PATH")]
    pub(crate) tenant: Option<TenantPath>,

    /// Records that begin within this time before now, such as 15min or 24h
    #[arg(long, value_name = "TIME", default_value = "1h")]
    pub(crate) since: Period,

    /// Continue with the records that arrive, until interrupted
    #[arg(short, long)]
    pub(crate) follow: bool,

    /// How to print; as JSON a record is a line
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Output,
}

/// Usage records that cannot be true by the grant of their lease, the GPUs of their node or the
/// clock.
#[derive(Debug, Subcommand)]
pub(crate) enum UsageCommand {
    /// List usage records that were set aside because they cannot be true; they are on no bill
    Aside(ListArgs),
    /// Count records that were set aside from now on
    Accept(AsideArgs),
    /// Discard records that were set aside
    Discard(AsideArgs),
}

#[derive(Debug, Args)]
pub(crate) struct AsideArgs {
    #[command(flatten)]
    pub(crate) at: AtServer,

    /// As `sluice usage aside` shows them
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct BillArgs {
    #[command(flatten)]
    pub(crate) at: AtServer,

    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: BillFormat,

    /// Whose: this tenant and all below it [default: the token's tenant]
    #[arg(long, value_name = "PATH")]
    pub(crate) tenant: Option<TenantPath>,

    /// Only what began within this time, such as 24h
    #[arg(long, value_name = "TIME")]
    pub(crate) last: Option<Period>,

    /// Only what began in this month, such as 2026-11
    #[arg(long, value_name = "MONTH", conflicts_with = "last")]
    pub(crate) month: Option<Month>,

    /// Only what began then or later: a day such as 2026-11-01, or a time such as
    /// 2026-11-01T08:30:00Z
    #[arg(long, value_name = "TIME", conflicts_with_all = ["last", "month"])]
    pub(crate) from: Option<Moment>,

    /// Only what began before [default: now]
    #[arg(long, value_name = "TIME", conflicts_with_all = ["last", "month"])]
    pub(crate) until: Option<Moment>,

    /// What each GPU earned, and what its idle time would have, of the whole installation's bill
    #[arg(long, conflicts_with = "tenant")]
    pub(crate) gpus: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BillFormat {
    Table,
    Json,
    Csv,
    /// FOCUS 1.3, the FinOps Open Cost and Usage Specification, as CSV: a row for each lease, meter
    /// and day, of this month unless said
    Focus,
}

#[derive(Debug, Args)]
pub(crate) struct CorrectArgs {
    #[command(flatten)]
    pub(crate) at: AtServer,

    /// Whose bill
    #[arg(long, value_name = "PATH")]
    pub(crate) tenant: TenantPath,

    /// What is added, in the currency's units; negative for a credit
    #[arg(long, value_name = "AMOUNT", allow_hyphen_values = true)]
    pub(crate) amount: Micro,

    /// On the bill of the period that this moment is in, such as 2026-11-01; where that is
    /// invoiced, on the next invoice [default: now]
    #[arg(long = "at", value_name = "TIME")]
    pub(crate) moment: Option<Moment>,

    /// For who reads the bill
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
}

/// An amount of money in millionths, from a decimal number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Micro(pub(crate) i64);

impl std::str::FromStr for Micro {
    type Err = String;

    fn from_str(text: &str) -> Result<Micro, String> {
        let wrong = || format!("{text:?} is no amount such as -12.50");
        let (sign, digits) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
        let micro = sluice_api::written::decimal(digits, 6).map_err(|_| wrong())?;
        i64::try_from(micro).map(|micro| Micro(sign * micro)).map_err(|_| wrong())
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum InvoiceCommand {
    /// Issue an invoice for a period that is over
    Issue {
        #[command(flatten)]
        at: AtServer,
        #[arg(long, value_name = "PATH")]
        tenant: TenantPath,
        /// Its beginning, such as 2026-11-01 or 2026-11-01T08:30:00Z
        #[arg(long, value_name = "TIME")]
        from: Moment,
        /// Its end; what begins then is on the next one
        #[arg(long, value_name = "TIME")]
        until: Moment,
        /// Make a draft, without a number
        #[arg(long)]
        draft: bool,
    },
    /// Invoice all top-level tenants for a month; tenants that have an invoice for it are skipped
    Run {
        #[command(flatten)]
        at: AtServer,
        /// Such as 2026-11
        #[arg(long, value_name = "MONTH")]
        month: Month,
        /// Make drafts, without numbers
        #[arg(long)]
        draft: bool,
    },
    /// List invoices and credit notes
    List {
        #[command(flatten)]
        list: ListArgs,
        /// Only those that are issued, paid or credited
        #[arg(long, value_name = "STATE", value_parser = invoice_state)]
        state: Option<InvoiceState>,
    },
    /// List drafts
    Drafts(ListArgs),
    /// Print an invoice as it was issued, or make a document of it
    Show {
        #[command(flatten)]
        at: AtServer,
        number: u64,
        /// The draft of this number
        #[arg(long)]
        draft: bool,
        /// How to print
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: InvoiceFormat,
        /// Where the document goes [default: standard output]
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Issue a draft as it is
    IssueDraft {
        #[command(flatten)]
        at: AtServer,
        number: u64,
    },
    /// Discard a draft
    Discard {
        #[command(flatten)]
        at: AtServer,
        number: u64,
    },
    /// Record the payment of an invoice
    Paid {
        #[command(flatten)]
        at: AtServer,
        number: u64,
        /// When, such as 2026-11-14 [default: now]
        #[arg(long, value_name = "TIME")]
        on: Option<Moment>,
    },
    /// Cancel an invoice with a credit note
    Credit {
        #[command(flatten)]
        at: AtServer,
        number: u64,
        /// The reason, which is printed on the credit note
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum InvoiceFormat {
    Table,
    Json,
    Csv,
    Focus,
    Pdf,
    Html,
}

fn invoice_state(text: &str) -> Result<InvoiceState, String> {
    let found = InvoiceState::ALL.into_iter().find(|state| state.name() == text);
    found.filter(|state| *state != InvoiceState::Draft).ok_or_else(|| {
        format!("{text:?} is none of issued, paid and credited (`sluice invoice drafts` lists drafts)")
    })
}

#[derive(Debug, Args)]
pub(crate) struct ReconcileArgs {
    #[command(flatten)]
    pub(crate) at: AtServer,

    /// The folder of a node's usage journal. May be repeated
    #[arg(long = "journal", value_name = "FOLDER")]
    pub(crate) journals: Vec<PathBuf>,
}
