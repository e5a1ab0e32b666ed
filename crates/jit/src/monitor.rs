//! What watches the blocks of an instrumented kernel.

use std::cell::{Cell, RefCell, RefMut};
use std::ops::Range;

use sluice_ir::Access;
use sluice_sanitize::{Block, Launch, Windows};

use crate::block::{BlockMemory, LaunchShape};
use crate::context::LANES;

/// What watches a launch.
#[derive(Clone)]
pub(crate) struct Watch<'a> {
    pub(crate) launch: &'a Launch,
    pub(crate) accesses: &'a [Access],
    /// The launch's arena.
    pub(crate) arena: Range<u64>,
    /// Its part for the grid's barrier; empty where the launch is not cooperative.
    pub(crate) workspace: Range<u64>,
}

/// What watches the blocks that one thread of the executor runs.
pub(crate) struct Monitor<'a> {
    watch: &'a Watch<'a>,
    block: RefCell<Block<'a>>,
    /// Phases of the cluster's barrier that had ended.
    phase: Cell<u32>,
}

impl<'a> Monitor<'a> {
    pub(crate) fn new(watch: &'a Watch<'a>) -> Monitor<'a> {
        Monitor { watch, block: RefCell::new(watch.launch.block()), phase: Cell::new(0) }
    }

    /// The block with this index, in this phase of its cluster's barrier.
    ///
    /// A fault of the kernel leaves the functions of the runtime with the block borrowed; nothing
    /// of its grid runs then.
    pub(crate) fn block(&self, index: [u32; 3], phase: u32) -> Option<RefMut<'_, Block<'a>>> {
        let mut block = self.block.try_borrow_mut().ok()?;
        block.enter(index);
        if self.phase.replace(phase) != phase {
            block.blocks_met();
        }
        Some(block)
    }

    /// Whether a lane of a warp may access `address`; a store writes `value`.
    pub(crate) fn may_access(
        &self,
        mut block: RefMut<'_, Block<'a>>,
        (shape, memory): (&LaunchShape, &BlockMemory),
        (warp, lane): (u32, u32),
        site: u32,
        (address, value): (u64, u64),
    ) -> bool {
        let Some(access) = self.watch.accesses.get(site as usize) else { return true };
        let thread = warp * LANES as u32 + lane;
        let local = memory.local + u64::from(thread) * u64::from(shape.local_bytes);
        let windows = Windows {
            shared: memory.shared..memory.shared + u64::from(shape.shared_bytes),
            local: local..local + u64::from(shape.local_bytes),
            arena: self.watch.arena.clone(),
            workspace: self.watch.workspace.clone(),
            is_cluster: shape.cluster != [1; 3],
        };
        let present = |address: u64| {
            let mut bytes = [0; 8];
            let count = (access.bytes as usize).min(bytes.len());
            // SAFETY: the sanitizer asks for an address inside memory that kernels may use. If its
            // pages have gone since, the signal handler ends the grid, as at the access itself.
            unsafe { std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), count) };
            u64::from_le_bytes(bytes)
        };
        block.access(&windows, access, (thread, address), value, present)
    }
}
