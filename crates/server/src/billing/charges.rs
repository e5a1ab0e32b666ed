//! What each lease cost on each node and day: the lines of a bill, separate for a program that
//! accounts for them elsewhere.

use std::collections::BTreeMap;

use sluice_api::bill::{Charge, Goods, Line, Meter, PricePer, Rate};
use sluice_api::lease::LeaseId;
use sluice_api::node::NodeId;
use sluice_api::tenant::TenantPath;

use super::{Ledger, Period, Rates};
use crate::store::{Store, StoreError};

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;

/// Charges of one day, of as many leases as there is room for, and where the next ones begin.
pub(crate) struct Day {
    pub(crate) charges: Vec<Charge>,
    pub(crate) next: Option<Cursor>,
}

/// In the charges of a period: on this day or later, and on this day after this lease, in the order
/// of their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) from_ms: u64,
    pub(crate) after: Option<LeaseId>,
}

/// The charges of the first day of a period on which anything was used, from a place on, as far as
/// it is in the period: about `most`. `name` is that of a node.
pub(crate) async fn day_of(
    store: &Store,
    tenant: &TenantPath,
    period: Period,
    place: Cursor,
    most: usize,
    name: impl Fn(NodeId) -> String,
) -> Result<Day, StoreError> {
    let from_ms = place.from_ms.clamp(period.from_ms, period.until_ms);
    let period = Period { from_ms, ..period };
    let Some(first_ms) = store.first_usage_ms(period).await? else {
        return Ok(Day { charges: Vec::new(), next: None });
    };
    let begin_ms = first_ms - first_ms % DAY_MS;
    let end_ms = (begin_ms + DAY_MS).min(period.until_ms);
    let day = Period { from_ms: begin_ms.max(period.from_ms), until_ms: end_ms };
    let ledger = Ledger::new(store).await?;
    let after = place.after.filter(|_| day.from_ms == place.from_ms).unwrap_or(0);
    let (charges, last) = ledger.charges(tenant, day, after, most, name).await?;
    if last.is_some() {
        return Ok(Day { charges, next: Some(Cursor { from_ms: day.from_ms, after: last }) });
    }
    let rest = Period { from_ms: end_ms, until_ms: period.until_ms };
    let next = store.first_usage_ms(rest).await?.map(|_| Cursor { from_ms: end_ms, after: None });
    Ok(Day { charges, next })
}

type Key = (LeaseId, NodeId, TenantPath, Meter, Goods, Rate);

impl Ledger<'_> {
    /// Those of all leases after one, until there are `most`: then the last lease that is among
    /// them, whose are there all.
    async fn charges(
        &self,
        tenant: &TenantPath,
        day: Period,
        after: LeaseId,
        most: usize,
        name: impl Fn(NodeId) -> String,
    ) -> Result<(Vec<Charge>, Option<LeaseId>), StoreError> {
        let rates = Rates::new(&self.terms.prices, &self.terms.declared, day);
        let mut amounts: BTreeMap<Key, u64> = BTreeMap::new();
        for part in rates.parts(day) {
            // An hour at a time, so that no question takes the database long.
            let mut from_ms = part.from_ms;
            while from_ms < part.until_ms {
                let until_ms = (from_ms - from_ms % HOUR_MS + HOUR_MS).min(part.until_ms);
                let hour = Period { from_ms, until_ms };
                for (lease, node, sum) in self.store.usage_by_lease(tenant, hour, after).await? {
                    for (meter, amount) in Meter::ALL.into_iter().zip(sum.amounts) {
                        let rate = rates.at(meter, &sum.goods, part.from_ms);
                        if amount == 0 || rate.micro == 0 {
                            continue;
                        }
                        let gflops = if rate.per == PricePer::Unit { sum.goods.gflops } else { 0 };
                        let goods = Goods { gflops, ..sum.goods.clone() };
                        let key = (lease, node, sum.tenant.clone(), meter, goods, rate);
                        let total = amounts.entry(key).or_default();
                        *total = total.saturating_add(amount);
                    }
                }
                from_ms = until_ms;
            }
        }
        let lease_of = |(key, _): &(&Key, &u64)| key.0;
        let last = amounts.iter().nth(most.saturating_sub(1)).as_ref().map(lease_of);
        let is_cut = last.is_some_and(|last| amounts.last_key_value().as_ref().map(lease_of) > Some(last));
        let last = last.filter(|_| is_cut);
        amounts.retain(|key, _| last.is_none_or(|last| key.0 <= last));
        let charge = |((lease, node, tenant, meter, goods, rate), amount)| Charge {
            from_ms: day.from_ms,
            until_ms: day.until_ms,
            lease,
            node: name(node),
            line: Line::new(tenant, meter, goods, amount, rate),
        };
        Ok((amounts.into_iter().map(charge).collect(), last))
    }
}

#[cfg(test)]
mod tests {
    use sluice_api::bill::Price;
    use sluice_api::node::Attempt;
    use sluice_api::usage::UsageRecord;

    use super::*;
    use crate::store::{Database, Write};

    #[tokio::test]
    async fn a_day_of_many_charges_has_several_pages_of_whole_leases() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&Database::Sqlite(folder.path().join("database"))).await.unwrap();
        let fence = store.lead("a test", "", true).await.unwrap().unwrap();
        let price = |meter: &str| -> Price {
            serde_json::from_value(serde_json::json!({ "meter": meter, "micro": 1_000_000, "from_ms": 0 }))
                .unwrap()
        };
        let mut writes: Vec<Write> = ["reserved", "transfer"].map(|meter| Write::Price(price(meter))).into();
        // On two days, seven leases with two charges each; those of lease 4 are on two nodes.
        let days = [0, DAY_MS].into_iter().flat_map(|day| (1..8).map(move |lease| (day + 1000, lease, 1)));
        for (from_ms, lease, node) in days.chain([(DAY_MS + 1000, 4, 2)]) {
            let attempt = Attempt { lease, attempt: 1, task: 0 };
            let sequence = 1 + (from_ms / DAY_MS) as u32;
            let record: UsageRecord = serde_json::from_value(serde_json::json!({
                "id": UsageRecord::id_of(node, attempt, sequence), "node": node, "lease": lease, "attempt": 1,
                "sequence": sequence, "tenant": "acme", "from_ms": from_ms, "until_ms": from_ms + 1000, "share_ppm": 250_000,
                "gpus": 1, "memory_mib": 0, "used_ppm_ms": 0, "kernels": 0, "bytes_in": 1, "bytes_out": 1, "memory_peak": 0,
                "last": false,
            }))
            .unwrap();
            writes.push(Write::Usage { record, received_at_ms: 0, cards: Vec::new() });
        }
        store.commit(fence, writes).await.unwrap();
        let period = Period { from_ms: 0, until_ms: 5 * DAY_MS };
        let acme: TenantPath = "acme".parse().unwrap();
        let all = async |most| {
            let (mut pages, mut place) = (Vec::new(), Some(Cursor { from_ms: 0, after: None }));
            while let Some(at) = place {
                let day = day_of(&store, &acme, period, at, most, |node| node.to_string()).await.unwrap();
                place = day.next;
                pages.push(day.charges);
            }
            pages
        };
        let whole = all(100).await;
        assert_eq!(whole.iter().map(Vec::len).collect::<Vec<_>>(), [14, 16]);
        for most in 1..20 {
            let pages = all(most).await;
            assert_eq!(pages.concat(), whole.concat(), "{most}");
            assert!(pages.iter().all(|page| !page.is_empty() && page.len() < most + 4), "{most}");
        }
        assert_eq!(all(6).await.len(), 3 + 3, "leases 1 to 3, 4 to 6 and 7; then 1 to 3, 4 and 5, 6 and 7");
    }
}
