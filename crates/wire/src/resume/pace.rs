//! How much a link holds, by when what was sent is acknowledged.
//!
//! ```text
//!  sent:                mark ------ round trip ------> acknowledged
//!  acknowledged:  a ---------------------------------> b                  b - a bytes in that time
//! ```
//!
//! The time begins when the acknowledgement of `a` was received: a side that sends much at once
//! receives nothing meanwhile. What a link holds is its rate times the least round trip; a longer
//! one is a queue, which a larger window would only lengthen. A window of twice as much lets the
//! sender find out whether the link takes more: while the window is what limits, it doubles with
//! each round trip, and it stays where something else does. On a link of another length ([`Pace`]
//! begins anew with each connection) or a short one it is [`WINDOW`]. A peer's acknowledgements
//! move it between two constants, and nowhere else.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::slowness::Slowness;
use super::{ACKNOWLEDGE_EVERY, WINDOW, WINDOW_MAX};

/// Bytes between two marks.
const MARK_EVERY: u64 = 256 << 10;
/// Most marks that are kept; one for every distance in the largest window, and some.
const MARKS_MAX: usize = 2 * (WINDOW_MAX / MARK_EVERY) as usize;

/// The window of one direction of a connection.
#[derive(Debug)]
pub(super) struct Pace {
    marks: VecDeque<Mark>,
    /// Position of the last mark.
    marked: u64,
    round_trip: Option<Duration>,
    /// Bytes that were under way then.
    round_trip_bytes: u64,
    /// Since when there has been nothing to send.
    idle_at: Option<Instant>,
    /// When something was last received from the peer.
    heard_at: Option<Instant>,
    window: u64,
    slowness: Slowness,
}

/// A byte that was sent.
#[derive(Clone, Copy, Debug)]
struct Mark {
    position: u64,
    sent_at: Instant,
    /// Position that was acknowledged then, and since when.
    acknowledged: u64,
    heard_at: Instant,
    /// Bytes after it, before the next mark, were sent after a pause.
    paused: bool,
}

/// A sender that pauses for longer is one that had nothing to send.
const PAUSE: Duration = Duration::from_millis(2);

impl Pace {
    /// That of a connection whose first byte is at `position`: of what is before it, none is under
    /// way here.
    pub(super) fn from(position: u64) -> Pace {
        Pace {
            marks: VecDeque::new(),
            marked: position,
            round_trip: None,
            round_trip_bytes: 0,
            idle_at: None,
            heard_at: None,
            window: WINDOW,
            slowness: Slowness::default(),
        }
    }

    /// One whose window has grown already.
    #[cfg(test)]
    pub(super) fn of(window: u64) -> Pace {
        Pace { window, ..Pace::from(0) }
    }

    /// Bytes that may be unacknowledged.
    pub(super) fn window(&self) -> u64 {
        self.window
    }

    /// Counts bytes that have been packed.
    pub(super) fn packed(&mut self, bytes: u64) {
        self.slowness.packed(bytes);
    }

    /// Whether the link is so slow that packing gains, also where no more than the least window of
    /// what was packed is under way.
    pub(super) fn is_slow(&self) -> bool {
        let round_trip = self.round_trip.unwrap_or_default().as_secs_f64().max(1e-9);
        self.slowness.is_below(WINDOW as f64 / 2.0 / round_trip)
    }

    /// All before `position` has been sent, which is all there is or not, of which the peer has
    /// said that it has what is before `acknowledged`.
    pub(super) fn sent(
        &mut self,
        position: u64,
        is_all: bool,
        acknowledged: u64,
        now: impl FnOnce() -> Instant,
    ) {
        let sent_at = now();
        let idle_at = std::mem::replace(&mut self.idle_at, is_all.then_some(sent_at));
        if let (Some(mark), Some(idle_at)) = (self.marks.back_mut(), idle_at) {
            mark.paused |= sent_at.saturating_duration_since(idle_at) > PAUSE;
        }
        if position >= self.marked + MARK_EVERY && self.marks.len() < MARKS_MAX {
            // Where next to nothing is under way the time begins now, however long ago something
            // was received from the peer.
            let is_first = position.saturating_sub(acknowledged) <= 2 * ACKNOWLEDGE_EVERY;
            let heard_at = self.heard_at.filter(|_| !is_first).unwrap_or(sent_at);
            self.heard_at = Some(heard_at);
            self.marked = position;
            self.marks.push_back(Mark { position, sent_at, acknowledged, heard_at, paused: false });
        }
    }

    /// The peer has all before `position`.
    pub(super) fn acknowledged(&mut self, position: u64, now: impl FnOnce() -> Instant) {
        let mut last = None;
        while let Some(mark) = self.marks.pop_front_if(|mark| mark.position <= position) {
            last = Some(mark);
        }
        let Some(mark) = last else { return };
        let now = now();
        self.heard_at = Some(now);
        let since = |then: Instant| now.saturating_duration_since(then).max(Duration::from_nanos(1));
        let took = since(mark.sent_at);
        let bytes = position.saturating_sub(mark.acknowledged);
        if self.round_trip.is_none_or(|least| took < least) {
            (self.round_trip, self.round_trip_bytes) = (Some(took), bytes);
        }
        let least = self.round_trip.unwrap_or(took);
        let time = since(mark.heard_at);
        // What was under way in the least round trip is part of its time.
        if position == mark.position || !mark.paused {
            self.slowness.carried(bytes.saturating_sub(self.round_trip_bytes), time.saturating_sub(least));
        }
        let held = bytes as f64 * least.as_secs_f64() / time.as_secs_f64();
        self.window = self.window.max((2.0 * held) as u64).min(WINDOW_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link that carries so many bytes a second with this round trip, in a time of its own; the
    /// receiver acknowledges each MiB. The answer is the window after so many bytes of a sender
    /// that always has more.
    fn window_after(bytes: u64, bytes_per_s: f64, round_trip: Duration) -> u64 {
        const STEP: u64 = 1 << 20;
        let mut pace = Pace::from(0);
        let begin = Instant::now();
        let mut now = begin;
        let mut acknowledgements: VecDeque<(Instant, u64)> = VecDeque::new();
        let (mut sent, mut acknowledged, mut link_free_at) = (0, 0, begin);
        while sent < bytes {
            if sent - acknowledged < pace.window() {
                sent += STEP;
                pace.sent(sent, false, acknowledged, || now);
                link_free_at = link_free_at.max(now) + Duration::from_secs_f64(STEP as f64 / bytes_per_s);
                acknowledgements.push_back((link_free_at + round_trip, sent));
                continue;
            }
            let (at, position) = acknowledgements.pop_front().expect("the window is full");
            now = now.max(at);
            acknowledged = position;
            pace.acknowledged(position, || now);
        }
        pace.window()
    }

    const MS: Duration = Duration::from_millis(1);

    /// Copies of 4 MiB, one after the other was acknowledged.
    fn is_slow_after_copies(count: u32, bytes_per_s: f64, round_trip: Duration) -> bool {
        const MIB: u64 = 1 << 20;
        let mut pace = Pace::from(0);
        let (mut now, mut position) = (Instant::now(), 0);
        for _ in 0..count {
            let begin = position;
            for _ in 0..4 * MIB / MARK_EVERY {
                position += MARK_EVERY;
                pace.sent(position, false, begin, || now);
            }
            for acknowledged in (1..=4).map(|nth| begin + nth * MIB) {
                let carried = Duration::from_secs_f64((acknowledged - begin) as f64 / bytes_per_s);
                pace.acknowledged(acknowledged, || now + round_trip + carried);
            }
            now += round_trip + Duration::from_secs_f64(4e6 / bytes_per_s) + MS;
        }
        pace.is_slow()
    }

    /// Copies of so many bytes, each after a pause, of which the receiver acknowledges each MiB.
    fn is_ever_slow_between_pauses(copy: u64, bytes_per_s: f64, round_trip: Duration) -> bool {
        let mut pace = Pace::from(0);
        let (mut now, mut position, mut acknowledged, mut is_slow) = (Instant::now(), 0, 0, false);
        for _ in 0..200 {
            let end = position + copy;
            while position < end {
                position = end.min(position + 100_000);
                pace.sent(position, position == end, acknowledged, || now);
            }
            let whole = position / ACKNOWLEDGE_EVERY * ACKNOWLEDGE_EVERY;
            now += round_trip + Duration::from_secs_f64(copy as f64 / bytes_per_s);
            if whole > acknowledged {
                acknowledged = whole;
                pace.acknowledged(whole, || now);
            }
            is_slow |= pace.is_slow();
            now += 50 * MS;
        }
        is_slow
    }

    #[test]
    fn pauses_do_not_make_a_link_slow() {
        for copy in [300_000, 600_000, 700_000, 1_000_000, 1_024_000, 1_300_000, 2_600_000] {
            for round_trip in [2, 30] {
                let slow = is_ever_slow_between_pauses(copy, 1250e6, round_trip * MS);
                assert!(!slow, "copies of {copy} bytes, {round_trip} ms");
            }
        }
    }

    #[test]
    fn a_slow_link_is_told_from_a_far_one() {
        for round_trip in [2, 30, 150] {
            assert!(is_slow_after_copies(2, 12.5e6, round_trip * MS), "100 Mb/s, {round_trip} ms");
            let gains = round_trip < 150;
            assert_eq!(is_slow_after_copies(2, 62.5e6, round_trip * MS), gains, "500 Mb/s, {round_trip} ms");
            assert!(!is_slow_after_copies(20, 125e6, round_trip * MS), "1 Gb/s, {round_trip} ms");
            assert!(!is_slow_after_copies(20, 1250e6, round_trip * MS), "10 Gb/s, {round_trip} ms");
        }
    }

    #[test]
    fn a_window_grows_to_what_a_far_link_holds() {
        let window = window_after(1 << 30, 400e6, 150 * MS);
        assert!(window as f64 >= 0.15 * 400e6, "{window}");
        assert_eq!(window_after(8 << 30, 4e9, 150 * MS), WINDOW_MAX);
    }

    #[test]
    fn a_near_or_narrow_link_keeps_the_least_window() {
        assert_eq!(window_after(1 << 30, 2e9, MS / 10), WINDOW);
        // What is in its queue is not held by the link.
        assert_eq!(window_after(1 << 28, 12e6, 30 * MS), WINDOW);
    }

    #[test]
    fn a_window_stops_where_the_link_is_what_limits() {
        let window = window_after(4 << 30, 400e6, 50 * MS);
        assert!((20 << 20..=48 << 20).contains(&window), "{window}");
    }

    #[test]
    fn what_was_sent_unheard_is_no_measure_of_the_rate() {
        let (mut pace, begin) = (Pace::of(WINDOW_MAX), Instant::now());
        pace.window = WINDOW;
        // 64 MiB go into a queue within a ms, and leave it at 320 MiB/s.
        for step in 1..=256 {
            pace.sent(step * MARK_EVERY, false, 0, || begin + step as u32 * MS / 256);
        }
        for step in 1..=64 {
            pace.acknowledged(step << 20, || begin + 10 * MS + step as u32 * 200 * MS / 64);
        }
        assert_eq!(pace.window(), WINDOW, "320 MiB/s for 10 ms");
    }

    #[test]
    fn what_came_over_the_connection_before_is_no_measure_of_this_one() {
        const START: u64 = 100 << 20;
        let (mut pace, begin) = (Pace::from(START), Instant::now());
        pace.sent(START, false, START, || begin);
        pace.acknowledged(START, || begin + MS / 100);
        assert_eq!(pace.round_trip, None);
        pace.sent(START + WINDOW, false, START, || begin + MS);
        pace.acknowledged(START + WINDOW, || begin + 151 * MS);
        assert_eq!(pace.round_trip, Some(150 * MS));
    }

    #[test]
    fn marks_are_bounded_and_nonsense_does_not_matter() {
        let mut pace = Pace::from(0);
        let now = Instant::now();
        for step in 1..10_000 {
            pace.sent(step * MARK_EVERY, false, u64::MAX, || now);
        }
        assert_eq!(pace.marks.len(), MARKS_MAX);
        pace.acknowledged(u64::MAX, || now);
        assert!(pace.marks.is_empty() && (WINDOW..=WINDOW_MAX).contains(&pace.window()));
    }
}
