//! From frames to driver calls.
//!
//! ```text
//!            accepts           executes in log order        one call that blocks, on a thread of its own
//!   socket -> reader -> queue -> submitter ------------> the submitter, which hands its part on first
//!                                    |                       |
//!                                    +-------> outbox <------+
//! ```
//!
//! Large copies to a device that is idle do not come here at all (`bulk`). While nothing is queued,
//! the reader itself makes the calls that are sure to return at once: questions, on a device that
//! has nothing to do also synchronisations and small copies, and what a driver of ours does no more
//! than queue. That saves a thread switch. Submitter is a part that any thread of a pool plays: it
//! executes commands in the order of their acceptance. When it comes to a call that can block,
//! everything before that has been submitted; it lets another thread be the submitter and makes the
//! call itself. So no client thread blocks another's, and a waiting call costs one thread switch.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use sluice_cuda::{CUresult, Fn};
use sluice_wire::frame::HEADER_SIZE;
use sluice_wire::resume::{WINDOW, WINDOW_MAX};
use sluice_wire::{Command, FunctionId, Header, Op, Target, commands};

use crate::bulk::Buffers;
use crate::execute::{Execute, Refusal};
use crate::gate::Submission;
use crate::generated::dispatch::dispatch;
use crate::kinds::{
    enters_itself, frees_a_stream, gives_work, is_bookkeeping, is_large_copy, is_quick, leaves_nothing,
    may_block, may_hold, recorded_event, ticket_of, waits,
};
use crate::session::{Device, Session};
use crate::{copies, ending, launch_times, live, mirror};

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
/// Most bytes of work that a driver of ours has queued when more is submitted to it: behind that
/// the queue above fills. NVIDIA's takes about a thousand launches in a stream.
const SUBMITTED_BYTES_MAX: usize = 128 << 20;
/// What a window can add to that, and each thread's last command above it; only a client that does
/// not respect it finds its socket full. Small commands have the least window only.
const WINDOW_COMMANDS: usize = 2 * WINDOW as usize / HEADER_SIZE;
const WINDOW_BYTES: usize = (WINDOW_MAX + 8 * WINDOW) as usize;
/// Most threads of the pool, and so most waiting calls that block at a time.
const THREADS_MAX: usize = 1024;

/// A reader that waits for room says so often that it is there.
const SIGN_OF_LIFE: Duration = Duration::from_secs(3);
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
    /// So many pushes have come before it on the other way.
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

    /// Whoever makes room takes that back.
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
                // The client may ask for one meanwhile, and be heard by nobody. The reader finds
                // its end.
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
            // Under the lock, so that whoever waits sleeps or has seen the count.
            let mut state = self.lock();
            self.pushed_beside.fetch_add(u64::from(is_push), SeqCst);
            state.beside -= 1;
            state.bytes_beside -= bytes;
            self.room.notify_all();
            self.accept_more(state);
        }
    }

    /// Has the client told of what has arrived, if there is room for more.
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

    /// Returns when so many pushes beside the queue have been executed, which wait for nothing that
    /// is in it.
    fn wait_until_pushed(&self, pushes: u64) {
        if self.has_pushed(pushes) {
            return;
        }
        let mut state = self.lock();
        while !self.has_pushed(pushes) {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn execute(&self, job: Job) {
        execute(&self.session, &job);
        self.buffers.give(job.payload);
    }

    /// Makes sure that somebody submits what is queued.
    fn find_submitter(self: &Arc<Self>, state: &mut State) {
        if state.jobs.is_empty() || state.has_submitter {
            return;
        }
        if state.idle > 0 {
            self.work.notify_one();
        } else if state.threads < THREADS_MAX {
            state.threads += 1;
            let pipeline = Arc::clone(self);
            ending::spawn("executor", move || pipeline.run());
        }
        // Otherwise the first call that returns finds the queue.
    }

    /// The life of a thread of the pool.
    fn run(self: &Arc<Self>) -> ! {
        loop {
            let mut state = self.lock();
            while state.jobs.is_empty() || state.has_submitter {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
            state.has_submitter = true;
            if let Some(blocking) = self.submit(state) {
                let present = self.session.presence.enter();
                self.execute(blocking);
                drop(present);
                self.lock().blocking -= 1;
                self.room.notify_all();
            }
        }
    }

    /// Submits until there is nothing left, or a call that can block: that one is returned, and no
    /// longer ours to hold anybody up with.
    fn submit<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State>) -> Option<Job> {
        while !state.jobs.is_empty() {
            let mut batch = std::mem::take(&mut state.jobs);
            state.bytes = 0;
            self.room.notify_all();
            self.accept_more(state);
            while let Some(Queued { job, behind }) = batch.pop_front() {
                self.wait_until_pushed(behind);
                let op = Op(job.header.op);
                if !may_block(op) {
                    // Not inside the gate: without the turn there will be no room.
                    sluice_softgpu::wait_for_room(SUBMITTED_BYTES_MAX);
                    let present = self.session.presence.enter();
                    self.execute(job);
                    drop(present);
                    if op == commands::MirrorPush::OP {
                        self.lock().pushes_queued -= 1;
                        self.room.notify_all();
                    }
                    continue;
                }
                let mut state = self.lock();
                state.bytes += batch.iter().map(|queued| queued.job.payload.len()).sum::<usize>();
                batch.append(&mut state.jobs);
                state.jobs = batch;
                state.has_submitter = false;
                state.blocking += 1;
                self.find_submitter(&mut state);
                return Some(job);
            }
            state = self.lock();
        }
        state.has_submitter = false;
        self.room.notify_all();
        None
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Executes one command and answers it, if it waits.
fn execute(session: &Session, job: &Job) {
    let header = job.header;
    let op = Op(header.op);
    let mut fields = Vec::new();
    let result = session.failure().map_err(Refusal::from).and_then(|()| {
        if frees_a_stream(op) {
            session.enter_alone(header)?;
        } else {
            session.enter(header)?;
        }
        let (_, device) = session.device()?;
        call(session, device, job, &mut fields)
    });
    if result.is_ok() {
        session.recipes.note(header, &job.payload, |module| session.objects.find(module).is_ok());
    }
    let sent = match result {
        // The answer comes with the event's end.
        Ok(()) if op == commands::EventWatch::OP => Ok(()),
        Ok(()) if waits(op) => session.outbox.reply(header, CUresult::SUCCESS.0, &fields),
        Ok(()) => Ok(()),
        // What the compiler said belongs to a load that failed.
        Err(Refusal::Failed(result))
            if [commands::cuModuleLoadDataEx::OP, commands::ModuleLoadAhead::OP].contains(&op) =>
        {
            session.outbox.reply(header, result.0, &fields)
        }
        Err(Refusal::Failed(result)) if waits(op) => answer_failure(session, header, result),
        Err(Refusal::Failed(result)) => refused_with(session, header, &job.payload, result),
        Err(refusal) => ending::failed(&format!("the client sent nonsense: {}: {refusal}", op.name())),
    };
    if sent.is_err() {
        ending::client_gone();
    }
}

/// Answers a command that has failed. Where the context is lost, the session is as well: from then
/// on every call returns the error, also one that the client answers by itself.
fn answer_failure(session: &Session, header: Header, result: CUresult) -> io::Result<()> {
    // What a driver answers with "unknown" may be one call's mistake.
    let is_lost = result.is_sticky() && result != CUresult::UNKNOWN;
    if is_lost && session.fail(result) {
        session.outbox.sticky(header, result.0, "")?;
    }
    session.outbox.reply(header, result.0, &[])
}

/// Says so where a queued command has failed for which nothing is to come.
pub(crate) fn refused(session: &Session, header: Header, result: CUresult) -> io::Result<()> {
    refused_with(session, header, &[], result)
}

/// Says so where a queued command has failed. If nothing builds on it, and the context lives, the
/// session continues.
fn refused_with(session: &Session, header: Header, payload: &[u8], result: CUresult) -> io::Result<()> {
    // The driver has given up the capture, and will say so at its end.
    if is_of_capture(result) {
        return Ok(());
    }
    let op = Op(header.op);
    if !result.is_sticky() && leaves_nothing(op) && session.failure().is_ok() {
        let captured = session.refuse_captured(result);
        return session.outbox.refused(header, result.0, ticket_of(op, payload), captured);
    }
    if session.fail(result) { session.outbox.sticky(header, result.0, "") } else { Ok(()) }
}

/// Whether a failure is that of a stream capture alone (`CUDA_ERROR_STREAM_CAPTURE_...`).
fn is_of_capture(result: CUresult) -> bool {
    (CUresult::STREAM_CAPTURE_UNSUPPORTED.0..=CUresult::STREAM_CAPTURE_WRONG_THREAD.0).contains(&result.0)
}

/// Makes the driver call, and tells gate and backlog of the device what it means for them.
fn call(session: &Session, device: &Device, job: &Job, reply: &mut Vec<u8>) -> Result<(), Refusal> {
    let op = Op(job.header.op);
    let backlog = device.gate.backlog();
    if is_bookkeeping(op) || op == commands::EventWatch::OP {
        return dispatch(session, op, &job.payload, reply);
    }
    if op == commands::FillCaptured::OP {
        session.graphs.note_captured(op, &job.payload, session)?;
    }
    if !waits(op) {
        session.graphs.note_captured(op, &job.payload, session)?;
        if is_large_copy(op, &job.payload) {
            // It enters the gate itself, piece by piece.
            return dispatch(session, op, &job.payload, reply);
        }
        if let Some(event) = recorded_event(op, &job.payload) {
            session.watches.forget(event);
        }
        // The gate drains once the submission ends; the call has ended by then.
        let _submission = enter_gate(device, job);
        let _call = backlog.call();
        if !gives_work(op) {
            let done = dispatch(session, op, &job.payload, reply);
            if may_hold(op) {
                device.streams.held()
            } else {
                device.streams.changed()
            }
            return done;
        }
        if let Some(times) = &device.launch_times
            && let Some(stream) = launch_times::stream_of(op, &job.payload)?
        {
            return times.time(session.find(stream)?, || dispatch(session, op, &job.payload, reply));
        }
        return dispatch(session, op, &job.payload, reply);
    }
    let submission = if enters_itself(op) { None } else { enter_gate(device, job) };
    let (mark, given) = (backlog.mark(), device.streams.mark());
    let mut done = dispatch(session, op, &job.payload, reply);
    if op == commands::cuStreamQuery::OP
        && done == Err(Refusal::Failed(CUresult::NOT_READY))
        && device.streams.is_done()
    {
        done = Ok(());
    } else if [commands::cuStreamSynchronize::OP, commands::cuStreamQuery::OP].contains(&op) && done.is_ok() {
        device.streams.waited(given);
    // A green context's wait is over before that of the rest of the device would be.
    } else if op == commands::cuCtxSynchronize::OP && done.is_ok() && session.green()?.is_none() {
        backlog.finished(mark);
        device.streams.waited_for_all(given);
    }
    device.gate.waited();
    session.pass_output_on();
    done?;
    if let Some(submission) = submission {
        submission.finished();
    }
    Ok(())
}

/// Enters the gate for a command that gives the GPU work. One that something which keeps the turn
/// may wait for does not wait for the turn.
fn enter_gate<'a>(device: &'a Device, job: &Job) -> Option<Submission<'a>> {
    match Op(job.header.op) {
        op if !gives_work(op) => None,
        op if mirror::is_beside(op, &job.payload) => device.gate.enter_without_waiting(),
        _ => Some(device.gate.enter()),
    }
}

/// Whether a waiting command, made now, holds nobody up.
fn returns_at_once(session: &Session, job: &Job) -> bool {
    let op = Op(job.header.op);
    if is_quick(op) {
        // A loaded driver may let a question wait until its callbacks have returned, and only this
        // thread hears that one may.
        let may_wait = session.is_loaded && !session.host_calls.is_empty();
        return op == commands::Submitted::OP || !may_wait;
    }
    match op.target() {
        Some(Target::Driver(Fn::cuCtxSynchronize | Fn::cuStreamSynchronize | Fn::cuEventSynchronize)) => {
            is_idle(session)
        }
        Some(Target::Driver(Fn::cuMemcpyDtoH_v2)) => {
            let device = session.device_at(job.header.device);
            !copies::is_pushed(&job.payload)
                && device.is_some_and(|device| device.gate.has_turn())
                && is_idle(session)
        }
        _ => false,
    }
}

/// Whether the driver does no more for a queued command, given to it now, than to queue it. One
/// that is loaded may wait for room in its queue, and for its turn. Ours compiles a function when
/// it is launched for the first time.
fn is_only_queued(session: &Session, job: &Job) -> bool {
    let launched = || {
        let function = job.payload.first_chunk().map(|id| FunctionId(u64::from_le_bytes(*id)));
        function.is_some_and(|function| session.modules.has_launched(function))
    };
    let is_queued = match Op(job.header.op).target() {
        Some(Target::Driver(Fn::cuEventRecord | Fn::cuStreamWaitEvent)) => true,
        // The function is the first field of both.
        Some(Target::Driver(Fn::cuLaunchKernel | Fn::cuLaunchKernelEx)) => launched(),
        _ => false,
    };
    is_queued && !session.is_loaded && sluice_softgpu::has_room(SUBMITTED_BYTES_MAX)
}

/// Whether the devices have finished everything, and nothing waits for the program or another
/// process; an event may be another device's than the command's.
pub(crate) fn is_idle(session: &Session) -> bool {
    let is_idle = |device: &Device| device.gate.backlog().is_empty() && device.streams.hold_nothing();
    !session.imports_events.load(Relaxed)
        && session.host_calls.hold_nothing()
        && session.devices.iter().all(is_idle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::malformed::stage::Stage;

    #[test]
    fn questions_to_a_loaded_driver_are_for_others_while_host_functions_may_run() {
        let mut stage = Stage::new();
        let session = stage.session();
        let at_once = |session: &Session, op: Op| {
            let header =
                Header { kind: sluice_wire::Kind::Command, device: 0, op: op.0, lane: 1, sequence: 0 };
            returns_at_once(session, &Job { header, payload: Vec::new() })
        };
        let (query, submitted) = (Op::of(Fn::cuEventQuery), commands::Submitted::OP);
        for is_loaded in [false, true] {
            session.is_loaded = is_loaded;
            assert!(at_once(session, query) && at_once(session, submitted));
            assert!(session.host_calls.expect(7));
            assert_eq!(at_once(session, query), !is_loaded);
            assert!(at_once(session, submitted), "it makes no call");
            session.host_calls.forget(7);
        }
        assert!(at_once(session, query));
    }

    #[test]
    fn what_is_only_queued_is_what_a_driver_of_ours_has_done_before() {
        use sluice_cuda::CUfunction;
        use sluice_wire::{Encode, FunctionInfo, ModuleId};
        let mut stage = Stage::new();
        let session = stage.session();
        let only_queued = |session: &Session, op: Op, first: FunctionId| {
            let header =
                Header { kind: sluice_wire::Kind::Command, device: 0, op: op.0, lane: 1, sequence: 0 };
            let mut payload = Vec::new();
            first.encode(&mut payload);
            is_only_queued(session, &Job { header, payload })
        };
        let (launch, record) = (commands::cuLaunchKernel::OP, commands::cuEventRecord::OP);
        let (known, unknown) = (FunctionId(7), FunctionId(8));
        let info = FunctionInfo { parameters: Vec::new(), attributes: Vec::new() };
        session.modules.add(ModuleId(6), (known, CUfunction(1)), &info);
        assert!(only_queued(session, record, known));
        assert!(!only_queued(session, launch, known), "it may have to be compiled");
        session.modules.check_parameters(known, 0).unwrap();
        assert!(only_queued(session, launch, known));
        assert!(!only_queued(session, launch, unknown));
        assert!(!only_queued(session, commands::cuMemcpyHtoDAsync_v2::OP, known));
        session.is_loaded = true;
        assert!(!only_queued(session, launch, known) && !only_queued(session, record, known));
    }
}
