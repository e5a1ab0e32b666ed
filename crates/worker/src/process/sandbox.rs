//! What a worker can still do once its driver has started: read its client's socket, compute,
//! answer, and use the folder of the image cache. All that a client sends is parsed after that. A
//! bug that gives a client control over its worker gives it nothing else.
//!
//! | | software GPU | a CUDA library |
//! |---|---|---|
//! | descriptors, environment | those of the session; a few variables | the same |
//! | new privileges, core dumps | none | none |
//! | memory of its own | its GPUs', the session's, a constant ([`limit_memory`]) | the system's |
//! | user, namespaces, capabilities | its own, or none ([`jail`]) | the node's |
//! | files | the image cache (Landlock, an empty root) | as the node's user |
//! | system calls | those of [`calls`] (seccomp) | all |
//!
//! A CUDA library opens device nodes, its own libraries and its caches whenever it comes to need
//! them, and NVIDIA documents neither list, so all this would break programs at random; a node that
//! lends such a library to people who do not trust each other needs a container around it.
//! `docs/isolation.md` says so to operators.
//!
//! Landlock, seccomp and capabilities bind the calling thread and those that it starts, so this
//! comes before any other thread.

mod calls;
mod jail;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, PathBeneath, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus,
};
use libc::c_int;
use seccompiler::BackendError;
use serde::{Deserialize, Serialize};

use crate::INHERITED_FDS;

pub use sluice_transport::raise_descriptor_limit;

pub use jail::{Jail, USER};

/// Makes a worker say what it would have, instead of serving a session; the argument behind it is
/// the path of a cache folder or null.
pub const ARGUMENT: &str = "confinement";

/// What a confined worker has, and does not have where the kernel or the node's user has no right
/// to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    pub jail: Jail,
    pub landlock: bool,
    pub seccomp: bool,
}

/// A confined worker.
#[derive(Debug)]
pub struct Confined {
    pub confinement: Confinement,
    /// The folder of the image cache, where files can be used.
    pub cache: Option<OwnedFd>,
}

/// Why a worker does not start: it never serves a client with less protection than the table says.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("{call}: {source}")]
    System { call: &'static str, source: io::Error },
    #[error("files cannot be confined: {0}")]
    Files(#[from] RulesetError),
    #[error("system calls cannot be filtered: {0}")]
    Filter(#[from] BackendError),
    #[error("system calls cannot be filtered: {0}")]
    Seccomp(#[from] seccompiler::Error),
}

/// Resources of which a worker has no use: core dumps, message queues, real-time priorities.
const UNUSED: [libc::__rlimit_resource_t; 4] =
    [libc::RLIMIT_CORE, libc::RLIMIT_MSGQUEUE, libc::RLIMIT_RTPRIO, libc::RLIMIT_NICE];
/// Added to what the system makes of a worker's memory when it looks for a process to end, in
/// thousandths (proc_pid_oom_score_adj(5)).
const OOM_SCORE: &str = "500";

/// What every worker gives up, whatever its driver. Call it before anything opens a descriptor.
pub fn drop_inheritance() -> Result<(), SandboxError> {
    let beyond = INHERITED_FDS.iter().max().map_or(3, |fd| fd + 1) as u32;
    // SAFETY: nothing in this process has opened a descriptor of its own yet.
    check("close_range", unsafe { libc::close_range(beyond, u32::MAX, 0) })?;
    raise_descriptor_limit();
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    for resource in UNUSED {
        // SAFETY: the call reads one structure.
        check("setrlimit", unsafe { libc::setrlimit(resource, &none) })?;
    }
    // Where memory runs out a worker goes before anything else of the machine.
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    // SAFETY: plain numbers.
    check("prctl", unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })
}

/// Memory beside that of the session's GPUs and what the session may keep beside it: stacks, code,
/// messages in flight, what the compiler takes beyond its estimate.
const OWN_MEMORY: u64 = 4 << 30;

/// Limits the memory that the process can have for itself (`RLIMIT_DATA`): `session` bytes, which
/// are counted and limited elsewhere, and some for the worker. Where the accounts have a gap, the
/// session ends, and not the machine. Memory files are not part of it.
pub fn limit_memory(session: u64) -> Result<(), SandboxError> {
    let bytes = session.saturating_add(OWN_MEMORY);
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes one structure.
    check("getrlimit", unsafe { libc::getrlimit(libc::RLIMIT_DATA, &mut limit) })?;
    // A lower one of the node's stays.
    let bytes = bytes.min(limit.rlim_max);
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: the call reads one structure.
    check("setrlimit", unsafe { libc::setrlimit(libc::RLIMIT_DATA, &limit) })
}

/// The rest, for a driver that needs nothing from the system but memory and threads. `cache` is the
/// folder of the image cache. Where the kernel has neither Landlock nor a mount namespace for this
/// process, no file can be opened at all, and images are not cached.
pub fn enter(cache: Option<&Path>) -> Result<Confined, SandboxError> {
    // SAFETY: asks for a number.
    let parent = unsafe { libc::getppid() };
    let (jail, folder) = jail::enter(cache);
    // A change of user takes it away (prctl(2)).
    // SAFETY: plain numbers.
    check("prctl", unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) })?;
    // SAFETY: asks for a number.
    if unsafe { libc::getppid() } != parent {
        let source = io::Error::from_raw_os_error(libc::ESRCH);
        return Err(SandboxError::System { call: "getppid", source });
    }
    let landlock = confine_files(folder.as_ref())?;
    let cache = folder.filter(|_| landlock || jail.empty_root);
    calls::filter(cache.is_some())?;
    Ok(Confined { confinement: Confinement { jail, landlock, seccomp: true }, cache })
}

/// Leaves the folder of the cache and nothing else; false where the kernel has no Landlock.
fn confine_files(cache: Option<&OwnedFd>) -> Result<bool, SandboxError> {
    let rights = AccessFs::from_all(ABI::V3);
    let mut ruleset = Ruleset::default().handle_access(rights)?.create()?;
    if let Some(folder) = cache {
        let files = AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::WriteFile | AccessFs::Truncate;
        let names = AccessFs::MakeReg | AccessFs::RemoveFile;
        ruleset = ruleset.add_rule(PathBeneath::new(folder.as_fd(), files | names))?;
    }
    Ok(ruleset.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
}

fn check(call: &'static str, status: c_int) -> Result<(), SandboxError> {
    if status == 0 { Ok(()) } else { Err(SandboxError::System { call, source: io::Error::last_os_error() }) }
}
