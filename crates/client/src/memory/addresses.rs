//! Minting device addresses.
//!
//! The worker has reserved one large range at an address that is free in this process too, so the
//! client can name the address of an allocation itself. Physical memory comes and goes in chunks of
//! 2 MiB, which only the node can give; this module decides which chunks an allocation needs, and
//! cuts small allocations out of shared ones.
//!
//! Pure bookkeeping: [`Space::allocate`] says which chunks to ask the node for, and the caller
//! asks.

use std::collections::BTreeMap;
use std::ops::Range;

/// Physical memory is committed in multiples of this, in bytes.
pub(crate) const CHUNK: u64 = 2 << 20;
/// Every allocation's alignment, in bytes: a texture can begin there (`cuTexRefSetAddress`), which
/// asks for more than the 256 that `cuMemAlloc` promises.
const ALIGNMENT: u64 = 512;
/// Bytes at both ends of a shared chunk that no allocation gets. Kernels that read a little beyond
/// their memory, and do not use what they read, run on a GPU, where some memory is there; so it is
/// here.
const MARGIN: u64 = 4 << 10;
/// What allocations share of a chunk.
const SHARED: u64 = CHUNK - 2 * MARGIN;
/// Allocations of at least this many bytes get chunks of their own.
const LARGE: u64 = CHUNK / 2;

/// The addresses of one device's memory.
#[derive(Debug)]
pub(crate) struct Space {
    /// Free runs of chunks: start to length. Neighbours are always merged.
    free_chunks: BTreeMap<u64, u64>,
    /// Free pieces of committed shared chunks: start to length, merged within their chunk.
    free_pieces: BTreeMap<u64, u64>,
    /// What programs hold: start to bytes asked for.
    allocations: BTreeMap<u64, Allocation>,
    /// Bytes of the range that host memory may still take.
    lendable: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) start: u64,
    /// Bytes the program asked for.
    pub(crate) bytes: u64,
    /// Bytes set aside, a multiple of the alignment or of a chunk.
    pub(crate) reserved: u64,
}

/// A place for an allocation, and what the node must commit before it may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) address: u64,
    pub(crate) commit: Option<Range<u64>>,
}

impl Space {
    pub(crate) fn new(range: Range<u64>) -> Self {
        let start = range.start.next_multiple_of(CHUNK);
        let end = range.end / CHUNK * CHUNK;
        let mut free_chunks = BTreeMap::new();
        if start < end {
            free_chunks.insert(start, end - start);
        }
        Space {
            free_chunks,
            free_pieces: BTreeMap::new(),
            allocations: BTreeMap::new(),
            lendable: end.saturating_sub(start) / 2,
        }
    }

    /// Finds a place for `bytes` > 0. `None`: the range is used up, which programs see as "out of
    /// memory". If the node then refuses the commit, the caller takes the place back with
    /// [`Space::forget`]. `apart`: in chunks of its own, whatever its size.
    pub(crate) fn allocate(&mut self, bytes: u64, apart: bool) -> Option<Placement> {
        if apart || bytes >= LARGE {
            let reserved = bytes.checked_next_multiple_of(CHUNK)?;
            let address = take_first_fit(&mut self.free_chunks, reserved)?;
            self.allocations.insert(address, Allocation { start: address, bytes, reserved });
            return Some(Placement { address, commit: Some(address..address + reserved) });
        }
        let reserved = bytes.next_multiple_of(ALIGNMENT);
        let (address, commit) = match take_first_fit(&mut self.free_pieces, reserved) {
            Some(address) => (address, None),
            None => {
                let chunk = take_first_fit(&mut self.free_chunks, CHUNK)?;
                self.free_pieces.insert(chunk + MARGIN + reserved, SHARED - reserved);
                (chunk + MARGIN, Some(chunk..chunk + CHUNK))
            }
        };
        self.allocations.insert(address, Allocation { start: address, bytes, reserved });
        Some(Placement { address, commit })
    }

    /// Frees the allocation that starts at `address`; `None` if none does. Unused chunks are
    /// returned for the caller to release.
    pub(crate) fn free(&mut self, address: u64) -> Option<(Allocation, Option<Range<u64>>)> {
        let allocation = self.allocations.remove(&address)?;
        if allocation.reserved >= CHUNK {
            give_back(&mut self.free_chunks, address, allocation.reserved);
            return Some((allocation, Some(address..address + allocation.reserved)));
        }
        // The margins keep pieces of two chunks from merging: each chunk is released alone.
        let piece = give_back(&mut self.free_pieces, address, allocation.reserved);
        if piece.end - piece.start < SHARED {
            return Some((allocation, None));
        }
        self.free_pieces.remove(&piece.start);
        let chunk = piece.start - MARGIN;
        give_back(&mut self.free_chunks, chunk, CHUNK);
        Some((allocation, Some(chunk..chunk + CHUNK)))
    }

    /// Takes back an allocation whose commit the node refused: as if it had never been.
    pub(crate) fn forget(&mut self, address: u64) {
        let _ = self.free(address);
    }

    /// Takes whole chunks out of the range, for what the program maps there itself: at `hint` if
    /// they are free.
    pub(crate) fn reserve(&mut self, bytes: u64, alignment: u64, hint: u64) -> Option<u64> {
        let alignment = alignment.max(CHUNK);
        if hint.is_multiple_of(alignment) && take_at(&mut self.free_chunks, hint, bytes) {
            return Some(hint);
        }
        let fits = |(&start, &length): (&u64, &u64)| {
            let aligned = start.checked_next_multiple_of(alignment)?;
            (bytes <= length.checked_sub(aligned - start)?).then_some(aligned)
        };
        let start = self.free_chunks.iter().find_map(fits)?;
        take_at(&mut self.free_chunks, start, bytes).then_some(start)
    }

    /// Gives back what [`Space::reserve`] took.
    pub(crate) fn unreserve(&mut self, start: u64, bytes: u64) {
        give_back(&mut self.free_chunks, start, bytes);
    }

    /// Takes whole chunks out of the range for host memory, which the node may have to back one
    /// day: at its end, far from what the device has, and never more than half of it.
    pub(crate) fn lend(&mut self, bytes: u64) -> Option<u64> {
        let bytes = bytes.checked_next_multiple_of(CHUNK)?;
        let lendable = self.lendable.checked_sub(bytes)?;
        let (start, length) = self.free_chunks.iter().rev().find(|(_, length)| **length >= bytes)?;
        let address = start + length - bytes;
        take_at(&mut self.free_chunks, address, bytes);
        self.lendable = lendable;
        Some(address)
    }

    /// Gives back what [`Space::lend`] took.
    pub(crate) fn take_back(&mut self, address: u64, bytes: u64) {
        let reserved = bytes.next_multiple_of(CHUNK);
        self.lendable += reserved;
        give_back(&mut self.free_chunks, address, reserved);
    }

    /// What was lent is backed by the node, and an allocation like others.
    pub(crate) fn settle(&mut self, address: u64, bytes: u64) {
        let reserved = bytes.next_multiple_of(CHUNK);
        self.lendable += reserved;
        self.allocations.insert(address, Allocation { start: address, bytes, reserved });
    }

    /// The node backs it no longer: it is only lent again.
    pub(crate) fn unsettle(&mut self, address: u64) -> Option<Range<u64>> {
        let allocation = self.allocations.remove(&address)?;
        self.lendable = self.lendable.saturating_sub(allocation.reserved);
        Some(address..address + allocation.reserved)
    }

    /// The allocation that `address` lies in.
    pub(crate) fn find(&self, address: u64) -> Option<Allocation> {
        let (_, allocation) = self.allocations.range(..=address).next_back()?;
        (address - allocation.start < allocation.bytes).then_some(*allocation)
    }
}

/// Cuts `bytes` off the first run that has them.
fn take_first_fit(runs: &mut BTreeMap<u64, u64>, bytes: u64) -> Option<u64> {
    let (&start, &length) = runs.iter().find(|(_, length)| **length >= bytes)?;
    runs.remove(&start);
    if length > bytes {
        runs.insert(start + bytes, length - bytes);
    }
    Some(start)
}

/// Cuts a range out of the run that it lies in, if there is one.
fn take_at(runs: &mut BTreeMap<u64, u64>, address: u64, bytes: u64) -> bool {
    let Some((&start, &length)) = runs.range(..=address).next_back() else { return false };
    let before = address - start;
    if before > length || bytes > length - before {
        return false;
    }
    runs.remove(&start);
    let after = length - before - bytes;
    runs.extend([(start, before), (address + bytes, after)].into_iter().filter(|(_, length)| *length > 0));
    true
}

/// Adds a run, merging it with its neighbours.
fn give_back(runs: &mut BTreeMap<u64, u64>, start: u64, bytes: u64) -> Range<u64> {
    let (mut start, mut end) = (start, start + bytes);
    if let Some(length) = runs.remove(&end) {
        end += length;
    }
    if let Some((&before, &length)) = runs.range(..start).next_back()
        && before + length == start
    {
        start = before;
    }
    runs.insert(start, end - start);
    start..end
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x7000_0000_0000;

    fn space(chunks: u64) -> Space {
        Space::new(BASE..BASE + chunks * CHUNK)
    }

    #[test]
    fn small_allocations_share_a_chunk_and_give_it_back() {
        let mut space = space(4);
        let first = space.allocate(1, false).unwrap();
        let second = space.allocate(1000, false).unwrap();
        assert_eq!(first, Placement { address: BASE + MARGIN, commit: Some(BASE..BASE + CHUNK) });
        assert_eq!(second, Placement { address: BASE + MARGIN + ALIGNMENT, commit: None });
        assert_eq!(space.free(first.address).unwrap().1, None);
        assert_eq!(space.free(second.address).unwrap().1, Some(BASE..BASE + CHUNK));
        assert!(space.free(second.address).is_none());
    }

    #[test]
    fn large_allocations_own_their_chunks() {
        let mut space = space(4);
        let large = space.allocate(CHUNK + 1, false).unwrap();
        assert_eq!(large.commit, Some(BASE..BASE + 2 * CHUNK));
        assert!(space.allocate(3 * CHUNK, false).is_none());
        assert_eq!(space.free(BASE).unwrap().1, large.commit);
        assert_eq!(space.allocate(4 * CHUNK, false).unwrap().address, BASE);
    }

    #[test]
    fn a_shared_chunk_has_memory_around_its_allocations() {
        let mut space = space(1);
        let pieces: Vec<Range<u64>> = std::iter::from_fn(|| space.allocate(CHUNK / 8, false))
            .map(|piece| piece.address..piece.address + CHUNK / 8)
            .collect();
        let (first, last) = (pieces.first().unwrap(), pieces.last().unwrap());
        assert!(first.start >= BASE + MARGIN && last.end <= BASE + CHUNK - MARGIN);
        assert_eq!(pieces.len(), 7);
    }

    #[test]
    fn pieces_of_neighbouring_chunks_stay_apart() {
        let mut space = space(2);
        let pieces: Vec<u64> = (0..8).map(|_| space.allocate(SHARED / 4, false).unwrap().address).collect();
        let released: Vec<_> = pieces.iter().filter_map(|&piece| space.free(piece).unwrap().1).collect();
        assert_eq!(released, [BASE..BASE + CHUNK, BASE + CHUNK..BASE + 2 * CHUNK]);
        assert_eq!(space.allocate(2 * CHUNK, false).unwrap().address, BASE);
    }

    #[test]
    fn a_reservation_is_aligned_and_comes_back() {
        let mut space = space(8);
        let first = space.reserve(CHUNK, 0, 0).unwrap();
        assert_eq!(first, BASE);
        assert_eq!(space.reserve(2 * CHUNK, 4 * CHUNK, 0), Some(BASE + 4 * CHUNK));
        assert_eq!(space.reserve(CHUNK, 0, BASE + 7 * CHUNK), Some(BASE + 7 * CHUNK));
        assert_eq!(
            space.reserve(CHUNK, 0, BASE + 7 * CHUNK),
            Some(BASE + CHUNK),
            "a taken hint is only a hint"
        );
        assert_eq!(space.reserve(4 * CHUNK, 0, 0), None);
        for (start, bytes) in [(BASE, 1), (BASE + 4 * CHUNK, 2), (BASE + 7 * CHUNK, 1), (BASE + CHUNK, 1)] {
            space.unreserve(start, bytes * CHUNK);
        }
        assert_eq!(space.free_chunks, BTreeMap::from([(BASE, 8 * CHUNK)]));
    }

    #[test]
    fn host_memory_is_lent_addresses_at_the_end_and_at_most_half() {
        let mut space = space(8);
        assert_eq!(space.lend(1), Some(BASE + 7 * CHUNK));
        assert_eq!(space.lend(2 * CHUNK + 1), Some(BASE + 4 * CHUNK));
        assert_eq!(space.lend(1), None, "the rest is the device's");
        assert_eq!(space.allocate(CHUNK, false).unwrap().address, BASE);
        assert!(space.find(BASE + 7 * CHUNK).is_none(), "nothing is there");
        space.settle(BASE + 7 * CHUNK, 1);
        assert_eq!(space.find(BASE + 7 * CHUNK).unwrap().bytes, 1);
        assert_eq!(space.unsettle(BASE + 7 * CHUNK), Some(BASE + 7 * CHUNK..BASE + 8 * CHUNK));
        assert!(space.find(BASE + 7 * CHUNK).is_none());
        space.settle(BASE + 7 * CHUNK, 1);
        assert_eq!(space.free(BASE + 7 * CHUNK).unwrap().1, Some(BASE + 7 * CHUNK..BASE + 8 * CHUNK));
        space.take_back(BASE + 4 * CHUNK, 2 * CHUNK + 1);
        space.free(BASE).unwrap();
        assert_eq!(space.free_chunks, BTreeMap::from([(BASE, 8 * CHUNK)]));
        assert_eq!(space.lend(4 * CHUNK), Some(BASE + 4 * CHUNK), "all that was lent is back");
    }

    #[test]
    fn an_address_belongs_to_the_bytes_asked_for() {
        let mut space = space(1);
        let address = space.allocate(100, false).unwrap().address;
        assert_eq!(space.find(address + 99).unwrap().start, address);
        assert!(space.find(address + 100).is_none());
    }

    /// Random allocations and frees: no two overlap, and at the end every chunk is free again.
    #[test]
    fn random_use_leaves_nothing_behind() {
        let seed = 0x9E37_79B9_7F4A_7C15_u64;
        println!("seed {seed:#x}");
        let mut state = seed;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut space = space(64);
        let mut held: Vec<Range<u64>> = Vec::new();
        for _ in 0..20_000 {
            if random(2) == 0 || held.is_empty() {
                let scale = random(23);
                let bytes = 1 + random(1 << scale);
                if let Some(placement) = space.allocate(bytes, false) {
                    let new = placement.address..placement.address + bytes;
                    assert!(held.iter().all(|old| new.end <= old.start || old.end <= new.start));
                    held.push(new);
                }
            } else {
                let gone = held.swap_remove(random(held.len() as u64) as usize);
                space.free(gone.start).unwrap();
            }
        }
        for gone in held {
            space.free(gone.start).unwrap();
        }
        assert_eq!(space.free_chunks, BTreeMap::from([(BASE, 64 * CHUNK)]));
        assert!(space.free_pieces.is_empty());
    }
}
