use serde_json::json;
use sluice_api::health::{Clearing, FenceState, GpuFault, GpuFence};
use sluice_api::lease::{LeaseId, LeaseState};
use sluice_api::node::{Attempt, Join, NodeId, Report};
use sluice_api::tenant::Tenant;

use super::super::{Fleet, Incident, Seat};
use super::*;

const PATIENCE: Patience = Patience { grace_ms: 10_000, quiet_ms: 300_000 };

/// Nodes that report what they are told to.
struct World {
    fleet: Fleet,
    sequence: u64,
    now_ms: u64,
    boot: &'static str,
}

impl World {
    /// Nodes of so many GPUs, numbered from 1.
    fn new(nodes: &[usize]) -> World {
        let tenant: Tenant = serde_json::from_value(json!({ "path": "acme" })).unwrap();
        let fleet = Fleet::new(vec![tenant], Vec::new(), Vec::new(), Vec::new(), 0, 0, 0);
        let mut world = World { fleet, sequence: 0, now_ms: 0, boot: "first" };
        for (number, &gpus) in (1..).zip(nodes) {
            let uuids: Vec<String> = (0..gpus).map(|gpu| format!("GPU-{number}-{gpu}")).collect();
            world.join(number, &uuids.iter().map(String::as_str).collect::<Vec<_>>());
            world.says(number, &[]);
        }
        world
    }

    fn join(&mut self, number: NodeId, uuids: &[&str]) {
        let gpu = |uuid: &&str| {
            json!({ "name": "GPU", "uuid": uuid, "memory": 1 << 30, "software": false,
                    "compute_capability": "", "driver_version": 0 })
        };
        let gpus: Vec<_> = uuids.iter().map(gpu).collect();
        let join = json!({ "name": format!("n{number}"), "address": "h:1", "gpus": gpus, "release": "" });
        self.fleet.join(serde_json::from_value::<Join>(join).unwrap(), self.now_ms);
    }

    /// A lease on these GPUs, by node; claimed unless it is said that nobody has come yet.
    fn lease(&mut self, gpus: &[(NodeId, u32)], claimed: bool) -> LeaseId {
        let ask = serde_json::from_value(json!({ "share_ppm": 500_000 })).unwrap();
        let id = self.fleet.request("acme".parse().unwrap(), ask, String::new(), self.now_ms);
        let seats = gpus.iter().map(|&(node, gpu)| Seat::new(node, vec![gpu], 1 << 20)).collect();
        self.fleet.grant(id, seats, self.now_ms);
        for &(node, _) in gpus.iter().filter(|_| claimed) {
            self.says(node, &[]);
        }
        id
    }

    /// A gang that continues with one task, if it has to; claimed.
    fn elastic(&mut self, gpus: &[(NodeId, u32)]) -> LeaseId {
        let ask = json!({ "share_ppm": 500_000, "tasks": 1, "tasks_max": 8 });
        let id = self.fleet.request(
            "acme".parse().unwrap(),
            serde_json::from_value(ask).unwrap(),
            String::new(),
            self.now_ms,
        );
        let seats = gpus.iter().map(|&(node, gpu)| Seat::new(node, vec![gpu], 1 << 20)).collect();
        self.fleet.grant(id, seats, self.now_ms);
        gpus.iter().for_each(|&(node, _)| self.says(node, &[]));
        id
    }

    /// The node reports that it has all that was granted, and these faults.
    fn says(&mut self, node: NodeId, faults: &[GpuFault]) {
        let mut leases: Vec<Attempt> = Vec::new();
        for lease in self.fleet.leases().filter(|lease| lease.holds()) {
            let here = lease.seats.iter().enumerate().filter(|(_, seat)| seat.node == node);
            leases.extend(here.map(|(task, _)| lease.attempt_of(task)));
        }
        self.sequence += 1;
        self.fleet.take_faults(node, self.boot, faults, self.now_ms, PATIENCE);
        let report = Report { sequence: self.sequence, leases, ..Report::default() };
        self.fleet.report(node, report, self.now_ms).unwrap();
    }

    /// The node reports that once a second for so long.
    fn goes_on(&mut self, node: NodeId, faults: &[GpuFault], ms: u64) {
        let until_ms = self.now_ms + ms;
        while self.now_ms < until_ms {
            self.now_ms += 1000;
            self.says(node, faults);
        }
    }

    fn by_hand(&mut self, gpu: (NodeId, u32), sessions: Clearing) -> Vec<LeaseId> {
        let fence = GpuFence {
            state: FenceState::Fenced,
            why: "its fan rattles".into(),
            by: "an operator".into(),
            since_ms: self.now_ms,
            sessions,
            lasting: true,
        };
        self.fleet.fence(gpu, fence, PATIENCE.grace_ms)
    }

    fn lease_of(&self, id: LeaseId) -> (LeaseState, Option<u64>) {
        let lease = self.fleet.lease(id).unwrap();
        (lease.state, lease.preempt_at_ms)
    }

    fn state(&self, node: NodeId, gpu: u32) -> Option<FenceState> {
        self.fleet.fence_of(node, gpu).map(|fence| fence.state)
    }
}

fn lost(gpu: u32) -> GpuFault {
    GpuFault { gpu, what: "Xid 79: it is gone".into(), sessions: Clearing::End, lasting: true }
}

fn hot(gpu: u32) -> GpuFault {
    GpuFault { gpu, what: "95 C".into(), sessions: Clearing::Finish, lasting: false }
}

const FENCED: Option<FenceState> = Some(FenceState::Fenced);
const SUSPECTED: Option<FenceState> = Some(FenceState::Suspected);

#[test]
fn sessions_on_a_fenced_gpu_finish_make_room_or_end_and_the_neighbours_stay() {
    use LeaseState::{Preempting, Running};
    for (sessions, expect) in [
        (Clearing::Finish, (Running, None)),
        (Clearing::Preempt, (Preempting, Some(10_000))),
        (Clearing::End, (Preempting, Some(3_000))),
    ] {
        let mut world = World::new(&[2, 1]);
        let there = world.lease(&[(1, 0)], true);
        let beside = world.lease(&[(1, 1)], true);
        let gang = world.lease(&[(2, 0), (1, 0)], true);
        let unclaimed = world.lease(&[(1, 0)], false);
        let leaving = world.by_hand((1, 0), sessions);
        assert_eq!([there, gang].map(|id| world.lease_of(id)), [expect; 2], "{sessions:?}");
        assert_eq!(world.lease_of(beside), (Running, None));
        let grace_ms = if sessions == Clearing::End { 3_000 } else { 10_000 };
        assert_eq!(
            world.lease_of(unclaimed),
            (Preempting, Some(grace_ms)),
            "whether it runs its node will say"
        );
        let told = world.fleet.lease(unclaimed).unwrap().reason.clone().unwrap();
        assert_eq!(told, "its GPU n1/0 is fenced: its fan rattles");
        assert_eq!(leaving.len(), if sessions == Clearing::Finish { 1 } else { 3 });
        assert!(world.fleet.is_fenced(1, 0) && !world.fleet.is_fenced(1, 1));
        assert!(world.fleet.unfence((1, 0)) && !world.fleet.unfence((1, 0)));
        assert!(!world.fleet.is_fenced(1, 0));
    }
}

#[test]
fn what_may_finish_has_to_end_when_the_card_is_lost() {
    let mut world = World::new(&[1]);
    let lease = world.lease(&[(1, 0)], true);
    world.says(1, &[hot(0)]);
    assert_eq!(world.lease_of(lease), (LeaseState::Running, None));
    world.now_ms = 1000;
    world.says(1, &[hot(0), lost(0)]);
    assert_eq!(world.lease_of(lease), (LeaseState::Preempting, Some(4_000)));
    let fence = world.fleet.fence_of(1, 0).unwrap();
    assert_eq!((fence.why.as_str(), fence.since_ms, fence.lasting), ("Xid 79: it is gone", 0, true));
    let incidents = world.fleet.take_incidents();
    assert!(matches!(&incidents[..], [Incident::Fenced { .. }, Incident::Fenced { .. }]), "{incidents:?}");
    world.says(1, &[hot(0), lost(0)]);
    assert_eq!(world.fleet.take_incidents(), [], "it is said once");
}

#[test]
fn heat_is_over_after_a_while_and_a_lost_card_stays_fenced() {
    let mut world = World::new(&[10]);
    world.says(1, &[hot(0), lost(1)]);
    world.goes_on(1, &[hot(0)], 600_000);
    assert_eq!([0, 1].map(|gpu| world.state(1, gpu)), [FENCED; 2], "still hot");
    world.goes_on(1, &[], 299_000);
    world.goes_on(1, &[hot(0)], 1000);
    world.goes_on(1, &[], 300_000);
    assert_eq!(world.state(1, 0), FENCED, "it was hot in between");
    world.goes_on(1, &[], 1000);
    assert_eq!([0, 1].map(|gpu| world.state(1, gpu)), [None, FENCED]);
}

#[test]
fn what_comes_back_for_the_fourth_time_in_a_day_stays() {
    let mut world = World::new(&[1]);
    for _ in 0..3 {
        world.says(1, &[hot(0)]);
        world.goes_on(1, &[], 302_000);
        assert_eq!(world.state(1, 0), None);
    }
    world.says(1, &[hot(0)]);
    world.goes_on(1, &[], 3_600_000);
    let fence = world.fleet.fence_of(1, 0).unwrap();
    assert_eq!((fence.why.as_str(), fence.lasting), ("95 C, again and again", true));
    world.fleet.unfence((1, 0));
    world.says(1, &[hot(0)]);
    assert!(!world.fleet.fence_of(1, 0).unwrap().lasting, "the past was answered for");
}

#[test]
fn when_many_become_faulty_at_once_the_rest_is_suspected_and_used() {
    let mut world = World::new(&[4, 4, 2]);
    let lease = world.lease(&[(2, 1)], true);
    world.says(1, &[lost(0), lost(1)]);
    assert_eq!([0, 1].map(|gpu| world.state(1, gpu)), [FENCED; 2], "one in five may");
    world.says(2, &[lost(1)]);
    assert_eq!((world.state(2, 1), world.fleet.is_fenced(2, 1)), (SUSPECTED, false));
    assert_eq!(world.lease_of(lease).0, LeaseState::Running);
    let incidents = world.fleet.take_incidents();
    let held = Incident::GpusHeld { pool: "default".into(), faulty: 3, gpus: 10 };
    assert!(incidents.contains(&held), "{incidents:?}");

    // However long it takes, it waits for a person, and says so once.
    world.now_ms += 3_600_000;
    world.says(2, &[lost(2)]);
    assert_eq!(world.state(2, 2), SUSPECTED);
    let incidents = world.fleet.take_incidents();
    assert!(matches!(&incidents[..], [Incident::Suspected { .. }]), "{incidents:?}");
    world.by_hand((2, 1), Clearing::End);
    assert_eq!(world.lease_of(lease).0, LeaseState::Preempting);
    assert!(world.fleet.unfence((2, 2)));
    world.says(3, &[lost(0)]);
    assert_eq!(world.state(3, 0), FENCED, "nothing is suspected any more");
}

#[test]
fn one_gpu_of_few_is_fenced_in_any_case() {
    let mut world = World::new(&[1, 1]);
    world.says(1, &[lost(0)]);
    world.says(2, &[lost(0)]);
    assert_eq!([1, 2].map(|node| world.state(node, 0)), [FENCED, SUSPECTED]);
}

#[test]
fn a_start_of_the_machine_ends_what_its_node_found_and_not_what_an_operator_wants() {
    let mut world = World::new(&[10]);
    world.says(1, &[lost(0)]);
    world.by_hand((1, 1), Clearing::Finish);
    world.says(1, &[]);
    assert_eq!([0, 1].map(|gpu| world.state(1, gpu)), [FENCED; 2], "the daemon alone has started anew");
    world.boot = "second";
    world.says(1, &[]);
    assert_eq!([0, 1].map(|gpu| world.state(1, gpu)), [None, FENCED]);
}

#[test]
fn a_fence_stays_with_its_card_when_places_change() {
    let mut world = World::new(&[10]);
    world.says(1, &[lost(1)]);
    world.join(1, &["GPU-1-2", "GPU-1-1"]);
    assert_eq!([0, 1].map(|gpu| world.state(1, gpu)), [None, FENCED]);
    world.join(1, &["GPU-1-2", "GPU-1-3"]);
    assert_eq!([0, 1].map(|gpu| world.state(1, gpu)), [None, None]);
    // Where the driver says nothing of use, the place has to do.
    world.join(1, &["", ""]);
    world.by_hand((1, 1), Clearing::Finish);
    assert_eq!([0, 1].map(|gpu| world.state(1, gpu)), [None, FENCED]);
}

#[test]
fn a_node_that_was_silent_has_to_be_well_for_the_whole_time() {
    let mut world = World::new(&[1]);
    world.says(1, &[hot(0)]);
    world.goes_on(1, &[], 2_000);
    world.now_ms += 600_000;
    world.fleet.look_at_nodes(world.now_ms, world.now_ms);
    world.says(1, &[]);
    // The first report after the silence begins the time anew.
    assert_eq!(world.state(1, 0), FENCED);
}

#[test]
fn of_an_elastic_gang_a_faulty_gpu_takes_the_tasks_there() {
    let mut world = World::new(&[1, 1, 1]);
    let gang = world.elastic(&[(1, 0), (2, 0)]);
    world.fleet.grow(gang, vec![Seat::new(3, vec![0], 1 << 20)], world.now_ms);
    let notices = |world: &World| -> Vec<Option<u64>> {
        world.fleet.lease(gang).unwrap().seats.iter().map(|seat| seat.leave_at_ms).collect()
    };
    // What has not begun has nothing to finish; what has continues.
    let finish = [1, 3].map(|node| world.fleet.fence((node, 0), fence(Clearing::Finish), 10_000));
    assert_eq!((finish, notices(&world)), ([vec![], vec![gang]], vec![None, None, Some(10_000)]));
    assert_eq!(world.fleet.grants_of(world.fleet.lease(gang).unwrap()).len(), 0);

    world.fleet.fence((2, 0), fence(Clearing::Preempt), 10_000);
    assert_eq!(notices(&world), [None, Some(10_000), Some(10_000)]);
    world.fleet.fence((2, 0), fence(Clearing::End), 10_000);
    assert_eq!(notices(&world), [None, Some(END_GRACE_MS), Some(10_000)], "it has less time now");
    assert_eq!(world.fleet.lease(gang).unwrap().state, LeaseState::Running);
    world.fleet.fence((1, 0), fence(Clearing::Preempt), 10_000);
    assert_eq!(world.fleet.lease(gang).unwrap().state, LeaseState::Preempting, "nothing of it is left");
}

fn fence(sessions: Clearing) -> GpuFence {
    let (why, by) = ("a test".into(), "an operator".into());
    GpuFence { state: FenceState::Fenced, why, by, since_ms: 0, sessions, lasting: true }
}
