//! One stream of bytes over several connections.
//!
//! A far link carries as much as one connection may have under way, which the system bounds
//! (`tcp_wmem`, `tcp_rmem`), and a lossy one as much as one connection dares after each loss.
//! Several carry several times that.
//!
//! ```text
//!  stream:        | 0      chunk | 65536   chunk | 131072  chunk | ...
//!  connection 0:    [0, 65536] bytes ...
//!  connection 1:                    [65536, 65536] bytes ...
//!  connection 2:                                    [131072, 65536] bytes ...
//! ```
//!
//! The writer gives each chunk, with its place in the stream and its length before it, to a
//! connection that takes bytes now; where that takes a part only, the next chunk goes to another
//! meanwhile. The reader takes the chunk that is next from wherever it is; those that came early
//! wait in their sockets, so nothing is stored here and nothing is copied once more. On each
//! connection chunks come in the stream's order, so the one that is next is never behind another.
//! The end of one connection is the end of all.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_wire::spin::Wait;

use crate::connection::Connection;

/// Most connections of a stream.
pub const STRIPES_MAX: usize = 16;
/// Most bytes of a chunk: little enough that a connection that takes bytes at all takes it at once.
const CHUNK_MAX: usize = (64 << 10) - HEAD_BYTES;
/// What a connection takes before it can send it. A slow one with more of that would have bytes
/// that all others wait for.
pub(crate) const UNSENT_MAX: u32 = 2 * CHUNK_MAX as u32;
/// The chunk's place in the stream and its length, little-endian.
const HEAD_BYTES: usize = 12;
/// Parts of one write, beside the head.
const PARTS_MAX: usize = 16;

#[derive(Debug)]
pub(crate) struct Stripes {
    /// Beside the stream's own.
    others: Vec<Connection>,
    reading: Mutex<Reading>,
    writing: Mutex<Writing>,
    /// In milliseconds; zero is none.
    read_limit: AtomicU64,
    write_limit: AtomicU64,
}

#[derive(Debug)]
struct Reading {
    /// Of the next byte in the stream.
    position: u64,
    stripes: Vec<Arriving>,
}

/// What has come of a connection's next chunk.
#[derive(Clone, Debug, Default)]
struct Arriving {
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
    has_ended: bool,
}

#[derive(Debug)]
struct Writing {
    /// Everything before has been taken by a connection; here the writer's bytes begin.
    position: u64,
    /// Of the next chunk.
    end: u64,
    /// By connection: the chunk of which something is to be written yet.
    chunks: Vec<Option<Leaving>>,
    /// The connection that got the last chunk.
    last: usize,
    /// The last write has left bytes that no connection took.
    is_full: bool,
}

/// What a connection has not taken of its chunk.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    head: [u8; HEAD_BYTES],
    head_sent: usize,
    /// Of its next byte.
    position: u64,
    left: usize,
}

impl Arriving {
    /// Place and length of what is left of the chunk, once its head is there.
    fn chunk(&self) -> Option<(u64, usize)> {
        let (position, length) = self.head.split_first_chunk::<8>()?;
        let length = u32::from_le_bytes(length.try_into().ok()?);
        (self.head_bytes == HEAD_BYTES).then_some((u64::from_le_bytes(*position), length as usize))
    }

    /// Notes that this many bytes of the chunk have been read.
    fn advance(&mut self, (position, length): (u64, usize), count: usize) {
        if count == length {
            self.head_bytes = 0;
        } else {
            self.head = head(position + count as u64, length - count);
        }
    }
}

fn head(position: u64, length: usize) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(&position.to_le_bytes());
    head[8..].copy_from_slice(&(length as u32).to_le_bytes());
    head
}

impl Stripes {
    /// Both ends have the same connections, in the same order.
    pub(crate) fn new(others: Vec<Connection>) -> Stripes {
        let count = others.len() + 1;
        let (stripes, chunks) = (vec![Arriving::default(); count], vec![None; count]);
        Stripes {
            others,
            reading: Mutex::new(Reading { position: 0, stripes }),
            writing: Mutex::new(Writing { position: 0, end: 0, chunks, last: 0, is_full: false }),
            read_limit: AtomicU64::new(0),
            write_limit: AtomicU64::new(0),
        }
    }

    pub(crate) fn others(&self) -> &[Connection] {
        &self.others
    }

    fn at<'a>(&'a self, own: &'a Connection, stripe: usize) -> &'a Connection {
        stripe.checked_sub(1).map_or(own, |other| &self.others[other])
    }

    pub(crate) fn set_read_limit(&self, limit: Duration) {
        self.read_limit.store(limit.as_millis() as u64, Ordering::Relaxed);
    }

    pub(crate) fn set_write_limit(&self, limit: Duration) {
        self.write_limit.store(limit.as_millis() as u64, Ordering::Relaxed);
    }

    /// As [`crate::Stream::read`].
    pub(crate) fn read(&self, own: &Connection, into: &mut [u8], wait: Wait) -> io::Result<usize> {
        let mut reading = locked(&self.reading);
        loop {
            let Some((stripe, chunk)) = reading.next_chunk() else {
                let limit = waiting_time(wait, &self.read_limit);
                if !self.read_heads(own, &mut reading, limit)? {
                    return Ok(0);
                }
                continue;
            };
            let connection = self.at(own, stripe);
            let most = chunk.1.min(into.len());
            match connection.read(&mut into[..most], Wait::No) {
                Ok(count) => {
                    reading.position += count as u64;
                    reading.stripes[stripe].advance(chunk, count);
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && wait == Wait::Asleep => {
                    let limit = waiting_time(wait, &self.read_limit);
                    if poll(&[(connection, libc::POLLIN)], limit)? == 0 {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads what there is of the heads of chunks, or waits for that; false once a connection has
    /// ended and nothing more comes before that end.
    fn read_heads(&self, own: &Connection, reading: &mut Reading, limit: Duration) -> io::Result<bool> {
        let is_behind =
            |stripe: &Arriving| stripe.chunk().is_some_and(|(position, _)| position < reading.position);
        if reading.stripes.iter().any(is_behind) {
            return Err(nonsense("the same bytes on two connections"));
        }
        if reading.stripes.iter().all(|stripe| stripe.chunk().is_some()) {
            return Err(nonsense("no connection has the bytes that are next"));
        }
        let has_ended = reading.stripes.iter().any(|stripe| stripe.has_ended);
        let ready = self.ready_to_read(own, reading, if has_ended { Duration::ZERO } else { limit })?;
        for &stripe in &ready {
            let arriving = &mut reading.stripes[stripe];
            match self.at(own, stripe).read(&mut arriving.head[arriving.head_bytes..], Wait::No) {
                Ok(0) => arriving.has_ended = true,
                Ok(count) => arriving.head_bytes += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if arriving.chunk().is_some_and(|(_, length)| length == 0 || length > CHUNK_MAX) {
                return Err(nonsense("a chunk of another length than there can be"));
            }
        }
        match ready.is_empty() {
            false => Ok(true),
            true if has_ended => Ok(false),
            true => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// The connections on which the head of a chunk is to come, and something has.
    fn ready_to_read(&self, own: &Connection, reading: &Reading, limit: Duration) -> io::Result<Vec<usize>> {
        let waits = |stripe: &Arriving| stripe.chunk().is_none() && !stripe.has_ended;
        let stripes: Vec<usize> =
            (0..reading.stripes.len()).filter(|&stripe| waits(&reading.stripes[stripe])).collect();
        let unread: Vec<usize> =
            stripes.iter().copied().filter(|&stripe| self.at(own, stripe).has_unread()).collect();
        if !unread.is_empty() {
            return Ok(unread);
        }
        let connections = stripes.iter().map(|&stripe| (self.at(own, stripe), libc::POLLIN));
        let ready = poll(&connections.collect::<Vec<_>>(), limit)?;
        Ok(stripes.iter().enumerate().filter(|(nth, _)| ready & 1 << nth != 0).map(|(_, &of)| of).collect())
    }

    /// As [`crate::Stream::write_vectored`]. Connections may have taken bytes behind those that
    /// count as written: a caller that comes again with these finds that done.
    pub(crate) fn write_vectored(
        &self,
        own: &Connection,
        parts: &[IoSlice<'_>],
        wait: Wait,
    ) -> io::Result<usize> {
        let mut writing = locked(&self.writing);
        let given: usize = parts.iter().map(|part| part.len()).sum();
        if given == 0 {
            return Ok(0);
        }
        let mut limit = Duration::ZERO;
        loop {
            let stripes = writing.stripes_to_write(given);
            let waits: Vec<_> = stripes.iter().map(|&stripe| (self.at(own, stripe), libc::POLLOUT)).collect();
            let ready = poll(&waits, limit)?;
            let (mut written, mut failure) = (0, None);
            for (_, &stripe) in stripes.iter().enumerate().filter(|(nth, _)| ready & 1 << nth != 0) {
                match self.write_chunk(own, &mut writing, stripe, parts) {
                    Ok(count) => written += count,
                    Err(error) => failure = Some(error),
                }
            }
            // Also after a failure, which comes again: the peer may get what the others have taken.
            let taken = writing.settle();
            if taken > 0 {
                return Ok(taken);
            }
            if let Some(error) = failure {
                return Err(error);
            }
            if written == 0 && (wait == Wait::No || (limit > Duration::ZERO && ready == 0)) {
                writing.is_full = writing.end < writing.position + given as u64;
                return Err(io::ErrorKind::WouldBlock.into());
            }
            if written == 0 && ready != 0 {
                // Some of what is sealed has gone, or the system is short of memory for sockets.
                std::thread::sleep(Duration::from_micros(100));
            }
            limit = if written == 0 { waiting_time(wait, &self.write_limit) } else { Duration::ZERO };
        }
    }

    /// Writes what this connection takes of its chunk, or of the next; returns the bytes written.
    fn write_chunk(
        &self,
        own: &Connection,
        writing: &mut Writing,
        stripe: usize,
        parts: &[IoSlice<'_>],
    ) -> io::Result<usize> {
        let given: usize = parts.iter().map(|part| part.len()).sum();
        let mut chunk = match writing.chunks[stripe] {
            Some(chunk) => chunk,
            None => {
                let behind = (writing.end - writing.position) as usize;
                let left = given.saturating_sub(behind).min(CHUNK_MAX);
                if left == 0 {
                    return Ok(0);
                }
                let position = writing.end;
                writing.end += left as u64;
                writing.last = stripe;
                Leaving { head: head(position, left), head_sent: 0, position, left }
            }
        };
        let offset = (chunk.position - writing.position) as usize;
        let written = write_some(self.at(own, stripe), &chunk, parts, offset);
        chunk.advance(*written.as_ref().unwrap_or(&0));
        writing.chunks[stripe] = (chunk.left > 0).then_some(chunk);
        match written {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            written => written,
        }
    }

    /// As [`crate::Stream::wait_writable`].
    pub(crate) fn wait_writable(
        &self,
        own: &Connection,
        or_readable: bool,
        limit: Duration,
    ) -> io::Result<()> {
        let all = || (0..=self.others.len()).collect();
        let stripes: Vec<usize> =
            self.writing.try_lock().map_or_else(|_| all(), |writing| writing.stripes_with_room());
        let mut waits: Vec<_> =
            stripes.into_iter().map(|stripe| (self.at(own, stripe), libc::POLLOUT)).collect();
        // Who reads has the lock, and will see what comes.
        if or_readable && let Ok(reading) = self.reading.try_lock() {
            match self.reads_from(own, &reading) {
                Some(connections) => waits.extend(connections.map(|connection| (connection, libc::POLLIN))),
                None => return Ok(()),
            }
        }
        poll(&waits, limit).map(drop)
    }

    /// As [`crate::Stream::wait_readable`].
    pub(crate) fn wait_readable(&self, own: &Connection, limit: Duration) -> io::Result<bool> {
        let reading = locked(&self.reading);
        let Some(connections) = self.reads_from(own, &reading) else { return Ok(true) };
        let waits: Vec<_> = connections.map(|connection| (connection, libc::POLLIN)).collect();
        Ok(poll(&waits, limit)? != 0)
    }

    /// The connections that the next byte may come from; `None` if one of them has it already.
    fn reads_from<'a>(
        &'a self,
        own: &'a Connection,
        reading: &Reading,
    ) -> Option<impl Iterator<Item = &'a Connection>> {
        let stripes: Vec<usize> = match reading.next_chunk() {
            Some((stripe, _)) => vec![stripe],
            None => {
                let waits = |&stripe: &usize| reading.stripes[stripe].chunk().is_none();
                (0..reading.stripes.len()).filter(waits).collect()
            }
        };
        let is_ready =
            |&stripe: &usize| reading.stripes[stripe].has_ended || self.at(own, stripe).has_unread();
        let is_none_ready = !stripes.iter().any(is_ready);
        is_none_ready.then(|| stripes.into_iter().map(move |stripe| self.at(own, stripe)))
    }
}

impl Reading {
    /// The connection whose chunk is next, and what is left of that.
    fn next_chunk(&self) -> Option<(usize, (u64, usize))> {
        let chunks = self.stripes.iter().map(Arriving::chunk).enumerate();
        let mut known = chunks.filter_map(|(stripe, chunk)| Some((stripe, chunk?)));
        known.find(|(_, (position, _))| *position == self.position)
    }
}

impl Writing {
    /// The connections that have something to write, of this many available bytes: the next chunk
    /// goes to the first of them that takes bytes. Whole chunks go round. What is smaller stays
    /// where the last one went: spread over all, each connection would notice a loss by a timer
    /// only, and any that stalls would delay everything.
    fn stripes_to_write(&self, given: usize) -> Vec<usize> {
        let left = (self.position + given as u64).saturating_sub(self.end);
        let has_more = left > 0;
        let first = self.last + usize::from(left >= CHUNK_MAX as u64);
        let count = self.chunks.len();
        let order = (0..count).map(|nth| (first + nth) % count);
        order.filter(|&stripe| has_more || self.chunks[stripe].is_some()).collect()
    }

    /// The connections of which one has to take bytes before a write can continue.
    fn stripes_with_room(&self) -> Vec<usize> {
        let is_idle = self.chunks.iter().all(Option::is_none);
        let all = 0..self.chunks.len();
        all.filter(|&stripe| is_idle || self.is_full || self.chunks[stripe].is_some()).collect()
    }

    /// Counts what has been taken without a gap since the last time.
    fn settle(&mut self) -> usize {
        let unfinished = self.chunks.iter().flatten().map(|chunk| chunk.position);
        let position = unfinished.min().unwrap_or(self.end);
        let taken = (position - self.position) as usize;
        self.position = position;
        taken
    }
}

impl Leaving {
    /// Notes that the connection has taken this many more bytes.
    fn advance(&mut self, count: usize) {
        let of_head = count.min(HEAD_BYTES - self.head_sent);
        self.head_sent += of_head;
        self.left -= count - of_head;
        self.position += (count - of_head) as u64;
    }
}

/// Writes what the connection takes of the chunk, whose next byte is at `offset` of what `parts`
/// hold.
fn write_some(
    connection: &Connection,
    chunk: &Leaving,
    parts: &[IoSlice<'_>],
    mut offset: usize,
) -> io::Result<usize> {
    let mut all = [IoSlice::new(&[]); PARTS_MAX + 1];
    all[0] = IoSlice::new(&chunk.head[chunk.head_sent..]);
    let (mut count, mut room) = (1, chunk.left);
    for part in parts {
        let skipped = offset.min(part.len());
        offset -= skipped;
        let part = &part[skipped..];
        let part = part.get(..room).unwrap_or(part);
        room -= part.len();
        if !part.is_empty() && count < all.len() {
            all[count] = IoSlice::new(part);
            count += 1;
        }
    }
    let first = usize::from(all[0].is_empty());
    match first < count {
        true => connection.write_vectored(&all[first..count], Wait::No),
        // The rest of the chunk was not given this time.
        false => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// Which of the connections are ready, as bits; none after `limit`. One that has failed is ready.
fn poll(connections: &[(&Connection, i16)], limit: Duration) -> io::Result<u64> {
    let mut polled = [libc::pollfd { fd: -1, events: 0, revents: 0 }; 2 * STRIPES_MAX];
    let count = connections.len().min(polled.len());
    for (polled, (connection, events)) in polled.iter_mut().zip(connections) {
        (polled.fd, polled.events) = (connection.as_raw_fd(), *events);
    }
    let deadline = Instant::now().checked_add(limit);
    loop {
        let left = deadline.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        let left_ms = i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        // SAFETY: that many entries are there.
        if unsafe { libc::poll(polled.as_mut_ptr(), count as libc::nfds_t, left_ms) } >= 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    let bits = polled[..count].iter().enumerate().filter(|(_, polled)| polled.revents != 0);
    Ok(bits.fold(0, |bits, (nth, _)| bits | 1 << nth))
}

/// How long to wait, where zero of a limit is none.
fn waiting_time(wait: Wait, limit: &AtomicU64) -> Duration {
    match (wait, limit.load(Ordering::Relaxed)) {
        (Wait::No, _) => Duration::ZERO,
        (Wait::Asleep, 0) => Duration::MAX,
        (Wait::Asleep, limit_ms) => Duration::from_millis(limit_ms),
    }
}

/// A peer that sends this is treated as gone.
fn nonsense(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
