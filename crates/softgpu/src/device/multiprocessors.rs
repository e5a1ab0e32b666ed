//! Parts of a device's multiprocessors, which green contexts have (CUDA Driver API, Green
//! Contexts).
//!
//! A resource travels through the program as a structure of bytes. What it stands for is in its
//! padding: the device, which multiprocessors, and which split made it. What comes back is checked
//! against the device, so made-up bytes are an error.

use std::sync::atomic::{AtomicU64, Ordering};

use sluice_cuda::{CUdevResource, CUdevResourceType};

use crate::base::status::{Result, Status};
use crate::base::table::Table;
use crate::device::{Device, device, driver};

/// Descriptors; the API has no way to destroy one.
pub(crate) static DESCRIPTORS: Table<Resource> = Table::new(22);
/// `CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING`.
const IGNORE_COSCHEDULING: u32 = 1;
/// All of `CUdevSmResourceSplit_flags`.
const SPLIT_FLAGS: u32 = 3;
/// `CU_DEV_SM_RESOURCE_GROUP_BACKFILL`.
const BACKFILL: u32 = 1;
/// The multiprocessors of a device that resources can name; one with more has this number of them.
const COUNT_MAX: u32 = 512;
/// What the padding of a resource of ours begins with.
const MARK: [u8; 4] = *b"slSM";

/// Some multiprocessors of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    device: u32,
    /// The split that it comes from; 0 for one that was asked for.
    split: u64,
    /// Whether it is a group of that split, which cannot be split again, and not what was left.
    is_group: bool,
    /// A part's smallest size, and of what its size is a multiple.
    min: u8,
    alignment: u8,
    members: [u64; COUNT_MAX as usize / 64],
}

/// What `CU_DEV_SM_RESOURCE_GROUP_PARAMS` asks of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    /// 0 asks how many there could be.
    pub(crate) count: u32,
    pub(crate) coscheduled: u32,
    pub(crate) flags: u32,
}

/// The groups of a split, and what is left, if anything.
pub(crate) type Parts = (Vec<Resource>, Option<Resource>);

impl Resource {
    /// All of a device.
    pub(crate) fn of(device: &Device) -> Result<Resource> {
        let (min, alignment) = driver()?.machine.partitions(device.limits.capability);
        let mut members = [0; COUNT_MAX as usize / 64];
        for index in 0..device.limits.multiprocessors.min(COUNT_MAX) {
            members[index as usize / 64] |= 1 << (index % 64);
        }
        let device = device.ordinal as u32;
        Ok(Resource { device, split: 0, is_group: false, min, alignment, members })
    }

    /// How many multiprocessors it has.
    pub(crate) fn count(&self) -> u32 {
        self.members.iter().map(|word| word.count_ones()).sum()
    }

    /// Returns these multiprocessors as a green context has them: free to be split.
    pub(crate) fn owned(self) -> Resource {
        Resource { split: 0, is_group: false, ..self }
    }

    pub(crate) fn device(&self) -> Result<&'static Device> {
        device(self.device as i32)
    }

    pub(crate) fn to_c(self) -> CUdevResource {
        let mut padding = [0; 92];
        padding[..4].copy_from_slice(&MARK);
        padding[4..8].copy_from_slice(&self.device.to_le_bytes());
        padding[8..16].copy_from_slice(&self.split.to_le_bytes());
        for (place, word) in padding[16..80].chunks_exact_mut(8).zip(self.members) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        padding[80..83].copy_from_slice(&[self.is_group.into(), self.min, self.alignment]);
        // `CUdevSmResource`: the count, the smallest part, the alignment and flags, 32 bits each.
        let words = [u64::from(self.count()) | u64::from(self.min) << 32, self.alignment.into(), 0, 0, 0];
        let (kind, next) = (CUdevResourceType::SM, std::ptr::null_mut());
        CUdevResource { kind, _internal_padding: padding, words, nextResource: next }
    }

    /// What a structure of the program stands for.
    pub(crate) fn from_c(resource: &CUdevResource) -> Result<Resource> {
        if resource.kind != CUdevResourceType::SM {
            return Err(Status::INVALID_RESOURCE_TYPE);
        }
        let padding = &resource._internal_padding;
        let word = |start: usize| {
            let bytes = padding[start..start + 8].try_into();
            bytes.map(u64::from_le_bytes).map_err(|_| Status::INVALID_VALUE)
        };
        let mut members = [0; COUNT_MAX as usize / 64];
        for (index, member) in members.iter_mut().enumerate() {
            *member = word(16 + 8 * index)?;
        }
        let device = (word(0)? >> 32) as u32;
        let (is_group, min, alignment) = (padding[80] == 1, padding[81], padding[82]);
        let resource = Resource { device, split: word(8)?, is_group, min, alignment, members };
        let whole = Resource::of(resource.device()?)?;
        let is_part = members.iter().zip(whole.members).all(|(part, whole)| part & !whole == 0);
        if padding[..4] != MARK || !is_part || resource.count() == 0 || alignment == 0 {
            return Err(Status::INVALID_VALUE);
        }
        Ok(resource)
    }

    /// Takes the first `count` multiprocessors away; `None` where there are fewer.
    fn take(&mut self, count: u32) -> Option<[u64; COUNT_MAX as usize / 64]> {
        if self.count() < count {
            return None;
        }
        let mut taken = [0; COUNT_MAX as usize / 64];
        let mut left = count;
        for (from, to) in self.members.iter_mut().zip(&mut taken) {
            while left > 0 && *from != 0 {
                let lowest = *from & from.wrapping_neg();
                (*from, *to, left) = (*from ^ lowest, *to | lowest, left - 1);
            }
        }
        Some(taken)
    }

    /// Splits into as many equal groups of at least `least` as there can be, and as are wanted.
    pub(crate) fn split_by_count(mut self, wanted: Option<u32>, flags: u32, least: u32) -> Result<Parts> {
        if flags & !SPLIT_FLAGS != 0 || wanted == Some(0) {
            return Err(Status::INVALID_VALUE);
        }
        if self.is_group || least > self.count() {
            return Err(Status::INVALID_RESOURCE_CONFIGURATION);
        }
        if flags & IGNORE_COSCHEDULING != 0 {
            (self.min, self.alignment) = (self.min.min(2), self.alignment.min(2));
        }
        let size = least.max(self.min.into()).next_multiple_of(self.alignment.into());
        let possible = self.count() / size;
        let count = wanted.map_or(possible, |wanted| wanted.min(possible));
        if count == 0 {
            return Err(Status::INVALID_RESOURCE_CONFIGURATION);
        }
        self.split_into(&vec![size; count as usize])
    }

    /// Splits off one group after the other, as each wish says, and writes the sizes that were left
    /// open to the wishes.
    pub(crate) fn split(mut self, wishes: &mut [Wish], is_question: bool) -> Result<Parts> {
        if self.is_group {
            return Err(Status::INVALID_RESOURCE_CONFIGURATION);
        }
        let (step, most) =
            (u32::from(self.alignment.min(2)), u32::from(self.alignment.max(self.min)).max(32));
        let (default, total) = (u32::from(self.alignment), self.count());
        let mut left = total;
        for wish in wishes.iter_mut() {
            let together = if wish.coscheduled == 0 { default } else { wish.coscheduled };
            if wish.flags & !BACKFILL != 0 || together > most || !together.is_multiple_of(step) {
                return Err(Status::INVALID_VALUE);
            }
            if wish.count > total || !wish.count.is_multiple_of(step) {
                return Err(Status::INVALID_VALUE);
            }
            let is_whole = wish.flags & BACKFILL != 0 || wish.count.is_multiple_of(together);
            if wish.count == 0 {
                let unit = if wish.flags & BACKFILL != 0 { step } else { together };
                wish.count = if left < together { 0 } else { left - left % unit };
            } else if !is_whole {
                return Err(Status::INVALID_VALUE);
            }
            let is_enough = wish.count >= together && wish.count > 0;
            if wish.count > left || !is_enough && !is_question {
                return Err(Status::INVALID_RESOURCE_CONFIGURATION);
            }
            left -= wish.count;
        }
        let sizes: Vec<u32> = wishes.iter().map(|wish| wish.count).collect();
        self.split = 0;
        self.split_into(&sizes)
    }

    fn split_into(mut self, sizes: &[u32]) -> Result<Parts> {
        static SPLITS: AtomicU64 = AtomicU64::new(1);
        self.split = SPLITS.fetch_add(1, Ordering::Relaxed);
        let mut groups = Vec::with_capacity(sizes.len());
        for &size in sizes {
            let members = self.take(size).ok_or(Status::INVALID_RESOURCE_CONFIGURATION)?;
            groups.push(Resource { members, is_group: true, ..self });
        }
        Ok((groups, (self.count() > 0).then_some(self)))
    }

    /// One resource with all that several parts of one split have.
    pub(crate) fn join(parts: &[Resource]) -> Result<Resource> {
        let (first, rest) = parts.split_first().ok_or(Status::INVALID_VALUE)?;
        let mut joined = *first;
        for part in rest {
            let is_related = part.device == first.device && part.split == first.split && part.split != 0;
            let overlaps = part.members.iter().zip(joined.members).any(|(part, joined)| part & joined != 0);
            if !is_related || overlaps || part.alignment != first.alignment {
                return Err(Status::INVALID_RESOURCE_CONFIGURATION);
            }
            for (joined, part) in joined.members.iter_mut().zip(part.members) {
                *joined |= part;
            }
        }
        Ok(joined)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(count: u32, min: u8, alignment: u8) -> Resource {
        let mut members = [0; 8];
        for index in 0..count {
            members[index as usize / 64] |= 1 << (index % 64);
        }
        Resource { device: 0, split: 0, is_group: false, min, alignment, members }
    }

    fn sizes((groups, left): &Parts) -> (Vec<u32>, u32) {
        (groups.iter().map(Resource::count).collect(), left.map_or(0, |left| left.count()))
    }

    #[test]
    fn groups_are_equal_aligned_and_disjoint() {
        let parts = resource(132, 8, 8).split_by_count(None, 0, 9).unwrap();
        assert_eq!(sizes(&parts), (vec![16; 8], 4));
        let all = parts.0.iter().chain(&parts.1).fold([0; 8], |mut all, part| {
            for (all, part) in all.iter_mut().zip(part.members) {
                assert_eq!(*all & part, 0);
                *all |= part;
            }
            all
        });
        assert_eq!(all, resource(132, 8, 8).members);
        assert_eq!(sizes(&resource(132, 8, 8).split_by_count(Some(2), 0, 0).unwrap()), (vec![8; 2], 116));
        assert_eq!(sizes(&resource(132, 8, 8).split_by_count(Some(1), 1, 9).unwrap()), (vec![10], 122));
        assert_eq!(sizes(&resource(4, 1, 1).split_by_count(Some(9), 0, 2).unwrap()), (vec![2; 2], 0));
    }

    #[test]
    fn impossible_splits_are_refused() {
        assert_eq!(
            resource(132, 8, 8).split_by_count(None, 0, 133),
            Err(Status::INVALID_RESOURCE_CONFIGURATION)
        );
        assert_eq!(resource(132, 8, 8).split_by_count(None, 4, 8), Err(Status::INVALID_VALUE));
        let (groups, left) = resource(20, 8, 8).split_by_count(Some(1), 0, 8).unwrap();
        let again = groups[0].split_by_count(None, 0, 8);
        assert_eq!(again, Err(Status::INVALID_RESOURCE_CONFIGURATION));
        assert_eq!(sizes(&groups[0].owned().split_by_count(None, 0, 8).unwrap()), (vec![8], 0));
        assert_eq!(sizes(&left.unwrap().split_by_count(None, 0, 8).unwrap()), (vec![8], 4));
    }

    #[test]
    fn open_sizes_are_found_in_order() {
        let wish = |count, coscheduled, flags| Wish { count, coscheduled, flags };
        let mut wishes = [wish(16, 4, 0), wish(0, 8, 0), wish(0, 2, BACKFILL)];
        let parts = resource(132, 8, 8).split(&mut wishes, false).unwrap();
        assert_eq!(sizes(&parts), (vec![16, 112, 4], 0));
        assert_eq!(wishes.map(|wish| wish.count), [16, 112, 4]);
        let mut nothing = [wish(132, 2, 0), wish(0, 2, 0)];
        let refused = resource(132, 8, 8).split(&mut nothing, false);
        assert_eq!(refused, Err(Status::INVALID_RESOURCE_CONFIGURATION));
        let mut nothing = [wish(132, 2, 0), wish(0, 2, 0)];
        assert!(resource(132, 8, 8).split(&mut nothing, true).is_ok());
        assert_eq!(nothing[1].count, 0);
        for bad in [wish(3, 2, 0), wish(134, 2, 0), wish(12, 8, 0), wish(8, 2, 2)] {
            assert_eq!(resource(132, 8, 8).split(&mut [bad], false), Err(Status::INVALID_VALUE), "{bad:?}");
        }
    }

    #[test]
    fn only_parts_of_one_split_join() {
        let (groups, left) = resource(20, 8, 8).split_by_count(None, 0, 8).unwrap();
        let left = left.unwrap();
        assert_eq!(Resource::join(&[groups[0], groups[1], left]).unwrap().count(), 20);
        let (others, _) = resource(20, 8, 8).split_by_count(None, 0, 8).unwrap();
        for bad in [[groups[0], others[1]], [groups[0], groups[0]]] {
            assert_eq!(Resource::join(&bad), Err(Status::INVALID_RESOURCE_CONFIGURATION));
        }
        assert_eq!(Resource::join(&[]), Err(Status::INVALID_VALUE));
    }
}
