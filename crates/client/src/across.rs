//! What concerns two nodes at once: copies between their memories, and waits of one node's streams for another's events.
//!
//! A node knows nothing of the others, so both are made here. The calling thread waits for what has to be over first, on the
//! one node, and only then gives the other its part: what it gives later comes later there, too. That costs the asynchrony
//! of these calls, and nothing of their order.
//!
//! The data of a copy go from node to node, on a connection that the nodes make with a token that the one gives out and the other
//! shows; this side only carries the token. Where the nodes cannot reach each other the data go through this process.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;
use sluice_wire::address::Endpoint;
use sluice_wire::{DevicePtr, StreamId, commands};

use crate::copy::{Landing, on_device, to_device, to_host};
use crate::issue::Issue;
use crate::session::{self, Session};
use crate::{capture, context, event, ids};

/// Bytes of a copy between nodes that are here at a time.
const PIECE: usize = 4 << 20;

/// Whether a handle is one of another session than this.
pub(crate) fn is_elsewhere(session: &Session, handle: usize) -> bool {
    !session.owns(handle as u64)
}

/// Whether an address is one of device memory on another node than the calling thread's device.
pub(crate) fn reaches(address: CUdeviceptr) -> bool {
    session::are_many() && session::of_address(address).is_some_and(|device| !session::is_here(device))
}

/// Says why an address is refused that another session has.
pub(crate) fn explain(session: &Session, address: CUdeviceptr) {
    if !session::are_many() {
        return;
    }
    let device = session::of_address(address).filter(|&device| !session.has(device));
    if let Some(other) = device.and_then(|device| session::of(device).ok()) {
        crate::say_once!(
            "{address:#x} is memory of node {}, and a call on node {} names it: between nodes memory can be copied, and nothing else",
            other.node.place(),
            session.node.place()
        );
    }
}

/// What a call in a capture is refused with where it concerns two nodes.
fn not_captured() -> CUresult {
    crate::say_once!("a graph lies on one node: what concerns another node cannot be captured into it");
    CUresult::STREAM_CAPTURE_UNSUPPORTED
}

/// Waits for an event of another session.
pub(crate) fn wait(event: CUevent) -> Result<(), CUresult> {
    let device = ids::device(event.0 as u64).ok_or(CUresult::INVALID_HANDLE)?;
    context::at(device, || {
        let session = session::get()?;
        session.call(&commands::cuEventSynchronize { hEvent: session.find(event)? }, |()| ())
    })
}

/// The work that a stream is given next waits for an event of another session.
pub(crate) fn stream_waits(stream: CUstream, event: CUevent) -> Result<(), CUresult> {
    let (own, (_, others)) = (capture::of(stream), event::capture_of(event)?);
    if own.is_some() || others.is_some() {
        own.iter().chain(&others).for_each(|capture| capture.invalidate());
        return Err(not_captured());
    }
    session::get()?.find(stream)?;
    wait(event)
}

/// A copy of which at least one side is on another node than the stream. It is over when this returns, unless it is
/// `asynchronous`, and goes from node to node.
///
/// # Safety
/// Operands on this machine are valid for `bytes` bytes.
pub(crate) unsafe fn copy(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
    asynchronous: bool,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let hStream = session.find(stream)?;
    if capture::of(stream).is_some() {
        return Err(not_captured());
    }
    let (to, from) = (session::of_address(dst), session::of_address(src));
    for (device, address) in [(to, dst), (from, src)] {
        if let Some(device) = device {
            session::of(device)?.range(address, bytes as u64)?;
        }
    }
    if asynchronous
        && let (Some(to), Some(from)) = (to, from)
        && queue(session, hStream, (to, dst), (from, src), bytes)?
    {
        return Ok(());
    }
    session.call(&commands::cuStreamSynchronize { hStream }, |()| ())?;
    // SAFETY: the caller vouches for what is on this machine.
    unsafe {
        match (to, from) {
            (Some(to), Some(from)) if session::of(to)?.has(from) => {
                at(to, |session, stream| on_device(session, dst, src, bytes, stream))
            }
            (Some(to), Some(from)) => between((to, dst), (from, src), bytes),
            (Some(to), None) => {
                at(to, |session, stream| to_device(session, dst, src as *const _, bytes, stream))
            }
            (None, Some(from)) => fetch(dst as *mut u8, (from, src), bytes),
            (None, None) => Err(CUresult::INVALID_VALUE),
        }
    }
}

/// Gives work to a device's session in the calling thread's own stream there, and waits for it.
fn at(
    device: CUdevice,
    work: impl FnOnce(&'static Session, CUstream) -> Result<(), CUresult>,
) -> Result<(), CUresult> {
    context::at(device, || {
        let session = session::get()?;
        work(session, CUstream::PER_THREAD)?;
        let hStream = session.find(CUstream::PER_THREAD)?;
        session.call(&commands::cuStreamSynchronize { hStream }, |()| ())
    })
}

/// # Safety
/// `to` is valid for writing `bytes` bytes.
unsafe fn fetch(to: *mut u8, (device, src): (CUdevice, u64), bytes: usize) -> Result<(), CUresult> {
    context::at(device, || {
        // SAFETY: the caller vouches for the buffer, and the data have landed when this returns.
        unsafe { to_host(session::get()?, to.cast(), src, bytes, CUstream::PER_THREAD, Landing::Now) }
    })
}

/// Connections that one session's node has made to another's, by their places: the connection's number, or why there is none.
type Connections = BTreeMap<(u8, u8), Result<u64, String>>;

static CONNECTIONS: Mutex<Connections> = Mutex::new(BTreeMap::new());
/// Pairs of source and target of which it was said that copies go through this machine.
static SAID: Mutex<BTreeSet<(u8, u8)>> = Mutex::new(BTreeSet::new());
/// Sessions, a bit each, that have made copies for which nobody has waited.
static PENDING: AtomicU64 = AtomicU64::new(0);

fn connections() -> MutexGuard<'static, Connections> {
    CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device and an address in its memory.
type Place = (CUdevice, u64);

/// From one node's memory to another's.
fn between(to: Place, from: Place, bytes: usize) -> Result<(), CUresult> {
    let mut reasons = Vec::new();
    for (own, other, fetches) in [(from, to, false), (to, from, true)] {
        let peer = match connection(own.0, other.0)? {
            Ok(peer) => peer,
            Err(reason) => {
                reasons.push(reason);
                continue;
            }
        };
        let lost = directly(peer, own, other, bytes, fetches)?;
        if lost.is_empty() {
            return Ok(());
        }
        // How far it came nobody knows, and it makes no difference. If a node is gone, that shows now.
        lose(own.0, other.0, &lost)?;
        reasons.push(lost);
        break;
    }
    let (source, target) = (session::of(from.0)?, session::of(to.0)?);
    let is_new = SAID.lock().unwrap_or_else(PoisonError::into_inner).insert((source.index, target.index));
    if is_new {
        crate::errors::say(format_args!(
            "copies from {} to {} go through this machine: {}",
            source.node.place(),
            target.node.place(),
            reasons.join("; ")
        ));
    }
    through_here(to, from, bytes)
}

/// Gives a stream a copy between nodes, if its own is one of them and has a connection to the other.
fn queue(
    session: &'static Session,
    hStream: StreamId,
    to: Place,
    from: Place,
    bytes: usize,
) -> Result<bool, CUresult> {
    let (own, other, fetches) = match (session.has(from.0), session.has(to.0)) {
        (true, false) => (from, to, false),
        (false, true) => (to, from, true),
        _ => return Ok(false),
    };
    let Ok(peer) = connection(own.0, other.0)? else { return Ok(false) };
    if bytes == 0 {
        return Ok(true);
    }
    // Before the command: whoever frees memory from now on waits for it.
    PENDING.fetch_or(1 << session.index, Ordering::AcqRel);
    session.queue(&commands::PeerSend {
        peer,
        device: session::of(other.0)?.device(other.0)?.place.into(),
        fetches,
        there: DevicePtr(other.1),
        here: session.range(own.1, bytes as u64)?,
        ByteCount: bytes as u64,
        hStream,
    })?;
    session.link.flush_now()?;
    Ok(true)
}

/// Waits for copies that may use memory which is about to be another's.
pub(crate) fn settle() -> Result<(), CUresult> {
    if PENDING.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    let pending = PENDING.swap(0, Ordering::AcqRel);
    for session in session::all()?.list.iter().filter(|session| pending >> session.index & 1 == 1) {
        let Some(device) = session.devices.first() else { continue };
        // One that is lost copies nothing any more.
        let _ = context::at(device.ordinal, || session.call(&commands::PeerSettle {}, |()| ()));
    }
    Ok(())
}

/// The connection that the node of `asker` makes to that of `server`, once.
fn connection(asker: CUdevice, server: CUdevice) -> Result<Result<u64, String>, CUresult> {
    let pair = (session::of(asker)?.index, session::of(server)?.index);
    let mut connections = connections();
    if let Some(known) = connections.get(&pair) {
        return Ok(known.clone());
    }
    let made = introduce(asker, server)?;
    connections.insert(pair, made.clone());
    Ok(made)
}

fn lose(asker: CUdevice, server: CUdevice, reason: &str) -> Result<(), CUresult> {
    let pair = (session::of(asker)?.index, session::of(server)?.index);
    connections().insert(pair, Err(format!("the nodes' connection was lost ({reason})")));
    Ok(())
}

/// Has the node of one device connect to the session of another: the connection's number, or why there is none.
fn introduce(asker: CUdevice, server: CUdevice) -> Result<Result<u64, String>, CUresult> {
    let (here, there) = (session::of(asker)?, session::of(server)?);
    let is_protected = |session: &Session| matches!(session.node, Endpoint::Tls { .. });
    if is_protected(here) && !is_protected(there) {
        return Ok(Err(format!("{}: it speaks plain text", there.node.place())));
    }
    let Ok(node) = CString::new(there.node.to_string()) else { return Err(CUresult::UNKNOWN) };
    let offer = || there.call(&commands::PeerOffer {}, |answer| (answer.session, answer.token));
    let (session, token) = context::at(server, offer)?;
    let peer = here.link.ticket();
    let command = commands::PeerConnect { peer, session, token, node: &node };
    let refusal = context::at(asker, || here.call(&command, |answer| answer.refusal))?;
    Ok(if refusal.is_empty() { Ok(peer) } else { Err(refusal) })
}

/// On a connection that the node of `own` has made. The answer is why it is lost, or nothing.
fn directly(
    peer: u64,
    (own, here): Place,
    (other, there): Place,
    bytes: usize,
    fetches: bool,
) -> Result<String, CUresult> {
    let (session, served) = (session::of(own)?, session::of(other)?);
    // What the other has been given before comes before; what it is given after this comes after the copy.
    context::at(other, || {
        let hStream = served.find(CUstream::LEGACY)?;
        served.call(&commands::cuStreamSynchronize { hStream }, |()| ())
    })?;
    context::at(own, || {
        let command = commands::PeerCopy {
            peer,
            device: served.device(other)?.place.into(),
            fetches,
            there: DevicePtr(there),
            here: session.range(here, bytes as u64)?,
            ByteCount: bytes as u64,
            hStream: session.find(CUstream::PER_THREAD)?,
        };
        session.call(&command, |answer| answer.lost)
    })
}

/// From one node's memory to another's, piece by piece.
fn through_here((to, dst): Place, (from, src): Place, bytes: usize) -> Result<(), CUresult> {
    let mut piece = vec![0_u8; bytes.min(PIECE)];
    at(to, |session, stream| {
        for offset in (0..bytes).step_by(PIECE) {
            let count = PIECE.min(bytes - offset);
            // SAFETY: the buffer has `count` bytes; what is sent has left it when the call returns.
            unsafe {
                fetch(piece.as_mut_ptr(), (from, src + offset as u64), count)?;
                to_device(session, dst + offset as u64, piece.as_ptr().cast(), count, stream)?;
            }
        }
        Ok(())
    })
}
