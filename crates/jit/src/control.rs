//! Pause, resume and cancel of running device code.
//!
//! Each launch has a control word that compiled code reads at its safepoints (block starts and loop
//! back edges). Zero lets it continue; anything else sends it into [`LaunchControl::at_safepoint`],
//! which waits out a pause and reports a cancellation. [`Control`] sets the words of all launches
//! that were made with it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

const GO: u32 = 0;
const PAUSE: u32 = 1;
const CANCEL: u32 = 2;
const HOLD: u32 = 4;

/// Who wants to know that device code orders what it writes for, or reads from, those outside the
/// device.
pub struct SystemOrder {
    /// At a fence of system scope, and before a release: what the thread has written is there, and
    /// what it writes next is not. False if that cannot be taken yet: the thread asks again, unless
    /// its launch is cancelled, and pauses in between if it is to.
    pub released: Box<dyn Fn() -> bool + Send + Sync>,
    /// At a fence of system scope, and after an acquiring load.
    pub acquired: Box<dyn Fn() + Send + Sync>,
}

static SYSTEM_ORDER: OnceLock<SystemOrder> = OnceLock::new();

/// Says who wants to know, for all device code of the process from now on; the first who says so
/// does.
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
    /// CPU time of the work that has ended.
    worked: Duration,
    /// The work that has not ended, each with its CPU time.
    stints: Vec<Stint>,
}

/// CPU time of a thread from a moment on. Any thread of the process can look.
struct Stint {
    clock: libc::clockid_t,
    begin: Duration,
    /// How many parts the thread has begun and not ended: the clock is asked for the first and the
    /// last, since that is a system call.
    parts: u32,
}

impl Control {
    pub fn new() -> Control {
        Control::default()
    }

    /// Stops device code at its next safepoint, in launches that run now and in later ones, until
    /// [`Control::resume`]. Returns at once.
    pub fn pause(&self) {
        let mut state = self.lock();
        state.paused = true;
        if let Some((at, missing)) = state.resumed.take() {
            state.late += at.elapsed() * missing;
        }
        state.each_word(|word| _ = word.fetch_or(PAUSE, Ordering::Relaxed));
    }

    /// Lets paused device code continue.
    pub fn resume(&self) {
        let mut state = self.lock();
        if state.paused {
            state.resumed = Some((Instant::now(), state.asleep));
        }
        state.paused = false;
        state.each_word(|word| _ = word.fetch_and(!PAUSE, Ordering::Relaxed));
        self.0.resumed.notify_all();
    }

    /// Stops device code at its next safepoint until [`Control::release`], for less time than a
    /// program would notice. Returns when no device code runs, or after `patience`: false then, and
    /// some may run still.
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

    /// Lets device code that is held continue.
    pub fn release(&self) {
        let mut state = self.lock();
        state.held = false;
        state.each_word(|word| _ = word.fetch_and(!HOLD, Ordering::Relaxed));
        self.0.resumed.notify_all();
    }

    /// How much time threads have lost so far between the end of a pause and their waking up, added
    /// up over all threads: a busy machine takes its time.
    pub fn late(&self) -> Duration {
        self.lock().late
    }

    /// The calling thread does work of the device until it drops this; its CPU time counts, once
    /// where it does so within such work.
    pub fn work(&self) -> Working<'_> {
        let clock = own_clock();
        self.lock().begin(clock);
        Working { control: self, clock }
    }

    /// CPU time that work has taken so far, added up over all threads. What is paused takes none,
    /// and neither does what waits for a processor.
    pub fn worked(&self) -> Duration {
        let state = self.lock();
        state.worked + state.stints.iter().map(Stint::elapsed).sum::<Duration>()
    }

    /// Waits while paused.
    pub fn wait_resumed(&self) {
        let mut state = self.lock();
        while state.paused && !state.cancelled {
            state = self.0.resumed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends all launches, those that run and those that come later, with
    /// [`crate::FaultKind::Cancelled`].
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

    /// The thread with this clock begins work, or a part of what it has begun.
    fn begin(&mut self, clock: libc::clockid_t) {
        match self.stints.iter_mut().find(|stint| stint.clock == clock) {
            Some(stint) => stint.parts += 1,
            None => self.stints.push(Stint { clock, begin: read(clock), parts: 1 }),
        }
    }

    fn end(&mut self, clock: libc::clockid_t) {
        let Some(place) = self.stints.iter().position(|stint| stint.clock == clock) else { return };
        let stint = &mut self.stints[place];
        stint.parts -= 1;
        if stint.parts == 0 {
            self.worked += self.stints.swap_remove(place).elapsed();
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

impl Stint {
    fn elapsed(&self) -> Duration {
        read(self.clock).saturating_sub(self.begin)
    }
}

/// The CPU-time clock of the calling thread, by a name that all threads of the process know it by.
fn own_clock() -> libc::clockid_t {
    let mut clock = libc::CLOCK_THREAD_CPUTIME_ID;
    // SAFETY: the thread is alive, being this one, and `clock` outlives the call. For a thread that
    // is alive it cannot fail.
    unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) };
    clock
}

fn read(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call.
    unsafe { libc::clock_gettime(clock, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A thread that does work of the device.
pub struct Working<'a> {
    control: &'a Control,
    clock: libc::clockid_t,
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.control.lock().end(self.clock);
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
    /// Ends the launch with [`crate::FaultKind::Cancelled`] at its next safepoint, also while
    /// paused.
    pub fn cancel(&self) {
        let _state = self.control.lock();
        self.word.fetch_or(CANCEL, Ordering::Relaxed);
        self.control.0.resumed.notify_all();
    }

    /// The word that compiled code tests.
    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.word
    }

    /// The calling thread runs device code until it drops this; its CPU time counts. A safepoint is
    /// the first thing that it comes to.
    pub(crate) fn enter(&self) -> Inside<'_> {
        let clock = own_clock();
        let mut state = self.control.lock();
        state.inside += 1;
        state.begin(clock);
        Inside { control: &self.control, clock }
    }

    /// Waits while paused or held; says whether to continue (`false`: cancelled).
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
pub(crate) struct Inside<'a> {
    control: &'a Control,
    clock: libc::clockid_t,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut state = self.control.lock();
        state.end(self.clock);
        state.inside -= 1;
        if state.held {
            self.control.0.stopped.notify_all();
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

    /// Another thread sees the CPU time of work while it continues; what is asleep takes none.
    #[test]
    fn work_is_the_cpu_time_of_those_who_do_it() {
        const LONG: Duration = Duration::from_millis(20);
        let control = Control::new();
        let launch = control.launch(None);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _inside = launch.enter();
                while !done.load(Ordering::SeqCst) && launch.at_safepoint() {
                    std::hint::spin_loop();
                }
            });
            while control.worked() < LONG {
                std::thread::yield_now();
            }
            control.pause();
            while control.lock().asleep == 0 {
                std::thread::yield_now();
            }
            let paused = (control.worked(), Instant::now());
            while paused.1.elapsed() < LONG {
                std::thread::yield_now();
            }
            // To fall asleep takes some.
            assert!(control.worked() - paused.0 < LONG / 4);
            done.store(true, Ordering::SeqCst);
            control.resume();
        });
        // A part of it counts once, and does not end it.
        let (begin, before) = (read(own_clock()), control.worked());
        let (working, part) = (control.work(), control.work());
        while control.worked() < before + LONG {
            std::hint::spin_loop();
        }
        drop(part);
        assert_eq!(control.lock().stints.len(), 1);
        drop(working);
        let worked = control.worked();
        assert!(worked - before <= read(own_clock()) - begin);
        let (begin, clock) = (read(own_clock()), own_clock());
        while read(clock) < begin + LONG {
            std::hint::spin_loop();
        }
        assert_eq!(control.worked(), worked, "that was no work");
    }

    /// Threads go round between safepoints, and touch a word in between; nobody does while they are
    /// held.
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
