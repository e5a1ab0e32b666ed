//! Calls that name objects or memory of another node than the calling thread's.

use sluice_cuda::*;
use sluice_wire::commands;

use crate::abi::ids;
use crate::context;
use crate::session::issue::Issue;
use crate::session::{self, Session};

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
            "{address:#x} is memory of node {}, and a call on node {} names it: memory of another node can only \
             be copied, by cuMemcpy and its like",
            other.node.place(),
            session.node.place()
        );
    }
}

/// What a call in a capture is refused with where it concerns two nodes.
pub(crate) fn not_captured() -> CUresult {
    crate::say_once!(
        "a graph lies on one node: work on another node cannot be captured into it; do that outside the capture"
    );
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
