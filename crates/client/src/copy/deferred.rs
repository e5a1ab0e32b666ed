//! Copies that read this process's memory when their stream gets there.
//!
//! CUDA reads page-locked memory when the copy runs. Here its bytes are sent when the copy is
//! queued, as long as nothing is due to change them until then: no data of a copy from the device
//! that are still to land there, no function of the program that a stream will call, and no stream
//! that waits for the program's word. Otherwise the copy is a graph of one node, for which the
//! bytes are asked when its turn comes (`host_copy.rs`). Other memory is read at the call, as CUDA
//! does (CUDA Driver API, "API synchronization behavior").

use std::sync::{Mutex, PoisonError};

use sluice_cuda::*;
use sluice_wire::{GraphPlace, NodePlace, NodeWork, commands};

use crate::device::Device;
use crate::generated::stubs;
use crate::graph::{cuGraphDestroy, cuGraphExecDestroy, cuGraphInstantiateWithFlags};
use crate::host_memory::blocks;
use crate::session::issue::Issue;
use crate::session::{self, Session};
use crate::stream::{self, host_function};

/// A stream that waits for a value, and the number of its command on the device. It is unknown when
/// the program writes the value, and what else it writes before.
struct Wait {
    device: CUdevice,
    stream: CUstream,
    sent: u64,
}

static WAITS: Mutex<Vec<Wait>> = Mutex::new(Vec::new());

/// Notes that a stream waits for a value that the program writes.
pub(crate) fn awaits_the_program(stream: CUstream) -> Result<(), CUresult> {
    let device = stream::device_of(stream)?;
    let sent = session::device(device)?.work.so_far();
    let mut waits = WAITS.lock().unwrap_or_else(PoisonError::into_inner);
    waits.retain(|wait| !(wait.is_over() || (wait.device, wait.stream) == (device, stream)));
    waits.push(Wait { device, stream, sent });
    Ok(())
}

impl Wait {
    /// Says whether the program has waited for the stream since.
    fn is_over(&self) -> bool {
        let covers = |device: &Device| {
            device.work.covers(self.sent) || stream::has_waited(self.device, self.stream, self.sent)
        };
        session::device(self.device).is_ok_and(covers)
    }
}

fn some_await_the_program() -> bool {
    let waits = WAITS.lock().unwrap_or_else(PoisonError::into_inner);
    waits.iter().any(|wait| !wait.is_over())
}

/// Sees to it that a copy from `bytes` bytes at `start` reads what is there when its stream gets to
/// it. True where the copy is queued, as `work` says; otherwise what is there now will do.
pub(crate) fn read_later(
    session: &'static Session,
    (start, bytes): (u64, u64),
    stream: CUstream,
    asynchronous: bool,
    work: impl FnOnce() -> Result<NodeWork, CUresult>,
) -> Result<bool, CUresult> {
    if asynchronous && may_change(start, bytes)? {
        match launch(session, work()?, stream) {
            // The node keeps no more of its own memory for it.
            Err(CUresult::OUT_OF_MEMORY) => {}
            launched => return launched.map(|()| true),
        }
    }
    settle(session, (start, bytes), stream, asynchronous).map(|()| false)
}

/// Waits until what a copy will read is there. An asynchronous one does not wait for the program's
/// word, which may come after it has returned.
pub(crate) fn settle(
    session: &Session,
    (start, bytes): (u64, u64),
    stream: CUstream,
    asynchronous: bool,
) -> Result<(), CUresult> {
    if !may_change(start, bytes)? || (asynchronous && some_await_the_program()) {
        return Ok(());
    }
    session.call(&commands::cuStreamSynchronize { hStream: session.find(stream)? }, |()| ())
}

fn may_change(start: u64, bytes: u64) -> Result<bool, CUresult> {
    if bytes == 0 || !blocks::is_pinned(start, bytes) {
        return Ok(false);
    }
    let sessions = &session::all()?.list;
    // Work that has been waited for changes nothing any more.
    if !sessions.iter().flat_map(|session| &session.devices).any(|device| device.work.is_pending()) {
        return Ok(false);
    }
    let range = start..start + bytes;
    Ok(some_await_the_program()
        || host_function::may_write(&range)
        || sessions.iter().any(|session| session.link.will_write(&range)))
}

fn launch(session: &'static Session, work: NodeWork, stream: CUstream) -> Result<(), CUresult> {
    let ticket = if let NodeWork::Copy(copy) = &work { copy.ticket } else { 0 };
    let mut graph = CUgraph::NULL;
    // SAFETY: the handle is written to a local.
    unsafe { stubs::cuGraphCreate(session, &mut graph, 0) }.inspect_err(|_| host_function::forget(ticket))?;
    let launched = launch_alone(session, graph, work, stream, ticket);
    // SAFETY: no other code has it. What was launched stays until it is done.
    unsafe { cuGraphDestroy(graph)? };
    launched
}

fn launch_alone(
    session: &'static Session,
    graph: CUgraph,
    work: NodeWork,
    stream: CUstream,
    ticket: u64,
) -> Result<(), CUresult> {
    let place = NodePlace::Graph(GraphPlace { graph: session.find(graph)?, dependencies: Vec::new() });
    let node = session.mint::<CUgraphNode>()?;
    let command = commands::cuGraphAddNode_v2 { phGraphNode: session.find(node)?, place, work };
    // From here on the graph has the ticket, and the worker reports when no graph has it any more.
    session.call(&command, |()| ()).inspect_err(|_| host_function::forget(ticket))?;
    let mut executable = CUgraphExec::NULL;
    // SAFETY: the handles are this function's own, and written to locals.
    unsafe {
        cuGraphInstantiateWithFlags(&mut executable, graph, 0)?;
        let launched = stubs::cuGraphLaunch(session, executable, stream);
        cuGraphExecDestroy(executable)?;
        launched
    }
}
