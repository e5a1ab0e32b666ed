//! Captures of streams: begun into graphs of their own and into others, asked about, told what
//! comes before the next node, and ended.

use std::ptr::{null, null_mut};

use sluice_cuda::*;

use crate::answer::Answer;
use crate::graphs::DEPENDENCIES_MAX;
use crate::launches::launch_in;
use crate::program::{HANDLES_MAX, Program, Sent, bytes_of, ok};

pub(crate) const FUNCTIONS: crate::Calls = &[
    ("cuStreamBeginCapture_v2", |p| lives(p, false)),
    ("cuStreamBeginCaptureToGraph", |p| lives(p, true)),
    ("cuStreamGetCaptureInfo_v2", |p| lives(p, false)),
    ("cuStreamGetCaptureInfo_v3", |p| lives(p, true)),
    ("cuStreamUpdateCaptureDependencies", |p| lives(p, true)),
    ("cuStreamUpdateCaptureDependencies_v2", |p| lives(p, false)),
    ("cuStreamEndCapture", |p| lives(p, false)),
];

/// A capture that has begun.
struct Capture {
    stream: CUstream,
    /// By which the driver knows it.
    number: u64,
    /// The handle, as far as it is known, and the number of the graph in the making.
    graph: (Option<CUgraph>, u64),
    id: Option<u64>,
}

fn lives(p: &mut Program, into: bool) {
    let has_room = p.known("Graph").len() < HANDLES_MAX;
    if !p.once_in(2) || p.known("GraphNode").is_empty() || !(into || has_room) {
        return;
    }
    let mut stream = CUstream::NULL;
    // SAFETY: a place. Nothing has to wait for a stream of this kind.
    ok(unsafe { p.cuda.cuStreamCreate.expect("exported")(&mut stream, 1) });
    let number = p.introduce_stream(stream);
    let modes =
        [CUstreamCaptureMode::GLOBAL, CUstreamCaptureMode::THREAD_LOCAL, CUstreamCaptureMode::RELAXED];
    let mode = modes[p.within(0, 2) as usize];
    let begun = if into { begin_into(p, stream, number, mode) } else { begin(p, stream, number, mode) };
    if let Some(mut capture) = begun {
        exchange_modes(p, modes);
        for _ in 0..p.within(1, 6) {
            match p.within(0, 4) {
                0 => capture.ask_v2(p),
                1 => capture.ask_v3(p),
                2 => capture.update(p, false),
                3 => capture.update(p, true),
                _ => launch_in(p, stream, number),
            }
        }
        capture.is_known_here(p);
        capture.end(p, into);
    }
    let mut status = CUstreamCaptureStatus::ACTIVE;
    // SAFETY: a live stream, and a place.
    unsafe {
        ok(p.cuda.cuStreamIsCapturing.expect("exported")(stream, &mut status));
        assert_eq!(status, CUstreamCaptureStatus::NONE, "the capture is over");
        ok(p.cuda.cuStreamDestroy_v2.expect("exported")(stream));
    }
    p.forget("Stream", stream.0);
}

/// What the driver is told: whichever mode the program wants, its own calls have been judged by it.
fn say_begin(stream: u64, graph: u64, nodes: &[u64]) -> Sent {
    let mut sent = Sent::new("cuStreamBeginCaptureToGraph");
    sent.number(stream);
    sent.number(graph);
    sent.value(nodes.len());
    nodes.iter().for_each(|node| sent.number(*node));
    sent.value(CUstreamCaptureMode::RELAXED.0);
    sent
}

fn begin(p: &mut Program, stream: CUstream, number: u64, mode: CUstreamCaptureMode) -> Option<Capture> {
    // The graph is there from the beginning.
    let mut sent = Sent::new("cuGraphCreate");
    sent.value(0_u32);
    p.line(&sent.line());
    let graph = p.reserve("Graph");
    // SAFETY: a live stream.
    let result = unsafe { p.cuda.cuStreamBeginCapture_v2.expect("exported")(stream, mode) };
    if !p.check(say_begin(number, graph, &[]), true, result, &[]) {
        destroyed(p, graph);
        return None;
    }
    Some(Capture { stream, number, graph: (None, graph), id: None })
}

fn begin_into(p: &mut Program, stream: CUstream, number: u64, mode: CUstreamCaptureMode) -> Option<Capture> {
    let ((handle, graph), (nodes, numbers)) = (p.outer_graph(), draw_nodes(p));
    let edges = vec![CUgraphEdgeData::default(); nodes.len()];
    let edges = if p.once_in(2) { null() } else { edges.as_ptr() };
    let call = p.cuda.cuStreamBeginCaptureToGraph.expect("exported");
    // SAFETY: live handles, and lists of as many.
    let result = unsafe { call(stream, CUgraph(handle), nodes.as_ptr(), edges, nodes.len(), mode) };
    p.check(say_begin(number, graph, &numbers), true, result, &[]).then_some(Capture {
        stream,
        number,
        graph: (Some(CUgraph(handle)), graph),
        id: None,
    })
}

/// Some nodes, and their numbers.
fn draw_nodes(p: &mut Program) -> (Vec<CUgraphNode>, Vec<u64>) {
    let count = p.within(0, DEPENDENCIES_MAX);
    (0..count).map(|_| p.pick("GraphNode")).map(|(node, number)| (CUgraphNode(node), number)).unzip()
}

/// A graph that was made for a capture goes with it.
fn destroyed(p: &mut Program, graph: u64) {
    let mut sent = Sent::new("cuGraphDestroy");
    sent.number(graph);
    p.line(&sent.line());
}

/// The mode of this thread is changed and changed back; each change says what was before.
fn exchange_modes(p: &mut Program, modes: [CUstreamCaptureMode; 3]) {
    let mut before = CUstreamCaptureMode::GLOBAL;
    for index in [p.within(0, 2), p.within(0, 2), 0] {
        let mut mode = modes[index as usize];
        // SAFETY: a place with a mode.
        ok(unsafe { p.cuda.cuThreadExchangeStreamCaptureMode.expect("exported")(&mut mode) });
        assert_eq!(mode, before, "the mode before");
        before = modes[index as usize];
    }
}

impl Capture {
    /// The nodes that the driver says come before the next one, and the edges from them; nothing if
    /// it refuses to say.
    fn said(&self, p: &Program) -> (Sent, CUresult, Vec<CUgraphNode>, Vec<CUgraphEdgeData>) {
        let mut sent = Sent::new("cuStreamGetCaptureInfo_v3");
        sent.number(self.number);
        let mut answer = Answer::to("cuStreamGetCaptureInfo_v3", sent.bytes(), true);
        let live = p.known("GraphNode");
        let items = answer.items(live.len());
        let nodes = items.iter().map(|item| CUgraphNode(live[item.nodes[0]].0)).collect();
        (sent, answer.result(), nodes, items.iter().map(|item| item.edge).collect())
    }

    /// Compares what one answer says of the capture itself.
    fn is_the_same(&mut self, status: CUstreamCaptureStatus, id: u64, graph: CUgraph) {
        assert_eq!(status, CUstreamCaptureStatus::ACTIVE, "the stream captures");
        assert_eq!(*self.id.get_or_insert(id), id, "the id of a capture");
        assert_eq!(*self.graph.0.get_or_insert(graph), graph, "the graph of a capture");
    }

    fn ask_v2(&mut self, p: &mut Program) {
        let (sent, refused, nodes, edges) = self.said(p);
        let (mut status, mut id, mut graph) = (CUstreamCaptureStatus::NONE, 0, CUgraph::NULL);
        let (mut list, mut count) = (null(), 0);
        let call = p.cuda.cuStreamGetCaptureInfo_v2.expect("exported");
        // SAFETY: a live stream, and places.
        let result = unsafe { call(self.stream, &mut status, &mut id, &mut graph, &mut list, &mut count) };
        p.line(&sent.line());
        // What edges carry matters to a program, which has no place for it.
        let loses = edges.iter().any(|edge| *edge != CUgraphEdgeData::default());
        let expected = if refused.is_success() && loses { CUresult::LOSSY_QUERY } else { refused };
        assert_eq!(result, expected, "{}", sent.line());
        if result.is_success() {
            self.is_the_same(status, id, graph);
            // SAFETY: as many nodes as it says, until the next question.
            assert_eq!(unsafe { listed(list, count) }, nodes, "the nodes of a capture");
        }
    }

    fn ask_v3(&mut self, p: &mut Program) {
        let (sent, _, nodes, edges) = self.said(p);
        let (mut status, mut id, mut graph) = (CUstreamCaptureStatus::NONE, 0, CUgraph::NULL);
        let (mut list, mut carried, mut count) = (null(), null(), 0);
        let call = p.cuda.cuStreamGetCaptureInfo_v3.expect("exported");
        // SAFETY: a live stream, and places.
        let result = unsafe {
            call(self.stream, &mut status, &mut id, &mut graph, &mut list, &mut carried, &mut count)
        };
        if !p.check(sent, true, result, &[]) {
            return;
        }
        self.is_the_same(status, id, graph);
        // SAFETY: as many as it says, until the next question.
        let (list, carried) = unsafe { (listed(list, count), listed(carried, count)) };
        assert_eq!(list, nodes, "the nodes of a capture");
        let same = |(got, said): (&CUgraphEdgeData, &CUgraphEdgeData)| bytes_of(got) == bytes_of(said);
        assert!(carried.iter().zip(&edges).all(same), "the edges of a capture");
    }

    fn update(&self, p: &mut Program, newer: bool) {
        let ((mut nodes, numbers), flags) = (draw_nodes(p), p.within(0, 1) as u32);
        let mut sent = Sent::new("cuStreamUpdateCaptureDependencies_v2");
        sent.number(self.number);
        sent.value(nodes.len());
        numbers.iter().for_each(|node| sent.number(*node));
        sent.value(flags);
        let (list, count) = (nodes.as_mut_ptr(), nodes.len());
        // SAFETY: a live stream, and a list of `count`.
        let result = unsafe {
            match newer {
                true => {
                    let call = p.cuda.cuStreamUpdateCaptureDependencies_v2.expect("exported");
                    call(self.stream, list, null(), count, flags)
                }
                false => {
                    let call = p.cuda.cuStreamUpdateCaptureDependencies.expect("exported");
                    call(self.stream, list, count, flags)
                }
            }
        };
        p.check(sent, true, result, &[]);
    }

    /// What is answered without the node.
    fn is_known_here(&mut self, p: &Program) {
        let (mut status, mut id) = (CUstreamCaptureStatus::NONE, 0);
        // SAFETY: a live stream, and places.
        unsafe {
            ok(p.cuda.cuStreamIsCapturing.expect("exported")(self.stream, &mut status));
            assert_eq!(status, CUstreamCaptureStatus::ACTIVE, "the stream captures");
            ok(p.cuda.cuStreamGetCaptureInfo.expect("exported")(self.stream, &mut status, &mut id));
        }
        assert_eq!(*self.id.get_or_insert(id), id, "the id of a capture");
    }

    /// `into` says whether the graph was there before.
    fn end(self, p: &mut Program, into: bool) {
        let mut sent = Sent::new("cuStreamEndCapture");
        sent.number(self.number);
        let mut graph = CUgraph::NULL;
        let wanted = if into && p.once_in(2) { null_mut() } else { &raw mut graph };
        // SAFETY: a live stream, and null or a place.
        let result = unsafe { p.cuda.cuStreamEndCapture.expect("exported")(self.stream, wanted) };
        let (known, number) = self.graph;
        match (p.check(sent, true, result, &[]), into) {
            (true, false) => {
                assert_eq!(*known.as_ref().unwrap_or(&graph), graph, "the graph of a capture");
                p.found("Graph", graph.0, number);
            }
            (true, true) if !wanted.is_null() => assert_eq!(Some(graph), known, "the graph of a capture"),
            (true, true) => {}
            (false, false) => destroyed(p, number),
            (false, true) => assert_eq!(graph, CUgraph::NULL, "no graph"),
        }
    }
}

/// # Safety
/// There are `count` values at `start`, or it is null and there are none.
unsafe fn listed<T: Copy>(start: *const T, count: usize) -> Vec<T> {
    if count == 0 {
        return Vec::new();
    }
    // SAFETY: by this function's contract.
    unsafe { std::slice::from_raw_parts(start, count).to_vec() }
}
