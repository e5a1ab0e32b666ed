//! Spreads the blocks of grids over threads.
//!
//! A launch becomes a [`Grid`]. The launching thread works on it together with pool threads that
//! are idle; each takes the block with the next index, so a block that spins on blocks before it
//! (decoupled look-back) is sure that those have been started, and makes progress.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::block::{BlockMemory, BlockRun, LaunchShape};
use crate::cluster::{Cluster, ClusterBarrier};
use crate::compile::CompiledKernel;
use crate::config::{LaunchConfig, LaunchMemory, LaunchStats};
use crate::control::LaunchControl;
use crate::fault::{Fault, FaultKind, LaunchError};
use crate::frames::Frames;
use crate::monitor::Watch;
use crate::order::permuted;
use crate::signal::{self, Guard};

/// Blocks that a thread takes at a time.
const BLOCKS_TAKEN_MAX: u64 = 64;

/// Where blocks of a cooperative launch count themselves: as long as the alignment of what follows.
const GRID_WORKSPACE_BYTES: u64 = ARENA_ALIGN;

/// Alignment of what is placed in an arena.
const ARENA_ALIGN: u64 = 256;

/// A pool of threads that run grids. Launches from several threads share it, the earliest grid
/// first.
pub struct Executor {
    pool: Arc<Pool>,
    threads: u32,
    workers: Vec<JoinHandle<()>>,
}

struct Pool {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    grids: VecDeque<Arc<Grid>>,
    closed: bool,
}

impl Executor {
    /// An executor that runs up to `threads` blocks of a launch at a time (at least 1). The
    /// launching thread is one of them, so `threads - 1` are started.
    pub fn new(threads: usize) -> std::io::Result<Executor> {
        let threads = u32::try_from(threads.max(1)).unwrap_or(u32::MAX);
        let pool = Arc::new(Pool { queue: Mutex::default(), changed: Condvar::new() });
        let mut executor = Executor { pool, threads, workers: Vec::new() };
        for index in 1..threads {
            let pool = executor.pool.clone();
            let worker =
                std::thread::Builder::new().name(format!("sm-{index}")).spawn(move || pool.work())?;
            executor.workers.push(worker);
        }
        Ok(executor)
    }

    /// Blocks of one launch that run at the same time: the multiprocessors of this device.
    pub fn threads(&self) -> u32 {
        self.threads
    }

    /// Bytes of arena that a launch needs.
    pub fn arena_bytes(&self, kernel: &CompiledKernel, config: &LaunchConfig<'_>) -> u64 {
        let layout = ArenaLayout::new(kernel, config, self.threads);
        let blocks = match config.cooperative {
            true => config.blocks(),
            false => self.participants(config) * config.cluster_blocks(),
        };
        layout.blocks_offset.saturating_add(layout.block_bytes.saturating_mul(blocks))
    }

    fn participants(&self, config: &LaunchConfig<'_>) -> u64 {
        if config.order.is_sequential() {
            return 1;
        }
        let clusters = config.blocks() / config.cluster_blocks().max(1);
        u64::from(self.threads.min(config.threads_max.max(1))).min(clusters.max(1))
    }

    /// Runs a grid to its end. Blocks the caller, whose thread takes part.
    pub fn launch(
        &self,
        kernel: &CompiledKernel,
        config: &LaunchConfig<'_>,
        memory: &LaunchMemory<'_>,
        control: &LaunchControl,
    ) -> Result<LaunchStats, LaunchError> {
        self.check(kernel, config, memory)?;
        let code = kernel.code(config.block, memory.range.end - memory.range.start)?;
        let layout = ArenaLayout::new(kernel, config, self.threads);
        // SAFETY: the arena is mapped, writable and ours by the contract of `LaunchMemory`, and
        // long enough.
        let params = unsafe {
            let params = memory.arena.start as *mut u8;
            params.copy_from_nonoverlapping(config.params.as_ptr(), config.params.len());
            params.cast_const()
        };
        let grid_workspace = if config.cooperative { memory.arena.start + layout.params_bytes } else { 0 };
        if config.cooperative {
            // SAFETY: as above; the layout has this place behind the parameters.
            unsafe { (grid_workspace as *mut u8).write_bytes(0, GRID_WORKSPACE_BYTES as usize) };
        }
        let threads = config.block_threads() as u32;
        let shape = LaunchShape {
            code,
            memory_base: memory.range.start,
            memory_size: memory.range.end - memory.range.start,
            params,
            globals: config.globals.as_ptr(),
            counters: config.counters.as_ptr(),
            grid_workspace,
            grid: config.grid,
            block: config.block,
            cluster: config.cluster.unwrap_or([1; 3]),
            is_explicit_cluster: config.cluster.is_some(),
            cluster_stride: layout.block_bytes,
            threads,
            warps: threads.div_ceil(code.traits.lanes),
            shared_bytes: layout.shared_bytes,
            params_bytes: config.params.len() as u32,
            dynamic_shared_bytes: config.dynamic_shared_bytes,
            local_bytes: kernel.local_bytes_with(config.stack_bytes),
            grid_id: config.grid_id,
        };
        let work = Work {
            shape,
            control,
            memory: memory.clone(),
            layout,
            watch: config.monitor.map(|launch| Watch {
                launch,
                accesses: kernel.accesses(),
                arena: memory.arena.clone(),
                workspace: match config.cooperative {
                    true => grid_workspace..grid_workspace + GRID_WORKSPACE_BYTES,
                    false => 0..0,
                },
            }),
            blocks: config.blocks(),
            // Blocks that wait for those before them would wait forever.
            order_key: config.order.key(config.grid_id).filter(|_| !code.traits.rotates),
            next: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            fault: Mutex::new(None),
        };
        let participants = self.participants(config) as u32;
        let start = Instant::now();
        self.run(&work, participants);
        kernel.ran(config.block, start.elapsed());
        match work.fault.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(fault) => Err(LaunchError::Fault(fault)),
            None => Ok(LaunchStats { blocks: work.completed.into_inner() }),
        }
    }

    fn check(
        &self,
        kernel: &CompiledKernel,
        config: &LaunchConfig<'_>,
        memory: &LaunchMemory<'_>,
    ) -> Result<(), LaunchError> {
        if config.grid.contains(&0) || config.blocks() > u64::MAX / 2 {
            return Err(LaunchError::GridShape);
        }
        let (threads, max) = (config.block_threads(), LaunchConfig::BLOCK_THREADS_MAX);
        if config.block.contains(&0) || threads > u64::from(max) {
            return Err(LaunchError::BlockShape { threads, max });
        }
        if let Some(cluster) = config.cluster {
            let fits = (1..=u64::from(LaunchConfig::CLUSTER_BLOCKS_MAX)).contains(&config.cluster_blocks());
            let divides = config.grid.iter().zip(cluster).all(|(&grid, n)| n != 0 && grid.is_multiple_of(n));
            if !fits || !divides {
                return Err(LaunchError::ClusterShape { cluster, max: LaunchConfig::CLUSTER_BLOCKS_MAX });
            }
        }
        let (given, expected) = (config.params.len(), kernel.param_bytes() as usize);
        if given != expected {
            return Err(LaunchError::Params { given, expected });
        }
        let (given, expected) = (config.globals.len(), kernel.globals().len());
        if given != expected {
            return Err(LaunchError::Globals { given, expected });
        }
        let (given, expected) = (config.counters.len(), kernel.counters().len());
        if given != expected {
            return Err(LaunchError::Counters { given, expected });
        }
        let (range, arena) = (&memory.range, &memory.arena);
        let inside = range.start <= arena.start && arena.start <= arena.end && arena.end <= range.end;
        // Compiled code subtracts the size of an access from the range's.
        let inside = inside && range.end - range.start >= ARENA_ALIGN;
        if !inside || !arena.start.is_multiple_of(ARENA_ALIGN) {
            return Err(LaunchError::ArenaPlace);
        }
        let (given, needed) = (arena.end - arena.start, self.arena_bytes(kernel, config));
        if given < needed {
            return Err(LaunchError::Arena { given, needed });
        }
        Ok(())
    }

    /// Works on `work` with up to `participants` threads until none is left in it.
    fn run(&self, work: &Work<'_>, participants: u32) {
        if participants <= 1 {
            return work.participate(0);
        }
        let work: *const Work<'_> = work;
        let grid = Arc::new(Grid {
            work: work.cast(),
            participants: AtomicU32::new(1),
            participants_max: participants,
            inside: Mutex::new(0),
            left: Condvar::new(),
        });
        self.pool.lock().grids.push_back(grid.clone());
        match participants {
            2 => self.pool.changed.notify_one(),
            _ => self.pool.changed.notify_all(),
        }
        // SAFETY: `work` outlives this call.
        unsafe { (*work).participate(0) };
        // A thread that still takes the grid out of the queue under its lock enters before this
        // removal.
        self.pool.lock().grids.retain(|other| !Arc::ptr_eq(other, &grid));
        let mut inside = grid.inside.lock().unwrap_or_else(PoisonError::into_inner);
        while *inside > 0 {
            inside = grid.left.wait(inside).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.pool.lock().closed = true;
        self.pool.changed.notify_all();
        for worker in self.workers.drain(..) {
            // A worker that panicked has nothing left to give back.
            let _ = worker.join();
        }
    }
}

impl Pool {
    fn work(&self) {
        let mut queue = self.lock();
        while !queue.closed {
            match queue.enter() {
                Some((grid, participant)) => {
                    drop(queue);
                    // SAFETY: the launch waits for all who entered before `work` ends.
                    unsafe { (*grid.work.cast::<Work<'_>>()).participate(participant) };
                    grid.leave();
                    queue = self.lock();
                }
                None => queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Enters the earliest grid that takes another thread. Called under the queue's lock, so that a
    /// launch that has removed its grid knows all threads that are inside.
    fn enter(&mut self) -> Option<(Arc<Grid>, u32)> {
        let grid = self.grids.front()?.clone();
        let participant = grid.participants.fetch_add(1, Ordering::Relaxed);
        if participant + 1 >= grid.participants_max {
            self.grids.pop_front();
        }
        *grid.inside.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Some((grid, participant))
    }
}

/// A launch in the queue: the part that outlives the call, and a pointer to the part that does not.
struct Grid {
    work: *const (),
    participants: AtomicU32,
    participants_max: u32,
    /// Pool threads that work on it now.
    inside: Mutex<u32>,
    left: Condvar,
}

// SAFETY: `work` is a `Work`, which is `Sync`, and valid for as long as a thread is inside.
unsafe impl Send for Grid {}
// SAFETY: as above.
unsafe impl Sync for Grid {}

impl Grid {
    fn leave(&self) {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        *inside -= 1;
        if *inside == 0 {
            self.left.notify_all();
        }
    }
}

/// A launch in execution.
struct Work<'a> {
    shape: LaunchShape,
    control: &'a LaunchControl,
    memory: LaunchMemory<'a>,
    layout: ArenaLayout,
    watch: Option<Watch<'a>>,
    blocks: u64,
    /// Permutes the blocks.
    order_key: Option<u64>,
    next: AtomicU64,
    completed: AtomicU64,
    fault: Mutex<Option<Fault>>,
}

// SAFETY: the pointers in `shape` are to memory that is only read through them and outlives the
// launch.
unsafe impl Sync for Work<'_> {}

impl Work<'_> {
    /// Runs blocks until none is left or one has failed.
    fn participate(&self, participant: u32) {
        let _inside = self.control.enter();
        let guard = Cell::new(Guard {
            saved_sp: 0,
            memory_base: self.shape.memory_base,
            memory_size: self.shape.memory_size,
            address: None,
        });
        // SAFETY: the guard stays in place until it is taken back below.
        unsafe { signal::guard_thread(guard.as_ptr()) };
        let is_together = self.is_cooperative() || self.cluster_blocks() > 1;
        let (completed, fault) = match is_together {
            false => self.run_blocks(participant, guard.as_ptr()),
            true => self.run_together(participant, guard.as_ptr()),
        };
        // SAFETY: null is always valid.
        unsafe { signal::guard_thread(std::ptr::null_mut()) };
        self.completed.fetch_add(completed, Ordering::Relaxed);
        if let Some(fault) = fault {
            self.fail(fault);
        }
    }

    fn run_blocks(&self, participant: u32, guard: *mut Guard) -> (u64, Option<Fault>) {
        let memory = self.layout.block(self.memory.arena.start, participant.into(), participant);
        let run = self.block_run(memory, Rc::default(), guard);
        let mut frames = Frames::default();
        let (mut completed, mut taken) = (0, 0..0);
        loop {
            if !self.control.at_safepoint() {
                return (completed, Some(Fault { kind: FaultKind::Cancelled, block: None }));
            }
            if taken.is_empty() {
                taken = self.take();
            }
            if taken.is_empty() {
                return (completed, None);
            }
            let count = (taken.end - taken.start) as u32;
            match run.run(self.block_index(self.ordered(taken.start, self.blocks)), count, &mut frames) {
                Ok(done) => {
                    taken.start += u64::from(done);
                    completed += u64::from(done);
                }
                Err(kind) => return (completed, Some(Fault { kind, block: Some(run.index()) })),
            }
        }
    }

    /// Runs clusters, whose blocks may wait for each other, one after the other. Those of a
    /// cooperative launch may wait for other clusters as well: each is begun as soon as possible,
    /// and those that are not at their end get a turn each.
    fn run_together(&self, participant: u32, guard: *mut Guard) -> (u64, Option<Fault>) {
        let clusters = self.blocks / self.cluster_blocks();
        let mut residents: Vec<Cluster<'_>> = Vec::new();
        let mut idle: Option<Cluster<'_>> = None;
        let mut completed = 0;
        loop {
            if !self.control.at_safepoint() {
                return (completed, Some(Fault { kind: FaultKind::Cancelled, block: None }));
            }
            if residents.is_empty() || self.is_cooperative() {
                let next = self.next.fetch_add(1, Ordering::Relaxed);
                if next < clusters {
                    let mut cluster = idle.take().unwrap_or_else(|| self.cluster(next, participant, guard));
                    let begun =
                        cluster.begin(|rank| self.index_in_cluster(self.ordered(next, clusters), rank));
                    if let Err(fault) = begun {
                        return (completed, Some(fault));
                    }
                    residents.push(cluster);
                } else if residents.is_empty() {
                    return (completed, None);
                }
            }
            let mut place = 0;
            while let Some(cluster) = residents.get_mut(place) {
                match cluster.turn() {
                    Ok(false) => place += 1,
                    Ok(true) => {
                        completed += self.cluster_blocks();
                        // The memory of a cooperative launch's blocks is theirs alone.
                        let finished = residents.remove(place);
                        idle = (!self.is_cooperative()).then_some(finished);
                    }
                    Err(fault) => return (completed, Some(fault)),
                }
            }
        }
    }

    fn is_cooperative(&self) -> bool {
        self.shape.grid_workspace != 0
    }

    fn cluster_blocks(&self) -> u64 {
        self.shape.cluster.iter().map(|&n| u64::from(n)).product()
    }

    /// A cluster for this thread, with the memory of cluster `number` in a cooperative launch.
    fn cluster(&self, number: u64, participant: u32, guard: *mut Guard) -> Cluster<'_> {
        let place = if self.is_cooperative() { number } else { participant.into() };
        let first = place * self.cluster_blocks();
        let memories = (0..self.cluster_blocks())
            .map(|rank| self.layout.block(self.memory.arena.start, first + rank, participant));
        Cluster::new(memories, |memory, barrier| self.block_run(memory, barrier, guard))
    }

    fn block_run(&self, memory: BlockMemory, barrier: Rc<ClusterBarrier>, guard: *mut Guard) -> BlockRun<'_> {
        let run = BlockRun::new(&self.shape, self.control, self.memory.heap, memory, barrier, guard);
        match &self.watch {
            Some(watch) => run.watched(watch),
            None => run,
        }
    }

    /// The index of the block with this rank in a cluster.
    fn index_in_cluster(&self, cluster: u64, rank: u64) -> [u32; 3] {
        let size = self.shape.cluster;
        let clusters = [0, 1, 2].map(|axis| self.shape.grid[axis] / size[axis]);
        let (first, inside) = (index(cluster, clusters), index(rank, size));
        [0, 1, 2].map(|axis| first[axis] * size[axis] + inside[axis])
    }

    /// The next blocks for one thread; none when all have been taken.
    ///
    /// Where blocks may wait for those before them, or are permuted, one is taken at a time. Else
    /// several are taken, so that the threads seldom meet here, and fewer towards the end, so that
    /// they finish together.
    fn take(&self) -> Range<u64> {
        let traits = &self.shape.code.traits;
        let many = match traits.goes_on && !traits.rotates && self.order_key.is_none() {
            true => {
                let left = self.blocks.saturating_sub(self.next.load(Ordering::Relaxed));
                (left / (8 * u64::from(self.layout.sms))).clamp(1, BLOCKS_TAKEN_MAX)
            }
            false => 1,
        };
        let first = self.next.fetch_add(many, Ordering::Relaxed).min(self.blocks);
        first..(first + many).min(self.blocks)
    }

    /// Which of `count` blocks or clusters is begun as the one with this number.
    fn ordered(&self, number: u64, count: u64) -> u64 {
        self.order_key.map_or(number, |key| permuted(number, count, key))
    }

    fn block_index(&self, number: u64) -> [u32; 3] {
        index(number, self.shape.grid)
    }

    /// Records the first fault and ends the launch for the other threads, whose own cancellation
    /// then is no news.
    fn fail(&self, fault: Fault) {
        let mut first = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_none() {
            *first = Some(fault);
            self.next.store(self.blocks, Ordering::Relaxed);
            self.control.cancel();
        }
    }
}

/// The index of the element with this number in an array of this size.
fn index(number: u64, size: [u32; 3]) -> [u32; 3] {
    let [x, y, _] = size.map(u64::from);
    if number < x { [number, 0, 0] } else { [number % x, number / x % y, number / x / y] }.map(|i| i as u32)
}

/// Where things are in an arena: the parameters, the grid's workspace, then shared and local memory
/// for each thread of the executor that takes part, or for each block of a cooperative launch.
#[derive(Clone, Copy)]
struct ArenaLayout {
    params_bytes: u64,
    blocks_offset: u64,
    shared_bytes: u32,
    local_offset: u64,
    block_bytes: u64,
    sms: u32,
}

impl ArenaLayout {
    fn new(kernel: &CompiledKernel, config: &LaunchConfig<'_>, sms: u32) -> ArenaLayout {
        let params_bytes = u64::from(kernel.param_bytes()).next_multiple_of(ARENA_ALIGN);
        let shared_bytes = kernel.shared_bytes(config.dynamic_shared_bytes);
        let local_offset = u64::from(shared_bytes).next_multiple_of(ARENA_ALIGN);
        let threads = config.block_threads().min(u64::from(LaunchConfig::BLOCK_THREADS_MAX));
        let local =
            (threads * u64::from(kernel.local_bytes_with(config.stack_bytes))).next_multiple_of(ARENA_ALIGN);
        let blocks_offset = params_bytes + GRID_WORKSPACE_BYTES;
        let block_bytes = local_offset + local;
        ArenaLayout { params_bytes, blocks_offset, shared_bytes, local_offset, block_bytes, sms }
    }

    fn block(&self, arena: u64, place: u64, participant: u32) -> BlockMemory {
        let shared = arena + self.blocks_offset + place * self.block_bytes;
        BlockMemory { shared, local: shared + self.local_offset, sm_id: participant, sms: self.sms }
    }
}
