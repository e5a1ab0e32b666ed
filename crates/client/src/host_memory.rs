//! Host memory that programs get from CUDA or register with it. It is ordinary memory of this
//! process: nothing is pinned, and a device sees it through copies, or as a [`mirror`] once the
//! program asks for a device's address of it.
//!
//! What CUDA allocates has the same address on both sides, and programs with unified addresses need
//! not ask (CUDA Driver API, Unified Addressing). It lies at addresses that its device has lent.
//! What is allocated to be mapped is a mirror from the start, as NCCL needs it; all else when the
//! program asks, or when a kernel gets such an address among its parameters. So memory that is only
//! copied, as nearly all is, costs nothing but addresses.
//!
//! ```text
//! cuMemHostAlloc ──▶ Lent ──(cuMemHostGetDevicePointer; a kernel's parameter)─▶ Mirrored ──▶ freed
//!       └───(DEVICEMAP)──────────────────────────────────────────────────────────▲
//! ```
//!
//! # In this folder
//!
//! Host memory that CUDA knows: the table of blocks ([`blocks`]), and memory that both sides see,
//! which [`mirror`] keeps equal: mapped ([`live`] while kernels run), managed ([`managed`]),
//! variables of modules ([`variables`]), and `cuMemCreate`'s host memory ([`physical`]).

pub(crate) mod blocks;
pub(crate) mod live;
pub(crate) mod managed;
pub(crate) mod mirror;
pub(crate) mod physical;
pub(crate) mod session_state;
pub(crate) mod variables;

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use sluice_cuda::*;

use crate::abi::out;
use crate::context;
use crate::host_memory::blocks::{Block, BlockPages, find, is_only_here, lent, table, widen};
use crate::session::{self, Session};

/// A block gets a device's side once.
static BACKING: Mutex<()> = Mutex::new(());
/// Blocks that kernels of graphs take, by their start: they get their device's side before a graph
/// is launched, since it cannot be made during a capture.
static OF_GRAPHS: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());
static GRAPHS_HAVE_SOME: AtomicBool = AtomicBool::new(false);

/// A kernel gets these parameters: what they point to of host memory is to be on its device.
/// Pointers elsewhere are not seen.
pub(crate) fn kernel_takes(
    session: &'static Session,
    parameters: &[u8],
    in_graph: bool,
) -> Result<(), CUresult> {
    let lent = lent();
    if lent.is_empty() {
        return Ok(());
    }
    let (words, _) = parameters.as_chunks();
    for address in words.iter().map(|word| u64::from_ne_bytes(*word)).filter(|it| lent.contains(it)) {
        let Some(Block { range, pages, .. }) = find(address) else { continue };
        if session::are_many() && !is_here(session, &range, pages) {
            crate::say_once!(
                "a kernel was given page-locked memory that was allocated for a GPU of another node: allocate it \
                 while a device of the kernel's node is current"
            );
            return Err(CUresult::NOT_SUPPORTED);
        }
        if !matches!(pages, BlockPages::Lent(_)) {
            continue;
        }
        if in_graph {
            OF_GRAPHS.lock().unwrap_or_else(PoisonError::into_inner).insert(range.start);
            GRAPHS_HAVE_SOME.store(true, Ordering::Release);
        } else {
            back(session, range.start)?;
        }
    }
    Ok(())
}

/// Whether devices of this session can have a side of a block that is not only the program's: it
/// has an address of their node's.
fn is_here(session: &Session, range: &Range<u64>, pages: BlockPages) -> bool {
    match pages {
        BlockPages::Lent(lender) => session.has(lender),
        BlockPages::Mirrored => mirror::of_host(session, range.start).is_some(),
        BlockPages::Registered | BlockPages::Anywhere => true,
    }
}

/// What kernels of graphs take of host memory is to be on the session's devices.
pub(crate) fn graph_launches(session: &'static Session) -> Result<(), CUresult> {
    if !GRAPHS_HAVE_SOME.load(Ordering::Acquire) {
        return Ok(());
    }
    let waiting = OF_GRAPHS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for start in waiting {
        back(session, start)?;
        if !is_only_here(start) {
            OF_GRAPHS.lock().unwrap_or_else(PoisonError::into_inner).remove(&start);
        }
    }
    Ok(())
}

/// Gives the current device its side of a block that has only the address for it; one of another
/// node stays as it is.
fn back(session: &'static Session, start: u64) -> Result<(), CUresult> {
    let _once = BACKING.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(Block { range, context, pages: BlockPages::Lent(lender), .. }) = find(start) else {
        return Ok(());
    };
    if !session.has(lender) {
        return Ok(());
    }
    let bytes = range.end - range.start;
    mirror::back(session, &*context::current()?, (lender, context), (range.start, bytes))?;
    table().entry(range.start).and_modify(|block| block.pages = BlockPages::Mirrored);
    Ok(())
}

fn allocate(bytes: usize, flags: u32) -> Result<*mut c_void, CUresult> {
    let session = session::get()?;
    let context = context::current()?;
    if bytes == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let (start, pages) = match mirror::lend(session, context.device, bytes as u64) {
        Some(start) => {
            widen(&(start..start + bytes as u64));
            (start, BlockPages::Lent(context.device))
        }
        None => (map_anywhere(bytes)?, BlockPages::Anywhere),
    };
    let range = start..start + bytes as u64;
    table().insert(start, Block { range, flags, context: context.owner, pages });
    Ok(std::ptr::with_exposed_provenance_mut(start as usize))
}

fn map_anywhere(bytes: usize) -> Result<u64, CUresult> {
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory in use.
    let start = unsafe {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0)
    };
    if start == libc::MAP_FAILED {
        Err(CUresult::OUT_OF_MEMORY)
    } else {
        Ok(start.expose_provenance() as u64)
    }
}

/// Memory that the current device sees at the same address; none where this side does not choose
/// addresses.
fn allocate_mapped(bytes: usize, flags: u32) -> Result<Option<*mut c_void>, CUresult> {
    let session = session::enter()?;
    let context = context::current()?;
    if bytes == 0 || !session.device(context.device)?.mints_addresses {
        return Ok(None);
    }
    let start = mirror::allocate(session, &context, bytes as u64, false)?;
    let range = start..start + bytes as u64;
    widen(&range);
    let block = Block { range, flags, context: context.owner, pages: BlockPages::Mirrored };
    table().insert(start, block);
    Ok(Some(std::ptr::with_exposed_provenance_mut(start as usize)))
}

/// Notes memory that the program has mapped itself, and that devices have at the same address.
pub(crate) fn insert_mapped(range: Range<u64>) {
    widen(&range);
    let (flags, context) = (CU_MEMHOSTALLOC_DEVICEMAP, CUcontext::NULL);
    table().insert(range.start, Block { range, flags, context, pages: BlockPages::Mirrored });
}

/// The program has unmapped what starts here.
pub(crate) fn remove_mapped(start: u64) {
    table().remove(&start);
}

/// Takes the block that starts at `start` out of the table, if it is of the expected sort.
fn take(start: u64, registered: bool) -> Option<Block> {
    // Not while it gets its device's side.
    let _once = BACKING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut blocks = table();
    (blocks.get(&start)?.is_registered() == registered).then(|| blocks.remove(&start)).flatten()
}

/// Forgets what a context has on both sides, whose addresses are about to be others'. What is only
/// here stays the program's.
pub(crate) fn context_ended(context: CUcontext) {
    let _once = BACKING.lock().unwrap_or_else(PoisonError::into_inner);
    table().retain(|_, block| block.context != context || block.pages != BlockPages::Mirrored);
}

/// Forgets all blocks of a session that is lost. Their pages stay where they are.
pub(crate) fn forget_all() {
    let _once = BACKING.lock().unwrap_or_else(PoisonError::into_inner);
    table().clear();
    OF_GRAPHS.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

impl Block {
    /// Where devices see the block: at the program's own address where CUDA has allocated it.
    /// Registered memory has a device address once it is mapped.
    pub(crate) fn device_start(&self) -> Option<u64> {
        let start = self.range.start;
        mirror::on_device(start).or_else(|| matches!(self.pages, BlockPages::Lent(_)).then_some(start))
    }

    fn is_registered(&self) -> bool {
        self.pages == BlockPages::Registered
    }
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

/// Copies in flight into the block land first, as CUDA's own call waits for them.
pub(crate) unsafe fn cuMemFreeHost(p: *mut c_void) -> Result<(), CUresult> {
    session::get()?;
    if p.is_null() {
        return Ok(());
    }
    if find(p as u64).is_none_or(|block| block.is_registered() || block.range.start != p as u64) {
        return Err(CUresult::INVALID_VALUE);
    }
    settle_pushed_copies()?;
    // Its address may be another block's as soon as the device's side is gone.
    let block = take(p as u64, false).ok_or(CUresult::INVALID_VALUE)?;
    unmap(p as u64)?;
    let bytes = block.range.end - block.range.start;
    match block.pages {
        // SAFETY: the mapping was made by `map_anywhere`, and only the thread that removed the
        // entry from the table unmaps it.
        BlockPages::Anywhere => _ = unsafe { libc::munmap(p, bytes as usize) },
        BlockPages::Lent(lender) => {
            mirror::take_back(session::of(lender)?, lender, block.range.start, bytes)?
        }
        BlockPages::Registered | BlockPages::Mirrored => {}
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
    let mut blocks = table();
    if blocks.range(..end).next_back().is_some_and(|(_, before)| before.range.end > start) {
        return Err(CUresult::HOST_MEMORY_ALREADY_REGISTERED);
    }
    blocks.insert(start, Block { range: start..end, flags: Flags, context, pages: BlockPages::Registered });
    Ok(())
}

pub(crate) unsafe fn cuMemHostUnregister(p: *mut c_void) -> Result<(), CUresult> {
    session::get()?;
    if p.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    settle_pushed_copies()?;
    if find(p as u64).is_none_or(|block| !block.is_registered() || block.range.start != p as u64) {
        return Err(CUresult::HOST_MEMORY_NOT_REGISTERED);
    }
    unmap(p as u64)?;
    take(p as u64, true).map(drop).ok_or(CUresult::HOST_MEMORY_NOT_REGISTERED)
}

/// The device gets its side of the block with the first such question: one for each node. It has
/// another address where the block's is not one that the node's device could have.
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
    back(session, block.range.start)?;
    let start = match mirror::of_host(session, block.range.start) {
        Some(start) => start,
        None => {
            let is_read_only = block.is_registered() && block.flags & CU_MEMHOSTREGISTER_READ_ONLY != 0;
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
            // Kernels of any of its devices may use it.
            let waited = session.devices.iter().try_for_each(|device| device.wait(session));
            let freed = waited.and_then(|()| session.free(ordinal, allocation.start));
            if freed.is_err() {
                // The program may free its memory after an error, too, so it must not be compared
                // any more.
                mirror::forget(device);
            }
            unmapped = unmapped.and(freed);
        }
    }
    unmapped
}

pub(crate) unsafe fn cuMemHostGetFlags(pFlags: *mut u32, p: *mut c_void) -> Result<(), CUresult> {
    session::get()?;
    let block = find(p as u64).filter(|block| !block.is_registered()).ok_or(CUresult::INVALID_VALUE)?;
    // With unified addresses everything is mapped, whatever was asked for.
    // SAFETY: the program passes a place for the flags.
    unsafe { out::write(pFlags, block.flags | CU_MEMHOSTALLOC_DEVICEMAP) }
}

/// Waits for copies that are still to land in host memory, which is about to go.
fn settle_pushed_copies() -> Result<(), CUresult> {
    for session in session::all()?.list.iter().filter(|session| session.link.owes_data()) {
        session.devices.iter().try_for_each(|device| device.synchronize(session))?;
    }
    Ok(())
}
