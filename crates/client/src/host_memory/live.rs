//! Mapped host memory while device code runs: what the program writes reaches the kernel, and what
//! the kernel writes reaches the program, without a CUDA call. NCCL exchanges its data like that.
//!
//! Two threads do it for each session that has such memory, once work was sent [`GRACE`] ago and
//! the node says that some of it still runs: one asks the node what has changed there, which
//! answers when something has; the other looks at the program's side
//! ([`mirror`](crate::host_memory::mirror)) and sends what has changed here. While nothing changes
//! before its work has ended, the program seems not to need it, and is looked after more and more
//! seldom, up to [`GRACE_MAX`]. Programs without such memory pay nothing.
//!
//! What makes both sides' changes arrive in their order is in [`sluice_wire::live`]. Answers are
//! numbered, and taken in that order, whichever threads they came to: a program that has waited for
//! its work asks, too.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use sluice_cuda::CUresult;
use sluice_wire::{Command, DevicePtr, Encode, commands, decode};

use crate::host_memory::mirror;
use crate::host_memory::session_state::Live;
use crate::link::threads;
use crate::session::Session;

/// How long work runs before memory is compared: where data was exchanged last time, and where none
/// was for a while (`GRACE_MAX`).
const GRACE: Duration = Duration::from_millis(1);
const GRACE_MAX: Duration = Duration::from_millis(16);
/// Pause between two comparisons of the program's side, while something changes and when nothing
/// has for a while (`PAUSE_MAX`).
const PAUSE: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// The pause as a multiple of the time that a comparison took, while something changes and when
/// nothing has for a while (`QUIET_LOOKS`).
const PAUSE_LOOKS: u32 = 3;
const QUIET_LOOKS: u32 = 9;
/// The longest such pause, however long the last comparison took.
const REST_MAX: Duration = Duration::from_millis(50);

/// What the node says.
struct Told {
    /// Something runs.
    runs: bool,
    /// There are more words than came with this.
    more: bool,
    /// Some came.
    brought: bool,
}

/// Whether a node is asked at all. A log could not be replayed: it would hold what the threads
/// happened to see.
pub(crate) fn is_possible(session: &Session) -> bool {
    !session.link.is_recorded()
}

/// Has the node keep a copy of what both sides agree on, which is zeros; what the node knows it by,
/// or `None` where it cannot.
pub(crate) fn map(session: &Session, address: DevicePtr, bytes: u64) -> Result<Option<u32>, CUresult> {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
    if !is_possible(session) {
        return Ok(None);
    }
    let mirror = NEXT.fetch_add(1, SeqCst);
    let command = commands::LiveMap { mirror, address, bytes };
    match session.link.call(0, commands::LiveMap::OP, |out| command.encode(out))?.result {
        CUresult::NOT_SUPPORTED => Ok(None),
        result => result.ok().map(|()| Some(mirror)),
    }
}

impl Live {
    /// Starts the threads, if there are none.
    pub(crate) fn start(&'static self, session: &'static Session) -> Result<(), CUresult> {
        if self.is_started.swap(true, SeqCst) {
            return Ok(());
        }
        let started =
            threads::start(move || self.ask_on(session)) && threads::start(move || self.look_on(session));
        if !started {
            // One of the two may be there, and a second one of its kind does no harm.
            self.is_started.store(false, SeqCst);
            return Err(CUresult::OPERATING_SYSTEM);
        }
        Ok(())
    }

    /// Takes all that the device has changed up to now.
    pub(crate) fn fetch(&self, session: &Session) -> Result<(), CUresult> {
        let mut told = self.ask(session, true, false)?;
        while told.more {
            told = self.ask(session, false, false)?;
        }
        Ok(())
    }

    /// Asks the node what has changed there, and takes it.
    fn ask(&self, session: &Session, look: bool, waits: bool) -> Result<Told, CUresult> {
        let asked = self.ask_in_order(session, look, waits);
        if asked.is_err() {
            self.lock().is_lost = true;
            self.changed.notify_all();
        }
        asked
    }

    fn ask_in_order(&self, session: &Session, look: bool, waits: bool) -> Result<Told, CUresult> {
        let (op, command) = (commands::LiveAwait::OP, commands::LiveAwait { look, waits });
        let answer = session.link.call(0, op, |out| command.encode(out))?;
        answer.result.ok()?;
        let unreadable = |error: sluice_wire::WireError| {
            crate::say_once!("the node's answer to {} cannot be read: {error}", op.name());
            CUresult::UNKNOWN
        };
        let reply: commands::LiveAwaitReply<'_> = decode(&answer.payload).map_err(unreadable)?;
        let mut state = self.lock();
        while state.taken + 1 < reply.number && !state.is_lost {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.taken + 1 != reply.number {
            return Err(CUresult::UNKNOWN);
        }
        mirror::take_words(session, reply.words).map_err(unreadable)?;
        (state.taken, state.runs) = (reply.number, reply.runs);
        drop(state);
        self.changed.notify_all();
        Ok(Told { runs: reply.runs, more: reply.more, brought: !reply.words.is_empty() })
    }

    /// The life of the thread that asks; it ends with the session.
    fn ask_on(&self, session: &Session) {
        let (mut seen, mut grace) = (0, GRACE);
        loop {
            self.sleep_until_sent(seen);
            std::thread::sleep(grace);
            seen = self.sent.load(SeqCst);
            // Work that has been waited for is over, and its results were fetched.
            if !session.devices.iter().any(|device| device.work.is_pending()) {
                continue;
            }
            match self.follow(session, &mut seen) {
                Ok(true) => grace = GRACE,
                Ok(false) => grace = (grace * 2).min(GRACE_MAX),
                Err(_) => return,
            }
        }
    }

    fn sleep_until_sent(&self, seen: u64) {
        let mut sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleeps.store(true, SeqCst);
        while self.sent.load(SeqCst) == seen {
            sleep = self.woken.wait(sleep).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleeps.store(false, SeqCst);
    }

    /// Asks until nothing runs; whether anything was handed over meanwhile. `seen`: the commands
    /// that this covers.
    fn follow(&self, session: &Session, seen: &mut u64) -> Result<bool, CUresult> {
        self.has_pushed.store(false, SeqCst);
        let mut handed_over = false;
        // An answer at once says whether something runs, which the thread that looks waits for; and
        // after the last work it brings what that has left, part of which may have come before.
        let mut at_once = true;
        loop {
            // The node has all of these commands before the question.
            *seen = self.sent.load(SeqCst);
            let told = self.ask(session, at_once, true)?;
            handed_over |= told.runs && told.brought;
            if at_once && !told.runs && !told.more {
                return Ok(handed_over || self.has_pushed.load(SeqCst));
            }
            at_once = !told.runs;
        }
    }

    /// The life of the thread that looks; it ends with the session.
    fn look_on(&self, session: &Session) {
        let mut pause = PAUSE;
        loop {
            let mut state = self.lock();
            while !state.runs && !state.is_lost {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.is_lost {
                return;
            }
            drop(state);
            let began = Instant::now();
            let Ok(changed) = mirror::push_live(session) else { return };
            if changed {
                self.has_pushed.store(true, SeqCst);
                // The session's error is for the program's own calls.
                let _ = session.link.flush_now();
            }
            pause = if changed { PAUSE } else { (pause * 2).min(PAUSE_MAX) };
            let looks = if pause < PAUSE_MAX { PAUSE_LOOKS } else { QUIET_LOOKS };
            // It may have waited for the link, and not looked, for most of that.
            std::thread::sleep(pause.max((began.elapsed() * looks).min(REST_MAX)));
        }
    }
}
