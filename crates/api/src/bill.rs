//! Prices and bills: integers all the way, one rounding per line.

mod budget;
mod credit;
mod earnings;
mod line;
mod price;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::invoice::Invoicing;

pub use budget::{Budget, BudgetEnd, BudgetPeriod, BudgetStatus, TightestBudget};
pub use credit::Credit;
pub use earnings::CardEarnings;
pub use line::{BeforeAndAfter, Bill, Charge, Correction, CostChange, DaySpent, Line, NewCorrection};
pub use price::{Goods, Meter, Price, PricePer, Rate};

/// In what all amounts of an installation are, and who bills them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seller {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<Currency>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invoicing: Option<Invoicing>,
}

/// A currency by its code of ISO 4217, such as `EUR`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = String, pattern = "^[A-Z]{3}$", examples("EUR")))]
pub struct Currency(String);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no currency as ISO 4217 names it, such as EUR")]
pub struct CurrencyError(String);

impl TryFrom<String> for Currency {
    type Error = CurrencyError;

    fn try_from(text: String) -> Result<Currency, CurrencyError> {
        let is_code = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_uppercase());
        if is_code { Ok(Currency(text)) } else { Err(CurrencyError(text.chars().take(16).collect())) }
    }
}

impl From<Currency> for String {
    fn from(currency: Currency) -> String {
        currency.0
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests;
