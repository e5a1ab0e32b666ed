//! TLS where it is spoken, and the `Hello` that each connection begins with.

use std::io;
use std::io::Write;
use std::time::{Duration, Instant};

use sluice_transport::Stream;
use sluice_transport::tls::TlsError;
use sluice_wire::WireError;
use sluice_wire::address::Fingerprint;
use sluice_wire::control::{Control, Refused};
use sluice_wire::handshake::{HELLO_SIZE_MAX, Hello, Welcome};
use sluice_wire::spin::Wait;

use super::{ANSWER_PATIENCE, ConnectionError, Door, limit_read};

/// How a handshake of TLS begins: the type of its record, and a version of which this half never
/// changes (RFC 8446, section 5.1).
const TLS_HANDSHAKE: [u8; 2] = [22, 3];

/// How a connection is protected.
pub(super) struct Protected {
    /// The peer may ask for leases.
    pub(super) may_ask: bool,
    /// The node's certificate, as the peer has seen it.
    pub(super) shown: Option<Fingerprint>,
}

/// Shakes hands, if the address is one for TLS.
pub(super) fn protect(
    stream: &mut Stream,
    door: &Door,
    deadline: Instant,
) -> Result<Protected, ConnectionError> {
    let identity = match door {
        Door::Plain => return Ok(Protected { may_ask: true, shown: None }),
        Door::Sessions => return Ok(Protected { may_ask: false, shown: None }),
        Door::Tls(identity) => identity,
    };
    match stream.accept_tls(identity, deadline) {
        Ok((may_ask, shown)) => Ok(Protected { may_ask, shown: Some(shown) }),
        Err(error) => {
            if let Some(TlsError::PlainText) = TlsError::of(&error) {
                refuse_plain_text(stream, deadline);
            }
            Err(error.into())
        }
    }
}

/// Tells a client of Sluice what is wrong, in words that it understands.
fn refuse_plain_text(stream: &Stream, deadline: Instant) {
    // Not which fingerprint: in plain text any host could say this.
    let reason = "this node speaks TLS; write its fingerprint behind the address, as `sluice node` prints it there, or say \
                  tls:HOST:PORT with its authority in SLUICE_TLS_CA";
    let mut bytes = Welcome::to_bytes();
    if Control::from(Refused { reason: reason.into() }).frame(&mut bytes).is_ok() {
        say_last(stream, &bytes, deadline);
    }
}

/// Sends these bytes, and waits until the peer has hung up: a socket that is closed with bytes
/// unread takes the answer along.
fn say_last(mut stream: &Stream, bytes: &[u8], deadline: Instant) {
    if stream.write_all(bytes).is_ok() {
        stream.shut_down_writes();
        let mut rest = [0; 256];
        while limit_read(stream, deadline).is_ok()
            && stream.read(&mut rest, Wait::Asleep).is_ok_and(|count| count > 0)
        {}
    }
}

/// Reads the `Hello` and answers it, whatever version it is of.
pub(super) fn greet(mut stream: &Stream, deadline: Instant) -> Result<Hello, ConnectionError> {
    stream.set_write_limit(ANSWER_PATIENCE)?;
    let hello = read_hello(stream, deadline);
    match hello {
        Err(
            ConnectionError::Wire(WireError::NotSluice) | ConnectionError::Io(_) | ConnectionError::Nothing,
        ) => {}
        // Who gets this in a handshake knows that it was not cut.
        Err(ConnectionError::Tls) => say_last(stream, &Welcome::to_bytes(), deadline),
        _ => stream.write_all(&Welcome::to_bytes())?,
    }
    stream.set_read_limit(Duration::ZERO)?;
    hello
}

/// Reads exactly the `Hello`: what follows it belongs to the worker.
fn read_hello(stream: &Stream, deadline: Instant) -> Result<Hello, ConnectionError> {
    let mut bytes = [0_u8; HELLO_SIZE_MAX];
    let mut have = 0;
    loop {
        if bytes[..have].starts_with(&TLS_HANDSHAKE) {
            return Err(ConnectionError::Tls);
        }
        if let Some((hello, _)) = Hello::from_bytes(&bytes[..have])? {
            return Ok(hello);
        }
        // The length first, then what it counts.
        let want = match bytes[..have].first_chunk() {
            None => 2,
            Some(length) => 2 + usize::from(u16::from_le_bytes(*length)),
        };
        limit_read(stream, deadline)?;
        let Some(space) = bytes.get_mut(have..want) else { return Err(WireError::NotSluice.into()) };
        match stream.read(space, Wait::Asleep) {
            Ok(0) if have == 0 => return Err(ConnectionError::Nothing),
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(got) => have += got,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Err(ConnectionError::Silent);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}
