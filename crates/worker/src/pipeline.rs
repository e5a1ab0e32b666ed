//! From frames to driver calls.
//!
//! ```text
//!            accepts            in log order             waits for the GPU
//!   socket -> reader -> queue -> submitter -> (some waiting calls) -> lanes
//!                                    |                                  |
//!                                    +----------> outbox <--------------+
//! ```
//!
//! The reader never enters the driver. The submitter executes commands in the order of their acceptance. A waiting
//! call that can block goes to a thread of its own once everything before it has been submitted, so that no client
//! thread blocks another's.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use sluice_cuda::{CUresult, Fn};
use sluice_wire::{Command, Header, Op, Target, commands, for_each_command};

use crate::ending;
use crate::execute::Refusal;
use crate::generated::dispatch::dispatch;
use crate::session::Session;

/// A command as received.
pub(crate) struct Job {
    pub(crate) header: Header,
    pub(crate) payload: Vec<u8>,
}

/// Most commands, and most bytes of them, that are accepted and not yet submitted.
const QUEUED_MAX: usize = 64 << 10;
const QUEUED_BYTES_MAX: usize = 64 << 20;
/// Most waiting calls that block at a time.
const LANES_MAX: usize = 1024;

/// Accepted commands on their way to the submitter.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<Queued>,
    changed: Condvar,
}

#[derive(Default)]
struct Queued {
    jobs: VecDeque<Job>,
    bytes: usize,
}

impl Queue {
    /// Appends a command; waits while the queue is full, which in the end makes the client wait.
    pub(crate) fn push(&self, job: Job) {
        let mut state = self.lock();
        while state.jobs.len() >= QUEUED_MAX || state.bytes >= QUEUED_BYTES_MAX {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.bytes += job.payload.len();
        state.jobs.push_back(job);
        self.changed.notify_all();
    }

    /// Takes everything there is; waits while there is nothing.
    fn take_all(&self) -> VecDeque<Job> {
        let mut state = self.lock();
        while state.jobs.is_empty() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.bytes = 0;
        self.changed.notify_all();
        std::mem::take(&mut state.jobs)
    }

    fn lock(&self) -> MutexGuard<'_, Queued> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The submitter's loop; never returns.
pub(crate) fn submit(session: &Arc<Session>, queue: &Queue) -> ! {
    let mut lanes = Lanes::new(Arc::clone(session));
    loop {
        for job in queue.take_all() {
            if may_block(Op(job.header.op)) { lanes.run(job) } else { execute(session, &job) }
        }
    }
}

/// Threads for calls that block; as many as there are such calls at a time.
struct Lanes {
    session: Arc<Session>,
    idle: Receiver<Sender<Job>>,
    returns: Sender<Sender<Job>>,
    count: usize,
}

impl Lanes {
    fn new(session: Arc<Session>) -> Lanes {
        let (returns, idle) = channel();
        Lanes { session, idle, returns, count: 0 }
    }

    /// Has a call executed; waits if too many block already.
    fn run(&mut self, job: Job) {
        let lane = match self.idle.try_recv() {
            Ok(lane) => lane,
            Err(_) if self.count < LANES_MAX => self.spawn(),
            // This side holds a sender of `returns`, so the channel never ends.
            Err(_) => self.idle.recv().expect("a lane comes back"),
        };
        // A lane ends only with the process.
        let _ = lane.send(job);
    }

    fn spawn(&mut self) -> Sender<Job> {
        let (lane, jobs) = channel::<Job>();
        let (session, returns, own) = (Arc::clone(&self.session), self.returns.clone(), lane.clone());
        self.count += 1;
        ending::spawn("lane", move || {
            for job in jobs {
                execute(&session, &job);
                let _ = returns.send(own.clone());
            }
        });
        lane
    }
}

/// Executes one command and answers it, if it waits.
fn execute(session: &Session, job: &Job) {
    let header = job.header;
    let op = Op(header.op);
    let mut fields = Vec::new();
    let result = session.failure().map_err(Refusal::from).and_then(|()| {
        session.enter(header)?;
        let (_, device) = session.device()?;
        let _submission = gives_work(op).then(|| device.gate.enter());
        dispatch(session, op, &job.payload, &mut fields)
    });
    let sent = match result {
        Ok(()) if waits(op) => session.outbox.reply(header, CUresult::SUCCESS.0, &fields),
        Ok(()) => Ok(()),
        Err(Refusal::Failed(result)) if waits(op) => session.outbox.reply(header, result.0, &[]),
        Err(Refusal::Failed(result)) if session.fail(result) => session.outbox.sticky(header, result.0, ""),
        Err(Refusal::Failed(_)) => Ok(()),
        Err(refusal) => ending::failed(&format!("the client sent nonsense: {}: {refusal}", op.name())),
    };
    if sent.is_err() {
        ending::client_gone();
    }
}

/// Whether a command is answered.
fn waits(op: Op) -> bool {
    WAITS[op.0 as usize]
}

static WAITS: [bool; 1 << 16] = {
    let mut waits = [false; 1 << 16];
    macro_rules! note {
        ($($name:ident)*) => {
            $(waits[<commands::$name as Command>::OP.0 as usize] = <commands::$name as Command>::WAITS;)*
        };
    }
    for_each_command!(note);
    waits
};

/// Whether a waiting command can take longer than a look at a table.
fn may_block(op: Op) -> bool {
    let quick = matches!(
        op.target(),
        Some(Target::Driver(
            Fn::cuEventQuery
                | Fn::cuStreamQuery
                | Fn::cuEventElapsedTime
                | Fn::cuEventElapsedTime_v2
                | Fn::cuOccupancyMaxActiveBlocksPerMultiprocessor
                | Fn::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
                | Fn::cuOccupancyAvailableDynamicSMemPerBlock
        ))
    );
    waits(op) && !quick
}

/// Whether a command gives the GPU work, which needs the turn.
fn gives_work(op: Op) -> bool {
    GIVES_WORK[op.0 as usize]
}

/// Copies, fills and launches, known by their names: a function that joins the list joins its family.
static GIVES_WORK: [bool; 1 << 16] = {
    let mut gives_work = [false; 1 << 16];
    macro_rules! note {
        ($($name:ident)*) => {
            $(gives_work[<commands::$name as Command>::OP.0 as usize] = is_work(stringify!($name));)*
        };
    }
    for_each_command!(note);
    gives_work
};

const fn is_work(name: &str) -> bool {
    let families = ["cuMemcpy", "cuMemset", "cuLaunchKernel", "cuLaunchCooperative", "cuGraphLaunch"];
    let mut i = 0;
    while i < families.len() {
        if starts_with(name.as_bytes(), families[i].as_bytes()) {
            return true;
        }
        i += 1;
    }
    false
}

const fn starts_with(text: &[u8], start: &[u8]) -> bool {
    let mut i = 0;
    while i < start.len() {
        if i == text.len() || text[i] != start[i] {
            return false;
        }
        i += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_classified_as_declared() {
        assert!(waits(Op::of(Fn::cuStreamSynchronize)) && may_block(Op::of(Fn::cuStreamSynchronize)));
        assert!(waits(Op::of(Fn::cuEventQuery)) && !may_block(Op::of(Fn::cuEventQuery)));
        assert!(!waits(Op::of(Fn::cuLaunchKernel)) && gives_work(Op::of(Fn::cuLaunchKernel)));
        assert!(gives_work(Op::of(Fn::cuMemcpyDtoH_v2)) && gives_work(Op::of(Fn::cuMemsetD8Async)));
        assert!(!gives_work(Op::of(Fn::cuLaunchHostFunc)) && !gives_work(Op::of(Fn::cuEventRecord)));
        assert!(!waits(Op(u16::MAX)));
    }
}
