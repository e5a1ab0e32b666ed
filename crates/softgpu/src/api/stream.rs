//! Streams (CUDA Driver API: Stream Management, Stream Memory Operations).

use std::ffi::c_void;

use sluice_cuda::{
    CU_EVENT_WAIT_EXTERNAL, CUcontext, CUdevice, CUdeviceptr, CUevent, CUgraph, CUgraphEdgeData, CUgraphNode,
    CUgreenCtx, CUhostFn, CUlaunchAttributeID, CUlaunchAttributeValue, CUresult, CUstream, CUstreamCallback,
    CUstreamCaptureMode, CUstreamCaptureStatus,
};

use crate::base::status::{Result, Status, call, put, put_optional, require};
use crate::context::current;
use crate::context::stream::{Order, Stream};
use crate::graph::capture;
use crate::graph::{self, Graph};
use crate::memory::allocation;
use crate::submit::{self, target, target_unchecked};
use crate::work::engine;
use crate::work::event::{Recorded, event};
use crate::work::op::{Callback, Comparison, HostCall, Op, Value};

use std::cell::Cell;
use std::sync::Arc;

pub(crate) unsafe extern "C" fn cuStreamCreate(place: *mut CUstream, flags: u32) -> CUresult {
    // SAFETY: passed on.
    unsafe { cuStreamCreateWithPriority(place, flags, 0) }
}

pub(crate) unsafe extern "C" fn cuStreamCreateWithPriority(
    place: *mut CUstream,
    flags: u32,
    priority: i32,
) -> CUresult {
    call(|| {
        let context = current()?;
        require(place)?;
        let stream = submit::create(&context, flags, priority)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUstream(stream.handle)) }
    })
}

pub(crate) unsafe extern "C" fn cuStreamDestroy_v2(s: CUstream) -> CUresult {
    call(|| {
        crate::device::driver()?;
        submit::destroy(s)
    })
}

pub(crate) unsafe extern "C" fn cuStreamGetPriority(s: CUstream, place: *mut i32) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, target_unchecked(s)?.stream.priority()) })
}

pub(crate) unsafe extern "C" fn cuStreamGetFlags(s: CUstream, place: *mut u32) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, target_unchecked(s)?.stream.flags) })
}

pub(crate) unsafe extern "C" fn cuStreamGetId(s: CUstream, place: *mut u64) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, target_unchecked(s)?.stream.id) })
}

pub(crate) unsafe extern "C" fn cuStreamGetCtx(s: CUstream, place: *mut CUcontext) -> CUresult {
    call(|| {
        let context = target_unchecked(s)?.context;
        // The newer form of the question is for these.
        let is_default = [CUstream::NULL, CUstream::LEGACY, CUstream::PER_THREAD].contains(&s);
        if context.green.is_some() && !is_default {
            return Err(Status::NOT_SUPPORTED);
        }
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUcontext(context.handle)) }
    })
}

pub(crate) unsafe extern "C" fn cuStreamGetCtx_v2(
    s: CUstream,
    place: *mut CUcontext,
    green: *mut CUgreenCtx,
) -> CUresult {
    call(|| {
        let context = target_unchecked(s)?.context;
        // SAFETY: output arguments by contract.
        unsafe {
            put_optional(green, context.green.as_ref().map_or(CUgreenCtx::NULL, |it| CUgreenCtx(it.handle)))
        };
        // SAFETY: as above.
        unsafe { put(place, CUcontext(context.owner())) }
    })
}

pub(crate) unsafe extern "C" fn cuStreamGetDevice(s: CUstream, place: *mut CUdevice) -> CUresult {
    // SAFETY: an output argument by contract.
    call(|| unsafe { put(place, target_unchecked(s)?.stream.device as CUdevice) })
}

pub(crate) unsafe extern "C" fn cuStreamGetGreenCtx(s: CUstream, place: *mut CUgreenCtx) -> CUresult {
    call(|| {
        let context = target_unchecked(s)?.context;
        let green = context.green.as_ref().map_or(CUgreenCtx::NULL, |green| CUgreenCtx(green.handle));
        // SAFETY: an output argument by contract.
        unsafe { put(place, green) }
    })
}

pub(crate) unsafe extern "C" fn cuStreamGetAttribute(s: CUstream, attr: u32, place: *mut c_void) -> CUresult {
    call(|| {
        let value = target_unchecked(s)?.stream.attribute(CUlaunchAttributeID(attr))?;
        // SAFETY: an output argument by contract.
        unsafe { put(place.cast(), value) }
    })
}

pub(crate) unsafe extern "C" fn cuStreamSetAttribute(
    s: CUstream,
    attr: u32,
    value: *const c_void,
) -> CUresult {
    call(|| {
        let target = target(s)?;
        require(value)?;
        // SAFETY: an input argument by contract.
        let value = unsafe { value.cast::<CUlaunchAttributeValue>().read_unaligned() };
        target.stream.set_attribute(CUlaunchAttributeID(attr), value)
    })
}

pub(crate) unsafe extern "C" fn cuStreamCopyAttributes(to: CUstream, from: CUstream) -> CUresult {
    call(|| {
        let (to, from) = (target(to)?, target(from)?);
        if to.context.handle != from.context.handle {
            return Err(Status::INVALID_VALUE);
        }
        if !Arc::ptr_eq(&to.stream, &from.stream) {
            to.stream.copy_attributes(&from.stream);
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuStreamSynchronize(s: CUstream) -> CUresult {
    call(|| target(s)?.synchronize())
}

pub(crate) unsafe extern "C" fn cuStreamQuery(s: CUstream) -> CUresult {
    call(|| {
        let target = target(s)?;
        target.stream.check_not_capturing()?;
        let is_done = engine::is_done(&target.stream);
        target.context.check()?;
        if is_done { Ok(()) } else { Err(Status::NOT_READY) }
    })
}

pub(crate) unsafe extern "C" fn cuStreamWaitEvent(s: CUstream, handle: CUevent, flags: u32) -> CUresult {
    call(|| {
        let target = target(s)?;
        let event = event(handle)?;
        if flags & !CU_EVENT_WAIT_EXTERNAL != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let is_capturing = target.stream.capture().is_some();
        if is_capturing && flags & CU_EVENT_WAIT_EXTERNAL != 0 {
            return target.submit(Op::AwaitEvent(event));
        }
        match event.recorded() {
            Recorded::Never => Ok(()),
            Recorded::Captured(capture, nodes) => capture::wait_event(&target.stream, capture, &nodes),
            Recorded::Ticket(_) if is_capturing => Err(Status::STREAM_CAPTURE_ISOLATION),
            Recorded::Ticket(ticket) => target.submit(Op::Await(ticket)),
        }
    })
}

pub(crate) unsafe extern "C" fn cuLaunchHostFunc(
    s: CUstream,
    function: CUhostFn,
    data: *mut c_void,
) -> CUresult {
    call(|| {
        let target = target(s)?;
        if function.is_none() {
            return Err(Status::INVALID_VALUE);
        }
        target.submit(Op::HostCall(HostCall { function, data }))
    })
}

pub(crate) unsafe extern "C" fn cuStreamAddCallback(
    s: CUstream,
    function: CUstreamCallback,
    data: *mut c_void,
    flags: u32,
) -> CUresult {
    call(|| {
        let target = target(s)?;
        target.stream.check_not_capturing()?;
        if function.is_none() || flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        target.submit(Op::Callback(Callback { function, stream: s, data }))
    })
}

/// A word that a stream writes or waits for.
fn value(address: CUdeviceptr, value: u64, is_64_bit: bool) -> Result<Value> {
    let width = if is_64_bit { 8 } else { 4 };
    if !address.is_multiple_of(width) {
        return Err(Status::INVALID_VALUE);
    }
    crate::memory::copy::require_device(address)?;
    allocation::check(address, width)?;
    Ok(Value { address, value, is_64_bit })
}

/// How to compare, from `CUstreamWaitValue_flags`; its flush bit has nothing to do here.
fn comparison(flags: u32) -> Result<Comparison> {
    const FLUSH: u32 = 1 << 30;
    Ok(match flags & !FLUSH {
        0 => Comparison::GreaterOrEqual,
        1 => Comparison::Equal,
        2 => Comparison::And,
        3 => Comparison::Nor,
        _ => return Err(Status::INVALID_VALUE),
    })
}

fn wait_value(s: CUstream, address: CUdeviceptr, wanted: u64, is_64_bit: bool, flags: u32) -> CUresult {
    call(|| target(s)?.submit(Op::AwaitValue(value(address, wanted, is_64_bit)?, comparison(flags)?)))
}

fn write_value(s: CUstream, address: CUdeviceptr, written: u64, is_64_bit: bool, flags: u32) -> CUresult {
    call(|| {
        let target = target(s)?;
        // The only flag asks for no barrier before the write, which is a barrier less.
        if flags & !1 != 0 {
            return Err(Status::INVALID_VALUE);
        }
        target.submit(Op::WriteValue(value(address, written, is_64_bit)?))
    })
}

pub(crate) unsafe extern "C" fn cuStreamWaitValue32_v2(
    s: CUstream,
    to: CUdeviceptr,
    v: u32,
    flags: u32,
) -> CUresult {
    wait_value(s, to, v.into(), false, flags)
}

pub(crate) unsafe extern "C" fn cuStreamWaitValue64_v2(
    s: CUstream,
    to: CUdeviceptr,
    v: u64,
    flags: u32,
) -> CUresult {
    wait_value(s, to, v, true, flags)
}

pub(crate) unsafe extern "C" fn cuStreamWriteValue32_v2(
    s: CUstream,
    to: CUdeviceptr,
    v: u32,
    flags: u32,
) -> CUresult {
    write_value(s, to, v.into(), false, flags)
}

pub(crate) unsafe extern "C" fn cuStreamWriteValue64_v2(
    s: CUstream,
    to: CUdeviceptr,
    v: u64,
    flags: u32,
) -> CUresult {
    write_value(s, to, v, true, flags)
}

pub(crate) unsafe extern "C" fn cuStreamIsCapturing(
    s: CUstream,
    place: *mut CUstreamCaptureStatus,
) -> CUresult {
    call(|| {
        let target = target_unchecked(s)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, capture_of(&target.stream).0) }
    })
}

/// Status, id and graph of a stream's capture.
fn capture_of(stream: &Stream) -> (CUstreamCaptureStatus, u64, CUgraph) {
    match &*stream.capture() {
        None => (CUstreamCaptureStatus::NONE, 0, CUgraph::NULL),
        Some(part) => {
            let valid = capture::is_valid(part.capture);
            let status =
                if valid { CUstreamCaptureStatus::ACTIVE } else { CUstreamCaptureStatus::INVALIDATED };
            (status, part.capture.0, CUgraph(part.graph))
        }
    }
}

pub(crate) unsafe extern "C" fn cuStreamGetCaptureInfo(
    s: CUstream,
    status: *mut CUstreamCaptureStatus,
    id: *mut u64,
) -> CUresult {
    call(|| {
        let (state, number, _) = capture_of(&target_unchecked(s)?.stream);
        // SAFETY: output arguments by contract.
        unsafe { put_optional(id, number) };
        // SAFETY: as above.
        unsafe { put(status, state) }
    })
}

pub(crate) unsafe extern "C" fn cuStreamGetCaptureInfo_v2(
    s: CUstream,
    status: *mut CUstreamCaptureStatus,
    id: *mut u64,
    graph: *mut CUgraph,
    dependencies: *mut *const CUgraphNode,
    count: *mut usize,
) -> CUresult {
    thread_local! {
        /// What the last answer of this thread points to; valid until its next call, as CUDA says.
        static NODES: std::cell::RefCell<Vec<CUgraphNode>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    call(|| {
        let target = target_unchecked(s)?;
        let (state, number, handle) = capture_of(&target.stream);
        let last = target.stream.capture().as_ref().map(|part| part.last.clone()).unwrap_or_default();
        NODES.with_borrow_mut(|nodes| {
            *nodes = last.into_iter().map(|node| CUgraphNode(node.0)).collect();
            // SAFETY: output arguments by contract.
            unsafe {
                put_optional(id, number);
                put_optional(graph, handle);
                put_optional(dependencies, nodes.as_ptr());
                put_optional(count, nodes.len());
            }
        });
        // SAFETY: an output argument by contract.
        unsafe { put(status, state) }
    })
}

pub(crate) unsafe extern "C" fn cuStreamGetCaptureInfo_v3(
    s: CUstream,
    status: *mut CUstreamCaptureStatus,
    id: *mut u64,
    graph: *mut CUgraph,
    dependencies: *mut *const CUgraphNode,
    edges: *mut *const CUgraphEdgeData,
    count: *mut usize,
) -> CUresult {
    // All edges are plain, for which a null list stands.
    // SAFETY: output arguments by contract; the rest is passed on.
    unsafe {
        put_optional(edges, std::ptr::null());
        cuStreamGetCaptureInfo_v2(s, status, id, graph, dependencies, count)
    }
}

pub(crate) unsafe extern "C" fn cuStreamBeginCapture_v2(s: CUstream, mode: CUstreamCaptureMode) -> CUresult {
    call(|| {
        let target = target(s)?;
        if target.stream.order == Order::Legacy {
            return Err(Status::STREAM_CAPTURE_UNSUPPORTED);
        }
        capture::begin(&target.stream, mode, None)
    })
}

pub(crate) unsafe extern "C" fn cuStreamBeginCaptureToGraph(
    s: CUstream,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    _edges: *const CUgraphEdgeData,
    count: usize,
    mode: CUstreamCaptureMode,
) -> CUresult {
    call(|| {
        let target = target(s)?;
        if target.stream.order == Order::Legacy {
            return Err(Status::STREAM_CAPTURE_UNSUPPORTED);
        }
        let graph = Graph::get(graph)?;
        // SAFETY: an array of `count` elements by contract.
        let last = unsafe { super::graph::node_list(dependencies, count) }?;
        if !last.iter().all(|node| graph.body().nodes.contains_key(node)) {
            return Err(Status::INVALID_VALUE);
        }
        capture::begin(&target.stream, mode, Some((graph, last)))
    })
}

pub(crate) unsafe extern "C" fn cuStreamUpdateCaptureDependencies(
    s: CUstream,
    dependencies: *mut CUgraphNode,
    count: usize,
    flags: u32,
) -> CUresult {
    /// Adds to the dependencies; 1 replaces them.
    const ADD: u32 = 0;
    call(|| {
        let target = target(s)?;
        // SAFETY: an array of `count` elements by contract.
        let nodes = unsafe { super::graph::node_list(dependencies, count) }?;
        if flags > 1 && target.stream.capture().is_some() {
            return Err(Status::INVALID_VALUE);
        }
        capture::depend_on(&target.stream, nodes, flags == ADD)
    })
}

pub(crate) unsafe extern "C" fn cuStreamUpdateCaptureDependencies_v2(
    s: CUstream,
    dependencies: *mut CUgraphNode,
    _edges: *const CUgraphEdgeData,
    count: usize,
    flags: u32,
) -> CUresult {
    // SAFETY: passed on.
    unsafe { cuStreamUpdateCaptureDependencies(s, dependencies, count, flags) }
}

pub(crate) unsafe extern "C" fn cuStreamEndCapture(s: CUstream, place: *mut CUgraph) -> CUresult {
    call(|| {
        let target = target(s)?;
        require(place)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUgraph::NULL) }?;
        let graph = capture::end(&target.stream)?;
        // SAFETY: as above.
        unsafe { put(place, CUgraph(graph.handle)) }
    })
}

thread_local! {
    /// What this thread lets others capture; only reported, since no call here is unsafe in a
    /// capture.
    static CAPTURE_MODE: Cell<CUstreamCaptureMode> = const { Cell::new(CUstreamCaptureMode::GLOBAL) };
}

pub(crate) unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(
    place: *mut CUstreamCaptureMode,
) -> CUresult {
    call(|| {
        require(place)?;
        // SAFETY: an argument read and written by contract.
        let new = unsafe { place.read_unaligned() };
        if new > CUstreamCaptureMode::RELAXED {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: as above.
        unsafe { put(place, CAPTURE_MODE.replace(new)) }
    })
}

pub(crate) unsafe extern "C" fn cuGraphUpload(exec: sluice_cuda::CUgraphExec, s: CUstream) -> CUresult {
    call(|| {
        target(s)?;
        // There is nothing to bring anywhere before a launch.
        graph::Exec::get(exec).map(drop)
    })
}
