//! A block of a launch while it runs, on one thread of the host.

mod access;
mod sync;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::clocks::Clocks;
use crate::launch::Launch;
use crate::memory::Region;
use crate::shadow::{Cell, GRANULE};

/// Regions that the block has used last, which it finds without a lock.
const RECENT: usize = 4;

/// The memory of one thread besides global memory, as generic addresses.
#[derive(Clone, Debug)]
pub struct Windows {
    /// Shared memory of the block.
    pub shared: Range<u64>,
    /// Local memory of the thread.
    pub local: Range<u64>,
    /// Memory that holds the windows of all threads and blocks, and the parameters.
    pub arena: Range<u64>,
    /// The workspace of the grid's barrier, which is in the arena; empty where there is none.
    pub workspace: Range<u64>,
    /// Whether the blocks of the arena may use each other's shared memory.
    pub is_cluster: bool,
}

/// What is known of a running block.
#[derive(Debug)]
pub struct Block<'l> {
    launch: &'l Launch,
    index: [u32; 3],
    /// The low bits of its number.
    number: u16,
    has_begun: bool,
    clocks: Clocks,
    /// Cells of shared memory. Those of earlier blocks stay: their times are before this one's.
    shared: Vec<Cell>,
    recent: [Option<Arc<Region>>; RECENT],
    /// The next of `recent` to be displaced.
    oldest: usize,
    generation: u64,
    /// The line at which each warp came to a barrier last.
    barrier_lines: Vec<u32>,
    /// Threads that are about to synchronize by a strong access, and whether beyond the block.
    joining: BTreeMap<u32, bool>,
    /// The instruction of these accesses, by its address among the kernel's.
    joining_at: usize,
}

impl<'l> Block<'l> {
    pub(crate) fn new(launch: &'l Launch) -> Block<'l> {
        Block {
            launch,
            index: [0; 3],
            number: 0,
            has_begun: false,
            clocks: Clocks::default(),
            shared: Vec::new(),
            recent: Default::default(),
            oldest: 0,
            generation: u64::MAX,
            barrier_lines: Vec::new(),
            joining: BTreeMap::new(),
            joining_at: 0,
        }
    }

    /// The block with this index runs from now on, if it is another one than before.
    pub fn enter(&mut self, index: [u32; 3]) {
        if self.has_begun && self.index == index {
            return;
        }
        (self.has_begun, self.index) = (true, index);
        self.number = self.launch.number(index) as u16;
        let threads = self.launch.threads();
        self.joining.clear();
        self.clocks.begin(threads, self.launch.sanitizer.tick(), self.launch.time);
        self.barrier_lines.clear();
        self.barrier_lines.resize(threads.div_ceil(32), 0);
    }

    /// Orders threads behind what came before their last strong access.
    ///
    /// Accesses are checked before they are made, and what a load has seen may have been written
    /// since then. So it counts when the block does something else.
    fn join(&mut self) {
        if self.joining.is_empty() {
            return;
        }
        let time = self.launch.sanitizer.tick();
        for (thread, is_wide) in std::mem::take(&mut self.joining) {
            self.clocks.joined(thread as usize, time, is_wide);
        }
    }

    fn shared_cells(&mut self, bytes: u64) -> &[Cell] {
        let count = bytes.div_ceil(GRANULE) as usize;
        if self.shared.len() < count {
            self.shared.resize_with(count, Cell::default);
        }
        &self.shared
    }
}
