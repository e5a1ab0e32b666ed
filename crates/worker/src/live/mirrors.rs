//! What is known of memory that a session's program uses while device code runs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluice_cuda::CUresult;
use sluice_wire::live::{LIVE_BYTES_MAX, Memory, Word, agree, capture, data_first, tell, told};
use sluice_wire::{Header, WireError, commands};

use crate::link::Driver;

/// Most pieces of memory of a session.
const MIRRORS_MAX: usize = 1 << 16;
/// Bytes that wait for being asked for. Device code that has written more waits at its next fence
/// until the client has asked.
pub(super) const READY_MAX: usize = 16 << 20;
/// Device code that waits for the client can be paused and ended this often.
const READY_WAIT: Duration = Duration::from_millis(10);
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
    pub(super) exists: AtomicBool,
    /// The program's user knows that the driver has none.
    pub(super) has_told: AtomicBool,
    /// Looks that have begun. A thread that sees more of them under the lock than before knows of
    /// one that began meanwhile and is over.
    pub(super) looks: AtomicU64,
    /// What the client has changed is being put in.
    pub(super) is_applying: AtomicBool,
    pub(super) state: Mutex<State>,
    /// There is a question, or an answer.
    pub(super) changed: Condvar,
    /// Something that was ready has been taken.
    pub(super) taken: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) mirrors: BTreeMap<u32, Mirror>,
    /// What has changed, in the order in which it is to be applied.
    pub(super) ready: VecDeque<Vec<u8>>,
    pub(super) ready_bytes: usize,
    pub(super) questions: VecDeque<Question>,
    /// A look was requested when there was no room for what it would find.
    pub(super) owes_look: bool,
    pub(super) answered: u64,
    /// The beginning of what the client has changed, which continues.
    pub(super) held: Vec<u8>,
    pub(super) has_thread: bool,
}

pub(super) struct Mirror {
    pub(super) address: u64,
    pub(super) memory: Memory,
    pub(super) agreed: Vec<u8>,
}

impl Mirror {
    pub(super) fn overlaps(&self, address: u64, bytes: u64) -> bool {
        let end = self.address.saturating_add(self.agreed.len() as u64);
        self.address < address.saturating_add(bytes) && address < end
    }
}

/// A [`commands::LiveAwait`], which asks for what is ready.
pub(super) struct Question {
    pub(super) header: Header,
    /// After a look that begins now.
    pub(super) look: bool,
    /// Once there is something, or nothing runs any more.
    pub(super) waits: bool,
}

impl Live {
    /// Whether there is any.
    pub(crate) fn exists(&self) -> bool {
        self.exists.load(Ordering::Acquire)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory stays until [`Live::leave`].
    pub(super) fn insert(&self, number: u32, address: u64, bytes: u64) -> Result<(), CUresult> {
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

    pub(super) fn put_in(&self, command: &commands::LivePush<'_>) -> Result<(), WireError> {
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
    pub(super) fn look(
        &self,
        state: &mut State,
        by: impl FnOnce(&mut dyn FnMut() -> Vec<Word>) -> Vec<Word>,
    ) {
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

    /// Looks for a question, if it is to; whether it can be answered.
    pub(super) fn look_for(&self, state: &mut State, look: bool, waits: bool, runs: bool) -> bool {
        state.owes_look |= look;
        let owed = state.owes_look && state.ready_bytes <= READY_MAX;
        if owed || (state.ready.is_empty() && waits) {
            self.look(state, |look| capture(look));
            state.owes_look = false;
        }
        look || !waits || !runs || !state.ready.is_empty()
    }

    /// The next answer's number, its words, and whether there are more.
    pub(super) fn take(&self, state: &mut State) -> (u64, Vec<u8>, bool) {
        let words = state.ready.pop_front().unwrap_or_default();
        state.ready_bytes -= words.len();
        state.answered += 1;
        self.taken.notify_all();
        (state.answered, words, state.owes_look || !state.ready.is_empty())
    }
}

impl State {
    pub(super) fn apply(&mut self, word: &Word) {
        // The program may have freed it meanwhile.
        if let Some(mirror) = self.mirrors.get_mut(&word.mirror) {
            mirror.memory.apply(&mut mirror.agreed, word);
        }
    }
}
