//! Device memory as it has to be: each stream has a region of its own, and this program does to its
//! copy of a region what it asks the driver to do.

use std::ffi::c_void;

use sluice_cuda::{CUdeviceptr, CUstream};

use crate::answer::{FILL, LOOK, digest, filled};
use crate::program::{Program, Sent, ok};

/// Bytes of a region.
pub(crate) const REGION: usize = 12 << 20;
/// Bytes of host memory that came from CUDA, for each region.
const PINNED: usize = 8 << 20;
/// More bytes than a piece of a copy has anywhere on the way.
const LARGE: u64 = 3 << 20;

#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) regions: Vec<Region>,
}

/// A stream's part of device memory.
pub(crate) struct Region {
    pub(crate) stream: CUstream,
    pub(crate) number: u64,
    pub(crate) base: CUdeviceptr,
    pub(crate) bytes: Vec<u8>,
    /// Bytes that were copied to the device and from it.
    copied: [u64; 2],
    pinned: *mut u8,
    /// How much of that the stream may still use.
    used: usize,
    /// What has to be in host memory once the stream is done.
    landing: Vec<(*const u8, Vec<u8>)>,
}

/// Host memory for one copy. Pinned memory is the stream's until that is done.
pub(crate) struct Host {
    own: Option<Vec<u8>>,
    start: *mut u8,
    /// What it held when it was given out.
    pub(crate) before: Vec<u8>,
}

impl Host {
    pub(crate) fn address(&self) -> *mut c_void {
        self.start.cast()
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.own.is_none()
    }

    fn contents(&self) -> &[u8] {
        // SAFETY: as many bytes, of a vector that lives as long or of pinned memory; nobody writes
        // them by now.
        unsafe { std::slice::from_raw_parts(self.start, self.before.len()) }
    }
}

impl Memory {
    pub(crate) fn new(p: &Program) -> Memory {
        let region = |(stream, number)| {
            let (mut base, mut pinned) = (0, std::ptr::null_mut());
            // SAFETY: every place is a local, and the memory is as long as the copy of it.
            unsafe {
                ok(p.cuda.cuMemAlloc_v2.expect("exported")(&mut base, REGION));
                ok(p.cuda.cuMemsetD8Async.expect("exported")(base, 0, REGION, stream));
                ok(p.cuda.cuMemHostAlloc.expect("exported")(&mut pinned, PINNED, 0));
            }
            let (bytes, landing) = (vec![0; REGION], Vec::new());
            Region { stream, number, base, bytes, copied: [0; 2], pinned: pinned.cast(), used: 0, landing }
        };
        Memory { regions: p.streams().into_iter().map(region).collect() }
    }
}

impl Region {
    pub(crate) fn up(&mut self, bytes: usize) {
        self.copied[0] += bytes as u64;
    }

    pub(crate) fn down(&mut self, bytes: usize) {
        self.copied[1] += bytes as u64;
    }
}

impl Program {
    pub(crate) fn region(&mut self, index: usize) -> &mut Region {
        &mut self.copied.regions[index]
    }

    /// The region of a stream: of the default one for calls that name none.
    pub(crate) fn pick_region(&mut self, asynchronous: bool) -> usize {
        let regions = self.copied.regions.len() as u64;
        if asynchronous {
            return self.within(0, regions - 1) as usize;
        }
        let number = self.default_stream();
        let is_it = |region: &Region| region.number == number;
        self.copied.regions.iter().position(is_it).expect("every program has that stream")
    }

    /// Most copies are small; some are larger than any piece in which they travel.
    pub(crate) fn size(&mut self) -> usize {
        let most = match self.within(0, 31) {
            0..=13 => 300,
            14..=23 => 9_000,
            24..=27 => 70_000,
            28..=30 => 600_000,
            _ => LARGE,
        };
        self.within(1, most) as usize
    }

    /// A place in a region with so many bytes behind it.
    pub(crate) fn place(&mut self, bytes: usize) -> usize {
        self.within(0, (REGION - bytes) as u64) as usize
    }

    /// Two places that do not overlap.
    pub(crate) fn two_places(&mut self, bytes: [usize; 2]) -> [usize; 2] {
        let half = REGION / 2;
        let places = bytes.map(|bytes| self.within(0, (half - bytes) as u64) as usize);
        if self.once_in(2) { [places[0], half + places[1]] } else { [half + places[0], places[1]] }
    }

    /// Host memory that holds random bytes.
    pub(crate) fn host(&mut self, index: usize, count: usize) -> Host {
        let before = self.bytes(count);
        if self.once_in(2) || self.region(index).used + count > PINNED {
            let mut own = self.bytes(count + 64);
            let offset = self.within(0, 63) as usize;
            own[offset..offset + count].copy_from_slice(&before);
            let start = own[offset..].as_mut_ptr();
            return Host { own: Some(own), start, before };
        }
        let region = self.region(index);
        // SAFETY: there is room for as many bytes, which the stream does not use any more.
        let start = unsafe { region.pinned.add(region.used) };
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(before.as_ptr(), start, count) };
        region.used += count;
        Host { own: None, start, before }
    }

    /// A copy to the host has been asked for: its bytes are compared, or will be when the stream is
    /// done.
    pub(crate) fn arrives(
        &mut self,
        index: usize,
        host: Host,
        expected: Vec<u8>,
        asynchronous: bool,
        what: &str,
    ) {
        if asynchronous && host.is_pinned() {
            self.region(index).landing.push((host.start, expected));
        } else {
            same(host.contents(), &expected, what);
        }
    }

    /// Now and then: what lies on the device is asked for, or changed there.
    pub(crate) fn look_or_fill(&mut self, index: usize) {
        if self.region(index).used > PINNED / 2 {
            synchronize(self, index);
        }
        match self.within(0, 11) {
            0 => {
                let (count, at) = self.any_range();
                look_in_region(self, index, at / 8 * 8, count);
            }
            1 => {
                let (count, at) = self.any_range();
                let at = at / 8 * 8;
                let address = self.region(index).base + at as u64;
                let bytes = fill(self, index, address, count);
                self.region(index).bytes[at..at + count].copy_from_slice(&bytes);
            }
            2 => synchronize(self, index),
            _ => {}
        }
        // While work is under way that may write to pinned memory, copies from there go another
        // way.
        self.synchronize();
    }

    fn any_range(&mut self) -> (usize, usize) {
        let count = self.size();
        (count, self.place(count))
    }
}

/// A request to the driver of the exchange: a write that it does not make.
fn request(p: &mut Program, index: usize, address: CUdeviceptr, what: u64, count: usize) {
    let region = &p.copied.regions[index];
    let (stream, number) = (region.stream, region.number);
    let value = what << 32 | count as u64;
    let mut sent = Sent::new("cuStreamWriteValue64_v2");
    sent.number(number);
    sent.value(address);
    sent.value(value);
    sent.value(0u32);
    // SAFETY: numbers and a live stream.
    let result = unsafe { p.cuda.cuStreamWriteValue64_v2.expect("exported")(stream, address, value, 0) };
    p.check(sent, false, result, &[]);
}

/// The driver writes bytes to device memory, behind all that is in the stream of a region: these.
pub(crate) fn fill(p: &mut Program, index: usize, address: CUdeviceptr, count: usize) -> Vec<u8> {
    request(p, index, address, FILL, count);
    filled(address, count)
}

/// The driver is to see these bytes, once it has done all that is in the stream of a region.
pub(crate) fn look(p: &mut Program, index: usize, address: CUdeviceptr, expected: &[u8]) {
    let count = expected.len();
    request(p, index, address, LOOK, count);
    let region = &p.copied.regions[index];
    let (number, hash, [up, down]) = (region.number, digest(expected), region.copied);
    p.line(&format!("look {number:x} {address:x} {count:x} {hash:016x} up {up:x} down {down:x}"));
}

fn look_in_region(p: &mut Program, index: usize, at: usize, count: usize) {
    let region = p.region(index);
    let (address, expected) = (region.base + at as u64, region.bytes[at..at + count].to_vec());
    look(p, index, address, &expected);
}

/// Waits for the stream; all it was to write to host memory is there.
pub(crate) fn synchronize(p: &mut Program, index: usize) {
    let region = p.region(index);
    let (stream, landing) = (region.stream, std::mem::take(&mut region.landing));
    region.used = 0;
    // SAFETY: a live stream.
    ok(unsafe { p.cuda.cuStreamSynchronize.expect("exported")(stream) });
    for (start, expected) in landing {
        // SAFETY: pinned memory, which the stream does not use any more.
        same(unsafe { std::slice::from_raw_parts(start, expected.len()) }, &expected, "an asynchronous copy");
    }
}

/// Everything, once more.
pub(crate) fn compare_all(p: &mut Program) {
    for index in 0..p.copied.regions.len() {
        look_in_region(p, index, 0, REGION);
        synchronize(p, index);
    }
}

pub(crate) fn same(got: &[u8], expected: &[u8], what: &str) {
    if let Some(at) = got.iter().zip(expected).position(|(got, expected)| got != expected) {
        panic!("{what}: byte {at} of {} is {:#x} and not {:#x}", expected.len(), got[at], expected[at]);
    }
}
