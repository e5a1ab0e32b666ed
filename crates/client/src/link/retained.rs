//! Copies of large data that may have to be sent again: memory of their own, which goes when the
//! worker has them.
//!
//! A far link has up to [`WINDOW_MAX`](sluice_wire::resume::WINDOW_MAX) of them under way. From the
//! allocator that would be one page fault for each 4 KiB of each copy, and a heap that the program
//! keeps. Regions have the size and the alignment of a huge page, and stay for the next copy: a new
//! one costs more, since the kernel clears it, than what is copied into it. While nothing is in
//! them the system may take all but a few back (`MADV_FREE`).

use std::ptr::NonNull;
use std::sync::Arc;

use sluice_wire::resume::WINDOW_MAX;

/// Bytes of a region, and a multiple of what it begins at: a huge page of x86-64, and of AArch64
/// with pages of 4 KiB.
const REGION_BYTES: usize = 2 << 20;
/// Regions of this process alone: the least window, and what the last piece leaves
/// free.
const REGIONS_OWN: usize = 5;
/// Most regions that stay.
const REGIONS_MAX: usize = WINDOW_MAX as usize / REGION_BYTES + 1;

/// Where data are copied to. Always used under the lock of the outbox.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    regions: Vec<Arc<Region>>,
    /// The region that is being filled, and how far it is.
    current: Option<(Arc<Region>, usize)>,
}

/// A copy.
#[derive(Debug)]
pub(crate) struct Kept {
    region: Arc<Region>,
    start: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Region {
    start: NonNull<u8>,
    /// While it is free the system may take its memory back.
    is_reclaimable: bool,
}

// SAFETY: plain memory. Each byte of it is written once between two uses of the region, before it
// is shared as a `Kept`.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Keeper {
    /// Copies the data, at most [`REGION_BYTES`]; `None` if there is no memory for that.
    pub(crate) fn keep(&mut self, data: &[u8]) -> Option<Kept> {
        if data.len() > REGION_BYTES {
            return None;
        }
        let fits = |(_, filled): &(_, usize)| data.len() <= REGION_BYTES - filled;
        let current = self.current.take().filter(fits);
        let (region, start) = match current {
            Some(current) => current,
            None => (self.region()?, 0),
        };
        // SAFETY: the region has that many bytes there, and they are not shared: it is filled from
        // its beginning to its end, and reused only when no other part of it is shared.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), region.start.as_ptr().add(start), data.len()) };
        self.current = Some((Arc::clone(&region), start + data.len()));
        Some(Kept { region, start, bytes: data.len() })
    }

    /// A region of which no part is in use.
    fn region(&mut self) -> Option<Arc<Region>> {
        let mut regions = self.regions.iter_mut();
        let free = regions.find_map(|region| Arc::get_mut(region).is_some().then(|| Arc::clone(region)));
        if free.is_some() {
            return free;
        }
        let region = Arc::new(Region::new(self.regions.len() >= REGIONS_OWN)?);
        if self.regions.len() < REGIONS_MAX {
            self.regions.push(Arc::clone(&region));
        }
        Some(region)
    }
}

impl Kept {
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: these bytes of the region were written before this value was made, and are not
        // written while it lives.
        unsafe { std::slice::from_raw_parts(self.region.start.as_ptr().add(self.start), self.bytes) }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // At most one more reference exists: to find the region again, or to fill it further. No
        // written part is in use.
        if self.region.is_reclaimable && Arc::strong_count(&self.region) <= 2 {
            // SAFETY: the mapping is the region's own, and none of it is read before it is written
            // anew. A system that cannot do this keeps it.
            unsafe { libc::madvise(self.region.start.as_ptr().cast(), REGION_BYTES, libc::MADV_FREE) };
        }
    }
}

impl Region {
    fn new(is_reclaimable: bool) -> Option<Region> {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice, in which an aligned region
        // lies.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), 2 * REGION_BYTES, rights, flags, -1, 0) };
        let whole = NonNull::new(mapped.cast::<u8>()).filter(|_| mapped != libc::MAP_FAILED)?;
        let before = whole.as_ptr().align_offset(REGION_BYTES).min(REGION_BYTES);
        // SAFETY: `before` bytes at the beginning of the mapping, and the unused rest behind the
        // region. That huge pages are not to be had changes nothing.
        unsafe {
            let region = whole.add(before);
            if before > 0 {
                libc::munmap(mapped, before);
            }
            if before < REGION_BYTES {
                libc::munmap(region.add(REGION_BYTES).as_ptr().cast(), REGION_BYTES - before);
            }
            libc::madvise(region.as_ptr().cast(), REGION_BYTES, libc::MADV_HUGEPAGE);
            Some(Region { start: region, is_reclaimable })
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { libc::munmap(self.start.as_ptr().cast(), REGION_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_stays_until_it_goes_and_its_memory_is_used_again() {
        let mut keeper = Keeper::default();
        let piece = |value: u8| vec![value; REGION_BYTES / 2 - 100];
        let mut before = Vec::new();
        for round in 0..3_u8 {
            let mut kept: Vec<Kept> = Vec::new();
            for value in 0..200_u8 {
                kept.push(keeper.keep(&piece(value + round)).unwrap());
            }
            for (kept, value) in kept.iter().zip(round..) {
                assert!(kept.bytes() == piece(value));
            }
            assert_eq!(keeper.regions.len(), REGIONS_MAX);
            let addresses: Vec<_> = keeper.regions.iter().map(|region| region.start).collect();
            assert!(addresses.iter().all(|address| address.as_ptr().align_offset(REGION_BYTES) == 0));
            assert!(round == 0 || before == addresses, "no region was made anew");
            before.clone_from(&addresses);
            kept.clear();
            keeper.current = None;
            let again = keeper.keep(&[1]).unwrap();
            assert!(addresses.contains(&again.region.start), "what is free is used first");
        }
    }

    #[test]
    fn more_than_a_region_is_not_kept() {
        let mut keeper = Keeper::default();
        assert!(keeper.keep(&vec![1; REGION_BYTES + 1]).is_none());
        assert_eq!(keeper.keep(&vec![1; REGION_BYTES]).unwrap().bytes().len(), REGION_BYTES);
        assert_eq!(keeper.keep(&[2; 3]).unwrap().bytes(), [2; 3]);
    }
}
