//! The scores of all nodes for one class of requests, kept up to date node by node.

use crate::score::Choice;
use crate::{Cluster, Misfit, Node, NodeId, Unplaced};

/// A tournament over the nodes: the best score is at the root, and the first node that has it is
/// found from there.
#[derive(Debug, Clone)]
pub(crate) struct ClassIndex {
    /// The version of the cluster up to which nodes are scored.
    seen: u64,
    nodes: usize,
    /// A heap-shaped tree: the children of `i` are `2 i` and `2 i + 1`, the leaves are the nodes.
    /// 0: does not fit; else score + 1.
    tree: Vec<u32>,
    misfits: Vec<Option<Misfit>>,
    unplaced: Unplaced,
}

impl ClassIndex {
    pub(crate) fn new() -> ClassIndex {
        ClassIndex { seen: 0, nodes: 0, tree: vec![0; 2], misfits: Vec::new(), unplaced: Unplaced::default() }
    }

    /// Scores again the nodes that were touched since the last time; `score` answers for one node.
    pub(crate) fn update(&mut self, cluster: &Cluster, score: impl Fn(&Node) -> Result<Choice, Misfit>) {
        if self.nodes != cluster.nodes().len() {
            self.resize(cluster);
        }
        for node in cluster.recency().since(self.seen) {
            self.set(node, score(cluster.node(node)));
        }
        self.seen = cluster.recency().version();
    }

    /// The first of the nodes with the highest score.
    pub(crate) fn best(&self) -> Result<NodeId, Unplaced> {
        let best = self.tree[1];
        if best == 0 {
            return Err(self.unplaced);
        }
        let leaves = self.tree.len() / 2;
        let mut at = 1;
        while at < leaves {
            at = if self.tree[2 * at] == best { 2 * at } else { 2 * at + 1 };
        }
        Ok(NodeId::from_index(at - leaves))
    }

    fn resize(&mut self, cluster: &Cluster) {
        let nodes = cluster.nodes().len();
        *self = ClassIndex {
            seen: 0,
            nodes,
            tree: vec![0; 2 * nodes.next_power_of_two().max(1)],
            misfits: vec![None; nodes],
            unplaced: Unplaced::of(cluster.usage().nodes),
        };
    }

    fn set(&mut self, node: NodeId, scored: Result<Choice, Misfit>) {
        let misfit = scored.err();
        let before = std::mem::replace(&mut self.misfits[node.index()], misfit);
        if before != misfit {
            before.inspect(|&before| self.unplaced.remove(before));
            misfit.inspect(|&misfit| self.unplaced.add(misfit));
        }
        let mut at = self.tree.len() / 2 + node.index();
        let mut value = scored.map_or(0, |choice| choice.score + 1);
        while self.tree[at] != value {
            self.tree[at] = value;
            if at == 1 {
                break;
            }
            value = value.max(self.tree[at ^ 1]);
            at /= 2;
        }
    }
}
