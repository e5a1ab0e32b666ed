//! What goes back to the client: replies, pushed data, host calls, the end.
//!
//! Whoever has something to say writes it itself, under one lock; that saves a thread switch per reply. Only what
//! comes out of a driver's callback, where nothing may block, is queued: the next writer takes it along, so that
//! data copied before a synchronisation reach the client before that synchronisation's reply.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use sluice_transport::Stream;
use sluice_wire::spin::Wait;
use sluice_wire::{
    BULK_SIZE_MAX, Encode, FRAME_SIZE_MAX, Header, HostCall, Kind, ReplyHead, Sticky, WireError,
};

use crate::counters::CounterPage;
use crate::staging::Staged;

/// The way back to the client.
pub(crate) struct Outbox {
    writer: Mutex<Writer>,
    pushes: Mutex<VecDeque<Push>>,
    pushed: Condvar,
    counters: Arc<CounterPage>,
}

/// What a driver's callback leaves behind.
pub(crate) enum Push {
    /// Bytes of a copy for a place in the client's memory.
    Data { ticket: u64, offset: u64, bytes: Staged },
    /// A stream has come to a host function.
    Call { ticket: u64 },
    /// Device code has printed this.
    Output(Vec<u8>),
}

/// Most bytes of text that wait for the client.
const TEXT_MAX: usize = 8 << 20;

impl Push {
    fn text_bytes(&self) -> usize {
        match self {
            Push::Output(text) => text.len(),
            Push::Data { .. } | Push::Call { .. } => 0,
        }
    }
}

struct Writer {
    stream: Arc<Stream>,
    /// Reused for the bytes of frames.
    scratch: Vec<u8>,
}

impl Outbox {
    pub(crate) fn new(stream: Arc<Stream>, counters: Arc<CounterPage>) -> Outbox {
        Outbox {
            writer: Mutex::new(Writer { stream, scratch: Vec::new() }),
            pushes: Mutex::default(),
            pushed: Condvar::new(),
            counters,
        }
    }

    /// Answers a waiting command. `fields` is what its reply carries on success.
    pub(crate) fn reply(&self, command: Header, result: i32, fields: &[u8]) -> io::Result<()> {
        let header = Header { kind: Kind::Reply, ..command };
        let mut writer = self.flush_pushes()?;
        writer.send(&self.counters, header, &[], |out| {
            ReplyHead { result }.encode(out);
            out.extend_from_slice(fields);
        })
    }

    /// Sends a frame as it is.
    pub(crate) fn send(&self, frame: &[u8]) -> io::Result<()> {
        let mut writer = self.flush_pushes()?;
        writer.write(&self.counters, frame, &[])
    }

    /// Says that a queued command failed and the session is lost.
    pub(crate) fn sticky(&self, command: Header, result: i32, text: &str) -> io::Result<()> {
        let header = Header { kind: Kind::Sticky, ..command };
        let message = Sticky { result, op: command.op, text: text.to_owned() };
        self.flush_pushes()?.send(&self.counters, header, &[], |out| message.encode(out))
    }

    /// Queues what device code has printed. Text that the client does not take is dropped beyond a bound, as CUDA's
    /// own buffer drops it.
    pub(crate) fn print(&self, text: &[u8]) {
        let mut pushes = self.lock_pushes();
        for piece in text.chunks(BULK_SIZE_MAX) {
            let waiting: usize = pushes.iter().map(Push::text_bytes).sum();
            match pushes.back_mut() {
                _ if waiting + piece.len() > TEXT_MAX => break,
                Some(Push::Output(last)) if last.len() + piece.len() <= BULK_SIZE_MAX => {
                    last.extend_from_slice(piece)
                }
                _ => pushes.push_back(Push::Output(piece.to_vec())),
            }
        }
        self.pushed.notify_one();
    }

    /// Queues what a callback has; never blocks on the client.
    pub(crate) fn push(&self, push: Push) {
        self.lock_pushes().push_back(push);
        self.pushed.notify_one();
    }

    /// Sends pushes that no reply takes along; returns when the client is gone.
    pub(crate) fn run(&self) -> io::Result<()> {
        loop {
            let mut pushes = self.lock_pushes();
            while pushes.is_empty() {
                pushes = self.pushed.wait(pushes).unwrap_or_else(PoisonError::into_inner);
            }
            drop(pushes);
            drop(self.flush_pushes()?);
        }
    }

    /// Takes the writer and sends everything pushed so far.
    fn flush_pushes(&self) -> io::Result<MutexGuard<'_, Writer>> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let next = self.lock_pushes().pop_front();
            match next {
                None => return Ok(writer),
                Some(push) => writer.send_push(&self.counters, &push)?,
            }
        }
    }

    fn lock_pushes(&self) -> MutexGuard<'_, VecDeque<Push>> {
        self.pushes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    fn send_push(&mut self, counters: &CounterPage, push: &Push) -> io::Result<()> {
        let header = |kind| Header { kind, device: 0, op: 0, lane: 0, sequence: 0 };
        match push {
            Push::Data { ticket, offset, bytes } => {
                let bytes = bytes.bytes();
                // The fields of `HostWrite`: ticket, offset, and the bytes after their count.
                self.send(counters, header(Kind::HostWrite), bytes, |out| {
                    ticket.encode(out);
                    offset.encode(out);
                    (bytes.len() as u32).encode(out);
                })
            }
            Push::Call { ticket } => {
                let message = HostCall { ticket: *ticket };
                self.send(counters, header(Kind::HostCall), &[], |out| message.encode(out))
            }
            Push::Output(text) => self.send(counters, header(Kind::Output), text, |_| ()),
        }
    }

    /// Sends a frame whose payload is what `payload` writes, then `tail`.
    fn send(
        &mut self,
        counters: &CounterPage,
        header: Header,
        tail: &[u8],
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> io::Result<()> {
        let mut frame = std::mem::take(&mut self.scratch);
        frame.clear();
        header.frame(&mut frame, payload).map_err(io::Error::other)?;
        let size = frame.len() + tail.len();
        if size > FRAME_SIZE_MAX {
            return Err(io::Error::other(WireError::FrameTooLarge(size as u64)));
        }
        // The length counts what follows it, the tail too.
        frame[..4].copy_from_slice(&(size as u32 - 4).to_le_bytes());
        let result = self.write(counters, &frame, tail);
        self.scratch = frame;
        result
    }

    fn write(&mut self, counters: &CounterPage, first: &[u8], second: &[u8]) -> io::Result<()> {
        let mut parts = [IoSlice::new(first), IoSlice::new(second)];
        let mut parts = &mut parts[..];
        // Removes empty slices at the front.
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            let sent = self.stream.write_vectored(parts, Wait::Asleep)?;
            IoSlice::advance_slices(&mut parts, sent);
        }
        counters.bytes_out.fetch_add((first.len() + second.len()) as u64, Relaxed);
        Ok(())
    }
}
