//! The occupancy calculators that call back into the program; the node answers the plain question
//! for each size.

use sluice_cuda::*;
use sluice_wire::commands;

use crate::abi::call::outside;
use crate::abi::out;
use crate::generated::stubs;
use crate::launch::limits::Geometry;
use crate::session::issue::{About, Issue, wanted};
use crate::{context, launch, module, session};

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

/// Tries every multiple of a warp, largest first, and keeps the one with the most threads per
/// multiprocessor.
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
            Some(of_size) => outside(|| unsafe { of_size(size) }),
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

/// How many clusters of such a launch the device runs at once.
pub(crate) unsafe fn cuOccupancyMaxActiveClusters(
    numClusters: *mut i32,
    func: CUfunction,
    config: *const CUlaunchConfig,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(numClusters)?;
    // SAFETY: the program passes a configuration.
    let (Geometry { grid, block, shared_bytes: sharedMemBytes }, attrs) = unsafe { launch::planned(config)? };
    let about = About::Function(func);
    let func = session.find(func)?;
    let command = commands::cuOccupancyMaxActiveClusters { func, grid, block, sharedMemBytes, attrs };
    let answer = session.ask(about, &command, |answer| answer.numClusters)?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(numClusters, answer) }
}

/// The largest cluster with which such a launch can run, in blocks.
pub(crate) unsafe fn cuOccupancyMaxPotentialClusterSize(
    clusterSize: *mut i32,
    func: CUfunction,
    config: *const CUlaunchConfig,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(clusterSize)?;
    // SAFETY: the program passes a configuration.
    let (Geometry { grid, block, shared_bytes: sharedMemBytes }, attrs) = unsafe { launch::planned(config)? };
    let about = About::Function(func);
    let func = session.find(func)?;
    let command = commands::cuOccupancyMaxPotentialClusterSize { func, grid, block, sharedMemBytes, attrs };
    let answer = session.ask(about, &command, |answer| answer.clusterSize)?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(clusterSize, answer) }
}
