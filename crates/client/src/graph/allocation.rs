//! Memory that graphs allocate: allocation nodes, made by hand or by `cuMemAllocAsync` in a
//! capture.
//!
//! Such an allocation is one of the session's like any other, made when its node is added, so that
//! its address stands then, and given back when no graph has the node any more. In the graph on the
//! node it is a place without work. A launch makes it live and its free node, or a later
//! `cuMemFree`, ends that: a graph that would allocate what is still live is refused, as CUDA does
//! (CUDA C++ Programming Guide, Graph Memory Nodes).

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sluice_cuda::*;
use sluice_wire::NodeWork;

use crate::abi::out;
use crate::context::{self, Context};
use crate::memory::allocations::Pages;
use crate::session::{self, Session};
use crate::stream::capture;

#[derive(Debug)]
pub(crate) struct GraphAllocation {
    pub(crate) ticket: u64,
    device: CUdevice,
    context: CUcontext,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// A launch has allocated it, and nothing has freed it since.
    is_live: AtomicBool,
    /// Its graph frees it, too.
    is_freed_inside: AtomicBool,
    /// Its context has ended, and its memory with it.
    is_gone: AtomicBool,
}

impl GraphAllocation {
    pub(crate) fn device(&self) -> CUdevice {
        self.device
    }
}

impl Drop for GraphAllocation {
    fn drop(&mut self) {
        if !self.is_gone.load(Ordering::Acquire)
            && let Ok(session) = session::of(self.device)
        {
            // The address is the session's own; a lost session has nothing to give back.
            let _ = session.free(self.device, self.address);
        }
    }
}

/// What a graph or an executable graph holds.
#[derive(Debug, Default)]
struct GraphMemory {
    allocations: Vec<Arc<GraphAllocation>>,
    frees_on_launch: bool,
}

#[derive(Default)]
struct State {
    /// By the handle of a graph or executable graph.
    held: HashMap<u64, GraphMemory>,
    by_ticket: HashMap<u64, Weak<GraphAllocation>>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);
/// How many allocations there have been; most programs have none and pay for nothing.
static MADE: AtomicU64 = AtomicU64::new(0);
static HIGH: AtomicU64 = AtomicU64::new(0);

fn state() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn exist() -> bool {
    MADE.load(Ordering::Acquire) != 0
}

/// Makes memory for a node of a graph.
pub(crate) fn allocate(
    session: &Session,
    owner: &Context,
    graph: CUgraph,
    bytes: u64,
) -> Result<Arc<GraphAllocation>, CUresult> {
    if bytes == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let allocation = Arc::new(GraphAllocation {
        ticket: session.link.ticket(),
        device: owner.device,
        context: owner.owner,
        address: session.allocate(owner, bytes, Pages::Shared)?,
        bytes,
        is_live: AtomicBool::new(false),
        is_freed_inside: AtomicBool::new(false),
        is_gone: AtomicBool::new(false),
    });
    MADE.fetch_add(1, Ordering::AcqRel);
    let mut state = state();
    let state = state.get_or_insert_default();
    state.by_ticket.insert(allocation.ticket, Arc::downgrade(&allocation));
    state.held.entry(graph.0 as u64).or_default().allocations.push(Arc::clone(&allocation));
    Ok(allocation)
}

/// The node of this allocation was not made.
pub(crate) fn undo(graph: CUgraph, ticket: u64) {
    let removed = state().as_mut().and_then(|state| {
        state.by_ticket.remove(&ticket);
        let allocations = &mut state.held.get_mut(&(graph.0 as u64))?.allocations;
        let at = allocations.iter().position(|allocation| allocation.ticket == ticket)?;
        Some(allocations.swap_remove(at))
    });
    drop(removed);
}

pub(crate) fn by_ticket(ticket: u64) -> Option<Arc<GraphAllocation>> {
    state().as_ref()?.by_ticket.get(&ticket)?.upgrade()
}

pub(crate) fn by_address(address: u64) -> Option<Arc<GraphAllocation>> {
    if !exist() {
        return None;
    }
    let state = state();
    state.as_ref()?.by_ticket.values().filter_map(Weak::upgrade).find(|it| it.address == address)
}

/// A graph that is made from another holds what that one holds.
pub(crate) fn inherit(from: u64, to: u64, flags: u64) {
    if !exist() {
        return;
    }
    let frees_on_launch = flags & CU_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH != 0;
    let mut state = state();
    let state = state.get_or_insert_default();
    if let Some(held) = state.held.get(&from) {
        let allocations = held.allocations.clone();
        state.held.insert(to, GraphMemory { allocations, frees_on_launch });
    }
}

/// A graph or executable graph is gone.
pub(crate) fn let_go(graph: u64) {
    if !exist() {
        return;
    }
    // Dropped without the lock, since giving memory back may wait.
    let gone = state().as_mut().and_then(|state| state.held.remove(&graph));
    drop(gone);
    if let Some(state) = state().as_mut() {
        state.by_ticket.retain(|_, allocation| allocation.strong_count() > 0);
    }
}

pub(crate) fn context_ended(context: CUcontext) {
    let state = state();
    let all = state.iter().flat_map(|state| state.by_ticket.values().filter_map(Weak::upgrade));
    let all: Vec<_> = all.filter(|allocation| allocation.context == context).collect();
    all.iter().for_each(|allocation| allocation.is_gone.store(true, Ordering::Release));
}

/// Its graph frees an allocation itself.
pub(crate) fn freed_inside(allocation: &GraphAllocation) -> Result<(), CUresult> {
    let twice = allocation.is_freed_inside.swap(true, Ordering::AcqRel);
    if twice { Err(CUresult::INVALID_VALUE) } else { Ok(()) }
}

/// The program frees an allocation that a launch has made. `None` if the address is no graph's.
pub(crate) fn free(address: u64) -> Option<Result<(), CUresult>> {
    let allocation = by_address(address)?;
    let was_live = allocation.is_live.swap(false, Ordering::AcqRel);
    Some(if was_live { Ok(()) } else { Err(CUresult::INVALID_VALUE) })
}

/// Before a launch: what the graph allocates must not be live already.
pub(crate) fn launching(graph: CUgraphExec) -> Result<(), CUresult> {
    if !exist() {
        return Ok(());
    }
    let state = state();
    let Some(held) = state.as_ref().and_then(|state| state.held.get(&(graph.0 as u64))) else {
        return Ok(());
    };
    let lasting: Vec<_> = held
        .allocations
        .iter()
        .filter(|allocation| !allocation.is_freed_inside.load(Ordering::Acquire))
        .collect();
    if !held.frees_on_launch && lasting.iter().any(|allocation| allocation.is_live.load(Ordering::Acquire)) {
        return Err(CUresult::INVALID_VALUE);
    }
    lasting.iter().for_each(|allocation| allocation.is_live.store(true, Ordering::Release));
    Ok(())
}

/// `cuMemAllocAsync` in a capture.
pub(crate) fn captured_allocation(
    session: &Session,
    stream: CUstream,
    bytes: usize,
) -> Result<CUdeviceptr, CUresult> {
    let graph = capture::graph_of(stream).ok_or(CUresult::ILLEGAL_STATE)?;
    let allocation = allocate(session, &*context::current()?, graph, bytes as u64)?;
    capture::add(session, stream, NodeWork::Allocation(allocation.ticket))
        .inspect_err(|_| undo(graph, allocation.ticket))?;
    Ok(allocation.address)
}

/// `cuMemFreeAsync` in a capture.
pub(crate) fn captured_free(
    session: &Session,
    stream: CUstream,
    address: CUdeviceptr,
) -> Result<(), CUresult> {
    let allocation = by_address(address).ok_or(CUresult::INVALID_VALUE)?;
    freed_inside(&allocation)?;
    capture::add(session, stream, NodeWork::Free(allocation.ticket)).map(drop)
}

// The entry points. CUDA Driver API, section "Graph Management".

pub(crate) unsafe fn cuDeviceGetGraphMemAttribute(
    device: CUdevice,
    attr: CUgraphMem_attribute,
    value: *mut c_void,
) -> Result<(), CUresult> {
    session::device(device)?;
    attr.name().ok_or(CUresult::INVALID_VALUE)?;
    let used: u64 = {
        let state = state();
        let all = state.iter().flat_map(|state| state.by_ticket.values().filter_map(Weak::upgrade));
        all.filter(|allocation| allocation.device == device).map(|allocation| allocation.bytes).sum()
    };
    let high = HIGH.fetch_max(used, Ordering::AcqRel).max(used);
    use CUgraphMem_attribute as A;
    let word = if matches!(attr, A::USED_MEM_CURRENT | A::RESERVED_MEM_CURRENT) { used } else { high };
    // SAFETY: the program passes a place for 64 bits.
    unsafe { out::write(value.cast(), word) }
}

/// High-water marks can be set back to what is in use, and nothing else can be set.
pub(crate) unsafe fn cuDeviceSetGraphMemAttribute(
    device: CUdevice,
    attr: CUgraphMem_attribute,
    value: *mut c_void,
) -> Result<(), CUresult> {
    session::device(device)?;
    use CUgraphMem_attribute as A;
    if value.is_null() || !matches!(attr, A::USED_MEM_HIGH | A::RESERVED_MEM_HIGH) {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and this attribute's value has 64 bits.
    if unsafe { value.cast::<u64>().read_unaligned() } != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    HIGH.store(0, Ordering::Release);
    Ok(())
}

/// Memory of graphs that are gone has been given back already.
pub(crate) unsafe fn cuDeviceGraphMemTrim(device: CUdevice) -> Result<(), CUresult> {
    session::device(device).map(drop)
}
