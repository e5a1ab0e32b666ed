//! The streams of a GPU that were given work, and waiting for what they do.
//!
//! `cuCtxSynchronize` would wait for all of them. But while one of the context's streams captures,
//! that is refused, in every mode and from every thread, and the capture is worth nothing any more
//! (CUDA Programming Guide, "Prohibited and Unhandled Operations"). So an event is recorded in each
//! stream that does not capture, and waited for. No thread may begin a capture in between: the
//! record would be part of it.

use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foldhash::HashMap;
use sluice_cuda::{CUcontext, CUresult, CUstream, CUstreamCaptureStatus, DriverTable};

use crate::schedule::event::Event;
use crate::session::current::make_current;

/// How often streams that are about to finish are looked at.
const SETTLE_LOOK: Duration = Duration::from_micros(100);

/// Those of one GPU of the lease.
pub(crate) struct Streams {
    table: DriverTable,
    context: CUcontext,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the driver's handle.
    streams: HashMap<usize, Used>,
    /// Reached when streams are done that capture now, or are gone.
    parted: Vec<Arc<Event>>,
    /// Commands so far that gave a stream something.
    given: u64,
    /// Of these, the ones before which the program has waited for the whole GPU.
    waited: u64,
    /// The last one that may keep a stream from continuing.
    holds: u64,
    /// The last one that may have kept a stream which is gone from continuing.
    parted_holds: u64,
}

struct Used {
    /// Of the stream's own context, which may be a green one.
    event: Arc<Event>,
    /// Work may have come that no event is behind.
    has_work: bool,
    /// The number of the last command that gave it something.
    last: u64,
    /// The last one that may keep it from continuing: a value to wait for.
    holds: u64,
    /// The program has waited for what the commands up to this one gave it.
    waited: u64,
}

impl Used {
    fn new(event: Event) -> Used {
        Used { event: Arc::new(event), has_work: false, last: 0, holds: 0, waited: 0 }
    }
}

/// What a command gives the streams that it names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Given {
    Work,
    /// It may keep them from continuing, for as long as the program likes.
    Hold,
    Other,
}

/// What had been given to streams when a wait began.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark(u64);

thread_local! {
    /// The streams that the command names which this thread executes.
    static NAMED: RefCell<Vec<CUstream>> = const { RefCell::new(Vec::new()) };
}

/// The calling thread begins with another command.
pub(crate) fn forget_named() {
    NAMED.with_borrow_mut(Vec::clear);
}

/// The streams that the calling thread's command has named so far.
pub(crate) fn named_now() -> Vec<CUstream> {
    NAMED.with_borrow(Vec::clone)
}

impl Streams {
    pub(crate) fn new(table: DriverTable, context: CUcontext) -> Arc<Streams> {
        Arc::new(Streams { table, context, state: Mutex::default() })
    }

    /// A command names a stream, whose context is current.
    pub(crate) fn named(&self, stream: CUstream) {
        NAMED.with_borrow_mut(|named| named.push(stream));
        // Without events a session fails at its next call.
        if let Entry::Vacant(entry) = self.lock().streams.entry(stream.0)
            && let Ok(event) = Event::new(&self.table)
        {
            entry.insert(Used::new(event));
        }
    }

    /// The streams that the calling thread's command has named were given work.
    pub(crate) fn submitted(&self) {
        self.given(Given::Work);
    }

    /// They were given what is no work, but may keep them from being done: an event to wait for,
    /// say.
    pub(crate) fn changed(&self) {
        self.given(Given::Other);
    }

    /// They were given a wait of unknown length, for a value. (Functions of the program are
    /// counted: `host_calls`.)
    pub(crate) fn held(&self) {
        self.given(Given::Hold);
    }

    fn given(&self, what: Given) {
        let mut state = self.lock();
        let state = &mut *state;
        state.given += 1;
        if what == Given::Hold {
            state.holds = state.given;
        }
        NAMED.with_borrow(|named| {
            for stream in named {
                if let Some(used) = state.streams.get_mut(&stream.0) {
                    used.has_work |= what == Given::Work;
                    used.last = state.given;
                    if what == Given::Hold {
                        used.holds = state.given;
                    }
                }
            }
        });
    }

    /// Whether everything that may have kept a stream from continuing is known to be over.
    /// [`Streams::drain`] does not wait for such.
    pub(crate) fn hold_nothing(&self) -> bool {
        let state = self.lock();
        let is_over = |used: &Used| used.holds <= used.waited.max(state.waited);
        state.holds <= state.waited
            || (state.parted_holds <= state.waited && state.streams.values().all(is_over))
    }

    /// The program is about to wait.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.lock().given)
    }

    /// The program has waited for the streams that the calling thread's command has named.
    pub(crate) fn waited(&self, mark: Mark) {
        let mut state = self.lock();
        NAMED.with_borrow(|named| {
            for stream in named {
                if let Some(used) = state.streams.get_mut(&stream.0) {
                    used.waited = used.waited.max(mark.0);
                }
            }
        });
    }

    /// The program has waited for all streams.
    pub(crate) fn waited_for_all(&self, mark: Mark) {
        let mut state = self.lock();
        state.waited = state.waited.max(mark.0);
    }

    /// Whether the program has waited for the streams that the calling thread's command has named,
    /// and they were given nothing since: what they may still have to do is to come to an event of
    /// [`Streams::drain`], which no program shall see.
    pub(crate) fn is_done(&self) -> bool {
        let state = self.lock();
        NAMED.with_borrow(|named| {
            named.iter().all(|stream| {
                state.streams.get(&stream.0).is_some_and(|used| {
                    // The legacy stream waits for others.
                    let is_legacy = [CUstream::NULL, CUstream::LEGACY].contains(stream);
                    let last = if is_legacy { state.given } else { used.last };
                    last > 0 && last <= used.waited.max(state.waited)
                })
            })
        })
    }

    /// A stream that is not known elsewhere any more is about to be destroyed.
    pub(crate) fn leaves(&self, stream: CUstream) {
        let mut state = self.lock();
        let Some(mut used) = state.streams.remove(&stream.0) else { return };
        if used.holds > used.waited {
            state.parted_holds = state.parted_holds.max(used.holds);
        }
        if self.record(stream.0, &mut used) {
            state.parted.push(used.event);
        }
    }

    /// Has `act` begin a capture, or have a stream join one. What streams have done before is
    /// waited for all the same.
    pub(crate) fn capture<R>(&self, act: impl FnOnce() -> R) -> R {
        let mut state = self.lock();
        let reached = self.record_all(&mut state, |used| used.has_work);
        state.parted.extend(reached);
        act()
    }

    /// Returns when everything has finished that streams were given before, and no thread has
    /// waited for yet; after an error at once.
    pub(crate) fn drain(&self) {
        if make_current(&self.table, self.context).is_ok() {
            // Errors are the session's to find, by its own calls.
            let _ = self.wait(|used| used.has_work);
        }
    }

    /// As `cuCtxSynchronize`, whatever captures.
    pub(crate) fn synchronize(&self) -> Result<(), CUresult> {
        self.wait(|_| true)
    }

    /// As [`Streams::synchronize`] on any thread, and no longer than until then: whether everything
    /// has finished. A stream may wait for another process for as long as that likes.
    pub(crate) fn settles(&self, until: Instant) -> bool {
        if make_current(&self.table, self.context).is_err() {
            return false;
        }
        let mut state = self.lock();
        let mut events = self.record_all(&mut state, |_| true);
        events.extend(state.parted.iter().cloned());
        drop(state);
        loop {
            events.retain(|event| !event.is_reached());
            if events.is_empty() {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(SETTLE_LOOK);
        }
    }

    fn wait(&self, which: impl Fn(&Used) -> bool) -> Result<(), CUresult> {
        let mut state = self.lock();
        let mut events = self.record_all(&mut state, which);
        events.append(&mut state.parted);
        drop(state);
        events.iter().try_for_each(|event| event.wait())
    }

    fn record_all(&self, state: &mut State, which: impl Fn(&Used) -> bool) -> Vec<Arc<Event>> {
        let mut events = Vec::new();
        for (&stream, used) in &mut state.streams {
            if which(used) && self.record(stream, used) {
                events.push(Arc::clone(&used.event));
            }
        }
        events
    }

    /// False where nothing is to be waited for: what is captured does not run, and a context that
    /// has failed is waited for in vain.
    fn record(&self, stream: usize, used: &mut Used) -> bool {
        let stream = CUstream(stream);
        used.has_work = false;
        let Some(captures) = self.table.cuStreamIsCapturing else { return false };
        let mut status = CUstreamCaptureStatus::NONE;
        // SAFETY: the stream is live, since one leaves before it is destroyed; the driver writes to
        // a local. Asked of the legacy stream while another one captures that waits for it, it is
        // an error that harms nothing.
        let known = unsafe { captures(stream, &mut status) }.is_success();
        known && status == CUstreamCaptureStatus::NONE && used.event.record(stream).is_ok()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::ffi::c_void;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::sync::mpsc::{Receiver, channel};

    use sluice_cuda::{CU_STREAM_NON_BLOCKING, CUgraph, CUstreamCaptureMode};

    use super::*;
    use crate::malformed::stage::Stage;

    /// Work that is done once the test lets it continue.
    pub(crate) struct Work {
        pub(crate) go_on: Receiver<()>,
        pub(crate) is_done: AtomicBool,
    }

    pub(crate) unsafe extern "C" fn work(data: *mut c_void) {
        // SAFETY: the test keeps it until its stream is done.
        let work = unsafe { &*data.cast::<Work>() };
        let _ = work.go_on.recv();
        work.is_done.store(true, SeqCst);
    }

    pub(crate) fn stream(table: &DriverTable) -> CUstream {
        let mut stream = CUstream::NULL;
        // SAFETY: the driver writes one handle to a local.
        unsafe { table.cuStreamCreate.unwrap()(&mut stream, CU_STREAM_NON_BLOCKING) }.ok().unwrap();
        stream
    }

    /// As after a command that names the stream and gives it work.
    fn given(streams: &Streams, stream: CUstream) {
        forget_named();
        streams.named(stream);
        streams.submitted();
    }

    fn begin(table: &DriverTable, stream: CUstream) -> CUresult {
        // SAFETY: the stream is live.
        unsafe { table.cuStreamBeginCapture_v2.unwrap()(stream, CUstreamCaptureMode::RELAXED) }
    }

    fn end(table: &DriverTable, stream: CUstream) -> CUresult {
        let mut graph = CUgraph::NULL;
        // SAFETY: the stream is live, and the driver writes one handle to a local.
        unsafe { table.cuStreamEndCapture.unwrap()(stream, &mut graph) }
    }

    #[test]
    fn waiting_leaves_captures_as_they_are() {
        let stage = Stage::new();
        let (table, streams) = stage.driver();
        let (captures, other) = (stream(table), stream(table));
        given(streams, captures);
        given(streams, other);
        streams.capture(|| begin(table, captures)).ok().unwrap();
        given(streams, captures);
        streams.drain();
        streams.synchronize().unwrap();
        end(table, captures).ok().unwrap();
        begin(table, captures).ok().unwrap();
        // SAFETY: a context is current.
        let refused = unsafe { table.cuCtxSynchronize.unwrap()() };
        assert_eq!(refused, CUresult::STREAM_CAPTURE_UNSUPPORTED, "what it is for");
        assert_eq!(end(table, captures), CUresult::STREAM_CAPTURE_INVALIDATED);
    }

    #[test]
    fn a_stream_that_was_waited_for_is_done_until_it_is_given_more() {
        let stage = Stage::new();
        let (table, streams) = stage.driver();
        let (one, other) = (stream(table), stream(table));
        let named = |stream| {
            forget_named();
            streams.named(stream);
        };
        let is_done = |stream| {
            named(stream);
            streams.is_done()
        };
        given(streams, one);
        assert!(!is_done(one), "no thread has waited");
        let early = streams.mark();
        given(streams, one);
        streams.waited(early);
        assert!(!is_done(one), "more came while it was waited for");
        streams.waited(streams.mark());
        given(streams, other);
        assert!(is_done(one) && !is_done(other));
        streams.waited_for_all(streams.mark());
        assert!(is_done(one) && is_done(other));
        named(one);
        streams.changed();
        assert!(!is_done(one) && is_done(other), "it may wait for an event");
    }

    #[test]
    fn a_stream_that_may_be_held_is_until_somebody_has_waited_for_it() {
        let stage = Stage::new();
        let (table, streams) = stage.driver();
        let (held, other) = (stream(table), stream(table));
        let named = |stream| {
            forget_named();
            streams.named(stream);
        };
        assert!(streams.hold_nothing());
        named(held);
        streams.held();
        given(streams, other);
        streams.drain();
        assert!(!streams.hold_nothing(), "it has no work to be waited for");
        named(other);
        streams.waited(streams.mark());
        assert!(!streams.hold_nothing(), "another one was waited for");
        let early = streams.mark();
        named(held);
        streams.held();
        streams.waited(early);
        assert!(!streams.hold_nothing(), "it was given more meanwhile");
        streams.waited(streams.mark());
        assert!(streams.hold_nothing());
        streams.held();
        streams.leaves(held);
        // SAFETY: it is not used any more.
        unsafe { table.cuStreamDestroy_v2.unwrap()(held) }.ok().unwrap();
        assert!(!streams.hold_nothing(), "it is gone, and what it waits for is not");
        streams.waited_for_all(streams.mark());
        assert!(streams.hold_nothing());
    }

    #[test]
    fn what_was_given_before_a_capture_or_an_end_is_waited_for() {
        let stage = Stage::new();
        let (table, streams) = stage.driver();
        for is_capture in [true, false] {
            let stream = stream(table);
            let (release, go_on) = channel();
            let task = Work { go_on, is_done: AtomicBool::new(false) };
            // SAFETY: the stream is live, and the work outlives it.
            unsafe {
                table.cuLaunchHostFunc.unwrap()(stream, Some(work), (&raw const task).cast_mut().cast())
            }
            .ok()
            .unwrap();
            given(streams, stream);
            match is_capture {
                true => streams.capture(|| begin(table, stream)).ok().unwrap(),
                false => {
                    streams.leaves(stream);
                    // SAFETY: it is not used any more.
                    unsafe { table.cuStreamDestroy_v2.unwrap()(stream) }.ok().unwrap();
                }
            }
            std::thread::scope(|scope| {
                scope.spawn(|| streams.drain());
                release.send(()).unwrap();
            });
            assert!(task.is_done.load(SeqCst));
            if is_capture {
                end(table, stream).ok().unwrap();
            }
        }
    }
}
