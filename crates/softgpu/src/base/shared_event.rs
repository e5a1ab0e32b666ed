//! What an event is that several processes know: a page of memory that all of them map.
//!
//! Every record of the event gets the next number. Work that reaches the record stores its number
//! in the ring, and a thread that waits for that record looks there. Records may be done in any
//! order, so each has a place of its own; one that is [`RING`] records old has been done, or its
//! place has been taken by a later one.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::memory_file::{check_sealed, memory_file};
use crate::base::status::{Result, Status};

/// Records of one event that may be outstanding at a time.
const RING: usize = 64;

/// The page as all processes see it: all zeros at first.
#[repr(C)]
struct Page {
    /// The number of the latest record; 0 before the first.
    recorded: AtomicU64,
    done: [AtomicU64; RING],
}

const BYTES: usize = 4096;
const _: () = assert!(size_of::<Page>() <= BYTES);

/// One process's view of a shared event.
pub(crate) struct SharedEvent {
    file: OwnedFd,
    page: NonNull<Page>,
}

// SAFETY: the page is made of atomics and stays mapped while this value lives.
unsafe impl Send for SharedEvent {}
// SAFETY: as above.
unsafe impl Sync for SharedEvent {}

impl SharedEvent {
    pub(crate) fn create() -> Result<SharedEvent> {
        SharedEvent::map(memory_file(BYTES as u64)?)
    }

    /// The event behind a descriptor that another process has exported.
    pub(crate) fn open(file: OwnedFd) -> Result<SharedEvent> {
        check_sealed(&file, BYTES as u64)?;
        SharedEvent::map(File::from(file))
    }

    fn map(file: File) -> Result<SharedEvent> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the system's choice; the file has this number of
        // bytes and keeps them.
        let page =
            unsafe { libc::mmap(std::ptr::null_mut(), BYTES, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if page == libc::MAP_FAILED {
            return Err(Status::OUT_OF_MEMORY);
        }
        let page = NonNull::new(page.cast()).ok_or(Status::OUT_OF_MEMORY)?;
        Ok(SharedEvent { file: file.into(), page })
    }

    /// A descriptor for [`SharedEvent::open`] in another process.
    pub(crate) fn export(&self) -> Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned().map_err(|_| Status::OUT_OF_MEMORY)
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped while `self` lives, zeroed by the system, and made of atomics.
        unsafe { self.page.as_ref() }
    }

    /// The number of a new record.
    pub(crate) fn issue(&self) -> u64 {
        self.page().recorded.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The number of the latest record of any process.
    pub(crate) fn latest(&self) -> Option<u64> {
        Some(self.page().recorded.load(Ordering::Acquire)).filter(|number| *number > 0)
    }

    pub(crate) fn complete(&self, number: u64) {
        self.place(number).fetch_max(number, Ordering::AcqRel);
    }

    pub(crate) fn is_done(&self, number: u64) -> bool {
        self.place(number).load(Ordering::Acquire) >= number
    }

    fn place(&self, number: u64) -> &AtomicU64 {
        &self.page().done[number as usize % RING]
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this size, and nothing else uses the mapping.
        unsafe { libc::munmap(self.page.as_ptr().cast(), BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_views_agree_whatever_the_order_of_completion() {
        let here = SharedEvent::create().unwrap();
        let there = SharedEvent::open(here.export().unwrap()).unwrap();
        assert_eq!(there.latest(), None);
        let (first, second) = (here.issue(), there.issue());
        assert_eq!((here.latest(), first + 1), (Some(second), second));
        there.complete(second);
        assert!(here.is_done(second) && !here.is_done(first));
        here.complete(first);
        assert!(there.is_done(first) && there.is_done(second));
    }

    #[test]
    fn only_files_of_a_fixed_size_are_opened() {
        let file = memory_file(BYTES as u64 * 2).unwrap();
        assert!(SharedEvent::open(file.into()).is_err());
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(SharedEvent::open(reader.into()).is_err());
    }
}
