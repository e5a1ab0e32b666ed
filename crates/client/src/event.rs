//! Events: created and destroyed without waiting; the rest is generated.

use sluice_cuda::*;
use sluice_wire::{EventId, commands};

use crate::ids::{self, Kind, Table};
use crate::issue::wanted;
use crate::{context, out, session};

#[derive(Debug)]
struct Event {
    context: CUcontext,
}

static EVENTS: Table<Event> = Table::new();

pub(crate) fn exists(number: u64) -> bool {
    EVENTS.contains(number)
}

/// Forgets the events of a context that has ended.
pub(crate) fn context_ended(context: CUcontext) {
    EVENTS.remove_where(|event| event.context == context);
}

/// The handles of a context's events.
pub(crate) fn of_context(context: CUcontext) -> Vec<u64> {
    EVENTS.find(|event| event.context == context)
}

const FLAGS: u32 = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

// The entry points. CUDA Driver API, section "Event Management".

pub(crate) unsafe fn cuEventCreate(phEvent: *mut CUevent, Flags: u32) -> Result<(), CUresult> {
    let session = session::enter()?;
    let context = context::current()?.handle;
    wanted(phEvent)?;
    if Flags & !FLAGS != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    if Flags & CU_EVENT_INTERPROCESS != 0 {
        return Err(CUresult::NOT_SUPPORTED);
    }
    let handle = ids::mint(Kind::Event);
    EVENTS.insert(handle, Event { context });
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
