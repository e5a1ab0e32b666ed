//! Moving a running task to a place that the caller chooses; `consolidate.rs` chooses moves itself.

use super::decay::Millis;
use super::job::JobId;
use super::scheduler::Scheduler;
use crate::{ClusterError, NodeId, Placement};

impl Scheduler {
    /// Finds the best place for a task that runs on one of these other nodes. Nothing changes.
    pub fn place_for(&mut self, id: JobId, number: u32, nodes: &[NodeId]) -> Option<Placement> {
        let placement = *self.jobs.get(&id)?.tasks.get(number as usize)?.as_ref()?;
        let others = nodes.iter().copied().filter(|&node| node != placement.node);
        let to = self.placer.place_among(&self.cluster, &placement.request, others).ok()?;
        Some(Placement { request: placement.request, ..to })
    }

    /// Counts a task that runs at another place from now on. Nothing changes by an error.
    pub fn relocate(
        &mut self,
        now: Millis,
        id: JobId,
        number: u32,
        to: Placement,
    ) -> Result<(), ClusterError> {
        let Some(from) = self.take_off(id, number) else { return Ok(()) };
        let put = self.put_on(id, number, to);
        if put.is_err() {
            let restored = self.put_back_on(id, number, from);
            debug_assert_eq!(restored, Ok(()), "it was there a moment ago");
            return put;
        }
        self.now = self.now.max(now);
        self.room_came_to_be(from.node);
        self.changed_from_outside();
        Ok(())
    }
}
