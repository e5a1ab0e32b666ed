use sluice_api::bill::Price;
use sluice_api::usage::GPU_HOUR_PPM_MS;

use super::*;

const HOUR_MS: u64 = 3_600_000;
const PROMISE: Promise = Promise { wait_us: 20_000, attained_ppm: 990_000, credit_ppm: 100_000 };

fn price(micro: u64, from_ms: u64) -> Price {
    let price = serde_json::json!({ "meter": "reserved", "micro": micro, "from_ms": from_ms });
    serde_json::from_value(price).unwrap()
}

/// An hour of a GPU under a promise.
fn sum(lease: LeaseId, promise: Promise, day: u64, (waits, within): (u64, u64)) -> PromisedSum {
    PromisedSum {
        tenant: "acme".parse().unwrap(),
        lease,
        goods: Goods { tier: Tier::Premium, pool: "inference".into(), ..Goods::default() },
        promise,
        day_ms: day * DAY_MS,
        reserved_ppm_ms: GPU_HOUR_PPM_MS,
        waits,
        within,
    }
}

/// The credits of a bill of three days, of these sums in its parts.
fn credited_bill(tenant: &str, prices: &[Price], sums: &[Vec<PromisedSum>]) -> Bill {
    let period = Period { from_ms: HOUR_MS, until_ms: 3 * DAY_MS };
    let rates = Rates::new(prices, &[], period);
    let parts = rates.parts(period);
    assert_eq!(parts.len(), sums.len());
    let promised: Vec<_> = parts.into_iter().zip(sums.iter().cloned()).collect();
    let bill = serde_json::json!({
        "tenant": tenant, "from_ms": period.from_ms, "until_ms": period.until_ms, "lines": [], "corrections": [],
        "total_micro": 10_000_000, "records": 0,
    });
    credited(serde_json::from_value(bill).unwrap(), &rates, &promised)
}

#[test]
fn only_leases_and_days_with_a_missed_promise_are_credited() {
    let sums = vec![
        sum(1, PROMISE, 0, (1000, 990)),
        sum(2, PROMISE, 0, (1000, 989)),
        sum(3, PROMISE, 0, (0, 0)),
        sum(2, PROMISE, 1, (1000, 1000)),
        sum(2, PROMISE, 2, (1, 0)),
    ];
    let bill = credited_bill("acme", &[price(2_000_005, 0)], &[sums]);
    let credits: Vec<_> = bill
        .credits
        .iter()
        .map(|of| (of.lease, of.from_ms, of.until_ms, of.reserved_micro, of.micro))
        .collect();
    let expect = [(2, HOUR_MS, DAY_MS, 2_000_005, 200_001), (2, 2 * DAY_MS, 3 * DAY_MS, 2_000_005, 200_001)];
    assert_eq!(credits, expect, "the first day began before the bill");
    assert_eq!(bill.total_micro, 10_000_000 - 2 * 200_001);
}

#[test]
fn promises_of_one_day_are_judged_one_by_one() {
    let later = Promise { wait_us: 50_000, credit_ppm: 200_000, ..PROMISE };
    let sums = vec![sum(1, PROMISE, 0, (1000, 900)), sum(1, later, 0, (1000, 999))];
    let missed_first = credited_bill("acme", &[price(1_000_000, 0)], &[sums]);
    let of = |bill: &Bill| -> Vec<(u64, u64)> {
        bill.credits.iter().map(|of| (of.promised.promise.wait_us, of.micro)).collect()
    };
    assert_eq!(of(&missed_first), [(20_000, 100_000)]);
    let sums = vec![sum(1, PROMISE, 0, (1000, 900)), sum(1, later, 0, (1000, 900))];
    assert_eq!(
        of(&credited_bill("acme", &[price(1_000_000, 0)], &[sums])),
        [(20_000, 100_000), (50_000, 200_000)]
    );
}

#[test]
fn a_day_is_judged_as_a_whole_and_each_of_its_hours_has_its_price() {
    // The price changes at noon. Of the day's waits one in a hundred was too long; all of these
    // were in the morning.
    let prices = [price(1_000_000, 0), price(3_000_000, DAY_MS / 2)];
    let kept = [vec![sum(1, PROMISE, 0, (100, 90))], vec![sum(1, PROMISE, 0, (900, 900))]];
    assert_eq!(credited_bill("acme", &prices, &kept).credits, []);
    let missed = [vec![sum(1, PROMISE, 0, (100, 89))], vec![sum(1, PROMISE, 0, (900, 900))]];
    let bill = credited_bill("acme", &prices, &missed);
    let [credit] = &bill.credits[..] else { panic!("{:?}", bill.credits) };
    assert_eq!((credit.promised.waits, credit.promised.within), (1000, 989));
    assert_eq!((credit.reserved_micro, credit.micro), (4_000_000, 400_000));
}

#[test]
fn what_costs_nothing_or_is_of_others_is_not_credited() {
    let missed = vec![sum(1, PROMISE, 0, (10, 0))];
    assert_eq!(credited_bill("acme", &[], std::slice::from_ref(&missed)).credits, []);
    let prices = [price(1_000_000, 0)];
    assert_eq!(credited_bill("globex", &prices, std::slice::from_ref(&missed)).credits, []);
    for tenant in ["/", "acme"] {
        assert_eq!(
            credited_bill(tenant, &prices, std::slice::from_ref(&missed)).credits.len(),
            1,
            "{tenant}"
        );
    }
    let measured_only = sum(1, Promise { credit_ppm: 0, ..PROMISE }, 0, (10, 0));
    assert_eq!(credited_bill("acme", &prices, &[vec![measured_only]]).credits, []);
}
