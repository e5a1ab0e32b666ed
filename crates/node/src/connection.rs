//! One connection: who is there, and what for.
//!
//! Nothing that a peer sends before it has proved a token, a lease or a session costs more than a
//! thread and a few hundred bytes. Each step has a deadline however many bytes come, and until its
//! proof a connection makes way for newer ones ([`admission`](crate::admission)):
//!
//! | step | deadline |
//! |---|---|
//! | handshake of TLS and `Hello` together | [`HELLO_PATIENCE`] |
//! | the first question | [`QUESTION_PATIENCE`] after the `Hello` |
//! | each further one without a proof | [`IDLE_PATIENCE`] after the last answer |
//! | a message that has begun, with a proof | [`MESSAGE_PATIENCE`] after its first byte |
//! | taking an answer | [`ANSWER_PATIENCE`], with a proof [`WRITE_PATIENCE`] |

mod arrivals;
mod checkpoints;
mod control;
mod greeting;
mod held;
mod sessions;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_transport::Stream;
use sluice_transport::process::ProcessWatch;
use sluice_transport::tls::ServerIdentity;
use sluice_wire::WireError;
use sluice_wire::handshake::{Hello, Purpose};

use crate::admission::ConnectionSlot;
use crate::registry::cuts::{Awaited, Hold, Holding, Process, descriptor_of};
use crate::registry::{ClientOf, Registry};
use crate::silent::Accepted;
use crate::strangers;
use crate::upgrade::Pass;

pub(crate) use control::Line;
pub(crate) use held::short_name;

use control::{Rights, Token, control, control_again};
use greeting::{Protected, greet, protect};
use held::{HeldLease, NO_CERTIFICATE, NO_LEASES_HERE, refused};
use sessions::{admit_peer, clone, go_on, session};

/// A peer has this long for its first words.
pub(crate) const HELLO_PATIENCE: Duration = Duration::from_secs(5);
/// A control connection has this long for its first whole question.
const QUESTION_PATIENCE: Duration = Duration::from_secs(10);
/// A control connection that has proved nothing has this long between one answer and the next whole
/// question.
const IDLE_PATIENCE: Duration = Duration::from_secs(30);
/// A control connection that has proved something has this long from the first byte of a message to
/// its last.
const MESSAGE_PATIENCE: Duration = Duration::from_secs(10);
/// Most bytes of a message to a node: what is asked of one has a name and a grant of a server at
/// most.
const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// A peer that has proved nothing and takes none of what it is sent for this long is gone.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// A peer that has proved something and takes none of what it is sent for this long is gone.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);

/// What an address is for.
#[derive(Clone, Debug)]
pub(crate) enum Door {
    Plain,
    Tls(ServerIdentity),
    /// Sessions of leases that were granted elsewhere.
    Sessions,
}

/// Serves a connection to its end.
///
/// `step` lasts until it is known what it is for, and that has begun.
pub(crate) fn serve(registry: &Registry, accepted: Accepted, place: ConnectionSlot, step: Pass) {
    let Accepted { mut stream, peer, door, deadline, .. } = accepted;
    let (peer, door) = (peer.as_str(), &door);
    let greeted = protect(&mut stream, door, deadline)
        .and_then(|protected| greet(&stream, deadline).map(|hello| (hello, protected)));
    let (hello, Protected { may_ask, shown }) = match greeted {
        Ok(greeted) => greeted,
        // A client looked whether a node is here.
        Err(ConnectionError::Nothing) => return,
        Err(error) => {
            registry.strangers.say(peer, strangers::Kind::TurnedAway, &format!("turned away: {error}"));
            return;
        }
    };
    let Some(process) = process_of(registry, &hello) else {
        tracing::warn!(peer, "{peer} disconnected: its process has ended");
        return;
    };
    // The end of a Unix socket is its peer's end.
    let resumes = !stream.is_unix() && process.space != 0;
    if (resumes || matches!(hello.purpose, Purpose::Resume(_)))
        && !stream.is_unix()
        && let Err(error) = sluice_transport::limit_unacknowledged(stream.as_fd())
    {
        tracing::warn!(peer, "{peer} disconnected: {error}");
        return;
    }
    if !matches!(hello.purpose, Purpose::Control)
        && let Err(error) = stream.set_write_limit(WRITE_PATIENCE)
    {
        tracing::warn!(peer, "{peer} disconnected: {error}");
        return;
    }
    // A session's; what is measured beside it has the system's own choice.
    if matches!(hello.purpose, Purpose::Session { .. } | Purpose::Resume(_)) {
        sluice_transport::keep_rate(stream.as_fd());
    }
    let ended = match hello.purpose {
        Purpose::Control => {
            let rights = Rights { resumes, may_ask, shown };
            drop(step);
            let proved = control(registry, stream, process, rights, (peer, place));
            match proved {
                Err((error, false)) => {
                    registry.strangers.say(
                        peer,
                        strangers::Kind::TurnedAway,
                        &format!("turned away: {error}"),
                    );
                    return;
                }
                proved => proved.map_err(|(error, _)| error),
            }
        }
        Purpose::Session { token, once } => {
            let client = ClientOf { process, peer: peer.to_owned(), resumes };
            session(registry, stream, (&token, once), client, (place, step))
        }
        Purpose::Resume(resume) => go_on(registry, stream, &resume, (&process, peer)),
        Purpose::Clone(of) => clone(registry, stream, (&of, &process), (place, step)),
        Purpose::Peer(other) => admit_peer(registry, stream, &other),
    };
    if let Err(error) = ended {
        tracing::warn!(peer, "{peer} disconnected: {error}");
    }
}

/// What stands for the holder of a lease from before this program ran.
pub(crate) enum Successor {
    /// Its connection of before.
    Connection(OwnedFd),
    /// Nothing, until the holder comes back on another connection.
    Hold(Hold),
}

/// Holds a lease for its holder from before this program ran, who may come as soon as this returns.
pub(crate) fn hold_again(registry: &Registry, lease: u64, awaited: &mut Awaited) -> io::Result<Successor> {
    if let Some(socket) = awaited.socket.take().and_then(Arc::into_inner) {
        return Ok(Successor::Connection(socket));
    }
    let holding = Holding::new(&Line::nowhere()?, &awaited.process, awaited.terms.clone())?;
    let hold = registry.hold_again(lease, holding);
    hold.map(Successor::Hold).ok_or_else(|| io::Error::other("the lease is gone"))
}

/// Continues with the holder's connection, or waits for another one.
pub(crate) fn serve_holder(
    registry: &Registry,
    (lease, successor): (u64, Successor),
    awaited: Awaited,
    place: ConnectionSlot,
) {
    let Awaited { process, terms, .. } = awaited;
    match successor {
        Successor::Connection(socket) => {
            if let Err(error) = control_again(registry, (lease, socket), process, &terms, place) {
                tracing::warn!(peer = terms.peer, "{} disconnected: {error}", terms.peer);
            }
        }
        Successor::Hold(hold) => {
            drop(place);
            registry.await_holder(&hold, &process);
        }
    }
}

/// The peer's process, watched from here if it can be seen. `None` if it has ended already: nothing
/// is there to reconnect.
fn process_of(registry: &Registry, hello: &Hello) -> Option<Process> {
    let is_here = hello.process_space != 0 && hello.process_space == registry.process_space;
    let watch = match is_here.then(|| ProcessWatch::new(hello.process)) {
        Some(Ok(None)) => return None,
        Some(Ok(watch)) => watch,
        // One that cannot be watched is waited for after a cut.
        Some(Err(_)) | None => None,
    };
    Some(Process {
        number: hello.process,
        space: hello.process_space,
        watch: watch.and_then(|watch| descriptor_of(&watch).ok()),
    })
}

/// Why a connection ends before its peer wants it to.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("it did not finish what it has to say first within {} s", HELLO_PATIENCE.as_secs())]
    Silent,
    #[error("it took too long to say something whole")]
    Slow,
    #[error("its message has {0} bytes, and a node takes {MESSAGE_BYTES_MAX} at most")]
    TooLarge(usize),
    #[error("it said nothing")]
    Nothing,
    #[error("it speaks TLS, and this address takes plain text only")]
    Tls,
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Refused(String),
}

/// Has a read end by the deadline; an error once that has passed.
fn limit_read(stream: &Stream, deadline: Instant) -> Result<(), ConnectionError> {
    let left = deadline.saturating_duration_since(Instant::now());
    // The limit counts microseconds, and none of them is no limit.
    if left.as_micros() == 0 { Err(ConnectionError::Silent) } else { Ok(stream.set_read_limit(left)?) }
}
