//! A control connection to a node: leases and questions, one request and one answer at a time, with deadlines.
//!
//! `sluice` and the client's NVML use it. A lease lives as long as the connection on which it was granted, or as the
//! [`Keeper`] that comes back for it after a cut.

mod keeper;

mod echo;

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use sluice_wire::address::{Endpoint, SESSION_VARIABLE, SessionAddress};
use sluice_wire::control::{Control, LeaseEnd};
use sluice_wire::handshake::{Hello, LeaseToken, Purpose, Welcome};
use sluice_wire::{FrameDecoder, Kind, WireError};

pub use keeper::Keeper;

/// All addresses of a host together get this long.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// A node answers from memory; one that takes longer is none.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

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
    /// The connection failed, or broke.
    Connection(io::Error),
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
            Cause::Connection(error) => write!(f, "{node}: {error}"),
            Cause::Protocol(error) => write!(f, "{node}: {error}"),
            Cause::Refused(reason) => write!(f, "{node}: {reason}"),
            Cause::UnexpectedAnswer => write!(f, "{node}: the answer does not fit the question"),
        }
    }
}

impl std::error::Error for Failure {}

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
}

impl Connection {
    /// Connects and shakes hands.
    pub fn open(node: &Endpoint) -> Result<Connection, Failure> {
        let failure = |cause| Failure { node: node.to_string(), cause };
        let stream = Stream::connect(node).map_err(failure)?;
        let mut connection =
            Connection { node: node.clone(), stream, decoder: FrameDecoder::new(), holds_lease: false };
        connection.greet().map_err(failure)?;
        Ok(connection)
    }

    fn greet(&mut self) -> Result<(), Cause> {
        let hello = Hello {
            purpose: Purpose::Control,
            process: std::process::id(),
            process_space: sluice_transport::process::space(),
        };
        let deadline = Instant::now() + ANSWER_TIME_MAX;
        self.stream.send(&hello.to_bytes())?;
        let mut bytes = Vec::new();
        loop {
            match Welcome::from_bytes(&bytes).map_err(Cause::Protocol)? {
                None => {
                    let mut piece = [0; 256];
                    let count = self.stream.receive(&mut piece, deadline)?;
                    bytes.extend_from_slice(&piece[..count]);
                }
                Some(size) => {
                    self.decoder.push(&bytes[size..]);
                    return Ok(());
                }
            }
        }
    }

    /// Asks, and takes the one answer. A node's `Refused` is a failure like any other.
    pub fn ask(&mut self, question: impl Into<Control>) -> Result<Control, Failure> {
        match self.exchange(&question.into()) {
            Ok(Control::Refused(refused)) => Err(self.failure(Cause::Refused(refused.reason))),
            Ok(answer) => Ok(answer),
            Err(cause) => Err(self.failure(cause)),
        }
    }

    /// Ends the connection, and with it its lease, and waits until the node has done so: what the lease held is free
    /// when this returns.
    pub fn close(mut self) {
        self.end_lease();
        let half_closed = match &self.stream {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
        let deadline = Instant::now() + ANSWER_TIME_MAX;
        if half_closed.is_ok() {
            // Ends with the node's end of file, or with an error: either way there is nothing left to wait for.
            while self.stream.receive(self.decoder.space(READ_SIZE), deadline).is_ok() {}
        }
    }

    fn end_lease(&mut self) {
        if std::mem::take(&mut self.holds_lease) {
            // A node that does not hear it waits for this process to come back, or to end.
            let _ = self.send(LeaseEnd {});
        }
    }

    /// The lease lives on without this connection.
    pub(crate) fn forget_lease(&mut self) {
        self.holds_lease = false;
    }

    pub(crate) fn node(&self) -> &Endpoint {
        &self.node
    }

    /// Says something that is not answered.
    pub(crate) fn send(&mut self, message: impl Into<Control>) -> Result<(), Cause> {
        let mut bytes = Vec::new();
        message.into().frame(&mut bytes).map_err(Cause::Protocol)?;
        self.stream.send(&bytes)
    }

    /// Reads once, and gives out the messages that are whole then.
    pub(crate) fn receive(&mut self) -> Result<Vec<Control>, Cause> {
        let deadline = Instant::now() + ANSWER_TIME_MAX;
        let count = self.stream.receive(self.decoder.space(READ_SIZE), deadline)?;
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
        Failure { node: self.node.to_string(), cause }
    }

    fn exchange(&mut self, question: &Control) -> Result<Control, Cause> {
        let mut bytes = Vec::new();
        question.frame(&mut bytes).map_err(Cause::Protocol)?;
        self.stream.send(&bytes)?;
        let deadline = Instant::now() + ANSWER_TIME_MAX;
        loop {
            match self.next_message()? {
                // Asked by the node meanwhile, of nobody who could answer now.
                Some(Control::ProcessWatch(_)) => continue,
                Some(answer) => {
                    let holds = matches!(answer, Control::LeaseGranted(_) | Control::LeaseResumed(_));
                    self.holds_lease |= holds;
                    return Ok(answer);
                }
                None => {}
            }
            let count = self.stream.receive(self.decoder.space(READ_SIZE), deadline)?;
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
        match &self.stream {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

const READ_SIZE: usize = 16 << 10;

/// The two kinds of sockets.
#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl From<io::Error> for Cause {
    fn from(error: io::Error) -> Cause {
        Cause::Connection(error)
    }
}

impl Stream {
    fn connect(node: &Endpoint) -> Result<Stream, Cause> {
        let refused = |error: io::Error| match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Cause::NobodyListens,
            _ => Cause::Connection(error),
        };
        let stream = match node {
            Endpoint::Unix(path) => Stream::Unix(UnixStream::connect(path).map_err(refused)?),
            Endpoint::Tcp(address) => {
                let addresses = address.to_socket_addrs().map_err(Cause::UnknownHost)?;
                let deadline = Instant::now() + CONNECT_TIME_MAX;
                let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
                let mut connected = None;
                for address in addresses {
                    let left =
                        deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
                    match TcpStream::connect_timeout(&address, left) {
                        Ok(stream) => {
                            connected = Some(stream);
                            break;
                        }
                        Err(error) => failure = error,
                    }
                }
                let stream = connected.ok_or(failure).map_err(refused)?;
                stream.set_nodelay(true)?;
                sluice_transport::notice_dead_peer(stream.as_fd())?;
                Stream::Tcp(stream)
            }
        };
        let limit = Some(ANSWER_TIME_MAX);
        match &stream {
            Stream::Tcp(stream) => stream.set_write_timeout(limit)?,
            Stream::Unix(stream) => stream.set_write_timeout(limit)?,
        }
        Ok(stream)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Cause> {
        match self {
            Stream::Tcp(stream) => stream.write_all(bytes)?,
            Stream::Unix(stream) => stream.write_all(bytes)?,
        }
        Ok(())
    }

    /// At least one byte, or an error once the deadline has passed or the peer has gone.
    fn receive(&mut self, buffer: &mut [u8], deadline: Instant) -> Result<usize, Cause> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Cause::Connection(io::ErrorKind::TimedOut.into()));
        }
        let count = match self {
            Stream::Tcp(stream) => stream.set_read_timeout(Some(left)).and_then(|()| stream.read(buffer)),
            Stream::Unix(stream) => stream.set_read_timeout(Some(left)).and_then(|()| stream.read(buffer)),
        }?;
        match count {
            0 => Err(Cause::Connection(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the connection was closed by what listens there; is it a Sluice node?",
            ))),
            count => Ok(count),
        }
    }
}

/// The lease that this process runs under, if any: its node and its token.
pub fn own_lease() -> Option<(Endpoint, LeaseToken)> {
    let text = std::env::var(SESSION_VARIABLE).ok()?;
    let SessionAddress { node, token } = text.parse().ok()?;
    Some((node, token))
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

/// The branch of NVIDIA's drivers that brought a CUDA version: programs compare it with what they need.
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
