//! A peer that has the keys and sends what it likes, for the fuzz target of records.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use super::*;

/// More would not fit into a socket at once.
const SCRIPT_MAX: usize = 4 << 10;

/// The keys of two ends.
pub(super) fn keys(suite: Suite) -> (Keys, Keys) {
    let direction =
        |fill| DirectionKeys { key: vec![fill; suite.algorithm().key_len()], iv: [fill; 12], sequence: 0 };
    let ours = Keys { suite, send: direction(1), receive: direction(2) };
    let theirs = Keys { suite, send: direction(2), receive: direction(1) };
    (ours, theirs)
}

/// What the peer has sent, and what may come of it.
struct Sent {
    protection: Protection,
    wire: Vec<u8>,
    /// What an honest reader takes.
    content: Vec<u8>,
    /// It has said that no more will come, or what is no record.
    has_ended: bool,
    is_broken: bool,
}

impl Sent {
    /// Seals a record of these bytes, the last of which but zeros is its type, under a header that
    /// announces it; then flips a bit of it, or none.
    fn record(&mut self, inner: &[u8], zeros: usize, flipped: Option<usize>) {
        let start = self.wire.len();
        let length = inner.len() + zeros + TAG_BYTES;
        let [high, low] = (length as u16).to_be_bytes();
        self.wire.extend_from_slice(&[APPLICATION_DATA, 3, 3, high, low]);
        self.wire.extend_from_slice(inner);
        self.wire.resize(start + HEADER_BYTES + inner.len() + zeros, 0);
        let nonce = self.protection.next_nonce();
        let (header, sealed) = self.wire[start..].split_at_mut(HEADER_BYTES);
        let tag = self.protection.key.seal_in_place_separate_tag(nonce, Aad::from(&*header), sealed).unwrap();
        self.wire.extend_from_slice(tag.as_ref());
        if let Some(bit) = flipped {
            let bits = 8 * (self.wire.len() - start);
            self.wire[start + bit % bits / 8] ^= 1 << (bit % 8);
        }
        if self.has_ended || self.is_broken {
            return;
        }
        let content = inner.iter().rposition(|&byte| byte != 0).map(|at| (inner[at], &inner[..at]));
        match content {
            _ if flipped.is_some() => self.is_broken = true,
            Some((APPLICATION_DATA, content)) => self.content.extend_from_slice(content),
            Some((ALERT, [_, CLOSE_NOTIFY, ..])) => self.has_ended = true,
            _ => self.is_broken = true,
        }
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.wire.extend_from_slice(bytes);
        self.is_broken |= !bytes.is_empty() && !self.has_ended;
    }
}

/// Plays a script: a byte that says how the other end reads, then steps of a byte that says how,
/// one that counts, and that many bytes. What comes out is what was sealed, in order, up to the
/// first fault; and a fault is an error, never an end.
pub fn script(script: &[u8]) {
    let script = &script[..script.len().min(SCRIPT_MAX)];
    let Some((&how, mut steps)) = script.split_first() else { return };
    let suite = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::Chacha20Poly1305][usize::from(how) % 3];
    let (ours, theirs) = keys(suite);
    let mut sent = Sent {
        protection: Protection::new(suite, &theirs.send).unwrap(),
        wire: Vec::new(),
        content: Vec::new(),
        has_ended: false,
        is_broken: false,
    };
    while let Some((&[step, count], rest)) = steps.split_first_chunk() {
        let (said, rest) = rest.split_at(rest.len().min(count.into()));
        steps = rest;
        let data = || [said, &[APPLICATION_DATA]].concat();
        match step % 6 {
            0 => sent.raw(said),
            1 => sent.record(said, 0, None),
            2 => sent.record(&data(), usize::from(step) / 6, None),
            3 => sent.record(&data(), 0, Some(usize::from(step) * usize::from(count))),
            _ => sent.record(&data(), 0, None),
        }
    }
    let (mut wire, socket) = UnixStream::pair().unwrap();
    wire.write_all(&sent.wire).unwrap();
    wire.shutdown(Shutdown::Write).unwrap();
    let (came, end) = read_all(ours, &Socket::new(OwnedFd::from(socket)), how);
    // With an error may go what came in the same read: the peer will send it again.
    assert!(sent.content.starts_with(&came), "something came that was not sealed");
    assert_eq!(end.is_err(), sent.is_broken, "{end:?}");
    assert!(
        end.is_err() || came.len() == sent.content.len(),
        "{} bytes are missing",
        sent.content.len() - came.len()
    );
    // Nothing was said to the peer.
    assert_eq!(wire.read(&mut [0; 1]).unwrap_or(0), 0);
}

/// Reads to the end, or to the first error: in pieces, and by another reader from each record on,
/// as when a worker takes over.
fn read_all(keys: Keys, socket: &Socket, how: u8) -> (Vec<u8>, io::Result<()>) {
    let is_handed_on = how & 0x40 != 0;
    let mut records = Records::new(keys, is_handed_on).unwrap();
    let mut piece = [0; 300];
    let room = if how & 0x80 != 0 { piece.len() } else { 1 + usize::from(how & 15) };
    let mut came = Vec::new();
    loop {
        match records.read(socket, &mut piece[..room], Wait::Asleep) {
            Ok(0) => return (came, Ok(())),
            Ok(count) => came.extend_from_slice(&piece[..count]),
            Err(error) => return (came, Err(error)),
        }
        if is_handed_on && let Some(keys) = records.keys() {
            records = Records::new(keys, true).unwrap();
        }
    }
}
