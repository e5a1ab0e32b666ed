//! The beginning of a connection: both sides say who they are, and a session begins or resumes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use sluice_cuda::*;
use sluice_transport::opening::Attempts;
use sluice_transport::tls::{TlsError, Trust};
use sluice_transport::{NoSession, Rings, STRIPES_MAX, Side, Stream};
use sluice_wire::address::{
    Endpoint, FORK_CLONES, FORK_VARIABLE, PACK_VARIABLE, RECOGNISE_VARIABLE, SESSION_VARIABLE,
    STRIPES_VARIABLE, SessionAddress,
};
use sluice_wire::control::{
    Control, SessionCloned, SessionMoved, SessionNotCloned, SessionOpen, SessionOpened, ShareMemory,
    SharedMemoryTaken,
};
use sluice_wire::handshake::{CloneOf, HELLO_SIZE_MAX, Hello, Purpose, Resume, Stripe, Welcome};
use sluice_wire::spin::Wait;
use sluice_wire::{FrameDecoder, Kind, WireError};

use crate::abi::ids::DEVICES_MAX;
use crate::link::reservation::Reservations;
use crate::link::{record, threads};

/// Why there is no session.
#[derive(Debug)]
pub(crate) enum AttachError {
    NoVariable,
    BadVariable,
    /// The file that names the lease cannot be read.
    NoFile {
        path: PathBuf,
        error: io::Error,
    },
    Connect {
        node: Endpoint,
        error: io::Error,
    },
    /// What answers there is not the node.
    AnotherNode {
        node: Endpoint,
        error: io::Error,
    },
    Protocol {
        node: Endpoint,
        error: WireError,
    },
    Refused {
        node: Endpoint,
        reason: String,
    },
    /// The node has given the session, or the lease, to another one.
    Moved {
        node: Endpoint,
        /// The session's number there.
        session: u64,
    },
    /// The session, or the lease, is in a checkpoint.
    Stored {
        node: Endpoint,
    },
    /// A forked child gets no session like its parent's.
    NotCloned {
        reason: String,
        needs_memory: bool,
    },
    /// `CUDA_VISIBLE_DEVICES` leaves none.
    NothingVisible,
    TooMany,
}

impl From<NoSession> for AttachError {
    fn from(none: NoSession) -> AttachError {
        match none {
            NoSession::Unset => AttachError::NoVariable,
            NoSession::Unreadable(path, error) => AttachError::NoFile { path, error },
            NoSession::Malformed => AttachError::BadVariable,
        }
    }
}

impl AttachError {
    /// What `cuInit` answers.
    pub(crate) fn code(&self) -> CUresult {
        match self {
            AttachError::NoVariable | AttachError::NothingVisible | AttachError::TooMany => {
                CUresult::NO_DEVICE
            }
            AttachError::BadVariable
            | AttachError::NoFile { .. }
            | AttachError::Connect { .. }
            | AttachError::AnotherNode { .. } => CUresult::SYSTEM_NOT_READY,
            AttachError::Protocol { .. } => CUresult::SYSTEM_DRIVER_MISMATCH,
            AttachError::NotCloned { needs_memory: true, .. } => CUresult::OUT_OF_MEMORY,
            AttachError::NotCloned { .. } => CUresult::NOT_SUPPORTED,
            AttachError::Refused { .. } | AttachError::Moved { .. } | AttachError::Stored { .. } => {
                CUresult::DEVICE_UNAVAILABLE
            }
        }
    }
}

impl std::fmt::Display for AttachError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AttachError::NoVariable => {
                write!(
                    f,
                    "no GPU: {SESSION_VARIABLE} is not set; start the program with `sluice run -- PROGRAM`"
                )
            }
            AttachError::BadVariable => {
                write!(
                    f,
                    "{SESSION_VARIABLE} does not name a lease; start the program with `sluice run -- PROGRAM`"
                )
            }
            AttachError::NoFile { path, error } => {
                write!(
                    f,
                    "{}, which {SESSION_VARIABLE} names, cannot be read ({error}); is the volume mounted that \
                     `sluice hold` writes it to?",
                    path.display()
                )
            }
            AttachError::Connect { node, error } if is_of_worker(error) => {
                write!(f, "the node {}: {error}; its messages may say why", node.place())
            }
            AttachError::Connect { node, error } => {
                let node = node.place();
                write!(f, "the node {node} cannot be reached ({error}); is it running? try `sluice doctor`")
            }
            AttachError::NothingVisible => {
                write!(f, "CUDA_VISIBLE_DEVICES names no GPU of this lease; its GPUs count from 0")
            }
            AttachError::TooMany => write!(f, "a program can have {DEVICES_MAX} GPUs at most"),
            AttachError::AnotherNode { node, error } => write!(f, "the node {}: {error}", node.place()),
            AttachError::Protocol { node, error } => write!(f, "the node {}: {error}", node.place()),
            AttachError::Refused { node, reason } => {
                let node = node.place();
                write!(f, "the node {node} refused the session: {reason}")
            }
            AttachError::NotCloned { reason, .. } => f.write_str(reason),
            AttachError::Stored { node } => {
                write!(f, "the session was taken off the node {} into a checkpoint", node.place())
            }
            AttachError::Moved { node, .. } => {
                write!(f, "the session has moved to the node {} and on from there, in a circle", node.place())
            }
        }
    }
}

/// The node has answered, and the worker, to which it has passed the connection on, has not.
#[derive(Debug)]
struct WorkerSilent;

impl std::fmt::Display for WorkerSilent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("it answers, but the worker of this session does not")
    }
}

impl std::error::Error for WorkerSilent {}

fn is_of_worker(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|cause| cause.is::<WorkerSilent>())
}

/// What it means that nothing came after the node's welcome.
fn of_worker(error: AttachError) -> AttachError {
    match error {
        AttachError::Connect { node, error } if error.kind() == io::ErrorKind::TimedOut => {
            AttachError::Connect { node, error: io::Error::new(error.kind(), WorkerSilent) }
        }
        other => other,
    }
}

/// How long one on this machine may take to open the session: a driver initialises GPUs, and makes
/// a context on each, one after the other and one process after the other. Elsewhere another
/// attempt finds the session that is being opened.
const OPENING: Duration = Duration::from_secs(90);

/// Connections to a node that have said nothing yet. The node closes those that stay so for five
/// seconds.
#[derive(Debug)]
pub(crate) struct Connected(Greeting, Vec<Greeting>);

/// Makes this many connections, at least one.
pub(crate) fn connect(node: &Endpoint, count: u8, deadline: Instant) -> Result<Connected, AttachError> {
    let (first, others) = all_at_once(node, 0, 1..count, |_| Greeting::connect(node, deadline))?;
    Ok(Connected(first, others))
}

/// Resumes a session whose connection was lost, `resume.received` bytes into the worker's stream,
/// over these connections, which are as many as `resume.stripe` counts. The answer is the new
/// stream and how much of our stream the worker has.
pub(crate) fn resume(
    Connected(first, others): Connected,
    resume: Resume,
    deadline: Instant,
) -> Result<(Stream, u64), AttachError> {
    let node = first.node.clone();
    let greet = |(number, greeting): (u8, Greeting)| {
        let mut greeting = Greeting { deadline, ..greeting };
        greeting.greet(Purpose::Resume(Resume { stripe: Stripe { number, ..resume.stripe }, ..resume }))?;
        Ok(greeting)
    };
    let (mut greeting, others) = all_at_once(&node, (0, first), (1..).zip(others), greet)?;
    match greeting.next_control().map_err(of_worker)? {
        Control::SessionResumed(resumed) => {
            if !others.is_empty() {
                let others: Vec<Stream> = others.into_iter().map(|other| other.stream).collect();
                std::iter::once(&greeting.stream).chain(&others).for_each(Stream::limit_unsent);
                greeting.stream.stripe(others);
            }
            Ok((greeting.stream, resumed.received))
        }
        other => Err(greeting.refused(other)),
    }
}

/// Has the node clone a session, for a child that is about to be forked. With the answer comes the
/// connection that stands for the child until it has one of its own.
pub(crate) fn clone(node: &Endpoint, of: CloneOf) -> Result<(SessionCloned, Stream), AttachError> {
    let mut greeting = Greeting::connect(node, Instant::now() + CONNECTING)?;
    greeting.greet(Purpose::Clone(of))?;
    greeting.deadline = Instant::now() + CLONING;
    match greeting.next_control()? {
        Control::SessionCloned(cloned) => Ok((cloned, greeting.stream)),
        Control::SessionNotCloned(SessionNotCloned { reason, needs_memory }) => {
            Err(AttachError::NotCloned { reason, needs_memory })
        }
        other => Err(greeting.refused(other)),
    }
}

/// A node that says nothing for this time when a session is to be cloned is not there.
const CONNECTING: Duration = Duration::from_secs(10);
/// It gives up a copy that takes longer than the larger part of the time for which it waits for its
/// clients, and says so.
const CLONING: Duration = Duration::from_secs(150);

/// Runs it for each at the same time, since each takes some round trips: the first here, the others
/// in threads of their own.
fn all_at_once<A: Send, B: Send>(
    node: &Endpoint,
    first: A,
    others: impl Iterator<Item = A>,
    run: impl std::ops::Fn(A) -> Result<B, AttachError> + Sync,
) -> Result<(B, Vec<B>), AttachError> {
    let unconnected = |error| AttachError::Connect { node: node.clone(), error };
    let run = &run;
    std::thread::scope(|scope| {
        let others: Vec<_> = others.map(|item| threads::spawn(scope, move || run(item))).collect();
        let first = run(first)?;
        let join = |spawned: io::Result<ScopedJoinHandle<'_, _>>| match spawned.map(ScopedJoinHandle::join) {
            Ok(Ok(done)) => done,
            Ok(Err(_)) => Err(unconnected(io::Error::other("its thread has ended"))),
            Err(error) => Err(unconnected(error)),
        };
        Ok((first, others.into_iter().map(join).collect::<Result<Vec<B>, AttachError>>()?))
    })
}

/// Round trip from which on saving bytes is worth CPU time.
const FAR: Duration = Duration::from_millis(1);

/// Round trip from which on one connection may hold less than the link.
const FARTHER: Duration = Duration::from_millis(5);

/// Connections that are enough for such a link.
const STRIPES: u8 = 8;

/// A connection on which a session is being opened or resumed.
#[derive(Debug)]
pub(crate) struct Greeting {
    pub(crate) node: Endpoint,
    pub(crate) stream: Stream,
    pub(crate) decoder: FrameDecoder,
    /// What came beside the bytes.
    descriptor: Option<OwnedFd>,
    deadline: Instant,
    /// From the first bytes to their answer.
    round_trip: Duration,
    /// Positions of both streams: bytes of the session after the greeting.
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

impl Greeting {
    pub(crate) fn connect(node: &Endpoint, deadline: Instant) -> Result<Greeting, AttachError> {
        let node = node.clone();
        let stream = match &node {
            Endpoint::Tcp(host) => Stream::connect_tcp(host, deadline),
            Endpoint::Tls { address, fingerprint: Some(fingerprint) } => {
                let trust = Trust::Fingerprint(*fingerprint);
                Stream::connect_tls(address, &trust, None, deadline).map(|(stream, _)| stream)
            }
            // `sluice run` checked the certificate and passes its fingerprint.
            Endpoint::Tls { fingerprint: None, .. } => return Err(AttachError::BadVariable),
            Endpoint::Unix(path) => Stream::connect_unix(path),
        };
        match stream {
            Ok(stream) => {
                let decoder = FrameDecoder::new();
                Ok(Greeting {
                    node,
                    stream,
                    decoder,
                    descriptor: None,
                    deadline,
                    round_trip: Duration::ZERO,
                    sent: 0,
                    received: 0,
                })
            }
            // Any other failure of a handshake may be that of a link that changes bytes.
            Err(error) if TlsError::is_another_node(&error) => Err(AttachError::AnotherNode { node, error }),
            Err(error) => Err(AttachError::Connect { node, error }),
        }
    }

    /// Asks for the session; `stream` is what an earlier attempt has said of it.
    pub(crate) fn open(
        mut self,
        address: &SessionAddress,
        ranges: &Reservations,
        attempts: &mut Attempts,
        stream: &mut Option<Vec<u8>>,
    ) -> Result<(Greeting, SessionOpened), AttachError> {
        let once = attempts.once();
        self.greet(Purpose::Session { token: address.token, once })?;
        attempts.heard();
        let received = if once.attempt > 0 { self.heard_before()? } else { 0 };
        // What is recorded comes as it would from anywhere: a driver that stages data has other
        // addresses left.
        if matches!(self.node, Endpoint::Unix(_)) && !record::is_wanted() {
            self.share_memory()?;
        }
        let message = || SessionOpen {
            ranges: ranges.offers(),
            recognises: self.recognises(),
            unpacks: self.packs(),
            forks: std::env::var(FORK_VARIABLE).is_ok_and(|wanted| wanted == FORK_CLONES),
        };
        let said = match stream {
            Some(said) => said,
            None => stream.insert(self.frame(message())?),
        };
        let Some(rest) = said.get(received..) else { return Err(self.protocol(WireError::NotSluice)) };
        self.send(rest)?;
        self.sent += said.len() as u64;
        if matches!(self.node, Endpoint::Unix(_)) {
            self.deadline = Instant::now() + OPENING;
        }
        match self.next_control()? {
            Control::SessionOpened(opened) => Ok((self, opened)),
            other => Err(self.refused(other)),
        }
    }

    /// How much of our stream the session's worker has had on earlier connections.
    fn heard_before(&mut self) -> Result<usize, AttachError> {
        match self.next_control()? {
            Control::SessionResumed(resumed) => {
                // The streams begin behind this.
                self.received = 0;
                Ok(usize::try_from(resumed.received).unwrap_or(usize::MAX))
            }
            other => Err(self.refused(other)),
        }
    }

    /// Says whether commands are delta encoded.
    fn recognises(&self) -> bool {
        self.saves_bytes(RECOGNISE_VARIABLE)
    }

    /// Says whether large data are compressed where the link proves to be slow.
    pub(crate) fn packs(&self) -> bool {
        self.saves_bytes(PACK_VARIABLE)
    }

    /// Whether bytes are worth the time to save them: on a link that is not of this room, unless
    /// the user says otherwise.
    fn saves_bytes(&self, variable: &str) -> bool {
        let leaves_machine = !matches!(self.node, Endpoint::Unix(_));
        match std::env::var(variable).as_deref() {
            Ok("off") => false,
            Ok("on") => leaves_machine,
            _ => leaves_machine && self.round_trip >= FAR,
        }
    }

    /// How many connections large copies are worth.
    pub(crate) fn stripes(&self) -> u8 {
        let leaves_machine = !matches!(self.node, Endpoint::Unix(_));
        let said = std::env::var(STRIPES_VARIABLE).ok().and_then(|text| text.parse::<u8>().ok());
        match said {
            _ if !leaves_machine => 1,
            Some(count) => count.clamp(1, STRIPES_MAX as u8),
            None if self.round_trip >= FARTHER => STRIPES,
            None => 1,
        }
    }

    fn greet(&mut self, purpose: Purpose) -> Result<(), AttachError> {
        let process_space = sluice_transport::process::space();
        // On a Unix socket it is nothing.
        sluice_transport::keep_rate(self.stream.as_fd());
        sluice_transport::make_room(self.stream.as_fd());
        let said = Instant::now();
        self.send(&Hello { purpose, process: std::process::id(), process_space }.to_bytes())?;
        self.await_welcome()?;
        self.round_trip = said.elapsed();
        Ok(())
    }

    /// What an answer means that is not the one asked for.
    fn refused(&self, answer: Control) -> AttachError {
        let reason = match answer {
            Control::SessionRefused(refused) => refused.reason,
            Control::Refused(refused) => refused.reason,
            Control::LeaseStored(_) => return AttachError::Stored { node: self.node.clone() },
            Control::SessionMoved(SessionMoved { node, session }) => match node.parse() {
                Ok(node)
                    if matches!(self.node, Endpoint::Tls { .. }) && !matches!(node, Endpoint::Tls { .. }) =>
                {
                    format!("it sends the session on to {node}, which speaks no TLS")
                }
                Ok(node) => return AttachError::Moved { node, session },
                Err(error) => error.to_string(),
            },
            _ => return self.protocol(WireError::NotSluice),
        };
        AttachError::Refused { node: self.node.clone(), reason }
    }

    /// Asks for shared memory and takes it, if there is any to be had: a socket is good enough.
    fn share_memory(&mut self) -> Result<(), AttachError> {
        self.say(ShareMemory {})?;
        match self.next_control()? {
            Control::SharedMemory(answer) if answer.offered => {}
            Control::SharedMemory(_) => return Ok(()),
            other => return Err(self.refused(other)),
        }
        // No descriptor comes through a forwarder.
        let memory = self.descriptor.take().and_then(|file| Rings::open(file.as_fd()).ok());
        self.say(SharedMemoryTaken { taken: memory.is_some() })?;
        if let Some(memory) = memory {
            self.stream.share(memory, Side::Client, threads::cores());
        }
        Ok(())
    }

    fn say(&mut self, message: impl Into<Control>) -> Result<(), AttachError> {
        let frame = self.frame(message)?;
        self.sent += frame.len() as u64;
        self.send(&frame)
    }

    fn frame(&self, message: impl Into<Control>) -> Result<Vec<u8>, AttachError> {
        let mut frame = Vec::new();
        message.into().frame(&mut frame).map_err(|error| self.protocol(error))?;
        Ok(frame)
    }

    fn send(&self, mut bytes: &[u8]) -> Result<(), AttachError> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let left = self.left()?;
                    self.stream.wait_writable(false, left).map_err(|error| self.failed(error))?;
                }
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(())
    }

    /// Reads the welcome, and nothing beyond it: that may be of a stream over several connections.
    fn await_welcome(&mut self) -> Result<(), AttachError> {
        let mut bytes = [0; HELLO_SIZE_MAX];
        let mut have = 0;
        loop {
            if Welcome::from_bytes(&bytes[..have]).map_err(|error| self.protocol(error))?.is_some() {
                return Ok(());
            }
            // The length first, then what it counts.
            let want = match bytes[..have].first_chunk() {
                None => 2,
                Some(length) => 2 + usize::from(u16::from_le_bytes(*length)),
            };
            let Some(space) = bytes.get_mut(have..want) else {
                return Err(self.protocol(WireError::NotSluice));
            };
            have += self.read(|stream| stream.read(space, Wait::No))?;
        }
    }

    fn next_control(&mut self) -> Result<Control, AttachError> {
        loop {
            match self.decoder.next_frame() {
                Ok(Some(frame)) if frame.header.kind == Kind::Control => {
                    let control = Control::decode(frame.header.op, frame.payload);
                    return control.map_err(|error| self.protocol(error));
                }
                Ok(Some(frame)) => {
                    let error = WireError::FrameKind(frame.header.kind as u8);
                    return Err(self.protocol(error));
                }
                Ok(None) => {}
                Err(error) => return Err(self.protocol(error)),
            }
            let mut decoder = std::mem::take(&mut self.decoder);
            let mut descriptor = None;
            // No more than the frame, as with the welcome.
            let missing = decoder.missing().map_err(|error| self.protocol(error))?;
            let count = self.read(|stream| {
                let (count, came) = stream.read_with_descriptor(&mut decoder.space(missing)[..missing])?;
                descriptor = came;
                Ok(count)
            });
            decoder.received(*count.as_ref().unwrap_or(&0));
            self.decoder = decoder;
            self.descriptor = descriptor.or(self.descriptor.take());
            self.received += count? as u64;
        }
    }

    fn read(&self, mut once: impl FnMut(&Stream) -> io::Result<usize>) -> Result<usize, AttachError> {
        loop {
            match once(&self.stream) {
                Ok(0) => return Err(self.failed(io::ErrorKind::ConnectionAborted.into())),
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let left = self.left()?;
                    self.stream.wait_readable(left).map_err(|error| self.failed(error))?;
                }
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    /// Time left; an error once there is none.
    fn left(&self) -> Result<Duration, AttachError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(self.failed(io::ErrorKind::TimedOut.into())) } else { Ok(left) }
    }

    fn failed(&self, error: io::Error) -> AttachError {
        AttachError::Connect { node: self.node.clone(), error }
    }

    fn protocol(&self, error: WireError) -> AttachError {
        AttachError::Protocol { node: self.node.clone(), error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_is_silent_is_not_a_node_that_is_away() {
        let failed = |kind: io::ErrorKind| {
            let node = Endpoint::Tcp("gpu1:7583".into());
            of_worker(AttachError::Connect { node, error: kind.into() }).to_string()
        };
        let text = failed(io::ErrorKind::TimedOut);
        assert!(text.starts_with("the node gpu1:7583: it answers, but the worker"), "{text}");
        let text = failed(io::ErrorKind::ConnectionReset);
        assert!(text.starts_with("the node gpu1:7583 cannot be reached"), "{text}");
    }
}
