//! Another connection after a cut.
//!
//! ```text
//!   connected -- end of file, an error, silence ---------------> cut
//!   cut -- a leader connects, both sides say what they have ---> connected
//!   cut -- refused, or the node has stopped waiting -----------> lost
//! ```
//!
//! The thread that finds the connection cut while it waits, or cannot queue more, makes the next
//! one, and the others sleep until it is there: waiting calls, calls that find the window full, and
//! any call that would send. The node waits for the time that it announced when the session began,
//! and this side waits no longer. A refused connection says nothing about the node: a forwarder, a
//! tunnel or a NAT refuses while it is started anew. A node that has lost the session says so once
//! it is reached, and one that has given it to another node says to which.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_transport::Stream;
use sluice_transport::restored::{self, Restored};
use sluice_wire::address::{Endpoint, SessionAddress};
use sluice_wire::control::ResumeTerms;
use sluice_wire::handshake::{Resume, SessionSecret, Stripe};
use sluice_wire::spin::Wait;

use crate::link::greeting::{self, AttachError};
use crate::link::inbox::{Inbox, Receiver};
use crate::link::width::Width;
use crate::link::{Link, stored, watch_silence};

/// One attempt gets this long, and then the next may find another way.
pub(super) const ATTEMPT: Duration = Duration::from_secs(5);
/// Pause after a failed attempt, doubled each time up to the longest.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Which session of which node it is at present.
#[derive(Clone, Debug)]
struct SessionLocation {
    node: Endpoint,
    session: u64,
    secret: SessionSecret,
}

/// A session that is sent on more often than this in one attempt to find it is nowhere.
const MOVES_MAX: u32 = 8;

/// What is needed to resume a session.
#[derive(Debug)]
pub(crate) struct Resumption {
    place: Mutex<SessionLocation>,
    /// The note that was followed last: what a node says since is newer.
    followed: Mutex<Option<Restored>>,
    /// How long the node keeps the session.
    patience: Duration,
    attempts: AtomicU32,
    recognises: bool,
    width: Width,
}

impl Resumption {
    /// The session was opened by the `attempt`th attempt, or found by it.
    pub(crate) fn new(
        SessionAddress { node, .. }: SessionAddress,
        session: u64,
        terms: &ResumeTerms,
        attempt: u32,
        stripes: u8,
    ) -> Resumption {
        let patience = Duration::from_millis(u64::from(terms.linger_ms));
        let place = SessionLocation { node, session, secret: terms.secret };
        Resumption {
            place: Mutex::new(place),
            followed: Mutex::default(),
            patience,
            attempts: AtomicU32::new(attempt),
            recognises: terms.expands,
            width: Width::new(stripes),
        }
    }

    pub(super) fn node(&self) -> Endpoint {
        self.place().node.clone()
    }

    /// The session is there now.
    fn is_at(&self, node: Endpoint, session: u64) {
        let mut place = self.place();
        (place.node, place.session) = (node, session);
    }

    /// The number and the secret of the session.
    pub(super) fn identity(&self) -> (u64, SessionSecret) {
        let place = self.place();
        (place.session, place.secret)
    }

    /// In a forked child: it is of another session of the same node, which the first attempt to
    /// connect has found.
    pub(super) fn becomes(&self, (session, secret): (u64, SessionSecret)) {
        let mut place = self.place();
        (place.session, place.secret) = (session, secret);
        self.attempts.store(1, Ordering::Relaxed);
        self.width.is_one();
    }

    fn place(&self) -> MutexGuard<'_, SessionLocation> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn width(&self) -> &Width {
        &self.width
    }

    /// Whether the worker can decode delta-encoded commands.
    pub(super) fn recognises(&self) -> bool {
        self.recognises
    }

    /// One attempt, and over how many connections.
    fn try_once(&self, received: u64, end: Instant) -> (Result<(Stream, u64), AttachError>, u8) {
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed) + 1;
        let (count, ready) = self.width.next();
        let left = end.saturating_duration_since(Instant::now());
        // Time has to be left for one connection where several do not come through.
        let deadline = Instant::now() + ATTEMPT.min(if count > 1 { left / 2 } else { left });
        let stripe = Stripe { number: 0, count };
        let SessionLocation { node, session, secret } = self.place().clone();
        let resume = Resume { session, secret, attempt, received, stripe };
        let connected = ready.map_or_else(|| greeting::connect(&node, count, deadline), Ok);
        let done = connected.and_then(|connected| greeting::resume(connected, resume, deadline));
        self.width.attempted(count, done.as_ref().err());
        (done, count)
    }

    /// Tries again and again. The answer is that of [`greeting::resume`].
    fn connect(&self, name: &str, received: u64) -> Result<(Stream, u64), AttachError> {
        let mut deadline = Instant::now() + self.patience;
        let (mut pause, mut moves, mut stored_on) = (PAUSE, 0, None);
        loop {
            let mut tried = self.try_once(received, deadline);
            if let Err(AttachError::Connect { .. } | AttachError::Stored { .. } | AttachError::Refused { .. }) =
                &tried.0
                && let Some(elsewhere) = self.follow_note(received, deadline)
            {
                tried = (elsewhere, 1);
            }
            let error = match tried {
                (Err(AttachError::Moved { node, session }), _) if moves < MOVES_MAX => {
                    moves += 1;
                    self.is_at(node, session);
                    continue;
                }
                (Err(AttachError::Stored { node }), _) => {
                    if stored_on.replace(node.clone()).is_none() {
                        stored::say(&node);
                    }
                    deadline = Instant::now() + self.patience.max(stored::PATIENCE);
                    std::thread::sleep(stored::PAUSE);
                    moves = 0;
                    continue;
                }
                // Its daemon was started anew meanwhile, and knows nothing of it until the restore.
                (Err(AttachError::Refused { node, .. }), _) if stored_on.as_ref() == Some(&node) => {
                    std::thread::sleep(stored::PAUSE);
                    moves = 0;
                    continue;
                }
                // One connection may come through where several do not.
                (Err(_), 2..) => continue,
                (Err(error @ AttachError::Connect { .. }), _) if Instant::now() + pause < deadline => error,
                (done, _) => {
                    if (pause > PAUSE || stored_on.is_some()) && done.is_ok() {
                        crate::abi::errors::say(format_args!("the connection to {name} is back"));
                    }
                    return done;
                }
            };
            if pause == PAUSE && stored_on.is_none() {
                crate::abi::errors::say(format_args!(
                    "the connection to {name} is cut: {error}; the program waits for up to {} s to resume \
                     there, Ctrl-C ends it",
                    self.patience.as_secs()
                ));
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(PAUSE_MAX);
            moves = 0;
        }
    }

    /// Tries the node to which a note says that the session was restored. It is the session's node
    /// from then on only if it knows of the session; else there is no answer.
    fn follow_note(&self, received: u64, end: Instant) -> Option<Result<(Stream, u64), AttachError>> {
        let former = self.place().clone();
        let note = restored::find(&former.secret.0, &former.node)?;
        if self.followed().as_ref() == Some(&note) {
            return None;
        }
        let Restored { node, session } = note.clone();
        self.is_at(node, session);
        let mut tried = self.try_once(received, end);
        if tried.0.is_err() && tried.1 > 1 {
            tried = self.try_once(received, end);
        }
        let answer = Answer::of(&tried.0);
        if answer != Answer::Silence {
            *self.followed() = Some(note);
        }
        if answer == Answer::Known {
            return Some(tried.0);
        }
        *self.place() = former;
        None
    }

    fn followed(&self) -> MutexGuard<'_, Option<Restored>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the node of a note says of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Known,
    /// The note is an old one.
    Unknown,
    Silence,
}

impl Answer {
    fn of<T>(tried: &Result<T, AttachError>) -> Answer {
        match tried {
            Ok(_) | Err(AttachError::Moved { .. } | AttachError::Stored { .. }) => Answer::Known,
            Err(AttachError::Connect { .. }) => Answer::Silence,
            Err(_) => Answer::Unknown,
        }
    }
}

impl Link {
    /// Makes the next connection, with no lock held meanwhile, and sends what the worker lacks.
    pub(super) fn resume<'a>(
        &'a self,
        inbox: MutexGuard<'a, Inbox>,
        mut receiver: Receiver,
    ) -> MutexGuard<'a, Inbox> {
        drop(inbox);
        self.take_rest(&mut receiver);
        let connected = match self.resumption() {
            // It may have been the session's end.
            _ if self.check().is_err() => Err(AttachError::NoVariable),
            Some(resumption) => resumption.connect(&self.name, self.received.load(Ordering::SeqCst)),
            None => Err(AttachError::NoVariable),
        };
        match connected {
            Ok((stream, position)) => self.go_on(receiver, Arc::new(stream), position),
            Err(error) => {
                self.lose(&error);
                receiver.silent = 0;
                self.stop_leading(&mut self.inbox(), receiver);
            }
        }
        self.inbox()
    }

    /// Takes what had come before the cut, and was not read: a write may have met it first.
    fn take_rest(&self, receiver: &mut Receiver) {
        while !self.is_lost()
            && let Ok(count @ 1..) = self.read(receiver, Wait::No)
        {
            self.received.fetch_add(count as u64, Ordering::SeqCst);
            self.deliver(&mut self.inbox(), receiver);
        }
    }

    /// Resumes both directions: `position` is how much of ours the worker has.
    fn go_on(&self, mut receiver: Receiver, stream: Arc<Stream>, position: u64) {
        watch_silence(&stream);
        let mut outbox = self.outbox();
        if let Err(error) = outbox.buffer.resume(position) {
            stream.shut_down();
            self.lose(&error);
        }
        self.acknowledged.fetch_max(position, Ordering::AcqRel);
        self.current.store(Arc::as_ptr(&stream).cast_mut(), Ordering::Release);
        outbox.stream = Arc::clone(&stream);
        receiver.stream = stream;
        receiver.silent = 0;
        self.cut.store(false, Ordering::Release);
        self.stop_leading(&mut self.inbox(), receiver);
        // Like any flush it may have to read, so no thread may lead now.
        self.flush(&mut outbox);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_counts_only_where_its_node_knows_the_session() {
        let node: Endpoint = "127.0.0.1:7310".parse().unwrap();
        let error = std::io::ErrorKind::ConnectionRefused.into();
        let cases = [
            (Ok(()), Answer::Known),
            (Err(AttachError::Moved { node: node.clone(), session: 3 }), Answer::Known),
            (Err(AttachError::Stored { node: node.clone() }), Answer::Known),
            (Err(AttachError::Refused { node: node.clone(), reason: "unknown".into() }), Answer::Unknown),
            (Err(AttachError::Connect { node, error }), Answer::Silence),
        ];
        for (tried, answer) in cases {
            assert_eq!(Answer::of(&tried), answer, "{tried:?}");
        }
    }
}
