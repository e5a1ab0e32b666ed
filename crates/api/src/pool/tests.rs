//! Pools: their GPUs, hours and prices.

use super::*;
use crate::bill::{Goods, Meter, PricePer};

#[test]
fn a_pool_serves_whom_it_says_when_it_says() {
    let pool = |json: serde_json::Value| serde_json::from_value::<Pool>(json).unwrap();
    let check = |pool: &Pool, tenant: &str, tier, at_ms, expect| {
        assert_eq!(
            pool.terms(None).serves(&tenant.parse().unwrap(), tier, GPU_PPM, Some(at_ms)),
            expect,
            "{tenant} {tier:?} {at_ms}"
        );
    };
    let public = pool(serde_json::json!({ "name": "a", "tiers": ["basic"] }));
    check(&public, "acme", Tier::Basic, 0, true);
    check(&public, "acme", Tier::Standard, 0, false);
    let private = pool(serde_json::json!({ "name": "a", "access": { "private": { "tenants": ["acme"] } } }));
    check(&private, "acme/research", Tier::Premium, 0, true);
    check(&private, "globex", Tier::Premium, 0, false);
    let windows = serde_json::json!([{ "from_ms": 10, "until_ms": 20 }]);
    let reserved = serde_json::json!({ "reserved": { "tenants": ["acme"], "windows": windows } });
    let reserved = pool(serde_json::json!({ "name": "a", "access": reserved }));
    for (at_ms, expect) in [(9, true), (10, false), (19, false), (20, true)] {
        check(&reserved, "globex", Tier::Standard, at_ms, expect);
        check(&reserved, "acme", Tier::Standard, at_ms, true);
    }
    let at_some_moment =
        |tenant: &str| reserved.terms(None).serves(&tenant.parse().unwrap(), Tier::Standard, GPU_PPM, None);
    assert!(at_some_moment("globex"));
}

const HOUR_MS: u64 = 3_600_000;

fn with_personalities(personalities: serde_json::Value) -> Pool {
    serde_json::from_value(serde_json::json!({ "name": "a", "personalities": personalities })).unwrap()
}

fn daily(name: &str, from: &str, until: &str) -> serde_json::Value {
    let times = [serde_json::json!({ "from": from, "until": until })];
    serde_json::json!({ "name": name, "calendar": { "zone": "UTC", "times": times } })
}

#[test]
fn the_first_personality_whose_calendar_holds_is_in_force() {
    let lunch_before_day = with_personalities(serde_json::json!([
        daily("lunch", "12:00", "13:00"),
        daily("day", "08:00", "20:00")
    ]));
    let hours = |hours: u64| hours * HOUR_MS;
    let turns: Vec<_> = [(0, None), (8, Some(1)), (12, Some(0)), (13, Some(1)), (20, None), (32, Some(1))]
        .map(|(at, personality)| (hours(at), personality))
        .to_vec();
    assert_eq!(lunch_before_day.turns(0, hours(32) + 1), turns);
    assert_eq!(lunch_before_day.turns(hours(12), hours(13)), [(hours(12), Some(0))]);
    for (at_ms, personality, until) in
        [(0, None, 8), (hours(8), Some(1), 12), (hours(13) - 1, Some(0), 13), (hours(19), Some(1), 20)]
    {
        let expect = InForce { personality, until_ms: Some(hours(until)) };
        assert_eq!(lunch_before_day.in_force(at_ms), expect, "{at_ms}");
    }
    let status = PoolStatus::at(lunch_before_day, hours(12));
    assert_eq!((status.personality.as_deref(), status.until_ms), (Some("lunch"), Some(hours(13))));
}

#[test]
fn a_personality_that_always_holds_has_no_end() {
    let always = with_personalities(serde_json::json!([daily("always", "00:00", "24:00")]));
    assert_eq!(always.in_force(5), InForce { personality: Some(0), until_ms: None });
    assert_eq!(with_personalities(serde_json::json!([])).in_force(5), InForce::default());
    assert_eq!(always.in_force(u64::MAX - 1).personality, None, "no calendar goes so far");
}

#[test]
fn a_weekly_time_that_clocks_skip_comes_a_week_later() {
    let times = [serde_json::json!({ "days": ["sun"], "from": "02:15", "until": "02:45" })];
    let calendar = serde_json::json!({ "zone": "Europe/Berlin", "times": times });
    let pool = with_personalities(serde_json::json!([{ "name": "night", "calendar": calendar }]));
    // At the end of that of 22 March 2026. On the 29th there is no 02:15; on 5 April there is.
    let expect = InForce { personality: None, until_ms: Some(1_775_348_100_000) };
    assert_eq!(pool.in_force(1_774_143_900_000), expect);
}

#[test]
fn a_personality_says_what_is_different() {
    let mut night = daily("night", "20:00", "08:00");
    night["tiers"] = serde_json::json!(["basic"]);
    night["sharing"] = serde_json::json!("whole");
    let mut pool = with_personalities(serde_json::json!([night]));
    pool.access = Access::Private { tenants: vec!["acme".parse().unwrap()] };
    let serves = |personality, tenant: &str, tier, share_ppm| {
        pool.terms(personality).serves(&tenant.parse().unwrap(), tier, share_ppm, Some(0))
    };
    assert!(serves(None, "acme", Tier::Standard, 1) && !serves(Some(0), "acme", Tier::Standard, GPU_PPM));
    assert!(serves(Some(0), "acme", Tier::Basic, GPU_PPM) && !serves(Some(0), "acme", Tier::Basic, 999_999));
    assert!(!serves(Some(0), "globex", Tier::Basic, GPU_PPM), "the access is the pool's own");
    let some = |tier, share_ppm| {
        pool.all_terms().any(|terms| terms.serves(&"acme".parse().unwrap(), tier, share_ppm, None))
    };
    assert!(some(Tier::Standard, 1) && some(Tier::Basic, GPU_PPM));
}

#[test]
fn personalities_that_make_no_sense_are_named() {
    let check = |personalities: serde_json::Value, words: &str| {
        let error = with_personalities(personalities).check_personalities().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    check(serde_json::json!([daily("a", "00:00", "01:00"), daily("a", "02:00", "03:00")]), "named \"a\"");
    check(serde_json::json!([daily("a", "00:00", "00:00")]), "personality \"a\"");
    check(serde_json::json!(vec![daily("a", "00:00", "01:00"); 17]), "up to 16");
}

#[test]
fn overcommit_is_of_parts_and_bounded() {
    let pool = |json: serde_json::Value| serde_json::from_value::<Pool>(json).unwrap();
    let usual = pool(serde_json::json!({ "name": "a" }));
    assert_eq!((usual.overcommit_percent, usual.promised_ppm()), (100, GPU_PPM));
    assert_eq!(serde_json::to_value(&usual).unwrap().get("overcommit_percent"), None);
    assert_eq!(serde_json::to_value(&usual).unwrap().get("memory_overcommit_percent"), None);
    for (percent, sharing, expect) in [
        (100, "whole", Ok(())),
        (150, "fractions", Ok(())),
        (1000, "fractions", Ok(())),
        (99, "fractions", Err(OvercommitError::Range(99))),
        (1001, "fractions", Err(OvercommitError::Range(1001))),
        (150, "whole", Err(OvercommitError::Whole("overcommit_percent"))),
    ] {
        let json = serde_json::json!({ "name": "a", "overcommit_percent": percent, "sharing": sharing });
        let pool = pool(json);
        assert_eq!(pool.check_overcommit(), expect, "{percent} {sharing}");
        let again: Pool = serde_json::from_value(serde_json::to_value(&pool).unwrap()).unwrap();
        assert_eq!(again, pool);
    }
    let of_memory = |percent: u32, sharing: &str| {
        let json =
            serde_json::json!({ "name": "a", "memory_overcommit_percent": percent, "sharing": sharing });
        pool(json)
    };
    for (percent, expect) in [
        (99, Err(OvercommitError::MemoryRange(99))),
        (1001, Err(OvercommitError::MemoryRange(1001))),
        (150, Err(OvercommitError::Whole("memory_overcommit_percent"))),
        (100, Ok(())),
    ] {
        assert_eq!(of_memory(percent, "whole").check_overcommit(), expect, "{percent}");
    }
    let twice = of_memory(200, "fractions");
    assert_eq!(twice.check_overcommit(), Ok(()));
    assert_eq!([0, 1000, 1500, 3000].map(|node| twice.leasable_memory(1000, node)), [1000, 1000, 1500, 2000]);
    assert_eq!(usual.leasable_memory(1000, 1500), 1000);
    let mut by_day = daily("day", "08:00", "20:00");
    by_day["sharing"] = serde_json::json!("fractions");
    let json = serde_json::json!({ "name": "a", "overcommit_percent": 150, "sharing": "whole", "personalities": [by_day] });
    assert_eq!(pool(json).check_overcommit(), Ok(()), "it lends parts by day");
}

#[test]
fn the_price_that_names_the_most_counts() {
    let price = |json| serde_json::from_value::<PoolPrice>(json).unwrap();
    let prices = [
        price(serde_json::json!({ "meter": "reserved", "tier": "basic", "micro": 2 })),
        price(serde_json::json!({ "meter": "reserved", "micro": 1 })),
        price(
            serde_json::json!({ "meter": "reserved", "tier": "basic", "model": "H100", "per": "unit", "micro": 4 }),
        ),
        price(serde_json::json!({ "meter": "reserved", "tier": "basic", "model": "H100", "micro": 3 })),
    ];
    let check = |tier, model: &str, expect| {
        let goods = Goods { tier, pool: "a".into(), model: model.into(), gflops: 20_000 };
        let rate = PoolPrice::of(&prices, Meter::Reserved, &goods);
        assert_eq!(rate.map(|rate| (rate.micro, rate.per)), Some(expect));
        assert_eq!(PoolPrice::of(&prices, Meter::Used, &goods), None);
    };
    check(Tier::Standard, "H100", (1, PricePer::Gpu));
    check(Tier::Basic, "A100", (2, PricePer::Gpu));
    check(Tier::Basic, "H100", (4, PricePer::Unit));
    let without = Goods { tier: Tier::Basic, pool: "a".into(), model: "H100".into(), gflops: 0 };
    assert_eq!(PoolPrice::of(&prices, Meter::Reserved, &without).map(|rate| rate.micro), Some(3));
}

#[test]
fn nodes_are_claimed_by_name_or_by_all_labels() {
    let labels = BTreeMap::from([("gpu".to_owned(), "a100".to_owned()), ("zone".to_owned(), "a".to_owned())]);
    let claims = |json| serde_json::from_value::<Pool>(json).unwrap().claims("n1", &labels, "NVIDIA H100");
    assert!(claims(serde_json::json!({ "name": "p", "nodes": ["n1"] })));
    assert!(claims(serde_json::json!({ "name": "p", "labels": { "gpu": "a100" } })));
    assert!(!claims(serde_json::json!({ "name": "p", "labels": { "gpu": "a100", "zone": "b" } })));
    assert!(!claims(serde_json::json!({ "name": "p" })));
    for (json, expect) in [
        (serde_json::json!({ "name": "p", "models": ["a100", "h100"] }), true),
        (serde_json::json!({ "name": "p", "models": ["a100"] }), false),
        (serde_json::json!({ "name": "p", "models": ["h100"], "nodes": ["n1"] }), true),
        (serde_json::json!({ "name": "p", "models": ["h100"], "nodes": ["n2"] }), false),
        (serde_json::json!({ "name": "p", "models": ["a100"], "nodes": ["n1"] }), false),
        (serde_json::json!({ "name": "p", "gpus": ["n1/0"] }), false),
    ] {
        assert_eq!(claims(json.clone()), expect, "{json}");
    }
    let json = serde_json::json!({ "name": "p", "gpus": ["n1/0", "n2/11"], "access": "public" });
    let pool: Pool = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(
        [("n1", 0), ("n1", 1), ("n2", 11)].map(|(node, gpu)| pool.names(node, gpu)),
        [true, false, true]
    );
    assert_eq!(serde_json::to_value(&pool).unwrap(), json);
    let wrong = serde_json::json!({ "name": "p", "gpus": ["n1"] });
    assert!(serde_json::from_value::<Pool>(wrong).unwrap_err().to_string().contains("n1"));
}
