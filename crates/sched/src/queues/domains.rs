//! Which nodes stand in which domain.

use std::collections::BTreeMap;

use crate::{DomainId, NodeId, NodeSpec};

/// The nodes of each domain, level by level, the widest first.
#[derive(Debug, Clone, Default)]
pub(super) struct Domains {
    levels: Vec<BTreeMap<DomainId, Vec<NodeId>>>,
    all: Vec<NodeId>,
}

impl Domains {
    pub(super) fn add(&mut self, node: NodeId, spec: &NodeSpec) {
        insert(&mut self.all, node);
        if self.levels.len() < spec.domains.len() {
            self.levels.resize_with(spec.domains.len(), BTreeMap::new);
        }
        for (level, domain) in self.levels.iter_mut().zip(&spec.domains) {
            insert(level.entry(*domain).or_default(), node);
        }
    }

    pub(super) fn remove(&mut self, node: NodeId, spec: &NodeSpec) {
        self.all.retain(|&other| other != node);
        for (level, domain) in self.levels.iter_mut().zip(&spec.domains) {
            if let Some(nodes) = level.get_mut(domain) {
                nodes.retain(|&other| other != node);
                if nodes.is_empty() {
                    level.remove(domain);
                }
            }
        }
    }

    pub(super) fn levels(&self) -> usize {
        self.levels.len()
    }

    /// Every node of the cluster.
    pub(super) fn all(&self) -> &[NodeId] {
        &self.all
    }

    /// The domains of a level with their nodes.
    pub(super) fn of_level(&self, level: u8) -> impl Iterator<Item = (DomainId, &[NodeId])> {
        self.levels.get(usize::from(level)).into_iter().flatten().map(|(&domain, nodes)| (domain, &nodes[..]))
    }

    /// The nodes that share a domain of this level with the node.
    pub(super) fn around(&self, level: u8, spec: &NodeSpec) -> &[NodeId] {
        let level = usize::from(level);
        let nodes = |domain| self.levels.get(level)?.get(domain);
        spec.domains.get(level).and_then(nodes).map_or(&[], |nodes| &nodes[..])
    }
}

/// Nodes are kept in the order of their ids, in which nearly all of them come.
fn insert(nodes: &mut Vec<NodeId>, node: NodeId) {
    let at = nodes.partition_point(|&other| other < node);
    nodes.insert(at, node);
}
