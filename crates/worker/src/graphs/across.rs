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

use super::node_data::NodeData;
use crate::memory::host_memory::HostCharge;
use crate::outbox::{Outbox, Push};
use crate::session::Session;
use crate::session::host_calls::HostCalls;

/// Bytes of what a callback needs, about.
const CALL_BYTES: u64 = 256;
/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`, which every object has to say.
const NO_SYNC: u32 = 1;
/// The graph takes over the reference of its creator (`CU_GRAPH_USER_OBJECT_MOVE`).
const MOVE: u32 = 1;

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
