use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use sluice_api::GPU_PPM;
use sluice_api::bill::{Budget, BudgetEnd, BudgetPeriod};
use sluice_api::health::{Clearing, FenceState, GpuFence};
use sluice_api::moving::MoveResult;
use sluice_api::node::{Attempt, Gpu, Join, Report, Resized, VacatedLease};
use sluice_api::tenant::{Quota, Tenant};

use super::*;
use crate::fleet::{OrderToMove, Seat, Spent};
use crate::history::History;

mod cards;
mod faults;
mod gangs;
mod links;
mod live;
mod pools;
mod rest;
mod suspended;

/// A fleet, its plan, and nodes that have whatever was granted to them.
struct World {
    fleet: Fleet,
    plan: Plan,
    now_ms: u64,
    /// Leases that their nodes do not move, and why.
    stuck: BTreeMap<LeaseId, String>,
    /// Nodes that have not said what became of moves.
    slow: BTreeSet<NodeId>,
    /// Suspended leases whose memory has left their GPUs, and the bytes that stay.
    vacated: BTreeMap<LeaseId, u64>,
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
            bill_to: None,
        });
        let fleet = Fleet::new(tenants.collect(), Vec::new(), Vec::new(), Vec::new(), 0, 0, 0);
        let mut world = World {
            plan: Plan::new(&fleet, 0, None),
            fleet,
            now_ms: 0,
            stuck: BTreeMap::new(),
            slow: BTreeSet::new(),
            vacated: BTreeMap::new(),
            taken_ppm: BTreeMap::new(),
        };
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
        self.join_with(name, gpus, rack, (gflops, 16 << 30))
    }

    /// One GPU of so much memory, in a rack of its own.
    fn join_memory(&mut self, name: &str, memory: u64) -> NodeId {
        self.join_with(name, 1, "r9", (20_000, memory))
    }

    fn join_with(&mut self, name: &str, gpus: usize, rack: &str, (gflops, memory): (u64, u64)) -> NodeId {
        let gpu = Gpu {
            name: "GPU".into(),
            uuid: String::new(),
            memory,
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
            let moved = self.moved(node);
            let has_left =
                |attempt: &Attempt| moved.iter().any(|it| it.attempt == *attempt && it.refused.is_none());
            leases.retain(|attempt| !has_left(attempt));
            let stays = |attempt: &Attempt| {
                let stays = *self.vacated.get(&attempt.lease)?;
                Some(VacatedLease { attempt: *attempt, stays })
            };
            let vacated: Vec<VacatedLease> = leases.iter().filter_map(stays).collect();
            let resized = self.resized(node);
            let report = |leases, sequence| Report {
                sequence,
                leases,
                vacated: vacated.clone(),
                resized: resized.clone(),
                ..Report::default()
            };
            let first = Report { moved, ..report(leases.clone(), self.now_ms * 2) };
            let end = self.fleet.report(node, first, self.now_ms).unwrap();
            leases.retain(|attempt| !end.contains(attempt));
            self.fleet.report(node, report(leases, self.now_ms * 2 + 1), self.now_ms);
        }
    }

    /// A node takes every change of a lease.
    fn resized(&self, node: NodeId) -> Vec<Resized> {
        let taken = |grant: sluice_api::grant::Grant| Resized {
            attempt: Attempt { lease: grant.lease, attempt: grant.attempt, task: grant.task },
            version: grant.version,
            refused: None,
        };
        self.fleet.resizing_grants(node, self.now_ms).into_iter().map(taken).collect()
    }

    /// What becomes of the orders to a node.
    fn moved(&self, node: NodeId) -> Vec<MoveResult> {
        if self.slow.contains(&node) {
            return Vec::new();
        }
        let result = |order: OrderToMove| {
            let OrderToMove { attempt, number, .. } = order;
            let refused = self.stuck.get(&attempt.lease).cloned();
            MoveResult { attempt, number, refused, bytes: 1, stall_us: 1 }
        };
        self.fleet.move_orders(node, self.now_ms).into_iter().map(result).collect()
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

    /// Of no GPU more is leased than may be, or than was when more might be; a whole one is nobody
    /// else's. And what the scheduler has as running is what was granted.
    fn check(&mut self) {
        for node in self.fleet.nodes().values() {
            for gpu in 0..node.gpus.len() as u32 {
                let promised_ppm = u64::from(self.fleet.promised_ppm(node, gpu));
                let taken = self.fleet.taken(node.id, gpu);
                let before_ppm = self.taken_ppm.insert((node.id, gpu), taken.ppm).unwrap_or(0);
                let leasable = self.fleet.leasable_memory(node, gpu).max(16 << 30);
                assert!(taken.ppm <= promised_ppm.max(before_ppm) && taken.memory <= leasable, "{taken:?}");
                assert!(taken.whole == 0 || taken.leases == 1, "{taken:?}");
            }
        }
        for (id, work) in &self.plan.work {
            let Some(lease) = self.fleet.lease(*id) else { continue };
            if work.granted.is_some() && keeps_its_place(lease) {
                if self.plan.due.contains_key(id) {
                    continue;
                }
                let job = self.plan.scheduler.job(work.job).unwrap();
                for (task, placement) in job.tasks().filter(|(task, _)| work.seated.contains_key(task)) {
                    let site = &self.plan.sites[placement.node.index()];
                    let gpus: Vec<u32> = placement.gpus.iter().map(|gpu| site.gpus[gpu]).collect();
                    let seat = &lease.seats[work.seated[&task] as usize].at_target();
                    assert_eq!((site.node, &gpus), (seat.node, &seat.gpus), "lease {id}");
                    let held = |seat: &Seat| seat.held_memory().div_ceil(1 << 20);
                    let staying = lease.seats.iter().filter(|seat| seat.stays());
                    let most_mib = staying.map(held).max().unwrap_or(0);
                    let counted_mib = u64::from(placement.request.gpu_memory_mib);
                    assert!(
                        counted_mib == most_mib || counted_mib == held(seat),
                        "lease {id}: {counted_mib}"
                    );
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
    assert!(told.contains("a lease of another tenant is due to get it"), "{told}");
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
    let error = history.follow(world.fleet.lease(second).unwrap()).unwrap();
    let acme = "acme".parse().unwrap();
    assert_eq!(
        (error.lease, error.error_ms, history.errors(&acme).map(|errors| errors.median_ms)),
        (second, 10_000, Some(10_000))
    );

    // What somebody changes by hand is nobody's mistake.
    world.plan.estimate_all(&world.fleet, &mut history, Clock { now_ms: world.now_ms, grace_ms: 0 });
    assert!(world.plan.estimate(third).is_some());
    history.changed_by_hand();
    world.fleet.end(second, "by hand", world.now_ms);
    world.decide();
    let third = world.fleet.lease(third).unwrap();
    assert!(third.granted_at_ms.is_some());
    assert_eq!(
        (history.follow(third), history.errors(&acme).map(|errors| errors.median_ms)),
        (None, Some(10_000))
    );
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
fn basic_makes_room_for_standard() {
    let mut world = World::new(&[1], &[("acme", json!({}))]);
    let basic = world.ask("acme", json!({ "tier": "basic", "priority": 300 }));
    world.settle();
    let standard = world.ask("acme", json!({ "priority": 1 }));
    world.settle();
    assert_eq!((world.state(basic), world.state(standard)), (WAITS, RUNS));
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

#[test]
fn the_scheduler_has_queues_of_tenants_with_work_and_of_those_above_them() {
    let paths: Vec<String> = (0..3000).map(|n| format!("big/t{n}")).collect();
    let mut tenants = vec![("big", json!({ "guaranteed_milli": 2000 })), ("other", json!({}))];
    tenants.extend(paths.iter().map(|path| (path.as_str(), json!({}))));
    let mut world = World::new(&[4], &tenants);
    let queues = |world: &World| world.plan.scheduler.queues().len();
    assert_eq!(queues(&world), 0);
    let lease = world.ask("big/t7", share(500_000));
    let own = world.ask("big", share(500_000));
    world.settle();
    assert_eq!([lease, own].map(|lease| world.state(lease)), [RUNS, RUNS]);
    assert_eq!(queues(&world), 3, "big, what big asks for itself, and big/t7");
    let deserved = |world: &World, queue: &str| {
        let tree = world.plan.scheduler.queues();
        tree.queue(tree.find(queue).unwrap()).deserved[sluice_sched::queues::Resource::Gpu]
    };
    world.fleet.set_quota(
        "big/t8".parse().unwrap(),
        serde_json::from_value(json!({ "guaranteed_milli": 1500 })).unwrap(),
    );
    world.settle();
    assert_eq!((queues(&world), deserved(&world, "big itself")), (3, 500), "t8's part is kept for it");
    // Each asks once and ends: the queues of those that are done are given up.
    for path in &paths[..1000] {
        let lease = world.ask(path, share(1000));
        world.decide();
        world.fleet.end(lease, "", world.now_ms);
        world.decide();
    }
    assert!(queues(&world) <= 2 * IDLE_QUEUES_MIN, "{}", queues(&world));
    assert_eq!([lease, own].map(|lease| world.state(lease)), [RUNS, RUNS]);
    world.check();
}
