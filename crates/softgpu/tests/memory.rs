//! Memory as programs see it.

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use sluice_cuda::*;

mod common;
use common::*;

const CHUNK: usize = 2 << 20;

fn free_bytes() -> usize {
    let (mut free, mut total) = (0, 0);
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    assert_eq!(total as u64, MEMORY);
    free
}

/// The device whose memory is counted: tests of one file run side by side, and no other uses this
/// one.
const COUNTED: CUdevice = 2;

#[test]
fn memory_is_limited_accounted_and_given_back() {
    let _context = Context::new(COUNTED);
    let before = free_bytes();
    let block = allocate(before / 2);
    let mut other = 0;
    assert_eq!(result!(cuMemAlloc_v2(&mut other, before)), CUresult::OUT_OF_MEMORY);
    assert_eq!(result!(cuMemAlloc_v2(&mut other, 0)), CUresult::INVALID_VALUE);
    assert_eq!(result!(cuMemAlloc_v2(null_mut(), 1)), CUresult::INVALID_VALUE);
    assert!(free_bytes() <= before / 2);
    assert_eq!(result!(cuMemFree_v2(block + 256)), CUresult::INVALID_VALUE);
    ok!(cuMemFree_v2(block));
    assert_eq!(result!(cuMemFree_v2(block)), CUresult::INVALID_VALUE);
    assert_eq!(free_bytes(), before);
    ok!(cuMemFree_v2(0));

    mapped_twice_is_the_same_memory(before);
    host_memory_is_mapped_for_both_and_not_the_cards(before);
    pools_count_what_is_used();
    assert_eq!(free_bytes(), before);
    a_pool_ends_when_streams_have_come_to_its_frees();
    assert_eq!(free_bytes(), before);
}

const ON_CARD: CUmemLocation = CUmemLocation { kind: CUmemLocationType::DEVICE, id: COUNTED };

fn properties(location: CUmemLocation) -> CUmemAllocationProp {
    CUmemAllocationProp {
        kind: CUmemAllocationType::PINNED,
        requestedHandleTypes: CUmemAllocationHandleType(0),
        location,
        win32HandleMetaData: null_mut(),
        compressionType: 0,
        gpuDirectRDMACapable: 0,
        usage: 0,
        reserved: [0; 4],
    }
}

fn host_memory_is_mapped_for_both_and_not_the_cards(before: usize) {
    let on_host = CUmemLocation { kind: CUmemLocationType::HOST_NUMA, id: 0 };
    let [both, cards] = [on_host, ON_CARD].map(properties);
    let access = |location| CUmemAccessDesc { location, flags: CUmemAccess_flags::READWRITE };
    let shared = CUmemAllocationProp { requestedHandleTypes: CUmemAllocationHandleType(1), ..both };
    let mut handle = CUmemGenericAllocationHandle::NULL;
    assert_eq!(result!(cuMemCreate(&mut handle, CHUNK, &shared, 0)), CUresult::NOT_SUPPORTED);
    let nowhere = properties(CUmemLocation { id: 1, ..on_host });
    assert_eq!(result!(cuMemCreate(&mut handle, CHUNK, &nowhere, 0)), CUresult::INVALID_VALUE);

    let mut range = 0;
    ok!(cuMemAddressReserve(&mut range, 2 * CHUNK, 0, 0, 0));
    ok!(cuMemCreate(&mut handle, CHUNK, &both, 0));
    assert_eq!(free_bytes(), before);
    ok!(cuMemMap(range, CHUNK, 0, handle, 0));
    for user in [ON_CARD, on_host] {
        ok!(cuMemSetAccess(range, CHUNK, &access(user), 1));
    }
    let mut found = cards;
    ok!(cuMemGetAllocationPropertiesFromHandle(&mut found, handle));
    assert_eq!(found.location, on_host);
    ok!(cuMemsetD8_v2(range + 5, 9, 1));
    ok!(cuCtxSynchronize());
    let here = range as *mut u8;
    // SAFETY: mapped for this process too, and nobody else uses it.
    unsafe {
        assert_eq!(here.add(5).read_volatile(), 9);
        here.add(6).write_volatile(10);
    }
    assert_eq!(read::<u8>(range + 4, 4), [0, 9, 10, 0]);
    ok!(cuMemUnmap(range, CHUNK));
    ok!(cuMemRelease(handle));

    ok!(cuMemCreate(&mut handle, CHUNK, &cards, 0));
    ok!(cuMemMap(range, CHUNK, 0, handle, 0));
    let refused = result!(cuMemSetAccess(range, CHUNK, &access(on_host), 1));
    assert_eq!(refused, CUresult::INVALID_VALUE, "the card's own");
    ok!(cuMemUnmap(range, CHUNK));
    ok!(cuMemRelease(handle));
    ok!(cuMemAddressFree(range, 2 * CHUNK));
    assert_eq!(free_bytes(), before);
}

fn mapped_twice_is_the_same_memory(before: usize) {
    let (location, properties) = (ON_CARD, properties(ON_CARD));
    let (mut range, mut physical) = (0, CUmemGenericAllocationHandle::NULL);
    ok!(cuMemAddressReserve(&mut range, 4 * CHUNK, 0, 0, 0));
    assert_eq!(result!(cuMemCreate(&mut physical, CHUNK + 1, &properties, 0)), CUresult::INVALID_VALUE);
    ok!(cuMemCreate(&mut physical, CHUNK, &properties, 0));
    assert_eq!(free_bytes(), before - CHUNK);
    let (low, high) = (range, range + 2 * CHUNK as u64);
    let access = CUmemAccessDesc { location, flags: CUmemAccess_flags::READWRITE };
    ok!(cuMemMap(high, CHUNK, 0, physical, 0));
    ok!(cuMemSetAccess(high, CHUNK, &access, 1));
    ok!(cuMemsetD8_v2(high + 1000, 9, 1));
    ok!(cuMemUnmap(high, CHUNK));
    ok!(cuMemMap(low, CHUNK, 0, physical, 0));
    ok!(cuMemSetAccess(low, CHUNK, &access, 1));
    assert_eq!(read::<u8>(low + 999, 3), [0, 9, 0], "contents outlive a mapping");
    ok!(cuMemMap(high, CHUNK, 0, physical, 0));
    assert_eq!(result!(cuMemMap(low, CHUNK, 0, physical, 0)), CUresult::INVALID_VALUE);
    assert_eq!(result!(cuMemsetD8_v2(high, 1, 16)), CUresult::INVALID_VALUE, "no access yet");
    ok!(cuMemSetAccess(high, CHUNK, &access, 1));
    assert_eq!(read::<u8>(high + 999, 3), [0, 9, 0]);
    ok!(cuMemsetD32_v2(low, 0x0102_0304, 100));
    assert_eq!(read::<u32>(high, 101), [vec![0x0102_0304; 100], vec![0]].concat());

    ok!(cuMemRelease(physical));
    assert_eq!(free_bytes(), before - CHUNK, "still mapped");
    assert_eq!(result!(cuMemAddressFree(range, 4 * CHUNK)), CUresult::INVALID_VALUE, "still mapped");
    ok!(cuMemUnmap(low, CHUNK));
    ok!(cuMemUnmap(high, CHUNK));
    assert_eq!(free_bytes(), before);
    assert_eq!(result!(cuMemsetD8_v2(low, 1, 16)), CUresult::INVALID_VALUE);
    ok!(cuMemAddressFree(range, 4 * CHUNK));
}

fn pools_count_what_is_used() {
    let s = stream(CU_STREAM_NON_BLOCKING);
    let (mut pool, mut address) = (CUmemoryPool::NULL, 0);
    ok!(cuDeviceGetMemPool(&mut pool, COUNTED));
    ok!(cuMemAllocAsync(&mut address, 3 * CHUNK, s));
    let used = || {
        let mut bytes = 0u64;
        ok!(cuMemPoolGetAttribute(pool, CUmemPool_attribute::USED_MEM_CURRENT, arg(&mut bytes)));
        bytes
    };
    assert_eq!(used(), 3 * CHUNK as u64);
    ok!(cuMemsetD8Async(address, 7, 3 * CHUNK, s));
    ok!(cuMemFreeAsync(address, s));
    ok!(cuStreamSynchronize(s));
    assert_eq!(used(), 0);
    let mut keep = 1u64 << 30;
    ok!(cuMemPoolSetAttribute(pool, CUmemPool_attribute::RELEASE_THRESHOLD, arg(&mut keep)));
    ok!(cuMemAllocAsync(&mut address, 3 * CHUNK, s));
    let first = address;
    ok!(cuMemFreeAsync(address, s));
    ok!(cuStreamSynchronize(s));
    ok!(cuMemAllocAsync(&mut address, 3 * CHUNK, s));
    assert_eq!(address, first, "kept for the same size");
    ok!(cuMemFreeAsync(address, s));
    ok!(cuStreamSynchronize(s));
    let everything = allocate(MEMORY as usize);
    ok!(cuMemFree_v2(everything));
    assert_eq!(result!(cuMemFreeAsync(address, s)), CUresult::INVALID_VALUE);
    ok!(cuStreamDestroy_v2(s));
}

fn a_pool_ends_when_streams_have_come_to_its_frees() {
    let s = stream(CU_STREAM_NON_BLOCKING);
    let props = CUmemPoolProps {
        allocType: CUmemAllocationType::PINNED,
        location: ON_CARD,
        // SAFETY: integers and pointers, of which all zeros are the values that nothing is said by.
        ..unsafe { std::mem::zeroed() }
    };
    let (mut pool, mut address) = (CUmemoryPool::NULL, 0);
    ok!(cuMemPoolCreate(&mut pool, &props));
    ok!(cuMemAllocFromPoolAsync(&mut address, CHUNK, pool, s));
    let (go_on, held_up) = channel();
    ok!(cuLaunchHostFunc(s, Some(wait), (&raw const held_up).cast_mut().cast()));
    ok!(cuMemFreeAsync(address, s));
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            ok!(cuMemPoolDestroy(pool));
            tell.send(()).unwrap();
        });
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "the free is still to come");
        go_on.send(()).unwrap();
    });
    assert_eq!(told.recv(), Ok(()));
    ok!(cuStreamDestroy_v2(s));
}

#[test]
fn boxes_are_copied_row_by_row() {
    let _context = Context::new(0);
    let (width, height) = (5usize, 4usize);
    let source: Vec<u8> = (0..40).collect();
    let (mut address, mut pitch) = (0, 0);
    ok!(cuMemAllocPitch_v2(&mut address, &mut pitch, width, height, 4));
    let up = CUDA_MEMCPY2D {
        srcXInBytes: 2,
        srcY: 1,
        srcMemoryType: CUmemorytype::HOST,
        srcHost: source.as_ptr().cast(),
        srcDevice: 0,
        srcArray: CUarray::NULL,
        srcPitch: 8,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: CUmemorytype::DEVICE,
        dstHost: null_mut(),
        dstDevice: address,
        dstArray: CUarray::NULL,
        dstPitch: pitch,
        WidthInBytes: width,
        Height: height,
    };
    ok!(cuMemcpy2D_v2(&up));
    for row in 0..height {
        let start = (row + 1) * 8 + 2;
        assert_eq!(read::<u8>(address + (row * pitch) as u64, width), source[start..start + width]);
    }
    let outside = CUDA_MEMCPY2D { dstY: 1 << 40, ..up };
    assert_eq!(result!(cuMemcpy2D_v2(&outside)), CUresult::INVALID_VALUE);
    ok!(cuMemsetD2D16_v2(address, pitch, 0x1234, 2, height));
    assert_eq!(read::<u16>(address + pitch as u64, 2), [0x1234; 2]);
}

#[test]
fn copies_must_stay_in_allocations() {
    let _context = Context::new(0);
    let address = allocate(1000);
    let mut bytes = [0u8; 2000];
    let host = bytes.as_mut_ptr().cast();
    assert_eq!(result!(cuMemcpyHtoD_v2(address, host, 2000)), CUresult::INVALID_VALUE);
    assert_eq!(result!(cuMemcpyDtoH_v2(host, address + 999, 2)), CUresult::INVALID_VALUE);
    assert_eq!(
        result!(cuMemcpyHtoD_v2(host as u64, host, 1)),
        CUresult::INVALID_VALUE,
        "not a device's address"
    );
    assert_eq!(result!(cuMemsetD32_v2(address + 2, 0, 1)), CUresult::INVALID_VALUE, "not aligned");
    ok!(cuMemcpyHtoD_v2(address, host, 0));
    assert_eq!(result!(cuMemFree_v2(host as u64)), CUresult::INVALID_VALUE);
}

#[test]
fn pointers_know_what_they_point_to() {
    let context = Context::new(0);
    let address = allocate(1000);
    let mut pinned = null_mut();
    ok!(cuMemHostAlloc(&mut pinned, 100, CU_MEMHOSTALLOC_DEVICEMAP));
    let kind = |address: u64| {
        let mut kind = CUmemorytype::default();
        result!(cuPointerGetAttribute(arg(&mut kind), CUpointer_attribute::MEMORY_TYPE, address))
            .ok()
            .map(|()| kind)
    };
    assert_eq!(kind(address + 999), Ok(CUmemorytype::DEVICE));
    assert_eq!(kind(pinned as u64), Ok(CUmemorytype::HOST));
    assert_eq!(kind(&raw const kind as u64), Err(CUresult::INVALID_VALUE));
    let (mut owner, mut base, mut size) = (CUcontext::NULL, 0, 0);
    ok!(cuPointerGetAttribute(arg(&mut owner), CUpointer_attribute::CONTEXT, address + 1));
    ok!(cuMemGetAddressRange_v2(&mut base, &mut size, address + 1));
    assert_eq!((owner, base, size), (context.0, address, 1000));
    let mut mapped = 0;
    ok!(cuMemHostGetDevicePointer_v2(&mut mapped, pinned, 0));
    let function = function(module(ADD), "add");
    // SAFETY: 100 bytes were allocated; the kernel runs when this is over.
    unsafe { pinned.cast::<u32>().write(40) };
    assert_eq!(
        launch(function, 1, 32, CUstream::NULL, &mut [arg(&mut mapped), arg(&mut 1u32), arg(&mut 2u32)]),
        CUresult::SUCCESS
    );
    ok!(cuCtxSynchronize());
    // SAFETY: as above; the kernel has ended.
    assert_eq!(unsafe { pinned.cast::<u32>().read() }, 42);
    ok!(cuMemFreeHost(pinned));
    assert_eq!(result!(cuMemFreeHost(without_provenance_mut(8))), CUresult::INVALID_VALUE);
}

#[test]
fn memory_of_another_device_can_be_copied() {
    let first = Context::new(0);
    let from = allocate(64);
    write(from, &[7u8; 64]);
    let second = Context::new(1);
    let to = allocate(64);
    ok!(cuMemcpyPeer(to, second.0, from, first.0, 64));
    assert_eq!(read::<u8>(to, 64), [7; 64]);
}

/// Memory of a device by `cuMemCreate`, mapped, with access for these devices.
fn mapped(device: CUdevice, users: &[CUdevice]) -> u64 {
    let at = |id| CUmemLocation { kind: CUmemLocationType::DEVICE, id };
    let prop = CUmemAllocationProp {
        kind: CUmemAllocationType::PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR,
        location: at(device),
        win32HandleMetaData: null_mut(),
        compressionType: 0,
        gpuDirectRDMACapable: 0,
        usage: 0,
        reserved: [0; 4],
    };
    let (mut address, mut handle) = (0, CUmemGenericAllocationHandle::default());
    ok!(cuMemAddressReserve(&mut address, CHUNK, 0, 0, 0));
    ok!(cuMemCreate(&mut handle, CHUNK, &prop, 0));
    ok!(cuMemMap(address, CHUNK, 0, handle, 0));
    ok!(cuMemRelease(handle));
    give_access(address, users, CUmemAccess_flags::READWRITE);
    address
}

fn give_access(address: u64, users: &[CUdevice], flags: CUmemAccess_flags) {
    let location = |id| CUmemLocation { kind: CUmemLocationType::DEVICE, id };
    let access: Vec<_> = users.iter().map(|&id| CUmemAccessDesc { location: location(id), flags }).collect();
    ok!(cuMemSetAccess(address, CHUNK, access.as_ptr(), access.len()));
}

/// What NVIDIA's driver refuses where nobody gave access: memory that `cuMemAlloc` did not make is
/// its own device's.
#[test]
fn mapped_memory_is_copied_and_filled_by_devices_that_have_access() {
    let context = [Context::new(1), Context::new(0)];
    let [there, here] = [mapped(1, &[1]), mapped(0, &[0])];
    let mut word = 7_u32;
    let host = arg(&mut word);
    ok!(cuMemcpyHtoD_v2(here, host, 4));
    for refused in [
        result!(cuMemcpyDtoD_v2(there, here, 4)),
        result!(cuMemcpyDtoDAsync_v2(here, there, 4, CUstream::NULL)),
        result!(cuMemcpyAsync(there, here, 4, CUstream::NULL)),
        result!(cuMemcpyHtoD_v2(there, host, 4)),
        result!(cuMemcpyDtoH_v2(host, there, 4)),
        result!(cuMemsetD32_v2(there, 1, 1)),
        result!(cuMemcpyPeer(there, context[1].0, here, context[1].0, 4)),
    ] {
        assert_eq!(refused, CUresult::INVALID_VALUE);
    }
    ok!(cuMemcpyPeer(there, context[0].0, here, context[1].0, 4));
    give_access(there, &[0], CUmemAccess_flags::READWRITE);
    assert_eq!(read::<u32>(there, 1), [7]);
    ok!(cuMemsetD32_v2(there, 8, 1));
    ok!(cuMemcpyDtoD_v2(here, there, 4));
    assert_eq!(read::<u32>(here, 1), [8]);
    give_access(there, &[0], CUmemAccess_flags::NONE);
    assert_eq!(result!(cuMemcpyDtoD_v2(here, there, 4)), CUresult::INVALID_VALUE);
    let mut flags = 9;
    let location = CUmemLocation { kind: CUmemLocationType::DEVICE, id: 1 };
    ok!(cuMemGetAccess(&mut flags, &location, there));
    assert_eq!(flags, u64::from(CUmemAccess_flags::READWRITE.0), "the other one keeps what it had");
    for address in [here, there] {
        ok!(cuMemUnmap(address, CHUNK));
        ok!(cuMemAddressFree(address, CHUNK));
    }
}

#[test]
fn copies_go_on_while_another_device_is_given_access() {
    let _context = Context::new(1);
    let [from, to] = [mapped(1, &[1]), mapped(1, &[1])];
    let id = || {
        let mut id = 0_u64;
        ok!(cuPointerGetAttribute(arg(&mut id), CUpointer_attribute::BUFFER_ID, from));
        id
    };
    let known = id();
    for round in 0..500 {
        write(from, &[round]);
        for _ in 0..4 {
            ok!(cuMemcpyDtoDAsync_v2(to, from, 4, CUstream::NULL));
            give_access(from, &[0], CUmemAccess_flags::READWRITE);
        }
        assert_eq!(read::<u32>(to, 1), [round]);
    }
    assert_eq!(id(), known, "it is the same memory");
    for address in [from, to] {
        ok!(cuMemUnmap(address, CHUNK));
        ok!(cuMemAddressFree(address, CHUNK));
    }
}

#[test]
fn memory_can_be_read_where_the_current_device_could() {
    let _context = [Context::new(1), Context::new(0)];
    let [there, here] = [mapped(1, &[1]), mapped(0, &[0])];
    let allocated = allocate(1000);
    let can = |address, bytes| sluice_softgpu::wait_to_read(CUstream::NULL, address, bytes);
    assert!(can(here, CHUNK as u64) && can(here + 5, 9) && can(allocated, 1000));
    assert!(!can(there, 4), "another device has no access");
    assert!(!can(allocated, 1001) && !can(here, u64::MAX), "it leads out");
    assert!(!can(&raw const there as u64, 8), "the program's own memory");
    give_access(there, &[0], CUmemAccess_flags::READWRITE);
    assert!(can(there, 4));
    ok!(cuMemFree_v2(allocated));
    assert!(!can(allocated, 1));
    for address in [here, there] {
        ok!(cuMemUnmap(address, CHUNK));
        ok!(cuMemAddressFree(address, CHUNK));
    }
}

/// A host function that waits for a message.
unsafe extern "C" fn wait(go_on: *mut c_void) {
    // SAFETY: the test keeps it until the stream is done.
    let _ = unsafe { &*go_on.cast::<Receiver<()>>() }.recv();
}

/// In the order that a copy would have, which is more than that of its own stream.
#[test]
fn who_reads_memory_waits_for_its_turn() {
    let context = Context::new(0);
    let memory = allocate(4);
    let (blocking, other, event) = (stream(0), stream(0), event());
    for (held, reader) in [(blocking, CUstream::NULL), (CUstream::NULL, blocking), (other, blocking)] {
        let (go_on, held_up) = channel();
        let data = (&raw const held_up).cast_mut().cast();
        ok!(cuLaunchHostFunc(held, Some(wait), data));
        ok!(cuMemsetD32Async(memory, 7, 1, held));
        if held == other {
            ok!(cuEventRecord(event, other));
            ok!(cuCtxWaitEvent(context.0, event));
        }
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                ok!(cuCtxSetCurrent(context.0));
                tell.send(sluice_softgpu::wait_to_read(reader, memory, 4)).unwrap();
            });
            assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "{held:?} {reader:?}");
            go_on.send(()).unwrap();
            assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(true));
        });
        assert_eq!(read::<u32>(memory, 1), [7]);
        ok!(cuMemsetD32_v2(memory, 0, 1));
        ok!(cuCtxSynchronize());
    }
}

/// Private pages become a file then.
#[test]
fn memory_can_be_read_while_it_comes_to_be_shared() {
    let _context = Context::new(0);
    // SAFETY: the name is a C string; the descriptor is the file's own.
    let sink = unsafe { File::from_raw_fd(libc::memfd_create(c"sink".as_ptr(), 0)) };
    for _ in 0..200 {
        let address = mapped(0, &[0]);
        write(address, &[7_u8; CHUNK]);
        let (is_over, started) = (AtomicBool::new(false), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                started.wait();
                while !is_over.load(Relaxed) {
                    // SAFETY: only the system reads there, and says so where it cannot.
                    let read = unsafe { libc::pwrite(sink.as_raw_fd(), address as *const c_void, CHUNK, 0) };
                    assert_eq!(read, CHUNK as isize, "{}", std::io::Error::last_os_error());
                }
            });
            let (mut handle, mut file) = (CUmemGenericAllocationHandle::default(), -1);
            ok!(cuMemRetainAllocationHandle(&mut handle, address as *mut c_void));
            started.wait();
            let kind = CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR;
            let exported = result!(cuMemExportToShareableHandle(arg(&mut file), handle, kind, 0));
            is_over.store(true, Relaxed);
            assert_eq!(exported, CUresult::SUCCESS);
            // SAFETY: the descriptor was made for this program.
            drop(unsafe { File::from_raw_fd(file) });
            ok!(cuMemRelease(handle));
        });
        ok!(cuMemUnmap(address, CHUNK));
        ok!(cuMemAddressFree(address, CHUNK));
    }
}

#[test]
fn a_pool_s_memory_is_its_device_s_until_others_are_let_in() {
    let _other = Context::new(1);
    let mut pool = CUmemoryPool::NULL;
    ok!(cuDeviceGetDefaultMemPool(&mut pool, 1));
    let mut there = 0;
    ok!(cuMemAllocAsync(&mut there, 64, CUstream::NULL));
    ok!(cuStreamSynchronize(CUstream::NULL));
    let _context = Context::new(0);
    assert_eq!(result!(cuMemsetD8_v2(there, 3, 64)), CUresult::INVALID_VALUE);
    let location = CUmemLocation { kind: CUmemLocationType::DEVICE, id: 0 };
    let access = |flags| CUmemAccessDesc { location, flags };
    ok!(cuMemPoolSetAccess(pool, &access(CUmemAccess_flags::READWRITE), 1));
    ok!(cuMemsetD8_v2(there, 3, 64));
    ok!(cuMemPoolSetAccess(pool, &access(CUmemAccess_flags::NONE), 1));
    assert_eq!(result!(cuMemsetD8_v2(there, 3, 64)), CUresult::INVALID_VALUE);
    ok!(cuMemFreeAsync(there, CUstream::NULL));
}

/// A file of frozen memory gives other memory its contents, and neither sees what the other writes.
#[test]
fn frozen_memory_is_copied_when_it_is_written() {
    let _context = Context::new(0);
    let whole = |from_files: bool, value: u8| {
        if from_files {
            sluice_softgpu::keep_in_files();
        }
        let (mut address, mut handle) = (0, CUmemGenericAllocationHandle::default());
        let location = CUmemLocation { kind: CUmemLocationType::DEVICE, id: 0 };
        ok!(cuMemAddressReserve(&mut address, 2 * CHUNK, 0, 0, 0));
        ok!(cuMemCreate(&mut handle, 2 * CHUNK, &properties(location), 0));
        ok!(cuMemMap(address, 2 * CHUNK, 0, handle, 0));
        let access = CUmemAccessDesc { location, flags: CUmemAccess_flags::READWRITE };
        ok!(cuMemSetAccess(address, 2 * CHUNK, &access, 1));
        ok!(cuMemsetD8_v2(address, value, 2 * CHUNK));
        ok!(cuCtxSynchronize());
        (address, handle)
    };
    let all = |address: u64, value: u8| {
        let mut back = vec![0_u8; 2 * CHUNK];
        ok!(cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), address, back.len()));
        back.iter().all(|byte| *byte == value)
    };
    let ((first, first_handle), (second, second_handle)) = (whole(false, 1), whole(false, 2));
    let (third, third_handle) = whole(true, 3);
    let file = sluice_softgpu::freeze(first, false).unwrap();
    sluice_softgpu::lay_over(second, file).unwrap();
    assert!(all(first, 1) && all(second, 1));
    ok!(cuMemsetD8_v2(first, 5, 2 * CHUNK));
    ok!(cuMemsetD8_v2(second + 5, 6, 1));
    assert!(all(first, 5));
    ok!(cuMemsetD8_v2(second + 5, 1, 1));
    assert!(all(second, 1));
    // Unwritten by what the caller says: the same file. Else what is there now.
    for (is_unwritten, value) in [(true, 1), (false, 5)] {
        let file = sluice_softgpu::freeze(first, is_unwritten).unwrap();
        sluice_softgpu::lay_over(second, file).unwrap();
        assert!(all(second, value) && all(first, 5));
    }
    // Nothing writes to the file any more, and only one of the right size is taken.
    let file = sluice_softgpu::freeze(third, false).unwrap();
    assert!(std::os::unix::fs::FileExt::write_at(&File::from(file.try_clone().unwrap()), &[1], 0).is_err());
    assert!(sluice_softgpu::lay_over(second + CHUNK as u64, file.try_clone().unwrap()).is_err());
    sluice_softgpu::lay_over(second, file).unwrap();
    assert!(all(second, 3));
    for (address, handle) in [(first, first_handle), (second, second_handle), (third, third_handle)] {
        // Unmapped while it is held, it keeps its contents.
        let value = if address == first { 5 } else { 3 };
        ok!(cuMemUnmap(address, 2 * CHUNK));
        ok!(cuMemMap(address, 2 * CHUNK, 0, handle, 0));
        let location = CUmemLocation { kind: CUmemLocationType::DEVICE, id: 0 };
        let access = CUmemAccessDesc { location, flags: CUmemAccess_flags::READWRITE };
        ok!(cuMemSetAccess(address, 2 * CHUNK, &access, 1));
        assert!(all(address, value), "{address:#x}");
        ok!(cuMemUnmap(address, 2 * CHUNK));
        ok!(cuMemRelease(handle));
        ok!(cuMemAddressFree(address, 2 * CHUNK));
    }
}
