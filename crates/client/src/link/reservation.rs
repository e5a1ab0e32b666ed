//! Address ranges held free in this process, of which the worker picks the one that is free in its
//! own.
//!
//! A range of terabytes without access costs the kernel one entry; nothing is ever stored in it. As
//! long as it is held, no host memory of the program can have an address that means device memory.

use std::ops::Range;

const TIB: u64 = 1 << 40;
const GIB: u64 = 1 << 30;

/// Where to try, best first, with sizes: far from where Linux puts programs, stacks and mappings,
/// and from where sanitizers put their shadows. The last ones are for processes under a limit.
const CANDIDATES: &[(u64, u64)] = &[
    (0x2000_0000_0000, TIB),
    (0x3000_0000_0000, TIB),
    (0x1000_0000_0000, TIB),
    (0x4000_0000_0000, TIB),
    (0x6000_0000_0000, TIB),
    (0x2200_0000_0000, 64 * GIB),
    (0x3200_0000_0000, 16 * GIB),
];

/// Offers beyond this many make no difference.
const OFFERS_MAX: usize = 4;

#[derive(Debug)]
pub(crate) struct Reservations(Vec<(u64, u64)>);

impl Reservations {
    pub(crate) fn make() -> Reservations {
        Reservations(CANDIDATES.iter().copied().filter(|&range| reserve(range)).take(OFFERS_MAX).collect())
    }

    /// Address and size of each range, best first.
    pub(crate) fn offers(&self) -> Vec<(u64, u64)> {
        self.0.clone()
    }

    /// Keeps what the worker chose, if it lies in an offer, and gives back the rest.
    pub(crate) fn keep(self, chosen: Option<(u64, u64)>) -> Option<Range<u64>> {
        let chosen = chosen.and_then(as_range);
        let mut kept = None;
        for offer in self.0 {
            let Some(range) = as_range(offer) else { continue };
            match &chosen {
                Some(chosen) if range.start <= chosen.start && chosen.end <= range.end => {
                    kept = Some(chosen.clone())
                }
                _ => release(offer),
            }
        }
        kept
    }
}

/// A range as the wire carries it, by address and size.
fn as_range((start, bytes): (u64, u64)) -> Option<Range<u64>> {
    Some(start..start.checked_add(bytes)?)
}

fn reserve((start, bytes): (u64, u64)) -> bool {
    let at = std::ptr::without_provenance_mut(start as usize);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: the mapping replaces nothing, and nothing points into it.
    let got = unsafe { libc::mmap(at, bytes as usize, libc::PROT_NONE, flags, -1, 0) };
    if got == libc::MAP_FAILED {
        return false;
    }
    if got != at {
        // A kernel older than the flag took the address for a hint.
        release((got as u64, bytes));
        return false;
    }
    true
}

fn release((start, bytes): (u64, u64)) {
    // SAFETY: only ranges that `reserve` has mapped come here, and nothing points into them.
    unsafe { libc::munmap(std::ptr::without_provenance_mut(start as usize), bytes as usize) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_chosen_range_is_kept() {
        let ranges = Reservations::make();
        let offers = ranges.offers();
        assert!(!offers.is_empty(), "nothing could be reserved");
        let kept = ranges.keep(Some(offers[0])).unwrap();
        assert_eq!((kept.start, kept.end - kept.start), offers[0]);
        assert!(!reserve(offers[0]), "the chosen range is still held");
        assert!(offers[1..].iter().all(|&offer| reserve(offer)), "the others are free again");
        offers.iter().for_each(|&offer| release(offer));
    }

    #[test]
    fn a_range_that_was_not_offered_is_refused() {
        assert_eq!(Reservations(Vec::new()).keep(Some((0x1000, 0x1000))), None);
        assert_eq!(Reservations(Vec::new()).keep(Some((u64::MAX, 2))), None);
    }
}
