//! Advice about managed memory: what a program has said of ranges of it, as
//! `cuMemRangeGetAttribute` reads it back (CUDA Driver API, "Memory Management" and "Unified
//! Addressing").

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::attributes::CUmem_range_attribute;
use crate::enums::{CUmem_advise, CUmemLocationType};
use crate::handles::CUdevice;
use crate::result::CUresult;
use crate::structs::CUmemLocation;

/// `CU_DEVICE_CPU`: the host, where a device is named.
pub const CU_DEVICE_CPU: CUdevice = -1;
/// `CU_DEVICE_INVALID`: no place, or several.
pub const CU_DEVICE_INVALID: CUdevice = -2;

/// Advice holds for whole pages of the host.
const PAGE: u64 = 4096;

/// The advice for all managed memory of a process.
#[derive(Debug, Default)]
pub struct ManagedAdvice {
    /// Pieces that do not overlap, by their start. Memory outside of them was never given any
    /// advice.
    pieces: BTreeMap<u64, Piece>,
}

#[derive(Clone, Debug)]
struct Piece {
    end: u64,
    advice: Advice,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Advice {
    read_mostly: bool,
    preferred: Option<CUmemLocation>,
    accessed_by: BTreeSet<CUdevice>,
    prefetched_to: Option<CUmemLocation>,
}

impl ManagedAdvice {
    pub const fn new() -> ManagedAdvice {
        ManagedAdvice { pieces: BTreeMap::new() }
    }

    /// Keeps a program's advice for a range; `location` counts for the kinds of advice that have
    /// one.
    pub fn advise(
        &mut self,
        range: Range<u64>,
        advice: CUmem_advise,
        location: CUmemLocation,
    ) -> Result<(), CUresult> {
        let change: &dyn Fn(&mut Advice) = match advice {
            CUmem_advise::SET_READ_MOSTLY => &|advice| advice.read_mostly = true,
            CUmem_advise::UNSET_READ_MOSTLY => &|advice| advice.read_mostly = false,
            CUmem_advise::SET_PREFERRED_LOCATION => &|advice| advice.preferred = Some(location),
            CUmem_advise::UNSET_PREFERRED_LOCATION => &|advice| advice.preferred = None,
            CUmem_advise::SET_ACCESSED_BY => &|advice| _ = advice.accessed_by.insert(device_of(location)),
            CUmem_advise::UNSET_ACCESSED_BY => &|advice| _ = advice.accessed_by.remove(&device_of(location)),
            _ => return Err(CUresult::INVALID_VALUE),
        };
        self.change(range, change);
        Ok(())
    }

    /// Keeps where a range was prefetched to.
    pub fn prefetched(&mut self, range: Range<u64>, location: CUmemLocation) {
        self.change(range, &|advice| advice.prefetched_to = Some(location));
    }

    /// Forgets a range, which is other memory from now on.
    pub fn forget(&mut self, range: Range<u64>) {
        let range = whole_pages(range);
        self.split_at(range.start);
        self.split_at(range.end);
        let gone: Vec<u64> = self.pieces.range(range).map(|(&start, _)| start).collect();
        gone.into_iter().for_each(|start| _ = self.pieces.remove(&start));
    }

    /// An attribute of a range as it is written to `words` ints. Where its pages differ, it has
    /// none.
    pub fn attribute(
        &self,
        range: Range<u64>,
        attribute: CUmem_range_attribute,
        words: usize,
    ) -> Result<Vec<i32>, CUresult> {
        use CUmem_range_attribute as A;
        let pieces = self.advice_of(whole_pages(range));
        let value = match attribute {
            A::ACCESSED_BY if words > 0 => return Ok(accessed_by_all(&pieces, words)),
            _ if words != 1 => return Err(CUresult::INVALID_VALUE),
            A::READ_MOSTLY => i32::from(pieces.iter().all(|advice| advice.read_mostly)),
            A::PREFERRED_LOCATION => device(common(&pieces, |advice| advice.preferred)),
            A::PREFERRED_LOCATION_TYPE => kind(common(&pieces, |advice| advice.preferred)),
            A::PREFERRED_LOCATION_ID => id(common(&pieces, |advice| advice.preferred)),
            A::LAST_PREFETCH_LOCATION => device(common(&pieces, |advice| advice.prefetched_to)),
            A::LAST_PREFETCH_LOCATION_TYPE => kind(common(&pieces, |advice| advice.prefetched_to)),
            A::LAST_PREFETCH_LOCATION_ID => id(common(&pieces, |advice| advice.prefetched_to)),
            _ => return Err(CUresult::INVALID_VALUE),
        };
        Ok(vec![value])
    }

    /// Changes the advice of each page of a range.
    fn change(&mut self, range: Range<u64>, change: &dyn Fn(&mut Advice)) {
        let range = whole_pages(range);
        self.split_at(range.start);
        self.split_at(range.end);
        self.fill_gaps(&range);
        self.pieces.range_mut(range).for_each(|(_, piece)| change(&mut piece.advice));
    }

    /// Makes a piece begin at `address` where one goes across it.
    fn split_at(&mut self, address: u64) {
        let Some((_, piece)) = self.pieces.range_mut(..address).next_back() else { return };
        if piece.end > address {
            let rest = piece.clone();
            piece.end = address;
            self.pieces.insert(address, rest);
        }
    }

    /// Gives each page of a range a piece. No piece goes across the ends of the range.
    fn fill_gaps(&mut self, range: &Range<u64>) {
        let mut next = range.start;
        let mut gaps = Vec::new();
        for (&start, piece) in self.pieces.range(range.clone()) {
            gaps.push(next..start);
            next = piece.end;
        }
        gaps.push(next..range.end);
        for gap in gaps.into_iter().filter(|gap| !gap.is_empty()) {
            self.pieces.insert(gap.start, Piece { end: gap.end, advice: Advice::default() });
        }
    }

    /// The advice for each part of a range.
    fn advice_of(&self, range: Range<u64>) -> Vec<Advice> {
        let before =
            self.pieces.range(..range.start).next_back().filter(|(_, piece)| piece.end > range.start);
        let mut found = Vec::new();
        let mut next = range.start;
        for (&start, piece) in before.into_iter().chain(self.pieces.range(range.clone())) {
            if start > next {
                found.push(Advice::default());
            }
            found.push(piece.advice.clone());
            next = piece.end;
        }
        if next < range.end {
            found.push(Advice::default());
        }
        found
    }
}

fn whole_pages(range: Range<u64>) -> Range<u64> {
    range.start / PAGE * PAGE..range.end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
}

fn device_of(location: CUmemLocation) -> CUdevice {
    if location.kind == CUmemLocationType::DEVICE { location.id } else { CU_DEVICE_CPU }
}

/// What `of` finds in all pieces alike.
fn common(pieces: &[Advice], of: impl Fn(&Advice) -> Option<CUmemLocation>) -> Option<CUmemLocation> {
    let first = of(pieces.first()?)?;
    pieces.iter().all(|advice| of(advice) == Some(first)).then_some(first)
}

fn device(location: Option<CUmemLocation>) -> i32 {
    location.map_or(CU_DEVICE_INVALID, device_of)
}

fn kind(location: Option<CUmemLocation>) -> i32 {
    location.map_or(CUmemLocationType::INVALID, |location| location.kind).0 as i32
}

/// What the kind says that it is; 0 where that is nothing.
fn id(location: Option<CUmemLocation>) -> i32 {
    location.map_or(0, |location| location.id)
}

/// The devices that access all pieces, and `CU_DEVICE_INVALID` in the places that are left.
fn accessed_by_all(pieces: &[Advice], words: usize) -> Vec<i32> {
    let mut devices = pieces.first().map_or(BTreeSet::new(), |advice| advice.accessed_by.clone());
    devices.retain(|device| pieces.iter().all(|advice| advice.accessed_by.contains(device)));
    devices.into_iter().chain(std::iter::repeat(CU_DEVICE_INVALID)).take(words).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use CUmem_range_attribute as A;

    const MEMORY: Range<u64> = 0x10_0000..0x14_0000;
    const GPU: CUmemLocation = CUmemLocation { kind: CUmemLocationType::DEVICE, id: 1 };
    const HOST: CUmemLocation = CUmemLocation { kind: CUmemLocationType::HOST, id: 0 };

    fn one(advice: &ManagedAdvice, range: Range<u64>, attribute: A) -> i32 {
        advice.attribute(range, attribute, 1).unwrap()[0]
    }

    #[test]
    fn memory_without_advice_has_none() {
        let advice = ManagedAdvice::new();
        assert_eq!(one(&advice, MEMORY, A::READ_MOSTLY), 0);
        assert_eq!(one(&advice, MEMORY, A::PREFERRED_LOCATION), CU_DEVICE_INVALID);
        assert_eq!(advice.attribute(MEMORY, A::ACCESSED_BY, 2), Ok(vec![CU_DEVICE_INVALID; 2]));
        assert_eq!(advice.attribute(MEMORY, A::READ_MOSTLY, 2), Err(CUresult::INVALID_VALUE));
    }

    #[test]
    fn advice_is_read_back_until_it_is_taken_back() {
        let mut advice = ManagedAdvice::new();
        for (set, unset, attribute, expect) in [
            (CUmem_advise::SET_READ_MOSTLY, CUmem_advise::UNSET_READ_MOSTLY, A::READ_MOSTLY, (1, 0)),
            (
                CUmem_advise::SET_PREFERRED_LOCATION,
                CUmem_advise::UNSET_PREFERRED_LOCATION,
                A::PREFERRED_LOCATION,
                (1, CU_DEVICE_INVALID),
            ),
            (
                CUmem_advise::SET_ACCESSED_BY,
                CUmem_advise::UNSET_ACCESSED_BY,
                A::ACCESSED_BY,
                (1, CU_DEVICE_INVALID),
            ),
        ] {
            advice.advise(MEMORY, set, GPU).unwrap();
            assert_eq!(one(&advice, MEMORY, attribute), expect.0, "{set:?}");
            advice.advise(MEMORY, unset, GPU).unwrap();
            assert_eq!(one(&advice, MEMORY, attribute), expect.1, "{unset:?}");
        }
    }

    #[test]
    fn a_range_has_what_all_of_its_pages_have() {
        let mut advice = ManagedAdvice::new();
        let (first, second) = (0x10_0000..0x12_0000, 0x12_0000..0x14_0000);
        advice.prefetched(first.clone(), GPU);
        assert_eq!(one(&advice, MEMORY, A::LAST_PREFETCH_LOCATION), CU_DEVICE_INVALID);
        assert_eq!(one(&advice, first, A::LAST_PREFETCH_LOCATION), 1);
        advice.prefetched(second, HOST);
        assert_eq!(one(&advice, MEMORY, A::LAST_PREFETCH_LOCATION_TYPE), 0);
        advice.advise(MEMORY, CUmem_advise::SET_ACCESSED_BY, GPU).unwrap();
        advice.advise(MEMORY, CUmem_advise::SET_ACCESSED_BY, HOST).unwrap();
        advice.advise(0x13_0000..0x13_0001, CUmem_advise::UNSET_ACCESSED_BY, HOST).unwrap();
        assert_eq!(
            advice.attribute(MEMORY, A::ACCESSED_BY, 3),
            Ok(vec![1, CU_DEVICE_INVALID, CU_DEVICE_INVALID])
        );
        assert_eq!(advice.attribute(0x13_1000..0x13_2000, A::ACCESSED_BY, 2), Ok(vec![CU_DEVICE_CPU, 1]));
    }

    #[test]
    fn memory_that_was_freed_is_forgotten() {
        let mut advice = ManagedAdvice::new();
        advice.advise(MEMORY, CUmem_advise::SET_READ_MOSTLY, HOST).unwrap();
        advice.forget(0x11_0000..0x12_0000);
        assert_eq!(one(&advice, MEMORY, A::READ_MOSTLY), 0);
        assert_eq!(one(&advice, 0x12_0000..0x14_0000, A::READ_MOSTLY), 1);
    }
}
