//! A session comes over a control connection of another node (`sluice_control`'s `Departure`).

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use sluice_transport::Stream;
use sluice_wire::control::{Control, MoveAccepted, MoveArrived, MoveDecided, MoveOffer};
use sluice_wire::spin::Wait;
use sluice_wire::{FrameDecoder, Kind, WireError};

use super::{ConnectionError, HeldLease, NO_CERTIFICATE, NO_LEASES_HERE, Token, limit_read, refused};
use crate::registry::migrate::{Has, Incoming, arrival};

/// The other node says something within this time: its worker may have work to finish first.
const PATIENCE: Duration = Duration::from_secs(120);
/// Most bytes of one message.
const MESSAGE_MAX: usize = 1 << 20;

/// Takes a session over and serves it to its end, if the other node decides so.
pub(super) fn receive(
    held: &mut HeldLease<'_>,
    (decoder, stream): (&mut FrameDecoder, &Stream),
    offer: MoveOffer,
) -> Result<(), ConnectionError> {
    if let Some(answer) = held.is_kept_from_offering(&offer) {
        return held.line.send(answer);
    }
    held.prove()?;
    let (mut incoming, hold) = match held.registry.expect(offer, held.holding_for_another()?) {
        Ok(expected) => expected,
        Err(reason) => return held.line.send(refused(&reason)),
    };
    held.hold = Some(hold);
    // Until it is here the lease ends with this connection.
    held.is_over = true;
    let arrived = arrive(held, (decoder, stream), &mut incoming);
    let Ok(Some((has, decided))) = &arrived else {
        incoming.end();
        held.registry.turn_away(&incoming);
        return arrived.map(drop);
    };
    let Some(hold) = held.hold.take() else { return Ok(()) };
    held.line.shut_down();
    let step = held.step.take();
    std::thread::scope(|scope| {
        scope.spawn(|| held.registry.await_holder(&hold, &held.process));
        held.registry.serve_arrived(incoming, has, decided.as_ref(), step);
    });
    Ok(())
}

/// What has arrived, unless it stays where it was; with the other node's decision, unless that was
/// lost.
fn arrive(
    held: &mut HeldLease<'_>,
    (decoder, stream): (&mut FrameDecoder, &Stream),
    incoming: &mut Incoming,
) -> Result<Option<(Has, Option<MoveDecided>)>, ConnectionError> {
    let accepted = MoveAccepted { session: incoming.session, gpu: incoming.gpu as u32 };
    held.line.send(accepted.into())?;
    let (link, line, registry, lease) = (incoming.link(), &held.line, held.registry, incoming.lease);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            let has = arrival(&link).and_then(|has| registry.fits(lease, has));
            let said = match &has {
                Ok(has) => line.send(MoveArrived { bytes: has.bytes }.into()),
                Err(reason) => line.send(refused(reason)),
            };
            // The other node finds the connection at its end.
            has.ok().filter(|_| said.is_ok())
        });
        let decided = copy(stream, decoder, incoming);
        // A worker that has not got everything ends, and with it the wait.
        incoming.end();
        if let Ok(MoveDecided { moves: false, .. }) = decided {
            registry.stop_arriving(incoming);
        }
        let has = waiting.join().unwrap_or_default();
        match (decided, has) {
            (Ok(MoveDecided { moves: false, .. }), _) => Ok(None),
            (Ok(decided), Some(has)) => Ok(Some((has, Some(decided)))),
            // Without the other node's word the session is where that sends the client: here,
            // perhaps.
            (Err(_), Some(has)) => Ok(Some((has, None))),
            (Ok(_), None) => Ok(None),
            (Err(error), None) => Err(error),
        }
    })
}

/// Gives the worker what comes, up to the decision.
fn copy(
    stream: &Stream,
    decoder: &mut FrameDecoder,
    incoming: &mut Incoming,
) -> Result<MoveDecided, ConnectionError> {
    // The thread that waits for the worker reports its failure to the other node.
    let mut takes = true;
    loop {
        while let Some(frame) = decoder.next_frame()? {
            if frame.header.kind != Kind::Control {
                return Err(WireError::FrameKind(frame.header.kind as u8).into());
            }
            match Control::decode(frame.header.op, frame.payload)? {
                Control::MovePiece(piece) => takes = takes && incoming.push(&piece.bytes).is_ok(),
                Control::MoveDecided(decided) => return Ok(decided),
                _ => return Err(ConnectionError::Refused("it sent something else than a session".into())),
            }
        }
        let missing = decoder.missing()?;
        if missing > MESSAGE_MAX {
            let text = format!("a piece of a session has {missing} bytes, more than {MESSAGE_MAX}");
            return Err(ConnectionError::Refused(text));
        }
        limit_read(stream, Instant::now() + PATIENCE).map_err(|_| ConnectionError::Slow)?;
        match stream.read(decoder.space(missing.max(4096)), Wait::Asleep) {
            Ok(0) => return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into()),
            Ok(got) => decoder.received(got),
            Err(error) => match error.kind() {
                ErrorKind::Interrupted => {}
                ErrorKind::WouldBlock | ErrorKind::TimedOut => return Err(ConnectionError::Slow),
                _ => return Err(error.into()),
            },
        }
    }
}

impl HeldLease<'_> {
    /// Why its peer may not give a session away here, or may not yet.
    fn is_kept_from_offering(&mut self, offer: &MoveOffer) -> Option<Control> {
        if !self.rights.may_ask {
            return Some(refused(if self.line.stream.is_unix() { NO_LEASES_HERE } else { NO_CERTIFICATE }));
        }
        let granted = match self.registry.grant_of_offer(offer) {
            Ok(grant) => grant.is_some(),
            Err(reason) => return Some(refused(&reason)),
        };
        if granted {
            // As for programs: a grant of the server is enough.
            return self.holds_already();
        }
        if let Token::Wrong = self.token {
            return Some(refused(
                "its --token-file holds another token than that of the node which offers the session",
            ));
        }
        if !matches!(self.token, Token::Unasked | Token::Shown) {
            return Some(self.want_token());
        }
        self.holds_already()
    }

    fn holds_already(&self) -> Option<Control> {
        self.hold.is_some().then(|| refused("this connection holds a lease already"))
    }
}
