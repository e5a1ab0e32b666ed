//! The connection of a session that is resumed, and what the client has acknowledged.

use std::io;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, MutexGuard};

use sluice_transport::Stream;
use sluice_wire::migration::{Downstream, Upstream};
use sluice_wire::pack::Packer;
use sluice_wire::resume::{ACKNOWLEDGE_EVERY, SendBuffer};
use sluice_wire::{Encode, Header, Kind, Received};

use super::push::Lent;
use super::writer::{PUSHED, Writer};
use super::{Outbox, WRITE_PATIENCE};
use crate::connection::client;

impl Outbox {
    /// Continues from `position` on another connection, whose first bytes are `greeting`, and after
    /// that also on `others`.
    pub(crate) fn resume(
        &self,
        (stream, others): (&Arc<Stream>, Vec<Stream>),
        position: u64,
        greeting: &[u8],
    ) -> io::Result<()> {
        let mut writer = self.lock_writer();
        if stream.is_protected() != writer.is_protected {
            return Err(io::Error::other("the connection must use TLS exactly if the first one did"));
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

    /// Bytes that may be in flight to the client, where that follows from the link.
    pub(crate) fn window(&self) -> u64 {
        self.window.load(Relaxed)
    }

    /// Notes how many bytes of the client's stream have arrived.
    pub(crate) fn received(&self, position: u64) {
        self.received.store(position, SeqCst);
    }

    /// Notes how many bytes of commands have come delta encoded since the session began.
    pub(crate) fn expanded(&self, told: u64) {
        self.expanded.store(told, SeqCst);
    }

    /// The client has this much of ours; `answer` says that it asks for the same.
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

    pub(super) fn owes_acknowledgement(&self) -> bool {
        // Either may move in between.
        let acknowledged = self.acknowledged.load(SeqCst);
        let behind = self.received.load(SeqCst).saturating_sub(acknowledged);
        let told_before = self.expanded_before.load(SeqCst);
        let told = self.expanded.load(SeqCst).saturating_sub(told_before);
        self.acknowledges && behind.max(told) >= ACKNOWLEDGE_EVERY && !self.withheld.load(SeqCst)
    }

    pub(super) fn acknowledge_in(&self, writer: &mut Writer) -> io::Result<()> {
        // While acknowledgements are delayed by flow control this is a keep-alive and no more.
        let withheld = self.withheld.load(SeqCst);
        if !withheld {
            self.expanded_before.store(self.expanded.load(SeqCst), SeqCst);
        }
        let position = if withheld { self.acknowledged.load(SeqCst) } else { self.received.load(SeqCst) };
        self.acknowledged.store(position, SeqCst);
        let header = Header { kind: Kind::Received, ..PUSHED };
        writer.frame(header, None, |out| Received { position, answer: false }.encode(out))
    }
}

/// An outbox in which nothing changes.
pub(crate) struct HeldOutbox<'a> {
    outbox: &'a Outbox,
    pub(super) writer: MutexGuard<'a, Writer>,
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
