//! A session without a CUDA program, for a program that speaks its frames itself: `sluice replay`.

use std::io::Write;
use std::time::{Duration, Instant};

use sluice_transport::Stream;
use sluice_transport::opening::Attempts;
use sluice_wire::address::Endpoint;
use sluice_wire::control::{Control, SessionOpen, SessionOpened};
use sluice_wire::handshake::{LeaseToken, Purpose};
use sluice_wire::{FrameDecoder, Kind};

use crate::{ANSWER_TIME_MAX, Cause, Failure, READ_SIZE, connect, greet, read};

/// A session that has begun. It ends with its connection: it cannot be resumed.
#[derive(Debug)]
pub struct RawSession {
    pub stream: Stream,
    /// What was read beyond the answer.
    pub decoder: FrameDecoder,
    pub opened: SessionOpened,
}

impl RawSession {
    /// Opens a session under a lease, and offers one range of addresses for its devices.
    pub fn open(node: &Endpoint, token: LeaseToken, range: (u64, u64)) -> Result<RawSession, Failure> {
        open(node, token, range).map_err(|cause| Failure { node: node.place(), cause })
    }
}

fn open(node: &Endpoint, token: LeaseToken, range: (u64, u64)) -> Result<RawSession, Cause> {
    let (stream, _) = connect(node)?;
    let mut decoder = FrameDecoder::new();
    // No space: the node does not wait for this process to come back.
    let once = Attempts::new()?.once();
    greet(&stream, &mut decoder, Purpose::Session { token, once }, 0)?;
    let mut bytes = Vec::new();
    Control::from(SessionOpen { ranges: vec![range], recognises: false, unpacks: false, forks: false })
        .frame(&mut bytes)
        .map_err(Cause::Protocol)?;
    (&stream).write_all(&bytes)?;
    let deadline = Instant::now() + ANSWER_TIME_MAX;
    let answer = loop {
        if let Some(frame) = decoder.next_frame().map_err(Cause::Protocol)? {
            if frame.header.kind != Kind::Control {
                return Err(Cause::UnexpectedAnswer);
            }
            break Control::decode(frame.header.op, frame.payload).map_err(Cause::Protocol)?;
        }
        let count = read(&stream, decoder.space(READ_SIZE), deadline)?;
        decoder.received(count);
    };
    let opened = match answer {
        Control::SessionOpened(opened) => opened,
        Control::SessionRefused(refused) => return Err(Cause::Refused(refused.reason)),
        _ => return Err(Cause::UnexpectedAnswer),
    };
    // Kernels take as long as they take.
    stream.set_read_limit(Duration::ZERO)?;
    stream.set_write_limit(Duration::ZERO)?;
    Ok(RawSession { stream, decoder, opened })
}
