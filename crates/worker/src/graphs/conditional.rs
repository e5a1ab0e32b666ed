//! Conditional nodes: graphs inside a node of which a value chooses, and the handles behind which
//! such values are.
//!
//! A handle is the driver's own number, which kernels are given as a parameter: the client has it
//! as it is. What comes back is looked up here, so that a node decides by a value of its own graph
//! or of one around it, and by no other.

use std::collections::HashSet;

use sluice_cuda::*;
use sluice_wire::{ConditionalNode, GraphId, Id, NodeWork, commands};

use super::Insertion;
use crate::session::Session;
use crate::session::checks;
use crate::session::execute::Execute;

/// Most handles of a session.
const HANDLES_MAX: usize = 1 << 16;
/// Most bodies of a node.
const BODIES_MAX: usize = 1 << 12;
/// `CU_GRAPH_COND_ASSIGN_DEFAULT`.
const ASSIGN_DEFAULT: u64 = 1;

pub(crate) fn create_handle(
    session: &Session,
    command: &commands::cuGraphConditionalHandleCreate,
) -> Result<u64, CUresult> {
    let create = session.table.cuGraphConditionalHandleCreate.ok_or(CUresult::NOT_SUPPORTED)?;
    checks::bits(command.flags.into(), ASSIGN_DEFAULT)?;
    let graph = session.find(command.hGraph)?;
    if session.graphs.lock().conditions.handles.len() >= HANDLES_MAX {
        return Err(CUresult::OUT_OF_MEMORY);
    }
    let (mut handle, context) = (0, session.current_context()?);
    // SAFETY: the graph and the context are live, and the driver writes one number to a local.
    unsafe { create(&mut handle, graph, context, command.defaultLaunchValue, command.flags) }.ok()?;
    session.graphs.lock().conditions.handles.insert(handle, graph.0);
    Ok(handle)
}

/// What may be in a body (CUDA Driver API, `CUDA_CONDITIONAL_NODE_PARAMS`). What has a part in the
/// client is made of nodes that may not.
pub(super) fn check_inside(session: &Session, graph: CUgraph, work: &NodeWork) -> Result<(), CUresult> {
    let state = session.graphs.lock();
    let mut around = std::iter::successors(Some(graph), |inner| state.outer.get(&inner.0).copied());
    if !around.any(|graph| state.conditions.bodies.contains(&graph.0)) {
        return Ok(());
    }
    match work {
        NodeWork::Empty(()) | NodeWork::Kernel(_) | NodeWork::Fill(_) => Ok(()),
        NodeWork::Child(_) | NodeWork::Conditional(_) => Ok(()),
        NodeWork::Copy(copy) if !copy.is_across() => Ok(()),
        _ => Err(CUresult::NOT_SUPPORTED),
    }
}

/// Adds the node, and answers the driver's graphs in it.
pub(super) fn make(
    session: &Session,
    place: &Insertion,
    node: &ConditionalNode,
) -> Result<(CUgraphNode, Vec<CUgraph>), CUresult> {
    let table = &session.table;
    let is_allowed = match (node.kind, node.bodies.len()) {
        (0, 1 | 2) | (1, 1) => true,
        (2, bodies) => (1..=BODIES_MAX).contains(&bodies),
        _ => false,
    };
    let distinct: HashSet<u64> = node.bodies.iter().map(|body| body.number()).collect();
    if !is_allowed || distinct.len() != node.bodies.len() {
        return Err(CUresult::INVALID_VALUE);
    }
    node.bodies.iter().try_for_each(|body| session.vacant(*body))?;
    {
        let state = session.graphs.lock();
        let of = *state.conditions.handles.get(&node.handle).ok_or(CUresult::INVALID_VALUE)?;
        let mut around = std::iter::successors(Some(place.graph), |inner| state.outer.get(&inner.0).copied());
        if !around.any(|graph| graph.0 == of) {
            return Err(CUresult::INVALID_VALUE);
        }
    }
    // `CUDA_CONDITIONAL_NODE_PARAMS`: handle, kind and number of bodies, a place for these,
    // context.
    let mut params = CUgraphNodeParams {
        kind: CUgraphNodeType::CONDITIONAL,
        reserved0: [0; 3],
        words: [0; 29],
        reserved2: 0,
    };
    params.words[0] = node.handle;
    params.words[1] = u64::from(node.kind) | (node.bodies.len() as u64) << 32;
    params.words[3] = session.current_context()?.0 as u64;
    let mut made = CUgraphNode::NULL;
    let (before, count) = (place.dependencies.as_ptr(), place.dependencies.len());
    // SAFETY: graph and nodes are live, the handle is the driver's own, and it writes to locals.
    unsafe {
        match (table.cuGraphAddNode_v2, table.cuGraphAddNode) {
            (Some(add), _) => add(&mut made, place.graph, before, std::ptr::null(), count, &mut params),
            (None, Some(add)) => add(&mut made, place.graph, before, count, &mut params),
            (None, None) => CUresult::NOT_SUPPORTED,
        }
    }
    .ok()?;
    let bodies = params.words[2] as *const CUgraph;
    // SAFETY: the driver's list, with as many graphs as were asked for, stays for as long as the
    // node.
    let bodies = unsafe { super::driver_list(bodies, node.bodies.len()) }.to_vec();
    if bodies.len() == node.bodies.len() { Ok((made, bodies)) } else { Err(CUresult::UNKNOWN) }
}

/// Enters the graphs of a node that has been made, under the client's numbers.
pub(super) fn enter_bodies(
    session: &Session,
    home: CUgraph,
    bodies: &[CUgraph],
    numbers: &[GraphId],
) -> Result<(), CUresult> {
    for (body, number) in bodies.iter().zip(numbers) {
        session.graphs.note_inner(home, *body);
        let mut state = session.graphs.lock();
        state.conditions.bodies.insert(body.0);
        let inner = state.families.entry(home.0).or_default().inner.iter_mut();
        if let Some((_, known)) = inner.into_iter().find(|(graph, _)| graph == body) {
            *known = Some(*number);
        }
        drop(state);
        session.insert(*number, *body)?;
    }
    Ok(())
}

/// The driver's graphs inside a conditional node.
pub(super) fn bodies_of(session: &Session, node: CUgraphNode) -> Vec<CUgraph> {
    match session.graphs.work(node) {
        Some(NodeWork::Conditional(node)) => {
            node.bodies.iter().filter_map(|body| session.find(*body).ok()).collect()
        }
        _ => Vec::new(),
    }
}
