//! Frames: the pieces that a connection carries.
//!
//! ```text
//!  0        4     5       6     8      12            20
//!  +--------+-----+-------+-----+------+-------------+---------
//!  | length | kind|device | op  | lane | sequence    | payload
//!  +--------+-----+-------+-----+------+-------------+---------
//! ```
//!
//! `length` counts what follows it. All numbers are little-endian.

use crate::{codec::Encode, error::WireError};

/// Bytes before the payload.
pub const HEADER_SIZE: usize = 20;
/// The largest frame, with its header.
pub const FRAME_SIZE_MAX: usize = 4 << 20;
/// The largest piece of bulk data in one frame. Smaller than a frame, so that other lanes get their
/// turn.
pub const BULK_SIZE_MAX: usize = 1 << 20;

/// What a frame is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Client to worker: execute `op`; in order of sequence within a lane.
    Command = 1,
    /// Worker to client: the answer to the waiting command of this lane and sequence. Payload:
    /// `Reply`.
    Reply = 2,
    /// Worker to client: data for a ticket that the client gave out. Payload: `HostWrite`.
    HostWrite = 3,
    /// Worker to client: run the host function of a ticket, then say so. Payload: `HostCall`.
    HostCall = 4,
    /// Worker to client: a queued command failed, or the device did; the session is lost. Payload:
    /// `Sticky`.
    Sticky = 5,
    /// Both ways, outside sessions: a message of the module `control`, whose number is `op`.
    Control = 6,
    /// Worker to client: what device code printed, as it is; for the program's standard output.
    Output = 7,
    /// Both ways, in sessions that can be resumed: an acknowledgement, or a keep-alive. Payload:
    /// `Received`.
    Received = 8,
    /// Client to worker: commands of one lane, delta encoded against commands before; see
    /// `sequences`. The header has the sequence of the first.
    Commands = 9,
    /// Both ways: a large command or push, compressed; see `pack`.
    Packed = 10,
    /// Worker to client: a line of text for the program's user, who should know why calls fail.
    Notice = 11,
    /// Worker to client: how much more of a device's memory it may use unasked, or less. Payload:
    /// `Allowance`.
    Allowance = 12,
    /// Worker to client: the queued command whose device, operation, lane and sequence these are
    /// was refused; the session continues. Payload: `CommandRefused`.
    CommandRefused = 13,
}

impl Kind {
    /// All there are.
    pub const ALL: [Kind; 13] = [
        Kind::Command,
        Kind::Reply,
        Kind::HostWrite,
        Kind::HostCall,
        Kind::Sticky,
        Kind::Control,
        Kind::Output,
        Kind::Received,
        Kind::Commands,
        Kind::Packed,
        Kind::Notice,
        Kind::Allowance,
        Kind::CommandRefused,
    ];

    pub(crate) fn from_number(number: u8) -> Result<Kind, WireError> {
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u8 == number);
        kind.ok_or(WireError::FrameKind(number))
    }
}

/// What stands before every payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    pub kind: Kind,
    /// The device, by its place in the lease, whose context is current for the command.
    pub device: u8,
    /// Which operation; see `Op`.
    pub op: u16,
    /// The client thread that waits.
    pub lane: u32,
    /// The sender's count of frames in the lane; a reply repeats that of its command.
    pub sequence: u64,
}

impl Header {
    /// Appends a whole frame, its payload written by `payload`.
    ///
    /// The caller keeps the payload below `FRAME_SIZE_MAX`; a larger one is taken back and refused.
    pub fn frame(self, out: &mut Vec<u8>, payload: impl FnOnce(&mut Vec<u8>)) -> Result<(), WireError> {
        let start = out.len();
        0u32.encode(out);
        (self.kind as u8).encode(out);
        self.device.encode(out);
        self.op.encode(out);
        self.lane.encode(out);
        self.sequence.encode(out);
        payload(out);
        let size = out.len() - start;
        if size > FRAME_SIZE_MAX {
            out.truncate(start);
            return Err(WireError::FrameTooLarge(size as u64));
        }
        out[start..start + 4].copy_from_slice(&(size as u32 - 4).to_le_bytes());
        Ok(())
    }

    /// As [`Header::frame`], of a frame whose last `tail` bytes the caller sends after what is
    /// appended here.
    pub fn frame_before(
        self,
        out: &mut Vec<u8>,
        tail: usize,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), WireError> {
        let start = out.len();
        self.frame(out, payload)?;
        let size = out.len() - start + tail;
        if size > FRAME_SIZE_MAX {
            out.truncate(start);
            return Err(WireError::FrameTooLarge(size as u64));
        }
        out[start..start + 4].copy_from_slice(&(size as u32 - 4).to_le_bytes());
        Ok(())
    }

    fn decode(bytes: &[u8; HEADER_SIZE]) -> Result<(Header, usize), WireError> {
        let [l0, l1, l2, l3, kind, device, o0, o1, a0, a1, a2, a3, sequence @ ..] = *bytes;
        let size = u64::from(u32::from_le_bytes([l0, l1, l2, l3])) + 4;
        if size > FRAME_SIZE_MAX as u64 {
            return Err(WireError::FrameTooLarge(size));
        }
        let payload = (size as usize).checked_sub(HEADER_SIZE).ok_or(WireError::Truncated)?;
        let header = Header {
            kind: Kind::from_number(kind)?,
            device,
            op: u16::from_le_bytes([o0, o1]),
            lane: u32::from_le_bytes([a0, a1, a2, a3]),
            sequence: u64::from_le_bytes(sequence),
        };
        Ok((header, payload))
    }
}

/// A received frame; its payload borrows from the decoder.
#[derive(Debug)]
pub struct Frame<'a> {
    pub header: Header,
    pub payload: &'a [u8],
}

/// A frame of which the first bytes have arrived.
#[derive(Debug)]
pub struct Begun<'a> {
    pub header: Header,
    /// The beginning of its payload.
    pub payload: &'a [u8],
    /// Bytes of the payload that are still to come.
    pub missing: usize,
}

/// Makes frames of bytes that arrive in any pieces.
///
/// Either `push` what was received, or let a socket read straight into `space`. Then take frames
/// until there is none.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: Vec<u8>,
    /// Bytes of the buffer that were received; the rest is space.
    filled: usize,
    /// Bytes of the buffer that were given out as frames.
    taken: usize,
}

impl FrameDecoder {
    pub fn new() -> FrameDecoder {
        FrameDecoder::default()
    }

    /// Room for at least `count` bytes; `received` says how many came.
    pub fn space(&mut self, count: usize) -> &mut [u8] {
        // What is left moves to the front only where there is no room behind it, or where nothing
        // is left to move.
        if self.taken == self.filled || self.buffer.len() < self.filled + count {
            self.buffer.copy_within(self.taken..self.filled, 0);
            self.filled -= self.taken;
            self.taken = 0;
        }
        if self.buffer.len() < self.filled + count {
            self.buffer.resize(self.filled + count, 0);
        }
        &mut self.buffer[self.filled..]
    }

    /// Counts bytes that were read into `space`.
    pub fn received(&mut self, count: usize) {
        self.filled = (self.filled + count).min(self.buffer.len());
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.space(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.received(bytes.len());
    }

    /// How many more bytes the frame that has begun needs; 0 where a whole one is there.
    pub fn missing(&self) -> Result<usize, WireError> {
        let bytes = &self.buffer[self.taken..self.filled];
        match bytes.first_chunk() {
            None => Ok(HEADER_SIZE - bytes.len()),
            Some(header) => Ok((HEADER_SIZE + Header::decode(header)?.1).saturating_sub(bytes.len())),
        }
    }

    /// The next whole frame, if it has arrived. After an error the connection is of no more use.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, WireError> {
        let bytes = &self.buffer[self.taken..self.filled];
        let Some((start, rest)) = bytes.split_first_chunk::<HEADER_SIZE>() else { return Ok(None) };
        let (header, size) = Header::decode(start)?;
        let Some(payload) = rest.get(..size) else { return Ok(None) };
        self.taken += HEADER_SIZE + size;
        Ok(Some(Frame { header, payload }))
    }

    /// The frame that has begun, if its header is there and not all of its payload.
    pub fn begun(&self) -> Result<Option<Begun<'_>>, WireError> {
        let bytes = &self.buffer[self.taken..self.filled];
        let Some((start, payload)) = bytes.split_first_chunk::<HEADER_SIZE>() else { return Ok(None) };
        let (header, size) = Header::decode(start)?;
        let missing = size.saturating_sub(payload.len());
        Ok((missing > 0).then_some(Begun { header, payload, missing }))
    }

    /// Gives out the frame that has begun: the caller reads the rest of its payload from the
    /// connection, and the next bytes that come here are those of the next frame.
    pub fn take_begun(&mut self) {
        self.taken = self.filled;
    }

    /// Bytes that were received and not given out.
    pub fn held(&self) -> &[u8] {
        &self.buffer[self.taken..self.filled]
    }

    /// Whether bytes of an unfinished frame are held.
    pub fn is_between_frames(&self) -> bool {
        self.taken == self.filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header { kind: Kind::Command, device: 1, op: 7, lane: 3, sequence: 1 << 40 };

    #[test]
    fn frames_survive_any_split() {
        let mut bytes = Vec::new();
        HEADER.frame(&mut bytes, |out| out.extend_from_slice(b"first")).unwrap();
        HEADER.frame(&mut bytes, |_| ()).unwrap();
        for piece in 1..bytes.len() {
            let mut decoder = FrameDecoder::new();
            let mut payloads = Vec::new();
            for chunk in bytes.chunks(piece) {
                decoder.push(chunk);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    assert_eq!(frame.header, HEADER);
                    payloads.push(frame.payload.to_vec());
                }
            }
            assert_eq!(payloads, [b"first".to_vec(), Vec::new()], "pieces of {piece}");
            assert!(decoder.is_between_frames());
        }
    }

    #[test]
    fn a_frame_beyond_the_limit_is_refused_at_its_header() {
        let mut decoder = FrameDecoder::new();
        let mut bytes = (FRAME_SIZE_MAX as u32 + 1).to_le_bytes().to_vec();
        bytes.resize(HEADER_SIZE, 0);
        decoder.push(&bytes);
        assert!(matches!(decoder.next_frame(), Err(WireError::FrameTooLarge(_))));
        let mut out = Vec::new();
        let refused = HEADER.frame(&mut out, |out| out.resize(FRAME_SIZE_MAX + 1, 0));
        assert!(matches!(refused, Err(WireError::FrameTooLarge(_))));
        assert!(out.is_empty());
    }

    #[test]
    fn a_frame_that_has_begun_can_be_read_elsewhere() {
        let mut bytes = Vec::new();
        HEADER.frame_before(&mut bytes, 100, |out| out.extend_from_slice(b"fields")).unwrap();
        let mut decoder = FrameDecoder::new();
        decoder.push(&bytes[..HEADER_SIZE - 1]);
        assert!(decoder.begun().unwrap().is_none(), "the header is not all there");
        decoder.push(&bytes[HEADER_SIZE - 1..]);
        assert!(decoder.next_frame().unwrap().is_none());
        let begun = decoder.begun().unwrap().unwrap();
        assert_eq!((begun.header, begun.payload, begun.missing), (HEADER, &b"fields"[..], 100));
        decoder.take_begun();
        assert!(decoder.is_between_frames());

        let mut next = Vec::new();
        HEADER.frame(&mut next, |out| out.push(1)).unwrap();
        decoder.push(&next);
        assert!(decoder.begun().unwrap().is_none(), "it is whole");
        assert_eq!(decoder.next_frame().unwrap().unwrap().payload, [1]);
    }

    #[test]
    fn a_tail_counts_towards_the_limit() {
        let mut out = vec![7];
        let refused = HEADER.frame_before(&mut out, FRAME_SIZE_MAX, |_| ());
        assert!(matches!(refused, Err(WireError::FrameTooLarge(_))));
        assert_eq!(out, [7]);
    }

    #[test]
    fn the_rest_of_a_frame_is_known_from_its_header() {
        let mut bytes = Vec::new();
        HEADER.frame(&mut bytes, |out| out.extend_from_slice(&[0; 100])).unwrap();
        let mut decoder = FrameDecoder::new();
        assert_eq!(decoder.missing(), Ok(HEADER_SIZE));
        decoder.push(&bytes[..HEADER_SIZE + 1]);
        assert_eq!(decoder.missing(), Ok(99));
        decoder.push(&bytes[HEADER_SIZE + 1..]);
        assert_eq!(decoder.missing(), Ok(0));
    }
}
