//! What the server changes about leases by itself: noted on the lease, and in the audit log with
//! the reason.

use serde_json::json;
use sluice_api::GPU_PPM;
use sluice_api::autonomy::{AutomaticSize, ProgramName};
use sluice_api::lease::{LeaseId, LeaseState, ResizeLease};
use sluice_api::node::NodeId;
use sluice_api::tenant::TenantPath;

use super::lease::{Automatic, Stage};
use super::{Fleet, LeaseRecord, Seat};
use crate::autonomy::{IdleState, LiveLease};

impl Fleet {
    /// Notes that a lease has another size than was asked for.
    pub(crate) fn note_automatic_size(&mut self, id: LeaseId, size: AutomaticSize) {
        let Some(lease) = self.leases.get(&id) else { return };
        let (asked_share_ppm, asked_memory) = (size.asked_share_ppm, size.asked_memory);
        let detail = json!({
            "kind": size.kind, "reason": size.why, "asked_share_ppm": asked_share_ppm, "asked_memory": asked_memory,
            "share_ppm": lease.ask.share_ppm, "limit_ppm": lease.ask.limit_ppm(), "memory": lease.ask.memory,
        });
        self.tell(id, "lease.sized", detail);
        self.change(id, |lease| lease.automatic.get_or_insert_default().size = Some(size));
    }

    /// Notes what comes of it that the programs of a lease do nothing.
    pub(crate) fn note_idle(&mut self, id: LeaseId, idle: Option<IdleState>) {
        self.change(id, |lease| {
            let automatic = lease.automatic.get_or_insert_default();
            automatic.idle = idle;
            if *automatic == Automatic::default() {
                lease.automatic = None;
            }
        });
    }

    /// Says what comes of it that the programs of a lease do nothing.
    pub(crate) fn tell_idle(
        &mut self,
        id: LeaseId,
        action: &'static str,
        reason: &str,
        suspend_at_ms: Option<u64>,
    ) {
        let mut detail = json!({ "reason": reason });
        if let Some(suspend_at_ms) = suspend_at_ms {
            detail["suspend_at_ms"] = suspend_at_ms.into();
        }
        self.tell(id, action, detail);
    }

    /// Notes what is known of the use of a lease. That alone is no news.
    pub(crate) fn note_live(&mut self, id: LeaseId, live: LiveLease) {
        let known = self.leases.get(&id).and_then(|lease| lease.automatic.as_ref()?.live);
        if known != Some(live) {
            self.change(id, |lease| lease.automatic.get_or_insert_default().live = Some(live));
        }
    }

    /// A lease has what it asked for again.
    pub(crate) fn forget_automatic_size(&mut self, id: LeaseId) {
        self.change(id, |lease| lease.automatic.iter_mut().for_each(|automatic| automatic.size = None));
    }

    /// A person resizes a lease: the server does not from then on.
    pub(crate) fn resized_by_hand(&mut self, id: LeaseId) {
        self.change(id, |lease| {
            let automatic = lease.automatic.get_or_insert_default();
            (automatic.size, automatic.live, automatic.by_hand) = (None, None, true);
        });
    }

    /// Gives notice to leases that came into room which a lease had given up since a moment,
    /// as far as it lacks that room now that it is to grow; the latest first. Leases that may not
    /// be preempted, have a higher priority or are within what their tenants are guaranteed keep
    /// what they have.
    pub(crate) fn reclaim_room(&mut self, id: LeaseId, since_ms: u64, at_ms: u64) {
        let Some(lease) = self.leases.get(&id) else { return };
        let waits = |seat: &Seat| {
            let resize =
                seat.resizing.as_ref().filter(|resize| matches!(resize.stage, Stage::Waiting { .. }))?;
            Some(resize.to.held_ppm().saturating_sub(lease.size(seat).held_ppm()))
        };
        let missing = lease.held().filter_map(|(_, seat)| Some((seat.node, seat.gpus.clone(), waits(seat)?)));
        for (node, gpus, more_ppm) in missing.collect::<Vec<_>>() {
            for gpu in gpus {
                self.reclaim_on(id, (node, gpu), more_ppm, since_ms, at_ms);
            }
        }
    }

    fn reclaim_on(
        &mut self,
        id: LeaseId,
        (node, gpu): (NodeId, u32),
        more_ppm: u32,
        since_ms: u64,
        at_ms: u64,
    ) {
        let promised_ppm = self.nodes.get(&node).map_or(GPU_PPM, |of| self.promised_ppm(of, gpu));
        let free_ppm = u64::from(promised_ppm).saturating_sub(self.taken(node, gpu).ppm);
        let mut lacks_ppm = u64::from(more_ppm).saturating_sub(free_ppm);
        let is_there = |seat: &Seat| seat.node == node && seat.gpus.contains(&gpu) && seat.stays();
        let share_there = |lease: &LeaseRecord| -> u64 {
            lease
                .held()
                .filter(|(_, seat)| is_there(seat))
                .map(|(_, seat)| u64::from(lease.share_ppm(seat)))
                .sum()
        };
        let Some(growing) = self.leases.get(&id) else { return };
        let comes_after = |lease: &LeaseRecord| {
            let mut apart = lease.tenant.lineage().filter(|tenant| !tenant.contains(&growing.tenant));
            let is_within = |tenant: &TenantPath| {
                let guaranteed = self.tenants.get(tenant).map_or(0, |quota| quota.guaranteed_milli);
                guaranteed > 0 && self.holding(tenant).ppm <= u64::from(guaranteed) * 1000
            };
            lease.priority() <= growing.priority() && !apart.any(|tenant| is_within(&tenant))
        };
        let came_since = |lease: &&LeaseRecord| {
            lease.id != id
                && comes_after(lease)
                && lease.is_preemptible()
                && matches!(lease.state, LeaseState::Granted | LeaseState::Running)
                && lease.granted_at_ms.is_some_and(|granted_ms| granted_ms >= since_ms)
        };
        let mut others: Vec<(u64, LeaseId, u64)> = self
            .leases
            .values()
            .filter(came_since)
            .map(|lease| (lease.granted_at_ms.unwrap_or(0), lease.id, share_there(lease)))
            .filter(|&(.., share_ppm)| share_ppm > 0)
            .collect();
        others.sort_unstable_by(|one, other| other.cmp(one));
        for (_, other, share_ppm) in others {
            if lacks_ppm == 0 {
                return;
            }
            let reason = format!("lease {id} gets back a share that it had given up for a while");
            self.clear_of(other, is_there, reason, at_ms);
            lacks_ppm = lacks_ppm.saturating_sub(share_ppm);
        }
    }

    /// The leases of a program that have not ended and that the server has changed by itself.
    pub(crate) fn changed_of(&self, name: &ProgramName) -> Vec<LeaseId> {
        let is_changed = |automatic: &Automatic| {
            automatic.size.is_some() || automatic.idle.as_ref().is_some_and(|idle| idle.suspended)
        };
        let is_of_it = |lease: &&LeaseRecord| {
            let is_changed = lease.automatic.as_ref().is_some_and(is_changed);
            lease.tenant == name.tenant && lease.ask.name == name.program && is_changed
        };
        let open = self.leases.values().filter(|lease| lease.ended_at_ms.is_none());
        open.filter(is_of_it).map(|lease| lease.id).collect()
    }

    /// What a running lease has to be given to be as it was asked for; none if it is.
    pub(crate) fn size_as_asked(&self, id: LeaseId) -> Option<ResizeLease> {
        let lease = self.leases.get(&id)?;
        let automatic = lease.automatic.as_ref()?;
        let is_suspended = automatic.idle.as_ref().is_some_and(|idle| idle.suspended);
        let mut resize = ResizeLease { wait: true, ..ResizeLease::default() };
        resize.suspended = is_suspended.then_some(false);
        if let Some(size) = &automatic.size {
            let part = || self.part_of_memory(lease, size.asked_share_ppm);
            let memory = Some(size.asked_memory).filter(|&memory| memory > 0).or_else(part);
            (resize.share_ppm, resize.memory) = (Some(size.asked_share_ppm), memory);
        }
        (is_suspended || automatic.size.is_some()).then_some(resize)
    }

    /// Whether a lease has as much memory as it asked for.
    pub(crate) fn has_memory_asked_for(&self, id: LeaseId) -> bool {
        let asked = self.size_as_asked(id).and_then(|resize| resize.memory).unwrap_or(0);
        self.leases.get(&id).is_none_or(|lease| lease.held().all(|(_, seat)| seat.memory >= asked))
    }

    /// A share's part of the memory of each GPU of a lease, in bytes.
    fn part_of_memory(&self, lease: &LeaseRecord, share_ppm: u32) -> Option<u64> {
        let memory = |(_, seat): (u32, &Seat)| {
            let gpus = self.nodes.get(&seat.node).map_or(&[][..], |node| &node.gpus);
            seat.gpus.iter().filter_map(|&gpu| gpus.get(gpu as usize)).map(|gpu| gpu.memory).min()
        };
        let smallest = u128::from(lease.held().filter_map(memory).min()?);
        Some((smallest * u128::from(share_ppm) / u128::from(GPU_PPM)) as u64)
    }

    /// Has a lease that has not started ask for what it asked for at first.
    pub(crate) fn ask_as_asked(&mut self, id: LeaseId) {
        let size = self.leases.get(&id).and_then(|lease| lease.automatic.as_ref()?.size.as_ref());
        if let Some(size) = size {
            let detail = json!({
                "reason": "it asks for what it asked for at first",
                "share_ppm": size.asked_share_ppm, "memory": size.asked_memory,
            });
            self.tell(id, "lease.sized", detail);
        }
        self.change(id, |lease| {
            if let Some(size) = lease.automatic.take().and_then(|automatic| automatic.size) {
                (lease.ask.share_ppm, lease.ask.memory) = (size.asked_share_ppm, size.asked_memory);
            }
        });
    }

    /// A lease is to have what it asked for as soon as that can be done.
    pub(crate) fn note_undone(&mut self, id: LeaseId) {
        let automatic = self.leases.get(&id).and_then(|lease| lease.automatic.as_ref());
        if automatic.is_some_and(|automatic| !automatic.undone) {
            self.change(id, |lease| lease.automatic.iter_mut().for_each(|automatic| automatic.undone = true));
        }
    }

    /// What was changed about a lease has been undone.
    pub(crate) fn forget_automatic(&mut self, id: LeaseId) {
        self.change(id, |lease| lease.automatic = None);
    }
}
