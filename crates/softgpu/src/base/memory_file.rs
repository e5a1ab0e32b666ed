//! Memory that several processes can map: unnamed files that keep their size.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::base::status::{Result, Status};

/// The size of shared memory stays what it is.
pub(crate) const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// The size of a file that keeps it: one that its maker could cut short would end this process at
/// the next access.
pub(crate) fn sealed_size(file: &OwnedFd) -> Result<u64> {
    // SAFETY: asks about a descriptor that is open.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 || seals & SEALS != SEALS {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: as above; no thread reads such a file at its position.
    let size = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_END) };
    u64::try_from(size).map_err(|_| Status::INVALID_VALUE)
}

/// Refuses a file that is not of this size for good.
pub(crate) fn check_sealed(file: &OwnedFd, size: u64) -> Result<()> {
    if sealed_size(file)? == size { Ok(()) } else { Err(Status::INVALID_VALUE) }
}

/// An unnamed file of `size` bytes, which keeps that size.
pub(crate) fn memory_file(size: u64) -> Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string, and the flags are known to the system.
    let fd = unsafe { libc::memfd_create(c"sluice device memory".as_ptr(), flags) };
    if fd < 0 {
        return Err(Status::OUT_OF_MEMORY);
    }
    // SAFETY: the descriptor was opened just now and has no other owner.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(size).map_err(|_| Status::OUT_OF_MEMORY)?;
    // SAFETY: seals a descriptor that is open.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) } < 0 {
        return Err(Status::OUT_OF_MEMORY);
    }
    Ok(file)
}
