//! In which session and context a call of the program runs.

use std::sync::Arc;

use sluice_cuda::*;

use crate::abi::ids::{self, Kind};
use crate::context::{self, Context};
use crate::stream::{self, event};
use crate::{arrays, module, session};

/// The argument that says where a call belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Home {
    /// An object, which belongs to a device's node and to a context.
    Handle(usize),
    /// A function, which belongs to its module's context; a library's kernel belongs to none, and
    /// is the same on all devices.
    Function(usize),
    /// A device address, which belongs to a device's node. Only a context says in which order it is
    /// used.
    Address(CUdeviceptr),
}

impl Home {
    fn device(self) -> Option<CUdevice> {
        match self {
            Home::Handle(handle) => ids::device(handle as u64),
            Home::Function(_) => None,
            Home::Address(address) => session::of_address(address),
        }
    }

    /// The context that the argument carries.
    fn context(self) -> Option<Arc<Context>> {
        match self {
            Home::Handle(handle) | Home::Function(handle) => of_handle(handle as u64),
            Home::Address(_) => None,
        }
    }
}

/// Runs a call where its arguments belong: in the session of their device, and in their context
/// where the calling thread has none. CUDA takes the context of such a call from its handle
/// ("Stream and Event Behavior" in the CUDA Programming Guide, and `cuLaunchKernel`), so that a
/// thread which has never set one may wait for an event.
pub(crate) fn routed(
    home: Option<Home>,
    call: impl FnOnce() -> Result<(), CUresult>,
) -> Result<(), CUresult> {
    let Some(home) = home else { return call() };
    if session::are_many()
        && let Some(device) = home.device().filter(|&device| !session::is_here(device))
    {
        return context::at(device, call);
    }
    if context::check_current().is_ok() {
        return call();
    }
    match home.context() {
        Some(context) => context::within(context, call),
        None => call(),
    }
}

/// The context, if it is alive, that an object or a module's function belongs to. Graphs, pools and
/// memory that programs map themselves belong to a device alone: for these it is the device's
/// primary one.
fn of_handle(handle: u64) -> Option<Arc<Context>> {
    let owner = match ids::kind(handle)? {
        Kind::Stream => stream::owner(handle)?,
        Kind::Event => event::owner(handle)?,
        Kind::Module => module::owner(handle)?,
        Kind::Function | Kind::Kernel => module::owner_of_function(handle)?,
        Kind::Array | Kind::MipmappedArray => arrays::owner(handle)?,
        _ => context::primary_of(ids::device(handle)?)?.handle,
    };
    context::alive(owner)
}
