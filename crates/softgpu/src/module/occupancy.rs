//! Occupancy: how many blocks of a function a multiprocessor of this device holds
//! (CUDA Driver API, Occupancy).
//!
//! A block takes threads, registers and shared memory of its multiprocessor, in the granules of the
//! hardware, and as many blocks run as fit. On the software GPU that is one block for every thread
//! of the executor.

use sluice_cuda::CUoccupancyB2DSize;

use crate::base::status::{Result, Status};
use crate::module::function::Function;

/// Registers are given out to warps in pieces of this many (CUDA Occupancy Calculator, compute
/// capability 3.0 and up).
const REGISTER_GRANULE: u32 = 256;
/// Bytes in which shared memory is given out to blocks (compute capability 8.0 and up).
const SHARED_GRANULE: u32 = 128;
const WARP: u32 = 32;

/// Blocks of this size that one multiprocessor runs at the same time; 0 if such a block cannot run.
pub(crate) fn blocks_per_multiprocessor(
    function: &Function,
    threads: u32,
    dynamic_shared: u32,
) -> Result<u32> {
    if threads == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let (resources, limits) = (function.resources()?, function.limits());
    let shared = resources.shared.saturating_add(dynamic_shared);
    if threads > function.signature.threads_max || shared > limits.shared_opt_in {
        return Ok(0);
    }
    let warps = threads.div_ceil(WARP);
    let registers = warps.saturating_mul((resources.registers * WARP).next_multiple_of(REGISTER_GRANULE));
    let shared = (shared + limits.shared_reserved).next_multiple_of(SHARED_GRANULE);
    let fit = |room: u32, each: u32| room.checked_div(each).unwrap_or(u32::MAX);
    Ok(limits
        .blocks
        .min(fit(limits.threads, warps * WARP))
        .min(fit(limits.registers, registers))
        .min(fit(limits.shared, shared)))
}

/// Dynamic shared memory that each of `blocks` blocks on a multiprocessor can have, in bytes.
pub(crate) fn available_dynamic_shared(function: &Function, blocks: i32, threads: i32) -> Result<usize> {
    if blocks <= 0 || threads <= 0 {
        return Err(Status::INVALID_VALUE);
    }
    let (blocks, threads) = (blocks.cast_unsigned(), threads.cast_unsigned());
    let (fixed, limits) = (function.resources()?.shared, function.limits());
    if blocks > blocks_per_multiprocessor(function, threads, 0)? {
        return Ok(0);
    }
    let each =
        (limits.shared / blocks / SHARED_GRANULE * SHARED_GRANULE).saturating_sub(limits.shared_reserved);
    Ok(each.min(limits.shared_opt_in).saturating_sub(fixed) as usize)
}

/// The block size, at most `limit` where that is not 0, with which a multiprocessor is fullest, and
/// the number of blocks that fills the device.
pub(crate) fn potential_block_size(
    function: &Function,
    dynamic_of: CUoccupancyB2DSize,
    dynamic_shared: usize,
    limit: i32,
) -> Result<(i32, i32)> {
    let limit = u32::try_from(limit).map_err(|_| Status::INVALID_VALUE)?;
    let mut threads = function.signature.threads_max;
    if limit != 0 {
        threads = threads.min(limit);
    }
    let dynamic = |threads: u32| match dynamic_of {
        // SAFETY: the program gave the function to be called with block sizes.
        Some(function) => unsafe { function(threads as i32) },
        None => dynamic_shared,
    };
    // Whole warps first; a limit below a warp stands as it is.
    let whole = if threads >= WARP { threads / WARP * WARP } else { threads };
    let candidates = (1..=whole.div_ceil(WARP)).rev().map(|warps| (warps * WARP).min(whole));
    let mut best = (0, 0, 0);
    for threads in candidates {
        let dynamic = u32::try_from(dynamic(threads)).unwrap_or(u32::MAX);
        let blocks = blocks_per_multiprocessor(function, threads, dynamic)?;
        // Of those that fill the multiprocessor equally, the largest block.
        if blocks * threads > best.0 {
            best = (blocks * threads, blocks, threads);
        }
    }
    let (_, blocks, threads) = best;
    match blocks {
        0 => Err(Status::INVALID_VALUE),
        _ => Ok(((blocks * function.limits().multiprocessors) as i32, threads as i32)),
    }
}
