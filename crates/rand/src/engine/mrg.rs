//! MRG32k3a (P. L'Ecuyer, "Good parameters and implementations for combined multiple recursive
//! random number generators", Operations Research 47, 1999).

use super::{STREAMS, SplitMix, steps_of_stream};

/// The moduli of the two recurrences.
pub(crate) const M1: u64 = 4_294_967_087;
pub(crate) const M2: u64 = 4_294_944_443;

/// The recurrences' coefficients; the second of each pair is subtracted.
pub(crate) const A12: u64 = 1_403_580;
pub(crate) const A13: u64 = 810_728;
pub(crate) const A21: u64 = 527_612;
pub(crate) const A23: u64 = 1_370_589;

/// Streams are `2^76` steps apart, the length of a substream in the published package of this
/// generator (P. L'Ecuyer, R. Simard, E. J. Chen, W. D. Kelton, "An object-oriented random-number
/// package with many long streams and substreams", 2002).
const STREAM_LOG: u32 = 76;

type Vector = [u64; 3];
type Matrix = [Vector; 3];

/// One of the two recurrences: its map of a step, and its modulus.
struct Recurrence {
    map: Matrix,
    modulus: u64,
}

fn recurrences() -> [Recurrence; 2] {
    [
        Recurrence { map: [[0, 1, 0], [0, 0, 1], [M1 - A13, A12, 0]], modulus: M1 },
        Recurrence { map: [[0, 1, 0], [0, 0, 1], [M2 - A23, 0, A21]], modulus: M2 },
    ]
}

impl Recurrence {
    fn apply(&self, map: &Matrix, v: Vector) -> Vector {
        // Each product is below 2^64, and each remainder below 2^32.
        std::array::from_fn(|row| {
            (0..3).map(|at| map[row][at] * v[at] % self.modulus).sum::<u64>() % self.modulus
        })
    }

    fn square(&self, map: &Matrix) -> Matrix {
        let columns: [Vector; 3] =
            std::array::from_fn(|column| self.apply(map, std::array::from_fn(|row| map[row][column])));
        std::array::from_fn(|row| std::array::from_fn(|column| columns[column][row]))
    }

    fn jump(&self, v: Vector, steps: u64) -> Vector {
        let (mut v, mut map) = (v, self.map);
        for bit in 0..64 {
            if steps >> bit & 1 == 1 {
                v = self.apply(&map, v);
            }
            map = self.square(&map);
        }
        v
    }

    fn stream_distance(&self) -> Matrix {
        (0..STREAM_LOG).fold(self.map, |map, _| self.square(&map))
    }
}

/// The two recurrences' last three values, the oldest first.
pub(crate) fn from_seed(seed: u64) -> [Vector; 2] {
    let mut seeds = SplitMix(seed);
    // From 1 on, so that no recurrence begins with zeros alone.
    [M1, M2].map(|modulus| std::array::from_fn(|_| 1 + seeds.next() % (modulus - 1)))
}

/// The states of all streams at a position, word by word: six words of each stream.
pub(crate) fn states(seed: u64, position: u64) -> Vec<u32> {
    let count = STREAMS as usize;
    let mut words = vec![0; 6 * count];
    for (half, (recurrence, start)) in recurrences().iter().zip(from_seed(seed)).enumerate() {
        let distance = recurrence.stream_distance();
        let behind = steps_of_stream(position, STREAMS - 1);
        let mut states = [behind, behind + 1].map(|steps| recurrence.jump(start, steps));
        for stream in 0..count {
            let is_ahead = steps_of_stream(position, stream as u64) != behind;
            for (place, value) in states[usize::from(is_ahead)].into_iter().enumerate() {
                words[(half * 3 + place) * count + stream] = value as u32;
            }
            states = states.map(|state| recurrence.apply(&distance, state));
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_results_are_the_published_ones() {
        // From the seeds 12345 that L'Ecuyer's programs begin with.
        let [first, second] = recurrences();
        let (mut a, mut b) = ([12_345; 3], [12_345; 3]);
        let mut next = || {
            (a, b) = (first.apply(&first.map, a), second.apply(&second.map, b));
            let z = if a[2] > b[2] { a[2] - b[2] } else { a[2] + M1 - b[2] };
            z as f64 / (M1 + 1) as f64
        };
        for expected in [0.127011122046577, 0.318527565396794, 0.309186015583270] {
            let found = next();
            assert!((found - expected).abs() < 1e-13, "{found} {expected}");
        }
    }

    #[test]
    fn a_jump_is_as_many_steps() {
        for recurrence in recurrences() {
            let start = [1, 2, 3];
            let mut stepped = start;
            for steps in 0..100 {
                assert_eq!(recurrence.jump(start, steps), stepped, "{steps}");
                stepped = recurrence.apply(&recurrence.map, stepped);
            }
            let whole = recurrence.jump(start, (1 << 40) + 77);
            assert_eq!(recurrence.jump(recurrence.jump(start, 1 << 40), 77), whole);
        }
    }
}
