//! Streams: what programs can ask about them is known here; the work in them is not.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sluice_cuda::*;
use sluice_wire::{StreamId, commands};

use crate::ids::{self, Kind, Table};
use crate::issue::{Issue, wanted};
use crate::session::{self, Session};
use crate::{context, out};

#[derive(Debug)]
pub(crate) struct Stream {
    context: CUcontext,
    device: CUdevice,
    flags: u32,
    priority: i32,
    capture: Mutex<Option<Capture>>,
}

/// A capture that has begun on a stream and not ended.
#[derive(Clone, Copy, Debug)]
struct Capture {
    id: u64,
    /// The graph in the making. The node knows it by this handle from the end of the capture on, and refuses it before.
    graph: CUgraph,
}

static STREAMS: Table<Stream> = Table::new();
/// How many non-blocking streams exist.
static FREE_STREAMS: AtomicU64 = AtomicU64::new(0);
/// How many captures have begun and not ended.
static CAPTURES: AtomicU64 = AtomicU64::new(0);
static NEXT_CAPTURE: AtomicU64 = AtomicU64::new(1);

/// Whether a handle names a stream; the two default streams always exist.
pub(crate) fn exists(number: u64) -> bool {
    is_default(CUstream(number as usize)) || STREAMS.contains(number)
}

fn is_default(stream: CUstream) -> bool {
    stream == CUstream::LEGACY || stream == CUstream::PER_THREAD
}

/// A created stream; `None` for a default one.
fn find(stream: CUstream) -> Result<Option<Arc<Stream>>, CUresult> {
    if is_default(stream) {
        return Ok(None);
    }
    STREAMS.get(stream.0 as u64).map(Some).ok_or(CUresult::INVALID_HANDLE)
}

/// Whether a handle names a stream that is being captured.
pub(crate) fn is_capturing(stream: CUstream) -> bool {
    some_capture() && find(stream).ok().flatten().is_some_and(|stream| stream.capture().is_some())
}

/// Whether any stream is being captured.
pub(crate) fn some_capture() -> bool {
    CAPTURES.load(Ordering::Acquire) != 0
}

/// Whether there are streams that do not wait for the default stream.
pub(crate) fn some_run_freely() -> bool {
    FREE_STREAMS.load(Ordering::Acquire) != 0
}

/// Forgets the streams of a context that has ended.
pub(crate) fn context_ended(context: CUcontext) {
    STREAMS.remove_where(|stream| stream.context == context);
}

/// The handles of a context's streams.
pub(crate) fn of_context(context: CUcontext) -> Vec<u64> {
    STREAMS.find(|stream| stream.context == context)
}

fn create(session: &Session, flags: u32, priority: i32) -> Result<CUstream, CUresult> {
    let context = context::current()?;
    if flags & !CU_STREAM_NON_BLOCKING != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    // Numbers outside the range are brought into it, as CUDA says.
    let (least, greatest) = session.device(context.device)?.snapshot.stream_priorities;
    let priority = priority.min(least.max(greatest)).max(greatest.min(least));
    let handle = ids::mint(Kind::Stream);
    let stream = Stream {
        context: context.handle,
        device: context.device,
        flags,
        priority,
        capture: Mutex::new(None),
    };
    STREAMS.insert(handle, stream);
    if flags & CU_STREAM_NON_BLOCKING != 0 {
        FREE_STREAMS.fetch_add(1, Ordering::AcqRel);
    }
    let command = commands::cuStreamCreateWithPriority { phStream: StreamId(handle), flags, priority };
    session.queue_quietly(&command).inspect_err(|_| drop(STREAMS.remove(handle)))?;
    Ok(CUstream(handle as usize))
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.flags & CU_STREAM_NON_BLOCKING != 0 {
            FREE_STREAMS.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Stream {
    fn capture(&self) -> std::sync::MutexGuard<'_, Option<Capture>> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Status, id and graph of the capture that a stream is in.
fn capture_of(stream: CUstream) -> Result<(CUstreamCaptureStatus, u64, CUgraph), CUresult> {
    let capture = find(stream)?.and_then(|stream| *stream.capture());
    Ok(match capture {
        Some(capture) => (CUstreamCaptureStatus::ACTIVE, capture.id, capture.graph),
        None => (CUstreamCaptureStatus::NONE, 0, CUgraph::NULL),
    })
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
    let stream = create(session, flags, priority)?;
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
    let stream = find(hStream)?.ok_or(CUresult::INVALID_HANDLE)?;
    if stream.capture().is_some() {
        return Err(CUresult::STREAM_CAPTURE_UNMATCHED);
    }
    session.queue_quietly(&commands::cuStreamDestroy_v2 { hStream: StreamId(hStream.0 as u64) })?;
    STREAMS.remove(hStream.0 as u64);
    Ok(())
}

pub(crate) unsafe fn cuStreamGetPriority(hStream: CUstream, priority: *mut i32) -> Result<(), CUresult> {
    session::get()?;
    let value = find(hStream)?.map_or(0, |stream| stream.priority);
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

pub(crate) unsafe fn cuStreamGetCtx(hStream: CUstream, pctx: *mut CUcontext) -> Result<(), CUresult> {
    session::get()?;
    let context = match find(hStream)? {
        Some(stream) => stream.context,
        None => context::current()?.handle,
    };
    // SAFETY: the program passes a place for the context.
    unsafe { out::write(pctx, context) }
}

pub(crate) unsafe fn cuStreamGetCtx_v2(
    hStream: CUstream,
    pCtx: *mut CUcontext,
    pGreenCtx: *mut CUgreenCtx,
) -> Result<(), CUresult> {
    // SAFETY: the same contract, and the program passes null or a place for the green context.
    unsafe {
        cuStreamGetCtx(hStream, pCtx)?;
        out::write_if_wanted(pGreenCtx, CUgreenCtx::NULL);
    }
    Ok(())
}

pub(crate) unsafe fn cuStreamGetGreenCtx(hStream: CUstream, phCtx: *mut CUgreenCtx) -> Result<(), CUresult> {
    session::get()?;
    find(hStream)?;
    // SAFETY: the program passes a place for the green context.
    unsafe { out::write(phCtx, CUgreenCtx::NULL) }
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
    let session = session::get()?;
    session.device(context::named_or_current(ctx)?.device)?.synchronize(session)
}

// Captures. The worker's driver records; the client knows which streams are in a capture, since programs ask often.

pub(crate) unsafe fn cuStreamBeginCapture_v2(
    hStream: CUstream,
    mode: CUstreamCaptureMode,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    // The legacy stream cannot be captured, and the per-thread one is not followed here.
    let stream = find(hStream)?.ok_or(CUresult::STREAM_CAPTURE_UNSUPPORTED)?;
    if mode.name().is_none() {
        return Err(CUresult::INVALID_VALUE);
    }
    let mut capture = stream.capture();
    if capture.is_some() {
        return Err(CUresult::ILLEGAL_STATE);
    }
    session.queue(&commands::cuStreamBeginCapture_v2 { hStream: StreamId(hStream.0 as u64), mode })?;
    let graph = session.mint::<CUgraph>()?;
    *capture = Some(Capture { id: NEXT_CAPTURE.fetch_add(1, Ordering::Relaxed), graph });
    CAPTURES.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

pub(crate) unsafe fn cuStreamEndCapture(hStream: CUstream, phGraph: *mut CUgraph) -> Result<(), CUresult> {
    let session = session::enter()?;
    let stream = find(hStream)?.ok_or(CUresult::ILLEGAL_STATE)?;
    wanted(phGraph)?;
    let graph = stream.capture().take().ok_or(CUresult::ILLEGAL_STATE)?.graph;
    CAPTURES.fetch_sub(1, Ordering::AcqRel);
    let command =
        commands::cuStreamEndCapture { hStream: StreamId(hStream.0 as u64), phGraph: session.find(graph)? };
    session.call(&command, |()| ()).inspect_err(|_| session.forget(graph))?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(phGraph, graph) }
}

pub(crate) unsafe fn cuStreamIsCapturing(
    hStream: CUstream,
    captureStatus: *mut CUstreamCaptureStatus,
) -> Result<(), CUresult> {
    session::get()?;
    // SAFETY: the program passes a place for the status.
    unsafe { out::write(captureStatus, capture_of(hStream)?.0) }
}

pub(crate) unsafe fn cuStreamGetCaptureInfo(
    hStream: CUstream,
    captureStatus_out: *mut CUstreamCaptureStatus,
    id_out: *mut u64,
) -> Result<(), CUresult> {
    session::get()?;
    let (status, id, _) = capture_of(hStream)?;
    // SAFETY: the program passes a place for the status, and null or a place for the id.
    unsafe {
        out::write(captureStatus_out, status)?;
        out::write_if_wanted(id_out, id);
    }
    Ok(())
}

pub(crate) unsafe fn cuStreamGetCaptureInfo_v2(
    hStream: CUstream,
    captureStatus_out: *mut CUstreamCaptureStatus,
    id_out: *mut u64,
    graph_out: *mut CUgraph,
    dependencies_out: *mut *const CUgraphNode,
    numDependencies_out: *mut usize,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuStreamGetCaptureInfo(hStream, captureStatus_out, id_out)? };
    let (status, _, graph) = capture_of(hStream)?;
    // The nodes of a graph in the making are the driver's own, and no ids were minted for them.
    if status == CUstreamCaptureStatus::ACTIVE && !dependencies_out.is_null() {
        return Err(CUresult::NOT_SUPPORTED);
    }
    // SAFETY: the program passes null or places.
    unsafe {
        out::write_if_wanted(graph_out, graph);
        out::write_if_wanted(dependencies_out, std::ptr::null());
        out::write_if_wanted(numDependencies_out, 0);
    }
    Ok(())
}

pub(crate) unsafe fn cuStreamGetCaptureInfo_v3(
    hStream: CUstream,
    captureStatus_out: *mut CUstreamCaptureStatus,
    id_out: *mut u64,
    graph_out: *mut CUgraph,
    dependencies_out: *mut *const CUgraphNode,
    edgeData_out: *mut *const CUgraphEdgeData,
    numDependencies_out: *mut usize,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe {
        let (graph, dependencies, count) = (graph_out, dependencies_out, numDependencies_out);
        cuStreamGetCaptureInfo_v2(hStream, captureStatus_out, id_out, graph, dependencies, count)?;
        out::write_if_wanted(edgeData_out, std::ptr::null());
    }
    Ok(())
}

thread_local! {
    static CAPTURE_MODE: Cell<CUstreamCaptureMode> = const { Cell::new(CUstreamCaptureMode::GLOBAL) };
}

pub(crate) unsafe fn cuThreadExchangeStreamCaptureMode(
    mode: *mut CUstreamCaptureMode,
) -> Result<(), CUresult> {
    session::get()?;
    wanted(mode)?;
    // SAFETY: not null, and the program passes a mode.
    let new = unsafe { mode.read_unaligned() };
    if new.name().is_none() {
        return Err(CUresult::INVALID_VALUE);
    }
    let old = CAPTURE_MODE.try_with(|mode| mode.replace(new)).map_err(|_| CUresult::DEINITIALIZED)?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(mode, old) }
}
