//! What is known of each byte of an allocation: whether it was written, and who used it last.
//!
//! Blocks of a grid run on several threads. Of two that write the same memory at the same moment,
//! the later one learns of the other. Where one of them reads, that race may go unnoticed: reads
//! are entered by stores that order nothing. No race is made up.

use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// Bytes of memory that share a [`Cell`].
pub(crate) const GRANULE: u64 = 4;

/// The shadow of one allocation.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    /// A byte for each byte, 1 where it was written; none where all of it counts as written.
    written: Option<Zeroed<AtomicU8>>,
    /// Made with the first access.
    cells: OnceLock<Option<Zeroed<Cell>>>,
}

/// The last accesses to a granule, as packed [`Record`]s.
#[derive(Debug, Default)]
pub(crate) struct Cell {
    /// Weak and strong writes: an atomic does not displace what it may race with.
    writes: [AtomicU64; 2],
    write_lines: [AtomicU32; 2],
    reads: [AtomicU64; 2],
    read_lines: [AtomicU32; 2],
}

/// Who accessed a granule, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Logical time; never 0.
    pub(crate) time: u32,
    /// The low bits of the block's number.
    pub(crate) block: u16,
    /// Number of the thread in its block.
    pub(crate) thread: u16,
    /// Bytes of the granule, a bit each.
    pub(crate) mask: u8,
    pub(crate) is_strong: bool,
}

impl Record {
    fn pack(self) -> u64 {
        u64::from(self.time) << 32
            | u64::from(self.block) << 16
            | u64::from(self.thread & 0x3ff) << 5
            | u64::from(self.mask & 0xf) << 1
            | u64::from(self.is_strong)
    }

    fn unpack(bits: u64) -> Option<Record> {
        (bits >> 32 != 0).then_some(Record {
            time: (bits >> 32) as u32,
            block: (bits >> 16) as u16,
            thread: (bits >> 5 & 0x3ff) as u16,
            mask: (bits >> 1 & 0xf) as u8,
            is_strong: bits & 1 != 0,
        })
    }
}

impl Cell {
    /// The last writes and their lines.
    pub(crate) fn last_writes(&self) -> [Option<(Record, u32)>; 2] {
        [0, 1].map(|slot| {
            Some((Record::unpack(self.writes[slot].load(SeqCst))?, self.write_lines[slot].load(Relaxed)))
        })
    }

    /// The last reads and their lines.
    pub(crate) fn last_reads(&self) -> [Option<(Record, u32)>; 2] {
        [0, 1].map(|slot| {
            Some((Record::unpack(self.reads[slot].load(Relaxed))?, self.read_lines[slot].load(Relaxed)))
        })
    }

    /// Enters a write; returns what [`Cell::last_writes`] was before. Writers of other blocks that
    /// do so at the same moment have an order, and each sees those before it.
    pub(crate) fn set_write(&self, record: Record, line: u32) -> [Option<(Record, u32)>; 2] {
        let slot = usize::from(record.is_strong);
        let before_line = self.write_lines[slot].swap(line, Relaxed);
        let before = self.writes[slot].swap(record.pack(), SeqCst);
        let mut writes = self.last_writes();
        writes[slot] = Record::unpack(before).map(|before| (before, before_line));
        writes
    }

    /// Enters a read in the place of one that is over, as the reader is ordered behind it. Of
    /// others one is displaced; neighbours, which race the most, do not displace each other.
    pub(crate) fn set_read(&self, record: Record, line: u32, is_over: impl Fn(Record) -> bool) {
        let known = [0, 1].map(|slot: usize| Record::unpack(self.reads[slot].load(Relaxed)));
        let slot = known.iter().position(|known| known.is_none_or(&is_over));
        let slot = slot.unwrap_or(usize::from((record.thread ^ record.block) & 1));
        self.read_lines[slot].store(line, Relaxed);
        self.reads[slot].store(record.pack(), Relaxed);
    }
}

impl Shadow {
    /// The shadow of memory that was never written; without memory for it, all counts as written.
    pub(crate) fn unwritten(bytes: u64) -> Shadow {
        Shadow { written: Zeroed::new(bytes), cells: OnceLock::new() }
    }

    /// The cells of `bytes` of memory.
    pub(crate) fn cells(&self, bytes: u64) -> Option<&[Cell]> {
        self.cells.get_or_init(|| Zeroed::new(bytes.div_ceil(GRANULE))).as_deref()
    }

    pub(crate) fn set_written(&self, offset: u64, bytes: u64) {
        if let Some(written) = self.written_in(offset, bytes) {
            written.iter().for_each(|byte| byte.store(1, Relaxed));
        }
    }

    pub(crate) fn is_written(&self, offset: u64, bytes: u64) -> bool {
        let written = self.written_in(offset, bytes);
        written.is_none_or(|written| written.iter().all(|byte| byte.load(Relaxed) != 0))
    }

    /// Takes over what is known of the memory that is copied here.
    pub(crate) fn copy_from(&self, offset: u64, from: &Shadow, from_offset: u64, bytes: u64) {
        let (to, from) = (self.written_in(offset, bytes), from.written_in(from_offset, bytes));
        match (to, from) {
            (Some(to), Some(from)) => {
                to.iter().zip(from).for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
            }
            (Some(_), None) => self.set_written(offset, bytes),
            (None, _) => {}
        }
    }

    fn written_in(&self, offset: u64, bytes: u64) -> Option<&[AtomicU8]> {
        let (start, end) = (usize::try_from(offset).ok()?, usize::try_from(offset + bytes).ok()?);
        self.written.as_ref()?.get(start..end)
    }
}

/// A slice of zeros whose pages are there once they are used.
#[derive(Debug)]
pub(crate) struct Zeroed<T> {
    address: *mut libc::c_void,
    count: usize,
    elements: PhantomData<T>,
}

/// Types that are valid when all their bytes are 0.
pub(crate) trait Zeroable: Sync {}
impl Zeroable for AtomicU8 {}
impl Zeroable for Cell {}

// SAFETY: it owns its memory, and gives out shared references to elements that may be shared.
unsafe impl<T: Zeroable> Send for Zeroed<T> {}
// SAFETY: as above.
unsafe impl<T: Zeroable> Sync for Zeroed<T> {}

impl<T: Zeroable> Zeroed<T> {
    /// `count` elements; `None` where there are no addresses for them.
    fn new(count: u64) -> Option<Zeroed<T>> {
        let count = usize::try_from(count).ok()?.max(1);
        let bytes = count.checked_mul(size_of::<T>())?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new private mapping touches nothing that exists.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, flags, -1, 0) };
        (address != libc::MAP_FAILED).then_some(Zeroed { address, count, elements: PhantomData })
    }
}

impl<T: Zeroable> Deref for Zeroed<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping is page-aligned, holds `count` elements, for which zeros are valid,
        // and lasts as long as this.
        unsafe { std::slice::from_raw_parts(self.address.cast(), self.count) }
    }
}

impl<T> Drop for Zeroed<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's own, of this size, and nothing borrows it any more.
        unsafe { libc::munmap(self.address, self.count * size_of::<T>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_unpacked_as_they_were_packed() {
        let record = Record { time: 77, block: 0xfffe, thread: 1023, mask: 0b1010, is_strong: true };
        assert_eq!(Record::unpack(record.pack()), Some(record));
        assert_eq!(Record::unpack(0), None);
    }

    #[test]
    fn of_writers_at_the_same_moment_each_but_one_learns_of_another() {
        let (cell, writers) = (Cell::default(), 8);
        let write = |block: u16| {
            let record = Record { time: 1, block, thread: 0, mask: 0xf, is_strong: block.is_multiple_of(2) };
            cell.set_write(record, block.into())
                .into_iter()
                .flatten()
                .map(|(record, _)| record.block)
                .collect()
        };
        let seen: Vec<Vec<u16>> = std::thread::scope(|scope| {
            let started: Vec<_> = (0..writers).map(|block| scope.spawn(move || write(block))).collect();
            started.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        let alone = seen.iter().filter(|seen| seen.is_empty()).count();
        assert_eq!(alone, 1, "{seen:?}");
        assert!((0..writers).all(|block| !seen[usize::from(block)].contains(&block)), "{seen:?}");
    }

    #[test]
    fn what_is_written_is_known_by_the_byte_and_goes_with_copies() {
        let (from, to) = (Shadow::unwritten(16), Shadow::unwritten(16));
        from.set_written(4, 4);
        assert!(from.is_written(4, 4) && !from.is_written(4, 5) && !from.is_written(3, 1));
        to.set_written(0, 16);
        to.copy_from(8, &from, 0, 8);
        assert!(to.is_written(0, 8) && !to.is_written(8, 4) && to.is_written(12, 4));
        to.copy_from(8, &Shadow::default(), 0, 4);
        assert!(to.is_written(8, 4), "memory without a shadow counts as written");
    }
}
