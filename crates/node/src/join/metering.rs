//! Cuts what a lease uses into records that tile the time in which it is held.
//!
//! Pure. Times come from one reading of the wall clock at the beginning and a monotonic clock
//! since, so a clock that is set moves no record.

use serde::{Deserialize, Serialize};
use sluice_api::grant::Grant;
use sluice_api::node::{Attempt, NodeId, Resized};
use sluice_api::pool::Promised;
use sluice_api::usage::{SPAN_MAX_MS, UsageRecord};
use sluice_worker_link::counters::Counts;

use crate::arbiter::PromisedWaits;
use crate::registry::readings::LeaseName;

/// Of the GPUs of a lease.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Model {
    pub(crate) name: String,
    /// 0 where it is not known.
    pub(crate) gflops: u64,
}

/// A lease of a server, and what has been recorded of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Metered {
    node: NodeId,
    grant: Grant,
    model: Model,
    begun_at_ms: u64,
    /// How long the lease had been held, and its counters, when it was cut last.
    cut_ms: u64,
    counts: Counts,
    waits: PromisedWaits,
    sequence: u32,
    /// What became of the last grant that was to change what the lease has.
    resized: Option<Resized>,
    /// How long the lease had been held when it was resized last, and what was reserved until then,
    /// in nanoseconds of a whole GPU.
    resized_at_ms: u64,
    recorded_before_ns: u64,
}

impl Metered {
    /// `recorded` is how many records of the attempt there are, from before the node was started
    /// again.
    pub(crate) fn new(node: NodeId, grant: Grant, model: Model, begun_at_ms: u64, recorded: u32) -> Metered {
        let counts = Counts::default();
        Metered {
            node,
            grant,
            model,
            begun_at_ms,
            cut_ms: 0,
            counts,
            waits: PromisedWaits::default(),
            sequence: recorded,
            resized: None,
            resized_at_ms: 0,
            recorded_before_ns: 0,
        }
    }

    pub(crate) fn attempt(&self) -> Attempt {
        Attempt { lease: self.grant.lease, attempt: self.grant.attempt, task: self.grant.task }
    }

    /// The end of a record that is cut when the lease has been held for `held_ms`.
    pub(crate) fn at_ms(&self, held_ms: u64) -> u64 {
        self.begun_at_ms.saturating_add(held_ms)
    }

    /// Counts the lease from here on: it was on another node until now, which is `at_ms`. It has
    /// been held for `held_ms` in all, and its counters show what it did there.
    pub(crate) fn begin(&mut self, held_ms: u64, counts: Counts, at_ms: u64) {
        self.begun_at_ms = at_ms.saturating_sub(held_ms);
        (self.cut_ms, self.resized_at_ms, self.counts) = (held_ms, held_ms, counts);
    }

    /// As metrics name it.
    pub(crate) fn name(&self) -> LeaseName {
        LeaseName {
            lease: self.grant.lease,
            attempt: self.grant.attempt,
            task: self.grant.task,
            tenant: self.grant.tenant.to_string(),
            tier: self.grant.tier.name().to_owned(),
            pool: self.grant.pool.clone(),
        }
    }

    /// What its records say that was reserved, up to the last cut: nanoseconds of a whole GPU.
    pub(crate) fn recorded_ns(&self) -> u64 {
        let share_ppm = u64::from(self.grant.share_ppm) * self.grant.gpus.len() as u64;
        let since_resized_ms = self.cut_ms.saturating_sub(self.resized_at_ms);
        self.recorded_before_ns.saturating_add(share_ppm.saturating_mul(since_resized_ms))
    }

    /// What became of the last grant that was to change what the lease has.
    pub(crate) fn resized(&self) -> Option<&Resized> {
        self.resized.as_ref()
    }

    /// The latest version of the grant that was looked at here.
    pub(crate) fn version(&self) -> u32 {
        self.resized.as_ref().map_or(self.grant.version, |resized| resized.version)
    }

    /// The lease has what a later grant says from now on. It was cut at this moment, so no record
    /// is of two sizes.
    pub(crate) fn regrant(&mut self, grant: Grant) {
        let (attempt, version) = (self.attempt(), grant.version);
        self.resized = Some(Resized { attempt, version, refused: None });
        (self.recorded_before_ns, self.resized_at_ms) = (self.recorded_ns(), self.cut_ms);
        self.grant = grant;
    }

    /// The lease stays as it is, whatever the grant of this version says.
    pub(crate) fn refuse(&mut self, version: u32, reason: String) {
        self.resized = Some(Resized { attempt: self.attempt(), version, refused: Some(reason) });
    }

    /// How long it is since the last cut, for a lease that has been held for `held_ms`.
    pub(crate) fn open_ms(&self, held_ms: u64) -> u64 {
        held_ms.saturating_sub(self.cut_ms)
    }

    /// What is from the last cut until now: the lease has been held for `held_ms`, its counters
    /// show `counts`, and `waits` has those here that its promise is about. One record, or several
    /// where one would span more than it may: what was counted is spread over them evenly.
    pub(crate) fn cut(
        &mut self,
        held_ms: u64,
        counts: Counts,
        waits: PromisedWaits,
        memory_peak: u64,
        last: bool,
    ) -> Vec<UsageRecord> {
        let (begin_ms, before, span_ms) = (self.cut_ms, self.counts, self.open_ms(held_ms));
        let waits_before = self.waits;
        let whole = (1..span_ms.div_ceil(SPAN_MAX_MS)).map(|count| count * SPAN_MAX_MS);
        let mut records = Vec::new();
        for passed_ms in whole {
            let part = |before: u64, now: u64| {
                let counted = u128::from(now.saturating_sub(before));
                before + (counted * u128::from(passed_ms) / u128::from(span_ms)) as u64
            };
            let counts = Counts {
                used_ns: part(before.used_ns, counts.used_ns),
                kernels: part(before.kernels, counts.kernels),
                bytes_in: part(before.bytes_in, counts.bytes_in),
                bytes_out: part(before.bytes_out, counts.bytes_out),
                ..counts
            };
            let waits = PromisedWaits {
                waits: part(waits_before.waits, waits.waits),
                within: part(waits_before.within, waits.within),
            };
            records.push(self.cut_one(begin_ms + passed_ms, counts, waits, memory_peak, false));
        }
        records.push(self.cut_one(begin_ms + span_ms, counts, waits, memory_peak, last));
        records
    }

    fn cut_one(
        &mut self,
        held_ms: u64,
        counts: Counts,
        waits: PromisedWaits,
        memory_peak: u64,
        last: bool,
    ) -> UsageRecord {
        self.sequence += 1;
        let since = |now: u64, before: u64| now.saturating_sub(before);
        let promised = self.grant.promise.map(|promise| {
            let all = since(waits.waits, self.waits.waits);
            // Parts of both that were rounded down may differ by one.
            Promised { promise, waits: all, within: since(waits.within, self.waits.within).min(all) }
        });
        let (gpus, memory) = (self.grant.gpus.len() as u64, self.grant.memory);
        let record = UsageRecord {
            id: UsageRecord::id_of(self.node, self.attempt(), self.sequence),
            node: self.node,
            lease: self.grant.lease,
            attempt: self.grant.attempt,
            task: self.grant.task,
            sequence: self.sequence,
            tenant: self.grant.tenant.clone(),
            tier: self.grant.tier,
            pool: self.grant.pool.clone(),
            model: self.model.name.clone(),
            gflops: self.model.gflops,
            from_ms: self.begun_at_ms + self.cut_ms,
            until_ms: self.begun_at_ms + held_ms,
            share_ppm: self.grant.share_ppm,
            suspended: self.grant.suspended,
            gpus: gpus as u32,
            memory_mib: (memory * gpus).div_ceil(1 << 20),
            // A millionth of a GPU for a millisecond is the whole one for a nanosecond.
            used_ppm_ms: since(counts.used_ns, self.counts.used_ns),
            kernels: since(counts.kernels, self.counts.kernels),
            bytes_in: since(counts.bytes_in, self.counts.bytes_in),
            bytes_out: since(counts.bytes_out, self.counts.bytes_out),
            memory_peak,
            promised,
            last,
        };
        (self.cut_ms, self.counts, self.waits) = (held_ms, counts, waits);
        record
    }
}

#[cfg(test)]
mod tests {
    use sluice_api::pool::{Promise, Tier};

    use super::*;

    const PROMISE: Promise = Promise { wait_us: 20_000, attained_ppm: 990_000, credit_ppm: 100_000 };

    fn waits(waits: u64, within: u64) -> PromisedWaits {
        PromisedWaits { waits, within }
    }

    fn metered() -> Metered {
        let grant = Grant {
            lease: 5,
            attempt: 2,
            task: 1,
            node: 1,
            tenant: "acme".parse().unwrap(),
            tier: Tier::Basic,
            pool: "default".into(),
            gpus: vec![0, 3],
            share_ppm: 250_000,
            promised_ppm: sluice_api::GPU_PPM,
            memory: (1 << 20) + 1,
            hard_cap: false,
            limit_ppm: None,
            suspended: false,
            version: 0,
            moves: 0,
            promise: Some(PROMISE),
            expires_at_ms: 0,
        };
        let model = Model { name: "H100".into(), gflops: 66_908 };
        Metered::new(1, grant, model, 1_000_000, 0)
    }

    #[test]
    fn a_long_span_is_several_records_that_add_up() {
        let mut metered = metered();
        let mut records = metered.cut(1, Counts { kernels: 1, ..Counts::default() }, waits(2, 1), 0, false);
        let counts = Counts { used_ns: 1_000_000_999_999, kernels: 8, bytes_in: 3, ..Counts::default() };
        let until_ms = 2 * SPAN_MAX_MS + 2;
        records.extend(metered.cut(until_ms, counts, waits(9, 8), 7, true));
        assert!(records.windows(2).all(|pair| pair[0].until_ms == pair[1].from_ms));
        assert!(records.iter().all(|record| record.check().is_ok()));
        assert_eq!(
            records.iter().map(UsageRecord::held_ms).collect::<Vec<_>>(),
            [1, SPAN_MAX_MS, SPAN_MAX_MS, 1]
        );
        assert_eq!(records.iter().map(|record| record.used_ppm_ms).sum::<u64>(), 1_000_000_999_999);
        assert_eq!(records.iter().map(|record| record.kernels).sum::<u64>(), 8);
        assert_eq!(records.iter().map(|record| record.bytes_in).sum::<u64>(), 3);
        assert!(records[1].kernels > 0 && records[2].kernels > 0, "{records:?}");
        assert_eq!(records.iter().map(|record| record.last).collect::<Vec<_>>(), [false, false, false, true]);
        let promised: Vec<Promised> = records.iter().filter_map(|record| record.promised).collect();
        assert!(promised.len() == 4 && promised.iter().all(|of| of.promise == PROMISE), "{promised:?}");
        let sums = promised.iter().fold((0, 0), |sums, of| (sums.0 + of.waits, sums.1 + of.within));
        assert_eq!(sums, (9, 8));
        assert_eq!(
            metered.cut(until_ms, counts, waits(9, 8), 7, true).len(),
            1,
            "also if no time has passed"
        );
    }

    #[test]
    fn what_another_node_has_recorded_is_not_recorded_again() {
        let mut there = metered();
        let counts = Counts { used_ns: 900, kernels: 9, ..Counts::default() };
        let last = there.cut(10_000, counts, waits(7, 7), 5, false).remove(0);
        assert_eq!(last.until_ms, there.at_ms(10_000));
        let mut here = metered();
        here.begin(10_001, counts, last.until_ms);
        let more = Counts { used_ns: 1000, kernels: 10, ..Counts::default() };
        let first = here.cut(12_001, more, waits(3, 2), 5, true).remove(0);
        assert_eq!((first.from_ms, first.held_ms()), (last.until_ms, 2000));
        assert_eq!((first.used_ppm_ms, first.kernels), (100, 1));
        let promised = Promised { promise: PROMISE, waits: 3, within: 2 };
        assert_eq!(first.promised, Some(promised), "each node counts the waits for its own GPUs");
        assert_eq!(here.recorded_ns(), 2 * 250_000 * 2000, "its metrics count what it recorded itself");
    }

    #[test]
    fn records_tile_the_time_and_add_up() {
        let mut metered = metered();
        let mut records = Vec::new();
        let cuts = [(10_000, 1_999_999), (9_000, 1_999_999), (20_001, 4_500_000), (20_001, 4_500_000)];
        for (at, (held_ms, used_ns)) in cuts.into_iter().enumerate() {
            let counts = Counts { used_ns, kernels: used_ns / 1000, ..Counts::default() };
            records.extend(metered.cut(held_ms, counts, PromisedWaits::default(), 0, at == 3));
        }
        assert!(records.windows(2).all(|pair| pair[0].until_ms == pair[1].from_ms));
        assert!(records.iter().all(|record| record.check().is_ok()));
        assert_eq!(records.iter().map(UsageRecord::held_ms).sum::<u64>(), 20_001);
        assert!(records.iter().all(|record| (&*record.model, record.gflops) == ("H100", 66_908)));
        assert_eq!(records.iter().map(|record| record.used_ppm_ms).sum::<u64>(), 4_500_000);
        assert_eq!(records.iter().map(|record| record.kernels).sum::<u64>(), 4500);
        assert_eq!((records[0].memory_mib, records[0].gpus, records[0].sequence), (3, 2, 1));
        assert!(records[3].last);
    }
}
