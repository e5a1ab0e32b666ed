//! The order in which the blocks of a launch run.
//!
//! CUDA leaves it open (CUDA C++ Programming Guide, Thread Hierarchy), so a kernel that is right in
//! one order and wrong in another has a race. A single thread runs the blocks of an ordered launch,
//! so that the same launch does the same each time.

use std::num::ParseIntError;
use std::str::FromStr;

/// How the blocks of a launch follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockOrder {
    /// All threads of the executor run blocks side by side.
    #[default]
    Parallel,
    /// One block at a time, by their indices.
    Fixed,
    /// One block at a time, in an order that follows from this seed and the number of the launch.
    /// Kernels in which threads wait for others in a loop keep the order of indices, since they may
    /// wait for blocks before them.
    Random(u64),
}

/// A text that names no order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no order of blocks: parallel, fixed, or random:SEED")]
pub struct UnknownOrder(String);

impl FromStr for BlockOrder {
    type Err = UnknownOrder;

    fn from_str(text: &str) -> Result<BlockOrder, UnknownOrder> {
        let seed = |seed: &str| -> Result<u64, ParseIntError> { seed.parse() };
        match text.split_once(':') {
            None if text == "parallel" => Ok(BlockOrder::Parallel),
            None if text == "fixed" => Ok(BlockOrder::Fixed),
            Some(("random", number)) => {
                seed(number).map(BlockOrder::Random).map_err(|_| UnknownOrder(text.into()))
            }
            _ => Err(UnknownOrder(text.into())),
        }
    }
}

impl BlockOrder {
    /// Whether one block runs at a time.
    pub(crate) fn is_sequential(self) -> bool {
        self != BlockOrder::Parallel
    }

    /// The key of a launch's permutation.
    pub(crate) fn key(self, launch: u64) -> Option<u64> {
        match self {
            BlockOrder::Random(seed) => Some(mix(seed ^ mix(launch))),
            BlockOrder::Parallel | BlockOrder::Fixed => None,
        }
    }
}

/// The place of `number` in a permutation of the numbers below `count`: a Feistel network of four
/// rounds over the next power of four, repeated until the result is below `count`.
pub(crate) fn permuted(number: u64, count: u64, key: u64) -> u64 {
    let half = (64 - count.saturating_sub(1).leading_zeros()).div_ceil(2).max(1);
    let mask = (1 << half) - 1;
    let mut place = number;
    loop {
        let (mut left, mut right) = (place >> half, place & mask);
        for round in 0..4 {
            (left, right) = (right, left ^ (mix(key ^ right ^ (round << 60)) & mask));
        }
        place = left << half | right;
        if place < count {
            return place;
        }
    }
}

/// The finalizer of SplitMix64.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_number_has_a_place_of_its_own() {
        for count in [1, 2, 3, 16, 17, 1000, 4097] {
            for key in [0, 1, u64::MAX] {
                let places: BTreeSet<u64> = (0..count).map(|number| permuted(number, count, key)).collect();
                assert_eq!(places, (0..count).collect(), "{count} with key {key}");
            }
        }
        assert!(permuted(u64::MAX / 2 - 1, u64::MAX / 2, 5) < u64::MAX / 2);
    }

    #[test]
    fn orders_follow_from_seed_and_launch() {
        let order = |seed, launch| {
            let key = BlockOrder::Random(seed).key(launch).unwrap();
            (0..64).map(|number| permuted(number, 64, key)).collect::<Vec<_>>()
        };
        assert_eq!(order(7, 1), order(7, 1));
        assert_ne!(order(7, 1), order(7, 2));
        assert_ne!(order(7, 1), order(8, 1));
        assert_ne!(order(7, 1), (0..64).collect::<Vec<_>>());
        assert_eq!(BlockOrder::Fixed.key(1), None);
    }

    #[test]
    fn orders_are_read_as_they_are_written() {
        assert_eq!("fixed".parse(), Ok(BlockOrder::Fixed));
        assert_eq!("parallel".parse(), Ok(BlockOrder::Parallel));
        assert_eq!("random:18446744073709551615".parse(), Ok(BlockOrder::Random(u64::MAX)));
        for wrong in ["", "random", "random:", "random:-1", "random:x", "fixed:1"] {
            assert!(wrong.parse::<BlockOrder>().is_err(), "{wrong}");
        }
    }
}
