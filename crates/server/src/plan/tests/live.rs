//! What the scheduler moves continues, where it can.

use sluice_api::node::Drain;

use super::*;
use crate::fleet::MoveCause;

/// Two nodes of two GPUs with one whole lease each, and the leases.
fn two_halves() -> (World, [LeaseId; 2]) {
    let mut world = World::new(&[2, 2], &[("acme", json!({}))]);
    // Each fills a node, until the second ones end.
    let leases: Vec<LeaseId> = (0..4).map(|_| world.ask("acme", share(1_000_000))).collect();
    world.settle();
    let on = |world: &World, node| *leases.iter().find(|&&id| world.nodes_of(id) == [node]).unwrap();
    let stay = [on(&world, 1), on(&world, 2)];
    for id in leases.into_iter().filter(|id| !stay.contains(id)) {
        world.fleet.end(id, "over", 0);
    }
    world.settle();
    (world, stay)
}

fn pair() -> Value {
    json!({ "gpus": 2, "share_ppm": 1_000_000 })
}

/// What became of a lease, without its request, grant and so on.
fn told(world: &mut World, id: LeaseId) -> Vec<(&'static str, String)> {
    let events = world.fleet.take_events().into_iter().filter(|event| event.lease == id);
    let reason = |detail: &Value| detail["reason"].as_str().unwrap_or_default().to_owned();
    let events = events.map(|event| (event.action, reason(&event.detail)));
    events.filter(|(action, _)| action.contains("mov") || action.contains("preempt")).collect()
}

#[test]
fn what_is_in_the_way_goes_on_elsewhere_and_the_place_is_granted_when_it_has_left() {
    let (mut world, stay) = two_halves();
    world.fleet.take_events();
    world.slow.extend([1, 2]);
    let large = world.ask("acme", pair());
    world.settle();
    world.check();
    assert_eq!(world.state(large), WAITS, "its place is still another's");
    let moving =
        *stay.iter().find(|&&id| world.fleet.lease(id).unwrap().seats[0].target().is_some()).unwrap();
    assert!(
        world.why(large).contains(&format!("lease {moving} moves to another node")),
        "{}",
        world.why(large)
    );
    world.slow.clear();
    world.settle();
    world.check();
    assert_eq!((world.state(large), world.state(moving)), (RUNS, RUNS));
    assert_eq!(world.fleet.lease(moving).unwrap().attempt, 1, "it continues");
    let reason = format!("so that lease {large} of acme fits in its place");
    assert_eq!(told(&mut world, moving), [("lease.moving", reason), ("lease.moved", String::new())]);
}

#[test]
fn what_its_node_does_not_move_starts_again() {
    let (mut world, stay) = two_halves();
    world.fleet.take_events();
    world.stuck.extend(stay.map(|id| (id, "it holds graphs".to_owned())));
    let large = world.ask("acme", pair());
    world.settle();
    world.check();
    assert_eq!(world.state(large), RUNS);
    assert_eq!(world.nodes_of(stay[0]), world.nodes_of(stay[1]), "they are together now");
    let events: Vec<_> = world.fleet.take_events();
    let again: Vec<LeaseId> =
        stay.into_iter().filter(|&id| world.fleet.lease(id).unwrap().attempt == 2).collect();
    let [again] = again[..] else { panic!("one starts again: {events:?}") };
    let of = |action: &str| events.iter().find(|it| it.lease == again && it.action == action).unwrap();
    assert_eq!(of("lease.move_refused").detail["reason"], "it holds graphs");
    let reason = format!(
        "it starts again elsewhere, so that lease {large} of acme fits in its place; it does not move there while it \
         runs: it holds graphs"
    );
    assert_eq!(of("lease.preempted").detail["reason"], reason);
    assert_eq!(of("lease.preempted").detail["for"], large);
}

#[test]
fn what_is_not_known_to_have_moved_in_time_starts_again() {
    let (mut world, stay) = two_halves();
    world.slow.extend([1, 2]);
    let large = world.ask("acme", pair());
    world.settle();
    assert_eq!(world.state(large), WAITS);
    world.now_ms += crate::fleet::MOVE_MS_MAX;
    world.settle();
    world.check();
    assert_eq!(world.state(large), RUNS);
    let attempts = stay.map(|id| world.fleet.lease(id).unwrap().attempt);
    assert_eq!(attempts.iter().sum::<u32>(), 3, "one of them has started again: {attempts:?}");
}

#[test]
fn a_lease_that_ends_or_is_preempted_while_it_moves_leaves_nothing_behind() {
    for preempt in [false, true] {
        let (mut world, stay) = two_halves();
        world.slow.extend([1, 2]);
        let large = world.ask("acme", pair());
        world.settle();
        let is_moving = |id: &&LeaseId| world.fleet.lease(**id).unwrap().seats[0].target().is_some();
        let moving = *stay.iter().find(is_moving).unwrap();
        if preempt {
            world.fleet.preempt(moving, "by hand".into(), world.now_ms);
            assert!([1, 2].iter().all(|&node| world.fleet.move_orders(node, world.now_ms).is_empty()));
        } else {
            world.fleet.end(moving, "over", world.now_ms);
        }
        world.settle();
        world.check();
        assert_eq!(world.state(large), RUNS);
        assert!(world.fleet.moving_to(1).is_empty() && world.fleet.moving_to(2).is_empty());
        if preempt {
            assert_eq!((world.state(moving), world.fleet.lease(moving).unwrap().attempt), (RUNS, 2));
        }
    }
}

#[test]
fn a_plan_that_is_made_anew_goes_on_with_the_moves_of_the_last_one() {
    let (mut world, stay) = two_halves();
    world.slow.extend([1, 2]);
    let large = world.ask("acme", pair());
    world.settle();
    let is_moving = |world: &World, id: LeaseId| world.fleet.lease(id).unwrap().seats[0].target().is_some();
    assert_eq!(stay.iter().filter(|&&id| is_moving(&world, id)).count(), 1);
    // As a server that comes to lead does.
    world.plan = Plan::new(&world.fleet, world.now_ms, None);
    world.settle();
    assert_eq!(stay.iter().filter(|&&id| is_moving(&world, id)).count(), 1, "and begins no other");
    assert_eq!(world.state(large), WAITS);
    world.slow.clear();
    world.settle();
    world.check();
    assert_eq!((world.state(large), stay.map(|id| world.fleet.lease(id).unwrap().attempt)), (RUNS, [1, 1]));
}

#[test]
fn a_move_waits_until_its_place_is_clear() {
    let mut world = World::new(&[2, 2], &[("acme", json!({ "guaranteed_milli": 1000 }))]);
    let victim = world.ask("acme", json!({ "gpus": 2, "share_ppm": 1_000_000, "priority": 1 }));
    let one = |priority: i32| json!({ "share_ppm": 1_000_000, "priority": priority });
    let (moves, ends) = (world.ask("acme", one(50)), world.ask("acme", one(50)));
    world.settle();
    let fixed = json!({ "share_ppm": 1_000_000, "priority": 90, "preemptible": false });
    let taker = world.ask("acme", fixed);
    world.decide();
    assert_eq!(world.state(victim), LeaseState::Preempting, "its node does not know yet");
    world.fleet.end(ends, "over", 0);
    let large = world.ask("acme", pair());
    world.decide();
    let is_moving = |world: &World| world.fleet.lease(moves).unwrap().seats[0].target().is_some();
    assert!(!is_moving(&world) && world.plan.due.contains_key(&moves), "{:?}", world.plan.due);
    world.check();
    world.slow.extend([1, 2]);
    world.report();
    world.decide();
    assert!(is_moving(&world) && world.plan.due.is_empty());
    world.check();
    world.slow.clear();
    world.settle();
    world.check();
    assert_eq!([moves, taker, large].map(|id| world.state(id)), [RUNS; 3]);
    assert_eq!(world.fleet.lease(moves).unwrap().attempt, 1);
}

#[test]
fn a_due_move_whose_node_is_drained_is_decided_anew() {
    let (mut world, stay) = two_halves();
    world.slow.extend([1, 2]);
    let large = world.ask("acme", pair());
    world.decide();
    let is_moving = |id: &&LeaseId| world.fleet.lease(**id).unwrap().seats[0].target().is_some();
    let moving = *stay.iter().find(is_moving).unwrap();
    // One that is under way already is its node's matter.
    let to = world.fleet.lease(moving).unwrap().seats[0].target().unwrap().0;
    let drain = Drain { since_ms: 0, by: "me".into(), why: String::new(), ends_at_ms: None };
    world.fleet.set_drain(to, Some(drain), None);
    world.slow.clear();
    world.settle();
    world.check();
    assert_eq!((world.state(large), world.state(moving)), (RUNS, RUNS));
    assert_eq!(world.nodes_of(moving), [to]);
}

#[test]
fn what_moves_for_a_higher_priority_goes_on_and_the_rest_makes_room() {
    let mut world = World::new(&[1, 1], &[("acme", json!({ "guaranteed_milli": 500 }))]);
    let half = |priority: i32, preemptible: bool| json!({ "share_ppm": 500_000, "priority": priority, "preemptible": preemptible });
    // Two on one node; on the other one that stays, beside room for one of them.
    let low: Vec<LeaseId> = (0..2).map(|_| world.ask("acme", half(10, true))).collect();
    world.settle();
    let stays = world.ask("acme", half(10, false));
    world.settle();
    assert_eq!(world.nodes_of(low[0]), world.nodes_of(low[1]), "they are together");
    assert_ne!(world.nodes_of(low[0]), world.nodes_of(stays));
    let high = world.ask("acme", json!({ "share_ppm": 1_000_000, "priority": 90 }));
    world.settle();
    world.check();
    assert_eq!((world.state(high), world.state(stays)), (RUNS, RUNS));
    let of = |id: LeaseId| (world.state(id), world.fleet.lease(id).unwrap().attempt);
    assert_eq!((of(low[0]), of(low[1])), ((RUNS, 1), (WAITS, 2)), "the newer one waits");
    assert_eq!(world.nodes_of(low[0]), world.nodes_of(stays));
}

#[test]
fn nodes_that_refuse_moves_again_and_again_rest_and_then_one_is_tried() {
    let (mut world, stay) = two_halves();
    world.stuck.extend(stay.map(|id| (id, "no route".to_owned())));
    let [from, to] = stay.map(|id| world.nodes_of(id)[0]);
    let cause = |world: &World| {
        Some(MoveCause { reason: String::new(), taker: None, until_ms: world.now_ms + 1_000_000 })
    };
    for refusals in 1..=2 {
        assert_eq!(world.fleet.rest_between(from, to, world.now_ms), None, "{refusals}");
        let at = cause(&world);
        world.fleet.start_move(stay[0], 0, (to, vec![1]), at);
        world.report();
    }
    let rest = world.fleet.rest_between(from, to, world.now_ms).unwrap();
    assert!(
        rest.contains("the last 2 moves from node0 to node1 were refused") || rest.contains("node1 to node0")
    );
    assert!(rest.ends_with("(no route)"), "{rest}");
    assert_eq!(world.fleet.rest_between(to, from, world.now_ms), None, "the other way is another one");
    // A person who names the node may try; a place that the server chooses is elsewhere.
    world.settle();
    let now_ms = world.now_ms;
    let chosen = world.plan.find_elsewhere(&world.fleet, stay[0], 0, (None, None)).unwrap_err();
    assert!(chosen.contains("were refused, and the next one is tried in "), "{chosen}");
    assert_eq!(world.plan.find_elsewhere(&world.fleet, stay[0], 0, (Some(to), None)).unwrap().0, to);
    world.stuck.clear();
    world.now_ms = now_ms + 60_000;
    world.settle();
    assert_eq!(world.fleet.rest_between(from, to, world.now_ms), None);
    assert_eq!(world.plan.find_elsewhere(&world.fleet, stay[0], 0, (None, None)).unwrap().0, to);
    // A move that comes to be ends it.
    let at = cause(&world);
    world.fleet.start_move(stay[0], 0, (to, vec![1]), at);
    world.report();
    assert_eq!(world.nodes_of(stay[0]), [to]);
    let at = cause(&world);
    world.fleet.start_move(stay[0], 0, (from, vec![0]), at);
    world.report();
    world.stuck.insert(stay[0], "no route".into());
    let at = cause(&world);
    world.fleet.start_move(stay[0], 0, (to, vec![1]), at);
    world.report();
    assert_eq!(world.fleet.rest_between(from, to, world.now_ms), None, "it is the first refusal again");
}

#[test]
fn after_two_refusals_for_one_lease_what_is_in_its_way_starts_again() {
    let mut world = World::new(&[2; 5], &[("acme", json!({}))]);
    let leases: Vec<LeaseId> = (0..10).map(|_| world.ask("acme", share(1_000_000))).collect();
    world.settle();
    let stay: Vec<LeaseId> =
        (1..=5).map(|node| *leases.iter().find(|&&id| world.nodes_of(id) == [node]).unwrap()).collect();
    for &id in leases.iter().filter(|id| !stay.contains(id)) {
        world.fleet.end(id, "over", 0);
    }
    world.settle();
    world.fleet.take_events();
    world.stuck.extend(stay.iter().map(|&id| (id, "no route".to_owned())));
    let large = world.ask("acme", pair());
    world.settle();
    world.check();
    assert_eq!(world.state(large), RUNS);
    let events = world.fleet.take_events();
    assert_eq!(events.iter().filter(|event| event.action == "lease.move_refused").count(), 2);
    let again: Vec<&_> = events.iter().filter(|event| event.action == "lease.preempted").collect();
    let [again] = again[..] else { panic!("one starts again: {again:?}") };
    let reason = again.detail["reason"].as_str().unwrap();
    assert!(reason.ends_with(&format!("2 moves for lease {large} were refused already")), "{reason}");
}

#[test]
fn a_due_move_whose_taker_is_gone_is_not_ordered() {
    let mut world = World::new(&[2, 2], &[("acme", json!({ "guaranteed_milli": 1000 }))]);
    let victim = world.ask("acme", json!({ "gpus": 2, "share_ppm": 1_000_000, "priority": 1 }));
    let one = |priority: i32| json!({ "share_ppm": 1_000_000, "priority": priority });
    let (moves, ends) = (world.ask("acme", one(50)), world.ask("acme", one(50)));
    world.settle();
    let fixed = json!({ "share_ppm": 1_000_000, "priority": 90, "preemptible": false });
    world.ask("acme", fixed);
    world.decide();
    assert_eq!(world.state(victim), LeaseState::Preempting, "its node does not know yet");
    world.fleet.end(ends, "over", 0);
    let large = world.ask("acme", pair());
    world.decide();
    assert!(world.plan.due.contains_key(&moves), "{:?}", world.plan.due);
    let place = world.nodes_of(moves);
    world.fleet.take_events();
    world.fleet.end(large, "given up", world.now_ms);
    world.decide();
    assert!(world.plan.due.is_empty(), "{:?}", world.plan.due);
    world.settle();
    world.check();
    assert_eq!((world.state(moves), world.nodes_of(moves)), (RUNS, place));
    assert_eq!(told(&mut world, moves), [], "it has not noticed");
}

#[test]
fn what_arrives_where_all_has_to_end_has_notice() {
    for drains in [false, true] {
        let (mut world, stay) = two_halves();
        world.slow.extend([1, 2]);
        let large = world.ask("acme", pair());
        world.decide();
        let is_moving = |id: &&LeaseId| world.fleet.lease(**id).unwrap().seats[0].target().is_some();
        let moving = *stay.iter().find(is_moving).unwrap();
        let (to, gpus) = world.fleet.lease(moving).unwrap().seats[0].target().unwrap();
        let gpu = gpus[0];
        let end_at_ms = world.now_ms + 500_000;
        if drains {
            let drain = Drain { since_ms: 0, by: "me".into(), why: String::new(), ends_at_ms: None };
            world.fleet.set_drain(to, Some(drain), Some(end_at_ms));
        } else {
            super::faults::fence(&mut world, to, gpu, Clearing::End);
        }
        let begun = world.fleet.lease(moving).unwrap();
        assert_eq!((begun.state, begun.preempt_at_ms), (RUNS, None), "it is on its way");
        world.slow.clear();
        world.report();
        let arrived = world.fleet.lease(moving).unwrap();
        assert_eq!(arrived.state, LeaseState::Preempting);
        let (reason, name) = (arrived.reason.clone().unwrap(), world.fleet.nodes()[&to].name.clone());
        match drains {
            true => {
                assert_eq!(reason, format!("its node {name} is being drained"));
                assert_eq!(arrived.preempt_at_ms, Some(end_at_ms), "as those that were there");
            }
            false => assert_eq!(reason, format!("its GPU {name}/{gpu} is fenced: Xid 79")),
        }
        assert_ne!(world.state(large), LeaseState::Ended);
    }
}
