//! What something costs at the prices of one moment.

use sluice_api::bill::{Goods, Line, Meter, Price};
use sluice_api::tenant::TenantPath;

use super::{Period, Rates};
use crate::store::{Declared, Store, StoreError};

/// The prices of a moment, applied as bills apply them.
pub(crate) struct Quote {
    prices: Vec<Price>,
    declared: Vec<Declared>,
    at_ms: u64,
}

impl Quote {
    pub(crate) async fn at(store: &Store, at_ms: u64) -> Result<Quote, StoreError> {
        Ok(Quote { prices: store.prices().await?, declared: store.pool_declarations().await?, at_ms })
    }

    /// Computes the cost of an amount of a meter, in millionths of the currency's unit. [`Line`]
    /// states the amounts' units.
    pub(crate) fn cost_micro(&self, tenant: &TenantPath, meter: Meter, goods: &Goods, amount: u64) -> u64 {
        let period = Period { from_ms: self.at_ms, until_ms: self.at_ms + 1 };
        let rate = Rates::new(&self.prices, &self.declared, period).at(meter, goods, self.at_ms);
        Line::new(tenant.clone(), meter, goods.clone(), amount, rate).cost_micro
    }
}
