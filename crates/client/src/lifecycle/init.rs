//! How the sessions of this process begin: at `cuInit`, or at the first call that needs one.
//!
//! ```text
//!   (none) -- cuDriverGetVersion, cuInit --> connected -- cuInit --> initialized
//!      \------- no node, refused ----------> failed: every later cuInit answers the same at once
//!   initialized -- fork, in the child --> detached: CUDA_ERROR_NOT_INITIALIZED
//!                                     \-> initialized, by a clone of the session
//!   initialized, its context lost -- cuDevicePrimaryCtxReset --> initialized, by a new session
//! ```
//!
//! A child that is forked before `cuInit` may still open a session of its own, as with any CUDA
//! driver. What a fork does is in [`fork`](crate::lifecycle::fork).

use std::sync::{Mutex, PoisonError};

use sluice_cuda::*;

use crate::context;
use crate::lifecycle::{ending, fork};
use crate::session::{self, Session, Sessions, are_many, attach, existing};

/// Why there are none. Held while they are being made.
static FAILED: Mutex<Option<CUresult>> = Mutex::new(None);

/// CUDA Driver API, section "Initialization".
pub(crate) unsafe fn cuInit(Flags: u32) -> Result<(), CUresult> {
    if Flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    connect()?;
    session::set_initialized();
    Ok(())
}

/// The sessions, made now if there are none, whether or not the program has called `cuInit`.
pub(crate) fn connect() -> Result<&'static Sessions, CUresult> {
    if let Some(error) = session::absence() {
        return Err(error);
    }
    if let Some(sessions) = existing() {
        return Ok(sessions);
    }
    let mut failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(sessions) = existing() {
        return Ok(sessions);
    }
    if let Some(error) = *failed {
        return Err(error);
    }
    match attach::attach() {
        Ok(sessions) => {
            fork::watch();
            context::set_on_several_nodes(sessions.list.len() > 1);
            Ok(begin(sessions))
        }
        Err(error) => {
            crate::abi::errors::say(format_args!("{error}"));
            *failed = Some(error.code());
            Err(error.code())
        }
    }
}

/// Makes a session in the place of one that is lost; what belonged to that is gone.
pub(crate) fn replace(lost: &'static Session) -> Result<(), CUresult> {
    let _one_at_a_time = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
    let is_replaced = |all: &Sessions| all.list.first().is_none_or(|first| !std::ptr::eq(first, lost));
    if existing().is_none_or(is_replaced) {
        return Ok(());
    }
    // A log holds one session. Those of several nodes know each other.
    if are_many() || lost.link.is_recorded() {
        return lost.link.check();
    }
    lost.link.hang_up();
    ending::forget_all(lost);
    let mut sessions = attach::attach().map_err(|error| {
        crate::abi::errors::say(format_args!("{error}"));
        error.code()
    })?;
    for device in sessions.list.iter_mut().flat_map(|session| &mut session.devices) {
        device.primary = lost.device(device.ordinal)?.primary.again();
    }
    begin(sessions);
    Ok(())
}

/// Makes sessions those of this process, for good: any thread may be inside one when the process
/// ends.
fn begin(sessions: Sessions) -> &'static Sessions {
    let sessions: &'static Sessions = Box::leak(Box::new(sessions));
    for session in &sessions.list {
        session.link.start_flusher();
    }
    session::set_all(Some(sessions));
    sessions
}
