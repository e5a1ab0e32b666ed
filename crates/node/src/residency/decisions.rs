//! The decisions: which sessions get the memory that they wait for, and which have to leave the GPU
//! for that.

use super::session::{Presence, Session};
use super::{Action, Decision, Planner, SlicePolicy};
use crate::arbiter::SessionKey;

impl Planner {
    /// Decides what follows from what has happened.
    pub(crate) fn step(&mut self, now_ns: u64) -> Decision {
        let mut decision = Decision::default();
        if self.found < self.total {
            match now_ns < self.found_until_ns {
                true => wake(&mut decision, self.found_until_ns),
                // What else used the GPU may have ended.
                false => self.found = self.total,
            }
        }
        self.begin_ordered_moves(now_ns, &mut decision);
        // Memory that sessions have been given at once may be more than there is.
        let excess = self.held().saturating_sub(self.capacity());
        if excess > 0 {
            self.make_room(now_ns, None, excess, &mut decision);
        }
        for key in self.waiting() {
            let Some(session) = self.sessions.get(&key) else { continue };
            if session.place == Presence::Away && session.stays_until_ns > now_ns {
                wake(&mut decision, session.stays_until_ns);
                continue;
            }
            if !self.can_ever_have_room(key) {
                self.refuse(key, &mut decision);
                continue;
            }
            if session.is_moving() {
                break;
            }
            let (needs, free) = (session.needs(), self.room_for(session).saturating_sub(self.held()));
            if needs > free {
                self.make_room(now_ns, Some(key), needs - free, &mut decision);
                break;
            }
            self.serve(now_ns, key, &mut decision);
        }
        decision
    }

    /// Bytes that sessions may have together once this one has what it waits for.
    fn room_for(&self, session: &Session) -> u64 {
        if session.requested > 0 { self.grantable() } else { self.capacity() }
    }

    /// Begins the moves that were ordered, also without a waiting session.
    fn begin_ordered_moves(&mut self, now_ns: u64, decision: &mut Decision) {
        for (&key, session) in &mut self.sessions {
            if session.leaves_now && session.place == Presence::Present && !session.is_fixed {
                session.place = Presence::MovingOut;
                session.moving_since_ns = now_ns;
                decision.actions.push(Action::MoveOut(key));
            }
        }
    }

    /// Whether the session would fit if all others left as far as they can.
    fn can_ever_have_room(&self, key: SessionKey) -> bool {
        let others = self.sessions.iter().filter(|(other, _)| **other != key);
        let immovable: u64 = others.map(|(_, session)| session.immovable()).sum();
        self.sessions.get(&key).is_some_and(|session| {
            session.bytes.saturating_add(session.requested)
                <= self.room_for(session).saturating_sub(immovable)
        })
    }

    /// Refuses what the session asked for. One that is away stays in the queue.
    fn refuse(&mut self, key: SessionKey, decision: &mut Decision) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        if session.place == Presence::Present {
            session.ticket = None;
        }
        if std::mem::take(&mut session.requested) > 0 {
            decision.actions.push(Action::Refuse(key));
        }
    }

    /// Gives the session what it waits for.
    fn serve(&mut self, now_ns: u64, key: SessionKey, decision: &mut Decision) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        session.ticket = None;
        session.may_be_refused = true;
        if session.place == Presence::Away {
            session.place = Presence::MovingIn;
            session.moving_since_ns = now_ns;
            decision.actions.push(Action::MoveIn(key));
        }
        if std::mem::take(&mut session.has_waited) {
            // Its slice begins when it can continue.
            session.present_since_ns = now_ns;
        }
        if session.requested > 0 {
            session.bytes += std::mem::take(&mut session.requested);
            decision.actions.push(Action::Grant(key));
        }
    }

    /// Has sessions leave until `bytes` more are free, or says when the next of them may.
    fn make_room(
        &mut self,
        now_ns: u64,
        for_session: Option<SessionKey>,
        missing: u64,
        decision: &mut Decision,
    ) {
        if let Some(session) = for_session.and_then(|key| self.sessions.get_mut(&key)) {
            session.has_waited = true;
        }
        let leaving = |it: &Session| if it.place == Presence::MovingOut { it.movable() } else { 0 };
        let mut missing = missing.saturating_sub(self.sessions.values().map(leaving).sum());
        let mut candidates: Vec<(u64, SessionKey, u64)> = self
            .sessions
            .iter()
            .filter(|(key, it)| {
                Some(**key) != for_session && it.place == Presence::Present && it.movable() > 0
            })
            .map(|(&key, it)| (self.leaves_at(it), key, it.movable()))
            .collect();
        candidates.sort_unstable();
        for (at_ns, key, bytes) in candidates {
            if missing == 0 {
                return;
            }
            if at_ns > now_ns {
                return wake(decision, at_ns);
            }
            missing = missing.saturating_sub(bytes);
            if let Some(session) = self.sessions.get_mut(&key) {
                session.place = Presence::MovingOut;
                session.moving_since_ns = now_ns;
            }
            decision.actions.push(Action::MoveOut(key));
        }
    }

    /// When a session that is present has to leave, if another waits.
    fn leaves_at(&self, session: &Session) -> u64 {
        let SlicePolicy { slice_per_exchange, slice_min_ns, max_wait_ns, idle_ns, .. } = self.policy;
        let waiting = self.sessions.values().filter(|it| it.ticket.is_some()).count().max(1) as u64;
        let longest = (max_wait_ns / waiting).max(slice_min_ns.min(max_wait_ns));
        let slice = (slice_per_exchange * session.exchange_ns()).max(slice_min_ns).min(longest);
        let slice_ends = session.present_since_ns.saturating_add(slice);
        let early = match session.idle_since_ns {
            // One that waits for more memory does nothing meanwhile.
            _ if session.ticket.is_some() || session.is_suspended => session.present_since_ns,
            Some(idle_since) => {
                idle_since.max(session.present_since_ns).saturating_add(idle_ns.max(session.exchange_ns()))
            }
            None => u64::MAX,
        };
        slice_ends.min(early).max(session.stays_until_ns)
    }

    /// The sessions that wait, in the order in which they are served. Suspended ones wait until
    /// they are resumed.
    fn waiting(&self) -> Vec<SessionKey> {
        let ticket = |(&key, it): (&SessionKey, &Session)| {
            it.ticket.filter(|_| !it.is_suspended).map(|ticket| (ticket, key))
        };
        let mut waiting: Vec<(u64, SessionKey)> = self.sessions.iter().filter_map(ticket).collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|(_, key)| key).collect()
    }
}

fn wake(decision: &mut Decision, at_ns: u64) {
    decision.wake_at_ns = Some(decision.wake_at_ns.map_or(at_ns, |earlier| earlier.min(at_ns)));
}
