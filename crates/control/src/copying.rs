//! The connection over which a node gives a copy of a session to the machine that keeps it.
//!
//! ```text
//! keeper of the copy                              node
//!   | -- Checkpoint ------------------------------> |
//!   | <- CheckpointBegun -------------------------- |
//!   | <- MovePiece ... ---------------------------> |  as `sluice_wire::checkpoint` says
//!   | -- CheckpointDecided -----------------------> |  the session continues, or leaves the node
//!   | <- Checkpointed ----------------------------- |
//! ```

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use sluice_wire::control::{
    Checkpoint, CheckpointBegun, CheckpointDecided, Checkpointed, Control, LeaseName, MovePiece,
};

use crate::{Cause, Connection, Failure, MOVE_TIME_MAX};

/// A node that sends nothing for this time is gone: a worker waits less for the session's work.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// For the reason of a node that has ended the connection.
const REASON_TIME_MAX: Duration = Duration::from_secs(5);
/// Most bytes of a message to the node.
const PIECE: usize = 256 << 10;

/// A session that stands still and is copied. Dropped, it continues on its node.
#[derive(Debug)]
pub struct Copying {
    connection: Connection,
    /// What has come and was not read, from here on.
    piece: Vec<u8>,
    at: usize,
}

impl Copying {
    /// Asks for a copy of the session of this lease.
    pub fn begin(
        mut connection: Connection,
        lease: LeaseName,
    ) -> Result<(Copying, CheckpointBegun), Failure> {
        match connection.ask(Checkpoint { lease })? {
            Control::CheckpointBegun(begun) => Ok((Copying { connection, piece: Vec::new(), at: 0 }, begun)),
            _ => Err(connection.unexpected()),
        }
    }

    /// The node, by a name that anyone can reach it by.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Says what becomes of the session, once the copy is whole.
    pub fn decide(mut self, stops: bool) -> Result<Checkpointed, Failure> {
        let said = self.connection.send(CheckpointDecided { stops });
        let answered = match said {
            Ok(()) => self.next(MOVE_TIME_MAX),
            // The node has ended the connection, and may have said why.
            Err(cause) => match self.next(REASON_TIME_MAX) {
                Ok(refused @ Control::Refused(_)) => Ok(refused),
                _ => Err(cause),
            },
        };
        match answered {
            Ok(Control::Checkpointed(checkpointed)) => Ok(checkpointed),
            Ok(Control::Refused(refused)) => Err(self.connection.failure(Cause::Refused(refused.reason))),
            Ok(_) => Err(self.connection.unexpected()),
            Err(cause) => Err(self.connection.failure(cause)),
        }
    }

    fn next(&mut self, limit: Duration) -> Result<Control, Cause> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(message) = self.connection.next_message()? {
                return Ok(message);
            }
            let space = self.connection.decoder.space(PIECE);
            let count = crate::read(&self.connection.stream, space, deadline)?;
            self.connection.decoder.received(count);
        }
    }
}

/// What the session's worker sends. An error of the node has its [`Failure`] inside.
impl Read for Copying {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.at == self.piece.len() {
            let failed = |cause, copying: &Copying| io::Error::other(copying.connection.failure(cause));
            match self.next(SILENCE_MAX) {
                Ok(Control::MovePiece(MovePiece { bytes })) => (self.piece, self.at) = (bytes, 0),
                Ok(Control::Refused(refused)) => return Err(failed(Cause::Refused(refused.reason), self)),
                Ok(_) => return Err(failed(Cause::UnexpectedAnswer, self)),
                Err(cause) => return Err(failed(cause, self)),
            }
        }
        let count = into.len().min(self.piece.len() - self.at);
        into[..count].copy_from_slice(&self.piece[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

/// What the session's worker is sent.
impl Write for Copying {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE)];
        let sent = self.connection.send(MovePiece { bytes: piece.to_vec() });
        sent.map_err(|cause| io::Error::other(self.connection.failure(cause)))?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
