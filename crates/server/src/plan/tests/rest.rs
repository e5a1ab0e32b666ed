use super::*;

/// A world in which `acme` has a lease that is kept from the scheduler, and what it says about
/// that.
fn held_back(
    quota: Value,
    pool: Option<Value>,
    ask: Value,
    arrange: impl Fn(&mut World),
) -> (World, LeaseId) {
    let mut world = World::new(&[1], &[("acme", quota), ("globex", json!({}))]);
    if let Some(mut pool) = pool {
        pool["name"] = "big".into();
        pool["nodes"] = json!(["node0"]);
        world.fleet.set_pool(serde_json::from_value(pool).unwrap());
    }
    arrange(&mut world);
    let lease = world.ask("acme", ask);
    world.settle();
    (world, lease)
}

/// What is written down wakes the scheduler: one that changes something with every look never
/// rests.
#[test]
fn what_is_held_back_is_told_why_once() {
    let globex = || json!({ "private": { "tenants": ["globex"] } });
    let night = json!({ "zone": "UTC", "times": [{ "from": "00:00", "until": "08:00" }] });
    let by_night = json!({ "personalities": [{ "name": "night", "calendar": night, "access": globex() }] });
    let window = json!([{ "from_ms": 0, "until_ms": 3_600_000 }]);
    let reserved = json!({ "access": { "reserved": { "tenants": ["globex"], "windows": window } } });
    let plain = |_: &mut World| {};
    let one_runs = |world: &mut World| _ = world.ask("acme", share(100_000));
    let spent = |world: &mut World| {
        let acme: TenantPath = "acme".parse().unwrap();
        let budget = Budget { micro: 100, per: BudgetPeriod::Day, then: BudgetEnd::Hold };
        world.fleet.set_budget(acme.clone(), Some(budget));
        world.fleet.set_spent(vec![(acme, Spent { period_from_ms: 0, micro: 100 })]);
    };
    let cases = [
        ("acme has 1 leases", held_back(json!({ "leases_limit": 1 }), None, share(100_000), one_runs)),
        ("acme has spent", held_back(json!({}), None, json!({}), spent)),
        (
            "no pool that has GPUs serves acme",
            held_back(json!({}), Some(json!({ "access": globex() })), json!({}), plain),
        ),
        (
            "whole GPUs only",
            held_back(
                json!({}),
                Some(json!({ "sharing": "whole" })),
                json!({ "pool": "big", "share_ppm": 1 }),
                plain,
            ),
        ),
        ("personality night", held_back(json!({}), Some(by_night), json!({}), plain)),
        (
            "big does not serve",
            held_back(json!({}), Some(json!({ "tiers": ["basic"] })), json!({ "pool": "big" }), plain),
        ),
        ("of acme now", held_back(json!({}), Some(reserved), json!({}), plain)),
        ("no node has the label a=b", held_back(json!({}), None, json!({ "labels": { "a": "b" } }), plain)),
    ];
    for (words, (mut world, lease)) in cases {
        assert_eq!(world.state(lease), WAITS, "{words}");
        let clock = Clock { now_ms: world.now_ms, grace_ms: 0 };
        for look in 0..3 {
            let more = world.plan.decide(&mut world.fleet, clock);
            let changed = world.fleet.take_changed();
            assert!(!more && changed.is_empty(), "{words}: look {look} changes {changed:?}");
        }
        let reason = world.fleet.lease(lease).unwrap().reason.clone();
        assert_eq!(reason.as_deref(), Some(&*world.why(lease)));
        assert!(world.why(lease).contains(words), "{words}: {}", world.why(lease));
    }
}
