use super::*;

#[test]
fn a_gang_starts_as_a_whole_or_not_at_all() {
    let mut world = World::new(&[1, 1, 1], &[("acme", json!({}))]);
    let single = world.ask("acme", share(1_000_000));
    world.settle();
    let gang = world.ask("acme", json!({ "tasks": 3 }));
    world.settle();
    assert_eq!(
        (world.state(gang), world.nodes_of(gang).len()),
        (WAITS, 0),
        "two of three places are not taken"
    );
    assert!(world.why(gang).contains("3 tasks at once"), "{}", world.why(gang));
    world.fleet.end(single, "over", 0);
    world.settle();
    assert_eq!((world.state(gang), world.nodes_of(gang).len()), (RUNS, 3));
    world.check();
}

#[test]
fn an_elastic_gang_takes_what_is_there_when_it_starts_and_more_when_there_is_more() {
    let mut world = World::new(&[1, 1, 1], &[("acme", json!({}))]);
    let single = world.ask("acme", share(1_000_000));
    world.settle();
    let gang = world.ask("acme", json!({ "tasks": 1, "tasks_max": 3 }));
    world.settle();
    assert_eq!((world.state(gang), world.nodes_of(gang).len()), (RUNS, 2));
    world.fleet.end(single, "over", 0);
    let next = world.ask("acme", share(1_000_000));
    world.settle();
    assert_eq!((world.tasks_of(gang), world.state(next)), (vec![0, 1], RUNS), "minimums come first");
    world.fleet.end(next, "over", 0);
    world.settle();
    let lease = world.fleet.lease(gang).unwrap();
    assert_eq!((world.tasks_of(gang), lease.state, lease.attempt), (vec![0, 1, 2], RUNS, 1));
    world.check();
}

#[test]
fn a_task_that_ends_gives_its_place_back_while_the_others_go_on() {
    let mut world = World::new(&[1, 1, 1], &[("acme", json!({}))]);
    let gang = world.ask("acme", json!({ "tasks": 3 }));
    world.settle();
    let [_, second, _] = world.nodes_of(gang)[..] else { panic!("three tasks") };
    let next = world.ask("acme", share(1_000_000));
    world.decide();
    world.report_without(&[(gang, 1)]);
    world.settle();
    assert_eq!((world.tasks_of(gang), world.nodes_of(next)), (vec![0, 2], vec![second]));
    assert_eq!(world.fleet.holding(&"acme".parse().unwrap()).ppm, 3 * u64::from(GPU_PPM));
    // What is left of it is not too little, however long that takes, and is all there is to give
    // way.
    world.now_ms += 3_600_000;
    world.settle();
    world.plan = Plan::new(&world.fleet, world.now_ms, None);
    world.settle();
    assert_eq!((world.tasks_of(gang), world.state(gang)), (vec![0, 2], RUNS));
    world.check();
    world.report_without(&[(gang, 0), (gang, 2)]);
    world.decide();
    assert!(world.fleet.lease(gang).is_none(), "with its last task it ends");
}

#[test]
fn an_elastic_gang_makes_room_with_what_is_above_its_minimum_and_grows_again() {
    let tenants = [("acme", json!({ "guaranteed_milli": 1000 })), ("globex", json!({}))];
    let mut world = World::new(&[1, 1, 1], &tenants);
    let gang = world.ask("globex", json!({ "tasks": 2, "tasks_max": 3 }));
    world.settle();
    assert_eq!(world.tasks_of(gang), [0, 1, 2]);
    let rightful = world.ask("acme", share(1_000_000));
    world.decide();
    let lease = world.fleet.lease(gang).unwrap().clone();
    let leave: Vec<bool> = lease.seats.iter().map(|seat| seat.leave_at_ms.is_some()).collect();
    assert_eq!((lease.state, leave), (RUNS, vec![false, false, true]), "the last ones go first");
    assert!(lease.reason.unwrap().contains("a lease of another tenant"));
    assert!(world.why(rightful).contains(&format!("lease {gang} has been given notice")));
    // Made anew while the task has notice, the plan neither counts on it nor gives its place away.
    world.plan = Plan::new(&world.fleet, world.now_ms, None);
    world.decide();
    assert_eq!(world.state(rightful), WAITS, "its place is not clear yet");
    world.settle();
    assert_eq!((world.tasks_of(gang), world.state(rightful)), (vec![0, 1], RUNS));
    world.check();

    // A second one may have the rest of the guarantee of nobody: the minimum goes as a whole, or
    // not at all.
    let beyond = world.ask("globex", json!({ "priority": 1 }));
    world.settle();
    assert_eq!((world.state(beyond), world.tasks_of(gang)), (WAITS, vec![0, 1]));
    world.fleet.end(beyond, "over", 0);
    world.fleet.end(rightful, "over", 0);
    world.settle();
    let lease = world.fleet.lease(gang).unwrap();
    assert_eq!((world.tasks_of(gang), lease.attempt), (vec![0, 1, 3], 1), "no number is used twice");
    world.check();

    world.fleet.preempt(gang, "by hand".into(), world.now_ms);
    world.settle();
    let lease = world.fleet.lease(gang).unwrap();
    assert_eq!((world.tasks_of(gang), lease.attempt), (vec![0, 1, 2], 2), "as a whole it begins anew");
    world.check();
}

#[test]
fn a_further_task_that_nobody_claims_is_taken_back() {
    let mut world = World::new(&[1, 1, 1], &[("acme", json!({}))]);
    let single = world.ask("acme", share(1_000_000));
    world.settle();
    let gang = world.ask("acme", json!({ "tasks": 2, "tasks_max": 4 }));
    world.settle();
    world.fleet.end(single, "over", 0);
    world.decide();
    let grants = |world: &World| {
        let grants = world.fleet.grants_of(world.fleet.lease(gang).unwrap());
        grants.iter().map(|grant| (grant.attempt, grant.task)).collect::<Vec<_>>()
    };
    assert_eq!((world.tasks_of(gang), grants(&world)), (vec![0, 1, 2], vec![(1, 2)]));
    world.report_without(&[(gang, 2)]);
    world.fleet.expire(world.now_ms + 50_000);
    assert_eq!(world.tasks_of(gang), [0, 1, 2], "there is time yet");
    world.now_ms += 61_000;
    world.report_without(&[(gang, 2)]);
    world.fleet.expire(world.now_ms);
    assert_eq!((world.state(gang), world.tasks_of(gang)), (RUNS, vec![0, 1]));

    // The next one is refused, which is less to hope for; that is no loss to those that run.
    world.decide();
    assert_eq!(world.tasks_of(gang), [0, 1, 3]);
    world.fleet.refuse_task(gang, 3, world.now_ms);
    world.fleet.refuse_task(gang, 0, world.now_ms);
    world.settle();
    assert_eq!((world.state(gang), world.tasks_of(gang), grants(&world)), (RUNS, vec![0, 1], vec![]));
    assert_eq!(world.fleet.lease(gang).unwrap().tasks(), (2, 2));
    world.check();
}

#[test]
fn a_spent_budget_keeps_a_gang_from_growing() {
    let mut world = World::new(&[1, 1], &[("acme", json!({})), ("globex", json!({}))]);
    let other = world.ask("globex", share(1_000_000));
    world.settle();
    let gang = world.ask("acme", json!({ "tasks": 1, "tasks_max": 2 }));
    world.settle();
    let acme: TenantPath = "acme".parse().unwrap();
    let budget = Budget { micro: 100, per: BudgetPeriod::Day, then: BudgetEnd::Hold };
    world.fleet.set_budget(acme.clone(), Some(budget));
    world.fleet.set_spent(vec![(acme.clone(), Spent { period_from_ms: 0, micro: 100 })]);
    world.settle();
    world.fleet.end(other, "over", 0);
    world.settle();
    assert_eq!(world.tasks_of(gang), [0]);
    world.fleet.set_spent(vec![(acme, Spent { period_from_ms: 1, micro: 0 })]);
    world.settle();
    assert_eq!(world.tasks_of(gang), [0, 1]);
}

#[test]
fn tasks_that_ask_for_one_rack_get_one() {
    let mut world = World::new(&[1, 1, 1, 1], &[("acme", json!({}))]);
    let single = world.ask("acme", share(1_000_000));
    world.settle();
    let gang = world.ask("acme", json!({ "tasks": 2, "same": "rack" }));
    world.settle();
    let nodes = world.nodes_of(gang);
    let taken = world.nodes_of(single)[0];
    assert!(nodes.len() == 2 && (nodes[0] - 1) / 2 == (nodes[1] - 1) / 2, "{nodes:?}");
    assert_ne!((nodes[0] - 1) / 2, (taken - 1) / 2);
    let second = world.ask("acme", json!({ "tasks": 2, "same": "rack" }));
    world.settle();
    assert!(world.why(second).contains("2 tasks in one rack are needed"), "{}", world.why(second));
}

#[test]
fn tasks_that_are_to_be_spread_get_a_rack_each_or_wait_and_say_so() {
    let mut world = World::new(&[1, 1, 1], &[("acme", json!({}))]);
    let first = world.ask("acme", json!({ "tasks": 2, "spread": "rack" }));
    world.settle();
    let racks = |world: &World, id| {
        let rack = |node| world.fleet.nodes()[&node].labels["rack"].clone();
        let mut racks: Vec<String> = world.nodes_of(id).into_iter().map(rack).collect();
        racks.sort();
        racks
    };
    assert_eq!(racks(&world, first), ["r0", "r1"]);
    let second = world.ask("acme", json!({ "tasks": 2, "spread": "rack" }));
    world.settle();
    let why = world.why(second);
    assert!(why.contains("topology: 2 tasks, each in a rack of its own, are needed, 1 fit"), "{why}");
    world.join("node3", 1, "r0");
    world.settle();
    assert_eq!(world.state(second), LeaseState::Queued, "two GPUs are free, in one rack");
    world.join("node4", 1, "r2");
    world.settle();
    assert_eq!(racks(&world, second), ["r0", "r2"]);
    world.check();
}

#[test]
fn nodes_that_do_not_say_where_they_stand_are_not_known_to_stand_apart() {
    let mut world = World::new(&[1, 1, 1, 1], &[("acme", json!({}))]);
    for node in ["node0", "node1", "node2", "node3"] {
        let gpus = world.fleet.nodes().values().find(|known| known.name == node).unwrap().gpus.clone();
        let (name, address) = (node.to_owned(), "h:1".to_owned());
        let labels = BTreeMap::new();
        world.fleet.join(Join { name, address, gpus, labels, release: String::new() }, world.now_ms);
    }
    world.settle();
    let gang = world.ask("acme", json!({ "tasks": 2, "spread": "rack" }));
    world.settle();
    let why = world.why(gang);
    assert!(why.starts_with("no node says in which rack it stands"), "{why}");
    let nodes = world.ask("acme", json!({ "tasks": 2, "spread": "node" }));
    world.settle();
    assert_eq!(world.state(nodes), LeaseState::Running);
}
