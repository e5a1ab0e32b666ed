//! Arrays whose memory is mapped later (CUDA Driver API: Memory Management, Virtual Memory
//! Management).

use std::sync::Arc;

use sluice_cuda::{
    CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL, CUDA_ARRAY_MEMORY_REQUIREMENTS, CUDA_ARRAY_SPARSE_PROPERTIES,
    CUarray, CUarrayMapInfo, CUdevice, CUmipmappedArray, CUresult, CUstream,
};

use crate::base::status::{Result, Status, call, put, require};
use crate::device::device;
use crate::image::array;
use crate::memory::tiles::TiledArray;
use crate::submit::target;
use crate::submit::tile_maps;

/// How an array is mapped, which must not be a level of another.
fn of_array(handle: CUarray) -> Result<Arc<TiledArray>> {
    let array = array::array(handle)?;
    array.tiles.clone().filter(|_| !array.is_level).ok_or(Status::INVALID_VALUE)
}

fn of_mipmapped(handle: CUmipmappedArray) -> Result<Arc<TiledArray>> {
    array::mipmapped(handle)?.tiles.clone().ok_or(Status::INVALID_VALUE)
}

fn properties(array: &TiledArray) -> Result<CUDA_ARRAY_SPARSE_PROPERTIES> {
    let tiling = &array.tiling;
    if !tiling.desc.is_sparse() {
        return Err(Status::INVALID_VALUE);
    }
    let has_tail = tiling.tail_bytes > 0;
    Ok(CUDA_ARRAY_SPARSE_PROPERTIES {
        tileExtent: tiling.tile,
        miptailFirstLevel: if has_tail { tiling.tail_level } else { 0 },
        miptailSize: tiling.tail_bytes,
        flags: if tiling.has_single_tail { CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL } else { 0 },
        reserved: [0; 4],
    })
}

fn requirements(array: &TiledArray, ordinal: CUdevice) -> Result<CUDA_ARRAY_MEMORY_REQUIREMENTS> {
    let tiling = &array.tiling;
    device(ordinal)?;
    if !tiling.desc.is_deferred() {
        return Err(Status::INVALID_VALUE);
    }
    let (size, alignment) = (tiling.tail_bytes as usize, tiling.alignment as usize);
    Ok(CUDA_ARRAY_MEMORY_REQUIREMENTS { size, alignment, reserved: [0; 4] })
}

pub(crate) unsafe extern "C" fn cuArrayGetSparseProperties(
    place: *mut CUDA_ARRAY_SPARSE_PROPERTIES,
    handle: CUarray,
) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, properties(&*of_array(handle)?)?) })
}

pub(crate) unsafe extern "C" fn cuMipmappedArrayGetSparseProperties(
    place: *mut CUDA_ARRAY_SPARSE_PROPERTIES,
    handle: CUmipmappedArray,
) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, properties(&*of_mipmapped(handle)?)?) })
}

pub(crate) unsafe extern "C" fn cuArrayGetMemoryRequirements(
    place: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS,
    handle: CUarray,
    ordinal: CUdevice,
) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, requirements(&*of_array(handle)?, ordinal)?) })
}

pub(crate) unsafe extern "C" fn cuMipmappedArrayGetMemoryRequirements(
    place: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS,
    handle: CUmipmappedArray,
    ordinal: CUdevice,
) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, requirements(&*of_mipmapped(handle)?, ordinal)?) })
}

pub(crate) unsafe extern "C" fn cuMemMapArrayAsync(
    list: *mut CUarrayMapInfo,
    count: u32,
    stream: CUstream,
) -> CUresult {
    call(|| {
        let target = target(stream)?;
        if count == 0 {
            return Ok(());
        }
        require(list)?;
        // SAFETY: an array of `count` elements by contract.
        let list: Vec<_> = (0..count as usize).map(|at| unsafe { list.add(at).read_unaligned() }).collect();
        tile_maps::submit(&target, &list)
    })
}
