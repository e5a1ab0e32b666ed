//! Graphs: what is said of their nodes, what is asked about them, and how they hang together. The
//! driver makes nothing of it: it says again what was said, and answers at random.

use std::ffi::c_char;
use std::ptr::{null, null_mut};

use sluice_cuda::*;

use crate::answer::Answer;
use crate::nodes::Work;
use crate::program::{Program, Sent, bytes_of};

pub(crate) const FUNCTIONS: crate::Calls = &[
    ("cuGraphClone", cuGraphClone),
    ("cuGraphNodeFindInClone", cuGraphNodeFindInClone),
    ("cuGraphDestroy", cuGraphDestroy),
    ("cuGraphDestroyNode", cuGraphDestroyNode),
    ("cuGraphInstantiateWithFlags", cuGraphInstantiateWithFlags),
    ("cuGraphInstantiate", |p| instantiate_with_log(p, |cuda| cuda.cuGraphInstantiate)),
    ("cuGraphInstantiate_v2", |p| instantiate_with_log(p, |cuda| cuda.cuGraphInstantiate_v2)),
    ("cuGraphInstantiateWithParams", cuGraphInstantiateWithParams),
    ("cuGraphExecDestroy", cuGraphExecDestroy),
    ("cuGraphExecUpdate", cuGraphExecUpdate),
    ("cuGraphExecUpdate_v2", cuGraphExecUpdate_v2),
    ("cuGraphAddDependencies_v2", cuGraphAddDependencies_v2),
    ("cuGraphRemoveDependencies_v2", cuGraphRemoveDependencies_v2),
    ("cuGraphGetNodes", cuGraphGetNodes),
    ("cuGraphGetRootNodes", cuGraphGetRootNodes),
    ("cuGraphGetEdges", cuGraphGetEdges),
    ("cuGraphGetEdges_v2", cuGraphGetEdges_v2),
    ("cuGraphNodeGetDependencies", cuGraphNodeGetDependencies),
    ("cuGraphNodeGetDependencies_v2", cuGraphNodeGetDependencies_v2),
    ("cuGraphNodeGetDependentNodes", cuGraphNodeGetDependentNodes),
    ("cuGraphNodeGetDependentNodes_v2", cuGraphNodeGetDependentNodes_v2),
    ("cuGraphKernelNodeGetAttribute", cuGraphKernelNodeGetAttribute),
    ("cuGraphKernelNodeSetAttribute", cuGraphKernelNodeSetAttribute),
];

/// Of a list of nodes, at most.
pub(crate) const DEPENDENCIES_MAX: u64 = 4;

fn graph(p: &mut Program, sent: &mut Sent) -> CUgraph {
    CUgraph(p.handle(sent, "Graph"))
}

fn node(p: &mut Program, sent: &mut Sent) -> CUgraphNode {
    CUgraphNode(p.handle(sent, "GraphNode"))
}

fn executable(p: &mut Program, sent: &mut Sent) -> CUgraphExec {
    CUgraphExec(p.handle(sent, "GraphExec"))
}

fn clone(p: &mut Program) -> Option<CUgraph> {
    let mut sent = Sent::new("cuGraphClone");
    let (original, mut made) = (graph(p, &mut sent), CUgraph::NULL);
    // SAFETY: a live graph, and a place.
    let result = unsafe { p.cuda.cuGraphClone.expect("exported")(&mut made, original) };
    p.check(sent, true, result, &[]).then(|| {
        let (original, number) = (p.number("Graph", original.0), p.count_of("Graph"));
        p.minted("Graph", made.0);
        if p.nested.contains(&original) {
            p.nested.insert(number);
        }
        made
    })
}

fn cuGraphClone(p: &mut Program) {
    // The room is for graphs of all kinds.
    if p.once_in(8) {
        clone(p);
    }
}

fn cuGraphNodeFindInClone(p: &mut Program) {
    let mut sent = Sent::new("cuGraphNodeFindInClone");
    let (node, graph, mut found) = (node(p, &mut sent), graph(p, &mut sent), CUgraphNode::NULL);
    let mut answer = Answer::to("cuGraphNodeFindInClone", sent.bytes(), true);
    // SAFETY: live handles, and a place.
    let result = unsafe { p.cuda.cuGraphNodeFindInClone.expect("exported")(&mut found, node, graph) };
    if p.check(sent, true, result, &[]) {
        let live = p.known("GraphNode");
        assert_eq!(found.0, live[answer.below(live.len())].0, "a node's twin");
    }
}

/// Destroys a copy in which there is no node yet.
fn cuGraphDestroy(p: &mut Program) {
    if p.known("Graph").len() >= crate::program::HANDLES_MAX {
        return;
    }
    let Some(graph) = clone(p) else { return };
    let mut sent = Sent::new("cuGraphDestroy");
    let number = p.number("Graph", graph.0);
    sent.number(number);
    // SAFETY: a live graph.
    let result = unsafe { p.cuda.cuGraphDestroy.expect("exported")(graph) };
    p.check(sent, false, result, &[]);
    p.forget_number("Graph", number);
}

fn cuGraphDestroyNode(p: &mut Program) {
    // Most of them stay for the others, as do graphs inside nodes.
    let (handle, number) = p.pick("GraphNode");
    if p.kinds[&number] == CUgraphNodeType::GRAPH || !p.once_in(3) {
        return;
    }
    let mut sent = Sent::new("cuGraphDestroyNode");
    sent.number(number);
    let node = CUgraphNode(handle);
    // SAFETY: a live node.
    let result = unsafe { p.cuda.cuGraphDestroyNode.expect("exported")(node) };
    if p.check(sent, true, result, &[]) {
        p.forget("GraphNode", node.0);
    }
}

/// Asks for an executable graph.
fn instantiate(
    p: &mut Program,
    flags: u64,
    call: impl FnOnce(&Program, *mut CUgraphExec, CUgraph) -> CUresult,
) -> Option<CUgraphExec> {
    if p.known("GraphExec").len() >= crate::program::HANDLES_MAX {
        return None;
    }
    let mut sent = Sent::new("cuGraphInstantiateWithFlags");
    let (graph, mut made) = (graph(p, &mut sent), CUgraphExec::NULL);
    sent.value(flags);
    let result = call(p, &mut made, graph);
    p.check(sent, true, result, &[]).then(|| {
        p.minted("GraphExec", made.0);
        made
    })
}

fn cuGraphInstantiateWithFlags(p: &mut Program) {
    let flags = p.within(0, 15);
    // SAFETY: a live graph, and a place for a handle; here and below.
    instantiate(p, flags, |p, made, graph| unsafe {
        p.cuda.cuGraphInstantiateWithFlags.expect("exported")(made, graph, flags)
    });
}

type InstantiateWithLog =
    unsafe extern "C" fn(*mut CUgraphExec, CUgraph, *mut CUgraphNode, *mut c_char, usize) -> CUresult;

fn instantiate_with_log(p: &mut Program, which: fn(&DriverTable) -> Option<InstantiateWithLog>) {
    let call = which(&p.cuda).expect("exported");
    let mut log = [1; 8];
    // SAFETY: as above, and a log of as many bytes.
    let made = instantiate(p, 0, |_, made, graph| unsafe {
        call(made, graph, null_mut(), log.as_mut_ptr(), log.len())
    });
    assert!(made.is_none() || log[0] == 0, "a log without an error");
}

fn cuGraphInstantiateWithParams(p: &mut Program) {
    let flags = p.within(0, 15);
    let (stream, number) = p.stream();
    let mut params = CUDA_GRAPH_INSTANTIATE_PARAMS {
        flags,
        hUploadStream: stream,
        hErrNode_out: CUgraphNode::NULL,
        result_out: u32::MAX,
    };
    // Uploading is a call of its own.
    let upload = flags & CU_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    // SAFETY: as above.
    let made = instantiate(p, flags & !upload, |p, made, graph| unsafe {
        p.cuda.cuGraphInstantiateWithParams.expect("exported")(made, graph, &mut params)
    });
    if let (Some(made), true) = (made, upload != 0) {
        let mut sent = Sent::new("cuGraphUpload");
        sent.number(p.number("GraphExec", made.0));
        sent.number(number);
        p.check(sent, false, CUresult::SUCCESS, &[]);
    }
    assert!(made.is_none() || params.result_out == 0, "it was made");
}

fn cuGraphExecDestroy(p: &mut Program) {
    if !p.once_in(3) {
        return;
    }
    let mut sent = Sent::new("cuGraphExecDestroy");
    let executable = executable(p, &mut sent);
    // SAFETY: a live graph.
    let result = unsafe { p.cuda.cuGraphExecDestroy.expect("exported")(executable) };
    p.check(sent, false, result, &[]);
    p.forget("GraphExec", executable.0);
}

fn cuGraphExecUpdate(p: &mut Program) {
    let mut sent = Sent::new("cuGraphExecUpdate_v2");
    let (executable, graph) = (executable(p, &mut sent), graph(p, &mut sent));
    let (mut wrong, mut why) = (CUgraphNode(1), CUgraphExecUpdateResult::default());
    // SAFETY: live graphs, and places.
    let result =
        unsafe { p.cuda.cuGraphExecUpdate.expect("exported")(executable, graph, &mut wrong, &mut why) };
    let updated = p.check(sent, true, result, &[]);
    assert_eq!((wrong, why == CUgraphExecUpdateResult::SUCCESS), (CUgraphNode::NULL, updated));
}

fn cuGraphExecUpdate_v2(p: &mut Program) {
    let mut sent = Sent::new("cuGraphExecUpdate_v2");
    let (executable, graph) = (executable(p, &mut sent), graph(p, &mut sent));
    let mut info = CUgraphExecUpdateResultInfo::default();
    // SAFETY: live graphs, and a place.
    let result = unsafe { p.cuda.cuGraphExecUpdate_v2.expect("exported")(executable, graph, &mut info) };
    let updated = p.check(sent, true, result, &[]);
    assert_eq!(info.result == CUgraphExecUpdateResult::SUCCESS, updated);
}

type Dependencies = unsafe extern "C" fn(
    CUgraph,
    *const CUgraphNode,
    *const CUgraphNode,
    *const CUgraphEdgeData,
    usize,
) -> CUresult;

fn dependencies(p: &mut Program, name: &'static str, call: Dependencies) {
    let mut sent = Sent::new(name);
    let graph = graph(p, &mut sent);
    let count = p.within(1, DEPENDENCIES_MAX) as usize;
    let mut ends = || (0..count).map(|_| node(p, &mut sent)).collect::<Vec<_>>();
    let (from, to) = (ends(), ends());
    sent.value(count);
    let edges = vec![CUgraphEdgeData::default(); count];
    let edges = if p.once_in(2) { null() } else { edges.as_ptr() };
    // SAFETY: a live graph, and lists of `count`.
    let result = unsafe { call(graph, from.as_ptr(), to.as_ptr(), edges, count) };
    p.check(sent, true, result, &[]);
}

fn cuGraphAddDependencies_v2(p: &mut Program) {
    dependencies(p, "cuGraphAddDependencies", p.cuda.cuGraphAddDependencies_v2.expect("exported"));
}

fn cuGraphRemoveDependencies_v2(p: &mut Program) {
    dependencies(p, "cuGraphRemoveDependencies", p.cuda.cuGraphRemoveDependencies_v2.expect("exported"));
}

/// Room for any list of nodes that the driver answers.
const ROOM: usize = 8;

/// Asks for a list: how many there are, then all of them. `has_edges` says whether there are places
/// for what edges carry, `is_between` whether they have two ends.
fn list(
    p: &mut Program,
    name: &'static str,
    of: &'static str,
    (has_edges, is_between): (bool, bool),
    ask: impl std::ops::Fn(&Program, usize, [*mut CUgraphNode; 2], *mut CUgraphEdgeData, *mut usize) -> CUresult,
) {
    let mut sent = Sent::new(name);
    let handle = p.handle(&mut sent, of);
    // Workers ask for all nodes by themselves, too: they get an answer, in which no node has a
    // graph inside.
    let counts = name == "cuGraphGetNodes";
    let mut answer = Answer::to(name, sent.bytes(), !counts);
    let mut count = usize::MAX;
    let result = ask(p, handle, [null_mut(); 2], null_mut(), &mut count);
    if !p.check(sent.clone(), !counts, result, &[]) {
        return;
    }
    let is_listed = |number: &u64| !counts || p.kinds[number] != CUgraphNodeType::GRAPH;
    let live: Vec<usize> =
        p.known("GraphNode").iter().filter(|(_, number)| is_listed(number)).map(|(node, _)| *node).collect();
    let items = answer.items(live.len());
    assert_eq!(count, items.len(), "{name}: how many");
    let mut nodes = [[CUgraphNode(1); ROOM]; 2];
    let mut edges = [CUgraphEdgeData::default(); ROOM];
    count = ROOM;
    let [first, second] = &mut nodes;
    let lists = [first.as_mut_ptr(), second.as_mut_ptr()];
    let result = ask(p, handle, lists, edges.as_mut_ptr(), &mut count);
    // What edges carry matters to a program, which has no place for it.
    let loses = !has_edges && items.iter().any(|item| item.edge != CUgraphEdgeData::default());
    let has_no_edges = name == "cuGraphGetNodes" || name == "cuGraphGetRootNodes";
    if loses && !has_no_edges {
        p.line(&sent.line());
        assert_eq!(result, CUresult::LOSSY_QUERY, "{name}");
        return;
    }
    p.check(sent, !counts, result, &[]);
    assert_eq!(count, items.len(), "{name}: how many it gave");
    for (index, item) in items.iter().enumerate() {
        assert_eq!(nodes[0][index].0, live[item.nodes[0]], "{name}: node {index}");
        if is_between {
            assert_eq!(nodes[1][index].0, live[item.nodes[1]], "{name}: the other end of edge {index}");
        }
        if has_edges {
            assert_eq!(bytes_of(&edges[index]), bytes_of(&item.edge), "{name}: edge {index}");
        }
    }
}

fn cuGraphGetNodes(p: &mut Program) {
    // SAFETY: a live handle, and lists with room for `count`; here and below.
    list(p, "cuGraphGetNodes", "Graph", (false, false), |p, graph, [nodes, _], _, count| unsafe {
        p.cuda.cuGraphGetNodes.expect("exported")(CUgraph(graph), nodes, count)
    });
}

fn cuGraphGetRootNodes(p: &mut Program) {
    // SAFETY: as above.
    list(p, "cuGraphGetRootNodes", "Graph", (false, false), |p, graph, [nodes, _], _, count| unsafe {
        p.cuda.cuGraphGetRootNodes.expect("exported")(CUgraph(graph), nodes, count)
    });
}

fn cuGraphGetEdges(p: &mut Program) {
    // SAFETY: as above.
    list(p, "cuGraphGetEdges_v2", "Graph", (false, true), |p, graph, [from, to], _, count| unsafe {
        p.cuda.cuGraphGetEdges.expect("exported")(CUgraph(graph), from, to, count)
    });
}

fn cuGraphGetEdges_v2(p: &mut Program) {
    // SAFETY: as above.
    list(p, "cuGraphGetEdges_v2", "Graph", (true, true), |p, graph, [from, to], edges, count| unsafe {
        p.cuda.cuGraphGetEdges_v2.expect("exported")(CUgraph(graph), from, to, edges, count)
    });
}

fn cuGraphNodeGetDependencies(p: &mut Program) {
    let name = "cuGraphNodeGetDependencies_v2";
    // SAFETY: as above.
    list(p, name, "GraphNode", (false, false), |p, node, [nodes, _], _, count| unsafe {
        p.cuda.cuGraphNodeGetDependencies.expect("exported")(CUgraphNode(node), nodes, count)
    });
}

fn cuGraphNodeGetDependencies_v2(p: &mut Program) {
    let name = "cuGraphNodeGetDependencies_v2";
    // SAFETY: as above.
    list(p, name, "GraphNode", (true, false), |p, node, [nodes, _], edges, count| unsafe {
        p.cuda.cuGraphNodeGetDependencies_v2.expect("exported")(CUgraphNode(node), nodes, edges, count)
    });
}

fn cuGraphNodeGetDependentNodes(p: &mut Program) {
    let name = "cuGraphNodeGetDependentNodes_v2";
    // SAFETY: as above.
    list(p, name, "GraphNode", (false, false), |p, node, [nodes, _], _, count| unsafe {
        p.cuda.cuGraphNodeGetDependentNodes.expect("exported")(CUgraphNode(node), nodes, count)
    });
}

fn cuGraphNodeGetDependentNodes_v2(p: &mut Program) {
    let name = "cuGraphNodeGetDependentNodes_v2";
    // SAFETY: as above.
    list(p, name, "GraphNode", (true, false), |p, node, [nodes, _], edges, count| unsafe {
        p.cuda.cuGraphNodeGetDependentNodes_v2.expect("exported")(CUgraphNode(node), nodes, edges, count)
    });
}

fn cuGraphKernelNodeGetAttribute(p: &mut Program) {
    let mut sent = Sent::new("cuGraphKernelNodeGetAttribute");
    let (node, attribute) = (node(p, &mut sent), p.within(0, 18) as u32);
    sent.value(attribute);
    let mut value: CUlaunchAttributeValue = p.value();
    let to = (&raw mut value).cast();
    // SAFETY: a live node, and a place.
    let result = unsafe { p.cuda.cuGraphKernelNodeGetAttribute.expect("exported")(node, attribute, to) };
    p.check(sent, true, result, &[bytes_of(&value)]);
}

fn cuGraphKernelNodeSetAttribute(p: &mut Program) {
    let mut sent = Sent::new("cuGraphKernelNodeSetAttribute");
    let node = node(p, &mut sent);
    let attribute = crate::launches::plain_attribute(p);
    sent.value(attribute.id.0);
    sent.value(attribute.value);
    let value = (&raw const attribute.value).cast();
    // SAFETY: a live node, and a value.
    let result =
        unsafe { p.cuda.cuGraphKernelNodeSetAttribute.expect("exported")(node, attribute.id.0, value) };
    p.check(sent, true, result, &[]);
}

impl Program {
    /// Where a node is to be added: the graph, and the nodes before it.
    pub(crate) fn place_of_node(&mut self, sent: &mut Sent) -> (CUgraph, Vec<CUgraphNode>) {
        let graph = graph(self, sent);
        let most = DEPENDENCIES_MAX.min(self.known("GraphNode").len() as u64);
        let count = self.within(0, most) as usize;
        sent.value(count);
        (graph, (0..count).map(|_| node(self, sent)).collect())
    }

    /// A node of a kind.
    pub(crate) fn node_of(&mut self, kind: CUgraphNodeType) -> Option<(CUgraphNode, u64)> {
        let of_kind = |(_, number): &&(usize, u64)| self.kinds.get(number) == Some(&kind);
        let nodes: Vec<(usize, u64)> = self.known("GraphNode").iter().filter(of_kind).copied().collect();
        let draw = self.next() as usize;
        let (handle, number) = *nodes.get(draw % nodes.len().max(1))?;
        Some((CUgraphNode(handle), number))
    }

    pub(crate) fn executable(&mut self, sent: &mut Sent) -> CUgraphExec {
        executable(self, sent)
    }

    /// Notes a node.
    pub(crate) fn node_made(&mut self, node: CUgraphNode, graph: CUgraph, work: &Work) {
        self.minted("GraphNode", node.0);
        let number = self.number("GraphNode", node.0);
        self.kinds.insert(number, work.kind());
        self.homes.insert(number, graph);
    }
}
