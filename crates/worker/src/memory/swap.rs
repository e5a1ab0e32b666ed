//! Moving a session's memory from its GPUs to host memory, and back to the same addresses.
//!
//! ```text
//!   out:  close the session -> copy everything -> unmap and release what was copied
//!   in:   create and map -> copy everything back -> open the session
//! ```
//!
//! Either direction has copied all bytes before it gives anything up. So a step that fails leaves
//! the session where it was: on its GPUs with its memory untouched, or away with every byte still
//! in host memory.
//!
//! Not everything can move. What stays on the GPUs is counted by reason ([`Kept`]): memory that
//! other processes have, too, and memory that the program uses while device code runs are pinned by
//! what shares them; what programs map by themselves, module variables, arrays, and what the driver
//! allocates for itself are not made here.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sluice_cuda::{CU_STREAM_NON_BLOCKING, CUresult, CUstream, DriverTable};

use super::extent::{self, Extent, Place};
use super::host::{self, HostPiece};
use super::{Backing, State, unback};
use crate::link::{Kept, Packet};
use crate::session::{Device, Session, make_current};

/// What is written to device memory that has been copied, where a node looks for uses of memory
/// that is away.
const POISON: u8 = 0xA5;

/// What has left the GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Out {
    /// Bytes on each GPU of the lease.
    pub(crate) moved: Vec<u64>,
    /// Bytes of the session that are still there.
    pub(crate) stays: Vec<u64>,
    pub(crate) kept: Vec<Kept>,
}

/// How memory is to leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Work that was submitted has this long to finish.
    pub(crate) patience: Duration,
    /// Bytes of host memory that may be used.
    pub(crate) room: u64,
    /// Whether device memory is overwritten before it is released.
    pub(crate) poisons: bool,
}

/// Why memory has not moved; the session is as it was before.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotMoved {
    #[error("its work on the GPU did not finish within {0} s")]
    Busy(u64),
    #[error(
        "it needs {needed} bytes of host memory, and the node has {room} left for memory of suspended programs"
    )]
    Room { needed: u64, room: u64 },
    #[error("the node has no host memory: {0}")]
    Host(#[from] std::io::Error),
    #[error("the driver's {step} failed ({result})")]
    Driver { step: &'static str, result: CUresult },
}

impl NotMoved {
    fn driver(step: &'static str) -> impl Fn(CUresult) -> NotMoved {
        move |result| NotMoved::Driver { step, result }
    }
}

/// Has the session's memory leave its GPUs. After that the session executes nothing until
/// [`move_in`].
pub(crate) fn move_out(session: &Session, terms: Terms) -> Result<Out, NotMoved> {
    let _mover = session.memory.mover();
    if session.presence.is_absent() {
        // Of a session that began suspended: it has nothing yet.
        let none = vec![0; session.devices.len()];
        return Ok(Out { moved: none.clone(), stays: none, kept: Vec::new() });
    }
    with_quiet_session(session, terms.patience, || {
        let out = leave(session, terms)?;
        session.budget.drop_reserves();
        Ok(out)
    })
}

/// What has come back to the GPUs.
#[derive(Debug, Default)]
pub(crate) struct Back {
    /// Bytes on each GPU of the lease.
    pub(crate) moved: Vec<u64>,
    /// The host memory in which they were, unless it is kept. Giving it back to the system takes as
    /// long as a part of the copies, and the session need not wait for it.
    pub(crate) emptied: Vec<HostPiece>,
}

/// Has the memory come back to its addresses, after which the session continues. The host memory in
/// which it was may be kept for the next time.
pub(crate) fn move_in(session: &Session, keeps: bool) -> Result<Back, NotMoved> {
    let _mover = session.memory.mover();
    if !session.presence.is_absent() {
        return Ok(Back { moved: vec![0; session.devices.len()], ..Back::default() });
    }
    let mut back = while_drivers_run(session, || {
        if !session.budget.take_reserves() {
            let result = CUresult::OUT_OF_MEMORY;
            return Err(NotMoved::Driver { step: "cuMemCreate", result });
        }
        let back = come_back(session);
        if back.is_err() {
            session.budget.drop_reserves();
        }
        back
    })?;
    session.presence.open();
    if keeps {
        session.memory.lock().spare = std::mem::take(&mut back.emptied);
    }
    Ok(back)
}

/// Makes one extent of the memory of a commitment, so that it can be shared. The caller must not be
/// using the session's memory. False where the memory is away: the caller comes back when it is
/// present.
pub(crate) fn join(session: &Session, address: u64, patience: Duration) -> Result<bool, NotMoved> {
    let _mover = session.memory.mover();
    if session.presence.is_absent() {
        return Ok(false);
    }
    with_quiet_session(session, patience, || {
        let joined = join_run(session, address);
        session.presence.open();
        joined.map(|()| true)
    })
}

/// Does something once the session's work has finished and while it can make no more. The session
/// is open again after an error.
pub(crate) fn with_quiet_session<R, E: From<NotMoved>>(
    session: &Session,
    patience: Duration,
    act: impl FnOnce() -> Result<R, E>,
) -> Result<R, E> {
    let until = Instant::now() + patience;
    let busy = || NotMoved::Busy(patience.as_secs());
    if !session.presence.close(patience, || session.is_quiet()) {
        return Err(busy().into());
    }
    let done = while_drivers_run(session, || {
        if !session.devices.iter().all(|device| device.streams.settles(until)) {
            return Err(busy().into());
        }
        // What the client has not acknowledged may be sent again, from memory that is about to go.
        session.outbox.copy_lent(|address, bytes| session.memory.covers(address, bytes));
        act()
    });
    if done.is_err() {
        session.presence.open();
    }
    done
}

/// Lets drivers that are paused between time slices make the copies of this module.
pub(crate) fn while_drivers_run<R>(session: &Session, act: impl FnOnce() -> R) -> R {
    session.devices.iter().for_each(|device| device.gate.begin_moving());
    let done = act();
    session.devices.iter().for_each(|device| device.gate.end_moving());
    done
}

/// Does what the daemon asks for, and answers by `say`; anything but the two moves is passed over.
pub(crate) fn obey(session: &Session, asked: &Packet, say: impl FnOnce(Packet)) {
    let begin = Instant::now();
    let took_us = || begin.elapsed().as_micros() as u64;
    let mut emptied = Vec::new();
    say(match *asked {
        Packet::MoveOut { room, work_limit_ms, poisons } => {
            let patience = Duration::from_millis(work_limit_ms);
            match move_out(session, Terms { patience, room, poisons }) {
                Ok(Out { moved, stays, kept }) => Packet::MovedOut { moved, stays, kept, took_us: took_us() },
                Err(error) => Packet::NotMovedOut { reason: error.to_string() },
            }
        }
        Packet::MoveIn { keeps } => match move_in(session, keeps) {
            Ok(back) => {
                emptied = back.emptied;
                Packet::MovedIn { moved: back.moved, took_us: took_us() }
            }
            Err(error) => {
                if let NotMoved::Driver { result: CUresult::OUT_OF_MEMORY, .. } = error {
                    say_what_is_free(session);
                }
                Packet::NotMovedIn { reason: error.to_string() }
            }
        },
        _ => return,
    });
    // After the answer, so that the session does not wait for it.
    drop(emptied);
}

/// Tells the daemon how much the GPU has for memory that cannot return. Sessions on several GPUs do
/// not leave for others, so nothing is planned around them.
fn say_what_is_free(session: &Session) {
    if let [device] = &*session.devices
        && make_current(&session.table, device.context).is_ok()
    {
        session.budget.say_full(0);
    }
}

/// Copies of extents in one direction, on a stream of its own for each GPU.
struct Copies<'a> {
    session: &'a Session,
    streams: BTreeMap<u32, CUstream>,
}

impl<'a> Copies<'a> {
    fn new(session: &'a Session) -> Copies<'a> {
        Copies { session, streams: BTreeMap::new() }
    }

    fn device(&self, gpu: u32) -> Result<&'a Device, NotMoved> {
        let step = "device table";
        let result = CUresult::INVALID_DEVICE;
        self.session.devices.get(gpu as usize).ok_or(NotMoved::Driver { step, result })
    }

    /// The stream of a GPU, whose context is current from now on.
    fn stream(&mut self, gpu: u32) -> Result<CUstream, NotMoved> {
        let table = &self.session.table;
        make_current(table, self.device(gpu)?.context).map_err(NotMoved::driver("cuCtxSetCurrent"))?;
        if let Some(&stream) = self.streams.get(&gpu) {
            return Ok(stream);
        }
        let step = "cuStreamCreate";
        let create = required(table.cuStreamCreate, step)?;
        let mut stream = CUstream::NULL;
        // SAFETY: the driver writes one handle to a local.
        unsafe { create(&mut stream, CU_STREAM_NON_BLOCKING) }.ok().map_err(NotMoved::driver(step))?;
        self.streams.insert(gpu, stream);
        Ok(stream)
    }

    fn copy_out(&mut self, gpu: u32, piece: &HostPiece, address: u64, bytes: u64) -> Result<(), NotMoved> {
        let (stream, step) = (self.stream(gpu)?, "cuMemcpyDtoHAsync");
        let copy = required(self.session.table.cuMemcpyDtoHAsync_v2, step)?;
        // SAFETY: the extent is mapped there, the piece has as many bytes and outlives the copy,
        // since `finish` waits for it.
        let done = unsafe { copy(piece.address(), address, bytes as usize, stream) };
        done.ok().map_err(NotMoved::driver(step))
    }

    fn copy_in(&mut self, gpu: u32, address: u64, piece: &HostPiece, bytes: u64) -> Result<(), NotMoved> {
        let (stream, step) = (self.stream(gpu)?, "cuMemcpyHtoDAsync");
        let copy = required(self.session.table.cuMemcpyHtoDAsync_v2, step)?;
        // SAFETY: as in `copy_out`.
        let done = unsafe { copy(address, piece.address(), bytes as usize, stream) };
        done.ok().map_err(NotMoved::driver(step))
    }

    fn poison(&mut self, gpu: u32, address: u64, bytes: u64) -> Result<(), NotMoved> {
        let (stream, step) = (self.stream(gpu)?, "cuMemsetD8Async");
        let fill = required(self.session.table.cuMemsetD8Async, step)?;
        // SAFETY: the extent is mapped there.
        unsafe { fill(address, POISON, bytes as usize, stream) }.ok().map_err(NotMoved::driver(step))
    }

    /// Waits for all copies so far.
    fn finish(&mut self) -> Result<(), NotMoved> {
        let (step, mut done) = ("cuStreamSynchronize", Ok(()));
        let wait = required(self.session.table.cuStreamSynchronize, step)?;
        let gpus: Vec<u32> = self.streams.keys().copied().collect();
        for gpu in gpus {
            let stream = self.stream(gpu)?;
            // SAFETY: the stream is ours and live.
            done = done.and(unsafe { wait(stream) }.ok());
        }
        done.map_err(NotMoved::driver(step))
    }
}

impl Drop for Copies<'_> {
    fn drop(&mut self) {
        // The memory of copies goes after this, so none may be left, also after an error.
        let _ = self.finish();
        let Some(destroy) = self.session.table.cuStreamDestroy_v2 else { return };
        for &stream in self.streams.values() {
            // SAFETY: made here, nothing is left in it, and forgotten now.
            let _ = unsafe { destroy(stream) };
        }
    }
}

fn required<F>(function: Option<F>, step: &'static str) -> Result<F, NotMoved> {
    function.ok_or(NotMoved::Driver { step, result: CUresult::NOT_SUPPORTED })
}

/// An extent that moves: the start of its commitment, its place there, and its address.
#[derive(Clone, Copy)]
struct Moving {
    start: u64,
    index: usize,
    address: u64,
    bytes: u64,
    gpu: u32,
}

/// Why a commitment stays where it is, if it does.
fn pinned(session: &Session, start: u64, bytes: u64, backing: &Backing) -> Option<&'static str> {
    match backing {
        Backing::Committed { export: Some(_), .. } => Some("shared with other processes of the lease"),
        Backing::Committed { .. } if session.live.has_any_of(start, bytes) => {
            Some("used by the program while kernels run")
        }
        Backing::Committed { .. } => None,
        Backing::Mapped(_) => Some("mapped by the program itself (cuMemMap)"),
        Backing::OnHost { .. } | Backing::Pending => Some(""),
    }
}

/// The extents that can move, and what cannot.
fn plan(session: &Session, state: &mut State) -> (Vec<Moving>, Vec<Kept>) {
    let (mut moving, mut kept) = (Vec::new(), BTreeMap::<&str, u64>::new());
    for (start, run) in state.chunks.iter() {
        if let Some(reason) = pinned(session, start, run.bytes, &run.backing) {
            *kept.entry(reason).or_default() += run.bytes;
            continue;
        }
        let Backing::Committed { extents, gpu, .. } = &run.backing else { continue };
        for (index, (address, extent)) in extent::placed(start, extents).enumerate() {
            if extent.is_on_device() {
                moving.push(Moving { start, index, address, bytes: extent.bytes, gpu: *gpu });
            }
        }
    }
    // Host memory is no matter of the GPUs.
    kept.remove("");
    let kept = kept.into_iter().map(|(reason, bytes)| Kept { reason: reason.to_owned(), bytes }).collect();
    (moving, kept)
}

fn leave(session: &Session, terms: Terms) -> Result<Out, NotMoved> {
    let state = &mut *session.memory.lock();
    let (moving, mut kept) = plan(session, state);
    let needed = moving.iter().map(|extent| extent.bytes).sum();
    if needed > terms.room {
        return Err(NotMoved::Room { needed, room: terms.room });
    }
    let spare = std::mem::take(&mut state.spare);
    let pieces = copy_out(session, &moving, spare)?;
    let mut moved = vec![0; session.devices.len()];
    for (extent, piece) in moving.iter().zip(pieces) {
        if terms.poisons
            && let Err(error) = poison(session, extent)
        {
            // Part of it may have been overwritten.
            put_back(session, extent, &piece);
            eprintln!("sluice worker: device memory that was copied could not be overwritten: {error}");
        }
        match park(&session.table, state, extent, piece) {
            Ok(()) => moved[extent.gpu as usize] += extent.bytes,
            Err(Stays { result, piece }) => {
                if terms.poisons {
                    piece.iter().for_each(|piece| put_back(session, extent, piece));
                }
                let reason = format!("not released by the driver ({result})");
                kept.push(Kept { reason, bytes: extent.bytes });
            }
        }
    }
    let stays = (0_u32..).zip(&moved).map(|(gpu, moved)| session.budget.taken(gpu).saturating_sub(*moved));
    Ok(Out { stays: stays.collect(), moved, kept })
}

fn poison(session: &Session, extent: &Moving) -> Result<(), NotMoved> {
    let mut fills = Copies::new(session);
    fills.poison(extent.gpu, extent.address, extent.bytes)?;
    fills.finish()
}

/// Writes the bytes of an extent to where they were.
fn put_back(session: &Session, extent: &Moving, piece: &HostPiece) {
    let mut copies = Copies::new(session);
    let copied = copies.copy_in(extent.gpu, extent.address, piece, extent.bytes);
    if let Err(error) = copied.and_then(|()| copies.finish()) {
        crate::ending::failed(&format!("device memory could be neither released nor restored: {error}"));
    }
}

/// Host memory with the contents of extents, in their order. Nothing has changed on the device when
/// this returns.
fn copy_out(session: &Session, moving: &[Moving], spare: Vec<HostPiece>) -> Result<Vec<HostPiece>, NotMoved> {
    let sizes: Vec<u64> = moving.iter().map(|extent| extent.bytes).collect();
    let mut pieces = Vec::with_capacity(moving.len());
    // Declared after the pieces, so that it is dropped, and its copies are over, before them.
    let mut copies = Copies::new(session);
    // The driver pins and releases memory for a thread that has a context.
    if let Some(first) = moving.first() {
        copies.stream(first.gpu)?;
    }
    host::pieces(&sizes, spare, |mut piece| {
        let extent = &moving[pieces.len()];
        copies.stream(extent.gpu)?;
        piece.pin(&session.table);
        let begun = copies.copy_out(extent.gpu, &piece, extent.address, extent.bytes);
        pieces.push(piece);
        begun
    })?;
    copies.finish()?;
    drop(copies);
    Ok(pieces)
}

/// An extent that the driver has not released.
struct Stays {
    result: CUresult,
    /// Its bytes, if it is still mapped.
    piece: Option<HostPiece>,
}

/// Releases the device memory of an extent whose bytes are in a piece of host memory. What the
/// driver does not unmap stays there.
fn park(table: &DriverTable, state: &mut State, moving: &Moving, piece: HostPiece) -> Result<(), Stays> {
    let stays = |result, piece| Stays { result, piece };
    let handle = match state.extent(moving.start, moving.index) {
        Some(Extent { place: Place::Device(handle), .. }) => *handle,
        _ => return Err(stays(CUresult::INVALID_VALUE, None)),
    };
    if let Err(result) = super::unmap(table, moving.address, moving.bytes) {
        return Err(stays(result, Some(piece)));
    }
    if let Some(extent) = state.extent_mut(moving.start, moving.index) {
        extent.place = Place::Parked(piece);
    }
    let release = table.cuMemRelease.ok_or(stays(CUresult::NOT_SUPPORTED, None))?;
    // SAFETY: the handle came from `cuMemCreate`, nothing maps it, and this is its only release.
    unsafe { release(handle) }.ok().map_err(|result| stays(result, None))
}

/// The extents that are parked.
fn parked(state: &State) -> Vec<Moving> {
    let mut parked = Vec::new();
    for (start, run) in state.chunks.iter() {
        let Backing::Committed { extents, gpu, .. } = &run.backing else { continue };
        for (index, (address, extent)) in extent::placed(start, extents).enumerate() {
            if !extent.is_on_device() {
                parked.push(Moving { start, index, address, bytes: extent.bytes, gpu: *gpu });
            }
        }
    }
    parked
}

fn come_back(session: &Session) -> Result<Back, NotMoved> {
    let state = &mut *session.memory.lock();
    let moving = parked(state);
    let mut handles = Vec::with_capacity(moving.len());
    let back = map_all(session, &moving, &mut handles)
        .and_then(|()| share_all(session, state, &moving))
        .and_then(|()| fill_all(session, state, &moving));
    if let Err(error) = back {
        for (extent, handle) in moving.iter().zip(handles) {
            // The bytes are still in host memory. What is not released now is when the process
            // ends.
            let _ = unback(&session.table, extent.address, extent.bytes, handle);
        }
        return Err(error);
    }
    let (mut moved, mut emptied) = (vec![0; session.devices.len()], Vec::new());
    for (extent, handle) in moving.iter().zip(handles) {
        if let Some(it) = state.extent_mut(extent.start, extent.index)
            && let Place::Parked(piece) = std::mem::replace(&mut it.place, Place::Device(handle))
        {
            emptied.push(piece);
        }
        moved[extent.gpu as usize] += extent.bytes;
    }
    Ok(Back { moved, emptied })
}

fn map_all(
    session: &Session,
    moving: &[Moving],
    handles: &mut Vec<sluice_cuda::CUmemGenericAllocationHandle>,
) -> Result<(), NotMoved> {
    let copies = Copies::new(session);
    for extent in moving {
        let device = copies.device(extent.gpu)?;
        make_current(&session.table, device.context).map_err(NotMoved::driver("cuCtxSetCurrent"))?;
        let made = extent::map_new(&session.table, device, extent.address, extent.bytes);
        handles.push(made.map_err(NotMoved::driver("cuMemCreate"))?);
    }
    Ok(())
}

/// Gives access to the commitments that extents are in, whole ranges at a time.
fn share_all(session: &Session, state: &State, moving: &[Moving]) -> Result<(), NotMoved> {
    let starts: std::collections::BTreeSet<u64> = moving.iter().map(|extent| extent.start).collect();
    for (start, run) in state.chunks.iter().filter(|(start, _)| starts.contains(start)) {
        let Backing::Committed { gpu, by_all, .. } = &run.backing else { continue };
        let own = session.devices.get(*gpu as usize).map(std::slice::from_ref).unwrap_or_default();
        let users = if *by_all { session.devices.as_slice() } else { own };
        extent::give_access(&session.table, users, start, run.bytes)
            .map_err(NotMoved::driver("cuMemSetAccess"))?;
    }
    Ok(())
}

fn fill_all(session: &Session, state: &State, moving: &[Moving]) -> Result<(), NotMoved> {
    let mut copies = Copies::new(session);
    for it in moving {
        if let Some(Extent { place: Place::Parked(piece), .. }) = state.extent(it.start, it.index) {
            copies.copy_in(it.gpu, it.address, piece, it.bytes)?;
        }
    }
    copies.finish()
}

/// Puts the memory of a commitment into one extent.
fn join_run(session: &Session, address: u64) -> Result<(), NotMoved> {
    let state = &mut *session.memory.lock();
    let Some((start, bytes, Backing::Committed { extents, gpu, by_all, .. })) = state.chunks.run_of(address)
    else {
        return Ok(());
    };
    if extents.len() == 1 {
        return Ok(());
    }
    let placed: Vec<(u64, u64)> = extent::placed(start, extents).map(|(at, it)| (at, it.bytes)).collect();
    let (gpu, table) = (*gpu, &session.table);
    let own = session.devices.get(gpu as usize).map(std::slice::from_ref).unwrap_or_default();
    let users = if *by_all { session.devices.as_slice() } else { own };
    let mut copies = Copies::new(session);
    let device = copies.device(gpu)?;
    copies.stream(gpu)?;
    let mut whole = HostPiece::new(bytes)?;
    whole.pin(table);
    copies.copy_out(gpu, &whole, start, bytes)?;
    copies.finish()?;
    extent::unmake(table, start, extents).map_err(NotMoved::driver("cuMemUnmap"))?;
    let joined = extent::make(table, (device, users), start, std::iter::once(bytes));
    let remade = joined.is_err();
    *extents = match joined {
        Ok(extents) => extents,
        Err(_) => match extent::make(table, (device, users), start, placed.iter().map(|it| it.1)) {
            Ok(extents) => extents,
            Err(result) => crate::ending::failed(&format!(
                "memory that was to be shared with another process could not be put back where it was ({result})"
            )),
        },
    };
    let filled = copies.copy_in(gpu, start, &whole, bytes).and_then(|()| copies.finish());
    drop(copies);
    match filled {
        Ok(()) if remade => Err(NotMoved::Driver { step: "cuMemCreate", result: CUresult::OUT_OF_MEMORY }),
        Ok(()) => Ok(()),
        // Its contents are lost to the program.
        Err(error) => crate::ending::failed(&format!(
            "memory that was to be shared with another process could not be filled again: {error}"
        )),
    }
}

#[cfg(test)]
mod tests;
