//! Has running leases resized as they use their share, where their tenants have consented to that.

use sluice_api::autonomy::{AutomaticKind, AutomaticSize, Mode, ProgramName};
use sluice_api::lease::{LeaseId, LeaseState, ResizeLease, ResizeState};
use sluice_api::pool::{Pool, Sharing, Tier};
use sluice_iq::live::Step;

use super::Books;
use crate::autonomy::LiveLease;
use crate::fleet::LeaseRecord;
use crate::plan::Clock;

impl Books {
    /// Looks at the leases whose use was recorded since the last look.
    pub(super) fn follow_live(&mut self, clock: Clock) {
        for id in self.autonomy.take_measured() {
            let Some(lease) = self.fleet.lease(id).filter(|lease| lease.ended_at_ms.is_none()) else {
                self.autonomy.forget_measured(id);
                continue;
            };
            if self.is_resized_live(lease, clock.now_ms) {
                self.step_live(id, clock);
            }
        }
    }

    /// Whether the server may resize this lease now, by itself.
    fn is_resized_live(&self, lease: &LeaseRecord, now_ms: u64) -> bool {
        let automatic = lease.automatic.as_ref();
        let is_by_hand = automatic.is_some_and(|automatic| automatic.by_hand);
        let is_still = |seat: &crate::fleet::Seat| !seat.suspended && seat.target().is_none();
        lease.state == LeaseState::Running
            && lease.ask.tier != Tier::Premium
            && lease.ask.units_milli.is_none()
            && lease.held().all(|(_, seat)| is_still(seat) && seat.stays())
            && self.fleet.view(lease).resizing.is_none_or(|resizing| resizing.state == ResizeState::Refused)
            // A hard limit follows the share, and would throttle it.
            && !(lease.ask.hard_cap || is_by_hand)
            && self.is_let(lease, Mode::Live)
            && self.pools_of(lease).iter().all(|pool| lends_parts(pool, now_ms))
    }

    /// Whether consent goes this far for a lease, and it is not left alone.
    pub(crate) fn is_let(&self, lease: &LeaseRecord, mode: Mode) -> bool {
        let name = ProgramName { tenant: lease.tenant.clone(), program: lease.ask.name.clone() };
        !lease.ask.as_asked
            && !self.autonomy.left_alone.contains_key(&name)
            && self.autonomy.rules.mode_in(&lease.tenant, self.pools_of(lease).into_iter()) >= mode
    }

    /// Leases that were resized while they ran, where that is no longer consented to.
    pub(crate) fn resized_without_consent(&self) -> Vec<LeaseId> {
        let is_live = |lease: &&LeaseRecord| {
            let size = lease.automatic.as_ref().and_then(|automatic| automatic.size.as_ref());
            size.is_some_and(|size| size.kind == AutomaticKind::Live)
        };
        let open = self.fleet.leases().filter(|lease| lease.ended_at_ms.is_none());
        let without = open.filter(is_live).filter(|lease| !self.is_let(lease, Mode::Live));
        without.map(|lease| lease.id).collect()
    }

    /// The declared pools of a lease's GPUs.
    pub(crate) fn pools_of(&self, lease: &LeaseRecord) -> Vec<&Pool> {
        let names = lease.held().flat_map(|(_, seat)| self.fleet.pools_of(seat));
        names.filter_map(|name| self.fleet.pools().get(name)).collect()
    }

    fn step_live(&mut self, id: LeaseId, clock: Clock) {
        let Some((mut state, before)) = self.live_state(id, clock.now_ms) else { return };
        let step = state.after(self.autonomy.measured(id), clock.now_ms);
        let why = match step {
            Step::Kept => return self.fleet.note_live(id, state),
            Step::Lowered => "it has needed no more for a while".to_owned(),
            Step::GivenBack => "it used all that it had".to_owned(),
        };
        let resize = ResizeLease {
            share_ppm: Some(state.live.share_ppm),
            wait: step == Step::GivenBack,
            ..ResizeLease::default()
        };
        if self.resize(id, &resize, clock.now_ms).is_err() {
            // It is tried again with what is recorded next.
            return;
        }
        let size = AutomaticSize {
            kind: AutomaticKind::Live,
            asked_share_ppm: state.live.asked_share_ppm,
            asked_memory: before.asked_memory,
            at_ms: clock.now_ms,
            why,
        };
        self.fleet.note_live(id, state);
        self.fleet.note_automatic_size(id, size);
        if step == Step::GivenBack {
            self.fleet.reclaim_room(id, before.at_ms, clock.now_ms + clock.grace_ms);
            self.fleet.forget_automatic_size(id);
        }
    }

    /// What is known of the use of a lease, and of the last change of its size.
    fn live_state(&self, id: LeaseId, now_ms: u64) -> Option<(LiveLease, AutomaticSize)> {
        let lease = self.fleet.lease(id)?;
        let size = lease.held().next().map(|(_, seat)| lease.size(seat))?;
        let automatic = lease.automatic.as_ref();
        let unchanged = || AutomaticSize {
            kind: AutomaticKind::Live,
            asked_share_ppm: size.share_ppm,
            asked_memory: size.memory,
            at_ms: now_ms,
            why: String::new(),
        };
        let before = automatic.and_then(|automatic| automatic.size.clone()).unwrap_or_else(unchanged);
        let asked_ppm = before.asked_share_ppm.max(size.share_ppm);
        let floor_ppm = self.autonomy.rules.floor_ppm(&lease.tenant, asked_ppm);
        let since_ms = lease.granted_at_ms.unwrap_or(now_ms);
        let begin = || LiveLease::new(asked_ppm, size.memory, floor_ppm, size.share_ppm, since_ms);
        let mut state = automatic.and_then(|automatic| automatic.live).unwrap_or_else(begin);
        // What was sent before may have been refused by its node.
        state.live.share_ppm = size.share_ppm.min(state.live.asked_share_ppm);
        state.live.floor_ppm = state.live.floor_ppm.max(floor_ppm);
        Some((state, before))
    }
}

fn lends_parts(pool: &Pool, now_ms: u64) -> bool {
    pool.terms(pool.in_force(now_ms).personality).sharing == Sharing::Fractions
}
