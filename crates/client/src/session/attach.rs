//! Attaching to the leases that `sluice run` left in the environment, one on each node: connect,
//! greet, agree on device addresses, and count the devices of all.
//!
//! The first attempts have one deadline. A connection that is cut after that is followed by others
//! for as long as the node waits for its clients, and they find the session, if it was made.
//! Whatever goes wrong is one line on stderr that names the node, and an error from `cuInit`.

use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sluice_cuda::*;
use sluice_transport::opening::{Attempts, Verdict};
use sluice_transport::restored;
use sluice_wire::address::{Endpoint, SessionAddress};
use sluice_wire::control::{DeviceSnapshot, SessionOpened};
use sluice_wire::handshake::Once;

use crate::abi::ids::DEVICES_MAX;
use crate::context::Primary;
use crate::device::{Device, Work};
use crate::launch::limits::Limits;
use crate::link::greeting::{AttachError, Greeting};
use crate::link::record::{self, Recorder};
use crate::link::reservation::Reservations;
use crate::link::{Link, Resumption, stored};
use crate::memory::addresses::Space;
use crate::memory::allocations::{Memory, Names};
use crate::memory::pool;
use crate::session::facts::Facts;
use crate::session::{Session, Sessions, announce, visible};
use crate::stream::host_function;

/// A node that has not said a word by then is as good as none, or as one that is cut off.
const DEADLINE: Duration = Duration::from_secs(10);
/// A lease that is sent on more often than this while a session is opened is nowhere.
const MOVES_MAX: u32 = 8;

/// Makes the sessions that the environment names.
pub(crate) fn attach() -> Result<Sessions, AttachError> {
    let addresses = sluice_transport::own_sessions()?;
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

/// By which name processes tell each other what a node has said: where asking takes time, and
/// unless a log is to hold the answers.
fn host_of_facts(node: &Endpoint) -> Option<String> {
    let host = |address: &str| address.rsplit_once(':').map_or(address, |(host, _)| host).to_owned();
    match node {
        _ if record::is_wanted() => None,
        Endpoint::Unix(_) => None,
        Endpoint::Tcp(address) => Some(host(address)),
        Endpoint::Tls { address, fingerprint } => Some(format!("tls:{} {fingerprint:?}", host(address))),
    }
}

/// A session with its node, before the devices of all are counted.
struct Opened {
    node: Endpoint,
    link: Link,
    devices: Vec<DeviceSnapshot>,
    minted: Option<Range<u64>>,
}

impl Opened {
    /// One of several sessions has to have addresses of its own.
    fn new(address: &SessionAddress, is_one_of_many: bool, deadline: Instant) -> Result<Opened, AttachError> {
        let ranges = Reservations::make();
        let answer = open(address, &ranges, deadline);
        let minted = ranges.keep(answer.as_ref().ok().and_then(|(_, opened, _)| opened.range));
        let (greeting, opened, once) = answer?;
        let node = greeting.node.clone();
        let address = SessionAddress { node: node.clone(), token: address.token };
        let range = minted.clone().map(|range| (range.start, range.end - range.start));
        let opened = SessionOpened { range, ..opened };
        let refused = |reason: &str| AttachError::Refused { node: node.clone(), reason: reason.to_owned() };
        if opened.devices.is_empty() {
            return Err(refused("the lease has no device"));
        }
        if is_one_of_many && minted.is_none() {
            return Err(refused(
                "no address range is free on both the node and this machine, which several nodes need; use one node",
            ));
        }
        let (stripes, packs) = (greeting.stripes(), greeting.packs());
        let Greeting { stream, decoder, sent, received, .. } = greeting;
        let terms = opened.resume.as_ref();
        let resumption =
            terms.map(|terms| Resumption::new(address.clone(), opened.session, terms, once.attempt, stripes));
        announce::process(opened.session);
        let recorder = Recorder::begin(&opened);
        let mut link = Link::new(stream, decoder, (sent, received), resumption, recorder);
        link.opened_as(address, opened.session);
        link.on_refused(host_function::forget);
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

/// Opens a session, by another attempt where a connection is cut. With the answer come its
/// connection and what that attempt said.
fn open(
    address: &SessionAddress,
    ranges: &Reservations,
    deadline: Instant,
) -> Result<(Greeting, SessionOpened, Once), AttachError> {
    let mut address = address.clone();
    let failed = |node: &Endpoint, error| AttachError::Connect { node: node.clone(), error };
    let mut attempts = Attempts::new().map_err(|error| failed(&address.node, error))?.at_known_node();
    let (mut moves, mut is_told) = (0, false);
    // The client's stream so far, which is the same on all connections.
    let mut stream = None;
    let mut deadline = deadline;
    // Where a note was followed to, and where from.
    let mut followed: Option<(Endpoint, Endpoint)> = None;
    loop {
        let node = &address.node;
        let opened = Greeting::connect(node, deadline)
            .and_then(|greeting| greeting.open(&address, ranges, &mut attempts, &mut stream));
        let error = match opened {
            Err(AttachError::Moved { node, .. }) if moves < MOVES_MAX => {
                moves += 1;
                address.node = node;
                continue;
            }
            // A process of a program whose other processes wait as well.
            Err(AttachError::Stored { node }) => {
                if !std::mem::replace(&mut is_told, true) {
                    stored::say(&node);
                }
                std::thread::sleep(stored::PAUSE);
                moves = 0;
                if let Some(restored) = restored::find(&address.token.0, &node)
                    && followed.as_ref().is_none_or(|(to, _)| *to != restored.node)
                {
                    address.node = restored.node.clone();
                    followed = Some((restored.node, node));
                }
                deadline = Instant::now() + DEADLINE;
                continue;
            }
            // The note was an old one.
            Err(AttachError::Connect { .. } | AttachError::Refused { .. })
                if followed.as_ref().is_some_and(|(to, _)| to == node) && is_told =>
            {
                if let Some((_, from)) = followed.take() {
                    address.node = from;
                }
                std::thread::sleep(stored::PAUSE);
                deadline = Instant::now() + DEADLINE;
                continue;
            }
            // The end of such a connection is that of the node.
            Err(AttachError::Connect { error, .. }) if !matches!(node, Endpoint::Unix(_)) => error,
            done => return done.map(|(greeting, opened)| (greeting, opened, attempts.once())),
        };
        let pause = match attempts.failed(&error) {
            Verdict::Final => return Err(failed(node, error)),
            Verdict::Again(pause) => pause,
            Verdict::AgainFor { pause, patience } => {
                crate::abi::errors::say(format_args!(
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

/// The visible devices of a lease, the first of which is the process's `first`. Each mints in a
/// part of its own, so that an address tells its device.
fn devices(
    snapshots: Vec<DeviceSnapshot>,
    minted: Option<Range<u64>>,
    first: usize,
    (visible, host): (&[usize], Option<&str>),
) -> Vec<Device> {
    let count = snapshots.len() as u64;
    let part = |place: u64, range: &Range<u64>| {
        let each = (range.end - range.start) / count / crate::memory::addresses::CHUNK
            * crate::memory::addresses::CHUNK;
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
