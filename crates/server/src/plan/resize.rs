//! Leases whose size changes while they run: the scheduler counts what the fleet counts.

use sluice_api::lease::LeaseId;
use sluice_sched::ClusterError;

use super::enter::milli;
use super::{Clock, Plan};
use crate::fleet::{Fleet, LeaseRecord, NoResize, Seat, Size};

impl Plan {
    /// Has the scheduler count a lease as what it has and is to have; what is in the way is what
    /// others are due to get.
    pub(crate) fn make_room(&mut self, fleet: &Fleet, id: LeaseId, to: Size) -> Option<NoResize> {
        let lease = fleet.lease(id)?;
        self.work.get(&id).filter(|work| work.granted.is_some())?;
        let seats = || lease.held().map(|(_, seat)| seat);
        let held_ppm = seats().map(|seat| lease.size(seat).held_ppm()).chain([to.held_ppm()]).max()?;
        let held = seats().map(|seat| seat.held_memory().max(seat.memory_held_as(to))).max()?;
        let memory = seats().map(|seat| lease.size(seat).memory).chain([to.memory]).max()?;
        let refused = self.count_as(id, held_ppm, held, memory).err()?;
        let reason = match refused {
            ClusterError::OverCommit { .. } => "what is free there is due to leases that wait for it".into(),
            other => other.to_string(),
        };
        Some(NoResize::NoRoom(reason))
    }

    /// Begins the changes that have waited for room.
    pub(super) fn resize_waiting(&mut self, fleet: &mut Fleet, clock: Clock) {
        for (id, to) in fleet.waiting_resizes() {
            let in_the_way = fleet.no_room_to_resize(id, to, clock.now_ms);
            match in_the_way.or_else(|| self.make_room(fleet, id, to)) {
                None => fleet.send_resize(id, to),
                Some(NoResize::NoRoom(reason) | NoResize::Never(reason)) => {
                    fleet.wait_to_resize(id, to, reason)
                }
            }
        }
    }

    /// Takes over what a lease counts as in the fleet.
    pub(super) fn follow_size(&mut self, lease: &LeaseRecord) {
        let is_granted = self.work.get(&lease.id).is_some_and(|work| work.granted.is_some());
        if lease.ask.units_milli.is_some() || !is_granted {
            return;
        }
        // One that never was asks for its memory as it did.
        let resized = || lease.seats.iter().filter(|seat| seat.stays() && seat.version > 0);
        let Some(seat) = resized().next() else { return };
        let held = resized().map(Seat::held_memory).max().unwrap_or(seat.memory);
        // It grows only after `make_room`: there is nothing to refuse.
        let _ = self.count_as(lease.id, lease.share_ppm(seat), held, seat.memory);
    }

    /// Has each of its tasks hold this share and as many bytes; further ones get `memory`.
    pub(super) fn count_as(
        &mut self,
        id: LeaseId,
        share_ppm: u32,
        held: u64,
        memory: u64,
    ) -> Result<(), ClusterError> {
        let Some(work) = self.work.get_mut(&id) else { return Ok(()) };
        let memory_mib = u32::try_from(held.div_ceil(1 << 20)).unwrap_or(u32::MAX);
        self.scheduler.change_request(self.now_ms, work.job, milli(share_ppm.into()), memory_mib)?;
        work.memory = memory;
        Ok(())
    }
}
