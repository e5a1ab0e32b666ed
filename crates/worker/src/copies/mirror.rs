//! Memory that program and device both use: the node's part in keeping the two sides the same.
//!
//! The client says what changed on its side, and asks what changed on the device's by naming the
//! contents that it knows. Both wait for no stream: the client sends a push before the work that is
//! to see it, and fetches after the work that it has waited for. Once the program has host
//! functions, both come beside the queue of commands ([`is_beside`]), where work may stand that
//! waits for a function which cannot begin, or end, without them. What is queued behind a push
//! waits for it.

use sluice_cuda::{CUdeviceptr, CUresult};
use sluice_wire::{BULK_SIZE_MAX, Command, DevicePtr, Encode, MIRROR_PAGE, Op, commands, page_hash};

use crate::session::Session;
use crate::session::execute::Execute;

/// Whether a command is one of these, and does not wait for those before it.
pub(crate) fn is_beside(op: Op, payload: &[u8]) -> bool {
    // It is the first field of both.
    [commands::MirrorPush::OP, commands::MirrorFetch::OP].contains(&op) && payload.first() == Some(&1)
}

/// Writes bytes to the device; they are there when it returns.
pub(crate) fn push(session: &Session, address: DevicePtr, bytes: &[u8]) -> Result<(), CUresult> {
    let copy = session.table.cuMemcpyHtoDAsync_v2.ok_or(CUresult::NOT_SUPPORTED)?;
    let to = session.range(address, bytes.len() as u64)?;
    let stream = session.mirror_stream()?;
    session.near((to, bytes.len() as u64), stream, |stream| {
        // SAFETY: the range is the session's; the bytes outlive the copy, which the synchronisation
        // waits for.
        unsafe { copy(to, bytes.as_ptr().cast(), bytes.len(), stream) }.ok()
    })?;
    synchronize(session)
}

/// Answers with the pages whose contents are not those that the client named.
pub(crate) fn fetch(
    session: &Session,
    command: &commands::MirrorFetch,
    reply: &mut Vec<u8>,
) -> Result<(), CUresult> {
    if command.bytes > BULK_SIZE_MAX as u64 {
        return Err(CUresult::INVALID_VALUE);
    }
    // Asked before the look, after which nothing is new where nothing runs. Of a command beside the
    // queue others may stand before it.
    let runs = command.beside || session.has_unfinished();
    let now = read(session, session.range(command.address, command.bytes)?, command.bytes as usize)?;
    if command.hashes.len() != now.chunks(MIRROR_PAGE).len() {
        return Err(CUresult::INVALID_VALUE);
    }
    let (mut pages, mut bytes) = (Vec::new(), Vec::new());
    for (index, (page, known)) in now.chunks(MIRROR_PAGE).zip(&command.hashes).enumerate() {
        if page_hash(page) != *known {
            pages.push(index as u32);
            bytes.extend_from_slice(page);
        }
    }
    commands::MirrorFetchReply { runs, pages, bytes: &bytes }.encode(reply);
    Ok(())
}

fn read(session: &Session, from: CUdeviceptr, count: usize) -> Result<Vec<u8>, CUresult> {
    let copy = session.table.cuMemcpyDtoHAsync_v2.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut bytes = vec![0; count];
    session.near((from, count as u64), session.mirror_stream()?, |stream| {
        // SAFETY: the caller has looked the range up; the buffer has as many bytes, and it outlives
        // the copy, which the synchronisation waits for.
        unsafe { copy(bytes.as_mut_ptr().cast(), from, count, stream) }.ok()
    })?;
    synchronize(session)?;
    Ok(bytes)
}

fn synchronize(session: &Session) -> Result<(), CUresult> {
    let synchronize = session.table.cuStreamSynchronize.ok_or(CUresult::NOT_SUPPORTED)?;
    // SAFETY: the stream is the session's own and never destroyed.
    unsafe { synchronize(session.mirror_stream()?) }.ok()
}
