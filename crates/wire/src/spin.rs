//! Looking for bytes for a moment before sleeping until they come.
//!
//! Waking a sleeping thread costs several microseconds, tens in a virtual machine. Where answers
//! are quicker than that, looking for them again and again is faster for both sides; where they are
//! not, it only takes a core from others.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Longest time that a reader looks before it sleeps, and the longest wait that makes the next one
/// look first.
const LOOK: Duration = Duration::from_micros(50);

/// Decides for one socket how its readers wait.
#[derive(Debug)]
pub struct Spin {
    /// With one core the other side cannot run while this one looks.
    allowed: bool,
    /// The last wait was short.
    worthwhile: AtomicBool,
}

/// How a read waits for its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: it fails with [`io::ErrorKind::WouldBlock`].
    No,
    /// Asleep.
    Asleep,
}

impl Spin {
    /// For a process that may use this many cores.
    pub fn new(cores: usize) -> Spin {
        Spin { allowed: cores > 1, worthwhile: AtomicBool::new(false) }
    }

    /// Reads by `read`, which gets how to wait. What it returns is passed on, except that it
    /// would block.
    pub fn read(&self, mut read: impl FnMut(Wait) -> io::Result<usize>) -> io::Result<usize> {
        if !self.allowed {
            return read(Wait::Asleep);
        }
        let begin = Instant::now();
        let mut looks = self.worthwhile.load(Relaxed);
        while looks {
            match read(Wait::No) {
                // The other side may need this very core.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                done => return done,
            }
            looks = begin.elapsed() < LOOK;
        }
        let done = read(Wait::Asleep);
        self.worthwhile.store(begin.elapsed() < LOOK, Relaxed);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How a read waited: one whose byte is there, or one whose byte comes after a long sleep.
    fn waits(spin: &Spin, is_there: bool) -> Vec<Wait> {
        let mut seen = Vec::new();
        let read = spin.read(|wait| {
            if seen.last() != Some(&wait) {
                seen.push(wait);
            }
            match wait {
                Wait::No if !is_there => return Err(io::ErrorKind::WouldBlock.into()),
                Wait::Asleep if !is_there => std::thread::sleep(2 * LOOK), // this is measured
                _ => {}
            }
            Ok(1)
        });
        assert_eq!(read.unwrap(), 1);
        seen
    }

    #[test]
    fn looks_only_after_a_short_wait_and_then_sleeps() {
        let spin = Spin::new(2);
        assert_eq!(waits(&spin, false), [Wait::Asleep]);
        assert_eq!(waits(&spin, false), [Wait::Asleep]);
        spin.worthwhile.store(true, Relaxed);
        assert_eq!(waits(&spin, true), [Wait::No]);
        assert_eq!(waits(&spin, false), [Wait::No, Wait::Asleep]);
        assert_eq!(waits(&spin, false), [Wait::Asleep], "that wait was long");
    }

    #[test]
    fn one_core_never_looks() {
        let spin = Spin::new(1);
        spin.worthwhile.store(true, Relaxed);
        assert_eq!(waits(&spin, true), [Wait::Asleep]);
    }

    #[test]
    fn errors_are_passed_on() {
        let spin = Spin::new(2);
        spin.worthwhile.store(true, Relaxed);
        let gone = spin.read(|_| Err(io::ErrorKind::ConnectionReset.into()));
        assert_eq!(gone.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}
