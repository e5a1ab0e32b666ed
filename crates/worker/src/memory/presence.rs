//! Whether the memory of a session is on its GPUs, and who uses it now.
//!
//! Every thread that makes calls of the driver for a session holds a [`Use`] meanwhile. Memory is
//! moved while no thread has one and the GPUs have finished what they were given, so no access ever
//! meets an address behind which nothing is mapped.
//!
//! ```text
//!            close: new uses wait         no use left, the GPUs are idle
//!   Present ----------------------> Closing -------------------------------> Absent
//!      ^                               |                                       |
//!      +---- not idle in good time ----+                                       |
//!      +------------------------------- open ----------------------------------+
//! ```
//!
//! While memory is present a use costs two atomic additions.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Set while new uses have to wait.
const CLOSED: u64 = 1 << 63;
/// How often a closing session looks whether its GPUs are idle.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// The presence of one session's memory.
pub(crate) struct Presence {
    /// Uses now, and [`CLOSED`].
    uses: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
    /// Called once for each absence in which a thread wants to use the memory.
    wanted: Box<dyn Fn() + Send + Sync>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    has_wanted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Present,
    Closing,
    Absent,
}

thread_local! {
    /// Uses that this thread has.
    static USES: Cell<u32> = const { Cell::new(0) };
}

/// A use of a session's memory by the thread that made it.
pub(crate) struct Use<'a> {
    of: &'a Presence,
    /// Not for another thread.
    _thread: std::marker::PhantomData<*const ()>,
}

impl Presence {
    /// The memory is present. `wanted` is called without any lock.
    pub(crate) fn new(wanted: impl Fn() + Send + Sync + 'static) -> Arc<Presence> {
        let state = State { phase: Phase::Present, has_wanted: false };
        let wanted = Box::new(wanted);
        Arc::new(Presence {
            uses: AtomicU64::new(0),
            state: Mutex::new(state),
            changed: Condvar::new(),
            wanted,
        })
    }

    /// The memory is absent from the beginning: the session is suspended already.
    pub(crate) fn begin_absent(&self) {
        self.uses.fetch_or(CLOSED, SeqCst);
        self.lock().phase = Phase::Absent;
    }

    /// Waits until the memory is present, and keeps it so.
    pub(crate) fn enter(&self) -> Use<'_> {
        loop {
            if let Some(entered) = self.try_enter() {
                return entered;
            }
            self.wait(|phase| phase == Phase::Present);
        }
    }

    /// As [`Presence::enter`], where that does not wait.
    pub(crate) fn try_enter(&self) -> Option<Use<'_>> {
        if self.uses.fetch_add(1, SeqCst) & CLOSED != 0 {
            self.left();
            return None;
        }
        Some(self.entered())
    }

    /// As [`Presence::enter`], for what those that use the memory may wait for: it waits only while
    /// the memory is absent.
    pub(crate) fn enter_while_closing(&self) -> Use<'_> {
        if let Some(entered) = self.try_enter() {
            return entered;
        }
        loop {
            let state = self.lock();
            if state.phase != Phase::Absent {
                // Under the lock, so that the memory does not become absent in between.
                self.uses.fetch_add(1, SeqCst);
                return self.entered();
            }
            drop(state);
            self.wait(|phase| phase != Phase::Absent);
        }
    }

    /// Does something that may take long and uses no memory, such as asking the daemon. The memory
    /// may have been away in between: what the caller has looked up before is not known any more.
    pub(crate) fn outside<R>(&self, act: impl FnOnce() -> R) -> R {
        let uses = USES.get();
        if uses == 0 {
            return act();
        }
        // A thread has one use at a time.
        self.left();
        let done = act();
        loop {
            if self.uses.fetch_add(1, SeqCst) & CLOSED == 0 {
                return done;
            }
            self.left();
            self.wait(|phase| phase == Phase::Present);
        }
    }

    /// Has new uses wait, and returns once no thread uses the memory and `is_idle` holds: then the
    /// memory is absent, and the caller may move it. False, and the session stays open, where that
    /// does not happen within `limit`.
    pub(crate) fn close(&self, limit: Duration, is_idle: impl Fn() -> bool) -> bool {
        let until = Instant::now() + limit;
        let mut state = self.lock();
        while state.phase == Phase::Closing {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.phase == Phase::Absent {
            return true;
        }
        state.phase = Phase::Closing;
        self.uses.fetch_or(CLOSED, SeqCst);
        loop {
            if self.uses.load(SeqCst) == CLOSED && is_idle() {
                state.phase = Phase::Absent;
                state.has_wanted = false;
                drop(state);
                // Those that wait since it began to close say that they want the memory.
                self.changed.notify_all();
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(state);
                self.open();
                return false;
            }
            let pause = left.min(LOOK_EVERY);
            state = self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The memory is present again.
    pub(crate) fn open(&self) {
        let mut state = self.lock();
        state.phase = Phase::Present;
        self.uses.fetch_and(!CLOSED, SeqCst);
        drop(state);
        self.changed.notify_all();
    }

    pub(crate) fn is_absent(&self) -> bool {
        self.lock().phase == Phase::Absent
    }

    fn entered(&self) -> Use<'_> {
        USES.set(USES.get() + 1);
        Use { of: self, _thread: std::marker::PhantomData }
    }

    fn left(&self) {
        if self.uses.fetch_sub(1, SeqCst) & CLOSED != 0 {
            // A thread that closes looks again, also if it was about to sleep.
            drop(self.lock());
            self.changed.notify_all();
        }
    }

    fn wait(&self, goes_on: impl Fn(Phase) -> bool) {
        let mut state = self.lock();
        while !goes_on(state.phase) {
            if state.phase == Phase::Absent && !std::mem::replace(&mut state.has_wanted, true) {
                drop(state);
                (self.wanted)();
                state = self.lock();
                continue;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        USES.set(USES.get() - 1);
        self.of.left();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::sync::mpsc::channel;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn memory_leaves_once_nobody_uses_it_and_comes_back_for_who_waits() {
        let wanted = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&wanted);
        let presence = Presence::new(move || _ = counted.fetch_add(1, SeqCst));
        let moved = AtomicBool::new(false);
        let (using, used) = channel();
        let (go_on, told) = channel::<()>();
        std::thread::scope(|scope| {
            let (presence, moved) = (&presence, &moved);
            scope.spawn(move || {
                let _use = presence.enter();
                using.send(()).unwrap();
                told.recv().unwrap();
                assert!(!moved.load(SeqCst), "it is in use");
            });
            used.recv().unwrap();
            let closing = scope.spawn(move || {
                assert!(presence.close(LONG, || true));
                moved.store(true, SeqCst);
            });
            while presence.try_enter().is_some() {
                std::thread::yield_now();
            }
            // What the other may wait for is let through.
            drop(presence.enter_while_closing());
            go_on.send(()).unwrap();
            closing.join().unwrap();
            assert!(presence.is_absent() && presence.try_enter().is_none());
            let waiting: Vec<_> = (0..3).map(|_| scope.spawn(|| drop(presence.enter()))).collect();
            while wanted.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            assert!(waiting.iter().all(|thread| !thread.is_finished()));
            presence.open();
        });
        assert_eq!((wanted.load(SeqCst), presence.uses.load(SeqCst)), (1, 0));
    }

    /// A thread that came while the memory was in use by another still says that it wants it.
    #[test]
    fn what_waits_since_the_closing_began_is_wanted() {
        let wanted = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&wanted);
        let presence = Presence::new(move || _ = counted.fetch_add(1, SeqCst));
        let idle = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (presence, idle) = (&presence, &idle);
            let closing = scope.spawn(move || assert!(presence.close(LONG, || idle.load(SeqCst))));
            while presence.try_enter().is_some() {
                std::thread::yield_now();
            }
            let waiting = scope.spawn(|| drop(presence.enter()));
            // It waits, or is about to.
            std::thread::yield_now();
            idle.store(true, SeqCst);
            closing.join().unwrap();
            while wanted.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            presence.open();
            waiting.join().unwrap();
        });
        assert_eq!(wanted.load(SeqCst), 1);
    }

    #[test]
    fn what_does_not_become_idle_stays() {
        let presence = Presence::new(|| panic!("it was never away"));
        assert!(!presence.close(Duration::ZERO, || false));
        let in_use = presence.enter();
        assert!(!presence.close(Duration::ZERO, || true));
        drop(in_use);
        assert!(presence.close(Duration::ZERO, || true), "nobody has to be waited for");
        presence.open();
        drop(presence.enter());
    }

    #[test]
    fn who_asks_the_daemon_uses_no_memory_meanwhile() {
        let presence = Presence::new(|| ());
        let in_use = presence.enter();
        presence.outside(|| {
            assert!(presence.close(Duration::ZERO, || true));
            presence.open();
        });
        assert!(!presence.close(Duration::ZERO, || true), "it is in use again");
        drop(in_use);
        presence.outside(|| ());
        assert_eq!(presence.uses.load(SeqCst), 0, "who uses nothing leaves nothing");
    }
}
