//! What becomes of moments when clocks are set, when no server listened, and when another server
//! leads.

use sluice_api::lease::{LeaseId, LeaseState};

use super::{Fleet, LeaseRecord};

impl Fleet {
    /// This server's clock has been set by `by_ms` milliseconds: what was received lately still
    /// was, and what has time has as much of it.
    pub(crate) fn clock_was_set(&mut self, by_ms: i64) {
        let set = |at_ms: &mut u64| *at_ms = at_ms.saturating_add_signed(by_ms);
        for node in self.nodes.values_mut() {
            set(&mut node.joined_at_ms);
            node.heard_at_ms.iter_mut().for_each(set);
        }
        self.leases.values_mut().for_each(|lease| set(&mut lease.heard_at_ms));
        self.move_times(by_ms);
        self.silence.move_times(by_ms, u64::MAX);
    }

    /// For `ms` milliseconds until now this server did not listen, since this process did not run
    /// or the database did not answer: no node was silent because of that, and no program could be
    /// notified how much time it has.
    pub(crate) fn was_deaf(&mut self, ms: u64, now_ms: u64) {
        for node in self.nodes.values_mut() {
            // A node that reported meanwhile has been silent for less.
            let heard_ms = node.heard_at_ms.unwrap_or(node.joined_at_ms).saturating_add(node.deaf_ms);
            node.deaf_ms = node.deaf_ms.saturating_add(ms.min(now_ms.saturating_sub(heard_ms)));
        }
        for lease in self.leases.values_mut() {
            lease.heard_at_ms = lease.heard_at_ms.saturating_add(ms).min(now_ms);
        }
        let by_ms = i64::try_from(ms).unwrap_or(i64::MAX);
        self.move_times(by_ms);
        self.silence.move_times(by_ms, now_ms);
    }

    /// The moments until which leases may be claimed or continue. Notices are stored; that grants
    /// can be claimed for as long as another server listens follows from when it began to.
    fn move_times(&mut self, by_ms: i64) {
        let moved = |at_ms: Option<u64>| at_ms.map(|at_ms| at_ms.saturating_add_signed(by_ms));
        for lease in self.leases.values_mut().filter(|lease| lease.state == LeaseState::Granted) {
            lease.granted_at_ms = moved(lease.granted_at_ms);
        }
        for lease in self.leases.values_mut() {
            for seat in lease.seats.iter_mut().filter(|seat| !seat.claimed) {
                seat.granted_at_ms = moved(seat.granted_at_ms);
            }
        }
        self.move_times_of_moves(by_ms);
        for id in self.noticed(|_| true) {
            let set = |at_ms: &mut u64| *at_ms = at_ms.saturating_add_signed(by_ms);
            self.change(id, |lease| lease.notices_mut().for_each(set));
        }
    }

    /// Notices that another server gave, by its own clock: none is over already or lasts longer
    /// than it could if it began now.
    pub(crate) fn take_over_notices(&mut self, now_ms: u64, grace_ms: u64) {
        let end_ms = now_ms + grace_ms;
        let is_off = |at_ms: u64| !(now_ms..=end_ms).contains(&at_ms);
        for id in self.noticed(is_off) {
            let off = |lease: &mut LeaseRecord| {
                lease.notices_mut().filter(|at_ms| is_off(**at_ms)).for_each(|at_ms| *at_ms = end_ms);
            };
            self.change(id, off);
        }
    }

    /// Leases that have notice for such a moment, or tasks that have.
    fn noticed(&self, at: impl Fn(u64) -> bool) -> Vec<LeaseId> {
        let noticed = self.leases.values().filter(|lease| lease.notices().any(&at));
        noticed.map(|lease| lease.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sluice_api::node::{Attempt, Join, NodeId, Report};
    use sluice_api::tenant::Tenant;

    use super::super::{Incident, Seat};
    use super::*;

    const MINUTE_MS: u64 = 60_000;
    const GRACE_MS: u64 = 10_000;

    struct World {
        fleet: Fleet,
        sequence: u64,
    }

    impl World {
        /// Nodes with a lease each, which they have: lease 1 on node 1, and so on.
        fn new(nodes: u64) -> World {
            let tenant: Tenant = serde_json::from_value(json!({ "path": "acme" })).unwrap();
            let fleet = Fleet::new(vec![tenant], Vec::new(), Vec::new(), Vec::new(), 0, 0, 0);
            let mut world = World { fleet, sequence: 0 };
            for number in 1..=nodes {
                let gpu = json!({ "name": "GPU", "uuid": "", "memory": 1 << 30, "software": true,
                                  "compute_capability": "", "driver_version": 0 });
                let join =
                    json!({ "name": format!("n{number}"), "address": "h:1", "gpus": [gpu], "release": "" });
                world.fleet.join(serde_json::from_value::<Join>(join).unwrap(), 0);
                world.grant(number, 0);
                world.says(number, 0, true);
            }
            world.fleet.look_at_nodes(0, GRACE_MS);
            world
        }

        fn grant(&mut self, node: NodeId, now_ms: u64) -> LeaseId {
            self.grant_for(json!({ "share_ppm": 250_000 }), node, now_ms)
        }

        fn grant_for(&mut self, ask: serde_json::Value, node: NodeId, now_ms: u64) -> LeaseId {
            let ask = serde_json::from_value(ask).unwrap();
            let id = self.fleet.request("acme".parse().unwrap(), ask, String::new(), now_ms);
            self.fleet.grant(id, vec![Seat::new(node, vec![0], 1 << 20)], now_ms);
            id
        }

        /// It has the lease of its number, or none.
        fn says(&mut self, node: NodeId, now_ms: u64, has_it: bool) {
            self.sequence += 1;
            let lease = Attempt { lease: node, attempt: 1, task: 0 };
            let leases = if has_it { vec![lease] } else { Vec::new() };
            let report = Report { sequence: self.sequence, leases, ..Report::default() };
            self.fleet.report(node, report, now_ms).unwrap();
        }

        fn look(&mut self, now_ms: u64) {
            self.fleet.look_at_nodes(now_ms, now_ms + GRACE_MS);
            self.fleet.expire(now_ms);
        }

        fn lease(&self, id: LeaseId) -> &LeaseRecord {
            self.fleet.lease(id).unwrap()
        }

        fn online(&self) -> Vec<NodeId> {
            self.fleet.nodes().values().filter(|node| node.takes_work()).map(|node| node.id).collect()
        }
    }

    #[test]
    fn nobody_is_silent_because_the_server_did_not_listen() {
        let mut world = World::new(4);
        // Node 4 has been silent for a while when the server stops for five minutes.
        (1..=3).for_each(|node| world.says(node, 14_000, true));
        let now_ms = 14_000 + 5 * MINUTE_MS;
        world.fleet.was_deaf(5 * MINUTE_MS, now_ms);
        world.says(1, now_ms, true);
        world.look(now_ms);
        assert_eq!(world.online(), [1, 2, 3, 4], "they have the rest of their time");
        world.look(now_ms + 1_500);
        assert_eq!(world.online(), [1, 2, 3]);
        let incidents = world.fleet.take_incidents();
        assert!(
            matches!(&incidents[..], [Incident::Silent { node }] if *node == world.fleet.nodes()[&4].name)
                && world.fleet.leases().all(|l| l.state == LeaseState::Running),
            "{incidents:?}"
        );
        // Who stays silent now is lost in the end.
        for second in 1..=65 {
            (1..=3).for_each(|node| world.says(node, now_ms + second * 1000, true));
            world.look(now_ms + second * 1000);
        }
        assert_eq!(world.lease(4).state, LeaseState::Preempting);
        assert_eq!(world.fleet.drift().nodes_lost, 1);
    }

    /// While the disk is full, reports are not taken.
    #[test]
    fn a_node_whose_reports_are_not_taken_is_there_and_no_longer_than_it_says_so() {
        let mut world = World::new(2);
        let now_ms = 5 * MINUTE_MS;
        world.fleet.hear_of_node(1, now_ms - 1000);
        let online = |world: &World, node, at_ms| {
            let fleet = &world.fleet;
            fleet.is_online(&fleet.nodes()[&node], at_ms)
        };
        assert!(online(&world, 1, now_ms) && !online(&world, 2, now_ms));
        world.fleet.was_deaf(now_ms, now_ms);
        assert!(online(&world, 1, now_ms) && online(&world, 2, now_ms));
        let later_ms = now_ms + MINUTE_MS;
        assert!(!online(&world, 1, later_ms) && !online(&world, 2, later_ms));
        world.look(later_ms);
        assert_eq!(world.online(), [0; 0]);
    }

    #[test]
    fn what_has_time_has_as_much_of_it_after_the_server_did_not_listen() {
        let mut world = World::new(1);
        let granted = world.grant(1, 0);
        world.fleet.preempt(1, "a test".into(), GRACE_MS);
        world.fleet.take_changed();
        world.fleet.was_deaf(5 * MINUTE_MS, 5 * MINUTE_MS);
        assert_eq!(world.lease(1).preempt_at_ms, Some(5 * MINUTE_MS + GRACE_MS));
        let stored: Vec<LeaseId> = world.fleet.take_changed().iter().map(|lease| lease.id).collect();
        assert_eq!(stored, [1], "notices are stored");
        let until_ms = 6 * MINUTE_MS;
        for now_ms in [5 * MINUTE_MS, until_ms] {
            world.fleet.hear(granted, now_ms);
            world.says(1, now_ms, true);
            world.look(now_ms);
            assert_eq!(world.lease(granted).state, LeaseState::Granted);
        }
        world.says(1, until_ms + 1, true);
        world.look(until_ms + 1);
        assert_eq!(world.lease(granted).state, LeaseState::Ended);
    }

    #[test]
    fn a_grant_is_held_for_as_long_as_its_request_says() {
        let mut world = World::new(1);
        let held =
            [("short", Some(1_000)), ("usual", None), ("long", Some(3_600_000))].map(|(name, hold_ms)| {
                let ask = json!({ "share_ppm": 1, "name": name, "hold_ms": hold_ms });
                (world.grant_for(ask, 1, 2_000), 2_000 + hold_ms.unwrap_or(MINUTE_MS))
            });
        for &(lease, until_ms) in &held {
            let record = world.lease(lease);
            let grants = world.fleet.grants_of(record);
            assert_eq!((grants.len(), grants[0].expires_at_ms), (1, until_ms), "its node takes it as long");
            assert_eq!(world.fleet.view(record).claim_until_ms, Some(until_ms));
        }
        // Nobody asks for them meanwhile: they wait to be claimed.
        for &(lease, until_ms) in &held {
            for now_ms in [until_ms, until_ms + 1] {
                world.says(1, now_ms, true);
                world.look(now_ms);
                let ended = world.fleet.lease(lease).is_none_or(|lease| lease.state == LeaseState::Ended);
                assert_eq!(ended, now_ms > until_ms, "{lease} at {now_ms}");
            }
            assert_eq!(world.lease(lease).reason.as_deref(), Some("no program claimed it in time"));
            assert_eq!(world.fleet.view(world.lease(lease)).claim_until_ms, None);
        }
    }

    #[test]
    fn a_clock_that_is_set_moves_notices_in_the_database_too() {
        let mut world = World::new(2);
        world.fleet.preempt(1, "a test".into(), GRACE_MS);
        world.fleet.take_changed();
        world.fleet.clock_was_set(-3_000);
        let stored = world.fleet.take_changed();
        assert_eq!(
            stored.iter().map(|lease| (lease.id, lease.preempt_at_ms)).collect::<Vec<_>>(),
            [(1, Some(7_000))]
        );
    }

    #[test]
    fn a_notice_by_another_clock_is_neither_over_at_once_nor_endless() {
        let mut world = World::new(3);
        let now_ms = 10 * MINUTE_MS;
        for (lease, at_ms) in [(1, now_ms - 1), (2, now_ms + 4_000), (3, now_ms + 5 * MINUTE_MS)] {
            world.fleet.preempt(lease, "a test".into(), at_ms);
        }
        world.fleet.take_changed();
        world.fleet.take_over_notices(now_ms, GRACE_MS);
        let at_ms = [1, 2, 3].map(|lease| world.lease(lease).preempt_at_ms.unwrap() - now_ms);
        assert_eq!(at_ms, [GRACE_MS, 4_000, GRACE_MS]);
        assert_eq!(world.fleet.take_changed().len(), 2);
    }

    /// Its node is silent, and the breaker holds: that is no reason for a lease that nobody wants
    /// to last for ever.
    #[test]
    fn a_lease_that_nobody_claims_ends_though_its_node_is_silent() {
        let mut world = World::new(2);
        let [wanted, unwanted] = [world.grant(1, 1_000), world.grant(1, 1_000)];
        for second in 1..=200 {
            let now_ms = second * 1000;
            world.fleet.hear(wanted, now_ms);
            world.look(now_ms);
            let ended = world.lease(unwanted).state == LeaseState::Ended;
            assert_eq!(ended, now_ms > 61_000, "at {second} s");
        }
        assert!(world.fleet.drift().alarms_held > 0, "the breaker holds");
        assert_eq!(world.lease(wanted).state, LeaseState::Granted, "its program may run");
        assert_eq!([1, 2].map(|lease| world.lease(lease).state), [LeaseState::Running; 2]);
    }
}
