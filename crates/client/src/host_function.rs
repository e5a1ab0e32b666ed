//! `cuLaunchHostFunc`: functions of the program that run in stream order, in this process.
//!
//! The stream stops on the node; the worker pushes the function's ticket; the client runs the function and says so, and
//! the stream goes on. Data pushed by earlier copies of the stream have landed by then, since they came first. The
//! functions run in a thread of their own, which is started with the first of them: a program may well wait for its
//! function without calling CUDA, so no thread of the program can be relied on to run it.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;
use sluice_wire::commands;

use crate::issue::Issue;
use crate::session::{self, Session};

/// A function that waits for its turn.
struct Pending {
    function: Function,
    user_data: *mut c_void,
}

enum Function {
    Host(unsafe extern "C" fn(*mut c_void)),
    /// With the stream as the program named it.
    Stream(unsafe extern "C" fn(CUstream, CUresult, *mut c_void), CUstream),
}

impl Pending {
    /// # Safety
    /// The program passed this function to be called with this pointer.
    unsafe fn run(self) {
        match self.function {
            // SAFETY: the caller's.
            Function::Host(function) => unsafe { function(self.user_data) },
            // SAFETY: the caller's. A stream that failed never gets here: the session is lost, and so are its calls.
            Function::Stream(function, stream) => unsafe {
                function(stream, CUresult::SUCCESS, self.user_data)
            },
        }
    }
}

// SAFETY: the program handed the pointer over for its function to be called with it, from any thread.
unsafe impl Send for Pending {}

struct Queue {
    pending: Option<HashMap<u64, Pending>>,
    thread_runs: bool,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue { pending: None, thread_runs: false });

fn queue() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// CUDA Driver API, section "Execution Control".
pub(crate) unsafe fn cuLaunchHostFunc(
    hStream: CUstream,
    func: CUhostFn,
    userData: *mut c_void,
) -> Result<(), CUresult> {
    let function = Function::Host(func.ok_or(CUresult::INVALID_VALUE)?);
    enqueue(hStream, Pending { function, user_data: userData })
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
    enqueue(hStream, Pending { function: Function::Stream(callback, hStream), user_data: userData })
}

fn enqueue(stream: CUstream, pending: Pending) -> Result<(), CUresult> {
    let session = session::enter()?;
    let hStream = session.find(stream)?;
    let ticket = session.link.ticket();
    {
        let mut queue = queue();
        if !queue.thread_runs {
            let thread = std::thread::Builder::new().name("sluice-host-functions".to_string());
            thread.spawn(move || run(session)).map_err(|_| CUresult::OPERATING_SYSTEM)?;
            queue.thread_runs = true;
        }
        queue.pending.get_or_insert_default().insert(ticket, pending);
    }
    // The program may now wait without another call, so the command must not linger in the outbox.
    session
        .queue(&commands::cuLaunchHostFunc { ticket, hStream })
        .and_then(|()| session.link.flush_now())
        .inspect_err(|_| {
            let _ = take(ticket);
        })
}

fn take(ticket: u64) -> Option<Pending> {
    queue().pending.as_mut()?.remove(&ticket)
}

/// Runs functions as their turn comes, until the session is lost.
fn run(session: &Session) {
    while let Ok(tickets) = session.link.wait_for_host_calls() {
        for ticket in tickets {
            if let Some(pending) = take(ticket) {
                // SAFETY: the program passed this function to be called with this pointer.
                unsafe { pending.run() };
            }
            let done = session.queue_quietly(&commands::HostCallDone { ticket });
            if done.and_then(|()| session.link.flush_now()).is_err() {
                return;
            }
        }
    }
}
