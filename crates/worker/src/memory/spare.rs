//! Host memory that is ready before memory has to leave a GPU.
//!
//! The system makes new pages several times more slowly than a GPU copies into them (5 to 9 GB/s
//! against 50 on an H100), so a session that will have to leave has them made ahead: one piece for
//! each extent. The node counts that host memory from the beginning, since it promises no more GPU
//! memory than all of its leases could leave into.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use super::host::HostPiece;
use super::{Backing, Memory, State};
use crate::process::ending;
use crate::session::Session;

/// Has a thread make host memory for all of the session's memory that could leave.
pub(crate) fn make_ahead(session: &Arc<Session>) {
    let session = Arc::clone(session);
    ending::spawn("spare memory", move || {
        loop {
            let bytes = session.memory.wait_for_missing();
            match HostPiece::new(bytes) {
                Ok(piece) => session.memory.add_spare(piece),
                // The system is asked again when something has changed.
                Err(_) => session.memory.wait_for_change(),
            }
        }
    });
}

impl Memory {
    /// Gives host memory back that is kept for memory which cannot leave any more. A context is
    /// current.
    pub(crate) fn trim_spare(&self) {
        let mut state = self.lock();
        if state.spare.is_empty() {
            return;
        }
        let mut wanted = state.movable_sizes();
        let spare = std::mem::take(&mut state.spare);
        let (kept, surplus) = spare.into_iter().partition(|piece| take(&mut wanted, piece.bytes()));
        state.spare = kept;
        // It is unpinned without the lock, which takes a while.
        drop(state);
        drop::<Vec<HostPiece>>(surplus);
    }

    /// Waits until there is an extent without host memory, and returns its size.
    fn wait_for_missing(&self) -> u64 {
        let mut state = self.lock();
        loop {
            match state.missing_spare() {
                Some(bytes) => return bytes,
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn wait_for_change(&self) {
        drop(self.changed.wait(self.lock()).unwrap_or_else(PoisonError::into_inner));
    }

    /// Keeps a piece if it is still missing: the memory may have left meanwhile, or have returned
    /// with the pieces in which it was.
    fn add_spare(&self, piece: HostPiece) {
        let mut state = self.lock();
        if take(&mut state.missing(), piece.bytes()) {
            state.spare.push(piece);
        }
    }
}

impl State {
    /// The size of the largest extent on a GPU that has no spare host memory.
    fn missing_spare(&self) -> Option<u64> {
        self.missing().into_keys().next_back()
    }

    /// How many extents of each size have no spare host memory.
    fn missing(&self) -> BTreeMap<u64, usize> {
        let mut sizes = self.movable_sizes();
        self.spare.iter().for_each(|piece| _ = take(&mut sizes, piece.bytes()));
        sizes
    }

    /// How many extents of each size are on their GPUs and could leave.
    fn movable_sizes(&self) -> BTreeMap<u64, usize> {
        let mut sizes = BTreeMap::new();
        for (_, run) in self.chunks.iter() {
            if let Backing::Committed { extents, export: None, .. } = &run.backing {
                for extent in extents.iter().filter(|extent| extent.is_on_device()) {
                    *sizes.entry(extent.bytes).or_default() += 1;
                }
            }
        }
        sizes
    }
}

/// Takes one of a size, if there is one.
fn take(sizes: &mut BTreeMap<u64, usize>, bytes: u64) -> bool {
    let Some(count) = sizes.get_mut(&bytes) else { return false };
    *count -= 1;
    if *count == 0 {
        sizes.remove(&bytes);
    }
    true
}

#[cfg(test)]
mod tests {
    use sluice_wire::{DevicePtr, commands};

    use super::*;
    use crate::malformed::stage::{RESERVATION, Stage};
    use crate::memory::chunks::CHUNK;
    use crate::memory::extent::EXTENT;
    use crate::memory::host_memory_tests::say;

    #[test]
    fn each_extent_gets_host_memory_which_goes_with_it() {
        let mut stage = Stage::new();
        let (start, bytes) = (DevicePtr(RESERVATION), EXTENT + CHUNK);
        say(&stage, &commands::MemoryCommit { address: start, bytes, on_host: false, by_all: false })
            .unwrap();
        let memory = &stage.session().memory;
        for size in [EXTENT, CHUNK] {
            assert_eq!(memory.wait_for_missing(), size);
            memory.add_spare(HostPiece::new(size).unwrap());
        }
        assert_eq!(memory.lock().missing_spare(), None);
        memory.add_spare(HostPiece::new(EXTENT).unwrap());
        assert_eq!(memory.lock().spare.len(), 2, "there is one for each extent");
        say(&stage, &commands::MemoryDecommit { address: start, bytes }).unwrap();
        assert!(stage.session().memory.lock().spare.is_empty());
    }
}
