//! Connections that are cut: who is waited for, for how long, and how they come back.
//!
//! A session whose client's connection is gone keeps its worker until the client resumes it, or is
//! known to be dead, or has been away for the linger time; a lease likewise, whose holder is
//! `sluice run`. A dead program is distinguished from a cut link by asking who sees its process:
//! this node itself where they share a machine, else the lease's holder. What a killed program held
//! is so free at once, and the node waits only where it cannot know.

use std::collections::VecDeque;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sluice_transport::process::ProcessWatch;
use sluice_transport::tls::Keys;
use sluice_wire::control::ProcessWatch as WatchRequest;
use sluice_wire::handshake::{LeaseToken, Resume, SessionSecret};
use sluice_worker_link::link::{Packet, PacketSocket};

use super::{Ledger, Registry};
use crate::connection::Line;

/// A worker that is dead has left the ledger within this time.
const BOOKS_PATIENCE: Duration = Duration::from_secs(5);
/// Longer than any lease.
pub(crate) const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// Ended sessions of which is known why.
const ENDED_MAX: usize = 256;

/// Why a session does not continue; the text goes to the client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResumeRefusal {
    #[error("no session goes by that number and secret here; has the node been started anew?")]
    Unknown,
    #[error("the session has ended: {0}")]
    Ended(String),
    #[error("the session does not outlive its connection")]
    NotKept,
}

/// A process as others know it, and how its end is learned of.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    /// Its number, as it says.
    pub(crate) number: u32,
    /// Where that number means it; 0 if that is unknown.
    pub(crate) space: u64,
    /// Where this node sees the process itself: it can be read once that has ended.
    pub(crate) watch: Option<Arc<OwnedFd>>,
}

/// The descriptor of a watch, which another program can continue with.
pub(crate) fn descriptor_of(watch: &ProcessWatch) -> io::Result<Arc<OwnedFd>> {
    watch.as_fd().try_clone_to_owned().map(Arc::new)
}

/// Who holds a lease: one control connection after another.
#[derive(Debug)]
pub(crate) struct Holder {
    line: Arc<Line>,
    process: Process,
    terms: Terms,
    /// Closed with the holder: a thread that waits for another one sees the end of the pipe.
    _superseded: PipeWriter,
}

/// On what terms a connection holds a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Terms {
    /// The holder may come back on another connection.
    pub(crate) resumes: bool,
    /// It may ask for leases, and about the node.
    pub(crate) may_ask: bool,
    /// Where it comes from.
    pub(crate) peer: String,
}

/// The holder of a lease from before this program ran.
#[derive(Clone, Debug)]
pub(crate) struct Awaited {
    pub(crate) process: Process,
    pub(crate) terms: Terms,
    /// The connection of one that cannot come back on another.
    pub(crate) socket: Option<Arc<OwnedFd>>,
}

impl Holder {
    pub(super) fn process(&self) -> &Process {
        &self.process
    }

    pub(super) fn terms(&self) -> &Terms {
        &self.terms
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.line.socket()
    }

    /// Whether it can come back on another connection, or continue on this one with another
    /// program.
    pub(super) fn can_stay(&self) -> bool {
        self.terms.resumes || self.line.can_be_passed()
    }

    /// Ends its connection: it comes back, and learns what has become of the lease.
    pub(super) fn hang_up(&self) {
        self.line.shut_down();
    }
}

/// A connection that is about to hold a lease. All that can fail of that has been done.
#[derive(Debug)]
pub(crate) struct Holding {
    holder: Holder,
    superseded: PipeReader,
}

impl Holding {
    pub(crate) fn new(line: &Arc<Line>, process: &Process, terms: Terms) -> io::Result<Holding> {
        let (superseded, writer) = io::pipe()?;
        let (line, process) = (Arc::clone(line), process.clone());
        Ok(Holding { holder: Holder { line, process, terms, _superseded: writer }, superseded })
    }
}

/// Held by a control connection's thread for its lease.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) lease: u64,
    line: Arc<Line>,
    /// Ends when another connection has the lease, or the lease is no more.
    superseded: PipeReader,
}

/// Sessions that have ended, the last ones.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Ended(VecDeque<(u64, [u8; 32], String)>);

impl Ended {
    pub(super) fn note(&mut self, session: u64, secret: SessionSecret, why: String) {
        if self.0.len() == ENDED_MAX {
            self.0.pop_front();
        }
        self.0.push_back((session, secret.0, why));
    }

    fn find(&self, resume: &Resume) -> Option<String> {
        let is_it =
            |session, secret: &[u8; 32]| session == resume.session && super::same(secret, &resume.secret.0);
        self.0.iter().find(|(session, secret, _)| is_it(*session, secret)).map(|(.., why)| why.clone())
    }
}

/// Compares without telling by its duration how much was right.
fn same(a: &SessionSecret, b: &SessionSecret) -> bool {
    super::same(&a.0, &b.0)
}

impl Registry {
    /// Gives the socket on which a client has come back, and what protects it, to its worker, which
    /// answers there.
    pub(crate) fn resume_session(
        &self,
        resume: &Resume,
        (process, peer): (&Process, &str),
        socket: BorrowedFd<'_>,
        tls: Option<Keys>,
    ) -> Result<(), ResumeRefusal> {
        let mut ledger = self.lock();
        if let Some(session) = ledger.session_of(resume.session, &resume.secret) {
            ledger = self.when_it_stays(ledger, session);
        }
        let ended = ledger.ended.find(resume).map(ResumeRefusal::Ended);
        let Some(session) = ledger.session_of(resume.session, &resume.secret) else {
            return Err(ended.unwrap_or(ResumeRefusal::Unknown));
        };
        let Some(record) = ledger.sessions.get_mut(&session) else { return Err(ResumeRefusal::Unknown) };
        if !record.resumes {
            return Err(ResumeRefusal::NotKept);
        }
        // A peer that has not shown the secret does not get that.
        sluice_transport::make_room(socket);
        let &Resume { attempt, received, stripe, .. } = resume;
        let packet = Packet::Resume { attempt, received, stripe: (stripe.number, stripe.count), tls };
        if record.link.send_fd(&packet, socket).is_ok() {
            record.client.peer = peer.to_owned();
            let (lease, is_first) = (record.lease, record.is_claimed_by(process));
            if let Some(lease) = ledger.leases.get_mut(&lease).filter(|_| is_first) {
                lease.sessions_total += 1;
            }
            ledger.is_certain(lease);
            return Ok(());
        }
        // The worker is dead, and will be struck out by the thread that serves it.
        let deadline = Instant::now() + BOOKS_PATIENCE;
        while ledger.sessions.contains_key(&session) && Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            ledger = self.session_ended.wait_timeout(ledger, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let why = ledger.ended.find(resume).unwrap_or_else(|| "its worker has ended".into());
        Err(ResumeRefusal::Ended(why))
    }

    /// A session's connection is gone: the holder that sees the client's process is asked for it.
    /// The answer is until when the client is waited for, and how the end of its process is seen.
    ///
    /// A client that does nothing does not notice that its session has moved, so then its lease
    /// alone says how long that is.
    pub(super) fn client_parted(&self, session: u64) -> (Instant, Option<Arc<OwnedFd>>) {
        let mut ledger = self.lock();
        let linger = Instant::now() + self.linger;
        let Some(record) = ledger.sessions.get_mut(&session) else { return (linger, None) };
        record.parted = true;
        let until = if record.migration.has_moved() { Instant::now() + FOR_EVER } else { linger };
        let (lease, process) = (record.lease, record.client.process.clone());
        if process.watch.is_none() {
            ask_holder(&ledger, lease, &process);
        }
        (until, process.watch)
    }

    /// As [`Registry::client_parted`], for a session whose connection was gone before this program
    /// ran.
    pub(super) fn awaited_client(&self, session: u64) -> Option<(Instant, Option<Arc<OwnedFd>>)> {
        let mut ledger = self.lock();
        let record = ledger.sessions.get_mut(&session)?;
        let is_awaited = std::mem::take(&mut record.is_awaited);
        drop(ledger);
        is_awaited.then(|| self.client_parted(session))
    }

    pub(super) fn client_resumed(&self, session: u64) {
        if let Some(record) = self.lock().sessions.get_mut(&session) {
            record.parted = false;
            record.migration.is_noticed();
        }
    }

    /// Waits until the worker has something to say (true), or its client is dead or was away for
    /// too long (false).
    pub(super) fn await_client(&self, link: &PacketSocket, until: Instant, watch: Option<&OwnedFd>) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        wait([Some(link.as_fd()), watch.map(AsFd::as_fd)], left) == [true, false]
    }

    /// A holder says that a process has ended: so have its sessions.
    pub(crate) fn process_ended(&self, lease: u64, process: u32) {
        let mut ledger = self.lock();
        let of_process =
            |record: &super::SessionRecord| record.lease == lease && record.client.process.number == process;
        for record in ledger.sessions.values_mut().filter(|record| of_process(record) && record.parted) {
            // An error means that it has ended by itself.
            let _ = record.worker.kill();
        }
    }

    /// A holder comes back for its lease on another connection, if there still is one.
    pub(crate) fn resume_lease(&self, token: &LeaseToken, holding: Holding) -> Option<Hold> {
        let mut ledger = self.lock();
        let lease = ledger.lease_of(token)?;
        ledger.leases.get(&lease).filter(|record| !record.closing)?;
        ledger.is_certain(lease);
        ledger.hold(lease, holding)
    }

    /// The holder's connection is gone without a word: waits until another has the lease, or the
    /// holder is dead or was away for too long, and then ends the lease.
    pub(crate) fn await_holder(&self, hold: &Hold, holder: &Process) {
        let watch = holder.watch.as_ref().map(|watch| watch.as_fd());
        if !matches!(wait([Some(hold.superseded.as_fd()), watch], self.linger), [true, _]) {
            let _step = self.gates.steps.enter("the end of a lease");
            self.end_held(hold);
        }
    }

    /// The holders from before this program ran, each with its lease; once.
    pub(crate) fn awaited_holders(&self) -> Vec<(u64, Awaited)> {
        let mut ledger = self.lock();
        let awaited = ledger.leases.iter_mut().filter_map(|(&id, record)| Some((id, record.awaited.take()?)));
        awaited.collect()
    }

    /// A connection holds a lease from before this program ran.
    pub(crate) fn hold_again(&self, lease: u64, holding: Holding) -> Option<Hold> {
        self.lock().hold(lease, holding)
    }

    /// Ends a lease, unless another connection holds it.
    pub(crate) fn end_held(&self, hold: &Hold) {
        let mut ledger = self.lock();
        let Some(record) = ledger.leases.get_mut(&hold.lease) else { return };
        if !record.holder.as_ref().is_some_and(|holder| Arc::ptr_eq(&holder.line, &hold.line)) {
            return;
        }
        record.closing = true;
        drop(ledger);
        self.end_lease(hold.lease);
    }
}

impl Ledger {
    /// The session that a client means, if it knows its secret. One that was restored here may have
    /// another number than its client knows.
    pub(super) fn session_of(&self, session: u64, secret: &SessionSecret) -> Option<u64> {
        let is_it = |record: &super::SessionRecord| same(&record.secret, secret);
        // The number may be another session's by now: they begin anew with the daemon.
        if self.sessions.get(&session).is_some_and(is_it) {
            return Some(session);
        }
        let former = |record: &super::SessionRecord| record.migration.was(session) && is_it(record);
        self.sessions.iter().find(|(_, record)| former(record)).map(|(&session, _)| session)
    }

    /// From now on this connection holds the lease.
    pub(super) fn hold(&mut self, lease: u64, holding: Holding) -> Option<Hold> {
        let Holding { holder, superseded } = holding;
        let line = Arc::clone(&holder.line);
        let before = self.leases.get_mut(&lease)?.holder.replace(holder);
        // It may hang half-dead, and must not be listened to any more.
        before.inspect(|before| before.line.shut_down());
        let parted = |record: &&super::SessionRecord| {
            record.lease == lease && record.parted && record.client.process.watch.is_none()
        };
        for record in self.sessions.values().filter(parted) {
            ask_holder(self, lease, &record.client.process);
        }
        Some(Hold { lease, line, superseded })
    }
}

/// Asks the holder of a lease to say when a process has ended, if it can know.
fn ask_holder(ledger: &Ledger, lease: u64, process: &Process) {
    let holder = ledger.leases.get(&lease).and_then(|record| record.holder.as_ref());
    if let Some(holder) =
        holder.filter(|holder| holder.process.space != 0 && holder.process.space == process.space)
    {
        // Should its connection be cut too, it is asked again when it comes back.
        holder.line.send_now(WatchRequest { process: process.number });
    }
}

/// Whether a child of this process ends within `limit`; it is left to be waited for.
pub(super) fn ends_within(child: u32, limit: Duration) -> bool {
    match ProcessWatch::new(child) {
        Ok(Some(watch)) => wait([Some(watch.as_fd()), None], limit)[0],
        // Without a way to watch it nothing is known, and nothing is claimed.
        Ok(None) | Err(_) => true,
    }
}

/// Which of two descriptors can be read, or is at its end, within `limit`; neither after that.
pub(crate) fn wait(fds: [Option<BorrowedFd<'_>>; 2], limit: Duration) -> [bool; 2] {
    let deadline = Instant::now() + limit;
    loop {
        // Negative descriptors are passed over.
        let fd = |fd: Option<BorrowedFd<'_>>| fd.map_or(-1, |fd| fd.as_raw_fd());
        let mut polled = fds.map(|of| libc::pollfd { fd: fd(of), events: libc::POLLIN, revents: 0 });
        let left = deadline.saturating_duration_since(Instant::now());
        let left_ms = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: the pointer and length describe `polled`.
        let ready = unsafe { libc::poll(polled.as_mut_ptr(), 2, left_ms) };
        // A signal, or the rounding of the limit, may have ended it early.
        if ready > 0 || left.is_zero() {
            return polled.map(|polled| polled.revents != 0);
        }
    }
}
