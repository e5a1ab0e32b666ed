//! Nodes and the edges between them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use super::{Inner, Node, Work};
use crate::base::ids::NodeId;
use crate::base::status::{Result, Status};
use crate::work::conditional::Variable;
use crate::work::op::Op;
use crate::work::steps::{Step, Steps};
use crate::work::user_object::UserObject;

/// The nodes of a graph, by id: a captured node comes after those it depends on.
#[derive(Default)]
pub(crate) struct Body {
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    /// What the program wants to live as long as the graph, and how many of its references.
    pub(crate) objects: Vec<(Arc<UserObject>, u32)>,
    /// What conditional nodes of this graph, or of those inside it, may decide by.
    pub(crate) variables: Vec<Arc<Variable>>,
    /// Of a copy: its nodes, also those that are gone, by the nodes that they are copies of.
    twins: BTreeMap<NodeId, NodeId>,
    /// Handle of its graph, once it has one.
    home: usize,
}

/// The graphs that nodes are in, by handle. It is locked for a moment at a time, under the lock of
/// a body too.
pub(super) static HOMES: LazyLock<RwLock<HashMap<NodeId, usize>>> = LazyLock::new(RwLock::default);

impl Drop for Body {
    fn drop(&mut self) {
        if self.home != 0 {
            let mut homes = HOMES.write().unwrap_or_else(PoisonError::into_inner);
            for id in self.nodes.keys() {
                homes.remove(id);
            }
        }
    }
}

impl Body {
    /// Adds a node, behind those of its dependencies that are still here: a capture may have seen
    /// one that was destroyed since.
    pub(crate) fn add(&mut self, mut node: Node) -> NodeId {
        node.dependencies.retain(|before| self.nodes.contains_key(before));
        static MINTED: AtomicUsize = AtomicUsize::new(1);
        // Handles of their own kind, beside those of the tables.
        let id = NodeId(7 << 32 | MINTED.fetch_add(1, Ordering::Relaxed) << 4);
        self.nodes.insert(id, node);
        if self.home != 0 {
            HOMES.write().unwrap_or_else(PoisonError::into_inner).insert(id, self.home);
        }
        id
    }

    /// Makes it known that the nodes are in this graph.
    pub(super) fn move_in(&mut self, graph: usize) {
        self.home = graph;
        let mut homes = HOMES.write().unwrap_or_else(PoisonError::into_inner);
        homes.extend(self.nodes.keys().map(|&id| (id, graph)));
    }

    /// A copy with nodes of its own; conditional ones cannot be copied.
    pub(super) fn duplicate(&self) -> Result<Self> {
        let mut copy = Self::default();
        copy.objects.clone_from(&self.objects);
        for (&id, node) in &self.nodes {
            let work = match &node.work {
                Work::One(op) => Work::One(op.clone()),
                Work::Child(inner) => Work::Child(Inner::new(inner.0.duplicate()?)),
                Work::Conditional(_) => return Err(Status::NOT_SUPPORTED),
            };
            let attributes = node.attributes.clone();
            let twin = copy.add(Node { kind: node.kind, work, dependencies: Vec::new(), attributes });
            copy.twins.insert(id, twin);
        }
        for (id, node) in &self.nodes {
            if let Some(twin) = copy.nodes.get_mut(&copy.twins[id]) {
                twin.dependencies = node.dependencies.iter().map(|before| copy.twins[before]).collect();
            }
        }
        Ok(copy)
    }

    /// The copy of a node that is here.
    pub(crate) fn twin(&self, original: NodeId) -> Option<NodeId> {
        self.twins.get(&original).copied().filter(|twin| self.nodes.contains_key(twin))
    }

    /// Takes dependencies away.
    pub(crate) fn disconnect(&mut self, from: NodeId, to: NodeId) -> Result<()> {
        let node = self.nodes.get_mut(&to).ok_or(Status::INVALID_VALUE)?;
        let at = node.dependencies.iter().position(|before| *before == from).ok_or(Status::INVALID_VALUE)?;
        node.dependencies.remove(at);
        Ok(())
    }

    /// Takes a node away, and the edges to and from it.
    pub(crate) fn remove(&mut self, id: NodeId) -> Result<Node> {
        let node = self.nodes.remove(&id).ok_or(Status::INVALID_VALUE)?;
        HOMES.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        for other in self.nodes.values_mut() {
            other.dependencies.retain(|before| *before != id);
        }
        Ok(node)
    }

    /// All edges, by the node that they come from.
    pub(crate) fn edges(&self) -> Vec<(NodeId, NodeId)> {
        let into = |(&to, node): (&NodeId, &Node)| {
            node.dependencies.iter().map(move |&from| (from, to)).collect::<Vec<_>>()
        };
        self.nodes.iter().flat_map(into).collect()
    }

    /// `last` and everything before it.
    pub(crate) fn ancestors(&self, last: &[NodeId]) -> BTreeSet<NodeId> {
        let mut found = BTreeSet::new();
        let mut open = last.to_vec();
        while let Some(id) = open.pop() {
            if found.insert(id)
                && let Some(node) = self.nodes.get(&id)
            {
                open.extend(&node.dependencies);
            }
        }
        found
    }

    /// Adds dependencies between nodes that exist; a pair that closes a circle is found at
    /// instantiation.
    pub(crate) fn connect(&mut self, from: NodeId, to: NodeId) -> Result<()> {
        if from == to || !self.nodes.contains_key(&from) {
            return Err(Status::INVALID_VALUE);
        }
        let node = self.nodes.get_mut(&to).ok_or(Status::INVALID_VALUE)?;
        if node.dependencies.contains(&from) {
            return Err(Status::INVALID_VALUE);
        }
        node.dependencies.push(from);
        Ok(())
    }

    /// Appends the work of all nodes to `to`, dependencies first. A circle has no such order.
    /// `inside`: the child nodes around this graph.
    pub(super) fn flatten(&self, inside: &[NodeId], to: &mut Steps) -> Result<()> {
        to.objects.extend(self.objects.iter().map(|(object, _)| Arc::clone(object)));
        to.variables.extend(self.variables.iter().cloned());
        let mut waits: BTreeMap<NodeId, usize> =
            self.nodes.iter().map(|(&id, n)| (id, n.dependencies.len())).collect();
        let mut ready: BTreeSet<NodeId> =
            waits.iter().filter(|&(_, &count)| count == 0).map(|(&id, _)| id).collect();
        let mut followers: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
        for (&id, node) in &self.nodes {
            for &dependency in &node.dependencies {
                followers.entry(dependency).or_default().push(id);
            }
        }
        let mut done = 0;
        while let Some(id) = ready.pop_first() {
            done += 1;
            match &self.nodes[&id].work {
                Work::One(op) => {
                    let inside = inside.to_vec();
                    to.steps.push(Step { node: id, op: op.clone(), is_enabled: true, inside });
                }
                Work::Child(inner) => inner.0.body().flatten(&[inside, &[id]].concat(), to)?,
                Work::Conditional(conditional) => {
                    let op = Op::Branch(Arc::new(conditional.flatten(to)?));
                    to.steps.push(Step { node: id, op, is_enabled: true, inside: inside.to_vec() });
                }
            }
            for follower in followers.remove(&id).into_iter().flatten() {
                let count = waits.get_mut(&follower).ok_or(Status::INVALID_VALUE)?;
                *count -= 1;
                if *count == 0 {
                    ready.insert(follower);
                }
            }
        }
        if done == self.nodes.len() { Ok(()) } else { Err(Status::INVALID_VALUE) }
    }
}
