//! A stream through shared memory: a ring each way, a bell for each side, and a socket that tells
//! when the peer is gone.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_wire::spin::{Spin, Wait};

use crate::bell::{Bell, Event};
use crate::ring::{RING_BYTES, Reader, Writer};
use crate::rings::{Rings, Side};
use crate::socket::Socket;

/// Longest sleep on the futex without a check of the socket: a peer that is killed rings no bell.
const LOOK_AT_PEER: Duration = Duration::from_millis(100);

/// Time after which a sleeping reader sleeps on the socket: it wakes a few microseconds later, and
/// for nothing else.
const IDLE: Duration = Duration::from_secs(1);

/// Bytes that a writer shows at a time, so that the reader copies the first while the rest is
/// written.
const PUBLISH_BYTES: usize = 128 << 10;

/// One end. A thread that reads keeps others from reading, and one that writes others from writing.
#[derive(Debug)]
pub(crate) struct Shared {
    // Before the memory that they point to.
    reader: Mutex<Reader>,
    writer: Mutex<Writer>,
    memory: Rings,
    side: Side,
    /// How a writer waits for room.
    spin: Spin,
    /// How long a read sleeps, in milliseconds.
    read_limit_ms: AtomicU64,
    /// The one thread that sleeps on the socket, since it takes the bytes that wake it.
    on_socket: Mutex<()>,
    /// The peer is gone, or this side has shut down.
    ended: AtomicBool,
}

impl Shared {
    /// At most once per mapping.
    pub(crate) fn new(memory: Rings, side: Side, cores: usize) -> Shared {
        // SAFETY: the memory goes where the rings go, and is dropped after them. Each mapping comes
        // here once, by value.
        let (out, back) = unsafe { memory.ends(side) };
        Shared {
            reader: Mutex::new(Reader::new(back)),
            writer: Mutex::new(Writer::new(out)),
            memory,
            side,
            spin: Spin::new(cores),
            read_limit_ms: AtomicU64::new(u64::MAX),
            on_socket: Mutex::new(()),
            ended: AtomicBool::new(false),
        }
    }

    /// As [`crate::Stream::set_read_limit`].
    pub(crate) fn set_read_limit(&self, limit: Duration) {
        // As on sockets, where zero is no limit.
        let limit_ms =
            Some(limit).filter(|limit| !limit.is_zero()).map_or(u64::MAX, |limit| limit.as_millis() as u64);
        self.read_limit_ms.store(limit_ms, Ordering::Relaxed);
    }

    /// As [`crate::Stream::read`].
    pub(crate) fn read(&self, socket: &Socket, into: &mut [u8], wait: Wait) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        self.read_by(socket, 1, wait, |reader| reader.read(into))
    }

    /// As [`crate::Stream::read_in_place`].
    pub(crate) fn read_in_place(
        &self,
        socket: &Socket,
        (least, limit): (usize, usize),
        wait: Wait,
        mut take: impl FnMut(*const u8, usize),
    ) -> io::Result<usize> {
        let least = least.min(RING_BYTES / 2);
        self.read_by(socket, least, wait, |reader| reader.read_in_place(limit, &mut take))
    }

    fn read_by(
        &self,
        socket: &Socket,
        least: usize,
        wait: Wait,
        mut read: impl FnMut(&mut Reader) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            // What was written before the end is there by then.
            let ended = self.has_ended();
            let mut reader = self.reader();
            let filled = reader.filled()?;
            let count = if filled >= least || ended { read(&mut reader)? } else { 0 };
            drop(reader);
            if count > 0 {
                // A writer that waits finds a good part of the ring free, and not one read's worth
                // each time.
                if RING_BYTES - filled + count >= RING_BYTES / 2 {
                    self.theirs().room_came(socket);
                }
                return Ok(count);
            }
            match wait {
                _ if ended => return Ok(0),
                Wait::No => return Err(io::ErrorKind::WouldBlock.into()),
                Wait::Asleep => {
                    let limit = Duration::from_millis(self.read_limit_ms.load(Ordering::Relaxed));
                    if !self.sleep(socket, Event::Bytes(least), limit)? {
                        return Err(io::ErrorKind::WouldBlock.into());
                    }
                }
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
        loop {
            match self.write_now(socket, parts) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && wait == Wait::Asleep => {
                    self.wait_writable(socket, false, Duration::MAX)?;
                }
                done => return done,
            }
        }
    }

    fn write_now(&self, socket: &Socket, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.has_ended() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut writer = self.writer();
        let mut count = 0;
        for piece in parts.iter().flat_map(|part| part.chunks(PUBLISH_BYTES)) {
            let written = writer.write(piece)?;
            count += written;
            self.theirs().bytes_came(socket);
            if written < piece.len() {
                break;
            }
        }
        drop(writer);
        if count == 0 && parts.iter().any(|part| !part.is_empty()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(count)
    }

    /// As [`crate::Stream::write_in_place`].
    pub(crate) fn write_in_place<E>(
        &self,
        socket: &Socket,
        head: &[u8],
        count: usize,
        fill: impl FnOnce(*mut u8) -> Result<(), E>,
    ) -> io::Result<Option<Result<(), E>>> {
        if self.has_ended() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let written = self.writer().write_in_place(head, count, fill)?;
        if let Some(Ok(())) = written {
            self.theirs().bytes_came(socket);
        }
        Ok(written)
    }

    /// Waits for bytes or the end.
    pub(crate) fn wait_readable(&self, socket: &Socket, limit: Duration) -> io::Result<bool> {
        self.sleep(socket, Event::Bytes(1), limit)
    }

    /// Waits for room or the end, or also for bytes.
    pub(crate) fn wait_writable(
        &self,
        socket: &Socket,
        or_readable: bool,
        limit: Duration,
    ) -> io::Result<()> {
        let event = if or_readable { Event::BytesOrRoom } else { Event::Room(1) };
        self.wait(socket, event, limit)
    }

    /// As [`crate::Stream::wait_room`].
    pub(crate) fn wait_room(&self, socket: &Socket, bytes: usize) -> io::Result<()> {
        self.wait(socket, Event::Room(bytes.min(RING_BYTES / 2)), Duration::MAX)
    }

    fn wait(&self, socket: &Socket, event: Event, limit: Duration) -> io::Result<()> {
        let once = |wait| match wait {
            Wait::No if !self.has_come(event)? => Err(io::ErrorKind::WouldBlock.into()),
            Wait::No => Ok(0),
            Wait::Asleep => self.sleep(socket, event, limit).map(usize::from),
        };
        self.spin.read(once).map(drop)
    }

    /// Wakes all sleepers on both sides.
    pub(crate) fn shut_down(&self) {
        self.ended.store(true, Ordering::Release);
        let (ours, theirs) = self.memory.bells(self.side);
        ours.ring();
        theirs.ring();
    }

    /// Sleeps until `event` or the end has come (true) or `limit` is over (false).
    fn sleep(&self, socket: &Socket, event: Event, limit: Duration) -> io::Result<bool> {
        let begin = Instant::now();
        let ours = self.memory.bells(self.side).0;
        loop {
            // Who waits for room has work to do: only readers become idle.
            let is_idle = matches!(event, Event::Bytes(_)) && begin.elapsed() >= IDLE;
            let on_socket = is_idle.then(|| self.on_socket.try_lock().ok()).flatten();
            if on_socket.is_some() {
                ours.about_to_sleep_on_socket();
            }
            let rung = ours.about_to_sleep(event);
            if self.has_come(event)? || self.has_ended() {
                return Ok(true);
            }
            let left = limit.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            match on_socket {
                Some(_) => {
                    socket.poll(libc::POLLIN, left)?;
                    take_rings(socket);
                }
                None => ours.sleep(rung, left.min(LOOK_AT_PEER)),
            }
            if !self.has_come(event)? && socket.has_ended() {
                self.ended.store(true, Ordering::Release);
            }
        }
    }

    fn has_come(&self, event: Event) -> io::Result<bool> {
        let bytes = |least| Ok::<_, io::Error>(self.reader().filled()? >= least);
        let room = |least| Ok::<_, io::Error>(self.writer().room()? >= least);
        match event {
            Event::Bytes(least) => bytes(least),
            Event::Room(least) => room(least),
            Event::BytesOrRoom => Ok(bytes(1)? || room(1)?),
        }
    }

    #[cfg(test)]
    pub(crate) fn sleeps_on_socket(&self) -> bool {
        self.on_socket.try_lock().is_err()
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn theirs(&self) -> &Bell {
        self.memory.bells(self.side).1
    }

    fn reader(&self) -> MutexGuard<'_, Reader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the bytes that rang: nothing else comes through the socket any more. No more than a bell
/// can have sent by mistake, so that a peer that sends without end does not keep us here.
fn take_rings(socket: &Socket) {
    let _ = socket.read(&mut [0; 64], Wait::No);
}
