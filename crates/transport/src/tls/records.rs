//! The record layer after the handshake (RFC 8446, section 5): each direction by itself.

use std::fmt;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use ring::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use rustls::{ConnectionTrafficSecrets, ExtractedSecrets};
use serde::{Deserialize, Serialize};
use sluice_wire::spin::Wait;

use crate::socket::Socket;

#[cfg(any(test, feature = "fuzz"))]
#[cfg_attr(not(feature = "fuzz"), expect(unreachable_pub, reason = "it is for the fuzz target"))]
pub mod malformed;

/// Type, version, length (RFC 8446, section 5.1).
pub(super) const HEADER_BYTES: usize = 5;
/// Most bytes of a record's content.
const CONTENT_MAX: usize = 1 << 14;
/// Most bytes behind the header: content, its type, padding and tag (RFC 8446, section 5.2).
const SEALED_MAX: usize = CONTENT_MAX + 256;
const TAG_BYTES: usize = 16;
const APPLICATION_DATA: u8 = 23;
const ALERT: u8 = 21;
const CLOSE_NOTIFY: u8 = 0;
/// Content that goes to the socket at a time: a few records, which fit the caches.
const BATCH_BYTES: usize = 4 * CONTENT_MAX;
/// What is taken from the socket at a time.
const RAW_BYTES: usize = 8 * (HEADER_BYTES + SEALED_MAX);
/// Blocks of 16 bytes that one key may seal: 2^24.5 full records of 2^10 blocks keep AES-GCM safe
/// (RFC 8446, section 5.5).
const BLOCKS_MAX: u64 = 1 << 34;

/// What protects a connection from here on; the same on both sides, with the directions exchanged.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keys {
    suite: Suite,
    send: DirectionKeys,
    receive: DirectionKeys,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DirectionKeys {
    key: Vec<u8>,
    iv: [u8; 12],
    /// Records before the next one.
    sequence: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Suite {
    Aes128Gcm,
    Aes256Gcm,
    Chacha20Poly1305,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({:?}, secret)", self.suite)
    }
}

impl Keys {
    /// `None` for a suite that was not offered.
    pub(super) fn of(secrets: ExtractedSecrets) -> Option<Keys> {
        let (suite, send) = direction(secrets.tx)?;
        let (_, receive) = direction(secrets.rx)?;
        Some(Keys { suite, send, receive })
    }
}

fn direction((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Option<(Suite, DirectionKeys)> {
    let (suite, key, iv) = match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Suite::Aes128Gcm, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Suite::Aes256Gcm, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (Suite::Chacha20Poly1305, key, iv),
        _ => return None,
    };
    // rustls keeps all keys in 32 bytes.
    let key = key.as_ref().get(..suite.algorithm().key_len())?.to_vec();
    Some((suite, DirectionKeys { key, iv: iv.as_ref().try_into().ok()?, sequence }))
}

impl Suite {
    fn algorithm(self) -> &'static Algorithm {
        match self {
            Suite::Aes128Gcm => &AES_128_GCM,
            Suite::Aes256Gcm => &AES_256_GCM,
            Suite::Chacha20Poly1305 => &CHACHA20_POLY1305,
        }
    }
}

/// Both directions of a connection.
#[derive(Debug)]
pub(crate) struct Records {
    sealer: Mutex<Sealer>,
    opener: Mutex<Opener>,
    keys: Keys,
}

impl Records {
    /// `one_at_a_time` takes no more from the socket than the record that is due, so that the next
    /// owner of the keys finds the rest there.
    pub(crate) fn new(keys: Keys, one_at_a_time: bool) -> io::Result<Records> {
        let protection = |direction: &DirectionKeys| Protection::new(keys.suite, direction);
        Ok(Records {
            sealer: Mutex::new(Sealer {
                protection: protection(&keys.send)?,
                sealed: Vec::new(),
                sent: 0,
                content: 0,
            }),
            opener: Mutex::new(Opener {
                protection: protection(&keys.receive)?,
                raw: Vec::new(),
                pending: 0..0,
                content: 0..0,
                has_ended: false,
                one_at_a_time,
            }),
            keys,
        })
    }

    /// As [`crate::Stream::read`]. A record that was not sealed by the peer is as good as a cut.
    pub(crate) fn read(&self, socket: &Socket, into: &mut [u8], wait: Wait) -> io::Result<usize> {
        let mut opener = locked(&self.opener);
        let mut count = 0;
        loop {
            count += opener.take(&mut into[count..]);
            if count == into.len() {
                return Ok(count);
            }
            if opener.open_next()? {
                continue;
            }
            if count > 0 || opener.has_ended {
                return Ok(count);
            }
            if opener.fill(socket, wait)? == 0 {
                let between = opener.pending.is_empty();
                return if between { Ok(0) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// As [`crate::Stream::write_vectored`].
    pub(crate) fn write_vectored(
        &self,
        socket: &Socket,
        parts: &[IoSlice<'_>],
        wait: Wait,
    ) -> io::Result<usize> {
        let mut sealer = locked(&self.sealer);
        if sealer.sealed.is_empty() {
            sealer.seal(parts)?;
        }
        while sealer.sent < sealer.sealed.len() {
            // Nothing counts as written before all of its records are: a record cannot be sealed
            // twice.
            sealer.sent += socket.write_vectored(&[IoSlice::new(&sealer.sealed[sealer.sent..])], wait)?;
        }
        sealer.sealed.clear();
        sealer.sent = 0;
        Ok(std::mem::take(&mut sealer.content))
    }

    /// From now on takes what there is.
    pub(crate) fn read_ahead(&self) {
        locked(&self.opener).one_at_a_time = false;
    }

    /// Whether there is something to read without the socket. Not while another thread reads.
    pub(crate) fn has_unread(&self) -> bool {
        match self.opener.try_lock() {
            Ok(opener) => opener.has_unread(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().has_unread(),
            Err(TryLockError::WouldBlock) => false,
        }
    }

    /// The keys as they are now. `None` while bytes are here that the next owner would miss.
    pub(crate) fn keys(&self) -> Option<Keys> {
        let (sealer, opener) = (locked(&self.sealer), locked(&self.opener));
        if !sealer.sealed.is_empty() || !opener.pending.is_empty() || !opener.content.is_empty() {
            return None;
        }
        let mut keys = self.keys.clone();
        keys.send.sequence = sealer.protection.sequence;
        keys.receive.sequence = opener.protection.sequence;
        Some(keys)
    }
}

/// A key and where it is used next.
#[derive(Debug)]
struct Protection {
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
    blocks_left: u64,
}

impl Protection {
    fn new(suite: Suite, direction: &DirectionKeys) -> io::Result<Protection> {
        let key = UnboundKey::new(suite.algorithm(), &direction.key)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a key has the wrong length"))?;
        let DirectionKeys { iv, sequence, .. } = *direction;
        Ok(Protection { key: LessSafeKey::new(key), iv, sequence, blocks_left: BLOCKS_MAX })
    }

    /// The nonce of the next record (RFC 8446, section 5.3), which comes once.
    fn next_nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, of_sequence) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= of_sequence;
        }
        // 2^64 records do not happen: the blocks are used up before.
        self.sequence += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

#[derive(Debug)]
struct Sealer {
    protection: Protection,
    /// Records in flight, how many bytes of them the socket has, and how many bytes of content they
    /// hold.
    sealed: Vec<u8>,
    sent: usize,
    content: usize,
}

impl Sealer {
    /// Makes records of a beginning of what `parts` hold.
    fn seal(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let mut parts = parts.iter().map(|part| &**part);
        let mut part = parts.next().unwrap_or_default();
        while self.content < BATCH_BYTES {
            let record = self.sealed.len();
            self.sealed.extend_from_slice(&[APPLICATION_DATA, 3, 3, 0, 0]);
            let mut room = CONTENT_MAX;
            while room > 0 {
                if part.is_empty() {
                    let Some(next) = parts.next() else { break };
                    part = next;
                    continue;
                }
                let (now, later) = part.split_at(part.len().min(room));
                self.sealed.extend_from_slice(now);
                (part, room) = (later, room - now.len());
            }
            let content = CONTENT_MAX - room;
            if content == 0 {
                self.sealed.truncate(record);
                return Ok(());
            }
            self.content += content;
            self.protect(record)?;
        }
        Ok(())
    }

    /// Seals the record that begins there, in place.
    fn protect(&mut self, record: usize) -> io::Result<()> {
        self.sealed.push(APPLICATION_DATA);
        let inner = record + HEADER_BYTES;
        let length = self.sealed.len() - inner + TAG_BYTES;
        let blocks = length.div_ceil(16) as u64;
        // A session continues on another connection, with keys of its own.
        let left = self.protection.blocks_left.checked_sub(blocks);
        self.protection.blocks_left =
            left.ok_or_else(|| broken("the connection's keys have protected enough"))?;
        self.sealed[inner - 2..inner].copy_from_slice(&(length as u16).to_be_bytes());
        let nonce = self.protection.next_nonce();
        let (header, content) = self.sealed[record..].split_at_mut(HEADER_BYTES);
        let tag = self.protection.key.seal_in_place_separate_tag(nonce, Aad::from(&*header), content);
        let tag = tag.map_err(|_| broken("a record cannot be sealed"))?;
        self.sealed.extend_from_slice(tag.as_ref());
        Ok(())
    }
}

#[derive(Debug)]
struct Opener {
    protection: Protection,
    /// Where bytes of the socket lie; made when the first are taken.
    raw: Vec<u8>,
    /// In `raw`: what is not opened yet, and what is opened and not read yet.
    pending: Range<usize>,
    content: Range<usize>,
    /// The peer has said that no more will come.
    has_ended: bool,
    one_at_a_time: bool,
}

impl Opener {
    /// Moves content that is there.
    fn take(&mut self, into: &mut [u8]) -> usize {
        let count = self.content.len().min(into.len());
        into[..count].copy_from_slice(&self.raw[self.content.start..self.content.start + count]);
        self.content.start += count;
        count
    }

    fn has_unread(&self) -> bool {
        !self.content.is_empty() || self.next_record().is_ok_and(|record| record.is_some())
    }

    /// Where the sealed part of the next record lies, once all of it is there.
    fn next_record(&self) -> io::Result<Option<Range<usize>>> {
        let Some(length) = self.next_length()? else { return Ok(None) };
        let start = self.pending.start + HEADER_BYTES;
        Ok((start + length <= self.pending.end).then_some(start..start + length))
    }

    /// Bytes of the next record behind its header, once that is there.
    fn next_length(&self) -> io::Result<Option<usize>> {
        let Some(header) = self.raw[self.pending.clone()].first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if header[0] != APPLICATION_DATA || !(TAG_BYTES + 1..=SEALED_MAX).contains(&length) {
            return Err(broken("what came is no record of TLS"));
        }
        Ok(Some(length))
    }

    /// Opens the next record, of which content may come or not; false if none is there.
    fn open_next(&mut self) -> io::Result<bool> {
        if self.has_ended || !self.content.is_empty() {
            return Ok(false);
        }
        let Some(sealed) = self.next_record()? else { return Ok(false) };
        let nonce = self.protection.next_nonce();
        let (before, rest) = self.raw.split_at_mut(sealed.start);
        let header = &before[self.pending.start..];
        let opened = self.protection.key.open_in_place(nonce, Aad::from(header), &mut rest[..sealed.len()]);
        let opened = opened.map_err(|_| broken("a record came that the peer did not seal"))?;
        self.pending.start = sealed.end;
        // Behind the content: its type, then zeros.
        let Some(length) = opened.iter().rposition(|&byte| byte != 0) else {
            return Err(broken("a record has no type"));
        };
        let end = sealed.start + length;
        match opened[length] {
            APPLICATION_DATA if length <= CONTENT_MAX => self.content = sealed.start..end,
            ALERT if opened[..length].get(1) == Some(&CLOSE_NOTIFY) => self.has_ended = true,
            ALERT => return Err(broken("the peer has ended the connection with an alert")),
            // Neither tickets nor updates of keys are made here.
            _ => return Err(broken("a record of an unexpected type")),
        }
        Ok(true)
    }

    /// Takes more from the socket; everything that was opened has been read.
    fn fill(&mut self, socket: &Socket, wait: Wait) -> io::Result<usize> {
        if self.raw.is_empty() {
            self.raw.resize(RAW_BYTES, 0);
        }
        // At most a part of one record.
        self.raw.copy_within(self.pending.clone(), 0);
        self.pending = 0..self.pending.len();
        let most =
            if self.one_at_a_time { HEADER_BYTES + self.next_length()?.unwrap_or(0) } else { RAW_BYTES };
        let count = socket.read(&mut self.raw[self.pending.end..most], wait)?;
        self.pending.end += count;
        Ok(count)
    }
}

/// An attacker who forges a record can also end the connection: the session treats both alike.
fn broken(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, why)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::malformed::keys;
    use super::*;

    struct End {
        records: Records,
        socket: Socket,
    }

    impl End {
        fn new(keys: Keys, socket: UnixStream) -> End {
            End { records: Records::new(keys, false).unwrap(), socket: Socket::new(OwnedFd::from(socket)) }
        }

        fn write(&self, bytes: &[u8], wait: Wait) -> io::Result<usize> {
            self.records.write_vectored(&self.socket, &[IoSlice::new(bytes)], wait)
        }

        fn write_all(&self, mut bytes: &[u8]) {
            while !bytes.is_empty() {
                bytes = &bytes[self.write(bytes, Wait::Asleep).unwrap()..];
            }
        }

        fn read(&self, into: &mut [u8], wait: Wait) -> io::Result<usize> {
            self.records.read(&self.socket, into, wait)
        }

        fn read_all(&self, count: usize, piece: usize) -> Vec<u8> {
            let mut bytes = vec![0; count];
            let mut have = 0;
            while have < count {
                let to = (have + piece).min(count);
                have += self.read(&mut bytes[have..to], Wait::Asleep).unwrap();
            }
            bytes
        }
    }

    fn pair(suite: Suite) -> (End, End) {
        let (ours, theirs) = keys(suite);
        let (a, b) = UnixStream::pair().unwrap();
        (End::new(ours, a), End::new(theirs, b))
    }

    fn noise(count: usize) -> Vec<u8> {
        (0..count).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    proptest! {
        #[test]
        fn what_a_peer_did_not_seal_is_no_content(script in proptest::collection::vec(any::<u8>(), 0..600)) {
            malformed::script(&script);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn bytes_come_out_as_they_went_in(sizes in proptest::collection::vec(0_usize..100_000, 1..4), piece in 1_usize..70_000) {
            for suite in [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::Chacha20Poly1305] {
                let (ours, theirs) = pair(suite);
                let bytes = noise(sizes.iter().sum());
                let mut rest = bytes.as_slice();
                let parts: Vec<&[u8]> = sizes.iter().map(|&size| { let (part, more) = rest.split_at(size); rest = more; part }).collect();
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let mut sent = 0;
                        while sent < bytes.len() {
                            let mut skip = sent;
                            let left: Vec<IoSlice<'_>> = parts.iter().map(|part| {
                                let cut = skip.min(part.len());
                                skip -= cut;
                                IoSlice::new(&part[cut..])
                            }).collect();
                            sent += ours.records.write_vectored(&ours.socket, &left, Wait::Asleep).unwrap();
                        }
                    });
                    assert!(theirs.read_all(bytes.len(), piece) == bytes);
                });
            }
        }
    }

    /// What a full socket did not take counts as unwritten until all of it is.
    #[test]
    fn a_write_is_repeated_until_it_counts() {
        let (ours, theirs) = pair(Suite::Aes128Gcm);
        let bytes = noise(3 << 20);
        let (mut sent, mut came, mut waits) = (0, Vec::new(), 0);
        while came.len() < bytes.len() {
            match ours.write(&bytes[sent..], Wait::No) {
                Ok(count) => sent += count,
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    waits += 1;
                }
            }
            let mut piece = [0; 10_000];
            if let Ok(count) = theirs.read(&mut piece, Wait::No) {
                came.extend_from_slice(&piece[..count]);
            }
        }
        assert!(waits > 0 && came == bytes);
    }

    #[test]
    fn a_waiting_writer_does_not_keep_the_reader_out() {
        let (ours, theirs) = pair(Suite::Aes128Gcm);
        let bytes = noise(8 << 20);
        std::thread::scope(|scope| {
            scope.spawn(|| ours.write_all(&bytes));
            scope.spawn(|| theirs.write_all(&bytes));
            scope.spawn(|| assert!(ours.read_all(bytes.len(), 1 << 20) == bytes));
            scope.spawn(|| assert!(theirs.read_all(bytes.len(), 1 << 20) == bytes));
        });
    }

    #[test]
    fn a_changed_byte_ends_the_connection() {
        use std::io::{Read, Write};
        for changed in [0, 1, 4, 5, 20, 30] {
            let (ours, theirs) = keys(Suite::Aes128Gcm);
            let (a, mut wire) = UnixStream::pair().unwrap();
            let (mut wire_on, b) = UnixStream::pair().unwrap();
            let (ours, theirs) = (End::new(ours, a), End::new(theirs, b));
            ours.write_all(b"launch the kernel");
            let mut record = [0; HEADER_BYTES + 17 + 1 + TAG_BYTES];
            wire.read_exact(&mut record).unwrap();
            record[changed] ^= 1;
            wire_on.write_all(&record).unwrap();
            drop(wire_on);
            assert!(theirs.read(&mut [0; 64], Wait::Asleep).is_err(), "byte {changed}");
        }
    }

    #[test]
    fn an_end_between_records_is_one_and_within_a_record_is_not() {
        use std::io::{Read, Write};
        let (ours, theirs) = keys(Suite::Aes128Gcm);
        let (a, mut wire) = UnixStream::pair().unwrap();
        End::new(ours, a).write_all(b"abc");
        let mut record = Vec::new();
        wire.read_to_end(&mut record).unwrap();
        for (cut, ends_well) in [(record.len(), true), (record.len() - 1, false), (2, false)] {
            let (mut wire_on, b) = UnixStream::pair().unwrap();
            let theirs = End::new(theirs.clone(), b);
            wire_on.write_all(&record[..cut]).unwrap();
            drop(wire_on);
            let mut bytes = [0; 8];
            if ends_well {
                assert_eq!(theirs.read(&mut bytes, Wait::Asleep).unwrap(), 3);
            }
            assert_eq!(theirs.read(&mut bytes, Wait::Asleep).ok(), ends_well.then_some(0), "{cut} bytes");
        }
    }

    #[test]
    fn keys_that_have_protected_enough_are_used_no_more() {
        let (ours, _theirs) = pair(Suite::Aes128Gcm);
        locked(&ours.records.sealer).protection.blocks_left = 4;
        assert_eq!(ours.write(&[1; 20], Wait::Asleep).unwrap(), 20);
        assert_eq!(ours.write(&[1; 20], Wait::Asleep).unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    }

    #[test]
    fn keys_are_handed_on_between_records() {
        let (ours, theirs) = keys(Suite::Chacha20Poly1305);
        let (a, b) = UnixStream::pair().unwrap();
        let ours = End::new(ours, a);
        let daemon = End {
            records: Records::new(theirs, true).unwrap(),
            socket: Socket::new(OwnedFd::from(b.try_clone().unwrap())),
        };
        ours.write_all(b"hello");
        ours.write_all(b"and more");
        let mut bytes = [0; 64];
        assert_eq!(daemon.read(&mut bytes[..2], Wait::Asleep).unwrap(), 2);
        assert!(daemon.records.keys().is_none(), "the rest of the record would be lost");
        assert_eq!(daemon.read(&mut bytes[..3], Wait::Asleep).unwrap(), 3);
        daemon.write_all(b"welcome");
        let worker = End::new(daemon.records.keys().expect("nothing is left"), b);
        assert_eq!(worker.read(&mut bytes, Wait::Asleep).unwrap(), 8);
        worker.write_all(b"yes");
        assert_eq!(ours.read_all(10, 64), b"welcomeyes");
    }

    #[test]
    fn keys_stay_out_of_logs() {
        assert_eq!(format!("{:?}", keys(Suite::Aes128Gcm).0), "Keys(Aes128Gcm, secret)");
    }
}
