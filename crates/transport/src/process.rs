//! Whether the process at the other end of a cut connection still lives.
//!
//! A connection that ends says nothing about its peer: the link may have failed, or the program may
//! have been killed. Code that sees the program's process can tell.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// Where this process's number means this process: the same for all processes that see each other,
/// so for those of one PID namespace of one running system. 0 if that cannot be known.
pub fn space() -> u64 {
    let Ok(boot) = std::fs::read("/proc/sys/kernel/random/boot_id") else { return 0 };
    let Ok(namespace) = std::fs::metadata("/proc/self/ns/pid") else { return 0 };
    let mut hash = FNV_OFFSET;
    for byte in boot.iter().chain(&namespace.ino().to_le_bytes()) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME);
    }
    hash.max(1)
}

/// FNV-1a, 64 bits: this number keeps no process out, it only distinguishes places.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// A process that is watched; its number cannot come to mean another one meanwhile. The descriptor
/// can be read (`POLLIN`) once the process has ended.
#[derive(Debug)]
pub struct ProcessWatch(OwnedFd);

impl ProcessWatch {
    /// `None` if there is no such process.
    pub fn new(process: u32) -> io::Result<Option<ProcessWatch>> {
        // SAFETY: takes two numbers and touches no memory.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, process as libc::pid_t, 0) };
        if fd >= 0 {
            // SAFETY: the descriptor is new, and this is its only owner.
            return Ok(Some(ProcessWatch(unsafe { OwnedFd::from_raw_fd(fd as i32) })));
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() == Some(libc::ESRCH) { Ok(None) } else { Err(error) }
    }

    pub fn has_ended(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, and the count says one.
        unsafe { libc::poll(&mut poll, 1, 0) > 0 }
    }
}

impl AsFd for ProcessWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_watched_to_its_end() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let watch = ProcessWatch::new(child.id()).unwrap().expect("it lives");
        assert!(!watch.has_ended());
        child.kill().unwrap();
        let mut poll = libc::pollfd { fd: watch.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, and the count says one.
        assert_eq!(unsafe { libc::poll(&mut poll, 1, -1) }, 1);
        assert!(watch.has_ended(), "also before its parent has waited for it");
        child.wait().unwrap();
        assert!(ProcessWatch::new(child.id()).unwrap().is_none());
    }

    #[test]
    fn processes_that_see_each_other_know() {
        assert_eq!(space(), space());
        assert_ne!(space(), 0);
    }
}
