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

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sluice_transport::Stream;
use sluice_transport::process::ProcessWatch;
use sluice_transport::tls::{ServerIdentity, TlsError};
use sluice_wire::address::{Endpoint, Fingerprint};
use sluice_wire::control::{
    Checkpoint, Control, Devices, DevicesRequest, EchoReady, EchoRequest, GpuFree, LeaseClaim, LeaseGranted,
    LeaseHere, LeaseName, LeaseQuestion, LeaseRefused, LeaseRegrant, LeaseRequest, LeaseResize, LeaseResized,
    LeaseRestored, LeaseResume, LeaseResumed, Migrate, Refused, SHARE_WHOLE_PPM, SessionRefused,
    SessionResumed, Suspend, Suspended, TokenProof, TokenWanted,
};
use sluice_wire::handshake::{
    HELLO_SIZE_MAX, Hello, LeaseToken, Once, Peer, Purpose, Resume, Stripe, Welcome,
};
use sluice_wire::spin::Wait;
use sluice_wire::{FrameDecoder, Kind, WireError};

use crate::admission::Place;
use crate::echo;
use crate::lease::{Ask, Resize};
use crate::registry::cuts::{Hold, Holding, Process};
use crate::registry::joined::NoLease;
use crate::registry::migrate::Moved;
use crate::registry::residence::Moves;
use crate::registry::resize::Size;
use crate::registry::{ClientOf, Granted, Registry, SessionRefusal, one_line, random};
use crate::silent::Accepted;
use crate::strangers;

/// A peer has this long for its first words.
pub(crate) const HELLO_PATIENCE: Duration = Duration::from_secs(5);
/// A control connection has this long for its first whole question,
const QUESTION_PATIENCE: Duration = Duration::from_secs(10);
/// this long between one answer and the next whole question while it has proved nothing,
const IDLE_PATIENCE: Duration = Duration::from_secs(30);
/// and this long, once it has, from the first byte of a message to its last.
const MESSAGE_PATIENCE: Duration = Duration::from_secs(10);
/// Most bytes of a message to a node: what is asked of one has a name and a grant of a server at
/// most.
const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// A peer that has proved nothing and takes none of what it is sent for this long is gone.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// The same for one that has proved something.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);
/// Characters of a program's name that are kept.
const NAME_MAX: usize = 256;

/// How a handshake of TLS begins: the type of its record, and a version of which this half never
/// changes (RFC 8446, section 5.1).
const TLS_HANDSHAKE: [u8; 2] = [22, 3];

/// The answer to whoever shows no certificate where one is needed.
const NO_CERTIFICATE: &str = "this node lends to holders of a certificate only; name yours, from an authority that the node \
     knows, in SLUICE_TLS_CERT and SLUICE_TLS_KEY";
/// The answer to whoever has another token than this node's.
const WRONG_TOKEN: &str = "the token in SLUICE_NODE_TOKEN is not this node's; whoever runs the node has it in the file of \
     `sluice node --token-file`";
/// The answer where an address is for sessions only.
const NO_LEASES_HERE: &str =
    "this address is for sessions of leases that the node has granted; ask for one where it listens";
/// The answer to a token that is none.
const NO_SUCH_LEASE: &str = "no lease has this token";

/// What an address is for.
#[derive(Clone, Debug)]
pub(crate) enum Door {
    Plain,
    Tls(ServerIdentity),
    /// Sessions of leases that were granted elsewhere.
    Sessions,
}

/// Serves a connection to its end.
pub(crate) fn serve(registry: &Registry, accepted: Accepted, place: Place) {
    let Accepted { mut stream, peer, door, deadline, .. } = accepted;
    let (peer, door) = (peer.as_str(), &door);
    let greeted = protect(&mut stream, door, deadline)
        .and_then(|protected| greet(&stream, deadline).map(|hello| (hello, protected)));
    let (hello, Protected { may_ask, shown }) = match greeted {
        Ok(greeted) => greeted,
        // Somebody looked whether anybody is here.
        Err(ConnectionError::Nothing) => return,
        Err(error) => {
            registry.strangers.say(peer, strangers::Kind::TurnedAway, &format!("turned away: {error}"));
            return;
        }
    };
    let Some(process) = process_of(registry, &hello) else {
        eprintln!("sluice node: {peer} disconnected: its process has ended");
        return;
    };
    // The end of a Unix socket is its peer's end.
    let resumes = !stream.is_unix() && process.space != 0;
    if (resumes || matches!(hello.purpose, Purpose::Resume(_)))
        && let Err(error) = sluice_transport::limit_unacknowledged(stream.as_fd())
    {
        eprintln!("sluice node: {peer} disconnected: {error}");
        return;
    }
    if !matches!(hello.purpose, Purpose::Control)
        && let Err(error) = stream.set_write_limit(WRITE_PATIENCE)
    {
        eprintln!("sluice node: {peer} disconnected: {error}");
        return;
    }
    // A session's; what is measured beside it has the system's own choice.
    if matches!(hello.purpose, Purpose::Session { .. } | Purpose::Resume(_)) {
        sluice_transport::keep_rate(stream.as_fd());
    }
    let ended = match hello.purpose {
        Purpose::Control => {
            let rights = Rights { resumes, may_ask, shown };
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
            session(registry, stream, (&token, once), client, place)
        }
        Purpose::Resume(resume) => go_on(registry, stream, &resume, peer),
        Purpose::Peer(other) => admit_peer(registry, stream, &other),
    };
    if let Err(error) = ended {
        eprintln!("sluice node: {peer} disconnected: {error}");
    }
}

/// The peer's process, watched from here if it can be seen. `None` if it has ended already: nobody
/// is there to come back after a cut.
fn process_of(registry: &Registry, hello: &Hello) -> Option<Process> {
    let is_here = hello.process_space != 0 && hello.process_space == registry.process_space;
    let watch = match is_here.then(|| ProcessWatch::new(hello.process)) {
        Some(Ok(None)) => return None,
        Some(Ok(watch)) => watch,
        // One that cannot be watched is waited for after a cut.
        Some(Err(_)) | None => None,
    };
    Some(Process { number: hello.process, space: hello.process_space, watch: watch.map(Arc::new) })
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

/// How a connection is protected.
struct Protected {
    /// The peer may ask for leases.
    may_ask: bool,
    /// The node's certificate, as the peer has seen it.
    shown: Option<Fingerprint>,
}

/// Shakes hands, if the address is one for TLS.
fn protect(stream: &mut Stream, door: &Door, deadline: Instant) -> Result<Protected, ConnectionError> {
    let identity = match door {
        Door::Plain => return Ok(Protected { may_ask: true, shown: None }),
        Door::Sessions => return Ok(Protected { may_ask: false, shown: None }),
        Door::Tls(identity) => identity,
    };
    match stream.accept_tls(identity, deadline) {
        Ok((may_ask, shown)) => Ok(Protected { may_ask, shown: Some(shown) }),
        Err(error) => {
            if let Some(TlsError::PlainText) = TlsError::of(&error) {
                refuse_plain_text(stream, deadline);
            }
            Err(error.into())
        }
    }
}

/// Tells a client of Sluice what is wrong, in words that it understands.
fn refuse_plain_text(stream: &Stream, deadline: Instant) {
    // Not which fingerprint: in plain text anybody could say this.
    let reason = "this node speaks TLS; write its fingerprint behind the address, as `sluice node` prints it there, or say \
                  tls:HOST:PORT with its authority in SLUICE_TLS_CA";
    let mut bytes = Welcome::to_bytes();
    if Control::from(Refused { reason: reason.into() }).frame(&mut bytes).is_ok() {
        say_last(stream, &bytes, deadline);
    }
}

/// Says so much, and waits until the peer has hung up: a socket that is closed with bytes unread
/// takes the answer along.
fn say_last(mut stream: &Stream, bytes: &[u8], deadline: Instant) {
    if stream.write_all(bytes).is_ok() {
        stream.shut_down_writes();
        let mut rest = [0; 256];
        while limit_read(stream, deadline).is_ok()
            && stream.read(&mut rest, Wait::Asleep).is_ok_and(|count| count > 0)
        {}
    }
}

/// Has a read end by the deadline; an error once that has passed.
fn limit_read(stream: &Stream, deadline: Instant) -> Result<(), ConnectionError> {
    let left = deadline.saturating_duration_since(Instant::now());
    // The limit counts microseconds, and none of them is no limit.
    if left.as_micros() == 0 { Err(ConnectionError::Silent) } else { Ok(stream.set_read_limit(left)?) }
}

/// Reads the `Hello` and answers it, whatever version it is of.
fn greet(mut stream: &Stream, deadline: Instant) -> Result<Hello, ConnectionError> {
    stream.set_write_limit(ANSWER_PATIENCE)?;
    let hello = read_hello(stream, deadline);
    match hello {
        Err(
            ConnectionError::Wire(WireError::NotSluice) | ConnectionError::Io(_) | ConnectionError::Nothing,
        ) => {}
        // Who gets this in a handshake knows that it was not cut.
        Err(ConnectionError::Tls) => say_last(stream, &Welcome::to_bytes(), deadline),
        _ => stream.write_all(&Welcome::to_bytes())?,
    }
    stream.set_read_limit(Duration::ZERO)?;
    hello
}

/// Reads exactly the `Hello`: what follows it belongs to the worker.
fn read_hello(stream: &Stream, deadline: Instant) -> Result<Hello, ConnectionError> {
    let mut bytes = [0_u8; HELLO_SIZE_MAX];
    let mut have = 0;
    loop {
        if bytes[..have].starts_with(&TLS_HANDSHAKE) {
            return Err(ConnectionError::Tls);
        }
        if let Some((hello, _)) = Hello::from_bytes(&bytes[..have])? {
            return Ok(hello);
        }
        // The length first, then what it counts.
        let want = match bytes[..have].first_chunk() {
            None => 2,
            Some(length) => 2 + usize::from(u16::from_le_bytes(*length)),
        };
        limit_read(stream, deadline)?;
        let Some(space) = bytes.get_mut(have..want) else { return Err(WireError::NotSluice.into()) };
        match stream.read(space, Wait::Asleep) {
            Ok(0) if have == 0 => return Err(ConnectionError::Nothing),
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(got) => have += got,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Err(ConnectionError::Silent);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Hands the socket to a worker: to one that was started for an earlier attempt of the same client,
/// or to a new one, and stays until that has ended.
fn session(
    registry: &Registry,
    stream: Stream,
    (token, once): (&LeaseToken, Once),
    client: ClientOf,
    mut place: Place,
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
            registry.serve_session(session);
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
fn go_on(registry: &Registry, stream: Stream, resume: &Resume, peer: &str) -> Result<(), ConnectionError> {
    let keys = stream.keys()?;
    if resume.stripe != Stripe::ONLY {
        stream.limit_unsent();
    }
    if let Some(moved) = registry.moved_session(resume) {
        return send_on(&stream, &moved);
    }
    let Err(refusal) = registry.resume_session(resume, peer, stream.as_fd(), keys) else { return Ok(()) };
    if let Some(moved) = registry.moved_session(resume) {
        return send_on(&stream, &moved);
    }
    let reason = refusal.to_string();
    send(&stream, SessionRefused { reason: reason.clone() }.into())?;
    Err(ConnectionError::Refused(reason))
}

/// Hands the socket of another node to the worker that copies into whose memory; the worker
/// answers.
fn admit_peer(registry: &Registry, stream: Stream, peer: &Peer) -> Result<(), ConnectionError> {
    let keys = stream.keys()?;
    if registry.admit_peer(peer, stream.as_fd(), keys) {
        return Ok(());
    }
    let reason = "no session expects copies by that number and token here";
    send(&stream, SessionRefused { reason: reason.into() }.into())?;
    Err(ConnectionError::Refused(reason.into()))
}

/// What the peer of a control connection may do.
#[derive(Clone, Copy)]
struct Rights {
    /// Come back on another connection for what it holds.
    resumes: bool,
    /// Ask for leases, and about the node: with certificates of clients, that takes one.
    may_ask: bool,
    /// The certificate that it has seen, which a proof of the node's token is for.
    shown: Option<Fingerprint>,
}

/// Answers questions and holds at most one lease, which ends when its holder does. An error comes
/// with whether the peer had proved anything.
fn control(
    registry: &Registry,
    stream: Stream,
    process: Process,
    rights: Rights,
    (peer, place): (&str, Place),
) -> Result<(), (ConnectionError, bool)> {
    stream.read_ahead();
    let stream = Arc::new(stream);
    let line = Arc::new(Line { stream: Arc::clone(&stream), writing: Mutex::new(()) });
    let token = registry.token.as_ref().map_or(Token::Unasked, |_| Token::Wanted);
    let mut held =
        HeldLease { registry, line, process, peer, rights, token, place, hold: None, is_over: false };
    answer_questions(&mut held, &stream).map_err(|error| (error, held.place.is_proven()))
}

fn answer_questions(held: &mut HeldLease<'_>, mut stream: &Stream) -> Result<(), ConnectionError> {
    let mut decoder = FrameDecoder::new();
    let mut deadline = Some(Instant::now() + QUESTION_PATIENCE);
    loop {
        while let Some(frame) = decoder.next_frame()? {
            if frame.header.kind != Kind::Control {
                return Err(WireError::FrameKind(frame.header.kind as u8).into());
            }
            match Control::decode(frame.header.op, frame.payload)? {
                Control::EchoRequest(request) if held.registry.lease_of(&request.token).is_some() => {
                    held.prove()?;
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

/// How far the peer has proved that it has the node's token: once, since whoever guesses is to
/// begin anew each time.
///
/// ```text
/// Wanted -- a question --> Challenged -- its proof --> Shown
///                                     -- another ----> Wrong
/// ```
enum Token {
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
    stream: Arc<Stream>,
    /// Held by whoever writes.
    writing: Mutex<()>,
}

impl Line {
    fn send(&self, message: Control) -> Result<(), ConnectionError> {
        let mut bytes = Vec::new();
        message.frame(&mut bytes)?;
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((&*self.stream).write_all(&bytes)?)
    }

    /// As far as that is possible without waiting: a peer that takes nothing does not hear it, and
    /// has to come back.
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

fn send(mut stream: &Stream, message: Control) -> Result<(), ConnectionError> {
    let mut bytes = Vec::new();
    message.frame(&mut bytes)?;
    Ok(stream.write_all(&bytes)?)
}

/// The lease of a control connection. Dropped, it ends, unless the connection was cut: then its
/// holder is waited for.
struct HeldLease<'a> {
    registry: &'a Registry,
    line: Arc<Line>,
    process: Process,
    /// As messages name it.
    peer: &'a str,
    rights: Rights,
    token: Token,
    place: Place,
    hold: Option<Hold>,
    /// The holder has said so.
    is_over: bool,
}

impl HeldLease<'_> {
    /// What is to be said to this, if anything.
    fn answer(&mut self, question: Control) -> Result<Option<Control>, ConnectionError> {
        if let Some(moved) = token_of(&question).and_then(|token| self.registry.moved_lease(token)) {
            return Ok(Some(moved.for_holder()));
        }
        let answer = match question {
            Control::LeaseRequest(_) | Control::LeaseClaim(_) | Control::StatusRequest(_)
                if !self.rights.may_ask =>
            {
                refused(if self.line.stream.is_unix() { NO_LEASES_HERE } else { NO_CERTIFICATE })
            }
            Control::LeaseResize(LeaseResize { lease: LeaseName::Numbered(_), .. })
            | Control::Suspend(Suspend { lease: LeaseName::Numbered(_), .. })
            | Control::Migrate(_)
            | Control::LeaseRestored(_)
                if !self.rights.may_ask =>
            {
                refused(if self.line.stream.is_unix() { NO_LEASES_HERE } else { NO_CERTIFICATE })
            }
            Control::LeaseRequest(_)
            | Control::StatusRequest(_)
            | Control::LeaseResize(LeaseResize { lease: LeaseName::Numbered(_), .. })
            | Control::Suspend(Suspend { lease: LeaseName::Numbered(_), .. })
            | Control::Migrate(_)
            | Control::LeaseRestored(_)
                if !matches!(self.token, Token::Unasked | Token::Shown) =>
            {
                self.want_token()
            }
            Control::TokenProof(TokenProof { proof }) => {
                self.check_token(&proof)?;
                return Ok(None);
            }
            Control::LeaseRequest(_) | Control::LeaseClaim(_) | Control::LeaseResume(_)
                if self.hold.is_some() =>
            {
                refused("this connection holds a lease already")
            }
            Control::LeaseRequest(request) => self.grant(request)?,
            Control::LeaseClaim(claim) => self.claim(claim)?,
            Control::LeaseResume(LeaseResume { token }) => self.resume(&token)?,
            Control::LeaseResize(resize) => self.resize(&resize),
            Control::Suspend(suspend) => self.suspend(&suspend),
            Control::Migrate(migrate) => self.migrate(&migrate),
            Control::LeaseQuestion(LeaseQuestion { token }) if self.registry.has_lease(&token) => {
                LeaseHere {}.into()
            }
            Control::LeaseQuestion(_) => refused(NO_SUCH_LEASE),
            Control::LeaseRestored(restored) => self.send_to_restored(restored),
            // Whoever brings it: the server has signed it.
            Control::LeaseRegrant(LeaseRegrant { grant }) => match self.registry.regrant(&grant) {
                Ok((lease, size)) => resized(lease, size),
                Err(refusal) => refused(&refusal.to_string()),
            },
            Control::LeaseEnd(_) => {
                self.is_over = true;
                return Ok(None);
            }
            Control::ProcessEnded(ended) => {
                if let Some(hold) = &self.hold {
                    self.registry.process_ended(hold.lease, ended.process);
                }
                return Ok(None);
            }
            Control::StatusRequest(_) => match self.registry.server() {
                None => {
                    self.registry.ask_what_keeps_all();
                    self.registry.status().into()
                }
                Some(server) => {
                    refused(&format!("this node lends through {server}; set SLUICE_SERVER to that"))
                }
            },
            Control::DevicesRequest(DevicesRequest { token }) => {
                if self.registry.lease_of(&token).is_some() {
                    self.prove()?;
                }
                self.devices(&token)
            }
            Control::EchoRequest(_) => refused(NO_SUCH_LEASE),
            Control::UsageRequest(_) => {
                match self.hold.as_ref().and_then(|hold| self.registry.usage(hold.lease)) {
                    Some(usage) => usage.into(),
                    None => refused("this connection holds no lease"),
                }
            }
            Control::ProcessesRequest(_) => {
                match self.hold.as_ref().and_then(|hold| self.registry.processes(hold.lease)) {
                    Some(processes) => processes.into(),
                    None => refused("this connection holds no lease"),
                }
            }
            _ => refused("a node does not answer that"),
        };
        Ok(Some(answer))
    }

    fn want_token(&mut self) -> Control {
        if let Token::Wanted = self.token {
            let challenge = random();
            self.token = Token::Challenged(challenge);
            return TokenWanted { challenge }.into();
        }
        refused(WRONG_TOKEN)
    }

    /// The peer has shown that it may be here. Where there is no place for it, it is told so before
    /// its connection ends.
    fn prove(&mut self) -> Result<(), ConnectionError> {
        if let Err(full) = self.place.prove() {
            self.line.send(refused(&full.to_string()))?;
            return Err(ConnectionError::Refused(full.to_string()));
        }
        Ok(self.line.stream.set_write_limit(WRITE_PATIENCE)?)
    }

    fn check_token(&mut self, proof: &[u8; 32]) -> Result<(), ConnectionError> {
        let Some(token) = &self.registry.token else { return Ok(()) };
        let shown = self.rights.shown;
        let is_shown =
            matches!(&self.token, Token::Challenged(challenge) if token.is_proof(challenge, shown, proof));
        if !is_shown {
            self.registry.strangers.say(self.peer, strangers::Kind::WrongToken, "has shown a wrong token");
        }
        self.token = if is_shown { Token::Shown } else { Token::Wrong };
        if is_shown { self.prove() } else { Ok(()) }
    }

    fn grant(&mut self, request: LeaseRequest) -> Result<Control, ConnectionError> {
        if let Some(server) = self.registry.server() {
            let reason =
                format!("this node lends through {server}; set SLUICE_SERVER to that (and not --node)");
            return Ok(LeaseRefused { reason, free: Vec::new() }.into());
        }
        let ask = Ask {
            gpus: request.gpus,
            share_ppm: request.share_ppm,
            memory: request.memory,
            limit_ppm: request.limit_ppm,
            promised_ppm: SHARE_WHOLE_PPM,
            // Tiers are a server's.
            premium: false,
        };
        let granted = self.registry.grant(
            request.once,
            ask,
            u64::from(request.kernel_timeout_ms),
            short_name(&request.name),
            Some(self.holding()?),
        );
        self.granted(granted, || self.registry.free())
    }

    fn claim(&mut self, claim: LeaseClaim) -> Result<Control, ConnectionError> {
        let (name, holding) = (short_name(&claim.name), Some(self.holding()?));
        let kernel_timeout_ms = u64::from(claim.kernel_timeout_ms);
        let granted = self.registry.claim(claim.once, &claim.grant, kernel_timeout_ms, name, holding);
        self.granted(granted, Vec::new)
    }

    fn holding(&self) -> io::Result<Holding> {
        Holding::new(&self.line, self.process.space)
    }

    /// The answer to who asks for a lease; where there is none, `free` says what it could ask for.
    fn granted(
        &mut self,
        granted: Result<(Granted, Option<Hold>), NoLease>,
        free: impl FnOnce() -> Vec<GpuFree>,
    ) -> Result<Control, ConnectionError> {
        let (Granted { lease, token, devices }, hold) = match granted {
            Ok(granted) => granted,
            // Whoever finds the connection at its end asks again, and finds the lease gone.
            Err(NoLease::Ending) => return Err(ConnectionError::Refused(NoLease::Ending.to_string())),
            Err(refusal) => return Ok(LeaseRefused { reason: refusal.to_string(), free: free() }.into()),
        };
        self.hold = hold;
        if let Err(full) = self.prove() {
            // The peer does not hear of a lease, so nobody comes back for it.
            self.is_over = true;
            return Err(full);
        }
        let linger = if self.rights.resumes { self.registry.linger } else { Duration::ZERO };
        let linger_ms = u32::try_from(linger.as_millis()).unwrap_or(u32::MAX);
        let is_here = self.process.space != 0 && self.process.space == self.registry.process_space;
        let nearby = self.registry.nearby.clone().filter(|_| is_here && !self.line.stream.is_unix());
        Ok(LeaseGranted { lease, token, devices, linger_ms, nearby }.into())
    }

    fn resume(&mut self, token: &LeaseToken) -> Result<Control, ConnectionError> {
        self.hold = self.registry.resume_lease(token, self.holding()?);
        if self.hold.is_some() {
            self.prove()?;
        }
        Ok(match (&self.hold, self.registry.moved_lease(token)) {
            (Some(_), _) => LeaseResumed {}.into(),
            (None, Some(moved)) => moved.for_holder(),
            (None, None) => refused("no lease has this token any more; has the node been started anew?"),
        })
    }

    /// The lease or session that is meant, and its lease, where it is for this node to change it.
    fn named(&self, name: &LeaseName) -> Result<(u64, u64), String> {
        if let Some(server) = self.registry.server() {
            return Err(format!(
                "this node lends through {server}, which decides what its leases have: set SLUICE_SERVER to that, and name \
                 the lease by the server's number"
            ));
        }
        let (number, lease) = match *name {
            LeaseName::Own(ref token) => {
                let lease = self.registry.lease_of(token).ok_or_else(|| NO_SUCH_LEASE.to_owned())?;
                (lease, Some(lease))
            }
            LeaseName::Numbered(number) => (number, self.registry.lease_numbered(number)),
        };
        let nothing = || format!("there is no lease or session {number} here; `sluice sessions` lists them");
        lease.map(|lease| (number, lease)).ok_or_else(nothing)
    }

    fn suspend(&self, asked: &Suspend) -> Control {
        let changed = self.named(&asked.lease).and_then(|(number, _)| {
            self.registry.set_suspended(number, asked.suspended).map_err(|refusal| refusal.to_string())
        });
        match changed {
            Ok(sessions) => {
                let Moves { swapped, notes } = self.registry.await_moves(&sessions);
                Suspended { sessions, swapped, notes }.into()
            }
            Err(reason) => refused(&reason),
        }
    }

    fn migrate(&self, asked: &Migrate) -> Control {
        let &Migrate { ref lease, gpu, ref node, dry_run } = asked;
        let migrated = self.named(lease).and_then(|(_, lease)| {
            let registry = self.registry;
            self.protects(node.as_deref())?;
            let answer = match node {
                _ if dry_run => registry.plan_move(lease, node.as_deref(), gpu).map(Control::from),
                None => registry.migrate(lease, gpu.map(|gpu| gpu as usize)).map(Control::from),
                Some(node) => registry.migrate_to(lease, node, gpu).map(Control::from),
            };
            answer.map_err(|refusal| refusal.to_string())
        });
        migrated.unwrap_or_else(|reason| refused(&reason))
    }

    fn send_to_restored(&self, restored: LeaseRestored) -> Control {
        if let Err(reason) = self.protects(Some(&restored.node)) {
            return refused(&reason);
        }
        match self.registry.note_restored(&restored) {
            Ok(()) => restored.into(),
            Err(reason) => refused(&reason),
        }
    }

    /// A program that reaches this node by TLS is not sent on to one that speaks plain text.
    fn protects(&self, node: Option<&str>) -> Result<(), String> {
        match node.map(str::parse) {
            Some(Ok(Endpoint::Tcp(address))) if self.rights.shown.is_some() => {
                Err(format!("this node is reached by TLS, and {address} would be by plain text"))
            }
            _ => Ok(()),
        }
    }

    fn resize(&self, asked: &LeaseResize) -> Control {
        let lease = self.named(&asked.lease).map(|(_, lease)| lease);
        let &LeaseResize { share_ppm, memory, limit_ppm, .. } = asked;
        let resize = Resize { share_ppm, memory, limit_ppm, promised_ppm: None };
        let answer = lease.and_then(|lease| {
            let size = self.registry.resize(lease, &resize).map_err(|refusal| refusal.to_string())?;
            Ok(resized(lease, size))
        });
        answer.unwrap_or_else(|reason: String| refused(&reason))
    }

    fn devices(&self, token: &LeaseToken) -> Control {
        let lease = self.registry.lease_of(token);
        match lease.and_then(|lease| self.registry.lease_status(lease)) {
            Some((devices, sessions)) => Devices { devices, sessions }.into(),
            None => refused(NO_SUCH_LEASE),
        }
    }
}

impl Drop for HeldLease<'_> {
    fn drop(&mut self) {
        let Some(hold) = &self.hold else { return };
        if self.rights.resumes && !self.is_over {
            self.registry.await_holder(hold, &self.process);
        } else {
            self.registry.end_held(hold);
        }
    }
}

/// The token of the lease that a question is about, where it names one.
fn token_of(question: &Control) -> Option<&LeaseToken> {
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

/// Tells a client where its session is now.
fn send_on(stream: &Stream, moved: &Moved) -> Result<(), ConnectionError> {
    send(stream, moved.for_client())
}

/// A program's name, fit for lists.
pub(crate) fn short_name(name: &str) -> String {
    one_line(name).chars().take(NAME_MAX).collect()
}

fn resized(lease: u64, Size { share_ppm, limit_ppm, memory }: Size) -> Control {
    LeaseResized { lease, share_ppm, limit_ppm, memory }.into()
}

fn refused(reason: &str) -> Control {
    Refused { reason: reason.into() }.into()
}
