//! Which time of a task has been counted: the records of a task follow one another.
//!
//! A node that reports an hour twice, under two sequence numbers, must not be paid twice. What has
//! been counted last is kept in memory and read from the database where it is not known.

use std::collections::BTreeMap;

use sluice_api::lease::LeaseId;
use sluice_api::node::{Attempt, NodeId};
use sluice_api::usage::UsageRecord;

/// Clocks are corrected by up to this between two records of a task, in milliseconds.
const CLOCK_STEP_MS: u64 = 1000;
/// Tasks of ended leases are forgotten when there are more tasks than this.
const TASKS_MAX: usize = 100_000;

/// The last record of a task that was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LastCounted {
    pub(crate) sequence: u32,
    pub(crate) until_ms: u64,
}

impl LastCounted {
    /// Says why a record cannot follow this one.
    pub(crate) fn contradiction(self, record: &UsageRecord) -> Option<String> {
        if record.sequence <= self.sequence {
            return Some(format!("record {} of its task was counted before it", self.sequence));
        }
        (record.from_ms.saturating_add(CLOCK_STEP_MS) < self.until_ms).then(|| {
            format!(
                "{} ms of it were counted with record {} of its task",
                self.until_ms - record.from_ms,
                self.sequence
            )
        })
    }
}

/// The last records of tasks, as far as they are in memory.
#[derive(Debug, Default)]
pub(crate) struct Counted(BTreeMap<(NodeId, Attempt), LastCounted>);

impl Counted {
    pub(crate) fn last(&self, node: NodeId, task: Attempt) -> Option<LastCounted> {
        self.0.get(&(node, task)).copied()
    }

    /// Remembers the last record of a task. `is_alive` says which leases can have further ones.
    pub(crate) fn remember(
        &mut self,
        node: NodeId,
        task: Attempt,
        last: LastCounted,
        is_alive: impl Fn(LeaseId) -> bool,
    ) {
        self.0.insert((node, task), last);
        if self.0.len() > TASKS_MAX {
            self.0.retain(|(_, task), _| is_alive(task.lease));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: Attempt = Attempt { lease: 7, attempt: 1, task: 0 };

    fn record(sequence: u32, from_ms: u64) -> UsageRecord {
        let text = format!(
            r#"{{"id": "", "node": 1, "lease": 7, "attempt": 1, "sequence": {sequence}, "tenant": "acme",
                "from_ms": {from_ms}, "until_ms": {}, "share_ppm": 1, "gpus": 1, "memory_mib": 1,
                "used_ppm_ms": 0, "kernels": 0, "bytes_in": 0, "bytes_out": 0, "memory_peak": 0, "last": false}}"#,
            from_ms + 60_000
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_record_follows_the_one_before_it() {
        let last = LastCounted { sequence: 3, until_ms: 600_000 };
        assert_eq!(last.contradiction(&record(4, 600_000)), None);
        assert_eq!(last.contradiction(&record(9, 900_000)), None, "the node was away");
        assert_eq!(last.contradiction(&record(4, 599_000)), None, "its clock was corrected");
        assert_eq!(LastCounted::default().contradiction(&record(1, 0)), None);
        let twice = last.contradiction(&record(4, 540_000)).unwrap();
        assert_eq!(twice, "60000 ms of it were counted with record 3 of its task");
        for sequence in 1..4 {
            let late = last.contradiction(&record(sequence, 600_000)).unwrap();
            assert_eq!(late, "record 3 of its task was counted before it");
        }
    }

    #[test]
    fn tasks_of_ended_leases_are_forgotten() {
        let mut counted = Counted::default();
        for lease in 0..=TASKS_MAX as u64 {
            let task = Attempt { lease, ..TASK };
            counted.remember(1, task, LastCounted::default(), |lease| lease % 2 == 1);
        }
        assert_eq!(counted.last(1, Attempt { lease: 2, ..TASK }), None);
        assert_eq!(counted.last(1, Attempt { lease: 3, ..TASK }), Some(LastCounted::default()));
    }
}
