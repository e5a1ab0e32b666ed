//! Suspends leases whose programs do nothing, and has them come back, as tenants and pools say.

use std::collections::BTreeSet;

use sluice_api::autonomy::ProgramName;
use sluice_api::lease::{LeaseId, LeaseState, ResizeLease};
use sluice_api::node::NodeId;

use super::Books;
use crate::autonomy::{IdleState, IdleStep, Now, Seen};
use crate::fleet::{LeaseRecord, Seat};

impl Books {
    /// Looks at what nodes say of leases that do nothing.
    pub(super) fn follow_idle(&mut self, now_ms: u64) {
        let online = self.fleet.nodes().values().filter(|node| self.fleet.is_online(node, now_ms));
        let reported = online.flat_map(|node| &node.report.idle).map(|idle| idle.attempt.lease);
        let known = self.fleet.leases().filter(|lease| idle_of(lease).is_some()).map(|lease| lease.id);
        let leases: BTreeSet<LeaseId> = reported.chain(known).collect();
        leases.into_iter().for_each(|id| self.step_idle(id, now_ms));
    }

    /// Has those suspended leases come back of which this node says for the first time that a call
    /// waits. The others are looked at once a second.
    pub(crate) fn wake_idle(&mut self, node: NodeId, now_ms: u64) {
        let waits_anew = |id: &LeaseId| {
            let known = self.fleet.lease(*id).and_then(idle_of);
            known.is_some_and(|known| known.suspended && !known.wants)
        };
        let idle = self.fleet.nodes().get(&node).map_or(&[][..], |node| &node.report.idle);
        let wanting = idle.iter().filter(|idle| idle.wants).map(|idle| idle.attempt.lease);
        let leases: BTreeSet<LeaseId> = wanting.filter(waits_anew).collect();
        leases.into_iter().for_each(|id| self.step_idle(id, now_ms));
    }

    fn step_idle(&mut self, id: LeaseId, now_ms: u64) {
        let running = self.fleet.lease(id).filter(|lease| lease.state == LeaseState::Running);
        let Some(lease) = running else { return };
        let seen = self.seen(lease, now_ms);
        let step = IdleStep::of(idle_of(lease), seen.as_ref(), self.now_of(lease, now_ms));
        self.carry_out_idle(id, step, now_ms);
    }

    fn now_of(&self, lease: &LeaseRecord, now_ms: u64) -> Now {
        let is_changing =
            |seat: &Seat| seat.is_resizing() || seat.target().is_some() || !seat.claimed || !seat.stays();
        Now {
            now_ms,
            after_ms: self.idle_after_ms(lease),
            is_suspended: lease.held().any(|(_, seat)| lease.size(seat).suspended),
            is_changing: lease.held().any(|(_, seat)| is_changing(seat)),
        }
    }

    /// What the nodes of a lease say of it; none where one of its programs does something, and
    /// where one of its nodes does not report now. What other nodes say of it does not count.
    fn seen(&self, lease: &LeaseRecord, now_ms: u64) -> Option<Seen> {
        let mut all: Option<Seen> = None;
        for (task, seat) in lease.held() {
            let node = self.fleet.nodes().get(&seat.node)?;
            let attempt = lease.attempt_of(task as usize);
            let of_it = node.report.idle.binary_search_by_key(&attempt, |idle| idle.attempt).ok();
            let idle = &node.report.idle[of_it.filter(|_| self.fleet.is_online(node, now_ms))?];
            let seen = all.get_or_insert_with(|| Seen { idle_ms: u64::MAX, ..Seen::default() });
            seen.idle_ms = seen.idle_ms.min(idle.idle_ms);
            seen.wants |= idle.wants;
            if seen.stays.is_empty() {
                let stays = idle.stays.chars().map(crate::fleet::printable);
                seen.stays = stays.take(crate::fleet::WHY_MAX).collect();
            }
        }
        all
    }

    /// After which time a lease that does nothing is suspended: the shorter of what its own tenant
    /// and the pools of its GPUs say.
    fn idle_after_ms(&self, lease: &LeaseRecord) -> Option<u64> {
        let name = ProgramName { tenant: lease.tenant.clone(), program: lease.ask.name.clone() };
        let is_left = lease.ask.as_asked
            || lease.ask.tier.is_premium()
            || lease.ask.units_milli.is_some()
            || self.autonomy.left_alone.contains_key(&name);
        let own = self.autonomy.rules.get(&lease.tenant).and_then(|consent| consent.idle_after_ms);
        let of_pools =
            self.pools_of(lease).into_iter().filter_map(|pool| pool.idle_after_ms).filter(|&ms| ms > 0);
        own.into_iter().chain(of_pools).min().filter(|_| !is_left)
    }

    fn carry_out_idle(&mut self, id: LeaseId, step: IdleStep, now_ms: u64) {
        let after_s = self.fleet.lease(id).and_then(|lease| self.idle_after_ms(lease)).unwrap_or(0) / 1000;
        match step {
            IdleStep::Nothing => {}
            IdleStep::Note(state) => self.fleet.note_idle(id, state),
            IdleStep::Tell(state) => {
                let reason = format!(
                    "its programs make no CUDA calls; programs that are idle for {after_s} s are suspended"
                );
                self.fleet.tell_idle(id, "lease.idle", &reason, Some(state.suspend_at_ms));
                self.fleet.note_idle(id, Some(state));
            }
            IdleStep::Suspend(state) => {
                let resize = ResizeLease { suspended: Some(true), ..ResizeLease::default() };
                let reason = format!("its programs were idle for {after_s} s");
                self.change_idle(id, ("lease.idle_suspended", &reason), &resize, state, now_ms);
            }
            IdleStep::Resume(state) => {
                let resize = ResizeLease { suspended: Some(false), wait: true, ..ResizeLease::default() };
                let reason = match &state.stays {
                    Some(stays) if !state.wants => format!("its memory stays on the GPU: {stays}"),
                    _ if state.wants => "one of its programs has made a CUDA call".to_owned(),
                    _ => "idle programs are no longer suspended".to_owned(),
                };
                self.change_idle(id, ("lease.woken", &reason), &resize, state, now_ms);
            }
        }
    }

    fn change_idle(
        &mut self,
        id: LeaseId,
        (action, reason): (&'static str, &str),
        resize: &ResizeLease,
        state: IdleState,
        now_ms: u64,
    ) {
        self.fleet.tell_idle(id, action, reason, None);
        let resized = self.resize(id, resize, now_ms);
        // One that cannot be suspended now gets notice again when it has been idle for longer.
        let is_suspending = resize.suspended == Some(true);
        self.fleet.note_idle(id, Some(state).filter(|_| resized.is_ok() || !is_suspending));
    }
}

fn idle_of(lease: &LeaseRecord) -> Option<&IdleState> {
    lease.automatic.as_ref()?.idle.as_ref()
}
