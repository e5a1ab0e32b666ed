//! The memory that a client and its worker share: a memory file with two rings, which the worker
//! makes.
//!
//! Its size is sealed, so that neither side can take pages away under the other.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use crate::bell::Bell;
use crate::ring::{Positions, RING_BYTES, Ring};

/// Which end of a stream this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Worker,
}

/// What precedes the bytes of the rings; the memory begins with it, all zero.
#[repr(C)]
struct Header {
    to_worker: Positions,
    to_client: Positions,
    client: Bell,
    worker: Bell,
}

/// Where the rings begin, in bytes: the next page, of any size that Linux has.
const HEADER_BYTES: usize = 64 << 10;
const MEMORY_BYTES: usize = HEADER_BYTES + 2 * RING_BYTES;
/// Addresses of a mapping: the header, and each ring twice, one after the other, so that what goes
/// around a ring's end lies in one piece.
const MAPPED_BYTES: usize = HEADER_BYTES + 4 * RING_BYTES;
const _: () = assert!(size_of::<Header>() <= HEADER_BYTES);
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// The memory file, mapped.
#[derive(Debug)]
pub struct Rings {
    start: NonNull<u8>,
}

// SAFETY: the mapping belongs to this value, and every access goes through atomics or a `Ring`.
unsafe impl Send for Rings {}
// SAFETY: as above.
unsafe impl Sync for Rings {}

impl Rings {
    /// Makes one, and the descriptor by which a worker offers it.
    pub fn create() -> io::Result<(Rings, OwnedFd)> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a NUL-terminated constant.
        let fd = checked(unsafe { libc::memfd_create(c"sluice-rings".as_ptr(), flags) })?;
        // SAFETY: the call has just opened it, and this is its only owner.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: plain numbers.
        checked(unsafe { libc::ftruncate(file.as_raw_fd(), MEMORY_BYTES as libc::off_t) })?;
        // SAFETY: plain numbers.
        checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) })?;
        Ok((Rings::map(file.as_fd())?, file))
    }

    /// Maps what a worker has offered. Anything but a memory file of the right, sealed size is an
    /// error.
    pub fn open(file: BorrowedFd<'_>) -> io::Result<Rings> {
        // SAFETY: plain numbers.
        let seals = checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) })?;
        // SAFETY: an all-zero stat is valid, and the call fills it.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the call writes one structure.
        checked(unsafe { libc::fstat(file.as_raw_fd(), &mut stat) })?;
        if seals & SEALS != SEALS || stat.st_size != MEMORY_BYTES as libc::off_t {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the memory offered is of another kind"));
        }
        Rings::map(file)
    }

    fn map(file: BorrowedFd<'_>) -> io::Result<Rings> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), MAPPED_BYTES, libc::PROT_NONE, flags, -1, 0) };
        let start = match NonNull::new(start.cast::<u8>()) {
            Some(address) if start != libc::MAP_FAILED => address,
            _ => return Err(io::Error::last_os_error()),
        };
        // From here on the addresses are given back by `drop`.
        let rings = Rings { start };
        let ring = |number: usize| HEADER_BYTES + number * RING_BYTES;
        let parts = [(0, 0, HEADER_BYTES)].into_iter().chain(
            [(ring(0), ring(0)), (ring(1), ring(0)), (ring(2), ring(1)), (ring(3), ring(1))]
                .map(|(at, of)| (at, of, RING_BYTES)),
        );
        for (at, of, bytes) in parts {
            let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
            // SAFETY: the part lies within the addresses that were just reserved, and takes their
            // place.
            let mapped = unsafe {
                let to = start.as_ptr().add(at).cast();
                libc::mmap(to, bytes, rights, flags, file.as_raw_fd(), of as libc::off_t)
            };
            if mapped == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(rings)
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping is page-aligned and longer than a header, whose fields are all
        // atomic.
        unsafe { self.start.cast().as_ref() }
    }

    /// The ring that this side writes and the one that it reads.
    ///
    /// # Safety
    /// The memory outlives the rings, and this is called once per mapping.
    pub(crate) unsafe fn ends(&self, side: Side) -> (Ring, Ring) {
        let header = self.header();
        let ring = |positions: &Positions, number: usize| {
            // SAFETY: both rings lie within the mapping, behind the header, each of them twice; the
            // caller promises the rest.
            unsafe { Ring::new(positions.into(), self.start.add(HEADER_BYTES + 2 * number * RING_BYTES)) }
        };
        let (to_worker, to_client) = (ring(&header.to_worker, 0), ring(&header.to_client, 1));
        match side {
            Side::Client => (to_worker, to_client),
            Side::Worker => (to_client, to_worker),
        }
    }

    /// What this side sleeps on, and what the other does.
    pub(crate) fn bells(&self, side: Side) -> (&Bell, &Bell) {
        let header = self.header();
        match side {
            Side::Client => (&header.client, &header.worker),
            Side::Worker => (&header.worker, &header.client),
        }
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own; rings made of it are gone, as `ends` was
        // promised.
        unsafe { libc::munmap(self.start.as_ptr().cast(), MAPPED_BYTES) };
    }
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sealed_memory_file_of_the_right_size_is_opened() {
        let (_memory, file) = Rings::create().unwrap();
        assert!(Rings::open(file.as_fd()).is_ok());
        // SAFETY: plain numbers.
        assert!(checked(unsafe { libc::ftruncate(file.as_raw_fd(), 0) }).is_err(), "it cannot shrink");

        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(Rings::open(null.as_fd()).is_err());
        // SAFETY: the name is a NUL-terminated constant; the descriptor is new and nobody else's.
        let unsealed = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"test".as_ptr(), 0)) };
        // SAFETY: plain numbers.
        checked(unsafe { libc::ftruncate(unsealed.as_raw_fd(), MEMORY_BYTES as libc::off_t) }).unwrap();
        assert!(Rings::open(unsealed.as_fd()).is_err());
    }
}
