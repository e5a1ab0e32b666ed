//! Drives rustls to the end of its handshake over a socket, one record at a time: what follows
//! stays in the socket.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::Connection;
use rustls::crypto::{CryptoProvider, ring as provider};
use sluice_wire::spin::Wait;

use super::records::{HEADER_BYTES, Keys};
use super::{TlsError, io};
use crate::socket::Socket;

/// Most bytes behind a record's header, in any phase.
const RECORD_MAX: usize = (1 << 14) + 256;
/// Types of records in a handshake: change of cipher, alert, handshake, application data (RFC 8446,
/// section 5.1).
const TYPES: std::ops::RangeInclusive<u8> = 20..=23;

/// The fastest suite first; all three are strong.
pub(super) fn crypto() -> Arc<CryptoProvider> {
    use provider::cipher_suite::{
        TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
    };
    let cipher_suites =
        vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
    Arc::new(CryptoProvider { cipher_suites, ..provider::default_provider() })
}

/// Shakes hands. An error of rustls has been said to the peer.
pub(super) fn shake(connection: &mut Connection, socket: &Socket, deadline: Instant) -> io::Result<()> {
    while connection.is_handshaking() {
        write(connection, socket, deadline)?;
        let record = read_record(socket, deadline)?;
        connection.read_tls(&mut record.as_slice())?;
        if let Err(error) = connection.process_new_packets() {
            // An alert; should it not arrive, the end of the connection will.
            let _ = write(connection, socket, deadline);
            return Err(io(TlsError::Handshake(error)));
        }
    }
    write(connection, socket, deadline)
}

/// What protects the connection after the handshake.
pub(super) fn keys(connection: Connection) -> io::Result<Keys> {
    let secrets = connection.dangerous_extract_secrets().map_err(|error| io(TlsError::Handshake(error)))?;
    let unknown = || io(TlsError::Handshake(rustls::Error::General("an unknown cipher suite".into())));
    Keys::of(secrets).ok_or_else(unknown)
}

fn write(connection: &mut Connection, socket: &Socket, deadline: Instant) -> io::Result<()> {
    let mut bytes = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut bytes)?;
    }
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        match socket.write_vectored(&[IoSlice::new(rest)], Wait::No) {
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                socket.poll(libc::POLLOUT, left(deadline)?)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Exactly one record.
fn read_record(socket: &Socket, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut record = vec![0; HEADER_BYTES];
    read_exact(socket, &mut record, deadline)?;
    let length = usize::from(u16::from_be_bytes([record[3], record[4]]));
    // A length and the first bytes of a `Hello` or `Welcome` of this protocol.
    if &record[2..] == b"SLC" {
        return Err(io(TlsError::PlainText));
    }
    if !TYPES.contains(&record[0]) || record[1] != 3 || length > RECORD_MAX {
        return Err(io(TlsError::NoTls));
    }
    record.resize(HEADER_BYTES + length, 0);
    read_exact(socket, &mut record[HEADER_BYTES..], deadline)?;
    Ok(record)
}

fn read_exact(socket: &Socket, mut into: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !into.is_empty() {
        match socket.read(into, Wait::No) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => into = &mut into[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                socket.poll(libc::POLLIN, left(deadline)?)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Time left; an error once there is none.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    // A poll counts whole milliseconds.
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left.max(Duration::from_millis(1))) }
}
