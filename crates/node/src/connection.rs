//! One connection: who is there, and what for.
//!
//! Nothing that a peer sends before it has proved a lease costs more than a thread and a few hundred bytes, and a
//! peer that says nothing is gone after five seconds.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use sluice_wire::control::{
    Control, Devices, DevicesRequest, EchoReady, LeaseClaim, LeaseGranted, LeaseRefused, LeaseRequest,
    Refused, SessionRefused,
};
use sluice_wire::handshake::{HELLO_SIZE_MAX, Hello, LeaseToken, Purpose, Welcome};
use sluice_wire::{FrameDecoder, Kind, WireError};

use crate::echo;
use crate::lease::Ask;
use crate::registry::{ClientOf, Granted, Registry, one_line};

/// A peer has this long for its first words.
const HELLO_PATIENCE: Duration = Duration::from_secs(5);
/// A peer that takes none of what it is sent for this long is gone.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);
/// Characters of a program's name that are kept.
const NAME_MAX: usize = 256;

/// The answer to a token that is none.
const NO_SUCH_LEASE: &str = "no lease has this token";

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn clone_fd(&self) -> io::Result<OwnedFd> {
        match self {
            Stream::Tcp(stream) => stream.try_clone().map(OwnedFd::from),
            Stream::Unix(stream) => stream.try_clone().map(OwnedFd::from),
        }
    }

    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(limit),
            Stream::Unix(stream) => stream.set_read_timeout(limit),
        }
    }

    fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_write_timeout(limit),
            Stream::Unix(stream) => stream.set_write_timeout(limit),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(space),
            Stream::Unix(stream) => stream.read(space),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Serves a connection to its end.
pub(crate) fn serve(registry: &Registry, mut stream: Stream, peer: &str) {
    let hello = match greet(&mut stream) {
        Ok(hello) => hello,
        Err(error) => {
            eprintln!("sluice node: {peer} turned away: {error}");
            return;
        }
    };
    let ended = match hello.purpose {
        Purpose::Control => control(registry, &mut stream),
        Purpose::Session { token } => {
            session(registry, stream, &token, ClientOf { process: hello.process, peer: peer.to_owned() })
        }
    };
    if let Err(error) = ended {
        eprintln!("sluice node: {peer} disconnected: {error}");
    }
}

/// Why a connection ends before its peer wants it to.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("it said nothing within {} s", HELLO_PATIENCE.as_secs())]
    Silent,
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Refused(String),
}

/// Reads the `Hello` and answers it, whatever version it is of.
fn greet(stream: &mut Stream) -> Result<Hello, ConnectionError> {
    let deadline = Instant::now() + HELLO_PATIENCE;
    stream.set_write_timeout(Some(WRITE_PATIENCE))?;
    let hello = read_hello(stream, deadline);
    if !matches!(hello, Err(ConnectionError::Wire(WireError::NotSluice) | ConnectionError::Io(_))) {
        stream.write_all(&Welcome::to_bytes())?;
    }
    stream.set_read_timeout(None)?;
    hello
}

/// Reads exactly the `Hello`: what follows it belongs to the worker.
fn read_hello(stream: &mut Stream, deadline: Instant) -> Result<Hello, ConnectionError> {
    let mut bytes = [0_u8; HELLO_SIZE_MAX];
    let mut have = 0;
    loop {
        if let Some((hello, _)) = Hello::from_bytes(&bytes[..have])? {
            return Ok(hello);
        }
        // The length first, then what it counts.
        let want = match bytes[..have].first_chunk() {
            None => 2,
            Some(length) => 2 + usize::from(u16::from_le_bytes(*length)),
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ConnectionError::Silent);
        }
        stream.set_read_timeout(Some(left))?;
        let Some(space) = bytes.get_mut(have..want) else { return Err(WireError::NotSluice.into()) };
        match stream.read(space) {
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

/// Hands the socket to a worker and stays until that has ended.
fn session(
    registry: &Registry,
    mut stream: Stream,
    token: &LeaseToken,
    client: ClientOf,
) -> Result<(), ConnectionError> {
    match registry.start_session(token, client, stream.clone_fd()?) {
        Ok(session) => {
            // From here on the worker alone has the socket: its end is the end that the client sees.
            drop(stream);
            registry.serve_session(session);
            Ok(())
        }
        Err(refusal) => {
            let reason = refusal.to_string();
            send(&mut stream, SessionRefused { reason: reason.clone() }.into())?;
            Err(ConnectionError::Refused(reason))
        }
    }
}

/// Answers questions and holds at most one lease, which ends with the connection.
fn control(registry: &Registry, stream: &mut Stream) -> Result<(), ConnectionError> {
    let mut held = HeldLease { registry, lease: None };
    let mut decoder = FrameDecoder::new();
    loop {
        while let Some(frame) = decoder.next_frame()? {
            if frame.header.kind != Kind::Control {
                return Err(WireError::FrameKind(frame.header.kind as u8).into());
            }
            match Control::decode(frame.header.op, frame.payload)? {
                Control::EchoRequest(request) if registry.lease_of(&request.token).is_some() => {
                    match echo::Transfers::asked(&request) {
                        Some(mut transfers) => {
                            send(stream, EchoReady {}.into())?;
                            transfers.serve(stream)?;
                        }
                        None => send(stream, refused(echo::LIMITS))?,
                    }
                }
                question => send(stream, held.answer(question))?,
            }
        }
        let space = decoder.space(4096);
        match stream.read(space) {
            Ok(0) => return Ok(()),
            Ok(got) => decoder.received(got),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A holder that is killed resets its connection: the usual end of a lease.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn send(stream: &mut Stream, message: Control) -> Result<(), ConnectionError> {
    let mut bytes = Vec::new();
    message.frame(&mut bytes)?;
    Ok(stream.write_all(&bytes)?)
}

/// The lease of a control connection; dropped, it ends.
struct HeldLease<'a> {
    registry: &'a Registry,
    lease: Option<u64>,
}

impl HeldLease<'_> {
    fn answer(&mut self, question: Control) -> Control {
        match question {
            Control::LeaseRequest(_) | Control::LeaseClaim(_) if self.lease.is_some() => {
                refused("this connection holds a lease already")
            }
            Control::LeaseRequest(request) => self.grant(request),
            Control::LeaseClaim(claim) => self.claim(claim),
            Control::StatusRequest(_) => match self.registry.server() {
                None => self.registry.status().into(),
                Some(server) => {
                    refused(&format!("this node lends through {server}; set SLUICE_SERVER to that"))
                }
            },
            Control::DevicesRequest(DevicesRequest { token }) => self.devices(&token),
            Control::EchoRequest(_) => refused(NO_SUCH_LEASE),
            Control::UsageRequest(_) => match self.lease.and_then(|lease| self.registry.usage(lease)) {
                Some(usage) => usage.into(),
                None => refused("this connection holds no lease"),
            },
            _ => refused("a node does not answer that"),
        }
    }

    fn grant(&mut self, request: LeaseRequest) -> Control {
        if let Some(server) = self.registry.server() {
            let reason =
                format!("this node lends through {server}; set SLUICE_SERVER to that (and not --node)");
            return LeaseRefused { reason, free: Vec::new() }.into();
        }
        let ask = Ask {
            gpus: request.gpus,
            share_ppm: request.share_ppm,
            memory: request.memory,
            hard_cap: request.hard_cap,
        };
        let granted =
            self.registry.grant(ask, u64::from(request.kernel_timeout_ms), short_name(&request.name));
        match granted {
            Ok(granted) => self.hold(granted),
            Err(refusal) => LeaseRefused { reason: refusal.to_string(), free: self.registry.free() }.into(),
        }
    }

    fn claim(&mut self, claim: LeaseClaim) -> Control {
        let name = short_name(&claim.name);
        match self.registry.claim(&claim.grant, u64::from(claim.kernel_timeout_ms), name) {
            Ok(granted) => self.hold(granted),
            Err(refusal) => LeaseRefused { reason: refusal.to_string(), free: Vec::new() }.into(),
        }
    }

    fn hold(&mut self, granted: Granted) -> Control {
        self.lease = Some(granted.lease);
        let (lease, token, devices) = (granted.lease, granted.token, granted.devices);
        LeaseGranted { lease, token, devices }.into()
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
        if let Some(lease) = self.lease {
            self.registry.end_lease(lease);
        }
    }
}

/// A program's name, fit for lists.
fn short_name(name: &str) -> String {
    one_line(name).chars().take(NAME_MAX).collect()
}

fn refused(reason: &str) -> Control {
    Refused { reason: reason.into() }.into()
}
