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

use serde::{Deserialize, Serialize};
use sluice_worker_link::link::{Kept, Packet};

use super::{Ledger, Registry};
use crate::lease::bytes_text;
use crate::swap_space::Room;

/// How long a session that is to leave its GPUs may take for the work that it has given them. After
/// that its memory stays.
const WORK_LIMIT: Duration = Duration::from_secs(10);
/// How long a request waits for its outcome: for the work, and for hundreds of gigabytes of host
/// memory.
const MOVE_LIMIT: Duration = Duration::from_secs(60);
/// Bytes that a slow disk writes or reads in a second; a request waits longer for a swap file.
const DISK_PACE: u64 = 100_000_000;

/// Where a session's memory is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Residence {
    place: Presence,
    /// What has not left, or why nothing has.
    kept: Vec<Kept>,
    reason: String,
    /// What it may use of host memory and the file, while it leaves.
    room: Room,
    /// There was no file for it when it was to leave, so it is asked again soon.
    lacked_file: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Presence {
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
        Residence { place: Presence::Away, ..Residence::default() }
    }

    pub(super) fn leaving(room: Room) -> Residence {
        Residence { place: Presence::Leaving, room, ..Residence::default() }
    }

    pub(super) fn returning() -> Residence {
        Residence { place: Presence::Returning, ..Residence::default() }
    }

    pub(super) fn is_away(&self) -> bool {
        self.place == Presence::Away
    }

    /// Why the memory stays on its GPUs, though it was to leave.
    pub(super) fn stays(&self) -> Option<&str> {
        (self.place == Presence::Present && !self.reason.is_empty()).then_some(&self.reason)
    }

    fn is_moving(&self) -> bool {
        matches!(self.place, Presence::Leaving | Presence::Returning)
    }

    /// For people: nothing where the memory is on the GPUs and nothing is to be said of that.
    pub(super) fn describe(&self) -> String {
        match self.place {
            Presence::Leaving => "leaving the GPU".to_owned(),
            Presence::Returning => "returning to the GPU".to_owned(),
            Presence::Present if self.reason.is_empty() => String::new(),
            Presence::Present => format!("stays on the GPU: {}", self.reason),
            Presence::Away if !self.reason.is_empty() => format!("cannot return to the GPU: {}", self.reason),
            Presence::Away => {
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
            (Presence::Present, true) if record.residence.reason.is_empty() => {
                record.residence = Residence::leaving(room);
                // Without time slices its work would not finish.
                self.turns.set_suspended(session, false);
                return self.move_out(ledger, session, room);
            }
            (Presence::Away, false) => {
                record.residence = Residence::returning();
                Packet::MoveIn { keeps: false }
            }
            (Presence::Present, false) => {
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
        // It may take more until its worker begins.
        self.swap.room(lease.map_or(0, |lease| lease.within_reach_of(session)), used)
    }

    /// Tells the worker of a session that its memory is to leave its GPUs.
    pub(super) fn move_out(&self, ledger: &mut Ledger, session: u64, room: Room) {
        let (file, room, lacked_file) = match self.swap.file(room) {
            None => (None, room, false),
            Some(Ok(file)) => (Some(file), room, false),
            // Without room, the worker says what is missing, and nothing has moved.
            Some(Err(error)) => {
                tracing::warn!(session, "there is no swap file for session {session} yet: {error}");
                (None, Room { file: 0, ..room }, true)
            }
        };
        let Some(record) = ledger.sessions.get_mut(&session) else { return };
        (record.residence.room, record.residence.lacked_file) = (room, lacked_file);
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
        if residence.place == Presence::Leaving {
            record.churns = false;
        }
        match (residence.place, said) {
            (Presence::Leaving, Packet::MovedOut { moved, filed, kept, took_us, .. }) => {
                record.moves += 1;
                record.moving_us += took_us;
                *residence = Residence { place: Presence::Away, kept, ..Residence::default() };
                ledger.books.moved_out(lease, session, &moved, &filed);
                ledger.note_move(lease, 1, took_us);
            }
            (Presence::Leaving, Packet::NotMovedOut { mut reason }) => {
                record.wants = false;
                let lacked_file = residence.lacked_file;
                if lacked_file {
                    reason.push_str("; there is no swap file for it yet, and it is asked again soon");
                }
                *residence =
                    Residence { place: Presence::Present, reason, lacked_file, ..Residence::default() };
            }
            (Presence::Returning, Packet::MovedIn { took_us, .. }) => {
                record.moving_us += took_us;
                record.wants = false;
                *residence = Residence::default();
                ledger.books.moved_in(lease, session);
                ledger.note_move(lease, 0, took_us);
            }
            (Presence::Returning, Packet::NotMovedIn { reason }) => {
                tracing::warn!(
                    session,
                    "the memory of session {session} cannot return to its GPU yet: {reason}"
                );
                *residence = Residence { place: Presence::Away, reason, ..Residence::default() };
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

    /// Asks sessions again whose memory could not return, or had no file to leave to.
    pub(super) fn retry_moves(&self, ledger: &mut Ledger) {
        let mut again = Vec::new();
        for (&session, record) in &mut ledger.sessions {
            let residence = &mut record.residence;
            let tries_again = match residence.place {
                Presence::Away => !residence.reason.is_empty(),
                Presence::Present => residence.lacked_file,
                Presence::Leaving | Presence::Returning => false,
            };
            if record.planned_on.is_none() && tries_again {
                if residence.place == Presence::Present {
                    *residence = Residence::default();
                }
                again.push(session);
            }
        }
        again.into_iter().for_each(|session| self.settle(ledger, session));
    }

    /// Waits until the memory of these sessions is where it is to be, as far as it can.
    pub(crate) fn await_moves(&self, sessions: &[u64]) -> Moves {
        let mut ledger = self.lock();
        let until = Instant::now() + ledger.move_limit(sessions);
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
        self.sessions.get(&session).is_some_and(|record| record.residence.place == Presence::Leaving)
    }

    /// What a suspended lease has left on its GPUs is all that is kept from others, once all its
    /// sessions are away.
    pub(super) fn vacate(&mut self, lease: u64) {
        let mut of_lease = self.sessions.values().filter(|session| session.lease == lease);
        if of_lease.all(|session| session.residence.place == Presence::Away) {
            self.books.vacate(lease);
        }
    }

    /// Whether a session that is leaving has got no file, though it may need one.
    pub(super) fn lacked_file(&self, session: u64) -> bool {
        self.sessions.get(&session).is_some_and(|record| record.residence.lacked_file)
    }

    /// Bytes of a session that its worker may be writing to a file, or reading from it.
    pub(super) fn bytes_on_disk(&self, session: u64) -> u64 {
        let Some(record) = self.sessions.get(&session) else { return 0 };
        match record.residence.place {
            Presence::Leaving => record.residence.room.file,
            _ => self.books.lease(record.lease).map_or(0, |lease| lease.filed_by(session)),
        }
    }

    /// How long a request waits until the memory of these sessions is where it is to be.
    fn move_limit(&self, sessions: &[u64]) -> Duration {
        let bytes: u64 = sessions.iter().map(|&session| self.bytes_on_disk(session)).sum();
        MOVE_LIMIT + Duration::from_secs(bytes / DISK_PACE)
    }

    /// What sessions that are leaving now keep of host memory and the file. What they may take
    /// beyond what they have is not kept from others: they share that with the other sessions of
    /// their lease, and seldom take it.
    fn room_of_leaving(&self) -> Room {
        let leaving = self.sessions.iter().filter(|(_, record)| record.residence.place == Presence::Leaving);
        leaving.fold(Room::default(), |sum, (&session, record)| {
            let has = self.books.lease(record.lease).map_or(0, |lease| lease.unmoved_of(session));
            let Room { memory, file } = record.residence.room.part_for(has);
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
