//! The two clocks of a node: one that people set, and one that is never set.

use std::fmt::Debug;
use std::time::{Duration, Instant, SystemTime};

/// What time it is.
pub trait Clock: Debug + Send + Sync {
    /// Milliseconds since 1970, as the machine believes. It may be set forth and back.
    fn wall_ms(&self) -> u64;

    /// Since some moment in the past, the same for as long as the node runs. It is never set.
    fn running(&self) -> Duration;
}

/// The clocks of this machine.
#[derive(Debug)]
pub(crate) struct SystemClock(Instant);

impl SystemClock {
    pub(crate) fn new() -> SystemClock {
        SystemClock::since(Instant::now())
    }

    /// One that began then.
    pub(crate) fn since(began: Instant) -> SystemClock {
        SystemClock(began)
    }
}

impl Clock for SystemClock {
    fn wall_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since.map_or(0, |since| since.as_millis() as u64)
    }

    fn running(&self) -> Duration {
        self.0.elapsed()
    }
}
