//! Suspends leases whose programs do nothing, and has them come back, as tenants and pools say.

use std::collections::BTreeMap;

use sluice_api::autonomy::ProgramName;
use sluice_api::lease::{LeaseId, LeaseState, ResizeLease, ResizeState};
use sluice_api::node::{Attempt, IdleLease};
use sluice_api::pool::Tier;

use super::Books;
use crate::autonomy::{IdleState, IdleStep, Now, Seen};
use crate::fleet::LeaseRecord;

impl Books {
    /// Looks at what nodes say of leases that do nothing.
    pub(crate) fn follow_idle(&mut self, now_ms: u64) {
        let reported = self.fleet.nodes().values().flat_map(|node| &node.report.idle);
        let reported: BTreeMap<Attempt, &IdleLease> = reported.map(|idle| (idle.attempt, idle)).collect();
        let step = |lease: &LeaseRecord| {
            let known = lease.automatic.as_ref().and_then(|automatic| automatic.idle.as_ref());
            let seen = seen(lease, &reported);
            let is_meant = known.is_some() || seen.is_some() && self.idle_after_ms(lease).is_some();
            if !is_meant || lease.state != LeaseState::Running {
                return None;
            }
            let step = IdleStep::of(known, seen.as_ref(), self.now_of(lease, now_ms));
            (step != IdleStep::Nothing).then_some((lease.id, step))
        };
        let steps: Vec<(LeaseId, IdleStep)> = self.fleet.leases().filter_map(step).collect();
        for (id, step) in steps {
            self.carry_out_idle(id, step, now_ms);
        }
    }

    fn now_of(&self, lease: &LeaseRecord, now_ms: u64) -> Now {
        let resizing = self.fleet.view(lease).resizing;
        let is_resizing = resizing.is_some_and(|resizing| resizing.state != ResizeState::Refused);
        Now {
            now_ms,
            after_ms: self.idle_after_ms(lease),
            is_suspended: lease.held().any(|(_, seat)| lease.size(seat).suspended),
            is_changing: is_resizing
                || lease.held().any(|(_, seat)| seat.target().is_some() || !seat.claimed || !seat.stays()),
        }
    }

    /// After which time a lease that does nothing is suspended: the shorter of what its own tenant
    /// and the pools of its GPUs say.
    fn idle_after_ms(&self, lease: &LeaseRecord) -> Option<u64> {
        let name = ProgramName { tenant: lease.tenant.clone(), program: lease.ask.name.clone() };
        let is_left = lease.ask.as_asked
            || lease.ask.tier == Tier::Premium
            || lease.ask.units_milli.is_some()
            || self.autonomy.left_alone.contains_key(&name);
        let own = self.autonomy.rules.get(&lease.tenant).and_then(|consent| consent.idle_after_ms);
        let of_pools = self.pools_of(lease).into_iter().filter_map(|pool| pool.idle_after_ms);
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

/// What the nodes of a lease say of it; none where one of its programs does something.
fn seen(lease: &LeaseRecord, reported: &BTreeMap<Attempt, &IdleLease>) -> Option<Seen> {
    let mut all: Option<Seen> = None;
    for (task, _) in lease.held() {
        let idle = reported.get(&lease.attempt_of(task as usize))?;
        let seen = all.get_or_insert_with(|| Seen { idle_ms: u64::MAX, ..Seen::default() });
        seen.idle_ms = seen.idle_ms.min(idle.idle_ms);
        seen.wants |= idle.wants;
        if seen.stays.is_empty() {
            seen.stays =
                idle.stays.chars().map(crate::fleet::printable).take(crate::fleet::WHY_MAX).collect();
        }
    }
    all
}
