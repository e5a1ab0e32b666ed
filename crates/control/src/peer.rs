//! The connection over which a worker copies into the memory of another node's session.

use std::time::{Duration, Instant};

use sluice_transport::Stream;
use sluice_wire::address::Endpoint;
use sluice_wire::control::Control;
use sluice_wire::handshake::{Peer, Purpose};
use sluice_wire::{FrameDecoder, Kind};

use crate::{ANSWER_TIME_MAX, Cause, Failure, READ_SIZE, connect_as, greet, read};

/// Connects to the node of a session, which gives the socket to the session's worker. When this
/// returns that one is ready, and says nothing before it is asked: another process can continue
/// with the stream. A node beyond this machine is known by the fingerprint that the session's
/// client knows it by; this one shows no certificate, since the token is what proves its right.
pub fn connect_peer(node: &Endpoint, peer: Peer) -> Result<Stream, Failure> {
    open(node, peer).map_err(|cause| Failure { node: node.place(), cause })
}

fn open(node: &Endpoint, peer: Peer) -> Result<Stream, Cause> {
    match node {
        Endpoint::Unix(_) => return Err(Cause::Trust("a socket file is on one machine only".into())),
        Endpoint::Tls { fingerprint: None, .. } => {
            return Err(Cause::Trust("nothing says by which certificate it is known".into()));
        }
        Endpoint::Tcp(_) | Endpoint::Tls { .. } => {}
    }
    let (stream, _) = connect_as(None, node)?;
    let mut decoder = FrameDecoder::new();
    // No space: the node does not wait for this process to come back.
    greet(&stream, &mut decoder, Purpose::Peer(peer), 0)?;
    let deadline = Instant::now() + ANSWER_TIME_MAX;
    loop {
        if let Some(frame) = decoder.next_frame().map_err(Cause::Protocol)? {
            if frame.header.kind != Kind::Control {
                return Err(Cause::UnexpectedAnswer);
            }
            match Control::decode(frame.header.op, frame.payload).map_err(Cause::Protocol)? {
                Control::PeerReady(_) => break,
                Control::SessionRefused(refused) => return Err(Cause::Refused(refused.reason)),
                _ => return Err(Cause::UnexpectedAnswer),
            }
        }
        let count = read(&stream, decoder.space(READ_SIZE), deadline)?;
        decoder.received(count);
    }
    if !decoder.is_between_frames() {
        return Err(Cause::UnexpectedAnswer);
    }
    stream.set_read_limit(Duration::ZERO)?;
    stream.set_write_limit(Duration::ZERO)?;
    Ok(stream)
}
