//! Tensor maps (CUDA Driver API, "Tensor Map Object Management"). Those of the im2col modes are not
//! there.

use sluice_cuda::{CUdeviceptr, CUresult, CUtensorMap};

use crate::base::status::{Result, Status, call, put, require};
use crate::image::tensor_map::{self, Tiled};

/// A list that a function is handed; `start` may be null for none.
///
/// # Safety
/// `start` is null or points to `count` values, which stay for `'a`.
unsafe fn list<'a, T>(start: *const T, count: u32) -> Result<&'a [T]> {
    match count {
        0 => Ok(&[]),
        _ if start.is_null() || !start.is_aligned() => Err(Status::INVALID_VALUE),
        // SAFETY: not null, aligned, and as long as it is said by this function's contract.
        _ => Ok(unsafe { std::slice::from_raw_parts(start, count as usize) }),
    }
}

pub(crate) unsafe extern "C" fn cuTensorMapEncodeTiled(
    map: *mut CUtensorMap,
    data_type: u32,
    rank: u32,
    address: CUdeviceptr,
    dimensions: *const u64,
    strides: *const u64,
    extents: *const u32,
    steps: *const u32,
    interleave: u32,
    swizzle: u32,
    promotion: u32,
    fill: u32,
) -> CUresult {
    call(|| {
        require(map)?;
        if !(1..=sluice_ir::tensor::RANK_MAX as u32).contains(&rank) {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: lists of this length by contract.
        let (dimensions, strides, extents, steps) = unsafe {
            (list(dimensions, rank)?, list(strides, rank - 1)?, list(extents, rank)?, list(steps, rank)?)
        };
        let tiled = Tiled {
            data_type,
            address,
            dimensions,
            strides,
            extents,
            steps,
            interleave,
            swizzle,
            promotion,
            fill,
        };
        // SAFETY: an output argument by contract.
        unsafe { put(map, tiled.encode()?) }
    })
}

pub(crate) unsafe extern "C" fn cuTensorMapReplaceAddress(
    map: *mut CUtensorMap,
    address: CUdeviceptr,
) -> CUresult {
    call(|| {
        require(map)?;
        // SAFETY: not null, and an argument that is read and written by contract.
        let replaced = tensor_map::replace_address(unsafe { map.read_unaligned() }, address)?;
        // SAFETY: as before.
        unsafe { put(map, replaced) }
    })
}
