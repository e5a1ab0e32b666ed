//! The parts of the generators' algorithms that are computed on the host: states from seeds, jumps
//! along sequences, tables.

pub(crate) mod mersenne;
pub(crate) mod mrg;
pub(crate) mod poisson;
pub(crate) mod sobol;
pub(crate) mod xorwow;

/// The sequences of XORWOW and of MRG32k3a that take turns in the results. The number is chosen
/// here: it is as many threads as one launch gives work to.
pub(crate) const STREAMS: u64 = 4096;

/// The steps that each stream of a generator has been advanced by when the next result is that at
/// `position` of all: the streams before the next one are a step ahead.
pub(crate) fn steps_of_stream(position: u64, stream: u64) -> u64 {
    position / STREAMS + u64::from(stream < position % STREAMS)
}

/// The generator of seeds SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
/// generators", 2014): it spreads a seed over the words of a state.
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// The bytes of numbers as the device has them.
pub(crate) fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
