//! Pause, resume and cancel of running device code.
//!
//! Each launch has a control word that compiled code reads at its safepoints (block starts and loop back edges).
//! Zero lets it go on; anything else sends it into [`LaunchControl::at_safepoint`], which waits out a pause and
//! reports a cancellation. [`Control`] sets the words of all launches that were made with it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

const GO: u32 = 0;
const PAUSE: u32 = 1;
const CANCEL: u32 = 2;
const HOLD: u32 = 4;

/// Who wants to know that device code orders what it writes for, or reads from, those outside the device.
pub struct SystemOrder {
    /// At a fence of system scope, and before a release: what the thread has written is there, and what it writes next is not.
    /// False if that cannot be taken yet: the thread asks again, unless its launch is cancelled, and pauses in between if it is to.
    pub released: Box<dyn Fn() -> bool + Send + Sync>,
    /// At a fence of system scope, and after an acquiring load.
    pub acquired: Box<dyn Fn() + Send + Sync>,
}

static SYSTEM_ORDER: OnceLock<SystemOrder> = OnceLock::new();

/// Says who wants to know, for all device code of the process from now on; the first who says so does.
pub fn on_system_order(order: SystemOrder) {
    let _ = SYSTEM_ORDER.set(order);
}

/// Who wants to know.
pub(crate) fn system_order() -> Option<&'static SystemOrder> {
    SYSTEM_ORDER.get()
}

/// Receives what device code prints, one call per `printf` or assertion message.
pub type Output = Arc<dyn Fn(&[u8]) + Send + Sync>;

/// Holds back or ends the device code of all its launches. Clones are the same control.
#[derive(Clone, Default)]
pub struct Control(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    resumed: Condvar,
    /// A thread has come to a safepoint, or left device code, while it is held.
    stopped: Condvar,
}

#[derive(Default)]
struct State {
    paused: bool,
    cancelled: bool,
    held: bool,
    /// Threads in device code, those included that sleep at a safepoint.
    inside: u32,
    words: Vec<Weak<AtomicU32>>,
    /// Threads of launches that wait for the end of a pause.
    asleep: u32,
    /// When the last pause ended, and how many threads have not noticed since.
    resumed: Option<(Instant, u32)>,
    /// Time that threads were late, added up over them.
    late: Duration,
}

impl Control {
    pub fn new() -> Control {
        Control::default()
    }

    /// Stops device code at its next safepoint, in launches that run now and in later ones, until [`Control::resume`].
    /// Returns at once.
    pub fn pause(&self) {
        let mut state = self.lock();
        state.paused = true;
        if let Some((at, missing)) = state.resumed.take() {
            state.late += at.elapsed() * missing;
        }
        state.each_word(|word| _ = word.fetch_or(PAUSE, Ordering::Relaxed));
    }

    /// Lets paused device code go on.
    pub fn resume(&self) {
        let mut state = self.lock();
        if state.paused {
            state.resumed = Some((Instant::now(), state.asleep));
        }
        state.paused = false;
        state.each_word(|word| _ = word.fetch_and(!PAUSE, Ordering::Relaxed));
        self.0.resumed.notify_all();
    }

    /// Stops device code at its next safepoint until [`Control::release`], for less time than anybody would notice. Returns when
    /// no device code runs, or after `patience`: false then, and some may run still.
    pub fn hold(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut state = self.lock();
        state.held = true;
        state.each_word(|word| _ = word.fetch_or(HOLD, Ordering::Relaxed));
        while state.asleep < state.inside {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.0.stopped.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Lets device code that is held go on.
    pub fn release(&self) {
        let mut state = self.lock();
        state.held = false;
        state.each_word(|word| _ = word.fetch_and(!HOLD, Ordering::Relaxed));
        self.0.resumed.notify_all();
    }

    /// How much time threads have lost so far between the end of a pause and their waking up, added up over all threads:
    /// a busy machine takes its time.
    pub fn late(&self) -> Duration {
        self.lock().late
    }

    /// Waits while paused.
    pub fn wait_resumed(&self) {
        let mut state = self.lock();
        while state.paused && !state.cancelled {
            state = self.0.resumed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends all launches, those that run and those that come later, with [`crate::FaultKind::Cancelled`].
    pub fn cancel(&self) {
        let mut state = self.lock();
        state.cancelled = true;
        state.each_word(|word| _ = word.fetch_or(CANCEL, Ordering::Relaxed));
        self.0.resumed.notify_all();
    }

    /// The control of one launch. `output` takes what its device code prints.
    pub fn launch(&self, output: Option<Output>) -> LaunchControl {
        let mut state = self.lock();
        let flags = (u32::from(state.paused) * PAUSE)
            | (u32::from(state.cancelled) * CANCEL)
            | (u32::from(state.held) * HOLD);
        let word = Arc::new(AtomicU32::new(flags));
        state.words.retain(|word| word.strong_count() > 0);
        state.words.push(Arc::downgrade(&word));
        LaunchControl { control: self.clone(), word, output }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A thread has woken up.
    fn woken(&mut self) {
        self.asleep -= 1;
        if let Some((at, missing)) = &mut self.resumed
            && *missing > 0
        {
            *missing -= 1;
            self.late += at.elapsed();
        }
    }

    fn each_word(&mut self, change: impl Fn(&AtomicU32)) {
        self.words.retain(|word| match word.upgrade() {
            Some(word) => {
                change(&word);
                true
            }
            None => false,
        });
    }
}

/// Controls one launch, from any thread; clones control the same launch.
#[derive(Clone)]
pub struct LaunchControl {
    control: Control,
    word: Arc<AtomicU32>,
    output: Option<Output>,
}

impl LaunchControl {
    /// Ends the launch with [`crate::FaultKind::Cancelled`] at its next safepoint, also while paused.
    pub fn cancel(&self) {
        let _state = self.control.lock();
        self.word.fetch_or(CANCEL, Ordering::Relaxed);
        self.control.0.resumed.notify_all();
    }

    /// The word that compiled code tests.
    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.word
    }

    /// The calling thread runs device code until it drops this. A safepoint is the first thing that it comes to.
    pub(crate) fn enter(&self) -> Inside<'_> {
        self.control.lock().inside += 1;
        Inside(self)
    }

    /// Waits while paused or held; says whether to go on (`false`: cancelled).
    pub(crate) fn at_safepoint(&self) -> bool {
        if self.word.load(Ordering::Relaxed) == GO {
            return true;
        }
        let mut state = self.control.lock();
        loop {
            match self.word.load(Ordering::Relaxed) {
                flags if flags & CANCEL != 0 => return false,
                GO => return true,
                _ => {
                    state.asleep += 1;
                    if state.held {
                        self.control.0.stopped.notify_all();
                    }
                    state = self.control.0.resumed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    state.woken();
                }
            }
        }
    }

    /// Hands printed bytes to the output, if there is one.
    pub(crate) fn print(&self, bytes: &[u8]) {
        if let Some(output) = &self.output {
            output(bytes);
        }
    }
}

/// A thread in device code.
pub(crate) struct Inside<'a>(&'a LaunchControl);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut state = self.0.control.lock();
        state.inside -= 1;
        if state.held {
            self.0.control.0.stopped.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn time_between_the_end_of_a_pause_and_waking_up_is_counted() {
        let control = Control::new();
        let launch = control.launch(None);
        control.resume();
        assert_eq!(control.late(), Duration::ZERO, "nobody slept");
        control.pause();
        let sleeper = std::thread::spawn(move || launch.at_safepoint());
        while control.lock().asleep == 0 {
            std::thread::yield_now();
        }
        assert_eq!(control.late(), Duration::ZERO, "a pause is nobody's delay");
        control.resume();
        assert!(sleeper.join().unwrap());
        let late = control.late();
        assert!(late > Duration::ZERO);
        control.pause();
        control.resume();
        assert_eq!(control.late(), late);
    }

    /// Threads go round between safepoints, and touch a word in between; nobody does while they are held.
    #[test]
    fn nobody_runs_while_all_are_held() {
        const FOREVER: Duration = Duration::from_secs(600);
        let control = Control::new();
        let (done, rounds) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !done.load(Ordering::SeqCst) {
                        let launch = control.launch(None);
                        let _inside = launch.enter();
                        for _ in 0..10 {
                            assert!(launch.at_safepoint());
                            rounds.fetch_add(1, Ordering::SeqCst);
                            std::thread::yield_now();
                        }
                    }
                });
            }
            for _ in 0..200 {
                assert!(control.hold(FOREVER));
                let before = rounds.load(Ordering::SeqCst);
                (0..20).for_each(|_| std::thread::yield_now());
                assert_eq!(rounds.load(Ordering::SeqCst), before);
                control.release();
            }
            done.store(true, Ordering::SeqCst);
        });
        let launch = control.launch(None);
        let inside = launch.enter();
        assert!(!control.hold(Duration::ZERO), "one is inside and comes to no safepoint");
        drop(inside);
        assert!(control.hold(FOREVER));
    }
}
