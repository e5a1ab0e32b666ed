//! Warps that run side by side from barrier to barrier.

use super::BlockRun;
use super::warp::Warp;
use crate::context::WarpContext;
use crate::fault::FaultKind;
use crate::frames::Frames;

impl<'a> BlockRun<'a> {
    /// Runs blocks whose warps do not wait for each other: the code goes from warp to warp and from
    /// block to block by itself, in the same memory, up to the first warp that yields. From there
    /// on those of its block take turns.
    pub(super) fn run_many(&self, count: u32, frames: &mut Frames) -> Result<u32, FaultKind> {
        let context = self.start(0, frames);
        // SAFETY: the context is valid and ours.
        unsafe {
            (*context).threads_left = (*context).first_threads_left;
            (*context).blocks_left = count - 1;
        }
        let outcome = self.resume(context);
        // SAFETY: the context is valid; the code has left in it how far it got.
        let (warp, blocks_left) = unsafe {
            self.index.set((*context).ctaid);
            (*context).threads_left = 0;
            ((*context).warp_index, std::mem::take(&mut (*context).blocks_left))
        };
        self.started.set(warp + 1);
        self.finished.set(warp);
        if outcome? {
            frames.give_back(context);
            self.finished.set(warp + 1);
        } else {
            self.keep(warp, context);
        }
        Ok(count - blocks_left)
    }

    /// Runs all warps from barrier to barrier, for as long as each comes to the next one as a
    /// whole; the code goes from warp to warp by itself. Returns how many have finished when that
    /// ends; what has not is ready, waits at a barrier or for lanes of its own.
    pub(super) fn run_in_phases(&self, frames: &mut Frames) -> Result<u32, FaultKind> {
        let first = self.start_linked(frames);
        let yielded = loop {
            let yielded = self.enter(first)?;
            if yielded.is_some() || !self.are_at_one_barrier() {
                break yielded;
            }
            if !self.control.at_safepoint() {
                return Err(FaultKind::Cancelled);
            }
        };
        // SAFETY: a warp that yielded has a valid context.
        let last = yielded.map_or(u32::MAX, |context| unsafe { (*context).warp_index });
        let mut finished = 0;
        for warp in 0..self.shape.warps {
            let context = self.context(warp);
            // SAFETY: all warps have been started, so the contexts are valid; they are ours.
            let live = unsafe {
                (*context).next = std::ptr::null_mut();
                (*context).live
            };
            if warp > last {
                self.release_whole(context);
                continue;
            }
            self.park_whole(warp, context);
            if live == 0 {
                self.finish(warp);
                frames.give_back(context);
                finished += 1;
            }
        }
        Ok(finished)
    }

    /// Starts all warps, each linked to the next. Returns the first.
    fn start_linked(&self, frames: &mut Frames) -> *mut WarpContext {
        let mut next = std::ptr::null_mut();
        for warp in (0..self.shape.warps).rev() {
            let context = self.start(warp, frames);
            // SAFETY: the context is valid and ours.
            unsafe { (*context).next = next };
            next = self.keep(warp, context);
        }
        next
    }

    /// Whether all warps have come as a whole to the same barrier.
    fn are_at_one_barrier(&self) -> bool {
        let warps = self.warps.borrow();
        // SAFETY: all warps have been started, so the contexts are valid; they are ours.
        let barrier = |warp: &Warp| unsafe {
            ((*warp.context).resume_node != 0).then_some((*warp.context).resume_barrier)
        };
        let first = barrier(&warps[0]);
        first.is_some() && warps.iter().all(|warp| barrier(warp) == first)
    }

    /// A warp that stands behind a barrier as a whole becomes ready there.
    fn release_whole(&self, context: *mut WarpContext) {
        // SAFETY: the context is valid and ours; the node is its code's.
        unsafe {
            let node = std::mem::take(&mut (*context).resume_node);
            if node != 0 {
                self.shape.code.traits.frame.make_ready(context, node, (*context).live);
            }
        }
    }

    /// A warp that has come to a barrier as a whole is parked there, like one that comes in parts.
    pub(super) fn park_whole(&self, warp: u32, context: *mut WarpContext) {
        // SAFETY: the context is valid and ours.
        let (node, id, live) = unsafe {
            let node = std::mem::take(&mut (*context).resume_node);
            (node, (*context).resume_barrier, (*context).live)
        };
        if node != 0 {
            self.arrive(id, 0, warp, Some(node), live, 0);
        }
    }

    /// Remembers the memory of a warp that is to be resumed.
    pub(super) fn keep(&self, warp: u32, context: *mut WarpContext) -> *mut WarpContext {
        self.warps.borrow_mut()[warp as usize].context = context;
        context
    }
}
