//! The device heap behind device-side `malloc` and `free` (CUDA C++ Programming Guide, Dynamic
//! Global Memory Allocation). It outlives launches: what one kernel allocates, another may free.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Alignment of every allocation.
const ALIGN: u64 = 16;

/// First-fit allocator over a range of device memory. Its bookkeeping is outside of that memory, so
/// device code cannot damage it.
#[derive(Debug)]
pub struct DeviceHeap {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Start to length of each free piece; no two touch.
    free: BTreeMap<u64, u64>,
    used: BTreeMap<u64, u64>,
}

impl DeviceHeap {
    /// A heap over `range`, which must be mapped inside the launch's device address range.
    pub fn new(range: Range<u64>) -> DeviceHeap {
        let start = range.start.next_multiple_of(ALIGN);
        let len = range.end.saturating_sub(start) / ALIGN * ALIGN;
        let free = if len == 0 { BTreeMap::new() } else { BTreeMap::from([(start, len)]) };
        DeviceHeap { state: Mutex::new(State { free, used: BTreeMap::new() }) }
    }

    /// Address of `size` fresh bytes; 0 when there is no room.
    pub fn allocate(&self, size: u64) -> u64 {
        let Some(len) = size.max(1).checked_next_multiple_of(ALIGN) else { return 0 };
        let mut state = self.lock();
        let Some((start, room)) = state.free.iter().find(|&(_, &room)| room >= len).map(|(&s, &r)| (s, r))
        else {
            return 0;
        };
        state.free.remove(&start);
        if room > len {
            state.free.insert(start + len, room - len);
        }
        state.used.insert(start, len);
        start
    }

    /// Gives an allocation back; an address that is none is ignored, as null is.
    pub fn free(&self, address: u64) {
        let mut state = self.lock();
        let Some(mut len) = state.used.remove(&address) else { return };
        let mut start = address;
        if let Some(next) = state.free.remove(&(start + len)) {
            len += next;
        }
        if let Some((&before, &before_len)) = state.free.range(..start).next_back()
            && before + before_len == start
        {
            start = before;
            len += before_len;
        }
        state.free.insert(start, len);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_pieces_merge() {
        let heap = DeviceHeap::new(0x1000..0x1100);
        let pieces: Vec<u64> = (0..16).map(|_| heap.allocate(10)).collect();
        assert!(pieces.iter().all(|&piece| piece % ALIGN == 0 && piece != 0));
        assert_eq!(heap.allocate(1), 0);
        for &piece in pieces.iter().step_by(2).chain(pieces.iter().skip(1).step_by(2)) {
            heap.free(piece);
        }
        assert_eq!(heap.allocate(256), 0x1000);
    }

    #[test]
    fn sizes_near_the_limit_are_refused() {
        let heap = DeviceHeap::new(0x1000..0x2000);
        assert_eq!(heap.allocate(u64::MAX), 0);
        assert_eq!(heap.allocate(0x1001), 0);
    }
}
