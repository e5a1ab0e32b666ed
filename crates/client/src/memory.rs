//! Device memory: allocations, frees, and the memory that streams give back in their own time.
//!
//! Usually the client mints addresses (see [`addresses`](crate::memory::addresses)) and only needs
//! physical memory of the node, 2 MiB at a time, for most of which it does not wait (see
//! [`credit`](crate::link::credit)). Where the node could not reserve a range that is free
//! here too, it names the addresses, and every allocation waits.
//!
//! `cuMemFree` waits for the device, as CUDA's own does, but only if work was sent since the last
//! wait: then nothing can still be using the memory, and it may be handed out again at once.
//!
//! # In this folder
//!
//! Device memory: addresses and what is allocated there ([`addresses`], [`allocations`]), pools,
//! memory that programs map themselves ([`mappings`] as data, [`virtual_memory`] with its entry
//! points), memory of other processes ([`sharing`]), and questions about an address ([`pointer`]).

pub(crate) mod addresses;
pub(crate) mod allocations;
pub(crate) mod mappings;
pub(crate) mod memset;
pub(crate) mod pointer;
pub(crate) mod pool;
pub(crate) mod sharing;
pub(crate) mod virtual_memory;

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use sluice_cuda::*;
use sluice_wire::{Command, DevicePtr, commands};

use crate::abi::out;
use crate::context::{self, Context};
use crate::graph::allocation;
use crate::host_memory::mirror;
use crate::memory::addresses::{Allocation, CHUNK};
use crate::memory::allocations::{Freed, Memory, Names, Pages, SOME_SYNCHRONOUS};
use crate::session::issue::Issue;
use crate::session::{self, Session};
use crate::stream::capture;

/// Memory freed in stream order beyond this many bytes is worth a wait, so that other streams can
/// have it.
const FREED_LATER_MAX: u64 = 256 << 20;

impl Session {
    pub(crate) fn memory(&self, device: CUdevice) -> Result<MutexGuard<'_, Memory>, CUresult> {
        Ok(self.device(device)?.memory.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether synchronous operations on what lies here always wait.
    pub(crate) fn is_synchronous(&self, address: u64) -> bool {
        SOME_SYNCHRONOUS.load(Ordering::Relaxed)
            && self.devices.iter().any(|device| {
                device.memory.lock().unwrap_or_else(PoisonError::into_inner).is_synchronous(address)
            })
    }

    /// The allocation that an address lies in, and its device.
    pub(crate) fn find_allocation(&self, address: u64) -> Option<(CUdevice, Allocation)> {
        self.devices.iter().find_map(|device| {
            let memory = device.memory.lock().unwrap_or_else(PoisonError::into_inner);
            Some((device.ordinal, memory.find(address)?))
        })
    }

    /// Allocates `bytes` > 0. If the node refuses, memory that streams have freed is waited for,
    /// and it is asked again.
    pub(crate) fn allocate(&self, owner: &Context, bytes: u64, pages: Pages) -> Result<u64, CUresult> {
        let device = owner.device;
        let address = match self.try_allocate(device, bytes, pages) {
            Err(CUresult::OUT_OF_MEMORY) if self.reclaim(device)? => self.try_allocate(device, bytes, pages),
            other => other,
        }?;
        self.memory(device)?.owners.insert(address, owner.owner);
        Ok(address)
    }

    /// Frees what starts at `address`, once the device has done what may use it.
    pub(crate) fn free(&self, device: CUdevice, address: u64) -> Result<(), CUresult> {
        self.wait_for_users(device)?;
        // Data in flight to the program may have left the device and still need this memory.
        let known = self.memory(device)?.find(address);
        if let Some(allocation) = known {
            self.reads.wait((allocation.start, allocation.bytes));
        }
        self.release(&mut *self.memory(device)?, address).map(drop)
    }

    /// Waits for all work that may use memory of this device. Mapped and managed memory is used by
    /// all devices.
    pub(crate) fn wait_for_users(&self, device: CUdevice) -> Result<(), CUresult> {
        if mirror::exist() {
            return self.devices.iter().try_for_each(|device| device.wait(self));
        }
        self.device(device)?.wait(self)
    }

    /// Frees what a context that has ended still held.
    pub(crate) fn release_all(&self, device: CUdevice, owner: CUcontext) -> Result<(), CUresult> {
        self.reclaim(device)?;
        let mut memory = self.memory(device)?;
        let held: Vec<u64> =
            memory.owners.iter().filter(|(_, of)| **of == owner).map(|(&address, _)| address).collect();
        held.into_iter().try_for_each(|address| self.release(&mut memory, address).map(drop))
    }

    fn try_allocate(&self, device: CUdevice, bytes: u64, pages: Pages) -> Result<u64, CUresult> {
        let mut memory = self.memory(device)?;
        match &mut memory.names {
            Names::Minted(space) => {
                let apart = pages != Pages::Shared;
                let placement = space.allocate(bytes, apart).ok_or(CUresult::OUT_OF_MEMORY)?;
                // The lock is held while the node commits: no other allocation may get a piece of a
                // chunk that is not there yet.
                if let Some(chunks) = placement.commit
                    && let Err(error) = self.commit(&chunks, pages)
                {
                    space.forget(placement.address);
                    return Err(error);
                }
                Ok(placement.address)
            }
            Names::Given(given) => {
                let command = commands::cuMemAlloc_v2 { bytesize: bytes };
                let address = self.call(&command, |answer| answer.dptr.0)?;
                given.insert(address, bytes);
                Ok(address)
            }
        }
    }

    /// Has chunks of the calling thread's device backed.
    fn commit(&self, chunks: &Range<u64>, pages: Pages) -> Result<(), CUresult> {
        let (address, bytes) = (DevicePtr(chunks.start), chunks.end - chunks.start);
        let asked = self.commitment((chunks.start, bytes), pages);
        if asked.on_host || asked.by_all {
            return self.call(&asked, |()| ());
        }
        let allowed = commands::MemoryCommitAllowed { address, bytes };
        self.use_memory((self.place_in_lease(), bytes), &allowed, &asked)
    }

    fn commitment(&self, (address, bytes): (u64, u64), pages: Pages) -> commands::MemoryCommit {
        let by_all = pages != Pages::Shared && self.devices.len() > 1;
        commands::MemoryCommit { address: DevicePtr(address), bytes, on_host: pages == Pages::OnHost, by_all }
    }

    /// Addresses for host memory that a device of this session may have to see, without memory
    /// behind them.
    pub(crate) fn lend(&self, device: CUdevice, bytes: u64) -> Option<u64> {
        match &mut self.memory(device).ok()?.names {
            Names::Minted(space) => space.lend(bytes),
            Names::Given(_) => None,
        }
    }

    pub(crate) fn take_back(&self, device: CUdevice, address: u64, bytes: u64) {
        if let Ok(mut memory) = self.memory(device)
            && let Names::Minted(space) = &mut memory.names
        {
            space.take_back(address, bytes);
        }
    }

    /// Has addresses that were lent backed by memory of the calling thread's device; they are an
    /// allocation of `owner` from then on.
    pub(crate) fn back(
        &self,
        (lender, owner): (CUdevice, CUcontext),
        (address, bytes): (u64, u64),
        pages: Pages,
    ) -> Result<(), CUresult> {
        let command = self.commitment((address, bytes.next_multiple_of(CHUNK)), pages);
        let commit = || self.call(&command, |()| ());
        match commit() {
            Err(CUresult::OUT_OF_MEMORY) if self.reclaim(context::device())? => commit()?,
            done => done?,
        }
        let mut memory = self.memory(lender)?;
        if let Names::Minted(space) = &mut memory.names {
            space.settle(address, bytes);
        }
        memory.owners.insert(address, owner);
        Ok(())
    }

    /// Undoes [`Session::back`].
    pub(crate) fn unback(&self, lender: CUdevice, address: u64) -> Result<(), CUresult> {
        let mut memory = self.memory(lender)?;
        memory.owners.remove(&address);
        let chunks = match &mut memory.names {
            Names::Minted(space) => space.unsettle(address),
            Names::Given(_) => None,
        };
        chunks.map_or(Ok(()), |chunks| self.decommit(&chunks))
    }

    fn decommit(&self, chunks: &Range<u64>) -> Result<(), CUresult> {
        let (address, bytes) = (DevicePtr(chunks.start), chunks.end - chunks.start);
        self.queue_quietly(&commands::MemoryDecommit { address, bytes })
    }

    /// Frees what starts at `address`, which nothing uses any more.
    fn release(&self, memory: &mut Memory, address: u64) -> Result<Allocation, CUresult> {
        memory.owners.remove(&address);
        if let Some(allocation) = memory.find(address) {
            pool::freed(memory.leave_pool(&allocation), allocation.bytes);
        }
        memory.synchronous.remove(&address);
        mirror::forget(address);
        match &mut memory.names {
            Names::Minted(space) => {
                let (allocation, chunks) = space.free(address).ok_or(CUresult::INVALID_VALUE)?;
                if let Some(chunks) = chunks {
                    self.decommit(&chunks)?;
                }
                Ok(allocation)
            }
            Names::Given(given) => {
                let bytes = given.remove(&address).ok_or(CUresult::INVALID_VALUE)?;
                self.queue_quietly(&commands::cuMemFree_v2 { dptr: DevicePtr(address) })?;
                Ok(Allocation { start: address, bytes, reserved: bytes })
            }
        }
    }

    /// Waits for the device and takes back what streams have freed; false if there was nothing.
    pub(crate) fn reclaim(&self, device: CUdevice) -> Result<bool, CUresult> {
        if self.memory(device)?.freed_later.is_empty() {
            return Ok(false);
        }
        // What is freed from here on may not be covered by the wait.
        let freed = {
            let mut memory = self.memory(device)?;
            memory.freed_later_bytes = 0;
            std::mem::take(&mut memory.freed_later)
        };
        self.wait_for_users(device)?;
        let mut memory = self.memory(device)?;
        for Freed { allocation, .. } in freed {
            self.release(&mut memory, allocation.start)?;
        }
        Ok(true)
    }
}

// The entry points. CUDA Driver API, sections "Memory Management" and "Stream Ordered Memory
// Allocator".

pub(crate) unsafe fn cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize) -> Result<(), CUresult> {
    let session = session::enter()?;
    let context = context::current()?;
    if dptr.is_null() || bytesize == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    capture::check_safe()?;
    let address = session.allocate(&context, bytesize as u64, Pages::Shared)?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(dptr, address) }
}

/// Rows start at multiples of this many bytes, which suits every access and texture width.
const PITCH_ALIGNMENT: usize = 512;

pub(crate) unsafe fn cuMemAllocPitch_v2(
    dptr: *mut CUdeviceptr,
    pPitch: *mut usize,
    WidthInBytes: usize,
    Height: usize,
    ElementSizeBytes: u32,
) -> Result<(), CUresult> {
    if !matches!(ElementSizeBytes, 4 | 8 | 16) || WidthInBytes == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let pitch = WidthInBytes.checked_next_multiple_of(PITCH_ALIGNMENT).ok_or(CUresult::INVALID_VALUE)?;
    let bytes = pitch.checked_mul(Height).ok_or(CUresult::INVALID_VALUE)?;
    // SAFETY: the program passes two places.
    unsafe {
        out::write(pPitch, pitch)?;
        cuMemAlloc_v2(dptr, bytes)
    }
}

pub(crate) unsafe fn cuMemFree_v2(dptr: CUdeviceptr) -> Result<(), CUresult> {
    if dptr == 0 {
        return session::get().map(drop);
    }
    let session = session::enter()?;
    // A pool's allocation that was imported is freed like one's own.
    if session.close_imported(dptr, true)? {
        return Ok(());
    }
    let (device, allocation) = session.find_allocation(dptr).ok_or(CUresult::INVALID_VALUE)?;
    if allocation.start != dptr {
        return Err(CUresult::INVALID_VALUE);
    }
    capture::check_safe()?;
    if let Some(freed) = allocation::free(dptr) {
        return freed;
    }
    if capture::some() {
        // A wait would end the capture. The memory is freed with the next wait.
        let pool = session.memory(device)?.free_later(CUstream::NULL, allocation);
        pool::freed(pool, allocation.bytes);
        return Ok(());
    }
    session.free(device, dptr)
}

pub(crate) unsafe fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Result<(), CUresult> {
    let session = session::enter()?;
    context::check_current()?;
    let answer = session.call(&commands::cuMemGetInfo_v2 {}, |answer| answer)?;
    // SAFETY: the program passes null or a place for each.
    unsafe {
        out::write_if_wanted(free, answer.free as usize);
        out::write_if_wanted(total, answer.total as usize);
    }
    Ok(())
}

/// Memory of a pool in the order of a stream; of the current pool of the stream's device where none
/// is named.
///
/// # Safety
/// `dptr` is null or valid for writing an address.
unsafe fn allocate_in_order(
    dptr: *mut CUdeviceptr,
    bytesize: usize,
    pool: Option<CUmemoryPool>,
    hStream: CUstream,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    session.find(hStream)?;
    let context = context::current()?;
    let device = context.device;
    if dptr.is_null() || bytesize == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    if capture::of(hStream).is_some() {
        let address = allocation::captured_allocation(session, hStream, bytesize)?;
        // SAFETY: not null, and the program's to be written.
        return unsafe { out::write(dptr, address) };
    }
    let bytes = bytesize as u64;
    let pool = pool.unwrap_or_else(|| session.device(device).map_or(CUmemoryPool::NULL, pool::current));
    pool::take(pool, bytes)?;
    let freed = session.memory(device)?.take_freed(hStream, bytes);
    let allocated = freed.map_or_else(|| session.allocate(&context, bytes, Pages::Shared), Ok);
    let address = allocated.inspect_err(|_| pool::freed(pool, bytes))?;
    session.memory(device)?.pools.insert(address, pool);
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(dptr, address) }
}

pub(crate) unsafe fn cuMemAllocAsync(
    dptr: *mut CUdeviceptr,
    bytesize: usize,
    hStream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { allocate_in_order(dptr, bytesize, None, hStream) }
}

pub(crate) unsafe fn cuMemAllocFromPoolAsync(
    dptr: *mut CUdeviceptr,
    bytesize: usize,
    pool: CUmemoryPool,
    hStream: CUstream,
) -> Result<(), CUresult> {
    pool::check(pool)?;
    // SAFETY: the same contract.
    unsafe { allocate_in_order(dptr, bytesize, Some(pool), hStream) }
}

pub(crate) unsafe fn cuMemFreeAsync(dptr: CUdeviceptr, hStream: CUstream) -> Result<(), CUresult> {
    let session = session::enter()?;
    session.find(hStream)?;
    if dptr == 0 {
        return Ok(());
    }
    if session.close_imported(dptr, true)? {
        return Ok(());
    }
    let (device, allocation) = session.find_allocation(dptr).ok_or(CUresult::INVALID_VALUE)?;
    if allocation.start != dptr {
        return Err(CUresult::INVALID_VALUE);
    }
    if capture::of(hStream).is_some() {
        return allocation::captured_free(session, hStream, dptr);
    }
    if let Some(freed) = allocation::free(dptr) {
        return freed;
    }
    let full = {
        let mut memory = session.memory(device)?;
        if memory.freed_later.iter().any(|freed| freed.allocation.start == dptr) {
            return Err(CUresult::INVALID_VALUE);
        }
        pool::freed(memory.free_later(hStream, allocation), allocation.bytes);
        memory.freed_later_bytes > FREED_LATER_MAX
    };
    if full { session.reclaim(device).map(drop) } else { Ok(()) }
}

/// Gives back what streams have freed, for pools that a program trims.
pub(crate) fn trim(session: &Session, device: CUdevice) -> Result<(), CUresult> {
    session.reclaim(device).map(drop)
}

impl Session {
    /// Has memory of a device used for something: by `queued` where that fits into the allowance,
    /// else by `asked`. The caller has the lock of that device's memory.
    pub(crate) fn use_memory<Q: Command, A: Command>(
        &self,
        (place, bytes): (u8, u64),
        queued: &Q,
        asked: &A,
    ) -> Result<(), CUresult> {
        if !self.link.spend(place, bytes) {
            return self.call(asked, |_| ());
        }
        self.queue_quietly(queued)?;
        // The node has something to do that nothing here waits for, and others are to see what is
        // used.
        self.link.flush_now()
    }

    /// The place of the calling thread's device in the lease.
    pub(crate) fn place_in_lease(&self) -> u8 {
        self.here().map_or(0, |device| device.place)
    }
}
