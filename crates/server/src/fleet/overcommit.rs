//! Memory of GPUs that is leased beyond what they have, as far as their pool and their node go.
//!
//! Each lease fits on its GPU, beside those whose memory never leaves it. The rest of them shares
//! the GPU in time slices, and its node can back all that it says may be leased.

use sluice_api::node::Gpu;
use sluice_api::pool::{Pool, Tier};

use super::{Fleet, LeaseRecord, Node, Seat, Taken};

/// What leases can still have of a GPU's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreeMemory {
    /// All of them together.
    pub(crate) all: u64,
    /// One of them.
    pub(crate) largest: u64,
}

impl FreeMemory {
    pub(crate) fn holds(self, all: u64, each: u64) -> bool {
        all <= self.all && each <= self.largest
    }
}

impl Fleet {
    /// Bytes of a GPU that its leases may have together.
    pub(crate) fn leasable_memory(&self, node: &Node, gpu: u32) -> u64 {
        let Some(of) = node.gpus.get(gpu as usize) else { return 0 };
        let of_pool = |pool: &Pool| pool.leasable_memory(of.memory, of.leasable());
        self.declared_pool_of(node, gpu).map_or(of.leasable(), of_pool)
    }

    /// What leases can have of a GPU's memory beside what is taken; `fixed` are those whose memory
    /// never leaves it.
    pub(crate) fn free_memory(&self, node: &Node, gpu: u32, taken: &Taken, fixed: bool) -> FreeMemory {
        let has = node.gpus.get(gpu as usize).map_or(0, |gpu| gpu.memory);
        if fixed {
            let free = has.saturating_sub(taken.memory);
            return FreeMemory { all: free, largest: free };
        }
        let all = self.leasable_memory(node, gpu).saturating_sub(taken.memory);
        FreeMemory { all, largest: all.min(has.saturating_sub(taken.fixed_memory)) }
    }

    /// A GPU as users see it: what may be leased of it is what its pool allows.
    pub(crate) fn shown_gpu(&self, node: &Node, gpu: u32) -> Option<Gpu> {
        let of = node.gpus.get(gpu as usize)?;
        let leasable = self.leasable_memory(node, gpu);
        Some(Gpu { memory_leasable: if leasable > of.memory { leasable } else { 0 }, ..of.clone() })
    }
}

impl LeaseRecord {
    /// Whether the memory of a seat never leaves its GPUs for others: it must not be away when
    /// premium work comes, and one that waits for memory on a GPU must hold none of another.
    pub(crate) fn is_fixed_at(&self, seat: &Seat) -> bool {
        is_fixed(self.ask.tier, seat.gpus.len())
    }
}

/// Whether the memory of a lease of this tier on this number of GPUs never leaves them.
pub(crate) fn is_fixed(tier: Tier, gpus: usize) -> bool {
    tier.is_premium() || gpus != 1
}
