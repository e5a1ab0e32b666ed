//! How much work a driver that cannot be stopped is given before it has finished what it has.
//!
//! What was submitted runs before the turn can end. A program that queues a second of kernels would
//! keep all other sessions waiting for it, and its turns would last as long as its queue instead of
//! as its share asks for. So while others want the GPU as well, what is not known to have finished
//! is kept to about as much as two turns take, by what the work before took on average. What came
//! before says little of work that follows a pause, or of a program's first kernels: then a few
//! pieces go ahead, and more for each one that finishes.

use std::time::{Duration, Instant};

/// Two of the arbiter's quanta.
const AHEAD: Duration = Duration::from_millis(10);
/// This number of pieces of work may always be with the driver: one that runs, and what comes next.
const PIECES_MIN: u64 = 2;
/// A session that wanted the GPU within this time will want it again.
const REMEMBERED: Duration = Duration::from_secs(1);
/// Work that does not end may wait for what would be submitted next: that is let through after this
/// time, and from then on one piece at a time, for as long as nothing ends.
const STUCK: Duration = Duration::from_millis(100);
const NEXT_WHILE_STUCK: Duration = Duration::from_millis(20);
/// What was measured before a pause of this length no longer counts.
const PAUSE: Duration = Duration::from_millis(100);
/// Pieces that may be ahead for each one that has finished since the last pause.
const PER_FINISHED: u64 = 4;

#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// When another session waited for the GPU last.
    pressed: Option<Instant>,
    /// Since when the GPU works on what has not finished.
    since: Option<Instant>,
    /// What a piece of work takes.
    piece: Duration,
    /// Pieces that have finished since the last pause, and when the last one did.
    measured: u64,
    finished_at: Option<Instant>,
    /// When a piece was let through because nothing ended.
    passed_at: Option<Instant>,
}

impl Ahead {
    /// Another session waits for the GPU.
    pub(crate) fn pressed(&mut self, now: Instant) {
        self.pressed = Some(now);
    }

    /// The GPU had nothing to do until now.
    pub(crate) fn begins(&mut self, now: Instant) {
        self.since = Some(now);
        if self.finished_at.is_none_or(|at| now.duration_since(at) > PAUSE) {
            self.measured = 0;
        }
    }

    /// Notes how many pieces of work have finished since the last time.
    pub(crate) fn finished(&mut self, pieces: u64, now: Instant) {
        let took = self.since.replace(now).map_or(Duration::ZERO, |since| now.duration_since(since));
        self.measured = self.measured.saturating_add(pieces);
        self.finished_at = Some(now);
        let pieces = u32::try_from(pieces).unwrap_or(u32::MAX).max(1);
        self.piece = (self.piece * 3 + took / pieces) / 4;
    }

    /// For how long nothing should be submitted while this number of pieces has not finished;
    /// `None` where one more may be.
    pub(crate) fn keeps_out(&mut self, unfinished: u64, now: Instant) -> Option<Duration> {
        let is_shared = self.pressed.is_some_and(|at| now.duration_since(at) < REMEMBERED);
        let pieces = u32::try_from(unfinished).unwrap_or(u32::MAX);
        let is_known = unfinished < PER_FINISHED.saturating_mul(self.measured.saturating_add(1));
        let is_little = is_known && self.piece.saturating_mul(pieces) < AHEAD;
        if !is_shared || unfinished < PIECES_MIN || is_little {
            return None;
        }
        let since = self.since?;
        let stuck_at = since + STUCK.max(self.piece.saturating_mul(pieces).saturating_mul(2));
        let next_at = self.passed_at.filter(|at| *at > since).map(|at| at + NEXT_WHILE_STUCK);
        let left = next_at.unwrap_or(stuck_at).saturating_duration_since(now);
        if left.is_zero() {
            self.passed_at = Some(now);
            return None;
        }
        Some(left)
    }
}

#[cfg(test)]
impl Ahead {
    /// After work whose pieces took this time.
    pub(crate) fn of_pieces(piece: Duration) -> Ahead {
        Ahead { piece, since: Some(Instant::now()), measured: u64::MAX, ..Ahead::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Of pieces that take a millisecond.
    fn steady(begin: Instant) -> Ahead {
        let mut ahead = Ahead::default();
        ahead.begins(begin);
        (1..=100).for_each(|i| ahead.finished(1, begin + MS * i));
        ahead
    }

    #[test]
    fn only_who_has_neighbours_is_kept_short() {
        let begin = Instant::now();
        let (mut ahead, now) = (steady(begin), begin + MS * 100);
        assert_eq!(ahead.keeps_out(1_000, now), None);
        ahead.pressed(now);
        assert_eq!(ahead.keeps_out(9, now), None);
        assert!(ahead.keeps_out(11, now).is_some());
        assert_eq!(ahead.keeps_out(1_000, now + REMEMBERED), None, "they are gone");
    }

    #[test]
    fn long_work_has_its_successor_queued() {
        let begin = Instant::now();
        let mut ahead = Ahead::default();
        ahead.begins(begin);
        (1..=20).for_each(|i| ahead.finished(1, begin + MS * 50 * i));
        let now = begin + MS * 1_000;
        ahead.pressed(now);
        assert_eq!(ahead.keeps_out(1, now), None);
        assert!(ahead.keeps_out(2, now).is_some());
    }

    #[test]
    fn work_that_does_not_end_keeps_nothing_out_for_long() {
        let begin = Instant::now();
        let (mut ahead, now) = (steady(begin), begin + MS * 100);
        ahead.pressed(now);
        let limit = ahead.keeps_out(11, now).unwrap();
        assert!(limit <= STUCK);
        assert_eq!(ahead.keeps_out(11, now + limit), None);
        // Not all that is queued at once: nothing may be stuck.
        let next = ahead.keeps_out(12, now + limit).unwrap();
        assert!(next <= NEXT_WHILE_STUCK);
        assert_eq!(ahead.keeps_out(12, now + limit + next), None);
    }

    #[test]
    fn what_came_before_a_pause_says_nothing_of_what_follows() {
        let begin = Instant::now();
        let mut ahead = Ahead::default();
        ahead.begins(begin);
        ahead.finished(3, begin + MS / 100);
        ahead.begins(begin + PAUSE * 2);
        let now = begin + PAUSE * 2;
        ahead.pressed(now);
        assert_eq!(ahead.keeps_out(3, now), None);
        assert!(ahead.keeps_out(4, now).is_some(), "they may be long");
        ahead.finished(4, now + MS / 100);
        assert_eq!(ahead.keeps_out(19, now + MS / 100), None, "they are short");
        assert!(ahead.keeps_out(20, now + MS / 100).is_some());
    }
}
