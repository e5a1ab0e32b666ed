//! Tensor maps (CUDA Driver API, Tensor Map Object Management): checked as the card's driver checks
//! them, and packed into words of which only the address is ever read again.

#![allow(non_snake_case)] // CUDA's names

use sluice_cuda::{CUdeviceptr, CUresult, CUtensorMap, guard};

/// Marks a map of this driver.
const TAG: u64 = 0x7465_6e73_6f72;
/// Where the address stands.
const ADDRESS: usize = 1;
/// Data types, from 8-bit integers to packed 6-bit floats.
const TYPES: u32 = 16;
/// Rank of a tiled map and of an im2col map.
const TILED: std::ops::RangeInclusive<u32> = 1..=5;
const IM2COL: std::ops::RangeInclusive<u32> = 3..=5;
/// Elements of a box in each dimension, and of a step in it.
const BOX_MAX: u32 = 256;
const STEP_MAX: u32 = 8;

/// What all forms have in common.
struct Tensor<'a> {
    data_type: u32,
    address: CUdeviceptr,
    dimensions: &'a [u64],
    strides: &'a [u64],
    steps: &'a [u32],
    modes: [u32; 4],
}

impl Tensor<'_> {
    fn encode(&self) -> Result<CUtensorMap, CUresult> {
        let [interleave, swizzle, promotion, fill] = self.modes;
        let fits = self.data_type < TYPES && interleave <= 2 && swizzle <= 6 && promotion <= 3 && fill <= 1;
        let placed = self.address != 0 && self.address.is_multiple_of(if interleave == 2 { 32 } else { 16 });
        let dimensions = self.dimensions.iter().all(|&size| size != 0 && size <= 1 << 32);
        let strides = self.strides.iter().all(|&bytes| bytes.is_multiple_of(16) && bytes < 1 << 40);
        let steps = self.steps.iter().all(|&step| step != 0 && step <= STEP_MAX);
        if !(fits && placed && dimensions && strides && steps) {
            return Err(CUresult::INVALID_VALUE);
        }
        let mut map = CUtensorMap { opaque: [0; 16] };
        map.opaque[0] = TAG << 16 | u64::from(self.data_type) << 8 | self.dimensions.len() as u64;
        map.opaque[ADDRESS] = self.address;
        map.opaque[2..2 + self.dimensions.len()].copy_from_slice(self.dimensions);
        map.opaque[7..7 + self.strides.len()].copy_from_slice(self.strides);
        Ok(map)
    }
}

/// # Safety
/// `start` is null or points to `count` values, which stay for `'a`.
unsafe fn list<'a, T>(start: *const T, count: u32) -> Result<&'a [T], CUresult> {
    match count {
        0 => Ok(&[]),
        _ if start.is_null() || !start.is_aligned() => Err(CUresult::INVALID_VALUE),
        // SAFETY: by this function's contract.
        _ => Ok(unsafe { std::slice::from_raw_parts(start, count as usize) }),
    }
}

fn store(place: *mut CUtensorMap, map: impl FnOnce() -> Result<CUtensorMap, CUresult>) -> CUresult {
    guard(|| match map() {
        _ if place.is_null() => CUresult::INVALID_VALUE,
        Ok(map) => {
            // SAFETY: an output argument by contract.
            unsafe { place.write_unaligned(map) };
            CUresult::SUCCESS
        }
        Err(error) => error,
    })
}

pub(crate) unsafe extern "C" fn cuTensorMapEncodeTiled(
    tensorMap: *mut CUtensorMap,
    data_type: u32,
    rank: u32,
    address: CUdeviceptr,
    dimensions: *const u64,
    strides: *const u64,
    sizes: *const u32,
    steps: *const u32,
    interleave: u32,
    swizzle: u32,
    promotion: u32,
    fill: u32,
) -> CUresult {
    store(tensorMap, || {
        if !TILED.contains(&rank) {
            return Err(CUresult::INVALID_VALUE);
        }
        // SAFETY: arrays by contract.
        let sizes = unsafe { list(sizes, rank) }?;
        if !sizes.iter().all(|&size| size != 0 && size <= BOX_MAX) {
            return Err(CUresult::INVALID_VALUE);
        }
        // SAFETY: arrays by contract.
        let (dimensions, strides, steps) =
            unsafe { (list(dimensions, rank)?, list(strides, rank - 1)?, list(steps, rank)?) };
        let modes = [interleave, swizzle, promotion, fill];
        Tensor { data_type, address, dimensions, strides, steps, modes }.encode()
    })
}

pub(crate) unsafe extern "C" fn cuTensorMapEncodeIm2col(
    tensorMap: *mut CUtensorMap,
    data_type: u32,
    rank: u32,
    address: CUdeviceptr,
    dimensions: *const u64,
    strides: *const u64,
    _lower: *const i32,
    _upper: *const i32,
    channels: u32,
    pixels: u32,
    steps: *const u32,
    interleave: u32,
    swizzle: u32,
    promotion: u32,
    fill: u32,
) -> CUresult {
    store(tensorMap, || {
        if !IM2COL.contains(&rank) || channels > BOX_MAX || pixels > 1024 {
            return Err(CUresult::INVALID_VALUE);
        }
        // SAFETY: arrays by contract.
        let (dimensions, strides, steps) =
            unsafe { (list(dimensions, rank)?, list(strides, rank - 1)?, list(steps, rank)?) };
        let modes = [interleave, swizzle, promotion, fill];
        Tensor { data_type, address, dimensions, strides, steps, modes }.encode()
    })
}

pub(crate) unsafe extern "C" fn cuTensorMapReplaceAddress(
    tensorMap: *mut CUtensorMap,
    address: CUdeviceptr,
) -> CUresult {
    store(tensorMap, || {
        if tensorMap.is_null() || address == 0 || !address.is_multiple_of(16) {
            return Err(CUresult::INVALID_VALUE);
        }
        // SAFETY: an argument that is read and written by contract.
        let mut map = unsafe { tensorMap.read_unaligned() };
        if map.opaque[0] >> 16 != TAG {
            return Err(CUresult::INVALID_VALUE);
        }
        map.opaque[ADDRESS] = address;
        Ok(map)
    })
}

/// On the GPUs of this driver the class makes no difference: any is accepted, and the small one is
/// in effect.
pub(crate) unsafe extern "C" fn cuTensorMapSetAllocationClass(
    tensorMap: *mut CUtensorMap,
    class: u32,
    class_out: *mut u32,
) -> CUresult {
    const SMALL: u32 = 1;
    const LARGE: u32 = 2;
    if !class_out.is_null() {
        // SAFETY: not null, and an output argument by contract.
        unsafe { class_out.write_unaligned(SMALL) };
    }
    // SAFETY: null, or an argument that is read by contract.
    let is_map = !tensorMap.is_null() && unsafe { tensorMap.read_unaligned() }.opaque[0] >> 16 == TAG;
    if is_map && class <= LARGE { CUresult::SUCCESS } else { CUresult::INVALID_VALUE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_checked_and_their_address_can_be_replaced() {
        let (dimensions, strides, sizes, steps) = ([64u64, 32], [128u64], [16u32, 8], [1u32, 1]);
        let mut map = CUtensorMap::default();
        let mut encode = |rank, address| {
            // SAFETY: arrays of two, which the ranks below do not exceed.
            unsafe {
                let (d, st) = (dimensions.as_ptr(), strides.as_ptr());
                let (si, e) = (sizes.as_ptr(), steps.as_ptr());
                cuTensorMapEncodeTiled(&mut map, 6, rank, address, d, st, si, e, 0, 0, 0, 0)
            }
        };
        assert_eq!(encode(2, 0x1000), CUresult::SUCCESS);
        assert_eq!(encode(0, 0x1000), CUresult::INVALID_VALUE);
        assert_eq!(encode(2, 0x1001), CUresult::INVALID_VALUE);
        // SAFETY: a local.
        assert_eq!(unsafe { cuTensorMapReplaceAddress(&mut map, 0x2000) }, CUresult::SUCCESS);
        assert_eq!(map.opaque[ADDRESS], 0x2000);
    }
}
