//! Handles (cuBLAS 2.4): settings of a caller, and scratch memory in its context.

use std::collections::HashMap;
use std::sync::PoisonError;

use sluice_library_base::handles::Handles;

use crate::abi::{Outcome, PointerMode, Status};
use crate::driver::{DevicePtr, Driver, Stream};

/// `cublasHandle_t`: the number of a handle, which is not the address of anything.
pub(crate) type HandleId = *mut std::ffi::c_void;

/// The state behind a handle.
pub(crate) struct Handle {
    pub(crate) stream: Stream,
    pub(crate) pointer_mode: PointerMode,
    pub(crate) math_mode: i32,
    pub(crate) atomics_mode: i32,
    pub(crate) sm_count_target: i32,
    /// Strategy, support of special values, mantissa control, the most mantissa bits and their
    /// offset, for products that cuBLAS emulates and that are computed as they are here.
    pub(crate) emulation: [i32; 5],
    /// The memory and its size that the caller wants used, if any.
    pub(crate) workspace: Option<(DevicePtr, u64)>,
    /// Scratch memory by context and stream, so that streams do not share it, and by use.
    scratch: HashMap<(u64, Stream, Use), Scratch>,
}

/// What scratch memory holds. A function may use several at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Use {
    /// Panels of a product.
    Panels,
    /// Partial results of a reduction, and results on the way to the host.
    Partials,
    /// A whole matrix of which the caller has a triangle.
    Expanded,
    /// A result that cannot go to its place yet.
    Result,
    /// A product that an epilogue is still to change.
    Epilogue,
}

/// Scratch memory. What was outgrown stays allocated, since kernels that wait in the stream, or
/// graphs that were captured, may use it still.
#[derive(Default)]
struct Scratch {
    blocks: Vec<(DevicePtr, u64)>,
}

/// The smallest scratch allocation, in bytes.
const SCRATCH_MIN: u64 = 64 << 10;

static HANDLES: Handles<Handle> = Handles::new(0x1000);

/// Makes a handle in the current context, or in the primary one of device 0.
pub(crate) fn create() -> Outcome<HandleId> {
    Driver::get()?.ensure_context()?;
    let handle = Handle {
        stream: 0,
        pointer_mode: PointerMode::Host,
        math_mode: 0,
        atomics_mode: 0,
        sm_count_target: 0,
        emulation: [0; 5],
        workspace: None,
        scratch: HashMap::new(),
    };
    Ok(HANDLES.insert(handle) as HandleId)
}

/// Ends a handle, once the work that was given with it is done.
pub(crate) fn destroy(id: HandleId) -> Outcome {
    let handle = HANDLES.remove(id as usize).ok_or(Status::NOT_INITIALIZED)?;
    let handle = handle.lock().unwrap_or_else(PoisonError::into_inner);
    let driver = Driver::get()?;
    let Ok(context) = driver.context_id() else { return Ok(()) };
    // Freeing waits for the context's work. Scratch memory in another context goes with that.
    for (&(owner, ..), scratch) in &handle.scratch {
        if owner == context {
            scratch.blocks.iter().for_each(|&(address, _)| driver.free(address));
        }
    }
    Ok(())
}

/// Does something with the state of a handle.
pub(crate) fn with<T>(id: HandleId, action: impl FnOnce(&mut Handle) -> Outcome<T>) -> Outcome<T> {
    let handle = HANDLES.get(id as usize).ok_or(Status::NOT_INITIALIZED)?;
    let mut handle = handle.lock().unwrap_or_else(PoisonError::into_inner);
    action(&mut handle)
}

impl Handle {
    /// At least `bytes` of device memory for the handle's stream, whose contents kernels in other
    /// calls overwrite.
    pub(crate) fn scratch(&mut self, used_for: Use, bytes: u64) -> Outcome<DevicePtr> {
        if let Some((address, size)) = self.workspace
            && used_for == Use::Panels
            && size >= bytes
        {
            return Ok(address);
        }
        let driver = Driver::get()?;
        let scratch = self.scratch.entry((driver.context_id()?, self.stream, used_for)).or_default();
        if let Some(&(address, size)) = scratch.blocks.last()
            && size >= bytes
        {
            return Ok(address);
        }
        let size = bytes.checked_next_power_of_two().ok_or(Status::ALLOC_FAILED)?.max(SCRATCH_MIN);
        let address = driver.allocate(size)?;
        scratch.blocks.push((address, size));
        Ok(address)
    }
}
