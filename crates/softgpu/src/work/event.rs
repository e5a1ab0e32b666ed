//! Events: marks in streams that others wait for or take the time of (CUDA Driver API, Event
//! Management).

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sluice_cuda::{CU_EVENT_DISABLE_TIMING, CUevent};

use crate::base::ids::CaptureId;
use crate::base::ids::NodeId;
use crate::base::shared_event::SharedEvent;
use crate::base::status::{Result, Status};
use crate::base::table::Table;
use crate::base::ticket::Ticket;
use crate::device::driver;

pub(crate) static EVENTS: Table<Event> = Table::new(3);

pub(crate) struct Event {
    pub(crate) handle: usize,
    /// Handle of its context.
    pub(crate) context: usize,
    pub(crate) flags: u32,
    recorded: Mutex<Recorded>,
    /// Of an event that other processes can open.
    shared: Option<Arc<SharedEvent>>,
}

/// What an event stands for: its latest record.
#[derive(Clone, Default)]
pub(crate) enum Recorded {
    #[default]
    Never,
    /// A place in a stream.
    Ticket(Arc<Ticket>),
    /// The nodes of a capture that were last in the stream.
    Captured(CaptureId, Vec<NodeId>),
}

impl Event {
    pub(crate) fn new(handle: usize, context: usize, flags: u32, shared: Option<SharedEvent>) -> Self {
        Self { handle, context, flags, recorded: Mutex::default(), shared: shared.map(Arc::new) }
    }

    /// A descriptor of the event, for a process that is to open it.
    pub(crate) fn export(&self) -> Result<OwnedFd> {
        self.shared.as_ref().ok_or(Status::INVALID_VALUE)?.export()
    }

    fn lock(&self) -> MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn recorded(&self) -> Recorded {
        let recorded = self.lock().clone();
        match (&self.shared, recorded) {
            (_, Recorded::Captured(capture, nodes)) => Recorded::Captured(capture, nodes),
            // The latest record may be another process's.
            (Some(shared), _) => shared.latest().map_or(Recorded::Never, |number| {
                let shared = Some((Arc::clone(shared), number));
                Recorded::Ticket(Arc::new(Ticket { shared, ..Ticket::default() }))
            }),
            (None, recorded) => recorded,
        }
    }

    pub(crate) fn set_recorded(&self, recorded: Recorded) {
        *self.lock() = recorded;
    }

    /// A new ticket, which the event stands for from now on.
    pub(crate) fn issue_ticket(&self) -> Arc<Ticket> {
        let shared = self.shared.as_ref().map(|shared| (Arc::clone(shared), shared.issue()));
        let ticket = Arc::new(Ticket { shared, ..Ticket::default() });
        self.set_recorded(Recorded::Ticket(Arc::clone(&ticket)));
        ticket
    }

    /// Whether the recorded work is done; an event that was never recorded is.
    pub(crate) fn query(&self) -> Result<()> {
        match self.recorded() {
            Recorded::Never => Ok(()),
            Recorded::Ticket(ticket) if ticket.is_done() => Ok(()),
            Recorded::Ticket(_) => Err(Status::NOT_READY),
            Recorded::Captured(..) => Err(Status::CAPTURED_EVENT),
        }
    }

    /// When the recorded work was done.
    fn time(&self) -> Result<Instant> {
        if self.flags & CU_EVENT_DISABLE_TIMING != 0 {
            return Err(Status::INVALID_HANDLE);
        }
        match self.recorded() {
            Recorded::Never => Err(Status::INVALID_HANDLE),
            Recorded::Ticket(ticket) => ticket.done_at.get().copied().ok_or(Status::NOT_READY),
            Recorded::Captured(..) => Err(Status::CAPTURED_EVENT),
        }
    }
}

/// The event with this handle.
pub(crate) fn event(handle: CUevent) -> Result<Arc<Event>> {
    driver()?;
    EVENTS.get(handle.0).ok_or(Status::INVALID_HANDLE)
}

/// Milliseconds from `start` to `end`; negative if `end` came first.
pub(crate) fn elapsed_ms(start: &Event, end: &Event) -> Result<f32> {
    let (start, end) = (start.time()?, end.time()?);
    let ms = |late: Instant, early: Instant| late.duration_since(early).as_secs_f64() as f32 * 1e3;
    Ok(if end >= start { ms(end, start) } else { -ms(start, end) })
}
