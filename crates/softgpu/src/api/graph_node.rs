//! What nodes of graphs do, read and changed, and how they hang together (CUDA Driver API: Graph
//! Management).

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sluice_cuda::*;

use super::graph::{copy, fill, host, node_list, put_nodes};
use crate::base::ids::NodeId;
use crate::base::status::{Result, Status, call, put, require};
use crate::base::table::Table;
use crate::device::address_space;
use crate::device::driver;
use crate::graph::{Exec, Graph, Node, Work, graph_of};
use crate::image::array;
use crate::memory::copy::BoxLayout;
use crate::work::event::{Event, event};
use crate::work::op::{HostCall, Op};
use crate::work::user_object::UserObject;

/// Has `read` look at a node.
pub(super) fn with_node<R>(node: CUgraphNode, read: impl FnOnce(&Node) -> Result<R>) -> Result<R> {
    driver()?;
    let node = NodeId(node.0);
    let graph = graph_of(node)?;
    let body = graph.body();
    read(body.nodes.get(&node).ok_or(Status::INVALID_VALUE)?)
}

/// A node's work, which is no graph.
pub(super) fn op_of(node: CUgraphNode) -> Result<Op> {
    with_node(node, |node| match &node.work {
        Work::One(op) => Ok(op.clone()),
        Work::Child(_) | Work::Conditional(_) => Err(Status::INVALID_VALUE),
    })
}

/// Changes a node's work; it must stay of the same kind.
pub(super) fn set_op(node: CUgraphNode, op: Op) -> Result<()> {
    driver()?;
    let node = NodeId(node.0);
    let graph = graph_of(node)?;
    let mut body = graph.body();
    let node = body.nodes.get_mut(&node).ok_or(Status::INVALID_VALUE)?;
    match &mut node.work {
        Work::One(old) if std::mem::discriminant(old) == std::mem::discriminant(&op) => {
            *old = op;
            Ok(())
        }
        _ => Err(Status::INVALID_VALUE),
    }
}

fn replace(exec: CUgraphExec, node: CUgraphNode, op: Op) -> Result<()> {
    Exec::get(exec)?.replace(NodeId(node.0), op)
}

// ---- Structure ----

pub(crate) unsafe extern "C" fn cuGraphDestroyNode(node: CUgraphNode) -> CUresult {
    call(|| {
        driver()?;
        let node = NodeId(node.0);
        let graph = graph_of(node)?;
        let removed = graph.body().remove(node);
        removed.map(drop)
    })
}

pub(crate) unsafe extern "C" fn cuGraphRemoveDependencies(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> CUresult {
    call(|| {
        driver()?;
        let graph = Graph::get(graph)?;
        // SAFETY: arrays of `count` elements by contract.
        let (from, to) = unsafe { (node_list(from, count)?, node_list(to, count)?) };
        let mut body = graph.body();
        from.into_iter().zip(to).try_for_each(|(from, to)| body.disconnect(from, to))
    })
}

pub(crate) unsafe extern "C" fn cuGraphGetEdges_v2(
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> CUresult {
    call(|| {
        driver()?;
        require(count)?;
        if from.is_null() != to.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        let edges = Graph::get(graph)?.body().edges();
        if from.is_null() {
            // SAFETY: an output argument by contract.
            return unsafe { put(count, edges.len()) };
        }
        // SAFETY: an argument read and written by contract.
        let room = unsafe { count.read_unaligned() };
        if room == 0 {
            return Err(Status::INVALID_VALUE);
        }
        for index in 0..room {
            let edge = edges.get(index).map_or((0, 0), |(from, to)| (from.0, to.0));
            // SAFETY: arrays with room for `room` elements by contract.
            unsafe {
                put(from.add(index), CUgraphNode(edge.0))?;
                put(to.add(index), CUgraphNode(edge.1))?;
                if !data.is_null() {
                    put(data.add(index), CUgraphEdgeData::default())?;
                }
            }
        }
        // SAFETY: as above.
        unsafe { put(count, room.min(edges.len())) }
    })
}

pub(crate) unsafe extern "C" fn cuGraphGetEdges(
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    count: *mut usize,
) -> CUresult {
    // SAFETY: passed on.
    unsafe { cuGraphGetEdges_v2(graph, from, to, std::ptr::null_mut(), count) }
}

/// # Safety
/// As for [`put_nodes`]; `data` is null or as long as `places`.
unsafe fn put_neighbours(
    nodes: &[NodeId],
    places: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Result<()> {
    // SAFETY: by this function's contract.
    unsafe {
        put_nodes(nodes, places, count)?;
        if !data.is_null() && !places.is_null() {
            (0..count.read_unaligned()).try_for_each(|at| put(data.add(at), CUgraphEdgeData::default()))?;
        }
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn cuGraphNodeGetDependencies_v2(
    node: CUgraphNode,
    places: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> CUresult {
    call(|| {
        let before = with_node(node, |node| Ok(node.dependencies.clone()))?;
        // SAFETY: output arguments by contract.
        unsafe { put_neighbours(&before, places, data, count) }
    })
}

pub(crate) unsafe extern "C" fn cuGraphNodeGetDependentNodes_v2(
    node: CUgraphNode,
    places: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> CUresult {
    call(|| {
        driver()?;
        let node = NodeId(node.0);
        let edges = graph_of(node)?.body().edges();
        let behind: Vec<NodeId> =
            edges.into_iter().filter(|(from, _)| *from == node).map(|(_, to)| to).collect();
        // SAFETY: output arguments by contract.
        unsafe { put_neighbours(&behind, places, data, count) }
    })
}

pub(crate) unsafe extern "C" fn cuGraphNodeGetDependentNodes(
    node: CUgraphNode,
    places: *mut CUgraphNode,
    count: *mut usize,
) -> CUresult {
    // SAFETY: passed on.
    unsafe { cuGraphNodeGetDependentNodes_v2(node, places, std::ptr::null_mut(), count) }
}

pub(crate) unsafe extern "C" fn cuGraphNodeFindInClone(
    place: *mut CUgraphNode,
    original: CUgraphNode,
    clone: CUgraph,
) -> CUresult {
    call(|| {
        driver()?;
        let twin = Graph::get(clone)?.body().twin(NodeId(original.0)).ok_or(Status::INVALID_VALUE)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUgraphNode(twin.0)) }
    })
}

pub(crate) unsafe extern "C" fn cuGraphChildGraphNodeGetGraph(
    node: CUgraphNode,
    place: *mut CUgraph,
) -> CUresult {
    call(|| {
        let inner = with_node(node, |node| match &node.work {
            Work::Child(inner) => Ok(inner.0.handle),
            Work::One(_) | Work::Conditional(_) => Err(Status::INVALID_VALUE),
        })?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUgraph(inner)) }
    })
}

pub(crate) unsafe extern "C" fn cuGraphExecChildGraphNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    child: CUgraph,
) -> CUresult {
    call(|| {
        driver()?;
        Exec::get(exec)?.replace_child(NodeId(node.0), &*Graph::get(child)?)
    })
}

pub(crate) unsafe extern "C" fn cuGraphNodeSetEnabled(
    exec: CUgraphExec,
    node: CUgraphNode,
    enabled: u32,
) -> CUresult {
    call(|| {
        driver()?;
        Exec::get(exec)?.enable(NodeId(node.0), enabled != 0)
    })
}

pub(crate) unsafe extern "C" fn cuGraphNodeGetEnabled(
    exec: CUgraphExec,
    node: CUgraphNode,
    place: *mut u32,
) -> CUresult {
    call(|| {
        driver()?;
        let enabled = Exec::get(exec)?.is_enabled(NodeId(node.0))?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, enabled.into()) }
    })
}

pub(crate) unsafe extern "C" fn cuGraphExecGetFlags(exec: CUgraphExec, place: *mut u64) -> CUresult {
    call(|| {
        driver()?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, Exec::get(exec)?.flags) }
    })
}

// ---- Copies and fills ----

/// A copy as CUDA describes it. Pitches of one row are its width.
fn described(to: BoxLayout, from: BoxLayout, extent: crate::memory::copy::Extent) -> CUDA_MEMCPY3D {
    let on_device = |place: BoxLayout| address_space::contains(place.address);
    let kind = |place| if on_device(place) { CUmemorytype::DEVICE } else { CUmemorytype::HOST };
    let pitch = |place: BoxLayout| if place.pitch == 0 { extent.width } else { place.pitch } as usize;
    let height = |place: BoxLayout| match place.slice.checked_div(place.pitch) {
        Some(rows) if rows > 0 => rows as usize,
        _ => extent.height as usize,
    };
    let mut described = CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: kind(from),
        srcHost: if on_device(from) { 0 } else { from.address } as *const c_void,
        srcDevice: if on_device(from) { from.address } else { 0 },
        srcArray: CUarray::NULL,
        reserved0: std::ptr::null_mut(),
        srcPitch: pitch(from),
        srcHeight: height(from),
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: kind(to),
        dstHost: if on_device(to) { 0 } else { to.address } as *mut c_void,
        dstDevice: if on_device(to) { to.address } else { 0 },
        dstArray: CUarray::NULL,
        reserved1: std::ptr::null_mut(),
        dstPitch: pitch(to),
        dstHeight: height(to),
        WidthInBytes: extent.width as usize,
        Height: extent.height as usize,
        Depth: extent.depth as usize,
    };
    if let Some((array, corner)) = array::at(to.address) {
        (described.dstMemoryType, described.dstArray) = (CUmemorytype::ARRAY, array);
        [described.dstXInBytes, described.dstY, described.dstZ] = corner.map(|at| at as usize);
    }
    if let Some((array, corner)) = array::at(from.address) {
        (described.srcMemoryType, described.srcArray) = (CUmemorytype::ARRAY, array);
        [described.srcXInBytes, described.srcY, described.srcZ] = corner.map(|at| at as usize);
    }
    described
}

pub(crate) unsafe extern "C" fn cuGraphMemcpyNodeGetParams(
    node: CUgraphNode,
    place: *mut CUDA_MEMCPY3D,
) -> CUresult {
    call(|| {
        let Op::Copy(copy) = op_of(node)? else { return Err(Status::INVALID_VALUE) };
        let (to, from, extent) = copy.places().ok_or(Status::NOT_SUPPORTED)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, described(to, from, extent)) }
    })
}

pub(crate) unsafe extern "C" fn cuGraphMemcpyNodeSetParams(
    node: CUgraphNode,
    params: *const CUDA_MEMCPY3D,
) -> CUresult {
    // SAFETY: an input structure by contract.
    call(|| set_op(node, unsafe { copy(params, None) }?))
}

pub(crate) unsafe extern "C" fn cuGraphMemsetNodeGetParams(
    node: CUgraphNode,
    place: *mut CUDA_MEMSET_NODE_PARAMS,
) -> CUresult {
    call(|| {
        let Op::Fill(fill) = op_of(node)? else { return Err(Status::INVALID_VALUE) };
        let params = CUDA_MEMSET_NODE_PARAMS {
            dst: fill.address,
            pitch: fill.pitch as usize,
            value: fill.value,
            elementSize: fill.element,
            width: fill.width as usize,
            height: fill.height as usize,
        };
        // SAFETY: an output argument by contract.
        unsafe { put(place, params) }
    })
}

pub(crate) unsafe extern "C" fn cuGraphMemsetNodeSetParams(
    node: CUgraphNode,
    params: *const CUDA_MEMSET_NODE_PARAMS,
) -> CUresult {
    // SAFETY: an input structure by contract.
    call(|| set_op(node, unsafe { fill(params, None) }?))
}

// ---- Host functions and events ----

pub(crate) unsafe extern "C" fn cuGraphHostNodeGetParams(
    node: CUgraphNode,
    place: *mut CUDA_HOST_NODE_PARAMS,
) -> CUresult {
    call(|| {
        let Op::HostCall(HostCall { function, data }) = op_of(node)? else {
            return Err(Status::INVALID_VALUE);
        };
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUDA_HOST_NODE_PARAMS { fn_: function, userData: data }) }
    })
}

pub(crate) unsafe extern "C" fn cuGraphHostNodeSetParams(
    node: CUgraphNode,
    params: *const CUDA_HOST_NODE_PARAMS,
) -> CUresult {
    // SAFETY: an input structure by contract.
    call(|| set_op(node, unsafe { host(params) }?))
}

/// Reads, changes, and changes in an executable graph the event of one kind of node.
macro_rules! event_nodes {
    ($($work:ident: $get:ident, $set:ident, $exec:ident;)*) => {$(
        pub(crate) unsafe extern "C" fn $get(node: CUgraphNode, place: *mut CUevent) -> CUresult {
            call(|| {
                let Op::$work(event) = op_of(node)? else { return Err(Status::INVALID_VALUE) };
                // SAFETY: an output argument by contract.
                unsafe { put(place, handle(&event)) }
            })
        }

        pub(crate) unsafe extern "C" fn $set(node: CUgraphNode, handle: CUevent) -> CUresult {
            call(|| set_op(node, Op::$work(event(handle)?)))
        }

        pub(crate) unsafe extern "C" fn $exec(
            exec: CUgraphExec,
            node: CUgraphNode,
            handle: CUevent,
        ) -> CUresult {
            call(|| replace(exec, node, Op::$work(event(handle)?)))
        }
    )*};
}

fn handle(event: &Event) -> CUevent {
    CUevent(event.handle)
}

event_nodes! {
    RecordEvent: cuGraphEventRecordNodeGetEvent, cuGraphEventRecordNodeSetEvent, cuGraphExecEventRecordNodeSetEvent;
    AwaitEvent: cuGraphEventWaitNodeGetEvent, cuGraphEventWaitNodeSetEvent, cuGraphExecEventWaitNodeSetEvent;
}

// ---- Objects that graphs keep alive ----

/// A user object as the program knows it: the references that are its own.
pub(crate) struct Owned {
    object: Mutex<Option<Arc<UserObject>>>,
    weak: std::sync::Weak<UserObject>,
    references: AtomicU32,
}

static OBJECTS: Table<Owned> = Table::new(11);

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`, which must be said.
const NO_SYNC: u32 = 1;
/// The graph takes over references of the caller's (`CU_GRAPH_USER_OBJECT_MOVE`).
const MOVE: u32 = 1;

impl Owned {
    fn get(handle: CUuserObject) -> Result<Arc<Self>> {
        driver()?;
        OBJECTS.get(handle.0).ok_or(Status::INVALID_VALUE)
    }

    /// Gives up references of the program's; with the last one its hold on the object.
    fn release(&self, count: u32) -> Result<()> {
        let less = |held: u32| held.checked_sub(count);
        let held = self.references.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        let held = held.map_err(|_| Status::INVALID_VALUE)?;
        let last = if held == count {
            self.object.lock().unwrap_or_else(PoisonError::into_inner).take()
        } else {
            None
        };
        // The destructor of the program may run here, without any lock.
        drop(last);
        Ok(())
    }
}

pub(crate) unsafe extern "C" fn cuUserObjectCreate(
    place: *mut CUuserObject,
    data: *mut c_void,
    destroy: CUhostFn,
    references: u32,
    flags: u32,
) -> CUresult {
    call(|| {
        driver()?;
        require(place)?;
        if destroy.is_none() || references == 0 || flags != NO_SYNC {
            return Err(Status::INVALID_VALUE);
        }
        let object = Arc::new(UserObject { destroy, data });
        let weak = Arc::downgrade(&object);
        let owned = OBJECTS.mint();
        let references = AtomicU32::new(references);
        OBJECTS.insert_at(owned, Arc::new(Owned { object: Mutex::new(Some(object)), weak, references }));
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUuserObject(owned)) }
    })
}

pub(crate) unsafe extern "C" fn cuUserObjectRetain(object: CUuserObject, count: u32) -> CUresult {
    call(|| {
        let owned = Owned::get(object)?;
        let more = |held: u32| if held == 0 { None } else { held.checked_add(count) };
        let retained = owned.references.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        retained.map(drop).map_err(|_| Status::INVALID_VALUE)
    })
}

pub(crate) unsafe extern "C" fn cuUserObjectRelease(object: CUuserObject, count: u32) -> CUresult {
    call(|| Owned::get(object)?.release(count))
}

pub(crate) unsafe extern "C" fn cuGraphRetainUserObject(
    graph: CUgraph,
    object: CUuserObject,
    count: u32,
    flags: u32,
) -> CUresult {
    call(|| {
        let (graph, owned) = (Graph::get(graph)?, Owned::get(object)?);
        if flags & !MOVE != 0 || count == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let shared = owned.weak.upgrade().ok_or(Status::INVALID_VALUE)?;
        {
            let mut body = graph.body();
            match body.objects.iter_mut().find(|(held, _)| Arc::ptr_eq(held, &shared)) {
                Some((_, held)) => *held = held.saturating_add(count),
                None => body.objects.push((shared, count)),
            }
        }
        if flags & MOVE != 0 { owned.release(count) } else { Ok(()) }
    })
}

pub(crate) unsafe extern "C" fn cuGraphReleaseUserObject(
    graph: CUgraph,
    object: CUuserObject,
    count: u32,
) -> CUresult {
    call(|| {
        let (graph, owned) = (Graph::get(graph)?, Owned::get(object)?);
        let shared = owned.weak.upgrade().ok_or(Status::INVALID_VALUE)?;
        let mut body = graph.body();
        let at = body.objects.iter().position(|(held, _)| Arc::ptr_eq(held, &shared));
        let at = at.ok_or(Status::INVALID_VALUE)?;
        let held = body.objects[at].1.checked_sub(count).ok_or(Status::INVALID_VALUE)?;
        body.objects[at].1 = held;
        let gone = (held == 0).then(|| body.objects.swap_remove(at));
        drop(body);
        drop(gone);
        Ok(())
    })
}
