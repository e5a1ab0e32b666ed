//! Memory that becomes a mirror, and ceases to be one.

use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use sluice_cuda::*;
use sluice_wire::live::{LIVE_BYTES_MAX, WORD};
use sluice_wire::{DevicePtr, StreamId, commands};

use super::coherence::goes_beside;
use super::{COUNT, HostPages, Mirror, exist, mirrors};
use crate::abi::ids::Kind;
use crate::context;
use crate::context::Context;
use crate::host_memory::{live, variables};
use crate::memory::allocations::Pages;
use crate::session::Session;
use crate::session::issue::Issue;

/// What the device's side is to be of host memory that exists already.
pub(crate) fn map_host(
    session: &'static Session,
    context: &Context,
    host: Range<u64>,
    is_read_only: bool,
) -> Result<u64, CUresult> {
    let bytes = host.end - host.start;
    let device = session.allocate(context, bytes, pages(session, host.start, bytes))?;
    add(
        session,
        Mirror {
            host: host.start,
            device,
            bytes,
            ordinal: context.device,
            is_managed: false,
            pages: HostPages::Program,
            is_read_only,
            agreed: Vec::new(),
            hashes: Vec::new(),
            number: None,
        },
    )
    .or_else(|error| session.free(context.device, device).and(Err(error)))?;
    Ok(device)
}

/// Where the device's side is to lie of host memory that starts here.
pub(super) fn pages(session: &Session, host: u64, bytes: u64) -> Pages {
    let is_kept = live::is_possible(session) && bytes <= LIVE_BYTES_MAX && host.is_multiple_of(WORD as u64);
    if is_kept { Pages::OnHost } else { Pages::Own }
}

/// Memory at one address for both sides: managed, or the program's and mapped.
pub(crate) fn allocate(
    session: &'static Session,
    context: &Context,
    bytes: u64,
    is_managed: bool,
) -> Result<u64, CUresult> {
    if !session.device(context.device)?.mints_addresses {
        return Err(CUresult::NOT_SUPPORTED);
    }
    // It begins a chunk.
    let pages = if is_managed { Pages::Own } else { pages(session, 0, bytes) };
    let address = session.allocate(context, bytes, pages)?;
    let made = set_pages(address, bytes, libc::PROT_READ | libc::PROT_WRITE).and_then(|()| {
        let mirror = Mirror::at_one_address((address, bytes), context.device, HostPages::Minted, is_managed);
        add(session, mirror).or_else(|error| set_pages(address, bytes, libc::PROT_NONE).and(Err(error)))
    });
    made.or_else(|error| session.free(context.device, address).and(Err(error)))?;
    Ok(address)
}

/// Host memory at addresses of a device, which has nothing there; [`back`] gives it its side.
/// `None` where there are no such addresses.
pub(crate) fn lend(session: &Session, device: CUdevice, bytes: u64) -> Option<u64> {
    let address = session.lend(device, bytes)?;
    // More than this machine has is refused now, as without CUDA, and not when it is used.
    let made = map_pages(address, bytes, libc::PROT_READ | libc::PROT_WRITE, 0);
    made.inspect_err(|_| session.take_back(device, address, bytes)).ok().map(|()| address)
}

/// Undoes [`lend`].
pub(crate) fn take_back(
    session: &Session,
    device: CUdevice,
    address: u64,
    bytes: u64,
) -> Result<(), CUresult> {
    set_pages(address, bytes, libc::PROT_NONE)?;
    session.take_back(device, address, bytes);
    Ok(())
}

/// The current device gets the other side of host memory that `lender` has lent its addresses to.
/// It ends with `owner`.
pub(crate) fn back(
    session: &'static Session,
    context: &Context,
    (lender, owner): (CUdevice, CUcontext),
    (address, bytes): (u64, u64),
) -> Result<(), CUresult> {
    // It begins a chunk.
    session.back((lender, owner), (address, bytes), pages(session, 0, bytes))?;
    let mirror = Mirror::at_one_address((address, bytes), context.device, HostPages::Minted, false);
    add(session, mirror).or_else(|error| session.unback(lender, address).and(Err(error)))
}

/// The pages of a file at addresses at which a device has memory already.
pub(crate) fn add_file(
    session: &'static Session,
    ordinal: CUdevice,
    (address, bytes): (u64, u64),
    file: &OwnedFd,
) -> Result<(), CUresult> {
    let at = std::ptr::without_provenance_mut(address as usize);
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
    // SAFETY: the addresses belong to a mapping of the program inside the range that this library
    // has reserved, and the file has at least that many bytes.
    let got = unsafe { libc::mmap(at, bytes as usize, rights, flags, file.as_raw_fd(), 0) };
    if got == libc::MAP_FAILED {
        return Err(CUresult::OUT_OF_MEMORY);
    }
    let mirror = Mirror::at_one_address((address, bytes), ordinal, HostPages::File, false);
    add(session, mirror).or_else(|error| set_pages(address, bytes, libc::PROT_NONE).and(Err(error)))
}

/// Fresh pages with these rights inside the range that the session holds, where the device's memory
/// has them.
fn set_pages(address: u64, bytes: u64, rights: i32) -> Result<(), CUresult> {
    map_pages(address, bytes, rights, libc::MAP_NORESERVE)
}

fn map_pages(address: u64, bytes: u64, rights: i32, more: i32) -> Result<(), CUresult> {
    let at = std::ptr::without_provenance_mut(address as usize);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | more;
    // SAFETY: the addresses belong to an allocation inside the range that this library has
    // reserved, and to no other mapping of the process.
    let got = unsafe { libc::mmap(at, bytes as usize, rights, flags, -1, 0) };
    if got == libc::MAP_FAILED { Err(CUresult::OUT_OF_MEMORY) } else { Ok(()) }
}

/// Both sides start with zeros agreed upon, so that whatever the host has already will be sent.
fn add(session: &'static Session, mut mirror: Mirror) -> Result<(), CUresult> {
    zero(session, &mirror)?;
    if mirror.memory().is_some() {
        mirror.number = live::map(session, DevicePtr(mirror.device), mirror.bytes)?;
    }
    mirror.agree_on_zeros();
    if mirror.number.is_some() {
        session.live.start(session)?;
    }
    mirrors().push(mirror);
    COUNT.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

/// In a stream that waits for no other, and is in no capture: what runs may wait for
/// something that the program does later.
fn zero(session: &Session, mirror: &Mirror) -> Result<(), CUresult> {
    let stream = StreamId(context::mint(Kind::Stream));
    let (flags, priority) = (CU_STREAM_NON_BLOCKING, 0);
    session.queue_quietly(&commands::cuStreamCreateWithPriority { phStream: stream, flags, priority })?;
    let (dstDevice, N) = (DevicePtr(mirror.device), mirror.bytes);
    session.queue_quietly(&commands::cuMemsetD8Async { dstDevice, uc: 0, N, hStream: stream })?;
    let done = session.call(&commands::cuStreamSynchronize { hStream: stream }, |()| ());
    session.queue_quietly(&commands::cuStreamDestroy_v2 { hStream: stream })?;
    done
}

/// A managed variable of a module, where this side has fresh pages: takes what it was made with.
pub(crate) fn add_variable(
    session: &Session,
    ordinal: CUdevice,
    address: u64,
    bytes: u64,
) -> Result<(), CUresult> {
    let mut mirror = Mirror::at_one_address((address, bytes), ordinal, HostPages::Variable, true);
    mirror.agree_on_zeros();
    let mut mirrors = mirrors();
    mirror.fetch(session, goes_beside(session))?;
    mirrors.push(mirror);
    COUNT.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

/// The device's side at this address, which is no other node's, is about to be freed.
pub(crate) fn forget(device: u64) {
    forget_that(|it| it.device == device);
}

/// A module's variable at this address is gone; another node's may have the same.
pub(crate) fn forget_variable(session: &Session, address: u64) {
    forget_that(|it| it.device == address && session.has(it.ordinal));
}

/// The devices' sides of all mirrors are gone with their session.
pub(crate) fn forget_all() {
    while exist() {
        forget_that(|_| true);
    }
}

fn forget_that(is_it: impl FnMut(&Mirror) -> bool) {
    if !exist() {
        return;
    }
    let mut mirrors = mirrors();
    let Some(index) = mirrors.iter().position(is_it) else { return };
    let gone = mirrors.swap_remove(index);
    COUNT.fetch_sub(1, Ordering::AcqRel);
    match gone.pages {
        HostPages::Program => {}
        // A failure leaves unused pages.
        HostPages::Minted | HostPages::File => _ = set_pages(gone.host, gone.bytes, libc::PROT_NONE),
        HostPages::Variable => variables::unmap(gone.host, gone.bytes),
    }
}
