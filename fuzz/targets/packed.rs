//! Any bytes as a packed frame, and any payload there and back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_wire::frame::HEADER_SIZE;
use sluice_wire::pack::{Packer, unpack};
use sluice_wire::{FRAME_SIZE_MAX, Frame, FrameDecoder, Header, Kind};

const HEADER: Header = Header { kind: Kind::Command, device: 0, op: 1, lane: 2, sequence: 3 };

fuzz_target!(|bytes: &[u8]| {
    if let Ok((_, payload)) = unpack(&Frame { header: HEADER, payload: bytes }) {
        assert!(payload.len() <= FRAME_SIZE_MAX - HEADER_SIZE);
    }
    let payload = bytes.repeat(8);
    let mut out = Vec::new();
    HEADER.frame(&mut out, |out| out.extend_from_slice(&payload)).expect("it is small");
    if Packer::default().pack(&mut out, HEADER, 0) {
        let mut decoder = FrameDecoder::new();
        decoder.push(&out);
        let frame = decoder.next_frame().expect("a frame").expect("all of it");
        assert_eq!(unpack(&frame), Ok((HEADER, payload)));
    }
});
