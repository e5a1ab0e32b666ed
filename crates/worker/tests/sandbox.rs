//! What a confined process can and cannot do. The sandbox is for ever, so each check runs in a
//! process of its own.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::{fs, ptr};

use rustix::fs::{AtFlags, Mode, OFlags, RawDir, fstat, openat, renameat, unlinkat};
use sluice_worker::sandbox::{self, Confinement};

/// Set in the process that is confined: the folder of its cache.
const FOLDER: &str = "SLUICE_TEST_FOLDER";

/// Runs the test of this name again in a process of its own, with a folder of its own.
fn in_own_process(name: &str) {
    let folder = std::env::temp_dir().join(format!("sluice-sandbox-{}-{name}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let own = std::env::current_exe().unwrap();
    let output = Command::new(own)
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(FOLDER, &folder)
        .output()
        .unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// The folder, in the process that is to be confined; elsewhere starts that process.
fn confined(name: &str) -> Option<PathBuf> {
    match std::env::var_os(FOLDER) {
        Some(folder) => Some(folder.into()),
        None => {
            in_own_process(name);
            None
        }
    }
}

/// Seccomp says one, Landlock another, and in an empty root there is nothing.
fn assert_denied<T>(what: &str, result: io::Result<T>) {
    match result {
        Ok(_) => panic!("{what} is possible"),
        Err(error) => {
            let kinds = [ErrorKind::PermissionDenied, ErrorKind::NotFound];
            assert!(kinds.contains(&error.kind()), "{what}: {error}");
        }
    }
}

/// A system call by its number, for arguments that no library passes.
fn call(number: libc::c_long, arguments: [libc::c_long; 5]) -> Result<libc::c_long, i32> {
    let [a, b, c, d, e] = arguments;
    // SAFETY: the tests pass numbers, and addresses of what outlives the call.
    let result = unsafe { libc::syscall(number, a, b, c, d, e) };
    if result < 0 { Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(result) }
}

/// `EPERM` is the filter's answer; any other one means that the system has looked at the call.
fn assert_filtered(what: &str, number: libc::c_long, arguments: [libc::c_long; 5]) {
    assert_eq!(call(number, arguments), Err(libc::EPERM), "{what} reaches the system");
}

fn assert_passes(what: &str, number: libc::c_long, arguments: [libc::c_long; 5]) {
    assert_ne!(call(number, arguments), Err(libc::EPERM), "{what} is refused");
}

#[test]
fn a_worker_opens_no_file_and_no_socket() {
    let Some(folder) = confined("a_worker_opens_no_file_and_no_socket") else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let cache = sandbox::enter(Some(&folder)).unwrap().cache;

    assert_denied("reading a file", File::open("/etc/passwd"));
    assert_denied("reading a process's memory map", fs::read("/proc/self/maps"));
    assert_denied("listing a folder", fs::read_dir("/"));
    assert_denied("writing beside the cache", fs::write(folder.with_extension("new"), "x"));
    for way_out in ["../etc/passwd", "../../etc/passwd", "../../../../../../etc/passwd", "/etc/passwd"] {
        let opened = cache.as_ref().map(|cache| openat(cache, way_out, OFlags::RDONLY, Mode::empty()));
        assert_denied(
            "leaving the cache",
            opened.unwrap_or(Err(rustix::io::Errno::PERM)).map_err(io::Error::from),
        );
    }
    assert_denied("a folder in the cache", fs::create_dir(folder.join("sub")));
    assert_denied("asking about a path", fs::metadata("/"));
    assert_denied("a TCP connection", TcpStream::connect(address));
    assert_denied("a listener", TcpListener::bind("127.0.0.1:0"));
    assert_denied("a Unix socket", UnixStream::pair());
    assert_denied("a program", Command::new("/bin/true").status());
    // SAFETY: makes no process; if it did, the child would end at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    assert_eq!(child, -1, "a process is possible");
    // SAFETY: signal 0 asks whether it may be sent.
    assert_eq!(unsafe { libc::kill(libc::getppid(), 0) }, -1, "signals to others are possible");

    // What is open stays of use.
    (&ours).write_all(b"word").unwrap();
    let mut word = [0; 4];
    theirs.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"word");
}

/// Each call that is allowed in part, with arguments that are not allowed, and with some that are.
#[test]
fn calls_that_are_many_are_allowed_in_part() {
    if confined("calls_that_are_many_are_allowed_in_part").is_none() {
        return;
    }
    let (socket, _other) = UnixStream::pair().unwrap();
    let fd = libc::c_long::from(socket.as_raw_fd());
    let page = 4096;
    // SAFETY: memory of this process's own, for the calls below.
    let memory = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(ptr::null_mut(), page as usize, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    } as libc::c_long;
    let own = libc::c_long::from(std::process::id());
    // SAFETY: asks for a number.
    let parent = libc::c_long::from(unsafe { libc::getppid() });
    let mut buffer = [0_u64; 32];
    let place = buffer.as_mut_ptr() as libc::c_long;
    let name = CString::new("x").unwrap();
    sandbox::enter(None).unwrap();

    // Signals to any process of the user: through the owner of a descriptor.
    for command in [libc::F_SETOWN, F_SETSIG, F_SETOWN_EX, libc::F_NOTIFY, libc::F_SETLEASE] {
        assert_filtered("fcntl", libc::SYS_fcntl, [fd, command.into(), parent, 0, 0]);
    }
    for command in [libc::F_SETLK, libc::F_OFD_SETLK, libc::F_SETPIPE_SZ, libc::F_DUPFD, libc::F_GETOWN] {
        assert_filtered("fcntl", libc::SYS_fcntl, [fd, command.into(), place, 0, 0]);
    }
    let set_flags = libc::c_long::from(libc::F_SETFL);
    assert_filtered("O_ASYNC", libc::SYS_fcntl, [fd, set_flags, libc::O_ASYNC.into(), 0, 0]);
    let both = libc::O_ASYNC | libc::O_NONBLOCK;
    assert_filtered("O_ASYNC among others", libc::SYS_fcntl, [fd, set_flags, both.into(), 0, 0]);
    assert_passes("O_NONBLOCK", libc::SYS_fcntl, [fd, set_flags, libc::O_NONBLOCK.into(), 0, 0]);
    // Only the lower half of a command counts for the system, and so it does for the filter.
    let high = 1 << 32 | libc::c_long::from(libc::F_SETOWN);
    assert_filtered("fcntl with upper bits", libc::SYS_fcntl, [fd, high, parent, 0, 0]);

    let (read, write, exec) = (libc::PROT_READ, libc::PROT_WRITE, libc::PROT_EXEC);
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    for rights in [exec, read | exec, read | write | exec] {
        assert_filtered("mmap", libc::SYS_mmap, [0, page, rights.into(), private.into(), -1]);
    }
    assert_filtered("writable code", libc::SYS_mprotect, [memory, page, (read | write | exec).into(), 0, 0]);
    assert_eq!(call(libc::SYS_mprotect, [memory, page, (read | exec).into(), 0, 0]), Ok(0));
    assert_eq!(call(libc::SYS_mprotect, [memory, page, (read | write).into(), 0, 0]), Ok(0));
    for advice in [libc::MADV_HWPOISON, libc::MADV_SOFT_OFFLINE, libc::MADV_MERGEABLE, libc::MADV_REMOVE] {
        assert_filtered("madvise", libc::SYS_madvise, [memory, page, advice.into(), 0, 0]);
    }
    // What memory needs that programs' memory is moved to.
    for advice in [libc::MADV_DONTNEED, libc::MADV_DONTDUMP, libc::MADV_POPULATE_WRITE] {
        assert_eq!(call(libc::SYS_madvise, [memory, page, advice.into(), 0, 0]), Ok(0), "{advice}");
    }
    let (tcp, info) = (libc::IPPROTO_TCP.into(), libc::TCP_INFO.into());
    for (level, option) in [(libc::SOL_SOCKET.into(), libc::SO_PEERCRED.into()), (tcp, info + 1)] {
        assert_filtered("getsockopt", libc::SYS_getsockopt, [fd, level, option, place, place]);
    }
    assert_passes("state of a connection", libc::SYS_getsockopt, [fd, tcp, info, place, place]);
    assert_filtered("membarrier", libc::SYS_membarrier, [libc::MEMBARRIER_CMD_GLOBAL.into(), 0, 0, 0, 0]);
    let huge = libc::c_long::from(libc::MFD_HUGETLB);
    assert_filtered("huge pages", libc::SYS_memfd_create, [name.as_ptr() as libc::c_long, huge, 0, 0, 0]);
    assert_passes("a memory file", libc::SYS_memfd_create, [name.as_ptr() as libc::c_long, 1, 0, 0, 0]);
    for operation in [libc::FUTEX_LOCK_PI, libc::FUTEX_CMP_REQUEUE_PI, libc::FUTEX_FD] {
        assert_filtered("futex", libc::SYS_futex, [place, operation.into(), 0, 0, 0]);
    }
    assert_eq!(call(libc::SYS_futex, [place, (libc::FUTEX_WAKE | 128).into(), 1, 0, 0]), Ok(0));

    for flags in [
        libc::SIGCHLD,
        libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
        libc::CLONE_NEWUSER | libc::SIGCHLD,
        libc::CLONE_THREAD | libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_NEWNET,
        libc::CLONE_THREAD,
    ] {
        assert_filtered("clone", libc::SYS_clone, [flags.into(), 0, 0, 0, 0]);
    }
    assert_eq!(call(libc::SYS_clone3, [place, 88, 0, 0, 0]), Err(libc::ENOSYS));
    assert_filtered("a signal to another process", libc::SYS_tgkill, [parent, parent, 0, 0, 0]);
    assert_passes("a signal to itself", libc::SYS_tgkill, [own, own, 0, 0, 0]);
    assert_filtered("another's cores", libc::SYS_sched_getaffinity, [parent, 256, place, 0, 0]);
    assert_passes("its own cores", libc::SYS_sched_getaffinity, [0, 256, place, 0, 0]);
    let options = [
        libc::PR_SET_DUMPABLE,
        libc::PR_SET_PDEATHSIG,
        libc::PR_SET_PTRACER,
        libc::PR_SET_SECCOMP,
        libc::PR_SET_MM,
        libc::PR_CAP_AMBIENT,
        libc::PR_SET_NO_NEW_PRIVS,
    ];
    for option in options {
        assert_filtered("prctl", libc::SYS_prctl, [option.into(), 0, 0, 0, 0]);
    }
    let process_clock = !parent << 3 | 2;
    assert_filtered("another's time", libc::SYS_clock_gettime, [process_clock, place, 0, 0, 0]);
    assert_filtered("another's time", libc::SYS_clock_getres, [process_clock, place, 0, 0, 0]);
    assert_filtered("another's time", libc::SYS_clock_nanosleep, [process_clock, 0, place, 0, 0]);
    assert_passes("the time", libc::SYS_clock_gettime, [1, place, 0, 0, 0]);
    let own_thread = !own << 3 | 6;
    assert_passes("a thread's time", libc::SYS_clock_gettime, [own_thread, place, 0, 0, 0]);
}

/// Of `<asm-generic/fcntl.h>`, as the next one.
const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;

/// Calls that are not in the list at all, each of which has got a process out of somewhere.
#[test]
fn calls_that_are_not_listed_are_refused() {
    if confined("calls_that_are_not_listed_are_refused").is_none() {
        return;
    }
    sandbox::enter(None).unwrap();
    let calls = [
        ("ioctl", libc::SYS_ioctl),
        ("socket", libc::SYS_socket),
        ("socketpair", libc::SYS_socketpair),
        ("connect", libc::SYS_connect),
        ("bind", libc::SYS_bind),
        ("setsockopt", libc::SYS_setsockopt),
        ("execve", libc::SYS_execve),
        ("execveat", libc::SYS_execveat),
        ("kill", libc::SYS_kill),
        ("tkill", libc::SYS_tkill),
        ("rt_sigqueueinfo", libc::SYS_rt_sigqueueinfo),
        ("rt_tgsigqueueinfo", libc::SYS_rt_tgsigqueueinfo),
        ("pidfd_open", libc::SYS_pidfd_open),
        ("pidfd_getfd", libc::SYS_pidfd_getfd),
        ("pidfd_send_signal", libc::SYS_pidfd_send_signal),
        ("ptrace", libc::SYS_ptrace),
        ("process_vm_readv", libc::SYS_process_vm_readv),
        ("process_vm_writev", libc::SYS_process_vm_writev),
        ("process_madvise", libc::SYS_process_madvise),
        ("prlimit64", libc::SYS_prlimit64),
        ("setpriority", libc::SYS_setpriority),
        ("sched_setaffinity", libc::SYS_sched_setaffinity),
        ("sched_setscheduler", libc::SYS_sched_setscheduler),
        ("unshare", libc::SYS_unshare),
        ("setns", libc::SYS_setns),
        ("mount", libc::SYS_mount),
        ("pivot_root", libc::SYS_pivot_root),
        ("chroot", libc::SYS_chroot),
        ("statx", libc::SYS_statx),
        ("newfstatat", libc::SYS_newfstatat),
        ("readlinkat", libc::SYS_readlinkat),
        ("faccessat", libc::SYS_faccessat),
        ("openat2", libc::SYS_openat2),
        ("open_by_handle_at", libc::SYS_open_by_handle_at),
        ("linkat", libc::SYS_linkat),
        ("symlinkat", libc::SYS_symlinkat),
        ("fchmodat", libc::SYS_fchmodat),
        ("io_uring_setup", libc::SYS_io_uring_setup),
        ("bpf", libc::SYS_bpf),
        ("perf_event_open", libc::SYS_perf_event_open),
        ("userfaultfd", libc::SYS_userfaultfd),
        ("keyctl", libc::SYS_keyctl),
        ("add_key", libc::SYS_add_key),
        ("shmget", libc::SYS_shmget),
        ("mq_open", libc::SYS_mq_open),
        ("inotify_init1", libc::SYS_inotify_init1),
        ("setuid", libc::SYS_setuid),
        ("capset", libc::SYS_capset),
        ("memfd_secret", libc::SYS_memfd_secret),
        ("splice", libc::SYS_splice),
        ("vmsplice", libc::SYS_vmsplice),
        ("personality", libc::SYS_personality),
        ("modify_ldt", libc::SYS_modify_ldt),
        ("landlock_create_ruleset", libc::SYS_landlock_create_ruleset),
        ("seccomp", libc::SYS_seccomp),
    ];
    for (name, number) in calls {
        assert_filtered(name, number, [-1, -1, -1, -1, -1]);
    }
}

#[test]
fn a_worker_keeps_its_threads_its_memory_and_its_cache() {
    let Some(folder) = confined("a_worker_keeps_its_threads_its_memory_and_its_cache") else { return };
    let cache = sandbox::enter(Some(&folder.join("cache"))).unwrap().cache;
    std::thread::scope(|scope| {
        let named = std::thread::Builder::new().name("named".into());
        let sum =
            named.spawn_scoped(scope, || vec![1_u8; 64 << 20].iter().map(|&b| u64::from(b)).sum::<u64>());
        assert_eq!(sum.unwrap().join().unwrap(), 64 << 20);
    });
    if let Some(cache) = cache {
        use_cache(&cache).unwrap();
    }
}

/// As `image_cache.rs` does.
fn use_cache(folder: &OwnedFd) -> io::Result<()> {
    let new = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let mut file = File::from(openat(folder, "x.part", new, Mode::RUSR | Mode::WUSR)?);
    file.write_all(b"kernel")?;
    renameat(folder, "x.part", folder, "x")?;
    let mut file = File::from(openat(folder, "x", OFlags::RDONLY, Mode::empty())?);
    let stat = fstat(&file)?;
    assert_eq!((stat.st_size, stat.st_mode & 0o777), (6, 0o600));
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    assert_eq!(text, "kernel");
    let listed = openat(folder, ".", OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty())?;
    let mut buffer = Vec::with_capacity(4096);
    let mut entries = RawDir::new(&listed, buffer.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        names.push(entry?.file_name().to_owned());
    }
    assert!(names.iter().any(|name| name.to_bytes() == b"x"), "{names:?}");
    Ok(unlinkat(folder, "x", AtFlags::empty())?)
}

#[test]
fn without_a_cache_nothing_is_opened() {
    let Some(folder) = confined("without_a_cache_nothing_is_opened") else { return };
    sandbox::enter(None).unwrap();
    assert_denied("writing a file", fs::write(folder.join("x"), "x"));
    assert_denied("reading a file", fs::read("/etc/passwd"));
}

#[test]
fn what_a_worker_was_given_to_inherit_is_gone() {
    if confined("what_a_worker_was_given_to_inherit_is_gone").is_none() {
        return;
    }
    sandbox::drop_inheritance().unwrap();
    let limit = |resource| {
        let mut limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
        // SAFETY: the call writes one structure.
        assert_eq!(unsafe { libc::getrlimit(resource, &mut limit) }, 0);
        (limit.rlim_cur, limit.rlim_max)
    };
    for resource in [libc::RLIMIT_CORE, libc::RLIMIT_MSGQUEUE, libc::RLIMIT_RTPRIO, libc::RLIMIT_NICE] {
        assert_eq!(limit(resource), (0, 0));
    }
    assert_eq!(fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim(), "500");
}

/// Neither by a mapping that can be written nor by one that becomes so.
#[test]
fn a_worker_takes_no_more_memory_than_its_session_may_have() {
    if confined("a_worker_takes_no_more_memory_than_its_session_may_have").is_none() {
        return;
    }
    let gib = 1_usize << 30;
    sandbox::limit_memory(gib as u64).unwrap();
    sandbox::enter(None).unwrap();
    let map = |bytes: usize, rights| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: memory of this process's own, which nothing else knows.
        unsafe { libc::mmap(ptr::null_mut(), bytes, rights, flags, -1, 0) }
    };
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    assert_ne!(map(gib, writable), libc::MAP_FAILED);
    assert_eq!(map(5 * gib, writable), libc::MAP_FAILED);
    // Addresses alone cost nothing.
    let reserved = map(64 * gib, libc::PROT_NONE);
    assert_ne!(reserved, libc::MAP_FAILED);
    // SAFETY: the mapping above.
    let opened = unsafe { libc::mprotect(reserved, 5 * gib, writable) };
    assert_eq!((opened, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENOMEM)));
}

/// As far as the kernel lets this test's user: what is missing is what [`Confinement`] says is
/// missing.
#[test]
fn a_jail_is_what_it_says() {
    if confined("a_jail_is_what_it_says").is_none() {
        return;
    }
    // Opened while there is something to open; each read shows the state at that time.
    let mut status = File::open("/proc/thread-self/status").unwrap();
    // SAFETY: asks for a number.
    let is_root = unsafe { libc::geteuid() } == 0;
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let Confinement { jail, seccomp, .. } = sandbox::enter(Some(&folder)).unwrap().confinement;
    println!("{jail:?}");
    let mut text = String::new();
    status.read_to_string(&mut text).unwrap();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_whitespace().nth(1).unwrap_or_default().to_owned()
    };
    assert!(jail.no_capabilities && seccomp);
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!((field("NoNewPrivs"), field("Seccomp")), ("1".to_owned(), "2".to_owned()));
    assert_eq!(jail.own_user, is_root);
    if jail.own_user {
        assert_eq!(field("Uid"), sandbox::USER.to_string());
        assert_eq!(field("Gid"), sandbox::USER.to_string());
    }
    if jail.no_capabilities && jail.user_namespace {
        assert_eq!(field("CapBnd"), "0000000000000000");
    }
    assert_eq!(
        jail.empty_root, jail.other_namespaces,
        "an empty root is possible wherever there is a mount namespace"
    );
}

#[test]
fn a_cache_that_others_may_have_filled_is_not_used() {
    let Some(folder) = confined("a_cache_that_others_may_have_filled_is_not_used") else { return };
    // SAFETY: asks for a number.
    let is_root = unsafe { libc::geteuid() } == 0;
    let cache = folder.join("cache");
    if is_root {
        fs::create_dir(&cache).unwrap();
        std::os::unix::fs::chown(&cache, Some(12_345), Some(12_345)).unwrap();
    } else {
        std::os::unix::fs::symlink(&folder, &cache).unwrap();
    }
    assert!(sandbox::enter(Some(&cache)).unwrap().cache.is_none());
}
