//! Leases whose running program continues on another node.
//!
//! ```text
//!          room elsewhere              its node: moved, or the other node has it
//!  asked ─────────────────▶ Sent ───────────────────────────────────────────────▶ there
//!     │                      │ │   its node: it stays, for this reason
//!     │                      │ └─────────────────────────────────────────────────▶ Refused
//!     │                      │   neither node has it
//!     │                      └───────────────────────────────────────────────────▶ over
//!     └─ no room, or it cannot move ─────────────────────────────────────────────▶ Refused
//! ```
//! The node that has the program decides, and says so in a report. While a move is sent the lease
//! holds its room on both nodes, and counts once towards quotas. The order is repeated until there
//! is a result. Should the node have forgotten it, since it was started again, the other node
//! knows: it has the lease only if the first one has decided so.

use std::collections::BTreeSet;

use serde_json::json;
use sluice_api::grant::Grant;
use sluice_api::lease::{LeaseId, LeaseState};
use sluice_api::moving::{LeaseMoving, MoveResult, MoveState, Moving};
use sluice_api::node::{Attempt, NodeId};

use super::lease::{MoveCause, SeatMove, SeatResize, Stage};
use super::live::MoveRate;
use super::resize::GRANT_MS;
use super::{Fleet, LeaseRecord, Seat, WHY_MAX, printable};

/// The order to move a lease, before its grant is signed.
pub(crate) struct OrderToMove {
    pub(crate) attempt: Attempt,
    pub(crate) number: u32,
    pub(crate) address: String,
    pub(crate) grant: Grant,
}

impl Fleet {
    /// The one task of a lease that can move, as far as the server knows; the error says why it
    /// cannot.
    pub(crate) fn movable(&self, id: LeaseId) -> Result<(u32, &Seat), String> {
        let lease = self.leases.get(&id).ok_or_else(|| format!("there is no lease {id}"))?;
        let state = lease.state;
        if state != LeaseState::Running {
            return Err(format!("lease {id} is {}; only a lease whose program runs can move", state.name()));
        }
        let mut held = lease.held();
        let (Some((task, seat)), None) = (held.next(), held.next()) else {
            return Err(format!("lease {id} has several tasks, and only a lease of one task can move"));
        };
        if seat.gpus.len() != 1 {
            return Err(format!("lease {id} has several GPUs, and only a lease of one GPU can move"));
        }
        if !seat.stays() {
            return Err(format!("lease {id} has to make room already"));
        }
        if seat.target().is_some() {
            return Err(format!("lease {id} is moving already"));
        }
        if matches!(seat.moving, Some(SeatMove::Moved { awaited: Some(_), .. })) {
            return Err(format!("lease {id} has only just moved: ask again"));
        }
        if matches!(&seat.resizing, Some(SeatResize { stage: Stage::Sent, .. })) {
            return Err(format!("lease {id} is being resized: ask again when that has come to its end"));
        }
        if lease.size(seat).suspended {
            return Err(format!("lease {id} is suspended: resume it first"));
        }
        Ok((task, seat))
    }

    /// Has its node move a task. There is room for it.
    pub(crate) fn start_move(
        &mut self,
        id: LeaseId,
        task: u32,
        (node, gpus): (NodeId, Vec<u32>),
        cause: Option<MoveCause>,
    ) {
        let mut detail = json!({ "task": task, "node": self.name_of(node), "gpus": gpus });
        if let Some(cause) = &cause {
            detail["reason"] = cause.reason.as_str().into();
            self.name_taker(&mut detail, id, cause.taker);
        }
        self.tell(id, "lease.moving", detail);
        self.change_seat(id, task, |seat| {
            seat.moves += 1;
            seat.moving = Some(SeatMove::Sent { node, gpus, has_left: false, cause });
        });
    }

    /// Notes why a lease stays where it is.
    pub(crate) fn refuse_move(&mut self, id: LeaseId, reason: &str, at_ms: u64) {
        let reason: String = reason.chars().take(WHY_MAX).map(printable).collect();
        self.tell(id, "lease.move_refused", json!({ "reason": reason }));
        self.change(id, |lease| {
            for seat in lease.seats.iter_mut().filter(|seat| !seat.over && seat.target().is_none()) {
                seat.moving = Some(SeatMove::Refused { reason: reason.clone(), at_ms });
            }
        });
    }

    /// Leases that move to a node.
    pub(crate) fn moving_to(&self, node: NodeId) -> Vec<LeaseId> {
        self.account.moving_to(node)
    }

    /// The orders to a node about leases that it gives away.
    pub(crate) fn move_orders(&self, node: NodeId, now_ms: u64) -> Vec<OrderToMove> {
        let leases = self.account.on_node(node).into_iter().filter_map(|id| self.leases.get(&id));
        let order = |lease: &LeaseRecord| -> Vec<OrderToMove> {
            // What is preempted meanwhile need not move any more.
            let goes_on = lease.state == LeaseState::Running;
            let here = lease.held().filter(|(_, seat)| goes_on && seat.node == node && seat.stays());
            here.filter_map(|(task, seat)| {
                let (target, _) = seat.target()?;
                let address = self.nodes.get(&target)?.address.clone();
                let mut grant = self.grant_of(lease, task, &seat.at_target());
                (grant.moves, grant.expires_at_ms) = (seat.moves, now_ms + GRANT_MS);
                let attempt = lease.attempt_of(task as usize);
                Some(OrderToMove { attempt, number: seat.moves, address, grant })
            })
            .collect()
        };
        leases.flat_map(order).collect()
    }

    /// Takes over what a node says became of the leases that it was to give away.
    pub(super) fn settle_moves(&mut self, node: NodeId, results: &[MoveResult], now_ms: u64) {
        for result in results {
            let Attempt { lease: id, attempt, task } = result.attempt;
            let Some(lease) = self.leases.get(&id).filter(|lease| lease.attempt == attempt) else { continue };
            let moves =
                |seat: &&Seat| seat.node == node && seat.moves == result.number && seat.target().is_some();
            if lease.seats.get(task as usize).filter(moves).is_none() {
                continue;
            }
            match &result.refused {
                None => self.has_moved(id, task, Some(result), now_ms),
                Some(reason) => self.stays_after_all(id, task, reason, now_ms),
            }
        }
    }

    /// What a node has, and is given, of the leases that move to it. Its word counts where the
    /// lease's own node has it no more and has not said why, or does not report: then what is not
    /// here either is over.
    pub(super) fn compare_moving(
        &mut self,
        node: NodeId,
        held: &BTreeSet<Attempt>,
        arriving: &BTreeSet<Attempt>,
        now_ms: u64,
    ) {
        for id in self.account.moving_to(node) {
            let Some(lease) = self.leases.get(&id) else { continue };
            let comes = |(task, seat): (u32, &Seat)| match seat.moving {
                Some(SeatMove::Sent { node: target, has_left, .. }) if target == node => {
                    Some((task, seat.node, has_left))
                }
                _ => None,
            };
            let Some((task, from, has_left)) = lease.held().find_map(comes) else { continue };
            let attempt = lease.attempt_of(task as usize);
            let is_silent = self.nodes.get(&from).is_none_or(|node| !node.online);
            if held.contains(&attempt) && (has_left || is_silent) {
                self.has_moved(id, task, None, now_ms);
            } else if has_left && !held.contains(&attempt) && !arriving.contains(&attempt) {
                self.give_up_move(id, task, now_ms);
            }
        }
    }

    /// No node has the task any more.
    fn give_up_move(&mut self, id: LeaseId, task: u32, now_ms: u64) {
        self.change_seat(id, task, |seat| (seat.over, seat.moving) = (true, None));
        self.follow_seats(id, now_ms);
    }

    /// Gives up what has left its node for one that does not report any more.
    pub(super) fn give_up_moves(&mut self, now_ms: u64) {
        let is_lost = |seat: &Seat| match seat.moving {
            Some(SeatMove::Sent { node, has_left: true, .. }) => {
                self.nodes.get(&node).is_none_or(|node| self.is_silent(node, now_ms))
            }
            _ => false,
        };
        let lost = |lease: &LeaseRecord| {
            lease.held().find(|(_, seat)| is_lost(seat)).map(|(task, _)| (lease.id, task))
        };
        let lost: Vec<(LeaseId, u32)> = self.leases.values().filter_map(lost).collect();
        lost.into_iter().for_each(|(id, task)| self.give_up_move(id, task, now_ms));
    }

    fn has_moved(&mut self, id: LeaseId, task: u32, result: Option<&MoveResult>, now_ms: u64) {
        let Some(seat) = self.leases.get(&id).and_then(|lease| lease.seats.get(task as usize)) else {
            return;
        };
        let Some((node, gpus)) = seat.target().map(|(node, gpus)| (node, gpus.to_vec())) else { return };
        let from = seat.node;
        let mut detail = json!({
            "task": task, "from": self.name_of(seat.node), "node": self.name_of(node), "gpus": gpus
        });
        let (bytes, stall_us) = (result.map(|result| result.bytes), result.map(|result| result.stall_us));
        if let Some((bytes, stall_us)) = bytes.zip(stall_us) {
            (detail["bytes"], detail["stall_us"]) = (bytes.into(), stall_us.into());
        }
        self.move_rate =
            bytes.zip(stall_us).and_then(|(bytes, us)| MoveRate::of(bytes, us)).or(self.move_rate);
        self.tell(id, "lease.moved", detail);
        self.count_moved(from, node);
        self.change_seat(id, task, |seat| {
            if !seat.earlier.contains(&seat.node) {
                seat.earlier.push(seat.node);
            }
            (seat.node, seat.gpus) = (node, gpus);
            // The new node's reports may be older than what the other one has just said.
            let awaited = result.map(|_| 0);
            seat.moving = Some(SeatMove::Moved { bytes, stall_us, awaited });
        });
        self.clear_arrived(id, node, now_ms);
    }

    /// Its new place was given up while it moved there: it leaves as the others there do.
    fn clear_arrived(&mut self, id: LeaseId, node: NodeId, now_ms: u64) {
        let is_there = |seat: &Seat| seat.node == node;
        let Some(seat) = self
            .leases
            .get(&id)
            .and_then(|lease| lease.held().map(|(_, seat)| seat).find(|seat| is_there(seat)))
        else {
            return;
        };
        let ends = seat.gpus.iter().find_map(|&gpu| self.end_of_faulty(node, gpu, now_ms));
        if let Some((reason, end_at_ms)) = ends.or_else(|| self.end_of_drained(node, now_ms)) {
            self.clear_of(id, is_there, reason, end_at_ms);
        }
    }

    /// The place that was held for it is free again: the plan had it there already.
    fn stays_after_all(&mut self, id: LeaseId, task: u32, reason: &str, now_ms: u64) {
        let known: String = reason.chars().take(WHY_MAX).map(printable).collect();
        self.count_refusal(id, &known, now_ms);
        self.change_seat(id, task, |seat| seat.moving = None);
        self.refuse_move(id, reason, now_ms);
        self.news.all = true;
    }

    fn change_seat(&mut self, id: LeaseId, task: u32, change: impl FnOnce(&mut Seat)) {
        self.change(id, |lease| {
            if let Some(seat) = lease.seats.get_mut(task as usize) {
                change(seat);
            }
        });
    }

    /// A move of a lease as users see it.
    pub(crate) fn moving(&self, lease: &LeaseRecord) -> Option<Moving> {
        let at = |state, node: NodeId, gpus: &[u32]| Moving {
            state,
            node: Some(self.name_of(node).to_owned()),
            gpu: gpus.first().copied(),
            reason: None,
            bytes: None,
            stall_us: None,
        };
        lease.held().find_map(|(_, seat)| match seat.moving.as_ref()? {
            SeatMove::Sent { node, gpus, .. } => Some(at(MoveState::Sent, *node, gpus)),
            &SeatMove::Moved { bytes, stall_us, .. } => {
                Some(Moving { bytes, stall_us, ..at(MoveState::Moved, seat.node, &seat.gpus) })
            }
            SeatMove::Refused { reason, .. } => {
                let (state, reason) = (MoveState::Refused, Some(reason.clone()));
                Some(Moving { state, reason, node: None, gpu: None, bytes: None, stall_us: None })
            }
        })
    }

    /// The moves of all leases of a node that are to leave it.
    pub(crate) fn moving_from(&self, node: NodeId) -> Vec<LeaseMoving> {
        let moving = |id: LeaseId| {
            let moving = self.moving(self.leases.get(&id)?)?;
            let moving = Some(moving).filter(|moving| moving.state != MoveState::Moved)?;
            Some(LeaseMoving { lease: id, moving })
        };
        self.account.on_node(node).into_iter().filter_map(moving).collect()
    }
}
