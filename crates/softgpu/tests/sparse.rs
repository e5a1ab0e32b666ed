//! Arrays whose memory is mapped later, as programs see them.

use std::ffi::c_void;
use std::ptr::null_mut;

use sluice_cuda::*;

mod common;
use common::*;

const POOL: usize = 4 << 20;
const TILE: u64 = TILE_BYTES;
/// Elements of four bytes on a side of a tile.
const SIDE: u32 = 128;

/// Reads a texture and a surface at eight places along a row, and adds 1 through the surface.
const CODE: &str = "
.visible .entry look(.param .u64 to, .param .u64 texture, .param .u64 surface, .param .u32 row, .param .u32 step) {
    .reg .b32 %r<16>; .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [to];
    ld.param.u64 %rd2, [texture];
    ld.param.u64 %rd3, [surface];
    ld.param.u32 %r1, [row];
    ld.param.u32 %r2, [step];
    mov.u32 %r3, %tid.x;
    mul.lo.u32 %r4, %r3, %r2;
    tex.2d.v4.u32.s32 {%r5, %r6, %r7, %r8}, [%rd2, {%r4, %r1}];
    shl.b32 %r9, %r4, 2;
    suld.b.2d.b32.trap %r10, [%rd3, {%r9, %r1}];
    add.u32 %r11, %r10, 1;
    sust.b.2d.b32.trap [%rd3, {%r9, %r1}], %r11;
    suld.b.2d.b32.trap %r12, [%rd3, {%r9, %r1}];
    mul.wide.u32 %rd4, %r3, 12;
    add.u64 %rd5, %rd1, %rd4;
    st.global.u32 [%rd5], %r5;
    st.global.u32 [%rd5+4], %r10;
    st.global.u32 [%rd5+8], %r12;
    ret;
}";

fn pool(device: CUdevice, bytes: usize) -> CUmemGenericAllocationHandle {
    physical(device, bytes, CU_MEM_CREATE_USAGE_TILE_POOL)
}

fn physical(device: CUdevice, bytes: usize, usage: u16) -> CUmemGenericAllocationHandle {
    let properties = CUmemAllocationProp {
        kind: CUmemAllocationType::PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::NONE,
        location: CUmemLocation { kind: CUmemLocationType::DEVICE, id: device },
        win32HandleMetaData: null_mut(),
        compressionType: 0,
        gpuDirectRDMACapable: 0,
        usage,
        reserved: [0; 4],
    };
    let mut handle = CUmemGenericAllocationHandle::NULL;
    ok!(cuMemCreate(&mut handle, bytes, &properties, 0));
    handle
}

fn desc([width, height, depth]: [usize; 3], flags: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: width,
        Height: height,
        Depth: depth,
        Format: CUarray_format::UNSIGNED_INT32,
        NumChannels: 1,
        Flags: flags,
    }
}

fn array(size: [usize; 3], flags: u32) -> CUarray {
    let mut array = CUarray::NULL;
    ok!(cuArray3DCreate_v2(&mut array, &desc(size, flags)));
    array
}

fn mipmapped(size: [usize; 3], flags: u32, levels: u32) -> CUmipmappedArray {
    let mut array = CUmipmappedArray::NULL;
    ok!(cuMipmappedArrayCreate(&mut array, &desc(size, flags), levels));
    array
}

/// An entry that names a part of an array on device 0; without memory it takes some away.
fn entry(
    array: CUarray,
    part: ArrayPart,
    memory: Option<(CUmemGenericAllocationHandle, u64)>,
) -> CUarrayMapInfo {
    let (handle, offset) = memory.unwrap_or_default();
    let mut info = CUarrayMapInfo {
        resourceType: CUresourcetype::ARRAY,
        resource: array.0,
        subresourceType: CUarraySparseSubresourceType::SPARSE_LEVEL,
        subresource: [0; 4],
        memOperationType: if memory.is_some() { CUmemOperationType::MAP } else { CUmemOperationType::UNMAP },
        memHandleType: CUmemHandleType::GENERIC,
        memHandle: handle,
        offset,
        deviceBitMask: 1,
        flags: 0,
        reserved: [0; 2],
    };
    info.set_part(&part);
    info
}

fn of_mipmapped(array: CUmipmappedArray, info: CUarrayMapInfo) -> CUarrayMapInfo {
    CUarrayMapInfo { resourceType: CUresourcetype::MIPMAPPED_ARRAY, resource: array.0, ..info }
}

fn map(mut list: Vec<CUarrayMapInfo>) -> CUresult {
    result!(cuMemMapArrayAsync(list.as_mut_ptr(), list.len() as u32, CUstream::LEGACY))
}

fn tiles(offset: [u32; 3], extent: [u32; 3]) -> ArrayPart {
    ArrayPart::Level { level: 0, layer: 0, offset, extent }
}

/// Copies a box between an array and memory here: its corner in elements, and its size.
fn copy(array: CUarray, [x, y, z]: [usize; 3], [w, h, d]: [usize; 3], host: &mut [u32], to_array: bool) {
    // SAFETY: numbers and null pointers.
    let mut copy: CUDA_MEMCPY3D = unsafe { std::mem::zeroed() };
    (copy.WidthInBytes, copy.Height, copy.Depth) = (4 * w, h, d);
    let host: *mut c_void = host.as_mut_ptr().cast();
    if to_array {
        (copy.srcMemoryType, copy.srcHost, copy.srcPitch, copy.srcHeight) =
            (CUmemorytype::HOST, host, 4 * w, h);
        (copy.dstMemoryType, copy.dstArray, copy.dstXInBytes, copy.dstY, copy.dstZ) =
            (CUmemorytype::ARRAY, array, 4 * x, y, z);
    } else {
        (copy.dstMemoryType, copy.dstHost, copy.dstPitch, copy.dstHeight) =
            (CUmemorytype::HOST, host, 4 * w, h);
        (copy.srcMemoryType, copy.srcArray, copy.srcXInBytes, copy.srcY, copy.srcZ) =
            (CUmemorytype::ARRAY, array, 4 * x, y, z);
    }
    ok!(cuMemcpy3D_v2(&copy));
}

fn read_box(array: CUarray, corner: [usize; 3], size: [usize; 3]) -> Vec<u32> {
    let mut host = vec![u32::MAX; size.iter().product()];
    copy(array, corner, size, &mut host, false);
    host
}

fn write_box(array: CUarray, corner: [usize; 3], size: [usize; 3], mut values: Vec<u32>) {
    copy(array, corner, size, &mut values, true);
}

fn free_bytes() -> usize {
    let (mut free, mut total) = (0, 0);
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    free
}

#[test]
fn tiles_have_memory_once_it_is_mapped() {
    let _context = Context::new(0);
    let (array, memory) =
        (array([300, 200, 0], CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_SURFACE_LDST), pool(0, POOL));
    let mut properties = CUDA_ARRAY_SPARSE_PROPERTIES::default();
    ok!(cuArrayGetSparseProperties(&mut properties, array));
    assert_eq!((properties.tileExtent, properties.miptailSize, properties.flags), ([SIDE, SIDE, 1], 0, 0));

    // The second and third tile of the first row, and the first of the second.
    let first = entry(array, tiles([SIDE, 0, 0], [172, SIDE, 1]), Some((memory, TILE)));
    let second = entry(array, tiles([0, SIDE, 0], [SIDE, 72, 1]), Some((memory, 0)));
    assert_eq!(map(vec![first, second]), CUresult::SUCCESS);
    let written: Vec<u32> = (1..=300 * 200).collect();
    write_box(array, [0; 3], [300, 200, 1], written.clone());
    let has_memory = |x: usize, y: usize| (x < 128) == (y >= 128);
    let expected = |at: usize| if has_memory(at % 300, at / 300) { written[at] } else { 0 };
    assert_eq!(read_box(array, [0; 3], [300, 200, 1]), (0..300 * 200).map(expected).collect::<Vec<_>>());

    // A box over the corners of four tiles.
    let part = read_box(array, [120, 120, 0], [16, 16, 1]);
    assert!(
        part.iter().enumerate().all(|(at, value)| *value == expected((120 + at / 16) * 300 + 120 + at % 16))
    );

    assert_eq!(map(vec![entry(array, tiles([SIDE, 0, 0], [SIDE, SIDE, 1]), None)]), CUresult::SUCCESS);
    assert_eq!(read_box(array, [128, 5, 0], [1, 1, 1]), [0]);
    assert_eq!(read_box(array, [256, 5, 0], [1, 1, 1]), [written[5 * 300 + 256]], "the neighbour stays");
    // The memory has kept what was in it, wherever it is mapped next.
    let again = entry(array, tiles([0, 0, 0], [SIDE, SIDE, 1]), Some((memory, TILE)));
    assert_eq!(map(vec![again]), CUresult::SUCCESS);
    assert_eq!(read_box(array, [7, 5, 0], [1, 1, 1]), [written[5 * 300 + 135]]);
    ok!(cuArrayDestroy(array));
    ok!(cuMemRelease(memory));
}

#[test]
fn kernels_read_zeros_and_write_nothing_without_memory() {
    let _context = Context::new(0);
    let look = function(module(CODE), "look");
    let (array, memory) =
        (array([512, 128, 0], CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_SURFACE_LDST), pool(0, POOL));
    assert_eq!(
        map(vec![entry(array, tiles([SIDE, 0, 0], [2 * SIDE, SIDE, 1]), Some((memory, 0)))]),
        CUresult::SUCCESS
    );
    write_box(array, [0; 3], [512, 128, 1], (0..512 * 128).collect());
    let mut words = [0; 16];
    words[0] = array.0 as u64;
    let resource = CUDA_RESOURCE_DESC { resType: CUresourcetype::ARRAY, words, flags: 0 };
    // SAFETY: numbers, for all of which zero is a value.
    let sampling = CUDA_TEXTURE_DESC { flags: CU_TRSF_READ_AS_INTEGER, ..unsafe { std::mem::zeroed() } };
    let (mut texture, mut surface) = (0, 0);
    ok!(cuTexObjectCreate(&mut texture, &resource, &sampling, std::ptr::null()));
    ok!(cuSurfObjectCreate(&mut surface, &resource));
    let to = allocate(8 * 12);
    let (mut place, mut row, mut step) = (to, 9_u32, 64_u32);
    let mut params = [arg(&mut place), arg(&mut texture), arg(&mut surface), arg(&mut row), arg(&mut step)];
    assert_eq!(launch(look, 1, 8, CUstream::LEGACY, &mut params), CUresult::SUCCESS);
    let expected = (0..8_u32).flat_map(|at| {
        let value = 9 * 512 + 64 * at;
        if (128..384).contains(&(64 * at)) { [value, value, value + 1] } else { [0; 3] }
    });
    assert_eq!(read::<u32>(to, 24), expected.collect::<Vec<_>>());
    ok!(cuTexObjectDestroy(texture));
    ok!(cuSurfObjectDestroy(surface));
    ok!(cuArrayDestroy(array));
    ok!(cuMemRelease(memory));
}

#[test]
fn volumes_and_layers_have_tiles_of_their_own() {
    let _context = Context::new(0);
    let memory = pool(0, POOL);
    let volume = array([64, 64, 40], CUDA_ARRAY3D_SPARSE);
    let mut properties = CUDA_ARRAY_SPARSE_PROPERTIES::default();
    ok!(cuArrayGetSparseProperties(&mut properties, volume));
    assert_eq!(properties.tileExtent, [32, 32, 16]);
    let part = tiles([32, 0, 16], [32, 64, 24]);
    assert_eq!(map(vec![entry(volume, part, Some((memory, 0)))]), CUresult::SUCCESS);
    let written: Vec<u32> = (1..=64 * 64 * 40).collect();
    write_box(volume, [0; 3], [64, 64, 40], written.clone());
    let expected = |at: usize| if at % 64 >= 32 && at / (64 * 64) >= 16 { written[at] } else { 0 };
    assert_eq!(read_box(volume, [0; 3], [64, 64, 40]), (0..written.len()).map(expected).collect::<Vec<_>>());
    ok!(cuArrayDestroy(volume));

    let layers = array([128, 128, 3], CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_LAYERED);
    let part = ArrayPart::Level { level: 0, layer: 1, offset: [0; 3], extent: [128, 128, 1] };
    assert_eq!(map(vec![entry(layers, part, Some((memory, 5 * TILE)))]), CUresult::SUCCESS);
    write_box(layers, [0; 3], [128, 128, 3], vec![7; 128 * 128 * 3]);
    let read = read_box(layers, [0; 3], [128, 128, 3]);
    assert!(read.iter().enumerate().all(|(at, value)| *value == if at / (128 * 128) == 1 { 7 } else { 0 }));
    ok!(cuArrayDestroy(layers));
    ok!(cuMemRelease(memory));
}

#[test]
fn small_levels_share_a_tail() {
    let _context = Context::new(0);
    let memory = pool(0, POOL);
    // 256, 128 and 64 on a side, and so on; two layers with a tail each.
    let flags = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_LAYERED;
    let levels = mipmapped([256, 256, 2], flags, 5);
    let mut properties = CUDA_ARRAY_SPARSE_PROPERTIES::default();
    ok!(cuMipmappedArrayGetSparseProperties(&mut properties, levels));
    assert_eq!((properties.miptailFirstLevel, properties.miptailSize, properties.flags), (2, TILE, 0));
    let tail = |layer| ArrayPart::Tail { layer, offset: 0, bytes: TILE };
    let of_level = |level, memory: u64| {
        let part = ArrayPart::Level { level, layer: 1, offset: [0; 3], extent: [SIDE, SIDE, 1] };
        (part, memory)
    };
    for (part, offset) in [(tail(1), TILE), of_level(1, 0)] {
        let info = of_mipmapped(levels, entry(CUarray::NULL, part, Some((memory, offset))));
        assert_eq!(map(vec![info]), CUresult::SUCCESS);
    }
    for (level, side) in [(0, 256), (1, 128), (2, 64), (3, 32), (4, 16)] {
        let mut array = CUarray::NULL;
        ok!(cuMipmappedArrayGetLevel(&mut array, levels, level));
        write_box(array, [0; 3], [side, side, 2], vec![10 + level; side * side * 2]);
        assert_eq!(result!(cuArrayGetSparseProperties(&mut properties, array)), CUresult::INVALID_VALUE);
        assert_eq!(map(vec![entry(array, tail(0), None)]), CUresult::INVALID_VALUE, "a level");
    }
    for (level, side) in [(0, 256), (1, 128), (2, 64), (3, 32), (4, 16)] {
        let mut array = CUarray::NULL;
        ok!(cuMipmappedArrayGetLevel(&mut array, levels, level));
        let read = read_box(array, [0; 3], [side, side, 2]);
        let value = if level == 0 { 0 } else { 10 + level };
        let expected = |at: usize| if at < side * side { 0 } else { value };
        assert!(read.iter().enumerate().all(|(at, read)| *read == expected(at)), "level {level}");
    }
    ok!(cuMipmappedArrayDestroy(levels));

    // An array that is no tile wide is all tail.
    let small = array([100, 200, 0], CUDA_ARRAY3D_SPARSE);
    ok!(cuArrayGetSparseProperties(&mut properties, small));
    let single = CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL;
    assert_eq!((properties.miptailSize, properties.flags), (2 * TILE, single));
    let part = ArrayPart::Tail { layer: 0, offset: TILE, bytes: TILE };
    assert_eq!(map(vec![entry(small, part, Some((memory, 0)))]), CUresult::SUCCESS);
    write_box(small, [0; 3], [100, 200, 1], vec![3; 100 * 200]);
    let read = read_box(small, [0; 3], [100, 200, 1]);
    assert!(read[0] == 0 && read[100 * 200 - 1] == 3);
    ok!(cuArrayDestroy(small));
    ok!(cuMemRelease(memory));
}

#[test]
fn deferred_arrays_get_all_their_memory_at_once() {
    let _context = Context::new(0);
    let memory = pool(0, POOL);
    let mut wanted = CUDA_ARRAY_MEMORY_REQUIREMENTS::default();
    let plain = array([300, 200, 0], CUDA_ARRAY3D_DEFERRED_MAPPING);
    ok!(cuArrayGetMemoryRequirements(&mut wanted, plain, 0));
    assert!(wanted.size >= 300 * 200 * 4 && wanted.size <= POOL && wanted.alignment as u64 == TILE);
    let mut info = entry(plain, ArrayPart::Whole, Some((memory, TILE)));
    // What part is named does not matter.
    info.subresource = [u64::MAX; 4];
    assert_eq!(map(vec![info]), CUresult::SUCCESS);
    let written: Vec<u32> = (1..=300 * 200).collect();
    write_box(plain, [0; 3], [300, 200, 1], written.clone());
    assert_eq!(read_box(plain, [0; 3], [300, 200, 1]), written);
    assert_eq!(map(vec![entry(plain, ArrayPart::Whole, None)]), CUresult::SUCCESS);
    assert!(read_box(plain, [0; 3], [300, 200, 1]).iter().all(|value| *value == 0));

    let levels = mipmapped([300, 200, 0], CUDA_ARRAY3D_DEFERRED_MAPPING, 3);
    ok!(cuMipmappedArrayGetMemoryRequirements(&mut wanted, levels, 0));
    let info = of_mipmapped(levels, entry(CUarray::NULL, ArrayPart::Whole, Some((memory, 0))));
    assert_eq!(map(vec![info]), CUresult::SUCCESS);
    let mut level = CUarray::NULL;
    ok!(cuMipmappedArrayGetLevel(&mut level, levels, 2));
    write_box(level, [0; 3], [75, 50, 1], vec![5; 75 * 50]);
    assert_eq!(read_box(level, [0; 3], [75, 50, 1]), vec![5; 75 * 50]);
    ok!(cuMipmappedArrayDestroy(levels));
    ok!(cuArrayDestroy(plain));
    ok!(cuMemRelease(memory));
}

#[test]
fn memory_stays_until_no_array_has_it() {
    const DEVICE: CUdevice = 1;
    let _context = Context::new(DEVICE);
    let before = free_bytes();
    let (sparse, memory) = (array([256, 256, 0], CUDA_ARRAY3D_SPARSE), pool(DEVICE, POOL));
    assert_eq!(free_bytes(), before - POOL, "the array itself has no memory");
    let on_device = |part, memory| CUarrayMapInfo { deviceBitMask: 2, ..entry(sparse, part, memory) };
    let part = tiles([0; 3], [SIDE, SIDE, 1]);
    assert_eq!(map(vec![on_device(part, Some((memory, 0)))]), CUresult::SUCCESS);
    ok!(cuMemRelease(memory));
    write_box(sparse, [0; 3], [1, 1, 1], vec![9]);
    assert_eq!(read_box(sparse, [0; 3], [1, 1, 1]), [9]);
    assert_eq!(free_bytes(), before - POOL);
    assert_eq!(map(vec![on_device(part, None)]), CUresult::SUCCESS);
    ok!(cuCtxSynchronize());
    assert_eq!(free_bytes(), before);

    let memory = pool(DEVICE, POOL);
    assert_eq!(map(vec![on_device(part, Some((memory, 0)))]), CUresult::SUCCESS);
    ok!(cuMemRelease(memory));
    ok!(cuArrayDestroy(sparse));
    assert_eq!(free_bytes(), before);
}

#[test]
fn what_cuda_forbids_is_refused() {
    let _context = Context::new(0);
    let (memory, other) = (pool(0, POOL), physical(0, POOL, 0));
    let mut made = CUarray::NULL;
    for (size, flags) in [
        ([300, 0, 0], CUDA_ARRAY3D_SPARSE),
        ([256, 256, 6], CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_CUBEMAP),
        ([300, 200, 0], CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING),
    ] {
        let refused = result!(cuArray3DCreate_v2(&mut made, &desc(size, flags)));
        assert_eq!(refused, CUresult::INVALID_VALUE, "{size:?} {flags:#x}");
    }
    let (sparse, plain) = (array([300, 200, 0], CUDA_ARRAY3D_SPARSE), array([300, 200, 0], 0));
    let part = tiles([0; 3], [SIDE, SIDE, 1]);
    let good = entry(sparse, part, Some((memory, 0)));
    for (bad, why) in [
        (entry(plain, part, Some((memory, 0))), "an array that has its memory"),
        (entry(sparse, tiles([1, 0, 0], [SIDE, SIDE, 1]), Some((memory, 0))), "a tile begins elsewhere"),
        (entry(sparse, tiles([0; 3], [512, SIDE, 1]), Some((memory, 0))), "outside"),
        (entry(sparse, ArrayPart::Tail { layer: 0, offset: 0, bytes: TILE }, Some((memory, 0))), "no tail"),
        (entry(sparse, part, Some((memory, 4096))), "memory of half a tile"),
        (entry(sparse, part, Some((memory, POOL as u64))), "behind the memory"),
        (entry(sparse, part, Some((memory, u64::MAX - TILE + 1))), "behind all memory"),
        (entry(sparse, part, Some((other, 0))), "memory that is no pool"),
        (CUarrayMapInfo { deviceBitMask: 2, ..good }, "another device"),
        (CUarrayMapInfo { deviceBitMask: 3, ..good }, "two devices"),
        (CUarrayMapInfo { flags: 1, ..good }, "flags"),
        (CUarrayMapInfo { reserved: [0, 1], ..good }, "what is reserved"),
        (CUarrayMapInfo { memOperationType: CUmemOperationType(3), ..good }, "another operation"),
        (CUarrayMapInfo { memOperationType: CUmemOperationType::UNMAP, ..good }, "memory to take away"),
        (CUarrayMapInfo { memHandleType: CUmemHandleType(1), ..good }, "another kind of handle"),
        (CUarrayMapInfo { subresourceType: CUarraySparseSubresourceType(2), ..good }, "another kind of part"),
        (CUarrayMapInfo { resourceType: CUresourcetype::LINEAR, ..good }, "another resource"),
    ] {
        assert_eq!(map(vec![good, bad]), CUresult::INVALID_VALUE, "{why}");
    }
    write_box(sparse, [0; 3], [1, 1, 1], vec![1]);
    assert_eq!(read_box(sparse, [0; 3], [1, 1, 1]), [0], "of a list with a bad entry nothing is done");
    let (mut properties, mut wanted) = Default::default();
    assert_eq!(result!(cuArrayGetSparseProperties(&mut properties, plain)), CUresult::INVALID_VALUE);
    assert_eq!(result!(cuArrayGetMemoryRequirements(&mut wanted, sparse, 0)), CUresult::INVALID_VALUE);

    let s = stream(CU_STREAM_NON_BLOCKING);
    ok!(cuStreamBeginCapture_v2(s, CUstreamCaptureMode::RELAXED));
    let captured = result!(cuMemMapArrayAsync(&mut { good }, 1, s));
    assert_eq!(captured, CUresult::STREAM_CAPTURE_UNSUPPORTED);
    let mut graph = CUgraph::NULL;
    ok!(cuStreamEndCapture(s, &mut graph));
    ok!(cuGraphDestroy(graph));
    for array in [sparse, plain] {
        ok!(cuArrayDestroy(array));
    }
    ok!(cuMemRelease(memory));
    ok!(cuMemRelease(other));
}
