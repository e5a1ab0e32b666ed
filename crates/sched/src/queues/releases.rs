//! A log of where room came to be.

use std::collections::VecDeque;

use crate::NodeId;

/// Work that found no room at one point of the log can find room only on the nodes logged since.
#[derive(Debug, Clone, Default)]
pub(super) struct Releases {
    /// Entries that were forgotten.
    forgotten: u64,
    nodes: VecDeque<NodeId>,
}

/// More entries are not kept; who looks further back looks at every node.
const KEPT_MAX: usize = 1 << 14;

impl Releases {
    /// The end of the log.
    pub(super) fn end(&self) -> u64 {
        self.forgotten + self.nodes.len() as u64
    }

    pub(super) fn push(&mut self, node: NodeId) {
        if self.nodes.len() == KEPT_MAX {
            self.nodes.pop_front();
            self.forgotten += 1;
        }
        self.nodes.push_back(node);
    }

    /// The nodes logged since the log ended `at`, some more than once; none if that was too long
    /// ago.
    pub(super) fn since(&self, at: u64) -> Option<impl Iterator<Item = NodeId> + '_> {
        let skip = at.checked_sub(self.forgotten)?;
        Some(self.nodes.iter().copied().skip(skip as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_tells_what_came_since_or_that_it_forgot() {
        let mut log = Releases::default();
        let start = log.end();
        log.push(NodeId::from_index(7));
        let later = log.end();
        log.push(NodeId::from_index(8));
        assert_eq!(log.since(start).unwrap().map(NodeId::index).collect::<Vec<_>>(), [7, 8]);
        assert_eq!(log.since(later).unwrap().map(NodeId::index).collect::<Vec<_>>(), [8]);
        (0..KEPT_MAX).for_each(|_| log.push(NodeId::from_index(9)));
        assert!(log.since(later).is_none());
        assert_eq!(log.since(log.end()).unwrap().count(), 0);
    }
}
