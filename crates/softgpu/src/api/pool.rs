//! Memory pools (CUDA Driver API: Stream Ordered Memory Allocator).

use std::ffi::c_void;

use sluice_cuda::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationType, CUmemLocation, CUmemLocationType,
    CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUresult, CUstream,
};

use crate::base::status::{Result, Status, call, put, require};
use crate::device::pool::{POOLS, Pool};
use crate::device::{Device, device, driver};
use crate::submit;
use crate::submit::frees;
use crate::work::engine;

use std::sync::Arc;

/// Memory from `pool` (the device's own if none is given), in the order of a stream.
///
/// # Safety
/// `place` is an output argument.
unsafe fn allocate(place: *mut CUdeviceptr, size: usize, pool: Option<Arc<Pool>>, s: CUstream) -> Result<()> {
    require(place)?;
    let target = submit::target(s)?;
    // An allocation in a capture would be a node of the graph with an address of its own; those do
    // not exist yet.
    if target.stream.capture().is_some() {
        return Err(Status::NOT_SUPPORTED);
    }
    let pool = pool.unwrap_or_else(|| Pool::of_device(target.context.device));
    // SAFETY: by this function's contract.
    unsafe { put(place, frees::allocate_from_pool(&target, &pool, size as u64)?) }
}

pub(crate) unsafe extern "C" fn cuMemAllocAsync(
    place: *mut CUdeviceptr,
    size: usize,
    s: CUstream,
) -> CUresult {
    // SAFETY: passed on.
    call(|| unsafe { allocate(place, size, None, s) })
}

pub(crate) unsafe extern "C" fn cuMemAllocFromPoolAsync(
    place: *mut CUdeviceptr,
    size: usize,
    pool: CUmemoryPool,
    s: CUstream,
) -> CUresult {
    // SAFETY: passed on.
    call(|| unsafe { allocate(place, size, Some(Pool::get(pool)?), s) })
}

pub(crate) unsafe extern "C" fn cuMemFreeAsync(address: CUdeviceptr, s: CUstream) -> CUresult {
    call(|| {
        let target = submit::target(s)?;
        if address == 0 {
            return Ok(());
        }
        frees::free_in_stream(&target, address)
    })
}

pub(crate) unsafe extern "C" fn cuMemPoolCreate(
    place: *mut CUmemoryPool,
    props: *const CUmemPoolProps,
) -> CUresult {
    call(|| {
        driver()?;
        require(place)?;
        require(props)?;
        // SAFETY: an input structure by contract.
        let props = unsafe { props.read_unaligned() };
        if props.allocType != CUmemAllocationType::PINNED || props.location.kind != CUmemLocationType::DEVICE
        {
            return Err(Status::INVALID_VALUE);
        }
        if props.handleTypes.0 != 0 {
            return Err(Status::NOT_SUPPORTED);
        }
        let pool = Pool::create(device(props.location.id)?, false, props.maxSize as u64);
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUmemoryPool(pool.handle)) }
    })
}

pub(crate) unsafe extern "C" fn cuMemPoolDestroy(pool: CUmemoryPool) -> CUresult {
    call(|| {
        driver()?;
        let pool = Pool::get(pool)?;
        if pool.is_default {
            return Err(Status::INVALID_VALUE);
        }
        POOLS.remove(pool.handle);
        engine::wait_until(|| pool.is_at_rest());
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuMemPoolGetAttribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    place: *mut c_void,
) -> CUresult {
    call(|| {
        driver()?;
        let (value, is_wide) = Pool::get(pool)?.get_attribute(attribute)?;
        if is_wide {
            // SAFETY: a 64-bit output argument for this attribute by contract.
            unsafe { put(place.cast::<u64>(), value) }
        } else {
            // SAFETY: a 32-bit output argument for this attribute by contract.
            unsafe { put(place.cast::<u32>(), value as u32) }
        }
    })
}

pub(crate) unsafe extern "C" fn cuMemPoolSetAttribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    place: *mut c_void,
) -> CUresult {
    call(|| {
        driver()?;
        require(place)?;
        let pool = Pool::get(pool)?;
        let value = if pool.is_wide(attribute)? {
            // SAFETY: a 64-bit input argument for this attribute by contract.
            unsafe { place.cast::<u64>().read_unaligned() }
        } else {
            // SAFETY: a 32-bit input argument for this attribute by contract.
            u64::from(unsafe { place.cast::<u32>().read_unaligned() })
        };
        pool.set_attribute(attribute, value)
    })
}

pub(crate) unsafe extern "C" fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) -> CUresult {
    call(|| {
        driver()?;
        let pool = Pool::get(pool)?;
        // The limit is on used and kept memory together.
        pool.trim((keep as u64).saturating_sub(pool.used.load(std::sync::atomic::Ordering::Relaxed)));
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuMemPoolSetAccess(
    pool: CUmemoryPool,
    map: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    call(|| {
        driver()?;
        let pool = Pool::get(pool)?;
        require(map)?;
        for index in 0..count {
            // SAFETY: an array of `count` elements by contract.
            let access = unsafe { map.add(index).read_unaligned() };
            if access.location.kind != CUmemLocationType::DEVICE {
                return Err(Status::INVALID_VALUE);
            }
            let may = match access.flags {
                CUmemAccess_flags::READWRITE => true,
                CUmemAccess_flags::NONE => false,
                _ => return Err(Status::INVALID_VALUE),
            };
            pool.set_access(device(access.location.id)?.ordinal, may)?;
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuMemPoolGetAccess(
    place: *mut CUmemAccess_flags,
    pool: CUmemoryPool,
    location: *mut CUmemLocation,
) -> CUresult {
    call(|| {
        driver()?;
        let pool = Pool::get(pool)?;
        require(location)?;
        // SAFETY: an input structure by contract.
        let location = unsafe { location.read_unaligned() };
        if location.kind != CUmemLocationType::DEVICE {
            return Err(Status::INVALID_VALUE);
        }
        let flags = match pool.is_reached_by(device(location.id)?.ordinal) {
            true => CUmemAccess_flags::READWRITE,
            false => CUmemAccess_flags::NONE,
        };
        // SAFETY: an output argument by contract.
        unsafe { put(place, flags) }
    })
}

/// The device that a location names; host memory has no pools here.
///
/// # Safety
/// `location` is null or an input structure.
unsafe fn device_at(location: *mut CUmemLocation, kind: CUmemAllocationType) -> Result<&'static Device> {
    require(location)?;
    // SAFETY: by this function's contract.
    let location = unsafe { location.read_unaligned() };
    if kind != CUmemAllocationType::PINNED || location.kind != CUmemLocationType::DEVICE {
        return Err(Status::NOT_SUPPORTED);
    }
    device(location.id)
}

pub(crate) unsafe extern "C" fn cuMemGetDefaultMemPool(
    place: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    kind: CUmemAllocationType,
) -> CUresult {
    call(|| {
        // SAFETY: an input structure by contract.
        let pool = Pool::default_of(unsafe { device_at(location, kind) }?);
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUmemoryPool(pool.handle)) }
    })
}

pub(crate) unsafe extern "C" fn cuMemGetMemPool(
    place: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    kind: CUmemAllocationType,
) -> CUresult {
    call(|| {
        // SAFETY: an input structure by contract.
        let pool = Pool::of_device(unsafe { device_at(location, kind) }?);
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUmemoryPool(pool.handle)) }
    })
}
