//! Nodes that have stopped reporting, and what becomes of the leases there.
//!
//! ```text
//!             15 s, or three reports               60 s more
//!  reporting ────────────────────────▶ silent ──────────────────▶ lost
//!      ▲      nothing new is placed       │   its leases are preempted and queued again
//!      └──────────────────────────────────┴──── it reports, and ends what it should not have
//! ```
//! The server cannot know whether a lost node still runs what it was lent. No GPU is lent twice for
//! that: those of a silent node are not lent. And no program runs twice: `sluice run` starts
//! it, and asks for the next grant only when it has ended the earlier run. If `sluice run` cannot
//! be reached either, no program asks for the lease, and it ends.
//!
//! When many nodes fall silent at once it is more likely the server that is cut off, and their
//! sessions continue. A breaker then holds: nothing is queued again until enough of the others
//! report, unless an operator gives a lease notice by hand.

use sluice_api::health::{GpuFence, GpuName};
use sluice_api::lease::{LeaseId, LeaseState};
use sluice_api::node::{Drift, NodeId};

use super::account::Account;
use super::{Fleet, Node, Seat};

/// A node that has not reported for this long, or for three of its intervals, is not placed on.
const SILENT_AFTER_MS: u64 = 15_000;
/// Leases of a node that has been silent for this much longer are queued again.
const LOST_AFTER_MS: u64 = 60_000;
/// How often a node reports, if there are few. It reports at once when it has something new to say.
const REPORT_EVERY_MS_MIN: u64 = 1_000;
/// How often a node reports, if there are many.
const REPORT_EVERY_MS_MAX: u64 = 10_000;
/// Reports per second that the nodes are asked for together, as long as the intervals allow.
const REPORTS_PER_S: u64 = 100;
/// Of the nodes that report, this part may be lost at a time: one in three.
const LOST_PART: usize = 3;
/// Sums are compared with what they are sums of this often.
const COMPARE_EVERY_MS: u64 = 30_000;

/// Something about nodes and GPUs that people should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Incident {
    /// A node has stopped reporting.
    Silent {
        node: String,
    },
    /// A node that was silent reports again.
    Reports {
        node: String,
    },
    Lost {
        node: String,
        leases: Vec<LeaseId>,
    },
    /// The breaker holds from now on: `silent` nodes with leases are silent, and `online` report.
    Held {
        silent: usize,
        online: usize,
    },
    /// It does so no longer.
    Released,
    /// For what its node says; these leases have to leave.
    Fenced {
        gpu: GpuName,
        fence: GpuFence,
        leases: Vec<LeaseId>,
    },
    /// Not by an operator.
    Unfenced {
        gpu: GpuName,
        why: String,
    },
    /// Not fenced, because the breaker for GPUs holds.
    Suspected {
        gpu: GpuName,
        why: String,
    },
    /// The breaker for GPUs of a pool holds from now on: `faulty` of them became faulty within
    /// minutes.
    GpusHeld {
        pool: String,
        faulty: usize,
        gpus: usize,
    },
}

#[derive(Debug)]
pub(super) struct Silence {
    /// No node counts as silent before that: this server had not been listening.
    since_ms: u64,
    held: bool,
    compared_at_ms: u64,
    drift: Drift,
    incidents: Vec<Incident>,
}

impl Silence {
    pub(super) fn new(now_ms: u64) -> Silence {
        let drift = Drift { since_ms: now_ms, ..Drift::default() };
        Silence { since_ms: now_ms, held: false, compared_at_ms: now_ms, drift, incidents: Vec::new() }
    }

    pub(super) fn since_ms(&self) -> u64 {
        self.since_ms
    }

    /// A node that was silent reports.
    pub(super) fn reports_again(&mut self, node: &str) {
        self.incidents.push(Incident::Reports { node: node.to_owned() });
    }

    /// As far as that moment.
    pub(super) fn move_times(&mut self, by_ms: i64, most_ms: u64) {
        for at_ms in [&mut self.since_ms, &mut self.compared_at_ms] {
            *at_ms = at_ms.saturating_add_signed(by_ms).min(most_ms);
        }
    }

    /// What has been counted so far continues to be.
    pub(super) fn hear_as(&mut self, earlier: &mut Silence) {
        (self.held, self.drift) = (earlier.held, earlier.drift);
        self.incidents.append(&mut earlier.incidents);
    }
}

impl Fleet {
    pub(super) fn note(&mut self, incident: Incident) {
        self.silence.incidents.push(incident);
    }

    /// When a node is to report next: the more nodes, the later.
    pub(crate) fn report_every_ms(&self) -> u64 {
        let every_ms = self.nodes.len() as u64 * 1000 / REPORTS_PER_S;
        every_ms.clamp(REPORT_EVERY_MS_MIN, REPORT_EVERY_MS_MAX)
    }

    pub(super) fn silent_after_ms(&self) -> u64 {
        SILENT_AFTER_MS.max(3 * self.report_every_ms())
    }

    /// Whether the node reports.
    pub(crate) fn is_online(&self, node: &Node, now_ms: u64) -> bool {
        let silent_ms = |heard_ms: u64| now_ms.saturating_sub(heard_ms.saturating_add(node.deaf_ms));
        node.heard_at_ms.is_some_and(|heard_ms| silent_ms(heard_ms) < self.silent_after_ms())
    }

    fn is_lost(&self, node: &Node, now_ms: u64) -> bool {
        let heard_ms = node.heard_at_ms.unwrap_or(node.joined_at_ms).saturating_add(node.deaf_ms);
        let heard_ms = heard_ms.max(self.silence.since_ms);
        now_ms.saturating_sub(heard_ms) >= self.silent_after_ms() + LOST_AFTER_MS
    }

    /// What was put right since this server leads.
    pub(crate) fn drift(&self) -> Drift {
        self.silence.drift
    }

    pub(crate) fn take_incidents(&mut self) -> Vec<Incident> {
        std::mem::take(&mut self.silence.incidents)
    }

    /// Notices which nodes have begun or ceased to report, and which are lost; their leases get
    /// until `end_at_ms`.
    pub(crate) fn look_at_nodes(&mut self, now_ms: u64, end_at_ms: u64) {
        let differs = |node: &&Node| self.is_online(node, now_ms) != node.online;
        let changed: Vec<NodeId> = self.nodes.values().filter(differs).map(|node| node.id).collect();
        for id in changed {
            self.news.nodes.insert(id);
            let Some(node) = self.nodes.get_mut(&id) else { continue };
            node.online = !node.online;
            // It has not said that it would end.
            if !node.online && !node.report.closed && !std::mem::replace(&mut node.missed, true) {
                self.silence.incidents.push(Incident::Silent { node: node.name.clone() });
            }
        }
        let lost: Vec<NodeId> =
            self.nodes.values().filter(|node| self.is_lost(node, now_ms)).map(|node| node.id).collect();
        for &node in &lost {
            self.end_what_had_notice(node, now_ms);
        }
        if !self.breaker_holds(now_ms) {
            lost.into_iter().for_each(|node| self.lose(node, end_at_ms));
        }
        if now_ms.abs_diff(self.silence.compared_at_ms) >= COMPARE_EVERY_MS {
            self.silence.compared_at_ms = now_ms;
            self.compare_sums();
        }
    }

    /// Whether enough nodes with leases are silent that the fault may be here.
    fn breaker_holds(&mut self, now_ms: u64) -> bool {
        if now_ms.saturating_sub(self.silence.since_ms) < self.silent_after_ms() + LOST_AFTER_MS {
            // Too early to know, and nothing is lost before.
            return self.silence.held;
        }
        let online = self.nodes.values().filter(|node| node.online).count();
        let silent = |node: &&Node| !node.online && self.stays(node.id).next().is_some();
        let silent = self.nodes.values().filter(silent).count();
        let holds = silent > 0 && (online == 0 || silent > (online / LOST_PART).max(1));
        if holds != self.silence.held {
            self.silence.held = holds;
            self.silence.drift.alarms_held += u64::from(holds);
            let incident = if holds { Incident::Held { silent, online } } else { Incident::Released };
            self.silence.incidents.push(incident);
        }
        holds
    }

    /// Leases with tasks on the node that were not given up, and that have not got notice while
    /// others of their lease continue.
    fn stays(&self, node: NodeId) -> impl Iterator<Item = LeaseId> + '_ {
        let has_task = move |id: &LeaseId| {
            let seats = self.leases.get(id).map(|lease| lease.seats.as_slice()).unwrap_or_default();
            seats.iter().any(|seat| seat.node == node && seat.stays())
        };
        self.account.on_node(node).into_iter().filter(has_task)
    }

    /// Those of its seats there that are `due`.
    fn give_up_seats(&mut self, id: LeaseId, node: NodeId, due: impl Fn(&Seat) -> bool) {
        self.change(id, |lease| {
            let seats = lease.seats.iter_mut().filter(|seat| seat.node == node && due(seat));
            seats.for_each(|seat| seat.over = true);
        });
    }

    /// What was to end there by now has ended, as far as can be known.
    fn end_what_had_notice(&mut self, node: NodeId, now_ms: u64) {
        let is_due = |at_ms: Option<u64>| at_ms.is_some_and(|at_ms| at_ms <= now_ms);
        for id in self.account.on_node(node) {
            let Some(lease) = self.leases.get(&id) else { continue };
            let whole = is_due(lease.preempt_at_ms);
            let due = |seat: &Seat| whole || is_due(seat.leave_at_ms);
            if lease.held().any(|(_, seat)| seat.node == node && due(seat)) {
                self.give_up_seats(id, node, due);
                self.end_without_tasks(id, now_ms);
            }
        }
    }

    /// Gives notice to all that is there, and to tasks on other nodes that cannot continue without
    /// them; see [`Fleet::expire`] for the rest.
    fn lose(&mut self, node: NodeId, end_at_ms: u64) {
        let leases: Vec<LeaseId> = self.stays(node).collect();
        let Some(name) = self.nodes.get(&node).map(|node| node.name.clone()) else { return };
        if leases.is_empty() {
            return;
        }
        for &id in &leases {
            let has_notice = self.leases.get(&id).is_some_and(|lease| lease.state == LeaseState::Preempting);
            let reason = format!("its node {name} does not report any more");
            if has_notice || self.clear_of(id, |seat| seat.node == node, reason, end_at_ms) {
                self.give_up_seats(id, node, |_| true);
                self.silence.drift.leases_requeued += 1;
            }
        }
        self.silence.drift.nodes_lost += 1;
        self.silence.incidents.push(Incident::Lost { node: name, leases });
    }

    /// A node that had been silent says that it still has this many attempts that it should not
    /// have.
    pub(super) fn count_ended(&mut self, attempts: usize) {
        self.silence.drift.attempts_ended += attempts as u64;
    }

    /// The sums that are kept with every change, against the leases that they are sums of.
    fn compare_sums(&mut self) {
        let mut account = Account::default();
        self.leases.values().for_each(|lease| account.add(lease));
        self.silence.drift.compared_at_ms = self.silence.compared_at_ms;
        if !account.says_the_same(&self.account) {
            tracing::error!("the sums over leases were wrong; they are made anew");
            self.account = account;
            self.news.all = true;
            self.silence.drift.sums_corrected += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sluice_api::node::{Attempt, Join, Report};
    use sluice_api::tenant::Tenant;

    use super::*;

    const LOST_MS: u64 = SILENT_AFTER_MS + LOST_AFTER_MS;
    const GRACE_MS: u64 = 10_000;

    /// Nodes of one GPU each, with a lease on the node of each of these numbers, from 1.
    struct World {
        fleet: Fleet,
        sequence: u64,
    }

    impl World {
        fn new(nodes: u64, leases_on: &[&[u64]]) -> World {
            let tenant: Tenant = serde_json::from_value(json!({ "path": "acme" })).unwrap();
            let mut fleet = Fleet::new(vec![tenant], Vec::new(), Vec::new(), Vec::new(), 0, 0, 0);
            for number in 1..=nodes {
                let gpu = json!({ "name": "GPU", "uuid": "", "memory": 1 << 30, "software": true,
                                  "compute_capability": "", "driver_version": 0 });
                let join =
                    json!({ "name": format!("n{number}"), "address": "h:1", "gpus": [gpu], "release": "" });
                fleet.join(serde_json::from_value::<Join>(join).unwrap(), 0);
            }
            let mut world = World { fleet, sequence: 0 };
            for (id, nodes) in (1..).zip(leases_on) {
                let ask = serde_json::from_value(json!({ "share_ppm": 1_000_000 })).unwrap();
                assert_eq!(world.fleet.request("acme".parse().unwrap(), ask, String::new(), 0), id);
                let seats = nodes.iter().map(|&node| Seat::new(node, vec![0], 1 << 20)).collect();
                world.fleet.grant(id, seats, 0);
            }
            for node in 1..=nodes {
                world.says(node, 0, &world.should_have(node));
            }
            world
        }

        fn should_have(&self, node: NodeId) -> Vec<Attempt> {
            let here = |lease: &super::super::LeaseRecord| {
                let seats = lease.seats.iter().enumerate().filter(|(_, seat)| seat.node == node);
                seats.map(|(task, _)| lease.attempt_of(task)).collect::<Vec<_>>()
            };
            self.fleet.leases().flat_map(here).collect()
        }

        fn says(&mut self, node: NodeId, now_ms: u64, leases: &[Attempt]) -> Vec<Attempt> {
            self.sequence += 1;
            let report = Report { sequence: self.sequence, leases: leases.to_vec(), ..Report::default() };
            self.fleet.report(node, report, now_ms).unwrap()
        }

        /// As [`World::pass_all`], without which nodes fell silent and reported again.
        fn pass(&mut self, from_ms: u64, until_ms: u64, reporting: &[NodeId]) -> Vec<Incident> {
            let mut incidents = self.pass_all(from_ms, until_ms, reporting);
            let is_of_node = |it: &Incident| matches!(it, Incident::Silent { .. } | Incident::Reports { .. });
            incidents.retain(|incident| !is_of_node(incident));
            incidents
        }

        /// These nodes report until that moment, the others do not.
        fn pass_all(&mut self, from_ms: u64, until_ms: u64, reporting: &[NodeId]) -> Vec<Incident> {
            let mut incidents = Vec::new();
            for now_ms in (from_ms..=until_ms).step_by(1000) {
                for &node in reporting {
                    let held = self.should_have(node);
                    let end = self.says(node, now_ms, &held);
                    if !end.is_empty() {
                        let left: Vec<Attempt> =
                            held.into_iter().filter(|held| !end.contains(held)).collect();
                        self.says(node, now_ms, &left);
                    }
                }
                self.fleet.look_at_nodes(now_ms, now_ms + GRACE_MS);
                self.fleet.expire(now_ms);
                incidents.extend(self.fleet.take_incidents());
            }
            incidents
        }

        /// An elastic gang that has a task on each of these nodes, as they say.
        fn gang(&mut self, nodes: &[NodeId], least: u32) -> LeaseId {
            let ask = json!({ "share_ppm": 1_000_000, "tasks": least, "tasks_max": nodes.len() });
            let ask = serde_json::from_value(ask).unwrap();
            let id = self.fleet.request("acme".parse().unwrap(), ask, String::new(), 0);
            let seats = nodes.iter().map(|&node| Seat::new(node, vec![0], 1 << 20)).collect();
            self.fleet.grant(id, seats, 0);
            nodes.iter().for_each(|&node| drop(self.says(node, 0, &self.should_have(node))));
            id
        }

        /// The numbers of its tasks that hold GPUs.
        fn tasks(&self, id: LeaseId) -> Vec<u32> {
            self.fleet.lease(id).unwrap().held_tasks(|_| true)
        }

        fn state(&self, id: LeaseId) -> (LeaseState, u32) {
            self.fleet.lease(id).map_or((LeaseState::Ended, 0), |lease| (lease.state, lease.attempt))
        }
    }

    use LeaseState::{Preempting, Queued, Running};

    #[test]
    fn leases_of_a_lost_node_are_queued_again_with_all_their_tasks() {
        let mut world = World::new(3, &[&[1], &[1, 2], &[3]]);
        let early = world.pass(0, LOST_MS - 1000, &[2, 3]);
        assert_eq!((early, world.state(1)), (vec![], (Running, 1)), "silent, and not lost yet");
        assert!(!world.fleet.nodes()[&1].takes_work() && world.fleet.nodes()[&2].takes_work());

        let lost = world.pass(LOST_MS, LOST_MS, &[2, 3]);
        assert_eq!(lost, [Incident::Lost { node: "n1".into(), leases: vec![1, 2] }]);
        assert_eq!([1, 2, 3].map(|id| world.state(id).0), [Preempting, Preempting, Running]);
        let after = LOST_MS + GRACE_MS;
        assert_eq!(world.pass(LOST_MS + 1000, after, &[2, 3]), [], "it is said once");
        assert_eq!([1, 2, 3].map(|id| world.state(id)), [(Queued, 2), (Queued, 2), (Running, 1)]);
        assert!(world.fleet.lease(1).unwrap().reason.as_ref().unwrap().contains("n1"));

        // It comes back with what it should not have any more.
        let stale = [Attempt { lease: 1, attempt: 1, task: 0 }, Attempt { lease: 2, attempt: 1, task: 0 }];
        assert_eq!(world.says(1, after + 1000, &stale), stale);
        world.says(1, after + 2000, &[]);
        let drift = world.fleet.drift();
        assert_eq!((drift.nodes_lost, drift.leases_requeued, drift.attempts_ended), (1, 2, 2));
    }

    #[test]
    fn of_an_elastic_gang_a_lost_node_takes_the_tasks_there() {
        let mut world = World::new(5, &[]);
        let (elastic, stiff) = (world.gang(&[1, 2, 3], 2), world.gang(&[1, 4], 2));
        let lost = world.pass(0, LOST_MS, &[2, 3, 4, 5]);
        assert_eq!(lost, [Incident::Lost { node: "n1".into(), leases: vec![elastic, stiff] }]);
        assert_eq!([elastic, stiff].map(|id| world.state(id).0), [Running, Preempting]);
        let lease = world.fleet.lease(elastic).unwrap();
        let notices: Vec<_> = lease.seats.iter().map(|seat| seat.leave_at_ms).collect();
        assert_eq!(notices, [Some(LOST_MS + GRACE_MS), None, None]);
        assert!(lease.reason.as_ref().unwrap().contains("n1"), "{:?}", lease.reason);

        let after = LOST_MS + GRACE_MS;
        assert_eq!(world.pass(LOST_MS + 1000, after, &[2, 3, 4, 5]), [], "it is said once");
        assert_eq!((world.state(elastic), world.tasks(elastic)), ((Running, 1), vec![1, 2]));
        assert_eq!(world.fleet.lease(elastic).unwrap().reason, None, "nothing makes room any more");
        assert_eq!((world.state(stiff), world.fleet.drift().leases_requeued), ((Queued, 2), 1));
        let stale = [Attempt { lease: elastic, attempt: 1, task: 0 }];
        assert_eq!(world.says(1, after + 1000, &stale), stale, "it comes back with what it should not have");
    }

    #[test]
    fn an_elastic_gang_of_which_nothing_is_left_has_ended() {
        let mut world = World::new(3, &[]);
        let gang = world.gang(&[1, 2], 1);
        world.pass(0, LOST_MS, &[2, 3]);
        world.says(2, LOST_MS + 1, &[]);
        assert_eq!((world.state(gang).0, world.tasks(gang)), (Running, vec![0]), "it has notice");
        world.pass(LOST_MS + 1000, LOST_MS + GRACE_MS, &[3]);
        let lease = world.fleet.lease(gang).unwrap();
        assert_eq!((lease.state, lease.reason.as_deref()), (LeaseState::Ended, Some("its program ended")));
    }

    #[test]
    fn when_many_fall_silent_at_once_nothing_is_queued_again() {
        let mut world = World::new(6, &[&[1], &[2], &[3]]);
        let hour_ms = 3_600_000;
        let incidents = world.pass(0, hour_ms, &[4, 5, 6]);
        assert_eq!(incidents, [Incident::Held { silent: 3, online: 3 }]);
        assert_eq!([1, 2, 3].map(|id| world.state(id)), [(Running, 1); 3]);

        // By hand it continues; and once two of the three are back, for the third by itself.
        world.fleet.preempt(1, "by hand".into(), hour_ms);
        world.pass(hour_ms, hour_ms + 1000, &[4, 5, 6]);
        assert_eq!(world.state(1), (Queued, 2));
        let incidents = world.pass(hour_ms + 2000, hour_ms + 20_000, &[2, 4, 5, 6]);
        assert_eq!(incidents, [Incident::Released, Incident::Lost { node: "n3".into(), leases: vec![3] }]);
        assert_eq!([2, 3].map(|id| world.state(id)), [(Running, 1), (Queued, 2)]);
    }

    #[test]
    fn each_node_is_said_to_be_silent_once_and_to_report_again_once() {
        let mut world = World::new(2, &[]);
        let silent = Incident::Silent { node: "n2".into() };
        assert_eq!(world.pass_all(0, 14_000, &[1]), []);
        assert_eq!(world.pass_all(15_000, 40_000, &[1]), [silent]);
        assert_eq!(world.pass_all(41_000, 90_000, &[1, 2]), [Incident::Reports { node: "n2".into() }]);
        // A node that joins again was silent before.
        assert_eq!(world.pass_all(91_000, 120_000, &[1]).len(), 1);
        let gpu = json!({ "name": "GPU", "uuid": "", "memory": 1, "software": true, "compute_capability": "",
                          "driver_version": 0 });
        let join = json!({ "name": "n2", "address": "h:1", "gpus": [gpu], "release": "" });
        world.fleet.join(serde_json::from_value::<Join>(join).unwrap(), 120_000);
        let again = world.pass_all(121_000, 125_000, &[1, 2]);
        assert_eq!(again, [Incident::Reports { node: "n2".into() }]);
    }

    #[test]
    fn a_server_that_hears_nobody_suspects_itself() {
        let mut world = World::new(1, &[&[1]]);
        let incidents = world.pass(0, 86_400_000, &[]);
        assert_eq!(incidents, [Incident::Held { silent: 1, online: 0 }]);
        assert_eq!(world.state(1), (Running, 1));
        assert_eq!(world.pass(86_400_000, 86_401_000, &[1]), [Incident::Released]);
        assert_eq!(world.state(1), (Running, 1));
    }

    #[test]
    fn sums_that_are_wrong_are_found_and_made_anew() {
        let mut world = World::new(2, &[&[1], &[2]]);
        world.pass(0, COMPARE_EVERY_MS, &[1, 2]);
        assert_eq!(world.fleet.drift().sums_corrected, 0);
        let lease = world.fleet.lease(1).unwrap().clone();
        world.fleet.account.remove(&lease);
        world.pass(COMPARE_EVERY_MS + 1000, 2 * COMPARE_EVERY_MS, &[1, 2]);
        assert_eq!(world.fleet.drift().sums_corrected, 1);
        assert_eq!(world.fleet.taken(1, 0).ppm, 1_000_000);
    }

    #[test]
    fn many_nodes_report_less_often() {
        let every = |nodes| World::new(nodes, &[]).fleet.report_every_ms();
        assert_eq!([1, 100, 300, 2000].map(every), [1000, 1000, 3000, 10_000]);
    }
}
