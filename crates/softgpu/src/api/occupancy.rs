//! Occupancy (CUDA Driver API: Occupancy).

use sluice_cuda::{
    CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE, CUfunction, CUlaunchAttributeID, CUlaunchConfig,
    CUoccupancyB2DSize, CUresult,
};

use crate::base::status::{Result, Status, call, put, require};
use crate::context::current;
use crate::device::machine::Shape;
use crate::module::library::function;
use crate::module::occupancy::{available_dynamic_shared, blocks_per_multiprocessor, potential_block_size};

fn blocks(handle: CUfunction, threads: i32, dynamic_shared: usize) -> Result<i32> {
    current()?;
    let threads = u32::try_from(threads).map_err(|_| Status::INVALID_VALUE)?;
    let dynamic_shared = u32::try_from(dynamic_shared).unwrap_or(u32::MAX);
    Ok(blocks_per_multiprocessor(&*function(handle)?, threads, dynamic_shared)? as i32)
}

pub(crate) unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    place: *mut i32,
    f: CUfunction,
    threads: i32,
    dynamic_shared: usize,
) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, blocks(f, threads, dynamic_shared)?) })
}

fn check_flags(flags: u32) -> Result<()> {
    if flags & !CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE == 0 { Ok(()) } else { Err(Status::INVALID_VALUE) }
}

pub(crate) unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    place: *mut i32,
    f: CUfunction,
    threads: i32,
    dynamic_shared: usize,
    flags: u32,
) -> CUresult {
    call(|| {
        check_flags(flags)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, blocks(f, threads, dynamic_shared)?) }
    })
}

pub(crate) unsafe extern "C" fn cuOccupancyAvailableDynamicSMemPerBlock(
    place: *mut usize,
    f: CUfunction,
    count: i32,
    threads: i32,
) -> CUresult {
    call(|| {
        current()?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, available_dynamic_shared(&*function(f)?, count, threads)?) }
    })
}

pub(crate) unsafe extern "C" fn cuOccupancyMaxPotentialBlockSize(
    grid: *mut i32,
    block: *mut i32,
    f: CUfunction,
    dynamic_of: CUoccupancyB2DSize,
    dynamic_shared: usize,
    limit: i32,
) -> CUresult {
    call(|| {
        current()?;
        let (blocks, threads) = potential_block_size(&*function(f)?, dynamic_of, dynamic_shared, limit)?;
        // SAFETY: output arguments by contract.
        unsafe { put(grid, blocks).and(put(block, threads)) }
    })
}

pub(crate) unsafe extern "C" fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    grid: *mut i32,
    block: *mut i32,
    f: CUfunction,
    dynamic_of: CUoccupancyB2DSize,
    dynamic_shared: usize,
    limit: i32,
    flags: u32,
) -> CUresult {
    if let Err(status) = check_flags(flags) {
        return status;
    }
    // SAFETY: passed on.
    unsafe { cuOccupancyMaxPotentialBlockSize(grid, block, f, dynamic_of, dynamic_shared, limit) }
}

pub(crate) unsafe extern "C" fn cuOccupancyMaxPotentialClusterSize(
    place: *mut i32,
    f: CUfunction,
    config: *const CUlaunchConfig,
) -> CUresult {
    call(|| {
        current()?;
        require(config)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, function(f)?.cluster_max() as i32) }
    })
}

pub(crate) unsafe extern "C" fn cuOccupancyMaxActiveClusters(
    place: *mut i32,
    f: CUfunction,
    config: *const CUlaunchConfig,
) -> CUresult {
    call(|| {
        require(config)?;
        // SAFETY: an input structure by contract.
        let config = unsafe { config.read_unaligned() };
        let threads = config.blockDimX.saturating_mul(config.blockDimY).saturating_mul(config.blockDimZ);
        let threads = i32::try_from(threads).map_err(|_| Status::INVALID_VALUE)?;
        let each = blocks(f, threads, config.sharedMemBytes as usize)?;
        let function = function(f)?;
        let shape = Shape {
            grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
            block: [config.blockDimX, config.blockDimY, config.blockDimZ],
            // SAFETY: the array of attributes is the caller's.
            cluster: unsafe { cluster(&config) }?,
            dynamic_shared: config.sharedMemBytes,
            cooperative: false,
        };
        let cluster = function.cluster(&shape)?.unwrap_or([1; 3]).iter().product::<u32>() as i32;
        // SAFETY: an output argument by contract.
        unsafe { put(place, each * function.limits().multiprocessors as i32 / cluster) }
    })
}

/// The cluster size that a launch states, in blocks.
///
/// # Safety
/// `attrs` points to `numAttrs` elements.
unsafe fn cluster(config: &CUlaunchConfig) -> Result<Option<[u32; 3]>> {
    let mut cluster = None;
    if config.numAttrs > 0 {
        require(config.attrs)?;
    }
    for index in 0..config.numAttrs as usize {
        // SAFETY: by this function's contract.
        let attribute = unsafe { config.attrs.add(index).read_unaligned() };
        if attribute.id == CUlaunchAttributeID::CLUSTER_DIMENSION {
            cluster = Some(attribute.value.dimension().map(|blocks| blocks.max(1)));
        }
    }
    Ok(cluster)
}
