//! Events: created and destroyed without waiting, and asked about only while it is not known that
//! they are done.
//!
//! That is known of an event that was never recorded, of one that has been asked about or waited
//! for since its last record, and of one whose device or stream has been waited for since. It is
//! never known where others record events, too: other processes, and graphs. Of a record with
//! flags, or of a whole context, nothing is noted: such events are asked about. Beyond a slow link
//! the node tells of what is polled ([`watch`](crate::stream::watch)).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sluice_cuda::*;
use sluice_wire::{Command, EventId, commands};

use crate::abi::ids::{Kind, Table};
use crate::abi::out;
use crate::context::{self, Context};
use crate::host_memory::mirror;
use crate::link::inbox;
use crate::session::issue::{Issue, wanted};
use crate::session::{self, Session, other_node};
use crate::stream;
use crate::stream::capture::{self, Capture};
use crate::stream::watch::{EventStatus, SLOW, Watch};

#[derive(Debug)]
struct Event {
    context: CUcontext,
    device: CUdevice,
    last: Mutex<Last>,
    /// Whether other processes may open it, or one of them has made it.
    is_shared: bool,
    /// The program polls it, beyond a slow link.
    is_polled: AtomicBool,
}

/// What an event was last recorded in.
#[derive(Clone, Debug, Default)]
struct Last {
    is_recorded: bool,
    capture: Option<Arc<Capture>>,
    /// Of the records.
    number: u64,
    /// What a wait for the device has to cover, and the stream; `None` until the record has been
    /// sent.
    covered_by: Option<(u64, CUstream)>,
    is_done: bool,
    /// The node tells when it is done.
    watch: Option<Arc<Watch>>,
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
    find(event)?.recorded(capture);
    Ok(())
}

/// Sends a record of the event in a stream that captures nothing.
pub(crate) fn record<C: Command>(
    event: CUevent,
    stream: CUstream,
    command: impl FnOnce(&Session) -> Result<C, CUresult>,
) -> Result<(), CUresult> {
    let session = session::get()?;
    let object = find(event)?;
    let command = command(session)?;
    if stream::device_of(stream)? != object.device {
        return Err(CUresult::INVALID_HANDLE);
    }
    let (news, number) = (inbox::news(), object.recorded(None));
    session.queue(&command)?;
    let sent = session.device(object.device)?.work.sent();
    let watch = if object.is_polled() { Watch::begin(session, session.find(event)?, news) } else { None };
    let mut last = object.last();
    if last.number == number {
        (last.covered_by, last.watch) = (Some((sent, stream)), watch.map(Arc::new));
    }
    Ok(())
}

/// Asks the node about an event, or waits for it there, unless it is known to be done.
pub(crate) fn unless_done<C>(
    event: CUevent,
    command: impl FnOnce(&Session) -> Result<C, CUresult>,
) -> Result<(), CUresult>
where
    for<'a> C: Command<Reply<'a> = ()>,
{
    let session = session::get()?;
    let object = find(event)?;
    let command = command(session)?;
    let last = object.last().clone();
    if object.is_done(session, &last)? {
        return session.link.check();
    }
    let watch = last.watch.as_ref().filter(|_| object.is_ours_alone());
    match watch.map_or(EventStatus::Nothing, |watch| watch.look()) {
        EventStatus::Nothing => {}
        EventStatus::NotYet if C::OP != commands::cuEventQuery::OP => {}
        EventStatus::NotYet => return session.link.check().and(Err(CUresult::NOT_READY)),
        EventStatus::Done => {
            session.link.check()?;
            mirror::fetch(session)?;
            object.is_known_done(&last);
            return Ok(());
        }
    }
    let (news, asked) = (inbox::news(), Instant::now());
    let answer = session.call(&command, |()| ());
    if answer == Err(CUresult::NOT_READY) {
        match watch {
            Some(watch) => watch.not_yet(news),
            None if asked.elapsed() >= SLOW => object.poll(session, session.find(event)?, &last, news),
            None => {}
        }
    }
    answer?;
    object.is_known_done(&last);
    Ok(())
}

fn find(event: CUevent) -> Result<Arc<Event>, CUresult> {
    EVENTS.get(event.0 as u64).ok_or(CUresult::INVALID_HANDLE)
}

impl Event {
    /// The number of the record.
    fn recorded(&self, capture: Option<Arc<Capture>>) -> u64 {
        let mut last = self.last();
        let number = last.number + 1;
        if last.watch.as_ref().is_some_and(|watch| !watch.was_of_use()) {
            self.is_polled.store(false, Ordering::Relaxed);
        }
        *last = Last { is_recorded: true, capture, number, ..Last::default() };
        number
    }

    /// The record that was the last one is over.
    fn is_known_done(&self, last: &Last) {
        let mut now = self.last();
        // An answer is not about a record that had not been sent.
        now.is_done |= now.number == last.number && last.covered_by.is_some();
    }

    /// The program polls the event, and an answer takes long: the node is to tell when this record
    /// is done, and the next ones.
    fn poll(&self, session: &'static Session, event: EventId, last: &Last, news: u64) {
        if last.covered_by.is_none() || !self.is_ours_alone() {
            return;
        }
        self.is_polled.store(true, Ordering::Relaxed);
        let Some(watch) = Watch::begin(session, event, news) else { return };
        watch.not_yet(news);
        let mut now = self.last();
        if now.number == last.number {
            now.watch = Some(Arc::new(watch));
        }
    }

    fn is_polled(&self) -> bool {
        self.is_polled.load(Ordering::Relaxed) && self.is_ours_alone()
    }

    /// Whether nothing records it but this process's calls.
    fn is_ours_alone(&self) -> bool {
        !self.is_shared && !SOME_IN_GRAPHS.load(Ordering::Relaxed)
    }

    /// Whether it is known, without asking, that what was recorded last is over.
    fn is_done(&self, session: &Session, last: &Last) -> Result<bool, CUresult> {
        if !self.is_ours_alone() {
            return Ok(false);
        }
        let device = session.device(self.device)?;
        let is_covered = |&(sent, stream): &(u64, CUstream)| {
            device.work.covers(sent) || stream::has_waited(device.ordinal, stream, sent)
        };
        Ok(!last.is_recorded || last.is_done || last.covered_by.as_ref().is_some_and(is_covered))
    }
}

/// Whether a graph may record an event, whenever it is launched.
static SOME_IN_GRAPHS: AtomicBool = AtomicBool::new(false);

/// A graph is about to be given a record of an event.
pub(crate) fn recorded_by_graph() {
    SOME_IN_GRAPHS.store(true, Ordering::Relaxed);
}

/// Whether an event was ever recorded, and the capture if that was in one.
pub(crate) fn last_capture(event: CUevent) -> Result<(bool, Option<Arc<Capture>>), CUresult> {
    let last = find(event)?.last().clone();
    Ok((last.is_recorded, last.capture))
}

/// As [`last_capture`], with the capture only while it is active.
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
    Ok(find(event)?.device)
}

/// The context that an event was made in.
pub(crate) fn owner(handle: u64) -> Option<CUcontext> {
    EVENTS.get(handle).map(|event| event.context)
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
pub(crate) fn mint_shared(context: &Context) -> CUevent {
    SOME_SHARED.store(true, Ordering::Relaxed);
    let handle = context::mint(Kind::Event);
    let last = Mutex::new(Last { is_recorded: true, ..Last::default() });
    EVENTS.insert(
        handle,
        Event {
            context: context.owner,
            device: context.device,
            last,
            is_shared: true,
            is_polled: AtomicBool::new(false),
        },
    );
    CUevent(handle as usize)
}

pub(crate) fn forget(event: CUevent) {
    EVENTS.remove(event.0 as u64);
}

/// Refuses events that were not made for other processes.
pub(crate) fn check_shared(event: CUevent) -> Result<(), CUresult> {
    if find(event)?.is_shared { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
}

const FLAGS: u32 = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

// The entry points. CUDA Driver API, section "Event Management".

pub(crate) unsafe fn cuEventCreate(phEvent: *mut CUevent, Flags: u32) -> Result<(), CUresult> {
    let session = session::enter()?;
    let context = context::current()?;
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
    let handle = context::mint(Kind::Event);
    let (device, context) = (context.device, context.owner);
    EVENTS.insert(
        handle,
        Event { context, device, last: Mutex::default(), is_shared, is_polled: AtomicBool::new(false) },
    );
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

/// Everything that is given to the context from now on waits for the event.
pub(crate) unsafe fn cuCtxWaitEvent(hCtx: CUcontext, hEvent: CUevent) -> Result<(), CUresult> {
    let context = context::named_or_current(hCtx)?;
    let session = session::of(context.device)?;
    capture::check_context(context.handle)?;
    if let (_, Some(capture)) = capture_of(hEvent)? {
        capture.invalidate();
        return Err(CUresult::STREAM_CAPTURE_UNSUPPORTED);
    }
    if other_node::is_elsewhere(session, hEvent.0) {
        return other_node::wait(hEvent);
    }
    if let Some(green) = &context.green {
        let (hCtx, hEvent) = (session.find(green.handle)?, session.find(hEvent)?);
        return session.queue(&commands::cuGreenCtxWaitEvent { hCtx, hEvent });
    }
    let device = session.device(context.device)?.place.into();
    session.queue(&commands::cuCtxWaitEvent { device, hEvent: session.find(hEvent)? })
}
