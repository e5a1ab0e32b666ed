//! Which nodes changed since a moment: all nodes in a list, the last touched one first.
//!
//! A reader remembers the version it has seen and walks from the front to the first node that is
//! not newer. A node touched many times is walked over once, and the list never grows beyond the
//! nodes.

use crate::NodeId;

const NIL: u32 = u32::MAX;

#[derive(Debug, Clone)]
pub(crate) struct Recency {
    version: u64,
    head: u32,
    links: Vec<ListNode>,
}

#[derive(Debug, Clone, Copy)]
struct ListNode {
    /// When this node was last touched.
    version: u64,
    newer: u32,
    older: u32,
}

impl Recency {
    pub(crate) fn new() -> Recency {
        Recency { version: 0, head: NIL, links: Vec::new() }
    }

    /// The number of touches so far.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Appends a node, which counts as touched.
    pub(crate) fn push(&mut self) {
        self.links.push(ListNode { version: 0, newer: NIL, older: NIL });
        self.put_first((self.links.len() - 1) as u32);
    }

    pub(crate) fn touch(&mut self, node: NodeId) {
        let node = node.index() as u32;
        let ListNode { newer, older, .. } = self.links[node as usize];
        if newer == NIL {
            self.version += 1;
            self.links[node as usize].version = self.version;
            return;
        }
        self.links[newer as usize].older = older;
        if older != NIL {
            self.links[older as usize].newer = newer;
        }
        self.put_first(node);
    }

    /// Nodes touched after `version`, the newest first, each once.
    pub(crate) fn since(&self, version: u64) -> impl Iterator<Item = NodeId> {
        let newer_than =
            move |node: u32| (node != NIL && self.links[node as usize].version > version).then_some(node);
        std::iter::successors(newer_than(self.head), move |&node| newer_than(self.links[node as usize].older))
            .map(|node| NodeId::from_index(node as usize))
    }

    fn put_first(&mut self, node: u32) {
        self.version += 1;
        self.links[node as usize] = ListNode { version: self.version, newer: NIL, older: self.head };
        if self.head != NIL {
            self.links[self.head as usize].newer = node;
        }
        self.head = node;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_touched_node_is_listed_once_newest_first() {
        let mut recency = Recency::new();
        for _ in 0..5 {
            recency.push();
        }
        let since =
            |recency: &Recency, version| recency.since(version).map(NodeId::index).collect::<Vec<_>>();
        assert_eq!(since(&recency, 0), [4, 3, 2, 1, 0]);
        let seen = recency.version();
        assert_eq!(since(&recency, seen), [0; 0]);
        for node in [1, 4, 1, 0, 0, 4] {
            recency.touch(NodeId::from_index(node));
        }
        assert_eq!(since(&recency, seen), [4, 0, 1]);
        assert_eq!(since(&recency, 0), [4, 0, 1, 3, 2]);
    }
}
