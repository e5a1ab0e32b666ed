//! A device's memory: how much of it is in use, and the allocator behind `cuMemAlloc`.
//!
//! Memory is accounted in chunks of 2 MiB, as the hardware driver does. Requests of up to half a
//! chunk share chunks; a larger one has chunks of its own. A chunk that nothing uses goes back to
//! the system.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use crate::base::status::{Result, Status};
use crate::device::address_space::{CHUNK, space};
use crate::device::ranges::FreeRanges;

/// Every address from the allocator is a multiple of this: a texture can begin there
/// (`TEXTURE_ALIGNMENT`).
pub(crate) const ALIGN: u64 = 512;
/// Bytes at both ends of a shared chunk that no request gets. Kernels that read a little beyond
/// their memory, and do not use what they read, run on a real GPU, where such addresses are
/// mapped; so they are here.
const MARGIN: u64 = 4 << 10;
/// What requests share of a chunk.
const SHARED: u64 = CHUNK - 2 * MARGIN;
/// Requests above this have chunks of their own.
pub(crate) const SHARED_MAX: u64 = CHUNK / 2;

/// Bytes behind each allocation that no request gets, where accesses are watched.
const RED_ZONE: u64 = ALIGN;
/// Freed bytes that are kept from new requests, where accesses are watched.
const QUARANTINE_MAX: u64 = 256 << 20;

pub(crate) struct Heap {
    total: u64,
    /// Bytes behind each allocation that no request gets.
    red_zone: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Bytes in use, accounted in chunks.
    used: u64,
    /// Chunks that small allocations share, by address.
    shared: BTreeMap<u64, Chunk>,
    /// What was freed and is not given back yet, by address and size, the oldest first.
    quarantine: VecDeque<(u64, u64)>,
    quarantine_bytes: u64,
}

/// A chunk that small allocations share.
pub(crate) struct Chunk {
    free: FreeRanges,
    used: u64,
}

impl Heap {
    pub(crate) fn new(total: u64) -> Self {
        Self { total, red_zone: 0, state: Mutex::default() }
    }

    /// A heap whose allocations have room between them, and are not given out again at once: what
    /// watches the accesses of kernels knows a stray one by that.
    pub(crate) fn guarded(total: u64) -> Self {
        Self { red_zone: RED_ZONE, ..Self::new(total) }
    }

    /// Bytes of memory that the device has.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Bytes that are still to be had.
    pub(crate) fn free(&self) -> u64 {
        self.total - self.lock().used
    }

    /// Counts `size` bytes as used without mapping anything; `cuMemCreate` brings its own pages.
    pub(crate) fn charge(&self, size: u64) -> Result<()> {
        self.lock().charge(self.total, size)
    }

    /// Takes back a [`Self::charge`].
    pub(crate) fn refund(&self, size: u64) {
        let mut state = self.lock();
        state.used = state.used.saturating_sub(size);
    }

    /// The address of `size` bytes (not zero) of device memory.
    pub(crate) fn allocate(&self, size: u64) -> Result<u64> {
        let size = size.checked_add(self.red_zone).ok_or(Status::OUT_OF_MEMORY)?;
        let mut state = self.lock();
        self.allocate_in(&mut state, size).or_else(|error| {
            if state.quarantine.is_empty() {
                return Err(error);
            }
            while let Some((address, size)) = state.quarantine.pop_front() {
                state.release(address, size);
            }
            state.quarantine_bytes = 0;
            self.allocate_in(&mut state, size)
        })
    }

    fn allocate_in(&self, state: &mut State, size: u64) -> Result<u64> {
        if size > SHARED_MAX {
            let whole = whole_chunks(size)?;
            state.charge(self.total, whole)?;
            return map_chunks(whole).inspect_err(|_| state.used -= whole);
        }
        if let Some(address) = state.shared.values_mut().find_map(|chunk| chunk.take(size)) {
            return Ok(address);
        }
        state.charge(self.total, CHUNK)?;
        let base = map_chunks(CHUNK).inspect_err(|_| state.used -= CHUNK)?;
        let chunk = state.shared.entry(base).or_insert_with(|| Chunk::new(base));
        chunk.take(size).ok_or(Status::OUT_OF_MEMORY)
    }

    /// Gives back what [`Self::allocate`] returned for `size` bytes.
    pub(crate) fn release(&self, address: u64, size: u64) {
        let mut state = self.lock();
        let size = size + self.red_zone;
        if self.red_zone == 0 {
            return state.release(address, size);
        }
        state.quarantine.push_back((address, size));
        state.quarantine_bytes += size;
        while state.quarantine_bytes > QUARANTINE_MAX
            && let Some((address, size)) = state.quarantine.pop_front()
        {
            state.quarantine_bytes -= size;
            state.release(address, size);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn charge(&mut self, total: u64, size: u64) -> Result<()> {
        if size > total - self.used {
            return Err(Status::OUT_OF_MEMORY);
        }
        self.used += size;
        Ok(())
    }

    fn release(&mut self, address: u64, size: u64) {
        let Ok(space) = space() else { return };
        if size > SHARED_MAX {
            let whole = size.next_multiple_of(CHUNK);
            space.give(address, whole);
            self.used -= whole;
            return;
        }
        let base = address / CHUNK * CHUNK;
        if self.shared.get_mut(&base).is_some_and(|chunk| chunk.give(address, size)) {
            self.shared.remove(&base);
            space.give(base, CHUNK);
            self.used -= CHUNK;
        }
    }
}

impl Chunk {
    /// The chunk at `base`, of which nothing is used.
    pub(crate) fn new(base: u64) -> Chunk {
        Chunk { free: FreeRanges::new(base + MARGIN, SHARED), used: 0 }
    }

    /// The address of `size` bytes, aligned to [`ALIGN`].
    pub(crate) fn take(&mut self, size: u64) -> Option<u64> {
        let size = size.next_multiple_of(ALIGN);
        if size > SHARED - self.used {
            return None;
        }
        let address = self.free.take(size, ALIGN)?;
        self.used += size;
        Some(address)
    }

    /// Takes back what [`Self::take`] gave for `size` bytes; whether nothing of the chunk is used
    /// any more.
    pub(crate) fn give(&mut self, address: u64, size: u64) -> bool {
        let size = size.next_multiple_of(ALIGN);
        self.free.give(address, size);
        self.used -= size;
        self.used == 0
    }
}

/// `size` rounded up to whole chunks.
pub(crate) fn whole_chunks(size: u64) -> Result<u64> {
    size.checked_next_multiple_of(CHUNK).ok_or(Status::OUT_OF_MEMORY)
}

/// Takes addresses for whole chunks and puts zeroed pages there.
pub(crate) fn map_chunks(size: u64) -> Result<u64> {
    let space = space()?;
    let address = space.take(size, CHUNK)?;
    space.map_private(address, size).inspect_err(|_| space.give(address, size))?;
    Ok(address)
}

/// Maps whole chunks as [`map_chunks`] does, at the other end of the addresses, for the driver's
/// own use and for host memory.
pub(crate) fn map_hidden_chunks(size: u64) -> Result<u64> {
    let space = space()?;
    let address = space.take_hidden(size)?;
    space.map_private(address, size).inspect_err(|_| space.give(address, size))?;
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_accounted_in_chunks_and_limited() {
        let heap = Heap::new(3 * CHUNK);
        let small = heap.allocate(1).expect("a byte fits");
        assert_eq!(heap.free(), 2 * CHUNK);
        let large = heap.allocate(CHUNK + 1).expect("two chunks fit");
        assert_eq!(heap.free(), 0);
        assert_eq!(heap.allocate(SHARED_MAX + 1), Err(Status::OUT_OF_MEMORY));
        assert!(heap.allocate(SHARED_MAX).is_ok(), "the shared chunk has room");
        heap.release(large, CHUNK + 1);
        assert_eq!(heap.free(), 2 * CHUNK);
        heap.release(small, 1);
        assert_eq!(heap.free(), 2 * CHUNK, "the other small allocation holds the chunk");
    }

    #[test]
    fn a_guarded_heap_keeps_allocations_apart_and_frees_the_oldest_when_it_is_full() {
        let heap = Heap::guarded(CHUNK);
        let [first, second] = [1, 1].map(|size| heap.allocate(size).expect("a byte fits"));
        assert!(second - first > RED_ZONE, "{first:#x} {second:#x}");
        heap.release(first, 1);
        assert_ne!(heap.allocate(1), Ok(first), "it is kept");
        let large = SHARED_MAX - RED_ZONE;
        let third = heap.allocate(large - 4096).expect("there is room");
        heap.release(third, large - 4096);
        assert!(heap.allocate(large).is_ok(), "what was kept makes room");
    }

    #[test]
    fn sizes_near_the_limit_of_the_type_are_refused() {
        let heap = Heap::new(CHUNK);
        assert_eq!(heap.allocate(u64::MAX), Err(Status::OUT_OF_MEMORY));
        assert_eq!(heap.allocate(u64::MAX - CHUNK), Err(Status::OUT_OF_MEMORY));
    }
}
