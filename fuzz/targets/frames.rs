//! Any stream of bytes, in any pieces, as frames: the pieces must make no difference.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_wire::{FrameDecoder, Header};

/// What comes out of a stream that arrives in pieces of at most `piece` bytes, and whether it ends
/// with an error.
fn frames(stream: &[u8], piece: usize) -> (Vec<(Header, Vec<u8>)>, bool) {
    let (mut decoder, mut frames) = (FrameDecoder::new(), Vec::new());
    for piece in stream.chunks(piece) {
        decoder.push(piece);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => frames.push((frame.header, frame.payload.to_vec())),
                Ok(None) => break,
                Err(_) => return (frames, true),
            }
        }
    }
    (frames, false)
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&piece, stream)) = bytes.split_first() else { return };
    assert_eq!(frames(stream, usize::from(piece).max(1)), frames(stream, usize::MAX));
});
