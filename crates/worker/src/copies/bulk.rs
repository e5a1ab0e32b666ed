//! Large frames, which are not collected where small ones are: their payload is read once, straight
//! to where it is used.
//!
//! ```text
//!            nothing stands before it: piece by piece, from the ring or a buffer
//!   frame --------------------------------------------------------------------> the driver's copy
//!            otherwise: a buffer of its own -----> queue -----> submitter -----> the driver's call
//! ```
//!
//! A copy to the device finds the device idle where its program waits for nothing but copies. Then
//! the reader itself makes the driver's copies, each of the bytes that are there, while the
//! client writes the next: a byte is copied into the ring and out of it, and the ring stays in the
//! cache. As soon as what stood before a copy is done, the rest of it goes that way, and when the
//! turn is lost what is left of it goes the other way. The reader waits for bytes only, as always;
//! each piece is finished when the driver's call returns, so that nothing stays behind.

use std::sync::{Mutex, PoisonError};

use sluice_cuda::{CUresult, Fn};
use sluice_wire::{Begun, Decode, DevicePtr, Encode, Header, Kind, Op, Reader, StreamId};

use crate::copies;
use crate::memory::presence::Use;
use crate::pipeline;
use crate::pipeline::kinds::{BULK_MIN, COPY_FIELDS};
use crate::schedule::gate::Submission;
use crate::session::Session;
use crate::session::execute::Execute;

/// Bytes that are collected for one call of the driver where they do not lie in shared memory.
pub(crate) const PIECE: usize = 128 << 10;

/// A large command that is being transferred.
pub(crate) struct Bulk {
    pub(crate) header: Header,
    /// As long as the payload; what has come is at its beginning.
    pub(crate) payload: Vec<u8>,
    pub(crate) filled: usize,
}

impl Bulk {
    /// A frame that has begun, if it is large and its first fields are there.
    pub(crate) fn of(begun: &Begun<'_>, buffers: &Buffers) -> Option<Bulk> {
        let filled = begun.payload.len();
        if begun.header.kind != Kind::Command || begun.missing < BULK_MIN || filled < COPY_FIELDS {
            return None;
        }
        // The decoder has checked the size against the largest frame.
        let mut payload = buffers.take(filled + begun.missing);
        payload[..filled].copy_from_slice(begun.payload);
        Some(Bulk { header: begun.header, payload, filled })
    }

    /// What has not come yet, at most a piece of it.
    pub(crate) fn next_piece(&mut self) -> &mut [u8] {
        let end = self.payload.len().min(self.filled + PIECE);
        &mut self.payload[self.filled..end]
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.filled == self.payload.len()
    }
}

/// A copy to the device, executed while it arrives.
pub(crate) struct Arriving {
    header: Header,
    to: DevicePtr,
    stream: StreamId,
    /// Bytes that the driver has not got.
    pub(crate) left: usize,
}

impl Arriving {
    /// What a large command is, if it is a copy to the device whose fields agree with its frame.
    pub(crate) fn of(bulk: &Bulk) -> Option<Arriving> {
        if Op(bulk.header.op) != Op::of(Fn::cuMemcpyHtoDAsync_v2) {
            return None;
        }
        let mut fields = Reader::new(&bulk.payload[..bulk.filled]);
        let to = DevicePtr::decode(&mut fields).ok()?;
        let stream = StreamId::decode(&mut fields).ok()?;
        let left = u32::decode(&mut fields).ok()? as usize;
        (left == bulk.payload.len() - COPY_FIELDS).then_some(Arriving {
            header: bulk.header,
            to,
            stream,
            left,
        })
    }

    /// The data among what has come of a command.
    pub(crate) fn data_of(bulk: &Bulk) -> &[u8] {
        &bulk.payload[COPY_FIELDS..bulk.filled]
    }

    /// Enters the gate for the next bytes, if that needs no waiting, while the memory is present.
    pub(crate) fn enter<'a>(&self, session: &'a Session) -> Option<(Submission<'a>, Use<'a>)> {
        let present = session.presence.try_enter()?;
        Some((session.device_at(self.header.device)?.gate.enter_now()?, present))
    }

    /// Copies the next `count` bytes, and returns when the device has them. A failure is the
    /// session's; bytes that come after it go nowhere.
    ///
    /// # Safety
    /// `from` is valid for reading `count` bytes.
    pub(crate) unsafe fn copy(
        &mut self,
        session: &Session,
        (submission, _present): (Submission<'_>, Use<'_>),
        from: *const u8,
        count: usize,
    ) {
        let count = count.min(self.left);
        let copied = match session.failure() {
            // SAFETY: the caller's promise is the same.
            Ok(()) => unsafe { self.copy_piece(session, from, count) },
            Err(_) => Ok(()),
        };
        submission.finished();
        if let Err(result) = copied
            && pipeline::refused(session, self.header, result).is_err()
        {
            crate::process::ending::client_gone();
        }
        self.to.0 = self.to.0.wrapping_add(count as u64);
        self.left -= count;
    }

    /// # Safety
    /// `from` is valid for reading `count` bytes.
    unsafe fn copy_piece(&self, session: &Session, from: *const u8, count: usize) -> Result<(), CUresult> {
        session.enter(self.header)?;
        // All that is still to come, so that a copy that leads out of an allocation fails before it
        // writes the rest of it.
        let to = session.range(self.to, self.left as u64)?;
        let stream = session.find(self.stream)?;
        // SAFETY: the range is the session's, and the caller vouches for the source.
        unsafe { copies::to_device_now(session, to, from, count, stream) }
    }

    /// What is left, as a command like any other, of whose data `read` have come.
    pub(crate) fn rest(&self, mut buffer: Vec<u8>, read: &[u8]) -> Bulk {
        buffer.clear();
        self.to.encode(&mut buffer);
        self.stream.encode(&mut buffer);
        (self.left as u32).encode(&mut buffer);
        buffer.extend_from_slice(read);
        let filled = buffer.len();
        buffer.resize(COPY_FIELDS + self.left, 0);
        Bulk { header: self.header, payload: buffer, filled }
    }
}

/// Memory of large commands, to be used again: fresh memory costs more than the copy into it.
#[derive(Default)]
pub(crate) struct Buffers(Mutex<Vec<Vec<u8>>>);

/// Most buffers that are kept.
const BUFFERS_MAX: usize = 4;

impl Buffers {
    /// A buffer of this number of bytes, whatever they are.
    fn take(&self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.lock().pop().unwrap_or_default();
        buffer.resize(bytes, 0);
        buffer
    }

    /// Takes back the payload of a command.
    pub(crate) fn give(&self, buffer: Vec<u8>) {
        if buffer.capacity() >= BULK_MIN {
            let mut kept = self.lock();
            if kept.len() < BUFFERS_MAX {
                kept.push(buffer);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_wire::{Command, FrameDecoder, commands};

    const BYTES: usize = 100_000;

    /// The first `count` bytes of a copy's frame, as bulk.
    fn arrived(count: usize, change: impl FnOnce(&mut Vec<u8>)) -> Option<Bulk> {
        let command = commands::cuMemcpyHtoDAsync_v2 {
            dstDevice: DevicePtr(0x7000),
            hStream: StreamId(5),
            srcHost: &[9; BYTES],
        };
        let op = commands::cuMemcpyHtoDAsync_v2::OP;
        let header = Header { kind: Kind::Command, device: 1, op: op.0, lane: 2, sequence: 3 };
        let mut frame = Vec::new();
        header.frame(&mut frame, |out| command.encode(out)).unwrap();
        change(&mut frame);
        let mut decoder = FrameDecoder::new();
        decoder.push(&frame[..count]);
        Bulk::of(&decoder.begun().unwrap()?, &Buffers::default())
    }

    #[test]
    fn the_fields_of_a_copy_come_before_its_data() {
        let bulk = arrived(50, |_| ()).unwrap();
        let copy = Arriving::of(&bulk).unwrap();
        assert_eq!((copy.to, copy.stream, copy.left), (DevicePtr(0x7000), StreamId(5), BYTES));
        assert_eq!(Arriving::data_of(&bulk), [9; 10]);
        assert!(arrived(39, |_| ()).is_none(), "a field is missing");
        assert!(arrived(BYTES, |_| ()).is_none(), "there is little to come");
    }

    #[test]
    fn a_copy_whose_length_is_not_its_frame_s_is_no_copy() {
        // Its count stands behind the header, the address and the stream.
        for wrong in [0, 1, BYTES as u32 - 1, BYTES as u32 + 1, u32::MAX] {
            let bulk = arrived(50, |frame| frame[36..40].copy_from_slice(&wrong.to_le_bytes())).unwrap();
            assert!(Arriving::of(&bulk).is_none(), "{wrong}");
        }
    }

    #[test]
    fn the_rest_of_a_copy_is_a_copy() {
        let mut copy = Arriving::of(&arrived(50, |_| ()).unwrap()).unwrap();
        (copy.to.0, copy.left) = (copy.to.0 + 70, copy.left - 70);
        let rest = copy.rest(vec![1; 10], &[9; 30]);
        assert_eq!((rest.header, Arriving::data_of(&rest)), (copy.header, &[9; 30][..]));
        let again = Arriving::of(&rest).unwrap();
        assert_eq!((again.to, again.stream, again.left), (DevicePtr(0x7000 + 70), StreamId(5), BYTES - 70));
        assert!(sluice_wire::decode::<commands::cuMemcpyHtoDAsync_v2<'_>>(&rest.payload).is_ok());
    }

    #[test]
    fn pieces_fill_the_payload() {
        let mut bulk = arrived(50, |_| ()).unwrap();
        while !bulk.is_whole() {
            let piece = bulk.next_piece();
            piece[0] = 1;
            assert!(piece.len() <= PIECE);
            bulk.filled += piece.len();
        }
        assert_eq!(bulk.payload.len(), COPY_FIELDS + BYTES);
    }

    #[test]
    fn buffers_are_used_again_and_bounded() {
        let buffers = Buffers::default();
        let taken: Vec<_> = (0..2 * BUFFERS_MAX).map(|_| buffers.take(BULK_MIN)).collect();
        let addresses: Vec<_> = taken.iter().map(|buffer| buffer.as_ptr()).collect();
        taken.into_iter().for_each(|buffer| buffers.give(buffer));
        assert_eq!(buffers.lock().len(), BUFFERS_MAX);
        assert!(addresses.contains(&buffers.take(BULK_MIN).as_ptr()));
        buffers.give(Vec::new());
        assert_eq!(buffers.lock().len(), BUFFERS_MAX - 1, "small ones are not kept");
    }
}
