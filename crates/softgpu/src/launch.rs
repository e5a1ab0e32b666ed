//! Kernel launches: checks when they are submitted, execution when their turn has come.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluice_jit::{CompiledKernel, FaultKind, LaunchConfig, LaunchError, LaunchMemory};

use crate::address_space::{CHUNK, space};
use crate::context::Context;
use crate::device::driver;
use crate::execution;
use crate::function::Function;
use crate::heap::map_hidden_chunks;
use crate::op::Op;
use crate::status::{Result, Status};

/// Blocks that a grid may have in x, and in y and z (compute capability 5.0 and higher).
pub(crate) const GRID_MAX: [u32; 3] = [i32::MAX as u32, 65535, 65535];
/// Threads that a block may have in each direction.
pub(crate) const BLOCK_MAX: [u32; 3] = [1024, 1024, 64];
/// Bytes of shared memory per block: without asking, with `MAX_DYNAMIC_SHARED_SIZE_BYTES`, and per multiprocessor.
pub(crate) const SHARED_DEFAULT: u32 = 48 << 10;
pub(crate) const SHARED_OPT_IN: u32 = 99 << 10;
pub(crate) const SHARED_PER_MULTIPROCESSOR: u32 = 100 << 10;
/// Of those, bytes that each block costs beyond what it asks for.
pub(crate) const SHARED_RESERVED: u32 = 1 << 10;
/// Blocks of a cooperative launch for each multiprocessor.
const COOPERATIVE_BLOCKS_MAX: u32 = 32;
/// Bytes of parameters a kernel may have (PTX ISA, Kernel Function Parameters).
pub(crate) const PARAMS_MAX: u64 = 32764;

/// Grid, block and the rest of what a launch says besides its arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared: u32,
    pub(crate) cooperative: bool,
}

/// A launch that has passed all checks.
pub(crate) struct Launch {
    code: Arc<CompiledKernel>,
    /// Keeps the module's variables where they are.
    function: Arc<Function>,
    globals: Arc<[u64]>,
    shape: Shape,
    params: Box<[u8]>,
}

/// Checks a launch and makes it ready to run; `params` is the parameter buffer.
pub(crate) fn prepare(function: &Arc<Function>, shape: Shape, params: Box<[u8]>) -> Result<Op> {
    check_shape(function, shape)?;
    let ready = function.compiled()?;
    if params.len() != ready.code.param_bytes() as usize {
        return Err(Status::INVALID_VALUE);
    }
    let shared = u64::from(ready.code.static_shared_bytes()) + u64::from(shape.dynamic_shared);
    let allowed = SHARED_DEFAULT.max(ready.code.static_shared_bytes() + function.dynamic_shared_max());
    if shared > u64::from(allowed.min(SHARED_OPT_IN)) {
        return Err(Status::INVALID_VALUE);
    }
    if shape.cooperative {
        check_cooperative(function, shape)?;
    }
    Ok(Op::Launch(Arc::new(Launch {
        code: Arc::clone(&ready.code),
        function: Arc::clone(function),
        globals: Arc::clone(&ready.globals),
        shape,
        params,
    })))
}

fn check_shape(function: &Function, shape: Shape) -> Result<()> {
    let within = |size: [u32; 3], max: [u32; 3]| size.iter().zip(max).all(|(&n, max)| n != 0 && n <= max);
    let threads: u64 = shape.block.iter().map(|&n| u64::from(n)).product();
    if !within(shape.grid, GRID_MAX) || !within(shape.block, BLOCK_MAX) {
        return Err(Status::INVALID_VALUE);
    }
    if threads > u64::from(function.threads_max()) {
        return Err(Status::INVALID_VALUE);
    }
    match function.required_threads() {
        Some(required) if required != shape.block => Err(Status::INVALID_VALUE),
        _ => Ok(()),
    }
}

/// All blocks of a cooperative launch are there at the same time, each with memory of its own. A thread of the executor runs
/// several in turns, so more of them are allowed than occupancy says run at once: programs made for a large device
/// need not fit a small machine.
fn check_cooperative(function: &Arc<Function>, shape: Shape) -> Result<()> {
    let blocks = shape.grid.iter().fold(1u64, |product, &n| product.saturating_mul(u64::from(n)));
    let threads = shape.block.iter().product::<u32>();
    let each = crate::occupancy::blocks_per_multiprocessor(function, threads, shape.dynamic_shared)?;
    let together = u64::from(each * COOPERATIVE_BLOCKS_MAX) * driver()?.threads as u64;
    if blocks > together { Err(Status::COOPERATIVE_LAUNCH_TOO_LARGE) } else { Ok(()) }
}

impl Launch {
    /// Runs the grid to its end on the calling thread and the executor's.
    pub(crate) fn run(&self, context: &Context) -> Result<()> {
        static GRIDS: AtomicU64 = AtomicU64::new(1);
        let config = LaunchConfig {
            grid: self.shape.grid,
            block: self.shape.block,
            cooperative: self.shape.cooperative,
            dynamic_shared_bytes: self.shape.dynamic_shared,
            params: &self.params,
            globals: &self.globals,
            grid_id: GRIDS.fetch_add(1, Ordering::Relaxed),
            ..LaunchConfig::default()
        };
        let executor = execution::executor(context.device)?;
        let space = space()?;
        let memory = LaunchMemory {
            range: space.base()..space.base() + space.size(),
            arena: arena(executor.arena_bytes(&self.code, &config))?,
            heap: context.device_heap(),
        };
        let running = execution::Running::start(context.device);
        let outcome = executor.launch(&self.code, &config, &memory, running.control());
        running.finish(outcome.as_ref().ok());
        outcome.map(drop).map_err(|error| self.failure(&error))
    }

    /// What the program sees of a failed launch; stderr says more, since CUDA has no place for it.
    fn failure(&self, error: &LaunchError) -> Status {
        eprintln!("sluice: kernel {}: {error}", self.function.name);
        let LaunchError::Fault(fault) = error else { return Status::LAUNCH_FAILED };
        match fault.kind {
            FaultKind::IllegalAddress { .. } | FaultKind::OutOfWindow { .. } => Status::ILLEGAL_ADDRESS,
            FaultKind::MisalignedAddress { .. } => Status::MISALIGNED_ADDRESS,
            FaultKind::Assert => Status::ASSERT,
            FaultKind::IllegalInstruction => Status::ILLEGAL_INSTRUCTION,
            FaultKind::Cancelled => Status::LAUNCH_TIMEOUT,
            FaultKind::Trap | FaultKind::Deadlock => Status::LAUNCH_FAILED,
        }
    }
}

thread_local! {
    /// Memory for parameters, shared and local memory of the launch that this thread runs.
    static ARENA: RefCell<Range<u64>> = const { RefCell::new(0..0) };
}

/// This thread's arena with room for at least `bytes`.
fn arena(bytes: u64) -> Result<Range<u64>> {
    ARENA.with_borrow_mut(|arena| {
        if arena.end - arena.start < bytes {
            let size = bytes.checked_next_power_of_two().ok_or(Status::OUT_OF_MEMORY)?.max(8 * CHUNK);
            let old = std::mem::replace(arena, 0..0);
            if !old.is_empty() {
                space()?.give(old.start, old.end - old.start);
            }
            let start = map_hidden_chunks(size)?;
            *arena = start..start + size;
        }
        Ok(arena.clone())
    })
}
