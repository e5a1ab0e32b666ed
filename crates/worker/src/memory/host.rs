//! Host memory that holds parked extents: pages of this process without a name or a file, which go
//! back to the system zeroed.

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use sluice_cuda::{CUresult, DriverTable};

use super::swap::NotMoved;

/// The memory is pinned for all contexts (`CU_MEMHOSTREGISTER_PORTABLE`).
const PORTABLE: u32 = 1;
/// Most threads that have the system make pages. One makes about 5 GB/s, where a GPU copies 50.
const MAKERS_MAX: usize = 8;

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
    /// Pages that exist, so that neither pinning nor copying has to wait for them.
    pub(crate) fn new(bytes: u64) -> io::Result<HostPiece> {
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, flags, -1, 0) };
        let start = match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => start,
            _ => return Err(io::Error::last_os_error()),
        };
        // None of these changes what the memory holds, so none has to succeed.
        for advice in [libc::MADV_HUGEPAGE, libc::MADV_DONTDUMP, libc::MADV_POPULATE_WRITE] {
            // SAFETY: the pages were mapped just now.
            unsafe { libc::madvise(start.as_ptr().cast(), bytes, advice) };
        }
        Ok(HostPiece { start, bytes, unregister: None })
    }

    /// Has the driver pin it if it can, which makes copies several times faster. A context is
    /// current.
    pub(crate) fn pin(&mut self, table: &DriverTable) {
        if self.unregister.is_some() {
            return;
        }
        if let (Some(register), Some(unregister)) = (table.cuMemHostRegister_v2, table.cuMemHostUnregister) {
            // SAFETY: the pages stay mapped until the drop, which unregisters them first.
            let pinned = unsafe { register(self.address(), self.bytes, PORTABLE) };
            self.unregister = pinned.is_success().then_some(unregister);
        }
    }

    /// For the driver to read and write.
    pub(crate) fn address(&self) -> *mut c_void {
        self.start.as_ptr().cast()
    }
}

impl Drop for HostPiece {
    fn drop(&mut self) {
        if let Some(unregister) = self.unregister {
            // SAFETY: registered by `pin`, and no copy uses it any more.
            let _ = unsafe { unregister(self.address()) };
        }
        // SAFETY: mapped when it was made, and the address is not used any more.
        unsafe { libc::munmap(self.address(), self.bytes) };
    }
}

/// Passes on a piece for each of these sizes, in their order: a spare one where there is one of the
/// size, else a new one, of which several threads make the pages meanwhile.
pub(crate) fn pieces(
    sizes: &[u64],
    spare: &mut Vec<HostPiece>,
    mut pass_on: impl FnMut(HostPiece) -> Result<(), NotMoved>,
) -> Result<(), NotMoved> {
    let mut found: Vec<Option<HostPiece>> = sizes.iter().map(|&bytes| take(spare, bytes)).collect();
    let missing: Vec<u64> =
        sizes.iter().zip(&found).filter(|(_, found)| found.is_none()).map(|(&bytes, _)| bytes).collect();
    let makers = missing.len().min(MAKERS_MAX).min(thread::available_parallelism().map_or(1, usize::from));
    thread::scope(|scope| {
        let made: Vec<Receiver<io::Result<HostPiece>>> = (0..makers)
            .map(|maker| {
                let (sender, receiver) = sync_channel(1);
                let missing = &missing;
                scope.spawn(move || make(missing.iter().skip(maker).step_by(makers), &sender));
                receiver
            })
            .collect();
        let mut next = made.iter().cycle();
        for found in &mut found {
            let piece = match found.take() {
                Some(piece) => piece,
                // They are made in turn, so they come in order.
                None => next.next().and_then(|maker| maker.recv().ok()).unwrap_or_else(no_maker)?,
            };
            pass_on(piece)?;
        }
        Ok(())
    })
}

fn take(spare: &mut Vec<HostPiece>, bytes: u64) -> Option<HostPiece> {
    let at = spare.iter().position(|piece| piece.bytes as u64 == bytes)?;
    Some(spare.swap_remove(at))
}

/// Makes pieces until the receiver is gone.
fn make<'a>(sizes: impl Iterator<Item = &'a u64>, made: &SyncSender<io::Result<HostPiece>>) {
    for &bytes in sizes {
        if made.send(HostPiece::new(bytes)).is_err() {
            return;
        }
    }
}

fn no_maker() -> io::Result<HostPiece> {
    Err(io::Error::other("a thread that made pages has ended"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn pieces_come_in_order_and_spare_ones_are_used_again() {
        let mut spare = vec![HostPiece::new(4 * MIB).unwrap(), HostPiece::new(3 * MIB).unwrap()];
        let known = spare[0].address();
        let (sizes, mut got) = ([2 * MIB, 4 * MIB, 2 * MIB, MIB, 4 * MIB], Vec::new());
        pieces(&sizes, &mut spare, |piece| {
            got.push(piece);
            Ok(())
        })
        .unwrap();
        assert_eq!(got.iter().map(|piece| piece.bytes as u64).collect::<Vec<_>>(), sizes);
        assert_eq!(got[1].address(), known);
        assert_ne!(got[4].address(), known);
        assert_eq!(spare.len(), 1, "of another size");
    }

    #[test]
    fn makers_end_with_the_receiver() {
        let busy = pieces(&[MIB; 100], &mut Vec::new(), |_| Err(NotMoved::Busy(1)));
        assert!(matches!(busy, Err(NotMoved::Busy(1))));
    }
}
