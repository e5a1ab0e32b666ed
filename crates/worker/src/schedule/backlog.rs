//! Whether a device has finished all work that was queued on it.
//!
//! Then, and if nothing that is no work keeps a stream from continuing
//! ([`Streams::hold_nothing`](crate::schedule::streams::Streams::hold_nothing)), a synchronisation
//! returns at once, and the thread that reads the client's commands may make it itself. Only
//! commands without an answer can leave something behind, and one thread at a time executes those.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Counts of queued commands of one device.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// Those whose driver call has begun, and has returned.
    begun: AtomicU64,
    returned: AtomicU64,
    /// Those that have been finished by the device, as far as is known.
    finished: AtomicU64,
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
}
