//! Moves that the scheduler has decided: the program moves while it runs where it can, and
//! otherwise starts again at its new place.
//!
//! ```text
//!                            place clear           moved: follow sees it at its place
//!  Action::Move ──▶ due ──────────────────▶ ordered
//!       │            │                          │  refused: the plan begins anew
//!       │            │ it cannot any more       │  no answer in time
//!       └────────────┴──────────────────────────┴──▶ notice: it starts again elsewhere
//! ```
//! The scheduler counts the lease at its new place from the decision on. What is to have its old
//! place waits in `bound` until the fleet says that it has left.

use sluice_api::lease::LeaseId;
use sluice_sched::queues::Mobility;
use sluice_sched::{NodeId, Placement};

use super::carry_out::Leaving;
use super::clearance::Clearance;
use super::{Clock, Plan, keeps_its_place};
use crate::fleet::{Fleet, LeaseRecord, MOVE_MS_MAX, MoveCause, Seat, Stays};

/// A move that is not ordered yet: its place may not be clear.
#[derive(Clone, Debug)]
pub(super) struct Due {
    /// The attempt of its lease.
    attempt: u32,
    /// By the scheduler's number, and by the lease's.
    task: u32,
    seat: u32,
    /// For whom: `lease 7 of acme`.
    other: String,
    taker: Option<LeaseId>,
    /// When it starts again if its place is not clear: two moves may wait for each other.
    until_ms: u64,
}

impl Due {
    pub(super) fn new(task: u32, seat: u32, other: String, taker: Option<LeaseId>) -> Due {
        Due { attempt: 0, task, seat, other, taker, until_ms: 0 }
    }

    /// The notice of a lease that starts again.
    pub(super) fn restart_because(&self, why: &str) -> Leaving {
        let reason = format!(
            "it starts again elsewhere, so that {} fits in its place; it does not move there while it runs: {why}",
            self.other
        );
        Leaving { tasks: vec![self.seat], reason, taker: self.taker }
    }
}

impl Plan {
    /// Has a lease move while its program runs, from one place of the scheduler to another. The
    /// error says why it would have to start again there.
    pub(super) fn is_due(
        &mut self,
        fleet: &Fleet,
        id: LeaseId,
        (from, to): (&Placement, &Placement),
        due: Due,
    ) -> Result<(), (Due, String)> {
        let attempt = match self.can_move(fleet, id, (from.node, to.node), due.taker) {
            Ok(attempt) => attempt,
            Err(why) => return Err((due, why)),
        };
        self.due.insert(id, Due { attempt, until_ms: self.now_ms + MOVE_MS_MAX, ..due });
        self.follow_mobility(fleet, id);
        Ok(())
    }

    /// The attempt that can move, as far as is known.
    fn can_move(
        &self,
        fleet: &Fleet,
        id: LeaseId,
        (from, to): (NodeId, NodeId),
        taker: Option<LeaseId>,
    ) -> Result<u32, String> {
        let lease = fleet.lease(id).ok_or("it has ended")?;
        fleet.moves_live(id, self.now_ms).map_err(Stays::into_reason)?;
        let node_of = |site: NodeId| self.sites[site.index()].node;
        let kind_of = |site: NodeId| self.scheduler.cluster().node(site).spec().model;
        if node_of(from) == node_of(to) {
            return Err("programs move to other nodes, and not to another GPU of theirs".into());
        }
        if kind_of(from) != kind_of(to) {
            return Err("its new GPU is of another kind".into());
        }
        fleet.exchanges(node_of(to))?;
        let rest = fleet.rest_between(node_of(from), node_of(to), self.now_ms);
        match rest.or_else(|| fleet.has_waited_for_moves(taker?)) {
            Some(why) => Err(why),
            None => Ok(lease.attempt),
        }
    }

    /// Orders the moves whose places are clear. What cannot move any more starts again.
    pub(super) fn start_due(&mut self, fleet: &mut Fleet, clock: Clock) {
        for (id, due) in self.due.clone() {
            let Some(to) = self.place_of_due(fleet, id, &due) else {
                self.due.remove(&id);
                continue;
            };
            let Some(lease) = fleet.lease(id) else { continue };
            if clock.now_ms >= due.until_ms {
                let minutes = MOVE_MS_MAX / 60_000;
                self.restart(fleet, id, &due, &format!("its place was not free within {minutes} min"), clock);
                continue;
            }
            match fleet.moves_live(id, clock.now_ms) {
                Ok(_) => {}
                Err(Stays::Held(_)) => continue,
                Err(Stays::Restarts(why)) => {
                    self.restart(fleet, id, &due, &why, clock);
                    continue;
                }
            }
            let place = (to.node, to.gpus.clone());
            if Clearance::of(fleet, lease, vec![(0, to)]).in_the_way.is_some() {
                continue;
            }
            self.due.remove(&id);
            let reason = format!("so that {} fits in its place", due.other);
            let cause = MoveCause { reason, taker: due.taker, until_ms: clock.now_ms + MOVE_MS_MAX };
            fleet.start_move(id, due.seat, place, Some(cause));
        }
    }

    /// Where it is to be, if it still is where it was and is to move.
    fn place_of_due(&self, fleet: &Fleet, id: LeaseId, due: &Due) -> Option<Seat> {
        let lease = fleet.lease(id).filter(|lease| keeps_its_place(lease) && lease.attempt == due.attempt)?;
        let work = self.work.get(&id).filter(|work| work.seated.get(&due.task) == Some(&due.seat))?;
        let seat =
            lease.seats.get(due.seat as usize).filter(|seat| seat.stays() && seat.target().is_none())?;
        let job = self.scheduler.job(work.job)?;
        let (_, placement) = job.tasks().find(|(task, _)| *task == due.task)?;
        let to = self.seat_of(placement, seat.memory)?;
        Some(Seat { node: to.node, gpus: to.gpus, ..seat.clone() })
    }

    fn restart(&mut self, fleet: &mut Fleet, id: LeaseId, due: &Due, why: &str, clock: Clock) {
        self.due.remove(&id);
        if let Some(work) = self.work.get_mut(&id) {
            work.seated.remove(&due.task);
        }
        self.give_notice(fleet, id, due.restart_because(why), clock);
    }

    /// Whether a move is due for a lease that is gone.
    pub(super) fn is_due_for_gone(&self, fleet: &Fleet) -> bool {
        let is_gone =
            |taker: LeaseId| !fleet.lease(taker).is_some_and(|lease| lease.waits() || lease.holds());
        self.due.values().any(|due| due.taker.is_some_and(is_gone))
    }

    /// Whether a move is due to a place that takes nothing new any more.
    pub(super) fn is_due_to_closed(&self, fleet: &Fleet) -> bool {
        self.due.iter().any(|(&id, due)| {
            self.place_of_due(fleet, id, due).is_some_and(|to| {
                let takes_work = fleet.nodes().get(&to.node).is_some_and(|node| node.takes_work());
                !takes_work || to.gpus.iter().any(|&gpu| fleet.is_fenced(to.node, gpu))
            })
        })
    }

    /// Gives notice to leases whose node has not answered an order in time.
    pub(super) fn notice_overdue(&mut self, fleet: &mut Fleet, clock: Clock) {
        for (id, cause) in fleet.overdue_moves(clock.now_ms) {
            let minutes = MOVE_MS_MAX / 60_000;
            let reason =
                format!("it starts again elsewhere, {}: it has not moved within {minutes} min", cause.reason);
            fleet.count_refusal(id, &format!("no answer within {minutes} min"), clock.now_ms);
            fleet.preempt_for(cause.taker, id, reason, clock.now_ms + clock.grace_ms);
            // It waits from now on, as far as the scheduler goes.
            self.forget(id);
        }
    }

    /// Has what runs on a faulty GPU move to another node, or gives it notice.
    pub(super) fn leave_faulty(&mut self, fleet: &mut Fleet, clock: Clock) {
        for (id, reason) in fleet.leaves_faulty() {
            let place = match fleet.moves_live(id, clock.now_ms).map(|(task, _)| task) {
                // Another move, or a change of its size, comes to its end before.
                Err(Stays::Held(_)) => continue,
                Err(Stays::Restarts(why)) => Err(why),
                Ok(task) => self.place_elsewhere(fleet, id, task, (None, None)).map(|place| (task, place)),
            };
            match place {
                Ok((task, place)) => {
                    let until_ms = clock.now_ms + MOVE_MS_MAX;
                    let cause = MoveCause { reason: format!("since {reason}"), taker: None, until_ms };
                    fleet.start_move(id, task, place, Some(cause));
                }
                Err(why) => {
                    let reason = format!("{reason}; it does not move while it runs: {why}");
                    fleet.clear_faulty(id, reason, clock.now_ms + clock.grace_ms);
                }
            }
        }
    }

    /// Has the scheduler know what a move means for a lease.
    pub(super) fn follow_mobility(&mut self, fleet: &Fleet, id: LeaseId) {
        let Some((lease, work)) = fleet.lease(id).zip(self.work.get(&id)) else { return };
        let mobility = self.mobility(fleet, lease);
        self.scheduler.set_mobility(work.job, mobility);
    }

    fn mobility(&self, fleet: &Fleet, lease: &LeaseRecord) -> Mobility {
        if self.due.contains_key(&lease.id) {
            return Mobility::Held;
        }
        match fleet.moves_live(lease.id, self.now_ms) {
            Ok(_) => Mobility::Live,
            Err(Stays::Held(_)) => Mobility::Held,
            Err(Stays::Restarts(_)) => Mobility::Restarts,
        }
    }
}
