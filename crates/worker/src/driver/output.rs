//! What a loaded driver prints: device code's `printf`, which it writes to the standard output of
//! its process when a thread waits for the device.
//!
//! Standard output is a file in memory here, so that the driver waits for no reader, and what it
//! holds is passed on before the thread that has waited gets an answer.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

/// The standard output of a worker whose driver is a library.
pub(crate) struct DriverOutput {
    file: File,
    /// How much of it has been passed on.
    passed_on: Mutex<u64>,
}

impl DriverOutput {
    /// Takes standard output over. To be called before the driver is used.
    pub(crate) fn take_over() -> io::Result<DriverOutput> {
        // SAFETY: the name is NUL-terminated.
        let fd = unsafe { libc::memfd_create(c"driver-output".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and only used here.
        let file = unsafe { File::from_raw_fd(fd) };
        // SAFETY: both are descriptors of this process; what was standard output before led
        // nowhere.
        let taken = unsafe {
            libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_APPEND) >= 0
                && libc::dup2(file.as_raw_fd(), libc::STDOUT_FILENO) >= 0
        };
        if taken {
            Ok(DriverOutput { file, passed_on: Mutex::new(0) })
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Passes on what has been printed since the last time.
    pub(crate) fn pass_on(&self, mut to: impl FnMut(&[u8])) {
        // SAFETY: null means all streams of the C library, whose locks no thread holds while
        // waiting for this thread.
        unsafe { libc::fflush(std::ptr::null_mut()) };
        let mut passed_on = self.passed_on.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = *passed_on;
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = self.file.read_at(&mut piece, *passed_on) {
            to(&piece[..count]);
            *passed_on += count as u64;
        }
        if *passed_on > begin {
            let (punch, end) =
                (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, *passed_on as libc::off_t);
            // SAFETY: plain numbers; the file stays as long as it was, and gives back what is not
            // needed any more.
            unsafe { libc::fallocate(self.file.as_raw_fd(), punch, 0, end) };
        }
    }
}
