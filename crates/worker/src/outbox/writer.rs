//! The frames, in their order on the connection.

use std::io;
use std::io::IoSlice;
use std::sync::Arc;

use sluice_transport::Stream;
use sluice_wire::frame::HEADER_SIZE;
use sluice_wire::pack::Packer;
use sluice_wire::resume::{LARGE, SendBuffer};
use sluice_wire::spin::Wait;
use sluice_wire::{Allowance, Encode, Header, HostCall, Kind};

use super::Push;
use super::push::Lent;
use crate::process::ending;

pub(super) struct Writer {
    pub(super) stream: Arc<Stream>,
    /// The client comes back with TLS as it began, or without it.
    pub(super) is_protected: bool,
    pub(super) buffer: SendBuffer<Lent>,
    /// Nothing can be written before the client is back.
    pub(super) is_cut: bool,
    /// Where the client unpacks large pushes.
    pub(super) packer: Option<Packer>,
}

/// The header of what answers no command.
pub(super) const PUSHED: Header = Header { kind: Kind::HostWrite, device: 0, op: 0, lane: 0, sequence: 0 };

/// Bytes of a `HostWrite` frame before its data.
pub(super) const PUSH_HEAD_SIZE: usize = HEADER_SIZE + 20;

/// Whether the frame of a push with this number of bytes of data is a small one.
pub(super) fn is_small(bytes: usize) -> bool {
    PUSH_HEAD_SIZE + bytes < LARGE
}

/// The fields of `HostWrite`: ticket, offset, and the bytes after their count.
pub(super) fn push_fields(out: &mut Vec<u8>, ticket: u64, offset: u64, length: usize) {
    ticket.encode(out);
    offset.encode(out);
    (length as u32).encode(out);
}

impl Writer {
    pub(super) fn sends_lying(&self) -> bool {
        let is_packed = self.packer.is_some() && self.buffer.is_slow();
        !is_packed && !self.stream.is_protected() && !self.stream.is_shared()
    }

    pub(super) fn push(&mut self, push: Push) -> io::Result<()> {
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
            // The client takes none of it.
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
    pub(super) fn frame(
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
    pub(super) fn flush(&mut self) -> io::Result<()> {
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
