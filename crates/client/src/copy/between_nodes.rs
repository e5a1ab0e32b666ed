//! What concerns two nodes at once: copies between their memories, and waits of one node's streams
//! for another's events.
//!
//! A node knows nothing of the others, so both are made here. The calling thread waits for what has
//! to be over first, on the one node, and only then gives the other its part: what it gives later
//! comes later there, too. That costs the asynchrony of these calls, and nothing of their order.
//!
//! The data of a copy go from node to node, on a connection that the nodes make with a token that
//! the one gives out and the other shows; this side only carries the token. Where the nodes cannot
//! reach each other the data go through this process.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;
use sluice_wire::address::Endpoint;
use sluice_wire::{DevicePtr, commands};

use crate::context;
use crate::copy::{Landing, on_device, to_device, to_host};
use crate::session::issue::Issue;
use crate::session::{self, Session, other_node};
use crate::stream::capture;

/// Bytes of a copy between nodes that are here at a time.
const PIECE: usize = 4 << 20;

/// A copy of which at least one side is on another node than the stream. It is over when this
/// returns.
///
/// # Safety
/// Operands on this machine are valid for `bytes` bytes.
pub(crate) unsafe fn copy(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let hStream = session.find(stream)?;
    if capture::of(stream).is_some() {
        return Err(other_node::not_captured());
    }
    let (to, from) = (session::of_address(dst), session::of_address(src));
    for (device, address) in [(to, dst), (from, src)] {
        if let Some(device) = device {
            session::of(device)?.range(address, bytes as u64)?;
        }
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

/// How copies from one session to another go.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// On the connection of this number that the source's node has made, or the target's.
    Sent(u64),
    Fetched(u64),
    /// Through this process.
    Here,
}

/// By the sessions of source and target.
static WAYS: Mutex<BTreeMap<(u8, u8), Way>> = Mutex::new(BTreeMap::new());

fn ways() -> MutexGuard<'static, BTreeMap<(u8, u8), Way>> {
    WAYS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device and an address in its memory.
type DeviceAddress = (CUdevice, u64);

/// From one node's memory to another's.
fn between(to: DeviceAddress, from: DeviceAddress, bytes: usize) -> Result<(), CUresult> {
    let pair = (session::of(from.0)?.index, session::of(to.0)?.index);
    let way = {
        let mut ways = ways();
        match ways.get(&pair) {
            Some(way) => *way,
            None => *ways.entry(pair).or_insert(find_way(to.0, from.0)?),
        }
    };
    let lost = match way {
        Way::Sent(peer) => directly(peer, from, to, bytes, false)?,
        Way::Fetched(peer) => directly(peer, to, from, bytes, true)?,
        Way::Here => return through_here(to, from, bytes),
    };
    if lost.is_empty() {
        return Ok(());
    }
    // It is unknown how far it came, and it makes no difference. A node that is gone is detected
    // now.
    if !matches!(ways().insert(pair, Way::Here), Some(Way::Here)) {
        let (source, target) = (session::of(from.0)?.node.place(), session::of(to.0)?.node.place());
        crate::abi::errors::say(format_args!(
            "copies from {source} to {target} go through this machine from now on, since the nodes' connection is lost: {lost}"
        ));
    }
    through_here(to, from, bytes)
}

/// Has one of the nodes connect to the other.
fn find_way(to: CUdevice, from: CUdevice) -> Result<Way, CUresult> {
    let there = match introduce(from, to)? {
        Ok(peer) => return Ok(Way::Sent(peer)),
        Err(reason) => reason,
    };
    let back = match introduce(to, from)? {
        Ok(peer) => return Ok(Way::Fetched(peer)),
        Err(reason) => reason,
    };
    let (source, target) = (session::of(from)?.node.place(), session::of(to)?.node.place());
    crate::abi::errors::say(format_args!(
        "copies from {source} to {target} go through this machine, since neither node connects to the other ({}; {})",
        refusal(&source, &target, &there),
        refusal(&target, &source, &back),
    ));
    Ok(Way::Here)
}

/// Why one node does not connect to another. Most reasons begin with the other's name.
fn refusal(asker: &str, other: &str, reason: &str) -> String {
    let reason = reason.strip_prefix(other).and_then(|reason| reason.strip_prefix(": ")).unwrap_or(reason);
    format!("{asker} to {other}: {reason}")
}

/// Has the node of one device connect to the session of another: the connection's number, or why
/// there is none.
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
    (own, here): DeviceAddress,
    (other, there): DeviceAddress,
    bytes: usize,
    fetches: bool,
) -> Result<String, CUresult> {
    let (session, served) = (session::of(own)?, session::of(other)?);
    // What the other has been given before comes before; what it is given after this comes after
    // the copy.
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
fn through_here((to, dst): DeviceAddress, (from, src): DeviceAddress, bytes: usize) -> Result<(), CUresult> {
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
