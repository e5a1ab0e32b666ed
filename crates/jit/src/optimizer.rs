//! The thread that compiles kernels again, one after the other, beside their launches.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

type Job = Box<dyn FnOnce() + Send>;

/// Whether the process ends.
static ENDS: AtomicBool = AtomicBool::new(false);
/// The process that has the thread; a fork of it has none that would end a job.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Held while a job is done.
static BUSY: Mutex<()> = Mutex::new(());

thread_local! {
    static IS_OPTIMIZER: Cell<bool> = const { Cell::new(false) };
}

/// Has the job done some time, in the order in which jobs come. Without a thread it is not done.
pub(crate) fn later(job: impl FnOnce() + Send + 'static) {
    static JOBS: OnceLock<Option<Mutex<Sender<Job>>>> = OnceLock::new();
    let Some(jobs) = JOBS.get_or_init(start) else { return };
    // The thread ends with the process.
    let _ = jobs.lock().unwrap_or_else(PoisonError::into_inner).send(Box::new(job));
}

/// Has the end of the process wait for the job that is being done, and no other be done. A library
/// that jobs use must have been loaded: what it does at the end comes after this.
pub(crate) fn end_before_library() {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    // SAFETY: the function is of this library and takes nothing.
    unsafe { libc::atexit(end) };
}

extern "C" fn end() {
    ENDS.store(true, Ordering::Relaxed);
    // A library that ends the process in the middle of a job does not wait for itself.
    let is_fork = PROCESS.load(Ordering::Relaxed) != std::process::id();
    if !is_fork && !IS_OPTIMIZER.try_with(Cell::get).unwrap_or(false) {
        std::mem::forget(BUSY.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

fn start() -> Option<Mutex<Sender<Job>>> {
    let (jobs, taken) = channel::<Job>();
    let work = move || {
        IS_OPTIMIZER.set(true);
        for job in taken {
            let _busy = BUSY.lock().unwrap_or_else(PoisonError::into_inner);
            if ENDS.load(Ordering::Relaxed) {
                return;
            }
            // One that panics is not done.
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    };
    // LLVM's passes recurse.
    let thread = std::thread::Builder::new().name("optimizer".into()).stack_size(16 << 20);
    thread.spawn(work).ok()?;
    Some(Mutex::new(jobs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_done_in_their_order_and_a_panic_does_not_end_them() {
        let (done, heard) = channel();
        for number in 0..3 {
            let done = done.clone();
            later(move || {
                if number == 1 {
                    panic!("a job that fails");
                }
                let _ = done.send(number);
            });
        }
        assert_eq!([heard.recv(), heard.recv()], [Ok(0), Ok(2)]);
    }
}
