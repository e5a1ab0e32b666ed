//! The connection over which a node gives a session to another one.
//!
//! ```text
//! old node                                   new node
//!   | -- MoveOffer ---------------------------> |  holds room, starts a worker
//!   | <- MoveAccepted ------------------------- |
//!   | -- MovePiece ... -----------------------> |  makes the session anew
//!   | <- MoveArrived, or Refused -------------- |
//!   | -- MoveDecided -------------------------> |
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use sluice_transport::token::NodeToken;
use sluice_wire::address::Endpoint;
use sluice_wire::control::{Control, MoveAccepted, MoveDecided, MoveOffer, MovePiece, Usage};

use crate::{ANSWER_TIME_MAX, Cause, Connection, Failure, trust};

/// Most bytes of a session in one message.
const PIECE: usize = 256 << 10;

/// A session that another node has accepted. Dropped, it is not given away.
#[derive(Debug)]
pub struct Departure {
    connection: Connection,
}

impl Departure {
    /// Offers a session to a node, and shows it this token if it wants one.
    pub fn offer(
        node: &Endpoint,
        token: Option<&NodeToken>,
        offer: MoveOffer,
    ) -> Result<(Departure, MoveAccepted), Failure> {
        Departure::offer_on(Connection::open(node)?, token, offer)
    }

    /// Offers a session that was in a checkpoint, for a process that ends before the session does.
    pub fn offer_restored(node: &Endpoint, offer: MoveOffer) -> Result<(Departure, MoveAccepted), Failure> {
        Departure::offer_on(Connection::open_unwatched(node)?, None, offer)
    }

    fn offer_on(
        mut connection: Connection,
        token: Option<&NodeToken>,
        offer: MoveOffer,
    ) -> Result<(Departure, MoveAccepted), Failure> {
        let own = || token.cloned().map_or_else(trust::token, Ok).map_err(Cause::Trust);
        match connection.ask_with(&offer.into(), own)? {
            Control::MoveAccepted(accepted) => Ok((Departure { connection }, accepted)),
            _ => Err(connection.unexpected()),
        }
    }

    /// The node, by a name that anyone can reach it by: with its fingerprint.
    pub fn node(&self) -> &Endpoint {
        self.connection.node()
    }

    /// Sends what can be read from `session`, until the other node has all of it; the answer is how
    /// much device memory that was, in bytes. The end of `session` is a failure.
    pub fn send(&mut self, mut session: File, limit: Duration) -> Result<u64, Failure> {
        let sent = self.try_send(&mut session, limit);
        sent.map_err(|cause| self.connection.failure(cause))
    }

    fn try_send(&mut self, session: &mut File, limit: Duration) -> Result<u64, Cause> {
        let until = Instant::now() + limit;
        sluice_transport::limit_unacknowledged(self.connection.as_fd())?;
        let late = || Cause::Refused(format!("its memory was not copied within {} s", limit.as_secs()));
        let mut buffer = vec![0; PIECE];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(late());
            }
            self.connection.stream.set_write_limit(left)?;
            let (can_send, can_hear) = self.wait(session.as_fd(), left);
            if can_hear {
                match self.connection.receive()?.into_iter().next() {
                    Some(Control::MoveArrived(arrived)) => return Ok(arrived.bytes),
                    Some(Control::Refused(refused)) => return Err(Cause::Refused(refused.reason)),
                    Some(_) => return Err(Cause::UnexpectedAnswer),
                    // Less than a message.
                    None => {}
                }
            } else if can_send {
                match session.read(&mut buffer)? {
                    0 => return Err(Cause::Refused("the old worker has ended, or keeps it".into())),
                    count => self.connection.send(MovePiece { bytes: buffer[..count].to_vec() })?,
                }
            }
        }
    }

    /// Waits for either, for this time at most.
    fn wait(&self, session: BorrowedFd<'_>, left: Duration) -> (bool, bool) {
        if self.connection.has_unread() {
            return (false, true);
        }
        let poll = |fd: BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut polled = [poll(session), poll(self.connection.as_fd())];
        let left_ms = i32::try_from(left.as_millis()).unwrap_or(i32::MAX).max(1);
        // SAFETY: the pointer and length describe `polled`. After a signal nothing is ready, and
        // the caller waits again.
        unsafe { libc::poll(polled.as_mut_ptr(), 2, left_ms) };
        (polled[0].revents != 0, polled[1].revents != 0)
    }

    /// Says that the session is the other node's from now on, what its lease has used, and until
    /// when that is in the usage records of this node.
    pub fn moves(mut self, used: Option<Usage>, recorded_until_ms: Option<u64>) -> Result<(), Failure> {
        self.decide(MoveDecided { moves: true, used, recorded_until_ms })
    }

    /// Says that the session stays. The other node's room is free when this returns, if that node
    /// answers.
    pub fn stays(mut self) -> Result<(), Failure> {
        self.decide(MoveDecided { moves: false, used: None, recorded_until_ms: None })?;
        self.connection.close();
        Ok(())
    }

    fn decide(&mut self, decided: MoveDecided) -> Result<(), Failure> {
        self.connection.stream.set_write_limit(ANSWER_TIME_MAX).map_err(|error| self.failure(error))?;
        let said = self.connection.send(decided);
        said.map_err(|cause| self.connection.failure(cause))
    }

    fn failure(&self, error: io::Error) -> Failure {
        self.connection.failure(Cause::Connection(error))
    }
}
