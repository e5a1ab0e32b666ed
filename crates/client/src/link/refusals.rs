//! Queued commands that the node's driver has refused. CUDA returns such an error once, from the
//! call itself, and the program continues. Here the call has returned when the refusal comes, so
//! that the next call returns it, of whatever thread: of those that give work, before they do
//! anything; of those that wait for work, once they have waited.
//!
//! A call whose refusal programs try out waits for the driver's word instead, and returns it
//! ([`Tried`]).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::{CUresult, Fn};
use sluice_wire::Op;

use crate::link::command_id::CommandId;

/// Whether there is a refusal that no call has returned yet; most calls look no further.
static IS_PENDING: AtomicBool = AtomicBool::new(false);
static STATE: Mutex<State> = Mutex::new(State { pending: None, tried: Vec::new(), said: BTreeSet::new() });

struct State {
    /// The first that no call has returned yet. Those after it are like the errors of a program
    /// that looks at one of many.
    pending: Option<CUresult>,
    /// Commands whose callers wait for the driver's word, and what it was if they were refused.
    tried: Vec<(CommandId, Option<CUresult>)>,
    /// What was said on stderr.
    said: BTreeSet<(u16, i32)>,
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A command whose caller waits as if it were answered. It is watched from before it is sent.
pub(crate) struct Tried(CommandId);

impl Tried {
    pub(crate) fn at(place: CommandId) -> Tried {
        state().tried.push((place, None));
        Tried(place)
    }

    /// What became of the command, once all that came with it has been read.
    pub(crate) fn result(self) -> Result<(), CUresult> {
        let refused = |state: &State| state.tried.iter().find(|(place, _)| *place == self.0)?.1;
        refused(&state()).map_or(Ok(()), Err)
    }
}

impl Drop for Tried {
    fn drop(&mut self) {
        state().tried.retain(|(place, _)| *place != self.0);
    }
}

/// Most lines that are said on stderr.
const SAID_MAX: usize = 64;

/// A command was refused. The end of a capture fails by itself.
pub(crate) fn note(place: CommandId, op: Op, result: CUresult, captured: bool) {
    let mut state = state();
    if let Some((_, word)) = state.tried.iter_mut().find(|(other, _)| *other == place) {
        *word = Some(result);
        return;
    }
    if !captured && state.pending.is_none() {
        state.pending = Some(result);
        IS_PENDING.store(true, Ordering::Release);
    }
    let is_new = state.said.len() < SAID_MAX && state.said.insert((op.0, result.0));
    drop(state);
    if is_new {
        let (name, which) = (op.name(), if captured { "the end of the capture" } else { "a later call" });
        crate::abi::errors::say(format_args!(
            "{name} was refused after it had returned, and {which} returns why: {result}"
        ));
    }
}

/// What a session that is lost has refused is no news any more.
pub(crate) fn forget_all() {
    let mut state = state();
    state.pending = None;
    IS_PENDING.store(false, Ordering::Release);
}

fn is_pending() -> bool {
    IS_PENDING.load(Ordering::Acquire)
}

/// Returns the pending refusal, unless another call has returned it.
fn take() -> Result<(), CUresult> {
    let mut state = state();
    IS_PENDING.store(false, Ordering::Release);
    state.pending.take().map_or(Ok(()), Err)
}

/// Makes a call of the program, which may return an earlier one's refusal.
pub(crate) fn told(function: Fn, call: impl FnOnce() -> Result<(), CUresult>) -> Result<(), CUresult> {
    if is_pending() && gives_work(function) {
        take()?;
    }
    call()?;
    if is_pending() && waits_for_work(function) { take() } else { Ok(()) }
}

/// Whether a call gives a stream something to do. Programs look at the errors of these, and take
/// none of them for something else, as they would if there seemed to be no memory left.
fn gives_work(function: Fn) -> bool {
    const FAMILIES: [&str; 10] = [
        "cuLaunch",
        "cuGraphLaunch",
        "cuMemcpy",
        "cuMemset",
        "cuMemPrefetch",
        "cuEventRecord",
        "cuStreamWaitEvent",
        "cuStreamWaitValue",
        "cuStreamWriteValue",
        "cuStreamBatchMemOp",
    ];
    FAMILIES.iter().any(|family| function.name().starts_with(family))
}

/// Whether a call can tell a program that work has ended. It has done so also when it returns a
/// refusal.
fn waits_for_work(function: Fn) -> bool {
    const FAMILIES: [&str; 6] = [
        "cuCtxSynchronize",
        "cuStreamSynchronize",
        "cuStreamQuery",
        "cuEventSynchronize",
        "cuEventQuery",
        "cuMemcpy",
    ];
    FAMILIES.iter().any(|family| function.name().starts_with(family))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All tests share the state.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    const LAUNCH: Op = Op::of(Fn::cuLaunchKernel);
    const TOO_LARGE: CUresult = CUresult::COOPERATIVE_LAUNCH_TOO_LARGE;

    #[test]
    fn a_refusal_is_returned_once_by_a_call_that_works_or_waits() {
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        note((7, 1), LAUNCH, TOO_LARGE, false);
        note((7, 2), LAUNCH, CUresult::INVALID_VALUE, false);
        assert_eq!(told(Fn::cuEventDestroy_v2, || Ok(())), Ok(()), "nobody looks at that");
        assert_eq!(told(Fn::cuEventQuery, || Err(CUresult::NOT_READY)), Err(CUresult::NOT_READY));
        let not_made = || -> Result<(), CUresult> { panic!("the call is not made") };
        assert_eq!(told(Fn::cuLaunchKernel, not_made), Err(TOO_LARGE));
        assert_eq!(told(Fn::cuLaunchKernel, || Ok(())), Ok(()));

        let arrives = || {
            note((7, 3), LAUNCH, TOO_LARGE, false);
            Ok(())
        };
        assert_eq!(told(Fn::cuStreamSynchronize, arrives), Err(TOO_LARGE), "it came while the call waited");
        assert_eq!(told(Fn::cuStreamSynchronize, || Ok(())), Ok(()));
    }

    #[test]
    fn a_captured_command_is_the_business_of_its_capture() {
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        note((8, 1), LAUNCH, TOO_LARGE, true);
        assert_eq!(told(Fn::cuLaunchKernel, || Ok(())), Ok(()));
    }

    #[test]
    fn who_waits_for_the_drivers_word_gets_it() {
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let (refused, accepted) = (Tried::at((9, 1)), Tried::at((9, 2)));
        note((9, 1), LAUNCH, TOO_LARGE, false);
        assert_eq!(told(Fn::cuLaunchKernel, || Ok(())), Ok(()), "it is somebody else's");
        assert_eq!(refused.result(), Err(TOO_LARGE));
        assert_eq!(accepted.result(), Ok(()));
        assert!(state().tried.is_empty());
    }
}
