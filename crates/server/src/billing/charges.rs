//! What each lease cost on each node and day: the lines of a bill, told apart for who accounts for them elsewhere.

use std::collections::BTreeMap;

use sluice_api::bill::{Charge, Goods, Line, Meter, PricePer, Rate};
use sluice_api::lease::LeaseId;
use sluice_api::node::NodeId;
use sluice_api::tenant::TenantPath;

use super::{Ledger, Period, Rates};
use crate::store::{Store, StoreError};

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;

/// The charges of one day, and where the next one begins on which anything was used.
pub(crate) struct Day {
    pub(crate) charges: Vec<Charge>,
    pub(crate) next_ms: Option<u64>,
}

/// The first day of a period on which anything was used, as far as it is in the period. `name` is that of a node.
pub(crate) async fn day_of(
    store: &Store,
    tenant: &TenantPath,
    period: Period,
    name: impl Fn(NodeId) -> String,
) -> Result<Day, StoreError> {
    let Some(first_ms) = store.first_usage_ms(period).await? else {
        return Ok(Day { charges: Vec::new(), next_ms: None });
    };
    let begin_ms = first_ms - first_ms % DAY_MS;
    let end_ms = (begin_ms + DAY_MS).min(period.until_ms);
    let day = Period { from_ms: begin_ms.max(period.from_ms), until_ms: end_ms };
    let ledger = Ledger::new(store).await?;
    let charges = ledger.charges(tenant, day, name).await?;
    let rest = Period { from_ms: end_ms, until_ms: period.until_ms };
    Ok(Day { charges, next_ms: store.first_usage_ms(rest).await?.map(|_| end_ms) })
}

type Key = (TenantPath, LeaseId, NodeId, Meter, Goods, Rate);

impl Ledger<'_> {
    async fn charges(
        &self,
        tenant: &TenantPath,
        day: Period,
        name: impl Fn(NodeId) -> String,
    ) -> Result<Vec<Charge>, StoreError> {
        let rates = Rates::new(&self.prices, &self.declared, day);
        let mut amounts: BTreeMap<Key, u64> = BTreeMap::new();
        for part in rates.parts(day) {
            // An hour at a time, so that no question takes the database long.
            let mut from_ms = part.from_ms;
            while from_ms < part.until_ms {
                let until_ms = (from_ms - from_ms % HOUR_MS + HOUR_MS).min(part.until_ms);
                for (lease, node, sum) in
                    self.store.usage_by_lease(tenant, Period { from_ms, until_ms }).await?
                {
                    for (meter, amount) in Meter::ALL.into_iter().zip(sum.amounts) {
                        let rate = rates.at(meter, &sum.goods, part.from_ms);
                        if amount == 0 || rate.micro == 0 {
                            continue;
                        }
                        let gflops = if rate.per == PricePer::Unit { sum.goods.gflops } else { 0 };
                        let goods = Goods { gflops, ..sum.goods.clone() };
                        *amounts.entry((sum.tenant.clone(), lease, node, meter, goods, rate)).or_default() +=
                            amount;
                    }
                }
                from_ms = until_ms;
            }
        }
        let charge = |((tenant, lease, node, meter, goods, rate), amount)| Charge {
            from_ms: day.from_ms,
            until_ms: day.until_ms,
            lease,
            node: name(node),
            line: Line::new(tenant, meter, goods, amount, rate),
        };
        Ok(amounts.into_iter().map(charge).collect())
    }
}
