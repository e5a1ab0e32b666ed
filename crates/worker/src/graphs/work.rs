//! What nodes do: from the wire to the driver, and back where a client asks.

#![allow(non_snake_case)] // CUDA's names

mod copy;
mod kernel;
mod operations;

use sluice_cuda::*;
use sluice_wire::{DevicePtr, FillNode, GraphExecId, GraphId, GraphNodeId, NodeWork, commands};

use super::limits::{OPERATIONS_BYTES, weigh_node};
use super::weights::Weight;
use super::{Insertion, adopt, conditional, inner_graph};
use crate::session::Session;
use crate::session::execute::Execute;

pub(crate) use copy::copy_ranges;
pub(super) use operations::OPERATIONS_MAX;

use operations::{batch, fill_range};

/// Adds a node to a graph, or to what a stream captures.
pub(crate) fn add(session: &Session, command: commands::cuGraphAddNode_v2) -> Result<(), CUresult> {
    session.vacant(command.phGraphNode)?;
    let place = session.place(&command.place)?;
    conditional::check_inside(session, place.graph, &command.work)?;
    let weight = weight_of(session, &command.work)?;
    session.graphs.check_room(Some(place.graph), weight)?;
    let mut bodies = Vec::new();
    let node = match &command.work {
        NodeWork::Conditional(work) => {
            let (node, inside) = conditional::make(session, &place, work)?;
            bodies = inside;
            node
        }
        work => make(session, &place, work)?,
    };
    session.graphs.add_weight(place.graph.0, weight);
    place.go_on(&session.table, node)?;
    let work = kept(&command.work);
    session.enter_node(place.graph, node, command.phGraphNode, work)?;
    match command.work {
        NodeWork::Child(graph) => {
            let inner = inner_graph(&session.table, node)?;
            session.graphs.note_inner(place.graph, inner);
            adopt(session, session.find(graph)?, inner)
        }
        NodeWork::Conditional(work) => conditional::enter_bodies(session, place.graph, &bodies, &work.bodies),
        _ => Ok(()),
    }
}

/// What a node adds to its graph.
fn weight_of(session: &Session, work: &NodeWork) -> Result<Weight, CUresult> {
    Ok(match work {
        NodeWork::Child(graph) => {
            let graph = session.find(*graph)?;
            if session.graphs.is_conditional(graph) {
                return Err(CUresult::NOT_SUPPORTED);
            }
            Weight::of(1, 0).around(session.graphs.weight(graph))
        }
        NodeWork::Conditional(node) => Weight::of(1 + node.bodies.len() as u64, 1),
        // The pair that a copy to or from the client is made of, and the node around it.
        NodeWork::Copy(copy) if copy.is_across() => Weight::of(3, 1),
        NodeWork::Kernel(kernel) => Weight::holding(kernel.params.len() as u64),
        // As many as there may be: they may come to be more.
        NodeWork::MemoryOps(_) => Weight::holding(OPERATIONS_BYTES),
        _ => Weight::of(1, 0),
    })
}

/// What the driver will not be able to say about a node.
fn kept(work: &NodeWork) -> Option<NodeWork> {
    match work {
        NodeWork::HostCall(_) | NodeWork::Allocation(_) | NodeWork::Free(_) | NodeWork::Conditional(_) => {
            Some(work.clone())
        }
        NodeWork::Copy(copy) if copy.is_across() => Some(work.clone()),
        _ => None,
    }
}

fn make(session: &Session, place: &Insertion, work: &NodeWork) -> Result<CUgraphNode, CUresult> {
    let table = &session.table;
    let (graph, before, count) = (place.graph, place.dependencies.as_ptr(), place.dependencies.len());
    let mut node = CUgraphNode::NULL;
    let to = &mut node;
    /// The function, if the driver has it.
    macro_rules! with {
        ($name:ident) => {
            table.$name.ok_or(CUresult::NOT_SUPPORTED)?
        };
    }
    // SAFETY (all): graph, nodes and objects are live, memory was checked to be the session's, and
    // what is pointed to outlives the call; the driver writes one handle to a local.
    match work {
        // An allocation is the client's own; in the graph it is only a place.
        NodeWork::Empty(()) | NodeWork::Allocation(_) | NodeWork::Free(_) => {
            let add = with!(cuGraphAddEmptyNode);
            // SAFETY: as above.
            unsafe { add(to, graph, before, count) }.ok()?;
        }
        NodeWork::Kernel(kernel) => {
            let add = with!(cuGraphAddKernelNode_v2);
            // SAFETY: as above.
            session.with_kernel(kernel, |params| unsafe { add(to, graph, before, count, params) })?;
        }
        NodeWork::Fill(fill) => {
            let add = with!(cuGraphAddMemsetNode);
            let memory = fill_range(fill);
            let (fill, context) = (session.fill(fill)?, session.context_for(&[memory])?);
            // SAFETY: as above.
            unsafe { add(to, graph, before, count, &fill, context) }.ok()?;
        }
        NodeWork::Copy(copy) => return session.add_copy(place, copy),
        NodeWork::HostCall(ticket) => {
            let add = with!(cuGraphAddHostNode);
            let host = session.host_node(Some(graph), *ticket)?;
            // SAFETY: as above.
            unsafe { add(to, graph, before, count, &host) }.ok()?;
        }
        NodeWork::Child(child) => {
            let add = with!(cuGraphAddChildGraphNode);
            // SAFETY: as above.
            unsafe { add(to, graph, before, count, session.find(*child)?) }.ok()?;
        }
        NodeWork::Conditional(_) => return Err(CUresult::INVALID_VALUE),
        NodeWork::RecordEvent(event) => {
            let add = with!(cuGraphAddEventRecordNode);
            // SAFETY: as above.
            unsafe { add(to, graph, before, count, session.find(*event)?) }.ok()?;
        }
        NodeWork::AwaitEvent(event) => {
            let add = with!(cuGraphAddEventWaitNode);
            // SAFETY: as above.
            unsafe { add(to, graph, before, count, session.find(*event)?) }.ok()?;
        }
        NodeWork::MemoryOps(ops) => {
            let add = with!(cuGraphAddBatchMemOpNode);
            let mut words = session.memory_ops(ops)?;
            let params = batch(session.current_context()?, &mut words, ops.flags);
            // SAFETY: as above.
            unsafe { add(to, graph, before, count, std::ptr::from_ref(&params).cast()) }.ok()?;
        }
    }
    Ok(node)
}

/// Changes what a node of a graph does; it stays of its kind.
pub(crate) fn set(session: &Session, command: &commands::cuGraphNodeSetParams) -> Result<(), CUresult> {
    let node = session.find(command.hNode)?;
    let home = session.graphs.home(node).ok_or(CUresult::INVALID_VALUE)?;
    same_kind(session, node, &command.work)?;
    let set = || change(session, Target::Graph(home), node, &command.work);
    match &command.work {
        NodeWork::Kernel(_) => {
            let before = weigh_node(session, node)?.bytes;
            let after = weight_of(session, &command.work)?.bytes;
            session.graphs.replace_bytes(home, (before, after), set)?;
        }
        _ => set()?,
    }
    if let Some(work) = kept(&command.work) {
        session.graphs.lock().works.insert(node.0, work);
    }
    Ok(())
}

/// Changes what a node does in an executable graph.
pub(crate) fn set_in_executable(
    session: &Session,
    command: &commands::cuGraphExecNodeSetParams,
) -> Result<(), CUresult> {
    let node = session.find(command.hNode)?;
    same_kind(session, node, &command.work)?;
    let executable = session.find::<GraphExecId>(command.hGraphExec)?;
    let set = || change(session, Target::Executable(executable), node, &command.work);
    match &command.work {
        NodeWork::Kernel(_) | NodeWork::Child(_) => {
            let bytes = weight_of(session, &command.work)?.bytes;
            session.graphs.change_bytes((executable, node), bytes, set)
        }
        _ => set(),
    }
}

fn same_kind(session: &Session, node: CUgraphNode, work: &NodeWork) -> Result<(), CUresult> {
    let kind_of = session.table.cuGraphNodeGetType.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut kind = CUgraphNodeType::EMPTY;
    match session.graphs.work(node) {
        Some(work) => kind = work.kind(),
        // SAFETY: the node is live, and the driver writes to a local.
        None => unsafe { kind_of(node, &mut kind) }.ok()?,
    }
    if kind == work.kind() { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
}

/// Where a node's work is changed.
#[derive(Clone, Copy)]
enum Target {
    Graph(CUgraph),
    Executable(CUgraphExec),
}

fn change(session: &Session, target: Target, node: CUgraphNode, work: &NodeWork) -> Result<(), CUresult> {
    let table = &session.table;
    /// The function for a graph or for an executable one, with what comes before the node.
    macro_rules! apply {
        ($in_graph:ident, $in_executable:ident, $($argument:expr),+) => {
            match target {
                Target::Graph(_) => {
                    let set = table.$in_graph.ok_or(CUresult::NOT_SUPPORTED)?;
                    // SAFETY: node and objects are live, memory was checked, what is pointed to
                    // outlives the call.
                    unsafe { set(node, $($argument),+) }.ok()
                }
                Target::Executable(executable) => {
                    let set = table.$in_executable.ok_or(CUresult::NOT_SUPPORTED)?;
                    // SAFETY: as above.
                    unsafe { set(executable, node, $($argument),+) }.ok()
                }
            }
        };
    }
    match work {
        NodeWork::Kernel(kernel) => session.with_kernel(kernel, |params| {
            let set = || apply!(cuGraphKernelNodeSetParams_v2, cuGraphExecKernelNodeSetParams_v2, params);
            set().map_or_else(|error| error, |()| CUresult::SUCCESS)
        }),
        NodeWork::Fill(fill) => {
            let memory = fill_range(fill);
            let (fill, context) = (session.fill(fill)?, session.context_for(&[memory])?);
            match target {
                Target::Graph(_) => {
                    let set = table.cuGraphMemsetNodeSetParams.ok_or(CUresult::NOT_SUPPORTED)?;
                    // SAFETY: as above.
                    unsafe { set(node, &fill) }.ok()
                }
                Target::Executable(executable) => {
                    let set = table.cuGraphExecMemsetNodeSetParams.ok_or(CUresult::NOT_SUPPORTED)?;
                    // SAFETY: as above.
                    unsafe { set(executable, node, &fill, context) }.ok()
                }
            }
        }
        NodeWork::Copy(copy) => session.change_copy(target, node, copy),
        NodeWork::HostCall(ticket) => {
            let host = session.host_node(target.graph(), *ticket)?;
            apply!(cuGraphHostNodeSetParams, cuGraphExecHostNodeSetParams, &host)
        }
        NodeWork::Child(child) => {
            let Target::Executable(executable) = target else { return Err(CUresult::INVALID_VALUE) };
            let set = table.cuGraphExecChildGraphNodeSetParams.ok_or(CUresult::NOT_SUPPORTED)?;
            // SAFETY: as above.
            unsafe { set(executable, node, session.find(*child)?) }.ok()
        }
        NodeWork::RecordEvent(event) => {
            apply!(cuGraphEventRecordNodeSetEvent, cuGraphExecEventRecordNodeSetEvent, session.find(*event)?)
        }
        NodeWork::AwaitEvent(event) => {
            apply!(cuGraphEventWaitNodeSetEvent, cuGraphExecEventWaitNodeSetEvent, session.find(*event)?)
        }
        NodeWork::MemoryOps(ops) => {
            let mut words = session.memory_ops(ops)?;
            let params = batch(session.current_context()?, &mut words, ops.flags);
            let params = std::ptr::from_ref(&params).cast();
            apply!(cuGraphBatchMemOpNodeSetParams, cuGraphExecBatchMemOpNodeSetParams, params)
        }
        NodeWork::Empty(()) | NodeWork::Allocation(_) | NodeWork::Free(_) | NodeWork::Conditional(_) => {
            Err(CUresult::INVALID_VALUE)
        }
    }
}

impl Target {
    fn graph(self) -> Option<CUgraph> {
        match self {
            Target::Graph(graph) => Some(graph),
            Target::Executable(_) => None,
        }
    }
}

/// What a node does.
pub(crate) fn get(session: &Session, node: GraphNodeId) -> Result<NodeWork, CUresult> {
    let node = session.find(node)?;
    if let Some(work) = session.graphs.work(node) {
        return Ok(work);
    }
    let table = &session.table;
    let kind_of = table.cuGraphNodeGetType.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut kind = CUgraphNodeType::EMPTY;
    // SAFETY: the node is live, and the driver writes to a local.
    unsafe { kind_of(node, &mut kind) }.ok()?;
    match kind {
        CUgraphNodeType::EMPTY => Ok(NodeWork::Empty(())),
        CUgraphNodeType::KERNEL => session.get_kernel(node).map(NodeWork::Kernel),
        CUgraphNodeType::MEMSET => {
            let get = table.cuGraphMemsetNodeGetParams.ok_or(CUresult::NOT_SUPPORTED)?;
            let mut fill = CUDA_MEMSET_NODE_PARAMS::default();
            // SAFETY: as above.
            unsafe { get(node, &mut fill) }.ok()?;
            Ok(NodeWork::Fill(FillNode {
                dst: DevicePtr(fill.dst),
                pitch: fill.pitch as u64,
                value: fill.value,
                element_bytes: fill.elementSize,
                width: fill.width as u64,
                height: fill.height as u64,
            }))
        }
        CUgraphNodeType::MEMCPY => session.get_copy(node).map(NodeWork::Copy),
        // The client asks for the graph itself by another call.
        CUgraphNodeType::GRAPH => Ok(NodeWork::Child(GraphId(0))),
        CUgraphNodeType::EVENT_RECORD | CUgraphNodeType::WAIT_EVENT => {
            let records = kind == CUgraphNodeType::EVENT_RECORD;
            let get = if records {
                table.cuGraphEventRecordNodeGetEvent
            } else {
                table.cuGraphEventWaitNodeGetEvent
            };
            let mut event = CUevent::NULL;
            // SAFETY: as above.
            unsafe { get.ok_or(CUresult::NOT_SUPPORTED)?(node, &mut event) }.ok()?;
            let event = session.objects.number_of(event).ok_or(CUresult::NOT_SUPPORTED)?;
            Ok(if records { NodeWork::RecordEvent(event) } else { NodeWork::AwaitEvent(event) })
        }
        CUgraphNodeType::BATCH_MEM_OP => session.get_memory_ops(node).map(NodeWork::MemoryOps),
        _ => Err(CUresult::NOT_SUPPORTED),
    }
}

impl Session {
    pub(crate) fn current_context(&self) -> Result<CUcontext, CUresult> {
        let current = self.table.cuCtxGetCurrent.ok_or(CUresult::NOT_SUPPORTED)?;
        let mut context = CUcontext::NULL;
        // SAFETY: the driver writes one handle to a local.
        unsafe { current(&mut context) }.ok()?;
        Ok(context)
    }
}
