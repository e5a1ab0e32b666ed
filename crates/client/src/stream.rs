//! Streams: what programs can ask about them is known here; the work in them is not.
//!
//! # In this folder
//!
//! Streams and what is ordered by them: events ([`event`], [`watch`]), captures ([`capture`]) and
//! functions of the program ([`host_function`]).

pub(crate) mod attribute;
pub(crate) mod capture;
pub(crate) mod event;
pub(crate) mod host_function;
pub(crate) mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use sluice_cuda::*;
use sluice_wire::{StreamId, commands};

use crate::abi::ids::{self, Kind, Table};
use crate::abi::out;
use crate::context::{self, Context};
use crate::device::Device;
use crate::session::issue::{Issue, wanted};
use crate::session::{self, Session};

#[derive(Debug)]
pub(crate) struct Stream {
    context: CUcontext,
    device: CUdevice,
    flags: u32,
    priority: AtomicI32,
    pub(crate) capture: capture::Part,
    /// The number of the last command of the device that has been waited for in this stream.
    waited: AtomicU64,
    /// Whether its green context is gone.
    is_detached: AtomicBool,
}

static STREAMS: Table<Stream> = Table::new();
/// How many non-blocking streams exist.
static FREE_STREAMS: AtomicU64 = AtomicU64::new(0);

/// Whether a handle names a stream; the two default streams always exist. One that is detached can
/// only be destroyed.
pub(crate) fn check(number: u64) -> Result<bool, CUresult> {
    if is_default(CUstream(number as usize)) {
        return Ok(true);
    }
    if !context::were_ever_green() {
        return Ok(STREAMS.contains(number));
    }
    find(CUstream(number as usize)).map(|_| true)
}

fn is_default(stream: CUstream) -> bool {
    stream == CUstream::LEGACY || stream == CUstream::PER_THREAD
}

/// A created stream; `None` for a default one.
pub(crate) fn find(stream: CUstream) -> Result<Option<Arc<Stream>>, CUresult> {
    if is_default(stream) {
        return Ok(None);
    }
    let stream = STREAMS.get(stream.0 as u64).ok_or(CUresult::INVALID_HANDLE)?;
    if stream.is_detached.load(Ordering::Acquire) { Err(CUresult::STREAM_DETACHED) } else { Ok(Some(stream)) }
}

/// The context that a stream is of: a default one is the current context's.
pub(crate) fn context_of(stream: CUstream) -> Result<Arc<Context>, CUresult> {
    session::get()?;
    match find(stream)? {
        Some(stream) => context::named_or_current(stream.context),
        None => context::current(),
    }
}

/// The device of a stream; a default one is the current context's.
pub(crate) fn device_of(stream: CUstream) -> Result<CUdevice, CUresult> {
    Ok(find(stream)?.map_or_else(context::device, |stream| stream.device))
}

/// A green context has ended, and of its streams there is no more on the node.
pub(crate) fn detach(context: CUcontext) {
    for handle in of_context(context) {
        if let Some(stream) = STREAMS.get(handle) {
            stream.is_detached.store(true, Ordering::Release);
        }
    }
}

/// Whether there are streams that do not wait for the default stream.
pub(crate) fn some_run_freely() -> bool {
    FREE_STREAMS.load(Ordering::Acquire) != 0
}

/// The handles of those on a device.
pub(crate) fn running_freely_on(device: CUdevice) -> Vec<u64> {
    STREAMS.find(|stream| stream.device == device && stream.flags & CU_STREAM_NON_BLOCKING != 0)
}

/// Forgets the streams of a context that has ended.
pub(crate) fn context_ended(context: CUcontext) {
    STREAMS.remove_where(|stream| stream.context == context);
}

/// The context of a created stream.
pub(crate) fn owner(handle: u64) -> Option<CUcontext> {
    STREAMS.get(handle).map(|stream| stream.context)
}

/// The handles of a context's streams.
pub(crate) fn of_context(context: CUcontext) -> Vec<u64> {
    STREAMS.find(|stream| stream.context == context)
}

/// Makes a stream in a context; `send` says so to the node, with the priority that it has been
/// given.
pub(crate) fn create(
    session: &Session,
    context: &Context,
    flags: u32,
    priority: i32,
    send: impl FnOnce(&Session, StreamId, i32) -> Result<(), CUresult>,
) -> Result<CUstream, CUresult> {
    if flags & !CU_STREAM_NON_BLOCKING != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let priority = priority_in_range(session, context.device, priority)?;
    let handle = ids::mint_on(context.device, Kind::Stream);
    let stream = Stream {
        context: context.handle,
        device: context.device,
        flags,
        priority: AtomicI32::new(priority),
        capture: capture::Part::default(),
        waited: AtomicU64::new(0),
        is_detached: AtomicBool::new(false),
    };
    let home = session.device(context.device)?;
    let barrier = home.barrier();
    STREAMS.insert(handle, stream);
    if flags & CU_STREAM_NON_BLOCKING != 0 {
        FREE_STREAMS.fetch_add(1, Ordering::AcqRel);
    }
    send(session, StreamId(handle), priority).inspect_err(|_| drop(STREAMS.remove(handle)))?;
    if flags & CU_STREAM_NON_BLOCKING != 0
        && let Some(hEvent) = barrier.event
        && !home.work.covers(barrier.sent)
    {
        // A synchronous copy has returned that the node may not have made yet.
        let hStream = StreamId(handle);
        session.queue_quietly(&commands::cuStreamWaitEvent { hStream, hEvent, Flags: 0 })?;
    }
    Ok(CUstream(handle as usize))
}

/// Numbers outside the device's range are brought into it, as CUDA says.
fn priority_in_range(session: &Session, device: CUdevice, priority: i32) -> Result<i32, CUresult> {
    let (least, greatest) = session.device(device)?.snapshot.stream_priorities;
    Ok(priority.min(least.max(greatest)).max(greatest.min(least)))
}

/// Waits until a stream has done everything that it was given.
pub(crate) fn synchronize(stream: CUstream) -> Result<(), CUresult> {
    let session = session::get()?;
    let hStream = session.find(stream)?;
    let created = find(stream)?;
    let covered =
        created.as_ref().and_then(|created| session.device(created.device).ok()).map(|it| it.work.so_far());
    session.call(&commands::cuStreamSynchronize { hStream }, |()| ())?;
    if let (Some(created), Some(covered)) = (created, covered) {
        created.waited.fetch_max(covered, Ordering::AcqRel);
    }
    Ok(())
}

/// Says whether a created stream has been waited for since this much was sent to its device.
pub(crate) fn has_waited(device: CUdevice, stream: CUstream, sent: u64) -> bool {
    let found = STREAMS.get(stream.0 as u64).filter(|found| found.device == device);
    !is_default(stream) && found.is_some_and(|found| found.waited.load(Ordering::Acquire) >= sent)
}

/// Notes the priority that a created stream has been given.
pub(crate) fn set_priority(session: &Session, stream: CUstream, priority: i32) -> Result<(), CUresult> {
    if let Some(stream) = find(stream)? {
        stream.priority.store(priority_in_range(session, stream.device, priority)?, Ordering::Relaxed);
    }
    Ok(())
}

/// Notes that one stream has been given the attributes of another; both are of one context.
pub(crate) fn attributes_copied(dst: CUstream, src: CUstream) -> Result<(), CUresult> {
    let (dst, src) = (find(dst)?, find(src)?);
    let here = context::current()?.handle;
    let context = |stream: &Option<Arc<Stream>>| stream.as_ref().map_or(here, |stream| stream.context);
    if context(&dst) != context(&src) {
        return Err(CUresult::INVALID_VALUE);
    }
    if let Some(dst) = dst {
        let priority = src.map_or(0, |src| src.priority.load(Ordering::Relaxed));
        dst.priority.store(priority, Ordering::Relaxed);
    }
    Ok(())
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.flags & CU_STREAM_NON_BLOCKING != 0 {
            FREE_STREAMS.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Stream {
    /// Whether it waits for the legacy stream, and that one for it.
    pub(crate) fn is_blocking(&self) -> bool {
        self.flags & CU_STREAM_NON_BLOCKING == 0
    }
}

// The entry points. CUDA Driver API, section "Stream Management".

pub(crate) unsafe fn cuStreamCreate(phStream: *mut CUstream, Flags: u32) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuStreamCreateWithPriority(phStream, Flags, 0) }
}

pub(crate) unsafe fn cuStreamCreateWithPriority(
    phStream: *mut CUstream,
    flags: u32,
    priority: i32,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(phStream)?;
    let stream = create(session, &*context::current()?, flags, priority, |session, phStream, priority| {
        session.queue_quietly(&commands::cuStreamCreateWithPriority { phStream, flags, priority })
    })?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(phStream, stream) }
}

/// The name from before CUDA gave this function its `_v2`; the meaning is the same.
pub(crate) unsafe fn cuStreamDestroy(hStream: CUstream) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuStreamDestroy_v2(hStream) }
}

pub(crate) unsafe fn cuStreamDestroy_v2(hStream: CUstream) -> Result<(), CUresult> {
    let session = session::get()?;
    let stream = STREAMS.get(hStream.0 as u64).ok_or(CUresult::INVALID_HANDLE)?;
    if stream.is_detached.load(Ordering::Acquire) {
        STREAMS.remove(hStream.0 as u64);
        return Ok(());
    }
    if stream.capture.is_taken() {
        return Err(CUresult::STREAM_CAPTURE_UNMATCHED);
    }
    let home = session.device(stream.device).ok();
    let _barrier = home.map(Device::barrier);
    session.queue_quietly(&commands::cuStreamDestroy_v2 { hStream: StreamId(hStream.0 as u64) })?;
    STREAMS.remove(hStream.0 as u64);
    Ok(())
}

pub(crate) unsafe fn cuStreamGetPriority(hStream: CUstream, priority: *mut i32) -> Result<(), CUresult> {
    session::get()?;
    let value = find(hStream)?.map_or(0, |stream| stream.priority.load(Ordering::Relaxed));
    // SAFETY: the program passes a place for the priority.
    unsafe { out::write(priority, value) }
}

pub(crate) unsafe fn cuStreamGetFlags(hStream: CUstream, flags: *mut u32) -> Result<(), CUresult> {
    session::get()?;
    let value = find(hStream)?.map_or(CU_STREAM_DEFAULT, |stream| stream.flags);
    // SAFETY: the program passes a place for the flags.
    unsafe { out::write(flags, value) }
}

pub(crate) unsafe fn cuStreamGetId(hStream: CUstream, streamId: *mut u64) -> Result<(), CUresult> {
    session::get()?;
    let id = match find(hStream)? {
        Some(_) => ids::sequence(hStream.0 as u64),
        // Default streams are those of a context; the low bits tell the two apart.
        None => u64::MAX - (context::current()?.number << 1 | (hStream.0 as u64 & 1)),
    };
    // SAFETY: the program passes a place for the id.
    unsafe { out::write(streamId, id) }
}

/// The newer form of the question is for streams that were made in a green context.
pub(crate) unsafe fn cuStreamGetCtx(hStream: CUstream, pctx: *mut CUcontext) -> Result<(), CUresult> {
    let context = context_of(hStream)?;
    if context.green.is_some() && !is_default(hStream) {
        return Err(CUresult::NOT_SUPPORTED);
    }
    // SAFETY: the program passes a place for the context.
    unsafe { out::write(pctx, context.handle) }
}

pub(crate) unsafe fn cuStreamGetCtx_v2(
    hStream: CUstream,
    pCtx: *mut CUcontext,
    pGreenCtx: *mut CUgreenCtx,
) -> Result<(), CUresult> {
    let context = context_of(hStream)?;
    let green = context.green.as_ref().map_or(CUgreenCtx::NULL, |green| green.handle);
    // SAFETY: the program passes a place for the context, and null or a place for the green
    // context.
    unsafe {
        out::write(pCtx, context.owner)?;
        out::write_if_wanted(pGreenCtx, green);
    }
    Ok(())
}

pub(crate) unsafe fn cuStreamGetGreenCtx(hStream: CUstream, phCtx: *mut CUgreenCtx) -> Result<(), CUresult> {
    let context = context_of(hStream)?;
    let green = context.green.as_ref().map_or(CUgreenCtx::NULL, |green| green.handle);
    // SAFETY: the program passes a place for the green context.
    unsafe { out::write(phCtx, green) }
}

pub(crate) unsafe fn cuStreamGetDevice(hStream: CUstream, device: *mut CUdevice) -> Result<(), CUresult> {
    session::get()?;
    let value = match find(hStream)? {
        Some(stream) => stream.device,
        None => context::current()?.device,
    };
    // SAFETY: the program passes a place for the device.
    unsafe { out::write(device, value) }
}

pub(crate) unsafe fn cuCtxSynchronize_v2(ctx: CUcontext) -> Result<(), CUresult> {
    session::get()?;
    let context = context::named_or_current(ctx)?;
    capture::check_context(context.handle)?;
    let session = session::of(context.device)?;
    let device = session.device(context.device)?;
    match &context.green {
        Some(green) => device.synchronize_green(session, green.place),
        None => device.synchronize(session),
    }
}
