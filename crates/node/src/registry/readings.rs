//! What the registry counts, copied out for metrics in one short look.
//!
//! Nothing is measured here: the numbers are those that usage records are cut from
//! ([`crate::join::Metered`]) and that `sluice sessions` shows. A lease that has ended stays for
//! [`KEPT_FOR`], so that a scrape sees its last numbers, then it is gone.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sluice_wire::control::GpuStatus;
use sluice_worker_link::counters::Counts;

use super::{LeaseRecord, Ledger, Registry, sum};
use crate::arbiter::{PPM, Waits};

/// Longer than scrapers wait from one scrape to the next.
const KEPT_FOR: Duration = Duration::from_secs(120);
/// Leases of one answer, those that have ended included: some thirty series each.
pub(crate) const LEASES_MAX: usize = 5_000;

/// Which attempt of which lease, and whose.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaseName {
    /// The server's number, or the node's own for a node without a server.
    pub(crate) lease: u64,
    /// 0 without a server, as is the task.
    pub(crate) attempt: u32,
    pub(crate) task: u32,
    /// Empty without a server, as are tier and pool.
    pub(crate) tenant: String,
    pub(crate) tier: String,
    pub(crate) pool: String,
}

/// What one lease has and has used so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LeaseReading {
    pub(crate) name: LeaseName,
    /// The meter `used`: nanoseconds of a whole GPU.
    pub(crate) used_ns: u64,
    /// The meter `reserved`: millionths of a GPU x milliseconds, which are nanoseconds of a whole
    /// GPU.
    pub(crate) reserved_ns: u64,
    /// Time for which its sessions had a GPU to themselves.
    pub(crate) busy_ns: u64,
    /// Of its sessions, which had work, for a GPU.
    pub(crate) waits: Waits,
    pub(crate) kernels: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) sessions_total: u64,
    pub(crate) failures: u64,
    /// How often memory of its sessions has left the GPUs, and how long that and the ways back have
    /// taken.
    pub(crate) memory_moves: u64,
    pub(crate) memory_moving_us: u64,
    /// What is so now; `None` once it has ended.
    pub(crate) now: Option<LeaseNow>,
}

/// What a lease has now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LeaseNow {
    pub(crate) gpus: u32,
    pub(crate) share_ppm: u32,
    /// Of the GPU time of its GPUs in the last second.
    pub(crate) received_ppm: u32,
    /// Bytes on all its GPUs.
    pub(crate) memory: u64,
    pub(crate) memory_used: u64,
    /// Bytes of them that have left the GPUs.
    pub(crate) memory_swapped: u64,
    /// Bytes of these that are in a file.
    pub(crate) memory_in_file: u64,
    pub(crate) sessions: u32,
    /// Microseconds of a round trip to the farthest program whose connection is TCP; 0 without one.
    pub(crate) round_trip_us: u64,
}

/// All of a node at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readings {
    pub(crate) gpus: Vec<GpuStatus>,
    pub(crate) leases: Vec<LeaseReading>,
    /// Leases beyond [`LEASES_MAX`].
    pub(crate) omitted: usize,
}

/// How much GPU time a lease got in the last second.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Pace {
    read_ns: u64,
    received_ppm: u32,
}

/// The last numbers of leases that have ended, the latest last, each with the moment of its end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct PastLeases(VecDeque<(Duration, LeaseReading)>);

impl PastLeases {
    fn add(&mut self, now: Duration, reading: LeaseReading) {
        self.forget(now);
        if self.0.len() == LEASES_MAX {
            self.0.pop_front();
        }
        self.0.push_back((now, reading));
    }

    fn forget(&mut self, now: Duration) {
        while self.0.front().is_some_and(|(ended, _)| now.saturating_sub(*ended) > KEPT_FOR) {
            self.0.pop_front();
        }
    }
}

impl Registry {
    pub(crate) fn readings(&self) -> Readings {
        let now = self.clock.running();
        let ledger = self.lock();
        // Under the ledger's lock: a move to another GPU takes waits from the turns to the record.
        let waits = self.turns.waits();
        let (counts, sessions) = ledger.counts_of_all();
        let swapped = ledger.swapped_of_all();
        let round_trips = ledger.round_trips_of_all();
        let reading = |(&id, record): (&u64, &LeaseRecord)| {
            let mut reading = self.reading(id, record, counts.get(&id).copied().unwrap_or(record.past));
            reading.waits = reading.waits.and(waits.get(&id).copied().unwrap_or_default());
            let entry = ledger.books.lease(id)?;
            reading.now = Some(LeaseNow {
                gpus: entry.gpus.len() as u32,
                share_ppm: entry.ask.share_ppm,
                received_ppm: record.pace.received_ppm,
                memory: entry.memory * entry.gpus.len() as u64,
                memory_used: ledger.memory_used(id),
                memory_swapped: swapped.get(&id).map_or(0, |of| of.0),
                memory_in_file: swapped.get(&id).map_or(0, |of| of.1),
                sessions: sessions.get(&id).copied().unwrap_or(0),
                round_trip_us: round_trips.get(&id).copied().unwrap_or(0),
            });
            Some(reading)
        };
        let mut leases: Vec<LeaseReading> = ledger.leases.iter().filter_map(reading).collect();
        let gpus = (0..self.inventory.cards.len()).map(|gpu| self.gpu_status(&ledger, gpu)).collect();
        drop(ledger);
        let mut past = self.past_leases.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        past.forget(now);
        leases.extend(past.0.iter().rev().map(|(_, reading)| reading.clone()));
        drop(past);
        let omitted = leases.len().saturating_sub(LEASES_MAX);
        leases.truncate(LEASES_MAX);
        Readings { gpus, leases, omitted }
    }

    /// Sets the last numbers of a lease aside, once its last usage record is cut.
    pub(super) fn keep_last(&self, id: u64, record: &LeaseRecord, share_ppm: u64) {
        let mut reading = self.reading(id, record, record.past);
        match &record.metered {
            // To the millisecond what its usage records say.
            Some(metered) => reading.reserved_ns = metered.recorded_ns(),
            None => reading.reserved_ns = share_ppm.saturating_mul(self.since_ms(record.started)),
        }
        let mut past = self.past_leases.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        past.add(self.clock.running(), reading);
    }

    fn reading(&self, id: u64, record: &LeaseRecord, counts: Counts) -> LeaseReading {
        let held_ms = self.since_ms(record.started);
        let alone = || LeaseName { lease: id, ..LeaseName::default() };
        LeaseReading {
            name: record.metered.as_ref().map_or_else(alone, |metered| metered.name()),
            used_ns: counts.used_ns,
            reserved_ns: record.share_ppm.saturating_mul(held_ms),
            busy_ns: counts.gpu_ns,
            waits: record.past_waits,
            kernels: counts.kernels,
            bytes_in: counts.bytes_in,
            bytes_out: counts.bytes_out,
            sessions_total: record.sessions_total,
            failures: record.failures,
            memory_moves: record.memory_moves,
            memory_moving_us: record.memory_moving_us,
            now: None,
        }
    }
}

impl Ledger {
    /// What all sessions of each lease have done, those that have ended included, and how many
    /// there are now: one pass over all.
    fn counts_of_all(&self) -> (BTreeMap<u64, Counts>, BTreeMap<u64, u32>) {
        let mut counts: BTreeMap<u64, Counts> =
            self.leases.iter().map(|(&id, record)| (id, record.past)).collect();
        let mut sessions = BTreeMap::new();
        for session in self.sessions.values() {
            if let Some(counts) = counts.get_mut(&session.lease) {
                *counts = sum(*counts, session.counters.read());
                *sessions.entry(session.lease).or_default() += 1;
            }
        }
        (counts, sessions)
    }

    /// Bytes of each lease that have left GPUs, and the part of them that is in a file.
    fn swapped_of_all(&self) -> BTreeMap<u64, (u64, u64)> {
        let mut swapped: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (&session, record) in &self.sessions {
            let Some(entry) = self.books.lease(record.lease) else { continue };
            let of_lease = swapped.entry(record.lease).or_default();
            of_lease.0 += entry.swapped_by(session);
            of_lease.1 += entry.filed_by(session);
        }
        swapped
    }

    /// Microseconds of the longest round trip to a program of each lease.
    fn round_trips_of_all(&self) -> BTreeMap<u64, u64> {
        let mut longest = BTreeMap::new();
        for session in self.sessions.values() {
            let of_lease: &mut u64 = longest.entry(session.lease).or_default();
            *of_lease = (*of_lease).max(session.counters.round_trip_us.load(Relaxed));
        }
        longest
    }

    /// Adds one move of a session's memory to the sums of its lease.
    pub(super) fn note_move(&mut self, lease: u64, moves_out: u64, took_us: u64) {
        if let Some(record) = self.leases.get_mut(&lease) {
            record.memory_moves += moves_out;
            record.memory_moving_us = record.memory_moving_us.saturating_add(took_us);
        }
    }

    /// Notes what part of its GPUs' time each lease has got since this was asked last.
    pub(super) fn follow_pace(&mut self, elapsed_ns: u128) {
        let (counts, _) = self.counts_of_all();
        for (id, record) in &mut self.leases {
            let total_ns = counts.get(id).map_or(0, |counts| counts.gpu_ns);
            let gpus = self.books.lease(*id).map_or(1, |lease| lease.gpus.len().max(1));
            let got_ns = u128::from(total_ns.saturating_sub(record.pace.read_ns));
            let received = got_ns * u128::from(PPM) / (elapsed_ns * gpus as u128).max(1);
            record.pace = Pace { read_ns: total_ns, received_ppm: received.min(u128::from(PPM)) as u32 };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sluice_wire::handshake::{Once, OpeningNonce};

    use super::*;
    use crate::clock::SystemClock;
    use crate::config::NodeConfig;
    use crate::inventory::Inventory;
    use crate::spawn::{Spawner, WorkerCommand};
    use crate::swap_space::SwapSpace;

    #[test]
    fn leases_that_have_ended_stay_for_a_scrape_and_vanish() {
        let mut past = PastLeases::default();
        let ended = |lease| LeaseReading {
            name: LeaseName { lease, ..LeaseName::default() },
            ..LeaseReading::default()
        };
        past.add(Duration::from_secs(10), ended(1));
        past.add(Duration::from_secs(60), ended(2));
        past.forget(Duration::from_secs(10) + KEPT_FOR);
        assert_eq!(past.0.len(), 2);
        past.forget(Duration::from_secs(11) + KEPT_FOR);
        assert_eq!(past.0.iter().map(|(_, reading)| reading.name.lease).collect::<Vec<_>>(), [2]);
        (0..2 * LEASES_MAX as u64).for_each(|lease| past.add(Duration::from_secs(100), ended(lease)));
        assert_eq!(past.0.len(), LEASES_MAX, "however many end at once");
    }

    #[test]
    fn waits_for_gpus_that_a_lease_has_left_are_among_its_last_numbers() {
        let inventory = Inventory {
            driver: sluice_worker_link::link::Driver::Software { memory: Vec::new() },
            cards: Vec::new(),
            snapshots: Vec::new(),
        };
        let spawner = Spawner::start(WorkerCommand::default(), true).unwrap();
        let swap = SwapSpace::open(0, None).unwrap();
        let clock = Arc::new(SystemClock::new());
        let registry = Registry::new(&NodeConfig::default(), inventory, (spawner, swap), None, clock);
        let once = Once { nonce: OpeningNonce([1; 32]), attempt: 0 };
        let mut record = LeaseRecord::new(once, String::new(), 0, 0, Duration::ZERO, None);
        let there =
            Waits { total_ns: 7, turns_ns: 3, counts: [2, 0, 0, 0, 0, 0, 0, 0, 0, 0], ..Waits::default() };
        record.past_waits = record.past_waits.and(there);
        registry.keep_last(7, &record, 0);
        let [reading] = &registry.readings().leases[..] else { panic!("one lease has ended") };
        assert_eq!((reading.name.lease, reading.waits), (7, there));
    }
}
