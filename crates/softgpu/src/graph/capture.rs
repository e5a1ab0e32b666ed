//! Stream capture: work submitted to a capturing stream becomes nodes of a graph
//! (CUDA Driver API, Stream Management, `cuStreamBeginCapture`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use sluice_cuda::CUstreamCaptureMode;

use crate::base::ids::{CaptureId, NodeId};
use crate::base::status::{Result, Status};
use crate::context::stream::{Order, STREAMS, Stream, StreamCapture};
use crate::graph::{Body, GRAPHS, Graph, Node};
use crate::work::event::{Event, Recorded};
use crate::work::op::Op;

/// Captures that streams can join.
static UNDER_WAY: RwLock<BTreeMap<CaptureId, Arc<Capture>>> = RwLock::new(BTreeMap::new());

/// One capture, from `cuStreamBeginCapture` to `cuStreamEndCapture`; other streams join it through
/// events.
struct Capture {
    id: CaptureId,
    /// The stream that it began in, by id; it ends there.
    origin: u64,
    graph: Arc<Graph>,
    /// Whether the graph is the capture's own, and goes with one that fails.
    is_own: bool,
    /// An error made the graph useless; ending the capture says so.
    invalid: AtomicBool,
    /// Streams that joined and have not been joined back, by id, with the nodes that are last in
    /// them.
    forks: Mutex<Vec<(u64, Vec<NodeId>)>>,
}

/// The capture with this number; `None` once it has ended, and its graph is the program's, or gone.
fn under_way(id: CaptureId) -> Option<Arc<Capture>> {
    UNDER_WAY.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
}

/// The capture ends: no stream joins it any more.
fn take(id: CaptureId) -> Option<Arc<Capture>> {
    UNDER_WAY.write().unwrap_or_else(PoisonError::into_inner).remove(&id)
}

impl Capture {
    fn body(&self) -> MutexGuard<'_, Body> {
        self.graph.body()
    }

    fn forks(&self) -> MutexGuard<'_, Vec<(u64, Vec<NodeId>)>> {
        self.forks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_valid(&self) -> bool {
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

    /// Sets what comes next in a stream depends on.
    fn set_last(&self, stream: &Stream, part: &mut StreamCapture, last: Vec<NodeId>) {
        if stream.id != self.origin {
            let mut forks = self.forks();
            match forks.iter_mut().find(|(id, _)| *id == stream.id) {
                Some((_, nodes)) => nodes.clone_from(&last),
                None => forks.push((stream.id, last.clone())),
            }
        }
        part.last = last;
    }

    /// Makes a stream wait for more nodes.
    fn wait_for(&self, stream: &Stream, part: &mut StreamCapture, nodes: &[NodeId]) {
        let mut last = part.last.clone();
        last.extend(nodes.iter().filter(|node| !part.last.contains(node)));
        self.set_last(stream, part, last);
    }
}

/// Whether the capture can still become a graph.
pub(crate) fn is_valid(id: CaptureId) -> bool {
    under_way(id).is_some_and(|capture| capture.is_valid())
}

/// Adds work to the graph that a stream captures into, behind what the stream did before.
pub(crate) fn record(stream: &Stream, part: &mut StreamCapture, op: Op) -> Result<()> {
    let capture = under_way(part.capture).filter(|capture| capture.is_valid());
    let capture = capture.ok_or(Status::STREAM_CAPTURE_INVALIDATED)?;
    let node = capture.body().add(Node::new(op, part.last.clone()));
    capture.set_last(stream, part, vec![node]);
    Ok(())
}

/// Has what comes next in a stream depend on these nodes, instead of or besides those before
/// (`cuStreamUpdateCaptureDependencies`).
pub(crate) fn depend_on(stream: &Stream, nodes: Vec<NodeId>, is_besides: bool) -> Result<()> {
    let mut place = stream.capture();
    let part = place.as_mut().ok_or(Status::ILLEGAL_STATE)?;
    let capture = under_way(part.capture).ok_or(Status::STREAM_CAPTURE_INVALIDATED)?;
    if !nodes.iter().all(|node| capture.body().nodes.contains_key(node)) {
        return Err(Status::INVALID_VALUE);
    }
    match is_besides {
        true => capture.wait_for(stream, part, &nodes),
        false => capture.set_last(stream, part, nodes),
    }
    Ok(())
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
    let id = CaptureId(IDS.fetch_add(1, Ordering::Relaxed));
    let is_own = into.is_none();
    let (graph, last) = into.unwrap_or_else(|| (Graph::create(), Vec::new()));
    *place = Some(StreamCapture { capture: id, graph: graph.handle, last });
    let (invalid, forks) = (AtomicBool::new(false), Mutex::default());
    let capture = Arc::new(Capture { id, origin: stream.id, graph, is_own, invalid, forks });
    UNDER_WAY.write().unwrap_or_else(PoisonError::into_inner).insert(id, capture);
    Ok(())
}

/// Ends the capture that began in `stream`.
pub(crate) fn end(stream: &Stream) -> Result<Arc<Graph>> {
    let mut place = stream.capture();
    let id = place.as_ref().ok_or(Status::ILLEGAL_STATE)?.capture;
    let capture = under_way(id).filter(|capture| capture.origin == stream.id);
    let capture = capture.ok_or(Status::STREAM_CAPTURE_UNMATCHED)?;
    let part = place.take().ok_or(Status::ILLEGAL_STATE)?;
    drop(place);
    take(id);
    leave_all(id);
    if !capture.is_valid() {
        capture.discard();
        return Err(Status::STREAM_CAPTURE_INVALIDATED);
    }
    if !capture.is_joined(&part.last) {
        capture.discard();
        return Err(Status::STREAM_CAPTURE_UNJOINED);
    }
    Ok(Arc::clone(&capture.graph))
}

/// A call waits for all of a context, of which captures can be no part: those under way there are
/// worth nothing any more. Whether there are any.
pub(crate) fn interrupt(context: usize) -> bool {
    let mut any = false;
    for stream in STREAMS.all() {
        if stream.context == context
            && let Some(part) = stream.capture().as_ref()
        {
            if let Some(capture) = under_way(part.capture) {
                capture.invalid.store(true, Ordering::Relaxed);
            }
            any = true;
        }
    }
    any
}

/// The stream goes away: a capture that began there is worth nothing any more.
pub(crate) fn abandon(stream: &Stream) {
    if let Some(part) = stream.capture().take()
        && let Some(capture) = under_way(part.capture)
        && capture.origin == stream.id
    {
        take(capture.id);
        capture.discard();
    }
}

/// `cuEventRecord` in a stream that is capturing. False if it is not.
pub(crate) fn record_event(stream: &Stream, event: &Event) -> bool {
    let place = stream.capture();
    let Some(part) = place.as_ref() else { return false };
    event.set_recorded(Recorded::Captured(part.capture, part.last.clone()));
    true
}

/// `cuStreamWaitEvent` for an event recorded in a capture: the stream joins it.
pub(crate) fn wait_event(stream: &Stream, id: CaptureId, nodes: &[NodeId]) -> Result<()> {
    if stream.order == Order::Legacy {
        return Err(Status::STREAM_CAPTURE_IMPLICIT);
    }
    let capture = under_way(id).ok_or(Status::CAPTURED_EVENT)?;
    let mut place = stream.capture();
    let joined = place.get_or_insert_with(|| {
        capture.forks().push((stream.id, Vec::new()));
        StreamCapture { capture: id, graph: capture.graph.handle, last: Vec::new() }
    });
    if joined.capture != id {
        return Err(Status::STREAM_CAPTURE_MERGE);
    }
    capture.wait_for(stream, joined, nodes);
    Ok(())
}

/// Takes all streams out of a capture that has ended.
fn leave_all(id: CaptureId) {
    for stream in STREAMS.all() {
        let mut place = stream.capture();
        if place.as_ref().is_some_and(|part| part.capture == id) {
            *place = None;
        }
    }
}
