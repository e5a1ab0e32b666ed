//! Order between and within streams, events, captures and graphs.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use sluice_cuda::*;

mod common;
use common::*;

/// A word in pinned memory that a stream can wait for and the test can set.
struct Gate(*mut c_void);

impl Gate {
    fn new() -> Self {
        let mut word = null_mut();
        ok!(cuMemHostAlloc(&mut word, 4, 0));
        Self(word)
    }

    fn hold(&self, s: CUstream) {
        ok!(cuStreamWaitValue32_v2(s, self.0 as u64, 1, 1));
    }

    fn open(&self) {
        ok!(cuStreamWriteValue32_v2(stream(CU_STREAM_NON_BLOCKING), self.0 as u64, 1, 0));
    }
}

/// Notes the order in which streams come to its marks.
#[derive(Default)]
struct Log(Mutex<Vec<u32>>);

struct Mark<'a>(&'a Log, u32);

impl Log {
    fn entries(&self) -> Vec<u32> {
        self.0.lock().expect("no panic").clone()
    }
}

unsafe extern "C" fn note(mark: *mut c_void) {
    // SAFETY: the tests pass a mark that outlives the stream's work.
    let Mark(log, number) = unsafe { &*mark.cast::<Mark<'_>>() };
    log.0.lock().expect("no panic").push(*number);
}

fn mark(s: CUstream, mark: &Mark<'_>) {
    ok!(cuLaunchHostFunc(s, Some(note), (mark as *const Mark<'_>).cast_mut().cast()));
}

#[test]
fn a_stream_waits_for_an_event_of_another() {
    let _context = Context::new(0);
    let (log, gate, ready) = (Log::default(), Gate::new(), event());
    let marks = [Mark(&log, 0), Mark(&log, 1)];
    let (first, second) = (stream(CU_STREAM_NON_BLOCKING), stream(CU_STREAM_NON_BLOCKING));
    gate.hold(first);
    mark(first, &marks[0]);
    ok!(cuEventRecord(ready, first));
    ok!(cuStreamWaitEvent(second, ready, 0));
    mark(second, &marks[1]);
    assert_eq!(result!(cuStreamQuery(second)), CUresult::NOT_READY);
    assert_eq!(result!(cuEventQuery(ready)), CUresult::NOT_READY);
    gate.open();
    ok!(cuStreamSynchronize(second));
    ok!(cuEventQuery(ready));
    assert_eq!(log.entries(), [0, 1]);
}

/// Copies of a program's own memory are kept until their turn comes.
#[test]
fn whoever_waits_for_room_waits_until_the_queues_hold_less() {
    const BYTES: usize = 60_000;
    const COUNT: usize = 32;
    let _context = Context::new(0);
    let (gate, s) = (Gate::new(), stream(CU_STREAM_NON_BLOCKING));
    let (to, from) = (allocate(BYTES), vec![1_u8; BYTES]);
    gate.hold(s);
    for _ in 0..COUNT {
        ok!(cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), BYTES, s));
    }
    // Above what other tests queue meanwhile.
    sluice_softgpu::wait_for_room(1 << 30);
    let (say, waited) = channel();
    std::thread::spawn(move || {
        sluice_softgpu::wait_for_room(BYTES * (COUNT - 1));
        say.send(()).expect("the test goes on");
    });
    assert!(sluice_softgpu::has_room(1 << 30) && !sluice_softgpu::has_room(BYTES * (COUNT - 1)));
    // Nobody lets the stream go on before this is over, however long it takes.
    assert!(waited.recv_timeout(Duration::from_millis(100)).is_err(), "there was no room");
    gate.open();
    waited.recv().expect("there is room now");
    ok!(cuStreamSynchronize(s));
    // Everything that is done has been counted out again.
    sluice_softgpu::wait_for_room(BYTES * (COUNT - 1));
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_only() {
    let _context = Context::new(0);
    let (log, gate) = (Log::default(), Gate::new());
    let marks: Vec<_> = (0..4).map(|number| Mark(&log, number)).collect();
    let (blocking, free) = (stream(CU_STREAM_DEFAULT), stream(CU_STREAM_NON_BLOCKING));
    gate.hold(blocking);
    mark(blocking, &marks[0]);
    mark(CUstream::LEGACY, &marks[1]);
    mark(stream(CU_STREAM_DEFAULT), &marks[2]);
    mark(free, &marks[3]);
    ok!(cuStreamSynchronize(free));
    assert_eq!(log.entries(), [3]);
    gate.open();
    ok!(cuCtxSynchronize());
    assert_eq!(log.entries(), [3, 0, 1, 2]);
}

/// Returns once the test has done something that a stream does, or after a while.
unsafe extern "C" fn wait_for_word(heard: *mut c_void) {
    // SAFETY: the test passes a receiver that outlives the stream's work.
    let (heard, log) = unsafe { &*heard.cast::<(Receiver<()>, &Log)>() };
    let number = if heard.recv_timeout(Duration::from_secs(60)).is_ok() { 0 } else { 99 };
    log.0.lock().expect("no panic").push(number);
}

#[test]
fn other_streams_go_on_while_a_function_runs_and_so_do_their_functions() {
    let _context = Context::new(0);
    let (log, (say, heard)) = (Log::default(), channel());
    let (calls, other) = (stream(CU_STREAM_NON_BLOCKING), stream(CU_STREAM_NON_BLOCKING));
    let (waits, next) = ((heard, &log), Mark(&log, 1));
    ok!(cuLaunchHostFunc(calls, Some(wait_for_word), (&raw const waits).cast_mut().cast()));
    for value in 1..4 {
        let place = allocate(64);
        ok!(cuMemsetD8Async(place, value, 64, other));
        ok!(cuStreamSynchronize(other));
    }
    mark(other, &next);
    ok!(cuMemsetD8Async(allocate(64), 1, 64, calls));
    ok!(cuStreamSynchronize(other));
    assert_eq!(log.entries(), [1]);
    say.send(()).expect("the function waits");
    ok!(cuCtxSynchronize());
    assert_eq!(log.entries(), [1, 0]);
}

unsafe extern "C" fn nothing(_: *mut c_void) {}

/// A short function's thread may have its work back before the other one has woken to take it.
#[test]
fn a_device_has_few_threads_however_many_functions_run() {
    let _context = Context::new(0);
    let (calls, other, place) =
        (stream(CU_STREAM_NON_BLOCKING), stream(CU_STREAM_NON_BLOCKING), allocate(64));
    for _ in 0..300 {
        for _ in 0..20 {
            ok!(cuLaunchHostFunc(calls, Some(nothing), null_mut()));
            ok!(cuMemsetD8Async(place, 1, 64, other));
        }
        ok!(cuCtxSynchronize());
    }
    let threads = std::fs::read_dir("/proc/self/task").expect("this process has threads").flatten();
    let names = threads.map(|thread| std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default());
    // Two of this test's; functions of others may run meanwhile.
    assert!(names.filter(|name| name.trim() == "sluice-gpu0").count() < 12);
}

#[test]
fn events_measure_time_and_know_their_state() {
    let _context = Context::new(0);
    let (start, end) = (event(), event());
    let mut ms = -1.0;
    assert_eq!(result!(cuEventElapsedTime(&mut ms, start, end)), CUresult::INVALID_HANDLE, "never recorded");
    ok!(cuEventQuery(start));
    ok!(cuEventRecord(start, CUstream::NULL));
    ok!(cuEventRecord(end, CUstream::NULL));
    ok!(cuEventSynchronize(end));
    ok!(cuEventElapsedTime(&mut ms, start, end));
    assert!(ms >= 0.0);
    ok!(cuEventDestroy_v2(end));
    assert_eq!(result!(cuEventRecord(end, CUstream::NULL)), CUresult::INVALID_HANDLE);
    assert_eq!(
        result!(cuStreamSynchronize(CUstream(end.0))),
        CUresult::INVALID_HANDLE,
        "an event is no stream"
    );
}

#[test]
fn a_capture_with_a_fork_becomes_a_graph_that_runs_twice() {
    let _context = Context::new(0);
    let add = function(module(ADD), "add");
    let x = allocate(400);
    write(x, &[0u32; 100]);
    let add = |amount: u32, s| {
        let (mut x, mut n, mut amount) = (x, 100u32, amount);
        assert_eq!(
            launch(add, 4, 32, s, &mut [arg(&mut x), arg(&mut n), arg(&mut amount)]),
            CUresult::SUCCESS
        );
    };
    let (main, side, fork, join) =
        (stream(CU_STREAM_NON_BLOCKING), stream(CU_STREAM_NON_BLOCKING), event(), event());
    ok!(cuStreamBeginCapture_v2(main, CUstreamCaptureMode::GLOBAL));
    add(1, main);
    ok!(cuEventRecord(fork, main));
    ok!(cuStreamWaitEvent(side, fork, 0));
    add(10, side);
    ok!(cuEventRecord(join, side));
    assert_eq!(result!(cuStreamSynchronize(main)), CUresult::STREAM_CAPTURE_UNSUPPORTED);
    ok!(cuStreamWaitEvent(main, join, 0));
    let (mut graph, mut exec, mut count) = (CUgraph::NULL, CUgraphExec::NULL, 0);
    ok!(cuStreamEndCapture(main, &mut graph));
    assert_eq!(result!(cuEventSynchronize(join)), CUresult::CAPTURED_EVENT);
    ok!(cuGraphGetNodes(graph, null_mut(), &mut count));
    assert_eq!(count, 2);
    assert_eq!(read::<u32>(x, 1), [0], "nothing has run");
    let joined_late = [main, side].map(|s| result!(cuStreamWaitEvent(s, join, 0)));
    assert_eq!(joined_late, [CUresult::CAPTURED_EVENT; 2], "the capture has ended");
    ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    ok!(cuGraphDestroy(graph));
    ok!(cuGraphLaunch(exec, main));
    ok!(cuGraphLaunch(exec, main));
    ok!(cuStreamSynchronize(main));
    assert_eq!(read::<u32>(x, 100), [22; 100]);
    ok!(cuGraphExecDestroy(exec));
    assert_eq!(result!(cuGraphLaunch(exec, main)), CUresult::INVALID_VALUE);
}

#[test]
fn a_graph_that_is_launched_into_a_capture_records_its_events_later() {
    let _context = Context::new(0);
    let (main, recorded) = (stream(CU_STREAM_NON_BLOCKING), event());
    let (mut graph, mut exec, mut node) = (CUgraph::NULL, CUgraphExec::NULL, CUgraphNode::NULL);
    ok!(cuGraphCreate(&mut graph, 0));
    ok!(cuGraphAddEventRecordNode(&mut node, graph, std::ptr::null(), 0, recorded));
    ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    ok!(cuStreamBeginCapture_v2(main, CUstreamCaptureMode::RELAXED));
    ok!(cuGraphLaunch(exec, main));
    let (mut captured, mut outer) = (CUgraph::NULL, CUgraphExec::NULL);
    ok!(cuStreamEndCapture(main, &mut captured));
    ok!(cuEventSynchronize(recorded));
    ok!(cuGraphInstantiateWithFlags(&mut outer, captured, 0));
    let gate = Gate::new();
    gate.hold(main);
    ok!(cuGraphLaunch(outer, main));
    assert_eq!(result!(cuEventQuery(recorded)), CUresult::NOT_READY);
    gate.open();
    ok!(cuEventSynchronize(recorded));
}

#[test]
fn a_capture_that_is_not_joined_is_refused() {
    let _context = Context::new(0);
    let (log, fork) = (Log::default(), event());
    let nothing = Mark(&log, 0);
    let (main, side) = (stream(CU_STREAM_NON_BLOCKING), stream(CU_STREAM_NON_BLOCKING));
    ok!(cuStreamBeginCapture_v2(main, CUstreamCaptureMode::RELAXED));
    ok!(cuEventRecord(fork, main));
    ok!(cuStreamWaitEvent(side, fork, 0));
    mark(side, &nothing);
    let mut graph = CUgraph::NULL;
    assert_eq!(result!(cuStreamEndCapture(side, &mut graph)), CUresult::STREAM_CAPTURE_UNMATCHED);
    assert_eq!(result!(cuStreamEndCapture(main, &mut graph)), CUresult::STREAM_CAPTURE_UNJOINED);
    assert!(graph.is_null());
    ok!(cuStreamSynchronize(side));
    assert_eq!(result!(cuStreamEndCapture(main, &mut graph)), CUresult::ILLEGAL_STATE);
    assert_eq!(
        result!(cuStreamBeginCapture_v2(CUstream::LEGACY, CUstreamCaptureMode::GLOBAL)),
        CUresult::STREAM_CAPTURE_UNSUPPORTED
    );
}

#[test]
fn captures_that_have_ended_are_not_joined() {
    let _context = Context::new(0);
    let [main, side] = [stream(CU_STREAM_NON_BLOCKING), stream(CU_STREAM_NON_BLOCKING)];
    let (before, fork) = (event(), event());
    let mut graph = CUgraph::NULL;
    ok!(cuStreamBeginCapture_v2(main, CUstreamCaptureMode::RELAXED));
    ok!(cuEventRecord(before, main));
    ok!(cuStreamEndCapture(main, &mut graph));
    assert_eq!(result!(cuStreamWaitEvent(side, before, 0)), CUresult::CAPTURED_EVENT);

    // The stream that a capture began in goes away: what has joined it is worth nothing.
    ok!(cuStreamBeginCapture_v2(main, CUstreamCaptureMode::RELAXED));
    ok!(cuEventRecord(fork, main));
    ok!(cuStreamWaitEvent(side, fork, 0));
    ok!(cuStreamDestroy_v2(main));
    let mut status = CUstreamCaptureStatus::NONE;
    ok!(cuStreamIsCapturing(side, &mut status));
    assert_eq!(status, CUstreamCaptureStatus::INVALIDATED);
    assert_eq!(result!(cuEventQuery(fork)), CUresult::CAPTURED_EVENT);
    assert_eq!(result!(cuStreamEndCapture(side, &mut graph)), CUresult::STREAM_CAPTURE_UNMATCHED);
    assert_eq!(result!(cuStreamWaitEvent(side, fork, 0)), CUresult::CAPTURED_EVENT);
}

/// As on a card: in every mode, from every thread.
#[test]
fn waiting_for_a_whole_context_ends_its_captures() {
    let context = Context::new(0);
    let (main, other) = (stream(CU_STREAM_NON_BLOCKING), stream(CU_STREAM_NON_BLOCKING));
    let mut graph = CUgraph::NULL;
    ok!(cuStreamBeginCapture_v2(main, CUstreamCaptureMode::RELAXED));
    ok!(cuStreamSynchronize(other));
    ok!(cuStreamEndCapture(main, &mut graph));
    ok!(cuStreamBeginCapture_v2(main, CUstreamCaptureMode::RELAXED));
    let elsewhere = std::thread::scope(|scope| {
        let wait = || {
            ok!(cuCtxSetCurrent(context.0));
            result!(cuCtxSynchronize())
        };
        scope.spawn(wait).join().unwrap()
    });
    assert_eq!(elsewhere, CUresult::STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(result!(cuStreamEndCapture(main, &mut graph)), CUresult::STREAM_CAPTURE_INVALIDATED);
    ok!(cuCtxSynchronize());
}

#[test]
fn freed_memory_is_reused_in_its_stream_before_others() {
    let _context = Context::new(1);
    let gate = Gate::new();
    let (first, second) = (stream(CU_STREAM_NON_BLOCKING), stream(CU_STREAM_NON_BLOCKING));
    let allocate = |s| {
        let mut address = 0;
        ok!(cuMemAllocAsync(&mut address, 5000, s));
        address
    };
    gate.hold(first);
    let address = allocate(first);
    ok!(cuMemFreeAsync(address, first));
    assert_eq!(result!(cuMemFreeAsync(address, first)), CUresult::INVALID_VALUE);
    let elsewhere = allocate(second);
    assert_ne!(elsewhere, address, "the free has not run");
    assert_eq!(allocate(first), address, "the stream's order puts its use behind the free");
    gate.open();
    ok!(cuCtxSynchronize());
}
