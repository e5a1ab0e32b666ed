//! How much work a driver that cannot be stopped is given before it has finished what it has.
//!
//! What was submitted runs before the turn can end. A program that queues a second of kernels would
//! keep everybody else waiting for it, and its turns would last as long as its queue instead of as
//! its share asks for. So while others want the GPU as well, what is not known to have finished is
//! kept to about as much as two turns take, by what the work before took on average.

use std::time::{Duration, Instant};

/// Two of the arbiter's quanta.
const AHEAD: Duration = Duration::from_millis(10);
/// So many pieces of work may always be with the driver: one that runs, and what comes next.
const PIECES_MIN: u64 = 2;
/// Somebody who wanted the GPU a moment ago will want it again.
const REMEMBERED: Duration = Duration::from_secs(1);
/// Work that does not end may wait for what would be submitted next.
const STUCK: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// When somebody else waited for the GPU last.
    pressed: Option<Instant>,
    /// Since when the GPU works on what has not finished.
    since: Option<Instant>,
    /// What a piece of work takes.
    piece: Duration,
}

impl Ahead {
    /// Somebody else waits for the GPU.
    pub(crate) fn pressed(&mut self, now: Instant) {
        self.pressed = Some(now);
    }

    /// The GPU had nothing to do until now.
    pub(crate) fn begins(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// So many pieces of work have finished since the last time.
    pub(crate) fn finished(&mut self, pieces: u64, now: Instant) {
        let took = self.since.replace(now).map_or(Duration::ZERO, |since| now.duration_since(since));
        let pieces = u32::try_from(pieces).unwrap_or(u32::MAX).max(1);
        self.piece = (self.piece * 3 + took / pieces) / 4;
    }

    /// For how long nothing should be submitted while so many pieces have not finished; `None`
    /// where more may be.
    pub(crate) fn keeps_out(&self, unfinished: u64, now: Instant) -> Option<Duration> {
        let is_shared = self.pressed.is_some_and(|at| now.duration_since(at) < REMEMBERED);
        let pieces = u32::try_from(unfinished).unwrap_or(u32::MAX);
        if !is_shared || unfinished < PIECES_MIN || self.piece.saturating_mul(pieces) < AHEAD {
            return None;
        }
        let stuck_at = self.since? + STUCK.max(self.piece.saturating_mul(pieces) * 2);
        let left = stuck_at.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }
}

#[cfg(test)]
impl Ahead {
    /// Where work took so long before.
    pub(crate) fn of_pieces(piece: Duration) -> Ahead {
        Ahead { piece, since: Some(Instant::now()), ..Ahead::default() }
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
    }
}
