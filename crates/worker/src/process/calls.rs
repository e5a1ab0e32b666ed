//! The calls of a loaded driver that are in progress, as each thread notes them: two stores to
//! memory of its own a call.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sluice_cuda::{DriverTable, Fn, Observer};

/// A loaded driver, its calls noted.
pub(crate) fn noted(table: DriverTable) -> DriverTable {
    // A process loads one driver; the calls of another would only not be watched.
    table.observed(&Notes).unwrap_or(table)
}

/// A call that has not returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// The kernel's number of the thread.
    pub(crate) thread: i32,
    /// Which call of its thread it is.
    pub(crate) number: u64,
    pub(crate) function: Fn,
}

/// Those of all threads.
pub(crate) fn in_progress() -> Vec<Call> {
    let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    threads.retain(|thread| thread.strong_count() > 0);
    threads.iter().filter_map(Weak::upgrade).filter_map(|thread| thread.call()).collect()
}

/// What one thread notes.
struct Thread {
    number: i32,
    /// Twice the calls so far, and one more during a call, in the upper bits; its function below
    /// them.
    call: AtomicU64,
}

const FUNCTION_BITS: u32 = 16;
const _: () = assert!(Fn::COUNT <= 1 << FUNCTION_BITS);

static THREADS: Mutex<Vec<Weak<Thread>>> = Mutex::new(Vec::new());

thread_local! {
    static THREAD: OnceCell<Arc<Thread>> = const { OnceCell::new() };
}

impl Thread {
    fn here() -> Arc<Thread> {
        // SAFETY: plain query.
        let thread = Arc::new(Thread { number: unsafe { libc::gettid() }, call: AtomicU64::new(0) });
        THREADS.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&thread));
        thread
    }

    /// The next call begins (an odd number), or the call ends (an even one).
    fn note(&self, function: u64) {
        let number = (self.call.load(Relaxed) >> FUNCTION_BITS) + 1;
        self.call.store(number << FUNCTION_BITS | function, Relaxed);
    }

    fn call(&self) -> Option<Call> {
        let noted = self.call.load(Relaxed);
        let number = noted >> FUNCTION_BITS;
        let function = Fn::from_number(noted as u16)?;
        (number % 2 == 1).then_some(Call { thread: self.number, number, function })
    }
}

struct Notes;

impl Observer for Notes {
    fn begins(&self, function: Fn) {
        // A thread whose locals are gone makes no calls that a client waits for.
        let _ = THREAD.try_with(|thread| thread.get_or_init(Thread::here).note(function as u64));
    }

    fn ended(&self) {
        let _ = THREAD.try_with(|thread| thread.get().map(|thread| thread.note(0)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn a_call_is_in_progress_from_its_beginning_to_its_end() {
        let (says, heard) = sync_channel(0);
        let (goes_on, wait) = sync_channel(0);
        let caller = std::thread::spawn(move || {
            for function in [Fn::cuMemCreate, Fn::cuLaunchKernel] {
                Notes.begins(function);
                // SAFETY: plain query.
                says.send(unsafe { libc::gettid() }).unwrap();
                wait.recv().unwrap();
                Notes.ended();
            }
            says.send(0).unwrap();
            wait.recv().unwrap();
        });
        let of = |thread| in_progress().into_iter().find(|call| call.thread == thread);
        let thread = heard.recv().unwrap();
        let first = of(thread).unwrap();
        assert_eq!(first.function, Fn::cuMemCreate);
        assert_eq!(of(thread), Some(first));
        goes_on.send(()).unwrap();
        heard.recv().unwrap();
        let second = of(thread).unwrap();
        assert_eq!((second.function, second.number > first.number), (Fn::cuLaunchKernel, true));
        goes_on.send(()).unwrap();
        heard.recv().unwrap();
        assert_eq!(of(thread), None);
        goes_on.send(()).unwrap();
        caller.join().unwrap();
        assert_eq!(of(thread), None, "and a thread that has ended is forgotten");
    }
}
