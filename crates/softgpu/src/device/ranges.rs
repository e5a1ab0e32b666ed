//! Free ranges of addresses, first fit, with neighbours merged.

use std::collections::BTreeMap;

/// The free part of an address range: start to length, disjoint and never adjacent.
#[derive(Debug, Default)]
pub(crate) struct FreeRanges {
    free: BTreeMap<u64, u64>,
}

impl FreeRanges {
    /// One free range of `size` bytes at `start`.
    pub(crate) fn new(start: u64, size: u64) -> Self {
        Self { free: BTreeMap::from([(start, size)]) }
    }

    /// Takes `size` bytes aligned to `align` (a power of two) at the lowest address where they fit.
    pub(crate) fn take(&mut self, size: u64, align: u64) -> Option<u64> {
        let (start, address) = self.free.iter().find_map(|(&start, &len)| {
            let address = start.checked_add(align - 1)? & !(align - 1);
            (address.checked_add(size)? <= start + len).then_some((start, address))
        })?;
        self.cut(start, address, size);
        Some(address)
    }

    /// Takes `size` bytes aligned to `align` (a power of two) at the highest address where they
    /// fit.
    pub(crate) fn take_high(&mut self, size: u64, align: u64) -> Option<u64> {
        let (start, address) = self.free.iter().rev().find_map(|(&start, &len)| {
            let address = (start + len).checked_sub(size)? & !(align - 1);
            (address >= start).then_some((start, address))
        })?;
        self.cut(start, address, size);
        Some(address)
    }

    /// Takes exactly `[address, address + size)`, if all of it is free.
    pub(crate) fn take_at(&mut self, address: u64, size: u64) -> bool {
        let Some((&start, &len)) = self.free.range(..=address).next_back() else { return false };
        let fits = address.checked_add(size).is_some_and(|end| end <= start + len);
        if fits {
            self.cut(start, address, size);
        }
        fits
    }

    /// Gives `[address, address + size)` back. It must have been taken.
    pub(crate) fn give(&mut self, mut address: u64, mut size: u64) {
        if let Some((&start, &len)) = self.free.range(..address).next_back() {
            debug_assert!(start + len <= address, "a range was given back twice");
            if start + len == address {
                self.free.remove(&start);
                (address, size) = (start, size + len);
            }
        }
        if let Some(len) = self.free.remove(&(address + size)) {
            size += len;
        }
        self.free.insert(address, size);
    }

    /// Removes `[address, address + size)` from the free range that begins at `start`.
    fn cut(&mut self, start: u64, address: u64, size: u64) {
        let Some(len) = self.free.remove(&start) else { return };
        if address > start {
            self.free.insert(start, address - start);
        }
        let (end, cut_end) = (start + len, address + size);
        if end > cut_end {
            self.free.insert(cut_end, end - cut_end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_merge_when_given_back() {
        let mut ranges = FreeRanges::new(0x1000, 0x1000);
        let a = ranges.take(0x100, 0x100).expect("room for a");
        let b = ranges.take(0x200, 0x100).expect("room for b");
        let c = ranges.take(0x100, 0x100).expect("room for c");
        ranges.give(a, 0x100);
        ranges.give(c, 0x100);
        ranges.give(b, 0x200);
        assert_eq!(ranges.free, BTreeMap::from([(0x1000, 0x1000)]));
    }

    #[test]
    fn alignment_leaves_the_gap_free() {
        let mut ranges = FreeRanges::new(0x1100, 0x2000);
        assert_eq!(ranges.take(0x100, 0x1000), Some(0x2000));
        assert_eq!(ranges.take(0xf00, 0x100), Some(0x1100));
        assert_eq!(ranges.take_high(0x80, 0x200), Some(0x3000));
        assert_eq!(ranges.take_high(0x80, 0x80), Some(0x3080));
    }

    #[test]
    fn a_fixed_address_is_taken_once() {
        let mut ranges = FreeRanges::new(0x1000, 0x1000);
        assert!(ranges.take_at(0x1800, 0x100));
        assert!(!ranges.take_at(0x1700, 0x200));
        assert!(!ranges.take_at(0x1f00, 0x200));
    }
}
