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

use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_transport::Stream;
use sluice_wire::SendBuffer;
use sluice_wire::spin::Wait;

/// A buffer of this many bytes goes out by itself.
const FLUSH_BYTES: u64 = 64 << 10;
/// Commands queued sooner than this after a flush wait for company.
const FLUSH_AFTER: Duration = Duration::from_micros(100);
/// Most pieces that are handed to the stream at a time.
const PARTS: usize = 16;

pub(crate) struct Outbox {
    pub(crate) stream: Arc<Stream>,
    pub(crate) buffer: SendBuffer<Nothing>,
    pub(crate) flushed_at: Instant,
}

/// All that a client sends is copied when the call is made: the program may change its memory right after.
pub(crate) struct Nothing(Infallible);

impl AsRef<[u8]> for Nothing {
    fn as_ref(&self) -> &[u8] {
        match self.0 {}
    }
}

impl Outbox {
    /// Goes on after `sent` bytes; `resumes` says whether another stream may follow this one.
    pub(crate) fn new(stream: Arc<Stream>, sent: u64, resumes: bool) -> Self {
        Outbox { stream, buffer: SendBuffer::new(sent, resumes), flushed_at: Instant::now() }
    }

    /// Whether a queued command should take the buffer's contents out with it.
    pub(crate) fn is_due(&self) -> bool {
        self.buffer.unsent() >= FLUSH_BYTES || self.flushed_at.elapsed() >= FLUSH_AFTER
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
