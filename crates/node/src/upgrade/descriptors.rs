//! Descriptors that the next program gets under the same numbers.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use serde::{Deserialize, Serialize};

use crate::spawn::set_inherited;

/// The number of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Passed(RawFd);

/// Those that are to be passed.
#[derive(Debug, Default)]
pub(crate) struct Passing(Vec<RawFd>);

impl Passing {
    /// The caller has it stay open until the next program runs.
    pub(crate) fn pass(&mut self, fd: BorrowedFd<'_>) -> Passed {
        self.0.push(fd.as_raw_fd());
        Passed(fd.as_raw_fd())
    }

    pub(crate) fn into_numbers(self) -> Vec<RawFd> {
        self.0
    }
}

/// Those that the program before this one has passed, each until it is taken.
#[derive(Debug)]
pub(crate) struct Received {
    taken: BTreeSet<Passed>,
}

/// Standard input, output and error belong to the whole process.
const FIRST: RawFd = 3;

impl Received {
    /// # Safety
    ///
    /// Descriptors whose numbers are in a state of the program before this one belong to nothing
    /// else of this process, and no other `Received` takes them.
    pub(crate) unsafe fn of_this_process() -> Received {
        Received { taken: BTreeSet::new() }
    }

    /// Programs that this one starts do not inherit it.
    pub(crate) fn take(&mut self, passed: Passed) -> io::Result<OwnedFd> {
        if passed.0 < FIRST || !self.taken.insert(passed) {
            return Err(io::Error::other(format!("descriptor {} was taken already", passed.0)));
        }
        // An error where it is not open.
        set_inherited(passed.0, false)?;
        // SAFETY: it is open, is taken once, and by the maker's promise belongs to nothing else.
        Ok(unsafe { OwnedFd::from_raw_fd(passed.0) })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, IntoRawFd};

    use super::*;

    #[test]
    fn a_descriptor_is_taken_once() {
        let mut passing = Passing::default();
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let passed = passing.pass(file.as_fd());
        assert_eq!(passing.into_numbers(), [file.into_raw_fd()]);
        // SAFETY: the test has given its descriptor up.
        let mut received = unsafe { Received::of_this_process() };
        drop(received.take(passed).unwrap());
        assert!(received.take(passed).is_err());
        assert!(received.take(Passed(1)).is_err());
        assert_eq!(received.take(Passed(1 << 20)).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}
