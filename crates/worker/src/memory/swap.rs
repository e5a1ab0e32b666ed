//! Moving a session's memory from its GPUs to host memory, and back to the same addresses.
//!
//! ```text
//!   out:  close the session -> copy everything -> unmap and release what was copied
//!   in:   create and map -> copy everything back -> open the session
//! ```
//!
//! What host memory has no room for goes to a file ([`super::file`]), by way of host memory that is
//! used for one extent after the other.
//!
//! Either direction has copied all bytes before it gives anything up. So a step that fails leaves
//! the session where it was: on its GPUs with its memory untouched, or away with every byte still
//! in host memory or the file.
//!
//! Not everything can move. What stays on the GPUs is counted by reason ([`Kept`]): memory that
//! other processes have, too, and memory that the program uses while device code runs are pinned by
//! what shares them; what programs map by themselves, module variables, arrays, and what the driver
//! allocates for itself are not made here.

mod copies;
mod filed;

use std::collections::BTreeMap;
use std::fs::File;
use std::time::{Duration, Instant};

use sluice_cuda::{CUresult, DriverTable};

use self::copies::Copies;
use self::filed::{Stage, copy_back, copy_to_file, divide, file_places};
use super::extent::{self, Extent, Location, Piece};
use super::file::Unread;
use super::host::{self, HostPiece};
use super::{Backing, State, unback};
use crate::link::{Kept, Packet};
use crate::session::Session;
use crate::session::current::make_current;

/// What is written to device memory that has been copied, where a node looks for uses of memory
/// that is away.
const POISON: u8 = 0xA5;

/// What has left the GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Out {
    /// Bytes on each GPU of the lease.
    pub(crate) moved: Vec<u64>,
    /// The part of them that is in a file.
    pub(crate) filed: Vec<u64>,
    /// Bytes of the session that are still there.
    pub(crate) stays: Vec<u64>,
    pub(crate) kept: Vec<Kept>,
}

/// How memory is to leave.
#[derive(Debug)]
pub(crate) struct Terms {
    /// Work that was submitted has this long to finish.
    pub(crate) patience: Duration,
    /// Bytes of host memory that may be used.
    pub(crate) room: u64,
    /// For what that has no room for: an empty file, and how many bytes it may have.
    pub(crate) file: Option<(File, u64)>,
    /// Whether device memory is overwritten before it is released.
    pub(crate) poisons: bool,
}

/// Why memory has not moved; the session is as it was before, and continues unless memory is lost.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotMoved {
    #[error("its work on the GPU did not finish within {0} s")]
    Busy(u64),
    #[error(
        "it needs {needed} bytes of host memory or of a swap file, and the node has {room} left for memory of suspended programs"
    )]
    Room { needed: u64, room: u64 },
    #[error("the node has no host memory: {0}")]
    Host(#[from] std::io::Error),
    #[error("the swap file has no room on its disk, or cannot be written ({0})")]
    File(std::io::Error),
    #[error("the memory of the program is lost: {0}")]
    Lost(#[from] Unread),
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
        return Ok(Out { moved: none.clone(), filed: none.clone(), stays: none, kept: Vec::new() });
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
/// Of the file, a descriptor comes with the packet.
pub(crate) fn obey(session: &Session, asked: &Packet, file: Option<File>, say: impl FnOnce(Packet)) {
    let begin = Instant::now();
    let took_us = || begin.elapsed().as_micros() as u64;
    let mut emptied = Vec::new();
    say(match *asked {
        Packet::MoveOut { room, file_room, work_limit_ms, poisons } => {
            let patience = Duration::from_millis(work_limit_ms);
            let file = file.map(|file| (file, file_room));
            match move_out(session, Terms { patience, room, file, poisons }) {
                Ok(Out { moved, filed, stays, kept }) => {
                    Packet::MovedOut { moved, filed, stays, kept, took_us: took_us() }
                }
                Err(error) => Packet::NotMovedOut { reason: error.to_string() },
            }
        }
        Packet::MoveIn { keeps } => match move_in(session, keeps) {
            Ok(back) => {
                emptied = back.emptied;
                Packet::MovedIn { moved: back.moved, took_us: took_us() }
            }
            Err(error @ NotMoved::Lost(_)) => crate::process::ending::failed(&error.to_string()),
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
    let (to_host, to_file) = divide(&moving, terms.room);
    let sum = |extents: &[Moving]| extents.iter().map(|extent| extent.bytes).sum::<u64>();
    let file_room = terms.file.as_ref().map_or(0, |(_, room)| *room);
    if sum(&to_file) > file_room {
        return Err(NotMoved::Room { needed: sum(&moving), room: terms.room.saturating_add(file_room) });
    }
    let places = match terms.file.filter(|_| !to_file.is_empty()) {
        Some((file, _)) => file_places(file, &to_file)?,
        None => Vec::new(),
    };
    let spare = std::mem::take(&mut state.spare);
    let in_host = copy_out(session, &to_host, spare)?;
    let in_file = copy_to_file(session, &to_file, places)?;
    let pieces = in_host.into_iter().map(Piece::Host).chain(in_file.into_iter().map(Piece::File));
    let mut moved = vec![0; session.devices.len()];
    let mut filed = moved.clone();
    for (extent, piece) in to_host.iter().chain(&to_file).zip(pieces) {
        let in_file = matches!(piece, Piece::File(_));
        if terms.poisons
            && let Err(error) = poison(session, extent)
        {
            // Part of it may have been overwritten.
            put_back(session, extent, &piece);
            eprintln!("sluice worker: device memory that was copied could not be overwritten: {error}");
        }
        match park(&session.table, state, extent, piece) {
            Ok(()) => {
                moved[extent.gpu as usize] += extent.bytes;
                filed[extent.gpu as usize] += if in_file { extent.bytes } else { 0 };
            }
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
    Ok(Out { stays: stays.collect(), moved, filed, kept })
}

fn poison(session: &Session, extent: &Moving) -> Result<(), NotMoved> {
    let mut fills = Copies::new(session);
    fills.poison(extent.gpu, extent.address, extent.bytes)?;
    fills.finish()
}

/// Writes the bytes of an extent to where they were.
fn put_back(session: &Session, extent: &Moving, piece: &Piece) {
    let mut stage = Stage::default();
    let mut copies = Copies::new(session);
    let copied = copy_back(&mut copies, &mut stage, extent, piece);
    if let Err(error) = copied.and_then(|()| copies.finish()) {
        crate::process::ending::failed(&format!(
            "device memory could be neither released nor restored: {error}"
        ));
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
    piece: Option<Piece>,
}

/// Releases the device memory of an extent whose bytes are in a piece. What the driver does not
/// unmap stays there.
fn park(table: &DriverTable, state: &mut State, moving: &Moving, piece: Piece) -> Result<(), Stays> {
    let stays = |result, piece| Stays { result, piece };
    let handle = match state.extent(moving.start, moving.index) {
        Some(Extent { place: Location::Device(handle), .. }) => *handle,
        _ => return Err(stays(CUresult::INVALID_VALUE, None)),
    };
    if let Err(result) = super::calls::unmap(table, moving.address, moving.bytes) {
        return Err(stays(result, Some(piece)));
    }
    if let Some(extent) = state.extent_mut(moving.start, moving.index) {
        extent.place = Location::Parked(piece);
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
            // The bytes are still where they were. What is not released now is when the process
            // ends.
            let _ = unback(&session.table, extent.address, extent.bytes, handle);
        }
        return Err(error);
    }
    let (mut moved, mut emptied) = (vec![0; session.devices.len()], Vec::new());
    for (extent, handle) in moving.iter().zip(handles) {
        if let Some(it) = state.extent_mut(extent.start, extent.index)
            && let Location::Parked(piece) = std::mem::replace(&mut it.place, Location::Device(handle))
        {
            // A file is closed with its last piece, and its disk has the room again.
            if let Piece::Host(piece) = piece {
                emptied.push(piece);
            }
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
    let mut stage = Stage::default();
    let mut copies = Copies::new(session);
    for it in moving {
        if let Some(Extent { place: Location::Parked(piece), .. }) = state.extent(it.start, it.index) {
            copy_back(&mut copies, &mut stage, it, piece)?;
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
            Err(result) => crate::process::ending::failed(&format!(
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
        Err(error) => crate::process::ending::failed(&format!(
            "memory that was to be shared with another process could not be filled again: {error}"
        )),
    }
}

#[cfg(test)]
mod tests;
