//! Copies of boxes: rows of bytes with a pitch, in slices, between any two of host and device.

use std::ffi::c_void;
use std::ptr::null_mut;

use sluice_cuda::*;

use crate::memory::Host;
use crate::program::{Program, Sent, ok};

pub(crate) const FUNCTIONS: crate::Calls = &[
    ("cuMemcpy2D_v2", cuMemcpy2D_v2),
    ("cuMemcpy2DUnaligned_v2", cuMemcpy2DUnaligned_v2),
    ("cuMemcpy2DAsync_v2", cuMemcpy2DAsync_v2),
    ("cuMemcpy3D_v2", cuMemcpy3D_v2),
    ("cuMemcpy3DAsync_v2", cuMemcpy3DAsync_v2),
    ("cuMemcpy3DPeer", cuMemcpy3DPeer),
    ("cuMemcpy3DPeerAsync", cuMemcpy3DPeerAsync),
    ("cuMemcpy3DBatchAsync", cuMemcpy3DBatchAsync),
    ("cuMemcpy3DBatchAsync_v2", cuMemcpy3DBatchAsync_v2),
    ("cuMemcpy3DWithAttributesAsync", cuMemcpy3DWithAttributesAsync),
];

/// Where a box lies in memory: its corner, and what the program says of rows and slices.
#[derive(Clone, Copy, Default)]
struct Layout {
    x: usize,
    y: usize,
    z: usize,
    /// Bytes from row to row; 0: rows touch.
    pitch: usize,
    /// Rows from slice to slice; 0: slices touch.
    height: usize,
}

/// Bytes of a row, rows, and slices.
type Size = [usize; 3];

/// What a function can say of a box.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    /// One slice, and no height.
    Plane,
    Box,
    /// No corner.
    Batch,
}

impl Layout {
    fn draw(p: &mut Program, shape: Shape, [width, rows, _]: Size) -> Layout {
        let mut below = |limit: u64| p.within(0, limit) as usize;
        let (tight, padding) = (below(3) == 0, [below(64), below(4)]);
        let [x, y, z] = [below(40), below(5), below(3)];
        match shape {
            _ if tight => Layout::default(),
            Shape::Plane => Layout { x, y, z: 0, pitch: x + width + padding[0], height: 0 },
            Shape::Box => Layout { x, y, z, pitch: x + width + padding[0], height: y + rows + padding[1] },
            Shape::Batch => {
                Layout { pitch: width + padding[0], height: rows + padding[1], ..Layout::default() }
            }
        }
    }

    /// Bytes between rows and rows between slices.
    fn distances(&self, [width, rows, _]: Size) -> [usize; 2] {
        [if self.pitch == 0 { width } else { self.pitch }, if self.height == 0 { rows } else { self.height }]
    }

    /// Where the box begins.
    fn start(&self, size: Size) -> usize {
        let [pitch, height] = self.distances(size);
        (self.z * height + self.y) * pitch + self.x
    }

    /// Where each row begins.
    fn rows(&self, size: Size) -> impl Iterator<Item = usize> {
        let ([pitch, height], start) = (self.distances(size), self.start(size));
        (0..size[2])
            .flat_map(move |slice| (0..size[1]).map(move |row| start + (slice * height + row) * pitch))
    }

    /// Bytes up to the end of the last row.
    fn extent(&self, size: Size) -> usize {
        self.rows(size).last().unwrap_or(0) + size[0]
    }
}

/// A side of a copy: a place in a region of device memory, or memory of this program.
enum Side {
    Device(usize),
    Host(Host),
}

impl Side {
    fn address(&self, base: CUdeviceptr) -> u64 {
        match self {
            Side::Device(at) => base + *at as u64,
            Side::Host(host) => host.address() as u64,
        }
    }

    /// How a program may call it; an address alone says whose it is, too.
    fn kind(&self, is_unified: bool) -> CUmemorytype {
        match self {
            _ if is_unified => CUmemorytype::UNIFIED,
            Side::Device(_) => CUmemorytype::DEVICE,
            Side::Host(_) => CUmemorytype::HOST,
        }
    }
}

/// A copy that is to be asked for.
struct Copy {
    region: usize,
    size: Size,
    dst: (Layout, Side),
    src: (Layout, Side),
}

impl Copy {
    fn draw(p: &mut Program, region: usize, shape: Shape) -> Copy {
        let width = if p.once_in(8) { p.within(1, 5_000) } else { p.within(1, 200) };
        let slices = if shape == Shape::Plane { 1 } else { p.within(1, 4) };
        let size = [width, p.within(1, 12), slices].map(|n| n as usize);
        let layouts = [Layout::draw(p, shape, size), Layout::draw(p, shape, size)];
        let extents = layouts.map(|layout| layout.extent(size));
        let places = p.two_places(extents);
        let mut side = |index: usize| match p.once_in(2) {
            true => Side::Device(places[index]),
            false => Side::Host(p.host(region, extents[index])),
        };
        let sides = [side(0), side(1)];
        let [dst, src] = sides;
        Copy { region, size, dst: (layouts[0], dst), src: (layouts[1], src) }
    }

    /// As `cuMemcpy3D` has it described.
    fn described(&self, p: &mut Program) -> CUDA_MEMCPY3D {
        let base = p.region(self.region).base;
        let unified = [p.once_in(3), p.once_in(3)];
        let ((dst, to), (src, from)) = (&self.dst, &self.src);
        let [width, rows, slices] = self.size;
        CUDA_MEMCPY3D {
            srcXInBytes: src.x,
            srcY: src.y,
            srcZ: src.z,
            srcLOD: 0,
            srcMemoryType: from.kind(unified[0]),
            srcHost: if unified[0] { null_mut() } else { from.address(base) as *const c_void },
            srcDevice: from.address(base),
            srcArray: CUarray::NULL,
            reserved0: null_mut(),
            srcPitch: src.pitch,
            srcHeight: src.height,
            dstXInBytes: dst.x,
            dstY: dst.y,
            dstZ: dst.z,
            dstLOD: 0,
            dstMemoryType: to.kind(unified[1]),
            dstHost: if unified[1] { null_mut() } else { to.address(base) as *mut c_void },
            dstDevice: to.address(base),
            dstArray: CUarray::NULL,
            reserved1: null_mut(),
            dstPitch: dst.pitch,
            dstHeight: dst.height,
            WidthInBytes: width,
            Height: rows,
            Depth: slices,
        }
    }

    /// What the call that was made does.
    fn done(self, p: &mut Program, result: CUresult, asynchronous: bool, name: &str) {
        let Copy { region, size, dst: (dst, to), src: (src, from) } = self;
        let bytes = size.iter().product();
        let base = p.region(region).base;
        let rows = dst.rows(size).zip(src.rows(size));
        if let (&Side::Device(to), &Side::Device(from)) = (&to, &from) {
            let mut sent = Sent::new("cuMemcpy3DAsync_v2");
            for (layout, at) in [(dst, to), (src, from)] {
                sent.value(CUmemorytype::DEVICE.0);
                sent.value(base + (at + layout.start(size)) as u64);
                sent.values(&layout.distances(size));
            }
            sent.values(&size);
            sent.number(p.region(region).number);
            p.check(sent, false, result, &[]);
            let memory = &mut p.region(region).bytes;
            rows.for_each(|(dst, src)| {
                memory.copy_within(from + src..from + src + size[0], to + dst);
            });
            return;
        }
        ok(result);
        let source = match &from {
            Side::Device(at) => p.region(region).bytes[*at..*at + src.extent(size)].to_vec(),
            Side::Host(host) => host.before.clone(),
        };
        match to {
            Side::Device(at) => {
                p.region(region).up(bytes);
                let memory = &mut p.region(region).bytes[at..];
                rows.for_each(|(dst, src)| {
                    memory[dst..dst + size[0]].copy_from_slice(&source[src..src + size[0]])
                });
            }
            Side::Host(host) => {
                // Between the rows nothing has changed.
                let mut expected = host.before.clone();
                rows.for_each(|(dst, src)| {
                    expected[dst..dst + size[0]].copy_from_slice(&source[src..src + size[0]]);
                });
                if let Side::Device(_) = from {
                    p.region(region).down(bytes);
                }
                p.arrives(region, host, expected, asynchronous, name);
            }
        }
    }
}

fn copy(
    p: &mut Program,
    name: &str,
    (shape, asynchronous): (Shape, bool),
    call: impl FnOnce(&Program, &CUDA_MEMCPY3D, CUstream) -> CUresult,
) {
    let region = p.pick_region(asynchronous);
    p.look_or_fill(region);
    let copy = Copy::draw(p, region, shape);
    let (described, stream) = (copy.described(p), p.stream_of(region));
    let result = call(p, &described, stream);
    copy.done(p, result, asynchronous, name);
}

/// Converts a copy to one of a plane.
fn plane(it: &CUDA_MEMCPY3D) -> CUDA_MEMCPY2D {
    CUDA_MEMCPY2D {
        srcXInBytes: it.srcXInBytes,
        srcY: it.srcY,
        srcMemoryType: it.srcMemoryType,
        srcHost: it.srcHost,
        srcDevice: it.srcDevice,
        srcArray: it.srcArray,
        srcPitch: it.srcPitch,
        dstXInBytes: it.dstXInBytes,
        dstY: it.dstY,
        dstMemoryType: it.dstMemoryType,
        dstHost: it.dstHost,
        dstDevice: it.dstDevice,
        dstArray: it.dstArray,
        dstPitch: it.dstPitch,
        WidthInBytes: it.WidthInBytes,
        Height: it.Height,
    }
}

/// Converts a copy to one between two contexts, which are one here.
fn between(it: &CUDA_MEMCPY3D, context: CUcontext) -> CUDA_MEMCPY3D_PEER {
    CUDA_MEMCPY3D_PEER {
        srcXInBytes: it.srcXInBytes,
        srcY: it.srcY,
        srcZ: it.srcZ,
        srcLOD: it.srcLOD,
        srcMemoryType: it.srcMemoryType,
        srcHost: it.srcHost,
        srcDevice: it.srcDevice,
        srcArray: it.srcArray,
        srcContext: context,
        srcPitch: it.srcPitch,
        srcHeight: it.srcHeight,
        dstXInBytes: it.dstXInBytes,
        dstY: it.dstY,
        dstZ: it.dstZ,
        dstLOD: it.dstLOD,
        dstMemoryType: it.dstMemoryType,
        dstHost: it.dstHost,
        dstDevice: it.dstDevice,
        dstArray: it.dstArray,
        dstContext: context,
        dstPitch: it.dstPitch,
        dstHeight: it.dstHeight,
        WidthInBytes: it.WidthInBytes,
        Height: it.Height,
        Depth: it.Depth,
    }
}

fn cuMemcpy2D_v2(p: &mut Program) {
    // SAFETY: both sides hold the box, here and below.
    copy(p, "cuMemcpy2D_v2", (Shape::Plane, false), |p, it, _| unsafe {
        p.cuda.cuMemcpy2D_v2.expect("exported")(&plane(it))
    });
}

fn cuMemcpy2DUnaligned_v2(p: &mut Program) {
    // SAFETY: as above.
    copy(p, "cuMemcpy2DUnaligned_v2", (Shape::Plane, false), |p, it, _| unsafe {
        p.cuda.cuMemcpy2DUnaligned_v2.expect("exported")(&plane(it))
    });
}

fn cuMemcpy2DAsync_v2(p: &mut Program) {
    // SAFETY: as above; pinned memory is the stream's until it is waited for.
    copy(p, "cuMemcpy2DAsync_v2", (Shape::Plane, true), |p, it, stream| unsafe {
        p.cuda.cuMemcpy2DAsync_v2.expect("exported")(&plane(it), stream)
    });
}

fn cuMemcpy3D_v2(p: &mut Program) {
    // SAFETY: as above.
    copy(p, "cuMemcpy3D_v2", (Shape::Box, false), |p, it, _| unsafe {
        p.cuda.cuMemcpy3D_v2.expect("exported")(it)
    });
}

fn cuMemcpy3DAsync_v2(p: &mut Program) {
    // SAFETY: as above.
    copy(p, "cuMemcpy3DAsync_v2", (Shape::Box, true), |p, it, stream| unsafe {
        p.cuda.cuMemcpy3DAsync_v2.expect("exported")(it, stream)
    });
}

fn cuMemcpy3DPeer(p: &mut Program) {
    // SAFETY: as above.
    copy(p, "cuMemcpy3DPeer", (Shape::Box, false), |p, it, _| unsafe {
        p.cuda.cuMemcpy3DPeer.expect("exported")(&between(it, p.context))
    });
}

fn cuMemcpy3DPeerAsync(p: &mut Program) {
    // SAFETY: as above.
    copy(p, "cuMemcpy3DPeerAsync", (Shape::Box, true), |p, it, stream| unsafe {
        p.cuda.cuMemcpy3DPeerAsync.expect("exported")(&between(it, p.context), stream)
    });
}

/// One end of a copy in a batch (`CUmemcpy3DOperand`): address, row length in bytes, rows of a
/// slice, and a hint.
#[repr(C)]
struct Operand {
    kind: u32,
    words: [u64; 4],
}

/// `CUDA_MEMCPY3D_BATCH_OP`.
#[repr(C)]
struct Operation {
    src: Operand,
    dst: Operand,
    extent: Size,
    source_order: u32,
    flags: u32,
}

impl Operation {
    fn of(p: &mut Program, copy: &Copy) -> Operation {
        let base = p.region(copy.region).base;
        let operand = |(layout, side): &(Layout, Side)| {
            let words = [side.address(base), layout.pitch as u64, layout.height as u64, 0];
            Operand { kind: 1, words }
        };
        let (src, dst) = (operand(&copy.src), operand(&copy.dst));
        Operation { src, dst, extent: copy.size, source_order: p.within(1, 3) as u32, flags: 0 }
    }
}

fn batch(p: &mut Program, most: u64, call: impl FnOnce(&Program, &mut [Operation], CUstream) -> CUresult) {
    let region = p.pick_region(true);
    p.look_or_fill(region);
    let count = p.within(1, most);
    let copies: Vec<Copy> = (0..count).map(|_| Copy::draw(p, region, Shape::Batch)).collect();
    let mut operations: Vec<Operation> = copies.iter().map(|copy| Operation::of(p, copy)).collect();
    let stream = p.stream_of(region);
    let result = call(p, &mut operations, stream);
    copies.into_iter().for_each(|copy| copy.done(p, result, true, "a batch of boxes"));
}

fn cuMemcpy3DBatchAsync(p: &mut Program) {
    // SAFETY: as above; a list of as many operations.
    batch(p, 5, |p, list, stream| unsafe {
        let call = p.cuda.cuMemcpy3DBatchAsync.expect("exported");
        call(list.len(), list.as_mut_ptr().cast(), &mut 0, 0, stream)
    });
}

fn cuMemcpy3DBatchAsync_v2(p: &mut Program) {
    // SAFETY: as above.
    batch(p, 5, |p, list, stream| unsafe {
        let call = p.cuda.cuMemcpy3DBatchAsync_v2.expect("exported");
        call(list.len(), list.as_mut_ptr().cast(), 0, stream)
    });
}

fn cuMemcpy3DWithAttributesAsync(p: &mut Program) {
    // SAFETY: as above; one operation.
    batch(p, 1, |p, list, stream| unsafe {
        p.cuda.cuMemcpy3DWithAttributesAsync.expect("exported")(list.as_mut_ptr().cast(), 0, stream)
    });
}
