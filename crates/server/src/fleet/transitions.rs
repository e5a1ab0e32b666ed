//! What happens to a lease, from the request to the end.

use serde_json::json;
use sluice_api::lease::{LeaseId, LeaseState, NewLease};
use sluice_api::node::NodeId;
use sluice_api::tenant::TenantPath;

use super::Fleet;
use super::lease::{LeaseRecord, Seat};

impl Fleet {
    // Leases.

    pub(crate) fn lease(&self, id: LeaseId) -> Option<&LeaseRecord> {
        self.leases.get(&id)
    }

    /// Those that a token has asked for, and that have not ended.
    pub(crate) fn leases_of_token(&self, token: &str) -> Vec<(LeaseId, TenantPath)> {
        let of =
            self.leases.values().filter(|lease| lease.token == token && lease.state != LeaseState::Ended);
        of.map(|lease| (lease.id, lease.tenant.clone())).collect()
    }

    /// In the order of their ids.
    pub(crate) fn leases(&self) -> impl Iterator<Item = &LeaseRecord> {
        self.leases.values()
    }

    pub(crate) fn request(
        &mut self,
        tenant: TenantPath,
        ask: NewLease,
        token: String,
        now_ms: u64,
    ) -> LeaseId {
        self.last_lease += 1;
        let id = self.last_lease;
        let lease = LeaseRecord::requested(id, tenant, ask, token, now_ms);
        self.account.add(&lease);
        self.leases.insert(id, lease);
        self.change(id, |_| {});
        id
    }

    /// Says who asked for a lease, as people know them.
    pub(crate) fn set_person(&mut self, id: LeaseId, person: String) {
        self.change(id, |lease| lease.person = person);
    }

    /// Its program asked for it.
    pub(crate) fn hear(&mut self, id: LeaseId, now_ms: u64) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.heard_at_ms = now_ms;
        }
    }

    /// A node says something that is not taken: it is there as it was before.
    pub(crate) fn hear_of_node(&mut self, node: NodeId, now_ms: u64) {
        if let Some(node) = self.nodes.get_mut(&node).filter(|node| node.heard_at_ms.is_some()) {
            (node.heard_at_ms, node.deaf_ms) = (Some(now_ms), 0);
        }
    }

    /// Says why a queued lease waits. What is known already is no change, which would have the plan
    /// look at it again.
    pub(crate) fn wait_because(&mut self, id: LeaseId, reason: String) {
        let waits = |lease: &LeaseRecord| lease.waits() && lease.reason.as_ref() != Some(&reason);
        if self.leases.get(&id).is_some_and(waits) {
            self.change(id, |lease| lease.reason = Some(reason));
        }
    }

    pub(crate) fn grant(&mut self, id: LeaseId, seats: Vec<Seat>, now_ms: u64) {
        let seats = self.promising(id, seats, now_ms);
        self.tell(id, "lease.granted", json!({ "places": self.places(0, &seats) }));
        self.change(id, |lease| {
            lease.state = LeaseState::Granted;
            lease.seats = seats;
            lease.granted_at_ms = Some(now_ms);
            lease.reason = None;
        });
    }

    /// Gives it notice: it ends at that moment, or before.
    pub(crate) fn preempt(&mut self, id: LeaseId, reason: String, at_ms: u64) {
        self.preempt_for(None, id, reason, at_ms);
    }

    /// Gives it notice, as [`Fleet::preempt`] does, because another lease takes its place.
    pub(crate) fn preempt_for(&mut self, taker: Option<LeaseId>, id: LeaseId, reason: String, at_ms: u64) {
        self.tell(id, "lease.preempted", self.notice(id, &reason, at_ms, taker));
        self.change(id, |lease| {
            lease.state = LeaseState::Preempting;
            lease.reason = Some(reason);
            lease.preempt_at_ms = Some(at_ms);
        });
    }

    /// Gives it further tasks, while it runs.
    pub(crate) fn grow(&mut self, id: LeaseId, seats: Vec<Seat>, now_ms: u64) {
        let seats = self.promising(id, seats, now_ms);
        let first = self.leases.get(&id).map_or(0, |lease| lease.seats.len());
        self.tell(id, "lease.grown", json!({ "places": self.places(first, &seats) }));
        let granted = seats.into_iter().map(|seat| Seat { granted_at_ms: Some(now_ms), ..seat });
        self.change(id, |lease| lease.seats.extend(granted));
    }

    /// Gives some of its tasks notice, while the others continue: they end at that moment, or
    /// before.
    pub(crate) fn ask_back(&mut self, id: LeaseId, tasks: &[u32], reason: String, at_ms: u64) {
        self.ask_back_for(None, id, tasks, reason, at_ms);
    }

    /// Gives some of its tasks notice, as [`Fleet::ask_back`] does, because another lease takes
    /// their place.
    pub(crate) fn ask_back_for(
        &mut self,
        taker: Option<LeaseId>,
        id: LeaseId,
        tasks: &[u32],
        reason: String,
        at_ms: u64,
    ) {
        let mut detail = self.notice(id, &reason, at_ms, taker);
        detail["tasks"] = tasks.into();
        self.tell(id, "lease.preempted", detail);
        self.change(id, |lease| {
            lease.reason = Some(reason);
            for &task in tasks {
                if let Some(seat) = lease.seats.get_mut(task as usize).filter(|seat| !seat.over) {
                    seat.leave_at_ms = Some(seat.leave_at_ms.map_or(at_ms, |before| before.min(at_ms)));
                }
            }
        });
    }

    /// Gives notice to those of its tasks that `leave`, where the others are enough to continue,
    /// and else to the whole; true if to the whole.
    pub(super) fn clear_of(
        &mut self,
        id: LeaseId,
        leave: impl Fn(&Seat) -> bool,
        reason: String,
        at_ms: u64,
    ) -> bool {
        let Some(lease) = self.leases.get(&id) else { return false };
        let tasks = lease.held_tasks(leave);
        if tasks.is_empty() {
            return false;
        }
        let whole = !lease.does_without(&tasks);
        if whole {
            self.preempt(id, reason, at_ms);
        } else {
            self.ask_back(id, &tasks, reason, at_ms);
        }
        whole
    }

    /// Back into the queue at its old place, as a new attempt.
    pub(crate) fn requeue(&mut self, id: LeaseId, now_ms: u64) {
        self.change(id, |lease| {
            lease.state = LeaseState::Queued;
            lease.attempt += 1;
            lease.seats = Vec::new();
            lease.preempt_at_ms = None;
            lease.granted_at_ms = None;
            lease.heard_at_ms = now_ms;
        });
        let is_undone = |lease: &LeaseRecord| lease.automatic.as_ref().is_some_and(|it| it.undone);
        if self.leases.get(&id).is_some_and(is_undone) {
            self.ask_as_asked(id);
        }
        let reason = self.leases.get(&id).and_then(|lease| lease.reason.clone());
        self.tell(id, "lease.requeued", json!({ "reason": reason }));
    }

    /// Gives up its place in line for one at the end.
    pub(crate) fn go_last(&mut self, id: LeaseId, now_ms: u64) {
        self.change(id, |lease| lease.queued_at_ms = now_ms);
    }

    pub(crate) fn end(&mut self, id: LeaseId, reason: &str, now_ms: u64) {
        self.end_with(id, reason, json!({ "reason": reason }), now_ms);
    }

    /// Ends a lease without a request to end it.
    pub(super) fn end_expired(&mut self, id: LeaseId, reason: &str, now_ms: u64) {
        self.end_with(id, reason, json!({ "reason": reason, "expired": true }), now_ms);
    }

    fn end_with(&mut self, id: LeaseId, reason: &str, detail: serde_json::Value, now_ms: u64) {
        self.tell(id, "lease.ended", detail);
        self.change(id, |lease| {
            lease.state = LeaseState::Ended;
            lease.reason = Some(reason.into());
            lease.preempt_at_ms = None;
            lease.ended_at_ms = Some(now_ms);
        });
    }
}
