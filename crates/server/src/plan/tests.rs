use std::collections::BTreeMap;

use serde_json::{Value, json};
use sluice_api::GPU_PPM;
use sluice_api::bill::{Budget, BudgetEnd, BudgetPeriod};
use sluice_api::health::{Clearing, FenceState, GpuFence};
use sluice_api::node::{Attempt, Gpu, Join, Report};
use sluice_api::tenant::{Quota, Tenant};

use super::*;
use crate::fleet::Spent;
use crate::history::History;

/// A fleet, its plan, and nodes that have whatever was granted to them.
struct World {
    fleet: Fleet,
    plan: Plan,
    now_ms: u64,
    /// What leases held of GPUs when that was checked last.
    taken_ppm: BTreeMap<(NodeId, u32), u64>,
}

impl World {
    /// Nodes of so many GPUs of 16 GiB, two in each rack.
    fn new(nodes: &[usize], tenants: &[(&str, Value)]) -> World {
        let quota = |quota: &Value| serde_json::from_value::<Quota>(quota.clone()).unwrap();
        let tenants = tenants.iter().map(|(path, value)| Tenant {
            path: path.parse().unwrap(),
            quota: quota(value),
            budget: None,
        });
        let fleet = Fleet::new(tenants.collect(), Vec::new(), Vec::new(), Vec::new(), 0, 0, 0);
        let mut world =
            World { plan: Plan::new(&fleet, 0, None), fleet, now_ms: 0, taken_ppm: BTreeMap::new() };
        for (at, &gpus) in nodes.iter().enumerate() {
            world.join(&format!("node{at}"), gpus, &format!("r{}", at / 2));
        }
        world.report();
        world
    }

    fn join(&mut self, name: &str, gpus: usize, rack: &str) -> NodeId {
        self.join_cards(name, gpus, rack, 20_000)
    }

    fn join_cards(&mut self, name: &str, gpus: usize, rack: &str, gflops: u64) -> NodeId {
        let gpu = Gpu {
            name: "GPU".into(),
            uuid: String::new(),
            memory: 16 << 30,
            software: true,
            compute_capability: String::new(),
            driver_version: 0,
            gflops,
            ..Gpu::default()
        };
        let (name, address) = (name.to_owned(), "h:1".to_owned());
        let labels = BTreeMap::from([("rack".to_owned(), rack.to_owned())]);
        self.fleet
            .join(Join { name, address, gpus: vec![gpu; gpus], labels, release: String::new() }, self.now_ms)
            .id
    }

    /// Every node says that it has what was granted to it, and ends what it should not have.
    fn report(&mut self) {
        self.report_without(&[]);
    }

    /// These tasks have ended, or were never claimed.
    fn report_without(&mut self, gone: &[(LeaseId, u32)]) {
        self.now_ms += 1;
        for node in self.fleet.nodes().keys().copied().collect::<Vec<_>>() {
            let mut leases: Vec<Attempt> = Vec::new();
            for lease in self.fleet.leases().filter(|lease| lease.holds()) {
                let here = lease.held().filter(|(_, seat)| seat.node == node);
                leases.extend(here.map(|(task, _)| lease.attempt_of(task as usize)));
            }
            leases.retain(|attempt| !gone.contains(&(attempt.lease, attempt.task)));
            let report = |leases, sequence| Report { sequence, leases, ..Report::default() };
            let end = self.fleet.report(node, report(leases.clone(), self.now_ms * 2), self.now_ms).unwrap();
            leases.retain(|attempt| !end.contains(attempt));
            self.fleet.report(node, report(leases, self.now_ms * 2 + 1), self.now_ms);
        }
    }

    fn ask(&mut self, tenant: &str, ask: Value) -> LeaseId {
        let ask = serde_json::from_value(ask).unwrap();
        self.now_ms += 1;
        self.fleet.request(tenant.parse().unwrap(), ask, String::new(), self.now_ms)
    }

    fn decide(&mut self) {
        while self.plan.decide(&mut self.fleet, Clock { now_ms: self.now_ms, grace_ms: 0 }) {}
        self.fleet.take_changed();
    }

    /// Decides, and lets the nodes follow, until nothing changes any more.
    fn settle(&mut self) {
        for _ in 0..10 {
            self.decide();
            self.report();
        }
        self.decide();
    }

    fn state(&self, id: LeaseId) -> LeaseState {
        self.fleet.lease(id).unwrap().state
    }

    fn why(&self, id: LeaseId) -> String {
        self.plan.why(&self.fleet, id).unwrap()
    }

    /// When it is expected to start.
    fn starts(&mut self, id: LeaseId) -> Option<u64> {
        self.now_ms += 2_000;
        let clock = Clock { now_ms: self.now_ms, grace_ms: 0 };
        self.plan.estimate_all(&self.fleet, &mut History::default(), clock);
        self.plan.estimate(id).unwrap().at_ms
    }

    fn nodes_of(&self, id: LeaseId) -> Vec<NodeId> {
        self.fleet.lease(id).unwrap().held().map(|(_, seat)| seat.node).collect()
    }

    /// The numbers of its tasks that hold GPUs.
    fn tasks_of(&self, id: LeaseId) -> Vec<u32> {
        self.fleet.lease(id).unwrap().held().map(|(task, _)| task).collect()
    }

    /// Of no GPU more is leased than may be, or than was when more might be; a whole one is nobody else's. And what the scheduler has as
    /// running is what was granted.
    fn check(&mut self) {
        for node in self.fleet.nodes().values() {
            let promised_ppm = u64::from(self.fleet.promised_ppm(node));
            for gpu in 0..node.gpus.len() as u32 {
                let taken = self.fleet.taken(node.id, gpu);
                let before_ppm = self.taken_ppm.insert((node.id, gpu), taken.ppm).unwrap_or(0);
                assert!(taken.ppm <= promised_ppm.max(before_ppm) && taken.memory <= 16 << 30, "{taken:?}");
                assert!(taken.whole == 0 || taken.leases == 1, "{taken:?}");
            }
        }
        for (id, work) in &self.plan.work {
            let Some(lease) = self.fleet.lease(*id) else { continue };
            if work.granted.is_some() && keeps_its_place(lease) {
                let job = self.plan.scheduler.job(work.job).unwrap();
                for (task, placement) in job.tasks().filter(|(task, _)| work.seated.contains_key(task)) {
                    let site = &self.plan.sites[placement.node.index()];
                    let gpus: Vec<u32> = placement.gpus.iter().map(|gpu| site.gpus[gpu]).collect();
                    let seat = &lease.seats[work.seated[&task] as usize];
                    assert_eq!((site.node, &gpus), (seat.node, &seat.gpus), "lease {id}");
                }
                let mut seated: Vec<u32> = work.seated.values().copied().collect();
                seated.sort_unstable();
                let stay = (0..).zip(&lease.seats).filter(|(_, seat)| seat.stays());
                assert_eq!(seated, stay.map(|(task, _)| task).collect::<Vec<u32>>(), "lease {id}");
                assert!((job.spec().tasks_min..=job.spec().tasks_max).contains(&(seated.len() as u32)));
            }
        }
    }
}

fn share(share_ppm: u32) -> Value {
    json!({ "share_ppm": share_ppm })
}

const RUNS: LeaseState = LeaseState::Running;
const WAITS: LeaseState = LeaseState::Queued;

#[test]
fn fractions_fill_a_gpu_and_the_next_waits() {
    let mut world = World::new(&[1], &[("acme", json!({}))]);
    let leases: Vec<LeaseId> = (0..5).map(|_| world.ask("acme", share(250_000))).collect();
    world.settle();
    assert_eq!(leases.iter().filter(|&&lease| world.state(lease) == RUNS).count(), 4);
    assert!(world.why(leases[4]).contains("room"), "{}", world.why(leases[4]));
    world.fleet.end(leases[0], "over", 0);
    world.settle();
    assert_eq!(world.state(leases[4]), RUNS);
}

#[test]
fn fractions_share_a_gpu_so_that_whole_ones_stay_whole() {
    let mut world = World::new(&[2, 2], &[("acme", json!({}))]);
    let halves: Vec<LeaseId> = (0..4).map(|_| world.ask("acme", share(500_000))).collect();
    world.settle();
    let whole = world.ask("acme", json!({ "gpus": 2 }));
    world.settle();
    assert_eq!(world.state(whole), RUNS, "first fit by GPU would have left no node empty");
    let nodes: Vec<NodeId> = halves.iter().flat_map(|&half| world.nodes_of(half)).collect();
    assert!(nodes.iter().all(|node| *node == nodes[0]), "{nodes:?}");
}

#[test]
fn what_is_guaranteed_is_reclaimed_and_waits_until_the_place_is_clear() {
    let mut world = World::new(&[1], &[("acme", json!({ "guaranteed_milli": 1000 })), ("globex", json!({}))]);
    let greedy = world.ask("globex", share(1_000_000));
    world.settle();
    let rightful = world.ask("acme", share(500_000));
    world.decide();
    assert_eq!((world.state(greedy), world.state(rightful)), (LeaseState::Preempting, WAITS));
    let told = world.fleet.lease(greedy).unwrap().reason.clone().unwrap();
    assert!(told.contains(&format!("lease {rightful} of acme")), "{told}");
    assert!(world.why(rightful).contains(&format!("lease {greedy} has been given notice")));
    world.decide();
    assert_eq!(world.state(rightful), WAITS, "its place is not clear yet");
    world.settle();
    assert_eq!((world.state(greedy), world.state(rightful)), (WAITS, RUNS));
}

#[test]
fn priority_preempts_within_a_tenant_only() {
    let guaranteed = || json!({ "guaranteed_milli": 1000 });
    let mut world = World::new(&[2], &[("acme", guaranteed()), ("globex", guaranteed())]);
    let low = world.ask("acme", share(1_000_000));
    let other = world.ask("globex", json!({ "priority": 1 }));
    world.settle();
    let high = world.ask("acme", json!({ "priority": 200 }));
    world.settle();
    assert_eq!([low, other, high].map(|lease| world.state(lease)), [WAITS, RUNS, RUNS]);
}

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
    // What is left of it is not too little, however long that takes, and is all there is to give way.
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
    assert!(lease.reason.unwrap().contains(&format!("lease {rightful} of acme")));
    assert!(world.why(rightful).contains(&format!("lease {gang} has been given notice")));
    // Made anew while the task has notice, the plan neither counts on it nor gives its place away.
    world.plan = Plan::new(&world.fleet, world.now_ms, None);
    world.decide();
    assert_eq!(world.state(rightful), WAITS, "its place is not clear yet");
    world.settle();
    assert_eq!((world.tasks_of(gang), world.state(rightful)), (vec![0, 1], RUNS));
    world.check();

    // A second one may have the rest of the guarantee of nobody: the minimum goes as a whole, or not at all.
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

#[test]
fn who_is_preempted_by_hand_goes_to_the_end_of_its_line() {
    let mut world = World::new(&[1], &[("acme", json!({}))]);
    let first = world.ask("acme", share(1_000_000));
    world.settle();
    let second = world.ask("acme", share(1_000_000));
    world.settle();
    world.fleet.preempt(first, "by hand".into(), world.now_ms);
    world.fleet.go_last(first, world.now_ms);
    world.settle();
    assert_eq!((world.state(first), world.state(second)), (WAITS, RUNS));
}

#[test]
fn a_tenant_and_those_below_it_share_its_quota() {
    let tenants = [
        ("acme", json!({ "guaranteed_milli": 1000 })),
        ("acme/a", json!({})),
        ("acme/b", json!({ "guaranteed_milli": 500 })),
    ];
    let mut world = World::new(&[2], &tenants);
    let leases = ["acme", "acme/a", "acme/b"].map(|tenant| world.ask(tenant, share(500_000)));
    world.settle();
    assert_eq!(leases.map(|lease| world.state(lease)), [RUNS; 3]);
}

#[test]
fn a_number_of_leases_is_a_limit_too() {
    let mut world = World::new(&[1], &[("acme", json!({ "leases_limit": 1 }))]);
    let [first, second] = [0; 2].map(|_| world.ask("acme", share(100_000)));
    world.settle();
    assert_eq!((world.state(first), world.state(second)), (RUNS, WAITS));
    assert!(world.why(second).contains("acme has 1 leases"), "{}", world.why(second));
    world.fleet.end(first, "over", 0);
    world.settle();
    assert_eq!(world.state(second), RUNS);
}

#[test]
fn quotas_change_under_running_work() {
    let mut world = World::new(&[2], &[("acme", json!({ "limit_milli": 1000 }))]);
    let [first, second] = [0; 2].map(|_| world.ask("acme", share(1_000_000)));
    world.settle();
    assert_eq!((world.state(first), world.state(second)), (RUNS, WAITS));
    assert!(world.why(second).contains("limit"), "{}", world.why(second));
    world.fleet.set_quota("acme".parse().unwrap(), Quota::default());
    // A tenant below it: its own work goes to a queue beside that one's.
    world.fleet.set_quota("acme/a".parse().unwrap(), Quota::default());
    world.settle();
    assert_eq!((world.state(first), world.state(second)), (RUNS, RUNS));
    world.check();
}

#[test]
fn a_start_is_expected_when_those_before_it_are_due_to_end() {
    let mut world = World::new(&[1], &[("acme", json!({}))]);
    let first = world.ask("acme", json!({ "duration_ms": 60_000 }));
    world.settle();
    let (second, third) = (world.ask("acme", json!({ "duration_ms": 1000 })), world.ask("acme", json!({})));
    let fourth = world.ask("acme", json!({}));
    world.settle();
    let mut history = History::default();
    world.plan.estimate_all(&world.fleet, &mut history, Clock { now_ms: 10_000, grace_ms: 0 });
    let begun = world.fleet.lease(first).unwrap().granted_at_ms.unwrap();
    let at = |id| world.plan.estimate(id).unwrap().at_ms;
    assert_eq!([at(second), at(third), at(fourth)], [Some(begun + 60_000), Some(begun + 61_000), None]);
    assert!(world.plan.estimate(fourth).is_some_and(|estimate| !estimate.because.is_empty()));

    // What it was off by is known once it has started.
    world.now_ms = begun + 50_000;
    world.fleet.end(first, "over", world.now_ms);
    world.decide();
    history.follow(world.fleet.lease(second).unwrap());
    assert_eq!(history.error_ms(), Some(10_000));
}

#[test]
fn who_makes_a_start_unknown_is_named() {
    let tenants = [("acme", json!({ "limit_milli": 1000 })), ("globex", json!({}))];
    let mut world = World::new(&[1, 1], &tenants);
    let other = world.ask("globex", json!({}));
    let own = world.ask("acme", json!({}));
    let (limited, crowded) = (world.ask("acme", json!({})), world.ask("globex", json!({})));
    world.settle();
    assert_eq!([limited, crowded].map(|id| world.starts(id)), [None; 2]);
    let because = |id| world.plan.estimate(id).unwrap().because.clone();
    assert!(because(limited).contains(&format!("lease {own} did not say")), "{}", because(limited));
    assert!(because(crowded).contains(&format!("lease {other} did not say")), "{}", because(crowded));
}

#[test]
fn who_has_used_much_of_late_comes_after_the_others() {
    const MINUTE_MS: u64 = 60_000;
    let winner = |half_life_ms, anew: fn(&mut World, &[LeaseRecord])| {
        let mut world = World::new(&[1], &[("acme", json!({})), ("globex", json!({}))]);
        world.plan = Plan::new(&world.fleet, world.now_ms, half_life_ms);
        let first = world.ask("acme", json!({}));
        world.settle();
        world.now_ms += 10 * MINUTE_MS;
        world.decide();
        world.fleet.end(first, "over", world.now_ms);
        let past = world.fleet.lease(first).unwrap().clone();
        world.decide();
        anew(&mut world, &[past]);
        let leases = [world.ask("acme", json!({})), world.ask("globex", json!({}))];
        world.decide();
        leases.iter().position(|&id| world.state(id) == LeaseState::Granted)
    };
    let as_it_is: fn(&mut World, &[LeaseRecord]) = |_, _| {};
    let other_pools: fn(&mut World, &[LeaseRecord]) = |world, _| {
        world.fleet.set_pool(serde_json::from_value(json!({ "name": "other", "nodes": ["n"] })).unwrap());
        world.decide();
    };
    let restart: fn(&mut World, &[LeaseRecord]) = |world, past| {
        world.plan = Plan::new(&world.fleet, world.now_ms, Some(MINUTE_MS));
        world.plan.recall_use(&world.fleet, past);
    };
    assert_eq!(winner(None, as_it_is), Some(0), "nothing of the past counts, and it asked first");
    let after = [as_it_is, other_pools, restart].map(|anew| winner(Some(MINUTE_MS), anew));
    assert_eq!(after, [Some(1); 3]);
}

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
fn basic_makes_room_for_standard() {
    let mut world = World::new(&[1], &[("acme", json!({}))]);
    let basic = world.ask("acme", json!({ "tier": "basic", "priority": 300 }));
    world.settle();
    let standard = world.ask("acme", json!({ "priority": 1 }));
    world.settle();
    assert_eq!((world.state(basic), world.state(standard)), (WAITS, RUNS));
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

#[test]
fn what_ends_while_the_plan_is_made_anew_holds_nothing() {
    let mut world = World::new(&[1], &[("acme", json!({}))]);
    let first = world.ask("acme", share(1_000_000));
    world.settle();
    let second = world.ask("acme", share(1_000_000));
    world.fleet.end(first, "over", 0);
    // As where a node came back with other GPUs: the news is in the new plan.
    world.fleet.take_news();
    world.plan = Plan::new(&world.fleet, world.now_ms, None);
    world.settle();
    assert_eq!(world.state(second), RUNS);
}

#[test]
fn a_request_that_never_fits_is_known_at_once() {
    let mut world = World::new(&[2, 1], &[("acme", json!({ "limit_milli": 2500 })), ("globex", json!({}))]);
    world.decide();
    let never = |tenant: &str, ask: Value| {
        let (tenant, ask) = (tenant.parse().unwrap(), serde_json::from_value(ask).unwrap());
        never::over_quota(&world.fleet, &tenant, &ask)
            .or_else(|| world.plan.over_capacity(&world.fleet, &tenant, &ask))
    };
    assert_eq!(never("globex", json!({ "gpus": 2, "tasks": 1 })), None);
    for (tenant, ask, words) in [
        ("acme", json!({ "tasks": 3 }), "acme may hold 2.5"),
        ("acme", json!({ "preemptible": false }), "guaranteed"),
        ("globex", json!({ "gpus": 3 }), "3 GPUs on one node"),
        ("globex", json!({ "memory": 17_u64 << 30 }), "17408 MiB"),
        ("globex", json!({ "tasks": 4 }), "room for 3"),
        ("globex", json!({ "tasks": 3, "same": "node" }), "the largest, empty, has room for 2"),
        ("globex", json!({ "tasks": 3, "spread": "node" }), "could take one, if they were empty, stand in 2"),
    ] {
        let reason = never(tenant, ask.clone()).unwrap_or_default();
        assert!(reason.contains(words), "{ask}: {reason}");
    }
}

/// Whatever comes, no GPU is promised twice, and a plan made anew from the fleet agrees on who runs where.
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

/// Of two leases on a GPU one goes, and the place is granted when it is clear, though the sum of the shares was above the GPU before.
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

/// A plan that is made anew, by a server that comes to lead, knows what was leased when the pool promised more.
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

fn fence(world: &mut World, node: NodeId, gpu: u32, sessions: Clearing) {
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

    // Whoever is next takes the room that it could not use, at once; one node is left for it when that has reported.
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
fn a_node_that_takes_no_leases_is_passed_over_and_named() {
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
