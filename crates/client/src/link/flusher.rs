//! The thread that sends what the program has queued and then left alone.
//!
//! A burst of launches goes out in few pieces, and the last of it would wait for the next call. A
//! program that computes on its own cores meanwhile expects its kernels to run. So this thread
//! checks [`LOOK`] after something was queued, and again while there is more; then it sleeps, and a
//! program that is idle or waits does not wake it.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Link;
use crate::link::outbox::FLUSH_AFTER;
use crate::link::threads;

const LOOK: Duration = Duration::from_micros(500);

impl Link {
    /// Starts the thread. Without it, what is left goes out with the next call.
    pub(crate) fn start_flusher(&'static self) {
        threads::start(|| {
            while !self.lost.load(Ordering::Acquire) {
                self.send_what_is_left();
                std::thread::sleep(LOOK);
            }
        });
    }

    /// One look; where nothing is left, it lasts until something is.
    fn send_what_is_left(&self) {
        let mut outbox = self.outbox();
        if outbox.unsent() == 0 {
            outbox.is_watched = false;
            while !outbox.is_watched {
                outbox = self.left.wait(outbox).unwrap_or_else(PoisonError::into_inner);
            }
        } else if outbox.flushed_at.elapsed() >= FLUSH_AFTER {
            // The session's error is for the program's own calls.
            let _ = self.send(outbox);
        } else {
            drop(outbox);
            self.acknowledge();
        }
    }
}
