//! Functions that the node was asked for and has not described yet.
//!
//! A module that has few functions comes with their names, so which there are is known, and
//! `cuModuleGetFunction` need not wait. What a launch has to know of a function, its parameters and
//! limits, only the node can say, and asking a driver for all would load them all. So the question
//! is sent, and the first use of the function takes the answer: it has come by then, or comes with
//! those of the module's other functions.

use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

use sluice_cuda::{CUdevice, CUresult};
use sluice_wire::{Command, Encode, FunctionId, FunctionInfo, ModuleId, commands, decode};

use crate::abi::ids::{self, Table};
use crate::link::command_id::CommandId;
use crate::module;
use crate::session::{self, Session};

#[derive(Debug)]
struct Awaited {
    module: u64,
    name: CString,
    /// As a function has it.
    home: Option<CUdevice>,
    answer: Mutex<Answer>,
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Due(CommandId),
    /// It does not come any more: the session is lost. The function is a library's, which is there
    /// anew.
    Lost,
    /// The function is there like any other.
    Come,
    Refused(CUresult),
}

/// By the handle of the function.
static AWAITED: Table<Awaited> = Table::new();

impl Session {
    /// Asks for a function of which the module has said that it is there.
    pub(crate) fn ask_for_function(
        &self,
        (handle, module): (u64, u64),
        name: CString,
        home: Option<CUdevice>,
    ) -> Result<(), CUresult> {
        let command =
            commands::cuModuleGetFunction { hfunc: FunctionId(handle), hmod: ModuleId(module), name: &name };
        let op = commands::cuModuleGetFunction::OP;
        let place = self.link.ask(self.place(), op, |out| command.encode(out))?;
        AWAITED.insert(handle, Awaited { module, name, home, answer: Mutex::new(Answer::Due(place)) });
        Ok(())
    }
}

/// Waits for what the node says of a function, if it was asked for it.
pub(crate) fn settle(handle: u64) -> Result<(), CUresult> {
    let Some(awaited) = AWAITED.get(handle) else { return Ok(()) };
    // Other threads wait for the thread that waits.
    let mut answer = awaited.answer.lock().unwrap_or_else(PoisonError::into_inner);
    let (module, name) = (awaited.module, awaited.name.clone());
    let described = match *answer {
        Answer::Due(place) => describe(handle, place)
            .inspect(|info| module::learn(module, &name, info))
            .and_then(|info| module::enter(handle, module, name.clone(), awaited.home, info)),
        Answer::Lost => module::enter_again(handle, module, name.clone()),
        Answer::Come => return Ok(()),
        Answer::Refused(error) => return Err(error),
    };
    *answer = described.map_or_else(Answer::Refused, |()| Answer::Come);
    if described.is_ok() {
        AWAITED.remove(handle);
    }
    described
}

fn describe(handle: u64, place: CommandId) -> Result<FunctionInfo, CUresult> {
    let device = ids::device(handle).ok_or(CUresult::INVALID_HANDLE)?;
    let answer = session::of(device)?.link.take(place)?;
    answer.result.ok()?;
    let reply = decode::<commands::cuModuleGetFunctionReply>(&answer.payload);
    reply.map(|reply| reply.info).map_err(|_| CUresult::UNKNOWN)
}

/// No more answers come: the session is lost. Libraries have their functions again when they are
/// used.
pub(crate) fn forget_all() {
    AWAITED.remove_where(|awaited| awaited.home.is_none());
    for awaited in AWAITED.find(|_| true).into_iter().filter_map(|handle| AWAITED.get(handle)) {
        *awaited.answer.lock().unwrap_or_else(PoisonError::into_inner) = Answer::Lost;
    }
}

/// A module is about to be unloaded: nothing may still look its functions up then.
pub(crate) fn settle_all(module: u64) {
    for handle in AWAITED.find(|awaited| awaited.module == module) {
        // It is unwanted now.
        let _ = settle(handle);
        AWAITED.remove(handle);
    }
}
