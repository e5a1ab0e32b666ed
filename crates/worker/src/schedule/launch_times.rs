//! How long kernels run on a driver that does not say: an event before each launch and one after
//! it.
//!
//! A kernel has begun once the event before it has been reached, whatever its stream waited for
//! until then, and has ended once the one after it has. A graph counts as one kernel. Only sessions
//! with a limit on kernels pay for the events.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_cuda::{CUevent, CUresult, CUstream, CUstreamCaptureStatus, DriverTable, Fn};
use sluice_wire::{Op, StreamId, Target, WireError, commands, decode};

/// `CU_EVENT_DISABLE_TIMING`.
const WITHOUT_TIMING: u32 = 2;

/// The stream of a launch; `None` for what is none.
pub(crate) fn stream_of(op: Op, payload: &[u8]) -> Result<Option<StreamId>, WireError> {
    Ok(Some(match op.target() {
        Some(Target::Driver(Fn::cuLaunchKernel)) => decode::<commands::cuLaunchKernel<'_>>(payload)?.hStream,
        Some(Target::Driver(Fn::cuLaunchKernelEx)) => {
            decode::<commands::cuLaunchKernelEx<'_>>(payload)?.hStream
        }
        Some(Target::Driver(Fn::cuGraphLaunch)) => decode::<commands::cuGraphLaunch>(payload)?.hStream,
        _ => return Ok(None),
    }))
}

/// The launches of one device that have not ended.
pub(crate) struct LaunchTimes {
    table: DriverTable,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    streams: HashMap<CUstream, VecDeque<Launch>>,
    /// Events for the next launches.
    free: Vec<CUevent>,
}

struct Launch {
    before: CUevent,
    after: CUevent,
    /// When it was first seen to have begun.
    began: Option<Instant>,
}

impl LaunchTimes {
    pub(crate) fn new(table: DriverTable) -> LaunchTimes {
        LaunchTimes { table, state: Mutex::default() }
    }

    /// Makes a launch between two events. One that cannot be timed is made all the same. The
    /// device's context is current.
    pub(crate) fn time<E>(&self, stream: CUstream, launch: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let before = if self.captures(stream) { None } else { self.record(stream) };
        launch()?;
        let Some(before) = before else { return Ok(()) };
        match self.record(stream) {
            Some(after) => {
                let launch = Launch { before, after, began: None };
                self.lock().streams.entry(stream).or_default().push_back(launch);
            }
            None => self.lock().free.push(before),
        }
        Ok(())
    }

    /// For how long the longest running kernel has been seen to run. The device's context is
    /// current.
    pub(crate) fn longest(&self, now: Instant) -> Option<Duration> {
        let mut state = self.lock();
        let State { streams, free } = &mut *state;
        let mut longest = None;
        streams.retain(|_, launches| {
            while let Some(launch) = launches.front_mut() {
                if self.is_over(launch.after) {
                    free.extend([launch.before, launch.after]);
                    launches.pop_front();
                    continue;
                }
                if launch.began.is_some() || self.is_over(launch.before) {
                    let began = *launch.began.get_or_insert(now);
                    longest = longest.max(Some(now - began));
                }
                break;
            }
            !launches.is_empty()
        });
        longest
    }

    /// Reached, or never to be: a failed context ends everything.
    fn is_over(&self, event: CUevent) -> bool {
        let Some(query) = self.table.cuEventQuery else { return true };
        // SAFETY: the event is ours and is never destroyed.
        let result = unsafe { query(event) };
        result != CUresult::NOT_READY
    }

    /// Events of a stream capture would become part of the graph.
    fn captures(&self, stream: CUstream) -> bool {
        let Some(ask) = self.table.cuStreamIsCapturing else { return false };
        let mut status = CUstreamCaptureStatus::NONE;
        // SAFETY: the stream is live, and the driver writes to a local.
        let result = unsafe { ask(stream, &mut status) };
        !result.is_success() || status != CUstreamCaptureStatus::NONE
    }

    /// Called without the lock: a full stream blocks.
    fn record(&self, stream: CUstream) -> Option<CUevent> {
        let (create, record) = (self.table.cuEventCreate?, self.table.cuEventRecord?);
        let free = self.lock().free.pop();
        let event = match free {
            Some(event) => event,
            None => {
                let mut event = CUevent::NULL;
                // SAFETY: the driver writes one handle to a local.
                unsafe { create(&mut event, WITHOUT_TIMING) }.ok().ok()?;
                event
            }
        };
        // SAFETY: the event is ours; the stream is live.
        if unsafe { record(event, stream) }.is_success() {
            return Some(event);
        }
        self.lock().free.push(event);
        None
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use super::*;

    /// Events are numbers in the order of their recording; those up to this one have been reached.
    static REACHED: AtomicU64 = AtomicU64::new(0);
    static CREATED: AtomicU64 = AtomicU64::new(0);

    unsafe extern "C" fn create(event: *mut CUevent, _flags: u32) -> CUresult {
        // SAFETY: the caller gives a place.
        unsafe { *event = CUevent(CREATED.fetch_add(1, SeqCst) as usize + 1) };
        CUresult::SUCCESS
    }

    unsafe extern "C" fn record(_event: CUevent, _stream: CUstream) -> CUresult {
        CUresult::SUCCESS
    }

    unsafe extern "C" fn query(event: CUevent) -> CUresult {
        if event.0 as u64 <= REACHED.load(SeqCst) { CUresult::SUCCESS } else { CUresult::NOT_READY }
    }

    #[test]
    fn a_kernel_runs_from_the_event_before_it_to_the_one_after_it() {
        let table = DriverTable {
            cuEventCreate: Some(create),
            cuEventRecord: Some(record),
            cuEventQuery: Some(query),
            ..DriverTable::EMPTY
        };
        let (times, start) = (LaunchTimes::new(table), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        for stream in [7, 7, 8] {
            times.time::<()>(CUstream(stream), || Ok(())).unwrap();
        }
        assert_eq!(times.time(CUstream(9), || Err("refused")), Err("refused"));
        assert_eq!(times.longest(after(1)), None, "events 1 to 6, none reached");
        REACHED.store(1, SeqCst);
        assert_eq!(times.longest(after(2)), Some(Duration::ZERO));
        assert_eq!(times.longest(after(5)), Some(Duration::from_secs(3)));
        REACHED.store(3, SeqCst);
        assert_eq!(times.longest(after(6)), Some(Duration::ZERO), "the second has begun, the third waits");
        REACHED.store(5, SeqCst);
        assert_eq!(times.longest(after(8)), Some(Duration::ZERO), "the third has begun");
        REACHED.store(6, SeqCst);
        assert_eq!(times.longest(after(9)), None);
    }
}
