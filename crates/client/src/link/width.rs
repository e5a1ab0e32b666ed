//! How many connections a session goes over.
//!
//! It begins with one. On a far link one connection may hold less than the link does, so once a session copies much it goes
//! on over several (`sluice_transport`'s stripes): what is under way is waited for, the connection is given up, and the
//! next ones are made as after any cut. That costs a few round trips, once. Where several do not come through, one has to do.

use std::sync::atomic::Ordering;

use super::Link;

/// Copies of less than this do not count,
const LARGE: u64 = 64 << 10;
/// and so many bytes of large ones are worth the round trips.
const WORTH: u64 = 4 << 20;
/// No more attempts after so many in a row have failed.
const FAILURES_MAX: u8 = 3;

impl Link {
    /// A copy of so many bytes is about to begin.
    pub(super) fn widen_for(&self, bytes: u64) {
        let Some(resumption) = self.resumption.as_ref().filter(|resumption| resumption.stripes() > 1) else {
            return;
        };
        if bytes < LARGE || resumption.is_wide.load(Ordering::Relaxed) {
            return;
        }
        let before = self.copied.fetch_add(bytes, Ordering::Relaxed);
        let is_worth_it = before < WORTH && before + bytes >= WORTH;
        if is_worth_it && resumption.failures.load(Ordering::Relaxed) < FAILURES_MAX {
            resumption.widens.store(true, Ordering::Relaxed);
            self.widen();
        }
    }

    /// Gives the connection up when the worker has everything that was sent.
    fn widen(&self) {
        let end = {
            let mut outbox = self.outbox();
            self.confirm(&mut outbox, true);
            self.flush(&mut outbox);
            outbox.buffer.end()
        };
        let has_come = || self.acknowledged.load(Ordering::Acquire) >= end || self.is_cut() || self.is_lost();
        // An error is the session's, and the copy will meet it.
        let _ = self.wait_until(|_| has_come().then_some(()));
        let outbox = self.outbox();
        if !self.is_cut() && !self.is_lost() && self.check().is_ok() {
            self.part(&outbox.stream, &"several connections are to take its place");
        }
    }
}
