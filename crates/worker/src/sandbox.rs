//! What a worker can still do once its driver has started: read its client's socket, compute, answer, and use the
//! folder of the module cache. All that a client sends is parsed after that. A bug that gives a client control over its worker gives it nothing else.
//!
//! | | software GPU | a CUDA library |
//! |---|---|---|
//! | descriptors | those of the session | the same |
//! | new privileges, core dumps | none | none |
//! | files | the module cache (Landlock) | as the node's user |
//! | system calls | [`ALLOWED`] (seccomp) | all |
//!
//! A CUDA library opens device nodes, its own libraries and its caches whenever it comes to need them, and NVIDIA documents
//! neither list, so the two filters would break programs at random; a node that lends such a library to strangers
//! needs a container around it.
//!
//! Landlock and seccomp bind the calling thread and those that it starts, so this comes before any other thread.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, PathBeneath, PathFd, PathFdError, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus,
};
use libc::{c_int, c_long};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
pub use sluice_transport::raise_descriptor_limit;

use crate::INHERITED_FDS;

/// Why a worker does not start: it never serves a client with less protection than the table says.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("{call}: {source}")]
    System { call: &'static str, source: io::Error },
    #[error("the module cache cannot be opened: {0}")]
    Cache(#[from] PathFdError),
    #[error("files cannot be confined: {0}")]
    Files(#[from] RulesetError),
    #[error("system calls cannot be filtered: {0}")]
    Filter(#[from] BackendError),
    #[error("system calls cannot be filtered: {0}")]
    Seccomp(#[from] seccompiler::Error),
}

/// What every worker gives up, whatever its driver. Call it before anything opens a descriptor.
pub fn drop_inheritance() -> Result<(), SandboxError> {
    let beyond = INHERITED_FDS.iter().max().map_or(3, |fd| fd + 1) as u32;
    // SAFETY: nothing in this process has opened a descriptor of its own yet.
    check("close_range", unsafe { libc::close_range(beyond, u32::MAX, 0) })?;
    raise_descriptor_limit();
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call reads one structure.
    check("setrlimit", unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) })?;
    // SAFETY: plain numbers.
    check("prctl", unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })
}

/// The rest, for a driver that needs nothing from the system but memory and threads. `cache` is the folder of the
/// module cache. Where the kernel has no Landlock no file can be opened at all, and modules are not cached.
pub fn enter(cache: Option<&Path>) -> Result<(), SandboxError> {
    let confined = confine_files(cache)?;
    filter_system_calls(confined)
}

/// Leaves the folder of the cache and nothing else; false where the kernel has no Landlock.
fn confine_files(cache: Option<&Path>) -> Result<bool, SandboxError> {
    let rights = AccessFs::from_all(ABI::V3);
    let mut ruleset = Ruleset::default().handle_access(rights)?.create()?;
    // A folder that cannot be made cannot be used either.
    if let Some(folder) = cache.filter(|folder| std::fs::create_dir_all(folder).is_ok()) {
        let files = AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::WriteFile | AccessFs::Truncate;
        let names = AccessFs::MakeReg | AccessFs::RemoveFile;
        ruleset = ruleset.add_rule(PathBeneath::new(PathFd::new(folder)?, files | names))?;
    }
    Ok(ruleset.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
}

/// What threads and memory, the session's descriptors, clocks and signals of one's own need.
const ALLOWED: &[c_long] = &[
    // Descriptors that are open already.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_ppoll,
    libc::SYS_close,
    libc::SYS_fcntl,
    // Memory.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_membarrier,
    // Device memory that is mapped twice is a memory file: it has no name and opens nothing.
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    // The size of one that another process made.
    libc::SYS_lseek,
    // Threads.
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Signals.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    // Time and randomness.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_getrusage,
    libc::SYS_getrandom,
    libc::SYS_sysinfo,
];

/// What the module cache needs; Landlock says where.
const ALLOWED_ON_FILES: &[c_long] = &[
    libc::SYS_openat,
    libc::SYS_statx,
    libc::SYS_newfstatat,
    libc::SYS_fstat,
    libc::SYS_getdents64,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_mkdirat,
];

/// Older forms of the same, which some architectures have and their C libraries use.
#[cfg(target_arch = "x86_64")]
const ALLOWED_OLDER: (&[c_long], &[c_long]) =
    (&[libc::SYS_poll], &[libc::SYS_rename, libc::SYS_unlink, libc::SYS_mkdir]);
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_OLDER: (&[c_long], &[c_long]) = (&[], &[libc::SYS_renameat]);

fn filter_system_calls(files: bool) -> Result<(), SandboxError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    let on_files = if files { ALLOWED_ON_FILES.iter().chain(ALLOWED_OLDER.1) } else { [].iter().chain(&[]) };
    for &call in ALLOWED.iter().chain(ALLOWED_OLDER.0).chain(on_files) {
        rules.insert(call, Vec::new());
    }
    // Threads, no processes: a child could outlive the session.
    let thread = libc::CLONE_THREAD as u64;
    rules.insert(libc::SYS_clone, vec![argument(0, SeccompCmpOp::MaskedEq(thread), thread)?]);
    let own = u64::from(std::process::id());
    rules.insert(libc::SYS_tgkill, vec![argument(0, SeccompCmpOp::Eq, own)?]);
    let names = [libc::PR_SET_NAME, PR_SET_VMA].map(|option| argument(0, SeccompCmpOp::Eq, option as u64));
    rules.insert(libc::SYS_prctl, names.into_iter().collect::<Result<_, _>>()?);
    // What `clone3` asks for cannot be looked at. Where the kernel does not seem to have it, the C library takes `clone`.
    let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    apply(clone3, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32))?;
    // Of two filters the stricter answer counts; this one is last, since it takes the right to add another.
    apply(rules, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow)
}

/// Names memory for `/proc/PID/maps`; the C library does so with its heaps.
const PR_SET_VMA: c_int = 0x5356_4d41;

fn argument(number: u8, is: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(number, SeccompCmpArgLen::Dword, is, value)?])
}

fn apply(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    matching: SeccompAction,
) -> Result<(), SandboxError> {
    let filter = SeccompFilter::new(rules, otherwise, matching, std::env::consts::ARCH.try_into()?)?;
    let program: BpfProgram = filter.try_into()?;
    Ok(seccompiler::apply_filter(&program)?)
}

fn check(call: &'static str, status: c_int) -> Result<(), SandboxError> {
    if status == 0 { Ok(()) } else { Err(SandboxError::System { call, source: io::Error::last_os_error() }) }
}
