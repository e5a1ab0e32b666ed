//! Invoices: bills made into numbered documents, and their states.
//!
//! ```text
//!  draft ── issue ──▶ issued ── payment ──▶ paid
//!    │                  │                     │
//!    ▼ discard          └──── credit note ────┴──▶ credited
//! ```
//! A draft is an invoice without a number, for review. Numbers are assigned without gaps when an
//! invoice is issued, and nothing of an issued invoice changes except its state. A credit note is a
//! numbered document too: it cancels a whole invoice, so that the period can be invoiced again.
//!
//! Bills are exact to the millionth. A document rounds each line to the smallest unit of its
//! currency, half up, adds the lines, and rounds the tax on their sum.

use serde::{Deserialize, Serialize};

use crate::bill::{Bill, Currency};
use crate::tenant::TenantPath;
use crate::written::WrittenTax;

/// A person or company on an invoice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Party {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The lines of the postal address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub address: Vec<String>,
    /// The tax number as it is printed, such as `VAT DE123456789`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tax_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
}

/// The tax on an invoice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenTax")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Tax {
    /// The printed name, such as `VAT` or `reverse charge`.
    pub name: String,
    /// The rate in thousandths of a per cent.
    pub percent_milli: u32,
}

/// How invoices are made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Invoicing {
    /// The party that bills. Without a name it has the declared issuer's.
    #[serde(default)]
    pub seller: Party,
    /// The instructions for payment, such as a bank account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payment: Option<String>,
    /// The tax for tenants that have none of their own in [`BillTo`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<WrittenTax>))]
    pub tax: Option<Tax>,
    /// A prefix of printed numbers, such as `ACME-`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub number_prefix: String,
    /// Days from the issue of an invoice to its due date. Without it, invoices have no due date.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_days: Option<u32>,
}

/// The recipient of a tenant's invoices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BillTo {
    /// The party that is billed. Without a name it has the tenant's path.
    #[serde(default)]
    pub party: Party,
    /// A tax that replaces the one that is declared for all tenants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<WrittenTax>))]
    pub tax: Option<Tax>,
    /// The tenant's reference, such as the number of its purchase order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum InvoiceState {
    Draft,
    #[default]
    Issued,
    Paid,
    /// A credit note has cancelled it.
    Credited,
}

impl InvoiceState {
    pub const ALL: [InvoiceState; 4] =
        [InvoiceState::Draft, InvoiceState::Issued, InvoiceState::Paid, InvoiceState::Credited];

    pub fn name(self) -> &'static str {
        match self {
            InvoiceState::Draft => "draft",
            InvoiceState::Issued => "issued",
            InvoiceState::Paid => "paid",
            InvoiceState::Credited => "credited",
        }
    }
}

/// One line of a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InvoiceLine {
    pub text: String,
    /// The quantity in millionths of the unit; a correction has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantity_micro: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// The price of one unit, in millionths of the currency's unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_micro: Option<u64>,
    /// The exact cost, in millionths of the currency's unit.
    pub cost_micro: i64,
    /// The rounded cost, in the smallest unit of the currency.
    pub amount_minor: i64,
}

/// An amount that came in for the period of an earlier invoice after that was issued. The next
/// invoice bills it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Carried {
    /// The number of the earlier invoice.
    pub invoice: u64,
    /// The id of the correction, or none for usage that was delivered late.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correction: Option<u64>,
    pub reason: String,
    pub micro: i64,
    /// The number of usage records that the earlier invoice did not have.
    #[serde(default)]
    pub records: i64,
}

/// The cost of one user's program on one day of UTC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Detail {
    /// The beginning of the day, or none where the days are added up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day_ms: Option<u64>,
    pub user: String,
    pub program: String,
    pub cost_micro: u64,
}

/// An invoice, a draft of one, or a credit note, with the bill that it was made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Invoice {
    /// The number, which the server assigns without gaps. Drafts have numbers of their own.
    pub number: u64,
    /// The number with its prefix, as it is printed; empty for a draft.
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub state: InvoiceState,
    /// The time of issue, or of making for a draft.
    pub issued_at_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paid_at_ms: Option<u64>,
    /// The invoice that this credit note cancels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credits: Option<u64>,
    /// The credit note that cancelled this invoice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credited_by: Option<u64>,
    /// The reason of a credit note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default)]
    pub seller: Party,
    #[serde(default)]
    pub buyer: Party,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payment: Option<String>,
    /// The exact bill of the period.
    pub bill: Bill,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub carried: Vec<Carried>,
    #[serde(default)]
    pub lines: Vec<InvoiceLine>,
    /// The sum of the lines' amounts, in the smallest unit of the currency.
    #[serde(default)]
    pub net_minor: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tax: Option<Tax>,
    #[serde(default)]
    pub tax_minor: i64,
    #[serde(default)]
    pub total_minor: i64,
    /// The number of decimal digits of the currency.
    #[serde(default)]
    pub minor_digits: u8,
    /// The cost by day, user and program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<Detail>,
}

impl Invoice {
    /// Returns whether its period counts as invoiced. Credit notes and cancelled invoices cover no
    /// period.
    pub fn covers(&self) -> bool {
        self.credits.is_none() && self.state != InvoiceState::Credited
    }

    /// Formats an amount of the document as a decimal number with the currency's digits.
    pub fn amount(&self, minor: i64) -> String {
        let (sign, digits) = (if minor < 0 { "-" } else { "" }, usize::from(self.minor_digits));
        let (minor, unit) = (minor.unsigned_abs(), 10_u64.pow(u32::from(self.minor_digits)));
        if digits == 0 {
            format!("{sign}{minor}")
        } else {
            format!("{sign}{}.{:0digits$}", minor / unit, minor % unit)
        }
    }
}

/// A request for the invoice of a tenant and period.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewInvoice {
    pub tenant: TenantPath,
    pub from_ms: u64,
    pub until_ms: u64,
    /// Asks for a draft instead, which has no number of an invoice.
    #[serde(default)]
    pub draft: bool,
}

/// A request for the invoices of all top-level tenants for a period.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewInvoiceRun {
    pub from_ms: u64,
    pub until_ms: u64,
    /// Asks for drafts instead.
    #[serde(default)]
    pub draft: bool,
}

/// The result of a run. Tenants that have an invoice for the period are skipped, so a run can be
/// repeated.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InvoiceRun {
    /// The new invoices, without lines, details and the bill's lines.
    pub made: Vec<Invoice>,
    pub skipped: Vec<Skipped>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Skipped {
    pub tenant: TenantPath,
    pub why: String,
}

/// The payment of an invoice.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewPayment {
    /// The time of the payment; now if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<u64>,
}

/// A request to cancel an invoice.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewCreditNote {
    /// The reason, which is printed on the credit note.
    pub reason: String,
}

impl Currency {
    /// The number of decimal digits of an amount (ISO 4217, list one).
    pub fn minor_digits(&self) -> u8 {
        match self.to_string().as_str() {
            "BIF" | "CLP" | "DJF" | "GNF" | "ISK" | "JPY" | "KMF" | "KRW" | "PYG" | "RWF" | "UGX" | "UYI"
            | "VND" | "VUV" | "XAF" | "XOF" | "XPF" => 0,
            "BHD" | "IQD" | "JOD" | "KWD" | "LYD" | "OMR" | "TND" => 3,
            "CLF" | "UYW" => 4,
            _ => 2,
        }
    }
}

/// Rounds millionths half up, away from zero, to the smallest unit of a currency with this number
/// of decimal digits.
pub fn rounded(micro: i64, minor_digits: u8) -> i64 {
    let unit = 10_i64.pow(6 - u32::from(minor_digits.min(6)));
    let minor = (micro.unsigned_abs() + unit.unsigned_abs() / 2) / unit.unsigned_abs();
    // With six digits the amount of `i64::MIN` alone does not fit.
    micro.signum() * i64::try_from(minor).unwrap_or(i64::MAX)
}

impl Tax {
    /// Computes the tax on an amount in the smallest unit of its currency, rounded half up, away
    /// from zero.
    pub fn on(&self, net_minor: i64) -> i64 {
        let product = i128::from(net_minor) * i128::from(self.percent_milli);
        let tax = (product.abs() + 50_000) / 100_000 * product.signum();
        i64::try_from(tax).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_rounded_to_the_smallest_unit_of_their_currency() {
        for (micro, digits, expect) in [
            (1_005_000, 2, 101),
            (1_004_999, 2, 100),
            (-1_005_000, 2, -101),
            (499_999, 0, 0),
            (500_000, 0, 1),
            (1_000_500, 3, 1001),
            (0, 2, 0),
            (i64::MAX, 2, 922_337_203_685_478),
        ] {
            assert_eq!(rounded(micro, digits), expect, "{micro} to {digits} digits");
        }
    }

    #[test]
    fn tax_is_rounded_on_the_sum() {
        let tax = |percent_milli| Tax { name: "VAT".into(), percent_milli };
        for (percent_milli, net, expect) in [
            (19_000, 10_000, 1900),
            (19_000, 3, 1),
            (19_000, 2, 0),
            (7_500, 20, 2),
            (19_000, -3, -1),
            (0, 99, 0),
        ] {
            assert_eq!(tax(percent_milli).on(net), expect, "{percent_milli} on {net}");
        }
    }

    #[test]
    fn currencies_have_their_digits() {
        let digits = |code: &str| Currency::try_from(code.to_owned()).unwrap().minor_digits();
        assert_eq!(["EUR", "JPY", "KWD", "CLF"].map(digits), [2, 0, 3, 4]);
    }
}
