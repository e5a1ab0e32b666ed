//! The connection to the worker, shared by all threads of the program. This library has no thread
//! that reads it.
//!
//! Whichever thread waits for an answer reads the socket (it leads) and serves every frame that
//! arrives, for all threads, until its own answer is there; then one of those that still wait leads
//! ([`reading`]). A thread that cannot write because the worker waits for us to read does the same
//! meanwhile, so neither side can block the other for good.
//!
//! ```text
//!   waiting thread:  register -> send -> [answer there? -> take it]
//!                       [a thread leads? -> sleep until woken]
//!                       [else lead: read frames, deliver, wake their owners] -> again
//! ```
//!
//! A connection over TCP may be lost, which is also assumed after a timeout: then the next leader
//! reconnects, and the session resumes ([`resume`]). On the same host a worker that says nothing is
//! stopped, or has no core: the link waits as long for it, and no longer. What cannot be resumed is
//! final: every answer that is still owed becomes the session's error, and so does every later
//! call. The thread that detects it writes one line to stderr, unless the session has ended with an
//! error of its own.
//!
//! Lock order: the outbox, then the inbox. With the inbox locked the outbox is only tried; a leader
//! that fails to get it leaves its acknowledgement to the thread that has it.
//!
//! # In this folder
//!
//! Everything between a command's bytes and the socket, without a CUDA object: the beginning of a
//! connection ([`greeting`]), both directions ([`outbox`], [`inbox`]), who reads and who waits
//! ([`reading`], [`waiters`]), data that are sent or kept without a copy ([`zero_copy`],
//! [`retained`]), several connections ([`width`]), reconnecting ([`resume`]), memory credit
//! ([`credit`]), refusals of queued commands ([`refusals`]), recordings ([`record`]), and forks of
//! the program ([`fork`]).

pub(crate) mod command_id;
pub(crate) mod credit;
mod delivery;
pub(crate) mod flusher;
pub(crate) mod fork;
pub(crate) mod greeting;
pub(crate) mod inbox;
pub(crate) mod outbox;
mod reading;
pub(crate) mod record;
pub(crate) mod refusals;
mod requests;
pub(crate) mod reservation;
mod resume;
pub(crate) mod retained;
mod sending;
mod silence;
pub(crate) mod stored;
#[cfg(test)]
mod tests;
pub(crate) mod threads;
pub(crate) mod waiters;
mod width;
mod zero_copy;

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use sluice_cuda::CUresult;
use sluice_transport::Stream;
use sluice_wire::FrameDecoder;
use sluice_wire::address::SessionAddress;
use sluice_wire::spin::Spin;

use crate::link::credit::Allowances;
use crate::link::inbox::{Inbox, Receiver};
use crate::link::outbox::Outbox;
use crate::link::record::Recorder;

pub(crate) use self::resume::Resumption;
pub(crate) use self::zero_copy::Loan;

use requests::command;
use silence::{SILENCE, SILENT_MAX, watch_silence};

/// What calls answer once the connection is gone: the GPU is there no more, and no call will bring
/// it back.
pub(crate) const LOST: CUresult = CUresult::DEVICE_UNAVAILABLE;

pub(crate) struct Link {
    /// What is behind it, for people to read.
    name: String,
    /// How the session was opened, and its number.
    opened: Option<(SessionAddress, u64)>,
    /// The process has connections to several nodes.
    is_one_of_many: bool,
    /// Called with the ticket of a queued command that the driver refused.
    on_refused: fn(u64),
    spin: Spin,
    /// For those who wait while another thread reads.
    spin_asleep: Spin,
    outbox: Mutex<Outbox>,
    inbox: Mutex<Inbox>,
    /// Something is in the outbox that was not sent at once ([`flusher`]).
    left: Condvar,
    /// The session's sticky error; 0 while all is well.
    failed: AtomicI32,
    /// There is no connection, and there will be none.
    lost: AtomicBool,
    /// There is no connection, and the next leader reconnects.
    cut: AtomicBool,
    /// Set later only in a forked child, whose session is resumed though its parent's is not.
    resumption: OnceLock<Resumption>,
    /// It has been reported once that the worker does not respond.
    silence_is_told: AtomicBool,
    recorder: Option<Recorder>,
    pub(crate) allowances: Allowances,
    /// Bytes of the worker's stream that have come, and how many of them it knows of.
    received: AtomicU64,
    confirmed: AtomicU64,
    /// Decompressed bytes received since the last acknowledgement: the worker counts all of them
    /// against its window until then.
    unpacked: AtomicU64,
    /// Bytes of our stream that the worker has.
    acknowledged: AtomicU64,
    /// The stream in use, for a forked child.
    current: AtomicPtr<Stream>,
}

impl Link {
    /// Takes over a stream after the handshake, with this many bytes of the session sent and
    /// received; `decoder` holds what was read beyond it. Without a resumption the end of the
    /// stream is the session's.
    pub(crate) fn new(
        stream: Stream,
        decoder: FrameDecoder,
        (sent, received): (u64, u64),
        resumption: Option<Resumption>,
        recorder: Option<Recorder>,
    ) -> Link {
        let stream = Arc::new(stream);
        watch_silence(&stream);
        let recognises = resumption.as_ref().is_some_and(Resumption::recognises);
        let current = AtomicPtr::new(Arc::as_ptr(&stream).cast_mut());
        let receiver = Receiver::new(Arc::clone(&stream), decoder);
        Link {
            name: "the GPU".to_owned(),
            opened: None,
            is_one_of_many: false,
            on_refused: |_| (),
            spin: Spin::new(threads::cores()),
            spin_asleep: Spin::new(threads::cores()),
            outbox: Mutex::new(Outbox::new(stream, sent, resumption.is_some(), recognises)),
            inbox: Mutex::new(Inbox::new(receiver)),
            left: Condvar::new(),
            failed: AtomicI32::new(0),
            lost: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            resumption: resumption.map_or_else(OnceLock::new, OnceLock::from),
            silence_is_told: AtomicBool::new(false),
            recorder,
            allowances: Allowances::default(),
            received: AtomicU64::new(received),
            confirmed: AtomicU64::new(received),
            unpacked: AtomicU64::new(0),
            acknowledged: AtomicU64::new(sent),
            current,
        }
    }

    /// One of several says which it is.
    pub(crate) fn name(&mut self, name: String) {
        self.name = name;
        self.is_one_of_many = true;
    }

    /// Notes how the session was opened, and its number.
    pub(crate) fn opened_as(&mut self, address: SessionAddress, session: u64) {
        self.opened = Some((address, session));
    }

    /// Sets what is called with the ticket of each queued command that the driver refuses.
    pub(crate) fn on_refused(&mut self, forget: fn(u64)) {
        self.on_refused = forget;
    }

    /// Sets how much of each device's memory may be allocated without waiting.
    pub(crate) fn allow(&mut self, bytes: Vec<u64>) {
        self.allowances = Allowances::new(bytes);
    }

    /// Has large data compressed where the link proves to be slow.
    pub(crate) fn pack(&mut self) {
        self.outbox.get_mut().unwrap_or_else(PoisonError::into_inner).packs();
    }

    /// A forked child leaves the session to its parent. Async-signal-safe.
    pub(crate) fn detach(&self) {
        // SAFETY: the stream in use was alive in the parent, and so it is in the child's copy,
        // which has no other thread. The child has no session any more, and its copy of the
        // parent's is never dropped.
        unsafe { (*self.current.load(Ordering::Acquire)).close_in_child() };
    }

    /// What is needed to resume the session, if it can be.
    fn resumption(&self) -> Option<&Resumption> {
        self.resumption.get()
    }

    fn try_outbox(&self) -> Option<MutexGuard<'_, Outbox>> {
        match self.outbox.try_lock() {
            Ok(outbox) => Some(outbox),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
