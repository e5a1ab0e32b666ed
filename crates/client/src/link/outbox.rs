//! Outgoing commands: one buffer for all threads, whose lock is the order of the session.
//!
//! The buffer is flushed
//! - by every waiting call,
//! - when it holds [`FLUSH_BYTES`],
//! - by a queued command that comes [`FLUSH_AFTER`] or more after the last flush: the first command
//!   after a pause goes out at once, so that work starts, and a burst of launches costs one system
//!   call per 100 us,
//! - half a millisecond or so after a call left something in it, if nothing else has sent that
//!   (`link::flusher`).

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_transport::Stream;
use sluice_wire::pack::Packer;
use sluice_wire::resume::WINDOW;
use sluice_wire::sequences::{COMMAND_SIZE_MAX, Recogniser};
use sluice_wire::spin::Wait;
use sluice_wire::{Header, SendBuffer, WireError};

use crate::link::retained::{Keeper, Kept};

/// A buffer of this many bytes goes out by itself.
const FLUSH_BYTES: u64 = 64 << 10;
/// Commands queued sooner than this after a flush wait for company.
pub(crate) const FLUSH_AFTER: Duration = Duration::from_micros(100);
/// Most pieces that are handed to the stream at a time.
const PARTS: usize = 16;

pub(crate) struct Outbox {
    pub(crate) stream: Arc<Stream>,
    pub(crate) buffer: SendBuffer<Lent>,
    pub(crate) flushed_at: Instant,
    /// The flusher will check whether something is left here.
    pub(crate) is_watched: bool,
    pub(crate) keeper: Keeper,
    /// Commands go as what changed since earlier ones.
    recogniser: Option<Recogniser>,
    packing: Option<Packing>,
    told: Told,
}

/// Large data are compressed where the link is slow.
#[derive(Default)]
struct Packing {
    packer: Packer,
    /// Bytes of the frames that were packed.
    bytes: u64,
}

/// Bytes of frames that have been encoded.
#[derive(Default)]
struct Told {
    /// Positions in this side's stream, with the bytes encoded up to there; one for every
    /// [`MARK_EVERY`] bytes.
    marks: VecDeque<(u64, u64)>,
    /// How many the worker has acknowledged.
    acknowledged: u64,
}

const MARK_EVERY: u64 = 64 << 10;

/// Data to send without a copy. All else is copied into the buffer: the program may change its
/// memory right after a call.
pub(crate) enum Lent {
    /// Memory of the program, while the call lasts that gives it (`link::Loan`).
    Program(ProgramMemory),
    /// A copy of large data.
    Kept(Kept),
}

pub(crate) struct ProgramMemory {
    start: *const u8,
    bytes: usize,
}

// SAFETY: plain memory, which any thread may read while it is lent.
unsafe impl Send for ProgramMemory {}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        match self {
            // SAFETY: `Outbox::lend` was promised that the memory stays until it is taken back.
            Lent::Program(memory) => unsafe { std::slice::from_raw_parts(memory.start, memory.bytes) },
            Lent::Kept(kept) => kept.bytes(),
        }
    }
}

impl Outbox {
    /// Begins after `sent` bytes of the stream; `resumes` says whether another stream may follow
    /// this one, and `recognises` whether the worker can decode delta-encoded commands.
    pub(crate) fn new(stream: Arc<Stream>, sent: u64, resumes: bool, recognises: bool) -> Self {
        let buffer = SendBuffer::new(sent, resumes);
        Outbox {
            stream,
            buffer,
            flushed_at: Instant::now(),
            is_watched: false,
            keeper: Keeper::default(),
            recogniser: recognises.then(Recogniser::new),
            packing: None,
            told: Told::default(),
        }
    }

    /// From now on large data are packed while the link is slow.
    pub(crate) fn packs(&mut self) {
        self.packing = Some(Packing::default());
    }

    /// One for another session of the same program, on a connection of its own on which nothing has
    /// been sent.
    pub(crate) fn for_clone(&self, stream: Arc<Stream>) -> Outbox {
        let mut outbox = Outbox::new(stream, 0, true, false);
        if self.packing.is_some() {
            outbox.packs();
        }
        outbox
    }

    /// Whether a frame with such data would be packed now.
    pub(crate) fn would_pack(&mut self, data: &[u8]) -> bool {
        let is_slow = self.buffer.is_slow();
        self.packing.as_mut().is_some_and(|packing| is_slow && packing.packer.is_worth(data))
    }

    /// Adds a command, of which about `size` bytes are data, and shows its frame to `see`.
    pub(crate) fn append(
        &mut self,
        header: Header,
        size: usize,
        payload: impl FnOnce(&mut Vec<u8>),
        see: impl FnOnce(&[u8]),
    ) -> Result<(), WireError> {
        match &mut self.recogniser {
            Some(recogniser) if size <= COMMAND_SIZE_MAX => {
                let frame = recogniser.write(header, payload)?;
                see(frame);
                let bytes = frame.len();
                if bytes <= COMMAND_SIZE_MAX {
                    self.buffer.append(|out| recogniser.add(header, out))?;
                } else {
                    // It is appended as it is, behind what was encoded before.
                    append_large(&mut self.buffer, self.packing.as_mut(), header, |out| {
                        recogniser.add(header, out)?;
                        Ok(out.len() - bytes)
                    })?;
                }
            }
            _ => {
                self.end_recognised()?;
                append_large(&mut self.buffer, self.packing.as_mut(), header, |out| {
                    let start = out.len();
                    header.frame(out, payload)?;
                    see(&out[start..]);
                    Ok(start)
                })?;
            }
        }
        self.mark();
        Ok(())
    }

    /// Moves the frames that are being encoded into the buffer: what is appended there now comes
    /// after them.
    pub(crate) fn end_recognised(&mut self) -> Result<(), WireError> {
        match &mut self.recogniser {
            Some(recogniser) if recogniser.pending() > 0 => {
                self.buffer.append(|out| recogniser.end(out))?;
                self.mark();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns the bytes of frames that have been encoded.
    fn told(&self) -> u64 {
        let recognised = self.recogniser.as_ref().map_or(0, Recogniser::told);
        recognised + self.packing.as_ref().map_or(0, |packing| packing.bytes)
    }

    fn mark(&mut self) {
        let told = self.told();
        let last = self.told.marks.back().map_or(self.told.acknowledged, |(_, told)| *told);
        if told - last >= MARK_EVERY {
            self.told.marks.push_back((self.buffer.end(), told));
        }
    }

    /// The worker has everything before `position`.
    pub(crate) fn acknowledge(&mut self, position: u64) -> Result<(), WireError> {
        while let Some((_, told)) = self.told.marks.pop_front_if(|(end, _)| *end <= position) {
            self.told.acknowledged = told;
        }
        self.buffer.acknowledge(position)
    }

    /// The least position whose acknowledgement leaves room for more. Encoded frames count with
    /// their full size: the worker queues it as it was.
    pub(crate) fn room_after(&self) -> u64 {
        let least = (self.told() + 1).saturating_sub(WINDOW);
        let mark = || self.told.marks.iter().find(|(_, told)| *told >= least);
        let after = if self.told.acknowledged >= least { 0 } else { mark().map_or(0, |(end, _)| *end) };
        after.max(self.buffer.room_after())
    }

    /// Bytes that have not been given to the stream, including those that are still being encoded.
    pub(crate) fn unsent(&self) -> u64 {
        let told = self.recogniser.as_ref().map_or(0, Recogniser::pending);
        self.buffer.unsent() + told as u64
    }

    /// Whether a queued command should take the buffer's contents out with it.
    pub(crate) fn is_due(&self) -> bool {
        self.unsent() >= FLUSH_BYTES || self.flushed_at.elapsed() >= FLUSH_AFTER
    }

    /// Adds memory of the caller's.
    ///
    /// # Safety
    /// Before the memory goes, the buffer holds it no more ([`SendBuffer::start`]).
    pub(crate) unsafe fn lend(&mut self, memory: &[u8]) {
        self.buffer.lend(Lent::Program(ProgramMemory { start: memory.as_ptr(), bytes: memory.len() }));
    }

    /// Writes as much as fits without waiting; nothing fitting is [`io::ErrorKind::WouldBlock`].
    pub(crate) fn write(&mut self) -> io::Result<()> {
        let mut parts = [IoSlice::new(&[]); PARTS];
        let count = self.buffer.next_parts(&mut parts);
        let written = self.stream.write_vectored(&parts[..count], Wait::No)?;
        self.buffer.sent(written);
        Ok(())
    }
}

/// Adds what ends with a frame, of which `append` answers where it begins, and packs that if the
/// link is slow and it is worth it.
fn append_large(
    buffer: &mut SendBuffer<Lent>,
    packing: Option<&mut Packing>,
    header: Header,
    append: impl FnOnce(&mut Vec<u8>) -> Result<usize, WireError>,
) -> Result<(), WireError> {
    let is_slow = buffer.is_slow();
    let packed = buffer.append(|out| {
        let start = append(out)?;
        let bytes = (out.len() - start) as u64;
        let Some(packing) = packing.filter(|_| is_slow) else { return Ok(0) };
        let packed = if packing.packer.pack(out, header, start) { bytes } else { 0 };
        packing.bytes += packed;
        Ok(packed)
    })?;
    buffer.packed(packed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use sluice_wire::Kind;
    use sluice_wire::frame::HEADER_SIZE;

    use super::*;

    #[test]
    fn what_is_told_in_few_bytes_waits_for_acknowledgements_like_all_else() {
        const COMMAND: usize = 1000;
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut outbox = Outbox::new(Arc::new(Stream::from(ours)), 0, true, true);
        let say = |outbox: &mut Outbox, sequence: u64| {
            let header = Header { kind: Kind::Command, device: 0, op: 1, lane: 1, sequence };
            let payload = COMMAND - HEADER_SIZE;
            outbox.append(header, 0, |out| out.resize(out.len() + payload, 7), |_| ()).unwrap();
        };
        let fits = WINDOW / COMMAND as u64 - 100;
        (0..fits).for_each(|sequence| say(&mut outbox, sequence));
        outbox.end_recognised().unwrap();
        assert_eq!(outbox.room_after(), 0);
        assert!(outbox.buffer.end() < WINDOW / 100, "it is told in {} bytes", outbox.buffer.end());

        (fits..3 * fits).for_each(|sequence| say(&mut outbox, sequence));
        outbox.end_recognised().unwrap();
        let (room_after, end) = (outbox.room_after(), outbox.buffer.end());
        assert!(0 < room_after && room_after < end, "{room_after} of {end}");
        outbox.buffer.sent(end as usize);
        outbox.acknowledge(room_after - 1).unwrap();
        assert_eq!(outbox.room_after(), room_after, "too little");
        outbox.acknowledge(room_after).unwrap();
        assert_eq!(outbox.room_after(), 0);
    }
}
