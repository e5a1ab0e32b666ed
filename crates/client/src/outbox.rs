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

use std::time::{Duration, Instant};

/// A buffer of this many bytes goes out by itself.
const FLUSH_BYTES: usize = 64 << 10;
/// Commands queued sooner than this after a flush wait for company.
const FLUSH_AFTER: Duration = Duration::from_micros(100);

#[derive(Debug)]
pub(crate) struct Outbox {
    pub(crate) bytes: Vec<u8>,
    pub(crate) flushed_at: Instant,
}

impl Outbox {
    pub(crate) fn new() -> Self {
        Outbox { bytes: Vec::with_capacity(2 * FLUSH_BYTES), flushed_at: Instant::now() }
    }

    /// Whether a queued command should take the buffer's contents out with it.
    pub(crate) fn is_due(&self) -> bool {
        self.bytes.len() >= FLUSH_BYTES || self.flushed_at.elapsed() >= FLUSH_AFTER
    }

    /// After everything was written.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.flushed_at = Instant::now();
    }
}
