//! Stream capture: work submitted to a capturing stream becomes nodes of a graph
//! (CUDA Driver API, Stream Management, `cuStreamBeginCapture`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::CUstreamCaptureMode;

use crate::base::status::{Result, Status};
use crate::context::stream::Stream;
use crate::graph::{Body, GRAPHS, Graph, Node, NodeId};
use crate::work::event::{Event, Recorded};
use crate::work::op::Op;

/// One capture, from `cuStreamBeginCapture` to `cuStreamEndCapture`; other streams join it through
/// events.
pub(crate) struct Capture {
    /// Unique in the process and never used again (`cuStreamGetCaptureInfo`).
    pub(crate) id: u64,
    /// The stream that it began in, by id; it ends there.
    pub(crate) origin: u64,
    pub(crate) graph: Arc<Graph>,
    /// Whether the graph is the capture's own, and goes with one that fails.
    is_own: bool,
    /// An error made the graph useless; ending the capture says so.
    invalid: AtomicBool,
    /// No stream joins it any more: its graph is the program's, or gone.
    has_ended: AtomicBool,
    /// Streams that joined and have not been joined back, by id, with the nodes that are last in
    /// them.
    forks: Mutex<Vec<(u64, Vec<NodeId>)>>,
}

/// A stream's part in a capture.
#[derive(Clone)]
pub(crate) struct StreamCapture {
    pub(crate) capture: Arc<Capture>,
    stream: u64,
    /// The nodes that whatever comes next depends on.
    pub(crate) last: Vec<NodeId>,
}

impl Capture {
    fn body(&self) -> MutexGuard<'_, Body> {
        self.graph.body()
    }

    fn forks(&self) -> MutexGuard<'_, Vec<(u64, Vec<NodeId>)>> {
        self.forks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn invalidate(&self) {
        self.invalid.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_valid(&self) -> bool {
        !self.invalid.load(Ordering::Relaxed)
    }

    /// The graph is worth nothing.
    fn discard(&self) {
        if self.is_own {
            GRAPHS.remove(self.graph.handle);
        }
    }

    /// Whether every forked stream's last nodes are behind `last`.
    fn is_joined(&self, last: &[NodeId]) -> bool {
        let behind = self.body().ancestors(last);
        self.forks().iter().all(|(_, nodes)| nodes.iter().all(|node| behind.contains(node)))
    }
}

impl StreamCapture {
    /// Adds work to the graph, behind what the stream did before.
    pub(crate) fn record(&mut self, op: Op) -> Result<()> {
        if !self.capture.is_valid() {
            return Err(Status::STREAM_CAPTURE_INVALIDATED);
        }
        let node = self.capture.body().add(Node::new(op, self.last.clone()));
        self.set_last(vec![node]);
        Ok(())
    }

    pub(crate) fn set_last(&mut self, last: Vec<NodeId>) {
        if self.stream != self.capture.origin {
            let mut forks = self.capture.forks();
            match forks.iter_mut().find(|(stream, _)| *stream == self.stream) {
                Some((_, nodes)) => nodes.clone_from(&last),
                None => forks.push((self.stream, last.clone())),
            }
        }
        self.last = last;
    }

    /// Makes the stream wait for more nodes.
    pub(crate) fn wait_for(&mut self, nodes: &[NodeId]) {
        let mut last = self.last.clone();
        last.extend(nodes.iter().filter(|node| !self.last.contains(node)));
        self.set_last(last);
    }
}

/// Begins a capture in `stream`, into a graph of the program's behind these nodes or into a new
/// one.
pub(crate) fn begin(
    stream: &Stream,
    mode: CUstreamCaptureMode,
    into: Option<(Arc<Graph>, Vec<NodeId>)>,
) -> Result<()> {
    static IDS: AtomicU64 = AtomicU64::new(1);
    if mode.0 > CUstreamCaptureMode::RELAXED.0 {
        return Err(Status::INVALID_VALUE);
    }
    let mut place = stream.capture();
    if place.is_some() {
        return Err(Status::ILLEGAL_STATE);
    }
    let id = IDS.fetch_add(1, Ordering::Relaxed);
    let is_own = into.is_none();
    let (graph, last) = into.unwrap_or_else(|| (Graph::create(), Vec::new()));
    let (invalid, has_ended, forks) = (AtomicBool::new(false), AtomicBool::new(false), Mutex::default());
    let capture = Arc::new(Capture { id, origin: stream.id, graph, is_own, invalid, has_ended, forks });
    *place = Some(StreamCapture { capture, stream: stream.id, last });
    Ok(())
}

/// Ends the capture that began in `stream`.
pub(crate) fn end(stream: &Stream) -> Result<Arc<Graph>> {
    let mut place = stream.capture();
    let capture = place.as_ref().ok_or(Status::ILLEGAL_STATE)?;
    if capture.capture.origin != stream.id {
        return Err(Status::STREAM_CAPTURE_UNMATCHED);
    }
    let ended = place.take().ok_or(Status::ILLEGAL_STATE)?;
    drop(place);
    ended.capture.has_ended.store(true, Ordering::Relaxed);
    leave_all(&ended.capture);
    if !ended.capture.is_valid() {
        ended.capture.discard();
        return Err(Status::STREAM_CAPTURE_INVALIDATED);
    }
    if !ended.capture.is_joined(&ended.last) {
        ended.capture.discard();
        return Err(Status::STREAM_CAPTURE_UNJOINED);
    }
    Ok(Arc::clone(&ended.capture.graph))
}

/// A call waits for all of a context, of which captures can be no part: those under way there are
/// worth nothing any more. Whether there are any.
pub(crate) fn interrupt(context: usize) -> bool {
    let mut any = false;
    for stream in crate::context::stream::STREAMS.all() {
        if stream.context == context
            && let Some(part) = stream.capture().as_ref()
        {
            part.capture.invalidate();
            any = true;
        }
    }
    any
}

/// The stream goes away: a capture that it takes part in is worth nothing any more.
pub(crate) fn abandon(stream: &Stream) {
    if let Some(capture) = stream.capture().take()
        && capture.capture.origin == stream.id
    {
        capture.capture.invalidate();
        capture.capture.has_ended.store(true, Ordering::Relaxed);
        capture.capture.discard();
    }
}

/// `cuEventRecord` in a stream that is capturing. False if it is not.
pub(crate) fn record_event(stream: &Stream, event: &Event) -> bool {
    let place = stream.capture();
    let Some(capture) = place.as_ref() else { return false };
    event.set_recorded(Recorded::Captured(Arc::clone(&capture.capture), capture.last.clone()));
    true
}

/// `cuStreamWaitEvent` for an event recorded in a capture: the stream joins it.
pub(crate) fn wait_event(stream: &Stream, capture: &Arc<Capture>, nodes: &[NodeId]) -> Result<()> {
    if stream.order == crate::context::stream::Order::Legacy {
        return Err(Status::STREAM_CAPTURE_IMPLICIT);
    }
    if capture.has_ended.load(Ordering::Relaxed) {
        return Err(Status::CAPTURED_EVENT);
    }
    let mut place = stream.capture();
    let joined = place.get_or_insert_with(|| {
        capture.streams_joined(stream);
        StreamCapture { capture: Arc::clone(capture), stream: stream.id, last: Vec::new() }
    });
    if !Arc::ptr_eq(&joined.capture, capture) {
        return Err(Status::STREAM_CAPTURE_MERGE);
    }
    joined.wait_for(nodes);
    Ok(())
}

impl Capture {
    /// Notes a stream that takes part from now on.
    fn streams_joined(&self, stream: &Stream) {
        self.forks().push((stream.id, Vec::new()));
    }
}

/// Takes all streams out of a capture that has ended.
fn leave_all(capture: &Arc<Capture>) {
    for stream in crate::context::stream::STREAMS.all() {
        let mut place = stream.capture();
        if place.as_ref().is_some_and(|part| Arc::ptr_eq(&part.capture, capture)) {
            *place = None;
        }
    }
}
