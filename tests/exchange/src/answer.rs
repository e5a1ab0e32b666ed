//! What a driver answers to a call, as a function of the bytes of its arguments: caller and driver
//! come to the same answer if, and only if, every byte has arrived. And what both ends have to
//! agree on beside.

use std::ptr::null_mut;

use sluice_cuda::{CUDA_MEMCPY3D, CUarray, CUgraphEdgeData, CUmemorytype, CUresult};

/// Introduces a handle to the driver: the call that has this number plus n tells it of the n-th of
/// its kind.
pub(crate) const MARK: u32 = 0x5eed_0000;
/// A write of 64 bits to device memory with this in its upper half asks the driver for a line about
/// as many bytes as its lower half says, from that address.
pub(crate) const LOOK: u64 = 0x5eed_1001;
/// Asks as [`LOOK`] does, and the driver writes bytes that follow from address and number of bytes.
pub(crate) const FILL: u64 = 0x5eed_1002;
/// The number of a context's default stream, which nobody makes.
pub(crate) const DEFAULT_STREAM: u64 = u64::MAX;

/// An answer, to be drawn piece by piece.
pub(crate) struct Answer {
    state: u64,
    result: CUresult,
}

/// Errors that end nothing.
const ERRORS: [CUresult; 5] = [
    CUresult::INVALID_VALUE,
    CUresult::OUT_OF_MEMORY,
    CUresult::INVALID_HANDLE,
    CUresult::NOT_READY,
    CUresult::NOT_SUPPORTED,
];

impl Answer {
    /// To a function with these arguments. Nobody hears of a failure of a function that does not
    /// wait, until later.
    pub(crate) fn to(function: &str, arguments: &[u8], waits: bool) -> Answer {
        // FNV-1a.
        let hash = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        let start = function.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, hash);
        let mut answer = Answer { state: arguments.iter().fold(start, hash), result: CUresult::SUCCESS };
        let draw = answer.next();
        if waits && draw.is_multiple_of(4) {
            answer.result = ERRORS[(draw >> 8) as usize % ERRORS.len()];
        }
        answer
    }

    pub(crate) fn result(&self) -> CUresult {
        self.result
    }

    /// The next bytes that it writes.
    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }

    pub(crate) fn next(&mut self) -> u64 {
        next(&mut self.state)
    }

    /// What an attribute of a function's code is.
    pub(crate) fn attribute(function: &[u8], attribute: u32) -> i32 {
        let number = [function, &attribute.to_le_bytes()].concat();
        Answer::to("cuFuncGetAttribute", &number, false).next() as i32
    }

    /// One of so many.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    pub(crate) fn numbers<const N: usize>(&mut self) -> [u32; N] {
        std::array::from_fn(|_| self.next() as u32)
    }

    /// A copy between two places on the device.
    pub(crate) fn copy(&mut self) -> CUDA_MEMCPY3D {
        // No sum of them is too large for an address.
        let mut number = || (self.next() & 0xffff) as usize;
        let mut side = || [number(), number(), number(), number(), number()];
        let ([srcXInBytes, srcY, srcZ, srcPitch, srcHeight], [dstXInBytes, dstY, dstZ, dstPitch, dstHeight]) =
            (side(), side());
        let [WidthInBytes, Height, Depth, ..] = side();
        CUDA_MEMCPY3D {
            srcXInBytes,
            srcY,
            srcZ,
            srcLOD: 0,
            srcMemoryType: CUmemorytype::DEVICE,
            srcHost: null_mut(),
            srcDevice: self.next() >> 16,
            srcArray: CUarray::NULL,
            reserved0: null_mut(),
            srcPitch,
            srcHeight,
            dstXInBytes,
            dstY,
            dstZ,
            dstLOD: 0,
            dstMemoryType: CUmemorytype::DEVICE,
            dstHost: null_mut(),
            dstDevice: self.next() >> 16,
            dstArray: CUarray::NULL,
            reserved1: null_mut(),
            dstPitch,
            dstHeight,
            WidthInBytes,
            Height,
            Depth,
        }
    }

    /// Operations on memory; each has a kind, an address, a value and flags.
    pub(crate) fn operations(&mut self) -> Drawn {
        let flags = self.next() as u32;
        let count = 1 + self.below(8);
        let words = (0..count).map(|_| {
            let [kind, bits] = self.numbers();
            [kind.into(), self.next(), self.next(), bits.into(), 0, 0]
        });
        Drawn { words: words.collect(), flags }
    }

    /// Some of so many nodes, or edges between them.
    pub(crate) fn items(&mut self, nodes: usize) -> Vec<Item> {
        let count = if nodes == 0 { 0 } else { self.below(6) };
        let plain = self.below(2) == 0;
        let item = |_| {
            let ends = [self.below(nodes), self.below(nodes)];
            let [from_port, to_port, kind] = if plain { [0; 3] } else { self.numbers().map(|n| n as u8) };
            Item { nodes: ends, edge: CUgraphEdgeData { from_port, to_port, kind, reserved: [0; 5] } }
        };
        (0..count).map(item).collect()
    }
}

/// What a node of memory operations is said to do.
pub(crate) struct Drawn {
    pub(crate) words: Vec<[u64; 6]>,
    pub(crate) flags: u32,
}

/// A node, or an edge between two; nodes by their place among those that live.
pub(crate) struct Item {
    pub(crate) nodes: [usize; 2],
    pub(crate) edge: CUgraphEdgeData,
}

/// SplitMix64.
pub(crate) fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// So many random bytes.
pub(crate) fn random_bytes(mut seed: u64, count: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        bytes.extend_from_slice(&next(&mut seed).to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

/// The bytes that [`FILL`] asks for.
pub(crate) fn filled(address: u64, count: usize) -> Vec<u8> {
    random_bytes(address.rotate_left(20) ^ count as u64, count)
}

/// What stands for many bytes in a line.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, word: u64| {
        let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^ hash >> 29
    };
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(bytes.len() as u64, mix)
}
