//! Threads that wait while another thread reads the connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar};

use crate::link::command_id::CommandId;

/// What a thread sleeps for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Want {
    Answer(CommandId),
    HostCalls,
    /// Something that only the thread itself can tell: it looks after each read.
    Change,
}

/// A thread that sleeps, until it is taken from the list.
pub(crate) struct Sleeper {
    pub(super) want: Want,
    /// It looks no more, and has to be woken.
    pub(super) is_asleep: bool,
    pub(super) nap: Arc<Nap>,
}

#[derive(Default)]
pub(super) struct Nap {
    pub(super) is_over: AtomicBool,
    pub(super) over: Condvar,
}

impl Sleeper {
    /// This one is no longer in the list.
    pub(super) fn wake(self) {
        self.nap.is_over.store(true, Ordering::Release);
        if self.is_asleep {
            self.nap.over.notify_one();
        }
    }
}
