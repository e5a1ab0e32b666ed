use super::*;

#[test]
fn pools_serve_their_tenants_in_their_windows() {
    let mut world = World::new(&[1, 1], &[("acme", json!({})), ("globex", json!({}))]);
    let windows = json!([{ "from_ms": 1000, "until_ms": 2000 }]);
    let access = json!({ "reserved": { "tenants": ["acme"], "windows": windows } });
    let pool = json!({ "name": "big", "nodes": ["node0"], "access": access });
    world.fleet.set_pool(serde_json::from_value(pool).unwrap());
    let early = world.ask("globex", json!({ "pool": "big" }));
    world.settle();
    assert_eq!(
        (world.state(early), world.nodes_of(early)),
        (RUNS, vec![1]),
        "outside of its windows it is everybody's"
    );
    world.now_ms = 1000;
    world.settle();
    assert_eq!(world.state(early), WAITS);
    assert!(world.why(early).contains("pool big"), "{}", world.why(early));
    let own = world.ask("acme", json!({ "pool": "big" }));
    world.settle();
    assert_eq!((world.state(own), world.nodes_of(own)), (RUNS, vec![1]));
    world.fleet.end(own, "over", 0);
    world.now_ms = 2000;
    world.settle();
    assert_eq!(world.state(early), RUNS, "{:?}", world.plan.why(&world.fleet, early));
}

#[test]
fn pools_turn_into_their_personalities_and_back() {
    const HOUR_MS: u64 = 3_600_000;
    let mut world = World::new(&[1, 1], &[("acme", json!({})), ("globex", json!({}))]);
    let calendar = json!({ "zone": "UTC", "times": [{ "from": "20:00", "until": "08:00" }] });
    let night = json!({ "name": "night", "calendar": calendar, "sharing": "whole",
        "access": { "private": { "tenants": ["acme"] } } });
    let pool = json!({ "name": "big", "nodes": ["node0"], "personalities": [night] });
    world.fleet.set_pool(serde_json::from_value(pool).unwrap());
    world.now_ms = 19 * HOUR_MS;
    let by_day = [
        world.ask("globex", json!({ "pool": "big", "share_ppm": 500_000 })),
        world.ask("acme", json!({ "pool": "big", "share_ppm": 500_000 })),
    ];
    world.settle();
    assert_eq!(by_day.map(|lease| world.state(lease)), [RUNS; 2]);
    world.now_ms = 20 * HOUR_MS - 1;
    world.decide();
    assert_eq!(by_day.map(|lease| world.state(lease)), [RUNS; 2], "the day is not over");
    world.now_ms = 20 * HOUR_MS;
    let by_night = world.ask("acme", json!({ "pool": "big" }));
    world.settle();
    assert_eq!((by_day.map(|lease| world.state(lease)), world.state(by_night)), ([WAITS; 2], RUNS));
    for (lease, words) in [(by_day[0], "does not serve"), (by_day[1], "whole GPUs only")] {
        let why = world.why(lease);
        assert!(
            why.contains(words) && why.contains("personality night holds until 1970-01-02T08:00Z"),
            "{why}"
        );
    }
    for lease in by_day {
        assert_eq!(world.starts(lease), Some(32 * HOUR_MS), "when the day begins");
    }
    // Who comes by night waits for the day and is not turned away; who is never served is.
    let never = |tenant: &str, tier: &str| {
        let ask = serde_json::from_value(json!({ "pool": "big", "tier": tier })).unwrap();
        world.plan.over_capacity(&world.fleet, &tenant.parse().unwrap(), &ask)
    };
    assert_eq!(never("globex", "basic"), None);
    world.fleet.end(by_night, "over", world.now_ms);
    for (hour, expect) in [(32, RUNS), (44, WAITS)] {
        world.now_ms = hour * HOUR_MS;
        world.settle();
        assert_eq!(by_day.map(|lease| world.state(lease)), [expect; 2], "{hour} o'clock");
    }
    let is_over = |at_ms| world.plan.pools.have_turned(at_ms);
    assert!(!is_over(45 * HOUR_MS) && is_over(56 * HOUR_MS));
    assert!(is_over(44 * HOUR_MS - 1), "clocks are set back as well");
}

#[test]
fn two_pools_share_a_machine() {
    let mut world = World::new(&[4], &[("acme", json!({})), ("globex", json!({}))]);
    let declare = |world: &mut World, pool: Value| {
        world.fleet.set_pool(serde_json::from_value(pool).unwrap());
    };
    let both = world.ask("acme", json!({ "gpus": 2 }));
    let single = world.ask("acme", json!({}));
    world.settle();
    let gpus = |world: &World, id| -> Vec<u32> {
        let lease = world.fleet.lease(id).unwrap();
        lease.held().flat_map(|(_, seat)| seat.gpus.clone()).collect()
    };
    assert_eq!((gpus(&world, both), gpus(&world, single)), (vec![0, 1], vec![2]));
    // Acme's own begin in the middle of the first lease; the rest is what is of this model.
    let own = json!({ "name": "own", "gpus": ["node0/1", "node0/2", "elsewhere/3"], "overcommit_percent": 200,
                      "access": { "private": { "tenants": ["acme"] } } });
    declare(&mut world, own);
    declare(&mut world, json!({ "name": "all", "models": ["gpu"] }));
    world.decide();
    assert_ne!(world.state(both), RUNS, "no place is in two pools");
    assert_eq!(world.state(single), RUNS);
    world.settle();
    assert_eq!((world.state(both), gpus(&world, both)), (RUNS, vec![0, 3]));
    let grant_pools = |world: &World, id| -> Vec<String> {
        let lease = world.fleet.lease(id).unwrap();
        lease.held().flat_map(|(_, seat)| world.fleet.pools_of(seat).map(str::to_owned)).collect()
    };
    assert_eq!(
        (grant_pools(&world, both), grant_pools(&world, single)),
        (vec!["all".into(); 2], vec!["own".into()])
    );
    // Others have no place on what is acme's; acme has, twice.
    let foreign = world.ask("globex", json!({ "share_ppm": 100_000 }));
    let parts = [0; 2].map(|_| world.ask("acme", json!({ "pool": "own", "share_ppm": 900_000 })));
    world.settle();
    assert_eq!((world.state(foreign), parts.map(|lease| world.state(lease))), (WAITS, [RUNS; 2]));
    assert_eq!(parts.map(|lease| gpus(&world, lease)), [vec![1], vec![1]], "it is overcommitted");
    let node = world.fleet.nodes().values().next().unwrap();
    assert_eq!([0, 1].map(|gpu| world.fleet.promised_ppm(node, gpu)), [GPU_PPM, 2 * GPU_PPM]);
    world.check();
}

#[test]
fn a_spent_budget_keeps_what_is_new_waiting() {
    let mut world = World::new(&[2], &[("acme", json!({})), ("globex", json!({}))]);
    let acme: TenantPath = "acme".parse().unwrap();
    let spend = |world: &mut World, period_from_ms, micro| {
        world.fleet.set_spent(vec![(acme.clone(), Spent { period_from_ms, micro })]);
    };
    let budget = |then| Some(Budget { micro: 100, per: BudgetPeriod::Day, then });
    world.fleet.set_budget(acme.clone(), budget(BudgetEnd::Hold));
    let first = world.ask("acme", json!({}));
    world.settle();
    spend(&mut world, 0, 100);
    let (second, other) = (world.ask("acme", json!({})), world.ask("globex", json!({})));
    world.settle();
    assert_eq!([first, second, other].map(|lease| world.state(lease)), [RUNS, WAITS, RUNS]);
    assert!(world.why(second).contains("acme has spent"), "{}", world.why(second));
    assert_eq!(world.starts(second), Some(24 * 3_600_000), "the next day");
    world.fleet.end(other, "over", 0);
    spend(&mut world, 1, 0);
    world.settle();
    assert_eq!(world.state(second), RUNS, "a new period has begun");
    world.fleet.set_budget(acme.clone(), budget(BudgetEnd::Preempt));
    spend(&mut world, 1, 100);
    world.settle();
    assert_eq!([first, second].map(|lease| world.state(lease)), [WAITS; 2]);
}

/// Whatever comes, no GPU is promised twice, and a plan made anew from the fleet agrees on who runs
/// where.
#[test]
fn no_gpu_is_ever_promised_twice() {
    use proptest::prelude::*;
    let step = (0..3_usize, 1..1_000_001_u32, 1..4_i32, 1..3_u32, 0..10_u8);
    proptest!(|(steps in proptest::collection::vec(step, 1..40))| {
        let quota = json!({ "guaranteed_milli": 1000 });
        let tenants = [("acme", quota.clone()), ("acme/a", json!({})), ("globex", quota)];
        let mut world = World::new(&[2], &tenants);
        world.join_cards("node1", 1, "r0", 10_000);
        for (tenant, share_ppm, priority, tasks, event) in steps {
            let most = tasks + share_ppm % 3;
            let mut ask = json!({ "priority": priority, "tasks": tasks, "tasks_max": most });
            match share_ppm % 4 {
                0 => ask["units_milli"] = (1 + share_ppm / 50).into(),
                _ => ask["share_ppm"] = share_ppm.into(),
            }
            let last = world.ask(tenants[tenant].0, ask);
            match event {
                0 => world.fleet.end(last / 2 + 1, "over", world.now_ms),
                1 => world.plan = Plan::new(&world.fleet, world.now_ms, None),
                2 => world.report(),
                3 => world.settle(),
                4 => { world.join_cards("node1", 1, "elsewhere", 10_000); }
                5 => world.report_without(&[(last / 2 + 1, 0), (last - 1, 1)]),
                6 => {
                    world.now_ms += 61_000;
                    world.report_without(&[(last / 2 + 1, 2)]);
                    world.fleet.expire(world.now_ms);
                }
                7 => overcommit(&mut world, [100, 150, 200][share_ppm as usize % 3]),
                _ => {}
            }
            world.decide();
            world.check();
        }
        world.settle();
        world.check();
    });
}

/// Declares that so much of the GPUs of both nodes may be leased.
fn overcommit(world: &mut World, percent: u32) {
    let pool = json!({ "name": "shared", "nodes": ["node0", "node1"], "overcommit_percent": percent });
    world.fleet.set_pool(serde_json::from_value(pool).unwrap());
}

#[test]
fn parts_of_an_overcommitted_gpu_are_leased_up_to_what_its_pool_says() {
    let mut world = World::new(&[1], &[("acme", json!({}))]);
    overcommit(&mut world, 150);
    let parts: Vec<LeaseId> = (0..3).map(|_| world.ask("acme", share(750_000))).collect();
    world.settle();
    assert_eq!([0, 1, 2].map(|i| world.state(parts[i])), [RUNS, RUNS, WAITS]);
    let why = world.why(parts[2]);
    assert!(why.starts_with("room: 0 of 1 nodes fit, 1 have too few GPUs free"), "{why}");
    assert!(why.ends_with("; pool shared is overcommitted: 150 % of each GPU may be leased"), "{why}");
    let memory = world.fleet.taken(1, 0).memory;
    assert_eq!(memory, 16 << 30, "each has the part of the memory that leaves room for the other");
    let seats = |world: &World| world.fleet.lease(parts[0]).unwrap().seats.clone();
    world.check();

    // It promises less, and nobody has to go; what ends leaves no room until there is some.
    let before = seats(&world);
    overcommit(&mut world, 100);
    let small = world.ask("acme", json!({ "share_ppm": 250_000, "memory": 1 << 20 }));
    world.settle();
    assert_eq!([0, 1, 2].map(|i| world.state(parts[i])), [RUNS, RUNS, WAITS]);
    assert_eq!((seats(&world), world.state(small)), (before, WAITS));
    assert!(!world.why(small).contains("overcommitted"), "{}", world.why(small));
    world.check();
    world.fleet.end(parts[1], "over", world.now_ms);
    world.settle();
    assert_eq!((world.state(parts[2]), world.state(small)), (WAITS, RUNS));
    world.check();

    // Somebody who claims late gets what was promised when the pool promised more.
    overcommit(&mut world, 175);
    let late = world.ask("acme", json!({ "share_ppm": 750_000, "memory": 1 << 20 }));
    world.fleet.end(parts[2], "over", world.now_ms);
    world.decide();
    assert_eq!(world.state(late), LeaseState::Granted);
    overcommit(&mut world, 100);
    world.decide();
    let [grant] = &world.fleet.grants_of(world.fleet.lease(late).unwrap())[..] else { panic!("one grant") };
    assert_eq!((grant.share_ppm, grant.promised_ppm), (750_000, 1_750_000));
}

/// The first node, of one GPU of 16 GiB, joins again and can back so much memory; its pool allows
/// so many percent.
fn overcommit_memory(world: &mut World, node_gib: u64, percent: u32) {
    let gpu = Gpu { memory_leasable: node_gib << 30, ..world.fleet.nodes()[&1].gpus[0].clone() };
    let join = Join {
        name: "node0".into(),
        address: "h:1".into(),
        gpus: vec![gpu],
        labels: BTreeMap::new(),
        release: String::new(),
    };
    world.fleet.join(join, world.now_ms);
    let pool = json!({ "name": "shared", "nodes": ["node0"], "memory_overcommit_percent": percent });
    world.fleet.set_pool(serde_json::from_value(pool).unwrap());
    world.report();
}

#[test]
fn memory_is_leased_as_far_as_its_pool_and_its_node_go() {
    let mut world = World::new(&[1], &[("acme", json!({}))]);
    let ask = |world: &mut World, gib: u64| {
        let lease = world.ask("acme", json!({ "share_ppm": 100_000, "memory": gib << 30 }));
        world.settle();
        world.check();
        lease
    };
    // What the pool says is more than what the node can back, and the other way round.
    overcommit_memory(&mut world, 25, 200);
    let first = ask(&mut world, 12);
    let second = ask(&mut world, 12);
    let third = ask(&mut world, 2);
    assert_eq!([first, second, third].map(|lease| world.state(lease)), [RUNS, RUNS, WAITS]);
    let why = world.why(third);
    assert!(why.contains("25600 MiB of each GPU may be leased, 16384 MiB to one lease"), "{why}");
    overcommit_memory(&mut world, 64, 150);
    world.settle();
    assert_eq!([first, second, third].map(|lease| world.state(lease)), [RUNS, RUNS, WAITS]);
    overcommit_memory(&mut world, 64, 200);
    world.settle();
    assert_eq!(world.state(third), RUNS);
    world.check();

    // The pool allows less: what is there stays, and nothing comes until there is room.
    overcommit_memory(&mut world, 64, 100);
    let small = world.ask("acme", json!({ "share_ppm": 100_000, "memory": 2_u64 << 30 }));
    world.settle();
    assert_eq!([first, second, third].map(|lease| world.state(lease)), [RUNS; 3]);
    assert_eq!(world.state(small), WAITS);
    world.fleet.end(first, "over", world.now_ms);
    world.settle();
    assert_eq!(world.state(small), RUNS);
    let larger = json!({ "share_ppm": 100_000, "memory": 17_u64 << 30 });
    let never = world
        .plan
        .over_capacity(&world.fleet, &"acme".parse().unwrap(), &serde_json::from_value(larger).unwrap())
        .unwrap();
    assert_eq!(never, "17408 MiB of memory on a GPU: no GPU has more than 16384 MiB");
}

#[test]
fn each_lease_fits_on_its_gpu_beside_those_that_never_leave_it() {
    let mut world = World::new(&[1], &[("acme", json!({ "guaranteed_milli": 1000 }))]);
    overcommit_memory(&mut world, 64, 400);
    let ask = |world: &mut World, gib: u64, tier: &str| {
        let ask = json!({ "share_ppm": 100_000, "memory": gib << 30, "tier": tier });
        let lease = world.ask("acme", ask);
        world.settle();
        world.check();
        lease
    };
    let premium = ask(&mut world, 6, "premium");
    let too_large = ask(&mut world, 11, "standard");
    let beside = [10, 10, 10].map(|gib| ask(&mut world, gib, "standard"));
    assert_eq!(world.state(premium), RUNS);
    assert_eq!(world.state(too_large), WAITS, "it would not fit beside the premium one");
    assert_eq!(beside.map(|lease| world.state(lease)), [RUNS; 3]);
    let taken = world.fleet.taken(1, 0);
    assert_eq!((taken.memory, taken.fixed_memory), (36 << 30, 6 << 30));
    world.fleet.end(premium, "over", world.now_ms);
    world.settle();
    assert_eq!(world.state(too_large), RUNS);
    world.check();
}

#[test]
fn a_whole_gpu_of_an_overcommitted_pool_is_nobody_elses() {
    let mut world = World::new(&[1], &[("acme", json!({ "limit_milli": 1000 })), ("globex", json!({}))]);
    overcommit(&mut world, 1000);
    let whole = world.ask("acme", share(1_000_000));
    world.settle();
    let part = world.ask("globex", json!({ "share_ppm": 1000, "memory": 1 }));
    world.settle();
    assert_eq!((world.state(whole), world.state(part)), (RUNS, WAITS), "the whole counts as one GPU");
    assert_eq!(world.fleet.taken(1, 0).memory, 16 << 30, "with all of its memory");
    world.fleet.end(whole, "over", world.now_ms);
    world.settle();
    let next = world.ask("acme", share(1_000_000));
    world.settle();
    assert_eq!((world.state(part), world.state(next)), (RUNS, WAITS));
    world.fleet.end(part, "over", world.now_ms);
    world.decide();
    assert_eq!(world.state(next), LeaseState::Granted);
    world.check();
}

/// Of two leases on a GPU one goes, and the place is granted when it is clear, though the sum of
/// the shares was above the GPU before.
#[test]
fn what_is_guaranteed_is_reclaimed_on_an_overcommitted_gpu() {
    let mut world = World::new(&[1], &[("acme", json!({ "guaranteed_milli": 750 })), ("globex", json!({}))]);
    overcommit(&mut world, 150);
    let greedy = [world.ask("globex", share(750_000)), world.ask("globex", share(750_000))];
    world.settle();
    let rightful = world.ask("acme", share(750_000));
    world.decide();
    let states = |world: &World| greedy.map(|lease| world.state(lease));
    assert_eq!((states(&world), world.state(rightful)), ([RUNS, LeaseState::Preempting], WAITS));
    assert!(world.why(rightful).contains("is being cleared"), "{}", world.why(rightful));
    world.settle();
    assert_eq!((states(&world), world.state(rightful)), ([RUNS, WAITS], RUNS));
    let whole = world.ask("acme", json!({ "priority": 200 }));
    world.settle();
    assert_eq!((states(&world)[0], world.state(rightful), world.state(whole)), (RUNS, RUNS, WAITS));
    world.check();
}

/// A plan that is made anew, by a server that comes to lead, knows what was leased when the pool
/// promised more.
#[test]
fn a_plan_made_anew_counts_what_is_above_the_pool() {
    let mut world = World::new(&[1, 1], &[("acme", json!({ "limit_milli": 2000 }))]);
    overcommit(&mut world, 200);
    let parts: Vec<LeaseId> = (0..4).map(|_| world.ask("acme", share(500_000))).collect();
    world.settle();
    assert_eq!(world.fleet.taken(1, 0).ppm, 2_000_000, "on one GPU");
    world.check();
    overcommit(&mut world, 100);
    world.settle();
    world.plan = Plan::new(&world.fleet, world.now_ms, None);
    let fifth = world.ask("acme", share(500_000));
    world.settle();
    assert!(world.why(fifth).starts_with("limit:"), "all four count: {}", world.why(fifth));
    world.fleet.end(parts[0], "over", world.now_ms);
    world.settle();
    assert_eq!((world.state(fifth), world.nodes_of(fifth)), (RUNS, vec![2]));
    world.check();
}

#[test]
fn who_no_pool_serves_is_told_so_and_not_that_no_gpu_is_good_enough() {
    let mut world = World::new(&[1, 1], &[("acme", json!({})), ("globex", json!({}))]);
    let mut declare = |pool: Value| {
        world.fleet.set_pool(serde_json::from_value(pool).unwrap());
        world.settle();
    };
    let private = json!({ "private": { "tenants": ["globex"] } });
    declare(json!({ "name": "a", "nodes": ["node0"], "access": private }));
    declare(json!({ "name": "b", "nodes": ["node1"], "tiers": ["basic"], "sharing": "whole" }));
    let never = |tenant: &str, ask: Value| {
        let (tenant, ask) = (tenant.parse().unwrap(), serde_json::from_value(ask).unwrap());
        world.plan.over_capacity(&world.fleet, &tenant, &ask).unwrap_or_default()
    };
    assert_eq!(never("acme", json!({})), "no pool that has GPUs serves the tier standard of acme");
    let part = json!({ "tier": "basic", "share_ppm": 250_000 });
    assert_eq!(never("acme", part.clone()), "the pools that serve acme lend whole GPUs only");
    assert_eq!(never("globex", part), "");
    let fast = never("acme", json!({ "tier": "basic", "gflops_min": 1_000_000 }));
    assert!(fast.starts_with("no GPU of the pools that it may use"), "{fast}");
    world.fleet.set_pool(
        serde_json::from_value(json!({
            "name": "b", "nodes": ["node1"], "access": { "private": { "tenants": ["globex"] } },
        }))
        .unwrap(),
    );
    world.settle();
    let ask = serde_json::from_value(json!({})).unwrap();
    let nobody = world.plan.over_capacity(&world.fleet, &"acme".parse().unwrap(), &ask);
    assert_eq!(nobody.as_deref(), Some("no pool that has GPUs serves acme"));
}
