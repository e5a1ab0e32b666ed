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
//! ([`credit`]), refusals of queued commands ([`refusals`]) and recordings ([`record`]).

pub(crate) mod command_id;
pub(crate) mod credit;
pub(crate) mod flusher;
pub(crate) mod greeting;
pub(crate) mod inbox;
pub(crate) mod outbox;
mod reading;
pub(crate) mod record;
pub(crate) mod refusals;
pub(crate) mod reservation;
mod resume;
pub(crate) mod retained;
mod sending;
pub(crate) mod stored;
pub(crate) mod threads;
pub(crate) mod waiters;
mod width;
mod zero_copy;

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use sluice_cuda::CUresult;
use sluice_transport::Stream;
use sluice_wire::pack::unpack;
use sluice_wire::spin::{Spin, Wait};
use sluice_wire::{Command, Frame, FrameDecoder, Header, HostCall, Kind, Op, commands};

use crate::abi::call::uncancelled;
use crate::link::command_id::CommandId;
use crate::link::credit::Allowances;
use crate::link::inbox::{Answer, Inbox, News, Receiver, SCRAP_BYTES, Sink};
use crate::link::outbox::Outbox;
use crate::link::record::Recorder;
use crate::link::refusals::Tried;
use crate::link::waiters::Want;

pub(crate) use self::resume::Resumption;
pub(crate) use self::zero_copy::Loan;

/// What calls answer once the connection is gone: the GPU is there no more, and no call will bring
/// it back.
pub(crate) const LOST: CUresult = CUresult::DEVICE_UNAVAILABLE;

/// Bytes read from the socket at a time.
const READ_BYTES: usize = 64 << 10;
/// Bytes read after a large push: the next frame is probably another, of which only the beginning
/// is wanted here.
const READ_BYTES_AFTER_BULK: usize = 4 << 10;
/// Interval in which a waiting thread checks that the worker still responds.
const SILENCE: Duration = Duration::from_secs(3);
/// Number of such intervals without a byte after which the connection counts as lost, or the worker
/// as stopped.
const SILENT_MAX: u32 = 3;
/// Timeout for a silent worker on the same host: the default of the node's `--linger`.
const STOPPED_MAX: Duration = Duration::from_secs(90);

/// How long a client waits for the end of a worker whose session it gives up.
const HANG_UP_MAX: Duration = Duration::from_secs(3);

pub(crate) struct Link {
    /// What is behind it, for people to read.
    name: String,
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
    resumption: Option<Resumption>,
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

/// Tickets are unique over all links: what they stand for is in tables of the process.
static NEXT_TICKET: AtomicU64 = AtomicU64::new(1);

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
            resumption,
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

    /// A number for data that the worker will push, or for a host function that it will ask for.
    pub(crate) fn ticket(&self) -> u64 {
        NEXT_TICKET.fetch_add(1, Ordering::Relaxed)
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
        self.leave(command(device, op, command_id::next()), payload)
    }

    /// Appends a command that is not answered, and waits for what the driver says to it.
    pub(crate) fn try_out(
        &self,
        device: u8,
        op: Op,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), CUresult> {
        self.check()?;
        let place = command_id::next();
        let tried = Tried::at(place);
        self.leave(command(device, op, place), payload)?;
        self.call(device, commands::Submitted::OP, |_| ())?.result.ok()?;
        tried.result()
    }

    /// Appends a command whose answer is [taken](Link::take) later.
    pub(crate) fn ask(
        &self,
        device: u8,
        op: Op,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> Result<CommandId, CUresult> {
        self.check()?;
        let place = command_id::next();
        self.inbox().await_answer(place);
        let asked = self.leave(command(device, op, place), payload);
        asked.map(|()| place).inspect_err(|_| self.inbox().give_up(place))
    }

    /// Waits for the answer to what was [asked](Link::ask).
    pub(crate) fn take(&self, place: CommandId) -> Result<Answer, CUresult> {
        let answer = self
            .flush_now()
            .and_then(|()| self.wait_until(Want::Answer(place), |inbox| inbox.take_answer(place)));
        answer.inspect_err(|_| self.inbox().give_up(place))
    }

    /// The answer to what was [asked](Link::ask), if it has come.
    pub(crate) fn come(&self, place: CommandId) -> Option<Answer> {
        self.inbox().take_answer(place)
    }

    /// The answer to what was [asked](Link::ask), if it has come; a later answer is dropped.
    pub(crate) fn forgo(&self, place: CommandId) -> Option<Answer> {
        let mut inbox = self.inbox();
        let answer = inbox.take_answer(place);
        inbox.give_up(place);
        answer
    }

    /// Appends a command, which goes out with others.
    fn leave(&self, header: Header, payload: impl FnOnce(&mut Vec<u8>)) -> Result<(), CUresult> {
        let mut outbox = self.outbox();
        self.append(&mut outbox, header, 0, payload)?;
        self.send_with_others(outbox)
    }

    /// Sends what is queued if that is due, or leaves it to the next sender.
    fn send_with_others(&self, mut outbox: MutexGuard<'_, Outbox>) -> Result<(), CUresult> {
        if outbox.is_due() {
            return self.send(outbox);
        }
        if !std::mem::replace(&mut outbox.is_watched, true) {
            self.left.notify_one();
        }
        drop(outbox);
        self.acknowledge();
        Ok(())
    }

    /// Memory can be lent to the link while the loan lasts.
    pub(crate) fn loan<'a>(&'static self) -> Loan<'a> {
        Loan::new(self)
    }

    /// Of the payload about `size` bytes are data.
    fn append(
        &self,
        outbox: &mut Outbox,
        header: Header,
        size: usize,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), CUresult> {
        let see = |frame: &[u8]| {
            if let Some(recorder) = &self.recorder {
                recorder.sent(frame);
            }
        };
        outbox.append(header, size, payload, see).map_err(|_| CUresult::INVALID_VALUE)
    }

    /// Whether a log of the session is kept, which has to hold all that its commands need.
    pub(crate) fn is_recorded(&self) -> bool {
        self.recorder.is_some()
    }

    /// Sends what is queued.
    pub(crate) fn flush_now(&self) -> Result<(), CUresult> {
        self.send(self.outbox())
    }

    /// Sends a command and waits for its answer.
    pub(crate) fn call(
        &self,
        device: u8,
        op: Op,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Answer, CUresult> {
        self.check()?;
        let place = command_id::next();
        self.inbox().await_answer(place);
        let sent = {
            let mut outbox = self.outbox();
            let header = command(device, op, place);
            self.append(&mut outbox, header, 0, payload).map(|()| self.flush(&mut outbox))
        };
        self.acknowledge();
        let answer =
            sent.and_then(|()| self.wait_until(Want::Answer(place), |inbox| inbox.take_answer(place)));
        if answer.is_err() {
            self.inbox().give_up(place);
        }
        answer.inspect(|answer| self.note_loss(answer.result))
    }

    /// An answer that says that the context is lost is the session's error from then on, also for
    /// calls that the client answers by itself. What a driver answers with "unknown" may be one
    /// call's mistake.
    fn note_loss(&self, result: CUresult) {
        if result.is_sticky() && result != CUresult::UNKNOWN {
            self.fail(result);
        }
    }

    /// Says where data pushed under this ticket go. They land whenever any thread reads.
    pub(crate) fn expect(&'static self, ticket: u64, sink: Sink) {
        self.widen_for(sink.bytes());
        self.inbox().expect(ticket, sink);
    }

    /// Whether data are still to land in this memory.
    pub(crate) fn will_write(&self, range: &Range<u64>) -> bool {
        self.inbox().will_write(range)
    }

    /// Whether pushed data are still to land.
    pub(crate) fn owes_data(&self) -> bool {
        self.inbox().owes_data()
    }

    /// Waits until the turn of a host function has come, or the session has failed.
    pub(crate) fn wait_for_host_calls(&self) -> Result<Vec<HostCall>, CUresult> {
        self.wait_until(Want::HostCalls, |inbox| match inbox.take_host_calls() {
            Some(calls) => Some(Ok(calls)),
            None => self.check().err().map(Err),
        })?
    }

    /// Reads once, with the lock free meanwhile, and delivers what came.
    fn lead<'a>(
        &'a self,
        inbox: MutexGuard<'a, Inbox>,
        mut receiver: Receiver,
        wait: Wait,
    ) -> MutexGuard<'a, Inbox> {
        drop(inbox);
        // What was delivered last may have been many bytes in few.
        self.acknowledge();
        let read = uncancelled(|| self.read(&mut receiver, wait));
        if let Ok(count) = read {
            receiver.silent = 0;
            if count > 0 {
                self.heard_something();
            }
            self.received.fetch_add(count as u64, Ordering::SeqCst);
            self.acknowledge();
        }
        let mut inbox = self.inbox();
        match read {
            Ok(0) => self.part(&receiver.stream, &"the node has closed it"),
            Ok(_) => self.deliver(&mut inbox, &mut receiver),
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => self.sink_is_bad(&mut receiver),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if wait == Wait::Asleep {
                    self.heard_nothing(&mut receiver);
                }
            }
            Err(error) => self.part(&receiver.stream, &error),
        }
        self.stop_leading(&mut inbox, receiver);
        inbox
    }

    /// Reads what is there to where it belongs.
    fn read(&self, receiver: &mut Receiver, wait: Wait) -> io::Result<usize> {
        // The rest of a frame that has begun follows, in as many pieces as it takes.
        if let Some(arrival) = &mut receiver.arrival {
            let mut scrap = [0; SCRAP_BYTES];
            // SAFETY: this thread leads, and the space is used in the next line only.
            let space = unsafe { arrival.space(&mut scrap) };
            let count = receiver.stream.read(space, wait)?;
            arrival.received(count);
            return Ok(count);
        }
        let decoder = &mut receiver.decoder;
        let spins = wait == Wait::Asleep && decoder.is_between_frames();
        let room = match receiver.after_bulk && decoder.is_between_frames() {
            true => READ_BYTES_AFTER_BULK,
            false => decoder.missing().unwrap_or(0).max(READ_BYTES),
        };
        let space = decoder.space(room);
        let count = match spins {
            true => self.spin.read(|wait| receiver.stream.read(space, wait))?,
            false => receiver.stream.read(space, wait)?,
        };
        decoder.received(count);
        Ok(count)
    }

    /// The program has passed memory that cannot be written to.
    fn sink_is_bad(&self, receiver: &mut Receiver) {
        self.fail(CUresult::INVALID_VALUE);
        if let Some(arrival) = &mut receiver.arrival {
            arrival.discard();
        }
    }

    /// Delivers every whole frame. One that makes no sense ends the session.
    fn deliver(&self, inbox: &mut Inbox, receiver: &mut Receiver) {
        inbox.end_arrival(receiver);
        loop {
            let frame = match receiver.decoder.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => return self.lose(&error),
            };
            let unpacked = match frame.header.kind {
                Kind::Packed => match unpack(&frame) {
                    Ok(unpacked) => {
                        self.unpacked.fetch_add(unpacked.1.len() as u64, Ordering::SeqCst);
                        Some(unpacked)
                    }
                    Err(error) => return self.lose(&error),
                },
                _ => None,
            };
            let frame = match &unpacked {
                Some((header, payload)) => Frame { header: *header, payload },
                None => frame,
            };
            receiver.after_bulk = false;
            if let Some(recorder) = &self.recorder {
                recorder.came(&frame);
                recorder.write();
            }
            match inbox.deliver(&frame) {
                Ok(None) => {}
                Ok(Some(News::Received(received))) => {
                    self.acknowledged.fetch_max(received.position, Ordering::AcqRel);
                    // At once, if that needs no waiting: when it came says how fast the link is.
                    if let Some(mut outbox) = self.try_outbox()
                        && let Err(error) = outbox.acknowledge(received.position)
                    {
                        return self.lose(&error);
                    }
                }
                Ok(Some(News::Allowance(allowance))) => self.allowances.change(allowance),
                Ok(Some(News::Notice(text))) => crate::abi::errors::say(format_args!("{text}")),
                Ok(Some(News::Refused(place, op, refused))) => {
                    (self.on_refused)(refused.ticket);
                    refusals::note(place, op, CUresult(refused.result), refused.captured);
                }
                Ok(Some(News::Failed(sticky))) => {
                    self.fail(CUresult(sticky.result));
                    match Op(sticky.op) {
                        _ if sticky.text.is_empty() => {}
                        Op::NONE => crate::abi::errors::say(format_args!("{}", sticky.text)),
                        op => crate::abi::errors::say(format_args!("{}: {}", op.name(), sticky.text)),
                    }
                }
                Err(error) => return self.lose(&error),
            }
        }
        // Data that arrive in place do not pass the recorder.
        if receiver.arrival.is_none()
            && !self.is_recorded()
            && let Err(error) = inbox.begin_arrival(receiver)
        {
            self.lose(&error);
        }
    }

    /// Called when a thread waits and nothing has come for a while: asks the worker for a
    /// keep-alive, or gives the connection up.
    fn heard_nothing(&self, receiver: &mut Receiver) {
        let outbox = self.try_outbox();
        if outbox.is_none() && self.resumption.is_none() {
            // A sender detects a stalled link itself. A worker that accepts what it is sent need
            // not send anything.
            return;
        }
        receiver.silent += 1;
        let is_over = receiver.silent >= SILENT_MAX
            && self.has_waited_enough(&receiver.stream, SILENCE * receiver.silent, "come");
        if !is_over && let Some(mut outbox) = outbox {
            self.confirm(&mut outbox, true);
            self.flush_what_fits(&mut outbox);
        }
    }

    /// Called at the timeout in which nothing has "come" or "gone": ends the connection, or reports
    /// once that the program waits.
    fn has_waited_enough(&self, stream: &Stream, silence: Duration, moved: &str) -> bool {
        if self.resumption.is_some() || silence >= STOPPED_MAX {
            self.part(stream, &format_args!("nothing has {moved} for {} s", silence.as_secs()));
            return true;
        }
        if !self.silence_is_told.swap(true, Ordering::AcqRel) {
            crate::abi::errors::say(format_args!(
                "{} has not answered for {} s: its worker on this machine is stopped, or gets no core; the program waits \
                 for up to {} s, Ctrl-C ends it",
                self.name,
                silence.as_secs(),
                STOPPED_MAX.as_secs()
            ));
        }
        false
    }

    fn heard_something(&self) {
        if self.silence_is_told.load(Ordering::Relaxed) && self.silence_is_told.swap(false, Ordering::AcqRel)
        {
            crate::abi::errors::say(format_args!("{} answers again", self.name));
        }
    }

    /// Makes an error the session's, unless it has one already.
    fn fail(&self, error: CUresult) {
        let _ = self.failed.compare_exchange(0, error.0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Ends the session with this error, if it has none yet: something that its streams wait for
    /// will never be.
    pub(crate) fn end(&self, error: CUresult, why: &dyn std::fmt::Display) {
        let _outbox = self.outbox();
        if self.check().is_err() {
            return;
        }
        crate::abi::errors::say(format_args!("{why}: {error}; every further CUDA call fails"));
        self.fail(error);
        self.lose(why);
    }

    /// This stream has ended.
    fn part(&self, stream: &Stream, why: &dyn std::fmt::Display) {
        // After an error of the session there is nothing to resume.
        if self.resumption.is_none() || self.check().is_err() {
            return self.lose(why);
        }
        self.cut.store(true, Ordering::Release);
        stream.shut_down();
    }

    /// A session that has ended with an error keeps it: that the connection ends too is no news.
    fn lose(&self, why: &dyn std::fmt::Display) {
        if self.lost.swap(true, Ordering::AcqRel) {
            return;
        }
        if self.failed.compare_exchange(0, LOST.0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            crate::abi::errors::say(format_args!(
                "the connection to {} is lost ({why}); every further CUDA call{} fails",
                self.name,
                if self.is_one_of_many { " there" } else { "" }
            ));
        }
        // SAFETY: the caller leads or has the outbox, so the stream is not replaced meanwhile.
        unsafe { (*self.current.load(Ordering::Acquire)).shut_down() };
    }

    /// Ends the connection of a session that is lost, once the worker has ended too, or after a
    /// while.
    pub(crate) fn hang_up(&self) {
        let _outbox = self.outbox();
        // SAFETY: the outbox is locked, so that no other stream takes the place of this one.
        let stream = unsafe { &*self.current.load(Ordering::Acquire) };
        stream.shut_down_writes();
        stream.wait_end(HANG_UP_MAX);
        self.lose(&"the program begins anew");
    }

    /// The error of a session that has one.
    fn error(&self) -> CUresult {
        CUresult(self.failed.load(Ordering::Acquire))
    }

    /// Unlike [`Link::check`], lets answers in after an error of the device: the worker still
    /// talks.
    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Whether what comes is read as it comes.
    pub(crate) fn is_open(&self) -> bool {
        !self.is_cut() && !self.is_lost()
    }

    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }

    /// A forked child leaves the session to its parent. Async-signal-safe.
    pub(crate) fn detach(&self) {
        // SAFETY: the stream in use was alive in the parent, and so it is in the child's copy,
        // which has no other thread. The child has no session any more, and its copy of the
        // parent's is never dropped.
        unsafe { (*self.current.load(Ordering::Acquire)).close_in_child() };
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

/// Makes a waiting thread wake up at intervals, to check that the worker responds.
fn watch_silence(stream: &Stream) {
    // Without it a silent worker is noticed by the kernel's probes, if at all.
    let _ = stream.set_read_limit(SILENCE);
}

fn command(device: u8, op: Op, (lane, sequence): CommandId) -> Header {
    Header { kind: Kind::Command, device, op: op.0, lane, sequence }
}

#[cfg(test)]
mod tests;
