//! The account of a session's nodes: how many graphs have, and what these hold.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use sluice_cuda::CUresult;

use crate::memory::host_memory::HostMemory;

/// Most nodes of all graphs and executable graphs of a session, those of graphs inside nodes among
/// them.
pub(super) const NODES_MAX: u64 = 1 << 20;
/// Bytes of any node, here and in a driver, about.
pub(super) const NODE_BYTES: u64 = 512;

/// A number of nodes, the bytes that they hold, and how many graphs lie inside each other there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Weight {
    pub(super) nodes: u64,
    pub(super) bytes: u64,
    pub(super) depth: u32,
}

impl Weight {
    /// The weight of this number of nodes that hold nothing but themselves.
    pub(super) fn of(nodes: u64, depth: u32) -> Weight {
        Weight { nodes, bytes: nodes.saturating_mul(NODE_BYTES), depth }
    }

    /// The weight of one node that also holds this number of bytes.
    pub(super) fn holding(bytes: u64) -> Weight {
        Weight { nodes: 1, bytes: NODE_BYTES.saturating_add(bytes), depth: 0 }
    }

    /// The bytes alone.
    pub(super) fn bytes(bytes: u64) -> Weight {
        Weight { nodes: 0, bytes, depth: 0 }
    }

    /// With what lies beside it.
    pub(super) fn and(self, other: Weight) -> Weight {
        Weight {
            nodes: self.nodes.saturating_add(other.nodes),
            bytes: self.bytes.saturating_add(other.bytes),
            depth: self.depth.max(other.depth),
        }
    }

    /// With what lies inside it.
    pub(super) fn around(self, inner: Weight) -> Weight {
        self.and(Weight { depth: inner.depth.saturating_add(1), ..inner })
    }
}

/// The account. An open capture is in no graph's weight before it ends. Bytes are the session's.
pub(super) struct Weights {
    pub(super) memory: Arc<HostMemory>,
    /// By the driver's handle of a graph or executable graph. Of a graph inside a node: what came
    /// to it since.
    pub(super) of: HashMap<usize, Weight>,
    /// Nodes of `of`.
    pub(super) sum: u64,
    /// Bytes that nodes of executable graphs hold because they were changed there, by the driver's
    /// handles.
    pub(super) changed: HashMap<usize, HashMap<usize, u64>>,
    /// Streams in which captures have begun that have not ended.
    pub(super) captures: HashSet<usize>,
    /// What commands may have added to graphs since there were none.
    pub(super) captured: Weight,
}

impl Weights {
    pub(super) fn new(memory: Arc<HostMemory>) -> Weights {
        Weights {
            memory,
            of: HashMap::new(),
            sum: 0,
            changed: HashMap::new(),
            captures: HashSet::new(),
            captured: Weight::default(),
        }
    }

    /// Whether this weight may be added.
    pub(super) fn has_room(&self, weight: Weight) -> Result<(), CUresult> {
        let sum = self.sum.saturating_add(self.captured.nodes).saturating_add(weight.nodes);
        if sum > NODES_MAX {
            return Err(CUresult::OUT_OF_MEMORY);
        }
        self.memory.check_room(weight.bytes)
    }

    pub(super) fn add(&mut self, home: usize, weight: Weight) {
        self.sum += weight.nodes;
        self.memory.add(weight.bytes);
        let of = self.of.entry(home).or_default();
        *of = of.and(weight);
    }

    pub(super) fn take(&mut self, home: usize, weight: Weight) {
        if let Some(of) = self.of.get_mut(&home) {
            let (nodes, bytes) = (weight.nodes.min(of.nodes), weight.bytes.min(of.bytes));
            of.nodes -= nodes;
            of.bytes -= bytes;
            self.sum -= nodes;
            self.memory.give_back(bytes);
        }
    }

    pub(super) fn forget(&mut self, home: usize) {
        let gone = self.of.remove(&home).unwrap_or_default();
        self.changed.remove(&home);
        self.sum -= gone.nodes;
        self.memory.give_back(gone.bytes);
    }

    /// A node of an executable graph was changed there and now holds this number of bytes: how many
    /// more that is.
    pub(super) fn growth(&self, executable: usize, node: usize, bytes: u64) -> u64 {
        let known = self.changed.get(&executable).and_then(|nodes| nodes.get(&node));
        // Of one that was not changed yet is not known what it had: it counts twice.
        known.map_or(bytes.saturating_add(NODE_BYTES), |known| bytes.saturating_sub(*known))
    }
}

impl Drop for Weights {
    fn drop(&mut self) {
        let sum: u64 = self.of.values().map(|weight| weight.bytes).sum();
        self.memory.give_back(sum + self.captured.bytes);
    }
}
