//! Events of whose end the client is notified without asking: beyond a slow link each
//! question costs it a round trip.
//!
//! A driver does not notify that an event is done, unless a stream or a thread is held up for it.
//! So one thread asks it about all of them, the less often the longer they take.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_cuda::{CUcontext, CUevent, CUresult, DriverTable};
use sluice_wire::{EventId, Header};

use crate::outbox::Outbox;
use crate::process::ending;
use crate::session::current::make_current;

/// Those of a session.
pub(crate) struct Watches {
    table: DriverTable,
    outbox: Arc<Outbox>,
    state: Mutex<State>,
    /// There is another event.
    more: Condvar,
    /// An event that was being asked about is not any more.
    asked: Condvar,
}

#[derive(Default)]
struct State {
    watched: Vec<Watched>,
    /// The driver is being asked about this one, with no lock held: it may take until a host
    /// function of the program has returned, and that until something else is watched.
    asking: Option<EventId>,
    /// The client is being notified that one is done.
    is_answering: bool,
    has_thread: bool,
}

struct Watched {
    /// What is answered once the event is done.
    question: Header,
    id: EventId,
    event: CUevent,
    context: CUcontext,
    since: Instant,
    /// When the driver is asked again.
    due: Instant,
}

/// Most events at a time. The client gets the answer at once that one more is not done, and asks
/// about it itself.
const WATCHED_MAX: usize = 256;
/// The driver is asked again after this part of the time that an event has been waited for.
const PAUSE_SHARE: u32 = 16;
/// The shortest pause between two questions to the driver.
const PAUSE_MIN: Duration = Duration::from_micros(100);
/// The longest pause between two questions to the driver.
const PAUSE_MAX: Duration = Duration::from_millis(10);

impl Watches {
    pub(crate) fn new(table: DriverTable, outbox: Arc<Outbox>) -> Arc<Watches> {
        let (more, asked) = (Condvar::new(), Condvar::new());
        Arc::new(Watches { table, outbox, state: Mutex::default(), more, asked })
    }

    /// Whether no question is open.
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.lock();
        state.watched.is_empty() && state.asking.is_none() && !state.is_answering
    }

    /// Has the question answered once the event, which is live, is done: with `CUDA_SUCCESS`, or
    /// its error. One that is asked about anew counts from then on: the question before is answered
    /// with `CUDA_ERROR_NOT_READY`.
    pub(crate) fn watch(
        self: &Arc<Self>,
        question: Header,
        id: EventId,
        (event, context): (CUevent, CUcontext),
    ) {
        let now = Instant::now();
        let watched = Watched { question, id, event, context, since: now, due: now };
        let mut state = self.lock();
        let before = state.watched.iter().position(|watched| watched.id == id);
        let void = match before {
            Some(place) => Some(std::mem::replace(&mut state.watched[place], watched).question),
            None if state.watched.len() >= WATCHED_MAX => Some(question),
            None => {
                state.watched.push(watched);
                None
            }
        };
        if !std::mem::replace(&mut state.has_thread, true) {
            let watches = Arc::clone(self);
            ending::spawn("events", move || watches.run());
        }
        drop(state);
        self.more.notify_one();
        if let Some(question) = void {
            self.answer(question, CUresult::NOT_READY);
        }
    }

    /// An event is about to be destroyed, or recorded anew: in a capture, which would be worth
    /// nothing if a thread asked about it. No thread does any more when this returns.
    pub(crate) fn forget(&self, id: EventId) {
        let mut state = self.lock();
        state.watched.retain(|watched| watched.id != id);
        while state.asking == Some(id) {
            state = self.asked.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The session ends and this process does not: no thread asks about its events any more when
    /// this returns, nor writes to its client.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.watched.clear();
        while state.asking.is_some() || state.is_answering {
            state = self.asked.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn run(&self) -> ! {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            let next = state.watched.iter_mut().min_by_key(|watched| watched.due);
            let pause = next.as_ref().map_or(Duration::MAX, |next| next.due.saturating_duration_since(now));
            let Some(next) = next.filter(|_| pause.is_zero()) else {
                state = self.more.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            };
            next.due = now + (next.since.elapsed() / PAUSE_SHARE).clamp(PAUSE_MIN, PAUSE_MAX);
            let (question, id, event, context) = (next.question, next.id, next.event, next.context);
            state.asking = Some(id);
            drop(state);
            let result = self.ask(event, context);
            state = self.lock();
            state.asking = None;
            self.asked.notify_all();
            let is_it = |watched: &Watched| watched.id == id && watched.question == question;
            let place = state.watched.iter().position(is_it).filter(|_| result != CUresult::NOT_READY);
            if let Some(place) = place {
                state.watched.swap_remove(place);
                state.is_answering = true;
                drop(state);
                self.answer(question, result);
                state = self.lock();
                state.is_answering = false;
                self.asked.notify_all();
            }
        }
    }

    fn answer(&self, question: Header, result: CUresult) {
        if self.outbox.reply(question, result.0, &[]).is_err() {
            ending::client_gone();
        }
    }

    /// The event is live: the thread that destroys it waits in [`Watches::forget`].
    fn ask(&self, event: CUevent, context: CUcontext) -> CUresult {
        let Some(query) = self.table.cuEventQuery else { return CUresult::NOT_SUPPORTED };
        match make_current(&self.table, context) {
            // SAFETY: the event is live.
            Ok(()) => unsafe { query(event) },
            Err(error) => error,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::channel;

    use sluice_transport::Stream;
    use sluice_wire::{FrameDecoder, Kind, ReplyHead, decode};

    use super::*;
    use crate::counters::CounterPage;
    use crate::malformed::stage::Stage;
    use crate::schedule::streams::tests::{Work, stream, work};

    fn event(table: &DriverTable) -> CUevent {
        let mut event = CUevent::NULL;
        // SAFETY: the driver writes one handle to a local.
        unsafe { table.cuEventCreate.unwrap()(&mut event, 0) }.ok().unwrap();
        event
    }

    /// The next answer: to which question, and its result.
    fn answer(client: &mut UnixStream, decoder: &mut FrameDecoder) -> (u64, CUresult) {
        loop {
            if let Some(frame) = decoder.next_frame().unwrap() {
                let head: ReplyHead = decode(frame.payload).unwrap();
                return (frame.header.sequence, CUresult(head.result));
            }
            let mut bytes = [0; 64];
            let count = client.read(&mut bytes).unwrap();
            decoder.push(&bytes[..count]);
        }
    }

    #[test]
    fn a_question_is_answered_when_its_event_is_done() {
        let stage = Stage::new();
        let (table, _) = stage.driver();
        let (ours, mut client) = UnixStream::pair().unwrap();
        let counters = Arc::new(CounterPage::create().unwrap());
        let outbox = Arc::new(Outbox::new(Arc::new(Stream::from(ours)), false, counters));
        let watches = Watches::new(*table, outbox);
        let mut context = CUcontext::NULL;
        // SAFETY: the driver writes one handle to a local.
        unsafe { table.cuCtxGetCurrent.unwrap()(&mut context) }.ok().unwrap();
        let watch = |sequence, id, event| {
            let question = Header { kind: Kind::Command, device: 0, op: 0, lane: 1, sequence };
            watches.watch(question, EventId(id), (event, context));
        };

        // One that was never recorded is done.
        let (held, late, early) = (stream(table), event(table), event(table));
        let (release, go_on) = channel();
        let task = Work { go_on, is_done: AtomicBool::new(false) };
        // SAFETY: stream and event are live, and the work outlives them.
        unsafe {
            table.cuLaunchHostFunc.unwrap()(held, Some(work), (&raw const task).cast_mut().cast())
                .ok()
                .unwrap();
            table.cuEventRecord.unwrap()(late, held).ok().unwrap();
        }
        let mut decoder = FrameDecoder::new();
        watch(1, 7, late);
        watch(2, 8, early);
        assert_eq!(answer(&mut client, &mut decoder), (2, CUresult::SUCCESS), "they wait for each other");
        watch(3, 7, late);
        assert_eq!(answer(&mut client, &mut decoder), (1, CUresult::NOT_READY), "it is asked about anew");
        // Nobody asks about one that is recorded anew.
        watches.forget(EventId(7));
        watch(4, 9, late);
        release.send(()).unwrap();
        assert_eq!(answer(&mut client, &mut decoder), (4, CUresult::SUCCESS));
    }
}
