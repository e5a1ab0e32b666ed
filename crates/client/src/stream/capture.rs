//! Stream capture. The node's driver records; which streams take part in which capture is known
//! here, since programs ask that often, and since CUDA reports at once what a capture does not
//! allow.
//!
//! A capture begins on one stream. Streams join it by waiting for an event that was recorded in it,
//! and leave it when it ends. A call that a capture forbids makes it worth nothing: its end says so
//! (CUDA Driver API, Stream Management; CUDA C++ Programming Guide, Graphs).

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use sluice_cuda::*;
use sluice_wire::{GraphNodeId, Id, NodePlace, NodeWork, StreamId, commands};

use crate::abi::out;
use crate::graph::edges::{check_all, edges_from_words, node_ids};
use crate::session::issue::{Issue, wanted};
use crate::session::{self, Session};
use crate::{context, stream};

/// One capture, from its beginning to its end.
#[derive(Debug)]
pub(crate) struct Capture {
    id: u64,
    /// The graph in the making.
    graph: CUgraph,
    home: Home,
    origin: CUstream,
    mode: CUstreamCaptureMode,
    thread: ThreadId,
    context: CUcontext,
    /// A stream that waits for the legacy stream takes part.
    has_blocking: AtomicBool,
    is_valid: AtomicBool,
    has_ended: AtomicBool,
}

/// Where the nodes of a capture go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    /// A graph of the driver's, which the node knows by the handle from the end of the capture on.
    Drivers,
    /// A graph that was made for this capture, so that the program can add nodes to it meanwhile;
    /// it goes with a failure.
    Made,
    /// A graph of the program's.
    Programs,
}

/// The capture that a stream takes part in, if any.
#[derive(Clone, Debug, Default)]
pub(crate) struct Part(Arc<Mutex<Option<Arc<Capture>>>>);

/// Captures that have begun and not ended.
static ACTIVE: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());
/// How many there are; most calls look no further.
static COUNT: AtomicU64 = AtomicU64::new(0);
static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static MODE: Cell<CUstreamCaptureMode> = const { Cell::new(CUstreamCaptureMode::GLOBAL) };
    /// What this thread's own default stream takes part in.
    static PER_THREAD: Part = Part::default();
    /// What the last answer of this thread points to; CUDA keeps it until the next call about the
    /// capture.
    static ANSWER: RefCell<(Vec<CUgraphNode>, Vec<CUgraphEdgeData>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

fn active() -> MutexGuard<'static, Vec<Arc<Capture>>> {
    ACTIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The captures of a session that is lost end with it.
pub(crate) fn forget_all() {
    let mut active = active();
    active.iter().for_each(|capture| capture.invalidate());
    active.clear();
    COUNT.store(0, Ordering::Release);
    let _ = PER_THREAD.try_with(|part| *part.0.lock().unwrap_or_else(PoisonError::into_inner) = None);
}

/// Whether any stream is being captured.
pub(crate) fn some() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

impl Capture {
    pub(crate) fn invalidate(&self) {
        self.is_valid.store(false, Ordering::Release);
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.is_valid.load(Ordering::Acquire)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }
}

impl Part {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Capture>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> Option<Arc<Capture>> {
        self.lock().take_if(|capture| capture.has_ended());
        self.lock().clone()
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.current().is_some()
    }
}

/// The part of a stream; the legacy stream can have none.
fn part_of(stream: CUstream) -> Result<Option<Part>, CUresult> {
    if stream == CUstream::PER_THREAD {
        return PER_THREAD.try_with(|part| Some(part.clone())).map_err(|_| CUresult::DEINITIALIZED);
    }
    Ok(stream::find(stream)?.map(|stream| stream.capture.clone()))
}

/// The capture that a stream takes part in.
pub(crate) fn of(stream: CUstream) -> Option<Arc<Capture>> {
    if !some() {
        return None;
    }
    part_of(stream).ok()??.current()
}

fn is_blocking(stream: CUstream) -> bool {
    stream::find(stream).ok().flatten().is_none_or(|stream| stream.is_blocking())
}

/// Makes a stream take part in a capture.
pub(crate) fn join(stream: CUstream, capture: &Arc<Capture>) -> Result<(), CUresult> {
    let part = part_of(stream)?.ok_or(CUresult::STREAM_CAPTURE_IMPLICIT)?;
    if is_blocking(stream) {
        capture.has_blocking.store(true, Ordering::Release);
    }
    *part.lock() = Some(Arc::clone(capture));
    Ok(())
}

/// Whether a stream can be given work: not if its capture is worth nothing any more, and not the
/// legacy stream while a capture would have to wait for it.
pub(crate) fn check_stream(stream: CUstream) -> Result<(), CUresult> {
    if !some() {
        return Ok(());
    }
    if stream == CUstream::LEGACY {
        let held_up = implied_by_legacy()?;
        held_up.iter().for_each(|capture| capture.invalidate());
        return if held_up.is_empty() { Ok(()) } else { Err(CUresult::STREAM_CAPTURE_IMPLICIT) };
    }
    match of(stream) {
        Some(capture) if !capture.is_valid() => Err(CUresult::STREAM_CAPTURE_INVALIDATED),
        _ => Ok(()),
    }
}

/// Captures of this context that work in the legacy stream would have to wait for.
fn implied_by_legacy() -> Result<Vec<Arc<Capture>>, CUresult> {
    let context = context::current()?.handle;
    let blocking =
        |capture: &&Arc<Capture>| capture.context == context && capture.has_blocking.load(Ordering::Acquire);
    Ok(active().iter().filter(blocking).cloned().collect())
}

/// Refuses a call that CUDA does not allow beside captures such as there are, as far as the
/// thread's mode goes.
pub(crate) fn check_safe() -> Result<(), CUresult> {
    use CUstreamCaptureMode as Mode;
    if !some() {
        return Ok(());
    }
    let mode = MODE.try_with(Cell::get).unwrap_or(Mode::GLOBAL);
    let this = std::thread::current().id();
    let forbids = |capture: &&Arc<Capture>| match mode {
        Mode::RELAXED => false,
        Mode::THREAD_LOCAL => capture.thread == this && capture.mode != Mode::RELAXED,
        _ => capture.mode == Mode::GLOBAL || (capture.thread == this && capture.mode != Mode::RELAXED),
    };
    let forbidding: Vec<_> = active().iter().filter(forbids).cloned().collect();
    forbidding.iter().for_each(|capture| capture.invalidate());
    if forbidding.is_empty() { Ok(()) } else { Err(CUresult::STREAM_CAPTURE_UNSUPPORTED) }
}

/// Refuses a call that has no meaning for a stream in a capture.
pub(crate) fn check_not_capturing(stream: CUstream) -> Result<(), CUresult> {
    match of(stream) {
        None => Ok(()),
        Some(capture) => {
            capture.invalidate();
            Err(CUresult::STREAM_CAPTURE_UNSUPPORTED)
        }
    }
}

/// Gives up captures in streams of a green context that ends: they cannot be ended any more.
pub(crate) fn end_in(context: CUcontext) {
    if some() {
        for capture in of_context(context) {
            capture.invalidate();
            end(&capture);
        }
    }
}

/// A capture that is over forbids nothing.
fn end(capture: &Capture) {
    if !capture.has_ended.swap(true, Ordering::AcqRel) {
        active().retain(|other| other.id != capture.id);
        COUNT.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The captures in a context, and in its green ones.
fn of_context(context: CUcontext) -> Vec<Arc<Capture>> {
    active().iter().filter(|capture| context::is_of(capture.context, context)).cloned().collect()
}

/// Refuses to wait for a context while something in it is captured.
pub(crate) fn check_context(context: CUcontext) -> Result<(), CUresult> {
    if !some() {
        return Ok(());
    }
    let captures = of_context(context);
    captures.iter().for_each(|capture| capture.invalidate());
    if captures.is_empty() { Ok(()) } else { Err(CUresult::STREAM_CAPTURE_UNSUPPORTED) }
}

/// Adds a node to what a stream captures.
pub(crate) fn add(session: &Session, stream: CUstream, work: NodeWork) -> Result<CUgraphNode, CUresult> {
    let node = session.mint::<CUgraphNode>()?;
    let place = NodePlace::Capture(session.find(stream)?);
    let command = commands::cuGraphAddNode_v2 { phGraphNode: session.find(node)?, place, work };
    session.call(&command, |()| ())?;
    Ok(node)
}

/// The graph that a stream's capture makes.
pub(crate) fn graph_of(stream: CUstream) -> Option<CUgraph> {
    of(stream).map(|capture| capture.graph)
}

/// Status, id and graph of the capture that a stream is in.
fn status_of(stream: CUstream) -> Result<(CUstreamCaptureStatus, u64, CUgraph), CUresult> {
    const NONE: (CUstreamCaptureStatus, u64, CUgraph) = (CUstreamCaptureStatus::NONE, 0, CUgraph::NULL);
    if !some() {
        stream::find(stream)?;
        return Ok(NONE);
    }
    let Some(part) = part_of(stream)? else {
        return if implied_by_legacy()?.is_empty() {
            Ok(NONE)
        } else {
            Err(CUresult::STREAM_CAPTURE_IMPLICIT)
        };
    };
    Ok(part.current().map_or(NONE, |capture| {
        let valid = capture.is_valid();
        let status = if valid { CUstreamCaptureStatus::ACTIVE } else { CUstreamCaptureStatus::INVALIDATED };
        (status, capture.id, capture.graph)
    }))
}

/// Begins a capture on a stream; `send` has the node begin it.
fn begin(
    stream: CUstream,
    mode: CUstreamCaptureMode,
    (graph, home): (CUgraph, Home),
    send: impl FnOnce(StreamId) -> Result<(), CUresult>,
) -> Result<(), CUresult> {
    let part = part_of(stream)?.ok_or(CUresult::STREAM_CAPTURE_UNSUPPORTED)?;
    if mode.name().is_none() {
        return Err(CUresult::INVALID_VALUE);
    }
    let context = stream::context_of(stream)?.handle;
    if part.is_taken() {
        return Err(CUresult::ILLEGAL_STATE);
    }
    send(StreamId::new(stream.0 as u64))?;
    let capture = Arc::new(Capture {
        id: NEXT.fetch_add(1, Ordering::Relaxed),
        graph,
        home,
        origin: stream,
        mode,
        thread: std::thread::current().id(),
        context,
        has_blocking: AtomicBool::new(is_blocking(stream)),
        is_valid: AtomicBool::new(true),
        has_ended: AtomicBool::new(false),
    });
    *part.lock() = Some(Arc::clone(&capture));
    active().push(capture);
    COUNT.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

/// The capture that ends where this one began, if this thread may end it.
fn ending(stream: CUstream) -> Result<Arc<Capture>, CUresult> {
    let capture = of(stream).ok_or(CUresult::ILLEGAL_STATE)?;
    if capture.origin != stream {
        return Err(CUresult::STREAM_CAPTURE_UNMATCHED);
    }
    let is_bound = capture.mode != CUstreamCaptureMode::RELAXED;
    if is_bound && capture.thread != std::thread::current().id() {
        return Err(CUresult::STREAM_CAPTURE_WRONG_THREAD);
    }
    Ok(capture)
}

// The entry points. CUDA Driver API, section "Stream Management".

pub(crate) unsafe fn cuStreamBeginCapture_v2(
    hStream: CUstream,
    mode: CUstreamCaptureMode,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let graph = session.mint::<CUgraph>()?;
    // Drivers before CUDA 12.3 capture into graphs of their own only.
    let home = match session.functions.contains(Fn::cuStreamBeginCaptureToGraph) {
        true => Home::Made,
        false => Home::Drivers,
    };
    begin(hStream, mode, (graph, home), |hStream| {
        if home == Home::Drivers {
            return session.queue(&commands::cuStreamBeginCapture_v2 { hStream, mode });
        }
        let hGraph = session.find(graph)?;
        session.call(&commands::cuGraphCreate { phGraph: hGraph, flags: 0 }, |()| ())?;
        let dependencies = Vec::new();
        let command = commands::cuStreamBeginCaptureToGraph { hStream, hGraph, dependencies, mode };
        session.call(&command, |()| ()).inspect_err(|_| {
            // Of a session that is lost nothing is left to give back.
            let _ = session.call(&commands::cuGraphDestroy { hGraph }, |()| ());
        })
    })
    .inspect_err(|_| session.forget(graph))
}

pub(crate) unsafe fn cuStreamBeginCaptureToGraph(
    hStream: CUstream,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    dependencyData: *const CUgraphEdgeData,
    numDependencies: usize,
    mode: CUstreamCaptureMode,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let graph = session.find(hGraph)?;
    // SAFETY: the program passes that many nodes and edges.
    let dependencies = unsafe {
        check_all(dependencyData, numDependencies)?;
        node_ids(session, dependencies, numDependencies)?
    };
    begin(hStream, mode, (hGraph, Home::Programs), |hStream| {
        let command = commands::cuStreamBeginCaptureToGraph { hStream, hGraph: graph, dependencies, mode };
        session.call(&command, |()| ())
    })
}

pub(crate) unsafe fn cuStreamEndCapture(hStream: CUstream, phGraph: *mut CUgraph) -> Result<(), CUresult> {
    let session = session::enter()?;
    stream::find(hStream)?;
    let capture = ending(hStream)?;
    // A program that captures into a graph has its handle, and may not want it again.
    if capture.home != Home::Programs {
        wanted(phGraph)?;
    }
    end(&capture);
    // SAFETY: null, or the program's to be written.
    unsafe { out::write_if_wanted(phGraph, CUgraph::NULL) };
    let hGraph = session.find(capture.graph)?;
    let command = commands::cuStreamEndCapture { hStream: StreamId::new(hStream.0 as u64), phGraph: hGraph };
    let ended = session.call(&command, |()| ());
    if capture.is_valid() && ended.is_ok() {
        // SAFETY: as above.
        unsafe { out::write_if_wanted(phGraph, capture.graph) };
        return Ok(());
    }
    if capture.home != Home::Programs {
        crate::graph::forget(session, capture.graph);
        if ended.is_ok() || capture.home == Home::Made {
            session.call(&commands::cuGraphDestroy { hGraph }, |()| ())?;
        }
    }
    if capture.is_valid() { ended } else { Err(CUresult::STREAM_CAPTURE_INVALIDATED) }
}

pub(crate) unsafe fn cuStreamIsCapturing(
    hStream: CUstream,
    captureStatus: *mut CUstreamCaptureStatus,
) -> Result<(), CUresult> {
    session::get()?;
    // SAFETY: the program passes a place for the status.
    unsafe { out::write(captureStatus, status_of(hStream)?.0) }
}

pub(crate) unsafe fn cuStreamGetCaptureInfo(
    hStream: CUstream,
    captureStatus_out: *mut CUstreamCaptureStatus,
    id_out: *mut u64,
) -> Result<(), CUresult> {
    session::get()?;
    let (status, id, _) = status_of(hStream)?;
    // SAFETY: the program passes a place for the status, and null or a place for the id.
    unsafe {
        out::write(captureStatus_out, status)?;
        out::write_if_wanted(id_out, id);
    }
    Ok(())
}

pub(crate) unsafe fn cuStreamGetCaptureInfo_v2(
    hStream: CUstream,
    captureStatus_out: *mut CUstreamCaptureStatus,
    id_out: *mut u64,
    graph_out: *mut CUgraph,
    dependencies_out: *mut *const CUgraphNode,
    numDependencies_out: *mut usize,
) -> Result<(), CUresult> {
    let (graph, dependencies, count) = (graph_out, dependencies_out, numDependencies_out);
    let edges = std::ptr::null_mut();
    // SAFETY: the same contract; edges that are not asked for must be plain, as CUDA says.
    unsafe {
        cuStreamGetCaptureInfo_v3(hStream, captureStatus_out, id_out, graph, dependencies, edges, count)
    }
}

pub(crate) unsafe fn cuStreamGetCaptureInfo_v3(
    hStream: CUstream,
    captureStatus_out: *mut CUstreamCaptureStatus,
    id_out: *mut u64,
    graph_out: *mut CUgraph,
    dependencies_out: *mut *const CUgraphNode,
    edgeData_out: *mut *const CUgraphEdgeData,
    numDependencies_out: *mut usize,
) -> Result<(), CUresult> {
    let session = session::get()?;
    let (status, id, graph) = status_of(hStream)?;
    let places_wanted =
        !dependencies_out.is_null() || !edgeData_out.is_null() || !numDependencies_out.is_null();
    let (mut nodes, mut edges) = (Vec::new(), Vec::new());
    if status == CUstreamCaptureStatus::ACTIVE && places_wanted {
        let command = commands::cuStreamGetCaptureInfo_v3 { hStream: session.find(hStream)? };
        let answer = session.call(&command, |answer| answer)?;
        nodes = answer
            .nodes
            .iter()
            .map(|id| GraphNodeId::handle_from(session::of_worker(id.0) as usize))
            .collect();
        edges = edges_from_words(&answer.edges);
    }
    if edgeData_out.is_null() && edges.iter().any(|edge| *edge != CUgraphEdgeData::default()) {
        return Err(CUresult::LOSSY_QUERY);
    }
    // SAFETY: the program passes a place for the status, and null or places for the rest.
    unsafe {
        out::write(captureStatus_out, status)?;
        out::write_if_wanted(id_out, id);
        out::write_if_wanted(graph_out, graph);
        out::write_if_wanted(numDependencies_out, nodes.len());
    }
    let keep = |answer: &RefCell<_>| {
        *answer.borrow_mut() = (nodes, edges);
        let (nodes, edges) = &*answer.borrow();
        // SAFETY: as above.
        unsafe {
            out::write_if_wanted(dependencies_out, nodes.as_ptr());
            out::write_if_wanted(edgeData_out, edges.as_ptr());
        }
    };
    ANSWER.try_with(keep).map_err(|_| CUresult::DEINITIALIZED)
}

pub(crate) unsafe fn cuStreamUpdateCaptureDependencies(
    hStream: CUstream,
    dependencies: *mut CUgraphNode,
    numDependencies: usize,
    flags: u32,
) -> Result<(), CUresult> {
    /// `CU_STREAM_ADD_CAPTURE_DEPENDENCIES` is 0, `CU_STREAM_SET_CAPTURE_DEPENDENCIES` 1.
    const FLAGS: u32 = 1;
    let session = session::enter()?;
    if flags > FLAGS {
        return Err(CUresult::INVALID_VALUE);
    }
    of(hStream).ok_or(CUresult::ILLEGAL_STATE)?;
    // SAFETY: the program passes that many nodes.
    let nodes = unsafe { node_ids(session, dependencies, numDependencies)? };
    let command =
        commands::cuStreamUpdateCaptureDependencies { hStream: session.find(hStream)?, nodes, flags };
    session.call(&command, |()| ())
}

pub(crate) unsafe fn cuStreamUpdateCaptureDependencies_v2(
    hStream: CUstream,
    dependencies: *mut CUgraphNode,
    dependencyData: *const CUgraphEdgeData,
    numDependencies: usize,
    flags: u32,
) -> Result<(), CUresult> {
    // SAFETY: the program passes that many nodes and edges.
    unsafe {
        check_all(dependencyData, numDependencies)?;
        cuStreamUpdateCaptureDependencies(hStream, dependencies, numDependencies, flags)
    }
}

pub(crate) unsafe fn cuThreadExchangeStreamCaptureMode(
    mode: *mut CUstreamCaptureMode,
) -> Result<(), CUresult> {
    session::get()?;
    wanted(mode)?;
    // SAFETY: not null, and the program passes a mode.
    let new = unsafe { mode.read_unaligned() };
    if new.name().is_none() {
        return Err(CUresult::INVALID_VALUE);
    }
    let old = MODE.try_with(|mode| mode.replace(new)).map_err(|_| CUresult::DEINITIALIZED)?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(mode, old) }
}
