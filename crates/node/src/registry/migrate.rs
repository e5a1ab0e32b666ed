//! Sessions that continue on another GPU, of this node or of another ([`away`], [`incoming`]), or
//! are copied, into a checkpoint ([`copied`]) or into another session ([`cloned`]).
//!
//! ```text
//!   old worker <-- Depart --- daemon --- Start, Arrive --> new worker
//!        `------------- state and memory -------------------^
//!   old worker <-- Stay ------- not arrived                      Failed, or its end
//!   old worker  x  killed ----- Arrived: the session is the new worker's
//! ```
//!
//! The daemon decides in one step, with its table locked, which of the two workers has the session.
//! Until then a client that comes back waits, so it never meets both.

mod away;
mod cloned;
mod copied;
mod incoming;
mod moved;
mod ordered;
mod plan;

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sluice_wire::control::Migrated;
use sluice_worker_link::link::{Packet, PacketSocket, Receiver, Start};

use super::workers::MayHang;
use super::{Ledger, Registry, SessionRecord, cuts, one_line};
use crate::lease::{Ask, Refusal};
use crate::spawn::WorkerProcess;

pub(crate) use self::copied::Copied;
pub(crate) use self::incoming::{Incoming, arrival};
pub(crate) use self::moved::Moved;
pub(super) use self::moved::MovedLeases;
pub(super) use self::ordered::{Orders, SavedOrders};

/// How long the work that a session has given its GPU may take to finish.
const WORK_LIMIT: Duration = Duration::from_secs(10);
/// The rest of a move may take this time, and what its bytes take at this rate; but no longer than
/// this part of the time for which a client tries to come back.
const MOVE_LIMIT: Duration = Duration::from_secs(60);
const PART_OF_LINGER: f64 = 0.8;
const BYTES_PER_SECOND_MIN: u64 = 100 << 20;
/// A worker that has to keep its session answers within this time.
const STAY_LIMIT: Duration = Duration::from_secs(5);

/// What a session's record says of its moves.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Migration {
    /// Another worker is about to take it over.
    is_moving: bool,
    /// Why the worker that has it keeps it, once it has said so.
    refusal: Option<String>,
    /// What keeps it from moving, once its worker has said so after being asked.
    reasons: Option<Vec<String>>,
    /// Its worker has yet to answer that.
    is_asked: bool,
    /// GPU time that it had on other GPUs before, in nanoseconds.
    elsewhere_ns: u64,
    /// Since when it stands still for the present move.
    #[serde(skip)]
    stands_since: Option<Instant>,
    /// Its worker ends, or has ended.
    is_over: bool,
    /// Its connection has ended, or may end any moment, because it moves or was to move, and its
    /// client has not been there since.
    is_unnoticed: bool,
    /// Numbers that it had on this node before checkpoints: its client knows it by one of them.
    formers: Vec<u64>,
}

impl Migration {
    fn begin(&mut self) {
        self.is_moving = true;
        self.is_unnoticed = true;
        self.refusal = None;
        self.stands_since = None;
    }

    /// Whether it is not certain who has it.
    pub(super) fn is_moving(&self) -> bool {
        self.is_moving
    }

    /// What keeps it from moving, as far as its worker has said.
    pub(super) fn unmovable(&self) -> Vec<String> {
        self.reasons.clone().unwrap_or_default()
    }

    /// Whether its client may not know yet that the connection is gone.
    pub(super) fn has_moved(&self) -> bool {
        self.is_unnoticed
    }

    /// Whether its client may know it by this number.
    pub(super) fn was(&self, session: u64) -> bool {
        self.formers.contains(&session)
    }

    /// The session ends where it is.
    pub(super) fn is_over(&mut self) {
        self.is_over = true;
    }

    /// The client has come back.
    pub(super) fn is_noticed(&mut self) {
        self.is_unnoticed = false;
    }
}

/// Why nothing has moved; the text is what the user reads.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotMigrated {
    #[error("no program runs under lease {0}")]
    NoSession(u64),
    #[error("{count} programs run under lease {lease}, and only a lease of one program can move")]
    Sessions { lease: u64, count: usize },
    #[error("lease {0} has several GPUs, and only a lease of one GPU can move")]
    SeveralGpus(u64),
    #[error("this node has no GPU {gpu}; `sluice gpus` lists its {count}")]
    NoSuchGpu { gpu: usize, count: usize },
    #[error("session {session} is on GPU {gpu} already")]
    There { session: u64, gpu: usize },
    #[error("sessions do not move on a node that overcommits memory: it moves memory by itself")]
    Overcommitted,
    #[error("session {0} is suspended: resume it first")]
    Suspended(u64),
    #[error("session {0} has only begun: try again")]
    NotUp(u64),
    #[error("session {0} is moving already")]
    Moving(u64),
    #[error("{0}")]
    Node(String),
    #[error("lease {0} has changed meanwhile: try again")]
    Changed(u64),
    #[error(transparent)]
    Books(#[from] Refusal),
    #[error("session {session} stays on GPU {gpu}: {reason}")]
    Stays { session: u64, gpu: usize, reason: String },
}

/// A move for which there is room.
struct Begun {
    session: u64,
    lease: u64,
    from: usize,
    to: usize,
    /// The number of what holds room on the other GPU.
    room: u64,
    link: Arc<PacketSocket>,
    /// The page of the session's counters.
    counters: OwnedFd,
    start: Start,
    /// Bytes of the GPU that it has.
    bytes: u64,
}

/// The worker that has taken a session over.
struct Arrived {
    worker: WorkerProcess,
    link: Arc<PacketSocket>,
    has: Has,
}

/// What an arrived session has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Has {
    /// Bytes of device memory that were copied.
    pub(crate) bytes: u64,
    /// Of each GPU of its lease, bytes that it has taken, and that it counts on.
    taken: Vec<u64>,
    reserved: Vec<u64>,
}

impl Registry {
    /// Moves the one session of a lease of one GPU to another GPU of this node: to the one with the
    /// most compute free, if none is named.
    pub(crate) fn migrate(&self, lease: u64, gpu: Option<usize>) -> Result<Migrated, NotMigrated> {
        let gpu = gpu.unwrap_or_else(|| self.emptiest_but(lease));
        let begun = self.begin_migration(lease, gpu)?;
        let moved = self.take_over(&begun);
        self.end_migration(begun, moved)
    }

    /// The GPU with the most compute free that is not the lease's; the lease's, if it is the only
    /// one.
    fn emptiest_but(&self, lease: u64) -> usize {
        let ledger = self.lock();
        let own = ledger.gpus(lease);
        let others = (0..self.inventory.cards.len()).filter(|gpu| !own.contains(gpu));
        let emptiest = others.min_by_key(|&gpu| ledger.books.leased_ppm(gpu));
        emptiest.or(own.first().copied()).unwrap_or(0)
    }

    /// Holds room on the other GPU.
    fn begin_migration(&self, lease: u64, to: usize) -> Result<Begun, NotMigrated> {
        let count = self.inventory.cards.len();
        if to >= count {
            return Err(NotMigrated::NoSuchGpu { gpu: to, count });
        }
        if self.overcommits {
            return Err(NotMigrated::Overcommitted);
        }
        let mut ledger = self.lock();
        let (session, from) = ledger.movable(lease)?;
        if from == to {
            return Err(NotMigrated::There { session, gpu: to });
        }
        let entry = ledger.books.lease(lease).ok_or(Refusal::Gone)?;
        let ask = Ask { memory: entry.memory, ..entry.ask.clone() };
        let bytes = entry.used(0);
        let record = ledger.sessions.get(&session).ok_or(NotMigrated::NoSession(lease))?;
        let stays = |reason: String| NotMigrated::Stays { session, gpu: from, reason };
        let (link, page) = (Arc::clone(&record.link), record.counters.file().try_clone());
        let counters = page.map_err(|error| stays(error.to_string()))?;
        let start = self.start_on(&ledger, session, std::iter::once((to, 0))).ok_or(Refusal::Gone)?;
        let start = Start { arrives: true, ..start };
        let room = ledger.next_id();
        ledger.books.grant_on(room, ask, &[to])?;
        if let Some(record) = ledger.sessions.get_mut(&session) {
            record.migration.begin();
        }
        Ok(Begun { session, lease, from, to, room, link, counters, start, bytes })
    }

    /// Has a new worker take the session over. The old one still has it, too, when this returns.
    fn take_over(&self, begun: &Begun) -> Result<Arrived, String> {
        fn failed(error: impl Display) -> String {
            format!("the node cannot start a worker: {error}")
        }
        let (here, there) = UnixStream::pair().map_err(failed)?;
        // The client comes later, on a connection of its own.
        let (unconnected, _) = UnixStream::pair().map_err(failed)?;
        let counters = begun.counters.try_clone().map_err(failed)?;
        let (worker, link) = self.spawn_worker(unconnected.into(), counters).map_err(failed)?;
        let mut arrived = Arrived { worker, link, has: Has::default() };
        let limit = self.move_limit(begun.bytes);
        let depart = depart_within(limit, Receiver::Worker);
        let told = || {
            arrived.link.send(&begun.start)?;
            arrived.link.send_fd(&Packet::Arrive { is_clone: false }, there.as_fd())?;
            begun.link.send_fd(&depart, here.as_fd())
        };
        let told: io::Result<()> = told();
        // Either worker sees the other's end.
        drop((here, there));
        match told.map_err(failed).and_then(|()| await_arrival(&arrived.link, limit)) {
            Ok(has) => {
                arrived.has = has;
                Ok(arrived)
            }
            Err(reason) => {
                end(arrived);
                Err(reason)
            }
        }
    }

    /// Gives the session to the new worker, or leaves it with the old one.
    fn end_migration(&self, begun: Begun, moved: Result<Arrived, String>) -> Result<Migrated, NotMigrated> {
        let Begun { session, lease, from, room, .. } = begun;
        let mut ledger = self.lock();
        ledger.books.end(room);
        let goes_on = ledger.goes_on(lease, session);
        let (reason, unwanted) = match moved {
            Ok(arrived) if goes_on => return Ok(self.go_over(ledger, &begun, arrived)),
            Ok(arrived) => ("it has ended meanwhile".to_owned(), Some(arrived)),
            Err(reason) => (reason, None),
        };
        let reason = self.keep(ledger, session, reason);
        // Its memory takes a while to go.
        unwanted.into_iter().for_each(end);
        Err(NotMigrated::Stays { session, gpu: from, reason })
    }

    /// Gives the session to the new worker and ends the old one.
    fn go_over(&self, mut ledger: MutexGuard<'_, Ledger>, begun: &Begun, arrived: Arrived) -> Migrated {
        let &Begun { session, from, to, .. } = begun;
        let bytes = arrived.has.bytes;
        let since = ledger.sessions.get(&session).and_then(|record| record.migration.stands_since);
        let before = self.commit(&mut ledger, begun, arrived);
        let stall_us = since.map_or(0, |since| since.elapsed().as_micros() as u64);
        drop(ledger);
        // The thread that serves the session turns to the new worker.
        begun.link.shut_down();
        self.memory_moved.notify_all();
        if let Some(mut before) = before {
            let _ = before.kill();
            self.await_end(before.id(), &MayHang::Driver(vec![from]), || {});
            let _ = before.wait();
        }
        Migrated { session, gpu: to as u32, bytes, stall_us }
    }

    /// From here on the session is the new worker's; the answer is the old one.
    fn commit(&self, ledger: &mut Ledger, begun: &Begun, arrived: Arrived) -> Option<WorkerProcess> {
        let &Begun { session, lease, from, to, .. } = begun;
        ledger.books.relocate(lease, to);
        // What the daemon has sent to the old worker since then is lost with that one.
        ledger.books.adopt(lease, session, &arrived.has.taken, &arrived.has.reserved);
        let weight = ledger.books.lease(lease)?.weight();
        let shown = self.inventory.snapshots[from].clone();
        ledger.leases.get_mut(&lease)?.shown.get_or_insert_with(|| vec![shown]);
        let record = ledger.sessions.get_mut(&session)?;
        let spent = record.gpu_ns_on(0);
        record.migration.elsewhere_ns += spent;
        record.migration.is_moving = false;
        record.link = Arc::clone(&arrived.link);
        let before = std::mem::replace(&mut record.worker, arrived.worker);
        ledger.meters[from].past_ns += spent;
        self.turns.leave(session);
        let waits = self.turns.forget(lease, &[from]);
        self.turns.join(session, lease, &[to], weight, arrived.link);
        if let Some(lease) = ledger.leases.get_mut(&lease) {
            lease.past_waits = lease.past_waits.and(waits);
        }
        Some(before)
    }

    /// Has the old worker keep the session, and says why: what that worker itself says, if it had a
    /// reason.
    fn keep(&self, mut ledger: MutexGuard<'_, Ledger>, session: u64, reason: String) -> String {
        if let Some(record) = ledger.sessions.get(&session) {
            // An error means that the worker has ended.
            let _ = record.link.send_now(&Packet::Stay);
        }
        let until = Instant::now() + STAY_LIMIT;
        let has_said =
            |ledger: &Ledger| ledger.sessions.get(&session).is_none_or(|it| it.migration.refusal.is_some());
        while !has_said(&ledger) && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            ledger = self.memory_moved.wait_timeout(ledger, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let Some(record) = ledger.sessions.get_mut(&session) else { return reason };
        record.migration.is_moving = false;
        // Where its worker has ended the connection, the client has yet to notice.
        record.migration.is_unnoticed = record.parted;
        let own = record.migration.refusal.take().filter(|own| own != sluice_worker_link::link::STAYS);
        drop(ledger);
        self.memory_moved.notify_all();
        own.unwrap_or(reason)
    }

    /// A session executes nothing from now on.
    pub(super) fn session_stands(&self, session: u64) {
        if let Some(record) = self.lock().sessions.get_mut(&session) {
            record.migration.stands_since = Some(Instant::now());
        }
    }

    /// A worker that was to give its session up has kept it.
    pub(super) fn session_stays(&self, session: u64, reason: String) {
        if let Some(record) = self.lock().sessions.get_mut(&session) {
            record.migration.refusal = Some(one_line(&reason));
        }
        self.memory_moved.notify_all();
    }

    /// Waits until it is known where the lease or session of this number is: both are counted in
    /// one sequence.
    pub(super) fn when_it_stays<'a>(
        &'a self,
        mut ledger: MutexGuard<'a, Ledger>,
        number: u64,
    ) -> MutexGuard<'a, Ledger> {
        let arrives = |ledger: &Ledger| ledger.leases.get(&number).is_some_and(|lease| lease.arrives);
        while ledger.moving(number).is_some() || arrives(&ledger) {
            ledger = self.memory_moved.wait(ledger).unwrap_or_else(PoisonError::into_inner);
        }
        ledger
    }
}

impl Registry {
    /// How long a move of this many bytes may take once it has begun.
    fn move_limit(&self, bytes: u64) -> Duration {
        let limit = MOVE_LIMIT + Duration::from_secs(bytes / BYTES_PER_SECOND_MIN);
        limit.min(self.linger.mul_f64(PART_OF_LINGER))
    }
}

fn depart_within(limit: Duration, to: Receiver) -> Packet {
    Packet::Depart { work_limit_ms: WORK_LIMIT.min(limit / 2).as_millis() as u64, to }
}

impl SessionRecord {
    /// GPU time on one GPU of the lease, as far as it was had on the GPU that is there now, in
    /// nanoseconds.
    pub(super) fn gpu_ns_on(&self, place: usize) -> u64 {
        self.counters.gpu_ns_on(place).saturating_sub(self.migration.elsewhere_ns)
    }
}

impl Ledger {
    /// The session of a lease that can move now as far as the daemon knows, and its GPU.
    fn movable(&self, lease: u64) -> Result<(u64, usize), NotMigrated> {
        let session = match self.sessions_of(lease)[..] {
            [] => return Err(NotMigrated::NoSession(lease)),
            [session] => session,
            ref sessions => return Err(NotMigrated::Sessions { lease, count: sessions.len() }),
        };
        let entry = self.books.lease(lease).ok_or(Refusal::Gone)?;
        let &[gpu] = &*entry.gpus else { return Err(NotMigrated::SeveralGpus(lease)) };
        match self.sessions.get(&session).ok_or(NotMigrated::NoSession(lease))? {
            record if record.migration.is_moving => Err(NotMigrated::Moving(session)),
            record if self.session_is_suspended(record) => Err(NotMigrated::Suspended(session)),
            record if !record.is_up => Err(NotMigrated::NotUp(session)),
            _ => Ok((session, gpu)),
        }
    }

    /// Whether a session that has stood still for a move is still all that its lease has.
    fn goes_on(&self, lease: u64, session: u64) -> bool {
        let closing = self.leases.get(&lease).is_none_or(|lease| lease.closing);
        let lives = self.sessions.get(&session).is_some_and(|record| !record.migration.is_over);
        lives && !closing && self.sessions_of(lease) == [session]
    }

    /// The session that is moving, of the lease or session of this number.
    pub(super) fn moving(&self, number: u64) -> Option<u64> {
        let is_of = |session: u64, record: &SessionRecord| session == number || record.lease == number;
        let moving = self
            .sessions
            .iter()
            .find(|(session, record)| is_of(**session, record) && record.migration.is_moving);
        moving.map(|(&session, _)| session)
    }
}

/// Waits until the worker has the session, or says why it does not get it.
fn await_arrival(link: &PacketSocket, limit: Duration) -> Result<Has, String> {
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if !cuts::wait([Some(link.as_fd()), None], left)[0] {
            return Err(format!("its memory was not copied within {} s", limit.as_secs()));
        }
        match link.receive::<Packet>() {
            Ok(Some(Packet::Arrived { bytes, taken, reserved })) => {
                return Ok(Has { bytes, taken, reserved });
            }
            Ok(Some(Packet::Failed(reason))) => return Err(one_line(&reason)),
            Ok(Some(_)) => {}
            Ok(None) => return Err("the new worker has ended".to_owned()),
            Err(error) => return Err(format!("the new worker sent nonsense: {error}")),
        }
    }
}

/// Ends a worker that has no session.
fn end(mut arrived: Arrived) {
    let _ = arrived.worker.kill();
    let _ = arrived.worker.wait();
}
