//! Compression of large frames, on links that are slower than the compression.
//!
//! ```text
//!            kind and length of what was packed
//!  +--------+------+--------+-----------------
//!  | header | u8   | u32    | LZ4 block
//!  +--------+------+--------+-----------------
//!    of kind `Packed`, and else that of the frame that was packed
//! ```
//!
//! Data of programs are often of few kinds of bytes (token ids, masks, zeroes, images, PTX) and as
//! often not (weights), so each frame is tried by a sample of it. Whether the link is slow is what
//! acknowledgements say (`SendBuffer::is_slow`).

use lz4_flex::block;

use crate::codec::{Decode, Encode, Reader};
use crate::error::WireError;
use crate::frame::{FRAME_SIZE_MAX, Frame, HEADER_SIZE, Header, Kind};

/// Frames of fewer bytes are not packed.
pub const PACK_MIN: usize = 4 << 10;
/// Bytes before the LZ4 block.
const HEAD_BYTES: usize = 5;
/// What is tried first of larger data.
const SAMPLE: usize = 16 << 10;

/// Memory to pack in.
#[derive(Debug, Default)]
pub struct Packer {
    packed: Vec<u8>,
}

impl Packer {
    /// Whether data seem worth packing: a sample from their middle becomes less than seven eighths.
    pub fn is_worth(&mut self, data: &[u8]) -> bool {
        let start = data.len().saturating_sub(SAMPLE) / 2;
        let sample = &data[start..data.len().min(start + SAMPLE)];
        data.len() >= PACK_MIN && self.compress(sample).is_some()
    }

    /// Packs the frame that begins at `start` of `out` and ends with it, if that is worth it;
    /// returns whether it did.
    pub fn pack(&mut self, out: &mut Vec<u8>, header: Header, start: usize) -> bool {
        let Some(payload) = out.get(start + HEADER_SIZE..) else { return false };
        let count = payload.len();
        if !self.is_worth(payload) {
            return false;
        }
        let Some(size) = self.compress(payload) else { return false };
        out.truncate(start);
        let packed = Header { kind: Kind::Packed, ..header };
        let framed = packed.frame(out, |out| {
            (header.kind as u8).encode(out);
            (count as u32).encode(out);
            out.extend_from_slice(&self.packed[..size]);
        });
        debug_assert!(framed.is_ok(), "it is shorter than what fitted");
        true
    }

    /// Leaves the block in `packed` and returns its length, if that is less than seven eighths.
    fn compress(&mut self, data: &[u8]) -> Option<usize> {
        let most = block::get_maximum_output_size(data.len());
        if self.packed.len() < most {
            self.packed.resize(most, 0);
        }
        let size = block::compress_into(data, &mut self.packed).ok()?;
        (size + HEAD_BYTES < data.len() / 8 * 7).then_some(size)
    }
}

/// The frame that was packed.
pub fn unpack(frame: &Frame<'_>) -> Result<(Header, Vec<u8>), WireError> {
    let Some((head, packed)) = frame.payload.split_at_checked(HEAD_BYTES) else {
        return Err(WireError::Truncated);
    };
    let mut head = Reader::new(head);
    let kind = Kind::from_number(u8::decode(&mut head)?)?;
    let count = u32::decode(&mut head)?;
    // Nothing else is large; and one in another could be of any size.
    if !matches!(kind, Kind::Command | Kind::HostWrite) {
        return Err(WireError::FrameKind(kind as u8));
    }
    if count as usize > FRAME_SIZE_MAX - HEADER_SIZE {
        return Err(WireError::FrameTooLarge(u64::from(count) + HEADER_SIZE as u64));
    }
    let mut payload = vec![0; count as usize];
    match block::decompress_into(packed, &mut payload) {
        Ok(size) if size == payload.len() => Ok((Header { kind, ..frame.header }, payload)),
        _ => Err(WireError::Packed),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::FrameDecoder;

    const HEADER: Header = Header { kind: Kind::Command, device: 1, op: 7, lane: 3, sequence: 9 };

    fn framed(payload: &[u8]) -> Vec<u8> {
        let mut out = b"before".to_vec();
        HEADER.frame(&mut out, |out| out.extend_from_slice(payload)).unwrap();
        out
    }

    fn unpacked(bytes: &[u8]) -> Result<(Header, Vec<u8>), WireError> {
        let mut decoder = FrameDecoder::new();
        decoder.push(bytes);
        unpack(&decoder.next_frame()?.expect("a whole frame"))
    }

    #[test]
    fn zeroes_become_few_and_noise_stays() {
        let mut packer = Packer::default();
        let zeroes = vec![0; 1 << 20];
        let mut out = framed(&zeroes);
        assert!(packer.pack(&mut out, HEADER, 6));
        assert!(out.len() < 8192 && out.starts_with(b"before"), "{}", out.len());
        assert_eq!(unpacked(&out[6..]), Ok((HEADER, zeroes)));

        let mut state = 1u64;
        let noise = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        });
        let mut out = framed(&noise.take(1 << 20).collect::<Vec<_>>());
        let before = out.clone();
        assert!(!packer.pack(&mut out, HEADER, 6));
        assert_eq!(out, before);
    }

    #[test]
    fn what_is_no_packed_frame_is_an_error() {
        let mut packer = Packer::default();
        let mut out = framed(&[7; 8192]);
        assert!(packer.pack(&mut out, HEADER, 6));
        let good = out.split_off(6);
        let changed = |place: usize, bytes: &[u8]| {
            let mut frame = good.clone();
            frame[HEADER_SIZE + place..][..bytes.len()].copy_from_slice(bytes);
            unpacked(&frame)
        };
        for kind in [Kind::Packed, Kind::Commands, Kind::Control, Kind::Reply] {
            assert_eq!(changed(0, &[kind as u8]), Err(WireError::FrameKind(kind as u8)));
        }
        assert_eq!(changed(1, &8191u32.to_le_bytes()), Err(WireError::Packed));
        assert_eq!(changed(1, &8193u32.to_le_bytes()), Err(WireError::Packed));
        assert!(matches!(changed(1, &u32::MAX.to_le_bytes()), Err(WireError::FrameTooLarge(_))));
    }

    proptest! {
        #[test]
        fn packed_frames_come_out_as_they_were(byte: u8, run in 1..200usize, count in 0..20_000usize) {
            let payload: Vec<u8> = (0..count).map(|nth| byte.wrapping_add((nth / run) as u8)).collect();
            let mut out = framed(&payload);
            if Packer::default().pack(&mut out, HEADER, 6) {
                prop_assert_eq!(unpacked(&out[6..]), Ok((HEADER, payload)));
            }
        }

        #[test]
        fn bytes_of_a_peer_are_an_error_at_most(payload: Vec<u8>) {
            let _ = unpack(&Frame { header: HEADER, payload: &payload });
        }
    }
}
