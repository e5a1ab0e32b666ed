//! Nodes that an operator wants empty, and those that are gone for good.

use sluice_api::lease::LeaseState;
use sluice_api::node::{Drain, NodeId};

use super::{Fleet, Node, Seat};

impl Fleet {
    pub(crate) fn node_named(&self, name: &str) -> Option<&Node> {
        self.nodes.values().find(|node| node.name == name)
    }

    /// It gets nothing new from now on, or does again. With an end, leases there may run until
    /// then, and wait in the queue again.
    pub(crate) fn set_drain(&mut self, id: NodeId, drain: Option<Drain>, end_at_ms: Option<u64>) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.drain = drain.map(|drain| Drain { ends_at_ms: end_at_ms.or(drain.ends_at_ms), ..drain });
        let reason = format!("its node {} is being drained", node.name);
        self.news.nodes.insert(id);
        let Some(end_at_ms) = end_at_ms else { return };
        for lease in self.account.on_node(id) {
            match self.leases.get(&lease).map(|lease| (lease.state, lease.preempt_at_ms)) {
                Some((LeaseState::Granted | LeaseState::Running, _)) => {
                    // Those that have notice already leave by then at the latest.
                    // What moves away leaves without notice.
                    let is_there = |seat: &Seat| seat.node == id && !seat.over && seat.target().is_none();
                    self.clear_of(lease, is_there, reason.clone(), end_at_ms);
                }
                Some((LeaseState::Preempting, Some(at_ms))) if at_ms > end_at_ms => {
                    self.preempt(lease, reason.clone(), end_at_ms);
                }
                _ => {}
            }
        }
    }

    /// Why, and when, what runs on a drained node has to have ended, if it has to.
    pub(super) fn end_of_drained(&self, id: NodeId, now_ms: u64) -> Option<(String, u64)> {
        let node = self.nodes.get(&id)?;
        let ends_at_ms = node.drain.as_ref()?.ends_at_ms?;
        Some((format!("its node {} is being drained", node.name), ends_at_ms.max(now_ms)))
    }

    /// Whether nothing has been received from it for long enough to say that it does not report:
    /// longer than this server listens.
    pub(crate) fn is_silent(&self, node: &Node, now_ms: u64) -> bool {
        let heard_ms = node.heard_at_ms.unwrap_or(node.joined_at_ms).saturating_add(node.deaf_ms);
        now_ms.saturating_sub(heard_ms.max(self.silence.since_ms())) >= self.silent_after_ms()
    }

    /// It is in no list any more. Its number stays its own, should it come back.
    pub(crate) fn forget_node(&mut self, id: NodeId) {
        let Some(node) = self.nodes.remove(&id) else { return };
        self.forgotten.insert(id, node.name);
        self.refusals.remove(&id);
        self.health.forget(id);
        self.backoff.forget(id);
        self.news.all = true;
    }

    /// Takes over what is in the database.
    pub(crate) fn recall_forgotten(&mut self, nodes: Vec<(NodeId, String)>) {
        self.forgotten = nodes.into_iter().collect();
        self.last_node = self.last_node.max(self.forgotten.keys().max().copied().unwrap_or(0));
    }

    /// Those of all nodes that there have been.
    pub(crate) fn node_names(&self) -> impl Iterator<Item = (NodeId, &str)> {
        let nodes = self.nodes.values().map(|node| (node.id, &*node.name));
        nodes.chain(self.forgotten.iter().map(|(&id, name)| (id, &**name)))
    }

    /// Also that of one which has been forgotten.
    pub(super) fn name_of(&self, node: NodeId) -> &str {
        let known = self.nodes.get(&node).map(|node| &node.name);
        known.or_else(|| self.forgotten.get(&node)).map_or("", |name| name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sluice_api::node::{Join, Report};

    use super::*;

    fn join(name: &str) -> Join {
        let join = json!({ "name": name, "address": "h:1", "gpus": [], "release": "" });
        serde_json::from_value(join).unwrap()
    }

    #[test]
    fn a_node_is_silent_once_it_has_said_nothing_for_as_long_as_others_wait_for_it() {
        let mut fleet = Fleet::new(Vec::new(), Vec::new(), Vec::new(), Vec::new(), 0, 0, 100_000);
        let id = fleet.join(join("one"), 100_000).id;
        let silent = |fleet: &Fleet, now_ms| fleet.is_silent(&fleet.nodes()[&id], now_ms);
        assert!(!silent(&fleet, 114_999), "it may just be starting");
        assert!(silent(&fleet, 115_000));
        fleet.report(id, Report { sequence: 1, ..Report::default() }, 110_000);
        assert!(!silent(&fleet, 124_999) && silent(&fleet, 125_000));
        // A server that has just come to lead has heard nobody.
        let node = fleet.nodes()[&id].clone();
        let fleet = Fleet::new(
            Vec::new(),
            Vec::new(),
            vec![Node { heard_at_ms: None, ..node }],
            Vec::new(),
            0,
            0,
            500_000,
        );
        assert!(!silent(&fleet, 514_999) && silent(&fleet, 515_000));
    }

    #[test]
    fn a_number_is_given_to_one_node_only() {
        let mut fleet = Fleet::new(Vec::new(), Vec::new(), Vec::new(), Vec::new(), 0, 0, 0);
        let gone = fleet.join(join("gone"), 0).id;
        fleet.forget_node(gone);
        assert!(fleet.nodes().is_empty() && fleet.name_of(gone) == "gone");
        // Another server reads what is left in the database.
        let mut fleet = Fleet::new(Vec::new(), Vec::new(), Vec::new(), Vec::new(), 0, 0, 0);
        fleet.recall_forgotten(vec![(gone, "gone".into())]);
        assert_ne!(fleet.join(join("new"), 0).id, gone);
        assert_eq!(fleet.join(join("gone"), 0).id, gone, "it is itself");
        assert_eq!(fleet.nodes().len(), 2);
    }
}
