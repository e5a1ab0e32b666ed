//! What a launch is given, and what it gives back.

use std::ops::Range;
use std::sync::atomic::AtomicU64;

use sluice_sanitize::Launch;

use crate::heap::DeviceHeap;
use crate::order::BlockOrder;

/// Shape and arguments of one launch (CUDA Driver API, Execution Control, `cuLaunchKernelEx`).
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig<'a> {
    /// Blocks in x, y, z; none of them zero.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z; none of them zero, at most [`LaunchConfig::BLOCK_THREADS_MAX`]
    /// together.
    pub block: [u32; 3],
    /// Blocks per cluster in x, y, z, at most [`LaunchConfig::CLUSTER_BLOCKS_MAX`] together; each
    /// divides the grid's. The blocks of a cluster are there at the same time. None where nothing
    /// asks for clusters.
    pub cluster: Option<[u32; 3]>,
    /// Whether all blocks are there at the same time, so that they may wait for each other
    /// (`grid.sync()`). Each then has memory of its own in the arena.
    pub cooperative: bool,
    /// Bytes of shared memory beyond the kernel's static ones.
    pub dynamic_shared_bytes: u32,
    /// Bytes of stack per thread, for kernels with functions that call themselves (CUDA Driver API,
    /// `CU_LIMIT_STACK_SIZE`).
    pub stack_bytes: u32,
    /// The parameter buffer, laid out as the kernel declares its parameters.
    pub params: &'a [u8],
    /// Addresses of the module's global and constant variables, in the order in which the kernel
    /// lists them ([`crate::CompiledKernel::globals`]).
    pub globals: &'a [u64],
    /// Threads of the executor that may take part; at least 1.
    pub threads_max: u32,
    /// How the blocks follow each other.
    pub order: BlockOrder,
    /// Number of this launch, shown to device code as `%gridid`.
    pub grid_id: u64,
    /// What watches an instrumented kernel; another kernel is not watched.
    pub monitor: Option<&'a Launch>,
    /// What a kernel with counters counts in ([`crate::CompiledKernel::counters`]): as many as it
    /// has. Several launches may count in the same.
    pub counters: &'a [AtomicU64],
}

impl LaunchConfig<'_> {
    /// Threads that one block may have.
    pub const BLOCK_THREADS_MAX: u32 = 1024;
    /// Blocks that one cluster may have.
    pub const CLUSTER_BLOCKS_MAX: u32 = 16;

    /// Threads per block.
    pub fn block_threads(&self) -> u64 {
        self.block.iter().map(|&n| u64::from(n)).product()
    }

    /// Blocks per cluster.
    pub fn cluster_blocks(&self) -> u64 {
        self.cluster.map_or(1, |cluster| cluster.iter().map(|&n| u64::from(n)).product())
    }

    /// Blocks in the grid.
    pub fn blocks(&self) -> u64 {
        self.grid.iter().fold(1, |product, &n| product.saturating_mul(u64::from(n)))
    }
}

impl Default for LaunchConfig<'_> {
    fn default() -> Self {
        LaunchConfig {
            grid: [1; 3],
            block: [1; 3],
            cluster: None,
            cooperative: false,
            dynamic_shared_bytes: 0,
            stack_bytes: 1 << 10,
            params: &[],
            globals: &[],
            threads_max: u32::MAX,
            order: BlockOrder::default(),
            grid_id: 0,
            monitor: None,
            counters: &[],
        }
    }
}

/// The memory that a launch may touch.
#[derive(Clone, Debug)]
pub struct LaunchMemory<'a> {
    /// Host addresses that are device addresses too. An access outside faults; one inside that hits
    /// an unmapped page faults as well. Only device allocations and arenas may be mapped in there.
    pub range: Range<u64>,
    /// Readable and writable memory inside `range`, 256-byte aligned, for parameters, shared and
    /// local memory. One launch at a time owns it; [`crate::Executor::arena_bytes`] says how long
    /// it must be. Its content needs no initialisation, and pages that are never touched cost
    /// nothing.
    pub arena: Range<u64>,
    /// Where device `malloc` takes from; without one it returns null.
    pub heap: Option<&'a DeviceHeap>,
}

/// What a finished launch used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchStats {
    /// Blocks that ran to completion.
    pub blocks: u64,
}
