//! XORWOW (G. Marsaglia, "Xorshift RNGs", Journal of Statistical Software 8, 2003): a linear map of
//! 160 bits and a counter.

use std::sync::OnceLock;

use super::{STREAMS, SplitMix, steps_of_stream};

/// What is added to the counter at each step.
pub(crate) const WEYL: u32 = 362_437;

/// Bits of the linear part.
const BITS: usize = 160;

/// Streams are `2^67` steps apart. The distance is chosen here: 4096 streams take `2^79` of the
/// linear part's `2^160 - 1` steps.
const STREAM_LOG: usize = 67;

type Linear = [u32; 5];

/// The state: the linear part, which is not zero, and the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) linear: Linear,
    pub(crate) counter: u32,
}

/// A linear map: the images of the bits.
type Map = Vec<Linear>;

impl State {
    pub(crate) fn from_seed(seed: u64) -> State {
        let mut seeds = SplitMix(seed);
        let mut linear = [0; 5];
        // One state of 2^160 is not allowed, and another draw makes it impossible in practice.
        while linear == [0; 5] {
            for word in &mut linear {
                *word = (seeds.next() >> 32) as u32;
            }
        }
        State { linear, counter: (seeds.next() >> 32) as u32 }
    }
}

fn step(v: Linear) -> Linear {
    let t = v[0] ^ (v[0] >> 2);
    [v[1], v[2], v[3], v[4], (v[4] ^ (v[4] << 4)) ^ (t ^ (t << 1))]
}

fn apply(map: &Map, v: Linear) -> Linear {
    let mut image = [0; 5];
    for (bit, column) in map.iter().enumerate() {
        if v[bit / 32] >> (bit % 32) & 1 == 1 {
            for (word, part) in image.iter_mut().zip(column) {
                *word ^= part;
            }
        }
    }
    image
}

/// The maps of `2^n` steps, for `n` up to the distance of streams.
fn powers() -> &'static [Map] {
    static POWERS: OnceLock<Vec<Map>> = OnceLock::new();
    POWERS.get_or_init(|| {
        let unit = |bit: usize| {
            let mut v = [0; 5];
            v[bit / 32] = 1 << (bit % 32);
            step(v)
        };
        let mut powers: Vec<Map> = vec![(0..BITS).map(unit).collect()];
        for n in 0..STREAM_LOG {
            let square = powers[n].iter().map(|column| apply(&powers[n], *column)).collect();
            powers.push(square);
        }
        powers
    })
}

fn jump(state: State, steps: u64) -> State {
    let maps = (0..64).filter(|n| steps >> n & 1 == 1).map(|n| &powers()[n]);
    State {
        linear: maps.fold(state.linear, |v, map| apply(map, v)),
        counter: state.counter.wrapping_add(WEYL.wrapping_mul(steps as u32)),
    }
}

/// The states of all streams at a position, word by word: the linear part's words of each stream,
/// then the counters.
pub(crate) fn states(seed: u64, position: u64) -> Vec<u32> {
    let start = State::from_seed(seed);
    let distance = &powers()[STREAM_LOG];
    let count = STREAMS as usize;
    let mut words = vec![0; 6 * count];
    // Streams are a multiple of 2^32 steps apart, so their counters are equal.
    let [behind, ahead] = [STREAMS - 1, 0].map(|stream| steps_of_stream(position, stream));
    let mut states = [behind, ahead].map(|steps| jump(start, steps));
    for stream in 0..count {
        let is_ahead = steps_of_stream(position, stream as u64) != behind;
        let state = states[usize::from(is_ahead)];
        for (place, word) in state.linear.into_iter().chain([state.counter]).enumerate() {
            words[place * count + stream] = word;
        }
        for state in &mut states {
            state.linear = apply(distance, state.linear);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_is_as_many_steps() {
        let start = State::from_seed(1);
        let mut stepped = start;
        for steps in 0..300 {
            assert_eq!(jump(start, steps), stepped, "{steps}");
            stepped.linear = step(stepped.linear);
            stepped.counter = stepped.counter.wrapping_add(WEYL);
        }
        // Jumps are powers of one map, so they add up.
        assert_eq!(jump(jump(start, 1 << 40), 12_345), jump(start, (1 << 40) + 12_345));
    }

    #[test]
    fn streams_before_the_position_are_a_step_ahead() {
        let count = STREAMS as usize;
        let (start, later) = (states(7, 0), states(7, STREAMS + 2));
        let state = |words: &[u32], stream: usize| {
            let linear = std::array::from_fn(|place| words[place * count + stream]);
            State { linear, counter: words[5 * count + stream] }
        };
        for (stream, steps) in [(0, 2), (1, 2), (2, 1), (count - 1, 1)] {
            assert_eq!(state(&later, stream), jump(state(&start, stream), steps), "{stream}");
        }
        assert_eq!(state(&start, 0), State::from_seed(7));
    }
}
