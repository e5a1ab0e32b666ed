//! Leases that the server moves by itself while their programs run: so that others fit in their
//! place, or because something is wrong with their GPU.
//!
//! What cannot move, or was to and has not, is preempted instead, and waits in the queue again. The
//! server checks what it knows; the node knows the rest, and refuses.

use std::collections::BTreeMap;

use sluice_api::lease::{LeaseId, LeaseState};
use sluice_api::moving::MovePlan;
use sluice_api::node::{NodeId, Report, SessionReport};

use super::lease::{MoveCause, SeatMove, SeatResize, Stage};
use super::{Fleet, LeaseRecord, Node, Seat, WHY_MAX, printable};

/// A program that a node has refused to move is not tried again so soon: it starts again elsewhere.
const REFUSED_MS: u64 = 10 * 60_000;
/// A move may take this time before its lease is preempted. A node makes one move after the other,
/// each within 0.8 of its `--linger`.
pub(crate) const MOVE_MS_MAX: u64 = 10 * 60_000;

/// Smaller moves say nothing of how fast memory is copied.
const RATED_BYTES_MIN: u64 = 16 << 20;
/// Reasons of a program that are shown.
const REASONS_MAX: usize = 4;

/// Bytes that a move has copied, and for how many microseconds its program stood still.
#[derive(Clone, Copy, Debug)]
pub(super) struct MoveRate {
    bytes: u64,
    stall_us: u64,
}

impl MoveRate {
    /// None where too little was copied to tell.
    pub(super) fn of(bytes: u64, stall_us: u64) -> Option<MoveRate> {
        (bytes >= RATED_BYTES_MIN && stall_us > 0).then_some(MoveRate { bytes, stall_us })
    }

    fn stall_us(self, bytes: u64) -> u64 {
        let stall_us = u128::from(bytes) * u128::from(self.stall_us) / u128::from(self.bytes);
        u64::try_from(stall_us).unwrap_or(u64::MAX)
    }
}

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
        match self.kept_by(id, seat.node) {
            reasons if reasons.is_empty() => Ok((task, seat)),
            reasons => Err(Stays::Restarts(reasons.join("; "))),
        }
    }

    /// What keeps the programs of a lease where they are, as their node last said.
    fn kept_by(&self, id: LeaseId, node: NodeId) -> Vec<String> {
        let sessions = self.nodes.get(&node).map_or(&[][..], |node| &node.report.sessions);
        let own: Vec<&SessionReport> = sessions.iter().filter(|session| session.lease == id).collect();
        if own.len() > 1 {
            let count = own.len();
            return vec![format!("{count} programs run under it, and only a lease of one program can move")];
        }
        let reasons = own.iter().filter_map(|session| session.unmovable.as_ref()).flatten();
        let shown = |reason: &String| reason.chars().take(WHY_MAX).map(printable).collect();
        reasons.take(REASONS_MAX).map(shown).collect()
    }

    /// What a move of a lease would do; the place is for the caller to find.
    pub(crate) fn move_plan(&self, id: LeaseId) -> MovePlan {
        let mut plan = MovePlan::default();
        let seat = match self.movable(id) {
            Ok((_, seat)) => seat,
            Err(reason) => {
                plan.reasons.push(reason);
                return plan;
            }
        };
        plan.reasons.extend(self.exchanges(seat.node).err());
        plan.reasons.extend(self.kept_by(id, seat.node));
        let sessions = self.nodes.get(&seat.node).map_or(&[][..], |node| &node.report.sessions);
        let mut own = sessions.iter().filter(|session| session.lease == id).peekable();
        if own.peek().is_some() {
            plan.is_asked = own.clone().all(|session| session.unmovable.is_some());
            let bytes = own.map(|session| session.memory_used).sum();
            plan.bytes = Some(bytes);
            plan.stall_us = self.move_rate.map(|rate| rate.stall_us(bytes));
        } else {
            plan.reasons.push("no program of it has used its GPU yet".into());
        }
        plan
    }

    /// Has the plan look at leases of a node which something new keeps from moving, or nothing any
    /// more.
    pub(super) fn note_movable(&mut self, node: NodeId, report: &Report) {
        let kept = |sessions: &[SessionReport]| -> BTreeMap<LeaseId, bool> {
            let is_kept =
                |session: &SessionReport| session.unmovable.as_ref().is_some_and(|it| !it.is_empty());
            sessions.iter().map(|session| (session.lease, is_kept(session))).collect()
        };
        let before = self.nodes.get(&node).map(|node| kept(&node.report.sessions)).unwrap_or_default();
        let changed = kept(&report.sessions).into_iter();
        let changed = changed.filter(|(id, is_kept)| before.get(id).is_some_and(|it| *it) != *is_kept);
        self.news.leases.extend(changed.map(|(id, _)| id));
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

    /// A clock was set, or no server listened: moves under way have as much time as before.
    pub(super) fn move_times_of_moves(&mut self, by_ms: i64) {
        self.backoff.move_times(by_ms);
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
