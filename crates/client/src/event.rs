//! Events: created and destroyed without waiting; the rest is generated.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;
use sluice_wire::{EventId, commands};

use crate::capture::Capture;
use crate::ids::{self, Kind, Table};
use crate::issue::{Issue, wanted};
use crate::{across, capture, context, out, session};

#[derive(Debug)]
struct Event {
    context: CUcontext,
    last: Mutex<Last>,
    /// Whether other processes may open it, or one of them has made it.
    is_shared: bool,
}

/// What an event was last recorded in.
#[derive(Clone, Debug, Default)]
struct Last {
    is_recorded: bool,
    capture: Option<Arc<Capture>>,
}

impl Event {
    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

static EVENTS: Table<Event> = Table::new();

pub(crate) fn exists(number: u64) -> bool {
    EVENTS.contains(number)
}

/// Notes that an event is recorded, in a capture or outside.
pub(crate) fn recorded(event: CUevent, capture: Option<Arc<Capture>>) -> Result<(), CUresult> {
    let event = EVENTS.get(event.0 as u64).ok_or(CUresult::INVALID_HANDLE)?;
    *event.last() = Last { is_recorded: true, capture };
    Ok(())
}

/// Whether an event was ever recorded, and the capture if that was in one.
pub(crate) fn last_capture(event: CUevent) -> Result<(bool, Option<Arc<Capture>>), CUresult> {
    let event = EVENTS.get(event.0 as u64).ok_or(CUresult::INVALID_HANDLE)?;
    let last = event.last().clone();
    Ok((last.is_recorded, last.capture))
}

/// The same, if that capture goes on.
pub(crate) fn capture_of(event: CUevent) -> Result<(bool, Option<Arc<Capture>>), CUresult> {
    let (is_recorded, capture) = last_capture(event)?;
    Ok((is_recorded, capture.filter(|capture| !capture.has_ended())))
}

/// Forgets the events of a context that has ended.
pub(crate) fn context_ended(context: CUcontext) {
    EVENTS.remove_where(|event| event.context == context);
}

/// The device of the context that an event was made in.
pub(crate) fn device_of(event: CUevent) -> Result<CUdevice, CUresult> {
    let event = EVENTS.get(event.0 as u64).ok_or(CUresult::INVALID_HANDLE)?;
    Ok(context::named_or_current(event.context)?.device)
}

/// The handles of a context's events.
pub(crate) fn of_context(context: CUcontext) -> Vec<u64> {
    EVENTS.find(|event| event.context == context)
}

/// Whether any event is shared: then recording one is not over before the node has taken note.
static SOME_SHARED: AtomicBool = AtomicBool::new(false);

pub(crate) fn some_shared() -> bool {
    SOME_SHARED.load(Ordering::Relaxed)
}

/// A handle for an event of another process.
pub(crate) fn mint_shared(context: CUcontext) -> CUevent {
    SOME_SHARED.store(true, Ordering::Relaxed);
    let handle = ids::mint(Kind::Event);
    let last = Mutex::new(Last { is_recorded: true, capture: None });
    EVENTS.insert(handle, Event { context, last, is_shared: true });
    CUevent(handle as usize)
}

pub(crate) fn forget(event: CUevent) {
    EVENTS.remove(event.0 as u64);
}

/// Refuses events that were not made for other processes.
pub(crate) fn check_shared(event: CUevent) -> Result<(), CUresult> {
    let event = EVENTS.get(event.0 as u64).ok_or(CUresult::INVALID_HANDLE)?;
    if event.is_shared { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
}

const FLAGS: u32 = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

// The entry points. CUDA Driver API, section "Event Management".

pub(crate) unsafe fn cuEventCreate(phEvent: *mut CUevent, Flags: u32) -> Result<(), CUresult> {
    let session = session::enter()?;
    let context = context::current()?.owner;
    wanted(phEvent)?;
    if Flags & !FLAGS != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let is_shared = Flags & CU_EVENT_INTERPROCESS != 0;
    if is_shared && Flags & CU_EVENT_DISABLE_TIMING == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    if is_shared {
        // An event that the driver does not have would be the session's failure later.
        let has_shared = session.devices.iter().all(|device| device.shares_events());
        has_shared.then_some(()).ok_or(CUresult::NOT_SUPPORTED)?;
        SOME_SHARED.store(true, Ordering::Relaxed);
    }
    let handle = ids::mint(Kind::Event);
    EVENTS.insert(handle, Event { context, last: Mutex::default(), is_shared });
    session
        .queue_quietly(&commands::cuEventCreate { phEvent: EventId(handle), Flags })
        .inspect_err(|_| drop(EVENTS.remove(handle)))?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(phEvent, CUevent(handle as usize)) }
}

/// The name from before CUDA gave this function its `_v2`; the meaning is the same.
pub(crate) unsafe fn cuEventDestroy(hEvent: CUevent) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuEventDestroy_v2(hEvent) }
}

pub(crate) unsafe fn cuEventDestroy_v2(hEvent: CUevent) -> Result<(), CUresult> {
    let session = session::get()?;
    EVENTS.remove(hEvent.0 as u64).ok_or(CUresult::INVALID_HANDLE)?;
    session.queue_quietly(&commands::cuEventDestroy_v2 { hEvent: EventId(hEvent.0 as u64) })
}

/// Everything that was given to the context until now, in all of its streams. A green one has its own; on the node a session has one context per
/// device, so that other contexts of the program on the same device are covered, too.
pub(crate) unsafe fn cuCtxRecordEvent(hCtx: CUcontext, hEvent: CUevent) -> Result<(), CUresult> {
    let context = context::named_or_current(hCtx)?;
    let session = session::of(context.device)?;
    if let Some(green) = &context.green {
        crate::green::before_record(green.handle, hEvent)?;
        let (hCtx, hEvent) = (session.find(green.handle)?, session.find(hEvent)?);
        return session.queue(&commands::cuGreenCtxRecordEvent { hCtx, hEvent });
    }
    if device_of(hEvent)? != context.device {
        return Err(CUresult::INVALID_HANDLE);
    }
    capture::check_context(context.handle)?;
    recorded(hEvent, None)?;
    session.queue(&commands::cuCtxRecordEvent {
        device: session.device(context.device)?.place.into(),
        hEvent: session.find(hEvent)?,
    })
}

/// Everything that is given to the context from now on waits for the event.
pub(crate) unsafe fn cuCtxWaitEvent(hCtx: CUcontext, hEvent: CUevent) -> Result<(), CUresult> {
    let context = context::named_or_current(hCtx)?;
    let session = session::of(context.device)?;
    capture::check_context(context.handle)?;
    if let (_, Some(capture)) = capture_of(hEvent)? {
        capture.invalidate();
        return Err(CUresult::STREAM_CAPTURE_UNSUPPORTED);
    }
    if across::is_elsewhere(session, hEvent.0) {
        return across::wait(hEvent);
    }
    if let Some(green) = &context.green {
        let (hCtx, hEvent) = (session.find(green.handle)?, session.find(hEvent)?);
        return session.queue(&commands::cuGreenCtxWaitEvent { hCtx, hEvent });
    }
    let device = session.device(context.device)?.place.into();
    session.queue(&commands::cuCtxWaitEvent { device, hEvent: session.find(hEvent)? })
}
