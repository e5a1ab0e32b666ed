//! Bills, and the lines that add up to them.

use serde::{Deserialize, Serialize};

use super::{Credit, Currency, Goods, Meter, PricePer, Rate};
use crate::lease::LeaseId;
use crate::tenant::TenantPath;

/// One line of a bill: all of a tenant's use of one meter and one sort of goods at one price.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Line {
    pub tenant: TenantPath,
    pub meter: Meter,
    #[serde(flatten)]
    pub goods: Goods,
    /// In the meter's smallest unit, exact; see [`Meter::unit`].
    pub amount: u64,
    #[serde(default, skip_serializing_if = "PricePer::is_usual")]
    pub per: PricePer,
    /// The amount in millionths of what the price is per, rounded half up, for people to read.
    pub quantity_micro: u64,
    pub price_micro: u64,
    /// Amount x price, rounded half up; in unit-hours amount x GFLOPS x price.
    pub cost_micro: u64,
}

impl Line {
    pub fn new(tenant: TenantPath, meter: Meter, goods: Goods, amount: u64, rate: Rate) -> Line {
        let (times, of) = match rate.per {
            PricePer::Gpu => (1, meter.unit()),
            PricePer::Unit => (goods.gflops, meter.unit() * crate::UNIT_GFLOPS),
        };
        let scaled = |factor: u64| scaled(amount, u128::from(factor) * u128::from(times), of);
        let (quantity_micro, cost_micro) = (scaled(1_000_000), scaled(rate.micro));
        Line {
            tenant,
            meter,
            goods,
            amount,
            per: rate.per,
            quantity_micro,
            price_micro: rate.micro,
            cost_micro,
        }
    }

    /// What its price is per.
    pub fn unit_name(&self) -> &'static str {
        self.meter.unit_name(self.per)
    }
}

/// `amount` x `factor` / `unit`, rounded half up; what no 64-bit number holds becomes the largest.
fn scaled(amount: u64, factor: u128, unit: u64) -> u64 {
    let unit = u128::from(unit);
    let product = u128::from(amount).saturating_mul(factor).saturating_add(unit / 2);
    u64::try_from(product / unit).unwrap_or(u64::MAX)
}

/// What a tenant and all below it used between two moments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Bill {
    pub tenant: TenantPath,
    /// Of all its amounts, where one is declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<Currency>,
    /// Who bills, where that is declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
    pub from_ms: u64,
    pub until_ms: u64,
    pub lines: Vec<Line>,
    pub corrections: Vec<Correction>,
    /// For promises that were not kept, by tenant, lease and day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credits: Vec<Credit>,
    /// The sum of the lines' costs and the corrections, less the credits.
    pub total_micro: i64,
    /// How many usage records it was made from.
    pub records: u64,
}

/// What a tenant and all below it spent in one day of UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DaySpent {
    /// The beginning of the day, or of the period that was asked for.
    pub from_ms: u64,
    /// The end of the day, or of the period.
    pub until_ms: u64,
    /// The total of the day's bill, with its corrections.
    pub total_micro: i64,
}

/// What one lease used on one node in one day of UTC, at one price. Charges of a period add up to
/// the lines of its bill that have a price, in amounts; costs are rounded for each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Charge {
    /// The day, as far as it was asked for.
    pub from_ms: u64,
    pub until_ms: u64,
    pub lease: LeaseId,
    /// The name of the node.
    pub node: String,
    #[serde(flatten)]
    pub line: Line,
}

/// An amount added to a bill, or taken off it, by hand. Nothing that was counted is ever changed: a
/// correction stands beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Correction {
    /// Counted by the server.
    pub id: u64,
    pub tenant: TenantPath,
    /// Millionths of the currency's unit; negative for a credit.
    pub micro: i64,
    /// On the bill of the period that this moment is in.
    pub at_ms: u64,
    pub reason: String,
    pub made_at_ms: u64,
    /// As the audit log names it.
    pub made_by: String,
}

/// A correction to be made.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewCorrection {
    pub tenant: TenantPath,
    pub micro: i64,
    /// Now unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<u64>,
    pub reason: String,
}

/// What new prices change in money for a tenant and all below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CostChange {
    pub tenant: TenantPath,
    /// What all that has been used until now costs, in millionths of the currency's unit: it
    /// changes only where a price begins in the past.
    pub until_now: BeforeAndAfter,
    /// What the use of the last 30 days costs, had the new prices been there all that time.
    pub last_30_days: BeforeAndAfter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BeforeAndAfter {
    pub before_micro: i64,
    pub after_micro: i64,
}
