//! A control connection: its questions, read one by one and answered.

use std::io;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sluice_transport::Stream;
use sluice_wire::address::Fingerprint;
use sluice_wire::control::{
    Checkpoint, Control, DevicesRequest, EchoReady, EchoRequest, LeaseName, LeaseQuestion, LeaseResize,
    LeaseResume, Migrate, Suspend,
};
use sluice_wire::handshake::LeaseToken;
use sluice_wire::spin::Wait;
use sluice_wire::{FrameDecoder, Kind, WireError};

use super::held::{HeldLease, refused};
use super::{
    ConnectionError, IDLE_PATIENCE, MESSAGE_BYTES_MAX, MESSAGE_PATIENCE, QUESTION_PATIENCE, arrivals,
    checkpoints, limit_read,
};
use crate::admission::ConnectionSlot;
use crate::echo;
use crate::registry::Registry;
use crate::registry::cuts::{self, FOR_EVER, Process, Terms};

/// What the peer of a control connection may do.
#[derive(Clone, Copy)]
pub(super) struct Rights {
    /// Come back on another connection for what it holds.
    pub(super) resumes: bool,
    /// Ask for leases, and about the node: with certificates of clients, that takes one.
    pub(super) may_ask: bool,
    /// The certificate that it has seen, which a proof of the node's token is for.
    pub(super) shown: Option<Fingerprint>,
}

/// Answers questions and holds at most one lease, which ends when its holder does. An error comes
/// with whether the peer had proved anything.
pub(super) fn control(
    registry: &Registry,
    stream: Stream,
    process: Process,
    rights: Rights,
    (peer, place): (&str, ConnectionSlot),
) -> Result<(), (ConnectionError, bool)> {
    stream.read_ahead();
    let stream = Arc::new(stream);
    let line = Arc::new(Line::new(&stream));
    let mut held = HeldLease::new(registry, line, process, rights, (peer, place));
    answer_questions(&mut held, &stream).map_err(|error| (error, held.place.is_proven()))
}

/// Continues with a connection that holds a lease and was handed over by the program before this
/// one.
pub(super) fn control_again(
    registry: &Registry,
    (lease, socket): (u64, OwnedFd),
    process: Process,
    terms: &Terms,
    place: ConnectionSlot,
) -> Result<(), ConnectionError> {
    let stream = Arc::new(Stream::from(socket));
    let line = Arc::new(Line::new(&stream));
    let rights = Rights { resumes: terms.resumes, may_ask: terms.may_ask, shown: None };
    let mut held = HeldLease::new(registry, line, process, rights, (&terms.peer, place));
    held.hold = registry.hold_again(lease, held.holding()?);
    answer_questions(&mut held, &stream)
}

fn answer_questions(held: &mut HeldLease<'_>, mut stream: &Stream) -> Result<(), ConnectionError> {
    let mut decoder = FrameDecoder::new();
    let is_proven = held.place.is_proven();
    let mut deadline = (!is_proven).then(|| Instant::now() + QUESTION_PATIENCE);
    loop {
        while let Some(frame) = decoder.next_frame()? {
            if frame.header.kind != Kind::Control {
                return Err(WireError::FrameKind(frame.header.kind as u8).into());
            }
            let question = Control::decode(frame.header.op, frame.payload)?;
            held.step(name_of(&question));
            match question {
                Control::EchoRequest(request) if held.registry.lease_of(&request.token).is_some() => {
                    held.prove()?;
                    // It changes nothing, and takes its time.
                    held.step = None;
                    stream.set_read_limit(Duration::ZERO)?;
                    match echo::Transfers::asked(&request) {
                        Some(mut transfers) => {
                            held.line.send(EchoReady {}.into())?;
                            transfers.serve(&mut stream)?;
                        }
                        None => held.line.send(refused(echo::LIMITS))?,
                    }
                }
                Control::MoveOffer(offer) => arrivals::receive(held, (&mut decoder, stream), offer)?,
                Control::Checkpoint(Checkpoint { lease }) => {
                    checkpoints::give(held, (&mut decoder, stream), &lease)?;
                }
                question => {
                    if let Some(answer) = held.answer(question)? {
                        held.line.send(answer)?;
                    }
                }
            }
            deadline = if held.place.is_proven() { None } else { Some(Instant::now() + IDLE_PATIENCE) };
        }
        held.line.is_half_heard.store(!decoder.is_between_frames(), Relaxed);
        held.step = None;
        match decoder.missing()? {
            missing if missing > MESSAGE_BYTES_MAX => return Err(ConnectionError::TooLarge(missing)),
            _ if !decoder.is_between_frames() && deadline.is_none() => {
                deadline = Some(Instant::now() + MESSAGE_PATIENCE);
            }
            _ => {}
        }
        match deadline {
            Some(deadline) => limit_read(stream, deadline).map_err(|_| ConnectionError::Slow)?,
            None => stream.set_read_limit(Duration::ZERO)?,
        }
        // A protected connection is not handed over, and its stream may have read more already.
        if !held.rights.resumes && !stream.is_protected() {
            await_more(held, stream, deadline);
        }
        let space = decoder.space(4096);
        match stream.read(space, Wait::Asleep) {
            Ok(0) => return Ok(()),
            Ok(got) => decoder.received(got),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Err(ConnectionError::Slow);
            }
            // A holder that is killed resets its connection: the usual end of a lease.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads nothing while the state of the node is handed over, from a peer that would not say it
/// again: what it says then is read by the next program.
fn await_more(held: &mut HeldLease<'_>, stream: &Stream, deadline: Option<Instant>) {
    let left = deadline.map_or(FOR_EVER, |until| until.saturating_duration_since(Instant::now()));
    cuts::wait([Some(stream.as_fd()), None], left);
    held.step("a question");
}

/// What is being done, as an operator reads it who waits for its end.
fn name_of(question: &Control) -> &'static str {
    match question {
        Control::MoveOffer(_) => "a session that comes from another node",
        Control::Checkpoint(_) => "a checkpoint",
        Control::Migrate(_) => "a move",
        Control::Suspend(_) => "a suspension",
        _ => "a question",
    }
}

/// How far the peer has proved that it has the node's token: once, since a client that guesses has
/// to begin anew each time.
///
/// ```text
/// Wanted -- a question --> Challenged -- its proof --> Shown
///                                     -- another ----> Wrong
/// ```
pub(super) enum Token {
    /// The node has none.
    Unasked,
    Wanted,
    Challenged([u8; 32]),
    Shown,
    Wrong,
}

/// The way to a peer of a control connection, for all who have something to say.
#[derive(Debug)]
pub(crate) struct Line {
    pub(super) stream: Arc<Stream>,
    /// Held by the thread that writes.
    writing: Mutex<()>,
    /// The peer has said the beginning of something.
    is_half_heard: AtomicBool,
}

impl Line {
    fn new(stream: &Arc<Stream>) -> Line {
        let stream = Arc::clone(stream);
        Line { stream, writing: Mutex::new(()), is_half_heard: AtomicBool::new(false) }
    }

    /// The way to a holder that is not there: it comes back on another connection.
    pub(crate) fn nowhere() -> io::Result<Arc<Line>> {
        let (end, _) = UnixStream::pair()?;
        Ok(Arc::new(Line::new(&Arc::new(Stream::from(end)))))
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Whether another program can continue with it.
    pub(crate) fn can_be_passed(&self) -> bool {
        matches!(self.stream.keys(), Ok(None)) && !self.is_half_heard.load(Relaxed)
    }

    pub(super) fn send(&self, message: Control) -> Result<(), ConnectionError> {
        let mut bytes = Vec::new();
        message.frame(&mut bytes)?;
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((&*self.stream).write_all(&bytes)?)
    }

    /// As far as that is possible without waiting: a peer that takes nothing does not receive it,
    /// and has to come back.
    pub(crate) fn send_now(&self, message: impl Into<Control>) {
        let mut bytes = Vec::new();
        let Ok(_writing) = self.writing.try_lock() else { return };
        if message.into().frame(&mut bytes).is_ok()
            && !self.stream.write(&bytes).is_ok_and(|count| count == bytes.len())
        {
            // Half a frame is worse than none.
            self.stream.shut_down();
        }
    }

    /// Ends the connection.
    pub(crate) fn shut_down(&self) {
        self.stream.shut_down();
    }
}

pub(super) fn send(mut stream: &Stream, message: Control) -> Result<(), ConnectionError> {
    let mut bytes = Vec::new();
    message.frame(&mut bytes)?;
    Ok(stream.write_all(&bytes)?)
}

/// The token of the lease that a question is about, where it names one.
pub(super) fn token_of(question: &Control) -> Option<&LeaseToken> {
    match question {
        Control::LeaseResume(LeaseResume { token })
        | Control::DevicesRequest(DevicesRequest { token })
        | Control::EchoRequest(EchoRequest { token, .. })
        | Control::LeaseResize(LeaseResize { lease: LeaseName::Own(token), .. })
        | Control::Suspend(Suspend { lease: LeaseName::Own(token), .. })
        | Control::LeaseQuestion(LeaseQuestion { token })
        | Control::Migrate(Migrate { lease: LeaseName::Own(token), .. }) => Some(token),
        _ => None,
    }
}
