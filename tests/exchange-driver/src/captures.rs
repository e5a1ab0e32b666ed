//! Captures that are nothing but a stream's word: what is said of them is recorded, and drawn when
//! it is asked for.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;

use crate::call::Call;
use crate::graphs::nodes;

/// A capture's graph, and the lists that were answered last.
struct Capture {
    graph: CUgraph,
    nodes: Vec<CUgraphNode>,
    edges: Vec<CUgraphEdgeData>,
}

/// By stream.
fn captures() -> MutexGuard<'static, BTreeMap<usize, Capture>> {
    static CAPTURES: Mutex<BTreeMap<usize, Capture>> = Mutex::new(BTreeMap::new());
    CAPTURES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamBeginCaptureToGraph(
    hStream: CUstream,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    dependencyData: *const CUgraphEdgeData,
    numDependencies: usize,
    mode: CUstreamCaptureMode,
) -> CUresult {
    assert!(dependencyData.is_null(), "only plain edges come here");
    let mut call = Call::new("cuStreamBeginCaptureToGraph");
    call.handle("Stream", hStream.0);
    call.handle("Graph", hGraph.0);
    call.value(numDependencies);
    // SAFETY: the caller's list.
    unsafe { call.handles("GraphNode", dependencies.cast(), numDependencies as u64) };
    call.value(mode.0);
    let result = call.answer(true).result();
    if result.is_success() {
        captures().insert(hStream.0, Capture { graph: hGraph, nodes: Vec::new(), edges: Vec::new() });
    }
    result
}

/// Workers ask for themselves, too, and of streams that capture nothing.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamGetCaptureInfo_v3(
    hStream: CUstream,
    captureStatus_out: *mut CUstreamCaptureStatus,
    id_out: *mut u64,
    graph_out: *mut CUgraph,
    dependencies_out: *mut *const CUgraphNode,
    edgeData_out: *mut *const CUgraphEdgeData,
    numDependencies_out: *mut usize,
) -> CUresult {
    let mut captures = captures();
    let Some(capture) = captures.get_mut(&hStream.0) else {
        // SAFETY: the caller's place.
        unsafe { captureStatus_out.write(CUstreamCaptureStatus::NONE) };
        return CUresult::SUCCESS;
    };
    let mut call = Call::new("cuStreamGetCaptureInfo_v3");
    call.handle("Stream", hStream.0);
    let mut answer = call.answer(true);
    if !answer.result().is_success() {
        return answer.result();
    }
    let live: Vec<usize> = nodes().iter().map(|(node, _)| *node).collect();
    let items = answer.items(live.len());
    capture.nodes = items.iter().map(|item| CUgraphNode(live[item.nodes[0]])).collect();
    capture.edges = items.iter().map(|item| item.edge).collect();
    // SAFETY: the caller's places; the lists stay until it asks again.
    unsafe {
        captureStatus_out.write(CUstreamCaptureStatus::ACTIVE);
        id_out.write(1);
        graph_out.write(capture.graph);
        dependencies_out.write(capture.nodes.as_ptr());
        edgeData_out.write(capture.edges.as_ptr());
        numDependencies_out.write(items.len());
    }
    CUresult::SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamUpdateCaptureDependencies_v2(
    hStream: CUstream,
    dependencies: *mut CUgraphNode,
    dependencyData: *const CUgraphEdgeData,
    numDependencies: usize,
    flags: u32,
) -> CUresult {
    assert!(dependencyData.is_null(), "only plain edges come here");
    let mut call = Call::new("cuStreamUpdateCaptureDependencies_v2");
    call.handle("Stream", hStream.0);
    call.value(numDependencies);
    // SAFETY: the caller's list.
    unsafe { call.handles("GraphNode", dependencies.cast(), numDependencies as u64) };
    call.value(flags);
    call.answer(true).result()
}

/// A capture is over even if it has failed.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamEndCapture(hStream: CUstream, phGraph: *mut CUgraph) -> CUresult {
    let mut call = Call::new("cuStreamEndCapture");
    call.handle("Stream", hStream.0);
    let (result, ended) = (call.answer(true).result(), captures().remove(&hStream.0));
    let Some(capture) = ended else { return CUresult::ILLEGAL_STATE };
    let graph = if result.is_success() { capture.graph } else { CUgraph::NULL };
    // SAFETY: the caller's place.
    unsafe { phGraph.write(graph) };
    result
}
