//! The allocations of a process, the freed ones as long as their addresses are not used again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::report;
use crate::shadow::Shadow;

/// Whether memory was given up by now, for frees that wait for a stream.
pub(crate) type IsGone = Box<dyn Fn() -> bool + Send + Sync>;

/// Memory is mapped in multiples of this, in bytes.
const PAGE: u64 = 2 << 20;

/// Memory that kernels may use.
pub(crate) struct Region {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    pub(crate) label: &'static str,
    pub(crate) number: u64,
    pub(crate) shadow: Shadow,
    is_freed: AtomicBool,
    /// The free that the program has asked for, in the order of a stream.
    leaves: RwLock<Option<IsGone>>,
}

impl Region {
    pub(crate) fn new(base: u64, bytes: u64, label: &'static str, number: u64, shadow: Shadow) -> Region {
        let (is_freed, leaves) = (AtomicBool::new(false), RwLock::new(None));
        Region { base, bytes, label, number, shadow, is_freed, leaves }
    }

    pub(crate) fn end(&self) -> u64 {
        self.base.saturating_add(self.bytes)
    }

    pub(crate) fn is_freed(&self) -> bool {
        self.is_freed.load(Ordering::Acquire) || {
            let leaves = self.leaves.read().unwrap_or_else(PoisonError::into_inner);
            leaves.as_ref().is_some_and(|is_gone| is_gone())
        }
    }

    pub(crate) fn covers(&self, address: u64, bytes: u64) -> bool {
        address >= self.base
            && address - self.base < self.bytes
            && bytes <= self.bytes - (address - self.base)
    }

    /// Whether the pages at an address are there because of this region.
    fn maps(&self, address: u64) -> bool {
        (self.base / PAGE * PAGE..self.end().next_multiple_of(PAGE)).contains(&address)
    }

    pub(crate) fn describe(&self, address: u64) -> report::Region {
        report::Region {
            label: self.label.to_owned(),
            base: self.base,
            bytes: self.bytes,
            number: self.number,
            offset: address.wrapping_sub(self.base) as i64,
            is_freed: self.is_freed(),
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({:#x}..{:#x})", self.base, self.end())
    }
}

/// All regions, by address.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    regions: RwLock<BTreeMap<u64, Arc<Region>>>,
    /// Advances with each change, so that what was looked up can be kept until then.
    generation: AtomicU64,
}

impl Memory {
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Enters a region in the place of freed ones that were there.
    pub(crate) fn insert(&self, region: Region) {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        let before =
            regions.range(..region.base).next_back().filter(|(_, before)| before.end() > region.base);
        let old: Vec<u64> = before
            .into_iter()
            .chain(regions.range(region.base..region.end().max(region.base + 1)))
            .map(|(&base, _)| base)
            .collect();
        old.iter().for_each(|base| _ = regions.remove(base));
        regions.insert(region.base, Arc::new(region));
        self.change();
    }

    /// The region that starts at `base` is freed: now, or once `is_gone` says so.
    pub(crate) fn free(&self, base: u64, is_gone: Option<IsGone>) -> Option<Arc<Region>> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let region = Arc::clone(regions.get(&base)?);
        match is_gone {
            None => region.is_freed.store(true, Ordering::Release),
            some => *region.leaves.write().unwrap_or_else(PoisonError::into_inner) = some,
        }
        self.change();
        Some(region)
    }

    /// The region that `address` is in, or the nearest one in front of it.
    pub(crate) fn at_or_before(&self, address: u64) -> Option<Arc<Region>> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        regions.range(..=address).next_back().map(|(_, region)| Arc::clone(region))
    }

    /// The region nearest to an address that is in none, and whether pages are mapped there.
    pub(crate) fn nearest(&self, address: u64) -> Option<(Arc<Region>, bool)> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let before = regions.range(..=address).next_back().map(|(_, region)| region);
        let behind = regions.range(address..).next().map(|(_, region)| region);
        let is_mapped = before.is_some_and(|r| r.maps(address)) || behind.is_some_and(|r| r.maps(address));
        let nearest = match (before, behind) {
            (Some(before), Some(behind)) => {
                let is_nearer = behind.base - address < address.saturating_sub(before.end());
                if is_nearer { behind } else { before }
            }
            (one, other) => one.or(other)?,
        };
        Some((Arc::clone(nearest), is_mapped))
    }

    /// Calls `each` with the parts of a range that lie in regions, and their offsets there.
    pub(crate) fn for_each(&self, address: u64, bytes: u64, mut each: impl FnMut(&Region, u64, u64)) {
        let end = address.saturating_add(bytes);
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let before = regions.range(..=address).next_back().map(|(&base, _)| base);
        for (_, region) in regions.range(before.unwrap_or(address)..end) {
            let (from, to) = (address.max(region.base), end.min(region.end()));
            if from < to {
                each(region, from - region.base, to - from);
            }
        }
    }

    fn change(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(base: u64, bytes: u64) -> Region {
        Region::new(base, bytes, "device memory", 1, Shadow::default())
    }

    #[test]
    fn the_nearest_region_may_be_on_either_side() {
        let memory = Memory::default();
        memory.insert(region(0x1000, 0x100));
        memory.insert(region(0x2000, 0x100));
        assert_eq!(memory.nearest(0x1101).unwrap().0.base, 0x1000);
        assert_eq!(memory.nearest(0x1fff).unwrap().0.base, 0x2000);
        assert!(memory.nearest(0x1fff).unwrap().1, "within its page");
        assert!(!memory.nearest(0x1000 + PAGE).unwrap().1);
    }

    #[test]
    fn a_new_region_takes_the_place_of_freed_ones() {
        let memory = Memory::default();
        memory.insert(region(0x1000, 0x100));
        memory.free(0x1000, None);
        assert!(memory.at_or_before(0x1010).unwrap().is_freed());
        let generation = memory.generation();
        memory.insert(region(0x0f80, 0x100));
        assert_ne!(memory.generation(), generation);
        let found = memory.at_or_before(0x1010).unwrap();
        assert_eq!((found.base, found.is_freed()), (0x0f80, false));
        assert!(found.covers(0x107f, 1) && !found.covers(0x107f, 2) && !found.covers(0x1080, 1));
    }
}
