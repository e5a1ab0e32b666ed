//! What the planner knows of a session: where its memory is, how much that is, and what it waits
//! for.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Session {
    pub(super) place: Presence,
    /// Its memory never leaves for another session.
    pub(super) is_fixed: bool,
    /// The driver has memory of the GPU for it, whether it has any or not.
    pub(super) has_context: bool,
    /// Memory was granted to it, or began to return, and the driver may refuse that.
    pub(super) may_be_refused: bool,
    /// It gets no GPU time, so its memory does not return.
    pub(super) is_suspended: bool,
    /// Its memory leaves as soon as it can, whether another session waits or not.
    pub(super) leaves_now: bool,
    /// Bytes that it has, wherever they are, and those of them that cannot leave.
    pub(super) bytes: u64,
    pub(super) pinned: u64,
    /// Bytes that it asks for.
    pub(super) requested: u64,
    /// Its place in the queue, while it waits for its memory or for more.
    pub(super) ticket: Option<u64>,
    /// Since when its memory has been on the GPU.
    pub(super) present_since_ns: u64,
    /// Since when it has had no work.
    pub(super) idle_since_ns: Option<u64>,
    /// Others have had to leave for it since it began to wait.
    pub(super) has_waited: bool,
    /// It can neither leave nor return before this time.
    pub(super) stays_until_ns: u64,
    /// What the last moves took.
    pub(super) out_ns: u64,
    pub(super) in_ns: u64,
    pub(super) moving_since_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Presence {
    Present,
    MovingOut,
    Away,
    MovingIn,
}

impl Session {
    pub(super) fn new(now_ns: u64, is_fixed: bool) -> Session {
        Session {
            place: Presence::Present,
            is_fixed,
            has_context: true,
            may_be_refused: false,
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
    pub(super) fn held(&self) -> u64 {
        if self.place == Presence::Away { self.pinned } else { self.bytes }
    }

    /// Bytes that stay on the GPU whatever happens.
    pub(super) fn immovable(&self) -> u64 {
        if self.is_fixed { self.bytes } else { self.pinned }
    }

    /// Bytes that leave with it.
    pub(super) fn movable(&self) -> u64 {
        self.bytes - self.immovable()
    }

    /// Bytes of the GPU that it needs before it can continue.
    pub(super) fn needs(&self) -> u64 {
        self.bytes - self.held() + self.requested
    }

    pub(super) fn exchange_ns(&self) -> u64 {
        self.out_ns + self.in_ns
    }

    pub(super) fn is_moving(&self) -> bool {
        matches!(self.place, Presence::MovingIn | Presence::MovingOut)
    }
}
