//! Has running leases resized as they use their share, where their tenants have consented to that.

use std::collections::BTreeSet;

use sluice_api::autonomy::{AutomaticKind, AutomaticSize, Mode, ProgramName};
use sluice_api::lease::{LeaseId, LeaseState, ResizeLease};
use sluice_api::pool::{Pool, Sharing};
use sluice_iq::live::Step;

use super::Books;
use crate::autonomy::LiveLease;
use crate::fleet::{LeaseRecord, NoResize, Seat};
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
        let is_by_hand = automatic.is_some_and(|automatic| automatic.by_hand || automatic.undone);
        let is_still = |seat: &Seat| !seat.suspended && seat.target().is_none() && !seat.is_resizing();
        lease.state == LeaseState::Running
            && !lease.ask.tier.is_premium()
            && lease.ask.units_milli.is_none()
            && lease.held().all(|(_, seat)| is_still(seat) && seat.stays())
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

    /// Gives leases back what they asked for that could not get it before, and those that are not
    /// to be resized any more while they run.
    pub(super) fn follow_undone(&mut self, now_ms: u64) {
        let is_open = |id: LeaseId| self.fleet.lease(id).is_some_and(|lease| lease.ended_at_ms.is_none());
        self.autonomy.forget_measured_but(is_open);
        let is_undone = |lease: &&LeaseRecord| {
            lease.ended_at_ms.is_none() && lease.automatic.as_ref().is_some_and(|automatic| automatic.undone)
        };
        let undone = self.fleet.leases().filter(is_undone).map(|lease| lease.id);
        let leases: BTreeSet<LeaseId> = undone.chain(self.resized_without_consent(now_ms)).collect();
        for id in leases {
            // What cannot be done now is tried again.
            let _ = self.give_back(id, now_ms);
        }
    }

    /// Gives a lease what it asked for. The error says why it gets that only later: it is tried
    /// again then.
    pub(crate) fn give_back(&mut self, id: LeaseId, now_ms: u64) -> Result<(), String> {
        let Some(state) = self.fleet.lease(id).map(|lease| lease.state) else { return Ok(()) };
        let gets_it = match state {
            LeaseState::Ended => return Ok(()),
            LeaseState::Queued => {
                self.fleet.ask_as_asked(id);
                return Ok(());
            }
            LeaseState::Running => match self.fleet.size_as_asked(id) {
                Some(resize) => self.resize(id, &resize, now_ms).map_err(|refusal| {
                    let (NoResize::NoRoom(reason) | NoResize::Never(reason)) = refusal;
                    reason
                }),
                None => Ok(()),
            },
            other => Err(format!("lease {id} is {}", other.name())),
        };
        match gets_it {
            Ok(()) => self.fleet.forget_automatic(id),
            Err(_) => self.fleet.note_undone(id),
        }
        gets_it
    }

    /// Leases that were resized while they ran, where that is no longer consented to, or their
    /// pools lend no parts of GPUs any more.
    pub(crate) fn resized_without_consent(&self, now_ms: u64) -> Vec<LeaseId> {
        let is_live = |lease: &&LeaseRecord| {
            let size = lease.automatic.as_ref().and_then(|automatic| automatic.size.as_ref());
            size.is_some_and(|size| size.kind == AutomaticKind::Live)
        };
        let open = self.fleet.leases().filter(|lease| lease.ended_at_ms.is_none());
        let without = open.filter(is_live).filter(|lease| {
            let lends_parts = self.pools_of(lease).iter().all(|pool| lends_parts(pool, now_ms));
            !(lends_parts && self.is_let(lease, Mode::Live))
        });
        without.map(|lease| lease.id).collect()
    }

    /// The declared pools of a lease's GPUs.
    pub(crate) fn pools_of(&self, lease: &LeaseRecord) -> Vec<&Pool> {
        let names = lease.held().flat_map(|(_, seat)| self.fleet.pools_of(seat));
        names.filter_map(|name| self.fleet.pools().get(name)).collect()
    }

    fn step_live(&mut self, id: LeaseId, clock: Clock) {
        let Some((mut state, before)) = self.live_state(id, clock.now_ms) else { return };
        let (is_short, waits, why) = if state.raise_to_floor(clock.now_ms) {
            (false, true, "it is to get no less than that any more")
        } else {
            match state.after(self.autonomy.measured(id), clock.now_ms) {
                Step::Kept => return self.fleet.note_live(id, state),
                Step::Lowered => (false, false, "it has needed no more for a while"),
                Step::GivenBack => (true, true, "it used all that it had"),
            }
        };
        let (share_ppm, asked_share_ppm) = (state.live.share_ppm, state.live.asked_share_ppm);
        let resize = ResizeLease { share_ppm: Some(share_ppm), wait: waits, ..ResizeLease::default() };
        if self.resize(id, &resize, clock.now_ms).is_err() {
            // It is tried again with what is recorded next.
            return;
        }
        let has_share = share_ppm >= asked_share_ppm;
        let size = AutomaticSize {
            // Only its memory may still be less than was asked for, as it was from its beginning.
            kind: if has_share { before.kind } else { AutomaticKind::Live },
            asked_share_ppm,
            asked_memory: before.asked_memory,
            at_ms: clock.now_ms,
            why: why.to_owned(),
        };
        let lowered = self.fleet.lease(id).and_then(|lease| state.lowered_in(lease, clock.now_ms));
        state.lowered = lowered.filter(|_| !has_share);
        self.fleet.note_live(id, state);
        self.fleet.note_automatic_size(id, size);
        if let Some(lowered) = lowered.filter(|_| is_short) {
            self.fleet.reclaim_room(id, lowered.at_ms, clock.now_ms + clock.grace_ms);
        }
        if has_share && self.fleet.has_memory_asked_for(id) {
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
