//! Where the memory of sessions is: on their GPUs, or in host memory, and a file for what that has
//! no room for, while they are suspended.
//!
//! ```text
//!            MoveOut             MovedOut
//!   Present ---------> Leaving -----------> Away
//!      ^  ^               |                  |
//!      |  `- NotMovedOut -'                  | MoveIn
//!      |                                     v
//!      `----------- MovedIn ------------ Returning --- NotMovedIn ---> Away, and again in a second
//! ```
//!
//! A session whose memory cannot leave is suspended all the same: it gets no GPU time, and its
//! memory stays where it is. Both moves may be overtaken by another wish; what a session is to be
//! is looked at again after each answer.
//!
//! Where memory is overcommitted, the planner says when the memory of a session leaves and returns
//! ([`overcommit`](super::overcommit)).

use std::os::fd::AsFd;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use sluice_worker::link::{Kept, Packet};

use super::{Ledger, Registry};
use crate::lease::bytes_text;
use crate::swap_space::Room;

/// How long a session that is to leave its GPUs may take for the work that it has given them. After
/// that its memory stays.
const WORK_LIMIT: Duration = Duration::from_secs(10);
/// How long a request waits for its outcome: for the work, and for hundreds of gigabytes.
const MOVE_LIMIT: Duration = Duration::from_secs(60);

/// Where a session's memory is.
#[derive(Debug, Default)]
pub(super) struct Residence {
    place: Place,
    /// What has not left, or why nothing has.
    kept: Vec<Kept>,
    reason: String,
    /// What it may use of host memory and the file, while it leaves.
    room: Room,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Present,
    Leaving,
    Away,
    Returning,
}

/// What has become of a wish.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moves {
    /// Bytes in host memory now.
    pub(crate) swapped: u64,
    /// What the user should know: what stays on the GPUs, and why.
    pub(crate) notes: Vec<String>,
}

impl Residence {
    /// Of a session that begins suspended.
    pub(super) fn away() -> Residence {
        Residence { place: Place::Away, ..Residence::default() }
    }

    pub(super) fn leaving(room: Room) -> Residence {
        Residence { place: Place::Leaving, room, ..Residence::default() }
    }

    pub(super) fn returning() -> Residence {
        Residence { place: Place::Returning, ..Residence::default() }
    }

    pub(super) fn is_away(&self) -> bool {
        self.place == Place::Away
    }

    /// Why the memory stays on its GPUs, though it was to leave.
    pub(super) fn stays(&self) -> Option<&str> {
        (self.place == Place::Present && !self.reason.is_empty()).then_some(&self.reason)
    }

    fn is_moving(&self) -> bool {
        matches!(self.place, Place::Leaving | Place::Returning)
    }

    /// For people: nothing where the memory is on the GPUs and nothing is to be said of that.
    pub(super) fn describe(&self) -> String {
        match self.place {
            Place::Leaving => "leaving the GPU".to_owned(),
            Place::Returning => "returning to the GPU".to_owned(),
            Place::Present if self.reason.is_empty() => String::new(),
            Place::Present => format!("stays on the GPU: {}", self.reason),
            Place::Away if !self.reason.is_empty() => format!("cannot return to the GPU: {}", self.reason),
            Place::Away => {
                let kept =
                    |kept: &Kept| format!("{} stay on the GPU: {}", bytes_text(kept.bytes), kept.reason);
                self.kept.iter().map(kept).collect::<Vec<_>>().join("; ")
            }
        }
    }

    /// Why parts of the memory could not leave the last time, in brackets.
    pub(super) fn kept_text(&self) -> String {
        let reasons: Vec<&str> = self.kept.iter().map(|kept| kept.reason.as_str()).collect();
        if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join(", ")) }
    }
}

impl Registry {
    /// Has a session's memory go where it is to be.
    pub(super) fn settle(&self, ledger: &mut Ledger, session: u64) {
        if ledger.planned_on(session).is_some() {
            return self.settle_planned(ledger, session);
        }
        let room = self.swap_room(ledger, session);
        let Some(record) = ledger.sessions.get(&session).filter(|record| record.is_up) else { return };
        let leaves = record.churns || ledger.session_is_suspended(record);
        let Some(record) = ledger.sessions.get_mut(&session) else { return };
        let asked = match (record.residence.place, leaves) {
            (Place::Present, true) if record.residence.reason.is_empty() => {
                record.residence = Residence::leaving(room);
                // Without time slices its work would not finish.
                self.turns.set_suspended(session, false);
                return self.move_out(ledger, session, room);
            }
            (Place::Away, false) => {
                record.residence = Residence::returning();
                Packet::MoveIn { keeps: false }
            }
            (Place::Present, false) => {
                // It is asked again the next time.
                record.residence = Residence::default();
                return;
            }
            _ => return,
        };
        // An error means that the worker has ended.
        let _ = record.link.send_now(&asked);
    }

    /// What a session that leaves now may use of host memory and the file.
    pub(super) fn swap_room(&self, ledger: &Ledger, session: u64) -> Room {
        let (swapped, filed) = ledger.books.swapped();
        let leaving = ledger.room_of_leaving();
        let memory = swapped.saturating_sub(filed).saturating_add(leaving.memory);
        let used = Room { memory, file: filed.saturating_add(leaving.file) };
        let lease = ledger.sessions.get(&session).and_then(|record| ledger.books.lease(record.lease));
        let needed =
            lease.map_or(0, |lease| lease.used_by(session).saturating_sub(lease.swapped_by(session)));
        self.swap.room(needed, used)
    }

    /// Tells the worker of a session that its memory is to leave its GPUs.
    pub(super) fn move_out(&self, ledger: &mut Ledger, session: u64, room: Room) {
        let (file, room) = match self.swap.file(room) {
            None => (None, room),
            Some(Ok(file)) => (Some(file), room),
            // Without room, the worker says what is missing, and nothing has moved.
            Some(Err(error)) => {
                tracing::warn!(session, "there is no swap file for session {session}: {error}");
                (None, Room { file: 0, ..room })
            }
        };
        let Some(record) = ledger.sessions.get_mut(&session) else { return };
        let asked = Packet::MoveOut {
            room: room.memory,
            file_room: room.file,
            work_limit_ms: WORK_LIMIT.as_millis() as u64,
            poisons: self.churn.is_some(),
        };
        let sent = match file {
            Some(file) => record.link.send_fd(&asked, file.as_fd()),
            None => record.link.send_now(&asked),
        };
        if sent.is_err() {
            // One that has stopped reading; an error means that it has ended by itself.
            let _ = record.worker.kill();
        }
    }

    /// A worker says what has become of its session's memory.
    pub(super) fn memory_of(&self, session: u64, said: Packet) {
        let mut ledger = self.lock();
        ledger.tell_planner(session, &said, self.now_ns());
        let Some(record) = ledger.sessions.get_mut(&session) else { return };
        let (lease, residence) = (record.lease, &mut record.residence);
        if residence.place == Place::Leaving {
            record.churns = false;
        }
        match (residence.place, said) {
            (Place::Leaving, Packet::MovedOut { moved, filed, kept, took_us, .. }) => {
                record.moves += 1;
                record.moving_us += took_us;
                *residence = Residence { place: Place::Away, kept, ..Residence::default() };
                ledger.books.moved_out(lease, session, &moved, &filed);
                ledger.note_move(lease, 1, took_us);
            }
            (Place::Leaving, Packet::NotMovedOut { reason }) => {
                record.wants = false;
                *residence = Residence { place: Place::Present, reason, ..Residence::default() };
            }
            (Place::Returning, Packet::MovedIn { took_us, .. }) => {
                record.moving_us += took_us;
                record.wants = false;
                *residence = Residence::default();
                ledger.books.moved_in(lease, session);
                ledger.note_move(lease, 0, took_us);
            }
            (Place::Returning, Packet::NotMovedIn { reason }) => {
                tracing::warn!(
                    session,
                    "the memory of session {session} cannot return to its GPU yet: {reason}"
                );
                *residence = Residence { place: Place::Away, reason, ..Residence::default() };
                self.memory_moved.notify_all();
                return self.plan_session(&mut ledger, session);
            }
            (_, Packet::Wanted) => {
                self.session_wants(&mut ledger, session);
                self.plan_session(&mut ledger, session);
                drop(ledger);
                return self.tell_server();
            }
            // Nothing that was asked for.
            _ => return,
        }
        let suspended =
            ledger.sessions.get(&session).is_some_and(|record| ledger.session_is_suspended(record));
        self.turns.set_suspended(session, suspended);
        ledger.vacate(lease);
        self.settle(&mut ledger, session);
        drop(ledger);
        self.memory_moved.notify_all();
        self.tell_server();
    }

    /// Asks sessions again whose memory could not return.
    pub(super) fn retry_moves(&self, ledger: &mut Ledger) {
        let away = |(&session, record): (&u64, &super::SessionRecord)| {
            let is_away = record.planned_on.is_none()
                && record.residence.place == Place::Away
                && !record.residence.reason.is_empty();
            is_away.then_some(session)
        };
        let sessions: Vec<u64> = ledger.sessions.iter().filter_map(away).collect();
        sessions.into_iter().for_each(|session| self.settle(ledger, session));
    }

    /// Waits until the memory of these sessions is where it is to be, as far as it can.
    pub(crate) fn await_moves(&self, sessions: &[u64]) -> Moves {
        let until = Instant::now() + MOVE_LIMIT;
        let mut ledger = self.lock();
        loop {
            let moving = |ledger: &Ledger| {
                let of = sessions.iter().filter_map(|session| ledger.sessions.get(session));
                of.into_iter().any(|record| record.residence.is_moving())
            };
            let left = until.saturating_duration_since(Instant::now());
            if !moving(&ledger) || left.is_zero() {
                break;
            }
            ledger = self.memory_moved.wait_timeout(ledger, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let mut moves = Moves::default();
        for &session in sessions {
            let Some(record) = ledger.sessions.get(&session) else { continue };
            let entry = ledger.books.lease(record.lease);
            moves.swapped += entry.map_or(0, |lease| lease.swapped_by(session));
            let text = ledger.memory_state(session, record);
            if !text.is_empty() {
                moves.notes.push(format!("session {session}: {text}"));
            }
        }
        moves
    }
}

impl Ledger {
    /// Whether a session still has to finish its work.
    pub(super) fn is_leaving(&self, session: u64) -> bool {
        self.sessions.get(&session).is_some_and(|record| record.residence.place == Place::Leaving)
    }

    /// What a suspended lease has left on its GPUs is all that is kept from others, once all its
    /// sessions are away.
    pub(super) fn vacate(&mut self, lease: u64) {
        let mut of_lease = self.sessions.values().filter(|session| session.lease == lease);
        if of_lease.all(|session| session.residence.place == Place::Away) {
            self.books.vacate(lease);
        }
    }

    /// What sessions that are leaving now may use of host memory and the file.
    fn room_of_leaving(&self) -> Room {
        let leaving = self.sessions.values().filter(|record| record.residence.place == Place::Leaving);
        leaving.fold(Room::default(), |sum, record| {
            let Room { memory, file } = record.residence.room;
            Room { memory: sum.memory.saturating_add(memory), file: sum.file.saturating_add(file) }
        })
    }
}

/// Half of this machine's memory, in bytes.
pub(super) fn half_of_host_memory() -> u64 {
    // SAFETY: both only read a number of the system's.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    u64::try_from(pages).unwrap_or(0).saturating_mul(u64::try_from(page).unwrap_or(0)) / 2
}
