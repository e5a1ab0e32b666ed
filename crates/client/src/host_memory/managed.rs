//! Managed memory: one address for the program and the device, kept the same on both sides as a
//! [`mirror`].
//!
//! The device says that it has no concurrent access to managed memory, as GPUs before Pascal did:
//! then the program leaves such memory alone while work is under way. CUDA refuses to prefetch to
//! such a device, and advice for it; here both succeed, since they are hints, and programs for
//! Linux do not expect to have them refused. They are kept, so that a program reads back what it
//! has said.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;

use crate::abi::out;
use crate::context;
use crate::host_memory::mirror;
use crate::session::issue::list;
use crate::session::{self, Session};

static ADVICE: Mutex<ManagedAdvice> = Mutex::new(ManagedAdvice::new());

fn advice_given() -> MutexGuard<'static, ManagedAdvice> {
    ADVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A range of managed memory; refuses one that is not all managed.
fn managed(address: u64, bytes: usize) -> Result<Range<u64>, CUresult> {
    let fits = mirror::with_device_address(address, |it| {
        it.is_managed && bytes > 0 && bytes as u64 <= it.bytes - (address - it.device)
    });
    if fits == Some(true) { Ok(address..address + bytes as u64) } else { Err(CUresult::INVALID_VALUE) }
}

/// Refuses a place where managed memory cannot be: any but the host and the devices of the session.
fn check_is_place(session: &Session, location: CUmemLocation) -> Result<(), CUresult> {
    match location.kind {
        CUmemLocationType::HOST | CUmemLocationType::HOST_NUMA | CUmemLocationType::HOST_NUMA_CURRENT => {
            Ok(())
        }
        CUmemLocationType::DEVICE => session.device(location.id).map(drop),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

fn location(device: CUdevice) -> CUmemLocation {
    match device {
        CU_DEVICE_CPU => CUmemLocation { kind: CUmemLocationType::HOST, id: 0 },
        device => CUmemLocation { kind: CUmemLocationType::DEVICE, id: device },
    }
}

// The entry points. CUDA Driver API, sections "Memory Management" and "Unified Addressing".

pub(crate) unsafe fn cuMemAllocManaged(
    dptr: *mut CUdeviceptr,
    bytesize: usize,
    flags: u32,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let context = context::current()?;
    if dptr.is_null() || bytesize == 0 || !matches!(flags, CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST) {
        return Err(CUresult::INVALID_VALUE);
    }
    let address = mirror::allocate(session, &context, bytesize as u64, true)?;
    advice_given().forget(address..address + bytesize as u64);
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(dptr, address) }
}

/// What is attached to one stream may be used by the program while other streams work. Here it may
/// be used like that without: only bytes that have changed move.
pub(crate) unsafe fn cuStreamAttachMemAsync(
    hStream: CUstream,
    dptr: CUdeviceptr,
    length: usize,
    flags: u32,
) -> Result<(), CUresult> {
    use crate::session::issue::Issue;
    session::enter()?.find(hStream)?;
    if !matches!(flags, CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST | CU_MEM_ATTACH_SINGLE) {
        return Err(CUresult::INVALID_VALUE);
    }
    managed(dptr, length.max(1)).map(drop)
}

/// Results are on the host at the next wait anyway, and what the program has written on the device
/// with the next launch: there is nothing to hurry.
pub(crate) unsafe fn cuMemPrefetchAsync_v2(
    devPtr: CUdeviceptr,
    count: usize,
    location: CUmemLocation,
    flags: u32,
    hStream: CUstream,
) -> Result<(), CUresult> {
    use crate::session::issue::Issue;
    let session = session::enter()?;
    session.find(hStream)?;
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let range = managed(devPtr, count)?;
    check_is_place(session, location)?;
    advice_given().prefetched(range, location);
    Ok(())
}

pub(crate) unsafe fn cuMemPrefetchAsync(
    devPtr: CUdeviceptr,
    count: usize,
    dstDevice: CUdevice,
    hStream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: no pointers of this process.
    unsafe { cuMemPrefetchAsync_v2(devPtr, count, location(dstDevice), 0, hStream) }
}

pub(crate) unsafe fn cuMemAdvise_v2(
    devPtr: CUdeviceptr,
    count: usize,
    advice: CUmem_advise,
    location: CUmemLocation,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let range = managed(devPtr, count)?;
    let has_place = matches!(
        advice,
        CUmem_advise::SET_PREFERRED_LOCATION
            | CUmem_advise::SET_ACCESSED_BY
            | CUmem_advise::UNSET_ACCESSED_BY
    );
    if has_place {
        check_is_place(session, location)?;
    }
    advice_given().advise(range, advice, location)
}

pub(crate) unsafe fn cuMemAdvise(
    devPtr: CUdeviceptr,
    count: usize,
    advice: CUmem_advise,
    device: CUdevice,
) -> Result<(), CUresult> {
    // SAFETY: no pointers of this process.
    unsafe { cuMemAdvise_v2(devPtr, count, advice, location(device)) }
}

pub(crate) unsafe fn cuMemRangeGetAttribute(
    data: *mut c_void,
    dataSize: usize,
    attribute: CUmem_range_attribute,
    devPtr: CUdeviceptr,
    count: usize,
) -> Result<(), CUresult> {
    session::get()?;
    let range = managed(devPtr, count)?;
    if data.is_null() || !dataSize.is_multiple_of(size_of::<i32>()) {
        return Err(CUresult::INVALID_VALUE);
    }
    let words = advice_given().attribute(range, attribute, dataSize / size_of::<i32>())?;
    for (index, word) in words.into_iter().enumerate() {
        // SAFETY: the program passes `dataSize` bytes, which is as many words as asked for.
        unsafe { data.cast::<i32>().add(index).write_unaligned(word) };
    }
    Ok(())
}

pub(crate) unsafe fn cuMemRangeGetAttributes(
    data: *mut *mut c_void,
    dataSizes: *mut usize,
    attributes: *mut CUmem_range_attribute,
    numAttributes: usize,
    devPtr: CUdeviceptr,
    count: usize,
) -> Result<(), CUresult> {
    let many = numAttributes as u64;
    // SAFETY: the program passes three lists of one length.
    let (data, sizes, attributes) =
        unsafe { (list(data, many)?, list(dataSizes, many)?, list(attributes, many)?) };
    for ((place, size), attribute) in data.iter().zip(sizes).zip(attributes) {
        // SAFETY: each place has the size that goes with it.
        unsafe { cuMemRangeGetAttribute(*place, *size, *attribute, devPtr, count)? };
    }
    Ok(())
}

/// The ranges of a batch, each of them managed memory. What is discarded may be lost; here it is
/// kept.
///
/// # Safety
/// Both lists are null or have `count` items.
unsafe fn check_batch(
    dptrs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    flags: u64,
    stream: CUstream,
) -> Result<(&'static Session, Vec<Range<u64>>), CUresult> {
    use crate::session::issue::Issue;
    let session = session::enter()?;
    session.find(stream)?;
    if flags != 0 || count == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the same contract.
    let (dptrs, sizes) = unsafe { (list(dptrs, count as u64)?, list(sizes, count as u64)?) };
    let ranges = dptrs.iter().zip(sizes).map(|(address, bytes)| managed(*address, *bytes));
    Ok((session, ranges.collect::<Result<_, _>>()?))
}

pub(crate) unsafe fn cuMemDiscardBatchAsync(
    dptrs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    flags: u64,
    hStream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { check_batch(dptrs, sizes, count, flags, hStream).map(drop) }
}

/// Each location holds from the range that its index names on.
pub(crate) unsafe fn cuMemPrefetchBatchAsync(
    dptrs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    prefetchLocs: *mut CUmemLocation,
    prefetchLocIdxs: *mut usize,
    numPrefetchLocs: usize,
    flags: u64,
    hStream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    let (session, ranges) = unsafe { check_batch(dptrs, sizes, count, flags, hStream)? };
    let many = numPrefetchLocs as u64;
    // SAFETY: the program passes two lists of one length.
    let (locations, starts) = unsafe { (list(prefetchLocs, many)?, list(prefetchLocIdxs, many)?) };
    let in_order = starts.first() == Some(&0) && starts.is_sorted_by(|a, b| a < b);
    if !in_order || starts.last().is_some_and(|last| *last >= count) {
        return Err(CUresult::INVALID_VALUE);
    }
    locations.iter().try_for_each(|location| check_is_place(session, *location))?;
    let mut given = advice_given();
    for (index, range) in ranges.into_iter().enumerate() {
        let which = starts.partition_point(|start| *start <= index) - 1;
        given.prefetched(range, locations[which]);
    }
    Ok(())
}

pub(crate) unsafe fn cuMemDiscardAndPrefetchBatchAsync(
    dptrs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    prefetchLocs: *mut CUmemLocation,
    prefetchLocIdxs: *mut usize,
    numPrefetchLocs: usize,
    flags: u64,
    hStream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: the same contract; a discard by itself does nothing more.
    unsafe {
        cuMemPrefetchBatchAsync(
            dptrs,
            sizes,
            count,
            prefetchLocs,
            prefetchLocIdxs,
            numPrefetchLocs,
            flags,
            hStream,
        )
    }
}
