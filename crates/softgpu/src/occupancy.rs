//! Occupancy: how many blocks of a function a multiprocessor of this device holds
//! (CUDA Driver API, Occupancy).
//!
//! A multiprocessor here is a thread of the executor, and it runs one block at a time, so the answer is 1 for
//! every block that can run at all. Programs that size a cooperative or a persistent grid by it get a grid whose
//! blocks really run at the same time.

use sluice_cuda::CUoccupancyB2DSize;

use crate::device::driver;
use crate::function::Function;
use crate::launch::{SHARED_OPT_IN, SHARED_PER_MULTIPROCESSOR, SHARED_RESERVED};
use crate::status::{Result, Status};

/// Blocks that run at the same time on one multiprocessor.
pub(crate) const BLOCKS_MAX: i32 = 1;
/// Threads that one multiprocessor holds: those of a block.
pub(crate) const THREADS_MAX: i32 = 1024;

/// Blocks of this size that one multiprocessor runs at the same time: 1, or 0 if such a block cannot run.
pub(crate) fn blocks_per_multiprocessor(
    function: &Function,
    threads: u32,
    dynamic_shared: u32,
) -> Result<u32> {
    if threads == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let shared = function.compiled()?.code.static_shared_bytes().saturating_add(dynamic_shared);
    let fits = threads <= function.threads_max() && shared <= SHARED_OPT_IN;
    Ok(u32::from(fits))
}

/// Dynamic shared memory that each of `blocks` blocks on a multiprocessor can have, in bytes.
pub(crate) fn available_dynamic_shared(function: &Function, blocks: i32, threads: i32) -> Result<usize> {
    if blocks <= 0 || threads <= 0 {
        return Err(Status::INVALID_VALUE);
    }
    let fixed = function.compiled()?.code.static_shared_bytes();
    if blocks > BLOCKS_MAX || threads.cast_unsigned() > function.threads_max() {
        return Ok(0);
    }
    Ok((SHARED_PER_MULTIPROCESSOR - SHARED_RESERVED).min(SHARED_OPT_IN).saturating_sub(fixed) as usize)
}

/// The block size, at most `limit` where that is not 0, with which a multiprocessor is fullest, and the number of
/// blocks that fills the device.
pub(crate) fn potential_block_size(
    function: &Function,
    dynamic_of: CUoccupancyB2DSize,
    dynamic_shared: usize,
    limit: i32,
) -> Result<(i32, i32)> {
    let limit = u32::try_from(limit).map_err(|_| Status::INVALID_VALUE)?;
    let mut threads = function.threads_max();
    if limit != 0 {
        threads = threads.min(limit);
    }
    let dynamic = |threads: u32| match dynamic_of {
        // SAFETY: the program gave the function to be called with block sizes.
        Some(function) => unsafe { function(threads as i32) },
        None => dynamic_shared,
    };
    // Whole warps first; a limit below a warp stands as it is.
    let whole = if threads >= 32 { threads / 32 * 32 } else { threads };
    let mut candidates = (1..=whole.div_ceil(32)).rev().map(|warps| (warps * 32).min(whole));
    let fits = |&threads: &u32| {
        let dynamic = u32::try_from(dynamic(threads)).unwrap_or(u32::MAX);
        blocks_per_multiprocessor(function, threads, dynamic).is_ok_and(|blocks| blocks > 0)
    };
    let threads = candidates.find(fits).ok_or(Status::INVALID_VALUE)?;
    Ok((driver()?.threads as i32, threads as i32))
}
