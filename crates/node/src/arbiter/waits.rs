//! How long the sessions of a lease waited for a GPU, as a histogram.

/// Upper bounds of the buckets in nanoseconds: from what no user notices to what every user does.
pub const WAIT_BOUNDS_NS: [u64; 6] =
    [1_000_000, 5_000_000, 20_000_000, 100_000_000, 500_000_000, 2_000_000_000];

/// The waits of a lease on one GPU or several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// All waits added up, also those that are not over.
    pub total_ns: u64,
    /// Waits that are over, by the first bound that they do not exceed; the last are longer than
    /// all bounds.
    pub counts: [u64; WAIT_BOUNDS_NS.len() + 1],
}

impl Waits {
    /// A wait that is over.
    pub(super) fn count(&mut self, wait_ns: u64) {
        self.total_ns = self.total_ns.saturating_add(wait_ns);
        self.counts[WAIT_BOUNDS_NS.partition_point(|&bound| bound < wait_ns)] += 1;
    }

    /// These waits and others.
    pub fn and(mut self, other: Waits) -> Waits {
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        self.counts.iter_mut().zip(other.counts).for_each(|(count, other)| *count += other);
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
        assert_eq!(waits.counts, [2, 1, 1, 0, 0, 0, 1]);
        assert_eq!(waits.total_ns, 3_022_000_001);
        assert_eq!(waits.and(waits).counts, [4, 2, 2, 0, 0, 0, 2]);
    }
}
