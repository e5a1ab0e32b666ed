//! Making, cloning and taking apart graphs, and what is asked about their structure.

use sluice_cuda::*;
use sluice_wire::{Encode, GraphId, GraphNodeId, StreamId, commands};

use super::edge_word;
use super::limits::weigh_node;
use super::weights::Weight;
use crate::session::Session;
use crate::session::checks;
use crate::session::execute::Execute;

/// The flags of `cuGraphInstantiateWithFlags`.
const INSTANTIATE_FLAGS: u64 = CU_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
    | CU_GRAPH_INSTANTIATE_FLAG_UPLOAD
    | CU_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH
    | CU_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
/// Most nodes or edges that one answer carries.
const ITEMS_MAX: usize = 1 << 20;

/// Calls a driver's function that fills a list: once for the number, once for the items.
fn listed<T: Copy>(
    empty: T,
    mut ask: impl FnMut(*mut T, *mut usize) -> CUresult,
) -> Result<Vec<T>, CUresult> {
    let mut count = 0;
    ask(std::ptr::null_mut(), &mut count).ok()?;
    if count > ITEMS_MAX {
        return Err(CUresult::OUT_OF_MEMORY);
    }
    let mut items = vec![empty; count];
    if count > 0 {
        ask(items.as_mut_ptr(), &mut count).ok()?;
        items.truncate(count);
    }
    Ok(items)
}

/// The driver's nodes of a graph.
pub(super) fn driver_nodes(table: &DriverTable, graph: CUgraph) -> Result<Vec<CUgraphNode>, CUresult> {
    let get = table.cuGraphGetNodes.ok_or(CUresult::NOT_SUPPORTED)?;
    // SAFETY: the graph is live; `listed` gives room for as many as it says.
    listed(CUgraphNode::NULL, |nodes, count| unsafe { get(graph, nodes, count) })
}

/// The graph inside a child node.
pub(super) fn inner_graph(table: &DriverTable, node: CUgraphNode) -> Result<CUgraph, CUresult> {
    let get = table.cuGraphChildGraphNodeGetGraph.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut inner = CUgraph::NULL;
    // SAFETY: the node is live, and the driver writes to a local.
    unsafe { get(node, &mut inner) }.ok()?;
    Ok(inner)
}

pub(crate) fn nodes(session: &Session, graph: GraphId) -> Result<Vec<GraphNodeId>, CUresult> {
    let graph = session.find(graph)?;
    session.names(graph, &driver_nodes(&session.table, graph)?)
}

pub(crate) fn roots(session: &Session, graph: GraphId) -> Result<Vec<GraphNodeId>, CUresult> {
    let get = session.table.cuGraphGetRootNodes.ok_or(CUresult::NOT_SUPPORTED)?;
    let graph = session.find(graph)?;
    // SAFETY: as for all nodes.
    let roots = listed(CUgraphNode::NULL, |nodes, count| unsafe { get(graph, nodes, count) })?;
    session.names(graph, &roots)
}

pub(crate) fn edges(session: &Session, graph: GraphId, reply: &mut Vec<u8>) -> Result<(), CUresult> {
    let table = &session.table;
    let graph = session.find(graph)?;
    let mut count = 0;
    let ask = |from: *mut CUgraphNode, to, edges, count| {
        // SAFETY: the graph is live, and the places are null or have room for `count` items.
        unsafe {
            match (table.cuGraphGetEdges_v2, table.cuGraphGetEdges) {
                (Some(get), _) => get(graph, from, to, edges, count),
                (None, Some(get)) => get(graph, from, to, count),
                (None, None) => CUresult::NOT_SUPPORTED,
            }
        }
    };
    let (none, no_data) = (std::ptr::null_mut(), std::ptr::null_mut());
    ask(none, none, no_data, &mut count).ok()?;
    if count > ITEMS_MAX {
        return Err(CUresult::OUT_OF_MEMORY);
    }
    let (mut from, mut to) = (vec![CUgraphNode::NULL; count], vec![CUgraphNode::NULL; count]);
    let mut data = vec![CUgraphEdgeData::default(); count];
    if count > 0 {
        ask(from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr(), &mut count).ok()?;
    }
    let edges = data.iter().map(edge_word).collect();
    let (from_, to_) = (session.names(graph, &from)?, session.names(graph, &to)?);
    commands::cuGraphGetEdges_v2Reply { from_, to_, edges }.encode(reply);
    Ok(())
}

type Neighbours = unsafe extern "C" fn(CUgraphNode, *mut CUgraphNode, *mut usize) -> CUresult;
type NeighboursV2 =
    unsafe extern "C" fn(CUgraphNode, *mut CUgraphNode, *mut CUgraphEdgeData, *mut usize) -> CUresult;

/// The nodes before or behind a node, whichever these functions give, with the words of the edges.
pub(crate) fn neighbours(
    session: &Session,
    node: GraphNodeId,
    functions: (Option<NeighboursV2>, Option<Neighbours>),
) -> Result<(Vec<GraphNodeId>, Vec<u64>), CUresult> {
    let node = session.find(node)?;
    let home = session.graphs.home(node).ok_or(CUresult::INVALID_VALUE)?;
    let mut data = Vec::new();
    // SAFETY: the node is live; the places are null or have room for as many items as the driver
    // said there are.
    let found = listed(CUgraphNode::NULL, |nodes, count| unsafe {
        match functions {
            (Some(get), _) => {
                if !nodes.is_null() {
                    data = vec![CUgraphEdgeData::default(); *count];
                }
                let data = if nodes.is_null() { std::ptr::null_mut() } else { data.as_mut_ptr() };
                get(node, nodes, data, count)
            }
            (None, Some(get)) => get(node, nodes, count),
            (None, None) => CUresult::NOT_SUPPORTED,
        }
    })?;
    data.resize(found.len(), CUgraphEdgeData::default());
    Ok((session.names(home, &found)?, data.iter().map(edge_word).collect()))
}

pub(crate) fn find_in_clone(
    session: &Session,
    node: GraphNodeId,
    clone: GraphId,
) -> Result<GraphNodeId, CUresult> {
    let find = session.table.cuGraphNodeFindInClone.ok_or(CUresult::NOT_SUPPORTED)?;
    let (node, clone) = (session.find(node)?, session.find(clone)?);
    let mut found = CUgraphNode::NULL;
    // SAFETY: node and graph are live, and the driver writes to a local.
    unsafe { find(&mut found, node, clone) }.ok()?;
    session.name(clone, found)
}

/// The number of the graph inside a child node: the one that it has, or else `number`.
pub(crate) fn child(session: &Session, node: GraphNodeId, number: GraphId) -> Result<GraphId, CUresult> {
    session.vacant(number)?;
    let node = session.find(node)?;
    if session.graphs.work(node).is_some() {
        return Err(CUresult::INVALID_VALUE);
    }
    let home = session.graphs.home(node).ok_or(CUresult::INVALID_VALUE)?;
    let inner = inner_graph(&session.table, node)?;
    session.graphs.note_inner(home, inner);
    let mut state = session.graphs.lock();
    let family = state.families.entry(home.0).or_default();
    match family.inner.iter_mut().find(|(graph, _)| *graph == inner) {
        Some((_, Some(known))) => return Ok(*known),
        Some((_, unasked)) => *unasked = Some(number),
        // What a node is inside of does not change.
        None => return Err(CUresult::INVALID_VALUE),
    }
    drop(state);
    session.insert(number, inner)?;
    Ok(number)
}

pub(crate) fn clone(session: &Session, command: &commands::cuGraphClone) -> Result<(), CUresult> {
    let clone = session.table.cuGraphClone.ok_or(CUresult::NOT_SUPPORTED)?;
    session.vacant(command.phGraphClone)?;
    let original = session.find(command.originalGraph)?;
    if session.graphs.is_conditional(original) {
        return Err(CUresult::NOT_SUPPORTED);
    }
    let weight = session.graphs.weight(original);
    session.graphs.check_room(None, weight)?;
    let mut copy = CUgraph::NULL;
    // SAFETY: the graph is live, and the driver writes to a local.
    unsafe { clone(&mut copy, original) }.ok()?;
    session.graphs.add_weight(copy.0, weight);
    session.insert(command.phGraphClone, copy)?;
    adopt(session, original, copy)
}

/// The number of the graph that a node is in. A graph that is still being captured has none yet.
pub(crate) fn containing(session: &Session, node: GraphNodeId) -> Result<GraphId, CUresult> {
    let home = session.graphs.home(session.find(node)?).ok_or(CUresult::INVALID_VALUE)?;
    session.objects.number_of(home).ok_or(CUresult::INVALID_VALUE)
}

/// Makes a copy of a graph know what the client does in its nodes, as the original does.
pub(super) fn adopt(session: &Session, original: CUgraph, copy: CUgraph) -> Result<(), CUresult> {
    if session.graphs.lock().works.is_empty() {
        return Ok(());
    }
    let find = session.table.cuGraphNodeFindInClone.ok_or(CUresult::NOT_SUPPORTED)?;
    let kind_of = session.table.cuGraphNodeGetType.ok_or(CUresult::NOT_SUPPORTED)?;
    for node in driver_nodes(&session.table, original)? {
        let work = session.graphs.work(node);
        let mut kind = CUgraphNodeType::EMPTY;
        // SAFETY: the node is live, and the driver writes to a local.
        unsafe { kind_of(node, &mut kind) }.ok()?;
        if work.is_none() && kind != CUgraphNodeType::GRAPH {
            continue;
        }
        let mut twin = CUgraphNode::NULL;
        // SAFETY: as above.
        unsafe { find(&mut twin, node, copy) }.ok()?;
        match work {
            Some(work) => {
                session.name(copy, twin)?;
                session.graphs.lock().works.insert(twin.0, work);
            }
            None => {
                let inner = inner_graph(&session.table, twin)?;
                session.graphs.note_inner(copy, inner);
                adopt(session, inner_graph(&session.table, node)?, inner)?;
            }
        }
    }
    Ok(())
}

pub(crate) fn destroy(session: &Session, graph: GraphId) -> Result<(), CUresult> {
    let destroy = session.table.cuGraphDestroy.ok_or(CUresult::NOT_SUPPORTED)?;
    let driver_graph = session.find(graph)?;
    if session.graphs.is_inner(driver_graph) || session.is_growing(driver_graph) {
        return Err(CUresult::INVALID_VALUE);
    }
    session.graphs.references.forget_graph(graph);
    let graph = session.remove(graph)?;
    session.forget_graph(graph);
    // SAFETY: the graph was live until now, and our tables name neither it nor its nodes any more.
    unsafe { destroy(graph) }.ok()
}

pub(crate) fn destroy_node(session: &Session, node: GraphNodeId) -> Result<(), CUresult> {
    let destroy = session.table.cuGraphDestroyNode.ok_or(CUresult::NOT_SUPPORTED)?;
    let node = session.find(node)?;
    let home = session.graphs.home(node).ok_or(CUresult::INVALID_VALUE)?;
    // Child nodes have one, conditional ones some; they go with the node.
    let mut inside = super::conditional::bodies_of(session, node);
    let bodies = inside.iter().map(|body| Weight::of(1, 0).around(session.graphs.weight(*body)));
    let weight = bodies.fold(weigh_node(session, node)?, Weight::and);
    inside.extend(inner_graph(&session.table, node).ok());
    // A stream that captures remembers which nodes come before what it records next, and a graph
    // without a number is of a capture.
    let is_named = session.objects.number_of::<GraphId>(home).is_some() || session.graphs.is_inner(home);
    if !is_named || session.is_growing(home) || inside.iter().any(|inner| session.is_growing(*inner)) {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the node is live.
    unsafe { destroy(node) }.ok()?;
    let mut gone = Vec::new();
    session.graphs.take_weight(home.0, weight);
    if let Some(family) = session.graphs.lock().families.get_mut(&home.0) {
        family.nodes.retain(|other| *other != node);
        gone = family.inner.extract_if(.., |(graph, _)| inside.contains(graph)).collect();
    }
    for (graph, number) in gone {
        session.forget_inner(graph, number);
    }
    session.forget_node(node);
    Ok(())
}

/// What a stream's capture would have its next node depend on.
pub(crate) fn capture_nodes(
    session: &Session,
    stream: StreamId,
) -> Result<(Vec<GraphNodeId>, Vec<u64>), CUresult> {
    let (graph, nodes, edges) = session.captured(stream)?.ok_or(CUresult::ILLEGAL_STATE)?;
    Ok((session.names(graph, &nodes)?, edges))
}

pub(crate) fn capture_into(
    session: &Session,
    command: commands::cuStreamBeginCaptureToGraph,
) -> Result<(), CUresult> {
    let begin = session.table.cuStreamBeginCaptureToGraph.ok_or(CUresult::NOT_SUPPORTED)?;
    let nodes =
        command.dependencies.iter().map(|id| session.find(*id)).collect::<Result<Vec<CUgraphNode>, _>>()?;
    let (stream, graph) = (session.find(command.hStream)?, session.find(command.hGraph)?);
    // One that is inside a child node is a copy, which goes with what it was copied into.
    if session.graphs.is_inner(graph) && !session.graphs.is_body(graph) {
        return Err(CUresult::INVALID_VALUE);
    }
    // As for `cuStreamBeginCapture`: the client has applied its mode.
    let mode = CUstreamCaptureMode::RELAXED;
    // SAFETY: stream, graph and nodes are live; without edges all are plain.
    session.capture(stream, || unsafe {
        begin(stream, graph, nodes.as_ptr(), std::ptr::null(), nodes.len(), mode)
    })?;
    session.graphs.lock().growing.insert(stream.0, command.hGraph);
    Ok(())
}

/// Destroys a stream, and with it what it was capturing.
pub(crate) fn destroy_stream(session: &Session, id: StreamId) -> Result<(), CUresult> {
    let destroy = session.table.cuStreamDestroy_v2.ok_or(CUresult::NOT_SUPPORTED)?;
    let captured = session.captured(id).ok().flatten().map(|(graph, ..)| graph);
    let stream = session.remove(id)?;
    let captured = captured.or_else(|| session.graphs.capture_of(stream));
    // SAFETY: the stream was live until now, and our table names it no more.
    unsafe { destroy(stream) }.ok()?;
    let grown = session.graphs.lock().growing.remove(&stream.0);
    if let Some(grown) = grown.and_then(|graph| session.find(graph).ok()) {
        session.graphs.weigh_captured(session, grown);
    }
    session.graphs.capture_ends(stream);
    if let Some(graph) = captured.filter(|graph| session.objects.number_of::<GraphId>(*graph).is_none()) {
        session.forget_graph(graph);
    }
    Ok(())
}

pub(crate) fn capture_behind(
    session: &Session,
    command: commands::cuStreamUpdateCaptureDependencies,
) -> Result<(), CUresult> {
    let mut nodes =
        command.nodes.iter().map(|id| session.find(*id)).collect::<Result<Vec<CUgraphNode>, _>>()?;
    // Added to those that there are, or instead of them
    // (`CUstreamUpdateCaptureDependencies_flags`).
    checks::bits(command.flags.into(), 1)?;
    let stream = session.find(command.hStream)?;
    let table = &session.table;
    // SAFETY: the stream and the nodes are live.
    unsafe {
        match (table.cuStreamUpdateCaptureDependencies_v2, table.cuStreamUpdateCaptureDependencies) {
            (Some(update), _) => {
                update(stream, nodes.as_mut_ptr(), std::ptr::null(), nodes.len(), command.flags)
            }
            (None, Some(update)) => update(stream, nodes.as_mut_ptr(), nodes.len(), command.flags),
            (None, None) => CUresult::NOT_SUPPORTED,
        }
    }
    .ok()
}

/// Has a capture fill memory that is not the session's. Launching that reaches no more than the
/// session's kernels do, which this process and its context bound, on a driver that is loaded; the
/// software GPU fills memory of this process.
pub(crate) fn fill_captured(session: &Session, command: &commands::FillCaptured) -> Result<(), CUresult> {
    session.captured(command.hStream)?.filter(|_| session.is_loaded).ok_or(CUresult::INVALID_VALUE)?;
    let (stream, table) = (session.find(command.hStream)?, &session.table);
    let count = usize::try_from(command.count).map_err(|_| CUresult::INVALID_VALUE)?;
    let missing = CUresult::NOT_SUPPORTED;
    // SAFETY: the stream is live. It captures unless another command has ended that just now; what
    // is written then is confined to this process's context, as by the session's kernels.
    unsafe {
        match command.element {
            1 => table.cuMemsetD8Async.ok_or(missing)?(command.address, command.value as u8, count, stream),
            2 => table.cuMemsetD16Async.ok_or(missing)?(command.address, command.value as u16, count, stream),
            4 => table.cuMemsetD32Async.ok_or(missing)?(command.address, command.value, count, stream),
            _ => CUresult::INVALID_VALUE,
        }
    }
    .ok()
}

/// Ends a capture, whose graph is a new one or the one that it went into. The nodes of a capture
/// that has failed are gone with its graph, if that was its own.
pub(crate) fn end_capture(session: &Session, command: &commands::cuStreamEndCapture) -> Result<(), CUresult> {
    let end = session.table.cuStreamEndCapture.ok_or(CUresult::NOT_SUPPORTED)?;
    let existing = session.find(command.phGraph).ok();
    if existing.is_none() {
        session.vacant(command.phGraph)?;
    }
    let mut graph = CUgraph::NULL;
    let stream = session.find(command.hStream)?;
    let captured = session.captured(command.hStream).ok().flatten().map(|(graph, ..)| graph);
    let captured = captured.or_else(|| session.graphs.capture_of(stream));
    // SAFETY: the stream is live, and the driver writes one handle to a local.
    let ended = unsafe { end(stream, &mut graph) }.ok();
    let complete = captured.map_or(Ok(()), |captured| session.graphs.take_refused(captured));
    let ended = match (ended, complete) {
        // Without the refused command it is not what the program has captured.
        (Ok(()), Err(refused)) => {
            if existing.is_none() {
                let destroy = session.table.cuGraphDestroy.ok_or(CUresult::NOT_SUPPORTED)?;
                // SAFETY: the driver's own, made for the capture, and not known elsewhere.
                unsafe { destroy(graph) }.ok()?;
            }
            Err(refused)
        }
        (ended, _) => ended,
    };
    let has_ended = session.captured(command.hStream).ok().flatten().is_none();
    let grown = if has_ended { session.graphs.lock().growing.remove(&stream.0) } else { None };
    let filled = ended.map(|()| graph).ok().or_else(|| session.find(grown?).ok());
    if let Some(filled) = filled {
        session.graphs.weigh_captured(session, filled);
    }
    if has_ended {
        session.graphs.capture_ends(stream);
    }
    match (ended, existing) {
        (Ok(()), Some(existing)) if existing == graph => Ok(()),
        (Ok(()), Some(_)) => Err(CUresult::INVALID_VALUE),
        // It has a number already, and with two it could be destroyed twice.
        (Ok(()), None) if grown.is_some() || session.objects.number_of::<GraphId>(graph).is_some() => {
            Err(CUresult::INVALID_VALUE)
        }
        (Ok(()), None) => session.insert(command.phGraph, graph),
        // Whatever the client wanted it to be called.
        (Err(error), _) => {
            let is_unnamed = |graph: &CUgraph| session.objects.number_of::<GraphId>(*graph).is_none();
            captured.filter(is_unnamed).into_iter().for_each(|graph| session.forget_graph(graph));
            Err(error)
        }
    }
}

/// Where a node's kernel attributes are read and written: an opaque value of 64 bytes.
pub(crate) fn kernel_attribute(
    session: &Session,
    node: GraphNodeId,
    attribute: u32,
) -> Result<Vec<u32>, CUresult> {
    let get = session.table.cuGraphKernelNodeGetAttribute.ok_or(CUresult::NOT_SUPPORTED)?;
    checks::attribute_id(attribute)?;
    let mut value = CUlaunchAttributeValue::default();
    // SAFETY: the node is live, and the driver writes at most one value to a local.
    unsafe { get(session.find(node)?, attribute, std::ptr::from_mut(&mut value).cast()) }.ok()?;
    Ok(value.words.to_vec())
}

pub(crate) fn set_kernel_attribute(
    session: &Session,
    command: &commands::cuGraphKernelNodeSetAttribute,
) -> Result<(), CUresult> {
    let set = session.table.cuGraphKernelNodeSetAttribute.ok_or(CUresult::NOT_SUPPORTED)?;
    let words = command.words.as_slice().try_into().map_err(|_| CUresult::INVALID_VALUE)?;
    let value = CUlaunchAttributeValue { words };
    checks::plain_value(CUlaunchAttributeID(command.attr), &value)?;
    // SAFETY: the node is live, and the value is a plain one that outlives the call.
    unsafe { set(session.find(command.hNode)?, command.attr, std::ptr::from_ref(&value).cast()) }.ok()
}

pub(crate) fn update(session: &Session, command: commands::cuGraphExecUpdate_v2) -> Result<(), CUresult> {
    let update = session.table.cuGraphExecUpdate_v2.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut info = CUgraphExecUpdateResultInfo::default();
    let (executable, graph) = (session.find(command.hGraphExec)?, session.find(command.hGraph)?);
    // SAFETY: both graphs are live, and the driver writes to a local.
    session.graphs.replace_all(executable, graph, || unsafe { update(executable, graph, &mut info) }.ok())
}

pub(crate) fn instantiate(
    session: &Session,
    command: &commands::cuGraphInstantiateWithFlags,
) -> Result<(), CUresult> {
    let instantiate = session.table.cuGraphInstantiateWithFlags.ok_or(CUresult::NOT_SUPPORTED)?;
    session.vacant(command.phGraphExec)?;
    checks::bits(command.flags, INSTANTIATE_FLAGS)?;
    let graph = session.find(command.hGraph)?;
    let weight = session.graphs.weight(graph);
    session.graphs.check_room(None, weight)?;
    let mut executable = CUgraphExec::NULL;
    // SAFETY: the graph is live, and the driver writes to a local.
    unsafe { instantiate(&mut executable, graph, command.flags) }.ok()?;
    session.graphs.add_weight(executable.0, weight);
    session.insert(command.phGraphExec, executable)
}

pub(crate) fn destroy_executable(
    session: &Session,
    command: &commands::cuGraphExecDestroy,
) -> Result<(), CUresult> {
    let destroy = session.table.cuGraphExecDestroy.ok_or(CUresult::NOT_SUPPORTED)?;
    let executable = session.remove(command.hGraphExec)?;
    session.graphs.forget_weight(executable.0);
    // SAFETY: the graph was live until now, and our table names it no more.
    unsafe { destroy(executable) }.ok()
}
