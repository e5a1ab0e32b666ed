//! What the calling thread of the worker executes now, and the context that it has made current.

use std::cell::Cell;

use sluice_cuda::{CUcontext, CUresult, DriverTable};
use sluice_wire::{GreenCtxId, Header, Kind};

thread_local! {
    /// The command that this thread of the worker executes now.
    static CURRENT: Cell<Header> =
        const { Cell::new(Header { kind: Kind::Command, device: 0, op: 0, lane: 0, sequence: 0 }) };
    /// The device of that place.
    static DEVICE: Cell<u8> = const { Cell::new(0) };
    /// The place whose context this thread has made current in the driver, and which green context
    /// was there: another one may come to be there.
    static ENTERED: Cell<Option<Place>> = const { Cell::new(None) };
}

/// A place of the lease, and the green context that is there.
type Place = (u8, Option<GreenCtxId>);

/// The command that this thread executes now.
pub(crate) fn current() -> Header {
    CURRENT.get()
}

/// The device on which it executes that command, as its place in the lease.
pub(crate) fn current_device() -> u8 {
    DEVICE.get()
}

/// This thread executes another command from now on.
pub(crate) fn begin(header: Header) {
    CURRENT.set(header);
}

/// The command is for this device.
pub(crate) fn is_for(device: u8) {
    DEVICE.set(device);
}

/// Makes a context current for this thread, unless it has been so since the thread entered the same
/// place.
pub(crate) fn enter(place: Place, table: &DriverTable, context: CUcontext) -> Result<(), CUresult> {
    if ENTERED.get() == Some(place) {
        return Ok(());
    }
    make_current(table, context)?;
    ENTERED.set(Some(place));
    Ok(())
}

/// Makes a context current on the calling thread.
pub(crate) fn make_current(table: &DriverTable, context: CUcontext) -> Result<(), CUresult> {
    let set_current = table.cuCtxSetCurrent.ok_or(CUresult::NOT_SUPPORTED)?;
    ENTERED.set(None);
    // SAFETY: the context is a primary one that this process retains until its end, or a green one
    // in its place.
    unsafe { set_current(context) }.ok()
}
