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

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_cuda::CUresult;
use sluice_softgpu::Control;
use sluice_wire::live::{LIVE_BYTES_MAX, Memory, Word, agree, capture, data_first, tell, told};
use sluice_wire::{Command, Encode, Header, Op, WireError, commands, decode};

use crate::ending;
use crate::link::Driver;
use crate::outbox::Push;
use crate::pipeline::Pipeline;
use crate::session::Session;

/// Most pieces of memory of a session.
const MIRRORS_MAX: usize = 1 << 16;
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
/// Bytes that wait for being asked for. Device code that has written more waits at its next fence
/// until the client has asked.
const READY_MAX: usize = 16 << 20;
/// Device code that waits for the client can be paused and ended this often.
const READY_WAIT: Duration = Duration::from_millis(10);
/// For device code to come to a safepoint, of which each round of a loop has one: longer than a
/// thread waits for a core of a busy machine.
const STOP_PATIENCE: Duration = Duration::from_millis(100);
/// Bytes of a capture that are held until its last part is there.
const HELD_MAX: usize = 64 << 20;

/// What this process can do with the memory of a driver while device code runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Use all of it. Device code says when it comes to a fence, and can be stopped: the software
    /// GPU.
    Everything,
    /// Use host memory. Nothing stops device code: a driver that is loaded.
    HostPages,
    /// Nothing: a driver that records.
    Nothing,
}

impl Reach {
    pub(crate) fn of(driver: &Driver) -> Reach {
        match driver {
            Driver::Software { .. } => Reach::Everything,
            Driver::Library { .. } => Reach::HostPages,
            Driver::Recording { .. } => Reach::Nothing,
        }
    }
}

/// The memory of a session that its program uses, too.
#[derive(Default)]
pub(crate) struct Live {
    /// Whether there is any.
    exists: AtomicBool,
    /// The program's user knows that the driver has none.
    has_told: AtomicBool,
    /// Looks that have begun. A thread that sees more of them under the lock than before knows of
    /// one that began meanwhile and is over.
    looks: AtomicU64,
    /// What the client has changed is being put in.
    is_applying: AtomicBool,
    state: Mutex<State>,
    /// There is a question, or an answer.
    changed: Condvar,
    /// Something that was ready has been taken.
    taken: Condvar,
}

#[derive(Default)]
struct State {
    mirrors: BTreeMap<u32, Mirror>,
    /// What has changed, in the order in which it is to be applied.
    ready: VecDeque<Vec<u8>>,
    ready_bytes: usize,
    questions: VecDeque<Question>,
    /// A look was requested when there was no room for what it would find.
    owes_look: bool,
    answered: u64,
    /// The beginning of what the client has changed, which continues.
    held: Vec<u8>,
    has_thread: bool,
}

struct Mirror {
    address: u64,
    memory: Memory,
    agreed: Vec<u8>,
}

impl Mirror {
    fn overlaps(&self, address: u64, bytes: u64) -> bool {
        let end = self.address.saturating_add(self.agreed.len() as u64);
        self.address < address.saturating_add(bytes) && address < end
    }
}

/// A [`commands::LiveAwait`], which asks for what is ready.
struct Question {
    header: Header,
    /// After a look that begins now.
    look: bool,
    /// Once there is something, or nothing runs any more.
    waits: bool,
}

impl Live {
    /// Whether there is any.
    pub(crate) fn exists(&self) -> bool {
        self.exists.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

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

    /// The memory stays until [`Live::leave`].
    fn insert(&self, number: u32, address: u64, bytes: u64) -> Result<(), CUresult> {
        let length = usize::try_from(bytes).map_err(|_| CUresult::INVALID_VALUE)?;
        // SAFETY: the memory is committed to the session, and is left before it is decommitted.
        let memory = unsafe { Memory::new(address as *mut u8, length) }.ok_or(CUresult::INVALID_VALUE)?;
        let mut state = self.lock();
        let mirrors = &state.mirrors;
        if length == 0
            || mirrors.contains_key(&number)
            || mirrors.values().any(|other| other.overlaps(address, bytes))
        {
            return Err(CUresult::INVALID_VALUE);
        }
        let all = mirrors.values().map(|mirror| mirror.agreed.len() as u64).sum::<u64>();
        if mirrors.len() >= MIRRORS_MAX || all + bytes > LIVE_BYTES_MAX {
            return Err(CUresult::NOT_SUPPORTED);
        }
        state.mirrors.insert(number, Mirror { address, memory, agreed: vec![0; length] });
        self.exists.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether any of this memory is looked at.
    pub(crate) fn has_any_of(&self, address: u64, bytes: u64) -> bool {
        self.lock().mirrors.values().any(|mirror| mirror.overlaps(address, bytes))
    }

    /// Memory is about to go: no thread looks at any of it from here on.
    pub(crate) fn leave(&self, address: u64, bytes: u64) {
        let mut state = self.lock();
        state.mirrors.retain(|_, mirror| !mirror.overlaps(address, bytes));
        self.exists.store(!state.mirrors.is_empty(), Ordering::Release);
    }

    /// Puts in what the client has changed, once it is all there. Where device code can stop
    /// meanwhile, it sees all of it or nothing.
    pub(crate) fn push(&self, session: &Session, command: &commands::LivePush<'_>) -> Result<(), WireError> {
        // Before the lock, for which device code may be waiting.
        let can_stop = session.reach == Reach::Everything;
        let _stopped = (can_stop && !command.more).then(|| Stopped::all_of(session));
        self.put_in(command)
    }

    fn put_in(&self, command: &commands::LivePush<'_>) -> Result<(), WireError> {
        let mut state = self.lock();
        if command.more && state.held.len() < HELD_MAX {
            state.held.extend_from_slice(command.words);
            return Ok(());
        }
        let held = std::mem::take(&mut state.held);
        self.is_applying.store(true, Ordering::SeqCst);
        let mut parts = [held.as_slice(), command.words].into_iter();
        let applied = parts.try_for_each(|part| told(part, |word| state.apply(&word)));
        self.is_applying.store(false, Ordering::SeqCst);
        applied
    }

    /// Device code has come to a fence: what it has written before is sent before what it writes
    /// next. False while there is no room for that: it has to come again.
    pub(crate) fn fence(&self) -> bool {
        if !self.exists.load(Ordering::Acquire) {
            return true;
        }
        let before = self.looks.load(Ordering::SeqCst);
        let mut state = self.lock();
        if state.ready_bytes > READY_MAX {
            state = self.taken.wait_timeout(state, READY_WAIT).unwrap_or_else(PoisonError::into_inner).0;
            if state.ready_bytes > READY_MAX {
                return false;
            }
        }
        if self.looks.load(Ordering::SeqCst) == before {
            self.look(&mut state, |look| data_first(look()));
        }
        true
    }

    /// Device code is about to use what an acquiring load has announced to it: all of that is
    /// there.
    pub(crate) fn acquire(&self) {
        while self.is_applying.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    /// Finds out what device code has changed: `by` looks as often as it needs to.
    fn look(&self, state: &mut State, by: impl FnOnce(&mut dyn FnMut() -> Vec<Word>) -> Vec<Word>) {
        self.looks.fetch_add(1, Ordering::SeqCst);
        let mirrors = &state.mirrors;
        let mut look = || {
            let mut found = Vec::new();
            for (&number, mirror) in mirrors {
                mirror.memory.look(number, &mirror.agreed, &mut found);
            }
            found
        };
        let words = by(&mut look);
        for word in &words {
            if let Some(mirror) = state.mirrors.get_mut(&word.mirror) {
                agree(&mut mirror.agreed, word);
            }
        }
        for part in tell(&words) {
            state.ready_bytes += part.len();
            state.ready.push_back(part);
            self.changed.notify_one();
        }
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

    /// Looks for a question, if it is to; whether it can be answered.
    fn look_for(&self, state: &mut State, look: bool, waits: bool, runs: bool) -> bool {
        state.owes_look |= look;
        let owed = state.owes_look && state.ready_bytes <= READY_MAX;
        if owed || (state.ready.is_empty() && waits) {
            self.look(state, |look| capture(look));
            state.owes_look = false;
        }
        look || !waits || !runs || !state.ready.is_empty()
    }

    /// The next answer's number, its words, and whether there are more.
    fn take(&self, state: &mut State) -> (u64, Vec<u8>, bool) {
        let words = state.ready.pop_front().unwrap_or_default();
        state.ready_bytes -= words.len();
        state.answered += 1;
        self.taken.notify_all();
        (state.answered, words, state.owes_look || !state.ready.is_empty())
    }
}

impl State {
    fn apply(&mut self, word: &Word) {
        // The program may have freed it meanwhile.
        if let Some(mirror) = self.mirrors.get_mut(&word.mirror) {
            mirror.memory.apply(&mut mirror.agreed, word);
        }
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
