//! Some of the GPUs of a node.

use crate::GPUS_PER_NODE_MAX;

/// Some of the GPUs of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct GpuSet(pub(super) u16);

impl GpuSet {
    pub const EMPTY: GpuSet = GpuSet(0);

    pub const fn with(self, gpu: usize) -> GpuSet {
        GpuSet(self.0 | 1 << gpu)
    }

    pub const fn without(self, gpu: usize) -> GpuSet {
        GpuSet(self.0 & !(1 << gpu))
    }

    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn and(self, other: GpuSet) -> GpuSet {
        GpuSet(self.0 & other.0)
    }

    pub const fn contains(self, gpu: usize) -> bool {
        self.0 >> gpu & 1 == 1
    }

    /// Indices on the node, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let gpu = rest.trailing_zeros() as usize;
            rest &= rest.wrapping_sub(1);
            (gpu < GPUS_PER_NODE_MAX).then_some(gpu)
        })
    }
}
