use super::*;

#[test]
fn gpus_are_chosen_by_model_and_nodes_by_label() {
    let mut world = World::new(&[1, 1, 1], &[("acme", json!({}))]);
    let by_label = world.ask("acme", json!({ "labels": { "rack": "r1" } }));
    let by_speed = world.ask("acme", json!({ "gflops_min": 20_000, "models": ["gpu"] }));
    world.settle();
    assert_eq!((world.nodes_of(by_label), world.state(by_speed)), (vec![3], RUNS));
    let never = |ask: Value| {
        let (tenant, ask) = ("acme".parse().unwrap(), serde_json::from_value(ask).unwrap());
        world.plan.over_capacity(&world.fleet, &tenant, &ask).unwrap_or_default()
    };
    assert!(never(json!({ "gflops_min": 20_001 })).contains("speed"));
    assert!(never(json!({ "models": ["h100"] })).contains("model"));
    assert!(never(json!({ "labels": { "rack": "r9" } })).contains("rack=r9"));
}

/// The shares, in percent, that leases hold on each node.
fn shares(world: &World, leases: &[LeaseId]) -> BTreeMap<NodeId, Vec<u32>> {
    let mut shares: BTreeMap<NodeId, Vec<u32>> = BTreeMap::new();
    for lease in leases.iter().filter_map(|&id| world.fleet.lease(id)) {
        for (_, seat) in lease.held() {
            shares.entry(seat.node).or_default().push(lease.share_ppm(seat) / 10_000);
        }
    }
    shares
}

#[test]
fn units_are_a_share_of_whichever_card_has_them() {
    let mut world = World::new(&[], &[("acme", json!({}))]);
    let (fast, slow) = (world.join_cards("fast", 1, "r0", 20_000), world.join_cards("slow", 1, "r0", 10_000));
    world.join_cards("unknown", 1, "r0", 0);
    world.report();
    let leases = [(); 3].map(|()| world.ask("acme", json!({ "units_milli": 8000 })));
    world.settle();
    let expect = BTreeMap::from([(fast, vec![40, 40]), (slow, vec![80])]);
    assert_eq!(shares(&world, &leases), expect);
    let acme = "acme".parse().unwrap();
    assert_eq!(world.fleet.holding(&acme).ppm, 1_600_000);
    let fourth = world.ask("acme", json!({ "units_milli": 8000 }));
    world.settle();
    assert!(world.why(fourth).contains("too few GPUs free"), "{}", world.why(fourth));
    world.check();

    // Made anew, the plan finds everything where it is.
    world.plan = Plan::new(&world.fleet, world.now_ms, None);
    world.settle();
    assert_eq!(shares(&world, &leases), expect);
    world.fleet.end(leases[0], "", world.now_ms);
    world.settle();
    assert_eq!(world.state(fourth), RUNS);
    world.check();

    let gang = world.ask("acme", json!({ "units_milli": 2000, "tasks": 3 }));
    let whole = world.ask("acme", json!({ "units_milli": 15_000 }));
    world.settle();
    assert_eq!(world.state(gang), RUNS);
    assert_eq!(shares(&world, &[gang]), BTreeMap::from([(fast, vec![10, 10]), (slow, vec![20])]));
    let never = |ask: Value| {
        let ask = serde_json::from_value(ask).unwrap();
        world.plan.over_capacity(&world.fleet, &acme, &ask)
    };
    assert!(world.why(whole).contains("1 have too few GPUs free"), "{}", world.why(whole));
    assert_eq!(never(json!({ "units_milli": 20_000 })), None);
    let reason = never(json!({ "units_milli": 20_500 })).unwrap();
    assert!(reason.contains("20.5 units") && reason.contains("more than 20"), "{reason}");
    assert!(never(json!({ "units_milli": 15_000, "tasks": 2 })).unwrap().contains("room for 1"));
}

#[test]
fn fixed_work_goes_to_the_cards_on_which_it_is_guaranteed() {
    let run = |acme: Value, ask: Value| {
        let mut world = World::new(&[], &[("acme", acme)]);
        let fast = world.join_cards("fast", 1, "r0", 20_000);
        world.join_cards("slow", 1, "r0", 5000);
        world.report();
        let mine = world.ask("acme", ask);
        world.settle();
        assert_eq!(world.state(mine), RUNS, "{:?}", world.plan.why(&world.fleet, mine));
        world.check();
        shares(&world, &[mine]).contains_key(&fast)
    };
    // Five units are a quarter of one card, and all of the other.
    assert!(run(json!({ "guaranteed_milli": 250 }), json!({ "units_milli": 5000, "preemptible": false })));
    // A card is twenty units there, and five here.
    let guaranteed = json!({ "guaranteed_milli": 1000, "guaranteed_units_milli": 5000 });
    assert!(!run(guaranteed.clone(), json!({ "preemptible": false })));
    let mut world = World::new(&[], &[("acme", guaranteed)]);
    world.join_cards("slow", 1, "r0", 5000);
    let acme = "acme".parse().unwrap();
    let ask = serde_json::from_value(json!({ "units_milli": 5001, "preemptible": false })).unwrap();
    let reason = never::over_quota(&world.fleet, &acme, &ask);
    assert!(reason.is_some_and(|reason| reason.contains("guaranteed units only")));
}

#[test]
fn guaranteed_units_and_memory_are_reclaimed() {
    let guaranteed = |units_milli: u64, memory_mib: u64| json!({ "guaranteed_milli": 1000, "guaranteed_units_milli": units_milli, "guaranteed_memory_mib": memory_mib });
    let check = |acme: Value, globex: Value, ask: Value, returns: bool| {
        let mut world = World::new(&[], &[("acme", acme.clone()), ("globex", globex)]);
        world.join_cards("slow", 1, "r0", 10_000);
        world.join_cards("fast", 1, "r0", 30_000);
        world.report();
        let taken = [(); 2].map(|()| world.ask("globex", json!({})));
        world.settle();
        assert_eq!(taken.map(|lease| world.state(lease)), [RUNS; 2]);
        let mine = world.ask("acme", ask.clone());
        world.settle();
        assert_eq!(
            world.state(mine) == RUNS,
            returns,
            "{acme} {ask}: {:?}",
            world.plan.why(&world.fleet, mine)
        );
        world.check();
    };
    let within = json!({ "units_milli": 10_000, "preemptible": false });
    let beyond = json!({ "units_milli": 12_000, "preemptible": false });
    check(guaranteed(10_000, 0), guaranteed(30_000, 0), within.clone(), true);
    check(guaranteed(10_000, 0), guaranteed(30_000, 0), beyond, false);
    check(guaranteed(10_000, 16 << 10), guaranteed(30_000, 16 << 10), within.clone(), true);
    check(guaranteed(10_000, 1), guaranteed(30_000, 16 << 10), within, false);
}

/// The memory, in GiB, that a lease has on the GPU where it is.
fn memory_gib(world: &World, lease: LeaseId) -> u64 {
    world.fleet.lease(lease).unwrap().held().next().unwrap().1.memory >> 30
}

#[test]
fn a_share_has_the_same_part_of_the_memory_of_the_gpu_on_which_it_is() {
    let mut world = World::new(&[1], &[("acme", json!({})), ("small", json!({ "memory_limit_mib": 4096 }))]);
    let large = world.join_memory("large", 80 << 30);
    world.report();
    let on = |world: &mut World, tenant: &str, rack: &str| {
        let lease = world.ask(tenant, json!({ "share_ppm": 250_000, "labels": { "rack": rack } }));
        world.settle();
        lease
    };
    let [of_small, of_large] = ["r0", "r9"].map(|rack| on(&mut world, "acme", rack));
    assert_eq!([of_small, of_large].map(|lease| memory_gib(&world, lease)), [4, 20]);
    // A quarter of the large one alone is more memory than the tenant may have.
    let limited = world.ask("small", json!({ "share_ppm": 250_000 }));
    world.settle();
    assert_eq!((world.nodes_of(limited), memory_gib(&world, limited)), (vec![1], 4));

    // Made anew, the plan finds everything where it is, with what it has.
    world.plan = Plan::new(&world.fleet, world.now_ms, None);
    world.settle();
    assert_eq!([of_small, of_large].map(|lease| memory_gib(&world, lease)), [4, 20]);
    // What has to leave a GPU gets the share of the one where it goes.
    let anywhere = world.ask("acme", json!({ "share_ppm": 500_000, "gpu_memory_min": 32_u64 << 30 }));
    world.settle();
    assert_eq!(memory_gib(&world, anywhere), 40);
    world.fleet.end(anywhere, "", world.now_ms);
    let free = world.ask("acme", json!({ "share_ppm": 750_000 }));
    world.settle();
    assert_eq!((world.nodes_of(free), memory_gib(&world, free)), (vec![large], 60));
    world.fleet.end(of_small, "", world.now_ms);
    world.fleet.end(limited, "", world.now_ms);
    let drain =
        sluice_api::node::Drain { since_ms: 0, by: String::new(), why: String::new(), ends_at_ms: None };
    world.fleet.set_drain(large, Some(drain), None);
    world.fleet.preempt(free, "its node is drained".into(), world.now_ms);
    world.settle();
    assert_eq!((world.nodes_of(free), memory_gib(&world, free)), (vec![1], 12));
}
