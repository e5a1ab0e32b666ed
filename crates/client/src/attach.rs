//! Attaching to the leases that `sluice run` left in the environment, one on each node: connect, greet, agree on device
//! addresses, and count the devices of all.
//!
//! The first attempts have one deadline. A connection that is cut after that is followed by others for as long as the node waits for
//! its clients, and they find the session, if it was made. Whatever goes wrong is one line on stderr that names the node, and an
//! error from `cuInit`.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use sluice_cuda::*;
use sluice_transport::opening::{Attempts, Verdict};
use sluice_transport::tls::{TlsError, Trust};
use sluice_transport::{Rings, STRIPES_MAX, Side, Stream};
use sluice_wire::address::{
    Endpoint, PACK_VARIABLE, RECOGNISE_VARIABLE, SESSION_VARIABLE, STRIPES_VARIABLE, SessionAddress,
};
use sluice_wire::control::{
    Control, DeviceSnapshot, SessionOpen, SessionOpened, ShareMemory, SharedMemoryTaken,
};
use sluice_wire::handshake::{HELLO_SIZE_MAX, Hello, Once, Purpose, Resume, Stripe, Welcome};
use sluice_wire::spin::Wait;
use sluice_wire::{FrameDecoder, Kind, WireError};

use crate::addresses::Space;
use crate::context::Primary;
use crate::device::{Device, Work};
use crate::facts::Facts;
use crate::ids::DEVICES_MAX;
use crate::launch::Limits;
use crate::link::{self, Link, Resumption};
use crate::memory::{Memory, Names};
use crate::pool;
use crate::record::{self, Recorder};
use crate::reservation::Reservations;
use crate::session::{Session, Sessions};
use crate::visible;

/// A node that has not said a word by then is as good as none, or as one that is cut off.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long one on this machine may take to open the session: a driver initialises GPUs, and makes a context on each, one after the
/// other and one process after the other. Elsewhere another attempt finds the session that is being opened.
const OPENING: Duration = Duration::from_secs(90);

/// Why there is no session.
#[derive(Debug)]
pub(crate) enum AttachError {
    NoVariable,
    BadVariable,
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
    /// `CUDA_VISIBLE_DEVICES` leaves none.
    NothingVisible,
    TooMany,
}

impl AttachError {
    /// What `cuInit` answers.
    pub(crate) fn code(&self) -> CUresult {
        match self {
            AttachError::NoVariable | AttachError::NothingVisible | AttachError::TooMany => {
                CUresult::NO_DEVICE
            }
            AttachError::BadVariable | AttachError::Connect { .. } | AttachError::AnotherNode { .. } => {
                CUresult::SYSTEM_NOT_READY
            }
            AttachError::Protocol { .. } => CUresult::SYSTEM_DRIVER_MISMATCH,
            AttachError::Refused { .. } => CUresult::DEVICE_UNAVAILABLE,
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
            AttachError::Connect { node, error } if is_of_worker(error) => {
                write!(f, "the node {}: {error}; its messages may say why", node.place())
            }
            AttachError::Connect { node, error } => {
                let node = node.place();
                write!(f, "the node {node} cannot be reached ({error}); is it running? try `sluice doctor`")
            }
            AttachError::NothingVisible => {
                write!(f, "{} names no GPU of this lease; its GPUs count from 0", visible::VARIABLE)
            }
            AttachError::TooMany => write!(f, "a program can have {DEVICES_MAX} GPUs at most"),
            AttachError::AnotherNode { node, error } => write!(f, "the node {}: {error}", node.place()),
            AttachError::Protocol { node, error } => write!(f, "the node {}: {error}", node.place()),
            AttachError::Refused { node, reason } => {
                let node = node.place();
                write!(f, "the node {node} refused the session: {reason}")
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

/// Makes the sessions that the environment names.
pub(crate) fn attach() -> Result<Sessions, AttachError> {
    let text = std::env::var(SESSION_VARIABLE).map_err(|_| AttachError::NoVariable)?;
    let addresses = SessionAddress::list(&text).map_err(|_| AttachError::BadVariable)?;
    let deadline = Instant::now() + DEADLINE;
    let are_many = addresses.len() > 1;
    let mut opened = addresses
        .iter()
        .map(|address| Opened::new(address, are_many, deadline))
        .collect::<Result<Vec<Opened>, AttachError>>()?;
    let mut snapshots: Vec<&mut DeviceSnapshot> =
        opened.iter_mut().flat_map(|opened| &mut opened.devices).collect();
    if snapshots.len() > DEVICES_MAX {
        return Err(AttachError::TooMany);
    }
    let mut uuids: Vec<[u8; 16]> = snapshots.iter().map(|snapshot| snapshot.uuid).collect();
    sluice_wire::control::tell_apart(&mut uuids);
    snapshots.iter_mut().zip(&uuids).for_each(|(snapshot, uuid)| snapshot.uuid = *uuid);
    let visible = visible::devices(std::env::var(visible::VARIABLE).ok().as_deref(), &uuids);
    if visible.is_empty() {
        return Err(AttachError::NothingVisible);
    }
    let mut first = 0;
    let sessions = opened.into_iter().zip(0..).map(|(opened, index)| {
        let (count, node) = (opened.devices.len(), opened.node);
        let (minted, range) = (opened.minted.clone(), opened.minted);
        let devices = devices(opened.devices, range, first, (&visible, host_of_facts(&node).as_deref()));
        first += count;
        Session::new((index, node), opened.link, devices, minted.unwrap_or(0..0))
    });
    Ok(Sessions::new(sessions.collect()))
}

/// By which name processes tell each other what a node has said: where asking takes time, and unless a log is to hold the answers.
fn host_of_facts(node: &Endpoint) -> Option<String> {
    let host = |address: &str| address.rsplit_once(':').map_or(address, |(host, _)| host).to_owned();
    match node {
        _ if record::is_wanted() => None,
        Endpoint::Unix(_) => None,
        Endpoint::Tcp(address) => Some(host(address)),
        Endpoint::Tls { address, fingerprint } => Some(format!("tls:{} {fingerprint:?}", host(address))),
    }
}

/// A session with its node, before anybody has counted its devices.
struct Opened {
    node: Endpoint,
    link: Link,
    devices: Vec<DeviceSnapshot>,
    minted: Option<Range<u64>>,
}

impl Opened {
    /// One of several sessions has to have addresses of its own.
    fn new(address: &SessionAddress, is_one_of_many: bool, deadline: Instant) -> Result<Opened, AttachError> {
        let node = address.node.clone();
        let ranges = Reservations::make();
        let answer = open(address, &ranges, deadline);
        let minted = ranges.keep(answer.as_ref().ok().and_then(|(_, opened, _)| opened.range));
        let (greeting, opened, once) = answer?;
        let range = minted.clone().map(|range| (range.start, range.end - range.start));
        let opened = SessionOpened { range, ..opened };
        let refused = |reason: &str| AttachError::Refused { node: node.clone(), reason: reason.to_owned() };
        if opened.devices.is_empty() {
            return Err(refused("the lease has no device"));
        }
        if is_one_of_many && minted.is_none() {
            return Err(refused(
                "no range of addresses is free both there and here, by which memory of several nodes could be told apart",
            ));
        }
        let (stripes, packs) = (greeting.stripes(), greeting.packs());
        let Greeting { stream, decoder, sent, received, .. } = greeting;
        let terms = opened.resume.as_ref();
        let resumption =
            terms.map(|terms| Resumption::new(node.clone(), opened.session, terms, once.attempt, stripes));
        let recorder = Recorder::begin(&opened);
        let mut link = Link::new(stream, decoder, (sent, received), resumption, recorder);
        link.allow(opened.allowances);
        if packs {
            link.pack();
        }
        if is_one_of_many {
            link.name(format!("the GPUs of {}", node.place()));
        }
        Ok(Opened { node, link, devices: opened.devices, minted })
    }
}

/// Opens a session, by another attempt where a connection is cut. With the answer come its connection and what that attempt said.
fn open(
    address: &SessionAddress,
    ranges: &Reservations,
    deadline: Instant,
) -> Result<(Greeting, SessionOpened, Once), AttachError> {
    let node = &address.node;
    let failed = |error| AttachError::Connect { node: node.clone(), error };
    let mut attempts = Attempts::new().map_err(failed)?.at_known_node();
    // The client's stream so far, which is the same on all connections.
    let mut stream = None;
    let mut deadline = deadline;
    loop {
        let opened = Greeting::connect(node, deadline)
            .and_then(|greeting| greeting.open(address, ranges, &mut attempts, &mut stream));
        let error = match opened {
            // The end of such a connection is that of the node.
            Err(AttachError::Connect { error, .. }) if !matches!(node, Endpoint::Unix(_)) => error,
            done => return done.map(|(greeting, opened)| (greeting, opened, attempts.once())),
        };
        let pause = match attempts.failed(&error) {
            Verdict::Final => return Err(failed(error)),
            Verdict::Again(pause) => pause,
            Verdict::AgainFor { pause, patience } => {
                crate::errors::say(format_args!(
                    "the connection to the node {} is cut: {error}; the program waits for up to {} s until its session can \
                     begin there, Ctrl-C ends it",
                    node.place(),
                    patience.as_secs()
                ));
                pause
            }
        };
        std::thread::sleep(pause);
        deadline = Instant::now() + DEADLINE;
    }
}

/// Connections to a node that have said nothing yet. The node closes those that stay so for five seconds.
#[derive(Debug)]
pub(crate) struct Connected(Greeting, Vec<Greeting>);

/// Makes so many, at least one.
pub(crate) fn connect(node: &Endpoint, count: u8, deadline: Instant) -> Result<Connected, AttachError> {
    let (first, others) = all_at_once(node, 0, 1..count, |_| Greeting::connect(node, deadline))?;
    Ok(Connected(first, others))
}

/// Goes on with a session whose connection was cut, `resume.received` bytes into the worker's stream, over these connections,
/// which are as many as `resume.stripe` counts. The answer is the new stream and how much of our stream the worker has.
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
        Control::SessionRefused(refused) => Err(AttachError::Refused { node, reason: refused.reason }),
        _ => Err(greeting.protocol(WireError::NotSluice)),
    }
}

/// Runs it for each at the same time, since each takes some round trips: the first here, the others in threads of their own.
fn all_at_once<A: Send, B: Send>(
    node: &Endpoint,
    first: A,
    others: impl Iterator<Item = A>,
    run: impl std::ops::Fn(A) -> Result<B, AttachError> + Sync,
) -> Result<(B, Vec<B>), AttachError> {
    let unconnected = |error| AttachError::Connect { node: node.clone(), error };
    let run = &run;
    std::thread::scope(|scope| {
        let others: Vec<_> = others.map(|item| link::spawn(scope, move || run(item))).collect();
        let first = run(first)?;
        let join = |spawned: io::Result<ScopedJoinHandle<'_, _>>| match spawned.map(ScopedJoinHandle::join) {
            Ok(Ok(done)) => done,
            Ok(Err(_)) => Err(unconnected(io::Error::other("its thread has ended"))),
            Err(error) => Err(unconnected(error)),
        };
        Ok((first, others.into_iter().map(join).collect::<Result<Vec<B>, AttachError>>()?))
    })
}

/// The visible devices of a lease, the first of which is the process's `first`. Each mints in a part of its own, so that an
/// address tells its device.
fn devices(
    snapshots: Vec<DeviceSnapshot>,
    minted: Option<Range<u64>>,
    first: usize,
    (visible, host): (&[usize], Option<&str>),
) -> Vec<Device> {
    let count = snapshots.len() as u64;
    let part = |place: u64, range: &Range<u64>| {
        let each = (range.end - range.start) / count / crate::addresses::CHUNK * crate::addresses::CHUNK;
        range.start + place * each..range.start + (place + 1) * each
    };
    snapshots
        .into_iter()
        .zip(0..)
        .filter_map(|(snapshot, place)| {
            let index = first + usize::from(place);
            let ordinal = visible.iter().position(|&seen| seen == index)? as CUdevice;
            let minted = minted.as_ref().map(|range| part(place.into(), range));
            let names = match &minted {
                Some(range) => Names::Minted(Space::new(range.clone())),
                None => Names::Given(std::collections::BTreeMap::new()),
            };
            Some(Device {
                ordinal,
                place,
                index: index as u8,
                minted: minted.unwrap_or(0..0),
                launch_limits: Limits::of(|attribute| snapshot.attribute(attribute)),
                facts: Arc::new(Facts::new(&snapshot, host)),
                snapshot,
                work: Work::default(),
                barrier: Mutex::default(),
                primary: Primary::new(ordinal),
                mints_addresses: matches!(names, Names::Minted(_)),
                memory: Mutex::new(Memory::new(names)),
                default_pool: pool::default_of(ordinal),
                pool: AtomicUsize::new(0),
            })
        })
        .collect()
}

/// From such a round trip on a link is rather short of bytes than of time to save them.
const FAR: Duration = Duration::from_millis(1);
/// From such a round trip on one connection may not hold what the link does,
const FARTHER: Duration = Duration::from_millis(5);
/// and these do.
const STRIPES: u8 = 8;

/// A connection on which the session is being opened, or goes on.
#[derive(Debug)]
struct Greeting {
    node: Endpoint,
    stream: Stream,
    decoder: FrameDecoder,
    /// What came beside the bytes.
    descriptor: Option<OwnedFd>,
    deadline: Instant,
    /// From the first bytes to their answer.
    round_trip: Duration,
    /// Positions of both streams: bytes of the session after the greeting.
    sent: u64,
    received: u64,
}

impl Greeting {
    fn connect(node: &Endpoint, deadline: Instant) -> Result<Greeting, AttachError> {
        let node = node.clone();
        let stream = match &node {
            Endpoint::Tcp(host) => Stream::connect_tcp(host, deadline),
            Endpoint::Tls { address, fingerprint: Some(fingerprint) } => {
                let trust = Trust::Fingerprint(*fingerprint);
                Stream::connect_tls(address, &trust, None, deadline).map(|(stream, _)| stream)
            }
            // Whoever made the lease checked the certificate, and knows its fingerprint.
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
    fn open(
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
        // What is recorded comes as it would from anywhere: a driver that stages data has other addresses left.
        if matches!(self.node, Endpoint::Unix(_)) && !record::is_wanted() {
            self.share_memory()?;
        }
        let message =
            || SessionOpen { ranges: ranges.offers(), recognises: self.recognises(), unpacks: self.packs() };
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

    /// Whether commands are told as what changed.
    fn recognises(&self) -> bool {
        self.saves_bytes(RECOGNISE_VARIABLE)
    }

    /// Whether large data are packed where the link turns out to be slow.
    fn packs(&self) -> bool {
        self.saves_bytes(PACK_VARIABLE)
    }

    /// Whether bytes are worth the time to save them: on a link that is not of this room, unless the user says otherwise.
    fn saves_bytes(&self, variable: &str) -> bool {
        let leaves_machine = !matches!(self.node, Endpoint::Unix(_));
        match std::env::var(variable).as_deref() {
            Ok("off") => false,
            Ok("on") => leaves_machine,
            _ => leaves_machine && self.round_trip >= FAR,
        }
    }

    /// How many connections large copies are worth.
    fn stripes(&self) -> u8 {
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
            self.stream.share(memory, Side::Client, link::cores());
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

/// A range as the wire carries it, by address and size.
pub(crate) fn as_range((start, bytes): (u64, u64)) -> Option<Range<u64>> {
    Some(start..start.checked_add(bytes)?)
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
