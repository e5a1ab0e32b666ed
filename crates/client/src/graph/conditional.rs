//! Conditional nodes: graphs inside a node, of which a value chooses that device code sets.
//!
//! The handle of the value is the driver's own number, since kernels are given it; the graphs have
//! handles of this process.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;
use sluice_wire::{ConditionalNode, GraphId, NodeWork, commands};

use crate::abi::out;
use crate::context;
use crate::session::issue::{Issue, wanted};
use crate::session::{self, Session};

/// Bodies of a node at most.
const BODIES_MAX: u32 = 1 << 12;

/// The list of a node's graphs, which a program may look at for as long as the node is there.
struct Bodies {
    handle: u64,
    list: Box<[CUgraph]>,
}

/// Lists by node. They stay after their graphs, which are not counted.
static BODIES: Mutex<Option<HashMap<usize, Bodies>>> = Mutex::new(None);

fn bodies() -> MutexGuard<'static, Option<HashMap<usize, Bodies>>> {
    BODIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the parameters of a conditional node say (`CUDA_CONDITIONAL_NODE_PARAMS`).
pub(crate) fn described(session: &Session, params: &CUgraphNodeParams) -> Result<NodeWork, CUresult> {
    let [handle, kind_and_size, ..] = params.words;
    let (kind, size) = (kind_and_size as u32, (kind_and_size >> 32) as u32);
    if !matches!((kind, size), (0, 1 | 2) | (1, 1) | (2, 1..=BODIES_MAX)) {
        return Err(CUresult::INVALID_VALUE);
    }
    let mint = |_| session.mint::<CUgraph>().map(|graph| GraphId(graph.0 as u64));
    let bodies = (0..size).map(mint).collect::<Result<_, _>>()?;
    Ok(NodeWork::Conditional(ConditionalNode { handle, kind, bodies }))
}

/// The node was not made.
pub(crate) fn give_up(node: &ConditionalNode) {
    if let Ok(session) = session::get() {
        node.bodies.iter().for_each(|body| session.forget(CUgraph(body.0 as usize)));
    }
}

/// Writes where the graphs of a new node are into its parameters.
///
/// # Safety
/// `params` are parameters of the program, of which a node has been made.
pub(crate) unsafe fn added(node: CUgraphNode, params: *mut CUgraphNodeParams) -> Result<(), CUresult> {
    // SAFETY: by this function's contract.
    let mut filled = unsafe { params.read_unaligned() };
    if filled.kind != CUgraphNodeType::CONDITIONAL {
        return Ok(());
    }
    let session = session::enter()?;
    let command = commands::cuGraphNodeGetParams { hNode: session.find(node)? };
    let NodeWork::Conditional(work) = session.call(&command, |answer| answer.work)? else {
        return Err(CUresult::UNKNOWN);
    };
    write(node, &work, &mut filled.words)?;
    // SAFETY: by this function's contract.
    unsafe { params.write_unaligned(filled) };
    Ok(())
}

/// Writes the parameters of a node that is there.
pub(crate) fn write(
    node: CUgraphNode,
    work: &ConditionalNode,
    words: &mut [u64; 29],
) -> Result<(), CUresult> {
    let mut all = bodies();
    let made = || Bodies {
        handle: work.handle,
        list: work.bodies.iter().map(|body| CUgraph(body.0 as usize)).collect(),
    };
    let known = all.get_or_insert_default().entry(node.0).or_insert_with(made);
    words[0] = known.handle;
    words[1] = u64::from(work.kind) | (known.list.len() as u64) << 32;
    words[2] = known.list.as_mut_ptr() as u64;
    words[3] = context::current()?.handle.0 as u64;
    Ok(())
}

/// CUDA Driver API, section "Graph Management".
pub(crate) unsafe fn cuGraphConditionalHandleCreate(
    pHandle_out: *mut u64,
    hGraph: CUgraph,
    ctx: CUcontext,
    defaultLaunchValue: u32,
    flags: u32,
) -> Result<(), CUresult> {
    /// `CU_GRAPH_COND_ASSIGN_DEFAULT`.
    const ASSIGN_DEFAULT: u32 = 1;
    let session = session::enter()?;
    wanted(pHandle_out)?;
    context::named_or_current(ctx)?;
    if flags & !ASSIGN_DEFAULT != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let hGraph = session.find(hGraph)?;
    let command = commands::cuGraphConditionalHandleCreate { hGraph, defaultLaunchValue, flags };
    let handle = session.call(&command, |answer| answer.handle)?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(pHandle_out, handle) }
}
