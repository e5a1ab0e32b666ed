//! Memory by address (CUDA Driver API: Memory Management, Unified Addressing).

use std::ffi::c_void;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::{
    CU_DEVICE_CPU, CU_MEM_ATTACH_GLOBAL, CU_MEM_ATTACH_HOST, CU_MEMHOSTALLOC_DEVICEMAP, CUdevice,
    CUdeviceptr, CUmem_advise, CUmem_range_attribute, CUmemLocation, CUmemLocationType, CUmemorytype,
    CUpointer_attribute as P, CUresult, CUstream, ManagedAdvice,
};

use crate::base::status::{Result, Status, call, put, put_optional, require};
use crate::context::{current, current_or_none};
use crate::device::address_space;
use crate::device::{device, driver};
use crate::memory;
use crate::memory::allocation::{self, Allocation, Kind};
use crate::memory::copy;
use crate::submit;
use crate::submit::frees;
use crate::work::op::Op;

pub(crate) unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    call(|| {
        let (free_bytes, total_bytes) = memory::info(current()?.device);
        // SAFETY: output arguments by contract.
        unsafe { put_optional(free, free_bytes as usize) };
        // SAFETY: as above.
        unsafe { put_optional(total, total_bytes as usize) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuMemAlloc_v2(place: *mut CUdeviceptr, size: usize) -> CUresult {
    call(|| {
        require(place)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, memory::allocate(&*current()?, size as u64)?) }
    })
}

/// Rows are a multiple of this apart, which suits every element size.
const PITCH: usize = 512;

pub(crate) unsafe extern "C" fn cuMemAllocPitch_v2(
    place: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: u32,
) -> CUresult {
    call(|| {
        require(place)?;
        require(pitch)?;
        if !matches!(element, 4 | 8 | 16) {
            return Err(Status::INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(PITCH).ok_or(Status::INVALID_VALUE)?;
        let size = row.checked_mul(height).ok_or(Status::INVALID_VALUE)?;
        // SAFETY: output arguments by contract.
        unsafe { put(place, memory::allocate(&*current()?, size as u64)?).and(put(pitch, row)) }
    })
}

pub(crate) unsafe extern "C" fn cuMemFree_v2(address: CUdeviceptr) -> CUresult {
    call(|| {
        let context = current()?;
        if address == 0 { Ok(()) } else { frees::free(&context, address) }
    })
}

pub(crate) unsafe extern "C" fn cuMemAllocManaged(
    place: *mut CUdeviceptr,
    size: usize,
    flags: u32,
) -> CUresult {
    call(|| {
        require(place)?;
        if !matches!(flags, CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST) {
            return Err(Status::INVALID_VALUE);
        }
        let address = memory::allocate_managed(&*current()?, size as u64)?;
        advice_given().forget(address..address + size as u64);
        // SAFETY: an output argument by contract.
        unsafe { put(place, address) }
    })
}

/// A range of managed memory; refuses one that is not all managed.
fn managed(address: CUdeviceptr, size: usize) -> Result<Range<u64>> {
    let found = allocation::find(address).filter(|a| a.kind.is_managed()).ok_or(Status::INVALID_VALUE)?;
    let inside = size as u64 <= found.size - (address - found.base);
    if size > 0 && inside { Ok(address..address + size as u64) } else { Err(Status::INVALID_VALUE) }
}

/// Host and device memory are one, so that advice changes nothing: it is read back.
static ADVICE: Mutex<ManagedAdvice> = Mutex::new(ManagedAdvice::new());

fn advice_given() -> MutexGuard<'static, ManagedAdvice> {
    ADVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The place that the older forms of a function call a device.
fn location(device: CUdevice) -> CUmemLocation {
    match device {
        CU_DEVICE_CPU => CUmemLocation { kind: CUmemLocationType::HOST, id: 0 },
        id => CUmemLocation { kind: CUmemLocationType::DEVICE, id },
    }
}

/// Refuses a place that does not exist.
fn check_is_place(location: CUmemLocation) -> Result<()> {
    match location.kind {
        CUmemLocationType::HOST | CUmemLocationType::HOST_NUMA | CUmemLocationType::HOST_NUMA_CURRENT => {
            Ok(())
        }
        CUmemLocationType::DEVICE => device(location.id).map(drop),
        _ => Err(Status::INVALID_VALUE),
    }
}

pub(crate) unsafe extern "C" fn cuMemPrefetchAsync(
    address: CUdeviceptr,
    size: usize,
    to: CUdevice,
    s: CUstream,
) -> CUresult {
    // SAFETY: passed on.
    unsafe { cuMemPrefetchAsync_v2(address, size, location(to), 0, s) }
}

pub(crate) unsafe extern "C" fn cuMemPrefetchAsync_v2(
    address: CUdeviceptr,
    size: usize,
    to: CUmemLocation,
    flags: u32,
    s: CUstream,
) -> CUresult {
    call(|| {
        let target = submit::target(s)?;
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let range = managed(address, size)?;
        check_is_place(to)?;
        // Host and device memory are one: it is where it is wanted already.
        target.submit(Op::Empty)?;
        advice_given().prefetched(range, to);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuMemAdvise(
    address: CUdeviceptr,
    size: usize,
    advice: CUmem_advise,
    device: CUdevice,
) -> CUresult {
    // SAFETY: passed on.
    unsafe { cuMemAdvise_v2(address, size, advice, location(device)) }
}

pub(crate) unsafe extern "C" fn cuMemAdvise_v2(
    address: CUdeviceptr,
    size: usize,
    advice: CUmem_advise,
    location: CUmemLocation,
) -> CUresult {
    call(|| {
        current()?;
        let range = managed(address, size)?;
        let has_place = matches!(
            advice,
            CUmem_advise::SET_PREFERRED_LOCATION
                | CUmem_advise::SET_ACCESSED_BY
                | CUmem_advise::UNSET_ACCESSED_BY
        );
        if has_place {
            check_is_place(location)?;
        }
        advice_given().advise(range, advice, location)
    })
}

pub(crate) unsafe extern "C" fn cuMemRangeGetAttribute(
    data: *mut c_void,
    bytes: usize,
    attribute: CUmem_range_attribute,
    address: CUdeviceptr,
    size: usize,
) -> CUresult {
    call(|| {
        driver()?;
        let range = managed(address, size)?;
        require(data)?;
        if !bytes.is_multiple_of(size_of::<i32>()) {
            return Err(Status::INVALID_VALUE);
        }
        let words = advice_given().attribute(range, attribute, bytes / size_of::<i32>())?;
        for (index, word) in words.into_iter().enumerate() {
            // SAFETY: an output argument of `bytes` bytes by contract, and as many words as asked
            // for.
            unsafe { put(data.cast::<i32>().add(index), word) }?;
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuMemRangeGetAttributes(
    data: *mut *mut c_void,
    sizes: *mut usize,
    attributes: *mut CUmem_range_attribute,
    count: usize,
    address: CUdeviceptr,
    size: usize,
) -> CUresult {
    if data.is_null() || sizes.is_null() || attributes.is_null() {
        return Status::INVALID_VALUE;
    }
    for index in 0..count {
        // SAFETY: three arrays of `count` elements by contract.
        let result = unsafe {
            let (place, bytes) = (data.add(index).read(), sizes.add(index).read());
            cuMemRangeGetAttribute(place, bytes, attributes.add(index).read(), address, size)
        };
        if !result.is_success() {
            return result;
        }
    }
    Status::SUCCESS
}

pub(crate) unsafe extern "C" fn cuMemGetAddressRange_v2(
    base: *mut CUdeviceptr,
    size: *mut usize,
    address: CUdeviceptr,
) -> CUresult {
    call(|| {
        current()?;
        let found = allocation::find(address).ok_or(Status::NOT_FOUND)?;
        // SAFETY: output arguments by contract.
        unsafe { put_optional(base, found.base) };
        // SAFETY: as above.
        unsafe { put_optional(size, found.size as usize) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuMemAllocHost_v2(place: *mut *mut c_void, size: usize) -> CUresult {
    // SAFETY: passed on.
    unsafe { cuMemHostAlloc(place, size, 0) }
}

pub(crate) unsafe extern "C" fn cuMemHostAlloc(place: *mut *mut c_void, size: usize, flags: u32) -> CUresult {
    call(|| {
        require(place)?;
        if flags & !7 != 0 {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: an output argument by contract.
        unsafe { put(place, memory::allocate_host(&*current()?, size as u64, flags)? as *mut c_void) }
    })
}

pub(crate) unsafe extern "C" fn cuMemFreeHost(memory: *mut c_void) -> CUresult {
    call(|| {
        current()?;
        if memory.is_null() { Ok(()) } else { frees::free_host(memory as u64) }
    })
}

pub(crate) unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    place: *mut CUdeviceptr,
    memory: *mut c_void,
    flags: u32,
) -> CUresult {
    call(|| {
        current()?;
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        // Registered memory lies outside the device address range, so no kernel can reach it.
        let found = allocation::find(memory as u64).filter(|a| matches!(a.kind, Kind::Host(_)));
        found.ok_or(Status::INVALID_VALUE)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, memory as CUdeviceptr) }
    })
}

pub(crate) unsafe extern "C" fn cuMemHostGetFlags(place: *mut u32, memory: *mut c_void) -> CUresult {
    call(|| {
        current()?;
        let registered = || copy::registration(memory as u64).map(|(_, _, flags)| flags);
        let flags = match allocation::find(memory as u64).map(|a| a.kind) {
            // With unified addresses everything is mapped, whatever was asked for.
            Some(Kind::Host(flags)) => Some(flags | CU_MEMHOSTALLOC_DEVICEMAP),
            _ => registered(),
        };
        // SAFETY: an output argument by contract.
        unsafe { put(place, flags.ok_or(Status::INVALID_VALUE)?) }
    })
}

pub(crate) unsafe extern "C" fn cuMemHostRegister_v2(
    memory: *mut c_void,
    size: usize,
    flags: u32,
) -> CUresult {
    call(|| {
        current()?;
        if flags & !15 != 0 || address_space::contains(memory as u64) {
            return Err(Status::INVALID_VALUE);
        }
        copy::register(memory as u64, size as u64, flags)
    })
}

pub(crate) unsafe extern "C" fn cuMemHostUnregister(memory: *mut c_void) -> CUresult {
    call(|| {
        current()?;
        if memory.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        copy::unregister(memory as u64)
    })
}

pub(crate) unsafe extern "C" fn cuPointerGetAttribute(
    place: *mut c_void,
    attribute: P,
    address: CUdeviceptr,
) -> CUresult {
    call(|| {
        driver()?;
        require(place)?;
        let found = allocation::find(address);
        // SAFETY: an output argument for this attribute by contract.
        unsafe { put_attribute(place, attribute, address, found.as_ref()) }
    })
}

pub(crate) unsafe extern "C" fn cuPointerGetAttributes(
    count: u32,
    attributes: *mut P,
    places: *mut *mut c_void,
    address: CUdeviceptr,
) -> CUresult {
    call(|| {
        driver()?;
        require(attributes)?;
        require(places)?;
        let found = allocation::find(address);
        for index in 0..count as usize {
            // SAFETY: both arrays have `count` elements by contract.
            let (attribute, place) = unsafe { (attributes.add(index).read(), places.add(index).read()) };
            require(place)?;
            attribute.name().ok_or(Status::INVALID_VALUE)?;
            // What an unknown address has no answer for reads as zero (CUDA Driver API,
            // `cuPointerGetAttributes`). SAFETY: an output argument for this attribute by contract.
            match unsafe { put_attribute(place, attribute, address, found.as_ref()) } {
                // SAFETY: as above.
                Err(_) if is_known(attribute) => unsafe { put_zero(place, attribute) }?,
                outcome => outcome?,
            }
        }
        Ok(())
    })
}

fn is_known(attribute: P) -> bool {
    attribute.name().is_some() && attribute != P::P2P_TOKENS
}

/// Width of an attribute's value in bytes.
fn width(attribute: P) -> usize {
    match attribute {
        P::CONTEXT
        | P::DEVICE_POINTER
        | P::HOST_POINTER
        | P::BUFFER_ID
        | P::RANGE_START_ADDR
        | P::RANGE_SIZE
        | P::ALLOWED_HANDLE_TYPES
        | P::MEMPOOL_HANDLE
        | P::MAPPING_BASE_ADDR
        | P::MAPPING_SIZE
        | P::MEMORY_BLOCK_ID => 8,
        _ => 4,
    }
}

/// # Safety
/// `place` has room for the attribute's value.
unsafe fn put_zero(place: *mut c_void, attribute: P) -> Result<()> {
    // SAFETY: by this function's contract.
    unsafe { std::ptr::write_bytes(place.cast::<u8>(), 0, width(attribute)) };
    if attribute == P::DEVICE_ORDINAL {
        // "No device" is a negative number.
        // SAFETY: by this function's contract.
        unsafe { put(place.cast::<i32>(), -2) }?;
    }
    Ok(())
}

/// # Safety
/// `place` has room for the attribute's value.
unsafe fn put_attribute(
    place: *mut c_void,
    attribute: P,
    address: u64,
    found: Option<&Allocation>,
) -> Result<()> {
    let value = attribute_of(attribute, address, found)?;
    if width(attribute) == 8 {
        // SAFETY: by this function's contract.
        unsafe { put(place.cast::<u64>(), value) }
    } else {
        // SAFETY: by this function's contract.
        unsafe { put(place.cast::<u32>(), value as u32) }
    }
}

fn attribute_of(attribute: P, address: u64, found: Option<&Allocation>) -> Result<u64> {
    let Some(found) = found else { return attribute_of_registered(attribute, address) };
    let on_host = matches!(found.kind, Kind::Host(_));
    let kind = if on_host { CUmemorytype::HOST } else { CUmemorytype::DEVICE };
    Ok(match attribute {
        P::CONTEXT => found.context as u64,
        P::MEMORY_TYPE => u64::from(kind.0),
        P::DEVICE_POINTER => address,
        P::HOST_POINTER if on_host || found.kind.is_managed() => address,
        P::BUFFER_ID | P::MEMORY_BLOCK_ID => found.id,
        P::IS_MANAGED => u64::from(found.kind.is_managed()),
        P::DEVICE_ORDINAL => found.device as u64,
        P::RANGE_START_ADDR => found.base,
        P::RANGE_SIZE => found.size,
        P::MAPPED => 1,
        P::MEMPOOL_HANDLE => match found.kind {
            Kind::Pool(pool) => pool as u64,
            _ => 0,
        },
        P::SYNC_MEMOPS
        | P::IS_LEGACY_CUDA_IPC_CAPABLE
        | P::ALLOWED_HANDLE_TYPES
        | P::IS_GPU_DIRECT_RDMA_CAPABLE
        | P::IS_HW_DECOMPRESS_CAPABLE => 0,
        // Readable and writable.
        P::ACCESS_FLAGS => 3,
        P::MAPPING_BASE_ADDR => found.base,
        P::MAPPING_SIZE => found.size,
        _ => return Err(Status::INVALID_VALUE),
    })
}

fn attribute_of_registered(attribute: P, address: u64) -> Result<u64> {
    let (start, len, _) = copy::registration(address).ok_or(Status::INVALID_VALUE)?;
    Ok(match attribute {
        P::CONTEXT => current_or_none()?.map_or(0, |context| context.handle as u64),
        P::MEMORY_TYPE => u64::from(CUmemorytype::HOST.0),
        P::HOST_POINTER => address,
        P::IS_MANAGED | P::MAPPED => 0,
        P::DEVICE_ORDINAL => current_or_none()?.map_or(0, |context| context.device.ordinal as u64),
        P::RANGE_START_ADDR => start,
        P::RANGE_SIZE => len,
        _ => return Err(Status::INVALID_VALUE),
    })
}
