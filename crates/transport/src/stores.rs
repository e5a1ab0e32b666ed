//! Whether large data go through the caches or past them, found out by trying.
//!
//! Two cores that share a cache hand bytes over in it, several times as fast as memory where that
//! is slow; two that share none are faster with non-temporal stores. Which it is follows from where
//! the system runs both processes, and under a hypervisor neither knows. So the writer of a ring
//! measures how fast each way is, from its first byte until there is room for more, the reader's
//! part included, takes the faster, and gives the other a try now and then.

use std::time::{Duration, Instant};

use sluice_copy::Stores;

/// Bytes by which a way is measured: some rings full, so that what is left in it of the other way
/// hardly counts.
const SPAN_BYTES: usize = 4 << 20;
/// Spans after which the other way is tried for one: soon after one was found faster, since the
/// first measures are of memory that has not been touched before, then after twice as many each
/// time, and never after more, since what two cores share changes when the system moves them.
const SPANS_BETWEEN_TRIALS: std::ops::RangeInclusive<u32> = 2..=128;
/// A writer without a write for this time is idle, and the time does not count.
const PAUSE: Duration = Duration::from_millis(1);
/// Factor by which no way is slower than the other: a span that is was delayed by something else.
const SLOWER_MAX: f64 = 8.0;
/// Number of such spans in a row after which memory counts as that slow.
const HELD_UP_MAX: u32 = 8;

/// How the large data of a ring are stored.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    stores: Stores,
    span: Option<Span>,
    through: Rate,
    past: Rate,
    /// Spans that were held up, one after the other.
    held_up: u32,
    trials: Trials,
}

/// When the other way is tried.
#[derive(Debug)]
struct Trials {
    /// One is under way.
    is_now: bool,
    /// Spans since the last.
    spans: u32,
    /// Spans after which there is one.
    after: u32,
}

impl Default for Trials {
    fn default() -> Trials {
        Trials { is_now: false, spans: 0, after: *SPANS_BETWEEN_TRIALS.start() }
    }
}

/// Bytes that were written, and how long that took without pauses, until then.
#[derive(Clone, Copy, Debug)]
struct Span {
    bytes: usize,
    time: Duration,
    end: Instant,
}

/// Bytes a second; none before the first span.
type Rate = Option<f64>;

impl Choice {
    #[cfg(test)]
    pub(crate) fn of(stores: Stores) -> Choice {
        Choice { stores, ..Choice::default() }
    }

    pub(crate) fn stores(&self) -> Stores {
        self.stores
    }

    /// Notes that this many bytes of large data were stored as [`Choice::stores`] says.
    pub(crate) fn wrote(&mut self, bytes: usize, begin: Instant, end: Instant) {
        let before = self.span.take().unwrap_or(Span { bytes: 0, time: Duration::ZERO, end: begin });
        let between = begin.saturating_duration_since(before.end);
        let between = if between < PAUSE { between } else { Duration::ZERO };
        let time = before.time + between + end.saturating_duration_since(begin);
        let span = Span { bytes: before.bytes + bytes, time, end };
        if span.bytes < SPAN_BYTES {
            self.span = Some(span);
        } else {
            self.measured(span.bytes as f64 / time.as_secs_f64().max(1e-9));
        }
    }

    fn measured(&mut self, rate: f64) {
        let is_held_up = |known: &Rate| known.is_some_and(|known| rate < known / SLOWER_MAX);
        if is_held_up(&self.through) || is_held_up(&self.past) {
            self.held_up += 1;
            if self.held_up < HELD_UP_MAX {
                return;
            }
            (self.through, self.past) = (None, None);
        }
        self.held_up = 0;
        let (stores, other) = match self.stores {
            Stores::ThroughCaches => (&mut self.through, self.past),
            Stores::PastCaches => (&mut self.past, self.through),
        };
        // Of what is in use a slow span may be an accident; what was tried long ago is as fast as
        // it is now.
        let known = stores.filter(|_| !self.trials.is_now).unwrap_or(rate);
        let now = rate.max(0.75 * known + 0.25 * rate);
        *stores = Some(now);
        let is_slower = other.is_some_and(|other| other > now);
        if self.trials.spend_span(is_slower) {
            self.stores = match self.stores {
                Stores::ThroughCaches => Stores::PastCaches,
                Stores::PastCaches => Stores::ThroughCaches,
            };
        }
    }
}

impl Trials {
    /// A span is over, in which the way was found to be slower than the other, or not; whether the
    /// next goes the other way.
    fn spend_span(&mut self, is_slower: bool) -> bool {
        self.spans += 1;
        let was_trial = std::mem::take(&mut self.is_now);
        let (least, most) = (*SPANS_BETWEEN_TRIALS.start(), *SPANS_BETWEEN_TRIALS.end());
        if was_trial {
            // In vain, or what was tried stays in use.
            self.after = if is_slower { most.min(2 * self.after) } else { least };
            self.spans = 0;
            return is_slower;
        }
        self.is_now = is_slower || self.spans >= self.after;
        self.is_now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring with so many bytes a second through the caches and past them.
    struct Ring {
        choice: Choice,
        now: Instant,
    }

    impl Ring {
        fn new() -> Ring {
            Ring { choice: Choice::default(), now: Instant::now() }
        }

        /// Writes so many spans, and says how many of them went past the caches.
        fn write(&mut self, spans: usize, through: f64, past: f64) -> usize {
            const PIECE: usize = 128 << 10;
            let mut count = 0;
            for _ in 0..spans {
                count += usize::from(self.choice.stores() == Stores::PastCaches);
                for _ in 0..SPAN_BYTES / PIECE {
                    let rate = if self.choice.stores() == Stores::PastCaches { past } else { through };
                    let end = self.now + Duration::from_secs_f64(PIECE as f64 / rate);
                    self.choice.wrote(PIECE, self.now, end);
                    self.now = end;
                }
            }
            count
        }
    }

    #[test]
    fn what_is_faster_is_taken_and_the_other_tried_now_and_then() {
        let mut ring = Ring::new();
        let past = ring.write(1000, 7e9, 20e9);
        assert!((980..995).contains(&past), "{past} of 1000");
        let mut ring = Ring::new();
        let past = ring.write(1000, 17e9, 12e9);
        assert!((5..20).contains(&past), "{past} of 1000");
    }

    #[test]
    fn memory_that_nobody_has_touched_before_decides_nothing() {
        let mut ring = Ring::new();
        ring.write(1, 2e9, 12e9);
        let past = ring.write(40, 17e9, 12e9);
        assert!(past < 8, "{past}");
    }

    #[test]
    fn cores_that_move_are_noticed() {
        let mut ring = Ring::new();
        ring.write(200, 17e9, 12e9);
        ring.write(10, 7e9, 20e9);
        let past = ring.write(100, 7e9, 20e9);
        assert!(past > 90, "{past} of 100: what was in use became slow");
        ring.write(150, 17e9, 12e9);
        let past = ring.write(100, 17e9, 12e9);
        assert!(past < 10, "{past} of 100: what was not in use became fast");
    }

    #[test]
    fn pauses_and_holds_are_no_measure() {
        let mut ring = Ring::new();
        ring.write(20, 17e9, 12e9);
        let mut past = 0;
        for _ in 0..100 {
            // A second in which the reader does something else, now and then, and two in which
            // there is nothing to write.
            ring.choice.wrote(SPAN_BYTES, ring.now, ring.now + Duration::from_secs(1));
            ring.now += Duration::from_secs(2);
            past += ring.write(1, 17e9, 12e9);
        }
        assert!(past < 6, "{past} of 100");
    }

    /// Copies of half a span, with pauses between them.
    #[test]
    fn a_trial_ends_also_where_copies_are_small() {
        let mut ring = Ring::new();
        let mut past = 0;
        for _ in 0..200 {
            let stores = ring.choice.stores();
            past += usize::from(stores == Stores::PastCaches);
            let rate = if stores == Stores::PastCaches { 12e9 } else { 17e9 };
            let end = ring.now + Duration::from_secs_f64((SPAN_BYTES / 2) as f64 / rate);
            ring.choice.wrote(SPAN_BYTES / 2, ring.now, end);
            ring.now = end + 10 * PAUSE;
        }
        assert!((2..20).contains(&past), "{past} of 200");
    }

    #[test]
    fn memory_that_has_become_slow_is_measured_anew() {
        let mut ring = Ring::new();
        ring.write(50, 17e9, 12e9);
        ring.write(40, 0.5e9, 1.5e9);
        let past = ring.write(100, 0.5e9, 1.5e9);
        assert!(past > 80, "{past} of 100");
    }
}
