//! Host memory that device code sees, while device code runs: the node's part
//! ([`sluice_wire::live`] says how it works).
//!
//! It has to be memory of this process, so that it can be looked at beside a kernel that writes to
//! it. All memory of the software GPU is. A driver that is loaded, such as NVIDIA's, is asked for
//! host memory at the address that the client wants ([`Live::commit`]); device code of such a
//! driver stops nowhere, so what it has written is captured as the program's changes are, and the
//! client's changes are put in while it runs, causes first ([`Reach`]).
//!
//! ```text
//!   client --LiveMap---> pipeline --> memory is one of these from now on, until it is decommitted
//!   client --LivePush--> reader ----> applied at once
//!   client --LiveAwait-> reader ----> this module's thread: looks for changes, then answers
//!   device code of the software GPU, at a fence of system scope ----> looks itself, and continues
//! ```
//!
//! What hands data over waits for no queue of commands, and the lock here is held while nothing is
//! waited for: the kernel before them may wait for what is behind them.

pub(crate) mod mirrors;

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use sluice_cuda::CUresult;
use sluice_softgpu::Control;
use sluice_wire::live::LIVE_BYTES_MAX;
use sluice_wire::{Command, Encode, Header, Op, WireError, commands, decode};

use self::mirrors::{Live, Question, Reach};
use crate::outbox::Push;
use crate::pipeline::Pipeline;
use crate::process::ending;
use crate::session::Session;

/// Most questions of a session at a time: each thread of a program has one at a time.
const QUESTIONS_MAX: usize = 1 << 16;
/// The pause between two looks while something changes.
const PAUSE: Duration = Duration::from_micros(50);
/// The pause between two looks when nothing has changed for a while.
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// The pause is also at least this many times as long as a look took, while something changes.
const PAUSE_LOOKS: u32 = 3;
/// As [`PAUSE_LOOKS`], when nothing has changed for a while.
const QUIET_LOOKS: u32 = 9;
/// No pause is longer than this, however long the last look took.
const REST_MAX: Duration = Duration::from_millis(50);
/// For device code to come to a safepoint, of which each round of a loop has one: longer than a
/// thread waits for a core of a busy machine.
const STOP_PATIENCE: Duration = Duration::from_millis(100);

impl Live {
    /// Backs memory such that this process can look at it, on a driver of which it cannot
    /// otherwise; false where it is to be backed as any.
    pub(crate) fn commit(&self, session: &Session, address: u64, bytes: u64) -> Result<bool, CUresult> {
        if session.reach != Reach::HostPages {
            return Ok(false);
        }
        let held = session.host_memory.take(bytes)?;
        let on_host =
            session.memory.commit_on_host(&session.table, &session.devices, held, address, bytes)?;
        if !on_host && !self.has_told.swap(true, Ordering::Relaxed) {
            let text = "the node's driver has no host memory at an address of the program's choice, so mapped host memory is made equal \
                        before and after work only: a kernel that waits for what the program writes meanwhile waits for ever";
            session.outbox.push(Push::Notice(text.to_owned()));
        }
        Ok(on_host)
    }

    /// Takes part in keeping memory equal that both sides have filled with zeros. What this node
    /// does not keep equal while device code runs is `CUDA_ERROR_NOT_SUPPORTED`.
    pub(crate) fn map(&self, session: &Session, command: &commands::LiveMap) -> Result<(), CUresult> {
        if session.reach == Reach::Nothing || command.bytes > LIVE_BYTES_MAX {
            return Err(CUresult::NOT_SUPPORTED);
        }
        let (address, bytes) = (command.address.0, command.bytes);
        let insert = || self.insert(command.mirror, address, bytes);
        let on_host = session.reach == Reach::HostPages;
        let inserted = session.memory.while_committed((address, bytes), on_host, insert);
        inserted.unwrap_or(Err(CUresult::NOT_SUPPORTED))
    }

    /// Puts in what the client has changed, once it is all there. Where device code can stop
    /// meanwhile, it sees all of it or nothing.
    pub(crate) fn push(&self, session: &Session, command: &commands::LivePush<'_>) -> Result<(), WireError> {
        // Before the lock, for which device code may be waiting.
        let can_stop = session.reach == Reach::Everything;
        let _stopped = (can_stop && !command.more).then(|| Stopped::all_of(session));
        self.put_in(command)
    }

    /// The client asks what has changed.
    fn ask(&self, pipeline: &Arc<Pipeline>, header: Header, command: &commands::LiveAwait) {
        let mut state = self.lock();
        if state.questions.len() >= QUESTIONS_MAX {
            ending::failed("the client asks more often than it takes answers");
        }
        state.questions.push_back(Question { header, look: command.look, waits: command.waits });
        if !std::mem::replace(&mut state.has_thread, true) {
            let pipeline = Arc::clone(pipeline);
            ending::spawn("live memory", move || serve(&pipeline));
        }
        self.changed.notify_one();
    }
}

/// Device code of a session that is held at its safepoints.
struct Stopped(Vec<&'static Control>);

impl Stopped {
    fn all_of(session: &Session) -> Stopped {
        let ordinals = session.devices.iter().map(|device| device.ordinal as usize);
        let controls: Vec<_> = ordinals.filter_map(sluice_softgpu::control).collect();
        let until = Instant::now() + STOP_PATIENCE;
        for control in &controls {
            control.hold(until.saturating_duration_since(Instant::now()));
        }
        Stopped(controls)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.iter().for_each(|control| control.release());
    }
}

/// Executes what is for the thread that reads from the client; false if the command is none of
/// these.
pub(crate) fn execute(pipeline: &Arc<Pipeline>, header: Header, payload: &[u8]) -> bool {
    let (session, op) = (&pipeline.session, Op(header.op));
    let executed = match op {
        commands::LivePush::OP => decode(payload).and_then(|command| session.live.push(session, &command)),
        commands::LiveAwait::OP => {
            decode(payload).map(|command| session.live.ask(pipeline, header, &command))
        }
        _ => return false,
    };
    if let Err(error) = executed {
        ending::failed(&format!("the client sent nonsense: {}: {error}", op.name()));
    }
    true
}

/// Answers questions; never returns.
fn serve(pipeline: &Pipeline) -> ! {
    let (session, live) = (&pipeline.session, &pipeline.session.live);
    let mut pause = PAUSE;
    loop {
        let mut state = live.lock();
        while state.questions.is_empty() {
            state = live.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        // Asked before the look, after which nothing is new where nothing runs; and without the
        // lock, which running needs.
        let (runs, began) = (pipeline.has_unfinished(), Instant::now());
        let mut state = live.lock();
        let Some(&Question { header, look, waits }) = state.questions.front() else { continue };
        if !live.look_for(&mut state, look, waits, runs) && state.questions.len() == 1 {
            let looks = if pause < PAUSE_MAX { PAUSE_LOOKS } else { QUIET_LOOKS };
            let least = (began.elapsed() * looks).min(REST_MAX);
            drop(live.changed.wait_timeout(state, pause.max(least)));
            pause = (pause * 2).min(PAUSE_MAX);
            continue;
        }
        if !state.ready.is_empty() {
            pause = PAUSE;
        }
        state.questions.pop_front();
        let (number, words, more) = live.take(&mut state);
        // The thread that reads from the client may need the lock before the client takes this.
        drop(state);
        let mut fields = Vec::new();
        commands::LiveAwaitReply { number, runs, more, words: &words }.encode(&mut fields);
        if session.outbox.reply(header, CUresult::SUCCESS.0, &fields).is_err() {
            ending::client_gone();
        }
    }
}

#[cfg(test)]
mod tests;
