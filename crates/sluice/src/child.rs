//! The program under a lease: started as a direct child, its signals passed on, its end reported as
//! a shell would.
//!
//! A terminal sends its signals (Ctrl-C, Ctrl-\, hang-up) to the whole foreground process group,
//! the child included, so those are only kept from ending us before the child. A signal that some
//! process sent to us alone (`kill PID`, a supervisor's SIGTERM) is passed on. The kernel says
//! which is which in `si_code`.

mod early;

use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use sluice_api::lease::TASKS_MAX;

pub(crate) use early::EarlyEnd;

/// A process has one way of hearing signals: whose test has them holds this.
#[cfg(test)]
pub(crate) static SIGNALS: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Sluice itself failed; `env` and `docker run` use the same codes.
pub(crate) const EXIT_SLUICE_FAILED: i32 = 125;
/// The program exists and cannot be started.
const EXIT_NOT_EXECUTABLE: i32 = 126;
/// The program does not exist.
const EXIT_NOT_FOUND: i32 = 127;

/// A run that requires a GPU launched no kernel.
pub(crate) const EXIT_NO_KERNEL: i32 = 123;

/// `--sanitize`, and the program succeeded with kernels that have errors.
pub(crate) const EXIT_FINDINGS: i32 = 122;

/// Why a program did not start.
#[derive(Debug)]
pub(crate) struct NotStarted {
    pub(crate) message: String,
    pub(crate) exit_code: i32,
}

/// The file that the shell would run for `program`; checked before anything is leased for it.
pub(crate) fn find_program(program: &OsStr, search_path: Option<&OsStr>) -> Result<PathBuf, NotStarted> {
    let not_found = || NotStarted {
        message: format!("{}: no such program", program.to_string_lossy()),
        exit_code: EXIT_NOT_FOUND,
    };
    let not_executable = |why: &str| NotStarted {
        message: format!("{}: {why}", program.to_string_lossy()),
        exit_code: EXIT_NOT_EXECUTABLE,
    };
    if program.as_bytes().contains(&b'/') {
        let path = Path::new(program);
        return match path.metadata() {
            Err(_) => Err(not_found()),
            Ok(found) if found.is_dir() => Err(not_executable("is a folder")),
            Ok(_) if !may_execute(path) => Err(not_executable("is not executable (chmod +x)")),
            Ok(_) => Ok(path.to_path_buf()),
        };
    }
    let folders = search_path.map(std::env::split_paths).into_iter().flatten();
    let found: Vec<PathBuf> =
        folders.map(|folder| folder.join(program)).filter(|path| path.is_file()).collect();
    match found.iter().find(|path| may_execute(path)) {
        Some(path) => Ok(path.clone()),
        None if found.is_empty() => Err(not_found()),
        None => Err(not_executable("is not executable (chmod +x)")),
    }
}

fn may_execute(path: &Path) -> bool {
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: the path is a NUL-terminated string that lives through the call.
    unsafe { libc::access(path.as_ptr(), libc::X_OK) == 0 }
}

/// Programs under one relay of signals, each at a place of its own.
pub(crate) struct Children(SignalRelay);

/// How many there may be at a time.
pub(crate) const CHILDREN_MAX: usize = TASKS_MAX as usize;

impl Children {
    /// Signals wait until [`Children::all_started`].
    pub(crate) fn install() -> Children {
        ASKED_TO_END.store(false, Ordering::SeqCst);
        Children(SignalRelay::install())
    }

    /// Starts `arguments` at a free place, with an environment that is put on top of ours. The
    /// kernel ends the program with the thread that calls this, so that is one that lives on.
    pub(crate) fn start(
        &self,
        arguments: &[OsString],
        environment: &[(OsString, OsString)],
        place: usize,
    ) -> Result<Started, NotStarted> {
        let slot = CHILDREN.get(place).ok_or_else(|| NotStarted {
            message: format!("more than {CHILDREN_MAX} programs at a time"),
            exit_code: EXIT_SLUICE_FAILED,
        })?;
        let child = start(arguments, environment, self.0.mask)?;
        slot.store(child.id() as i32, Ordering::SeqCst);
        Ok(Started { slot, child })
    }

    /// From here on signals are passed on.
    pub(crate) fn all_started(&self) {
        self.0.pass_on();
    }

    /// Further ones are to be started: signals wait for them too.
    pub(crate) fn more(&self) {
        STARTING.store(true, Ordering::SeqCst);
    }

    /// All have been waited for. From here on signals are for this process alone, as before.
    pub(crate) fn stop(self) {
        self.0.stop();
    }
}

/// A program that runs, and has to be waited for.
pub(crate) struct Started {
    slot: &'static AtomicI32,
    child: Child,
}

impl Started {
    /// Waits for its end, and takes it out of the reach of signals before its process id can become
    /// another process's.
    pub(crate) fn wait(mut self) -> io::Result<ExitStatus> {
        // SAFETY: waitid fills the siginfo_t, and WNOWAIT leaves the child to be waited for below.
        unsafe {
            let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
            libc::waitid(libc::P_PID, self.child.id(), info.as_mut_ptr(), libc::WEXITED | libc::WNOWAIT);
        }
        self.slot.store(0, Ordering::SeqCst);
        self.child.wait()
    }
}

fn start(
    arguments: &[OsString],
    environment: &[(OsString, OsString)],
    mask: libc::sigset_t,
) -> Result<Child, NotStarted> {
    let (program, arguments) = arguments
        .split_first()
        .ok_or_else(|| NotStarted { message: "no program was named".into(), exit_code: EXIT_NOT_FOUND })?;
    let mut command = Command::new(program);
    command.args(arguments).envs(environment.iter().map(|(name, value)| (name, value)));
    let parent = std::process::id();
    let prepare = move || {
        // SAFETY: the mask was filled by pthread_sigmask in the parent.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut()) };
        die_with_parent(parent)
    };
    // SAFETY: between fork and exec the closure makes system calls only and touches no memory of
    // the parent.
    unsafe { command.pre_exec(prepare) };
    command.spawn().map_err(|error| NotStarted {
        message: format!("{}: {}", program.to_string_lossy(), start_failure(&error)),
        exit_code: match error.kind() {
            io::ErrorKind::NotFound => EXIT_NOT_FOUND,
            _ => EXIT_NOT_EXECUTABLE,
        },
    })
}

fn start_failure(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOEXEC) => "is neither a program for this machine nor a script with a #! line".into(),
        Some(libc::ENOENT) => "the interpreter that it names does not exist".into(),
        _ => error.to_string(),
    }
}

/// If sluice is killed, its program must not continue without the GPU: it gets SIGTERM.
fn die_with_parent(parent: u32) -> io::Result<()> {
    // SAFETY: PR_SET_PDEATHSIG takes a signal number and changes only the calling process.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if std::os::unix::process::parent_id() != parent {
        return Err(io::Error::from_raw_os_error(libc::ESRCH)); // it died before the call above
    }
    Ok(())
}

/// What a shell's `$?` would be: the exit code, or 128 + the signal that ended the program.
pub(crate) fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// The signals that ask a process for something and that people send to `sluice run` meaning its
/// program. (SIGKILL and SIGSTOP cannot be caught, SIGCHLD is ours, faults are our own, and job
/// control by Ctrl-Z works on the whole group.)
const PASSED_ON: [i32; 9] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGWINCH,
    libc::SIGCONT,
];

/// Those that ask a program to end.
const ENDING: [i32; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// Whether one of [`ENDING`] has come, from whomever.
static ASKED_TO_END: AtomicBool = AtomicBool::new(false);

/// Whether the programs were asked to end since [`Children::install`]: nothing further is
/// to be started then.
pub(crate) fn asked_to_end() -> bool {
    ASKED_TO_END.load(Ordering::SeqCst)
}

/// Asks the running program to end, as the signal to this process would.
pub(crate) fn ask_to_end() {
    ASKED_TO_END.store(true, Ordering::SeqCst);
    signal(libc::SIGTERM);
}

/// The children that signals go to; 0 where there is none.
static CHILDREN: [AtomicI32; CHILDREN_MAX] = [const { AtomicI32::new(0) }; CHILDREN_MAX];

/// Whether children are being started, and the signals that came meanwhile, by their numbers: they
/// are passed on when all are there.
static STARTING: AtomicBool = AtomicBool::new(false);
static EARLY: AtomicU64 = AtomicU64::new(0);

/// Signals that arrive between the installation of the handlers and the start of the children wait:
/// blocked in this thread, noted where another thread gets them.
struct SignalRelay {
    /// The mask from before.
    mask: libc::sigset_t,
}

impl SignalRelay {
    /// From here on no signal of [`PASSED_ON`] ends this process. A signal that was ignored when we
    /// were started (`nohup`) stays ignored, by the child as well.
    fn install() -> SignalRelay {
        let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
        let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises `blocked` before the others read it; pthread_sigmask
        // fills `mask`.
        let (blocked, mask) = unsafe {
            libc::sigemptyset(blocked.as_mut_ptr());
            for signal in PASSED_ON {
                libc::sigaddset(blocked.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, blocked.as_ptr(), mask.as_mut_ptr());
            (blocked.assume_init(), mask.assume_init())
        };
        let _ = blocked;
        STARTING.store(true, Ordering::SeqCst);
        for signal in PASSED_ON {
            // SAFETY: an all-zero sigaction is valid (no flags, empty mask, default handler); the
            // handler below only makes async-signal-safe calls, and SA_SIGINFO announces its
            // three-argument form.
            unsafe {
                let mut before: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, std::ptr::null(), &mut before);
                if before.sa_sigaction == libc::SIG_IGN {
                    continue;
                }
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction =
                    pass_on as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
                libc::sigaction(signal, &action, std::ptr::null_mut());
            }
        }
        SignalRelay { mask }
    }

    fn pass_on(&self) {
        STARTING.store(false, Ordering::SeqCst);
        pass_on_early();
        // SAFETY: the mask was filled by pthread_sigmask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.mask, std::ptr::null_mut()) };
    }

    fn stop(&self) {
        for signal in PASSED_ON {
            // SAFETY: an all-zero sigaction is valid and stands for the default (no flags, empty
            // mask).
            unsafe {
                let mut now: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, std::ptr::null(), &mut now);
                if now.sa_sigaction != libc::SIG_IGN {
                    let default: libc::sigaction = std::mem::zeroed();
                    libc::sigaction(signal, &default, std::ptr::null_mut());
                }
            }
        }
    }
}

/// Sends the running program a signal, all of its tasks; nothing if none runs.
pub(crate) fn signal(signal: i32) {
    CHILDREN.iter().for_each(|slot| send(slot, signal));
}

/// Sends it to the program at one place, if one runs there.
pub(crate) fn signal_one(place: usize, signal: i32) {
    CHILDREN.get(place).into_iter().for_each(|slot| send(slot, signal));
}

fn send(slot: &AtomicI32, signal: i32) {
    let child = slot.load(Ordering::SeqCst);
    if child > 0 {
        // SAFETY: kill touches no memory, and `child` has not been waited for.
        unsafe { libc::kill(child, signal) };
    }
}

extern "C" fn pass_on(number: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // The children that run have a terminal's signals already; those that would come later would
    // never receive them.
    if ENDING.contains(&number) {
        ASKED_TO_END.store(true, Ordering::SeqCst);
    }
    // SAFETY: the kernel passes a valid siginfo_t to a handler installed with SA_SIGINFO.
    let sent_by_a_process = unsafe { (*info).si_code } <= 0;
    if sent_by_a_process {
        // Atomics and kill, which is async-signal-safe.
        if !STARTING.load(Ordering::SeqCst) {
            return signal(number);
        }
        EARLY.fetch_or(1 << number, Ordering::SeqCst);
        // The start may have come to its end just now, before the signal was noted.
        if !STARTING.load(Ordering::SeqCst) {
            pass_on_early();
        }
    }
}

fn pass_on_early() {
    let early = EARLY.swap(0, Ordering::SeqCst);
    PASSED_ON.into_iter().filter(|number| early & (1 << number) != 0).for_each(signal);
}

#[cfg(test)]
mod tests {
    use std::sync::PoisonError;

    use super::*;

    fn run(arguments: &[&str]) -> Result<i32, i32> {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        let children = Children::install();
        let started = children.start(&arguments, &[("SLUICE_TEST".into(), "seven".into())], 0);
        children.all_started();
        let status = started.map(|started| exit_code(started.wait().unwrap()));
        children.stop();
        status.map_err(|failure| failure.exit_code)
    }

    // One test: the relay is one per process.
    #[test]
    fn ends_are_reported_as_a_shell_does() {
        let _signals = SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(run(&["true"]), Ok(0));
        assert_eq!(run(&["sh", "-c", "exit 42"]), Ok(42));
        assert_eq!(run(&["sh", "-c", "kill -KILL $$"]), Ok(128 + 9));
        assert_eq!(run(&["sh", "-c", "kill -TERM $$"]), Ok(128 + 15));
        assert_eq!(run(&["sh", "-c", "test $SLUICE_TEST = seven"]), Ok(0));
        assert_eq!(run(&["/nonexistent/program"]), Err(127));
        assert_eq!(run(&["/"]), Err(126));
        // A signal to us reaches the child: it asks for one and waits for it.
        let ask_parent = "trap 'exit 7' USR1; kill -USR1 $PPID; while :; do sleep 0.01; done";
        assert_eq!(run(&["sh", "-c", ask_parent]), Ok(7));
        // Of several, one can be told to end, and one that comes later is reached as well.
        let script = ["sh", "-c", "while :; do sleep 0.01; done"].map(OsString::from);
        let children = Children::install();
        let [first, second] = [0, 7].map(|place| children.start(&script, &[], place).unwrap());
        children.all_started();
        signal_one(7, libc::SIGUSR1);
        assert_eq!(exit_code(second.wait().unwrap()), 128 + libc::SIGUSR1);
        children.more();
        let third = children.start(&script, &[], 7).unwrap();
        children.all_started();
        signal(libc::SIGTERM);
        let ends = [first, third].map(|started| exit_code(started.wait().unwrap()));
        assert_eq!(ends, [128 + libc::SIGTERM; 2]);
        assert!(children.start(&script, &[], CHILDREN_MAX).is_err());
        children.stop();
        a_terminals_signals_are_heard_of_but_not_passed_on();
        who_asks_for_the_end_before_there_is_a_program_is_heard();
    }

    fn a_terminals_signals_are_heard_of_but_not_passed_on() {
        let script = ["sh", "-c", "while :; do sleep 0.01; done"].map(OsString::from);
        let children = Children::install();
        let child = children.start(&script, &[], 0).unwrap();
        children.all_started();
        // SAFETY: an all-zero siginfo_t is valid.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        info.si_code = libc::SI_KERNEL;
        pass_on(libc::SIGWINCH, &mut info, std::ptr::null_mut());
        assert!(!asked_to_end());
        pass_on(libc::SIGINT, &mut info, std::ptr::null_mut());
        assert!(asked_to_end());
        signal(libc::SIGKILL);
        assert_eq!(exit_code(child.wait().unwrap()), 128 + libc::SIGKILL, "not by SIGINT");
        children.stop();
        Children::install().stop();
        assert!(!asked_to_end(), "what comes later is asked anew");
    }

    fn who_asks_for_the_end_before_there_is_a_program_is_heard() {
        for number in [libc::SIGINT, libc::SIGTERM] {
            // SAFETY: touches no memory. A shell that starts something in the background has it
            // ignore SIGINT.
            unsafe { libc::signal(number, libc::SIG_DFL) };
            let (says, said) = std::sync::mpsc::channel();
            let early = EarlyEnd::heed(move |number| says.send(number).unwrap()).unwrap();
            // SAFETY: touches no memory.
            unsafe { libc::kill(std::process::id() as i32, number) };
            assert_eq!(said.recv(), Ok(number));
            drop(early);
        }
        // Whoever comes after it has its signals.
        let early = EarlyEnd::heed(|_| panic!("none came")).unwrap();
        let children = Children::install();
        drop(early);
        let ask_parent = ["sh", "-c", "trap 'exit 7' TERM; kill -TERM $PPID; while :; do sleep 0.01; done"];
        let started = children.start(&ask_parent.map(OsString::from), &[], 0).unwrap();
        children.all_started();
        assert_eq!(exit_code(started.wait().unwrap()), 7);
        children.stop();
    }

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        let folder = std::env::temp_dir().join(format!("sluice-find-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("data"), "").expect("a file");
        let path = std::env::join_paths([folder.as_path(), Path::new("/bin")]).expect("a path");
        let find =
            |name: &str| find_program(OsStr::new(name), Some(&path)).map_err(|failure| failure.exit_code);
        assert_eq!(find("sh"), Ok(PathBuf::from("/bin/sh")));
        assert_eq!(find("/bin/sh"), Ok(PathBuf::from("/bin/sh")));
        assert_eq!(find("data"), Err(126));
        assert_eq!(find("no-such-program"), Err(127));
        assert_eq!(find("/bin"), Err(126));
        assert_eq!(find("./no-such-program"), Err(127));
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
