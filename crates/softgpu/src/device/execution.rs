//! What runs the grids of all devices, and what the embedding program can do to it: hold it back,
//! end it, and see how much it has worked.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use sluice_jit::{BlockOrder, CodeStore, Compiler, Control, Executor, LaunchControl, Output};

use crate::base::status::{Result, Status};
use crate::device::{Device, driver};

/// What kernels have used so far, over all devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Grids that have ended.
    pub launches: u64,
    /// Time during which a grid was running or held back, the one that runs now included.
    pub busy_time: Duration,
}

/// Pauses, resumes and cancels what a device does; `None` before `cuInit`, and where there is no
/// such device. A paused device stops device code at safepoints and begins no copies and fills.
pub fn control(ordinal: usize) -> Option<&'static Control> {
    Some(&driver().ok()?.devices.get(ordinal)?.control)
}

/// Threads that run the blocks of a device; `None` before `cuInit`.
pub fn threads() -> Option<usize> {
    Some(driver().ok()?.threads)
}

/// Says where device-side `printf` goes; standard output unless set.
pub fn set_output(output: Output) {
    *OUTPUT.lock().unwrap_or_else(PoisonError::into_inner) = Some(output);
}

/// Limits the memory that compiling kernels takes, all of them together, to about this many bytes.
pub fn set_compile_memory(bytes: u64) {
    // Without a compiler nothing is compiled.
    if let Ok(compiler) = compiler() {
        compiler.set_memory_max(bytes);
    }
}

/// Stores machine code between processes, and uses what is there. False where that cannot be.
pub fn set_code_store(store: Arc<dyn CodeStore>) -> bool {
    compiler().is_ok_and(|compiler| compiler.set_code_store(store))
}

/// Has kernels that take long compiled again by LLVM, in the background, where its shared library
/// can be loaded when the first of them is there.
pub fn set_optimizes(optimizes: bool) {
    // Without a compiler nothing is compiled.
    if let Ok(compiler) = compiler() {
        compiler.set_optimizes(optimizes);
    }
}

/// Has `exceeded` called with a kernel's name when compiling it takes longer than `limit`. The code
/// generator cannot be interrupted, so `exceeded` has to end the process. The first call counts.
pub fn set_compile_limit(limit: Duration, exceeded: impl Fn(&str) + Send + Sync + 'static) {
    let _ = COMPILE_LIMIT.set((limit, Box::new(exceeded)));
}

/// Ends the grids that run on a device now with `CUDA_ERROR_LAUNCH_TIMEOUT`; those that wait in
/// their streams fall to the context's error.
pub fn cancel_running(ordinal: usize) {
    for grid in running_grids().iter().filter(|grid| grid.device == ordinal) {
        grid.launch.cancel();
    }
}

/// For how long the oldest grid that runs on a device has been running, if one is.
pub fn longest_running(ordinal: usize) -> Option<Duration> {
    let grids = running_grids();
    grids.iter().filter(|grid| grid.device == ordinal).map(|grid| grid.start.elapsed()).max()
}

/// What kernels have used so far.
pub fn usage() -> Usage {
    let now: Duration = running_grids().iter().map(|grid| grid.start.elapsed()).sum();
    Usage {
        launches: LAUNCHES.load(Ordering::Relaxed),
        busy_time: Duration::from_nanos(BUSY_NS.load(Ordering::Relaxed)) + now,
    }
}

/// How long compiling may take, and what is called then.
type CompileLimit = (Duration, Box<dyn Fn(&str) + Send + Sync>);

static COMPILE_LIMIT: OnceLock<CompileLimit> = OnceLock::new();
static OUTPUT: Mutex<Option<Output>> = Mutex::new(None);
static RUNNING: Mutex<Vec<Running>> = Mutex::new(Vec::new());
static LAUNCHES: AtomicU64 = AtomicU64::new(0);
static BUSY_NS: AtomicU64 = AtomicU64::new(0);

fn running_grids() -> std::sync::MutexGuard<'static, Vec<Running>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The threads that run blocks of a device, started with its first launch. A paused grid keeps its
/// threads, so devices do not share them.
pub(crate) fn executor(device: &Device) -> Result<&Executor> {
    let threads = driver()?.threads;
    let executor = device.executor.get_or_init(|| Executor::new(threads).ok());
    executor.as_ref().ok_or(Status::OPERATING_SYSTEM)
}

/// The order of blocks that the environment names, in a process of its own for each session.
pub(crate) fn block_order() -> BlockOrder {
    static ORDER: OnceLock<BlockOrder> = OnceLock::new();
    *ORDER.get_or_init(|| {
        let Ok(text) = std::env::var("SLUICE_BLOCK_ORDER") else { return BlockOrder::default() };
        text.parse().unwrap_or_else(|error| {
            eprintln!("sluice: SLUICE_BLOCK_ORDER ignored: {error}");
            BlockOrder::default()
        })
    })
}

/// The compiler for this machine.
pub(crate) fn compiler() -> Result<&'static Compiler> {
    static COMPILER: OnceLock<std::result::Result<Compiler, ()>> = OnceLock::new();
    let compiler = COMPILER.get_or_init(|| Compiler::new().map_err(|error| eprintln!("sluice: {error}")));
    compiler.as_ref().map_err(|()| Status::SYSTEM_NOT_READY)
}

/// Compiles the kernel of this name within the limit of time, if there is one.
pub(crate) fn within_compile_limit<R>(name: &str, compile: impl FnOnce() -> R) -> R {
    match COMPILE_LIMIT.get() {
        Some((limit, exceeded)) => within(*limit, || exceeded(name), compile),
        None => compile(),
    }
}

/// Runs `work`, and in another thread `exceeded` once the limit has passed before its end.
fn within<R>(limit: Duration, exceeded: impl FnOnce() + Send, work: impl FnOnce() -> R) -> R {
    std::thread::scope(|scope| {
        let (done, end) = channel::<()>();
        let watch = move || {
            if end.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                exceeded();
            }
        };
        // Where no thread can be had, the limit of memory still bounds the work.
        let _ = std::thread::Builder::new().name("compile-limit".to_owned()).spawn_scoped(scope, watch);
        let result = work();
        drop(done);
        result
    })
}

/// A grid that runs now. Clones are the same grid.
#[derive(Clone)]
pub(crate) struct Running {
    device: usize,
    launch: LaunchControl,
    start: Instant,
}

impl Running {
    pub(crate) fn start(device: &Device) -> Self {
        let output = OUTPUT.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let launch = device.control.launch(Some(output.unwrap_or_else(standard_output)));
        let running = Self { device: device.ordinal, launch, start: Instant::now() };
        running_grids().push(running.clone());
        running
    }

    pub(crate) fn control(&self) -> &LaunchControl {
        &self.launch
    }

    /// The grid has ended.
    pub(crate) fn finish(self) {
        let mut running = running_grids();
        // One grid runs on a device at a time.
        if let Some(place) = running.iter().position(|grid| grid.device == self.device) {
            running.swap_remove(place);
        }
        let busy_ns = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        BUSY_NS.fetch_add(busy_ns, Ordering::Relaxed);
        LAUNCHES.fetch_add(1, Ordering::Relaxed);
    }
}

unsafe extern "C" {
    /// The C library's standard output, which this process shares with the program.
    static stdout: *mut libc::FILE;
}

/// The program's own standard output, through the C library, so that device output comes after what
/// the program itself printed before.
fn standard_output() -> Output {
    // SAFETY: pointer and length describe `text`, and the C library's stream is there for the whole
    // process. A closed standard output is the program's choice, so a failure is not reported.
    Arc::new(|text| unsafe {
        libc::fwrite(text.as_ptr().cast(), 1, text.len(), stdout);
        libc::fflush(stdout);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_beyond_its_limit_is_noticed_while_it_goes_on() {
        let (say, hear) = channel();
        let exceeded = move || say.send(()).expect("somebody listens");
        within(Duration::ZERO, exceeded, || hear.recv().expect("before the end of the work"));
    }

    #[test]
    fn work_within_its_limit_is_left_alone() {
        let exceeded = || panic!("it has taken less than an hour");
        assert_eq!(within(Duration::from_secs(3600), exceeded, || 7), 7);
    }
}
