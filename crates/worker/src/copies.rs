//! Copies between the client's memory and the device: commands with their data ([`bulk`]), memory
//! of other GPUs ([`elsewhere`]), memory that both sides keep equal ([`mirror`]), and what a stream
//! does when it gets to a place ([`callbacks`]).

pub(crate) mod bulk;
pub(crate) mod callbacks;
pub(crate) mod elsewhere;
pub(crate) mod host_copies;
pub(crate) mod mirror;
use std::ptr::NonNull;

use sluice_cuda::{CUdeviceptr, CUresult, CUstream};
use sluice_wire::{BULK_SIZE_MAX, DevicePtr, Encode, commands};

use crate::copies::callbacks::Call;
use crate::live::mirrors::Reach;
use crate::outbox::staging::PIECE;
use crate::outbox::{Lying, Push};
use crate::pipeline;
use crate::pipeline::kinds::BULK_MIN;
use crate::process::ending;
use crate::session::Session;
use crate::session::execute::Execute;

/// Bytes that a copy for which the client waits moves at a time: while it takes one piece out of
/// the ring, or out of its socket, the driver makes the next. Over a far link whole pieces of the
/// pool go. Where the driver makes none, since the memory is sent without a copy, they go as well:
/// the fewer they are, the less often is the client woken.
const PIECE_NOW: usize = 256 << 10;

/// Whether a driver's synchronous functions use this stream.
fn is_default(stream: CUstream) -> bool {
    stream == CUstream::NULL || stream == CUstream::LEGACY
}

/// To the device, of data that came with the command, in stream order. Large ones enter the gate
/// themselves; many never get here (`bulk`).
pub(crate) fn to_device(
    session: &Session,
    command: &commands::cuMemcpyHtoDAsync_v2<'_>,
) -> Result<(), CUresult> {
    let copy = session.table.cuMemcpyHtoDAsync_v2.ok_or(CUresult::NOT_SUPPORTED)?;
    let from = command.srcHost;
    let to = session.range(command.dstDevice, from.len() as u64)?;
    let stream = session.find(command.hStream)?;
    if from.len() >= BULK_MIN {
        // SAFETY: the range is the session's.
        return unsafe { many_to_device(session, to, from, stream) };
    }
    let _copy = session.host_copy(stream)?;
    session.near((to, from.len() as u64), stream, |stream| {
        // SAFETY: the range is the session's. The source is pageable memory, which outside captures
        // the driver has read when the call returns (CUDA Driver API, API synchronization
        // behavior).
        unsafe { copy(to, from.as_ptr().cast(), from.len(), stream) }.ok()
    })
}

/// Many bytes, in the session's turn, without waiting for what stands before them in their stream:
/// that may itself wait for what comes behind them. So they are copied to pinned memory first,
/// which a driver reads when it gets there; of other memory it would wait.
///
/// # Safety
/// The range is the session's.
unsafe fn many_to_device(
    session: &Session,
    to: CUdeviceptr,
    from: &[u8],
    stream: CUstream,
) -> Result<(), CUresult> {
    // Nothing stands before them, and the device's memory is this process's.
    if session.reach == Reach::Everything && pipeline::is_idle(session) {
        // SAFETY: the caller vouches for the range.
        return unsafe { write_now(session, to, from, stream) };
    }
    let copy = session.table.cuMemcpyHtoDAsync_v2.ok_or(CUresult::NOT_SUPPORTED)?;
    let synchronize = session.table.cuStreamSynchronize.ok_or(CUresult::NOT_SUPPORTED)?;
    let (_, device) = session.device()?;
    let mut to = to;
    for part in from.chunks(PIECE) {
        // Who waits for a piece holds no turn.
        let mut piece = session.staging.take_for_device(&session.table, stream, part)?;
        let _submission = device.gate.enter();
        let _call = device.gate.backlog().call();
        let _copy = session.host_copy(stream)?;
        session.near((to, part.len() as u64), stream, |stream| {
            // SAFETY: the caller vouches for the range; the piece stays taken until the copy is
            // done.
            unsafe { copy(to, piece.address(), part.len(), stream) }.ok()
        })?;
        match session.event_behind(stream) {
            Ok(behind) => piece.give_back_behind(stream, behind),
            // SAFETY: the stream is live.
            Err(_) => unsafe { synchronize(stream) }.ok()?,
        }
        to += part.len() as u64;
    }
    Ok(())
}

/// Copies to the device, and returns when that is done.
///
/// # Safety
/// The range is the session's, and `from` is valid for reading `count` bytes.
pub(crate) unsafe fn to_device_now(
    session: &Session,
    to: CUdeviceptr,
    from: *const u8,
    count: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let synchronize = session.table.cuStreamSynchronize.ok_or(CUresult::NOT_SUPPORTED)?;
    let _copy = session.host_copy(stream)?;
    session.near((to, count as u64), stream, |stream| {
        match (session.table.cuMemcpyHtoD_v2, session.table.cuMemcpyHtoDAsync_v2) {
            // SAFETY: the caller vouches for both sides.
            (Some(copy), _) if is_default(stream) => unsafe { copy(to, from.cast(), count) },
            // SAFETY: as above; the synchronisation waits for the copy.
            (_, Some(copy)) => unsafe { copy(to, from.cast(), count, stream) },
            _ => CUresult::NOT_SUPPORTED,
        }
        .ok()
    })?;
    // A synchronous copy of pageable memory may return before its last bytes are on the device
    // (CUDA Driver API, API synchronization behavior). SAFETY: the stream is live.
    unsafe { synchronize(stream) }.ok()
}

/// As [`to_device_now`], in the session's turn.
///
/// # Safety
/// The range is the session's.
pub(crate) unsafe fn write_now(
    session: &Session,
    to: CUdeviceptr,
    bytes: &[u8],
    stream: CUstream,
) -> Result<(), CUresult> {
    let (_, device) = session.device()?;
    let submission = device.gate.enter();
    // SAFETY: the caller vouches for the range; pointer and length are of a slice.
    unsafe { to_device_now(session, to, bytes.as_ptr(), bytes.len(), stream)? };
    submission.finished();
    Ok(())
}

/// From the device, in stream order: the data follow when the stream gets there.
pub(crate) fn to_host(session: &Session, command: &commands::cuMemcpyDtoHAsync_v2) -> Result<(), CUresult> {
    let copy = session.table.cuMemcpyDtoHAsync_v2.ok_or(CUresult::NOT_SUPPORTED)?;
    let from = session.range(command.srcDevice, command.ByteCount)?;
    let stream = session.find(command.hStream)?;
    let _copy = session.host_copy(stream)?;
    let mut done = 0;
    while done < command.ByteCount {
        let length = (command.ByteCount - done).min(PIECE as u64);
        session.outbox.wait_room_for_small(length as usize);
        let mut bytes = session.staging.take(&session.table, length as usize)?;
        session.near((from + done, length), stream, |stream| {
            // SAFETY: the range is the session's; the piece stays taken until its push has been
            // sent, which the stream triggers after the copy.
            unsafe { copy(bytes.address(), from + done, length as usize, stream) }.ok()
        })?;
        let offset = command.offset.saturating_add(done);
        let push = Push::Data { ticket: command.ticket, offset, bytes };
        session.call_in_order(stream, Call::Push(push))?;
        done += length;
    }
    Ok(())
}

/// From the device, for a client that waits. Few bytes are the answer; many go under the client's
/// ticket, as they are copied, and the answer comes after them.
///
/// Between the pieces other threads of the program may give the stream more work: the thread that
/// copies waits, so nothing that the program knows to come after the copy can come before its end.
pub(crate) fn to_host_now(
    session: &Session,
    command: &commands::cuMemcpyDtoH_v2,
    reply: &mut Vec<u8>,
) -> Result<(), CUresult> {
    let stream = session.find(command.hStream)?;
    if command.ticket != 0 {
        session.range(command.srcDevice, command.ByteCount)?;
        push_now(session, command, stream)?;
        commands::cuMemcpyDtoH_v2Reply { dstHost: &[] }.encode(reply);
        return Ok(());
    }
    if command.ByteCount > BULK_SIZE_MAX as u64 {
        return Err(CUresult::INVALID_VALUE);
    }
    let mut bytes = vec![0_u8; command.ByteCount as usize];
    // SAFETY: the buffer has as many bytes, and it outlives the copy.
    unsafe { copy_now(session, bytes.as_mut_ptr(), command.srcDevice, bytes.len(), stream)? };
    commands::cuMemcpyDtoH_v2Reply { dstHost: &bytes }.encode(reply);
    Ok(())
}

/// Whether a copy for which the client waits is too large to be sent before the client takes it.
pub(crate) fn is_pushed(payload: &[u8]) -> bool {
    // Its ticket comes first; what is malformed is found later.
    payload.iter().take(8).any(|byte| *byte != 0)
}

fn push_now(
    session: &Session,
    command: &commands::cuMemcpyDtoH_v2,
    stream: CUstream,
) -> Result<(), CUresult> {
    let synchronize = session.table.cuStreamSynchronize.ok_or(CUresult::NOT_SUPPORTED)?;
    // Waiting for what stands before it takes no turn.
    // SAFETY: the stream is live.
    unsafe { synchronize(stream) }.ok()?;
    let (_, device) = session.device()?;
    let given = device.streams.mark();
    let lies_here = can_be_sent(session, (command.srcDevice.0, command.ByteCount), stream);
    let mut done = 0;
    while done < command.ByteCount {
        // Nothing else is said to the client meanwhile, so not where the copy may have to wait for
        // what another thread has given the stream.
        let in_place = session.outbox.writes_in_place() && device.streams.mark() == given;
        let piece = if !in_place && (lies_here || session.staging.is_far()) { PIECE } else { PIECE_NOW };
        let length = (command.ByteCount - done).min(piece as u64) as usize;
        let from = DevicePtr(command.srcDevice.0 + done);
        if in_place {
            push_in_place(session, command.ticket, done, from, length, stream)?;
        } else if !lies_here || !push_lying(session, command.ticket, done, from, length) {
            let window = session.outbox.window();
            let mut bytes = session.staging.take_more(&session.table, length, window)?;
            // SAFETY: the piece has room for `length` bytes, and is ours.
            unsafe { copy_now(session, bytes.address().cast(), from, length, stream)? };
            let push = Push::Data { ticket: command.ticket, offset: done, bytes };
            // While that is sent the driver makes the next.
            session.outbox.push_soon(push);
        }
        done += length as u64;
    }
    Ok(())
}

/// Whether device memory can be sent without a copy, since it is in this process; if so, what the
/// copy has to wait for is done.
fn can_be_sent(session: &Session, (from, count): (u64, u64), stream: CUstream) -> bool {
    session.reach == Reach::Everything
        && session.outbox.sends_lying()
        && sluice_softgpu::wait_to_read(stream, from, count)
}

/// Sends memory that lies here; false if the link has become one that cannot. The device has no
/// part in it.
fn push_lying(session: &Session, ticket: u64, offset: u64, from: DevicePtr, length: usize) -> bool {
    let Some(start) = NonNull::new(from.0 as *mut u8) else { return false };
    let pushed = session.outbox.push_lying(ticket, offset, Lying { start, length });
    pushed.unwrap_or_else(|_| ending::client_gone())
}

/// The driver copies to where the client reads.
fn push_in_place(
    session: &Session,
    ticket: u64,
    offset: u64,
    from: DevicePtr,
    length: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let (_, device) = session.device()?;
    loop {
        // The client takes its time, and meanwhile no thread waits for this thread's turn or locks.
        session.outbox.wait_room(length).unwrap_or_else(|_| ending::client_gone());
        let submission = device.gate.enter();
        let pushed = session.outbox.push_in_place(ticket, offset, length, |to| {
            // SAFETY: the ring gives `length` bytes to write.
            unsafe { copy(session, to, from, length, stream) }
        });
        match pushed.unwrap_or_else(|_| ending::client_gone()) {
            Some(result) => {
                submission.finished();
                return result;
            }
            // Another thread has taken the room.
            None => submission.finished(),
        }
    }
}

/// As [`copy`], in the session's turn.
///
/// # Safety
/// `to` is valid for writing `count` bytes.
pub(crate) unsafe fn copy_now(
    session: &Session,
    to: *mut u8,
    from: DevicePtr,
    count: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let (_, device) = session.device()?;
    let submission = device.gate.enter();
    // SAFETY: the caller's promise is the same.
    unsafe { copy(session, to, from, count, stream)? };
    submission.finished();
    Ok(())
}

/// Copies from the device, and returns when that is done.
///
/// # Safety
/// `to` is valid for writing `count` bytes.
unsafe fn copy(
    session: &Session,
    to: *mut u8,
    from: DevicePtr,
    count: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let copy = session.table.cuMemcpyDtoHAsync_v2.ok_or(CUresult::NOT_SUPPORTED)?;
    let synchronize = session.table.cuStreamSynchronize.ok_or(CUresult::NOT_SUPPORTED)?;
    let from = session.range(from, count as u64)?;
    let _copy = session.host_copy(stream)?;
    let memory = (from, count as u64);
    if let Some(copy) = session.table.cuMemcpyDtoH_v2
        && is_default(stream)
        && session.is_near(&[memory], stream)?
    {
        // SAFETY: the range is the session's, the caller vouches for the buffer, and the call waits
        // for the copy.
        return unsafe { copy(to.cast(), from, count) }.ok();
    }
    // SAFETY: as above; the synchronisation waits for the copy.
    session.near(memory, stream, |stream| unsafe { copy(to.cast(), from, count, stream) }.ok())?;
    // SAFETY: the stream is live.
    unsafe { synchronize(stream) }.ok()
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use super::*;
    use crate::malformed::honest::populate;
    use crate::malformed::known::Known;
    use crate::malformed::stage::{RESERVATION, Stage};
    use crate::memory::chunks::CHUNK;
    use sluice_wire::{Command, StreamId, decode};

    /// What a stream waits for.
    unsafe extern "C" fn wait(go_on: *mut c_void) {
        // SAFETY: the test keeps it until the stream is done.
        let _ = unsafe { &*go_on.cast::<Receiver<()>>() }.recv();
    }

    #[test]
    fn a_large_copy_does_not_wait_for_what_stands_before_it() {
        let (mut stage, mut known) = (Stage::new(), Known::default());
        assert_eq!(populate(&stage, &mut known, 1), []);
        let (stream, start) = (StreamId(known.minted), DevicePtr(RESERVATION + 8 * CHUNK));
        let bytes: Vec<u8> = (0..BULK_SIZE_MAX).map(|at| (at % 251) as u8).collect();
        let (release, go_on) = channel::<()>();
        let table = stage.session().table;
        let _ = stage.driver();
        let handle = stage.session().find(stream).unwrap();
        let data = (&raw const go_on).cast_mut().cast();
        // SAFETY: the stream is live, and what it waits for outlives it.
        unsafe { table.cuLaunchHostFunc.unwrap()(handle, Some(wait), data) }.ok().unwrap();
        let (done, heard) = channel();
        let in_time = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut payload = Vec::new();
                let copy =
                    commands::cuMemcpyHtoDAsync_v2 { dstDevice: start, hStream: stream, srcHost: &bytes };
                copy.encode(&mut payload);
                done.send(stage.send(commands::cuMemcpyHtoDAsync_v2::OP, &payload)).unwrap();
            });
            let in_time = heard.recv_timeout(Duration::from_secs(20));
            release.send(()).unwrap();
            in_time
        });
        assert_eq!(in_time, Ok(Ok(Vec::new())));
        let mut payload = Vec::new();
        let back = commands::cuMemcpyDtoH_v2 {
            ticket: 0,
            srcDevice: start,
            ByteCount: bytes.len() as u64,
            hStream: stream,
        };
        back.encode(&mut payload);
        let reply = stage.send(commands::cuMemcpyDtoH_v2::OP, &payload).unwrap();
        assert!(decode::<commands::cuMemcpyDtoH_v2Reply<'_>>(&reply).unwrap().dstHost == bytes);
    }

    #[test]
    fn a_copy_with_a_ticket_is_pushed() {
        let of = |ticket| {
            let mut payload = Vec::new();
            let command = commands::cuMemcpyDtoH_v2 {
                ticket,
                srcDevice: DevicePtr(1 << 40),
                ByteCount: 5,
                hStream: StreamId(1),
            };
            command.encode(&mut payload);
            is_pushed(&payload)
        };
        assert!(of(1) && of(1 << 63) && !of(0) && !is_pushed(&[]));
    }
}
