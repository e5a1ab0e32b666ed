use sluice_api::node::NvLinks;

use super::*;

/// A node whose GPUs have four NVLinks to the other of their pair, 0 to 3 and 1 to 2; the first two
/// are near one NUMA node.
fn join_pairs(world: &mut World) {
    let gpu = |at: u32| Gpu {
        name: "GPU".into(),
        memory: 16 << 30,
        software: true,
        numa_node: Some(at / 2),
        nvlinks: vec![NvLinks { gpu: 3 - at, links: 4 }],
        ..Gpu::default()
    };
    let labels = BTreeMap::from([("switch".to_owned(), "s1".to_owned())]);
    let (name, address, release) = ("pairs".into(), "h:1".into(), String::new());
    world.fleet.join(Join { name, address, gpus: (0..4).map(gpu).collect(), labels, release }, world.now_ms);
    world.report();
}

fn gpus(world: &World, id: LeaseId) -> Vec<u32> {
    world.fleet.lease(id).unwrap().held().flat_map(|(_, seat)| seat.gpus.clone()).collect()
}

#[test]
fn gpus_of_a_lease_are_those_that_are_linked() {
    let mut world = World::new(&[], &[("acme", json!({}))]);
    join_pairs(&mut world);
    let pairs = [0; 2].map(|_| world.ask("acme", json!({ "gpus": 2 })));
    world.settle();
    assert_eq!(pairs.map(|pair| gpus(&world, pair)), [vec![0, 3], vec![1, 2]]);
    pairs.iter().for_each(|&pair| world.fleet.end(pair, "over", 0));
    world.settle();
    let near = world.ask("acme", json!({ "gpus": 2, "linked": "numa" }));
    world.settle();
    assert_eq!(gpus(&world, near), [0, 1]);
    // What is left is of different pairs.
    let pair = world.ask("acme", json!({ "gpus": 2, "linked": "nvlink" }));
    world.settle();
    assert_eq!(world.state(pair), WAITS);
    assert!(world.why(pair).contains("linked"), "{}", world.why(pair));
    world.fleet.end(near, "over", 0);
    world.settle();
    assert_eq!((world.state(pair), gpus(&world, pair)), (RUNS, vec![0, 3]));
    world.check();
    let never = |ask: Value| {
        let ask = serde_json::from_value(ask).unwrap();
        world.plan.over_capacity(&world.fleet, &"acme".parse().unwrap(), &ask)
    };
    let three = never(json!({ "gpus": 3, "linked": "nvlink" })).unwrap();
    assert!(three.contains("3 GPUs with nvlink between them"), "{three}");
    assert_eq!(never(json!({ "gpus": 3 })), None);
}

#[test]
fn tasks_stand_on_one_switch() {
    let mut world = World::new(&[], &[("acme", json!({}))]);
    for (name, switch) in [("a", "s1"), ("b", "s2"), ("c", "s2")] {
        let gpu = Gpu { name: "GPU".into(), memory: 16 << 30, software: true, ..Gpu::default() };
        let labels = BTreeMap::from([("switch".to_owned(), switch.to_owned())]);
        let (name, address, release) = (name.to_owned(), "h:1".to_owned(), String::new());
        world.fleet.join(Join { name, address, gpus: vec![gpu], labels, release }, world.now_ms);
    }
    world.report();
    let gang = world.ask("acme", json!({ "tasks": 2, "same": "switch" }));
    world.settle();
    assert_eq!(world.nodes_of(gang), [2, 3]);
    let second = world.ask("acme", json!({ "tasks": 2, "same": "switch" }));
    world.settle();
    assert!(world.why(second).contains("2 tasks in one switch are needed"), "{}", world.why(second));
}
