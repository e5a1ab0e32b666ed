//! Attributes of launches, streams and kernel nodes: which of them a client may set, and how they
//! reach the driver.

use sluice_cuda::*;
use sluice_wire::{DevicePtr, commands};

use crate::session::Session;
use crate::session::checks;
use crate::session::execute::Execute;

/// The value of a stream's attribute, as its 16 words.
pub(crate) fn of_stream(
    session: &Session,
    command: &commands::cuStreamGetAttribute,
) -> Result<Vec<u32>, CUresult> {
    let get = session.table.cuStreamGetAttribute.ok_or(CUresult::NOT_SUPPORTED)?;
    checks::attribute_id(command.attr)?;
    let mut value = CUlaunchAttributeValue::default();
    // SAFETY: the stream is live, and the driver writes at most one value to a local.
    unsafe { get(session.find(command.hStream)?, command.attr, std::ptr::from_mut(&mut value).cast()) }
        .ok()?;
    Ok(value.words.to_vec())
}

/// Sets a stream's attribute, if it is a number or names memory of the session.
pub(crate) fn set_of_stream(
    session: &Session,
    command: &commands::cuStreamSetAttribute,
) -> Result<(), CUresult> {
    let set = session.table.cuStreamSetAttribute.ok_or(CUresult::NOT_SUPPORTED)?;
    let words = command.words.as_slice().try_into().map_err(|_| CUresult::INVALID_VALUE)?;
    let value = CUlaunchAttributeValue { words };
    let id = CUlaunchAttributeID(command.attr);
    match value.window(id) {
        // A window of no bytes takes an earlier one away, whatever its address.
        Some((_, 0)) => {}
        Some((address, bytes)) => drop(session.range(DevicePtr(address), bytes)?),
        None => checks::plain_value(id, &value)?,
    }
    // SAFETY: the stream is live, and the value, which outlives the call, names nothing that is not
    // the session's.
    unsafe { set(session.find(command.hStream)?, command.attr, std::ptr::from_ref(&value).cast()) }.ok()
}
