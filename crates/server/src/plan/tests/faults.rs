use super::*;
use crate::fleet::MoveCause;

pub(super) fn fence(world: &mut World, node: NodeId, gpu: u32, sessions: Clearing) {
    let fence = GpuFence {
        state: FenceState::Fenced,
        why: "Xid 79".into(),
        by: String::new(),
        since_ms: world.now_ms,
        sessions,
        lasting: true,
    };
    world.fleet.fence((node, gpu), fence, 0);
}

#[test]
fn what_ran_on_a_fenced_gpu_goes_on_elsewhere_and_nothing_new_comes_to_it() {
    let mut world = World::new(&[1, 1], &[("acme", json!({}))]);
    let first = world.ask("acme", share(1_000_000));
    world.settle();
    let [faulty] = world.nodes_of(first)[..] else { panic!("one task") };
    fence(&mut world, faulty, 0, Clearing::End);
    world.settle();
    assert_eq!((world.state(first), world.fleet.lease(first).unwrap().attempt), (RUNS, 2));
    assert_ne!(world.nodes_of(first), [faulty]);
    let second = world.ask("acme", share(500_000));
    world.settle();
    assert_eq!(world.state(second), WAITS);
    assert!(
        world.why(second).ends_with("; fenced: node0/0 (Xid 79)")
            || world.why(second).ends_with("; fenced: node1/0 (Xid 79)"),
        "{}",
        world.why(second)
    );
    world.check();

    // Also after the plan has been made anew, with what runs on a fenced GPU to its end.
    let healthy = world.nodes_of(first)[0];
    fence(&mut world, healthy, 0, Clearing::Finish);
    world.plan = Plan::new(&world.fleet, world.now_ms, None);
    world.settle();
    assert_eq!([first, second].map(|id| world.state(id)), [RUNS, WAITS]);
    assert!(
        world.why(second).contains("fenced: node0/0 (Xid 79), node1/0 (Xid 79)"),
        "{}",
        world.why(second)
    );
    world.fleet.end(first, "over", 0);
    world.settle();
    assert_eq!(world.state(second), WAITS, "the room that it left is fenced");
    world.fleet.unfence((healthy, 0));
    world.settle();
    assert_eq!((world.state(second), world.nodes_of(second)), (RUNS, vec![healthy]));
    world.check();
}

#[test]
fn what_runs_on_a_fenced_gpu_moves_and_what_cannot_has_notice() {
    let mut world = World::new(&[1, 1], &[("acme", json!({}))]);
    let leases = [(); 2].map(|()| world.ask("acme", share(250_000)));
    world.settle();
    let [faulty] = world.nodes_of(leases[0])[..] else { panic!("one task") };
    assert_eq!(world.nodes_of(leases[1]), [faulty]);
    world.fleet.take_events();
    world.stuck.insert(leases[1], "it holds graphs".into());
    fence(&mut world, faulty, 0, Clearing::Preempt);
    world.settle();
    world.check();
    let of = |id: LeaseId| {
        (world.state(id), world.fleet.lease(id).unwrap().attempt, world.nodes_of(id) == [faulty])
    };
    assert_eq!(leases.map(of), [(RUNS, 1, false), (RUNS, 2, false)]);
    let events = world.fleet.take_events();
    let why = |id: LeaseId, action: &str| {
        let event = events.iter().find(|event| event.lease == id && event.action == action).unwrap();
        event.detail["reason"].as_str().unwrap().to_owned()
    };
    let name = &world.fleet.nodes()[&faulty].name;
    assert_eq!(why(leases[0], "lease.moving"), format!("since its GPU {name}/0 is fenced: Xid 79"));
    let notice =
        format!("its GPU {name}/0 is fenced: Xid 79; it does not move while it runs: it holds graphs");
    assert_eq!(why(leases[1], "lease.preempted"), notice);
    assert!(!events.iter().any(|event| event.lease == leases[0] && event.action == "lease.preempted"));
}

#[test]
fn what_runs_on_a_fenced_gpu_is_moved_although_its_node_has_refused_moves() {
    let mut world = World::new(&[2, 2], &[("acme", json!({}))]);
    let [stuck, moves] = [(); 2].map(|()| world.ask("acme", share(1_000_000)));
    world.settle();
    let [from] = world.nodes_of(stuck)[..] else { panic!("one task") };
    assert_eq!(world.nodes_of(moves), [from], "they are together");
    let to = world.fleet.nodes().keys().copied().find(|&node| node != from).unwrap();
    world.stuck.insert(stuck, "it holds graphs".into());
    for _ in 0..2 {
        let cause = MoveCause { reason: String::new(), taker: None, until_ms: world.now_ms + 1_000_000 };
        world.fleet.start_move(stuck, 0, (to, vec![0]), Some(cause));
        world.report();
    }
    assert!(world.fleet.rest_between(from, to, world.now_ms).is_some());
    let gpu = world.fleet.lease(moves).unwrap().seats[0].gpus[0];
    fence(&mut world, from, gpu, Clearing::Preempt);
    world.settle();
    assert_eq!((world.nodes_of(moves), world.fleet.lease(moves).unwrap().attempt), (vec![to], 1));
}

#[test]
fn without_a_place_elsewhere_what_runs_on_a_fenced_gpu_has_notice() {
    let mut world = World::new(&[1, 1], &[("acme", json!({}))]);
    let leases = [(); 2].map(|()| world.ask("acme", share(1_000_000)));
    world.settle();
    let [faulty] = world.nodes_of(leases[0])[..] else { panic!("one task") };
    fence(&mut world, faulty, 0, Clearing::Preempt);
    world.settle();
    world.check();
    assert_eq!(leases.map(|id| world.state(id)), [WAITS, RUNS]);
    assert_eq!(world.fleet.lease(leases[0]).unwrap().attempt, 2);
}

#[test]
fn a_gpu_whose_programs_compute_nothing_right_gives_none_of_them_away() {
    let mut world = World::new(&[1, 1], &[("acme", json!({}))]);
    let lease = world.ask("acme", share(250_000));
    world.settle();
    let [faulty] = world.nodes_of(lease)[..] else { panic!("one task") };
    fence(&mut world, faulty, 0, Clearing::End);
    world.decide();
    assert_eq!(world.state(lease), LeaseState::Preempting);
    world.settle();
    assert_eq!((world.state(lease), world.fleet.lease(lease).unwrap().attempt), (RUNS, 2));
}

#[test]
fn a_task_of_an_elastic_gang_goes_on_elsewhere_while_the_others_stay() {
    let mut world = World::new(&[1, 1, 1], &[("acme", json!({}))]);
    let gang = world.ask("acme", json!({ "tasks": 1, "tasks_max": 2 }));
    world.settle();
    let [stays, faulty] = world.nodes_of(gang)[..] else { panic!("two tasks") };
    fence(&mut world, faulty, 0, Clearing::End);
    world.settle();
    let lease = world.fleet.lease(gang).unwrap();
    assert_eq!((lease.state, lease.attempt, &lease.reason), (RUNS, 1, &None));
    assert_eq!(world.tasks_of(gang), [0, 2]);
    let [same, other] = world.nodes_of(gang)[..] else { panic!("two tasks") };
    assert!(same == stays && other != faulty && other != stays);
    world.check();
}

#[test]
fn what_was_bound_to_a_gpu_that_is_fenced_meanwhile_finds_another() {
    let mut world =
        World::new(&[1, 1], &[("acme", json!({ "guaranteed_milli": 1000 })), ("globex", json!({}))]);
    let greedy = [world.ask("globex", share(1_000_000)), world.ask("globex", share(1_000_000))];
    world.settle();
    let rightful = world.ask("acme", share(1_000_000));
    world.decide();
    let given = greedy.into_iter().find(|&id| world.state(id) == LeaseState::Preempting).unwrap();
    let bound_to = world.nodes_of(given)[0];
    assert!(world.why(rightful).contains("has been given notice"), "{}", world.why(rightful));
    fence(&mut world, bound_to, 0, Clearing::Preempt);
    world.settle();
    assert_eq!(world.state(rightful), RUNS, "it is guaranteed one GPU, and one is left");
    assert_ne!(world.nodes_of(rightful), [bound_to]);
    world.check();
}

#[test]
fn what_has_to_leave_after_the_plan_was_made_anew_still_goes_where_it_asked_to() {
    let mut world = World::new(&[1, 1, 1], &[("acme", json!({}))]);
    let lease = world.ask("acme", json!({ "labels": { "rack": "r0" } }));
    world.settle();
    let nodes: Vec<NodeId> = world.fleet.nodes().keys().copied().collect();
    assert!(nodes[..2].contains(&world.nodes_of(lease)[0]), "the first two are in that rack");
    world.plan = Plan::new(&world.fleet, world.now_ms, None);
    nodes[..2].iter().for_each(|&node| fence(&mut world, node, 0, Clearing::End));
    world.settle();
    assert_eq!(world.state(lease), WAITS, "the third one is in another rack");
    world.fleet.unfence((nodes[0], 0));
    world.settle();
    assert_eq!((world.state(lease), world.nodes_of(lease)), (RUNS, vec![nodes[0]]));
}

#[test]
fn a_refused_lease_looks_elsewhere_and_closes_no_node_to_others() {
    let mut world = World::new(&[1, 1], &[("acme", json!({})), ("globex", json!({}))]);
    let refused = world.ask("acme", json!({ "share_ppm": 1_000_000 }));
    world.decide();
    let [first] = world.nodes_of(refused)[..] else { panic!("one task") };
    world.fleet.refuse(refused, "cannot be reached", world.now_ms);
    world.decide();
    let [second] = world.nodes_of(refused)[..] else { panic!("one task") };
    assert_ne!(second, first, "it goes elsewhere");
    world.fleet.refuse(refused, "cannot be reached either", world.now_ms);
    world.decide();
    assert_eq!(world.state(refused), LeaseState::Queued, "both have refused it");
    assert!(world.why(refused).contains("take no new work"), "{}", world.why(refused));

    // Whoever is next takes the room that it could not use, at once; one node is left for it when
    // that has reported.
    let next = world.ask("globex", json!({ "share_ppm": 1_000_000 }));
    world.decide();
    assert_eq!(world.state(next), LeaseState::Granted);
    world.check();
    world.report();
    world.decide();
    assert_eq!(world.state(refused), LeaseState::Granted);
    assert_ne!(world.nodes_of(refused), world.nodes_of(next));
    world.check();
}

#[test]
fn nothing_is_taken_from_others_for_a_lease_that_was_refused_a_moment_ago() {
    let tenants = [("acme", json!({ "guaranteed_milli": 1000 })), ("globex", json!({}))];
    let mut world = World::new(&[1, 1], &tenants);
    let refused = world.ask("acme", json!({ "share_ppm": 1_000_000 }));
    world.decide();
    let takes = [(); 2].map(|()| world.ask("globex", json!({ "share_ppm": 1_000_000 })));
    world.fleet.refuse(refused, "no", world.now_ms);
    world.decide();
    let elsewhere = world.nodes_of(refused);
    assert_eq!(world.state(refused), LeaseState::Granted);
    // Made anew, the plan still knows whom it was refused by.
    world.fleet.refuse(refused, "no", world.now_ms);
    world.plan = Plan::new(&world.fleet, world.now_ms, None);
    world.decide();
    assert_eq!(world.state(refused), LeaseState::Queued, "it was on {elsewhere:?}");
    assert_eq!(takes.map(|id| world.state(id)), [LeaseState::Granted; 2]);
    // Its guarantee counts again when they have reported.
    world.report();
    world.decide();
    assert!(takes.iter().any(|&id| world.state(id) == LeaseState::Preempting));
    world.settle();
    assert_eq!(world.state(refused), LeaseState::Running);
    world.check();
}

#[test]
fn a_node_that_takes_no_leases_is_skipped_and_named() {
    let mut world = World::new(&[1, 1], &[("acme", json!({}))]);
    let closes = |world: &mut World, node| {
        let held = world.fleet.nodes()[&node].report.leases.clone();
        world.now_ms += 1;
        let report = Report { sequence: world.now_ms * 2, leases: held, closed: true, ..Report::default() };
        world.fleet.report(node, report, world.now_ms).unwrap();
    };
    closes(&mut world, 1);
    let first = world.ask("acme", share(500_000));
    world.decide();
    assert_eq!(world.nodes_of(first), [2]);
    world.settle();
    closes(&mut world, 1);
    closes(&mut world, 2);
    let second = world.ask("acme", share(500_000));
    world.decide();
    assert_eq!((world.state(first), world.state(second)), (RUNS, WAITS));
    assert!(world.why(second).contains("node0 takes no new leases"), "{}", world.why(second));
    world.settle();
    assert_eq!(world.state(second), RUNS, "they take some again");
}
