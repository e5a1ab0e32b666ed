//! The state of one warp, as compiled code and the runtime share it.
//!
//! A warp's memory is one piece: this header, then the frame that the kernel's [`FrameLayout`]
//! describes. Compiled code keeps the header's address in one register and reaches everything from
//! there.

use std::sync::atomic::{AtomicU32, AtomicU64};

use serde::{Deserialize, Serialize};

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;
/// Named barriers of a block (PTX ISA, `barrier`).
pub(crate) const BARRIERS: usize = 16;

/// Header of a warp's memory. Compiled code addresses fields by `offset_of!`.
#[repr(C, align(64))]
pub(crate) struct WarpContext {
    /// Nodes with lanes that are ready: a bit per node with up to 64 nodes, else a bit per word of
    /// the frame's last level ([`FrameLayout::levels`]). Zero when no lane can run.
    pub ready: u64,
    /// The launch's control word.
    pub control: *const AtomicU32,
    pub memory_base: u64,
    pub memory_size: u64,
    pub shared_base: u64,
    pub shared_size: u64,
    pub params_size: u64,
    /// Local memory of lane 0; lane `l` has its own at `l * local_stride`.
    pub local_base: u64,
    pub local_stride: u64,
    pub params: *const u8,
    pub globals: *const u64,
    /// The launch's counters, as many as the kernel has.
    pub counters: *const AtomicU64,
    /// Where the blocks of a cooperative launch meet; 0 without.
    pub grid_workspace: u64,
    /// The warp that has its turn when this one stops; null for none.
    pub next: *mut WarpContext,
    /// Lanes that exist and have not exited.
    pub live: u32,
    /// Back edges left before the warp yields to its siblings.
    pub fuel: u32,
    /// Which of several ready groups goes first: 0 is the lowest block.
    pub rotation: u32,
    /// Not 0: all live lanes of the warp continue together at this node, behind barrier
    /// `resume_barrier`.
    pub resume_node: u32,
    pub resume_barrier: u32,
    /// Not 0: lanes that wait for others of their warp continue without them.
    pub force: u32,
    pub warp_index: u32,
    pub warps: u32,
    /// Threads of the block in warps behind this one, for code that continues with the next by
    /// itself.
    pub threads_left: u32,
    /// Blocks behind this one, in the order of their numbers, for the same code.
    pub blocks_left: u32,
    /// What the first warp of a block starts with: its lanes, and `threads_left`.
    pub first_members: u32,
    pub first_threads_left: u32,
    /// Local memory of thread 0 of a block.
    pub local_start: u64,
    pub dynamic_shared_bytes: u32,
    /// The executor's thread, and how many there are.
    pub sm_id: u32,
    pub sms: u32,
    /// Thread index of lane 0.
    pub tid0: [u32; 3],
    pub ctaid: [u32; 3],
    pub ntid: [u32; 3],
    pub nctaid: [u32; 3],
    /// Blocks of a cluster; 1 without clusters.
    pub cluster_nctaid: [u32; 3],
    pub is_explicit_cluster: u32,
    /// Bytes from the shared memory of a block to that of the next of its cluster.
    pub cluster_shared_stride: u64,
    pub grid_id: u64,
    /// Of each named barrier's last completion: threads whose predicate was true, and threads that
    /// came.
    pub barrier_votes: [u32; BARRIERS],
    pub barrier_arrived: [u32; BARRIERS],
    /// Thread index of each lane; filled only for code that asks for it.
    pub tid: [[u32; LANES]; 3],
    /// The [`crate::block::BlockRun`] that runs this warp.
    pub run: *const (),
}

/// How a warp function returns: added to the address of the warp that it stopped in, a multiple of
/// 64.
pub(crate) mod status {
    /// No lane is ready: all have exited or wait at barriers.
    pub(crate) const STOPPED: u32 = 0;
    /// Lanes are ready, but siblings should run first.
    pub(crate) const YIELDED: u32 = 1;
    /// Left through a fault, with no address; the block's run says which.
    pub(crate) const FAULTED: u32 = 2;
}

/// Back edges that a warp takes before its siblings get a turn.
pub(crate) const FUEL: u32 = 1 << 14;

/// Runs a warp until it stops, then those behind it ([`WarpContext::next`]); returns early when one
/// yields or faults.
pub(crate) type WarpFunction = unsafe extern "C" fn(*mut WarpContext) -> u64;

/// Levels of words that a frame has at most, which [`FrameLayout::BLOCKS_MAX`] follows from.
const LEVELS_MAX: usize = 2;

/// Places in a warp's memory, in bytes from the header's start.
///
/// Which nodes are ready is a tree of words: each word of the first level has a bit per node, each
/// word of the next one a bit per word of the level before that is not zero, and
/// [`WarpContext::ready`] is its root.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct FrameLayout {
    /// Nodes, each with a mask of pending lanes.
    pub blocks: u32,
    /// Where each level starts, `[u64]`; the first [`FrameLayout::level_count`] count.
    starts: [u32; LEVELS_MAX],
    level_count: u32,
    /// `[u32; blocks]`, the pending lanes.
    pub pending: u32,
    /// First byte behind what the runtime needs to know; value slots follow up to `size`.
    pub slots: u32,
    pub size: u32,
}

impl FrameLayout {
    /// Nodes that one kernel may have: what a tree of this height has bits for.
    pub(crate) const BLOCKS_MAX: u32 = 64 * 64 * 64;

    /// The layout without value slots.
    pub(crate) fn new(blocks: u32) -> FrameLayout {
        let mut layout = FrameLayout { blocks, ..FrameLayout::default() };
        let mut end = size_of::<WarpContext>() as u32;
        let mut words = blocks;
        while words > 64 && (layout.level_count as usize) < LEVELS_MAX {
            words = words.div_ceil(64);
            layout.starts[layout.level_count as usize] = end;
            layout.level_count += 1;
            end += words * 8;
        }
        layout.pending = end;
        layout.slots = (end + blocks * 4).next_multiple_of(64);
        layout.size = layout.slots;
        layout
    }

    /// Where the levels of words start, that with a bit per node first. There is none with up to 64
    /// nodes.
    pub(crate) fn levels(&self) -> &[u32] {
        &self.starts[..self.level_count as usize]
    }

    /// Makes `lanes` ready to run at a node.
    ///
    /// # Safety
    /// `warp` points to a warp's memory with this layout, and `block < self.blocks`.
    pub(crate) unsafe fn make_ready(&self, warp: *mut WarpContext, block: u32, lanes: u32) {
        debug_assert!(block < self.blocks);
        let bytes = warp.cast::<u8>();
        // SAFETY: the caller vouches for memory and layout; `pending` and the levels are aligned
        // for their types.
        unsafe {
            let pending = bytes.add(self.pending as usize).cast::<u32>().add(block as usize);
            *pending |= lanes;
            let mut index = block;
            for &start in self.levels() {
                *bytes.add(start as usize).cast::<u64>().add(index as usize / 64) |= 1 << (index % 64);
                index /= 64;
            }
            (*warp).ready |= 1 << index;
        }
    }

    /// Adds lanes to those pending at a node without making it ready.
    ///
    /// # Safety
    /// As [`FrameLayout::make_ready`].
    pub(crate) unsafe fn leave_pending(&self, warp: *mut WarpContext, block: u32, lanes: u32) {
        // SAFETY: the caller vouches for memory and layout.
        unsafe { *warp.cast::<u8>().add(self.pending as usize).cast::<u32>().add(block as usize) |= lanes };
    }

    /// The lanes that are pending at a node, ready or not.
    ///
    /// # Safety
    /// As [`FrameLayout::make_ready`].
    pub(crate) unsafe fn pending(&self, warp: *const WarpContext, block: u32) -> u32 {
        // SAFETY: the caller vouches for memory and layout.
        unsafe { *warp.cast::<u8>().add(self.pending as usize).cast::<u32>().add(block as usize) }
    }

    /// Whether a node is ready.
    ///
    /// # Safety
    /// As [`FrameLayout::make_ready`].
    pub(crate) unsafe fn is_ready(&self, warp: *const WarpContext, block: u32) -> bool {
        // SAFETY: the caller vouches for memory and layout.
        unsafe {
            let word = match self.levels().first() {
                None => (*warp).ready,
                Some(&start) => *warp.cast::<u8>().add(start as usize).cast::<u64>().add(block as usize / 64),
            };
            word >> (block % 64) & 1 != 0
        }
    }

    /// Clears all pending lanes.
    ///
    /// # Safety
    /// `warp` points to a warp's memory with this layout.
    pub(crate) unsafe fn clear(&self, warp: *mut WarpContext) {
        // SAFETY: levels and pending masks are adjacent behind the header and inside the warp's
        // memory.
        unsafe {
            (*warp).ready = 0;
            let header = size_of::<WarpContext>();
            warp.cast::<u8>().add(header).write_bytes(0, self.slots as usize - header);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As aligned as a warp's memory has to be.
    #[derive(Clone)]
    #[repr(align(64))]
    struct Line(#[expect(dead_code, reason = "only its size and alignment count")] [u8; 64]);

    #[test]
    fn a_node_is_ready_once_it_has_been_made_so_whatever_the_number_of_nodes() {
        for blocks in [1, 64, 65, 4096, 4097, 20_000, FrameLayout::BLOCKS_MAX] {
            let layout = FrameLayout::new(blocks);
            let mut memory = vec![Line([0; 64]); layout.size as usize / 64];
            let warp = memory.as_mut_ptr().cast::<WarpContext>();
            for node in [0, blocks / 2, blocks - 1] {
                // SAFETY: the memory is aligned and long enough for the layout, and the nodes are
                // below its count.
                unsafe {
                    layout.clear(warp);
                    assert!(!layout.is_ready(warp, node));
                    layout.make_ready(warp, node, 5);
                    assert!(layout.is_ready(warp, node));
                    // As compiled code finds it: down from the root.
                    let mut index = u64::from((*warp).ready.trailing_zeros());
                    for &start in layout.levels().iter().rev() {
                        let words = warp.cast::<u8>().add(start as usize).cast::<u64>();
                        index = index * 64 + u64::from((*words.add(index as usize)).trailing_zeros());
                    }
                    assert_eq!(index, u64::from(node));
                }
            }
        }
    }
}
