//! Decides which sessions have their memory on a GPU that is leased beyond its memory.
//!
//! The planner is pure, like [`arbiter`](crate::arbiter): events come in with the time at which
//! they happened, moves come out, and the tests drive it through hours of simulated time.
//!
//! ```text
//!       wants to run, room       moved_in            slice over, another waits    moved_out
//! Away -------------------> MovingIn -----> Present -----------------------> MovingOut -----> Away
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

mod decisions;
mod policy;
mod session;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use self::session::{Presence, Session};
use crate::arbiter::SessionKey;

pub(crate) use self::policy::SlicePolicy;

/// By how much less is expected to fit where a driver refuses what should.
const FOUND_STEP: u64 = 2 << 20;

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
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Planner {
    policy: SlicePolicy,
    /// Bytes of the GPU, and those that its driver takes for each session.
    total: u64,
    per_session: u64,
    /// Bytes that sessions have turned out to fit into while something else uses the GPU, which is
    /// taken to be so until this time.
    found: u64,
    found_until_ns: u64,
    sessions: BTreeMap<SessionKey, Session>,
    /// The last ticket that was given out; the queue is in the order of tickets.
    last_ticket: u64,
}

impl Planner {
    /// Plans a GPU with `total` bytes, of which none is taken. Its driver takes `per_session` bytes
    /// of them for the context of each session, which are kept free for a session to come, too.
    pub(crate) fn new(policy: SlicePolicy, total: u64, per_session: u64) -> Planner {
        let sessions = BTreeMap::new();
        Planner { policy, total, per_session, found: total, found_until_ns: 0, sessions, last_ticket: 0 }
    }

    /// Bytes that sessions may have on the GPU together, beside their contexts.
    fn capacity(&self) -> u64 {
        self.beside_contexts(0)
    }

    /// Bytes up to which sessions are granted more: the context of one more session fits, too.
    fn grantable(&self) -> u64 {
        self.beside_contexts(1)
    }

    fn beside_contexts(&self, more: u64) -> u64 {
        let contexts = self.sessions.values().filter(|session| session.has_context).count() as u64 + more;
        self.found.min(self.total.saturating_sub(self.per_session.saturating_mul(contexts)))
    }

    /// The driver has refused memory that the session was granted, or that was to return, with
    /// `free` bytes left. Each grant and return is refused once at most.
    pub(crate) fn card_is_full(&mut self, now_ns: u64, key: SessionKey, free: u64) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        if !std::mem::take(&mut session.may_be_refused) {
            return;
        }
        let absent = if session.place == Presence::MovingIn { session.movable() } else { 0 };
        let fits = (self.held() - absent).saturating_add(free);
        // A driver may refuse memory that it calls free; less is asked for then.
        self.found = fits.min(self.capacity().saturating_sub(FOUND_STEP));
        self.found_until_ns = now_ns.saturating_add(self.policy.found_ns);
    }

    /// Bytes that contexts and programs without a lease seem to use.
    pub(crate) fn used_by_others(&self) -> u64 {
        self.total - self.capacity()
    }

    /// A session begins, without memory; that of a fixed one never leaves for another.
    pub(crate) fn join(&mut self, now_ns: u64, key: SessionKey, is_fixed: bool) {
        self.sessions.entry(key).or_insert(Session::new(now_ns, is_fixed));
    }

    /// Memory that sessions share begins to be counted, under a key of its own.
    pub(crate) fn join_shared(&mut self, now_ns: u64, key: SessionKey) {
        let shared = || Session { has_context: false, ..Session::new(now_ns, true) };
        self.sessions.entry(key).or_insert_with(shared);
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
        if matches!(session.place, Presence::Away | Presence::MovingOut) {
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
            (session.is_suspended, session.place) = (true, Presence::Away);
        }
    }

    /// The session's memory leaves as soon as it can, though nothing needs the room.
    pub(crate) fn evict(&mut self, key: SessionKey) {
        if let Some(session) = self.sessions.get_mut(&key) {
            session.leaves_now |= session.place == Presence::Present;
        }
    }

    /// The session's memory has left, except for these bytes.
    pub(crate) fn moved_out(&mut self, now_ns: u64, key: SessionKey, pinned: u64) {
        if let Some(session) = self.moving(key, Presence::MovingOut) {
            session.place = Presence::Away;
            session.leaves_now = false;
            session.pinned = pinned.min(session.bytes);
            session.out_ns = now_ns.saturating_sub(session.moving_since_ns);
        }
    }

    /// The session's memory has not left, since its work does not finish, or, where it may be asked
    /// again `soon`, since there was no file yet.
    pub(crate) fn not_moved_out(&mut self, now_ns: u64, key: SessionKey, soon: bool) {
        let pause_ns = if soon { self.policy.return_again_ns } else { self.policy.leave_again_ns };
        let again_ns = now_ns.saturating_add(pause_ns);
        if let Some(session) = self.moving(key, Presence::MovingOut) {
            session.place = Presence::Present;
            session.leaves_now = false;
            session.stays_until_ns = again_ns;
        }
    }

    /// The session's memory is back.
    pub(crate) fn moved_in(&mut self, now_ns: u64, key: SessionKey) {
        if let Some(session) = self.moving(key, Presence::MovingIn) {
            session.place = Presence::Present;
            session.present_since_ns = now_ns;
            session.stays_until_ns = 0;
            session.in_ns = now_ns.saturating_sub(session.moving_since_ns);
        }
    }

    /// The session's memory has not returned, and is tried again later.
    pub(crate) fn not_moved_in(&mut self, now_ns: u64, key: SessionKey) {
        let again_ns = now_ns.saturating_add(self.policy.return_again_ns);
        if let Some(session) = self.moving(key, Presence::MovingIn) {
            session.place = Presence::Away;
            session.stays_until_ns = again_ns;
            self.queue(key);
        }
    }

    fn moving(&mut self, key: SessionKey, place: Presence) -> Option<&mut Session> {
        self.sessions.get_mut(&key).filter(|session| session.place == place)
    }

    /// Bytes of the GPU that sessions have now.
    pub(crate) fn held(&self) -> u64 {
        self.sessions.values().map(Session::held).sum()
    }

    /// Whether the session's memory is on the GPU.
    pub(crate) fn is_present(&self, key: SessionKey) -> bool {
        self.sessions.get(&key).is_some_and(|session| session.place == Presence::Present)
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

    fn queue(&mut self, key: SessionKey) {
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        if let Some(session) = self.sessions.get_mut(&key) {
            session.ticket.get_or_insert(ticket);
        }
    }
}

#[cfg(test)]
mod tests;
