//! The client's connection, and the next one after a cut.
//!
//! ```text
//!            end of file, an error              Packet::Resume, with the socket
//!  connected ----------------------> cut, says Parted ------------------> connected, says Resumed
//!      |                               |
//!      | Packet::Resume: the client    | the daemon has waited long enough, or the client is dead:
//!      | noticed first                 | it ends this process
//!      +--> connected                  x
//! ```
//!
//! Positions are exact to the byte (`sluice_wire::resume`), so a frame may begin on one connection
//! and end on another, and nothing is executed twice. What still comes out of an old socket after
//! the client has come back is dropped: the client has sent it again. A client that comes back on
//! several sockets at once has all of them here before it continues. Where a session cannot be
//! resumed, the end of the connection is the client's end.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluice_transport::{STRIPES_MAX, Stream};
use sluice_wire::control::{Control, SessionRefused, SessionResumed};
use sluice_wire::migration::Upstream;
use sluice_wire::spin::Wait;

use crate::link::{Packet, PacketSocket};
use crate::outbox::Outbox;
use crate::process::ending;

/// What reader, writers and the daemon's word have in common.
pub(crate) struct Client {
    state: Mutex<State>,
    back: Condvar,
    outbox: Arc<Outbox>,
    link: Arc<PacketSocket>,
    resumes: bool,
}

struct State {
    connection: Connection,
    is_cut: bool,
    /// Bytes of the client's stream that have arrived, over all connections.
    received: u64,
    gathering: Option<Gathering>,
}

/// The sockets of an attempt of the client's, until all of them are there.
struct Gathering {
    attempt: u32,
    received: u64,
    sockets: Vec<Option<Stream>>,
}

impl Gathering {
    /// `None` if the client says what it never does.
    fn new(attempt: u32, received: u64, count: u8) -> Option<Gathering> {
        let count = usize::from(count);
        let sockets = (0..count).map(|_| None).collect();
        (1..=STRIPES_MAX).contains(&count).then_some(Gathering { attempt, received, sockets })
    }
}

/// One connection; `attempt` tells it from those before and after.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) stream: Arc<Stream>,
    attempt: u32,
}

impl Client {
    /// The client has come with this attempt; without one it cannot come back.
    pub(crate) fn new(
        stream: Arc<Stream>,
        outbox: Arc<Outbox>,
        link: Arc<PacketSocket>,
        attempt: Option<u32>,
    ) -> Client {
        let (resumes, attempt) = (attempt.is_some(), attempt.unwrap_or(0));
        let connection = Connection { stream, attempt };
        let state = Mutex::new(State { connection, is_cut: false, received: 0, gathering: None });
        Client { state, back: Condvar::new(), outbox, link, resumes }
    }

    /// The connection that lives, as soon as one does.
    pub(crate) fn connection(&self) -> Connection {
        let mut state = self.lock();
        while state.is_cut {
            state = self.back.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.connection.clone()
    }

    /// As [`Client::connection`]; `None` once `stops` says so after a [`Client::wake`].
    pub(crate) fn connection_unless(&self, stops: impl Fn() -> bool) -> Option<Connection> {
        let mut state = self.lock();
        while state.is_cut {
            if stops() {
                return None;
            }
            state = self.back.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Some(state.connection.clone())
    }

    /// Has a thread that waits for the client look whether it is to stop.
    pub(crate) fn wake(&self) {
        // With the lock, so that it has looked before or waits by now.
        let _state = self.lock();
        self.back.notify_all();
    }

    /// As [`Client::connection`], without waiting.
    pub(crate) fn connection_now(&self) -> Option<Connection> {
        let state = self.lock();
        (!state.is_cut).then(|| state.connection.clone())
    }

    /// Counts bytes that were read; false if another connection has taken over, so that they will
    /// come again.
    pub(crate) fn received(&self, connection: &Connection, count: usize) -> bool {
        let mut state = self.lock();
        if state.connection.attempt != connection.attempt {
            return false;
        }
        state.received += count as u64;
        self.outbox.received(state.received);
        true
    }

    /// This connection is at its end. Returns where the client may come back on another.
    pub(crate) fn parted(&self, connection: &Connection) {
        // A client does not come back to a session that is lost. It may be about to begin another
        // one, which needs what this one holds.
        if !self.resumes || self.outbox.has_failed() {
            ending::client_gone();
        }
        let mut state = self.lock();
        if state.connection.attempt == connection.attempt && !state.is_cut {
            state.is_cut = true;
            state.connection.stream.shut_down();
            let _ = self.link.send(&Packet::Parted);
        }
    }

    /// Whether the client can come back after a cut.
    pub(crate) fn resumes(&self) -> bool {
        self.resumes
    }

    /// Bytes of the client's stream that have arrived, and its last attempt to connect.
    pub(crate) fn position(&self) -> (u64, u32) {
        let state = self.lock();
        (state.received, state.connection.attempt)
    }

    /// Continues where another worker was: the client will come back.
    pub(crate) fn restore(&self, upstream: &Upstream) {
        let mut state = self.lock();
        state.received = upstream.received;
        state.connection.attempt = upstream.attempt;
        state.is_cut = true;
    }

    pub(crate) fn outbox(&self) -> &Arc<Outbox> {
        &self.outbox
    }

    /// Says no more, and waits a while until the client has hung up: of a socket that is closed
    /// with bytes unread the peer may not receive the last words.
    pub(crate) fn wait_until_heard(&self, limit: Duration) {
        let Some(Connection { stream, .. }) = self.connection_now() else { return };
        stream.shut_down_writes();
        stream.wait_end(limit);
    }

    /// Ends the connection, whichever thread holds it.
    pub(crate) fn hang_up(&self) {
        self.lock().connection.stream.shut_down();
    }

    /// The client is on this connection now, which is one of some, and has received this number of
    /// bytes of our stream.
    pub(crate) fn come_back(&self, attempt: u32, received: u64, (number, count): (u8, u8), stream: Stream) {
        let mut state = self.lock();
        let newest = state.gathering.as_ref().map_or(state.connection.attempt, |last| last.attempt);
        let goes_on = state.gathering.as_ref().is_some_and(|last| last.attempt == attempt);
        if attempt <= state.connection.attempt || attempt < newest {
            return refuse(&stream, "the client has come back on another connection meanwhile");
        }
        if !goes_on {
            state.gathering = Gathering::new(attempt, received, count);
        }
        let gathering = state.gathering.as_mut().filter(|all| all.sockets.len() == usize::from(count));
        let Some(place) = gathering.and_then(|all| all.sockets.get_mut(usize::from(number))) else {
            return refuse(&stream, "a connection of an attempt that has no such connection");
        };
        *place = Some(stream);
        if let Some(all) = state.gathering.take_if(|all| all.sockets.iter().all(Option::is_some)) {
            let mut sockets = all.sockets.into_iter().flatten();
            if let Some(first) = sockets.next() {
                self.resume(state, (attempt, all.received), first, sockets.collect());
            }
        }
    }

    fn resume(
        &self,
        mut state: MutexGuard<'_, State>,
        (attempt, received): (u32, u64),
        stream: Stream,
        others: Vec<Stream>,
    ) {
        let stream = Arc::new(stream);
        // Reader and writers come off the old one; what they have read from it is of an attempt
        // that is over.
        state.connection.stream.shut_down();
        state.connection = Connection { stream: Arc::clone(&stream), attempt };
        let resumed = SessionResumed { received: state.received };
        let begun =
            frame_of(resumed).and_then(|frame| self.outbox.resume((&stream, others), received, &frame));
        match begun {
            Ok(()) => {
                state.is_cut = false;
                let _ = self.link.send(&Packet::Resumed);
                drop(state);
                self.back.notify_all();
            }
            Err(error) => {
                state.is_cut = true;
                let _ = self.link.send(&Packet::Parted);
                drop(state);
                refuse(&stream, &format!("the session cannot continue where the client is: {error}"));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells a client why; should it not arrive, the client will ask again.
fn refuse(stream: &Stream, reason: &str) {
    if let Ok(frame) = frame_of(SessionRefused { reason: reason.to_owned() }) {
        let _ = stream.write(&frame);
    }
    stream.shut_down();
}

/// A control message as a frame.
pub(crate) fn frame_of(message: impl Into<Control>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    message.into().frame(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

/// Writes all of it, and waits while the socket is full.
pub(crate) fn write_all(stream: &Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = stream.write_vectored(&[io::IoSlice::new(bytes)], Wait::Asleep)?;
        bytes = &bytes[count..];
    }
    Ok(())
}
