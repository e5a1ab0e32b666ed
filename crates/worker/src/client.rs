//! The client's connection, and the next one after a cut.
//!
//! ```text
//!            end of file, an error                     Packet::Resume, with the socket
//!  connected ----------------------> cut, says Parted --------------------------------> connected, says Resumed
//!      |                               |
//!      | Packet::Resume: the client    | the daemon has waited long enough, or knows that the client is dead:
//!      | noticed first                 | it ends this process
//!      +--> connected                  x
//! ```
//!
//! Positions are exact to the byte (`sluice_wire::resume`), so a frame may begin on one connection and end on another, and
//! nothing is executed twice. What still comes out of an old socket after the client has come back is dropped: the client
//! has sent it again. Where a session cannot be resumed, the end of the connection is the client's end.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use sluice_transport::Stream;
use sluice_wire::control::{Control, SessionRefused, SessionResumed};
use sluice_wire::spin::Wait;

use crate::ending;
use crate::link::{Link, Packet};
use crate::outbox::Outbox;

/// What reader, writers and the daemon's word have in common.
pub(crate) struct Client {
    state: Mutex<State>,
    back: Condvar,
    outbox: Arc<Outbox>,
    link: Arc<Link>,
    resumes: bool,
}

struct State {
    connection: Connection,
    is_cut: bool,
    /// Bytes of the client's stream that have arrived, over all connections.
    received: u64,
}

/// One connection; `attempt` tells it from those before and after.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) stream: Arc<Stream>,
    attempt: u32,
}

impl Client {
    pub(crate) fn new(stream: Arc<Stream>, outbox: Arc<Outbox>, link: Arc<Link>, resumes: bool) -> Client {
        let connection = Connection { stream, attempt: 0 };
        let state = Mutex::new(State { connection, is_cut: false, received: 0 });
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

    /// As [`Client::connection`], without waiting.
    pub(crate) fn connection_now(&self) -> Option<Connection> {
        let state = self.lock();
        (!state.is_cut).then(|| state.connection.clone())
    }

    /// Counts bytes that were read; false if another connection has taken over, so that they will come again.
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
        if !self.resumes {
            ending::client_gone();
        }
        let mut state = self.lock();
        if state.connection.attempt == connection.attempt && !state.is_cut {
            state.is_cut = true;
            state.connection.stream.shut_down();
            let _ = self.link.send(&Packet::Parted);
        }
    }

    /// The client is on this connection now, and has received so many bytes of our stream.
    pub(crate) fn resume(&self, attempt: u32, received: u64, stream: Stream) {
        let stream = Arc::new(stream);
        let mut state = self.lock();
        if attempt <= state.connection.attempt {
            return refuse(&stream, "the client has come back on another connection meanwhile");
        }
        // Reader and writers come off the old one; what they have read from it is of an attempt that is over.
        state.connection.stream.shut_down();
        state.connection = Connection { stream: Arc::clone(&stream), attempt };
        let resumed = SessionResumed { received: state.received };
        let begun = frame_of(resumed).and_then(|frame| self.outbox.resume(&stream, received, &frame));
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
                refuse(&stream, &format!("the session cannot go on where the client is: {error}"));
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
