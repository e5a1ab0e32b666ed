//! What concerns two nodes at once: copies between their memories, and waits of one node's streams for another's events.
//!
//! A node knows nothing of the others, so both are made here. The calling thread waits for what has to be over first, on the
//! one node, and only then gives the other its part: what it gives later comes later there, too. That costs the asynchrony
//! of these calls, and nothing of their order.

use sluice_cuda::*;
use sluice_wire::commands;

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
            other.node,
            session.node
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

/// A copy of which at least one side is on another node than the stream. It is over when this returns.
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
        return Err(not_captured());
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

/// From one node's memory to another's, through this process.
fn between((to, dst): (CUdevice, u64), (from, src): (CUdevice, u64), bytes: usize) -> Result<(), CUresult> {
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
