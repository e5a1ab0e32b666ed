//! What a session has done so far, in a page that its worker writes and its daemon reads.
//!
//! The page is a memory file, so that counting costs one relaxed addition and the last values
//! survive a worker that is killed.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

/// Most GPUs of a lease.
pub const GPUS_MAX: usize = 64;

/// The counters, all since the start of the session.
#[derive(Debug)]
#[repr(C)]
pub struct Counters {
    /// Kernels launched.
    pub kernels: AtomicU64,
    /// Bytes received from the client.
    pub bytes_in: AtomicU64,
    /// Bytes sent to the client.
    pub bytes_out: AtomicU64,
    /// Commands accepted.
    pub commands: AtomicU64,
    /// Time of turns on each GPU of the lease in which it had work, in nanoseconds.
    pub gpu_ns: [AtomicU64; GPUS_MAX],
    /// Device time x the part of the device that was occupied, on all GPUs of the lease, in
    /// nanoseconds of a whole GPU.
    pub used_ns: AtomicU64,
    /// The `CUresult` of the first fault that ended the work of the session; 0 without.
    pub fault: AtomicI32,
    /// Bytes of device memory that can leave the GPUs; this one also goes down.
    pub movable: AtomicU64,
    /// Microseconds of a round trip to the client, as TCP has measured it; 0 where it has not.
    pub round_trip_us: AtomicU64,
}

/// A snapshot of [`Counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub kernels: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// On all GPUs.
    pub gpu_ns: u64,
    /// As [`Counters::used_ns`].
    pub used_ns: u64,
    pub commands: u64,
    /// As [`Counters::movable`].
    pub movable: u64,
}

impl Counters {
    pub fn read(&self) -> Counts {
        Counts {
            kernels: self.kernels.load(Relaxed),
            bytes_in: self.bytes_in.load(Relaxed),
            bytes_out: self.bytes_out.load(Relaxed),
            gpu_ns: self.gpu_ns.iter().map(|ns| ns.load(Relaxed)).sum(),
            used_ns: self.used_ns.load(Relaxed),
            commands: self.commands.load(Relaxed),
            movable: self.movable.load(Relaxed),
        }
    }

    /// Keeps the first fault.
    pub fn note_fault(&self, result: i32) {
        // A later one follows from it.
        let _ = self.fault.compare_exchange(0, result, Relaxed, Relaxed);
    }

    /// Time of turns on one GPU of the lease, in nanoseconds.
    pub fn gpu_ns_on(&self, gpu: usize) -> u64 {
        self.gpu_ns.get(gpu).map_or(0, |ns| ns.load(Relaxed))
    }
}

/// The page as mapped by one process.
#[derive(Debug)]
pub struct CounterPage {
    file: OwnedFd,
    page: NonNull<Counters>,
}

// SAFETY: the page is shared memory that holds atomics only, and it stays mapped until the drop.
unsafe impl Send for CounterPage {}
// SAFETY: as above; every access is atomic.
unsafe impl Sync for CounterPage {}

const PAGE_BYTES: usize = 4096;
const _: () = assert!(size_of::<Counters>() <= PAGE_BYTES);

impl CounterPage {
    /// A new page of zeros.
    pub fn create() -> io::Result<CounterPage> {
        // SAFETY: the name is a NUL-terminated literal.
        let fd = unsafe {
            libc::memfd_create(c"sluice-counters".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call returned a new descriptor that has no other owner.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: plain system call on our own descriptor.
        if unsafe { libc::ftruncate(file.as_raw_fd(), PAGE_BYTES as libc::off_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // A worker that shrank the file would take the daemon down with SIGBUS.
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: plain system call on our own descriptor.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error());
        }
        CounterPage::map(file)
    }

    /// Maps a page that another process created.
    pub fn map(file: OwnedFd) -> io::Result<CounterPage> {
        // SAFETY: a new shared mapping at an address of the kernel's choice touches no memory of
        // ours.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(address.cast()) {
            Some(page) if address != libc::MAP_FAILED => Ok(CounterPage { file, page }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The descriptor to hand over.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }
}

impl std::ops::Deref for CounterPage {
    type Target = Counters;

    fn deref(&self) -> &Counters {
        // SAFETY: the mapping is page-aligned, larger than `Counters`, and lives as long as `self`.
        unsafe { self.page.as_ref() }
    }
}

impl Drop for CounterPage {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `map`, and no reference to it outlives `self`.
        unsafe { libc::munmap(self.page.as_ptr().cast(), PAGE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_mappings_show_the_same_counters() {
        let worker = CounterPage::create().unwrap();
        let daemon = CounterPage::map(worker.file().try_clone().unwrap()).unwrap();
        worker.kernels.fetch_add(3, Relaxed);
        assert_eq!(daemon.read(), Counts { kernels: 3, ..Counts::default() });
        worker.gpu_ns[0].fetch_add(5, Relaxed);
        worker.gpu_ns[2].fetch_add(7, Relaxed);
        assert_eq!(daemon.read().gpu_ns, 12);
        [700, 719].into_iter().for_each(|result| worker.note_fault(result));
        assert_eq!(daemon.fault.load(Relaxed), 700);
        assert_eq!([0, 1, 2, GPUS_MAX].map(|gpu| daemon.gpu_ns_on(gpu)), [5, 0, 7, 0]);
    }
}
