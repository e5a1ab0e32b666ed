//! Decides which sessions have their memory on a GPU that is leased beyond its memory.
//!
//! The planner is pure, like [`arbiter`](crate::arbiter): events come in with the time at which
//! they happened, moves come out, and the tests drive it through hours of simulated time.
//!
//! ```text
//!           wants to run, room       moved_in            slice over, another waits       moved_out
//!   Away ---------------------> MovingIn -----> Present -------------------------> MovingOut -----> Away
//! ```
//!
//! A session that wants to run, or that asks for more memory, waits in one queue, first come first
//! served. While the first of the queue does not fit, sessions that are present have to leave: idle
//! ones soon, the others at the end of their time slice. A slice lasts nine times as long as the
//! session's last moves out and in took together, so that a tenth of the time goes to swapping, and
//! is shorter only where more sessions wait than could be served within `max_wait`. Memory that
//! cannot leave is counted and stays.
//!
//! A session whose work does not finish is left alone for a while, and others leave instead.

use std::collections::BTreeMap;

use crate::arbiter::SessionKey;

/// By how much less is expected to fit where a driver refuses what should.
const FOUND_STEP: u64 = 2 << 20;

/// The lengths of time slices on the memory of a GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlicePolicy {
    /// Length of a slice, in multiples of the time of the session's last exchange.
    pub slice_per_exchange: u64,
    /// The shortest slice of a session that is not idle.
    pub slice_min_ns: u64,
    /// The longest that the first in the queue waits for slices to end, whatever exchanges cost.
    pub max_wait_ns: u64,
    /// A session without work for this time, and for the time of its last exchange, leaves early.
    pub idle_ns: u64,
    /// A session that could not leave is asked again after this time.
    pub leave_again_ns: u64,
    /// Memory that could not return is tried again after this time.
    pub return_again_ns: u64,
}

impl Default for SlicePolicy {
    fn default() -> SlicePolicy {
        SlicePolicy {
            slice_per_exchange: 9,
            slice_min_ns: 1_000_000_000,
            max_wait_ns: 30_000_000_000,
            // A worker counts the time of a long kernel every 100 ms.
            idle_ns: 250_000_000,
            leave_again_ns: 10_000_000_000,
            return_again_ns: 1_000_000_000,
        }
    }
}

/// What the caller has to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The session's memory leaves, which is answered by [`Planner::moved_out`] or
    /// [`Planner::not_moved_out`].
    MoveOut(SessionKey),
    /// The session's memory returns, which is answered by [`Planner::moved_in`] or
    /// [`Planner::not_moved_in`].
    MoveIn(SessionKey),
    /// The session has the bytes that it asked for.
    Grant(SessionKey),
    /// The session cannot have the bytes that it asked for, since what other sessions have on the
    /// GPU cannot leave.
    Refuse(SessionKey),
}

/// The answer to [`Planner::step`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Decision {
    /// In this order.
    pub actions: Vec<Action>,
    /// `step` has to be called again at this time at the latest, in nanoseconds.
    pub wake_at_ns: Option<u64>,
}

/// The memory of one GPU.
#[derive(Debug)]
pub(crate) struct Planner {
    policy: SlicePolicy,
    /// Bytes of the GPU, and those that its driver takes for each session.
    total: u64,
    per_session: u64,
    /// Bytes that sessions have turned out to fit into, while others than they use the GPU.
    found: u64,
    sessions: BTreeMap<SessionKey, Session>,
    /// The last ticket that was given out; the queue is in the order of tickets.
    last_ticket: u64,
}

#[derive(Debug)]
struct Session {
    place: Place,
    /// Its memory never leaves for another session.
    is_fixed: bool,
    /// It gets no GPU time, so its memory does not return.
    is_suspended: bool,
    /// Its memory leaves as soon as it can, whether another session waits or not.
    leaves_now: bool,
    /// Bytes that it has, wherever they are, and those of them that cannot leave.
    bytes: u64,
    pinned: u64,
    /// Bytes that it asks for.
    requested: u64,
    /// Its place in the queue, while it waits for its memory or for more.
    ticket: Option<u64>,
    /// Since when its memory has been on the GPU.
    present_since_ns: u64,
    /// Since when it has had no work.
    idle_since_ns: Option<u64>,
    /// Others have had to leave for it since it began to wait.
    has_waited: bool,
    /// It can neither leave nor return before this time.
    stays_until_ns: u64,
    /// What the last moves took.
    out_ns: u64,
    in_ns: u64,
    moving_since_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Present,
    MovingOut,
    Away,
    MovingIn,
}

impl Session {
    fn new(now_ns: u64, is_fixed: bool) -> Session {
        Session {
            place: Place::Present,
            is_fixed,
            is_suspended: false,
            leaves_now: false,
            bytes: 0,
            pinned: 0,
            requested: 0,
            ticket: None,
            present_since_ns: now_ns,
            idle_since_ns: Some(now_ns),
            has_waited: false,
            stays_until_ns: 0,
            out_ns: 0,
            in_ns: 0,
            moving_since_ns: 0,
        }
    }

    /// Bytes of the GPU that no other session can have now.
    fn held(&self) -> u64 {
        if self.place == Place::Away { self.pinned } else { self.bytes }
    }

    /// Bytes that stay on the GPU whatever happens.
    fn immovable(&self) -> u64 {
        if self.is_fixed { self.bytes } else { self.pinned }
    }

    /// Bytes that leave with it.
    fn movable(&self) -> u64 {
        self.bytes - self.immovable()
    }

    /// Bytes of the GPU that it needs before it can continue.
    fn needs(&self) -> u64 {
        self.bytes - self.held() + self.requested
    }

    fn exchange_ns(&self) -> u64 {
        self.out_ns + self.in_ns
    }

    fn is_moving(&self) -> bool {
        matches!(self.place, Place::MovingIn | Place::MovingOut)
    }
}

impl Planner {
    /// Plans a GPU with `total` bytes, of which none is taken. Its driver takes `per_session` bytes
    /// of them for the context of each session, which are kept free for a session to come, too.
    pub(crate) fn new(policy: SlicePolicy, total: u64, per_session: u64) -> Planner {
        Planner { policy, total, per_session, found: total, sessions: BTreeMap::new(), last_ticket: 0 }
    }

    /// Bytes that sessions may have on the GPU together.
    fn capacity(&self) -> u64 {
        let contexts = self.per_session.saturating_mul(self.sessions.len() as u64 + 1);
        self.found.min(self.total.saturating_sub(contexts))
    }

    /// The driver has refused memory that the session was to have, with `free` bytes left. The
    /// session's request or return is over.
    pub(crate) fn card_is_full(&mut self, key: SessionKey, free: u64) {
        let is_returning = |it: &&Session| it.place == Place::MovingIn;
        let absent = self.sessions.get(&key).filter(is_returning).map_or(0, Session::movable);
        let fits = (self.held() - absent).saturating_add(free);
        // A driver may refuse memory that it calls free; less is asked for then.
        self.found = fits.min(self.capacity().saturating_sub(FOUND_STEP));
    }

    /// Bytes that something outside of the leases seems to use.
    pub(crate) fn used_by_others(&self) -> u64 {
        self.total - self.capacity()
    }

    /// A session begins, without memory; that of a fixed one never leaves for another.
    pub(crate) fn join(&mut self, now_ns: u64, key: SessionKey, is_fixed: bool) {
        self.sessions.entry(key).or_insert(Session::new(now_ns, is_fixed));
    }

    /// The session has ended, and its memory is free wherever it was.
    pub(crate) fn leave(&mut self, key: SessionKey) {
        self.sessions.remove(&key);
        // What else used the GPU may have ended, too.
        self.found = self.total;
    }

    /// The session asks for more bytes, and can wait for them.
    pub(crate) fn request(&mut self, key: SessionKey, bytes: u64) {
        if let Some(session) = self.sessions.get_mut(&key) {
            session.requested = session.requested.saturating_add(bytes);
            self.queue(key);
        }
    }

    /// The session has more bytes at once, which cannot leave.
    pub(crate) fn pin(&mut self, key: SessionKey, bytes: u64) {
        if let Some(session) = self.sessions.get_mut(&key) {
            session.bytes = session.bytes.saturating_add(bytes);
            session.pinned += bytes;
        }
    }

    /// At most `most` bytes of the session cannot leave.
    pub(crate) fn limit_pinned(&mut self, key: SessionKey, most: u64) {
        if let Some(session) = self.sessions.get_mut(&key) {
            session.pinned = session.pinned.min(most);
        }
    }

    /// The session gives bytes back.
    pub(crate) fn give_back(&mut self, key: SessionKey, bytes: u64) {
        if let Some(session) = self.sessions.get_mut(&key) {
            session.bytes = session.bytes.saturating_sub(bytes);
            session.pinned = session.pinned.min(session.bytes);
        }
    }

    /// The session has something to do: if its memory is away, it waits for that.
    pub(crate) fn want(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        session.idle_since_ns = None;
        if matches!(session.place, Place::Away | Place::MovingOut) {
            self.queue(key);
        }
    }

    /// The session has nothing to do for now.
    pub(crate) fn idle(&mut self, now_ns: u64, key: SessionKey) {
        if let Some(session) = self.sessions.get_mut(&key) {
            session.idle_since_ns.get_or_insert(now_ns);
        }
    }

    /// A suspended session's memory leaves, and returns once it is suspended no longer.
    pub(crate) fn set_suspended(&mut self, key: SessionKey, is_suspended: bool) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        if session.is_suspended != is_suspended {
            (session.is_suspended, session.leaves_now) = (is_suspended, is_suspended);
            if !is_suspended {
                self.want(key);
            }
        }
    }

    /// A session begins while it is suspended, so there is nothing to move.
    pub(crate) fn begin_suspended(&mut self, key: SessionKey) {
        if let Some(session) = self.sessions.get_mut(&key) {
            (session.is_suspended, session.place) = (true, Place::Away);
        }
    }

    /// The session's memory leaves as soon as it can, though nothing needs the room.
    pub(crate) fn evict(&mut self, key: SessionKey) {
        if let Some(session) = self.sessions.get_mut(&key) {
            session.leaves_now |= session.place == Place::Present;
        }
    }

    /// The session's memory has left, except for these bytes.
    pub(crate) fn moved_out(&mut self, now_ns: u64, key: SessionKey, pinned: u64) {
        if let Some(session) = self.moving(key, Place::MovingOut) {
            session.place = Place::Away;
            session.leaves_now = false;
            session.pinned = pinned.min(session.bytes);
            session.out_ns = now_ns.saturating_sub(session.moving_since_ns);
        }
    }

    /// The session's memory has not left, since its work does not finish.
    pub(crate) fn not_moved_out(&mut self, now_ns: u64, key: SessionKey) {
        let again_ns = now_ns.saturating_add(self.policy.leave_again_ns);
        if let Some(session) = self.moving(key, Place::MovingOut) {
            session.place = Place::Present;
            session.leaves_now = false;
            session.stays_until_ns = again_ns;
        }
    }

    /// The session's memory is back.
    pub(crate) fn moved_in(&mut self, now_ns: u64, key: SessionKey) {
        if let Some(session) = self.moving(key, Place::MovingIn) {
            session.place = Place::Present;
            session.present_since_ns = now_ns;
            session.stays_until_ns = 0;
            session.in_ns = now_ns.saturating_sub(session.moving_since_ns);
        }
    }

    /// The session's memory has not returned, and is tried again later.
    pub(crate) fn not_moved_in(&mut self, now_ns: u64, key: SessionKey) {
        let again_ns = now_ns.saturating_add(self.policy.return_again_ns);
        if let Some(session) = self.moving(key, Place::MovingIn) {
            session.place = Place::Away;
            session.stays_until_ns = again_ns;
            self.queue(key);
        }
    }

    fn moving(&mut self, key: SessionKey, place: Place) -> Option<&mut Session> {
        self.sessions.get_mut(&key).filter(|session| session.place == place)
    }

    /// Bytes of the GPU that sessions have now.
    pub(crate) fn held(&self) -> u64 {
        self.sessions.values().map(Session::held).sum()
    }

    /// Whether the session's memory is on the GPU.
    pub(crate) fn is_present(&self, key: SessionKey) -> bool {
        self.sessions.get(&key).is_some_and(|session| session.place == Place::Present)
    }

    /// Whether a session waits for its memory or for more.
    pub(crate) fn is_waiting(&self, key: SessionKey) -> bool {
        self.sessions.get(&key).is_some_and(|session| session.ticket.is_some())
    }

    /// Whether any session waits.
    pub(crate) fn has_waiting(&self) -> bool {
        self.sessions.values().any(|session| session.ticket.is_some() && !session.is_suspended)
    }

    /// Sessions with bytes that cannot leave, and how many those are.
    pub(crate) fn immovable(&self) -> impl Iterator<Item = (SessionKey, u64)> {
        let immovable = |(&key, session): (&SessionKey, &Session)| (key, session.immovable());
        self.sessions.iter().map(immovable).filter(|(_, bytes)| *bytes > 0)
    }

    /// Decides what follows from what has happened.
    pub(crate) fn step(&mut self, now_ns: u64) -> Decision {
        let mut decision = Decision::default();
        self.begin_ordered_moves(now_ns, &mut decision);
        // Memory that sessions have been given at once may be more than there is.
        let excess = self.held().saturating_sub(self.capacity());
        if excess > 0 {
            self.make_room(now_ns, None, excess, &mut decision);
        }
        for key in self.waiting() {
            let Some(session) = self.sessions.get(&key) else { continue };
            if session.place == Place::Away && session.stays_until_ns > now_ns {
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
            let (needs, free) = (session.needs(), self.capacity().saturating_sub(self.held()));
            if needs > free {
                self.make_room(now_ns, Some(key), needs - free, &mut decision);
                break;
            }
            self.serve(now_ns, key, &mut decision);
        }
        decision
    }

    /// Begins the moves that were ordered, also without a waiting session.
    fn begin_ordered_moves(&mut self, now_ns: u64, decision: &mut Decision) {
        for (&key, session) in &mut self.sessions {
            if session.leaves_now && session.place == Place::Present && !session.is_fixed {
                session.place = Place::MovingOut;
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
            session.bytes.saturating_add(session.requested) <= self.capacity().saturating_sub(immovable)
        })
    }

    /// Refuses what the session asked for. One that is away stays in the queue.
    fn refuse(&mut self, key: SessionKey, decision: &mut Decision) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        if session.place == Place::Present {
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
        if session.place == Place::Away {
            session.place = Place::MovingIn;
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
        let leaving = |it: &Session| if it.place == Place::MovingOut { it.movable() } else { 0 };
        let mut missing = missing.saturating_sub(self.sessions.values().map(leaving).sum());
        let mut candidates: Vec<(u64, SessionKey, u64)> = self
            .sessions
            .iter()
            .filter(|(key, it)| Some(**key) != for_session && it.place == Place::Present && it.movable() > 0)
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
                session.place = Place::MovingOut;
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

    fn queue(&mut self, key: SessionKey) {
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        if let Some(session) = self.sessions.get_mut(&key) {
            session.ticket.get_or_insert(ticket);
        }
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

#[cfg(test)]
#[path = "residency_tests.rs"]
mod tests;
