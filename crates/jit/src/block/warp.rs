//! One warp: started, continued, stopped.

use super::{BlockRun, FUEL_ROTATING};
use crate::cluster::Arrivals;
use crate::context::{FUEL, FrameLayout, LANES, WarpContext, status};
use crate::entry;
use crate::fault::FaultKind;
use crate::frames::Frames;

#[derive(Clone)]
pub(super) struct Warp {
    /// Null before it starts and after it has finished.
    pub(super) context: *mut WarpContext,
    /// Nodes whose lanes wait for other lanes of this warp, and perhaps some whose lanes have
    /// continued.
    pub(super) waiting: Vec<u32>,
    pub(super) cluster_arrivals: Arrivals,
}

impl Warp {
    /// Makes the nodes ready whose lanes wait for others of the warp; says whether there are any.
    ///
    /// A node without lanes stays as it is: its code is not to run for none.
    ///
    /// # Safety
    /// A warp that waits has a context of this layout, and its nodes are of the context's code.
    pub(super) unsafe fn wake(&mut self, frame: FrameLayout) -> bool {
        let mut any = false;
        for node in self.waiting.drain(..) {
            // SAFETY: the caller's promise.
            unsafe {
                if frame.pending(self.context, node) != 0 && !frame.is_ready(self.context, node) {
                    frame.make_ready(self.context, node, 0);
                    any = true;
                }
            }
        }
        any
    }
}

#[derive(Clone, Copy)]
pub(super) struct Parked {
    pub(super) warp: u32,
    pub(super) node: u32,
    pub(super) lanes: u32,
    /// Line of the barrier instruction in the PTX text; known for instrumented kernels only.
    pub(super) line: u32,
}

impl<'a> BlockRun<'a> {
    /// Sets a warp's memory up for its first instruction.
    pub(super) fn start(&self, warp: u32, frames: &mut Frames) -> *mut WarpContext {
        let shape = self.shape;
        let (context, fresh) = frames.take(shape.code.traits.frame);
        let width = shape.code.traits.lanes;
        let first_thread = warp * width;
        let lanes = (shape.threads - first_thread).min(width);
        let members = u32::MAX >> (u32::BITS - lanes);
        // SAFETY: `context` is ours alone, aligned, and as long as the frame layout says.
        unsafe {
            if fresh {
                self.write_launch(context);
            }
            let header = &mut *context;
            header.run = std::ptr::from_ref(self).cast();
            header.shared_base = self.memory.shared;
            header.local_base = self.memory.local + u64::from(first_thread) * u64::from(shape.local_bytes);
            header.live = members;
            header.warp_index = warp;
            header.next = std::ptr::null_mut();
            header.threads_left = 0;
            header.blocks_left = 0;
            header.rotation = 0;
            header.force = 0;
            header.resume_node = 0;
            header.ctaid = self.index.get();
            header.tid0 = self.thread(first_thread);
            if shape.code.traits.lane_tids {
                for lane in 0..LANES {
                    let tid = self.thread(first_thread + lane as u32);
                    (0..3).for_each(|axis| header.tid[axis][lane] = tid[axis]);
                }
            }
            shape.code.traits.frame.make_ready(context, 0, members);
        }
        context
    }

    /// Writes what is the same for all warps of the launch.
    ///
    /// # Safety
    /// `context` points to a warp's memory of this launch's layout.
    unsafe fn write_launch(&self, context: *mut WarpContext) {
        let shape = self.shape;
        // SAFETY: the caller's promise.
        unsafe {
            shape.code.traits.frame.clear(context);
            let header = &mut *context;
            header.control = self.control.word();
            header.memory_base = shape.memory_base;
            header.memory_size = shape.memory_size;
            header.shared_size = u64::from(shape.shared_bytes);
            header.params_size = u64::from(shape.params_bytes);
            header.local_stride = u64::from(shape.local_bytes);
            header.params = shape.params;
            header.globals = shape.globals;
            header.counters = shape.counters;
            header.grid_workspace = shape.grid_workspace;
            header.warps = shape.warps;
            let first = shape.threads.min(shape.code.traits.lanes);
            header.first_members = u32::MAX >> (u32::BITS - first);
            header.first_threads_left = shape.threads - first;
            header.local_start = self.memory.local;
            header.dynamic_shared_bytes = shape.dynamic_shared_bytes;
            header.ntid = shape.block;
            header.nctaid = shape.grid;
            header.cluster_nctaid = shape.cluster;
            header.is_explicit_cluster = shape.is_explicit_cluster.into();
            header.cluster_shared_stride = shape.cluster_stride;
            header.grid_id = shape.grid_id;
            header.sm_id = self.memory.sm_id;
            header.sms = self.memory.sms;
        }
    }

    fn thread(&self, linear: u32) -> [u32; 3] {
        let [x, y, _] = self.shape.block;
        if y == 1 && self.shape.block[2] == 1 {
            return [linear, 0, 0];
        }
        [linear % x, linear / x % y, linear / x / y]
    }

    /// Runs a warp until it stops or yields; says whether it has finished.
    pub(super) fn resume(&self, context: *mut WarpContext) -> Result<bool, FaultKind> {
        self.enter(context)?;
        // SAFETY: the context is valid and ours.
        Ok(unsafe { (*context).live } == 0)
    }

    /// Runs a warp and those linked behind it until the last stops, or one yields: that one.
    pub(super) fn enter(&self, context: *mut WarpContext) -> Result<Option<*mut WarpContext>, FaultKind> {
        // SAFETY: the context is valid, the code is its launch's, and runtime functions beneath it
        // hold nothing that needs dropping when they leave.
        let returned = unsafe {
            (*context).fuel = if (*context).rotation == 0 { FUEL } else { FUEL_ROTATING };
            entry::enter(context, self.shape.code.function, &raw mut (*self.guard).saved_sp)
        };
        match (returned % align_of::<WarpContext>() as u64) as u32 {
            status::FAULTED => Err(self.take_fault()),
            status::YIELDED => {
                let yielded = (returned - u64::from(status::YIELDED)) as *mut WarpContext;
                if self.shape.code.traits.rotates {
                    // SAFETY: the code returns the address of a warp that it ran.
                    unsafe { (*yielded).rotation = (*yielded).rotation.wrapping_add(1).max(1) };
                    // It may wait for a block on another thread, which may wait for this core.
                    std::thread::yield_now();
                }
                if self.control.at_safepoint() { Ok(Some(yielded)) } else { Err(FaultKind::Cancelled) }
            }
            _ => Ok(None),
        }
    }

    fn take_fault(&self) -> FaultKind {
        // SAFETY: the guard outlives the run, and the handler has returned.
        let address = unsafe { (*self.guard).address.take() };
        match (self.fault.take(), address) {
            (_, Some(address)) => FaultKind::IllegalAddress { address },
            (Some(kind), None) => kind,
            (None, None) => FaultKind::Trap,
        }
    }

    pub(super) fn finish(&self, warp: u32) {
        let mut warps = self.warps.borrow_mut();
        let warp = &mut warps[warp as usize];
        warp.context = std::ptr::null_mut();
        warp.waiting.clear();
        warp.cluster_arrivals = Arrivals::default();
    }
}
