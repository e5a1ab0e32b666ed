//! What goes back to the client: replies, pushed data, host calls, the end.
//!
//! Whoever has something to say writes it itself, under one lock; that saves a thread switch per
//! reply. Only what comes out of a driver's callback, where nothing may block, is queued: the next
//! writer takes it along, so that data copied before a synchronisation reach the client before that
//! synchronisation's reply.
//!
//! In a session that can be resumed all of it is kept until the client has acknowledged it. Nobody
//! here waits for that: a writer may be the very thread that reads the acknowledgements. What
//! bounds the memory is that copied data are staged in a bounded pool (`staging`), which follows
//! the window, or sent from where they lie, that whoever submits small copies waits
//! ([`Outbox::wait_room_for_small`]), that text is dropped beyond a bound, and that each client
//! thread waits for one reply at a time.
//!
//! Few bytes are copied, and their staged piece comes back at once: the client acknowledges nothing
//! before it has many bytes, which a pool full of small copies is not.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_transport::Stream;
use sluice_wire::frame::HEADER_SIZE;
use sluice_wire::migration::{Downstream, Upstream};
use sluice_wire::pack::Packer;
use sluice_wire::resume::{ACKNOWLEDGE_EVERY, LARGE, SendBuffer};
use sluice_wire::spin::Wait;
use sluice_wire::{
    Allowance, BULK_SIZE_MAX, CommandRefused, Encode, Header, HostCall, Kind, Received, ReplyHead, Sticky,
};

use crate::client;
use crate::counters::CounterPage;
use crate::ending;
use crate::staging::Staged;

/// The way back to the client.
pub(crate) struct Outbox {
    writer: Mutex<Writer>,
    /// Threads that want to have it.
    waiting: AtomicU32,
    pushes: Mutex<Pushes>,
    pushed: Condvar,
    /// For those who wait until there are fewer pushes.
    taken: Condvar,
    /// For those who wait until the client has more of what was sent; goes with the writer.
    heard: Condvar,
    counters: Arc<CounterPage>,
    /// Whether the client keeps what it has sent until that is acknowledged.
    acknowledges: bool,
    /// Bytes of the client's stream that have arrived, and how many the client was told of.
    received: AtomicU64,
    acknowledged: AtomicU64,
    /// Bytes of ours that the link can use, as its acknowledgements say.
    window: AtomicU64,
    /// Bytes of commands that the client has told in fewer (`sequences`), and how many of them when
    /// it was told last of what has arrived.
    expanded: AtomicU64,
    expanded_before: AtomicU64,
    /// Too much is accepted already: what else arrives is acknowledged once there is room, and so
    /// the client waits.
    withheld: AtomicBool,
    /// Whether the client was told that the session is lost.
    has_failed: AtomicBool,
    /// The memory of what is pushed may be gone.
    #[cfg(any(test, feature = "fuzz"))]
    has_lost_memory: AtomicBool,
}

#[derive(Default)]
struct Pushes {
    queue: VecDeque<Push>,
    /// On a new connection there is something to send again.
    resumed: bool,
}

/// What a driver's callback leaves behind.
pub(crate) enum Push {
    /// Bytes of a copy for a place in the client's memory.
    Data { ticket: u64, offset: u64, bytes: Staged },
    /// A stream has come to a host function.
    Call { ticket: u64, status: i32 },
    /// Device code has printed this.
    Output(Vec<u8>),
    /// The program's user should know this.
    Notice(String),
    /// The client may use so much more of a device's memory unasked, or less.
    Allowance { device: u32, change: i64 },
}

/// A client that takes nothing for this long is as good as cut off.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);
/// A thread that a lock is free for needs less than this to wake up and take it.
const WAKING: Duration = Duration::from_millis(1);
/// Most pushes that wait for being written, of those that can wait.
const AHEAD_MAX: usize = 2;
/// Bytes of pushes that are collected before they are written, where they may have been packed.
const UNSENT_MAX: u64 = 256 << 10;
/// Most bytes of text that wait for the client.
const TEXT_MAX: usize = 8 << 20;

impl Push {
    fn text_bytes(&self) -> usize {
        match self {
            Push::Output(text) => text.len(),
            Push::Data { .. } | Push::Call { .. } | Push::Notice(_) | Push::Allowance { .. } => 0,
        }
    }
}

/// What is sent from where it lies.
enum Lent {
    Staged(Staged),
    Lying(Lying),
    /// A frame in fewer bytes than its data, whose piece of the pool comes back when the client has
    /// it: the pool bounds what is kept.
    Packed(Vec<u8>, #[expect(dead_code, reason = "held, not read")] Staged),
    /// Bytes that are nowhere else.
    Text(Vec<u8>),
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        match self {
            Lent::Staged(staged) => staged.bytes(),
            // SAFETY: a place and a length for the system. No byte is looked at through this: what
            // is protected or packed is never lent like this (`Writer::sends_lying`,
            // `Outbox::resume`). Device code may write there meanwhile, and the program may have
            // freed it, which is an error to the system.
            Lent::Lying(lying) => unsafe { std::slice::from_raw_parts(lying.start.as_ptr(), lying.length) },
            Lent::Packed(frame, _) => frame,
            Lent::Text(text) => text,
        }
    }
}

/// Bytes of device memory that is this process's. Until the client has them all, a thread of its
/// program waits for them, and its library lets no other free them; once it has, they are not sent
/// again.
pub(crate) struct Lying {
    pub(crate) start: NonNull<u8>,
    pub(crate) length: usize,
}

// SAFETY: device memory is any thread's.
unsafe impl Send for Lying {}

struct Writer {
    stream: Arc<Stream>,
    /// The client comes back with TLS as it began, or without it.
    is_protected: bool,
    buffer: SendBuffer<Lent>,
    /// Nothing can be written before the client is back.
    is_cut: bool,
    /// Where the client unpacks large pushes.
    packer: Option<Packer>,
}

impl Outbox {
    /// `resumes` says whether the client may come back on another connection.
    pub(crate) fn new(stream: Arc<Stream>, resumes: bool, counters: Arc<CounterPage>) -> Outbox {
        Outbox {
            writer: Mutex::new(Writer {
                is_protected: stream.is_protected(),
                stream,
                buffer: SendBuffer::new(0, resumes),
                is_cut: false,
                packer: None,
            }),
            waiting: AtomicU32::new(0),
            pushes: Mutex::default(),
            pushed: Condvar::new(),
            taken: Condvar::new(),
            heard: Condvar::new(),
            counters,
            acknowledges: resumes,
            received: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
            window: AtomicU64::new(0),
            expanded: AtomicU64::new(0),
            expanded_before: AtomicU64::new(0),
            withheld: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            #[cfg(any(test, feature = "fuzz"))]
            has_lost_memory: AtomicBool::new(false),
        }
    }

    /// From now on large pushes are packed while the link is slow.
    pub(crate) fn pack(&self) {
        self.lock_writer().packer = Some(Packer::default());
    }

    /// Answers a waiting command. `fields` is what its reply carries on success.
    pub(crate) fn reply(&self, command: Header, result: i32, fields: &[u8]) -> io::Result<()> {
        let header = Header { kind: Kind::Reply, ..command };
        self.send_frame(header, |out| {
            ReplyHead { result }.encode(out);
            out.extend_from_slice(fields);
        })
    }

    /// Sends a frame as it is.
    pub(crate) fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.write(|writer| {
            writer.buffer.append(|out| out.extend_from_slice(frame));
            Ok(())
        })
    }

    /// Says that a queued command failed and the session is lost.
    pub(crate) fn refused(
        &self,
        command: Header,
        result: i32,
        ticket: u64,
        captured: bool,
    ) -> io::Result<()> {
        let header = Header { kind: Kind::CommandRefused, ..command };
        self.send_frame(header, |out| CommandRefused { result, ticket, captured }.encode(out))
    }

    /// Whether the session is lost, so that there is nothing to come back to.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Relaxed)
    }

    pub(crate) fn sticky(&self, command: Header, result: i32, text: &str) -> io::Result<()> {
        self.has_failed.store(true, Relaxed);
        self.counters.note_fault(result);
        let header = Header { kind: Kind::Sticky, ..command };
        let message = Sticky { result, op: command.op, text: text.to_owned() };
        self.send_frame(header, |out| message.encode(out))
    }

    /// Queues what device code has printed. Text that the client does not take is dropped beyond a
    /// bound, as CUDA's own buffer drops it.
    pub(crate) fn print(&self, text: &[u8]) {
        let mut pushes = self.lock_pushes();
        for piece in text.chunks(BULK_SIZE_MAX) {
            let waiting: usize = pushes.queue.iter().map(Push::text_bytes).sum();
            match pushes.queue.back_mut() {
                _ if waiting + piece.len() > TEXT_MAX => break,
                Some(Push::Output(last)) if last.len() + piece.len() <= BULK_SIZE_MAX => {
                    last.extend_from_slice(piece)
                }
                _ => pushes.queue.push_back(Push::Output(piece.to_vec())),
            }
        }
        self.pushed.notify_one();
    }

    /// As [`Outbox::push`], for a caller that may wait: it stays a few pushes ahead of the client.
    pub(crate) fn push_soon(&self, push: Push) {
        let mut pushes = self.lock_pushes();
        while pushes.queue.len() >= AHEAD_MAX {
            pushes = self.taken.wait(pushes).unwrap_or_else(PoisonError::into_inner);
        }
        pushes.queue.push_back(push);
        self.pushed.notify_one();
    }

    /// For whoever submits a copy of so many bytes whose data will be pushed: waits while too many
    /// small ones are kept for the client.
    pub(crate) fn wait_room_for_small(&self, bytes: usize) {
        // Large ones do not even wait for whoever writes.
        if !is_small(bytes) {
            return;
        }
        let mut writer = self.lock_writer();
        while !writer.buffer.has_room_for_small() {
            writer = self.heard.wait(writer).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether data can be written to where the client reads them. That is so from the first
    /// command on, or never.
    pub(crate) fn writes_in_place(&self) -> bool {
        self.lock_writer().stream.is_shared()
    }

    /// Waits until [`Outbox::push_in_place`] may find room for so many bytes.
    pub(crate) fn wait_room(&self, length: usize) -> io::Result<()> {
        let stream = Arc::clone(&self.lock_writer().stream);
        stream.wait_room(length + PUSH_HEAD_SIZE)
    }

    /// Sends everything pushed so far, then a `HostWrite` whose `length` bytes `fill` writes to
    /// where the client reads, which is given by its start. After an error of `fill` it is not
    /// sent. `None` if there is no room.
    pub(crate) fn push_in_place<E>(
        &self,
        ticket: u64,
        offset: u64,
        length: usize,
        fill: impl FnOnce(*mut u8) -> Result<(), E>,
    ) -> io::Result<Option<Result<(), E>>> {
        let mut head = Vec::with_capacity(PUSH_HEAD_SIZE);
        let fields = |out: &mut Vec<u8>| push_fields(out, ticket, offset, length);
        PUSHED.frame_before(&mut head, length, fields).map_err(io::Error::other)?;
        let mut writer = self.lock_writer();
        self.write_by(&mut writer, |_| Ok(()))?;
        let written = writer.stream.write_in_place(&head, length, fill)?;
        if let Some(Ok(())) = written {
            self.counters.bytes_out.fetch_add((head.len() + length) as u64, Relaxed);
        }
        Ok(written)
    }

    /// Whether [`Outbox::push_lying`] would send something now.
    pub(crate) fn sends_lying(&self) -> bool {
        self.lock_writer().sends_lying()
    }

    /// Sends everything pushed so far, then a `HostWrite` of memory that is sent from where it
    /// lies, without a copy. Where others than the system would look at its bytes, to seal, to pack
    /// or to share them, nothing is done, and the answer is false. Waits while as much is under way
    /// as the link holds, and for whoever else wants to write.
    pub(crate) fn push_lying(&self, ticket: u64, offset: u64, lying: Lying) -> io::Result<bool> {
        // One piece after the other would keep them out: a lock goes to who comes, not to who has
        // waited.
        let begin = Instant::now();
        while self.waiting.load(SeqCst) > 0 && begin.elapsed() < WAKING {
            std::thread::yield_now();
        }
        let mut writer = self.lock_writer();
        while writer.buffer.is_full() {
            writer = self.heard.wait(writer).unwrap_or_else(PoisonError::into_inner);
        }
        if !writer.sends_lying() {
            return Ok(false);
        }
        let length = lying.length;
        let fields = |out: &mut Vec<u8>| push_fields(out, ticket, offset, length);
        let last = |writer: &mut Writer| writer.frame(PUSHED, Some(Lent::Lying(lying)), fields);
        self.write_by(&mut writer, last)?;
        Ok(true)
    }

    /// Copies what a zero-copy send may have to repeat, as far as that can still be
    /// read: its memory is about to move.
    pub(crate) fn copy_lent(&self, can_be_read: impl Fn(u64, u64) -> bool) {
        self.lock_writer().buffer.for_each_lent(|lent| {
            let Lent::Lying(lying) = lent else { return };
            if can_be_read(lying.start.as_ptr() as u64, lying.length as u64) {
                // SAFETY: it is memory of the session now, and nothing writes there while its
                // memory moves.
                let bytes = unsafe { std::slice::from_raw_parts(lying.start.as_ptr(), lying.length) };
                *lent = Lent::Text(bytes.to_vec());
            }
        });
    }

    /// Queues what a callback has; never blocks on the client.
    pub(crate) fn push(&self, push: Push) {
        self.lock_pushes().queue.push_back(push);
        self.pushed.notify_one();
    }

    /// The driver's memory goes, with this process living on: data that are still pushed are not
    /// looked at.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn loses_memory(&self) {
        self.has_lost_memory.store(true, SeqCst);
        drop(self.lock_writer());
    }

    #[cfg(test)]
    pub(crate) fn take_pushes(&self) -> Vec<Push> {
        self.lock_pushes().queue.drain(..).collect()
    }

    /// Sends pushes that no reply takes along; returns when the client is gone.
    pub(crate) fn run(&self) -> io::Result<()> {
        loop {
            let mut pushes = self.lock_pushes();
            while pushes.queue.is_empty() && !pushes.resumed {
                pushes = self.pushed.wait(pushes).unwrap_or_else(PoisonError::into_inner);
            }
            pushes.resumed = false;
            drop(pushes);
            self.write(|_| Ok(()))?;
        }
    }

    /// Goes on from `position` on another connection, whose first bytes are `greeting`, and after
    /// that also on `others`.
    pub(crate) fn resume(
        &self,
        (stream, others): (&Arc<Stream>, Vec<Stream>),
        position: u64,
        greeting: &[u8],
    ) -> io::Result<()> {
        let mut writer = self.lock_writer();
        if stream.is_protected() != writer.is_protected {
            return Err(io::Error::other("with TLS or without it, as it began, is how it goes on"));
        }
        writer.buffer.resume(position).map_err(io::Error::other)?;
        writer.stream = Arc::clone(stream);
        // The socket is new and takes this much at once. Should it be dead already, its reader will
        // notice.
        writer.is_cut = client::write_all(stream, greeting).is_err();
        if !others.is_empty() {
            stream.stripe(others);
            // As the daemon has it for one connection. The part that asks the system fails in a
            // confined worker.
            let _ = stream.set_write_limit(WRITE_PATIENCE);
        }
        drop(writer);
        self.heard.notify_all();
        self.lock_pushes().resumed = true;
        self.pushed.notify_one();
        Ok(())
    }

    /// Has nothing written until the answer is dropped; `None` where something waits for being
    /// written, or is to be sent from memory that is not the session's any more.
    pub(crate) fn hold(&self) -> Option<HeldOutbox<'_>> {
        // A client that is away takes nothing, and what it is sent is kept.
        self.write(|_| Ok(())).ok()?;
        let writer = self.lock_writer();
        let is_lying = |lent: &Lent| matches!(lent, Lent::Lying(_));
        let can_be_held = self.lock_pushes().queue.is_empty() && !writer.buffer.lent().any(is_lying);
        can_be_held.then_some(HeldOutbox { outbox: self, writer })
    }

    /// Continues as the outbox of another worker.
    pub(crate) fn restore(&self, upstream: &Upstream, downstream: &Downstream) {
        let mut writer = self.lock_writer();
        writer.buffer = SendBuffer::new(downstream.start, true);
        writer.buffer.append(|out| out.extend_from_slice(&downstream.unacknowledged));
        writer.is_cut = true;
        writer.is_protected = downstream.is_protected;
        writer.packer = downstream.packs.then(Packer::default);
        self.received.store(upstream.received, SeqCst);
        self.acknowledged.store(upstream.acknowledged, SeqCst);
        self.expanded_before.store(upstream.expanded_before, SeqCst);
        self.expanded.store(upstream.expanded_before, SeqCst);
    }

    /// Bytes that may be on their way to the client, where that follows from the link.
    pub(crate) fn window(&self) -> u64 {
        self.window.load(Relaxed)
    }

    /// So many bytes of the client's stream have arrived.
    pub(crate) fn received(&self, position: u64) {
        self.received.store(position, SeqCst);
    }

    /// So many bytes of commands have been told in fewer since the session began.
    pub(crate) fn expanded(&self, told: u64) {
        self.expanded.store(told, SeqCst);
    }

    /// The client has this much of ours; `answer` says that it wants to hear the same.
    pub(crate) fn acknowledged(&self, received: Received) -> io::Result<()> {
        let mut writer = self.lock_writer();
        let acknowledged = writer.buffer.acknowledge(received.position);
        self.window.store(writer.buffer.window(), Relaxed);
        drop(writer);
        self.heard.notify_all();
        acknowledged.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if received.answer { self.sign_of_life() } else { Ok(()) }
    }

    /// Shows that this process is there, to a client that may be waiting for it.
    pub(crate) fn sign_of_life(&self) -> io::Result<()> {
        self.write(|writer| self.acknowledge_in(writer))
    }

    /// Whether what arrives from now on is acknowledged. It has to be said again when that changes.
    pub(crate) fn withhold(&self, withheld: bool) {
        self.withheld.store(withheld, SeqCst);
    }

    /// Acknowledges, if enough has arrived to be worth a frame.
    pub(crate) fn acknowledge(&self) -> io::Result<()> {
        if self.owes_acknowledgement() { self.write(|_| Ok(())) } else { Ok(()) }
    }

    fn owes_acknowledgement(&self) -> bool {
        // Either may move in between.
        let acknowledged = self.acknowledged.load(SeqCst);
        let behind = self.received.load(SeqCst).saturating_sub(acknowledged);
        let told_before = self.expanded_before.load(SeqCst);
        let told = self.expanded.load(SeqCst).saturating_sub(told_before);
        self.acknowledges && behind.max(told) >= ACKNOWLEDGE_EVERY && !self.withheld.load(SeqCst)
    }

    fn acknowledge_in(&self, writer: &mut Writer) -> io::Result<()> {
        // While acknowledgements are withheld this is a sign of life and no more.
        let withheld = self.withheld.load(SeqCst);
        if !withheld {
            self.expanded_before.store(self.expanded.load(SeqCst), SeqCst);
        }
        let position = if withheld { self.acknowledged.load(SeqCst) } else { self.received.load(SeqCst) };
        self.acknowledged.store(position, SeqCst);
        let header = Header { kind: Kind::Received, ..PUSHED };
        writer.frame(header, None, |out| Received { position, answer: false }.encode(out))
    }

    fn send_frame(&self, header: Header, payload: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.write(|writer| writer.frame(header, None, payload))
    }

    /// Sends everything pushed so far, then what `last` adds.
    fn write(&self, last: impl FnOnce(&mut Writer) -> io::Result<()>) -> io::Result<()> {
        self.write_by(&mut self.lock_writer(), last)
    }

    fn write_by(
        &self,
        writer: &mut Writer,
        last: impl FnOnce(&mut Writer) -> io::Result<()>,
    ) -> io::Result<()> {
        let before = writer.buffer.end();
        loop {
            let next = self.lock_pushes().queue.pop_front();
            let Some(push) = next else { break };
            self.taken.notify_one();
            #[cfg(any(test, feature = "fuzz"))]
            if self.has_lost_memory.load(SeqCst) && matches!(push, Push::Data { .. }) {
                continue;
            }
            writer.push(push)?;
            if writer.packer.is_some() && writer.buffer.unsent() >= UNSENT_MAX {
                // Packing takes its time, in which more may come for ever.
                writer.flush()?;
            }
        }
        last(writer)?;
        if self.owes_acknowledgement() {
            self.acknowledge_in(writer)?;
        }
        self.counters.bytes_out.fetch_add(writer.buffer.end() - before, Relaxed);
        writer.flush()
    }

    fn lock_writer(&self) -> MutexGuard<'_, Writer> {
        self.waiting.fetch_add(1, SeqCst);
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, SeqCst);
        writer
    }

    fn lock_pushes(&self) -> MutexGuard<'_, Pushes> {
        self.pushes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An outbox in which nothing changes.
pub(crate) struct HeldOutbox<'a> {
    outbox: &'a Outbox,
    writer: MutexGuard<'a, Writer>,
}

impl HeldOutbox<'_> {
    pub(crate) fn downstream(&self) -> Downstream {
        let buffer = &self.writer.buffer;
        Downstream {
            start: buffer.start(),
            unacknowledged: buffer.held().flatten().copied().collect(),
            packs: self.writer.packer.is_some(),
            is_protected: self.writer.is_protected,
        }
    }

    /// How many bytes of the client's stream it has acknowledged, and how many bytes of commands
    /// had come delta encoded or compressed by then.
    pub(crate) fn acknowledged(&self) -> (u64, u64) {
        (self.outbox.acknowledged.load(SeqCst), self.outbox.expanded_before.load(SeqCst))
    }
}

/// The header of what answers no command.
const PUSHED: Header = Header { kind: Kind::HostWrite, device: 0, op: 0, lane: 0, sequence: 0 };

/// Bytes of a `HostWrite` frame before its data.
const PUSH_HEAD_SIZE: usize = HEADER_SIZE + 20;

/// Whether the frame of a push with so many bytes of data is a small one.
fn is_small(bytes: usize) -> bool {
    PUSH_HEAD_SIZE + bytes < LARGE
}

/// The fields of `HostWrite`: ticket, offset, and the bytes after their count.
fn push_fields(out: &mut Vec<u8>, ticket: u64, offset: u64, length: usize) {
    ticket.encode(out);
    offset.encode(out);
    (length as u32).encode(out);
}

impl Writer {
    fn sends_lying(&self) -> bool {
        let is_packed = self.packer.is_some() && self.buffer.is_slow();
        !is_packed && !self.stream.is_protected() && !self.stream.is_shared()
    }

    fn push(&mut self, push: Push) -> io::Result<()> {
        match push {
            Push::Data { ticket, offset, bytes } => {
                let length = bytes.bytes().len();
                if is_small(length) {
                    return self.small(ticket, offset, bytes.bytes());
                }
                if let Some(frame) = self.packed(ticket, offset, bytes.bytes())? {
                    self.buffer.packed(length as u64);
                    self.buffer.lend(Lent::Packed(frame, bytes));
                    return Ok(());
                }
                self.frame(PUSHED, Some(Lent::Staged(bytes)), |out| push_fields(out, ticket, offset, length))
            }
            Push::Call { ticket, status } => {
                let message = HostCall { ticket, status };
                self.frame(Header { kind: Kind::HostCall, ..PUSHED }, None, |out| message.encode(out))
            }
            Push::Notice(text) => {
                self.frame(Header { kind: Kind::Notice, ..PUSHED }, None, |out| out.extend(text.bytes()))
            }
            Push::Allowance { device, change } => {
                let message = Allowance { device, change };
                self.frame(Header { kind: Kind::Allowance, ..PUSHED }, None, |out| message.encode(out))
            }
            // Nobody takes it.
            Push::Output(_) if self.buffer.is_full() => Ok(()),
            Push::Output(text) => {
                self.frame(Header { kind: Kind::Output, ..PUSHED }, Some(Lent::Text(text)), |_| ())
            }
        }
    }

    /// Adds data that are copied.
    fn small(&mut self, ticket: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.frame(PUSHED, None, |out| {
            push_fields(out, ticket, offset, bytes.len());
            out.extend_from_slice(bytes);
        })
    }

    /// The frame of large data, packed, if the link is slow and that is worth it.
    fn packed(&mut self, ticket: u64, offset: u64, bytes: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let Some(packer) = self.packer.as_mut().filter(|_| self.buffer.is_slow()) else { return Ok(None) };
        if !packer.is_worth(bytes) {
            return Ok(None);
        }
        let mut frame = Vec::with_capacity(PUSH_HEAD_SIZE + bytes.len());
        let framed = PUSHED.frame(&mut frame, |out| {
            push_fields(out, ticket, offset, bytes.len());
            out.extend_from_slice(bytes);
        });
        framed.map_err(io::Error::other)?;
        let is_packed = packer.pack(&mut frame, PUSHED, 0);
        frame.shrink_to_fit();
        Ok(is_packed.then_some(frame))
    }

    /// Adds a frame whose payload is what `payload` writes, then `tail`.
    fn frame(
        &mut self,
        header: Header,
        tail: Option<Lent>,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> io::Result<()> {
        let tail_size = tail.as_ref().map_or(0, |tail| tail.as_ref().len());
        let framed = self.buffer.append(|out| header.frame_before(out, tail_size, payload));
        framed.map_err(io::Error::other)?;
        if let Some(tail) = tail {
            self.buffer.lend(tail);
        }
        Ok(())
    }

    /// Writes what the connection has not taken. A connection that fails is an error only where
    /// there will be no other.
    fn flush(&mut self) -> io::Result<()> {
        while self.buffer.unsent() > 0 && !self.is_cut {
            let mut parts = [IoSlice::new(&[]); PARTS];
            let count = self.buffer.next_parts(&mut parts);
            match self.stream.write_vectored(&parts[..count], Wait::Asleep) {
                Ok(count) => self.buffer.sent(count),
                // On another connection it would be no better.
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                    ending::failed("device memory went while it was being copied to the program")
                }
                Err(_) if self.buffer.keeps() => {
                    // The reader sees its end, and tells the daemon.
                    self.stream.shut_down();
                    self.is_cut = true;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Most pieces that are handed to the socket at a time.
const PARTS: usize = 16;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use sluice_transport::{Rings, Side};

    use super::*;
    use crate::staging::{Staging, tests::table};

    /// More than the pool has pieces, and fewer bytes than the client acknowledges.
    #[test]
    fn small_copies_need_no_acknowledgement() {
        let (ours, _client) = UnixStream::pair().unwrap();
        let counters = Arc::new(CounterPage::create().unwrap());
        let outbox = Outbox::new(Arc::new(Stream::from(ours)), true, counters);
        let (staging, table) = (Staging::new(), table());
        let (done, all_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for ticket in 1..=200 {
                outbox.wait_room_for_small(8);
                let bytes = staging.take(&table, 8).unwrap();
                outbox.push(Push::Data { ticket, offset: 0, bytes });
                outbox.write(|_| Ok(())).unwrap();
            }
            done.send(outbox.lock_writer().buffer.start()).unwrap();
        });
        let acknowledged = all_done.recv_timeout(std::time::Duration::from_secs(60));
        assert_eq!(acknowledged, Ok(0), "they wait for their pieces");
    }

    fn lying(memory: &[u8]) -> Lying {
        Lying { start: NonNull::new(memory.as_ptr().cast_mut()).unwrap(), length: memory.len() }
    }

    /// What a client reads, to its end.
    fn read_all(mut client: UnixStream) -> std::thread::JoinHandle<Vec<u8>> {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            client.read_to_end(&mut bytes).unwrap();
            bytes
        })
    }

    #[test]
    fn memory_is_sent_from_where_it_lies_and_again_after_a_cut() {
        let counters = Arc::new(CounterPage::create().unwrap());
        let [(ours, mut client), (next, client_again)] = [(); 2].map(|()| UnixStream::pair().unwrap());
        let outbox = Outbox::new(Arc::new(Stream::from(ours)), true, counters);
        // More than a socket takes at once.
        let memory: Vec<u8> = (0..2 << 20).map(|at| (at % 251) as u8).collect();
        let mut seen = vec![0; 100_000];
        std::thread::scope(|scope| {
            let pushing = scope.spawn(|| outbox.push_lying(1, 0, lying(&memory)).unwrap());
            client.read_exact(&mut seen).unwrap();
            // Others have the writer while it waits for room.
            let sending = scope.spawn(|| outbox.send(b"between").unwrap());
            drop(client);
            assert!(pushing.join().unwrap());
            sending.join().unwrap();
        });
        let read = read_all(client_again);
        outbox.resume((&Arc::new(Stream::from(next)), Vec::new()), seen.len() as u64, b"").unwrap();
        outbox.write(|_| Ok(())).unwrap();
        drop(outbox);
        seen.extend(read.join().unwrap());
        let (data, after) = seen[PUSH_HEAD_SIZE..].split_at(memory.len());
        assert!(data == memory && after == b"between");
    }

    #[test]
    fn where_its_bytes_would_be_looked_at_memory_is_not_lent() {
        let counters = Arc::new(CounterPage::create().unwrap());
        let (ours, client) = UnixStream::pair().unwrap();
        let stream = Arc::new(Stream::from(ours));
        let outbox = Outbox::new(Arc::clone(&stream), true, counters);
        let read = read_all(client);
        outbox.pack();
        assert!(outbox.push_lying(1, 0, lying(&[1; 8])).unwrap(), "nobody has found the link slow");
        let (memory, _file) = Rings::create().unwrap();
        stream.share(memory, Side::Worker, 2);
        assert!(!outbox.push_lying(1, 0, lying(&[1; 8])).unwrap());
        drop((outbox, stream));
        assert_eq!(read.join().unwrap().len(), PUSH_HEAD_SIZE + 8);
    }

    #[test]
    fn small_copies_wait_while_too_much_is_kept() {
        let (ours, mut client) = UnixStream::pair().unwrap();
        let counters = Arc::new(CounterPage::create().unwrap());
        let outbox = Outbox::new(Arc::new(Stream::from(ours)), true, counters);
        let read = std::thread::spawn(move || io::copy(&mut client, &mut io::sink()));
        let frame = [0; 1000];
        while outbox.lock_writer().buffer.has_room_for_small() {
            outbox.send(&frame).unwrap();
        }
        let position = outbox.lock_writer().buffer.end();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| outbox.wait_room_for_small(8));
            // Large ones wait for a piece of the pool only.
            outbox.wait_room_for_small(LARGE);
            outbox.acknowledged(Received { position, answer: false }).unwrap();
            waiting.join().unwrap();
        });
        drop(outbox);
        assert_eq!(read.join().unwrap().unwrap(), position);
    }
}
