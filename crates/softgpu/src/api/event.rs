//! Events (CUDA Driver API: Event Management).

use std::os::fd::OwnedFd;
use std::sync::Arc;

use sluice_cuda::{
    CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS, CU_EVENT_RECORD_EXTERNAL,
    CUcontext, CUevent, CUresult, CUstream,
};

use crate::base::shared_event::SharedEvent;
use crate::base::status::{Result, Status, call, put, require};
use crate::base::ticket::Ticket;
use crate::context::stream::{STREAMS, Stream};
use crate::context::{CONTEXTS, Context, current, named, owning};
use crate::device::pool;
use crate::graph::capture;
use crate::submit;
use crate::work::engine;
use crate::work::event::{EVENTS, Event, Recorded, elapsed_ms, event};
use crate::work::op::Op;

pub(crate) unsafe extern "C" fn cuEventCreate(place: *mut CUevent, flags: u32) -> CUresult {
    call(|| {
        let context = current()?;
        require(place)?;
        if flags & !(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS) != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let is_shared = flags & CU_EVENT_INTERPROCESS != 0;
        if is_shared && flags & CU_EVENT_DISABLE_TIMING == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let shared = is_shared.then(SharedEvent::create).transpose()?;
        let event = EVENTS.insert(|handle| Event::new(handle, context.owner(), flags, shared));
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUevent(event.handle)) }
    })
}

/// A descriptor of an event that was created for several processes. In 64 bytes, as
/// `cuIpcGetEventHandle` has them, it would have to be found by name; who carries it to the other
/// process can carry the descriptor.
pub fn export_event(handle: CUevent) -> Result<OwnedFd> {
    event(handle)?.export()
}

/// The event behind a descriptor from [`export_event`], in the current context.
pub fn import_event(file: OwnedFd) -> Result<CUevent> {
    let context = current()?;
    let shared = SharedEvent::open(file)?;
    let flags = CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    Ok(CUevent(EVENTS.insert(|handle| Event::new(handle, context.owner(), flags, Some(shared))).handle))
}

pub(crate) unsafe extern "C" fn cuEventDestroy_v2(handle: CUevent) -> CUresult {
    call(|| {
        crate::device::driver()?;
        EVENTS.remove(handle.0).map(drop).ok_or(Status::INVALID_HANDLE)
    })
}

pub(crate) unsafe extern "C" fn cuEventRecord(handle: CUevent, s: CUstream) -> CUresult {
    // SAFETY: passed on.
    unsafe { cuEventRecordWithFlags(handle, s, 0) }
}

pub(crate) unsafe extern "C" fn cuEventRecordWithFlags(handle: CUevent, s: CUstream, flags: u32) -> CUresult {
    call(|| {
        let target = submit::target(s)?;
        let event = event(handle)?;
        if flags & !CU_EVENT_RECORD_EXTERNAL != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let external = flags & CU_EVENT_RECORD_EXTERNAL != 0;
        if external && target.stream.capture().is_some() {
            return target.submit(Op::RecordEvent(event));
        }
        if capture::record_event(&target.stream, &event) {
            return Ok(());
        }
        target.submit(Op::Record(event.issue_ticket()))
    })
}

pub(crate) unsafe extern "C" fn cuCtxRecordEvent(ctx: CUcontext, handle: CUevent) -> CUresult {
    call(|| record_context(named(ctx)?, handle))
}

/// Records an event behind everything that a context, and its green ones, have been given.
pub(super) fn record_context(context: Arc<Context>, handle: CUevent) -> Result<()> {
    context.check()?;
    let event = event(handle)?;
    if event.context != context.owner() {
        return Err(Status::INVALID_HANDLE);
    }
    check_no_capture(&context)?;
    // Behind the work of every stream, in a stream of its own.
    let gather = Stream::internal(context.handle, context.device.ordinal);
    for stream in engine::busy_streams(context.handle) {
        let ticket = Arc::new(Ticket::default());
        engine::submit(&stream, &context, Op::Record(Arc::clone(&ticket)));
        engine::submit(&gather, &context, Op::Await(ticket));
    }
    engine::submit(&gather, &context, Op::Record(event.issue_ticket()));
    Ok(())
}

pub(crate) unsafe extern "C" fn cuCtxWaitEvent(ctx: CUcontext, handle: CUevent) -> CUresult {
    call(|| wait_in_context(&*named(ctx)?, handle))
}

/// Makes what a context, and its green ones, are given from now on wait for an event.
pub(super) fn wait_in_context(context: &Context, handle: CUevent) -> Result<()> {
    context.check()?;
    check_no_capture(context)?;
    match event(handle)?.recorded() {
        Recorded::Never => {}
        Recorded::Captured(..) => return Err(Status::STREAM_CAPTURE_UNSUPPORTED),
        Recorded::Ticket(ticket) => engine::hold_back(context.handle, ticket),
    }
    Ok(())
}

/// Refuses what concerns all streams of a context while one of them captures.
fn check_no_capture(context: &Context) -> Result<()> {
    let is_green = |stream: &Stream| CONTEXTS.get(stream.context).is_some_and(|it| it.is_of(context.handle));
    let of_context = |stream: &Arc<Stream>| stream.context == context.handle || is_green(stream);
    STREAMS
        .all()
        .iter()
        .filter(|stream| of_context(stream))
        .try_for_each(|stream| stream.check_not_capturing())
}

pub(crate) unsafe extern "C" fn cuEventQuery(handle: CUevent) -> CUresult {
    call(|| {
        let event = event(handle)?;
        owning(event.context)?;
        event.query()
    })
}

pub(crate) unsafe extern "C" fn cuEventSynchronize(handle: CUevent) -> CUresult {
    call(|| {
        let event = event(handle)?;
        let context = owning(event.context)?;
        engine::wait_event(&event)?;
        pool::waited();
        context.check()
    })
}

pub(crate) unsafe extern "C" fn cuEventElapsedTime(
    place: *mut f32,
    start: CUevent,
    end: CUevent,
) -> CUresult {
    call(|| {
        let (start, end) = (event(start)?, event(end)?);
        owning(start.context)?;
        owning(end.context)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, elapsed_ms(&start, &end)?) }
    })
}
