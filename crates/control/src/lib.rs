//! A control connection to a node: leases and questions, one request and one answer at a time, with
//! deadlines.
//!
//! `sluice` and the client's NVML use it. A lease lives as long as the connection on which it was
//! granted, or as the [`Keeper`] that comes back for it after a cut.

mod copying;

mod keeper;

mod trust;

mod echo;

mod opening;

mod session;

mod peer;

mod moving;

use std::fmt;
use std::io::{self, Write};
use std::net::ToSocketAddrs;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use sluice_transport::Stream;
use sluice_transport::tls::{ClientIdentity, TlsError};
use sluice_transport::token::NodeToken;
use sluice_wire::address::{Endpoint, SessionAddress};
use sluice_wire::control::{Control, Devices, LeaseEnd, SessionStatus, TokenProof, tell_apart};
use sluice_wire::handshake::{Hello, LeaseToken, Purpose, Welcome};
use sluice_wire::spin::Wait;
use sluice_wire::{FrameDecoder, Kind, WireError};

pub use copying::Copying;
pub use keeper::Keeper;
pub use moving::Departure;
pub use opening::open_lease;
pub use peer::connect_peer;
pub use session::RawSession;
pub use sluice_transport::opening::PATIENCE;
pub use trust::{CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE, TOKEN_VARIABLE};

/// All addresses of a host together get this long.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// A node answers from memory; one that takes longer is none.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// What has it copy memory is answered when that is done: hundreds of gigabytes.
const MOVE_TIME_MAX: Duration = Duration::from_secs(3600);

/// A lease that has moved more often than this while it was asked for goes round in circles.
const MOVES_MAX: u32 = 8;

pub use echo::Echo;

/// Why a node could not be asked. The text names the node and the way out.
#[derive(Debug)]
pub struct Failure {
    pub node: String,
    pub cause: Cause,
}

#[derive(Debug)]
pub enum Cause {
    /// The host's name has no address.
    UnknownHost(io::Error),
    /// The host is there, and no node is.
    NobodyListens,
    /// The connection failed, or broke, also within a handshake of TLS.
    Connection(io::Error),
    /// The handshake of TLS failed: it may be another node.
    Tls(io::Error),
    /// Nothing says how the node is to be known, or who this user is.
    Trust(String),
    /// What answers is no node, or one of another version.
    Protocol(WireError),
    /// The node said no, for this reason.
    Refused(String),
    /// A message that does not answer the question.
    UnexpectedAnswer,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = &self.node;
        match &self.cause {
            Cause::UnknownHost(error) => {
                write!(f, "{node}: unknown host ({error}); is the name right, and written HOST:PORT?")
            }
            Cause::NobodyListens => {
                write!(f, "{node}: connection refused; start a node there with `sluice node --listen {node}`")
            }
            Cause::Connection(error) if is_timeout(error) => {
                write!(
                    f,
                    "{node}: no answer; is it up, is it a Sluice node, does a firewall let TCP through?"
                )
            }
            Cause::Connection(error) | Cause::Tls(error) => write!(f, "{node}: {error}"),
            Cause::Trust(error) => write!(f, "{node}: {error}"),
            Cause::Protocol(error) => write!(f, "{node}: {error}"),
            Cause::Refused(reason) => write!(f, "{node}: {reason}"),
            Cause::UnexpectedAnswer => write!(f, "{node}: the answer does not fit the question"),
        }
    }
}

impl std::error::Error for Failure {}

impl Failure {
    /// Whether another process answers where the node was.
    pub(crate) fn is_another_node(&self) -> bool {
        matches!(&self.cause, Cause::Tls(error) if TlsError::is_another_node(error))
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

/// A connection on which a node has said who it is.
///
/// Dropped, it ends its lease.
#[derive(Debug)]
pub struct Connection {
    node: Endpoint,
    stream: Stream,
    decoder: FrameDecoder,
    /// A lease was granted or resumed on it.
    holds_lease: bool,
    /// What the node has asked while it owed an answer.
    unasked: Vec<Control>,
}

impl Connection {
    /// Connects and shakes hands. A node whose certificate was checked by its authority is known by
    /// its fingerprint from then on ([`Connection::node`]).
    pub fn open(node: &Endpoint) -> Result<Connection, Failure> {
        Connection::open_as(node, sluice_transport::process::space())
    }

    /// Connects without a word by which the node could watch this process: its end means nothing.
    pub(crate) fn open_unwatched(node: &Endpoint) -> Result<Connection, Failure> {
        Connection::open_as(node, 0)
    }

    fn open_as(node: &Endpoint, space: u64) -> Result<Connection, Failure> {
        let failure = |cause| Failure { node: node.place(), cause };
        let (stream, node) = connect(node).map_err(failure)?;
        let mut connection = Connection {
            node,
            stream,
            decoder: FrameDecoder::new(),
            holds_lease: false,
            unasked: Vec::new(),
        };
        greet(&connection.stream, &mut connection.decoder, Purpose::Control, space).map_err(failure)?;
        Ok(connection)
    }

    /// Asks, and takes the one answer. A node's `Refused` is a failure like any other. Where the
    /// lease in question has moved, the node that has it now is asked, on a connection that
    /// replaces this one.
    pub fn ask(&mut self, question: impl Into<Control>) -> Result<Control, Failure> {
        let question = question.into();
        for _ in 0..MOVES_MAX {
            let token = || trust::token().map_err(Cause::Trust);
            match self.ask_with(&question, token)? {
                Control::LeaseMoved(moved) => {
                    let unknown = |error| self.failure(Cause::Trust(format!("{error}")));
                    let node: Endpoint = moved.node.parse().map_err(unknown)?;
                    let is_protected = |node: &Endpoint| matches!(node, Endpoint::Tls { .. });
                    if is_protected(&self.node) && !is_protected(&node) {
                        let text = format!("it sends this lease on to {node}, which speaks no TLS");
                        return Err(self.failure(Cause::Trust(text)));
                    }
                    *self = Connection::open(&node)?;
                }
                answer => return Ok(answer),
            }
        }
        Err(self.failure(Cause::UnexpectedAnswer))
    }

    /// As [`Connection::ask`], of this node alone, whatever it says of others.
    pub fn ask_once(&mut self, question: impl Into<Control>) -> Result<Control, Failure> {
        self.ask_with(&question.into(), || trust::token().map_err(Cause::Trust))
    }

    /// Asks once, and shows this token if the node wants one.
    fn ask_with(
        &mut self,
        question: &Control,
        token: impl FnOnce() -> Result<NodeToken, Cause>,
    ) -> Result<Control, Failure> {
        let answer = match self.exchange(question) {
            Ok(Control::TokenWanted(wanted)) => token()
                .and_then(|token| self.prove(&token, &wanted.challenge))
                .and_then(|()| self.exchange(question)),
            answer => answer,
        };
        match answer {
            Ok(Control::Refused(refused)) => Err(self.failure(Cause::Refused(refused.reason))),
            Ok(answer) => Ok(answer),
            Err(cause) => Err(self.failure(cause)),
        }
    }

    /// Shows that this user has the node's token.
    fn prove(&mut self, token: &NodeToken, challenge: &[u8; 32]) -> Result<(), Cause> {
        let shown = match &self.node {
            Endpoint::Tls { fingerprint, .. } => *fingerprint,
            Endpoint::Tcp(_) | Endpoint::Unix(_) => None,
        };
        self.send(TokenProof { proof: token.proof(challenge, shown) })
    }

    /// Ends the connection, and with it its lease, and waits until the node has done so: what the
    /// lease held is free when this returns.
    pub fn close(mut self) {
        self.end_lease();
        self.stream.shut_down_writes();
        let deadline = Instant::now() + ANSWER_TIME_MAX;
        // Ends with the node's end of file, or with an error: either way there is nothing left to
        // wait for.
        while read(&self.stream, self.decoder.space(READ_SIZE), deadline).is_ok() {}
    }

    fn end_lease(&mut self) {
        if std::mem::take(&mut self.holds_lease) {
            // A node that does not receive it waits for this process to come back, or to end.
            let _ = self.send(LeaseEnd {});
        }
    }

    /// The lease lives on without this connection.
    pub(crate) fn forget_lease(&mut self) {
        self.holds_lease = false;
    }

    /// Where it goes, and by which fingerprint it knows the node: a process that connects next
    /// needs no authority.
    pub fn node(&self) -> &Endpoint {
        &self.node
    }

    /// Says something that is not answered.
    pub(crate) fn send(&mut self, message: impl Into<Control>) -> Result<(), Cause> {
        let mut bytes = Vec::new();
        message.into().frame(&mut bytes).map_err(Cause::Protocol)?;
        self.write(&bytes)
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), Cause> {
        Ok((&self.stream).write_all(bytes)?)
    }

    /// Whether [`Connection::receive`] would find something that no descriptor tells of.
    pub(crate) fn has_unread(&self) -> bool {
        !self.unasked.is_empty() || self.stream.has_unread()
    }

    /// Reads once, and gives out the messages that are whole then.
    pub(crate) fn receive(&mut self) -> Result<Vec<Control>, Cause> {
        if !self.unasked.is_empty() {
            return Ok(std::mem::take(&mut self.unasked));
        }
        let deadline = Instant::now() + ANSWER_TIME_MAX;
        let count = read(&self.stream, self.decoder.space(READ_SIZE), deadline)?;
        self.decoder.received(count);
        std::iter::from_fn(|| self.next_message().transpose()).collect()
    }

    fn next_message(&mut self) -> Result<Option<Control>, Cause> {
        let Some(frame) = self.decoder.next_frame().map_err(Cause::Protocol)? else { return Ok(None) };
        if frame.header.kind != Kind::Control {
            return Err(Cause::UnexpectedAnswer);
        }
        Control::decode(frame.header.op, frame.payload).map(Some).map_err(Cause::Protocol)
    }

    /// The failure of a question whose answer was of the wrong kind.
    pub fn unexpected(&self) -> Failure {
        self.failure(Cause::UnexpectedAnswer)
    }

    /// A failure that names this connection's node.
    pub fn failure(&self, cause: Cause) -> Failure {
        Failure { node: self.node.place(), cause }
    }

    fn exchange(&mut self, question: &Control) -> Result<Control, Cause> {
        let mut bytes = Vec::new();
        question.frame(&mut bytes).map_err(Cause::Protocol)?;
        self.write(&bytes)?;
        let limit = match question {
            Control::Suspend(_) | Control::Migrate(_) => MOVE_TIME_MAX,
            _ => ANSWER_TIME_MAX,
        };
        let deadline = Instant::now() + limit;
        loop {
            match self.next_message()? {
                // The keeper of the lease answers this later.
                Some(watch @ Control::ProcessWatch(_)) => self.unasked.push(watch),
                Some(answer) => {
                    let holds = matches!(answer, Control::LeaseGranted(_) | Control::LeaseResumed(_));
                    self.holds_lease |= holds;
                    return Ok(answer);
                }
                None => {}
            }
            let count = read(&self.stream, self.decoder.space(READ_SIZE), deadline)?;
            self.decoder.received(count);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.end_lease();
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

const READ_SIZE: usize = 16 << 10;

impl From<io::Error> for Cause {
    fn from(error: io::Error) -> Cause {
        Cause::Connection(error)
    }
}

/// Connects; the answer also says how the node is known from now on.
fn connect(node: &Endpoint) -> Result<(Stream, Endpoint), Cause> {
    let identity = match node {
        Endpoint::Tls { .. } => trust::identity(node).map_err(Cause::Trust)?,
        _ => None,
    };
    connect_as(identity.as_ref(), node)
}

fn connect_as(identity: Option<&ClientIdentity>, node: &Endpoint) -> Result<(Stream, Endpoint), Cause> {
    let deadline = Instant::now() + CONNECT_TIME_MAX;
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Cause::NobodyListens,
        _ if TlsError::of(&error).is_some() && !TlsError::is_cut(&error) => Cause::Tls(error),
        _ => Cause::Connection(error),
    };
    let known = |address: &str| address.to_socket_addrs().map(drop).map_err(Cause::UnknownHost);
    let (stream, node) = match node {
        Endpoint::Unix(path) => (Stream::connect_unix(path).map_err(failed)?, node.clone()),
        Endpoint::Tcp(address) => {
            known(address)?;
            (Stream::connect_tcp(address, deadline).map_err(failed)?, node.clone())
        }
        Endpoint::Tls { address, fingerprint } => {
            let trust = trust::trust(address, *fingerprint).map_err(Cause::Trust)?;
            known(address)?;
            let connected = Stream::connect_tls(address, &trust, identity, deadline);
            let (stream, shown) = connected.map_err(failed)?;
            (stream, Endpoint::Tls { address: address.clone(), fingerprint: Some(shown) })
        }
    };
    stream.set_write_limit(ANSWER_TIME_MAX)?;
    Ok((stream, node))
}

/// Says who this is and what for; what is read beyond the welcome goes into the decoder.
fn greet(
    mut stream: &Stream,
    decoder: &mut FrameDecoder,
    purpose: Purpose,
    process_space: u64,
) -> Result<(), Cause> {
    let deadline = Instant::now() + ANSWER_TIME_MAX;
    stream.write_all(&Hello { purpose, process: std::process::id(), process_space }.to_bytes())?;
    let mut bytes = Vec::new();
    loop {
        match Welcome::from_bytes(&bytes).map_err(Cause::Protocol)? {
            None => {
                let mut piece = [0; 256];
                let count = read(stream, &mut piece, deadline)?;
                bytes.extend_from_slice(&piece[..count]);
            }
            Some(size) => {
                decoder.push(&bytes[size..]);
                return Ok(());
            }
        }
    }
}

/// At least one byte, or an error once the deadline has passed or the peer has gone.
fn read(stream: &Stream, buffer: &mut [u8], deadline: Instant) -> Result<usize, Cause> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Cause::Connection(io::ErrorKind::TimedOut.into()));
    }
    // The limit counts microseconds, and none of them is no limit.
    stream.set_read_limit(left.max(Duration::from_micros(1)))?;
    match stream.read(buffer, Wait::Asleep)? {
        0 => Err(Cause::Connection(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the connection was closed by what listens there; is it a Sluice node?",
        ))),
        count => Ok(count),
    }
}

/// The leases that this process runs under, one on each of its nodes: the node and the token. Empty
/// where there is none.
pub fn own_leases() -> Vec<(Endpoint, LeaseToken)> {
    let addresses = sluice_transport::own_sessions().unwrap_or_default();
    addresses.into_iter().map(|SessionAddress { node, token }| (node, token)).collect()
}

/// The devices of several leases as one program has them, with their sessions.
pub fn joined(leases: Vec<Devices>) -> Devices {
    let mut all = Devices { devices: Vec::new(), sessions: Vec::new() };
    for lease in leases {
        let first = all.devices.len() as u32;
        let sessions = lease.sessions.into_iter();
        all.sessions.extend(
            sessions.map(|session| SessionStatus { gpu: session.gpu.saturating_add(first), ..session }),
        );
        all.devices.extend(lease.devices);
    }
    let mut uuids: Vec<[u8; 16]> = all.devices.iter().map(|device| device.uuid).collect();
    tell_apart(&mut uuids);
    all.devices.iter_mut().zip(uuids).for_each(|(device, uuid)| device.uuid = uuid);
    all
}

/// `GPU-` and the digits in their usual groups, as NVIDIA's tools write it.
pub fn uuid_text(uuid: [u8; 16]) -> String {
    let mut text = String::from("GPU-");
    for (at, byte) in uuid.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// The branch of NVIDIA's drivers that brought a CUDA version: programs compare it with what they
/// need.
pub fn driver_version(cuda_version: u32) -> String {
    let branch = match cuda_version {
        13_000.. => 580,
        12_080.. => 570,
        12_040.. => 550,
        12_000.. => 525,
        _ => 450,
    };
    format!("{branch}.65.06")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_has_its_usual_groups() {
        let uuid: [u8; 16] = std::array::from_fn(|at| at as u8);
        assert_eq!(uuid_text(uuid), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
