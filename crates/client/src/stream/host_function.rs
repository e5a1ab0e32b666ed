//! Functions of the program that run in the order of a stream or a graph, in this process, and
//! copies of graphs between this process and the device.
//!
//! The stream stops on the node; the worker pushes the function's ticket; the client runs the
//! function and says so, and the stream continues. Data pushed by earlier copies of the stream have
//! landed by then, since they came first. The functions of a session run in a thread of their own,
//! which is started with the first of them: a program may well wait for its function without
//! calling CUDA, so no thread of the program can be relied on to run it.
//!
//! A function sees mapped and managed memory as its stream has left it, and what it writes there is
//! on the device before the stream continues ([`mirror`]). It may not call CUDA. Once a stream has
//! failed, callbacks (`cuStreamAddCallback`) are called with the error, by the word of the node's
//! driver or when the session has ended, and functions never.
//!
//! What a graph calls is kept, and called at each launch, until the worker says that no graph has
//! it any more. A copy of a graph is called like a function: it brings the data that the device is
//! about to read, or takes those that it has written.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;
use sluice_wire::{Handle, HostCall, Id, NodeWork, TICKET_RELEASED, commands};

use crate::abi::call::called_back;
use crate::abi::out;
use crate::context;
use crate::copy::boxes::BoxCopy;
use crate::host_memory::mirror;
use crate::session::issue::{Issue, wanted};
use crate::session::{self, Session};
use crate::stream::capture;

/// A function or copy that waits until its stream reaches it.
#[derive(Clone)]
pub(crate) struct Pending {
    function: Function,
    user_data: *mut c_void,
    /// A graph may call it again.
    repeats: bool,
}

#[derive(Clone)]
enum Function {
    Host(unsafe extern "C" fn(*mut c_void)),
    /// With the stream as the program named it.
    Stream(unsafe extern "C" fn(CUstream, CUresult, *mut c_void), CUstream),
    Copy(BoxCopy),
    /// Of a user object of graphs.
    Destructor(unsafe extern "C" fn(*mut c_void)),
}

impl Pending {
    /// A host function.
    pub(crate) fn host(function: unsafe extern "C" fn(*mut c_void), user_data: *mut c_void) -> Pending {
        Pending { function: Function::Host(function), user_data, repeats: false }
    }

    /// A copy of a graph.
    pub(crate) fn copying(copy: BoxCopy) -> Pending {
        Pending { function: Function::Copy(copy), user_data: std::ptr::null_mut(), repeats: true }
    }

    pub(crate) fn copy(&self) -> Option<BoxCopy> {
        match &self.function {
            Function::Copy(copy) => Some(*copy),
            Function::Host(_) | Function::Stream(..) | Function::Destructor(_) => None,
        }
    }

    /// As the program passed it.
    pub(crate) fn params(&self) -> Option<CUDA_HOST_NODE_PARAMS> {
        match self.function {
            Function::Host(function) => {
                Some(CUDA_HOST_NODE_PARAMS { fn_: Some(function), userData: self.user_data })
            }
            Function::Stream(..) | Function::Copy(_) | Function::Destructor(_) => None,
        }
    }

    /// Whether it may write to this memory: of a function only the program knows.
    fn may_write(&self, range: &Range<u64>) -> bool {
        match &self.function {
            Function::Host(_) | Function::Stream(..) => true,
            Function::Copy(copy) => copy.writes_here(range),
            Function::Destructor(_) => false,
        }
    }

    /// # Safety
    /// The program passed this function to be called with this pointer, or this copy's memory for
    /// each launch.
    unsafe fn run(self, session: &Session, ticket: u64, status: CUresult) -> Result<(), CUresult> {
        match self.function {
            // SAFETY: the caller's.
            Function::Copy(copy) => return unsafe { copy.run_in_graph(session, ticket) },
            // SAFETY: the caller's.
            Function::Destructor(function) => called_back(|| unsafe { function(self.user_data) }),
            // SAFETY: the caller's. There is nothing more to be had from the device.
            _ if !status.is_success() => unsafe { self.call(status) },
            Function::Host(_) | Function::Stream(..) => {
                mirror::fetch(session)?;
                // SAFETY: the caller's.
                unsafe { self.call(CUresult::SUCCESS) };
                mirror::push(session)?;
            }
        }
        Ok(())
    }

    /// Calls what streams call.
    ///
    /// # Safety
    /// The program passed this function to be called with this pointer.
    unsafe fn call(self, status: CUresult) {
        called_back(|| match self.function {
            // SAFETY: the caller's.
            Function::Host(function) => unsafe { function(self.user_data) },
            // SAFETY: the caller's.
            Function::Stream(function, stream) => unsafe { function(stream, status, self.user_data) },
            Function::Copy(_) | Function::Destructor(_) => {}
        });
    }
}

// SAFETY: the program handed the pointer over for its function to be called with it, from any
// thread.
unsafe impl Send for Pending {}

/// By ticket; those of all sessions are different.
struct Queue {
    pending: Option<HashMap<u64, Entry>>,
    /// Those whose streams have reached them.
    running: Vec<(u64, Entry)>,
}

#[derive(Clone)]
struct Entry {
    /// Its session's place among all.
    session: u8,
    what: Pending,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue { pending: None, running: Vec::new() });

fn queue() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Enters something under a ticket, and sees to it that a thread will run it.
fn enter(session: &'static Session, ticket: u64, pending: Pending) -> Result<(), CUresult> {
    let mut queue = queue();
    if !session.has_host_thread.load(Ordering::Acquire) {
        let thread = std::thread::Builder::new().name("sluice-host-functions".to_string());
        let device = session.devices.first().map_or(0, |device| device.ordinal);
        thread.spawn(move || context::at(device, || run(session))).map_err(|_| CUresult::OPERATING_SYSTEM)?;
        mirror::go_beside(session);
    }
    queue.pending.get_or_insert_default().insert(ticket, Entry { session: session.index, what: pending });
    Ok(())
}

/// Keeps something that a graph may call; answers its ticket.
pub(crate) fn keep(session: &'static Session, pending: Pending) -> Result<u64, CUresult> {
    let ticket = session.link.ticket();
    enter(session, ticket, Pending { repeats: true, ..pending })?;
    Ok(ticket)
}

/// What is kept for a graph.
pub(crate) fn kept(ticket: u64) -> Option<Pending> {
    queue().pending.as_ref()?.get(&ticket).map(|entry| entry.what.clone())
}

pub(crate) fn forget(ticket: u64) {
    take_back(ticket);
}

/// Whether it was still to be called.
fn take_back(ticket: u64) -> bool {
    queue().pending.as_mut().is_some_and(|pending| pending.remove(&ticket).is_some())
}

/// What a ticket stands for, which runs now; what is called once is forgotten.
fn take(ticket: u64) -> Option<Pending> {
    let mut queue = queue();
    let pending = queue.pending.as_mut()?;
    let repeats = pending.get(&ticket)?.what.repeats;
    let taken = if repeats { pending.get(&ticket).cloned() } else { pending.remove(&ticket) };
    queue.running.extend(taken.clone().map(|entry| (ticket, entry)));
    taken.map(|entry| entry.what)
}

impl Queue {
    fn entries(&self) -> impl Iterator<Item = &Entry> {
        let pending = self.pending.iter().flat_map(HashMap::values);
        pending.chain(self.running.iter().map(|(_, entry)| entry))
    }
}

/// Whether something that streams or graphs will call here, or that runs now, may write to this
/// memory.
pub(crate) fn may_write(range: &Range<u64>) -> bool {
    queue().entries().any(|entry| entry.what.may_write(range))
}

/// CUDA Driver API, section "Execution Control".
pub(crate) unsafe fn cuLaunchHostFunc(
    hStream: CUstream,
    func: CUhostFn,
    userData: *mut c_void,
) -> Result<(), CUresult> {
    let pending = Pending::host(func.ok_or(CUresult::INVALID_VALUE)?, userData);
    if capture::of(hStream).is_none() {
        return enqueue(hStream, pending);
    }
    let session = session::enter()?;
    session.find(hStream)?;
    let ticket = keep(session, pending)?;
    capture::add(session, hStream, NodeWork::HostCall(ticket)).inspect_err(|_| forget(ticket))?;
    Ok(())
}

/// `syncMode` chooses how the driver's own thread waits; here it is the program's.
pub(crate) unsafe fn cuLaunchHostFunc_v2(
    hStream: CUstream,
    func: CUhostFn,
    userData: *mut c_void,
    syncMode: u32,
) -> Result<(), CUresult> {
    const MODES: u32 = 2;
    if syncMode >= MODES {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the same contract.
    unsafe { cuLaunchHostFunc(hStream, func, userData) }
}

/// CUDA Driver API, section "Stream Management".
pub(crate) unsafe fn cuStreamAddCallback(
    hStream: CUstream,
    callback: CUstreamCallback,
    userData: *mut c_void,
    flags: u32,
) -> Result<(), CUresult> {
    let callback = callback.ok_or(CUresult::INVALID_VALUE)?;
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    capture::check_not_capturing(hStream)?;
    // The program gets the name back that it used ("as passed to cuStreamAddCallback. May be
    // NULL"): a program that names the default stream at all says null.
    let name = if hStream == CUstream::LEGACY { CUstream::NULL } else { hStream };
    let function = Function::Stream(callback, name);
    enqueue(hStream, Pending { function, user_data: userData, repeats: false })
}

/// CUDA Driver API, section "Graph Management": an object that graphs keep alive. Its destructor
/// runs here.
pub(crate) unsafe fn cuUserObjectCreate(
    object_out: *mut CUuserObject,
    ptr: *mut c_void,
    destroy: CUhostFn,
    initialRefcount: u32,
    flags: u32,
) -> Result<(), CUresult> {
    /// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`, which must be said.
    const NO_SYNC: u32 = 1;
    let session = session::enter()?;
    wanted(object_out)?;
    let destroy = destroy.ok_or(CUresult::INVALID_VALUE)?;
    if initialRefcount == 0 || initialRefcount > i32::MAX as u32 || flags != NO_SYNC {
        return Err(CUresult::INVALID_VALUE);
    }
    let handle = session.mint::<CUuserObject>()?;
    let object = session.find(handle)?;
    let ticket = object.number();
    let function = Function::Destructor(destroy);
    enter(session, ticket, Pending { function, user_data: ptr, repeats: false })?;
    let command = commands::cuUserObjectCreate { object, initialRefcount };
    session.call(&command, |()| ()).inspect_err(|_| forget(ticket))?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(object_out, <CUuserObject as Handle>::Id::handle_from(ticket as usize)) }
}

fn enqueue(stream: CUstream, pending: Pending) -> Result<(), CUresult> {
    let session = session::enter()?;
    let hStream = session.find(stream)?;
    let (ticket, is_callback) = (session.link.ticket(), matches!(pending.function, Function::Stream(..)));
    enter(session, ticket, pending)?;
    // The program may now wait without another call, so the command must not linger in the outbox.
    let queued = session
        .queue(&commands::cuLaunchHostFunc { ticket, hStream, is_callback })
        .and_then(|()| session.link.flush_now());
    // A callback that was called for the session's failure has informed the program.
    queued.or_else(|error| if take_back(ticket) { Err(error) } else { Ok(()) })
}

/// Runs functions as their streams reach them, until the session has failed; then it calls the
/// callbacks that report the failure.
fn run(session: &'static Session) {
    run_until_failed(session);
    let error = session.link.check().err().unwrap_or(CUresult::UNKNOWN);
    for pending in take_callbacks(session) {
        // SAFETY: the program passed it to be called once, with an error where there is one.
        unsafe { pending.call(error) };
    }
}

/// The callbacks of a session, in the order in which streams were given them.
fn take_callbacks(session: &Session) -> Vec<Pending> {
    let mut queue = queue();
    let Some(pending) = queue.pending.as_mut() else { return Vec::new() };
    let is_one = |_: &u64, entry: &mut Entry| {
        entry.session == session.index && matches!(entry.what.function, Function::Stream(..))
    };
    let mut taken: Vec<_> = pending.extract_if(is_one).collect();
    taken.sort_unstable_by_key(|(ticket, _)| *ticket);
    taken.into_iter().map(|(_, entry)| entry.what).collect()
}

/// Copies have a thread of their own: a function may wait for what is behind
/// a copy in another stream.
fn run_until_failed(session: &'static Session) {
    let (copies, due) = channel();
    let device = session.devices.first().map_or(0, |device| device.ordinal);
    let thread = std::thread::Builder::new().name("sluice-copies".to_string());
    let copier = thread.spawn(move || {
        context::at(device, || {
            while due.recv().is_ok_and(|ticket| run_one(session, ticket, CUresult::SUCCESS).is_ok()) {}
        });
    });
    while let Ok(calls) = session.link.wait_for_host_calls() {
        for HostCall { ticket, status } in calls {
            if ticket & TICKET_RELEASED != 0 {
                forget(ticket & !TICKET_RELEASED);
                continue;
            }
            let is_copy = kept(ticket).is_some_and(|pending| pending.copy().is_some());
            let ran = match &copier {
                Ok(_) if is_copy => copies.send(ticket).map_err(|_| CUresult::UNKNOWN),
                _ => run_one(session, ticket, CUresult(status)),
            };
            if ran.is_err() {
                return;
            }
        }
    }
}

/// Runs a function, and lets its stream continue. Where that fails the stream would wait for ever,
/// so the session ends.
fn run_one(session: &Session, ticket: u64, status: CUresult) -> Result<(), CUresult> {
    try_one(session, ticket, status)
        .inspect_err(|&error| session.link.end(error, &"a function of the program's could not be run"))
}

fn try_one(session: &Session, ticket: u64, status: CUresult) -> Result<(), CUresult> {
    if let Some(pending) = take(ticket) {
        // SAFETY: the program passed this to be run when its turn comes.
        let ran = unsafe { pending.run(session, ticket, status) };
        let mut queue = queue();
        if let Some(at) = queue.running.iter().position(|(running, _)| *running == ticket) {
            queue.running.swap_remove(at);
        }
        drop(queue);
        ran?;
    }
    session.queue_quietly(&commands::HostCallDone { ticket })?;
    session.link.flush_now()
}
