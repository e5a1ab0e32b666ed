//! Amounts, periods and prices.

use proptest::prelude::*;

use super::*;
use crate::pool::Tier;
use crate::usage::GPU_HOUR_PPM_MS;
use crate::usage::UsageRecord;

const HOUR_MS: u64 = 3_600_000;

fn record(share_ppm: u32, from_ms: u64, until_ms: u64) -> UsageRecord {
    UsageRecord {
        id: String::new(),
        node: 1,
        lease: 1,
        attempt: 1,
        task: 0,
        sequence: 1,
        tenant: "acme".parse().unwrap(),
        tier: Tier::Standard,
        pool: String::new(),
        model: String::new(),
        gflops: 0,
        from_ms,
        until_ms,
        share_ppm,
        suspended: false,
        gpus: 1,
        memory_mib: 0,
        used_ppm_ms: 0,
        kernels: 0,
        bytes_in: 0,
        bytes_out: 0,
        memory_peak: 0,
        promised: None,
        last: false,
    }
}

fn line(records: &[UsageRecord], price_micro: u64) -> Line {
    let amount = records.iter().map(UsageRecord::reserved_ppm_ms).sum();
    Line::new("acme".parse().unwrap(), Meter::Reserved, Goods::default(), amount, per_gpu(price_micro))
}

fn per_gpu(micro: u64) -> Rate {
    Rate { micro, per: PricePer::Gpu }
}

proptest! {
    /// However each of four quarters' hour is cut into records, they are one GPU-hour to the
    /// unit and cost its price.
    #[test]
    fn four_quarters_for_an_hour_are_one_gpu_hour(
        cuts in proptest::collection::vec(proptest::collection::btree_set(1..HOUR_MS, 0..20), 4),
        begins in proptest::collection::vec(0..1_u64 << 42, 4),
        price_micro in 0..1_000_000_000_000_u64,
    ) {
        let mut records = Vec::new();
        for (cuts, begin) in cuts.iter().zip(begins) {
            let mut from = 0;
            for &until in cuts.iter().chain([&HOUR_MS]) {
                records.push(record(250_000, begin + from, begin + until));
                from = until;
            }
        }
        let line = line(&records, price_micro);
        prop_assert_eq!(line.amount, GPU_HOUR_PPM_MS);
        prop_assert_eq!(line.quantity_micro, 1_000_000);
        prop_assert_eq!(line.cost_micro, price_micro);
    }

    /// Shares that add up to whole GPUs cost what the whole GPUs cost, for any time.
    #[test]
    fn shares_of_a_gpu_cost_what_the_gpu_costs(
        first in 1..crate::GPU_PPM, held_ms in 1..HOUR_MS * 24, price_micro in 0..1_000_000_000_u64,
    ) {
        let parts = [record(first, 0, held_ms), record(crate::GPU_PPM - first, 0, held_ms)];
        prop_assert_eq!(line(&parts, price_micro), line(&[record(crate::GPU_PPM, 0, held_ms)], price_micro));
    }
}

#[test]
fn transfer_is_priced_per_gib() {
    let line = |amount| {
        Line::new("a".parse().unwrap(), Meter::Transfer, Goods::default(), amount, per_gpu(1_000_000))
    };
    assert_eq!((line(3 << 29).quantity_micro, line(3 << 29).cost_micro), (1_500_000, 1_500_000));
    assert_eq!(
        (line(537).cost_micro, line(536).cost_micro),
        (1, 0),
        "half of a millionth of it is 536.9 bytes"
    );
    assert_eq!(line(1).unit_name(), "GiB");
    let amount = UsageRecord { bytes_in: 3, bytes_out: 4, ..record(0, 0, 0) }.transfer_bytes();
    assert_eq!(amount, 7);
}

#[test]
fn costs_round_half_up_and_do_not_overflow() {
    let cost = |amount, price| {
        Line::new("a".parse().unwrap(), Meter::Reserved, Goods::default(), amount, per_gpu(price)).cost_micro
    };
    assert_eq!(cost(GPU_HOUR_PPM_MS / 2, 1), 1);
    assert_eq!(cost(GPU_HOUR_PPM_MS / 2 - 1, 1), 0);
    assert_eq!(cost(u64::MAX, u64::MAX), u64::MAX);
}

#[test]
fn the_price_that_names_the_most_counts_while_it_holds() {
    let price = |json| serde_json::from_value::<Price>(json).unwrap();
    let prices = [
        price(serde_json::json!({ "meter": "reserved", "micro": 10 })),
        price(serde_json::json!({ "meter": "reserved", "micro": 20, "from_ms": 100 })),
        price(serde_json::json!({ "meter": "reserved", "micro": 5, "tier": "basic" })),
        price(serde_json::json!({ "meter": "reserved", "micro": 3, "tier": "basic", "pool": "old",
                                  "from_ms": 50, "until_ms": 60 })),
        price(serde_json::json!({ "meter": "used", "micro": 1 })),
    ];
    let check = |tier, pool: &str, at_ms, expect| {
        let goods = Goods { tier, pool: pool.into(), model: "H100".into(), gflops: 0 };
        let rate = Price::at(&prices, Meter::Reserved, &goods, at_ms);
        assert_eq!(rate, per_gpu(expect), "{tier:?} {pool} {at_ms}");
    };
    check(Tier::Standard, "default", 0, 10);
    check(Tier::Standard, "default", 100, 20);
    check(Tier::Basic, "default", 200, 5);
    check(Tier::Basic, "old", 55, 3);
    check(Tier::Basic, "old", 60, 5);
    assert_eq!(Price::at(&prices, Meter::Memory, &Goods::default(), 0), Rate::default());
}

#[test]
fn an_own_tier_costs_what_its_kind_does_unless_it_has_a_price() {
    let price = |json| serde_json::from_value::<Price>(json).unwrap();
    let prices = [
        price(serde_json::json!({ "meter": "reserved", "micro": 10 })),
        price(serde_json::json!({ "meter": "reserved", "micro": 30, "tier": "premium", "pool": "old" })),
        price(serde_json::json!({ "meter": "reserved", "micro": 40, "tier": "premium-gold" })),
        price(serde_json::json!({ "meter": "reserved", "micro": 5, "tier": "basic" })),
    ];
    let of = |tier: &str| {
        let goods = Goods { tier: tier.parse().unwrap(), pool: "old".into(), ..Goods::default() };
        Price::at(&prices, Meter::Reserved, &goods, 0)
    };
    let costs = [("premium", 30), ("premium-gold", 40), ("premium-silver", 30), ("basic-night", 5)];
    for (tier, micro) in costs.into_iter().chain([("standard-plus", 10), ("standard", 10)]) {
        assert_eq!(of(tier), per_gpu(micro), "{tier}");
    }
}

#[test]
fn a_price_per_unit_hour_is_for_gpus_that_have_units() {
    let price = |json| serde_json::from_value::<Price>(json).unwrap();
    let prices = [
        price(serde_json::json!({ "meter": "reserved", "micro": 10 })),
        price(serde_json::json!({ "meter": "reserved", "micro": 3, "per": "unit", "from_ms": 100 })),
        price(serde_json::json!({ "meter": "reserved", "micro": 7, "tier": "basic", "from_ms": 50 })),
        price(serde_json::json!({ "meter": "reserved", "micro": 20, "from_ms": 200 })),
    ];
    assert!(!prices[0].is_for_the_same(&prices[1]) && prices[0].is_for_the_same(&prices[3]));
    let at = |tier, gflops, at_ms| {
        Price::at(&prices, Meter::Reserved, &Goods { tier, gflops, ..Goods::default() }, at_ms)
    };
    let per_unit = Rate { micro: 3, per: PricePer::Unit };
    assert_eq!(at(Tier::Standard, 20_000, 99), per_gpu(10));
    assert_eq!(at(Tier::Standard, 20_000, 100), per_unit);
    assert_eq!(at(Tier::Standard, 0, 100), per_gpu(10), "the one per GPU-hour goes on");
    assert_eq!(at(Tier::Standard, 20_000, 200), per_unit, "a new one per GPU-hour is for the others");
    assert_eq!(at(Tier::Standard, 0, 200), per_gpu(20));
    assert_eq!(at(Tier::Basic, 20_000, 100), per_gpu(7), "it names more");
}

proptest! {
    /// What so many units cost for an hour does not depend on the card, as far as shares are
    /// exact.
    #[test]
    fn units_cost_the_same_on_every_card(units in 1..20_u64, faster in 1..50_u64, micro in 0..1_000_000_000_u64) {
        let hour_on = |gflops: u64| {
            let share_ppm = units * 1000 * 1_000_000 / gflops;
            let goods = Goods { gflops, ..Goods::default() };
            let rate = Rate { micro, per: PricePer::Unit };
            Line::new("a".parse().unwrap(), Meter::Reserved, goods, share_ppm * HOUR_MS, rate)
        };
        // Of these the units are a whole number of millionths.
        for line in [hour_on(units * 1000), hour_on(units * 1000 * [1, 2, 4, 5, 8, 10][faster as usize % 6])] {
            prop_assert_eq!((line.quantity_micro, line.cost_micro), (units * 1_000_000, units * micro));
            prop_assert_eq!(line.unit_name(), "unit-hour");
        }
    }
}

#[test]
fn unit_hours_round_half_up_and_do_not_overflow() {
    let line = |amount, gflops, micro| {
        let (goods, rate) = (Goods { gflops, ..Goods::default() }, Rate { micro, per: PricePer::Unit });
        Line::new("a".parse().unwrap(), Meter::Reserved, goods, amount, rate)
    };
    assert_eq!(line(GPU_HOUR_PPM_MS, 500, 1).cost_micro, 1);
    assert_eq!(line(GPU_HOUR_PPM_MS, 499, 1).cost_micro, 0);
    assert_eq!(line(GPU_HOUR_PPM_MS, 19_491, 1_000_000).quantity_micro, 19_491_000);
    assert_eq!(line(u64::MAX, u64::MAX, u64::MAX).cost_micro, u64::MAX);
}

#[test]
fn periods_begin_with_the_calendar() {
    const DAY_MS: u64 = 86_400_000;
    // 2026-03-01 is day 20513; 2024-02-29 is day 19782.
    for (day, first) in [(20_513, 20_513), (20_512, 20_485), (19_782, 19_754), (0, 0), (30, 0), (31, 31)] {
        assert_eq!(BudgetPeriod::Month.began_ms(day * DAY_MS + 5), first * DAY_MS, "day {day}");
    }
    assert_eq!(BudgetPeriod::Day.began_ms(3 * DAY_MS + 7), 3 * DAY_MS);
    // From February 2026, January 1970 and February 2024.
    for (day, next) in [(20_512, 20_513), (0, 31), (19_754, 19_783)] {
        assert_eq!(BudgetPeriod::Month.ends_ms(day * DAY_MS + 5), Some(next * DAY_MS), "day {day}");
    }
    assert_eq!(BudgetPeriod::Day.ends_ms(3 * DAY_MS), Some(4 * DAY_MS));
    assert_eq!(BudgetPeriod::Ever.ends_ms(5), None);
    assert!(BudgetPeriod::Month.began_ms(u64::MAX) > 0, "what is no date belongs to the last month there is");
}
