//! Fills of device memory that CUDA calls synchronous. They travel as those that are not do.

use sluice_cuda::{CUdeviceptr, CUresult};

use crate::program::{Program, Sent};

pub(crate) const FUNCTIONS: crate::Calls = &[
    ("cuMemsetD8_v2", cuMemsetD8_v2),
    ("cuMemsetD16_v2", cuMemsetD16_v2),
    ("cuMemsetD32_v2", cuMemsetD32_v2),
    ("cuMemsetD2D8_v2", cuMemsetD2D8_v2),
    ("cuMemsetD2D16_v2", cuMemsetD2D16_v2),
    ("cuMemsetD2D32_v2", cuMemsetD2D32_v2),
];

/// A row of elements.
fn row<T: Copy>(
    p: &mut Program,
    name: &'static str,
    call: impl FnOnce(&Program, CUdeviceptr, T, usize) -> CUresult,
) {
    let region = p.pick_region(false);
    p.look_or_fill(region);
    let (value, count) = (p.value::<T>(), p.size());
    let bytes = count * size_of::<T>();
    let at = p.place(bytes) / size_of::<T>() * size_of::<T>();
    let address = p.region(region).base + at as u64;
    let result = call(p, address, value, count);
    let mut sent = Sent::new(name);
    sent.value(address);
    sent.value(value);
    sent.value(count);
    sent.number(p.region(region).number);
    p.check(sent, false, result, &[]);
    fill(&mut p.region(region).bytes[at..at + bytes], value);
}

/// Rows of elements.
fn rows<T: Copy>(
    p: &mut Program,
    name: &'static str,
    call: impl FnOnce(&Program, CUdeviceptr, usize, T, usize, usize) -> CUresult,
) {
    let region = p.pick_region(false);
    p.look_or_fill(region);
    let element = size_of::<T>();
    let (value, width, height) = (p.value::<T>(), p.within(1, 500) as usize, p.within(1, 30) as usize);
    let pitch = (width + p.within(0, 100) as usize) * element;
    let extent = (height - 1) * pitch + width * element;
    let at = p.place(extent) / element * element;
    let address = p.region(region).base + at as u64;
    let result = call(p, address, pitch, value, width, height);
    let mut sent = Sent::new(name);
    sent.value(address);
    sent.value(pitch);
    sent.value(value);
    sent.value(width);
    sent.value(height);
    sent.number(p.region(region).number);
    p.check(sent, false, result, &[]);
    for row in p.region(region).bytes[at..at + extent].chunks_mut(pitch) {
        fill(&mut row[..width * element], value);
    }
}

fn fill<T: Copy>(bytes: &mut [u8], value: T) {
    let value = crate::program::bytes_of(&value);
    bytes.chunks_exact_mut(value.len()).for_each(|element| element.copy_from_slice(value));
}

fn cuMemsetD8_v2(p: &mut Program) {
    // SAFETY: so many elements are there, here and below.
    row::<u8>(p, "cuMemsetD8Async", |p, to, value, count| unsafe {
        p.cuda.cuMemsetD8_v2.expect("exported")(to, value, count)
    });
}

fn cuMemsetD16_v2(p: &mut Program) {
    // SAFETY: as above.
    row::<u16>(p, "cuMemsetD16Async", |p, to, value, count| unsafe {
        p.cuda.cuMemsetD16_v2.expect("exported")(to, value, count)
    });
}

fn cuMemsetD32_v2(p: &mut Program) {
    // SAFETY: as above.
    row::<u32>(p, "cuMemsetD32Async", |p, to, value, count| unsafe {
        p.cuda.cuMemsetD32_v2.expect("exported")(to, value, count)
    });
}

fn cuMemsetD2D8_v2(p: &mut Program) {
    // SAFETY: as above.
    rows::<u8>(p, "cuMemsetD2D8Async", |p, to, pitch, value, width, height| unsafe {
        p.cuda.cuMemsetD2D8_v2.expect("exported")(to, pitch, value, width, height)
    });
}

fn cuMemsetD2D16_v2(p: &mut Program) {
    // SAFETY: as above.
    rows::<u16>(p, "cuMemsetD2D16Async", |p, to, pitch, value, width, height| unsafe {
        p.cuda.cuMemsetD2D16_v2.expect("exported")(to, pitch, value, width, height)
    });
}

fn cuMemsetD2D32_v2(p: &mut Program) {
    // SAFETY: as above.
    rows::<u32>(p, "cuMemsetD2D32Async", |p, to, pitch, value, width, height| unsafe {
        p.cuda.cuMemsetD2D32_v2.expect("exported")(to, pitch, value, width, height)
    });
}
