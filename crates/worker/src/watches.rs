//! Events that the client is to hear of once they are done, unasked: beyond a slow link each question costs it a round trip.
//!
//! A driver tells nobody that an event is done, unless a stream or a thread is held up for it. So one thread asks it about all of them,
//! the less often the longer they take.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_cuda::{CUcontext, CUevent, CUresult, DriverTable};
use sluice_wire::{EventId, Header};

use crate::ending;
use crate::outbox::Outbox;
use crate::session::make_current;

/// Those of a session.
pub(crate) struct Watches {
    table: DriverTable,
    outbox: Arc<Outbox>,
    state: Mutex<State>,
    /// There is another event.
    more: Condvar,
}

#[derive(Default)]
struct State {
    watched: Vec<Watched>,
    /// When the last one came.
    since: Option<Instant>,
    has_thread: bool,
}

struct Watched {
    /// What is answered once the event is done.
    question: Header,
    id: EventId,
    event: CUevent,
    context: CUcontext,
}

/// Most events at a time. The client is told at once that one more is not done, and asks about it itself.
const WATCHED_MAX: usize = 256;
/// The driver is asked again after this part of the time that the youngest has been waited for,
const PAUSE_SHARE: u32 = 16;
/// within these limits.
const PAUSE_MIN: Duration = Duration::from_micros(100);
const PAUSE_MAX: Duration = Duration::from_millis(10);

impl Watches {
    pub(crate) fn new(table: DriverTable, outbox: Arc<Outbox>) -> Arc<Watches> {
        Arc::new(Watches { table, outbox, state: Mutex::default(), more: Condvar::new() })
    }

    /// Has the question answered once the event, which is live, is done: with `CUDA_SUCCESS`, or its error. One that is asked about anew
    /// counts from then on: the question before is answered with `CUDA_ERROR_NOT_READY`.
    pub(crate) fn watch(
        self: &Arc<Self>,
        question: Header,
        id: EventId,
        (event, context): (CUevent, CUcontext),
    ) {
        let watched = Watched { question, id, event, context };
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
        state.since = Some(Instant::now());
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

    /// An event is about to be destroyed; nobody asks about it any more.
    pub(crate) fn forget(&self, id: EventId) {
        self.lock().watched.retain(|watched| watched.id != id);
    }

    fn run(&self) -> ! {
        loop {
            for (question, result) in self.wait_for_some() {
                self.answer(question, result);
            }
        }
    }

    fn answer(&self, question: Header, result: CUresult) {
        if self.outbox.reply(question, result.0, &[]).is_err() {
            ending::client_gone();
        }
    }

    /// Returns when some are done, which are nobody's to watch any more.
    fn wait_for_some(&self) -> Vec<(Header, CUresult)> {
        let mut state = self.lock();
        loop {
            let done = self.take_done(&mut state);
            if !done.is_empty() {
                return done;
            }
            let pause = match state.since {
                Some(since) if !state.watched.is_empty() => {
                    (since.elapsed() / PAUSE_SHARE).clamp(PAUSE_MIN, PAUSE_MAX)
                }
                _ => Duration::MAX,
            };
            state = self.more.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The events are live: whoever destroys one forgets it before, under the same lock.
    fn take_done(&self, state: &mut State) -> Vec<(Header, CUresult)> {
        let mut done = Vec::new();
        state.watched.retain(|watched| {
            let result = self.ask(watched);
            if result != CUresult::NOT_READY {
                done.push((watched.question, result));
            }
            result == CUresult::NOT_READY
        });
        done
    }

    fn ask(&self, watched: &Watched) -> CUresult {
        let Some(query) = self.table.cuEventQuery else { return CUresult::NOT_SUPPORTED };
        match make_current(&self.table, watched.context) {
            // SAFETY: the event is live.
            Ok(()) => unsafe { query(watched.event) },
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
    use crate::streams::tests::{Work, stream, work};

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
        release.send(()).unwrap();
        assert_eq!(answer(&mut client, &mut decoder), (3, CUresult::SUCCESS));
    }
}
