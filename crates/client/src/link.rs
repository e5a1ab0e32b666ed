//! The connection to the worker, shared by all threads of the program, without a thread of its own.
//!
//! Whichever thread waits for an answer reads the socket (it leads) and serves every frame that arrives, for all
//! threads, until its own answer is there; then it wakes those that still wait, and one of them leads. A thread that
//! cannot write because the worker waits for us to read does the same meanwhile, so neither side can block the other
//! for good.
//!
//! ```text
//!   waiting thread:  register -> send -> [answer there? -> take it]
//!                                        [somebody leads? -> sleep until woken]
//!                                        [else lead: read frames, deliver, wake] -> again
//! ```
//!
//! A lost connection is final: every answer that is still owed becomes the session's error, and so does every later
//! call. Whoever notices says one line on stderr, unless the session has ended with an error of its own.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluice_cuda::CUresult;
use sluice_transport::Stream;
use sluice_wire::spin::{Spin, Wait};
use sluice_wire::{FrameDecoder, Header, Kind, Op};

use crate::inbox::{Answer, Inbox, Sink};
use crate::outbox::Outbox;

/// What calls answer once the connection is gone: the GPU is there no more, and no call will bring it back.
pub(crate) const LOST: CUresult = CUresult::DEVICE_UNAVAILABLE;

/// Bytes asked of the socket at a time.
const READ_BYTES: usize = 256 << 10;

pub(crate) struct Link {
    stream: Stream,
    spin: Spin,
    outbox: Mutex<Outbox>,
    inbox: Mutex<Inbox>,
    /// Somebody's answer is there, or leadership is free.
    changed: Condvar,
    /// The session's sticky error; 0 while all is well.
    failed: AtomicI32,
    /// The connection is gone.
    lost: AtomicBool,
    next_ticket: AtomicU64,
}

/// Which answer a call waits for: the lane of its thread, and its place there.
pub(crate) type Place = (u32, u64);

static NEXT_LANE: AtomicU32 = AtomicU32::new(1);

thread_local! {
    /// This thread's lane and how many commands it has sent.
    static LANE: Cell<Place> = const { Cell::new((0, 0)) };
}

/// The place of this thread's next command.
fn next_place() -> Place {
    let next = |place: &Cell<Place>| {
        let (lane, sequence) = match place.get() {
            (0, _) => (NEXT_LANE.fetch_add(1, Ordering::Relaxed), 0),
            (lane, sequence) => (lane, sequence + 1),
        };
        place.set((lane, sequence));
        (lane, sequence)
    };
    // A thread whose locals are gone already sends its last words in a lane of their own.
    LANE.try_with(next).unwrap_or_else(|_| (NEXT_LANE.fetch_add(1, Ordering::Relaxed), 0))
}

impl Link {
    /// Takes over a stream after the handshake; `decoder` holds what was read beyond it.
    pub(crate) fn new(stream: Stream, decoder: FrameDecoder) -> Link {
        Link {
            stream,
            spin: Spin::new(cores()),
            outbox: Mutex::new(Outbox::new()),
            inbox: Mutex::new(Inbox::new(decoder)),
            changed: Condvar::new(),
            failed: AtomicI32::new(0),
            lost: AtomicBool::new(false),
            next_ticket: AtomicU64::new(1),
        }
    }

    /// A number for data that the worker will push, or for a host function that it will ask for.
    pub(crate) fn ticket(&self) -> u64 {
        self.next_ticket.fetch_add(1, Ordering::Relaxed)
    }

    /// The session's sticky error, if it has one.
    pub(crate) fn check(&self) -> Result<(), CUresult> {
        CUresult(self.failed.load(Ordering::Acquire)).ok()
    }

    /// Appends a command to the session, without waiting for anything but room.
    pub(crate) fn queue(
        &self,
        device: u8,
        op: Op,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), CUresult> {
        self.check()?;
        let mut outbox = self.outbox();
        append(&mut outbox, device, op, next_place(), payload)?;
        if outbox.is_due() { self.flush(&mut outbox) } else { Ok(()) }
    }

    /// Sends what is queued.
    pub(crate) fn flush_now(&self) -> Result<(), CUresult> {
        self.flush(&mut self.outbox())
    }

    /// Sends a command and waits for its answer.
    pub(crate) fn call(
        &self,
        device: u8,
        op: Op,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Answer, CUresult> {
        self.check()?;
        let place = next_place();
        self.inbox().await_answer(place);
        let sent = {
            let mut outbox = self.outbox();
            append(&mut outbox, device, op, place, payload).and_then(|()| self.flush(&mut outbox))
        };
        let answer = sent.and_then(|()| self.wait_until(|inbox| inbox.take_answer(place)));
        if answer.is_err() {
            self.inbox().give_up(place);
        }
        answer
    }

    /// Says where data pushed under this ticket go. They land whenever any thread reads.
    pub(crate) fn expect(&self, ticket: u64, sink: Sink) {
        self.inbox().expect(ticket, sink);
    }

    /// The buffer of a ticket is about to go: data that still come are dropped.
    pub(crate) fn forget(&self, ticket: u64) {
        self.inbox().forget(ticket);
    }

    /// Whether pushed data are still to land.
    pub(crate) fn owes_data(&self) -> bool {
        self.inbox().owes_data()
    }

    /// Waits until the turn of a host function has come, or the session has failed.
    pub(crate) fn wait_for_host_calls(&self) -> Result<Vec<u64>, CUresult> {
        self.wait_until(Inbox::take_host_calls)
    }

    /// Leads, or sleeps while another thread does, until `take` finds what this thread waits for.
    fn wait_until<T>(&self, mut take: impl FnMut(&mut Inbox) -> Option<T>) -> Result<T, CUresult> {
        let mut inbox = self.inbox();
        loop {
            if let Some(taken) = take(&mut inbox) {
                return Ok(taken);
            }
            let lost = self.is_lost();
            inbox = match inbox.decoder.take() {
                Some(decoder) if lost => {
                    inbox.decoder = Some(decoder);
                    return Err(self.error());
                }
                Some(decoder) => self.lead(inbox, decoder, Wait::Asleep),
                // Also after a loss: the leader may be writing into a buffer of this very call.
                None => {
                    inbox.sleepers += 1;
                    let mut inbox = self.changed.wait(inbox).unwrap_or_else(PoisonError::into_inner);
                    inbox.sleepers -= 1;
                    inbox
                }
            };
        }
    }

    /// Reads once, with the lock free meanwhile, and delivers what came.
    fn lead<'a>(
        &'a self,
        inbox: MutexGuard<'a, Inbox>,
        mut decoder: FrameDecoder,
        wait: Wait,
    ) -> MutexGuard<'a, Inbox> {
        drop(inbox);
        let room = decoder.missing().unwrap_or(0).max(READ_BYTES);
        // The rest of a frame that has begun is on its way, in as many pieces as it takes.
        let spins = wait == Wait::Asleep && decoder.is_between_frames();
        let space = decoder.space(room);
        let read = if spins {
            self.spin.read(|wait| self.stream.read(space, wait))
        } else {
            self.stream.read(space, wait)
        };
        let mut inbox = self.inbox();
        match read {
            Ok(0) => self.lose(&"the node has closed it"),
            Ok(count) => {
                decoder.received(count);
                if let Err(error) = self.deliver(&mut inbox, &mut decoder) {
                    self.lose(&error);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => self.lose(&error),
        }
        inbox.decoder = Some(decoder);
        if inbox.sleepers > 0 {
            self.changed.notify_all();
        }
        inbox
    }

    fn deliver(&self, inbox: &mut Inbox, decoder: &mut FrameDecoder) -> Result<(), sluice_wire::WireError> {
        while let Some(frame) = decoder.next_frame()? {
            if let Some(sticky) = inbox.deliver(&frame)? {
                self.fail(CUresult(sticky.result));
                if !sticky.text.is_empty() {
                    crate::errors::say(format_args!("{}: {}", Op(sticky.op).name(), sticky.text));
                }
            }
        }
        Ok(())
    }

    fn flush(&self, outbox: &mut Outbox) -> Result<(), CUresult> {
        let mut sent = 0;
        while sent < outbox.bytes.len() && !self.is_lost() {
            match self.stream.write(&outbox.bytes[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.read_while_full(),
                Err(error) => self.lose(&error),
            }
        }
        outbox.clear();
        if self.is_lost() { Err(self.error()) } else { Ok(()) }
    }

    /// The worker takes no more until it gets rid of something: reads it, unless another thread does.
    fn read_while_full(&self) {
        /// How long until this thread looks again whether it should read.
        const LOOK_AGAIN: Duration = Duration::from_millis(20);
        let somebody_leads = self.inbox().decoder.is_none();
        let _ = self.stream.wait_writable(!somebody_leads, LOOK_AGAIN);
        if !somebody_leads {
            let mut inbox = self.inbox();
            if let Some(decoder) = inbox.decoder.take() {
                drop(self.lead(inbox, decoder, Wait::No));
            }
        }
    }

    /// Makes an error the session's, unless it has one already.
    fn fail(&self, error: CUresult) {
        let _ = self.failed.compare_exchange(0, error.0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// A session that has ended with an error keeps it: that the connection ends too is no news.
    fn lose(&self, why: &dyn std::fmt::Display) {
        if self.lost.swap(true, Ordering::AcqRel) {
            return;
        }
        if self.failed.compare_exchange(0, LOST.0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            crate::errors::say(format_args!(
                "the connection to the GPU is lost ({why}); every further CUDA call fails"
            ));
        }
        self.stream.shut_down();
    }

    /// The error of a session that has one.
    fn error(&self) -> CUresult {
        CUresult(self.failed.load(Ordering::Acquire))
    }

    /// Unlike [`Link::check`], lets answers in after an error of the device: the worker still talks.
    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// A forked child leaves the session to its parent. Async-signal-safe.
    pub(crate) fn detach(&self) {
        // SAFETY: the child has no session any more, and its copy of the parent's is never dropped.
        unsafe { self.stream.close_in_child() };
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cores that this process may run on.
fn cores() -> usize {
    // SAFETY: an all-zero set is a valid, empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most the set's own size.
    let status = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
    // SAFETY: counts the bits of a local.
    if status == 0 { unsafe { libc::CPU_COUNT(&set) as usize } } else { 1 }
}

fn append(
    outbox: &mut Outbox,
    device: u8,
    op: Op,
    (lane, sequence): Place,
    payload: impl FnOnce(&mut Vec<u8>),
) -> Result<(), CUresult> {
    let header = Header { kind: Kind::Command, device, op: op.0, lane, sequence };
    header.frame(&mut outbox.bytes, payload).map_err(|_| CUresult::INVALID_VALUE)
}

#[cfg(test)]
mod tests;
