//! Calls that a stream makes when it gets to a place: data or a message that is sent to the client,
//! and host functions, which the client runs.

use std::ffi::c_void;

use sluice_cuda::*;
use sluice_wire::{UserObjectId, commands};

use crate::outbox::{Outbox, Push};
use crate::session::Session;
use crate::session::execute::Execute;

/// What happens when a stream gets to a place.
pub(crate) enum Call {
    Push(Push),
    /// Also once the stream has failed, if it is a callback.
    Client {
        ticket: u64,
        is_callback: bool,
    },
}

/// What the driver's callback gets.
struct Callback {
    call: Call,
    outbox: std::sync::Arc<Outbox>,
    host_calls: std::sync::Arc<crate::session::host_calls::HostCalls>,
}

impl Session {
    pub(crate) fn launch_host_function(&self, command: commands::cuLaunchHostFunc) -> Result<(), CUresult> {
        let stream = self.find(command.hStream)?;
        if !self.host_calls.expect(command.ticket) {
            return Err(CUresult::INVALID_VALUE);
        }
        let (ticket, is_callback) = (command.ticket, command.is_callback);
        self.call_in_order(stream, Call::Client { ticket, is_callback })
            .inspect_err(|_| self.host_calls.forget(ticket))
    }

    pub(crate) fn end_host_call(&self, command: commands::HostCallDone) -> Result<(), CUresult> {
        self.host_calls.done(command.ticket);
        // Of a user object the destructor has run, so that nothing can use it any more; other
        // tickets name none.
        if self.remove(UserObjectId(command.ticket)).is_ok() {
            self.graphs.references.forget(UserObjectId(command.ticket));
        }
        Ok(())
    }

    /// Has something done when the stream gets there.
    pub(crate) fn call_in_order(&self, stream: CUstream, call: Call) -> Result<(), CUresult> {
        let launch = self.table.cuLaunchHostFunc.ok_or(CUresult::NOT_SUPPORTED)?;
        self.refuse_capture(stream)?;
        let callback =
            Box::new(Callback { call, outbox: self.outbox.clone(), host_calls: self.host_calls.clone() });
        let add = self
            .table
            .cuStreamAddCallback
            .filter(|_| matches!(callback.call, Call::Client { is_callback: true, .. }));
        let data: *mut c_void = Box::into_raw(callback).cast();
        // SAFETY: the stream is live, and what is called takes the box over then.
        let result = unsafe {
            match add {
                Some(add) => add(stream, Some(run_stream_callback), data, 0),
                None => launch(stream, Some(run_callback), data),
            }
        }
        .ok();
        if result.is_err() {
            // SAFETY: the driver refused it, so nothing else will ever use the box.
            drop(unsafe { Box::from_raw(data.cast::<Callback>()) });
        }
        result
    }
}

/// Runs on a thread of the driver. Nothing in it can panic, and nothing in it calls the driver.
unsafe extern "C" fn run_callback(data: *mut c_void) {
    // SAFETY: as this function's.
    unsafe { run_stream_callback(CUstream::NULL, CUresult::SUCCESS, data) }
}

/// As [`run_callback`]; the stream may have failed.
unsafe extern "C" fn run_stream_callback(_: CUstream, status: CUresult, data: *mut c_void) {
    // SAFETY: `call_in_order` made this box, and the driver calls once.
    let callback = unsafe { Box::from_raw(data.cast::<Callback>()) };
    match callback.call {
        Call::Push(push) => callback.outbox.push(push),
        Call::Client { ticket, .. } => {
            let turn = callback.host_calls.begin(ticket);
            callback.outbox.push(Push::Call { ticket, status: status.0 });
            if status.is_success() {
                callback.host_calls.wait_turn(ticket, turn);
            }
            callback.host_calls.forget(ticket);
        }
    }
}
