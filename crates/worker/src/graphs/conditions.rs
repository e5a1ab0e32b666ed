//! The handles of conditional nodes, and the graphs that are their bodies.

use std::collections::{HashMap, HashSet};

use sluice_cuda::CUgraph;

/// The handles, and the graphs that are bodies.
#[derive(Default)]
pub(super) struct Conditions {
    /// By the handle: the driver's graph that has it.
    pub(super) handles: HashMap<u64, usize>,
    pub(super) bodies: HashSet<usize>,
}

impl Conditions {
    pub(super) fn is_body(&self, graph: CUgraph) -> bool {
        self.bodies.contains(&graph.0)
    }

    /// A graph has gone.
    pub(super) fn forget_graph(&mut self, graph: usize) {
        self.handles.retain(|_, of| *of != graph);
        self.bodies.remove(&graph);
    }
}
