//! Leases that the server moves by itself while their programs run: so that others fit in their
//! place, or because something is wrong with their GPU.
//!
//! What cannot move, or was to and has not, has notice instead, and waits in the queue again. What
//! is asked first is what the server knows; the node knows the rest, and refuses.

use sluice_api::lease::{LeaseId, LeaseState};
use sluice_api::node::NodeId;

use super::lease::{MoveCause, SeatMove, SeatResize, Stage};
use super::{Fleet, LeaseRecord, Node, Seat};

/// A program that a node has refused to move is not tried again so soon: it starts again elsewhere.
const REFUSED_MS: u64 = 10 * 60_000;
/// A move may take so long before its lease has notice. A node makes one move after the other, each
/// within 0.8 of its `--linger`.
pub(crate) const MOVE_MS_MAX: u64 = 10 * 60_000;

/// Why a lease does not move by itself now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stays {
    /// It would have to start again elsewhere.
    Restarts(String),
    /// Something else about it has to come to its end before.
    Held(String),
}

impl Stays {
    pub(crate) fn into_reason(self) -> String {
        match self {
            Stays::Restarts(reason) | Stays::Held(reason) => reason,
        }
    }
}

impl Fleet {
    /// The one task of a lease that the server can move while its program runs, as far as is known.
    pub(crate) fn moves_live(&self, id: LeaseId, now_ms: u64) -> Result<(u32, &Seat), Stays> {
        let is_held = |lease: &LeaseRecord| lease.held().any(|(_, seat)| is_held(seat));
        let held = self.leases.get(&id).is_some_and(is_held);
        let (task, seat) = match self.movable(id) {
            Ok(movable) => movable,
            Err(reason) if held => return Err(Stays::Held(reason)),
            Err(reason) => return Err(Stays::Restarts(reason)),
        };
        if let Some(SeatMove::Refused { reason, at_ms }) = &seat.moving
            && now_ms.saturating_sub(*at_ms) < REFUSED_MS
        {
            return Err(Stays::Restarts(reason.clone()));
        }
        self.exchanges(seat.node).map_err(Stays::Restarts)?;
        Ok((task, seat))
    }

    /// Whether programs can move from a node and to it, as far as is known; the error says why not.
    pub(crate) fn exchanges(&self, node: NodeId) -> Result<(), String> {
        let node = self.nodes.get(&node).ok_or("its node is gone")?;
        let Node { name, gpus, .. } = node;
        if !node.online {
            return Err(format!("node {name} does not report now"));
        }
        if gpus.iter().any(|gpu| !gpu.software) {
            return Err(format!("programs move between software GPUs, and node {name} has others"));
        }
        if gpus.iter().any(|gpu| gpu.leasable() > gpu.memory) {
            return Err(format!("node {name} overcommits memory, and moves no programs to other nodes"));
        }
        Ok(())
    }

    /// Leases of which the node has not said in time that they have moved, and why they were to.
    pub(crate) fn overdue_moves(&self, now_ms: u64) -> Vec<(LeaseId, MoveCause)> {
        let overdue = |id: LeaseId| {
            let lease = self.leases.get(&id).filter(|lease| lease.state == LeaseState::Running)?;
            let mut seats = lease.held().filter(|(_, seat)| seat.stays()).map(|(_, seat)| seat);
            let cause = seats.find_map(cause_of)?;
            (cause.until_ms <= now_ms).then(|| (id, cause.clone()))
        };
        self.account.moving().into_iter().filter_map(overdue).collect()
    }

    /// A clock was set, or nobody listened: moves under way have as much time as before.
    pub(super) fn move_times_of_moves(&mut self, by_ms: i64) {
        for id in self.account.moving() {
            self.change(id, |lease| {
                for seat in &mut lease.seats {
                    if let Some(SeatMove::Sent { cause: Some(cause), .. }) = &mut seat.moving {
                        cause.until_ms = cause.until_ms.saturating_add_signed(by_ms);
                    }
                }
            });
        }
    }
}

/// Why a seat moves, if the server wants that.
fn cause_of(seat: &Seat) -> Option<&MoveCause> {
    match &seat.moving {
        Some(SeatMove::Sent { cause, .. }) => cause.as_ref(),
        _ => None,
    }
}

/// Whether a move or a change of its size is under way.
fn is_held(seat: &Seat) -> bool {
    let has_just_moved = matches!(seat.moving, Some(SeatMove::Moved { awaited: Some(_), .. }));
    let is_resized = matches!(seat.resizing, Some(SeatResize { stage: Stage::Sent, .. }));
    seat.target().is_some() || has_just_moved || is_resized
}
