//! The system calls that a confined worker may make, with the arguments that it may give them.
//!
//! A call of one purpose is allowed whole ([`WHOLE`]). A call that is many (its first or second
//! argument says which) is allowed for the listed ones only ([`filtered`]): everything else of it
//! is `EPERM`, and so is every call that is not here. `docs/isolation.md` shows the same list; a
//! test compares the two.

use std::collections::BTreeMap;

use libc::{c_int, c_long, c_ulong};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use super::SandboxError;

/// A call by the name and the number that the system has for it.
type Call = (&'static str, c_long);

macro_rules! calls {
    ($($name:ident)*) => { &[$((stringify!($name), libc::$name)),*] };
}

/// The calls whose arguments need no filter: they concern the process's own memory and threads, or
/// descriptors that are open already.
pub(super) const WHOLE: &[Call] = calls! {
    SYS_read SYS_write SYS_readv SYS_writev SYS_recvfrom SYS_recvmsg SYS_sendto SYS_sendmsg SYS_shutdown SYS_ppoll SYS_close
    SYS_lseek SYS_ftruncate SYS_fstat SYS_pread64 SYS_pwrite64 SYS_fdatasync
    SYS_brk SYS_munmap SYS_mremap SYS_mincore
    SYS_set_robust_list SYS_rseq SYS_sched_yield SYS_getpid SYS_gettid SYS_exit SYS_exit_group
    SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_sigaltstack SYS_restart_syscall
    SYS_nanosleep SYS_getrusage SYS_getrandom SYS_sysinfo
};

/// Older forms of the same that C libraries use where an architecture has them.
#[cfg(target_arch = "x86_64")]
pub(super) const OLDER: &[Call] = calls! { SYS_poll };
#[cfg(not(target_arch = "x86_64"))]
pub(super) const OLDER: &[Call] = &[];

/// What the image cache needs beside `openat`; where a path leads is for Landlock and the mount
/// namespace to say.
pub(super) const ON_FILES: &[Call] = calls! { SYS_getdents64 SYS_renameat SYS_renameat2 SYS_unlinkat };

/// One allowed form of a call: all of these conditions on its arguments.
type Form = Vec<SeccompCondition>;
/// A call with its allowed forms.
type Filtered = (Call, Vec<Form>);

/// The calls of which some forms are allowed.
pub(super) fn filtered() -> Result<Vec<Filtered>, BackendError> {
    let any_of = |number, values: &[u64]| {
        values
            .iter()
            .map(|&value| Ok(vec![equal(number, value)?]))
            .collect::<Result<Vec<Form>, BackendError>>()
    };
    Ok(vec![
        (("SYS_fcntl", libc::SYS_fcntl), fcntl()?),
        (("SYS_mmap", libc::SYS_mmap), vec![vec![without(2, libc::PROT_EXEC)?]]),
        (("SYS_mprotect", libc::SYS_mprotect), mprotect()?),
        (("SYS_fallocate", libc::SYS_fallocate), any_of(1, &[0])?),
        (
            ("SYS_getsockopt", libc::SYS_getsockopt),
            vec![vec![equal(1, libc::IPPROTO_TCP as u64)?, equal(2, libc::TCP_INFO as u64)?]],
        ),
        (("SYS_madvise", libc::SYS_madvise), any_of(2, &ADVICE)?),
        (("SYS_membarrier", libc::SYS_membarrier), any_of(0, &BARRIERS)?),
        (
            ("SYS_memfd_create", libc::SYS_memfd_create),
            vec![vec![only(1, libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)?]],
        ),
        (("SYS_futex", libc::SYS_futex), futex()?),
        (("SYS_clone", libc::SYS_clone), vec![vec![masked(0, !CLONE_DETACHED, THREAD)?]]),
        (("SYS_tgkill", libc::SYS_tgkill), any_of(0, &[u64::from(std::process::id())])?),
        (("SYS_sched_getaffinity", libc::SYS_sched_getaffinity), any_of(0, &[0])?),
        (("SYS_prctl", libc::SYS_prctl), any_of(0, &[libc::PR_SET_NAME as u64, PR_SET_VMA])?),
        (("SYS_clock_gettime", libc::SYS_clock_gettime), clocks()?),
        (("SYS_clock_getres", libc::SYS_clock_getres), clocks()?),
        (("SYS_clock_nanosleep", libc::SYS_clock_nanosleep), vec![vec![at_most(0, CLOCK_MAX)?]]),
    ])
}

/// `openat` opens files, not mere places in the file system (`O_PATH`), about which Landlock has no
/// say.
pub(super) fn openat() -> Result<Filtered, BackendError> {
    Ok((("SYS_openat", libc::SYS_openat), vec![vec![without(2, libc::O_PATH)?]]))
}

/// Commands of `fcntl` that concern the descriptor alone. Not among them is whatever sends signals
/// (`F_SETOWN`, `F_SETSIG`, `F_NOTIFY`, `F_SETLEASE`, `O_ASYNC`), locks, or changes a pipe.
fn fcntl() -> Result<Vec<Form>, BackendError> {
    let plain = [
        libc::F_DUPFD_CLOEXEC,
        libc::F_GETFD,
        libc::F_SETFD,
        libc::F_GETFL,
        libc::F_ADD_SEALS,
        libc::F_GET_SEALS,
    ];
    let mut forms = Vec::new();
    for command in plain {
        forms.push(vec![equal(1, command as u64)?]);
    }
    forms.push(vec![equal(1, libc::F_SETFL as u64)?, without(2, libc::O_ASYNC)?]);
    Ok(forms)
}

/// Memory is writable or executable: machine code is written first, and protected before it runs.
fn mprotect() -> Result<Vec<Form>, BackendError> {
    Ok(vec![vec![without(2, libc::PROT_EXEC)?], vec![without(2, libc::PROT_WRITE)?]])
}

/// What the C library's allocator and threads, device memory, and memory that it is moved to
/// advise; not what poisons pages or
/// merges them with others'.
const ADVICE: [u64; 8] = [
    libc::MADV_DONTNEED as u64,
    libc::MADV_FREE as u64,
    libc::MADV_HUGEPAGE as u64,
    libc::MADV_NOHUGEPAGE as u64,
    libc::MADV_DONTDUMP as u64,
    libc::MADV_POPULATE_WRITE as u64,
    MADV_GUARD_INSTALL,
    MADV_GUARD_REMOVE,
];
/// Of Linux 6.13 (madvise(2)), for the guard pages of stacks.
const MADV_GUARD_INSTALL: u64 = 102;
const MADV_GUARD_REMOVE: u64 = 103;

/// Barriers within this process, and the question which there are; not those that disturb all
/// processes of the machine.
const BARRIERS: [u64; 5] = [
    libc::MEMBARRIER_CMD_QUERY as u64,
    libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED as u64,
    libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED as u64,
    libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE as u64,
    libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE as u64,
];

/// Waits and wakes; not the operations with priority inheritance, which nothing here needs.
fn futex() -> Result<Vec<Form>, BackendError> {
    let operations = [
        libc::FUTEX_WAIT,
        libc::FUTEX_WAKE,
        libc::FUTEX_REQUEUE,
        libc::FUTEX_CMP_REQUEUE,
        libc::FUTEX_WAKE_OP,
        libc::FUTEX_WAIT_BITSET,
        libc::FUTEX_WAKE_BITSET,
    ];
    let flags = libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME;
    operations.into_iter().map(|operation| Ok(vec![masked(1, !(flags as u64), operation as u64)?])).collect()
}

/// What a C library asks `clone` for to make a thread: a child process could outlive the session.
const THREAD: u64 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID) as u64;
/// Ignored by the system, and set by some C libraries.
const CLONE_DETACHED: u64 = libc::CLONE_DETACHED as u64;

/// Names memory for `/proc/PID/maps`; the C library does so with its heaps.
const PR_SET_VMA: u64 = 0x5356_4d41;

/// The last of the clocks that have a name (`CLOCK_TAI`).
const CLOCK_MAX: u64 = 11;
/// The number of a thread's clock is negative, and has this bit set, without which the clock is a
/// process's (clock_getres(2); a thread's clock can be read within its process alone).
const THREAD_CLOCK: u64 = 1 << 31 | 1 << 2;

fn clocks() -> Result<Vec<Form>, BackendError> {
    Ok(vec![vec![at_most(0, CLOCK_MAX)?], vec![masked(0, THREAD_CLOCK, THREAD_CLOCK)?]])
}

fn condition(number: u8, is: SeccompCmpOp, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(number, SeccompCmpArgLen::Dword, is, value)
}

fn equal(number: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    condition(number, SeccompCmpOp::Eq, value)
}

fn at_most(number: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    condition(number, SeccompCmpOp::Le, value)
}

/// The bits of a mask are those of the value.
fn masked(number: u8, mask: u64, value: u64) -> Result<SeccompCondition, BackendError> {
    let mask = mask & u64::from(u32::MAX);
    condition(number, SeccompCmpOp::MaskedEq(mask), value)
}

/// None of these bits is set.
fn without(number: u8, bits: c_int) -> Result<SeccompCondition, BackendError> {
    masked(number, bits as c_ulong, 0)
}

/// No other bits are set.
fn only(number: u8, bits: libc::c_uint) -> Result<SeccompCondition, BackendError> {
    masked(number, u64::from(!bits), 0)
}

/// Allows the calls of this module and no others, for good. `files`: the image cache can be used.
pub(super) fn filter(files: bool) -> Result<(), SandboxError> {
    let whole = WHOLE.iter().chain(OLDER).chain(if files { ON_FILES } else { &[] });
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = whole.map(|&(_, call)| (call, Vec::new())).collect();
    for ((_, call), forms) in filtered()?.into_iter().chain(if files { Some(openat()?) } else { None }) {
        rules.insert(call, forms.into_iter().map(SeccompRule::new).collect::<Result<_, _>>()?);
    }
    // `clone3` below is answered before these rules are asked.
    rules.insert(libc::SYS_clone3, Vec::new());
    // What `clone3` asks for cannot be looked at. Where the kernel does not seem to have it, the C
    // library takes `clone`.
    let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    apply(clone3, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32))?;
    // Of two filters the stricter answer counts; this one is last, since it takes the right to add
    // another.
    apply(rules, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Each call of the filter is a row of the document's table: one of arguments where it has a
    /// filter.
    #[test]
    fn the_document_lists_exactly_the_allowed_calls() {
        let document = include_str!("../../../../../docs/isolation.md");
        let name = |call: Call| call.0.trim_start_matches("SYS_");
        let whole = WHOLE.iter().chain(OLDER).chain(ON_FILES).map(|&call| (name(call), false));
        let parts =
            filtered().unwrap().into_iter().chain([openat().unwrap()]).map(|(call, _)| (name(call), true));
        let mut expect: Vec<_> = whole.chain(parts).collect();
        expect.sort_unstable();
        let rows = document.lines().filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split(" | ");
            let names = cells.next()?.trim_end_matches('`').split("`, `");
            let arguments = cells.next()?;
            Some(names.map(move |name| (name, arguments != "any")))
        });
        let mut listed: Vec<_> = rows.flatten().collect();
        listed.sort_unstable();
        assert_eq!(listed, expect);
    }
}
