//! What goes back to the client: replies, pushed data, host calls, the end.
//!
//! A thread that has something to send writes it itself, under one lock; that saves a thread switch
//! per reply. Only what comes out of a driver's callback, where nothing may block, is queued: the
//! next writer takes it along, so that data copied before a synchronisation reach the client before
//! that synchronisation's reply.
//!
//! In a session that can be resumed all of it is kept until the client has acknowledged it. No
//! thread here waits for that: a writer may be the very thread that reads the acknowledgements.
//! What bounds the memory is that copied data are staged in a bounded pool (`staging`), which
//! follows the window, or sent without a copy, that a thread that submits small copies waits
//! ([`Outbox::wait_room_for_small`]), that text is dropped beyond a bound, and that each client
//! thread waits for one reply at a time.
//!
//! Few bytes are copied, and their staged piece comes back at once: the client acknowledges nothing
//! before it has many bytes, which a pool full of small copies is not.

mod push;
mod resume;
pub(crate) mod staging;
mod writer;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_transport::Stream;
use sluice_wire::pack::Packer;
use sluice_wire::resume::SendBuffer;
use sluice_wire::{BULK_SIZE_MAX, CommandRefused, Encode, Header, Kind, ReplyHead, Sticky};

use crate::counters::CounterPage;

pub(crate) use push::{Lying, Push};
pub(crate) use resume::HeldOutbox;

use push::{Lent, TEXT_MAX};
use writer::{PUSH_HEAD_SIZE, PUSHED, Writer, is_small, push_fields};

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
    /// Bytes of the client's stream that have arrived, and how many were acknowledged to the
    /// client.
    received: AtomicU64,
    acknowledged: AtomicU64,
    /// Bytes of ours that the link can use, as its acknowledgements say.
    window: AtomicU64,
    /// Bytes of commands that the client has sent delta encoded (`sequences`), and how many of them
    /// were reported to it last.
    expanded: AtomicU64,
    expanded_before: AtomicU64,
    /// Too much is accepted already: what else arrives is acknowledged once there is room, and so
    /// the client waits.
    withheld: AtomicBool,
    /// Whether the client was notified that the session is lost.
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

/// A client that takes nothing for this long is as good as cut off.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);
/// A thread that a lock is free for needs less than this to wake up and take it.
const WAKING: Duration = Duration::from_millis(1);
/// Most pushes that wait for being written, of those that can wait.
const AHEAD_MAX: usize = 2;
/// Bytes of pushes that are collected before they are written, where they may have been packed.
const UNSENT_MAX: u64 = 256 << 10;

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

    /// Called before a copy of this number of bytes whose data will be pushed: waits while too many
    /// small ones are kept for the client.
    pub(crate) fn wait_room_for_small(&self, bytes: usize) {
        // Large ones do not even wait for the thread that writes.
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

    /// Waits until [`Outbox::push_in_place`] may find room for this number of bytes.
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
    /// as the link holds, and for other threads that want to write.
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

#[cfg(test)]
mod tests;
