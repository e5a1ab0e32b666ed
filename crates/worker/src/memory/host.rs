//! Host memory that holds parked extents: pages of this process without a name or a file, which go
//! back to the system zeroed.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use sluice_cuda::{CUresult, DriverTable};

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
    /// Pages that exist where the system makes them ahead of their use (Linux 5.14), so that
    /// neither pinning nor copying has to wait for them.
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

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped by `new`, with as many bytes, and nothing else uses it meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
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
/// size, else a new one, of which several threads make the pages meanwhile. Spare ones of other
/// sizes are released first.
pub(crate) fn pieces<E: From<io::Error>>(
    sizes: &[u64],
    mut spare: Vec<HostPiece>,
    mut pass_on: impl FnMut(HostPiece) -> Result<(), E>,
) -> Result<(), E> {
    let found: Vec<Option<HostPiece>> = sizes.iter().map(|&bytes| take(&mut spare, bytes)).collect();
    drop(spare);
    let missing: Vec<u64> =
        sizes.iter().zip(&found).filter(|(_, found)| found.is_none()).map(|(&bytes, _)| bytes).collect();
    thread::scope(|scope| {
        let mut made = Made::begin(scope, &missing);
        for found in found {
            pass_on(found.map_or_else(|| made.next(), Ok)?)?;
        }
        Ok(())
    })
}

fn take(spare: &mut Vec<HostPiece>, bytes: u64) -> Option<HostPiece> {
    let at = spare.iter().position(|piece| piece.bytes() == bytes)?;
    Some(spare.swap_remove(at))
}

/// New pieces of these sizes, in their order.
struct Made<'a> {
    sizes: &'a [u64],
    next: usize,
    receiver: Receiver<(usize, io::Result<HostPiece>)>,
    /// Pieces that were made before those in front of them.
    early: BTreeMap<usize, io::Result<HostPiece>>,
}

impl<'a> Made<'a> {
    /// Starts threads that make them, as far as the system has threads.
    fn begin<'scope>(scope: &'scope thread::Scope<'scope, '_>, sizes: &'a [u64]) -> Made<'a>
    where
        'a: 'scope,
    {
        let makers = thread::available_parallelism().map_or(1, usize::from).min(MAKERS_MAX).min(sizes.len());
        let (sender, receiver) = sync_channel(makers);
        let next = Arc::new(AtomicUsize::new(0));
        for _ in 0..makers {
            let (sender, next) = (sender.clone(), Arc::clone(&next));
            let spawned = thread::Builder::new().spawn_scoped(scope, move || make(sizes, &next, &sender));
            if spawned.is_err() {
                break;
            }
        }
        Made { sizes, next: 0, receiver, early: BTreeMap::new() }
    }

    fn next(&mut self) -> io::Result<HostPiece> {
        let place = self.next;
        self.next += 1;
        loop {
            if let Some(piece) = self.early.remove(&place) {
                return piece;
            }
            match self.receiver.recv() {
                Ok((other, piece)) => _ = self.early.insert(other, piece),
                // There was no thread for it.
                Err(_) => return HostPiece::new(self.sizes[place]),
            }
        }
    }
}

/// Makes pieces until there are enough, or the receiver is gone.
fn make(sizes: &[u64], next: &AtomicUsize, made: &SyncSender<(usize, io::Result<HostPiece>)>) {
    loop {
        let place = next.fetch_add(1, Relaxed);
        let Some(&bytes) = sizes.get(place) else { return };
        if made.send((place, HostPiece::new(bytes))).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn pieces_come_in_order_and_spare_ones_are_used_again() {
        let spare = vec![HostPiece::new(4 * MIB).unwrap(), HostPiece::new(3 * MIB).unwrap()];
        let known = spare[0].address();
        let (sizes, mut got) = ([2 * MIB, 4 * MIB, 2 * MIB, MIB, 4 * MIB], Vec::new());
        let kept = pieces(&sizes, spare, |piece| {
            got.push(piece);
            io::Result::Ok(())
        });
        kept.unwrap();
        assert_eq!(got.iter().map(|piece| piece.bytes as u64).collect::<Vec<_>>(), sizes);
        assert_eq!(got[1].address(), known);
        assert_ne!(got[4].address(), known);
    }

    #[test]
    fn makers_end_with_the_receiver() {
        let busy = || io::Error::from(io::ErrorKind::ResourceBusy);
        let ended = pieces(&[MIB; 100], Vec::new(), |_| Err(busy()));
        assert_eq!(ended.unwrap_err().kind(), busy().kind());
    }
}
