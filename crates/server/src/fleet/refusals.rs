//! Grants that a node did not honour, as their programs say.
//!
//! That is the program's word alone, so it counts for its own lease alone.

use std::collections::BTreeSet;

use serde_json::json;
use sluice_api::lease::LeaseId;
use sluice_api::node::NodeId;

use super::Fleet;

impl Fleet {
    /// Its program says that a node of it would not take it. It waits again, and is not placed on
    /// these nodes before they report; for others they are as they were.
    pub(crate) fn refuse(&mut self, id: LeaseId, reason: &str, now_ms: u64) {
        let Some(lease) = self.leases.get(&id) else { return };
        for node in lease.seats.iter().map(|seat| seat.node) {
            self.refusals.entry(node).or_default().insert(id);
        }
        self.tell(id, "lease.refused", json!({ "reason": reason }));
        self.requeue(id, now_ms);
        self.wait_because(id, format!("its node refused it: {reason}"));
    }

    /// Its program says that a node would not take a further task of it. It continues with those
    /// that it has; on that node others come only when it has reported.
    pub(crate) fn refuse_task(&mut self, id: LeaseId, task: u32, now_ms: u64) {
        let seat = self.leases.get(&id).and_then(|lease| lease.seats.get(task as usize));
        if let Some(node) = seat.filter(|seat| !seat.claimed && !seat.over).map(|seat| seat.node) {
            self.refusals.entry(node).or_default().insert(id);
            self.forgo(id, &[task], now_ms);
        }
    }

    /// Leases that the node has refused since it reported last.
    pub(crate) fn refused_by(&self, node: NodeId) -> impl Iterator<Item = LeaseId> + '_ {
        self.refusals.get(&node).into_iter().flatten().copied()
    }

    /// Nodes that have refused the lease, and not reported since.
    pub(crate) fn refusers_of(&self, id: LeaseId) -> impl Iterator<Item = NodeId> + '_ {
        let refused =
            move |(node, leases): (&NodeId, &BTreeSet<LeaseId>)| leases.contains(&id).then_some(*node);
        self.refusals.iter().filter_map(refused)
    }
}
