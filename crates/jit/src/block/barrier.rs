//! Barriers of a block and of a cluster.

use super::BlockRun;
use super::warp::Parked;
use crate::context::{BARRIERS, WarpContext, status};
use crate::entry;
use crate::fault::FaultKind;

#[derive(Clone, Default)]
pub(super) struct Barrier {
    pub(super) arrived: u32,
    /// Threads to wait for; 0 for all that live.
    expected: u32,
    /// Arrived threads whose predicate was true.
    votes: u32,
    pub(super) parked: Vec<Parked>,
    /// Warps of which lanes have been counted and do not wait, as bits.
    passed: u32,
}

/// What compiled code asks for, through [`crate::runtime`].
impl BlockRun<'_> {
    /// Whether a lane may make an access to memory.
    pub(crate) fn may_access(&self, warp: &WarpContext, lane: u32, site: u32, at: (u64, u64)) -> bool {
        let Some(monitor) = &self.monitor else { return true };
        let Some(block) = self.watched_block_of(warp) else { return true };
        monitor.may_access(block, (self.shape, &self.memory), (warp.warp_index, lane), site, at)
    }

    /// Ends the grid with a fault.
    pub(crate) fn leave(&self, kind: FaultKind) -> ! {
        self.fault.set(Some(kind));
        // SAFETY: compiled code called us, so the `enter` that stored `saved_sp` has not returned;
        // the frames between are compiled code and runtime functions that own nothing.
        unsafe { entry::leave((*self.guard).saved_sp, status::FAULTED) }
    }

    /// `lanes` of `warp` come to barrier `id`. They continue at `node` when all have come; with
    /// `node` `None` they only count. `votes` are those whose predicate is true.
    pub(crate) fn arrive(&self, id: u32, threads: u32, warp: u32, node: Option<u32>, lanes: u32, votes: u32) {
        let mut barriers = self.barriers.borrow_mut();
        let barrier = &mut barriers[id as usize % BARRIERS];
        barrier.arrived += lanes.count_ones();
        barrier.expected = threads;
        barrier.votes += (votes & lanes).count_ones();
        match node {
            Some(node) => {
                let line = self.watched_block().map_or(0, |block| block.barrier_line(warp));
                barrier.parked.push(Parked { warp, node, lanes, line });
            }
            None => barrier.passed |= 1 << (warp % 32),
        }
        self.release_if_complete(barrier, id);
    }

    /// `lanes` of `warp` come to the barrier of their cluster: to continue at `node` when all
    /// threads have arrived or, with `node` `None`, only to be counted.
    pub(crate) fn arrive_at_cluster(&self, warp: u32, node: Option<u32>, lanes: u32) {
        let frame = self.shape.code.traits.frame;
        let mut warps = self.warps.borrow_mut();
        let warp = &mut warps[warp as usize];
        let Some(node) = node else { return self.cluster.arrive(&mut warp.cluster_arrivals, lanes, frame) };
        let free = self.cluster.wait(warp.cluster_arrivals, warp.context, node, lanes);
        if free != 0 {
            // SAFETY: the warp runs, so it has a context of this layout; the node is its code's.
            unsafe { frame.make_ready(warp.context, node, free) };
        }
    }

    fn release_if_complete(&self, barrier: &mut Barrier, id: u32) {
        let expected = if barrier.expected == 0 { self.live_threads.get() } else { barrier.expected };
        if barrier.arrived == 0 || barrier.arrived < expected {
            return;
        }
        if let Some(mut block) = self.watched_block() {
            let parked: Vec<_> = barrier.parked.iter().map(|p| (p.warp, p.lanes, p.line)).collect();
            let living = (self.live_threads.get(), barrier.expected == 0);
            block.barrier_complete(&parked, barrier.passed, living);
        }
        barrier.passed = 0;
        let warps = self.warps.borrow();
        for parked in barrier.parked.drain(..) {
            let context = warps[parked.warp as usize].context;
            // SAFETY: a warp with parked lanes has a context of this layout, and nodes are its
            // code's.
            unsafe {
                (*context).barrier_votes[id as usize % BARRIERS] = barrier.votes;
                (*context).barrier_arrived[id as usize % BARRIERS] = barrier.arrived;
                self.shape.code.traits.frame.make_ready(context, parked.node, parked.lanes);
            }
        }
        (barrier.arrived, barrier.expected, barrier.votes) = (0, 0, 0);
    }

    /// `lanes` threads have exited: barriers of all threads wait for fewer, and so do lanes of
    /// their warp.
    pub(crate) fn exited(&self, warp: u32, lanes: u32) {
        self.live_threads.set(self.live_threads.get() - lanes.count_ones());
        for (id, barrier) in self.barriers.borrow_mut().iter_mut().enumerate() {
            if barrier.expected == 0 && barrier.arrived > 0 {
                self.release_if_complete(barrier, id as u32);
            }
        }
        let mut warps = self.warps.borrow_mut();
        let warp = &mut warps[warp as usize];
        self.cluster.exit(&mut warp.cluster_arrivals, lanes, self.shape.code.traits.frame);
        // SAFETY: the warp runs, so it has a context of this layout, and nodes are its code's.
        unsafe { warp.wake(self.shape.code.traits.frame) };
    }

    /// Lanes pending at `node`, which is not ready, wait for others of their warp.
    pub(crate) fn wait(&self, warp: u32, node: u32) {
        let mut warps = self.warps.borrow_mut();
        let waiting = &mut warps[warp as usize].waiting;
        if !waiting.contains(&node) {
            waiting.push(node);
        }
    }

    /// Lanes that waited at `node` continue.
    pub(crate) fn waited(&self, warp: u32, node: u32) {
        self.warps.borrow_mut()[warp as usize].waiting.retain(|&other| other != node);
    }
}
