//! Running a compiled kernel.

use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use sluice_ir::lower::Global;
use sluice_jit::{CompiledKernel, FaultKind, LaunchConfig, LaunchError, LaunchMemory};

use crate::base::messages;
use crate::base::status::{Result, Status};
use crate::compiler::code::Entry;
use crate::device::address_space::{CHUNK, space};
use crate::device::driver;
use crate::device::execution;
use crate::device::heap::map_hidden_chunks;
use crate::device::machine::{Grid, Kernel, Resources};
use crate::device::sanitizer;

impl Kernel for Entry {
    fn resources(&self) -> Resources {
        Resources {
            shared: self.kernel.static_shared_bytes(),
            local: self.kernel.local_bytes(),
            constant: self.constant_bytes(),
            registers: self.registers,
            params: self.kernel.param_bytes(),
        }
    }

    fn globals(&self) -> &[String] {
        self.kernel.globals()
    }

    fn own_globals(&self) -> &[Global] {
        &self.globals
    }

    fn local_with_stack(&self, stack_bytes: u32) -> u32 {
        self.kernel.local_bytes_with(stack_bytes)
    }

    fn needs_heap(&self) -> bool {
        self.needs_heap
    }

    fn load(&self, block: [u32; 3]) -> Result<()> {
        let load = || self.kernel.load(block);
        let loaded = match self.kernel.is_loaded(block) {
            true => load(),
            false => execution::within_compile_limit(self.kernel.name(), load),
        };
        loaded.map_err(|error| {
            messages::say(format_args!("{error}"));
            Status::INVALID_PTX
        })
    }

    /// On the calling thread and the executor's.
    fn run(&self, grid: &Grid<'_>) -> Result<()> {
        static GRIDS: AtomicU64 = AtomicU64::new(1);
        let launch = self.lines.as_ref().and_then(|lines| sanitizer::launch(grid, lines));
        let config = LaunchConfig {
            grid: grid.shape.grid,
            block: grid.shape.block,
            cluster: grid.shape.cluster,
            cooperative: grid.shape.cooperative,
            dynamic_shared_bytes: grid.shape.dynamic_shared,
            stack_bytes: grid.stack_bytes,
            params: grid.params,
            globals: grid.globals,
            threads_max: grid.threads_max,
            order: execution::block_order(),
            grid_id: GRIDS.fetch_add(1, Ordering::Relaxed),
            monitor: launch.as_ref(),
            counters: self.coverage.as_ref().map_or(&[], |coverage| coverage.counters.values()),
        };
        let device = driver()?.devices.get(grid.device).ok_or(Status::INVALID_DEVICE)?;
        let executor = execution::executor(device)?;
        let space = space()?;
        // One grid runs on a device at a time, whichever thread runs it.
        let mut arena = device.arena.lock().unwrap_or_else(PoisonError::into_inner);
        grow_arena(&mut arena, executor.arena_bytes(&self.kernel, &config))?;
        let memory = LaunchMemory {
            range: space.base()..space.base() + space.size(),
            arena: arena.clone(),
            heap: grid.heap,
        };
        let running = execution::Running::start(device);
        let outcome = executor.launch(&self.kernel, &config, &memory, running.control());
        running.finish();
        if let Some(coverage) = &self.coverage {
            coverage.save();
        }
        outcome.map(drop).map_err(|error| failure(grid.name, &self.kernel, &error))
    }
}

/// What the program sees of a failed launch; stderr says more, since CUDA has no place for it.
fn failure(name: &str, kernel: &CompiledKernel, error: &LaunchError) -> Status {
    let LaunchError::Fault(fault) = error else {
        messages::say(format_args!("kernel {name}: {error}"));
        return Status::LAUNCH_FAILED;
    };
    let missing = match fault.kind {
        FaultKind::Missing { what } => kernel.missing(what),
        _ => None,
    };
    match missing {
        Some(missing) => messages::say(format_args!("kernel {name}: {error}: {missing}")),
        None => messages::say(format_args!("kernel {name}: {error}")),
    }
    match fault.kind {
        FaultKind::IllegalAddress { .. } | FaultKind::OutOfWindow { .. } => Status::ILLEGAL_ADDRESS,
        FaultKind::MisalignedAddress { .. } => Status::MISALIGNED_ADDRESS,
        FaultKind::Assert => Status::ASSERT,
        FaultKind::IllegalInstruction | FaultKind::Missing { .. } => Status::ILLEGAL_INSTRUCTION,
        FaultKind::StackOverflow => Status::HARDWARE_STACK_ERROR,
        FaultKind::Cancelled => Status::LAUNCH_TIMEOUT,
        FaultKind::Trap | FaultKind::Deadlock => Status::LAUNCH_FAILED,
    }
}

/// Makes sure that a device's arena has room for at least `bytes`.
fn grow_arena(arena: &mut Range<u64>, bytes: u64) -> Result<()> {
    if arena.end - arena.start < bytes {
        let size = bytes.checked_next_power_of_two().ok_or(Status::OUT_OF_MEMORY)?.max(8 * CHUNK);
        let old = std::mem::replace(arena, 0..0);
        if !old.is_empty() {
            space()?.give(old.start, old.end - old.start);
        }
        let start = map_hidden_chunks(size)?;
        *arena = start..start + size;
    }
    Ok(())
}
