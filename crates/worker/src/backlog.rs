//! Whether a device has finished everything that was queued on it.
//!
//! Then a synchronisation returns at once, and the thread that reads the client's commands may make it itself. Only
//! commands that nobody waits for can leave something behind, and one thread at a time executes those.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Counts of queued commands of one device.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// Those whose driver call has begun, and has returned.
    begun: AtomicU64,
    returned: AtomicU64,
    /// Those that have been finished by the device, as far as is known.
    finished: AtomicU64,
    /// The last one behind which its stream may be kept from going on, by its number.
    holds: AtomicU64,
}

/// Everything whose driver call had returned at some moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(u64);

/// Held around the driver call of a queued command.
pub(crate) struct Call<'a>(&'a Backlog);

impl Backlog {
    pub(crate) fn call(&self) -> Call<'_> {
        self.begun.fetch_add(1, SeqCst);
        Call(self)
    }

    /// Take it before waiting for the device.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.returned.load(SeqCst))
    }

    /// The device has been waited for since the mark was taken, in all its streams.
    pub(crate) fn finished(&self, mark: Mark) {
        self.finished.fetch_max(mark.0, SeqCst);
    }

    /// The call that has begun last may keep its stream from going on: it is no work, but something to wait for.
    pub(crate) fn holds(&self) {
        self.holds.fetch_max(self.begun.load(SeqCst), SeqCst);
    }

    /// Whether what may keep a stream from going on is known to be over.
    pub(crate) fn holds_nothing(&self) -> bool {
        self.finished.load(SeqCst) >= self.holds.load(SeqCst)
    }

    pub(crate) fn is_empty(&self) -> bool {
        // What has begun later was not there when this was asked.
        let begun = self.begun.load(SeqCst);
        self.finished.load(SeqCst) >= begun
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.returned.fetch_add(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_once_everything_that_began_has_been_waited_for() {
        let backlog = Backlog::default();
        assert!(backlog.is_empty());
        let call = backlog.call();
        let early = backlog.mark();
        assert!(!backlog.is_empty());
        drop(call);
        backlog.finished(early);
        assert!(!backlog.is_empty(), "the wait began before the call had returned");
        let mark = backlog.mark();
        drop(backlog.call());
        backlog.finished(mark);
        assert!(!backlog.is_empty(), "another one came meanwhile");
        backlog.finished(backlog.mark());
        backlog.finished(early);
        assert!(backlog.is_empty());
    }

    #[test]
    fn what_may_hold_a_stream_is_over_once_it_has_been_waited_for() {
        let backlog = Backlog::default();
        drop(backlog.call());
        assert!(backlog.holds_nothing(), "nothing but a record of an event, say");
        let call = backlog.call();
        backlog.holds();
        backlog.finished(backlog.mark());
        assert!(!backlog.holds_nothing());
        drop(call);
        backlog.finished(backlog.mark());
        drop(backlog.call());
        assert!(backlog.holds_nothing());
    }
}
