//! How many tasks of a request each node has room for, kept up to date node by node.

use rustc_hash::FxHashMap;

use super::room::Room;
use crate::{Cluster, NodeId, Request, fit};

/// Requests that are kept; the one that was not asked for longest is replaced by a new one.
const REQUESTS_MAX: usize = 256;

#[derive(Debug, Clone, Default)]
pub(super) struct SlotIndex {
    by_request: FxHashMap<Request, Slots>,
    questions: u64,
}

/// Room for tasks of one request, by node.
#[derive(Debug, Clone, Default)]
pub(super) struct Slots {
    /// The cluster, and the version of it, up to which nodes are counted.
    cluster: u64,
    seen: u64,
    on_node: Vec<u32>,
    asked: u64,
}

impl SlotIndex {
    /// Counts again the nodes that were touched since the last question about this request.
    pub(super) fn of(&mut self, cluster: &Cluster, request: &Request) -> &Slots {
        if self.by_request.len() >= REQUESTS_MAX && !self.by_request.contains_key(request) {
            let oldest =
                self.by_request.iter().min_by_key(|(_, slots)| slots.asked).map(|(&request, _)| request);
            oldest.inspect(|request| drop(self.by_request.remove(request)));
        }
        self.questions += 1;
        let slots = self.by_request.entry(*request).or_default();
        slots.asked = self.questions;
        slots.update(cluster, request);
        slots
    }
}

impl Slots {
    fn update(&mut self, cluster: &Cluster, request: &Request) {
        if self.cluster != cluster.identity() || self.on_node.len() != cluster.nodes().len() {
            (self.cluster, self.seen) = (cluster.identity(), 0);
            self.on_node = vec![0; cluster.nodes().len()];
        }
        for node in cluster.recency().since(self.seen) {
            self.on_node[node.index()] = slots_on(cluster, request, node);
        }
        self.seen = cluster.recency().version();
    }

    pub(super) fn on(&self, node: NodeId) -> u32 {
        self.on_node[node.index()]
    }

    /// How many of `needs` tasks fit these nodes.
    pub(super) fn fit(&self, nodes: &[NodeId], needs: u32) -> u32 {
        let fit: u64 = nodes.iter().map(|&node| u64::from(self.on(node))).sum();
        fit.min(needs.into()) as u32
    }
}

/// How many tasks of the request the node has room for.
pub(super) fn slots_on(cluster: &Cluster, request: &Request, node: NodeId) -> u32 {
    let node = cluster.node(node);
    let request = &request.on(node.spec());
    if fit(node, request).is_ok() { Room::of(node).slots(request, u32::MAX >> 1) } else { 0 }
}
