//! Copies. The client's tables say which side is the device's; the node never sees an address of
//! this machine.
//!
//! - To the device: queued. The data leave the caller's memory before the call returns. After the
//!   synchronous call streams that do not wait for the default stream are made to, since what it
//!   copied must be there for them, too; where that would not do, it waits.
//! - From the device: the worker pushes the data in pieces once the stream gets there, and
//!   whichever thread reads the stream reads them straight into the caller's memory. The call waits
//!   for its stream, except for an asynchronous copy into memory that came from CUDA: those data
//!   land at the latest when a call that synchronises with the stream returns, since the session
//!   keeps its order on the way back, too.
//! - On the device: queued.
//!
//! # In this folder
//!
//! All forms of copies: boxes ([`boxes`]), arrays ([`array_copy`]), batches ([`batch`],
//! [`box_batch`]), copies that read the program's memory later ([`deferred`]), and copies between
//! nodes ([`between_nodes`]).

pub(crate) mod array_copy;
pub(crate) mod batch;
pub(crate) mod between_nodes;
pub(crate) mod box_batch;
pub(crate) mod boxes;
pub(crate) mod deferred;
pub(crate) mod reads;

use std::ffi::c_void;

use sluice_cuda::*;
use sluice_wire::{BULK_SIZE_MAX, DevicePtr, Encode, EventId, StreamId, commands};

use crate::abi::ids::Kind;
use crate::context;
use crate::copy::boxes::BoxCopy;
use crate::device::Barrier;
use crate::host_memory::{blocks, mirror};
use crate::link::Loan;
use crate::link::inbox::Sink;
use crate::memory::mappings;
use crate::session::issue::Issue;
use crate::session::{self, Session, other_node};
use crate::stream::{self, capture};

/// Answers up to this size come with the call's own reply.
const INLINE: usize = 32 << 10;

/// With more streams than this a synchronous copy waits, instead of ordering each of them.
const HELD_BACK_MAX: usize = 16;

/// Whether a copy from the device must have landed when the call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Landing {
    Now,
    Later,
}

/// A copy from the device may land later in memory that came from CUDA.
pub(crate) fn landing(dst: u64, bytes: usize, asynchronous: bool) -> Landing {
    if asynchronous && blocks::is_pinned(dst, bytes as u64) { Landing::Later } else { Landing::Now }
}

/// # Safety
/// `src` is valid for reading `bytes` bytes.
pub(crate) unsafe fn to_device(
    session: &'static Session,
    dst: CUdeviceptr,
    src: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let hStream = session.find(stream)?;
    session.range(dst, bytes as u64)?;
    if bytes == 0 {
        return Ok(());
    }
    if capture::of(stream).is_some() {
        return BoxCopy::line((true, dst), (false, src as u64), bytes).capture(stream);
    }
    if src.is_null() || isize::try_from(bytes).is_err() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the program passes `bytes` bytes to read.
    let data = unsafe { std::slice::from_raw_parts(src.cast::<u8>(), bytes) };
    let mut loan = session.link.loan();
    let mut rest = data;
    while !rest.is_empty() {
        let to = DevicePtr(dst + (bytes - rest.len()) as u64);
        let (piece, behind) = rest.split_at(rest.len().min(BULK_SIZE_MAX));
        session.queue_copy(to, hStream, (piece, behind.len()), &mut loan)?;
        rest = behind;
    }
    Ok(())
}

/// Queues a copy from the device whose data land by themselves; the ticket is for
/// [`Session::land`].
///
/// # Safety
/// `dst` is valid for writing `bytes` bytes until the data have landed.
pub(crate) unsafe fn from_device(
    session: &'static Session,
    dst: *mut c_void,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Result<u64, CUresult> {
    let hStream = session.find(stream)?;
    let srcDevice = session.range(src, bytes as u64)?;
    if dst.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let ticket = session.link.ticket();
    // SAFETY: the caller vouches for the buffer.
    session.link.expect(ticket, unsafe { Sink::new(dst.cast(), bytes as u64) });
    let command =
        commands::cuMemcpyDtoHAsync_v2 { ticket, offset: 0, srcDevice, ByteCount: bytes as u64, hStream };
    session.queue(&command).inspect_err(|_| _ = session.link.forget(ticket))?;
    Ok(ticket)
}

/// A small copy whose data come with the answer: one round trip, and no ticket.
///
/// # Safety
/// `dst` is valid for writing `bytes` bytes.
unsafe fn from_device_inline(
    session: &Session,
    dst: *mut c_void,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let command = commands::cuMemcpyDtoH_v2 {
        ticket: 0,
        srcDevice: session.range(src, bytes as u64)?,
        ByteCount: bytes as u64,
        hStream: session.find(stream)?,
    };
    if dst.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    session.call(&command, |answer| {
        if answer.dstHost.len() != bytes {
            return Err(CUresult::UNKNOWN);
        }
        // SAFETY: the caller vouches for `bytes` bytes, and that many have come.
        unsafe { std::ptr::copy_nonoverlapping(answer.dstHost.as_ptr(), dst.cast(), bytes) };
        Ok(())
    })?
}

/// A large copy: its data come before the answer.
///
/// # Safety
/// `dst` is valid for writing `bytes` bytes.
unsafe fn from_device_now(
    session: &'static Session,
    dst: *mut c_void,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let command = commands::cuMemcpyDtoH_v2 {
        ticket: session.link.ticket(),
        srcDevice: session.range(src, bytes as u64)?,
        ByteCount: bytes as u64,
        hStream: session.find(stream)?,
    };
    if dst.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let _read = session.reads.begin((src, bytes as u64));
    // SAFETY: the caller vouches for the buffer, and below the ticket is forgotten.
    session.link.expect(command.ticket, unsafe { Sink::new(dst.cast(), bytes as u64) });
    let answered = session.call(&command, |_| ());
    let is_incomplete = session.link.forget(command.ticket);
    match answered {
        Ok(()) if is_incomplete => Err(CUresult::UNKNOWN),
        answered => answered,
    }
}

/// # Safety
/// `dst` is valid for writing `bytes` bytes, until the data have landed.
pub(crate) unsafe fn to_host(
    session: &'static Session,
    dst: *mut c_void,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
    landing: Landing,
) -> Result<(), CUresult> {
    if bytes == 0 {
        return Ok(());
    }
    if capture::of(stream).is_some() {
        return BoxCopy::line((false, dst as u64), (true, src), bytes).capture(stream);
    }
    // SAFETY: the caller vouches for the buffer; a copy that must land now has landed or is
    // forgotten on return.
    unsafe {
        match landing {
            Landing::Now if bytes <= INLINE => from_device_inline(session, dst, src, bytes, stream),
            Landing::Now => from_device_now(session, dst, src, bytes, stream),
            Landing::Later => from_device(session, dst, src, bytes, stream).map(drop),
        }
    }
}

/// Both on this machine; the copy still has its place in the stream's order.
///
/// # Safety
/// `dst` and `src` are valid for writing and reading `bytes` bytes.
pub(crate) unsafe fn on_host(
    session: &Session,
    dst: u64,
    src: u64,
    bytes: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    if capture::of(stream).is_some() {
        return BoxCopy::line((false, dst), (false, src), bytes).capture(stream);
    }
    session.call(&commands::cuStreamSynchronize { hStream: session.find(stream)? }, |()| ())?;
    // SAFETY: the caller vouches for both.
    unsafe { std::ptr::copy(src as *const u8, dst as *mut u8, bytes) };
    Ok(())
}

pub(crate) fn on_device(
    session: &Session,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    session.queue(&commands::cuMemcpyDtoDAsync_v2 {
        dstDevice: session.range(dst, bytes as u64)?,
        srcDevice: session.range(src, bytes as u64)?,
        ByteCount: bytes as u64,
        hStream: session.find(stream)?,
    })
}

/// A copy to the device as programs ask for one.
///
/// # Safety
/// `src` is valid for reading `bytes` bytes, until the copy is done where it is memory that came
/// from CUDA.
unsafe fn from_here(
    session: &'static Session,
    dst: CUdeviceptr,
    src: *const c_void,
    bytes: usize,
    stream: CUstream,
    asynchronous: bool,
) -> Result<(), CUresult> {
    let line = || BoxCopy::line((true, dst), (false, src as u64), bytes).for_graph(session);
    if capture::of(stream).is_none()
        && deferred::read_later(session, (src as u64, bytes as u64), stream, asynchronous, line)?
    {
        return Ok(());
    }
    // SAFETY: the same contract.
    unsafe { to_device(session, dst, src, bytes, stream)? };
    if asynchronous { Ok(()) } else { session.arrive(stream) }
}

/// A copy whose directions follow from the addresses.
///
/// # Safety
/// Operands on this machine are valid for `bytes` bytes; an asynchronous copy's until it has
/// landed.
pub(crate) unsafe fn unified(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
    asynchronous: bool,
) -> Result<(), CUresult> {
    if other_node::reaches(dst) || other_node::reaches(src) {
        // SAFETY: the same contract.
        return unsafe { between_nodes::copy(dst, src, bytes, stream) };
    }
    let session = session::enter()?;
    let (host_dst, host_src) = (dst as *mut c_void, src as *const c_void);
    match (session.is_device_address(dst), session.is_device_address(src)) {
        (true, true) => {
            on_device(session, dst, src, bytes, stream)?;
            if asynchronous { Ok(()) } else { session.settle(&[dst, src], stream) }
        }
        // SAFETY: the program's addresses, by its contract with CUDA.
        (true, false) => unsafe { from_here(session, dst, host_src, bytes, stream, asynchronous) },
        // SAFETY: as above.
        (false, true) => unsafe {
            to_host(session, host_dst, src, bytes, stream, landing(dst, bytes, asynchronous))
        },
        // SAFETY: as above.
        (false, false) => unsafe { on_host(session, dst, src, bytes, stream) },
    }
}

/// Whether what a program passes as a device address is memory of its own that came from CUDA (that
/// is a device address to CUDA, too), or memory of another node: such a copy is one whose
/// directions follow from the addresses.
fn is_unified(address: CUdeviceptr, bytes: usize) -> bool {
    blocks::is_pinned(address, bytes as u64) || other_node::reaches(address)
}

/// Whether host memory is at the same address on a device, too. There it is copied, in the order of
/// kernels that use it.
fn is_mapped(address: u64) -> bool {
    mirror::with_device_address(address, |it| !it.is_managed) == Some(true)
}

impl Session {
    /// Queues a copy to the device: `commands::cuMemcpyHtoDAsync_v2`, whose data come last.
    fn queue_copy<'a>(
        &self,
        to: DevicePtr,
        stream: StreamId,
        data: (&'a [u8], usize),
        loan: &mut Loan<'a>,
    ) -> Result<(), CUresult> {
        self.queue_by::<commands::cuMemcpyHtoDAsync_v2<'_>>(|device, op| {
            let fields = |out: &mut Vec<u8>| {
                to.encode(out);
                stream.encode(out);
            };
            // SAFETY: the one caller, above, drops its loan on return.
            unsafe { loan.queue(device, op, fields, data) }
        })
    }

    /// After a synchronous copy to the device: sees to it that nothing overtakes it.
    pub(crate) fn arrive(&self, stream: CUstream) -> Result<(), CUresult> {
        // Others than the streams of this device might see that it has not been made yet.
        let is_alone = self.devices.len() == 1
            && !mirror::exist()
            && !mappings::some_shared()
            && !context::were_ever_green();
        if stream == CUstream::LEGACY && is_alone && !capture::some() {
            let device = self.device(context::device())?;
            // The lock keeps streams from being created or destroyed meanwhile.
            let mut barrier = device.barrier();
            let overtaking = match stream::some_run_freely() {
                true => stream::running_freely_on(device.ordinal),
                false => Vec::new(),
            };
            if overtaking.len() <= HELD_BACK_MAX {
                let hEvent = self.record_barrier(&mut barrier)?;
                barrier.sent = device.work.so_far();
                return overtaking.into_iter().try_for_each(|stream| {
                    let hStream = StreamId(stream);
                    self.queue_quietly(&commands::cuStreamWaitEvent { hStream, hEvent, Flags: 0 })
                });
            }
        }
        self.call(&commands::cuStreamSynchronize { hStream: self.find(stream)? }, |()| ())
    }

    /// Records that the default stream has got so far.
    fn record_barrier(&self, barrier: &mut Barrier) -> Result<EventId, CUresult> {
        let hEvent = match barrier.event {
            Some(event) => event,
            None => {
                let event = EventId(context::mint(Kind::Event));
                self.queue_quietly(&commands::cuEventCreate {
                    phEvent: event,
                    Flags: CU_EVENT_DISABLE_TIMING,
                })?;
                *barrier.event.insert(event)
            }
        };
        self.queue_quietly(&commands::cuEventRecord { hEvent, hStream: self.find(CUstream::LEGACY)? })?;
        Ok(hEvent)
    }

    /// After a synchronous copy or memset on the device: waits if the program can see the result
    /// without asking, or has said of some of this memory that it always waits.
    pub(crate) fn settle(&self, memory: &[CUdeviceptr], stream: CUstream) -> Result<(), CUresult> {
        let waits = |&address: &CUdeviceptr| {
            mirror::with_device_address(address, |_| ()).is_some() || self.is_synchronous(address)
        };
        if !memory.iter().any(waits) {
            return Ok(());
        }
        self.call(&commands::cuStreamSynchronize { hStream: self.find(stream)? }, |()| ())
    }

    /// Waits until the data of these tickets have landed. If the wait fails they never will.
    pub(crate) fn land(&self, stream: CUstream, tickets: &[u64]) -> Result<(), CUresult> {
        let landed = self.call(&commands::cuStreamSynchronize { hStream: self.find(stream)? }, |()| ());
        tickets.iter().for_each(|&ticket| _ = self.link.forget(ticket));
        landed
    }
}

// The entry points. CUDA Driver API, section "Memory Management".

pub(crate) unsafe fn cuMemcpy(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    ByteCount: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { unified(dst, src, ByteCount, stream, false) }
}

pub(crate) unsafe fn cuMemcpyAsync(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    ByteCount: usize,
    hStream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { unified(dst, src, ByteCount, hStream, true) }
}

pub(crate) unsafe fn cuMemcpyHtoD_v2(
    dstDevice: CUdeviceptr,
    srcHost: *const c_void,
    ByteCount: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    if is_unified(dstDevice, ByteCount) || is_mapped(srcHost as u64) {
        // SAFETY: the same contract.
        return unsafe { unified(dstDevice, srcHost as u64, ByteCount, stream, false) };
    }
    // SAFETY: the same contract.
    unsafe { from_here(session::enter()?, dstDevice, srcHost, ByteCount, stream, false) }
}

pub(crate) unsafe fn cuMemcpyHtoDAsync_v2(
    dstDevice: CUdeviceptr,
    srcHost: *const c_void,
    ByteCount: usize,
    hStream: CUstream,
) -> Result<(), CUresult> {
    if is_unified(dstDevice, ByteCount) || is_mapped(srcHost as u64) {
        // SAFETY: the same contract.
        return unsafe { unified(dstDevice, srcHost as u64, ByteCount, hStream, true) };
    }
    // SAFETY: the same contract.
    unsafe { from_here(session::enter()?, dstDevice, srcHost, ByteCount, hStream, true) }
}

pub(crate) unsafe fn cuMemcpyDtoH_v2(
    dstHost: *mut c_void,
    srcDevice: CUdeviceptr,
    ByteCount: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    if is_unified(srcDevice, ByteCount) || is_mapped(dstHost as u64) {
        // SAFETY: the same contract.
        return unsafe { unified(dstHost as u64, srcDevice, ByteCount, stream, false) };
    }
    // SAFETY: the same contract.
    unsafe { to_host(session::enter()?, dstHost, srcDevice, ByteCount, stream, Landing::Now) }
}

pub(crate) unsafe fn cuMemcpyDtoHAsync_v2(
    dstHost: *mut c_void,
    srcDevice: CUdeviceptr,
    ByteCount: usize,
    hStream: CUstream,
) -> Result<(), CUresult> {
    if is_unified(srcDevice, ByteCount) || is_mapped(dstHost as u64) {
        // SAFETY: the same contract.
        return unsafe { unified(dstHost as u64, srcDevice, ByteCount, hStream, true) };
    }
    let landing = landing(dstHost as u64, ByteCount, true);
    // SAFETY: the same contract.
    unsafe { to_host(session::enter()?, dstHost, srcDevice, ByteCount, hStream, landing) }
}

pub(crate) unsafe fn cuMemcpyDtoD_v2(
    dstDevice: CUdeviceptr,
    srcDevice: CUdeviceptr,
    ByteCount: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    if other_node::reaches(dstDevice) || other_node::reaches(srcDevice) {
        // SAFETY: the same contract.
        return unsafe { between_nodes::copy(dstDevice, srcDevice, ByteCount, stream) };
    }
    let session = session::enter()?;
    on_device(session, dstDevice, srcDevice, ByteCount, stream)?;
    session.settle(&[dstDevice, srcDevice], stream)
}

/// All contexts share one address space, so that the addresses say it all. The copy is serialised
/// with all work of both contexts, which streams of two devices are not by themselves.
pub(crate) unsafe fn cuMemcpyPeer(
    dstDevice: CUdeviceptr,
    dstContext: CUcontext,
    srcDevice: CUdeviceptr,
    srcContext: CUcontext,
    ByteCount: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let dst = context::named_or_current(dstContext)?.device;
    let src = context::named_or_current(srcContext)?.device;
    if dst != src {
        session::device(dst)?.wait(session::of(dst)?)?;
        session::device(src)?.wait(session::of(src)?)?;
    }
    // SAFETY: the same contract.
    unsafe { cuMemcpyPeerAsync(dstDevice, dstContext, srcDevice, srcContext, ByteCount, stream)? };
    if dst == src {
        return Ok(());
    }
    session.call(&commands::cuStreamSynchronize { hStream: session.find(stream)? }, |()| ())
}

pub(crate) unsafe fn cuMemcpyPeerAsync(
    dstDevice: CUdeviceptr,
    dstContext: CUcontext,
    srcDevice: CUdeviceptr,
    srcContext: CUcontext,
    ByteCount: usize,
    hStream: CUstream,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    context::named_or_current(dstContext)?;
    context::named_or_current(srcContext)?;
    if other_node::reaches(dstDevice) || other_node::reaches(srcDevice) {
        // SAFETY: the same contract.
        return unsafe { between_nodes::copy(dstDevice, srcDevice, ByteCount, hStream) };
    }
    on_device(session, dstDevice, srcDevice, ByteCount, hStream)
}
