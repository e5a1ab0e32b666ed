//! Bills from sums of usage records and prices. Pure; all amounts are integers.

use std::collections::BTreeMap;

use sluice_api::bill::{Bill, Correction, Goods, Line, Meter, Price};
use sluice_api::tenant::TenantPath;

use crate::store::{Store, StoreError, Sum};

/// From a moment until before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period {
    pub(crate) from_ms: u64,
    pub(crate) until_ms: u64,
}

/// The period cut at every change of a price. A record belongs where it begins.
fn at_one_price(prices: &[Price], period: Period) -> Vec<Period> {
    let inside = |at: &u64| period.from_ms < *at && *at < period.until_ms;
    let ends = prices.iter().flat_map(|price| [price.from_ms, price.until_ms]).flatten();
    let mut cuts: Vec<u64> = ends.filter(inside).collect();
    cuts.push(period.until_ms);
    cuts.sort_unstable();
    cuts.dedup();
    let mut from_ms = period.from_ms;
    let mut parts = Vec::new();
    for until_ms in cuts {
        parts.push(Period { from_ms, until_ms });
        from_ms = until_ms;
    }
    parts
}

/// The bill of a tenant and all below it from the ledger as it is now.
pub(crate) async fn bill_of(store: &Store, tenant: TenantPath, period: Period) -> Result<Bill, StoreError> {
    let prices = store.prices().await?;
    let mut parts = Vec::new();
    for part in at_one_price(&prices, period) {
        parts.push((part, store.usage_sums(part.from_ms, part.until_ms).await?));
    }
    Ok(bill(tenant, period, &prices, &parts, &store.corrections().await?))
}

/// One line for each tenant, meter, sort of goods and price; lines of nothing are left out.
fn bill(
    tenant: TenantPath,
    period: Period,
    prices: &[Price],
    parts: &[(Period, Vec<Sum>)],
    corrections: &[Correction],
) -> Bill {
    let mut amounts: BTreeMap<(TenantPath, Meter, Goods, u64), u64> = BTreeMap::new();
    let mut records = 0;
    for (part, sums) in parts {
        for sum in sums.iter().filter(|sum| tenant.contains(&sum.tenant)) {
            records += sum.records;
            for (meter, amount) in Meter::ALL.into_iter().zip(sum.amounts).filter(|&(_, amount)| amount > 0) {
                let price = Price::at(prices, meter, &sum.goods, part.from_ms);
                let key = (sum.tenant.clone(), meter, sum.goods.clone(), price);
                *amounts.entry(key).or_default() += amount;
            }
        }
    }
    let line = |((tenant, meter, goods, price), amount)| Line::new(tenant, meter, goods, amount, price);
    let lines: Vec<Line> = amounts.into_iter().map(line).collect();
    let on_it = |correction: &&Correction| {
        tenant.contains(&correction.tenant) && (period.from_ms..period.until_ms).contains(&correction.at_ms)
    };
    let corrections: Vec<Correction> = corrections.iter().filter(on_it).cloned().collect();
    let used: i128 = lines.iter().map(|line| i128::from(line.cost_micro)).sum();
    let corrected: i128 = corrections.iter().map(|correction| i128::from(correction.micro)).sum();
    let total_micro = i64::try_from(used + corrected).unwrap_or(i64::MAX);
    Bill {
        tenant,
        from_ms: period.from_ms,
        until_ms: period.until_ms,
        lines,
        corrections,
        total_micro,
        records,
    }
}

#[cfg(test)]
mod tests {
    use sluice_api::usage::GPU_HOUR_PPM_MS;

    use super::*;

    fn price(micro: u64, from_ms: u64) -> Price {
        let (tier, pool, model, until_ms) = (None, None, None, None);
        Price { meter: Meter::Reserved, tier, pool, model, micro, from_ms: Some(from_ms), until_ms }
    }

    fn sum(tenant: &str, reserved: u64) -> Sum {
        let goods = Goods::default();
        Sum { tenant: tenant.parse().unwrap(), goods, records: 1, amounts: [reserved, 0, 0] }
    }

    #[test]
    fn use_is_priced_at_its_time() {
        let prices = [price(1_000_000, 0), price(3_000_000, 500)];
        let period = Period { from_ms: 100, until_ms: 1000 };
        let parts = at_one_price(&prices, period);
        assert_eq!(parts, [Period { from_ms: 100, until_ms: 500 }, Period { from_ms: 500, until_ms: 1000 }]);
        let sums = [
            (parts[0], vec![sum("acme/a", GPU_HOUR_PPM_MS), sum("other", GPU_HOUR_PPM_MS)]),
            (parts[1], vec![sum("acme/a", GPU_HOUR_PPM_MS / 2)]),
        ];
        let bill = bill("acme".parse().unwrap(), period, &prices, &sums, &[]);
        let costs: Vec<u64> = bill.lines.iter().map(|line| line.cost_micro).collect();
        assert_eq!((costs, bill.total_micro, bill.records), (vec![1_000_000, 1_500_000], 2_500_000, 2));
    }

    #[test]
    fn what_has_no_price_is_listed_and_free() {
        let period = Period { from_ms: 0, until_ms: 10 };
        let bill =
            bill(TenantPath::root(), period, &[], &[(period, vec![sum("acme", GPU_HOUR_PPM_MS)])], &[]);
        assert_eq!((bill.lines.len(), bill.total_micro), (1, 0));
        assert_eq!(bill.lines[0].quantity_micro, 1_000_000);
    }

    #[test]
    fn corrections_of_the_period_stand_beside_what_was_used() {
        let period = Period { from_ms: 0, until_ms: 10 };
        let correction = |id, tenant: &str, micro, at_ms| Correction {
            id,
            tenant: tenant.parse().unwrap(),
            micro,
            at_ms,
            reason: "a fault of ours".into(),
            made_at_ms: 50,
            made_by: "t (test)".into(),
        };
        let all =
            [correction(1, "acme/a", -700_000, 5), correction(2, "acme", 1, 10), correction(3, "b", 1, 5)];
        let sums = [(period, vec![sum("acme/a", GPU_HOUR_PPM_MS)])];
        let bill = bill("acme".parse().unwrap(), period, &[price(500_000, 0)], &sums, &all);
        assert_eq!(
            (bill.corrections.len(), bill.total_micro, bill.lines[0].cost_micro),
            (1, -200_000, 500_000)
        );
    }

    #[test]
    fn prices_outside_a_period_do_not_cut_it() {
        let period = Period { from_ms: 100, until_ms: 200 };
        assert_eq!(at_one_price(&[price(1, 0), price(2, 100), price(3, 200)], period), [period]);
    }
}
