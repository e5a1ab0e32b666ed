//! Device memory of every kind: plain, pitched, from pools and in the order of streams, and mapped
//! piece by piece. The driver writes to it and looks at it, so that an address here and one there
//! are the same memory, all of it.

use std::ffi::c_void;

use sluice_cuda::*;

use crate::memory::{fill, look, same, synchronize};
use crate::program::{Program, ok};

pub(crate) const FUNCTIONS: crate::Calls = &[
    ("cuMemAlloc_v2", plain),
    ("cuMemFree_v2", plain),
    ("cuMemAllocPitch_v2", pitched),
    ("cuMemAllocAsync", |p| ordered(p, false)),
    ("cuMemFreeAsync", |p| ordered(p, false)),
    ("cuMemAllocFromPoolAsync", |p| ordered(p, true)),
    ("cuMemGetAllocationGranularity", mapped),
    ("cuMemCreate", mapped),
    ("cuMemMap", mapped),
    ("cuMemSetAccess", mapped),
    ("cuMemUnmap", mapped),
    ("cuMemRelease", mapped),
];

/// Pieces of mapped memory, at most.
const PIECES_MAX: u64 = 4;

/// Written by the driver, read here; written here in some place, and seen by the driver.
fn exchange(p: &mut Program, region: usize, address: CUdeviceptr, count: usize) {
    let mut bytes = fill(p, region, address, count);
    let part = p.within(1, count as u64) as usize;
    let at = p.within(0, (count - part) as u64) as usize;
    let place = address + at as u64;
    let (mut read, written, stream) = (vec![0_u8; part], p.bytes(part), p.stream_of(region));
    let (to, from): (*mut c_void, *const c_void) = (read.as_mut_ptr().cast(), written.as_ptr().cast());
    // SAFETY: both sides have as many bytes, and copies of memory that is not pinned are over when
    // they return.
    unsafe {
        ok(p.cuda.cuMemcpyDtoHAsync_v2.expect("exported")(to, place, part, stream));
        ok(p.cuda.cuMemcpyHtoDAsync_v2.expect("exported")(place, from, part, stream));
    }
    same(&read, &bytes[at..at + part], "memory of its own");
    p.region(region).down(part);
    p.region(region).up(part);
    bytes[at..at + part].copy_from_slice(&written);
    look(p, region, address, &bytes);
}

/// Allocating and freeing hold no stream up, so that a few are enough.
fn is_due(p: &mut Program) -> bool {
    p.once_in(4)
}

fn plain(p: &mut Program) {
    if !is_due(p) {
        return;
    }
    let (region, count, mut address) = (p.pick_region(true), p.size().max(8), 0);
    // SAFETY: a place for the address.
    ok(unsafe { p.cuda.cuMemAlloc_v2.expect("exported")(&mut address, count) });
    exchange(p, region, address, count);
    synchronize(p, region);
    // SAFETY: nobody uses it any more.
    ok(unsafe { p.cuda.cuMemFree_v2.expect("exported")(address) });
}

fn pitched(p: &mut Program) {
    if !is_due(p) {
        return;
    }
    let (region, mut address, mut pitch) = (p.pick_region(true), 0, 0);
    let (width, height) = (p.within(1, 5_000) as usize, p.within(1, 40) as usize);
    let element = 4 << p.within(0, 2);
    // SAFETY: places for address and pitch.
    ok(unsafe {
        p.cuda.cuMemAllocPitch_v2.expect("exported")(&mut address, &mut pitch, width, height, element)
    });
    assert!(pitch >= width, "rows of {width} bytes, {pitch} apart");
    exchange(p, region, address, pitch * height);
    synchronize(p, region);
    // SAFETY: nobody uses it any more.
    ok(unsafe { p.cuda.cuMemFree_v2.expect("exported")(address) });
}

/// Allocated and freed in a stream, which is not waited for.
fn ordered(p: &mut Program, from_pool: bool) {
    if !is_due(p) {
        return;
    }
    let (region, count, mut address) = (p.pick_region(true), p.size().max(8), 0);
    let (stream, mut pool) = (p.stream_of(region), CUmemoryPool::NULL);
    let location = CUmemLocation { kind: CUmemLocationType::DEVICE, id: 0 };
    let properties = CUmemPoolProps {
        allocType: CUmemAllocationType::PINNED,
        handleTypes: CUmemAllocationHandleType::NONE,
        location,
        win32SecurityAttributes: std::ptr::null_mut(),
        maxSize: 0,
        usage: 0,
        gpuDirectRDMACapable: 0,
        reserved: [0; 53],
    };
    // SAFETY: properties that outlive the call, and places.
    unsafe {
        if from_pool {
            ok(p.cuda.cuMemPoolCreate.expect("exported")(&mut pool, &properties));
            let allocate = p.cuda.cuMemAllocFromPoolAsync.expect("exported");
            ok(allocate(&mut address, count, pool, stream));
        } else {
            ok(p.cuda.cuMemAllocAsync.expect("exported")(&mut address, count, stream));
        }
    }
    exchange(p, region, address, count);
    // SAFETY: what comes later in the stream does not use it; a pool may go before its memory does.
    unsafe {
        ok(p.cuda.cuMemFreeAsync.expect("exported")(address, stream));
        if from_pool {
            ok(p.cuda.cuMemPoolDestroy.expect("exported")(pool));
        }
    }
}

/// A range of addresses behind which lie several pieces of memory, each made and mapped in any
/// order.
fn mapped(p: &mut Program) {
    if !is_due(p) {
        return;
    }
    let region = p.pick_region(true);
    let location = CUmemLocation { kind: CUmemLocationType::DEVICE, id: 0 };
    // SAFETY: plain numbers and null pointers, for all of which zero is a value.
    let mut properties: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    (properties.kind, properties.location) = (CUmemAllocationType::PINNED, location);
    let mut granularity = 0;
    // SAFETY: properties, and a place.
    ok(unsafe {
        let ask = p.cuda.cuMemGetAllocationGranularity.expect("exported");
        ask(&mut granularity, &properties, CUmemAllocationGranularity_flags(0))
    });
    let sizes: Vec<usize> =
        (0..p.within(1, PIECES_MAX)).map(|_| p.within(1, 2) as usize * granularity).collect();
    let (whole, mut base) = (sizes.iter().sum::<usize>(), 0);
    // SAFETY: a place.
    ok(unsafe { p.cuda.cuMemAddressReserve.expect("exported")(&mut base, whole, 0, 0, 0) });
    let mut places: Vec<(u64, usize)> = Vec::new();
    for size in sizes {
        let start = places.last().map_or(base, |(start, size)| start + *size as u64);
        places.push((start, size));
    }
    let first = p.within(0, places.len() as u64 - 1) as usize;
    places.rotate_left(first);
    let access = CUmemAccessDesc { location, flags: CUmemAccess_flags::READWRITE };
    for &(start, size) in &places {
        let mut piece = CUmemGenericAllocationHandle::NULL;
        // SAFETY: properties and a place; the range is reserved and has nothing there. A piece
        // stays for as long as it is mapped.
        unsafe {
            ok(p.cuda.cuMemCreate.expect("exported")(&mut piece, size, &properties, 0));
            ok(p.cuda.cuMemMap.expect("exported")(start, size, 0, piece, 0));
            ok(p.cuda.cuMemRelease.expect("exported")(piece));
            ok(p.cuda.cuMemSetAccess.expect("exported")(start, size, &access, 1));
        }
    }
    // From somewhere in the first piece to somewhere in the last.
    let at = p.within(0, granularity as u64 / 16 - 1) * 8;
    let count = whole - at as usize - p.within(0, granularity as u64 / 2 - 1) as usize;
    exchange(p, region, base + at, count);
    synchronize(p, region);
    for (start, size) in places {
        // SAFETY: nobody uses it any more.
        ok(unsafe { p.cuda.cuMemUnmap.expect("exported")(start, size) });
    }
    // SAFETY: as above.
    ok(unsafe { p.cuda.cuMemAddressFree.expect("exported")(base, whole) });
}
