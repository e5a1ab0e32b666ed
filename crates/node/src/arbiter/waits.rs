//! How long the sessions of a lease waited for a GPU: in all, and as a histogram of turns.

use serde::{Deserialize, Serialize};

/// Upper bounds of the buckets in nanoseconds: from a hand-over to what every user notices.
pub const WAIT_BOUNDS_NS: [u64; 9] =
    [100_000, 200_000, 400_000, 1_000_000, 5_000_000, 20_000_000, 100_000_000, 500_000_000, 2_000_000_000];

/// The waits of a lease on one GPU or several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// All waits added up, also those that are not over or ended without a turn.
    pub total_ns: u64,
    /// Those added up that ended with a turn.
    pub turns_ns: u64,
    /// Waits that ended with a turn, by the first bound that they do not exceed; the last are
    /// longer than all bounds.
    pub counts: [u64; WAIT_BOUNDS_NS.len() + 1],
    /// Those that a promise is about.
    pub promised: PromisedWaits,
}

/// Waits while the lease was within its share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromisedWaits {
    pub waits: u64,
    /// Those that were no longer than promised.
    pub within: u64,
}

impl PromisedWaits {
    /// These waits and others.
    pub fn and(self, other: PromisedWaits) -> PromisedWaits {
        PromisedWaits { waits: self.waits + other.waits, within: self.within + other.within }
    }
}

impl Waits {
    /// A wait is not over, or has ended without a turn: no turn is counted.
    pub(super) fn add(&mut self, wait_ns: u64) {
        self.total_ns = self.total_ns.saturating_add(wait_ns);
    }

    /// A wait has ended with a turn.
    pub(super) fn count(&mut self, wait_ns: u64) {
        self.add(wait_ns);
        self.turns_ns = self.turns_ns.saturating_add(wait_ns);
        self.counts[WAIT_BOUNDS_NS.partition_point(|&bound| bound < wait_ns)] += 1;
    }

    /// A wait that a promise is about has ended.
    pub(super) fn count_promised(&mut self, is_within: bool) {
        self.promised.waits += 1;
        self.promised.within += u64::from(is_within);
    }

    /// These waits and others.
    pub fn and(mut self, other: Waits) -> Waits {
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        self.turns_ns = self.turns_ns.saturating_add(other.turns_ns);
        self.counts.iter_mut().zip(other.counts).for_each(|(count, other)| *count += other);
        self.promised = self.promised.and(other.promised);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_in_the_bucket_whose_bound_it_does_not_exceed() {
        let mut waits = Waits::default();
        [0, 1_000_000, 1_000_001, 20_000_000, 3_000_000_000].into_iter().for_each(|ns| waits.count(ns));
        assert_eq!(waits.counts, [1, 0, 0, 1, 1, 1, 0, 0, 0, 1]);
        assert_eq!((waits.total_ns, waits.turns_ns), (3_022_000_001, 3_022_000_001));
        waits.add(5);
        assert_eq!((waits.total_ns, waits.turns_ns), (3_022_000_006, 3_022_000_001));
        assert_eq!(waits.counts.iter().sum::<u64>(), 5);
        [true, false, true].into_iter().for_each(|is_within| waits.count_promised(is_within));
        let twice = waits.and(waits);
        assert_eq!(twice.counts, [2, 0, 0, 2, 2, 2, 0, 0, 0, 2]);
        assert_eq!(twice.promised, PromisedWaits { waits: 6, within: 4 });
        assert_eq!((twice.total_ns, twice.turns_ns), (6_044_000_012, 6_044_000_002));
    }
}
