//! Pause, resume and cancel of running device code.
//!
//! Each launch has a control word that compiled code reads at its safepoints (block starts and loop back edges).
//! Zero lets it go on; anything else sends it into [`LaunchControl::at_safepoint`], which waits out a pause and
//! reports a cancellation. [`Control`] sets the words of all launches that were made with it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

const GO: u32 = 0;
const PAUSE: u32 = 1;
const CANCEL: u32 = 2;

/// Receives what device code prints, one call per `printf` or assertion message.
pub type Output = Arc<dyn Fn(&[u8]) + Send + Sync>;

/// Holds back or ends the device code of all its launches. Clones are the same control.
#[derive(Clone, Default)]
pub struct Control(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    resumed: Condvar,
}

#[derive(Default)]
struct State {
    paused: bool,
    cancelled: bool,
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
        let flags = (u32::from(state.paused) * PAUSE) | (u32::from(state.cancelled) * CANCEL);
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

    /// Waits while paused; says whether to go on (`false`: cancelled).
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

#[cfg(test)]
mod tests {
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
}
