//! Clusters (PTX ISA, "Cluster of Cooperative Thread Arrays"): one thread runs the blocks of a
//! cluster in turns.
//!
//! At the cluster's barrier (`barrier.cluster`) arriving and waiting are separate. A thread that
//! waits needs the phase in which it has arrived to be complete, and that is the current phase or
//! the one before: no phase completes without it. So the parity of the phase in which each lane has
//! arrived last says whether the lane has to wait.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::block::{BlockMemory, BlockProgress, BlockRun};
use crate::context::{FrameLayout, WarpContext};
use crate::fault::{Fault, FaultKind};
use crate::frames::Frames;

/// The blocks of one cluster in execution, by rank. It can be begun again when it has finished.
pub(crate) struct Cluster<'a> {
    barrier: Rc<ClusterBarrier>,
    /// Warps have the addresses of their blocks' runs, so this never grows.
    blocks: Box<[(BlockRun<'a>, Frames)]>,
    /// By rank, the blocks that have not finished.
    running: Vec<bool>,
}

impl<'a> Cluster<'a> {
    /// A cluster with a block for each piece of memory.
    pub(crate) fn new(
        memories: impl Iterator<Item = BlockMemory>,
        run: impl Fn(BlockMemory, Rc<ClusterBarrier>) -> BlockRun<'a>,
    ) -> Cluster<'a> {
        let barrier = Rc::new(ClusterBarrier::default());
        let blocks: Box<[_]> =
            memories.map(|memory| (run(memory, barrier.clone()), Frames::default())).collect();
        let running = vec![false; blocks.len()];
        Cluster { barrier, blocks, running }
    }

    /// Begins the blocks; `index` gives that of each rank.
    pub(crate) fn begin(&mut self, index: impl Fn(u64) -> [u32; 3]) -> Result<(), Fault> {
        let threads = self.blocks.first().map_or(0, |block| block.0.shape.threads);
        self.barrier.reset(threads * self.blocks.len() as u32);
        for (rank, (block, running)) in (0..).zip(self.blocks.iter_mut().zip(&mut self.running)) {
            let (run, frames) = block;
            run.begin(index(rank), 1, frames).map_err(|kind| Fault { kind, block: Some(run.index()) })?;
            *running = true;
        }
        Ok(())
    }

    /// Gives each block a turn; says whether all have finished.
    pub(crate) fn turn(&mut self) -> Result<bool, Fault> {
        let mut is_stuck = true;
        for (block, running) in self.blocks.iter_mut().zip(&mut self.running).filter(|(_, running)| **running)
        {
            let (run, frames) = block;
            let turn = run.turn(frames).map_err(|kind| Fault { kind, block: Some(run.index()) })?;
            *running = turn != BlockProgress::Finished;
            is_stuck &= turn == BlockProgress::Stuck;
        }
        if !self.running.contains(&true) {
            return Ok(true);
        }
        if is_stuck && !self.blocks.iter().any(|block| block.0.force_waiting()) {
            let stuck = self.blocks.iter().zip(&self.running).find(|(_, running)| **running);
            let block = stuck.map(|(block, _)| block.0.index());
            self.blocks.iter().for_each(|block| block.0.report_stuck());
            return Err(Fault { kind: FaultKind::Deadlock, block });
        }
        Ok(false)
    }
}

/// Counts the threads of a cluster that have arrived, and keeps those that wait.
#[derive(Default)]
pub(crate) struct ClusterBarrier {
    phase: Cell<u32>,
    arrived: Cell<u32>,
    /// Threads of the cluster that have not exited.
    live: Cell<u32>,
    parked: RefCell<Vec<Parked>>,
}

/// The lanes of a warp that have arrived last in phases of even and of odd number.
#[derive(Clone, Copy, Default)]
pub(crate) struct Arrivals([u32; 2]);

#[derive(Clone, Copy)]
struct Parked {
    context: *mut WarpContext,
    node: u32,
    lanes: u32,
}

impl ClusterBarrier {
    /// Prepares the barrier for a cluster of this number of threads.
    pub(crate) fn reset(&self, threads: u32) {
        self.arrived.set(0);
        self.live.set(threads);
    }

    /// How many phases have ended.
    pub(crate) fn phase(&self) -> u32 {
        self.phase.get()
    }

    /// Counts `lanes` of a warp.
    pub(crate) fn arrive(&self, arrivals: &mut Arrivals, lanes: u32, frame: FrameLayout) {
        let parity = self.phase.get() as usize & 1;
        arrivals.0[parity] |= lanes;
        arrivals.0[1 - parity] &= !lanes;
        self.arrived.set(self.arrived.get() + lanes.count_ones());
        self.complete(frame);
    }

    /// Parks the lanes of a warp that have to wait; they continue at `node` with the phase's end.
    /// Returns the others.
    pub(crate) fn wait(&self, arrivals: Arrivals, context: *mut WarpContext, node: u32, lanes: u32) -> u32 {
        let waiting = lanes & arrivals.0[self.phase.get() as usize & 1];
        if waiting != 0 {
            self.parked.borrow_mut().push(Parked { context, node, lanes: waiting });
        }
        lanes & !waiting
    }

    /// Counts `lanes` of a warp out, which have exited.
    pub(crate) fn exit(&self, arrivals: &mut Arrivals, lanes: u32, frame: FrameLayout) {
        let counted = lanes & arrivals.0[self.phase.get() as usize & 1];
        arrivals.0.iter_mut().for_each(|arrived| *arrived &= !lanes);
        self.arrived.set(self.arrived.get() - counted.count_ones());
        self.live.set(self.live.get() - lanes.count_ones());
        self.complete(frame);
    }

    /// Ends the phase if all living threads have arrived.
    fn complete(&self, frame: FrameLayout) {
        if self.arrived.get() == 0 || self.arrived.get() < self.live.get() {
            return;
        }
        self.arrived.set(0);
        self.phase.set(self.phase.get().wrapping_add(1));
        for Parked { context, node, lanes } in self.parked.borrow_mut().drain(..) {
            // SAFETY: parked lanes keep their warp alive, its memory has the launch's layout, this
            // thread alone uses it, and the node is its code's.
            unsafe { frame.make_ready(context, node, lanes) };
        }
    }
}
