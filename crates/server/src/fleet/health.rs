//! GPUs that are faulty or that an operator does not want used, and what becomes of the leases
//! there.
//!
//! The states are drawn in [`sluice_api::health`]. Nodes find faults, and an operator may fence any
//! GPU; both end here. A fenced GPU is not lent. What runs there finishes, leaves within the grace
//! time, or ends within seconds, as the fault or the operator says; what has to go waits
//! in the queue again, as after preemption, and of an elastic gang that is the tasks there alone,
//! if the others are enough. Where there is a grace time, what can move to another node while it
//! runs does so instead, if there is room ([`Fleet::leaves_faulty`]).
//!
//! When many GPUs of a pool become faulty within minutes it is more likely that something common to
//! them is wrong, or what finds faults: a driver update, a sensor, this program. A breaker then
//! holds: the rest of them are suspected, used as before, and wait for an operator. It is released
//! when none is suspected any more.
//!
//! A passing fault, such as heat, is over when its node has not reported it for a while. One that
//! comes back for the fourth time in a day stays, so no GPU goes in and out for ever.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use sluice_api::health::{Clearing, FenceState, GpuFault, GpuFence, GpuName};
use sluice_api::lease::{LeaseId, LeaseState};
use sluice_api::node::NodeId;
use sluice_api::text::is_deceptive;
use sluice_api::usage::UsageRecord;

use super::lease::SeatMove;
use super::{Fleet, Incident, LeaseRecord, Node, Seat, Stays};

/// Of the GPUs of a pool, this part may become faulty within [`WINDOW_MS`]: one in five, and one in
/// any case.
const FAULTY_PART: usize = 5;
const WINDOW_MS: u64 = 10 * 60_000;
/// How often a GPU recovers by itself within [`DAY_MS`]; the next fault stays.
const RECOVERIES_MAX: usize = 3;
const DAY_MS: u64 = 24 * 3_600_000;
/// How long a program on a GPU that can compute nothing right may continue, unless the grace time
/// is shorter still.
const END_GRACE_MS: u64 = 3_000;
/// Who fences what a node reports.
pub(crate) const BY_NODE: &str = "its node";

/// A node's GPU, by its UUID or its place.
pub(crate) type CardId = (NodeId, String);

/// What is known of a GPU beside its figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CardRecord {
    fence: Option<GpuFence>,
    /// The start of its machine that the fence is from.
    boot: String,
    /// When it was fit for use again by itself; the latest last.
    recovered_at_ms: Vec<u64>,
    /// Since when its node reports nothing wrong with it; not stored.
    #[serde(skip)]
    quiet_since_ms: Option<u64>,
}

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// What a preempted program has.
    pub(crate) grace_ms: u64,
    /// A passing fault is over after this time without it.
    pub(crate) quiet_ms: u64,
}

#[derive(Debug, Default)]
pub(super) struct Health {
    cards: BTreeMap<CardId, CardRecord>,
    /// Not in the database yet.
    changed: BTreeSet<CardId>,
}

impl Health {
    /// The node is gone for good, in the database as well.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.cards.retain(|(of, _), _| *of != node);
        self.changed.retain(|(of, _)| *of != node);
    }
}

impl Fleet {
    /// Takes over what is in the database.
    pub(crate) fn recall_cards(&mut self, cards: Vec<(CardId, CardRecord)>) {
        self.health.cards = cards.into_iter().collect();
    }

    /// The GPUs that have changed since this was asked last; `None` for those of which nothing is
    /// to be kept.
    pub(crate) fn take_changed_cards(&mut self) -> Vec<(CardId, Option<CardRecord>)> {
        let changed = std::mem::take(&mut self.health.changed);
        let of = |id: CardId| (self.health.cards.get(&id).cloned(), id);
        changed.into_iter().map(of).map(|(record, id)| (id, record)).collect()
    }

    pub(super) fn has_changed_cards(&self) -> bool {
        !self.health.changed.is_empty()
    }

    pub(crate) fn fence_of(&self, node: NodeId, gpu: u32) -> Option<&GpuFence> {
        self.health.cards.get(&self.card(node, gpu)?)?.fence.as_ref()
    }

    /// Whether the GPU takes nothing new.
    pub(crate) fn is_fenced(&self, node: NodeId, gpu: u32) -> bool {
        self.fence_of(node, gpu).is_some_and(|fence| fence.state == FenceState::Fenced)
    }

    /// Where a GPU of this name is, if there is one.
    pub(crate) fn find_gpu(&self, name: &GpuName) -> Option<(NodeId, u32)> {
        let node = self.nodes.values().find(|node| node.name == name.node)?;
        ((name.gpu as usize) < node.gpus.len()).then_some((node.id, name.gpu))
    }

    /// An operator does not want it used. The answer is the leases that have to leave.
    pub(crate) fn fence(
        &mut self,
        (node, gpu): (NodeId, u32),
        fence: GpuFence,
        grace_ms: u64,
    ) -> Vec<LeaseId> {
        let Some(id) = self.card(node, gpu) else { return Vec::new() };
        let now_ms = fence.since_ms;
        let record = self.health.cards.entry(id.clone()).or_default();
        let since_ms = match &record.fence {
            Some(before) if before.state == FenceState::Fenced => before.since_ms,
            _ => now_ms,
        };
        record.fence = Some(GpuFence { since_ms, ..fence });
        self.card_changed(id);
        self.clear_gpu(node, gpu, now_ms, grace_ms)
    }

    /// It is used again; false if it was not fenced.
    pub(crate) fn unfence(&mut self, (node, gpu): (NodeId, u32)) -> bool {
        let Some(id) = self
            .card(node, gpu)
            .filter(|id| self.health.cards.get(id).is_some_and(|card| card.fence.is_some()))
        else {
            return false;
        };
        // An operator who takes the fence away answers for the past as well.
        self.health.cards.remove(&id);
        self.card_changed(id);
        true
    }

    /// Takes what a node says is wrong with its GPUs; what it does not name is right, as far as it
    /// knows.
    pub(crate) fn take_faults(
        &mut self,
        node: NodeId,
        boot: &str,
        faults: &[GpuFault],
        now_ms: u64,
        patience: Patience,
    ) {
        if !self.nodes.get(&node).is_some_and(|node| node.online) {
            self.doubt_quiet(node);
        }
        self.start_anew(node, boot);
        for fault in faults {
            self.take_fault(node, boot, fault, now_ms, patience);
        }
        let Some(entry) = self.nodes.get(&node) else { return };
        for gpu in 0..entry.gpus.len() as u32 {
            if !faults.iter().any(|fault| fault.gpu == gpu) {
                self.hear_nothing_wrong(node, gpu, now_ms, patience.quiet_ms);
            }
        }
    }

    fn take_fault(&mut self, node: NodeId, boot: &str, fault: &GpuFault, now_ms: u64, patience: Patience) {
        let Some(id) = self.card(node, fault.gpu) else { return };
        let known = self.health.cards.get(&id).and_then(|record| record.fence.clone());
        let is_worse = |known: &GpuFence| {
            fault.sessions > known.sessions || (fault.lasting && !known.lasting && known.by == BY_NODE)
        };
        let tells_more = known.as_ref().is_none_or(is_worse);
        let state = match &known {
            Some(known) => known.state,
            None if self.breaker_of_gpus_holds((node, fault.gpu), now_ms) => FenceState::Suspected,
            None => FenceState::Fenced,
        };
        let record = self.health.cards.entry(id.clone()).or_default();
        record.quiet_since_ms = None;
        if !tells_more {
            return;
        }
        let returns = record.recoveries_of_the_day(now_ms) >= RECOVERIES_MAX;
        let what: String = fault.what.chars().take(WHY_MAX).map(printable).collect();
        let fence = GpuFence {
            state,
            why: if returns { format!("{what}, again and again") } else { what },
            by: known.as_ref().map_or(BY_NODE.into(), |known| known.by.clone()),
            since_ms: known.as_ref().map_or(now_ms, |known| known.since_ms),
            sessions: known.as_ref().map_or(fault.sessions, |known| known.sessions.max(fault.sessions)),
            lasting: fault.lasting || returns || known.as_ref().is_some_and(|known| known.lasting),
        };
        record.boot = boot.to_owned();
        record.fence = Some(fence.clone());
        self.card_changed(id);
        let gpu = self.gpu_name(node, fault.gpu);
        if state == FenceState::Suspected {
            self.note(Incident::Suspected { gpu, why: fence.why });
        } else {
            let leases = self.clear_gpu(node, fault.gpu, now_ms, patience.grace_ms);
            self.note(Incident::Fenced { gpu, fence, leases });
        }
    }

    fn hear_nothing_wrong(&mut self, node: NodeId, gpu: u32, now_ms: u64, quiet_ms: u64) {
        let Some(id) = self.card(node, gpu) else { return };
        let Some(record) = self.health.cards.get_mut(&id) else { return };
        if record.fence.as_ref().is_none_or(|fence| fence.lasting) {
            return;
        }
        let since_ms = *record.quiet_since_ms.get_or_insert(now_ms);
        if now_ms.saturating_sub(since_ms) < quiet_ms {
            return;
        }
        let suspected = record.fence.take().is_some_and(|fence| fence.state == FenceState::Suspected);
        if !suspected {
            record.recoveries_of_the_day(now_ms);
            record.recovered_at_ms.push(now_ms);
        }
        self.card_changed(id);
        let why = format!("nothing was wrong with it for {} s", quiet_ms / 1000);
        let gpu = self.gpu_name(node, gpu);
        self.note(Incident::Unfenced { gpu, why });
    }

    /// What a node that was silent found meanwhile is not known.
    fn doubt_quiet(&mut self, node: NodeId) {
        for (_, record) in self.health.cards.iter_mut().filter(|((of, _), _)| *of == node) {
            record.quiet_since_ms = None;
        }
    }

    /// A machine that has started anew has reset its GPUs: what it found before is over, until it
    /// finds it again.
    fn start_anew(&mut self, node: NodeId, boot: &str) {
        let Some(entry) = self.nodes.get(&node) else { return };
        for gpu in 0..entry.gpus.len() as u32 {
            let Some(id) = self.card(node, gpu) else { continue };
            let over = |record: &&CardRecord| {
                let by_node = record.fence.as_ref().is_some_and(|fence| fence.by == BY_NODE);
                by_node && !boot.is_empty() && !record.boot.is_empty() && record.boot != boot
            };
            if self.health.cards.get(&id).filter(over).is_some() {
                self.health.cards.remove(&id);
                self.card_changed(id);
                let gpu = self.gpu_name(node, gpu);
                self.note(Incident::Unfenced { gpu, why: "its machine has started anew".into() });
            }
        }
    }

    /// Whether enough GPUs of a GPU's pool have become faulty that one more is only suspected.
    fn breaker_of_gpus_holds(&mut self, (node, gpu): (NodeId, u32), now_ms: u64) -> bool {
        let Some(pool) = self.nodes.get(&node).map(|node| self.pool_of(node, gpu).to_owned()) else {
            return false;
        };
        let (mut gpus, mut faulty, mut suspected) = (0, 0, 0);
        for node in self.nodes.values().filter(|other| other.online || other.id == node) {
            for gpu in (0..node.gpus.len() as u32).filter(|&gpu| self.pool_of(node, gpu) == pool) {
                gpus += 1;
                let Some(fence) = self.fence_of(node.id, gpu).filter(|fence| fence.by == BY_NODE) else {
                    continue;
                };
                faulty += usize::from(now_ms.saturating_sub(fence.since_ms) < WINDOW_MS);
                suspected += usize::from(fence.state == FenceState::Suspected);
            }
        }
        let holds = suspected > 0 || faulty + 1 > (gpus / FAULTY_PART).max(1);
        if holds && suspected == 0 {
            self.note(Incident::GpusHeld { pool, faulty: faulty + 1, gpus });
        }
        holds
    }

    /// Has what is on the GPU finish, make room or end, as its fence says. The answer is the leases
    /// that leave.
    fn clear_gpu(&mut self, node: NodeId, gpu: u32, now_ms: u64, grace_ms: u64) -> Vec<LeaseId> {
        let Some(fence) = self.fence_of(node, gpu).cloned() else { return Vec::new() };
        let grace_ms = match fence.sessions {
            Clearing::End => grace_ms.min(END_GRACE_MS),
            Clearing::Preempt | Clearing::Finish => grace_ms,
        };
        let end_at_ms = now_ms + grace_ms;
        let reason = format!("its GPU {} is fenced: {}", self.gpu_name(node, gpu), fence.why);
        let mut leaving = Vec::new();
        let is_there = |seat: &Seat| seat.node == node && seat.gpus.contains(&gpu);
        for id in self.on_gpu(node, gpu) {
            let Some(lease) = self.leases.get(&id) else { continue };
            match lease.state {
                // Its program may have claimed it though no report of that has come: its nodes'
                // next reports say so.
                LeaseState::Granted if !lease.seats.iter().any(|seat| seat.claimed) => {
                    self.preempt(id, reason.clone(), end_at_ms);
                }
                // A further task that has not begun has nothing to finish.
                LeaseState::Running if fence.sessions == Clearing::Finish => {
                    let tasks = lease.held_tasks(|seat| is_there(seat) && seat.stays() && !seat.claimed);
                    if tasks.is_empty() || !lease.does_without(&tasks) {
                        continue;
                    }
                    self.ask_back(id, &tasks, reason.clone(), end_at_ms);
                }
                _ if fence.sessions == Clearing::Finish => continue,
                LeaseState::Running if fence.sessions == Clearing::Preempt && self.may_leave(id, now_ms) => {}
                LeaseState::Granted | LeaseState::Running => {
                    self.clear_of(id, is_there, reason.clone(), end_at_ms);
                }
                LeaseState::Preempting if lease.preempt_at_ms.is_some_and(|at_ms| at_ms > end_at_ms) => {
                    self.preempt(id, reason.clone(), end_at_ms);
                }
                LeaseState::Preempting | LeaseState::Queued | LeaseState::Ended => continue,
            }
            leaving.push(id);
        }
        leaving
    }

    /// Why, and when, what runs on a GPU that can compute nothing right has to have ended.
    pub(super) fn end_of_faulty(&self, node: NodeId, gpu: u32, now_ms: u64) -> Option<(String, u64)> {
        let is_end = |fence: &&GpuFence| fence.state == FenceState::Fenced && fence.sessions == Clearing::End;
        let fence = self.fence_of(node, gpu).filter(is_end)?;
        let reason = format!("its GPU {} is fenced: {}", self.gpu_name(node, gpu), fence.why);
        Some((reason, now_ms + END_GRACE_MS))
    }

    /// Whether the plan looks for another place for what runs there, before it is preempted.
    fn may_leave(&self, id: LeaseId, now_ms: u64) -> bool {
        match self.moves_live(id, now_ms) {
            Ok((_, seat)) => {
                let mut others = self.nodes.keys().filter(|&&other| other != seat.node);
                others.any(|&other| self.exchanges(other).is_ok())
            }
            Err(Stays::Held(_)) => true,
            Err(Stays::Restarts(_)) => false,
        }
    }

    /// Leases that run on GPUs which they have a grace time to leave, and have neither notice nor a
    /// place elsewhere: each with the reason.
    pub(crate) fn leaves_faulty(&self) -> Vec<(LeaseId, String)> {
        let nodes: BTreeSet<NodeId> = self.health.cards.keys().map(|(node, _)| *node).collect();
        let nodes = nodes.iter().filter_map(|id| self.nodes.get(id));
        let gpus = nodes.flat_map(|node| (0..node.gpus.len() as u32).map(|gpu| (node.id, gpu)));
        let of_gpu = |(node, gpu): (NodeId, u32)| {
            let fence = self.fence_of(node, gpu).filter(|fence| has_grace(fence))?;
            let reason = format!("its GPU {} is fenced: {}", self.gpu_name(node, gpu), fence.why);
            let stays = move |lease: &LeaseRecord| {
                let is_there = |seat: &Seat| seat.node == node && seat.gpus.contains(&gpu);
                let stays = |seat: &Seat| is_there(seat) && seat.stays() && seat.target().is_none();
                lease.state == LeaseState::Running && lease.held().any(|(_, seat)| stays(seat))
            };
            let leases = self.on_gpu(node, gpu).into_iter();
            let leases = leases.filter(move |id| self.leases.get(id).is_some_and(stays));
            Some(leases.map(move |id| (id, reason.clone())))
        };
        gpus.filter_map(of_gpu).flatten().collect()
    }

    /// Gives notice to what runs on GPUs that it has a grace time to leave.
    pub(crate) fn clear_faulty(&mut self, id: LeaseId, reason: String, end_at_ms: u64) {
        let Some(lease) = self.leases.get(&id) else { return };
        let is_faulty =
            |seat: &Seat| seat.gpus.iter().any(|&gpu| self.fence_of(seat.node, gpu).is_some_and(has_grace));
        let there: Vec<(NodeId, Vec<u32>)> = lease
            .seats
            .iter()
            .filter(|seat| is_faulty(seat))
            .map(|seat| (seat.node, seat.gpus.clone()))
            .collect();
        let is_there =
            |seat: &Seat| there.iter().any(|(node, gpus)| (*node, gpus) == (seat.node, &seat.gpus));
        self.clear_of(id, is_there, reason, end_at_ms);
    }

    /// Leases that hold a part of the GPU.
    fn on_gpu(&self, node: NodeId, gpu: u32) -> Vec<LeaseId> {
        let holds = |lease: &LeaseRecord| {
            lease.seats.iter().any(|seat| seat.node == node && !seat.over && seat.gpus.contains(&gpu))
        };
        let on_node = self.account.on_node(node).into_iter();
        on_node.filter(|id| self.leases.get(id).is_some_and(holds)).collect()
    }

    fn gpu_name(&self, node: NodeId, gpu: u32) -> GpuName {
        GpuName { node: self.nodes.get(&node).map_or_else(String::new, |node| node.name.clone()), gpu }
    }

    fn card(&self, node: NodeId, gpu: u32) -> Option<CardId> {
        Some((node, card_of(self.nodes.get(&node)?, gpu)?))
    }

    fn card_changed(&mut self, id: CardId) {
        if self
            .health
            .cards
            .get(&id)
            .is_some_and(|card| card.fence.is_none() && card.recovered_at_ms.is_empty())
        {
            self.health.cards.remove(&id);
        }
        self.news.nodes.insert(id.0);
        self.health.changed.insert(id);
    }
}

/// Whether what runs on a GPU leaves it within a grace time.
fn has_grace(fence: &GpuFence) -> bool {
    fence.state == FenceState::Fenced && fence.sessions == Clearing::Preempt
}

impl CardRecord {
    /// Forgets earlier ones.
    fn recoveries_of_the_day(&mut self, now_ms: u64) -> usize {
        self.recovered_at_ms.retain(|&at_ms| now_ms.saturating_sub(at_ms) < DAY_MS);
        self.recovered_at_ms.len()
    }
}

/// Characters of a reason.
pub(crate) const WHY_MAX: usize = 400;

/// Reasons stand in lists and logs.
pub(crate) fn printable(c: char) -> char {
    if is_deceptive(c) { ' ' } else { c }
}

/// The names of the GPUs that a record of a node is of, where the server knows: of the present
/// attempt of a lease, unless it was moved away from the node since, and of a node with one GPU.
pub(crate) fn cards_of(record: &UsageRecord, lease: Option<&LeaseRecord>, node: &Node) -> Vec<String> {
    let lease = lease.filter(|lease| lease.attempt == record.attempt);
    let seat = lease.and_then(|lease| lease.seats.get(record.task as usize));
    let only = [0];
    let gpus = match seat {
        Some(seat) if seat.node == node.id => &seat.gpus[..],
        Some(Seat { moving: Some(SeatMove::Sent { node: target, gpus, .. }), .. }) if *target == node.id => {
            gpus
        }
        _ if node.gpus.len() == 1 => &only,
        _ => &[],
    };
    let cards: Vec<String> = gpus.iter().filter_map(|gpu| card_of(node, *gpu)).collect();
    if cards.len() == record.gpus as usize { cards } else { Vec::new() }
}

/// A lost GPU does not come back with the next start, and those behind it move up: the place alone
/// would fence another GPU.
pub(crate) fn card_of(node: &Node, gpu: u32) -> Option<String> {
    let uuid = &node.gpus.get(gpu as usize)?.uuid;
    let is_its_own = !uuid.is_empty() && node.gpus.iter().filter(|other| other.uuid == *uuid).count() == 1;
    Some(if is_its_own { uuid.clone() } else { format!("#{gpu}") })
}

#[cfg(test)]
mod tests;
