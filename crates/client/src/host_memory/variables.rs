//! Pages of this process at the addresses of modules' managed variables.
//!
//! The node's driver says where such a variable lies, and the program uses it by that address. So
//! pages are put there, if nothing of this process is in the way; variables may share them. What
//! the two sides have is kept the same as of any [`mirror`].

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::{CUdevice, CUresult};

use crate::host_memory::mirror;
use crate::session::Session;

const PAGE: u64 = 4096;

/// Of one variable. Programs' are far smaller, and this side keeps a copy and an entry for each
/// page.
const BYTES_MAX: u64 = 64 << 30;
/// Where a process's own addresses end.
const ADDRESSES_END: u64 = 1 << 47;

/// How many variables lie on each page of ours, by its number.
static PAGES: Mutex<BTreeMap<u64, u32>> = Mutex::new(BTreeMap::new());

fn pages() -> MutexGuard<'static, BTreeMap<u64, u32>> {
    PAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a variable the program's, too.
pub(crate) fn map(session: &Session, device: CUdevice, address: u64, bytes: u64) -> Result<(), CUresult> {
    static ONE_BY_ONE: Mutex<()> = Mutex::new(());
    let _one = ONE_BY_ONE.lock().unwrap_or_else(PoisonError::into_inner);
    if mirror::with_device_address(address, |_| ()).is_some() {
        return Ok(());
    }
    if !is_possible(address, bytes, session.device(device)?.snapshot.memory) {
        crate::say_once!(
            "the node reports a managed variable of {bytes} bytes at {address:#x}, where none can be"
        );
        return Err(CUresult::UNKNOWN);
    }
    let taken = take(&mut pages(), numbers(address, bytes), map_pages, unmap_pages);
    taken.inspect_err(|_| {
        crate::say_once!(
            "a managed variable lies at {address:#x} on the node, where this process has mapped other memory; \
             a program with more free address space can use it"
        );
    })?;
    mirror::add_variable(session, device, address, bytes).inspect_err(|_| unmap(address, bytes))
}

/// Says whether a variable of this size can lie there on a device with this memory: both come from
/// the node.
fn is_possible(address: u64, bytes: u64, memory: u64) -> bool {
    let ends = address.checked_add(bytes).is_some_and(|end| end <= ADDRESSES_END);
    ends && bytes <= memory.min(BYTES_MAX)
}

/// The variable is gone.
pub(crate) fn unmap(address: u64, bytes: u64) {
    give(&mut pages(), numbers(address, bytes), unmap_pages);
}

/// Of the pages that a variable lies on.
fn numbers(address: u64, bytes: u64) -> Range<u64> {
    address / PAGE..address.saturating_add(bytes.max(1)).div_ceil(PAGE)
}

/// Counts a variable on each of these pages, and has those made that are not there. If one cannot
/// be, nothing is counted, and those that were made are dropped.
fn take(
    known: &mut BTreeMap<u64, u32>,
    wanted: Range<u64>,
    mut make: impl FnMut(Range<u64>) -> Result<(), CUresult>,
    drop: impl FnMut(Range<u64>),
) -> Result<(), CUresult> {
    for missing in runs(wanted.clone(), |page| !known.contains_key(&page)) {
        if let Err(error) = make(missing.clone()) {
            // Those before it were made just now and are not used yet.
            runs(wanted.start..missing.start, |page| !known.contains_key(&page)).into_iter().for_each(drop);
            return Err(error);
        }
    }
    wanted.for_each(|page| *known.entry(page).or_default() += 1);
    Ok(())
}

/// Takes a variable off these pages, and drops those that have no other.
fn give(known: &mut BTreeMap<u64, u32>, range: Range<u64>, drop: impl FnMut(Range<u64>)) {
    for page in range.clone() {
        if let Some(count) = known.get_mut(&page) {
            *count -= 1;
        }
    }
    runs(range, |page| known.get(&page) == Some(&0)).into_iter().for_each(drop);
    known.retain(|_, count| *count > 0);
}

/// The runs of numbers in a range that `is_of` accepts.
fn runs(range: Range<u64>, is_of: impl std::ops::Fn(u64) -> bool) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for number in range.filter(|&number| is_of(number)) {
        match runs.last_mut() {
            Some(last) if last.end == number => last.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}

fn map_pages(pages: Range<u64>) -> Result<(), CUresult> {
    let (at, bytes) = place(&pages);
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: takes addresses that nothing is at, or none.
    let got = unsafe { libc::mmap(at, bytes, rights, flags, -1, 0) };
    if got == at {
        return Ok(());
    }
    if got != libc::MAP_FAILED {
        // A kernel before 4.17 takes the address for a hint. SAFETY: mapped just now and not used
        // yet.
        unsafe { libc::munmap(got, bytes) };
    }
    Err(CUresult::OUT_OF_MEMORY)
}

fn unmap_pages(pages: Range<u64>) {
    let (at, bytes) = place(&pages);
    // SAFETY: pages of ours, whose variables are gone.
    unsafe { libc::munmap(at, bytes) };
}

fn place(pages: &Range<u64>) -> (*mut libc::c_void, usize) {
    let at = std::ptr::without_provenance_mut((pages.start * PAGE) as usize);
    (at, ((pages.end - pages.start) * PAGE) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_share_pages_and_the_last_one_takes_them_away() {
        let (mut known, mut made, mut dropped) = (BTreeMap::new(), Vec::new(), Vec::new());
        let mut make = |pages| {
            made.push(pages);
            Ok(())
        };
        take(&mut known, numbers(4096 * 10 + 4, 4), &mut make, |_| unreachable!()).unwrap();
        take(&mut known, numbers(4096 * 9 + 8, 3 * 4096), &mut make, |_| unreachable!()).unwrap();
        assert_eq!(made, [10..11, 9..10, 11..13]);
        give(&mut known, numbers(4096 * 9 + 8, 3 * 4096), |pages| dropped.push(pages));
        assert_eq!(dropped, [9..10, 11..13]);
        give(&mut known, numbers(4096 * 10 + 4, 4), |pages| dropped.push(pages));
        assert_eq!(dropped.last(), Some(&(10..11)));
        assert!(known.is_empty());
    }

    #[test]
    fn a_variable_that_cannot_be_is_refused() {
        const MEMORY: u64 = 8 << 30;
        assert!(is_possible(0x7f00_0000_0000, MEMORY, MEMORY) && is_possible((1 << 47) - 8, 8, MEMORY));
        assert!(!is_possible(0x7f00_0000_0000, MEMORY + 1, MEMORY));
        assert!(!is_possible(0x1000, BYTES_MAX + 1, u64::MAX) && !is_possible(0x1000, u64::MAX, u64::MAX));
        assert!(!is_possible((1 << 47) - 8, 16, MEMORY) && !is_possible(u64::MAX, 1, MEMORY));
    }

    #[test]
    fn what_was_made_is_dropped_if_the_rest_cannot_be() {
        let (mut known, mut dropped) = (BTreeMap::from([(11, 1), (13, 1)]), Vec::new());
        let make = |pages: Range<u64>| if pages.start == 14 { Err(CUresult::OUT_OF_MEMORY) } else { Ok(()) };
        let taken = take(&mut known, 10..15, make, |pages| dropped.push(pages));
        assert_eq!((taken, dropped), (Err(CUresult::OUT_OF_MEMORY), vec![10..11, 12..13]));
        assert_eq!(known, BTreeMap::from([(11, 1), (13, 1)]));
    }

    #[test]
    fn what_is_in_the_way_stays() {
        let mine = Box::new([7_u8; 2 * PAGE as usize]);
        let address = mine.as_ptr() as u64;
        let mut known = BTreeMap::new();
        let taken = take(&mut known, numbers(address, 8), map_pages, unmap_pages);
        assert_eq!(taken, Err(CUresult::OUT_OF_MEMORY));
        assert!(known.is_empty() && *mine == [7; 2 * PAGE as usize]);
    }
}
