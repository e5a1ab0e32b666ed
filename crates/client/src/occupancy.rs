//! The occupancy calculators that call back into the program; the node answers the plain question for each size.

use sluice_cuda::*;

use crate::generated::stubs;
use crate::issue::wanted;
use crate::{context, module, out, session};

/// CUDA Driver API, section "Occupancy".
pub(crate) unsafe fn cuOccupancyMaxPotentialBlockSize(
    minGridSize: *mut i32,
    blockSize: *mut i32,
    func: CUfunction,
    blockSizeToDynamicSMemSize: CUoccupancyB2DSize,
    dynamicSMemSize: usize,
    blockSizeLimit: i32,
) -> Result<(), CUresult> {
    let (to_shared, limit) = (blockSizeToDynamicSMemSize, blockSizeLimit);
    // SAFETY: the same contract.
    unsafe {
        cuOccupancyMaxPotentialBlockSizeWithFlags(
            minGridSize,
            blockSize,
            func,
            to_shared,
            dynamicSMemSize,
            limit,
            0,
        )
    }
}

/// Tries every multiple of a warp, largest first, and keeps the one with the most threads per multiprocessor.
pub(crate) unsafe fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    minGridSize: *mut i32,
    blockSize: *mut i32,
    func: CUfunction,
    blockSizeToDynamicSMemSize: CUoccupancyB2DSize,
    dynamicSMemSize: usize,
    blockSizeLimit: i32,
    flags: u32,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(minGridSize)?;
    wanted(blockSize)?;
    let device = session.device(context::current()?.device)?;
    let warp = device.attribute(CUdevice_attribute::WARP_SIZE)?.max(1);
    let processors = device.attribute(CUdevice_attribute::MULTIPROCESSOR_COUNT)?;
    let resident = device.attribute(CUdevice_attribute::MAX_THREADS_PER_MULTIPROCESSOR)?;
    let most = i32::try_from(module::function(func.0)?.threads_max).unwrap_or(i32::MAX);
    let limit = if blockSizeLimit > 0 { most.min(blockSizeLimit) } else { most };
    let sizes = (1..=limit / warp).rev().map(|warps| warps * warp);
    let (mut best_size, mut best_blocks) = (0, 0);
    for size in sizes {
        let shared = match blockSizeToDynamicSMemSize {
            // SAFETY: the program passed this function to be asked for block sizes.
            Some(of_size) => unsafe { of_size(size) },
            None => dynamicSMemSize,
        };
        let mut blocks = 0;
        // SAFETY: `blocks` is a place for the answer.
        unsafe {
            stubs::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                session,
                &mut blocks,
                func,
                size,
                shared,
                flags,
            )?;
        }
        if blocks * size > best_blocks * best_size {
            (best_size, best_blocks) = (size, blocks);
        }
        // No smaller block can do better than to fill the multiprocessor.
        if best_blocks * best_size >= resident {
            break;
        }
    }
    // SAFETY: neither is null, and both are the program's to be written.
    unsafe {
        out::write(blockSize, best_size)?;
        out::write(minGridSize, best_blocks * processors)
    }
}
