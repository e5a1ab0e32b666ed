//! From frames to driver calls.
//!
//! ```text
//!            accepts           executes in log order     one call that blocks, on its own thread
//!   socket -> reader -> queue -> submitter ---------> the submitter, which hands its part on first
//!                                    |                    |
//!                                    +------> outbox <----+
//! ```
//!
//! Large copies to a device that is idle do not come here at all (`bulk`). While nothing is queued,
//! the reader itself makes the calls that are sure to return at once: questions, on a device that
//! has nothing to do also synchronisations and small copies, and what an in-process driver only
//! queues. That saves a thread switch. Submitter is a part that any thread of a pool plays: it
//! executes commands in the order of their acceptance. When it comes to a call that can block,
//! everything before that has been submitted; it lets another thread be the submitter and makes the
//! call itself. So no client thread blocks another's, and a waiting call costs one thread switch.

mod execute;
pub(crate) mod kinds;
mod submit;

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use sluice_wire::frame::HEADER_SIZE;
use sluice_wire::resume::{WINDOW, WINDOW_MAX};
use sluice_wire::{Command, Header, Op, commands};

use crate::copies::bulk::Buffers;
use crate::copies::mirror;
use crate::live;
use crate::pipeline::kinds::frees_a_stream;
use crate::process::ending;
use crate::session::Session;

pub(crate) use execute::{is_idle, refused};

use execute::{is_only_queued, returns_at_once};
use submit::SIGN_OF_LIFE;

/// A command as received.
pub(crate) struct Job {
    pub(crate) header: Header,
    pub(crate) payload: Vec<u8>,
}

/// Most commands, and most bytes of them, that are accepted and not yet submitted. Beyond that a
/// client that has a window gets no acknowledgements, and its reader continues: among what comes
/// are the client's own acknowledgements, which the submitter may wait for. Any other client finds
/// its socket full.
const QUEUED_MAX: usize = 64 << 10;
const QUEUED_BYTES_MAX: usize = 64 << 20;
/// Most bytes of work that an in-process driver has queued when more is submitted to it: behind
/// that the queue above fills. NVIDIA's takes about a thousand launches in a stream.
const SUBMITTED_BYTES_MAX: usize = 128 << 20;
/// What a window can add to that, and each thread's last command above it; only a client that does
/// not respect it finds its socket full. Small commands have the least window only.
const WINDOW_COMMANDS: usize = 2 * WINDOW as usize / HEADER_SIZE;
const WINDOW_BYTES: usize = (WINDOW_MAX + 8 * WINDOW) as usize;
/// Most threads of the pool, and so most waiting calls that block at a time.
const THREADS_MAX: usize = 1024;

/// How long the reader waits before a large copy for what is before it: about the time of another.
const MOMENT: Duration = Duration::from_micros(300);

/// Accepted commands and the threads that execute them.
pub(crate) struct Pipeline {
    pub(crate) session: Arc<Session>,
    pub(crate) buffers: Buffers,
    has_window: bool,
    /// To the thread that executes what waits for no other command ([`mirror::is_beside`]), once
    /// there was such.
    beside: OnceLock<Sender<Job>>,
    /// How many pushes it was given, and how many of these it has executed.
    pushes_beside: AtomicU64,
    pushed_beside: AtomicU64,
    state: Mutex<State>,
    /// For the pool: there may be something to submit.
    work: Condvar,
    /// For the reader: there may be room, or nothing left.
    room: Condvar,
}

/// A command in the queue.
struct Queued {
    job: Job,
    /// The number of pushes that have come before it on the other way.
    behind: u64,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Queued>,
    /// Of the commands in the queue.
    bytes: usize,
    /// Commands that the thread beside the queue has not executed, and bytes of them.
    beside: usize,
    bytes_beside: usize,
    /// Pushes in the queue, or being executed from there.
    pushes_queued: usize,
    has_submitter: bool,
    /// Commands that can block and have left the queue.
    blocking: usize,
    threads: usize,
    idle: usize,
}

impl State {
    /// Whether nothing waits for being submitted, and nothing is being submitted.
    fn is_empty(&self) -> bool {
        self.jobs.is_empty() && !self.has_submitter
    }

    /// Whether all that was accepted has been executed.
    fn is_done(&self) -> bool {
        self.is_empty() && self.beside == 0 && self.blocking == 0
    }

    /// Whether `more` commands above the usual, or `more_bytes` of them, are queued.
    fn is_full(&self, more: usize, more_bytes: usize) -> bool {
        self.jobs.len() + self.beside >= QUEUED_MAX + more
            || self.bytes + self.bytes_beside >= QUEUED_BYTES_MAX + more_bytes
    }
}

impl Pipeline {
    /// `has_window` says whether the client waits for acknowledgements.
    pub(crate) fn new(session: Arc<Session>, has_window: bool) -> Arc<Pipeline> {
        let (work, room) = (Condvar::new(), Condvar::new());
        Arc::new(Pipeline {
            session,
            buffers: Buffers::default(),
            has_window,
            beside: OnceLock::new(),
            pushes_beside: AtomicU64::new(0),
            pushed_beside: AtomicU64::new(0),
            state: Mutex::default(),
            work,
            room,
        })
    }

    /// Takes the next command of the log. Waits while too much is queued, which in the end makes
    /// the client wait.
    pub(crate) fn accept(self: &Arc<Self>, job: Job) {
        if live::execute(self, job.header, &job.payload) {
            return self.buffers.give(job.payload);
        }
        let op = Op(job.header.op);
        // What a function has changed is there before its stream continues.
        let follows = op == commands::HostCallDone::OP && self.beside.get().is_some();
        if follows || mirror::is_beside(op, &job.payload) {
            return self.execute_beside(job);
        }
        let behind = self.pushes_beside.load(SeqCst);
        if frees_a_stream(op) {
            // It uses no device memory, and memory that is to be moved may wait for it.
            return self.execute(job);
        }
        let mut state = self.lock();
        let at_once = || returns_at_once(&self.session, &job) || is_only_queued(&self.session, &job);
        if state.is_empty()
            && self.has_pushed(behind)
            && at_once()
            && let Some(_present) = self.session.presence.try_enter()
        {
            // This is the only thread that accepts, so nothing can come in between.
            drop(state);
            return self.execute(job);
        }
        state = self.wait_for_room(state);
        state.bytes += job.payload.len();
        state.pushes_queued += usize::from(op == commands::MirrorPush::OP);
        state.jobs.push_back(Queued { job, behind });
        self.withhold_if_full(&state);
        self.find_submitter(&mut state);
    }

    /// The thread that frees room takes that back.
    fn withhold_if_full(&self, state: &State) {
        if state.is_full(0, 0) {
            self.session.outbox.withhold(true);
        }
    }

    fn wait_for_room<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let (more, more_bytes) = if self.has_window { (WINDOW_COMMANDS, WINDOW_BYTES) } else { (0, 0) };
        while state.is_full(more, more_bytes) {
            let waited = self.room.wait_timeout(state, SIGN_OF_LIFE).unwrap_or_else(PoisonError::into_inner);
            state = waited.0;
            if waited.1.timed_out() {
                // The client may ask for one meanwhile, and no thread receives that. The reader
                // finds its end.
                drop(state);
                let _ = self.session.outbox.sign_of_life();
                state = self.lock();
            }
        }
        state
    }

    /// Whether nothing that was accepted is left, and the device of a command's place would begin
    /// at once with what comes next. Only the thread that accepts can use the answer.
    pub(crate) fn is_idle(&self, device: u8) -> bool {
        let device = self.session.device_at(device);
        self.lock().is_empty()
            && self.has_pushed(self.pushes_beside.load(SeqCst))
            && device.is_some_and(|device| device.gate.has_turn())
            && is_idle(&self.session)
    }

    /// Whether anything that was accepted may still run.
    pub(crate) fn has_unfinished(&self) -> bool {
        !self.lock().is_empty() || self.session.has_unfinished()
    }

    /// Whether all that was accepted has been executed, by then at the latest.
    pub(crate) fn is_done_by(&self, until: Instant) -> bool {
        let mut state = self.lock();
        while !state.is_done() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.room.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Returns when [`Pipeline::is_idle`], or after a while: what is before a large copy is often
    /// another one, which the copy would follow through a queue and a buffer of its own.
    pub(crate) fn wait_a_moment_for_idleness(&self, device: u8) {
        let until = Instant::now() + MOMENT;
        let device = self.session.device_at(device);
        let mut state = self.lock();
        // Without the turn it would take longer.
        while !state.is_empty() && device.is_some_and(|device| device.gate.has_turn()) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.room.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// On a thread of its own: it waits for the driver, and the reader must not. What is queued
    /// from now on waits for a push.
    fn execute_beside(self: &Arc<Self>, job: Job) {
        let beside = self.beside.get_or_init(|| {
            let (beside, jobs) = channel();
            let pipeline = Arc::clone(self);
            ending::spawn("beside", move || pipeline.run_beside(jobs));
            beside
        });
        let mut state = self.wait_for_room(self.lock());
        state.beside += 1;
        state.bytes_beside += job.payload.len();
        self.withhold_if_full(&state);
        drop(state);
        if Op(job.header.op) == commands::MirrorPush::OP {
            self.pushes_beside.fetch_add(1, SeqCst);
        }
        // The thread lives as long as this does.
        let _ = beside.send(job);
    }

    fn run_beside(&self, jobs: Receiver<Job>) {
        // Pushes that are queued come first. An honest client has queued them before any function
        // that they could wait for.
        let mut state = self.lock();
        while state.pushes_queued > 0 {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        for job in jobs {
            let (is_push, bytes) = (Op(job.header.op) == commands::MirrorPush::OP, job.payload.len());
            // Work that has to finish before memory is moved may wait for it.
            let present = self.session.presence.enter_while_closing();
            self.execute(job);
            drop(present);
            // Under the lock, so that a thread that waits sleeps or has seen the count.
            let mut state = self.lock();
            self.pushed_beside.fetch_add(u64::from(is_push), SeqCst);
            state.beside -= 1;
            state.bytes_beside -= bytes;
            self.room.notify_all();
            self.accept_more(state);
        }
    }

    /// Has what has arrived acknowledged to the client, if there is room for more.
    fn accept_more(&self, state: MutexGuard<'_, State>) {
        self.session.outbox.withhold(state.is_full(0, 0));
        drop(state);
        if self.session.outbox.acknowledge().is_err() {
            ending::client_gone();
        }
    }

    fn has_pushed(&self, pushes: u64) -> bool {
        self.pushed_beside.load(SeqCst) >= pushes
    }

    /// Returns when this number of pushes beside the queue has been executed, which wait for
    /// nothing that is in it.
    fn wait_until_pushed(&self, pushes: u64) {
        if self.has_pushed(pushes) {
            return;
        }
        let mut state = self.lock();
        while !self.has_pushed(pushes) {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
