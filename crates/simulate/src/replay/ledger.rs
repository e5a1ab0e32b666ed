//! What was used by whom and when: integrals over virtual time.

use sluice_sched::queues::{QueueId, QueueTree, Resource, Scheduler};

use crate::stranded::Mix;

/// Sums over the whole replay.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) cycles: u64,
    pub(super) moves: u64,
    /// Jobs evicted for other queues, for higher priorities, and because members were missing for
    /// too long.
    pub(super) reclaimed: u64,
    pub(super) preempted: u64,
    pub(super) stale: u64,
    /// Work that evicted jobs have to do again, in thousandths of a GPU times milliseconds.
    pub(super) lost_milli_ms: u128,
}

impl Totals {
    pub(super) fn evictions(&self) -> u64 {
        self.reclaimed + self.preempted + self.stale
    }
}

/// The use of one queue, in thousandths of a GPU times milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Use {
    pub(super) used: u128,
    /// Of its fair share, as the scheduler divided the GPUs from cycle to cycle.
    pub(super) fair_share: u128,
}

/// A span of virtual time in which nothing changed.
#[derive(Clone, Copy, Debug)]
struct Span {
    until_ms: u64,
    used_milli: u64,
    /// Where its queues begin in `Ledger::used_by_root`.
    first: usize,
}

pub(super) struct Ledger {
    pub(super) totals: Totals,
    /// By the index of the queue.
    pub(super) uses: Vec<Use>,
    pub(super) last_end_ms: u64,
    tree: QueueTree,
    capacity_milli: u64,
    now_ms: u64,
    start_ms: Option<u64>,
    spans: Vec<Span>,
    used_by_root: Vec<u64>,
    /// Stranded percent of the free compute, at some cycles.
    stranded: Vec<(u64, f64)>,
    sample_again_ms: u64,
}

/// Fragmentation is looked at no more often than this: it means looking at every node.
const SAMPLE_EVERY_MS: u64 = 10 * 60 * 1000;

impl Ledger {
    pub(super) fn new(tree: &QueueTree, capacity_milli: u64) -> Ledger {
        Ledger {
            totals: Totals::default(),
            uses: vec![Use::default(); tree.len()],
            last_end_ms: 0,
            tree: tree.clone(),
            capacity_milli,
            now_ms: 0,
            start_ms: None,
            spans: Vec::new(),
            used_by_root: Vec::new(),
            stranded: Vec::new(),
            sample_again_ms: 0,
        }
    }

    /// Time continues to `now`; until then everything was as the scheduler has it.
    pub(super) fn pass(&mut self, scheduler: &Scheduler, now: u64) {
        if self.start_ms.is_none() {
            self.start_ms = Some(now);
            self.now_ms = now;
        }
        let passed = u128::from(now - self.now_ms);
        self.now_ms = now;
        if passed == 0 {
            return;
        }
        for queue in self.tree.top_down() {
            let Use { used, fair_share } = &mut self.uses[queue.index()];
            *used += u128::from(scheduler.allocated(queue)[Resource::Gpu]) * passed;
            *fair_share +=
                u128::from(scheduler.fair_share(queue)[Resource::Gpu].min(self.capacity_milli)) * passed;
        }
        let first = self.used_by_root.len();
        let roots = self.tree.roots().iter();
        self.used_by_root.extend(roots.map(|&root| scheduler.allocated(root)[Resource::Gpu]));
        let used_milli = scheduler.cluster().usage().gpu_milli_used;
        match self.spans.last_mut() {
            // Nothing has changed: one span.
            Some(last) if self.used_by_root[last.first..first] == self.used_by_root[first..] => {
                last.until_ms = now;
                self.used_by_root.truncate(first);
            }
            _ => self.spans.push(Span { until_ms: now, used_milli, first }),
        }
    }

    pub(super) fn sample(&mut self, scheduler: &Scheduler, mix: &Mix, now: u64) {
        if now >= self.sample_again_ms {
            self.stranded.push((now, mix.stranded_percent(scheduler.cluster())));
            self.sample_again_ms = now + SAMPLE_EVERY_MS;
        }
    }

    pub(super) fn ended(&mut self, now: u64) {
        self.last_end_ms = self.last_end_ms.max(now);
    }

    pub(super) fn start_ms(&self) -> u64 {
        self.start_ms.unwrap_or_default()
    }

    /// Mean allocation from the first arrival to `until_ms`, in percent of the capacity.
    pub(super) fn allocated_percent(&self, until_ms: u64) -> f64 {
        let (mut from, mut sum) = (self.start_ms(), 0u128);
        for span in &self.spans {
            let until = span.until_ms.min(until_ms);
            sum += u128::from(span.used_milli) * u128::from(until.saturating_sub(from));
            from = span.until_ms;
        }
        let all = self.capacity_milli as f64 * until_ms.saturating_sub(self.start_ms()) as f64;
        if all > 0.0 { sum as f64 * 100.0 / all } else { 0.0 }
    }

    pub(super) fn stranded_percent(&self, until_ms: u64) -> f64 {
        let samples: Vec<f64> =
            self.stranded.iter().filter(|(at, _)| *at <= until_ms).map(|(_, percent)| *percent).collect();
        crate::summary::mean_and_deviation(&samples).0
    }

    /// Allocation of each queue below the cluster over time, in percent of the capacity: means of
    /// `slots` equal spans, each as (hours since the start, percent).
    pub(super) fn over_time(&self, slots: usize) -> Vec<Vec<(f64, f64)>> {
        let roots = self.tree.roots().len();
        let start = self.start_ms();
        let length = self.now_ms.saturating_sub(start).max(1);
        let slot_ms = length.div_ceil(slots as u64).max(1);
        let mut sums = vec![vec![0u128; slots]; roots];
        let mut from = start;
        for span in &self.spans {
            let mut at = from;
            while at < span.until_ms {
                let slot = ((at - start) / slot_ms) as usize;
                let until = span.until_ms.min(start + (slot as u64 + 1) * slot_ms);
                for (root, sums) in sums.iter_mut().enumerate() {
                    sums[slot] += u128::from(self.used_by_root[span.first + root]) * u128::from(until - at);
                }
                at = until;
            }
            from = span.until_ms;
        }
        let full = self.capacity_milli as f64 * slot_ms as f64;
        let point = |(slot, sum): (usize, u128)| {
            let hours = (slot as f64 + 0.5) * slot_ms as f64 / 3.6e6;
            (hours, sum as f64 * 100.0 / full)
        };
        let used_slots = length.div_ceil(slot_ms) as usize;
        sums.into_iter()
            .map(|sums| sums.into_iter().take(used_slots).enumerate().map(point).collect())
            .collect()
    }

    pub(super) fn tree(&self) -> &QueueTree {
        &self.tree
    }

    pub(super) fn use_of(&self, queue: QueueId) -> Use {
        self.uses[queue.index()]
    }
}
