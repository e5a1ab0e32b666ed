//! Sobol' sequences with the direction numbers of S. Joe and F. Y. Kuo ("Constructing Sobol
//! sequences with better two-dimensional projections", SIAM J. Sci. Comput. 30, 2008).

/// Bits of a coordinate.
pub(crate) const BITS: usize = 32;

/// The polynomials and the initial numbers of the dimensions from the second on: the degree is the
/// number of initial numbers, and the inner coefficients are the bits of the first number.
const DIMENSIONS: [(u32, &[u32]); 20] = [
    (0, &[1]),
    (1, &[1, 3]),
    (1, &[1, 3, 1]),
    (2, &[1, 1, 1]),
    (1, &[1, 1, 3, 3]),
    (4, &[1, 3, 5, 13]),
    (2, &[1, 1, 5, 5, 17]),
    (4, &[1, 1, 5, 5, 5]),
    (7, &[1, 1, 7, 11, 19]),
    (11, &[1, 1, 5, 1, 1]),
    (13, &[1, 1, 1, 3, 11]),
    (14, &[1, 3, 5, 5, 31]),
    (1, &[1, 3, 3, 9, 7, 49]),
    (13, &[1, 1, 1, 15, 21, 21]),
    (16, &[1, 3, 1, 13, 27, 49]),
    (19, &[1, 1, 1, 15, 7, 5]),
    (22, &[1, 3, 1, 15, 13, 25]),
    (25, &[1, 1, 5, 5, 19, 61]),
    (1, &[1, 3, 7, 11, 23, 15, 103]),
    (4, &[1, 3, 7, 13, 13, 15, 69]),
];

/// The most dimensions of a generator.
pub(crate) const DIMENSIONS_MAX: u32 = 1 + DIMENSIONS.len() as u32;

/// The direction numbers of the first dimensions, those of the first bit first.
pub(crate) fn directions(dimensions: u32) -> Vec<u32> {
    let first = (0..BITS).map(|bit| 1_u32 << (BITS - 1 - bit));
    let others = DIMENSIONS.iter().take(dimensions as usize - 1);
    first.chain(others.flat_map(|&(inner, initial)| numbers(inner, initial))).collect()
}

fn numbers(inner: u32, initial: &[u32]) -> [u32; BITS] {
    let degree = initial.len();
    let mut numbers = [0; BITS];
    for bit in 0..BITS {
        numbers[bit] = match initial.get(bit) {
            Some(number) => number << (BITS - 1 - bit),
            None => {
                let last = numbers[bit - degree];
                let taken = (1..degree).filter(|at| inner >> (degree - 1 - at) & 1 == 1);
                taken.fold(last ^ (last >> degree), |sum, at| sum ^ numbers[bit - at])
            }
        };
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dimension_halves_the_unit_interval_evenly() {
        // The first 2^k points of a coordinate are in different intervals of length 2^-k.
        let dimensions = DIMENSIONS_MAX;
        let directions = directions(dimensions);
        for dimension in 0..dimensions as usize {
            let numbers = &directions[dimension * BITS..][..BITS];
            let points: std::collections::HashSet<u32> = (0..256_u32)
                .map(|index| {
                    let bits = (0..8).filter(|bit| index >> bit & 1 == 1);
                    bits.fold(0, |x, bit| x ^ numbers[bit]) >> 24
                })
                .collect();
            assert_eq!(points.len(), 256, "dimension {dimension}");
        }
    }
}
