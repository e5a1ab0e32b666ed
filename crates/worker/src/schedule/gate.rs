//! The session's side of the arbiter: GPU work runs only while the session has the turn.
//!
//! ```text
//!          first work            Grant            no work left, and another waits; or Recall
//!   Without ---------> Wanted ---------> Held -------------------------------------------> Without
//!                         ^                |                          (or Wanted, if work is left)
//!                         +----------------+  Recall with work left, on a driver that can pause
//! ```
//!
//! A holder whose turn no other session waits for keeps it while it idles, so a lone session sends
//! no packets at all. Time is charged from the first submission to the drain, while the turn is
//! held.
//!
//! A driver that can stop device code in the middle (the software GPU, at its safepoints) takes
//! work at any time and is paused between turns. Any other driver gets no work between turns, and a
//! recall waits until what it has is finished. So that this is soon, such a driver is given little
//! ahead of what the GPU does (`ahead.rs`) while others want the GPU, too.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::counters::CounterPage;
use crate::link::{Packet, PacketSocket};
use crate::schedule::ahead::Ahead;
use crate::schedule::backlog::Backlog;

/// What the gate needs from a driver.
pub trait Brake: Send + Sync {
    /// Whether [`Brake::pause`] stops device code that already runs.
    fn can_pause(&self) -> bool;
    /// Stops device code at its next safepoint.
    fn pause(&self);
    /// Lets it continue.
    fn resume(&self);
    /// Time of turns so far in which the GPU did not run, though it was let go: that much of the
    /// whole GPU.
    fn late(&self) -> Duration {
        Duration::ZERO
    }
    /// Device time of work so far x the part of the device that it occupied. `None` from a driver
    /// that does not tell: what has the turn then counts as the whole device.
    fn used(&self) -> Option<Duration> {
        None
    }
    /// The calling thread has given the driver work.
    fn submitted(&self) {}
    /// Returns when everything submitted before the call has finished; after an error at once.
    fn drain(&self);
}

/// A session that is asked to make room waits this long for more work before it gives an idle GPU
/// up. A client that launches, waits and launches again would otherwise lose its turn after every
/// kernel.
const LINGER: Duration = Duration::from_micros(300);

/// While work keeps coming, the driver is left alone between two drains for this part of the time
/// that the GPU has been busy, and for no longer than [`LINGER`]: a drain wakes threads up, and
/// behind every few calls it would cost more than they do.
const REST_SHARE: u32 = 64;
/// A shorter rest would not be one: timers are late by as much.
const REST_MIN: Duration = Duration::from_micros(50);

/// The gate to one GPU of the lease.
pub struct Gate {
    gpu: u32,
    brake: Box<dyn Brake>,
    link: Arc<PacketSocket>,
    counters: Arc<CounterPage>,
    backlog: Backlog,
    state: Mutex<State>,
    changed: Condvar,
    /// The rest between two drains is over early.
    rested: Condvar,
}

#[derive(Debug)]
struct State {
    turn: SliceState,
    /// The daemon wants the turn back once this driver has drained.
    recalled: bool,
    /// Another session waits.
    pressed: bool,
    /// Submissions in progress, submissions made, and how many of these are known to have finished.
    inside: u32,
    submitted: u64,
    /// Of those inside, the ones that sleep in [`Gate::enter`] and have given the driver nothing
    /// yet.
    at_gate: u32,
    drained: u64,
    ahead: Ahead,
    /// Since when time is charged, and [`Brake::late`] then.
    charged_since: Option<(Instant, Duration)>,
    /// Time that this turn has been charged with so far.
    turn_ns: u64,
    /// GPU time that was used since the last turn was given back.
    used_ns: u64,
    /// [`Brake::used`] as far as it has been counted.
    metered: Duration,
    /// A thread sleeps in [`Gate::wait_for_work`].
    awaited: bool,
    /// The thread that watches leaves the driver alone, though it has work.
    rests: bool,
    /// The driver runs also without the turn, for copies of memory that moves.
    moves: bool,
    /// Threads that wait for a change. A wake-up takes a system call even if no thread sleeps, and
    /// most work is submitted while the thread that watches waits for the driver.
    sleeping: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SliceState {
    Without,
    Wanted,
    Held,
}

impl State {
    /// For how long at most nothing may be submitted, unless something changes before; `None` where
    /// it may be now.
    fn keeps_out(&mut self, now: Instant) -> Option<Duration> {
        if self.turn != SliceState::Held || self.recalled {
            return Some(Duration::MAX);
        }
        if self.pressed {
            // Said once in each turn, however long that lasts.
            self.ahead.pressed(now);
        }
        self.ahead.keeps_out(self.submitted - self.drained, now)
    }

    fn idle(&self) -> bool {
        self.inside == 0 && self.submitted == self.drained
    }
}

/// Held around a driver call that gives the GPU work.
pub struct Submission<'a> {
    gate: &'a Gate,
    finished: bool,
}

impl Gate {
    /// A gate without the turn. [`Gate::watch`] has to run on a thread of its own.
    pub fn new(gpu: u32, brake: Box<dyn Brake>, link: Arc<PacketSocket>, counters: Arc<CounterPage>) -> Gate {
        brake.pause();
        let state = State {
            turn: SliceState::Without,
            recalled: false,
            pressed: false,
            inside: 0,
            submitted: 0,
            at_gate: 0,
            drained: 0,
            ahead: Ahead::default(),
            charged_since: None,
            turn_ns: 0,
            used_ns: 0,
            metered: brake.used().unwrap_or_default(),
            awaited: false,
            rests: false,
            moves: false,
            sleeping: 0,
        };
        Gate {
            gpu,
            brake,
            link,
            counters,
            backlog: Backlog::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            rested: Condvar::new(),
        }
    }

    /// What the device has not finished; the gate looks whenever it drains.
    pub(crate) fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    /// Whether work that is submitted now runs at once.
    pub(crate) fn has_turn(&self) -> bool {
        let state = self.lock();
        state.turn == SliceState::Held && !state.recalled
    }

    /// Call before giving the GPU work; waits for the turn if the driver cannot be paused.
    pub fn enter(&self) -> Submission<'_> {
        let mut state = self.lock();
        self.begin(&mut state);
        if state.turn == SliceState::Without {
            state.turn = SliceState::Wanted;
            self.send(Packet::Want { gpu: self.gpu });
        }
        if !self.brake.can_pause() {
            while let Some(limit) = state.keeps_out(Instant::now()) {
                state.at_gate += 1;
                state = self.wait_for(state, limit);
                state.at_gate -= 1;
            }
        }
        if state.turn == SliceState::Held {
            state.charged_since.get_or_insert_with(|| (Instant::now(), self.brake.late()));
        }
        drop(state);
        Submission { gate: self, finished: false }
    }

    /// As [`Gate::enter`], where that does not wait: while the turn is held.
    pub(crate) fn enter_now(&self) -> Option<Submission<'_>> {
        let mut state = self.lock();
        if state.turn != SliceState::Held || state.recalled {
            return None;
        }
        self.begin(&mut state);
        state.charged_since.get_or_insert_with(|| (Instant::now(), self.brake.late()));
        drop(state);
        Some(Submission { gate: self, finished: false })
    }

    /// As [`Gate::enter`] where that does not wait: while the turn is held, or on a driver that
    /// takes work at any time.
    pub(crate) fn enter_without_waiting(&self) -> Option<Submission<'_>> {
        if self.brake.can_pause() { Some(self.enter()) } else { self.enter_now() }
    }

    fn begin(&self, state: &mut State) {
        state.inside += 1;
        if std::mem::take(&mut state.awaited) {
            self.wake(state);
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.lock().idle()
    }

    /// Whether everything that was submitted has finished; a submission that continues is not
    /// meant.
    pub(crate) fn is_drained(&self) -> bool {
        let state = self.lock();
        state.submitted == state.drained
    }

    /// Returns when the GPU has, or is being given, something that is not known to have finished.
    pub(crate) fn wait_for_work(&self) {
        let mut state = self.lock();
        while state.idle() {
            state.awaited = true;
            state = self.wait(state);
        }
    }

    /// The daemon gave this session the turn.
    pub fn granted(&self) {
        let mut state = self.lock();
        state.turn = SliceState::Held;
        (state.recalled, state.pressed, state.turn_ns) = (false, false, 0);
        if !state.idle() {
            state.charged_since = Some((Instant::now(), self.brake.late()));
        }
        self.brake.resume();
        self.wake(&state);
    }

    /// Lets the driver run without a turn, while the session can give it no work: its memory is
    /// moved.
    pub(crate) fn begin_moving(&self) {
        let mut state = self.lock();
        state.moves = true;
        self.brake.resume();
    }

    /// The memory has been moved.
    pub(crate) fn end_moving(&self) {
        let mut state = self.lock();
        state.moves = false;
        if state.turn != SliceState::Held {
            self.brake.pause();
        }
    }

    /// Another session waits for the turn.
    pub fn pressed(&self) {
        let mut state = self.lock();
        if state.turn == SliceState::Held {
            state.pressed = true;
            state.ahead.pressed(Instant::now());
            if state.idle() {
                self.give_up(&mut state, false);
            }
        }
    }

    /// The turn is over.
    pub fn recalled(&self) {
        let mut state = self.lock();
        if state.turn != SliceState::Held {
            return;
        }
        if state.idle() {
            self.give_up(&mut state, false);
        } else if self.brake.can_pause() {
            self.brake.pause();
            self.give_up(&mut state, true);
        } else if state.inside == state.at_gate && state.submitted == state.drained {
            // The turn is over before those who waited for it have woken up: nothing will drain.
            self.give_up(&mut state, true);
        } else {
            state.recalled = true;
            self.end_rest(&mut state);
        }
    }

    /// The client has waited for something: the GPU may have nothing to do now.
    pub(crate) fn waited(&self) {
        self.end_rest(&mut self.lock());
    }

    /// Notices when the GPU has finished everything; never returns.
    pub fn watch(&self) -> ! {
        let mut busy_since = Instant::now();
        loop {
            let mut state = self.lock();
            if state.submitted == state.drained {
                while state.submitted == state.drained {
                    state = self.wait(state);
                }
                busy_since = Instant::now();
                state.ahead.begins(busy_since);
            }
            let target = state.submitted;
            drop(state);
            let mark = self.backlog.mark();
            self.brake.drain();
            self.backlog.finished(mark);
            let mut state = self.lock();
            let done = target - state.drained;
            state.drained = target;
            state.ahead.finished(done, Instant::now());
            self.wake(&state);
            // Submissions that wait for the next turn are inside, and are not work of this one.
            let waiting_at_gate = state.recalled && state.submitted == state.drained;
            if !state.idle() && !waiting_at_gate {
                self.rest(state, busy_since.elapsed() / REST_SHARE);
                continue;
            }
            if state.pressed && !state.recalled && state.turn == SliceState::Held {
                state = self.linger(state);
            }
            if state.idle() || (state.recalled && state.submitted == state.drained) {
                self.stop_charging(&mut state);
                if state.turn == SliceState::Held && (state.pressed || state.recalled) {
                    let more = state.inside > 0;
                    self.give_up(&mut state, more);
                }
            }
        }
    }

    /// Adds what has run up since the last time to the session's counters, so that a long kernel
    /// shows.
    pub fn account(&self) {
        let mut state = self.lock();
        let charges = state.charged_since.is_some();
        self.stop_charging(&mut state);
        if charges {
            state.charged_since = Some((Instant::now(), self.brake.late()));
        }
    }

    fn linger<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let until = Instant::now() + LINGER;
        while state.idle() && !state.recalled && state.turn == SliceState::Held {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.wait_for(state, left);
        }
        state
    }

    fn rest(&self, mut state: MutexGuard<'_, State>, limit: Duration) {
        let until = Instant::now() + limit.min(LINGER);
        state.rests = limit >= REST_MIN && !state.recalled;
        while state.rests {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.rests = false;
                break;
            }
            state = self.rested.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn end_rest(&self, state: &mut State) {
        if std::mem::take(&mut state.rests) {
            self.rested.notify_one();
        }
    }

    fn give_up(&self, state: &mut State, more: bool) {
        self.stop_charging(state);
        state.turn = if more { SliceState::Wanted } else { SliceState::Without };
        (state.recalled, state.pressed) = (false, false);
        if !more && !state.moves {
            self.brake.pause();
        }
        let (turn_ns, used_ns) = (std::mem::take(&mut state.turn_ns), std::mem::take(&mut state.used_ns));
        self.send(Packet::Done { gpu: self.gpu, turn_ns, used_ns, more });
    }

    /// Turns are charged with their time, which is what shares are parts of. The meter of use,
    /// which limits are about as well, asks the driver, where it tells: work takes longer on a
    /// machine that is busy, and is no more for that.
    fn stop_charging(&self, state: &mut State) {
        let turn = state.charged_since.take().map_or(Duration::ZERO, |(since, late)| {
            let lost = self.brake.late().saturating_sub(late);
            since.elapsed().saturating_sub(lost)
        });
        let used = match self.brake.used() {
            Some(used) => used.saturating_sub(std::mem::replace(&mut state.metered, used)),
            None => turn,
        };
        let (turn_ns, used_ns) = (turn.as_nanos() as u64, used.as_nanos() as u64);
        state.turn_ns += turn_ns;
        state.used_ns += used_ns;
        self.counters.used_ns.fetch_add(used_ns, Relaxed);
        if let Some(counter) = self.counters.gpu_ns.get(self.gpu as usize) {
            counter.fetch_add(turn_ns, Relaxed);
        }
    }

    fn send(&self, packet: Packet) {
        // Without a daemon there is nothing to ask; the link's reader ends the process.
        let _ = self.link.send(&packet);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, state: &State) {
        if state.sleeping > 0 {
            self.changed.notify_all();
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.wait_for(state, Duration::MAX)
    }

    /// Returns after a change, or after this time.
    fn wait_for<'a>(&self, mut state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        state.sleeping += 1;
        let mut state = self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0;
        state.sleeping -= 1;
        state
    }
}

impl Submission<'_> {
    /// The driver call came back when its work was done.
    pub(crate) fn finished(mut self) {
        self.finished = true;
    }
}

impl Drop for Submission<'_> {
    fn drop(&mut self) {
        let gate = self.gate;
        if !self.finished {
            gate.brake.submitted();
        }
        let mut state = gate.lock();
        state.inside -= 1;
        state.submitted += 1;
        let was_alone = state.inside == 0 && state.submitted == state.drained + 1;
        if self.finished && was_alone && !state.pressed && !state.recalled {
            // Nothing is left to watch.
            state.drained = state.submitted;
            gate.stop_charging(&mut state);
        } else {
            gate.wake(&state);
        }
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
