//! What stands before generated stubs: the rules of stream capture, which CUDA applies at once, and
//! work that is done here instead. A guard breaks off where nothing is left to do.

use std::ops::ControlFlow;
use std::sync::Arc;

use sluice_cuda::*;
use sluice_wire::commands;

use crate::context;
use crate::copy::{between_nodes, deferred};
use crate::graph::allocation;
use crate::host_memory::{self, blocks};
use crate::lifecycle::green;
use crate::session::issue::Issue;
use crate::session::{self, other_node};
use crate::stream::{self, capture, event};

/// Whether there is anything left to do.
type Guarded = Result<ControlFlow<()>, CUresult>;

const GO_ON: Guarded = Ok(ControlFlow::Continue(()));

/// A texture whose memory is not aligned has an offset, which the program has to accept.
pub(crate) fn cuTexRefSetAddress_v2(
    offset: *mut usize,
    _: CUtexref,
    address: CUdeviceptr,
    _: usize,
) -> Guarded {
    let device = session::device(context::current()?.device)?;
    let align = u64::try_from(device.attribute(CUdevice_attribute::TEXTURE_ALIGNMENT)?).unwrap_or(0);
    if offset.is_null() && !address.is_multiple_of(align.max(1)) {
        return Err(CUresult::INVALID_VALUE);
    }
    GO_ON
}

/// The program writes the value when it likes, and before it what copies behind the wait are to
/// read.
macro_rules! wait_for_values {
    ($($name:ident: $value:ty),*) => {$(
        pub(crate) fn $name(stream: CUstream, addr: CUdeviceptr, value: $value, flags: u32) -> Guarded {
            let session = session::enter()?;
            session.queue(&commands::$name {
                stream: session.find(stream)?,
                addr: session.range(addr, size_of::<$value>() as u64)?,
                value,
                flags,
            })?;
            deferred::awaits_the_program(stream)?;
            Ok(ControlFlow::Break(()))
        }
    )*};
}
wait_for_values! {
    cuStreamWaitValue32: u32, cuStreamWaitValue32_v2: u32, cuStreamWaitValue64: u64, cuStreamWaitValue64_v2: u64
}

pub(crate) fn cuEventRecord(event: CUevent, stream: CUstream) -> Guarded {
    let capture = capture::of(stream);
    if capture.is_some() {
        event::recorded(event, capture)?;
        return GO_ON;
    }
    event::record(event, stream, |session| {
        let (hEvent, hStream) = (session.find(event)?, session.find(stream)?);
        Ok(commands::cuEventRecord { hEvent, hStream })
    })?;
    Ok(ControlFlow::Break(()))
}

pub(crate) fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: u32) -> Guarded {
    // An external record in a capture becomes a node of the graph; the event stays outside.
    let is_external = flags & CU_EVENT_RECORD_EXTERNAL != 0;
    let capture = capture::of(stream);
    if is_external && capture.is_some() {
        event::recorded_by_graph();
        return GO_ON;
    }
    event::recorded(event, capture)?;
    GO_ON
}

/// The work that a stream is given next waits for an event of another session.
fn stream_waits(stream: CUstream, event: CUevent) -> Result<(), CUresult> {
    let (own, (_, others)) = (capture::of(stream), event::capture_of(event)?);
    if own.is_some() || others.is_some() {
        own.iter().chain(&others).for_each(|capture| capture.invalidate());
        return Err(other_node::not_captured());
    }
    session::get()?.find(stream)?;
    other_node::wait(event)
}

/// A stream that waits for an event of a capture joins the capture.
pub(crate) fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: u32) -> Guarded {
    if other_node::is_elsewhere(session::get()?, event.0) {
        stream_waits(stream, event)?;
        return Ok(ControlFlow::Break(()));
    }
    if !capture::some() {
        return GO_ON;
    }
    let own = capture::of(stream);
    let (is_recorded, others) = event::capture_of(event)?;
    match (own, others) {
        (Some(_), _) if flags & CU_EVENT_WAIT_EXTERNAL != 0 => GO_ON,
        (Some(own), Some(others)) if !Arc::ptr_eq(&own, &others) => {
            own.invalidate();
            others.invalidate();
            Err(CUresult::STREAM_CAPTURE_MERGE)
        }
        (None, Some(others)) => {
            capture::join(stream, &others)?;
            GO_ON
        }
        (Some(own), None) if is_recorded => {
            own.invalidate();
            Err(CUresult::STREAM_CAPTURE_ISOLATION)
        }
        _ => GO_ON,
    }
}

pub(crate) fn cuMemcpyDtoDAsync_v2(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Guarded {
    if !other_node::reaches(dst) && !other_node::reaches(src) {
        return GO_ON;
    }
    if session::of_address(dst).and(session::of_address(src)).is_none() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: neither is on this machine.
    unsafe { between_nodes::copy(dst, src, bytes, stream)? };
    Ok(ControlFlow::Break(()))
}

pub(crate) fn cuStreamCopyAttributes(dst: CUstream, src: CUstream) -> Guarded {
    stream::attributes_copied(dst, src)?;
    GO_ON
}

pub(crate) fn cuStreamSynchronize(stream: CUstream) -> Guarded {
    capture::check_not_capturing(stream)?;
    stream::synchronize(stream)?;
    Ok(ControlFlow::Break(()))
}

/// A stream has nothing to do where all work of all streams was waited for.
pub(crate) fn cuStreamQuery(stream: CUstream) -> Guarded {
    capture::check_not_capturing(stream)?;
    let session = session::get()?;
    session.find(stream)?;
    if session.devices.iter().any(|device| device.work.is_pending()) {
        return GO_ON;
    }
    session.link.check()?;
    Ok(ControlFlow::Break(()))
}

/// An event that was last recorded in a capture stands for nothing that could be done.
fn not_captured(event: CUevent) -> Result<(), CUresult> {
    let (_, capture) = event::last_capture(event)?;
    match capture {
        None => Ok(()),
        Some(capture) => {
            capture.invalidate();
            Err(CUresult::CAPTURED_EVENT)
        }
    }
}

pub(crate) fn cuEventQuery(event: CUevent) -> Guarded {
    capture::check_safe()?;
    not_captured(event)?;
    event::unless_done(event, |session| Ok(commands::cuEventQuery { hEvent: session.find(event)? }))?;
    Ok(ControlFlow::Break(()))
}

pub(crate) fn cuEventSynchronize(event: CUevent) -> Guarded {
    not_captured(event)?;
    event::unless_done(event, |session| Ok(commands::cuEventSynchronize { hEvent: session.find(event)? }))?;
    Ok(ControlFlow::Break(()))
}

pub(crate) fn cuGraphEventRecordNodeSetEvent(_: CUgraphNode, _: CUevent) -> Guarded {
    event::recorded_by_graph();
    GO_ON
}

pub(crate) fn cuGraphExecEventRecordNodeSetEvent(_: CUgraphExec, _: CUgraphNode, _: CUevent) -> Guarded {
    event::recorded_by_graph();
    GO_ON
}

pub(crate) fn cuGreenCtxRecordEvent(green: CUgreenCtx, event: CUevent) -> Guarded {
    green::before_record(green, event)?;
    GO_ON
}

pub(crate) fn cuGreenCtxWaitEvent(green: CUgreenCtx, event: CUevent) -> Guarded {
    green::before_wait(green, event)?;
    if other_node::is_elsewhere(session::get()?, event.0) {
        other_node::wait(event)?;
        return Ok(ControlFlow::Break(()));
    }
    GO_ON
}

pub(crate) fn cuCtxSynchronize() -> Guarded {
    capture::check_context(context::current()?.handle)?;
    GO_ON
}

pub(crate) fn cuGraphLaunch(graph: CUgraphExec, stream: CUstream) -> Guarded {
    if capture::of(stream).is_none() {
        host_memory::graph_launches(session::get()?)?;
    }
    allocation::launching(graph)?;
    GO_ON
}

/// Fills memory that is the program's and came from CUDA: any of it is a device address to CUDA,
/// too. What a device has at that address is filled there.
fn fill_here<T: Copy + Into<u32>>(address: CUdeviceptr, value: T, count: usize, stream: CUstream) -> Guarded {
    check_aligned(address, 0, 1, align_of::<T>())?;
    let bytes = count.checked_mul(size_of::<T>()).ok_or(CUresult::INVALID_VALUE)?;
    if bytes == 0 || session::get()?.holds(address, bytes as u64) {
        return GO_ON;
    }
    if !blocks::is_pinned(address, bytes as u64) {
        return fill_captured(address, value, count, stream);
    }
    capture::check_not_capturing(stream)?;
    let session = session::enter()?;
    session.call(&commands::cuStreamSynchronize { hStream: session.find(stream)? }, |()| ())?;
    // SAFETY: pinned memory of this process, which the program gives to be written in the stream's
    // order.
    unsafe { std::slice::from_raw_parts_mut(address as *mut T, count) }.fill(value);
    Ok(ControlFlow::Break(()))
}

/// Elements of 2 and 4 bytes are filled at multiples of that, in each row (CUDA Driver API,
/// `cuMemsetD2D32`).
pub(crate) fn check_aligned(
    address: CUdeviceptr,
    pitch: usize,
    rows: usize,
    element: usize,
) -> Result<(), CUresult> {
    let is_aligned = address.is_multiple_of(element as u64) && (rows < 2 || pitch.is_multiple_of(element));
    if is_aligned { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
}

/// A capture takes any address: cuDNN captures work on memory that is not there to look at the
/// graph, and never launches it.
fn fill_captured<T: Into<u32>>(address: u64, value: T, count: usize, stream: CUstream) -> Guarded {
    if !capture::of(stream).is_some_and(|capture| capture.is_valid()) {
        return GO_ON;
    }
    let session = session::enter()?;
    let (hStream, element, count) = (session.find(stream)?, size_of::<T>() as u32, count as u64);
    let fill = commands::FillCaptured { hStream, address, value: value.into(), element, count };
    session.call(&fill, |()| ())?;
    Ok(ControlFlow::Break(()))
}

pub(crate) fn cuMemsetD8Async(address: CUdeviceptr, value: u8, count: usize, stream: CUstream) -> Guarded {
    fill_here(address, value, count, stream)
}

pub(crate) fn cuMemsetD16Async(address: CUdeviceptr, value: u16, count: usize, stream: CUstream) -> Guarded {
    fill_here(address, value, count, stream)
}

pub(crate) fn cuMemsetD32Async(address: CUdeviceptr, value: u32, count: usize, stream: CUstream) -> Guarded {
    fill_here(address, value, count, stream)
}

pub(crate) fn cuMemsetD2D16Async(
    address: CUdeviceptr,
    pitch: usize,
    _: u16,
    _: usize,
    rows: usize,
    _: CUstream,
) -> Guarded {
    check_aligned(address, pitch, rows, 2)?;
    GO_ON
}

pub(crate) fn cuMemsetD2D32Async(
    address: CUdeviceptr,
    pitch: usize,
    _: u32,
    _: usize,
    rows: usize,
    _: CUstream,
) -> Guarded {
    check_aligned(address, pitch, rows, 4)?;
    GO_ON
}
