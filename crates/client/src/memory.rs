//! Device memory: allocations, frees, and the memory that streams give back in their own time.
//!
//! Usually the client mints addresses (see [`addresses`](crate::addresses)) and only needs physical memory of the node,
//! 2 MiB at a time, for most of which it does not wait (see [`allowance`](crate::allowance)). Where the node could not reserve a range that is free here too, it names the addresses, and every
//! allocation waits.
//!
//! `cuMemFree` waits for the device, as CUDA's own does, but only if work was sent since the last time anybody waited:
//! then nothing can still be using the memory, and it may be handed out again at once.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{MutexGuard, PoisonError};

use sluice_cuda::*;
use sluice_wire::{DevicePtr, commands};

use crate::addresses::{Allocation, CHUNK, Space};
use crate::context::Context;
use crate::issue::Issue;
use crate::session::Session;
use crate::{capture, context, graph_memory, mirror, out, pool, session};

/// What a device's memory holds, by the rules of who names addresses.
#[derive(Debug)]
pub(crate) enum Names {
    Minted(Space),
    /// Allocations that the node named.
    Given(BTreeMap<u64, u64>),
}

#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) names: Names,
    /// Whose context each allocation ends with.
    owners: BTreeMap<u64, CUcontext>,
    freed_later: Vec<Freed>,
    freed_later_bytes: u64,
    /// The pool that an allocation counts towards, by address.
    pools: BTreeMap<u64, CUmemoryPool>,
    /// Allocations whose synchronous operations always wait (`CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`), by address.
    synchronous: BTreeSet<u64>,
}

/// Memory that was freed in the order of a stream, which may not have got there yet.
#[derive(Debug)]
struct Freed {
    stream: CUstream,
    allocation: Allocation,
    /// The pool that it came from; null for none.
    pool: CUmemoryPool,
}

/// Memory freed in stream order beyond this many bytes is worth a wait, so that other streams can have it.
const FREED_LATER_MAX: u64 = 256 << 20;

/// Whether any allocation was ever made synchronous: hardly any program asks for that.
static SOME_SYNCHRONOUS: AtomicBool = AtomicBool::new(false);

impl Memory {
    pub(crate) fn new(names: Names) -> Memory {
        Memory {
            names,
            owners: BTreeMap::new(),
            freed_later: Vec::new(),
            freed_later_bytes: 0,
            pools: BTreeMap::new(),
            synchronous: BTreeSet::new(),
        }
    }

    pub(crate) fn find(&self, address: u64) -> Option<Allocation> {
        match &self.names {
            Names::Minted(space) => space.find(address),
            Names::Given(given) => {
                let (&start, &bytes) = given.range(..=address).next_back()?;
                (address - start < bytes).then_some(Allocation { start, bytes, reserved: bytes })
            }
        }
    }

    /// Memory that was freed in the order of this very stream may be used again in the same order.
    fn take_freed(&mut self, stream: CUstream, bytes: u64) -> Option<u64> {
        let fits = |freed: &Freed| freed.stream == stream && freed.allocation.bytes == bytes;
        let index = self.freed_later.iter().position(fits)?;
        let Freed { allocation, .. } = self.freed_later.swap_remove(index);
        self.freed_later_bytes -= allocation.bytes;
        Some(allocation.start)
    }

    fn free_later(&mut self, stream: CUstream, allocation: Allocation) {
        let pool = self.leave_pool(&allocation);
        self.freed_later.push(Freed { stream, allocation, pool });
        self.freed_later_bytes += allocation.bytes;
    }

    /// Takes an allocation off the account of its pool; null where it has none.
    fn leave_pool(&mut self, allocation: &Allocation) -> CUmemoryPool {
        let Some(pool) = self.pools.remove(&allocation.start) else { return CUmemoryPool::NULL };
        pool::freed(pool, allocation.bytes);
        pool
    }

    /// The pool that an allocation came out of.
    pub(crate) fn pool_of(&self, address: u64) -> Option<CUmemoryPool> {
        self.pools.get(&address).copied()
    }

    /// Whether synchronous operations on what lies here always wait.
    pub(crate) fn is_synchronous(&self, address: u64) -> bool {
        self.find(address).is_some_and(|allocation| self.synchronous.contains(&allocation.start))
    }

    /// Makes synchronous operations on the allocation that starts at `address` always wait, or no longer.
    pub(crate) fn set_synchronous(&mut self, address: u64, always: bool) {
        if always {
            SOME_SYNCHRONOUS.store(true, Ordering::Relaxed);
            self.synchronous.insert(address);
        } else {
            self.synchronous.remove(&address);
        }
    }

    /// Bytes of a pool that are freed and not given back yet.
    pub(crate) fn kept_for(&self, pool: CUmemoryPool) -> u64 {
        let of_pool = self.freed_later.iter().filter(|freed| freed.pool == pool);
        of_pool.map(|freed| freed.allocation.bytes).sum()
    }
}

/// Where an allocation lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pages {
    /// Beside others, if it is small.
    Shared,
    /// On pages of its own, which all devices of the session can use.
    Own,
    /// The same, on pages that the node can look at while device code runs: where its driver needs that, in the node's host memory.
    OnHost,
}

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

    /// Allocates `bytes` > 0. If the node refuses, memory that streams have freed is waited for, and it is asked again.
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
        // What is on its way to the program may have left the device, and still has to lie here.
        let known = self.memory(device)?.find(address);
        if let Some(allocation) = known {
            self.reads.wait((allocation.start, allocation.bytes));
        }
        self.release(&mut *self.memory(device)?, address).map(drop)
    }

    /// Waits for all work that may use memory of this device. Mapped and managed memory is used by all devices.
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
                // The lock is held while the node commits: nobody else may be given a piece of a chunk that is not
                // there yet.
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

    /// Addresses for host memory that a device of this session may have to see, without memory behind them.
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

    /// Has addresses that were lent backed by memory of the calling thread's device; they are an allocation of `owner` from then on.
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
            memory.leave_pool(&allocation);
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

// The entry points. CUDA Driver API, sections "Memory Management" and "Stream Ordered Memory Allocator".

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
    let session = session::enter()?;
    if dptr == 0 {
        return Ok(());
    }
    // A pool's allocation that was imported is freed like one's own.
    if session.close_imported(dptr, true)? {
        return Ok(());
    }
    let (device, allocation) = session.find_allocation(dptr).ok_or(CUresult::INVALID_VALUE)?;
    if allocation.start != dptr {
        return Err(CUresult::INVALID_VALUE);
    }
    capture::check_safe()?;
    if let Some(freed) = graph_memory::free(dptr) {
        return freed;
    }
    if capture::some() {
        // A wait would end the capture. The memory comes back with the next wait that somebody needs.
        session.memory(device)?.free_later(CUstream::NULL, allocation);
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
        let address = graph_memory::captured_allocation(session, hStream, bytesize)?;
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
        return graph_memory::captured_free(session, hStream, dptr);
    }
    if let Some(freed) = graph_memory::free(dptr) {
        return freed;
    }
    let full = {
        let mut memory = session.memory(device)?;
        if memory.freed_later.iter().any(|freed| freed.allocation.start == dptr) {
            return Err(CUresult::INVALID_VALUE);
        }
        memory.free_later(hStream, allocation);
        memory.freed_later_bytes > FREED_LATER_MAX
    };
    if full { session.reclaim(device).map(drop) } else { Ok(()) }
}

/// Gives back what streams have freed, for pools that a program trims.
pub(crate) fn trim(session: &Session, device: CUdevice) -> Result<(), CUresult> {
    session.reclaim(device).map(drop)
}
