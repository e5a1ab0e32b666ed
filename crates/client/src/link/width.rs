//! How many connections a session goes over.
//!
//! It begins with one. On a far link one connection may hold less than the link does, so once a session copies much it goes
//! on over several (`sluice_transport`'s stripes): the connection is given up, and the next ones are made as after any cut, with
//! what was under way. That costs a few round trips, once. Where several do not come through, or do not last, one has to do.

use std::sync::atomic::Ordering;

use super::Link;

/// Copies of less than this do not count,
const LARGE: u64 = 64 << 10;
/// and so many bytes of large ones are worth the round trips.
const WORTH: u64 = 4 << 20;

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
        if is_worth_it && resumption.widen() {
            let outbox = self.outbox();
            // An error is the session's, and the copy will meet it.
            if !self.is_cut() && !self.is_lost() && self.check().is_ok() {
                self.part(&outbox.stream, &"several connections are to take its place");
            }
        }
    }
}
