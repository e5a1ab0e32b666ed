//! Bills from sums of usage records and prices. Pure; all amounts are integers.

use std::collections::BTreeMap;

use sluice_api::bill::{Bill, Line, Meter, Price};
use sluice_api::tenant::TenantPath;

use crate::store::Sum;

/// From a moment until before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period {
    pub(crate) from_ms: u64,
    pub(crate) until_ms: u64,
}

/// The period cut at every change of a price. A record belongs where it begins.
pub(crate) fn at_one_price(prices: &[Price], period: Period) -> Vec<Period> {
    let inside = |at: &u64| period.from_ms < *at && *at < period.until_ms;
    let mut cuts: Vec<u64> = prices.iter().filter_map(|price| price.from_ms).filter(inside).collect();
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

/// The price of a meter at a moment; what has none costs nothing. `prices` are in the order of their beginning.
fn price_at(prices: &[Price], meter: Meter, at_ms: u64) -> u64 {
    let holds = |price: &&Price| price.meter == meter && price.from_ms.unwrap_or(0) <= at_ms;
    prices.iter().rfind(holds).map_or(0, |price| price.micro)
}

/// One line for each tenant, meter and price; lines of nothing are left out.
pub(crate) fn bill(
    tenant: TenantPath,
    period: Period,
    prices: &[Price],
    parts: &[(Period, Vec<Sum>)],
) -> Bill {
    let mut amounts: BTreeMap<(TenantPath, Meter, u64), u64> = BTreeMap::new();
    let mut records = 0;
    for (part, sums) in parts {
        for sum in sums.iter().filter(|sum| tenant.contains(&sum.tenant)) {
            records += sum.records;
            for (meter, amount) in Meter::ALL.into_iter().zip(sum.amounts).filter(|&(_, amount)| amount > 0) {
                let price = price_at(prices, meter, part.from_ms);
                *amounts.entry((sum.tenant.clone(), meter, price)).or_default() += amount;
            }
        }
    }
    let line = |((tenant, meter, price), amount)| Line::new(tenant, meter, amount, price);
    let lines: Vec<Line> = amounts.into_iter().map(line).collect();
    let total_micro = lines.iter().map(|line| line.cost_micro).sum();
    Bill { tenant, from_ms: period.from_ms, until_ms: period.until_ms, lines, total_micro, records }
}

#[cfg(test)]
mod tests {
    use sluice_api::usage::GPU_HOUR_PPM_MS;

    use super::*;

    fn price(micro: u64, from_ms: u64) -> Price {
        Price { meter: Meter::Reserved, micro, from_ms: Some(from_ms) }
    }

    fn sum(tenant: &str, reserved: u64) -> Sum {
        Sum { tenant: tenant.parse().unwrap(), records: 1, amounts: [reserved, 0, 0] }
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
        let bill = bill("acme".parse().unwrap(), period, &prices, &sums);
        let costs: Vec<u64> = bill.lines.iter().map(|line| line.cost_micro).collect();
        assert_eq!((costs, bill.total_micro, bill.records), (vec![1_000_000, 1_500_000], 2_500_000, 2));
    }

    #[test]
    fn what_has_no_price_is_listed_and_free() {
        let period = Period { from_ms: 0, until_ms: 10 };
        let bill = bill(TenantPath::root(), period, &[], &[(period, vec![sum("acme", GPU_HOUR_PPM_MS)])]);
        assert_eq!((bill.lines.len(), bill.total_micro), (1, 0));
        assert_eq!(bill.lines[0].quantity_micro, 1_000_000);
    }

    #[test]
    fn prices_outside_a_period_do_not_cut_it() {
        let period = Period { from_ms: 100, until_ms: 200 };
        assert_eq!(at_one_price(&[price(1, 0), price(2, 100), price(3, 200)], period), [period]);
    }
}
