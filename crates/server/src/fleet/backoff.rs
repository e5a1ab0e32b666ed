//! Moves that nodes have refused, so that the server does not order the like again and again.
//!
//! ```text
//! two nodes:  refused ──▶ refused again ──▶ no moves by the server for a minute ──▶ one is tried
//!                ▲                                                                   │      │
//!                └──────────────────────────── moved ◀───────────────────────────────┘      │
//!                          no moves for twice as long, an hour at most ◀── refused again ───┘
//! a waiting lease:  moves for it refused twice ──▶ what is in its way starts again elsewhere
//! ```
//! A refusal is a text: whether it is about the program or about the two nodes is not known. The
//! first one counts for the program alone (`Fleet::moves_live`), and two in a row count for the
//! nodes. A person may try all the same, by naming the node. This is not stored: a server that
//! comes to lead tries again.

use std::collections::BTreeMap;

use sluice_api::lease::LeaseId;
use sluice_api::node::NodeId;

use super::lease::SeatMove;
use super::{Fleet, Seat};

/// This number of refusals in a row is about the nodes, or enough for a lease that waits.
const REFUSALS_MIN: u32 = 2;
/// How long two nodes rest at first, and at most.
const REST_MS: u64 = 60_000;
const REST_MS_MAX: u64 = 60 * 60_000;

#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// From the first node to the second.
    pairs: BTreeMap<(NodeId, NodeId), Refusals>,
    /// How many moves were refused for leases that wait.
    takers: BTreeMap<LeaseId, u32>,
}

/// Refusals without a move in between.
#[derive(Debug, Default)]
struct Refusals {
    count: u32,
    until_ms: u64,
    /// The last one's reason.
    reason: String,
}

impl Backoff {
    /// As far as that moment.
    pub(super) fn move_times(&mut self, by_ms: i64) {
        for refusals in self.pairs.values_mut() {
            refusals.until_ms = refusals.until_ms.saturating_add_signed(by_ms);
        }
    }

    pub(super) fn forget(&mut self, node: NodeId) {
        self.pairs.retain(|(from, to), _| *from != node && *to != node);
    }

    fn refuse(&mut self, pair: (NodeId, NodeId), reason: &str, now_ms: u64) {
        let refusals = self.pairs.entry(pair).or_default();
        refusals.count += 1;
        refusals.reason = reason.to_owned();
        if let Some(more) = refusals.count.checked_sub(REFUSALS_MIN) {
            let rest_ms = REST_MS.saturating_mul(1 << more.min(16)).min(REST_MS_MAX);
            refusals.until_ms = now_ms.saturating_add(rest_ms);
        }
    }
}

impl Fleet {
    /// A move of this lease has not come to be: its node has refused it, or did not answer in time.
    pub(crate) fn count_refusal(&mut self, id: LeaseId, reason: &str, now_ms: u64) {
        let ordered = |seat: &Seat| match &seat.moving {
            Some(SeatMove::Sent { node, cause, .. }) if !seat.over => {
                Some(((seat.node, *node), cause.as_ref().and_then(|cause| cause.taker)))
            }
            _ => None,
        };
        let Some(lease) = self.leases.get(&id) else { return };
        let Some((pair, taker)) = lease.seats.iter().find_map(ordered) else { return };
        self.backoff.refuse(pair, reason, now_ms);
        let waits = |id: &LeaseId| self.leases.get(id).is_some_and(|lease| lease.waits());
        self.backoff.takers.retain(|id, _| waits(id));
        if let Some(taker) = taker.filter(waits) {
            *self.backoff.takers.entry(taker).or_default() += 1;
        }
    }

    /// A program has moved from one node to another.
    pub(super) fn count_moved(&mut self, from: NodeId, to: NodeId) {
        self.backoff.pairs.remove(&(from, to));
    }

    /// Why no program is moved from one node to another now.
    pub(crate) fn rest_between(&self, from: NodeId, to: NodeId, now_ms: u64) -> Option<String> {
        let refusals = self.backoff.pairs.get(&(from, to)).filter(|it| now_ms < it.until_ms)?;
        let left_s = (refusals.until_ms - now_ms).div_ceil(1000);
        let (from, to) = (self.name_of(from), self.name_of(to));
        Some(format!(
            "the last {} moves from {from} to {to} were refused, and the next one is tried in {left_s} s ({})",
            refusals.count, refusals.reason
        ))
    }

    /// Why nothing moves any more for a lease that waits.
    pub(crate) fn has_waited_for_moves(&self, taker: LeaseId) -> Option<String> {
        let count = self.backoff.takers.get(&taker).filter(|count| **count >= REFUSALS_MIN)?;
        Some(format!("{count} moves for lease {taker} were refused already"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_nodes_rest_for_longer_and_longer() {
        let mut backoff = Backoff::default();
        let rests: Vec<u64> = (0..9)
            .map(|_| {
                backoff.refuse((1, 2), "no route", 1000);
                backoff.pairs[&(1, 2)].until_ms.saturating_sub(1000) / 60_000
            })
            .collect();
        assert_eq!(rests, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
        backoff.refuse((2, 1), "no route", 1000);
        assert_eq!(backoff.pairs[&(2, 1)].until_ms, 0, "the other way is another one");
        backoff.move_times(500);
        assert_eq!(backoff.pairs[&(1, 2)].until_ms, 1500 + REST_MS_MAX);
        backoff.forget(1);
        assert!(backoff.pairs.is_empty());
    }
}
