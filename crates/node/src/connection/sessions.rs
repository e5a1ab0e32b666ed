//! Sockets that go to a worker: of a session, of one that is resumed, of another node.

use std::os::fd::AsFd;
use std::time::Duration;

use sluice_transport::Stream;
use sluice_wire::control::{SessionNotCloned, SessionRefused, SessionResumed};
use sluice_wire::handshake::{CloneOf, LeaseToken, Once, Peer, Resume, Stripe};
use sluice_wire::spin::Wait;

use super::ConnectionError;
use super::control::send;
use super::held::send_on;
use crate::admission::ConnectionSlot;
use crate::registry::cuts::Process;
use crate::registry::{ClientOf, Registry, SessionRefusal};
use crate::upgrade::Pass;

/// Hands the socket to a worker: to one that was started for an earlier attempt of the same client,
/// or to a new one, and stays until that has ended.
pub(super) fn session(
    registry: &Registry,
    stream: Stream,
    (token, once): (&LeaseToken, Once),
    client: ClientOf,
    (mut place, step): (ConnectionSlot, Pass),
) -> Result<(), ConnectionError> {
    if let Some(moved) = registry.moved_lease(token) {
        return send_on(&stream, &moved);
    }
    if registry.lease_of(token).is_some()
        && let Err(full) = place.prove()
    {
        send(&stream, SessionRefused { reason: full.to_string() }.into())?;
        return Err(ConnectionError::Refused(full.to_string()));
    }
    let started = match registry.open_session(token, once, &client, &stream) {
        Ok(None) => return Ok(()),
        Ok(Some(opening)) => {
            if once.attempt > 0 {
                // The client cannot know that the session is new.
                send(&stream, SessionResumed { received: 0 }.into())?;
            }
            // As for connections of a session that continues (`registry/cuts.rs`).
            sluice_transport::make_room(stream.as_fd());
            let keys = stream.keys()?;
            registry.start_session(opening, client, stream.as_fd().try_clone_to_owned()?, keys)
        }
        Err(refusal) => Err(refusal),
    };
    match started {
        Ok(session) => {
            // From here on the worker alone has the socket: its end is the end that the client
            // sees.
            drop(stream);
            registry.serve_session(session, step);
            Ok(())
        }
        // The next attempt may find it done: a refusal would be the last word.
        Err(SessionRefusal::Stuck) => Err(ConnectionError::Refused(SessionRefusal::Stuck.to_string())),
        Err(refusal) => {
            // The lease may have gone to another node meanwhile.
            if let Some(moved) = registry.moved_lease(token) {
                return send_on(&stream, &moved);
            }
            let reason = refusal.to_string();
            send(&stream, SessionRefused { reason: reason.clone() }.into())?;
            Err(ConnectionError::Refused(reason))
        }
    }
}

/// Hands the socket to the worker that has been waiting for it; the worker answers.
pub(super) fn go_on(
    registry: &Registry,
    stream: Stream,
    resume: &Resume,
    (process, peer): (&Process, &str),
) -> Result<(), ConnectionError> {
    let keys = stream.keys()?;
    if resume.stripe != Stripe::ONLY {
        stream.limit_unsent();
    }
    if let Some(moved) = registry.moved_session(resume) {
        return send_on(&stream, &moved);
    }
    let Err(refusal) = registry.resume_session(resume, (process, peer), stream.as_fd(), keys) else {
        return Ok(());
    };
    if let Some(moved) = registry.moved_session(resume) {
        return send_on(&stream, &moved);
    }
    let reason = refusal.to_string();
    send(&stream, SessionRefused { reason: reason.clone() }.into())?;
    Err(ConnectionError::Refused(reason))
}

/// Hands the socket of another node to the worker that copies into whose memory; the worker
/// answers.
pub(super) fn admit_peer(registry: &Registry, stream: Stream, peer: &Peer) -> Result<(), ConnectionError> {
    let keys = stream.keys()?;
    if registry.admit_peer(peer, stream.as_fd(), keys) {
        return Ok(());
    }
    let reason = "no session expects copies by that number and token here";
    send(&stream, SessionRefused { reason: reason.into() }.into())?;
    Err(ConnectionError::Refused(reason.into()))
}

/// Has a session cloned for the child of its client, and serves the clone to its end.
pub(super) fn clone(
    registry: &Registry,
    stream: Stream,
    (of, client): (&CloneOf, &Process),
    (mut place, step): (ConnectionSlot, Pass),
) -> Result<(), ConnectionError> {
    let twin = match registry.clone_session(of, client, || place.prove()) {
        Ok(twin) => twin,
        Err(refusal) => {
            let (reason, needs_memory) = (refusal.to_string(), refusal.needs_memory());
            send(&stream, SessionNotCloned { reason: reason.clone(), needs_memory }.into())?;
            return Err(ConnectionError::Refused(format!("no clone of session {}: {reason}", of.session)));
        }
    };
    // What it said first was said in time; from here on the connection stands for the child.
    let unlimited = stream.set_read_limit(Duration::ZERO).map_err(ConnectionError::from);
    if let Err(error) = unlimited.and_then(|()| send(&stream, registry.cloned(&twin).into())) {
        registry.end_twin(&twin);
        return Err(error);
    }
    let session = twin.session;
    drop(step);
    std::thread::scope(|scope| {
        let watched = std::thread::Builder::new().name("clone".into()).spawn_scoped(scope, || {
            // Nothing comes but the end, of all who have the connection, or of the link to them.
            let _ = stream.read(&mut [0; 1], Wait::Asleep);
            registry.end_unclaimed(session);
        });
        if let Err(error) = watched {
            tracing::warn!(session, "a clone ends, as nothing would tell that no client comes: {error}");
            registry.end_unclaimed(session);
        }
        registry.serve_twin(twin);
        stream.shut_down();
    });
    Ok(())
}
