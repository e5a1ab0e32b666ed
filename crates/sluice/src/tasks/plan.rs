//! Which rank a further task gets, and what the server means to do with each.

use std::collections::BTreeSet;

use sluice_api::lease::Lease;

use crate::child::CHILDREN_MAX;

/// The lowest that no task has which runs or is done.
pub(super) fn free_rank(taken: &BTreeSet<usize>, ranks_max: usize) -> Option<usize> {
    (0..ranks_max.min(CHILDREN_MAX)).find(|rank| !taken.contains(rank))
}

/// What the server means to do with a task.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Plan {
    Stays,
    /// It has to make room until then.
    Leaves(u64),
    /// It has no place any more.
    Gone,
}

pub(super) fn plan_for(lease: &Lease, number: u32) -> Plan {
    let place = lease.places.iter().find(|place| place.task == number);
    place.map_or(Plan::Gone, |place| place.leave_at_ms.map_or(Plan::Stays, Plan::Leaves))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_the_lowest_that_are_free() {
        assert_eq!(free_rank(&BTreeSet::from([0, 2]), 3), Some(1));
        assert_eq!(free_rank(&BTreeSet::from([0, 1, 2]), 4), Some(3));
        assert_eq!(free_rank(&BTreeSet::from([0, 1, 2]), 3), None, "not beyond the maximum");
        assert_eq!(free_rank(&(0..CHILDREN_MAX).collect(), usize::MAX), None);
    }

    #[test]
    fn a_task_without_a_place_is_gone() {
        let leave = |mut place: serde_json::Value| {
            place["leave_at_ms"] = 7.into();
            place
        };
        let place = |task: u32| serde_json::json!({"task": task, "node": "n", "address": "n:1", "gpus": [0]});
        let json = serde_json::json!({
            "id": 1, "tenant": "acme", "name": "", "gpus": 1, "tasks": 2, "share_ppm": 1, "memory": 0, "priority": 100, "tier": "standard",
            "preemptible": true, "state": "running", "attempt": 1, "created_at_ms": 0, "revision": 1,
            "places": [place(0), leave(place(2))]
        });
        let lease: Lease = serde_json::from_value(json).unwrap();
        let plans = [0, 1, 2, 3].map(|number| plan_for(&lease, number));
        assert_eq!(plans, [Plan::Stays, Plan::Gone, Plan::Leaves(7), Plan::Gone]);
    }
}
