//! Nodes that the client has a part in: its host functions, and copies from and to its memory.
//!
//! A function of the client is a host node whose callback asks the client and waits, as for
//! `cuLaunchHostFunc`. A copy is a graph of two nodes inside one: the data stop in memory of the
//! node in between, and the client brings them just before they are copied, or takes them just
//! after. So each launch moves what is in the client's memory when its turn comes, in the order
//! that the graph says.
//!
//! ```text
//!   to the device:    host node: the client puts its data ──▶ copy: buffer to device
//!   from the device:  copy: device to buffer ──▶ host node: the client takes the data
//! ```
//!
//! What a node needs lives as long as some graph that has it: the driver counts (CUDA user
//! objects), and when the last is gone, tells the client that its function or memory will not be
//! used again.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;
use sluice_wire::TICKET_RELEASED;

use crate::host_calls::HostCalls;
use crate::host_memory::{HostCharge, HostMemory};
use crate::outbox::{Outbox, Push};
use crate::session::Session;

/// Bytes of what a callback needs, about.
const CALL_BYTES: u64 = 256;
/// The memory belongs to all contexts (`CU_MEMHOSTALLOC_PORTABLE`).
const PORTABLE: u32 = 1;
/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`, which every object has to say.
const NO_SYNC: u32 = 1;
/// The graph takes over the reference of its creator (`CU_GRAPH_USER_OBJECT_MOVE`).
const MOVE: u32 = 1;

/// The buffers of copies, by ticket.
pub(crate) struct NodeData {
    memory: Arc<HostMemory>,
    state: Mutex<Buffers>,
}

#[derive(Default)]
struct Buffers {
    live: HashMap<u64, Buffer>,
    /// No longer used, oldest first. To free one may take until the device has nothing to do.
    spares: Vec<Buffer>,
}

/// Bytes of buffers that are kept to be used again.
const SPARES_MAX: u64 = 64 << 20;

impl Buffers {
    /// A buffer of this number of bytes, or not many more, if one is spare; and those that should
    /// be freed.
    fn spare(&mut self, bytes: u64) -> (Option<Buffer>, Vec<Buffer>) {
        let fits = |buffer: &Buffer| bytes <= buffer.bytes && buffer.bytes / 2 <= bytes.max(1 << 12);
        let found = self.spares.iter().position(fits).map(|at| self.spares.remove(at));
        let mut kept = 0;
        let newest_kept = self.spares.iter().rev().take_while(|buffer| {
            kept += buffer.bytes;
            kept <= SPARES_MAX
        });
        let first = self.spares.len() - newest_kept.count();
        (found, self.spares.drain(..first).collect())
    }
}

fn free(table: &DriverTable, buffer: &Buffer) -> Result<(), CUresult> {
    let free = table.cuMemFreeHost.ok_or(CUresult::NOT_SUPPORTED)?;
    // SAFETY: the driver's memory, which no graph uses any more; the thread that took it out of the
    // spare ones frees it alone.
    unsafe { free(buffer.start.cast()) }.ok()
}

/// Pinned memory of the driver.
struct Buffer {
    start: *mut u8,
    bytes: u64,
    #[expect(dead_code, reason = "held, not read")]
    held: HostCharge,
}

// SAFETY: plain memory; who reads and writes it when is ordered by the graphs that use it.
unsafe impl Send for Buffer {}

impl NodeData {
    pub(super) fn new(memory: Arc<HostMemory>) -> NodeData {
        NodeData { memory, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Buffers> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a buffer for a ticket. The lock is not held over calls of the driver that may wait for
    /// the device: what the device waits for may be data that the client puts into another buffer.
    fn make(&self, table: &DriverTable, ticket: u64, bytes: u64) -> Result<*mut c_void, CUresult> {
        let (spare, excess) = self.lock().spare(bytes);
        for buffer in excess {
            free(table, &buffer)?;
        }
        let buffer = match spare {
            Some(buffer) => buffer,
            None => self.allocate(table, bytes)?,
        };
        let start = buffer.start.cast();
        let mut state = self.lock();
        if state.live.contains_key(&ticket) {
            state.spares.push(buffer);
            return Err(CUresult::OUT_OF_MEMORY);
        }
        state.live.insert(ticket, buffer);
        Ok(start)
    }

    fn allocate(&self, table: &DriverTable, bytes: u64) -> Result<Buffer, CUresult> {
        let allocate = table.cuMemHostAlloc.ok_or(CUresult::NOT_SUPPORTED)?;
        let held = self.memory.take(bytes).or_else(|_| {
            let spares = std::mem::take(&mut self.lock().spares);
            spares.iter().try_for_each(|buffer| free(table, buffer))?;
            drop(spares);
            self.memory.take(bytes)
        })?;
        let mut start = std::ptr::null_mut();
        // SAFETY: the driver writes one pointer to a local.
        unsafe { allocate(&mut start, bytes.max(1) as usize, PORTABLE) }.ok()?;
        Ok(Buffer { start: start.cast(), bytes, held })
    }

    /// No graph uses it any more. It cannot be freed in a callback of the driver.
    fn retire(&self, ticket: u64) {
        let mut state = self.lock();
        let retired = state.live.remove(&ticket);
        state.spares.extend(retired);
    }

    /// Has `use_it` work on part of a buffer.
    fn with<R>(
        &self,
        ticket: u64,
        offset: u64,
        bytes: u64,
        use_it: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, CUresult> {
        let state = self.lock();
        let buffer = state.live.get(&ticket).ok_or(CUresult::INVALID_VALUE)?;
        if offset.checked_add(bytes).is_none_or(|end| end > buffer.bytes) {
            return Err(CUresult::INVALID_VALUE);
        }
        // SAFETY: inside the buffer, which stays while the lock is held; the copy beside it waits
        // for the client.
        let part =
            unsafe { std::slice::from_raw_parts_mut(buffer.start.add(offset as usize), bytes as usize) };
        Ok(use_it(part))
    }

    /// The client brings data for a copy to the device.
    pub(crate) fn put(&self, ticket: u64, offset: u64, bytes: &[u8]) -> Result<(), CUresult> {
        self.with(ticket, offset, bytes.len() as u64, |part| part.copy_from_slice(bytes))
    }

    /// The client takes data of a copy from the device.
    pub(crate) fn get(&self, ticket: u64, offset: u64, bytes: u64) -> Result<Vec<u8>, CUresult> {
        self.with(ticket, offset, bytes, |part| part.to_vec())
    }
}

/// What the driver's callback of a host node does. The callback gets its number, not its address: a
/// node may outlive what it was made with, such as one of an executable graph that was updated from
/// a graph that is gone.
struct NodeCall {
    ticket: u64,
    outbox: Arc<Outbox>,
    host_calls: Arc<HostCalls>,
    data: Arc<NodeData>,
    #[expect(dead_code, reason = "held, not read")]
    held: HostCharge,
}

/// Those that some graph has, by number.
static NODE_CALLS: LazyLock<Mutex<HashMap<usize, Arc<NodeCall>>>> = LazyLock::new(Mutex::default);

fn node_calls() -> MutexGuard<'static, HashMap<usize, Arc<NodeCall>>> {
    NODE_CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NodeCall {
    /// Its number, as the driver keeps it.
    fn enter(self) -> *mut c_void {
        static NUMBERS: AtomicUsize = AtomicUsize::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        node_calls().insert(number, Arc::new(self));
        std::ptr::without_provenance_mut(number)
    }
}

impl Session {
    /// What the callback of a host node of this graph needs; it stays while the graph, or one that
    /// came of it, does.
    fn node_call(&self, graph: Option<CUgraph>, ticket: u64) -> Result<CUDA_HOST_NODE_PARAMS, CUresult> {
        let call = NodeCall {
            ticket,
            outbox: Arc::clone(&self.outbox),
            host_calls: Arc::clone(&self.host_calls),
            data: Arc::clone(&self.graphs.data),
            held: self.graphs.data.memory.take(CALL_BYTES)?,
        };
        let data = call.enter();
        let node = CUDA_HOST_NODE_PARAMS { fn_: Some(run), userData: data };
        self.host_calls.keep(ticket);
        // Without a graph to tie it to, or a driver that counts, it stays until the end of the
        // session.
        let Some(graph) = graph else { return Ok(node) };
        let (Some(create), Some(retain), Some(release)) = (
            self.table.cuUserObjectCreate,
            self.table.cuGraphRetainUserObject,
            self.table.cuUserObjectRelease,
        ) else {
            return Ok(node);
        };
        let mut object = CUuserObject::NULL;
        // SAFETY: the driver writes one handle to a local; `released` is called with the number.
        if let Err(error) = unsafe { create(&mut object, data, Some(released), 1, NO_SYNC) }.ok() {
            node_calls().remove(&data.addr());
            self.host_calls.forget(ticket);
            return Err(error);
        }
        // SAFETY: the graph is live, and the object's one reference is ours to give.
        unsafe {
            if let Err(error) = retain(graph, object, 1, MOVE).ok() {
                return release(object, 1).ok().and(Err(error));
            }
        }
        Ok(node)
    }

    /// A host node's parameters, for a function of the client.
    pub(super) fn host_node(
        &self,
        graph: Option<CUgraph>,
        ticket: u64,
    ) -> Result<CUDA_HOST_NODE_PARAMS, CUresult> {
        self.node_call(graph, ticket)
    }

    /// Two nodes in a graph of their own: a copy between the device and the client. `describe`
    /// completes the copy's description with the buffer. The caller destroys the graph once it is
    /// copied into a node.
    pub(super) fn copy_across(
        &self,
        graph: Option<CUgraph>,
        (ticket, bytes): (u64, u64),
        (to_device, context): (bool, CUcontext),
        describe: impl FnOnce(*mut c_void) -> Result<CUDA_MEMCPY3D, CUresult>,
    ) -> Result<CUgraph, CUresult> {
        let create = self.table.cuGraphCreate.ok_or(CUresult::NOT_SUPPORTED)?;
        let destroy = self.table.cuGraphDestroy.ok_or(CUresult::NOT_SUPPORTED)?;
        let copy = describe(self.graphs.data.make(&self.table, ticket, bytes)?)?;
        let host = self.node_call(graph, ticket).inspect_err(|_| self.graphs.data.retire(ticket))?;
        let mut pair = CUgraph::NULL;
        // SAFETY: the driver writes one handle to a local.
        unsafe { create(&mut pair, 0) }.ok()?;
        let filled = self.fill_pair(pair, &host, &copy, (to_device, context));
        if filled.is_err() {
            // SAFETY: made just now, and not known elsewhere.
            unsafe { destroy(pair) }.ok()?;
        }
        filled.map(|()| pair)
    }

    fn fill_pair(
        &self,
        pair: CUgraph,
        host: &CUDA_HOST_NODE_PARAMS,
        copy: &CUDA_MEMCPY3D,
        (to_device, context): (bool, CUcontext),
    ) -> Result<(), CUresult> {
        let add_host = self.table.cuGraphAddHostNode.ok_or(CUresult::NOT_SUPPORTED)?;
        let add_copy = self.table.cuGraphAddMemcpyNode.ok_or(CUresult::NOT_SUPPORTED)?;
        let (mut first, mut second) = (CUgraphNode::NULL, CUgraphNode::NULL);
        // SAFETY: the graph is live and the nodes are locals; the copy's sides are the session's
        // memory and the buffer, which stays as long as the callback's box.
        unsafe {
            if to_device {
                add_host(&mut first, pair, std::ptr::null(), 0, host).ok()?;
                add_copy(&mut second, pair, &first, 1, copy, context).ok()
            } else {
                add_copy(&mut first, pair, std::ptr::null(), 0, copy, context).ok()?;
                add_host(&mut second, pair, &first, 1, host).ok()
            }
        }
    }
}

/// Runs on a thread of the driver, at each launch. Nothing in it can panic, and nothing in it calls
/// the driver.
unsafe extern "C" fn run(call: *mut c_void) {
    let call = node_calls().get(&call.addr()).cloned();
    let Some(call) = call else { return };
    let turn = call.host_calls.begin(call.ticket);
    call.outbox.push(Push::Call { ticket: call.ticket, status: 0 });
    call.host_calls.wait_turn(call.ticket, turn);
}

/// No graph has the node any more.
unsafe extern "C" fn released(call: *mut c_void) {
    let call = node_calls().remove(&call.addr());
    let Some(call) = call else { return };
    call.host_calls.forget(call.ticket);
    call.data.retire(call.ticket);
    call.outbox.push(Push::Call { ticket: call.ticket | TICKET_RELEASED, status: 0 });
}

/// A user object of the program: its destructor runs in the client.
struct ClientObject {
    ticket: u64,
    outbox: Arc<Outbox>,
}

/// Makes a user object of the program, with this number of references.
pub(crate) fn user_object(session: &Session, ticket: u64, references: u32) -> Result<CUuserObject, CUresult> {
    let create = session.table.cuUserObjectCreate.ok_or(CUresult::NOT_SUPPORTED)?;
    let boxed = Box::new(ClientObject { ticket, outbox: Arc::clone(&session.outbox) });
    let data: *mut c_void = Box::into_raw(boxed).cast();
    let mut object = CUuserObject::NULL;
    // SAFETY: `object_gone` takes the box over when the driver calls it, once.
    let made = unsafe { create(&mut object, data, Some(object_gone), references, NO_SYNC) }.ok();
    if made.is_err() {
        // SAFETY: the driver refused, so that nothing else has the box.
        drop(unsafe { Box::from_raw(data.cast::<ClientObject>()) });
    }
    made.map(|()| object)
}

unsafe extern "C" fn object_gone(data: *mut c_void) {
    // SAFETY: `user_object` made the box, and the driver calls once.
    let object = unsafe { Box::from_raw(data.cast::<ClientObject>()) };
    object.outbox.push(Push::Call { ticket: object.ticket, status: 0 });
}
