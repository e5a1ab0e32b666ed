//! A program with a session forks.
//!
//! As with any CUDA driver, a child cannot use what its parent has: its copies of the sockets are
//! closed, and its calls answer `CUDA_ERROR_NOT_INITIALIZED`. With `SLUICE_FORK=clone` the child
//! continues with a session of its own, which has the addresses, handles and contents of the
//! parent's:
//!
//! ```text
//!   before the fork   other threads leave this library, the GPU finishes, the node makes the clone
//!   in the parent     it continues
//!   in the child      it connects to the clone; without one, its calls answer why
//! ```
//!
//! The tables of this library are copied with the process, so nothing of them has to be made anew.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use sluice_cuda::{CUresult, guard};
use sluice_transport::Stream;
use sluice_wire::address::{Endpoint, FORK_CLONES, FORK_VARIABLE};
use sluice_wire::control::SessionCloned;
use sluice_wire::handshake::{Resume, Stripe};

use crate::abi::{call, errors, fork_gate};
use crate::device::Device;
use crate::link::fork::HeldLink;
use crate::link::greeting::{self, AttachError};
use crate::session::{self, Session, are_many, existing};
use crate::stream::capture;

/// Calls of other threads return, and the GPU finishes, within this time, or there is no clone.
const PATIENCE: Duration = Duration::from_secs(20);
/// The child has its connection to the clone within this time.
const CONNECTING: Duration = Duration::from_secs(10);

/// From before a fork until after it. What it holds keeps other threads away.
struct Fork {
    clone: Result<Twin, Refused>,
    _gate: Option<fork_gate::Closed>,
    /// None where a call continues after the fork.
    _forking: Option<call::Forking>,
}

/// A clone of the session, for the child.
struct Twin {
    session: &'static Session,
    held: HeldLink,
    node: Endpoint,
    cloned: SessionCloned,
    /// Stands for the child until it has a connection of its own.
    asked: Stream,
}

/// Why there is none: what the child's calls answer, and what its user reads.
struct Refused {
    error: CUresult,
    reason: String,
}

thread_local! {
    /// Of a fork, and of those that handlers of signals make inside of it.
    static FORK: RefCell<Vec<Fork>> = const { RefCell::new(Vec::new()) };
}

/// Has forks of this process noticed, from its first session on.
pub(crate) fn watch() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let wanted = std::env::var(FORK_VARIABLE).unwrap_or_default();
        match wanted.as_str() {
            FORK_CLONES => fork_gate::begin(),
            "" => {}
            _ => errors::say(format_args!(
                "{FORK_VARIABLE} is {wanted:?}, and means something as `{FORK_CLONES}` only: forked children get no GPU"
            )),
        }
        let clones = wanted == FORK_CLONES;
        // SAFETY: the handlers are functions of this library, which is never unloaded. Without
        // clones the child's only touches atomics and closes descriptors.
        unsafe {
            match clones {
                true => libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)),
                false => libc::pthread_atfork(None, None, Some(leave_to_parent)),
            }
        };
    });
}

/// Runs in a forked child. Its copies of the sockets must not keep the parent's sessions alive.
unsafe extern "C" fn leave_to_parent() {
    leave(CUresult::NOT_INITIALIZED);
}

fn leave(error: CUresult) {
    for session in existing().map_or(&[][..], |sessions| &sessions.list) {
        session.link.detach();
    }
    session::set_all(None);
    if session::take_initialized() {
        session::set_absence(error);
    }
}

/// Runs before a fork, on its thread.
unsafe extern "C" fn before() {
    if !session::is_initialized() || existing().is_none() {
        return;
    }
    let _ = guard(|| {
        let fork = prepare();
        // A thread whose locals have been destroyed gets no clone for its child.
        let _ = FORK.try_with(|place| place.borrow_mut().push(fork));
        CUresult::SUCCESS
    });
}

/// What was prepared for the fork that is over, unless preparing it has failed.
fn prepared() -> Option<Fork> {
    FORK.try_with(|place| place.try_borrow_mut().ok()?.pop()).ok().flatten()
}

/// Runs after it, in the parent: the child has what it needs.
unsafe extern "C" fn in_parent() {
    drop(prepared());
}

/// Runs after it, in the child.
unsafe extern "C" fn in_child() {
    let Some(Fork { clone, _gate, _forking }) = prepared() else {
        return leave(CUresult::NOT_INITIALIZED);
    };
    let attached = clone.and_then(|twin| {
        let mut attached = Err(Refused { error: CUresult::UNKNOWN, reason: String::new() });
        let _ = guard(|| {
            attached = attach(twin);
            CUresult::SUCCESS
        });
        attached
    });
    if let Err(Refused { error, reason }) = attached {
        leave(error);
        let process = std::process::id();
        errors::say(format_args!("process {process}, which was forked, has no GPU: {reason}"));
    }
}

/// Keeps other threads out, and has the session cloned.
fn prepare() -> Fork {
    let deadline = Instant::now() + PATIENCE;
    let Some(forking) = call::begin_fork() else {
        let reason = "it was forked amid a CUDA call, or by a function that a stream has called".to_owned();
        let clone = Err(Refused { error: CUresult::NOT_PERMITTED, reason });
        return Fork { clone, _gate: None, _forking: None };
    };
    let gate = fork_gate::close(deadline);
    let clone = match gate {
        Some(_) => clone(deadline),
        None => Err(not_ready("a CUDA call of another thread of its parent has not returned")),
    };
    Fork { clone, _gate: gate, _forking: Some(forking) }
}

fn not_ready(what: &str) -> Refused {
    let reason = format!("{what} for {} s", PATIENCE.as_secs());
    Refused { error: CUresult::NOT_READY, reason }
}

fn clone(deadline: Instant) -> Result<Twin, Refused> {
    let session = session::get().map_err(|error| Refused { error, reason: "there is no session".into() })?;
    let cannot = |reason: &str| Refused { error: CUresult::NOT_SUPPORTED, reason: reason.to_owned() };
    if are_many() {
        return Err(cannot("its parent has GPUs of several nodes, and only a session of one node is cloned"));
    }
    if session.link.is_recorded() {
        return Err(cannot("its parent's session is recorded, and a log is of one session"));
    }
    if capture::some() {
        return Err(cannot("a stream is being captured"));
    }
    if session.virtual_memory().has_host_memory() {
        return Err(cannot("it holds host memory of cuMemCreate, which both processes would share"));
    }
    let (node, of) =
        session.link.to_be_cloned().ok_or_else(|| cannot("its parent's session has no number"))?;
    let failed = |error| Refused { error, reason: format!("its parent's session has failed: {error}") };
    if !Device::synchronize_all(session, deadline).map_err(failed)? {
        return Err(not_ready(
            "work of its parent's GPU, or a function that a stream of its parent calls, has not ended",
        ));
    }
    let owed = || not_ready("its parent has been owed answers by the GPU");
    let held = session.link.hold(deadline).map_err(failed)?.ok_or_else(owed)?;
    let (cloned, asked) = greeting::clone(&node, of).map_err(Refused::from)?;
    Ok(Twin { session, held, node, cloned, asked })
}

/// Connects to the clone, in the child.
fn attach(Twin { session, held, node, cloned, asked }: Twin) -> Result<(), Refused> {
    held.leave_parent();
    let deadline = Instant::now() + CONNECTING;
    let &SessionCloned { session: number, secret, .. } = &cloned;
    let resume = Resume { session: number, secret, attempt: 1, received: 0, stripe: Stripe::ONLY };
    let connected = greeting::connect(&node, 1, deadline)?;
    let (stream, _) = greeting::resume(connected, resume, deadline)?;
    drop(asked);
    held.becomes(&cloned, node, stream);
    session.has_host_thread.store(false, std::sync::atomic::Ordering::Release);
    session.link.start_flusher();
    Ok(())
}

impl From<AttachError> for Refused {
    fn from(error: AttachError) -> Refused {
        Refused { error: error.code(), reason: error.to_string() }
    }
}
