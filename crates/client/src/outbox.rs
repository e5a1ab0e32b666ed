//! Commands on their way out: one buffer for all threads, whose lock is the order of the session.
//!
//! The buffer is flushed
//! - by every waiting call,
//! - when it holds [`FLUSH_BYTES`],
//! - by a queued command that comes [`FLUSH_AFTER`] or more after the last flush: the first command after a pause goes
//!   out at once, so that work starts, and a burst of launches costs one system call per 100 us.
//!
//! What is queued within 100 us of a flush and never followed by another call stays until the next one: a program that
//! wants its work done asks for it sooner or later, and no thread of ours wakes up to look.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_transport::Stream;
use sluice_wire::SendBuffer;
use sluice_wire::spin::Wait;

use crate::link::kept::{Keeper, Kept};

/// A buffer of this many bytes goes out by itself.
const FLUSH_BYTES: u64 = 64 << 10;
/// Commands queued sooner than this after a flush wait for company.
const FLUSH_AFTER: Duration = Duration::from_micros(100);
/// Most pieces that are handed to the stream at a time.
const PARTS: usize = 16;

pub(crate) struct Outbox {
    pub(crate) stream: Arc<Stream>,
    pub(crate) buffer: SendBuffer<Lent>,
    pub(crate) flushed_at: Instant,
    pub(crate) keeper: Keeper,
}

/// What is sent from where it lies. All else is copied to where it finds company: the program may change its memory right after a
/// call.
pub(crate) enum Lent {
    /// Memory of the program, while the call lasts that gives it (`link::Loan`).
    Program(ProgramMemory),
    /// A copy of large data.
    Kept(Kept),
}

pub(crate) struct ProgramMemory {
    start: *const u8,
    bytes: usize,
}

// SAFETY: plain memory, which any thread may read while it is lent.
unsafe impl Send for ProgramMemory {}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        match self {
            // SAFETY: `Outbox::lend` was promised that the memory stays until it is taken back.
            Lent::Program(memory) => unsafe { std::slice::from_raw_parts(memory.start, memory.bytes) },
            Lent::Kept(kept) => kept.bytes(),
        }
    }
}

impl Outbox {
    /// Goes on after `sent` bytes; `resumes` says whether another stream may follow this one.
    pub(crate) fn new(stream: Arc<Stream>, sent: u64, resumes: bool) -> Self {
        let buffer = SendBuffer::new(sent, resumes);
        Outbox { stream, buffer, flushed_at: Instant::now(), keeper: Keeper::default() }
    }

    /// Whether a queued command should take the buffer's contents out with it.
    pub(crate) fn is_due(&self) -> bool {
        self.buffer.unsent() >= FLUSH_BYTES || self.flushed_at.elapsed() >= FLUSH_AFTER
    }

    /// Adds memory of the caller's.
    ///
    /// # Safety
    /// Before the memory goes, the buffer holds it no more ([`SendBuffer::start`]).
    pub(crate) unsafe fn lend(&mut self, memory: &[u8]) {
        self.buffer.lend(Lent::Program(ProgramMemory { start: memory.as_ptr(), bytes: memory.len() }));
    }

    /// Writes as much as fits without waiting; nothing fitting is [`io::ErrorKind::WouldBlock`].
    pub(crate) fn write(&mut self) -> io::Result<()> {
        let mut parts = [IoSlice::new(&[]); PARTS];
        let count = self.buffer.next_parts(&mut parts);
        let written = self.stream.write_vectored(&parts[..count], Wait::No)?;
        self.buffer.sent(written);
        Ok(())
    }
}
