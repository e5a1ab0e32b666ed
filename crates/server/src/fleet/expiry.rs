//! Leases and tasks that no program asks for or claims in time.

use sluice_api::lease::{LeaseId, LeaseState};

use super::Fleet;
use super::lease::{LeaseRecord, Seat};

/// A queued lease whose program has not asked for it for this long ends: its `sluice run` is gone.
const PATIENCE_MS: u64 = 20_000;

impl Fleet {
    /// Ends what no program waits for or claims any more, and queues again what no program has any
    /// more.
    pub(crate) fn expire(&mut self, now_ms: u64) {
        let given_up = |lease: &&LeaseRecord| {
            lease.state == LeaseState::Preempting
                && lease.seats.iter().all(|seat| seat.over)
                && lease.preempt_at_ms.is_some_and(|at_ms| at_ms <= now_ms)
        };
        let given_up: Vec<_> = self.leases.values().filter(given_up).map(|lease| lease.id).collect();
        given_up.into_iter().for_each(|id| self.requeue(id, now_ms));
        let expired = |lease: &LeaseRecord| match lease.state {
            LeaseState::Queued if now_ms.saturating_sub(self.heard_ms(lease)) > PATIENCE_MS => {
                Some("its program no longer asked for it")
            }
            LeaseState::Queued if lease.ask.start_until_ms().is_some_and(|until| now_ms > until) => {
                Some("it can no longer end by its deadline")
            }
            LeaseState::Granted if self.is_unclaimed(lease, now_ms) => Some("no program claimed it in time"),
            _ => None,
        };
        let ending: Vec<_> =
            self.leases.values().filter_map(|lease| Some((lease.id, expired(lease)?))).collect();
        for (id, reason) in ending {
            self.end_expired(id, reason, now_ms);
        }
        self.expire_tasks(now_ms);
        self.give_up_moves(now_ms);
    }

    /// Takes tasks back that no program has claimed, though their lease has others: they came while
    /// it ran, or ended before any report of them.
    fn expire_tasks(&mut self, now_ms: u64) {
        let has_others = |lease: &&LeaseRecord| {
            matches!(lease.state, LeaseState::Granted | LeaseState::Running)
                && lease.seats.iter().any(|seat| seat.claimed)
        };
        let running = self.leases.values().filter(has_others);
        let unclaimed = |lease: &LeaseRecord| {
            let tasks = lease.held().filter(|(_, seat)| self.is_seat_unclaimed(lease, seat, now_ms));
            let tasks: Vec<u32> = tasks.map(|(task, _)| task).collect();
            (!tasks.is_empty()).then_some((lease.id, tasks))
        };
        let expired: Vec<_> = running.filter_map(unclaimed).collect();
        expired.into_iter().for_each(|(id, tasks)| self.forgo(id, &tasks, now_ms));
    }

    /// These tasks, which no program has claimed, will not be claimed; the lease continues without
    /// them, if it has others.
    pub(crate) fn forgo(&mut self, id: LeaseId, tasks: &[u32], now_ms: u64) {
        self.change(id, |lease| {
            let seats = tasks.iter().map(|&task| task as usize);
            seats.for_each(|task| lease.seats.get_mut(task).into_iter().for_each(|seat| seat.over = true));
            if lease.seats.iter().all(|seat| seat.claimed || seat.over) {
                lease.state = LeaseState::Running;
            }
        });
        self.end_without_tasks(id, now_ms);
    }

    /// A lease that continues, and none of whose tasks is there any more, has ended.
    pub(super) fn end_without_tasks(&mut self, id: LeaseId, now_ms: u64) {
        let goes_on = |lease: &LeaseRecord| matches!(lease.state, LeaseState::Granted | LeaseState::Running);
        if self.leases.get(&id).is_some_and(|lease| goes_on(lease) && lease.held().next().is_none()) {
            self.end(id, "its program ended", now_ms);
        }
    }

    /// When its program last asked for it, or could have.
    fn heard_ms(&self, lease: &LeaseRecord) -> u64 {
        lease.heard_at_ms.max(self.silence.since_ms())
    }

    /// By then it is claimed or not at all. What another server granted, perhaps by another clock,
    /// has the whole time from the moment at which this one listens.
    pub(super) fn claim_until(&self, lease: &LeaseRecord, seat: &Seat) -> u64 {
        let granted_at_ms = seat.granted_at_ms.or(lease.granted_at_ms).unwrap_or(0);
        granted_at_ms.max(self.silence.since_ms()).saturating_add(lease.ask.hold_ms())
    }

    /// Whether no program can claim it any more, and none has claimed any of its tasks: its nodes
    /// have reported since, so a program that runs would have been reported. A node
    /// that is silent is not waited for if the program is as well: one that claimed it in the last
    /// moment before both fell silent has to end.
    fn is_unclaimed(&self, lease: &LeaseRecord, now_ms: u64) -> bool {
        lease.seats.iter().all(|seat| self.is_seat_unclaimed(lease, seat, now_ms))
    }

    fn is_seat_unclaimed(&self, lease: &LeaseRecord, seat: &Seat, now_ms: u64) -> bool {
        let until_ms = self.claim_until(lease, seat);
        let given_up = now_ms.saturating_sub(self.heard_ms(lease)) > PATIENCE_MS;
        let heard_ms = self.nodes.get(&seat.node).and_then(|node| node.heard_at_ms);
        !seat.claimed && now_ms > until_ms && (given_up || heard_ms.is_some_and(|at_ms| at_ms > until_ms))
    }
}
