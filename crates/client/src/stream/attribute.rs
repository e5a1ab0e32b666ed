//! Attributes of streams: the node's driver keeps them. Only the priority is known here, too, since
//! programs ask for it by a call of its own.

use std::ffi::c_void;

use sluice_cuda::*;
use sluice_wire::commands;

use crate::abi::out;
use crate::session::issue::{Issue, wanted};
use crate::{session, stream};

// The entry points. CUDA Driver API, section "Stream Management".

pub(crate) unsafe fn cuStreamGetAttribute(
    hStream: CUstream,
    attr: u32,
    value_out: *mut c_void,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(value_out)?;
    let command = commands::cuStreamGetAttribute { hStream: session.find(hStream)?, attr };
    let words = session.call(&command, |answer| answer.words)?;
    let words = words.try_into().map_err(|_| CUresult::UNKNOWN)?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(value_out.cast(), CUlaunchAttributeValue { words }) }
}

pub(crate) unsafe fn cuStreamSetAttribute(
    hStream: CUstream,
    attr: u32,
    value: *const c_void,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    if value.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the program passes a value.
    let value = unsafe { value.cast::<CUlaunchAttributeValue>().read_unaligned() };
    if let Some((address, bytes)) = value.window(CUlaunchAttributeID(attr))
        && bytes != 0
    {
        session.range(address, bytes)?;
    }
    let words = value.words.to_vec();
    session
        .call(&commands::cuStreamSetAttribute { hStream: session.find(hStream)?, attr, words }, |()| ())?;
    if CUlaunchAttributeID(attr) == CUlaunchAttributeID::PRIORITY {
        stream::set_priority(session, hStream, value.number())?;
    }
    Ok(())
}
