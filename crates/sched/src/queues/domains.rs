//! Which nodes stand in which domain.

use std::collections::{BTreeMap, BTreeSet};

use super::slots::Slots;
use crate::{Cluster, DomainId, NodeId, NodeSpec};

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

/// What keeps the tasks of one job apart: a level, and those of its domains that are taken.
#[derive(Debug, Clone)]
pub(super) struct Apart {
    level: usize,
    taken: BTreeSet<DomainId>,
}

impl Apart {
    pub(super) fn new(level: u8) -> Apart {
        Apart { level: level.into(), taken: BTreeSet::new() }
    }

    /// Whether the node's domain is free.
    pub(super) fn is_open(&self, node: &NodeSpec) -> bool {
        node.domains.get(self.level).is_none_or(|domain| !self.taken.contains(domain))
    }

    /// Takes the node's domain; false if it was taken before.
    pub(super) fn take(&mut self, node: &NodeSpec) -> bool {
        node.domains.get(self.level).is_none_or(|&domain| self.taken.insert(domain))
    }
}

/// How many of `needs` tasks fit these nodes, each in a domain of its own if they are kept apart.
pub(super) fn fit_apart(
    slots: &Slots,
    cluster: &Cluster,
    nodes: &[NodeId],
    needs: u32,
    apart: Option<&Apart>,
) -> u32 {
    let Some(apart) = apart else { return slots.fit(nodes, needs) };
    let mut apart = apart.clone();
    let with_room = nodes.iter().filter(|&&node| slots.on(node) > 0);
    let fit = with_room.filter(|&&node| apart.take(cluster.node(node).spec())).count();
    needs.min(u32::try_from(fit).unwrap_or(u32::MAX))
}

/// Nodes are kept in the order of their ids, in which nearly all of them come.
fn insert(nodes: &mut Vec<NodeId>, node: NodeId) {
    let at = nodes.partition_point(|&other| other < node);
    nodes.insert(at, node);
}
