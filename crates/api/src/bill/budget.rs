//! Budgets, and when their periods begin and end.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::Currency;
use crate::written::WrittenBudget;

/// What a tenant and all below it may spend in a period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenBudget")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Budget {
    /// Millionths of the currency's unit.
    pub micro: u64,
    pub per: BudgetPeriod,
    /// What happens once it is spent.
    pub then: BudgetEnd,
}

/// Periods begin at midnight, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum BudgetPeriod {
    Day,
    /// Of the calendar.
    Month,
    /// All time.
    Ever,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum BudgetEnd {
    /// New leases wait until the next period; those that run continue.
    #[default]
    Hold,
    /// Those that run are preempted as well.
    Preempt,
    /// It is said, and nothing more.
    Warn,
}

/// A budget and what of it is spent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BudgetStatus {
    #[serde(flatten)]
    pub budget: Budget,
    /// Of the period that runs.
    pub spent_micro: u64,
    pub spent_percent: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<Currency>,
}

/// How far the tightest of the budgets is spent that a tenant's leases count towards: its own and
/// those above it. Whose it is and how much is not said: who spends may not see those above.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TightestBudget {
    pub spent_percent: u64,
    /// What happens once it is spent.
    pub then: BudgetEnd,
    /// When its next period begins; never without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}

impl BudgetPeriod {
    /// When the period began in which a moment is.
    pub fn began_ms(self, at_ms: u64) -> u64 {
        let moment = i64::try_from(at_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        let date = moment.unwrap_or(Timestamp::MAX).to_zoned(TimeZone::UTC).date();
        let begun = match self {
            BudgetPeriod::Ever => return 0,
            BudgetPeriod::Day => date,
            BudgetPeriod::Month => date.first_of_month(),
        };
        let midnight =
            begun.to_zoned(TimeZone::UTC).map_or(0, |midnight| midnight.timestamp().as_millisecond());
        u64::try_from(midnight).unwrap_or(0)
    }

    /// When the next one begins; none if this one never ends.
    pub fn ends_ms(self, at_ms: u64) -> Option<u64> {
        const DAY_MS: u64 = 24 * 3_600_000;
        let begun_ms = self.began_ms(at_ms);
        match self {
            BudgetPeriod::Ever => None,
            BudgetPeriod::Day => Some(begun_ms + DAY_MS),
            // It begins on a first, and the next one is 28 to 31 days later.
            BudgetPeriod::Month => Some(self.began_ms(begun_ms + 31 * DAY_MS)),
        }
    }
}
