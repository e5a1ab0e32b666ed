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

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::AtomicU64;

use crate::cluster::{Arrivals, ClusterBarrier};
use crate::context::{BARRIERS, FUEL, LANES, WarpContext, WarpFunction, status};
use crate::control::LaunchControl;
use crate::entry;
use crate::fault::FaultKind;
use crate::frames::Frames;
use crate::heap::DeviceHeap;
use crate::images::Images;
use crate::machine_code::CodeTraits;
use crate::monitor::{Monitor, Watch};
use crate::signal::Guard;

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
    /// Warps of the block that have started, the first so many, and those that have finished.
    started: Cell<u32>,
    finished: Cell<u32>,
}

#[derive(Clone)]
struct Warp {
    /// Null before it starts and after it has finished.
    context: *mut WarpContext,
    /// Nodes whose lanes wait for other lanes of this warp.
    waiting: Vec<u32>,
    cluster_arrivals: Arrivals,
}

/// What became of a block in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Finished,
    Progress,
    /// Every warp waits for something.
    Stuck,
}

#[derive(Clone, Default)]
struct Barrier {
    arrived: u32,
    /// Threads to wait for; 0 for all that live.
    expected: u32,
    /// Arrived threads whose predicate was true.
    votes: u32,
    parked: Vec<Parked>,
    /// Warps of which lanes have been counted and do not wait, as bits.
    passed: u32,
}

#[derive(Clone, Copy)]
struct Parked {
    warp: u32,
    node: u32,
    lanes: u32,
    /// Line of the barrier instruction in the PTX text; known for instrumented kernels only.
    line: u32,
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

    /// The same run, watched.
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
                Turn::Finished => return Ok(begun),
                Turn::Progress => {}
                Turn::Stuck if self.force_waiting() => {}
                Turn::Stuck => {
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
    pub(crate) fn turn(&self, frames: &mut Frames) -> Result<Turn, FaultKind> {
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
            _ if self.finished.get() == warps => Turn::Finished,
            true => Turn::Progress,
            false => Turn::Stuck,
        })
    }

    /// Runs blocks whose warps do not wait for each other: the code goes from warp to warp and from
    /// block to block by itself, in the same memory, up to the first warp that yields. From there
    /// on those of its block take turns.
    fn run_many(&self, count: u32, frames: &mut Frames) -> Result<u32, FaultKind> {
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
    fn run_in_phases(&self, frames: &mut Frames) -> Result<u32, FaultKind> {
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
    fn park_whole(&self, warp: u32, context: *mut WarpContext) {
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
    fn keep(&self, warp: u32, context: *mut WarpContext) -> *mut WarpContext {
        self.warps.borrow_mut()[warp as usize].context = context;
        context
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

    /// Sets a warp's memory up for its first instruction.
    fn start(&self, warp: u32, frames: &mut Frames) -> *mut WarpContext {
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
    fn resume(&self, context: *mut WarpContext) -> Result<bool, FaultKind> {
        self.enter(context)?;
        // SAFETY: the context is valid and ours.
        Ok(unsafe { (*context).live } == 0)
    }

    /// Runs a warp and those linked behind it until the last stops, or one yields: that one.
    fn enter(&self, context: *mut WarpContext) -> Result<Option<*mut WarpContext>, FaultKind> {
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

    fn finish(&self, warp: u32) {
        let mut warps = self.warps.borrow_mut();
        let warp = &mut warps[warp as usize];
        warp.context = std::ptr::null_mut();
        warp.waiting.clear();
        warp.cluster_arrivals = Arrivals::default();
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

    /// With every warp stuck: lets lanes that wait for others of their warp go on without them.
    /// Real devices would hang; programs that get here name lanes in a member mask that took
    /// another path.
    pub(crate) fn force_waiting(&self) -> bool {
        let mut any = false;
        for (number, warp) in self.warps.borrow_mut().iter_mut().enumerate() {
            if warp.waiting.is_empty() {
                continue;
            }
            if let Some(mut block) = self.watched_block() {
                block.lacks_lanes(number as u32);
            }
            for node in warp.waiting.drain(..) {
                // SAFETY: a warp with waiting lanes has a context of this layout, and nodes are its
                // code's.
                unsafe {
                    (*warp.context).force = 1;
                    self.shape.code.traits.frame.make_ready(warp.context, node, 0);
                }
                any = true;
            }
        }
        any
    }
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

    /// `lanes` of `warp` come to barrier `id`. They go on at `node` when all have come; with `node`
    /// `None` they only count. `votes` are those whose predicate is true.
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
        for node in warp.waiting.drain(..) {
            // SAFETY: the warp runs, so it has a context; nodes are its code's.
            unsafe { self.shape.code.traits.frame.make_ready(warp.context, node, 0) };
        }
    }

    /// Lanes pending at `node`, which is not ready, wait for others of their warp.
    pub(crate) fn wait(&self, warp: u32, node: u32) {
        let mut warps = self.warps.borrow_mut();
        let waiting = &mut warps[warp as usize].waiting;
        if !waiting.contains(&node) {
            waiting.push(node);
        }
    }

    /// Lanes that waited at `node` go on.
    pub(crate) fn waited(&self, warp: u32, node: u32) {
        self.warps.borrow_mut()[warp as usize].waiting.retain(|&other| other != node);
    }
}
