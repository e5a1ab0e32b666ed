//! A worker that is silent for too long, and the end of the connection.

use std::sync::atomic::Ordering;
use std::time::Duration;

use sluice_cuda::CUresult;
use sluice_transport::Stream;

use super::inbox::Receiver;
use super::{LOST, Link};

/// Interval in which a waiting thread checks that the worker still responds.
pub(super) const SILENCE: Duration = Duration::from_secs(3);

/// Number of such intervals without a byte after which the connection counts as lost, or the worker
/// as stopped.
pub(super) const SILENT_MAX: u32 = 3;

/// Timeout for a silent worker on the same host: the default of the node's `--linger`.
pub(super) const STOPPED_MAX: Duration = Duration::from_secs(90);

/// How long a client waits for the end of a worker whose session it gives up.
const HANG_UP_MAX: Duration = Duration::from_secs(3);

impl Link {
    /// Called when a thread waits and nothing has come for a while: asks the worker for a
    /// keep-alive, or gives the connection up.
    pub(super) fn heard_nothing(&self, receiver: &mut Receiver) {
        let outbox = self.try_outbox();
        if outbox.is_none() && self.resumption().is_none() {
            // A sender detects a stalled link itself. A worker that accepts what it is sent need
            // not send anything.
            return;
        }
        receiver.silent += 1;
        let is_over = receiver.silent >= SILENT_MAX
            && self.has_waited_enough(&receiver.stream, SILENCE * receiver.silent, "come");
        if !is_over && let Some(mut outbox) = outbox {
            self.confirm(&mut outbox, true);
            self.flush_what_fits(&mut outbox);
        }
    }

    /// Called at the timeout in which nothing has "come" or "gone": ends the connection, or reports
    /// once that the program waits.
    pub(super) fn has_waited_enough(&self, stream: &Stream, silence: Duration, moved: &str) -> bool {
        if self.resumption().is_some() || silence >= STOPPED_MAX {
            self.part(stream, &format_args!("nothing has {moved} for {} s", silence.as_secs()));
            return true;
        }
        if !self.silence_is_told.swap(true, Ordering::AcqRel) {
            crate::abi::errors::say(format_args!(
                "{} has not answered for {} s: its worker on this machine is stopped, or gets no core; the program waits \
                 for up to {} s, Ctrl-C ends it",
                self.name,
                silence.as_secs(),
                STOPPED_MAX.as_secs()
            ));
        }
        false
    }

    pub(super) fn heard_something(&self) {
        if self.silence_is_told.load(Ordering::Relaxed) && self.silence_is_told.swap(false, Ordering::AcqRel)
        {
            crate::abi::errors::say(format_args!("{} answers again", self.name));
        }
    }

    /// Makes an error the session's, unless it has one already.
    pub(super) fn fail(&self, error: CUresult) {
        let _ = self.failed.compare_exchange(0, error.0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Ends the session with this error, if it has none yet: something that its streams wait for
    /// will never be.
    pub(crate) fn end(&self, error: CUresult, why: &dyn std::fmt::Display) {
        let _outbox = self.outbox();
        if self.check().is_err() {
            return;
        }
        crate::abi::errors::say(format_args!("{why}: {error}; every further CUDA call fails"));
        self.fail(error);
        self.lose(why);
    }

    /// This stream has ended.
    pub(super) fn part(&self, stream: &Stream, why: &dyn std::fmt::Display) {
        // After an error of the session there is nothing to resume.
        if self.resumption().is_none() || self.check().is_err() {
            return self.lose(why);
        }
        self.cut.store(true, Ordering::Release);
        stream.shut_down();
    }

    /// A session that has ended with an error keeps it: that the connection ends too is no news.
    pub(super) fn lose(&self, why: &dyn std::fmt::Display) {
        if self.lost.swap(true, Ordering::AcqRel) {
            return;
        }
        if self.failed.compare_exchange(0, LOST.0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            crate::abi::errors::say(format_args!(
                "the connection to {} is lost ({why}); every further CUDA call{} fails",
                self.name,
                if self.is_one_of_many { " there" } else { "" }
            ));
        }
        // SAFETY: the caller leads or has the outbox, so the stream is not replaced meanwhile.
        unsafe { (*self.current.load(Ordering::Acquire)).shut_down() };
    }

    /// Ends the connection of a session that is lost, once the worker has ended too, or after a
    /// while.
    pub(crate) fn hang_up(&self) {
        let _outbox = self.outbox();
        // SAFETY: the outbox is locked, so that no other stream takes the place of this one.
        let stream = unsafe { &*self.current.load(Ordering::Acquire) };
        stream.shut_down_writes();
        stream.wait_end(HANG_UP_MAX);
        self.lose(&"the program begins anew");
    }

    /// The error of a session that has one.
    pub(super) fn error(&self) -> CUresult {
        CUresult(self.failed.load(Ordering::Acquire))
    }

    /// Unlike [`Link::check`], lets answers in after an error of the device: the worker still
    /// talks.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Whether what comes is read as it comes.
    pub(crate) fn is_open(&self) -> bool {
        !self.is_cut() && !self.is_lost()
    }

    pub(super) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }
}

/// Makes a waiting thread wake up at intervals, to check that the worker responds.
pub(super) fn watch_silence(stream: &Stream) {
    // Without it a silent worker is noticed by the kernel's probes, if at all.
    let _ = stream.set_read_limit(SILENCE);
}
