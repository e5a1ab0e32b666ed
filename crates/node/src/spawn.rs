//! Starts worker processes and hands each its descriptors.
//!
//! Workers die with the daemon. The kernel's parent-death signal fires when the *thread* that
//! forked ends, so one thread that lives as long as the daemon does all the forking. It also runs
//! the daemon's next program in its place ([`image`]): all other threads end then, and the children
//! of this one stay its children.

mod image;
mod process;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use sluice_worker_link::INHERITED_FDS;

pub(crate) use self::image::{Image, set_inherited};
pub(crate) use self::process::WorkerProcess;

/// How to start the program that becomes a worker; it has to call `sluice_worker::main` with what
/// follows these arguments.
#[derive(Clone, Debug)]
pub struct WorkerCommand {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
}

impl Default for WorkerCommand {
    /// This very program, with the argument `worker`.
    fn default() -> WorkerCommand {
        WorkerCommand { program: PathBuf::from("/proc/self/exe"), arguments: vec!["worker".into()] }
    }
}

/// What a worker inherits, in the order of [`INHERITED_FDS`].
pub(crate) struct Inheritance {
    pub(crate) client: OwnedFd,
    pub(crate) link: OwnedFd,
    pub(crate) counters: OwnedFd,
}

/// Asks the thread that forks.
#[derive(Clone, Debug)]
pub(crate) struct Spawner {
    requests: SyncSender<Request>,
}

/// What the thread that forks does.
#[derive(Debug)]
pub(crate) struct Forks {
    command: WorkerCommand,
    confined: bool,
    queue: Receiver<Request>,
}

enum Request {
    Start {
        inheritance: Inheritance,
        reply: SyncSender<io::Result<WorkerProcess>>,
    },
    /// Answered only by why it was not possible.
    Become {
        image: Image,
        reply: SyncSender<io::Error>,
    },
    End,
}

impl Spawner {
    /// [`Forks::serve`] has to run for as long as workers do. `confined`: the driver needs nothing
    /// of the machine, so each worker gets a namespace of process numbers where that is possible.
    pub(crate) fn new(command: WorkerCommand, confined: bool) -> (Spawner, Forks) {
        let (requests, queue) = sync_channel::<Request>(64);
        (Spawner { requests }, Forks { command, confined, queue })
    }

    /// With a thread that forks, for a registry without a node around it.
    pub(crate) fn start(command: WorkerCommand, confined: bool) -> io::Result<Spawner> {
        let (spawner, forks) = Spawner::new(command, confined);
        std::thread::Builder::new().name("spawner".into()).spawn(move || forks.serve())?;
        Ok(spawner)
    }

    /// Starts a worker; the daemon's copies of the descriptors are closed when this returns.
    pub(crate) fn spawn(&self, inheritance: Inheritance) -> io::Result<WorkerProcess> {
        let (reply, answer) = sync_channel(1);
        self.requests.send(Request::Start { inheritance, reply }).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())?
    }

    /// Has this process run another program, and returns only if that is not possible.
    pub(crate) fn become_program(&self, image: Image) -> io::Error {
        let (reply, answer) = sync_channel(1);
        let sent = self.requests.send(Request::Become { image, reply });
        sent.ok().and_then(|()| answer.recv().ok()).unwrap_or_else(gone)
    }

    /// No more is asked for: the thread that forks is free. Workers that still live end with it.
    pub(crate) fn end(&self) {
        // An error means that it is free already.
        let _ = self.requests.send(Request::End);
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread that starts workers has ended")
}

/// The namespace of process numbers of this process, to return to after each child that got a new
/// one.
struct ProcessNumbers(File);

impl ProcessNumbers {
    fn own() -> Option<ProcessNumbers> {
        File::open("/proc/self/ns/pid").ok().map(ProcessNumbers)
    }

    /// Has the children that `spawn` makes in the calling thread begin new namespaces; in this one,
    /// where that is not possible (it takes `CAP_SYS_ADMIN`).
    fn in_new<T>(&self, spawn: impl FnOnce() -> T) -> T {
        // SAFETY: plain numbers; for the calling thread this concerns its children alone
        // (unshare(2), `CLONE_NEWPID`).
        let is_new = unsafe { libc::unshare(libc::CLONE_NEWPID) } == 0;
        let spawned = spawn();
        if is_new {
            // SAFETY: an open descriptor of a namespace; also about children alone.
            unsafe { libc::setns(self.0.as_raw_fd(), libc::CLONE_NEWPID) };
        }
        spawned
    }
}

impl Forks {
    /// Serves requests on this thread until none can come any more, or all is over. Workers live as
    /// long as the thread.
    pub(crate) fn serve(self) {
        let numbers = self.confined.then(ProcessNumbers::own).flatten();
        for request in &self.queue {
            match request {
                Request::Start { inheritance, reply } => {
                    let spawn = || spawn_worker(&self.command, self.confined, &inheritance);
                    let child = match &numbers {
                        Some(numbers) => numbers.in_new(spawn),
                        None => spawn(),
                    };
                    drop(inheritance);
                    // The session's thread may be gone; the worker then finds its link closed and
                    // exits.
                    if let Err(unclaimed) = reply.send(child)
                        && let Ok(mut child) = unclaimed.0
                    {
                        let _ = child.kill();
                        let _ = child.wait();
                    }
                }
                Request::Become { image, reply } => {
                    // Who asked waits for it.
                    let _ = reply.send(image.run());
                }
                Request::End => return,
            }
        }
    }
}

fn spawn_worker(
    command: &WorkerCommand,
    confined: bool,
    inheritance: &Inheritance,
) -> io::Result<WorkerProcess> {
    let sources = [&inheritance.client, &inheritance.link, &inheritance.counters].map(AsRawFd::as_raw_fd);
    let mut child = Command::new(&command.program);
    child.args(&command.arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    child.env_clear().envs(std::env::vars_os().filter(|(name, _)| is_passed(name, confined)));
    dies_with_this_thread(&mut child);
    // SAFETY: between fork and exec the closure makes only async-signal-safe system calls.
    unsafe { child.pre_exec(move || hand_over(sources)) };
    child.spawn().map(WorkerProcess::from)
}

/// Variables that the drivers linked into the worker read.
const OF_OWN_DRIVERS: [&str; 6] = [
    "RUST_BACKTRACE",
    "SLUICE_BLOCK_ORDER",
    "SLUICE_COVERAGE",
    "SLUICE_RECORDING",
    "SLUICE_SANITIZE",
    "SLUICE_SOFTGPU",
];

/// Whether a worker gets a variable of the node's environment, which may hold secrets. A CUDA
/// library reads variables that are not documented, so there all are passed but Sluice's own and
/// those of databases.
fn is_passed(name: &OsStr, confined: bool) -> bool {
    let Some(name) = name.to_str() else { return !confined };
    let is_secret = ["SLUICE_", "PG", "DATABASE"].iter().any(|prefix| name.starts_with(prefix));
    OF_OWN_DRIVERS.contains(&name) || !(confined || is_secret)
}

/// The child is killed when the thread that spawns it ends, however that ends.
pub(crate) fn dies_with_this_thread(child: &mut Command) {
    let daemon = std::process::id();
    // SAFETY: between fork and exec the closure makes only async-signal-safe system calls.
    unsafe { child.pre_exec(move || follow_into_death(daemon)) };
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Runs in the child before `exec`.
fn follow_into_death(daemon: u32) -> io::Result<()> {
    // SAFETY: plain system call.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
    // SAFETY: plain system call.
    let parent = unsafe { libc::getppid() } as u32;
    // In a new namespace of process numbers the parent has none.
    if parent != daemon && parent != 0 {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(())
}

/// Runs in the child before `exec`.
fn hand_over(sources: [RawFd; 3]) -> io::Result<()> {
    // First away from the target numbers, since a source may be the target of another.
    let mut moved = sources;
    for fd in &mut moved {
        // SAFETY: duplicates a descriptor that is open in this process.
        *fd = check(unsafe { libc::fcntl(*fd, libc::F_DUPFD_CLOEXEC, 10) })?;
    }
    for (fd, target) in moved.into_iter().zip(INHERITED_FDS) {
        // SAFETY: the target numbers belong to nothing that this child still needs.
        check(unsafe { libc::dup2(fd, target) })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_worker_does_not_learn_the_nodes_secrets() {
        let passed = |name: &str, confined| is_passed(OsStr::new(name), confined);
        for secret in ["SLUICE_DATABASE", "SLUICE_NODE_TOKEN", "PGPASSWORD", "DATABASE_URL"] {
            assert!(!passed(secret, true) && !passed(secret, false), "{secret}");
        }
        assert!(!passed("AWS_SECRET_ACCESS_KEY", true) && !passed("HOME", true));
        assert!(passed("CUDA_CACHE_PATH", false) && passed("LD_LIBRARY_PATH", false));
        assert!(passed("RUST_BACKTRACE", true) && passed("SLUICE_RECORDING", false));
    }

    #[test]
    fn a_child_dies_with_the_thread_that_spawned_it() {
        let spawn = || {
            let mut command = Command::new("/bin/sleep");
            dies_with_this_thread(command.arg("20"));
            command.spawn().unwrap()
        };
        let mut child = std::thread::spawn(spawn).join().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }
}
