//! Streams, events and functions: how they are made, what they are given, and what is asked about
//! them.

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use sluice_cuda::*;

use crate::answer::DEFAULT_STREAM;
use crate::launches::{Launch, plain_attribute};
use crate::nodes::draw_operations;
use crate::program::{Program, Sent, bytes_of, ok};

pub(crate) const FUNCTIONS: crate::Calls = &[
    ("cuStreamCreate", |p| stream_lives(p, false)),
    ("cuStreamCreateWithPriority", |p| stream_lives(p, true)),
    ("cuStreamDestroy", |p| stream_lives(p, false)),
    ("cuStreamDestroy_v2", |p| stream_lives(p, true)),
    ("cuEventCreate", |p| event_lives(p, false)),
    ("cuEventDestroy", |p| event_lives(p, false)),
    ("cuEventDestroy_v2", |p| event_lives(p, true)),
    ("cuStreamGetAttribute", cuStreamGetAttribute),
    ("cuStreamSetAttribute", cuStreamSetAttribute),
    ("cuStreamBatchMemOp", |p| operations(p, false)),
    ("cuStreamBatchMemOp_v2", |p| operations(p, true)),
    ("cuCtxRecordEvent", cuCtxRecordEvent),
    ("cuCtxWaitEvent", cuCtxWaitEvent),
    ("cuCtxSetLimit", cuCtxSetLimit),
    ("cuFuncSetAttribute", cuFuncSetAttribute),
    ("cuOccupancyMaxActiveClusters", |p| clusters(p, true)),
    ("cuOccupancyMaxPotentialClusterSize", |p| clusters(p, false)),
    ("cuLaunchHostFunc", |p| host_function(p, Calls::Plain)),
    ("cuLaunchHostFunc_v2", |p| host_function(p, Calls::WithMode)),
    ("cuStreamAddCallback", |p| host_function(p, Calls::WithStream)),
];

impl Program {
    /// Records an event in some stream.
    pub(crate) fn record(&mut self, event: CUevent) {
        let (stream, number) = self.stream();
        let mut sent = Sent::new("cuEventRecord");
        sent.number(self.number("Event", event.0));
        sent.number(number);
        // SAFETY: live handles.
        let result = unsafe { self.cuda.cuEventRecord.expect("exported")(event, stream) };
        self.check(sent, false, result, &[]);
    }
}

/// A stream is made, introduced and destroyed.
fn stream_lives(p: &mut Program, newer: bool) {
    let (mut least, mut greatest, mut stream) = (0, 0, CUstream::NULL);
    let flags = p.within(0, 1) as u32;
    let mut sent = Sent::new("cuStreamCreateWithPriority");
    sent.value(flags);
    // SAFETY: places, here and below.
    let result = unsafe {
        if newer {
            ok(p.cuda.cuCtxGetStreamPriorityRange.expect("exported")(&mut least, &mut greatest));
            let priority = greatest + p.within(0, (least - greatest) as u64) as i32;
            sent.value(priority);
            p.cuda.cuStreamCreateWithPriority.expect("exported")(&mut stream, flags, priority)
        } else {
            sent.value(0);
            p.cuda.cuStreamCreate.expect("exported")(&mut stream, flags)
        }
    };
    p.check(sent, false, result, &[]);
    let number = p.introduce_stream(stream);
    let mut sent = Sent::new("cuStreamDestroy_v2");
    sent.number(number);
    // SAFETY: a live stream.
    let result = unsafe {
        match newer {
            true => p.cuda.cuStreamDestroy_v2.expect("exported")(stream),
            false => p.cuda.cuStreamDestroy.expect("exported")(stream),
        }
    };
    p.check(sent, false, result, &[]);
    p.forget("Stream", stream.0);
}

/// An event is made, introduced and destroyed.
fn event_lives(p: &mut Program, newer: bool) {
    let mut event = CUevent::NULL;
    let flags = p.within(0, 3) as u32;
    let mut sent = Sent::new("cuEventCreate");
    sent.value(flags);
    // SAFETY: a place.
    let result = unsafe { p.cuda.cuEventCreate.expect("exported")(&mut event, flags) };
    p.check(sent, false, result, &[]);
    let (stream, _) = p.stream();
    let number = p.introduce_event(event, stream);
    let mut sent = Sent::new("cuEventDestroy_v2");
    sent.number(number);
    // SAFETY: a live event.
    let result = unsafe {
        match newer {
            true => p.cuda.cuEventDestroy_v2.expect("exported")(event),
            false => p.cuda.cuEventDestroy.expect("exported")(event),
        }
    };
    p.check(sent, false, result, &[]);
    p.forget("Event", event.0);
}

fn cuStreamGetAttribute(p: &mut Program) {
    let ((stream, number), attribute) = (p.stream(), p.within(0, 18) as u32);
    let mut sent = Sent::new("cuStreamGetAttribute");
    sent.number(number);
    sent.value(attribute);
    let mut value: CUlaunchAttributeValue = p.value();
    let to = (&raw mut value).cast();
    // SAFETY: a live stream, and a place.
    let result = unsafe { p.cuda.cuStreamGetAttribute.expect("exported")(stream, attribute, to) };
    p.check(sent, true, result, &[bytes_of(&value)]);
}

fn cuStreamSetAttribute(p: &mut Program) {
    let (stream, number) = p.stream();
    let mut attribute = plain_attribute(p);
    if p.once_in(3) {
        // A window of memory: address, and number of bytes.
        let bytes = p.within(0, 5_000);
        let window = [p.range(bytes), bytes].map(u64::to_le_bytes).concat();
        let words = window.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four")));
        attribute.id = CUlaunchAttributeID::ACCESS_POLICY_WINDOW;
        attribute.value.words.iter_mut().zip(words).for_each(|(to, word)| *to = word);
    }
    let mut sent = Sent::new("cuStreamSetAttribute");
    sent.number(number);
    sent.value(attribute.id.0);
    sent.value(attribute.value);
    let value = (&raw const attribute.value).cast();
    // SAFETY: a live stream, and a value.
    let result = unsafe { p.cuda.cuStreamSetAttribute.expect("exported")(stream, attribute.id.0, value) };
    p.check(sent, true, result, &[]);
}

/// Each travels as if it had been called alone.
fn operations(p: &mut Program, newer: bool) {
    use CUstreamBatchMemOpType as Op;
    let (stream, number) = p.stream();
    let mut list = draw_operations(p);
    let (count, start) = (list.len() as u32, list.as_mut_ptr());
    // SAFETY: a live stream, and as many operations.
    let result = unsafe {
        match newer {
            true => p.cuda.cuStreamBatchMemOp_v2.expect("exported")(stream, count, start, 0),
            false => p.cuda.cuStreamBatchMemOp.expect("exported")(stream, count, start, 0),
        }
    };
    for operation in list {
        let [kind, address, value, flags, ..] = operation.words;
        let (name, is_small) = match CUstreamBatchMemOpType(kind as u32) {
            Op::WAIT_VALUE_32 => ("cuStreamWaitValue32_v2", true),
            Op::WRITE_VALUE_32 => ("cuStreamWriteValue32_v2", true),
            Op::WAIT_VALUE_64 => ("cuStreamWaitValue64_v2", false),
            _ => ("cuStreamWriteValue64_v2", false),
        };
        let mut sent = Sent::new(name);
        sent.number(number);
        sent.value(address);
        match is_small {
            true => sent.value(value as u32),
            false => sent.value(value),
        }
        sent.value(flags as u32);
        p.check(sent, false, result, &[]);
    }
}

fn cuCtxRecordEvent(p: &mut Program) {
    let mut sent = Sent::new("cuCtxRecordEvent");
    let event = CUevent(p.handle(&mut sent, "Event"));
    // SAFETY: live handles.
    let result = unsafe { p.cuda.cuCtxRecordEvent.expect("exported")(p.context, event) };
    p.check(sent, false, result, &[]);
}

fn cuCtxWaitEvent(p: &mut Program) {
    let mut sent = Sent::new("cuCtxWaitEvent");
    let event = CUevent(p.handle(&mut sent, "Event"));
    // SAFETY: live handles.
    let result = unsafe { p.cuda.cuCtxWaitEvent.expect("exported")(p.context, event) };
    p.check(sent, false, result, &[]);
}

fn cuCtxSetLimit(p: &mut Program) {
    let limit = CUlimit(p.within(0, 2) as u32);
    let value = p.within(1, 1 << 30) as usize;
    let mut sent = Sent::new("cuCtxSetLimit");
    sent.value(limit.0);
    sent.value(value);
    // SAFETY: numbers, and a place.
    let result = unsafe { p.cuda.cuCtxSetLimit.expect("exported")(limit, value) };
    p.check(sent, false, result, &[]);
    let mut said = 0;
    // SAFETY: as above.
    ok(unsafe { p.cuda.cuCtxGetLimit.expect("exported")(&mut said, limit) });
    assert_eq!(said, value, "the limit {}", limit.0);
}

fn cuFuncSetAttribute(p: &mut Program) {
    use CUfunction_attribute as A;
    let (handle, number) = p.pick("Function");
    let (attribute, value) = match p.within(0, 3) {
        // No less than launches use.
        0 => (A::MAX_DYNAMIC_SHARED_SIZE_BYTES, p.within(41_000, 200_000)),
        1 => (A::PREFERRED_SHARED_MEMORY_CARVEOUT, p.within(0, 100)),
        2 => (A::NON_PORTABLE_CLUSTER_SIZE_ALLOWED, p.within(0, 1)),
        _ => (A::CLUSTER_SCHEDULING_POLICY_PREFERENCE, p.within(0, 2)),
    };
    let value = value as i32;
    // SAFETY: a live function.
    let result =
        unsafe { p.cuda.cuFuncSetAttribute.expect("exported")(CUfunction(handle), attribute, value) };
    ok(result);
    // What is known already need not be said again.
    if p.attributes.insert((number, attribute.0), value) != Some(value) {
        let mut sent = Sent::new("cuFuncSetAttribute");
        sent.number(number);
        sent.value(attribute.0);
        sent.value(value);
        p.check(sent, false, result, &[]);
    }
}

fn clusters(p: &mut Program, active: bool) {
    let launch = Launch::draw(p, false);
    let mut list: Vec<CUlaunchAttribute> = (0..p.within(0, 4)).map(|_| plain_attribute(p)).collect();
    let config = launch.config(CUstream::NULL, &mut list);
    let name = if active { "cuOccupancyMaxActiveClusters" } else { "cuOccupancyMaxPotentialClusterSize" };
    let mut answer: i32 = p.value();
    // SAFETY: a live function, and a description that outlives the call.
    let result = unsafe {
        let call = match active {
            true => p.cuda.cuOccupancyMaxActiveClusters.expect("exported"),
            false => p.cuda.cuOccupancyMaxPotentialClusterSize.expect("exported"),
        };
        call(&mut answer, launch.kernel.function, &config)
    };
    let mut sent = Sent::new(name);
    sent.number(launch.kernel.number);
    sent.values(&launch.grid);
    sent.values(&launch.block);
    sent.value(launch.shared);
    sent.value(list.len() as u32);
    for attribute in &list {
        sent.value(attribute.id.0);
        sent.value(attribute.value);
    }
    p.check(sent, true, result, &[bytes_of(&answer)]);
}

// Functions of this process.

#[derive(Clone, Copy)]
enum Calls {
    Plain,
    WithMode,
    WithStream,
}

/// Which were called: stream, by its number, and how many in it before.
static CALLED: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// What a function is called with.
struct Data {
    stream: CUstream,
    number: u64,
    count: u64,
}

unsafe extern "C" fn called(data: *mut c_void) {
    // SAFETY: `host_function` made this box for one call.
    let data = unsafe { Box::from_raw(data.cast::<Data>()) };
    CALLED.lock().unwrap_or_else(PoisonError::into_inner).push((data.number, data.count));
}

unsafe extern "C" fn called_with_stream(stream: CUstream, status: CUresult, data: *mut c_void) {
    // SAFETY: as above; the box is only looked at.
    let expected = unsafe { &*data.cast::<Data>() }.stream;
    // What is wrong is missing from the list.
    if (stream, status) == (expected, CUresult::SUCCESS) {
        // SAFETY: as above.
        unsafe { called(data) };
    }
}

/// A function that is called in the stream's order, and once.
fn host_function(p: &mut Program, calls: Calls) {
    let (stream, number) = p.stream();
    // As it is now: a callback in the default stream gets null whatever that was called, and one in
    // the thread's own its special name.
    let named = match number {
        DEFAULT_STREAM => CUstream::NULL,
        _ if number == p.own_stream() => CUstream::PER_THREAD,
        _ => stream,
    };
    let count = p.host_calls.entry(number).or_default();
    let data = Data { stream: named, number, count: *count };
    *count += 1;
    let data: *mut c_void = Box::into_raw(Box::new(data)).cast();
    // SAFETY: a live stream, and a function for this box.
    ok(unsafe {
        match calls {
            Calls::Plain => p.cuda.cuLaunchHostFunc.expect("exported")(stream, Some(called), data),
            Calls::WithMode => {
                let mode = p.within(0, 1) as u32;
                p.cuda.cuLaunchHostFunc_v2.expect("exported")(stream, Some(called), data, mode)
            }
            Calls::WithStream => {
                p.cuda.cuStreamAddCallback.expect("exported")(stream, Some(called_with_stream), data, 0)
            }
        }
    });
    if p.once_in(4) {
        // SAFETY: a live stream.
        ok(unsafe { p.cuda.cuStreamSynchronize.expect("exported")(stream) });
        compare_calls(p, number);
    }
}

/// All functions of a stream that is done were called, in order.
fn compare_calls(p: &Program, stream: u64) {
    let called = CALLED.lock().unwrap_or_else(PoisonError::into_inner);
    let got: Vec<u64> = called.iter().filter(|(of, _)| *of == stream).map(|(_, count)| *count).collect();
    let expected: Vec<u64> = (0..p.host_calls[&stream]).collect();
    assert_eq!(got, expected, "functions of this process that were called in stream {stream:#x}");
}
