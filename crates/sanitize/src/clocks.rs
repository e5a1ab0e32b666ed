//! Up to which time each thread of a block is ordered behind the others.
//!
//! Barriers order whole warps and `bar.warp.sync` lanes of a warp, both transitively. A fence, an
//! atomic and a strong load order their thread behind all that has happened: they are how programs
//! build synchronization of their own. So what is reported is a race, and what follows a fence for
//! another reason may go unreported.

use crate::shadow::Record;

const LANES: usize = 32;

/// Lanes of one warp: `[of][behind]`.
type Matrix = [[u32; LANES]; LANES];

/// The clocks of one block.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    /// All threads of the block are ordered behind each other up to here.
    block: u32,
    /// The block is ordered behind other blocks up to here.
    others: u32,
    /// Each thread is ordered behind all others up to here.
    threads: Vec<u32>,
    /// Each warp behind each other one; filled with the first barrier of some warps only.
    warps: Option<Box<Matrix>>,
    /// Lanes of each warp; filled with its first `bar.warp.sync`.
    lanes: Vec<Option<Box<Matrix>>>,
}

impl Clocks {
    /// A block of `threads` threads begins at `now`, in a launch that began at `launch`.
    pub(crate) fn begin(&mut self, threads: usize, now: u32, launch: u32) {
        (self.block, self.others) = (now, launch);
        self.threads.clear();
        self.threads.resize(threads, 0);
        self.warps = None;
        self.lanes.clear();
        self.lanes.resize_with(threads.div_ceil(LANES), || None);
    }

    /// Whether a thread is ordered behind an earlier access.
    pub(crate) fn is_behind(&self, thread: u16, block: u16, earlier: Record) -> bool {
        if earlier.block != block {
            return earlier.time <= self.others;
        }
        if earlier.thread == thread || earlier.time <= self.block {
            return true;
        }
        let (of, behind) = (usize::from(thread), usize::from(earlier.thread));
        if self.threads.get(of).is_some_and(|&time| earlier.time <= time) {
            return true;
        }
        let (warp, other) = (of / LANES, behind / LANES);
        let between = self.warps.as_ref().map_or(0, |warps| warps[warp][other % LANES]);
        if earlier.time <= between {
            return true;
        }
        let lanes = self.lanes.get(warp).and_then(Option::as_ref).filter(|_| warp == other);
        lanes.is_some_and(|lanes| earlier.time <= lanes[of % LANES][behind % LANES])
    }

    /// All threads that are left have met at a barrier at this time.
    pub(crate) fn all_met(&mut self, time: u32) {
        self.block = time;
    }

    /// Some warps have met at a barrier, in whole or in part.
    pub(crate) fn warps_met(&mut self, warps: u32, time: u32) {
        let known = self.warps.get_or_insert_with(|| Box::new([[0; LANES]; LANES]));
        let met = || (0..LANES).filter(|warp| warps >> warp & 1 != 0);
        let mut joined = met().fold([0; LANES], |joined, warp| max(joined, known[warp]));
        met().for_each(|warp| joined[warp] = time);
        met().for_each(|warp| known[warp] = joined);
        let seen = self.threads.iter().enumerate();
        let seen = seen.filter(|(thread, _)| warps >> (thread / LANES) & 1 != 0).map(|(_, &time)| time).max();
        for (thread, time) in self.threads.iter_mut().enumerate() {
            if warps >> (thread / LANES) & 1 != 0 {
                *time = seen.unwrap_or(0);
            }
        }
    }

    /// Lanes of a warp have met.
    pub(crate) fn lanes_met(&mut self, warp: usize, lanes: u32, time: u32) {
        let Some(known) = self.lanes.get_mut(warp) else { return };
        let known = known.get_or_insert_with(|| Box::new([[0; LANES]; LANES]));
        let met = || (0..LANES).filter(|lane| lanes >> lane & 1 != 0);
        let mut joined = met().fold([0; LANES], |joined, lane| max(joined, known[lane]));
        met().for_each(|lane| joined[lane] = time);
        met().for_each(|lane| known[lane] = joined);
        let thread = |lane: usize| warp * LANES + lane;
        let seen = met().filter_map(|lane| self.threads.get(thread(lane)).copied()).max().unwrap_or(0);
        for lane in met() {
            if let Some(time) = self.threads.get_mut(thread(lane)) {
                *time = seen;
            }
        }
    }

    /// A thread has synchronized with whatever came before: in its block or, if `is_wide`,
    /// anywhere.
    pub(crate) fn joined(&mut self, thread: usize, time: u32, is_wide: bool) {
        if is_wide {
            self.others = time;
        }
        if let Some(own) = self.threads.get_mut(thread) {
            *own = time;
        }
    }

    /// The whole block is ordered behind what other blocks have done.
    pub(crate) fn blocks_met(&mut self, time: u32) {
        (self.block, self.others) = (time, time);
    }
}

fn max(mut one: [u32; LANES], other: [u32; LANES]) -> [u32; LANES] {
    one.iter_mut().zip(other).for_each(|(one, other)| *one = other.max(*one));
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(thread: u16, time: u32) -> Record {
        Record { time, block: 0, thread, mask: 0xf, is_strong: false }
    }

    fn clocks() -> Clocks {
        let mut clocks = Clocks::default();
        clocks.begin(96, 10, 5);
        clocks
    }

    #[test]
    fn only_what_was_before_the_launch_is_ordered_with_other_blocks() {
        let mut clocks = clocks();
        let other = |time| Record { block: 1, ..by(0, time) };
        assert!(clocks.is_behind(0, 0, other(5)) && !clocks.is_behind(0, 0, other(6)));
        clocks.joined(2, 15, false);
        assert!(!clocks.is_behind(0, 0, other(15)), "within the block");
        clocks.joined(3, 20, true);
        assert!(clocks.is_behind(0, 0, other(20)) && !clocks.is_behind(0, 0, other(21)));
    }

    #[test]
    fn a_barrier_orders_all_threads() {
        let mut clocks = clocks();
        assert!(!clocks.is_behind(0, 0, by(1, 11)) && clocks.is_behind(1, 0, by(1, 11)));
        clocks.all_met(12);
        assert!(clocks.is_behind(0, 0, by(64, 12)) && !clocks.is_behind(0, 0, by(64, 13)));
    }

    #[test]
    fn lanes_are_ordered_behind_those_they_have_met_and_those_that_these_had_met() {
        let mut clocks = clocks();
        clocks.lanes_met(1, 0b0110, 20);
        clocks.lanes_met(1, 0b1100, 30);
        assert!(clocks.is_behind(35, 0, by(33, 20)), "through lane 2");
        assert!(!clocks.is_behind(35, 0, by(33, 21)) && !clocks.is_behind(33, 0, by(34, 25)));
        assert!(!clocks.is_behind(1, 0, by(2, 20)), "another warp");
    }

    #[test]
    fn warps_are_ordered_by_barriers_of_some_of_them() {
        let mut clocks = clocks();
        clocks.warps_met(0b011, 20);
        clocks.warps_met(0b110, 30);
        assert!(clocks.is_behind(64, 0, by(0, 20)) && clocks.is_behind(64, 0, by(40, 30)));
        assert!(!clocks.is_behind(0, 0, by(40, 30)));
    }

    #[test]
    fn what_a_thread_has_joined_goes_on_to_those_it_meets() {
        let mut clocks = clocks();
        clocks.joined(0, 40, true);
        assert!(clocks.is_behind(0, 0, by(70, 40)) && !clocks.is_behind(1, 0, by(70, 40)));
        clocks.lanes_met(0, 0b11, 41);
        assert!(clocks.is_behind(1, 0, by(70, 40)));
    }
}
