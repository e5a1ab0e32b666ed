//! What stands before generated stubs: the rules of stream capture, which CUDA applies at once.

use sluice_cuda::*;

use crate::{capture, context, event, graph_memory};

pub(crate) fn cuEventRecord(event: CUevent, stream: CUstream) -> Result<(), CUresult> {
    event::recorded(event, capture::of(stream))
}

pub(crate) fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: u32) -> Result<(), CUresult> {
    // An external record in a capture becomes a node of the graph; the event stays outside.
    let is_external = flags & CU_EVENT_RECORD_EXTERNAL != 0;
    let capture = capture::of(stream);
    if is_external && capture.is_some() {
        return Ok(());
    }
    event::recorded(event, capture)
}

/// A stream that waits for an event of a capture joins the capture.
pub(crate) fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: u32) -> Result<(), CUresult> {
    if !capture::some() {
        return Ok(());
    }
    let own = capture::of(stream);
    let (is_recorded, others) = event::capture_of(event)?;
    match (own, others) {
        (Some(_), _) if flags & CU_EVENT_WAIT_EXTERNAL != 0 => Ok(()),
        (Some(own), Some(others)) if !std::sync::Arc::ptr_eq(&own, &others) => {
            own.invalidate();
            others.invalidate();
            Err(CUresult::STREAM_CAPTURE_MERGE)
        }
        (None, Some(others)) => capture::join(stream, &others),
        (Some(own), None) if is_recorded => {
            own.invalidate();
            Err(CUresult::STREAM_CAPTURE_ISOLATION)
        }
        _ => Ok(()),
    }
}

pub(crate) fn cuStreamSynchronize(stream: CUstream) -> Result<(), CUresult> {
    capture::check_not_capturing(stream)
}

pub(crate) fn cuStreamQuery(stream: CUstream) -> Result<(), CUresult> {
    capture::check_not_capturing(stream)
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

pub(crate) fn cuEventQuery(event: CUevent) -> Result<(), CUresult> {
    capture::check_safe()?;
    not_captured(event)
}

pub(crate) fn cuEventSynchronize(event: CUevent) -> Result<(), CUresult> {
    not_captured(event)
}

pub(crate) fn cuCtxSynchronize() -> Result<(), CUresult> {
    capture::check_context(context::current()?.handle)
}

pub(crate) fn cuGraphLaunch(graph: CUgraphExec, _: CUstream) -> Result<(), CUresult> {
    graph_memory::launching(graph)
}
