//! A copy of a session goes over a control connection to the machine that keeps it
//! (`sluice_control`'s `Copying`).

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use sluice_transport::Stream;
use sluice_wire::control::{CheckpointDecided, Control, LeaseName, MovePiece};
use sluice_wire::spin::Wait;
use sluice_wire::{FrameDecoder, Kind, WireError};

use super::{ConnectionError, HeldLease, Line, NO_CERTIFICATE, NO_LEASES_HERE, Token, limit_read, refused};
use crate::registry::Registry;
use crate::registry::migrate::Copied;

/// Bytes of the session in one message.
const PIECE: usize = 256 << 10;
/// Most bytes of one message to the worker.
const MESSAGE_MAX: usize = 1 << 20;
/// A worker that takes nothing for this time wants no more.
const PUSH_LIMIT: Duration = Duration::from_secs(10);

/// Sends a copy of the session of this lease, and does with the session what is decided then.
pub(super) fn give(
    held: &mut HeldLease<'_>,
    (decoder, stream): (&mut FrameDecoder, &Stream),
    lease: &LeaseName,
) -> Result<(), ConnectionError> {
    if let Some(answer) = held.is_kept_from_copying() {
        return held.line.send(answer);
    }
    held.prove()?;
    let registry = held.registry;
    let named = held.named(lease);
    let begun = named.and_then(|(_, lease)| registry.begin_copy(lease).map_err(|error| error.to_string()));
    let copied = match begun {
        Ok(copied) => copied,
        Err(reason) => return held.line.send(refused(&reason)),
    };
    let decided = match held.line.send(copied.begun().into()) {
        Ok(()) => relay(registry, &held.line, (decoder, stream), &copied),
        Err(error) => Err(error),
    };
    let ended = match decided {
        Ok(CheckpointDecided { stops: true }) => registry.stop_copied(copied),
        Ok(CheckpointDecided { stops: false }) => registry.end_copy(copied, None),
        Err(error) => {
            let limit_s = copied.limit.as_secs();
            let _ = registry.end_copy(copied, Some(error.to_string()));
            if matches!(error, ConnectionError::Slow) {
                let text = format!(
                    "the session was not copied and stored within {limit_s} s; a longer --linger of the node, or a checkpoint \
                     without --stop first, leaves more time"
                );
                // The connection ends, whether this arrives or not.
                let _ = held.line.send(refused(&text));
            }
            return Err(error);
        }
    };
    held.line.send(ended.map_or_else(|refusal| refused(&refusal.to_string()), Control::from))
}

/// Passes on what either side says, up to the decision.
fn relay(
    registry: &Registry,
    line: &Line,
    (decoder, stream): (&mut FrameDecoder, &Stream),
    copied: &Copied,
) -> Result<CheckpointDecided, ConnectionError> {
    let until = Instant::now() + copied.limit;
    copied.worker.set_write_timeout(Some(PUSH_LIMIT))?;
    let is_decided = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The other side finds the connection at its end, and so does the thread beside this.
            if pass_on(&copied.worker, line).is_err() {
                line.shut_down();
            } else if !is_decided.load(SeqCst) {
                let reason = registry.why_copy_ends(copied.session());
                let _ = line.send(refused(&reason));
            }
        });
        let decided = hear(stream, decoder, &copied.worker, until);
        is_decided.store(true, SeqCst);
        // Ends the thread.
        let _ = copied.worker.shutdown(std::net::Shutdown::Both);
        decided
    })
}

/// What the worker says, to its end.
fn pass_on(mut worker: &UnixStream, line: &Line) -> Result<(), ConnectionError> {
    let mut buffer = vec![0; PIECE];
    loop {
        match worker.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => line.send(MovePiece { bytes: buffer[..count].to_vec() }.into())?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Ok(()),
        }
    }
}

/// What the keeper of the copy says, up to its decision.
fn hear(
    stream: &Stream,
    decoder: &mut FrameDecoder,
    mut worker: &UnixStream,
    until: Instant,
) -> Result<CheckpointDecided, ConnectionError> {
    loop {
        while let Some(frame) = decoder.next_frame()? {
            if frame.header.kind != Kind::Control {
                return Err(WireError::FrameKind(frame.header.kind as u8).into());
            }
            match Control::decode(frame.header.op, frame.payload)? {
                Control::MovePiece(piece) => match worker.write_all(&piece.bytes) {
                    Err(error) if is_timeout(&error) => return Err(ConnectionError::Slow),
                    // One that has ended: the thread beside this says why.
                    Ok(()) | Err(_) => {}
                },
                Control::CheckpointDecided(decided) => return Ok(decided),
                _ => return Err(ConnectionError::Refused("it sent something else than hashes".into())),
            }
        }
        let missing = decoder.missing()?;
        if missing > MESSAGE_MAX {
            let text = format!("a message for a worker has {missing} bytes, more than {MESSAGE_MAX}");
            return Err(ConnectionError::Refused(text));
        }
        limit_read(stream, until).map_err(|_| ConnectionError::Slow)?;
        match stream.read(decoder.space(missing.max(4096)), Wait::Asleep) {
            Ok(0) => return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into()),
            Ok(got) => decoder.received(got),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if is_timeout(&error) => return Err(ConnectionError::Slow),
            Err(error) => return Err(error.into()),
        }
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

impl HeldLease<'_> {
    /// Why its peer may not have a copy of a session, or may not yet.
    fn is_kept_from_copying(&mut self) -> Option<Control> {
        if !self.rights.may_ask {
            return Some(refused(if self.line.stream.is_unix() { NO_LEASES_HERE } else { NO_CERTIFICATE }));
        }
        if !matches!(self.token, Token::Unasked | Token::Shown) {
            return Some(self.want_token());
        }
        None
    }
}
