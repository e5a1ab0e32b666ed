//! Amounts and times as people write them in declarations, beside the integers that the API answers
//! with: `limit: 0.5` for `limit_milli: 500`, `price: 2.00` for `micro: 2000000`,
//! `from: 2026-12-01` for `from_ms: 1796083200000`.
//!
//! All of it is exact: digits are never made floating point. YAML's numbers arrive here as their
//! text; in JSON that is not read as YAML they have to be texts.

mod declared;
mod read;
mod show;
mod tier;

pub use declared::{WrittenBudget, WrittenPoolPrice, WrittenPrice, WrittenQuota, WrittenTax, WrittenWindow};
pub(crate) use read::time_ms;
pub use read::{TextError, decimal, moment_ms};
pub use show::{as_written, moment, money, percent, thousandths, wait_text};
#[cfg(feature = "openapi")]
pub(crate) use tier::WrittenPoolTier;
pub use tier::WrittenTier;

/// What is wrong about something written, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrittenError {
    #[error("{0} and {1} are both there, and say the same thing: leave one out")]
    Twice(&'static str, &'static str),
    #[error("neither {0} nor {1} is there")]
    Missing(&'static str, &'static str),
    #[error("{field}: {text:?} is no {what}")]
    Text { field: &'static str, text: String, what: String },
    #[error("{field}: {what}")]
    Range { field: &'static str, what: &'static str },
    #[error("{field} is not there, and {with} is: a promise is of a wait")]
    Alone { field: &'static str, with: &'static str },
    #[error("{field}: {text:?} is more than any installation has")]
    TooMuch { field: &'static str, text: String },
}

#[cfg(test)]
mod tests;
