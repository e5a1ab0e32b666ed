//! Arrays: made, filled from memory of host and device, read back, and destroyed. Each is used in
//! one stream.

use std::ffi::c_void;
use std::ptr::null_mut;

use sluice_cuda::*;

use crate::memory::Host;
use crate::program::{Program, Sent, ok};

pub(crate) const FUNCTIONS: crate::Calls = &[
    ("cuArrayCreate_v2", |p| lives(p, None, false)),
    ("cuArray3DCreate_v2", boxes),
    ("cuArrayDestroy", boxes),
    ("cuMemcpyHtoA_v2", |p| lives(p, Some(By::FromHost), false)),
    ("cuMemcpyHtoAAsync_v2", |p| lives(p, Some(By::FromHost), true)),
    ("cuMemcpyDtoA_v2", |p| lives(p, Some(By::FromDevice), false)),
    ("cuMemcpyAtoA_v2", |p| lives(p, Some(By::Within), false)),
    ("cuMemcpyAtoD_v2", |p| lives(p, Some(By::ToDevice), false)),
    ("cuMemcpyAtoH_v2", |p| lives(p, Some(By::ToHost), false)),
    ("cuMemcpyAtoHAsync_v2", |p| lives(p, Some(By::ToHost), true)),
];

/// What is copied.
#[derive(Clone, Copy)]
enum By {
    FromHost,
    FromDevice,
    Within,
    ToDevice,
    ToHost,
}

/// An array, and what it has to hold.
pub(crate) struct Array {
    pub(crate) handle: CUarray,
    pub(crate) number: u64,
    region: usize,
    bytes: Vec<u8>,
}

/// Any format, with the bytes of an element.
pub(crate) fn format(p: &mut Program) -> (CUarray_format, u32, usize) {
    let formats = [
        (CUarray_format::UNSIGNED_INT8, 1),
        (CUarray_format::SIGNED_INT16, 2),
        (CUarray_format::HALF, 2),
        (CUarray_format::UNSIGNED_INT32, 4),
        (CUarray_format::FLOAT, 4),
    ];
    let (format, bytes) = formats[p.within(0, 4) as usize];
    let channels = 1_u32 << p.within(0, 2);
    (format, channels, bytes * channels as usize)
}

fn create(
    p: &mut Program,
    region: usize,
    desc: &CUDA_ARRAY3D_DESCRIPTOR,
    bytes: usize,
    call: impl FnOnce(&Program, *mut CUarray) -> CUresult,
) -> Array {
    let mut sent = Sent::new("cuArray3DCreate_v2");
    sent.values(&[desc.Width, desc.Height, desc.Depth]);
    sent.values(&[desc.Format.0, desc.NumChannels, desc.Flags]);
    let mut handle = CUarray::NULL;
    let result = call(p, &mut handle);
    p.check(sent, false, result, &[]);
    let number = p.count_of("Array");
    p.minted("Array", handle.0);
    Array { handle, number, region, bytes: vec![0; bytes] }
}

/// An array of which nobody asks what it holds.
pub(crate) fn plain(p: &mut Program) -> Array {
    let ((format, channels, _), region) = (format(p), p.pick_region(true));
    let [width, height, depth] = [p.within(1, 100), p.within(1, 20), p.within(0, 3)].map(|n| n as usize);
    let desc = CUDA_ARRAY3D_DESCRIPTOR {
        Width: width,
        Height: height,
        Depth: depth,
        Format: format,
        NumChannels: channels,
        Flags: CUDA_ARRAY3D_SURFACE_LDST,
    };
    // SAFETY: a description, and a place.
    create(p, region, &desc, 0, |p, to| unsafe { p.cuda.cuArray3DCreate_v2.expect("exported")(to, &desc) })
}

pub(crate) fn destroy(p: &mut Program, array: Array) {
    let mut sent = Sent::new("cuArrayDestroy");
    sent.number(array.number);
    // SAFETY: a live array.
    let result = unsafe { p.cuda.cuArrayDestroy.expect("exported")(array.handle) };
    p.check(sent, false, result, &[]);
    p.forget("Array", array.handle.0);
}

/// A side of a copy as it has to arrive.
enum Side {
    Array(u64, [usize; 3]),
    Device(u64),
    Host,
}

impl Side {
    fn say(&self, sent: &mut Sent, size: [usize; 3]) {
        match self {
            Side::Array(number, corner) => {
                sent.value(CUmemorytype::ARRAY.0);
                sent.number(*number);
                sent.values(corner);
            }
            Side::Device(start) => {
                sent.value(CUmemorytype::DEVICE.0);
                sent.value(*start);
                sent.values(&size[..2]);
            }
            Side::Host => sent.value(CUmemorytype::HOST.0),
        }
    }
}

fn note(p: &mut Program, region: usize, dst: &Side, src: &Side, size: [usize; 3]) {
    let mut sent = Sent::new("cuMemcpy3DAsync_v2");
    dst.say(&mut sent, size);
    src.say(&mut sent, size);
    sent.values(&size);
    sent.number(p.region(region).number);
    p.check(sent, false, CUresult::SUCCESS, &[]);
}

impl Array {
    /// Copies bytes of a row from this program.
    fn bring(&mut self, p: &mut Program, host: &Host, at: usize, asynchronous: bool) {
        let count = host.before.len();
        let (from, stream): (*const c_void, _) = (host.address(), p.stream_of(self.region));
        // SAFETY: the array and the buffer have as many bytes.
        ok(unsafe {
            match asynchronous {
                true => p.cuda.cuMemcpyHtoAAsync_v2.expect("exported")(self.handle, at, from, count, stream),
                false => p.cuda.cuMemcpyHtoA_v2.expect("exported")(self.handle, at, from, count),
            }
        });
        note(p, self.region, &Side::Array(self.number, [at, 0, 0]), &Side::Host, [count, 1, 1]);
        p.region(self.region).up(count);
        self.bytes[at..at + count].copy_from_slice(&host.before);
    }

    /// Copies bytes of a row to this program.
    fn fetch(&self, p: &mut Program, at: usize, count: usize, asynchronous: bool) {
        let host = p.host(self.region, count);
        let (to, stream) = (host.address(), p.stream_of(self.region));
        // SAFETY: as above.
        ok(unsafe {
            match asynchronous {
                true => p.cuda.cuMemcpyAtoHAsync_v2.expect("exported")(to, self.handle, at, count, stream),
                false => p.cuda.cuMemcpyAtoH_v2.expect("exported")(to, self.handle, at, count),
            }
        });
        note(p, self.region, &Side::Host, &Side::Array(self.number, [at, 0, 0]), [count, 1, 1]);
        p.region(self.region).down(count);
        let expected = self.bytes[at..at + count].to_vec();
        p.arrives(self.region, host, expected, asynchronous, "a copy from an array");
    }
}

/// An array of one row.
fn lives(p: &mut Program, by: Option<By>, asynchronous: bool) {
    if !p.once_in(4) {
        return;
    }
    let region = p.pick_region(asynchronous);
    p.look_or_fill(region);
    let ((format, channels, element), width) = (format(p), p.within(1, 1_500) as usize);
    let flat = CUDA_ARRAY_DESCRIPTOR { Width: width, Height: 0, Format: format, NumChannels: channels };
    let desc = CUDA_ARRAY3D_DESCRIPTOR {
        Width: width,
        Height: 0,
        Depth: 0,
        Format: format,
        NumChannels: channels,
        Flags: 0,
    };
    let bytes = width * element;
    // SAFETY: a description, and a place.
    let mut array = create(p, region, &desc, bytes, |p, to| unsafe {
        p.cuda.cuArrayCreate_v2.expect("exported")(to, &flat)
    });
    let whole = p.host(region, bytes);
    array.bring(p, &whole, 0, asynchronous);
    let count = p.within(1, bytes as u64) as usize;
    let at = p.within(0, (bytes - count) as u64) as usize;
    let (place, base, handle) = (p.place(count), p.region(region).base, array.handle);
    let device = base + place as u64;
    let in_array = Side::Array(array.number, [at, 0, 0]);
    match by {
        None => {}
        Some(By::FromHost) => {
            let host = p.host(region, count);
            array.bring(p, &host, at, asynchronous);
        }
        Some(By::ToHost) => array.fetch(p, at, count, asynchronous),
        Some(By::FromDevice) => {
            // SAFETY: both have as many bytes; here and below.
            ok(unsafe { p.cuda.cuMemcpyDtoA_v2.expect("exported")(handle, at, device, count) });
            note(p, region, &in_array, &Side::Device(device), [count, 1, 1]);
            array.bytes[at..at + count].copy_from_slice(&p.region(region).bytes[place..place + count]);
        }
        Some(By::ToDevice) => {
            // SAFETY: as above.
            ok(unsafe { p.cuda.cuMemcpyAtoD_v2.expect("exported")(device, handle, at, count) });
            note(p, region, &Side::Device(device), &in_array, [count, 1, 1]);
            p.region(region).bytes[place..place + count].copy_from_slice(&array.bytes[at..at + count]);
        }
        Some(By::Within) => {
            // Two halves, which do not overlap.
            let half = bytes / 2;
            // SAFETY: as above.
            ok(unsafe { p.cuda.cuMemcpyAtoA_v2.expect("exported")(handle, 0, handle, bytes - half, half) });
            if half > 0 {
                let [to, from] = [0, bytes - half].map(|x| Side::Array(array.number, [x, 0, 0]));
                note(p, region, &to, &from, [half, 1, 1]);
            }
            array.bytes.copy_within(bytes - half.., 0);
        }
    }
    array.fetch(p, 0, bytes, asynchronous);
    crate::memory::synchronize(p, region);
    destroy(p, array);
}

/// An array of several rows and slices: a box goes to it, and all of it comes back.
fn boxes(p: &mut Program) {
    if !p.once_in(4) {
        return;
    }
    let region = p.pick_region(true);
    let (format, channels, element) = format(p);
    let [width, height, depth] = [p.within(1, 100), p.within(1, 20), p.within(0, 3)].map(|n| n as usize);
    let desc = CUDA_ARRAY3D_DESCRIPTOR {
        Width: width,
        Height: height,
        Depth: depth,
        Format: format,
        NumChannels: channels,
        Flags: if p.once_in(2) { CUDA_ARRAY3D_SURFACE_LDST } else { 0 },
    };
    let whole = [width * element, height, depth.max(1)];
    // SAFETY: a description, and a place.
    let mut array = create(p, region, &desc, whole.iter().product(), |p, to| unsafe {
        p.cuda.cuArray3DCreate_v2.expect("exported")(to, &desc)
    });
    copy_box(p, &mut array, whole, ([0; 3], whole), true);
    let corner = whole.map(|most| p.within(0, most as u64 - 1) as usize);
    let size: [usize; 3] =
        std::array::from_fn(|index| p.within(1, (whole[index] - corner[index]) as u64) as usize);
    copy_box(p, &mut array, whole, (corner, size), true);
    copy_box(p, &mut array, whole, ([0; 3], whole), false);
    crate::memory::synchronize(p, region);
    destroy(p, array);
}

/// Copies a box between an array and packed memory of this program.
fn copy_box(
    p: &mut Program,
    array: &mut Array,
    whole: [usize; 3],
    (corner, size): ([usize; 3], [usize; 3]),
    to_array: bool,
) {
    let count = size.iter().product();
    let (host, stream) = (p.host(array.region, count), p.stream_of(array.region));
    let [x, y, z] = corner;
    let memory = |is_array: bool| if is_array { CUmemorytype::ARRAY } else { CUmemorytype::HOST };
    let own = |is_array: bool| if is_array { array.handle } else { CUarray::NULL };
    let at = |is_array: bool| if is_array { corner } else { [0; 3] };
    let ([dstXInBytes, dstY, dstZ], [srcXInBytes, srcY, srcZ]) = (at(to_array), at(!to_array));
    let it = CUDA_MEMCPY3D {
        srcXInBytes,
        srcY,
        srcZ,
        srcLOD: 0,
        srcMemoryType: memory(!to_array),
        srcHost: host.address(),
        srcDevice: 0,
        srcArray: own(!to_array),
        reserved0: null_mut(),
        srcPitch: size[0],
        srcHeight: size[1],
        dstXInBytes,
        dstY,
        dstZ,
        dstLOD: 0,
        dstMemoryType: memory(to_array),
        dstHost: host.address(),
        dstDevice: 0,
        dstArray: own(to_array),
        reserved1: null_mut(),
        dstPitch: size[0],
        dstHeight: size[1],
        WidthInBytes: size[0],
        Height: size[1],
        Depth: size[2],
    };
    // SAFETY: both sides hold the box.
    ok(unsafe { p.cuda.cuMemcpy3DAsync_v2.expect("exported")(&it, stream) });
    let mut expected = Vec::new();
    for slice in 0..size[2] {
        // Slice by slice they travel.
        let side = Side::Array(array.number, [x, y, z + slice]);
        let (dst, src) = if to_array { (&side, &Side::Host) } else { (&Side::Host, &side) };
        note(p, array.region, dst, src, [size[0], size[1], 1]);
        for row in 0..size[1] {
            let start = ((z + slice) * whole[1] + y + row) * whole[0] + x;
            let place = &mut array.bytes[start..start + size[0]];
            let packed = (slice * size[1] + row) * size[0];
            match to_array {
                true => place.copy_from_slice(&host.before[packed..packed + size[0]]),
                false => expected.extend_from_slice(place),
            }
        }
    }
    if to_array {
        p.region(array.region).up(count);
    } else {
        p.region(array.region).down(count);
        p.arrives(array.region, host, expected, true, "a box from an array");
    }
}
