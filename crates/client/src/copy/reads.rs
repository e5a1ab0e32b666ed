//! Which device memory large copies to the program are being read from.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Device memory, by address and size, of which threads of the program wait for large copies.
#[derive(Default)]
pub(crate) struct Reads {
    ranges: Mutex<Vec<(u64, u64)>>,
    over: Condvar,
}

pub(crate) struct Read<'a> {
    reads: &'a Reads,
    range: (u64, u64),
}

impl Reads {
    pub(crate) fn begin(&self, range: (u64, u64)) -> Read<'_> {
        self.lock().push(range);
        Read { reads: self, range }
    }

    /// Returns once no thread waits for a copy from this memory.
    pub(crate) fn wait(&self, (address, bytes): (u64, u64)) {
        let overlaps = |&(start, size): &(u64, u64)| {
            start < address.saturating_add(bytes) && address < start.saturating_add(size)
        };
        let is_read = |ranges: &mut Vec<_>| ranges.iter().any(overlaps);
        drop(self.over.wait_while(self.lock(), is_read).unwrap_or_else(PoisonError::into_inner));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u64, u64)>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Read<'_> {
    fn drop(&mut self) {
        let mut ranges = self.reads.lock();
        let own = ranges.iter().position(|range| *range == self.range);
        own.map(|own| ranges.swap_remove(own));
        self.reads.over.notify_all();
    }
}
