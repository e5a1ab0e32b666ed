//! What a driver answers to a call, as a function of the bytes of its arguments: caller and driver come to the same
//! answer if, and only if, every byte has arrived.

use sluice_cuda::CUresult;

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
    /// To a function with these arguments. Nobody hears of a failure of a function that does not wait, until later.
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

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}
