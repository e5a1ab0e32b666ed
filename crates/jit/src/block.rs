//! Runs the warps of one block on one thread until all have exited.
//!
//! Warps take turns: each runs until it stops at a barrier, yields in a long loop, or exits. A warp
//! that comes to an end without stopping leaves its memory to the next, so a kernel without
//! barriers runs in the memory of one warp.
//!
//! ```text
//!   not started -> running -> stopped (parked lanes) -> running ... -> finished
//!                         \-> yielded (ready lanes)  -/
//! ```

mod barrier;
mod together;
mod warp;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::AtomicU64;

use crate::cluster::{Arrivals, ClusterBarrier};
use crate::context::{BARRIERS, WarpContext, WarpFunction};
use crate::control::LaunchControl;
use crate::fault::FaultKind;
use crate::frames::Frames;
use crate::heap::DeviceHeap;
use crate::images::Images;
use crate::monitor::{Monitor, Watch};
use crate::object::CodeTraits;
use crate::signal::Guard;

use barrier::Barrier;
use warp::Warp;

/// [`FUEL`] for a warp with groups of lanes that wait for each other.
const FUEL_ROTATING: u32 = 1 << 8;

/// The code of a kernel and what the runtime must know to run it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Code {
    pub function: WarpFunction,
    pub traits: CodeTraits,
}

/// What all blocks of a launch share.
pub(crate) struct LaunchShape {
    pub code: Code,
    pub memory_base: u64,
    pub memory_size: u64,
    pub params: *const u8,
    pub globals: *const u64,
    pub counters: *const AtomicU64,
    pub grid_workspace: u64,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Blocks of a cluster, 1 without clusters.
    pub cluster: [u32; 3],
    pub is_explicit_cluster: bool,
    /// Bytes from the memory of one block of a cluster to that of the next.
    pub cluster_stride: u64,
    pub threads: u32,
    pub warps: u32,
    pub shared_bytes: u32,
    pub params_bytes: u32,
    pub dynamic_shared_bytes: u32,
    pub local_bytes: u32,
    pub grid_id: u64,
}

/// Places of one thread's blocks in the arena.
#[derive(Clone, Copy)]
pub(crate) struct BlockMemory {
    pub shared: u64,
    /// Local memory of thread 0 of the block.
    pub local: u64,
    /// The executor's thread that runs them, and how many there are.
    pub sm_id: u32,
    pub sms: u32,
}

/// One block in execution. Runtime functions called by compiled code reach it through
/// [`WarpContext::run`].
pub(crate) struct BlockRun<'a> {
    pub shape: &'a LaunchShape,
    pub control: &'a LaunchControl,
    pub heap: Option<&'a DeviceHeap>,
    /// Textures and surfaces that the blocks have used.
    pub images: Images,
    /// What watches an instrumented kernel.
    pub monitor: Option<Monitor<'a>>,
    memory: BlockMemory,
    /// The block that runs; of several, the first until they have run.
    index: Cell<[u32; 3]>,
    /// Where [`BlockRun::leave`] goes, and how the signal handler leaves.
    guard: *mut Guard,
    fault: Cell<Option<FaultKind>>,
    barriers: RefCell<[Barrier; BARRIERS]>,
    /// Shared by the blocks of a cluster.
    cluster: Rc<ClusterBarrier>,
    warps: RefCell<Vec<Warp>>,
    live_threads: Cell<u32>,
    /// How many warps of the block have started, from the first, and how many have finished.
    started: Cell<u32>,
    finished: Cell<u32>,
}

/// What became of a block in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockProgress {
    Finished,
    Progress,
    /// Every warp waits for something.
    Stuck,
}

impl<'a> BlockRun<'a> {
    pub(crate) fn new(
        shape: &'a LaunchShape,
        control: &'a LaunchControl,
        heap: Option<&'a DeviceHeap>,
        memory: BlockMemory,
        cluster: Rc<ClusterBarrier>,
        guard: *mut Guard,
    ) -> BlockRun<'a> {
        let warp = Warp {
            context: std::ptr::null_mut(),
            waiting: Vec::new(),
            cluster_arrivals: Arrivals::default(),
        };
        BlockRun {
            shape,
            control,
            heap,
            images: Images::default(),
            monitor: None,
            memory,
            index: Cell::new([0; 3]),
            guard,
            fault: Cell::new(None),
            barriers: RefCell::default(),
            cluster,
            warps: RefCell::new(vec![warp; shape.warps as usize]),
            live_threads: Cell::new(0),
            started: Cell::new(0),
            finished: Cell::new(0),
        }
    }

    /// Attaches a watch to this run.
    pub(crate) fn watched(self, watch: &'a Watch<'a>) -> BlockRun<'a> {
        BlockRun { monitor: Some(Monitor::new(watch)), ..self }
    }

    /// Runs blocks from `index` on, in the order of their numbers, to their end. Says how many: 1
    /// to `count`.
    pub(crate) fn run(&self, index: [u32; 3], count: u32, frames: &mut Frames) -> Result<u32, FaultKind> {
        self.cluster.reset(self.shape.threads);
        let begun = self.begin(index, count, frames)?;
        loop {
            match self.turn(frames)? {
                BlockProgress::Finished => return Ok(begun),
                BlockProgress::Progress => {}
                BlockProgress::Stuck if self.force_waiting() => {}
                BlockProgress::Stuck => {
                    self.report_stuck();
                    return Err(FaultKind::Deadlock);
                }
            }
        }
    }

    /// Begins to run blocks as [`BlockRun::run`] does: all but the last of them to their end, the
    /// last for a while.
    pub(crate) fn begin(&self, index: [u32; 3], count: u32, frames: &mut Frames) -> Result<u32, FaultKind> {
        self.index.set(index);
        self.started.set(0);
        self.finished.set(0);
        if self.shape.code.traits.goes_on {
            return self.run_many(count, frames);
        }
        self.live_threads.set(self.shape.threads);
        for barrier in self.barriers.borrow_mut().iter_mut() {
            if barrier.arrived != 0 {
                *barrier = Barrier::default();
            }
        }
        if self.shape.code.traits.has_sync {
            self.started.set(self.shape.warps);
            self.finished.set(self.run_in_phases(frames)?);
        }
        Ok(1)
    }

    /// Gives each warp that can run a turn.
    pub(crate) fn turn(&self, frames: &mut Frames) -> Result<BlockProgress, FaultKind> {
        let warps = self.shape.warps;
        let mut progress = self.finished.get() == warps;
        for warp in 0..warps {
            let context = self.context(warp);
            let context = if warp == self.started.get() {
                self.started.set(warp + 1);
                let context = self.start(warp, frames);
                self.keep(warp, context)
            } else if context.is_null() || !self.is_ready(context) {
                continue;
            } else {
                context
            };
            progress = true;
            let is_finished = self.resume(context)?;
            self.park_whole(warp, context);
            if is_finished {
                self.finish(warp);
                frames.give_back(context);
                self.finished.set(self.finished.get() + 1);
            }
        }
        Ok(match progress {
            _ if self.finished.get() == warps => BlockProgress::Finished,
            true => BlockProgress::Progress,
            false => BlockProgress::Stuck,
        })
    }

    /// The block that ran last.
    pub(crate) fn index(&self) -> [u32; 3] {
        self.index.get()
    }

    fn context(&self, warp: u32) -> *mut WarpContext {
        self.warps.borrow()[warp as usize].context
    }

    fn is_ready(&self, context: *mut WarpContext) -> bool {
        // SAFETY: contexts in `warps` are valid until they are given back, and only this thread
        // uses them.
        unsafe { (*context).ready != 0 }
    }

    /// What watches the warp's block.
    pub(crate) fn watched_block_of(
        &self,
        warp: &WarpContext,
    ) -> Option<std::cell::RefMut<'_, sluice_sanitize::Block<'a>>> {
        self.monitor.as_ref()?.block(warp.ctaid, self.cluster.phase())
    }

    /// What watches the block that runs.
    fn watched_block(&self) -> Option<std::cell::RefMut<'_, sluice_sanitize::Block<'a>>> {
        self.monitor.as_ref()?.block(self.index.get(), self.cluster.phase())
    }

    /// Tells what watches the block that no thread of it can continue.
    pub(crate) fn report_stuck(&self) {
        let Some(mut block) = self.watched_block() else { return };
        for barrier in self.barriers.borrow().iter() {
            let parked: Vec<_> = barrier.parked.iter().map(|p| (p.warp, p.lanes, p.line)).collect();
            block.is_stuck(&parked);
        }
    }

    /// With every warp stuck: lets lanes that wait for others of their warp continue without them.
    /// Real devices would hang; programs that get here name lanes in a member mask that took
    /// another path.
    pub(crate) fn force_waiting(&self) -> bool {
        let mut any = false;
        for (number, warp) in self.warps.borrow_mut().iter_mut().enumerate() {
            // SAFETY: a warp with waiting lanes has a context of this layout, and nodes are its
            // code's.
            if !unsafe { warp.wake(self.shape.code.traits.frame) } {
                continue;
            }
            // SAFETY: as above.
            unsafe { (*warp.context).force = 1 };
            if let Some(mut block) = self.watched_block() {
                block.lacks_lanes(number as u32);
            }
            any = true;
        }
        any
    }
}
