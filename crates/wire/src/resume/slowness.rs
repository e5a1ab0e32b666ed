//! Whether a link is slower than large data can be packed, by when what was sent is acknowledged.

use std::collections::VecDeque;
use std::time::Duration;

/// A link of this number of bytes a second is left alone: a gigabit has more, and one core packs
/// several times as much.
const FAST: f64 = 100e6;
/// Fewer bytes say little.
const BYTES_MIN: u64 = 512 << 10;
/// Each of this number of measurements has to say that the link is slow: a busy peer is late now
/// and then.
const MEASUREMENTS: usize = 3;
/// Packed bytes may be too few for a measurement: after this number the link may have become fast.
const PACKED_MAX: u64 = 64 << 20;

/// What the last measurements say.
#[derive(Debug, Default)]
pub(super) struct Slowness {
    /// Bytes a second.
    rates: VecDeque<f64>,
    /// Bytes that have been packed since the last one.
    packed: u64,
}

impl Slowness {
    /// Notes that `bytes` more than in the least round trip took `time` longer.
    pub(super) fn carried(&mut self, bytes: u64, time: Duration) {
        if bytes < BYTES_MIN {
            return;
        }
        if self.rates.len() == MEASUREMENTS {
            self.rates.pop_front();
        }
        self.rates.push_back(bytes as f64 / time.as_secs_f64().max(1e-9));
        self.packed = 0;
    }

    /// Counts bytes that have been packed.
    pub(super) fn packed(&mut self, bytes: u64) {
        self.packed += bytes;
        if self.packed > PACKED_MAX {
            *self = Slowness::default();
        }
    }

    /// Whether the link carries less than `limit` bytes a second, and less than what is left alone
    /// anyway.
    pub(super) fn is_below(&self, limit: f64) -> bool {
        self.rates.len() == MEASUREMENTS && self.rates.iter().all(|rate| *rate < limit.min(FAST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_link_is_slow_while_every_measurement_says_so() {
        let mut link = Slowness::default();
        let slow = Duration::from_millis(80);
        (0..2).for_each(|_| link.carried(MIB, slow));
        assert!(!link.is_below(FAST));
        link.carried(1000, slow);
        assert!(!link.is_below(FAST), "too few bytes to say anything");
        link.carried(MIB, slow);
        assert!(link.is_below(FAST));
        link.carried(MIB, Duration::ZERO);
        assert!(!link.is_below(FAST));
        (0..4).for_each(|_| link.carried(MIB, slow));
        assert!(link.is_below(FAST));
    }

    #[test]
    fn what_nothing_was_measured_by_for_long_is_measured_anew() {
        let mut link = Slowness::default();
        (0..4).for_each(|_| link.carried(MIB, Duration::from_secs(1)));
        link.packed(PACKED_MAX);
        assert!(link.is_below(FAST));
        link.packed(1);
        assert!(!link.is_below(FAST));
    }
}
