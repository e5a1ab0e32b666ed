//! Running leases whose share follows what they use.
//!
//! ```text
//!          a phase fits in less                 the latest record is short
//!   asked ─────────────────────▶ less, not below the floor ─────────────────▶ asked, floor raised
//! ```
//! Nodes record use every ten seconds. A lease gets less once it has needed less for a phase, a
//! minute at first and twice as long after each time that it was short. It gets back what it asked
//! for as soon as one record shows that it used all it had. Only the share changes: a program that
//! is short of compute is slowed for a moment, one that is short of memory fails.

use serde::{Deserialize, Serialize};
use sluice_api::usage::UsageRecord;
use sluice_iq::live::{Live, Step};
use sluice_iq::{Interval, MIB, Run};

use crate::fleet::LeaseRecord;

/// How long a lease needs less before it gets less at first.
const PHASE_MS: u64 = 60_000;
/// The phase doubles this often at most: to 32 minutes.
const DOUBLED_MAX: u32 = 5;
/// Records of a lease that are remembered: those of the longest phase of one task. Of more tasks so
/// many are a phase as well.
const RECORDS_MAX: usize = 200;

/// What is known of a running lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LiveLease {
    pub(crate) live: Live,
    /// Records that begin earlier are of another size.
    pub(crate) since_ms: u64,
    /// How often it was short.
    pub(crate) given_back: u32,
    /// Since when it has less than it asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lowered: Option<Lowered>,
}

/// Since when a lease has had less, and where: room that it gave up elsewhere is not its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lowered {
    pub(crate) at_ms: u64,
    attempt: u32,
    /// How often it had moved.
    moves: u32,
}

impl LiveLease {
    /// Begins with what was asked for and what the lease has of it.
    pub(crate) fn new(
        asked_ppm: u32,
        memory: u64,
        floor_ppm: u32,
        share_ppm: u32,
        since_ms: u64,
    ) -> LiveLease {
        let mut live = Live::new(asked_ppm, memory, floor_ppm);
        live.share_ppm = share_ppm.min(asked_ppm);
        LiveLease { live, since_ms, given_back: 0, lowered: None }
    }

    /// Since when it has had less in its present place: from now on if it had all until now.
    pub(crate) fn lowered_in(&self, lease: &LeaseRecord, now_ms: u64) -> Option<Lowered> {
        let moves = lease.seats.iter().map(|seat| seat.moves).sum();
        let here = Lowered { at_ms: now_ms, attempt: lease.attempt, moves };
        let is_here = |known: &Lowered| Lowered { at_ms: now_ms, ..*known } == here;
        let has_less = self.live.share_ppm < self.live.asked_share_ppm;
        self.lowered.filter(is_here).or(has_less.then_some(here))
    }

    /// Has it get its floor, if that has risen above what it has.
    pub(crate) fn raise_to_floor(&mut self, now_ms: u64) -> bool {
        let floor_ppm = self.live.floor_ppm.min(self.live.asked_share_ppm);
        let is_below = self.live.share_ppm < floor_ppm;
        if is_below {
            (self.live.share_ppm, self.since_ms) = (floor_ppm, now_ms);
        }
        is_below
    }

    /// Takes what the lease has used into account, the earliest record first.
    pub(crate) fn after(&mut self, records: &[Measured], now_ms: u64) -> Step {
        let is_of_it = |measured: &&Measured| {
            measured.from_ms >= self.since_ms && measured.share_ppm == self.live.share_ppm
        };
        let with_it: Vec<&Measured> = records.iter().filter(is_of_it).collect();
        let runs: Vec<Run> = with_it.iter().map(|measured| self.run_of(measured)).collect();
        let is_phase = covered_ms(&with_it) >= PHASE_MS << self.given_back.min(DOUBLED_MAX)
            || with_it.len() >= RECORDS_MAX;
        // What it had at first is not lowered and not raised by being used up.
        let has_less = self.live.share_ppm < self.live.asked_share_ppm;
        let memory = self.live.asked_memory;
        let mut next = self.live;
        let given_back = |run: &Run| {
            let mut next = self.live;
            (next.step(std::slice::from_ref(run), memory) == Step::GivenBack).then_some(next)
        };
        // Earlier records of this size were not short, or it would have another one.
        let short = runs.iter().filter(|_| has_less).find_map(given_back);
        if let Some(short) = short {
            next = short;
            self.given_back += 1;
        } else if is_phase {
            next.step(&runs, memory);
        } else {
            return Step::Kept;
        }
        let before = std::mem::replace(&mut self.live, next);
        match next.share_ppm.cmp(&before.share_ppm) {
            std::cmp::Ordering::Equal => return Step::Kept,
            std::cmp::Ordering::Less => self.since_ms = now_ms,
            std::cmp::Ordering::Greater => {
                self.since_ms = now_ms;
                return Step::GivenBack;
            }
        }
        Step::Lowered
    }

    fn run_of(&self, measured: &Measured) -> Run {
        let Measured { gpus, share_ppm, held_ms, used_ppm_ms, .. } = *measured;
        let memory = self.live.asked_memory.saturating_mul(u64::from(gpus)).max(MIB);
        let intervals = vec![Interval { held_ms, used_ppm_ms }];
        Run { gpus, share_ppm, memory, memory_peak: 0, intervals }
    }
}

/// The time that records of all tasks of a lease cover, in milliseconds.
fn covered_ms(records: &[&Measured]) -> u64 {
    let mut spans: Vec<(u64, u64)> = records
        .iter()
        .map(|record| (record.from_ms, record.from_ms.saturating_add(record.held_ms)))
        .collect();
    spans.sort_unstable();
    let (mut covered_ms, mut until_ms) = (0, 0);
    for (from_ms, to_ms) in spans {
        covered_ms += to_ms.saturating_sub(from_ms.max(until_ms));
        until_ms = until_ms.max(to_ms);
    }
    covered_ms
}

/// What a record says of a lease while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Measured {
    from_ms: u64,
    gpus: u32,
    share_ppm: u32,
    held_ms: u64,
    used_ppm_ms: u64,
}

impl Measured {
    /// None of a time in which the lease was suspended, or of no time.
    pub(crate) fn of(record: &UsageRecord) -> Option<Measured> {
        let held_ms = record.held_ms();
        (!record.suspended && held_ms > 0).then_some(Measured {
            from_ms: record.from_ms,
            gpus: record.gpus,
            share_ppm: record.share_ppm,
            held_ms,
            used_ppm_ms: record.used_ppm_ms,
        })
    }

    /// Adds it to the records of a lease, of which the oldest is forgotten.
    pub(crate) fn add_to(self, records: &mut Vec<Measured>) {
        if records.len() >= RECORDS_MAX {
            records.remove(0);
        }
        records.push(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn record(at_s: u64, share: u32, used: u64) -> Measured {
        Measured {
            from_ms: at_s * 1000,
            gpus: 1,
            share_ppm: share * 10_000,
            held_ms: 10_000,
            used_ppm_ms: used * 10_000 * 10_000,
        }
    }

    fn records(at_s: u64, count: u64, share: u32, used: u64) -> Vec<Measured> {
        (0..count).map(|number| record(at_s + 10 * number, share, used)).collect()
    }

    fn begin() -> LiveLease {
        LiveLease::new(1_000_000, 8 * GIB, 200_000, 1_000_000, 0)
    }

    #[test]
    fn a_phase_that_needs_less_gets_less_and_not_below_the_floor() {
        let mut lease = begin();
        assert_eq!(lease.after(&records(0, 5, 100, 30), 50_000), Step::Kept, "less than a minute");
        assert_eq!(lease.after(&records(0, 6, 100, 30), 60_000), Step::Lowered);
        assert_eq!((lease.live.share_ppm, lease.live.memory, lease.since_ms), (350_000, 8 * GIB, 60_000));
        assert_eq!(lease.after(&records(0, 6, 100, 30), 61_000), Step::Kept, "that was another size");
        let mut idle = begin();
        assert_eq!(idle.after(&records(0, 6, 100, 0), 60_000), Step::Lowered);
        assert_eq!(idle.live.share_ppm, 200_000);
    }

    #[test]
    fn one_record_that_is_short_gives_all_back_and_the_next_phase_is_longer() {
        let mut lease = begin();
        lease.after(&records(0, 6, 100, 30), 60_000);
        let mut all = records(60, 3, 35, 30);
        assert_eq!(lease.after(&all, 90_000), Step::Kept);
        all.push(record(90, 35, 35));
        assert_eq!(lease.after(&all, 100_000), Step::GivenBack);
        assert_eq!((lease.live.share_ppm, lease.live.floor_ppm), (1_000_000, 400_000));
        assert_eq!(lease.after(&records(100, 6, 100, 30), 160_000), Step::Kept);
        assert_eq!(lease.after(&records(100, 12, 100, 30), 220_000), Step::Lowered);
        assert_eq!(lease.live.share_ppm, 400_000, "what was too little is not tried again");
    }

    #[test]
    fn any_short_record_counts_and_the_tasks_of_a_lease_share_its_time() {
        let mut lease = begin();
        let two: Vec<Measured> = [records(0, 3, 100, 30), records(0, 3, 100, 30)].concat();
        assert_eq!(lease.after(&two, 30_000), Step::Kept, "that is half a minute");
        lease.after(&records(0, 6, 100, 30), 60_000);
        let all = [records(60, 1, 35, 35), records(70, 2, 35, 10)].concat();
        assert_eq!(lease.after(&all, 90_000), Step::GivenBack, "the first of three was short");
        assert!(!lease.raise_to_floor(90_000));
        lease.live.share_ppm = 350_000;
        assert!(lease.raise_to_floor(91_000));
        assert_eq!((lease.live.share_ppm, lease.since_ms), (400_000, 91_000));
    }

    #[test]
    fn a_lease_that_uses_what_it_asked_for_keeps_it() {
        let mut lease = LiveLease::new(500_000, GIB, 100_000, 500_000, 0);
        assert_eq!(lease.after(&records(0, 30, 50, 49), 300_000), Step::Kept);
        assert_eq!(lease.live.share_ppm, 500_000);
    }

    #[test]
    fn time_in_which_it_was_suspended_says_nothing() {
        let json = serde_json::json!({
            "id": "", "node": 1, "lease": 9, "attempt": 1, "sequence": 1, "tenant": "acme", "from_ms": 0, "until_ms": 10,
            "share_ppm": 1, "gpus": 1, "memory_mib": 1, "used_ppm_ms": 0, "kernels": 0, "bytes_in": 0, "bytes_out": 0,
            "memory_peak": 0, "last": false, "suspended": true,
        });
        let record: UsageRecord = serde_json::from_value(json).unwrap();
        assert_eq!(Measured::of(&record), None);
        assert!(Measured::of(&UsageRecord { suspended: false, ..record }).is_some());
    }

    #[test]
    fn load_that_changes_for_ever_comes_to_rest() {
        // A minute and a half of little, then one of much, again and again.
        let mut lease = begin();
        let (mut all, mut changes) = (Vec::new(), 0);
        for step in 0..4_000_u64 {
            let wanted = if step % 15 < 9 { 20 } else { 90 };
            let share = lease.live.share_ppm / 10_000;
            record(10 * step, share, wanted.min(u64::from(share))).add_to(&mut all);
            changes += usize::from(lease.after(&all, 10 * (step + 1) * 1000) != Step::Kept);
        }
        assert!(changes <= 40, "{changes} changes");
        assert!(all.len() <= RECORDS_MAX);
    }
}
