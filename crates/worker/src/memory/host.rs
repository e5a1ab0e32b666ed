//! Host memory that holds parked extents: pages of this process without a name or a file, which go
//! back to the system zeroed.

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;

use sluice_cuda::{CUresult, DriverTable};

/// The memory is pinned for all contexts (`CU_MEMHOSTREGISTER_PORTABLE`).
const PORTABLE: u32 = 1;

type Unregister = unsafe extern "C" fn(*mut c_void) -> CUresult;

/// The bytes of one extent.
#[derive(Debug)]
pub(crate) struct HostPiece {
    start: NonNull<u8>,
    bytes: usize,
    /// Set where the driver has pinned it.
    unregister: Option<Unregister>,
}

// SAFETY: plain memory that its owner alone uses.
unsafe impl Send for HostPiece {}

impl HostPiece {
    /// Memory of this size. The driver pins it if it can, which makes copies several times faster.
    pub(crate) fn new(table: &DriverTable, bytes: u64) -> io::Result<HostPiece> {
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, flags, -1, 0) };
        let start = match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => start,
            _ => return Err(io::Error::last_os_error()),
        };
        // Neither changes what the memory holds, so neither has to succeed.
        for advice in [libc::MADV_HUGEPAGE, libc::MADV_DONTDUMP] {
            // SAFETY: the pages were mapped just now.
            unsafe { libc::madvise(start.as_ptr().cast(), bytes, advice) };
        }
        let mut piece = HostPiece { start, bytes, unregister: None };
        if let (Some(register), Some(unregister)) = (table.cuMemHostRegister_v2, table.cuMemHostUnregister) {
            // SAFETY: the pages stay mapped until the drop, which unregisters them first.
            let pinned = unsafe { register(piece.address(), bytes, PORTABLE) };
            piece.unregister = pinned.is_success().then_some(unregister);
        }
        Ok(piece)
    }

    /// For the driver to read and write.
    pub(crate) fn address(&self) -> *mut c_void {
        self.start.as_ptr().cast()
    }
}

impl Drop for HostPiece {
    fn drop(&mut self) {
        if let Some(unregister) = self.unregister {
            // SAFETY: registered when it was made, and no copy uses it any more.
            let _ = unsafe { unregister(self.address()) };
        }
        // SAFETY: mapped when it was made, and the address is not used any more.
        unsafe { libc::munmap(self.address(), self.bytes) };
    }
}
