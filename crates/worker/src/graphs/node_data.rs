//! Memory of nodes that copy from or to the client: the data wait there.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::{CUresult, DriverTable};

use crate::memory::host_memory::{HostCharge, HostMemory};

/// The memory belongs to all contexts (`CU_MEMHOSTALLOC_PORTABLE`).
const PORTABLE: u32 = 1;

/// The buffers of copies, by ticket.
pub(crate) struct NodeData {
    pub(super) memory: Arc<HostMemory>,
    pub(super) state: Mutex<Buffers>,
}

#[derive(Default)]
pub(super) struct Buffers {
    pub(super) live: HashMap<u64, Buffer>,
    /// No longer used, oldest first. To free one may take until the device has nothing to do.
    pub(super) spares: Vec<Buffer>,
}

/// Bytes of buffers that are kept to be used again.
pub(super) const SPARES_MAX: u64 = 64 << 20;

impl Buffers {
    /// A buffer of this number of bytes, or not many more, if one is spare; and those that should
    /// be freed.
    pub(super) fn spare(&mut self, bytes: u64) -> (Option<Buffer>, Vec<Buffer>) {
        let fits = |buffer: &Buffer| bytes <= buffer.bytes && buffer.bytes / 2 <= bytes.max(1 << 12);
        let found = self.spares.iter().position(fits).map(|at| self.spares.remove(at));
        let mut kept = 0;
        let newest_kept = self.spares.iter().rev().take_while(|buffer| {
            kept += buffer.bytes;
            kept <= SPARES_MAX
        });
        let first = self.spares.len() - newest_kept.count();
        (found, self.spares.drain(..first).collect())
    }
}

pub(super) fn free(table: &DriverTable, buffer: &Buffer) -> Result<(), CUresult> {
    let free = table.cuMemFreeHost.ok_or(CUresult::NOT_SUPPORTED)?;
    // SAFETY: the driver's memory, which no graph uses any more; the thread that took it out of the
    // spare ones frees it alone.
    unsafe { free(buffer.start.cast()) }.ok()
}

/// Pinned memory of the driver.
pub(super) struct Buffer {
    pub(super) start: *mut u8,
    pub(super) bytes: u64,
    #[expect(dead_code, reason = "held, not read")]
    pub(super) held: HostCharge,
}

// SAFETY: plain memory; who reads and writes it when is ordered by the graphs that use it.
unsafe impl Send for Buffer {}

impl NodeData {
    pub(super) fn new(memory: Arc<HostMemory>) -> NodeData {
        NodeData { memory, state: Mutex::default() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Buffers> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a buffer for a ticket. The lock is not held over calls of the driver that may wait for
    /// the device: what the device waits for may be data that the client puts into another buffer.
    pub(super) fn make(&self, table: &DriverTable, ticket: u64, bytes: u64) -> Result<*mut c_void, CUresult> {
        let (spare, excess) = self.lock().spare(bytes);
        for buffer in excess {
            free(table, &buffer)?;
        }
        let buffer = match spare {
            Some(buffer) => buffer,
            None => self.allocate(table, bytes)?,
        };
        let start = buffer.start.cast();
        let mut state = self.lock();
        if state.live.contains_key(&ticket) {
            state.spares.push(buffer);
            return Err(CUresult::OUT_OF_MEMORY);
        }
        state.live.insert(ticket, buffer);
        Ok(start)
    }

    pub(super) fn allocate(&self, table: &DriverTable, bytes: u64) -> Result<Buffer, CUresult> {
        let allocate = table.cuMemHostAlloc.ok_or(CUresult::NOT_SUPPORTED)?;
        let held = self.memory.take(bytes).or_else(|_| {
            let spares = std::mem::take(&mut self.lock().spares);
            spares.iter().try_for_each(|buffer| free(table, buffer))?;
            drop(spares);
            self.memory.take(bytes)
        })?;
        let mut start = std::ptr::null_mut();
        // SAFETY: the driver writes one pointer to a local.
        unsafe { allocate(&mut start, bytes.max(1) as usize, PORTABLE) }.ok()?;
        Ok(Buffer { start: start.cast(), bytes, held })
    }

    /// No graph uses it any more. It cannot be freed in a callback of the driver.
    pub(super) fn retire(&self, ticket: u64) {
        let mut state = self.lock();
        let retired = state.live.remove(&ticket);
        state.spares.extend(retired);
    }

    /// Has `use_it` work on part of a buffer.
    pub(super) fn with<R>(
        &self,
        ticket: u64,
        offset: u64,
        bytes: u64,
        use_it: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, CUresult> {
        let state = self.lock();
        let buffer = state.live.get(&ticket).ok_or(CUresult::INVALID_VALUE)?;
        if offset.checked_add(bytes).is_none_or(|end| end > buffer.bytes) {
            return Err(CUresult::INVALID_VALUE);
        }
        // SAFETY: inside the buffer, which stays while the lock is held; the copy beside it waits
        // for the client.
        let part =
            unsafe { std::slice::from_raw_parts_mut(buffer.start.add(offset as usize), bytes as usize) };
        Ok(use_it(part))
    }

    /// The client brings data for a copy to the device.
    pub(crate) fn put(&self, ticket: u64, offset: u64, bytes: &[u8]) -> Result<(), CUresult> {
        self.with(ticket, offset, bytes.len() as u64, |part| part.copy_from_slice(bytes))
    }

    /// The client takes data of a copy from the device.
    pub(crate) fn get(&self, ticket: u64, offset: u64, bytes: u64) -> Result<Vec<u8>, CUresult> {
        self.with(ticket, offset, bytes, |part| part.to_vec())
    }
}
