//! Host memory that programs get from CUDA or register with it. It is ordinary memory of this process: nothing is pinned,
//! and a device sees it through copies, or as a [`mirror`] once the program asks for a device's address of it. What is allocated to
//! be mapped has one from the start, the same on both sides: programs with unified addresses need not ask (CUDA Driver API,
//! Unified Addressing), and NCCL does not.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;

use crate::{context, copy, mirror, out, session};

/// One block, by its start.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) range: Range<u64>,
    pub(crate) flags: u32,
    pub(crate) context: CUcontext,
    /// From `cuMemHostRegister`: the program's own memory, not ours to free.
    registered: bool,
    /// At the address at which its device has it. The pages go when the device's side does.
    is_mirrored: bool,
}

static BLOCKS: Mutex<BTreeMap<u64, Block>> = Mutex::new(BTreeMap::new());

fn blocks() -> MutexGuard<'static, BTreeMap<u64, Block>> {
    BLOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The block that `address` lies in.
pub(crate) fn find(address: u64) -> Option<Block> {
    let blocks = blocks();
    let (_, block) = blocks.range(..=address).next_back()?;
    block.range.contains(&address).then(|| block.clone())
}

/// Whether a copy into `bytes` bytes from `address` may land after the call returns: only into memory that
/// the program has promised to leave alone.
pub(crate) fn is_pinned(address: u64, bytes: u64) -> bool {
    find(address).is_some_and(|block| bytes <= block.range.end - address)
}

fn allocate(bytes: usize, flags: u32) -> Result<*mut c_void, CUresult> {
    session::get()?;
    let context = context::current()?.owner;
    if bytes == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches nobody's memory.
    let start = unsafe {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0)
    };
    if start == libc::MAP_FAILED {
        return Err(CUresult::OUT_OF_MEMORY);
    }
    let range = start as u64..start as u64 + bytes as u64;
    let block = Block { range, flags, context, registered: false, is_mirrored: false };
    blocks().insert(start as u64, block);
    Ok(start)
}

/// Memory that the current device sees at the same address; none where this side does not choose addresses.
fn allocate_mapped(bytes: usize, flags: u32) -> Result<Option<*mut c_void>, CUresult> {
    let session = session::enter()?;
    let context = context::current()?;
    if bytes == 0 || !session.device(context.device)?.mints_addresses {
        return Ok(None);
    }
    let start = mirror::allocate(session, &context, bytes as u64, false)?;
    let range = start..start + bytes as u64;
    let block = Block { range, flags, context: context.owner, registered: false, is_mirrored: true };
    blocks().insert(start, block);
    Ok(Some(std::ptr::with_exposed_provenance_mut(start as usize)))
}

/// Takes the block that starts at `start` out of the table, if it is of the expected sort.
fn take(start: u64, registered: bool) -> Option<Block> {
    let mut blocks = blocks();
    (blocks.get(&start)?.registered == registered).then(|| blocks.remove(&start)).flatten()
}

// The entry points. CUDA Driver API, section "Memory Management".

pub(crate) unsafe fn cuMemAllocHost(pp: *mut *mut c_void, bytesize: u32) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuMemHostAlloc(pp, bytesize as usize, 0) }
}

pub(crate) unsafe fn cuMemAllocHost_v2(pp: *mut *mut c_void, bytesize: usize) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuMemHostAlloc(pp, bytesize, 0) }
}

pub(crate) unsafe fn cuMemHostAlloc(
    pp: *mut *mut c_void,
    bytesize: usize,
    Flags: u32,
) -> Result<(), CUresult> {
    if pp.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let mapped =
        if Flags & CU_MEMHOSTALLOC_DEVICEMAP != 0 { allocate_mapped(bytesize, Flags)? } else { None };
    let start = mapped.map_or_else(|| allocate(bytesize, Flags), Ok)?;
    // SAFETY: the program passes a place for the address.
    unsafe { out::write(pp, start) }
}

/// Copies on their way into the block land first, as CUDA's own call waits for them.
pub(crate) unsafe fn cuMemFreeHost(p: *mut c_void) -> Result<(), CUresult> {
    session::get()?;
    if find(p as u64).is_none_or(|block| block.registered || block.range.start != p as u64) {
        return Err(CUresult::INVALID_VALUE);
    }
    copy::settle_pushed_copies()?;
    // Its address may be another block's as soon as the device's side is gone.
    let block = take(p as u64, false).ok_or(CUresult::INVALID_VALUE)?;
    unmap(p as u64)?;
    if !block.is_mirrored {
        // SAFETY: the mapping was made by `allocate`, and whoever takes the entry out of the table unmaps it alone.
        unsafe { libc::munmap(p, (block.range.end - block.range.start) as usize) };
    }
    Ok(())
}

pub(crate) unsafe fn cuMemHostRegister(p: *mut c_void, bytesize: usize, Flags: u32) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuMemHostRegister_v2(p, bytesize, Flags) }
}

pub(crate) unsafe fn cuMemHostRegister_v2(
    p: *mut c_void,
    bytesize: usize,
    Flags: u32,
) -> Result<(), CUresult> {
    session::get()?;
    let context = context::current()?.owner;
    let start = p as u64;
    let end = start.checked_add(bytesize as u64).ok_or(CUresult::INVALID_VALUE)?;
    if start == 0 || bytesize == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let mut blocks = blocks();
    if blocks.range(..end).next_back().is_some_and(|(_, before)| before.range.end > start) {
        return Err(CUresult::HOST_MEMORY_ALREADY_REGISTERED);
    }
    blocks.insert(
        start,
        Block { range: start..end, flags: Flags, context, registered: true, is_mirrored: false },
    );
    Ok(())
}

pub(crate) unsafe fn cuMemHostUnregister(p: *mut c_void) -> Result<(), CUresult> {
    session::get()?;
    copy::settle_pushed_copies()?;
    if find(p as u64).is_none_or(|block| !block.registered || block.range.start != p as u64) {
        return Err(CUresult::HOST_MEMORY_NOT_REGISTERED);
    }
    unmap(p as u64)?;
    take(p as u64, true).map(drop).ok_or(CUresult::HOST_MEMORY_NOT_REGISTERED)
}

/// The device gets memory of its own for the block, at another address, with the first such question: one for each node.
pub(crate) unsafe fn cuMemHostGetDevicePointer_v2(
    pdptr: *mut CUdeviceptr,
    p: *mut c_void,
    Flags: u32,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let block = find(p as u64).ok_or(CUresult::INVALID_VALUE)?;
    if pdptr.is_null() || Flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let start = match mirror::of_host(session, block.range.start) {
        Some(start) => start,
        None => {
            let is_read_only = block.registered && block.flags & CU_MEMHOSTREGISTER_READ_ONLY != 0;
            mirror::map_host(session, &*context::current()?, block.range.clone(), is_read_only)?
        }
    };
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(pdptr, start + (p as u64 - block.range.start)) }
}

/// The devices' side of a block goes before the block does.
fn unmap(start: u64) -> Result<(), CUresult> {
    let mut unmapped = Ok(());
    for session in &session::all()?.list {
        let Some(device) = mirror::of_host(session, start) else { continue };
        if let Some((ordinal, allocation)) = session.find_allocation(device) {
            let freed = session.free(ordinal, allocation.start);
            if freed.is_err() {
                // Whatever becomes of the session: nobody looks at the program's memory any more, which it may free after an error, too.
                mirror::forget(device);
            }
            unmapped = unmapped.and(freed);
        }
    }
    unmapped
}

pub(crate) unsafe fn cuMemHostGetFlags(pFlags: *mut u32, p: *mut c_void) -> Result<(), CUresult> {
    session::get()?;
    let block = find(p as u64).filter(|block| !block.registered).ok_or(CUresult::INVALID_VALUE)?;
    // SAFETY: the program passes a place for the flags.
    unsafe { out::write(pFlags, block.flags) }
}
